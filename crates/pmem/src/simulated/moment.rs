//! States that a power failure at one moment could leave.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::LINE;
use crate::Random;
use crate::persist::piece;

/// Redraws of a random image that was drawn before.
const ATTEMPTS: usize = 16;

/// Possible contents of memory after a power failure now. Cheap to make, and to keep unless the memory continues to
/// change.
#[derive(Clone)]
pub struct Moment {
    /// Contents that are certain.
    persistent: Arc<Vec<u8>>,
    /// Uncertain stores, by line, in program order.
    pending: Arc<BTreeMap<u64, Vec<Store>>>,
}

/// The part of one store call that lies in one line.
#[derive(Clone)]
struct Store {
    sequence: u64,
    start: usize,
    end: usize,
    /// Those from `start` to `end` count.
    bytes: Content,
}

/// The bytes of a line (the last one of a region is filled up with zeros).
type Content = [u8; LINE];

impl Moment {
    /// Returns a moment with nothing pending.
    pub(super) fn settled(persistent: Vec<u8>) -> Moment {
        Moment {
            persistent: Arc::new(persistent),
            pending: Arc::default(),
        }
    }

    pub(super) fn is_pending(&self, line: u64) -> bool {
        self.pending.contains_key(&line)
    }

    /// Adds one store call.
    pub(super) fn store(&mut self, sequence: u64, offset: usize, bytes: &[u8]) {
        let pending = Arc::make_mut(&mut self.pending);
        let mut done = 0;
        while done < bytes.len() {
            let start = (offset + done) % LINE;
            let length = (LINE - start).min(bytes.len() - done);
            let mut store = Store {
                sequence,
                start,
                end: start + length,
                bytes: [0; LINE],
            };
            store.bytes[start..start + length].copy_from_slice(&bytes[done..done + length]);
            pending
                .entry(((offset + done) / LINE) as u64)
                .or_default()
                .push(store);
            done += length;
        }
    }

    /// Makes certain a line's stores up to `sequence`.
    pub(super) fn settle(&mut self, line: u64, sequence: u64) {
        let pending = Arc::make_mut(&mut self.pending);
        let Some(stores) = pending.get_mut(&line) else {
            return;
        };
        let settled = stores.partition_point(|store| store.sequence <= sequence);
        if settled > 0 {
            let persistent = Arc::make_mut(&mut self.persistent);
            let base = line as usize * LINE;
            for store in stores.drain(..settled) {
                persistent[base + store.start..base + store.end]
                    .copy_from_slice(&store.bytes[store.start..store.end]);
            }
        }
        if stores.is_empty() {
            pending.remove(&line);
        }
    }

    /// Lines with stores that are not yet certain to be persistent.
    pub fn pending_lines(&self) -> usize {
        self.pending.len()
    }

    /// Returns how many distinct images a crash now could leave (or `u128::MAX` if more), each line's store cut in
    /// address order. Tearing in other orders allows more, which random images include.
    pub fn images_total(&self) -> u128 {
        self.lines().iter().fold(1, |total: u128, line| {
            total.saturating_mul(line.prefixes().len() as u128)
        })
    }

    /// Images that a crash now could leave: all of [`Moment::images_total`] if they are at most
    /// `bound`.
    ///
    /// Otherwise exactly `bound`: the one where nothing pending arrived, the one where everything
    /// did; those where only one line is missing and those where only one line arrived, in an order
    /// that depends on the seed; and random ones, which are at least a quarter. The same moment,
    /// bound and seed give the same images.
    pub fn images(&self, bound: usize, seed: u64) -> impl Iterator<Item = Vec<u8>> + '_ {
        let lines = self.lines();
        let all = all_prefixes(&lines, bound);
        let count = all
            .as_ref()
            .map_or(bound, |all| all.iter().map(Vec::len).product());
        let mut sampler = Sampler::new(lines.len(), bound, seed);
        (0..count.min(bound)).map(move |index| {
            let contents = match &all {
                Some(all) => nth_combination(all, index),
                None => sampler.pick(&lines, index),
            };
            let mut image = self.persistent.to_vec();
            for (line, content) in lines.iter().zip(&contents) {
                image[line.range.clone()].copy_from_slice(&content[..line.range.len()]);
            }
            image
        })
    }

    /// The lines in which a crash makes a difference.
    fn lines(&self) -> Vec<Line<'_>> {
        let lines = self.pending.iter().map(|(&line, stores)| {
            let start = line as usize * LINE;
            let range = start..self.persistent.len().min(start + LINE);
            let mut certain = [0; LINE];
            certain[..range.len()].copy_from_slice(&self.persistent[range.clone()]);
            Line {
                range,
                certain,
                stores,
            }
        });
        lines.filter(Line::matters).collect()
    }
}

/// A line with pending stores.
struct Line<'a> {
    /// Its place in the memory.
    range: Range<usize>,
    certain: Content,
    stores: &'a [Store],
}

impl Line<'_> {
    fn matters(&self) -> bool {
        self.stores.iter().any(|store| {
            self.certain[store.start..store.end] != store.bytes[store.start..store.end]
        })
    }

    /// The first `count` stores arrived.
    fn after(&self, count: usize) -> Content {
        let mut content = self.certain;
        for store in &self.stores[..count] {
            store.apply(&mut content, store.start..store.end);
        }
        content
    }

    fn complete(&self) -> Content {
        self.after(self.stores.len())
    }

    /// Every distinct content after a prefix of the pieces stored.
    fn prefixes(&self) -> Vec<Content> {
        let mut content = self.certain;
        let mut seen = HashSet::from([content]);
        let mut prefixes = vec![content];
        for store in self.stores {
            for piece in store.pieces() {
                store.apply(&mut content, piece);
                if seen.insert(content) {
                    prefixes.push(content);
                }
            }
        }
        prefixes
    }

    /// The content after some stores, and any pieces of the next.
    fn torn(&self, random: &mut Random) -> Content {
        let whole = random.below(self.stores.len() + 1);
        let mut content = self.after(whole);
        if let Some(next) = self.stores.get(whole) {
            for piece in next.pieces().filter(|_| random.below(2) == 0) {
                next.apply(&mut content, piece);
            }
        }
        content
    }
}

impl Store {
    /// The parts that a crash does not tear, in address order.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        let (mut start, end) = (self.start, self.end);
        std::iter::from_fn(move || {
            (start < end).then(|| {
                let first = start;
                start += piece(first, end - first);
                first..start
            })
        })
    }

    fn apply(&self, content: &mut Content, part: Range<usize>) {
        content[part.clone()].copy_from_slice(&self.bytes[part]);
    }
}

/// The contents that each line can have, if their combinations are at most `bound`.
fn all_prefixes(lines: &[Line<'_>], bound: usize) -> Option<Vec<Vec<Content>>> {
    let mut total = 1_usize;
    let within_bound = |line: &Line<'_>| {
        let prefixes = line.prefixes();
        total = total.saturating_mul(prefixes.len());
        (total <= bound).then_some(prefixes)
    };
    lines.iter().map(within_bound).collect()
}

fn nth_combination(choices: &[Vec<Content>], mut index: usize) -> Vec<Content> {
    let digit = |contents: &Vec<Content>| {
        let content = contents[index % contents.len()];
        index /= contents.len();
        content
    };
    choices.iter().map(digit).collect()
}

/// Chooses among images that are too many.
struct Sampler {
    random: Random,
    /// The lines, in the order in which they are treated alone.
    order: Vec<usize>,
    /// Images that are not random.
    fixed: usize,
    /// Hashes of those chosen so far.
    seen: HashSet<u64>,
}

impl Sampler {
    fn new(lines: usize, bound: usize, seed: u64) -> Sampler {
        let mut random = Random::new(seed);
        let mut order: Vec<usize> = (0..lines).collect();
        for index in (1..lines).rev() {
            order.swap(index, random.below(index + 1));
        }
        let fixed = (2 + 2 * lines).min((bound - bound / 4).max(2));
        Sampler {
            random,
            order,
            fixed,
            seen: HashSet::new(),
        }
    }

    fn pick(&mut self, lines: &[Line<'_>], index: usize) -> Vec<Content> {
        let mut contents = match index {
            0 => lines.iter().map(|line| line.certain).collect(),
            1 => lines.iter().map(Line::complete).collect(),
            _ if index < self.fixed => self.single_out(lines, index - 2),
            _ => self.random_contents(lines),
        };
        for _ in 0..ATTEMPTS {
            let mut hasher = DefaultHasher::new();
            contents.hash(&mut hasher);
            if self.seen.insert(hasher.finish()) {
                break;
            }
            contents = self.random_contents(lines);
        }
        contents
    }

    /// Alternately, one line missing and the same line alone.
    fn single_out(&self, lines: &[Line<'_>], turn: usize) -> Vec<Content> {
        let single = self.order[turn / 2];
        let arrived = |index: usize| (index == single) == (turn % 2 == 1);
        let content = |(index, line): (usize, &Line<'_>)| {
            if arrived(index) {
                line.complete()
            } else {
                line.certain
            }
        };
        lines.iter().enumerate().map(content).collect()
    }

    /// On average, of four lines one is missing, one complete and two are torn.
    fn random_contents(&mut self, lines: &[Line<'_>]) -> Vec<Content> {
        let random = &mut self.random;
        let mut content = |line: &Line<'_>| match random.below(4) {
            0 => line.certain,
            1 => line.complete(),
            _ => line.torn(random),
        };
        lines.iter().map(&mut content).collect()
    }
}
