//! The version of a publication: whether it was changed between two readings, also if the change was undone.
//!
//! PostgreSQL decodes with the publication as it was at each commit and reports no change in the stream, so a change
//! that was undone before it was noticed shows only in the catalog: every change gives the changed row another `xmin`,
//! and a row that was deleted and created again has another OID.

use tokio_postgres::{Error, Row};

/// The versions of the catalog rows of a publication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublicationVersion {
    /// OID and `xmin` of the publication's row, and of its entries that count: those of the outbox table
    /// ([`table_sql`]), or all of them if tables are captured ([`entries_sql`]).
    rows: String,
    /// The OIDs alone.
    oids: String,
    /// What the publication publishes, and its owner.
    settings: String,
    /// The snapshot that saw these rows.
    snapshot: String,
}

/// How a publication changed between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublicationChange {
    /// The publication was not changed.
    Unchanged,
    /// One statement changed the settings, and the publication published all that is needed before and after it.
    Explained,
    /// The publication was changed and changed back, or dropped and created again: changes in between may have been
    /// left out.
    MayHaveLeftOut,
}

impl PublicationVersion {
    /// Reads the columns of a query from the one at `first` on: `rows`, `oids`, `settings`, `snapshot`.
    pub(crate) fn read(row: &Row, first: usize) -> Result<Self, Error> {
        Ok(Self {
            rows: row.try_get(first)?,
            oids: row.try_get(first + 1)?,
            settings: row.try_get(first + 2)?,
            snapshot: row.try_get(first + 3)?,
        })
    }

    /// Compares this version with `now`. Both publish all that is needed, of the same tables. Only a change of the
    /// settings that remains is explained.
    pub fn change(&self, now: &Self) -> PublicationChange {
        if self.rows == now.rows {
            PublicationChange::Unchanged
        } else if self.oids == now.oids && self.settings != now.settings {
            PublicationChange::Explained
        } else {
            PublicationChange::MayHaveLeftOut
        }
    }

    /// OIDs and `xmin`s, as [`table_sql`] or [`entries_sql`] gives them.
    pub(crate) fn rows(&self) -> &str {
        &self.rows
    }

    /// The snapshot that saw these rows.
    pub(crate) fn snapshot(&self) -> &str {
        &self.snapshot
    }
}

/// The columns that [`PublicationVersion::read`] reads, of the publication `p`. `rows` and `oids`: [`table_sql`] or
/// [`entries_sql`], with and without `xmin`. `settings`: further settings, each after a comma.
pub(crate) fn columns_sql(rows: &str, oids: &str, settings: &str) -> String {
    format!(
        "{rows}, {oids}, \
         pg_catalog.concat_ws(' ', p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, \
           p.pubowner{settings}), \
         pg_catalog.pg_current_snapshot()::pg_catalog.text"
    )
}

/// An SQL expression for the catalog rows of publication `name` and for the entry of the table with OID `table` in it,
/// both SQL expressions: OIDs and, with `xmin`, their versions.
pub(crate) fn table_sql(name: &str, table: &str, xmin: bool) -> String {
    format!(
        "(SELECT {publication} \
            || coalesce(' table ' || (SELECT {relation} FROM pg_catalog.pg_publication_rel vr \
                 WHERE vr.prpubid = vp.oid AND vr.prrelid = {table}), '') \
            || coalesce(' schema ' || (SELECT {schema} FROM pg_catalog.pg_publication_namespace vn \
                 JOIN pg_catalog.pg_class vc ON vc.relnamespace = vn.pnnspid \
                 WHERE vn.pnpubid = vp.oid AND vc.oid = {table}), '') \
          FROM pg_catalog.pg_publication vp WHERE vp.pubname = {name})",
        publication = catalog_row("vp", xmin),
        relation = catalog_row("vr", xmin),
        schema = catalog_row("vn", xmin),
    )
}

/// As [`table_sql`], for all entries of the publication.
pub(crate) fn entries_sql(name: &str, xmin: bool) -> String {
    format!(
        "(SELECT {publication} || coalesce((SELECT ' tables ' || pg_catalog.string_agg({entry}, ' ' ORDER BY ve.oid) \
            FROM pg_catalog.pg_publication_rel ve WHERE ve.prpubid = vp.oid), '') \
          FROM pg_catalog.pg_publication vp WHERE vp.pubname = {name})",
        publication = catalog_row("vp", xmin),
        entry = catalog_row("ve", xmin),
    )
}

fn catalog_row(row: &str, xmin: bool) -> String {
    let xmin = if xmin { format!(" || '.' || {row}.xmin::text") } else { String::new() };
    format!("{row}.oid::text{xmin}")
}

#[cfg(test)]
impl PublicationVersion {
    /// A version for tests.
    pub(crate) fn of(rows: &str, oids: &str, settings: &str) -> Self {
        let [rows, oids, settings] = [rows, oids, settings].map(str::to_owned);
        Self { rows, oids, settings, snapshot: "10:10:".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_was_undone_is_distinguished_from_one_that_remains() {
        let before = PublicationVersion::of("1.7 table 2.7", "1 table 2", "insert");
        for (rows, oids, settings, change) in [
            ("1.7 table 2.7", "1 table 2", "insert", PublicationChange::Unchanged),
            ("1.9 table 2.7", "1 table 2", "insert, delete", PublicationChange::Explained),
            // Changed and changed back, or changed to the current value.
            ("1.9 table 2.7", "1 table 2", "insert", PublicationChange::MayHaveLeftOut),
            // Removed and added again.
            ("1.7 table 3.9", "1 table 3", "insert", PublicationChange::MayHaveLeftOut),
            ("1.9 table 3.9", "1 table 3", "insert, delete", PublicationChange::MayHaveLeftOut),
            // Dropped and created again.
            ("4.9 table 5.9", "4 table 5", "insert", PublicationChange::MayHaveLeftOut),
            ("1.9 schema 3.9", "1 schema 3", "insert", PublicationChange::MayHaveLeftOut),
        ] {
            let now = PublicationVersion::of(rows, oids, settings);
            assert_eq!(before.change(&now), change, "{rows} {settings}");
        }
    }

    #[test]
    fn of_captured_tables_one_that_was_taken_out_and_put_back_is_seen() {
        let before = PublicationVersion::of("1.7 tables 2.7 3.7", "1 tables 2 3", "t f");
        for (rows, oids, settings, change) in [
            ("1.7 tables 2.7 3.7", "1 tables 2 3", "t f", PublicationChange::Unchanged),
            ("1.9 tables 2.7 3.7", "1 tables 2 3", "t t", PublicationChange::Explained),
            ("1.9 tables 2.7 3.7", "1 tables 2 3", "t f", PublicationChange::MayHaveLeftOut),
            ("1.7 tables 2.7 4.9", "1 tables 2 4", "t f", PublicationChange::MayHaveLeftOut),
        ] {
            let now = PublicationVersion::of(rows, oids, settings);
            assert_eq!(before.change(&now), change, "{rows} {settings}");
        }
    }
}
