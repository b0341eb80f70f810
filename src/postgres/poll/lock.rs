//! The lock of a pipeline's polling: who has it may claim rows, and others stand by.
//!
//! Knows nothing of tables and claims. [`Poller`](super::Poller) takes it as it opens.

use crate::postgres::error::{SourceError, Statement};
use tokio_postgres::Client;

/// The lock of a pipeline: held by the session, gone with it.
const LOCK: &str =
    "SELECT pg_try_advisory_lock(hashtextextended('postrider poll ' || $1::text, 0))";

const HOLDER: &str = "\
SELECT l.pid FROM pg_locks l, hashtextextended('postrider poll ' || $1::text, 0) AS k(key) \
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
  AND l.classid::int8 = (k.key >> 32) & 4294967295 AND l.objid::int8 = k.key & 4294967295";

/// Whether the pipeline's lock is ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locked {
    /// It is, for as long as the session lasts.
    Ours,
    /// Another session has it.
    By {
        /// Its backend; `None` where it has just gone.
        pid: Option<u32>,
    },
}

/// Takes the pipeline's lock, if it is free.
///
/// # Errors
/// What the server says.
pub async fn lock(client: &Client, pipeline: &str) -> Result<Locked, SourceError> {
    let failed = |e| SourceError::control("take the polling lock", e).of(Statement::Claim);
    let row = client.query_one(LOCK, &[&pipeline]).await.map_err(failed)?;
    if row.try_get::<_, bool>(0).map_err(failed)? {
        return Ok(Locked::Ours);
    }
    let holder = client.query_opt(HOLDER, &[&pipeline]).await.map_err(failed)?;
    let pid = holder.map(|row| row.try_get::<_, i32>(0)).transpose().map_err(failed)?;
    Ok(Locked::By { pid: pid.map(i32::cast_unsigned) })
}
