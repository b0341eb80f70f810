//! The published status of outbox rows: rows that were published from the stream get their status in their table.
//!
//! Statuses are committed before the cursor row that passes their events. So a row without a status is one that the
//! stream will still send, or will send again, and polling may take over at any moment.
//!
//! A row that another session has locked gets its status when it is free. Until then no cursor row passes its event,
//! and the statuses of later events of its aggregate wait; everything else continues (`docs/decisions/marks.md`).

use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use postrider_core::event::{Aggregate, Position};
use postrider_core::outbox_rows::{AheadOfCursor, PublishedRow, WritingTransaction};
use postrider_core::parked::Lane;
use postrider_core::record::Ticket;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How long the cursor row waits for statuses on which only dashboards and clean-ups depend (`mode = "wal"`). After
/// that the cursor row is written, and the statuses are written later by this process, or not at all.
const WAIT_BESIDE: Duration = Duration::from_mins(1);

/// Events remembered there for a later status, of about 100 bytes each. Beyond that the oldest are discarded, and
/// counted.
const BESIDE_MAX: usize = 100_000;

/// Pause between two queries for the sessions that have locked rows.
const HOLDERS_INTERVAL: Duration = Duration::from_secs(5);

/// How long statuses may wait before that is logged, if no session holds a lock on the rows.
const UNREPORTED_MAX: Duration = Duration::from_secs(2);

/// Pause between two attempts to write waiting statuses while the table is polled.
const POLLED_INTERVAL: Duration = Duration::from_secs(1);

/// Whether published rows get their status, and what depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RowStatusRule {
    /// Published rows get no status.
    #[default]
    Off,
    /// Only dashboards and clean-ups depend on the status.
    Beside,
    /// Polling may take over at any moment: no cursor row passes an event whose row has no status.
    Required,
}

/// Published rows that have to get their status.
#[derive(Debug, Default)]
pub struct RowStatusQueue {
    /// Whether rows get their status.
    rule: RowStatusRule,
    /// The table is polled: rows of a claim get their status with the claim.
    polled: bool,
    /// A session has prepared the statements.
    prepared: bool,
    /// In flight.
    in_flight: HashMap<Ticket, PublishedRow>,
    /// Published, and without a status yet.
    done: Vec<PublishedRow>,
    /// Parked, and not yet passed by the cursor row: if the slot is lost before that, the table shows what comes before
    /// these events.
    set_aside: Vec<AheadOfCursor>,
    /// Taken for a cursor row that is being written.
    taken: Arc<Vec<PublishedRow>>,
    /// The statuses that the last attempt left out.
    waiting: WaitingStatuses,
    /// When the last attempt was made.
    attempted_at: Option<Duration>,
}

/// The statuses that the last attempt left out.
#[derive(Debug, Default)]
struct WaitingStatuses {
    /// Aggregates of which a row was locked.
    lanes: HashSet<Lane>,
    /// Ids of the rows, with the transactions of their events.
    unmarked: HashMap<String, Option<u32>>,
    /// Aggregates of which polling publishes an event again: from there on their statuses are written by claims.
    repeated: HashSet<Lane>,
    /// Since when statuses wait.
    since: Option<Duration>,
    /// When the sessions that hold locks were last queried.
    holders_at: Option<Duration>,
}

/// Statuses to be written before a cursor row.
#[derive(Debug)]
pub struct RowStatusBatch {
    /// The rows, in order of their positions.
    pub rows: Arc<Vec<PublishedRow>>,
    /// Aggregates of which a row was locked at the last attempt.
    pub waiting: HashSet<Lane>,
    /// The cursor row waits for statuses that can't be written yet.
    waits: bool,
    /// Polling depends on the statuses: an error that would be permanent halts the pipeline.
    pub required: bool,
    /// The sessions that hold locks are queried.
    pub finds_holders: bool,
}

/// The result of an attempt to write a batch.
#[derive(Clone, Debug, Default)]
pub struct RowStatusMade {
    /// Indexes of the rows that wait.
    pub left: Vec<usize>,
    /// Sessions were found that hold locks on them.
    pub locked: bool,
    /// The whole attempt failed.
    pub failed: bool,
    /// The table refuses statuses, and nothing depends on them: nothing waits for that to change.
    pub refused: bool,
}

/// Rows that wait for their status, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusesWaiting {
    /// How many rows wait.
    pub rows: usize,
    /// How many rows are given up, because too many wait.
    pub given_up: usize,
}

impl RowStatusBatch {
    /// Whether the cursor row at `row` has to wait because it would pass an event whose row has no status.
    pub fn holds_back(&self, made: &RowStatusMade, row: Position) -> bool {
        let is_below =
            |place: &usize| self.rows.get(*place).is_some_and(|left| left.position < row);
        let passes = || made.left.iter().any(is_below);
        self.waits && !made.refused && passes() && !injected(Bug::CursorPassesUnmarked)
    }
}

impl RowStatusQueue {
    /// A queue without rows.
    pub fn new(rule: RowStatusRule) -> Self {
        Self { rule, ..Self::default() }
    }

    /// Whether published rows get their status.
    pub fn is_on(&self) -> bool {
        self.rule != RowStatusRule::Off
    }

    /// An event of the stream that comes from a row is in flight.
    #[inline]
    pub fn sent(
        &mut self,
        ticket: Ticket,
        (position, aggregate): (Position, Aggregate<'_>),
        written: WritingTransaction,
        id: &str,
    ) {
        if self.is_on() && !self.polled {
            let lane = Some(Lane::of(aggregate));
            let row = PublishedRow { position, lane, id: id.to_owned(), written, visible: false };
            self.in_flight.insert(ticket, row);
        }
    }

    /// The event is published.
    #[inline]
    pub fn published(&mut self, ticket: Ticket) {
        if self.is_on()
            && let Some(row) = self.in_flight.remove(&ticket)
        {
            self.done.push(row);
        }
    }

    /// The event was refused, and is parked.
    pub fn not_published(&mut self, ticket: Ticket) {
        self.in_flight.remove(&ticket);
    }

    /// Whether the event with this id, whose row transaction `xmin` has written, is published while its row still waits
    /// for its status: polling skips it. A row that another transaction has written may be another event, and is
    /// published. Then the later rows of its aggregate are published again too: it may be the same event, and would
    /// otherwise be the last one of its aggregate.
    #[inline]
    pub fn waits_for(&mut self, id: &str, xmin: u32, aggregate: Aggregate<'_>) -> bool {
        self.polled && !self.waiting.unmarked.is_empty() && self.skips(id, xmin, aggregate)
    }

    fn skips(&mut self, id: &str, xmin: u32, aggregate: Aggregate<'_>) -> bool {
        let Some(xid) = self.waiting.unmarked.get(id) else { return false };
        let lane = Lane::of(aggregate);
        if *xid == Some(xmin) && !self.waiting.repeated.contains(&lane) {
            return true;
        }
        self.waiting.repeated.insert(lane);
        false
    }

    /// Leaves the statuses of events that are published again to the claims: if the row of such an event got its status
    /// now, the event would not be published after the repeated one.
    fn leave_repeated(&mut self) {
        if self.waiting.repeated.is_empty() {
            return;
        }
        self.put_back();
        let repeated = std::mem::take(&mut self.waiting.repeated);
        self.done.retain(|row| row.lane.is_none_or(|lane| !repeated.contains(&lane)));
        self.note_unmarked();
        if self.done.is_empty() {
            self.waiting = WaitingStatuses::default();
        }
    }

    /// Discards the statuses of parked events that were taken for a cursor row that is not known to be written. Where
    /// polling depends on statuses, they are written before the cursor row that passes their events, so no cursor row
    /// has passed these events, or their rows have their status already. The others are read from the table again: a
    /// row of such an event with a status would keep the event at its position, whatever comes before it.
    fn leave_parked(&mut self) {
        for row in self.done.extract_if(.., |row| was_parked(row)) {
            self.waiting.unmarked.remove(&row.id);
        }
    }

    fn note_unmarked(&mut self) {
        let unmarked = self.done.iter().map(|row| (row.id.clone(), row.written.xid));
        self.waiting.unmarked = unmarked.collect();
    }

    /// Number of published rows that stay without their status if the process ends now: those for which no cursor row
    /// waits. In mode "auto" the stream repeats their events.
    pub fn owed(&self) -> usize {
        match self.rule {
            RowStatusRule::Required => 0,
            RowStatusRule::Off | RowStatusRule::Beside => self.done.len() + self.taken.len(),
        }
    }

    /// Polling begins or ends.
    pub fn polls(&mut self, polled: bool) {
        self.leave_repeated();
        self.polled = polled;
    }

    /// Whether another attempt to write waiting statuses is due, while the table is polled.
    pub fn is_due(&self, now: Duration) -> bool {
        let rested = |at: Duration| now.saturating_sub(at) >= POLLED_INTERVAL;
        let due = self.attempted_at.is_none_or(rested);
        due && (!self.done.is_empty() || !self.taken.is_empty())
    }

    /// The event is in the parked table: its outbox row can get its status once the cursor row has passed the event.
    pub fn parked(&mut self, row: Option<AheadOfCursor>) {
        if self.is_on() {
            self.set_aside.extend(row);
        }
    }

    /// A stream begins. `found`: events that were parked before, and whose rows get their status when the cursor row
    /// passes them.
    pub fn stream_begins(&mut self, found: Vec<AheadOfCursor>) {
        if self.is_on() {
            // An earlier session may have taken some of them for a cursor row that was not written.
            self.put_back();
            let ahead: HashSet<Position> = found.iter().map(|parked| parked.position).collect();
            self.done.retain(|row| !was_parked(row) || !ahead.contains(&row.position));
            self.set_aside = found;
        }
    }

    /// Nothing is in flight any more.
    pub fn given_up(&mut self) {
        self.in_flight.clear();
    }

    /// Published rows got their status by other means.
    pub fn forget(&mut self) {
        self.in_flight.clear();
        self.done.clear();
        self.set_aside.clear();
        self.taken = Arc::default();
        self.waiting = WaitingStatuses::default();
    }

    /// A session prepares the statements; what an earlier session was writing is to be written again. `possible`: there
    /// is a table whose rows get their status.
    pub fn prepared(&mut self, possible: bool) {
        self.put_back();
        self.prepared |= possible && self.is_on();
    }

    /// Takes the rows that get their status before the next cursor row, which is `row`; `None` if the slot is lost:
    /// events that no cursor row has passed are read from the table again.
    pub fn take(&mut self, now: Duration, row: Option<&Progress>) -> Option<RowStatusBatch> {
        self.put_back();
        let passed = row.map_or_else(Position::default, Progress::position);
        for parked in std::mem::take(&mut self.set_aside) {
            if parked.position < passed {
                let AheadOfCursor { position, lane, id, commit_time, timestamp_ms } = parked;
                // The time of the record may be the commit time, in place of a time that no broker accepts.
                let time_ms = timestamp_ms.filter(|ms| *ms != commit_time.unix_millis());
                let written =
                    WritingTransaction { xid: None, committed: Some(commit_time), time_ms };
                self.done.push(PublishedRow { position, lane, id, written, visible: true });
            } else if row.is_some() {
                self.set_aside.push(parked);
            }
        }
        if row.is_none() {
            self.leave_parked();
        }
        self.leave_repeated();
        if !self.prepared || self.done.is_empty() {
            return None;
        }
        self.done.sort_by_key(|row| row.position);
        self.taken = Arc::new(std::mem::take(&mut self.done));
        self.attempted_at = Some(now);
        let since = |at: Duration| now.saturating_sub(at);
        let finds_holders = self.waiting.holders_at.is_none_or(|at| since(at) >= HOLDERS_INTERVAL);
        let waits_beside = self.waiting.since.is_none_or(|at| since(at) < WAIT_BESIDE);
        let required = self.rule == RowStatusRule::Required;
        Some(RowStatusBatch {
            rows: Arc::clone(&self.taken),
            waiting: self.waiting.lanes.clone(),
            waits: required || waits_beside,
            required,
            finds_holders,
        })
    }

    /// Handles the result of the last batch. Returns what waits, if that is to be logged.
    pub fn made(&mut self, now: Duration, made: &RowStatusMade) -> Option<StatusesWaiting> {
        let taken = std::mem::take(&mut self.taken);
        let left: Vec<&PublishedRow> =
            made.left.iter().filter_map(|place| taken.get(*place)).collect();
        // Only of these rows: those published meanwhile were not tried yet.
        self.waiting.lanes = left.iter().filter_map(|row| row.lane).collect();
        self.done.extend(left.into_iter().cloned());
        let given_up = match self.rule {
            RowStatusRule::Required => 0,
            RowStatusRule::Off | RowStatusRule::Beside => {
                self.done.len().saturating_sub(BESIDE_MAX)
            }
        };
        self.done.drain(..given_up);
        if made.left.is_empty() {
            self.waiting = WaitingStatuses::default();
            return None;
        }
        let since = *self.waiting.since.get_or_insert(now);
        if made.locked {
            self.waiting.holders_at = Some(now);
        }
        self.note_unmarked();
        // A row that is not visible yet gets its status a moment later: that is not logged.
        let soon = !made.locked && !made.failed;
        if soon && given_up == 0 && now.saturating_sub(since) < UNREPORTED_MAX {
            return None;
        }
        Some(StatusesWaiting { rows: made.left.len(), given_up })
    }

    fn put_back(&mut self) {
        self.done.extend(self.taken.iter().cloned());
        self.taken = Arc::default();
    }
}

/// Whether the row is that of a parked event: only of these rows it is known that they are visible, because the row of
/// the parked table was committed after them.
fn was_parked(row: &PublishedRow) -> bool {
    row.visible
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::offset::{Offset, Watermark};
    use postrider_core::timestamp::Timestamp;

    const NOW: Duration = Duration::ZERO;

    fn done(row_status: &RowStatusQueue) -> Vec<&str> {
        row_status.done.iter().map(|row| &*row.id).collect()
    }

    /// The row of an earlier event may be unpublished in the table: if the slot is lost now, the row of the parked
    /// event shows its place after that row.
    #[test]
    fn row_of_a_parked_event_is_marked_only_after_the_cursor_row_passes_it() {
        let at = |lsn| Position { commit: Offset::new(lsn), ordinal: 3 };
        let row = |lsn, ordinal| Progress {
            watermark: Watermark::resumed(Offset::new(lsn)),
            partial: Some(Position { commit: Offset::new(lsn), ordinal }),
        };
        let mut row_status = RowStatusQueue::new(RowStatusRule::Required);
        for (lsn, id) in [(10, "a"), (20, "b"), (30, "c")] {
            let parked = AheadOfCursor {
                lane: Some(Lane::of(Aggregate { kind: "order", id })),
                ..ahead(at(lsn), id)
            };
            row_status.parked(Some(parked));
        }
        assert!(row_status.take(NOW, Some(&row(10, 3))).is_none(), "no session has prepared");
        assert_eq!(done(&row_status), [""; 0], "the cursor row is directly before the first");
        drop(row_status.take(NOW, Some(&row(10, 4))));
        assert_eq!(done(&row_status), ["a"]);
        drop(row_status.take(NOW, Some(&row(20, 3))));
        assert_eq!(done(&row_status), ["a"]);
        // The slot is lost before the cursor row is known to be written: events that no cursor row has passed are read
        // from the table again.
        drop(row_status.take(NOW, None));
        assert_eq!(done(&row_status), [""; 0]);
        drop(row_status.take(NOW, Some(&row(40, 0))));
        assert_eq!(done(&row_status), [""; 0]);
    }

    fn ahead(position: Position, id: &str) -> AheadOfCursor {
        let (id, commit_time) = (id.to_owned(), Timestamp::default());
        AheadOfCursor { position, lane: None, id, commit_time, timestamp_ms: None }
    }

    fn cursor_row(lsn: u64) -> Progress {
        Progress { watermark: Watermark::resumed(Offset::new(lsn)), partial: None }
    }

    /// The session ends before the cursor row is written, and the next stream begins before the event.
    #[test]
    fn row_of_a_parked_event_that_was_taken_for_an_unwritten_cursor_row_waits_for_the_next_one() {
        let at = |lsn| Position { commit: Offset::new(lsn), ordinal: 0 };
        let mut row_status = RowStatusQueue::new(RowStatusRule::Required);
        row_status.prepared(true);
        row_status.parked(Some(ahead(at(20), "a")));
        assert!(row_status.take(NOW, Some(&cursor_row(30))).is_some());
        row_status.prepared(true);
        row_status.stream_begins(vec![ahead(at(20), "a")]);
        assert!(row_status.take(NOW, Some(&cursor_row(20))).is_none());
        assert_eq!(row_status.take(NOW, Some(&cursor_row(30))).unwrap().rows.len(), 1);
    }

    /// Otherwise polling would repeat the earlier event after the parked one.
    #[test]
    fn row_of_a_parked_event_waits_behind_earlier_rows_of_its_aggregate() {
        let mut row_status = RowStatusQueue::new(RowStatusRule::Required);
        row_status.prepared(true);
        sent(&mut row_status, 1, "1", "a");
        let lane = Some(Lane::of(Aggregate { kind: "order", id: "a" }));
        let position = Position { commit: Offset::new(20), ordinal: 0 };
        row_status.parked(Some(AheadOfCursor { lane, ..ahead(position, "2") }));
        let batch = row_status.take(NOW, Some(&cursor_row(30))).unwrap();
        let lanes: Vec<_> = batch.rows.iter().map(|row| (&*row.id, row.lane)).collect();
        assert_eq!(lanes, [("1", lane), ("2", lane)]);
    }

    /// The transaction that wrote the rows.
    const XMIN: u32 = 4_000_000_000;

    fn sent(row_status: &mut RowStatusQueue, number: u64, id: &str, of: &str) {
        let position = Position { commit: Offset::new(8), ordinal: number };
        let written = WritingTransaction { xid: Some(XMIN), committed: None, time_ms: None };
        let event = (position, Aggregate { kind: "order", id: of });
        row_status.sent(Ticket(number), event, written, id);
        row_status.published(Ticket(number));
    }

    /// A published row waits for its status because it is locked, and is written again by the session that has locked
    /// it: it may be another event or the same one. So the later events of its aggregate are published again after it.
    #[test]
    fn only_the_aggregate_of_a_row_that_was_written_again_is_published_again() {
        let mut row_status = RowStatusQueue::new(RowStatusRule::Required);
        let events = [(1, "1", "a"), (2, "2", "a"), (3, "3", "b"), (4, "4", "a")];
        for (number, id, of) in events {
            sent(&mut row_status, number, id, of);
        }
        row_status.prepared(true);
        assert!(row_status.take(NOW, None).is_some());
        let left = (0..events.len()).collect();
        row_status.made(NOW, &RowStatusMade { left, ..RowStatusMade::default() });
        row_status.polls(true);
        let mut skipped = |xmin, id: &str, of| {
            row_status.waits_for(id, xmin, Aggregate { kind: "order", id: of })
        };
        assert!(skipped(XMIN, "1", "a"), "no row of it was written again");
        assert!(!skipped(XMIN + 1, "2", "a") && !skipped(XMIN, "4", "a"));
        assert!(skipped(XMIN, "3", "b"));
        assert!(!skipped(XMIN, "5", "b"), "not published yet");
        // The statuses of the first aggregate are left to the claims: its rows are published again.
        let batch = row_status.take(NOW, None).unwrap();
        let taken: Vec<&str> = batch.rows.iter().map(|row| &*row.id).collect();
        assert_eq!(taken, ["3"]);
        let of = |id| Aggregate { kind: "order", id };
        assert!(
            !row_status.waits_for("4", XMIN, of("a")) && row_status.waits_for("3", XMIN, of("b"))
        );
    }

    #[test]
    fn cursor_row_waits_for_statuses_as_long_as_something_depends_on_them() {
        let minute = Duration::from_mins(1);
        for (rule, waits_after_a_minute) in
            [(RowStatusRule::Required, true), (RowStatusRule::Beside, false)]
        {
            let mut row_status = RowStatusQueue::new(rule);
            sent(&mut row_status, 1, "1", "a");
            row_status.prepared(true);
            let left = RowStatusMade { left: vec![0], ..RowStatusMade::default() };
            let at = |ordinal| Position { commit: Offset::new(8), ordinal };
            let (before, after) = (at(1), at(2));
            for (now, waits) in [(NOW, true), (minute, waits_after_a_minute)] {
                let batch = row_status.take(now, None).unwrap();
                assert_eq!(batch.holds_back(&left, after), waits, "{rule:?} at {now:?}");
                assert!(!batch.holds_back(&left, before), "the row is at the event");
                row_status.made(now, &left);
            }
        }
    }
}
