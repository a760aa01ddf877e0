//! Writes that their user believes to be done, and that are refused: the next fsync of the file says so, once.
#![forbid(unsafe_code)]

use protocol::client::Event;
use protocol::member::{Completion, Intent, SessionRecord};
use protocol::wire::{
    Acknowledge, Body, Envelope, FileId, Message, Operation, Outcome, Refusal, Replay, Status,
};
use protocol::{Client, Defects, EpochStart, Member, NOBODY, Options, Sequence, Transmit, UnitMap};

const FILE: FileId = FileId {
    inode: 5,
    generation: 1,
};
const SESSION: u64 = 1 << 32 | 1;
const CLIENT: u32 = 100;
const NOW: u64 = 1_000_000_000;

fn first_map() -> UnitMap {
    let start = EpochStart {
        epoch: 1,
        start: 64,
    };
    UnitMap {
        version: 1,
        epoch: 1,
        primary: 0,
        members: vec![0],
        metadata_only: Vec::new(),
        in_sync: vec![0],
        lineage: vec![start],
    }
}

fn write() -> Operation {
    Operation::Write {
        file: FILE,
        offset: 0,
        data: vec![7; 64],
    }
}

fn message(epoch: u32, from: u32, request: u64, body: Body) -> Vec<u8> {
    let envelope = Envelope {
        cluster: Options::default().cluster,
        epoch,
        session: SESSION,
        request,
        from,
        ..Envelope::default()
    };
    Message { envelope, body }.encode(false)
}

fn decoded(sent: &Transmit) -> Message {
    Message::decode(&sent.bytes, &Defects::default()).expect("a message")
}

/// A client with a session, and the map.
struct Scene {
    client: Client,
    map: UnitMap,
}

impl Scene {
    fn new() -> Scene {
        let (options, defects) = (Options::default(), Defects::default());
        let mut scene = Scene {
            client: Client::new(CLIENT, options, defects, 0),
            map: first_map(),
        };
        scene.client.handle_map(NOW, scene.map.clone());
        scene.ask(Operation::Sync { file: FILE }, Acknowledge::Primary);
        scene.said();
        scene.hear(0, Body::SessionOpened { slots: 2 });
        scene.is_answered(Status::Done, 0);
        assert_eq!(scene.told(), [Status::Done]);
        scene
    }

    fn ask(&mut self, operation: Operation, acknowledge: Acknowledge) {
        self.client.submit(NOW, operation, acknowledge);
    }

    fn hear(&mut self, request: u64, body: Body) {
        let bytes = message(self.map.epoch, 0, request, body);
        self.client.handle_message(NOW, &bytes);
    }

    fn said(&mut self) -> Vec<Message> {
        let sent = std::iter::from_fn(|| self.client.poll_transmit());
        sent.map(|it| decoded(&it)).collect()
    }

    /// The request that the client just sent ends so.
    fn is_answered(&mut self, status: Status, position: u64) {
        for Message { envelope, body } in self.said() {
            if let Body::Request { slot, .. } = body {
                let reply = Body::Reply {
                    slot,
                    outcome: Outcome::of(status),
                    position,
                    confirmed: 64,
                };
                self.hear(envelope.request, reply);
            }
        }
    }

    fn told(&mut self) -> Vec<Status> {
        let events = std::iter::from_fn(|| self.client.poll_event());
        let status = |event| match event {
            Event::Done { outcome, .. } => outcome.status,
            Event::SessionOver => Status::SessionOver,
        };
        events.map(status).collect()
    }

    /// What an fsync says that the primary has nothing against.
    fn syncs(&mut self) -> Status {
        self.ask(Operation::Sync { file: FILE }, Acknowledge::Primary);
        self.is_answered(Status::Done, 0);
        let told = self.told();
        assert_eq!(told.len(), 1);
        told[0]
    }

    /// Another epoch: what the client replays.
    fn takeover(&mut self) -> Vec<Replay> {
        let tail = Sequence::new(self.map.epoch, 640);
        self.map = self.map.promote(0, tail, vec![0]);
        self.said();
        self.client.handle_map(NOW, self.map.clone());
        let said = self.said();
        match &said[..] {
            [
                Message {
                    body: Body::Resume { replays },
                    ..
                },
            ] => replays.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn refusals() -> Vec<Refusal> {
    vec![Refusal {
        file: FILE,
        status: Status::NoSpace,
    }]
}

#[test]
fn the_next_fsync_tells_of_a_write_that_was_only_sent() {
    let mut scene = Scene::new();
    scene.ask(write(), Acknowledge::Sent);
    assert_eq!(scene.told(), [Status::Done]);
    scene.is_answered(Status::NoSpace, 0);
    assert_eq!(scene.told(), []);
    assert_eq!(scene.syncs(), Status::NoSpace);
    assert_eq!(scene.syncs(), Status::Done);
}

#[test]
fn the_next_fsync_tells_of_a_replay() {
    let mut scene = Scene::new();
    scene.ask(write(), Acknowledge::Primary);
    scene.is_answered(Status::Done, 640);
    assert_eq!(scene.told(), [Status::Done]);
    assert_eq!(scene.takeover().len(), 1);
    let refusals = refusals();
    let resumed = Body::Resumed { refusals };
    scene.hear(0, resumed.clone());
    assert_eq!(scene.syncs(), Status::NoSpace);
    scene.ask(write(), Acknowledge::Primary);
    scene.is_answered(Status::Done, 640);
    assert_eq!(scene.told(), [Status::Done]);
    // The same message once more says nothing about what was written since.
    scene.hear(0, resumed);
    assert_eq!(scene.syncs(), Status::Done);
    assert_eq!(scene.takeover().len(), 1);
}

#[test]
fn nothing_is_answered_early_while_too_much_is_to_be_told() {
    let mut scene = Scene::new();
    for inode in 0..64 {
        let file = FileId {
            inode,
            generation: 9,
        };
        let data = vec![7; 64];
        let operation = Operation::Write {
            file,
            offset: 0,
            data,
        };
        scene.ask(operation, Acknowledge::Sent);
        assert_eq!(scene.told(), [Status::Done]);
        scene.is_answered(Status::NoSpace, 0);
    }
    scene.ask(write(), Acknowledge::Sent);
    assert_eq!(scene.told(), []);
    scene.is_answered(Status::NoSpace, 0);
    assert_eq!(scene.told(), [Status::NoSpace]);
}

/// The only member of a unit, elected again, with one session in its image.
fn primary() -> (Member, u64) {
    let map = UnitMap {
        primary: NOBODY,
        ..first_map()
    };
    let tail = Sequence::new(1, 640);
    let (options, defects) = (Options::default(), Defects::default());
    let mut member = Member::new(0, options, defects, tail, map.lineage.clone(), 0);
    member.handle_map(0, map);
    let (now, map) = loop {
        let now = member.poll_timeout().expect("it stands some time");
        member.handle_timeout(now);
        if let Some(Intent::Propose { map }) = member.poll_intent() {
            break (now, map);
        }
    };
    let tail = Sequence::new(map.epoch, 640);
    member.handle_completion(now, Completion::Proposed { map });
    let opens = member.poll_intent();
    assert!(matches!(opens, Some(Intent::OpenForWriting { .. })));
    let session = SessionRecord {
        index: 0,
        session: SESSION,
        client: CLIENT,
        slots: vec![(3, Outcome::default())],
        locks: Vec::new(),
        has_grant: false,
    };
    let opened = Completion::Opened {
        tail,
        sessions: vec![session],
        grants: Vec::new(),
    };
    member.handle_completion(now, opened);
    (member, now)
}

#[test]
fn a_primary_that_cannot_carry_out_a_replay_says_so() {
    let (mut member, now) = primary();
    let epoch = member.map().epoch;
    let replay = Replay {
        sequence: Sequence::new(1, 900),
        slot: 0,
        request: 4,
        operation: write(),
    };
    let replays = vec![replay];
    let resume = message(epoch, CLIENT, 0, Body::Resume { replays });
    member.handle_message(now, &resume);
    let ticket = std::iter::from_fn(|| member.poll_intent()).find_map(|it| match it {
        Intent::Execute { ticket, .. } => Some(ticket),
        _ => None,
    });
    let executed = Completion::Executed {
        ticket: ticket.expect("it tries"),
        outcome: Outcome::of(Status::NoSpace),
        position: None,
        depends_on: 640,
        is_by_reference: false,
    };
    member.handle_completion(now, executed);
    // The answer may get lost: it is given again.
    member.handle_message(now, &resume);
    let sent = std::iter::from_fn(|| member.poll_transmit());
    let bodies = sent.map(|it| decoded(&it).body);
    let resumed: Vec<_> = bodies
        .filter(|it| matches!(it, Body::Resumed { .. }))
        .collect();
    let refusals = refusals();
    assert_eq!(resumed, vec![Body::Resumed { refusals }; 2]);
}
