//! The counter, by threads, and its protocol in every order that the language allows.

use loom::sync::atomic::AtomicU64 as ModelledU64;
use loom::sync::{Arc, Mutex as ModelledMutex};

use super::super::bias::tests::{Flag, Modelled};
use super::*;

impl<const FENCED: bool> Sum for Modelled<ModelledU64, FENCED> {
    fn add(&self, addend: u64) -> u64 {
        self.0.fetch_add(addend, Ordering::AcqRel)
    }
}

/// A counter as [`BiasedCounter`] is, of two threads. `WAITS`: as it should be.
struct Scene<const FENCED: bool, const WAITS: bool> {
    core: Core<Modelled<ModelledU64, FENCED>, Flag<FENCED>>,
    busy: [Flag<FENCED>; 2],
    changing: ModelledMutex<()>,
}

impl<const FENCED: bool, const WAITS: bool> Scene<FENCED, WAITS> {
    fn add(&self, thread: usize) -> u64 {
        loop {
            if let Some(before) = self.core.add(thread as u32 + 1, &self.busy[thread], 1) {
                return before;
            }
            let _changing = self.changing.lock().unwrap();
            let is_busy = |owner: u32| WAITS && self.busy[owner as usize - 1].look() != 0;
            self.core.end(is_busy, loom::thread::yield_now);
        }
    }

    fn begin(&self, thread: usize) {
        let _changing = self.changing.lock().unwrap();
        if self.core.owner.peek() == 0 {
            let is_alone = || !WAITS || self.busy[1 - thread].look() == 0;
            self.core.begin(thread as u32 + 1, is_alone);
        }
    }
}

/// Two threads that add, the first of which owns the counter or becomes its owner; no number is given out twice.
fn explore<const FENCED: bool, const WAITS: bool>(is_owned: bool) {
    loom::model(move || {
        let core = Core {
            value: Apart(Modelled::default()),
            owner: Flag::default(),
        };
        core.owner.put(u32::from(is_owned));
        let scene = Arc::new(Scene::<FENCED, WAITS> {
            core,
            busy: Default::default(),
            changing: ModelledMutex::new(()),
        });
        let other = scene.clone();
        let thread = loom::thread::spawn(move || other.add(1));
        let first = match is_owned {
            true => Some(scene.add(0)),
            false => {
                scene.begin(0);
                None
            }
        };
        let last = scene.add(0);
        let others = thread.join().unwrap();
        let mut numbers: Vec<_> = first.into_iter().chain([last, others]).collect();
        numbers.sort_unstable();
        let expected: Vec<_> = (0..numbers.len() as u64).collect();
        assert!(numbers == expected, "a number was given out twice");
    });
}

#[test]
fn no_number_is_given_out_twice() {
    explore::<true, true>(true);
}

#[test]
fn no_number_is_given_out_twice_at_a_beginning() {
    explore::<true, true>(false);
}

#[test]
#[should_panic(expected = "a number was given out twice")]
fn an_end_without_a_barrier_is_found() {
    explore::<false, true>(true);
}

#[test]
#[should_panic(expected = "a number was given out twice")]
fn an_end_that_does_not_wait_is_found() {
    explore::<true, false>(true);
}

#[test]
#[should_panic(expected = "a number was given out twice")]
fn a_beginning_without_a_barrier_is_found() {
    explore::<false, true>(false);
}

#[test]
#[should_panic(expected = "a number was given out twice")]
fn a_beginning_beside_others_is_found() {
    explore::<true, false>(false);
}

#[test]
fn threads_come_and_go() {
    let counter = BiasedCounter::new(5, 3);
    let (rounds, alone) = (20, u64::from(ADDITIONS) * 3);
    for _ in 0..rounds {
        for _ in 0..alone {
            counter.add(0, 1);
        }
        assert!(
            !barrier::are_quick()
                || counter.core.owner.peek() == 1
                || counter.ends.load(Ordering::Relaxed) > 1
        );
        let add = |index| {
            let counter = &counter;
            move || (0..100).map(|_| counter.add(index, 1)).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let others: Vec<_> = [1, 2].map(|index| scope.spawn(add(index))).into();
            let mut numbers = add(0)();
            for other in others {
                numbers.extend(other.join().expect("it adds"));
            }
            numbers.sort_unstable();
            assert!(
                (numbers[0]..)
                    .zip(&numbers)
                    .all(|(expected, number)| expected == *number)
            );
        });
    }
    assert_eq!(counter.get(), 5 + rounds * (alone + 300));
}
