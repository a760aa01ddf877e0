//! Leases for writing: granted with the answers to writes, recalled before any request of another session for the file, and
//! reported to the next primary.

use super::Member;
use super::intent::{Intent, Ticket};
use super::requests::{Executing, Parked, Targets};
use super::serve::Primary;
use crate::defects::Defect;
use crate::leases::{Covers, Grant, changed_names, shown};
use crate::wire::{FileId, Operation, Outcome};

/// Whether the outcome of an operation depends on data and attributes of the files that it names, or it changes them.
fn is_concerned(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::SetLock { .. }
            | Operation::TestLock { .. }
            | Operation::Unlock { .. }
            | Operation::UnlockHandle { .. }
            | Operation::Release { .. }
            | Operation::NoteRead { .. }
            | Operation::Sync { .. }
    )
}

/// Names of files that an operation shows or changes.
fn names(operation: &Operation) -> Vec<(FileId, Vec<u8>)> {
    match operation {
        Operation::Lookup {
            directory, name, ..
        } => vec![(*directory, name.clone())],
        _ => changed_names(operation),
    }
}

/// Reason why a request cannot begin.
enum Obstacle {
    Names,
    Owned(Vec<u64>, crate::leases::owners::Owned),
}

impl Primary {
    /// Whether a change was begun before: then it gets the first answer.
    fn was_begun(&self, parked: &Parked) -> bool {
        let session = self.sessions.by_number.get(&parked.session);
        let slot = session.and_then(|it| it.slots.get(usize::from(parked.slot)));
        parked.operation.is_change() && slot.is_none_or(|slot| parked.request <= slot.request)
    }

    fn owner_obstacle(
        &mut self,
        now: u64,
        parked: &Parked,
        times: (u64, Option<u64>),
    ) -> Option<Obstacle> {
        let is_free = !self.owners.has_others(parked.session);
        if is_free || !is_concerned(&parked.operation) || self.was_begun(parked) {
            return None;
        }
        let is_known = |it: &Targets| it.begun == self.begun;
        let knows = parked.targets.as_ref().is_some_and(is_known);
        if !knows && !names(&parked.operation).is_empty() {
            return Some(Obstacle::Names);
        }
        let mut inodes: Vec<u64> = parked.operation.files().map(|file| file.inode).collect();
        inodes.extend(parked.targets.iter().flat_map(|it| &it.inodes));
        let mut named = inodes.iter();
        if !named.any(|inode| self.owners.has_other(parked.session, *inode)) {
            return None;
        }
        self.note_waiting_writes(now + times.0);
        let leases = &mut self.leases;
        let asker = (now, parked.session);
        let owned = self
            .owners
            .recall(asker, &inodes, times, || leases.next_number())?;
        Some(Obstacle::Owned(inodes, owned))
    }

    /// Requests that are being executed, or wait.
    fn requests(&self) -> impl Iterator<Item = &Parked> {
        let executing = self.executing.values().filter_map(|it| match it {
            Executing::Request { parked, .. } => Some(parked),
            _ => None,
        });
        executing.chain(&self.parked)
    }

    /// Whether a directory is to be listed again, with files that other sessions owned.
    fn lists_again(&self) -> bool {
        self.requests().any(|it| {
            matches!(*it.operation, Operation::ReadDirectory { .. }) && it.targets.is_some()
        })
    }

    /// Whether another session is about to be told where the data of a file is. It keeps that, and would not learn of writes that
    /// the owner answers.
    fn is_laid_out(&self, session: u64, inode: u64) -> bool {
        self.requests().any(|it| {
            let is_of_other = it.session != session;
            matches!(&*it.operation, Operation::Layout { file, .. } if is_of_other && file.inode == inode)
        })
    }

    /// Owners are not late with writes that wait here: for room, or for members.
    fn note_waiting_writes(&mut self, deadline: u64) {
        let is_write = |it: &&Parked| matches!(*it.operation, Operation::Write { .. });
        let writes = self.requests().filter(is_write);
        let writes = writes.filter_map(|it| Some((it.session, it.operation.file()?.inode)));
        for (session, inode) in writes.collect::<Vec<_>>() {
            self.owners.wrote(session, inode, deadline);
        }
    }
}

impl Member {
    /// Recalls files that others own, for a request that concerns them. Returns the request if it can be begun; otherwise it is
    /// kept. A session that does not answer in time is not heard any more.
    pub(super) fn recall_owned(&mut self, now: u64, parked: Parked) -> Option<Parked> {
        let resend_ns = (!self.options.reliable).then_some(self.options.retry_ns);
        let times = (self.options.lease_ns, resend_ns);
        let is_query = !parked.operation.is_change();
        if is_query && self.defects.has(Defect::ReadOwned)
            || parked.wants_lease && !is_query && self.defects.has(Defect::GrantOwned)
        {
            return Some(parked);
        }
        let drops = self.defects.has(Defect::DropOwner);
        let primary = self.primary()?;
        match primary.owner_obstacle(now, &parked, times) {
            None => Some(parked),
            Some(Obstacle::Names) => {
                let ticket: Ticket = primary.ticket();
                let names = names(&parked.operation);
                let resolving = Executing::Resolve { parked };
                primary.executing.insert(ticket, resolving);
                self.out
                    .intents
                    .push_back(Intent::Resolve { ticket, names });
                None
            }
            Some(Obstacle::Owned(inodes, owned)) => {
                primary.next_tick = primary.next_tick.min(owned.next);
                primary.leases.close(&inodes);
                primary.parked.push_back(parked);
                let sessions = &primary.sessions.by_number;
                let has_ended = |session: &&u64| drops || !sessions.contains_key(session);
                owned
                    .overdue
                    .iter()
                    .filter(has_ended)
                    .for_each(|it| primary.owners.forget(*it));
                self.send_recalls(owned.recalls);
                None
            }
        }
    }

    /// A directory was listed with the attributes of files that others own: it is listed again, once they are recalled.
    pub(super) fn keep_listing(&mut self, parked: &Parked, outcome: &Outcome) -> bool {
        let ignores = self.defects.has(Defect::ReadOwned);
        let Some(primary) = self.primary() else {
            return false;
        };
        let listed = shown(&parked.operation, outcome).listed;
        let mut inodes = listed.iter();
        let session = parked.session;
        if ignores || !inodes.any(|inode| primary.owners.has_other(session, *inode)) {
            return false;
        }
        let begun = primary.begun;
        let inodes = listed;
        primary.parked.push_back(Parked {
            targets: Some(Targets { inodes, begun }),
            ..parked.clone()
        });
        true
    }

    /// The lease for writing that goes out with the answer to a write.
    pub(super) fn grant_writing(&mut self, now: u64, parked: &Parked, outcome: &Outcome) -> Grant {
        let (lease_ns, drift) = (self.options.lease_ns, self.options.drift_permille);
        let ignores = self.defects.has(Defect::GrantOwned);
        let Some(primary) = self.primary() else {
            return Grant::default();
        };
        let Operation::Write { file, .. } = &*parked.operation else {
            return Grant::default();
        };
        let (session, inode) = (parked.session, file.inode);
        primary.owners.wrote(session, inode, now + lease_ns);
        let lasts = primary.valid_ns(now).min(lease_ns);
        let is_shared = primary.leases.is_held_by_others(now, session, inode)
            || primary.leases.is_closed(inode)
            || primary.is_changing(inode)
            || primary.lists_again()
            || primary.is_laid_out(session, inode);
        if !parked.wants_lease || !outcome.is_done() || lasts == 0 || is_shared && !ignores {
            return Grant::default();
        }
        let number = primary.leases.next_number();
        let granted = primary.owners.grant(session, inode, (number, now + lasts));
        if !granted {
            let leases = &mut primary.leases;
            let asker = (now, session);
            let recall = primary
                .owners
                .make_room(asker, lease_ns, || leases.next_number());
            self.send_recalls(recall.into_iter().collect());
        }
        match granted || ignores {
            true => Grant {
                number,
                lasts_ns: lasts - lasts * drift / 1000,
                covers: Covers {
                    owned: true,
                    ..Covers::default()
                },
            },
            false => Grant::default(),
        }
    }

    /// A session that resumes may have answered writes to these files: it owns them under this primary, too.
    pub(super) fn reclaim_owned(&mut self, now: u64, session: u64, owned: &[u64]) {
        let lease_ns = self.options.lease_ns;
        if self.defects.has(Defect::ForgetOwners) {
            return;
        }
        let Some(primary) = self.primary().filter(|it| it.replaying.is_some()) else {
            return;
        };
        for inode in owned {
            let number = primary.leases.next_number();
            let lease = (number, now + lease_ns);
            primary.owners.grant(session, *inode, lease);
        }
    }
}
