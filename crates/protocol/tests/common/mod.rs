//! A unit of one member, and one client of it.

use operations::{ErrorCode, WriteAt};
use protocol::wire::{Body, Bytes, Envelope, FileId, Message, Operation, Refusal};
use protocol::{Defects, EpochStart, Transmit, UnitMap, UnitOptions};

/// File that the tests use.
pub const FILE: FileId = FileId {
    unit: 0,
    inode: 5,
    generation: 1,
};
/// The session of its client.
pub const SESSION: u64 = 1 << 32 | 1;
/// Number of the client.
pub const CLIENT: u32 = 100;

/// The map by which member 0 is primary.
pub fn first_map() -> UnitMap {
    let start = EpochStart {
        epoch: 1,
        start: 64,
    };
    UnitMap {
        version: 1,
        epoch: 1,
        primary: 0,
        members: vec![0],
        metadata_only: Vec::new(),
        in_sync: vec![0],
        lineage: vec![start],
        image: 0,
    }
}

/// A write that fits into a record.
pub fn write() -> Operation {
    Operation::Write {
        file: FILE,
        at: WriteAt::Offset(0),
        data: vec![7; 64].into(),
        drop_privileges: None,
    }
}

/// A message of the session.
pub fn message(epoch: u32, from: u32, request: u64, body: Body) -> Bytes {
    message_of((SESSION, from), epoch, request, body)
}

/// A message of this session of a client.
pub fn message_of((session, from): (u64, u32), epoch: u32, request: u64, body: Body) -> Bytes {
    let envelope = Envelope {
        cluster: UnitOptions::default().cluster,
        epoch,
        session,
        request,
        from,
        ..Envelope::default()
    };
    Message { envelope, body }.encode(false).into()
}

/// A message that was sent.
pub fn decoded(sent: &Transmit) -> Message {
    Message::decode(&sent.bytes, &Defects::default()).expect("a message")
}

/// That there was no space for writes to the file.
pub fn refusals() -> Vec<Refusal> {
    vec![Refusal {
        file: FILE,
        error: ErrorCode::NoSpace,
    }]
}
