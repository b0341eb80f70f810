//! Publishes the events of a replay: which event is sent now, what is in flight, and the reports of the broker.
//!
//! Every change of the source has a ticket of the tracker, whether it is sent or not, so that progress is one position:
//! everything below it is acknowledged, or was not requested.

#[cfg(test)]
mod tests;

use super::ReplayError;
use super::plan::Choice;
use crate::ack::{Progress, Tracker};
use crate::event::{Aggregate, Position};
use crate::offset::Offset;
use crate::outbox::{At, MapError, Mapped};
use crate::parked::Lane;
use crate::record::{Header, Outcome, Record, Scope, Ticket};
use crate::sink::{Mailbox, NotTaken, Post, Sink};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// Events in flight at most.
pub(super) const EVENTS_MAX: usize = 5_000;

/// Bytes of keys, values and headers in flight at most; one event is always accepted.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// Tickets between the oldest in flight and the newest at most: changes that are not requested have tickets too.
const SPAN_MAX: u64 = 4_000_000;

/// How long a destination may refuse everything while its broker answers, before the replay ends with an error.
const TOPIC_WAIT_MAX: Duration = Duration::from_secs(10);

/// The header that only replayed events have.
const HEADER: &str = "replay";

/// How much unused time may be made up for: a timer fires some milliseconds late.
const BURST: Duration = Duration::from_millis(20);

/// Events that are due within this time are sent together: waking up for each event would take more time from the live
/// stream than sending it.
const SLICE: Duration = Duration::from_millis(5);

/// Refused events that are listed one by one.
const REFUSED_MAX: usize = 20;

/// Topics that are counted one by one.
const TOPICS_MAX: usize = 1000;

/// What became of a change that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offered {
    /// The change is resolved, or its event is in flight.
    Done,
    /// Offer the change again: at this time, or after a post.
    Wait(Option<Instant>),
}

/// Aggregates whose events are not sent.
#[derive(Debug, Default)]
pub(super) struct ParkedLanes {
    /// Lanes that have parked events now.
    pub(super) now: HashSet<Lane>,
    /// Lanes of which an event was left out: later events would be out of order.
    left_out: HashSet<Lane>,
}

/// An event in flight.
struct InFlight {
    /// Size of the record.
    bytes: usize,
    /// Its position, or its ID.
    event: String,
    /// Nothing else was in flight when the event was sent, and nothing is sent before its report.
    alone: bool,
}

/// A destination that accepts no records.
struct FailingTopic {
    /// Its name.
    topic: String,
    /// Why it accepts no records.
    what: String,
    /// What to do about it.
    hint: Option<String>,
    /// When it first refused a record.
    since: Instant,
}

/// Publishes the changes of a source, and tracks which of them are resolved.
pub(super) struct Publisher {
    /// `None` in a dry run.
    sink: Option<Box<dyn Sink>>,
    /// Posts of the sink.
    mailbox: Mailbox,
    /// Scratch space for posts.
    posts: Vec<Post>,
    /// Progress: which tickets are resolved.
    pub(super) tracker: Tracker,
    /// Events in flight, by ticket.
    flight: HashMap<u64, InFlight>,
    /// Bytes in flight.
    flight_bytes: usize,
    /// Events of batches that a broker refused. Each is sent again with nothing else in flight, so that the answer is
    /// about this event. At most [`EVENTS_MAX`].
    suspects: HashSet<String>,
    /// One of them is in flight.
    alone: bool,
    /// Limits the rate.
    pace: Pace,
    /// Which events were requested.
    pub(super) choice: Choice,
    /// `None` if parked events do not matter.
    pub(super) parked: Option<ParkedLanes>,
    /// A topic in place of each event's own.
    to: Option<String>,
    /// Name of the replay, for the header.
    name: String,
    /// Counts of what was done.
    pub(super) tally: Tally,
    /// A destination that accepts no records.
    failing_topic: Option<FailingTopic>,
    /// The sink has to be reset: everything that is not acknowledged is read again.
    pub(super) reset: bool,
}

/// The parts of a new publisher.
pub(super) struct PublisherParts {
    /// `None` for a dry run.
    pub(super) sink: Option<Box<dyn Sink>>,
    /// Posts of the sink.
    pub(super) mailbox: Mailbox,
    /// Progress of earlier runs.
    pub(super) start: Progress,
    /// Events a second; 0 for no limit.
    pub(super) rate: u32,
    /// Which events were requested.
    pub(super) choice: Choice,
    /// `None` if parked events do not matter.
    pub(super) parked: Option<ParkedLanes>,
    /// A topic in place of each event's own.
    pub(super) to: Option<String>,
    /// Name of the replay.
    pub(super) name: String,
    /// Counts of earlier runs.
    pub(super) tally: Tally,
}

impl Publisher {
    pub(super) fn new(parts: PublisherParts) -> Self {
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
            failing_topic: None,
            reset: false,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Whether every event that was sent is resolved. An event that was refused together with others is no longer in
    /// flight but not resolved: it is read and sent again.
    pub(super) fn is_settled(&self) -> bool {
        self.flight.is_empty() && !self.reset
    }

    /// Waits for a post of the sink. Cancel-safe.
    pub(super) async fn posted(&self) {
        self.mailbox.arrived().await;
    }

    /// Skips one change.
    pub(super) fn pass(&mut self) -> Result<Offered, ReplayError> {
        self.tally.passed += 1;
        self.resolve_next()
    }

    /// Resolves one change at once.
    fn resolve_next(&mut self) -> Result<Offered, ReplayError> {
        let ticket = self.tracker.change();
        self.tracker.resolve(ticket).map_err(ReplayError::Broken)?;
        Ok(Offered::Done)
    }

    /// Takes one change of the source: sends it, leaves it out, or returns when to offer it again. `positioned`: the
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
                let partial = &poison.partial;
                let aggregate = partial.aggregate.as_ref();
                let aggregate = aggregate.map(|(kind, id)| Aggregate { kind, id });
                let id = partial.event_id.as_deref().unwrap_or_default();
                if !self.choice.takes(id, aggregate, at.commit_time) {
                    return self.pass();
                }
                let event = name_of(positioned.then_some(at.position), id);
                self.tally.refuse(event, poison.problem.to_string());
                return self.resolve_next();
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
            return self.resolve_next();
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
            return self.resolve_next();
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
                self.failing_topic =
                    self.failing_topic.take().filter(|failing_topic| failing_topic.topic != topic);
                self.tally.sent(position, mapped.event_id, topic, bytes);
                let alone = goes_alone || self.is_suspect(position, mapped.event_id);
                self.alone = alone;
                let event = name_of(position, mapped.event_id);
                self.flight.insert(ticket.0, InFlight { bytes, event, alone });
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
            // An event that needs exclusive flight is offered again with every report, until nothing else is in flight.
            Err(
                NotTaken::Full | NotTaken::Alone | NotTaken::Destination | NotTaken::Doubted(_),
            ) => {
                self.tracker.retract(ticket);
                Ok(Offered::Wait(None))
            }
        }
    }

    /// Whether the event was in a batch that was refused.
    fn is_suspect(&self, position: Option<Position>, id: &str) -> bool {
        !self.suspects.is_empty() && self.suspects.contains(&name_of(position, id))
    }

    /// A broker answers, and says that the topic accepts no records.
    fn refused_by(&mut self, topic: String, now: Instant) -> Result<Offered, ReplayError> {
        match &self.failing_topic {
            Some(known) if known.topic == topic => {
                if now.duration_since(known.since) >= TOPIC_WAIT_MAX {
                    let (what, fix) = (known.what.clone(), known.hint.clone());
                    return Err(ReplayError::Topic { topic, what, fix });
                }
            }
            Some(_) | None => {
                let what = "it does not exist, or Postrider's user may not write to it".to_owned();
                self.failing_topic = Some(FailingTopic { topic, what, hint: None, since: now });
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

    /// Closes the sink.
    pub(super) fn close(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.close(Duration::from_secs(1));
        }
    }

    /// Handles the posts of the sink. Reports go to the tracker and the tally; what has to be read again is left to the
    /// loop in `run`.
    pub(super) fn take_posts(
        &mut self,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<(), ReplayError> {
        let mut posts = std::mem::take(&mut self.posts);
        posts.clear();
        self.mailbox.take(&mut posts);
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.report(ticket, outcome)?,
                Post::Retry | Post::Located => {}
                Post::Down { reason, hint, topic, missing: _ } => {
                    if let (Some(failing_topic), Some(topic)) = (&mut self.failing_topic, topic)
                        && failing_topic.topic == topic
                    {
                        failing_topic.what.clone_from(&reason);
                        failing_topic.hint.clone_from(&hint);
                    }
                    report(ReplayUpdate::Down(&reason, hint.as_deref()));
                }
                Post::Up { topic: _ } => report(ReplayUpdate::Up),
                Post::Broken { .. } => self.reset = true,
                Post::Unfit { reason, hint } => {
                    return Err(ReplayError::SinkUnfit { reason, hint });
                }
            }
        }
        self.posts = posts;
        Ok(())
    }

    fn report(&mut self, ticket: Ticket, outcome: Outcome) -> Result<(), ReplayError> {
        // A report of a producer that was given up.
        let Some(sent) = self.flight.remove(&ticket.0) else { return Ok(()) };
        self.flight_bytes = self.flight_bytes.saturating_sub(sent.bytes);
        self.alone &= !sent.alone;
        match outcome {
            Outcome::Acked => {
                self.suspects.remove(&sent.event);
                self.tally.published += 1;
            }
            // A broker refuses whole batches: its answer is about one event only if that event was sent alone.
            Outcome::Rejected { scope: Scope::Event, reason } if reason.of_batch && !sent.alone => {
                self.suspects.insert(sent.event);
                self.reset = true;
                return Ok(());
            }
            Outcome::Rejected { scope: Scope::Event, reason } => {
                self.suspects.remove(&sent.event);
                self.tally.refuse(sent.event, reason.to_string());
            }
            Outcome::Rejected { scope: Scope::Destination | Scope::Broker, .. }
            | Outcome::Unknown => {
                self.reset = true;
                return Ok(());
            }
        }
        self.tracker.resolve(ticket).map(drop).map_err(ReplayError::Broken)
    }

    /// Gives up everything in flight; it is read and sent again, from the recorded progress.
    pub(super) fn give_up_in_flight(&mut self) {
        if let Some(sink) = self.sink.as_mut().filter(|_| self.reset || !self.flight.is_empty()) {
            sink.reset();
        }
        self.tracker.discard_in_flight();
        self.flight.clear();
        self.flight_bytes = 0;
        self.alone = false;
        self.reset = false;
    }
}

fn name_of(position: Option<Position>, id: &str) -> String {
    position.map_or_else(|| id.to_owned(), |at| at.to_string())
}

/// The rate of a replay: so many events a second, evenly distributed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Between two events; zero for no limit.
    gap: Duration,
    /// When the next event is due.
    next: Option<Instant>,
}

impl Pace {
    /// `rate` events a second; 0 for no limit.
    pub(super) fn new(rate: u32) -> Self {
        let gap = if rate == 0 { Duration::ZERO } else { Duration::from_secs(1) / rate };
        Self { gap, next: None }
    }

    /// When to try again, if the next event may not be sent now.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Instant> {
        let floor = now.checked_sub(BURST).unwrap_or(now);
        let next = self.next.map_or(now, |next| next.max(floor));
        self.next = Some(next);
        (next > now && !self.gap.is_zero()).then(|| next + SLICE)
    }

    /// An event was sent.
    pub(super) fn spend(&mut self) {
        self.next = self.next.map(|next| next + self.gap);
    }
}

#[cfg(test)]
mod pace_tests {
    use super::*;

    #[test]
    fn as_many_go_as_the_rate_says_and_pauses_are_not_made_good() {
        let mut pace = Pace::new(1000);
        let start = Instant::now();
        let mut sent = 0;
        let mut at = |pace: &mut Pace, millis: u64| {
            while pace.wait(start + Duration::from_millis(millis)).is_none() {
                pace.spend();
                sent += 1;
            }
            sent
        };
        assert_eq!(at(&mut pace, 0), 1);
        assert_eq!(at(&mut pace, 10), 11);
        assert_eq!(at(&mut pace, 1000), 11 + 21, "20 ms of the pause, and the one that is due");
        assert_eq!(Pace::new(0).wait(start), None);
        let due = start + Duration::from_millis(1001);
        assert_eq!(pace.wait(start + Duration::from_secs(1)), Some(due + SLICE));
    }
}

/// What a replay has done so far. Contains no payloads or keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Events passed to the sink in this run; in a dry run, events that would be.
    pub sent: u64,
    /// Events that the broker has acknowledged, including those of earlier runs.
    pub published: u64,
    /// Changes of the source that were not requested.
    pub passed: u64,
    /// Bytes of keys, values and headers of the sent events.
    pub bytes: u64,
    /// Requested events that were not published, including those of earlier runs.
    pub refused: u64,
    /// The first of them in this run.
    pub refusals: Vec<Refused>,
    /// The first event that was sent: its position, or, from the table, its ID.
    pub first: Option<String>,
    /// Events sent, by topic.
    pub topics: BTreeMap<String, u64>,
    /// Transactions that began before the requested position and committed after it.
    pub straddling: u64,
    last: Last,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Last {
    #[default]
    None,
    At(Position),
    Id(String),
}

/// A requested event that was not published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its position, or, from the table, its ID.
    pub event: String,
    /// Why it was not published.
    pub why: String,
}

impl Tally {
    /// Starts with the counts of earlier runs.
    pub(super) fn resumed_with(published: u64, refused: u64) -> Self {
        Self { published, refused, ..Self::default() }
    }

    /// One event was sent.
    pub(super) fn sent(&mut self, at: Option<Position>, id: &str, topic: &str, bytes: usize) {
        self.sent += 1;
        self.bytes += u64::try_from(bytes).unwrap_or(0);
        match (at, &mut self.last) {
            (Some(at), last) => *last = Last::At(at),
            (None, Last::Id(last)) => id.clone_into(last),
            (None, last) => *last = Last::Id(id.to_owned()),
        }
        if self.first.is_none() {
            self.first = self.last();
        }
        if let Some(count) = self.topics.get_mut(topic) {
            *count += 1;
        } else if self.topics.len() < TOPICS_MAX {
            self.topics.insert(topic.to_owned(), 1);
        }
    }

    /// The last event that was sent, as [`Tally::first`].
    pub fn last(&self) -> Option<String> {
        match &self.last {
            Last::None => None,
            Last::At(at) => Some(at.to_string()),
            Last::Id(id) => Some(id.clone()),
        }
    }

    /// One event can't be published.
    pub(super) fn refuse(&mut self, event: String, why: String) {
        self.refused += 1;
        if self.refusals.len() < REFUSED_MAX {
            self.refusals.push(Refused { event, why });
        }
    }
}

/// The progress of a replay, reported a few times a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayProgress<'a> {
    /// What was done.
    pub tally: &'a Tally,
    /// Time since this run began.
    pub elapsed: Duration,
    /// For the WAL: start, current position and end.
    pub log: Option<(Offset, Offset, Offset)>,
    /// Events in flight.
    pub in_flight: usize,
}

/// What a replay reports while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayUpdate<'a> {
    /// Its progress.
    Progress(ReplayProgress<'a>),
    /// The broker is unavailable, or accepts no records, or the database is unavailable; the replay waits. Reason and
    /// hint.
    Down(&'a str, Option<&'a str>),
    /// The broker or the database is available again.
    Up,
}
