//! Checks while a unit runs, by an observer of all state, and when it is quiet.

use std::collections::{BTreeMap, BTreeSet};

use pmem::Region;
use protocol::member::{Completion, HeldLock, Intent, SessionRecord};
use protocol::wire::{Acknowledge, Body, Message, Outcome};
use protocol::{Defects, EpochStart, Member, Transmit, UnitMap};
use server::UnitPool;
use store::CheckOptions;

use super::{FIRST_CLIENT, Summary, Time, World};
use crate::cluster::node::{Machine, Seen};
use crate::cluster::plan::Cue;
use crate::cluster::workload::Worker;
use crate::reachable::{Part, difference};

/// More than the record that crosses the bound of the window, and the ends of all sessions.
const BEYOND_WINDOW: u64 = 16 << 10;
/// The slot of requests that change nothing.
const NO_SLOT: u16 = u16::MAX;

/// An answer that was given.
struct Answered {
    outcome: Outcome,
    /// Position at which its record ends.
    position: u64,
    /// Epoch of the primary that answered.
    epoch: u32,
}

impl Answered {
    /// Whether another answer is equal. The list of a grant's blocks, which is all the data that the answer to a change
    /// has, is not in the record: a later primary does not know it.
    fn is_same(&self, other: &Outcome, epoch: u32) -> bool {
        let is_list_known = self.epoch == epoch;
        let recorded = |it: &Outcome| (it.error, it.file.inode, it.file.generation, it.count);
        recorded(&self.outcome) == recorded(other)
            && (self.outcome.details == other.details || !is_list_known)
    }
}

/// A file's last change, as a primary showed it.
#[derive(Clone, Copy)]
struct Stamp {
    /// The epoch of the record that changed it.
    epoch: u32,
    version: u64,
    changed_ns: i64,
}

/// State that later checks need.
#[derive(Default)]
pub(super) struct Watch {
    /// Answers to changes that made a record, by session, slot and number.
    replies: BTreeMap<(u64, u16, u64), Answered>,
    /// Data that each member was sent with records in each epoch and has not reported, in bytes, by the first record's position.
    pushed: BTreeMap<(u32, u32), BTreeMap<u64, u64>>,
    /// What clients were shown of each file last, by its number and generation.
    stamps: BTreeMap<(u64, u32), Stamp>,
    /// The last epoch in which the date of its primary was set back.
    dated_back: Option<u32>,
    /// Members with an image to be compared with the primary's when both are at one tail.
    to_compare: BTreeSet<usize>,
}

impl World {
    /// A member has done something.
    pub(super) fn check_step(
        &mut self,
        now: Time,
        member: usize,
        seen: Vec<Seen>,
    ) -> Result<(), String> {
        for seen in seen {
            self.check_seen(now, member, seen)?;
        }
        self.check_one_serves(now, member)?;
        self.check_window(member)?;
        self.check_confirmed(member)?;
        self.compare_images(member)
    }

    fn check_seen(&mut self, now: Time, member: usize, seen: Seen) -> Result<(), String> {
        let view = self.machines[member].member().and_then(Member::view);
        match seen {
            Seen::Released(below) => self.check_tails(member, below, "frees what they may use"),
            Seen::Gone(from) => {
                let confirmed = view.map_or(0, |view| view.confirmed);
                if self.is_current(member) && confirmed > 0 && from >= confirmed {
                    return Err(format!(
                        "member {member} does not hold records from {from} on, which others may lack"
                    ));
                }
                Ok(())
            }
            Seen::Opened(sessions) => check_locks(&sessions),
            Seen::FetchedInVain => {
                let map = self.membership.valid();
                let known = self.machines[member].member();
                let is_current = known.is_some_and(|it| it.map().version == map.version);
                if is_current && map.is_in_sync(member as u32) {
                    return Err(format!(
                        "member {member} got other data than its next record names"
                    ));
                }
                Ok(())
            }
            Seen::SessionEnded => {
                self.sight(now, Cue::SessionEnded, member as u32);
                Ok(())
            }
            Seen::Welcomed => {
                self.sight(now, Cue::Welcomed, member as u32);
                Ok(())
            }
            Seen::Refilled => {
                self.sight(now, Cue::Refilled, member as u32);
                Ok(())
            }
        }
    }

    /// Whether a member is primary by the present map, and knows it.
    fn is_current(&self, member: usize) -> bool {
        let map = self.membership.valid();
        let machine = &self.machines[member];
        let is_primary = machine.member().is_some_and(|it| it.view().is_some());
        is_primary && machine.epoch() == map.epoch
    }

    /// While one member serves no other does.
    fn check_one_serves(&self, now: Time, member: usize) -> Result<(), String> {
        if !self.machines[member].is_serving(now) {
            return Ok(());
        }
        let others = (0..self.machines.len()).filter(|other| *other != member);
        match others
            .into_iter()
            .find(|other| self.machines[*other].is_serving(now))
        {
            Some(other) => Err(format!("members {member} and {other} both serve")),
            None => Ok(()),
        }
    }

    fn check_window(&self, member: usize) -> Result<(), String> {
        let view = self.machines[member].member().and_then(Member::view);
        let Some(view) = view.filter(|view| view.confirmed > 0) else {
            return Ok(());
        };
        let most = self.setup.options.window + BEYOND_WINDOW;
        if view.position > view.confirmed + most {
            return Err(format!(
                "the window of member {member} is exceeded: {view:?}"
            ));
        }
        Ok(())
    }

    /// All members in sync have everything that the primary assumes confirmed.
    fn check_confirmed(&self, member: usize) -> Result<(), String> {
        let view = self.machines[member].member().and_then(Member::view);
        let confirmed = view.map_or(0, |view| view.confirmed);
        self.check_tails(member, confirmed, "believes that all have them")
    }

    fn check_tails(&self, member: usize, below: u64, why: &str) -> Result<(), String> {
        if !self.is_current(member) {
            return Ok(());
        }
        let map = self.membership.valid();
        for node in &map.in_sync {
            let tail = self.machines[*node as usize]
                .member()
                .map(|it| it.tail().number);
            if let Some(tail) = tail.filter(|tail| *tail < below) {
                return Err(format!(
                    "member {node}, in sync, has records up to {tail}, and primary {member} {why} up to {below}"
                ));
            }
        }
        Ok(())
    }

    /// A map comes into force. If it names another primary, the old one has no leases any more.
    pub(super) fn check_map(
        &mut self,
        now: Time,
        before: &UnitMap,
        map: &UnitMap,
    ) -> Result<(), String> {
        self.check_room(before, map)?;
        let is_takeover = map.epoch != before.epoch;
        let serving = self.machines.iter().find(|machine| machine.is_serving(now));
        if let Some(machine) = serving.filter(|_| is_takeover) {
            let (old, new) = (machine.node, map.primary);
            return Err(format!("member {old} serves when {new} becomes primary"));
        }
        let is_new = |node: &&u32| is_takeover || !before.is_in_sync(**node);
        let new = map.in_sync.iter().filter(is_new).map(|node| *node as usize);
        self.watch.to_compare.extend(new);
        if let Some(start) = map.lineage.last().filter(|_| is_takeover) {
            // Lost records never happened: their answers are open again.
            let replies = &mut self.watch.replies;
            replies.retain(|_, answered| answered.position <= start.start);
        }
        let primary = map.primary as usize;
        match primary < self.machines.len() {
            true => self.check_confirmed(primary),
            false => Ok(()),
        }
    }

    /// Members in sync have the same image as the primary when they have the same records.
    fn compare_images(&mut self, member: usize) -> Result<(), String> {
        let map = self.membership.valid();
        let primary = map.primary as usize;
        let is_concerned = member == primary || self.watch.to_compare.contains(&member);
        if self.watch.to_compare.is_empty() || !is_concerned || !self.is_current(primary) {
            return Ok(());
        }
        // With its epoch: one that has to undo its records first may be as far by their bytes.
        let tail = |member: usize| self.machines[member].member().map(Member::tail);
        // A member that has not learned of a longer image yet is compared once it has.
        let length = |member: usize| {
            let superblock = store::read_superblock(&self.machines[member].memory().region());
            superblock.ok().map(|it| it.image_length)
        };
        let is_ready = |other: &&usize| {
            **other != primary
                && map.is_in_sync(**other as u32)
                && tail(**other) == tail(primary)
                && length(**other) == length(primary)
        };
        let ready: Vec<usize> = self
            .watch
            .to_compare
            .iter()
            .filter(is_ready)
            .copied()
            .collect();
        for other in ready {
            self.watch.to_compare.remove(&other);
            let regions = [primary, other].map(|it| self.machines[it].memory().region());
            let part = [primary, other].map(|it| self.part_of(it));
            let part = if part.contains(&Part::Metadata) {
                Part::Metadata
            } else {
                Part::Whole
            };
            if let Some(difference) = difference(&regions[0], &regions[1], part) {
                return Err(format!(
                    "members {primary} and {other}, at one tail, differ: {difference}"
                ));
            }
        }
        Ok(())
    }

    /// A member is sent no data with records while it was sent much and does not report it.
    pub(super) fn check_pushed(&mut self, from: usize, transmit: &Transmit) -> Result<(), String> {
        // The data alone is longer than a block.
        if transmit.bytes.len() < store::BLOCK || transmit.to.iter().all(|to| *to >= FIRST_CLIENT) {
            return Ok(());
        }
        let Ok(Message { envelope, body }) = Message::decode(&transmit.bytes, &Defects::default())
        else {
            return Ok(());
        };
        let Body::Records {
            from: first, data, ..
        } = body
        else {
            return Ok(());
        };
        let bytes = data.iter().map(|it| it.bytes.len() as u64).sum::<u64>();
        for to in transmit.to.iter().filter(|_| bytes > 0) {
            let member = self.machines[from].member();
            let tail = member.and_then(|it| it.tail_of(*to)).unwrap_or(0);
            let pushed = self.watch.pushed.entry((envelope.epoch, *to)).or_default();
            let unreported = pushed
                .range(tail..first)
                .map(|(_, bytes)| bytes)
                .sum::<u64>();
            if unreported >= self.setup.options.push {
                return Err(format!(
                    "member {to} does not report {unreported} bytes of data that it was sent, and is sent more"
                ));
            }
            *pushed = pushed.split_off(&tail);
            pushed.insert(first, bytes);
        }
        Ok(())
    }

    /// The same request of a slot gets the same answer.
    pub(super) fn check_replies(&mut self, transmit: &Transmit) -> Result<(), String> {
        if transmit.to.iter().all(|to| *to < FIRST_CLIENT) {
            return Ok(());
        }
        let Ok(Message { envelope, body }) = Message::decode(&transmit.bytes, &Defects::default())
        else {
            return Ok(());
        };
        let Body::Reply {
            slot,
            outcome,
            position,
            ..
        } = body
        else {
            return Ok(());
        };
        if slot == NO_SLOT {
            return self.check_stamp(envelope.epoch, &outcome);
        }
        let key = (envelope.session, slot, envelope.request);
        let epoch = envelope.epoch;
        match self.watch.replies.get(&key) {
            Some(first) if !first.is_same(&outcome, epoch) => Err(format!(
                "session {}, slot {slot}, request {}: {:?}, then {outcome:?}",
                envelope.session, envelope.request, first.outcome
            )),
            // A request without a change leaves no trace: another primary may answer otherwise.
            _ if position == 0 => Ok(()),
            _ => {
                let answered = Answered {
                    outcome,
                    position,
                    epoch,
                };
                self.watch.replies.insert(key, answered);
                Ok(())
            }
        }
    }

    /// The date of a member's machine is set.
    pub(super) fn step_date(&mut self, member: usize, hours: i32) {
        self.machines[member].step_date(hours);
        let map = self.membership.valid();
        if hours < 0 && map.primary as usize == member {
            self.watch.dated_back = Some(map.epoch);
        }
    }

    /// The time of a file's last change does not go back by a change that another member orders. While one leads it does so as on
    /// every machine, when the date is set back; then a later member knows of the newer time only if its ring holds that record.
    fn check_stamp(&mut self, epoch: u32, outcome: &Outcome) -> Result<(), String> {
        let Some(shown) = outcome.attributes else {
            return Ok(());
        };
        let lineage = &self.membership.valid().lineage;
        let has_it = |of: &&EpochStart| of.epoch <= epoch && of.start <= shown.version;
        let stamp = Stamp {
            epoch: lineage.iter().rfind(has_it).map_or(0, |of| of.epoch),
            version: shown.version,
            changed_ns: shown.changed_ns,
        };
        let file = (shown.number, shown.generation);
        let known = self.watch.stamps.entry(file).or_insert(stamp);
        if stamp.version < known.version || stamp.changed_ns == known.changed_ns {
            return Ok(());
        }
        let before = std::mem::replace(known, stamp);
        let dated_back = self.watch.dated_back;
        let is_held =
            stamp.epoch != before.epoch && dated_back.is_none_or(|dated| dated < before.epoch);
        if is_held && stamp.changed_ns < before.changed_ns {
            let seconds = (before.changed_ns - stamp.changed_ns) / 1_000_000_000;
            let inode = shown.number;
            return Err(format!(
                "the time of change of inode {inode} goes {seconds} s back"
            ));
        }
        Ok(())
    }

    /// State left without a possible user, when all is quiet.
    pub(super) fn leaks(&self) -> Option<String> {
        let map = self.membership.valid();
        let primary = self.machines.get(map.primary as usize)?;
        let view = primary.member()?.view()?;
        let sessions = primary.member()?.sessions();
        let known: Vec<u64> = self.workers.iter().filter_map(Worker::session).collect();
        let unknown = sessions.iter().find(|session| !known.contains(session));
        if let Some(session) = unknown {
            return Some(format!("session {session} has no client"));
        }
        let is_idle = view.waiting == 0 && view.confirmed == view.position;
        (!is_idle).then(|| format!("{view:?}"))
    }

    /// Reads all that was written: losses are detected even if no client read it.
    pub(super) fn read_all(&mut self) {
        let now = self.queue.now();
        for operation in self.workers[0].reads() {
            self.submit(now, 0, operation, Acknowledge::Primary);
        }
    }

    /// The image has the sessions that the primary has, and all that is not in use can be used.
    fn examine_leaks(&self) -> Result<(), String> {
        let map = self.membership.valid();
        let primary = &self.machines[map.primary as usize];
        let known = primary.member().map(|it| it.sessions()).unwrap_or_default();
        let store_options = Machine::store_options(self.queue.now());
        let copy = crate::pool::copy(&primary.memory().region())?;
        let mut pool = UnitPool::open(copy, store_options, &self.setup.options)
            .map_err(|error| error.to_string())?;
        let epoch = map.epoch + 1;
        let opened = pool.carry_out(Intent::OpenForWriting { epoch });
        let Ok(Some(Completion::Opened { sessions, .. })) = opened else {
            return Err("the primary's pool does not open again".into());
        };
        let mut noted: Vec<u64> = sessions.iter().map(|record| record.session).collect();
        noted.sort_unstable();
        if noted != known {
            return Err(format!(
                "the image has the sessions {noted:?}, the primary {known:?}"
            ));
        }
        let (found, left) = (pool.statistics(), primary.statistics());
        let free = |of: Option<store::Statistics>| of.map(|it| (it.blocks_free, it.inodes_free));
        if free(found) != free(left) {
            return Err(format!(
                "{:?} blocks and inodes are free, and {:?} can be used",
                free(found),
                free(left)
            ));
        }
        Ok(())
    }

    /// The part of the image in a member's pool.
    pub(super) fn part_of(&self, member: usize) -> Part {
        match self.membership.valid().is_metadata_only(member as u32) {
            true => Part::Metadata,
            false => Part::Whole,
        }
    }

    /// Every pool is sound, and they hold the same.
    fn examine_pools(&self) -> Result<(), String> {
        let members = &self.membership.valid().members;
        let members = members.iter().map(|node| *node as usize);
        let model = members
            .clone()
            .find(|member| self.part_of(*member) == Part::Whole);
        let model = model.ok_or("no member has data")?;
        let first = self.machines[model].memory().region();
        for member in members {
            let machine = &self.machines[member];
            let (region, part) = (machine.memory().region(), self.part_of(member));
            if let Some(difference) = difference(&first, &region, part) {
                return Err(format!("members {model} and {member} differ: {difference}"));
            }
            if member == model || part == Part::Metadata {
                check_pool(&region, part)?;
            }
        }
        Ok(())
    }

    /// Messages that get lost are no reason to leave a member out.
    fn examine_maps(&self) -> Result<(), String> {
        let map = self.membership.valid();
        // The first primary may be chosen before all have seen the first map.
        let most = 1 + 2 + self.machines.len() as u64;
        if self.is_calm && map.version > most {
            return Err(format!(
                "without a fault the map changed again and again: {map:?}"
            ));
        }
        Ok(())
    }

    /// Checks when all is quiet.
    pub(super) fn examine(&mut self) -> Result<Summary, String> {
        if let Some(worker) = self.workers.iter().find(|worker| worker.has_lost_held) {
            return Err(format!(
                "a file was reclaimed that client {} holds",
                worker.node
            ));
        }
        if let Some(worker) = self.workers.iter().find(|worker| worker.has_met_damage) {
            return Err(format!("client {} was refused a read", worker.node));
        }
        self.examine_pools()?;
        self.examine_lengths()?;
        self.examine_maps()?;
        self.examine_leaks()?;
        let mut lost = std::mem::take(&mut self.lost);
        let workers = self.workers.iter_mut();
        workers.for_each(|worker| worker.leave(&mut lost));
        let takeovers: Vec<Time> = self.takeovers.iter().map(|(at, _)| *at).collect();
        for (ids, invoked) in lost.writes {
            for id in ids {
                for at in takeovers.iter().filter(|at| **at >= invoked) {
                    self.history.may_vanish(id, *at);
                }
            }
        }
        let ended = lost.sessions.iter().filter(|(_, _, to)| *to < Time::MAX);
        let ended_sessions = ended.count() - lost.closed;
        for (client, from, to) in lost.sessions {
            self.history.expired(client, from, to);
        }
        lost.waits.check(&takeovers)?;
        let checked = self.history.check()?;
        let one_sided = self.workers.iter().map(Worker::one_sided);
        let (one_sided_writes, one_sided_reads) =
            one_sided.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        Ok(Summary {
            was_whole: false,
            one_sided_writes,
            one_sided_reads,
            kept: self.workers.iter().map(Worker::kept).sum(),
            locally_read: self.locally_read,
            read_at_once: self.at_once.counted,
            is_replaced: self.is_replaced(),
            ended_sessions,
            left_out: std::mem::take(&mut self.left_out),
            takeovers: std::mem::take(&mut self.takeovers),
            operations: checked.operations,
            epochs: self.membership.valid().epoch,
            gave_up: checked.gave_up.len(),
            time: self.queue.now(),
            messages: self.links.count_all().messages,
        })
    }
}

fn check_pool(region: &Region, part: Part) -> Result<(), String> {
    let copy = crate::pool::copy(region)?;
    let data = part == Part::Whole;
    let report = store::check(&copy, &CheckOptions { data })
        .map_err(|error| format!("the check fails: {error}"))?;
    match report.findings.first() {
        Some(finding) => Err(format!("the check finds: {finding}")),
        None => Ok(()),
    }
}

/// No byte is locked by two sessions: all locks exclude others.
fn check_locks(sessions: &[SessionRecord]) -> Result<(), String> {
    let mut held: Vec<(u64, HeldLock)> = Vec::new();
    for record in sessions {
        let session = record.session;
        for lock in record.locks.iter().flatten() {
            let is_same = |(of, other): &&(u64, HeldLock)| {
                *of != session && other.file == lock.file && other.lock.overlaps(&lock.lock)
            };
            if let Some((other, _)) = held.iter().find(is_same) {
                let file = lock.file;
                return Err(format!(
                    "sessions {other} and {session} both have a lock of {file:?}"
                ));
            }
            held.push((session, *lock));
        }
    }
    Ok(())
}
