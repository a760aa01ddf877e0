//! Formatting the pools of a unit: each member formats its own, and all hold the same image.

use pmem::Region;

use super::Replica;
use crate::error::{Error, Result};
use crate::format::placement::ImageLayout;
use crate::format::record::ALIGN;
use crate::format::superblock::{FEATURE_METADATA_ONLY, RingState, Superblock};
use crate::image::create::{
    Founder, Geometry, clear_superblocks, format_image, identity, new_superblock, write_superblocks,
};
use crate::ring::write_ring_state;

/// Properties that the pools of a unit have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberFormat {
    /// Identity of the cluster, not zero.
    pub cluster: [u8; 16],
    /// Identity of the unit.
    pub unit: [u8; 16],
    /// Key of the hash of names.
    pub hash_key: [u8; 16],
    /// When the unit was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Least bytes of a pool. A larger pool holds the same image.
    pub pool_length: u64,
    /// Division of the image.
    pub geometry: Geometry,
    /// Whether the pool holds metadata only.
    pub metadata_only: bool,
}

impl MemberFormat {
    /// The superblock that the pools of the unit have, but for what identifies a pool.
    ///
    /// # Errors
    /// [`Error::BadGeometry`]
    pub fn superblock(&self) -> Result<Superblock> {
        let mut superblock = new_superblock(self.pool_length, &self.geometry)?;
        superblock.cluster = self.cluster;
        superblock.unit = self.unit;
        superblock.hash_key = self.hash_key;
        superblock.created_ns = self.created_ns;
        if self.metadata_only {
            superblock.incompatible |= FEATURE_METADATA_ONLY;
        }
        superblock.crc = superblock.checksum();
        Ok(superblock)
    }
}

impl Replica {
    /// Makes a pool of the whole region that holds the unit's first image, as all members have it before the first record.
    /// Its epoch is `epoch`. The superblock is written last, so that an interrupted format leaves no pool.
    ///
    /// # Errors
    /// [`Error::BadGeometry`]: the region or its parts are too small.
    pub fn format_member(region: &Region, format: &MemberFormat, epoch: u32) -> Result<()> {
        let mut superblock = format.superblock()?;
        superblock.pool = identity();
        superblock.pool_length = region.length();
        superblock.crc = superblock.checksum();
        let layout = ImageLayout::of(&superblock);
        let (true, Some(layout)) = (superblock.validate(region.length()).is_ok(), layout) else {
            return Err(Error::BadGeometry(
                "it is too small for the image of the unit",
            ));
        };
        clear_superblocks(region);
        let founder = Founder {
            uid: format.uid,
            gid: format.gid,
            created_ns: format.created_ns,
        };
        format_image(region, &superblock, &layout, &founder);
        region.zero_flushed(superblock.ring_offset, superblock.ring_length);
        region.fence();
        write_ring_state(region, RingState::new(epoch, ALIGN as u64));
        write_superblocks(region, &superblock);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_hold_the_same_image_and_differ_in_their_pools() {
        let format = MemberFormat {
            cluster: [1; 16],
            unit: [2; 16],
            hash_key: [3; 16],
            created_ns: 4,
            uid: 5,
            gid: 6,
            pool_length: 1 << 20,
            geometry: Geometry::small(),
            metadata_only: false,
        };
        let formatted = [1 << 20, 2 << 20].map(|length| {
            let region = Region::memory(length, false).expect("memory");
            Replica::format_member(&region, &format, 2).expect("it fits");
            Replica::open(region, crate::PoolOptions::default()).expect("it is a pool")
        });
        let images = formatted.each_ref().map(|replica| {
            let mut bytes = vec![0; replica.image_length() as usize];
            replica.read_image(0, &mut bytes).expect("it is inside");
            bytes
        });
        assert!(images[0] == images[1]);
        let [one, other] = formatted.each_ref().map(|it| *it.superblock());
        assert_ne!(one.pool, other.pool);
        assert_eq!(one.check_alone(), Err(Error::OfUnit));
        assert_eq!(formatted[0].epochs(), [(2, 64)]);
        let small = Region::memory(512 << 10, false).expect("memory");
        assert!(Replica::format_member(&small, &format, 2).is_err());
    }
}
