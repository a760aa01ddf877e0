//! The protocol of readers and writers, in every order that the language allows.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::fence;
use loom::sync::{Arc, RwLock};
use loom::thread;

/// A word of the model, with fences only as the language guarantees them. `FENCED`: the correct version.
#[derive(Default)]
pub struct Modelled<A, const FENCED: bool>(pub A);

macro_rules! modelled {
    ($atomic:ty, $value:ty) => {
        impl<const FENCED: bool> Word for Modelled<$atomic, FENCED> {
            type Value = $value;

            fn peek(&self) -> $value {
                self.0.load(Ordering::Relaxed)
            }

            fn look(&self) -> $value {
                self.0.load(Ordering::Acquire)
            }

            fn put(&self, value: $value) {
                self.0.store(value, Ordering::Release);
            }

            fn announce(&self, value: $value) {
                self.0.store(value, Ordering::Release);
                if FENCED {
                    fence(Ordering::SeqCst);
                }
            }

            // The other side's barrier replaces this fence.
            fn note(&self, value: $value) {
                self.0.store(value, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }

            fn announce_everywhere(&self, value: $value) {
                self.announce(value);
            }
        }
    };
}

modelled!(loom::sync::atomic::AtomicU32, u32);
modelled!(loom::sync::atomic::AtomicUsize, usize);
modelled!(loom::sync::atomic::AtomicU64, u64);

pub type Slot<const FENCED: bool> = Modelled<loom::sync::atomic::AtomicUsize, FENCED>;
pub type Flag<const FENCED: bool> = Modelled<loom::sync::atomic::AtomicU32, FENCED>;

const KEY: usize = 1;

/// Lines of two threads.
pub fn lines<const FENCED: bool>() -> [Line<Slot<FENCED>>; 2] {
    [Line(Default::default()), Line(Default::default())]
}

/// A lock as `BiasedLock` is, of what must never be read while it is written: the model ends in a panic then.
struct Scene<const FENCED: bool, const WAITS: bool> {
    bias: Bias<Flag<FENCED>>,
    lines: [Line<Slot<FENCED>>; 2],
    lock: RwLock<()>,
    value: UnsafeCell<u32>,
}

impl<const FENCED: bool, const WAITS: bool> Scene<FENCED, WAITS> {
    fn new(is_biased: bool) -> Scene<FENCED, WAITS> {
        let bias = Bias(Flag::default());
        if is_biased {
            bias.begin();
        }
        Scene {
            bias,
            lines: lines(),
            lock: RwLock::new(()),
            value: UnsafeCell::new(0),
        }
    }

    fn read(&self, thread: usize) -> u32 {
        // SAFETY: the model checks that no other thread writes meanwhile.
        let look = || self.value.with(|value| unsafe { *value });
        if let Some(slot) = self.bias.enter(&self.lines[thread], KEY) {
            let value = look();
            leave(slot);
            return value;
        }
        let _guard = self.lock.read().unwrap();
        self.bias.begin();
        look()
    }

    fn write(&self) {
        let _guard = self.lock.write().unwrap();
        if self.bias.is_on() {
            self.bias.end();
            for slot in self.lines.iter().flat_map(|line| line.names(KEY)) {
                while WAITS && slot.look() == KEY {
                    thread::yield_now();
                }
            }
        }
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }
}

/// Two threads that do this to a lock, in every order that the language allows.
fn explore<const FENCED: bool, const WAITS: bool>(
    is_biased: bool,
    work: fn(&Scene<FENCED, WAITS>, usize),
) {
    loom::model(move || {
        let scene = Arc::new(Scene::new(is_biased));
        let other = scene.clone();
        let thread = thread::spawn(move || work(&other, 1));
        work(&scene, 0);
        thread.join().unwrap();
    });
}

fn one_writes_one_reads<const FENCED: bool, const WAITS: bool>(
    scene: &Scene<FENCED, WAITS>,
    thread: usize,
) {
    if thread == 0 {
        scene.write();
    } else {
        let first = scene.read(thread);
        assert!(first <= scene.read(thread));
    }
}

#[test]
fn no_thread_reads_during_a_write() {
    explore::<true, true>(true, one_writes_one_reads);
    explore::<true, true>(false, one_writes_one_reads);
    explore::<true, true>(true, |scene, thread| {
        scene.write();
        assert!(scene.read(thread) >= 1);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_look_without_a_fence_before_it_is_found() {
    explore::<false, true>(true, one_writes_one_reads);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_writer_that_does_not_wait_is_found() {
    explore::<true, false>(true, one_writes_one_reads);
}
