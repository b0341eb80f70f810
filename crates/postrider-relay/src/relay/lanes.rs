//! Parked events in memory: which lanes are blocked, who is at their head, and when it is tried next.
//!
//! One owner decides here; the table is its durability and is read once, when a stream starts. Knows no record and no
//! sink: `parking` turns what is decided into rows, marks and tries.
//!
//! Only the head of a lane is ever tried, and only when the cursor row has passed it. A lane is live again when no row
//! of it is left and every mark of it is committed.

use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Lane, Request, State};
use postrider_core::record::Ticket;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Rows looked at to find heads for `status`, however many stand behind one.
const HEADS_SCAN_ROWS: usize = 1_000;

/// One parked event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) lane: Option<Lane>,
    pub(super) state: State,
    pub(super) attempts: u32,
    /// When it may be tried, by the relay's clock.
    due: Duration,
    /// The ticket of the try that is out.
    pub(super) trying: Option<Ticket>,
    /// Writes of it that are not committed: what the table has of it is not what is to be tried.
    unwritten: u32,
    /// Asked for while it is being tried.
    pub(super) request: Option<Request>,
    /// A broker refused a batch it was in: it is tried with nothing else in flight.
    pub(super) alone: bool,
    /// Where it goes alone: its destination is known, so that nobody waits for that.
    pub(super) sounded: bool,
}

impl Row {
    /// Whether nothing is being done with it: the table has it as it is.
    pub(super) fn at_rest(&self) -> bool {
        self.trying.is_none() && self.unwritten == 0
    }
}

/// A blocked lane.
#[derive(Debug, Default)]
struct Queue {
    rows: VecDeque<Position>,
    /// Rows that are resolved, and whose marks are not committed.
    unmarked: u32,
    /// One of those marks can't be written yet: nothing more of the lane is tried until a mark of it is committed.
    held: bool,
}

/// How many events are parked, by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Refused, and tried again.
    pub waiting: u64,
    /// Behind an earlier event of their aggregate.
    pub behind: u64,
    /// Their time has not come.
    pub due: u64,
    /// Only a person moves them.
    pub dead: u64,
}

impl Counts {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.waiting + self.behind + self.due + self.dead
    }

    fn of(&mut self, state: State) -> Option<&mut u64> {
        match state {
            State::Waiting => Some(&mut self.waiting),
            State::Behind => Some(&mut self.behind),
            State::Due => Some(&mut self.due),
            State::Dead => Some(&mut self.dead),
            State::Done | State::Skipped => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    rows: BTreeMap<Position, Row>,
    queues: HashMap<Lane, Queue, ByLane>,
    /// Resolved rows that the stream may bring again.
    settled: BTreeSet<Position>,
    /// Heads whose time has not come.
    later: BTreeSet<(Duration, Position)>,
    /// Heads whose time has come, in order of the stream.
    now: BTreeSet<Position>,
    counts: Counts,
    /// No row, and nothing settled, stands behind it: one comparison for each new event, however many are parked.
    last: Position,
}

impl Lanes {
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Blocked lanes.
    pub(super) fn blocked(&self) -> usize {
        self.queues.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.queues.is_empty() && self.settled.is_empty()
    }

    #[inline]
    pub(super) fn is_blocked(&self, lane: Lane) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&lane)
    }

    /// Whether an event the stream brings is parked, or was, and is committed as such.
    #[inline]
    pub(super) fn knows(&self, position: Position) -> bool {
        position <= self.last
            && (self.rows.contains_key(&position) || self.settled.contains(&position))
    }

    /// Whether a parked event stands here or further on.
    pub(super) fn any_from(&self, position: Position) -> bool {
        position <= self.last
            && self.rows.last_key_value().is_some_and(|(last, _)| *last >= position)
    }

    pub(super) fn row(&self, position: Position) -> Option<&Row> {
        self.rows.get(&position)
    }

    pub(super) fn row_mut(&mut self, position: Position) -> Option<&mut Row> {
        self.rows.get_mut(&position)
    }

    /// Heads among the first rows in order of the stream, with the time of their next try.
    pub(super) fn heads(&self, most: usize) -> Vec<(Position, State, u32, Duration)> {
        let head = |(position, row): (&Position, &Row)| {
            self.is_head(*position, row).then_some((*position, row.state, row.attempts, row.due))
        };
        self.rows.iter().take(HEADS_SCAN_ROWS).filter_map(head).take(most).collect()
    }

    /// Dead rows, whose lanes wait for a person.
    pub(super) fn dead(&self, most: usize) -> Vec<Position> {
        let dead = self.rows.iter().filter(|(_, row)| row.state == State::Dead && row.at_rest());
        dead.map(|(position, _)| *position).take(most).collect()
    }

    /// A row that is new to us. `written` where the table has it already.
    pub(super) fn insert(&mut self, now: Duration, entry: &Entry, written: bool) {
        let Entry { position, lane, state, attempts, wait, overtaken_by: _ } = *entry;
        self.last = self.last.max(position);
        if state.resolved() {
            if !injected(Bug::ForgetsTombstones) {
                self.settled.insert(position);
            }
            return;
        }
        if let Some(row) = self.rows.get_mut(&position) {
            // On its way to the table when the connection was lost, and it arrived.
            row.unwritten -= u32::from(written && row.unwritten > 0);
            return;
        }
        if let Some(lane) = lane {
            let rows = &mut self.queues.entry(lane).or_default().rows;
            let at = rows.partition_point(|&other| other < position);
            rows.insert(at, position);
            if let Some(&second) = rows.get(1).filter(|_| at == 0) {
                self.unschedule(second);
            }
        }
        let (due, unwritten) = (now.saturating_add(wait), u32::from(!written));
        let (trying, request, alone, sounded) = (None, None, false, false);
        let row = Row { lane, state, attempts, due, trying, unwritten, request, alone, sounded };
        self.rows.insert(position, row);
        self.count(state, true);
        self.schedule(position);
    }

    /// A write of the row has begun.
    pub(super) fn writing(&mut self, position: Position) {
        self.unschedule(position);
        if let Some(row) = self.rows.get_mut(&position) {
            row.unwritten += 1;
        }
    }

    /// A write of the row is committed.
    pub(super) fn written(&mut self, position: Position) {
        if let Some(row) = self.rows.get_mut(&position) {
            row.unwritten = row.unwritten.saturating_sub(1);
            self.schedule(position);
        }
    }

    /// The row changes its state, and is tried at `due`.
    pub(super) fn becomes(
        &mut self,
        position: Position,
        state: State,
        attempts: u32,
        due: Duration,
    ) {
        self.unschedule(position);
        let Some(row) = self.rows.get_mut(&position) else { return };
        let before = std::mem::replace(&mut row.state, state);
        (row.attempts, row.due, row.trying) = (attempts, due, None);
        self.count(before, false);
        self.count(state, true);
        self.schedule(position);
    }

    /// The row is out of its lane: published, given up, or gone. `unmarked` where a mark will say so; `known` where
    /// the stream may bring it again.
    pub(super) fn remove(&mut self, position: Position, unmarked: bool, known: bool) {
        self.unschedule(position);
        let Some(row) = self.rows.remove(&position) else { return };
        self.count(row.state, false);
        if known {
            self.settled.insert(position);
        }
        let Some(lane) = row.lane else { return };
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        // A lane may hold all rows there are: taking its head must not cost their number.
        if queue.rows.front() == Some(&position) {
            queue.rows.pop_front();
        } else if let Ok(at) = queue.rows.binary_search(&position) {
            queue.rows.remove(at);
        }
        queue.unmarked += u32::from(unmarked && !injected(Bug::LiveBeforeMarks));
        let next = queue.rows.front().copied();
        self.free(lane);
        if let Some(next) = next {
            self.schedule(next);
        }
    }

    /// A resolved row of a lane waits for its mark, though the table shows it as it was.
    pub(super) fn owe_mark(&mut self, lane: Lane) {
        self.queues.entry(lane).or_default().unmarked += 1;
    }

    /// The mark of a resolved row is committed.
    pub(super) fn marked(&mut self, lane: Option<Lane>) {
        let Some(lane) = lane else { return };
        let mut next = None;
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.unmarked = queue.unmarked.saturating_sub(1);
            next = queue.rows.front().copied().filter(|_| std::mem::take(&mut queue.held));
        }
        self.free(lane);
        if let Some(next) = next {
            self.schedule(next);
        }
    }

    /// The mark of a resolved row can't be written yet: nothing more of its lane is tried until one is.
    pub(super) fn hold(&mut self, lane: Lane) {
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        queue.held = true;
        if let Some(next) = queue.rows.front().copied() {
            self.unschedule(next);
        }
    }

    /// A broker refused a batch this row was in.
    pub(super) fn set_alone(&mut self, position: Position) {
        if let Some(row) = self.rows.get_mut(&position) {
            row.alone = true;
        }
    }

    /// A try of this row is out, from before the connection was lost. Whether there is such a row.
    pub(super) fn try_again(&mut self, position: Position, ticket: Ticket) -> bool {
        self.unschedule(position);
        let row = self.rows.get_mut(&position);
        row.map(|row| row.trying = Some(ticket)).is_some()
    }

    /// No try is out any more.
    pub(super) fn stop_trying(&mut self) {
        let trying: Vec<Position> =
            self.rows.iter().filter(|(_, row)| row.trying.is_some()).map(|(at, _)| *at).collect();
        for position in trying {
            if let Some(row) = self.rows.get_mut(&position) {
                row.trying = None;
            }
            self.schedule(position);
        }
    }

    /// The stream never goes back below `resolved`.
    pub(super) fn forget_below(&mut self, resolved: Position) {
        if self.settled.first().is_some_and(|first| *first < resolved) {
            self.settled = self.settled.split_off(&resolved);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn free(&mut self, lane: Lane) {
        if self.queues.get(&lane).is_some_and(|queue| queue.rows.is_empty() && queue.unmarked == 0)
        {
            self.queues.remove(&lane);
        }
    }

    fn count(&mut self, state: State, more: bool) {
        if let Some(count) = self.counts.of(state) {
            if more { *count += 1 } else { *count -= 1 }
        }
    }
}

// Which head is tried next, and when: those whose time has not come, and those whose time has.
//
// Owns what is scheduled: the head of a lane, where the table has it as it is. Knows no sink, nor what became of a
// try; what is due goes to `parking`, which sends it.

impl Lanes {
    /// Whether neither time nor a report changes anything before something else does: no head is due, and no settled
    /// row waits to be forgotten.
    #[inline]
    pub(super) fn asleep(&self, now: Duration) -> bool {
        self.now.is_empty()
            && self.settled.is_empty()
            && self.later.first().is_none_or(|(due, _)| *due > now)
    }

    /// Time has passed: rows fall due.
    pub(super) fn ripen(&mut self, now: Duration) {
        while let Some(&(due, position)) = self.later.first().filter(|(due, _)| *due <= now) {
            self.later.remove(&(due, position));
            self.now.insert(position);
        }
    }

    /// The next row to try, or to sound: due, at the head of its lane, and below the cursor row, `durable`.
    /// `alone_allowed` where nothing is in flight. `None` where there is none, or the next one has to wait to be alone.
    pub(super) fn next_due(&mut self, durable: Position, alone_allowed: bool) -> Option<Position> {
        let position = self.now.first().copied().filter(|position| *position < durable)?;
        let alone = self.rows.get(&position).is_some_and(|row| row.alone && row.sounded);
        if alone && !alone_allowed {
            return None;
        }
        self.now.remove(&position);
        Some(position)
    }

    /// Whether the next row to try must have nothing else in flight.
    pub(super) fn wants_to_be_alone(&self, durable: Position) -> bool {
        let first = self.now.first().filter(|position| **position < durable);
        first
            .and_then(|position| self.rows.get(position))
            .is_some_and(|row| row.alone && row.sounded)
    }

    /// Whether a head is due that stands at `durable` or behind it, and before `resolved`.
    pub(super) fn is_due_between(&self, durable: Position, resolved: Position) -> bool {
        durable < resolved && self.now.range(durable..resolved).next().is_some()
    }

    /// When the next row falls due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.later.first().map(|(due, _)| *due)
    }

    fn is_head(&self, position: Position, row: &Row) -> bool {
        let any = injected(Bug::TriesOutOfOrder);
        any || row.lane.is_none_or(|lane| {
            self.queues.get(&lane).is_none_or(|queue| queue.rows.front() == Some(&position))
        })
    }

    /// Puts a row where its time finds it, if it is at the head and nothing keeps it.
    fn schedule(&mut self, position: Position) {
        let Some(row) = self.rows.get(&position) else { return };
        let written = row.unwritten == 0 || injected(Bug::TriesUncommitted);
        let free = row.trying.is_none() && written && row.state != State::Dead;
        let held = row.lane.and_then(|lane| self.queues.get(&lane)).is_some_and(|queue| queue.held);
        if free && !held && self.is_head(position, row) {
            self.later.insert((row.due, position));
        }
    }

    fn unschedule(&mut self, position: Position) {
        self.now.remove(&position);
        if let Some(row) = self.rows.get(&position) {
            self.later.remove(&(row.due, position));
        }
    }
}

// How lanes are looked up: a lane is a hash already, so one multiplication by a number of this process is enough.

/// Odd, with its bits well spread: the fraction of the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes lanes with a random seed of the process, so that nobody can choose aggregates whose hashes collide.
#[derive(Clone, Debug)]
pub(super) struct ByLane(u64);

impl Default for ByLane {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for ByLane {
    type Hasher = LaneHasher;

    #[inline]
    fn build_hasher(&self) -> LaneHasher {
        LaneHasher(self.0)
    }
}

/// See [`ByLane`].
pub(super) struct LaneHasher(u64);

impl Hasher for LaneHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(SPREAD);
        // The table takes the lowest bits, which know nothing of the highest.
        self.0 = product ^ (product >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
