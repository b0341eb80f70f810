//! The row of a repair: its progress, stored in the database that is repaired.

use crate::catalog::lsn;
use crate::wire::Lsn;
use pg_replication::error::SourceError;
use postrider_core::store::PipelineKey;
use std::time::{Duration, SystemTime};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// The name in the table.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

words! {
    /// Why rows are published from the table.
    RepairKind {
        /// The slot was lost.
        Repair = "repair",
        /// The pipeline's first slot, on a table that has rows.
        Backfill = "backfill",
    }
}

words! {
    /// The state of a repair.
    RepairState {
        /// The slot and the list are being created.
        Making = "making",
        /// The list is being published.
        Publishing = "publishing",
        /// The cursor is at the slot's position.
        Done = "done",
    }
}

words! {
    /// Which rows are published.
    Selection {
        /// Rows of transactions that the cursor row does not know to be resolved.
        Unresolved = "unresolved",
        /// Rows without their layout's status of success.
        Unmarked = "unmarked",
        /// Rows to which both apply.
        Both = "both",
        /// Every row.
        All = "all",
    }
}

impl Selection {
    /// Whether rows are selected by their status.
    pub const fn by_marks(self) -> bool {
        matches!(self, Self::Unmarked | Self::Both)
    }
}

/// A row of `postrider.repair`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepairRow {
    /// The reason.
    pub kind: RepairKind,
    /// The state.
    pub state: RepairState,
    /// Which rows are published.
    pub selection: Selection,
    /// A `pg_snapshot` whose transactions were all resolved before the repair; `None` if there is none.
    pub ledger: Option<String>,
    /// Until when the previous relay may have published.
    pub ledger_at: Option<SystemTime>,
    /// The new slot.
    pub slot: String,
    /// The position at which the new slot begins; `None` while it is being created.
    pub slot_created_lsn: Option<Lsn>,
    /// The snapshot of the new slot.
    pub snapshot: Option<String>,
    /// How rows were selected and ordered, in words.
    pub method: String,
    /// The number of rows that were ever on the list.
    pub rows_total: u64,
    /// The number of listed rows that are published or parked.
    pub rows_published: u64,
    /// The number of listed rows that may have been published before the repair.
    pub rows_uncertain: u64,
    /// The number of listed rows that were deleted before they were published.
    pub rows_gone: u64,
    /// The count of ids that no row has, between the lowest listed id and the highest id of the table.
    pub ids_missing: Option<u64>,
}

impl RepairRow {
    /// Whether the repair is not finished.
    pub fn unfinished(&self) -> bool {
        self.state != RepairState::Done
    }

    /// The snapshot that a new list is compared with: everything that it sees is listed already, or resolved.
    pub fn known(&self) -> Option<&str> {
        self.snapshot.as_deref().or(self.ledger.as_deref())
    }
}

/// Reads the row of a shard of a pipeline.
///
/// # Errors
/// An error of the server or of the connection; 42P01 or 42703 if the schema is older.
pub async fn read(client: &Client, key: &PipelineKey) -> Result<Option<RepairRow>, SourceError> {
    let failed = |e| SourceError::control(format!("read the repair of pipeline {key}"), e);
    let sql = "SELECT kind, state, selection, ledger::pg_catalog.text, ledger_at, slot, slot_created_lsn, \
                 snapshot::pg_catalog.text, method, rows_total, rows_published, rows_uncertain, rows_gone, \
                 ids_missing FROM postrider.repair WHERE pipeline = $1 AND shard = $2";
    let found = client.query_opt(sql, &[&key.pipeline, &key.shard]).await;
    let Some(row) = found.map_err(failed)? else {
        return Ok(None);
    };
    let count = |at: usize| row.try_get::<_, i64>(at).map(i64::cast_unsigned);
    let facts = || {
        Ok(RepairRow {
            kind: RepairKind::parse(row.try_get(0)?).unwrap_or(RepairKind::Repair),
            state: RepairState::parse(row.try_get(1)?).unwrap_or(RepairState::Making),
            selection: Selection::parse(row.try_get(2)?).unwrap_or(Selection::All),
            ledger: row.try_get(3)?,
            ledger_at: row.try_get(4)?,
            slot: row.try_get(5)?,
            slot_created_lsn: row.try_get::<_, Option<PgLsn>>(6)?.map(lsn),
            snapshot: row.try_get(7)?,
            method: row.try_get(8)?,
            rows_total: count(9)?,
            rows_published: count(10)?,
            rows_uncertain: count(11)?,
            rows_gone: count(12)?,
            ids_missing: row.try_get::<_, Option<i64>>(13)?.map(i64::cast_unsigned),
        })
    };
    facts().map(Some).map_err(failed)
}

/// What is known to be resolved before a list is made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResolvedBaseline {
    /// A `pg_snapshot` all of whose transactions are resolved, or listed already.
    pub known: Option<String>,
    /// Until when a relay may have published; `None` if none ever did.
    pub at: Option<SystemTime>,
}

/// Reads what an unfinished repair has recorded, or else what the cursor row says. A relay that delivers writes the row
/// once per `cursor_interval`, so two intervals after the last write the relay had ended, or had nothing to deliver.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn resolved_baseline(
    client: &Client,
    key: &PipelineKey,
    row: Option<&RepairRow>,
    cursor_interval: Duration,
) -> Result<ResolvedBaseline, SourceError> {
    if let Some(row) = row.filter(|row| row.unfinished()) {
        return Ok(ResolvedBaseline { known: row.known().map(str::to_owned), at: row.ledger_at });
    }
    let failed = |e| SourceError::control(format!("read the cursor of pipeline {key}"), e);
    let sql = "SELECT (CASE WHEN pending_lsn <= watermark THEN pending_snapshot ELSE resolved_snapshot \
                 END)::pg_catalog.text, updated_at \
               FROM postrider.cursor WHERE pipeline = $1 AND shard = $2 AND slot <> ''";
    let found = client.query_opt(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let ledger = |row: &tokio_postgres::Row| {
        let at: SystemTime = row.try_get(1)?;
        Ok(ResolvedBaseline { known: row.try_get(0)?, at: Some(at + cursor_interval * 2) })
    };
    found.as_ref().map_or(Ok(ResolvedBaseline::default()), ledger).map_err(failed)
}
