//! Connections that are cut at random moments, under operations of all kinds in both directions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fabric::tcp::Tcp;
use fabric::{
    Access, Device, EndpointId, Event, Queue, QueueOptions, Refusal, Registration, RemoteRegion,
    Source, Work, WorkRequest,
};
use pmem::Region;

use super::cut::{self, Cut};
use super::{PATIENCE, join};

/// Operations of each side.
const COUNT: u64 = 50_000;
/// Bytes that a connection lives for, at most.
const LONGEST: i64 = 4_000_000;
/// Memory of each side: slots that are written and read, and one word that is counted.
const SLOTS: u64 = 32;
const SLOT_BYTES: u64 = 16 << 10;
const WORD: u64 = SLOTS * SLOT_BYTES;
const SPACE: u64 = WORD + 64;

struct Side {
    device: Tcp,
    queue: Queue,
    endpoint: EndpointId,
    own: Registration,
    buffer: Registration,
    remote: Option<RemoteRegion>,
    state: u64,
    posted: u64,
    /// State of each slot of the other side: its contents, and the number of its unfinished reads.
    slots: Vec<(u8, u32)>,
    counted: u64,
    sent: u64,
    received: u64,
    /// Expected completions: identity, value, and for reads the slot.
    awaited: VecDeque<(u64, u64, Option<u64>)>,
}

impl Side {
    fn new(cuts: &Arc<AtomicU64>) -> Side {
        let device = Tcp::new(cut::options());
        let transport = Cut::new(device.open().unwrap(), LONGEST, cuts.clone());
        let queue = Queue::over(&device, Box::new(transport), QueueOptions::default()).unwrap();
        let memory = |bytes, access| {
            let region = Region::memory(bytes, false).unwrap();
            device.register(&region, access).unwrap()
        };
        let (own, buffer) = (memory(SPACE, Access::ALL), memory(2 * WORD, Access::LOCAL));
        Side {
            device,
            queue,
            endpoint: EndpointId(0),
            own,
            buffer,
            remote: None,
            state: 1,
            posted: 0,
            slots: vec![(0, 0); SLOTS as usize],
            counted: 0,
            sent: 0,
            received: 0,
            awaited: VecDeque::new(),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }

    /// Posts one operation if there is room.
    fn post(&mut self) {
        let id = self.posted;
        let slot = self.random(SLOTS);
        let kind = self.random(4);
        let long = self.random(8) == 0;
        let length = if long { SLOT_BYTES as u32 } else { 300 };
        let remote = self.remote.unwrap();
        let buffer = self.buffer.clone();
        let (content, reads) = self.slots[slot as usize];
        let next = content.wrapping_add(1);
        let from = [buffer.piece(slot * SLOT_BYTES, SLOT_BYTES as u32)];
        let into = [
            buffer.piece(WORD + slot * SLOT_BYTES, 100),
            buffer.piece(WORD + slot * SLOT_BYTES + 100, length - 100),
        ];
        let text = self.sent.to_le_bytes();
        let operation = match kind {
            // Requests in flight must stay as they are: a slot is rewritten only once all are done.
            0 if reads == 0 && self.queue.outstanding(self.endpoint) == 0 => {
                let bytes = vec![next; SLOT_BYTES as usize];
                buffer.region().write(slot * SLOT_BYTES, &bytes);
                Work::Write {
                    from: Source::Pieces(&from),
                    to: remote.at(slot * SLOT_BYTES),
                    immediate: None,
                }
            }
            1 if reads == 0 => Work::Read {
                into: &into,
                from: remote.at(slot * SLOT_BYTES),
            },
            2 => Work::FetchAndAdd {
                at: remote.at(WORD),
                addend: 1,
            },
            _ => Work::Send {
                from: Source::Inline(&text),
                immediate: None,
            },
        };
        match self
            .queue
            .post(self.endpoint, &WorkRequest::new(id, operation))
        {
            Ok(()) => {}
            Err(Refusal::Held) => return,
            Err(refusal) => panic!("{refusal}"),
        }
        self.posted += 1;
        let (value, read) = match operation {
            Work::Read { .. } => {
                self.slots[slot as usize].1 += 1;
                (0, Some(slot << 32 | u64::from(length)))
            }
            Work::FetchAndAdd { .. } => {
                self.counted += 1;
                (self.counted - 1, None)
            }
            Work::Send { .. } => {
                self.sent += 1;
                (0, None)
            }
            _ => {
                self.slots[slot as usize].0 = next;
                (0, None)
            }
        };
        self.awaited.push_back((id, value, read));
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        self.queue.poll(events);
        for event in events.drain(..) {
            match event {
                Event::Message(message) => {
                    assert_eq!(message.to_vec(), self.received.to_le_bytes());
                    self.received += 1;
                }
                Event::Done(done) => {
                    let (id, value, read) = self.awaited.pop_front().unwrap();
                    assert_eq!((done.id.0, done.outcome), (id, Ok(value)));
                    if let Some(read) = read {
                        let (slot, length) = ((read >> 32) as usize, read as u32 as usize);
                        let mut bytes = vec![0; length];
                        let at = WORD + slot as u64 * SLOT_BYTES;
                        self.buffer.region().read(at, &mut bytes);
                        let (content, reads) = &mut self.slots[slot];
                        assert!(bytes.iter().all(|byte| byte == content), "slot {slot}");
                        *reads -= 1;
                    }
                }
                Event::Lost(_, failure) => panic!("{failure}"),
            }
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_happens_twice_when_connections_are_cut() {
    let cuts = Arc::new(AtomicU64::new(0));
    let (mut near, mut far) = (Side::new(&cuts), Side::new(&cuts));
    far.state = 77;
    (near.endpoint, far.endpoint) = join(&mut near.queue, &mut far.queue);
    for (one, other) in [(0, 1), (1, 0)] {
        let sides = [&mut near, &mut far];
        let memory = sides[one].own.clone();
        let endpoint = sides[one].endpoint;
        let export = sides[one].queue.export(endpoint, &memory).unwrap();
        let endpoint = sides[other].endpoint;
        sides[other].remote = Some(sides[other].queue.import(endpoint, export).unwrap());
    }
    let mut events = Vec::new();
    let mut progress = (0, Instant::now());
    let finished = |side: &Side| side.posted >= COUNT && side.awaited.is_empty();
    while !(finished(&near) && finished(&far)) {
        for side in [&mut near, &mut far] {
            // Bursts, so that a cut finds much outstanding; and pauses, so that slots can be written.
            for _ in 0..side.random(60) {
                if side.posted < COUNT {
                    side.post();
                }
            }
            let quiet = side.random(4) == 0;
            side.poll(&mut events);
            if quiet {
                side.queue.submit();
            }
        }
        if quiet_enough(&near, &far, &mut progress) {
            std::thread::yield_now();
        }
    }
    for (side, other) in [(&near, &far), (&far, &near)] {
        assert_eq!(side.received, other.sent);
        assert_eq!(side.own.region().load(WORD), other.counted);
        for (slot, (content, _)) in other.slots.iter().enumerate() {
            let mut bytes = vec![0; SLOT_BYTES as usize];
            side.own.region().read(slot as u64 * SLOT_BYTES, &mut bytes);
            assert!(bytes.iter().all(|byte| byte == content), "slot {slot}");
        }
    }
    let (cuts, counters) = (cuts.load(Ordering::Relaxed), near.device.counters());
    assert!(
        cuts > 20 && counters.cut > 10 && counters.joined >= counters.cut,
        "{cuts} cuts, {counters:?}"
    );
}

/// Whether nothing has happened since it was last asked; not for too long.
fn quiet_enough(near: &Side, far: &Side, progress: &mut (u64, Instant)) -> bool {
    let done = near.posted + far.posted + near.received + far.received;
    let done = done + (near.awaited.len() + far.awaited.len()) as u64;
    if done != progress.0 {
        *progress = (done, Instant::now());
        return false;
    }
    assert!(
        progress.1.elapsed() < PATIENCE,
        "{done}: nothing happens any more"
    );
    true
}
