use super::*;

const FILE: FileId = FileId {
    unit: 9,
    inode: 5,
    generation: 6,
};
const HELD: HeldLock = HeldLock {
    file: FILE,
    lock: Lock {
        space: LockSpace::Whole,
        kind: LockKind::Write,
        start: 3,
        end: u64::MAX,
        owner: 7,
        handle: 8,
        process: 10,
    },
};

#[test]
fn a_session_is_read_as_it_was_written() {
    let (mut sessions, mut locks) = ([0; BLOCK], [0; 3 * ENTRY]);
    assert_eq!(read(3, 9, &sessions, &locks), None);
    let place = Slot {
        index: 3,
        session: 77,
        slot: 2,
        request: 9,
    };
    let outcome = Outcome {
        file: FILE,
        count: 11,
        ..Outcome::failed(ErrorCode::Exists)
    };
    sessions[..ENTRY].copy_from_slice(&header(77, 8));
    sessions[3 * ENTRY..4 * ENTRY].copy_from_slice(&slot(&place, &outcome, [6, 8]));
    locks[ENTRY..2 * ENTRY].copy_from_slice(&lock(77, Some(HELD)));
    let record = read(3, 9, &sessions, &locks).expect("there is a session");
    assert_eq!((record.index, record.session, record.client), (3, 77, 8));
    assert_eq!(record.slots[2], (9, outcome));
    assert_eq!(record.slots[1].0, 0);
    assert_eq!(record.locks, [None, Some(HELD), None]);
    assert_eq!(slot_offset(&place), 3 * 4096 + 192);
    // Slots and locks of another session do not count.
    sessions[..ENTRY].copy_from_slice(&header(78, 8));
    let record = read(3, 9, &sessions, &locks).expect("there is a session");
    assert_eq!(record.slots[2].0, 0);
    assert_eq!(record.locks, [None; 3]);
}

#[test]
fn a_block_holds_all_slots() {
    let last = Slot {
        index: 1,
        session: 7,
        slot: SLOTS_MAX as u16 - 1,
        request: 5,
    };
    assert_eq!(slot_offset(&last) + ENTRY as u64, block_offset(2));
    let mut sessions = [0; BLOCK];
    sessions[..ENTRY].copy_from_slice(&header(7, 1));
    sessions[BLOCK - ENTRY..].copy_from_slice(&slot(&last, &Outcome::default(), [0; 2]));
    let record = read(1, 9, &sessions, &[]).expect("there is a session");
    assert_eq!(record.slots.len(), SLOTS_MAX);
    assert_eq!(record.slots[SLOTS_MAX - 1], (5, Outcome::default()));
}

/// Each byte is damaged, one at a time: an invalid entry does not count, and nothing panics.
#[test]
fn entries_without_meaning_do_not_count() {
    let place = Slot {
        index: 0,
        session: 7,
        slot: 0,
        request: 5,
    };
    let (mut sessions, mut locks) = ([0; BLOCK], lock(7, Some(HELD)));
    sessions[..ENTRY].copy_from_slice(&header(7, 1));
    sessions[ENTRY..2 * ENTRY].copy_from_slice(&slot(&place, &Outcome::default(), [0; 2]));
    for at in 0..2 * ENTRY {
        let mut damaged = sessions;
        damaged[at] ^= 0xff;
        let record = read(0, 9, &damaged, &locks).expect("there is a session");
        let is_named = at < 8 || (ENTRY..ENTRY + 8).contains(&at) || at == ENTRY + 28;
        assert_eq!(record.slots[0] == (0, Outcome::default()), is_named, "{at}");
    }
    locks[58] = 2;
    let record = read(0, 9, &sessions, &locks).expect("there is a session");
    assert_eq!(record.locks, [None]);
}
