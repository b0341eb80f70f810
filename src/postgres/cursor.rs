//! The durable cursor: one row a pipeline in `postrider.cursor`.
//!
//! Owns the row's meaning and its one-statement write. Whether a stream may start from it is `fence`'s to say.
//!
//! The slot's own position is not durable: after a crash of the server (before 17 after any restart) it stands where
//! `restart_lsn` last moved. The row is what bounds the events that are sent twice.
//!
//! Order of writes, which makes [`Cursor::flush_limit`] a proof: the row is committed *and flushed* first
//! (`synchronous_commit = local`), then a position up to `flush_limit` may be confirmed. A slot that stands beyond
//! the limit was moved, or made again, by somebody else; `relay` keeps the order. With `synchronous_commit = off` a
//! crash of the server could keep the slot's move and lose the row's, and the pipeline would halt for nothing.

use super::error::SourceError;
use super::server::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL, lsn, pg_lsn};
use crate::event::Position;
use crate::lsn::{Lsn, Watermark};
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row};

/// The row of one pipeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The pipeline.
    pub pipeline: String,
    /// The cluster it belongs to, as `IDENTIFY_SYSTEM` prints it.
    pub system_identifier: String,
    /// The timeline of the last write.
    pub timeline: u32,
    /// The slot.
    pub slot: String,
    /// Where the slot was created, or adopted: which incarnation of the name this row belongs to.
    pub slot_created_lsn: Lsn,
    /// The publication that was streamed.
    pub publication: String,
    /// Whether logical messages were asked for: they take part in ordinals.
    pub messages: bool,
    /// Every event below it is resolved.
    pub watermark: Watermark,
    /// The highest position that may have been confirmed; at least the watermark.
    pub flush_limit: Lsn,
    /// The transaction at the watermark of which every change with a lower ordinal than this is resolved.
    pub partial: Option<Position>,
    /// Who may write: raised by [`take_over`], so that a relay which lost the pipeline writes nothing more.
    pub owner_epoch: i64,
}

/// What became of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a row that was not stored does not allow its position to be confirmed"]
pub enum Written {
    /// Stored, and on the server's disk.
    Stored,
    /// Not stored: the row is further on already. Another process of this pipeline wrote it.
    Behind(Watermark),
    /// Not stored: the row now belongs to another slot, incarnation or cluster. Somebody ran `setup`.
    Rebound(Box<Cursor>),
    /// Not stored: another process has taken the pipeline over.
    TakenOver,
    /// Not stored: there is no row.
    Missing,
}

const COLUMNS: &str = "pipeline, system_identifier, timeline, slot, slot_created_lsn, publication, \
                       messages, watermark, flush_limit, partial_commit_lsn, partial_ordinal, \
                       owner_epoch";

/// What a table can be asked for when the slot is gone (`repair`): a snapshot all of whose transactions are resolved.
///
/// A transaction that a statement's snapshot sees has written its commit record, so that record lies before an end of
/// WAL that is read later; once the watermark (`$8`) has reached that end, all that the snapshot sees is resolved. One
/// snapshot waits for its turn at a time, so the row's size does not depend on the lag.
const LEDGER: &str = "\
resolved_snapshot = CASE WHEN pending_lsn <= $8 THEN pending_snapshot ELSE resolved_snapshot END, \
pending_snapshot = CASE WHEN pending_lsn > $8 THEN pending_snapshot \
                        ELSE pg_catalog.pg_current_snapshot() END, \
pending_lsn = CASE WHEN pending_lsn > $8 THEN pending_lsn \
                   ELSE pg_catalog.pg_current_wal_insert_lsn() END";

/// The row of `pipeline`, `None` if there is none.
pub async fn read(client: &Client, pipeline: &str) -> Result<Option<Cursor>, SourceError> {
    read_columns(client, pipeline, COLUMNS).await
}

/// The same where the schema is still of version 1: the owner's epoch was not kept.
pub(super) async fn read_version_1(
    client: &Client,
    pipeline: &str,
) -> Result<Option<Cursor>, SourceError> {
    read_columns(client, pipeline, &COLUMNS.replace("owner_epoch", "0::pg_catalog.int8")).await
}

async fn read_columns(
    client: &Client,
    pipeline: &str,
    columns: &str,
) -> Result<Option<Cursor>, SourceError> {
    let failed = |e| SourceError::control(format!("read the cursor of pipeline {pipeline:?}"), e);
    // A row without a slot is a polling pipeline's: it says whose turn it is, and no position.
    let sql = format!("SELECT {columns} FROM postrider.cursor WHERE pipeline = $1 AND slot <> ''");
    let row = client.query_opt(&sql, &[&pipeline]).await.map_err(failed)?;
    row.map(|row| from_row(&row, 0).map_err(failed)).transpose()
}

/// Whether the slot was made while the table was polled, and polling has not come to its end: what was committed before
/// the slot is in the table alone.
///
/// # Errors
/// What the server says.
pub async fn polls_on(client: &Client, pipeline: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("read the cursor of pipeline {pipeline:?}"), e);
    let sql = "SELECT polls_on FROM postrider.cursor WHERE pipeline = $1";
    let row = client.query_opt(sql, &[&pipeline]).await.map_err(failed)?;
    row.map_or(Ok(false), |row| row.try_get(0).map_err(failed))
}

/// Polling has published all that was committed before the slot. `epoch`: the owner's; another's row is not touched.
///
/// # Errors
/// What the server says.
pub async fn polled(client: &Client, pipeline: &str, epoch: i64) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("end the polling of pipeline {pipeline:?}"), e);
    let sql = "UPDATE postrider.cursor SET polls_on = false \
               WHERE pipeline = $1 AND owner_epoch = $2 AND polls_on";
    client.execute(sql, &[&pipeline, &epoch]).await.map(drop).map_err(failed)
}

/// What a [`seize`] found and made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seized {
    /// The epoch of the owner before.
    pub before: i64,
    /// Ours.
    pub epoch: i64,
    /// The row's watermark: nobody with an older epoch moves it any more.
    pub watermark: Watermark,
    /// The row's partial transaction, by the ordinals of the two options below.
    pub partial: Option<Position>,
    /// The publication that was streamed.
    pub publication: String,
    /// Whether logical messages were asked for.
    pub messages: bool,
}

/// Takes the pipeline over as [`take_over`] does, and reads how far the owner before has got: a write of it that was
/// under way when the row was first read is in this.
///
/// # Errors
/// As [`take_over`].
pub async fn seize(client: &Client, pipeline: &str) -> Result<Seized, SourceError> {
    let failed = |e| SourceError::control(format!("take pipeline {pipeline:?} over"), e);
    let sql = "WITH before AS ( \
                 SELECT owner_epoch AS epoch FROM postrider.cursor WHERE pipeline = $1 FOR UPDATE) \
               UPDATE postrider.cursor c SET updated_at = pg_catalog.now(), \
                 owner_epoch = greatest(before.epoch + 1, (pg_catalog.date_part('epoch', \
                   pg_catalog.clock_timestamp()) * 1e6)::pg_catalog.int8) \
               FROM before WHERE c.pipeline = $1 \
               RETURNING before.epoch, c.owner_epoch, c.watermark, c.partial_commit_lsn, \
                 c.partial_ordinal, c.publication, c.messages";
    let row = client.query_one(sql, &[&pipeline]).await.map_err(failed)?;
    let commit_lsn: Option<PgLsn> = row.try_get(3).map_err(failed)?;
    let ordinal: Option<i64> = row.try_get(4).map_err(failed)?;
    Ok(Seized {
        before: row.try_get(0).map_err(failed)?,
        epoch: row.try_get(1).map_err(failed)?,
        watermark: Watermark::resumed(lsn(row.try_get(2).map_err(failed)?)),
        partial: commit_lsn.zip(ordinal).map(|(commit_lsn, ordinal)| Position {
            commit_lsn: lsn(commit_lsn),
            ordinal: ordinal.cast_unsigned(),
        }),
        publication: row.try_get(5).map_err(failed)?,
        messages: row.try_get(6).map_err(failed)?,
    })
}

/// Takes the pipeline over: raises the owner's epoch and returns it. From then on whoever writes with an older one
/// stores nothing. A write of the old owner that is under way is waited for (it holds the row's lock), so what is read
/// after this is all there will be.
///
/// The epoch is also a time (microseconds since 1970), so that it is not met again where the row was deleted and made
/// anew, or a failover lost its last move.
///
/// # Errors
/// What the server says; [`SourceErrorKind::Closed`](super::SourceErrorKind::Closed) where there is no row.
pub async fn take_over(client: &Client, pipeline: &str) -> Result<i64, SourceError> {
    let failed = |e| SourceError::control(format!("take pipeline {pipeline:?} over"), e);
    let sql = "UPDATE postrider.cursor SET updated_at = pg_catalog.now(), \
                 owner_epoch = greatest(owner_epoch + 1, (pg_catalog.date_part('epoch', \
                   pg_catalog.clock_timestamp()) * 1e6)::pg_catalog.int8) \
               WHERE pipeline = $1 RETURNING owner_epoch";
    client.query_one(sql, &[&pipeline]).await.and_then(|row| row.try_get(0)).map_err(failed)
}

/// Moves the row to `cursor`, in one statement: never backwards, only if it still belongs to the same slot of the same
/// cluster, and only for its owner. Returns when the commit is on the server's disk (the session's
/// `synchronous_commit` is `local`).
pub async fn write(client: &Client, cursor: &Cursor) -> Result<Written, SourceError> {
    let failed =
        |e| SourceError::control(format!("write the cursor of pipeline {:?}", cursor.pipeline), e);
    let sql = format!(
        "WITH stored AS ( \
           UPDATE postrider.cursor SET timeline = $3, publication = $6, messages = $7, \
             watermark = $8, flush_limit = greatest(flush_limit, $9::pg_catalog.pg_lsn, $8), \
             partial_commit_lsn = $10, partial_ordinal = $11, updated_at = pg_catalog.now(), {LEDGER} \
           WHERE pipeline = $1 AND system_identifier = $2 AND slot = $4 \
             AND slot_created_lsn = $5 AND watermark <= $8 AND owner_epoch = $12 \
           RETURNING 1) \
         SELECT EXISTS (SELECT FROM stored), {COLUMNS} \
         FROM (SELECT) one LEFT JOIN postrider.cursor ON pipeline = $1"
    );
    let values = Values::of(cursor);
    let row = client.query_one(&sql, &values.parameters(cursor)).await.map_err(failed)?;
    if row.try_get(0).map_err(failed)? {
        return Ok(Written::Stored);
    }
    if row.try_get::<_, Option<&str>>(1).map_err(failed)?.is_none() {
        return Ok(Written::Missing);
    }
    let found = from_row(&row, 1).map_err(failed)?;
    let ours = found.system_identifier == cursor.system_identifier
        && found.slot == cursor.slot
        && found.slot_created_lsn == cursor.slot_created_lsn;
    Ok(if !ours {
        Written::Rebound(Box::new(found))
    } else if found.owner_epoch != cursor.owner_epoch {
        Written::TakenOver
    } else {
        Written::Behind(found.watermark)
    })
}

/// Makes the row, where there is none; an existing one is left alone. Whether it was made.
///
/// For a slot that is adopted: `setup` does it, and `run` where the slot stands and the row was never made.
pub async fn create(client: &Client, cursor: &Cursor) -> Result<bool, SourceError> {
    let failed =
        |e| SourceError::control(format!("make the cursor of pipeline {:?}", cursor.pipeline), e);
    let sql = format!(
        "INSERT INTO postrider.cursor ({COLUMNS}) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, greatest($9::pg_catalog.pg_lsn, $8), $10, $11, $12) \
         {OVER_POLLING}"
    );
    let values = Values::of(cursor);
    let rows = client.execute(&sql, &values.parameters(cursor)).await.map_err(failed)?;
    Ok(rows == 1)
}

/// Makes a row for a pipeline that polls and has none: it has no slot and no position, and serves for
/// [`take_over`] alone.
///
/// # Errors
/// What the server says.
pub async fn create_for_polling(client: &Client, pipeline: &str) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("make the cursor of pipeline {pipeline:?}"), e);
    let sql = format!(
        "INSERT INTO postrider.cursor (pipeline, system_identifier, timeline, slot, slot_created_lsn, \
           publication, messages, watermark, flush_limit) \
         VALUES ($1, {SYSTEM_IDENTIFIER_SQL}, {TIMELINE_SQL}, '', '0/0', '', false, '0/0', '0/0') \
         ON CONFLICT (pipeline) DO NOTHING"
    );
    client.execute(&sql, &[&pipeline]).await.map(drop).map_err(failed)
}

/// A row that exists stays as it is, unless it is a polling pipeline's.
pub(super) const OVER_POLLING: &str = "\
ON CONFLICT (pipeline) DO UPDATE SET system_identifier = excluded.system_identifier,
    timeline = excluded.timeline, slot = excluded.slot, slot_created_lsn = excluded.slot_created_lsn,
    publication = excluded.publication, messages = excluded.messages,
    watermark = excluded.watermark, flush_limit = excluded.flush_limit,
    partial_commit_lsn = excluded.partial_commit_lsn, partial_ordinal = excluded.partial_ordinal,
    resolved_snapshot = excluded.resolved_snapshot, pending_snapshot = NULL, pending_lsn = NULL
    WHERE postrider.cursor.slot = ''";

/// What the server's types want otherwise than [`Cursor`] has it.
struct Values {
    timeline: i64,
    slot_created_lsn: PgLsn,
    watermark: PgLsn,
    flush_limit: PgLsn,
    partial_commit_lsn: Option<PgLsn>,
    partial_ordinal: Option<i64>,
}

impl Values {
    fn of(cursor: &Cursor) -> Self {
        Self {
            timeline: i64::from(cursor.timeline),
            slot_created_lsn: pg_lsn(cursor.slot_created_lsn),
            watermark: pg_lsn(cursor.watermark.lsn()),
            flush_limit: pg_lsn(cursor.flush_limit),
            partial_commit_lsn: cursor.partial.map(|partial| pg_lsn(partial.commit_lsn)),
            partial_ordinal: cursor.partial.map(|partial| partial.ordinal.cast_signed()),
        }
    }

    /// In the order of [`COLUMNS`].
    fn parameters<'a>(&'a self, cursor: &'a Cursor) -> [&'a (dyn ToSql + Sync); 12] {
        [
            &cursor.pipeline,
            &cursor.system_identifier,
            &self.timeline,
            &cursor.slot,
            &self.slot_created_lsn,
            &cursor.publication,
            &cursor.messages,
            &self.watermark,
            &self.flush_limit,
            &self.partial_commit_lsn,
            &self.partial_ordinal,
            &cursor.owner_epoch,
        ]
    }
}

fn from_row(row: &Row, first: usize) -> Result<Cursor, tokio_postgres::Error> {
    let commit_lsn: Option<_> = row.try_get(first + 9)?;
    let ordinal: Option<i64> = row.try_get(first + 10)?;
    Ok(Cursor {
        pipeline: row.try_get(first)?,
        system_identifier: row.try_get(first + 1)?,
        timeline: u32::try_from(row.try_get::<_, i64>(first + 2)?).unwrap_or(u32::MAX),
        slot: row.try_get(first + 3)?,
        slot_created_lsn: lsn(row.try_get(first + 4)?),
        publication: row.try_get(first + 5)?,
        messages: row.try_get(first + 6)?,
        watermark: Watermark::resumed(lsn(row.try_get(first + 7)?)),
        flush_limit: lsn(row.try_get(first + 8)?),
        partial: commit_lsn.zip(ordinal).map(|(commit_lsn, ordinal)| Position {
            commit_lsn: lsn(commit_lsn),
            ordinal: ordinal.cast_unsigned(),
        }),
        owner_epoch: row.try_get(first + 11)?,
    })
}
