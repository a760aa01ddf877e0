//! Data that records name by reference, for members that send it along.

use std::ops::Range;

use super::changed_ranges::{merge, record_length};
use super::ingest::operations;
use crate::format::record::{HEADER, Kind};
use crate::image::volume::Volume;

/// Where the whole record that `records` begins with ends in them, and the ranges of the image that hold data which it
/// names. `None` at the end of the records.
pub fn named_data(volume: &Volume, records: &[u8]) -> Option<(usize, Vec<Range<u64>>)> {
    let length = record_length(records).filter(|length| *length >= HEADER)?;
    let record = records.get(..length)?;
    let named = operations(record, &volume.image).filter(|it| it.kind == Kind::Extent);
    let mut ranges: Vec<_> = named
        .map(|it| it.target..it.target + u64::from(it.length))
        .collect();
    merge(&mut ranges);
    Some((length, ranges))
}
