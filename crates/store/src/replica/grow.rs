//! Growing a pool that follows.

use super::Replica;
use crate::error::Result;
use crate::image::grow::{format_new_groups, write_superblock};

impl Replica {
    /// Extends the image to so many bytes, if it is shorter. The region is long enough.
    ///
    /// # Errors
    /// [`Error::BadGeometry`](crate::Error::BadGeometry). Nothing has changed then.
    pub fn grow_image(&mut self, image_length: u64) -> Result<()> {
        let room = self.image.region().length();
        if let Some(grown) = self.superblock.grown_to(image_length, room)? {
            format_new_groups(&self.image, &grown);
            let own = &self.superblock;
            self.superblock = write_superblock(&self.image, own, &grown, own.pool_length);
            self.image.grow(grown.blocks());
        }
        Ok(())
    }
}
