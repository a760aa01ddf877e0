//! Growing a pool while it is open.
//!
//! Groups stay where they are, those after them are new; the last one, if it was short, gets the rest of its blocks; their bits
//! and checksums exist already. New groups are the same bytes in every pool, so the members of a unit grow each by itself.
//!
//! **A crash on the way** leaves the pool as long as it was, until the first superblock is written: what lies behind the old
//! image means nothing, and the ring's records are of blocks that were there. The second copy is written before it. As long as
//! the first one is whole it counts. If it is damaged between the two, the second one describes a pool that is as good:
//! nothing was put into the new part yet but empty groups. No record names the new part before both are persistent.

use zerocopy::IntoBytes;

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::placement::ImageLayout;
use crate::format::superblock::{SUPERBLOCKS, Superblock};
use crate::image::Image;
use crate::image::create::{format_group, reserved_blocks};
use crate::image::volume::Volume;

impl Superblock {
    /// The layout of the image when it has grown to at most so many blocks.
    fn grown(&self, blocks: u64) -> Result<ImageLayout> {
        let grown = ImageLayout::new(blocks, self.blocks_per_group, self.inodes_per_group);
        let own = self.image_length / BLOCK as u64;
        let grown = grown.filter(|grown| grown.blocks() >= own);
        grown.ok_or(Error::BadGeometry("a pool does not get smaller"))
    }

    /// The layout of the image when it has grown to exactly so many bytes, for which the region has room. `None` if it is as long.
    pub(crate) fn grown_to(
        &self,
        image_length: u64,
        region_length: u64,
    ) -> Result<Option<ImageLayout>> {
        if image_length <= self.image_length {
            return Ok(None);
        }
        let grown = self.grown(image_length / BLOCK as u64)?;
        let end = self.image_offset.checked_add(image_length);
        if grown.blocks() * BLOCK as u64 != image_length {
            return Err(Error::BadGeometry("no image is as long as that"));
        }
        if end.is_none_or(|end| end > region_length) {
            return Err(Error::BadGeometry("the pool is too short for the image"));
        }
        Ok(Some(grown))
    }
}

/// Formats the new groups of an image that grows.
pub fn format_new_groups(image: &Image, grown: &ImageLayout) {
    for number in image.layout.groups()..grown.groups() {
        format_group(image.region(), image.start(), grown, number);
    }
    image.region().fence();
}

/// Makes a grown image persistent, in a pool of at least so many bytes; returns the new superblock.
pub fn write_superblock(
    image: &Image,
    own: &Superblock,
    grown: &ImageLayout,
    pool_length: u64,
) -> Superblock {
    let region = image.region();
    let image_length = grown.blocks() * BLOCK as u64;
    let mut superblock = Superblock {
        pool_length: pool_length.max(own.image_offset + image_length),
        image_length,
        reserved_blocks: reserved_blocks(grown).max(own.reserved_blocks),
        ..*own
    };
    superblock.crc = superblock.checksum();
    for offset in SUPERBLOCKS.into_iter().rev() {
        region.write_flushed(offset, superblock.as_bytes());
        region.fence();
    }
    superblock
}

impl Volume {
    /// Extends the pool to its whole region, which may have become longer. Other threads continue to read and write meanwhile.
    ///
    /// # Errors
    /// [`Error::OfUnit`]; [`Error::Corrupt`] if the last group's header is damaged. Nothing has changed then.
    pub fn grow(&self) -> Result<Superblock> {
        let mut own = self.superblock.lock();
        own.check_alone()?;
        if self.deferred_frees.is_some() {
            return Err(Error::OfUnit);
        }
        let room = self.image.region().length() - own.image_offset;
        let grown = own.grown(room / BLOCK as u64)?;
        self.extend(&mut own, &grown, self.image.region().length())
    }

    /// Extends the image of a unit's pool to so many bytes, if it is shorter. The region is long enough.
    ///
    /// # Errors
    /// [`Error::BadGeometry`]; [`Error::Corrupt`] if the last group's header is damaged. Nothing has changed then.
    pub fn grow_image(&self, image_length: u64) -> Result<()> {
        let mut own = self.superblock.lock();
        let room = self.image.region().length();
        match own.grown_to(image_length, room)? {
            // What the region has beyond the image may be given back.
            Some(grown) => {
                let length = own.pool_length;
                self.extend(&mut own, &grown, length).map(|_| ())
            }
            None => Ok(()),
        }
    }

    fn extend(
        &self,
        own: &mut Superblock,
        grown: &ImageLayout,
        pool_length: u64,
    ) -> Result<Superblock> {
        let (image, allocator) = (&self.image, &self.allocator);
        format_new_groups(image, grown);
        let more = allocator.load_more(image, grown)?;
        let superblock = write_superblock(image, own, grown, pool_length);
        // First the places, then what leads there.
        image.grow(grown.blocks());
        allocator.grow(more, superblock.reserved_blocks);
        *own = superblock;
        Ok(superblock)
    }
}
