//! Grants and layouts: what clients need to access the members' memory themselves.
//!
//! Both travel as the data of an outcome, and are validated as every message is.

use super::bytes::{Reader, Writer};
use super::{DATA_MAX, Malformed};

/// Bytes of a block: grants are made of blocks, and each block of data has a checksum.
pub const BLOCK: u64 = 4096;
/// Blocks that a session's grant may have, whatever the options are.
pub const GRANT_MAX: u32 = 4096;
/// Blocks that one commit moves.
pub const COMMIT_MAX: usize = 256;
/// Bytes of a file that one layout shows.
pub const LAYOUT_MAX: u64 = 1 << 20;
/// Blocks of one extent.
const EXTENT_MAX: u32 = GRANT_MAX;
const _: () = assert!(GRANT_MAX == operations::GRANT_BLOCKS_MAX);
const _: () = assert!(COMMIT_MAX == operations::COMMIT_BLOCKS_MAX);
const _: () = assert!(LAYOUT_MAX / BLOCK <= EXTENT_MAX as u64);

/// A range of a file, and where in the image it is. Whole blocks, all in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it begins in the image.
    pub image_offset: u64,
    /// Its length in blocks.
    pub blocks: u32,
    /// Checksum of each of its blocks, if it is known: not of a grant, nor of a pool without checksums of data.
    pub checksums: Vec<u32>,
}

impl Extent {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        u64::from(self.blocks) * BLOCK
    }
}

/// Where a part of a file is. It holds as long as the version word at the primary does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The version that it shows.
    pub version: u64,
    /// Where in the image the version word is.
    pub version_offset: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Mapped ranges, in order. Between are holes.
    pub extents: Vec<Extent>,
}

impl Layout {
    /// The layout as the data of an outcome.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u64(self.version);
        to.u64(self.version_offset);
        to.u64(self.size);
        to.u32(self.extents.len() as u32);
        for extent in &self.extents {
            to.u64(extent.offset);
            to.u64(extent.image_offset);
            to.u32(extent.blocks);
            to.u8((!extent.checksums.is_empty()).into());
            extent.checksums.iter().for_each(|crc| to.u32(*crc));
        }
        to.bytes
    }

    /// Reads what [`Layout::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Layout, Malformed> {
        if bytes.len() > DATA_MAX {
            return Err(Malformed("a layout is too long"));
        }
        let mut from = Reader::new(bytes);
        let (version, version_offset, size) = (from.u64()?, from.u64()?, from.u64()?);
        let (mut extents, mut end) = (Vec::new(), 0);
        for _ in 0..from.u32()? {
            let extent = read_extent(&mut from)?;
            if extent.offset < end {
                return Err(Malformed("the extents of a layout are not in order"));
            }
            end = extent.offset + extent.length();
            extents.push(extent);
        }
        from.end()?;
        if !version_offset.is_multiple_of(8) {
            return Err(Malformed("a version word lies across words"));
        }
        Ok(Layout {
            version,
            version_offset,
            size,
            extents,
        })
    }
}

fn read_extent(from: &mut Reader<'_>) -> Result<Extent, Malformed> {
    let (offset, image_offset) = (from.u64()?, from.u64()?);
    let blocks = from.u32()?;
    let is_possible = |at: u64| at.is_multiple_of(BLOCK) && at < 1 << 62;
    let has_checksums = from.flag()?;
    let is_bounded = (1..=EXTENT_MAX).contains(&blocks);
    if !is_possible(offset) || !is_possible(image_offset) || !is_bounded {
        return Err(Malformed("an extent is not possible"));
    }
    let known = if has_checksums { blocks } else { 0 };
    let checksums: Result<_, _> = (0..known).map(|_| from.u32()).collect();
    Ok(Extent {
        offset,
        image_offset,
        blocks,
        checksums: checksums?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let extent = |offset, image_offset, blocks| Extent {
            offset,
            image_offset,
            blocks,
            checksums: if offset == 0 {
                (0..blocks).collect()
            } else {
                Vec::new()
            },
        };
        Layout {
            version: 7,
            version_offset: 256,
            size: 5 * BLOCK + 1,
            extents: vec![extent(0, 9 * BLOCK, 2), extent(4 * BLOCK, 3 * BLOCK, 2)],
        }
    }

    #[test]
    fn encoded_grants_are_decoded() {
        let bytes = layout().encode();
        assert_eq!(Layout::decode(&bytes), Ok(layout()));
        for end in 0..bytes.len() {
            assert!(Layout::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn extents_are_validated() {
        let damages: [fn(&mut Layout); 6] = [
            |layout| layout.extents[1].offset = BLOCK,
            |layout| layout.extents[1].offset = u64::MAX - BLOCK + 1,
            |layout| layout.extents[0].image_offset = 5,
            |layout| layout.extents[0].blocks = 0,
            |layout| layout.extents[0].blocks = EXTENT_MAX + 1,
            |layout| layout.version_offset = 9,
        ];
        for damage in damages {
            let mut layout = layout();
            damage(&mut layout);
            assert!(Layout::decode(&layout.encode()).is_err(), "{layout:?}");
        }
    }
}
