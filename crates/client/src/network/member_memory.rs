//! The members' memories: which are accessible, and the transfers in flight.
//!
//! The primary gives the key of each member ([`Body::Key`]). With it the client asks that member to export its memory
//! over their link, and only then the state machine receives the key. When the link is lost, so is the export:
//! transfers that have not ended are reported as lost, and with the next link the member is asked again.

use std::collections::BTreeMap;

use connections::messenger::{self, Direction, LinkId, Messenger, ReadTarget};
use fabric::Provider;
use operations::Bytes;
use protocol::client::{AtOnce, Mode, Ticket, Transfer, TransferKind, TransferOutcome};
use protocol::wire::Body;
use protocol::{Client, NodeId};

use super::Io;

/// From this length on a client that chooses itself reads one-sided.
const LEAST_READ: u32 = 4 << 10;
/// From this length on it writes one-sided. `docs/performance/clusters.md` has the figures.
const LEAST_WRITE: u32 = 1 << 20;
/// Bytes of a block, which transfers are multiples of.
const BLOCK: usize = 4096;
/// No write is so long.
const NEVER: u32 = u32::MAX;

/// State of a member's memory.
struct Known {
    key: u64,
    /// It was asked over this link to export it.
    asked: LinkId,
    is_exported: bool,
}

/// The members' memories, as a client reaches them.
pub struct MemberMemories {
    io: Io,
    /// Whether it writes one-sided.
    writes: bool,
    /// The session that the keys are for.
    session: Option<u64>,
    known: BTreeMap<NodeId, Known>,
    /// Transfers in flight by their numbers, with their links.
    in_flight: BTreeMap<u64, (LinkId, Flight)>,
}

/// A transfer in flight.
enum Flight {
    Write,
    Read,
    /// So many bytes come to this offset of the memory, for the read with this ticket.
    Landing(Ticket, ReadTarget, u64, u32),
}

impl MemberMemories {
    pub fn new(io: Io, writes: bool) -> MemberMemories {
        MemberMemories {
            io,
            writes: writes && io != Io::Server,
            session: None,
            known: BTreeMap::new(),
            in_flight: BTreeMap::new(),
        }
    }

    /// Whether transfers are in flight to the memory of a read.
    pub fn are_landing(&self, ticket: Ticket) -> bool {
        let mut flights = self.in_flight.values();
        flights.any(|(_, flight)| matches!(flight, Flight::Landing(of, ..) if *of == ticket))
    }

    /// Number of transfers in flight.
    pub fn transfers(&self) -> usize {
        self.in_flight.len()
    }

    /// Which side moves the data, with a primary at the other end of this transport, members on this host or none, and so many full
    /// members in sync, or 0 if one of them is on another host. With a single one, a write by message is as fast.
    pub fn mode(&self, provider: Option<Provider>, has_near: bool, near_copies: usize) -> Mode {
        let is_passive = matches!(provider, Some(Provider::Shm | Provider::Verbs));
        let writes_long = self.writes_over(provider) && near_copies > 1;
        match self.io {
            Io::Client if self.writes => Mode::CLIENT_ACTIVE,
            Io::Client => Mode::ClientActive {
                write: NEVER,
                read: 0,
            },
            Io::Auto if is_passive || has_near => Mode::ClientActive {
                write: if writes_long { LEAST_WRITE } else { NEVER },
                read: LEAST_READ,
            },
            Io::Auto | Io::Server => Mode::ServerActive,
        }
    }

    /// Whether memory at the other end of this transport is to be writable: only where this side may write one-sided.
    fn writes_over(&self, provider: Option<Provider>) -> bool {
        self.writes && (self.io == Io::Client || provider == Some(Provider::Shm))
    }

    /// The primary has given a member's key. Returns what to send to the member over this link, which has this transport.
    pub fn take_key(
        &mut self,
        (member, key): (NodeId, u64),
        (asked, provider): (LinkId, Option<Provider>),
        client: &mut Client,
    ) -> Option<Body> {
        if let Some(known) = self.known.get(&member)
            && known.key == key
            && known.asked == asked
        {
            if known.is_exported {
                client.handle_key(member, key);
            }
            return None;
        }
        let known = Known {
            key,
            asked,
            is_exported: false,
        };
        self.known.insert(member, known);
        client.forget_key(member);
        let writes = self.writes_over(provider);
        Some(Body::Export { key, writes })
    }

    /// There is a link to a member, by this transport. Returns what to send over it.
    pub fn linked(
        &mut self,
        member: NodeId,
        (link, provider): (LinkId, Option<Provider>),
    ) -> Option<Body> {
        let writes = self.writes_over(provider);
        let known = self.known.get_mut(&member)?;
        known.asked = link;
        known.is_exported = false;
        Some(Body::Export {
            key: known.key,
            writes,
        })
    }

    /// A member has exported its memory.
    pub fn exported(&mut self, link: LinkId, name: u64, client: &mut Client) {
        let mut known = self.known.iter_mut();
        let found = known.find(|(_, known)| known.asked == link && known.key == name);
        if let Some((member, known)) = found {
            known.is_exported = true;
            client.handle_key(*member, known.key);
        }
    }

    /// A link has ended. Whether transfers over it will land is not known.
    pub fn lost(&mut self, now: u64, link: LinkId, client: &mut Client) {
        // A key that was not good was the reason, perhaps: the primary gives another one.
        self.known.retain(|member, known| {
            let is_lost = known.asked == link;
            if is_lost {
                client.forget_key(*member);
            }
            !is_lost || std::mem::take(&mut known.is_exported)
        });
        let in_flight = self.in_flight.iter();
        let lost: Vec<u64> = in_flight
            .filter(|(_, (over, _))| *over == link)
            .map(|(wr_id, _)| *wr_id)
            .collect();
        for wr_id in lost {
            self.in_flight.remove(&wr_id);
            client.handle_transfer(now, wr_id, TransferOutcome::Lost);
        }
    }

    /// Links to memory that is not needed any more: the session has ended, or members have left. Closing them releases
    /// the memory.
    pub fn useless(&mut self, client: &Client, members: &[NodeId]) -> Vec<LinkId> {
        let session = client.session();
        let has_ended = self.session.is_some_and(|known| session != Some(known));
        self.session = session;
        let mut useless = Vec::new();
        self.known.retain(|member, known| {
            let is_useful = !has_ended && members.contains(member);
            if !is_useful && known.is_exported {
                useless.push(known.asked);
            }
            is_useful
        });
        useless
    }

    /// Starts a transfer of the state machine, or reports its result at once.
    pub fn start(
        &mut self,
        now: u64,
        (transfer, target): (Transfer, Option<(ReadTarget, u64)>),
        messenger: &mut Messenger,
        client: &mut Client,
    ) {
        let wr_id = transfer.wr_id;
        // The transport itself retransmits requests in flight.
        if self.in_flight.contains_key(&wr_id) {
            return;
        }
        let refused = TransferOutcome::Refused;
        let link = match self.known.get(&transfer.to) {
            Some(known) if known.key != transfer.key => {
                return client.handle_transfer(now, wr_id, refused);
            }
            Some(known) if known.is_exported => known.asked,
            _ => return client.handle_transfer(now, wr_id, TransferOutcome::Lost),
        };
        let provider = messenger.provider(link);
        let target = target.filter(|(target, _)| provider == Some(target.provider()));
        let (direction, flight) = match (transfer.kind, transfer.lands, target) {
            (TransferKind::Write(bytes), ..) => (Direction::Write(bytes), Flight::Write),
            (TransferKind::Read(length), Some((ticket, at)), Some((target, start))) => {
                let at = start + u64::from(at);
                let flight = Flight::Landing(ticket, target.clone(), at, length);
                (Direction::ReadTo(target, at, length), flight)
            }
            (TransferKind::Read(length), ..) => (Direction::Read(length), Flight::Read),
        };
        let begun = messenger.transfer(
            link,
            messenger::Transfer {
                id: wr_id,
                name: transfer.key,
                offset: transfer.offset,
                direction,
            },
        );
        match begun {
            true => drop(self.in_flight.insert(wr_id, (link, flight))),
            false => client.handle_transfer(now, wr_id, TransferOutcome::Lost),
        }
    }

    /// The links to the memories that a read at once copies its data from, and its version word, if it has one; `None` unless both are
    /// mapped. If only one is, the data would be copied twice.
    pub fn mapped(&self, messenger: &Messenger, plan: &AtOnce) -> Option<(LinkId, Option<LinkId>)> {
        let mapped = |member, key| {
            let link = self.exported_by(member, key)?;
            (messenger.provider(link) == Some(Provider::Shm)).then_some(link)
        };
        let data = mapped(plan.member, plan.key)?;
        match plan.version_word {
            Some(word) => Some((data, Some(mapped(word.member, word.key)?))),
            None => Some((data, None)),
        }
    }

    /// Copies what a read at once needs into `into`, and then its version word, if it has one, over these links to mapped memory. Returns
    /// that word; `None` if bytes are missing or damaged. Then part of `into` may have been overwritten.
    pub fn read_at_once(
        &self,
        messenger: &mut Messenger,
        (link, to_word): (LinkId, Option<LinkId>),
        plan: &AtOnce,
        into: &mut [u8],
    ) -> Option<Option<u64>> {
        let mut next = 0;
        for piece in &plan.pieces {
            into[next..piece.into.start].fill(0);
            next = piece.into.end;
            let part = &mut into[piece.into.clone()];
            let checksums = &plan.checksums[piece.checksums.clone()];
            if !messenger.read_at_once(link, (plan.key, piece.offset), part, checksums) {
                return None;
            }
        }
        if next < plan.count {
            into[next..plan.count].fill(0);
        }
        let (Some(word), Some(link)) = (plan.version_word, to_word) else {
            return Some(None);
        };
        let mut bytes = [0; 8];
        let is_there = messenger.read_at_once(link, (word.key, word.offset), &mut bytes, &[]);
        is_there.then_some(Some(u64::from_le_bytes(bytes)))
    }

    /// The link over which a member has exported its memory under this key.
    fn exported_by(&self, member: NodeId, key: u64) -> Option<LinkId> {
        let known = self.known.get(&member)?;
        (known.is_exported && known.key == key).then_some(known.asked)
    }

    /// A transfer has ended.
    pub fn ended(&mut self, now: u64, wr_id: u64, bytes: Option<Bytes>, client: &mut Client) {
        let Some((_, flight)) = self.in_flight.remove(&wr_id) else {
            return;
        };
        let outcome = match (bytes, flight) {
            (None, _) => TransferOutcome::Refused,
            (Some(_), Flight::Write) => TransferOutcome::Written,
            (Some(bytes), Flight::Read) => TransferOutcome::Read(bytes),
            (Some(_), Flight::Landing(_, target, at, length)) => {
                let (region, start) = target.range();
                let blocks = (0..u64::from(length)).step_by(BLOCK);
                let checksums = blocks.map(|block| region.crc32c(start + at + block, BLOCK));
                TransferOutcome::Landed(checksums.collect())
            }
        };
        client.handle_transfer(now, wr_id, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_chooses_itself_is_one_sided_where_that_is_faster() {
        let mode = |io, writes, provider| MemberMemories::new(io, writes).mode(provider, false, 2);
        let active = |write, read| Mode::ClientActive { write, read };
        for provider in [None, Some(Provider::Shm), Some(Provider::Tcp)] {
            assert_eq!(mode(Io::Server, true, provider), Mode::ServerActive);
            assert_eq!(mode(Io::Client, true, provider), active(0, 0));
            assert_eq!(mode(Io::Client, false, provider), active(NEVER, 0));
        }
        let (shm, verbs) = (Some(Provider::Shm), Some(Provider::Verbs));
        let by_message = active(NEVER, LEAST_READ);
        assert_eq!(mode(Io::Auto, true, shm), active(LEAST_WRITE, LEAST_READ));
        assert_eq!(mode(Io::Auto, false, shm), by_message);
        assert_eq!(mode(Io::Auto, true, verbs), by_message);
        let auto = MemberMemories::new(Io::Auto, true);
        for near_copies in [0, 1] {
            assert_eq!(auto.mode(shm, true, near_copies), by_message);
        }
        assert!(auto.writes_over(shm) && !auto.writes_over(verbs));
        assert!(MemberMemories::new(Io::Client, true).writes_over(verbs));
        for other in [None, Some(Provider::Tcp)] {
            assert_eq!(mode(Io::Auto, true, other), Mode::ServerActive);
        }
        let beside_a_replica = auto.mode(Some(Provider::Tcp), true, 2);
        assert_eq!(beside_a_replica, by_message);
    }
}
