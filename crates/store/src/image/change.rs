//! One atomic change of the image: collected, committed as one record, applied.
//!
//! An operation holds the locks of all inodes it changes from before it reads them until its change is applied.
//! Metadata blocks are edited in copies; the record contains their changed lines.

use std::cell::Cell;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut, Range};

use smallvec::SmallVec;
use zerocopy::{Immutable, IntoBytes};

use crate::BLOCK;
use crate::error::Result;
use crate::format::checksum::crc32c;
use crate::format::group::{LINE_BITS, Map};
use crate::format::inode::{FIRST_LINE, Inode, STAMP_END};
use crate::format::record::{
    ALIGN, EDIT_MAX, HEADER, Kind, OPERATION, RecordOperation, Touch, encode, set_crc,
};
use crate::image::allocator::{Line, Run};
use crate::image::edit::{Contents, Edit, Sealed};
use crate::image::owners::Owners;
use crate::image::transaction::{PlacedReply, Transaction};
use crate::image::volume::Volume;
use crate::image::{Block, Image};
use crate::ring::in_flight::{Entered, Reservation};

/// A change that is being collected. Dropped without a commit, it frees what it allocated.
pub struct Change<'s> {
    volume: &'s Volume,
    parts: Lent,
    /// Whole data blocks, in the order of their operations.
    blocks: [&'s [u8]; BLOCKS_MAX],
    block_count: usize,
    /// The inode that it puts to use, and its generation.
    taken_inode: Option<(u64, u32)>,
    freed_inode: Option<u64>,
    /// Counts of owners that it changes.
    owners: Option<Owners<'s>>,
    /// The change frees space in the end, so it may use the reserve.
    reserve: bool,
}

/// Contents of a change. Each thread keeps its last one, so that changes allocate no memory.
#[derive(Default)]
struct Parts {
    record: Vec<u8>,
    edits: Vec<Edit>,
    /// The operations in the record, for applying them: decoding them after the fence would wait for it.
    operations: Vec<Placed>,
    /// Effects of its operations on bitmaps, in their order.
    lines: Vec<Line>,
    spare_blocks: Vec<Box<Block>>,
    taken: Vec<Run>,
    freed: Vec<Run>,
    inode_bits: Vec<(Map, u64, bool)>,
}

/// An operation and where its payload is in the record.
struct Placed {
    kind: Kind,
    target: u64,
    length: u32,
    crc: u32,
    touch: Option<Touch>,
    payload: Range<usize>,
}

impl Placed {
    /// The operation in this record, a block's without its payload.
    #[inline]
    fn operation<'a>(&self, record: &'a [u8]) -> RecordOperation<'a> {
        RecordOperation {
            kind: self.kind,
            target: self.target,
            length: self.length,
            crc: self.crc,
            touch: self.touch,
            payload: &record[self.payload.clone()],
        }
    }
}

impl Parts {
    #[inline]
    fn encode(&mut self, operation: &RecordOperation<'_>) {
        let payload = encode(&mut self.record, operation);
        self.operations.push(Placed {
            kind: operation.kind,
            target: operation.target,
            length: operation.length,
            crc: operation.crc,
            touch: operation.touch,
            payload,
        });
    }

    #[inline]
    fn put(&mut self, kind: Kind, target: u64, length: u32, crc: u32, payload: &[u8]) {
        self.encode(&RecordOperation {
            kind,
            target,
            length,
            crc,
            touch: None,
            payload,
        });
    }
}

/// A thread's parts, lent to a change.
struct Lent(Option<Box<Parts>>);

impl Deref for Lent {
    type Target = Parts;

    #[inline]
    fn deref(&self) -> &Parts {
        self.0
            .as_deref()
            .expect("the parts are there until the drop")
    }
}

impl DerefMut for Lent {
    #[inline]
    fn deref_mut(&mut self) -> &mut Parts {
        self.0
            .as_deref_mut()
            .expect("the parts are there until the drop")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.record.clear();
        self.operations.clear();
        self.lines.clear();
        self.edits.clear();
        self.freed.clear();
        self.inode_bits.clear();
        PARTS.set(self.0.take());
    }
}

thread_local! {
    static PARTS: Cell<Option<Box<Parts>>> = const { Cell::new(None) };
}

/// Most whole blocks in a record.
pub const BLOCKS_MAX: usize = 2;
/// More spare blocks than this are returned to the system.
const SPARE_BLOCKS_MAX: usize = 16;

impl<'s> Change<'s> {
    /// Makes a change that contains nothing yet.
    pub fn new(volume: &'s Volume) -> Change<'s> {
        let mut parts = Lent(Some(PARTS.take().unwrap_or_default()));
        parts.record.resize(HEADER, 0);
        Change {
            volume,
            parts,
            blocks: [&[]; BLOCKS_MAX],
            block_count: 0,
            taken_inode: None,
            freed_inode: None,
            owners: None,
            reserve: false,
        }
    }

    /// A change which frees space, or must not fail for want of it: it may take the last blocks.
    pub fn with_reserve(volume: &'s Volume) -> Change<'s> {
        let mut change = Change::new(volume);
        change.reserve = true;
        change
    }

    /// The image as it was before the change.
    pub fn image(&self) -> &'s Image {
        &self.volume.image
    }

    /// Bytes that `target` is to have.
    pub fn bytes(&mut self, target: u64, bytes: &[u8]) {
        self.parts
            .put(Kind::Bytes, target, bytes.len() as u32, 0, bytes);
    }

    /// Zeros from `target` on.
    pub fn zero(&mut self, target: u64, length: u32) {
        self.parts.put(Kind::Zero, target, length, 0, &[]);
    }

    /// New bytes inside a data block; its checksum becomes `crc`. If only the stamp of the inode changes, they touch
    /// it.
    #[inline]
    pub fn data(&mut self, target: u64, bytes: &[u8], crc: u32, touch: Option<Touch>) {
        let kind = if self.volume.image.data_checksums {
            Kind::Data
        } else {
            Kind::Bytes
        };
        self.parts.encode(&RecordOperation {
            kind,
            target,
            length: bytes.len() as u32,
            crc,
            touch,
            payload: bytes,
        });
    }

    /// A whole data block. It is neither copied nor checksummed until it goes into the ring.
    #[inline]
    pub fn block(&mut self, block: u64, bytes: &'s [u8], touch: Option<Touch>) {
        self.parts.encode(&RecordOperation {
            kind: Kind::Block,
            target: block * BLOCK as u64,
            length: BLOCK as u32,
            crc: 0,
            touch,
            payload: &[],
        });
        self.blocks[self.block_count] = bytes;
        self.block_count += 1;
    }

    /// Makes data persistent that the record is going to name.
    pub fn fence_data(&self) {
        if !self.volume.defects.skip_data_fence {
            self.volume.image.fence();
        }
    }

    /// Names data blocks that were written, and made persistent, before.
    pub fn extent(&mut self, block: u64, crcs: &[u32]) {
        let length = (crcs.len() * BLOCK) as u32;
        self.parts.put(
            Kind::Extent,
            block * BLOCK as u64,
            length,
            0,
            crcs.as_bytes(),
        );
    }

    /// The first `length` bytes (64, 128 or 256) of an inode. The checksums among them are computed, except that of the
    /// stamp: it is set, like the version, when the record has its number.
    #[inline]
    pub fn inode(&mut self, number: u64, inode: &mut Inode, length: usize) {
        if length > FIRST_LINE {
            inode.rest_crc = inode.rest_checksum();
        }
        inode.crc = inode.checksum();
        let target = self.volume.image.layout.inode(number);
        self.parts.put(
            Kind::Inode,
            target,
            length as u32,
            0,
            &inode.as_bytes()[..length],
        );
    }

    /// The prefix of an inode that contains all changed bytes.
    #[inline]
    pub fn inode_from(&mut self, number: u64, old: &Inode, new: &mut Inode) {
        let (old, bytes) = (old.as_bytes(), new.as_bytes());
        let length = [128, FIRST_LINE]
            .into_iter()
            .find(|at| old[*at..] != bytes[*at..])
            .map_or(FIRST_LINE, |at| at * 2);
        self.inode(number, new, length);
    }

    /// The access time of an inode, with the bytes under the same checksums. Its version stays, since caches of contents
    /// are compared by it.
    pub fn access_time(&mut self, number: u64, inode: &mut Inode) {
        inode.rest_crc = inode.rest_checksum();
        inode.crc = inode.checksum();
        let target = self.volume.image.layout.inode(number);
        let bytes = inode.as_bytes();
        self.bytes(target, &bytes[..size_of::<u32>()]);
        let rest = STAMP_END..offset_of!(Inode, root);
        self.bytes(target + STAMP_END as u64, &bytes[rest]);
    }

    /// Takes a run of at most `want` blocks, near `goal`.
    pub fn allocate(&mut self, goal: Option<u64>, want: u32) -> Result<Run> {
        let run = self
            .volume
            .allocator
            .take_blocks(goal, want, self.reserve)?;
        self.parts.taken.push(run);
        Ok(run)
    }

    /// Takes one block for metadata. It starts as zeros.
    pub fn allocate_metadata(&mut self) -> Result<u64> {
        let run = self.allocate(None, 1)?;
        Ok(self.edit_new(run.block))
    }

    /// The same, for a node of an extent tree. It may be of the reserve: blocks that a file has must be writable when the
    /// pool is full.
    pub fn allocate_node(&mut self) -> Result<u64> {
        let run = self.volume.allocator.take_blocks(None, 1, true)?;
        self.parts.taken.push(run);
        Ok(self.edit_new(run.block))
    }

    fn edit_new(&mut self, block: u64) -> u64 {
        let room = self.block_buffer();
        self.parts.edits.push(Edit::of_free(block, room));
        block
    }

    fn block_buffer(&mut self) -> Box<Block> {
        self.parts
            .spare_blocks
            .pop()
            .unwrap_or_else(|| Box::new([0; BLOCK]))
    }

    /// Frees blocks, once the change is persistent.
    pub fn free(&mut self, run: Run) {
        self.parts
            .edits
            .retain(|edit| edit.block != run.block || run.length != 1);
        self.parts.freed.push(run);
    }

    /// Gives each block of a run one owner more. False, and nothing is changed, if one has as many as can be.
    pub fn share(&mut self, run: Run) -> Result<bool> {
        if self.volume.defects.forget_owners {
            return Ok(true);
        }
        self.owners().add(run)
    }

    /// Takes an owner from each block of a run, and frees those that had no other, once the change is persistent.
    pub fn release(&mut self, run: Run) -> Result<()> {
        for freed in self.owners().remove(run)? {
            self.free(freed);
        }
        Ok(())
    }

    fn owners(&mut self) -> &mut Owners<'s> {
        let volume = self.volume;
        self.owners.get_or_insert_with(|| Owners::new(volume))
    }

    /// Takes a free inode, which the change will put to use.
    pub fn allocate_inode(&mut self) -> Result<(u64, Inode)> {
        let (allocator, image) = (&self.volume.allocator, &self.volume.image);
        let number = allocator.take_inode()?;
        let free = image.free_inode(number);
        let free = free.inspect_err(|_| allocator.give_back_inode(number))?;
        self.taken_inode = Some((number, free.next_generation()));
        self.parts.inode_bits.push((Map::Inodes, number, true));
        Ok((number, free))
    }

    /// Frees an inode number, once the change is persistent.
    pub fn free_inode(&mut self, number: u64) {
        self.parts.inode_bits.push((Map::Inodes, number, false));
        self.freed_inode = Some(number);
    }

    /// Notes, or clears the note, that an inode has something to reclaim.
    pub fn orphan(&mut self, number: u64, is_orphan: bool) {
        if !self.volume.defects.forget_orphans {
            self.parts
                .inode_bits
                .push((Map::Orphans, number, is_orphan));
        }
    }

    /// Whether the change edits this metadata block.
    pub fn is_edited(&self, block: u64) -> bool {
        self.parts.edits.iter().any(|edit| edit.block == block)
    }

    /// A (verified) metadata block, as the change has left it so far.
    pub fn contents(&self, block: u64) -> Contents<'_> {
        let edit = self.parts.edits.iter().find(|edit| edit.block == block);
        Contents::new(&self.volume.image, block, edit)
    }

    /// Bytes of a (verified) metadata block, to be changed.
    pub fn edit(&mut self, block: u64, range: Range<usize>) -> &mut [u8] {
        let known = self.parts.edits.iter().position(|edit| edit.block == block);
        let index = known.unwrap_or_else(|| {
            let room = self.block_buffer();
            self.parts.edits.push(Edit::of(block, room));
            self.parts.edits.len() - 1
        });
        self.parts.edits[index].bytes(&self.volume.image, range)
    }

    /// Puts bytes into a (verified) metadata block.
    pub fn put(&mut self, block: u64, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.edit(block, at..at + bytes.len())
                .copy_from_slice(bytes);
        }
    }

    /// Puts a structure into a metadata block.
    pub fn put_value<T: IntoBytes + Immutable + ?Sized>(
        &mut self,
        block: u64,
        at: usize,
        value: &T,
    ) {
        self.put(block, at, value.as_bytes());
    }

    /// Moves bytes within a metadata block.
    pub fn shift(&mut self, block: u64, from: Range<usize>, to: usize) {
        let mut bytes = [0; BLOCK];
        let bytes = &mut bytes[..from.len()];
        self.contents(block).copy(from.start, bytes);
        self.put(block, to, bytes);
    }

    /// Puts the edits, with the blocks' new checksums, into the record.
    fn emit_edits(&mut self) {
        let image = &self.volume.image;
        while let Some(mut edit) = self.parts.edits.pop() {
            match edit.seal(image) {
                Sealed::Unchanged => {}
                Sealed::Short(crc) => self.emit_short(&edit, crc),
                Sealed::Long => self.emit_long(&edit),
            }
            self.parts.spare_blocks.push(edit.into_room());
        }
        self.parts.spare_blocks.truncate(SPARE_BLOCKS_MAX);
    }

    /// Puts an edit into the record as one operation.
    fn emit_short(&mut self, edit: &Edit, crc: u32) {
        let mut payload = [0; EDIT_MAX];
        let length = edit.encode(&mut payload);
        let target = edit.block * BLOCK as u64;
        self.parts
            .put(Kind::Edit, target, length as u32, crc, &payload[..length]);
    }

    fn emit_long(&mut self, edit: &Edit) {
        let target = edit.block * BLOCK as u64;
        let mut end = 0;
        for (at, bytes) in edit.changes() {
            if edit.fresh && end < at {
                self.zero(target + end as u64, (at - end) as u32);
            }
            self.bytes(target + at as u64, bytes);
            end = at + bytes.len();
        }
        if edit.fresh && end < BLOCK {
            self.zero(target + end as u64, (BLOCK - end) as u32);
        }
        self.volume.image.set_verified(edit.block);
    }

    /// Puts the new counts of owners into the record.
    fn emit_owners(&mut self) {
        if let Some(owners) = self.owners.take() {
            owners.emit(|target, bytes| self.bytes(target, bytes));
            self.owners = Some(owners);
        }
    }

    /// Changes the bitmaps and gets the record's place in the order.
    fn sequence(&mut self, entered: Entered) -> Reservation {
        let Parts {
            taken,
            freed,
            inode_bits,
            ..
        } = &mut *self.parts;
        if taken.is_empty() && freed.is_empty() && inode_bits.is_empty() {
            return self.place(entered);
        }
        let (allocator, image) = (&self.volume.allocator, &self.volume.image);
        let block_groups = taken
            .iter()
            .chain(&*freed)
            .map(|run| allocator.block_bit(run.block).0);
        let inode_groups = inode_bits
            .iter()
            .map(|(_, number, _)| allocator.inode_bit(*number).0);
        let mut numbers: SmallVec<[u64; 8]> = block_groups.chain(inode_groups).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut groups: SmallVec<[_; 8]> = numbers
            .iter()
            .map(|number| allocator.lock(*number))
            .collect();
        let mut set = |group: u64, map, bit, length, used| {
            let index = numbers.binary_search(&group).expect("the group was locked");
            groups[index].set(map, bit, length, used);
        };
        // Taken before freed: a block that this change took and gave up again ends as free.
        for (runs, used) in [(taken, true), (freed, false)] {
            for run in runs.iter() {
                let (group, bit) = allocator.block_bit(run.block);
                set(group, Map::Blocks, bit, run.length, used);
            }
        }
        for (map, number, used) in inode_bits.iter() {
            let (group, bit) = allocator.inode_bit(*number);
            set(group, *map, bit, 1, *used);
        }
        for group in &mut groups {
            let parts = &mut self.parts;
            group.drain_lines(image, |line| {
                parts.encode(&line.operation());
                parts.lines.push(line);
            });
        }
        // The place is taken while the groups are locked: the lines are right only in this order.
        self.place(entered)
    }

    fn place(&mut self, entered: Entered) -> Reservation {
        let record = &mut self.parts.record;
        record.resize(record.len().next_multiple_of(ALIGN), 0);
        let length = record.len() + self.block_count * BLOCK;
        self.volume.ring.reserve(entered, length)
    }

    /// Longest record that the ring takes, less the space for the bitmap lines and a reply.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let edits = self.parts.edits.len() * (BLOCK + 8 * OPERATION);
        let runs = self.parts.taken.iter().chain(&self.parts.freed);
        let lines = runs.map(|run| run.length.div_ceil(LINE_BITS) as usize + 1);
        let lines = lines.sum::<usize>() + self.parts.inode_bits.len();
        let lines = (lines + 1) * (64 + OPERATION);
        let owners = self.owners.as_ref().map_or(0, Owners::record_length);
        self.parts.record.len() + edits + lines + owners + bytes <= self.volume.ring.record_max()
    }

    /// Makes the change happen: persistent, then applied. The record carries the transaction's reply. Returns the
    /// record's number.
    pub fn commit(&mut self, transaction: &mut Transaction<'_>) -> u64 {
        self.emit_all();
        let (volume, created) = (self.volume, self.taken_inode);
        transaction.with_reply_locked(volume, created, |transaction, reply| {
            self.commit_with(transaction, reply)
        })
    }

    /// The same for a record that others of the transaction follow: the last one carries the reply.
    pub fn commit_step(&mut self, transaction: &mut Transaction<'_>) -> u64 {
        self.emit_all();
        self.commit_with(transaction, None)
    }

    /// Puts the changes collected outside the record into it.
    fn emit_all(&mut self) {
        self.emit_edits();
        self.emit_owners();
    }

    fn commit_with(
        &mut self,
        transaction: &mut Transaction<'_>,
        reply: Option<&PlacedReply>,
    ) -> u64 {
        let volume = self.volume;
        if let Some(reply) = reply {
            let operation = reply.operation(volume.image.data_checksums);
            encode(&mut self.parts.record, &operation);
        }
        if volume.defects.reuse_before_commit {
            for run in &self.parts.freed {
                volume.allocator.give_back(*run);
            }
        }
        let place = self.sequence(volume.ring.enter());
        self.prepare_apply();
        if volume.defects.apply_before_commit {
            self.apply(place.number, reply);
        }
        self.write_record(place);
        transaction.committed(place.end);
        self.apply(place.number, reply);
        let lengths = self.parts.operations.iter().map(|placed| placed.length);
        let is_streamed = lengths
            .max()
            .is_some_and(|longest| volume.image.is_streamed(longest));
        volume.ring.applied(place, is_streamed);
        // The next holder finds the counts in the image after this change.
        self.owners = None;
        if volume.defects.reuse_before_commit {
            self.parts.freed.clear();
        }
        self.parts.taken.clear();
        self.taken_inode = None;
        self.give_back_freed(place.number);
        place.number
    }

    /// Writes the record into the ring, and returns once it is committed.
    fn write_record(&mut self, place: Reservation) {
        let (ring, image) = (&self.volume.ring, &self.volume.image);
        if self.block_count > 0 {
            let blocks = &self.blocks[..self.block_count];
            ring.put_blocks(place, self.parts.record.len(), blocks, image);
            // They are on their way while they are checksummed.
            self.checksum_blocks();
        }
        let record = &mut self.parts.record;
        let length = (place.end - place.number) as usize;
        let crc = ring.head(record, length);
        ring.commit(place, record, crc, image);
    }

    /// Fills in the checksums of whole blocks.
    fn checksum_blocks(&mut self) {
        let Parts {
            record, operations, ..
        } = &mut *self.parts;
        let placed = operations
            .iter_mut()
            .filter(|placed| placed.kind == Kind::Block);
        for (placed, bytes) in placed.zip(&self.blocks) {
            placed.crc = crc32c(bytes);
            set_crc(record, placed.payload.start, placed.touch, placed.crc);
        }
    }

    /// Has the lines of the image fetched that the operations will write, while the record is on its way.
    fn prepare_apply(&self) {
        for placed in &self.parts.operations {
            if placed.kind != Kind::Block {
                let image = &self.volume.image;
                image.prefetch(placed.target, placed.payload.len());
            }
        }
    }

    fn apply(&self, number: u64, reply: Option<&PlacedReply>) {
        let Volume {
            image, allocator, ..
        } = self.volume;
        let kinds = self.parts.operations.iter();
        image.mark_all_changing(kinds.map(|placed| (placed.kind, placed.target)), number);
        let (mut blocks, mut lines) = (self.blocks.iter(), self.parts.lines.iter());
        for placed in &self.parts.operations {
            let mut operation = placed.operation(&self.parts.record);
            match operation.kind {
                Kind::Line => {
                    let line = lines
                        .next()
                        .expect("each operation on a bitmap has its line");
                    drop(allocator.apply_line(image, line, number));
                }
                kind => {
                    if kind == Kind::Block {
                        operation.payload =
                            blocks.next().expect("each block operation has its block");
                    }
                    image.apply(&operation, number);
                }
            }
        }
        if let Some(reply) = reply {
            image.apply(&reply.operation(image.data_checksums), number);
        }
    }

    fn give_back_freed(&mut self, number: u64) {
        let (volume, inode) = (self.volume, self.freed_inode.take());
        if let Some(frees) = &volume.deferred_frees {
            frees.defer(number, &self.parts.freed, inode);
            self.parts.freed.clear();
            return;
        }
        for run in self.parts.freed.drain(..) {
            volume.allocator.give_back(run);
        }
        if let Some(number) = inode {
            volume.allocator.give_back_inode(number);
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for run in self.parts.taken.drain(..) {
            self.volume.allocator.give_back(run);
        }
        if let Some((number, _)) = self.taken_inode.take() {
            self.volume.allocator.give_back_inode(number);
        }
    }
}
