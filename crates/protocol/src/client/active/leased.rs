//! Layouts under leases: the primary recalls them before it changes the file, so data from any member is current without
//! the version word.

use super::read::Reading;
use super::{Client, Keep, Run};
use crate::defects::Defect;
use crate::wire::{FileId, Operation};

/// Whether a change of the same session may change the data of a file, or free its blocks. The primary recalls no leases of the
/// session for it. Names may lead to any file.
fn concerns(operation: &Operation, file: FileId) -> bool {
    let is_file = |it: FileId| (it.unit, it.inode) == (file.unit, file.inode);
    match operation {
        Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::Release { .. } => true,
        _ => operation.is_change() && operation.files().any(is_file),
    }
}

impl Client {
    /// Whether a change of this session that concerns the file is in flight.
    pub(super) fn is_changing(&self, file: FileId) -> bool {
        let mut in_flight = self.slots.pending().chain(self.reads.values());
        in_flight.any(|it| concerns(&it.operation, file))
            && !self.defects.has(Defect::ForgetOwnChanges)
    }

    /// Whether layouts of this version of the file count without the version word: they came under a lease that has lasted
    /// since, and this session has changed nothing.
    pub(super) fn is_leased(&self, now: u64, file: FileId, version: u64) -> bool {
        let Some(term) = self.active.layouts.term(file, version) else {
            return false;
        };
        let held = self.leases.term(now, file.inode);
        let lasts = match () {
            () if self.defects.has(Defect::ReadAfterLease) => true,
            () if self.defects.has(Defect::ReadUnderLaterLease) => held.is_some(),
            () => held == Some(term),
        };
        lasts && !self.is_changing(file)
    }

    /// Whether a layout is to be asked for again: its lease has ended, so the file may have changed. If it has none, once in the
    /// time of a lease.
    pub(super) fn wants_lease(&self, now: u64, file: FileId, version: u64) -> bool {
        let since = now.saturating_sub(self.options.lease_ns);
        let has_ended = match self.active.layouts.term(file, version) {
            Some(term) => self.leases.term(now, file.inode) != Some(term),
            None => self.active.layouts.is_older(file, since),
        };
        self.keeps && has_ended && !self.is_leased(now, file, version)
    }

    /// The term of the lease that came with a layout. A change of this session may have been executed after the layout was
    /// made, and be answered before or after it: then it has none.
    pub(super) fn term_of(&self, now: u64, reading: &Reading, keep: Keep) -> Option<u64> {
        let is_current = reading.is_clean() && !self.is_changing(reading.file());
        let counts = keep.covers.subject && is_current;
        counts.then(|| self.leases.term(now, reading.file().inode))?
    }

    /// A change of this session was answered.
    pub(in crate::client) fn own_change_ended(&mut self, operation: &Operation) {
        let is_release = matches!(operation, Operation::Release { .. });
        if !operation.is_change() && !is_release || self.defects.has(Defect::ForgetOwnChanges) {
            return;
        }
        let layouts = &mut self.active.layouts;
        layouts.forget_leases(|file| concerns(operation, *file));
        for run in self.active.runs.values_mut() {
            match run {
                Run::Read(reading) if concerns(operation, reading.file()) => reading.soil(),
                _ => {}
            }
        }
    }
}
