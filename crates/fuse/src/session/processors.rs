//! The machine's processors.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The numbers of all processors that the machine may ever have: the kernel has a queue for each.
pub(super) fn possible() -> io::Result<Vec<u16>> {
    list("possible")
}

/// Those that run programs now.
pub(super) fn online() -> io::Result<Vec<u16>> {
    list("online")
}

fn list(name: &str) -> io::Result<Vec<u16>> {
    let text = fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))?;
    parse(&text).ok_or_else(|| io::Error::other(format!("processors '{}'", text.trim())))
}

/// Those among `possible` that this process may run on.
pub(super) fn usable(possible: &[u16]) -> io::Result<Vec<u16>> {
    let allowed = sched_getaffinity(None)?;
    let is_allowed =
        |number: &u16| usize::from(*number) < CpuSet::MAX_CPU && allowed.is_set((*number).into());
    Ok(possible.iter().copied().filter(is_allowed).collect())
}

/// Keeps this thread on one processor.
pub(super) fn stay_on(number: u16) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(number.into());
    Ok(sched_setaffinity(None, &set)?)
}

/// A list as the kernel writes it: `0-3,8`.
fn parse(text: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("0\n"), Some(vec![0]));
        assert_eq!(parse("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse(""), None);
        assert_eq!(parse("0-x"), None);
    }
}
