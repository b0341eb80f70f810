//! The database side of a replay: its row in `postrider.replay` (the only table that is written), the lock that allows
//! one replay at a time, and the outbox table's rows in order. WAL is read through a bookmark's slot by `WalStream`.

mod table;

pub use table::{FetchedRows, OutboxRows, RowSelection, order_in_words, time_without_zone};

use crate::catalog::{lsn, pg_lsn};
use crate::error::SourceError;
use crate::names::literal;
use crate::wire::Lsn;
use postrider_core::event::Position;
use postrider_core::store::PipelineKey;
use postrider_core::timestamp::Timestamp;
use postrider_core::zone::Zone;
use std::future::Future;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

/// Only one replay of a shard of a pipeline at a time: the session holds the lock until it ends. `$1` is the text of
/// [`lock_text`].
const LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1::text, 0))";

const HOLDER: &str = "\
SELECT l.pid FROM pg_catalog.pg_locks l, pg_catalog.hashtextextended($1::text, 0) AS k(key) \
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
  AND l.classid::int8 = (k.key >> 32) & 4294967295 AND l.objid::int8 = k.key & 4294967295";

/// What the key of the lock is a hash of. For the first shard the text is that of versions before there were shards, so
/// that a replay of such a version and one of this version exclude each other.
fn lock_text(key: &PipelineKey) -> String {
    match key.shard {
        0 => format!("postrider replay {}", key.pipeline),
        shard => format!("postrider replay/{shard} {}", key.pipeline),
    }
}

/// Takes the lock of the pipeline's replays for this session. Returns the backend that has it if that is another; 0 if
/// that backend has just ended.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn lock(client: &Client, key: &PipelineKey) -> Result<Option<u32>, SourceError> {
    let failed = |e| SourceError::control("take the lock of replays", e);
    let text = lock_text(key);
    let row = client.query_one(LOCK, &[&text]).await.map_err(failed)?;
    if row.try_get::<_, bool>(0).map_err(failed)? {
        return Ok(None);
    }
    let holder = client.query_opt(HOLDER, &[&text]).await.map_err(failed)?;
    let pid = holder.map(|row| row.try_get::<_, i32>(0)).transpose().map_err(failed)?;
    Ok(Some(pid.unwrap_or_default().cast_unsigned()))
}

/// The server's time as part of a name: `20260301T040000`, UTC.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn stamp(client: &Client) -> Result<String, SourceError> {
    let sql =
        "SELECT pg_catalog.to_char(pg_catalog.now() AT TIME ZONE 'UTC', 'YYYYMMDD\"T\"HH24MISS')";
    let row = client.query_one(sql, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(|e| SourceError::control("read the time", e))
}

/// Parses a time as PostgreSQL does. A time without a zone is read as one of `zone`, or of UTC without a zone. Returns
/// `None` if the text is no time. Of an ambiguous local time, `later` selects the later instant.
///
/// # Errors
/// Any other error of the server or of the connection.
pub async fn time(
    client: &Client,
    text: &str,
    zone: Option<&Zone>,
    later: bool,
) -> Result<Option<Timestamp>, SourceError> {
    let Some(at) = read_in(client, text, "UTC").await? else { return Ok(None) };
    let Some(zone) = zone else { return Ok(Some(at)) };
    // Written with a zone, the text means the same time in every session zone.
    if read_in(client, text, "Etc/GMT+11").await? == Some(at) {
        return Ok(Some(at));
    }
    // In the zone, so that "today" is the current day there.
    let sql = "SELECT (pg_catalog.date_part('epoch', $1::text::timestamptz AT TIME ZONE $2::text) * 1e6)::int8";
    let local: Result<i64, SourceError> = in_zone(client, zone.name(), async {
        let row = client.query_one(sql, &[&text, &zone.name()]).await;
        row.and_then(|row| row.try_get(0)).map_err(|e| SourceError::control("read a time", e))
    })
    .await?;
    let (earlier, last) = zone.instants(local?);
    let unix = if later { last } else { earlier };
    Ok(Some(Timestamp { unix_micros: unix }))
}

/// Parses the text in a session with time zone `zone`.
async fn read_in(
    client: &Client,
    text: &str,
    zone: &str,
) -> Result<Option<Timestamp>, SourceError> {
    let sql = "SELECT (pg_catalog.date_part('epoch', $1::text::timestamptz) * 1e6)::int8 - 946684800000000";
    let read = in_zone(client, zone, async {
        client.query_one(sql, &[&text]).await.and_then(|row| row.try_get(0))
    })
    .await?;
    match read {
        Ok(micros) => Ok(Some(crate::wire::from_pg_micros(micros))),
        Err(error) => {
            let error = SourceError::control("read a time", error);
            // Data exceptions: no time, or a time that has no number, such as infinity.
            let wrong = error.sqlstate().is_some_and(|state| state.class() == "22");
            if wrong { Ok(None) } else { Err(error) }
        }
    }
}

/// Runs something while the session has another time zone than UTC.
async fn in_zone<T>(
    client: &Client,
    zone: &str,
    what: impl Future<Output = T>,
) -> Result<T, SourceError> {
    let set = async |zone: &str| {
        let sql = format!("SET TimeZone = {}", literal(zone));
        client.batch_execute(&sql).await.map_err(|e| SourceError::control("set the time zone", e))
    };
    set(zone).await?;
    let done = what.await;
    set("UTC").await?;
    Ok(done)
}

/// A row of `postrider.replay`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replay {
    /// The replay's name.
    pub name: String,
    /// The request, as JSON.
    pub request: String,
    /// The bookmark whose slot is read; `None` if the table is read.
    pub bookmark: Option<String>,
    /// WAL: transactions that commit at this position or later are not replayed.
    pub until: Option<Lsn>,
    /// WAL: the start position.
    pub from: Option<Lsn>,
    /// WAL: the first position that is not done.
    pub next: Option<Position>,
    /// Table: the id of the last row that is done.
    pub last_id: Option<String>,
    /// The requested ids that were found.
    pub found: Vec<String>,
    /// Events that the broker has acknowledged.
    pub published: u64,
    /// Events that were not published; only the report says why.
    pub refused: u64,
    /// Whether the replay is finished.
    pub finished: bool,
}

/// A replay to begin.
#[derive(Clone, Copy, Debug)]
pub struct NewReplay<'a> {
    /// The replay's name.
    pub name: &'a str,
    /// The request, as JSON.
    pub request: &'a str,
    /// The bookmark whose slot is read; `None` if the table is read.
    pub bookmark: Option<&'a str>,
    /// WAL: the start position.
    pub from: Option<Position>,
    /// WAL: the end position, if it is before the end of WAL.
    pub until: Option<Lsn>,
}

/// The progress of a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SavedPosition {
    /// WAL: the first position that is not done.
    Upto(Position),
    /// Table: the last row that is done.
    Row(Option<String>),
}

/// The counters of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayCounts {
    /// See [`Replay::published`].
    pub published: u64,
    /// See [`Replay::refused`].
    pub refused: u64,
    /// See [`Replay::found`].
    pub found: Vec<String>,
}

const COLUMNS: &str = "name, request, bookmark, from_lsn, until_lsn, next_lsn, next_ordinal, last_id, found, \
                       published, refused, finished_at IS NOT NULL";

/// Reads the row; `None` if there is none of that name.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn find(
    client: &Client,
    key: &PipelineKey,
    name: &str,
) -> Result<Option<Replay>, SourceError> {
    let failed = |e| SourceError::control(format!("read the progress of replay {name:?}"), e);
    let sql = format!(
        "SELECT {COLUMNS} FROM postrider.replay WHERE pipeline = $1 AND shard = $3 AND name = $2"
    );
    let row = client.query_opt(&sql, &[&key.pipeline, &name, &key.shard]).await.map_err(failed)?;
    row.map(|row| from_row(&row).map_err(failed)).transpose()
}

/// Lists the unfinished replays, the newest first.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn names(client: &Client, key: &PipelineKey) -> Result<Vec<String>, SourceError> {
    let failed = |e| SourceError::control("list the replays", e);
    let sql = "SELECT name FROM postrider.replay \
               WHERE pipeline = $1 AND shard = $2 AND finished_at IS NULL ORDER BY started_at DESC";
    let rows = client.query(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

/// Writes the row of a replay and fixes its end: the current end of WAL. The row's own commit comes after it, so the
/// stream reaches the end even if nothing else is written. `None` if the name exists already.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn insert(
    client: &Client,
    key: &PipelineKey,
    new: &NewReplay<'_>,
) -> Result<Option<Replay>, SourceError> {
    let failed = |e| SourceError::control(format!("record replay {:?}", new.name), e);
    // The lock of the cursor row: a statement of retention that decided before this row exists has ended when the lock
    // is granted, and one that decides later sees the row. Where there is no cursor row, retention removes nothing.
    let sql = format!(
        "WITH decided AS MATERIALIZED (SELECT FROM postrider.cursor WHERE pipeline = $1 AND shard = $8 FOR UPDATE) \
         INSERT INTO postrider.replay (pipeline, name, request, source, bookmark, from_lsn, until_lsn, next_lsn, \
           next_ordinal, shard) \
         SELECT $1, $2, $3, CASE WHEN $4::pg_catalog.text IS NULL THEN 'table' ELSE 'wal' END, $4, $5, \
           CASE WHEN $4 IS NOT NULL THEN least($6::pg_catalog.pg_lsn, pg_catalog.pg_current_wal_insert_lsn()) END, \
           $5, $7, $8::pg_catalog.int4 FROM (SELECT count(*) FROM decided) AS locked \
         ON CONFLICT DO NOTHING RETURNING {COLUMNS}"
    );
    let from = new.from.map(|from| pg_lsn(from.commit));
    let ordinal = new.from.map(|from| from.ordinal.cast_signed());
    let until = new.until.map(pg_lsn);
    let row = client
        .query_opt(
            &sql,
            &[
                &key.pipeline,
                &new.name,
                &new.request,
                &new.bookmark,
                &from,
                &until,
                &ordinal,
                &key.shard,
            ],
        )
        .await
        .map_err(failed)?;
    row.map(|row| from_row(&row).map_err(failed)).transpose()
}

/// Stores the progress. Returns when it is on the server's disk.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn save(
    client: &Client,
    key: &PipelineKey,
    name: &str,
    done: &SavedPosition,
    met: &ReplayCounts,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("record the progress of replay {name:?}"), e);
    let (next, last_id) = match done {
        SavedPosition::Upto(next) => (Some(*next), None),
        SavedPosition::Row(id) => (None, id.as_deref()),
    };
    let lsn = next.map(|next| pg_lsn(next.commit));
    let ordinal = next.map(|next| next.ordinal.cast_signed());
    let counts = [met.published.cast_signed(), met.refused.cast_signed()];
    let sql = "UPDATE postrider.replay SET next_lsn = $3, next_ordinal = $4, last_id = $5, found = $6, \
                 published = $7, refused = $8, updated_at = pg_catalog.now() \
               WHERE pipeline = $1 AND shard = $9 AND name = $2";
    client
        .execute(
            sql,
            &[
                &key.pipeline,
                &name,
                &lsn,
                &ordinal,
                &last_id,
                &met.found,
                &counts[0],
                &counts[1],
                &key.shard,
            ],
        )
        .await
        .map_err(failed)
        .map(|_rows| ())
}

/// Records that the replay is finished.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn finish(client: &Client, key: &PipelineKey, name: &str) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("record the end of replay {name:?}"), e);
    let sql = "UPDATE postrider.replay SET finished_at = pg_catalog.now(), updated_at = pg_catalog.now() \
               WHERE pipeline = $1 AND shard = $3 AND name = $2";
    let written = client.execute(sql, &[&key.pipeline, &name, &key.shard]).await;
    written.map_err(failed).map(|_rows| ())
}

fn from_row(row: &Row) -> Result<Replay, tokio_postgres::Error> {
    let position = |index: usize| row.try_get(index).map(|at: Option<PgLsn>| at.map(lsn));
    let ordinal: Option<i64> = row.try_get(6)?;
    let next = position(5)?.zip(ordinal).map(|(commit_lsn, ordinal)| Position {
        commit: commit_lsn,
        ordinal: ordinal.cast_unsigned(),
    });
    Ok(Replay {
        name: row.try_get(0)?,
        request: row.try_get(1)?,
        bookmark: row.try_get(2)?,
        from: position(3)?,
        until: position(4)?,
        next,
        last_id: row.try_get(7)?,
        found: row.try_get(8)?,
        published: row.try_get::<_, i64>(9)?.cast_unsigned(),
        refused: row.try_get::<_, i64>(10)?.cast_unsigned(),
        finished: row.try_get(11)?,
    })
}
