//! Writes that their user considers done, and that are refused: the next fsync of the file reports it, once.
#![forbid(unsafe_code)]

mod common;

use common::{CLIENT, FILE, decoded, first_map, message, refusals, write};
use operations::WriteAt;
use protocol::client::Event;
use protocol::leases::Grant;
use protocol::wire::{Acknowledge, Body, ErrorCode, FileId, Message, Operation, Outcome, Replay};
use protocol::{Client, Defects, Sequence, UnitMap, UnitOptions};

const NOW: u64 = 1_000_000_000;

/// A client with a session, and the map.
struct Scene {
    client: Client,
    map: UnitMap,
}

impl Scene {
    fn new() -> Scene {
        let (options, defects) = (UnitOptions::default(), Defects::default());
        let mut scene = Scene {
            client: Client::new(CLIENT, options, defects, 0),
            map: first_map(),
        };
        scene.client.handle_map(NOW, scene.map.clone());
        scene.ask(Operation::Sync { file: FILE }, Acknowledge::Primary);
        scene.said();
        scene.hear(0, Body::SessionOpened { slots: 2 });
        scene.is_answered(None, 0);
        assert_eq!(scene.told(), [None]);
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
    fn is_answered(&mut self, error: Option<ErrorCode>, position: u64) {
        for Message { envelope, body } in self.said() {
            if let Body::Request { slot, .. } = body {
                let reply = Body::Reply {
                    slot,
                    outcome: Outcome {
                        error,
                        ..Outcome::default()
                    },
                    position,
                    confirmed: 64,
                    grant: Grant::default(),
                };
                self.hear(envelope.request, reply);
            }
        }
    }

    fn told(&mut self) -> Vec<Option<ErrorCode>> {
        let events = std::iter::from_fn(|| self.client.poll_event());
        let error = |event| match event {
            Event::Done { outcome, .. } => outcome.error,
            Event::SessionOver => Some(ErrorCode::SessionEnded),
            Event::Recalled(_) | Event::Renewed { .. } | Event::LockTurn { .. } => None,
        };
        events.map(error).collect()
    }

    /// Result of an fsync to which the primary has no objection.
    fn syncs(&mut self) -> Option<ErrorCode> {
        self.ask(Operation::Sync { file: FILE }, Acknowledge::Primary);
        self.is_answered(None, 0);
        let told = self.told();
        assert_eq!(told.len(), 1);
        told[0]
    }

    /// Another epoch: the client's replays.
    fn takeover(&mut self) -> Vec<Replay> {
        let tail = Sequence::new(self.map.epoch, 640);
        self.map = self.map.promote(0, tail, vec![0]);
        self.said();
        self.client.handle_map(NOW, self.map.clone());
        let said = self.said();
        match &said[..] {
            [
                Message {
                    body: Body::Resume { replays, .. },
                    ..
                },
            ] => replays.clone(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_next_fsync_tells_of_a_write_that_was_only_sent() {
    let mut scene = Scene::new();
    scene.ask(write(), Acknowledge::Sent);
    assert_eq!(scene.told(), [None]);
    scene.is_answered(Some(ErrorCode::NoSpace), 0);
    assert_eq!(scene.told(), []);
    assert_eq!(scene.syncs(), Some(ErrorCode::NoSpace));
    assert_eq!(scene.syncs(), None);
}

#[test]
fn an_fsync_that_began_before_does_not_tell_in_place_of_the_next() {
    let mut scene = Scene::new();
    scene.ask(Operation::Sync { file: FILE }, Acknowledge::Primary);
    let earlier = scene.said();
    scene.ask(write(), Acknowledge::Sent);
    assert_eq!(scene.told(), [None]);
    scene.is_answered(Some(ErrorCode::NoSpace), 0);
    let request = earlier[0].envelope.request;
    let reply = Body::Reply {
        slot: u16::MAX,
        outcome: Outcome::default(),
        position: 0,
        confirmed: 64,
        grant: Grant::default(),
    };
    scene.hear(request, reply);
    assert_eq!(scene.told(), [Some(ErrorCode::NoSpace)]);
    assert_eq!(scene.syncs(), Some(ErrorCode::NoSpace));
    assert_eq!(scene.syncs(), None);
}

#[test]
fn the_next_fsync_tells_of_a_replay() {
    let mut scene = Scene::new();
    scene.ask(write(), Acknowledge::Primary);
    scene.is_answered(None, 640);
    assert_eq!(scene.told(), [None]);
    assert_eq!(scene.takeover().len(), 1);
    let refusals = refusals();
    let resumed = Body::Resumed { refusals };
    scene.hear(0, resumed.clone());
    assert_eq!(scene.syncs(), Some(ErrorCode::NoSpace));
    scene.ask(write(), Acknowledge::Primary);
    scene.is_answered(None, 640);
    assert_eq!(scene.told(), [None]);
    // A repetition of the same message says nothing about writes since.
    scene.hear(0, resumed);
    assert_eq!(scene.syncs(), None);
    assert_eq!(scene.takeover().len(), 1);
}

#[test]
fn nothing_is_answered_early_while_too_much_is_to_be_told() {
    let mut scene = Scene::new();
    for inode in 0..64 {
        let file = FileId {
            unit: 0,
            inode,
            generation: 9,
        };
        let data = vec![7; 64].into();
        let operation = Operation::Write {
            file,
            at: WriteAt::Offset(0),
            data,
            drop_privileges: None,
        };
        scene.ask(operation, Acknowledge::Sent);
        assert_eq!(scene.told(), [None]);
        scene.is_answered(Some(ErrorCode::NoSpace), 0);
    }
    scene.ask(write(), Acknowledge::Sent);
    assert_eq!(scene.told(), []);
    scene.is_answered(Some(ErrorCode::NoSpace), 0);
    assert_eq!(scene.told(), [Some(ErrorCode::NoSpace)]);
}
