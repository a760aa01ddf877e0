//! A user-space driver for Intel's 82574 Ethernet adapter (e1000e) over VFIO: the adapter itself writes received frames to any
//! address of a region, and sends frames from there.
//!
//! ```text
//!   Card         one adapter: a receive ring, a transmit ring, and the region that their addresses are offsets of
//!     Vfio       the device's registers, its interrupt, and the IOMMU's mappings of memory
//!     Ring       descriptors of one direction, in memory that the adapter reads and writes
//! ```
//!
//! The IOMMU lets the adapter reach the region and the rings, and nothing else. The kernel removes the mappings and resets the
//! adapter when the process ends, also when it is killed. Sections are those of Intel's "82574 GbE Controller Family Datasheet"
//! (revision 3.4). Unsafe code is here because registers are memory of the device, and because VFIO has no safe wrapper.

mod card;
mod error;
mod registers;
mod ring;
mod settled;
mod vfio;

pub use self::card::{Card, Frame};
pub use self::error::Error;
