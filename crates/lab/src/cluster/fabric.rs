//! A simulated network with seeded faults, which counts what goes through it.

use std::collections::BTreeMap;

use pmem::Random;

use super::time::{MICROSECOND, MILLISECOND, Time};

/// How a fabric treats messages. Each has its own delay, so later ones overtake earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Shortest and longest usual delay.
    pub delay_ns: (Time, Time),
    /// How many of a thousand messages take longer than usual, and how long at most.
    pub slow_permille: u32,
    /// Longest delay of those.
    pub slow_ns: Time,
    /// How many of a thousand messages are lost.
    pub loss_permille: u32,
    /// How many of a thousand messages arrive twice.
    pub duplication_permille: u32,
    /// Bytes that a node sends in a microsecond, one message after the other.
    pub bytes_per_us: u64,
    /// How many of a thousand messages arrive with 1 to 8 wrong bits.
    pub corruption_permille: u32,
}

impl Options {
    /// A bit of everything.
    pub fn usual() -> Options {
        Options {
            delay_ns: (5 * MICROSECOND, 50 * MICROSECOND),
            slow_permille: 3,
            slow_ns: 4 * MILLISECOND,
            loss_permille: 2,
            duplication_permille: 2,
            bytes_per_us: u64::MAX,
            corruption_permille: 1,
        }
    }

    /// Nothing goes wrong, and every message takes the same time: what an operation took, divided by twice
    /// the delay, is its number of round trips.
    pub fn steady(delay_ns: Time) -> Options {
        Options {
            delay_ns: (delay_ns, delay_ns),
            slow_permille: 0,
            slow_ns: delay_ns,
            loss_permille: 0,
            duplication_permille: 0,
            bytes_per_us: u64::MAX,
            corruption_permille: 0,
        }
    }
}

/// What was sent, whether it arrived or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// One way between two nodes: from, to.
type Direction = (u32, u32);

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Time,
    /// What arrives.
    pub bytes: Vec<u8>,
}

/// The network between all nodes.
///
/// Every fault lasts until an instant (`Time::MAX`: until it is healed). Of faults that overlap the longest and the
/// worst counts. A cut stops what is sent from then on, not what is on its way.
pub struct Fabric {
    options: Options,
    random: Random,
    cuts: BTreeMap<Direction, Time>,
    isolated: BTreeMap<u32, Time>,
    slowed: BTreeMap<Direction, Burst>,
    /// In milliseconds.
    late: BTreeMap<Direction, Burst>,
    /// Until when each node is sending what it has to.
    sending: BTreeMap<u32, Time>,
    loss: Burst,
    corruption: Burst,
    labels: Vec<String>,
    label: usize,
    counts: BTreeMap<(usize, Direction), Count>,
}

/// Something that is worse than usual for a while.
#[derive(Default)]
struct Burst {
    level: u32,
    until: Time,
}

impl Burst {
    fn level(&self, now: Time, usual: u32) -> u32 {
        if now < self.until {
            usual.max(self.level)
        } else {
            usual
        }
    }

    fn raise(&mut self, now: Time, level: u32, until: Time) {
        self.level = self.level(now, level);
        prolong(&mut self.until, until);
    }
}

fn prolong(until: &mut Time, at: Time) {
    *until = at.max(*until);
}

impl Fabric {
    /// A whole network. What it does to messages depends on the seed and on what is sent, in which order.
    pub fn new(seed: u64, options: Options) -> Fabric {
        Fabric {
            options,
            random: Random::new(seed),
            cuts: BTreeMap::new(),
            isolated: BTreeMap::new(),
            slowed: BTreeMap::new(),
            late: BTreeMap::new(),
            sending: BTreeMap::new(),
            loss: Burst::default(),
            corruption: Burst::default(),
            labels: vec![String::new()],
            label: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Treats messages differently from now on.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// Sends a message: it arrives never, once or twice.
    pub fn send(&mut self, now: Time, from: u32, to: u32, bytes: &[u8]) -> Vec<Delivery> {
        let count = Count {
            messages: 1,
            bytes: bytes.len() as u64,
        };
        let direction = (from, to);
        let counted = self.counts.entry((self.label, direction)).or_default();
        counted.add(count);
        let loss = self.loss.level(now, self.options.loss_permille);
        if self.is_cut(now, from, to) || self.random.chance(loss) {
            return Vec::new();
        }
        let sending = self.sending.entry(from).or_default();
        let takes = bytes.len() as u64 * MICROSECOND / self.options.bytes_per_us;
        *sending = now.max(*sending) + takes;
        let sent = *sending;
        let twice = self.random.chance(self.options.duplication_permille);
        (0..1 + usize::from(twice))
            .map(|_| Delivery {
                at: sent.saturating_add(self.delay(now, direction)),
                bytes: self.transmitted(now, bytes),
            })
            .collect()
    }

    fn delay(&mut self, now: Time, direction: Direction) -> Time {
        let (low, high) = self.options.delay_ns;
        let delay = if self.random.chance(self.options.slow_permille) {
            self.random.between(high, self.options.slow_ns.max(high))
        } else {
            self.random.between(low, high)
        };
        let slowed = self.slowed.get(&direction);
        let factor = slowed.map_or(1, |slowed| slowed.level(now, 1));
        let late = self.late.get(&direction);
        let late_ms = late.map_or(0, |late| late.level(now, 0));
        delay.saturating_mul(u64::from(factor)) + u64::from(late_ms) * MILLISECOND
    }

    fn transmitted(&mut self, now: Time, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let rate = self.corruption.level(now, self.options.corruption_permille);
        if !bytes.is_empty() && self.random.chance(rate) {
            for _ in 0..self.random.between(1, 8) {
                let bit = self.random.below(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// Whether what is sent now in this direction is lost for sure.
    pub fn is_cut(&self, now: Time, from: u32, to: u32) -> bool {
        let lasts = |until: Option<&Time>| until.is_some_and(|until| now < *until);
        lasts(self.cuts.get(&(from, to)))
            || lasts(self.isolated.get(&from))
            || lasts(self.isolated.get(&to))
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: u32, to: u32, until: Time) {
        prolong(self.cuts.entry((from, to)).or_default(), until);
    }

    /// Heals the cut of one direction; what isolates one of its ends stays.
    pub fn heal(&mut self, from: u32, to: u32) {
        self.cuts.remove(&(from, to));
    }

    /// Cuts both directions between a node and all others.
    pub fn isolate(&mut self, node: u32, until: Time) {
        prolong(self.isolated.entry(node).or_default(), until);
    }

    /// Lets one direction take `factor` times as long as usual.
    pub fn slow(&mut self, now: Time, from: u32, to: u32, factor: u32, until: Time) {
        let slowed = self.slowed.entry((from, to)).or_default();
        slowed.raise(now, factor, until);
    }

    /// Lets what is sent in one direction arrive so much later than usual.
    pub fn delay_by(&mut self, now: Time, from: u32, to: u32, late_ms: u32, until: Time) {
        let late = self.late.entry((from, to)).or_default();
        late.raise(now, late_ms, until);
    }

    /// Loses more messages for a while.
    pub fn lose(&mut self, now: Time, permille: u32, until: Time) {
        self.loss.raise(now, permille, until);
    }

    /// Damages more messages for a while.
    pub fn corrupt(&mut self, now: Time, permille: u32, until: Time) {
        self.corruption.raise(now, permille, until);
    }

    /// Ends all cuts, isolations, slowness and bursts. The options stay.
    pub fn heal_all(&mut self) {
        self.cuts.clear();
        self.isolated.clear();
        self.slowed.clear();
        self.late.clear();
        self.loss = Burst::default();
        self.corruption = Burst::default();
    }

    /// Counts what is sent from now on under this label.
    pub fn set_label(&mut self, label: &str) {
        let known = self.labels.iter().position(|known| known == label);
        self.label = known.unwrap_or_else(|| {
            self.labels.push(label.to_string());
            self.labels.len() - 1
        });
    }

    /// What was sent under a label, from one node to another.
    pub fn count(&self, label: &str, from: u32, to: u32) -> Count {
        let wanted = |counted: &str, direction| counted == label && direction == (from, to);
        self.sum(wanted)
    }

    /// What was sent under a label, by all to all.
    pub fn count_of(&self, label: &str) -> Count {
        self.sum(|counted, _| counted == label)
    }

    /// All that was sent.
    pub fn count_all(&self) -> Count {
        self.sum(|_, _| true)
    }

    fn sum(&self, wanted: impl Fn(&str, Direction) -> bool) -> Count {
        let mut sum = Count::default();
        for ((label, direction), count) in &self.counts {
            if wanted(&self.labels[*label], *direction) {
                sum.add(*count);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Time = Time::MAX;

    fn arrives(fabric: &mut Fabric, now: Time, from: u32, to: u32) -> bool {
        !fabric.send(now, from, to, b"x").is_empty()
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let run = |seed| {
            let mut fabric = Fabric::new(seed, Options::usual());
            let messages = (0..5000_u32).map(|index| (index % 3, index.to_le_bytes()));
            let send = |(to, bytes): (u32, [u8; 4])| fabric.send(100, 7, to, &bytes);
            messages.flat_map(send).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn the_usual_faults_all_happen_and_are_rare() {
        let mut fabric = Fabric::new(3, Options::usual());
        let (mut lost, mut twice, mut damaged, mut slow, mut overtaken) = (0, 0, 0, 0, 0);
        let mut last = 0;
        for now in (0..20_000).map(|index| index * 1000) {
            let deliveries = fabric.send(now, 0, 1, &[0; 64]);
            lost += usize::from(deliveries.is_empty());
            twice += usize::from(deliveries.len() == 2);
            for Delivery { at, bytes } in deliveries {
                let wrong: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
                assert!(wrong <= 8 && bytes.len() == 64);
                assert!((5_000..=4_000_000).contains(&(at - now)));
                damaged += usize::from(wrong > 0);
                slow += usize::from(at - now > 50_000);
                overtaken += usize::from(at < last);
                last = at;
            }
        }
        let about = |count: usize, expected: usize| (expected / 2..expected * 2).contains(&count);
        assert!(about(lost, 40), "{lost} lost");
        assert!(about(twice, 40), "{twice} twice");
        assert!(about(damaged, 20), "{damaged} damaged");
        assert!(about(slow, 60), "{slow} slow");
        assert!(overtaken > 5000, "{overtaken} overtaken");
    }

    #[test]
    fn a_steady_fabric_only_delays() {
        let mut fabric = Fabric::new(0, Options::steady(10));
        for now in 0..3000 {
            let deliveries = fabric.send(now, 0, 1, b"abc");
            let bytes = b"abc".to_vec();
            assert_eq!(
                deliveries,
                [Delivery {
                    at: now + 10,
                    bytes
                }]
            );
        }
    }

    #[test]
    fn a_cut_is_one_way_and_ends() {
        let mut fabric = Fabric::new(0, Options::steady(10));
        fabric.cut(0, 1, 100);
        fabric.cut(0, 1, 50);
        assert!(!arrives(&mut fabric, 99, 0, 1));
        assert!(arrives(&mut fabric, 99, 1, 0));
        assert!(arrives(&mut fabric, 100, 0, 1));
        fabric.cut(0, 1, FOREVER);
        assert!(!arrives(&mut fabric, 1 << 60, 0, 1));
        fabric.heal(0, 1);
        assert!(arrives(&mut fabric, 100, 0, 1));
    }

    #[test]
    fn an_isolated_node_is_cut_from_all() {
        let mut fabric = Fabric::new(0, Options::steady(10));
        fabric.isolate(1, 100);
        fabric.cut(2, 3, FOREVER);
        fabric.heal(0, 1);
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 3)] {
            assert!(!arrives(&mut fabric, 5, from, to));
        }
        assert!(arrives(&mut fabric, 5, 0, 2));
        assert!(arrives(&mut fabric, 100, 0, 1));
        fabric.heal_all();
        assert!(arrives(&mut fabric, 5, 0, 1));
        assert!(arrives(&mut fabric, 5, 2, 3));
    }

    #[test]
    fn bursts_and_slow_links_end() {
        let mut fabric = Fabric::new(0, Options::steady(10));
        fabric.lose(0, 1000, 100);
        assert!(!arrives(&mut fabric, 99, 0, 1));
        assert!(arrives(&mut fabric, 100, 0, 1));
        fabric.corrupt(100, 1000, 200);
        assert_ne!(fabric.send(199, 0, 1, &[0; 100])[0].bytes, [0; 100]);
        assert_eq!(fabric.send(200, 0, 1, &[0; 100])[0].bytes, [0; 100]);
        fabric.slow(0, 0, 1, 9, 200);
        fabric.slow(200, 0, 1, 7, 300);
        assert_eq!(fabric.send(299, 0, 1, b"")[0].at, 299 + 70);
        assert_eq!(fabric.send(299, 1, 0, b"")[0].at, 299 + 10);
        assert_eq!(fabric.send(300, 0, 1, b"")[0].at, 300 + 10);
    }

    #[test]
    fn counts_are_kept_by_label_and_direction() {
        let mut fabric = Fabric::new(0, Options::steady(10));
        fabric.send(0, 0, 1, b"before");
        fabric.set_label("write");
        fabric.send(0, 0, 1, b"abc");
        fabric.send(0, 0, 2, b"abcd");
        fabric.set_label("read");
        fabric.cut(0, 1, FOREVER);
        fabric.send(0, 0, 1, b"lost ones count");
        fabric.set_label("write");
        fabric.send(0, 0, 1, b"");
        let count = |messages, bytes| Count { messages, bytes };
        assert_eq!(fabric.count("write", 0, 1), count(2, 3));
        assert_eq!(fabric.count("write", 1, 0), count(0, 0));
        assert_eq!(fabric.count_of("write"), count(3, 7));
        assert_eq!(fabric.count_of("read"), count(1, 15));
        assert_eq!(fabric.count_of("other"), count(0, 0));
        assert_eq!(fabric.count_all(), count(5, 28));
    }
}
