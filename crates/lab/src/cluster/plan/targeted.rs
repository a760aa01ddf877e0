//! Faults aimed at the schedules of `docs/PROTOCOL.md` that need several of them within narrow moments.

use protocol::Mode;

use super::super::workload::mode_of;
use super::{Cue, Fault, MILLISECOND, Maker, Party, SECOND, Time};

/// Longer than it takes the others to replace a member that is gone.
const LONG: (Time, Time) = (4 * SECOND, 7 * SECOND);

impl Maker {
    /// Adds one of the schedules that are aimed at a rule.
    pub(super) fn aimed(&mut self, at: Time) {
        // There has to be time for what follows.
        let at = at / 2;
        match self.random.below(12) {
            0 => self.synced_and_gone(at),
            1 => self.lost_takeover(at),
            2 => self.left_alone(at),
            3 => self.refilled_and_gone(at),
            4 => self.expired_and_gone(at),
            5 => self.promise_forgotten(at),
            6 => self.late_replies(at),
            7 => self.late_proposal(at),
            8 => self.seen_and_gone(at),
            9 => self.believed_and_replaced(at),
            10 => self.stuck_and_replaced(at),
            _ => self.much_at_once(at),
        }
    }

    fn within(&mut self, (least, most): (Time, Time)) -> Time {
        self.random.between(least, most)
    }

    fn crash_for(&mut self, member: Party, spell: (Time, Time)) -> Fault {
        Fault::Crash {
            member,
            after_fences: 0,
            for_ns: self.within(spell),
        }
    }

    /// Only the primary has data written from now on.
    fn keep_to_primary(&mut self, at: Time) -> Time {
        let for_ns = self.within((300 * MILLISECOND, 900 * MILLISECOND));
        self.add(
            at,
            Fault::Cut {
                from: Party::Primary,
                to: Party::Bystanders,
                for_ns,
            },
        );
        for_ns
    }

    /// A client and the primary crash as soon as an fsync is answered, while the others miss records.
    fn synced_and_gone(&mut self, at: Time) {
        let lasts = self.keep_to_primary(at);
        for client in 1..self.clients {
            let rush = Fault::Rush {
                client: Party::Client(client),
                blocks: self.random.between(1, 4) as u32,
            };
            let later = lasts / 9;
            self.add(at + later, rush);
        }
        let at = at + lasts / 9;
        let client = Party::Subject;
        self.add_at(at, Cue::Synced, 0, Fault::CrashClient { client });
        let crash = self.crash_for(Party::Primary, LONG);
        let later = self.random.between(0, MILLISECOND);
        self.add_at(at, Cue::Synced, later, crash);
    }

    /// The primary dies with records that no other member has, and rejoins when the unit has continued.
    fn lost_takeover(&mut self, at: Time) {
        let lasts = self.keep_to_primary(at);
        let at = at + self.random.between(lasts / 4, lasts);
        let crash = self.crash_for(Party::Primary, LONG);
        self.add(at, crash);
        for client in 1..self.clients {
            if self.random.one_in(2) {
                let client = Party::Client(client);
                self.add(at, Fault::CrashClient { client });
            }
        }
    }

    /// All others crash when a member that was away is in sync again: it has to lead.
    fn left_alone(&mut self, at: Time) {
        let member = self.member();
        let crash = self.crash_for(member, (3 * SECOND, 5 * SECOND));
        self.add(at, crash);
        for member in [Party::Primary, Party::Bystanders] {
            let crash = self.crash_for(member, LONG);
            let later = self.random.between(0, 3 * MILLISECOND);
            self.add_at(at, Cue::InSync, later, crash);
        }
    }

    /// A member that was away is refilled while the others miss records; then the primary crashes.
    fn refilled_and_gone(&mut self, at: Time) {
        let member = self.member();
        let crash = self.crash_for(member, (4 * SECOND, 6 * SECOND));
        self.add(at, crash);
        // While it asks for the image, the primary continues.
        let slow = Fault::LateLink {
            from: member,
            to: Party::Primary,
            by_ms: self.random.between(10, 60) as u32,
            for_ns: 9 * SECOND,
        };
        self.add(at, slow);
        for client in 1..self.clients {
            let (client, blocks) = (Party::Client(client), 2);
            self.add_at(at, Cue::Welcomed, 0, Fault::Rush { client, blocks });
        }
        let cut = Fault::Cut {
            from: Party::Primary,
            to: Party::Bystanders,
            for_ns: self.random.between(400, 900) * MILLISECOND,
        };
        self.add_at(at, Cue::Welcomed, 0, cut);
        let crash = self.crash_for(Party::Primary, LONG);
        let later = self.random.between(0, 5 * MILLISECOND);
        self.add_at(at, Cue::Refilled, later, crash);
        for client in 1..self.clients {
            let client = Party::Client(client);
            self.add_at(at, Cue::Refilled, later, Fault::CrashClient { client });
        }
    }

    /// A client is away for longer than its session lasts; soon after that its primary dies.
    fn expired_and_gone(&mut self, at: Time) {
        let client = self.random.below(self.clients.max(1) as usize) as u32;
        let away = self.within((4 * SECOND, 6 * SECOND));
        self.add(
            at,
            Fault::Isolate {
                node: Party::Client(client),
                for_ns: away,
            },
        );
        let later = self.within((3200 * MILLISECOND, 4500 * MILLISECOND));
        let crash = self.crash_for(Party::Primary, LONG);
        self.add(at + later, crash);
    }

    /// A member crashes right after it gave a lease, and does not hear the primary when it is back.
    fn promise_forgotten(&mut self, at: Time) {
        let member = self.member();
        let cut = Fault::Cut {
            from: Party::Primary,
            to: member,
            for_ns: self.within((SECOND, 3 * SECOND)),
        };
        self.add(at, cut);
        let crash = self.crash_for(member, (10 * MILLISECOND, 300 * MILLISECOND));
        let later = self.random.between(0, 50 * MILLISECOND);
        self.add(at + later, crash);
    }

    /// The others receive nothing from the primary for just as long as they have promised, and their proposals are
    /// slow.
    fn late_proposal(&mut self, at: Time) {
        let node = Party::Bystanders;
        let by_ms = self.random.between(200, 800) as u32;
        self.add(at, Fault::HearsLate { node, by_ms });
        let cut = Fault::Cut {
            from: Party::Primary,
            to: Party::Bystanders,
            for_ns: self.within((SECOND, 1400 * MILLISECOND)),
        };
        self.add(at, cut);
    }

    /// Clients write more than the window holds while the others miss records.
    fn much_at_once(&mut self, at: Time) {
        let lasts = self.keep_to_primary(at);
        for client in 0..self.clients {
            let rush = Fault::Rush {
                client: Party::Client(client),
                blocks: self.random.between(3, 6) as u32,
            };
            let later = self.random.between(0, lasts / 2);
            self.add(at + later, rush);
        }
    }

    /// A client that reaches into memories, from this one on.
    fn active_client(&mut self, least: u32) -> Option<u32> {
        let active: Vec<u32> = (least..self.clients)
            .filter(|it| mode_of(*it) == Mode::CLIENT_ACTIVE)
            .collect();
        (!active.is_empty()).then(|| *self.random.pick(&active))
    }

    /// The first client sees data that only the primary has; then the primary and all clients that wrote it are lost.
    fn seen_and_gone(&mut self, at: Time) {
        let lasts = self.keep_to_primary(at);
        let mut at = at + self.random.between(0, lasts / 4);
        let writers = (1..self.clients).map(Party::Client);
        for client in writers.clone() {
            let blocks = self.random.between(1, 4) as u32;
            self.add(at, Fault::Rush { client, blocks });
        }
        at += self.random.between(MILLISECOND, lasts / 4);
        let client = Party::Client(0);
        self.add(at, Fault::Look { client });
        at += self.random.between(MILLISECOND, lasts / 4);
        let crash = self.crash_for(Party::Primary, LONG);
        self.add(at, crash);
        for client in writers {
            self.add(at, Fault::CrashClient { client });
        }
        // It is answered before any client writes.
        let later = self.random.between(SECOND, 3 * SECOND);
        self.add_at(at, Cue::Takeover, later, Fault::Look { client });
    }

    /// A machine is gone for good, or seems to be. The spare that takes its place has to lead as soon as it can, or the
    /// primary crashes while it is refilled, or it does itself.
    pub(super) fn replaced(&mut self) {
        let at = self.instant() / 2;
        let member = self.member_or_primary();
        let is_lost = !self.random.one_in(3);
        self.add(at, Fault::Replace { member, is_lost });
        match self.random.below(5) {
            0..=1 => {
                for member in [Party::Primary, Party::Bystanders] {
                    let crash = self.crash_for(member, LONG);
                    let later = self.random.between(0, 3 * MILLISECOND);
                    self.add_at(at, Cue::SpareInSync, later, crash);
                }
            }
            2 => {
                let crash = self.crash_for(Party::Primary, (MILLISECOND, SECOND));
                let later = self.random.between(0, 20 * MILLISECOND);
                self.add_at(at, Cue::Replaced, later, crash);
            }
            3 => {
                let crash = self.crash_for(Party::Subject, (MILLISECOND, SECOND));
                let later = self.random.between(0, 20 * MILLISECOND);
                self.add_at(at, Cue::Replaced, later, crash);
            }
            _ => {}
        }
    }

    /// Only one client, which does not hear of another primary for long, reaches the one that was replaced. It reads.
    fn believed_and_replaced(&mut self, at: Time) {
        let Some(own) = self.active_client(0) else {
            return;
        };
        let (client, for_ns) = (Party::Client(own), 9 * SECOND);
        self.add(
            at,
            Fault::HearsLate {
                node: client,
                by_ms: 9000,
            },
        );
        self.add(at, Fault::Look { client });
        let at = at + self.random.between(5 * MILLISECOND, 100 * MILLISECOND);
        let (primary, others) = (Party::Primary, Party::Bystanders);
        let clients = (0..self.clients).filter(|other| *other != own);
        let cuts = clients.map(|other| (Party::Client(other), primary));
        for (from, to) in cuts.chain([(primary, others), (others, primary)]) {
            self.add(at, Fault::Cut { from, to, for_ns });
        }
        // The new one waits for the session of this client until it has been silent for long enough.
        for _ in 0..4 {
            let later = self.random.between(3200 * MILLISECOND, 6 * SECOND);
            self.add_at(at, Cue::Takeover, later, Fault::Look { client });
        }
    }

    /// A client's writes into the memories of the others are stuck, and the client is lost. When its session is ended
    /// not all members learn that its key is to be closed, and the primary is lost too.
    fn stuck_and_replaced(&mut self, at: Time) {
        let Some(client) = self.active_client(1) else {
            return;
        };
        let from = Party::Client(client);
        let stuck = Fault::StuckWay {
            from,
            to: Party::Bystanders,
            for_ns: self.within((7 * SECOND, 9 * SECOND)),
        };
        self.add(at, stuck);
        let (client, blocks) = (from, 4);
        self.add(at, Fault::Rush { client, blocks });
        let at = at + self.random.between(20 * MILLISECOND, 200 * MILLISECOND);
        self.add(at, Fault::CrashClient { client });
        let (permille, for_ns) = (500, 2 * SECOND);
        self.add(at + 2500 * MILLISECOND, Fault::Loss { permille, for_ns });
        let crash = self.crash_for(Party::Primary, LONG);
        let later = self.random.between(MILLISECOND, 200 * MILLISECOND);
        self.add_at(at, Cue::SessionEnded, later, crash);
    }

    /// The primary's answers from the time when only it has the records arrive when another one is primary, which still
    /// waits for some session.
    fn late_replies(&mut self, at: Time) {
        let lasts = self.keep_to_primary(at);
        for client in 0..self.clients {
            let late = Fault::LateLink {
                from: Party::Primary,
                to: Party::Client(client),
                by_ms: self.random.between(1000, 4000) as u32,
                for_ns: lasts,
            };
            self.add(at, late);
        }
        let crash = self.crash_for(Party::Primary, LONG);
        let later = self.random.between(lasts / 2, lasts);
        self.add(at + later, crash);
        let client = self.random.below(self.clients.max(1) as usize) as u32;
        let away = Fault::Isolate {
            node: Party::Client(client),
            for_ns: LONG.0,
        };
        self.add(at, away);
    }
}
