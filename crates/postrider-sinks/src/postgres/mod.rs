//! `kind = "postgres"`: event logs in a PostgreSQL database, written exactly once and in commit order.
//!
//! A log is a table with a number for each event (`seq`), which is the order of the commits and the order in which
//! events become visible. `sql/toolkit` has its SQL; `docs/sql/log.md` describes it.
//!
//! `enqueue` writes a record into the open batch ([`batch`]). A commit hands the batch to the writer thread
//! ([`writer`]), which appends it with one statement, together with the pipeline's progress.

mod batch;
mod config;
mod hash;
mod preflight;
mod problem;
mod session;
mod sink;
mod spec;
mod writer;

pub use config::PostgresConfig;
pub use spec::{CreateLogs, LogKind};

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Postgres;

impl SinkKind for Postgres {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(PostgresConfig::read(keys))
    }

    fn reference(&self) -> &'static str {
        include_str!("reference.toml")
    }

    fn first_file(&self) -> FirstFile {
        FirstFile { keys: &[], tables: FIRST_FILE_TABLES }
    }
}

const FIRST_FILE_TABLES: &[FirstFileTable] = &[
    FirstFileTable {
        path: "postgres",
        comment: "The database of the event logs. Without url it is that of the source.",
        keys: &["url", "password_file"],
    },
    FirstFileTable {
        path: "postgres.create",
        comment: "Logs that do not exist are created with these settings.",
        keys: &["partitions", "rows_per_child", "kind"],
    },
];
