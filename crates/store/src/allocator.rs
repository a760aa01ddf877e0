//! Which blocks and inodes are free. The bitmaps in the image are the truth; this is their volatile working copy.
//!
//! Each thread prefers a group of its own. A group's lock is held for moments: to mark blocks as taken, and while a
//! record gets its lines of the bitmap *and its place in the order*, so that a line's contents always include those
//! of every earlier record. A record never waits for the ring under it. Lines are applied under the lock too, and
//! never over a newer one.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::checksum::crc32c;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::group::{LINE_BITS, Map};
use crate::layout::record::Operation;

const LINE_WORDS: usize = LINE_BITS as usize / 64;

/// A run of blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub length: u32,
}

/// Volatile copy of one bitmap.
struct Bitmap {
    /// As of the newest record that has its place in the order.
    used: Vec<u64>,
    /// `used`, and what is taken for records to come, and what was freed by a record not yet persistent.
    busy: Vec<u64>,
    /// Number of the record whose contents each line of the image has.
    applied: Vec<u64>,
    /// Bits of the map.
    length: u32,
    /// Where the next search starts.
    hint: u32,
    /// Bits not busy.
    free: u32,
}

impl Bitmap {
    fn load(image: &Image, group: u64, map: Map, length: u64, crcs: &[u32]) -> Result<Bitmap> {
        let lines = (length as usize).div_ceil(LINE_BITS as usize);
        let mut used = Vec::with_capacity(lines * LINE_WORDS);
        for (line, crc) in crcs.iter().enumerate().take(lines) {
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

    fn line(&self, line: usize) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (to, word) in bytes
            .chunks_exact_mut(8)
            .zip(&self.used[line * LINE_WORDS..])
        {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
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
    /// Lines changed since the lock was taken for a record: (map, line).
    changed: Vec<(Map, usize)>,
}

impl Group {
    /// Makes a change of the bits that the next record carries.
    pub fn set(&mut self, map: Map, bit: u32, length: u32, used: bool) {
        let bitmap = &mut self.maps[map as usize];
        for_each_word(bit, length, |word, mask| {
            if used {
                bitmap.used[word] |= mask;
            } else {
                bitmap.used[word] &= !mask;
            }
        });
        for line in bit / LINE_BITS..(bit + length).div_ceil(LINE_BITS) {
            if !self.changed.contains(&(map, line as usize)) {
                self.changed.push((map, line as usize));
            }
        }
    }

    /// Hands out the changed lines as (offset in the image, contents).
    pub fn drain_lines(&mut self, image: &Image, mut emit: impl FnMut(u64, [u8; 64])) {
        for (map, line) in self.changed.drain(..) {
            emit(
                image.layout.line(self.number, map, line),
                self.maps[map as usize].line(line),
            );
        }
    }
}

/// The allocator of an open pool.
pub struct Allocator {
    groups: Box<[Mutex<Group>]>,
    blocks_per_group: u64,
    inodes_per_group: u64,
    free_blocks: AtomicI64,
    free_inodes: AtomicI64,
    reserved_blocks: i64,
}

/// Where a thread allocates.
static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static PREFERRED: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
}

impl Allocator {
    /// Reads and checks all bitmaps.
    pub fn load(image: &Image, reserved_blocks: u64) -> Result<Allocator> {
        let layout = &image.layout;
        let (mut groups, mut free_blocks, mut free_inodes) = (Vec::new(), 0, 0);
        for number in 0..layout.groups {
            let crcs = image.group_header(number)?.line_crcs;
            let load =
                |map: Map, length| Bitmap::load(image, number, map, length, &crcs[map as usize]);
            let maps = [
                load(Map::Blocks, layout.group_blocks(number))?,
                load(Map::Inodes, layout.inodes_per_group)?,
                load(Map::Orphans, layout.inodes_per_group)?,
            ];
            free_blocks += i64::from(maps[Map::Blocks as usize].free);
            free_inodes += i64::from(maps[Map::Inodes as usize].free);
            groups.push(Mutex::new(Group {
                number,
                maps,
                changed: Vec::new(),
            }));
        }
        Ok(Allocator {
            groups: groups.into(),
            blocks_per_group: layout.blocks_per_group,
            inodes_per_group: layout.inodes_per_group,
            free_blocks: AtomicI64::new(free_blocks),
            free_inodes: AtomicI64::new(free_inodes),
            reserved_blocks: reserved_blocks as i64,
        })
    }

    /// Free blocks, the reserve included.
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed).max(0) as u64
    }

    /// Blocks that only changes which free space may take.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks as u64
    }

    /// Free inodes.
    pub fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Numbers of all orphans.
    pub fn orphans(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        for group in &self.groups {
            let group = group.lock();
            for (index, word) in group.maps[Map::Orphans as usize].used.iter().enumerate() {
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

    /// The group this thread starts looking in: threads spread evenly over the image.
    fn preferred_group(&self) -> usize {
        let thread = PREFERRED.with(Cell::get) as u32;
        // Bit reversal puts the second thread in the middle, the next two in the quarters, …
        ((u64::from(thread.reverse_bits()) * self.groups.len() as u64) >> 32) as usize
    }

    /// Takes a run of at most `want` blocks, at `goal` if that is free. With `reserve`, from the last blocks too.
    pub fn take_blocks(&self, goal: Option<u64>, want: u32, reserve: bool) -> Result<Run> {
        let floor = if reserve { 0 } else { self.reserved_blocks };
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
        let block = goal?;
        let (group, bit) = (
            (block / self.blocks_per_group) as usize,
            (block % self.blocks_per_group) as u32,
        );
        let mut group = self.groups.get(group)?.lock();
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
                let mut group = self.groups[index].lock();
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

    /// Gives back blocks that were taken and are in no record, or whose freeing is persistent.
    pub fn give_back(&self, run: Run) {
        let (group, bit) = (
            run.block / self.blocks_per_group,
            (run.block % self.blocks_per_group) as u32,
        );
        self.groups[group as usize].lock().maps[Map::Blocks as usize].clear_busy(bit, run.length);
        self.free_blocks
            .fetch_add(i64::from(run.length), Ordering::Relaxed);
    }

    /// Takes a free inode number.
    pub fn take_inode(&self) -> Result<u64> {
        let start = self.preferred_group();
        for index in (start..self.groups.len()).chain(0..start) {
            let mut group = self.groups[index].lock();
            let base = group.number * self.inodes_per_group;
            let bitmap = &mut group.maps[Map::Inodes as usize];
            if bitmap.free > 0
                && let Some((bit, _)) = bitmap.find(1)
            {
                bitmap.take(bit, 1);
                self.free_inodes.fetch_sub(1, Ordering::Relaxed);
                return Ok(base + u64::from(bit));
            }
        }
        Err(Error::NoInodes)
    }

    /// Gives back an inode number that is in no record, or whose freeing is persistent.
    pub fn give_back_inode(&self, number: u64) {
        let (group, bit) = (
            number / self.inodes_per_group,
            (number % self.inodes_per_group) as u32,
        );
        self.groups[group as usize].lock().maps[Map::Inodes as usize].clear_busy(bit, 1);
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
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
    pub fn lock(&self, group: u64) -> MutexGuard<'_, Group> {
        self.groups[group as usize].lock()
    }

    /// Applies a bitmap line of the record `number`, unless a newer one is there already.
    pub fn apply_line(&self, image: &Image, operation: &Operation<'_>, number: u64) {
        let group = operation.target / (self.blocks_per_group * crate::BLOCK as u64);
        let inside = operation.target - image.layout.header(group);
        let map = inside as usize / crate::BLOCK - 1;
        let mut group = self.groups[group as usize].lock();
        let applied = &mut group.maps[map].applied[inside as usize % crate::BLOCK / 64];
        if *applied < number {
            *applied = number;
            image.apply(operation, number);
        }
    }
}
