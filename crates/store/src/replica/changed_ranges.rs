//! Which bytes of the image records changed.

use std::ops::Range;

use pmem::LINE;
use zerocopy::FromBytes;

use crate::BLOCK;
use crate::format::record::{HEADER, Kind, Operations, RecordHeader, RecordOperation, is_intact};
use crate::image::Image;
use crate::ring::CachedLines;
use crate::ring::Ring;

/// Bytes of records that are read at once.
const STEP: usize = 1 << 20;

/// Ranges that the records from `number` to `end` changed; `None` when the ring does not hold them all.
pub fn since(ring: &Ring, image: &Image, number: u64, end: u64) -> Option<Vec<Range<u64>>> {
    let mut touched = Vec::new();
    let (mut position, mut records) = (number, Vec::new());
    while position != end {
        records.clear();
        let next = ring.read_records(position, end, STEP, &mut records)?;
        let mut rest = &records[..];
        while !rest.is_empty() {
            let length = record_length(rest).filter(|length| *length >= HEADER)?;
            let (record, behind) = rest.split_at_checked(length)?;
            let (header, _) = RecordHeader::read_from_prefix(record).ok()?;
            if !is_intact(&header, record) {
                return None;
            }
            for operation in Operations::new(record, image.length()) {
                let operation = operation.filter(|operation| image.accepts(operation))?;
                add(&mut touched, image, &operation);
            }
            rest = behind;
        }
        merge(&mut touched);
        position = next;
    }
    Some(touched)
}

/// The length in the header of a record.
pub fn record_length(records: &[u8]) -> Option<usize> {
    let bytes = records.get(20..24)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes) as usize)
}

fn add(touched: &mut Vec<Range<u64>>, image: &Image, operation: &RecordOperation<'_>) {
    let RecordOperation { target, length, .. } = *operation;
    let length = u64::from(length);
    let mut lines = |at: u64, length: u64| {
        let line = LINE as u64;
        touched.push(at / line * line..(at + length).next_multiple_of(line));
    };
    lines(target, length);
    let block = target / BLOCK as u64;
    match operation.kind {
        Kind::Data | Kind::Block => lines(image.layout.data_crc(block), 4),
        Kind::Extent => lines(image.layout.data_crc(block), length / BLOCK as u64 * 4),
        Kind::Line => lines(image.layout.line_crc(target).unwrap_or(target), 4),
        // Its parts, wherever they are in the block.
        Kind::Edit => lines(target, BLOCK as u64),
        Kind::Bytes | Kind::Zero | Kind::Inode => {}
    }
    if let Some(touch) = operation.touch {
        lines(image.layout.inode(touch.inode), LINE as u64);
    }
}

/// Sorts ranges and joins those that meet.
pub fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let meets = next.start <= before.end;
        if meets {
            before.end = before.end.max(next.end);
        }
        meets
    });
}
