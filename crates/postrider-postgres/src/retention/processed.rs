//! A table in which consumers record the events that they have processed: rows whose time is over are deleted. It is a
//! table of the application, which has nothing to do with what is published.

use crate::names::TableName;
use pg_replication::error::SourceError;
use tokio_postgres::Client;

/// Deletes rows of `table` whose `expires_at` has passed, at most `max`, and returns their number. Rows that another
/// session has locked are skipped.
///
/// # Errors
/// An error of the server or of the connection; 42P01 or 42703 if the table or the column does not exist.
pub async fn remove_expired(
    client: &Client,
    table: &TableName,
    max: u32,
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("delete expired rows of {table}"), e);
    let sql = format!(
        "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM {table} AS o \
           WHERE o.expires_at < now() LIMIT {max} FOR UPDATE SKIP LOCKED)) AND expires_at < now()"
    );
    client.execute(&sql, &[]).await.map_err(failed)
}
