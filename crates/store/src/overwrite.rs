//! The commonest changes: bytes in one block that a file has already.
//!
//! Each is a [`crate::change::Change`] like any other, one record, committed and then applied; only that its operations,
//! known from the start, need no collecting.

use pmem::checksum;

use crate::BLOCK;
use crate::change::Shared;
use crate::checksum::{append_zeros, remainder};
use crate::layout::inode::{FIRST_LINE, Inode};
use crate::layout::record::{
    ALIGN, HEADER, Kind, OPERATION, Operation, Touch, encode_at, first_line,
};

/// Most bytes by which a file grows on the short way.
pub const GROWTH_MAX: usize = 256;
/// Longest record of a file that grows.
const RECORD_MAX: usize = HEADER + 2 * OPERATION + GROWTH_MAX + FIRST_LINE;
/// Words of a record's first line before those under its checksum.
const UNCHECKED: usize = 2;

impl Shared {
    /// Puts `data` into the image at `target`, inside one data block. Of the inode only the version and the times change.
    /// Returns the record's number.
    #[inline]
    pub fn overwrite(&self, target: u64, data: &[u8], touch: Touch) -> u64 {
        let (image, ring) = (&self.image, &self.ring);
        let padded = data.len().next_multiple_of(ALIGN);
        // The data is sent on its way before it is checksummed: both take long, and this way together.
        let place = ring.reserve(ring.enter(), ALIGN + padded);
        ring.put_rest(place, data, image);
        let remainder = remainder(data);
        let old = image.data_remainder(target, data.len());
        let mut operation = self.operation(target, data, old, remainder);
        operation.touch = Some(touch);
        let checked = match operation.kind {
            Kind::Block => ALIGN,
            _ => ALIGN + padded,
        };
        let line = first_line(ring.header(checked, ALIGN + padded), &operation, touch);
        let mut crc = checksum::words(!0, &line[UNCHECKED..]);
        if checked > ALIGN {
            crc = append_zeros(crc, padded) ^ append_zeros(remainder, padded - data.len());
        }
        if self.defects.apply_before_commit {
            image.apply(&operation, place.number);
        }
        ring.commit_line(place, line, !crc);
        image.apply(&operation, place.number);
        ring.applied(place);
        place.number
    }

    /// Like [`Shared::overwrite`], with at most [`GROWTH_MAX`] bytes, which make the file end at `end`. The first line
    /// of `inode` changes.
    pub fn extend(
        &self,
        target: u64,
        data: &[u8],
        number: u64,
        inode: &mut Inode,
        end: u64,
    ) -> u64 {
        let (image, ring) = (&self.image, &self.ring);
        // Wanted when the record is persistent; there is time until then.
        image.prefetch(target, data.len());
        // What lies behind the end is zero, always: it need not be read.
        let old = match inode.size > end - data.len() as u64 {
            true => image.data_remainder(target, data.len()),
            false => 0,
        };
        inode.size = end;
        inode.crc = inode.checksum();
        let inode_line = Operation {
            kind: Kind::Inode,
            target: image.layout.inode(number),
            length: FIRST_LINE as u32,
            crc: 0,
            touch: None,
            payload: inode.first_line(),
        };
        let data = self.operation(target, data, old, remainder(data));
        let entered = ring.enter();
        let mut record = [0; RECORD_MAX.next_multiple_of(ALIGN)];
        let end = encode_at(&mut record, HEADER, &inode_line);
        let end = encode_at(&mut record, end, &data).next_multiple_of(ALIGN);
        let record = &mut record[..end];
        let crc = ring.head(record, end);
        let place = ring.reserve(entered, end);
        let apply = || {
            image.mark_changing(inode_line.target, place.number, GROWTH_MAX);
            image.apply(&data, place.number);
            image.apply(&inode_line, place.number);
        };
        if self.defects.apply_before_commit {
            apply();
        }
        ring.commit(place, record, crc, image);
        apply();
        ring.applied(place);
        place.number
    }

    /// What puts `data`, with the remainder `new`, at `target`, in place of bytes with the remainder `old`.
    #[inline]
    fn operation<'a>(&self, target: u64, data: &'a [u8], old: u32, new: u32) -> Operation<'a> {
        let (image, length) = (&self.image, data.len());
        let (block, inside) = (target / BLOCK as u64, (target % BLOCK as u64) as usize);
        let (kind, crc) = match length {
            BLOCK => (Kind::Block, !(append_zeros(!0, BLOCK) ^ new)),
            _ if !image.data_checksums => (Kind::Bytes, 0),
            _ => (
                Kind::Data,
                image.changed_crc(block, inside, length, old ^ new),
            ),
        };
        Operation {
            kind,
            target,
            length: length as u32,
            crc,
            touch: None,
            payload: data,
        }
    }
}
