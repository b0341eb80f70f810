//! Rules about the publication: it exists, and publishes every insert of the table whole, under the table's own name.

use super::object::{begin_with_every_row, from_table, inserted};
use super::{Facts, halt};
use crate::names::{TableName, ident};
use crate::poll::PollSpec;
use crate::poll::marks::unmarked;
use crate::publication::Concerned;
use crate::table::{RelationKind, TableFacts};
use postrider_core::error::{Halt, HaltReason};
use std::time::Duration;

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
        match (&facts.slot, &facts.cursor) {
            (None, None) => facts.setup(""),
            // Nothing says what was published.
            (Some(_), None) => begin_with_every_row(facts),
            (_, Some(_)) => format!("{}; then {}", create(facts), from_the_table(facts)),
        },
    )
}

/// The statement that makes it.
pub(super) fn create(facts: &Facts) -> String {
    let table = facts.names.table.as_ref().map_or_else(String::new, |t| format!(" FOR TABLE {t}"));
    format!(
        "CREATE PUBLICATION {}{table} WITH (publish = '{}', publish_via_partition_root = true)",
        ident(&facts.names.publication),
        facts.names.published()
    )
}

/// It may have left out rows that are not known to be published.
pub(super) fn gap(facts: &Facts) -> Option<String> {
    facts.since.publication.then(|| {
        if facts.since.table {
            return format!(
                "the outbox table and its place in publication {:?} were created after what is known to be published: \
                 rows that were inserted before the table was published are in no stream, and events of a table that \
                 was dropped are in the slot alone",
                facts.names.publication
            );
        }
        format!(
            "publication {:?} was created or changed after what is known to be published: rows that were committed \
             before the change may be in no stream",
            facts.names.publication
        )
    })
}

/// It was changed while it was streamed.
pub(super) fn left_out(facts: &Facts, concerned: Concerned, interval: Duration) -> Halt {
    let table = facts.names.table.as_ref().map_or_else(String::new, ToString::to_string);
    let rows = match concerned.rows {
        Some(rows) => format!("{rows} rows of {table} that were committed in this time"),
        None => {
            format!("rows of {table} that were committed in this time and could not be counted")
        }
    };
    let open =
        if concerned.open_writers { ", and rows of transactions that are still open," } else { "" };
    halt(
        HaltReason::PublicationUnfit,
        format!(
            "publication {:?} was changed and changed back, or created again, while it was streamed",
            facts.names.publication
        ),
        format!(
            "the publication was looked at {} s before: {rows}{open} may have been left out of the stream, which says \
             nothing of it. They are in the table unless the application deleted them, and are not taken for published",
            interval.as_secs()
        ),
        from_the_table(facts),
    )
}

/// What publishes the rows that it left out, where it is fit now.
pub(super) fn from_the_table(facts: &Facts) -> String {
    created_again(facts).unwrap_or_else(|| from_table(facts))
}

/// The remedy where the table was created after what is known to be published. A new slot would lose what the slot
/// still holds of a table that was dropped, so the new table's rows are written again, behind it in the same slot.
fn created_again(facts: &Facts) -> Option<String> {
    let (name, table) = (facts.names.table.as_ref()?, facts.table.as_ref()?);
    if !facts.since.table || facts.slot.is_none() || table.is_partition {
        return None;
    }
    let marks = facts.marks.as_ref().map(|marks| &marks.spec);
    Some(format!(
        "{} (it writes the rows of the new table again, so that the slot brings them; rows that it brings already come \
         twice). The table was created after what is known to be published, and only the slot has events of one that \
         was dropped: start again with this slot, do not repair",
        insert_again(marks, table, name).trim_end_matches(';')
    ))
}

/// Deletes the rows that are not marked and inserts them again, with the publication as it is now.
pub(crate) fn insert_again(
    marks: Option<&PollSpec>,
    table: &TableFacts,
    name: &TableName,
) -> String {
    let columns = inserted(table);
    let filter = marks.map_or_else(String::new, |spec| format!(" WHERE {}", unmarked(spec)));
    format!(
        "BEGIN; LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE; WITH again AS (DELETE FROM {name} AS o{filter} \
         RETURNING {columns}) INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM again; \
         COMMIT;"
    )
}

/// What follows a change of it: the rows of before.
fn then_from_table(facts: &Facts, change: &str) -> String {
    let change = change.trim_end_matches(';');
    match (&facts.slot, &facts.cursor) {
        (Some(_), Some(_)) => match created_again(facts) {
            Some(again) => format!("{change}; then {again}"),
            None => format!("{change}; then {}", from_table(facts)),
        },
        _ => format!("{change};"),
    }
}

fn unfit(facts: &Facts, what: &str, hint: &str) -> Halt {
    halt(
        HaltReason::PublicationUnfit,
        format!("publication {:?} {what}", facts.names.publication),
        "rows that were committed while it was so are in no stream; nothing is confirmed while halted",
        then_from_table(facts, hint),
    )
}

/// No UPDATE would be seen, so none would halt. Its inserts are whole.
fn no_updates(facts: &Facts, alter: &str) -> Halt {
    halt(
        HaltReason::PublicationUnfit,
        format!(
            "publication {:?} does not publish updates, which outbox.on_update = \"halt\" has to see",
            facts.names.publication
        ),
        "no event is lost; an UPDATE that was committed until then is not in the stream, and halts nothing",
        format!(
            "{alter} SET (publish = '{}'); then start again. The table needs a primary key, or REPLICA IDENTITY FULL: \
             else PostgreSQL refuses its UPDATEs (SQLSTATE 55000)",
            facts.names.published()
        ),
    )
}

/// Inserts of the table, all of them, under its own name.
pub(super) fn rows(facts: &Facts) -> Option<Halt> {
    let publication = facts.publication.as_ref()?;
    let alter = format!("ALTER PUBLICATION {}", ident(&facts.names.publication));
    if !publication.insert {
        let hint = format!("{alter} SET (publish = '{}');", facts.names.published());
        return Some(unfit(facts, "does not publish inserts", &hint));
    }
    if facts.names.updates && !publication.update {
        return Some(no_updates(facts, &alter));
    }
    let name = facts.names.table.as_ref()?;
    let facts_of_table = facts.table.as_ref()?;
    let Some(published) = &publication.table else {
        let hint = if facts_of_table.is_partition {
            "name the partitioned table in outbox.table, not its partition".to_owned()
        } else {
            add_table(facts, name)
        };
        return Some(unfit(facts, &format!("does not publish table {name}"), &hint));
    };
    if facts_of_table.kind == RelationKind::Partitioned && !publication.via_root {
        return Some(unfit(
            facts,
            &format!("publishes partitions of {name} under their own names"),
            &via_root(&alter, name, publication.names_table),
        ));
    }
    published.row_filter.as_ref().map(|_| {
        unfit(
            facts,
            &format!("has a row filter on table {name}"),
            &format!("{alter} SET TABLE {name};"),
        )
    })
}

/// Where the table itself is not named, its other partitions are not published: it is added by the same transaction.
pub(crate) fn via_root(alter: &str, name: &TableName, named: bool) -> String {
    let set = format!("{alter} SET (publish_via_partition_root = true);");
    if named {
        return set;
    }
    format!("BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} ADD TABLE {name}; {set} COMMIT;")
}

/// Rows that open transactions wrote before the change would be left out: the lock waits for them.
pub(super) fn add_table(facts: &Facts, name: &TableName) -> String {
    let publication = ident(&facts.names.publication);
    format!(
        "BEGIN; LOCK TABLE {name} IN SHARE MODE; ALTER PUBLICATION {publication} ADD TABLE {name}; COMMIT"
    )
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
        &show_columns(facts, table, name, &hidden),
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
