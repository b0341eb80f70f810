//! The captured tables and their publication as the catalog has them: what decides whether every change of them is in
//! the stream, and whether the application's own UPDATE and DELETE succeed. Only reads.
//!
//! PostgreSQL refuses an UPDATE or DELETE of a published table without a replica identity, and one whose column list
//! leaves out a column of the identity. So the identity of each table, and of each partition, is read before a
//! publication is created, and again while the stream runs.

use crate::catalog::{Persistence, PublishedTable, RelationKind};
use crate::error::SourceError;
use crate::names::{CapturedTable, Names, TableName};
use crate::publication_version::{self, PublicationVersion};
use tokio_postgres::{Client, Row};

/// Most tables of a publication, or children of a table, that are named in a message.
pub const NAMED_MAX: usize = 10;

/// The captured tables and their publication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureFacts {
    /// The tables, in the order of the configuration.
    pub tables: Vec<CapturedFacts>,
    /// The publication; `None` if there is none of the configured name.
    pub publication: Option<CapturePublication>,
}

impl CaptureFacts {
    /// The OIDs of the tables that exist.
    pub fn oids(&self) -> Vec<u32> {
        self.tables.iter().filter_map(|table| Some(table.found.as_ref()?.oid)).collect()
    }

    /// Whether the role of the session has the rights of the owner of each table that exists, without which it may not
    /// create a publication of them.
    pub fn owned(&self) -> bool {
        self.tables.iter().filter_map(|table| table.found.as_ref()).all(|found| found.owned)
    }

    /// The OIDs of all partitions of captured tables, in ascending order.
    pub fn leaves(&self) -> Vec<u32> {
        let found = self.tables.iter().filter_map(|table| table.found.as_ref());
        let groups = found.flat_map(|found| &found.leaves);
        let mut leaves: Vec<u32> = groups.flat_map(|group| group.oids.iter().copied()).collect();
        leaves.sort_unstable();
        leaves
    }
}

/// A captured table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedFacts {
    /// The configured table.
    pub table: CapturedTable,
    /// The relation of its name; `None` if there is none.
    pub found: Option<CapturedRelation>,
    /// How the publication publishes it, if it names the table itself. `columns` is empty if all are published.
    pub published: Option<PublishedTable>,
}

/// A relation that is captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedRelation {
    /// The relation's OID.
    pub oid: u32,
    /// The kind of relation.
    pub kind: RelationKind,
    /// How its rows are stored.
    pub persistence: Persistence,
    /// Whether the role of the session has the rights of its owner.
    pub owned: bool,
    /// The root of the partitioned table that it is a partition of.
    pub root: Option<TableName>,
    /// The columns, in order, without dropped ones.
    pub columns: Vec<CapturedColumn>,
    /// Tables that inherit from it and are not partitions, as SQL; at most [`NAMED_MAX`].
    pub children: Vec<String>,
    /// Its own replica identity. With that of the partitioned table the server labels the rows of all partitions.
    pub identity: ReplicaIdentity,
    /// Its partitions at every level, one group for each identity and kind.
    pub leaves: Vec<LeafGroup>,
}

/// A column of a captured table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedColumn {
    /// The name.
    pub name: String,
    /// Whether it is generated, and how.
    pub generated: GeneratedColumn,
    /// Whether a value of it may be stored outside of the row: then the stream has an unchanged value only if the
    /// identity is FULL.
    pub toastable: bool,
}

/// Whether a column is generated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeneratedColumn {
    /// An ordinary column.
    No,
    /// `GENERATED ALWAYS AS … STORED`: in the stream from PostgreSQL 18 on, if the publication asks for it.
    Stored,
    /// `GENERATED ALWAYS AS … VIRTUAL` (18 and later): never in the stream.
    Virtual,
}

/// What identifies a row of a table in the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaIdentity {
    /// Nothing: while the table is published, its UPDATEs and DELETEs fail.
    Nothing,
    /// The columns of an index, sorted by name.
    Columns(Vec<String>),
    /// The whole row.
    Full,
}

impl ReplicaIdentity {
    /// Whether the old row that this identity gives has all columns of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Full, Self::Full | Self::Columns(_)) | (_, Self::Nothing) => true,
            (Self::Columns(have), Self::Columns(wanted)) => {
                wanted.iter().all(|column| have.contains(column))
            }
            (Self::Columns(_), Self::Full) | (Self::Nothing, Self::Columns(_) | Self::Full) => {
                false
            }
        }
    }
}

/// Partitions of one kind with one identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafGroup {
    /// Their OIDs, in ascending order.
    pub oids: Vec<u32>,
    /// One of them, as SQL.
    pub example: String,
    /// Their identity.
    pub identity: ReplicaIdentity,
    /// Foreign tables: their rows are in another server's WAL.
    pub is_foreign: bool,
    /// Not logged: their rows are in no WAL.
    pub is_unlogged: bool,
}

/// The publication of captured tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturePublication {
    /// Those of `insert`, `update`, `delete` and `truncate` that it does not publish.
    pub lacks: Vec<&'static str>,
    /// It publishes tables that it does not name: FOR ALL TABLES, or FOR TABLES IN SCHEMA.
    pub is_wide: bool,
    /// Rows of partitions are published under the name of the partitioned table.
    pub via_root: bool,
    /// Stored generated columns are published (18 and later).
    pub stored_generated: bool,
    /// Other tables that it names, as SQL; at most [`NAMED_MAX`].
    pub others: Vec<String>,
    /// The versions of the catalog rows that these facts are from.
    pub version: PublicationVersion,
}

const PUBLICATION: &str = "\
SELECT p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, \
       p.puballtables OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid), \
       p.pubviaroot, coalesce(pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', false), \
       (SELECT coalesce(pg_catalog.array_agg(o.name), '{}') FROM ( \
          SELECT r.prrelid::pg_catalog.regclass::pg_catalog.text AS name FROM pg_catalog.pg_publication_rel r \
          WHERE r.prpubid = p.oid AND r.prrelid <> ALL ($2) ORDER BY 1 LIMIT $3) o), \
       {version} \
FROM pg_catalog.pg_publication p WHERE p.pubname = $1::pg_catalog.text";

const TABLES: &str = "\
SELECT w.place, c.oid, c.relkind::pg_catalog.text, c.relpersistence::pg_catalog.text, \
       rn.nspname::pg_catalog.text, rc.relname::pg_catalog.text, k.names, k.generated, k.toastable, \
       (SELECT coalesce(pg_catalog.array_agg(h.name), '{}') FROM ( \
          SELECT i.inhrelid::pg_catalog.regclass::pg_catalog.text AS name FROM pg_catalog.pg_inherits i \
          JOIN pg_catalog.pg_class ic ON ic.oid = i.inhrelid AND NOT ic.relispartition \
          WHERE i.inhparent = c.oid ORDER BY 1 LIMIT $4) h), \
       r.oid IS NOT NULL, \
       (SELECT coalesce(pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum), '{}') \
          FROM pg_catalog.pg_attribute a \
          WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::pg_catalog.int2[])), \
       pg_catalog.pg_get_expr(r.prqual, r.prrelid), pg_catalog.pg_has_role(c.relowner, 'USAGE') \
FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) \
  WITH ORDINALITY AS w (schema, name, place) \
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema \
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name \
LEFT JOIN pg_catalog.pg_class rc ON c.relispartition AND rc.oid = pg_catalog.pg_partition_root(c.oid) \
LEFT JOIN pg_catalog.pg_namespace rn ON rn.oid = rc.relnamespace \
LEFT JOIN pg_catalog.pg_publication p ON p.pubname = $3::pg_catalog.text \
LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid \
CROSS JOIN LATERAL (SELECT \
    coalesce(pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum), '{}') AS names, \
    coalesce(pg_catalog.array_agg(a.attgenerated::pg_catalog.text ORDER BY a.attnum), '{}') AS generated, \
    coalesce(pg_catalog.array_agg(a.attlen = -1 AND a.attstorage <> 'p' ORDER BY a.attnum), '{}') AS toastable \
  FROM pg_catalog.pg_attribute a \
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS k";

/// `pg_inherits` is read instead of `pg_partition_tree`, which locks every partition. An index that is invalid or
/// deferrable identifies no row, as `RelationGetReplicaIndex` has it.
const IDENTITIES: &str = "\
WITH RECURSIVE tree (place, root, oid) AS ( \
  SELECT w.place, c.oid, c.oid \
  FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) \
    WITH ORDINALITY AS w (schema, name, place) \
  JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema \
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name \
  UNION ALL \
  SELECT t.place, t.root, i.inhrelid FROM tree t \
  JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending \
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition), \
node AS ( \
  SELECT t.place, c.oid, c.oid = t.root AS is_root, \
         pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, \
         c.relkind = 'f' AS is_foreign, c.relkind <> 'f' AND c.relpersistence <> 'p' AS is_unlogged, \
         CASE WHEN c.relreplident = 'f' THEN 'f' WHEN k.columns IS NULL THEN 'n' ELSE 'k' END AS identity, \
         CASE WHEN c.relreplident = 'f' THEN '{}' ELSE coalesce(k.columns, '{}') END AS columns \
  FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid \
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
  CROSS JOIN LATERAL (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attname) AS columns \
    FROM pg_catalog.pg_index x \
    CROSS JOIN LATERAL pg_catalog.unnest(x.indkey::pg_catalog.int2[]) WITH ORDINALITY AS e (attnum, at) \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = e.attnum \
    WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate AND e.at <= x.indnkeyatts \
      AND (c.relreplident = 'd' AND x.indisprimary OR c.relreplident = 'i' AND x.indisreplident)) AS k \
  WHERE c.relkind <> 'p' OR c.oid = t.root) \
SELECT place, is_root, is_foreign, is_unlogged, identity, columns, pg_catalog.min(name), \
       pg_catalog.array_agg(oid ORDER BY oid) \
FROM node GROUP BY place, is_root, is_foreign, is_unlogged, identity, columns ORDER BY place, is_root DESC";

/// Reads the captured tables and their publication; `None` for a pipeline that captures none.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_captured(
    client: &Client,
    names: &Names,
) -> Result<Option<CaptureFacts>, SourceError> {
    if !names.captures() {
        return Ok(None);
    }
    let failed = |e| SourceError::control("read the captured tables", e);
    let schemas: Vec<&str> = names.captured.iter().map(|of| of.name.schema.as_str()).collect();
    let relations: Vec<&str> = names.captured.iter().map(|of| of.name.name.as_str()).collect();
    let most = i64::try_from(NAMED_MAX).unwrap_or(i64::MAX);
    let rows = client.query(TABLES, &[&schemas, &relations, &names.publication, &most]).await;
    let rows = rows.map_err(failed)?;
    let identities = client.query(IDENTITIES, &[&schemas, &relations]).await.map_err(failed)?;
    let mut tables: Vec<CapturedFacts> = names
        .captured
        .iter()
        .map(|table| CapturedFacts { table: table.clone(), found: None, published: None })
        .collect();
    for row in &rows {
        let (place, found, published) = relation(row).map_err(failed)?;
        if let Some(table) = tables.get_mut(place) {
            (table.found, table.published) = (Some(found), published);
        }
    }
    for row in &identities {
        let (place, is_root, group) = leaf_group(row).map_err(failed)?;
        let found = tables.get_mut(place).and_then(|table| table.found.as_mut());
        match found {
            Some(found) if is_root => found.identity = group.identity,
            Some(found) => found.leaves.push(group),
            // It was created between the two statements: the next reading has it.
            None => {}
        }
    }
    let mut facts = CaptureFacts { tables, publication: None };
    facts.publication = publication(client, &names.publication, &facts.oids()).await?;
    Ok(Some(facts))
}

/// The place of a row among the configured tables.
fn place(row: &Row) -> Result<usize, tokio_postgres::Error> {
    let place: i64 = row.try_get(0)?;
    Ok(usize::try_from(place).unwrap_or_default().wrapping_sub(1))
}

type Found = (usize, CapturedRelation, Option<PublishedTable>);

fn relation(row: &Row) -> Result<Found, tokio_postgres::Error> {
    let (schema, root): (Option<String>, Option<String>) = (row.try_get(4)?, row.try_get(5)?);
    let names: Vec<String> = row.try_get(6)?;
    let generated: Vec<String> = row.try_get(7)?;
    let toastable: Vec<bool> = row.try_get(8)?;
    let columns = names.into_iter().zip(generated).zip(toastable);
    let columns = columns.map(|((name, generated), toastable)| CapturedColumn {
        name,
        generated: match generated.as_str() {
            "" => GeneratedColumn::No,
            "s" => GeneratedColumn::Stored,
            _ => GeneratedColumn::Virtual,
        },
        toastable,
    });
    let found = CapturedRelation {
        oid: row.try_get(1)?,
        kind: match row.try_get::<_, &str>(2)? {
            "r" => RelationKind::Table,
            "p" => RelationKind::Partitioned,
            _ => RelationKind::Other,
        },
        persistence: match row.try_get::<_, &str>(3)? {
            "p" => Persistence::Logged,
            "u" => Persistence::Unlogged,
            _ => Persistence::Temporary,
        },
        owned: row.try_get(13)?,
        root: schema.zip(root).map(|(schema, name)| TableName::new(schema, name)),
        columns: columns.collect(),
        children: row.try_get(9)?,
        identity: ReplicaIdentity::Nothing,
        leaves: Vec::new(),
    };
    let published = if row.try_get(10)? {
        Some(PublishedTable { columns: row.try_get(11)?, row_filter: row.try_get(12)? })
    } else {
        None
    };
    Ok((place(row)?, found, published))
}

fn leaf_group(row: &Row) -> Result<(usize, bool, LeafGroup), tokio_postgres::Error> {
    let group = LeafGroup {
        is_foreign: row.try_get(2)?,
        is_unlogged: row.try_get(3)?,
        identity: match row.try_get::<_, &str>(4)? {
            "f" => ReplicaIdentity::Full,
            "k" => ReplicaIdentity::Columns(row.try_get(5)?),
            _ => ReplicaIdentity::Nothing,
        },
        example: row.try_get(6)?,
        oids: row.try_get(7)?,
    };
    Ok((place(row)?, row.try_get(1)?, group))
}

async fn publication(
    client: &Client,
    name: &str,
    tables: &[u32],
) -> Result<Option<CapturePublication>, SourceError> {
    let failed = |e| SourceError::control(format!("read publication {name:?}"), e);
    let rows = |xmin| publication_version::entries_sql("$1::pg_catalog.text", xmin);
    let generated = ", pg_catalog.to_jsonb(p) ->> 'pubgencols'";
    let version = publication_version::columns_sql(&rows(true), &rows(false), generated);
    let sql = PUBLICATION.replace("{version}", &version);
    let most = i64::try_from(NAMED_MAX).unwrap_or(i64::MAX);
    let row = client.query_opt(&sql, &[&name, &tables, &most]).await.map_err(failed)?;
    let read = |row: Row| {
        let mut lacks = Vec::new();
        for (index, statement) in ["insert", "update", "delete", "truncate"].iter().enumerate() {
            if !row.try_get::<_, bool>(index)? {
                lacks.push(*statement);
            }
        }
        Ok(CapturePublication {
            lacks,
            is_wide: row.try_get(4)?,
            via_root: row.try_get(5)?,
            stored_generated: row.try_get(6)?,
            others: row.try_get(7)?,
            version: PublicationVersion::read(&row, 8)?,
        })
    };
    row.map(read).transpose().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(names: &[&str]) -> ReplicaIdentity {
        ReplicaIdentity::Columns(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn a_partition_covers_the_identity_of_its_root_if_its_old_rows_have_those_columns() {
        use ReplicaIdentity::{Full, Nothing};
        assert!(Full.covers(&columns(&["id"])) && Full.covers(&Full));
        assert!(columns(&["day", "id"]).covers(&columns(&["id"])));
        assert!(!columns(&["id"]).covers(&columns(&["day", "id"])));
        assert!(!columns(&["id"]).covers(&Full));
        assert!(!Nothing.covers(&columns(&["id"])) && !Nothing.covers(&Full));
    }
}
