//! Which blocks and inodes are free. The bitmaps in the image are the truth; this is their volatile working copy.
//!
//! Each thread prefers a separate group. A group's lock is held briefly: to mark blocks as taken, and while a record
//! gets its lines of the bitmap *and reserves its position in the order*, so that a line's contents always include
//! those of every earlier record. A record never waits for the ring under it. Lines are applied under the lock too, and
//! never over a newer one.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::checksum::crc32c;
use crate::format::group::{LINE_BITS, Map};
use crate::format::placement::ImageLayout;
use crate::format::record::{Kind, RecordOperation};
use crate::image::Image;
use crate::image::growing::Growing;
use crate::order::{LockGuard, Ordered, Rank};

const LINE_WORDS: usize = LINE_BITS as usize / 64;

/// A run of blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first block.
    pub block: u64,
    /// Number of blocks.
    pub length: u32,
}

/// Volatile copy of one bitmap.
struct Bitmap {
    /// Bits as of the newest record that has reserved its position.
    used: Vec<u64>,
    /// `used`, and bits that are taken for records to come, or were freed by a record not yet persistent.
    busy: Vec<u64>,
    /// Number of the record with the contents of each line of the image.
    applied: Vec<u64>,
    /// Bits of the map.
    length: u32,
    /// Where the next search starts.
    hint: u32,
    /// Number of bits that are clear in `busy`.
    free: u32,
}

impl Bitmap {
    fn load(image: &Image, group: u64, map: Map, length: u64, crcs: &[u32]) -> Result<Bitmap> {
        Bitmap::load_from(0, image, group, map, length, crcs)
    }

    /// The same, without the lines before `first`: other threads may be changing them.
    fn load_from(
        first: usize,
        image: &Image,
        group: u64,
        map: Map,
        length: u64,
        crcs: &[u32],
    ) -> Result<Bitmap> {
        let lines = (length as usize).div_ceil(LINE_BITS as usize);
        let mut used = Vec::with_capacity(lines * LINE_WORDS);
        used.resize(first * LINE_WORDS, 0);
        for (line, crc) in crcs.iter().enumerate().take(lines).skip(first) {
            let offset = image.layout.line(group, map, line);
            let mut bytes = [0; 64];
            image.read(offset, &mut bytes);
            if crc32c(&bytes) != *crc {
                return Err(Error::Corrupt {
                    what: "a bitmap",
                    block: offset / crate::BLOCK as u64,
                });
            }
            used.extend(
                bytes
                    .chunks_exact(8)
                    .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))),
            );
        }
        let mut busy = used.clone();
        for bit in length as u32..used.len() as u32 * 64 {
            // Bits behind the end are never free.
            busy[bit as usize / 64] |= 1 << (bit % 64);
        }
        let free = busy.iter().map(|word| word.count_zeros()).sum();
        Ok(Bitmap {
            busy,
            applied: vec![0; lines],
            used,
            length: length as u32,
            hint: 0,
            free,
        })
    }

    /// Takes over what `longer`, the same map of a longer group, has more. Returns how many bits are free among that.
    fn lengthen(&mut self, longer: Bitmap) -> u32 {
        // In the last line of this one bits behind the end counted as taken.
        let own_end = longer.length.min(self.used.len() as u32 * 64);
        self.used.extend_from_slice(&longer.used[self.used.len()..]);
        self.busy.extend_from_slice(&longer.busy[self.busy.len()..]);
        self.applied.resize(longer.applied.len(), 0);
        let (from, busy) = (self.length, &mut self.busy);
        for_each_word(from, own_end - from, |word, mask| busy[word] &= !mask);
        self.length = longer.length;
        let free = self.busy.iter().map(|word| word.count_zeros()).sum();
        let more = free - self.free;
        self.free = free;
        more
    }

    fn is_busy(&self, bit: u32) -> bool {
        bit >= self.length || self.busy[bit as usize / 64] >> (bit % 64) & 1 != 0
    }

    /// The first run of free bits at or behind `from`, at most `want` long.
    fn next_free_run(&self, from: u32, want: u32) -> Option<(u32, u32)> {
        let mut bit = from;
        while bit < self.length {
            let free = !self.busy[bit as usize / 64] >> (bit % 64);
            if free == 0 {
                bit = (bit / 64 + 1) * 64;
                continue;
            }
            bit += free.trailing_zeros();
            return Some((bit, self.run_length(bit, want)));
        }
        None
    }

    /// Free bits from `bit` on, at most `want`.
    fn run_length(&self, bit: u32, want: u32) -> u32 {
        let mut length = 0;
        while length < want && bit + length < self.length {
            let at = bit + length;
            let free = (self.busy[at as usize / 64] >> (at % 64))
                .trailing_zeros()
                .min(64 - at % 64);
            length += free;
            if at % 64 + free < 64 {
                break;
            }
        }
        length.min(want)
    }

    /// The first run of `want` free bits, else the longest. Starts at the hint and wraps.
    fn find(&self, want: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        for (mut from, end) in [(self.hint, self.length), (0, self.hint)] {
            while let Some((bit, length)) =
                self.next_free_run(from, want).filter(|(bit, _)| *bit < end)
            {
                if best.is_none_or(|(_, longest)| length > longest) {
                    best = Some((bit, length));
                }
                if length == want {
                    return best;
                }
                from = bit + length;
            }
        }
        best
    }

    /// A free bit, most often that of the hint.
    fn find_one(&self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        if !self.is_busy(self.hint) {
            return Some(self.hint);
        }
        self.find(1).map(|(bit, _)| bit)
    }

    fn set_busy(&mut self, bit: u32, length: u32) {
        for_each_word(bit, length, |word, mask| self.busy[word] |= mask);
        self.free -= length;
    }

    fn clear_busy(&mut self, bit: u32, length: u32) {
        for_each_word(bit, length, |word, mask| self.busy[word] &= !mask);
        self.free += length;
    }

    fn take(&mut self, bit: u32, length: u32) {
        self.set_busy(bit, length);
        self.hint = bit + length;
    }

    fn set_used(&mut self, word: usize, mask: u64, used: bool) {
        if used {
            self.used[word] |= mask;
        } else {
            self.used[word] &= !mask;
        }
    }

    fn line(&self, line: usize) -> [u8; 64] {
        let words = self.used[line * LINE_WORDS..].first_chunk::<LINE_WORDS>();
        zerocopy::transmute!(words.expect("lines are whole").map(u64::to_le))
    }
}

/// Calls `change` with each word and the mask of the bits of the run in it.
fn for_each_word(bit: u32, length: u32, mut change: impl FnMut(usize, u64)) {
    let (mut at, end) = (bit, bit + length);
    while at < end {
        let count = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - count)) << (at % 64);
        change(at as usize / 64, mask);
        at += count;
    }
}

/// The maps of one group.
pub struct Group {
    number: u64,
    maps: [Bitmap; 3],
    /// Lines changed since the lock was taken for a record, and the words in them: (map, line, first, last).
    changed: Vec<(Map, usize, usize, usize)>,
}

/// Effect of a record on a line of a bitmap.
pub struct Line {
    group: usize,
    map: Map,
    line: usize,
    /// Where in the image the line is.
    offset: u64,
    /// All of the line, as this record and those before it leave it.
    contents: [u8; 64],
    /// The bytes of it that the record carries.
    changed: Range<usize>,
    /// Checksum of the line.
    crc: u32,
}

impl Line {
    /// The operation of the record.
    pub fn operation(&self) -> RecordOperation<'_> {
        self.operation_of(self.changed.clone())
    }

    fn operation_of(&self, bytes: Range<usize>) -> RecordOperation<'_> {
        RecordOperation {
            kind: Kind::Line,
            target: self.offset + bytes.start as u64,
            length: bytes.len() as u32,
            crc: self.crc,
            touch: None,
            payload: &self.contents[bytes],
        }
    }
}

impl Group {
    /// Reads and checks the bitmaps of a group.
    fn load(image: &Image, layout: &ImageLayout, number: u64) -> Result<Group> {
        let crcs = image.group_header(number)?.line_crcs;
        let load = |map: Map, length| Bitmap::load(image, number, map, length, &crcs[map as usize]);
        Ok(Group {
            number,
            maps: [
                load(Map::Blocks, layout.group_blocks(number))?,
                load(Map::Inodes, layout.inodes_per_group)?,
                load(Map::Orphans, layout.inodes_per_group)?,
            ],
            changed: Vec::new(),
        })
    }

    fn free_blocks(&self) -> i64 {
        i64::from(self.maps[Map::Blocks as usize].free)
    }

    /// Makes a change of the bits that the next record carries.
    pub fn set(&mut self, map: Map, bit: u32, length: u32, used: bool) {
        let bitmap = &mut self.maps[map as usize];
        for_each_word(bit, length, |word, mask| bitmap.set_used(word, mask, used));
        let (first_word, last_word) = (bit as usize / 64, (bit + length - 1) as usize / 64);
        for line in first_word / LINE_WORDS..=last_word / LINE_WORDS {
            let start = line * LINE_WORDS;
            let first = first_word.max(start) - start;
            let last = last_word.min(start + LINE_WORDS - 1) - start;
            let mut changed = self.changed.iter_mut();
            match changed.find(|known| (known.0, known.1) == (map, line)) {
                Some(known) => (known.2, known.3) = (known.2.min(first), known.3.max(last)),
                None => self.changed.push((map, line, first, last)),
            }
        }
    }

    /// Hands out the changed lines.
    pub fn drain_lines(&mut self, image: &Image, mut emit: impl FnMut(Line)) {
        for index in 0..self.changed.len() {
            let (map, line, first, last) = self.changed[index];
            emit(self.line(image, map, line, first..last + 1));
        }
        self.changed.clear();
    }

    /// A line of which the record carries these words.
    fn line(&self, image: &Image, map: Map, line: usize, changed: Range<usize>) -> Line {
        let contents = self.maps[map as usize].line(line);
        Line {
            group: self.number as usize,
            map,
            line,
            offset: image.layout.line(self.number, map, line),
            changed: changed.start * 8..changed.end * 8,
            crc: crc32c(&contents),
            contents,
        }
    }

    /// Frees an inode number that is in no record, or that was freed by a persistent record.
    pub fn give_back_inode(&mut self, bit: u32) {
        self.maps[Map::Inodes as usize].clear_busy(bit, 1);
    }
}

/// The allocator of an open pool.
pub struct Allocator {
    groups: Growing<Ordered<Mutex<Group>>>,
    /// For each group where threads start to search for an inode, the group of the last one found: those between are
    /// mostly full. A hint.
    inodes_near: Growing<AtomicUsize>,
    blocks_per_group: u64,
    inodes_per_group: u64,
    free_blocks: AtomicI64,
    reserved_blocks: AtomicI64,
    /// See [`PoolOptions::place`](crate::PoolOptions::place).
    place: Option<u32>,
}

/// Bitmaps of a part of the image that is new.
pub struct More {
    /// The blocks of the former last group, which gets new ones.
    last: Bitmap,
    groups: Vec<Group>,
}

/// The groups from `first` on.
fn load_groups(image: &Image, layout: &ImageLayout, first: u64) -> Result<Vec<Group>> {
    let numbers = first..layout.groups();
    numbers
        .map(|number| Group::load(image, layout, number))
        .collect()
}

fn ordered(group: Group) -> Ordered<Mutex<Group>> {
    Ordered::mutex(Rank::Group(group.number), group)
}

/// Where a thread allocates.
static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static PREFERRED: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
}

impl Allocator {
    /// Reads and checks all bitmaps.
    pub fn load(image: &Image, reserved_blocks: u64, place: Option<u32>) -> Result<Allocator> {
        let layout = &image.layout;
        let groups = load_groups(image, layout, 0)?;
        let free_blocks = groups.iter().map(Group::free_blocks).sum();
        Ok(Allocator {
            inodes_near: Growing::new((0..groups.len()).map(AtomicUsize::new).collect()),
            groups: Growing::new(groups.into_iter().map(ordered).collect()),
            blocks_per_group: layout.blocks_per_group,
            inodes_per_group: layout.inodes_per_group,
            free_blocks: AtomicI64::new(free_blocks),
            reserved_blocks: AtomicI64::new(reserved_blocks as i64),
            place,
        })
    }

    /// Reads and checks the bitmaps of what an image that grows to `layout` gets. Nothing is given out of it yet.
    pub fn load_more(&self, image: &Image, layout: &ImageLayout) -> Result<More> {
        let known = self.groups.len();
        let last = known as u64 - 1;
        let crcs = image.group_header(last)?.line_crcs[Map::Blocks as usize];
        let blocks = layout.group_blocks(last);
        let own_lines = self.lock(last).maps[Map::Blocks as usize].applied.len();
        // No thread changes lines beyond the end: they are in their initial state.
        let last = Bitmap::load_from(own_lines, image, last, Map::Blocks, blocks, &crcs)?;
        Ok(More {
            last,
            groups: load_groups(image, layout, known as u64)?,
        })
    }

    /// Makes the new part of an image that has grown available for allocation. One thread does that at a time.
    pub fn grow(&self, more: More, reserved_blocks: u64) {
        let mut free = more.groups.iter().map(Group::free_blocks).sum();
        let last = self.groups.len() - 1;
        free += {
            let mut group = self.groups.at(last).lock();
            i64::from(group.maps[Map::Blocks as usize].lengthen(more.last))
        };
        let near = (0..more.groups.len()).map(|index| AtomicUsize::new(last + 1 + index));
        self.inodes_near.extend(near.collect());
        self.groups
            .extend(more.groups.into_iter().map(ordered).collect());
        self.reserved_blocks
            .store(reserved_blocks as i64, Ordering::Relaxed);
        self.free_blocks.fetch_add(free, Ordering::Relaxed);
    }

    /// Free blocks, the reserve included.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed).max(0) as u64
    }

    /// Blocks that only changes which free space may take.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks.load(Ordering::Relaxed) as u64
    }

    /// Returns the number of free inodes.
    pub fn free_inodes(&self) -> u64 {
        let free =
            |group: &Ordered<Mutex<Group>>| u64::from(group.lock().maps[Map::Inodes as usize].free);
        self.groups.iter().map(free).sum()
    }

    /// Numbers of all orphans.
    pub fn orphans(&self) -> Vec<u64> {
        self.numbers_in(Map::Orphans)
    }

    /// Numbers of the inodes in use.
    pub fn inodes(&self) -> Vec<u64> {
        self.numbers_in(Map::Inodes)
    }

    fn numbers_in(&self, map: Map) -> Vec<u64> {
        let mut numbers = Vec::new();
        for group in self.groups.iter() {
            let group = group.lock();
            for (index, word) in group.maps[map as usize].used.iter().enumerate() {
                let base = group.number * self.inodes_per_group + index as u64 * 64;
                numbers.extend(
                    (0..64)
                        .filter(|bit| word >> bit & 1 != 0)
                        .map(|bit| base + bit),
                );
            }
        }
        numbers
    }

    /// The group where this thread starts its search: threads spread evenly over the image.
    fn preferred_group(&self) -> usize {
        let thread = self.place.unwrap_or_else(|| PREFERRED.get() as u32);
        // Bit reversal puts the second thread in the middle, the next two in the quarters, …
        ((u64::from(thread.reverse_bits()) * self.groups.len() as u64) >> 32) as usize
    }

    /// Takes a run of at most `want` blocks, at `goal` if that is free. With `reserve`, from the last blocks too.
    pub fn take_blocks(&self, goal: Option<u64>, want: u32, reserve: bool) -> Result<Run> {
        let floor = match reserve {
            true => 0,
            false => self.reserved_blocks.load(Ordering::Relaxed),
        };
        if self
            .free_blocks
            .fetch_sub(i64::from(want), Ordering::Relaxed)
            - i64::from(want)
            < floor
        {
            self.free_blocks
                .fetch_add(i64::from(want), Ordering::Relaxed);
            // A shorter run may still do.
            return if want == 1 {
                Err(Error::NoSpace)
            } else {
                self.take_blocks(goal, want / 2, reserve)
            };
        }
        let run = self
            .take_at_goal(goal, want)
            .or_else(|| self.take_anywhere(want));
        let taken = run.map_or(0, |run| run.length);
        self.free_blocks
            .fetch_add(i64::from(want - taken), Ordering::Relaxed);
        run.ok_or(Error::NoSpace)
    }

    fn take_at_goal(&self, goal: Option<u64>, want: u32) -> Option<Run> {
        let block =
            goal.filter(|block| block / self.blocks_per_group < self.groups.len() as u64)?;
        let (group, bit) = (
            (block / self.blocks_per_group) as usize,
            (block % self.blocks_per_group) as u32,
        );
        let mut group = self.groups.at(group).lock();
        let bitmap = &mut group.maps[Map::Blocks as usize];
        let length = if bitmap.is_busy(bit) {
            0
        } else {
            bitmap.run_length(bit, want)
        };
        // A short remainder in front of other data is not worth a seam.
        if length < want.min(16) {
            return None;
        }
        bitmap.take(bit, length);
        Some(Run { block, length })
    }

    /// The first group with a whole run from this thread's group on; else the longest run anywhere.
    fn take_anywhere(&self, want: u32) -> Option<Run> {
        for least in [want, 1] {
            let start = self.preferred_group();
            for index in (start..self.groups.len()).chain(0..start) {
                let mut group = self.groups.at(index).lock();
                let base = group.number * self.blocks_per_group;
                let bitmap = &mut group.maps[Map::Blocks as usize];
                let found = if bitmap.free >= least {
                    bitmap.find(want)
                } else {
                    None
                };
                if let Some((bit, length)) = found.filter(|(_, length)| *length >= least) {
                    bitmap.take(bit, length);
                    return Some(Run {
                        block: base + u64::from(bit),
                        length,
                    });
                }
            }
        }
        None
    }

    /// Frees blocks that were taken and are in no record, or that were freed by a persistent record.
    pub fn give_back(&self, run: Run) {
        let (group, bit) = (
            run.block / self.blocks_per_group,
            (run.block % self.blocks_per_group) as u32,
        );
        self.groups.at(group as usize).lock().maps[Map::Blocks as usize]
            .clear_busy(bit, run.length);
        self.free_blocks
            .fetch_add(i64::from(run.length), Ordering::Relaxed);
    }

    /// Takes a free inode number.
    pub fn take_inode(&self) -> Result<u64> {
        let near = self.inodes_near.at(self.preferred_group());
        let start = near.load(Ordering::Relaxed);
        for index in (start..self.groups.len()).chain(0..start) {
            let mut group = self.groups.at(index).lock();
            let base = group.number * self.inodes_per_group;
            let bitmap = &mut group.maps[Map::Inodes as usize];
            if let Some(bit) = bitmap.find_one() {
                bitmap.take(bit, 1);
                if index != start {
                    near.store(index, Ordering::Relaxed);
                }
                return Ok(base + u64::from(bit));
            }
        }
        Err(Error::NoInodes)
    }

    /// Frees an inode number that is in no record, or that was freed by a persistent record.
    pub fn give_back_inode(&self, number: u64) {
        let (group, bit) = self.inode_bit(number);
        self.lock(group).give_back_inode(bit);
    }

    /// Group and bit of a block.
    pub fn block_bit(&self, block: u64) -> (u64, u32) {
        (
            block / self.blocks_per_group,
            (block % self.blocks_per_group) as u32,
        )
    }

    /// Group and bit of an inode.
    pub fn inode_bit(&self, number: u64) -> (u64, u32) {
        (
            number / self.inodes_per_group,
            (number % self.inodes_per_group) as u32,
        )
    }

    /// Locks a group for a record. Several are locked in ascending order.
    pub fn lock(&self, group: u64) -> LockGuard<'_, Group> {
        self.groups.at(group as usize).lock()
    }

    /// Applies the change of the record `number` to a line, unless a newer one is there already. The whole line is
    /// written: records before this one are persistent too, and are skipped when they are applied later. The group is
    /// still locked.
    pub fn apply_line(&self, image: &Image, line: &Line, number: u64) -> LockGuard<'_, Group> {
        let mut group = self.groups.at(line.group).lock();
        let applied = &mut group.maps[line.map as usize].applied[line.line];
        if *applied < number {
            *applied = number;
            image.apply(&line.operation_of(0..line.contents.len()), number);
        }
        group
    }
}
