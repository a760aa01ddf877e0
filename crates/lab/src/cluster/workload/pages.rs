//! Reads through the pages that a client's machine keeps, as a program of a mount reads.

use protocol::client::{Client, Keep};
use protocol::wire::{Acknowledge, Outcome};

use super::{BLOCK, BLOCKS, History, Operation, Pending, Time, UNDER_WAY, Worker, answer, keys};

impl Worker {
    /// Reads a block of a file. Returns whether the cluster was asked for something.
    pub fn read_page(&mut self, now: Time, history: &mut History) -> bool {
        if self.pending.len() >= UNDER_WAY || !super::keeps(self.node - super::FIRST_CLIENT) {
            return false;
        }
        let read = Operation::Read {
            file: *self.chance.pick(&self.files),
            offset: self.chance.below(BLOCKS as usize) as u64 * BLOCK,
            length: 8,
            note_read: false,
        };
        if read
            .file()
            .is_some_and(|file| self.answering.is_unsent(file))
        {
            return false;
        }
        let asked = keys(&read, &self.wide).into_iter();
        let ids = asked.map(|(key, asked)| history.invoke(self.identity(), key, asked, now));
        let pending = Pending {
            ids: ids.collect(),
            operation: read.clone(),
            acknowledge: Acknowledge::Primary,
            invoked: now,
            stamp: 0,
            page: Some(read.clone()),
            window: None,
        };
        let Operation::Read { file, .. } = read else {
            return false;
        };
        if self.keeping.shows_pages(self.local(now), file.inode) {
            return self.finish_or_ask(now, pending, history);
        }
        self.to_ask.push(Pending {
            operation: Operation::Attributes { file },
            ..pending
        });
        true
    }

    /// Ends a read if the page is kept; otherwise the page is asked for.
    fn finish_or_ask(&mut self, now: Time, pending: Pending, history: &mut History) -> bool {
        let Some(read) = &pending.page else {
            return false;
        };
        if let Some(outcome) = self.keeping.page(read) {
            if let Some(answered) = answer(read, &outcome, &self.wide) {
                for id in &pending.ids {
                    history.complete(*id, answered, now);
                }
            }
            self.kept += 1;
            return false;
        }
        let operation = read.clone();
        self.to_ask.push(Pending {
            operation,
            ..pending
        });
        true
    }

    /// Asks for what reads of pages lack.
    pub(super) fn ask_for_pages(&mut self, local: u64, client: &mut Client) {
        for mut pending in std::mem::take(&mut self.to_ask) {
            let inode = pending.operation.file().map_or(0, |file| file.inode);
            pending.stamp = self.keeping.stamp(inode);
            let ticket = client.submit(local, pending.operation.clone(), pending.acknowledge);
            self.pending.insert(ticket, pending);
        }
    }

    /// An outcome that a read of a page has asked for may be kept.
    pub(super) fn keep_page(&mut self, pending: &Pending, outcome: &Outcome, keep: Keep) {
        match (&pending.operation, outcome.attributes) {
            (Operation::Attributes { file }, Some(attributes)) if outcome.is_done() => {
                let version = (attributes.generation, attributes.version);
                self.keeping.keep_attributes(
                    file.inode,
                    version,
                    keep,
                    pending.stamp,
                    &self.defects,
                );
            }
            (operation @ Operation::Read { .. }, _) if outcome.is_done() => {
                self.keeping.keep_page(operation, outcome, pending.stamp);
            }
            _ => {}
        }
    }

    /// The attributes were read for a page: goes on with the page.
    pub(super) fn attributes_read(
        &mut self,
        now: Time,
        pending: Pending,
        outcome: &Outcome,
        history: &mut History,
    ) {
        if outcome.is_done() {
            self.finish_or_ask(now, pending, history);
        }
    }
}
