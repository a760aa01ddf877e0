//! Every kind of message, whole, damaged and lying.

use operations::{NAME_LENGTH_MAX, WriteAt};

use super::*;
use crate::group::Key;
use crate::leases::Covers;
use crate::leases::owners::OWNED_MAX;

use crate::{Defects, Member, UnitOptions};

/// A list of examples with a pattern for each: it does not compile when a variant has no row.
macro_rules! examples {
    ($type:ty { $($pattern:pat => [$($example:expr),+ $(,)?]),+ $(,)? }) => {{
        fn _complete(value: &$type) {
            match value { $($pattern => (),)+ }
        }
        let examples: Vec<$type> = vec![$($($example),+),+];
        examples
    }};
}

/// A number with bytes that all differ, and differ from those of its neighbours.
const LARGE: u64 = 0x0123_4567_89ab_cdef;
const ENVELOPE: Envelope = Envelope {
    cluster: 0x1112_1314_1516_1718,
    epoch: 0x2122_2324,
    tenant: 0x3132,
    unit: 0x3334,
    session: 0x4142_4344_4546_4748,
    request: 0x5152_5354_5556_5758,
    from: 0x6162_6364,
};
const FILE: FileId = FileId {
    unit: 0x6566,
    inode: 0x7172_7374_7576_7778,
    generation: 0x8182_8384,
};

fn name(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// Some operations. The operations crate tests the encoding of all.
fn operations() -> Vec<Operation> {
    let file = FILE;
    let write = |at, data: Vec<u8>| Operation::Write {
        file,
        at,
        data: data.into(),
        drop_privileges: Some(true),
    };
    vec![
        Operation::Lookup {
            directory: FILE,
            name: name("with a space, and ü"),
            hold: true,
        },
        Operation::Unlink {
            directory: FILE,
            name: vec![0xff; NAME_LENGTH_MAX],
        },
        write(WriteAt::Offset(u64::MAX), Vec::new()),
        write(WriteAt::End, vec![7; 100]),
        Operation::Sync { file },
        Operation::Commit {
            file,
            offset: LARGE,
            grant_block: 5,
            wr_ids: [LARGE, u64::MAX],
            checksums: vec![u32::MAX; active::COMMIT_MAX],
            size: 6,
            drop_privileges: Some(false),
        },
    ]
}

fn replies() -> Vec<Body> {
    let outcomes = [
        Outcome::default(),
        Outcome::failed(ErrorCode::Again),
        Outcome {
            file: FILE,
            count: LARGE,
            ..Outcome::with_data(vec![1, 2, 3])
        },
    ];
    let reply = |outcome| Body::Reply {
        slot: 3,
        outcome,
        position: LARGE,
        confirmed: 5,
        grant: Grant {
            number: LARGE,
            lasts_ns: 77,
            covers: Covers {
                subject: true,
                found: false,
                listed: true,
                owned: false,
            },
        },
    };
    outcomes.into_iter().map(reply).collect()
}

fn requests() -> Vec<Body> {
    let acknowledges = examples!(Acknowledge {
        Acknowledge::Sent => [Acknowledge::Sent],
        Acknowledge::Primary => [Acknowledge::Primary],
        Acknowledge::All => [Acknowledge::All],
    });
    let request = |(operation, acknowledge): (Operation, _)| Body::Request {
        slot: 0x1234,
        acknowledge,
        wants_lease: acknowledge == Acknowledge::Primary,
        operation: operation.into(),
    };
    let all = operations()
        .into_iter()
        .zip(acknowledges.into_iter().cycle());
    all.map(request).collect()
}

fn resumes() -> Vec<Body> {
    let replay = |(operation, number): (Operation, _)| Replay {
        sequence: Sequence::new(7, number),
        slot: 2,
        request: 4,
        operation: operation.into(),
    };
    let replays = operations().into_iter().zip(100..).map(replay).collect();
    vec![
        Body::Resume {
            holds: LARGE,
            replays,
            owned: vec![5, LARGE],
        },
        Body::Resume {
            holds: 0,
            replays: Vec::new(),
            owned: Vec::new(),
        },
    ]
}

fn cluster_map() -> ClusterMap {
    let empty = ClusterMap {
        name: "lab".into(),
        ..ClusterMap::default()
    };
    empty.register("n1", [1; 16], vec!["/run/n1".into()]).0
}

fn sync_request() -> Body {
    Body::Request {
        slot: u16::MAX,
        acknowledge: Acknowledge::All,
        wants_lease: true,
        operation: Operation::Sync { file: FILE }.into(),
    }
}

fn shipment(data: Vec<Data>) -> Body {
    Body::Shipment {
        from: LARGE,
        records: vec![7; 64].into(),
        data,
    }
}

fn data(offset: u64) -> Data {
    Data {
        position: LARGE,
        offset,
        bytes: vec![offset as u8; 5].into(),
    }
}

fn of_groups() -> [Body; 2] {
    let report = Report {
        below: LARGE,
        room: u32::MAX,
        missing: vec![3..9, 11..12],
    };
    [shipment(vec![data(4096), data(0)]), Body::Report { report }]
}

fn offer() -> Offer {
    Offer {
        address: [239, 1, 2, 3],
        port: 20_000,
        sender: 4,
        key: Key([0x6b; 32]),
    }
}

fn fetches() -> [Fetch; 3] {
    let fetches = examples!(Fetch {
        Fetch::Data => [Fetch::Data],
        Fetch::Refill => [Fetch::Refill],
        Fetch::Metadata => [Fetch::Metadata],
    });
    fetches.try_into().expect("three reasons")
}

fn reply() -> Body {
    Body::Reply {
        slot: u16::MAX,
        outcome: Outcome::default(),
        position: 0,
        confirmed: 0,
        grant: Grant::default(),
    }
}

/// Every kind of message, those with contents in more than one form.
fn bodies() -> Vec<Body> {
    let tail = Sequence::new(0x2122_2324, LARGE);
    let [first, second, third] = fetches();
    let mut bodies = examples!(Body {
        Body::Heartbeat { .. } => [Body::Heartbeat { sent_at_ns: LARGE, position: 2, confirmed: 3 }],
        Body::Lease { .. } => [Body::Lease { sent_at_ns: LARGE, tail: 2, is_caught_up: true }],
        Body::Records { .. } => [
            Body::Records { from: LARGE, records: vec![0x5a; 192].into(), data: Vec::new() },
            Body::Records { from: LARGE, records: vec![1, 2, 3].into(), data: vec![data(4096), data(0)] },
            Body::Records { from: 0, records: Bytes::new(), data: Vec::new() },
        ],
        Body::Shipment { .. } => [shipment(Vec::new())],
        Body::Offer { .. } => [Body::Offer { offer: Box::new(offer()) }],
        Body::Report { .. } => [Body::Report { report: Report::default() }],
        Body::Frames { .. } => [Body::Frames { first: LARGE, end: 7, again: vec![1; 9] }],
        Body::Tail { .. } => [Body::Tail { tail: LARGE, is_caught_up: false }],
        Body::Gap { .. } => [Body::Gap { from: LARGE }],
        Body::Fetch { .. } => [
            Body::Fetch { fetch: first, offset: u64::MAX, length: u32::MAX },
            Body::Fetch { fetch: second, offset: 0, length: 0 },
        ],
        Body::Range { .. } => [
            Body::Range { fetch: first, offset: LARGE, position: 64, skipped: 0, bytes: vec![9; 70].into() },
            Body::Range { fetch: second, offset: 0, position: 0, skipped: 0, bytes: Bytes::new() },
            Body::Range { fetch: third, offset: LARGE, position: 64, skipped: u32::MAX, bytes: vec![9; 7].into() },
        ],
        Body::Join { .. } => [Body::Join { from: LARGE, version: u64::MAX }],
        Body::Welcome { .. } => [Body::Welcome { from: LARGE, position: 1, image: LARGE }],
        Body::Candidate { .. } => [Body::Candidate { tail }],
        Body::Support { .. } => [Body::Support { tail, is_sound: true }],
        Body::OpenSession => [Body::OpenSession],
        Body::SessionOpened { .. } => [Body::SessionOpened { slots: 0x1234 }],
        Body::KeepAlive => [Body::KeepAlive],
        Body::Alive { .. } => [Body::Alive { confirmed: LARGE, valid_ns: 7 }],
        Body::Expired => [Body::Expired],
        Body::Request { .. } => [sync_request()],
        Body::Reply { .. } => [reply()],
        Body::Recall { .. } => [Body::Recall { inode: u64::MAX, number: LARGE }],
        Body::RecallAnswer { .. } => [Body::RecallAnswer { inode: LARGE, number: 3 }],
        Body::Renew { .. } => [Body::Renew { inodes: vec![u64::MAX, 1] }],
        Body::Renewed { .. } => [Body::Renewed { lasts_ns: LARGE, inodes: vec![3] }],
        Body::LockTurn { .. } => [Body::LockTurn { wait: u64::MAX }],
        Body::Resume { .. } => [Body::Resume { holds: 1, replays: Vec::new(), owned: vec![LARGE, 7] }],
        Body::Holds { .. } => [
            Body::Holds { holds: vec![Held { file: FILE, count: LARGE }; 2] },
            Body::Holds { holds: Vec::new() },
        ],
        Body::Resumed { .. } => [
            Body::Resumed { refusals: vec![Refusal { file: FILE, error: ErrorCode::NoSpace }] },
            Body::Resumed { refusals: Vec::new() },
        ],
        Body::OpenKeys => [Body::OpenKeys],
        Body::Key { .. } => [Body::Key { member: 3, key: u64::MAX }],
        Body::OpenKey { .. } => [Body::OpenKey { index: 31, session: u64::MAX }],
        Body::KeyOpened { .. } => [Body::KeyOpened { session: 4, key: u64::MAX }],
        Body::CloseKey { .. } => [Body::CloseKey { session: 5 }],
        Body::KeyClosed { .. } => [Body::KeyClosed { session: u64::MAX }],
        Body::Export { .. } => [Body::Export { key: u64::MAX, writes: true }],
        Body::Hello { .. } => [Body::Hello { map_version: LARGE }],
        Body::Map { .. } => [Body::Map { map: Box::new(cluster_map()) }],
    });
    bodies.extend(requests());
    bodies.extend(replies());
    bodies.extend(resumes());
    bodies.extend(of_groups());
    bodies
}

fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    Message::decode(&Bytes::copy_from_slice(bytes), &Defects::default())
}

fn messages() -> impl Iterator<Item = (Message, Vec<u8>)> {
    bodies().into_iter().map(|body| {
        let message = Message {
            envelope: ENVELOPE,
            body,
        };
        let bytes = message.encode(true);
        (message, bytes)
    })
}

/// A message with any kind, length and body, and the right checksum.
fn lying(kind: u8, length: u32, body: &[u8]) -> Vec<u8> {
    let envelope = ENVELOPE;
    let mut bytes = Message {
        envelope,
        body: Body::Expired,
    }
    .encode(true);
    let is_honest = length as usize == body.len();
    let body = if is_in_halves(kind) {
        crate::parity::wrapped(body, true)
    } else {
        body.to_vec()
    };
    let length = if is_honest { body.len() as u32 } else { length };
    bytes[3] = kind;
    bytes[44..48].copy_from_slice(&length.to_le_bytes());
    bytes.extend(body);
    seal(&mut bytes);
    bytes
}

/// Why a body of this kind is refused.
fn objection(kind: u8, body: &[u8]) -> &'static str {
    decode(&lying(kind, body.len() as u32, body))
        .expect_err("the body lies")
        .0
}

#[test]
fn every_kind_survives() {
    for (message, bytes) in messages() {
        assert_eq!(decode(&bytes), Ok(message));
    }
}

#[test]
fn every_kind_that_can_be_received_has_an_example() {
    let mut known: Vec<u8> = bodies().iter().map(Body::kind).collect();
    known.sort_unstable();
    known.dedup();
    let is_known =
        |kind: &u8| decode(&lying(*kind, 0, b"")) != Err(Malformed("its kind is unknown"));
    let received: Vec<u8> = (0..=u8::MAX).filter(is_known).collect();
    assert_eq!(received, known);
}

#[test]
fn truncated_and_extended_messages_are_refused() {
    for (message, bytes) in messages() {
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{message:?} up to {end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode(&longer).is_err(), "{message:?}");
        // The checksum does not save a body that ends early or late.
        let mut body = Writer::default();
        message.body.write(&mut body);
        let body = &body.bytes;
        if !matches!(message.body, Body::Records { .. }) {
            for end in 0..body.len() {
                objection(message.body.kind(), &body[..end]);
            }
            objection(message.body.kind(), &[&body[..], &[0]].concat());
        }
    }
}

#[test]
fn one_wrong_bit_is_refused_or_repaired() {
    for (message, bytes) in messages() {
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(decoded) = decode(&damaged) else {
                continue;
            };
            assert!(is_in_halves(message.body.kind()), "{message:?}: bit {bit}");
            assert_eq!(decoded, message, "bit {bit}");
        }
    }
}

/// Damage in any one place of the records is repaired; beyond that they are refused.
#[test]
fn records_are_repaired_or_refused() {
    let records: Bytes = (0..192).map(|at| at as u8 ^ 0x33).collect();
    let body = Body::Records {
        from: 640,
        records,
        data: Vec::new(),
    };
    let message = Message {
        envelope: ENVELOPE,
        body,
    };
    let bytes = message.encode(true);
    for at in HEADER + 16..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        assert_eq!(decode(&damaged).as_ref(), Ok(&message), "{at}");
    }
    let mut damaged = bytes.clone();
    (damaged[80], damaged[200]) = (!bytes[80], !bytes[200]);
    assert_eq!(
        decode(&damaged),
        Err(Malformed("both halves of its body are damaged"))
    );
}

#[test]
fn lengths_over_their_bounds_are_refused_before_anything_is_allocated() {
    let bound = "a length exceeds its bound";
    let field = |before: &[u8], length: u32| [before, &length.to_le_bytes()].concat();
    // Not one of them has the bytes that it promises: a value refused for its bound was not searched.
    assert_eq!(objection(7, &field(&[0; 21], BODY_MAX as u32 + 1)), bound);
    let replays = (REPLAYS_MAX as u16 + 1).to_le_bytes();
    let resume = [&[0; 8][..], &replays].concat();
    for (kind, body) in [(39, &resume[..]), (40, &replays[..])] {
        assert_eq!(
            objection(kind, body),
            "it replays more than a session may have"
        );
    }
    let owned = [&[0; 10][..], &(OWNED_MAX as u16 + 1).to_le_bytes()].concat();
    assert_eq!(
        objection(39, &owned),
        "it owns more files than a session may"
    );
    let length = "its length is not what it says";
    for (says, has) in [
        (1, 0),
        (0, 1),
        (u32::MAX, 0),
        (BODY_MAX as u32 + 1, BODY_MAX + 1),
    ] {
        let bytes = lying(36, says, &vec![0; has]);
        assert_eq!(decode(&bytes), Err(Malformed(length)), "{says} {has}");
    }
}

#[test]
fn values_without_meaning_are_refused() {
    assert_eq!(
        objection(4, &[0, 0, 0, 0, 0, 0, 0, 0, 2]),
        "a yes or no is neither"
    );
    assert_eq!(objection(6, &[3; 13]), "it fetches nothing known");
    assert_eq!(
        objection(37, &[0, 0, 3]),
        "it asks for no known acknowledgement"
    );
    assert_eq!(objection(37, &[0, 0, 1, 99]), "its fields cannot be read");
    assert_eq!(objection(38, &[0; 35]), "its fields cannot be read");
    let lease = [&[0; 34][..], &[16]].concat();
    assert_eq!(objection(38, &lease), "its lease covers nothing known");
    let refusal = [&[1, 0][..], &[0; 15]].concat();
    assert_eq!(objection(40, &refusal), "its error is unknown");
}

#[test]
fn positions_and_times_can_be_added() {
    let over = "a position or a time exceeds its bound";
    for (message, bytes) in messages() {
        if matches!(message.body, Body::Gap { .. }) {
            let kind = bytes[3];
            assert_eq!(objection(kind, &(1_u64 << 62).to_le_bytes()), over);
            let most = ((1_u64 << 62) - 1).to_le_bytes();
            assert!(decode(&lying(kind, 8, &most)).is_ok());
        }
    }
    let heartbeat = [&[0; 16][..], &u64::MAX.to_le_bytes()].concat();
    assert_eq!(objection(1, &heartbeat), over);
    let records = [&u64::MAX.to_le_bytes()[..], b"records"].concat();
    assert_eq!(objection(3, &records), over);
    let candidate = [&[0; 4][..], &u64::MAX.to_le_bytes()].concat();
    assert_eq!(objection(10, &candidate), over);
}

#[test]
fn another_beginning_or_version_is_refused() {
    let (_, bytes) = messages().next().expect("there are examples");
    for (at, objection) in [
        (0, "it does not begin as one"),
        (1, "it does not begin as one"),
        (2, OTHER_VERSION),
    ] {
        let mut other = bytes.clone();
        other[at] += 1;
        seal(&mut other);
        assert_eq!(decode(&other), Err(Malformed(objection)));
    }
}

#[test]
fn messages_of_another_cluster_are_dropped() {
    let map = crate::UnitMap {
        version: 1,
        epoch: 1,
        primary: 2,
        members: vec![1, 2],
        metadata_only: Vec::new(),
        in_sync: vec![1, 2],
        lineage: vec![crate::EpochStart { epoch: 1, start: 0 }],
        image: 0,
    };
    let options = UnitOptions::default();
    let answers = |cluster| {
        let tail = Sequence::new(1, 64);
        let mut member = Member::new(
            1,
            options.clone(),
            Defects::default(),
            tail,
            map.lineage.clone(),
            0,
        );
        member.handle_map(0, map.clone());
        let envelope = Envelope {
            cluster,
            epoch: 1,
            from: 2,
            ..Envelope::default()
        };
        let body = Body::Heartbeat {
            sent_at_ns: 5,
            position: 64,
            confirmed: 64,
        };
        member.handle_message(1, &Message { envelope, body }.encode(true).into());
        member.poll_transmit().is_some()
    };
    assert!(answers(options.cluster));
    assert!(!answers(options.cluster + 1));
}

/// The diagram in the module's documentation: names, offsets and sizes of the header's fields.
fn diagram() -> Vec<(&'static str, usize, usize)> {
    let text = include_str!("../wire.rs");
    let (_, text) = text.split_once("```text\n").expect("a diagram");
    let (text, _) = text.split_once("//! ```").expect("an end of it");
    let mut fields = Vec::new();
    let mut end = 0;
    for line in text
        .lines()
        .map(|line| line.trim_start_matches("//! ").trim())
    {
        let (offset, rest) = line.split_once(' ').expect("an offset");
        assert_eq!(offset.parse(), Ok(end), "{line}");
        if rest.starts_with("body") {
            break;
        }
        for field in rest.split('|') {
            let (name, size) = field.trim().split_once(' ').expect("a name and a size");
            let size: usize = size.parse().expect("a size");
            fields.push((name, end, size));
            end += size;
        }
    }
    assert_eq!(end, HEADER, "the body begins behind the last field");
    fields
}

#[test]
fn the_header_is_as_drawn() {
    let body = Body::KeepAlive;
    let kind = body.kind();
    let mut bytes = Message {
        envelope: ENVELOPE,
        body,
    }
    .encode(true);
    bytes[44..48].copy_from_slice(&0xa1a2_a3a4_u32.to_le_bytes());
    let crc = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
    let value = |at: usize, size: usize| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(&bytes[at..at + size]);
        u64::from_le_bytes(word)
    };
    let expected = [
        ("magic", u64::from(MAGIC)),
        ("version", u64::from(VERSION)),
        ("kind", u64::from(kind)),
        ("crc", u64::from(crc)),
        ("cluster", ENVELOPE.cluster),
        ("epoch", u64::from(ENVELOPE.epoch)),
        ("tenant", u64::from(ENVELOPE.tenant)),
        ("unit", u64::from(ENVELOPE.unit)),
        ("session", ENVELOPE.session),
        ("request", ENVELOPE.request),
        ("from", u64::from(ENVELOPE.from)),
        ("length", 0xa1a2_a3a4),
    ];
    let drawn: Vec<_> = diagram()
        .into_iter()
        .map(|(name, at, size)| (name, value(at, size)))
        .collect();
    assert_eq!(drawn, expected);
}

#[test]
fn a_message_in_pieces_has_the_same_bytes_and_shares_its_data() {
    for length in [
        0,
        1,
        100,
        32 << 10,
        (32 << 10) + 1,
        (64 << 10) - 3,
        DATA_MAX,
    ] {
        // The length of the encoded offset varies: the padding at the end is there or not.
        for (offset, with_parity) in [(1, false), (1 << 40, false), (300, false), (1, true)] {
            let data = Bytes::from(vec![length as u8 | 1; length]);
            let operation = Operation::Write {
                file: FILE,
                at: WriteAt::Offset(offset),
                data: data.clone(),
                drop_privileges: Some(true),
            };
            let body = Body::Request {
                slot: 3,
                acknowledge: Acknowledge::All,
                wants_lease: true,
                operation: Arc::new(operation),
            };
            let envelope = ENVELOPE;
            let message = Message { envelope, body };
            let pieces = message.encode_in_pieces(with_parity);
            assert_eq!(pieces.concat(), message.encode(with_parity), "{length}");
            let is_shared = length >= 32 << 10 && !with_parity;
            assert_eq!(!pieces[1].is_empty(), is_shared, "{length}");
            assert!(!is_shared || pieces[1].as_ptr() == data.as_ptr());
        }
    }
}
