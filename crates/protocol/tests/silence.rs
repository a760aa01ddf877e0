//! When a primary leaves out members that do not answer.
#![forbid(unsafe_code)]

use protocol::member::{Completion, Intent};
use protocol::wire::{Body, Bytes, Envelope, Message};
use protocol::{Defects, EpochStart, Member, NO_NODE, NodeId, Sequence, UnitMap, UnitOptions};

const TAIL: u64 = 640;

/// Member 0 is primary, and all members are in sync.
struct Scene {
    member: Member,
    now: u64,
    /// When the last heartbeat was sent that a member has answered.
    answered: u64,
    /// A member that answers, and makes no progress.
    stuck: Option<NodeId>,
    /// A member that asks to follow by an older map whenever it gets a heartbeat, and answers none.
    joins: Option<NodeId>,
}

impl Scene {
    fn of(members: &[NodeId]) -> Scene {
        let start = EpochStart {
            epoch: 1,
            start: 64,
        };
        let alone = UnitMap {
            version: 1,
            epoch: 1,
            primary: NO_NODE,
            members: vec![0],
            in_sync: vec![0],
            lineage: vec![start],
            ..UnitMap::default()
        };
        let tail = Sequence::new(1, TAIL);
        let options = UnitOptions::default();
        let history = alone.lineage.clone();
        let mut member = Member::new(0, options, Defects::default(), tail, history, 0);
        member.handle_map(0, alone);
        let mut scene = Scene {
            member,
            now: 0,
            answered: 0,
            stuck: None,
            joins: None,
        };
        let map = scene.run(u64::MAX, &[]).expect("it proposes itself");
        let tail = Sequence::new(map.epoch, TAIL);
        let opened = Completion::Opened {
            tail,
            sessions: Vec::new(),
            grants: Vec::new(),
        };
        let (now, epoch) = (scene.now, map.epoch);
        let member = &mut scene.member;
        member.handle_completion(now, Completion::Proposed { map });
        member.handle_completion(now, opened);
        assert_eq!(member.map().epoch, epoch);
        let map = UnitMap {
            members: members.to_vec(),
            in_sync: members.to_vec(),
            ..member.map().next()
        };
        member.handle_map(now, map);
        scene
    }

    fn hear(&mut self, from: NodeId, sent_at_ns: u64) {
        let lacks = if self.stuck == Some(from) { 64 } else { 0 };
        let body = Body::Lease {
            sent_at_ns,
            tail: TAIL - lacks,
            is_caught_up: true,
        };
        self.receive(from, body);
    }

    fn join(&mut self, from: NodeId) {
        let version = self.member.map().version - 1;
        self.receive(
            from,
            Body::Join {
                from: TAIL,
                version,
            },
        );
    }

    fn receive(&mut self, from: NodeId, body: Body) {
        let envelope = Envelope {
            cluster: UnitOptions::default().cluster,
            epoch: self.member.map().epoch,
            from,
            ..Envelope::default()
        };
        let bytes = Bytes::from(Message { envelope, body }.encode(false));
        self.member.handle_message(self.now, &bytes);
    }

    fn proposal(&mut self) -> Option<UnitMap> {
        let mut intents = std::iter::from_fn(|| self.member.poll_intent());
        intents.find_map(|intent| match intent {
            Intent::Propose { map } => Some(map),
            _ => None,
        })
    }

    /// The primary does what is due in this time, and these members answer its heartbeats at once. Ends when it proposes a map.
    fn run(&mut self, for_ns: u64, answering: &[NodeId]) -> Option<UnitMap> {
        let end = self.now.saturating_add(for_ns);
        loop {
            let due = self.member.poll_timeout().expect("something is due");
            if due > end {
                self.now = end;
                return None;
            }
            self.now = self.now.max(due);
            self.member.handle_timeout(self.now);
            while let Some(sent) = self.member.poll_transmit() {
                let message = Message::decode(&sent.bytes, &Defects::default());
                let Ok(Body::Heartbeat { sent_at_ns, .. }) = message.map(|it| it.body) else {
                    continue;
                };
                if let Some(from) = self.joins.filter(|joins| sent.to.contains(joins)) {
                    self.join(from);
                }
                for from in sent.to.iter().filter(|to| answering.contains(to)) {
                    self.hear(*from, sent_at_ns);
                    self.answered = sent_at_ns;
                }
            }
            if let Some(map) = self.proposal() {
                return Some(map);
            }
        }
    }
}

fn lease_ns() -> u64 {
    UnitOptions::default().lease_ns
}

#[test]
fn a_silent_member_is_left_out_after_one_lease_if_most_members_answer() {
    for (members, answering, rest) in [
        (vec![0, 1, 2], vec![1], vec![0, 1]),
        (vec![0, 1, 2, 3, 4], vec![1, 4], vec![0, 1, 4]),
    ] {
        let mut primary = Scene::of(&members);
        assert_eq!(primary.run(3 * lease_ns(), &members), None);
        let silent_since = primary.answered;
        let map = primary.run(3 * lease_ns(), &answering).expect("a proposal");
        assert_eq!(map.in_sync, rest);
        assert_eq!(primary.now - silent_since, lease_ns() + 1);
    }
}

#[test]
fn a_member_in_sync_that_joins_by_an_older_map_is_silent() {
    let members = [0, 1, 2];
    let mut primary = Scene::of(&members);
    assert_eq!(primary.run(3 * lease_ns(), &members), None);
    let silent_since = primary.answered;
    primary.joins = Some(2);
    let map = primary.run(3 * lease_ns(), &[1]).expect("a proposal");
    assert_eq!(map.in_sync, [0, 1]);
    assert_eq!(primary.now - silent_since, lease_ns() + 1);
}

#[test]
fn members_are_left_out_after_two_leases_if_most_are_silent() {
    for (members, answering) in [
        (vec![0, 1], vec![]),
        (vec![0, 1, 2], vec![]),
        (vec![0, 1, 2, 3], vec![2]),
    ] {
        let mut primary = Scene::of(&members);
        assert_eq!(primary.run(3 * lease_ns(), &members), None);
        let silent_since = primary.answered;
        let map = primary.run(3 * lease_ns(), &answering).expect("a proposal");
        assert_eq!(map.in_sync.len(), 1 + answering.len());
        assert_eq!(primary.now - silent_since, 2 * lease_ns() + 1);
    }
}

#[test]
fn a_primary_that_was_paused_waits_for_answers() {
    let members = [0, 1, 2];
    for pause in [lease_ns(), 10 * lease_ns()] {
        let mut primary = Scene::of(&members);
        assert_eq!(primary.run(3 * lease_ns(), &members), None);
        let sent_at = primary.answered;
        primary.now += pause;
        // An answer that was already there does not tell that another one is missing.
        primary.hear(1, sent_at);
        assert_eq!(primary.proposal(), None);
        assert_eq!(primary.run(lease_ns() / 2, &[1]), None);
        assert_eq!(primary.run(3 * lease_ns(), &members), None);
        let silent_since = primary.answered;
        let map = primary.run(3 * lease_ns(), &[1]).expect("a proposal");
        assert_eq!(map.in_sync, [0, 1]);
        assert_eq!(primary.now - silent_since, lease_ns() + 1);
    }
}

/// The messages that came meanwhile are handled one after the other, and that is a part of the pause.
#[test]
fn a_pause_lasts_until_the_heartbeat_is_sent() {
    let (members, heartbeat_ns) = ([0, 1, 2], UnitOptions::default().heartbeat_ns);
    let mut primary = Scene::of(&members);
    assert_eq!(primary.run(3 * lease_ns(), &members), None);
    let (sent_at, due) = (primary.answered, primary.answered + heartbeat_ns);
    primary.now += 10 * lease_ns();
    for _ in 0..7 {
        primary.hear(1, sent_at);
        primary.now += heartbeat_ns / 3;
    }
    let pause = primary.now - due;
    let map = primary.run(3 * lease_ns(), &[1]).expect("a proposal");
    assert_eq!(map.in_sync, [0, 1]);
    assert_eq!(primary.now - sent_at, pause + lease_ns() + 1);
}

/// Pauses make up 600 ms of each second: at least 400 ms of it count as silence, and as time without progress.
#[test]
fn a_primary_that_is_paused_again_and_again_leaves_out_silent_and_stuck_members() {
    let (running, paused) = (lease_ns() * 2 / 5, lease_ns() * 3 / 5);
    let bound = |leases: u64| (leases * 5 / 2 + 1) * lease_ns();
    let members = [0, 1, 2, 3, 4];
    let mut primary = Scene::of(&members);
    primary.stuck = Some(4);
    assert_eq!(primary.run(running, &members), None);
    let (began, mut removed) = (primary.now, Vec::new());
    while primary.now < began + 2 * bound(4) {
        primary.now += paused;
        let end = primary.now + running;
        while let Some(map) = primary.run(end - primary.now, &[1, 2, 4]) {
            removed.push((primary.now - began, map.in_sync.clone()));
            primary.member.handle_map(primary.now, map);
        }
    }
    let [(silent, without_silent), (stuck, without_stuck)] = &removed[..] else {
        panic!("{removed:?}");
    };
    assert_eq!(*without_silent, [0, 1, 2, 4]);
    assert!(*silent <= bound(1), "{removed:?}");
    assert_eq!(*without_stuck, [0, 1, 2]);
    assert!(*stuck <= bound(4), "{removed:?}");
}
