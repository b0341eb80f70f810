//! Publishes the events of a replay: which event is sent now, and what the reports of the broker lead to.
//!
//! [`Relay`] decides what may be in flight, what is sent with nothing else in flight, what is resolved, and when
//! everything above the progress is offered again, with the rules of the live stream. Two things differ from the live
//! stream. Nothing is parked: an event that can't be published is listed, and the next one is sent
//! ([`Input::LeaveOut`]). And a slot is never moved: the cursor row is the row of the replay.

#[cfg(test)]
mod tests;

use super::ReplayError;
use super::plan::Choice;
use super::tally::{Account, ReplayUpdate, Tally};
use crate::ack::Progress;
use crate::error::Halt;
use crate::event::{Aggregate, Position};
use crate::offset::{Offset, Watermark};
use crate::outbox::{At, MapError, Mapped};
use crate::parked::Lane;
use crate::record::{Header, Outcome, Record, Scope, Ticket};
use crate::relay::{
    Change, Effect, HaltWords, Input, Limits, OnPoison, ParkingRules, Relay, Settings,
};
use crate::sink::{Mailbox, NotTaken, Post, Sink};
use crate::timestamp::Timestamp;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Events in flight at most.
pub(super) const EVENTS_MAX: usize = 5_000;

/// Bytes of keys, values and headers in flight at most, with what the sink holds beside each record. One event is
/// always accepted.
pub(super) const BYTES_MAX: usize = 8 << 20;

/// The longest pause between two writes of progress while events are published. After a kill the events in flight, and
/// those acknowledged within this time, are published twice.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a destination may refuse everything while its broker answers, before the replay ends with an error.
const TOPIC_WAIT_MAX: Duration = Duration::from_secs(10);

/// The header that only replayed events have.
const HEADER: &str = "replay";

/// How much unused time may be made up for: a timer fires some milliseconds late.
const BURST: Duration = Duration::from_millis(20);

/// Events that are due within this time are sent together: waking up for each event would take more time from the live
/// stream than sending it.
const SLICE: Duration = Duration::from_millis(5);

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

impl ParkedLanes {
    /// Whether the event of this aggregate that is offered now is left out.
    fn leave_out(&mut self, aggregate: Aggregate<'_>) -> bool {
        if self.now.is_empty() && self.left_out.is_empty() {
            return false;
        }
        let lane = Lane::of(aggregate);
        let is = self.now.contains(&lane) || self.left_out.contains(&lane);
        if is {
            self.left_out.insert(lane);
        }
        is
    }
}

/// Which events of the source are sent.
pub(super) struct Selection {
    /// The start that was requested, or that an earlier run has reached. It may be inside a transaction, and need not
    /// be the position of a change.
    pub(super) start: Position,
    /// Which events were requested.
    pub(super) choice: Choice,
    /// `None` if parked events do not matter.
    pub(super) parked: Option<ParkedLanes>,
}

/// What a replay changes in a record.
pub(super) struct Stamp {
    /// A topic in place of each event's own.
    pub(super) to: Option<String>,
    /// Name of the replay, for the header.
    pub(super) name: String,
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

/// Effects of the relay that the loop of the replay performs.
#[derive(Default)]
struct Due {
    /// Progress is to be written.
    cursor: bool,
    /// The source is to be read again from the progress. The sink was reset.
    restart: bool,
    /// The stream contradicts itself.
    halt: Option<Box<Halt>>,
}

/// Publishes the changes of a source, and tracks which of them are resolved.
pub(super) struct Publisher {
    /// What is in flight, and what is resolved.
    relay: Relay,
    /// Scratch space for effects.
    effects: Vec<Effect>,
    /// Effects that the loop performs.
    due: Due,
    /// The moment from which the relay's clock counts.
    epoch: Instant,
    /// The sink, and what it holds beside the bytes of a record; `None` in a dry run.
    sink: Option<(Box<dyn Sink>, usize)>,
    /// Posts of the sink.
    mailbox: Mailbox,
    /// Scratch space for posts.
    posts: Vec<Post>,
    /// Limits the rate.
    pace: Pace,
    /// Which events are sent.
    pub(super) selection: Selection,
    /// What is changed in each record.
    stamp: Stamp,
    /// What became of the events.
    account: Account,
    /// A destination that accepts no records.
    failing_topic: Option<FailingTopic>,
}

/// The parts of a new publisher.
pub(super) struct PublisherParts {
    /// The sink, and its [`held_bytes`](crate::sink::Capabilities::held_bytes); `None` for a dry run.
    pub(super) sink: Option<(Box<dyn Sink>, usize)>,
    /// Posts of the sink.
    pub(super) mailbox: Mailbox,
    /// Events a second; 0 for no limit.
    pub(super) rate: u32,
    /// Which events are sent.
    pub(super) selection: Selection,
    /// What is changed in each record.
    pub(super) stamp: Stamp,
    /// What became of the events of earlier runs.
    pub(super) account: Account,
}

impl Publisher {
    pub(super) fn new(parts: PublisherParts) -> Self {
        let mut publisher = Self {
            relay: Relay::new(settings()),
            effects: Vec::new(),
            due: Due::default(),
            epoch: Instant::now(),
            sink: parts.sink,
            mailbox: parts.mailbox,
            posts: Vec::new(),
            pace: Pace::new(parts.rate),
            selection: parts.selection,
            stamp: parts.stamp,
            account: parts.account,
            failing_topic: None,
        };
        let watermark = Watermark::resumed(publisher.selection.start.commit);
        publisher.started_at(Progress { watermark, partial: None });
        publisher
    }

    /// A session with the source starts at the progress. What is in flight stays in flight, and changes that are not
    /// resolved are recognised when the source repeats them.
    pub(super) fn session_started(&mut self) {
        self.due.restart = false;
        self.started_at(self.relay.progress());
    }

    fn started_at(&mut self, cursor: Progress) {
        // The lock makes this process the only one that writes the row of the replay.
        let (same_history, same_owner) = (true, true);
        let (parked, requests) = (&[], &[]);
        let started = Input::Started { cursor, same_history, same_owner, parked, requests };
        self.apply(Instant::now(), started);
    }

    /// The session with the source has ended. A source without positions can't repeat changes so that they are
    /// recognised: everything that is not resolved is given up, and is sent again.
    pub(super) fn session_lost(&mut self) {
        self.apply(Instant::now(), Input::SourceLost);
        if !self.account.knows_positions() && self.in_flight() > 0 {
            self.apply(Instant::now(), Input::SinkBroken);
        }
        self.settle();
    }

    /// Every event below this position is resolved, or was not requested.
    pub(super) fn done(&self) -> Position {
        self.relay.progress().position().max(self.selection.start)
    }

    /// Where the source is to be read from: the commit of the first transaction that is not done.
    pub(super) fn read_from(&self) -> Offset {
        self.relay.progress().position().commit
    }

    /// Whether a change is before the start that was requested.
    pub(super) fn is_before_start(&self, position: Position) -> bool {
        position < self.selection.start
    }

    /// The counts.
    pub(super) fn tally(&self) -> &Tally {
        &self.account.tally
    }

    /// From the table: the last row that is done.
    pub(super) fn row_done(&self) -> Option<&str> {
        self.account.row_done()
    }

    pub(super) fn in_flight(&self) -> usize {
        usize::try_from(self.relay.in_flight().0).unwrap_or(usize::MAX)
    }

    /// Whether every event that was sent is resolved. After a restart no event is in flight, and what is not resolved
    /// is read and sent again.
    pub(super) fn is_settled(&self) -> bool {
        self.in_flight() == 0 && !self.due.restart
    }

    /// Whether the source is to be read again from the progress.
    pub(super) fn restarts(&self) -> bool {
        self.due.restart
    }

    /// Whether progress is to be written. [`Publisher::cursor_written`] is the answer.
    pub(super) fn cursor_is_due(&self) -> bool {
        self.due.cursor
    }

    /// Progress is written.
    pub(super) fn cursor_written(&mut self) {
        self.due.cursor = false;
        self.apply(Instant::now(), Input::CursorWritten);
    }

    /// Waits for a post of the sink. Cancel-safe.
    pub(super) async fn posted(&self) {
        self.mailbox.arrived().await;
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The source contradicts itself.
    pub(super) fn tick(&mut self) -> Result<(), ReplayError> {
        self.apply(Instant::now(), Input::Tick);
        self.settle();
        match self.due.halt.take() {
            Some(halt) => Err(ReplayError::Broken(halt)),
            None => Ok(()),
        }
    }

    /// A transaction begins.
    pub(super) fn begin(&mut self, commit: Offset, commit_time: Timestamp, now: Instant) {
        self.apply(now, Input::Begin { commit, commit_time });
    }

    /// The open transaction is complete.
    pub(super) fn commit(&mut self, commit: Offset, end: Offset, now: Instant) {
        self.apply(now, Input::Commit { commit, end });
    }

    /// The source has nothing more below this offset.
    pub(super) fn keepalive(&mut self, upto: Offset, now: Instant) {
        self.apply(now, Input::Keepalive { upto });
    }

    /// One transaction began before the requested position and committed after it.
    pub(super) fn straddles(&mut self, commit: Offset) {
        self.account.tally.straddles(commit);
    }

    /// Position and commit time of the next change; `None` if the change was dealt with before, so that
    /// [`Publisher::skip`] is to take it.
    pub(super) fn upcoming(&self) -> Option<At> {
        let next = self.relay.upcoming()?;
        Some(At { position: next.position, commit_time: next.commit_time })
    }

    /// Whether the next change may be offered.
    pub(super) fn intake_open(&self) -> bool {
        self.relay.intake_open()
    }

    /// Whether the source contradicts itself, so that nothing more is offered.
    pub(super) fn is_stopping(&self) -> bool {
        self.relay.stopping()
    }

    /// Skips one change that is no requested event.
    pub(super) fn pass(&mut self, now: Instant) -> Offered {
        self.account.tally.passed += 1;
        self.skip(now)
    }

    /// Resolves one change at once.
    pub(super) fn skip(&mut self, now: Instant) -> Offered {
        self.apply(now, Input::Change(Change::Skipped));
        Offered::Done
    }

    /// The row that was offered last, whose number is its offset.
    pub(super) fn row_offered(&mut self, number: Offset, id: String) {
        self.account.offered(number, id);
    }

    /// Takes the [upcoming](Publisher::upcoming) change: sends its event, leaves it out, or returns when to offer it
    /// again.
    pub(super) fn offer(
        &mut self,
        mapped: Result<Option<Mapped<'_>>, MapError>,
        now: Instant,
    ) -> Result<Offered, ReplayError> {
        let Some(at) = self.upcoming() else { return Ok(self.skip(now)) };
        if !self.account.has_room() {
            self.settle();
        }
        if !self.account.has_room() {
            return Ok(Offered::Wait(None));
        }
        let choice = &mut self.selection.choice;
        let mapped = match mapped {
            Ok(Some(mapped)) => mapped,
            Ok(None) => return Ok(self.pass(now)),
            Err(MapError::Poison(poison)) => {
                let partial = &poison.partial;
                let aggregate = partial.aggregate.as_ref();
                let aggregate = aggregate.map(|(kind, id)| Aggregate { kind, id });
                let id = partial.event_id.as_deref().unwrap_or_default();
                if !choice.takes(id, aggregate, at.commit_time) {
                    return Ok(self.pass(now));
                }
                self.account.refuse_offered(at.position, id, poison.problem.to_string());
                return Ok(self.skip(now));
            }
            Err(error) => return Err(ReplayError::Unfit(error)),
        };
        if !choice.takes(mapped.event_id, Some(mapped.aggregate), at.commit_time) {
            return Ok(self.pass(now));
        }
        let parked = &mut self.selection.parked;
        if parked.as_mut().is_some_and(|parked| parked.leave_out(mapped.aggregate)) {
            let why = "its aggregate has parked events".to_owned();
            self.account.refuse_offered(at.position, mapped.event_id, why);
            return Ok(self.skip(now));
        }
        if let Some(due) = self.pace.wait(now).filter(|_| self.sink.is_some()) {
            return Ok(Offered::Wait(Some(due)));
        }
        self.send(&mapped, at, now)
    }

    fn send(&mut self, mapped: &Mapped<'_>, at: At, now: Instant) -> Result<Offered, ReplayError> {
        let own = mapped.record();
        let shown = self.account.shown(at.position);
        let header_bytes = HEADER.len() + self.stamp.name.len();
        let Some((_, beside)) = &self.sink else {
            let topic = self.stamp.to.as_deref().unwrap_or(own.topic);
            let bytes = own.size_bytes() + header_bytes;
            self.account.tally.sent(shown, mapped.event_id, topic, bytes);
            return Ok(self.skip(now));
        };
        let size_bytes = own.held_bytes(*beside).saturating_add(header_bytes);
        let (aggregate, wait) = (mapped.aggregate, Duration::ZERO);
        let event = Input::Change(Change::Event { aggregate, size_bytes, wait });
        let Some(ticket) = self.apply(now, event) else { return Ok(Offered::Wait(None)) };
        let Self { sink: Some((sink, _)), stamp, relay, .. } = self else {
            return Ok(Offered::Wait(None));
        };
        let mut headers = Vec::with_capacity(own.headers.len() + 1);
        headers.extend_from_slice(own.headers);
        headers.push(Header { name: HEADER, value: Some(stamp.name.as_bytes()) });
        let topic = stamp.to.as_deref().unwrap_or(own.topic);
        let record = Record { topic, headers: &headers, ..own };
        let mut taken = sink.enqueue(ticket, &record);
        if taken == Err(NotTaken::Alone) && relay.sends_exclusively() {
            taken = sink.enqueue_alone(ticket, &record, None);
        }
        match taken {
            Ok(()) => {
                self.pace.spend();
                self.failing_topic.take_if(|failing| failing.topic == topic);
                self.account.tally.sent(shown, mapped.event_id, topic, record.size_bytes());
                Ok(Offered::Done)
            }
            Err(NotTaken::Refused(reason)) => {
                self.account.refuse_offered(at.position, mapped.event_id, reason.to_string());
                self.apply(now, Input::LeaveOut { ticket });
                Ok(Offered::Done)
            }
            Err(NotTaken::Unavailable | NotTaken::Missing) => {
                let topic = topic.to_owned();
                self.apply(now, Input::NotTaken { ticket });
                self.refused_by(topic, now)
            }
            Err(NotTaken::Alone) => {
                self.apply(now, Input::NeedsExclusive { ticket });
                Ok(Offered::Wait(None))
            }
            Err(NotTaken::Full | NotTaken::Destination | NotTaken::Doubted(_)) => {
                self.apply(now, Input::NotTaken { ticket });
                Ok(Offered::Wait(None))
            }
        }
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

    /// Closes the sink, and returns what became of the events.
    pub(super) fn close(mut self) -> (Tally, Choice) {
        if let Some((sink, _)) = &mut self.sink {
            sink.close(Duration::from_secs(1));
        }
        (self.account.tally, self.selection.choice)
    }

    /// Handles the posts of the sink. What has to be read again is left to the loop in `run`.
    pub(super) fn take_posts(
        &mut self,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<(), ReplayError> {
        let mut posts = std::mem::take(&mut self.posts);
        posts.clear();
        self.mailbox.take(&mut posts);
        let now = Instant::now();
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.report(ticket, outcome, now),
                Post::Published { ticket, placement: _ } => {
                    self.report(ticket, Outcome::Acked, now);
                }
                // A replay is refused with a sink that publishes in transactions.
                Post::Retry | Post::Located | Post::Recovered { .. } | Post::Committed { .. } => {}
                Post::Down { reason, hint, topic, missing: _ } => {
                    if let (Some(failing_topic), Some(topic)) = (&mut self.failing_topic, topic)
                        && failing_topic.topic == topic
                    {
                        failing_topic.what.clone_from(&reason);
                        failing_topic.hint.clone_from(&hint);
                    }
                    report(ReplayUpdate::Down(&reason, hint.as_deref()));
                }
                Post::Held { topic: _, reason, hint } => {
                    report(ReplayUpdate::Down(&reason, hint.as_deref()));
                }
                Post::Up { topic: _ } => report(ReplayUpdate::Up),
                Post::Broken { .. } => {
                    self.apply(now, Input::SinkBroken);
                }
                Post::Unfit { reason, hint } => {
                    return Err(ReplayError::SinkUnfit { reason, hint });
                }
            }
        }
        self.posts = posts;
        self.settle();
        Ok(())
    }

    fn report(&mut self, ticket: Ticket, outcome: Outcome, now: Instant) {
        if let Outcome::Rejected { scope: Scope::Event, reason } = outcome
            && let Some(at) = self.relay.certainly_refused(ticket, reason)
        {
            self.account.refuse_sent(at, reason.to_string());
            self.apply(now, Input::LeaveOut { ticket });
        } else {
            self.apply(now, Input::Report { ticket, outcome });
        }
    }

    /// Counts what the progress has passed.
    fn settle(&mut self) {
        self.account.settle(self.relay.progress().position());
    }

    /// Applies an input to the relay, and performs the effects. Returns the ticket of an event that is to be passed to
    /// the sink.
    fn apply(&mut self, now: Instant, input: Input<'_>) -> Option<Ticket> {
        let mut effects = std::mem::take(&mut self.effects);
        self.relay.apply(now.saturating_duration_since(self.epoch), input, &mut effects);
        let mut publish = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Publish(ticket) => publish = Some(ticket),
                Effect::Published { .. } => self.account.tally.published += 1,
                Effect::WriteCursor(_) => self.due.cursor = true,
                Effect::Restart { .. } => self.restart(),
                Effect::Halt(halt) => self.due.halt = Some(halt),
                // The slot of a bookmark is never moved, nothing is parked, and a replay ends without a drain. An
                // event that was overtaken keeps its position, because consumers skip replayed events by it.
                Effect::Confirm(_)
                | Effect::Overtaken { .. }
                | Effect::Drained
                | Effect::Park { .. }
                | Effect::WriteParking { .. }
                | Effect::Attempt { .. }
                | Effect::Probe { .. }
                | Effect::DeadLetter { .. }
                | Effect::DeadLetterRefused { .. }
                | Effect::RecoverSink { .. }
                | Effect::CommitSink { .. }
                | Effect::Released { .. } => {}
            }
        }
        self.effects = effects;
        publish
    }

    /// Everything in flight is given up; it is read and sent again, from the progress.
    fn restart(&mut self) {
        if let Some((sink, _)) = &mut self.sink {
            sink.reset();
        }
        self.settle();
        self.account.discard_ahead();
        self.due.restart = true;
    }
}

/// The settings of the relay of a replay.
fn settings() -> Settings {
    Settings {
        limits: Limits { events_max: EVENTS_MAX as u64, bytes_max: BYTES_MAX as u64 },
        cursor_interval: SAVE_INTERVAL,
        idle_step: 1,
        words: HaltWords::POSTGRES,
        // Nothing is parked, so no field has an effect.
        rules: ParkingRules {
            on_poison: OnPoison::Stop,
            attempts_max: 1,
            step: SAVE_INTERVAL,
            steps_max: 1,
            rows_max: 1,
            strict: false,
            dead_letters: false,
        },
        transactions: None,
    }
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
