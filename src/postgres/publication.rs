//! The publication as the server has it now, and how it publishes the outbox table.
//!
//! Only reads. The server decodes with the publication *as it was* at the WAL being decoded, so a good answer here
//! does not prove that older WAL is whole; that is why a publication stands before the slot (`setup`).

use super::error::SourceError;
use super::names::TableName;
use tokio_postgres::{Client, Row};

/// A publication.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of pg_publication")]
pub struct PublicationFacts {
    /// Publishes INSERT.
    pub insert: bool,
    /// Publishes UPDATE, DELETE or TRUNCATE, which the relay passes over.
    pub more_than_insert: bool,
    /// FOR ALL TABLES.
    pub all_tables: bool,
    /// Rows of partitions come under the name of the partitioned table.
    pub via_root: bool,
    /// It names the outbox table itself: as a table, by its schema, or as one of all tables. A partitioned table
    /// whose partitions alone are named counts as published where `via_root` is off.
    pub names_table: bool,
    /// How it publishes the outbox table; `None` if it does not.
    pub table: Option<PublishedTable>,
    /// Tables in it beside the outbox.
    pub other_tables: u32,
}

/// How a publication publishes one table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedTable {
    /// The row filter, as an SQL expression.
    pub row_filter: Option<String>,
    /// The columns that are published, in the table's order.
    pub columns: Vec<String>,
}

/// With `publish_via_partition_root = false` the view lists a partitioned table's leaves and not the table; the table
/// itself then counts as published when any partition is.
const SQL: &str = "\
SELECT p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate, p.puballtables, p.pubviaroot, \
       t.attnames::pg_catalog.text[], t.rowfilter, \
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_publication_tables o \
         WHERE o.pubname = p.pubname AND (o.schemaname, o.tablename) \
               IS DISTINCT FROM (t.schemaname, t.tablename)), \
       p.puballtables OR EXISTS ( \
         SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $2::pg_catalog.text AND c.relname = $3::pg_catalog.text \
           AND (EXISTS (SELECT FROM pg_catalog.pg_publication_rel r \
                        WHERE r.prpubid = p.oid AND r.prrelid = c.oid) \
                OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s \
                           WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))) \
FROM pg_catalog.pg_publication p \
LEFT JOIN LATERAL ( \
  SELECT x.schemaname, x.tablename, x.attnames, x.rowfilter \
  FROM pg_catalog.pg_publication_tables x \
  JOIN pg_catalog.pg_namespace n ON n.nspname = x.schemaname \
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = x.tablename \
  WHERE x.pubname = p.pubname \
    AND (x.schemaname = $2::pg_catalog.text AND x.tablename = $3::pg_catalog.text \
         OR NOT p.pubviaroot AND pg_catalog.pg_partition_root(c.oid) = ( \
            SELECT r.oid FROM pg_catalog.pg_class r \
            JOIN pg_catalog.pg_namespace s ON s.oid = r.relnamespace \
            WHERE s.nspname = $2::pg_catalog.text AND r.relname = $3::pg_catalog.text)) \
  ORDER BY x.schemaname <> $2::pg_catalog.text OR x.tablename <> $3::pg_catalog.text \
  LIMIT 1) t ON true \
WHERE p.pubname = $1::pg_catalog.text";

/// The publication `name`, `None` if there is none.
pub async fn read(
    client: &Client,
    name: &str,
    table: Option<&TableName>,
) -> Result<Option<PublicationFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read publication {name:?}"), e);
    let (schema, relation) = table.map_or(("", ""), |t| (t.schema.as_str(), t.name.as_str()));
    let row = client.query_opt(SQL, &[&name, &schema, &relation]).await.map_err(failed)?;
    row.map(|row| from_row(&row).map_err(failed)).transpose()
}

fn from_row(row: &Row) -> Result<PublicationFacts, tokio_postgres::Error> {
    let columns: Option<Vec<String>> = row.try_get(4)?;
    let row_filter: Option<String> = row.try_get(5)?;
    Ok(PublicationFacts {
        insert: row.try_get(0)?,
        more_than_insert: row.try_get(1)?,
        all_tables: row.try_get(2)?,
        via_root: row.try_get(3)?,
        names_table: row.try_get(7)?,
        table: columns.map(|columns| PublishedTable { row_filter, columns }),
        other_tables: u32::try_from(row.try_get::<_, i64>(6)?).unwrap_or(u32::MAX),
    })
}

/// Whether the publication, or the table's place in it, was made or changed by a transaction that is not among those
/// whose events are known to be resolved: then it may have left out rows that were committed before it. `None` where
/// nothing is known to be resolved yet. The schema must be ours.
///
/// What is certain: a change that is not found here was made before everything that may still be unpublished, unless a
/// savepoint made it. A change that is found may be a harmless one, such as of the published statements.
///
/// # Errors
/// What the server says.
pub async fn changed_since(
    client: &Client,
    pipeline: &str,
    name: &str,
    table: Option<u32>,
) -> Result<Option<bool>, SourceError> {
    let failed = |e| SourceError::control(format!("read the age of publication {name:?}"), e);
    // The epoch of a row's transaction is the one that makes it past.
    let sql = "\
WITH past AS (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS at), \
known AS (SELECT CASE WHEN pending_lsn <= watermark THEN pending_snapshot ELSE resolved_snapshot END AS of \
          FROM postrider.cursor WHERE pipeline = $1), \
rows AS (SELECT p.xmin::text::int8 AS xid FROM pg_catalog.pg_publication p WHERE p.pubname = $2::text \
         UNION ALL \
         SELECT r.xmin::text::int8 FROM pg_catalog.pg_publication_rel r \
         JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid \
         WHERE p.pubname = $2::text AND r.prrelid = $3) \
SELECT pg_catalog.bool_or(NOT pg_catalog.pg_visible_in_snapshot(\
         (past.at - ((past.at - rows.xid) & 4294967295))::text::xid8, known.of)) \
FROM past, known, rows WHERE known.of IS NOT NULL";
    let row = client.query_one(sql, &[&pipeline, &name, &table.unwrap_or(0)]).await;
    row.and_then(|row| row.try_get(0)).map_err(failed)
}
