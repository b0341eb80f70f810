//! Pauses of a pipeline: the rows of `postrider.pause`, and what a pause costs.
//!
//! An operator requests a pause, and ends it. The relay that owns the pipeline drains, notes in the row that nothing is
//! in flight any more, and reads nothing while the row exists; so does every process that starts later. The row is in
//! the source database, so a pause outlives the processes, and a failover of the database.

use super::parked::CHANNEL;
use crate::catalog::{self, SlotRow};
use crate::pipeline_lock::lock_text;
use crate::statement::{Statement, StatementError};
use crate::wire::Lsn;
use pg_replication::error::SourceError;
use postrider_core::store::PipelineKey;
use std::time::Duration;
use tokio_postgres::{Client, Row};

/// The longest reason that [`request`] stores. Unit: characters.
pub const REASON_MAX: usize = 500;

/// The request that pauses a shard of a pipeline. Times are UTC, `2026-01-02T03:04:05Z`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pause {
    /// When it was requested.
    pub requested_at: String,
    /// How long ago that was. Unit: seconds.
    pub seconds: u64,
    /// Database role and operating system user.
    pub requested_by: String,
    /// The reason that the operator gave.
    pub reason: Option<String>,
    /// When a process had nothing in flight any more; `None` until then.
    pub drained_at: Option<String>,
    /// Events that the broker had not acknowledged by then. They are published again.
    pub unacknowledged: u64,
}

/// The columns of [`Pause`], in order.
const COLUMNS: &str = "\
pg_catalog.to_char(requested_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), \
greatest(pg_catalog.date_part('epoch', pg_catalog.now() - requested_at), 0)::pg_catalog.int8, \
requested_by, pg_catalog.left(reason, 500), \
pg_catalog.to_char(drained_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), unacknowledged";

fn from_row(row: &Row) -> Result<Pause, tokio_postgres::Error> {
    Ok(Pause {
        requested_at: row.try_get(0)?,
        seconds: row.try_get::<_, i64>(1)?.unsigned_abs(),
        requested_by: row.try_get(2)?,
        reason: row.try_get(3)?,
        drained_at: row.try_get(4)?,
        unacknowledged: row.try_get::<_, i64>(5)?.unsigned_abs(),
    })
}

/// Reads the pause; `None` if the pipeline is not paused.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read(client: &Client, key: &PipelineKey) -> Result<Option<Pause>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read the pause of pipeline {key}"), e).of(Statement::Requests)
    };
    let sql = format!("SELECT {COLUMNS} FROM postrider.pause WHERE pipeline = $1 AND shard = $2");
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.map(|row| from_row(&row).map_err(failed)).transpose()
}

/// Requests a pause, and notifies the relays of the pipeline. `by`: the operating system user; the server adds the
/// database role. Returns whether this call has requested the pause: the request of an earlier call is kept.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn request(
    client: &Client,
    key: &PipelineKey,
    by: &str,
    reason: Option<&str>,
) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("pause pipeline {key}"), e);
    let reason: Option<String> = reason.map(|text| text.chars().take(REASON_MAX).collect());
    let sql = format!(
        "WITH asked AS ( \
           INSERT INTO postrider.pause (pipeline, shard, requested_by, reason) \
           VALUES ($1, $2, session_user::pg_catalog.text || ' (' || $3::pg_catalog.text || ')', $4) \
           ON CONFLICT (pipeline, shard) DO NOTHING RETURNING pipeline) \
         SELECT pg_catalog.pg_notify('{CHANNEL}', pipeline)::pg_catalog.text FROM asked"
    );
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard, &by, &reason]).await;
    row.map(|row| row.is_some()).map_err(failed)
}

/// Ends the pause, and notifies the relays of the pipeline. Returns the pause that has ended; `None` if the pipeline
/// was not paused.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn end(client: &Client, key: &PipelineKey) -> Result<Option<Pause>, SourceError> {
    let failed = |e| SourceError::control(format!("resume pipeline {key}"), e);
    let sql = format!(
        "WITH ended AS ( \
           DELETE FROM postrider.pause WHERE pipeline = $1 AND shard = $2 RETURNING *) \
         SELECT {COLUMNS}, pg_catalog.pg_notify('{CHANNEL}', pipeline)::pg_catalog.text FROM ended"
    );
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.map(|row| from_row(&row).map_err(failed)).transpose()
}

/// Notes that this process has nothing in flight, and reads nothing while the pause lasts. `unacknowledged`: events
/// that were given up. Returns the pause; `None` if it has ended.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn drained(
    client: &Client,
    key: &PipelineKey,
    unacknowledged: u64,
) -> Result<Option<Pause>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("note that pipeline {key} is paused"), e)
            .of(Statement::Requests)
    };
    let sql = format!(
        "UPDATE postrider.pause SET drained_at = coalesce(drained_at, pg_catalog.now()), \
           unacknowledged = greatest(unacknowledged, $3) \
         WHERE pipeline = $1 AND shard = $2 RETURNING {COLUMNS}"
    );
    let events = i64::try_from(unacknowledged).unwrap_or(i64::MAX);
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard, &events]).await;
    row.map_err(failed)?.map(|row| from_row(&row).map_err(failed)).transpose()
}

/// The processes of a pipeline that are connected to its database.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ConnectedProcesses {
    /// A session has the pipeline's lock: a process reads, or is about to.
    pub reads: bool,
    /// Number of processes that are paused.
    pub paused: u64,
}

/// What the key of the lock is a hash of that each paused process shares.
fn paused_lock_text(key: &PipelineKey) -> String {
    format!("postrider paused/{} {}", key.shard, key.pipeline)
}

/// Lets other sessions see that this process is paused, until the session ends. Never waits: the lock is only shared.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn announce(client: &Client, key: &PipelineKey) -> Result<(), SourceError> {
    let failed = |e| {
        SourceError::control(format!("show that pipeline {key} is paused"), e)
            .of(Statement::Requests)
    };
    let sql = "SELECT pg_catalog.pg_try_advisory_lock_shared(\
                 pg_catalog.hashtextextended($1::pg_catalog.text, 0))";
    client.query_one(sql, &[&paused_lock_text(key)]).await.map(drop).map_err(failed)
}

/// Finds the processes of a pipeline by their locks: an `application_name` may be configured, a lock is not.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn connected(
    client: &Client,
    key: &PipelineKey,
) -> Result<ConnectedProcesses, SourceError> {
    let failed = |e| SourceError::control("find the processes of the pipeline", e);
    let sql = "SELECT coalesce(pg_catalog.bool_or(k.reads), false), \
                 pg_catalog.count(*) FILTER (WHERE NOT k.reads) \
               FROM (VALUES (true, pg_catalog.hashtextextended($1::pg_catalog.text, 0)), \
                 (false, pg_catalog.hashtextextended($2::pg_catalog.text, 0))) AS k(reads, key) \
               JOIN pg_catalog.pg_locks AS l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
                 AND l.classid::pg_catalog.int8 = (k.key >> 32) & 4294967295 \
                 AND l.objid::pg_catalog.int8 = k.key & 4294967295 \
               JOIN pg_catalog.pg_database AS d ON d.oid = l.database \
               WHERE d.datname = pg_catalog.current_database()";
    let texts = (lock_text(key), paused_lock_text(key));
    let row = client.query_one(sql, &[&texts.0, &texts.1]).await.map_err(failed)?;
    Ok(ConnectedProcesses {
        reads: row.try_get(0).map_err(failed)?,
        paused: row.try_get::<_, i64>(1).map_err(failed)?.unsigned_abs(),
    })
}

/// What a pause costs the database server: the WAL that the slot retains.
#[derive(Clone, PartialEq, Debug)]
pub struct PauseCost {
    /// The slot; `None` if it does not exist.
    pub slot: Option<SlotRow>,
    /// The server's end of WAL.
    pub wal_end: Lsn,
    /// How much WAL the server has written per second on average since [`PauseCost::measured_since`]
    /// (`pg_stat_wal`); `None` if that is not known. Unit: bytes.
    pub wal_bytes_per_second: Option<f64>,
    /// Since when the average is measured: the last reset of the statistics.
    pub measured_since: Option<String>,
    /// After which time without a reader the slot is lost; `None` without such a limit.
    pub idle_timeout: Option<Duration>,
}

impl PauseCost {
    /// Reads it. `slot`: the name of the slot.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn read(client: &Client, slot: &str) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control("read how much WAL the server writes", e);
        let server = catalog::read_server(client).await?;
        let slot = catalog::read_slot(client, server.version, slot).await?;
        let sql = "SELECT (w.wal_bytes / nullif(pg_catalog.date_part('epoch', \
                       pg_catalog.clock_timestamp() - w.stats_reset), 0)::pg_catalog.numeric)::pg_catalog.float8, \
                     pg_catalog.to_char(w.stats_reset AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') \
                   FROM pg_catalog.pg_stat_wal w WHERE w.stats_reset IS NOT NULL";
        let rate = client.query_opt(sql, &[]).await.map_err(failed)?;
        let (wal_bytes_per_second, measured_since) = match rate {
            Some(row) => (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?),
            None => (None, None),
        };
        let idle_timeout = catalog::read_idle_timeout(client).await?.filter(|_| slot.is_some());
        let wal_end = server.wal_end;
        Ok(Self { slot, wal_end, wal_bytes_per_second, measured_since, idle_timeout })
    }

    /// WAL that the slot retains. Unit: bytes.
    pub fn retained(&self) -> Option<u64> {
        let restart = self.slot.as_ref()?.restart_lsn?;
        Some(self.wal_end.distance_from(restart))
    }

    /// Bytes of WAL that may be written before the slot is lost (`max_slot_wal_keep_size`); `None` without a limit.
    pub fn safe(&self) -> Option<u64> {
        self.slot.as_ref()?.safe_wal_size.map(|bytes| u64::try_from(bytes).unwrap_or(0))
    }

    /// Seconds until the slot has no room left, at the average rate; `None` without a limit, or without a rate.
    pub fn seconds_left(&self) -> Option<f64> {
        let (safe, rate) = (self.safe()?, self.wal_bytes_per_second.filter(|rate| *rate > 0.0)?);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let safe = safe as f64;
        Some(safe / rate)
    }
}
