//! The row of a repair: how far it has got, in the database it repairs.

use crate::catalog::lsn;
use pg_replication::error::SourceError;
use pg_replication::lsn::Lsn;
use std::time::{Duration, SystemTime};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// As the table has it.
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
    Kind {
        /// The slot was lost.
        Repair = "repair",
        /// The pipeline's first slot, on a table that has rows.
        Backfill = "backfill",
    }
}

words! {
    /// How far it is.
    State {
        /// The slot and the list are being made.
        Making = "making",
        /// The list is being published.
        Publishing = "publishing",
        /// The cursor stands at the slot.
        Done = "done",
    }
}

words! {
    /// Which rows.
    Selection {
        /// Those of transactions that the cursor row does not know to be resolved.
        Unresolved = "unresolved",
        /// Those without their layout's mark.
        Unmarked = "unmarked",
        /// Those that are both.
        Both = "both",
        /// Every row.
        All = "all",
    }
}

impl Selection {
    /// Whether it asks for marks.
    pub const fn by_marks(self) -> bool {
        matches!(self, Self::Unmarked | Self::Both)
    }
}

/// What stands in `postrider.repair`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Why.
    pub kind: Kind,
    /// How far.
    pub state: State,
    /// Which rows.
    pub selection: Selection,
    /// A `pg_snapshot` all of whose transactions were resolved before; `None` where there is none.
    pub ledger: Option<String>,
    /// Until when the relay before may have published.
    pub ledger_at: Option<SystemTime>,
    /// The new slot.
    pub slot: String,
    /// Where it begins; `None` while it is being made.
    pub slot_created_lsn: Option<Lsn>,
    /// What its snapshot sees.
    pub snapshot: Option<String>,
    /// How rows were told apart and ordered.
    pub method: String,
    /// Rows of the list, ever.
    pub rows_total: u64,
    /// Of them, published or parked.
    pub rows_published: u64,
    /// Of them, perhaps published before.
    pub rows_uncertain: u64,
    /// Of them, deleted before they were published.
    pub rows_gone: u64,
    /// Numbers that no row has, between the lowest listed and the highest of all.
    pub ids_missing: Option<u64>,
}

impl Row {
    /// Whether there is something left to do.
    pub fn unfinished(&self) -> bool {
        self.state != State::Done
    }

    /// What a new list is measured against: everything the snapshot before saw is listed already, or resolved.
    pub fn known(&self) -> Option<&str> {
        self.snapshot.as_deref().or(self.ledger.as_deref())
    }
}

/// The row of `pipeline`.
///
/// # Errors
/// What the server says; 42P01 where the schema is older.
pub async fn read(client: &Client, pipeline: &str) -> Result<Option<Row>, SourceError> {
    let failed = |e| SourceError::control(format!("read the repair of pipeline {pipeline:?}"), e);
    let sql = "SELECT kind, state, selection, ledger::pg_catalog.text, ledger_at, slot, slot_created_lsn, \
                 snapshot::pg_catalog.text, method, rows_total, rows_published, rows_uncertain, rows_gone, \
                 ids_missing FROM postrider.repair WHERE pipeline = $1";
    let Some(row) = client.query_opt(sql, &[&pipeline]).await.map_err(failed)? else {
        return Ok(None);
    };
    let count = |at: usize| row.try_get::<_, i64>(at).map(i64::cast_unsigned);
    let facts = || {
        Ok(Row {
            kind: Kind::parse(row.try_get(0)?).unwrap_or(Kind::Repair),
            state: State::parse(row.try_get(1)?).unwrap_or(State::Making),
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

/// What is known to be resolved, before a list is made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// A `pg_snapshot` all of whose transactions are resolved, or listed already.
    pub known: Option<String>,
    /// Until when a relay may have published; `None` where nobody ever did.
    pub at: Option<SystemTime>,
}

/// What an unfinished repair has noted, or what the cursor row says. A relay that delivers writes the row once a
/// `cursor_interval`: two of them after the last one it had ended, or had nothing to deliver.
///
/// # Errors
/// What the server says.
pub async fn ledger(
    client: &Client,
    pipeline: &str,
    row: Option<&Row>,
    cursor_interval: Duration,
) -> Result<Ledger, SourceError> {
    if let Some(row) = row.filter(|row| row.unfinished()) {
        return Ok(Ledger { known: row.known().map(str::to_owned), at: row.ledger_at });
    }
    let failed = |e| SourceError::control(format!("read the cursor of pipeline {pipeline:?}"), e);
    let sql = "SELECT (CASE WHEN pending_lsn <= watermark THEN pending_snapshot ELSE resolved_snapshot \
                 END)::pg_catalog.text, updated_at FROM postrider.cursor WHERE pipeline = $1 AND slot <> ''";
    let found = client.query_opt(sql, &[&pipeline]).await.map_err(failed)?;
    let ledger = |row: &tokio_postgres::Row| {
        let at: SystemTime = row.try_get(1)?;
        Ok(Ledger { known: row.try_get(0)?, at: Some(at + cursor_interval * 2) })
    };
    found.as_ref().map_or(Ok(Ledger::default()), ledger).map_err(failed)
}
