//! How readers who note themselves and a writer find each other, apart from what they are after.
//!
//! A reader stores the key of the lock into a word of its own, and then looks whether the lock is still biased. A writer,
//! who has the underlying lock, ends the bias, and then looks whether a word holds the key. Each looks after its own store
//! is seen by all, so at least one of them sees the other: the reader goes the slow way, or the writer waits. The bias
//! comes back only under the underlying lock, which a writer has for itself.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A word, by what its loads and stores have to promise.
pub trait Word {
    type Value: Copy + PartialEq;

    /// Loads it; that promises nothing.
    fn peek(&self) -> Self::Value;
    /// Loads it; nothing after it is done earlier, and no [`Word::announce`] before it is seen later.
    fn look(&self) -> Self::Value;
    /// Stores it; nothing before it is seen later.
    fn put(&self, value: Self::Value);
    /// Stores it, so that all see it before anything after it is done.
    fn announce(&self, value: Self::Value);
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word for $atomic {
            type Value = $value;

            #[inline]
            fn peek(&self) -> $value {
                self.load(Ordering::Relaxed)
            }

            #[inline]
            fn look(&self) -> $value {
                self.load(Ordering::SeqCst)
            }

            #[inline]
            fn put(&self, value: $value) {
                self.store(value, Ordering::Release);
            }

            #[inline]
            fn announce(&self, value: $value) {
                // One locked instruction, where a store and a fence would be two.
                self.swap(value, Ordering::SeqCst);
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicUsize, usize);

/// Locks that a thread can have noted at the same time.
const SLOTS: usize = 8;

/// What a thread reads: the keys of locks, 0 where there is none. On cache lines of its own (two: processors fetch them
/// in pairs).
#[repr(align(128))]
pub struct Line<W>([W; SLOTS]);

impl Line<AtomicUsize> {
    pub const fn new() -> Line<AtomicUsize> {
        Line([const { AtomicUsize::new(0) }; SLOTS])
    }
}

/// Whether readers of a lock note themselves: 1 if so, else 0.
pub struct Bias<F>(F);

impl Bias<AtomicU32> {
    pub const fn new() -> Bias<AtomicU32> {
        Bias(AtomicU32::new(0))
    }
}

impl<F: Word<Value = u32>> Bias<F> {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.peek() != 0
    }

    /// Begins to read the fast way, if that is possible: the word that says so until [`leave`]. `own` is the caller's
    /// line, `key` is not 0 and belongs to the lock alone.
    #[inline]
    pub fn enter<'a, W: Word<Value = usize>>(&self, own: &'a Line<W>, key: usize) -> Option<&'a W> {
        if !self.is_on() {
            return None;
        }
        let slot = own.0.iter().find(|slot| slot.peek() == 0)?;
        slot.announce(key);
        if self.0.look() != 0 {
            return Some(slot);
        }
        leave(slot);
        None
    }

    /// Lets readers note themselves. The caller has the underlying lock for reading.
    pub fn begin(&self) {
        self.0.put(1);
    }

    /// Ends it. The caller has the underlying lock for writing. Who reads still is found by [`Line::names`].
    pub fn end(&self) {
        self.0.announce(0);
    }
}

/// Ends what [`Bias::enter`] began.
#[inline]
pub fn leave<W: Word<Value = usize>>(slot: &W) {
    slot.put(0);
}

impl<W: Word<Value = usize>> Line<W> {
    /// The words in which the thread may have noted itself: whoever ended the bias waits at each of them until it is
    /// another one than the key. Later ones that hold the key are of readers who see that the bias is over.
    pub fn names(&self, key: usize) -> impl Iterator<Item = &W> {
        self.0.iter().filter(move |slot| slot.look() == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::fence;
    use loom::sync::{Arc, RwLock};
    use loom::thread;

    /// A word of the model, which knows of fences what the language promises. `FENCED`: as it should be.
    #[derive(Default)]
    struct Modelled<A, const FENCED: bool>(A);

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
            }
        };
    }

    modelled!(loom::sync::atomic::AtomicU32, u32);
    modelled!(loom::sync::atomic::AtomicUsize, usize);

    type Slot<const FENCED: bool> = Modelled<loom::sync::atomic::AtomicUsize, FENCED>;
    type Flag<const FENCED: bool> = Modelled<loom::sync::atomic::AtomicU32, FENCED>;

    const KEY: usize = 1;

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
                lines: [Line(Default::default()), Line(Default::default())],
                lock: RwLock::new(()),
                value: UnsafeCell::new(0),
            }
        }

        fn read(&self, thread: usize) -> u32 {
            // SAFETY: that nobody writes meanwhile is what the model looks at.
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
    fn nobody_reads_what_is_written() {
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
}
