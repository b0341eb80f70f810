//! The files of `sql/toolkit`, as they are compiled into the program. The script of an installation and the check of
//! schema `postrider` ([`crate::schema_owner`]) are made from them.

/// A numbered migration of the toolkit: tables alone. It can be run again: a statement that was run before does
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToolkitMigration {
    /// The migration's position in the order, from 1 without gaps.
    pub number: u32,
    /// The name of the migration's file, without number and extension.
    pub name: &'static str,
    /// The migration's statements. They name every object with its schema.
    pub sql: &'static str,
}

/// Every migration, in order. A file is never edited after its release. A release that changes only functions has a
/// migration too, so that the number shows which functions a database has.
pub const MIGRATIONS: &[ToolkitMigration] = &[
    ToolkitMigration {
        number: 1,
        name: "event_log",
        sql: include_str!("../../../../sql/toolkit/0001_event_log.sql"),
    },
    ToolkitMigration {
        number: 2,
        name: "consumer_groups",
        sql: include_str!("../../../../sql/toolkit/0002_consumer_groups.sql"),
    },
    ToolkitMigration {
        number: 3,
        name: "inbox",
        sql: include_str!("../../../../sql/toolkit/0003_inbox.sql"),
    },
    ToolkitMigration {
        number: 4,
        name: "inbox_intake",
        sql: include_str!("../../../../sql/toolkit/0004_inbox_intake.sql"),
    },
    ToolkitMigration {
        number: 5,
        name: "table_outbox",
        sql: include_str!("../../../../sql/toolkit/0005_table_outbox.sql"),
    },
];

/// The version that this program installs: the number of the last migration.
pub const VERSION: u32 = 5;

/// The files of functions and views, in the order in which each installation runs them.
pub const FUNCTIONS: &[&str] = &[
    include_str!("../../../../sql/toolkit/functions/log.sql"),
    include_str!("../../../../sql/toolkit/functions/groups.sql"),
    include_str!("../../../../sql/toolkit/functions/retention.sql"),
    include_str!("../../../../sql/toolkit/functions/inbox.sql"),
    include_str!("../../../../sql/toolkit/functions/inbox_store.sql"),
    include_str!("../../../../sql/toolkit/functions/table_outbox.sql"),
];

/// Creates the table of versions.
pub const MIGRATION_TABLE: &str = "\
CREATE TABLE IF NOT EXISTS postrider.toolkit_migration (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);";

/// Whether a table of the first migration, or the table of versions, exists in schema `postrider`.
pub const PRESENT_SQL: &str = "\
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
  WHERE n.nspname = 'postrider' AND c.relname IN ('toolkit_migration', 'event_log'))";

/// The statements that create the tables that are missing, and write every function again: no names that depend on the
/// `search_path`, and no transaction.
pub fn objects_sql() -> String {
    let mut sql = String::new();
    for migration in MIGRATIONS {
        sql.push_str(&format_migration(migration));
    }
    for functions in FUNCTIONS {
        sql.push_str(functions.trim_end());
        sql.push_str("\n\n");
    }
    sql
}

/// A migration, and its row in the table of versions.
fn format_migration(migration: &ToolkitMigration) -> String {
    format!(
        "{}\nINSERT INTO postrider.toolkit_migration (number, name) VALUES ({}, '{}') ON CONFLICT DO NOTHING;\n\n",
        migration.sql.trim_end(),
        migration.number,
        migration.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps_up_to_our_version() {
        let numbers: Vec<u32> = MIGRATIONS.iter().map(|migration| migration.number).collect();
        assert_eq!(numbers, (1..=VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn no_name_of_a_migration_needs_quotes_in_sql() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(MIGRATIONS.iter().all(|migration| migration.name.chars().all(plain)));
    }
}
