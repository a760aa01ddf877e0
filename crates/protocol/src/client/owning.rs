//! Files that a session owns by leases for writing, and requests that count in one session only.

use super::{Client, Keep, Pending, Ticket};
use crate::defects::Defect;
use crate::leases::{Covers, Grant};
use crate::wire::{Acknowledge, ErrorCode, Operation, Outcome};

/// A lease for writing of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The session that owns the file.
    pub session: u64,
    /// Epoch of the primary, and number of the grant.
    pub number: (u32, u64),
    /// Until then, by this client's clock, writes may be answered before the primary has them.
    pub until: u64,
}

impl Client {
    /// Requests a write, and the lease for writing with its answer: then [`Client::ownership`] has it.
    pub fn submit_owning(
        &mut self,
        now: u64,
        operation: Operation,
        acknowledge: Acknowledge,
    ) -> Ticket {
        let ticket = self.next_number + 1;
        self.owning.insert(ticket);
        self.submit(now, operation, acknowledge);
        if self.active.runs.contains_key(&ticket) {
            // The data does not travel with the request.
            self.owning.remove(&ticket);
        }
        ticket
    }

    /// Requests an operation that counts in this session only: it fails with [`ErrorCode::SessionEnded`] if that has ended.
    pub fn submit_in(
        &mut self,
        now: u64,
        session: u64,
        operation: Operation,
        acknowledge: Acknowledge,
    ) -> Ticket {
        let ignores = self.defects.has(Defect::FlushInNextSession);
        if self.session() == Some(session) || ignores {
            return self.submit_owning(now, operation, acknowledge);
        }
        self.next_number += 1;
        let ticket = self.next_number;
        self.tell_done(ticket, Outcome::failed(ErrorCode::SessionEnded));
        ticket
    }

    /// Whether the request of a write asks for the lease for writing.
    pub(super) fn wants_ownership(pending: &Pending, owning: &super::Owning) -> bool {
        let is_write = matches!(*pending.operation, Operation::Write { .. });
        is_write && owning.contains(&pending.ticket)
    }

    /// Takes the lease for writing in the answer to a write.
    pub(super) fn take_ownership(&mut self, now: u64, pending: &Pending, grant: Grant) -> Keep {
        let asked = self.owning.remove(&pending.ticket);
        let until = pending.asked_at.unwrap_or(0) + grant.lasts_ns;
        let Operation::Write { file, .. } = &*pending.operation else {
            return Keep::default();
        };
        let is_valid = asked && grant.covers.owned && until > now;
        if !is_valid || !self.leases.take_owned(file.inode, grant.number, until) {
            return Keep::default();
        }
        Keep {
            until,
            covers: Covers {
                owned: true,
                ..Covers::default()
            },
        }
    }

    /// Whether the session owns files: recalls of them may come at any time.
    pub fn owns_files(&self) -> bool {
        self.leases.owns_any()
    }

    /// The lease for writing of an inode, if the session owns it.
    pub fn ownership(&self, inode: u64) -> Option<Ownership> {
        let (number, until) = self.leases.ownership(inode)?;
        Some(Ownership {
            session: self.session()?,
            number,
            until,
        })
    }
}
