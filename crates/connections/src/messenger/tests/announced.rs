//! Short messages by writes that announce themselves.

use super::*;
use crate::messenger::announced::{LENGTH_BYTES, LONGEST, Note, SLOT_BYTES, SLOTS_NAME};
use crate::messenger::pull::OFFERED;

const ANNOUNCED: Way = Way(Provider::Shm, RequestWay::Announced);
/// Credits of each side: their slots take no whole page.
const WINDOW: usize = 6;

/// Two sides that announce, both ways, and have few slots.
fn announcing() -> Pair {
    let mut options = options(ANNOUNCED);
    options.wanted.queues.window = WINDOW as u32;
    let mut pair = Pair::new(options);
    let is_announced = |messenger: &Messenger, link| {
        let (requests, reason) = messenger.requests(link).unwrap();
        assert_eq!(reason, None);
        requests == RequestWay::Announced
    };
    assert!(!is_announced(&pair.far, pair.to_near));
    let (mut to_far, mut to_near) = (Vec::new(), Vec::new());
    // Each side exports its slots with its first message after the peer's, or its own choice.
    let start = Instant::now();
    while !is_announced(&pair.far, pair.to_near) || !is_announced(&pair.near, pair.to_far) {
        assert!(start.elapsed() < LONG);
        pair.far.send(pair.to_near, &message(0, 1)).unwrap();
        receive(&mut pair.near, &mut pair.far, &mut to_near, 1);
        pair.near.send(pair.to_far, &message(0, 1)).unwrap();
        receive(&mut pair.far, &mut pair.near, &mut to_far, 1);
        to_near.clear();
        to_far.clear();
    }
    pair
}

/// Waits until one side has so many events, while the other side polls.
fn receive(one: &mut Messenger, other: &mut Messenger, events: &mut Vec<Event>, count: usize) {
    let start = Instant::now();
    while events.len() < count {
        other.poll(&mut Vec::new());
        one.wait(events, Duration::from_millis(1));
        assert!(start.elapsed() < LONG, "{} of {count}", events.len());
    }
}

#[test]
fn both_sides_announce_if_the_side_that_dials_chose_it() {
    let scratch = Scratch::new();
    for (dialer, expected) in [
        (RequestWay::Announced, RequestWay::Announced),
        (RequestWay::Message, RequestWay::Message),
    ] {
        // The side that listens has the other choice.
        let other = match dialer {
            RequestWay::Announced => RequestWay::Message,
            RequestWay::Message => RequestWay::Announced,
        };
        let mut near = messenger("near", options(Way(Provider::Shm, other)));
        let mut far = messenger("far", options(Way(Provider::Shm, dialer)));
        let socket = Address::Unix(scratch.0.join(format!("{dialer:?}")));
        let local = near.local().clone();
        let mut listener = Listener::bind(std::slice::from_ref(&socket), local).unwrap();
        far.dial(&socket, None);
        near.handle().pass(caller(&mut listener, &mut far));
        let (mut accepted, mut dialed) = (Vec::new(), Vec::new());
        receive(&mut near, &mut far, &mut accepted, 1);
        receive(&mut far, &mut near, &mut dialed, 1);
        let [Event::Accepted(Ok(to_far))] = accepted[..] else {
            panic!("{accepted:?}")
        };
        let [
            Event::Dialed {
                outcome: Ok(to_near),
                ..
            },
        ] = dialed[..]
        else {
            panic!("{dialed:?}")
        };
        let (mut at_near, mut at_far) = (Vec::new(), Vec::new());
        for count in 1..=5 {
            far.send(to_near, &message(1, 100)).unwrap();
            receive(&mut near, &mut far, &mut at_near, count);
            near.send(to_far, &message(2, 100)).unwrap();
            receive(&mut far, &mut near, &mut at_far, count);
        }
        let announced = [near.announced_messages(), far.announced_messages()];
        let is_expected = |count: &u64| (*count > 0) == (expected == RequestWay::Announced);
        assert!(
            announced.iter().all(is_expected),
            "{dialer:?}: {announced:?}"
        );
        assert_eq!(near.requests(to_far), Some((expected, None)));
        assert_eq!(far.requests(to_near), Some((expected, None)));
        // They count although their link has ended.
        near.close(to_far);
        assert_eq!(near.announced_messages(), announced[0]);
    }
}

#[test]
fn messages_in_slots_and_others_arrive_in_order() {
    let mut pair = announcing();
    let mut random = pmem::Random::new(3);
    let lengths: Vec<usize> = (0..3000)
        .map(|_| match random.below(8) {
            0 => 0,
            1 => LONGEST + random.below(2),
            2 => random.below(100_000),
            _ => 1 + random.below(LONGEST),
        })
        .collect();
    let before = pair.near.announced_messages();
    let mut received = Vec::new();
    for (seed, &length) in lengths.iter().enumerate() {
        pair.far.send(pair.to_near, &message(seed, length)).unwrap();
        pair.far.poll(&mut Vec::new());
        if random.below(3) == 0 {
            pair.near.poll(&mut received);
        }
    }
    receive(&mut pair.near, &mut pair.far, &mut received, lengths.len());
    let sent = lengths.iter().enumerate();
    let sent = sent.map(|(seed, &length)| message(seed, length));
    assert!(messages(received, pair.to_far).into_iter().eq(sent));
    let fit = lengths.iter().filter(|it| (1..=LONGEST).contains(*it));
    let announced = pair.near.announced_messages() - before;
    assert_eq!(announced, fit.count() as u64);
}

#[test]
fn a_peer_that_takes_nothing_has_each_slot_in_use_and_gets_all_later() {
    let mut pair = announcing();
    let before = pair.near.announced_messages();
    let most = 5 * WINDOW;
    for seed in 0..most {
        pair.far.send(pair.to_near, &message(seed, 300)).unwrap();
        pair.far.poll(&mut Vec::new());
    }
    let waiting = pair.far.backlog(pair.to_near);
    // Perhaps not all credits are back from the beginning.
    let in_slots = most - waiting / 300;
    assert!((1..=WINDOW).contains(&in_slots), "{waiting} bytes wait");
    let mut received = Vec::new();
    receive(&mut pair.near, &mut pair.far, &mut received, most);
    let sent = (0..most).map(|seed| message(seed, 300));
    assert!(messages(received, pair.to_far).into_iter().eq(sent));
    assert_eq!(pair.near.announced_messages() - before, most as u64);
}

#[test]
fn a_transport_without_passive_targets_sends_messages_and_gives_the_reason() {
    let mut pair = Pair::new(options(Way(Provider::Tcp, RequestWay::Announced)));
    let (mut to_far, mut to_near) = (Vec::new(), Vec::new());
    for count in 1..=3 {
        pair.far.send(pair.to_near, &message(count, 100)).unwrap();
        receive(&mut pair.near, &mut pair.far, &mut to_near, count);
        pair.near.send(pair.to_far, &message(count, 100)).unwrap();
        receive(&mut pair.far, &mut pair.near, &mut to_far, count);
    }
    let expected = Some((
        RequestWay::Message,
        Some("the target's processor would execute the writes"),
    ));
    assert_eq!(pair.far.requests(pair.to_near), expected);
    assert_eq!(pair.near.requests(pair.to_far), expected);
    assert_eq!(pair.near.announced_messages(), 0);
}

/// What a peer that lies does.
enum Lie {
    /// It sends a write, with these first bytes of a slot.
    Write(fn(Note) -> Note, &'static [u8]),
    /// It sends a message with these bits only.
    Bits(u32),
    /// It writes to a slot before the rest of a message in fragments.
    WithinMessage,
    /// It exports so many slots.
    Slots(usize),
}

impl Lie {
    /// The far side does this.
    fn execute(&self, pair: &mut Pair) {
        const GOOD: &[u8] = &[4, 0, 0, 0, 1, 2, 3, 4];
        let far = &mut pair.far;
        if let Lie::Slots(count) = *self {
            let bytes = (count * SLOT_BYTES) as u64;
            let region = pmem::Region::memory(bytes.next_multiple_of(4096), false).unwrap();
            let own = far.register(pair.to_near, (&region, 0..bytes), Access::WRITE, 1);
            let found = far.links[pair.to_near.slot()].link.as_deref_mut().unwrap();
            let queue = far.transports.queue(Provider::Shm).unwrap();
            return found
                .session
                .export(queue, SLOTS_NAME, &own.unwrap())
                .unwrap();
        }
        let stream = &mut link(far, pair.to_near).stream;
        let (to, note) = stream.slots.next(4, 0).unwrap();
        let endpoint = stream.endpoint;
        let send = |bytes, head| Work::Send {
            from: Source::Inline(bytes),
            immediate: Some(head),
        };
        let write = |bytes, note: Note| Work::Write {
            from: Source::Inline(bytes),
            to,
            immediate: Some(OFFERED | note.encode()),
        };
        let works = match self {
            Lie::Write(change, bytes) => vec![write(bytes, change(note))],
            Lie::Bits(bits) => vec![send(&[], *bits)],
            Lie::WithinMessage => vec![send(&[1; 10], head(0, 10, 100)), write(GOOD, note)],
            Lie::Slots(_) => unreachable!("it was done before"),
        };
        let queue = far.transports.queue(Provider::Shm).unwrap();
        for (number, work) in works.into_iter().enumerate() {
            let request = WorkRequest::new((1 << 40) + number as u64, work);
            queue.post(endpoint, &request).unwrap();
        }
    }
}

fn other_connection(note: Note) -> Note {
    match note {
        Note::Written { connection, slot } => Note::Written {
            connection: connection + 1,
            slot,
        },
        other => other,
    }
}

fn slot_beyond(note: Note) -> Note {
    match note {
        Note::Written { connection, .. } => Note::Written {
            connection,
            slot: WINDOW as u16,
        },
        other => other,
    }
}

#[test]
fn a_peer_that_lies_about_a_slot_is_lost() {
    const TOO_LONG: [u8; LENGTH_BYTES] = (LONGEST as u32 + 1).to_le_bytes();
    const LENGTH: &str = "the length of a message in a slot is invalid";
    const INVALID: &str = "a message about slots is invalid";
    const OUT_OF_TURN: &str = "a message about slots comes out of turn";
    const COUNT: &str = "the number of its slots is invalid";
    const GOOD: &[u8] = &[4, 0, 0, 0, 1, 2, 3, 4];
    let lies = [
        (
            Lie::Write(other_connection, GOOD),
            "it announces a write of another connection",
        ),
        (
            Lie::Write(slot_beyond, GOOD),
            "it announces a write to a slot that does not exist",
        ),
        (Lie::Write(|note| note, &[0; LENGTH_BYTES]), LENGTH),
        (Lie::Write(|note| note, &TOO_LONG), LENGTH),
        (Lie::Write(|note| note, &[0xff; LENGTH_BYTES]), LENGTH),
        (
            Lie::WithinMessage,
            "a message begins before the one before it is complete",
        ),
        // Slots are exported once.
        (Lie::Bits(OFFERED | Note::Slots(3).encode()), OUT_OF_TURN),
        (Lie::Bits(OFFERED | Note::Slots(3).encode() | 1), INVALID),
        (Lie::Bits(OFFERED | 1), INVALID),
        // It has exported slots.
        (Lie::Bits(OFFERED | Note::Unable.encode()), OUT_OF_TURN),
        (
            Lie::Bits(OFFERED | Note::Unable.encode() | 1 << 10),
            INVALID,
        ),
        (Lie::Slots(WINDOW - 1), COUNT),
        (Lie::Slots(1025), COUNT),
    ];
    for (index, (lie, expected)) in lies.iter().enumerate() {
        let mut pair = announcing();
        lie.execute(&mut pair);
        let mut events = Vec::new();
        receive(&mut pair.near, &mut pair.far, &mut events, 1);
        assert!(
            matches!(&events[..], [Event::Lost { link, reason: Reason::Fragment(what) }]
                if *link == pair.to_far && what == expected),
            "lie {index}: {events:?}"
        );
    }
}

#[test]
fn an_announcement_without_slots_ends_the_link() {
    let mut pair = Pair::new(options(Provider::Shm));
    let written = Note::Written {
        connection: 0,
        slot: 0,
    };
    let endpoint = link(&mut pair.far, pair.to_near).stream.endpoint;
    let queue = pair.far.transports.queue(Provider::Shm).unwrap();
    let work = Work::Send {
        from: Source::Inline(&[]),
        immediate: Some(OFFERED | written.encode()),
    };
    queue.post(endpoint, &WorkRequest::new(1, work)).unwrap();
    let mut events = Vec::new();
    receive(&mut pair.near, &mut pair.far, &mut events, 1);
    assert!(
        matches!(
            &events[..],
            [Event::Lost {
                reason: Reason::Fragment(_),
                ..
            }]
        ),
        "{events:?}"
    );
}

/// As when a peer exports memory that may only be read.
#[test]
fn a_side_sends_messages_if_its_writes_are_not_allowed() {
    let mut pair = announcing();
    let region = pmem::Region::memory(64 << 10, false).unwrap();
    let own = pair
        .near
        .register(pair.to_far, (&region, 0..64 << 10), Access::READ, 1);
    let near = pair.near.transports.queue(Provider::Shm).unwrap();
    let to_far = link_endpoint(&pair.near.links, pair.to_far);
    let export = near.export(to_far, &own.unwrap()).unwrap();
    let to_near = link_endpoint(&pair.far.links, pair.to_near);
    let far = pair.far.transports.queue(Provider::Shm).unwrap();
    let imported = far.import(to_near, export).unwrap();
    let slots = &mut link(&mut pair.far, pair.to_near).stream.slots;
    slots.give_up("it is to import others");
    slots.imported(imported, WINDOW as u32).unwrap();
    let mut received = Vec::new();
    for seed in 0..3 {
        pair.far.send(pair.to_near, &message(seed, 100)).unwrap();
    }
    receive(&mut pair.near, &mut pair.far, &mut received, 3);
    let sent = (0..3).map(|seed| message(seed, 100));
    assert!(messages(received, pair.to_far).into_iter().eq(sent));
    let (requests, reason) = pair.far.requests(pair.to_near).unwrap();
    assert_eq!(requests, RequestWay::Message);
    assert!(reason.is_some());
}

fn link_endpoint(links: &[Slot], id: LinkId) -> fabric::EndpointId {
    links[id.slot()].link.as_deref().unwrap().session.endpoint()
}
