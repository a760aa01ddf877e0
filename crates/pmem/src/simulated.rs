//! Persistent memory that remembers which stores a power failure could still undo.

mod moment;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

pub use moment::Moment;

use crate::{LINE, check_range, check_word, checksum};

/// A memory with crashes that can be enumerated.
///
/// The model, line by line: a store is *pending* until it is certain to be persistent. It becomes
/// certain when a thread flushes its line after it and then fences. A crash keeps some prefix of a
/// line's pending stores in program order, since caches may write a line back at any time but never
/// undo; lines are independent of one another. The store at which the prefix ends may be torn
/// between its pieces (aligned words of at most 8 bytes), in any order.
#[derive(Clone)]
pub struct Simulation(Arc<Shared>);

struct Shared {
    length: u64,
    state: Mutex<State>,
    observer: Mutex<Option<Observer>>,
}

/// Function that is called at each fence; see [`Simulation::observe_fences`].
pub type Observer = Box<dyn FnMut(&Moment) + Send>;

struct State {
    /// Contents as the processors see them.
    volatile: Vec<u8>,
    /// Contents that the medium holds, and may hold.
    moment: Moment,
    /// The flushes of each thread since its last fence.
    flushed: HashMap<ThreadId, Vec<Flushed>>,
    /// Number of stores so far.
    sequence: u64,
    fences: u64,
    fault: Fault,
    /// Flushes and fences since the fault was set.
    flushes_at_risk: u64,
    fences_at_risk: u64,
}

/// A line, and the last store that was flushed with it.
struct Flushed {
    line: u64,
    sequence: u64,
}

/// Faults of the simulated hardware, for tests that expect to detect them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault is injected.
    None,
    /// Flushes do nothing, nor does the flushing half of `write_flushed` and `zero_flushed`.
    IgnoreFlushes,
    /// Fences do nothing (but are observed and counted).
    IgnoreFences,
    /// One flush does nothing: the first call of `flush`, `write_flushed` or `zero_flushed` after
    /// the fault is set is number 0.
    IgnoreNthFlush(u64),
    /// One fence does nothing: the first after the fault is set is number 0.
    IgnoreNthFence(u64),
}

impl Simulation {
    /// `length` bytes of zeros, all persistent.
    pub fn new(length: u64) -> Simulation {
        Simulation::from_image(vec![
            0;
            usize::try_from(length)
                .expect("a simulation fits in memory")
        ])
    }

    /// A memory as a crash left it: `image` is all persistent.
    pub fn from_image(image: Vec<u8>) -> Simulation {
        let length = image.len() as u64;
        let state = State {
            volatile: image.clone(),
            moment: Moment::settled(image),
            flushed: HashMap::new(),
            sequence: 0,
            fences: 0,
            fault: Fault::None,
            flushes_at_risk: 0,
            fences_at_risk: 0,
        };
        Simulation(Arc::new(Shared {
            length,
            state: Mutex::new(state),
            observer: Mutex::new(None),
        }))
    }

    /// Calls `observer` at every fence before it takes effect, from the thread that fences, one at
    /// a time. It may use other regions; it must not fence this one or change its observer, which
    /// would wait for itself forever.
    pub fn observe_fences(&self, observer: Option<Observer>) {
        *lock(&self.0.observer) = observer;
    }

    /// Sets what goes wrong from now on.
    pub fn break_flushes(&self, fault: Fault) {
        let mut state = self.state();
        state.fault = fault;
        state.flushes_at_risk = 0;
        state.fences_at_risk = 0;
    }

    /// The present state, for a crash now.
    pub fn moment(&self) -> Moment {
        self.state().moment.clone()
    }

    /// Returns the number of fences so far.
    pub fn fences(&self) -> u64 {
        self.state().fences
    }

    pub(crate) fn length(&self) -> u64 {
        self.0.length
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        check_range(offset, into.len(), self.length());
        let offset = offset as usize;
        into.copy_from_slice(&self.state().volatile[offset..offset + into.len()]);
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        check_range(offset, bytes.len(), self.length());
        self.state().write(offset, bytes);
    }

    pub(crate) fn write_flushed(&self, offset: u64, bytes: &[u8]) {
        check_range(offset, bytes.len(), self.length());
        let mut state = self.state();
        state.write(offset, bytes);
        state.flush(offset, bytes.len());
    }

    pub(crate) fn zero_flushed(&self, offset: u64, length: usize) {
        check_range(offset, length, self.length());
        self.write_flushed(offset, &vec![0; length]);
    }

    pub(crate) fn load<const SIZE: usize>(&self, offset: u64) -> [u8; SIZE] {
        check_word(offset, SIZE, self.length());
        let mut word = [0; SIZE];
        self.read(offset, &mut word);
        word
    }

    pub(crate) fn store<const SIZE: usize>(&self, offset: u64, word: [u8; SIZE]) {
        check_word(offset, SIZE, self.length());
        self.write(offset, &word);
    }

    /// Replaces a word in one piece, if there is a replacement. Returns the former value.
    pub(crate) fn exchange(&self, offset: u64, new: impl FnOnce(u64) -> Option<u64>) -> u64 {
        check_word(offset, 8, self.length());
        let mut state = self.state();
        let at = offset as usize;
        let old = u64::from_ne_bytes(std::array::from_fn(|index| state.volatile[at + index]));
        if let Some(new) = new(old) {
            state.write(offset, &new.to_ne_bytes());
        }
        old
    }

    pub(crate) fn store_words(&self, offset: u64, words: &[u64]) {
        check_word(offset, 8, self.length());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write(offset, &bytes);
    }

    pub(crate) fn remainder(&self, offset: u64, length: usize) -> u32 {
        let mut bytes = vec![0; length];
        self.read(offset, &mut bytes);
        checksum::bytes(0, &bytes)
    }

    pub(crate) fn flush(&self, offset: u64, length: usize) {
        check_range(offset, length, self.length());
        self.state().flush(offset, length);
    }

    pub(crate) fn prefetch(&self, offset: u64) {
        check_range(offset, 1, self.length());
    }

    pub(crate) fn fence(&self) {
        let _turn = self.observe();
        self.state().fence(Some(thread::current().id()));
    }

    pub(crate) fn fence_everywhere(&self) {
        let _turn = self.observe();
        self.state().fence(None);
    }

    /// The observer's lock is returned, so that the fence takes effect before another is observed.
    fn observe(&self) -> MutexGuard<'_, Option<Observer>> {
        let mut observer = lock(&self.0.observer);
        if let Some(observe) = observer.as_mut() {
            // Dropped before the fence, which else would have to copy the memory.
            let moment = self.moment();
            observe(&moment);
        }
        observer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simulation({} bytes)", self.0.length)
    }
}

/// A test's failed assertion in an observer leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        self.volatile[start..start + bytes.len()].copy_from_slice(bytes);
        self.sequence += 1;
        self.moment.store(self.sequence, start, bytes);
    }

    fn flush(&mut self, offset: u64, length: usize) {
        let number = self.flushes_at_risk;
        self.flushes_at_risk += 1;
        if length == 0
            || self.fault == Fault::IgnoreFlushes
            || self.fault == Fault::IgnoreNthFlush(number)
        {
            return;
        }
        let lines = offset / LINE as u64..=(offset + length as u64 - 1) / LINE as u64;
        let sequence = self.sequence;
        let pending = lines.filter(|&line| self.moment.is_pending(line));
        let flushed = self.flushed.entry(thread::current().id()).or_default();
        flushed.extend(pending.map(|line| Flushed { line, sequence }));
    }

    /// Settles the flushes of one thread, or of all.
    fn fence(&mut self, thread: Option<ThreadId>) {
        let number = self.fences_at_risk;
        self.fences_at_risk += 1;
        self.fences += 1;
        if self.fault == Fault::IgnoreFences || self.fault == Fault::IgnoreNthFence(number) {
            return;
        }
        let flushed: Vec<Flushed> = match thread {
            Some(thread) => self.flushed.remove(&thread).unwrap_or_default(),
            None => self
                .flushed
                .drain()
                .flat_map(|(_, flushed)| flushed)
                .collect(),
        };
        for Flushed { line, sequence } in flushed {
            self.moment.settle(line, sequence);
        }
    }
}
