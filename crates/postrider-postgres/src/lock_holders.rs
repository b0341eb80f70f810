//! Which sessions hold a lock that one of our statements did not get: for an operator, who has to end the session's
//! transaction.
//!
//! Our statements wait for no row (`SKIP LOCKED`), so `pg_blocking_pids` does not help. The holder of a row lock is
//! found by the row's `xmax`: a transaction, or the members of a multixact.

use crate::names::{TableName, literal};
use pg_replication::error::SourceError;
use postrider_core::event::Position;
use postrider_core::store::PipelineKey;
use std::fmt;
use tokio_postgres::{Client, Row};

/// Most rows whose holders are read.
pub const ROWS_MAX: usize = 100;

/// Most holders that are named.
pub const HOLDERS_MAX: usize = 5;

/// A session, or a prepared transaction, that holds a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A session.
    Session {
        /// The session's backend.
        pid: i32,
        /// The session's `application_name`.
        application: String,
        /// The session's role.
        role: String,
        /// How long the session's transaction has been open, if our role may see that. Unit: seconds.
        seconds: Option<i64>,
    },
    /// A prepared transaction (`PREPARE TRANSACTION`) that was not ended.
    Prepared {
        /// The transaction's name.
        gid: String,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session { pid, application, role, seconds } => {
                write!(f, "pid {pid} (application {application:?}, role {role:?}")?;
                if let Some(seconds) = seconds {
                    write!(f, ", in a transaction for {seconds} s")?;
                }
                f.write_str(")")
            }
            Self::Prepared { gid } => write!(f, "prepared transaction {gid:?}"),
        }
    }
}

/// The holders in one line; `another session` if none is known.
pub fn holder_names(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "another session".to_owned();
    }
    let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Locks on transaction ids (`$1`), which a session that locks a row holds; and locks on the table (`$2`) of these
/// modes (`$3`).
const SQL: &str = "\
SELECT DISTINCT l.pid, a.application_name, a.usename::text, \
       extract(epoch FROM clock_timestamp() - a.xact_start)::int8, p.gid \
FROM pg_catalog.pg_locks AS l \
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid \
LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON l.pid IS NULL AND p.transaction = l.transactionid \
WHERE l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() \
  AND (l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.transactionid::text = ANY ($1::text[]) \
    OR l.locktype = 'relation' AND l.relation = pg_catalog.to_regclass($2::text) \
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()) \
      AND l.mode = ANY ($3::text[])) \
ORDER BY 1 LIMIT 5";

/// Table locks that keep other sessions from locking rows.
const KEEP_ROWS: &[&str] = &["ExclusiveLock", "AccessExclusiveLock"];

/// The table lock of a transaction that has changed rows.
const WRITERS: &[&str] = &["RowExclusiveLock"];

const _: () = assert!(HOLDERS_MAX == 5, "the limit in SQL");

/// The members of a multixact, which a row has instead of a transaction id if several sessions lock it. An error if the
/// number is no multixact.
const MEMBERS: &str = "\
SELECT DISTINCT m.xid::text FROM pg_catalog.pg_get_multixact_members(($1::text)::xid) AS m";

/// Reads who holds locks on rows of `table`: at most [`HOLDERS_MAX`]. `rows` is SQL that returns the rows' `xmax` as
/// text for the ids in `$1`.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn holders(
    client: &Client,
    table: &TableName,
    rows: &str,
    ids: &[&str],
) -> Result<Vec<Holder>, SourceError> {
    let failed =
        |e| SourceError::control(format!("check which sessions lock rows of table {table}"), e);
    let texts = |rows: Vec<Row>| -> Result<Vec<String>, tokio_postgres::Error> {
        rows.iter().map(|row| row.try_get(0)).collect()
    };
    let xids = texts(client.query(rows, &[&ids]).await.map_err(failed)?).map_err(failed)?;
    let found = sessions(client, table, &xids, KEEP_ROWS).await.map_err(failed)?;
    if !found.is_empty() {
        return Ok(found);
    }
    let mut members = Vec::new();
    for xid in xids.iter().filter(|xid| *xid != "0").take(HOLDERS_MAX) {
        match client.query(MEMBERS, &[xid]).await {
            Ok(rows) => members.extend(texts(rows).map_err(failed)?),
            Err(error) if error.as_db_error().is_some() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    sessions(client, table, &members, KEEP_ROWS).await.map_err(failed)
}

/// Reads who has changed rows of `table` in a transaction that is still open: an insert waits for such a session if it
/// has written the same key, and that row is not visible to other sessions.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn writers(client: &Client, table: &TableName) -> Result<Vec<Holder>, SourceError> {
    let failed =
        |e| SourceError::control(format!("check which sessions write to table {table}"), e);
    sessions(client, table, &[], WRITERS).await.map_err(failed)
}

async fn sessions(
    client: &Client,
    table: &TableName,
    xids: &[String],
    modes: &[&str],
) -> Result<Vec<Holder>, tokio_postgres::Error> {
    let rows = client.query(SQL, &[&xids, &table.to_string(), &modes]).await?;
    rows.iter().filter_map(|row| holder(row).transpose()).collect()
}

fn holder(row: &Row) -> Result<Option<Holder>, tokio_postgres::Error> {
    let gid: Option<String> = row.try_get(4)?;
    if let Some(gid) = gid {
        return Ok(Some(Holder::Prepared { gid }));
    }
    let Some(pid) = row.try_get(0)? else { return Ok(None) };
    let text = |column| Ok(row.try_get::<_, Option<String>>(column)?.unwrap_or_default());
    let (application, role) = (text(1)?, text(2)?);
    Ok(Some(Holder::Session { pid, application, role, seconds: row.try_get(3)? }))
}

/// Reads who has locked these rows of the parked table: at most [`ROWS_MAX`] rows are checked, and [`HOLDERS_MAX`]
/// holders are returned.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn lockers(
    client: &Client,
    key: &PipelineKey,
    rows: &[Position],
) -> Result<Vec<Holder>, SourceError> {
    let rows: Vec<String> = rows.iter().take(ROWS_MAX).map(ToString::to_string).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let xmax = format!(
        "SELECT p.xmax::pg_catalog.text FROM unnest($1::pg_catalog.text[]) AS w(at) \
         JOIN postrider.parked AS p ON p.pipeline = {} AND p.shard = {} \
           AND p.commit_lsn = pg_catalog.split_part(w.at, ':', 1)::pg_catalog.pg_lsn \
           AND p.ordinal = pg_catalog.split_part(w.at, ':', 2)::pg_catalog.int8",
        literal(&key.pipeline),
        key.shard
    );
    holders(client, &table(), &xmax, &rows).await
}

/// Reads who blocks all writes to the parked table: a session that has locked the table, or the pipeline's cursor row,
/// which each write locks to check the owner; otherwise every session with an open transaction that wrote to the table,
/// because it may have inserted a row at the same position.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn table_lockers(client: &Client, key: &PipelineKey) -> Result<Vec<Holder>, SourceError> {
    let xmax = format!(
        "SELECT c.xmax::pg_catalog.text FROM postrider.cursor AS c \
         WHERE c.pipeline = ANY ($1::pg_catalog.text[]) AND c.shard = {}",
        key.shard
    );
    let found = holders(client, &table(), &xmax, &[&key.pipeline]).await?;
    if found.is_empty() { writers(client, &table()).await } else { Ok(found) }
}

fn table() -> TableName {
    TableName::new("postrider", "parked")
}
