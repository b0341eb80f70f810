//! The outbox table as the catalog has it now.
//!
//! Only reads. Which columns a layout needs is `outbox`'s to say; it hands over their names.

use super::error::SourceError;
use super::names::TableName;
use super::types::{BASE_TYPE_SQL, IS_TEXT_SQL, TypeFacts};
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
    /// What is below a partitioned table.
    pub partitions: Partitions,
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
    /// The same, as the catalog has it.
    pub type_facts: TypeFacts,
    /// Whether it refuses NULL.
    pub not_null: bool,
    /// GENERATED ALWAYS AS: not in the stream before PostgreSQL 18, and there only if the publication asks for it.
    pub generated: bool,
}

/// The partitions of a partitioned table at every depth, as inserts see them: one whose `DETACH … CONCURRENTLY` has
/// begun is not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partitions {
    /// OIDs of the leaves, ascending.
    pub leaves: Vec<u32>,
    /// Leaves that WAL has no rows of, by name; at most [`UNFIT_LEAVES_MAX`].
    pub unfit: Vec<UnfitLeaf>,
    /// Columns that decide which leaf a row is in, at any level, by name.
    pub key: Vec<String>,
}

/// Most unfit leaves that are named.
pub const UNFIT_LEAVES_MAX: usize = 10;

/// A leaf that WAL has no rows of. A temporary one is refused by the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnfitLeaf {
    /// Its name.
    pub name: TableName,
    /// Why.
    pub kind: UnfitLeafKind,
}

/// Why WAL has no rows of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnfitLeafKind {
    /// UNLOGGED.
    Unlogged,
    /// A foreign table.
    Foreign {
        /// Rows can be inserted into it. One that refuses them loses none in silence.
        insertable: bool,
    },
}

const TABLE_SQL: &str = "\
SELECT c.oid, c.relkind::pg_catalog.text, c.relpersistence::pg_catalog.text, c.relispartition, \
       k.name, k.type_name, k.not_null, k.generated, \
       EXISTS (SELECT FROM pg_catalog.pg_trigger t \
               WHERE t.tgrelid = c.oid AND t.tgname = 'postrider_notify'), \
       k.oid, k.base_oid, k.base_modifier, k.is_text \
FROM pg_catalog.pg_class c \
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
CROSS JOIN LATERAL (SELECT \
       coalesce(pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum), '{}') AS name, \
       coalesce(pg_catalog.array_agg(pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum), '{}') \
         AS type_name, \
       coalesce(pg_catalog.array_agg(a.attnotnull ORDER BY a.attnum), '{}') AS not_null, \
       coalesce(pg_catalog.array_agg(a.attgenerated <> '' ORDER BY a.attnum), '{}') AS generated, \
       coalesce(pg_catalog.array_agg(a.atttypid ORDER BY a.attnum), '{}') AS oid, \
       coalesce(pg_catalog.array_agg(base.oid ORDER BY a.attnum), '{}') AS base_oid, \
       coalesce(pg_catalog.array_agg(base.modifier ORDER BY a.attnum), '{}') AS base_modifier, ";

const COLUMNS_SQL: &str = "\
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS k \
WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text";

/// `pg_inherits` is read instead of `pg_partition_tree`, which locks every partition and so waits behind an
/// `ALTER TABLE` of one. A key column depends on its own table, whether it is named in the key or in an expression.
const PARTITIONS_SQL: &str = "\
WITH RECURSIVE tree AS ( \
  SELECT $1::pg_catalog.oid AS oid \
  UNION ALL \
  SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending), \
node AS ( \
  SELECT c.oid, c.relkind, c.relpersistence, n.nspname::pg_catalog.text AS schema, \
         c.relname::pg_catalog.text AS name \
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid \
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace), \
unfit AS ( \
  SELECT schema, name, relkind = 'f' AS foreign_table, \
         CASE WHEN relkind = 'f' THEN pg_catalog.pg_relation_is_updatable(oid, false) & 8 <> 0 ELSE true END \
           AS insertable \
  FROM node WHERE relkind = 'f' OR relkind <> 'p' AND relpersistence <> 'p' \
  ORDER BY relkind = 'f', schema, name LIMIT $2) \
SELECT (SELECT coalesce(pg_catalog.array_agg(oid ORDER BY oid), '{}') FROM node WHERE relkind <> 'p'), \
       (SELECT coalesce(pg_catalog.array_agg(DISTINCT a.attname::pg_catalog.text), '{}') FROM node \
          JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.objid = node.oid AND d.objsubid > 0 \
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.refobjid = node.oid AND d.refobjsubid = 0 AND d.deptype = 'i' \
          JOIN pg_catalog.pg_attribute a ON a.attrelid = node.oid AND a.attnum = d.objsubid \
          WHERE node.relkind = 'p'), \
       coalesce(pg_catalog.array_agg(schema), '{}'), coalesce(pg_catalog.array_agg(name), '{}'), \
       coalesce(pg_catalog.array_agg(foreign_table), '{}'), coalesce(pg_catalog.array_agg(insertable), '{}') \
FROM unfit";

async fn partitions(client: &Client, root: u32) -> Result<Partitions, tokio_postgres::Error> {
    let max = i64::try_from(UNFIT_LEAVES_MAX).unwrap_or(i64::MAX);
    let row = client.query_one(PARTITIONS_SQL, &[&root, &max]).await?;
    let (schemas, names): (Vec<String>, Vec<String>) = (row.try_get(2)?, row.try_get(3)?);
    let (foreign, insertable): (Vec<bool>, Vec<bool>) = (row.try_get(4)?, row.try_get(5)?);
    let names = schemas.into_iter().zip(names).map(|(schema, name)| TableName::new(schema, name));
    let kinds = foreign.into_iter().zip(insertable).map(|(foreign, insertable)| {
        if foreign { UnfitLeafKind::Foreign { insertable } } else { UnfitLeafKind::Unlogged }
    });
    Ok(Partitions {
        leaves: row.try_get(0)?,
        unfit: names.zip(kinds).map(|(name, kind)| UnfitLeaf { name, kind }).collect(),
        key: row.try_get(1)?,
    })
}

/// What became of leaves between two looks at a partitioned table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafChange {
    /// The table.
    pub name: TableName,
    /// It was detached, and is a table of its own now; else it was attached, not made as a partition.
    pub detached: bool,
    /// Its size on disk. Unit: bytes.
    pub bytes: u64,
}

/// Which of the leaves `gone` are tables of their own now, and which of `new` were made before they were attached.
///
/// # Errors
/// What the server says.
pub async fn leaf_changes(
    client: &Client,
    gone: &[u32],
    new: &[u32],
) -> Result<Vec<LeafChange>, SourceError> {
    // A column that every table has bears the number of the transaction that made the table.
    const SQL: &str = "\
SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, NOT c.relispartition, \
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) \
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
WHERE c.relkind = 'r' AND ( \
  c.oid = ANY ($1) AND NOT c.relispartition \
  OR c.oid = ANY ($2) AND c.relispartition AND EXISTS ( \
    SELECT FROM pg_catalog.pg_inherits i \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid AND a.attname = 'tableoid' \
    WHERE i.inhrelid = c.oid AND i.xmin <> a.xmin)) \
ORDER BY 1, 2";
    let failed = |e| SourceError::control("look at partitions that came and went", e);
    let rows = client.query(SQL, &[&gone, &new]).await.map_err(failed)?;
    let change = |row: &tokio_postgres::Row| {
        let (schema, name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let bytes: i64 = row.try_get(3)?;
        Ok(LeafChange {
            name: TableName::new(schema, name),
            detached: row.try_get(2)?,
            bytes: u64::try_from(bytes).unwrap_or(0),
        })
    };
    rows.iter().map(change).collect::<Result<_, _>>().map_err(failed)
}

/// The name of the table with this OID; `None` if there is none, or it is a view or a foreign table.
///
/// # Errors
/// What the server says.
pub async fn name_of(client: &Client, oid: u32) -> Result<Option<TableName>, SourceError> {
    let failed = |e| SourceError::control(format!("read the name of table {oid}"), e);
    let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.oid = $1 AND c.relkind IN ('r', 'p')";
    let Some(row) = client.query_opt(sql, &[&oid]).await.map_err(failed)? else {
        return Ok(None);
    };
    let schema: String = row.try_get(0).map_err(failed)?;
    let name: String = row.try_get(1).map_err(failed)?;
    Ok(Some(TableName::new(schema, name)))
}

/// The table, `None` if there is none of that name.
pub async fn read(client: &Client, table: &TableName) -> Result<Option<TableFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read the definition of table {table}"), e);
    let sql = format!(
        "{TABLE_SQL} coalesce(pg_catalog.array_agg({IS_TEXT_SQL} ORDER BY a.attnum), '{{}}') AS is_text \
         FROM pg_catalog.pg_attribute a {BASE_TYPE_SQL} JOIN pg_catalog.pg_type t ON t.oid = base.oid \
         {COLUMNS_SQL}"
    );
    let row = client.query_opt(&sql, &[&table.schema, &table.name]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let facts = || {
        let names: Vec<String> = row.try_get(4)?;
        let type_names: Vec<String> = row.try_get(5)?;
        let not_null: Vec<bool> = row.try_get(6)?;
        let generated: Vec<bool> = row.try_get(7)?;
        let (oids, base_oids): (Vec<u32>, Vec<u32>) = (row.try_get(9)?, row.try_get(10)?);
        let (modifiers, texts): (Vec<i32>, Vec<bool>) = (row.try_get(11)?, row.try_get(12)?);
        let types = oids.into_iter().zip(base_oids).zip(modifiers.into_iter().zip(texts));
        let types = types.map(|((oid, base_oid), (base_modifier, is_text))| TypeFacts {
            oid,
            base_oid,
            base_modifier,
            is_text,
        });
        let flags = not_null.into_iter().zip(generated);
        let columns = names.into_iter().zip(type_names).zip(types.zip(flags));
        let columns = columns.map(|((name, type_name), (type_facts, (not_null, generated)))| {
            ColumnFacts { name, type_name, type_facts, not_null, generated }
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
            partitions: Partitions::default(),
            columns: columns.collect(),
        })
    };
    let mut facts = facts().map_err(failed)?;
    if facts.kind == RelationKind::Partitioned {
        facts.partitions = partitions(client, facts.oid).await.map_err(failed)?;
    }
    Ok(Some(facts))
}
