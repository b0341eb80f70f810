//! The relay: one synchronous state machine that decides what is published, what may be confirmed, and when to stop.
//!
//! Owns the order of events, the bounds on what is in flight, and the only [`Tracker`]. It takes one [`Input`] at a
//! time with the time it happened and answers with [`Effect`]s; the driver alone waits. It has no clock, socket, lock
//! or random number, and it never sees a payload: an event is its aggregate, its size and its ticket, and the record
//! itself stays with the driver, which publishes the one at hand when told to.
//!
//! The price of a machine that can't wait is that work of several steps (drain, halt) is spelt out as a [`Phase`],
//! and is looked at again after every input ([`Relay::settle`]).
//!
//! ```text
//! Begin Change* Commit ─▶ stream ─▶ tracker ─▶ feedback ─▶ WriteCursor ─▶ (written) ─▶ Confirm
//!                            ├────▶ flow ─▶ Publish ─▶ (report) ─▶ tracker
//!                            └────▶ parking ─▶ Park, WriteParking ─▶ (written) ─▶ tracker
//!                                      ├─ lanes ─▶ Try ─▶ (report) ─▶ WriteParking
//!                                      └─ letters ─▶ Letter ─▶ (report) ─▶ WriteParking
//! ```

mod effect;
mod ends;
mod events;
mod feedback;
mod flow;
mod input;
mod lanes;
mod parking;
mod phase;
mod reports;
mod stream;

pub use effect::{Effect, Restart};
pub use flow::Limits;
pub use input::{Change, Input};
pub use lanes::Counts;
pub use parking::{OnPoison, Rules};
pub use stream::Upcoming;

use crate::ack::bug::{Bug, injected};
use crate::ack::{Progress, Tracker};
use feedback::{Feedback, Tickets};
use flow::Flow;
use parking::Parking;
use pg_replication::lsn::Lsn;
use phase::{Phase, Until};
use postrider_core::error::Halt;
use postrider_core::event::{Aggregate, PgTime, Position};
use postrider_core::parked::{Lane, State};
use postrider_core::record::{Refusal, Ticket};
use std::time::Duration;
use stream::Stream;

/// What an operator may set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds on what is in flight.
    pub limits: Limits,
    /// Pause between two cursor rows while events are delivered.
    pub cursor_interval: Duration,
    /// How events are parked and tried again.
    pub rules: Rules,
}

/// The relay of one pipeline.
#[derive(Debug)]
pub struct Relay {
    tracker: Tracker,
    stream: Stream,
    flow: Flow,
    feedback: Feedback,
    parking: Parking,
    phase: Phase,
    /// A broker refused a batch: nothing more is sent until all of it is reported, or the sink says it is broken.
    refused: Option<Refusal>,
    /// When all that follows of the inputs so far was seen to.
    settled_at: Option<Duration>,
}

impl Relay {
    /// A relay that has not started yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            tracker: Tracker::new(Progress::default()),
            stream: Stream::default(),
            flow: Flow::new(settings.limits, settings.rules.strict),
            feedback: Feedback::new(settings.cursor_interval),
            parking: Parking::new(settings.rules),
            phase: Phase::Running,
            refused: None,
            settled_at: None,
        }
    }

    /// One step. `now` is the time since any fixed moment; it never goes back.
    pub fn apply(&mut self, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let is_event = matches!(input, Input::Change(Change::Event { .. }));
        if let Err(broken) = self.take(now, input, effects) {
            self.violated(broken);
        }
        // Fast path: one more event at the same time as the input before, so no timer and no report can have become
        // due.
        let nothing_new = is_event && self.settled_at == Some(now) && self.is_at_ease(now);
        if !nothing_new {
            self.settle(now, effects);
            self.settled_at = Some(now);
        }
    }

    /// Whether the next change may be taken. While it is not, the driver keeps its place and waits for reports.
    ///
    /// An event of a refused batch, which is sent alone, waits until all before it is resolved, parked rows too: where
    /// it is refused, the stream begins again behind what is resolved, and what was published behind a row that is not
    /// committed would come twice.
    pub fn intake_open(&self) -> bool {
        matches!(self.phase, Phase::Running)
            && self.refused.is_none()
            && self.flow.has_room(self.stream.expected(), self.parking.tries())
            && (self.tracker.span() == 0 || !self.flow.is_suspicious(self.stream.expected()))
            && self.may_go_on()
            && !self.row_lags()
    }

    fn row_lags(&self) -> bool {
        let next = Tickets { from: self.tracker.next().0, skipped: self.flow.skipped() };
        self.feedback.lags(next, self.flow.events_max())
    }

    fn unresolved(&self) -> Tickets {
        Tickets { from: self.tracker.low().0, skipped: self.flow.skipped() }
    }

    fn may_go_on(&self) -> bool {
        self.tracker.span() < flow::SPAN_MAX
            && (self.parking.idle()
                || (self.parking.has_room(self.stream.expected())
                    && !self.parking.needs_quiet(self.durable())))
    }

    /// What the next change waits for, in an operator's words; `None` while it may be taken.
    pub fn waits_for(&self) -> Option<&'static str> {
        if self.intake_open() {
            return None;
        }
        let next = self.stream.expected();
        Some(if !matches!(self.phase, Phase::Running) {
            "the beginning of the stream"
        } else if self.refused.is_some() {
            "answers to all that is in flight, after a refusal"
        } else if self.row_lags() && self.feedback.is_held() {
            "rows of the outbox table that another session has locked: a million events are published behind them"
        } else if self.row_lags() {
            "PostgreSQL to commit the cursor row"
        } else if self.parking_is_full() {
            "room among the parked events: parking.rows_max is reached"
        } else if !self.parking.has_room(next) {
            "PostgreSQL to commit rows of parked events"
        } else if self.tracker.span() >= flow::SPAN_MAX {
            "the answer to the oldest event in flight, with a million behind it"
        } else if self.parking.needs_quiet(self.durable()) {
            "a parked event that is tried alone, after a refused batch"
        } else if self.flow.is_suspicious(next) {
            "the answer to an event that is sent alone, one at a time, after a refused batch"
        } else if self.flow.goes_alone(next) {
            "answers to what is in flight, or to an event that is sent by itself: it is larger than its topic takes \
             before compression"
        } else {
            "answers: as much is in flight as in_flight_events and in_flight_bytes allow"
        })
    }

    /// Whether an event of this aggregate may be handed over now; while it may not, the driver keeps its place.
    pub fn admits(&self, aggregate: Aggregate<'_>) -> bool {
        !self.parking.rules.strict || self.flow.admits(Lane::of(aggregate))
    }

    /// Changes to rows of parked events that could not be written when they were last to be: the rows are locked.
    pub fn marks_left(&self) -> usize {
        self.parking.left_marks()
    }

    /// Whether parked events have reached their bound, so that the intake is shut.
    pub fn parking_is_full(&self) -> bool {
        self.parking.is_full(self.stream.expected())
    }

    /// Whether a parked event or a letter is being tried, or what became of one is not written yet.
    pub fn is_trying(&self) -> bool {
        !self.parking.quiet()
    }

    /// Whether the event just handed over is sent with no other event of the stream in flight.
    pub fn sends_alone(&self) -> bool {
        self.flow.sends_alone()
    }

    /// How many events are parked.
    pub fn parked(&self) -> Counts {
        self.parking.counts()
    }

    /// How many lanes are blocked.
    pub fn blocked_lanes(&self) -> usize {
        self.parking.lanes.blocked()
    }

    /// The first parked events that others wait behind, in order of the stream: where, state, attempts, and when they
    /// are tried next, by the relay's clock.
    pub fn heads(&self, most: usize) -> Vec<(Position, State, u32, Duration)> {
        self.parking.lanes.heads(most)
    }

    /// The first dead events: only a person moves them, maybe by deleting their rows.
    pub fn dead(&self, most: usize) -> Vec<Position> {
        if self.parking.counts().dead == 0 {
            return Vec::new();
        }
        self.parking.lanes.dead(most)
    }

    /// What the next change of the stream is, or `None` where an earlier session has dealt with it.
    pub fn upcoming(&self) -> Option<Upcoming> {
        self.stream.upcoming()
    }

    /// Whether a later event of its aggregate was published before this one, which is to be published only now.
    pub fn is_overtaken(&self, position: Position) -> bool {
        self.flow.is_overtaken(position)
    }

    /// The ticket of the next change, if it gets one.
    pub fn next_ticket(&self) -> Ticket {
        self.tracker.next()
    }

    /// How far the stream is resolved.
    pub fn progress(&self) -> Progress {
        self.tracker.progress()
    }

    /// The highest position received.
    pub fn received(&self) -> Lsn {
        self.tracker.received()
    }

    /// Events and bytes that were handed over and have no report.
    pub fn in_flight(&self) -> (u64, u64) {
        let (events, bytes) = self.flow.in_flight();
        (events + self.parking.tries() as u64, bytes)
    }

    /// Commit time of the oldest event without an outcome.
    pub fn oldest_unresolved(&self) -> Option<PgTime> {
        self.flow.oldest()
    }

    /// When the relay next wants a [`Input::Tick`], by the clock of `now`.
    pub fn deadline(&self) -> Option<Duration> {
        let row = self.feedback.deadline(self.tracker.progress());
        let due = self.parking.deadline().filter(|_| self.tries_allowed());
        [row, due, self.parking.locked_until()].into_iter().flatten().min()
    }

    /// Whether the relay has said [`Effect::Drained`] or [`Effect::Halt`].
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The halt that waits for what is in flight.
    pub fn halting(&self) -> Option<&Halt> {
        match &self.phase {
            Phase::Halting { halt, .. } => Some(halt),
            Phase::Running | Phase::Draining | Phase::Ended => None,
        }
    }

    /// Whether a halt waits for all that has come, and is forgotten where the stream brings it again. Not that for a
    /// poison, behind which the stream goes on.
    pub fn halts_behind_all(&self) -> bool {
        let next = self.tracker.next();
        matches!(self.phase, Phase::Halting { until: Until::Lowest(last), .. } if last == next)
    }

    /// Whether the intake is shut for good: draining, halting or ended.
    pub fn stopping(&self) -> bool {
        !matches!(self.phase, Phase::Running)
    }

    /// Every change of the stream below it is resolved.
    fn resolved(&self) -> Position {
        self.tracker.progress().position()
    }

    /// The cursor row says that every change below it is resolved: no restart brings it again.
    ///
    /// Parked events below it may be tried. One above it would be published, marked as done, and passed over when a
    /// restart brings the events before it once more: its aggregate would end with one of those.
    fn durable(&self) -> Position {
        if injected(Bug::TriesAhead) {
            return Position { commit_lsn: Lsn::from_wire(u64::MAX), ordinal: 0 };
        }
        if injected(Bug::TriesAboveRow) {
            return self.resolved();
        }
        self.feedback.row().position()
    }

    /// Whether parked events may be tried: not beside an event of the stream that a refusal has to be certain of.
    fn tries_allowed(&self) -> bool {
        let one_at_a_time = self.flow.is_suspicious(self.stream.expected()) && self.may_go_on();
        matches!(self.phase, Phase::Running) && self.refused.is_none() && !one_at_a_time
    }

    /// Whether events come and go, and nothing else is under way.
    fn is_at_ease(&self, now: Duration) -> bool {
        matches!(self.phase, Phase::Running) && self.refused.is_none() && self.parking.asleep(now)
    }

    /// What holds after every input: parked rows are written, heads are tried, the cursor follows the watermark, the
    /// confirmation follows the cursor, and a phase that has nothing left to wait for ends.
    fn settle(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let nothing_flies = self.flow.in_flight().0 == 0 && self.parking.tries() == 0;
        if let Some(reason) = self.refused.filter(|_| nothing_flies) {
            self.restart(Restart::Refused(reason), effects);
        }
        // Nothing is parked, or nothing of it is due: events pay for no more than this.
        let parks = !self.parking.asleep(now);
        if parks && self.tries_allowed() {
            let in_flight = self.flow.in_flight().0;
            self.parking.tick(now, (self.resolved(), self.durable()), in_flight, effects);
        }
        if parks {
            effects.extend(self.parking.write_due(now));
        }
        let progress = self.tracker.progress();
        let quiet = self.flow.in_flight().0 == 0 && self.parking.quiet();
        let last = match &self.phase {
            Phase::Running => false,
            Phase::Draining | Phase::Halting { until: Until::Quiet, .. } => quiet,
            Phase::Halting { until: Until::Lowest(poison), .. } => self.tracker.low() == *poison,
            Phase::Halting { until: Until::Now, .. } => true,
            Phase::Ended => return,
        };
        let wanted = parks && self.parking.waits_for_row(self.durable(), progress.position());
        let standing = (progress, self.unresolved());
        if let Some(row) = self.feedback.cursor_due(now, standing, last || wanted) {
            effects.push(Effect::WriteCursor(row));
        }
        if let Some(watermark) = self.feedback.confirmable() {
            effects.push(Effect::Confirm(watermark));
        }
        if last && self.feedback.settled(progress) {
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Draining => effects.push(Effect::Drained),
                Phase::Halting { halt, .. } => effects.push(Effect::Halt(halt)),
                Phase::Running | Phase::Ended => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
