//! One member's machine: memory that crashes, a process that ends, a separate clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pmem::{Moment, Random, Simulation};
use protocol::client::{Transfer, TransferKind, TransferOutcome};
use protocol::defects::Defect;
use protocol::member::{Completion, Intent, NamedData, SessionRecord};
use protocol::wire::FileId;
use protocol::{Defects, Member, Transmit, UnitMap, UnitOptions};
use server::{Core, Host, LocalRead, Output};

use super::time::{Clock, OldTime, Time};

/// Nanoseconds of an hour.
pub const HOUR_NS: i64 = 3_600_000_000_000;
/// Distinguishes the random numbers of dates from the others.
const DATES: u64 = 0x4441_5445;
/// The date at the start of a run, at the least: no step leads before 1970.
const FIRST_DATE_NS: i64 = 1000 * HOUR_NS;

/// Images among which a crash chooses.
const IMAGES: usize = 8;

/// A crash that waits for its fence.
#[derive(Default)]
struct Armed {
    fences_left: u64,
    is_armed: bool,
    caught: Option<Moment>,
}

/// Applies transfers to the memory of a process, without its participation.
#[derive(Default)]
struct Port {
    /// Where the image is in the memory.
    image: Range<u64>,
    /// Open keys by session.
    keys: BTreeMap<u64, u64>,
    next_key: u64,
    /// Writes that have landed, by key and number: none lands again.
    landed: BTreeSet<(u64, u64)>,
    keeps_keys: bool,
    lands_again: bool,
}

impl Port {
    fn carry_out(&mut self, intent: &Intent) -> Option<Completion> {
        match *intent {
            Intent::OpenKey { session } => {
                let next = &mut self.next_key;
                let key = *self.keys.entry(session).or_insert_with(|| {
                    *next += 1;
                    *next
                });
                Some(Completion::KeyOpened { session, key })
            }
            Intent::CloseKey { session } => {
                if !self.keeps_keys {
                    self.keys.remove(&session);
                }
                Some(Completion::KeyClosed { session })
            }
            _ => None,
        }
    }

    fn is_open(&self, transfer: &Transfer) -> bool {
        let is_open = self.keys.values().any(|key| *key == transfer.key);
        let start = self.image.start.saturating_add(transfer.offset);
        is_open && start.saturating_add(transfer.length()) <= self.image.end
    }

    /// Whether a transfer that arrives now will change the memory.
    fn changes_memory(&self, transfer: &Transfer) -> bool {
        let has_landed = self.landed.contains(&(transfer.key, transfer.wr_id));
        let is_write = matches!(transfer.kind, TransferKind::Write(_));
        is_write && self.is_open(transfer) && (!has_landed || self.lands_again)
    }

    fn land(&mut self, memory: &Simulation, transfer: &Transfer) -> TransferOutcome {
        if !self.is_open(transfer) {
            return TransferOutcome::Refused;
        }
        let start = self.image.start + transfer.offset;
        match &transfer.kind {
            TransferKind::Write(bytes) => {
                if self.changes_memory(transfer) {
                    self.landed.insert((transfer.key, transfer.wr_id));
                    memory.region().write(start, bytes);
                }
                TransferOutcome::Written
            }
            TransferKind::Read(length) => {
                let mut bytes = vec![0; *length as usize];
                memory.region().read(start, &mut bytes);
                TransferOutcome::Read(bytes.into())
            }
        }
    }
}

/// Machine of a member: its pool survives its processes.
pub struct Machine {
    /// Its name on the fabric.
    pub node: u32,
    /// Clock of the machine.
    pub clock: Clock,
    /// Counts its processes: messages for an earlier one are dropped.
    pub incarnation: u64,
    /// When its time-out is due.
    pub timer: Option<Time>,
    /// A pause of its process, if it reads the clock before it waits for messages, against the rule.
    pub old_time: Option<OldTime>,
    /// Nanoseconds by which its date differs from virtual time.
    date_offset: i64,
    /// What its process reads the date from.
    date: Arc<AtomicI64>,
    /// Whether its pool has room for a longer image.
    pub has_room: bool,
    /// Whether it ships by a group, as primary.
    pub uses_groups: bool,
    /// Members that are not in the group now.
    ungrouped: BTreeSet<u32>,
    memory: Simulation,
    process: Option<Core>,
    port: Port,
    armed: Arc<Mutex<Armed>>,
    /// Missing data that records at this tail name, and the fetched parts of it.
    lacks: Option<Lacking>,
    random: Random,
}

/// A member that waits at a record without its data.
struct Lacking {
    tail: u64,
    map_version: u64,
    fetched: Vec<Range<u64>>,
}

impl Lacking {
    /// Whether it has fetched all of one of these ranges.
    fn has_fetched_one_of(&self, missing: &[Range<u64>]) -> bool {
        missing.iter().any(|range| {
            let mut fetched = self.fetched.clone();
            fetched.sort_by_key(|part| part.start);
            let mut end = range.start;
            for part in fetched.iter().filter(|part| part.end > range.start) {
                if part.start <= end {
                    end = end.max(part.end);
                }
            }
            end >= range.end
        })
    }
}

/// An action of a member that the world observes.
#[derive(Debug)]
pub enum Seen {
    /// As primary it allowed reuse of blocks that records below this position freed.
    Released(u64),
    /// As primary it was asked for records from here on, and did not have them any more.
    Gone(u64),
    /// As primary it ended a session.
    SessionEnded,
    /// It was opened for changes, and found these sessions.
    Opened(Vec<SessionRecord>),
    /// The primary accepts it for a rejoin; it will fetch the missing ranges.
    Welcomed,
    /// It has fetched the missing ranges.
    Refilled,
    /// It has fetched data that a record names, and it is not that data.
    FetchedInVain,
}

/// Messages and proposals that a step produced.
#[derive(Default)]
pub struct Step {
    /// Messages that the member sends in this step.
    pub transmits: VecDeque<Transmit>,
    /// Maps that the member proposes to the membership service.
    pub proposals: Vec<UnitMap>,
    /// Actions that matter to others.
    pub seen: Vec<Seen>,
    /// The machine crashed in the middle of it.
    pub crashed: bool,
}

/// Now and then a member joins the group or leaves it, and the list of what is to be sent again has room or none.
fn regroup(random: &mut Random, ungrouped: &mut BTreeSet<u32>, member: &mut Member, now: u64) {
    let map = member.map();
    if !map.members.is_empty() && random.below(64) == 0 {
        let node = *random.pick(&map.members);
        if !ungrouped.remove(&node) {
            ungrouped.insert(node);
        }
    }
    let is_in = |node: &&u32| !map.is_metadata_only(**node) && !ungrouped.contains(*node);
    let members: Vec<_> = map.members.iter().filter(is_in).copied().collect();
    member.set_group(now, &members, random.below(3) as u32);
}

/// Dates of machines are up to two days apart.
fn date_offset(seed: u64) -> i64 {
    let most = 48 * HOUR_NS as u64;
    Random::new(seed ^ DATES).between(0, 2 * most) as i64
}

impl Machine {
    /// A machine with these contents in memory.
    pub fn new(node: u32, clock: Clock, image: Vec<u8>, seed: u64) -> Machine {
        Machine {
            node,
            clock,
            incarnation: 0,
            timer: None,
            old_time: None,
            date_offset: date_offset(seed),
            date: Arc::default(),
            has_room: false,
            uses_groups: false,
            ungrouped: BTreeSet::new(),
            memory: Simulation::from_image(image),
            process: None,
            port: Port::default(),
            armed: Arc::default(),
            lacks: None,
            random: Random::new(seed),
        }
    }

    /// Whether its process runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The member, while its process runs.
    pub fn member(&self) -> Option<&Member> {
        self.process.as_ref().map(Core::member)
    }

    /// The epoch of the newest map that its process knows; 0 if there is none.
    pub fn epoch(&self) -> u32 {
        self.member().map_or(0, |member| member.map().epoch)
    }

    /// Whether its process believes that it may serve.
    pub fn is_serving(&self, now: Time) -> bool {
        let local = self.clock.local(now);
        self.member().is_some_and(|member| member.is_serving(local))
    }

    /// The figures of its pool, while it is open for changes.
    pub fn statistics(&self) -> Option<store::Statistics> {
        self.process.as_ref()?.pool().statistics()
    }

    /// Executes a read of a client in its process. A step that comes before the answer is one of the service thread, while
    /// the client's thread was suspended.
    pub fn read_locally(
        &self,
        session: u64,
        (file, offset): (FileId, u64),
        into: &mut [u8],
    ) -> Option<LocalRead> {
        let reads = self.process.as_ref()?.pool().local_reads();
        reads.set_session(session);
        reads.read(file, offset, into, false)
    }

    /// Whether the client may get the data of its read now.
    pub fn may_answer(&self, read: &LocalRead, session: u64, now: Time) -> bool {
        let process = self.process.as_ref();
        let now = self.clock.local(now);
        process.is_some_and(|it| it.pool().local_reads().may_answer(read, session, now))
    }

    /// Its memory as a region.
    pub fn memory(&self) -> &Simulation {
        &self.memory
    }

    /// Options with which members open their pools.
    pub fn store_options(now: Time) -> store::PoolOptions {
        store::PoolOptions {
            clock: store::Clock::Manual(Arc::new(AtomicI64::new(now as i64))),
            hold_freed: true,
            ..store::PoolOptions::default()
        }
    }

    /// Starts the node's process if it is down: opens its pool and makes a member.
    pub fn start(
        &mut self,
        now: Time,
        options: &UnitOptions,
        defects: &Defects,
    ) -> Result<(), String> {
        if self.is_up() {
            return Ok(());
        }
        let store_options = store::PoolOptions {
            clock: store::Clock::Manual(self.date.clone()),
            defects: store::Defects {
                stamp_by_own_clock: defects.has(Defect::StampByOwnClock),
                ..store::Defects::default()
            },
            place: Some(self.node),
            ..Machine::store_options(now)
        };
        self.show_date(now);
        let (region, local) = (self.memory.region(), self.clock.local(now));
        let core = Core::open(self.node, region, store_options, (options, defects), local)
            .map_err(|error| format!("member {} does not open its pool: {error}", self.node))?;
        self.incarnation += 1;
        self.port = Port {
            image: core.pool().image(),
            next_key: self.incarnation << 32,
            keeps_keys: defects.has(Defect::KeepKeys),
            lands_again: defects.has(Defect::LandAgain),
            ..Port::default()
        };
        self.process = Some(core);
        Ok(())
    }

    /// A one-sided transfer arrives. There is no answer if no process runs. In a member in sync only blocks of grants
    /// are changed: all others belong to files, or may do so at any time.
    pub fn land(
        &mut self,
        transfer: &Transfer,
        is_in_sync: bool,
    ) -> Result<Option<TransferOutcome>, String> {
        if self.process.is_none() {
            return Ok(None);
        }
        let Transfer { wr_id, offset, .. } = *transfer;
        if is_in_sync && self.port.changes_memory(transfer) {
            let range = offset..offset + transfer.length();
            if !crate::reachable::is_granted(&self.memory.region(), range) {
                return Err(format!(
                    "member {}: transfer {wr_id} lands at {offset}, which is granted to no session",
                    self.node
                ));
            }
        }
        Ok(Some(self.port.land(&self.memory, transfer)))
    }

    /// Power fails: stores that were not persistent may be lost.
    pub fn crash(&mut self) {
        let moment = self.memory.moment();
        self.crash_at(&moment);
    }

    fn crash_at(&mut self, moment: &Moment) {
        let seed = self.random.next_number();
        let which = self.random.below(IMAGES);
        let images: Vec<_> = moment.images(IMAGES, seed).collect();
        let image = images[which % images.len()].clone();
        self.process = None;
        self.timer = None;
        self.lacks = None;
        self.memory = Simulation::from_image(image);
    }

    /// It is gone for good, with its memory.
    pub fn destroy(&mut self) {
        self.disarm();
        self.process = None;
        self.timer = None;
        self.lacks = None;
        self.memory = Simulation::from_image(Vec::new());
    }

    /// Power fails at one of the next fences.
    pub fn arm(&mut self, fences: u64) {
        let armed = self.armed.clone();
        *lock(&armed) = Armed {
            fences_left: fences,
            is_armed: true,
            caught: None,
        };
        self.memory.observe_fences(Some(Box::new(move |moment| {
            let mut armed = lock(&armed);
            if armed.is_armed && armed.caught.is_none() {
                if armed.fences_left == 0 {
                    armed.caught = Some(moment.clone());
                }
                armed.fences_left = armed.fences_left.saturating_sub(1);
            }
        })));
    }

    /// No crash is to come any more.
    pub fn disarm(&mut self) {
        *lock(&self.armed) = Armed::default();
    }

    fn show_date(&self, now: Time) {
        let date = FIRST_DATE_NS + self.date_offset + now as i64;
        self.date.store(date, Ordering::Relaxed);
    }

    /// Sets its date by so many hours forward, or back if they are negative.
    pub fn step_date(&mut self, hours: i32) {
        self.date_offset += i64::from(hours) * HOUR_NS;
    }

    /// Gives the member an input and executes its intents.
    pub fn step(
        &mut self,
        now: Time,
        input: impl FnOnce(&mut Member, u64),
    ) -> Result<Step, String> {
        let local = self.clock.local(OldTime::shown(self.old_time, now));
        self.show_date(now);
        let Some(core) = &mut self.process else {
            return Ok(Step::default());
        };
        let mut watch = Watch {
            port: &mut self.port,
            lacks: &mut self.lacks,
            armed: &self.armed,
            seen: Vec::new(),
            is_strict: false,
            caught: None,
        };
        let uses_groups = self.uses_groups;
        let (random, ungrouped) = (&mut self.random, &mut self.ungrouped);
        let output = core.step(local, &mut watch, |member, now| {
            input(member, now);
            if uses_groups {
                regroup(random, ungrouped, member, now);
            }
        });
        let (seen, caught) = (watch.seen, watch.caught);
        self.port.image = core.pool().image();
        let output = output.map_err(|failed| format!("member {}: {failed}", self.node))?;
        if let Some(moment) = caught {
            *lock(&self.armed) = Armed::default();
            self.crash_at(&moment);
        }
        let Some(Output {
            transmits,
            proposals,
            timeout,
        }) = output
        else {
            // Nothing of this step had been sent.
            return Ok(Step {
                crashed: true,
                ..Step::default()
            });
        };
        self.timer = timeout.map(|at| self.clock.instant(at).max(now + 1000));
        Ok(Step {
            transmits,
            proposals,
            seen,
            crashed: false,
        })
    }
}

/// Watches a member at work, and catches the moment of a crash.
struct Watch<'a> {
    port: &'a mut Port,
    lacks: &'a mut Option<Lacking>,
    armed: &'a Mutex<Armed>,
    seen: Vec<Seen>,
    /// The intent takes no record with missing data.
    is_strict: bool,
    caught: Option<Moment>,
}

impl Host for Watch<'_> {
    fn access(&mut self, intent: &Intent) -> ControlFlow<Option<Completion>> {
        match self.port.carry_out(intent) {
            Some(completion) => ControlFlow::Break(Some(completion)),
            None => ControlFlow::Continue(()),
        }
    }

    fn before(&mut self, _member: &Member, intent: &Intent) {
        self.seen.extend(seen_before(intent));
        if let (Intent::WriteImage { offset, bytes }, Some(lacks)) = (intent, &mut *self.lacks) {
            lacks.fetched.push(*offset..*offset + bytes.len() as u64);
        }
        self.is_strict = matches!(
            intent,
            Intent::Ingest {
                named: NamedData::Required,
                ..
            }
        );
    }

    fn after(&mut self, member: &Member, completion: Option<&Completion>) -> ControlFlow<()> {
        self.caught = lock(self.armed).caught.take();
        if self.caught.is_some() {
            return ControlFlow::Break(());
        }
        if let Some(completion) = completion {
            self.seen.extend(seen_after(completion));
            if let (true, Completion::Ingested { tail, missing }) = (self.is_strict, completion) {
                let version = member.map().version;
                let in_vain = note_lack(self.lacks, version, tail.number, missing);
                self.seen.extend(in_vain.then_some(Seen::FetchedInVain));
            }
        }
        ControlFlow::Continue(())
    }
}

fn seen_before(intent: &Intent) -> Option<Seen> {
    match intent {
        Intent::ReleaseFreed { below } => Some(Seen::Released(*below)),
        Intent::EndSession { .. } => Some(Seen::SessionEnded),
        Intent::TouchedSince { .. } => Some(Seen::Welcomed),
        Intent::Rewind { .. } => Some(Seen::Refilled),
        _ => None,
    }
}

fn seen_after(completion: &Completion) -> Option<Seen> {
    match completion {
        Completion::Records {
            from,
            records: None,
            ..
        } => Some(Seen::Gone(*from)),
        Completion::Opened { sessions, .. } => Some(Seen::Opened(sessions.clone())),
        _ => None,
    }
}

/// Notes the missing data of the next record; returns whether it was fetched already.
fn note_lack(
    lacks: &mut Option<Lacking>,
    map_version: u64,
    tail: u64,
    missing: &[Range<u64>],
) -> bool {
    let is_same = |it: &Lacking| it.tail == tail && it.map_version == map_version;
    match lacks {
        Some(lacking) if is_same(lacking) && !missing.is_empty() => {
            lacking.has_fetched_one_of(missing)
        }
        _ => {
            *lacks = (!missing.is_empty()).then(|| Lacking {
                tail,
                map_version,
                fetched: Vec::new(),
            });
            false
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
