//! Ways to break an invariant on purpose, so that `sim` can be seen to notice. None of it is in a build that runs.

/// A broken invariant, one line of `ack` or `relay` each.
#[cfg_attr(not(test), expect(dead_code, reason = "some are only asked for in tests"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// One transaction is confirmed that is not resolved.
    ConfirmsOneEarly,
    /// No answer counts as a yes.
    UnknownIsAcked,
    /// Time that passes counts as a yes.
    TimeOutIsAcked,
    /// A keepalive is confirmed while something before it is unresolved.
    KeepaliveConfirms,
    /// Of a transaction, what was sent counts as resolved.
    PartialCountsSent,
    /// A parked event is resolved before its row is committed.
    ParkedBeforeCommit,
    /// Not only the head of a lane is tried.
    TriesOutOfOrder,
    /// A lane is live before its marks are committed.
    LiveBeforeMarks,
    /// A mark that was left out of a write counts as committed.
    ForgetsLeftMarks,
    /// Later marks of a lane do not wait for one that was left out.
    MarksPassLeftOnes,
    /// A report of an earlier session resolves a ticket of this one.
    ForgetsSessions,
    /// After a failure only what failed is sent again.
    ResendsTheFailed,
    /// The position is confirmed when the cursor row is sent, not when it is written.
    ConfirmsBeforeRow,
    /// A refused batch counts against each event in it.
    BlamesTheInnocent,
    /// A head is tried before the stream has passed it.
    TriesAhead,
    /// A head is tried when the stream has passed it, and the cursor row has not.
    TriesAboveRow,
    /// What was given up by a person is not remembered.
    ForgetsTombstones,
    /// A row is tried before it is committed.
    TriesUncommitted,
    /// What another owner did meanwhile does not count.
    IgnoresOtherOwner,
    /// What was set aside survives another owner.
    KeepsPending,
    /// The bound on what is in flight does not hold.
    NoBound,
    /// Rows that the stream has not reached again shut it out.
    FullShutsOut,
    /// A suspect is sent beside tries.
    SuspectInCompany,
    /// A large event, which goes through a producer of its own, is sent beside others.
    LargeInCompany,
    /// A drain waits for a write whose answer it has thrown away.
    DrainForgetsWrite,
    /// Strict order is not kept.
    NotStrict,
    /// That an event was overtaken is not remembered.
    ForgetsOvertaken,
    /// An event that was overtaken and is published is not told as such.
    OvertakenUntold,
}

#[cfg(test)]
thread_local! {
    static INJECTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Breaks this from now on, on this thread.
#[cfg(test)]
pub(crate) fn inject(bug: Option<Bug>) {
    INJECTED.set(bug);
}

/// Whether this is broken.
#[cfg(test)]
pub(crate) fn injected(bug: Bug) -> bool {
    INJECTED.get() == Some(bug)
}

/// Whether this is broken: it is not.
#[cfg(not(test))]
#[inline]
pub(crate) const fn injected(_: Bug) -> bool {
    false
}
