//! Data that a peer stores into the memory of an endpoint, as a queue takes it.

use pmem::{LINE, Region};

use super::{Shm, endpoint, header::Header};
use crate::{Event, Parameters, Peer, Queue, QueueOptions, Role, Source, Work, WorkRequest};

const WINDOW: u32 = 4;
const BYTES: u32 = 200;
/// Selector of the next action, an index in words and a word to store there.
const STEP: usize = 11;
const IN_BELL: u8 = 1;
const POST: u8 = 2;
const DROP: u8 = 4;

/// Headers and descriptions, as which the input is read, and stores of a peer one by one.
pub fn memory(input: &[u8]) {
    for word in input.as_chunks().0 {
        let word = u64::from_le_bytes(*word);
        if let Some(header) = Header::of(word, BYTES) {
            assert!(header.length <= BYTES && header.word() == word);
        }
    }
    let nothing_to_map = Parameters {
        bytes: input.into(),
        descriptors: Vec::new(),
    };
    assert!(endpoint::attach(nothing_to_map).is_err());
    let device = Shm::new().expect("shared memory");
    let options = QueueOptions {
        endpoints: 1,
        window: WINDOW,
        message_bytes: BYTES,
        group_buffers: 0,
        ..QueueOptions::default()
    };
    let open = || Queue::open(&device, options).expect("a queue");
    let (mut queue, mut liar) = (open(), open());
    let (id, given) = queue.offer().expect("an endpoint");
    let (_, parameters) = liar.offer().expect("an endpoint");
    let places = mapped(&given);
    let peer = Peer {
        parameters,
        address: None,
        process: None,
    };
    queue.accept(id, Role::Listener, peer).expect("an endpoint");
    let (mut held, mut events) = (Vec::new(), Vec::new());
    for &[what, low, high, ref word @ ..] in input.as_chunks::<STEP>().0 {
        let place = &places[usize::from(what & IN_BELL)];
        let at = u64::from(u16::from_le_bytes([low, high])) % (place.length() / 8);
        place.store(at * 8, u64::from_le_bytes(*word));
        if what & POST != 0 {
            let send = Work::Send {
                from: Source::Inline(b"to a liar"),
                immediate: None,
            };
            // It may be held back, or the endpoint's end known.
            let _ = queue.post(id, &WorkRequest::new(0, send).quiet());
        }
        if what & DROP != 0 {
            held.clear();
        }
        queue.poll(&mut events);
        for event in events.drain(..) {
            if let Event::Message(message) = event {
                assert!(message.length() <= BYTES);
                held.push(message);
            }
        }
        assert!(held.len() <= WINDOW as usize, "more than there is room for");
    }
}

/// The ring and the bell that a peer was given.
fn mapped(given: &Parameters) -> [Region; 2] {
    let slot_lines = 1 + u64::from(BYTES.div_ceil(LINE as u32) | 1);
    let lines = [2 + u64::from(WINDOW) * slot_lines, 2];
    std::array::from_fn(|index| {
        let descriptor = given.descriptors[index].try_clone().expect("a descriptor");
        Region::attach(descriptor, lines[index] * LINE as u64, true).expect("memory")
    })
}
