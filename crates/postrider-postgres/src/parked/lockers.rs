//! Which sessions keep rows of the parked table from being written: for people, who have to end their transactions.

use crate::locks::{self, Holder};
use crate::names::{TableName, literal};
use pg_replication::error::SourceError;
use postrider_core::event::Position;
use tokio_postgres::Client;

/// Who has locked these rows. At most [`locks::ROWS_MAX`] of them are looked at, and [`locks::HOLDERS_MAX`] named.
///
/// # Errors
/// What the server says.
pub async fn lockers(
    client: &Client,
    pipeline: &str,
    rows: &[Position],
) -> Result<Vec<Holder>, SourceError> {
    let rows: Vec<String> = rows.iter().take(locks::ROWS_MAX).map(ToString::to_string).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let xmax = format!(
        "SELECT p.xmax::pg_catalog.text FROM unnest($1::pg_catalog.text[]) AS w(at) \
         JOIN postrider.parked AS p ON p.pipeline = {} \
           AND p.commit_lsn = pg_catalog.split_part(w.at, ':', 1)::pg_catalog.pg_lsn \
           AND p.ordinal = pg_catalog.split_part(w.at, ':', 2)::pg_catalog.int8",
        literal(pipeline)
    );
    locks::holders(client, &table(), &xmax, &rows).await
}

/// Who keeps every row from being written: whoever has locked the table, or the pipeline's cursor row, which each write
/// locks to see that the pipeline is still its own; else whoever has an open transaction that wrote to the table, since
/// that may have inserted a row of the same place.
///
/// # Errors
/// What the server says.
pub async fn table_lockers(client: &Client, pipeline: &str) -> Result<Vec<Holder>, SourceError> {
    let xmax = "SELECT c.xmax::pg_catalog.text FROM postrider.cursor AS c \
                WHERE c.pipeline = ANY ($1::pg_catalog.text[])";
    let found = locks::holders(client, &table(), xmax, &[pipeline]).await?;
    if found.is_empty() { locks::writers(client, &table()).await } else { Ok(found) }
}

fn table() -> TableName {
    TableName::new("postrider", "parked")
}
