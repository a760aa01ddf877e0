//! Fate of messages between nodes: seeded delays and faults, and counts.

use std::collections::BTreeMap;

use pmem::Random;

/// An instant or a span of virtual time, in nanoseconds.
type Time = u64;

const MICROSECOND: Time = 1_000;
const MILLISECOND: Time = 1_000_000;

/// How links treat messages. Each has its own delay, so later ones overtake earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Shortest and longest usual delay.
    pub delay_ns: (Time, Time),
    /// Share of slow messages, per thousand, and their greatest delay.
    pub slow_permille: u32,
    /// Longest delay of those.
    pub slow_ns: Time,
    /// Share of lost messages, per thousand.
    pub loss_permille: u32,
    /// Share of duplicated messages, per thousand.
    pub duplication_permille: u32,
    /// Bytes that a node sends in a microsecond, one message after the other.
    pub bytes_per_us: u64,
    /// Share of messages with 1 to 8 wrong bits, per thousand.
    pub corruption_permille: u32,
}

impl LinkOptions {
    /// A bit of everything.
    pub fn usual() -> LinkOptions {
        LinkOptions {
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
    pub fn steady(delay_ns: Time) -> LinkOptions {
        LinkOptions {
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

/// Sent messages, whether they arrived or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes in these messages.
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
    /// Time at which it arrives.
    pub at: Time,
    /// Bytes that arrive then.
    pub bytes: Vec<u8>,
}

/// The links between all nodes, which have numbers.
///
/// Every fault lasts until an instant (`Time::MAX`: until it is healed). Of overlapping faults the longest and the
/// worst counts. A cut stops messages sent from then on, not those in flight.
pub struct Links {
    options: LinkOptions,
    random: Random,
    cuts: BTreeMap<Direction, Time>,
    isolated: BTreeMap<u32, Time>,
    slowed: BTreeMap<Direction, Burst>,
    /// Delays by direction, in milliseconds.
    late: BTreeMap<Direction, Burst>,
    /// Until when each node is sending its queued messages.
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

impl Links {
    /// Links without faults. Their effect on messages depends on the seed and on the messages and their order.
    pub fn new(seed: u64, options: LinkOptions) -> Links {
        Links {
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
    pub fn set_options(&mut self, options: LinkOptions) {
        self.options = options;
    }

    /// Sends a message: it arrives never, once or twice.
    pub fn send(&mut self, now: Time, from: u32, to: u32, bytes: &[u8]) -> Vec<Delivery> {
        let direction = (from, to);
        self.note(direction, bytes.len());
        let loss = self.loss.level(now, self.options.loss_permille);
        if self.is_cut(now, from, to) || self.random.chance(loss) {
            return Vec::new();
        }
        let sent = self.sent(now, from, bytes.len());
        let twice = self.random.chance(self.options.duplication_permille);
        (0..1 + usize::from(twice))
            .map(|_| Delivery {
                at: sent.saturating_add(self.delay(now, direction)),
                bytes: self.transmitted(now, bytes),
            })
            .collect()
    }

    /// Sends like a connection, which repeats lost data: returns the arrival, if no cut delays it.
    pub fn convey(&mut self, now: Time, from: u32, to: u32, length: usize) -> Time {
        self.note((from, to), length);
        let sent = self.sent(now, from, length);
        sent.saturating_add(self.delay(now, (from, to)))
    }

    fn note(&mut self, direction: Direction, length: usize) {
        let counted = self.counts.entry((self.label, direction)).or_default();
        counted.add(Count {
            messages: 1,
            bytes: length as u64,
        });
    }

    /// When so many bytes have left, behind all that the node has sent before.
    fn sent(&mut self, now: Time, from: u32, length: usize) -> Time {
        let sending = self.sending.entry(from).or_default();
        let takes = length as u64 * MICROSECOND / self.options.bytes_per_us;
        *sending = now.max(*sending) + takes;
        *sending
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

    /// Whether a message sent now in this direction is certainly lost.
    pub fn is_cut(&self, now: Time, from: u32, to: u32) -> bool {
        self.cut_until(now, from, to).is_some()
    }

    /// Until when this direction is cut, if it is.
    pub fn cut_until(&self, now: Time, from: u32, to: u32) -> Option<Time> {
        let cut = self.cuts.get(&(from, to));
        let isolated = [from, to].map(|node| self.isolated.get(&node));
        let ends = isolated.into_iter().chain([cut]).flatten().copied();
        ends.filter(|until| now < *until).max()
    }

    /// Drops messages in one direction until then, in nanoseconds; a longer cut stays.
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

    /// Delays messages in one direction by so much.
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

    /// Counts messages sent from now on under this label.
    pub fn set_label(&mut self, label: &str) {
        let known = self.labels.iter().position(|known| known == label);
        self.label = known.unwrap_or_else(|| {
            self.labels.push(label.to_string());
            self.labels.len() - 1
        });
    }

    /// Messages sent under a label, from one node to another.
    pub fn count(&self, label: &str, from: u32, to: u32) -> Count {
        let wanted = |counted: &str, direction| counted == label && direction == (from, to);
        self.sum(wanted)
    }

    /// Messages sent under a label, by all to all.
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

    fn arrives(links: &mut Links, now: Time, from: u32, to: u32) -> bool {
        !links.send(now, from, to, b"x").is_empty()
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let run = |seed| {
            let mut links = Links::new(seed, LinkOptions::usual());
            let messages = (0..5000_u32).map(|index| (index % 3, index.to_le_bytes()));
            let send = |(to, bytes): (u32, [u8; 4])| links.send(100, 7, to, &bytes);
            messages.flat_map(send).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn the_usual_faults_all_happen_and_are_rare() {
        let mut links = Links::new(3, LinkOptions::usual());
        let (mut lost, mut twice, mut damaged, mut slow, mut overtaken) = (0, 0, 0, 0, 0);
        let mut last = 0;
        for now in (0..20_000).map(|index| index * 1000) {
            let deliveries = links.send(now, 0, 1, &[0; 64]);
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
    fn steady_links_only_delay() {
        let mut links = Links::new(0, LinkOptions::steady(10));
        for now in 0..3000 {
            let deliveries = links.send(now, 0, 1, b"abc");
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
        let mut links = Links::new(0, LinkOptions::steady(10));
        links.cut(0, 1, 100);
        links.cut(0, 1, 50);
        assert!(!arrives(&mut links, 99, 0, 1));
        assert!(arrives(&mut links, 99, 1, 0));
        assert!(arrives(&mut links, 100, 0, 1));
        links.cut(0, 1, FOREVER);
        assert!(!arrives(&mut links, 1 << 60, 0, 1));
        links.heal(0, 1);
        assert!(arrives(&mut links, 100, 0, 1));
    }

    #[test]
    fn an_isolated_node_is_cut_from_all() {
        let mut links = Links::new(0, LinkOptions::steady(10));
        links.isolate(1, 100);
        links.cut(2, 3, FOREVER);
        links.heal(0, 1);
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 3)] {
            assert!(!arrives(&mut links, 5, from, to));
        }
        assert!(arrives(&mut links, 5, 0, 2));
        assert!(arrives(&mut links, 100, 0, 1));
        links.heal_all();
        assert!(arrives(&mut links, 5, 0, 1));
        assert!(arrives(&mut links, 5, 2, 3));
    }

    #[test]
    fn bursts_and_slow_links_end() {
        let mut links = Links::new(0, LinkOptions::steady(10));
        links.lose(0, 1000, 100);
        assert!(!arrives(&mut links, 99, 0, 1));
        assert!(arrives(&mut links, 100, 0, 1));
        links.corrupt(100, 1000, 200);
        assert_ne!(links.send(199, 0, 1, &[0; 100])[0].bytes, [0; 100]);
        assert_eq!(links.send(200, 0, 1, &[0; 100])[0].bytes, [0; 100]);
        links.slow(0, 0, 1, 9, 200);
        links.slow(200, 0, 1, 7, 300);
        assert_eq!(links.send(299, 0, 1, b"")[0].at, 299 + 70);
        assert_eq!(links.send(299, 1, 0, b"")[0].at, 299 + 10);
        assert_eq!(links.send(300, 0, 1, b"")[0].at, 300 + 10);
    }

    #[test]
    fn counts_are_kept_by_label_and_direction() {
        let mut links = Links::new(0, LinkOptions::steady(10));
        links.send(0, 0, 1, b"before");
        links.set_label("write");
        links.send(0, 0, 1, b"abc");
        links.send(0, 0, 2, b"abcd");
        links.set_label("read");
        links.cut(0, 1, FOREVER);
        links.send(0, 0, 1, b"lost ones count");
        links.set_label("write");
        links.send(0, 0, 1, b"");
        let count = |messages, bytes| Count { messages, bytes };
        assert_eq!(links.count("write", 0, 1), count(2, 3));
        assert_eq!(links.count("write", 1, 0), count(0, 0));
        assert_eq!(links.count_of("write"), count(3, 7));
        assert_eq!(links.count_of("read"), count(1, 15));
        assert_eq!(links.count_of("other"), count(0, 0));
        assert_eq!(links.count_all(), count(5, 28));
    }
}
