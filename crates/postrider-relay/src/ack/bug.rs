//! Bugs that tests inject, to show that `sim` detects them. Outside tests [`injected`] is the constant `false`.

/// A broken invariant: each changes one line of `ack` or `relay`.
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
    /// That an event was overtaken is forgotten.
    ForgetsOvertaken,
    /// The publication of an overtaken event is not reported as such.
    OvertakenUnreported,
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
