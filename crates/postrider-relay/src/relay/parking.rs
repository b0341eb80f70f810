//! Parked events: their rows and row statuses, the attempts to publish them, dead letters, and requests of operators.
//!
//! A new row or row status counts only when its write is committed ([`Parking::written`]): only then is the event
//! resolved, or its lane unblocked. One write is in progress at a time, and takes all that has gathered meanwhile.
//! [`Lanes`] decides which event is attempted next; the records themselves stay with the pipeline.

use super::Effect;
use super::lanes::{Counts, Lanes, Row};
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Lane, ParkedOutcome, ParkedUpdate, Request, State};
use postrider_core::record::{Refusal, Ticket};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Maximum number of attempts in flight, and of probes.
pub(super) const ATTEMPTS_MAX: usize = 32;

/// Maximum number of new rows, and of row statuses, in one write.
const WRITE_MAX: usize = 500;

/// Row statuses that are not committed, above which no event is attempted: other sessions have locked so many rows. It
/// bounds what a sink that publishes in transactions stores of attempts too.
const STATUSES_MAX: usize = 10_000;

/// Maximum number of events whose rows are not committed. At this number the intake closes.
const PENDING_EVENTS_MAX: usize = 2_000;

/// Maximum bytes of the records of such events. A single event may exceed it.
const PENDING_BYTES_MAX: u64 = 16 << 20;

/// Pause before row statuses are written again whose rows another session had locked.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause before the first attempt of an event whose destination is missing. Further attempts keep the usual
/// pause.
const FIRST_RETRY_MAX: Duration = Duration::from_secs(1);

/// This bit is set in tickets of attempts, probes and dead letters, and clear in tickets of the stream.
const ATTEMPT_BIT: u64 = 1 << 63;

/// What a poison event does to the events behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnPoison {
    /// Later events of its aggregate wait.
    BlockKey,
    /// Only the poison event is parked; later events of its aggregate are published.
    SkipEvent,
    /// The pipeline halts.
    Stop,
}

/// When events are parked and attempted again, as configured.
#[derive(Clone, Copy, Debug)]
pub struct ParkingRules {
    /// What a poison event does to the events behind it.
    pub on_poison: OnPoison,
    /// Number of refused attempts after which an event is dead.
    pub attempts_max: u32,
    /// The pause after attempt n is `min(n, steps_max)` times this duration.
    pub step: Duration,
    /// See `step`.
    pub steps_max: u32,
    /// Maximum number of parked events. At this number the intake closes.
    pub rows_max: u64,
    /// At most one event of an aggregate is in flight (`flow.ordering = "strict"`).
    pub strict: bool,
    /// Dead events are also sent to a topic (`parking.dead_topic`).
    pub dead_letters: bool,
}

impl ParkingRules {
    /// The pause after this many refused attempts.
    fn wait(&self, attempts: u32) -> Duration {
        self.step.saturating_mul(attempts.clamp(1, self.steps_max.max(1)))
    }

    /// The entry of an event that was refused for the first time. `hopeless`: no later attempt can change the refusal,
    /// so the event is dead.
    pub(super) fn refused(&self, position: Position, lane: Option<Lane>, hopeless: bool) -> Entry {
        let lane = lane.filter(|_| self.on_poison == OnPoison::BlockKey);
        // Without a lane the event is dead, because the later events of its aggregate are published already.
        let dead = hopeless || lane.is_none() || self.attempts_max <= 1;
        Entry {
            position,
            lane,
            state: if dead { State::Dead } else { State::Waiting },
            attempts: 1,
            wait: self.wait(1),
            overtaken_by: None,
            xid: None,
        }
    }

    /// State and pause of an event whose destination is unavailable. No attempt is counted, because nothing is wrong
    /// with the event. `soon`: the destination may have been created a moment ago, and be unknown to some brokers.
    pub(super) fn unavailable(&self, soon: bool) -> (State, Duration) {
        let wait = self.wait(1);
        (State::Waiting, if soon { wait.min(FIRST_RETRY_MAX) } else { wait })
    }
}

/// An event whose new row is not committed.
#[derive(Clone, Copy, Debug)]
struct PendingRow {
    ticket: Ticket,
    entry: Entry,
    size_bytes: u64,
}

/// A row status that is not committed.
#[derive(Clone, Copy, Debug)]
struct PendingStatus {
    status: ParkedUpdate,
    lane: Option<Lane>,
    /// Part of the write in progress.
    writing: bool,
    /// Left out of the last write that it was part of.
    deferred: bool,
}

/// Row statuses that were left out of a write because another session had locked their rows, and the statuses that wait
/// for them: a later status of the same lane must not be committed first, because a crash would then repeat the earlier
/// event behind the later one.
#[derive(Debug, Default)]
struct LockedRows {
    /// When the statuses are written again.
    until: Option<Duration>,
    lanes: HashSet<Lane>,
    rows: HashSet<Position>,
    /// Number of statuses that wait.
    waiting: usize,
}

impl LockedRows {
    /// Whether this status must wait.
    fn defers(&self, pending: &PendingStatus) -> bool {
        self.until.is_some()
            && (self.rows.contains(&pending.status.position)
                || pending.lane.is_some_and(|lane| self.lanes.contains(&lane))
                    && !injected(Bug::StatusesPassDeferred))
    }

    fn add(&mut self, now: Duration, pending: &PendingStatus) {
        self.until = Some(now.saturating_add(LOCKED_PAUSE));
        self.rows.insert(pending.status.position);
        self.lanes.extend(pending.lane);
    }
}

/// Dead events whose records still have to be sent to the dead-letter topic, and when.
///
/// One record is in flight at a time, under a ticket of its own. It is sent only after the row with state "dead" is
/// committed, because it is read from there; a crash before the row status is committed sends it again. A refused
/// record is sent again later, without a limit on attempts. Only other dead letters wait for it.
#[derive(Debug, Default)]
struct DeadLetters {
    /// Whether a dead-letter topic is configured.
    enabled: bool,
    /// When each is sent, by the relay's clock.
    due: HashMap<Position, Duration>,
    /// The content of `due`, by time.
    order: BTreeSet<(Duration, Position)>,
    in_flight: Option<(Ticket, Position)>,
    /// Acknowledged dead letters whose row status is not committed.
    acked: BTreeSet<Position>,
}

impl DeadLetters {
    fn new(enabled: bool) -> Self {
        Self { enabled, ..Self::default() }
    }

    /// The row of a dead event is committed, and does not record that it was sent.
    fn enqueue(&mut self, position: Position) {
        let is_sent = self.in_flight.is_some_and(|(_, sent)| sent == position);
        if self.enabled && !is_sent && !self.acked.contains(&position) {
            self.send_at(position, Duration::ZERO);
        }
    }

    /// The next dead letter to send. `None` while one is in flight.
    fn next(&self, now: Duration) -> Option<Position> {
        let first = self.order.first().filter(|(due, _)| self.in_flight.is_none() && *due <= now);
        first.map(|(_, position)| *position)
    }

    fn sent(&mut self, ticket: Ticket, position: Position) {
        self.remove(position);
        self.in_flight = Some((ticket, position));
    }

    /// Takes the dead letter with this ticket out of flight.
    fn complete(&mut self, ticket: Ticket) -> Option<Position> {
        self.in_flight.take_if(|(sent, _)| *sent == ticket).map(|(_, position)| position)
    }

    fn is_in_flight(&self, ticket: Ticket) -> bool {
        self.in_flight.is_some_and(|(sent, _)| sent == ticket)
    }

    /// Number of dead letters in flight: 0 or 1.
    fn in_flight(&self) -> usize {
        usize::from(self.in_flight.is_some())
    }

    fn send_at(&mut self, position: Position, due: Duration) {
        self.remove(position);
        self.due.insert(position, due);
        self.order.insert((due, position));
    }

    fn acked(&mut self, position: Position) {
        self.acked.insert(position);
    }

    /// The row status of an acknowledged dead letter is committed.
    fn status_written(&mut self, position: Position) {
        self.acked.remove(&position);
    }

    /// The event is not dead any more. A report that is still to come is ignored.
    fn remove(&mut self, position: Position) {
        if let Some(due) = self.due.remove(&position) {
            self.order.remove(&(due, position));
        }
        self.in_flight.take_if(|(_, sent)| *sent == position);
    }

    /// The dead letter in flight will get no report: it is sent again.
    fn discard_in_flight(&mut self) {
        if let Some((_, position)) = self.in_flight.take() {
            self.send_at(position, Duration::ZERO);
        }
    }

    /// Clears what is to be sent, before the table is read again.
    fn clear_due(&mut self) {
        self.due.clear();
        self.order.clear();
    }

    /// Another process owns the rows.
    fn clear(&mut self) {
        *self = Self::new(self.enabled);
    }

    /// Whether no dead letter is in flight or due.
    #[inline]
    fn is_idle(&self, now: Duration) -> bool {
        self.in_flight.is_none() && self.order.first().is_none_or(|(due, _)| *due > now)
    }

    /// When the next dead letter is due.
    fn deadline(&self) -> Option<Duration> {
        self.order.first().filter(|_| self.in_flight.is_none()).map(|(due, _)| *due)
    }
}

/// Everything about parked events but the schedule of their lanes, which [`Lanes`] owns.
#[derive(Debug)]
pub(super) struct Parking {
    pub(super) rules: ParkingRules,
    pub(super) lanes: Lanes,
    /// New rows, in order of the stream. The first `writing` of them are being written.
    pending: VecDeque<PendingRow>,
    pending_bytes: u64,
    writing: usize,
    /// In order of their decisions.
    statuses: VecDeque<PendingStatus>,
    locked: LockedRows,
    write_in_progress: bool,
    attempts: HashMap<Ticket, Position>,
    /// Rows that are to be attempted with nothing else in flight, while their destinations are probed.
    probes: HashMap<Ticket, Position>,
    dead_letters: DeadLetters,
    next_attempt: u64,
    /// Rows that were part of a batch which a broker refused.
    suspects: BTreeSet<Position>,
    /// Events of the stream that a broker refused while nothing else was in flight, and why. They are parked when the
    /// stream repeats them.
    refused: BTreeMap<Position, (Entry, Refusal)>,
    connected: bool,
    /// An attempt needs to have nothing else in flight, so no dead letter is sent.
    paused: bool,
}

impl Parking {
    pub(super) fn new(rules: ParkingRules) -> Self {
        Self {
            rules,
            lanes: Lanes::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            writing: 0,
            statuses: VecDeque::new(),
            locked: LockedRows::default(),
            write_in_progress: false,
            attempts: HashMap::new(),
            probes: HashMap::new(),
            dead_letters: DeadLetters::new(rules.dead_letters),
            next_attempt: 0,
            suspects: BTreeSet::new(),
            refused: BTreeMap::new(),
            connected: false,
            paused: false,
        }
    }

    /// Whether the next change may be taken, and parked.
    pub(super) fn has_room(&self, next: Position) -> bool {
        !self.is_full(next)
            && self.pending.len() < PENDING_EVENTS_MAX
            && self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Whether the number of parked events has reached `rows_max`.
    ///
    /// Rows at or above `next`, which the stream has not reached again since the last start, must not close the intake:
    /// they are attempted only after the stream has passed them.
    pub(super) fn is_full(&self, next: Position) -> bool {
        self.lanes.counts().total() >= self.rules.rows_max
            && (!self.lanes.any_from(next) || injected(Bug::FullBlocksRepeats))
    }

    /// Whether nothing is parked, in flight or to be written.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
            && self.pending.is_empty()
            && self.statuses.is_empty()
            && self.in_flight() == 0
    }

    /// Whether parking needs no decision now: no head is due, and no write, row status, attempt or dead letter is
    /// pending. Takes the same time whatever the number of parked events.
    #[inline]
    pub(super) fn is_idle(&self, now: Duration) -> bool {
        self.lanes.is_idle(now)
            && self.pending.is_empty()
            && self.no_status_is_due(now)
            && self.attempts.is_empty()
            && self.dead_letters.is_idle(now)
            && !self.paused
    }

    /// Number of row statuses that were left out of the last write that they were part of.
    pub(super) fn deferred_statuses(&self) -> usize {
        self.statuses.iter().filter(|pending| pending.deferred).count()
    }

    pub(super) fn counts(&self) -> Counts {
        self.lanes.counts()
    }

    /// Attempts and dead letters in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.attempts.len() + self.dead_letters.in_flight()
    }

    /// Whether nothing is in flight and every decision is committed.
    pub(super) fn is_settled(&self) -> bool {
        self.in_flight() == 0 && self.pending.is_empty() && self.statuses.is_empty()
    }

    /// Whether the row of every event that was parked is committed.
    pub(super) fn rows_are_committed(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether the ticket belongs to an attempt or a dead letter in flight.
    pub(super) fn is_in_flight(&self, ticket: Ticket) -> bool {
        self.attempts.contains_key(&ticket) || self.is_dead_letter(ticket)
    }

    /// The event of an attempt.
    pub(super) fn attempted(&self, ticket: Ticket) -> Option<Position> {
        self.attempts.get(&ticket).copied()
    }

    /// The parked events that are published, while the status of their rows is not committed.
    pub(super) fn published_unwritten(&self) -> impl Iterator<Item = Position> {
        let done = self.statuses.iter().map(|pending| pending.status);
        done.filter(|status| status.became == ParkedOutcome::Done).map(|status| status.position)
    }

    /// These events were published by an earlier session, which could not write the status of their rows.
    pub(super) fn published_before(&mut self, events: &[Position], resolved: Position) {
        for position in events {
            let Some(row) = self.lanes.row(*position).copied() else { continue };
            if row.request.is_some() {
                self.set_status(*position, ParkedOutcome::Declined, row.lane);
            }
            self.lanes.remove(*position, true, *position >= resolved);
            self.set_status(*position, ParkedOutcome::Done, row.lane);
        }
    }

    /// Parks an event of the stream. Its ticket is resolved when its row is committed.
    pub(super) fn park(&mut self, now: Duration, ticket: Ticket, entry: Entry, size_bytes: u64) {
        self.lanes.insert(now, &entry, false);
        self.refused.remove(&entry.position);
        self.pending.push_back(PendingRow { ticket, entry, size_bytes });
        self.pending_bytes += size_bytes;
    }

    /// The broker refused an event of the stream, and no other: it is parked with this entry when the stream repeats
    /// it.
    pub(super) fn park_when_repeated(&mut self, entry: Entry, reason: Refusal) {
        self.refused.insert(entry.position, (entry, reason));
    }

    /// The entry for an event of the stream that a broker has refused, and why.
    pub(super) fn refusal(&self, position: Position) -> Option<(Entry, Refusal)> {
        if self.refused.is_empty() { None } else { self.refused.get(&position).copied() }
    }

    /// The connection is lost, and with it the answer to a write in progress. The write is repeated, which changes
    /// nothing if it was committed.
    pub(super) fn disconnected(&mut self) {
        self.connected = false;
        self.write_in_progress = false;
        self.writing = 0;
        self.locked = LockedRows::default();
        for pending in &mut self.statuses {
            pending.writing = false;
        }
    }

    /// Discards everything in flight: the stream repeats events without a committed row, and no attempt gets a report.
    ///
    /// A write in progress continues, because the session may still write a last row and the last statuses.
    pub(super) fn discard_in_flight(&mut self) {
        self.writing = 0;
        if injected(Bug::DrainForgetsWrite) {
            self.disconnected();
        }
        for pending in std::mem::take(&mut self.pending) {
            self.lanes.remove(pending.entry.position, false, false);
        }
        self.pending_bytes = 0;
        self.attempts.clear();
        self.probes.clear();
        self.dead_letters.discard_in_flight();
        self.lanes.clear_attempts();
    }

    /// Discards every decision that is not committed, because another process decides again.
    ///
    /// That a broker refused an event alone remains known in the same history. Otherwise two processes that own the
    /// pipeline in turns would each start to search for that event in every turn.
    pub(super) fn reset(&mut self, same_history: bool) {
        self.disconnected();
        self.discard_in_flight();
        self.statuses.clear();
        self.locked = LockedRows::default();
        self.dead_letters.clear();
        self.suspects.clear();
        if !same_history {
            self.refused.clear();
        }
        self.lanes.clear();
    }

    /// A session starts with these rows of the table, in order of the stream. The lanes are built from the rows, and
    /// from the rows and statuses that are still to be written.
    pub(super) fn load(&mut self, now: Duration, rows: &[Entry]) {
        self.disconnected();
        self.connected = true;
        self.dead_letters.clear_due();
        self.probes.clear();
        self.lanes.clear();
        for entry in rows {
            self.lanes.insert(now, entry, true);
        }
        for PendingRow { entry, .. } in &self.pending {
            if self.lanes.row(entry.position).is_some() {
                self.lanes.write_started(entry.position);
            } else {
                self.lanes.insert(now, entry, false);
            }
        }
        for PendingStatus { status, lane, .. } in &self.statuses {
            let position = status.position;
            match status.became {
                ParkedOutcome::Done | ParkedOutcome::Skipped
                    if self.lanes.row(position).is_some() =>
                {
                    self.lanes.remove(position, true, true);
                }
                ParkedOutcome::Done | ParkedOutcome::Skipped => {
                    if let Some(lane) = *lane {
                        self.lanes.expect_status(lane);
                    }
                }
                ParkedOutcome::Refused { state, attempts, wait, reason: _ } => {
                    self.lanes.set_state(position, state, attempts, now.saturating_add(wait));
                    self.lanes.write_started(position);
                }
                ParkedOutcome::Again => {
                    self.lanes.set_state(position, State::Waiting, 0, now);
                    self.lanes.write_started(position);
                }
                ParkedOutcome::Declined
                | ParkedOutcome::DeadSent
                | ParkedOutcome::Overtaken { .. } => {}
            }
        }
        for position in &self.suspects {
            self.lanes.set_exclusive(*position);
        }
        let lanes = &mut self.lanes;
        self.attempts.retain(|ticket, position| lanes.resume_attempt(*position, *ticket));
    }

    fn set_status(&mut self, position: Position, became: ParkedOutcome, lane: Option<Lane>) {
        let status = ParkedUpdate { position, became };
        let pending = PendingStatus { status, lane, writing: false, deferred: false };
        self.locked.waiting += usize::from(self.locked.defers(&pending));
        self.statuses.push_back(pending);
    }

    /// Starts the attempts that are due and below `durable`, and the dead letter that is due. `in_flight` events of the
    /// stream have no report yet.
    pub(super) fn start_attempts(
        &mut self,
        now: Duration,
        (resolved, durable): (Position, Position),
        in_flight: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.lanes.forget_below(resolved);
        self.lanes.promote_due(now);
        while self.connected
            && self.attempts.len() < ATTEMPTS_MAX
            && (self.statuses.len() < STATUSES_MAX || self.lanes.needs_exclusive(durable))
            && !self.attempts_exclusively()
        {
            let nothing = in_flight == 0 && self.in_flight() == 0;
            if self.probes.len() == ATTEMPTS_MAX {
                break;
            }
            let Some(position) = self.lanes.next_due(durable, nothing) else { break };
            let ticket = self.ticket();
            let Some(row) = self.lanes.row_mut(position) else { continue };
            row.attempt = Some(ticket);
            // All other events wait for an exclusive attempt, so its destination is probed first.
            if row.exclusive && !row.probed {
                self.probes.insert(ticket, position);
                effects.push(Effect::Probe { ticket, position });
            } else {
                self.attempts.insert(ticket, position);
                effects.push(Effect::Attempt { ticket, position });
            }
        }
        self.paused = self.needs_exclusive(resolved);
        if self.connected && !self.paused {
            self.send_dead_letter(now, effects);
        }
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(ATTEMPT_BIT | self.next_attempt);
        self.next_attempt += 1;
        ticket
    }

    /// When an attempt or a dead letter is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        // A dead letter that waits for an exclusive attempt is not due, however much time passes.
        let dead_letter = self.dead_letters.deadline().filter(|_| !self.paused);
        let due = [self.lanes.deadline(), dead_letter];
        due.into_iter().flatten().min().filter(|_| self.connected)
    }

    /// Whether the attempt in flight, or the next one, must have nothing else in flight.
    pub(super) fn needs_exclusive(&self, durable: Position) -> bool {
        self.connected && (self.attempts_exclusively() || self.lanes.needs_exclusive(durable))
    }

    /// Whether an attempt waits only for a cursor row that contains `resolved` instead of `durable`.
    pub(super) fn waits_for_cursor(&self, durable: Position, resolved: Position) -> bool {
        self.connected && self.lanes.is_due_between(durable, resolved)
    }

    /// Whether an exclusive attempt is in flight. It is then the only attempt.
    fn attempts_exclusively(&self) -> bool {
        let mut attempts = self.attempts.values();
        let first = attempts.next().and_then(|position| self.lanes.row(*position));
        first.is_some_and(|row| row.exclusive)
    }

    /// Whether the ticket belongs to an attempt, a probe or a dead letter, of this session or an earlier one.
    pub(super) fn is_attempt(ticket: Ticket) -> bool {
        ticket.0 & ATTEMPT_BIT != 0
    }

    /// An attempt reached the broker. Returns the position of the event.
    pub(super) fn released(&mut self, ticket: Ticket, resolved: Position) -> Option<Position> {
        let (position, row) = self.end_attempt(ticket)?;
        self.suspects.remove(&position);
        if row.request.is_some() {
            self.set_status(position, ParkedOutcome::Declined, row.lane);
        }
        self.lanes.remove(position, true, position >= resolved);
        self.set_status(position, ParkedOutcome::Done, row.lane);
        Some(position)
    }

    /// An attempt was refused because of the event itself.
    pub(super) fn attempt_refused(&mut self, now: Duration, ticket: Ticket, reason: Refusal) {
        let Some((position, row)) = self.end_attempt(ticket) else { return };
        if let Some(request) = row.request {
            self.carry_out(now, position, request, position);
            return;
        }
        let attempts = row.attempts.saturating_add(1);
        let dead = attempts >= self.rules.attempts_max;
        let state = if dead { State::Dead } else { State::Waiting };
        let wait = self.rules.wait(attempts);
        self.lanes.set_state(position, state, attempts, now.saturating_add(wait));
        self.lanes.write_started(position);
        self.set_status(
            position,
            ParkedOutcome::Refused { state, attempts, wait, reason },
            row.lane,
        );
    }

    /// An attempt failed for a reason that is not the event's. It is repeated later and not counted.
    pub(super) fn postpone(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_attempt(ticket) else { return };
        if let Some(request) = row.request {
            self.carry_out(now, position, request, position);
            return;
        }
        let due = now.saturating_add(self.rules.wait(1));
        self.lanes.set_state(position, row.state, row.attempts, due);
    }

    /// The batch that contained an attempt was refused: the attempt is repeated with nothing else in flight.
    pub(super) fn suspect(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_attempt(ticket) else { return };
        self.suspects.insert(position);
        self.lanes.set_exclusive(position);
        self.lanes.set_state(position, row.state, row.attempts, now);
    }

    /// The destination of an exclusive attempt is known: the attempt starts as soon as nothing else is in flight.
    pub(super) fn probed(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_attempt(ticket) else { return };
        if let Some(request) = row.request {
            self.carry_out(now, position, request, position);
            return;
        }
        if let Some(row) = self.lanes.row_mut(position) {
            row.probed = true;
        }
        self.lanes.set_state(position, row.state, row.attempts, now);
    }

    /// Whether the attempt with this ticket is in flight.
    pub(super) fn attempt_in_flight(&self, ticket: Ticket) -> bool {
        self.attempts.contains_key(&ticket)
    }

    /// Whether an attempt has nothing else in flight, so that a refusal can mean no other event.
    pub(super) fn is_exclusive(&self, ticket: Ticket) -> bool {
        let row = self.attempts.get(&ticket).and_then(|position| self.lanes.row(*position));
        row.is_some_and(|row| row.exclusive)
    }

    /// The row of an attempt or a dead letter does not exist any more: it was deleted.
    pub(super) fn row_missing(&mut self, ticket: Ticket) {
        if self.dead_letters.complete(ticket).is_some() {
            return;
        }
        let Some((position, _)) = self.end_attempt(ticket) else { return };
        self.lanes.remove(position, false, false);
    }

    /// The row of a dead event was deleted. Ignored if the event is not dead any more.
    pub(super) fn dead_row_deleted(&mut self, position: Position) {
        let row = self.lanes.row(position).copied();
        let still = row.is_some_and(|row| row.state == State::Dead && row.is_settled());
        if still {
            self.dead_letters.remove(position);
            self.lanes.remove(position, false, false);
        }
    }

    fn end_attempt(&mut self, ticket: Ticket) -> Option<(Position, Row)> {
        let probe = || self.probes.remove(&ticket);
        let position = self.attempts.remove(&ticket).or_else(probe)?;
        let row = self.lanes.row_mut(position)?;
        (row.attempt, row.probed) = (None, false);
        Some((position, *row))
    }

    fn send_dead_letter(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(position) = self.dead_letters.next(now) {
            if self.lanes.row(position).is_none_or(|row| row.state != State::Dead) {
                self.dead_letters.remove(position);
                continue;
            }
            let ticket = self.ticket();
            self.dead_letters.sent(ticket, position);
            effects.push(Effect::DeadLetter { ticket, position });
        }
    }

    /// A row is committed. If the event is dead, its record is sent to the dead-letter topic.
    fn send_if_dead(&mut self, position: Position) {
        if self.lanes.row(position).is_some_and(|row| row.state == State::Dead) {
            self.dead_letters.enqueue(position);
        }
    }

    /// A row read at the start is dead, and its record was not sent.
    pub(super) fn dead_letter_unsent(&mut self, position: Position) {
        self.send_if_dead(position);
    }

    /// Whether the ticket belongs to the dead letter in flight.
    pub(super) fn is_dead_letter(&self, ticket: Ticket) -> bool {
        self.dead_letters.is_in_flight(ticket)
    }

    /// The dead-letter topic has the record.
    pub(super) fn dead_letter_acked(&mut self, ticket: Ticket) {
        let Some(position) = self.dead_letters.complete(ticket) else { return };
        self.dead_letters.acked(position);
        self.set_status(position, ParkedOutcome::DeadSent, None);
    }

    /// The dead-letter topic refused the record. Returns the position of the event.
    pub(super) fn dead_letter_refused(
        &mut self,
        now: Duration,
        ticket: Ticket,
    ) -> Option<Position> {
        let position = self.dead_letters.complete(ticket)?;
        let due = now.saturating_add(self.rules.wait(self.rules.steps_max));
        self.dead_letters.send_at(position, due);
        Some(position)
    }

    /// An operator requests something for a parked event. Each request is carried out once; the row status that removes
    /// it from the row records how. The stream never repeats anything below `resolved`.
    pub(super) fn request(
        &mut self,
        now: Duration,
        position: Position,
        request: Request,
        resolved: Position,
    ) {
        // The request is still in the row because the status that removes it is not committed yet. A second status
        // would remove the next request.
        if self.removes_a_request(position) {
            return;
        }
        match self.lanes.row_mut(position) {
            None => self.set_status(position, ParkedOutcome::Declined, None),
            Some(row) if row.attempt.is_some() => row.request = Some(request),
            Some(_) => self.carry_out(now, position, request, resolved),
        }
    }

    fn removes_a_request(&self, position: Position) -> bool {
        let removes = |became| {
            matches!(
                became,
                ParkedOutcome::Again | ParkedOutcome::Skipped | ParkedOutcome::Declined
            )
        };
        self.statuses.iter().any(|PendingStatus { status, .. }| {
            status.position == position && removes(status.became)
        })
    }

    fn carry_out(
        &mut self,
        now: Duration,
        position: Position,
        request: Request,
        resolved: Position,
    ) {
        let Some(row) = self.lanes.row_mut(position) else { return };
        row.request = None;
        let lane = row.lane;
        self.dead_letters.remove(position);
        match request {
            Request::Retry | Request::Replace => {
                self.lanes.set_state(position, State::Waiting, 0, now);
                self.lanes.write_started(position);
                self.set_status(position, ParkedOutcome::Again, lane);
            }
            Request::Skip => {
                self.lanes.remove(position, true, position >= resolved);
                self.set_status(position, ParkedOutcome::Skipped, lane);
            }
        }
    }

    /// Starts the write that is due: new rows and row statuses, as one statement takes them.
    pub(super) fn write_due(&mut self, now: Duration) -> Option<Effect> {
        if !self.connected || self.write_in_progress {
            return None;
        }
        if self.locked.until.is_some_and(|until| until <= now) {
            self.locked = LockedRows::default();
        }
        if self.pending.is_empty() && self.no_status_is_due(now) {
            return None;
        }
        self.write_in_progress = true;
        self.writing = self.pending.len().min(WRITE_MAX);
        let statuses = self.statuses_of_one_write();
        Some(Effect::WriteParking { rows: self.writing, statuses })
    }

    /// Whether every status that is not committed waits for rows that another session had locked at the last write.
    fn no_status_is_due(&self, now: Duration) -> bool {
        let waits = self.locked.until.is_some_and(|until| until > now);
        let waiting = if waits { self.locked.waiting } else { 0 };
        self.statuses.len() == waiting
    }

    /// When the statuses that were left out of a write are written again.
    pub(super) fn locked_until(&self) -> Option<Duration> {
        self.locked.until.filter(|_| self.connected && !self.statuses.is_empty())
    }

    /// The statuses of the next write. One statement changes a row once, and does not change a row that it inserts.
    fn statuses_of_one_write(&mut self) -> Vec<ParkedUpdate> {
        let rows = self.pending.iter().take(self.writing).map(|pending| pending.entry.position);
        let mut taken: HashSet<Position> = rows.collect();
        let mut statuses = Vec::new();
        for pending in &mut self.statuses {
            if self.locked.defers(pending) {
                continue;
            }
            if statuses.len() == WRITE_MAX || !taken.insert(pending.status.position) {
                break;
            }
            pending.writing = true;
            statuses.push(pending.status);
        }
        statuses
    }

    /// The write in progress is committed, except the statuses of the rows in `locked`. Returns the tickets that this
    /// resolves.
    pub(super) fn written(&mut self, now: Duration, locked: &[Position]) -> Vec<Ticket> {
        self.write_in_progress = false;
        let mut resolved = Vec::with_capacity(self.writing);
        let written: Vec<_> = self.pending.drain(..self.writing).collect();
        for pending in written {
            self.pending_bytes -= pending.size_bytes;
            self.lanes.write_committed(pending.entry.position);
            self.send_if_dead(pending.entry.position);
            resolved.push(pending.ticket);
        }
        self.writing = 0;
        let locked: HashSet<&Position> = locked.iter().collect();
        for pending in std::mem::take(&mut self.statuses) {
            if !pending.writing {
                self.statuses.push_back(pending);
            } else if locked.contains(&pending.status.position)
                && !injected(Bug::ForgetsDeferredStatuses)
            {
                self.defer(now, pending);
            } else {
                self.status_written(&pending);
            }
        }
        self.locked.waiting =
            self.statuses.iter().filter(|pending| self.locked.defers(pending)).count();
        resolved
    }

    fn status_written(&mut self, PendingStatus { status, lane, .. }: &PendingStatus) {
        match status.became {
            ParkedOutcome::Done | ParkedOutcome::Skipped => self.lanes.status_written(*lane),
            ParkedOutcome::Refused { .. } | ParkedOutcome::Again => {
                self.lanes.write_committed(status.position);
                self.send_if_dead(status.position);
            }
            ParkedOutcome::DeadSent => self.dead_letters.status_written(status.position),
            ParkedOutcome::Declined | ParkedOutcome::Overtaken { .. } => {}
        }
    }

    /// The status is written later. Until then no other event of its lane is attempted: events parked behind it stay
    /// parked, within `rows_max`.
    fn defer(&mut self, now: Duration, pending: PendingStatus) {
        self.locked.add(now, &pending);
        if let (ParkedOutcome::Done | ParkedOutcome::Skipped, Some(lane)) =
            (pending.status.became, pending.lane)
        {
            self.lanes.defer(lane);
        }
        self.statuses.push_back(PendingStatus { writing: false, deferred: true, ..pending });
    }
}
