//! Rows that the stream brought are marked in their table once they are published, and, after polling, events that it
//! has published are passed over when the stream brings them again.
//!
//! Marks are committed before the cursor row that passes their events: so a row without a mark is one the stream still
//! brings, or brings again, and polling may take over at any moment. Ids are kept whole: a hash would one day pass over
//! an event that was never published.
//!
//! A row that another session has locked gets its mark when it is free. Until then no cursor row passes its event, and
//! the marks of later events of its aggregate wait behind it; everything else goes on (`docs/decisions/marks.md`).

use crate::ack::Progress;
use crate::event::{Aggregate, Position};
use crate::lsn::Lsn;
use crate::outbox::At;
use crate::parked::Lane;
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::locks::Holder;
use crate::postgres::poll::PollSpec;
use crate::postgres::poll::marks::{Marker, ToMark, Written};
use crate::postgres::store::parked::{self, NotPassed};
use crate::postgres::{SourceError, TableName};
use crate::record::Ticket;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// Events remembered as polled, of about 100 bytes each; and aggregates remembered as coming twice.
const PUBLISHED_IDS_MAX: usize = 100_000;

/// Where nothing but dashboards and clean-ups depends on the marks (`mode = "wal"`): how long the cursor row waits for
/// them. After that it goes on, and they are made later by this process, or not at all.
const WAIT_BESIDE: Duration = Duration::from_mins(1);

/// Events remembered there for a later mark, of about 100 bytes each. The oldest go first, and are counted.
const BESIDE_MAX: usize = 100_000;

/// Pause between two looks at who holds locks on rows that wait for their mark.
const HOLDERS_INTERVAL: Duration = Duration::from_secs(5);

/// How long marks may wait before that is reported, where no session holds a lock on the rows.
const UNREPORTED_MAX: Duration = Duration::from_secs(2);

/// Pause between two tries to mark rows that wait, while the table is polled.
const POLLED_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be marked.
#[derive(Debug, Default)]
pub(super) struct RowStatusQueue {
    on: bool,
    /// Polling may take over at any moment: no cursor row passes an event without its mark.
    required: bool,
    /// The table is polled: rows of a claim get their marks with it.
    polled: bool,
    marker: Option<Marker>,
    /// The transaction that the stream is in.
    xid: Option<u32>,
    flying: HashMap<Ticket, ToMark>,
    /// Published, and not marked.
    done: Vec<ToMark>,
    /// Parked, and not yet passed by the cursor row: if the slot is lost before that, the table tells what comes before
    /// them.
    set_aside: Vec<NotPassed>,
    /// Taken for a cursor row that is being written.
    taken: Arc<Vec<ToMark>>,
    /// Aggregates of which a row was locked when it was last to be marked.
    waiting: HashSet<Lane>,
    /// Ids that were to be marked when that was last tried, and are not, with the transactions of their events.
    unmarked: HashMap<String, Option<u32>>,
    /// The transaction that wrote the row of the claim that is fed next.
    claimed_xmin: u32,
    /// Aggregates of which polling publishes an event again: their marks are made by claims from there on.
    repeated: HashSet<Lane>,
    /// Since when there are such.
    waits_since: Option<Instant>,
    tried_at: Option<Instant>,
    holders_at: Option<Instant>,
}

/// Marks that are to be made before a cursor row.
pub(super) struct RowStatusBatch {
    marker: Marker,
    rows: Arc<Vec<ToMark>>,
    waiting: HashSet<Lane>,
    /// The row waits for marks that can't be made yet.
    waits: bool,
    /// Polling depends on the marks.
    required: bool,
    /// Who holds locks is to be found out.
    finds_holders: bool,
}

/// What became of them.
pub(super) struct RowStatusOutcome {
    /// Which of the rows wait, by their places.
    left: Vec<usize>,
    holders: Vec<Holder>,
    /// Why none was made.
    pub(super) failed: Option<SourceError>,
    /// The table refuses them, and nothing depends on them: nothing waits for that to change.
    refused: bool,
}

impl RowStatusBatch {
    /// Makes them.
    ///
    /// # Errors
    /// What ends the connection, or has to stop the pipeline. What concerns the marks alone is in [`RowStatusOutcome::failed`].
    pub(super) async fn make(&self, client: &Client) -> Result<RowStatusOutcome, SourceError> {
        let left = match self.marker.mark(client, &self.rows, &self.waiting).await {
            Ok(left) => left,
            Err(error) => {
                let refused = match error_policy::action(&error, Phase::Control, true) {
                    Action::Later(_) => false,
                    // Whoever only streams does not depend on them.
                    Action::Halt(_) if !self.required => true,
                    Action::Halt(_)
                    | Action::Reconnect(_)
                    | Action::StandBy
                    | Action::Recheck(_) => return Err(error),
                };
                let left = (0..self.rows.len()).collect();
                return Ok(RowStatusOutcome {
                    left,
                    holders: Vec::new(),
                    failed: Some(error),
                    refused,
                });
            }
        };
        let holders = if self.finds_holders && !left.is_empty() {
            let rows: Vec<ToMark> = left.iter().map(|place| self.rows[*place].clone()).collect();
            // For people: a look that fails must not fail the marks.
            self.marker.holders(client, &rows).await.unwrap_or_default()
        } else {
            Vec::new()
        };
        Ok(RowStatusOutcome { left, holders, failed: None, refused: false })
    }

    /// Whether the cursor row that stands at `row` has to wait: it would pass an event whose mark was not made.
    pub(super) fn holds_back(&self, made: &RowStatusOutcome, row: Position) -> bool {
        let passes = || made.left.iter().any(|place| self.rows[*place].position < row);
        self.waits && !made.refused && passes()
    }
}

/// Marks that wait, in words.
pub(super) struct WaitingRows {
    pub(super) table: TableName,
    pub(super) rows: usize,
    pub(super) holders: Vec<Holder>,
}

impl RowStatusQueue {
    /// `required`: polling depends on the marks.
    pub(super) fn new(on: bool, required: bool) -> Self {
        Self { on, required, ..Self::default() }
    }

    /// An event is on its way: `row` says where it stands, of which aggregate, and its own time; `None` for a message,
    /// which has no row.
    pub(super) fn sent(
        &mut self,
        ticket: Ticket,
        row: Option<(At, Aggregate<'_>, Option<i64>)>,
        id: &str,
    ) {
        if self.on
            && !self.polled
            && let Some((at, aggregate, time_ms)) = row
        {
            let written = Written { xid: self.xid, committed: Some(at.commit_time), time_ms };
            let (position, lane) = (at.position, Some(Lane::of(aggregate)));
            let row = ToMark { position, lane, id: id.to_owned(), written, visible: false };
            self.flying.insert(ticket, row);
        }
    }

    /// The stream begins a transaction.
    pub(super) const fn begins(&mut self, xid: u32) {
        self.xid = Some(xid);
    }

    /// It is published.
    pub(super) fn published(&mut self, ticket: Ticket) {
        if self.on
            && let Some(row) = self.flying.remove(&ticket)
        {
            self.done.push(row);
        }
    }

    /// It was refused, and is parked.
    pub(super) fn not_published(&mut self, ticket: Ticket) {
        self.flying.remove(&ticket);
    }

    /// The transaction that the stream is in.
    pub(super) const fn xid(&self) -> Option<u32> {
        self.xid
    }

    /// The row of the claim that is fed next was written by this transaction.
    pub(super) const fn feeds(&mut self, xmin: u32) {
        self.claimed_xmin = xmin;
    }

    /// Whether the event of this id is published, and its row waits for its mark: whoever polls passes over it. A row
    /// that another transaction has written may be another event, and is published. Then the later rows of its
    /// aggregate are published again too: it may be the same event, and would be the last of its aggregate.
    #[inline]
    pub(super) fn waits_for(&mut self, id: &str, aggregate: Aggregate<'_>) -> bool {
        self.polled && !self.unmarked.is_empty() && self.passes_over(id, aggregate)
    }

    fn passes_over(&mut self, id: &str, aggregate: Aggregate<'_>) -> bool {
        let Some(xid) = self.unmarked.get(id) else { return false };
        let lane = Lane::of(aggregate);
        if *xid == Some(self.claimed_xmin) && !self.repeated.contains(&lane) {
            return true;
        }
        self.repeated.insert(lane);
        false
    }

    /// Leaves the marks of what is published again to the claims: an event whose mark was made now would not follow.
    fn leave_repeated(&mut self) {
        if self.repeated.is_empty() {
            return;
        }
        self.put_back();
        let repeated = std::mem::take(&mut self.repeated);
        self.done.retain(|row| row.lane.is_none_or(|lane| !repeated.contains(&lane)));
        self.note_unmarked();
        if self.done.is_empty() {
            self.nothing_waits();
        }
    }

    fn note_unmarked(&mut self) {
        self.unmarked = self.done.iter().map(|row| (row.id.clone(), row.written.xid)).collect();
    }

    /// Published rows that stay without their mark if the process ends now: those that no cursor row waits for. With
    /// mode "auto" the stream brings them again.
    pub(super) fn owed(&self) -> usize {
        if self.required { 0 } else { self.done.len() + self.taken.len() }
    }

    /// The table is polled from here on, or no more.
    pub(super) fn polls(&mut self, polled: bool) {
        self.leave_repeated();
        self.polled = polled;
    }

    /// Whether marks that wait are to be tried again, while the table is polled.
    pub(super) fn is_due(&self) -> bool {
        let due = self.tried_at.is_none_or(|at| at.elapsed() >= POLLED_INTERVAL);
        due && (!self.done.is_empty() || !self.taken.is_empty())
    }

    /// It is kept in the parked table: its row in the outbox is done with once the cursor row has passed it.
    pub(super) fn parked(&mut self, row: Option<NotPassed>) {
        if self.on {
            self.set_aside.extend(row);
        }
    }

    /// A stream begins: what was parked before, and is not passed, is marked when it is.
    pub(super) async fn find_parked(
        &mut self,
        client: &Client,
        pipeline: &str,
    ) -> Result<(), SourceError> {
        if self.on {
            self.set_aside = parked::not_passed(client, pipeline).await?;
        }
        Ok(())
    }

    /// Nothing is in flight any more.
    pub(super) fn given_up(&mut self) {
        self.flying.clear();
    }

    /// What is published was marked otherwise.
    pub(super) fn forget(&mut self) {
        self.flying.clear();
        self.done.clear();
        self.set_aside.clear();
        self.taken = Arc::default();
        self.nothing_waits();
    }

    fn nothing_waits(&mut self) {
        self.waiting.clear();
        self.unmarked.clear();
        self.repeated.clear();
        (self.waits_since, self.holders_at) = (None, None);
    }

    /// Prepares the mark on a session.
    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        spec: Option<&PollSpec>,
    ) -> Result<(), SourceError> {
        self.put_back();
        if let Some(spec) = spec.filter(|_| self.on) {
            self.marker = Some(Marker::prepare(client, spec).await?);
        }
        Ok(())
    }

    /// What is to be marked before the next cursor row, and with what. `row` is that row; `None` where the slot is
    /// lost: what it has not passed comes again from the table.
    pub(super) fn take(&mut self, row: Option<&Progress>) -> Option<RowStatusBatch> {
        self.put_back();
        let passed = row.map_or_else(Position::default, Progress::position);
        for parked in std::mem::take(&mut self.set_aside) {
            if parked.position < passed {
                let NotPassed { position, id, commit_time, timestamp_ms } = parked;
                // The time of the commit may be in the place of one that no broker takes.
                let time_ms = timestamp_ms.filter(|ms| *ms != commit_time.unix_millis());
                let written = Written { xid: None, committed: Some(commit_time), time_ms };
                self.done.push(ToMark { position, lane: None, id, written, visible: true });
            } else if row.is_some() {
                self.set_aside.push(parked);
            }
        }
        self.leave_repeated();
        let marker = self.marker.clone().filter(|_| !self.done.is_empty())?;
        self.done.sort_by_key(|row| row.position);
        self.taken = Arc::new(std::mem::take(&mut self.done));
        self.tried_at = Some(Instant::now());
        let finds_holders = self.holders_at.is_none_or(|at| at.elapsed() >= HOLDERS_INTERVAL);
        let waits_beside = self.waits_since.is_none_or(|since| since.elapsed() < WAIT_BESIDE);
        Some(RowStatusBatch {
            marker,
            rows: Arc::clone(&self.taken),
            waiting: self.waiting.clone(),
            waits: self.required || waits_beside,
            required: self.required,
            finds_holders,
        })
    }

    /// What became of what was taken last. Gives what waits, where something does, and how many rows of it are given
    /// up.
    pub(super) fn made(&mut self, made: &RowStatusOutcome) -> (Option<WaitingRows>, usize) {
        let taken = std::mem::take(&mut self.taken);
        let left: Vec<&ToMark> = made.left.iter().filter_map(|place| taken.get(*place)).collect();
        // Of those only: what was published meanwhile was not tried yet.
        self.waiting = left.iter().filter_map(|row| row.lane).collect();
        self.done.extend(left.into_iter().cloned());
        let given_up = if self.required { 0 } else { self.done.len().saturating_sub(BESIDE_MAX) };
        self.done.drain(..given_up);
        if made.left.is_empty() {
            self.nothing_waits();
            return (None, 0);
        }
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        if !made.holders.is_empty() {
            self.holders_at = Some(Instant::now());
        }
        self.note_unmarked();
        // A row that is not visible yet is marked a moment later: nothing to report.
        let soon = made.holders.is_empty() && made.failed.is_none();
        if soon && given_up == 0 && since.elapsed() < UNREPORTED_MAX {
            return (None, 0);
        }
        let table = self.marker.as_ref().map(|marker| marker.table().clone());
        let rows = made.left.len();
        let waiting = table.map(|table| WaitingRows { table, rows, holders: made.holders.clone() });
        (waiting, given_up)
    }

    fn put_back(&mut self) {
        self.done.extend(self.taken.iter().cloned());
        self.taken = Arc::default();
    }
}

/// Events that polling has published though the stream will bring them.
///
/// All that was polled counts, also before a slot is known to stand: it stands a while before that is heard, and
/// somebody else may have made it. Only so many are remembered, and only by this process: what the stream brings and is
/// not remembered comes twice, and then so does all of its aggregate that follows, or the two would be swapped
/// (`docs/decisions/handing-back.md`).
#[derive(Debug, Default)]
pub(super) struct HandOverFilter {
    /// Polling is to end in streaming.
    on: bool,
    /// With the transactions that wrote their rows.
    ids: HashMap<Arc<str>, u32>,
    /// The same, the oldest first.
    order: VecDeque<Arc<str>>,
    /// Rows of the claim at hand, and their ids.
    claim: Vec<(usize, u32, Arc<str>)>,
    row: usize,
    xmin: u32,
    /// What commits from here on was never polled; `None` while polling goes on.
    until: Option<Lsn>,
    /// Aggregates of which the stream has brought an event that is not remembered.
    repeated: HashSet<Lane>,
    /// The epoch under which this process has published last.
    owner: i64,
}

impl HandOverFilter {
    /// Polling begins under an epoch, to end in streaming, or goes on after a lost connection. `before` is the epoch of
    /// the owner before.
    pub(super) fn begins(&mut self, before: i64, epoch: i64) {
        if !self.on || self.owner != before {
            *self = Self { on: true, ..Self::default() };
        }
        self.owner = epoch;
    }

    /// A stream begins under an epoch, behind an owner of another. Where that owner was another process, nothing is
    /// remembered any more: it may have streamed the first events of an aggregate again and have ended there. To pass
    /// over their followers would leave the aggregate with an earlier event.
    pub(super) fn streams(&mut self, before: i64, epoch: i64) {
        if self.owner != before {
            *self = Self::default();
        }
        (self.on, self.owner) = (false, epoch);
    }

    /// A claim begins.
    pub(super) fn claims(&mut self) {
        self.claim.clear();
    }

    /// The row of the claim that is fed next, and the transaction that wrote it.
    pub(super) fn feeds(&mut self, row: usize, xmin: u32) {
        (self.row, self.xmin) = (row, xmin);
    }

    /// The row that is fed is the event of this id.
    pub(super) fn claimed(&mut self, id: &str) {
        if self.on {
            self.claim.push((self.row, self.xmin, id.into()));
        }
    }

    /// The claim is settled; `done` says which of its rows are done with.
    pub(super) fn settled(&mut self, done: impl Fn(usize) -> bool) {
        self.settled_so_far(done);
        self.claim.clear();
    }

    /// The claim is settled in part, and stays open with its other rows.
    pub(super) fn settled_so_far(&mut self, done: impl Fn(usize) -> bool) {
        let ids: Vec<_> = self.claim.extract_if(.., |(row, ..)| done(*row)).collect();
        for (_, xmin, id) in ids {
            self.note(id, xmin);
        }
    }

    fn note(&mut self, id: Arc<str>, xmin: u32) {
        // Of two rows of one id the last.
        if self.ids.insert(Arc::clone(&id), xmin).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > PUBLISHED_IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Polling ends here.
    pub(super) fn ends(&mut self, until: Lsn) {
        self.on = false;
        self.until = Some(until);
    }

    /// Whether the event, of transaction `xid`, is to be passed over.
    #[inline]
    pub(super) fn has(
        &mut self,
        id: &str,
        (commit_lsn, xid): (Lsn, Option<u32>),
        aggregate: Option<Aggregate<'_>>,
    ) -> bool {
        !self.ids.is_empty() && self.passes_over(id, commit_lsn, xid, aggregate)
    }

    fn passes_over(
        &mut self,
        id: &str,
        commit_lsn: Lsn,
        xid: Option<u32>,
        of: Option<Aggregate<'_>>,
    ) -> bool {
        let Some(until) = self.until else { return false };
        if commit_lsn > until {
            *self = Self::default();
            return false;
        }
        let lane = of.map(Lane::of);
        // A row that was polled was written by the event's transaction, by a savepoint of it, or once more since then.
        // A transaction that is newer than the row has used its id again.
        let is_later = |xmin: u32| xid.is_some_and(|xid| xid.wrapping_sub(xmin).cast_signed() > 0);
        let known = self.ids.get(id).is_some_and(|xmin| !is_later(*xmin));
        if known && lane.is_none_or(|lane| !self.repeated.contains(&lane)) {
            return true;
        }
        if let Some(lane) = lane.filter(|_| !known) {
            self.repeated.insert(lane);
            if self.repeated.len() > PUBLISHED_IDS_MAX {
                // All that comes from here on comes twice.
                *self = Self::default();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PgTime;
    use crate::lsn::Watermark;

    /// The row of an earlier event may be unpublished in the table: if the slot is lost now, the row of the parked one
    /// tells that it comes behind it.
    #[test]
    fn row_of_a_parked_event_is_marked_when_the_cursor_row_passes_it_and_not_before() {
        let at = |lsn| Position { commit_lsn: Lsn::from_wire(lsn), ordinal: 3 };
        let row = |lsn, ordinal| Progress {
            watermark: Watermark::resumed(Lsn::from_wire(lsn)),
            partial: Some(Position { commit_lsn: Lsn::from_wire(lsn), ordinal }),
        };
        let done = |row_status: &RowStatusQueue| -> Vec<String> {
            row_status.done.iter().map(|row| row.id.clone()).collect()
        };
        let mut row_status = RowStatusQueue::new(true, true);
        for (lsn, id) in [(10, "a"), (20, "b"), (30, "c")] {
            let parked = NotPassed {
                position: at(lsn),
                id: id.to_owned(),
                commit_time: PgTime::default(),
                timestamp_ms: None,
            };
            row_status.parked(Some(parked));
        }
        assert!(row_status.take(Some(&row(10, 3))).is_none(), "no session has prepared a mark");
        assert_eq!(done(&row_status), [""; 0], "the row stands directly before the first");
        drop(row_status.take(Some(&row(10, 4))));
        assert_eq!(done(&row_status), ["a"]);
        drop(row_status.take(Some(&row(20, 3))));
        assert_eq!(done(&row_status), ["a"]);
        // The slot is lost: what no cursor row has passed comes again from the table.
        drop(row_status.take(None));
        assert_eq!(done(&row_status), ["a"]);
        drop(row_status.take(Some(&row(40, 0))));
        assert_eq!(done(&row_status), ["a"]);
    }

    /// The transaction of the rows.
    const XMIN: u32 = 4_000_000_000;

    fn polled(hand_over_filter: &mut HandOverFilter, ids: impl Iterator<Item = usize>) {
        for id in ids {
            hand_over_filter.claims();
            hand_over_filter.feeds(0, XMIN);
            hand_over_filter.claimed(&id.to_string());
            hand_over_filter.settled(|_| true);
        }
    }

    /// Whether the stream passes over an event of aggregate `of`.
    fn passed_over(hand_over_filter: &mut HandOverFilter, id: usize, of: &str) -> bool {
        let aggregate = Some(Aggregate { kind: "order", id: of });
        hand_over_filter.has(&id.to_string(), (Lsn::from_wire(1), Some(XMIN)), aggregate)
    }

    #[test]
    fn rows_keep_their_outcomes_where_one_between_them_is_no_event() {
        let mut hand_over_filter = HandOverFilter::default();
        hand_over_filter.begins(0, 1);
        hand_over_filter.claims();
        for (row, id) in [(0, Some("a")), (1, None), (2, Some("c")), (3, Some("d"))] {
            hand_over_filter.feeds(row, XMIN);
            if let Some(id) = id {
                hand_over_filter.claimed(id);
            }
        }
        hand_over_filter.settled(|row| row != 2);
        assert!(!hand_over_filter.has("a", (Lsn::from_wire(1), None), None), "polling goes on");
        hand_over_filter.ends(Lsn::from_wire(10));
        let at = (Lsn::from_wire(10), Some(XMIN));
        assert_eq!(
            ["a", "c", "d"].map(|id| hand_over_filter.has(id, at, None)),
            [true, false, true]
        );
        assert!(!hand_over_filter.has("a", (Lsn::from_wire(11), None), None), "never polled");
    }

    /// The oldest are forgotten; the stream brings them again, and would bring them behind their followers.
    #[test]
    fn aggregate_of_a_forgotten_event_comes_twice_as_a_whole_and_no_other_does() {
        let mut hand_over_filter = HandOverFilter::default();
        hand_over_filter.begins(0, 1);
        polled(&mut hand_over_filter, 0..PUBLISHED_IDS_MAX + 3);
        hand_over_filter.ends(Lsn::from_wire(10));
        let last = PUBLISHED_IDS_MAX + 2;
        assert!(
            passed_over(&mut hand_over_filter, 5, "a")
                && passed_over(&mut hand_over_filter, 7, "b")
        );
        assert!(!passed_over(&mut hand_over_filter, 2, "a"), "forgotten");
        assert!(
            !passed_over(&mut hand_over_filter, 6, "a"),
            "else it would stand before the second"
        );
        assert!(!passed_over(&mut hand_over_filter, last, "a"));
        assert!(
            passed_over(&mut hand_over_filter, last, "b"),
            "remembered, and nothing of its own came twice"
        );
    }

    /// What a process before this one has polled, or the stream had published before polling began.
    #[test]
    fn event_that_this_process_did_not_poll_is_published_and_so_are_its_followers() {
        let mut hand_over_filter = HandOverFilter::default();
        hand_over_filter.begins(0, 1);
        polled(&mut hand_over_filter, 10..20);
        hand_over_filter.ends(Lsn::from_wire(10));
        assert!(!passed_over(&mut hand_over_filter, 1, "a"));
        assert!(!passed_over(&mut hand_over_filter, 10, "a"));
        assert!(passed_over(&mut hand_over_filter, 11, "b"));
    }

    /// Another process took the pipeline over in between, and may have begun to stream the same events again.
    #[test]
    fn what_was_polled_before_another_process_owned_the_pipeline_is_not_remembered() {
        for (before, remembered) in [(1, true), (2, false)] {
            let mut hand_over_filter = HandOverFilter::default();
            hand_over_filter.begins(0, 1);
            polled(&mut hand_over_filter, 0..2);
            hand_over_filter.ends(Lsn::from_wire(10));
            hand_over_filter.streams(before, before + 1);
            assert_eq!(
                passed_over(&mut hand_over_filter, 1, "a"),
                remembered,
                "behind epoch {before}"
            );
        }
        let mut hand_over_filter = HandOverFilter::default();
        // An epoch is a time: the next one is higher by any number.
        hand_over_filter.begins(0, 100);
        polled(&mut hand_over_filter, 0..2);
        hand_over_filter.begins(100, 2_500);
        polled(&mut hand_over_filter, 2..3);
        hand_over_filter.ends(Lsn::from_wire(10));
        assert!(
            [0, 1, 2].iter().all(|id| passed_over(&mut hand_over_filter, *id, "a")),
            "no other owner"
        );
        hand_over_filter.begins(2_500, 2_600);
        polled(&mut hand_over_filter, 3..4);
        hand_over_filter.begins(2_700, 2_800);
        polled(&mut hand_over_filter, 4..5);
        hand_over_filter.ends(Lsn::from_wire(10));
        assert_eq!([0, 2, 3, 4].map(|id| passed_over(&mut hand_over_filter, id, "a")), [false; 4]);
        assert!(passed_over(&mut hand_over_filter, 4, "b"));
    }

    /// A published row waits for its mark, since somebody has locked it, and comes out of that written again: it may be
    /// another event, and it may be the same one. So what follows it in its aggregate is published again behind it.
    #[test]
    fn aggregate_of_a_row_that_was_written_again_is_published_again_as_a_whole_and_no_other_is() {
        let mut row_status = RowStatusQueue::new(true, true);
        let aggregate = |id| Aggregate { kind: "order", id };
        let sent = [(1, "1", "a"), (2, "2", "a"), (3, "3", "b"), (4, "4", "a")];
        row_status.begins(XMIN);
        for (number, id, of) in sent {
            let position = Position { commit_lsn: Lsn::from_wire(8), ordinal: number };
            let at = At { position, commit_time: PgTime::default() };
            let ticket = Ticket(number);
            row_status.sent(ticket, Some((at, aggregate(of), None)), id);
            row_status.published(ticket);
        }
        let left = (0..sent.len()).collect();
        row_status.taken = Arc::new(std::mem::take(&mut row_status.done));
        row_status.made(&RowStatusOutcome {
            left,
            holders: Vec::new(),
            failed: None,
            refused: false,
        });
        row_status.polls(true);
        let mut passed_over = |xmin, id: &str, of| {
            row_status.feeds(xmin);
            row_status.waits_for(id, aggregate(of))
        };
        assert!(passed_over(XMIN, "1", "a"), "nothing of it was written again");
        assert!(!passed_over(XMIN + 1, "2", "a") && !passed_over(XMIN, "4", "a"));
        assert!(passed_over(XMIN, "3", "b"));
        assert!(!passed_over(XMIN, "5", "b"), "published by nobody yet");
        // The marks of the first are left to the claims: one that was made now would keep its event from following.
        drop(row_status.take(None));
        let waits: Vec<&str> = row_status.done.iter().map(|row| &*row.id).collect();
        assert_eq!(waits, ["3"]);
        row_status.feeds(XMIN);
        assert!(
            !row_status.waits_for("4", aggregate("a")) && row_status.waits_for("3", aggregate("b"))
        );
    }

    /// The id of a row that was polled is given again, to an event that was not.
    #[test]
    fn event_of_a_later_transaction_than_the_polled_row_of_its_id_is_not_passed_over() {
        // A savepoint has a later number than its transaction; numbers begin again behind the last.
        for (xid, passed) in
            [(XMIN, true), (XMIN - 1, true), (XMIN + 1, false), (XMIN.wrapping_add(1 << 30), false)]
        {
            let mut hand_over_filter = HandOverFilter::default();
            hand_over_filter.begins(0, 1);
            polled(&mut hand_over_filter, 1..2);
            hand_over_filter.ends(Lsn::from_wire(10));
            let aggregate = Some(Aggregate { kind: "order", id: "a" });
            assert_eq!(
                hand_over_filter.has("1", (Lsn::from_wire(1), Some(xid)), aggregate),
                passed,
                "{xid}"
            );
        }
    }

    #[test]
    fn polling_for_good_remembers_nothing() {
        let mut hand_over_filter = HandOverFilter::default();
        polled(&mut hand_over_filter, 0..5);
        assert!(hand_over_filter.ids.is_empty());
    }
}
