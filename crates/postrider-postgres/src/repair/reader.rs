//! The session that reads the list of a repair, one page at a time. A page is removed when its rows are published or
//! parked.
//!
//! The pipeline uses it like a poller: a claim is a transaction, open until its rows have their outcomes, and parked
//! rows are written in that transaction.

use super::list::Method;
use super::row::{self, RepairRow};
use crate::catalog::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL, lsn};
use crate::control::Control;
use crate::names::Names;
use crate::pipeline_lock::{PipelineLock, lock};
use crate::poll::by_id::{FetchedPage, IdLookup, OutboxTable};
use crate::poll::row_status::{PublishedRow, StatusWriter, WritingTransaction};
use crate::poll::{Claim, PollSpec, RowOutcome};
use crate::store::cursor::NOTHING_BEFORE;
use crate::wire::Lsn;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::SourceError;
use postrider_core::event::Position;
use postrider_core::store::PipelineKey;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

/// Rows of one page of the list.
pub const PAGE_ROWS: usize = 1_000;

/// In addition to the settings of [`Control`]: a search for rows by the text of their ids reads the whole table.
const PINNED: &str = "SET statement_timeout = '10min'";

/// Below this number of missing rows it is assumed that they were deleted, however short the list is.
const GONE_ROWS_MIN: u64 = 10;

/// How long the session waits for published rows that another session has locked, before the page is given up (as long
/// as any statement waits for a lock); and the pause between two attempts.
const LOCKED_MAX: Duration = Duration::from_secs(5);
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// How a repair ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RepairOutcome {
    /// The cursor is at the new slot's position.
    Done(Box<RepairRow>),
    /// The slot has changed since the list was made: another one is needed.
    SlotChanged,
    /// Another process owns the pipeline now.
    TakenOver,
    /// Most ids of the list have no row, and the table has unpublished rows that may be the missing ones.
    Unexplained {
        /// The repair.
        row: Box<RepairRow>,
        /// The number of those unpublished rows.
        left: u64,
    },
}

/// The session. Dropping it releases the pipeline's lock; an open claim is repeated by the next session.
#[derive(Debug)]
pub struct RepairReader {
    control: Control,
    table: OutboxTable,
    marker: Option<StatusWriter>,
    key: PipelineKey,
    page: Option<ListPage>,
    open: bool,
    drained: bool,
    by: IdLookup,
    /// Rows that were not found by value were searched for by text once.
    searched_by_text: bool,
}

/// The current page.
#[derive(Debug)]
struct ListPage {
    number: i64,
    ids: Vec<String>,
    /// For each row of the claim, the index of its id.
    places: Vec<usize>,
    /// For each row of the claim, what distinguishes it from a row that gets its id before the status is set. Empty if
    /// no status is set.
    written: Vec<WritingTransaction>,
    looked_at: usize,
    /// Rows that are settled already, and whether the ids without a row were removed from the list.
    settled: BTreeSet<usize>,
    gone_done: bool,
}

impl ListPage {
    fn new((number, ids): (i64, Vec<String>), places: Vec<usize>, looked_at: usize) -> Self {
        let settled = BTreeSet::new();
        let written = Vec::new();
        Self { number, ids, places, written, looked_at, settled, gone_done: false }
    }

    /// Indexes of the ids that are finished: every row with such an id is settled.
    fn done(&self) -> BTreeSet<usize> {
        let rows = || self.places.iter().enumerate();
        let open: BTreeSet<usize> = rows()
            .filter(|(row, _)| !self.settled.contains(row))
            .map(|(_, place)| *place)
            .collect();
        rows().map(|(_, place)| *place).filter(|place| !open.contains(place)).collect()
    }

    /// Takes the outcomes of rows. Returns the indexes of the ids that this call has finished, and once the number of
    /// ids of the page that have no row.
    fn settle(&mut self, outcomes: &[RowOutcome]) -> (Vec<usize>, usize) {
        let before = self.done();
        let settled =
            |outcome: &RowOutcome| matches!(outcome, RowOutcome::Published | RowOutcome::Moved);
        let rows = outcomes.iter().enumerate().filter(|(_, outcome)| settled(outcome));
        self.settled.extend(rows.map(|(row, _)| row));
        let new = self.done().into_iter().filter(|place| !before.contains(place)).collect();
        let there: BTreeSet<usize> = self.places.iter().copied().collect();
        let gone = (0..self.looked_at).filter(|place| !there.contains(place)).count();
        (new, if std::mem::replace(&mut self.gone_done, true) { 0 } else { gone })
    }

    /// The rows with these ids, which get their status.
    fn published(&self, ids: &[usize]) -> Vec<PublishedRow> {
        let rows = self.places.iter().zip(&self.written);
        let rows = rows.filter(|(place, _)| ids.contains(place));
        rows.filter_map(|(place, written)| {
            let id = self.ids.get(*place)?.clone();
            let written = *written;
            Some(PublishedRow {
                position: Position::default(),
                lane: None,
                id,
                written,
                visible: true,
            })
        })
        .collect()
    }

    /// The ids that stay on the list.
    fn left(&self) -> Vec<String> {
        let done = self.done();
        let there: BTreeSet<usize> = self.places.iter().copied().collect();
        let stays = |place: &usize| {
            *place >= self.looked_at || there.contains(place) && !done.contains(place)
        };
        (0..self.ids.len()).filter(stays).filter_map(|place| self.ids.get(place).cloned()).collect()
    }
}

impl RepairReader {
    /// Opens the session, reads the table's definition, and takes the pipeline's lock. `marks`: published rows get
    /// their status.
    ///
    /// `Err` of the inner result: the backend that has the lock, if it is known.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        spec: PollSpec,
        marks: bool,
    ) -> Result<Result<Self, Option<u32>>, SourceError> {
        let control = Control::connect(conninfo, application_name).await?;
        let key = spec.key.clone();
        let failed = |e| SourceError::control("set up the session that reads the list", e);
        control.client().batch_execute(PINNED).await.map_err(failed)?;
        let marker =
            if marks { Some(StatusWriter::prepare(control.client(), &spec).await?) } else { None };
        let table = OutboxTable::read(control.client(), spec).await?;
        // The lock is taken last, as in `Poller::open`.
        if let PipelineLock::HeldBy { pid } = lock(control.client(), &key).await? {
            return Ok(Err(pid));
        }
        Ok(Ok(Self {
            control,
            table,
            marker,
            key,
            page: None,
            open: false,
            drained: false,
            by: IdLookup::Value,
            searched_by_text: false,
        }))
    }

    /// The table whose rows are read.
    pub fn table(&self) -> &OutboxTable {
        &self.table
    }

    /// The session's client. While a claim is open, its statements belong to the claim's transaction.
    pub fn client(&self) -> &Client {
        self.control.client()
    }

    /// The session.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Whether the last claim found the list empty.
    pub fn drained(&self) -> bool {
        self.drained
    }

    /// The first position that a claim may have: after everything of the old slot that is in the tables.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn start(&self) -> Result<Lsn, SourceError> {
        let failed = |e| SourceError::control("read where positions begin", e);
        let sql = "SELECT greatest(\
                     (SELECT max(p.commit_lsn) FROM postrider.parked p \
                      WHERE p.pipeline = r.pipeline AND p.shard = r.shard \
                        AND p.commit_lsn < r.slot_created_lsn), \
                     (SELECT c.watermark FROM postrider.cursor c \
                      WHERE c.pipeline = r.pipeline AND c.shard = r.shard \
                        AND c.watermark < r.slot_created_lsn), '0/1') \
                   FROM postrider.repair r WHERE r.pipeline = $1 AND r.shard = $2";
        let row = self
            .client()
            .query_one(sql, &[&self.key.pipeline, &self.key.shard])
            .await
            .map_err(failed)?;
        let last: PgLsn = row.try_get(0).map_err(failed)?;
        // The result is not a position of the server. Any higher number is suitable, and the new slot's positions are
        // higher.
        Ok(Lsn::new(lsn(last).get() + 1))
    }

    /// Reads the next rows of the list, in a transaction that stays open until they are settled. Without rows there is
    /// no transaction, and the list is finished.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn claim(&mut self) -> Result<Claim, SourceError> {
        self.abandon().await?;
        loop {
            let Some(next) = self.next_page().await? else {
                self.drained = true;
                return Ok(self.table.fetch(self.client(), &[], IdLookup::Value).await?.claim);
            };
            let FetchedPage { claim, places, looked_at } = self.fetch_page(&next.1).await?;
            let nothing = places.is_empty();
            let mut page = ListPage::new(next, places, looked_at);
            if self.marker.is_some() {
                page.written = self.table.written(self.client(), &claim).await?;
            }
            self.page = Some(page);
            if !nothing {
                self.run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
                self.open = true;
                return Ok(claim);
            }
            // No row of the page exists any more.
            self.keep(&[]).await?;
            self.page = None;
        }
    }

    /// The rows of a page. A missing row is verified: the first time, and whenever most rows of a page are missing, the
    /// ids are also searched for by their text. If that finds a row, all later pages are read by text.
    async fn fetch_page(&mut self, ids: &[String]) -> Result<FetchedPage, SourceError> {
        let page = self.table.fetch(self.client(), ids, self.by).await?;
        let found: BTreeSet<usize> = page.places.iter().copied().collect();
        let gone = page.looked_at.saturating_sub(found.len());
        let doubtful = gone > 0 && (!self.searched_by_text || gone * 2 > page.looked_at);
        if !doubtful || self.by == IdLookup::Text {
            return Ok(page);
        }
        self.searched_by_text = true;
        let again = self.table.fetch(self.client(), ids, IdLookup::Text).await?;
        let missed = |place: &usize| *place < page.looked_at && !found.contains(place);
        if !again.places.iter().any(missed) {
            return Ok(page);
        }
        self.by = IdLookup::Text;
        Ok(again)
    }

    async fn next_page(&self) -> Result<Option<(i64, Vec<String>)>, SourceError> {
        let failed = |e| SourceError::control("read the list of rows to publish", e);
        let sql = "SELECT number, ids FROM postrider.repair_page \
                   WHERE pipeline = $1 AND shard = $2 ORDER BY number LIMIT 1";
        let row = self
            .client()
            .query_opt(sql, &[&self.key.pipeline, &self.key.shard])
            .await
            .map_err(failed)?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose().map_err(failed)
    }

    /// Removes the rows that are published or parked from the list, sets their status if that is configured, and
    /// commits.
    ///
    /// # Errors
    /// An error of the server or of the connection. Then nothing is removed, and the whole page is repeated.
    ///
    /// # Panics
    /// If there are not as many outcomes as rows.
    pub async fn settle(
        &mut self,
        claim: &Claim,
        outcomes: &[RowOutcome],
    ) -> Result<(), SourceError> {
        assert_eq!(claim.rows.len(), outcomes.len(), "one outcome a row");
        if !self.open {
            return Ok(());
        }
        self.keep(outcomes).await?;
        self.page = None;
        self.run("COMMIT").await?;
        self.open = false;
        Ok(())
    }

    /// As [`Self::settle`], but the claim stays open with its other rows. No row of the table was locked, so the claim
    /// cannot have lost any.
    ///
    /// # Errors
    /// An error of the server or of the connection. Then nothing is removed, and the whole page is repeated.
    ///
    /// # Panics
    /// If there are not as many outcomes as rows.
    pub async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[RowOutcome],
    ) -> Result<(), SourceError> {
        assert_eq!(claim.rows.len(), outcomes.len(), "one outcome a row");
        if self.open {
            self.keep(outcomes).await?;
            self.run("COMMIT; BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
        }
        Ok(())
    }

    /// Sends a statement, because the server ends a transaction that is idle for too long.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn keep_open(&self) -> Result<(), SourceError> {
        if self.open { self.run("SELECT").await } else { Ok(()) }
    }

    /// Removes what is finished from the current page.
    async fn keep(&mut self, outcomes: &[RowOutcome]) -> Result<(), SourceError> {
        let failed = |e| SourceError::control("take rows off the list", e);
        let Some(mut page) = self.page.take() else { return Ok(()) };
        let (ids, gone) = page.settle(outcomes);
        let left = page.left();
        if let Some(marker) = &self.marker {
            self.mark(marker, page.published(&ids)).await?;
        }
        let (done, gone) = (count(ids.len()), count(gone));
        let sql = "WITH cut AS (UPDATE postrider.repair_page SET ids = $3 \
                     WHERE pipeline = $1 AND shard = $6 AND number = $2 AND cardinality($3::text[]) > 0), \
                   ended AS (DELETE FROM postrider.repair_page \
                     WHERE pipeline = $1 AND shard = $6 AND number = $2 AND cardinality($3::text[]) = 0) \
                   UPDATE postrider.repair SET rows_published = rows_published + $4, \
                     rows_gone = rows_gone + $5 WHERE pipeline = $1 AND shard = $6";
        self.client()
            .execute(sql, &[&self.key.pipeline, &page.number, &left, &done, &gone, &self.key.shard])
            .await
            .map_err(failed)?;
        self.page = Some(page);
        Ok(())
    }

    /// Sets the status of published rows. It waits for a row that another session has locked, because its status and
    /// the shorter list are committed together.
    async fn mark(
        &self,
        marker: &StatusWriter,
        mut rows: Vec<PublishedRow>,
    ) -> Result<(), SourceError> {
        let since = Instant::now();
        loop {
            let left = marker.mark_within(self.client(), &rows).await?;
            rows = left.into_iter().filter_map(|place| rows.get(place).cloned()).collect();
            if rows.is_empty() {
                return Ok(());
            }
            if since.elapsed() >= LOCKED_MAX {
                let holders = marker.holders(self.client(), &rows).await?;
                return Err(marker.locked(rows.len(), &holders));
            }
            tokio::time::sleep(LOCKED_PAUSE).await;
        }
    }

    /// Abandons the claim: nothing is removed from the list. Does nothing if no claim is open.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn abandon(&mut self) -> Result<(), SourceError> {
        self.page = None;
        if self.open {
            self.run("ROLLBACK").await?;
            self.open = false;
        }
        Ok(())
    }

    async fn run(&self, sql: &str) -> Result<(), SourceError> {
        let ended = self.client().batch_execute(sql).await;
        ended.map_err(|error| SourceError::control("begin or end a page of the list", error))
    }

    /// If most ids of the list had no row: the unpublished rows of the table that may be the missing ones, if there are
    /// any.
    ///
    /// Each listed row is published, parked, or missing, so of the rows that the list was made of, no more can be left
    /// than were published. A row that was written after the list may be a new one, which the stream sends, or a listed
    /// one whose id was changed, which the stream does not send.
    async fn unexplained(&self) -> Result<Option<(RepairRow, u64)>, SourceError> {
        let client = self.client();
        let row = row::read(client, &self.key).await?;
        let doubtful =
            |row: &RepairRow| row.rows_gone >= GONE_ROWS_MIN && row.rows_gone > row.rows_total / 2;
        let Some(row) = row.filter(doubtful) else { return Ok(None) };
        let Some(snapshot) = &row.snapshot else { return Ok(None) };
        let method = Method::of(client, row.selection, row.ledger.as_deref()).await?;
        let sql = method.left_sql(&self.table, snapshot, self.marker.is_some());
        let failed = |e| SourceError::control("count the rows that are left", e);
        let counts = client.query_one(&sql, &[]).await.map_err(failed)?;
        let count = |at: usize| counts.try_get::<_, i64>(at).map(i64::cast_unsigned);
        let (seen, later) = (count(0).map_err(failed)?, count(1).map_err(failed)?);
        let left = if seen > row.rows_published { seen + later } else { later };
        Ok((left > 0).then_some((row, left)))
    }

    /// Counts the rows that the list of `repair` should have and cannot, because their id is NULL.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn without_id(&self, repair: &RepairRow) -> Result<u64, SourceError> {
        super::list::without_id(self.client(), &self.table, repair).await
    }

    /// Sets the cursor row to the new slot, if the list is empty and the slot is unchanged. `epoch`: the owner's.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn finish(
        &self,
        names: &Names,
        messages: bool,
        epoch: i64,
    ) -> Result<RepairOutcome, SourceError> {
        let failed = |e| SourceError::control("set the cursor to the new slot", e);
        if let Some((row, left)) = self.unexplained().await? {
            return Ok(RepairOutcome::Unexplained { row: Box::new(row), left });
        }
        let sql = format!(
            "WITH ours AS (SELECT FROM postrider.cursor \
               WHERE pipeline = $1 AND shard = $5 AND owner_epoch = $4 FOR UPDATE), \
             done AS ( \
               UPDATE postrider.repair r SET state = 'done', finished_at = now() FROM pg_replication_slots s, ours \
               WHERE r.pipeline = $1 AND r.shard = $5 AND r.state = 'publishing' AND s.slot_name = r.slot \
                 AND s.confirmed_flush_lsn = r.slot_created_lsn AND s.wal_status IS DISTINCT FROM 'lost' \
                 AND NOT EXISTS (SELECT FROM postrider.repair_page p \
                   WHERE p.pipeline = $1 AND p.shard = $5) \
               RETURNING r.slot, r.slot_created_lsn AS at, r.snapshot, \
                 r.kind = 'backfill' OR r.selection IN ('all', 'unmarked') AS whole), \
             bound AS ( \
               UPDATE postrider.cursor c SET system_identifier = {SYSTEM_IDENTIFIER_SQL}, \
                 timeline = {TIMELINE_SQL}, slot = done.slot, slot_created_lsn = done.at, publication = $2, \
                 messages = $3, watermark = done.at, flush_limit = done.at, partial_commit_lsn = NULL, \
                 partial_ordinal = NULL, resolved_snapshot = done.snapshot, pending_snapshot = NULL, \
                 pending_lsn = NULL, updated_at = now(), \
                 before_slot = CASE WHEN done.whole THEN {NOTHING_BEFORE} ELSE c.before_slot END \
               FROM done WHERE c.pipeline = $1 AND c.shard = $5 RETURNING 1) \
             SELECT EXISTS (SELECT FROM bound), EXISTS (SELECT FROM ours)"
        );
        let key = &names.key;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&key.pipeline, &names.publication, &messages, &epoch, &key.shard];
        let answer = self.client().query_one(&sql, &parameters).await.map_err(failed)?;
        if !answer.try_get::<_, bool>(1).map_err(failed)? {
            return Ok(RepairOutcome::TakenOver);
        }
        let bound: bool = answer.try_get(0).map_err(failed)?;
        let row = row::read(self.client(), key).await?;
        Ok(row
            .filter(|_| bound)
            .map_or(RepairOutcome::SlotChanged, |row| RepairOutcome::Done(Box::new(row))))
    }

    /// Waits until the session ends, and returns why. Cancel-safe.
    pub async fn closed(&mut self) -> SourceError {
        self.control.closed().await
    }
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use RowOutcome::{Held, Published};

    /// Ids 0 to 3 were searched for: 1 has two rows, 2 has none.
    #[test]
    fn id_stays_on_the_list_until_each_of_its_rows_is_settled() {
        let ids: Vec<String> = (0..6).map(|id| id.to_string()).collect();
        let mut page = ListPage::new((1, ids), vec![0, 1, 1, 3], 4);
        assert_eq!(page.settle(&[Published, Published, Held, Held]), (vec![0], 1));
        assert_eq!(page.left(), ["1", "3", "4", "5"]);
        // Rows that were settled before are among the held rows now.
        assert_eq!(page.settle(&[Held, Held, Published, Held]), (vec![1], 0));
        assert_eq!(page.settle(&[Held, Held, Held, Held]), (vec![], 0));
        assert_eq!(page.left(), ["3", "4", "5"]);
    }
}
