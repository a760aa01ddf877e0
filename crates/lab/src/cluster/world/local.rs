//! Local reads: a client's thread reads in the store of a member beside the member's own thread, and asks then whether the data may
//! be used. Anything may happen in between, since the thread may be suspended for long.

use pmem::Random;
use protocol::wire::Operation;
use server::LocalRead;

use super::super::time::{MILLISECOND, SECOND, Time};
use super::super::workload::local::Reading;
use super::{World, WorldEvent};

/// Distinguishes the random numbers of local reads from the others.
const LOCAL: u64 = 0x4c4f_4341;

/// A source of random numbers for local reads.
pub fn random(seed: u64) -> Random {
    Random::new(seed ^ LOCAL)
}

/// A read that was executed.
pub struct Executed {
    client: usize,
    member: usize,
    /// The process of the member.
    incarnation: u64,
    reading: Reading,
    read: LocalRead,
    data: Vec<u8>,
}

impl Executed {
    /// The member that runs in the same process as the client's thread.
    pub fn member(&self) -> u32 {
        self.member as u32
    }
}

impl World {
    /// Lets a client read in the member that runs in the same process.
    pub(super) fn read_locally(&mut self, now: Time, client: usize) {
        let member = client % self.machines.len();
        if self.is_paused(now, member as u32) {
            return;
        }
        let worker = &mut self.workers[client];
        let Some(reading) = worker.begin_to_read(now, &mut self.local, &mut self.history) else {
            return;
        };
        let Operation::Read {
            file,
            offset,
            length,
            ..
        } = reading.operation
        else {
            return;
        };
        let machine = &self.machines[member];
        let mut data = vec![0; length as usize];
        let Some(read) = machine.read_locally(reading.session, (file, offset), &mut data) else {
            return worker.end_reading(now, reading, None, &mut self.history);
        };
        data.truncate(read.count);
        let longest = [1, 1, MILLISECOND, MILLISECOND, 50 * MILLISECOND, 6 * SECOND];
        let most = *self.local.pick(&longest);
        let at = now + self.local.between(0, most);
        let executed = Executed {
            client,
            member,
            incarnation: machine.incarnation,
            reading,
            read,
            data,
        };
        self.queue
            .add(at, WorldEvent::LocalRead(Box::new(executed)));
    }

    /// The client's thread continues: it uses the data, or asks by message.
    pub(super) fn answer_locally(&mut self, now: Time, executed: Executed) {
        let machine = &self.machines[executed.member];
        let session = executed.reading.session;
        let may_answer = machine.incarnation == executed.incarnation
            && machine.may_answer(&executed.read, session, now);
        self.locally_read += usize::from(may_answer);
        let data = may_answer.then_some(executed.data);
        let worker = &mut self.workers[executed.client];
        worker.end_reading(now, executed.reading, data, &mut self.history);
    }
}
