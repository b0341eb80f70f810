//! What a relay can want done about it: one closed list.

use crate::ack::Progress;
use pg_replication::lsn::Watermark;
use postrider_core::error::Halt;
use postrider_core::event::{PgTime, Position};
use postrider_core::parked::{Entry, Mark};
use postrider_core::record::{Refusal, Ticket};

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
    /// [`Input::ParkingWritten`](super::Input::ParkingWritten). A mark whose row is locked may be left out, with the
    /// later ones of its aggregate. One at a time.
    WriteParking {
        /// How many.
        rows: usize,
        /// Changes to other rows.
        marks: Vec<Mark>,
    },
    /// Hand a parked record to the sink under this ticket. The answer is a report, or
    /// [`Input::Gone`](super::Input::Gone).
    Try {
        /// A ticket of its own.
        ticket: Ticket,
        /// Whose record.
        position: Position,
    },
    /// Ask whether the sink knows the destination of a parked record that is to be tried with nothing else in flight:
    /// until it does, all others go on. The answer is [`Input::Sounded`](super::Input::Sounded), or one to
    /// [`Effect::Try`].
    Sound {
        /// A ticket of its own.
        ticket: Ticket,
        /// Whose record.
        position: Position,
    },
    /// Hand the record of a dead event to the sink under this ticket, for the dead-letter topic. Answered as
    /// [`Effect::Try`] is.
    Letter {
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
    /// Commit the cursor row, then answer [`Input::CursorWritten`](super::Input::CursorWritten). One at a time.
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
