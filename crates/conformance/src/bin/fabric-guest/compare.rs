//! Two ways of doing the same, in turns.

use std::time::Instant;

/// Rounds of each of two methods, in turns; the median counts.
const ROUNDS: usize = 9;

/// Prints the time of one of `count`, in turns, and the ratio of the two ways.
pub fn compare(name: &str, count: u64, names: [&str; 2], ways: [&mut dyn FnMut(u64); 2]) {
    compare_in(ROUNDS, name, count, names, ways);
}

/// The same in so many rounds.
pub fn compare_in(
    rounds: usize,
    name: &str,
    count: u64,
    names: [&str; 2],
    mut ways: [&mut dyn FnMut(u64); 2],
) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (way, times) in ways.iter_mut().zip(&mut times) {
            let start = Instant::now();
            way(count);
            // The first round warms up.
            if round > 0 {
                times.push(start.elapsed().as_nanos() as f64 / count as f64);
            }
        }
    }
    let [one, other] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[rounds / 2] / 1000.0
    });
    let [first, second] = names;
    let digits = if one < 10.0 { 3 } else { 1 };
    println!(
        "figure {name}: {first} {one:.digits$} us, {second} {other:.digits$} us, {:.2}",
        one / other
    );
}
