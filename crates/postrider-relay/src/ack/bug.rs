//! Bugs that tests inject, to show that `sim` detects them. Outside tests [`injected`] is the constant `false`.

/// A broken invariant: each changes one line of `ack`, `relay`, `claims`, `engine` or `published`.
#[cfg_attr(not(test), expect(dead_code, reason = "some are only asked for in tests"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// One unresolved transaction is confirmed.
    ConfirmsOneEarly,
    /// An unknown outcome counts as acknowledged.
    UnknownIsAcked,
    /// An event counts as acknowledged after some time.
    TimeOutIsAcked,
    /// The position of a keepalive is confirmed while a ticket before it is unresolved.
    KeepaliveConfirms,
    /// The changes of a transaction count as resolved once they are sent.
    PartialCountsSent,
    /// A parked event is resolved before its row is committed.
    ParkedBeforeCommit,
    /// Events other than the head of a lane are attempted.
    AttemptsOutOfOrder,
    /// A lane is unblocked before the statuses of its rows are committed.
    UnblocksBeforeStatuses,
    /// A row status that was left out of a write counts as committed.
    ForgetsDeferredStatuses,
    /// Later row statuses of a lane do not wait for one that was left out of a write.
    StatusesPassDeferred,
    /// A report of an earlier session resolves a ticket of this session.
    ForgetsSessions,
    /// After a failure only the failed events are sent again.
    ResendsOnlyFailed,
    /// The position is confirmed when the cursor row is sent, not when it is committed.
    ConfirmsBeforeRow,
    /// The refusal of a batch counts for each event in it.
    BlamesWholeBatch,
    /// A head is attempted before the stream has passed it.
    AttemptsAhead,
    /// A head is attempted when the stream has passed it, but the cursor row has not.
    AttemptsAboveCursor,
    /// Skipped and published parked events are not remembered.
    ForgetsTombstones,
    /// An event is attempted before its row is committed.
    AttemptsUncommitted,
    /// That another process has owned the pipeline meanwhile is ignored.
    IgnoresOtherOwner,
    /// Uncommitted parked events survive another owner.
    KeepsPending,
    /// The bounds on the events in flight are ignored.
    NoBound,
    /// Parked rows that the stream has not reached again close the intake.
    FullBlocksRepeats,
    /// A suspect is sent while attempts are in flight.
    SuspectNotExclusive,
    /// A large event, which has a producer of its own, is sent while other events are in flight.
    LargeNotExclusive,
    /// A drain waits for a write whose answer was discarded.
    DrainForgetsWrite,
    /// Strict order is ignored.
    NotStrict,
    /// The sink commits while events of its transaction are not reported.
    CommitsUnsettled,
    /// An event of a transaction is resolved by its report.
    ResolvesAtReport,
    /// What the sink has committed before is not asked for.
    ForgetsRecovery,
    /// The parked events that the last transaction has published are attempted again.
    ForgetsCommittedAttempts,
    /// The progress that a commit stores is that of the commit before it.
    StoresOldProgress,
    /// A commit lists only the parked events of its own transaction.
    ListsOnlyLastAttempts,
    /// The cursor row does not wait until the sink has stored its progress.
    CursorPassesSink,
    /// The answer to an earlier call of the sink counts as that to the last one.
    TakesOldAnswers,
    /// A recovery is not followed by a write that only the owner can make.
    TrustsRecovery,
    /// An event of a transaction is resolved when it is handed over to the sink.
    ResolvesAtSend,
    /// The events of a transaction are resolved when its commit is called.
    ResolvesAtCommitCall,
    /// Events are handed over while a commit is not answered.
    AdmitsDuringCommit,
    /// A commit whose answer is lost counts as done.
    UnknownIsCommitted,
    /// A commit whose answer is lost counts as not done: what the sink has stored is not compared with it.
    UnknownIsNotCommitted,
    /// The progress is read before former producers are fenced off. A hook of the fake sink, as are the next five.
    ReadsBeforeFencing,
    /// The progress is read although a commit is not visible to readers yet.
    ReadsBeforeStableEnd,
    /// The progress is stored although its transaction is not committed.
    ProgressOutsideTransaction,
    /// The producer goes on after the brokers have aborted its transaction, and commits what it has sent since.
    CommitsAfterTimeOut,
    /// The producer goes on after a commit that was sent twice.
    KeepsProducerSentTwice,
    /// The commit of a producer that was fenced off is executed.
    CommitsFenced,
    /// That an event was overtaken is forgotten.
    ForgetsOvertaken,
    /// The publication of an overtaken event is not reported as such.
    OvertakenUnreported,
    /// A claimed row that was fed counts as acknowledged when its claim is settled.
    SettlesBeforeAck,
    /// A row is settled although an earlier row of its aggregate is open.
    SettlesPastOpenRow,
    /// Acknowledgements of claimed rows are kept when the claim is fed again from its beginning.
    KeepsAcksOnRewind,
    /// A part of a claim is settled although an event is parked behind an open row.
    SettlesPartBehindParked,
    /// A claim that was given up counts as one that has taken every row.
    GivenUpCountsDrained,
    /// A hand-over ends although its last claim began before the slot existed.
    HandsOverBeforeSlot,
    /// Polled ids are skipped although the stream has repeated an event of their aggregate.
    PolledIdsIgnoreRepeats,
    /// Polled ids are kept although another process has owned the pipeline meanwhile.
    PolledIdsSurviveOwner,
    /// The statuses of events that were parked earlier are written in the transaction of the claim. The driver of the
    /// simulation asks for this one, where it performs `ClaimEffect::Park`.
    StatusesInClaim,
    /// The position of a claim is not above the claim before it.
    ClaimPositionStays,
    /// A parked event of a claim may be retried before the claim is committed.
    RetriesBeforeClaimCommits,
    /// Requeued events are not removed from the parked events that the relay gets.
    RequeuedReachRelay,
    /// The cursor row passes an event whose row status is not written.
    CursorPassesUnmarked,
    /// Whether an event has expired is decided although it is parked and requeued.
    ExpiresRequeued,
    /// A slot that the job of an earlier owner has created is used without binding the cursor row to it. A hook of the
    /// fake server.
    SlotIsNotBound,
    /// A claim gives a row the status of an expired one although its event is parked, and waits to be requeued.
    ClaimsExpireParked,
    /// An event that an earlier page of a repair has parked again keeps the later events of its aggregate at their
    /// earlier positions. A hook of the fake server.
    ListedStaysBeforeClaimed,
    /// When the cursor row is bound to a new slot, the operators' decisions on parked events whose rows polling still
    /// claims are forgotten. A hook of the fake server.
    ForgetsDecided,
    /// A stream publishes an event that an operator has skipped, or replaced, while the table was polled.
    PublishesWithdrawn,
}

#[cfg(test)]
thread_local! {
    static INJECTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Injects a bug on this thread, or none.
#[cfg(test)]
pub(crate) fn inject(bug: Option<Bug>) {
    INJECTED.set(bug);
}

/// Whether this bug is injected.
#[cfg(test)]
pub(crate) fn injected(bug: Bug) -> bool {
    INJECTED.get() == Some(bug)
}

/// Always false outside tests.
#[cfg(not(test))]
#[inline]
pub(crate) const fn injected(_: Bug) -> bool {
    false
}
