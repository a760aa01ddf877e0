//! Measuring side by side: short rounds of each, one after the other, and medians of them.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::report::{Quantity, Row};

/// One of the things that are compared. Each call is one round and gives its figures.
pub type Side<'a> = Box<dyn FnMut() -> Result<Vec<f64>, Error> + 'a>;

/// The figures of all rounds.
pub struct Measured {
    /// By round, side and figure.
    rounds: Vec<Vec<Vec<f64>>>,
}

/// Runs the sides in turns, one round each, so that disturbances of the machine affect all. A round before the first
/// warms up and does not count.
pub fn interleave(rounds: usize, mut sides: Vec<Side<'_>>) -> Result<Measured, Error> {
    for side in &mut sides {
        side()?;
    }
    let mut measured = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let mut figures = vec![Vec::new(); sides.len()];
        for turn in 0..sides.len() {
            // No side always comes first.
            let side = (round + turn) % sides.len();
            figures[side] = sides[side]()?;
        }
        measured.push(figures);
    }
    Ok(Measured { rounds: measured })
}

impl Measured {
    /// The median over the rounds.
    pub fn median(&self, side: usize, figure: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[side][figure]))
    }

    /// The median of the rounds' ratios of one figure to another, each a side and the number of its figure.
    pub fn ratio(&self, of: (usize, usize), to: (usize, usize)) -> f64 {
        let rounds = self.rounds.iter();
        median(rounds.map(|round| round[of.0][of.1] / round[to.0][to.1]))
    }

    /// A row of a figure, in ns, of the first side beside the same of the second. The ratio is that of the speeds.
    pub fn row(&self, figure: usize, name: &str, limit_name: &str, bar: Option<f64>) -> Row {
        let (tako, limit) = (self.median(0, figure), self.median(1, figure));
        let ratio = self.ratio((1, figure), (0, figure));
        Row::new(name, Quantity::ns(tako)).beside(limit_name, Quantity::ns(limit), ratio, bar)
    }

    /// Like [`Measured::row`] of two figures of one side.
    pub fn row_of_figures(
        &self,
        (tako, limit): (usize, usize),
        name: &str,
        limit_name: &str,
        bar: Option<f64>,
    ) -> Row {
        let time = |figure| Quantity::ns(self.median(0, figure));
        let ratio = self.ratio((0, limit), (0, tako));
        Row::new(name, time(tako)).beside(limit_name, time(limit), ratio, bar)
    }

    /// Like [`Measured::row`] of operations on `bytes` bytes, as bytes per second.
    pub fn throughput_row(&self, bytes: usize, name: &str, limit_name: &str, bar: f64) -> Row {
        self.throughput_beside(1, bytes, name, limit_name, bar)
    }

    /// The same with the side `limit` as the limit.
    pub fn throughput_beside(
        &self,
        limit: usize,
        bytes: usize,
        name: &str,
        limit_name: &str,
        bar: f64,
    ) -> Row {
        let speed = |side| Quantity::new(bytes as f64 * 1e9 / self.median(side, 0), "bytes/s");
        let ratio = self.ratio((limit, 0), (0, 0));
        Row::new(name, speed(0)).beside(limit_name, speed(limit), ratio, Some(bar))
    }
}

/// A side that repeats an operation for about `effort` in each round; its figure is the time of one, in ns.
pub fn repeated<'a>(
    effort: Duration,
    mut operation: impl FnMut() -> Result<(), Error> + 'a,
) -> Result<Side<'a>, Error> {
    let mut count = 1;
    while time(count, &mut operation)? < effort {
        count *= 2;
    }
    Ok(Box::new(move || {
        let took = time(count, &mut operation)?;
        Ok(vec![took.as_nanos() as f64 / f64::from(count)])
    }))
}

fn time(count: u32, operation: &mut impl FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
    let start = thread_time();
    for _ in 0..count {
        operation()?;
    }
    Ok(thread_time() - start)
}

/// Processor time of this thread. In rows about one thread this is the clock, since neither Tako nor tmpfs hands work
/// to another thread or waits for one: on an idle machine it equals real time, and on a busy one it excludes the time
/// of other programs.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanoseconds = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    Duration::from_nanos(nanoseconds as u64)
}

/// The value in the middle, or between the two in the middle.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// The smallest value that at least this share of the (ascending) values do not exceed.
pub fn percentile(ascending: &[u64], share: f64) -> u64 {
    let rank = (ascending.len() as f64 * share).ceil() as usize;
    ascending[rank.clamp(1, ascending.len()) - 1]
}

/// Pseudo-random numbers (xorshift): the same ones in every run.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// A separate sequence for each seed.
    pub fn new(seed: u64) -> Random {
        Random(0x9e37_79b9_7f4a_7c15 ^ (seed << 1))
    }

    /// Returns the next pseudo-random number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// An offset in a file or range of `length` bytes, a multiple of `size`.
    #[inline]
    pub fn offset(&mut self, length: u64, size: usize) -> u64 {
        self.below(length / size as u64) * size as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn percentiles() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 0.5), 500);
        assert_eq!(percentile(&values, 0.99), 990);
        assert_eq!(percentile(&values, 0.999), 999);
        assert_eq!(percentile(&values, 1.0), 1000);
        assert_eq!(percentile(&[7], 0.0), 7);
    }

    #[test]
    fn every_side_has_one_round_in_turn() {
        let calls = std::cell::RefCell::new(Vec::new());
        let side = |number: usize| -> Side<'_> {
            let calls = &calls;
            Box::new(move || {
                calls.borrow_mut().push(number);
                Ok(vec![number as f64 + 1.0, calls.borrow().len() as f64])
            })
        };
        let measured = interleave(3, vec![side(0), side(1)]).unwrap();
        assert_eq!(*calls.borrow(), [0, 1, 0, 1, 1, 0, 0, 1]);
        assert_eq!(measured.median(1, 0), 2.0);
        assert_eq!(measured.median(0, 1), 6.0);
        assert_eq!(measured.ratio((1, 0), (0, 0)), 2.0);
        // Ratios are taken round by round: 4/3, 5/6, 8/7.
        assert_eq!(measured.ratio((1, 1), (0, 1)), 8.0 / 7.0);
    }

    #[test]
    fn offsets_are_multiples_inside_the_file() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let offset = random.offset(1 << 20, 4096);
            assert!(offset.is_multiple_of(4096) && offset < 1 << 20);
        }
    }
}
