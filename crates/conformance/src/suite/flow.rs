//! Signaling, bounds and credits.

use std::time::Duration;

use fabric::buffers::Class;
use fabric::{Access, Pool, QueueOptions, Refusal, Source, Work, WorkRequest};
use fabric_simulation::wrappers::Faults;

use super::{Faulty, Pair, Setup, Side, join};

const NOTE: Work<'_> = Work::Send {
    from: Source::Inline(b"note"),
    immediate: None,
};

fn few() -> QueueOptions {
    QueueOptions {
        window: 8,
        ..QueueOptions::default()
    }
}

pub fn quiet_requests_are_told_only_when_they_fail(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let far = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&far);
    let write = Work::Write {
        from: Source::Inline(b"quiet"),
        to: remote.at(0),
        immediate: None,
    };
    for id in 0..1000 {
        pair.post(WorkRequest::new(id, write).quiet());
    }
    assert_eq!(pair.carry_out(5000, write), Ok(0));
    assert!(pair.near.done.is_empty());
    assert_eq!(pair.near.queue.outstanding(pair.to_far), 0);
    // One in sixteen, and the last.
    let signaled = pair.near.queue.counters().signaled;
    assert!(
        (63..=80).contains(&signaled),
        "{signaled} of 1001 were signaled"
    );
}

pub fn outstanding_requests_are_bounded(setup: &dyn Setup) {
    let options = QueueOptions {
        outstanding: 5,
        ..QueueOptions::default()
    };
    let mut pair = Pair::with(setup, options, QueueOptions::default());
    let far = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&far);
    let write = Work::Write {
        from: Source::Inline(b"bounded"),
        to: remote.at(0),
        immediate: None,
    };
    let (mut posted, mut held) = (0, 0);
    while posted < 500 {
        let request = WorkRequest::new(posted, write).quiet();
        match pair.near.queue.post(pair.to_far, &request) {
            Ok(()) => {
                assert!(pair.near.queue.is_outstanding(pair.to_far, request.id));
                posted += 1;
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Held);
                held += 1;
                pair.near.poll();
                pair.far.poll();
            }
        }
        assert!(pair.near.queue.outstanding(pair.to_far) <= 5);
    }
    assert!(held > 0);
    assert_eq!(pair.near.queue.counters().held, held);
    assert_eq!(pair.carry_out(1000, write), Ok(0));
}

pub fn a_slow_receiver_holds_back_its_sender_alone(setup: &dyn Setup) {
    let mut pair = Pair::with(setup, QueueOptions::default(), few());
    let mut other = Side::new(setup, QueueOptions::default());
    let (other_to_far, _) = join(setup, &mut other, &mut pair.far);
    for id in 0..8 {
        pair.post(WorkRequest::new(id, NOTE));
    }
    pair.await_messages(8);
    let ninth = WorkRequest::new(9, NOTE);
    assert_eq!(
        pair.near.queue.post(pair.to_far, &ninth),
        Err(Refusal::Held)
    );
    pair.linger();
    assert_eq!(
        pair.near.queue.post(pair.to_far, &ninth),
        Err(Refusal::Held)
    );
    // One-sided requests need no buffer, and others have theirs.
    let far = pair.far.memory(4096, Access::ALL);
    let remote = pair.import(&far);
    let write = Work::Write {
        from: Source::Inline(b"one-sided"),
        to: remote.at(0),
        immediate: None,
    };
    assert_eq!(pair.carry_out(100, write), Ok(0));
    other
        .queue
        .post(other_to_far, &WorkRequest::new(1, NOTE))
        .unwrap();
    pair.until("the other's message", |_, far| {
        other.poll();
        far.messages.len() == 9
    });
    pair.far.messages.clear();
    pair.post(ninth);
    pair.await_messages(1);
}

pub fn credits_come_back_without_messages_to_ride_on(setup: &dyn Setup) {
    let mut pair = Pair::with(setup, QueueOptions::default(), few());
    let mut received = 0;
    for id in 0..1000 {
        pair.post_meanwhile(WorkRequest::new(id, NOTE).quiet(), |far| {
            received += far.messages.drain(..).count();
        });
    }
    pair.until("all messages", |_, far| {
        received += far.messages.drain(..).count();
        received == 1000
    });
    let told = pair.far.queue.counters().credits_told;
    assert!(
        (100..=300).contains(&told),
        "{told} counts for 1000 messages and a window of 8"
    );
}

/// A write with a notification takes a credit, but may have no room to report returned ones.
pub fn writes_that_announce_themselves_leave_credits_as_they_are(setup: &dyn Setup) {
    let mut pair = Pair::with(setup, few(), few());
    let far = pair.far.memory(4096, Access::WRITE);
    let remote = pair.import(&far);
    let write = Work::Write {
        from: Source::Inline(b"announced"),
        to: remote.at(0),
        immediate: Some(1),
    };
    let to_near = pair.to_near;
    for round in 0..100 {
        let there = if round % 3 == 0 { NOTE } else { write };
        pair.post(WorkRequest::new(round, there).quiet());
        pair.await_messages(1);
        pair.far.messages.clear();
        let back = WorkRequest::new(round, NOTE).quiet();
        let mut answered = false;
        pair.until("an answer", |near, far| {
            if !std::mem::replace(&mut answered, true) {
                far.queue.post(to_near, &back).unwrap();
            }
            near.messages.pop().is_some()
        });
        assert!(
            pair.near.lost.is_empty() && pair.far.lost.is_empty(),
            "round {round}"
        );
    }
}

/// The far side loses three counts of four.
pub fn lost_counts_of_credits_are_asked_for(setup: &dyn Setup) {
    let faults = Faults {
        credits_one_in: 4,
        ..Faults::default()
    };
    let mut pair = Pair::with(&Faulty(setup, faults), QueueOptions::default(), few());
    let mut received = 0;
    for id in 0..60 {
        pair.post_meanwhile(WorkRequest::new(id, NOTE).quiet(), |far| {
            received += far.messages.drain(..).count();
        });
    }
    pair.until("all messages", |_, far| {
        received += far.messages.drain(..).count();
        received == 60
    });
    assert!(pair.near.queue.counters().credits_asked > 0);
}

pub fn buffers_belong_to_their_requests(setup: &dyn Setup) {
    let mut pair = Pair::new(setup);
    let classes = [
        Class {
            bytes: 1000,
            count: 1,
        },
        Class {
            bytes: 5000,
            count: 2,
        },
    ];
    let pool = Pool::new(&*pair.near.device, &classes, Access::LOCAL).unwrap();
    let buffer = pool.allocate(900).unwrap();
    assert_eq!(buffer.capacity(), 1000);
    assert!(pool.allocate(1).is_none(), "the only one is in use");
    assert!(pool.allocate_within(1, Duration::from_millis(1)).is_none());
    buffer.write(0, b"owned");
    {
        let pieces = [buffer.piece(0, 5)];
        let send = Work::Send {
            from: Source::Pieces(&pieces),
            immediate: None,
        };
        let request = WorkRequest::new(1, send).keeping(&buffer);
        pair.near.queue.post(pair.to_far, &request).unwrap();
    }
    drop(buffer);
    assert!(
        pool.allocate(1).is_none(),
        "it is the request's until that ends"
    );
    pair.until("the end of the request", |near, _| {
        near.done.pop().is_some()
    });
    pair.await_messages(1);
    assert_eq!(pair.far.messages[0].to_vec(), b"owned");
    assert!(pool.allocate(1).is_some());
}

pub fn a_late_reader_loses_nothing(setup: &dyn Setup) {
    let mut pair = Pair::with(setup, QueueOptions::default(), few());
    let to_far = pair.to_far;
    let mut posted = 0;
    // The near side continues alone until it is held back; the far side has never polled yet.
    while pair
        .near
        .queue
        .post(to_far, &WorkRequest::new(posted, NOTE).quiet())
        .is_ok()
    {
        posted += 1;
        pair.near.poll();
    }
    assert_eq!(posted, 8);
    pair.await_messages(8);
    let Pair { near, far, .. } = pair;
    drop(near);
    // Messages outlive their endpoint, and their queue.
    let messages = far.messages;
    drop(far.queue);
    assert!(messages.iter().all(|message| message.to_vec() == b"note"));
}
