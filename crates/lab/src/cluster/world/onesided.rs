//! One-sided transfers: they land when they land, whatever became of their sender, and without the member's doing.
//!
//! Now and then the way of one client's writes into one memory is stuck: they are not lost, but land when it is free
//! again, and it happens that the client is gone by then.

use std::collections::BTreeMap;

use operations::Bytes;
use pmem::Random;
use protocol::client::{Transfer, TransferKind, TransferOutcome};

use super::super::time::{MILLISECOND, SECOND, Time};
use super::{FIRST_CLIENT, World, WorldEvent};
use crate::reachable::Part;

const BLOCK: u32 = store::BLOCK as u32;
/// After how many of a thousand writes the way is stuck, how long at most, and how often the client ends meanwhile.
const STUCK_PERMILLE: u32 = 10;
const STUCK_NS: Time = 10 * SECOND;
const ENDS_PERMILLE: u32 = 300;
/// Greatest time to end all sessions and free their grants.
const FREED_WITHIN: Time = 8 * SECOND;

/// Greatest time until idle clients have returned their grants, with that of writes that are stuck.
const RETURNED_WITHIN: Time = STUCK_NS + 2 * SECOND;

/// The waiting sender of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sender {
    client: usize,
    incarnation: u64,
    wr_id: u64,
}

impl Sender {
    /// Number of the client.
    pub fn client(&self) -> usize {
        self.client
    }
}

/// A read is torn: each block is read at its own instant.
pub struct Gathered {
    blocks: Vec<Option<Bytes>>,
}

/// The ways of one-sided transfers.
pub struct Ways {
    /// Reads of which some blocks may have come.
    gathered: BTreeMap<Sender, Gathered>,
    /// Client and member between which writes are stuck, and until when.
    stuck: BTreeMap<(usize, u32), Time>,
    /// Client and member, and when the last of the reads between them arrives.
    last_read: BTreeMap<(usize, u32), Time>,
    random: Random,
}

impl Ways {
    /// Ways on which nothing is.
    pub fn new(seed: u64) -> Ways {
        Ways {
            gathered: BTreeMap::new(),
            stuck: BTreeMap::new(),
            last_read: BTreeMap::new(),
            random: Random::new(seed),
        }
    }

    /// This client's writes into this member's memory are stuck until then.
    pub fn stick(&mut self, client: usize, member: u32, until: Time) {
        self.stuck.insert((client, member), until);
    }
}

/// Something on its way to a member's memory, or back.
pub enum Flight {
    /// Arrives at the member; `block` is the part of a read.
    Out {
        sender: Sender,
        transfer: Transfer,
        block: usize,
    },
    /// The answer arrives at the client.
    Back {
        sender: Sender,
        outcome: TransferOutcome,
        block: usize,
    },
}

impl World {
    /// Ends all clients: when their sessions have ended, no block of their grants may be left.
    pub(super) fn end_clients(&mut self) -> Result<(), String> {
        let now = self.queue.now();
        for worker in &mut self.workers {
            worker.crash(now, &mut self.lost);
        }
        self.run_until_quiet(now, now + FREED_WITHIN)?;
        match self.granted_block() {
            Some(block) => Err(format!("block {block} is left in a grant")),
            None => Ok(()),
        }
    }

    /// Runs until no block is granted: no client writes any more.
    pub(super) fn wait_for_returns(&mut self) -> Result<(), String> {
        let mut at = self.queue.now();
        let end = at + RETURNED_WITHIN;
        while let Some(block) = self.granted_block() {
            if at >= end {
                return Err(format!("block {block} is kept in a grant"));
            }
            at += 100 * MILLISECOND;
            self.run_until(at)?;
        }
        Ok(())
    }

    fn granted_block(&self) -> Option<u64> {
        let primary = &self.machines[self.membership.valid().primary as usize];
        crate::reachable::grants(&primary.memory().region()).pop_first()
    }

    /// Starts the transfers of a client's machine.
    pub(super) fn start_transfers(&mut self, now: Time, client: usize) {
        let worker = &mut self.workers[client];
        let transfers = std::mem::take(&mut worker.transfers);
        let incarnation = worker.incarnation;
        for transfer in transfers {
            let sender = Sender {
                client,
                incarnation,
                wr_id: transfer.wr_id,
            };
            match &transfer.kind {
                TransferKind::Write(_) => self.start_write(now, sender, transfer),
                TransferKind::Read(length) => {
                    let length = *length;
                    self.start_read(now, sender, &transfer, length);
                }
            }
        }
    }

    fn start_write(&mut self, now: Time, sender: Sender, transfer: Transfer) {
        let TransferKind::Write(bytes) = &transfer.kind else {
            return;
        };
        let from = FIRST_CLIENT + sender.client as u32;
        let stuck_until = self.stuck_until(now, sender, transfer.to);
        for delivery in self.links.send(now, from, transfer.to, bytes) {
            let at = match stuck_until {
                Some(until) => delivery.at.max(until) + self.ways.random.between(0, MILLISECOND),
                None => delivery.at,
            };
            let transfer = Transfer {
                kind: TransferKind::Write(delivery.bytes.into()),
                ..transfer.clone()
            };
            let block = 0;
            let out = Flight::Out {
                sender,
                transfer,
                block,
            };
            self.queue.add(at, WorldEvent::Flight(out));
        }
    }

    /// Until when the way of a client's writes is stuck, if it is.
    fn stuck_until(&mut self, now: Time, sender: Sender, member: u32) -> Option<Time> {
        let Sender {
            client,
            incarnation,
            ..
        } = sender;
        let until = self.ways.stuck.get(&(client, member)).copied();
        if let Some(until) = until.filter(|until| *until > now) {
            return Some(until);
        }
        let random = &mut self.ways.random;
        if now >= self.setup.duration || !random.chance(STUCK_PERMILLE) {
            return None;
        }
        let until = now + random.between(MILLISECOND, STUCK_NS);
        if random.chance(ENDS_PERMILLE) {
            let at = now + random.between(0, MILLISECOND);
            let end = WorldEvent::EndClient {
                client,
                incarnation,
            };
            self.queue.add(at, end);
        }
        self.ways.stick(client, member, until);
        Some(until)
    }

    fn start_read(&mut self, now: Time, sender: Sender, transfer: &Transfer, length: u32) {
        let from = FIRST_CLIENT + sender.client as u32;
        let blocks = length.div_ceil(BLOCK) as usize;
        let gathered = Gathered {
            blocks: vec![None; blocks],
        };
        self.ways.gathered.insert(sender, gathered);
        for block in 0..blocks {
            let at = block as u32 * BLOCK;
            let part = Transfer {
                offset: transfer.offset + u64::from(at),
                kind: TransferKind::Read((length - at).min(BLOCK)),
                ..transfer.clone()
            };
            for delivery in self.links.send(now, from, transfer.to, &[]) {
                let last = self.ways.last_read.entry((sender.client, transfer.to));
                let last = last.or_default();
                let at = if transfer.is_ordered {
                    delivery.at.max(*last)
                } else {
                    delivery.at
                };
                *last = at.max(*last);
                let transfer = part.clone();
                let out = Flight::Out {
                    sender,
                    transfer,
                    block,
                };
                self.queue.add(at, WorldEvent::Flight(out));
            }
        }
    }

    /// Applies a transfer or an answer that arrives.
    pub(super) fn land(&mut self, now: Time, flight: Flight) -> Result<(), String> {
        match flight {
            Flight::Out {
                sender,
                transfer,
                block,
            } => {
                let member = transfer.to;
                if self.part_of(member as usize) == Part::Metadata {
                    return Err(format!(
                        "client {} reaches into member {member}, which has metadata only",
                        sender.client
                    ));
                }
                let is_in_sync = self.membership.valid().is_in_sync(member);
                let landed = self.machines[member as usize].land(&transfer, is_in_sync)?;
                if let Some(outcome) = landed {
                    self.answer_transfer(now, member, sender, outcome, block);
                }
            }
            Flight::Back {
                sender,
                outcome,
                block,
            } => self.transfer_ended(now, sender, outcome, block),
        }
        Ok(())
    }

    fn answer_transfer(
        &mut self,
        now: Time,
        member: u32,
        sender: Sender,
        outcome: TransferOutcome,
        block: usize,
    ) {
        let to = FIRST_CLIENT + sender.client as u32;
        let bytes = match &outcome {
            TransferOutcome::Read(bytes) => &bytes[..],
            _ => &[],
        };
        for delivery in self.links.send(now, member, to, bytes) {
            let outcome = match &outcome {
                TransferOutcome::Read(_) => TransferOutcome::Read(delivery.bytes.into()),
                other => other.clone(),
            };
            let back = Flight::Back {
                sender,
                outcome,
                block,
            };
            self.queue.add(delivery.at, WorldEvent::Flight(back));
        }
    }

    fn transfer_ended(
        &mut self,
        now: Time,
        sender: Sender,
        mut outcome: TransferOutcome,
        block: usize,
    ) {
        if let TransferOutcome::Read(bytes) = &mut outcome {
            let Some(gathered) = self.ways.gathered.get_mut(&sender) else {
                return;
            };
            gathered.blocks[block] = Some(std::mem::take(bytes));
            if gathered.blocks.iter().any(Option::is_none) {
                return;
            }
            *bytes = gathered.blocks.drain(..).flatten().flatten().collect();
        }
        self.ways.gathered.remove(&sender);
        let Sender {
            client,
            incarnation,
            wr_id,
        } = sender;
        if self.workers[client].incarnation == incarnation {
            self.client_step(now, client, |client, local| {
                client.handle_transfer(local, wr_id, outcome);
            });
        }
    }
}
