use std::ops::Range;
use std::thread;

use operations::{Lock, LockKind, LockSpace, OwnedNewInode};
use protocol::member::{HeldLock, LockRun, RequestId, Slot, Ticket};
use protocol::wire::{ErrorCode, FileId, Operation, Outcome};
use store::{Geometry, MemberFormat, WriteAt};

use super::*;

const THREADS: u32 = 4;
const ROUNDS: u64 = 50;
/// The last slot of a session.
const SLOT: u16 = protocol::SLOTS_MAX as u16 - 1;

/// A region with the pool of a member, and the pool's store, open for changes.
pub(crate) fn member_store(length: u64) -> (Region, Store) {
    let region = Region::memory(length, false).expect("memory");
    let format = MemberFormat {
        cluster: [1; 16],
        unit: [2; 16],
        hash_key: [3; 16],
        created_ns: 0,
        uid: 0,
        gid: 0,
        pool_length: region.length(),
        geometry: Geometry::small(),
        metadata_only: false,
    };
    Replica::format_member(&region, &format, 1).expect("formatted");
    let replica = Replica::open(region.clone(), PoolOptions::default()).expect("opened");
    let store = replica.into_store(2, PoolOptions::default());
    (region, store.expect("a store"))
}

fn serving() -> Serving {
    let (_, store) = member_store(32 << 20);
    Serving {
        sessions: file(&store, b"sessions").expect("a file"),
        locks: file(&store, b"locks").expect("a file"),
        executor: Executor::new(store, 0),
        grant_blocks: 0,
        orphans: Mutex::default(),
        defects: Defects::default(),
    }
}

#[test]
fn the_last_part_of_a_pool_is_not_granted() {
    let mut serving = serving();
    serving.grant_blocks = u32::MAX;
    serving.make_grant(0).expect("a file");
    let free = || {
        let statistics = serving.executor.store.volume().statistics();
        (statistics.blocks_available, statistics.blocks / 16)
    };
    let grant = |number| {
        let request = RequestId {
            session: 1,
            slot: SLOT,
            number,
        };
        let slot = Slot {
            index: 0,
            session: 1,
            slot: SLOT,
            request: number,
        };
        let operation = Operation::Grant { blocks: 1 << 20 };
        match serving.execute(1, request, &operation, Some(&slot)) {
            Completion::Executed { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        }
    };
    assert!(grant(1).is_done());
    let (left, kept) = free();
    assert!(left.abs_diff(kept) < 16, "{left} blocks, not {kept}");
    assert_eq!(grant(2).error, Some(ErrorCode::NoSpace));
}

/// A session, in the index of the same number.
struct Session<'a> {
    serving: &'a Serving,
    index: u32,
    requests: u64,
    /// For each change, the start of the newest record of its file, and the end of its own record.
    records: Vec<Range<u64>>,
}

impl Session<'_> {
    fn number(&self) -> u64 {
        u64::from(self.index) + 100
    }

    fn change(&mut self, operation: &Operation) -> Outcome {
        self.requests += 1;
        let request = RequestId {
            session: self.number(),
            slot: SLOT,
            number: self.requests,
        };
        let slot = Slot {
            index: self.index,
            session: self.number(),
            slot: SLOT,
            request: self.requests,
        };
        let ticket = Ticket::from(self.index);
        let executed = self
            .serving
            .execute(ticket, request, operation, Some(&slot));
        let Completion::Executed {
            ticket: of,
            outcome,
            position: Some(position),
            tail,
            ..
        } = executed
        else {
            panic!("no record: {executed:?}");
        };
        assert!(of == ticket && outcome.is_done() && position <= tail);
        // No other thread changes these files.
        let file = operation.changes().unwrap_or(outcome.file);
        let node = self.serving.node(file).expect("the file");
        let store = &self.serving.executor.store;
        let start = store.inodes().attributes(&node).version;
        self.records.push(start..position);
        outcome
    }

    fn run(mut self) -> Vec<Range<u64>> {
        for round in 0..ROUNDS {
            let name = format!("{}-{round}", self.index).into_bytes();
            let new = OwnedNewInode::from(&NewInode::new(FileKind::Regular, 0o600));
            let created = self.change(&Operation::Create {
                directory: FileId::root(0),
                name,
                new,
                hold: false,
            });
            // Data of both kinds: inline and out of line.
            let data = vec![1; BLOCK * (1 + 3 * (round as usize % 2))];
            self.change(&Operation::Write {
                file: created.file,
                at: WriteAt::Offset(0),
                data: data.into(),
                drop_privileges: None,
            });
        }
        self.records
    }
}

/// Threads execute requests of several sessions at the same time, in one directory. Each change has a record of its own, its
/// position is the end of that record, and the slot holds the last answer.
#[test]
fn changes_of_several_threads_have_their_own_records_and_answers() {
    let serving = serving();
    let mut records: Vec<Range<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let session = Session {
                    serving: &serving,
                    index,
                    requests: 0,
                    records: Vec::new(),
                };
                serving.open_session(0, index, session.number(), index);
                scope.spawn(|| session.run())
            })
            .collect();
        let ended = threads.into_iter().map(|it| it.join().expect("no panic"));
        ended.flatten().collect()
    });
    records.sort_by_key(|record| record.start);
    assert_eq!(records.len() as u64, u64::from(THREADS) * ROUNDS * 2);
    assert!(
        records
            .windows(2)
            .all(|pair| pair[0].end <= pair[1].start && pair[0].start < pair[0].end),
        "{records:?}"
    );
    for index in 0..THREADS {
        assert_eq!(last_request(&serving, index), ROUNDS * 2);
    }
}

/// Number of the request that was answered in the slot of a session.
fn last_request(serving: &Serving, index: u32) -> u64 {
    let mut block = [0; BLOCK];
    let at = table::block_offset(index);
    let files = serving.executor.store.files();
    files
        .read(&serving.sessions, at, &mut block)
        .expect("the session");
    let session = table::read(index, 0, &block, &[]).expect("a session");
    assert_eq!(session.session, u64::from(index) + 100);
    let (request, outcome) = &session.slots[usize::from(SLOT)];
    assert!(outcome.is_done());
    *request
}

/// The table grows with them, and each has its own answers.
#[test]
fn a_unit_has_4096_sessions() {
    const SESSIONS: u32 = 4096;
    let serving = serving();
    for index in 0..SESSIONS {
        let opened = serving.open_session(0, index, u64::from(index) + 100, index);
        let Completion::Executed { outcome, .. } = opened else {
            panic!("not executed: {opened:?}");
        };
        assert!(outcome.is_done(), "{outcome:?}");
    }
    let mut last = Session {
        serving: &serving,
        index: SESSIONS - 1,
        requests: 0,
        records: Vec::new(),
    };
    let new = OwnedNewInode::from(&NewInode::new(FileKind::Regular, 0o600));
    last.change(&Operation::Create {
        directory: FileId::root(0),
        name: b"file".to_vec(),
        new,
        hold: false,
    });
    let answered = (0..SESSIONS).map(|index| last_request(&serving, index));
    let answered: Vec<u64> = answered.collect();
    assert_eq!(answered.iter().sum::<u64>(), 1);
    assert_eq!(answered.last(), Some(&1));
}

/// The next primary reads all of them, and the end of the session frees their blocks.
#[test]
fn the_locks_of_a_session_are_bounded_by_space_only() {
    const LOCKS: usize = 40_000;
    let serving = serving();
    let session = 101;
    serving.open_session(0, 1, session, 7);
    let lock = |at: usize| HeldLock {
        file: FileId::root(0),
        lock: Lock {
            space: LockSpace::Ranges,
            kind: LockKind::Write,
            start: 2 * at as u64,
            end: 2 * at as u64,
            owner: 1,
            handle: 1,
            process: 1,
        },
    };
    let slot = Slot {
        index: 1,
        session,
        slot: 0,
        request: 1,
    };
    let parts = (0..LOCKS).step_by(100);
    let parts: Vec<LockRun> = parts
        .map(|first| {
            (
                first,
                (first..first + 100).map(|at| Some(lock(at))).collect(),
            )
        })
        .collect();
    let noted = serving.note_locks(0, &parts, 3, &slot);
    assert!(matches!(&noted, Completion::Executed { outcome, .. } if outcome.is_done()));
    let read = || {
        let store = &serving.executor.store;
        read_locks(store, &serving.locks, 1).expect("the locks")
    };
    let mut block = [0; BLOCK];
    let files = serving.executor.store.files();
    let at = table::block_offset(1);
    files
        .read(&serving.sessions, at, &mut block)
        .expect("it is there");
    let record = table::read(1, 0, &block, &read()).expect("a session");
    let locks: Vec<HeldLock> = record.locks.into_iter().flatten().collect();
    assert_eq!(locks, (0..LOCKS).map(lock).collect::<Vec<_>>());
    assert_eq!((record.slots[0].0, record.slots[0].1.count), (1, 3));
    serving.end_session(0, session, 1);
    assert_eq!(read().len(), BLOCK);
}
