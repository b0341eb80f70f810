//! Postrider's own schema in the source database: its version, and the numbered migrations of `sql/schema/`. `setup`
//! applies them; the start check refuses any other version than [`VERSION`].

use super::error::SourceError;
use crate::schema_owner::{self, SessionRights};
use tokio_postgres::Client;

/// A numbered migration of the schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migration {
    /// The migration's position in the order, from 1 without gaps.
    pub number: u32,
    /// The name of the migration's file, without number and extension.
    pub name: &'static str,
    /// The migration's statements. They name every object with its schema.
    pub sql: &'static str,
}

/// Every migration, in order. A file is never edited after its release. Each table, default, CHECK, partial index or
/// function of it must be listed in `schema_owner/foreign.sql` too, or `setup` by an administrator refuses it.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        number: 1,
        name: "cursor",
        sql: include_str!("../../../sql/schema/0001_cursor.sql"),
    },
    Migration {
        number: 2,
        name: "parked",
        sql: include_str!("../../../sql/schema/0002_parked.sql"),
    },
    Migration {
        number: 3,
        name: "repair",
        sql: include_str!("../../../sql/schema/0003_repair.sql"),
    },
    Migration {
        number: 4,
        name: "bookmark",
        sql: include_str!("../../../sql/schema/0004_bookmark.sql"),
    },
    Migration {
        number: 5,
        name: "history",
        sql: include_str!("../../../sql/schema/0005_history.sql"),
    },
    Migration {
        number: 6,
        name: "rights",
        sql: include_str!("../../../sql/schema/0006_rights.sql"),
    },
    Migration {
        number: 7,
        name: "belongs",
        sql: include_str!("../../../sql/schema/0007_belongs.sql"),
    },
    Migration {
        number: 8,
        name: "owner_left",
        sql: include_str!("../../../sql/schema/0008_owner_left.sql"),
    },
    Migration { number: 9, name: "shard", sql: include_str!("../../../sql/schema/0009_shard.sql") },
    Migration {
        number: 10,
        name: "pause",
        sql: include_str!("../../../sql/schema/0010_pause.sql"),
    },
];

/// The version this binary works with.
pub const VERSION: u32 = 10;

/// The last version without the parked table.
const BEFORE_PARKED: u32 = 1;

/// The last version without the tables of a repair.
const BEFORE_REPAIR: u32 = 2;

/// The last version without the tables of bookmarks and replays.
const BEFORE_BOOKMARKS: u32 = 3;

/// The last version without the table of pauses.
const BEFORE_PAUSES: u32 = 9;

/// Creates the table of versions.
pub const MIGRATION_TABLE: &str = "\
CREATE TABLE postrider.migration (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);";

/// The state of the schema in the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaState {
    /// No schema `postrider`.
    Missing,
    /// The schema exists, without the table of versions.
    Empty,
    /// All migrations up to this number are applied; 0 for none.
    Version(u32),
    /// The schema was not read: another role could run code with the rights of this session ([`schema_owner`]).
    Untrusted,
}

impl SchemaState {
    /// The migrations that are still to be applied.
    pub fn pending(self) -> impl Iterator<Item = &'static Migration> {
        let have = match self {
            Self::Missing | Self::Empty => 0,
            Self::Version(number) => number,
            Self::Untrusted => u32::MAX,
        };
        MIGRATIONS.iter().filter(move |migration| migration.number > have)
    }
}

/// Reads the version, if the session may use the schema. Names are looked up in the catalog, which needs no right on
/// the schema.
pub async fn read(client: &Client, acting: SessionRights) -> Result<SchemaState, SourceError> {
    if acting != SessionRights::Printing && schema_owner::read(client, acting).await?.is_some() {
        return Ok(SchemaState::Untrusted);
    }
    read_trusted(client).await
}

/// As [`read`], after [`schema_owner::read`] was called.
pub(super) async fn read_trusted(client: &Client) -> Result<SchemaState, SourceError> {
    let failed = |e| SourceError::control("read the version of schema \"postrider\"", e);
    let row = client
        .query_opt(
            "SELECT c.oid IS NOT NULL FROM pg_catalog.pg_namespace n \
             LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'migration' \
             WHERE n.nspname = 'postrider'",
            &[],
        )
        .await
        .map_err(failed)?;
    match row.map(|row| row.try_get::<_, bool>(0)).transpose().map_err(failed)? {
        None => Ok(SchemaState::Missing),
        Some(false) => Ok(SchemaState::Empty),
        Some(true) => {
            let row = client
                .query_one(
                    "SELECT coalesce(pg_catalog.max(number), 0), ARRAY( \
                       SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c \
                       JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                       WHERE n.nspname = 'postrider' AND c.relkind = 'r') \
                     FROM postrider.migration",
                    &[],
                )
                .await
                .map_err(failed)?;
            let number = row.try_get::<_, i32>(0).map_err(failed)?.cast_unsigned();
            let tables: Vec<String> = row.try_get(1).map_err(failed)?;
            Ok(SchemaState::Version(complete_version(number, &tables)))
        }
    }
}

/// The last version of which all tables exist. If a table was dropped, setup creates it again.
fn complete_version(number: u32, tables: &[String]) -> u32 {
    let has = |name: &str| tables.iter().any(|table| table == name);
    if number > VERSION {
        number
    } else if !has("parked") {
        number.min(BEFORE_PARKED)
    } else if !(has("repair") && has("repair_page")) {
        number.min(BEFORE_REPAIR)
    } else if !(has("bookmark") && has("replay")) {
        number.min(BEFORE_BOOKMARKS)
    } else if !has("pause") {
        number.min(BEFORE_PAUSES)
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_table_is_created_again() {
        let all = ["cursor", "parked", "repair", "repair_page", "bookmark", "replay", "pause"]
            .map(str::to_owned);
        assert_eq!(complete_version(VERSION, &all), VERSION);
        assert_eq!(complete_version(VERSION, &all[..6]), BEFORE_PAUSES);
        assert_eq!(complete_version(VERSION, &all[..5]), BEFORE_BOOKMARKS);
        assert_eq!(complete_version(VERSION, &all[..3]), BEFORE_REPAIR);
        assert_eq!(complete_version(VERSION, &all[..1]), BEFORE_PARKED);
        assert_eq!(
            complete_version(VERSION + 1, &all[..1]),
            VERSION + 1,
            "a newer program's affair"
        );
        assert_eq!(complete_version(0, &[]), 0);
    }

    #[test]
    fn migrations_are_numbered_without_gaps_up_to_our_version() {
        let numbers: Vec<u32> = MIGRATIONS.iter().map(|m| m.number).collect();
        assert_eq!(numbers, (1..=VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_is_missing_is_pending() {
        assert_eq!(SchemaState::Missing.pending().count(), MIGRATIONS.len());
        assert_eq!(SchemaState::Empty.pending().count(), MIGRATIONS.len());
        assert_eq!(SchemaState::Version(VERSION).pending().count(), 0);
        assert_eq!(SchemaState::Version(VERSION + 1).pending().count(), 0);
    }
}
