//! What a relay is on its way to: running, draining or halting, and what an end waits for.

use crate::ack::Broken;
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::Position;
use postrider_core::record::{Refusal, Ticket};

#[derive(Debug)]
pub(super) enum Phase {
    Running,
    Draining,
    Halting { halt: Box<Halt>, until: Until },
    Ended,
}

/// What a halt waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// All before the poison to be resolved, or before what can't be read.
    Lowest(Ticket),
    /// Everything in flight to be reported.
    Quiet,
    /// Nothing: no report can be trusted any more.
    Now,
}

pub(super) fn poison(position: Position, reason: Refusal) -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: format!("the event at position {position} can't be published: {reason}"),
        meaning: "everything before it is published; it and all that follows wait in the database"
            .into(),
        hint: "fix the destination so that it accepts the event, then start again".into(),
    }
}

pub(super) fn violation(broken: Broken) -> Halt {
    Halt {
        reason: HaltReason::Protocol,
        message: format!("the stream broke its own order: {broken}"),
        meaning: "nothing is confirmed that was not published; going on could lose events".into(),
        hint: "start again; if it comes back, report it with the server's version".into(),
    }
}
