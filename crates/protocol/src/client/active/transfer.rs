//! One-sided transfers in flight.

use operations::Bytes;

use super::{Client, Ticket};
use crate::UnitOptions;
use crate::defects::Defect;
use crate::map::NodeId;

/// A write that is not answered is sent so often; it lands once at most.
const TRIES: u32 = 4;

/// Bytes into or out of a member's memory, without its doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Member that owns the memory.
    pub to: NodeId,
    /// The key to it, which is checked when the transfer arrives.
    pub key: u64,
    /// Names the transfer. The transport lets one that comes again with its number and key land once only.
    pub wr_id: u64,
    /// It is executed after all reads that were sent to this memory before it.
    pub is_ordered: bool,
    /// Where in the image.
    pub offset: u64,
    /// Which way, and what.
    pub kind: TransferKind,
    /// The read that it is a part of, and where in its memory the bytes may land: see [`Client::submit_landing`].
    pub lands: Option<(Ticket, u32)>,
}

impl Transfer {
    /// Number of bytes that it contains or requests.
    pub fn length(&self) -> u64 {
        match &self.kind {
            TransferKind::Write(bytes) => bytes.len() as u64,
            TransferKind::Read(length) => u64::from(*length),
        }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// These bytes go into the memory.
    Write(Bytes),
    /// So many bytes come out of it.
    Read(u32),
}

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferOutcome {
    /// The bytes are in the memory.
    Written,
    /// The bytes that were there.
    Read(Bytes),
    /// The bytes have landed where [`Transfer::lands`] allows it. CRC32C of each block, as they are there.
    Landed(Vec<u32>),
    /// The key is not good there (any more): nothing was, or will be, done.
    Refused,
    /// The way to the memory is gone. Of a write it is not known whether it has landed, or will.
    Lost,
}

pub(in crate::client) struct UnderWay {
    pub run: Ticket,
    pub transfer: Transfer,
    sent_at: u64,
    tries: u32,
    /// A write that its run does not wait for any more. It is still sent, now and then, until it is answered: then it is
    /// certain that it will not land later.
    is_given_up: bool,
}

impl UnderWay {
    /// When it is sent again, or given up.
    pub fn due(&self, options: &UnitOptions) -> u64 {
        let pause = match self.is_given_up || options.reliable {
            true => options.heartbeat_ns,
            false => options.retry_ns,
        };
        self.sent_at + pause
    }
}

impl Client {
    /// A transfer has ended.
    pub fn handle_transfer(&mut self, now: u64, wr_id: u64, outcome: TransferOutcome) {
        if outcome == TransferOutcome::Lost && self.write_lost(now, wr_id) {
            return self.advance(now);
        }
        let Some(under_way) = self.active.transfers.remove(&wr_id) else {
            return;
        };
        let UnderWay { run, transfer, .. } = under_way;
        if outcome == TransferOutcome::Refused
            && self.active.keys.get(&transfer.to) == Some(&transfer.key)
        {
            self.active.keys.remove(&transfer.to);
        }
        match transfer.kind {
            TransferKind::Read(_) => self.arrived(now, run, wr_id, outcome),
            TransferKind::Write(_) => {
                let is_there = outcome == TransferOutcome::Written;
                self.written(run, transfer.to, is_there, under_way.is_given_up);
            }
        }
        self.advance(now);
    }

    /// A write may land later: it is given up, and sent again until it is answered. Whether it is a write.
    fn write_lost(&mut self, now: u64, wr_id: u64) -> bool {
        let found = self.active.transfers.get_mut(&wr_id);
        let is_write = |it: &&mut UnderWay| matches!(it.transfer.kind, TransferKind::Write(_));
        let Some(it) = found.filter(is_write) else {
            return false;
        };
        it.sent_at = now;
        if !std::mem::replace(&mut it.is_given_up, true) {
            let run = it.run;
            self.give_up(run);
        }
        true
    }

    pub(super) fn start(
        &mut self,
        now: u64,
        run: Ticket,
        to: NodeId,
        offset: u64,
        kind: TransferKind,
    ) -> u64 {
        self.next_number += 1;
        let wr_id = self.next_number;
        let key = self.active.keys.get(&to).copied().unwrap_or_default();
        let transfer = Transfer {
            to,
            key,
            wr_id,
            is_ordered: self.options.ordered_reads && matches!(kind, TransferKind::Read(_)),
            offset,
            kind,
            lands: None,
        };
        self.active.out.push_back(transfer.clone());
        let under_way = UnderWay {
            run,
            transfer,
            sent_at: now,
            tries: 1,
            is_given_up: false,
        };
        self.active.transfers.insert(wr_id, under_way);
        wr_id
    }

    /// The bytes of a transfer that was just started may land at this offset of the memory of its read.
    pub(super) fn let_land(&mut self, wr_id: u64, run: Ticket, at: u32) {
        let lands = Some((run, at));
        let out = self.active.out.iter_mut().rev();
        let mut started = out.take_while(|it| it.wr_id >= wr_id);
        if let Some(transfer) = started.find(|it| it.wr_id == wr_id) {
            transfer.lands = lands;
        }
    }

    /// Number of reads of this client in flight at a member.
    pub(super) fn reads_at(&self, node: NodeId) -> usize {
        let transfers = self.active.transfers.values();
        let is_read = |it: &Transfer| matches!(it.kind, TransferKind::Read(_)) && it.to == node;
        transfers.filter(|it| is_read(&it.transfer)).count()
    }

    /// Forgets the transfers of a run; what comes of them is of no interest.
    pub(super) fn drop_transfers(&mut self, run: Ticket) {
        self.active.transfers.retain(|_, it| it.run != run);
    }

    /// Retransmits transfers without an answer.
    pub(super) fn send_again(&mut self, now: u64) {
        let is_late = |it: &UnderWay| now >= it.due(&self.options);
        let transfers = self.active.transfers.iter();
        let late: Vec<u64> = transfers
            .filter(|(_, it)| is_late(it))
            .map(|(wr_id, _)| *wr_id)
            .collect();
        for wr_id in late {
            let Some(it) = self.active.transfers.get_mut(&wr_id) else {
                continue;
            };
            let (run, to) = (it.run, it.transfer.to);
            // A reliable transport sends again by itself.
            let is_reliable = self.options.reliable;
            if matches!(it.transfer.kind, TransferKind::Read(_)) {
                if is_reliable {
                    // Other reads go to other members, until this one gives its key again.
                    self.active.keys.remove(&to);
                }
                self.read_failed(run);
                continue;
            }
            it.sent_at = now;
            it.tries += 1;
            if it.tries <= TRIES && !is_reliable || it.is_given_up {
                self.active.out.push_back(it.transfer.clone());
            } else if self.defects.has(Defect::CommitBeforeCompletion) {
                self.active.transfers.remove(&wr_id);
                self.written(run, to, true, false);
            } else {
                it.is_given_up = true;
                self.give_up(run);
            }
        }
    }
}
