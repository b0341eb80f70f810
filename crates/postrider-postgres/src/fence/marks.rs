//! Rules about marks: the columns that they are written into exist, and writing them makes no new event.

use super::{Facts, halt};
use crate::names::ident;
use postrider_core::error::{Halt, HaltReason};

const NOT_PUBLISHED: &str =
    "nothing is published while halted; what was committed stays where it is, nothing is lost";

/// Every column that a mark reads or writes.
pub(super) fn columns(facts: &Facts) -> Option<Halt> {
    let (marks, table) = (facts.marks.as_ref()?, facts.table.as_ref()?);
    let lacks = |column: &&str| !table.columns.iter().any(|have| have.name == **column);
    let missing: Vec<&str> = marks.spec.columns().into_iter().filter(lacks).collect();
    if missing.is_empty() {
        return None;
    }
    let name = &marks.spec.table;
    let list: Vec<String> = missing.iter().map(|column| ident(column)).collect();
    let (order, written): (Vec<&str>, Vec<&str>) =
        missing.iter().partition(|column| marks.spec.time.as_deref() == Some(**column));
    let mut ways = vec!["correct outbox.layout".to_owned()];
    if !order.is_empty() {
        ways.push(
            "set outbox.columns.time to the table's own column (\"\" where it has none)".to_owned(),
        );
    }
    ways.push("stream without marks: mode = \"wal\" and poll.mark_streamed = false".to_owned());
    if !written.is_empty() {
        let add = |column: &&str| {
            format!("ADD COLUMN {} {}", ident(column), marks.spec.marks.column_type(column))
        };
        let added: Vec<String> = written.iter().map(add).collect();
        ways.push(format!(
            "add what the marks need: ALTER TABLE {name} {}; then write the mark into the rows that are published \
             already, since polling publishes every row without it",
            added.join(", ")
        ));
    }
    Some(halt(
        HaltReason::MarksUnfit,
        format!(
            "table {name} has no column {}, which polling and the marks of published rows need",
            list.join(", ")
        ),
        NOT_PUBLISHED,
        ways.join("; or "),
    ))
}

/// A row that has failed for good is deleted from the outbox and inserted there: what that table has no column for
/// would be lost.
pub(super) fn dead_letters(facts: &Facts) -> Option<Halt> {
    let marks = facts.marks.as_ref()?;
    let (dlq, have) = (marks.spec.dlq()?, marks.dlq.as_ref()?);
    let missing: Vec<String> =
        facts.columns.iter().filter(|column| !have.contains(column)).map(|c| ident(c)).collect();
    if missing.is_empty() {
        return None;
    }
    let outbox = &marks.spec.table;
    Some(halt(
        HaltReason::MarksUnfit,
        format!(
            "table {dlq}, where rows go that have failed for good, has no column {}",
            missing.join(", ")
        ),
        format!(
            "the move deletes the row from {outbox}: what has no column would be lost; {NOT_PUBLISHED}"
        ),
        format!(
            "give {dlq} the columns of {outbox}; or rename it: then a row that fails stays in {outbox} and is tried \
             again for ever"
        ),
    ))
}

/// An `UPDATE` that moves a row to another partition is a `DELETE` and an `INSERT` in WAL, and pgoutput does not tell
/// such an `INSERT` from a new row's.
pub(super) fn partition_key(facts: &Facts) -> Option<Halt> {
    let (marks, table) = (facts.marks.as_ref()?, facts.table.as_ref()?);
    let key = &table.partitions.key;
    let moving: Vec<String> = marks
        .spec
        .written()
        .into_iter()
        .filter(|written| key.iter().any(|column| column == written))
        .map(ident)
        .collect();
    if moving.is_empty() {
        return None;
    }
    let name = &marks.spec.table;
    Some(halt(
        HaltReason::MarksUnfit,
        format!(
            "table {name} is partitioned by column {}, which the marks of published rows change",
            moving.join(", ")
        ),
        format!(
            "a mark that moves a row to another partition comes back by the stream as a new event: each event would \
             be published twice; {NOT_PUBLISHED}"
        ),
        "turn the marks off: mode = \"wal\" and poll.mark_streamed = false, and let the application mark or delete \
         its rows without moving them; or read the table without the stream: mode = \"poll\"; or partition the table \
         by a column that no mark changes, the event's time for example",
    ))
}
