//! What can happen to a relay: one closed list.

use crate::ack::Progress;
use pg_replication::lsn::Lsn;
use postrider_core::error::Halt;
use postrider_core::event::{Aggregate, PgTime, Position};
use postrider_core::parked::{Entry, Wish};
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
        wishes: &'a [(Position, Wish)],
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
        /// The ticket of [`Effect::Publish`](super::Effect::Publish).
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
    /// The cursor row of the last [`Effect::WriteCursor`](super::Effect::WriteCursor) is committed.
    CursorWritten,
    /// It was not written: it would pass an event whose mark in the outbox table has to wait, or its own row is locked.
    /// It falls due again after a pause.
    CursorHeld,
    /// The write of the last [`Effect::WriteParking`](super::Effect::WriteParking) is committed.
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
        /// The ticket of [`Effect::Try`](super::Effect::Try) or [`Effect::Letter`](super::Effect::Letter).
        ticket: Ticket,
    },
    /// The sink knows the destination of a record that is to be tried alone.
    Sounded {
        /// The ticket of [`Effect::Sound`](super::Effect::Sound).
        ticket: Ticket,
    },
    /// The row of a dead event is not in the table: somebody deleted it.
    Deleted {
        /// Which.
        position: Position,
    },
    /// A person asks for something to be done with a parked event.
    Wish {
        /// Which.
        position: Position,
        /// What.
        wish: Wish,
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
