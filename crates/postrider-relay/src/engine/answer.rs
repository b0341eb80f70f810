//! Events as they are offered to the engine, and its answers.

use crate::relay::{Effect, Upcoming};
use postrider_core::event::{Aggregate, Position};
use postrider_core::parked::Entry;
use postrider_core::record::{Refusal, Ticket};
use postrider_core::timestamp::Timestamp;

/// What the next change is, before it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextChange {
    /// The intake is closed: the driver keeps its place, and continues after a report.
    Wait,
    /// A new change.
    New(Upcoming),
    /// A repeated change, which an earlier session has dealt with, or a change outside a transaction: it is skipped.
    Repeated,
}

/// An event as it is offered. The driver has its record.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    /// The position of the change ([`NextChange::New`]).
    pub position: Position,
    /// The event's id.
    pub id: &'a str,
    /// Its aggregate.
    pub aggregate: Aggregate<'a>,
    /// Bytes of its record, for flow control.
    pub size_bytes: usize,
    /// When the event is to be published, if it says so.
    pub available_at: Option<Timestamp>,
    /// When the event expires, if it says so.
    pub expires_at: Option<Timestamp>,
    /// The clock of this host.
    pub wall: Timestamp,
}

/// What becomes of an offered event. Entries are boxed, because an answer is moved for each event, and few are parked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is passed to the sink under this ticket. The answer is [`Engine::taken`](super::Engine::taken) or
    /// [`Engine::not_taken`](super::Engine::not_taken).
    Publish(Ticket),
    /// It waits: the driver keeps its place, and offers it again after a report.
    Wait,
    /// It is parked before it is sent: behind another event, for later, or because a broker has refused it before, for
    /// this reason. The driver keeps its record.
    Park(Box<Entry>, Option<Refusal>),
    /// It was skipped, because it has expired.
    Expired,
    /// It was skipped, because polling or a repair has published it, or will publish it.
    Repeated,
    /// It has the id of a parked event, and may be another one: it is parked for a person to decide, or the relay
    /// halts.
    Doubted(Option<Box<Entry>>),
    /// Nothing: the relay knows its position as that of a parked event, or has ended.
    Nothing,
}

/// What becomes of an event that can't be published as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoisonAnswer {
    /// It was skipped, because polling or a repair has dealt with it.
    Repeated,
    /// It is parked; without an entry the relay halts, or knows its position as that of a parked event.
    New(Option<Entry>),
}

/// The times of a row that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentRow {
    /// When its transaction was committed.
    pub commit_time: Timestamp,
    /// The event's own time, if its record has it. Unit: milliseconds since 1970.
    pub time_ms: Option<i64>,
}

/// An event that the sink did not accept, and that is not offered again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetAside {
    /// How it is parked; `None` if the relay halts.
    pub entry: Option<Entry>,
    /// Why the sink refused it, if that is why.
    pub refused: Option<Refusal>,
}

/// What differs while the table is polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PollingRules {
    /// Failures go into the outbox table itself, so only a certain refusal may become a failure.
    pub failures_stay: bool,
    /// The claims decide which events have expired, by the clock of the server.
    pub claims_expire: bool,
}

/// What to do with the current record.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum RelayAnswer {
    Publish(Ticket),
    Park(Box<Entry>, Option<Refusal>),
    Nothing,
}

impl RelayAnswer {
    /// The entry of a parked event gets the number of the transaction that wrote its row.
    #[inline]
    pub(super) fn written_by(mut self, xid: Option<u32>) -> Self {
        if let Self::Park(entry, _) = &mut self {
            entry.xid = xid;
        }
        self
    }

    /// Takes the answer to the current event out of the effects from `first` on.
    pub(super) fn take(effects: &mut Vec<Effect>, first: usize) -> Self {
        let at_hand = |effect: &Effect| matches!(effect, Effect::Publish(_) | Effect::Park { .. });
        let Some(at) = effects.iter().skip(first).position(at_hand) else {
            return Self::Nothing;
        };
        match effects.remove(first + at) {
            Effect::Publish(ticket) => Self::Publish(ticket),
            Effect::Park { ticket: _, entry, reason } => Self::Park(entry, reason),
            Effect::Published { .. }
            | Effect::WriteParking { .. }
            | Effect::Attempt { .. }
            | Effect::Probe { .. }
            | Effect::DeadLetter { .. }
            | Effect::RecoverSink { .. }
            | Effect::CommitSink { .. }
            | Effect::DeadLetterRefused { .. }
            | Effect::Overtaken { .. }
            | Effect::Released { .. }
            | Effect::WriteCursor(_)
            | Effect::Confirm(_)
            | Effect::Restart { .. }
            | Effect::Drained
            | Effect::Halt(_) => Self::Nothing,
        }
    }
}
