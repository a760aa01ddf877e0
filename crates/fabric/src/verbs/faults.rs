//! Failures that an adapter reports, to the whole process: each thread selects its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ::verbs::Event;
use parking_lot::Mutex;

/// Queue pairs that have failed, or the whole adapter.
#[derive(Default)]
pub struct AdapterFaults {
    pairs: Mutex<Vec<u32>>,
    is_adapter: AtomicBool,
    /// Number of failures, so that no thread searches for nothing.
    count: AtomicU64,
}

impl AdapterFaults {
    /// Notes it, if it is any.
    pub fn note(&self, event: Event) {
        match event {
            Event::QueuePairFailed(number) => self.pairs.lock().push(number),
            // For a queue of completions, or one for buffers, the owner is not reported. Without the one no thread
            // learns how requests complete, without the other nothing is received.
            Event::DeviceFailed
            | Event::CompletionQueueFailed
            | Event::SharedReceiveQueueFailed => {
                self.is_adapter.store(true, Ordering::Release);
            }
            _ => return,
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of failures so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the adapter has failed. It does not work again before it is reopened.
    pub fn is_adapter(&self) -> bool {
        self.is_adapter.load(Ordering::Acquire)
    }

    /// Removes the queue pairs with an owner, and returns the owners.
    pub fn take<T>(&self, owner: impl Fn(u32) -> Option<T>) -> Vec<T> {
        let mut own = Vec::new();
        self.pairs.lock().retain(|number| {
            let found = owner(*number);
            let stays = found.is_none();
            own.extend(found);
            stays
        });
        own
    }

    /// Reports about this queue pair concern a destroyed one: adapters reuse numbers.
    pub fn forget(&self, gone: u32) {
        self.pairs.lock().retain(|number| *number != gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_its_own_queue_pairs() {
        let trouble = AdapterFaults::default();
        for number in [3, 5, 4] {
            trouble.note(Event::QueuePairFailed(number));
        }
        assert_eq!((trouble.count(), trouble.is_adapter()), (3, false));
        let even = |number: u32| number.is_multiple_of(2).then_some(number);
        assert_eq!(trouble.take(even), [4]);
        assert_eq!(trouble.take(even), []);
        assert_eq!(trouble.take(Some), [3, 5]);
    }

    #[test]
    fn a_reused_number_has_not_failed() {
        let trouble = AdapterFaults::default();
        for number in [3, 4, 3] {
            trouble.note(Event::QueuePairFailed(number));
        }
        trouble.forget(3);
        assert_eq!(trouble.take(Some), [4]);
    }

    #[test]
    fn a_failed_adapter_is_told_and_remembered() {
        for event in [
            Event::DeviceFailed,
            Event::CompletionQueueFailed,
            Event::SharedReceiveQueueFailed,
        ] {
            let trouble = AdapterFaults::default();
            trouble.note(event);
            assert_eq!((trouble.count(), trouble.is_adapter()), (1, true));
        }
    }

    #[test]
    fn events_without_a_failure_are_not_recorded() {
        let trouble = AdapterFaults::default();
        for event in [
            Event::PortDown(1),
            Event::PortActive(1),
            Event::LastReceive(3),
        ] {
            trouble.note(event);
        }
        assert_eq!((trouble.count(), trouble.is_adapter()), (0, false));
        assert_eq!(trouble.take(Some), []);
    }
}
