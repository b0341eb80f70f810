//! The inputs and effects of a relay: two closed lists.
//!
//! The pipeline turns everything that happens into an [`Input`], passes it to [`Relay::apply`](super::Relay::apply),
//! and performs the [`Effect`]s in the order in which they are returned.

use super::transaction::Recovered;
use crate::ack::Progress;
use postrider_core::error::Halt;
use postrider_core::event::{Aggregate, Position};
use postrider_core::offset::{Offset, Watermark};
use postrider_core::parked::{Entry, ParkedUpdate, Request};
use postrider_core::record::{Outcome, Refusal, Ticket};
use postrider_core::sink::SinkCall;
use postrider_core::timestamp::Timestamp;
use std::time::Duration;

/// Everything that can happen to a relay.
///
/// Inputs that concern "the event just handed over" are valid only as the next input after the [`Input::Change`] that
/// was answered with [`Effect::Publish`] for their ticket.
#[derive(Debug)]
pub enum Input<'a> {
    /// A stream starts, after the whole handshake. Everything before the first [`Input::Begin`] belongs to the
    /// handshake: the rows in `parked` and `requests` are read after the writes of every other process were fenced off.
    Started {
        /// The cursor row that the stream starts from.
        cursor: Progress,
        /// Whether positions mean what they meant in the previous stream: the same cluster, timeline and slot. They do
        /// not after a failover. The relay then discards everything that it remembers by position.
        same_history: bool,
        /// Whether no other process has owned the pipeline since the previous stream.
        same_owner: bool,
        /// The rows of the parked table, in order of the stream: all unresolved rows, and the resolved rows whose
        /// events the stream may repeat.
        parked: &'a [Entry],
        /// The requests of operators in those rows. They are carried out before any attempt is made.
        requests: &'a [(Position, Request)],
    },
    /// A transaction begins.
    Begin {
        /// The offset of its commit.
        commit: Offset,
        /// When it was committed, by the source's clock.
        commit_time: Timestamp,
    },
    /// The change that [`Relay::upcoming`](super::Relay::upcoming) described.
    Change(Change<'a>),
    /// The sink had no room for the event just handed over. The pipeline passes the event again as the next change.
    NotTaken {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
    },
    /// The open transaction is complete.
    Commit {
        /// The offset of its commit.
        commit: Offset,
        /// Where it ends, as in [`Change::Commit`](postrider_core::source::Change::Commit).
        end: Offset,
    },
    /// The source has sent every transaction below this offset.
    Keepalive {
        /// The offset, as in [`Change::Heartbeat`](postrider_core::source::Change::Heartbeat).
        upto: Offset,
    },
    /// The sink reports the outcome of a ticket. A sink that publishes in transactions reports
    /// [`Outcome::Acked`](postrider_core::record::Outcome::Acked) when its open transaction has the record.
    Report {
        /// The ticket of [`Effect::Publish`], [`Effect::Attempt`], [`Effect::Probe`] or [`Effect::DeadLetter`]. A
        /// ticket of an earlier session is ignored.
        ticket: Ticket,
        /// The outcome.
        outcome: Outcome,
    },
    /// The event just handed over can't be published: the sink refused to take its record; or the sink took the record
    /// with no other event in flight and the broker has refused it for its size. The pipeline still has the record.
    Refused {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
        /// Why.
        reason: Refusal,
        /// If [`OnPoison::Stop`](super::OnPoison::Stop) is configured, the halt that is returned once every earlier
        /// event is resolved.
        halt: Box<Halt>,
    },
    /// The state of the sink's client can't be trusted: the outcome of everything in flight is unknown.
    SinkBroken,
    /// Another process streams from the slot and publishes what this relay has in flight.
    SlotTaken,
    /// The connection to the database ended. Events in flight stay in flight.
    SourceLost,
    /// The cursor row of the last [`Effect::WriteCursor`] is committed.
    CursorWritten,
    /// The cursor row of the last [`Effect::WriteCursor`] was not written, because it would pass an event whose row
    /// status in the outbox table can't be written yet, or because the cursor row is locked. The write is due again
    /// after a pause.
    CursorDeferred,
    /// The write of the last [`Effect::WriteParking`] is committed.
    ParkingWritten {
        /// Parked rows whose status the write left out, because another session has locked the row or an earlier row of
        /// the same aggregate. These statuses are due again after a pause.
        locked: &'a [Position],
    },
    /// A row read at the start is dead, and its record was not sent to the dead-letter topic yet.
    DeadLetterUnsent {
        /// The position of the event.
        position: Position,
    },
    /// The destination of the event just handed over has accepted no records for longer than the pipeline waits. The
    /// event is parked without a counted attempt. The pipeline still has the record.
    Unavailable {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
        /// Whether the destination was found to be missing just now. The first retry is then made after 1 s at most,
        /// because the destination may be being created.
        soon: bool,
    },
    /// The metadata of the destination may be stale: the event just handed over does not fit the last known metadata.
    /// The event is parked, and attempted as soon as its row is committed. The pipeline still has the record.
    StaleDestination {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
    },
    /// The event can't be published and is not parked: it is resolved without being published. Valid for the event just
    /// handed over, if the sink refused to take its record, and for an event that
    /// [`Relay::certainly_refused`](super::Relay::certainly_refused) names. A replay, which parks nothing, uses it.
    LeaveOut {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
    },
    /// The sink takes the event just handed over only with no other event of the stream in flight, because only the
    /// broker can decide whether it accepts a record of that size. The pipeline passes the event again once
    /// [`Relay::intake_open`](super::Relay::intake_open) returns true.
    NeedsExclusive {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
    },
    /// The row of an attempt or of a dead letter does not exist any more: it was deleted.
    RowMissing {
        /// The ticket of [`Effect::Attempt`] or [`Effect::DeadLetter`].
        ticket: Ticket,
    },
    /// The sink knows the destination of a record that is to be attempted with nothing else in flight.
    Probed {
        /// The ticket of [`Effect::Probe`].
        ticket: Ticket,
    },
    /// The row of a dead event does not exist any more: it was deleted.
    DeadRowDeleted {
        /// The position of the event.
        position: Position,
    },
    /// An operator requests something for a parked event.
    Request {
        /// The position of the event.
        position: Position,
        /// What is requested.
        request: Request,
    },
    /// The answer to [`Effect::RecoverSink`]. No other producer of this pipeline can commit any more.
    SinkRecovered {
        /// The call of the effect. The answer to an earlier call is ignored.
        call: SinkCall,
        /// What the sink has committed.
        recovered: Recovered,
    },
    /// The answer to [`Effect::CommitSink`]: the transaction is committed. If it is not, or if that is not known, the
    /// input is [`Input::SinkBroken`], and the producer after it recovers.
    SinkCommitted {
        /// The call of the effect. The answer to an earlier call is ignored.
        call: SinkCall,
    },
    /// Stop taking changes, finish everything in flight, then return [`Effect::Drained`].
    Drain,
    /// The pipeline has found a reason to halt: finish everything in flight, then return [`Effect::Halt`].
    Halt(Box<Halt>),
    /// The next change of the stream can't be read: halt once every earlier change is resolved.
    Unreadable(Box<Halt>),
    /// Time has passed.
    Tick,
}

/// One change of a transaction.
#[derive(Debug)]
pub enum Change<'a> {
    /// An event to publish. The pipeline holds its record.
    Event {
        /// The aggregate whose events are published in order.
        aggregate: Aggregate<'a>,
        /// Bytes of its record, for flow control.
        size_bytes: usize,
        /// How long the event must be delayed from now; zero for most events.
        wait: Duration,
    },
    /// Not an event of this pipeline (another table, an update, a message with another prefix), or an event that an
    /// earlier session has dealt with.
    Skipped,
    /// An event that can never be published in its present form.
    Poison {
        /// The aggregate that the event belongs to, if that is known.
        aggregate: Option<Aggregate<'a>>,
        /// If [`OnPoison::Stop`](super::OnPoison::Stop) is configured, the halt that is returned once every earlier
        /// event is resolved.
        halt: Box<Halt>,
    },
}

/// Everything that a relay can require of its pipeline, which performs the effects in order.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Pass the current record to the sink under this ticket. The answer is a report, or one of the inputs that concern
    /// the event just handed over.
    Publish(Ticket),
    /// Keep the current record for the parked row of this entry, until an [`Effect::WriteParking`] takes it. An
    /// [`Effect::Restart`] discards every record that was not taken.
    Park {
        /// The ticket of the event. It is resolved when the row is committed.
        ticket: Ticket,
        /// The content of the row. Boxed, because every effect has the size of the largest one, and is moved for each
        /// event, while few events are parked.
        entry: Box<Entry>,
        /// Why the broker refused the event before the stream repeated it. If `None`, the pipeline knows the reason.
        reason: Option<Refusal>,
    },
    /// Commit the first `rows` records kept by [`Effect::Park`], and the changes of row status, in one transaction;
    /// then answer with [`Input::ParkingWritten`]. A status whose row is locked may be left out, together with the
    /// later ones of its aggregate. At most one such write is in progress.
    WriteParking {
        /// Number of new rows.
        rows: usize,
        /// Changes to existing rows, at most one for each row.
        statuses: Vec<ParkedUpdate>,
    },
    /// Pass a parked record to the sink under this ticket. The answer is a report, or [`Input::RowMissing`].
    Attempt {
        /// A ticket of the attempt's own.
        ticket: Ticket,
        /// The position of the parked event.
        position: Position,
    },
    /// Check that the sink knows the destination of a parked record which is to be attempted with nothing else in
    /// flight. Other events continue until it does. The answer is [`Input::Probed`], or one to [`Effect::Attempt`].
    Probe {
        /// A ticket of the probe's own.
        ticket: Ticket,
        /// The position of the parked event.
        position: Position,
    },
    /// Pass the record of a dead event to the sink under this ticket, for the dead-letter topic. The answers are those
    /// to [`Effect::Attempt`].
    DeadLetter {
        /// A ticket of the dead letter's own.
        ticket: Ticket,
        /// The position of the dead event.
        position: Position,
    },
    /// The dead-letter topic refused the record of a dead event, which is sent again later. For logs and metrics.
    DeadLetterRefused {
        /// The position of the dead event.
        position: Position,
        /// Why.
        reason: Refusal,
    },
    /// A parked event reached the broker. For logs and metrics.
    Released {
        /// The position of the event.
        position: Position,
    },
    /// An event of the stream reached the broker. For logs and metrics.
    Published {
        /// The ticket of the event.
        ticket: Ticket,
        /// When its transaction was committed, by the source's clock.
        commit_time: Timestamp,
    },
    /// Prevent every former producer of this pipeline from committing, and answer with [`Input::SinkRecovered`]: what
    /// the sink has committed. Only a sink that publishes in transactions gets this effect
    /// ([`Settings::transactions`](super::Settings::transactions)). Nothing is published before the answer, and before
    /// the [`Effect::WriteCursor`] that follows it: the write shows that no other process has become the owner between
    /// the start and the recovery.
    RecoverSink {
        /// Names the call in its answer.
        call: SinkCall,
    },
    /// Commit the sink's transaction, which has every event that was reported since the commit before it, and may have
    /// none, and store `progress` and `attempts` in the same transaction; then answer with [`Input::SinkCommitted`].
    CommitSink {
        /// Names the call in its answer.
        call: SinkCall,
        /// The progress that the transaction reaches.
        progress: Progress,
        /// The parked events that this transaction publishes, or that an earlier one has published, whose rows do not
        /// have that status yet.
        attempts: Vec<Position>,
    },
    /// Commit the cursor row, then answer with [`Input::CursorWritten`] or [`Input::CursorDeferred`]. At most one such
    /// write is in progress.
    WriteCursor(Progress),
    /// An event was published after a later event of its aggregate. This happens when a broker refuses a batch and
    /// accepts the next one. If the event is parked instead, its row records the overtaking. For logs and metrics.
    Overtaken {
        /// The position of the event.
        position: Position,
        /// The position of the later event.
        by: Position,
    },
    /// Confirm this position to the source. The cursor row contains it already.
    Confirm(Watermark),
    /// Discard the producer and everything in flight, and stream again from the cursor, with the whole handshake.
    Restart {
        /// Why, for the log.
        why: Restart,
    },
    /// The drain is complete: everything handed over is resolved, and its position is confirmed.
    Drained,
    /// Stop until an operator acts: everything before the cause is resolved, and its position is confirmed.
    Halt(Box<Halt>),
}

/// Why the producer is discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restart {
    /// The client's state is fatal or unknown.
    SinkBroken,
    /// The outcome of a record is unknown.
    Unknown,
    /// The broker refused a batch. Its events are sent again one at a time, to find the one that the refusal means.
    Refused(Refusal),
    /// Another process has the slot.
    SlotTaken,
}

impl Restart {
    /// The name, for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SinkBroken => "sink_broken",
            Self::Unknown => "unknown_outcome",
            Self::Refused(_) => "batch_refused",
            Self::SlotTaken => "slot_taken",
        }
    }
}
