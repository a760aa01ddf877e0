//! Rules of the protocol that tests break on purpose, to see that the simulation notices.

/// A rule of the protocol that a test breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Defect {
    /// A half reconstructed from parity is accepted without its checksum.
    RepairWithoutCheck,
    /// Metadata is acknowledged when the primary has it.
    AcknowledgeBeforeTails,
    /// fsync returns when the primary has it.
    SyncBeforeTails,
    /// A read shows changes that the other members do not have yet.
    ReadBeforeTails,
    /// Messages of another epoch, or of a primary that is none any more, are taken.
    SkipEpochCheck,
    /// A replica reports records that are not persistent there.
    ReportBeforeIngest,
    /// A replica never asks for records that it missed.
    DropGapRequest,
    /// The primary serves though a member's lease has expired.
    ServeWithoutLease,
    /// A member promotes itself as soon as it hears nothing for a moment.
    PromoteBeforeLease,
    /// A member that is not in sync promotes itself.
    PromoteOutOfSync,
    /// A member that lost its place starts over without undoing the records that the unit lacks.
    KeepForeignRecords,
    /// A rejoiner counts as in sync as soon as it asks.
    InSyncTooEarly,
    /// Refill hands out bytes that only the primary has.
    RefillBeforeTails,
    /// A member is removed before the map is changed.
    OmitBeforeMap,
    /// A primary counts a pause of its own as silence of members.
    CountPauses,
    /// A primary counts a pause of its own as silence of sessions.
    ExpirePaused,
    /// A primary forgets at each pause of its own how long members were silent before.
    ForgiveSilence,
    /// A primary that was paused serves by the time that it has read before.
    ServeByOldTime,
    /// A client that was paused relies on its leases by the time that it has read before.
    TrustOldTime,
    /// A primary without answers from most members leaves them out after one lease.
    RemoveUnheard,
    /// A repeated request is executed again.
    ForgetSlots,
    /// Slots are kept in memory only, so that a takeover forgets them.
    ForgetSlotsAtTakeover,
    /// Clients do not replay unconfirmed writes.
    ForgetUnconfirmed,
    /// Replays are executed as they arrive, not in their original order.
    ReplayOutOfOrder,
    /// The new primary serves before all sessions have replayed.
    ServeBeforeReplay,
    /// An expired session continues when it is heard from again.
    ReviveSession,
    /// Locks survive their session's end only in the old primary's memory.
    ForgetLocksAtTakeover,
    /// A reply of an old epoch is accepted.
    AcceptOldReply,
    /// Freed blocks are used again at once.
    ReuseBeforeTails,
    /// Sessions expire without a record, so the next primary knows them.
    ExpireInMemory,
    /// A process that starts does not keep the promise that the one before it may have given.
    ForgetPromiseAtRestart,
    /// The primary makes records however far the members are behind.
    WindowUnbounded,
    /// The primary sends data with records however much of it a member does not report.
    PushUnbounded,
    /// Data that a record only names is changed in place before the members have fetched it.
    ChangeNamedData,
    /// A member that has proposed itself still grants leases.
    GrantWhileProposing,
    /// A member that has metadata only promotes itself.
    PromoteMetadataOnly,
    /// A full member takes records without the data that they name.
    CountBeforeData,
    /// Blocks become a part of a file though they may hold something else.
    CommitWithoutCheck,
    /// A client commits though a write may still be on its way.
    CommitBeforeCompletion,
    /// A client fills blocks again though a write into them may still be on its way.
    RefillBeforeCompletion,
    /// A transfer that comes again lands again.
    LandAgain,
    /// Blocks are granted when only the primary has the record.
    GrantBeforeTails,
    /// A client returns blocks into which a transfer may be in flight.
    ReturnUnsettled,
    /// A client requests blocks before its return of the grant is answered.
    AskWhileReturning,
    /// A client keeps a grant that it does not use.
    KeepUnusedGrants,
    /// The blocks of an ended session are freed before its keys are closed.
    ForgetQuarantine,
    /// A new primary frees the blocks of ended sessions at once.
    ForgetQuarantineAtTakeover,
    /// Members report that a key is closed, and leave it open.
    KeepKeys,
    /// Data is considered current without checking the version.
    IgnoreVersion,
    /// Data is considered right without checking the checksums.
    IgnoreChecksums,
    /// Layouts show changes that the other members do not have yet.
    LayoutBeforeTails,
    /// Layouts are relied on though there may be another primary.
    IgnoreValidity,
    /// Layouts are relied on without the version word after their lease has ended.
    ReadAfterLease,
    /// Layouts are relied on without the version word under a lease that began after theirs had ended.
    ReadUnderLaterLease,
    /// Layouts are relied on without the version word though the session has changed the file.
    ForgetOwnChanges,
    /// Data that was copied at once counts without a check after the copy.
    SkipCheckAtOnce,
    /// A write that is refused after it was answered is forgotten.
    ForgetRefused,
    /// A reserved lock is granted to another owner.
    GrantReservedLock,
    /// A wait is kept though its owner would wait for itself.
    ForgetCircles,
    /// A late request for a wait that has ended begins it again.
    KeepEndedWaits,
    /// A new wait comes before those that are there.
    PutWaitsFirst,
    /// A client does not repeat its waits for locks.
    ForgetWaits,
    /// A new primary does not hold the files that sessions held.
    ForgetHolds,
    /// A pool that was only formatted follows as if it had the unit's initial contents.
    TrustBlankPool,
    /// A change is executed when its recalls were sent.
    ChangeBeforeRecall,
    /// Leases are granted while a change waits for its recalls.
    GrantDuringChange,
    /// An answer that is given again grants leases of what it showed first.
    GrantWithRepeatedAnswer,
    /// A lease is granted for longer than the primary's own leases last.
    GrantBeyondLease,
    /// A client counts the time of a lease from the arrival of the reply.
    CountLeaseFromReply,
    /// A grant counts that was made before a recall and arrives after it.
    IgnoreOvertaking,
    /// A recall is answered before the caches have dropped their contents.
    AnswerBeforeInvalidation,
    /// A recall is answered while the caches drop their contents for an earlier one.
    AnswerDuringInvalidation,
    /// Caches keep the names that are not there when a directory is recalled.
    KeepMissingNames,
    /// A name is made without a recall of its directory.
    CreateWithoutRecall,
    /// An answer to a recall ends also leases that were granted later.
    AnswerEndsNewLease,
    /// A late renewal begins a lease again that has ended.
    ReviveLease,
    /// The primary answers a renewal and keeps the former end of the lease.
    ForgetRenewal,
    /// A lease is renewed for longer than the primary's own leases last.
    RenewBeyondLease,
    /// When there are too many leases the primary forgets one, and does not recall it.
    ForgetLease,
    /// Pages of a file are kept though its attributes show another version.
    KeepOldPages,
    /// Attributes with another version are shown before pages are dropped.
    DropPagesAfterAnswer,
    /// Data that was read ahead is used though the file has another version now.
    UseOldWindow,
    /// Data that was read ahead is used without a lease of the file.
    UseWindowAfterLease,
    /// A client forgets the unconfirmed writes of a session that has ended.
    ForgetLeftBehind,
    /// A file is granted for writing though another session owns it.
    GrantOwned,
    /// Reads show a file that another session owns without a recall.
    ReadOwned,
    /// The lease for writing of a session that does not answer ends, and not its session.
    DropOwner,
    /// A new primary does not know the files that sessions own.
    ForgetOwners,
    /// A client answers the recall of a file that it owns before it has sent what it answered.
    AnswerBeforeFlush,
    /// What was answered under a lease for writing is dropped with the lease.
    DropAnswered,
    /// Reads of a session do not show what it has answered and not sent.
    SkipAnswered,
    /// Writes are answered after the lease for writing has ended.
    AnswerAfterLease,
    /// What was answered in a session that has ended is sent in the next.
    FlushInNextSession,
    /// Data that came with records is taken though this member has the records.
    TakeOldData,
    /// Data that came with records is taken by a member that is not in sync.
    TakeDataOutOfSync,
    /// A frame of a group counts though its MAC is wrong.
    AcceptForgedFrame,
    /// A frame of a group that came before counts again.
    AcceptReplayedFrame,
    /// A receiver does not ask for frames that it lacks.
    ForgetMissingFrame,
    /// The sender does not name the last frame that it sent.
    ForgetTailOfStream,
    /// The sender drops frames when one member has them.
    TrimEarly,
    /// The answer to a change waits for the record before its own.
    TakeNeighboursPosition,
    /// A member is refilled by a primary with a longer image, before its own has grown.
    RefillBeforeGrowth,
    /// The image grows though a member in sync has no room for it.
    GrowBeforeRoom,
    /// Only the primary extends its image when the map says so.
    GrowPrimaryOnly,
    /// A new primary gives time stamps of its own clock, though the former one's was ahead.
    StampByOwnClock,
    /// A local read is answered though a member may lack what it shows.
    LocalReadBeforeTails,
    /// A local read shows a file that another session owns.
    LocalReadOwned,
    /// A local read is executed before the writes that clients replay.
    LocalReadBeforeReplay,
    /// The primary makes records however far a member is behind that is refilled.
    OutrunRefill,
}

impl Defect {
    /// All that the simulation of a unit finds.
    pub const ALL: [Defect; 91] = [
        Defect::TakeNeighboursPosition,
        Defect::LocalReadBeforeTails,
        Defect::RepairWithoutCheck,
        Defect::AcknowledgeBeforeTails,
        Defect::SyncBeforeTails,
        Defect::ReadBeforeTails,
        Defect::SkipEpochCheck,
        Defect::ReportBeforeIngest,
        Defect::DropGapRequest,
        Defect::ServeWithoutLease,
        Defect::PromoteBeforeLease,
        Defect::PromoteOutOfSync,
        Defect::KeepForeignRecords,
        Defect::InSyncTooEarly,
        Defect::RefillBeforeTails,
        Defect::OmitBeforeMap,
        Defect::ForgetSlots,
        Defect::ForgetSlotsAtTakeover,
        Defect::ForgetUnconfirmed,
        Defect::ReplayOutOfOrder,
        Defect::ServeBeforeReplay,
        Defect::ReviveSession,
        Defect::ForgetLocksAtTakeover,
        Defect::AcceptOldReply,
        Defect::ReuseBeforeTails,
        Defect::ExpireInMemory,
        Defect::ForgetPromiseAtRestart,
        Defect::WindowUnbounded,
        Defect::PushUnbounded,
        Defect::ChangeNamedData,
        Defect::GrantWhileProposing,
        Defect::PromoteMetadataOnly,
        Defect::CountBeforeData,
        Defect::CommitWithoutCheck,
        Defect::CommitBeforeCompletion,
        Defect::RefillBeforeCompletion,
        Defect::LandAgain,
        Defect::GrantBeforeTails,
        Defect::ReturnUnsettled,
        Defect::AskWhileReturning,
        Defect::KeepUnusedGrants,
        Defect::ForgetQuarantine,
        Defect::ForgetQuarantineAtTakeover,
        Defect::KeepKeys,
        Defect::IgnoreVersion,
        Defect::IgnoreChecksums,
        Defect::LayoutBeforeTails,
        Defect::IgnoreValidity,
        Defect::ReadAfterLease,
        Defect::ReadUnderLaterLease,
        Defect::ForgetOwnChanges,
        Defect::SkipCheckAtOnce,
        Defect::ForgetRefused,
        Defect::ForgetHolds,
        Defect::GrantReservedLock,
        Defect::ForgetCircles,
        Defect::KeepEndedWaits,
        Defect::PutWaitsFirst,
        Defect::ForgetWaits,
        Defect::TrustBlankPool,
        Defect::ChangeBeforeRecall,
        Defect::GrantDuringChange,
        Defect::GrantWithRepeatedAnswer,
        Defect::GrantBeyondLease,
        Defect::IgnoreOvertaking,
        Defect::AnswerBeforeInvalidation,
        Defect::KeepMissingNames,
        Defect::CreateWithoutRecall,
        Defect::AnswerEndsNewLease,
        Defect::ReviveLease,
        Defect::ForgetRenewal,
        Defect::RenewBeyondLease,
        Defect::ForgetLease,
        Defect::KeepOldPages,
        Defect::DropPagesAfterAnswer,
        Defect::UseOldWindow,
        Defect::UseWindowAfterLease,
        Defect::ForgetLeftBehind,
        Defect::GrantOwned,
        Defect::ReadOwned,
        Defect::DropOwner,
        Defect::ForgetOwners,
        Defect::AnswerBeforeFlush,
        Defect::DropAnswered,
        Defect::SkipAnswered,
        Defect::AnswerAfterLease,
        Defect::FlushInNextSession,
        Defect::LocalReadOwned,
        Defect::StampByOwnClock,
        Defect::ServeByOldTime,
        Defect::TrustOldTime,
    ];

    /// Those that only runs without faults find.
    pub const OF_QUIET_RUNS: [Defect; 1] = [Defect::AnswerDuringInvalidation];

    /// Those that only runs in which the unit grows find: `lab/tests/growing.rs`.
    pub const OF_GROWTH: [Defect; 3] = [
        Defect::RefillBeforeGrowth,
        Defect::GrowBeforeRoom,
        Defect::GrowPrimaryOnly,
    ];

    /// Those that only units with clients that write all the time find: `lab/tests/refill.rs`.
    pub const OF_LOAD: [Defect; 1] = [Defect::OutrunRefill];

    /// Those that only units show in which messages to the primary are late: `lab/tests/cluster.rs`.
    pub const OF_LATE_MEMBERS: [Defect; 1] = [Defect::CountLeaseFromReply];

    /// Those that only members show that are cut off from all but the membership service: `lab/tests/cluster.rs`.
    pub const OF_CUTS: [Defect; 1] = [Defect::RemoveUnheard];

    /// Those that only units show in which processes are stopped, and nothing else happens: `lab/tests/pauses.rs`.
    pub const OF_PAUSES: [Defect; 3] = [
        Defect::CountPauses,
        Defect::ExpirePaused,
        Defect::ForgiveSilence,
    ];

    /// Those of frames, which only streams show. `lab/tests/groups.rs` finds them, and those of shipments.
    pub const OF_FRAMES: [Defect; 5] = [
        Defect::AcceptForgedFrame,
        Defect::AcceptReplayedFrame,
        Defect::ForgetMissingFrame,
        Defect::ForgetTailOfStream,
        Defect::TrimEarly,
    ];
}

/// The rules that are broken. Without the feature `defects` none can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    #[cfg(feature = "defects")]
    broken: Vec<Defect>,
}

impl Defects {
    /// Returns a set with one broken rule.
    #[cfg(feature = "defects")]
    pub fn of(defect: Defect) -> Defects {
        Defects {
            broken: vec![defect],
        }
    }

    /// Whether this rule is broken.
    #[inline]
    pub fn has(&self, defect: Defect) -> bool {
        #[cfg(feature = "defects")]
        return self.broken.contains(&defect);
        #[cfg(not(feature = "defects"))]
        {
            let _ = defect;
            false
        }
    }
}
