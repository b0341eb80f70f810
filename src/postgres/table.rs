//! The outbox table as the catalog has it now.
//!
//! Only reads. Which columns a layout needs is `outbox`'s to say; it hands over their names.

use super::error::SourceError;
use super::names::TableName;
use tokio_postgres::Client;

/// What kind of relation stands under the table's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelationKind {
    /// An ordinary table.
    Table,
    /// A partitioned table.
    Partitioned,
    /// A view, a foreign table, a sequence …: nothing that WAL has rows of.
    Other,
}

/// How its rows are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence {
    /// Written to WAL.
    Logged,
    /// UNLOGGED: WAL has nothing of it.
    Unlogged,
    /// TEMPORARY.
    Temporary,
}

/// The outbox table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableFacts {
    /// The relation's OID.
    pub oid: u32,
    /// What it is.
    pub kind: RelationKind,
    /// How its rows are kept.
    pub persistence: Persistence,
    /// Whether it is a partition of another table.
    pub is_partition: bool,
    /// Whether its inserts wake a polling relay (`setup --notify`).
    pub notifies: bool,
    /// Its columns, in order, without dropped ones.
    pub columns: Vec<ColumnFacts>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnFacts {
    /// The name.
    pub name: String,
    /// The type, as SQL writes it.
    pub type_name: String,
    /// Whether it refuses NULL.
    pub not_null: bool,
    /// GENERATED ALWAYS AS: not in the stream before PostgreSQL 18, and there only if the publication asks for it.
    pub generated: bool,
}

const SQL: &str = "\
SELECT c.oid, c.relkind::pg_catalog.text, c.relpersistence::pg_catalog.text, c.relispartition, \
       pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum), \
       pg_catalog.array_agg(pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum), \
       pg_catalog.array_agg(a.attnotnull ORDER BY a.attnum), \
       pg_catalog.array_agg(a.attgenerated <> '' ORDER BY a.attnum), \
       EXISTS (SELECT FROM pg_catalog.pg_trigger t \
               WHERE t.tgrelid = c.oid AND t.tgname = 'postrider_notify') \
FROM pg_catalog.pg_class c \
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text \
GROUP BY c.oid, c.relkind, c.relpersistence, c.relispartition";

/// The table, `None` if there is none of that name.
pub async fn read(client: &Client, table: &TableName) -> Result<Option<TableFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read the definition of table {table}"), e);
    let row = client.query_opt(SQL, &[&table.schema, &table.name]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let facts = || {
        let names: Vec<Option<String>> = row.try_get(4)?;
        let types: Vec<Option<String>> = row.try_get(5)?;
        let not_null: Vec<Option<bool>> = row.try_get(6)?;
        let generated: Vec<Option<bool>> = row.try_get(7)?;
        let columns = names.into_iter().zip(types).zip(not_null.into_iter().zip(generated));
        let columns = columns.filter_map(|((name, type_name), (not_null, generated))| {
            Some(ColumnFacts {
                name: name?,
                type_name: type_name.unwrap_or_default(),
                not_null: not_null.unwrap_or(false),
                generated: generated.unwrap_or(false),
            })
        });
        Ok(TableFacts {
            oid: row.try_get(0)?,
            kind: match row.try_get::<_, &str>(1)? {
                "r" => RelationKind::Table,
                "p" => RelationKind::Partitioned,
                _ => RelationKind::Other,
            },
            persistence: match row.try_get::<_, &str>(2)? {
                "p" => Persistence::Logged,
                "u" => Persistence::Unlogged,
                _ => Persistence::Temporary,
            },
            is_partition: row.try_get(3)?,
            notifies: row.try_get(8)?,
            columns: columns.collect(),
        })
    };
    facts().map(Some).map_err(failed)
}
