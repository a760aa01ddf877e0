//! Taking records from another pool.
//!
//! A batch is divided into pieces: whole records of one epoch, at most half a ring of them. For each piece, in order:
//! 1. every record is validated, as recovery does it, and its number and epoch follow the one before;
//! 2. out-of-line data of the piece is compared with its checksums (`judge`);
//! 3. that data is flushed and fenced: it is persistent before a record counts that names it;
//! 4. the records go into the ring at their places, flushed, with one fence;
//! 5. they are applied in order, but not over data that a later record of the piece names, as in recovery.
//!
//! A crash leaves a prefix of the piece: a record that is whole behind one that is not does not count, and when it comes
//! to count because the one before was taken again, it is the very record of this epoch and number.

use std::ops::Range;

use super::Replica;
use super::changed_ranges::{merge, record_length};
use super::verify::{Verdict, judge};
use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::record::{ALIGN, HEADER, Kind, MAGIC, Operations, RecordHeader, is_intact};
use crate::image::Image;
use crate::image::recovery::References;
use crate::ring::CachedLines;
use crate::sequence::Sequence;
use zerocopy::FromBytes;

/// Result for a batch of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingested {
    /// Tail of the pool's records, with those that were taken.
    pub tail: Sequence,
    /// Ranges of the image with bytes that differ from the records' data. Unless unverified, the first record that
    /// names one of them was not taken, nor any after it.
    pub missing: Vec<Range<u64>>,
}

/// Treatment of out-of-line data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedData {
    /// No record is taken without it.
    Verified,
    /// Records are taken, and missing data is reported to the caller.
    Reported,
    /// The pool does without it.
    Ignored,
}

/// Whole valid records that follow one another.
pub struct Piece<'a> {
    /// The bytes of each.
    pub records: Vec<&'a [u8]>,
    /// The bytes of all, and of those behind that were cut off.
    bytes: &'a [u8],
    /// Number of the first.
    pub number: u64,
    /// Epoch in which all of them were made.
    epoch: u32,
    /// One of them names out-of-line data, which this pool must have.
    names_data: bool,
}

impl Piece<'_> {
    fn length(&self) -> usize {
        self.records.iter().map(|record| record.len()).sum()
    }
}

impl Replica {
    /// Takes raw records, as stored in the ring of another pool of the unit, the first at the tail. On return they are
    /// persistent and applied.
    ///
    /// # Errors
    /// The first record that is not right, with those behind it, is not taken; those before it are. See
    /// [`Replica::tail`].
    pub fn ingest(&mut self, records: &[u8]) -> Result<Ingested> {
        self.ingest_as(records, NamedData::Verified)
    }

    /// Like [`Replica::ingest`], for a pool that is catching up: a record is taken even if its data differs, with those
    /// right after it. The caller has fetched the available data: it is newer, and its records are still to come. Until
    /// then the pool does not count.
    pub fn ingest_unverified(&mut self, records: &[u8]) -> Result<Ingested> {
        self.ingest_as(records, NamedData::Reported)
    }

    /// Like [`Replica::ingest`], for a metadata-only pool: out-of-line data is neither checked nor missed. Inline data
    /// is applied, since symbolic links and the system's files may have it; but the contents of a data block are
    /// undefined, and only its checksum is that of the unit.
    pub fn ingest_metadata(&mut self, records: &[u8]) -> Result<Ingested> {
        self.ingest_as(records, NamedData::Ignored)
    }

    fn ingest_as(&mut self, mut records: &[u8], named: NamedData) -> Result<Ingested> {
        let is_verified = named == NamedData::Verified;
        let mut missing = Vec::new();
        while !records.is_empty() {
            let (mut piece, refused) = self.piece(records);
            piece.names_data &= named != NamedData::Ignored;
            let verdict = self.verdict(&mut piece, is_verified, &mut missing);
            self.take(&piece, verdict.at_once);
            if !missing.is_empty() {
                break;
            }
            if let Some(what) = refused {
                return Err(Error::BadRecord {
                    number: self.tail.number,
                    what,
                });
            }
            records = &records[piece.length()..];
        }
        merge(&mut missing);
        Ok(Ingested {
            tail: self.tail,
            missing,
        })
    }

    /// The first piece, and the error of the record after it, if that ends it.
    fn piece<'a>(&self, records: &'a [u8]) -> (Piece<'a>, Option<&'static str>) {
        let mut piece = Piece {
            records: Vec::new(),
            bytes: records,
            number: self.tail.number,
            epoch: self.tail.epoch,
            names_data: false,
        };
        let (mut rest, mut number) = (records, piece.number);
        let room = self.ring.length() / 2;
        while !rest.is_empty() {
            let (header, record) = match self.whole_record(rest, number, piece.epoch) {
                Ok(found) => found,
                Err(what) => return (piece, Some(what)),
            };
            let end = number + record.len() as u64;
            let is_first = piece.records.is_empty();
            if !is_first && (header.epoch > piece.epoch || end - piece.number > room) {
                break;
            }
            match names_data(record, &self.image) {
                None => return (piece, Some("one of its operations is not possible")),
                Some(names_data) => piece.names_data |= names_data,
            }
            piece.epoch = header.epoch;
            piece.records.push(record);
            (rest, number) = (&rest[record.len()..], end);
        }
        (piece, None)
    }

    /// The record that `bytes` begins with, if it is whole and may have this number.
    fn whole_record<'a>(
        &self,
        bytes: &'a [u8],
        number: u64,
        epoch: u32,
    ) -> std::result::Result<(RecordHeader, &'a [u8]), &'static str> {
        let header = RecordHeader::read_from_prefix(bytes).map(|(header, _)| header);
        let header = header.ok().filter(|header| header.magic == MAGIC);
        let header = header.ok_or("it has no header")?;
        if header.number != number {
            return Err("it does not follow the record before it");
        }
        if header.epoch < epoch {
            return Err("its epoch has ended");
        }
        let length = record_length(bytes).filter(|length| length.is_multiple_of(ALIGN));
        let length = length.ok_or("its length is not possible")?;
        let checked = header.checked as usize;
        if !(ALIGN..=bytes.len()).contains(&length) || !(HEADER..=length).contains(&checked) {
            return Err("it is not whole");
        }
        if length as u64 > self.ring.length() || number + length as u64 >= 1 << 62 {
            return Err("it is too long for the ring");
        }
        let record = &bytes[..length];
        if !is_intact(&header, record) {
            return Err("it does not match its checksum");
        }
        Ok((header, record))
    }

    /// Checks the out-of-line data of the piece. If it must be right, the piece ends before the first record with wrong
    /// data: the rest is checked again, since a removed record cannot explain the data any more.
    fn verdict(
        &self,
        piece: &mut Piece<'_>,
        is_verified: bool,
        missing: &mut Vec<Range<u64>>,
    ) -> Verdict {
        if !piece.names_data || !self.image.data_checksums {
            return Verdict::default();
        }
        loop {
            let verdict = judge(piece, &self.image);
            missing.extend(verdict.missing.iter().map(|(_, block)| {
                let start = block * BLOCK as u64;
                start..start + BLOCK as u64
            }));
            let first = verdict.missing.iter().map(|(record, _)| *record).min();
            match first {
                Some(first) if is_verified => piece.records.truncate(first),
                _ => return verdict,
            }
        }
    }

    /// Makes the records of a piece persistent, and applies them.
    fn take(&mut self, piece: &Piece<'_>, at_once: bool) {
        let length = piece.length();
        if length == 0 {
            return;
        }
        if piece.epoch > self.tail.epoch {
            self.ring.go_on_in(piece.epoch, &self.image);
            self.tail.epoch = piece.epoch;
        }
        let (image, defects) = (&self.image, self.defects);
        let mut references = References::default();
        if piece.names_data {
            let mut position = piece.number;
            for record in &piece.records {
                for operation in operations(record, image).filter(|it| it.kind == Kind::Extent) {
                    let (start, length) = (operation.target, u64::from(operation.length));
                    image.flush(start, length);
                    if !defects.replay_over_references {
                        references.add(start, start + length, position);
                    }
                }
                position += record.len() as u64;
            }
            if !defects.skip_data_fence {
                image.fence();
            }
        }
        let apply = || {
            let mut position = piece.number;
            for record in &piece.records {
                apply(record, position, image, &references);
                position += record.len() as u64;
            }
        };
        self.ring
            .append(&piece.bytes[..length], at_once, image, apply);
        self.tail.number = piece.number + length as u64;
    }
}

/// The operations of a record that was validated.
pub fn operations<'a>(
    record: &'a [u8],
    image: &Image,
) -> impl Iterator<Item = crate::format::record::RecordOperation<'a>> + Clone {
    Operations::new(record, image.length()).flatten()
}

/// Whether an operation of the record names out-of-line data; `None` when one of them is invalid.
fn names_data(record: &[u8], image: &Image) -> Option<bool> {
    let mut names_data = false;
    for operation in Operations::new(record, image.length()) {
        let operation = operation.filter(|operation| image.accepts(operation))?;
        names_data |= operation.kind == Kind::Extent;
    }
    Some(names_data)
}

/// Applies the record at `position`.
fn apply(record: &[u8], position: u64, image: &Image, references: &References) {
    let kinds = operations(record, image).map(|operation| (operation.kind, operation.target));
    image.mark_all_changing(kinds, position);
    for operation in operations(record, image) {
        if !references.covers(&operation, position) {
            image.apply(&operation, position);
        }
    }
}
