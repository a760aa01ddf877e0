//! Data that a client's machine reads ahead, as a mount does for programs that read in order.

use std::collections::BTreeMap;

use pmem::Random;
use protocol::ahead::is_current;
use protocol::wire::{Acknowledge, Details, FileId, Operation, Outcome};

use super::{BLOCK, BLOCKS, History, Pending, Time, UNDER_WAY, Worker, answer, keys};

/// Distinguishes the random numbers of read-ahead from those of a client's work.
const AHEAD: u64 = 0x4148_4541;
/// Activities of a client of which one reads in order.
const READS_ONE_IN: usize = 3;

/// All blocks of a file, as they were read.
struct Window {
    /// Version of the file before.
    version: u64,
    data: Outcome,
}

/// What one process has read ahead.
pub(super) struct Ahead {
    windows: BTreeMap<FileId, Window>,
    random: Random,
}

impl Ahead {
    pub fn new(seed: u64) -> Ahead {
        Ahead {
            windows: BTreeMap::new(),
            random: Random::new(seed ^ AHEAD),
        }
    }

    /// The process has ended.
    pub fn clear(&mut self) {
        self.windows.clear();
    }

    /// A window has arrived. It is checked when it is used.
    pub fn put(&mut self, file: FileId, version: u64, outcome: &Outcome) {
        if outcome.is_done() {
            let data = outcome.clone();
            self.windows.insert(file, Window { version, data });
        }
    }
}

impl Worker {
    /// Reads a block from a window, or requests the window. Returns whether the cluster was asked for something.
    pub fn read_ahead(&mut self, now: Time, history: &mut History) -> bool {
        let is_able = self.client.is_some() && super::keeps(self.node - super::FIRST_CLIENT);
        if !is_able || self.ahead.random.below(READS_ONE_IN) > 0 {
            return false;
        }
        let file = *self.ahead.random.pick(&self.files);
        let offset = self.ahead.random.below(BLOCKS as usize) as u64 * BLOCK;
        if self.answering.is_unsent(file) {
            return false;
        }
        let leased = self.keeping.leased_version(self.local(now), file.inode);
        let window = self.ahead.windows.get(&file);
        if let Some(window) = window.filter(|it| is_current(it.version, leased, &self.defects)) {
            let found = block(&window.data, offset);
            self.use_window(now, file, offset, &found, history);
            return false;
        }
        let Some(version) = leased.filter(|_| self.pending.len() < UNDER_WAY) else {
            return false;
        };
        self.to_ask.push(Pending {
            ids: Vec::new(),
            operation: Operation::Read {
                file,
                offset: 0,
                length: (BLOCKS * BLOCK) as u32,
                note_read: false,
            },
            acknowledge: Acknowledge::Primary,
            invoked: now,
            stamp: 0,
            page: None,
            window: Some(version),
        });
        true
    }

    fn use_window(
        &mut self,
        now: Time,
        file: FileId,
        offset: u64,
        found: &Outcome,
        history: &mut History,
    ) {
        let read = Operation::Read {
            file,
            offset,
            length: 8,
            note_read: false,
        };
        for (key, asked) in keys(&read, &self.wide) {
            if let Some(answered) = answer(&read, found, &self.wide) {
                let id = history.invoke(self.identity(), key, asked, now);
                history.complete(id, answered, now);
            }
        }
        self.kept += 1;
    }
}

/// The first bytes of a block of a window, as a read of them returns.
fn block(window: &Outcome, offset: u64) -> Outcome {
    let data = window.data();
    let start = data.len().min(offset as usize);
    let end = data.len().min(offset as usize + 8);
    let data = data[start..end].to_vec().into();
    Outcome {
        details: Details::Data(data),
        ..window.clone()
    }
}
