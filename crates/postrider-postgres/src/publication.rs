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
    /// Publishes UPDATE.
    pub update: bool,
    /// Publishes DELETE or TRUNCATE, which the relay passes over.
    pub delete_or_truncate: bool,
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
    /// Which versions of its catalog rows these facts are of.
    pub version: Version,
}

impl PublicationFacts {
    /// Publishes what the relay passes over. `updates`: it wants to see updates.
    pub fn more_than_needed(&self, updates: bool) -> bool {
        self.delete_or_truncate || self.update && !updates
    }
}

/// Which versions of catalog rows a publication consists of. PostgreSQL decodes with the publication as it was at each
/// commit and says nothing of a change in the stream, so a change that was undone before anybody looked shows only
/// here: every change gives the changed row another `xmin`, and a row that was deleted and created again another OID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// OID and `xmin` of its row, and of the rows that put the outbox table into it ([`version_sql`]).
    rows: String,
    /// The OIDs alone.
    oids: String,
    /// What it publishes, and its owner.
    settings: String,
    /// The snapshot that saw these rows.
    snapshot: String,
}

/// What became of a publication between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    Unchanged,
    /// One statement explains it, and the publication published inserts of the table before and after.
    Explained,
    /// It was changed, and changed back, or dropped and created again: it may have left out rows of between.
    MayHaveLeftOut,
}

impl Version {
    /// What happened between this and `now`. Both publish inserts of the outbox table.
    pub fn change(&self, now: &Self) -> Change {
        if self.rows == now.rows {
            Change::Unchanged
        } else if self.oids == now.oids && self.settings != now.settings {
            Change::Explained
        } else {
            Change::MayHaveLeftOut
        }
    }

    /// OIDs and `xmin`s, as [`version_sql`] gives them.
    pub(super) fn rows(&self) -> &str {
        &self.rows
    }
}

/// An SQL expression for the catalog rows of publication `name` and the place of the table with OID `table` in it, both
/// SQL expressions: OIDs and, with `xmin`, their versions.
pub(super) fn version_sql(name: &str, table: &str, xmin: bool) -> String {
    let row = |row: &str| {
        let xmin = if xmin { format!(" || '.' || {row}.xmin::text") } else { String::new() };
        format!("{row}.oid::text{xmin}")
    };
    format!(
        "(SELECT {publication} \
            || coalesce(' table ' || (SELECT {relation} FROM pg_catalog.pg_publication_rel vr \
                 WHERE vr.prpubid = vp.oid AND vr.prrelid = {table}), '') \
            || coalesce(' schema ' || (SELECT {schema} FROM pg_catalog.pg_publication_namespace vn \
                 JOIN pg_catalog.pg_class vc ON vc.relnamespace = vn.pnnspid \
                 WHERE vn.pnpubid = vp.oid AND vc.oid = {table}), '') \
          FROM pg_catalog.pg_publication vp WHERE vp.pubname = {name})",
        publication = row("vp"),
        relation = row("vr"),
        schema = row("vn"),
    )
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
const FACTS: &str = "\
SELECT p.pubinsert, p.pubdelete OR p.pubtruncate, p.puballtables, p.pubviaroot, \
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
                           WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))), \
       pg_catalog.concat_ws(' ', p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, p.pubowner), \
       pg_catalog.pg_current_snapshot()::pg_catalog.text, {rows}, {oids}, p.pubupdate \
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
    let oid = "(SELECT vt.oid FROM pg_catalog.pg_class vt \
               JOIN pg_catalog.pg_namespace vs ON vs.oid = vt.relnamespace \
               WHERE vs.nspname = $2::pg_catalog.text AND vt.relname = $3::pg_catalog.text)";
    let version = |xmin| version_sql("$1::pg_catalog.text", oid, xmin);
    let sql = FACTS.replace("{rows}", &version(true)).replace("{oids}", &version(false));
    let row = client.query_opt(&sql, &[&name, &schema, &relation]).await.map_err(failed)?;
    row.map(|row| from_row(&row).map_err(failed)).transpose()
}

fn from_row(row: &Row) -> Result<PublicationFacts, tokio_postgres::Error> {
    let columns: Option<Vec<String>> = row.try_get(4)?;
    let row_filter: Option<String> = row.try_get(5)?;
    Ok(PublicationFacts {
        insert: row.try_get(0)?,
        update: row.try_get(12)?,
        delete_or_truncate: row.try_get(1)?,
        all_tables: row.try_get(2)?,
        via_root: row.try_get(3)?,
        names_table: row.try_get(7)?,
        table: columns.map(|columns| PublishedTable { row_filter, columns }),
        other_tables: u32::try_from(row.try_get::<_, i64>(6)?).unwrap_or(u32::MAX),
        version: Version {
            settings: row.try_get(8)?,
            snapshot: row.try_get(9)?,
            rows: row.try_get(10)?,
            oids: row.try_get(11)?,
        },
    })
}

/// What a publication may have left out since a reading of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Concerned {
    /// Rows of the table that were committed since; `None` where they could not be counted.
    pub rows: Option<u64>,
    /// A transaction of another session has written to the table and is still open.
    pub open_writers: bool,
}

/// What was committed to the table since `version` was read, and who is still writing. Rows that were deleted since
/// can't be counted.
///
/// # Errors
/// What the server says, other than that it does not count.
pub async fn concerned(
    client: &Client,
    name: &TableName,
    version: &Version,
) -> Result<Concerned, SourceError> {
    let failed = |e| SourceError::control("look who writes to the outbox table", e);
    // Before the count: a transaction that ends in between is in one of the two.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l \
                 WHERE l.mode = 'RowExclusiveLock' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() \
                   AND l.database = (SELECT oid FROM pg_catalog.pg_database \
                                     WHERE datname = pg_catalog.current_database()) \
                   AND l.relation IN (SELECT c.oid FROM pg_catalog.pg_class c \
                       JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                       WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text \
                       UNION ALL \
                       SELECT t.relid FROM pg_catalog.pg_class c \
                       JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, \
                       pg_catalog.pg_partition_tree(c.oid) t \
                       WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text))";
    let row = client.query_one(sql, &[&name.schema, &name.name]).await.map_err(failed)?;
    let open_writers: bool = row.try_get(0).map_err(failed)?;
    // The epoch of a row's transaction is the one that makes it past.
    let sql = format!(
        "WITH past AS (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS at) \
         SELECT pg_catalog.count(*) FROM {name} AS o, past \
         WHERE NOT pg_catalog.pg_visible_in_snapshot((past.at - ((past.at - o.xmin::text::int8) & 4294967295)) \
                   ::text::xid8, $1::text::pg_catalog.pg_snapshot)"
    );
    let rows = match client.query_one(&sql, &[&version.snapshot]).await {
        Ok(row) => Some(row.try_get::<_, i64>(0).map_err(failed)?.unsigned_abs()),
        // No right to read it, or too large to be read within the session's time.
        Err(error) if error.as_db_error().is_some() => None,
        Err(error) => return Err(failed(error)),
    };
    Ok(Concerned { rows, open_writers })
}

/// What was created or changed by a transaction that is not among those whose events are known to be resolved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Since {
    /// The publication, or the table's place in it: it may have left out rows that were committed before.
    pub publication: bool,
    /// The table was created: the slot may hold events of one that was dropped.
    pub table: bool,
}

/// What was created or changed since what is known to be resolved; nothing where nothing is known to be resolved yet.
/// The schema must be ours.
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
) -> Result<Since, SourceError> {
    let failed = |e| SourceError::control(format!("read the age of publication {name:?}"), e);
    // The epoch of a row's transaction is the one that makes it past. Of a table's catalog rows, that of a system
    // column is never updated.
    let sql = "\
WITH past AS (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS at), \
known AS (SELECT CASE WHEN pending_lsn <= watermark THEN pending_snapshot ELSE resolved_snapshot END AS of \
          FROM postrider.cursor WHERE pipeline = $1), \
rows AS (SELECT p.xmin::text::int8 AS xid, false AS created FROM pg_catalog.pg_publication p \
         WHERE p.pubname = $2::text \
         UNION ALL \
         SELECT r.xmin::text::int8, false FROM pg_catalog.pg_publication_rel r \
         JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid \
         WHERE p.pubname = $2::text AND r.prrelid = $3 \
         UNION ALL \
         SELECT a.xmin::text::int8, true FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = $3 AND a.attname = 'ctid' AND a.attnum < 0), \
news AS (SELECT rows.created FROM past, known, rows \
         WHERE known.of IS NOT NULL AND NOT pg_catalog.pg_visible_in_snapshot(\
           (past.at - ((past.at - rows.xid) & 4294967295))::text::xid8, known.of)) \
SELECT EXISTS (SELECT FROM news WHERE NOT created), EXISTS (SELECT FROM news WHERE created)";
    let row = client.query_one(sql, &[&pipeline, &name, &table.unwrap_or(0)]).await;
    let row = row.map_err(failed)?;
    Ok(Since {
        publication: row.try_get(0).map_err(failed)?,
        table: row.try_get(1).map_err(failed)?,
    })
}

#[cfg(test)]
impl Version {
    /// The version of a publication that a test makes up.
    pub fn of(rows: &str, oids: &str, settings: &str) -> Self {
        let [rows, oids, settings] = [rows, oids, settings].map(str::to_owned);
        Self { rows, oids, settings, snapshot: "10:10:".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_was_undone_is_told_from_one_that_is_there() {
        let before = Version::of("1.7 table 2.7", "1 table 2", "insert");
        for (rows, oids, settings, change) in [
            ("1.7 table 2.7", "1 table 2", "insert", Change::Unchanged),
            ("1.9 table 2.7", "1 table 2", "insert, delete", Change::Explained),
            // Changed and changed back, or to what it was.
            ("1.9 table 2.7", "1 table 2", "insert", Change::MayHaveLeftOut),
            // Taken out and put back.
            ("1.7 table 3.9", "1 table 3", "insert", Change::MayHaveLeftOut),
            ("1.9 table 3.9", "1 table 3", "insert, delete", Change::MayHaveLeftOut),
            // Dropped and created again.
            ("4.9 table 5.9", "4 table 5", "insert", Change::MayHaveLeftOut),
            ("1.9 schema 3.9", "1 schema 3", "insert", Change::MayHaveLeftOut),
        ] {
            let now = Version::of(rows, oids, settings);
            assert_eq!(before.change(&now), change, "{rows} {settings}");
        }
    }
}
