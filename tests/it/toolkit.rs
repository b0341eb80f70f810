//! The SQL toolkit in a test's own database, from its files as they are on disk: every migration by its number, then
//! the functions, which is the order in which `postrider sql --install` runs them.

use crate::server::Client;
use std::fs;
use std::path::{Path, PathBuf};

/// Files of `sql/toolkit/functions` in the order in which they are run. A file that is not listed is run last.
const FUNCTIONS: [&str; 6] =
    ["log.sql", "groups.sql", "retention.sql", "inbox.sql", "inbox_store.sql", "table_outbox.sql"];

/// Installs the toolkit as the role of `sql`, which owns schema `postrider` afterwards, and gives `relay` the rights of
/// a relay. The relay's role creates logs: it owns the tables in schema `postrider_log`.
pub(crate) async fn install_toolkit(sql: &Client, relay: &str) {
    sql.batch(
        "create schema if not exists postrider; create schema if not exists postrider_log;
         create schema if not exists postrider_inbox;
         create table if not exists postrider.toolkit_migration (number integer primary key, name text not null,
             applied_at timestamptz not null default now())",
    )
    .await;
    for file in migrations() {
        sql.batch(&text(&file)).await;
        let (number, name) = numbered(&file);
        sql.batch(&format!(
            "insert into postrider.toolkit_migration (number, name) values ({number}, '{name}')
             on conflict (number) do nothing"
        ))
        .await;
    }
    for file in functions() {
        sql.batch(&text(&file)).await;
    }
    let relay = format!("\"{}\"", relay.replace('"', "\"\""));
    sql.batch(&format!(
        "revoke execute on all functions in schema postrider from public;
         grant usage on schema postrider to {relay};
         grant usage, create on schema postrider_log, postrider_inbox, postrider_outbox to {relay};
         grant select, insert, update, delete on all tables in schema postrider to {relay};
         grant usage on all sequences in schema postrider to {relay};
         grant execute on all functions in schema postrider to {relay}"
    ))
    .await;
}

/// The migrations of the toolkit, by number.
pub(crate) fn migrations() -> Vec<PathBuf> {
    let mut files = sql_files("sql/toolkit");
    files.sort();
    files
}

/// The files of functions, in order.
pub(crate) fn functions() -> Vec<PathBuf> {
    let mut files = sql_files("sql/toolkit/functions");
    files.sort_by_key(|file| {
        let place = FUNCTIONS.iter().position(|name| file.ends_with(name));
        (place.unwrap_or(FUNCTIONS.len()), file.clone())
    });
    files
}

/// The number and the name of a migration: `0001_event_log.sql` is 1 and `event_log`.
pub(crate) fn numbered(file: &Path) -> (u32, String) {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).expect("a name in UTF-8");
    let (number, name) = stem.split_once('_').expect("NNNN_name.sql");
    (number.parse().expect("a number"), name.to_owned())
}

fn sql_files(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = fs::read_dir(&directory).expect("the directory of the toolkit");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "sql")).collect()
}

pub(crate) fn text(file: &Path) -> String {
    fs::read_to_string(file).expect("a file of the toolkit")
}
