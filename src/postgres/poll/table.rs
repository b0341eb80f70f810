//! The outbox as the catalog has it when polling begins: its columns, and the description that pgoutput would send.

use super::spec::{Marks, PollSpec};
use crate::postgres::error::{ServerReport, SourceError, SqlState};
use crate::postgres::names::TableName;
use bytes::{BufMut, Bytes, BytesMut};
use tokio_postgres::Client;

/// What polling knows of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::postgres) struct Shape {
    /// Its OID.
    pub(in crate::postgres) oid: u32,
    /// Its columns, in order.
    pub(in crate::postgres) columns: Vec<Column>,
    /// The columns that the dead-letter table has as well; `None` where there is no such table.
    pub(super) dlq: Option<Vec<String>>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::postgres) struct Column {
    pub(in crate::postgres) name: String,
    type_oid: u32,
    type_modifier: i32,
    /// The type as SQL writes it, without modifier.
    pub(super) type_name: String,
    /// Its values have no fixed size.
    pub(super) varies: bool,
    /// Whole numbers, or a domain over them.
    pub(in crate::postgres) number: bool,
}

const SQL: &str = "\
SELECT c.oid, a.attname::text, a.atttypid, a.atttypmod, format_type(a.atttypid, NULL), a.attlen < 0, \
       CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END IN (20, 21, 23, 1700) \
FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace \
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
JOIN pg_type t ON t.oid = a.atttypid \
WHERE s.nspname = $1::text AND c.relname = $2::text AND c.relkind IN ('r', 'p') ORDER BY a.attnum";

/// Reads it.
///
/// # Errors
/// 42P01 where there is no such table, 42703 where it lacks a column, as the server would say.
pub(super) async fn read(client: &Client, spec: &PollSpec) -> Result<Shape, SourceError> {
    let table = &spec.table;
    let (oid, columns) = columns(client, table).await?;
    if columns.is_empty() {
        return Err(refused(table, "42P01", format!("table {table} does not exist")));
    }
    let has = |name: &&str| columns.iter().any(|column| column.name == *name);
    if let Some(missing) = spec.columns().into_iter().find(|name| !has(name)) {
        return Err(refused(table, "42703", format!("it has no column \"{missing}\"")));
    }
    let dlq = match &spec.marks {
        Marks::Commerce { dlq, .. } => {
            let (_, letters) = self::columns(client, dlq).await?;
            let shared = columns.iter().map(|column| column.name.clone());
            let shared = shared.filter(|name| letters.iter().any(|letter| letter.name == *name));
            Some(shared.collect::<Vec<_>>()).filter(|shared| !shared.is_empty())
        }
        Marks::Delete | Marks::PublishedAt { .. } | Marks::Gcx { .. } | Marks::Sqlgarden { .. } => {
            None
        }
    };
    Ok(Shape { oid, columns, dlq })
}

/// The same for whoever only reads the table: of its columns `id` alone has to be there.
///
/// # Errors
/// As [`read`].
pub(in crate::postgres) async fn shape(
    client: &Client,
    table: &TableName,
    id: &str,
) -> Result<Shape, SourceError> {
    let (oid, columns) = columns(client, table).await?;
    if columns.is_empty() {
        return Err(refused(table, "42P01", format!("table {table} does not exist")));
    }
    if columns.iter().all(|column| column.name != id) {
        return Err(refused(table, "42703", format!("it has no column \"{id}\"")));
    }
    Ok(Shape { oid, columns, dlq: None })
}

fn refused(table: &TableName, sqlstate: &str, message: String) -> SourceError {
    let report = ServerReport {
        severity: "ERROR".to_owned(),
        sqlstate: SqlState::parse(sqlstate).unwrap_or(SqlState::UNDEFINED_OBJECT),
        message,
        detail: None,
        hint: None,
        associated_lsn: None,
    };
    SourceError::server(format!("poll table {table}"), report)
}

async fn columns(client: &Client, table: &TableName) -> Result<(u32, Vec<Column>), SourceError> {
    let failed = |e| SourceError::control(format!("read the definition of table {table}"), e);
    let rows = client.query(SQL, &[&table.schema, &table.name]).await.map_err(failed)?;
    let mut oid = 0;
    let mut columns = Vec::with_capacity(rows.len());
    for row in &rows {
        oid = row.try_get(0).map_err(failed)?;
        columns.push(Column {
            name: row.try_get(1).map_err(failed)?,
            type_oid: row.try_get(2).map_err(failed)?,
            type_modifier: row.try_get(3).map_err(failed)?,
            type_name: row.try_get(4).map_err(failed)?,
            varies: row.try_get(5).map_err(failed)?,
            number: row.try_get(6).map_err(failed)?,
        });
    }
    Ok((oid, columns))
}

impl Shape {
    /// The column of this name; [`read`] has seen that every name of the spec is one.
    pub(in crate::postgres) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The table's description as a pgoutput Relation message (manual, "Logical Replication Message Formats").
    pub(in crate::postgres) fn relation(&self, table: &TableName) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(b'R');
        out.put_u32(self.oid);
        name(&mut out, &table.schema);
        name(&mut out, &table.name);
        out.put_u8(b'd');
        out.put_u16(u16::try_from(self.columns.len()).unwrap_or(u16::MAX));
        for column in &self.columns {
            out.put_u8(0);
            name(&mut out, &column.name);
            out.put_u32(column.type_oid);
            out.put_i32(column.type_modifier);
        }
        out.freeze()
    }

    #[cfg(test)]
    pub(super) fn of(columns: &[(&str, &str)]) -> Self {
        let column = |(name, type_name): &(&str, &str)| Column {
            name: (*name).to_owned(),
            type_oid: 25,
            type_modifier: -1,
            type_name: (*type_name).to_owned(),
            varies: matches!(*type_name, "text" | "json" | "jsonb"),
            number: *type_name == "bigint",
        };
        Self { oid: 16_384, columns: columns.iter().map(column).collect(), dlq: None }
    }
}

fn name(out: &mut BytesMut, name: &str) {
    out.put_slice(name.as_bytes());
    out.put_u8(0);
}
