//! What a replay needs of the database: its row, the lock that lets one run at a time, and the outbox table's rows in
//! order.
//!
//! Writes nothing but `postrider.replay`. The log is read through a bookmark's slot by [`super::wal`]; what is replayed
//! is the service's to decide.

mod rows;
mod table;

pub use rows::{Done, Met, New, Replay, find, finish, insert, names, save};
pub use table::{Rows, Select, TableRow, order_in_words, time_without_zone};

use super::error::SourceError;
use super::names::literal;
use postrider_core::event::PgTime;
use postrider_core::zone::Zone;
use std::future::Future;
use tokio_postgres::Client;

/// One replay of a pipeline at a time: held by the session, gone with it.
const LOCK: &str =
    "SELECT pg_try_advisory_lock(hashtextextended('postrider replay ' || $1::text, 0))";

const HOLDER: &str = "\
SELECT l.pid FROM pg_catalog.pg_locks l, pg_catalog.hashtextextended('postrider replay ' || $1::text, 0) AS k(key) \
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
  AND l.classid::int8 = (k.key >> 32) & 4294967295 AND l.objid::int8 = k.key & 4294967295";

/// Takes the lock of the pipeline's replays for this session. The backend that has it, where that is another; 0 where
/// it has just gone.
///
/// # Errors
/// What the server says.
pub async fn lock(client: &Client, pipeline: &str) -> Result<Option<u32>, SourceError> {
    let failed = |e| SourceError::control("take the lock of replays", e);
    let row = client.query_one(LOCK, &[&pipeline]).await.map_err(failed)?;
    if row.try_get::<_, bool>(0).map_err(failed)? {
        return Ok(None);
    }
    let holder = client.query_opt(HOLDER, &[&pipeline]).await.map_err(failed)?;
    let pid = holder.map(|row| row.try_get::<_, i32>(0)).transpose().map_err(failed)?;
    Ok(Some(pid.unwrap_or_default().cast_unsigned()))
}

/// The server's time for a name: `20260301T040000`, UTC.
///
/// # Errors
/// What the server says.
pub async fn stamp(client: &Client) -> Result<String, SourceError> {
    let sql =
        "SELECT pg_catalog.to_char(pg_catalog.now() AT TIME ZONE 'UTC', 'YYYYMMDD\"T\"HH24MISS')";
    let row = client.query_one(sql, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(|e| SourceError::control("read the time", e))
}

/// A time as PostgreSQL reads it; where it names no zone, as one of `zone`, or of UTC without one. `None` where it is
/// none. Of a time that comes twice: `later` or the earlier instant.
///
/// # Errors
/// What the server says otherwise.
pub async fn time(
    client: &Client,
    text: &str,
    zone: Option<&Zone>,
    later: bool,
) -> Result<Option<PgTime>, SourceError> {
    let Some(at) = read_in(client, text, "UTC").await? else { return Ok(None) };
    let Some(zone) = zone else { return Ok(Some(at)) };
    // Written with a zone, it is the same wherever it is read.
    if read_in(client, text, "Etc/GMT+11").await? == Some(at) {
        return Ok(Some(at));
    }
    // Through the zone, so that "today" is the day it is there.
    let sql = "SELECT (pg_catalog.date_part('epoch', $1::text::timestamptz AT TIME ZONE $2::text) * 1e6)::int8";
    let local: Result<i64, SourceError> = in_zone(client, zone.name(), async {
        let row = client.query_one(sql, &[&text, &zone.name()]).await;
        row.and_then(|row| row.try_get(0)).map_err(|e| SourceError::control("read a time", e))
    })
    .await?;
    let (earlier, last) = zone.instants(local?);
    let unix = if later { last } else { earlier };
    Ok(Some(PgTime { micros: unix.saturating_sub(PgTime::UNIX_OFFSET_MICROS) }))
}

/// As the server reads it in sessions of `zone`.
async fn read_in(client: &Client, text: &str, zone: &str) -> Result<Option<PgTime>, SourceError> {
    let sql = "SELECT (pg_catalog.date_part('epoch', $1::text::timestamptz) * 1e6)::int8 - 946684800000000";
    let read = in_zone(client, zone, async {
        client.query_one(sql, &[&text]).await.and_then(|row| row.try_get(0))
    })
    .await?;
    match read {
        Ok(micros) => Ok(Some(PgTime { micros })),
        Err(error) => {
            let error = SourceError::control("read a time", error);
            // Data exceptions: not a time, or one that has no number, as infinity.
            let wrong = error.sqlstate().is_some_and(|state| state.class() == "22");
            if wrong { Ok(None) } else { Err(error) }
        }
    }
}

/// Runs something in a session of another zone than the usual one, which is UTC.
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
