//! Reads in the primary's store that bypass the protocol, as a mount inside the primary's process makes them.

use pmem::Random;
use protocol::Defect;
use protocol::wire::{Details, Operation, Outcome};

use super::{BLOCK, BLOCKS, History, Id, Response, Time, Worker, answer, keys};

/// A local read that is noted, and its answer may still come.
pub struct Reading {
    /// The read that the session executes.
    pub operation: Operation,
    /// The session that reads.
    pub session: u64,
    /// Number of the client's process that reads.
    pub incarnation: u64,
    ids: Vec<Id>,
}

impl Worker {
    /// Begins to read a block, if its client may read without a message.
    pub fn begin_to_read(
        &mut self,
        now: Time,
        random: &mut Random,
        history: &mut History,
    ) -> Option<Reading> {
        let session = self.client.as_ref()?.may_read_locally()?;
        let file = *random.pick(&self.files);
        // What it has answered itself is read behind it.
        if self.answering.is_unsent(file) && !self.defects.has(Defect::SkipAnswered) {
            return None;
        }
        let operation = Operation::Read {
            file,
            offset: random.below(BLOCKS as usize) as u64 * BLOCK,
            length: 8,
            note_read: false,
        };
        let client = self.identity();
        let asked = keys(&operation, &self.wide).into_iter();
        let ids = asked.map(|(key, asked)| history.invoke(client, key, asked, now));
        Some(Reading {
            session,
            incarnation: self.incarnation,
            ids: ids.collect(),
            operation,
        })
    }

    /// The read has ended: with data, or without an answer.
    pub fn end_reading(
        &mut self,
        now: Time,
        reading: Reading,
        data: Option<Vec<u8>>,
        history: &mut History,
    ) {
        let is_here = self.is_up() && self.incarnation == reading.incarnation;
        let answered: Option<Response> = data.filter(|_| is_here).and_then(|data| {
            let outcome = Outcome::with(Details::Data(data.into()));
            answer(&reading.operation, &outcome, &self.wide)
        });
        for id in reading.ids {
            match answered {
                Some(answered) => history.complete(id, answered, now),
                None => history.withdraw(id),
            }
        }
    }
}
