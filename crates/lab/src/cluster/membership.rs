//! The simulated service that keeps the cluster map: one value with versions, changed by compare and swap.
//!
//! It simulates etcd: always right, but slow, and sometimes unreachable. The caller moves requests and answers: it
//! calls [`Membership::travel`] when a request arrives, calls [`Membership::propose`] or [`Membership::read`] then, and
//! again for the way back. An executed request may thus lose its answer.

use std::collections::BTreeMap;

use pmem::Random;

use super::time::{MILLISECOND, Time};

/// Shortest and longest usual way to or from the service.
const DELAY_NS: (Time, Time) = (MILLISECOND / 5, 3 * MILLISECOND);
/// Share of slow messages, per thousand, and their greatest delay.
const SLOW_PERMILLE: u32 = 30;
const SLOW_NS: Time = 150 * MILLISECOND;

/// A value for a watcher, on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice<M> {
    /// Time at which the notice arrives.
    pub at: Time,
    /// Receiver of the notice.
    pub watcher: u32,
    /// Which of the watcher's registrations it belongs to.
    registration: u64,
    /// The version of the value.
    pub version: u64,
    /// Map that the notice contains.
    pub value: M,
}

struct Watcher {
    registration: u64,
    /// The newest version that arrived.
    seen: u64,
}

/// A membership service in the simulation, of which requests may get lost.
pub struct Membership<M> {
    version: u64,
    value: M,
    out_until: Time,
    watchers: BTreeMap<u32, Watcher>,
    registrations: u64,
    random: Random,
}

impl<M: Clone> Membership<M> {
    /// A service with a value of version 1.
    pub fn new(seed: u64, value: M) -> Membership<M> {
        Membership {
            version: 1,
            value,
            out_until: 0,
            watchers: BTreeMap::new(),
            registrations: 0,
            random: Random::new(seed),
        }
    }

    /// The version and the value that is valid.
    pub fn read(&self) -> (u64, M) {
        (self.version, self.value.clone())
    }

    /// The value that is valid.
    pub fn valid(&self) -> &M {
        &self.value
    }

    /// Replaces the value if it still has the expected version; returns the new version. Otherwise returns the present
    /// value. [`Membership::notify`] notifies the watchers.
    pub fn propose(&mut self, expected_version: u64, value: M) -> Result<u64, (u64, M)> {
        if expected_version != self.version {
            return Err(self.read());
        }
        self.version += 1;
        self.value = value;
        Ok(self.version)
    }

    /// When a request or an answer that is sent now arrives. None: it is lost in an outage.
    pub fn travel(&mut self, now: Time) -> Option<Time> {
        let delay = self.delay();
        (now >= self.out_until).then(|| now.saturating_add(delay))
    }

    /// Makes the service unreachable; an outage that lasts longer continues.
    pub fn fail(&mut self, until: Time) {
        self.out_until = self.out_until.max(until);
    }

    /// Ends an outage, if there is one.
    pub fn heal(&mut self) {
        self.out_until = 0;
    }

    /// Registers a watcher, again if it is one. The present value is the first that it gets.
    pub fn watch(&mut self, now: Time, watcher: u32) -> Notice<M> {
        self.registrations += 1;
        let registered = Watcher {
            registration: self.registrations,
            seen: 0,
        };
        self.watchers.insert(watcher, registered);
        self.notice(now, watcher, self.registrations)
    }

    /// Removes a watcher; notices in flight to it are refused.
    pub fn unwatch(&mut self, watcher: u32) {
        self.watchers.remove(&watcher);
    }

    /// Sends the value to every watcher.
    pub fn notify(&mut self, now: Time) -> Vec<Notice<M>> {
        let watchers: Vec<_> = self.watchers.iter().map(known).collect();
        let send = |(watcher, registration)| self.notice(now, watcher, registration);
        watchers.into_iter().map(send).collect()
    }

    /// Whether a notice that arrives is new to its watcher: an overtaken one is not.
    pub fn accept(&mut self, notice: &Notice<M>) -> bool {
        match self.watchers.get_mut(&notice.watcher) {
            Some(watcher)
                if watcher.registration == notice.registration && watcher.seen < notice.version =>
            {
                watcher.seen = notice.version;
                true
            }
            _ => false,
        }
    }

    fn notice(&mut self, now: Time, watcher: u32, registration: u64) -> Notice<M> {
        // Watchers retry: an outage delays notices, and loses nothing.
        let sent = now.max(self.out_until);
        Notice {
            at: sent.saturating_add(self.delay()),
            watcher,
            registration,
            version: self.version,
            value: self.value.clone(),
        }
    }

    fn delay(&mut self) -> Time {
        if self.random.chance(SLOW_PERMILLE) {
            self.random.between(DELAY_NS.1, SLOW_NS)
        } else {
            self.random.between(DELAY_NS.0, DELAY_NS.1)
        }
    }
}

fn known((watcher, entry): (&u32, &Watcher)) -> (u32, u64) {
    (*watcher, entry.registration)
}

#[cfg(test)]
mod tests {
    use super::super::time::{Queue, SECOND};
    use super::*;

    #[test]
    fn only_the_expected_version_is_replaced() {
        let mut service = Membership::new(1, 'a');
        assert_eq!(service.read(), (1, 'a'));
        assert_eq!(service.propose(1, 'b'), Ok(2));
        assert_eq!(service.propose(1, 'c'), Err((2, 'b')));
        assert_eq!(service.propose(3, 'c'), Err((2, 'b')));
        assert_eq!(service.read(), (2, 'b'));
    }

    #[test]
    fn an_outage_loses_requests_and_delays_notices() {
        let mut service = Membership::new(1, 'a');
        let at = service.travel(100).expect("it is in reach");
        assert!((100 + DELAY_NS.0..=100 + SLOW_NS).contains(&at));
        service.fail(SECOND);
        service.fail(SECOND / 2);
        assert_eq!(service.travel(SECOND - 1), None);
        assert!(service.watch(100, 7).at > SECOND);
        assert!(service.travel(SECOND).is_some());
        service.fail(Time::MAX);
        service.heal();
        assert!(service.travel(SECOND).is_some());
    }

    #[test]
    fn watchers_may_skip_versions_but_never_go_back() {
        let mut service = Membership::new(5, 1);
        let mut queue = Queue::new();
        for watcher in 0..3 {
            let notice = service.watch(0, watcher);
            queue.add(notice.at, notice);
        }
        for version in 1..300 {
            let now = version * 10 * MILLISECOND;
            service.propose(version, version + 1).expect("expected");
            for notice in service.notify(now) {
                queue.add(notice.at, notice);
            }
        }
        let (mut seen, mut refused) = ([0; 3], 0);
        while let Some((_, notice)) = queue.take() {
            assert_eq!(notice.version, notice.value);
            let seen = &mut seen[notice.watcher as usize];
            assert_eq!(service.accept(&notice), notice.version > *seen);
            refused += usize::from(notice.version < *seen);
            *seen = notice.version.max(*seen);
        }
        assert_eq!(seen, [300; 3]);
        assert!(refused > 0, "no notice was overtaken");
    }

    #[test]
    fn notices_for_an_earlier_registration_are_refused() {
        let mut service = Membership::new(1, 'a');
        let first = service.watch(0, 7);
        let second = service.watch(0, 7);
        assert!(!service.accept(&first));
        assert!(service.accept(&second));
        assert!(!service.accept(&second), "it is not new");
        service.unwatch(7);
        assert!(service.notify(0).is_empty());
        assert!(!service.accept(&second));
    }
}
