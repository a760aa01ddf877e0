//! Leases for what clients keep: granted with the answers to reads, recalled before a change that others would miss.

use super::Member;
use super::intent::{Intent, Ticket};
use super::requests::{Executing, Parked, Targets};
use super::serve::Primary;
use crate::defects::Defect;
use crate::leases::table::Recall;
use crate::leases::{Covers, Grant, changed, changed_names, shown};
use crate::wire::{Body, Operation, Outcome};

/// Reason why a change cannot begin.
enum Obstacle {
    /// The files of its names are not known.
    Names,
    /// Others have leases: these recalls are to be sent, and the change is checked again then.
    Leases(Vec<u64>, Vec<Recall>, u64),
}

impl Parked {
    /// Whether it changes the files that names lead to.
    fn changes_targets(&self) -> bool {
        matches!(
            *self.operation,
            Operation::Unlink { .. } | Operation::RemoveDirectory { .. } | Operation::Rename { .. }
        )
    }

    fn has_unknown_targets(&self) -> bool {
        self.changes_targets() && self.targets.is_none()
    }

    /// The inodes that it changes, as far as they are known.
    fn changed(&self) -> Vec<u64> {
        let mut inodes = changed(&self.operation);
        let targets = self.targets.iter().flat_map(|it| &it.inodes);
        inodes.extend(targets);
        inodes
    }
}

impl Primary {
    fn obstacle(&mut self, now: u64, parked: &Parked, resend_ns: Option<u64>) -> Option<Obstacle> {
        if !parked.operation.is_change() || !self.leases.has_others(parked.session) {
            return None;
        }
        let session = self.sessions.by_number.get(&parked.session);
        let slot = session.and_then(|it| it.slots.get(usize::from(parked.slot)));
        // One that was begun before gets the first answer.
        if slot.is_none_or(|slot| parked.request <= slot.request) {
            return None;
        }
        let has_names = parked.changes_targets();
        let is_known = |it: &Targets| it.begun == self.begun;
        if has_names && !parked.targets.as_ref().is_some_and(is_known) {
            return Some(Obstacle::Names);
        }
        let inodes = parked.changed();
        let (recalls, next) = self
            .leases
            .recall(now, parked.session, &inodes, resend_ns)?;
        Some(Obstacle::Leases(inodes, recalls, next))
    }

    /// Whether a change that was begun may not have been executed yet, on this inode.
    pub(super) fn is_changing(&self, inode: u64) -> bool {
        self.executing.values().any(|it| match it {
            // Names that were not looked up, as no other session had leases then, may lead to any inode.
            Executing::Request { parked, .. } => {
                parked.operation.is_change()
                    && (parked.has_unknown_targets() || parked.changed().contains(&inode))
            }
            _ => false,
        })
    }
}

impl Member {
    /// Recalls the leases that are in the way of a change. Returns the request if it can be begun; otherwise it is kept.
    pub(super) fn recall_for(&mut self, now: u64, parked: Parked) -> Option<Parked> {
        let resend_ns = (!self.options.reliable).then_some(self.options.retry_ns);
        let waits = !self.defects.has(Defect::ChangeBeforeRecall);
        let is_create = matches!(*parked.operation, Operation::Create { .. });
        if is_create && self.defects.has(Defect::CreateWithoutRecall) {
            return Some(parked);
        }
        let primary = self.primary()?;
        match primary.obstacle(now, &parked, resend_ns) {
            None => Some(parked),
            Some(Obstacle::Names) => {
                let ticket = primary.ticket();
                let names = changed_names(&parked.operation);
                primary
                    .executing
                    .insert(ticket, Executing::Resolve { parked });
                self.out
                    .intents
                    .push_back(Intent::Resolve { ticket, names });
                None
            }
            Some(Obstacle::Leases(inodes, recalls, next)) => {
                primary.next_tick = primary.next_tick.min(next);
                primary.leases.close(&inodes);
                let begins = (!waits).then(|| parked.clone());
                if waits {
                    primary.parked.push_back(parked);
                }
                self.send_recalls(recalls);
                begins
            }
        }
    }

    /// The names of a change were looked up.
    pub(super) fn resolved(&mut self, now: u64, ticket: Ticket, inodes: Vec<u64>) {
        let Some(primary) = self.primary() else {
            return;
        };
        if let Some(Executing::Resolve { mut parked }) = primary.executing.remove(&ticket) {
            let begun = primary.begun;
            parked.targets = Some(Targets { inodes, begun });
            primary.park(parked);
            self.serve_parked(now);
        }
    }

    pub(super) fn send_recalls(&mut self, recalls: Vec<Recall>) {
        for Recall {
            session,
            inode,
            number,
        } in recalls
        {
            let sessions = self.primary().map(|it| &it.sessions.by_number);
            let client = sessions.and_then(|it| it.get(&session)).map(|it| it.client);
            if let Some(client) = client {
                self.tell_client(client, session, 0, Body::Recall { inode, number });
            }
        }
    }

    /// A client has answered a recall.
    pub(super) fn recall_answered(&mut self, now: u64, session: u64, inode: u64, number: u64) {
        let ends_all = self.defects.has(Defect::AnswerEndsNewLease);
        if let Some(primary) = self.primary() {
            let number = if ends_all { u64::MAX } else { number };
            primary.leases.answered(session, inode, number);
            primary.owners.answered(session, inode, number);
        }
        self.serve_parked(now);
    }

    /// Extends the leases that a session asks for. The answer lists them.
    pub(super) fn renew(&mut self, now: u64, session: u64, request: u64, mut inodes: Vec<u64>) {
        let (lease_ns, drift) = (self.options.lease_ns, self.options.drift_permille);
        let beyond = self.defects.has(Defect::RenewBeyondLease);
        let forgets = self.defects.has(Defect::ForgetRenewal);
        let Some(primary) = self.primary() else {
            return;
        };
        let lasts = match beyond {
            true => 2 * lease_ns,
            false => primary.valid_ns(now).min(lease_ns),
        };
        let until = if forgets { 0 } else { now + lasts };
        inodes.retain(|inode| {
            !primary.leases.is_closed(*inode)
                && !primary.is_changing(*inode)
                && primary.leases.renew(now, (session, *inode), until)
        });
        let client = primary.sessions.by_number.get(&session).map(|it| it.client);
        let Some(client) = client.filter(|_| lasts > 0 && !inodes.is_empty()) else {
            return;
        };
        let lasts_ns = lasts - lasts * drift / 1000;
        self.tell_client(client, session, request, Body::Renewed { lasts_ns, inodes });
    }

    /// The lease that goes out with the answer to a read.
    pub(super) fn grant_for(&mut self, now: u64, parked: &Parked, outcome: &Outcome) -> Grant {
        if matches!(*parked.operation, Operation::Write { .. }) {
            return self.grant_writing(now, parked, outcome);
        }
        let (lease_ns, drift) = (self.options.lease_ns, self.options.drift_permille);
        let most = self.options.leases as usize;
        let closes = !self.defects.has(Defect::GrantDuringChange);
        let forgets = self.defects.has(Defect::ForgetLease);
        let beyond = self.defects.has(Defect::GrantBeyondLease);
        let Some(primary) = self.primary() else {
            return Grant::default();
        };
        let lasts = match beyond {
            true => 2 * lease_ns,
            false => primary.valid_ns(now).min(lease_ns),
        };
        if !parked.wants_lease || lasts == 0 {
            return Grant::default();
        }
        let shown = shown(&parked.operation, outcome);
        let number = primary.leases.next_number();
        let mut recalls = Vec::new();
        let mut grant = |inode: &u64| {
            if closes && (primary.leases.is_closed(*inode) || primary.is_changing(*inode)) {
                return false;
            }
            if primary.owners.has_other(parked.session, *inode) {
                return false;
            }
            let lease = (parked.session, *inode);
            match primary
                .leases
                .grant(now, lease, (number, now + lasts), most)
            {
                Ok(()) => true,
                Err(recall) => {
                    recalls.extend(recall);
                    false
                }
            }
        };
        let covers = Covers {
            subject: shown.subject.as_ref().is_some_and(&mut grant),
            found: shown.found.as_ref().is_some_and(&mut grant),
            listed: !shown.listed.is_empty() && shown.listed.iter().all(&mut grant),
            owned: false,
        };
        if forgets {
            let forgotten = std::mem::take(&mut recalls);
            for it in forgotten {
                primary.leases.answered(it.session, it.inode, it.number);
            }
        }
        self.send_recalls(recalls);
        if covers.is_empty() {
            return Grant::default();
        }
        Grant {
            number,
            lasts_ns: lasts - lasts * drift / 1000,
            covers,
        }
    }
}
