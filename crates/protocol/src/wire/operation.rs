//! Operations, outcomes and replays in messages. The operations crate encodes and validates the first two.

use std::sync::Arc;

use operations::{ErrorCode, FileId, Held, Operation, Outcome};

use super::bytes::{Reader, Writer};
use super::{BODY_MAX, Body, Details, Malformed};
use crate::map::Sequence;

/// Most requests that one session replays.
pub const REPLAYS_MAX: usize = 4096;

impl From<operations::Malformed> for Malformed {
    fn from(malformed: operations::Malformed) -> Malformed {
        Malformed(malformed.0)
    }
}

/// A request that was answered when only the primary had its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// End of its record: the order in which requests were executed.
    pub sequence: Sequence,
    /// Index of the slot in its session.
    pub slot: u16,
    /// Number of the request in its slot.
    pub request: u64,
    /// Operation to execute again.
    pub operation: Arc<Operation>,
}

/// A write that was acknowledged and cannot be executed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// File of the write.
    pub file: FileId,
    /// Reason for the refusal.
    pub error: ErrorCode,
}

fn write_file(to: &mut Writer, file: FileId) {
    to.u16(file.unit);
    to.u64(file.inode);
    to.u32(file.generation);
}

fn read_file(from: &mut Reader<'_>) -> Result<FileId, Malformed> {
    Ok(FileId {
        unit: from.u16()?,
        inode: from.u64()?,
        generation: from.u32()?,
    })
}

/// Appends the holds of a file.
pub(super) fn write_held(to: &mut Writer, held: &Held) {
    write_file(to, held.file);
    to.u64(held.count);
}

/// Reads the holds of a file.
pub(super) fn read_held(from: &mut Reader<'_>) -> Result<Held, Malformed> {
    Ok(Held {
        file: read_file(from)?,
        count: from.u64()?,
    })
}

impl Refusal {
    pub(super) fn write(&self, to: &mut Writer) {
        write_file(to, self.file);
        to.u8(self.error as u8);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Refusal, Malformed> {
        let file = read_file(from)?;
        let error = ErrorCode::from_byte(from.u8()?).ok_or(Malformed("its error is unknown"))?;
        Ok(Refusal { file, error })
    }
}

impl Replay {
    pub(super) fn write(&self, to: &mut Writer) {
        to.sequence(self.sequence);
        to.u16(self.slot);
        to.u64(self.request);
        to.counted(&self.operation.encode(Vec::new()));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Replay, Malformed> {
        Ok(Replay {
            sequence: from.sequence()?,
            slot: from.u16()?,
            request: from.u64()?,
            operation: Arc::new(Operation::decode(&from.data(BODY_MAX)?)?),
        })
    }
}

/// Appends an operation; it ends its message.
pub(super) fn write_operation(to: &mut Writer, operation: &Operation) {
    to.bytes = operation.encode(std::mem::take(&mut to.bytes));
}

/// Appends an outcome; it ends its message.
pub(super) fn write_outcome(to: &mut Writer, outcome: &Outcome) {
    to.bytes = outcome.encode(std::mem::take(&mut to.bytes));
}

impl Body {
    /// Bytes of data in it, beside its fields.
    pub(super) fn data_length(&self) -> usize {
        match self {
            Body::Range { bytes, .. } => bytes.len(),
            Body::Records { records, data, .. } | Body::Shipment { records, data, .. } => {
                let data = data.iter().map(|data| data.bytes.len() + 20);
                records.len() + data.sum::<usize>()
            }
            Body::Frames { again, .. } => again.len(),
            Body::Request { operation, .. } => operation.data_length(),
            Body::Reply { outcome, .. } => match &outcome.details {
                Details::Data(bytes) => bytes.len(),
                _ => 0,
            },
            _ => 0,
        }
    }
}
