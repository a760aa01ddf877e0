//! The bytes of a pool. `docs/LAYOUT.md` draws them; a test holds the drawing to these definitions.
//!
//! ```text
//! | superblock A | superblock B | ring state | record ring | image: group 0 | group 1 | … |
//! ```

pub(crate) mod checksum;
pub mod directory;
pub mod extent;
pub mod group;
pub mod inode;
pub mod placement;
pub mod record;
pub mod superblock;
pub mod xattr;

/// Offset of the checksum in every checked 4 KiB metadata block; it covers the bytes from 8 to the end.
pub const BLOCK_CRC: usize = 4;
/// First byte that a metadata block's checksum covers.
pub const BLOCK_CRC_FROM: usize = 8;
