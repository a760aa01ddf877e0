//! A pool that follows: it takes the records that the unit's primary made, in their order, and so comes to hold the
//! same image. Also the data that a primary supplies to its followers.
//!
//! A replica makes no records and allocates nothing. Its ring, its recovery and the reuse of its ring space are those of
//! any pool; taking over is opening it for writing.

mod changed_ranges;
mod grow;
mod ingest;
mod member;
mod metadata;
mod out_of_line;
mod verify;

use std::ops::Range;

use pmem::Region;

use crate::BLOCK;
use crate::defects::Defects;
use crate::error::{Error, Result};
use crate::format::record::ALIGN;
use crate::format::superblock::{
    RING_LENGTH_MAX, RING_LENGTH_MIN, RING_OFFSET, RingState, Superblock,
};
use crate::image::Image;
use crate::image::create::{clear_superblocks, identity, write_superblocks};
use crate::image::recovery::{read_ring_state, read_superblock, replay};
use crate::image::volume::{PoolOptions, check_range};
use crate::ring::CachedLines;
use crate::ring::{Ring, write_ring_state};
use crate::sequence::Sequence;
use crate::store::Store;

pub use ingest::Ingested;
pub use member::MemberFormat;
pub use metadata::read_metadata;
pub use out_of_line::named_data;

/// A pool that is open for following.
pub struct Replica {
    image: Image,
    ring: Ring,
    tail: Sequence,
    superblock: Superblock,
    defects: Defects,
}

impl Replica {
    /// Makes a pool of the whole region that can follow in the unit of `unit`: the same image, another ring. It has no
    /// contents: the whole image is to be written and then [`Replica::rewind`] called.
    pub fn format(region: &Region, unit: &Superblock, ring_length: u64) -> Result<()> {
        if !ring_length.is_power_of_two()
            || !(RING_LENGTH_MIN..=RING_LENGTH_MAX).contains(&ring_length)
        {
            return Err(Error::BadGeometry(
                "the ring must be a power of two from 64 KiB to 1 GiB",
            ));
        }
        let image_offset = (RING_OFFSET + ring_length).next_multiple_of(BLOCK as u64);
        let mut superblock = Superblock {
            pool: identity(),
            pool_length: region.length(),
            ring_offset: RING_OFFSET,
            ring_length,
            image_offset,
            ..*unit
        };
        superblock.crc = superblock.checksum();
        if superblock.validate(region.length()).is_err() {
            return Err(Error::BadGeometry(
                "it is too small for the image of the unit",
            ));
        }
        clear_superblocks(region);
        region.zero_flushed(RING_OFFSET, ring_length);
        region.fence();
        write_ring_state(region, RingState::new(1, ALIGN as u64));
        write_superblocks(region, &superblock);
        Ok(())
    }

    /// Opens a pool to follow: replays its ring, and changes nothing else.
    pub fn open(region: Region, options: PoolOptions) -> Result<Replica> {
        let superblock = read_superblock(&region)?;
        let state = read_ring_state(&region)?;
        let mut image = Image::new(region.clone(), &superblock);
        image.is_read_outside = true;
        let defects = options.defects;
        let tail = replay(&region, &superblock, &image, state, defects)?.tail;
        // Records replayed past the caches are not flushed again when their ring space is reused.
        region.fence_everywhere();
        let ring = Ring::new(region, &superblock, tail.epoch, tail.number, defects);
        Ok(Replica {
            image,
            ring: ring.resumed(state.start),
            tail,
            superblock,
            defects,
        })
    }

    /// Makes a pool that is open for writing follow another one from now on. No operation may be in flight.
    pub fn from_store(store: Store) -> Replica {
        let volume = store.into_volume();
        let (superblock, tail, defects) = (volume.superblock(), volume.tail(), volume.defects);
        let ring = volume.ring.read_outside(true);
        // A new one: a follower does not use the record of verified blocks.
        let old = &volume.image;
        let mut image = Image::new(old.region().clone(), &superblock)
            // The lines that it has to flush were applied by the old one.
            .with_parts_in_caches(old.has_parts_in_caches());
        image.is_read_outside = true;
        Replica {
            image,
            ring,
            tail,
            superblock,
            defects,
        }
    }

    /// Where the last record ends, and its epoch. All before it is persistent.
    pub fn tail(&self) -> Sequence {
        self.tail
    }

    /// Returns the pool's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The region that holds the pool.
    pub fn region(&self) -> &Region {
        self.image.region()
    }

    /// Bytes of the image.
    pub fn image_length(&self) -> u64 {
        self.image.length()
    }

    /// Copies bytes of the image out.
    pub fn read_image(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        check_range(&self.image, offset, into.len())?;
        self.image.read(offset, into);
        Ok(())
    }

    /// Writes bytes of the primary's image into the image. They are persistent on return; records in the ring for the
    /// same range are replayed over them until the ring is rewound or has moved on.
    pub fn write_image(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_range(&self.image, offset, bytes.len())?;
        self.image.write_unreferenced(offset, bytes);
        self.image.fence();
        Ok(())
    }

    /// Appends whole records from the position `from` on to `into`: at least one if there is one, and at most
    /// `limit_bytes` if that is not the first alone. Returns the position behind them, `from` when that is the tail;
    /// `None` when the ring does not hold a record there any more.
    pub fn read_records(&self, from: u64, limit_bytes: usize, into: &mut Vec<u8>) -> Option<u64> {
        self.ring
            .read_records(from, self.tail.number, limit_bytes, into)
    }

    /// Forgets the records behind `to.number`, persistently: the next one goes there, and must be of `to.epoch` or
    /// later. Before, the ranges that they touched ([`Replica::touched_since`]) were written as the primary has them. Or
    /// the whole image was: then `to.number` may also lie ahead.
    pub fn rewind(&mut self, to: Sequence) -> Result<()> {
        let possible =
            to.epoch != 0 && to.number != 0 && RingState::new(to.epoch, to.number).is_valid();
        if !possible {
            return Err(Error::InvalidArgument(
                "a ring cannot be rewound to this position",
            ));
        }
        self.ring.drain(&self.image);
        self.ring.restart(self.tail.epoch, to.epoch, to.number);
        let region = self.image.region().clone();
        self.ring = Ring::new(region, &self.superblock, to.epoch, to.number, self.defects);
        self.tail = to;
        Ok(())
    }

    /// Opens the pool for writing in this epoch, which must be higher than the tail's: ordinary recovery.
    pub fn into_store(self, epoch: u32, options: PoolOptions) -> Result<Store> {
        let region = self.image.region().clone();
        drop(self);
        Store::open_in_epoch(region, epoch, options)
    }

    /// The epochs of the records that the ring holds, oldest first, each with the position of its first one there; the
    /// last is the tail's.
    pub fn epochs(&self) -> Vec<(u32, u64)> {
        let mut epochs = self.ring.epochs(self.tail.number);
        if epochs
            .last()
            .is_none_or(|(epoch, _)| *epoch != self.tail.epoch)
        {
            epochs.push((self.tail.epoch, self.tail.number));
        }
        epochs
    }

    /// Ranges of the image, as whole lines and in order, that the records from `number` on changed. `None` when the ring
    /// does not hold them all any more.
    pub fn touched_since(&self, number: u64) -> Option<Vec<Range<u64>>> {
        changed_ranges::since(&self.ring, &self.image, number, self.tail.number)
    }
}
