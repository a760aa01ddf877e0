//! Client caches of outcomes of reads: valid as long as there are leases.

use super::{Client, Event, Keep, Pending, Recalled};
use crate::defects::Defect;
use crate::leases::holder::Step;
use crate::leases::{Grant, shown};
use crate::wire::{Body, Outcome};

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
                if early {
                    self.answer_recall(inode, number);
                }
            }
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
