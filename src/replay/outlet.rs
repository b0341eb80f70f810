//! The way out: which event goes now, what is in flight, and what the broker said of it.
//!
//! Every change of the source has a ticket of the tracker, whether it is sent or not, so that what is done is one
//! position: everything below it is acknowledged, or does not belong.

mod answers;

use super::ReplayError;
use super::choice::Choice;
use super::pace::Pace;
use super::tally::Tally;
use crate::ack::{Progress, Tracker};
use crate::event::{Aggregate, Position};
use crate::outbox::{At, MapError, Mapped};
use crate::parked::Lane;
use crate::record::{Header, Record};
use crate::sink::{Mailbox, NotTaken, Post, Sink};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Events in flight at most.
pub(super) const EVENTS_MAX: usize = 5_000;

/// Bytes of keys, values and headers in flight at most; one event is always taken.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// Tickets between the oldest in flight and the newest at most: changes that do not belong have tickets too.
const SPAN_MAX: u64 = 4_000_000;

/// How long a destination may refuse everything while its broker answers, before the replay gives up.
const TOPIC_PATIENCE: Duration = Duration::from_secs(10);

/// The header that only replayed events have.
const HEADER: &str = "replay";

/// What became of an event that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offered {
    /// It is dealt with.
    Done,
    /// Offer it again: at this time, or after a post.
    Wait(Option<Instant>),
}

/// Whose events are not sent.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Lanes that have parked events now.
    pub(super) now: HashSet<Lane>,
    /// Lanes of which an event was left out: what follows would be out of order.
    left_out: HashSet<Lane>,
}

/// An event that is on its way.
struct Flying {
    bytes: usize,
    event: String,
    /// Nothing else was in flight when it went, and nothing goes until it is answered.
    alone: bool,
}

/// A destination in trouble.
struct Refusing {
    topic: String,
    what: String,
    hint: Option<String>,
    since: Instant,
}

pub(super) struct Outlet {
    /// None in a dry run.
    sink: Option<Box<dyn Sink>>,
    mailbox: Mailbox,
    posts: Vec<Post>,
    pub(super) tracker: Tracker,
    flight: HashMap<u64, Flying>,
    flight_bytes: usize,
    /// Events of batches that a broker refused: each is sent again with nothing else in flight, so that its answer is
    /// for it. At most [`EVENTS_MAX`].
    suspects: HashSet<String>,
    /// One of them is on its way.
    alone: bool,
    pace: Pace,
    pub(super) choice: Choice,
    /// `None` where parked events are no matter.
    pub(super) parked: Option<Parked>,
    to: Option<String>,
    name: String,
    pub(super) tally: Tally,
    refusing: Option<Refusing>,
    /// The producer was thrown away: everything that is not acknowledged has to be read again.
    pub(super) reset: bool,
}

/// What an outlet is made from.
pub(super) struct Parts {
    pub(super) sink: Option<Box<dyn Sink>>,
    pub(super) mailbox: Mailbox,
    pub(super) start: Progress,
    pub(super) rate: u32,
    pub(super) choice: Choice,
    pub(super) parked: Option<Parked>,
    pub(super) to: Option<String>,
    pub(super) name: String,
    pub(super) tally: Tally,
}

impl Outlet {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            sink: parts.sink,
            mailbox: parts.mailbox,
            posts: Vec::new(),
            tracker: Tracker::new(parts.start),
            flight: HashMap::new(),
            flight_bytes: 0,
            suspects: HashSet::new(),
            alone: false,
            pace: Pace::new(parts.rate),
            choice: parts.choice,
            parked: parts.parked,
            to: parts.to,
            name: parts.name,
            tally: parts.tally,
            refusing: None,
            reset: false,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Whether every event that was handed over is done with. One that was refused together with others is in flight no
    /// more, and is not: it is read and sent again.
    pub(super) fn is_settled(&self) -> bool {
        self.flight.is_empty() && !self.reset
    }

    /// Waits for something of the sink. Cancel-safe.
    pub(super) async fn posted(&self) {
        self.mailbox.arrived().await;
    }

    /// Passes over one change.
    pub(super) fn pass(&mut self) -> Result<Offered, ReplayError> {
        self.tally.passed += 1;
        self.dealt_with()
    }

    /// One change needs nothing more.
    fn dealt_with(&mut self) -> Result<Offered, ReplayError> {
        let ticket = self.tracker.change();
        self.tracker.resolve(ticket).map_err(ReplayError::Broken)?;
        Ok(Offered::Done)
    }

    /// Takes one change of the source: sends it, leaves it out, or says when to offer it again. `positioned`: the
    /// source knows positions.
    pub(super) fn offer(
        &mut self,
        mapped: Result<Option<Mapped<'_>>, MapError>,
        at: At,
        positioned: bool,
        now: Instant,
    ) -> Result<Offered, ReplayError> {
        if self.tracker.span() >= SPAN_MAX {
            return Ok(Offered::Wait(None));
        }
        let mapped = match mapped {
            Ok(Some(mapped)) => mapped,
            Ok(None) => return self.pass(),
            Err(MapError::Poison(poison)) => {
                let remains = &poison.remains;
                let aggregate = remains.aggregate.as_ref();
                let aggregate = aggregate.map(|(kind, id)| Aggregate { kind, id });
                let id = remains.event_id.as_deref().unwrap_or_default();
                if !self.choice.takes(id, aggregate, at.commit_time) {
                    return self.pass();
                }
                let event = name_of(positioned.then_some(at.position), id);
                self.tally.refuse(event, poison.problem.to_string());
                return self.dealt_with();
            }
            Err(error) => return Err(ReplayError::Unfit(error)),
        };
        if !self.choice.takes(mapped.event_id, Some(mapped.aggregate), at.commit_time) {
            return self.pass();
        }
        let position = positioned.then_some(at.position);
        if self.is_parked(mapped.aggregate) {
            let why = "its aggregate has parked events".to_owned();
            self.tally.refuse(name_of(position, mapped.event_id), why);
            return self.dealt_with();
        }
        let full = self.flight.len() >= EVENTS_MAX || self.flight_bytes >= BYTES_MAX;
        if full || self.reset || self.alone {
            return Ok(Offered::Wait(None));
        }
        if self.is_suspect(position, mapped.event_id) && !self.flight.is_empty() {
            return Ok(Offered::Wait(None));
        }
        if let Some(due) = self.pace.wait(now).filter(|_| self.sink.is_some()) {
            return Ok(Offered::Wait(Some(due)));
        }
        self.send(&mapped, position, now)
    }

    fn send(
        &mut self,
        mapped: &Mapped<'_>,
        position: Option<Position>,
        now: Instant,
    ) -> Result<Offered, ReplayError> {
        let own = mapped.record();
        let mut headers = Vec::with_capacity(own.headers.len() + 1);
        headers.extend_from_slice(own.headers);
        headers.push(Header { name: HEADER, value: Some(self.name.as_bytes()) });
        let topic = self.to.as_deref().unwrap_or(own.topic);
        let record = Record { topic, headers: &headers, ..own };
        let bytes = record.size_bytes();
        let Some(sink) = &mut self.sink else {
            self.tally.sent(position, mapped.event_id, topic, bytes);
            return self.dealt_with();
        };
        let ticket = self.tracker.change();
        let mut taken = sink.enqueue(ticket, &record);
        let goes_alone = taken == Err(NotTaken::Alone) && self.flight.is_empty();
        if goes_alone {
            taken = sink.enqueue_alone(ticket, &record, None);
        }
        match taken {
            Ok(()) => {
                self.pace.spend();
                self.refusing = self.refusing.take().filter(|refusing| refusing.topic != topic);
                self.tally.sent(position, mapped.event_id, topic, bytes);
                let alone = goes_alone || self.is_suspect(position, mapped.event_id);
                self.alone = alone;
                let event = name_of(position, mapped.event_id);
                self.flight.insert(ticket.0, Flying { bytes, event, alone });
                self.flight_bytes += bytes;
                Ok(Offered::Done)
            }
            Err(NotTaken::Refused(reason)) => {
                self.tracker.resolve(ticket).map_err(ReplayError::Broken)?;
                let event = name_of(position, mapped.event_id);
                self.suspects.remove(&event);
                self.tally.refuse(event, reason.to_string());
                Ok(Offered::Done)
            }
            Err(NotTaken::Unavailable | NotTaken::Missing) => {
                let topic = topic.to_owned();
                self.tracker.retract(ticket);
                self.refused_by(topic, now)
            }
            // One that goes alone is offered again with every report, until nothing else is in flight.
            Err(
                NotTaken::Full | NotTaken::Alone | NotTaken::Destination | NotTaken::Doubted(_),
            ) => {
                self.tracker.retract(ticket);
                Ok(Offered::Wait(None))
            }
        }
    }

    /// Whether it was in a batch that was refused.
    fn is_suspect(&self, position: Option<Position>, id: &str) -> bool {
        !self.suspects.is_empty() && self.suspects.contains(&name_of(position, id))
    }

    /// A broker answers, and says that the topic takes nothing.
    fn refused_by(&mut self, topic: String, now: Instant) -> Result<Offered, ReplayError> {
        match &self.refusing {
            Some(known) if known.topic == topic => {
                if now.duration_since(known.since) >= TOPIC_PATIENCE {
                    let (what, mend) = (known.what.clone(), known.hint.clone());
                    return Err(ReplayError::Topic { topic, what, mend });
                }
            }
            Some(_) | None => {
                let what = "it does not exist, or is not open to us".to_owned();
                self.refusing = Some(Refusing { topic, what, hint: None, since: now });
            }
        }
        Ok(Offered::Wait(Some(now + Duration::from_millis(200))))
    }

    fn is_parked(&mut self, aggregate: Aggregate<'_>) -> bool {
        let Some(parked) = &mut self.parked else { return false };
        if parked.now.is_empty() && parked.left_out.is_empty() {
            return false;
        }
        let lane = Lane::of(aggregate);
        let is = parked.now.contains(&lane) || parked.left_out.contains(&lane);
        if is {
            parked.left_out.insert(lane);
        }
        is
    }

    /// Lets go of the broker.
    pub(super) fn close(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.close(Duration::from_secs(1));
        }
    }
}

fn name_of(position: Option<Position>, id: &str) -> String {
    position.map_or_else(|| id.to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests;
