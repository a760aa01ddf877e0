//! One member at work: the protocol's state machine and its pool, driven by its host. No threads, no I/O, no clock.
//!
//! ```text
//!   message, map, time ──► Member ──► intents ──► UnitPool or Host ──► completions ─┐
//!                             ▲                                                     │
//!                             └─────────────────────────────────────────────────────┘
//!   out: messages to send, maps to propose, the time of the next time-out
//! ```

use std::collections::VecDeque;
use std::ops::ControlFlow;

use pmem::Region;
use protocol::member::{Completion, Intent};
use protocol::{Defects, Member, NodeId, Outgoing, Transmit, UnitMap, UnitOptions};
use store::Error;

use crate::pool::{PoolError, UnitPool};

/// The environment of a member: it opens memory to transfers, and may observe or stop the member's actions.
pub trait Host {
    /// Executes [`Intent::OpenKey`] and [`Intent::CloseKey`], and breaks with the completion, or without one if it has not
    /// ended: then the member asks again if it matters. Every other intent is for the pool.
    fn access(&mut self, intent: &Intent) -> ControlFlow<Option<Completion>>;

    /// Takes a message that a receiver in this process gets as it is; returns it if it is to be encoded and sent.
    fn keep(&mut self, outgoing: Outgoing) -> Option<Outgoing> {
        Some(outgoing)
    }

    /// Called before the pool executes an intent.
    fn before(&mut self, _member: &Member, _intent: &Intent) {}

    /// Called after the pool has executed an intent. `Break` ends the step: nothing of it leaves the process.
    fn after(&mut self, _member: &Member, _completion: Option<&Completion>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Result of a step.
#[derive(Debug, Default)]
pub struct Output {
    /// Messages to send, in order.
    pub transmits: VecDeque<Transmit>,
    /// Maps to propose to the membership service.
    pub proposals: Vec<UnitMap>,
    /// When [`Member::handle_timeout`] is due.
    pub timeout: Option<u64>,
}

/// An intent that the pool could not execute. The member cannot continue.
#[derive(Debug, thiserror::Error)]
#[error("{intent} failed: {source}")]
pub struct Failed {
    /// Name of the intent.
    pub intent: &'static str,
    /// Cause of the failure.
    pub source: PoolError,
}

/// A member with its pool.
pub struct Core {
    member: Member,
    pool: UnitPool,
}

impl Core {
    /// Opens the pool in the region and starts a member on it.
    ///
    /// # Errors
    /// Those of [`UnitPool::open`].
    pub fn open(
        node: NodeId,
        region: Region,
        store: store::PoolOptions,
        (options, defects): (&UnitOptions, &Defects),
        now: u64,
    ) -> Result<Core, Error> {
        let pool = UnitPool::open(region, store, options)?.with_defects(defects);
        let (tail, history) = pool.position();
        let (mut options, defects) = (options.clone(), defects.clone());
        // The ring must hold the records that a slow member will request, and more.
        options.window = options.window.min(pool.ring_length() / 2);
        options.ring = pool.ring_length();
        options.image = pool.image().end - pool.image().start;
        Ok(Core {
            member: Member::new(node, options, defects, tail, history, now),
            pool,
        })
    }

    /// Returns the state machine of the member.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the pool of the member.
    pub fn pool(&self) -> &UnitPool {
        &self.pool
    }

    /// Gives the member an input and executes its intents until it has none. `None` if the host has ended the step.
    ///
    /// # Errors
    /// [`Failed`]: the pool is damaged or full of something that must not fail; stop the node.
    pub fn step(
        &mut self,
        now: u64,
        host: &mut impl Host,
        input: impl FnOnce(&mut Member, u64),
    ) -> Result<Option<Output>, Failed> {
        let mut proposals = Vec::new();
        input(&mut self.member, now);
        while let Some(intent) = self.member.poll_intent() {
            if let Intent::Propose { map } = intent {
                proposals.push(map);
                continue;
            }
            if let ControlFlow::Break(completion) = host.access(&intent) {
                if let Some(completion) = completion {
                    self.member.handle_completion(now, completion);
                }
                continue;
            }
            host.before(&self.member, &intent);
            let intent_name = name(&intent);
            let executed = self.pool.carry_out(intent);
            let completion = executed.map_err(|source| Failed {
                intent: intent_name,
                source,
            })?;
            if host.after(&self.member, completion.as_ref()).is_break() {
                return Ok(None);
            }
            if let Some(completion) = completion {
                self.member.handle_completion(now, completion);
            }
        }
        let local_reads = self.pool.local_reads();
        local_reads.note_owners(&self.member.owner_changes());
        local_reads.publish(self.member.read_permit(local_reads.session()));
        let outgoing = std::iter::from_fn(|| self.member.poll_outgoing());
        let sent = outgoing.filter_map(|it| host.keep(it));
        Ok(Some(Output {
            transmits: sent.map(Outgoing::encode).collect(),
            proposals,
            timeout: self.member.poll_timeout(),
        }))
    }
}

fn name(intent: &Intent) -> &'static str {
    match intent {
        Intent::Execute { .. } => "executing a request",
        Intent::Resolve { .. } => "looking up the names of a change",
        Intent::NoteLocks { .. } => "recording locks",
        Intent::OpenSession { .. } => "opening a session",
        Intent::EndSession { .. } => "ending a session",
        Intent::RestoreHolds { .. } => "restoring the holds of a session",
        Intent::ReclaimOrphans { .. } => "reclaiming removed files",
        Intent::FreeGrant { .. } => "freeing a grant",
        Intent::OpenKey { .. } => "opening a key",
        Intent::CloseKey { .. } => "closing a key",
        Intent::ReadRecords { .. } => "reading records",
        Intent::ReadImage { .. } => "reading the image",
        Intent::ReleaseFreed { .. } => "releasing freed blocks",
        Intent::Ingest { .. } => "applying records of the primary",
        Intent::TouchedSince { .. } => "finding what records changed",
        Intent::WriteImage { .. } => "writing fetched bytes",
        Intent::Rewind { .. } => "forgetting records",
        Intent::GrowImage { .. } => "growing the pool",
        Intent::OpenForWriting { .. } => "opening the pool for changes",
        Intent::Follow => "closing the pool for changes",
        Intent::Propose { .. } => "proposing a map",
    }
}
