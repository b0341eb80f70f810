//! Rows of the outbox table beside the stream: what becomes of a claimed row, which published rows have to get their
//! status, and which parked events are still in the table.
//!
//! `postrider-relay` decides with these types, and the source's SQL reads and writes them.

use crate::event::Position;
use crate::parked::Lane;
use crate::timestamp::Timestamp;

/// The outcome of one claimed row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowOutcome {
    /// The broker has acknowledged the event.
    Published,
    /// The event was refused. Only for a table that keeps failures.
    Failed {
        /// The reason, without values of the row.
        error: String,
        /// A stable error code.
        code: &'static str,
    },
    /// No outcome: an earlier row of its aggregate failed.
    Held,
    /// The event was moved to the parked table: its row counts as published.
    Moved,
}

impl RowOutcome {
    /// Whether the outbox table is done with the row: its event is published, or in the parked table.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Published | Self::Moved)
    }
}

/// A published event whose row gets its status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedRow {
    /// The event's position in the stream.
    pub position: Position,
    /// The event's aggregate, whose rows get their status in order. `None` if the event has no place in an order.
    pub lane: Option<Lane>,
    /// The id, as in the row.
    pub id: String,
    /// The transaction that wrote the event's row.
    pub written: WritingTransaction,
    /// The row is known to be visible to other sessions.
    pub visible: bool,
}

/// What is known about the transaction that wrote an event's row. It distinguishes the row from another one that got
/// the same id later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WritingTransaction {
    /// The transaction's number in the source; with PostgreSQL that of pgoutput's Begin message.
    pub xid: Option<u32>,
    /// When the transaction was committed.
    pub committed: Option<Timestamp>,
    /// The event's own time, if its record has it. Unit: milliseconds since 1970.
    pub time_ms: Option<i64>,
}

/// A parked event that the cursor row has not passed: its row in the table has no status yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AheadOfCursor {
    /// The event's position.
    pub position: Position,
    /// The event's aggregate, whose rows get their status in order. `None` if it is not known.
    pub lane: Option<Lane>,
    /// The event's id.
    pub id: String,
    /// When the event's transaction was committed.
    pub commit_time: Timestamp,
    /// The event's own time, if it has one.
    pub timestamp_ms: Option<i64>,
}

/// What a stream finds in the parked table when it begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundParked {
    /// Parked events that the cursor row has not passed.
    pub ahead: Vec<AheadOfCursor>,
    /// Events at positions of claims that the stream may send at their own positions, and must not publish then.
    pub withdrawn: Vec<WithdrawnEvent>,
}

/// An event that is parked at the position of a claim, and that an operator has skipped, has replaced, or wants to
/// replace. The commit time or the transaction identifies it when the stream sends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WithdrawnEvent {
    /// The event's id.
    pub id: String,
    /// When the event's transaction was committed, if the stream had parked the event first. The time of the claim, if
    /// a claim had.
    pub commit_time: Timestamp,
    /// The transaction that wrote the row, if it is known.
    pub xid: Option<u32>,
}

/// A parked event that may have a row in the table, as the database shows the event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequeueCandidate {
    /// The event's id, as in the row of the table.
    pub event_id: String,
    /// The event's position in the parked table.
    pub position: Position,
    /// The event's aggregate; `None` if it is not known.
    pub lane: Option<Lane>,
    /// Later events of the aggregate wait for the event.
    pub blocks: bool,
    /// Whether the event is published or skipped.
    pub state: CandidateState,
    /// The event precedes every row that is still to be claimed, whatever the positions: a claim has parked it.
    pub precedes: bool,
    /// The row that has the event's id, unless that row is certainly another event.
    pub row: Option<CandidateRow>,
}

/// Whether a parked event that may have a row in the table is published or skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CandidateState {
    /// Neither.
    Unresolved,
    /// Published. The event may be published a second time, together with the events that follow it.
    Repeatable,
    /// Published or skipped. The event must not be published a second time: a person has skipped or replaced it, or the
    /// rows that follow it in its aggregate are marked as published, so the event would be repeated alone.
    Final,
}

impl CandidateState {
    /// The state of an event that is `resolved` or not, and, if it is, must not be published a second time (`once`).
    pub const fn of(resolved: bool, once: bool) -> Self {
        match (resolved, once) {
            (false, _) => Self::Unresolved,
            (true, false) => Self::Repeatable,
            (true, true) => Self::Final,
        }
    }
}

/// A row of the table that is or may be a parked event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CandidateRow {
    /// The row is certainly the event.
    pub certain: bool,
    /// The transaction that wrote the row. A row that another transaction has written may be another row.
    pub xmin: u32,
}
