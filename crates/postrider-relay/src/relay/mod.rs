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

mod feedback;
mod flow;
mod input;
mod lanes;
mod parking;
mod stream;
#[cfg(test)]
mod tests;

pub use flow::Limits;
pub use input::{Change, Effect, Input, Restart};
pub use lanes::Counts;
pub use parking::{OnPoison, ParkingRules};
pub use stream::Upcoming;

use crate::ack::bug::{Bug, injected};
use crate::ack::{OrderViolation, Progress, Resolution, Tracker};
use feedback::{Feedback, Tickets};
use flow::{Flow, Slot};
use parking::Parking;
use pg_replication::lsn::Lsn;
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::{Aggregate, PgTime, Position};
use postrider_core::parked::{Entry, Lane, State};
use postrider_core::record::{Outcome, Refusal, Scope, Ticket};
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
    pub rules: ParkingRules,
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
    pub fn deferred_statuses(&self) -> usize {
        self.parking.left_marks()
    }

    /// Whether parked events have reached their bound, so that the intake is shut.
    pub fn parking_is_full(&self) -> bool {
        self.parking.is_full(self.stream.expected())
    }

    /// Whether a parked event or a letter is being tried, or what became of one is not written yet.
    pub fn has_unsettled_attempts(&self) -> bool {
        !self.parking.quiet()
    }

    /// Whether the event just handed over is sent with no other event of the stream in flight.
    pub fn sends_exclusively(&self) -> bool {
        self.flow.sends_exclusively()
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
    pub fn halt_awaits_all(&self) -> bool {
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

// What an input does: events of the stream, sent or parked, and what comes back from the table. What a sink
// says of them is in `reports`.

impl Relay {
    /// Takes one input.
    fn take(
        &mut self,
        now: Duration,
        input: Input<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), OrderViolation> {
        match input {
            Input::Change(change) => self.change(now, change, effects)?,
            Input::Report { ticket, outcome } if self.parking.is_letter(ticket) => {
                self.report_letter(now, ticket, outcome, effects);
            }
            Input::Report { ticket, outcome } if Parking::is_try(ticket) => {
                self.report_try(now, ticket, outcome, effects);
            }
            Input::Report { ticket, outcome } => self.report(ticket, outcome, effects),
            Input::Refused { ticket, reason, halt } => {
                self.refused_at_once(now, ticket, reason, halt, effects);
            }
            Input::NotTaken { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract();
                self.stream.retract();
            }
            Input::Begin { commit_lsn, commit_time } => {
                self.stream.begin(&mut self.tracker, commit_lsn, commit_time)?;
            }
            Input::Commit { commit_lsn, end_lsn } => {
                self.stream.commit(&mut self.tracker, commit_lsn, end_lsn)?;
            }
            Input::Keepalive { wal_end } => self.stream.keepalive(&mut self.tracker, wal_end),
            Input::Started { cursor, same_history, same_owner, parked, requests } => {
                self.start(cursor, (same_history, same_owner), effects);
                self.parking.load(now, parked);
                for (position, request) in requests {
                    self.parking.request(now, *position, *request, self.resolved());
                }
            }
            Input::SinkBroken => {
                let why = self.refused.map_or(Restart::SinkBroken, Restart::Refused);
                self.restart(why, effects);
            }
            Input::SlotTaken => self.slot_taken(effects),
            Input::SourceLost => self.source_lost(effects),
            Input::CursorWritten => self.feedback.written(),
            Input::CursorDeferred => self.feedback.held(),
            Input::ParkingWritten { locked } => self.parking_written(now, locked),
            Input::NeedsExclusive { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract_to_send_alone();
                self.stream.retract();
            }
            Input::RowMissing { ticket } => self.parking.gone(ticket),
            Input::Probed { ticket } => self.parking.sounded(now, ticket),
            Input::DeadRowDeleted { position } => self.parking.deleted(position),
            Input::DeadLetterUnsent { position } => self.parking.unsent(position),
            Input::Unavailable { ticket, soon } => {
                let (state, wait) = self.parking.rules.unavailable(soon);
                self.wait_aside(now, ticket, (state, wait), effects);
            }
            Input::StaleDestination { ticket } => {
                self.wait_aside(now, ticket, (State::Due, Duration::ZERO), effects);
            }
            Input::Request { position, request } => {
                self.parking.request(now, position, request, self.resolved());
            }
            Input::Drain => self.drain(),
            Input::Halt(halt) => self.halt(halt),
            Input::Unreadable(halt) => self.halt_behind(halt),
            Input::Tick => {
                #[cfg(test)]
                self.acknowledge_by_time(effects);
            }
        }
        Ok(())
    }

    fn change(
        &mut self,
        now: Duration,
        change: Change<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), OrderViolation> {
        let Some(upcoming) = self.stream.change()? else { return Ok(()) };
        let ticket = self.tracker.change();
        #[cfg(test)]
        if self.flow.remembered.contains(&upcoming.position) {
            self.flow.skip(ticket);
            self.resolve(ticket);
            return Ok(());
        }
        if self.parking.lanes.knows(upcoming.position) {
            self.flow.skip(ticket);
            self.resolve(ticket);
            return Ok(());
        }
        match change {
            Change::Event { aggregate, size_bytes, wait } => {
                let slot = Slot::new(&upcoming, Lane::of(aggregate), size_bytes);
                match self.to_be_parked(&upcoming, slot.lane, wait) {
                    None => {
                        self.flow.hand_over(ticket, slot);
                        effects.push(Effect::Publish(ticket));
                    }
                    Some((entry, reason)) => {
                        self.flow.aside(ticket, slot);
                        self.park(now, ticket, (entry, reason), size_bytes, effects);
                    }
                }
            }
            Change::Skipped => {
                self.flow.skip(ticket);
                self.resolve(ticket);
            }
            Change::Poison { aggregate, halt } => {
                self.poison(now, ticket, &upcoming, aggregate, halt, effects);
            }
        }
        Ok(())
    }

    /// What an event is parked as before it is sent, and why the broker has refused it; `None` where it is sent.
    fn to_be_parked(
        &self,
        upcoming: &Upcoming,
        lane: Lane,
        wait: Duration,
    ) -> Option<(Entry, Option<Refusal>)> {
        let position = upcoming.position;
        let (state, wait) = if self.parking.lanes.is_blocked(lane) {
            // Whether its own time has come is seen when it is at the head.
            (if wait.is_zero() { State::Behind } else { State::Due }, wait)
        } else if let Some((entry, reason)) = self.parking.condemned(position) {
            return Some((entry, Some(reason)));
        } else if wait.is_zero() {
            return None;
        } else {
            (State::Due, wait)
        };
        let lane = Some(lane);
        Some((Entry { position, lane, state, attempts: 0, wait, overtaken_by: None }, None))
    }

    fn poison(
        &mut self,
        now: Duration,
        ticket: Ticket,
        upcoming: &Upcoming,
        aggregate: Option<Aggregate<'_>>,
        halt: Box<Halt>,
        effects: &mut Vec<Effect>,
    ) {
        if self.parking.rules.on_poison == OnPoison::Stop {
            self.flow.skip(ticket);
            self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            return;
        }
        let lane = aggregate.map(Lane::of);
        let slot = Slot::new(upcoming, lane.unwrap_or_default(), 0);
        self.flow.aside(ticket, slot);
        let entry = self.parking.rules.refused(upcoming.position, lane, true);
        self.park(now, ticket, (entry, None), 0, effects);
    }

    /// The sink will not take the event just handed over; its record is still at hand.
    fn refused_at_once(
        &mut self,
        now: Duration,
        ticket: Ticket,
        reason: Refusal,
        halt: Box<Halt>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.flow.get(ticket) else { return };
        if self.parking.rules.on_poison == OnPoison::Stop {
            self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            return;
        }
        self.flow.put_aside(ticket);
        let hopeless = reason == Refusal::TopicName;
        let mut entry = self.parking.rules.refused(slot.position, Some(slot.lane), hopeless);
        entry.overtaken_by = self.flow.overtaken(slot.position);
        self.park(now, ticket, (entry, None), slot.size_bytes(), effects);
    }

    /// Nothing is known to be wrong with the event just handed over, and yet it is parked: its aggregate waits.
    fn wait_aside(
        &mut self,
        now: Duration,
        ticket: Ticket,
        (state, wait): (State, Duration),
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.flow.get(ticket) else { return };
        self.flow.put_aside(ticket);
        let overtaken_by = self.flow.overtaken(slot.position);
        let (position, lane) = (slot.position, Some(slot.lane));
        let entry = Entry { position, lane, state, attempts: 0, wait, overtaken_by };
        self.park(now, ticket, (entry, None), slot.size_bytes(), effects);
    }

    fn park(
        &mut self,
        now: Duration,
        ticket: Ticket,
        (entry, reason): (Entry, Option<Refusal>),
        size_bytes: usize,
        effects: &mut Vec<Effect>,
    ) {
        self.parking.park(now, ticket, entry, size_bytes as u64);
        if injected(Bug::ParkedBeforeCommit) {
            self.resolve(ticket);
        }
        effects.push(Effect::Park { ticket, entry, reason });
    }

    fn parking_written(&mut self, now: Duration, locked: &[Position]) {
        for ticket in self.parking.written(now, locked) {
            if injected(Bug::ParkedBeforeCommit) {
                continue;
            }
            self.resolve(ticket);
            self.feedback.delivered();
        }
    }

    fn resolve(&mut self, ticket: Ticket) {
        let resolution = self.tracker.resolve(ticket);
        assert_eq!(resolution, Ok(Resolution::Resolved), "of {ticket:?}");
        self.flow.forget_below(self.tracker.low());
    }
}

// What a sink says of events, tries and letters, and what follows: resolved, condemned, put off, or all of it again.
//
// Knows no record. What is resolved goes to the tracker; a refusal that is certain goes to `parking`.

impl Relay {
    fn report(&mut self, ticket: Ticket, outcome: Outcome, effects: &mut Vec<Effect>) {
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

    fn report_try(
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
    fn acknowledge_by_time(&mut self, effects: &mut Vec<Effect>) {
        let low = self.tracker.low();
        if injected(Bug::TimeOutIsAcked) && self.flow.flies(low) {
            self.report(low, Outcome::Acked, effects);
        }
    }

    fn report_letter(
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
                    effects.push(Effect::DeadLetterRefused { position, reason });
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

// Starts, restarts and ends of a stream: what survives them.

impl Relay {
    /// Another owner of the slot has published what we have in flight, and may have published again what we had
    /// resolved: so events come once more from the row on, or an aggregate could end with one of those. The same where
    /// the row is ahead of our own progress.
    /// In another history our progress means nothing: what we took for a repetition there would be a new event.
    fn start(
        &mut self,
        cursor: Progress,
        (same_history, same_owner): (bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        self.feedback.lost();
        let ours = self.stream.started() && same_history && same_owner;
        let ours = ours || (self.stream.started() && injected(Bug::IgnoresOtherOwner));
        let ahead = cursor > self.tracker.progress() && !injected(Bug::IgnoresOtherOwner);
        if !ours || ahead {
            let busy = self.flow.in_flight().0 > 0 || !self.parking.quiet();
            self.tracker.adopt(cursor);
            self.flow.clear();
            self.refused = None;
            if !same_history {
                self.flow.forget_positions();
            }
            if !injected(Bug::KeepsPending) {
                self.parking.forget(same_history);
            }
            self.stream.expect(cursor);
            self.feedback.resumed(cursor, self.unresolved());
            if busy {
                effects.push(Effect::Restart { why: Restart::SlotTaken });
            }
        }
        self.stream.reconnected();
    }

    fn restart(&mut self, why: Restart, effects: &mut Vec<Effect>) {
        let progress = self.tracker.progress();
        self.refused = None;
        #[cfg(test)]
        if injected(Bug::ResendsTheFailed) {
            self.flow.remember_the_landed();
        }
        self.flow.suspect_the_refused();
        self.tracker.give_up();
        self.flow.clear();
        self.parking.given_up();
        self.stream.expect(progress);
        match self.phase {
            Phase::Running => {
                self.parking.lost();
                effects.push(Effect::Restart { why });
            }
            // It may not say that all before it is published when that is in doubt. The stream brings it again.
            Phase::Halting { until: Until::Lowest(_), .. } => {
                self.phase = Phase::Running;
                self.parking.lost();
                effects.push(Effect::Restart { why });
            }
            // Nothing more will be resolved, so the end is here.
            Phase::Halting { ref mut until, .. } => *until = Until::Now,
            Phase::Draining | Phase::Ended => {}
        }
    }

    /// What is in flight is not ours to send, nor is the row ours to write: an end that waited for either is here.
    fn slot_taken(&mut self, effects: &mut Vec<Effect>) {
        self.feedback.lost();
        self.restart(Restart::SlotTaken, effects);
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Running => self.phase = Phase::Running,
            Phase::Draining => {
                effects.extend([Effect::Restart { why: Restart::SlotTaken }, Effect::Drained]);
            }
            Phase::Halting { halt, .. } => {
                effects.extend([Effect::Restart { why: Restart::SlotTaken }, Effect::Halt(halt)]);
            }
            Phase::Ended => {}
        }
    }

    fn source_lost(&mut self, effects: &mut Vec<Effect>) {
        self.feedback.lost();
        self.parking.lost();
        self.stream.disconnected();
        if matches!(self.phase, Phase::Halting { until: Until::Lowest(_), .. }) {
            // Without a row nobody may rely on what was before the poison: it is found again.
            self.restart(Restart::Unknown, effects);
        }
        // A cursor row can't be written any more: what is repeated then is what the row does not show.
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Running => self.phase = Phase::Running,
            Phase::Draining => effects.push(Effect::Drained),
            Phase::Halting { halt, .. } => effects.push(Effect::Halt(halt)),
            Phase::Ended => {}
        }
    }

    fn drain(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining;
        }
    }

    fn halt(&mut self, halt: Box<Halt>) {
        // The first reason stands.
        if !matches!(self.phase, Phase::Halting { .. }) {
            self.phase = Phase::Halting { halt, until: Until::Quiet };
        }
    }

    /// Once all that has come is resolved.
    fn halt_behind(&mut self, halt: Box<Halt>) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Halting { halt, until: Until::Lowest(self.tracker.next()) };
        }
    }

    fn violated(&mut self, broken: OrderViolation) {
        let halt = Box::new(violation(broken));
        self.phase = Phase::Halting { halt, until: Until::Now };
    }
}

// What a relay is on its way to: running, draining or halting, and what an end waits for.

#[derive(Debug)]
enum Phase {
    Running,
    Draining,
    Halting { halt: Box<Halt>, until: Until },
    Ended,
}

/// What a halt waits for.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// All before the poison to be resolved, or before what can't be read.
    Lowest(Ticket),
    /// Everything in flight to be reported.
    Quiet,
    /// Nothing: no report can be trusted any more.
    Now,
}

fn poison(position: Position, reason: Refusal) -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: format!("the event at position {position} can't be published: {reason}"),
        meaning: "everything before it is published; it and all that follows wait in the database"
            .into(),
        hint: "fix the destination so that it accepts the event, then start again".into(),
    }
}

fn violation(broken: OrderViolation) -> Halt {
    Halt {
        reason: HaltReason::Protocol,
        message: format!("the stream broke its own order: {broken}"),
        meaning: "nothing is confirmed that was not published; going on could lose events".into(),
        hint: "start again; if it comes back, report it with the server's version".into(),
    }
}
