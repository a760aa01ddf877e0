//! Writing into granted blocks, and committing them.

use std::ops::Range;

use operations::{Bytes, WriteAt};

use super::transfer::TransferKind;
use super::{BLOCK, Extent, Layout};
use super::{Client, Run, Ticket};
use crate::defects::Defect;
use crate::map::NodeId;
use crate::wire::{Acknowledge, ErrorCode, FileId, Operation, Outcome};
use pmem::checksum::crc32c;

/// Blocks that are asked for at once, at least.
const GRANT_LEAST: u64 = 4;

/// A write on its way.
pub(in crate::client) struct Writing {
    file: FileId,
    offset: u64,
    data: Bytes,
    drop_privileges: Option<bool>,
    acknowledge: Acknowledge,
    since: u64,
    /// The blocks that it fills, once it has begun: number in the grant, and place in the image.
    blocks: Vec<(u64, u64)>,
    /// The first and the last of its transfers.
    wr_ids: [u64; 2],
    /// Transfers that it waits for.
    left: usize,
    /// Transfers that were given up, and not answered since.
    late: usize,
    /// The primary does not have all of it.
    is_missing: bool,
}

/// Blocks into which transfers may be on their way still, and land whenever they like: they must not become a part of a
/// file, nor be filled with other data, before these transfers are answered or the key is closed.
pub(in crate::client) struct Unsettled {
    transfers: usize,
    blocks: Vec<(u64, u64)>,
}

impl Writing {
    pub fn new(
        now: u64,
        (file, offset): (FileId, u64),
        data: Bytes,
        drop_privileges: Option<bool>,
        acknowledge: Acknowledge,
    ) -> Writing {
        Writing {
            file,
            offset,
            data,
            drop_privileges,
            acknowledge,
            since: now,
            blocks: Vec::new(),
            wr_ids: [0; 2],
            left: 0,
            late: 0,
            is_missing: false,
        }
    }

    /// The same as an ordinary write.
    pub fn by_message(&self) -> Operation {
        Operation::Write {
            file: self.file,
            at: WriteAt::Offset(self.offset),
            data: self.data.clone(),
            drop_privileges: self.drop_privileges,
        }
    }

    fn commit(&self) -> Operation {
        let blocks = self.data.chunks(BLOCK as usize);
        Operation::Commit {
            file: self.file,
            offset: self.offset,
            wr_ids: self.wr_ids,
            grant_block: self.blocks.first().map_or(0, |(number, _)| *number),
            checksums: blocks.map(crc32c).collect(),
            size: self.offset + self.data.len() as u64,
            drop_privileges: self.drop_privileges,
        }
    }

    /// Pieces of the write: one for each run of blocks that are consecutive in the image.
    fn pieces(&self) -> Vec<(u64, Bytes)> {
        let mut runs: Vec<(u64, Range<u64>)> = Vec::new();
        for ((_, at), start) in self.blocks.iter().zip((0..).step_by(BLOCK as usize)) {
            match runs.last_mut() {
                Some((first, run)) if *first + (run.end - run.start) == *at => run.end += BLOCK,
                _ => runs.push((*at, start..start + BLOCK)),
            }
        }
        let piece = |run: Range<u64>| self.data.slice(run.start as usize..run.end as usize);
        runs.into_iter().map(|(at, run)| (at, piece(run))).collect()
    }
}

impl Client {
    fn writing(&mut self, ticket: Ticket) -> Option<&mut Writing> {
        match self.active.runs.get_mut(&ticket) {
            Some(Run::Write(writing)) => Some(writing),
            _ => None,
        }
    }

    /// Begins a write if there are keys and blocks for it.
    pub(super) fn begin_write(&mut self, now: u64, ticket: Ticket) {
        let Some(writing) = self.writing(ticket) else {
            return;
        };
        if !writing.blocks.is_empty() {
            return;
        }
        let (since, count) = (writing.since, writing.data.len() as u64 / BLOCK);
        if self.is_impatient(now, since) || count > u64::from(self.options.grant_blocks) {
            return self.write_by_message(ticket);
        }
        let Some(members) = self.reached(now) else {
            return self.write_by_message(ticket);
        };
        self.active.used_at = Some(now);
        let Some(blocks) = self.take_blocks(count) else {
            return self.ask_for_grant(count);
        };
        if self.find_blocks(count).is_none() {
            // So that the next one like this need not wait.
            self.ask_for_grant(count);
        }
        let Some(writing) = self.writing(ticket) else {
            return;
        };
        writing.blocks = blocks;
        let pieces = writing.pieces();
        writing.left = pieces.len() * members.len();
        let first = self.next_number + 1;
        for member in members {
            for (offset, bytes) in &pieces {
                let kind = TransferKind::Write(bytes.clone());
                self.start(now, ticket, member, *offset, kind);
            }
        }
        let last = self.next_number;
        if let Some(writing) = self.writing(ticket) {
            writing.wr_ids = [first, last];
        }
    }

    /// The first of so many blocks of the grant that follow one another.
    fn find_blocks(&self, count: u64) -> Option<u64> {
        let (mut first, mut found) = (0, 0);
        for number in self.active.free.keys().copied() {
            if number != first + found {
                (first, found) = (number, 0);
            }
            found += 1;
            if found == count {
                return Some(first);
            }
        }
        None
    }

    fn take_blocks(&mut self, count: u64) -> Option<Vec<(u64, u64)>> {
        let first = self.find_blocks(count)?;
        let free = &mut self.active.free;
        let taken = (first..first + count).map(|it| Some((it, free.remove(&it)?)));
        taken.collect()
    }

    /// Asks for blocks for two writes like this one, or as many as the grant has room for.
    fn ask_for_grant(&mut self, count: u64) {
        let asks_early = self.defects.has(Defect::AskWhileReturning);
        let is_returning = self.active.returning.is_some() && !asks_early;
        if self.active.granting.is_none() && !is_returning {
            self.next_number += 1;
            let most = u64::from(self.options.grant_blocks);
            let blocks = (2 * count).max(GRANT_LEAST).min(most) as u32;
            let request = Operation::Grant { blocks };
            self.active.granting = Some(self.next_number);
            self.queue
                .push_back((self.next_number, request, Acknowledge::All));
        }
    }

    /// When the grant is returned, if nothing uses it until then.
    pub(super) fn return_due(&self) -> Option<u64> {
        let active = &self.active;
        let is_used = active.runs.values().any(|it| matches!(it, Run::Write(_)));
        let is_settled = !is_used && active.unsettled.is_empty();
        let ignores = self.defects.has(Defect::ReturnUnsettled);
        let asks = active.granting.or(active.returning).is_some();
        let may_return = (is_settled || ignores) && !asks;
        let due = active.used_at?.saturating_add(self.options.grant_unused_ns);
        (may_return && !self.defects.has(Defect::KeepUnusedGrants)).then_some(due)
    }

    /// Returns the grant if it is not used: no transfer into its blocks can be in flight then.
    pub(super) fn return_unused(&mut self, now: u64) {
        if self.return_due().is_some_and(|due| now >= due) {
            self.active.used_at = None;
            self.active.free.clear();
            self.next_number += 1;
            self.active.returning = Some(self.next_number);
            self.queue
                .push_back((self.next_number, Operation::Return, Acknowledge::All));
        }
    }

    /// A return was answered. One that has failed is repeated.
    pub(super) fn returned(&mut self, now: u64, outcome: &Outcome) {
        self.active.returning = None;
        if !outcome.is_done() {
            self.active.used_at = Some(now);
        }
    }

    /// An answer lists all of the grant. New blocks in it may be filled.
    pub(super) fn granted(&mut self, outcome: &Outcome) {
        let grant = Layout::decode(outcome.data());
        if !outcome.is_done() || grant.is_err() {
            let runs = self.active.runs.iter();
            let waits = |run: &Run| matches!(run, Run::Write(it) if it.blocks.is_empty());
            let waiting: Vec<_> = runs
                .filter(|(_, run)| waits(run))
                .map(|(ticket, _)| *ticket)
                .collect();
            for ticket in waiting {
                self.write_by_message(ticket);
            }
            return;
        }
        let listed = self.active.listed;
        for extent in grant.iter().flat_map(|grant| &grant.extents) {
            for (number, at) in blocks_of(extent).filter(|(number, _)| *number >= listed) {
                self.active.free.insert(number, at);
                self.active.listed = self.active.listed.max(number + 1);
            }
        }
    }

    /// A transfer has ended: the data is there, or it is certain that it is not and will not be.
    pub(super) fn written(
        &mut self,
        ticket: Ticket,
        member: NodeId,
        is_there: bool,
        was_given_up: bool,
    ) {
        let primary = self.map.primary;
        let Some(writing) = self.writing(ticket) else {
            return self.settle(ticket);
        };
        let count = if was_given_up {
            &mut writing.late
        } else {
            &mut writing.left
        };
        *count -= 1;
        // The other members fetch missing data from the primary.
        writing.is_missing |= !is_there && member == primary;
        self.go_on(ticket);
    }

    /// A transfer was not answered, however often it was sent.
    pub(super) fn give_up(&mut self, ticket: Ticket) {
        if let Some(writing) = self.writing(ticket) {
            writing.left -= 1;
            writing.late += 1;
            self.go_on(ticket);
        }
    }

    /// Commits a write if all its transfers have ended. If some were given up it goes by message.
    fn go_on(&mut self, ticket: Ticket) {
        let Some(writing) = self.writing(ticket).filter(|it| it.left == 0) else {
            return;
        };
        if writing.late > 0 {
            let unsettled = Unsettled {
                transfers: writing.late,
                blocks: writing.blocks.clone(),
            };
            if self.defects.has(Defect::RefillBeforeCompletion) {
                self.give_back(ticket);
            } else {
                self.active.unsettled.insert(ticket, unsettled);
            }
            self.write_by_message(ticket);
        } else if writing.is_missing {
            self.give_back(ticket);
            self.write_by_message(ticket);
        } else {
            let (commit, acknowledge) = (writing.commit(), writing.acknowledge);
            self.request(ticket, commit, acknowledge);
        }
    }

    /// A transfer has ended that its run did not wait for. When all have, the blocks may be filled again.
    fn settle(&mut self, ticket: Ticket) {
        if let Some(unsettled) = self.active.unsettled.get_mut(&ticket) {
            unsettled.transfers -= 1;
            if unsettled.transfers == 0 {
                let settled = self.active.unsettled.remove(&ticket);
                let blocks = settled.into_iter().flat_map(|it| it.blocks);
                self.active.free.extend(blocks);
            }
        }
    }

    /// A commit was answered.
    pub(super) fn committed(&mut self, ticket: Ticket, outcome: Outcome) {
        if outcome.error == Some(ErrorCode::Again) {
            self.give_back(ticket);
            self.write_by_message(ticket);
        } else {
            self.one_sided.0 += u64::from(outcome.is_done());
            self.finish(ticket, outcome);
        }
    }

    /// The blocks may be filled again.
    fn give_back(&mut self, ticket: Ticket) {
        if let Some(writing) = self.writing(ticket) {
            let blocks = std::mem::take(&mut writing.blocks);
            self.active.free.extend(blocks);
        }
    }

    fn write_by_message(&mut self, ticket: Ticket) {
        if let Some(Run::Write(writing)) = self.active.runs.insert(ticket, Run::ByMessage) {
            self.request(ticket, writing.by_message(), writing.acknowledge);
        }
    }
}

fn blocks_of(extent: &Extent) -> impl Iterator<Item = (u64, u64)> {
    let count = u64::from(extent.blocks);
    let (first, at) = (extent.offset / BLOCK, extent.image_offset);
    (0..count).map(move |index| (first + index, at + index * BLOCK))
}
