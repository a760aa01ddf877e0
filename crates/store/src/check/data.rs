//! Data of files: checksums, and zeros behind the end.

use super::Checker;
use crate::BLOCK;
use crate::format::checksum::crc32c;
use crate::format::extent::Extent;
use crate::image::Block;

const LOST: &str = "the data does not match its checksum";
/// Blocks that are read at once.
pub const CHUNK_BLOCKS: usize = 16;

impl Checker<'_> {
    /// Compares all blocks of a file's extents with their checksums.
    pub(super) fn check_data(&mut self, number: u64, extents: &[Extent]) {
        if !self.options.data || !self.image.data_checksums {
            return;
        }
        for extent in extents.iter().filter(|extent| extent.is_written()) {
            let mut block = extent.physical;
            let end = block + u64::from(extent.length);
            while block < end {
                let mut count = (end - block).min(CHUNK_BLOCKS as u64);
                if extent.is_shared() {
                    count = 1;
                    self.check_shared(number, block);
                } else {
                    self.check_chunk(number, block, count as usize);
                }
                block += count;
            }
        }
    }

    /// Compares up to [`CHUNK_BLOCKS`] blocks of one group with their checksums.
    fn check_chunk(&mut self, number: u64, first: u64, count: usize) {
        let mut crcs = [0; CHUNK_BLOCKS * 4];
        let crcs = &mut crcs[..count * 4];
        self.image.read(self.image.layout.data_crc(first), crcs);
        let data = &mut self.buffer[..count * BLOCK];
        self.image.read(first * BLOCK as u64, data);
        for ((block, data), crc) in (first..)
            .zip(data.chunks_exact(BLOCK))
            .zip(crcs.chunks_exact(4))
        {
            if crc32c(data).to_le_bytes() != crc {
                self.report.add(LOST, Some(number), Some(block));
            }
        }
    }

    /// Compares a block with its checksum once, however many owners it has; each owner is reported.
    fn check_shared(&mut self, number: u64, block: u64) {
        if self.compared.claim(block, 1) {
            let mut contents = [0; BLOCK];
            self.image.read_block(block, &mut contents);
            if self.is_lost(block, &contents) {
                self.lost.insert(block);
            }
        }
        if self.lost.contains(&block) {
            self.report.add(LOST, Some(number), Some(block));
        }
    }

    /// Whether a data block does not match its checksum: its contents have no meaning then.
    pub(super) fn is_lost(&self, block: u64, contents: &Block) -> bool {
        self.image.data_checksums && crc32c(contents) != self.image.data_crc(block)
    }

    /// Checks that the last block of a file is zero beyond the file's end, so that growing the file shows zeros.
    pub(super) fn check_tail(&mut self, number: u64, size: u64, extents: &[Extent]) {
        let (last, inside) = (size / BLOCK as u64, (size % BLOCK as u64) as usize);
        if !self.options.data || inside == 0 {
            return;
        }
        let index = extents.partition_point(|extent| extent.end() <= last);
        let holds_last = |extent: &&Extent| extent.logical <= last && extent.is_written();
        let Some(extent) = extents.get(index).filter(holds_last) else {
            return;
        };
        let block = extent.physical + (last - extent.logical);
        let mut contents = [0; BLOCK];
        self.image.read_block(block, &mut contents);
        if self.is_lost(block, &contents) {
            return;
        }
        if contents[inside..].iter().any(|byte| *byte != 0) {
            self.block_finding(
                number,
                block,
                "the last block is not zero behind the end of the file",
            );
        }
    }
}
