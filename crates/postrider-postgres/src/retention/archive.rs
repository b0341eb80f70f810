//! The archive: a table of the user's own with the columns of the outbox, into which rows are moved.

use crate::names::{TableName, ident};
use pg_replication::error::{SourceError, SqlState};

/// The archive, as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// Its name.
    pub table: TableName,
    /// The columns that are copied, in the order of the outbox.
    columns: Vec<String>,
}

impl Archive {
    pub(super) fn new(table: TableName, columns: Vec<String>) -> Self {
        Self { table, columns }
    }

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
