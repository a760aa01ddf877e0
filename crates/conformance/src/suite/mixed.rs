//! A million operations of all kinds, checked against a model.

use fabric::{Access, Refusal, Registration, Source, Work, WorkRequest};

use super::{Pair, Random, Setup};

/// Bytes of the far memory that operations touch.
const SPACE: u64 = 1 << 18;
const COUNT: u64 = 1_000_000;
/// How often the whole memory is compared.
const EVERY: u64 = 50_000;

/// The near side's expectation: the far memory, and the messages in flight.
struct Model {
    memory: Vec<u8>,
    /// Immediates and first bytes of messages not yet received.
    messages: std::collections::VecDeque<(Option<u32>, Vec<u8>)>,
    /// Completions that are expected next.
    values: std::collections::VecDeque<(u64, u64)>,
}

pub fn mixed_operations_leave_what_they_should(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(SPACE, Access::ALL);
    let near = pair.near.memory(SPACE, Access::LOCAL);
    let remote = pair.import(&far);
    let atomics = pair.near.queue.capabilities().atomics;
    let mut model = Model {
        memory: vec![0; SPACE as usize],
        messages: Default::default(),
        values: Default::default(),
    };
    let mut random = Random(11);
    let source = random.bytes(SPACE as usize);
    near.region().write(0, &source);
    for id in 0..operations(setup) {
        let (offset, length) = range(&mut random);
        let immediate = (random.below(4) == 0).then(|| random.draw() as u32);
        let from = random.below(SPACE - u64::from(length));
        let pieces = [near.piece(from, length)];
        let data = &source[from as usize..][..length as usize];
        let short = &data[..data.len().min(200)];
        let word = random.below(SPACE / 8) * 8;
        let operation = match random.below(5) {
            0 => Work::Write {
                from: Source::Pieces(&pieces),
                to: remote.at(offset),
                immediate,
            },
            1 => Work::Write {
                from: Source::Inline(short),
                to: remote.at(offset),
                immediate: None,
            },
            2 if atomics => Work::FetchAndAdd {
                at: remote.at(word),
                addend: id,
            },
            3 if atomics => Work::CompareAndSwap {
                at: remote.at(word),
                expected: model.word(word),
                new: id,
            },
            _ => Work::Send {
                from: Source::Inline(short),
                immediate,
            },
        };
        post(&mut pair, id, operation, &mut model);
        if id % EVERY == EVERY - 1 {
            compare(&mut pair, &near, &far, remote, &mut model);
        }
    }
    compare(&mut pair, &near, &far, remote, &mut model);
}

/// Emulated guests are slow: they do fewer.
fn operations(_: &dyn Setup) -> u64 {
    let asked = std::env::var("TAKO_TEST_OPERATIONS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(COUNT)
}

fn range(random: &mut Random) -> (u64, u32) {
    let length = match random.below(100) {
        0 => 1 + random.below(60_000),
        1..10 => 1 + random.below(4096),
        _ => 1 + random.below(100),
    };
    (random.below(SPACE - length), length as u32)
}

impl Model {
    fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.memory[at as usize..][..8].try_into().unwrap())
    }

    fn apply(&mut self, id: u64, operation: &Work<'_>, data: &[u8]) {
        match *operation {
            Work::Write { to, immediate, .. } => {
                self.memory[to.offset as usize..][..data.len()].copy_from_slice(data);
                if immediate.is_some() {
                    self.messages.push_back((immediate, Vec::new()));
                }
            }
            Work::Send { immediate, .. } => self.messages.push_back((immediate, data.to_vec())),
            Work::FetchAndAdd { at, addend } => {
                let old = self.word(at.offset);
                self.values.push_back((id, old));
                let new = old.wrapping_add(addend).to_ne_bytes();
                self.memory[at.offset as usize..][..8].copy_from_slice(&new);
            }
            Work::CompareAndSwap { at, expected, new } => {
                let old = self.word(at.offset);
                self.values.push_back((id, old));
                if old == expected {
                    self.memory[at.offset as usize..][..8].copy_from_slice(&new.to_ne_bytes());
                }
            }
            Work::Read { .. } => {}
        }
    }

    /// Compares arrived data with the expected data.
    fn check(&mut self, pair: &mut Pair) {
        let lost = [&pair.near.lost, &pair.far.lost];
        assert!(lost.iter().all(|lost| lost.is_empty()), "{lost:?}");
        for message in pair.far.messages.drain(..) {
            let expected = self
                .messages
                .pop_front()
                .expect("a message more than were sent");
            assert!((message.immediate, message.to_vec()) == expected);
        }
        for done in pair.near.done.drain(..) {
            let (id, value) = self
                .values
                .pop_front()
                .expect("a completion more than there should be");
            assert_eq!((done.id.0, done.outcome), (id, Ok(value)));
        }
    }
}

fn post(pair: &mut Pair, id: u64, operation: Work<'_>, model: &mut Model) {
    let is_atomic = matches!(
        operation,
        Work::FetchAndAdd { .. } | Work::CompareAndSwap { .. }
    );
    let request = match WorkRequest::new(id, operation) {
        request if is_atomic => request,
        request => request.quiet(),
    };
    let to_far = pair.to_far;
    loop {
        match pair.near.queue.post(to_far, &request) {
            Ok(()) => break,
            Err(Refusal::Held) => {
                pair.near.poll();
                pair.far.poll();
                model.check(pair);
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
    let data = match operation {
        Work::Write { from, .. } | Work::Send { from, .. } => bytes_of(from),
        _ => Vec::new(),
    };
    model.apply(id, &operation, &data);
}

fn bytes_of(source: Source<'_>) -> Vec<u8> {
    match source {
        Source::Inline(bytes) => bytes.to_vec(),
        Source::Pieces(pieces) => {
            let mut bytes = vec![0; pieces[0].length as usize];
            pieces[0]
                .registration
                .region()
                .read(pieces[0].offset, &mut bytes);
            bytes
        }
    }
}

/// Reads all of it back, and compares.
fn compare(
    pair: &mut Pair,
    near: &Registration,
    far: &Registration,
    remote: fabric::RemoteRegion,
    model: &mut Model,
) {
    let back = pair.near.memory(SPACE, Access::LOCAL);
    let pieces = [back.piece(0, SPACE as u32)];
    let read = Work::Read {
        into: &pieces,
        from: remote.at(0),
    };
    let id = u64::MAX;
    pair.post(WorkRequest::new(id, read));
    model.values.push_back((id, 0));
    let start = std::time::Instant::now();
    while !(model.values.is_empty() && model.messages.is_empty()) {
        pair.near.poll();
        pair.far.poll();
        model.check(pair);
        assert!(
            start.elapsed() < super::PATIENCE,
            "{} messages missing",
            model.messages.len()
        );
    }
    for memory in [&back, far] {
        let mut bytes = vec![0; SPACE as usize];
        memory.region().read(0, &mut bytes);
        assert!(bytes == model.memory, "the memory is not what it should be");
    }
    assert_eq!(near.region().length(), SPACE);
}
