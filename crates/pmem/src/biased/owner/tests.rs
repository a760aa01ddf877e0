//! The protocol between the owner and another thread, in every order that the language allows.

use super::super::bias::tests::{Flag, Slot, lines};
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, RwLock};
use loom::thread;

const KEY: usize = 1;

/// A lock as `BiasedLock` is, of what two threads must never change at the same time: the model ends in a panic then.
struct Scene<const FENCED: bool, const WAITS: bool> {
    owner: Owner<Flag<FENCED>>,
    lines: [Line<Slot<FENCED>>; 2],
    lock: RwLock<()>,
    value: UnsafeCell<u32>,
}

impl<const FENCED: bool, const WAITS: bool> Scene<FENCED, WAITS> {
    /// Changes the value as `thread`; `takes`: that thread becomes the owner.
    fn change(&self, thread: usize, takes: bool) -> u32 {
        let change = || {
            self.value.with_mut(|value| {
                // SAFETY: the model checks that no other thread changes it meanwhile.
                let value = unsafe { &mut *value };
                *value += 1;
                *value
            })
        };
        let (number, own) = (thread as u32 + 1, &self.lines[thread]);
        if self.owner.get() == number
            && let Some(slot) = self.owner.enter(number, own, KEY)
        {
            let value = change();
            leave(slot);
            return value;
        }
        let guard = self.lock.write().unwrap();
        let owner = self.owner.get();
        if owner != 0 {
            self.owner.end();
            for slot in self.lines[owner as usize - 1].names(KEY) {
                while WAITS && slot.look() == KEY {
                    thread::yield_now();
                }
            }
        }
        if !takes {
            return change();
        }
        self.owner.begin(number);
        let slot = self.owner.enter(number, own, KEY);
        let slot = slot.expect("no other thread can have ended it");
        drop(guard);
        let value = change();
        leave(slot);
        value
    }
}

/// Two threads that do this to a lock, which the first owns, in every order that the language allows.
fn explore<const FENCED: bool, const WAITS: bool>(work: fn(&Scene<FENCED, WAITS>, usize)) {
    loom::model(move || {
        let scene = Arc::new(Scene {
            owner: Owner(Flag::default()),
            lines: lines(),
            lock: RwLock::new(()),
            value: UnsafeCell::new(0),
        });
        scene.owner.begin(1);
        let other = scene.clone();
        let thread = thread::spawn(move || work(&other, 1));
        work(&scene, 0);
        thread.join().unwrap();
        // SAFETY: the other thread has ended.
        scene.value.with(|value| assert_eq!(unsafe { *value }, 3));
    });
}

/// The first twice.
fn both_change<const FENCED: bool, const WAITS: bool>(scene: &Scene<FENCED, WAITS>, thread: usize) {
    let first = scene.change(thread, thread == 1);
    if thread == 0 {
        assert!(first < scene.change(thread, false));
    }
}

#[test]
fn no_thread_is_beside_the_owner() {
    explore::<true, true>(both_change);
    explore::<true, true>(|scene, thread| {
        scene.change(thread, true);
        if thread == 1 {
            scene.change(thread, false);
        }
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn another_thread_without_a_barrier_is_found() {
    explore::<false, true>(both_change);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn another_thread_that_does_not_wait_is_found() {
    explore::<true, false>(both_change);
}
