//! What becomes of parked events: rows to be written, marks on them, and tries of the heads that are due.
//!
//! A row or mark counts only when its write is committed ([`Parking::written`]): an event is resolved then and not
//! before, and a lane is live then and not before. One write is under way at a time, and takes all that has gathered.
//! Knows tickets and positions; the records are the driver's.

mod letters;

use super::effect::Effect;
use super::lanes::{Counts, Lanes};
use crate::ack::bug::{Bug, injected};
use crate::event::Position;
use crate::parked::{Became, Entry, Lane, Mark, State, Wish};
use crate::record::{Refusal, Ticket};
use letters::Letters;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Tries that are out at once.
pub(super) const TRIES_MAX: usize = 32;

/// Rows, and marks, of one write.
const WRITE_MAX: usize = 500;

/// Events that wait for their rows to be committed; reaching it shuts the intake.
const PENDING_EVENTS_MAX: usize = 2_000;

/// Bytes of their records; one event may exceed it alone.
const PENDING_BYTES_MAX: u64 = 16 << 20;

/// Tickets of tries have this bit, tickets of the stream do not.
const TRY: u64 = 1 << 63;

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
pub struct Rules {
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
    pub letters: bool,
}

impl Rules {
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

    /// How an event waits for its destination: nothing is wrong with it, so no attempt is counted.
    pub(super) fn unavailable(&self) -> (State, Duration) {
        (State::Waiting, self.wait(1))
    }
}

/// An event whose row is not committed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: Ticket,
    entry: Entry,
    size_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Parking {
    pub(super) rules: Rules,
    pub(super) lanes: Lanes,
    /// In order of the stream; the first `writing` are being written.
    pending: VecDeque<Pending>,
    pending_bytes: u64,
    writing: usize,
    /// In order; the first `marking` are being written.
    marks: VecDeque<(Mark, Option<Lane>)>,
    marking: usize,
    under_way: bool,
    tries: HashMap<Ticket, Position>,
    letters: Letters,
    next_try: u64,
    /// Rows that were in a batch a broker refused.
    suspects: BTreeSet<Position>,
    /// Events of the stream that a broker refused alone: they are parked when they come again.
    condemned: BTreeMap<Position, Entry>,
    connected: bool,
}

impl Parking {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            lanes: Lanes::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            writing: 0,
            marks: VecDeque::new(),
            marking: 0,
            under_way: false,
            tries: HashMap::new(),
            letters: Letters::new(rules.letters),
            next_try: 0,
            suspects: BTreeSet::new(),
            condemned: BTreeMap::new(),
            connected: false,
        }
    }

    /// Whether the next change may come, and be parked. Rows that the stream has not reached again since the last start
    /// must not shut it out: they are tried only when it has passed them.
    pub(super) fn has_room(&self, next: Position) -> bool {
        (self.lanes.counts().total() < self.rules.rows_max
            || (self.lanes.any_from(next) && !injected(Bug::FullShutsOut)))
            && self.pending.len() < PENDING_EVENTS_MAX
            && self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Whether there is nothing to decide: no row, no mark, no try.
    #[inline]
    pub(super) fn idle(&self) -> bool {
        self.lanes.is_empty()
            && self.pending.is_empty()
            && self.marks.is_empty()
            && self.tries() == 0
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
    pub(super) fn condemn(&mut self, entry: Entry) {
        self.condemned.insert(entry.position, entry);
    }

    pub(super) fn condemned(&self, position: Position) -> Option<Entry> {
        if self.condemned.is_empty() { None } else { self.condemned.get(&position).copied() }
    }

    /// The write that is due, if one is.
    pub(super) fn write_due(&mut self) -> Option<Effect> {
        let idle = self.connected && !self.under_way;
        if !idle || (self.pending.is_empty() && self.marks.is_empty()) {
            return None;
        }
        self.under_way = true;
        self.writing = self.pending.len().min(WRITE_MAX);
        self.marking = self.marks_of_one_write();
        let marks = self.marks.iter().take(self.marking).map(|(mark, _)| *mark).collect();
        Some(Effect::WriteParking { rows: self.writing, marks })
    }

    /// How many marks go together: one statement changes a row once, and not one that it also makes.
    fn marks_of_one_write(&self) -> usize {
        let rows = self.pending.iter().take(self.writing).map(|pending| pending.entry.position);
        let mut taken: HashSet<Position> = rows.collect();
        let marks = self.marks.iter().take(WRITE_MAX);
        marks.take_while(|(mark, _)| taken.insert(mark.position)).count()
    }

    /// The write is committed; gives the tickets that are resolved by it.
    pub(super) fn written(&mut self) -> Vec<Ticket> {
        self.under_way = false;
        let mut resolved = Vec::with_capacity(self.writing);
        let written: Vec<_> = self.pending.drain(..self.writing).collect();
        for pending in written {
            self.pending_bytes -= pending.size_bytes;
            self.lanes.written(pending.entry.position);
            self.may_be_a_letter(pending.entry.position);
            resolved.push(pending.ticket);
        }
        let marks: Vec<_> = self.marks.drain(..self.marking).collect();
        for (mark, lane) in marks {
            match mark.became {
                Became::Done | Became::Skipped => self.lanes.marked(lane),
                Became::Refused { .. } | Became::Again => {
                    self.lanes.written(mark.position);
                    self.may_be_a_letter(mark.position);
                }
                Became::DeadSent => self.letters.marked(mark.position),
                Became::Declined | Became::Overtaken { .. } => {}
            }
        }
        (self.writing, self.marking) = (0, 0);
        resolved
    }

    /// The connection is gone, and with it the answer to a write: it is written again, which changes nothing where it
    /// had arrived.
    pub(super) fn lost(&mut self) {
        self.connected = false;
        self.under_way = false;
        (self.writing, self.marking) = (0, 0);
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
        self.letters.given_up();
        self.lanes.stop_trying();
    }

    /// What is decided and not committed is another owner's to decide again. That a broker refused an event alone stays
    /// true, where positions mean the same: else two processes that take turns would each begin anew with every turn.
    pub(super) fn forget(&mut self, same_history: bool) {
        self.lost();
        self.given_up();
        self.marks.clear();
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
        for (mark, lane) in &self.marks {
            let position = mark.position;
            match mark.became {
                Became::Done | Became::Skipped if self.lanes.row(position).is_some() => {
                    self.lanes.remove(position, true, true);
                }
                Became::Done | Became::Skipped => {
                    if let Some(lane) = *lane {
                        self.lanes.owe_mark(lane);
                    }
                }
                Became::Refused { state, attempts, wait, reason: _ } => {
                    self.lanes.becomes(position, state, attempts, now.saturating_add(wait));
                    self.lanes.writing(position);
                }
                Became::Again => {
                    self.lanes.becomes(position, State::Waiting, 0, now);
                    self.lanes.writing(position);
                }
                Became::Declined | Became::DeadSent | Became::Overtaken { .. } => {}
            }
        }
        for position in &self.suspects {
            self.lanes.set_alone(*position);
        }
        let lanes = &mut self.lanes;
        self.tries.retain(|ticket, position| lanes.try_again(*position, *ticket));
    }

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
            let Some(position) = self.lanes.next_due(durable, nothing) else { break };
            let ticket = self.ticket();
            self.tries.insert(ticket, position);
            if let Some(row) = self.lanes.row_mut(position) {
                row.trying = Some(ticket);
            }
            effects.push(Effect::Try { ticket, position });
        }
        if self.connected && !self.needs_quiet(resolved) {
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
        let due = [self.lanes.deadline(), self.letters.deadline()];
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
        if row.wish.is_some() {
            self.mark(position, Became::Declined, row.lane);
        }
        self.lanes.remove(position, true, position >= resolved);
        self.mark(position, Became::Done, row.lane);
        Some(position)
    }

    /// A try was refused for what the event itself is.
    pub(super) fn refused_again(&mut self, now: Duration, ticket: Ticket, reason: Refusal) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(wish) = row.wish {
            self.grant(now, position, wish, position);
            return;
        }
        let attempts = row.attempts.saturating_add(1);
        let dead = attempts >= self.rules.attempts_max;
        let state = if dead { State::Dead } else { State::Waiting };
        let wait = self.rules.wait(attempts);
        self.lanes.becomes(position, state, attempts, now.saturating_add(wait));
        self.lanes.writing(position);
        self.mark(position, Became::Refused { state, attempts, wait, reason }, row.lane);
    }

    /// A try came to nothing, for a reason that is not the event's: no attempt is counted.
    pub(super) fn put_off(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(wish) = row.wish {
            self.grant(now, position, wish, position);
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

    /// Carries out what a person asks for. Everything below `resolved` never comes again.
    pub(super) fn wish(
        &mut self,
        now: Duration,
        position: Position,
        wish: Wish,
        resolved: Position,
    ) {
        match self.lanes.row_mut(position) {
            None => self.mark(position, Became::Declined, None),
            Some(row) if row.trying.is_some() => row.wish = Some(wish),
            Some(_) => self.grant(now, position, wish, resolved),
        }
    }

    fn grant(&mut self, now: Duration, position: Position, wish: Wish, resolved: Position) {
        let Some(row) = self.lanes.row_mut(position) else { return };
        row.wish = None;
        let lane = row.lane;
        self.letters.forget(position);
        match wish {
            Wish::Retry | Wish::Replace => {
                self.lanes.becomes(position, State::Waiting, 0, now);
                self.lanes.writing(position);
                self.mark(position, Became::Again, lane);
            }
            Wish::Skip => {
                self.lanes.remove(position, true, position >= resolved);
                self.mark(position, Became::Skipped, lane);
            }
        }
    }

    fn end_try(&mut self, ticket: Ticket) -> Option<(Position, super::lanes::Row)> {
        let position = self.tries.remove(&ticket)?;
        let row = self.lanes.row_mut(position)?;
        row.trying = None;
        Some((position, *row))
    }

    fn mark(&mut self, position: Position, became: Became, lane: Option<Lane>) {
        self.marks.push_back((Mark { position, became }, lane));
    }
}
