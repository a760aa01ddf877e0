//! Whether the out-of-line data of records is there.
//!
//! It is checked before any record of the piece is applied. The contents of a block are then right if
//! - it matches the checksum of the record that names it: later records of the piece that write into the block in place
//!   are applied afterwards, and were not when it was checked; or
//! - it was fetched from the primary later, where those records may have been applied already. Then it holds the
//!   block's contents after some of them. Records contain bytes, not differences, so applying all of them gives the
//!   same result as applying them in order, and that matches the checksum of the last of them. Without that last record
//!   the block would not match, so the piece must come to count as a whole (`at_once`).
//!
//! Only the last record that names a block is judged: what an earlier one named is gone. That again is so only if the
//! piece counts as a whole. (A member in sync is not in this position: a block is filled again only when every such
//! member has the record that freed it, and so the one that named it before.) A block that later becomes metadata comes
//! with all its bytes in records, and is not judged.

use std::collections::BTreeMap;

use super::ingest::{Piece, operations};
use crate::BLOCK;
use crate::format::checksum::crc32c;
use crate::format::record::{Kind, RecordOperation};
use crate::image::{Block, Image};

/// Result of the check.
#[derive(Default)]
pub struct Verdict {
    /// Blocks that differ from a record's data: the record's index in the piece, and the block.
    pub missing: Vec<(usize, u64)>,
    /// The data is right only once all of the piece is applied.
    pub at_once: bool,
}

/// A block that a record names.
struct Named<'a> {
    record: usize,
    crc: u32,
    /// An earlier record named it too.
    again: bool,
    /// Checksum once the piece is applied; `None` when it is no data any more.
    last_crc: Option<u32>,
    /// Later writes into it in place: location, and the bytes, or else the number of zeros.
    edits: Vec<(usize, Result<&'a [u8], usize>)>,
}

/// Checks all out-of-line data of the piece.
pub fn judge(piece: &Piece<'_>, image: &Image) -> Verdict {
    let mut named = BTreeMap::new();
    for (index, record) in piece.records.iter().enumerate() {
        for operation in operations(record, image) {
            note(&mut named, index, &operation);
        }
    }
    let mut verdict = Verdict::default();
    let mut contents = [0; BLOCK];
    for (block, named) in named {
        image.read_block(block, &mut contents);
        verdict.at_once |= named.again;
        if crc32c(&contents) == named.crc {
            continue;
        }
        if named.is_late(&mut contents) {
            verdict.at_once = true;
        } else {
            verdict.missing.push((named.record, block));
        }
    }
    verdict
}

impl Named<'_> {
    /// Whether the contents are of a later moment: they are right once the piece is applied.
    fn is_late(&self, contents: &mut Block) -> bool {
        if self.edits.is_empty() {
            return false;
        }
        for (at, edit) in &self.edits {
            match edit {
                Ok(bytes) => contents[*at..at + bytes.len()].copy_from_slice(bytes),
                Err(zeros) => contents[*at..at + zeros].fill(0),
            }
        }
        self.last_crc.is_none_or(|crc| crc == crc32c(contents))
    }
}

/// Notes what an operation of the record does to data that it or an earlier one names.
fn note<'a>(named: &mut BTreeMap<u64, Named<'a>>, record: usize, operation: &RecordOperation<'a>) {
    let RecordOperation {
        kind,
        target,
        length,
        crc,
        payload,
        ..
    } = *operation;
    let first = target / BLOCK as u64;
    if kind == Kind::Extent {
        for (block, crc) in (first..).zip(payload.chunks_exact(4)) {
            let crc = u32::from_le_bytes(crc.try_into().expect("the chunk has four bytes"));
            let new = Named {
                record,
                crc,
                again: named.contains_key(&block),
                last_crc: Some(crc),
                edits: Vec::new(),
            };
            named.insert(block, new);
        }
        return;
    }
    if named.is_empty() || matches!(kind, Kind::Inode | Kind::Line) {
        return;
    }
    let end = target + u64::from(length);
    for (block, named) in named.range_mut(first..end.div_ceil(BLOCK as u64)) {
        let start = block * BLOCK as u64;
        let (from, to) = (target.max(start), end.min(start + BLOCK as u64));
        let edit = match kind {
            Kind::Zero => Err((to - from) as usize),
            _ => Ok(&payload[(from - target) as usize..(to - target) as usize]),
        };
        named.edits.push(((from - start) as usize, edit));
        named.last_crc = matches!(kind, Kind::Data | Kind::Block).then_some(crc);
    }
}
