//! Where everything in an image is, and checked access to it.

pub(crate) mod allocator;
pub(crate) mod change;
pub(crate) mod create;
pub(crate) mod deferred_frees;
pub(crate) mod edit;
pub(crate) mod grow;
pub(crate) mod growing;
pub(crate) mod owners;
pub(crate) mod recovery;
pub(crate) mod transaction;
pub(crate) mod volume;

use std::sync::atomic::{AtomicU64, Ordering, fence};

use pmem::checksum::is_best_in_place;
use pmem::{LINE, Region};
use zerocopy::{FromBytes, IntoBytes};

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::checksum::{append_zeros, crc32c, remainder};
use crate::format::group::{GroupHeader, LINE_CRCS, owners};
use crate::format::inode::{
    CHANGING, FIRST_LINE, Inode, STAMP, STAMP_CRC, STAMP_END, stamp_checksum,
};
use crate::format::placement::ImageLayout;
use crate::format::record::{Kind, RecordOperation, Touch, parts};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM};
use crate::image::growing::Growing;
use crate::ring::CachedLines;

/// A 4 KiB block in ordinary memory.
pub type Block = [u8; BLOCK];

/// Payloads from this length are written around the caches: they need no flush later, only a fence everywhere.
const STREAM_MIN: usize = 1024;

/// Bytes that are copied out at once to be checksummed.
const PIECE: usize = 1024;

/// The image inside a mapped pool. All offsets are in bytes from the image's start.
pub struct Image {
    region: Region,
    base: u64,
    /// Where its parts are.
    pub layout: ImageLayout,
    /// Whether data blocks carry checksums.
    pub data_checksums: bool,
    /// Whether other processes may read the image meanwhile: a pool of a unit.
    pub is_read_outside: bool,
    /// Payloads from this length are written around the caches.
    stream_min: usize,
    /// One bit for each block with a checksum that was verified, or that was written, by this process.
    verified: Growing<AtomicU64>,
}

impl Image {
    /// The image that the (validated) superblock describes.
    pub fn new(region: Region, superblock: &Superblock) -> Image {
        let layout = ImageLayout::of(superblock).expect("the superblock was validated");
        let words = layout.blocks().div_ceil(64);
        let verified = Growing::new((0..words).map(|_| AtomicU64::new(0)).collect());
        Image {
            region,
            base: superblock.image_offset,
            layout,
            data_checksums: superblock.data_checksums(),
            is_read_outside: false,
            stream_min: STREAM_MIN,
            verified,
        }
    }

    /// The same; with `in_caches`, only whole blocks are applied around the caches, and no parts: see
    /// [`PoolOptions::between_system_calls`](crate::PoolOptions::between_system_calls).
    pub fn with_parts_in_caches(mut self, in_caches: bool) -> Image {
        self.stream_min = if in_caches { BLOCK } else { STREAM_MIN };
        self
    }

    /// Whether stores to parts of blocks stay in the caches.
    pub fn has_parts_in_caches(&self) -> bool {
        self.stream_min == BLOCK
    }

    /// Whether an operation on so many bytes may be applied around the caches.
    #[inline]
    pub fn is_streamed(&self, length: u32) -> bool {
        length as usize >= self.stream_min
    }

    /// Where it begins in the region.
    pub fn start(&self) -> u64 {
        self.base
    }

    /// Makes the image longer. What describes its new groups is persistent.
    pub fn grow(&self, blocks: u64) {
        let words = self.verified.len() as u64..blocks.div_ceil(64);
        self.verified
            .extend(words.map(|_| AtomicU64::new(0)).collect());
        self.layout.grow(blocks);
    }

    /// The region that holds the image.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Copies bytes of the image to a buffer.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.region.read(self.base + offset, into);
    }

    /// Copies a data block out and gives its checksum; of `more` blocks behind it the next is wanted soon.
    #[inline]
    pub fn read_data(&self, block: u64, into: &mut [u8], more: usize) -> u32 {
        let offset = block * BLOCK as u64;
        let summed = self
            .region
            .read_summed(self.base + offset, into, more * BLOCK);
        if let Some(register) = summed {
            return !register;
        }
        self.read(offset, into);
        if more > 0 {
            self.prefetch_block(block + 1);
        }
        crc32c(into)
    }

    /// Loads 8 bytes; `offset` is a multiple of 8.
    #[inline]
    pub fn load(&self, offset: u64) -> u64 {
        self.region.load(self.base + offset)
    }

    /// Stores 8 bytes; `offset` is a multiple of 8.
    #[inline]
    fn store(&self, offset: u64, value: u64) {
        self.region.store(self.base + offset, value);
    }

    /// Writes data that no record names yet; persistent after the next fence of this thread.
    #[inline]
    pub fn write_unreferenced(&self, offset: u64, bytes: &[u8]) {
        self.region.write_flushed(self.base + offset, bytes);
    }

    /// Makes this thread's [`Image::write_unreferenced`] persistent.
    pub fn fence(&self) {
        self.region.fence();
    }

    /// Copies a block out.
    pub fn read_block(&self, block: u64, into: &mut Block) {
        self.read(block * BLOCK as u64, into);
    }

    /// Hints that up to four lines from `offset` on are wanted soon.
    #[inline]
    pub fn prefetch(&self, offset: u64, length: usize) {
        let lines = (offset % LINE as u64 + length as u64).div_ceil(LINE as u64);
        for line in 0..lines.min(4) {
            self.region
                .prefetch(self.base + offset + line * LINE as u64);
        }
    }

    /// Hints that a part of a data block and its checksum are wanted soon; a whole block is replaced and not read. A
    /// wrong guess does no harm.
    #[inline]
    pub fn prefetch_data(&self, block: u64, inside: usize, length: usize) {
        if block >= self.layout.blocks() {
            return;
        }
        self.region
            .prefetch(self.base + self.layout.data_crc(block));
        let mut at = inside;
        while length < BLOCK && at < BLOCK.min(inside + length) {
            self.region
                .prefetch(self.base + block * BLOCK as u64 + at as u64);
            at += LINE;
        }
    }

    /// Hints that a data block is needed next: its first half; its lines make the processor fetch the rest itself.
    /// Otherwise the processor fetches nothing while the block before is checksummed (docs/performance/pool.md).
    #[inline]
    fn prefetch_block(&self, block: u64) {
        let start = self.base + block * BLOCK as u64;
        for line in 0..BLOCK as u64 / 2 / LINE as u64 {
            self.region.prefetch(start + line * LINE as u64);
        }
    }

    /// The stored checksum of a data block.
    #[inline]
    pub fn data_crc(&self, block: u64) -> u32 {
        self.region
            .load_u32(self.base + self.layout.data_crc(block))
    }

    /// The number of owners of a block besides the first, by the last applied record.
    pub fn owners(&self, block: u64) -> Result<u16> {
        let offset = self.layout.owners(block);
        owners(self.region.load_u32(self.base + offset)).ok_or(Error::Corrupt {
            what: "a count of owners",
            block: offset / BLOCK as u64,
        })
    }

    /// Whether the block was verified or written by this process.
    #[inline]
    pub fn is_verified(&self, block: u64) -> bool {
        self.verified
            .at(block as usize / 64)
            .load(Ordering::Relaxed)
            >> (block % 64)
            & 1
            != 0
    }

    /// Notes that the block's contents are known to match its checksum.
    pub fn set_verified(&self, block: u64) {
        let (word, bit) = (self.verified.at(block as usize / 64), 1 << (block % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Reads an inode and checks it.
    pub fn inode(&self, number: u64) -> Result<Inode> {
        let offset = self.layout.inode(number);
        let mut inode = Inode::FREE;
        self.read(offset, inode.as_mut_bytes());
        if !inode.is_intact() {
            return Err(Error::Corrupt {
                what: "an inode",
                block: offset / BLOCK as u64,
            });
        }
        Ok(inode)
    }

    /// Reads an inode that is free, to be reused, and checks the part that will stay: its first line.
    pub fn free_inode(&self, number: u64) -> Result<Inode> {
        let offset = self.layout.inode(number);
        let mut inode = Inode::FREE;
        self.read(offset, inode.as_mut_bytes());
        let is_right = inode.crc == inode.checksum() && inode.stamp_crc == inode.stamp_checksum()
            || inode.as_bytes()[..FIRST_LINE] == [0; FIRST_LINE];
        if !is_right {
            return Err(Error::Corrupt {
                what: "an inode",
                block: offset / BLOCK as u64,
            });
        }
        Ok(inode)
    }

    /// Reads a group's header and checks it.
    pub fn group_header(&self, group: u64) -> Result<GroupHeader> {
        let offset = self.layout.header(group);
        let mut bytes = [0; size_of::<GroupHeader>()];
        self.read(offset, &mut bytes);
        let header =
            GroupHeader::read_from_bytes(&bytes).expect("the buffer has the header's size");
        let intact = header.magic == crate::format::group::MAGIC
            && header.group == group
            && header.crc == crc32c(&bytes[BLOCK_CRC_FROM..LINE_CRCS as usize]);
        if intact {
            Ok(header)
        } else {
            Err(Error::Corrupt {
                what: "a group header",
                block: offset / BLOCK as u64,
            })
        }
    }

    /// Reads a metadata block and checks its checksum and own number.
    pub fn metadata(
        &self,
        block: u64,
        what: &'static str,
        magic: u32,
        into: &mut Block,
    ) -> Result<()> {
        self.read_block(block, into);
        let word = |at: usize| u32::from_le_bytes(into[at..at + 4].try_into().expect("four bytes"));
        let own = u64::from_le_bytes(into[16..24].try_into().expect("eight bytes"));
        let right =
            word(0) == magic && own == block && word(BLOCK_CRC) == crc32c(&into[BLOCK_CRC_FROM..]);
        if right {
            Ok(())
        } else {
            Err(Error::Corrupt { what, block })
        }
    }

    /// Whether an operation from media may be applied to this image.
    pub fn accepts(&self, operation: &RecordOperation<'_>) -> bool {
        let RecordOperation {
            kind,
            target,
            length,
            ..
        } = *operation;
        let block = target / BLOCK as u64;
        let touches_none = |touch: Touch| touch.inode >= self.layout.inodes();
        if operation.touch.is_some_and(touches_none) {
            return false;
        }
        match kind {
            Kind::Data | Kind::Block => self.layout.is_data_run(block, 1),
            Kind::Extent => self
                .layout
                .is_data_run(block, u64::from(length) / BLOCK as u64),
            Kind::Line => self.layout.line_crc(target).is_some(),
            Kind::Bytes | Kind::Zero | Kind::Inode => true,
            Kind::Edit => self.layout.is_data_run(block, 1),
        }
    }

    /// The checksum of a data block after `length` bytes in it change: `difference` is the [`remainder`] of the old ones,
    /// exclusive or that of the new. CRCs are linear, so only these are read, and a block that was damaged elsewhere
    /// stays detectably damaged: nothing launders it.
    #[inline]
    pub fn changed_crc(&self, block: u64, inside: usize, length: usize, difference: u32) -> u32 {
        if !self.data_checksums {
            return 0;
        }
        self.data_crc(block) ^ append_zeros(difference, BLOCK - inside - length)
    }

    /// The [`remainder`] of data that is to be replaced, in one block. Zero if it is not needed: the block changes as a
    /// whole, or data has no checksums.
    #[inline]
    pub fn data_remainder(&self, offset: u64, length: usize) -> u32 {
        if length == BLOCK || !self.data_checksums {
            0
        } else if is_best_in_place(length) {
            self.region.remainder(self.base + offset, length)
        } else {
            self.long_remainder(offset, length)
        }
    }

    #[inline(never)]
    fn long_remainder(&self, offset: u64, length: usize) -> u32 {
        // In pieces: clearing a buffer as long as a block takes as long as half the rest.
        let (mut buffer, mut register) = ([0; PIECE], 0);
        for start in (0..length).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(length - start)];
            self.read(offset + start as u64, piece);
            register = append_zeros(register, piece.len()) ^ remainder(piece);
        }
        register
    }

    /// Sets a mark in the version word of the inode at `offset`: the record `number` is about to change data in place.
    /// A reader of the image from outside, which reads the data and then this word, so never takes a part for the
    /// whole: the mark is visible before any of the data that is stored after it, and disappears when the record stamps
    /// the inode.
    ///
    /// The record is persistent already, so that a crash leaves no mark: it is replayed. Of the data, an operation covers
    /// at most `length` bytes.
    #[inline]
    pub fn mark_changing(&self, offset: u64, number: u64, length: usize) {
        // It costs a small write a tenth.
        if !self.is_read_outside {
            return;
        }
        let at = self.base + offset + STAMP;
        self.region.store(at, number | CHANGING);
        if length < STREAM_MIN {
            fence(Ordering::Release);
        } else {
            self.region.order_stores();
        }
    }

    /// Like [`Image::mark_changing`], if the operations of a record change data in place, for all inodes among them.
    pub fn mark_all_changing(
        &self,
        operations: impl Iterator<Item = (Kind, u64)> + Clone,
        number: u64,
    ) {
        let is_in_place = |(kind, _)| self.is_in_place(kind);
        if self.is_read_outside && operations.clone().any(is_in_place) {
            for (_, target) in operations.filter(|(kind, _)| *kind == Kind::Inode) {
                self.mark_changing(target, number, BLOCK);
            }
        }
    }

    /// Whether operations of this kind may change a file's data where it is.
    fn is_in_place(&self, kind: Kind) -> bool {
        match kind {
            Kind::Data | Kind::Block => true,
            Kind::Bytes => !self.data_checksums,
            Kind::Zero | Kind::Inode | Kind::Extent | Kind::Line | Kind::Edit => false,
        }
    }

    /// Applies one operation of the record `number`. The caller ensures that bitmap lines are applied in order.
    #[inline]
    pub fn apply(&self, operation: &RecordOperation<'_>, number: u64) {
        let RecordOperation {
            kind,
            target,
            length,
            crc,
            touch,
            payload,
        } = *operation;
        if let Some(touch) = touch {
            self.mark_changing(self.layout.inode(touch.inode), number, payload.len());
        }
        match kind {
            Kind::Bytes => self.put(target, payload),
            Kind::Zero => self.put_zeros(target, length),
            Kind::Inode => {
                let (words, _) = payload.as_chunks();
                let [crc, modified, changed] = [0, 2, 3].map(|at| u64::from_le_bytes(words[at]));
                let stamp_crc = stamp_checksum(number, modified as i64, changed as i64);
                let crcs = crc & u64::from(u32::MAX) | u64::from(stamp_crc) << 32;
                let stamp = [crcs, number, modified, changed];
                self.region.store_words(self.base + target, stamp);
                self.put(target + STAMP_END as u64, &payload[STAMP_END..]);
            }
            Kind::Data => {
                self.put(target, payload);
                self.put_data_crc(target, crc);
            }
            Kind::Block => {
                self.put(target, payload);
                if self.data_checksums {
                    self.put_data_crc(target, crc);
                }
            }
            Kind::Extent => self.put(self.layout.data_crc(target / BLOCK as u64), payload),
            Kind::Line => {
                self.put(target, payload);
                if let Some(at) = self.layout.line_crc(target) {
                    self.region.store_u32(self.base + at, crc);
                }
            }
            Kind::Edit => {
                let (list, mut bytes) = payload.split_at(8);
                for (at, length) in parts(u64::from_le_bytes(list.try_into().expect("a word"))) {
                    let (part, rest) = bytes.split_at(length);
                    match part.try_into() {
                        Ok(word) => self.store(target + at as u64, u64::from_ne_bytes(word)),
                        Err(_) => self.put(target + at as u64, part),
                    }
                    bytes = rest;
                }
                // Whole words, as they are loaded.
                let magic = self.load(target) & u64::from(u32::MAX);
                let first_word = magic | u64::from(crc) << (8 * BLOCK_CRC);
                self.store(target, first_word);
            }
        }
        if let Some(touch) = touch {
            self.touch(touch, number);
        }
    }

    #[inline]
    fn put_data_crc(&self, target: u64, crc: u32) {
        let at = self.layout.data_crc(target / BLOCK as u64);
        self.region.store_u32(self.base + at, crc);
    }

    /// Stamps an inode with the record `number`.
    #[inline]
    fn touch(&self, Touch { inode, time_ns }: Touch, number: u64) {
        let at = self.base + self.layout.inode(inode);
        let crc = stamp_checksum(number, time_ns, time_ns);
        self.region.store_u32(at + STAMP_CRC, crc);
        let stamp = [number, time_ns as u64, time_ns as u64];
        self.region.store_words(at + STAMP, stamp);
    }

    #[inline]
    fn put(&self, offset: u64, bytes: &[u8]) {
        if bytes.len() < self.stream_min {
            self.region.write(self.base + offset, bytes);
        } else {
            self.region.write_flushed(self.base + offset, bytes);
        }
    }

    fn put_zeros(&self, offset: u64, length: u32) {
        if (length as usize) < self.stream_min {
            self.region
                .write(self.base + offset, &[0; BLOCK][..length as usize]);
        } else {
            self.region
                .zero_flushed(self.base + offset, u64::from(length));
        }
    }
}

impl CachedLines for Image {
    fn length(&self) -> u64 {
        self.layout.blocks() * BLOCK as u64
    }

    // The first word of an edit's payload is needed.
    #[inline]
    fn cached_ranges(&self, operation: &RecordOperation<'_>, mut visit: impl FnMut(u64, u64)) {
        let (target, length) = (operation.target, u64::from(operation.length));
        let data_crc = self.layout.data_crc(target / BLOCK as u64);
        let mut covered = |at, length| {
            if length < self.stream_min as u64 {
                visit(at, length);
            }
        };
        match operation.kind {
            Kind::Bytes | Kind::Zero | Kind::Inode => covered(target, length),
            Kind::Extent => covered(data_crc, length / BLOCK as u64 * 4),
            Kind::Data | Kind::Block => {
                covered(target, length);
                visit(data_crc, 4);
            }
            Kind::Line => {
                covered(target, length);
                if let Some(at) = self.layout.line_crc(target) {
                    visit(at, 4);
                }
            }
            Kind::Edit => {
                // Its block's checksum, and the parts.
                visit(target, 8);
                if let Some(list) = operation.payload.first_chunk() {
                    for (at, length) in parts(u64::from_le_bytes(*list)) {
                        visit(target + at as u64, length as u64);
                    }
                }
            }
        }
        if let Some(touch) = operation.touch {
            visit(self.layout.inode(touch.inode), STAMP_END as u64);
        }
    }

    fn flush(&self, offset: u64, length: u64) {
        self.region.flush(self.base + offset, length);
    }
}
