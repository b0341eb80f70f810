//! What a sink says of events, tries and letters, and what follows: resolved, condemned, put off, or all of it again.
//!
//! Knows no record. What is resolved goes to the tracker; a refusal that is certain goes to `parking`.

use super::Relay;
use super::effect::{Effect, Restart};
use super::flow::Slot;
use super::parking::OnPoison;
use super::phase::{Phase, Until, poison};
use crate::ack::bug::{Bug, injected};
use postrider_core::record::{Outcome, Refusal, Scope, Ticket};
use std::time::Duration;

impl Relay {
    pub(super) fn report(&mut self, ticket: Ticket, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some(slot) = self.flow.get(ticket) else {
            if outcome == Outcome::Acked {
                self.flow.landed_late(ticket);
            }
            return;
        };
        match outcome {
            Outcome::Unknown if injected(Bug::UnknownIsAcked) => {
                self.report(ticket, Outcome::Acked, effects);
            }
            Outcome::Acked => {
                let overtaken = self.flow.landed(ticket);
                self.resolve(ticket);
                self.feedback.delivered();
                if let Some(by) = overtaken.filter(|_| !injected(Bug::OvertakenUntold)) {
                    effects.push(Effect::Overtaken { position: slot.position, by });
                }
                effects.push(Effect::Published { ticket, commit_time: slot.commit_time });
            }
            Outcome::Rejected { scope: Scope::Event, reason } => {
                self.refused(ticket, slot, reason, effects);
            }
            Outcome::Rejected { scope: Scope::Destination | Scope::Broker, reason: _ }
            | Outcome::Unknown => self.restart(Restart::Unknown, effects),
        }
    }

    /// A broker refuses batches, so its word counts for one event only where it was sent alone; else all of its batch
    /// are streamed again, one at a time. One that was alone is streamed again too, and parked when it comes: by then
    /// its record is at hand, and the producer is a new one.
    fn refused(&mut self, ticket: Ticket, slot: Slot, reason: Refusal, effects: &mut Vec<Effect>) {
        let certain =
            self.flow.was_alone() || names_one(reason) || injected(Bug::BlamesTheInnocent);
        if self.parking.rules.on_poison == OnPoison::Stop && certain {
            let halt = Box::new(poison(slot.position, reason));
            self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            return;
        }
        if certain {
            let mut entry = self.parking.rules.refused(slot.position, Some(slot.lane), false);
            entry.overtaken_by = self.flow.overtaken(slot.position);
            self.parking.condemn(entry, reason);
            self.restart(Restart::Refused(reason), effects);
        } else {
            self.flow.refused(ticket);
            self.refused = Some(reason);
        }
    }

    pub(super) fn report_try(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        match outcome {
            Outcome::Acked => {
                if let Some(position) = self.parking.released(ticket, self.resolved()) {
                    effects.push(Effect::Released { position });
                }
            }
            Outcome::Rejected { scope: Scope::Event, reason } => {
                if names_one(reason) || self.parking.was_alone(ticket) {
                    self.parking.refused_again(now, ticket, reason);
                } else if self.parking.tried(ticket) {
                    self.parking.suspect(now, ticket);
                    self.refused = Some(reason);
                }
            }
            Outcome::Rejected { scope: Scope::Destination, reason: _ } => {
                self.parking.put_off(now, ticket);
            }
            Outcome::Rejected { scope: Scope::Broker, reason: _ } | Outcome::Unknown => {
                if self.parking.tried(ticket) {
                    self.restart(Restart::Unknown, effects);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn acknowledge_by_time(&mut self, effects: &mut Vec<Effect>) {
        let low = self.tracker.low();
        if injected(Bug::TimeOutIsAcked) && self.flow.flies(low) {
            self.report(low, Outcome::Acked, effects);
        }
    }

    pub(super) fn report_letter(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        match outcome {
            Outcome::Acked => self.parking.delivered(ticket),
            Outcome::Rejected { scope: Scope::Event | Scope::Destination, reason } => {
                if let Some(position) = self.parking.undelivered(now, ticket) {
                    effects.push(Effect::Undelivered { position, reason });
                }
            }
            Outcome::Rejected { scope: Scope::Broker, reason: _ } | Outcome::Unknown => {
                self.restart(Restart::Unknown, effects);
            }
        }
    }
}

/// Whether a refusal can only mean the event it came for: the sink's own, or a broker's of a batch of one.
fn names_one(reason: Refusal) -> bool {
    match reason {
        Refusal::TooLarge { .. }
        | Refusal::TooLargeCompressed { .. }
        | Refusal::TopicName
        | Refusal::Partition(_) => true,
        Refusal::Kafka(_) => false,
    }
}
