//! Memory regions with stores that can be made persistent.
//!
//! A [`Region`] is a pool of bytes addressed by offset: a file, huge pages, plain memory, a DAX device, or a
//! [`Simulation`] of persistent memory. This crate contains everything that Tako needs for persistence:
//!
//! - [`Region::write`] stores into the processor's caches; [`Region::flush`] starts the way of a
//!   line to the medium; [`Region::fence`] waits until this thread's flushes have arrived.
//!   [`Region::write_flushed`] is the fast union of the first two.
//! - An aligned word of 8 bytes (or 4, 2, 1) is stored by one instruction and is never torn. Longer
//!   stores may be torn between such pieces by a crash, in any order.
//! - [`DemandPages`] is memory with pages that are filled when they are first accessed.
//! - [`Region::survives`] returns what the contents outlive. Memory is never called durable: flushes on it cost the
//!   same and prove nothing.
//!
//! This is the crate where `unsafe` lives. No Rust reference to the bytes of a region ever leaves it: other
//! threads, other processes and network adapters may change them at any time, so bytes are copied
//! in and out through raw pointers. Bytes of [`DemandPages`] do not change, and those of a [`Block`] of an [`Arena`] only by its
//! owner.

mod arena;
mod barrier;
pub mod checksum;
mod copies;
mod demand;
mod error;
mod kind;
mod lines;
mod mapping;
mod marks;
mod persist;
mod pool;
mod random;
mod region;
#[cfg(test)]
mod scratch;
mod simulated;
pub mod socket;
mod space;
mod threads;
mod watched;

pub use arena::{Arena, Block};
pub use copies::copied_bytes;
pub use demand::{DemandPages, Fill, private};
pub use error::Error;
pub use kind::{Access, Kind, Survival};
pub use lines::{Line, Lines};
pub use random::Random;
pub use region::Region;
pub use simulated::{Fault, Moment, Observer, Simulation};
pub use threads::start_thread;

/// Bytes in a cache line, the unit in which memory is flushed.
pub const LINE: usize = 64;

/// Panics unless the range lies inside a region of that many bytes: callers validate values from media first.
#[inline]
fn check_range(offset: u64, length: usize, region: u64) {
    #[cold]
    fn outside(offset: u64, length: usize, region: u64) -> ! {
        panic!("offset {offset}, length {length} is outside a region of {region} bytes");
    }
    if offset > region || length as u64 > region - offset {
        outside(offset, length, region);
    }
}

/// Like [`check_range`], for an atomic word of `size` bytes.
#[inline]
fn check_word(offset: u64, size: usize, region: u64) {
    assert!(
        offset.is_multiple_of(size as u64),
        "offset {offset} of an atomic word is not a multiple of {size}"
    );
    check_range(offset, size, region);
}
