//! Two threads, each with a queue.

use std::thread::JoinHandle;
use std::time::Duration;

use fabric::{Event, Failure, Queue, QueueOptions, Source, Work, WorkRequest};

use super::{join, message, open_with, options, until};

const ROUNDS: u64 = 20_000;

fn rally(spin_max: Duration) -> (Queue, Queue) {
    let layout = QueueOptions {
        spin_max,
        ..QueueOptions::default()
    };
    let (_near_device, mut near) = open_with(options(), layout);
    let (_far_device, mut far) = open_with(options(), layout);
    let (to_far, to_near) = join(&mut near, &mut far);
    let echo = std::thread::spawn(move || {
        let mut events = Vec::new();
        loop {
            far.wait(&mut events, super::PATIENCE);
            for event in events.drain(..) {
                match event {
                    Event::Message(ball) => {
                        let answer = ball.to_vec();
                        drop(ball);
                        far.post(to_near, &message(0, &answer).quiet()).unwrap();
                        far.submit();
                    }
                    Event::Lost(..) => return far,
                    // The end came before the acknowledgement of the last ball.
                    Event::Done(done) => assert_eq!(done.outcome, Err(Failure::Flushed)),
                }
            }
        }
    });
    let mut events = Vec::new();
    // The connection is made by and by.
    for round in 0..ROUNDS {
        let ball = round.to_le_bytes();
        near.post(to_far, &message(0, &ball).quiet()).unwrap();
        near.submit();
        while near.wait(&mut events, super::PATIENCE) == 0 {}
        match events.pop() {
            Some(Event::Message(answer)) => assert_eq!(answer.to_vec(), ball),
            other => panic!("{other:?}"),
        }
    }
    near.close(to_far);
    let far = look_until_the_end(&mut near, echo);
    (near, far)
}

/// Polls until the other side's thread has ended, which asks whether an endpoint still exists.
fn look_until_the_end<T>(queue: &mut Queue, other: JoinHandle<T>) -> T {
    let mut events = Vec::new();
    while !other.is_finished() {
        queue.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
        std::thread::yield_now();
    }
    other.join().unwrap()
}

#[test]
fn messages_go_back_and_forth_between_threads_that_look() {
    let (near, far) = rally(Duration::from_millis(100));
    assert_eq!(near.counters().received, ROUNDS);
    assert_eq!(far.counters().received, ROUNDS);
}

#[test]
fn messages_go_back_and_forth_between_threads_that_sleep() {
    let (near, far) = rally(Duration::ZERO);
    for queue in [near, far] {
        let slept = queue.counters().slept;
        assert!(
            slept >= ROUNDS / 2,
            "slept {slept} times of {ROUNDS}: a waiting thread should not poll"
        );
    }
}

#[test]
fn a_sleeper_executes_requests_of_peers_without_reports() {
    use fabric::{Access, Device};
    let (_near_device, mut near) = open_with(options(), QueueOptions::default());
    let (device, mut far) = open_with(options(), QueueOptions::default());
    let (to_far, to_near) = join(&mut near, &mut far);
    let region = pmem::Region::memory(4096, false).unwrap();
    let memory = device.register(&region, Access::ALL).unwrap();
    let export = far.export(to_near, &memory).unwrap();
    let remote = near.import(to_far, export).unwrap();
    let sleeper = std::thread::spawn(move || {
        let mut events = Vec::new();
        while far.wait(&mut events, super::PATIENCE) == 0 {}
        let lost = matches!(events[..], [Event::Lost(..)]);
        assert!(lost, "{events:?}");
    });
    for round in 0..1000 {
        let word = WorkRequest::new(
            round,
            Work::FetchAndAdd {
                at: remote.at(64),
                addend: 3,
            },
        );
        near.post(to_far, &word).unwrap();
        let bytes = [round as u8; 200];
        let write = Work::Write {
            from: Source::Inline(&bytes),
            to: remote.at(512),
            immediate: None,
        };
        near.post(to_far, &WorkRequest::new(round + 5000, write))
            .unwrap();
        until("a write", &mut [&mut near], |_, event| match event {
            Event::Done(done) if done.id.0 == round => {
                assert_eq!(done.outcome, Ok(3 * round));
                false
            }
            Event::Done(done) => done.outcome == Ok(0),
            other => panic!("{other:?}"),
        });
        let mut found = [0; 200];
        region.read(512, &mut found);
        assert_eq!(found, bytes);
    }
    near.close(to_far);
    look_until_the_end(&mut near, sleeper);
}
