//! Messages as bytes.
//!
//! ```text
//!  0 magic 2 | version 1 | kind 1 | crc 4 | cluster 8
//! 16 epoch 4 | tenant 2 | unit 2 | session 8
//! 32 request 8 | from 4 | length 4
//! 48 body, `length` bytes
//! ```
//! Little-endian. `crc` is the CRC32C of everything but itself. Where the body may be long (records, data, image bytes)
//! it covers the header and the body's length only: such bodies are sent in halves, which have separate checksums and
//! allow repair ([`crate::parity`]). Lengths are bounded, and nothing may follow. Positions and times are below 2^62,
//! so that sums of them do not overflow.

pub mod active;
mod bytes;
mod envelope;
mod frame;
mod group;
mod leases;
mod map;
mod operation;
mod renewal;

pub use crate::malformed::Malformed;
pub use envelope::Envelope;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use frame::{is_in_halves, seal};
pub use group::{Data, is_of_group, shipment_end};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use map::seal_map;
pub use operation::{REPLAYS_MAX, Refusal, Replay};
pub use operations::{
    Acknowledge, Bytes, DATA_MAX, Details, ErrorCode, FileId, Held, Operation, Outcome,
    RECORD_DATA_MAX,
};
pub use renewal::RENEWED_MAX;

use std::sync::Arc;

use crate::cluster::ClusterMap;
use crate::group::{Offer, Report};
use crate::leases::Grant;
use crate::map::{NodeId, Sequence};
use bytes::{Reader, Writer};

/// First two bytes of every message.
pub const MAGIC: u16 = u16::from_le_bytes(*b"TK");
/// Version of the messages.
pub const VERSION: u8 = 10;
/// Why a message of another version is refused.
const OTHER_VERSION: &str =
    "its protocol version differs; use one version of tako on all nodes and clients";
/// Bytes before the body.
pub const HEADER: usize = 48;
/// Kinds of the messages that are not about a unit.
const HELLO: u8 = 64;
const MAP: u8 = 65;
const EXPORT: u8 = 66;
/// Beside the acknowledgement of a request: the client wants a lease.
const WANTS_LEASE: u8 = 128;
/// Longest body of a message, in bytes.
pub const BODY_MAX: usize = 4 << 20;

/// How the receiver of a message answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMode {
    /// It gives none: records, and answers themselves. Tails report the result of records.
    NoReply,
    /// It answers before anything else that may wait.
    Immediate,
    /// It answers when there is no other work, a little at a time: rebuilding.
    Deferred,
}

/// Why image bytes are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Data that a record names and this member, in sync, did not get. Checked against the record.
    Data,
    /// A range that may differ from the unit's. Returned only when all members in sync have its contents.
    Refill,
    /// As for a refill, for a metadata-only member: data and free blocks are left out.
    Metadata,
}

/// Contents of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// From the primary: it is alive. The requested lease counts from `sent_at_ns` of its own clock.
    Heartbeat {
        /// Time of the primary's clock.
        sent_at_ns: u64,
        /// Tail of the sender's record ring.
        position: u64,
        /// All members in sync have the records below.
        confirmed: u64,
    },
    /// Answer to a heartbeat: a lease, and how far the member's records reach.
    Lease {
        /// The time that the heartbeat carried, by the primary's clock, in nanoseconds.
        sent_at_ns: u64,
        /// Position at which the member's records end.
        tail: u64,
        /// Whether it takes no record without its data, so that its tail counts.
        is_caught_up: bool,
    },
    /// Records, from this position on, in halves.
    Records {
        /// Position of the first.
        from: u64,
        /// As in the ring.
        records: Bytes,
        /// What the primary's image holds of the data that they name: the receiver fetches the rest.
        data: Vec<Data>,
    },
    /// Records to a group, with data that they name.
    Shipment {
        /// Position of the first.
        from: u64,
        /// As in the ring.
        records: Bytes,
        /// What the primary's image holds of the data.
        data: Vec<Data>,
    },
    /// From the primary, over the control connection: where its group meets, and the key.
    Offer {
        /// What a member needs.
        offer: Box<Offer>,
    },
    /// What a member has of the frames of the primary's group.
    Report {
        /// What it has, and lacks.
        report: Report,
    },
    /// From the primary: all frames below `end` were sent, and those below `first` are not kept.
    Frames {
        /// The first one that may be asked for.
        first: u64,
        /// Number behind the last one that was sent.
        end: u64,
        /// Frames that were asked for, each behind its length in two bytes.
        again: Vec<u8>,
    },
    /// The member's records reach this far, and are persistent.
    Tail {
        /// Position at which the member's records end.
        tail: u64,
        /// Whether it takes no record without its data, so that its tail counts.
        is_caught_up: bool,
    },
    /// Records from here on are missing.
    Gap {
        /// Position at which the member's records end.
        from: u64,
    },
    /// Image bytes are missing.
    Fetch {
        /// Reason for the fetch.
        fetch: Fetch,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Bytes of the sender's image.
    Range {
        /// Reason for the fetch, as it was requested.
        fetch: Fetch,
        /// Offset of the first byte.
        offset: u64,
        /// The primary's tail when they were read: they show all records before it, and none behind.
        position: u64,
        /// So many bytes from `offset` on are no metadata and left out; the bytes come behind them.
        skipped: u32,
        /// Bytes of the image, without those that are left out.
        bytes: Bytes,
    },
    /// A member that is not in sync wants to follow from this position, 0 for a refill of everything.
    Join {
        /// The end of the records that it shares with the unit.
        from: u64,
        /// Version of the map by which it is not, or cannot be, in sync.
        version: u64,
    },
    /// Answer to a join: what to refill, and from where records will come.
    Welcome {
        /// The position that was asked for, or a later one if its records are not held any more: refill everything.
        from: u64,
        /// The primary's tail. Whatever the member fetched before, from whomever, shows no record behind it.
        position: u64,
        /// Bytes of the image by the primary's map: what is refilled is as long, at least.
        image: u64,
    },
    /// A member offers itself as the next primary.
    Candidate {
        /// Tail of the sender's record ring.
        tail: Sequence,
    },
    /// Answer to a candidate.
    Support {
        /// The tail, which will not grow in this epoch any more.
        tail: Sequence,
        /// Whether all of its records are the unit's.
        is_sound: bool,
    },
    /// From the primary: let the session's client reach into this member's memory.
    OpenKey {
        /// Place of the session in the table: there is one key for each.
        index: u32,
        /// Number of the session.
        session: u64,
    },
    /// Answer to [`Body::OpenKey`].
    KeyOpened {
        /// Number of the session.
        session: u64,
        /// No two keys are the same, of no two processes either.
        key: u64,
    },
    /// From the primary: the session has ended, no access may arrive with its key any more.
    CloseKey {
        /// Number of the session.
        session: u64,
    },
    /// Answer to it: nothing will.
    KeyClosed {
        /// Number of the session.
        session: u64,
    },
    /// A client asks for a session. `request` is a number it never used before.
    OpenSession,
    /// The session, in the envelope, and the number of requests that it may have in flight.
    SessionOpened {
        /// Number of requests that the session may have in flight, 1 to 63.
        slots: u16,
    },
    /// A client is there.
    KeepAlive,
    /// Answer to [`Body::KeepAlive`].
    Alive {
        /// All members in sync have the records below.
        confirmed: u64,
        /// For this long after the question was sent, by any clock, there is no other primary.
        valid_ns: u64,
    },
    /// There is no such session (any more).
    Expired,
    /// Carry this out once.
    Request {
        /// Which of the session's slots it uses; its requests come in order.
        slot: u16,
        /// When a write returns.
        acknowledge: Acknowledge,
        /// The client caches its reads for as long as it has a lease.
        wants_lease: bool,
        /// The operation to execute.
        operation: Arc<Operation>,
    },
    /// Result of a request.
    Reply {
        /// Index of the slot in its session.
        slot: u16,
        /// Outcome of the operation.
        outcome: Outcome,
        /// Where its record ends, 0 if it made none.
        position: u64,
        /// All members in sync have the records below.
        confirmed: u64,
        /// The client may cache the contents of the outcome.
        grant: Grant,
    },
    /// From the primary: the session's leases of an inode that were granted before have to end.
    Recall {
        /// Number of the inode.
        inode: u64,
        /// The number of the recall, in one order with those of grants.
        number: u64,
    },
    /// Answer to it: the client keeps nothing that was granted before.
    RecallAnswer {
        /// Number of the inode.
        inode: u64,
        /// The number of the recall.
        number: u64,
    },
    /// The session uses these leases: they are to last longer.
    Renew {
        /// Inodes of the leases.
        inodes: Vec<u64>,
    },
    /// Answer to [`Body::Renew`].
    Renewed {
        /// They end this long after the question was sent, by any clock.
        lasts_ns: u64,
        /// Inodes of the leases that were extended.
        inodes: Vec<u64>,
    },
    /// From the primary: the lock of a wait is free, and reserved for its owner.
    LockTurn {
        /// Number of the wait.
        wait: u64,
    },
    /// To a new primary: requests that were answered and may be lost.
    Resume {
        /// Files that the session holds: [`Body::Holds`] came before with all of them.
        holds: u64,
        /// In the order of their records.
        replays: Vec<Replay>,
        /// Files that it owns: it may have answered writes to them that the primary does not know.
        owned: Vec<u64>,
    },
    /// All replays of the session were executed, except these, and all members in sync have them.
    Resumed {
        /// One for each file.
        refusals: Vec<Refusal>,
    },
    /// To a new primary, before [`Body::Resume`]: files that the session holds.
    Holds {
        /// Some of the session's holds.
        holds: Vec<Held>,
    },
    /// A client asks for the keys to the members' memories.
    OpenKeys,
    /// The key to one of them.
    Key {
        /// Number of the member.
        member: NodeId,
        /// Its key for this session.
        key: u64,
    },
    /// The first message of a connection. From then on every message of the connection has this envelope's `from`.
    Hello {
        /// Version of the cluster map that the sender has; 0 for none.
        map_version: u64,
    },
    /// The current cluster map: answers [`Body::Hello`], and a message of an older epoch.
    Map {
        /// Map of the whole cluster.
        map: Box<ClusterMap>,
    },
    /// A client asks a member to export its memory over this connection. The envelope names the session.
    Export {
        /// The member's key for the session.
        key: u64,
        /// Whether it wants to write, too.
        writes: bool,
    },
}

/// A message between processes: its envelope and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Sender of the message, and the unit and request that it is about.
    pub envelope: Envelope,
    /// Contents of the message.
    pub body: Body,
}

impl Body {
    /// How this message is answered. The kind determines it, and for a fetch its reason.
    pub fn mode(&self) -> AnswerMode {
        match self {
            Body::Fetch {
                fetch: Fetch::Refill | Fetch::Metadata,
                ..
            } => AnswerMode::Deferred,
            Body::Heartbeat { .. }
            | Body::Gap { .. }
            | Body::Fetch { .. }
            | Body::Join { .. }
            | Body::Candidate { .. }
            | Body::OpenKey { .. }
            | Body::CloseKey { .. }
            | Body::OpenSession
            | Body::KeepAlive
            | Body::OpenKeys
            | Body::Hello { .. }
            | Body::Export { .. }
            | Body::Request { .. }
            | Body::Recall { .. }
            | Body::Renew { .. }
            | Body::Resume { .. } => AnswerMode::Immediate,
            Body::Lease { .. }
            | Body::Records { .. }
            | Body::Shipment { .. }
            | Body::Offer { .. }
            | Body::Report { .. }
            | Body::Frames { .. }
            | Body::Tail { .. }
            | Body::Range { .. }
            | Body::Welcome { .. }
            | Body::Support { .. }
            | Body::KeyOpened { .. }
            | Body::KeyClosed { .. }
            | Body::Key { .. }
            | Body::SessionOpened { .. }
            | Body::Alive { .. }
            | Body::Expired
            | Body::Holds { .. }
            | Body::Map { .. }
            | Body::Reply { .. }
            | Body::RecallAnswer { .. }
            | Body::Renewed { .. }
            | Body::LockTurn { .. }
            | Body::Resumed { .. } => AnswerMode::NoReply,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Body::Heartbeat { .. } => 1,
            Body::Lease { .. } => 2,
            Body::Records { data, .. } if data.is_empty() => 3,
            Body::Records { .. } => group::RECORDS_WITH_DATA,
            Body::Tail { .. } => 4,
            Body::Gap { .. } => 5,
            Body::Fetch { .. } => 6,
            Body::Range { .. } => 7,
            Body::Join { .. } => 8,
            Body::Welcome { .. } => 9,
            Body::Candidate { .. } => 10,
            Body::Support { .. } => 11,
            Body::OpenKey { .. } => 12,
            Body::KeyOpened { .. } => 13,
            Body::CloseKey { .. } => 14,
            Body::KeyClosed { .. } => 15,
            Body::Shipment { .. } => group::SHIPMENT,
            Body::Offer { .. } => group::OFFER,
            Body::Report { .. } => group::REPORT,
            Body::Frames { .. } => group::FRAMES,
            Body::OpenSession => 32,
            Body::SessionOpened { .. } => 33,
            Body::KeepAlive => 34,
            Body::Alive { .. } => 35,
            Body::Expired => 36,
            Body::Request { .. } => 37,
            Body::Reply { .. } => 38,
            Body::Resume { .. } => 39,
            Body::Resumed { .. } => 40,
            Body::OpenKeys => 41,
            Body::Key { .. } => 42,
            Body::Holds { .. } => 43,
            Body::Recall { .. } => 44,
            Body::RecallAnswer { .. } => 45,
            Body::LockTurn { .. } => 46,
            Body::Renew { .. } => renewal::RENEW,
            Body::Renewed { .. } => renewal::RENEWED,
            Body::Hello { .. } => HELLO,
            Body::Map { .. } => MAP,
            Body::Export { .. } => EXPORT,
        }
    }

    fn write(&self, to: &mut Writer) {
        match self {
            Body::Heartbeat {
                sent_at_ns,
                position,
                confirmed,
            } => [sent_at_ns, position, confirmed]
                .into_iter()
                .for_each(|it| to.u64(*it)),
            Body::Lease {
                sent_at_ns,
                tail,
                is_caught_up,
            } => {
                to.u64(*sent_at_ns);
                to.u64(*tail);
                to.u8((*is_caught_up).into());
            }
            Body::Tail { tail, is_caught_up } => {
                to.u64(*tail);
                to.u8((*is_caught_up).into());
            }
            Body::Gap { from } => to.u64(*from),
            Body::Join { from, version } => to.u64s(&[*from, *version]),
            Body::Welcome {
                from,
                position,
                image,
            } => to.u64s(&[*from, *position, *image]),
            Body::Fetch {
                fetch,
                offset,
                length,
            } => {
                to.u8(*fetch as u8);
                to.u64(*offset);
                to.u32(*length);
            }
            Body::Range {
                fetch,
                offset,
                position,
                skipped,
                bytes,
            } => {
                to.u8(*fetch as u8);
                to.u64(*offset);
                to.u64(*position);
                to.u32(*skipped);
                to.counted(bytes);
            }
            Body::Candidate { tail } => to.sequence(*tail),
            Body::Support { tail, is_sound } => {
                to.sequence(*tail);
                to.u8((*is_sound).into());
            }
            _ => self.write_of_client(to),
        }
    }

    fn write_of_client(&self, to: &mut Writer) {
        match self {
            Body::SessionOpened { slots } => to.u16(*slots),
            Body::Alive {
                confirmed,
                valid_ns,
            } => {
                to.u64(*confirmed);
                to.u64(*valid_ns);
            }
            Body::Request { operation, .. } => {
                self.write_before_operation(to);
                operation::write_operation(to, operation);
            }
            Body::Reply {
                slot,
                outcome,
                position,
                confirmed,
                grant,
            } => {
                to.u16(*slot);
                to.u64(*position);
                to.u64(*confirmed);
                to.u64(grant.number);
                to.u64(grant.lasts_ns);
                to.u8(grant.covers.bits());
                operation::write_outcome(to, outcome);
            }
            Body::Resume {
                holds,
                replays,
                owned,
            } => {
                to.u64(*holds);
                to.u16(replays.len() as u16);
                replays.iter().for_each(|replay| replay.write(to));
                leases::write_owned(to, owned);
            }
            Body::Holds { holds } => {
                to.u32(holds.len() as u32);
                holds
                    .iter()
                    .for_each(|held| operation::write_held(to, held));
            }
            Body::Resumed { refusals } => {
                to.u16(refusals.len() as u16);
                refusals.iter().for_each(|refusal| refusal.write(to));
            }
            _ => self.write_of_keys(to),
        }
    }

    /// The fields of a request that precede its operation.
    fn write_before_operation(&self, to: &mut Writer) {
        if let Body::Request {
            slot,
            acknowledge,
            wants_lease,
            ..
        } = self
        {
            to.u16(*slot);
            let lease = if *wants_lease { WANTS_LEASE } else { 0 };
            to.u8(*acknowledge as u8 | lease);
        }
    }

    fn write_of_keys(&self, to: &mut Writer) {
        match self {
            Body::OpenKey { index, session } => {
                to.u32(*index);
                to.u64(*session);
            }
            Body::CloseKey { session } | Body::KeyClosed { session } => {
                to.u64(*session);
            }
            Body::KeyOpened { session, key } => {
                to.u64(*session);
                to.u64(*key);
            }
            Body::Key { member, key } => {
                to.u32(*member);
                to.u64(*key);
            }
            Body::Recall { inode, number } | Body::RecallAnswer { inode, number } => {
                to.u64(*inode);
                to.u64(*number);
            }
            Body::LockTurn { wait } => to.u64(*wait),
            Body::Hello { map_version } => to.u64(*map_version),
            Body::Map { map } => to.bytes.extend(map.encode()),
            Body::Export { key, writes } => {
                to.u64(*key);
                to.u8((*writes).into());
            }
            Body::Renew { .. } | Body::Renewed { .. } => self.write_of_renewal(to),
            _ => self.write_of_group(to),
        }
    }

    fn read(kind: u8, from: &mut Reader<'_>) -> Result<Body, Malformed> {
        Ok(match kind {
            1 => Body::Heartbeat {
                sent_at_ns: from.position()?,
                position: from.position()?,
                confirmed: from.position()?,
            },
            2 => Body::Lease {
                sent_at_ns: from.position()?,
                tail: from.position()?,
                is_caught_up: from.flag()?,
            },
            3 => Body::Records {
                from: from.position()?,
                records: from.rest_of_data(),
                data: Vec::new(),
            },
            4 => Body::Tail {
                tail: from.position()?,
                is_caught_up: from.flag()?,
            },
            5 => Body::Gap {
                from: from.position()?,
            },
            6 => Body::Fetch {
                fetch: from.fetch()?,
                offset: from.u64()?,
                length: from.u32()?,
            },
            7 => Body::Range {
                fetch: from.fetch()?,
                offset: from.u64()?,
                position: from.position()?,
                skipped: from.u32()?,
                bytes: from.data(BODY_MAX)?,
            },
            8 => Body::Join {
                from: from.position()?,
                version: from.u64()?,
            },
            9 => Body::Welcome {
                from: from.position()?,
                position: from.position()?,
                image: from.u64()?,
            },
            10 => Body::Candidate {
                tail: from.sequence()?,
            },
            11 => Body::Support {
                tail: from.sequence()?,
                is_sound: from.flag()?,
            },
            12 => Body::OpenKey {
                index: from.u32()?,
                session: from.u64()?,
            },
            13 => Body::KeyOpened {
                session: from.u64()?,
                key: from.u64()?,
            },
            14 => Body::CloseKey {
                session: from.u64()?,
            },
            15 => Body::KeyClosed {
                session: from.u64()?,
            },
            _ => Body::read_of_client(kind, from)?,
        })
    }

    fn read_of_client(kind: u8, from: &mut Reader<'_>) -> Result<Body, Malformed> {
        Ok(match kind {
            32 => Body::OpenSession,
            33 => Body::SessionOpened { slots: from.u16()? },
            34 => Body::KeepAlive,
            35 => Body::Alive {
                confirmed: from.position()?,
                valid_ns: from.position()?,
            },
            36 => Body::Expired,
            37 => {
                let slot = from.u16()?;
                let (acknowledge, wants_lease) = leases::read_acknowledge(from)?;
                Body::Request {
                    slot,
                    acknowledge,
                    wants_lease,
                    operation: Arc::new(Operation::decode(&from.rest_of_data())?),
                }
            }
            38 => Body::Reply {
                slot: from.u16()?,
                position: from.position()?,
                confirmed: from.position()?,
                grant: leases::read_grant(from)?,
                outcome: Outcome::decode(&from.rest_of_data())?,
            },
            39 => {
                let holds = from.u64()?;
                let replays: Result<_, _> = (0..read_replays(from)?)
                    .map(|_| Replay::read(from))
                    .collect();
                Body::Resume {
                    holds,
                    replays: replays?,
                    owned: leases::read_owned(from)?,
                }
            }
            40 => {
                let refusals: Result<_, _> = (0..read_replays(from)?)
                    .map(|_| Refusal::read(from))
                    .collect();
                Body::Resumed {
                    refusals: refusals?,
                }
            }
            41 => Body::OpenKeys,
            42 => Body::Key {
                member: from.u32()?,
                key: from.u64()?,
            },
            43 => {
                let holds: Result<_, _> = (0..from.u32()?)
                    .map(|_| operation::read_held(from))
                    .collect();
                Body::Holds { holds: holds? }
            }
            EXPORT => Body::Export {
                key: from.u64()?,
                writes: from.flag()?,
            },
            HELLO => Body::Hello {
                map_version: from.u64()?,
            },
            MAP => Body::Map {
                map: Box::new(ClusterMap::decode(from.rest())?),
            },
            _ => Body::read_of_leases(kind, from)?,
        })
    }
}

/// Number of requests that are replayed, or were.
fn read_replays(from: &mut Reader<'_>) -> Result<usize, Malformed> {
    match usize::from(from.u16()?) {
        count if count <= REPLAYS_MAX => Ok(count),
        _ => Err(Malformed("it replays more than a session may have")),
    }
}

/// Whether this is a message about the cluster or the connection, [`Body::Hello`], [`Body::Map`] or [`Body::Export`]: it
/// counts in every epoch.
pub fn is_of_cluster(bytes: &[u8]) -> bool {
    matches!(bytes.get(3), Some(&(HELLO | MAP | EXPORT)))
}

#[cfg(test)]
mod tests;
