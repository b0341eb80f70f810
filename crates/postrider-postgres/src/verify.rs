//! The outbox table as `postrider verify` reads it: in one snapshot, each row with what the tables of the pipeline know
//! of its event. Nothing is locked or written.
//!
//! A row does not record where its transaction committed, so no position tells whether its event is published. The
//! cursor row keeps a snapshot whose transactions are all resolved ([`Method`]): an event of such a transaction was
//! acknowledged by the broker, or is in the parked table. A status of the layout proves the same of its row. Of any
//! other row nothing is proven, and it counts as not reached.
//!
//! The cursor row, the parked table and the outbox are read in the same snapshot, so a row cannot be resolved by the
//! one and unknown to the other.

use crate::control::Control;
use crate::names::{ident, literal};
use crate::poll::PollSpec;
use crate::poll::by_id::OutboxTable;
use crate::repair::{Method, Selection, seen};
use crate::store::cursor::NOTHING_BEFORE;
use crate::wire::Lsn;
use futures_util::TryStreamExt;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{SourceError, SourceErrorKind};
use postrider_core::row::{OwnedTable, Row, TableId};
use postrider_core::row_buffer::RowBuffer;
use postrider_core::timestamp::Timestamp;
use std::fmt;
use std::pin::Pin;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream};

/// Bytes of rows that are kept at a time, plus at most one row.
const FETCH_BYTES: usize = 4 << 20;

/// Rows of one fetch.
const FETCH_ROWS: usize = 5_000;

/// The beginning of a snapshot that everything is read in. No statement has a time limit: the table may be large.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL statement_timeout = 0";

/// What the tables of the pipeline know of the event of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownEvent {
    /// Its transaction is resolved, or its row has the status of a published row: the broker has acknowledged it.
    Published,
    /// It is parked, and will be attempted again, or waits behind an earlier event of its aggregate.
    Parked,
    /// It is parked and dead: only an operator continues it.
    Dead,
    /// An operator has skipped it.
    Skipped,
    /// Its row is from before the slot, or was written when the slot was created: no stream has sent it.
    Before,
    /// As [`Self::Published`], but its own time is before the first start of the pipeline. The row may be from before
    /// the slot, and updated since; or marked by another publisher.
    MayBeBefore,
    /// It is not known to be published yet.
    NotReached,
}

impl KnownEvent {
    fn read(code: &str) -> Self {
        match code {
            "published" => Self::Published,
            "parked" => Self::Parked,
            "dead" => Self::Dead,
            "skipped" => Self::Skipped,
            "before" => Self::Before,
            "may_be_before" => Self::MayBeBefore,
            _ => Self::NotReached,
        }
    }
}

/// Which rows are read, and what is proven about them.
#[derive(Clone, Debug)]
pub struct VerifyQuery<'a> {
    /// The table.
    pub table: PollSpec,
    /// The pipeline only polls.
    pub polls_only: bool,
    /// Published rows get the status of the layout.
    pub marked: bool,
    /// Rows not older than this, by the time column.
    pub since: Option<Timestamp>,
    /// Rows older than this.
    pub until: Option<Timestamp>,
    /// A column that is read as NULL, because its values may be large and are not compared.
    pub without: Option<&'a str>,
}

/// The state of the pipeline in the snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifySnapshot {
    /// The time of the snapshot.
    pub at: Timestamp,
    /// The end of the WAL; on a standby what was replayed.
    pub wal_end: Lsn,
    /// The position of the cursor row; `None` without a cursor row.
    pub watermark: Option<Lsn>,
    /// Number of the table that the position belongs to, if a process has recorded it.
    pub of_table: Option<u32>,
    /// Number of the table.
    pub table: u32,
    /// What `route.topic` was when a process last recorded it.
    pub of_topic: Option<String>,
    /// Transactions are known to be resolved.
    pub has_resolved: bool,
    /// A repair or a backfill is in progress.
    pub repair: bool,
    /// Every row from before the slot is published, or rows have a time that distinguishes them.
    pub tells_before: bool,
}

/// A row of the outbox.
#[derive(Clone, Copy)]
pub struct VerifyRow<'a> {
    /// What is known of its event.
    pub known: KnownEvent,
    /// Its own time. Unit: microseconds since 1970.
    pub time_micros: Option<i64>,
    /// The row, for the mapper.
    pub row: Row<'a>,
}

/// Sizes only: a row is other people's data.
impl fmt::Debug for VerifyRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyRow").field("known", &self.known).finish_non_exhaustive()
    }
}

/// Rows that were read together.
#[derive(Default)]
struct VerifyRows {
    rows: RowBuffer,
    known: Vec<(KnownEvent, Option<i64>)>,
}

/// The rows of the outbox in one snapshot. Dropping it ends the session, and with it the snapshot.
pub struct VerifyReader {
    control: Control,
    table: OutboxTable,
    description: OwnedTable,
    snapshot: VerifySnapshot,
    has_time: bool,
    answer: Option<Pin<Box<SimpleQueryStream>>>,
    batch: VerifyRows,
}

impl fmt::Debug for VerifyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyReader").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl VerifyReader {
    /// Opens a session, takes the snapshot, and begins to read.
    ///
    /// # Errors
    /// An error of the server or of the connection; the table or a column does not exist.
    pub async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        query: &VerifyQuery<'_>,
    ) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control(format!("read table {}", query.table.table), e);
        let control = Control::connect(conninfo, application_name).await?;
        let client = control.client();
        client.batch_execute(BEGIN).await.map_err(failed)?;
        // Without marks the table need not have their columns.
        let spec = query.table.clone();
        let spec = if query.marked { spec } else { spec.without_status() };
        let table = OutboxTable::read(client, spec).await?;
        let description = table.description();
        let cursor = CursorFacts::read(client, &table).await?;
        let sql = declare(client, query, &table, &cursor).await?;
        client.batch_execute(&sql).await.map_err(failed)?;
        let has_time = time(query, &table).is_some();
        let snapshot = cursor.snapshot(query, description.id.0, has_time);
        let batch = VerifyRows::default();
        Ok(Self { control, table, description, snapshot, has_time, answer: None, batch })
    }

    /// The state of the pipeline in the snapshot.
    pub fn snapshot(&self) -> &VerifySnapshot {
        &self.snapshot
    }

    /// The description of the table.
    pub fn description(&self) -> &OwnedTable {
        &self.description
    }

    /// Whether the rows have times that [`VerifyQuery::since`] can be compared with.
    pub fn has_time(&self) -> bool {
        self.has_time
    }

    /// Whether ids are numbers.
    pub fn id_is_number(&self) -> bool {
        self.table.id_is_number()
    }

    /// Reads the next rows, which [`Self::rows`] returns. False at the end.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn next(&mut self) -> Result<bool, SourceError> {
        let failed = |e| SourceError::control("fetch rows of the outbox table", e);
        // The memory of the rows before them is free first.
        self.batch = VerifyRows::default();
        loop {
            let (mut answer, is_new) = if let Some(answer) = self.answer.take() {
                (answer, false)
            } else {
                let sql = format!("FETCH {FETCH_ROWS} FROM postrider_verify");
                let answer = self.control.client().simple_query_raw(&sql).await;
                (Box::pin(answer.map_err(failed)?), true)
            };
            let mut rows = 0;
            while let Some(message) = answer.try_next().await.map_err(failed)? {
                let SimpleQueryMessage::Row(row) = message else { continue };
                self.batch.push(self.description.id, &row)?;
                rows += 1;
                if self.batch.rows.size_bytes() >= FETCH_BYTES {
                    self.answer = Some(answer);
                    return Ok(true);
                }
            }
            if rows > 0 {
                return Ok(true);
            }
            // A fetch without rows is the end; the end of an answer that was read in parts is not.
            if is_new {
                return Ok(false);
            }
        }
    }

    /// The rows that were read.
    pub fn rows(&self) -> impl Iterator<Item = VerifyRow<'_>> {
        let known = self.batch.known.iter().copied();
        known.zip(self.batch.rows.iter()).map(|((known, time_micros), row)| VerifyRow {
            known,
            time_micros,
            row,
        })
    }
}

impl VerifyRows {
    /// Adds a row of the answer: state, time, and the cells.
    fn push(&mut self, table: TableId, row: &SimpleQueryRow) -> Result<(), SourceError> {
        let known = KnownEvent::read(text(row, 0)?.unwrap_or_default());
        let time = text(row, 1)?.and_then(|micros| micros.parse().ok());
        let mut values = self.rows.push_row(table);
        for column in 2..row.len() {
            values.push_cell(text(row, column)?.map(str::as_bytes));
        }
        self.known.push((known, time));
        Ok(())
    }
}

fn text(row: &SimpleQueryRow, index: usize) -> Result<Option<&str>, SourceError> {
    row.try_get(index).map_err(|error| {
        SourceError::new(SourceErrorKind::Protocol, "read a row of the outbox table")
            .caused_by(error)
    })
}

/// What the cursor row says.
#[derive(Default)]
struct CursorFacts {
    at_micros: i64,
    wal_end: Lsn,
    watermark: Option<Lsn>,
    /// What is known to be resolved of the stream; `None` without a slot.
    resolved: Option<String>,
    before_slot: Option<String>,
    /// Every row from before the slot is published.
    is_whole: bool,
    of_table: Option<u32>,
    of_topic: Option<String>,
    began_seconds: Option<i64>,
    repair: bool,
    has_parked: bool,
}

impl CursorFacts {
    async fn read(client: &Client, table: &OutboxTable) -> Result<Self, SourceError> {
        let key = &table.spec().key;
        let failed = |e| SourceError::control(format!("read the position of pipeline {key}"), e);
        let sql = format!(
            "SELECT (pg_catalog.date_part('epoch', pg_catalog.now()) * 1e6)::int8, \
               CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
                 ELSE pg_catalog.pg_current_wal_insert_lsn() END, \
               c.watermark, CASE WHEN c.slot <> '' THEN c.resolved_snapshot::text END, c.before_slot::text, \
               coalesce(c.before_slot::text = {NOTHING_BEFORE}::text, false), c.of_table_oid, c.of_topic, \
               nullif(c.histories[1], 0), \
               EXISTS (SELECT FROM postrider.repair AS r \
                 WHERE r.pipeline = $1 AND r.shard = $2 AND r.state <> 'done'), \
               EXISTS (SELECT FROM postrider.parked AS p WHERE p.pipeline = $1 AND p.shard = $2) \
             FROM (SELECT 1) AS one LEFT JOIN postrider.cursor AS c ON c.pipeline = $1 AND c.shard = $2"
        );
        let row = client.query_one(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
        let lsn =
            |at: usize| row.try_get::<_, Option<PgLsn>>(at).map(|at| at.map(crate::catalog::lsn));
        let read = || -> Result<Self, tokio_postgres::Error> {
            Ok(Self {
                at_micros: row.try_get(0)?,
                wal_end: lsn(1)?.unwrap_or(Lsn::ZERO),
                watermark: lsn(2)?,
                resolved: row.try_get(3)?,
                before_slot: row.try_get(4)?,
                is_whole: row.try_get(5)?,
                of_table: row.try_get(6)?,
                of_topic: row.try_get(7)?,
                began_seconds: row.try_get(8)?,
                repair: row.try_get(9)?,
                has_parked: row.try_get(10)?,
            })
        };
        read().map_err(failed)
    }

    fn snapshot(self, query: &VerifyQuery<'_>, table: u32, has_time: bool) -> VerifySnapshot {
        VerifySnapshot {
            at: Timestamp { unix_micros: self.at_micros },
            wal_end: self.wal_end,
            watermark: self.watermark,
            of_table: self.of_table,
            table,
            of_topic: self.of_topic,
            has_resolved: query.marked || (!query.polls_only && self.resolved.is_some()),
            repair: self.repair,
            tells_before: self.is_whole || has_time,
        }
    }
}

/// The statement that begins to read the rows.
async fn declare(
    client: &Client,
    query: &VerifyQuery<'_>,
    table: &OutboxTable,
    cursor: &CursorFacts,
) -> Result<String, SourceError> {
    let resolved = cursor.resolved.as_deref().filter(|_| !query.polls_only);
    let method = Method::of(client, Selection::Unresolved, resolved).await?;
    let time = time(query, table);
    let (before, may_be_before) = before(cursor, time.as_deref());
    let resolved = resolved.and_then(|known| method.resolved(known));
    let marked = query.marked.then(|| format!("NOT ({})", table.unmarked()));
    let proofs: Vec<String> = resolved.into_iter().chain(marked).collect();
    let published = if cursor.watermark.is_none() || proofs.is_empty() {
        "false".to_owned()
    } else {
        format!("coalesce({}, false)", proofs.join(" OR "))
    };
    let parked = if cursor.has_parked { parked(table) } else { "NULL".to_owned() };
    let micros = time.as_ref().map_or_else(
        || "NULL".to_owned(),
        |time| {
            format!("CASE WHEN isfinite({time}) THEN floor(extract(epoch FROM {time}) * 1000000)::int8 END")
        },
    );
    let columns: Vec<String> = table
        .column_names()
        .map(|name| match query.without {
            Some(without) if without == name => "NULL".to_owned(),
            Some(_) | None => format!("o.{}", ident(name)),
        })
        .collect();
    Ok(format!(
        "DECLARE postrider_verify NO SCROLL CURSOR FOR\n  \
         SELECT CASE k.parked WHEN 'dead' THEN 'dead' WHEN 'skipped' THEN 'skipped' WHEN 'done' THEN 'published'\n    \
           WHEN 'waiting' THEN 'parked' WHEN 'behind' THEN 'parked' WHEN 'due' THEN 'parked'\n    \
           ELSE CASE WHEN {before} THEN 'before' WHEN NOT {published} THEN 'unknown'\n    \
           WHEN {may_be_before} THEN 'may_be_before' ELSE 'published' END END,\n    \
           {micros}, {columns}\n  \
         FROM {name} AS o CROSS JOIN LATERAL (SELECT {parked} AS parked) AS k\n  WHERE {filter}",
        columns = columns.join(", "),
        name = table.spec().table,
        filter = range(query, time.as_deref()),
    ))
}

/// The row's own time, as SQL; `None` without a column of times whose zone is known.
fn time(query: &VerifyQuery<'_>, table: &OutboxTable) -> Option<String> {
    let column = query.table.time.as_deref()?;
    let known = query.table.zone.is_some() || !table.lacks_zone(column);
    let time = table.instant(column).filter(|_| known)?;
    Some(format!("({time})::timestamptz"))
}

/// Whether the row is from before the slot, and whether it may be. A snapshot shows the one of rows that nobody has
/// updated since. The first history of the pipeline is the time of its first start; rows that were written between the
/// creation of the slot and that start are published too.
fn before(cursor: &CursorFacts, time: Option<&str>) -> (String, String) {
    let never = || "false".to_owned();
    if cursor.is_whole {
        return (never(), never());
    }
    let by_snapshot = cursor
        .before_slot
        .as_deref()
        .map(|snapshot| format!("coalesce({}, false)", seen(snapshot)));
    let by_time = cursor.began_seconds.zip(time).map(|(began, time)| {
        format!("coalesce({time} < timestamptz 'epoch' + {began} * interval '1 second', false)")
    });
    (by_snapshot.unwrap_or_else(never), by_time.unwrap_or_else(never))
}

/// The state of the parked event that the row is, or may be: of several the one that is not resolved. A row that was
/// updated since is still that event, so transactions are not compared.
fn parked(table: &OutboxTable) -> String {
    let key = &table.spec().key;
    let (kind, id) = table.aggregate();
    format!(
        "(SELECT p.state FROM postrider.parked AS p WHERE p.pipeline = {pipeline} AND p.shard = {shard} \
         AND p.event_id = {event} AND coalesce(({kind}, {id}) = (p.aggregate_type, p.aggregate_id), true) \
         ORDER BY p.state IN ('done', 'skipped'), p.commit_lsn DESC, p.ordinal DESC LIMIT 1)",
        pipeline = literal(&key.pipeline),
        shard = key.shard,
        event = table.id(),
    )
}

fn range(query: &VerifyQuery<'_>, time: Option<&str>) -> String {
    let Some(time) = time else { return "true".to_owned() };
    let bounds = [(query.since, ">="), (query.until, "<")];
    let bounds = bounds.into_iter().filter_map(|(bound, sign)| {
        let micros = bound?.unix_micros;
        Some(format!("{time} {sign} timestamptz 'epoch' + interval '{micros} microseconds'"))
    });
    let bounds: Vec<String> = bounds.collect();
    if bounds.is_empty() { "true".to_owned() } else { bounds.join(" AND ") }
}
