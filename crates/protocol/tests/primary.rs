//! A primary's handling of writes, and what it ships of them by a group.
#![forbid(unsafe_code)]

mod common;

use common::{CLIENT, FILE, SESSION, decoded, first_map, message, message_of, refusals, write};
use operations::{Lock, LockKind, LockSpace, WAIT_ENDED, WriteAt};
use protocol::leases::Grant;
use protocol::member::{Completion, Intent, OwnerChange, SessionRecord, Ticket};
use protocol::wire::{Acknowledge, Body, ErrorCode, FileId, Operation, Outcome, Replay};
use protocol::{Defects, Member, NO_NODE, NodeId, Sequence, UnitMap, UnitOptions};

/// The only member of a unit, elected again, with one session in its image.
fn primary() -> (Member, u64) {
    primary_with(UnitOptions::default())
}

fn primary_with(options: UnitOptions) -> (Member, u64) {
    primary_of(options, &[(SESSION, CLIENT)])
}

/// The same with these sessions of clients.
fn primary_of(options: UnitOptions, sessions: &[(u64, NodeId)]) -> (Member, u64) {
    let map = UnitMap {
        primary: NO_NODE,
        ..first_map()
    };
    let tail = Sequence::new(1, 640);
    let defects = Defects::default();
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
    let record = |(index, &(session, client))| SessionRecord {
        index,
        session,
        client,
        slots: vec![(3, Outcome::default()); 2],
        locks: Vec::new(),
        has_grant: false,
    };
    let opened = Completion::Opened {
        tail,
        sessions: (0..).zip(sessions).map(record).collect(),
        grants: Vec::new(),
    };
    member.handle_completion(now, opened);
    (member, now)
}

/// Operations for the store to execute.
fn executes(member: &mut Member) -> Vec<Ticket> {
    let intents = std::iter::from_fn(|| member.poll_intent());
    let ticket = |intent| match intent {
        Intent::Execute { ticket, .. } => Some(ticket),
        _ => None,
    };
    intents.filter_map(ticket).collect()
}

/// A client without holds resumes its session.
fn resumption(replays: Vec<Replay>) -> Body {
    Body::Resume {
        holds: 0,
        replays,
        owned: Vec::new(),
    }
}

fn replay(slot: u16, request: u64) -> Replay {
    Replay {
        sequence: Sequence::new(1, 900 + request),
        slot,
        request,
        operation: write().into(),
    }
}

#[test]
fn a_primary_that_cannot_carry_out_a_replay_says_so() {
    let (mut member, now) = primary();
    let epoch = member.map().epoch;
    let replays = vec![replay(0, 4)];
    let resume = message(epoch, CLIENT, 0, resumption(replays));
    member.handle_message(now, &resume);
    let tickets = executes(&mut member);
    assert_eq!(tickets.len(), 1);
    let executed = Completion::Executed {
        ticket: tickets[0],
        outcome: Outcome::failed(ErrorCode::NoSpace),
        position: None,
        tail: 640,
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

/// The next primary considers numbers below the last one of a slot as done.
#[test]
fn after_a_refused_replay_no_other_of_its_slot_is_carried_out() {
    let (mut member, now) = primary();
    let replays = vec![replay(0, 4), replay(0, 5), replay(1, 6)];
    let resume = message(member.map().epoch, CLIENT, 0, resumption(replays));
    member.handle_message(now, &resume);
    let mut requests = Vec::new();
    while let Some(intent) = member.poll_intent() {
        let Intent::Execute { ticket, slot, .. } = intent else {
            continue;
        };
        requests.push(slot.expect("a write has a slot").request);
        let executed = Completion::Executed {
            ticket,
            outcome: Outcome::failed(ErrorCode::NoSpace),
            position: None,
            tail: 640,
            depends_on: 640,
            is_by_reference: false,
        };
        member.handle_completion(now, executed);
    }
    assert_eq!(requests, [4, 6]);
}

#[test]
fn data_about_to_be_named_is_not_changed_in_place() {
    let (mut member, now) = primary();
    let epoch = member.map().epoch;
    let named = Operation::Write {
        file: FILE,
        at: WriteAt::Offset(0),
        data: vec![7; 12288].into(),
        drop_privileges: None,
    };
    // Both wait until the session has resumed, and are taken up together.
    for (slot, operation) in [(0, named), (1, write())] {
        let request = Body::Request {
            slot,
            acknowledge: Acknowledge::Primary,
            wants_lease: false,
            operation: operation.into(),
        };
        member.handle_message(now, &message(epoch, CLIENT, 4, request));
    }
    let resume = message(epoch, CLIENT, 0, resumption(Vec::new()));
    member.handle_message(now, &resume);
    let now = member.poll_timeout().expect("a heartbeat is due some time");
    member.handle_timeout(now);
    let tickets = executes(&mut member);
    assert_eq!(tickets.len(), 1, "the other one waits");
    let executed = Completion::Executed {
        ticket: tickets[0],
        outcome: Outcome::default(),
        position: Some(1088),
        tail: 1088,
        depends_on: 1088,
        is_by_reference: true,
    };
    member.handle_completion(now, executed);
    assert_eq!(executes(&mut member).len(), 1);
}

#[test]
fn changes_wait_for_enough_members_in_sync_and_reads_go_on() {
    let options = UnitOptions {
        min_sync: 2,
        ..UnitOptions::default()
    };
    let (mut member, now) = primary_with(options);
    let epoch = member.map().epoch;
    let resume = message(epoch, CLIENT, 0, resumption(Vec::new()));
    member.handle_message(now, &resume);
    member.handle_message(now, &message(epoch, CLIENT, 4, request(false, write())));
    assert_eq!(executes(&mut member), []);
    let read = Operation::Read {
        file: FILE,
        offset: 0,
        length: 64,
        note_read: false,
    };
    member.handle_message(now, &message(epoch, CLIENT, 5, request(false, read)));
    assert_eq!(executes(&mut member).len(), 1, "the read");
    let map = UnitMap {
        members: vec![0, 1],
        in_sync: vec![0, 1],
        ..member.map().next()
    };
    member.handle_map(now, map);
    let lease = Body::Lease {
        sent_at_ns: now,
        tail: 640,
        is_caught_up: true,
    };
    member.handle_message(now, &message(epoch, 1, 0, lease));
    let now = member.poll_timeout().expect("a heartbeat is due some time");
    member.handle_timeout(now);
    assert_eq!(executes(&mut member).len(), 1, "the write");
}

/// A primary, after the resumption of all its sessions.
fn resumed(options: UnitOptions, sessions: &[(u64, NodeId)]) -> (Member, u64) {
    let (mut member, now) = primary_of(options, sessions);
    let epoch = member.map().epoch;
    for session in sessions {
        let resume = resumption(Vec::new());
        member.handle_message(now, &message_of(*session, epoch, 0, resume));
    }
    (member, now)
}

#[test]
fn a_primary_has_as_many_sessions_as_it_may() {
    let options = UnitOptions::default();
    let most = options.sessions;
    assert!(most >= 4096);
    let number = |index: u32| ((1 << 32) + u64::from(index) + 1, CLIENT + index);
    let sessions: Vec<_> = (1..most).map(number).collect();
    let (mut member, now) = resumed(options, &sessions);
    let epoch = member.map().epoch;
    let mut open = |client| {
        let asked = message_of((0, client), epoch, 1, Body::OpenSession);
        member.handle_message(now, &asked);
        let mut intents = std::iter::from_fn(|| member.poll_intent());
        intents.find_map(|intent| match intent {
            Intent::OpenSession { index, .. } => Some(index),
            _ => None,
        })
    };
    assert_eq!(open(CLIENT + most), Some(most - 1));
    assert_eq!(open(CLIENT + most + 1), None);
}

/// A client's request by its first slot.
fn request(wants_lease: bool, operation: Operation) -> Body {
    Body::Request {
        slot: 0,
        acknowledge: Acknowledge::Primary,
        wants_lease,
        operation: operation.into(),
    }
}

/// The store has executed an operation, and made no record.
fn executed(ticket: Ticket) -> Completion {
    Completion::Executed {
        ticket,
        outcome: Outcome::default(),
        position: None,
        tail: 640,
        depends_on: 640,
        is_by_reference: false,
    }
}

/// A mount that is stopped, or was killed, is such a session. The times are those of the primary's clock.
#[test]
fn a_silent_session_delays_a_change_until_its_lease_ends() {
    const SILENT: (u64, NodeId) = (2 << 32 | 1, CLIENT + 1);
    let options = UnitOptions::default();
    let sessions = [(SESSION, CLIENT), SILENT];
    let (mut member, mut now) = resumed(options.clone(), &sessions);
    let epoch = member.map().epoch;
    let read = Operation::Read {
        file: FILE,
        offset: 0,
        length: 64,
        note_read: false,
    };
    member.handle_message(now, &message_of(SILENT, epoch, 4, request(true, read)));
    let tickets = executes(&mut member);
    member.handle_completion(now, executed(tickets[0]));
    let granted = now;
    member.handle_message(now, &message(epoch, CLIENT, 4, request(false, write())));
    while executes(&mut member).is_empty() {
        now = member.poll_timeout().expect("the lease ends");
        assert!(now - granted <= options.lease_ns, "{}", now - granted);
        member.handle_timeout(now);
    }
    assert_eq!(now - granted, options.lease_ns);
    let sent = std::iter::from_fn(|| member.poll_transmit());
    let is_recall = |it: &protocol::Transmit| matches!(decoded(it).body, Body::Recall { .. });
    assert!(sent.filter(is_recall).count() > 0);
}

/// Without leases of others the names of a change are not looked up.
#[test]
fn a_read_before_a_change_of_a_name_in_the_same_step_grants_no_lease() {
    const OTHER: (u64, NodeId) = (2 << 32 | 1, CLIENT + 1);
    let sessions = [(SESSION, CLIENT), OTHER];
    let (mut member, now) = resumed(UnitOptions::default(), &sessions);
    let epoch = member.map().epoch;
    let reads = Operation::Attributes { file: FILE };
    member.handle_message(now, &message_of(OTHER, epoch, 4, request(true, reads)));
    let directory = FileId { inode: 1, ..FILE };
    let name = b"leads to the file".to_vec();
    let removes = Operation::Unlink { directory, name };
    member.handle_message(now, &message(epoch, CLIENT, 4, request(false, removes)));
    let tickets = executes(&mut member);
    assert_eq!(tickets.len(), 2, "the change need not wait");
    member.handle_completion(now, executed(tickets[0]));
    let bodies = std::iter::from_fn(|| member.poll_transmit()).map(|it| decoded(&it).body);
    let grants = bodies.filter_map(|it| match it {
        Body::Reply { grant, .. } => Some(grant),
        _ => None,
    });
    let grants: Vec<Grant> = grants.collect();
    assert_eq!(grants, [Grant::default()]);
}

/// An owner has sent what it has answered, and the primary takes longer to execute it than the owner has time.
#[test]
fn an_owner_does_not_lose_its_session_while_its_writes_wait_at_the_primary() {
    const READER: (u64, NodeId) = (2 << 32 | 1, CLIENT + 1);
    let options = UnitOptions::default();
    let sessions = [(SESSION, CLIENT), READER];
    let (mut member, mut now) = resumed(options.clone(), &sessions);
    let epoch = member.map().epoch;
    let request = |slot, wants_lease, operation: Operation| Body::Request {
        slot,
        acknowledge: Acknowledge::Primary,
        wants_lease,
        operation: operation.into(),
    };
    let executed = |ticket| Completion::Executed {
        ticket,
        outcome: Outcome::done(),
        position: Some(640),
        tail: 1088,
        depends_on: 1088,
        is_by_reference: false,
    };
    let write_again = |member: &mut Member, now, number| {
        member.handle_message(
            now,
            &message(epoch, CLIENT, number, request(0, true, write())),
        );
        executes(member)
    };
    let first = write_again(&mut member, now, 4);
    member.handle_completion(now, executed(first[0]));
    let owner = vec![OwnerChange {
        inode: FILE.inode,
        session: Some(SESSION),
    }];
    assert_eq!(member.owner_changes(), owner);
    let read = Operation::Read {
        file: FILE,
        offset: 0,
        length: 64,
        note_read: false,
    };
    let read = request(0, false, read);
    member.handle_message(now, &message_of(READER, epoch, 4, read));
    let second = write_again(&mut member, now, 5);
    let end = now + 3 * options.session_ns;
    while now < end {
        now = member.poll_timeout().expect("a session ends some time");
        member.handle_timeout(now);
        let intents = std::iter::from_fn(|| member.poll_intent());
        assert_eq!(intents.count(), 0, "no session ends, and nothing is read");
        for session in sessions {
            member.handle_message(now, &message_of(session, epoch, 0, Body::KeepAlive));
        }
    }
    member.handle_completion(now, executed(second[0]));
    let recall =
        std::iter::from_fn(|| member.poll_transmit()).find_map(|it| match decoded(&it).body {
            Body::Recall { inode, number } => Some(Body::RecallAnswer { inode, number }),
            _ => None,
        });
    let answer = recall.expect("the file is recalled");
    member.handle_message(now, &message(epoch, CLIENT, 0, answer));
    assert_eq!(executes(&mut member).len(), 1, "the read");
}

/// The other session keeps the layout without a lease, and does not learn of writes that the owner answers.
#[test]
fn a_file_of_which_another_session_requests_the_layout_is_not_granted() {
    const OTHER: (u64, NodeId) = (2 << 32 | 1, CLIENT + 1);
    let sessions = [(SESSION, CLIENT), OTHER];
    let (mut member, now) = resumed(UnitOptions::default(), &sessions);
    let epoch = member.map().epoch;
    let done = |ticket, position| Completion::Executed {
        ticket,
        outcome: Outcome::done(),
        position,
        tail: 1088,
        depends_on: 1088,
        is_by_reference: false,
    };
    member.handle_message(now, &message(epoch, CLIENT, 4, request(true, write())));
    let layout = Operation::Layout {
        file: FILE,
        offset: 0,
        length: 64,
    };
    member.handle_message(now, &message_of(OTHER, epoch, 4, request(false, layout)));
    let tickets = executes(&mut member);
    assert_eq!(tickets.len(), 2);
    member.handle_completion(now, done(tickets[0], Some(640)));
    assert_eq!(member.owner_changes(), []);
    member.handle_completion(now, done(tickets[1], None));
    member.handle_message(now, &message(epoch, CLIENT, 5, request(true, write())));
    let tickets = executes(&mut member);
    member.handle_completion(now, done(tickets[0], Some(1088)));
    assert_eq!(member.owner_changes().len(), 1);
}

/// The client gives a wait that lasts another number.
#[test]
fn a_wait_that_has_ended_is_not_kept_again_and_its_client_is_informed() {
    let (mut member, now) = primary();
    let epoch = member.map().epoch;
    let resume = message(epoch, CLIENT, 0, resumption(Vec::new()));
    member.handle_message(now, &resume);
    let lock = Lock {
        space: LockSpace::Ranges,
        kind: LockKind::Write,
        start: 0,
        end: 9,
        owner: 1,
        handle: 1,
        process: 1,
    };
    let file = FILE;
    let waits = |wait| Operation::WaitLock { file, lock, wait };
    let operations = [waits(1), Operation::EndWait { wait: 1 }, waits(1), waits(2)];
    let counts = (4..).zip(operations).filter_map(|(number, operation)| {
        let body = request(false, operation);
        member.handle_message(now, &message(epoch, CLIENT, number, body));
        let sent: Vec<_> = std::iter::from_fn(|| member.poll_transmit()).collect();
        sent.iter().find_map(|it| match decoded(it).body {
            Body::Reply { outcome, .. } => Some(outcome.count),
            _ => None,
        })
    });
    assert_eq!(counts.collect::<Vec<_>>(), [1, 0, WAIT_ENDED, 1]);
}

/// The client cannot repeat its wait meanwhile.
#[test]
fn a_pause_of_the_primary_ends_no_wait_for_a_lock() {
    let options = UnitOptions::default();
    let (mut member, mut now) = resumed(options.clone(), &[(SESSION, CLIENT)]);
    let epoch = member.map().epoch;
    let wait_of = |owner| Operation::WaitLock {
        file: FILE,
        lock: Lock {
            space: LockSpace::Ranges,
            kind: LockKind::Write,
            start: 0,
            end: 9,
            owner,
            handle: owner,
            process: 1,
        },
        wait: owner,
    };
    let has_turn = |member: &mut Member, (now, number): (u64, u64), owner| {
        let body = request(false, wait_of(owner));
        member.handle_message(now, &message(epoch, CLIENT, number, body));
        let mut sent = std::iter::from_fn(|| member.poll_transmit());
        sent.find_map(|it| match decoded(&it).body {
            Body::Reply { outcome, .. } => Some(outcome.count == 1),
            _ => None,
        })
    };
    assert_eq!(has_turn(&mut member, (now, 4), 1), Some(true));
    now += 3 * options.session_ns;
    member.handle_timeout(now);
    // The lock is reserved for the first owner, which has its turn.
    assert_eq!(has_turn(&mut member, (now, 5), 2), Some(false));
}

/// A primary that ships: records begin at 640.
struct Shipping {
    member: Member,
    now: u64,
    request: u64,
    position: u64,
}

/// Records that are read: from where, for which members, and whether for the group.
type Read = (u64, Vec<NodeId>, bool);

impl Shipping {
    /// The primary of members 1 and 2. Member 1 is in sync and has all.
    fn new() -> Shipping {
        Shipping::with(UnitOptions::default())
    }

    fn with(options: UnitOptions) -> Shipping {
        let (mut member, now) = primary_with(options);
        let map = UnitMap {
            members: vec![0, 1, 2],
            in_sync: vec![0, 1],
            ..member.map().next()
        };
        member.handle_map(now, map);
        let mut shipping = Shipping {
            member,
            now,
            request: 3,
            position: 640,
        };
        let lease = Body::Lease {
            sent_at_ns: now,
            tail: 640,
            is_caught_up: true,
        };
        shipping.hear(1, lease);
        let replays = Vec::new();
        shipping.hear(CLIENT, resumption(replays));
        shipping
    }

    fn hear(&mut self, from: u32, body: Body) {
        let message = message(self.member.map().epoch, from, self.request, body);
        self.member.handle_message(self.now, &message);
    }

    fn set_group(&mut self, members: &[NodeId], room: u32) {
        self.member.set_group(self.now, members, room);
    }

    /// A client writes 64 bytes of records.
    fn write(&mut self) {
        self.execute(write(), false);
    }

    /// A client writes 64 bytes of records that name 64 bytes of data, of another file each time.
    fn write_named(&mut self) {
        let mut operation = write();
        if let Operation::Write { file, .. } = &mut operation {
            file.inode += self.request;
        }
        self.execute(operation, true);
    }

    fn execute(&mut self, operation: Operation, is_by_reference: bool) {
        self.request += 1;
        self.hear(CLIENT, request(false, operation));
        let tickets = executes(&mut self.member);
        assert_eq!(tickets.len(), 1);
        self.position += 64;
        let executed = Completion::Executed {
            ticket: tickets[0],
            outcome: Outcome::default(),
            position: Some(self.position),
            tail: self.position,
            depends_on: self.position,
            is_by_reference,
        };
        self.member.handle_completion(self.now, executed);
    }

    /// Reads what is to be read.
    fn reads(&mut self) -> Vec<Read> {
        let mut reads = Vec::new();
        while let Some(intent) = self.member.poll_intent() {
            let Intent::ReadRecords {
                from,
                below,
                to,
                is_for_group,
                ..
            } = intent
            else {
                continue;
            };
            reads.push((from, to.clone(), is_for_group));
            let length = below.min(self.position) - from;
            let records = Completion::Records {
                from,
                to,
                records: Some(vec![0; length as usize].into()),
                data: Vec::new(),
                is_for_group,
            };
            self.member.handle_completion(self.now, records);
        }
        reads
    }
}

#[test]
fn a_member_that_rejoins_does_not_hold_up_the_group() {
    let mut primary = Shipping::new();
    let version = primary.member.map().version;
    primary.hear(2, Body::Join { from: 128, version });
    assert_eq!(primary.reads(), [(128, vec![2], false)]);
    primary.set_group(&[1, 2], 4);
    let tail = Body::Tail {
        tail: 128,
        is_caught_up: false,
    };
    primary.hear(2, tail);
    primary.write();
    // Member 2 has to fetch data, and says nothing.
    assert!(primary.reads().contains(&(640, vec![1], true)));
    primary.write();
    assert!(primary.reads().contains(&(704, vec![1], true)));
}

#[test]
fn a_counted_member_that_is_lost_before_it_is_in_sync_is_given_up() {
    let mut primary = Shipping::new();
    let tail = Body::Tail {
        tail: 640,
        is_caught_up: true,
    };
    primary.hear(2, tail);
    let end = primary.now + 2 * UnitOptions::default().lease_ns;
    while primary.now < end {
        primary.now = primary.member.poll_timeout().expect("a heartbeat is due");
        primary.member.handle_timeout(primary.now);
        let lease = Body::Lease {
            sent_at_ns: primary.now,
            tail: 640,
            is_caught_up: true,
        };
        primary.hear(1, lease);
    }
    primary.write();
}

#[test]
fn a_member_that_joins_the_group_gets_what_its_old_link_lost() {
    let mut primary = Shipping::new();
    primary.set_group(&[1], 4);
    primary.write();
    assert_eq!(primary.reads(), [(640, vec![1], true)]);
    primary.set_group(&[], 4);
    assert_eq!(primary.reads(), []);
    primary.set_group(&[1], 4);
    assert_eq!(primary.reads(), [(640, vec![1], true)]);
}

#[test]
fn a_gap_that_stays_is_filled_while_the_group_is_busy() {
    let mut primary = Shipping::new();
    primary.set_group(&[1], 4);
    for question in 0..3 {
        primary.write();
        let position = 640 + 64 * question;
        assert_eq!(primary.reads(), [(position, vec![1], true)]);
        primary.hear(1, Body::Gap { from: 640 });
        let again = [(640, vec![1], true)];
        let is_filled = question == 2;
        assert_eq!(primary.reads(), again[..usize::from(is_filled)]);
        primary.now += UnitOptions::default().retry_ns;
    }
}

#[test]
fn a_group_gets_no_more_shipments_than_it_has_room_for() {
    let mut primary = Shipping::new();
    primary.set_group(&[1], 1);
    primary.write();
    assert_eq!(primary.reads(), [(640, vec![1], true)]);
    primary.write();
    assert_eq!(primary.reads(), []);
    primary.set_group(&[1], 1);
    assert_eq!(primary.reads(), [(704, vec![1], true)]);
}

#[test]
fn a_member_that_takes_data_slowly_holds_back_the_sender() {
    let mut primary = Shipping::with(UnitOptions {
        push: 100,
        ..UnitOptions::default()
    });
    primary.write_named();
    assert_eq!(primary.reads(), [(640, vec![1], false)]);
    primary.write_named();
    assert_eq!(primary.reads(), [(704, vec![1], false)]);
    primary.write_named();
    assert_eq!(primary.reads(), []);
    let tail = Body::Tail {
        tail: 704,
        is_caught_up: true,
    };
    primary.hear(1, tail);
    assert_eq!(primary.reads(), [(768, vec![1], false)]);
}
