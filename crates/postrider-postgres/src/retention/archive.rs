//! The archive: a table of the user's own with the columns of the outbox, into which rows are moved.

use super::RetentionTable;
use super::hold::Hold;
use crate::names::{TableName, ident};
use pg_replication::error::{SourceError, SqlState};
use tokio_postgres::Client;

/// The archive, as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// Its name.
    pub table: TableName,
    /// The columns that are copied, in the order of the outbox.
    columns: Vec<String>,
}

impl Archive {
    /// The statement that inserts what `delete` deletes: one statement, so a row is in one of the two tables.
    pub(crate) fn insert_sql(&self, delete: &str) -> String {
        let list = |prefix: &str| {
            let columns = self.columns.iter().map(|column| format!("{prefix}{}", ident(column)));
            columns.collect::<Vec<_>>().join(", ")
        };
        // An archive that was created with the identity column of the outbox keeps the numbers of the rows.
        format!(
            "WITH gone AS ({delete}\n  RETURNING {returned})\n\
             INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM gone",
            returned = list("o."),
            table = self.table,
            columns = list(""),
        )
    }

    /// Whether a statement failed because the archive has no partition for a row. The error has the SQLSTATE of a
    /// violated check, and no constraint.
    pub(crate) fn lacks_partition(error: &SourceError) -> bool {
        error.sqlstate() == Some(SqlState::CHECK_VIOLATION)
            && error.report().is_some_and(|report| report.constraint.is_none())
    }
}

impl RetentionTable {
    /// Reads the archive of the settings; `None` if they have none, or `Err` if it does not fit.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn archive(
        &self,
        client: &Client,
    ) -> Result<Result<Option<Archive>, Hold>, SourceError> {
        let Some(table) = &self.rule().settings.archive else { return Ok(Ok(None)) };
        let failed = |e| SourceError::control(format!("read the columns of archive {table}"), e);
        let sql = "SELECT a.attname::text, a.attgenerated <> '' FROM pg_class AS c \
                   JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                   JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                   WHERE n.nspname = $1::text AND c.relname = $2::text AND c.relkind IN ('r', 'p') ORDER BY a.attnum";
        let rows = client.query(sql, &[&table.schema, &table.name]).await.map_err(failed)?;
        let mut found: Vec<(String, bool)> = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?));
        }
        if found.is_empty() {
            return Ok(Err(Hold::NoArchive(self.create_archive_sql(table))));
        }
        let mut columns = Vec::new();
        for column in self.table().column_names() {
            match found.iter().find(|(name, _)| name == column) {
                Some((_, generated)) if *generated => {}
                Some(_) => columns.push(column.to_owned()),
                None => return Ok(Err(Hold::ArchiveLacks(table.to_string(), ident(column)))),
            }
        }
        Ok(Ok(Some(Archive { table: table.clone(), columns })))
    }

    /// The statement that creates the archive.
    pub fn create_archive_sql(&self, archive: &TableName) -> String {
        let key = self.rule().table.time.as_deref().unwrap_or(&self.rule().table.id);
        format!(
            "CREATE TABLE {archive} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE ({key});",
            table = self.name(),
            key = ident(key)
        )
    }
}
