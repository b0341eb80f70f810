//! What the sink says of events in flight: done, refused, or to be sent again.
//!
//! What is done goes to the tracker and the tally; what is not has to be read again, which is for the loop in `run`.
//! Which event goes next is not known here.

use super::Outlet;
use crate::record::{Outcome, Refusal, Scope, Ticket};
use crate::replay::ReplayError;
use crate::replay::tally::Tell;
use crate::sink::Post;

impl Outlet {
    /// Takes what the sink has to say.
    pub(in crate::replay) fn take_posts(
        &mut self,
        tell: &mut dyn FnMut(Tell<'_>),
    ) -> Result<(), ReplayError> {
        let mut posts = std::mem::take(&mut self.posts);
        posts.clear();
        self.mailbox.take(&mut posts);
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.report(ticket, outcome)?,
                Post::Retry | Post::Located => {}
                Post::Down { reason, hint, topic, missing: _ } => {
                    if let (Some(refusing), Some(topic)) = (&mut self.refusing, topic)
                        && refusing.topic == topic
                    {
                        refusing.what.clone_from(&reason);
                        refusing.hint.clone_from(&hint);
                    }
                    tell(Tell::Down(&reason, hint.as_deref()));
                }
                Post::Up { topic: _ } => tell(Tell::Up),
                Post::Broken { .. } => self.reset = true,
                Post::Unfit { reason, hint } => {
                    return Err(ReplayError::SinkUnfit { reason, hint });
                }
            }
        }
        self.posts = posts;
        Ok(())
    }

    pub(super) fn report(&mut self, ticket: Ticket, outcome: Outcome) -> Result<(), ReplayError> {
        // One of a producer that was thrown away.
        let Some(flying) = self.flight.remove(&ticket.0) else { return Ok(()) };
        self.flight_bytes = self.flight_bytes.saturating_sub(flying.bytes);
        self.alone &= !flying.alone;
        match outcome {
            Outcome::Acked => {
                self.suspects.remove(&flying.event);
                self.tally.published += 1;
            }
            // A broker refuses batches: its word counts for one event only where that was alone.
            Outcome::Rejected { scope: Scope::Event, reason: Refusal::Kafka(_) }
                if !flying.alone =>
            {
                self.suspects.insert(flying.event);
                self.reset = true;
                return Ok(());
            }
            Outcome::Rejected { scope: Scope::Event, reason } => {
                self.suspects.remove(&flying.event);
                self.tally.refuse(flying.event, reason.to_string());
            }
            Outcome::Rejected { scope: Scope::Destination | Scope::Broker, .. }
            | Outcome::Unknown => {
                self.reset = true;
                return Ok(());
            }
        }
        self.tracker.resolve(ticket).map(drop).map_err(ReplayError::Broken)
    }

    /// Gives up everything in flight: it is read and sent again, from what is done.
    pub(in crate::replay) fn start_again(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|_| self.reset || !self.flight.is_empty()) {
            sink.reset();
        }
        self.tracker.give_up();
        self.flight.clear();
        self.flight_bytes = 0;
        self.alone = false;
        self.reset = false;
    }
}
