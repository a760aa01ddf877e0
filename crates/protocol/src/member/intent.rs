//! Intents of a member for its host, on the store or at the membership service, and their completions.

use std::ops::Range;
use std::sync::Arc;

use super::locks::HeldLock;
use crate::map::{EpochStart, NodeId, Sequence, UnitMap};
use crate::wire::{Bytes, Data, Fetch, FileId, Held, Operation, Outcome};

/// Names an intent, so that its completion finds what waits for it.
pub type Ticket = u64;

/// Location of a request's answer: in the image, in the same record as the change, so that it is executed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Place of the session in the table of sessions.
    pub index: u32,
    /// Number of the session.
    pub session: u64,
    /// Index of the slot in its session.
    pub slot: u16,
    /// Number of the request in its slot.
    pub request: u64,
}

/// Names a request for as long as its session lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Number of the session.
    pub session: u64,
    /// The slot; requests without one share a slot number.
    pub slot: u16,
    /// Number of the request in its slot.
    pub number: u64,
}

/// Treatment of out-of-line data of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedData {
    /// Stops at a record with missing data, and reports the missing ranges.
    Required,
    /// Takes the records, and reports the missing ranges.
    Reported,
    /// Takes the records: it has metadata only.
    Ignored,
}

/// Locks at consecutive positions of a session, with the first position.
pub type LockRun = (usize, Vec<Option<HeldLock>>);

/// Something for the host to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Execute an operation; a change with its answer in the slot.
    Execute {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// The request: one that is executed twice takes or releases holds once.
        request: RequestId,
        /// The operation to execute.
        operation: Arc<Operation>,
        /// Where the answer goes.
        slot: Option<Slot>,
    },
    /// Find the files of names, as far as there are any.
    Resolve {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// Directories and names in them.
        names: Vec<(FileId, Vec<u8>)>,
    },
    /// Record locks of a session. The last record has the answer.
    NoteLocks {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// A record each, in this order: the first of consecutive positions, and their locks, `None` for positions without
        /// one.
        parts: Vec<LockRun>,
        /// Locks that were released or replaced: a part of the answer.
        count: u64,
        /// Where the answer goes, and which session.
        slot: Slot,
    },
    /// Put a session into the table; its slots are empty and it has no locks.
    OpenSession {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// Place in the table.
        index: u32,
        /// Number of the session.
        session: u64,
        /// Client that owns the locks.
        client: NodeId,
    },
    /// Take a session out of the table, with its locks and holds.
    EndSession {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// Number of the session.
        session: u64,
        /// Place in the table.
        index: u32,
    },
    /// Hold files for a session that has resumed.
    RestoreHolds {
        /// Number of the session.
        session: u64,
        /// Files with their numbers of holds.
        holds: Vec<Held>,
    },
    /// All sessions have resumed or ended: free some of the files that were removed and that no session holds. The count
    /// of the outcome is not 0 while some are left.
    ReclaimOrphans {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
    },
    /// Free all blocks that are left in a session's grant.
    FreeGrant {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// Place of the session in the table.
        index: u32,
    },
    /// Let what comes with the session's key land in the memory here.
    OpenKey {
        /// Number of the session.
        session: u64,
    },
    /// Let nothing land any more that comes with a key of the session.
    CloseKey {
        /// Number of the session.
        session: u64,
    },
    /// Read whole records for these members.
    ReadRecords {
        /// Position of the first.
        from: u64,
        /// None from here on.
        below: u64,
        /// Members that receive them.
        to: Vec<NodeId>,
        /// With data that those of them name that end here.
        data_of: Vec<u64>,
        /// They go to the members by the unit's group.
        is_for_group: bool,
    },
    /// Read image bytes for a member.
    ReadImage {
        /// Member that receives them.
        to: NodeId,
        /// Reason for the fetch.
        fetch: Fetch,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes; for metadata, the length of the range to search.
        length: u32,
        /// Bytes to read, at most.
        most: u32,
    },
    /// All members in sync have the records below: the space that they freed may be reused.
    ReleaseFreed {
        /// Position in the record ring.
        below: u64,
    },
    /// Check records, make them persistent, apply them.
    Ingest {
        /// Position of the first, at most the tail.
        from: u64,
        /// Encoded records, one after the other.
        records: Bytes,
        /// Treatment of their out-of-line data.
        named: NamedData,
    },
    /// Which image bytes did the records from here on change?
    TouchedSince {
        /// Position in the record ring.
        position: u64,
    },
    /// Put bytes into the image.
    WriteImage {
        /// Offset of the first byte.
        offset: u64,
        /// Bytes to write.
        bytes: Bytes,
    },
    /// Discard the records beyond this position and continue there.
    Rewind {
        /// Position of the record ring to return to.
        to: Sequence,
    },
    /// Extend the image to so many bytes, if it is shorter: with groups that are empty, so in all pools the same.
    GrowImage {
        /// The length in bytes.
        length: u64,
    },
    /// Open the pool for changes, in this epoch.
    OpenForWriting {
        /// Number of the epoch.
        epoch: u32,
    },
    /// Close it for changes again.
    Follow,
    /// Ask the membership service to put this map in place of the version before.
    Propose {
        /// Map of the unit to propose.
        map: UnitMap,
    },
}

/// Completion of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// For [`Intent::Execute`], [`Intent::NoteLocks`], [`Intent::OpenSession`], [`Intent::EndSession`],
    /// [`Intent::ReclaimOrphans`], [`Intent::FreeGrant`].
    Executed {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// Outcome of the operation.
        outcome: Outcome,
        /// End of the record of the change, which contains its answer, if one was made.
        position: Option<u64>,
        /// Records below are persistent: among them all that the execution has made or seen.
        tail: u64,
        /// The outcome shows nothing of records behind this position.
        depends_on: u64,
        /// The record names data that is not in it.
        is_by_reference: bool,
    },
    /// Completes an [`Intent::Resolve`].
    Resolved {
        /// Ticket of the intent, which its completion repeats.
        ticket: Ticket,
        /// Inodes of the files.
        inodes: Vec<u64>,
    },
    /// For [`Intent::OpenKey`]. The same key, if one was open.
    KeyOpened {
        /// Number of the session.
        session: u64,
        /// Its key: never one that any process had before.
        key: u64,
    },
    /// For [`Intent::CloseKey`]: no access can arrive any more, including those in flight.
    KeyClosed {
        /// Number of the session.
        session: u64,
    },
    /// For [`Intent::ReadRecords`]: the records, or `None` if they are not held (any more).
    Records {
        /// Position of the first.
        from: u64,
        /// Members that receive them.
        to: Vec<NodeId>,
        /// Encoded records, one after the other.
        records: Option<Bytes>,
        /// Data that they name, as far as it was asked for.
        data: Vec<Data>,
        /// As in the intent.
        is_for_group: bool,
    },
    /// Completes an [`Intent::ReadImage`].
    Image {
        /// Member that receives it.
        to: NodeId,
        /// Reason for the fetch.
        fetch: Fetch,
        /// Offset of the first byte.
        offset: u64,
        /// The tail after they were read.
        position: u64,
        /// Bytes from `offset` on that were left out: they are no metadata.
        skipped: u32,
        /// Bytes that were read, without those that were left out.
        bytes: Bytes,
    },
    /// Completes an [`Intent::Ingest`].
    Ingested {
        /// Tail of the pool's records, with those that were taken.
        tail: Sequence,
        /// Image bytes that differ from the next record's data ([`NamedData::Required`]), or from that of a record
        /// taken.
        missing: Vec<Range<u64>>,
    },
    /// For [`Intent::TouchedSince`]: the ranges, or the whole image if the records are not held any more.
    Touched {
        /// Ranges of bytes in the image.
        ranges: Vec<Range<u64>>,
    },
    /// Completes an [`Intent::OpenForWriting`].
    Opened {
        /// Tail of the record ring.
        tail: Sequence,
        /// The sessions in the image.
        sessions: Vec<SessionRecord>,
        /// Ended sessions that left blocks in their grants, with their indexes in the table.
        grants: Vec<(u64, u32)>,
    },
    /// For [`Intent::Follow`]: closed for changes.
    Following {
        /// Tail of the record ring.
        tail: Sequence,
        /// Epochs of the records that the ring holds.
        history: Vec<EpochStart>,
    },
    /// For [`Intent::Propose`]: the present map, whether it is the proposed one or not.
    Proposed {
        /// Present map of the unit.
        map: UnitMap,
    },
}

/// A session as the image has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRecord {
    /// Place in the table.
    pub index: u32,
    /// Number of the session.
    pub session: u64,
    /// Client that owns the session.
    pub client: NodeId,
    /// For each slot, the last request that made a record, and its answer.
    pub slots: Vec<(u64, Outcome)>,
    /// The locks by their positions.
    pub locks: Vec<Option<HeldLock>>,
    /// There are blocks in its grant.
    pub has_grant: bool,
}
