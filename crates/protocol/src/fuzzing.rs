//! Entry points for fuzzing, and for the fixed corpus that runs in the tests. Nothing else calls them.
//!
//! For any bytes, none of them may panic or run for long, the state of a member does not grow without bound, every
//! output of a member is a message, and after its time-out was handled it waits for a later one.

use std::collections::VecDeque;

use operations::{Lock, LockKind, LockSpace};

use crate::member::{Completion, HeldLock, Intent, SessionRecord};
use crate::parity;
use crate::wire::{self, Body, Bytes, ErrorCode, FileId, Message, Outcome};
use crate::{Defects, EpochStart, Member, Sequence, UnitMap, UnitOptions};

/// Entries in lists that a member keeps, at most, with these options: four sessions with 2 slots, 8 leases and 64 reads each,
/// a key and a quarantine each, 64 ranges for each of two members, twice, 64 messages that came early, 16 ranges that a
/// completion names, and a window of 16 KiB with a file for each 64 bytes.
const KEPT_MAX: usize =
    4 * (1 + 2 * 2 + 2 * 64 + 2 + 2 + LENT_MAX) + 2 * 2 * 64 + 64 + 3 * 16 + 512;
/// State of a session: its leases, and the inodes that its changes wait for.
const LENT_MAX: usize = 8 + 2 * 4;
/// Rounds of intents and completions that one input may lead to.
const ROUNDS_MAX: usize = 2000;

/// Bytes that may be a message or a map, and a body with a right header around it: its first byte is the kind.
pub fn message(input: &[u8]) {
    decode(input);
    let mut map = input.to_vec();
    wire::seal_map(&mut map);
    if let Ok(map) = UnitMap::decode(&map, &Defects::default()) {
        let again = UnitMap::decode(&map.encode(), &Defects::default());
        assert_eq!(again, Ok(map), "it changes on its way");
    }
    if let [kind, body @ ..] = input {
        let mut bytes = header(*kind, 1, [7, 8], 9, body);
        wire::seal(&mut bytes);
        decode(&bytes);
    }
}

fn decode(bytes: &[u8]) {
    let defects = Defects::default();
    if let Ok(message) = Message::decode(&Bytes::copy_from_slice(bytes), &defects) {
        let again = Message::decode(&message.encode(true).into(), &defects);
        assert_eq!(again.as_ref(), Ok(&message), "it changes on its way");
    }
}

/// A message without its checksum.
fn header(kind: u8, epoch: u32, [session, request]: [u64; 2], from: u32, body: &[u8]) -> Vec<u8> {
    let body = if wire::is_in_halves(kind) {
        &parity::wrapped(body, true)
    } else {
        body
    };
    let mut bytes = Vec::with_capacity(wire::HEADER + body.len());
    bytes.extend(wire::MAGIC.to_le_bytes());
    bytes.extend([wire::VERSION, kind]);
    bytes.extend([0; 4]);
    bytes.extend(UnitOptions::default().cluster.to_le_bytes());
    bytes.extend(epoch.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(session.to_le_bytes());
    bytes.extend(request.to_le_bytes());
    bytes.extend(from.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A member in any role, by a script: each command is a byte and its arguments.
pub fn member(input: &[u8]) {
    let mut world = World::new();
    let mut script = Script { rest: input };
    while world.command(&mut script).is_some() {}
}

struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Bytes behind their length, in two bytes.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(u16::from_le_bytes([self.byte()?, self.byte()?]));
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        Some(taken)
    }
}

/// The member, and all that it sees.
struct World {
    member: Member,
    now: u64,
    map: UnitMap,
    /// Where the pool's records end.
    tail: Sequence,
    intents: VecDeque<Intent>,
    /// Whether intents complete later, not at once.
    is_slow: bool,
    /// The message that arrived last, to be repeated.
    last: Vec<u8>,
    /// The number of the member's last question for rejoining.
    asked: u64,
}

fn options() -> UnitOptions {
    UnitOptions {
        sessions: 4,
        slots: 2,
        leases: 8,
        window: 16 << 10,
        refill: 4 << 10,
        batch: 4 << 10,
        ..UnitOptions::default()
    }
}

impl World {
    fn new() -> World {
        let start = EpochStart {
            epoch: 1,
            start: 64,
        };
        let map = UnitMap {
            version: 1,
            epoch: 1,
            primary: 1,
            members: vec![0, 1, 2],
            metadata_only: Vec::new(),
            in_sync: vec![0, 1, 2],
            lineage: vec![start],
            image: 0,
        };
        let tail = Sequence::new(1, 640);
        let history = vec![start];
        World {
            member: Member::new(0, options(), Defects::default(), tail, history, 0),
            now: 0,
            map,
            tail,
            intents: VecDeque::new(),
            is_slow: false,
            last: Vec::new(),
            asked: 0,
        }
    }

    /// Takes one command; nothing if the script is at its end.
    fn command(&mut self, script: &mut Script<'_>) -> Option<()> {
        let command = script.byte()?;
        let choice = script.byte()?;
        match command % 8 {
            0 => self.pass_time(choice),
            1 => self.change_map(choice),
            2 => self.last = script.bytes()?.to_vec(),
            3 => self.last = self.well_formed(choice, script)?,
            4 => self.is_slow = choice % 2 == 1,
            5 => self.restart(),
            6 => self.say(100),
            _ => self.say(1),
        }
        self.settle(choice);
        Some(())
    }

    fn pass_time(&mut self, choice: u8) {
        self.now += u64::from(choice) * 10_000_000;
        let is_due = |member: &Member| member.poll_timeout().is_some_and(|at| at <= self.now);
        if is_due(&self.member) {
            self.member.handle_timeout(self.now);
            assert!(!is_due(&self.member), "it does not wait");
        }
    }

    /// A map with another primary, or other members in sync.
    fn change_map(&mut self, choice: u8) {
        let primary = match choice & 8 {
            0 => self.map.primary,
            _ => u32::from(choice >> 4) % 3,
        };
        let in_sync = (0..3).filter(|node| choice >> node & 1 == 1 || *node == primary);
        let in_sync = in_sync.collect();
        self.map = if choice & 8 == 0 {
            // At times the member itself has metadata only.
            let metadata_only = (choice & 128 != 0 && primary != 0).then_some(0);
            UnitMap {
                in_sync,
                metadata_only: metadata_only.into_iter().collect(),
                ..self.map.next()
            }
        } else {
            UnitMap {
                metadata_only: Vec::new(),
                ..self.map.promote(primary, self.tail, in_sync)
            }
        };
        self.member.handle_map(self.now, self.map.clone());
    }

    /// A message with any body. Its sender is a member or one of a few clients, its session one that may exist.
    /// Messages of members without a number may answer the member's question.
    fn well_formed(&self, choice: u8, script: &mut Script<'_>) -> Option<Vec<u8>> {
        let (kind, from, number) = (script.byte()?, script.byte()?, script.byte()?);
        let epoch = self.map.epoch + u32::from(choice == 255);
        let session = u64::from(self.map.epoch) << 32 | u64::from(choice % 8);
        let from = u32::from(from % 8);
        let is_answer = number == 0 && self.map.members.contains(&from);
        let request = if is_answer { self.asked } else { number.into() };
        let mut bytes = header(kind, epoch, [session, request], from, script.bytes()?);
        wire::seal(&mut bytes);
        Some(bytes)
    }

    fn say(&mut self, times: u64) {
        for _ in 0..times {
            let last = self.last.clone();
            self.member.handle_message(self.now, &last.into());
        }
    }

    fn restart(&mut self) {
        let history = self.history();
        self.member = Member::new(
            0,
            options(),
            Defects::default(),
            self.tail,
            history,
            self.now,
        );
        self.intents.clear();
        self.member.handle_map(self.now, self.map.clone());
    }

    fn history(&self) -> Vec<EpochStart> {
        let lineage = self.map.lineage.iter();
        lineage
            .filter(|of| of.epoch <= self.tail.epoch)
            .copied()
            .collect()
    }

    /// Executes the member's intents, and checks its messages.
    fn settle(&mut self, choice: u8) {
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "the member does not come to rest");
            self.intents
                .extend(std::iter::from_fn(|| self.member.poll_intent()));
            while let Some(sent) = self.member.poll_transmit() {
                let decoded = Message::decode(&sent.bytes, &Defects::default());
                let message = decoded.expect("it sends a message");
                if matches!(message.body, Body::Join { .. }) {
                    self.asked = message.envelope.request;
                }
                assert!(!sent.to.is_empty(), "it sends to no node");
            }
            let kept = self.member.kept();
            assert!(kept <= KEPT_MAX, "it keeps {kept}");
            if self.is_slow {
                // A slow host does not take more either.
                return self.intents.truncate(KEPT_MAX);
            }
            let Some(intent) = self.intents.pop_front() else {
                return;
            };
            if let Some(completion) = self.carry_out(intent, choice) {
                self.member.handle_completion(self.now, completion);
            }
        }
    }

    fn carry_out(&mut self, intent: Intent, choice: u8) -> Option<Completion> {
        Some(match intent {
            Intent::Propose { map } => self.propose(map, choice),
            Intent::Execute { ticket, .. } => self.executed(ticket, choice),
            Intent::Resolve { ticket, names } => Completion::Resolved {
                ticket,
                inodes: vec![u64::from(choice % 4); names.len()],
            },
            Intent::NoteLocks { ticket, .. }
            | Intent::OpenSession { ticket, .. }
            | Intent::EndSession { ticket, .. }
            | Intent::ReclaimOrphans { ticket }
            | Intent::FreeGrant { ticket, .. } => self.executed(ticket, choice | 1),
            Intent::OpenKey { session } => Completion::KeyOpened {
                session,
                key: self.tail.number,
            },
            Intent::CloseKey { session } => Completion::KeyClosed { session },
            Intent::OpenForWriting { epoch } => self.open(epoch, choice),
            Intent::Follow => Completion::Following {
                tail: self.tail,
                history: self.history(),
            },
            Intent::ReadRecords {
                from,
                below,
                to,
                data_of: _,
                is_for_group,
            } => {
                let end = self.tail.number.min(below);
                let length = end.saturating_sub(from).min(256);
                let is_held = choice % 8 != 7 && length > 0;
                let records = is_held.then(|| vec![choice; length as usize].into());
                Completion::Records {
                    from,
                    to,
                    records,
                    data: Vec::new(),
                    is_for_group,
                }
            }
            Intent::ReadImage {
                to,
                fetch,
                offset,
                length,
                most,
            } => Completion::Image {
                to,
                fetch,
                offset,
                position: self.tail.number,
                skipped: length.saturating_sub(most),
                bytes: vec![choice; length.min(most) as usize].into(),
            },
            Intent::Ingest { from, records, .. } => self.ingest(from, records.len(), choice),
            Intent::TouchedSince { position } => Completion::Touched {
                ranges: ranges(position, choice),
            },
            Intent::Rewind { to } => {
                self.tail = to;
                return None;
            }
            Intent::ReleaseFreed { .. }
            | Intent::WriteImage { .. }
            | Intent::GrowImage { .. }
            | Intent::RestoreHolds { .. } => return None,
        })
    }

    /// The service accepts a proposal, or there was another one.
    fn propose(&mut self, map: UnitMap, choice: u8) -> Completion {
        if choice.is_multiple_of(4) {
            let map = self.map.promote(2, self.tail, vec![0, 2]);
            self.map = UnitMap {
                metadata_only: Vec::new(),
                ..map
            };
        } else if map.version == self.map.version + 1 {
            self.map = map;
        }
        let map = self.map.clone();
        Completion::Proposed { map }
    }

    fn executed(&mut self, ticket: u64, choice: u8) -> Completion {
        let depends_on = self.tail.number;
        let makes_record = choice % 2 == 1;
        self.tail.number += if makes_record { 64 } else { 0 };
        Completion::Executed {
            ticket,
            outcome: outcome(choice % 16),
            position: makes_record.then_some(self.tail.number),
            tail: self.tail.number,
            depends_on,
            is_by_reference: choice & 16 == 16,
        }
    }

    fn open(&mut self, epoch: u32, choice: u8) -> Completion {
        self.tail = Sequence::new(epoch, self.tail.number + 64);
        let lock = HeldLock {
            file: FileId {
                unit: 0,
                inode: 3,
                generation: 1,
            },
            lock: Lock {
                space: LockSpace::Ranges,
                kind: LockKind::Write,
                start: 0,
                end: 9,
                owner: 1,
                handle: 1,
                process: 1,
            },
        };
        let session = |index: u32| SessionRecord {
            index,
            session: u64::from(epoch) << 32 | u64::from(index + 4),
            client: 3 + index,
            slots: vec![(u64::from(choice), Outcome::default())],
            locks: vec![(index == 0).then_some(lock)],
            has_grant: index.is_multiple_of(2),
        };
        Completion::Opened {
            tail: self.tail,
            sessions: (0..u32::from(choice % 4)).map(session).collect(),
            grants: vec![(u64::from(choice), 3); usize::from(choice & 16 == 16)],
        }
    }

    fn ingest(&mut self, from: u64, length: usize, choice: u8) -> Completion {
        let end = from.saturating_add(length as u64);
        if !choice.is_multiple_of(4) && end > self.tail.number {
            self.tail = Sequence::new(self.map.epoch, end);
        }
        Completion::Ingested {
            tail: self.tail,
            missing: ranges(from, choice % 4),
        }
    }
}

/// One of the first errors, or success.
fn outcome(byte: u8) -> Outcome {
    Outcome {
        error: ErrorCode::from_byte(byte).filter(|_| byte < 9),
        ..Outcome::default()
    }
}

/// A few ranges, none if nothing was chosen.
fn ranges(from: u64, choice: u8) -> Vec<std::ops::Range<u64>> {
    let range = |index: u64| (from % 4096 + index * 8192)..(from % 4096 + index * 8192 + 4096);
    (0..u64::from(choice % 16)).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most that was kept while a script of the corpus ran, and whether the member ever served.
    fn run(name: &str) -> (usize, bool) {
        let path = format!(
            "{}/../../fuzz/corpus/member/{name}",
            env!("CARGO_MANIFEST_DIR")
        );
        let input = std::fs::read(&path).expect("the corpus has this script");
        let mut world = World::new();
        let mut script = Script { rest: &input };
        let (mut kept, mut served) = (0, false);
        while world.command(&mut script).is_some() {
            kept = kept.max(world.member.kept());
            served |= world.member.is_serving(world.now);
        }
        (kept, served)
    }

    /// Scripts of the corpus still get as far as they were written for.
    #[test]
    fn scripts_get_far() {
        for (name, least, serves) in [
            ("early-records", 64, false),
            ("support-of-strangers", 2, false),
            ("serves", 5, true),
            ("opens-sessions", 5, true),
            ("repeats-changes", 5, true),
            ("repeats-reads", 65, true),
            ("repeats-without-leases", 65, true),
            ("repeats-locks", 5, true),
            ("repeats-a-resume", 5, true),
            ("repeats-fetches", 64, true),
            ("data-by-reference", 30, true),
            ("slow-host", 64, true),
            ("resumes", 3, true),
            ("replays-of-no-slot", 1, true),
            ("opens-keys", 4, false),
            ("asks-for-keys", 5, true),
        ] {
            let (kept, served) = run(name);
            assert!(
                kept >= least && served == serves,
                "{name}: {kept}, {served}"
            );
        }
    }
}
