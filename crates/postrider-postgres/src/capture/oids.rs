//! The OIDs that captured tables have now.

use super::CapturedTable;
use crate::error::SourceError;
use tokio_postgres::Client;

/// Reads the OID of each table; `None` for a table that does not exist.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_oids(
    client: &Client,
    tables: &[CapturedTable],
) -> Result<Vec<Option<u32>>, SourceError> {
    let failed = |e| SourceError::control("look up the captured tables", e);
    let (schemas, names): (Vec<&str>, Vec<&str>) =
        tables.iter().map(|table| (table.name.schema.as_str(), table.name.name.as_str())).unzip();
    let sql = "SELECT c.oid FROM ROWS FROM ( \
                 pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) \
                 WITH ORDINALITY AS of (schema, name, at) \
               LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = of.schema \
               LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = of.name \
               ORDER BY of.at";
    let rows = client.query(sql, &[&schemas, &names]).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}
