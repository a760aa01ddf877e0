//! Growing a pool while it is open.

use zerocopy::IntoBytes;

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::placement::ImageLayout;
use crate::format::superblock::{SUPERBLOCKS, Superblock};
use crate::image::create::{format_group, reserved_blocks};
use crate::store::Store;

impl Store {
    /// Extends the pool to its whole region, which may have become longer. Other threads continue to read and write
    /// meanwhile. Its groups stay where they are, those after them are new; the last one, if it was short, gets the
    /// rest of its blocks; their bits and checksums exist already.
    ///
    /// **A crash on the way** leaves the pool as long as it was, until the first superblock is written: what lies behind
    /// the old image means nothing, and the ring's records are of blocks that were there. The second copy is written
    /// before it. As long as the first one is whole it counts. If it is damaged between the two, the second one describes
    /// a pool that is as good: nothing was put into the new part yet but empty groups. Nothing is given out of that before
    /// both are persistent, so no record names it earlier.
    ///
    /// # Errors
    /// [`Error::OfUnit`]; [`Error::Corrupt`] if the last group's header is damaged. Nothing has changed then.
    pub fn grow(&self) -> Result<Superblock> {
        let (image, allocator) = (&self.shared.image, &self.shared.allocator);
        let mut own = self.superblock.lock();
        own.check_alone()?;
        if self.shared.deferred_frees.is_some() {
            return Err(Error::OfUnit);
        }
        let region = image.region();
        let pool_length = region.length();
        let blocks = (pool_length - own.image_offset) / BLOCK as u64;
        let grown = ImageLayout::new(blocks, own.blocks_per_group, own.inodes_per_group);
        let grown = grown.filter(|grown| grown.blocks() >= image.layout.blocks());
        let grown = grown.ok_or(Error::BadGeometry("a pool does not get smaller"))?;
        for number in image.layout.groups()..grown.groups() {
            format_group(region, own.image_offset, &grown, number);
        }
        region.fence();
        let more = allocator.load_more(image, &grown)?;
        let mut superblock = Superblock {
            pool_length,
            image_length: grown.blocks() * BLOCK as u64,
            reserved_blocks: reserved_blocks(&grown).max(own.reserved_blocks),
            ..*own
        };
        superblock.crc = superblock.checksum();
        for offset in SUPERBLOCKS.into_iter().rev() {
            region.write_flushed(offset, superblock.as_bytes());
            region.fence();
        }
        // First the places, then what leads there.
        image.grow(grown.blocks());
        allocator.grow(more, superblock.reserved_blocks);
        *own = superblock;
        Ok(superblock)
    }
}
