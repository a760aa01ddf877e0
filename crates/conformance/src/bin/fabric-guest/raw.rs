//! The plainest use of queue pairs: a limit for the transport, and a peer that may send anything.

use std::sync::Arc;
use std::time::Duration;

use pmem::Region;
use verbs::{
    Completion, CompletionQueue, Data, Device, Domain, Patience, QueuePair, Queues, Receive,
    Registration, Request, Rights, Status, Verb, Wanted,
};

pub const LENGTH: u64 = 1 << 20;
const DEPTH: u32 = 128;

/// One end, with memory that the other one may reach.
pub struct RawEnd {
    pub pair: Arc<QueuePair>,
    pub memory: Arc<Registration>,
    pub completions: Arc<CompletionQueue>,
    room: Vec<Completion>,
}

impl RawEnd {
    pub fn new(device: &str) -> RawEnd {
        let wanted = Wanted {
            device: Some(device.to_owned()),
            ..Wanted::default()
        };
        let device = Device::open(&wanted).unwrap();
        let domain = Domain::new(&device).unwrap();
        let completions = CompletionQueue::new(&device, 4 * DEPTH).unwrap();
        let queues = Queues {
            send: completions.clone(),
            receive: completions.clone(),
            shared: None,
            depth: DEPTH,
            inline: 128,
        };
        let pair = QueuePair::reliable(&domain, &queues).unwrap();
        let region = Region::memory(LENGTH, false).unwrap();
        let rights = Rights::READ | Rights::WRITE;
        let memory = Registration::new(&domain, &region, 0, LENGTH, rights).unwrap();
        RawEnd {
            pair,
            memory,
            completions,
            room: vec![Completion::default(); 32],
        }
    }

    pub fn post(&self, signaled: bool, operation: Verb<'_>) {
        let request = Request {
            id: 1,
            signaled,
            fenced: false,
            operation,
        };
        self.pair.post(&[request]).unwrap();
    }

    pub fn receive(&self) {
        let receive = Receive { id: 2, into: &[] };
        self.pair.post_receives(&[receive]).unwrap();
    }

    /// Takes the completions, and returns their number: requests, and arrivals.
    pub fn poll(&mut self) -> (u64, u64) {
        let (mut done, mut come) = (0, 0);
        for completion in self.completions.poll(&mut self.room).unwrap() {
            assert_eq!(completion.status(), Status::Success);
            match completion.id() {
                1 => done += 1,
                _ => come += 1,
            }
        }
        (done, come)
    }

    /// The same, and if there is nothing, sleeps until there is.
    pub fn wait(&mut self, most: Duration) -> u64 {
        let done = self.poll().0;
        if done > 0 {
            return done;
        }
        self.completions.arm().unwrap();
        let done = self.poll().0;
        if done == 0 {
            self.completions.wait(most.as_millis() as u32).unwrap();
        }
        done
    }

    pub fn write(&self, length: u32, to: &RawEnd, immediate: Option<u32>) {
        let pieces = [self.memory.piece(0, length)];
        let operation = Verb::Write {
            data: Data::Pieces(&pieces),
            remote: to.memory.remote(0),
            immediate,
        };
        self.post(true, operation);
    }
}

pub fn connected() -> (RawEnd, RawEnd) {
    let (near, far) = (RawEnd::new("rxe1"), RawEnd::new("rxe2"));
    let patience = Patience::default();
    far.pair.connect(&near.pair.peer(), &patience).unwrap();
    near.pair.connect(&far.pair.peer(), &patience).unwrap();
    (near, far)
}
