//! A member that rejoins: its handling of late answers, and of data that is newer than its records.
#![forbid(unsafe_code)]

use std::ops::Range;

use protocol::member::{Completion, Intent, NamedData};
use protocol::wire::{Body, Bytes, Envelope, Fetch, Message};
use protocol::{Defects, EpochStart, Member, Sequence, UnitMap, UnitOptions};

const MILLISECOND: u64 = 1_000_000;
const TAIL: u64 = 640;
const START: EpochStart = EpochStart {
    epoch: 1,
    start: 64,
};

/// Member 0, and time, and the map by which 1 is primary.
struct Scene {
    member: Member,
    map: UnitMap,
    now: u64,
}

impl Scene {
    /// The member is not in sync.
    fn new() -> Scene {
        let member = member(TAIL, vec![0, 1]);
        let map = member.map().clone();
        Scene {
            member,
            map,
            now: 0,
        }
    }

    fn hear(&mut self, request: u64, body: Body) {
        let envelope = Envelope {
            cluster: UnitOptions::default().cluster,
            epoch: self.map.epoch,
            request,
            from: 1,
            ..Envelope::default()
        };
        let bytes = Bytes::from(Message { envelope, body }.encode(false));
        self.member.handle_message(self.now, &bytes);
    }

    /// The member's next messages.
    fn said(&mut self) -> Vec<Message> {
        let sent = std::iter::from_fn(|| self.member.poll_transmit());
        sent.map(|it| Message::decode(&it.bytes, &Defects::default()).expect("a message"))
            .collect()
    }

    /// Some time later the member asks to rejoin: the number of its question.
    fn asks(&mut self) -> u64 {
        self.now += 100 * MILLISECOND;
        self.member.handle_timeout(self.now);
        let said = self.said();
        let is_join = |it: &&Message| matches!(it.body, Body::Join { .. });
        said.iter().find(is_join).expect("it asks").envelope.request
    }

    fn is_welcomed(&mut self, request: u64, position: u64) {
        let from = TAIL;
        let welcome = Body::Welcome {
            from,
            position,
            image: 0,
        };
        self.hear(request, welcome);
    }

    fn next_intent(&mut self) -> Option<Intent> {
        self.member.poll_intent()
    }

    fn ingested(&mut self, missing: &[Range<u64>]) {
        let completion = Completion::Ingested {
            tail: Sequence::new(1, TAIL),
            missing: missing.to_vec(),
        };
        self.member.handle_completion(self.now, completion);
    }

    /// The member fetches just this, and gets it.
    fn fetches(&mut self, range: &Range<u64>) {
        let asked = |it: Message| match it.body {
            Body::Fetch { offset, length, .. } => Some(offset..offset + u64::from(length)),
            _ => None,
        };
        let asked: Vec<_> = self.said().into_iter().filter_map(asked).collect();
        assert_eq!(asked, std::slice::from_ref(range));
        let range = Body::Range {
            fetch: Fetch::Refill,
            offset: range.start,
            position: 2000,
            skipped: 0,
            bytes: vec![7; (range.end - range.start) as usize].into(),
        };
        self.hear(0, range);
        let written = self.next_intent();
        assert!(matches!(written, Some(Intent::WriteImage { .. })));
    }

    fn ingests(&mut self, expected: NamedData) {
        match self.next_intent() {
            Some(Intent::Ingest { named, .. }) => assert_eq!(named, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn only_the_answer_to_the_newest_question_counts() {
    let mut scene = Scene::new();
    let first = scene.asks();
    assert_eq!(first, scene.asks(), "it is the same question");
    // Another map, by which the member is in sync for a while, and then not any more.
    for in_sync in [vec![0, 1], vec![1]] {
        scene.map = UnitMap {
            in_sync,
            ..scene.map.next()
        };
        let map = scene.map.clone();
        scene.member.handle_map(scene.now, map);
        scene.is_welcomed(first, 1000);
        assert_eq!(scene.next_intent(), None);
    }
    let second = scene.asks();
    assert_ne!(first, second);
    scene.is_welcomed(first, 1000);
    assert_eq!(scene.next_intent(), None);
    scene.is_welcomed(second, 1000);
    let position = TAIL;
    assert_eq!(scene.next_intent(), Some(Intent::TouchedSince { position }));
}

#[test]
fn a_refill_waits_until_the_image_is_as_long_as_the_primarys() {
    let mut scene = Scene::new();
    let question = scene.asks();
    let welcome = Body::Welcome {
        from: TAIL,
        position: 1000,
        image: 1 << 20,
    };
    scene.hear(question, welcome.clone());
    assert_eq!(scene.next_intent(), None);
    scene.map = scene.map.grow(1 << 20).expect("it is longer");
    let map = scene.map.clone();
    scene.member.handle_map(scene.now, map);
    let length = 1 << 20;
    assert_eq!(scene.next_intent(), Some(Intent::GrowImage { length }));
    scene.hear(question, welcome);
    assert!(matches!(
        scene.next_intent(),
        Some(Intent::TouchedSince { .. })
    ));
}

#[test]
fn only_data_that_was_fetched_is_taken_as_newer() {
    let mut scene = Scene::new();
    let question = scene.asks();
    scene.is_welcomed(question, 1000);
    assert!(scene.next_intent().is_some());
    let ranges = Vec::new();
    let touched = Completion::Touched { ranges };
    scene.member.handle_completion(scene.now, touched);
    assert!(matches!(scene.next_intent(), Some(Intent::Rewind { .. })));
    let records = Body::Records {
        from: TAIL,
        records: vec![0; 64].into(),
        data: Vec::new(),
    };
    scene.hear(0, records);
    scene.ingests(NamedData::Required);
    let (first, second) = (4096..8192, 12288..16384);
    scene.ingested(std::slice::from_ref(&first));
    scene.fetches(&first);
    scene.ingests(NamedData::Required);
    // No part of this was fetched yet.
    scene.ingested(std::slice::from_ref(&second));
    scene.fetches(&second);
    scene.ingests(NamedData::Required);
    scene.ingested(&[second]);
    scene.ingests(NamedData::Reported);
}

/// A member with this tail and a map of these members, in which 1 is primary and alone in sync.
fn member(tail: u64, members: Vec<u32>) -> Member {
    let lineage = vec![START];
    let map = UnitMap {
        version: 1,
        epoch: 1,
        primary: 1,
        members,
        metadata_only: Vec::new(),
        in_sync: vec![1],
        lineage,
        image: 0,
    };
    let tail = Sequence::new(1, tail);
    let (options, defects) = (UnitOptions::default(), Defects::default());
    let mut member = Member::new(0, options, defects, tail, vec![START], 0);
    member.handle_map(0, map);
    member
}

#[test]
fn a_pool_that_was_only_formatted_is_refilled_as_a_whole() {
    for (tail, expected) in [(START.start, 0), (TAIL, TAIL)] {
        let mut member = member(tail, vec![0, 1]);
        member.handle_timeout(100 * MILLISECOND);
        let sent = member.poll_transmit().expect("it asks");
        let said = Message::decode(&sent.bytes, &Defects::default()).expect("a message");
        let version = 1;
        let from = expected;
        assert_eq!(said.body, Body::Join { from, version });
    }
}

#[test]
fn a_node_outside_of_the_unit_sends_no_requests() {
    let mut member = member(TAIL, vec![1, 2]);
    assert_eq!(member.poll_timeout(), None);
    member.handle_timeout(100 * MILLISECOND);
    assert!(member.poll_transmit().is_none());
}
