//! Why no configuration could be written.

use crate::config::Findings;
use crate::postgres::{ConninfoError, SourceError};

/// No configuration came of it; nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The URL can't be read.
    #[error("the connection string can't be used")]
    Url(#[from] ConninfoError),
    /// The database could not be looked at.
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
    /// More than one table does.
    #[error("several tables look like an outbox: {}", .0.join(", "))]
    Candidates(Vec<String>),
    /// The table that was named is not there.
    #[error("database \"{database}\" has no table {table}; it has {}", .known.join(", "))]
    NoTable {
        /// The database.
        database: String,
        /// The table, as it was typed.
        table: String,
        /// Some that it has.
        known: Vec<String>,
    },
    /// The table that was named lacks what every event has.
    #[error("table {table} has no column for {}; its columns are {}", .missing.join(", "), .columns.join(", "))]
    Unplaced {
        /// The table.
        table: String,
        /// What has no column.
        missing: Vec<&'static str>,
        /// The columns it has.
        columns: Vec<String>,
    },
    /// The connector's file is neither JSON nor properties.
    #[error("the connector's configuration can't be read: {what}")]
    Unreadable {
        /// What is wrong, without its text.
        what: String,
    },
    /// It is no configuration that Postrider can stand in for.
    #[error("{what}")]
    NotOurs {
        /// Why.
        what: String,
        /// What to do.
        hint: String,
    },
    /// What would be written would be refused.
    #[error("what would be written is refused")]
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
    /// Whether it ran, and what it found is not well: the database, not what was typed.
    pub fn is_of_database(&self) -> bool {
        matches!(self, Self::Source(_) | Self::NoCandidate { .. })
    }

    /// What mends it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Source(_) | Self::Refused(_) | Self::Url(_) => None,
            Self::NoCandidate { .. } => Some(
                "name one with --table SCHEMA.NAME; or write a file without --from-database, and let \
                 postrider setup --create-table make the table"
                    .to_owned(),
            ),
            Self::Candidates(tables) => {
                let first = tables.first().map_or("public.outbox", |table| table.split(' ').next().unwrap_or(table));
                Some(format!("name one, for example --table '{first}'; each has a pipeline of its own"))
            }
            Self::NoTable { .. } => Some("write --table SCHEMA.NAME as SQL would have it".to_owned()),
            Self::Unplaced { .. } => Some(
                "write a file without --from-database, and name the columns in [….outbox.columns] by hand \
                 (docs/configuration.md)"
                    .to_owned(),
            ),
            Self::Unreadable { .. } => Some(
                "it is read as JSON where it begins with {, else as Java properties; of a Kubernetes resource give \
                 what stands below spec.config, as JSON"
                    .to_owned(),
            ),
            Self::NotOurs { hint, .. } => Some(hint.clone()),
        }
    }
}
