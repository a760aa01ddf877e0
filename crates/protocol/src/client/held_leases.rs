//! Client caches of outcomes of reads: valid as long as there are leases.

use super::{Client, Event, Pending};
use crate::defects::Defect;
use crate::leases::holder::Step;
use crate::leases::{Covers, Grant, shown};
use crate::wire::{Body, Outcome, RENEWED_MAX};

/// How long the contents of an outcome may be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// End, by this client's clock.
    pub until: u64,
    /// Contents that the lease covers.
    pub covers: Covers,
}

/// A lease that has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Number of the inode.
    pub inode: u64,
    /// Names in this directory may be kept, besides its attributes.
    pub has_entries: bool,
    /// Epoch of the primary that recalls it.
    pub epoch: u32,
    /// Number of the recall in its epoch.
    pub number: u64,
}

impl Client {
    /// Asks for leases from now on. Its user has to call [`Client::invalidated`] after each [`Event::Recalled`].
    pub fn with_leases(mut self) -> Client {
        self.keeps = true;
        self
    }

    /// Asks for leases from now on, or not any more.
    pub fn ask_for_leases(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// When the last lease ends that was granted, by this client's clock.
    pub fn leases_until(&self) -> u64 {
        self.leases.until()
    }

    /// Takes the lease in a reply. Its time counts from when the request was sent for the first time.
    pub(super) fn take_grant(
        &mut self,
        now: u64,
        pending: &Pending,
        outcome: &Outcome,
        grant: Grant,
    ) -> Keep {
        if grant.covers.owned || pending.operation.is_write() {
            return self.take_ownership(now, pending, grant);
        }
        let Some(asked_at) = pending.asked_at.filter(|_| self.keeps && grant.number > 0) else {
            return Keep::default();
        };
        let start = match self.defects.has(Defect::CountLeaseFromReply) {
            true => now,
            false => asked_at,
        };
        let until = start.saturating_add(grant.lasts_ns);
        let believes = self.defects.has(Defect::IgnoreOvertaking);
        let shown = shown(&pending.operation, outcome);
        let covers = self.leases.take(now, &shown, grant, until, believes);
        Keep { until, covers }
    }

    pub(super) fn recalled(&mut self, now: u64, inode: u64, number: u64) {
        let early = self.defects.has(Defect::AnswerBeforeInvalidation);
        let forgets = self.defects.has(Defect::AnswerDuringInvalidation);
        let recall = (inode, number);
        let unsent = self.leases.owns(inode) && self.defects.has(Defect::AnswerBeforeFlush);
        match self
            .leases
            .recall(now, recall, self.options.lease_ns, forgets)
        {
            Step::Answer => self.answer_recall(inode, number),
            Step::Wait => {}
            Step::Invalidate { has_entries } => {
                self.events.push_back(Event::Recalled(Recalled {
                    inode,
                    has_entries,
                    epoch: self.leases.epoch(),
                    number,
                }));
                if early || unsent {
                    self.answer_recall(inode, number);
                }
            }
        }
    }

    /// Asks for more time for the leases of these inodes. [`Event::Renewed`] reports those that were extended.
    pub fn renew(&mut self, now: u64, inodes: &[u64]) {
        let Some(session) = self.session().filter(|_| self.keeps && self.is_resumed) else {
            return;
        };
        let held: Vec<u64> = self.leases.held(now, inodes).collect();
        for part in held.chunks(RENEWED_MAX) {
            let inodes = part.to_vec();
            self.send(session, now, Body::Renew { inodes });
        }
    }

    /// Leases were extended. Their time counts from when that was asked for.
    pub(super) fn renewed(&mut self, now: u64, asked_at: u64, lasts_ns: u64, inodes: Vec<u64>) {
        let until = asked_at.min(now).saturating_add(lasts_ns);
        let revives = self.defects.has(Defect::ReviveLease);
        let inodes = self.leases.renew(now, inodes, until, revives);
        if !inodes.is_empty() {
            self.events.push_back(Event::Renewed { inodes, until });
        }
    }

    /// The caches have dropped the recalled contents.
    pub fn invalidated(&mut self, recalled: Recalled) {
        let Recalled {
            inode,
            epoch,
            number,
            ..
        } = recalled;
        if self.leases.invalidated(inode, (epoch, number)) {
            self.answer_recall(inode, number);
        }
    }

    fn answer_recall(&mut self, inode: u64, number: u64) {
        if let Some(session) = self.session() {
            self.send(session, 0, Body::RecallAnswer { inode, number });
        }
    }
}
