//! One-sided reads at once, by a client that reaches the members' memory without a transfer.

use pmem::Random;
use protocol::client::AtOnce;
use protocol::wire::{Details, Operation, Outcome};

use super::{BLOCK, BLOCKS, History, Id, Response, Time, Worker, answer, keys};

/// A read at once that is noted, and may still count.
pub struct Reading {
    /// Copies that the client has planned.
    pub plan: AtOnce,
    /// Bytes that were copied so far.
    pub data: Vec<u8>,
    /// Whether all copied blocks have their checksums.
    pub is_right: bool,
    operation: Operation,
    /// Number of the client's process that reads.
    incarnation: u64,
    ids: Vec<Id>,
}

impl Worker {
    /// Plans to read a block, if its client may do so at once.
    pub fn plan_at_once(
        &mut self,
        now: Time,
        random: &mut Random,
        history: &mut History,
    ) -> Option<Reading> {
        let client = self.client.as_mut()?;
        let file = *random.pick(&self.files);
        let offset = random.below(BLOCKS as usize) as u64 * BLOCK;
        let mut plan = AtOnce::default();
        if !client.plan_at_once((file, offset), BLOCK as usize, false, &mut plan) {
            return None;
        }
        let operation = Operation::Read {
            file,
            offset,
            length: 8,
            note_read: false,
        };
        let client = self.identity();
        let asked = keys(&operation, &self.wide).into_iter();
        let ids = asked.map(|(key, asked)| history.invoke(client, key, asked, now));
        Some(Reading {
            plan,
            data: vec![0; BLOCK as usize],
            is_right: true,
            ids: ids.collect(),
            incarnation: self.incarnation,
            operation,
        })
    }

    /// The copies are made, with this version word, or have failed. Returns whether they count.
    pub fn end_at_once(
        &mut self,
        now: Time,
        reading: Reading,
        copied: Option<Option<u64>>,
        history: &mut History,
    ) -> bool {
        let local = self.clock.local(now);
        let is_here = self.incarnation == reading.incarnation;
        let client = self.client.as_mut().filter(|_| is_here);
        let copied = copied.filter(|_| reading.is_right);
        let counts = client.is_some_and(|client| match copied {
            Some(version) => client.counts_at_once(local, &reading.plan, version),
            None => {
                client.discard_at_once(&reading.plan);
                false
            }
        });
        let answered: Option<Response> = counts.then_some(()).and_then(|()| {
            let mut data = reading.data;
            data.truncate(reading.plan.count.min(8));
            let outcome = Outcome::with(Details::Data(data.into()));
            answer(&reading.operation, &outcome, &self.wide)
        });
        for id in reading.ids {
            match answered {
                Some(answered) => history.complete(id, answered, now),
                None => history.withdraw(id),
            }
        }
        counts
    }
}
