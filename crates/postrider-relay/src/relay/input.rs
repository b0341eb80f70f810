//! What can happen to a relay: one closed list.

use crate::ack::Progress;
use pg_replication::lsn::{Lsn, Watermark};
use postrider_core::error::Halt;
use postrider_core::event::{Aggregate, PgTime, Position};
use postrider_core::parked::{Entry, Mark, Request};
use postrider_core::record::{Outcome, Refusal, Ticket};
use std::time::Duration;

/// Everything that can happen to a relay.
#[derive(Debug)]
pub enum Input<'a> {
    /// A stream starts, after the whole handshake. `cursor` is the cursor row it starts from.
    Started {
        /// What the cursor row says.
        cursor: Progress,
        /// Whether positions mean what they meant in the stream before: the same cluster, timeline and slot. After a
        /// failover they do not, and nothing we remember counts any more.
        same_history: bool,
        /// Whether nobody else has owned the pipeline since the stream before.
        same_owner: bool,
        /// The parked table's rows, in order of the stream: unresolved ones, and resolved ones the stream may bring
        /// again. Read after everybody else's writes were fenced off.
        parked: &'a [Entry],
        /// What persons ask for, as the rows say: carried out before anything is tried.
        requests: &'a [(Position, Request)],
    },
    /// A transaction begins.
    Begin {
        /// Start of its commit record.
        commit_lsn: Lsn,
        /// When it was committed, by the server's clock.
        commit_time: PgTime,
    },
    /// The change that [`Relay::upcoming`](super::Relay::upcoming) described.
    Change(Change<'a>),
    /// The sink was too busy to take the event just handed over: it comes again as the next change.
    NotTaken {
        /// The ticket of [`Effect::Publish`].
        ticket: Ticket,
    },
    /// The transaction is whole.
    Commit {
        /// Start of the commit record.
        commit_lsn: Lsn,
        /// First byte after it.
        end_lsn: Lsn,
    },
    /// The server has processed WAL up to here.
    Keepalive {
        /// `walEnd` of the message.
        wal_end: Lsn,
    },
    /// A sink's answer.
    Report {
        /// Whose.
        ticket: Ticket,
        /// What became of it.
        outcome: Outcome,
    },
    /// The sink did not take the record of this ticket and never will, and why; or it did, with nothing else in flight,
    /// and the broker has refused it for its size. Its record is still at hand.
    Refused {
        /// Whose.
        ticket: Ticket,
        /// Why.
        reason: Refusal,
        /// Where poison stops the pipeline: told when all before it is resolved.
        halt: Box<Halt>,
    },
    /// The sink's state can't be trusted: everything in flight is unknown.
    SinkBroken,
    /// Another process streams from the slot: what we have in flight is no longer ours to send.
    SlotTaken,
    /// The connection to the database ended. What is in flight stays in flight.
    SourceLost,
    /// The cursor row of the last [`Effect::WriteCursor`] is committed.
    CursorWritten,
    /// It was not written: it would pass an event whose mark in the outbox table has to wait, or its own row is locked.
    /// It falls due again after a pause.
    CursorHeld,
    /// The write of the last [`Effect::WriteParking`] is committed.
    ParkingWritten {
        /// Rows whose marks it left out, because another session has locked them, or an earlier row of their aggregate:
        /// these marks are wanted again after a pause.
        left: &'a [Position],
    },
    /// A row read at the start is dead, and its record did not go to the dead-letter topic yet.
    Unsent {
        /// Which.
        position: Position,
    },
    /// The destination of the event just handed over takes no records, and has not for as long as one waits for it:
    /// it is parked, though nothing is wrong with it. Its record is still at hand.
    Unavailable {
        /// Whose.
        ticket: Ticket,
        /// It was just found so: it is tried again soon, for somebody may be making the destination.
        soon: bool,
    },
    /// The event just handed over does not fit what was last heard of its destination: it is set aside, and tried as
    /// soon as its row is committed. Its record is still at hand.
    Doubted {
        /// Whose.
        ticket: Ticket,
    },
    /// The sink takes the event just handed over only with no other event of the stream in flight, because nobody but
    /// the broker knows whether it takes one of its size. It is offered again when that is so.
    Alone {
        /// Whose.
        ticket: Ticket,
    },
    /// The row of a try is not in the table: somebody deleted it.
    Gone {
        /// The ticket of [`Effect::Attempt`] or [`Effect::DeadLetter`].
        ticket: Ticket,
    },
    /// The sink knows the destination of a record that is to be tried alone.
    Probed {
        /// The ticket of [`Effect::Probe`].
        ticket: Ticket,
    },
    /// The row of a dead event is not in the table: somebody deleted it.
    Deleted {
        /// Which.
        position: Position,
    },
    /// A person asks for something to be done with a parked event.
    Request {
        /// Which.
        position: Position,
        /// What.
        request: Request,
    },
    /// Stop reading, finish what is in flight, and say when that is done.
    Drain,
    /// Going on would be wrong, for a reason the driver found: finish what is in flight, then halt.
    Halt(Box<Halt>),
    /// What comes next in the stream can't be read: halt when all before it is resolved.
    Unreadable(Box<Halt>),
    /// Time has passed.
    Tick,
}

/// One change of a transaction.
#[derive(Debug)]
pub enum Change<'a> {
    /// An event to publish. The driver holds its record.
    Event {
        /// The unit of order it belongs to.
        aggregate: Aggregate<'a>,
        /// Bytes of its record, for flow control.
        size_bytes: usize,
        /// How long it has to be kept back: zero for most.
        wait: Duration,
    },
    /// Not an event of ours: another table, an update, a message with another prefix. Or one of an earlier session.
    Skipped,
    /// An event that can never be published as it is, and why.
    Poison {
        /// The unit of order it belongs to, if that much is known.
        aggregate: Option<Aggregate<'a>>,
        /// Where poison stops the pipeline: told when all before it is resolved.
        halt: Box<Halt>,
    },
}

// What a relay can want done about it: one closed list.

/// Everything a relay can want done. The driver performs them in order.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Hand the record at hand to the sink under this ticket.
    Publish(Ticket),
    /// Set the event at hand aside: keep its record for the row of this entry, until a [`Effect::WriteParking`] takes
    /// it. A restart throws away what was not taken.
    Park {
        /// Its ticket.
        ticket: Ticket,
        /// What the row says.
        entry: Entry,
        /// Why the broker refused it, where that was known before it came again; else the driver knows the reason.
        reason: Option<Refusal>,
    },
    /// Commit the first `rows` records kept by [`Effect::Park`], and the marks, in one transaction; then answer
    /// [`Input::ParkingWritten`]. A mark whose row is locked may be left out, with the
    /// later ones of its aggregate. One at a time.
    WriteParking {
        /// How many.
        rows: usize,
        /// Changes to other rows.
        marks: Vec<Mark>,
    },
    /// Hand a parked record to the sink under this ticket. The answer is a report, or
    /// [`Input::Gone`].
    Attempt {
        /// A ticket of its own.
        ticket: Ticket,
        /// Whose record.
        position: Position,
    },
    /// Ask whether the sink knows the destination of a parked record that is to be tried with nothing else in flight:
    /// until it does, all others go on. The answer is [`Input::Probed`], or one to
    /// [`Effect::Attempt`].
    Probe {
        /// A ticket of its own.
        ticket: Ticket,
        /// Whose record.
        position: Position,
    },
    /// Hand the record of a dead event to the sink under this ticket, for the dead-letter topic. Answered as
    /// [`Effect::Attempt`] is.
    DeadLetter {
        /// A ticket of its own.
        ticket: Ticket,
        /// Whose record.
        position: Position,
    },
    /// The dead-letter topic did not take the record of a dead event: it is offered again later.
    Undelivered {
        /// Whose record.
        position: Position,
        /// Why.
        reason: Refusal,
    },
    /// A parked event reached the broker.
    Released {
        /// Which.
        position: Position,
    },
    /// An event reached the broker: committed at this time.
    Published {
        /// Which.
        ticket: Ticket,
        /// When its transaction was committed.
        commit_time: PgTime,
    },
    /// Commit the cursor row, then answer [`Input::CursorWritten`]. One at a time.
    WriteCursor(Progress),
    /// An event was published after a later one of its aggregate, which happens when a broker refuses a batch and takes
    /// the one behind it. If the event is parked instead, its row records this.
    Overtaken {
        /// Which.
        position: Position,
        /// The later one.
        by: Position,
    },
    /// Tell the server that everything below is ours to answer for no more. The cursor row says so already.
    Confirm(Watermark),
    /// Throw away the producer and all that is in flight, and stream again from the cursor, with the full handshake.
    Restart {
        /// Why, for the log.
        why: Restart,
    },
    /// Everything handed over is resolved, and confirmed.
    Drained,
    /// Stop for an operator: all that came before is resolved, and confirmed.
    Halt(Box<Halt>),
}

/// Why a producer is thrown away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restart {
    /// The client's state is fatal or unknown.
    SinkBroken,
    /// A report that is neither a yes nor a no.
    Unknown,
    /// The broker refused a batch: its events are sent again one at a time, to find the one it means.
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
