//! The relay: a synchronous state machine that decides what is published, what may be confirmed, and when to stop.
//!
//! [`Relay::apply`] takes one [`Input`] with its time and returns [`Effect`]s; only the pipeline waits. The relay sees
//! of an event its aggregate, size and ticket; the record stays with the pipeline. Because the machine can't wait, work
//! of several steps (drain, halt) is a [`Phase`], which is checked after every input ([`Relay::settle`]).
//!
//! ```text
//! Begin Change* Commit ─▶ stream ─▶ tracker ─▶ feedback ─▶ WriteCursor ─▶ (written) ─▶ Confirm
//!                            ├────▶ flow ─▶ Publish ─▶ (report) ─▶ tracker
//!                            └────▶ parking ─▶ Park, WriteParking ─▶ (written) ─▶ tracker
//!                                      ├─ lanes ─▶ Attempt ─▶ (report) ─▶ WriteParking
//!                                      └─ dead letters ─▶ DeadLetter ─▶ (report) ─▶ WriteParking
//! ```

mod feedback;
mod flow;
mod input;
mod lanes;
mod parking;
mod stream;
#[cfg(test)]
mod tests;
mod transaction;

pub use flow::Limits;
pub use input::{Change, Effect, Input, Restart};
pub use lanes::{Counts, ParkedHead};
pub use parking::{OnPoison, ParkingRules};
pub use stream::Upcoming;
pub use transaction::{PollingRefused, Recovered};

use crate::ack::bug::{Bug, injected};
use crate::ack::{OrderViolation, Progress, Resolution, Tracker};
use feedback::{Feedback, Tickets};
use flow::{Flow, Slot};
use parking::Parking;
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::{Aggregate, Position};
use postrider_core::offset::Offset;
use postrider_core::parked::{Entry, Lane, Request, State};
use postrider_core::record::{Outcome, Refusal, RefusalKind, Scope, Ticket};
use postrider_core::sink::{SinkCall, TransactionLimits};
use postrider_core::timestamp::Timestamp;
use std::time::Duration;
use stream::Stream;
use transaction::{Committed, LostProgress, SentEvent, SinkTransaction, Stored};

/// The settings of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds on the events in flight.
    pub limits: Limits,
    /// Pause between two writes of the cursor row while events are published.
    pub cursor_interval: Duration,
    /// How far the watermark moves before a row is written while no event is published; at least 1. Unit: that of the
    /// source's offsets. More than 1 for a source in which the write of a row moves the watermark itself.
    pub idle_step: u64,
    /// How the relay's halts call the source.
    pub words: HaltWords,
    /// When events are parked and attempted again.
    pub rules: ParkingRules,
    /// When the transaction of the sink is committed; `None` for a sink that publishes without transactions.
    pub transactions: Option<TransactionLimits>,
}

/// How the halts of a relay call what it reads from.
#[derive(Clone, Copy, Debug)]
pub struct HaltWords {
    /// What sends the stream: `the server`.
    pub sender: &'static str,
    /// Where events are that are not published: `the database`.
    pub keeper: &'static str,
    /// What to do about a stream that is out of order.
    pub disorder_hint: &'static str,
}

impl HaltWords {
    /// The words for a source that is PostgreSQL.
    pub const POSTGRES: Self = Self {
        sender: "the server",
        keeper: "the database",
        disorder_hint: "start again; if it happens again, report it with the server's version",
    };
}

/// Whether the relay runs, or what its end waits for.
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
    /// Every ticket below this one to be resolved.
    Lowest(Ticket),
    /// Everything in flight to be reported, and every decision to be committed.
    Settled,
    /// Nothing, because no report can be trusted any more.
    Now,
}

/// The relay of one pipeline: the order of its events, the bounds on its events in flight, and its [`Tracker`].
#[derive(Debug)]
pub struct Relay {
    words: HaltWords,
    tracker: Tracker,
    stream: Stream,
    flow: Flow,
    feedback: Feedback,
    parking: Parking,
    transaction: SinkTransaction,
    phase: Phase,
    /// A broker refused a batch. Nothing more is sent until everything in flight is reported, or the sink is broken.
    refused: Option<Refusal>,
    /// Events that were in flight when the sink or the slot was lost during a drain.
    given_up: u64,
    /// The time of the last [`Relay::settle`].
    settled_at: Option<Duration>,
}

impl Relay {
    /// A relay that has not started yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            words: settings.words,
            tracker: Tracker::new(Progress::default()),
            stream: Stream::default(),
            flow: Flow::new(settings.limits, settings.rules.strict),
            feedback: Feedback::new(settings.cursor_interval, settings.idle_step),
            parking: Parking::new(settings.rules),
            transaction: SinkTransaction::new(settings.transactions),
            phase: Phase::Running,
            refused: None,
            given_up: 0,
            settled_at: None,
        }
    }

    /// Applies one input, and appends what it requires to `effects`.
    ///
    /// `now` is the time since any fixed moment, and never goes back. An input that breaks the order of the stream
    /// leads to an [`Effect::Halt`] with [`HaltReason::Protocol`]. After [`Relay::ended`] every input is ignored.
    ///
    /// # Panics
    /// If a ticket is reported twice, or [`Input::NotTaken`] or [`Input::NeedsExclusive`] names a ticket that is not
    /// the newest.
    pub fn apply(&mut self, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let is_event = matches!(input, Input::Change(Change::Event { .. }));
        if let Err(violation) = self.take(now, input, effects) {
            self.violated(violation);
        }
        // Fast path: one more event at the time of the input before it, so that no timer can have become due, and no
        // report was received.
        let nothing_due = is_event && self.settled_at == Some(now) && self.is_idle(now);
        if !nothing_due {
            self.settle(now, effects);
            self.settled_at = Some(now);
        }
    }

    /// Whether the next change may be taken. While it may not, the pipeline keeps its place in the stream and waits for
    /// reports.
    ///
    /// An event of a refused batch is sent with nothing else in flight, and waits until every event before it is
    /// resolved and every row of a parked event is committed. If the event is refused again, the stream starts again
    /// from the resolved position, and an event published behind an uncommitted row would be published twice.
    pub fn intake_open(&self) -> bool {
        matches!(self.phase, Phase::Running)
            && self.refused.is_none()
            && self.transaction_has_room()
            && self.flow.has_room(self.stream.expected(), self.attempts_unreported())
            && (self.tracker.span() == 0 || !self.flow.is_suspect(self.stream.expected()))
            && self.may_go_on()
            && !self.cursor_lags()
    }

    /// Whether too many published events are not covered by the cursor row.
    fn cursor_lags(&self) -> bool {
        let next = Tickets { from: self.tracker.next().0, skipped: self.flow.skipped() };
        self.feedback.lags(next, self.flow.events_max())
    }

    /// Whether the sink's transaction takes another event. What is handed over and not reported counts.
    #[inline]
    fn transaction_has_room(&self) -> bool {
        !self.transaction.is_on()
            || self.transaction.admits()
                && !self.transaction.is_full(self.flow.in_flight(), self.is_within_source())
    }

    /// Whether a transaction of the source has begun that the sink's transaction is not to divide. It is divided if it
    /// could not end otherwise: before an operator makes room for parked events, or before the attempt of a parked
    /// event that has nothing else in flight is committed.
    #[inline]
    fn is_within_source(&self) -> bool {
        self.transaction.keeps_whole()
            && self.tracker.transaction_open()
            && !self.parking_is_full()
            && !self.parking.needs_exclusive(self.durable())
    }

    /// Number of attempts and dead letters without a report.
    fn attempts_unreported(&self) -> usize {
        let sent = self.transaction.attempts();
        let sent = sent.iter().filter(|ticket| self.parking.is_in_flight(**ticket)).count();
        self.parking.in_flight() - sent
    }

    fn unresolved(&self) -> Tickets {
        Tickets { from: self.tracker.low().0, skipped: self.flow.skipped() }
    }

    fn may_go_on(&self) -> bool {
        self.tracker.span() < flow::SPAN_MAX
            && (self.parking.is_empty()
                || (self.parking.has_room(self.stream.expected())
                    && !self.parking.needs_exclusive(self.durable())))
    }

    /// What the next change waits for, as `status` and the log show it. `None` while it may be taken.
    pub fn waits_for(&self) -> Option<&'static str> {
        if self.intake_open() {
            return None;
        }
        let next = self.stream.expected();
        Some(if !matches!(self.phase, Phase::Running) {
            "the start of the stream"
        } else if self.refused.is_some() {
            "reports for all events in flight, after the broker refused a batch"
        } else if !self.transaction_has_room() {
            self.transaction.waits_for()
        } else if self.cursor_lags() && self.feedback.is_deferred() {
            "rows of the outbox table that another session has locked: a million events are published behind them"
        } else if self.cursor_lags() {
            "PostgreSQL to commit the cursor row"
        } else if self.parking_is_full() {
            "free space in the parking table: parking.rows_max is reached"
        } else if !self.parking.has_room(next) {
            "PostgreSQL to commit rows of parked events"
        } else if self.tracker.span() >= flow::SPAN_MAX {
            "the report for the oldest event in flight: a million tickets are behind it"
        } else if self.parking.needs_exclusive(self.durable()) {
            "an attempt of a parked event with nothing else in flight, after the broker refused a batch"
        } else if self.flow.is_suspect(next) {
            "the report for an event that is sent with nothing else in flight, after the broker refused a batch"
        } else if self.flow.is_large(next) {
            "reports for the events in flight, or for an event that is sent separately because it is larger than its \
             topic takes before compression"
        } else {
            "reports: in_flight_events or in_flight_bytes is reached"
        })
    }

    /// Whether an event of this aggregate may be handed over now. While it may not, the pipeline keeps its place in the
    /// stream. Always true unless order is strict.
    pub fn admits(&self, aggregate: Aggregate<'_>) -> bool {
        !self.parking.rules.strict || self.flow.admits(Lane::of(aggregate))
    }

    /// Whether the sink publishes in transactions.
    pub fn commits_sink(&self) -> bool {
        self.transaction.is_on()
    }

    /// Number of row statuses of parked events that the last write left out because their rows are locked.
    pub fn deferred_statuses(&self) -> usize {
        self.parking.deferred_statuses()
    }

    /// Whether the number of parked events has reached `rows_max`, so that the intake is closed.
    pub fn parking_is_full(&self) -> bool {
        self.parking.is_full(self.stream.expected())
    }

    /// Whether an attempt or a dead letter is in flight, or a decision about a parked event is not committed.
    pub fn has_unsettled_attempts(&self) -> bool {
        !self.parking.is_settled()
    }

    /// Whether the event just handed over is sent with no other event of the stream in flight.
    pub fn sends_exclusively(&self) -> bool {
        self.flow.sends_exclusively()
    }

    /// The progress that a sink which publishes in transactions is known to have stored.
    pub fn sink_progress(&self) -> Option<Progress> {
        match self.transaction.stored() {
            Stored::At(progress) => Some(progress),
            Stored::NotAsked | Stored::Unknown => None,
        }
    }

    /// The cursor row, as it is known to be committed.
    pub fn cursor_row(&self) -> Progress {
        self.feedback.row()
    }

    /// Number of parked events, by state.
    pub fn parked(&self) -> Counts {
        self.parking.counts()
    }

    /// Number of blocked lanes.
    pub fn blocked_lanes(&self) -> usize {
        self.parking.lanes.blocked()
    }

    /// Whether an event is parked and not resolved.
    pub fn is_parked(&self, position: Position) -> bool {
        self.parking.lanes.row(position).is_some()
    }

    /// Heads of lanes, `most` at most: those with the most events behind them first, then in order of the stream.
    pub fn heads(&self, most: usize) -> Vec<ParkedHead> {
        self.parking.lanes.heads(most)
    }

    /// The first dead events, `most` at most, in order of the stream. Only an operator can move them, possibly by
    /// deleting their rows.
    pub fn dead(&self, most: usize) -> Vec<Position> {
        if self.parking.counts().dead == 0 {
            return Vec::new();
        }
        self.parking.lanes.dead(most)
    }

    /// The next change of the stream. `None` outside a transaction, and if an earlier session has dealt with the
    /// change.
    pub fn upcoming(&self) -> Option<Upcoming> {
        self.stream.upcoming()
    }

    /// Whether a later event of its aggregate was published before this one, which is still to be published.
    pub fn is_overtaken(&self, position: Position) -> bool {
        self.flow.is_overtaken(position)
    }

    /// The position of an event in flight that a report refuses for this reason, if the refusal is certain to mean this
    /// event and no other of its batch. `None` for the ticket of an earlier session. A caller that parks nothing
    /// applies [`Input::LeaveOut`] in place of that [`Input::Report`].
    ///
    /// # Panics
    /// If the ticket was reported before.
    pub fn certainly_refused(&self, ticket: Ticket, reason: Refusal) -> Option<Position> {
        if !self.is_certain(reason) {
            return None;
        }
        self.flow.get(ticket).map(|slot| slot.position)
    }

    /// The ticket of the next change, unless the change is skipped as repeated.
    pub fn next_ticket(&self) -> Ticket {
        self.tracker.next()
    }

    /// How far the stream is resolved: the content of the next cursor row.
    pub fn progress(&self) -> Progress {
        self.tracker.progress()
    }

    /// The highest position received.
    pub fn received(&self) -> Offset {
        self.tracker.received()
    }

    /// Number of events in flight, including attempts and dead letters, and bytes of the events of the stream among
    /// them.
    pub fn in_flight(&self) -> (u64, u64) {
        let (events, bytes) = self.flow.in_flight();
        (events + self.attempts_unreported() as u64, bytes)
    }

    /// Number of events that have no outcome although the pipeline drains, or has drained: those in flight, and those
    /// that were in flight when the sink or the slot was lost meanwhile.
    pub fn unacknowledged(&self) -> u64 {
        self.given_up + self.in_flight().0
    }

    /// Commit time of the oldest event without an outcome.
    pub fn oldest_unresolved(&self) -> Option<Timestamp> {
        self.flow.oldest()
    }

    /// When the relay next needs an [`Input::Tick`], by the clock of `now`. `None` if no timer is set.
    pub fn deadline(&self) -> Option<Duration> {
        // While the sink's transaction is open, a cursor row that is due makes its commit due.
        let open = self.transaction.admits();
        let target = if open { self.tracker.progress() } else { self.row_content() };
        let row = self.feedback.deadline(target);
        let verified = self.feedback.rewrite_at().filter(|_| self.transaction.verifies());
        let due = self.parking.deadline().filter(|_| self.attempts_allowed());
        let commit = self.transaction.deadline(self.is_within_source());
        [row, verified, due, self.parking.locked_until(), commit].into_iter().flatten().min()
    }

    /// Whether the relay has returned [`Effect::Drained`] or [`Effect::Halt`].
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The halt that waits for events in flight.
    pub fn halting(&self) -> Option<&Halt> {
        match &self.phase {
            Phase::Halting { halt, .. } => Some(halt),
            Phase::Running | Phase::Draining | Phase::Ended => None,
        }
    }

    /// Whether a halt waits for every change received so far, and is dropped if the stream is restarted, which repeats
    /// its cause. False for the halt of a poison event, which has a ticket itself.
    pub fn halt_awaits_all(&self) -> bool {
        let next = self.tracker.next();
        matches!(self.phase, Phase::Halting { until: Until::Lowest(last), .. } if last == next)
    }

    /// Whether no more changes are taken: the relay is draining, halting or ended.
    pub fn stopping(&self) -> bool {
        !matches!(self.phase, Phase::Running)
    }

    /// The position below which every change is resolved.
    fn resolved(&self) -> Position {
        self.tracker.progress().position()
    }

    /// The position of the cursor row: no restart repeats a change below it.
    ///
    /// Parked events below it may be attempted. If an event above it were published and its row set to done, a restart
    /// would repeat the events before it and skip the event itself, so that an earlier event would be the last one of
    /// its aggregate.
    fn durable(&self) -> Position {
        if injected(Bug::AttemptsAhead) {
            return Position { commit: Offset::MAX, ordinal: 0 };
        }
        if injected(Bug::AttemptsAboveCursor) {
            return self.resolved();
        }
        self.feedback.row().position()
    }

    /// Whether parked events may be attempted. They may not while an event of the stream must have nothing else in
    /// flight.
    fn attempts_allowed(&self) -> bool {
        let exclusive = self.flow.is_suspect(self.stream.expected()) && self.may_go_on();
        let admits = self.transaction.admits();
        matches!(self.phase, Phase::Running) && self.refused.is_none() && !exclusive && admits
    }

    /// Whether events are published, and nothing else is to be done.
    fn is_idle(&self, now: Duration) -> bool {
        matches!(self.phase, Phase::Running)
            && self.refused.is_none()
            && self.parking.is_idle(now)
            && self.transaction.admits()
    }

    /// Restores the invariants after an input: parked rows are written, heads are attempted, the cursor row follows the
    /// watermark, the confirmation follows the cursor row, and a phase that waits for nothing more ends.
    fn settle(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if let Some(reason) = self.refused
            && self.flow.in_flight().0 == 0
            && self.attempts_unreported() == 0
        {
            self.restart(Restart::Refused(reason), effects);
        }
        // The only cost for an event while nothing is parked, or nothing parked is due.
        let parking_is_active = !self.parking.is_idle(now);
        if parking_is_active && self.attempts_allowed() {
            let in_flight = self.flow.in_flight().0;
            self.parking.start_attempts(now, (self.resolved(), self.durable()), in_flight, effects);
        }
        if parking_is_active {
            effects.extend(self.parking.write_due(now));
        }
        if self.transaction.is_on() {
            self.commit_if_due(now, effects);
        }
        let progress = self.tracker.progress();
        let row_content = if self.transaction.is_on() { self.row_content() } else { progress };
        let settled = self.flow.in_flight().0 == 0 && self.parking.is_settled();
        let last = match &self.phase {
            Phase::Running => false,
            Phase::Draining | Phase::Halting { until: Until::Settled, .. } => settled,
            Phase::Halting { until: Until::Lowest(poison), .. } => self.tracker.low() == *poison,
            Phase::Halting { until: Until::Now, .. } => true,
            Phase::Ended => return,
        };
        let is_stored = || row_content == progress && self.transaction.is_empty();
        let last = last && (!self.transaction.is_on() || is_stored() || !self.commits_at_end());
        let wanted =
            parking_is_active && self.parking.waits_for_cursor(self.durable(), progress.position());
        let content = (row_content, self.unresolved());
        let row = if self.transaction.verifies() && !injected(Bug::TrustsRecovery) {
            self.feedback.rewrite(now, content)
        } else {
            self.feedback.cursor_due(now, content, last || wanted)
        };
        if let Some(row) = row {
            effects.push(Effect::WriteCursor(row));
        }
        if let Some(watermark) = self.feedback.confirmable() {
            effects.push(Effect::Confirm(watermark));
        }
        if last && self.feedback.is_current(row_content) {
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Draining => effects.push(Effect::Drained),
                Phase::Halting { halt, .. } => effects.push(Effect::Halt(halt)),
                Phase::Running | Phase::Ended => {}
            }
        }
    }

    /// The content of the next cursor row. With a sink that publishes in transactions it is the progress that the sink
    /// has stored, so that the row is never ahead of the sink: a sink that is behind the row has lost its progress.
    fn row_content(&self) -> Progress {
        match self.transaction.stored() {
            Stored::NotAsked => self.tracker.progress(),
            Stored::At(_) if injected(Bug::CursorPassesSink) => self.tracker.progress(),
            Stored::At(progress) => progress,
            Stored::Unknown => self.feedback.row(),
        }
    }

    /// Whether the end waits until the sink has stored the progress. It does not if the state of the producer is
    /// unknown, or if the commit would divide a transaction of the source: the next start repeats what the sink does
    /// not have.
    fn commits_at_end(&self) -> bool {
        self.transaction.can_commit()
            && !self.drains_within_source()
            && !matches!(self.phase, Phase::Halting { until: Until::Now, .. })
    }

    /// Whether a drain has closed the intake within a transaction of the source that is not to be divided. A commit
    /// that is called is waited for.
    fn drains_within_source(&self) -> bool {
        let drains = matches!(self.phase, Phase::Draining) && self.is_within_source();
        drains && self.transaction.admits()
    }

    /// Closes the sink's transaction and commits it, as soon as each is due.
    ///
    /// A transaction is closed before its bounds are reached if the relay stops, if an event has to be sent with
    /// nothing else in flight, and if a parked event can be attempted only behind the cursor row of this transaction. A
    /// transaction without events is committed if the cursor row is due: the sink stores the progress first.
    ///
    /// Within a transaction of the source that is not to be divided, neither the interval nor the cursor row counts. It
    /// is divided if the sink's transaction has been open for too long, if it could not end otherwise, and if a halt
    /// promises that everything before its cause is published.
    fn commit_if_due(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let (limit, unsendable) = match &self.phase {
            Phase::Running | Phase::Draining | Phase::Halting { until: Until::Settled, .. } => {
                (self.tracker.next(), 0)
            }
            // The event that halts the relay is never resolved, and nothing is sent behind it.
            Phase::Halting { until: Until::Lowest(poison), .. } => {
                (*poison, u64::from(self.flow.is_in_flight(*poison)))
            }
            Phase::Halting { until: Until::Now, .. } | Phase::Ended => return,
        };
        if self.transaction.admits() && !self.drains_within_source() {
            let stops = !matches!(self.phase, Phase::Running);
            let within = self.is_within_source();
            let exclusive = self.flow.is_suspect(self.stream.expected());
            let progress = self.tracker.progress();
            let after = self.tracker.progress_below(limit);
            let attempted_behind = self.parking.waits_for_cursor(self.durable(), after.position());
            let row_due = progress != self.row_content()
                && (stops || attempted_behind || !within && self.feedback.is_due(now, progress));
            let full = self.transaction.is_full(self.flow.in_flight(), within);
            let at_once = stops || exclusive || attempted_behind || full;
            self.transaction.close_if_due(now, (at_once, within), row_due || full);
        }
        let reported = self.flow.in_flight().0 == unsendable && self.attempts_unreported() == 0;
        let settled = reported && self.refused.is_none() && self.parking.rows_are_committed();
        if !self.transaction.commits(settled) {
            return;
        }
        let old = injected(Bug::StoresOldProgress);
        let progress =
            if old { self.tracker.progress() } else { self.tracker.progress_below(limit) };
        let tickets = self.transaction.attempts().iter();
        let mut attempts: Vec<Position> =
            tickets.filter_map(|ticket| self.parking.attempted(*ticket)).collect();
        if !injected(Bug::ListsOnlyLastAttempts) {
            attempts.extend(self.parking.published_unwritten());
        }
        let call = self.transaction.call_commit(progress);
        effects.push(Effect::CommitSink { call, progress, attempts });
        if injected(Bug::ResolvesAtCommitCall) {
            self.sink_committed(call, effects);
        }
    }

    /// The sink's transaction is committed: its events are published.
    fn sink_committed(&mut self, call: SinkCall, effects: &mut Vec<Effect>) {
        let Some(Committed { events, attempts }) = self.transaction.committed(call) else { return };
        for SentEvent { ticket, commit_time } in events {
            self.resolve(ticket);
            self.feedback.published();
            effects.push(Effect::Published { ticket, commit_time });
        }
        for ticket in attempts {
            if self.parking.is_dead_letter(ticket) {
                self.parking.dead_letter_acked(ticket);
            } else if let Some(position) = self.parking.released(ticket, self.resolved()) {
                effects.push(Effect::Released { position });
            }
        }
    }

    /// The sink has said what it has committed. If that is more than the cursor row contains, a process has ended
    /// between the commit and the write of the row: the stream continues behind the commit.
    fn sink_recovered(
        &mut self,
        now: Duration,
        call: SinkCall,
        recovered: &Recovered,
    ) -> Result<(), OrderViolation> {
        let row = self.feedback.row();
        let lost = self.transaction.lost(recovered.progress, row);
        let stored = recovered.progress.filter(|_| lost.is_none()).unwrap_or(row);
        let stored = self.transaction.believed(stored);
        let Some(requests) = self.transaction.recovered(call, stored) else { return Ok(()) };
        if let Some(lost) = lost {
            // The source must not be confirmed above what the sink has: this process may know more to be committed.
            self.tracker.adopt(lost.stored.max(row));
            self.flow.clear();
            let halt = Box::new(progress_lost_halt(lost));
            self.phase = Phase::Halting { halt, until: Until::Now };
            return Ok(());
        }
        // Each may be ahead in one part: the watermark moves without a commit while no event is published.
        let ours = self.tracker.progress();
        let farthest = if stored.position() > ours.position() { stored } else { ours };
        let watermark = stored.watermark.max(ours.watermark);
        let resumed = Progress { watermark, ..farthest };
        if resumed != ours && !injected(Bug::ForgetsRecovery) {
            self.tracker.adopt(resumed);
            self.flow.clear();
            self.feedback.published();
            self.stream.pass(&mut self.tracker, resumed)?;
        }
        if !injected(Bug::ForgetsCommittedAttempts) {
            self.parking.published_before(&recovered.attempts, self.resolved());
        }
        for (position, request) in requests {
            self.parking.request(now, position, request, self.resolved());
        }
        Ok(())
    }

    /// The rows and the requests of the parked table are read. The sink recovers before anything is published.
    fn load(
        &mut self,
        now: Duration,
        parked: &[Entry],
        requests: &[(Position, Request)],
        effects: &mut Vec<Effect>,
    ) {
        self.parking.load(now, parked);
        for (position, request) in requests {
            self.request(now, *position, *request);
        }
        if let Some(call) = self.transaction.recovers() {
            effects.push(Effect::RecoverSink { call });
        }
    }

    fn cursor_written(&mut self) {
        self.feedback.written();
        self.transaction.verified();
    }

    /// An operator requests something. What the sink has published of the parked events is known after its recovery.
    fn request(&mut self, now: Duration, position: Position, request: Request) {
        if self.transaction.is_recovered() {
            self.parking.request(now, position, request, self.resolved());
        } else {
            self.transaction.defer(position, request);
        }
    }

    /// Takes one input.
    fn take(
        &mut self,
        now: Duration,
        input: Input<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), OrderViolation> {
        match input {
            Input::Change(change) => self.change(now, change, effects)?,
            Input::Report { ticket, outcome } if self.parking.is_dead_letter(ticket) => {
                self.report_dead_letter(now, ticket, outcome, effects);
            }
            Input::Report { ticket, outcome } if Parking::is_attempt(ticket) => {
                self.report_attempt(now, ticket, outcome, effects);
            }
            Input::Report { ticket, outcome } => self.report(now, ticket, outcome, effects),
            Input::Refused { ticket, reason, halt } => {
                self.refused_at_once(now, ticket, reason, halt, effects);
            }
            Input::NotTaken { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract();
                self.stream.retract();
            }
            Input::Begin { commit, commit_time } => {
                self.stream.begin(&mut self.tracker, commit, commit_time)?;
            }
            Input::Commit { commit, end } => {
                self.stream.commit(&mut self.tracker, commit, end)?;
            }
            Input::Keepalive { upto } => self.stream.keepalive(&mut self.tracker, upto),
            Input::Started { cursor, same_history, same_owner, parked, requests } => {
                self.start(cursor, (same_history, same_owner), effects);
                self.load(now, parked, requests, effects);
            }
            Input::SinkBroken => self.sink_broken(effects),
            Input::SlotTaken => self.slot_taken(effects),
            Input::SourceLost => self.source_lost(effects),
            Input::CursorWritten => self.cursor_written(),
            Input::CursorDeferred => self.feedback.defer(),
            Input::ParkingWritten { locked } => self.parking_written(now, locked),
            Input::NeedsExclusive { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract_as_large();
                self.stream.retract();
            }
            Input::LeaveOut { ticket } => self.leave_out(ticket),
            Input::RowMissing { ticket } => self.parking.row_missing(ticket),
            Input::Probed { ticket } => self.parking.probed(now, ticket),
            Input::DeadRowDeleted { position } => self.parking.dead_row_deleted(position),
            Input::DeadLetterUnsent { position } => self.parking.dead_letter_unsent(position),
            Input::Unavailable { ticket, soon } => {
                let (state, wait) = self.parking.rules.unavailable(soon);
                self.park_handed_over(now, ticket, (state, wait), effects);
            }
            Input::StaleDestination { ticket } => {
                self.park_handed_over(now, ticket, (State::Due, Duration::ZERO), effects);
            }
            Input::Request { position, request } => self.request(now, position, request),
            Input::SinkRecovered { call, recovered } => {
                self.sink_recovered(now, call, &recovered)?;
            }
            Input::SinkCommitted { call } => self.sink_committed(call, effects),
            Input::Drain => self.drain(),
            Input::Halt(halt) => self.halt(halt),
            Input::Unreadable(halt) => self.halt_after_received(halt),
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
        if self.parking.lanes.contains(upcoming.position) {
            self.flow.skip(ticket);
            self.resolve(ticket);
            return Ok(());
        }
        match change {
            Change::Event { aggregate, size_bytes, wait } => {
                let slot = Slot::new(&upcoming, Lane::of(aggregate), size_bytes);
                match self.entry_instead_of_send(&upcoming, slot.lane, wait) {
                    None => {
                        self.flow.hand_over(ticket, slot);
                        effects.push(Effect::Publish(ticket));
                        if self.transaction.is_on() && injected(Bug::ResolvesAtSend) {
                            self.report(now, ticket, Outcome::Acked, effects);
                        }
                    }
                    Some((entry, reason)) => {
                        self.flow.park(ticket, slot);
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

    /// The entry of an event that is parked instead of being sent, and the refusal of the broker, if that is why.
    /// `None` if the event is sent.
    fn entry_instead_of_send(
        &self,
        upcoming: &Upcoming,
        lane: Lane,
        wait: Duration,
    ) -> Option<(Entry, Option<Refusal>)> {
        let position = upcoming.position;
        let (state, wait) = if self.parking.lanes.is_blocked(lane) {
            // Its own `available_at` is checked when it is at the head of its lane.
            (if wait.is_zero() { State::Behind } else { State::Due }, wait)
        } else if let Some((entry, reason)) = self.parking.refusal(position) {
            return Some((entry, Some(reason)));
        } else if wait.is_zero() {
            return None;
        } else {
            (State::Due, wait)
        };
        let lane = Some(lane);
        Some((
            Entry { position, lane, state, attempts: 0, wait, overtaken_by: None, xid: None },
            None,
        ))
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
        self.flow.park(ticket, slot);
        let entry = self.parking.rules.refused(upcoming.position, lane, true);
        self.park(now, ticket, (entry, None), 0, effects);
    }

    /// The event just handed over can't be published; the pipeline still has its record.
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
        self.flow.park_handed_over(ticket);
        let hopeless = !reason.of_batch && matches!(reason.kind, RefusalKind::Destination(_));
        let mut entry = self.parking.rules.refused(slot.position, Some(slot.lane), hopeless);
        entry.overtaken_by = self.flow.take_overtaken(slot.position);
        self.park(now, ticket, (entry, None), slot.size_bytes(), effects);
    }

    /// Parks the event just handed over, though nothing is known to be wrong with it: its aggregate waits.
    fn park_handed_over(
        &mut self,
        now: Duration,
        ticket: Ticket,
        (state, wait): (State, Duration),
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.flow.get(ticket) else { return };
        self.flow.park_handed_over(ticket);
        let overtaken_by = self.flow.take_overtaken(slot.position);
        let (position, lane) = (slot.position, Some(slot.lane));
        let entry = Entry { position, lane, state, attempts: 0, wait, overtaken_by, xid: None };
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
        effects.push(Effect::Park { ticket, entry: Box::new(entry), reason });
    }

    fn parking_written(&mut self, now: Duration, locked: &[Position]) {
        for ticket in self.parking.written(now, locked) {
            if injected(Bug::ParkedBeforeCommit) {
                continue;
            }
            self.resolve(ticket);
            self.feedback.published();
        }
    }

    fn resolve(&mut self, ticket: Ticket) {
        let resolution = self.tracker.resolve(ticket);
        assert_eq!(resolution, Ok(Resolution::Resolved), "of {ticket:?}");
        self.flow.forget_below(self.tracker.low());
    }

    /// Nothing else of the event's lane waits for an event that is left out.
    fn leave_out(&mut self, ticket: Ticket) {
        if self.flow.get(ticket).is_some() {
            self.flow.leave_out(ticket);
            self.resolve(ticket);
            self.feedback.published();
        }
    }

    fn report(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.flow.get(ticket) else {
            // What a discarded transaction has is not published, and overtakes nothing.
            if outcome == Outcome::Acked && !self.transaction.is_on() {
                self.flow.acked_late(ticket);
            }
            return;
        };
        match outcome {
            Outcome::Unknown if injected(Bug::UnknownIsAcked) => {
                self.report(now, ticket, Outcome::Acked, effects);
            }
            Outcome::Acked if self.transaction.is_on() && !injected(Bug::ResolvesAtReport) => {
                self.flow.acked(ticket);
                let event = SentEvent { ticket, commit_time: slot.commit_time };
                self.transaction.sent(now, event, slot.size_bytes() as u64);
            }
            Outcome::Acked => {
                let overtaken = self.flow.acked(ticket);
                self.resolve(ticket);
                self.feedback.published();
                if let Some(by) = overtaken.filter(|_| !injected(Bug::OvertakenUnreported)) {
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

    /// Whether this refusal is certain to mean the event that was reported. A broker refuses whole batches, so it is
    /// certain only if the event was sent with nothing else in flight, or no batch was refused.
    fn is_certain(&self, reason: Refusal) -> bool {
        self.flow.is_exclusive() || !reason.of_batch || injected(Bug::BlamesWholeBatch)
    }

    /// If the refusal is not certain to mean the event, all events of the batch are streamed again, one at a time. An
    /// event that is certainly meant is streamed again too, and parked then: the pipeline has its record again, and the
    /// producer is a new one.
    fn refused(&mut self, ticket: Ticket, slot: Slot, reason: Refusal, effects: &mut Vec<Effect>) {
        let certain = self.is_certain(reason);
        // The transaction of the sink may have later events, so that it can't be committed before a halt: an event that
        // halts the relay is sent with nothing else in flight first.
        let halts = self.parking.rules.on_poison == OnPoison::Stop;
        let certain = certain && (!halts || !self.transaction.is_on() || self.flow.is_exclusive());
        if halts && certain {
            let halt = Box::new(poison_halt(self.words, slot.position, reason));
            self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            return;
        }
        if certain {
            let mut entry = self.parking.rules.refused(slot.position, Some(slot.lane), false);
            entry.overtaken_by = self.flow.take_overtaken(slot.position);
            self.parking.park_when_repeated(entry, reason);
            self.restart(Restart::Refused(reason), effects);
        } else {
            self.flow.refused(ticket);
            self.refused = Some(reason);
        }
    }

    fn report_attempt(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        match outcome {
            Outcome::Acked if self.transaction.is_on() => {
                if self.parking.attempt_in_flight(ticket) {
                    self.transaction.sent_attempt(now, ticket);
                }
            }
            Outcome::Acked => {
                if let Some(position) = self.parking.released(ticket, self.resolved()) {
                    effects.push(Effect::Released { position });
                }
            }
            Outcome::Rejected { scope: Scope::Event, reason } => {
                if !reason.of_batch || self.parking.is_exclusive(ticket) {
                    self.parking.attempt_refused(now, ticket, reason);
                } else if self.parking.attempt_in_flight(ticket) {
                    self.parking.suspect(now, ticket);
                    self.refused = Some(reason);
                }
            }
            Outcome::Rejected { scope: Scope::Destination, reason: _ } => {
                self.parking.postpone(now, ticket);
            }
            Outcome::Rejected { scope: Scope::Broker, reason: _ } | Outcome::Unknown => {
                if self.parking.attempt_in_flight(ticket) {
                    self.restart(Restart::Unknown, effects);
                }
            }
        }
    }

    #[cfg(test)]
    fn acknowledge_by_time(&mut self, effects: &mut Vec<Effect>) {
        let low = self.tracker.low();
        if injected(Bug::TimeOutIsAcked) && self.flow.is_in_flight(low) {
            self.report(self.settled_at.unwrap_or_default(), low, Outcome::Acked, effects);
        }
    }

    fn report_dead_letter(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        match outcome {
            Outcome::Acked if self.transaction.is_on() => {
                self.transaction.sent_attempt(now, ticket);
            }
            Outcome::Acked => self.parking.dead_letter_acked(ticket),
            Outcome::Rejected { scope: Scope::Event | Scope::Destination, reason } => {
                if let Some(position) = self.parking.dead_letter_refused(now, ticket) {
                    effects.push(Effect::DeadLetterRefused { position, reason });
                }
            }
            Outcome::Rejected { scope: Scope::Broker, reason: _ } | Outcome::Unknown => {
                self.restart(Restart::Unknown, effects);
            }
        }
    }

    /// A stream starts from the cursor row.
    ///
    /// If another process has owned the slot meanwhile, it has published what this relay has in flight, and may have
    /// repeated events that this relay had resolved. All events above the row are then published once more, because
    /// otherwise a repeated event could be the last one of its aggregate. The same applies if the row is ahead of this
    /// relay's progress. In another history this relay's progress means nothing: a position that it would take for
    /// repeated would be a new event.
    fn start(
        &mut self,
        cursor: Progress,
        (same_history, same_owner): (bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        self.feedback.disconnected();
        let ours = self.stream.started() && same_history && same_owner;
        let ours = ours || (self.stream.started() && injected(Bug::IgnoresOtherOwner));
        let ahead = cursor > self.tracker.progress() && !injected(Bug::IgnoresOtherOwner);
        if !ours || ahead {
            let unsettled = self.flow.in_flight().0 > 0
                || !self.parking.is_settled()
                || self.transaction.is_used();
            self.transaction.forget();
            self.tracker.adopt(cursor);
            self.flow.clear();
            self.refused = None;
            if !same_history {
                self.flow.forget_positions();
            }
            if !injected(Bug::KeepsPending) {
                self.parking.reset(same_history);
            }
            self.stream.expect(cursor);
            self.feedback.resumed(cursor, self.unresolved());
            if unsettled {
                effects.push(Effect::Restart { why: Restart::SlotTaken });
            }
        }
        self.stream.reconnected();
    }

    fn sink_broken(&mut self, effects: &mut Vec<Effect>) {
        if injected(Bug::UnknownIsCommitted) {
            self.sink_committed(self.transaction.last_call(), effects);
        }
        let why = self.refused.map_or(Restart::SinkBroken, Restart::Refused);
        self.restart(why, effects);
    }

    fn restart(&mut self, why: Restart, effects: &mut Vec<Effect>) {
        let progress = self.tracker.progress();
        if matches!(self.phase, Phase::Draining) {
            self.given_up = self.unacknowledged();
        }
        self.refused = None;
        #[cfg(test)]
        if injected(Bug::ResendsOnlyFailed) {
            self.flow.remember_acked();
        }
        self.flow.suspect_refused(!self.transaction.is_on());
        self.transaction.discard();
        self.tracker.discard_in_flight();
        self.flow.clear();
        self.parking.discard_in_flight();
        self.stream.expect(progress);
        match self.phase {
            Phase::Running => {
                self.parking.disconnected();
                effects.push(Effect::Restart { why });
            }
            // The halt promises that everything before its cause is published, which is uncertain now. The stream
            // repeats its cause.
            Phase::Halting { until: Until::Lowest(_), .. } => {
                self.phase = Phase::Running;
                self.parking.disconnected();
                effects.push(Effect::Restart { why });
            }
            // Nothing more will be resolved.
            Phase::Halting { ref mut until, .. } => *until = Until::Now,
            Phase::Draining | Phase::Ended => {}
        }
    }

    /// Another process publishes what is in flight and writes the cursor row, so a drain or a halt that waited for
    /// either ends.
    fn slot_taken(&mut self, effects: &mut Vec<Effect>) {
        self.feedback.disconnected();
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
        self.feedback.disconnected();
        self.parking.disconnected();
        self.stream.disconnected();
        self.transaction.disconnected();
        if matches!(self.phase, Phase::Halting { until: Until::Lowest(_), .. }) {
            // Without a cursor row, the promise that everything before the poison is published does not hold. The next
            // stream finds the poison again.
            self.restart(Restart::Unknown, effects);
        }
        // The cursor row can't be written any more. The next start repeats what the row does not contain.
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
        // The first reason is kept.
        if !matches!(self.phase, Phase::Halting { .. }) {
            self.phase = Phase::Halting { halt, until: Until::Settled };
        }
    }

    /// Halts once every change received so far is resolved.
    fn halt_after_received(&mut self, halt: Box<Halt>) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Halting { halt, until: Until::Lowest(self.tracker.next()) };
        }
    }

    fn violated(&mut self, violation: OrderViolation) {
        let halt = Box::new(violation_halt(self.words, violation));
        self.phase = Phase::Halting { halt, until: Until::Now };
    }
}

fn poison_halt(words: HaltWords, position: Position, reason: Refusal) -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: format!("the event at position {position} can't be published: {reason}"),
        meaning: format!(
            "everything before it is published; it and all later events wait in {}",
            words.keeper
        ),
        hint: "fix the destination so that it accepts the event, then start again".into(),
    }
}

fn progress_lost_halt(lost: LostProgress) -> Halt {
    let (stored, known) = (lost.stored.position(), lost.known.position());
    let (what, meaning, hint) = if lost.confirmed {
        (
            "the cursor row at",
            "nothing is published; the sink may lack events up to the cursor row, and the source may have removed them",
            "point the pipeline at the sink that it published to before, or restore what that sink had stored; an \
             event log in PostgreSQL is filled as docs/sql/log.md describes (\"When the server of a log fails over\"), \
             streams of Redis as docs/sinks/redis.md describes (\"Exactly once\"), topics of Kafka as \
             docs/exactly-once.md describes (\"When something is wrong\")",
        )
    } else {
        (
            "the last commit at",
            "nothing is lost: the sink has every event that the source was confirmed for, and the source has the \
             events that the sink lacks",
            "if the server of the sink has failed over to one that lacks its last commits, start again: the pipeline \
             continues behind what the sink has. Otherwise point it at the sink that it published to before",
        )
    };
    Halt {
        reason: HaltReason::PipelineChanged,
        message: format!(
            "the sink has stored progress up to {stored}, which is behind {what} {known}: this is another sink, or it \
             has lost what it had stored"
        ),
        meaning: meaning.into(),
        hint: hint.into(),
    }
}

fn violation_halt(words: HaltWords, violation: OrderViolation) -> Halt {
    Halt {
        reason: HaltReason::Protocol,
        message: format!("{} sent the stream out of order: {violation}", words.sender),
        meaning: "every confirmed event is published; continuing could lose events".into(),
        hint: words.disorder_hint.into(),
    }
}
