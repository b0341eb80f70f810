//! What becomes of parked events: rows to be written, marks on them, and tries of the heads that are due.
//!
//! A row or mark counts only when its write is committed ([`Parking::written`]): an event is resolved then and not
//! before, and a lane is live then and not before. One write is under way at a time, and takes all that has gathered.
//! Knows tickets and positions; the records are the driver's.

use super::Effect;
use super::lanes::{Counts, Lanes, Row};
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Lane, ParkedOutcome, ParkedUpdate, Request, State};
use postrider_core::record::{Refusal, Ticket};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Tries that are out at once, and probes.
pub(super) const TRIES_MAX: usize = 32;

/// Rows, and marks, of one write.
const WRITE_MAX: usize = 500;

/// Events that wait for their rows to be committed; reaching it shuts the intake.
const PENDING_EVENTS_MAX: usize = 2_000;

/// Bytes of their records; one event may exceed it alone.
const PENDING_BYTES_MAX: u64 = 16 << 20;

/// Pause before marks are written again whose rows another session had locked.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Tickets of tries have this bit, tickets of the stream do not.
const TRY: u64 = 1 << 63;

/// An event whose row is not committed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: Ticket,
    entry: Entry,
    size_bytes: u64,
}

/// A mark that is not committed.
#[derive(Clone, Copy, Debug)]
struct Owed {
    mark: ParkedUpdate,
    lane: Option<Lane>,
    /// It is part of the write that is under way.
    writing: bool,
    /// It was left out of the last write that it was part of.
    left: bool,
}

/// Marks that were left out of a write because another session had locked their rows, and which marks wait for them: a
/// later one of the same lane must not be committed first, or a crash would repeat the earlier event alone, behind it.
#[derive(Debug, Default)]
struct Locked {
    /// They are written again from here on.
    until: Option<Duration>,
    lanes: HashSet<Lane>,
    rows: HashSet<Position>,
    /// How many marks wait.
    marks: usize,
}

impl Locked {
    fn keeps(&self, owed: &Owed) -> bool {
        self.until.is_some()
            && (self.rows.contains(&owed.mark.position)
                || owed.lane.is_some_and(|lane| self.lanes.contains(&lane))
                    && !injected(Bug::MarksPassLeftOnes))
    }

    fn leave(&mut self, now: Duration, owed: &Owed) {
        self.until = Some(now.saturating_add(LOCKED_PAUSE));
        self.rows.insert(owed.mark.position);
        self.lanes.extend(owed.lane);
    }
}

#[derive(Debug)]
pub(super) struct Parking {
    pub(super) rules: ParkingRules,
    pub(super) lanes: Lanes,
    /// In order of the stream; the first `writing` are being written.
    pending: VecDeque<Pending>,
    pending_bytes: u64,
    writing: usize,
    /// In order.
    marks: VecDeque<Owed>,
    locked: Locked,
    under_way: bool,
    tries: HashMap<Ticket, Position>,
    /// Rows that are to be tried alone, while their destinations are asked for.
    probes: HashMap<Ticket, Position>,
    letters: Letters,
    next_try: u64,
    /// Rows that were in a batch a broker refused.
    suspects: BTreeSet<Position>,
    /// Events of the stream that a broker refused alone, and why: they are parked when they come again.
    condemned: BTreeMap<Position, (Entry, Refusal)>,
    connected: bool,
    /// A try has to be alone: letters wait.
    hushed: bool,
}

impl Parking {
    pub(super) fn new(rules: ParkingRules) -> Self {
        Self {
            rules,
            lanes: Lanes::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            writing: 0,
            marks: VecDeque::new(),
            locked: Locked::default(),
            under_way: false,
            tries: HashMap::new(),
            probes: HashMap::new(),
            letters: Letters::new(rules.dead_letters),
            next_try: 0,
            suspects: BTreeSet::new(),
            condemned: BTreeMap::new(),
            connected: false,
            hushed: false,
        }
    }

    /// Whether the next change may come, and be parked. Rows that the stream has not reached again since the last start
    /// must not shut it out: they are tried only when it has passed them.
    pub(super) fn has_room(&self, next: Position) -> bool {
        !self.is_full(next)
            && self.pending.len() < PENDING_EVENTS_MAX
            && self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Whether as many events are parked as may be.
    pub(super) fn is_full(&self, next: Position) -> bool {
        self.lanes.counts().total() >= self.rules.rows_max
            && (!self.lanes.any_from(next) || injected(Bug::FullShutsOut))
    }

    /// Whether there is nothing to decide: no row, no mark, no try.
    #[inline]
    pub(super) fn idle(&self) -> bool {
        self.lanes.is_empty()
            && self.pending.is_empty()
            && self.marks.is_empty()
            && self.tries() == 0
    }

    /// Whether parking needs no decision now: no head is due, and no write, mark, attempt or dead letter is pending.
    /// Takes the same time whatever the number of parked events.
    #[inline]
    pub(super) fn asleep(&self, now: Duration) -> bool {
        self.lanes.asleep(now)
            && self.pending.is_empty()
            && self.no_mark_is_due(now)
            && self.tries.is_empty()
            && self.letters.asleep(now)
            && !self.hushed
    }

    /// Marks that could not be written when they were last to be.
    pub(super) fn left_marks(&self) -> usize {
        self.marks.iter().filter(|owed| owed.left).count()
    }

    pub(super) fn counts(&self) -> Counts {
        self.lanes.counts()
    }

    /// Tries and letters that are out.
    pub(super) fn tries(&self) -> usize {
        self.tries.len() + self.letters.flying()
    }

    /// Whether nothing is being tried and everything decided is committed.
    pub(super) fn quiet(&self) -> bool {
        self.tries() == 0 && self.pending.is_empty() && self.marks.is_empty()
    }

    /// Sets an event aside: its row has to be written before it counts as resolved.
    pub(super) fn park(&mut self, now: Duration, ticket: Ticket, entry: Entry, size_bytes: u64) {
        self.lanes.insert(now, &entry, false);
        self.condemned.remove(&entry.position);
        self.pending.push_back(Pending { ticket, entry, size_bytes });
        self.pending_bytes += size_bytes;
    }

    /// An event that is to be parked as this when the stream brings it again.
    pub(super) fn condemn(&mut self, entry: Entry, reason: Refusal) {
        self.condemned.insert(entry.position, (entry, reason));
    }

    pub(super) fn condemned(&self, position: Position) -> Option<(Entry, Refusal)> {
        if self.condemned.is_empty() { None } else { self.condemned.get(&position).copied() }
    }

    /// The connection is gone, and with it the answer to a write: it is written again, which changes nothing where it
    /// had arrived.
    pub(super) fn lost(&mut self) {
        self.connected = false;
        self.under_way = false;
        self.writing = 0;
        self.locked = Locked::default();
        for owed in &mut self.marks {
            owed.writing = false;
        }
    }

    /// Everything in flight is given up: the stream brings again what has no row, and no try will be reported.
    ///
    /// The session may go on, for a last row and the last marks: a write that is under way stays so.
    pub(super) fn given_up(&mut self) {
        self.writing = 0;
        if injected(Bug::DrainForgetsWrite) {
            self.lost();
        }
        for pending in std::mem::take(&mut self.pending) {
            self.lanes.remove(pending.entry.position, false, false);
        }
        self.pending_bytes = 0;
        self.tries.clear();
        self.probes.clear();
        self.letters.given_up();
        self.lanes.stop_trying();
    }

    /// What is decided and not committed is another owner's to decide again. That a broker refused an event alone stays
    /// true, where positions mean the same: else two processes that take turns would each begin anew with every turn.
    pub(super) fn forget(&mut self, same_history: bool) {
        self.lost();
        self.given_up();
        self.marks.clear();
        self.locked = Locked::default();
        self.letters.clear();
        self.suspects.clear();
        if !same_history {
            self.condemned.clear();
        }
        self.lanes.clear();
    }

    /// Reads the table's rows, in order of the stream: memory is made from them, and from what is on its way.
    pub(super) fn load(&mut self, now: Duration, rows: &[Entry]) {
        self.lost();
        self.connected = true;
        self.letters.reload();
        self.probes.clear();
        self.lanes.clear();
        for entry in rows {
            self.lanes.insert(now, entry, true);
        }
        for Pending { entry, .. } in &self.pending {
            if self.lanes.row(entry.position).is_some() {
                self.lanes.writing(entry.position);
            } else {
                self.lanes.insert(now, entry, false);
            }
        }
        for Owed { mark, lane, .. } in &self.marks {
            let position = mark.position;
            match mark.became {
                ParkedOutcome::Done | ParkedOutcome::Skipped
                    if self.lanes.row(position).is_some() =>
                {
                    self.lanes.remove(position, true, true);
                }
                ParkedOutcome::Done | ParkedOutcome::Skipped => {
                    if let Some(lane) = *lane {
                        self.lanes.owe_mark(lane);
                    }
                }
                ParkedOutcome::Refused { state, attempts, wait, reason: _ } => {
                    self.lanes.becomes(position, state, attempts, now.saturating_add(wait));
                    self.lanes.writing(position);
                }
                ParkedOutcome::Again => {
                    self.lanes.becomes(position, State::Waiting, 0, now);
                    self.lanes.writing(position);
                }
                ParkedOutcome::Declined
                | ParkedOutcome::DeadSent
                | ParkedOutcome::Overtaken { .. } => {}
            }
        }
        for position in &self.suspects {
            self.lanes.set_alone(*position);
        }
        let lanes = &mut self.lanes;
        self.tries.retain(|ticket, position| lanes.try_again(*position, *ticket));
    }

    fn mark(&mut self, position: Position, became: ParkedOutcome, lane: Option<Lane>) {
        let owed =
            Owed { mark: ParkedUpdate { position, became }, lane, writing: false, left: false };
        self.locked.marks += usize::from(self.locked.keeps(&owed));
        self.marks.push_back(owed);
    }
}

// How events are parked and tried again, as a configuration says. Decides nothing but the first entry of a row.

/// The first try of an event whose destination is missing; further ones keep the usual pause.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What a poison event does to the events behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnPoison {
    /// Later events of its aggregate wait.
    BlockKey,
    /// It alone is set aside; its aggregate goes on without it.
    SkipEvent,
    /// The pipeline halts.
    Stop,
}

/// How events are parked and tried again.
#[derive(Clone, Copy, Debug)]
pub struct ParkingRules {
    /// What a poison event does to the events behind it.
    pub on_poison: OnPoison,
    /// Tries before an event is dead.
    pub attempts_max: u32,
    /// Attempt n waits `min(n, steps_max)` times this.
    pub step: Duration,
    /// See `step`.
    pub steps_max: u32,
    /// Parked events; reaching it shuts the intake.
    pub rows_max: u64,
    /// One event of an aggregate in flight at a time (`flow.ordering = "strict"`).
    pub strict: bool,
    /// Dead events are also sent to a topic (`parking.dead_topic`).
    pub dead_letters: bool,
}

impl ParkingRules {
    fn wait(&self, attempts: u32) -> Duration {
        self.step.saturating_mul(attempts.clamp(1, self.steps_max.max(1)))
    }

    /// The entry of an event that was refused for the first time. One whose refusal no later try can change is dead.
    pub(super) fn refused(&self, position: Position, lane: Option<Lane>, hopeless: bool) -> Entry {
        let lane = lane.filter(|_| self.on_poison == OnPoison::BlockKey);
        // Without a lane its time is over: what comes after it is published already.
        let dead = hopeless || lane.is_none() || self.attempts_max <= 1;
        Entry {
            position,
            lane,
            state: if dead { State::Dead } else { State::Waiting },
            attempts: 1,
            wait: self.wait(1),
            overtaken_by: None,
        }
    }

    /// How an event waits for its destination: nothing is wrong with it, so no attempt is counted. `soon`: it may be
    /// that the destination was made a moment ago, and not every broker has heard of it.
    pub(super) fn unavailable(&self, soon: bool) -> (State, Duration) {
        let wait = self.wait(1);
        (State::Waiting, if soon { wait.min(FIRST_LOOK) } else { wait })
    }
}

// Tries of the heads that are due, and what comes of each. One that is suspected of spoiling others goes alone.

impl Parking {
    /// Tries what is due and below `durable`. `in_flight` events of the stream have no report yet.
    pub(super) fn tick(
        &mut self,
        now: Duration,
        (resolved, durable): (Position, Position),
        in_flight: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.lanes.forget_below(resolved);
        self.lanes.ripen(now);
        while self.connected && self.tries.len() < TRIES_MAX && !self.trying_alone() {
            let nothing = in_flight == 0 && self.tries() == 0;
            if self.probes.len() == TRIES_MAX {
                break;
            }
            let Some(position) = self.lanes.next_due(durable, nothing) else { break };
            let ticket = self.ticket();
            let Some(row) = self.lanes.row_mut(position) else { continue };
            row.trying = Some(ticket);
            // Everything waits for one that is alone: so first it is seen that there is somewhere for it to go.
            if row.alone && !row.sounded {
                self.probes.insert(ticket, position);
                effects.push(Effect::Probe { ticket, position });
            } else {
                self.tries.insert(ticket, position);
                effects.push(Effect::Attempt { ticket, position });
            }
        }
        self.hushed = self.needs_quiet(resolved);
        if self.connected && !self.hushed {
            self.send_letter(now, effects);
        }
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(TRY | self.next_try);
        self.next_try += 1;
        ticket
    }

    /// When something falls due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        // A letter that waits for a try to be alone is not due: time alone does not bring it on.
        let letter = self.letters.deadline().filter(|_| !self.hushed);
        let due = [self.lanes.deadline(), letter];
        due.into_iter().flatten().min().filter(|_| self.connected)
    }

    /// Whether a try is out, or is next, that must have nothing else in flight.
    pub(super) fn needs_quiet(&self, durable: Position) -> bool {
        self.connected && (self.trying_alone() || self.lanes.wants_to_be_alone(durable))
    }

    /// Whether a try waits for nothing but a cursor row that says `resolved` instead of `durable`.
    pub(super) fn waits_for_row(&self, durable: Position, resolved: Position) -> bool {
        self.connected && self.lanes.is_due_between(durable, resolved)
    }

    fn trying_alone(&self) -> bool {
        // One that is alone is alone.
        let mut tries = self.tries.values();
        let first = tries.next().and_then(|position| self.lanes.row(*position));
        first.is_some_and(|row| row.alone)
    }

    /// Whether a ticket is a try's, of this session or of an earlier one.
    pub(super) fn is_try(ticket: Ticket) -> bool {
        ticket.0 & TRY != 0
    }

    /// A try reached the broker; where it was parked.
    pub(super) fn released(&mut self, ticket: Ticket, resolved: Position) -> Option<Position> {
        let (position, row) = self.end_try(ticket)?;
        self.suspects.remove(&position);
        if row.request.is_some() {
            self.mark(position, ParkedOutcome::Declined, row.lane);
        }
        self.lanes.remove(position, true, position >= resolved);
        self.mark(position, ParkedOutcome::Done, row.lane);
        Some(position)
    }

    /// A try was refused for what the event itself is.
    pub(super) fn refused_again(&mut self, now: Duration, ticket: Ticket, reason: Refusal) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(request) = row.request {
            self.grant(now, position, request, position);
            return;
        }
        let attempts = row.attempts.saturating_add(1);
        let dead = attempts >= self.rules.attempts_max;
        let state = if dead { State::Dead } else { State::Waiting };
        let wait = self.rules.wait(attempts);
        self.lanes.becomes(position, state, attempts, now.saturating_add(wait));
        self.lanes.writing(position);
        self.mark(position, ParkedOutcome::Refused { state, attempts, wait, reason }, row.lane);
    }

    /// A try came to nothing, for a reason that is not the event's: no attempt is counted.
    pub(super) fn put_off(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(request) = row.request {
            self.grant(now, position, request, position);
            return;
        }
        let due = now.saturating_add(self.rules.wait(1));
        self.lanes.becomes(position, row.state, row.attempts, due);
    }

    /// A batch with a try in it was refused: the try is repeated alone.
    pub(super) fn suspect(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        self.suspects.insert(position);
        self.lanes.set_alone(position);
        self.lanes.becomes(position, row.state, row.attempts, now);
    }

    /// The destination of a row that is to be tried alone is known: it is tried as soon as nothing else is in flight.
    pub(super) fn sounded(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(request) = row.request {
            self.grant(now, position, request, position);
            return;
        }
        if let Some(row) = self.lanes.row_mut(position) {
            row.sounded = true;
        }
        self.lanes.becomes(position, row.state, row.attempts, now);
    }

    /// Whether this try is out.
    pub(super) fn tried(&self, ticket: Ticket) -> bool {
        self.tries.contains_key(&ticket)
    }

    /// Whether a try was made with nothing else in flight, so that a refusal can mean nothing else.
    pub(super) fn was_alone(&self, ticket: Ticket) -> bool {
        let row = self.tries.get(&ticket).and_then(|position| self.lanes.row(*position));
        row.is_some_and(|row| row.alone)
    }

    /// The row of a try is not in the table any more: somebody deleted it.
    pub(super) fn gone(&mut self, ticket: Ticket) {
        if self.letters.ended(ticket).is_some() {
            return;
        }
        let Some((position, _)) = self.end_try(ticket) else { return };
        self.lanes.remove(position, false, false);
    }

    /// The row of a dead event is not in the table any more. Where more has become of it meanwhile, that counts.
    pub(super) fn deleted(&mut self, position: Position) {
        let row = self.lanes.row(position).copied();
        let still = row.is_some_and(|row| row.state == State::Dead && row.at_rest());
        if still {
            self.letters.forget(position);
            self.lanes.remove(position, false, false);
        }
    }

    fn end_try(&mut self, ticket: Ticket) -> Option<(Position, Row)> {
        let sounding = || self.probes.remove(&ticket);
        let position = self.tries.remove(&ticket).or_else(sounding)?;
        let row = self.lanes.row_mut(position)?;
        (row.trying, row.sounded) = (None, false);
        Some((position, *row))
    }
}

// Dead events whose records also go to the dead-letter topic: which are still to be sent, and when.
//
// One at a time, by a ticket of its own, and only once the row that says "dead" is committed: the record is read from
// there, and a crash before the mark sends it again. What is refused is put off and never given up; nothing waits for
// it but the letters themselves. Knows no lane: `parking` says who is dead.

#[derive(Debug, Default)]
struct Letters {
    /// Whether there is a topic for them.
    on: bool,
    /// To be sent, and from when on, by the relay's clock.
    due: HashMap<Position, Duration>,
    /// The same in order.
    order: BTreeSet<(Duration, Position)>,
    out: Option<(Ticket, Position)>,
    /// Acknowledged; the marks that say so are not committed.
    sent: BTreeSet<Position>,
}

impl Letters {
    fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// The row of a dead event is committed, and does not say that it was sent.
    fn dead(&mut self, position: Position) {
        let flies = self.out.is_some_and(|(_, out)| out == position);
        if self.on && !flies && !self.sent.contains(&position) {
            self.send_at(position, Duration::ZERO);
        }
    }

    /// The next to be sent, unless one is out.
    fn next(&self, now: Duration) -> Option<Position> {
        let first = self.order.first().filter(|(due, _)| self.out.is_none() && *due <= now);
        first.map(|(_, position)| *position)
    }

    /// It is on its way.
    fn goes(&mut self, ticket: Ticket, position: Position) {
        self.forget(position);
        self.out = Some((ticket, position));
    }

    /// What a report is about, if it is about the letter that is out.
    fn ended(&mut self, ticket: Ticket) -> Option<Position> {
        self.out.take_if(|(out, _)| *out == ticket).map(|(_, position)| position)
    }

    /// Whether this letter is out.
    fn is_out(&self, ticket: Ticket) -> bool {
        self.out.is_some_and(|(out, _)| out == ticket)
    }

    /// Letters that are out: one at most.
    fn flying(&self) -> usize {
        usize::from(self.out.is_some())
    }

    fn send_at(&mut self, position: Position, due: Duration) {
        self.forget(position);
        self.due.insert(position, due);
        self.order.insert((due, position));
    }

    /// The broker has it.
    fn sent(&mut self, position: Position) {
        self.sent.insert(position);
    }

    /// The mark that says so is committed.
    fn marked(&mut self, position: Position) {
        self.sent.remove(&position);
    }

    /// It is not dead any more. A report that still comes is about nothing.
    fn forget(&mut self, position: Position) {
        if let Some(due) = self.due.remove(&position) {
            self.order.remove(&(due, position));
        }
        self.out.take_if(|(_, out)| *out == position);
    }

    /// No report will come.
    fn given_up(&mut self) {
        if let Some((_, position)) = self.out.take() {
            self.send_at(position, Duration::ZERO);
        }
    }

    /// What is to be sent is read from the table again.
    fn reload(&mut self) {
        self.due.clear();
        self.order.clear();
    }

    /// The rows are another owner's.
    fn clear(&mut self) {
        *self = Self::new(self.on);
    }

    /// Whether none is out or due.
    #[inline]
    fn asleep(&self, now: Duration) -> bool {
        self.out.is_none() && self.order.first().is_none_or(|(due, _)| *due > now)
    }

    /// When the next falls due.
    fn deadline(&self) -> Option<Duration> {
        self.order.first().filter(|_| self.out.is_none()).map(|(due, _)| *due)
    }
}

impl Parking {
    fn send_letter(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(position) = self.letters.next(now) {
            if self.lanes.row(position).is_none_or(|row| row.state != State::Dead) {
                self.letters.forget(position);
                continue;
            }
            let ticket = self.ticket();
            self.letters.goes(ticket, position);
            effects.push(Effect::DeadLetter { ticket, position });
        }
    }

    /// A row is committed: if it is dead now, its record is to be sent.
    fn may_be_a_letter(&mut self, position: Position) {
        if self.lanes.row(position).is_some_and(|row| row.state == State::Dead) {
            self.letters.dead(position);
        }
    }

    /// A row read at the start is dead and was not sent.
    pub(super) fn unsent(&mut self, position: Position) {
        self.may_be_a_letter(position);
    }

    /// Whether a ticket is the letter's that is out.
    pub(super) fn is_letter(&self, ticket: Ticket) -> bool {
        self.letters.is_out(ticket)
    }

    /// The dead-letter topic has the record.
    pub(super) fn delivered(&mut self, ticket: Ticket) {
        let Some(position) = self.letters.ended(ticket) else { return };
        self.letters.sent(position);
        self.mark(position, ParkedOutcome::DeadSent, None);
    }

    /// The dead-letter topic did not take the record; whose.
    pub(super) fn undelivered(&mut self, now: Duration, ticket: Ticket) -> Option<Position> {
        let position = self.letters.ended(ticket)?;
        let due = now.saturating_add(self.rules.wait(self.rules.steps_max));
        self.letters.send_at(position, due);
        Some(position)
    }
}

// What persons ask for: each request is carried out once, and the mark that takes it off says how.

impl Parking {
    /// Carries out what a person asks for. Everything below `resolved` never comes again.
    pub(super) fn request(
        &mut self,
        now: Duration,
        position: Position,
        request: Request,
        resolved: Position,
    ) {
        // The request is still in the row because the mark that takes it off is on its way: a second mark would take
        // off the next request.
        if self.takes_a_request(position) {
            return;
        }
        match self.lanes.row_mut(position) {
            None => self.mark(position, ParkedOutcome::Declined, None),
            Some(row) if row.trying.is_some() => row.request = Some(request),
            Some(_) => self.grant(now, position, request, resolved),
        }
    }

    fn takes_a_request(&self, position: Position) -> bool {
        let takes = |became| {
            matches!(
                became,
                ParkedOutcome::Again | ParkedOutcome::Skipped | ParkedOutcome::Declined
            )
        };
        self.marks.iter().any(|Owed { mark, .. }| mark.position == position && takes(mark.became))
    }

    fn grant(&mut self, now: Duration, position: Position, request: Request, resolved: Position) {
        let Some(row) = self.lanes.row_mut(position) else { return };
        row.request = None;
        let lane = row.lane;
        self.letters.forget(position);
        match request {
            Request::Retry | Request::Replace => {
                self.lanes.becomes(position, State::Waiting, 0, now);
                self.lanes.writing(position);
                self.mark(position, ParkedOutcome::Again, lane);
            }
            Request::Skip => {
                self.lanes.remove(position, true, position >= resolved);
                self.mark(position, ParkedOutcome::Skipped, lane);
            }
        }
    }
}

// The write that is due: new rows and marks, as one statement takes them, and what it settles once it is committed.

impl Parking {
    /// The write that is due, if one is.
    pub(super) fn write_due(&mut self, now: Duration) -> Option<Effect> {
        if !self.connected || self.under_way {
            return None;
        }
        if self.locked.until.is_some_and(|until| until <= now) {
            self.locked = Locked::default();
        }
        if self.pending.is_empty() && self.no_mark_is_due(now) {
            return None;
        }
        self.under_way = true;
        self.writing = self.pending.len().min(WRITE_MAX);
        let statuses = self.marks_of_one_write();
        Some(Effect::WriteParking { rows: self.writing, statuses })
    }

    /// Whether all marks that are owed wait for rows that another session had locked at the last try.
    fn no_mark_is_due(&self, now: Duration) -> bool {
        let waiting =
            if self.locked.until.is_some_and(|until| until > now) { self.locked.marks } else { 0 };
        self.marks.len() == waiting
    }

    /// When marks are written again that were left out.
    pub(super) fn locked_until(&self) -> Option<Duration> {
        self.locked.until.filter(|_| self.connected && !self.marks.is_empty())
    }

    /// Which marks go together: one statement changes a row once, and not one that it also makes.
    fn marks_of_one_write(&mut self) -> Vec<ParkedUpdate> {
        let rows = self.pending.iter().take(self.writing).map(|pending| pending.entry.position);
        let mut taken: HashSet<Position> = rows.collect();
        let mut marks = Vec::new();
        for owed in &mut self.marks {
            if self.locked.keeps(owed) {
                continue;
            }
            if marks.len() == WRITE_MAX || !taken.insert(owed.mark.position) {
                break;
            }
            owed.writing = true;
            marks.push(owed.mark);
        }
        marks
    }

    /// The write is committed, but for the marks of the rows in `left`; gives the tickets that are resolved by it.
    pub(super) fn written(&mut self, now: Duration, left: &[Position]) -> Vec<Ticket> {
        self.under_way = false;
        let mut resolved = Vec::with_capacity(self.writing);
        let written: Vec<_> = self.pending.drain(..self.writing).collect();
        for pending in written {
            self.pending_bytes -= pending.size_bytes;
            self.lanes.written(pending.entry.position);
            self.may_be_a_letter(pending.entry.position);
            resolved.push(pending.ticket);
        }
        self.writing = 0;
        let left: HashSet<&Position> = left.iter().collect();
        for owed in std::mem::take(&mut self.marks) {
            if !owed.writing {
                self.marks.push_back(owed);
            } else if left.contains(&owed.mark.position) && !injected(Bug::ForgetsLeftMarks) {
                self.leave(now, owed);
            } else {
                self.settle_mark(&owed);
            }
        }
        self.locked.marks = self.marks.iter().filter(|owed| self.locked.keeps(owed)).count();
        resolved
    }

    /// The mark is committed.
    fn settle_mark(&mut self, Owed { mark, lane, .. }: &Owed) {
        match mark.became {
            ParkedOutcome::Done | ParkedOutcome::Skipped => self.lanes.marked(*lane),
            ParkedOutcome::Refused { .. } | ParkedOutcome::Again => {
                self.lanes.written(mark.position);
                self.may_be_a_letter(mark.position);
            }
            ParkedOutcome::DeadSent => self.letters.marked(mark.position),
            ParkedOutcome::Declined | ParkedOutcome::Overtaken { .. } => {}
        }
    }

    /// The mark is written later. Until then nothing more of its lane is tried: what is parked behind it stays there,
    /// within `rows_max`.
    fn leave(&mut self, now: Duration, owed: Owed) {
        self.locked.leave(now, &owed);
        if let (ParkedOutcome::Done | ParkedOutcome::Skipped, Some(lane)) =
            (owed.mark.became, owed.lane)
        {
            self.lanes.hold(lane);
        }
        self.marks.push_back(Owed { writing: false, left: true, ..owed });
    }
}
