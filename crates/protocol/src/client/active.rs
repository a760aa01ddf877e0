//! A client that reaches into the members' memories itself.
//!
//! A write of whole blocks goes into blocks of the session's grant, at all members in sync, and one commit makes these
//! blocks a part of the file. A read takes the data from any member in sync and then the version word from the primary:
//! if it equals the layout's, and the blocks match the layout, the data was current. Under a lease of the file the primary
//! need not be asked. In all other cases the operation goes by message. A host that maps the members' memory reads
//! [at once](at_once).

mod at_once;
mod layouts;
mod leased;
mod read;
mod transfer;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use operations::WriteAt;

use super::{Client, Event, Keep, Mode, Pending, SessionState, Ticket};
use crate::map::NodeId;
use crate::wire::active::{BLOCK, COMMIT_MAX, Extent, Layout};
use crate::wire::{Acknowledge, Body, ErrorCode, Operation, Outcome};
pub use at_once::{AtOnce, AtOncePiece, Word};
use layouts::Layouts;
use read::Reading;
use transfer::UnderWay;
pub use transfer::{Transfer, TransferKind, TransferOutcome};
use write::{Unsettled, Writing};

/// After so many pauses without progress, an operation is done by message.
const PATIENCE: u64 = 10;

/// An operation on its way.
pub(super) enum Run {
    Write(Writing),
    Read(Reading),
    /// It is done by message now.
    ByMessage,
}

/// State of a client for accessing memories.
#[derive(Default)]
pub(super) struct Active {
    keys: BTreeMap<NodeId, u64>,
    /// Members with memory that is accessed without a network.
    near: BTreeSet<NodeId>,
    keys_asked_at: u64,
    alive_asked_at: u64,
    looked_at: u64,
    /// By this client's clock, there is no other primary before.
    valid_until: u64,
    /// Blocks of the grant that may be filled, and where they are in the image.
    free: BTreeMap<u64, u64>,
    /// Blocks of the grant below were listed once: the others of them are in use, or must not be used any more.
    listed: u64,
    /// When blocks were requested or filled last, since the grant was returned.
    used_at: Option<u64>,
    granting: Option<Ticket>,
    returning: Option<Ticket>,
    pub(super) layouts: Layouts,
    pub(super) runs: BTreeMap<Ticket, Run>,
    /// The request that is being submitted with memory for its data.
    landing: Option<Ticket>,
    /// Reads with data that has landed.
    landed: BTreeSet<Ticket>,
    /// Requests by message, and for which run each is.
    requests: BTreeMap<Ticket, Ticket>,
    transfers: BTreeMap<u64, UnderWay>,
    /// Number of reads at once that were planned.
    at_once: usize,
    /// Blocks of writes that went by message in the end.
    unsettled: BTreeMap<Ticket, Unsettled>,
    out: VecDeque<Transfer>,
}

impl Active {
    pub fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.transfers.is_empty()
    }

    /// Whether this client relies on there being one primary.
    pub fn relies_on_primary(&self) -> bool {
        !self.layouts.is_empty()
    }

    fn forget_epoch(&mut self) {
        self.valid_until = 0;
        self.layouts = Layouts::default();
    }
}

impl Client {
    /// Begins an operation if it is one that this client does itself: a read, or a write of whole blocks. A write that is
    /// acknowledged when it was sent is acknowledged when the primary has it: sending is all there is to it.
    pub(super) fn begin_run(
        &mut self,
        now: u64,
        ticket: Ticket,
        operation: &Operation,
        acknowledge: Acknowledge,
    ) -> bool {
        let Mode::ClientActive { write, read } = self.mode else {
            return false;
        };
        let run = match operation {
            Operation::Write {
                file,
                at: WriteAt::Offset(offset),
                data,
                drop_privileges,
            } if is_whole_blocks(*offset, data.len()) && data.len() >= write as usize => {
                let acknowledge = match acknowledge {
                    Acknowledge::Sent => Acknowledge::Primary,
                    other => other,
                };
                let at = (*file, *offset);
                let data = data.clone();
                Run::Write(Writing::new(now, at, data, *drop_privileges, acknowledge))
            }
            Operation::Read {
                file,
                offset,
                length,
                note_read,
            } if *length >= read && (!note_read || self.active.layouts.is_noted(*file, now)) => {
                let has_memory = self.active.landing == Some(ticket);
                Run::Read(Reading::new(now, (*file, *offset, *length), has_memory))
            }
            _ => return false,
        };
        self.active.runs.insert(ticket, run);
        true
    }

    /// Requests a read into memory of the user, which has `length` bytes, up to whole blocks. A transfer with [`Transfer::lands`] may
    /// put its bytes there. The outcome has the data all the same, unless [`Client::has_landed`]. The memory can be used otherwise when
    /// the read has ended and no such transfer is in flight.
    pub fn submit_landing(
        &mut self,
        now: u64,
        operation: Operation,
        acknowledge: Acknowledge,
    ) -> Ticket {
        self.active.landing = Some(self.next_number + 1);
        let ticket = self.submit(now, operation, acknowledge);
        self.active.landing = None;
        ticket
    }

    /// Whether the data of a read that has ended has landed, [`Outcome::count`] bytes. Asked once.
    pub fn has_landed(&mut self, ticket: Ticket) -> bool {
        self.active.landed.remove(&ticket)
    }

    /// Number of blocks of its grant that this client may fill.
    pub fn granted_blocks(&self) -> usize {
        self.active.free.len()
    }

    /// The next transfer to start.
    pub fn poll_transfer(&mut self) -> Option<Transfer> {
        self.active.out.pop_front()
    }

    /// Reads prefer these members from now on: their memory is accessed without a network.
    pub fn set_near(&mut self, members: impl IntoIterator<Item = NodeId>) {
        self.active.near = members.into_iter().collect();
    }

    /// A member's memory can be accessed with this key from now on. A host with a fabric that needs more than the key
    /// for that gets the messages with keys itself ([`Body::Key`]), and calls this later.
    pub fn handle_key(&mut self, member: NodeId, key: u64) {
        self.active.keys.insert(member, key);
    }

    /// A member's memory cannot be accessed any more. Transfers in flight there have to be reported.
    pub fn forget_key(&mut self, member: NodeId) {
        self.active.keys.remove(&member);
    }

    /// The primary has answered at `now` a message sent at `asked_at`: there was no other for this long.
    pub(super) fn extend_validity(&mut self, now: u64, asked_at: u64, valid_ns: u64) {
        // An answer without a question is not accepted.
        if asked_at <= now {
            let until = asked_at.saturating_add(valid_ns);
            self.active.valid_until = self.active.valid_until.max(until);
        }
    }

    /// Another primary: answers of the one before do not hold any more.
    pub(super) fn epoch_changed(&mut self) {
        self.active.forget_epoch();
        let reading = |run: &mut Run| match run {
            Run::Read(reading) => reading.start_over(),
            _ => false,
        };
        let runs = self.active.runs.iter_mut();
        let restarted: BTreeSet<_> = runs
            .filter_map(|(ticket, run)| reading(run).then_some(*ticket))
            .collect();
        let transfers = &mut self.active.transfers;
        transfers.retain(|_, it| !restarted.contains(&it.run));
    }

    /// A member that has left the unit for good does not answer, and its memory is not the unit's any more: accesses
    /// there, or their absence, have no effect.
    pub(super) fn members_changed(&mut self, now: u64) {
        let members = &self.map.members;
        self.active.keys.retain(|node, _| members.contains(node));
        let transfers = self.active.transfers.iter();
        let void: Vec<u64> = transfers
            .filter(|(_, it)| !members.contains(&it.transfer.to))
            .map(|(wr_id, _)| *wr_id)
            .collect();
        for wr_id in void {
            self.handle_transfer(now, wr_id, TransferOutcome::Refused);
        }
    }

    /// Everything in flight fails. Returns the requests that belonged to it.
    pub(super) fn end_active(&mut self) -> BTreeSet<Ticket> {
        let active = std::mem::take(&mut self.active);
        self.active.near = active.near;
        // Their ends are perhaps not delivered yet.
        self.active.landed = active.landed;
        for ticket in active.runs.into_keys() {
            self.tell_done(ticket, Outcome::failed(ErrorCode::SessionEnded));
        }
        let own = active.granting.into_iter().chain(active.returning);
        let requests: BTreeSet<_> = active.requests.into_keys().chain(own).collect();
        // Blocks are counted from the start again in the next session's grant.
        self.queue.retain(|(ticket, ..)| !requests.contains(ticket));
        requests
    }

    /// How a request ended: its user is notified, or the run that it is for continues.
    pub(super) fn tell(&mut self, now: u64, ticket: Ticket, outcome: Outcome, keep: Keep) {
        if self.active.granting == Some(ticket) {
            self.active.granting = None;
            return self.granted(&outcome);
        }
        if self.active.returning == Some(ticket) {
            return self.returned(now, &outcome);
        }
        let Some(run) = self.active.requests.remove(&ticket) else {
            return self.events.push_back(Event::Done {
                ticket,
                outcome,
                keep,
            });
        };
        match self.active.runs.get(&run) {
            Some(Run::Write(_)) => self.committed(run, outcome),
            Some(Run::Read(_)) => self.laid_out(now, run, &outcome, keep),
            _ => self.finish(run, outcome),
        }
    }

    fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        self.active.runs.remove(&ticket);
        self.tell_done(ticket, outcome);
    }

    /// Requests by message what a run needs.
    fn request(&mut self, run: Ticket, operation: Operation, acknowledge: Acknowledge) {
        self.next_number += 1;
        let ticket = self.next_number;
        self.active.requests.insert(ticket, run);
        self.queue.push_back((ticket, operation, acknowledge));
    }

    /// The replay of a request: a commit's data may be missing at the new primary, so it is replayed as a write.
    ///
    /// An appending write is replayed at the offset that its user received: others may have appended before it, and
    /// their writes may be lost.
    pub(super) fn replayed_as(&self, pending: &Pending, outcome: &Outcome) -> Arc<Operation> {
        let run = self.active.requests.get(&pending.ticket);
        let mut replayed = match run.and_then(|run| self.active.runs.get(run)) {
            Some(Run::Write(writing)) => Arc::new(writing.by_message()),
            _ => pending.operation.clone(),
        };
        let at_end = |operation: &Operation| {
            matches!(
                operation,
                Operation::Write {
                    at: WriteAt::End,
                    ..
                }
            )
        };
        if at_end(&replayed)
            && let Operation::Write { at, .. } = Arc::make_mut(&mut replayed)
        {
            *at = WriteAt::Offset(outcome.offset);
        }
        replayed
    }

    /// Takes whatever steps can be taken.
    pub(super) fn advance_active(&mut self, now: u64) {
        self.return_unused(now);
        if self.active.is_idle() {
            return;
        }
        self.active.looked_at = now;
        self.send_again(now);
        let runs: Vec<_> = self.active.runs.keys().copied().collect();
        for ticket in runs {
            match self.active.runs.get(&ticket) {
                Some(Run::Write(_)) => self.begin_write(now, ticket),
                Some(Run::Read(_)) => self.begin_read(now, ticket),
                _ => {}
            }
        }
    }

    /// Time of the next check.
    pub(super) fn active_timeout(&self) -> Option<u64> {
        self.session().filter(|_| self.is_resumed)?;
        let active = &self.active;
        let runs = (!active.runs.is_empty()).then_some(active.looked_at + self.options.retry_ns);
        let transfers = active.transfers.values();
        let transfers = transfers.map(|it| it.due(&self.options));
        transfers.chain(runs).chain(self.return_due()).min()
    }

    /// Full members in sync with accessible memories, if the primary's is accessible. Requests missing keys: no
    /// operation waits for them.
    fn reached(&mut self, now: u64) -> Option<Vec<NodeId>> {
        let mut members = self.map.full_in_sync();
        let count = members.len();
        let keys = &self.active.keys;
        members.retain(|node| keys.contains_key(node));
        if members.len() < count
            && let SessionState::Open { number } = self.session
            && now >= self.active.keys_asked_at + self.options.handshake_retry_ns()
        {
            self.active.keys_asked_at = now;
            self.send(number, 0, Body::OpenKeys);
        }
        members.contains(&self.map.primary).then_some(members)
    }

    fn is_impatient(&self, now: u64, since: u64) -> bool {
        now >= since + PATIENCE * self.options.retry_ns
    }
}

fn is_whole_blocks(offset: u64, length: usize) -> bool {
    let blocks = length / BLOCK as usize;
    offset.is_multiple_of(BLOCK)
        && length.is_multiple_of(BLOCK as usize)
        && (1..=COMMIT_MAX).contains(&blocks)
}
