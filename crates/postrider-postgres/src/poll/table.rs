//! The outbox as the catalog has it when polling begins.

use super::spec::PollSpec;
use crate::catalog::BASE_TYPE_SQL;
use crate::names::{TableName, ident};
use crate::times::{AmbiguousTime, TimeType, instant_sql};
use crate::value_types::value_type_by_oid;
use pg_replication::error::{ServerReport, SourceError, SqlState};
use postrider_core::row::{Column, OwnedTable, TableId};
use postrider_core::zone::Zone;
use tokio_postgres::Client;

/// The definition of the table, as far as polling needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TableShape {
    /// Its OID.
    pub(crate) oid: u32,
    /// Its columns, in order.
    pub(crate) columns: Vec<TableColumn>,
    /// The columns that the dead-letter table has too; `None` if there is no such table.
    pub(super) dlq: Option<Vec<String>>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TableColumn {
    pub(crate) name: String,
    /// The OID of the type; for a domain, of its base type.
    type_oid: u32,
    type_modifier: i32,
    /// The same as SQL writes it, without modifier, so that a cast to it neither cuts nor rounds.
    pub(super) type_name: String,
    /// Its values have no fixed size.
    pub(super) varies: bool,
    /// Whole numbers, or a domain over them.
    pub(crate) number: bool,
    /// How a value is found by its text.
    equality: Equality,
}

/// How SQL finds a value of a column by its text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Equality {
    /// By value, with this operator: an index can be used.
    Value(String),
    /// The same, and by text: values that are equal may have different texts (`citext`, a collation that is not
    /// deterministic).
    ValueAndText(String),
    /// By text alone: the type has no equality, or a cast to it cuts.
    Text,
}

const COLUMNS_SQL: &str = "\
SELECT c.oid, a.attname::text, base.oid, base.modifier, format_type(base.oid, -1), t.typlen < 0, \
       base.oid IN (20, 21, 23, 1700), \
       CASE WHEN base.oid IN (18, 19) THEN NULL \
            WHEN base.oid = 1043 OR t.typtype = 'e' THEN 'OPERATOR(pg_catalog.=)' \
            ELSE (SELECT format('OPERATOR(%I.%s)', os.nspname, op.oprname) \
                  FROM pg_opclass k \
                  JOIN pg_am m ON m.oid = k.opcmethod AND m.amname = 'btree' \
                  JOIN pg_amop p ON p.amopfamily = k.opcfamily AND p.amoplefttype = k.opcintype \
                    AND p.amoprighttype = k.opcintype AND p.amopstrategy = 3 \
                  JOIN pg_operator op ON op.oid = p.amopopr \
                  JOIN pg_namespace os ON os.oid = op.oprnamespace \
                  WHERE k.opcdefault AND k.opcintype = base.oid) END, \
       t.typnamespace <> 'pg_catalog'::regnamespace AND t.typtype = 'b' \
         OR EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic) \
FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace \
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ";

const FROM_SQL: &str = "\
JOIN pg_type t ON t.oid = base.oid \
WHERE s.nspname = $1::text AND c.relname = $2::text AND c.relkind IN ('r', 'p') ORDER BY a.attnum";

/// Reads it.
///
/// # Errors
/// 42P01 where there is no such table, 42703 where it lacks a column, as the server would say.
pub(super) async fn read(client: &Client, spec: &PollSpec) -> Result<TableShape, SourceError> {
    let table = &spec.table;
    let (oid, columns) = columns(client, table).await?;
    if columns.is_empty() {
        return Err(refused(table, "42P01", format!("table {table} does not exist")));
    }
    let has = |name: &&str| columns.iter().any(|column| column.name == *name);
    if let Some(missing) = spec.columns().into_iter().find(|name| !has(name)) {
        return Err(refused(table, "42703", format!("it has no column \"{missing}\"")));
    }
    let dlq = match spec.dlq() {
        Some(dlq) => {
            let (_, dead_letter_columns) = self::columns(client, &dlq).await?;
            let shared = columns.iter().map(|column| column.name.clone());
            let shared =
                shared.filter(|name| dead_letter_columns.iter().any(|other| other.name == *name));
            Some(shared.collect::<Vec<_>>()).filter(|shared| !shared.is_empty())
        }
        None => None,
    };
    Ok(TableShape { oid, columns, dlq })
}

/// As [`read`], for a caller that only reads the table: only the column `id` must exist.
///
/// # Errors
/// As [`read`].
pub(crate) async fn shape(
    client: &Client,
    table: &TableName,
    id: &str,
) -> Result<TableShape, SourceError> {
    let (oid, columns) = columns(client, table).await?;
    if columns.is_empty() {
        return Err(refused(table, "42P01", format!("table {table} does not exist")));
    }
    let shape = TableShape { oid, columns, dlq: None };
    shape.id(table, id)?;
    Ok(shape)
}

fn refused(table: &TableName, sqlstate: &str, message: String) -> SourceError {
    let report = ServerReport {
        severity: "ERROR".to_owned(),
        sqlstate: SqlState::parse(sqlstate).unwrap_or(SqlState::UNDEFINED_OBJECT),
        message,
        detail: None,
        hint: None,
        constraint: None,
        associated_lsn: None,
    };
    SourceError::server(format!("poll table {table}"), report)
}

async fn columns(
    client: &Client,
    table: &TableName,
) -> Result<(u32, Vec<TableColumn>), SourceError> {
    let failed = |e| SourceError::control(format!("read the definition of table {table}"), e);
    let sql = format!("{COLUMNS_SQL}{BASE_TYPE_SQL}{FROM_SQL}");
    let rows = client.query(&sql, &[&table.schema, &table.name]).await.map_err(failed)?;
    let mut oid = 0;
    let mut columns = Vec::with_capacity(rows.len());
    for row in &rows {
        oid = row.try_get(0).map_err(failed)?;
        columns.push(TableColumn {
            name: row.try_get(1).map_err(failed)?,
            type_oid: row.try_get(2).map_err(failed)?,
            type_modifier: row.try_get(3).map_err(failed)?,
            type_name: row.try_get(4).map_err(failed)?,
            varies: row.try_get(5).map_err(failed)?,
            number: row.try_get(6).map_err(failed)?,
            equality: equality(row.try_get(7).map_err(failed)?, row.try_get(8).map_err(failed)?),
        });
    }
    Ok((oid, columns))
}

/// The operator of the type, where it has one; `loose`: equal values may have different texts.
fn equality(operator: Option<String>, loose: bool) -> Equality {
    match operator {
        None => Equality::Text,
        Some(operator) if loose => Equality::ValueAndText(operator),
        Some(operator) => Equality::Value(operator),
    }
}

impl TableColumn {
    /// The value of `row` as the stream has it, with the output function of its type. A cast to `text` differs from
    /// that for some types: it takes the blanks off a `char(n)`.
    pub(crate) fn text(&self, row: &str) -> String {
        format!("concat({row}.{})", ident(&self.name))
    }

    /// Whether the value of `row` has one of these texts, an expression of type `text[]`.
    pub(crate) fn is_one_of(&self, row: &str, texts: &str) -> String {
        let (column, of) = (ident(&self.name), &self.type_name);
        let by_text = || format!("{} = ANY ({texts})", self.text(row));
        let by_value =
            |operator: &str| format!("{row}.{column} {operator} ANY (({texts})::{of}[])");
        match &self.equality {
            Equality::Value(operator) => by_value(operator),
            Equality::ValueAndText(operator) => format!("{} AND {}", by_value(operator), by_text()),
            Equality::Text => by_text(),
        }
    }

    /// Whether the value of `row` is `w.id` by value, with its text in `w.text`; `None` where only texts can be
    /// compared.
    pub(super) fn is_listed(&self, row: &str) -> Option<String> {
        let column = ident(&self.name);
        let by_value = |operator: &str| format!("{row}.{column} {operator} w.id");
        match &self.equality {
            Equality::Value(operator) => Some(by_value(operator)),
            Equality::ValueAndText(operator) => {
                Some(format!("{} AND {} = w.text", by_value(operator), self.text(row)))
            }
            Equality::Text => None,
        }
    }

    /// What rows are sorted by, where it is this column.
    pub(crate) fn sort_key(&self, row: &str) -> String {
        match self.equality {
            Equality::Value(_) => format!("{row}.{}", ident(&self.name)),
            Equality::ValueAndText(_) | Equality::Text => self.text(row),
        }
    }
}

impl TableShape {
    /// The column of this name; [`read`] has checked that every name of the spec is one.
    pub(crate) fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The column of the event's id.
    ///
    /// # Errors
    /// 42703 if there is none: [`read`] has checked it.
    pub(crate) fn id(&self, table: &TableName, id: &str) -> Result<&TableColumn, SourceError> {
        self.column(id).ok_or_else(|| refused(table, "42703", format!("it has no column \"{id}\"")))
    }

    /// What the type of a column says of the times in it.
    pub(crate) fn time_type(&self, name: &str) -> TimeType {
        self.column(name).map_or(TimeType::Other, |column| TimeType::of(column.type_oid))
    }

    /// The point in time of a column of `row`, as SQL: [`instant_sql`].
    pub(crate) fn instant(
        &self,
        zone: Option<&Zone>,
        row: &str,
        column: &str,
        twice: AmbiguousTime,
    ) -> String {
        instant_sql(self.time_type(column), zone, &format!("{row}.{}", ident(column)), twice)
    }

    /// The description of the table, as the stream has it; a row has its cells in this order.
    pub(crate) fn description(&self, table: &TableName) -> OwnedTable {
        let column = |column: &TableColumn| Column {
            name: column.name.clone(),
            of: value_type_by_oid(column.type_oid, column.type_modifier),
        };
        OwnedTable {
            id: TableId(self.oid),
            schema: table.schema.clone(),
            name: table.name.clone(),
            columns: self.columns.iter().map(column).collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn of(columns: &[(&str, &str)]) -> Self {
        let column = |(name, type_name): &(&str, &str)| TableColumn {
            name: (*name).to_owned(),
            type_oid: match *type_name {
                "timestamp with time zone" => 1184,
                "timestamp without time zone" => 1114,
                _ => 25,
            },
            type_modifier: -1,
            type_name: (*type_name).to_owned(),
            varies: matches!(*type_name, "text" | "json" | "jsonb"),
            number: *type_name == "bigint",
            equality: Equality::Value("OPERATOR(pg_catalog.=)".to_owned()),
        };
        Self { oid: 16_384, columns: columns.iter().map(column).collect(), dlq: None }
    }
}
