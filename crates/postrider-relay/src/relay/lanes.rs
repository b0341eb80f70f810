//! Parked events in memory: which lanes are blocked, which event is at the head of each, and when it is attempted next.
//!
//! The parked table makes this state durable; it is read once, when a stream starts.
//! [`Parking`](super::parking::Parking) turns the decisions into rows, row statuses and attempts.
//!
//! Only the head of a lane is attempted, and only after the cursor row has passed it. A lane is unblocked when it has
//! no row left and every status of its rows is committed.

use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Lane, Request, State};
use postrider_core::record::Ticket;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Maximum number of rows that are searched for heads for `status`, because any number may be parked behind one head.
const HEADS_SCAN_ROWS: usize = 1_000;

/// One parked event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) lane: Option<Lane>,
    pub(super) state: State,
    pub(super) attempts: u32,
    /// When it may be attempted, by the relay's clock.
    due: Duration,
    /// The ticket of the attempt or probe in flight.
    pub(super) attempt: Option<Ticket>,
    /// Number of its writes that are not committed. While there are any, the table does not have the row's state.
    uncommitted: u32,
    /// Requested while an attempt is in flight.
    pub(super) request: Option<Request>,
    /// A broker refused a batch that contained the event: it is attempted with nothing else in flight.
    pub(super) exclusive: bool,
    /// The destination of an exclusive attempt is known, so that other events need not wait for it.
    pub(super) probed: bool,
}

impl Row {
    /// Whether it has no attempt in flight and no uncommitted write.
    pub(super) fn is_settled(&self) -> bool {
        self.attempt.is_none() && self.uncommitted == 0
    }
}

/// A blocked lane.
#[derive(Debug, Default)]
struct Queue {
    rows: VecDeque<Position>,
    /// Number of resolved rows whose status is not committed.
    uncommitted: u32,
    /// One of those statuses can't be written yet: no event of the lane is attempted until a status of it is committed.
    deferred: bool,
}

/// A parked event that is at the head of its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParkedHead {
    /// Its position.
    pub position: Position,
    /// Its state.
    pub state: State,
    /// Number of refused attempts.
    pub attempts: u32,
    /// The time of the next attempt, by the relay's clock; without meaning in state `dead`.
    pub due: Duration,
    /// Number of later events of its lane that are parked behind it.
    pub behind: u64,
}

/// Number of parked events, by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Refused, and attempted again later.
    pub waiting: u64,
    /// Behind an earlier event of their aggregate.
    pub behind: u64,
    /// Their `available_at` has not come.
    pub due: u64,
    /// Refused as often as allowed: only an operator can retry or skip them.
    pub dead: u64,
}

impl Counts {
    /// The sum of all states.
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

/// The parked events, and the schedule of their attempts: the head of each lane, if the table has its state.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    rows: BTreeMap<Position, Row>,
    queues: HashMap<Lane, Queue, LaneHashBuilder>,
    /// Resolved rows whose events the stream may repeat.
    resolved: BTreeSet<Position>,
    /// Scheduled heads, by time.
    scheduled: BTreeSet<(Duration, Position)>,
    /// Heads that are due, in order of the stream.
    due: BTreeSet<Position>,
    counts: Counts,
    /// The highest position in `rows` and `resolved`, so that a new event costs one comparison, however many are
    /// parked.
    last: Position,
}

impl Lanes {
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of blocked lanes.
    pub(super) fn blocked(&self) -> usize {
        self.queues.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.queues.is_empty() && self.resolved.is_empty()
    }

    #[inline]
    pub(super) fn is_blocked(&self, lane: Lane) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&lane)
    }

    /// Whether an event of the stream is parked, or was parked and is resolved. Either is recorded in the table.
    #[inline]
    pub(super) fn contains(&self, position: Position) -> bool {
        position <= self.last
            && (self.rows.contains_key(&position) || self.resolved.contains(&position))
    }

    /// Whether an event is parked at this position or above it.
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

    /// Heads among the first rows in order of the stream, those with the most events behind them first.
    pub(super) fn heads(&self, most: usize) -> Vec<ParkedHead> {
        let head = |(position, row): (&Position, &Row)| {
            self.is_head(*position, row).then(|| ParkedHead {
                position: *position,
                state: row.state,
                attempts: row.attempts,
                due: row.due,
                behind: self.behind(row.lane),
            })
        };
        let mut heads: Vec<_> = self.rows.iter().take(HEADS_SCAN_ROWS).filter_map(head).collect();
        // The sort is stable: equal ones stay in order of the stream.
        heads.sort_by_key(|head| std::cmp::Reverse(head.behind));
        heads.truncate(most);
        heads
    }

    /// Number of rows of a lane behind its head.
    fn behind(&self, lane: Option<Lane>) -> u64 {
        let queue = lane.and_then(|lane| self.queues.get(&lane));
        queue.map_or(0, |queue| queue.rows.len().saturating_sub(1) as u64)
    }

    /// Dead rows, whose lanes wait for an operator.
    pub(super) fn dead(&self, most: usize) -> Vec<Position> {
        let dead = self.rows.iter().filter(|(_, row)| row.state == State::Dead && row.is_settled());
        dead.map(|(position, _)| *position).take(most).collect()
    }

    /// Adds a row. `written`: it was read from the table.
    pub(super) fn insert(&mut self, now: Duration, entry: &Entry, written: bool) {
        let Entry { position, lane, state, attempts, wait, overtaken_by: _, xid: _ } = *entry;
        self.last = self.last.max(position);
        if state.resolved() {
            if !injected(Bug::ForgetsTombstones) {
                self.resolved.insert(position);
            }
            return;
        }
        if let Some(row) = self.rows.get_mut(&position) {
            // Its write was in progress when the connection was lost, and was committed.
            row.uncommitted -= u32::from(written && row.uncommitted > 0);
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
        let row = Row {
            lane,
            state,
            attempts,
            due: now.saturating_add(wait),
            attempt: None,
            uncommitted: u32::from(!written),
            request: None,
            exclusive: false,
            probed: false,
        };
        self.rows.insert(position, row);
        self.count(state, true);
        self.schedule(position);
    }

    /// A write of the row starts.
    pub(super) fn write_started(&mut self, position: Position) {
        self.unschedule(position);
        if let Some(row) = self.rows.get_mut(&position) {
            row.uncommitted += 1;
        }
    }

    /// A write of the row is committed.
    pub(super) fn write_committed(&mut self, position: Position) {
        if let Some(row) = self.rows.get_mut(&position) {
            row.uncommitted = row.uncommitted.saturating_sub(1);
            self.schedule(position);
        }
    }

    /// The row changes its state, and is attempted at `due`.
    pub(super) fn set_state(
        &mut self,
        position: Position,
        state: State,
        attempts: u32,
        due: Duration,
    ) {
        self.unschedule(position);
        let Some(row) = self.rows.get_mut(&position) else { return };
        let before = std::mem::replace(&mut row.state, state);
        (row.attempts, row.due, row.attempt) = (attempts, due, None);
        self.count(before, false);
        self.count(state, true);
        self.schedule(position);
    }

    /// Removes a row from its lane: it is published, skipped, or deleted. `uncommitted`: a status of the row is still
    /// to be committed. `repeatable`: the stream may repeat the event.
    pub(super) fn remove(&mut self, position: Position, uncommitted: bool, repeatable: bool) {
        self.unschedule(position);
        let Some(row) = self.rows.remove(&position) else { return };
        self.count(row.state, false);
        if repeatable {
            self.resolved.insert(position);
        }
        let Some(lane) = row.lane else { return };
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        // A lane may contain every row: removing its head must not take time in proportion to their number.
        if queue.rows.front() == Some(&position) {
            queue.rows.pop_front();
        } else if let Ok(at) = queue.rows.binary_search(&position) {
            queue.rows.remove(at);
        }
        queue.uncommitted += u32::from(uncommitted && !injected(Bug::UnblocksBeforeStatuses));
        let next = queue.rows.front().copied();
        self.unblock_if_empty(lane);
        if let Some(next) = next {
            self.schedule(next);
        }
    }

    /// The status of a resolved row is still to be written, though the rows that were read do not contain it as
    /// unresolved.
    pub(super) fn expect_status(&mut self, lane: Lane) {
        self.queues.entry(lane).or_default().uncommitted += 1;
    }

    /// The status of a resolved row is committed.
    pub(super) fn status_written(&mut self, lane: Option<Lane>) {
        let Some(lane) = lane else { return };
        let mut next = None;
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.uncommitted = queue.uncommitted.saturating_sub(1);
            next = queue.rows.front().copied().filter(|_| std::mem::take(&mut queue.deferred));
        }
        self.unblock_if_empty(lane);
        if let Some(next) = next {
            self.schedule(next);
        }
    }

    /// The status of a resolved row can't be written yet: no event of its lane is attempted until a status is written.
    pub(super) fn defer(&mut self, lane: Lane) {
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        queue.deferred = true;
        if let Some(next) = queue.rows.front().copied() {
            self.unschedule(next);
        }
    }

    /// A broker refused a batch that contained this event.
    pub(super) fn set_exclusive(&mut self, position: Position) {
        if let Some(row) = self.rows.get_mut(&position) {
            row.exclusive = true;
        }
    }

    /// An attempt of this row is in flight since before the connection was lost. Returns whether the row exists.
    pub(super) fn resume_attempt(&mut self, position: Position, ticket: Ticket) -> bool {
        self.unschedule(position);
        let row = self.rows.get_mut(&position);
        row.map(|row| row.attempt = Some(ticket)).is_some()
    }

    /// No attempt is in flight any more.
    pub(super) fn clear_attempts(&mut self) {
        let attempted: Vec<Position> =
            self.rows.iter().filter(|(_, row)| row.attempt.is_some()).map(|(at, _)| *at).collect();
        for position in attempted {
            if let Some(row) = self.rows.get_mut(&position) {
                row.attempt = None;
            }
            self.schedule(position);
        }
    }

    /// Forgets the resolved rows below `resolved`: the stream never repeats them.
    pub(super) fn forget_below(&mut self, resolved: Position) {
        if self.resolved.first().is_some_and(|first| *first < resolved) {
            self.resolved = self.resolved.split_off(&resolved);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn unblock_if_empty(&mut self, lane: Lane) {
        if self
            .queues
            .get(&lane)
            .is_some_and(|queue| queue.rows.is_empty() && queue.uncommitted == 0)
        {
            self.queues.remove(&lane);
        }
    }

    fn count(&mut self, state: State, more: bool) {
        if let Some(count) = self.counts.of(state) {
            if more { *count += 1 } else { *count -= 1 }
        }
    }

    /// Whether no head is due, and no resolved row has to be forgotten.
    #[inline]
    pub(super) fn is_idle(&self, now: Duration) -> bool {
        self.due.is_empty()
            && self.resolved.is_empty()
            && self.scheduled.first().is_none_or(|(due, _)| *due > now)
    }

    /// Moves the heads whose time has come from `scheduled` to `due`.
    pub(super) fn promote_due(&mut self, now: Duration) {
        while let Some(&(due, position)) = self.scheduled.first().filter(|(due, _)| *due <= now) {
            self.scheduled.remove(&(due, position));
            self.due.insert(position);
        }
    }

    /// Takes the next row to attempt or to probe: it is due, at the head of its lane, and below the cursor row
    /// (`durable`). `exclusive_allowed`: nothing is in flight. `None` if there is no such row, or if the next one must
    /// have nothing else in flight.
    pub(super) fn next_due(
        &mut self,
        durable: Position,
        exclusive_allowed: bool,
    ) -> Option<Position> {
        let position = self.due.first().copied().filter(|position| *position < durable)?;
        let exclusive = self.rows.get(&position).is_some_and(|row| row.exclusive && row.probed);
        if exclusive && !exclusive_allowed {
            return None;
        }
        self.due.remove(&position);
        Some(position)
    }

    /// Whether the next attempt must have nothing else in flight.
    pub(super) fn needs_exclusive(&self, durable: Position) -> bool {
        let first = self.due.first().filter(|position| **position < durable);
        first
            .and_then(|position| self.rows.get(position))
            .is_some_and(|row| row.exclusive && row.probed)
    }

    /// Whether a head is due at or above `durable` and below `resolved`.
    pub(super) fn is_due_between(&self, durable: Position, resolved: Position) -> bool {
        durable < resolved && self.due.range(durable..resolved).next().is_some()
    }

    /// When the next row is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.scheduled.first().map(|(due, _)| *due)
    }

    fn is_head(&self, position: Position, row: &Row) -> bool {
        let any = injected(Bug::AttemptsOutOfOrder);
        any || row.lane.is_none_or(|lane| {
            self.queues.get(&lane).is_none_or(|queue| queue.rows.front() == Some(&position))
        })
    }

    /// Schedules a row if it is at the head of its lane, and may be attempted.
    fn schedule(&mut self, position: Position) {
        let Some(row) = self.rows.get(&position) else { return };
        let written = row.uncommitted == 0 || injected(Bug::AttemptsUncommitted);
        let free = row.attempt.is_none() && written && row.state != State::Dead;
        let deferred =
            row.lane.and_then(|lane| self.queues.get(&lane)).is_some_and(|queue| queue.deferred);
        if free && !deferred && self.is_head(position, row) {
            self.scheduled.insert((row.due, position));
        }
    }

    fn unschedule(&mut self, position: Position) {
        self.due.remove(&position);
        if let Some(row) = self.rows.get(&position) {
            self.scheduled.remove(&(row.due, position));
        }
    }
}

/// Multiplier of [`LaneHasher`]: odd, with evenly spread bits (the fraction of the golden ratio).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes lanes with a random seed of the process, so that aggregates can't be chosen to make hashes collide.
///
/// A [`Lane`] is a hash already, so one multiplication is enough.
#[derive(Clone, Debug)]
pub(super) struct LaneHashBuilder(u64);

impl Default for LaneHashBuilder {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for LaneHashBuilder {
    type Hasher = LaneHasher;

    #[inline]
    fn build_hasher(&self) -> LaneHasher {
        LaneHasher(self.0)
    }
}

/// The hasher of [`LaneHashBuilder`].
pub(super) struct LaneHasher(u64);

impl Hasher for LaneHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(SPREAD);
        // The hash table uses the lowest bits, which do not depend on the highest.
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
