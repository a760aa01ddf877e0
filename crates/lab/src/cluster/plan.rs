//! Which faults happen to a cluster, and when.

use std::fmt;

use pmem::Random;

use super::time::{MICROSECOND, MILLISECOND, SECOND, Time, milliseconds};
use crate::runner;

mod targeted;

/// Node that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A member, by number; if its machine is gone for good, the spare.
    Member(u32),
    /// The member that is primary when the fault begins.
    Primary,
    /// A client, by number.
    Client(u32),
    /// The node of the cue.
    Subject,
    /// The members but the primary and the subject.
    Bystanders,
}

/// Something that faults may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cue {
    /// The primary accepts a member for a rejoin, and it will fetch the missing ranges.
    Welcomed,
    /// It has fetched the missing ranges, and follows.
    Refilled,
    /// The map lists it as in sync.
    InSync,
    /// The map lists the spare as a member.
    Replaced,
    /// And that it is in sync.
    SpareInSync,
    /// A member proposes itself as primary.
    Proposed,
    /// The map names it as primary.
    Takeover,
    /// A client is answered an fsync.
    Synced,
    /// The primary ends a session.
    SessionEnded,
}

/// A fault. One with `for_ns` ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A member crashes, and starts again at the end.
    Crash {
        /// The member that crashes.
        member: Party,
        /// It crashes in so many fences from then on; 0: at once. If fewer come until the end, it does not crash.
        after_fences: u32,
        /// How long after the start of the fault it restarts.
        for_ns: Time,
    },
    /// A spare replaces a member's machine. Not before another one has all that was acknowledged, and once at most.
    Replace {
        /// The member with this machine.
        member: Party,
        /// The machine is permanently lost, with its memory. Otherwise it is unreachable for long enough to be declared
        /// failed.
        is_lost: bool,
    },
    /// A client's process crashes; a new one starts later. The first client does not.
    CrashClient {
        /// The client that ends.
        client: Party,
    },
    /// A process does not run. Its messages and time-outs wait, and are handled in their order when it continues; one may be
    /// handled before the pause, and its messages sent after it.
    Pause {
        /// The node that is stopped.
        node: Party,
        /// Whether it is stopped within its next step.
        is_in_step: bool,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// Nothing gets from one to the other.
    Cut {
        /// Sender of the messages.
        from: Party,
        /// Receiver of the messages.
        to: Party,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// Nothing gets from or to one.
    Isolate {
        /// The node that is cut off.
        node: Party,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// The membership service is out of reach.
    MembershipOutage {
        /// Duration of the fault.
        for_ns: Time,
    },
    /// A clock runs too fast or too slow from then on.
    Drift {
        /// The node with the clock.
        node: Party,
        /// Drift in nanoseconds per millisecond.
        ppm: i32,
    },
    /// The date of a member's machine is set, forward or back.
    StepDate {
        /// The member with this machine.
        member: Party,
        /// Hours forward, or back if they are negative.
        hours: i32,
    },
    /// Many messages are lost.
    Loss {
        /// Share of messages, per thousand.
        permille: u32,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// Many messages are damaged.
    Corruption {
        /// Share of messages, per thousand.
        permille: u32,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// Messages from one to the other take long.
    SlowLink {
        /// Sender of the messages.
        from: Party,
        /// Receiver of the messages.
        to: Party,
        /// Factor of the usual delay.
        factor: u32,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// A node hears from the membership service, and is heard by it, later than usual from then on.
    HearsLate {
        /// The node that receives notices late.
        node: Party,
        /// Additional delay, in milliseconds.
        by_ms: u32,
    },
    /// Not quite a fault: a client writes much at once, and then asks for an fsync.
    Rush {
        /// The client that writes.
        client: Party,
        /// Number of blocks.
        blocks: u32,
    },
    /// Not a fault: a client reads all blocks.
    Look {
        /// The client that acts.
        client: Party,
    },
    /// A client's one-sided writes into a member's memory are stuck, and arrive at the end.
    StuckWay {
        /// Client that the fault concerns.
        from: Party,
        /// The member with this memory.
        to: Party,
        /// Duration of the fault.
        for_ns: Time,
    },
    /// Messages from one to the other arrive late.
    LateLink {
        /// Sender of the messages.
        from: Party,
        /// Receiver of the messages.
        to: Party,
        /// Additional delay, in milliseconds.
        by_ms: u32,
        /// Duration of the fault.
        for_ns: Time,
    },
}

impl Fault {
    /// The same, ended at `end` at the latest; none if it were to begin only then.
    pub fn until(mut self, now: Time, end: Time) -> Option<Fault> {
        if let Some(for_ns) = self.for_ns_mut() {
            *for_ns = (*for_ns).min(end.saturating_sub(now));
        }
        (now < end).then_some(self)
    }

    /// Its duration, if it ends.
    pub fn for_ns(mut self) -> Option<Time> {
        self.for_ns_mut().copied()
    }

    fn for_ns_mut(&mut self) -> Option<&mut Time> {
        match self {
            Fault::Crash { for_ns, .. }
            | Fault::Pause { for_ns, .. }
            | Fault::Cut { for_ns, .. }
            | Fault::Isolate { for_ns, .. }
            | Fault::MembershipOutage { for_ns }
            | Fault::Loss { for_ns, .. }
            | Fault::Corruption { for_ns, .. }
            | Fault::SlowLink { for_ns, .. }
            | Fault::StuckWay { for_ns, .. }
            | Fault::LateLink { for_ns, .. } => Some(for_ns),
            Fault::CrashClient { .. }
            | Fault::Replace { .. }
            | Fault::Drift { .. }
            | Fault::StepDate { .. }
            | Fault::HearsLate { .. }
            | Fault::Look { .. }
            | Fault::Rush { .. } => None,
        }
    }
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it begins, or begins to wait for its cue.
    pub at: Time,
    /// Cue that it waits for, and the delay after it.
    pub cue: Option<(Cue, Time)>,
    /// Fault that is injected.
    pub fault: Fault,
}

/// The faults of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that it was made of.
    pub seed: u64,
    /// Duration of the run.
    pub duration: Time,
    /// Faults in the order of their times.
    pub faults: Vec<Planned>,
}

/// Clocks never drift more than this from true time, in either direction.
pub const DRIFT_PPM_MAX: i32 = 200;

/// In which plans a machine is replaced: in some of every kind of unit.
const REPLACED_EVERY: u64 = 17;
const REPLACED_AT: u64 = 3;

/// In which plans dates are set, and what distinguishes their random numbers from the others.
const DATED_EVERY: u64 = 3;
const DATED_AT: u64 = 2;
const DATES: u64 = 0x4441_5445;
/// Processes are stopped in a plan if its seed has the remainder `PAUSED_AT` modulo `PAUSED_EVERY`. `PAUSES` is combined with the
/// seed for the random numbers of these pauses, so that the rest of the plan stays the same.
const PAUSED_EVERY: u64 = 5;
const PAUSED_AT: u64 = 4;
const PAUSES: u64 = 0x5041_5553;
/// Hours by which a date is set, at most.
const HOURS_MAX: i32 = 24;

/// Aim of a plan.
#[derive(Clone, Copy)]
enum Manner {
    Calm,
    Wild,
    PrimaryAgain,
    PrimaryIsolated,
    TwoInARow,
    RestartIntoPartition,
    TakeoverInOutage,
    ClientAndPrimary,
    ClientAway,
    Aimed,
}

const MANNERS: [Manner; 17] = [
    Manner::Calm,
    Manner::Wild,
    Manner::Wild,
    Manner::Wild,
    Manner::PrimaryAgain,
    Manner::PrimaryIsolated,
    Manner::TwoInARow,
    Manner::RestartIntoPartition,
    Manner::TakeoverInOutage,
    Manner::ClientAndPrimary,
    Manner::ClientAway,
    Manner::Aimed,
    Manner::Aimed,
    Manner::Aimed,
    Manner::Aimed,
    Manner::Aimed,
    Manner::Aimed,
];

impl Plan {
    /// From then on nothing is wrong any more but clocks that drift.
    pub fn end(&self) -> Time {
        self.duration / 3 * 2
    }

    /// The plan of a seed. Members that crash start again, the first client stays, and after two thirds of the
    /// duration nothing is wrong any more but clocks that drift.
    pub fn random(seed: u64, members: u32, clients: u32, duration: Time) -> Plan {
        assert!(members > 0 && duration >= MILLISECOND);
        let mut maker = Maker {
            random: Random::new(seed),
            members,
            clients,
            doomed: (1..clients).collect(),
            end: duration / 3 * 2,
            faults: Vec::new(),
        };
        maker.make();
        if seed % REPLACED_EVERY == REPLACED_AT {
            maker.replaced();
        }
        if seed % DATED_EVERY == DATED_AT {
            maker.random = Random::new(seed ^ DATES);
            maker.dated();
        }
        if seed % PAUSED_EVERY == PAUSED_AT {
            maker.random = Random::new(seed ^ PAUSES);
            maker.paused();
        }
        maker.faults.sort_by_key(|planned| planned.at);
        Plan {
            seed,
            duration,
            faults: maker.faults,
        }
    }
}

struct Maker {
    random: Random,
    members: u32,
    clients: u32,
    /// Clients that may crash yet: but for aimed faults each does so once.
    doomed: Vec<u32>,
    end: Time,
    faults: Vec<Planned>,
}

impl Maker {
    fn make(&mut self) {
        let manner = *self.random.pick(&MANNERS);
        let rounds = match manner {
            // A schedule takes its time, and what comes between breaks it.
            Manner::Aimed => self.random.between(1, 2),
            _ => self.random.between(1, 6),
        };
        let others = match manner {
            Manner::Calm => self.random.between(0, 2),
            Manner::Wild => self.random.between(8, 30),
            Manner::Aimed => self.random.between(0, 1),
            _ => self.random.between(0, 5),
        };
        for _ in 0..rounds {
            let at = self.instant();
            match manner {
                Manner::Calm | Manner::Wild => break,
                Manner::PrimaryAgain => self.primary_again(at),
                Manner::PrimaryIsolated => self.primary_isolated(at),
                Manner::TwoInARow => self.two_in_a_row(at),
                Manner::RestartIntoPartition => self.restart_into_partition(at),
                Manner::TakeoverInOutage => self.takeover_in_outage(at),
                Manner::ClientAndPrimary => self.client_and_primary(at),
                Manner::ClientAway => self.client_away(at),
                Manner::Aimed => self.aimed(at),
            }
        }
        for _ in 0..others {
            let at = self.instant();
            self.any(at);
        }
    }

    /// Adds a fault, which ends in time.
    fn add(&mut self, at: Time, mut fault: Fault) {
        let at = at.min(self.end - 1);
        if let Some(for_ns) = fault.for_ns_mut() {
            *for_ns = (*for_ns).min(self.end - at);
        }
        self.faults.push(Planned {
            at,
            cue: None,
            fault,
        });
    }

    /// Adds a fault that begins so long after a cue, the first that is seen from then on.
    fn add_at(&mut self, at: Time, cue: Cue, later: Time, fault: Fault) {
        self.add(at, fault);
        if let Some(planned) = self.faults.last_mut() {
            planned.cue = Some((cue, later));
        }
    }

    fn instant(&mut self) -> Time {
        self.random.between(self.end / 50, self.end - 1)
    }

    /// A length of time of any order of magnitude, from well below a lease to far above it.
    fn spell(&mut self) -> Time {
        let longest = *self.random.pick(&[
            MILLISECOND,
            10 * MILLISECOND,
            100 * MILLISECOND,
            500 * MILLISECOND,
            2 * SECOND,
            6 * SECOND,
        ]);
        let longest = longest.min(self.end / 3);
        self.random.between(longest / 3, longest)
    }

    fn member(&mut self) -> Party {
        Party::Member(self.random.below(self.members as usize) as u32)
    }

    fn member_or_primary(&mut self) -> Party {
        if self.random.one_in(3) {
            Party::Primary
        } else {
            self.member()
        }
    }

    fn anyone(&mut self) -> Party {
        if self.clients > 0 && self.random.one_in(3) {
            Party::Client(self.random.below(self.clients as usize) as u32)
        } else {
            self.member_or_primary()
        }
    }

    fn other_than(&mut self, from: Party) -> Party {
        match self.anyone() {
            to if to != from => to,
            Party::Primary => Party::Member(0),
            _ => Party::Primary,
        }
    }

    fn crash(&mut self, at: Time, member: Party) {
        let is_aimed = self.random.one_in(2);
        let after_fences = if is_aimed {
            self.random.between(1, 40) as u32
        } else {
            0
        };
        let for_ns = self.spell();
        self.add(
            at,
            Fault::Crash {
                member,
                after_fences,
                for_ns,
            },
        );
    }

    fn crash_client(&mut self, at: Time) {
        if !self.doomed.is_empty() {
            let index = self.random.below(self.doomed.len());
            let client = self.doomed.swap_remove(index);
            let client = Party::Client(client);
            self.add(at, Fault::CrashClient { client });
        }
    }

    fn primary_again(&mut self, at: Time) {
        let mut at = at;
        for _ in 0..self.random.between(1, 3) {
            self.crash(at, Party::Primary);
            at += self.spell();
        }
    }

    fn primary_isolated(&mut self, at: Time) {
        let (node, for_ns) = (Party::Primary, self.spell());
        match self.random.below(4) {
            0 => self.add(at, Fault::Isolate { node, for_ns }),
            // Clients still reach it.
            1 => {
                for member in (0..self.members).map(Party::Member) {
                    for (from, to) in [(node, member), (member, node)] {
                        self.add(at, Fault::Cut { from, to, for_ns });
                    }
                }
            }
            // It receives from the others, or they from it, and does not know that this is all.
            one_way => {
                for member in (0..self.members).map(Party::Member) {
                    let (from, to) = if one_way == 2 {
                        (node, member)
                    } else {
                        (member, node)
                    };
                    self.add(at, Fault::Cut { from, to, for_ns });
                }
            }
        }
        if self.random.one_in(3) {
            self.add(at, Fault::MembershipOutage { for_ns });
        }
    }

    fn two_in_a_row(&mut self, at: Time) {
        let first = self.member_or_primary();
        self.crash(at, first);
        let (second, later) = (self.member_or_primary(), self.spell());
        self.crash(at + later, second);
    }

    fn restart_into_partition(&mut self, at: Time) {
        let (node, down, for_ns) = (self.member(), self.spell(), self.spell());
        self.add(
            at,
            Fault::Crash {
                member: node,
                after_fences: 0,
                for_ns: down,
            },
        );
        let before = self.random.between(0, for_ns.min(down));
        let at = at + down - before;
        let fault = match self.random.below(3) {
            0 => Fault::Isolate { node, for_ns },
            1 => Fault::Cut {
                from: Party::Primary,
                to: node,
                for_ns,
            },
            _ => Fault::Cut {
                from: node,
                to: Party::Primary,
                for_ns,
            },
        };
        self.add(at, fault);
    }

    fn takeover_in_outage(&mut self, at: Time) {
        let (for_ns, later) = (self.spell(), self.spell());
        self.add(at, Fault::MembershipOutage { for_ns });
        self.crash(at + later.min(for_ns), Party::Primary);
    }

    /// Unsynced writes may be lost.
    fn client_and_primary(&mut self, at: Time) {
        let later = self.random.between(0, 5 * MILLISECOND);
        if self.random.one_in(2) {
            self.crash_client(at);
            self.crash(at + later, Party::Primary);
        } else {
            self.crash(at, Party::Primary);
            self.crash_client(at + later);
        }
    }

    /// Dates are set, forward or back.
    fn dated(&mut self) {
        for _ in 0..self.random.between(1, 4) {
            let (at, member) = (self.instant(), self.member_or_primary());
            let hours = self.random.between(0, 2 * HOURS_MAX as u64) as i32 - HOURS_MAX;
            self.add(at, Fault::StepDate { member, hours });
        }
    }

    /// Processes are stopped for less than a lease, for about one, for longer, and for longer than a session lasts.
    fn paused(&mut self) {
        for _ in 0..self.random.between(2, 8) {
            let (at, node) = (self.instant(), self.anyone());
            let for_ns = match self.random.below(4) {
                0 => self.spell(),
                1 => self.random.between(900 * MILLISECOND, 1100 * MILLISECOND),
                2 => self.random.between(SECOND, 3 * SECOND),
                _ => self.random.between(3 * SECOND, 6 * SECOND),
            };
            let is_in_step = self.random.one_in(3);
            self.add(
                at,
                Fault::Pause {
                    node,
                    is_in_step,
                    for_ns,
                },
            );
        }
    }

    /// A client is away for longer than its session lasts; meanwhile, at times, the primary changes.
    fn client_away(&mut self, at: Time) {
        let node = Party::Client(self.random.below(self.clients as usize) as u32);
        let for_ns = self.random.between(3 * SECOND, 7 * SECOND);
        self.add(at, Fault::Isolate { node, for_ns });
        if self.random.one_in(2) {
            let later = self.random.between(for_ns / 2, for_ns);
            self.crash(at + later, Party::Primary);
        }
    }

    fn any(&mut self, at: Time) {
        let from = self.anyone();
        let (to, for_ns) = (self.other_than(from), self.spell());
        let permille = *self.random.pick(&[10, 100, 500]);
        let fault = match self.random.below(16) {
            0..=3 => {
                let member = self.member_or_primary();
                return self.crash(at, member);
            }
            4 => return self.crash_client(at),
            5..=7 => Fault::Cut { from, to, for_ns },
            8..=9 => Fault::Isolate { node: from, for_ns },
            10 => Fault::MembershipOutage { for_ns },
            11 => {
                let ppm = self.random.between(0, 2 * DRIFT_PPM_MAX as u64) as i32 - DRIFT_PPM_MAX;
                Fault::Drift { node: from, ppm }
            }
            12 => Fault::Loss { permille, for_ns },
            13 => Fault::Corruption { permille, for_ns },
            _ => Fault::SlowLink {
                from,
                to,
                factor: *self.random.pick(&[3, 30, 1000]),
                for_ns,
            },
        };
        self.add(at, fault);
    }
}

/// The plan that is left when faults are dropped and shortened as long as it fails.
pub fn shrink(plan: Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let Plan { seed, duration, .. } = plan;
    let mut attempt = |faults: &[Planned]| {
        fails(&Plan {
            seed,
            duration,
            faults: faults.to_vec(),
        })
    };
    let mut faults = plan.faults;
    loop {
        let before = faults.clone();
        faults = runner::shrink(faults, &mut attempt);
        for index in 0..faults.len() {
            while let Some(shorter) = shortened(&faults, index).filter(|shorter| attempt(shorter)) {
                faults = shorter;
            }
        }
        // Faults needed beside others may not be needed without them.
        if faults == before {
            return Plan {
                seed,
                duration,
                faults,
            };
        }
    }
}

/// The faults with one of half the length, unless it is very short.
fn shortened(faults: &[Planned], index: usize) -> Option<Vec<Planned>> {
    let mut faults = faults.to_vec();
    let for_ns = faults[index].fault.for_ns_mut()?;
    *for_ns /= 2;
    (*for_ns >= MICROSECOND).then_some(faults)
}

impl fmt::Display for Party {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Member(number) => write!(formatter, "member {number}"),
            Party::Primary => formatter.write_str("the primary"),
            Party::Client(number) => write!(formatter, "client {number}"),
            Party::Subject => formatter.write_str("the one concerned"),
            Party::Bystanders => formatter.write_str("the other members"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Crash {
                member,
                after_fences: 0,
                ..
            } => write!(formatter, "{member} crashes"),
            Fault::Crash {
                member,
                after_fences,
                ..
            } => write!(formatter, "{member} crashes in {after_fences} fences"),
            Fault::CrashClient { client } => write!(formatter, "{client} crashes"),
            Fault::Replace { member, is_lost } => {
                let what = if *is_lost { "gone" } else { "declared failed" };
                write!(formatter, "{member} is {what} for good")
            }
            Fault::Pause {
                node, is_in_step, ..
            } => {
                let within = if *is_in_step { " within a step" } else { "" };
                write!(formatter, "{node} is stopped{within}")
            }
            Fault::Cut { from, to, .. } => write!(formatter, "{from} is cut from {to}"),
            Fault::Isolate { node, .. } => write!(formatter, "{node} is isolated"),
            Fault::MembershipOutage { .. } => formatter.write_str("the membership service is out"),
            Fault::Drift { node, ppm } => write!(formatter, "{node} drifts by {ppm} ppm"),
            Fault::StepDate { member, hours } => {
                write!(formatter, "the date of {member} is set by {hours} hours")
            }
            Fault::Loss { permille, .. } => write!(formatter, "{permille} of 1000 are lost"),
            Fault::Corruption { permille, .. } => {
                write!(formatter, "{permille} of 1000 are damaged")
            }
            Fault::SlowLink {
                from, to, factor, ..
            } => write!(formatter, "{from} to {to} is {factor} times slower"),
            Fault::HearsLate { node, by_ms } => {
                write!(formatter, "{node} hears of maps {by_ms} ms late")
            }
            Fault::Rush { client, blocks } => write!(formatter, "{client} writes {blocks} blocks"),
            Fault::Look { client } => write!(formatter, "{client} reads all"),
            Fault::StuckWay { from, to, .. } => {
                write!(formatter, "what {from} writes into {to} is stuck")
            }
            Fault::LateLink {
                from, to, by_ms, ..
            } => write!(formatter, "{from} to {to} is {by_ms} ms late"),
        }?;
        match self.for_ns() {
            Some(for_ns) => write!(formatter, ", for {}", milliseconds(for_ns)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, duration) = (self.seed, milliseconds(self.duration));
        write!(
            formatter,
            "seed {seed}, {duration}, {} faults",
            self.faults.len()
        )?;
        for Planned { at, cue, fault } in &self.faults {
            write!(formatter, "\n  {}: ", milliseconds(*at))?;
            if let Some((cue, later)) = cue {
                write!(formatter, "{} after {cue:?}: ", milliseconds(*later))?;
            }
            fault.fmt(formatter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
