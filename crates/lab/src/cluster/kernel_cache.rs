//! Caches of a client's machine under leases, as the kernel of a mount has them: names and blocks, until a time or a
//! recall.

use std::collections::BTreeMap;

use pmem::Random;
use protocol::Defects;
use protocol::client::{Keep, Recalled};
use protocol::defects::Defect;
use protocol::wire::{ErrorCode, Operation, Outcome};

use super::time::{MILLISECOND, SECOND, Time};
use super::workload::ROOT;

/// Recalls of which one is answered late, or not before the lease has ended.
const LATE_ONE_IN: usize = 12;

/// Steps of a machine of which one renews leases.
const RENEW_ONE_IN: usize = 4;
/// Leases are renewed when so much of their time is left.
const RENEW_BEFORE: u64 = 800 * MILLISECOND;

/// An outcome that is kept.
struct Kept {
    operation: Operation,
    outcome: Outcome,
    /// End of validity, by the machine's clock.
    until: u64,
}

/// Pages of a file. They outlive leases.
#[derive(Default)]
struct Pages {
    /// Generation and version of the file: no page is older.
    version: (u32, u64),
    reads: Vec<(Operation, Outcome)>,
    /// Until when they may be read without asking for attributes, by the machine's clock.
    until: u64,
    /// They are dropped after the next read, against the rule.
    drops_later: bool,
}

/// The caches of one process.
#[derive(Default)]
pub struct KernelCache {
    /// By inode: names of a directory, blocks of a file.
    kept: BTreeMap<u64, Vec<Kept>>,
    /// Cached pages by inode.
    pages: BTreeMap<u64, Pages>,
    /// Counts the changes by this machine of each inode, when they begin and when they end, and how often pages are dropped.
    changes: BTreeMap<u64, u64>,
    /// Changes by this machine that have begun and not ended.
    changing: BTreeMap<u64, u64>,
    /// Recalls in progress, and their end.
    recalls: Vec<(Time, Recalled)>,
}

/// The inode of the caches that an operation reads.
pub fn read_inode(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Lookup {
            directory,
            hold: false,
            ..
        } => Some(directory.inode),
        Operation::Read { file, .. } => Some(file.inode),
        _ => None,
    }
}

/// The inode of the caches that a change makes stale.
pub fn changed_inode(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Write { file, .. }
        | Operation::SetAttributes { file, .. }
        | Operation::Fallocate { file, .. } => Some(file.inode),
        Operation::CopyRange { to, .. } => Some(to.inode),
        Operation::Create { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Link { .. }
        | Operation::Rename { .. } => Some(ROOT.inode),
        _ => None,
    }
}

/// The lookup, and its outcome, that a change of a name shows.
fn lookup_after(change: &Operation, outcome: &Outcome) -> Option<(Operation, Outcome)> {
    if !outcome.is_done() {
        return None;
    }
    let (directory, name, found) = match change {
        Operation::Create {
            directory, name, ..
        } => (*directory, name, outcome.clone()),
        Operation::Unlink { directory, name } | Operation::RemoveDirectory { directory, name } => {
            (*directory, name, Outcome::failed(ErrorCode::NotFound))
        }
        _ => return None,
    };
    let lookup = Operation::Lookup {
        directory,
        name: name.clone(),
        hold: false,
    };
    Some((lookup, found))
}

impl KernelCache {
    /// Drops all that is kept: the session has ended. Changes in flight still count.
    pub fn clear(&mut self) {
        self.kept.clear();
        self.pages.clear();
        self.recalls.clear();
    }

    /// Clears everything: the process has ended.
    pub fn end_process(&mut self) {
        *self = KernelCache::default();
    }

    /// Changes of an inode that this machine has begun and ended: results read meanwhile are not cached.
    pub fn stamp(&self, inode: u64) -> u64 {
        self.changes.get(&inode).copied().unwrap_or(0)
    }

    /// This machine asks for a change.
    pub fn begin(&mut self, inode: u64) {
        *self.changes.entry(inode).or_default() += 1;
        *self.changing.entry(inode).or_default() += 1;
        self.kept.remove(&inode);
        self.pages.remove(&inode);
    }

    /// Ends a change of the inode, which was answered.
    pub fn end(&mut self, inode: u64) {
        *self.changes.entry(inode).or_default() += 1;
        if let Some(changing) = self.changing.get_mut(&inode) {
            *changing = changing.saturating_sub(1);
        }
    }

    /// An outcome that was asked for when the inode had this stamp.
    pub fn keep(&mut self, operation: &Operation, outcome: &Outcome, keep: Keep, stamp: u64) {
        if !keep.covers.subject {
            return;
        }
        let shown = lookup_after(operation, outcome);
        let (operation, outcome) = shown.as_ref().map_or((operation, outcome), |(a, b)| (a, b));
        let Some(inode) = read_inode(operation) else {
            return;
        };
        let says_something = outcome.is_done() || outcome.error == Some(ErrorCode::NotFound);
        if !self.is_current(inode, stamp) || !says_something {
            return;
        }
        let of_inode = self.kept.entry(inode).or_default();
        of_inode.retain(|it| it.operation != *operation);
        of_inode.push(Kept {
            operation: operation.clone(),
            outcome: outcome.clone(),
            until: keep.until,
        });
    }

    fn is_current(&self, inode: u64, stamp: u64) -> bool {
        let is_changing = self.changing.get(&inode).is_some_and(|count| *count > 0);
        !is_changing && stamp == self.stamp(inode)
    }

    /// Pages of another version are dropped before these attributes count.
    pub fn keep_attributes(
        &mut self,
        inode: u64,
        version: (u32, u64),
        keep: Keep,
        stamp: u64,
        defects: &Defects,
    ) {
        let is_current = self.is_current(inode, stamp);
        let pages = self.pages.entry(inode).or_default();
        if pages.version != version && !defects.has(Defect::KeepOldPages) {
            pages.drops_later = defects.has(Defect::DropPagesAfterAnswer);
            if !pages.drops_later {
                pages.reads.clear();
            }
            // Pages that are being read are dropped, too.
            *self.changes.entry(inode).or_default() += 1;
        }
        pages.version = version;
        pages.until = match keep.covers.subject && is_current {
            true => keep.until,
            false => 0,
        };
    }

    /// Whether pages of a file may be read without asking for attributes.
    pub fn shows_pages(&self, local: u64, inode: u64) -> bool {
        self.pages.get(&inode).is_some_and(|it| local < it.until)
    }

    /// Version of a file, if its attributes are kept under a lease.
    pub fn leased_version(&self, local: u64, inode: u64) -> Option<u64> {
        let pages = self.pages.get(&inode).filter(|it| local < it.until)?;
        let (_, version) = pages.version;
        Some(version)
    }

    /// A page, once attributes were shown.
    pub fn page(&mut self, read: &Operation) -> Option<Outcome> {
        let pages = self.pages.get_mut(&read_inode(read)?)?;
        let mut kept = pages.reads.iter();
        let found = kept.find(|(it, _)| it == read).map(|(_, it)| it.clone());
        if std::mem::take(&mut pages.drops_later) {
            pages.reads.clear();
        }
        found
    }

    /// A page that was asked for when the inode had this stamp.
    pub fn keep_page(&mut self, read: &Operation, outcome: &Outcome, stamp: u64) {
        let Some(inode) = read_inode(read).filter(|inode| self.is_current(*inode, stamp)) else {
            return;
        };
        let pages = self.pages.entry(inode).or_default();
        pages.reads.retain(|(it, _)| it != read);
        pages.reads.push((read.clone(), outcome.clone()));
    }

    /// The outcome of an operation, if it is kept.
    pub fn find(&self, local: u64, operation: &Operation) -> Option<&Outcome> {
        let of_inode = self.kept.get(&read_inode(operation)?)?;
        let found = of_inode.iter().find(|it| it.operation == *operation)?;
        (local < found.until).then_some(&found.outcome)
    }

    /// Any operation with a cached outcome.
    pub fn any(&self, local: u64, random: &mut Random) -> Option<Operation> {
        let kept = self.kept.values().flatten();
        let valid: Vec<&Kept> = kept.filter(|it| local < it.until).collect();
        (!valid.is_empty()).then(|| random.pick(&valid).operation.clone())
    }

    /// Inodes with leases that end soon, if they are to be renewed now.
    pub fn to_renew(&self, local: u64, random: &mut Random) -> Vec<u64> {
        let ends_soon = |until: u64| local < until && until < local + RENEW_BEFORE;
        let kept = self.kept.iter();
        let of_names = kept.filter(|(_, of_inode)| of_inode.iter().any(|it| ends_soon(it.until)));
        let pages = self.pages.iter().filter(|(_, it)| ends_soon(it.until));
        let inodes = of_names.map(|(inode, _)| *inode);
        let inodes: Vec<u64> = inodes.chain(pages.map(|(inode, _)| *inode)).collect();
        match !inodes.is_empty() && random.below(RENEW_ONE_IN) == 0 {
            true => inodes,
            false => Vec::new(),
        }
    }

    /// Leases were extended: what is kept under them, and has not ended, lasts longer.
    pub fn renewed(&mut self, local: u64, inodes: &[u64], until: u64, defects: &Defects) {
        let lasts = |end: u64| local < end || defects.has(Defect::ReviveLease);
        for inode in inodes {
            let kept = self.kept.get_mut(inode).into_iter().flatten();
            for kept in kept.filter(|it| lasts(it.until)) {
                kept.until = kept.until.max(until);
            }
            let pages = self.pages.get_mut(inode);
            if let Some(pages) = pages.filter(|it| it.until > 0 && lasts(it.until)) {
                pages.until = pages.until.max(until);
            }
        }
    }

    /// A lease is recalled: the caches take a moment to drop their contents.
    pub fn recall(&mut self, now: Time, recalled: Recalled, random: &mut Random) {
        let pause = match random.below(LATE_ONE_IN) {
            0 => random.between(100 * MILLISECOND, 2 * SECOND),
            _ => random.between(0, 5 * MILLISECOND),
        };
        self.recalls.push((now + pause, recalled));
    }

    /// End of the next recall.
    pub fn due(&self) -> Option<Time> {
        self.recalls.iter().map(|(at, _)| *at).min()
    }

    /// The recalls that have been completed by now.
    pub fn carried_out(&mut self, now: Time, defects: &Defects) -> Vec<Recalled> {
        let done = self.recalls.extract_if(.., |(at, _)| *at <= now);
        let done: Vec<Recalled> = done.map(|(_, recalled)| recalled).collect();
        let stays = defects.has(Defect::KeepMissingNames);
        for Recalled { inode, .. } in &done {
            if let Some(pages) = self.pages.get_mut(inode) {
                pages.until = 0;
            }
            if let Some(of_inode) = self.kept.get_mut(inode) {
                of_inode.retain(|it| stays && it.outcome.error == Some(ErrorCode::NotFound));
            }
        }
        done
    }
}
