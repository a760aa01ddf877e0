use super::Invocation::*;
use super::Response::*;
use super::*;

pub(super) const BLOCK: Key = Key::Block { file: 3, block: 1 };
pub(super) const ENTRY: Key = Key::Entry {
    directory: 1,
    name: 2,
};
/// One of a name that others may be renamed to.
pub(super) const PLACE: Key = Key::Entry {
    directory: 1,
    name: 3,
};
pub(super) const LOCK: Key = Key::Lock { file: 3, part: 0 };

/// An operation as a test writes it; `to` 0: it never completes.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) client: u32,
    pub(super) operation: Invocation,
    pub(super) outcome: Response,
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) vanishes: Vec<Time>,
}

pub(super) fn step(
    client: u32,
    operation: Invocation,
    outcome: Response,
    from: Time,
    to: Time,
) -> Step {
    Step {
        client,
        operation,
        outcome,
        from,
        to,
        vanishes: Vec::new(),
    }
}

impl Step {
    fn vanishing(mut self, at: &[Time]) -> Step {
        self.vanishes = at.to_vec();
        self
    }
}

pub(super) type Expiration = (u32, Time, Time);

pub(super) fn history(key: Key, steps: &[Step], expirations: &[Expiration]) -> History {
    let mut events: Vec<_> = (0..steps.len())
        .flat_map(|index| [(steps[index].from, index), (steps[index].to, index)])
        .filter(|(time, _)| *time > 0)
        .collect();
    events.sort_unstable();
    let mut history = History::new();
    let mut ids = vec![None; steps.len()];
    for (time, index) in events {
        let step = &steps[index];
        match ids[index] {
            None => ids[index] = Some(history.invoke(step.client, key, step.operation, time)),
            Some(id) => history.complete(id, step.outcome, time),
        }
    }
    for (id, step) in ids.iter().zip(steps) {
        for at in &step.vanishes {
            history.may_vanish(id.expect("it was invoked"), *at);
        }
    }
    for (client, from, to) in expirations {
        history.expired(*client, *from, *to);
    }
    history
}

pub(super) fn is_right(key: Key, steps: &[Step], expirations: &[Expiration]) -> bool {
    match history(key, steps, expirations).check() {
        Ok(checked) => {
            assert!(checked.gave_up.is_empty());
            true
        }
        Err(_) => false,
    }
}

fn all(key: Key, right: bool, table: &[(&str, Vec<Step>)]) {
    for (name, steps) in table {
        assert_eq!(is_right(key, steps, &[]), right, "{name}");
    }
}

#[test]
fn right_histories_of_blocks_are_accepted() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let table = [
        ("nothing", vec![]),
        ("0 at first", vec![read(1, 0, 1, 2), write(1, 5, 3, 4)]),
        ("its own", vec![write(1, 5, 1, 2), read(1, 5, 3, 4)]),
        ("overlap, new", vec![write(1, 5, 1, 9), read(2, 5, 2, 3)]),
        ("overlap, old", vec![write(1, 5, 1, 9), read(2, 0, 2, 3)]),
        (
            "two writers, either order",
            vec![write(1, 5, 1, 9), write(2, 6, 2, 8), read(1, 5, 10, 11)],
        ),
        (
            "never completed, and happened late",
            vec![write(1, 5, 1, 0), read(2, 0, 2, 3), read(2, 5, 4, 5)],
        ),
        (
            "never completed, nor happened",
            vec![write(1, 5, 1, 0), read(2, 0, 2, 3)],
        ),
        (
            "a read that never completed",
            vec![write(1, 5, 1, 2), step(2, Read, Value(7), 3, 0)],
        ),
    ];
    all(BLOCK, true, &table);
}

#[test]
fn wrong_histories_of_blocks_are_rejected() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let table = [
        ("stale", vec![write(1, 5, 1, 2), read(2, 0, 3, 4)]),
        (
            "lost update",
            vec![write(1, 5, 1, 2), write(2, 6, 3, 4), read(1, 5, 5, 6)],
        ),
        ("never written", vec![write(1, 5, 1, 2), read(2, 7, 3, 4)]),
        (
            "read before it was written",
            vec![read(2, 5, 1, 2), write(1, 5, 3, 4)],
        ),
        (
            "new, then old, while it is written",
            vec![write(1, 5, 1, 9), read(2, 5, 2, 3), read(3, 0, 4, 5)],
        ),
        (
            "two readers see two orders",
            vec![
                write(1, 5, 1, 9),
                write(2, 6, 2, 8),
                read(3, 5, 10, 11),
                read(3, 6, 12, 13),
            ],
        ),
        (
            "never completed, happened and came back",
            vec![
                write(1, 5, 1, 0),
                read(2, 5, 2, 3),
                write(2, 6, 4, 5),
                read(2, 5, 6, 7),
            ],
        ),
    ];
    all(BLOCK, false, &table);
}

#[test]
fn writes_vanish_with_permission() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let (first, second) = (write(1, 5, 1, 2), write(1, 6, 3, 4));
    let may = |step: &Step, at: &[Time]| step.clone().vanishing(at);
    let read_both = [read(2, 6, 5, 6), read(2, 5, 11, 12)];
    let with = |steps: &[Step]| [steps, &read_both].concat();
    let right = [
        ("it vanished", with(&[first.clone(), may(&second, &[10])])),
        (
            "both vanished",
            vec![may(&first, &[10]), may(&second, &[10]), read(2, 0, 11, 12)],
        ),
        (
            "it did not",
            vec![may(&first, &[10]), may(&second, &[10]), read(2, 6, 11, 12)],
        ),
        (
            "one at each takeover",
            vec![
                may(&first, &[10, 20]),
                may(&second, &[10, 20]),
                read(2, 5, 11, 12),
                read(2, 0, 21, 22),
            ],
        ),
        (
            "the lower one had vanished before",
            vec![
                may(&first, &[10]),
                may(&second, &[20]),
                read(2, 6, 11, 12),
                read(2, 0, 21, 22),
            ],
        ),
        (
            "while a read is in flight",
            vec![first.clone(), may(&second, &[10]), read(2, 5, 9, 12)],
        ),
        (
            "one that never completed",
            with(&[first.clone(), may(&step(1, Write(6), Written, 3, 0), &[10])]),
        ),
    ];
    all(BLOCK, true, &right);
}

#[test]
fn writes_do_not_vanish_without_permission() {
    let write = |client, value, from, to| step(client, Write(value), Written, from, to);
    let read = |client, value, from, to| step(client, Read, Value(value), from, to);
    let (first, second) = (write(1, 5, 1, 2), write(1, 6, 3, 4));
    let may = |step: &Step, at: &[Time]| step.clone().vanishing(at);
    let read_both = [read(2, 6, 5, 6), read(2, 5, 11, 12)];
    let with = |steps: &[Step]| [steps, &read_both].concat();
    let wrong = [
        ("without", with(&[first.clone(), second.clone()])),
        ("the other one", with(&[may(&first, &[10]), second.clone()])),
        (
            "a later takeover",
            with(&[first.clone(), may(&second, &[20])]),
        ),
        (
            "before the takeover",
            vec![first.clone(), may(&second, &[10]), read(2, 5, 5, 6)],
        ),
        (
            "more than permitted",
            vec![first.clone(), may(&second, &[10]), read(2, 0, 11, 12)],
        ),
        (
            "it came back",
            [
                with(&[first.clone(), may(&second, &[10, 20])]),
                vec![read(2, 6, 21, 22)],
            ]
            .concat(),
        ),
        (
            "the one that was seen after the takeover, without another",
            vec![
                may(&first, &[10]),
                may(&second, &[10]),
                read(2, 5, 11, 12),
                read(2, 0, 13, 14),
            ],
        ),
        (
            "a write above stays",
            vec![may(&second, &[10]), write(2, 7, 5, 6), read(2, 0, 11, 12)],
        ),
    ];
    all(BLOCK, false, &wrong);
}

#[test]
fn entries_are_made_and_removed() {
    let lookup = |outcome, from, to| step(2, Lookup, outcome, from, to);
    let made = |inode, from, to| step(1, Create, Made(inode), from, to);
    let pending = |client, from| step(client, Create, Exists, from, 0);
    let right = [
        ("missing at first", vec![lookup(Missing, 1, 2)]),
        (
            "made, found, removed",
            vec![
                made(7, 1, 2),
                lookup(Found(7), 3, 4),
                step(2, Remove, Removed, 5, 6),
                lookup(Missing, 7, 8),
                made(8, 9, 10),
            ],
        ),
        (
            "one of two",
            vec![made(7, 1, 9), step(2, Create, Exists, 2, 8)],
        ),
        (
            "made without an answer",
            vec![
                pending(1, 1),
                lookup(Missing, 2, 3),
                lookup(Found(7), 4, 5),
                step(2, Create, Exists, 6, 7),
            ],
        ),
        (
            "made without an answer and never seen",
            vec![pending(1, 1), step(2, Remove, Removed, 2, 3)],
        ),
        (
            "removed without an answer",
            vec![
                made(7, 1, 2),
                step(2, Remove, Removed, 3, 0),
                lookup(Found(7), 4, 5),
                lookup(Missing, 6, 7),
            ],
        ),
        (
            "two without an answer",
            vec![
                pending(1, 1),
                pending(3, 2),
                lookup(Found(7), 4, 5),
                step(2, Remove, Removed, 6, 7),
                lookup(Found(8), 8, 9),
            ],
        ),
    ];
    all(ENTRY, true, &right);
}

#[test]
fn entries_are_not_made_or_removed_twice() {
    let lookup = |outcome, from, to| step(2, Lookup, outcome, from, to);
    let made = |inode, from, to| step(1, Create, Made(inode), from, to);
    let pending = |client, from| step(client, Create, Exists, from, 0);
    let wrong = [
        (
            "made twice",
            vec![made(7, 1, 4), step(2, Create, Made(8), 2, 3)],
        ),
        ("another inode", vec![made(7, 1, 2), lookup(Found(8), 3, 4)]),
        ("lost", vec![made(7, 1, 2), lookup(Missing, 3, 4)]),
        ("out of nothing", vec![lookup(Found(7), 1, 2)]),
        (
            "exists, out of nothing",
            vec![step(1, Create, Exists, 1, 2)],
        ),
        (
            "removed twice",
            vec![
                made(7, 1, 2),
                step(1, Remove, Removed, 3, 6),
                step(2, Remove, Removed, 4, 5),
            ],
        ),
        (
            "removed and came back, though there is a creation without an answer",
            vec![
                pending(1, 1),
                pending(3, 2),
                lookup(Found(7), 4, 5),
                step(2, Remove, Removed, 6, 7),
                lookup(Found(7), 8, 9),
            ],
        ),
    ];
    all(ENTRY, false, &wrong);
}

#[test]
fn locks_are_granted_to_one() {
    let granted = |client, from, to| step(client, Acquire, Granted, from, to);
    let refused = |client, from, to| step(client, Acquire, Refused, from, to);
    let released = |client, from, to| step(client, Release, Released, from, to);
    let right = [
        (
            "in turn",
            vec![
                granted(1, 1, 2),
                refused(2, 3, 4),
                released(1, 5, 6),
                granted(2, 7, 8),
                step(1, Release, NotHeld, 9, 10),
            ],
        ),
        ("again", vec![granted(1, 1, 2), granted(1, 3, 4)]),
        (
            "granted without an answer",
            vec![step(1, Acquire, Granted, 1, 0), refused(2, 3, 4)],
        ),
        (
            "released without an answer",
            vec![
                granted(1, 1, 2),
                step(1, Release, Released, 3, 0),
                granted(2, 4, 5),
            ],
        ),
    ];
    all(LOCK, true, &right);
    let wrong = [
        ("twice", vec![granted(1, 1, 2), granted(2, 3, 4)]),
        ("twice at a time", vec![granted(1, 1, 4), granted(2, 2, 3)]),
        ("refused though free", vec![refused(1, 1, 2)]),
        (
            "released by another",
            vec![granted(1, 1, 2), released(2, 3, 4)],
        ),
        (
            "forgotten",
            vec![granted(1, 1, 2), step(1, Release, NotHeld, 3, 4)],
        ),
    ];
    all(LOCK, false, &wrong);
}

#[test]
fn a_session_that_expired_has_no_locks() {
    let granted = |client, from, to| step(client, Acquire, Granted, from, to);
    let refused = |client, from, to| step(client, Acquire, Refused, from, to);
    let expires = [(1, 10, 20)];
    let check = |steps: &[Step]| is_right(LOCK, steps, &expires);
    assert!(check(&[granted(1, 1, 2), granted(2, 15, 16)]));
    assert!(check(&[granted(1, 1, 2), refused(2, 15, 16)]));
    assert!(check(&[granted(1, 1, 2), granted(2, 21, 22)]));
    assert!(check(&[
        granted(1, 1, 2),
        refused(2, 12, 13),
        granted(2, 14, 15)
    ]));
    assert!(!check(&[granted(1, 1, 2), granted(2, 8, 9)]));
    assert!(!check(&[granted(1, 1, 2), refused(2, 21, 22)]));
    assert!(!check(&[
        granted(1, 1, 2),
        granted(2, 12, 13),
        step(1, Release, Released, 21, 22)
    ]));
    // The old session gets no lock any more, a new one does.
    let pending = step(1, Acquire, Granted, 5, 0);
    assert!(!check(&[pending, refused(2, 21, 22)]));
    assert!(check(&[granted(1, 25, 26), refused(2, 27, 28)]));
    let pending = |from| step(1, Acquire, Granted, from, 0);
    assert!(check(&[pending(5), pending(25), refused(2, 27, 28)]));
    // Another client's session has no effect.
    assert!(!is_right(
        LOCK,
        &[granted(2, 1, 2), granted(3, 21, 22)],
        &expires
    ));
}

#[test]
fn withdrawn_operations_do_not_count() {
    let mut history = history(BLOCK, &[step(2, Read, Value(0), 5, 6)], &[]);
    let id = history.invoke(1, BLOCK, Write(4), 7);
    history.withdraw(id);
    let id = history.invoke(1, BLOCK, Read, 8);
    history.complete(id, Value(4), 9);
    assert!(history.check().is_err());
}

#[test]
fn of_two_moments_at_one_time_the_first_recorded_is_first() {
    let mut history = History::new();
    let write = history.invoke(1, BLOCK, Write(5), 10);
    history.complete(write, Written, 10);
    let read = history.invoke(1, BLOCK, Read, 10);
    history.complete(read, Value(0), 10);
    assert!(history.check().is_err());
}

#[test]
fn a_message_shows_what_is_wrong_and_little_else() {
    let mut steps = Vec::new();
    for index in 0..100 {
        let from = index * 10 + 1;
        let (write, read) = (index % 3, (index + 1) % 3);
        steps.push(step(write as u32, Write(index), Written, from, from + 4));
        steps.push(step(read as u32, Read, Value(index), from + 5, from + 9));
    }
    assert!(is_right(BLOCK, &steps, &[]));
    steps[101].outcome = Value(49);
    let error = history(BLOCK, &steps, &[])
        .check()
        .expect_err("it is stale");
    assert_eq!(
        error,
        "block 1 of file 3: no order explains these, whatever was there before:\n  \
         0.000501 ms to 0.000505 ms: client 2: Write(50) -> Written\n  \
         0.000506 ms to 0.000510 ms: client 0: Read -> Value(49)"
    );
    let steps = [
        step(1, Write(5), Written, 1, 2).vanishing(&[4]),
        step(2, Read, Value(0), 3, 6),
        step(2, Read, Value(5), 7, 8),
        step(2, Read, Value(6), 9, 0),
        step(2, Read, Value(0), 10, 12),
    ];
    let error = history(BLOCK, &steps, &[])
        .check()
        .expect_err("it came back");
    assert_eq!(
        error,
        "block 1 of file 3: no order explains these:\n  \
         0.000001 ms to 0.000002 ms: client 1: Write(5) -> Written, may vanish at 0.000004 ms\n  \
         0.000003 ms to 0.000006 ms: client 2: Read -> Value(0)\n  \
         0.000004 ms: takeover\n  \
         0.000007 ms to 0.000008 ms: client 2: Read -> Value(5)"
    );
    let steps = [
        step(1, Acquire, Granted, 1, 2),
        step(2, Acquire, Granted, 12, 13),
    ];
    let error = history(LOCK, &steps, &[(1, 14, 16)])
        .check()
        .expect_err("twice");
    assert_eq!(
        error,
        "the lock of part 0 of file 3: no order explains these:\n  \
         0.000001 ms to 0.000002 ms: client 1: Acquire -> Granted\n  \
         0.000012 ms to 0.000013 ms: client 2: Acquire -> Granted"
    );
}

#[test]
fn every_key_is_checked_for_itself() {
    let mut history = History::new();
    let other = Key::Block { file: 3, block: 2 };
    for (key, outcome) in [(BLOCK, Value(0)), (other, Value(5))] {
        let write = history.invoke(1, other, Write(5), 10);
        history.complete(write, Written, 20);
        let read = history.invoke(1, key, Read, 30);
        history.complete(read, outcome, 40);
    }
    let checked = history.check().expect("it is right");
    assert_eq!((checked.keys, checked.operations), (2, 4));
    assert_eq!((history.len(), history.is_empty()), (4, false));
}

#[test]
fn lists_grow_and_shrink() {
    const LIST: Key = Key::List { file: 9 };
    let steps = [
        step(1, Append(5), At(0), 1, 2),
        step(2, Append(6), At(1), 3, 4),
        step(1, Insert(1), Written, 5, 6),
        step(1, ReadAt(2), Value(6), 7, 8),
        step(2, Collapse(2), Refused, 9, 10),
        step(2, Collapse(0), Written, 11, 12),
        step(1, ReadAt(0), Value(0), 13, 14),
        step(1, ReadAt(2), Missing, 15, 16),
        step(1, Clear, Written, 17, 18),
        step(1, Insert(0), Refused, 19, 20),
        step(2, Append(7), At(0), 21, 22),
    ];
    assert!(is_right(LIST, &steps, &[]));
    let wrong = |index: usize, outcome| {
        let mut steps = steps.clone();
        steps[index].outcome = outcome;
        !is_right(LIST, &steps, &[])
    };
    assert!(wrong(1, At(0)) && wrong(3, Value(5)) && wrong(4, Written));
    assert!(wrong(6, Value(5)) && wrong(7, Value(6)) && wrong(10, At(2)));
    // One that was never answered may have happened.
    let open = [
        step(1, Append(5), At(0), 1, 0),
        step(2, Append(6), At(1), 3, 4),
    ];
    assert!(is_right(LIST, &open, &[]));
}

#[test]
fn locks_of_others_show_in_tests() {
    let steps = [
        step(1, Acquire, Granted, 1, 2),
        step(2, Test, Refused, 3, 4),
        step(1, Test, NotHeld, 5, 6),
        step(1, Release, Gone, 7, 8),
        step(1, Release, Gone, 9, 10),
        step(2, Test, NotHeld, 11, 12),
    ];
    assert!(is_right(LOCK, &steps, &[]));
    let mut wrong = steps.clone();
    wrong[5].outcome = Refused;
    assert!(!is_right(LOCK, &wrong, &[]));
}
