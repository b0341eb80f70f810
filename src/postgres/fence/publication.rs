//! Rules about the publication: it exists, and publishes every insert of the table whole, under the table's own name.

use super::object::accept_gap;
use super::{Facts, halt};
use crate::error::{Halt, HaltReason};
use crate::postgres::names::{TableName, ident, literal};
use crate::postgres::table::{RelationKind, TableFacts};

/// The first server with `publish_generated_columns`.
const GENERATED_SINCE: u32 = 180_000;

/// It exists.
pub(super) fn exists(facts: &Facts) -> Option<Halt> {
    facts.publication.is_none().then(|| missing(facts))
}

pub(super) fn missing(facts: &Facts) -> Halt {
    let name = &facts.names.publication;
    halt(
        HaltReason::PublicationMissing,
        format!("publication {name:?} does not exist in database {:?}", facts.server.database),
        "the server decodes with the publication as it was at each commit: rows committed while it did not exist \
             are skipped (18) or stop the stream (15 to 17), even if it is made again now",
        if facts.slot.is_some() {
            format!(
                "begin a new slot behind a new publication, since WAL from before it can't be used: SELECT \
                     pg_drop_replication_slot({}); {}",
                literal(&facts.names.slot),
                accept_gap(facts)
            )
        } else {
            facts.command("setup")
        },
    )
}

fn unfit(facts: &Facts, what: &str, hint: String) -> Halt {
    halt(
        HaltReason::PublicationUnfit,
        format!("publication {:?} {what}", facts.names.publication),
        "rows it leaves out would be passed over without a trace; nothing is confirmed while halted",
        hint,
    )
}

/// Inserts of the table, all of them, under its own name.
pub(super) fn rows(facts: &Facts) -> Option<Halt> {
    let publication = facts.publication.as_ref()?;
    let alter = format!("ALTER PUBLICATION {}", ident(&facts.names.publication));
    if !publication.insert {
        let hint = format!("{alter} SET (publish = 'insert');");
        return Some(unfit(facts, "does not publish inserts", hint));
    }
    let name = facts.names.table.as_ref()?;
    let facts_of_table = facts.table.as_ref()?;
    let Some(published) = &publication.table else {
        let hint = if facts_of_table.is_partition {
            "name the partitioned table in outbox.table, not its partition".to_owned()
        } else {
            add_table(&alter, name)
        };
        return Some(unfit(facts, &format!("does not publish table {name}"), hint));
    };
    if facts_of_table.kind == RelationKind::Partitioned && !publication.via_root {
        return Some(unfit(
            facts,
            &format!("publishes partitions of {name} under their own names"),
            via_root(&alter, name, publication.names_table),
        ));
    }
    published.row_filter.as_ref().map(|_| {
        unfit(
            facts,
            &format!("has a row filter on table {name}"),
            format!("{alter} SET TABLE {name};"),
        )
    })
}

/// Where the table itself is not named, its other partitions are not published: it is added by the same transaction.
pub(in crate::postgres) fn via_root(alter: &str, name: &TableName, named: bool) -> String {
    let set = format!("{alter} SET (publish_via_partition_root = true);");
    if named {
        return set;
    }
    format!("BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} ADD TABLE {name}; {set} COMMIT;")
}

/// Rows that open transactions wrote before the change would be left out: the lock waits for them.
fn add_table(alter: &str, name: &TableName) -> String {
    format!("BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} ADD TABLE {name}; COMMIT;")
}

/// Every column the layout needs.
pub(super) fn columns(facts: &Facts) -> Option<Halt> {
    let name = facts.names.table.as_ref()?;
    let published = facts.publication.as_ref()?.table.as_ref()?;
    let table = facts.table.as_ref()?;
    // Before 18 the catalog counts generated columns among the published ones, and the stream has none of them.
    let generated = |name: &String| {
        facts.server.version < GENERATED_SINCE
            && table.columns.iter().any(|column| column.generated && column.name == *name)
    };
    let hidden: Vec<&String> = facts
        .columns
        .iter()
        .filter(|column| !published.columns.contains(column) || generated(column))
        .collect();
    if hidden.is_empty() {
        return None;
    }
    let quoted: Vec<String> = hidden.iter().map(|column| ident(column)).collect();
    Some(unfit(
        facts,
        &format!("does not publish column {} of table {name}", quoted.join(", ")),
        show_columns(facts, table, name, &hidden),
    ))
}

/// What publishes these columns. A generated one is made by the server from others, which the stream has.
fn show_columns(facts: &Facts, table: &TableFacts, name: &TableName, hidden: &[&String]) -> String {
    let alter = format!("ALTER PUBLICATION {}", ident(&facts.names.publication));
    if !table.columns.iter().any(|column| column.generated && hidden.contains(&&column.name)) {
        return format!("{alter} SET TABLE {name};");
    }
    let map = "a generated column is not streamed: map an ordinary column in outbox.columns";
    if facts.server.version < GENERATED_SINCE {
        return map.to_owned();
    }
    format!("{map}; or, if it is STORED: {alter} SET (publish_generated_columns = stored);")
}
