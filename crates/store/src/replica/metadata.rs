//! Parts of an image that a metadata-only pool receives.

use std::ops::Range;

use crate::BLOCK;
use crate::error::Result;
use crate::format::{directory, extent, xattr};
use crate::image::Image;
use crate::image::volume::Volume;
use crate::image::volume::check_range;

/// The first metadata in a range of the image, as it is now: how many bytes before it are data or free, and at most
/// `limit` bytes of it. No bytes: there is none in the range.
///
/// Blocks of nodes, of directories and of extended attributes are recognized by their first bytes. Data with the
/// same first bytes is taken for metadata too, which does no harm; and a block cannot be missed, since it has these
/// first bytes from the record on that makes it metadata, and that record contains all of its bytes.
pub fn read_metadata(volume: &Volume, range: Range<u64>, limit: usize) -> Result<(u64, Vec<u8>)> {
    let image = &volume.image;
    check_range(
        image,
        range.start,
        range.end.saturating_sub(range.start) as usize,
    )?;
    let mut start = range.start;
    while start < range.end && !is_metadata(image, start) {
        start = block_end(start).min(range.end);
    }
    let mut end = start;
    let most = range.end.min(start.saturating_add(limit as u64));
    while end < most && is_metadata(image, end) {
        end = block_end(end).min(most);
    }
    let mut bytes = vec![0; (end - start) as usize];
    image.read(start, &mut bytes);
    Ok((start - range.start, bytes))
}

fn block_end(offset: u64) -> u64 {
    (offset / BLOCK as u64 + 1) * BLOCK as u64
}

/// Whether the block that holds this byte may be metadata.
fn is_metadata(image: &Image, offset: u64) -> bool {
    let block = offset / BLOCK as u64;
    if !image.layout.is_data_run(block, 1) {
        return true;
    }
    let first = image.load(block * BLOCK as u64) as u32;
    [extent::MAGIC, directory::MAGIC, xattr::MAGIC].contains(&first)
}
