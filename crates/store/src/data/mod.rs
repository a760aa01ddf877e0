//! Data of files: reading, writing, sharing, allocating, and the blocks that clients fill.

pub(crate) mod bad_blocks;
pub(crate) mod fallocate;
pub(crate) mod file;
pub(crate) mod grant;
pub(crate) mod share;

use crate::data::bad_blocks::LostDataTold;
use crate::image::volume::Volume;
use crate::inode::Inodes;

/// The layer of data: what is in files.
pub struct Files {
    pub(crate) inodes: Inodes,
    pub(crate) lost_data: LostDataTold,
}

impl Files {
    pub(crate) fn new(inodes: Inodes) -> Files {
        Files {
            inodes,
            lost_data: LostDataTold::default(),
        }
    }

    #[inline]
    pub(crate) fn volume(&self) -> &Volume {
        &self.inodes.volume
    }
}
