//! Streams of a group under loss, reordering, duplication, damage and forgery, and their rules broken on purpose.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use lab::cluster::plan::Plan;
use lab::cluster::time::SECOND;
use lab::cluster::world::{Setup, World as Unit};
use protocol::group::{Key, Receiver, Sender, Stream};
use protocol::member::{Completion, Intent};
use protocol::wire::{Body, Data, Envelope, Message};
use protocol::{
    Defect, Defects, EpochStart, Member as Follower, NodeId, Sequence, UnitMap, UnitOptions,
};

const STREAM: Stream = Stream {
    sender: 1,
    epoch: 4,
    unit: 0,
};
const MILLISECOND: u64 = 1_000_000;
const MESSAGES: usize = 300;
const MEMBERS: [NodeId; 3] = [2, 3, 4];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A member: its receiver, and what it delivered.
struct Member {
    receiver: Receiver,
    arriving: Vec<(u64, Vec<u8>)>,
    messages: BTreeMap<Vec<u8>, usize>,
    tail: u64,
}

/// What the group does to frames, in percent.
#[derive(Clone, Copy)]
struct Faults {
    lost: u64,
    late: u64,
    doubled: u64,
    damaged: u64,
    forged: u64,
}

struct World {
    now: u64,
    random: Random,
    faults: Faults,
    sender: Sender,
    members: BTreeMap<NodeId, Member>,
}

fn message(index: usize, random: &mut Random) -> Vec<u8> {
    let length = match random.below(4) {
        0 => random.below(40_000),
        _ => random.below(400),
    };
    let mut bytes = (index as u64).to_le_bytes().to_vec();
    bytes.extend((0..length).map(|_| random.next() as u8));
    bytes
}

impl World {
    fn new(seed: u64, faults: Faults, with_parity: bool, defects: &Defects) -> World {
        let key = || Key([9; 32]);
        let mut sender = Sender::new(STREAM, key(), 1440, with_parity, defects.clone());
        let mut members = BTreeMap::new();
        for node in MEMBERS {
            let mut receiver = Receiver::new(STREAM, key(), 64, defects.clone());
            let report = receiver.poll_report(0).expect("a new member reports");
            let first = sender.admit(0, node, report.room);
            receiver.handle_range(first..first);
            let member = Member {
                receiver,
                arriving: Vec::new(),
                messages: BTreeMap::new(),
                tail: 0,
            };
            members.insert(node, member);
        }
        World {
            now: 0,
            random: Random(seed * 2 + 1),
            faults,
            sender,
            members,
        }
    }

    /// The group: each member gets a frame, or not, or in some other way.
    fn carry(&mut self, frame: &[u8]) {
        let Faults {
            lost,
            late,
            doubled,
            damaged,
            forged,
        } = self.faults;
        let random = &mut self.random;
        for member in self.members.values_mut() {
            for _ in 0..1 + u64::from(random.happens(doubled)) {
                let mut bytes = frame.to_vec();
                if random.happens(damaged) {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
                let delay = if random.happens(late) {
                    3 * MILLISECOND
                } else {
                    100_000
                };
                let at = self.now + delay + random.below(10_000);
                if !random.happens(lost) {
                    member.arriving.push((at, bytes));
                }
            }
            if random.happens(forged) {
                // A process without the key that knows all else.
                let number = 1 + random.below(2000);
                let forgery = protocol::group::frame::encode(
                    STREAM,
                    &Key([8; 32]),
                    (number, 0, 1),
                    b"a forgery",
                    false,
                );
                member.arriving.push((self.now + 1, forgery));
            }
        }
    }

    /// All that happens until a moment.
    fn run_until(&mut self, end: u64, expected: &VecDeque<Vec<u8>>) -> Result<(), String> {
        while self.now < end {
            while let Some(frame) = self.sender.poll_frame(self.now).map(<[u8]>::to_vec) {
                self.carry(&frame);
            }
            let (asked, gone) = self.sender.handle_timeout(self.now);
            if !gone.is_empty() {
                return Err(format!("{gone:?} were given up"));
            }
            for (node, range) in asked {
                if let Some(member) = self.members.get_mut(&node) {
                    member.receiver.handle_range(range);
                }
            }
            for node in MEMBERS {
                self.receive(node, expected)?;
            }
            self.now += 50_000;
        }
        Ok(())
    }

    fn receive(&mut self, node: NodeId, expected: &VecDeque<Vec<u8>>) -> Result<(), String> {
        let now = self.now;
        let Some(member) = self.members.get_mut(&node) else {
            return Ok(());
        };
        let mut due = Vec::new();
        member.arriving.retain(|(at, bytes)| {
            let is_due = *at <= now;
            if is_due {
                due.push((*at, bytes.clone()));
            }
            !is_due
        });
        due.sort();
        for (_, bytes) in due {
            member.take(&bytes, expected)?;
        }
        if let Some(report) = member.receiver.poll_report(now) {
            let (parts, skips) = self.sender.handle_report(now, node, &report);
            if let Some(range) = skips {
                member.receiver.handle_range(range);
            }
            for part in parts {
                let mut rest = &part[..];
                while let Some((length, behind)) = rest.split_first_chunk() {
                    let (frame, behind) = behind.split_at(u16::from_le_bytes(*length).into());
                    member.take(frame, expected)?;
                    rest = behind;
                }
            }
        }
        self.sender.handle_tail(now, node, member.tail);
        Ok(())
    }
}

impl Member {
    fn take(&mut self, bytes: &[u8], expected: &VecDeque<Vec<u8>>) -> Result<(), String> {
        self.receiver.handle_frame(bytes);
        while let Some(message) = self.receiver.poll_message() {
            self.deliver(message, expected)?;
        }
        Ok(())
    }

    fn deliver(&mut self, message: Vec<u8>, expected: &VecDeque<Vec<u8>>) -> Result<(), String> {
        if !expected.contains(&message) {
            return Err("a message was delivered that the sender never sent".into());
        }
        let times = self.messages.entry(message).or_default();
        *times += 1;
        if *times > 1 {
            return Err("a message was delivered twice".into());
        }
        // As a member's tail: the messages that it has without a gap.
        while self.messages.contains_key(&expected[self.tail as usize]) {
            self.tail += 1;
            if self.tail as usize == expected.len() {
                break;
            }
        }
        Ok(())
    }
}

fn run(seed: u64, faults: Faults, with_parity: bool, defects: &Defects) -> Result<World, String> {
    let mut world = World::new(seed, faults, with_parity, defects);
    let mut sent = VecDeque::new();
    for index in 0..MESSAGES {
        let message = message(index, &mut world.random);
        world.sender.push(&message, index as u64 + 1);
        sent.push_back(message);
        if world.random.happens(30) {
            let pause = world.random.below(4 * MILLISECOND);
            world.run_until(world.now + pause, &sent)?;
        }
    }
    // The last frames have none behind them.
    world.run_until(world.now + 400 * MILLISECOND, &sent)?;
    for (node, member) in &world.members {
        if member.messages.len() != sent.len() {
            let count = member.messages.len();
            return Err(format!("{node} has {count} of {} messages", sent.len()));
        }
    }
    if world.sender.poll_timeout().is_some() {
        return Err("the sender waits for something".into());
    }
    Ok(world)
}

const ALL_FAULTS: Faults = Faults {
    lost: 5,
    late: 10,
    doubled: 5,
    damaged: 3,
    forged: 2,
};

#[test]
fn every_member_gets_every_message_once_under_all_faults() {
    for seed in 1..40 {
        for with_parity in [false, true] {
            let world = run(seed, ALL_FAULTS, with_parity, &Defects::default());
            let world = world.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let refused = world.members[&2].receiver.refused();
            assert!(refused.forged > 0 && refused.repeated > 0, "{refused:?}");
            assert!(world.sender.counts().1 > 0, "nothing was sent again");
            assert_eq!(world.members[&2].receiver.repaired() > 0, with_parity);
        }
    }
}

#[test]
fn without_faults_nothing_is_sent_again() {
    let none = Faults {
        lost: 0,
        late: 0,
        doubled: 0,
        damaged: 0,
        forged: 0,
    };
    let world = run(1, none, false, &Defects::default()).expect("it holds");
    assert_eq!(world.sender.counts().1, 0);
    assert_eq!(world.members[&3].receiver.refused().all(), 0);
}

#[test]
fn each_defect_of_groups_is_found() {
    for defect in Defect::OF_FRAMES {
        let finds = |seed| run(seed, ALL_FAULTS, false, &Defects::of(defect)).is_err();
        assert!((1..40).any(finds), "{defect:?} is not found");
    }
}

#[test]
fn a_silent_member_is_given_up_and_delays_no_other() {
    let mut sender = Sender::new(STREAM, Key([9; 32]), 1440, false, Defects::default());
    let mut receiver = Receiver::new(STREAM, Key([9; 32]), 8, Defects::default());
    for node in [2, 3] {
        let first = sender.admit(0, node, 8);
        receiver.handle_range(first..first);
    }
    sender.push(&[7; 40_000], 1);
    let mut now = 0;
    let mut delivered = None;
    while now < 1000 * MILLISECOND {
        while let Some(frame) = sender.poll_frame(now) {
            receiver.handle_frame(frame);
            delivered = receiver.poll_message().or(delivered);
        }
        if let Some(report) = receiver.poll_report(now) {
            sender.handle_report(now, 2, &report);
        }
        let (_, gone) = sender.handle_timeout(now);
        assert!(gone.is_empty() || gone == [3], "{gone:?}");
        now += MILLISECOND;
    }
    assert_eq!(delivered, Some(vec![7; 40_000]));
    assert!(sender.has(2) && !sender.has(3));
    assert_eq!(sender.poll_timeout(), None);
}

/// A run of a whole unit with a primary that ships by a group.
fn run_unit(seed: u64, defects: &Defects) -> Result<(), String> {
    let setup = Setup {
        groups: true,
        defects: defects.clone(),
        ..Setup::usual(seed, 30 * SECOND)
    };
    let plan = Plan::random(seed, setup.members, setup.clients, setup.duration);
    Unit::new(setup, plan)?.run().map(|_| ())
}

#[test]
fn units_that_ship_by_groups_hold() {
    let (first, count) = (number("TAKO_FIRST_SEED", 0), number("TAKO_SEEDS", 12));
    for seed in first..first + count {
        run_unit(seed, &Defects::default()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.and_then(|it| it.parse().ok()).unwrap_or(otherwise)
}

const TAIL: u64 = 640;

/// Member 0, with member 1 as primary and records up to [`TAIL`].
fn follower(in_sync: Vec<NodeId>, defects: &Defects) -> Follower {
    let start = EpochStart {
        epoch: 1,
        start: 64,
    };
    let map = UnitMap {
        version: 1,
        epoch: 1,
        primary: 1,
        members: vec![0, 1],
        metadata_only: Vec::new(),
        in_sync,
        lineage: vec![start],
        image: 0,
    };
    let tail = Sequence::new(1, TAIL);
    let mut follower = Follower::new(
        0,
        UnitOptions::default(),
        defects.clone(),
        tail,
        vec![start],
        0,
    );
    follower.handle_map(0, map);
    follower
}

fn tell(follower: &mut Follower, request: u64, body: Body) {
    let envelope = Envelope {
        cluster: UnitOptions::default().cluster,
        epoch: 1,
        request,
        from: 1,
        ..Envelope::default()
    };
    let bytes = Message { envelope, body }.encode(false);
    follower.handle_message(100 * MILLISECOND, &bytes.into());
}

/// Whether a shipment writes the data of a record at this position into the image.
fn takes_data(follower: &mut Follower, from: u64, position: u64) -> bool {
    let data = Data {
        position,
        offset: 4096,
        bytes: vec![7; 4096].into(),
    };
    let shipment = Body::Shipment {
        from,
        records: vec![0; 256].into(),
        data: vec![data],
    };
    tell(follower, 0, shipment);
    let mut intents = std::iter::from_fn(|| follower.poll_intent());
    intents.any(|intent| matches!(intent, Intent::WriteImage { .. }))
}

#[test]
fn data_of_records_that_are_here_is_not_taken() {
    let takes = |defects: Defects, position| {
        takes_data(&mut follower(vec![0, 1], &defects), TAIL - 128, position)
    };
    assert!(takes(Defects::default(), TAIL));
    assert!(!takes(Defects::default(), TAIL - 128));
    assert!(takes(Defects::of(Defect::TakeOldData), TAIL - 128));
}

#[test]
fn only_members_in_sync_take_data() {
    for defects in [Defects::default(), Defects::of(Defect::TakeDataOutOfSync)] {
        let mut follower = follower(vec![1], &defects);
        follower.handle_timeout(100 * MILLISECOND);
        let said = std::iter::from_fn(|| follower.poll_transmit());
        let said = said.map(|it| Message::decode(&it.bytes, &Defects::default()));
        let questions = said
            .flatten()
            .filter(|it| matches!(it.body, Body::Join { .. }));
        let question = questions
            .last()
            .expect("it asks to follow")
            .envelope
            .request;
        let welcome = Body::Welcome {
            image: 0,
            from: TAIL,
            position: TAIL,
        };
        tell(&mut follower, question, welcome);
        while let Some(intent) = follower.poll_intent() {
            if let Intent::TouchedSince { .. } = intent {
                let ranges = Vec::new();
                let touched = Completion::Touched { ranges };
                follower.handle_completion(100 * MILLISECOND, touched);
            }
        }
        let takes = takes_data(&mut follower, TAIL, TAIL);
        assert_eq!(takes, defects.has(Defect::TakeDataOutOfSync));
    }
}
