//! Progress of long commands, on a terminal.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Commands that take less time show nothing.
const PATIENCE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const SIZED: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";
const UNSIZED: &str = "{msg} {bytes} {bytes_per_sec} {elapsed}";
const TIMED: &str = "{msg} {spinner} {elapsed}";

/// Progress of a copy, in bytes.
pub struct Copied {
    started: Instant,
    /// Only a terminal is shown progress.
    is_shown: bool,
    bar: Option<ProgressBar>,
    bytes: u64,
    total: Option<u64>,
}

impl Copied {
    /// Progress that starts now; `total` is the number of bytes if it is known.
    pub fn new(total: Option<u64>) -> Copied {
        Copied {
            started: Instant::now(),
            is_shown: stderr().is_terminal(),
            bar: None,
            bytes: 0,
            total,
        }
    }

    /// Counts bytes of the file called `name`.
    pub fn add(&mut self, bytes: u64, name: &str) {
        self.bytes += bytes;
        if !self.is_shown || self.started.elapsed() < PATIENCE {
            return;
        }
        let total = self.total;
        let bar = self.bar.get_or_insert_with(|| {
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let template = if total.is_some() { SIZED } else { UNSIZED };
            bar.with_style(style(template))
        });
        bar.set_message(name.to_owned());
        bar.set_position(self.bytes);
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows on a terminal that `what` is in progress, and for how long already, while `work` runs.
pub fn while_working<T>(what: String, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let bar = ProgressBar::new_spinner().with_style(style(TIMED));
    bar.set_message(what);
    bar.enable_steady_tick(TICK);
    let result = work();
    bar.finish_and_clear();
    result
}

fn style(template: &str) -> ProgressStyle {
    // The templates are those above, which a test parses.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [SIZED, UNSIZED, TIMED] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
