//! Groups: a queue pair for datagrams for each. Lost messages are not repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::verbs::{
    Attached, Completion, Data, GRH, GROUP_QUEUE_PAIR, Group, QueuePair, Queues, Request as Entry,
    Rights, Status, Verb,
};
use pmem::Region;

use super::link::{Tag, identity};
use super::wire::comes_from;
use super::{Common, INLINE_BYTES, count};
use crate::{EndpointId, Error, GroupAddress, GroupId, Source};

/// Datagrams of all groups that are in flight to the network at once, at most: as many as a member of a cluster has buffers for.
/// So the sender of a stream rarely loses one for lack of a slot.
pub const SENDS: u32 = 128;

/// Time limit for the network to admit a port to a group. The service thread blocks meanwhile, so the limit is below a primary's lease.
const JOIN_WITHIN_MS: u32 = 500;

#[derive(Default)]
pub struct Groups {
    members: Vec<Member>,
    outgoing: Option<Outgoing>,
}

struct Member {
    id: GroupId,
    /// Dropped before the queue pair. `None` if nothing is to be received, and once it leaves.
    attached: Option<Attached>,
    /// Datagrams may come, also some that came before it left.
    listens: bool,
    group: Arc<Group>,
    pair: Arc<QueuePair>,
    /// A datagram could not be sent. The pair has failed with it: it takes no others, and receives nothing.
    has_failed: bool,
}

/// Copies of outgoing messages, since their completion is not reported.
struct Outgoing {
    memory: Arc<::verbs::Registration>,
    bytes: u32,
    /// The queue pair that sends it, for each place.
    senders: Vec<Option<u32>>,
}

impl Groups {
    pub fn join(
        &mut self,
        common: &Common,
        queues: &Queues,
        id: GroupId,
        address: GroupAddress,
    ) -> Result<(), Error> {
        if self.outgoing.is_none() {
            self.outgoing = Some(Outgoing::new(common)?);
        }
        let group = Group::join(&common.domain, address.address, JOIN_WITHIN_MS)?;
        let queues = Queues {
            depth: SENDS,
            inline: INLINE_BYTES,
            ..queues.clone()
        };
        let pair = QueuePair::datagram(&common.domain, &queues, group.key())?;
        // Without it the adapter delivers nothing of the group, and so takes no buffers for it.
        let attached = address.listens.then(|| group.attach(&pair)).transpose()?;
        self.members.push(Member {
            id,
            attached,
            listens: address.listens,
            group,
            pair,
            has_failed: false,
        });
        Ok(())
    }

    /// Receives nothing any more.
    pub fn detach(&mut self, id: GroupId) {
        if let Some(member) = self.members.iter_mut().find(|member| member.id == id) {
            member.attached = None;
        }
    }

    /// Some adapters discard completions with the queue pair, and so their buffers: first [`Groups::detach`], and take
    /// all completions.
    pub fn leave(&mut self, id: GroupId) {
        let Some(at) = self.members.iter().position(|member| member.id == id) else {
            return;
        };
        let number = self.members.swap_remove(at).pair.number();
        // The queue pair is destroyed, so these slots are not read any more.
        self.free_places(number);
    }

    /// Frees the slots of a queue pair, and returns their number.
    fn free_places(&mut self, number: u32) -> u64 {
        let senders = self.outgoing.iter_mut().flat_map(|all| &mut all.senders);
        let of_pair = senders.filter(|sender| **sender == Some(number));
        of_pair.map(|sender| *sender = None).count() as u64
    }

    /// Whether a queue pair has failed.
    pub fn have_failed(&self) -> bool {
        self.members.iter().any(|member| member.has_failed)
    }

    /// Lets queue pairs of which a send has failed do nothing any more, neither receive. Take all completions then: some
    /// adapters take them away with what follows.
    pub fn stop(&mut self) {
        for member in self.members.iter().filter(|member| member.has_failed) {
            // If this is refused, the next step is, too.
            let _ = member.pair.fail();
        }
    }

    /// Makes these ready again, and returns which: requests posted to them are discarded. Those that the adapter
    /// refuses stay as they are, for a retry.
    pub fn restart(&mut self) -> Vec<GroupId> {
        let failed = self.members.iter().filter(|member| member.has_failed);
        let restarted = failed.filter(|member| member.pair.reset().is_ok());
        restarted.map(|member| member.id).collect()
    }

    /// Continues with these, after all earlier completions were taken.
    pub fn go_on(&mut self, common: &Common, restarted: &[GroupId]) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if restarted.contains(&member.id) {
                member.has_failed = false;
                let number = member.pair.number();
                let forgotten = self.free_places(number);
                common.counts.unsent.fetch_add(forgotten, Ordering::Relaxed);
            }
        }
    }

    /// Whether there is room for another datagram.
    pub fn has_room(&self) -> bool {
        let outgoing = self.outgoing.as_ref();
        outgoing.is_some_and(|outgoing| outgoing.senders.contains(&None))
    }

    /// Sends a message to a group, if there is room and the adapter takes it.
    pub fn send(&mut self, common: &Common, id: GroupId, from: Source<'_>, immediate: u32) {
        let member = self.members.iter().find(|member| member.id == id);
        let (Some(member), Some(outgoing)) = (member, &mut self.outgoing) else {
            return;
        };
        let Some(place) = outgoing.senders.iter().position(Option::is_none) else {
            return count(&common.counts.unsent);
        };
        let pieces;
        let data = match from {
            Source::Inline(bytes) if bytes.len() <= member.pair.inline_max() as usize => {
                Data::Inline(bytes)
            }
            _ => {
                pieces = [outgoing.fill(place, from)];
                Data::Pieces(&pieces)
            }
        };
        let operation = Verb::SendTo {
            data,
            immediate: Some(immediate),
            address: member.group.address(),
            queue_pair: GROUP_QUEUE_PAIR,
            key: member.group.key(),
        };
        let number = member.pair.number();
        let entry = Entry {
            id: identity(EndpointId(number), Tag::Group, place as u64),
            signaled: true,
            fenced: false,
            operation,
        };
        match member.pair.post(&[entry]) {
            Ok(()) => outgoing.senders[place] = Some(number),
            Err(_) => count(&common.counts.unsent),
        }
    }

    /// A datagram has gone, or failed. If so, its queue pair has to be [stopped](Groups::stop) and made ready again.
    pub fn sent(&mut self, common: &Common, sender: EndpointId, place: u32, status: Status) {
        if status != Status::Success {
            count(&common.counts.unsent);
            let of_sender = |member: &&mut Member| member.pair.number() == sender.0;
            if let Some(member) = self.members.iter_mut().find(of_sender) {
                member.has_failed = true;
            }
        }
        let senders = self.outgoing.as_mut().map(|outgoing| &mut outgoing.senders);
        if let Some(found) = senders.and_then(|all| all.get_mut(place as usize))
            && *found == Some(sender.0)
        {
            *found = None;
        }
    }

    /// The group that a datagram was sent to, the bytes of its message and the word beside it; nothing if it was sent
    /// from here, or is none of ours. `header` is what stands before it.
    pub fn receive(
        &self,
        common: &Common,
        completion: &Completion,
        header: &[u8; GRH as usize],
    ) -> Option<(GroupId, u32, u32)> {
        let number = completion.queue_pair();
        let mut members = self.members.iter();
        let member = members.find(|member| member.pair.number() == number)?;
        let own = common.adapter().gid().gid;
        if completion.source() == number && comes_from(header, own) {
            return None;
        }
        let length = completion.length().checked_sub(GRH);
        match (length, completion.immediate(), completion.has_header()) {
            (Some(length), Some(immediate), true) if member.listens => {
                let is_attached = member.attached.is_some();
                is_attached.then_some((member.id, length, immediate))
            }
            _ => {
                count(&common.counts.strange);
                None
            }
        }
    }
}

impl Outgoing {
    fn new(common: &Common) -> Result<Outgoing, Error> {
        let bytes = common.adapter().port().mtu;
        let region = Region::memory(u64::from(SENDS) * u64::from(bytes), false)?;
        let length = region.length();
        Ok(Outgoing {
            memory: ::verbs::Registration::new(&common.domain, &region, 0, length, Rights::LOCAL)?,
            bytes,
            senders: vec![None; SENDS as usize],
        })
    }

    fn fill(&self, place: usize, from: Source<'_>) -> ::verbs::Piece<'_> {
        let start = place as u64 * u64::from(self.bytes);
        let region = self.memory.region();
        let mut at = start;
        match from {
            Source::Inline(bytes) => region.write(at, bytes),
            Source::Pieces(pieces) => {
                for piece in pieces {
                    let source = piece.registration.region();
                    region.copy_from(at, source, piece.offset, piece.length as usize);
                    at += u64::from(piece.length);
                }
            }
        }
        self.memory.piece(start, from.length() as u32)
    }
}
