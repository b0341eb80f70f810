//! The inputs and effects of [`Claims`](super::Claims): two closed lists, and the plain data in them.

use crate::relay::{Effect, Restart};
use postrider_core::error::Halt;
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::outbox_rows::{RequeueCandidate, RowOutcome};
use postrider_core::parked::{Entry, Lane, ParkedUpdate, Request};
use postrider_core::timestamp::Timestamp;
use std::time::Duration;

/// The settings of a polling session.
#[derive(Clone, Copy, Debug)]
pub struct ClaimSettings {
    /// Pause before the next claim, if a claim has taken every row.
    pub interval: Duration,
    /// Rows of a claim, while there is no backlog.
    pub batch: usize,
    /// Rows of the largest claim that the reader makes.
    pub rows_max: usize,
    /// Failures are kept in the outbox table itself.
    pub keeps_failures: bool,
    /// What is claimed, and how polling ends.
    pub source: ClaimSource,
}

/// What is claimed, and how polling ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimSource {
    /// The outbox table, until the pipeline is stopped (`mode = "poll"`).
    Table,
    /// The outbox table, until a slot streams what follows (`mode = "auto"`).
    TableUntilSlot {
        /// The slot is dropped first, because it retains too much.
        drops_slot: bool,
        /// The epoch of the previous owner.
        former: i64,
        /// The epoch of this owner.
        epoch: i64,
    },
    /// The list of a repair, until it is empty. Its pages lock no rows.
    List,
}

/// A claimed row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimedRow {
    /// The aggregate, for the order within the claim. Two aggregates with the same hash wait for each other.
    pub key: Lane,
    /// The transaction that wrote the row.
    pub xmin: u32,
    /// The payload was not read, because it is too large.
    pub too_large: bool,
}

/// The answer to [`ClaimEffect::Claim`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewClaim {
    /// The end of the source's log after the rows were seen: every one of them was committed before it.
    pub wal_end: Offset,
    /// The clock of the server at that time.
    pub claimed_at: Timestamp,
    /// The rows, in the order in which they are to be published.
    pub rows: Vec<ClaimedRow>,
    /// There may be more rows to claim immediately.
    pub more: bool,
    /// Number of rows that an earlier row of their aggregate retains, because it is locked, delayed, or has failed.
    pub withheld: u64,
    /// Number of rows that have expired.
    pub expired: u64,
    /// The list of a repair is empty.
    pub drained: bool,
}

/// The parked events as they were read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParkedEvents<'a> {
    /// The rows of the parked table, as for [`Input::Started`](crate::relay::Input::Started).
    pub parked: &'a [Entry],
    /// The requests of operators in those rows.
    pub requests: &'a [(Position, Request)],
    /// Dead events whose records were not sent to the dead-letter topic yet.
    pub dead_unsent: &'a [Position],
}

/// Everything that can happen to [`Claims`](super::Claims).
///
/// An input that answers an effect is applied directly after the effect was performed, and before anything else. An
/// error of the database ends the session: nothing is applied then.
#[derive(Debug)]
pub enum ClaimInput<'a> {
    /// The session has the pipeline's lock, and polling begins.
    Begin,
    /// The answer to [`ClaimEffect::MarkStreamed`].
    Marked,
    /// The answer to [`ClaimEffect::QueryRequeued`].
    RequeuedFound(Vec<RequeueCandidate>),
    /// The answer to [`ClaimEffect::ReadParked`].
    ParkedRead(ParkedEvents<'a>),
    /// The pending effects of the relay are about to be performed, each by [`Self::Relay`]. Effects that the inputs
    /// below cause are performed in the same way.
    RelayEffects,
    /// The next effect of the relay.
    Relay(Effect),
    /// The rows were fed, and all effects of the relay are performed.
    Turn {
        /// Another process has taken over the pipeline, as a write on the control session has found.
        overruled: bool,
        /// A write of [`Effect::WriteParking`] is in progress on the control session.
        writing: bool,
    },
    /// It is time for the next claim ([`Claims::claim_due`](super::Claims::claim_due)), or new rows were announced.
    ClaimDue,
    /// The answer to [`ClaimEffect::Claim`].
    Claimed(NewClaim),
    /// Another answer to [`ClaimEffect::Claim`]: the pipeline is being stopped, and nothing was claimed.
    ClaimStopped,
    /// The answer to [`ClaimEffect::Park`].
    Parked {
        /// This process still owns the pipeline.
        owned: bool,
        /// Parked rows whose status the write left out, as for
        /// [`Input::ParkingWritten`](crate::relay::Input::ParkingWritten).
        locked: &'a [Position],
    },
    /// The answer to [`ClaimEffect::Settle`].
    Settled {
        /// This process still owns the pipeline. If it does not, the claim was given up.
        owned: bool,
        /// As in [`Self::Turn`].
        writing: bool,
    },
    /// The answer to [`ClaimEffect::SettlePart`].
    SettledPart {
        /// As in [`Self::Settled`].
        owned: bool,
        /// The other rows are still in the claim.
        kept: bool,
    },
    /// The answer to [`ClaimEffect::Abandon`].
    Abandoned {
        /// As in [`Self::Turn`].
        writing: bool,
    },
    /// The answer to [`ClaimEffect::KeepOpen`].
    KeptOpen,
    /// It is time for the next step of the hand-over ([`Claims::slot_due`](super::Claims::slot_due)).
    SlotDue,
    /// The answer to [`ClaimEffect::Slot`]. Other inputs may come before it.
    Slot(SlotAnswer),
    /// The answer to [`ClaimEffect::FinishPolling`]: the end of the source's log.
    PollingFinished(Offset),
    /// The answer to [`ClaimEffect::FinishRepair`]. `ended`: the repair has ended, with or without success. It has not
    /// if the pipeline is being stopped.
    RepairFinished {
        /// See above.
        ended: bool,
    },
    /// Time has passed, or a report is due.
    Tick {
        /// No broker accepts records.
        broker_down: bool,
    },
    /// The pipeline ends, and what was in flight is given up: what is acknowledged is settled.
    Exit,
}

/// Everything that [`Claims`](super::Claims) require of their driver, which performs the effects in order.
///
/// An effect that has an answer is the last one of its list, except [`Self::Slot`], whose answer may come later.
#[derive(Debug, PartialEq)]
pub enum ClaimEffect {
    /// An effect of the relay that is performed as while a pipeline streams. [`Effect::WriteParking`] has no new rows.
    Perform(Effect),
    /// Discard the producer and everything in flight, and every record that was kept for parking.
    ResetSink(Restart),
    /// Write the waiting statuses of rows that the stream has published, if their rows are not locked. The answer is
    /// [`ClaimInput::Marked`].
    MarkStreamed,
    /// Find the parked events whose rows are in the table or on the list. The answer is
    /// [`ClaimInput::RequeuedFound`].
    QueryRequeued,
    /// Read the parked events, and forget what the mapper knows of tables. The answer is [`ClaimInput::ParkedRead`].
    ReadParked {
        /// On the session of the claim, which sees what the claim has parked. Otherwise on the control session. The
        /// first time, the rows are those that were read when this process became the owner.
        in_claim: bool,
    },
    /// The relay has started with the parked events. For logs and metrics.
    Started,
    /// Claim rows. Expired rows get their status, and are not among the rows, except those that
    /// [`RequeuedEvents::keeps_expired`](crate::published::RequeuedEvents::keeps_expired). The answer is
    /// [`ClaimInput::Claimed`] or [`ClaimInput::ClaimStopped`].
    Claim {
        /// Number of rows at most. The pages of a list have their own size.
        limit: usize,
        /// Rows that are delayed or have failed are claimed too.
        all: bool,
    },
    /// The claim is accepted: its rows are fed next. For logs and metrics.
    Accepted,
    /// The claim was empty, or all its rows are settled. For logs and metrics.
    Processed,
    /// Park rows in the transaction of the claim. The driver takes the first `rows` records kept for
    /// [`Effect::Park`], and asks [`Claims::to_compare`](super::Claims::to_compare) and
    /// [`Claims::plan_parking`](super::Claims::plan_parking) which of them are written. The statuses belong to events
    /// that were parked earlier: they are written on the control session, before the rows. If they were lost with the
    /// claim, a published event would be retried, after later events of its aggregate whose statuses are committed. The
    /// answer is [`ClaimInput::Parked`].
    Park {
        /// Number of rows.
        rows: usize,
        /// The statuses of events that were parked earlier.
        statuses: Vec<ParkedUpdate>,
    },
    /// If this process still owns the pipeline, which is checked in the transaction of the claim: undo what the claim
    /// has parked from `undo_from` on, write the outcomes, and commit. Otherwise give the claim up. The answer is
    /// [`ClaimInput::Settled`].
    Settle {
        /// One for each row.
        outcomes: Vec<RowOutcome>,
        /// Delete the rows that the claim has parked here and after it, after the moves of `places`.
        undo_from: Option<Position>,
        /// Parked rows that get their position back: the current position, and the one to restore.
        places: Vec<(Position, Position)>,
    },
    /// As [`Self::Settle`], but the claim stays open with the rows `left`. The answer is [`ClaimInput::SettledPart`].
    SettlePart {
        /// One for each row.
        outcomes: Vec<RowOutcome>,
        /// Indexes of the rows that stay.
        left: Vec<usize>,
    },
    /// Roll the claim back, if one is open. The answer is [`ClaimInput::Abandoned`].
    Abandon,
    /// Send a statement on the session of the list, because the server ends a transaction that is idle for too long.
    /// The answer is [`ClaimInput::KeptOpen`].
    KeepOpen,
    /// Make this step for the slot, on a session of its own. The answer is [`ClaimInput::Slot`].
    Slot(SlotStep),
    /// The table is published. Record in the cursor row that polling has ended, then read the end of the source's log.
    /// The answer is [`ClaimInput::PollingFinished`].
    FinishPolling,
    /// The list is published. The answer is [`ClaimInput::RepairFinished`].
    FinishRepair,
    /// The session ends. The effects of the relay that are still pending are performed first.
    Ends(PollEnd),
}

/// How a polling session ends.
#[derive(Debug, PartialEq)]
pub enum PollEnd {
    /// The pipeline was stopped, and everything is resolved.
    Stopped,
    /// The pipeline halts.
    Halted(Box<Halt>),
    /// Everything that the slot does not stream is published.
    Streams,
    /// Another process has taken over the pipeline.
    Overruled,
}

/// What has to be done next about the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotStep {
    /// Drop it: it retains too much WAL.
    Drop,
    /// Create a slot, or take one that exists.
    Create,
    /// The slot exists, and retains WAL until it is streamed from: read how much.
    ReadRetained,
}

/// The answer to a [`SlotStep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotAnswer {
    /// The slot exists, and can be streamed from.
    Usable,
    /// There is no slot any more.
    Dropped,
    /// The slot retains WAL.
    Retains {
        /// More than is allowed: it has to be dropped.
        over_limit: bool,
    },
    /// The step is not possible yet.
    NotYet,
    /// The step has failed, and is repeated later.
    Failed,
}

/// How a row that a claim parks is written into the parked table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrittenAs {
    /// As it is.
    Parked,
    /// Beside the parked event that has its id, with this entry, for a person to decide. `found_now`: it was not
    /// reported yet.
    Undecided {
        /// The content of the row.
        entry: Entry,
        /// See above.
        found_now: bool,
    },
    /// The outbox table keeps its failure, and is done with it. It is written with this entry, so that a crash does not
    /// lose its dead letter.
    DeadLetter {
        /// The content of the row.
        entry: Entry,
    },
}

/// How the rows of [`ClaimEffect::Park`] are written, in the transaction of the claim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParkPlan {
    /// Parked rows that are moved first: the position of each, and its new one. A row that is moved is also among those
    /// that are written, in case it was deleted meanwhile.
    pub moves: Vec<(Position, Position)>,
    /// The rows to write: the index of each among the given ones.
    pub rows: Vec<(usize, WrittenAs)>,
    /// All rows are written as they are.
    pub all_as_they_are: bool,
    /// Rows of the claim whose payload the server copies into the parked table, because it was not read: the index in
    /// the claim, and the position.
    pub payloads: Vec<(usize, Position)>,
}
