//! What clients did and saw of waits for locks: a lock that is awaited goes to no client that asks later.
//!
//! This holds for a part of a file for as long as the primary has the wait for certain, and no other becomes primary. Whether
//! all waits end, and no lock has two holders, is shown elsewhere.

use super::time::{MILLISECOND, Time, milliseconds};

/// So long after it was asked the primary still has a wait: less than a turn lasts by any clock.
const KEPT_FOR: Time = 900 * MILLISECOND;

/// The time for which a primary has a wait for certain.
struct Spell {
    client: u32,
    file: u64,
    part: u64,
    /// When the request was made that began it: it was executed after that.
    asked: Time,
    from: Time,
    until: Time,
}

/// A lock that was taken by a client that had none there.
struct Taken {
    client: u32,
    file: u64,
    parts: Vec<u64>,
    /// Time of its first request.
    asked: Time,
    at: Time,
}

/// All waits of a run.
#[derive(Default)]
pub struct WaitLog {
    spells: Vec<Spell>,
    taken: Vec<Taken>,
    /// What no primary may say.
    faults: Vec<String>,
}

/// What a client knows of its wait at the primary.
#[derive(Clone, Copy)]
pub struct Kept {
    first_asked: Time,
    from: Time,
    last_asked: Time,
}

impl Kept {
    /// The primary has answered a request of this time: it has the wait, and perhaps its turn.
    pub fn answered(before: Option<Kept>, asked: Time, now: Time, has_turn: bool) -> Kept {
        match before {
            Some(kept) if has_turn => kept,
            Some(kept) if now < kept.last_asked + KEPT_FOR => Kept {
                last_asked: kept.last_asked.max(asked),
                ..kept
            },
            _ => Kept {
                first_asked: asked,
                from: now,
                last_asked: asked,
            },
        }
    }

    /// Whether it is known for as long as it goes on like this.
    pub fn is_over(&self, now: Time) -> bool {
        now >= self.last_asked + KEPT_FOR
    }
}

impl WaitLog {
    /// A primary has had a client's wait, until this time at most.
    pub fn had(&mut self, client: u32, (file, parts): (u64, &[u64]), kept: Kept, end: Time) {
        // A wait for several parts is passed by those for one of them.
        if let [part] = *parts {
            self.spells.push(Spell {
                client,
                file,
                part,
                asked: kept.first_asked,
                from: kept.from,
                until: end.min(kept.last_asked + KEPT_FOR),
            });
        }
    }

    /// A client has taken a lock of which it had nothing before.
    pub fn taken(&mut self, client: u32, file: u64, parts: Vec<u64>, asked: Time, at: Time) {
        self.taken.push(Taken {
            client,
            file,
            parts,
            asked,
            at,
        });
    }

    /// A primary has said something that cannot be.
    pub fn fault(&mut self, line: String) {
        self.faults.push(line);
    }

    /// Checks the whole log of waits against the rules of waiting.
    pub fn check(&self, takeovers: &[Time]) -> Result<(), String> {
        if let Some(fault) = self.faults.first() {
            return Err(fault.clone());
        }
        for spell in &self.spells {
            let passes = |taken: &&Taken| {
                let is_there = taken.file == spell.file && taken.parts.contains(&spell.part);
                let is_within = taken.asked > spell.from && taken.at < spell.until;
                let is_one_primary = !takeovers
                    .iter()
                    .any(|at| (spell.asked..=taken.at).contains(at));
                is_there && taken.client != spell.client && is_within && is_one_primary
            };
            if let Some(taken) = self.taken.iter().find(passes) {
                return Err(format!(
                    "client {} waited for part {} of file {} since {}; client {} asked at {} and had the lock at {}",
                    spell.client,
                    spell.part,
                    spell.file,
                    milliseconds(spell.from),
                    taken.client,
                    milliseconds(taken.asked),
                    milliseconds(taken.at),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = MILLISECOND;

    /// Client 1 waits from 10 ms to 300 ms, and client 2 takes the lock meanwhile.
    fn log(parts: &[u64], asked: Time) -> WaitLog {
        let mut log = WaitLog::default();
        let kept = Kept::answered(None, 5 * MS, 10 * MS, false);
        log.had(1, (7, parts), kept, 300 * MS);
        log.taken(2, 7, vec![0], asked, 200 * MS);
        log
    }

    #[test]
    fn a_client_that_asks_later_does_not_pass_a_wait() {
        assert!(log(&[0], 20 * MS).check(&[]).is_err());
        assert!(log(&[0], 20 * MS).check(&[100 * MS]).is_ok());
        assert!(log(&[0], 9 * MS).check(&[]).is_ok());
        assert!(log(&[1], 20 * MS).check(&[]).is_ok());
        assert!(log(&[0, 1], 20 * MS).check(&[]).is_ok());
    }

    #[test]
    fn a_wait_counts_as_long_as_it_is_repeated() {
        let first = Kept::answered(None, 0, 5 * MS, false);
        let second = Kept::answered(Some(first), 800 * MS, 850 * MS, false);
        assert!(!second.is_over(1699 * MS) && second.is_over(1700 * MS));
        assert_eq!(second.from, 5 * MS);
        // A turn may have ended between them.
        let late = Kept::answered(Some(first), 800 * MS, 900 * MS, false);
        assert_eq!(late.from, 900 * MS);
        // Nor is it known when a turn began.
        assert!(Kept::answered(Some(first), 800 * MS, 850 * MS, true).is_over(900 * MS));
    }
}
