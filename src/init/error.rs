//! The errors of `postrider init`.

use crate::config::Findings;
use crate::postgres::{ConninfoError, SourceError};

/// Why no configuration was written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The URL is invalid.
    #[error("the connection string is invalid")]
    Url(#[from] ConninfoError),
    /// The database could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No table looks like an outbox.
    #[error("{}", no_candidate(database, *tables))]
    NoCandidate {
        /// The database.
        database: String,
        /// How many tables the role can see there.
        tables: usize,
    },
    /// Several tables look like an outbox.
    #[error("several tables look like an outbox: {}", .0.join(", "))]
    Candidates(Vec<String>),
    /// The table of `--table` does not exist.
    #[error("database \"{database}\" has no table {table}; it has {}", .known.join(", "))]
    NoTable {
        /// The database.
        database: String,
        /// The value of `--table`.
        table: String,
        /// Some of the existing tables.
        known: Vec<String>,
    },
    /// The table of `--table` lacks required columns.
    #[error("table {table} has no column for {}; its columns are {}", .missing.join(", "), .columns.join(", "))]
    Unplaced {
        /// The table.
        table: String,
        /// The roles for which no column was found.
        missing: Vec<&'static str>,
        /// The columns of the table.
        columns: Vec<String>,
    },
    /// The connector's file is neither JSON nor properties.
    #[error("the connector's configuration cannot be read: {what}")]
    Unreadable {
        /// What is wrong, without the text of the file.
        what: String,
    },
    /// Postrider cannot replace a connector with this configuration.
    #[error("{what}")]
    NotOurs {
        /// Why.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The configuration that would be written is invalid.
    #[error("the configuration that would be written is invalid")]
    Refused(#[source] Findings),
}

fn no_candidate(database: &str, tables: usize) -> String {
    match tables {
        0 => format!("database \"{database}\" has no tables"),
        1 => format!("the only table of database \"{database}\" does not look like an outbox"),
        tables => {
            format!("none of the {tables} tables of database \"{database}\" looks like an outbox")
        }
    }
}

impl InitError {
    /// Whether the reason is the database, not the arguments.
    pub fn is_of_database(&self) -> bool {
        matches!(self, Self::Source(_) | Self::NoCandidate { .. })
    }

    /// How to fix it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Source(_) | Self::Refused(_) | Self::Url(_) => None,
            Self::NoCandidate { .. } => Some(
                "name the table with --table SCHEMA.NAME; or write a file without --from-database, and create the \
                 table with postrider setup --create-table"
                    .to_owned(),
            ),
            Self::Candidates(tables) => {
                let first = tables.first().map_or("public.outbox", |table| table.split(' ').next().unwrap_or(table));
                Some(format!("choose one, for example --table '{first}'; each table needs its own pipeline"))
            }
            Self::NoTable { .. } => Some("write --table SCHEMA.NAME as in SQL".to_owned()),
            Self::Unplaced { .. } => Some(
                "write a file without --from-database, and set the columns in [….outbox.columns] \
                 (docs/configuration.md)"
                    .to_owned(),
            ),
            Self::Unreadable { .. } => Some(
                "the file is read as JSON if it begins with {, else as Java properties; of a Kubernetes resource pass \
                 the contents of spec.config as JSON"
                    .to_owned(),
            ),
            Self::NotOurs { hint, .. } => Some(hint.clone()),
        }
    }
}
