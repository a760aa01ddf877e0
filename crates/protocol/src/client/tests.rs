//! Messages and events of a client, one by one.

use operations::WriteAt;

use super::*;
use crate::EpochStart;
use crate::leases::Grant;
use crate::wire::active::{Extent, LAYOUT_MAX as LAYOUT, Layout};

const SESSION: u64 = 7;

fn hear(client: &mut Client, request: u64, body: Body) {
    let envelope = Envelope {
        cluster: UnitOptions::default().cluster,
        epoch: 1,
        session: SESSION,
        request,
        ..Envelope::default()
    };
    client.handle_message(request, &Message { envelope, body }.encode(false).into());
}

fn map_of(primary: NodeId, epoch: u32) -> UnitMap {
    UnitMap {
        version: epoch.into(),
        epoch,
        primary,
        members: vec![0, 1],
        in_sync: vec![0, 1],
        lineage: vec![EpochStart { epoch, start: 0 }],
        ..UnitMap::default()
    }
}

/// Kinds of the messages that it sends, and their receivers.
fn sent(client: &mut Client) -> Vec<(NodeId, u8)> {
    let kind = |it: Transmit| (it.to[0], it.bytes[3]);
    std::iter::from_fn(|| client.poll_transmit())
        .map(kind)
        .collect()
}

#[test]
fn over_a_reliable_transport_requests_are_sent_again_when_the_link_or_the_primary_changes() {
    const REQUEST: u8 = 37;
    const RESUME: u8 = 39;
    let options = UnitOptions {
        reliable: true,
        ..UnitOptions::default()
    };
    let late = 100 * options.retry_ns;
    let mut client = Client::new(100, options, Defects::default(), 0);
    client.handle_map(0, map_of(0, 1));
    let file = FileId::default();
    client.submit(0, Operation::Sync { file }, Acknowledge::All);
    sent(&mut client);
    hear(&mut client, 0, Body::SessionOpened { slots: 2 });
    let requests = |client: &mut Client| {
        let all = sent(client).into_iter();
        all.filter(|(_, kind)| *kind == REQUEST || *kind == RESUME)
            .collect::<Vec<_>>()
    };
    assert_eq!(requests(&mut client), [(0, REQUEST)]);
    client.handle_timeout(late);
    assert_eq!(requests(&mut client), []);
    client.handle_link(late);
    assert_eq!(requests(&mut client), [(0, REQUEST)]);
    client.handle_map(late, map_of(1, 2));
    assert_eq!(requests(&mut client), [(1, RESUME)]);
    // A session is resumed by time, too.
    client.handle_timeout(2 * late);
    assert_eq!(requests(&mut client), [(1, RESUME)]);
}

#[test]
fn a_primary_without_leases_does_not_say_that_a_session_lasts() {
    let mut client = Client::new(100, UnitOptions::default(), Defects::default(), 0);
    let start = EpochStart { epoch: 1, start: 0 };
    let map = UnitMap {
        version: 1,
        epoch: 1,
        members: vec![0],
        in_sync: vec![0],
        lineage: vec![start],
        ..UnitMap::default()
    };
    client.handle_map(0, map);
    client.submit(
        0,
        Operation::Sync {
            file: FileId::default(),
        },
        Acknowledge::All,
    );
    hear(&mut client, 0, Body::SessionOpened { slots: 2 });
    assert_eq!(client.session(), Some(SESSION));
    let mut fresh_until = |request, valid_ns| {
        let confirmed = 0;
        hear(
            &mut client,
            request,
            Body::Alive {
                confirmed,
                valid_ns,
            },
        );
        client.fresh_until()
    };
    assert_eq!(fresh_until(1000, 0), 0);
    let lasts = UnitOptions::default().session_ns / 100 * 95;
    assert_eq!(fresh_until(2000, 1), 2000 + lasts);
    assert_eq!(fresh_until(3000, 0), 2000 + lasts);
}

const BLOCK: usize = 4096;

/// A client of a unit of two, with a session, keys to both and a grant of blocks 0 and 1.
fn active() -> Client {
    let options = UnitOptions {
        reliable: true,
        ..UnitOptions::default()
    };
    let client = Client::new(100, options, Defects::default(), 0);
    let mut client = client.with_mode(Mode::CLIENT_ACTIVE);
    client.handle_map(0, map_of(0, 1));
    client
}

/// The bodies that it sends.
fn said(client: &mut Client) -> Vec<(u64, Body)> {
    let all = std::iter::from_fn(|| client.poll_transmit());
    let decode = |it: Transmit| Message::decode(&it.bytes, &Defects::default());
    let messages = all.map(|it| decode(it).expect("it is whole"));
    messages.map(|it| (it.envelope.request, it.body)).collect()
}

fn write(seed: u8) -> Operation {
    Operation::Write {
        file: FileId::default(),
        at: WriteAt::Offset(0),
        data: vec![seed; BLOCK].into(),
        drop_privileges: Some(true),
    }
}

/// Answers all requests for blocks, with as many as were asked for.
fn grant(client: &mut Client) {
    for (request, body) in said(client) {
        let Body::Request {
            slot, operation, ..
        } = body
        else {
            continue;
        };
        let Operation::Grant { blocks } = *operation else {
            continue;
        };
        let extent = Extent {
            offset: 0,
            image_offset: 1 << 20,
            blocks,
            checksums: Vec::new(),
        };
        let layout = Layout {
            extents: vec![extent],
            ..Layout::default()
        };
        let outcome = Outcome::with_data(layout.encode());
        let (position, confirmed) = (0, 0);
        hear(
            client,
            request,
            Body::Reply {
                slot,
                outcome,
                position,
                confirmed,
                grant: Grant::default(),
            },
        );
    }
}

fn transfers(client: &mut Client) -> Vec<Transfer> {
    std::iter::from_fn(|| client.poll_transfer()).collect()
}

/// Submits a write, and gives the client all that it asks for before its transfers.
fn begun(client: &mut Client, members: &[NodeId]) -> Vec<Transfer> {
    client.submit(0, write(1), Acknowledge::Primary);
    said(client);
    hear(client, 0, Body::SessionOpened { slots: 4 });
    for member in members {
        client.handle_key(*member, 7);
    }
    client.handle_timeout(0);
    client.submit(0, write(2), Acknowledge::Primary);
    grant(client);
    transfers(client)
}

fn has_write(client: &mut Client) -> bool {
    let is_write = |(_, body): &(u64, Body)| matches!(body, Body::Request { operation, .. } if matches!(**operation, Operation::Write { .. }));
    said(client).iter().any(is_write)
}

#[test]
fn a_member_without_a_key_gets_no_transfers_and_delays_no_other() {
    let mut client = active();
    let begun = begun(&mut client, &[0]);
    let targets: Vec<_> = begun.iter().map(|it| it.to).collect();
    assert!(
        !targets.is_empty() && targets.iter().all(|to| *to == 0),
        "{targets:?}"
    );
}

#[test]
fn without_the_primarys_key_a_write_goes_by_message_at_once() {
    let mut client = active();
    client.submit(0, write(1), Acknowledge::Primary);
    said(&mut client);
    hear(&mut client, 0, Body::SessionOpened { slots: 4 });
    client.handle_key(1, 7);
    said(&mut client);
    client.submit(0, write(2), Acknowledge::Primary);
    assert!(has_write(&mut client));
    assert_eq!(transfers(&mut client), []);
}

#[test]
fn a_write_without_a_grant_goes_by_message() {
    let mut client = active();
    client.submit(0, write(1), Acknowledge::Primary);
    said(&mut client);
    hear(&mut client, 0, Body::SessionOpened { slots: 4 });
    for member in [0, 1] {
        client.handle_key(member, 7);
    }
    client.handle_timeout(0);
    said(&mut client);
    client.submit(0, write(2), Acknowledge::Primary);
    let asked = changes(&mut client);
    let is_grant = |it: &Operation| matches!(it, Operation::Grant { .. });
    let [(request, slot, operation)] = &asked[..] else {
        panic!("{} requests", asked.len());
    };
    assert!(is_grant(operation));
    reply(
        &mut client,
        *request,
        *slot,
        Outcome::failed(ErrorCode::NoSpace),
    );
    assert!(has_write(&mut client));
    assert_eq!(transfers(&mut client), []);
}

#[test]
fn a_write_over_a_lost_link_goes_by_message_and_its_blocks_wait_for_the_transfer() {
    let mut client = active();
    let begun = begun(&mut client, &[0, 1]);
    let lost = begun
        .iter()
        .find(|it| it.to == 1)
        .expect("one to each")
        .clone();
    let free = client.granted_blocks();
    for transfer in &begun {
        let outcome = match transfer.wr_id == lost.wr_id {
            true => TransferOutcome::Lost,
            false => TransferOutcome::Written,
        };
        client.handle_transfer(1, transfer.wr_id, outcome);
    }
    assert!(has_write(&mut client));
    assert_eq!(client.granted_blocks(), free, "it may land later");
    let late = 2 * UnitOptions::default().heartbeat_ns;
    client.handle_timeout(late);
    assert!(
        transfers(&mut client).contains(&lost),
        "it is sent until it is answered"
    );
    client.handle_transfer(late, lost.wr_id, TransferOutcome::Written);
    assert!(client.granted_blocks() > free);
}

/// Changes that it requests, with their numbers and slots.
fn changes(client: &mut Client) -> Vec<(u64, u16, Arc<Operation>)> {
    let requests = said(client).into_iter();
    let requests = requests.filter_map(|(request, body)| match body {
        Body::Request {
            slot, operation, ..
        } => Some((request, slot, operation)),
        _ => None,
    });
    requests.collect()
}

fn reply(client: &mut Client, request: u64, slot: u16, outcome: Outcome) {
    let reply = Body::Reply {
        slot,
        outcome,
        position: 0,
        confirmed: 0,
        grant: Grant::default(),
    };
    hear(client, request, reply);
}

#[test]
fn an_unused_grant_is_returned_when_no_transfer_can_land_and_requested_after_the_answer() {
    let mut client = active();
    let begun = begun(&mut client, &[0, 1]);
    let (lost, others) = begun.split_last().expect("transfers");
    for transfer in others {
        client.handle_transfer(1, transfer.wr_id, TransferOutcome::Written);
    }
    client.handle_transfer(1, lost.wr_id, TransferOutcome::Lost);
    for (request, slot, _) in changes(&mut client) {
        reply(&mut client, request, slot, Outcome::done());
    }
    let late = 2 * UnitOptions::default().grant_unused_ns;
    client.handle_timeout(late);
    assert_eq!(changes(&mut client), [], "the lost one may land");
    assert!(client.granted_blocks() > 0);
    client.handle_transfer(late, lost.wr_id, TransferOutcome::Written);
    let due = late + UnitOptions::default().grant_unused_ns;
    client.handle_timeout(due);
    let returns = changes(&mut client);
    let [(request, slot, operation)] = &returns[..] else {
        panic!("{returns:?}");
    };
    assert_eq!(
        (&**operation, client.granted_blocks()),
        (&Operation::Return, 0)
    );
    client.submit(due, write(3), Acknowledge::Primary);
    assert_eq!(changes(&mut client), []);
    reply(&mut client, *request, *slot, Outcome::done());
    let next = changes(&mut client);
    let is_grant = |operation: &Operation| matches!(operation, Operation::Grant { .. });
    assert!(next.iter().any(|(_, _, it)| is_grant(it)), "{next:?}");
}

#[test]
fn a_write_that_begins_the_second_half_of_the_room_for_unconfirmed_ones_waits_for_all_members() {
    let mut client = active().with_mode(Mode::ServerActive);
    client.submit(0, write(0), Acknowledge::Primary);
    said(&mut client);
    hear(&mut client, 0, Body::SessionOpened { slots: 4 });
    let mut acknowledges = Vec::new();
    for number in 1..UNCONFIRMED_MAX {
        for (request, body) in said(&mut client) {
            let Body::Request {
                slot, acknowledge, ..
            } = body
            else {
                continue;
            };
            acknowledges.push(acknowledge);
            let all = acknowledge == Acknowledge::All;
            let position = acknowledges.len() as u64;
            let reply = Body::Reply {
                slot,
                outcome: Outcome::done(),
                position,
                confirmed: if all { position } else { 0 },
                grant: Grant::default(),
            };
            hear(&mut client, request, reply);
        }
        client.submit(0, write(number as u8), Acknowledge::Primary);
    }
    let waits = acknowledges.iter().position(|it| *it == Acknowledge::All);
    assert_eq!(waits, Some(UNCONFIRMED_MAX / 2));
    let count = |wanted| acknowledges.iter().filter(|it| **it == wanted).count();
    // Its answer confirms all before it.
    assert_eq!(count(Acknowledge::All), 1);
    assert_eq!(count(Acknowledge::Primary), UNCONFIRMED_MAX - 2);
}

#[test]
fn local_reads_wait_for_writes_that_are_only_sent_and_for_a_new_primary() {
    let mut client = Client::new(100, UnitOptions::default(), Defects::default(), 0);
    client.handle_map(0, map_of(0, 1));
    assert_eq!(client.may_read_locally(), None, "there is no session");
    client.submit(0, write(1), Acknowledge::Primary);
    hear(&mut client, 0, Body::SessionOpened { slots: 2 });
    assert_eq!(client.may_read_locally(), Some(SESSION));
    client.submit(0, write(2), Acknowledge::Sent);
    assert_eq!(client.may_read_locally(), None, "its user thinks it done");
    let reply = Body::Reply {
        slot: 1,
        outcome: Outcome::done(),
        position: 10,
        confirmed: 0,
        grant: Grant::default(),
    };
    hear(&mut client, 1, reply);
    assert_eq!(client.may_read_locally(), Some(SESSION));
    client.handle_map(0, map_of(1, 2));
    assert_eq!(client.may_read_locally(), None, "it has not resumed");
    let client = client.with_mode(Mode::CLIENT_ACTIVE);
    assert_eq!(client.may_read_locally(), None);
}

/// Answers the newest request for a layout of one block, with a lease of this number. Returns whether there was one.
fn lay_out(client: &mut Client, now: u64, version: u64, number: u64) -> bool {
    let requests = said(client).into_iter().filter_map(|(request, body)| {
        let is_layout = matches!(body, Body::Request { operation, .. } if matches!(*operation, Operation::Layout { .. }));
        is_layout.then_some(request)
    });
    let Some(request) = requests.last() else {
        return false;
    };
    let layout = Layout {
        version,
        version_offset: 64,
        size: BLOCK as u64,
        extents: vec![Extent {
            offset: 0,
            image_offset: 1 << 20,
            blocks: 1,
            checksums: vec![pmem::checksum::crc32c(&[1; BLOCK])],
        }],
    };
    let grant = Grant {
        number,
        lasts_ns: 1000,
        covers: crate::leases::Covers {
            subject: number > 0,
            ..Default::default()
        },
    };
    let body = Body::Reply {
        slot: NO_SLOT,
        outcome: Outcome::with_data(layout.encode()),
        position: 0,
        confirmed: 0,
        grant,
    };
    hear_at(client, now, request, body);
    true
}

fn hear_at(client: &mut Client, now: u64, request: u64, body: Body) {
    let envelope = Envelope {
        cluster: UnitOptions::default().cluster,
        epoch: 1,
        session: SESSION,
        request,
        ..Envelope::default()
    };
    client.handle_decoded(now, Message { envelope, body });
}

/// Submits a read at this time.
fn read_at(client: &mut Client, now: u64) -> Ticket {
    let read = Operation::Read {
        file: FileId::default(),
        offset: 0,
        length: BLOCK as u32,
        note_read: false,
    };
    client.submit(now, read, Acknowledge::Primary)
}

/// Gives the client the data that it reads. Returns the members that it reads from, of each transfer.
fn transferred(client: &mut Client, now: u64) -> Vec<(NodeId, u64)> {
    let mut all = Vec::new();
    loop {
        let transfers = transfers(client);
        if transfers.is_empty() {
            return all;
        }
        for transfer in transfers {
            all.push((transfer.to, transfer.length()));
            let bytes = match transfer.length() {
                8 => 5_u64.to_le_bytes().to_vec(),
                length => vec![1; length as usize],
            };
            client.handle_transfer(now, transfer.wr_id, TransferOutcome::Read(bytes.into()));
        }
    }
}

/// A client that has read a file of one block under a lease.
fn leased() -> Client {
    let mut client = active().with_leases();
    client.set_near([1]);
    read_at(&mut client, 10);
    said(&mut client);
    client.handle_key(0, 7);
    client.handle_key(1, 7);
    hear_at(&mut client, 10, 0, Body::SessionOpened { slots: 4 });
    let alive = Body::Alive {
        confirmed: 0,
        valid_ns: 1 << 40,
    };
    hear_at(&mut client, 10, 10, alive);
    client.handle_timeout(10);
    assert!(lay_out(&mut client, 20, 5, 3));
    assert_eq!(transferred(&mut client, 30), [(1, BLOCK as u64)]);
    client
}

/// The outcome of a read that has ended.
fn outcome(client: &mut Client, of: Ticket) -> Option<Outcome> {
    std::iter::from_fn(|| client.poll_event()).find_map(|event| match event {
        Event::Done {
            ticket, outcome, ..
        } if ticket == of => Some(outcome),
        _ => None,
    })
}

#[test]
fn data_lands_at_the_first_try_only_and_if_its_checksums_are_right() {
    let mut client = leased();
    let land = |client: &mut Client, now| {
        let read = Operation::Read {
            file: FileId::default(),
            offset: 0,
            length: BLOCK as u32,
            note_read: false,
        };
        let ticket = client.submit_landing(now, read, Acknowledge::Primary);
        let begun = transfers(client);
        assert_eq!(begun.len(), 1);
        assert_eq!(begun[0].lands, Some((ticket, 0)));
        (ticket, begun[0].wr_id)
    };
    let (ticket, wr_id) = land(&mut client, 40);
    let right = pmem::checksum::crc32c(&[1; BLOCK]);
    client.handle_transfer(40, wr_id, TransferOutcome::Landed(vec![right]));
    let ended = outcome(&mut client, ticket).expect("it has landed");
    assert_eq!((ended.count, ended.data().len()), (BLOCK as u64, 0));
    assert!(client.has_landed(ticket) && !client.has_landed(ticket));
    let (ticket, wr_id) = land(&mut client, 50);
    client.handle_transfer(50, wr_id, TransferOutcome::Landed(vec![!right]));
    assert_eq!(outcome(&mut client, ticket), None);
    assert!(lay_out(&mut client, 60, 5, 4));
    let again = transfers(&mut client);
    assert_eq!(again.len(), 1);
    // The first transfer may land late.
    assert_eq!(again[0].lands, None);
    let bytes = TransferOutcome::Read(vec![1; BLOCK].into());
    client.handle_transfer(60, again[0].wr_id, bytes);
    let ended = outcome(&mut client, ticket).expect("it was read");
    assert_eq!(ended.data(), &[1; BLOCK]);
    assert!(!client.has_landed(ticket));
}

#[test]
fn landed_data_is_known_after_the_end_of_the_session() {
    let mut client = leased();
    let read = Operation::Read {
        file: FileId::default(),
        offset: 0,
        length: BLOCK as u32,
        note_read: false,
    };
    let ticket = client.submit_landing(40, read, Acknowledge::Primary);
    let wr_id = transfers(&mut client)[0].wr_id;
    let right = pmem::checksum::crc32c(&[1; BLOCK]);
    client.handle_transfer(40, wr_id, TransferOutcome::Landed(vec![right]));
    // Its end is not delivered yet.
    hear_at(&mut client, 50, 0, Body::Expired);
    assert!(matches!(client.session, SessionState::None), "it has ended");
    let ended = outcome(&mut client, ticket).expect("it has landed");
    assert_eq!((ended.error, ended.count), (None, BLOCK as u64));
    assert!(client.has_landed(ticket));
}

#[test]
fn under_a_lease_a_near_replica_is_read_and_the_primary_is_not_asked() {
    let mut client = leased();
    let (data, version) = ((1, BLOCK as u64), (0, 8));
    read_at(&mut client, 40);
    assert_eq!(transferred(&mut client, 40), [data]);
    // Own changes end the use of the lease until a layout was asked for after them.
    let owner = Operation::SetLock {
        file: FileId::default(),
        lock: operations::Lock {
            space: operations::LockSpace::Ranges,
            kind: operations::LockKind::Read,
            start: 0,
            end: 0,
            owner: 1,
            handle: 1,
            process: 1,
        },
    };
    client.submit(50, owner, Acknowledge::Primary);
    read_at(&mut client, 50);
    assert_eq!(transferred(&mut client, 50), [data, version]);
    let answer = Body::Reply {
        slot: 0,
        outcome: Outcome::done(),
        position: 10,
        confirmed: 10,
        grant: Grant::default(),
    };
    said(&mut client);
    hear_at(&mut client, 60, 1, answer);
    read_at(&mut client, 60);
    assert!(lay_out(&mut client, 60, 5, 4));
    assert_eq!(transferred(&mut client, 70), [data]);
    // A lease that is recalled when the data arrives does not count; the next read asks for a layout.
    read_at(&mut client, 80);
    let recall = Body::Recall {
        inode: 0,
        number: 5,
    };
    hear_at(&mut client, 80, 0, recall);
    assert_eq!(transferred(&mut client, 80), [data, version]);
    read_at(&mut client, 90);
    assert_eq!(transferred(&mut client, 90), []);
    assert!(lay_out(&mut client, 90, 5, 0));
    assert_eq!(transferred(&mut client, 90), [data, version]);
}

#[test]
fn a_read_at_once_counts_by_the_lease_or_the_version_word_after_its_copy() {
    let mut client = leased();
    let (file, length) = (FileId::default(), BLOCK);
    let mut plan = AtOnce::default();
    assert!(client.plan_at_once((file, 0), length, false, &mut plan));
    let whole = AtOncePiece {
        into: 0..length,
        offset: plan.pieces[0].offset,
        checksums: 0..1,
    };
    assert_eq!((plan.member, plan.count), (1, length));
    assert_eq!((&plan.pieces[..], plan.version_word), (&[whole][..], None));
    assert_eq!(plan.checksums, [pmem::checksum::crc32c(&[1; BLOCK])]);
    assert!(client.counts_at_once(40, &plan, None));
    // The primary has to note it.
    assert!(!client.plan_at_once((file, 0), length, true, &mut plan));
    // Neither part of a block, nor what is not laid out, nor more than the memory has room for.
    assert!(!client.plan_at_once((file, 1), length, false, &mut plan));
    assert!(!client.plan_at_once((file, LAYOUT), length, false, &mut plan));
    assert!(!client.plan_at_once((file, 0), length - 1, false, &mut plan));
    assert!(client.plan_at_once((file, 0), length, false, &mut plan));
    let (inode, number) = (0, 5);
    hear_at(&mut client, 80, 0, Body::Recall { inode, number });
    assert!(!client.counts_at_once(80, &plan, None), "recalled");
    read_at(&mut client, 90);
    assert!(lay_out(&mut client, 90, 5, 0));
    transferred(&mut client, 90);
    assert!(client.plan_at_once((file, 0), length, false, &mut plan));
    assert_eq!(plan.version_word.map(|it| it.member), Some(0));
    assert!(!client.counts_at_once(95, &plan, None), "not read");
    let valid_until = 10 + (1 << 40);
    assert!(!client.counts_at_once(valid_until, &plan, Some(5)));
    assert!(client.counts_at_once(95, &plan, Some(5)));
    // Layouts of a version that is gone are dropped.
    assert!(!client.counts_at_once(95, &plan, Some(6)), "changed");
    assert!(!client.plan_at_once((file, 0), length, false, &mut plan));
    read_at(&mut client, 96);
    assert!(lay_out(&mut client, 96, 5, 0));
    transferred(&mut client, 96);
    assert!(client.plan_at_once((file, 0), length, false, &mut plan));
    // What another primary may have changed does not count.
    client.handle_map(100, map_of(1, 2));
    assert!(!client.counts_at_once(100, &plan, Some(5)));
}
