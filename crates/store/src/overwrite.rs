//! The commonest change: bytes in one block that a file has already.
//!
//! It is a [`crate::change::Change`] like any other, one record, committed and then applied; only that two operations,
//! known from the start, need no collecting.

use crate::BLOCK;
use crate::change::Shared;
use crate::layout::inode::{FIRST_LINE, Inode};
use crate::layout::record::{ALIGN, HEADER, Kind, OPERATION, Operation, encode_at};

/// Most bytes that ride among the operations.
pub const PART_MAX: usize = 256;
/// Length of the record of a whole block, without the block.
const WHOLE: usize = HEADER + 2 * OPERATION + FIRST_LINE;
/// Longest record without its block.
const RECORD_MAX: usize = HEADER + 2 * OPERATION + PART_MAX + FIRST_LINE;

impl Shared {
    /// Puts `data` into the image at `target`, inside one data block whose checksum becomes what `crc` gives: a whole
    /// block, or at most [`PART_MAX`] bytes. The inode differs in its first line only. Returns the record's number.
    pub fn overwrite(
        &self,
        target: u64,
        data: &[u8],
        crc: impl FnOnce() -> u32,
        number: u64,
        inode: &Inode,
    ) -> u64 {
        let (image, ring) = (&self.image, &self.ring);
        let entered = ring.enter();
        // A whole block is sent on its way before it is checksummed: both take long, and this way together.
        let ahead = (data.len() == BLOCK).then(|| {
            let place = ring.reserve(entered, WHOLE + BLOCK);
            ring.put_blocks(place, WHOLE, &[data], image);
            place
        });
        let mut inode_line = Operation {
            kind: Kind::Inode,
            target: image.layout.inode(number),
            length: FIRST_LINE as u32,
            crc: 0,
            payload: inode.first_line(),
        };
        let mut record = [0; RECORD_MAX.next_multiple_of(ALIGN)];
        let end = encode_at(&mut record, HEADER, &inode_line);
        // Last, since the old data that it reads may still be on its way from memory.
        let data = Operation {
            kind: match data.len() {
                BLOCK => Kind::Block,
                _ if image.data_checksums => Kind::Data,
                _ => Kind::Bytes,
            },
            target,
            length: data.len() as u32,
            crc: crc(),
            payload: data,
        };
        let end = encode_at(&mut record, end, &data).next_multiple_of(ALIGN);
        let record = &mut record[..end];
        let length = ahead.map_or(end, |_| WHOLE + BLOCK);
        let contents_crc = ring.head(record, length);
        let place = ahead.unwrap_or_else(|| ring.reserve(entered, length));
        inode_line.crc = inode.checksum(place.number);
        let apply = || {
            image.apply(&data, place.number);
            image.apply(&inode_line, place.number);
        };
        if self.defects.apply_before_commit {
            apply();
        }
        ring.commit(place, record, contents_crc, image);
        apply();
        ring.applied(place);
        place.number
    }
}

const _: () = assert!(WHOLE.is_multiple_of(ALIGN));
