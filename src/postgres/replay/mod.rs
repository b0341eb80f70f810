//! What a replay needs of the database: its row, the lock that lets one run at a time, and the outbox table's rows in
//! order.
//!
//! Writes nothing but `postrider.replay`. The log is read through a bookmark's slot by [`super::wal`]; what is replayed
//! is the service's to decide.

mod rows;
mod table;

pub use rows::{Done, Met, New, Replay, find, finish, insert, names, save};
pub use table::{Rows, Select, TableRow, order_in_words};

use super::error::SourceError;
use crate::event::PgTime;
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

/// A time as PostgreSQL reads it, in UTC where it names no zone; `None` where it is none.
///
/// # Errors
/// What the server says otherwise.
pub async fn time(client: &Client, text: &str) -> Result<Option<PgTime>, SourceError> {
    let sql = "SELECT (pg_catalog.date_part('epoch', $1::text::timestamptz) * 1e6)::int8 - 946684800000000";
    match client.query_one(sql, &[&text]).await.and_then(|row| row.try_get(0)) {
        Ok(micros) => Ok(Some(PgTime { micros })),
        Err(error) => {
            let error = SourceError::control("read a time", error);
            // Data exceptions: not a time, or one that has no number, as infinity.
            let wrong = error.sqlstate().is_some_and(|state| state.class() == "22");
            if wrong { Ok(None) } else { Err(error) }
        }
    }
}
