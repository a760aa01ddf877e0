//! A client that works: random operations on a few files, names and locks, all of them recorded.

mod ahead;
pub mod at_once;
mod completed;
mod early;
mod keys;
pub mod local;
mod locks;
mod outcomes;
mod pages;
mod rare;

use std::collections::BTreeMap;

use operations::{
    LOCK_END, Lock, LockKind, LockSpace, NewInode, RenameMode, SetAttributes, WriteAt, XattrMode,
};
use pmem::Random;
use protocol::client::{Client, Event, Keep, Ticket, Transfer};
use protocol::wire::{Acknowledge, ErrorCode, FileId, Held, Operation, Outcome};
use protocol::{Defects, Mode, UnitMap, UnitOptions};
use store::FileKind;

use super::history::{History, Id, Invocation, Key, Response};
use super::kernel_cache::{self, KernelCache};
use super::waits::WaitLog;
use ahead::Ahead;
use early::{Answering, Postponed};
use keys::{keys, renamed};
use locks::Locks;
use outcomes::answer;
use rare::Rare;

use super::time::{Clock, MILLISECOND, OldTime, Time};
use super::world::FIRST_CLIENT;

/// Files that are written, read and locked.
pub const FILES: usize = 3;
/// Blocks of a file that are used.
const BLOCKS: u64 = 4;
/// Bytes of a short write.
const SHORT: usize = 64;
/// Stands for contents that no client has written.
const TORN: u64 = u64::MAX;
/// Names that are made and removed.
const NAMES: usize = 3;
/// Greatest age of a write for an fsync of it.
const SYNCED_WITHIN: Time = 300 * MILLISECOND;
/// Clients of a run, at most.
const CLIENTS_MAX: u64 = 4;
/// Operations of one client in flight.
const UNDER_WAY: usize = 2;
const BLOCK: u64 = store::BLOCK as u64;

/// Something that was asked for.
struct Pending {
    ids: Vec<Id>,
    operation: Operation,
    acknowledge: Acknowledge,
    invoked: Time,
    /// Changes of the inode by this machine before.
    stamp: u64,
    /// The read of a page that this is part of.
    page: Option<Operation>,
    /// Version of the file, if this is a window that is read ahead.
    window: Option<u64>,
}

/// A completed write that may be lost with this client.
struct Unsynced {
    ids: Vec<Id>,
    file: FileId,
    invoked: Time,
    completed: Time,
}

/// Machine of a client: it outlives the client's processes.
pub struct Worker {
    /// Its name on the fabric.
    pub node: u32,
    /// Clock of the machine.
    pub clock: Clock,
    /// Number of processes that the machine has started.
    pub incarnation: u64,
    /// When its time-out is due.
    pub timer: Option<Time>,
    /// A pause of its process, if it reads the clock before it waits for calls, against the rule.
    pub old_time: Option<OldTime>,
    /// One-sided transfers that the client's machine is to start.
    pub transfers: Vec<Transfer>,
    /// Writes and reads that its ended clients did one-sided.
    one_sided: (u64, u64),
    client: Option<Client>,
    pending: BTreeMap<Ticket, Pending>,
    /// What reads of pages ask for next.
    to_ask: Vec<Pending>,
    unsynced: Vec<Unsynced>,
    /// Those of sessions that have ended while the client went on: an fsync that succeeds is good for them, too.
    left_behind: Vec<Unsynced>,
    /// Writes that were only sent: they happen at some time, before a later fsync returns.
    sent: Vec<Unsynced>,
    resumed_in: u32,
    /// Until when its locks are its own for certain: by its clock, and in virtual time.
    fresh_until: (u64, Time),
    /// An fsync of a new write was answered in the last step.
    has_synced: bool,
    /// An fsync of this file is requested when no operation is in flight any more.
    to_sync: Option<FileId>,
    /// A read of a file that is there was refused: its data is damaged.
    pub has_met_damage: bool,
    /// A file that it holds was reclaimed.
    pub has_lost_held: bool,
    /// The file that its session holds.
    held: Option<FileId>,
    /// The newest session that it had.
    owner: Option<u64>,
    /// Its caches under leases.
    keeping: KernelCache,
    /// What it has read ahead.
    ahead: Ahead,
    /// Whether it answers writes early, under leases for writing. Clients that move data themselves do not.
    is_early: bool,
    /// What it has answered under leases for writing.
    answering: Answering,
    /// Operations that were answered from its caches.
    kept: u64,
    /// Random source of its caches.
    chance: Random,
    defects: Defects,
    files: Vec<FileId>,
    /// It also waits for locks.
    is_wide: bool,
    locks: Locks,
    wide: Rare,
    values: u64,
    random: Random,
}

impl Worker {
    /// A machine without a process; its writes go to these files.
    pub fn new(node: u32, clock: Clock, files: Vec<FileId>, seed: u64) -> Worker {
        Worker {
            node,
            clock,
            incarnation: 0,
            timer: None,
            old_time: None,
            transfers: Vec::new(),
            one_sided: (0, 0),
            client: None,
            pending: BTreeMap::new(),
            to_ask: Vec::new(),
            unsynced: Vec::new(),
            left_behind: Vec::new(),
            sent: Vec::new(),
            resumed_in: 0,
            fresh_until: (0, 0),
            has_synced: false,
            to_sync: None,
            has_met_damage: false,
            has_lost_held: false,
            held: None,
            owner: None,
            keeping: KernelCache::default(),
            ahead: Ahead::new(seed),
            is_early: false,
            answering: Answering::default(),
            kept: 0,
            chance: Random::new(seed ^ CACHES),
            defects: Defects::default(),
            files,
            is_wide: false,
            locks: Locks::default(),
            wide: Rare::default(),
            values: u64::from(node) << 32,
            random: Random::new(seed),
        }
    }

    /// Whether it answers writes early.
    pub fn early(self, is_early: bool) -> Worker {
        Worker { is_early, ..self }
    }

    /// Whether it also waits for locks, and uses operations for which there are two more files.
    pub fn widened(mut self, is_wide: bool) -> Worker {
        self.is_wide = is_wide;
        if let Some([list, sources]) = self.files.split_off(FILES).first_chunk() {
            self.wide = Rare::new(*list, *sources);
        }
        self
    }

    /// Starts a process of the client, if none runs.
    pub fn start(&mut self, options: &UnitOptions, defects: &Defects) {
        if self.client.is_none() {
            self.incarnation += 1;
            self.fresh_until = (0, 0);
            let first = self.incarnation << 32;
            let client = Client::new(self.node, options.clone(), defects.clone(), first);
            let client = client.with_mode(mode_of(self.node - FIRST_CLIENT));
            self.defects = defects.clone();
            self.answering = Answering::new(defects);
            self.client = Some(match keeps(self.node - FIRST_CLIENT) {
                true => client.with_leases(),
                false => client,
            });
        }
    }

    /// The time that its process assumes, by the machine's clock.
    fn local(&self, now: Time) -> u64 {
        self.clock.local(OldTime::shown(self.old_time, now))
    }

    /// Whether its process runs.
    pub fn is_up(&self) -> bool {
        self.client.is_some()
    }

    /// Number of one-sided writes and reads.
    pub fn one_sided(&self) -> (u64, u64) {
        let (writes, reads) = self.client.as_ref().map_or((0, 0), Client::one_sided);
        (self.one_sided.0 + writes, self.one_sided.1 + reads)
    }

    /// Number of operations that were answered from its caches.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Whether no operation is in flight, and no lock is used.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.answering.waiting() == 0 && !self.uses_locks()
    }

    /// Whether it holds or awaits locks that it has to release.
    pub fn uses_locks(&self) -> bool {
        self.is_wide && self.locks.are_used()
    }

    /// Releases a lock, if there is one and it waits for no other.
    pub fn release_lock(&mut self) -> Option<Operation> {
        let is_up = self.client.is_some();
        is_up.then(|| self.locks.release(&mut self.random))?
    }

    /// The machine ends; what its client had not synced may be lost.
    pub fn crash(&mut self, now: Time, lost: &mut Lost) {
        self.one_sided = self.one_sided();
        if self.client.take().is_some() {
            // The end of its session is not observed.
            self.lose(now, Time::MAX, lost);
            self.keeping.end_process();
            self.ahead.clear();
            self.sent.clear();
            self.leave(lost);
        }
        self.pending.clear();
        self.answering = Answering::default();
        self.to_ask.clear();
        self.transfers.clear();
        self.timer = None;
    }

    /// Each process of a machine counts as a separate client: it knows nothing of the locks of the one before.
    fn identity(&self) -> u32 {
        self.incarnation as u32 * 1000 + self.node
    }

    /// Changes the drift of the clock; its past times stay.
    pub fn set_drift(&mut self, now: Time, ppm: i32) {
        self.clock.set_drift(now, ppm);
        if self.fresh_until.1 > now {
            self.fresh_until.1 = self.clock.instant(self.fresh_until.0);
        }
    }

    /// Its session has ended: between the last time for which the primary has promised it, or `now`, and `over_at`.
    fn lose(&mut self, now: Time, over_at: Time, lost: &mut Lost) {
        let fresh_until = self.fresh_until.1.min(now);
        lost.sessions.push((self.identity(), fresh_until, over_at));
        self.locks.end(self.identity(), now, &mut lost.waits);
        self.wide.end();
        self.held = None;
        self.keeping.clear();
        self.answering.session_over(self.owner);
        self.left_behind.append(&mut self.unsynced);
    }

    /// Nothing will tell any more whether the writes of ended sessions are lost.
    pub fn leave(&mut self, lost: &mut Lost) {
        for write in self.left_behind.drain(..) {
            lost.writes.push((write.ids, write.invoked));
        }
    }

    /// Gives the client an input; returns its messages.
    pub fn step(
        &mut self,
        now: Time,
        history: &mut History,
        lost: &mut Lost,
        input: impl FnOnce(&mut Client, u64),
    ) -> Vec<protocol::Transmit> {
        let local = self.local(now);
        let Some(mut client) = self.client.take() else {
            return Vec::new();
        };
        self.has_synced = false;
        for recalled in self.keeping.carried_out(now, &self.defects) {
            self.answer_recall(&mut client, recalled);
        }
        let (identity, waits) = (self.identity(), &mut lost.waits);
        self.locks.on_time(identity, now, &self.defects, waits);
        input(&mut client, local);
        let renewed = self.keeping.to_renew(local, &mut self.chance);
        client.renew(local, &renewed);
        if client.fresh_until() != self.fresh_until.0 {
            let until = client.fresh_until();
            self.fresh_until = (until, self.clock.instant(until));
        }
        while let Some(event) = client.poll_event() {
            match event {
                Event::Done {
                    ticket,
                    outcome,
                    keep,
                } => {
                    self.take_ownership(&client, ticket, &outcome, keep);
                    self.keep(ticket, &outcome, keep);
                    if !self.was_sent(now, ticket, &outcome, history) {
                        self.done(now, ticket, &outcome, history, lost);
                    }
                }
                Event::Recalled(recalled) => {
                    self.close_early(now, &recalled);
                    self.keeping.recall(now, recalled, &mut self.chance);
                }
                Event::Renewed { inodes, until } => {
                    self.keeping.renewed(local, &inodes, until, &self.defects);
                }
                Event::LockTurn { wait } => self.locks.has_turn(wait),
                Event::SessionOver => self.lose(now, now, lost),
            }
        }
        self.send_answered(now, &mut client);
        self.owner = client.session().or(self.owner);
        self.ask_for_pages(local, &mut client);
        for operation in std::mem::take(&mut self.locks.requests) {
            self.begin(now, &mut client, operation, Acknowledge::Primary, history);
        }
        if client.resumed_in() != self.resumed_in {
            self.resumed_in = client.resumed_in();
            // Its replays are at all members in sync, or were refused.
            self.unsynced.retain(|write| client.is_refused(write.file));
        }
        let sent = std::iter::from_fn(|| client.poll_transmit()).collect();
        self.transfers
            .extend(std::iter::from_fn(|| client.poll_transfer()));
        let due = client.poll_timeout().map(|at| self.clock.instant(at));
        let early = self.answering.due().map(|at| self.clock.instant(at));
        let own = self.keeping.due().into_iter().chain(self.locks.due());
        let own = own.chain(early);
        let due = due.into_iter().chain(own).min();
        self.timer = due.map(|at| at.max(now + 1000));
        self.client = Some(client);
        sent
    }

    /// Whether an fsync of a new write was answered in the last step.
    pub fn has_synced(&self) -> bool {
        self.has_synced
    }

    /// The session of its process.
    pub fn session(&self) -> Option<u64> {
        self.client.as_ref().and_then(Client::session)
    }

    /// Returns operations that read all blocks.
    pub fn look(&self) -> Vec<Operation> {
        let blocks = |file: &FileId| {
            let file = *file;
            (0..BLOCKS).map(move |block| Operation::Read {
                file,
                offset: block * BLOCK,
                length: 8,
                note_read: false,
            })
        };
        let files = self.files.iter().filter(|_| self.client.is_some());
        files.flat_map(blocks).collect()
    }

    /// Reads of all that there is.
    pub fn reads(&self) -> Vec<Operation> {
        let names = (0..NAMES).map(|number| Operation::Lookup {
            directory: ROOT,
            name: name(number),
            hold: false,
        });
        self.look().into_iter().chain(names).collect()
    }

    /// A new map for the client.
    pub fn map_input(map: UnitMap) -> impl FnOnce(&mut Client, u64) {
        move |client, local| client.handle_map(local, map)
    }

    /// Makes a request, if not too many are in flight.
    pub fn choose(&mut self, now: Time) -> Option<(Operation, Acknowledge)> {
        if self.is_busy() || self.client.is_none() {
            return None;
        }
        if self.pending.is_empty()
            && let Some(file) = self.to_sync.take()
        {
            return Some((Operation::Sync { file }, Acknowledge::Primary));
        }
        let file = *self.random.pick(&self.files);
        let kind = match self.is_wide {
            true => self.random.below(3),
            false => 0,
        };
        match kind {
            1 => return self.choose_wide(file),
            2 => {
                let operation = self.locks.choose(now, file, &mut self.random);
                return operation.map(|operation| (operation, Acknowledge::Primary));
            }
            _ => {}
        }
        let number = self.random.below(NAMES);
        let (name, other) = (
            name(number),
            (number + 1 + self.random.below(NAMES - 1)) % NAMES,
        );
        let directory = ROOT;
        let operation = match self.random.below(30) {
            22..25 => self.use_held(name),
            25 => self::create(directory, name, FileKind::Directory),
            26 => Operation::RemoveDirectory { directory, name },
            27 => self.link(),
            28 => set_xattr(file, self.value()),
            29 => Operation::Xattr {
                file,
                name: XATTR.to_vec(),
            },
            21 => Operation::Rename {
                directory,
                name,
                new_directory: directory,
                new_name: self::name(other),
                mode: RenameMode::Replace,
            },
            20 => truncate(file, self.random.below(BLOCKS as usize) as u64 * BLOCK),
            0..6 => self.write(file),
            6..11 => Operation::Read {
                file,
                offset: self.random.below(BLOCKS as usize) as u64 * BLOCK,
                length: *self.random.pick(&[8, BLOCK as u32]),
                note_read: false,
            },
            11 | 12 => Operation::Sync { file },
            13 | 14 => create(directory, name, FileKind::Regular),
            15 => Operation::Unlink { directory, name },
            16 | 17 => Operation::Lookup {
                directory,
                name,
                hold: false,
            },
            18 | 19 if self.is_wide => Operation::Attributes { file },
            18 => set_lock(file),
            _ => unlock(file),
        };
        let acknowledge = match self.random.below(10) {
            0 => Acknowledge::Sent,
            1 => Acknowledge::All,
            _ => Acknowledge::Primary,
        };
        Some((operation, acknowledge))
    }

    /// Whether as many operations are in flight as may be.
    fn is_busy(&self) -> bool {
        let waiting = self.pending.len() + self.answering.waiting();
        waiting > UNDER_WAY || self.pending.len() >= UNDER_WAY
    }

    /// Opens a file, reads the open one's attributes, or closes it.
    fn use_held(&mut self, name: Vec<u8>) -> Operation {
        match self.held {
            Some(file) if self.random.below(6) > 0 => Operation::Attributes { file },
            Some(file) => {
                self.held = None;
                let held = Held { file, count: 1 };
                Operation::Release { holds: vec![held] }
            }
            None => Operation::Lookup {
                directory: ROOT,
                name,
                hold: !self.is_opening(),
            },
        }
    }

    /// Whether it opens a file.
    fn is_opening(&self) -> bool {
        let mut pending = self.pending.values();
        pending.any(|it| it.operation.takes_hold())
    }

    /// Gives the open file one more name, or works with such a name. Those are never renamed: a rename of one name of a
    /// file over another one does nothing.
    fn link(&mut self) -> Operation {
        let directory = ROOT;
        let name = name(NAMES + self.random.below(2));
        match (self.held, self.random.below(3)) {
            (Some(file), 0 | 1) => Operation::Link {
                file,
                directory,
                name,
            },
            (None, 0) => Operation::Lookup {
                directory,
                name,
                hold: false,
            },
            _ => Operation::Unlink { directory, name },
        }
    }

    /// A file was opened, or the open one's attributes were read.
    fn note_held(&mut self, operation: &Operation, outcome: &Outcome) {
        match operation {
            // Without attributes it was removed before it could be held again after a takeover.
            operation if operation.takes_hold() && outcome.attributes.is_some() => {
                self.held = Some(outcome.file);
            }
            Operation::Attributes { file } if self.held == Some(*file) => {
                self.has_lost_held |= outcome.error == Some(ErrorCode::Stale);
            }
            _ => {}
        }
    }

    /// Asks for an operation, and notes it.
    pub fn ask(
        &mut self,
        now: Time,
        operation: Operation,
        acknowledge: Acknowledge,
        history: &mut History,
    ) {
        if self.use_kept(now, &operation, history)
            || self.use_answered(now, &operation, acknowledge, history)
        {
            return;
        }
        if let Some(mut client) = self.client.take() {
            self.begin(now, &mut client, operation, acknowledge, history);
            self.client = Some(client);
        }
    }

    fn begin(
        &mut self,
        now: Time,
        process: &mut Client,
        operation: Operation,
        acknowledge: Acknowledge,
        history: &mut History,
    ) {
        let client = self.identity();
        let ids = keys(&operation, &self.wide)
            .into_iter()
            .map(|(key, asked)| history.invoke(client, key, asked, now))
            .collect();
        let asked = Postponed {
            operation,
            acknowledge,
            ids,
            invoked: now,
        };
        self.submit(now, process, asked);
    }

    /// Answers an operation from the caches, if possible.
    fn use_kept(&mut self, now: Time, operation: &Operation, history: &mut History) -> bool {
        let local = self.local(now);
        let Some(outcome) = self.keeping.find(local, operation).cloned() else {
            return false;
        };
        let client = self.identity();
        for (key, asked) in keys(operation, &self.wide) {
            if let Some(answered) = answer(operation, &outcome, &self.wide) {
                let id = history.invoke(client, key, asked, now);
                history.complete(id, answered, now);
            }
        }
        self.kept += 1;
        true
    }

    /// Reads a cached value.
    pub fn look_at_kept(&mut self, now: Time, history: &mut History) {
        let local = self.local(now);
        if let Some(operation) = self.keeping.any(local, &mut self.chance) {
            self.use_kept(now, &operation, history);
        }
    }

    /// An operation has ended, and its outcome may be kept.
    fn keep(&mut self, ticket: Ticket, outcome: &Outcome, keep: Keep) {
        let Some(pending) = self.pending.remove(&ticket) else {
            return;
        };
        let mut stamp = pending.stamp;
        if let Some(inode) = kernel_cache::changed_inode(&pending.operation) {
            self.keeping.end(inode);
            stamp += 1;
        }
        let file = pending.operation.file();
        match (&pending.page, pending.window.zip(file)) {
            (Some(_), _) => self.keep_page(&pending, outcome, keep),
            (None, Some((version, file))) => self.ahead.put(file, version, outcome),
            (None, None) => self.keeping.keep(&pending.operation, outcome, keep, stamp),
        }
        self.pending.insert(ticket, pending);
    }

    /// Writes of whole blocks of one file. When they are done an fsync follows.
    pub fn rush(&mut self, blocks: u32) -> Vec<Operation> {
        if self.client.is_none() {
            return Vec::new();
        }
        let file = *self.random.pick(&self.files);
        self.to_sync = Some(file);
        let mut write = |_: u32| Operation::Write {
            file,
            at: WriteAt::Offset(self.random.below(BLOCKS as usize) as u64 * BLOCK),
            data: self.value().repeat(BLOCK as usize / 8).into(),
            drop_privileges: None,
        };
        (0..blocks).map(&mut write).collect()
    }

    /// No other write has it.
    fn value(&mut self) -> [u8; 8] {
        self.values += 1;
        self.values.to_le_bytes()
    }

    fn write(&mut self, file: FileId) -> Operation {
        let (block, blocks, length) = match self.random.below(8) {
            0 => (0, 3, BLOCK as usize),
            1 | 2 => (self.random.below(BLOCKS as usize), 1, BLOCK as usize),
            _ => (self.random.below(BLOCKS as usize), 1, SHORT),
        };
        let mut data = Vec::new();
        for _ in 0..blocks {
            data.extend(self.value().repeat(length / 8));
        }
        Operation::Write {
            file,
            at: WriteAt::Offset(block as u64 * BLOCK),
            data: data.into(),
            drop_privileges: None,
        }
    }
}

/// Distinguishes the random numbers of a client's caches from those of its work.
const CACHES: u64 = 0x4341_4348;

/// Most clients cache their reads under leases.
fn keeps(client: u32) -> bool {
    client > 0
}

/// Every other client reaches into the members' memories, on the same files.
pub fn mode_of(client: u32) -> Mode {
    if client.is_multiple_of(2) {
        Mode::CLIENT_ACTIVE
    } else {
        Mode::ServerActive
    }
}

fn name(number: usize) -> Vec<u8> {
    format!("name{number}").into_bytes()
}

/// Unsynced writes of clients that ended, the sessions that ended, and waits for locks.
#[derive(Default)]
pub struct Lost {
    /// Operations, and when they were invoked.
    pub writes: Vec<(Vec<Id>, Time)>,
    /// Client, and within which interval its locks got free (at the earliest).
    pub sessions: Vec<(u32, Time, Time)>,
    /// How many of the sessions were closed by their clients.
    pub closed: usize,
    /// What clients saw of waits for locks.
    pub(super) waits: WaitLog,
}

/// Stands for the extended attribute of a file.
const XATTR_BLOCK: u64 = 1 << 32;
/// Stands for the owner of a file.
const OWNER_BLOCK: u64 = XATTR_BLOCK + 1;
/// Value of a block that was cut off.
const NOTHING: u64 = 0;

/// The root directory.
pub const ROOT: FileId = FileId::root(0);

/// The extended attribute that files have.
const XATTR: &[u8] = b"user.value";

fn set_xattr(file: FileId, value: [u8; 8]) -> Operation {
    Operation::SetXattr {
        file,
        name: XATTR.to_vec(),
        value: value.to_vec(),
        mode: XattrMode::Set,
    }
}

/// Makes a file or directory.
pub fn create(directory: FileId, name: Vec<u8>, kind: FileKind) -> Operation {
    Operation::Create {
        directory,
        name,
        new: (&NewInode::new(kind, 0o644)).into(),
        hold: false,
    }
}

/// Sets a file's size.
fn truncate(file: FileId, size: u64) -> Operation {
    let change = SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    Operation::SetAttributes { file, change }
}

/// The lock of a whole file that a client takes.
const LOCK: Lock = Lock {
    space: LockSpace::Ranges,
    kind: LockKind::Write,
    start: 0,
    end: LOCK_END,
    owner: 1,
    handle: 1,
    process: 1,
};

/// Locks all of a file.
pub fn set_lock(file: FileId) -> Operation {
    Operation::SetLock { file, lock: LOCK }
}

/// Unlocks all of a file.
pub fn unlock(file: FileId) -> Operation {
    Operation::Unlock { file, range: LOCK }
}

/// A pause between two operations of a client.
pub fn pause(random: &mut Random) -> Time {
    random.between(MILLISECOND, 120 * MILLISECOND)
}
