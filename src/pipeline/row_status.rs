//! The published status of outbox rows. Rows that were published from the stream are marked in their table, and events
//! that polling has published are skipped when the stream repeats them.
//!
//! Marks are committed before the cursor row that passes their events. So a row without a mark is one that the stream
//! will still send, or will send again, and polling may take over at any moment. IDs are kept whole: with hashes, an
//! event that was never published would one day be skipped.
//!
//! A row that another session has locked is marked when it is free. Until then no cursor row passes its event, and the
//! marks of later events of its aggregate wait; everything else continues (`docs/decisions/marks.md`).

use crate::ack::Progress;
use crate::event::{Aggregate, Position};
use crate::offset::Offset;
use crate::outbox::At;
use crate::parked::Lane;
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::lock_holders::Holder;
use crate::postgres::poll::PollSpec;
use crate::postgres::poll::row_status::{PublishedRow, StatusWriter, WritingTransaction};
use crate::postgres::store::requeue::{self, AheadOfCursor};
use crate::postgres::{SourceError, TableName};
use crate::record::Ticket;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// IDs remembered as published by polling, of about 100 bytes each; also the aggregates remembered as published twice.
const PUBLISHED_IDS_MAX: usize = 100_000;

/// How long the cursor row waits for marks on which only dashboards and clean-ups depend (`mode = "wal"`). After that
/// the cursor row is written, and the marks are made later by this process, or not at all.
const WAIT_BESIDE: Duration = Duration::from_mins(1);

/// Events remembered there for a later mark, of about 100 bytes each. Beyond that the oldest are discarded, and
/// counted.
const BESIDE_MAX: usize = 100_000;

/// Pause between two queries for the sessions that have locked rows.
const HOLDERS_INTERVAL: Duration = Duration::from_secs(5);

/// How long marks may wait before that is logged, if no session holds a lock on the rows.
const UNREPORTED_MAX: Duration = Duration::from_secs(2);

/// Pause between two attempts to mark waiting rows while the table is polled.
const POLLED_INTERVAL: Duration = Duration::from_secs(1);

/// Published rows that have to be marked.
#[derive(Debug, Default)]
pub(super) struct RowStatusQueue {
    /// Whether published rows are marked at all.
    on: bool,
    /// Polling may take over at any moment: no cursor row passes an event without its mark.
    required: bool,
    /// The table is polled: rows of a claim are marked with the claim.
    polled: bool,
    /// The prepared statements.
    marker: Option<StatusWriter>,
    /// The transaction that is being streamed.
    xid: Option<u32>,
    /// In flight.
    in_flight: HashMap<Ticket, PublishedRow>,
    /// Published, and not marked yet.
    done: Vec<PublishedRow>,
    /// Parked, and not yet passed by the cursor row: if the slot is lost before that, the table shows what comes before
    /// these events.
    set_aside: Vec<AheadOfCursor>,
    /// Taken for a cursor row that is being written.
    taken: Arc<Vec<PublishedRow>>,
    /// Aggregates of which a row was locked at the last attempt.
    waiting: HashSet<Lane>,
    /// IDs that the last attempt left without a mark, with the transactions of their events.
    unmarked: HashMap<String, Option<u32>>,
    /// The transaction that wrote the claimed row that is fed next.
    claimed_xmin: u32,
    /// Aggregates of which polling publishes an event again: from there on their marks are made by claims.
    repeated: HashSet<Lane>,
    /// Since when marks wait.
    waits_since: Option<Instant>,
    /// When the last attempt was made.
    attempted_at: Option<Instant>,
    /// When the sessions that hold locks were last queried.
    holders_at: Option<Instant>,
}

/// Marks to be made before a cursor row.
pub(super) struct RowStatusBatch {
    /// The prepared statements.
    marker: StatusWriter,
    /// The rows, in order of their positions.
    rows: Arc<Vec<PublishedRow>>,
    /// Aggregates of which a row was locked at the last attempt.
    waiting: HashSet<Lane>,
    /// The row waits for marks that can't be made yet.
    waits: bool,
    /// Polling depends on the marks.
    required: bool,
    /// The sessions that hold locks are queried.
    finds_holders: bool,
}

/// The result of a batch.
pub(super) struct RowStatusOutcome {
    /// Indexes of the rows that wait.
    left: Vec<usize>,
    /// Sessions that hold locks on them.
    holders: Vec<Holder>,
    /// Why no row was marked.
    pub(super) failed: Option<SourceError>,
    /// The table refuses marks, and nothing depends on them: nothing waits for that to change.
    refused: bool,
}

impl RowStatusBatch {
    /// Marks the rows.
    ///
    /// # Errors
    /// Errors that end the connection, or have to halt the pipeline. Errors of the marks alone are in
    /// [`RowStatusOutcome::failed`].
    pub(super) async fn make(&self, client: &Client) -> Result<RowStatusOutcome, SourceError> {
        let left = match self.marker.mark(client, &self.rows, &self.waiting).await {
            Ok(left) => left,
            Err(error) => {
                let refused = match error_policy::action(&error, Phase::Control, true) {
                    Action::Later(_) => false,
                    // A pipeline that only streams does not depend on marks.
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
            let rows: Vec<PublishedRow> =
                left.iter().map(|place| self.rows[*place].clone()).collect();
            // The holders are shown to people only: their query must not fail the marks.
            self.marker.holders(client, &rows).await.unwrap_or_default()
        } else {
            Vec::new()
        };
        Ok(RowStatusOutcome { left, holders, failed: None, refused: false })
    }

    /// Whether the cursor row at `row` has to wait because it would pass an event without its mark.
    pub(super) fn holds_back(&self, made: &RowStatusOutcome, row: Position) -> bool {
        let passes = || made.left.iter().any(|place| self.rows[*place].position < row);
        self.waits && !made.refused && passes()
    }
}

/// Marks that wait, for the log.
pub(super) struct WaitingRows {
    /// Their table.
    pub(super) table: TableName,
    /// How many rows wait.
    pub(super) rows: usize,
    /// Sessions that hold locks on them.
    pub(super) holders: Vec<Holder>,
}

impl RowStatusQueue {
    /// `required`: polling depends on the marks.
    pub(super) fn new(on: bool, required: bool) -> Self {
        Self { on, required, ..Self::default() }
    }

    /// An event is in flight. `row`: its position, aggregate and own time; `None` for a message, which has no row.
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
            let written =
                WritingTransaction { xid: self.xid, committed: Some(at.commit_time), time_ms };
            let (position, lane) = (at.position, Some(Lane::of(aggregate)));
            let row = PublishedRow { position, lane, id: id.to_owned(), written, visible: false };
            self.in_flight.insert(ticket, row);
        }
    }

    /// The stream begins a transaction.
    pub(super) const fn begins(&mut self, xid: Option<u32>) {
        self.xid = xid;
    }

    /// The event is published.
    pub(super) fn published(&mut self, ticket: Ticket) {
        if self.on
            && let Some(row) = self.in_flight.remove(&ticket)
        {
            self.done.push(row);
        }
    }

    /// The event was refused, and is parked.
    pub(super) fn not_published(&mut self, ticket: Ticket) {
        self.in_flight.remove(&ticket);
    }

    /// The transaction that is being streamed.
    pub(super) const fn xid(&self) -> Option<u32> {
        self.xid
    }

    /// The claimed row that is fed next was written by this transaction.
    pub(super) const fn feeds(&mut self, xmin: u32) {
        self.claimed_xmin = xmin;
    }

    /// Whether the event with this ID is published while its row still waits for its mark: polling skips it. A row that
    /// another transaction has written may be another event, and is published. Then the later rows of its aggregate are
    /// published again too: it may be the same event, and would otherwise be the last one of its aggregate.
    #[inline]
    pub(super) fn waits_for(&mut self, id: &str, aggregate: Aggregate<'_>) -> bool {
        self.polled && !self.unmarked.is_empty() && self.skips(id, aggregate)
    }

    fn skips(&mut self, id: &str, aggregate: Aggregate<'_>) -> bool {
        let Some(xid) = self.unmarked.get(id) else { return false };
        let lane = Lane::of(aggregate);
        if *xid == Some(self.claimed_xmin) && !self.repeated.contains(&lane) {
            return true;
        }
        self.repeated.insert(lane);
        false
    }

    /// Leaves the marks of events that are published again to the claims: if an event were marked now, it would not be
    /// published after the repeated one.
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

    /// Number of published rows that stay without their mark if the process ends now: those for which no cursor row
    /// waits. In mode "auto" the stream repeats their events.
    pub(super) fn owed(&self) -> usize {
        if self.required { 0 } else { self.done.len() + self.taken.len() }
    }

    /// Polling begins or ends.
    pub(super) fn polls(&mut self, polled: bool) {
        self.leave_repeated();
        self.polled = polled;
    }

    /// Whether another attempt to mark waiting rows is due, while the table is polled.
    pub(super) fn is_due(&self) -> bool {
        let due = self.attempted_at.is_none_or(|at| at.elapsed() >= POLLED_INTERVAL);
        due && (!self.done.is_empty() || !self.taken.is_empty())
    }

    /// The event is in the parked table: its outbox row can be marked once the cursor row has passed it.
    pub(super) fn parked(&mut self, row: Option<AheadOfCursor>) {
        if self.on {
            self.set_aside.extend(row);
        }
    }

    /// A stream begins: reads events that were parked before and are marked when the cursor row passes them.
    pub(super) async fn find_parked(
        &mut self,
        client: &Client,
        pipeline: &str,
    ) -> Result<(), SourceError> {
        if self.on {
            self.set_aside = requeue::ahead_of_cursor(client, pipeline).await?;
        }
        Ok(())
    }

    /// Nothing is in flight any more.
    pub(super) fn given_up(&mut self) {
        self.in_flight.clear();
    }

    /// Published rows were marked by other means.
    pub(super) fn forget(&mut self) {
        self.in_flight.clear();
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

    /// Prepares the statements on a session.
    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        spec: Option<&PollSpec>,
    ) -> Result<(), SourceError> {
        self.put_back();
        if let Some(spec) = spec.filter(|_| self.on) {
            self.marker = Some(StatusWriter::prepare(client, spec).await?);
        }
        Ok(())
    }

    /// Takes the rows to be marked before the next cursor row, which is `row`; `None` if the slot is lost: events that
    /// no cursor row has passed are read from the table again.
    pub(super) fn take(&mut self, row: Option<&Progress>) -> Option<RowStatusBatch> {
        self.put_back();
        let passed = row.map_or_else(Position::default, Progress::position);
        for parked in std::mem::take(&mut self.set_aside) {
            if parked.position < passed {
                let AheadOfCursor { position, id, commit_time, timestamp_ms } = parked;
                // The time of the record may be the commit time, in place of a time that no broker accepts.
                let time_ms = timestamp_ms.filter(|ms| *ms != commit_time.unix_millis());
                let written =
                    WritingTransaction { xid: None, committed: Some(commit_time), time_ms };
                self.done.push(PublishedRow { position, lane: None, id, written, visible: true });
            } else if row.is_some() {
                self.set_aside.push(parked);
            }
        }
        self.leave_repeated();
        let marker = self.marker.clone().filter(|_| !self.done.is_empty())?;
        self.done.sort_by_key(|row| row.position);
        self.taken = Arc::new(std::mem::take(&mut self.done));
        self.attempted_at = Some(Instant::now());
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

    /// Handles the result of the last batch. Returns what waits, if that is to be logged, and how many rows are given
    /// up.
    pub(super) fn made(&mut self, made: &RowStatusOutcome) -> (Option<WaitingRows>, usize) {
        let taken = std::mem::take(&mut self.taken);
        let left: Vec<&PublishedRow> =
            made.left.iter().filter_map(|place| taken.get(*place)).collect();
        // Only of these rows: those published meanwhile were not tried yet.
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
        // A row that is not visible yet is marked a moment later: that is not logged.
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

/// Skips events that polling has published and the stream sends as well.
///
/// Every polled event counts, even before a slot is known to exist: the slot may exist for a while before this process
/// learns that, and another process may have created it. The number of remembered IDs is limited, and only this process
/// remembers them. An event that the stream sends and that is not remembered is published twice, and so are all later
/// events of its aggregate; otherwise the two would be swapped (`docs/decisions/handing-back.md`).
#[derive(Debug, Default)]
pub(super) struct HandOverFilter {
    /// Polling is to end in streaming.
    on: bool,
    /// Published IDs, with the transactions that wrote their rows.
    ids: HashMap<Arc<str>, u32>,
    /// The same IDs, the oldest first.
    order: VecDeque<Arc<str>>,
    /// Rows of the open claim, their transactions and IDs.
    claim: Vec<(usize, u32, Arc<str>)>,
    /// The row that is fed next.
    row: usize,
    /// The transaction that wrote it.
    xmin: u32,
    /// Events committed after this position were never polled; `None` while polling continues.
    until: Option<Offset>,
    /// Aggregates of which the stream has sent an event that is not remembered.
    repeated: HashSet<Lane>,
    /// The owner epoch under which this process has published last.
    owner: i64,
}

impl HandOverFilter {
    /// Polling begins under an epoch, to end in streaming, or continues after a lost connection. `before` is the epoch
    /// of the previous owner.
    pub(super) fn begins(&mut self, before: i64, epoch: i64) {
        if !self.on || self.owner != before {
            *self = Self { on: true, ..Self::default() };
        }
        self.owner = epoch;
    }

    /// A stream begins under `epoch`; `before` is the epoch of the previous owner. If that owner was another process,
    /// all IDs are discarded: it may have streamed the first events of an aggregate again, and have ended there. If the
    /// later events were skipped, the aggregate would end with an earlier event.
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

    /// The claimed row that is fed next, and the transaction that wrote it.
    pub(super) fn feeds(&mut self, row: usize, xmin: u32) {
        (self.row, self.xmin) = (row, xmin);
    }

    /// The row that is fed is the event with this ID.
    pub(super) fn claimed(&mut self, id: &str) {
        if self.on {
            self.claim.push((self.row, self.xmin, id.into()));
        }
    }

    /// The claim is settled; `done` returns whether a row is resolved.
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
        // Of two rows with the same ID the last one counts.
        if self.ids.insert(Arc::clone(&id), xmin).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > PUBLISHED_IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Polling ends at this position.
    pub(super) fn ends(&mut self, until: Offset) {
        self.on = false;
        self.until = Some(until);
    }

    /// Whether the event, of transaction `xid`, is skipped.
    #[inline]
    pub(super) fn has(
        &mut self,
        id: &str,
        (commit, xid): (Offset, Option<u32>),
        aggregate: Option<Aggregate<'_>>,
    ) -> bool {
        !self.ids.is_empty() && self.skips(id, commit, xid, aggregate)
    }

    fn skips(
        &mut self,
        id: &str,
        commit: Offset,
        xid: Option<u32>,
        of: Option<Aggregate<'_>>,
    ) -> bool {
        let Some(until) = self.until else { return false };
        if commit > until {
            *self = Self::default();
            return false;
        }
        let lane = of.map(Lane::of);
        // A polled row was written by the event's transaction, by one of its savepoints, or again after that. A
        // transaction that is newer than the row has used the ID for another event.
        let is_later = |xmin: u32| xid.is_some_and(|xid| xid.wrapping_sub(xmin).cast_signed() > 0);
        let known = self.ids.get(id).is_some_and(|xmin| !is_later(*xmin));
        if known && lane.is_none_or(|lane| !self.repeated.contains(&lane)) {
            return true;
        }
        if let Some(lane) = lane.filter(|_| !known) {
            self.repeated.insert(lane);
            if self.repeated.len() > PUBLISHED_IDS_MAX {
                // All events from here on are published twice.
                *self = Self::default();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Watermark;
    use crate::timestamp::Timestamp;

    /// The row of an earlier event may be unpublished in the table: if the slot is lost now, the row of the parked
    /// event shows its place after that row.
    #[test]
    fn row_of_a_parked_event_is_marked_only_after_the_cursor_row_passes_it() {
        let at = |lsn| Position { commit: Offset::new(lsn), ordinal: 3 };
        let row = |lsn, ordinal| Progress {
            watermark: Watermark::resumed(Offset::new(lsn)),
            partial: Some(Position { commit: Offset::new(lsn), ordinal }),
        };
        let done = |row_status: &RowStatusQueue| -> Vec<String> {
            row_status.done.iter().map(|row| row.id.clone()).collect()
        };
        let mut row_status = RowStatusQueue::new(true, true);
        for (lsn, id) in [(10, "a"), (20, "b"), (30, "c")] {
            let parked = AheadOfCursor {
                position: at(lsn),
                id: id.to_owned(),
                commit_time: Timestamp::default(),
                timestamp_ms: None,
            };
            row_status.parked(Some(parked));
        }
        assert!(row_status.take(Some(&row(10, 3))).is_none(), "no session has prepared a mark");
        assert_eq!(done(&row_status), [""; 0], "the cursor row is directly before the first");
        drop(row_status.take(Some(&row(10, 4))));
        assert_eq!(done(&row_status), ["a"]);
        drop(row_status.take(Some(&row(20, 3))));
        assert_eq!(done(&row_status), ["a"]);
        // The slot is lost: events that no cursor row has passed are read from the table again.
        drop(row_status.take(None));
        assert_eq!(done(&row_status), ["a"]);
        drop(row_status.take(Some(&row(40, 0))));
        assert_eq!(done(&row_status), ["a"]);
    }

    /// The transaction that wrote the rows.
    const XMIN: u32 = 4_000_000_000;

    fn polled(polled_ids: &mut HandOverFilter, ids: impl Iterator<Item = usize>) {
        for id in ids {
            polled_ids.claims();
            polled_ids.feeds(0, XMIN);
            polled_ids.claimed(&id.to_string());
            polled_ids.settled(|_| true);
        }
    }

    /// Whether an event of aggregate `of` is skipped in the stream.
    fn skipped(polled_ids: &mut HandOverFilter, id: usize, of: &str) -> bool {
        let aggregate = Some(Aggregate { kind: "order", id: of });
        polled_ids.has(&id.to_string(), (Offset::new(1), Some(XMIN)), aggregate)
    }

    #[test]
    fn rows_keep_their_outcomes_if_a_row_between_them_is_no_event() {
        let mut polled_ids = HandOverFilter::default();
        polled_ids.begins(0, 1);
        polled_ids.claims();
        for (row, id) in [(0, Some("a")), (1, None), (2, Some("c")), (3, Some("d"))] {
            polled_ids.feeds(row, XMIN);
            if let Some(id) = id {
                polled_ids.claimed(id);
            }
        }
        polled_ids.settled(|row| row != 2);
        assert!(!polled_ids.has("a", (Offset::new(1), None), None), "polling continues");
        polled_ids.ends(Offset::new(10));
        let at = (Offset::new(10), Some(XMIN));
        assert_eq!(["a", "c", "d"].map(|id| polled_ids.has(id, at, None)), [true, false, true]);
        assert!(!polled_ids.has("a", (Offset::new(11), None), None), "never polled");
    }

    /// The oldest IDs are discarded; the stream repeats their events, and would publish them after later events.
    #[test]
    fn only_the_aggregate_of_a_discarded_id_is_published_twice() {
        let mut polled_ids = HandOverFilter::default();
        polled_ids.begins(0, 1);
        polled(&mut polled_ids, 0..PUBLISHED_IDS_MAX + 3);
        polled_ids.ends(Offset::new(10));
        let last = PUBLISHED_IDS_MAX + 2;
        assert!(skipped(&mut polled_ids, 5, "a") && skipped(&mut polled_ids, 7, "b"));
        assert!(!skipped(&mut polled_ids, 2, "a"), "discarded");
        assert!(
            !skipped(&mut polled_ids, 6, "a"),
            "otherwise it would be published before the repeated one"
        );
        assert!(!skipped(&mut polled_ids, last, "a"));
        assert!(
            skipped(&mut polled_ids, last, "b"),
            "remembered, and no event of its aggregate was repeated"
        );
    }

    /// Published by a process before this one, or by the stream before polling began.
    #[test]
    fn event_that_this_process_did_not_poll_is_published_with_the_later_events_of_its_aggregate() {
        let mut polled_ids = HandOverFilter::default();
        polled_ids.begins(0, 1);
        polled(&mut polled_ids, 10..20);
        polled_ids.ends(Offset::new(10));
        assert!(!skipped(&mut polled_ids, 1, "a"));
        assert!(!skipped(&mut polled_ids, 10, "a"));
        assert!(skipped(&mut polled_ids, 11, "b"));
    }

    /// Another process owned the pipeline in between, and may have begun to stream the same events again.
    #[test]
    fn ids_polled_before_another_process_owned_the_pipeline_are_discarded() {
        for (before, remembered) in [(1, true), (2, false)] {
            let mut polled_ids = HandOverFilter::default();
            polled_ids.begins(0, 1);
            polled(&mut polled_ids, 0..2);
            polled_ids.ends(Offset::new(10));
            polled_ids.streams(before, before + 1);
            assert_eq!(skipped(&mut polled_ids, 1, "a"), remembered, "behind epoch {before}");
        }
        let mut polled_ids = HandOverFilter::default();
        // An epoch is a time: the next one may be higher by any number.
        polled_ids.begins(0, 100);
        polled(&mut polled_ids, 0..2);
        polled_ids.begins(100, 2_500);
        polled(&mut polled_ids, 2..3);
        polled_ids.ends(Offset::new(10));
        assert!(
            [0, 1, 2].iter().all(|id| skipped(&mut polled_ids, *id, "a")),
            "no other process was the owner"
        );
        polled_ids.begins(2_500, 2_600);
        polled(&mut polled_ids, 3..4);
        polled_ids.begins(2_700, 2_800);
        polled(&mut polled_ids, 4..5);
        polled_ids.ends(Offset::new(10));
        assert_eq!([0, 2, 3, 4].map(|id| skipped(&mut polled_ids, id, "a")), [false; 4]);
        assert!(skipped(&mut polled_ids, 4, "b"));
    }

    /// A published row waits for its mark because it is locked, and is written again by the session that has locked it:
    /// it may be another event or the same one. So the later events of its aggregate are published again after it.
    #[test]
    fn only_the_aggregate_of_a_row_that_was_written_again_is_published_again() {
        let mut row_status = RowStatusQueue::new(true, true);
        let aggregate = |id| Aggregate { kind: "order", id };
        let sent = [(1, "1", "a"), (2, "2", "a"), (3, "3", "b"), (4, "4", "a")];
        row_status.begins(Some(XMIN));
        for (number, id, of) in sent {
            let position = Position { commit: Offset::new(8), ordinal: number };
            let at = At { position, commit_time: Timestamp::default() };
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
        let mut skipped = |xmin, id: &str, of| {
            row_status.feeds(xmin);
            row_status.waits_for(id, aggregate(of))
        };
        assert!(skipped(XMIN, "1", "a"), "no row of it was written again");
        assert!(!skipped(XMIN + 1, "2", "a") && !skipped(XMIN, "4", "a"));
        assert!(skipped(XMIN, "3", "b"));
        assert!(!skipped(XMIN, "5", "b"), "not published yet");
        // The marks of the first aggregate are left to the claims: a row marked now would not be published again.
        drop(row_status.take(None));
        let waits: Vec<&str> = row_status.done.iter().map(|row| &*row.id).collect();
        assert_eq!(waits, ["3"]);
        row_status.feeds(XMIN);
        assert!(
            !row_status.waits_for("4", aggregate("a")) && row_status.waits_for("3", aggregate("b"))
        );
    }

    /// The ID of a polled row is used again for an event that was not polled.
    #[test]
    fn event_of_a_later_transaction_than_the_polled_row_of_its_id_is_not_skipped() {
        // A savepoint has a higher number than its transaction; numbers wrap around.
        for (xid, passed) in
            [(XMIN, true), (XMIN - 1, true), (XMIN + 1, false), (XMIN.wrapping_add(1 << 30), false)]
        {
            let mut polled_ids = HandOverFilter::default();
            polled_ids.begins(0, 1);
            polled(&mut polled_ids, 1..2);
            polled_ids.ends(Offset::new(10));
            let aggregate = Some(Aggregate { kind: "order", id: "a" });
            assert_eq!(
                polled_ids.has("1", (Offset::new(1), Some(xid)), aggregate),
                passed,
                "{xid}"
            );
        }
    }

    #[test]
    fn polling_without_a_hand_over_remembers_nothing() {
        let mut polled_ids = HandOverFilter::default();
        polled(&mut polled_ids, 0..5);
        assert!(polled_ids.ids.is_empty());
    }
}
