//! The lock of a pipeline. Only its holder may publish, from the stream, from the table, or from the list of a repair;
//! other processes stand by.
//!
//! It is an advisory lock of the session that reads events: of the walsender while the pipeline streams, of the session
//! that claims rows while it polls or repairs. A process that loses this session loses the lock with it, so no second
//! session has to be watched. The slot alone excludes only other streams, not a process that polls.

use super::error::SourceError;
use super::names::literal;
use super::stream::WalConnection;
use crate::statement::{Statement, StatementError};
use postrider_core::store::PipelineKey;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryMessage};

/// How long the lock is requested again if another session has it: the server needs a moment to end a session that this
/// process has just closed.
const WAIT_MAX: Duration = Duration::from_millis(500);
const WAIT_PAUSE: Duration = Duration::from_millis(20);

/// The result of a request for the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PipelineLock {
    /// This session has the lock until the session ends.
    Acquired,
    /// Another session has it.
    HeldBy {
        /// That session's backend; `None` if the session has just ended.
        pid: Option<u32>,
    },
}

/// For a session that claims rows: the server notices within 35 s that the client's host is unreachable, and releases
/// the lock. That is longer than a claim is open before it has to be settled. Records in flight to a slow broker may
/// take longer (docs/guarantees.md, what is not promised). Without these settings the server's own keepalive applies,
/// which is two hours on Linux. A walsender has `wal_sender_timeout` for this.
const KEEPALIVE: &str = "SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 5; \
                                    SET tcp_keepalives_count = 3; SET tcp_user_timeout = 35000";

/// What the key of the lock is a hash of. For the first shard the text is that of versions before there were
/// shards: a relay of such a version and one of this version exclude each other while one replaces the other.
pub(crate) fn lock_text(key: &PipelineKey) -> String {
    match key.shard {
        0 => format!("postrider poll {}", key.pipeline),
        shard => format!("postrider poll/{shard} {}", key.pipeline),
    }
}

/// Requests the lock and reads its holder, as one row of text; for the simple protocol, the only one that a walsender
/// supports.
fn sql(key: &PipelineKey) -> String {
    format!(
        "SELECT pg_catalog.pg_try_advisory_lock(k.key), ( \
           SELECT l.pid FROM pg_catalog.pg_locks AS l \
           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = d.oid \
             AND l.classid::pg_catalog.int8 = (k.key >> 32) & 4294967295 \
             AND l.objid::pg_catalog.int8 = k.key & 4294967295) \
         FROM pg_catalog.hashtextextended({}::pg_catalog.text, 0) AS k(key), \
           pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()",
        literal(&lock_text(key))
    )
}

fn read(ours: Option<&str>, pid: Option<&str>) -> PipelineLock {
    if ours == Some("t") {
        PipelineLock::Acquired
    } else {
        PipelineLock::HeldBy { pid: pid.and_then(|pid| pid.parse().ok()) }
    }
}

/// Takes the pipeline's lock on an SQL session, if it is free.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn lock(client: &Client, key: &PipelineKey) -> Result<PipelineLock, SourceError> {
    let failed = |e| SourceError::control("take the pipeline's lock", e).of(Statement::Claim);
    let sql = sql(key);
    client.batch_execute(KEEPALIVE).await.map_err(failed)?;
    let since = Instant::now();
    loop {
        let answer = client.simple_query(&sql).await.map_err(failed)?;
        let row = answer.iter().find_map(|message| {
            if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None }
        });
        let locked =
            row.map_or(PipelineLock::HeldBy { pid: None }, |row| read(row.get(0), row.get(1)));
        if locked == PipelineLock::Acquired || since.elapsed() >= WAIT_MAX {
            return Ok(locked);
        }
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// Takes the pipeline's lock on a replication connection that does not stream yet, if it is free.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn lock_stream(
    wal: &mut WalConnection,
    key: &PipelineKey,
) -> Result<PipelineLock, SourceError> {
    let sql = sql(key);
    let since = Instant::now();
    loop {
        let row = wal.row("take the pipeline's lock", &sql).await?;
        let column = |n: usize| row.as_ref().and_then(|row| row.get(n)?.as_deref());
        let locked = read(column(0), column(1));
        if locked == PipelineLock::Acquired || since.elapsed() >= WAIT_MAX {
            return Ok(locked);
        }
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// Releases the lock; the session continues.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn unlock(client: &Client, key: &PipelineKey) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("release the pipeline's lock", e).of(Statement::Claim);
    let sql = format!(
        "SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended({}::pg_catalog.text, 0))",
        literal(&lock_text(key))
    );
    client.simple_query(&sql).await.map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a relay of an earlier version and one of this version would both own the pipeline.
    #[test]
    fn the_lock_of_the_first_shard_is_that_of_earlier_versions() {
        let first = PipelineKey::first("it's");
        assert_eq!(lock_text(&first), "postrider poll it's");
        let second = PipelineKey { shard: 1, ..first };
        assert_eq!(lock_text(&second), "postrider poll/1 it's");
    }
}
