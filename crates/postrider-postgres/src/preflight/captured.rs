//! Rules about captured tables and their publication: the problems that the start check halts at, and what a user
//! should know of tables that can be captured.

use super::FactSnapshot;
use crate::capture::tables::{CaptureFacts, CapturedFacts, CapturedRelation, ReplicaIdentity};
use crate::catalog::RelationKind;
use crate::names::ident;
use crate::schema::SchemaState;
use crate::start::{self, Facts};
use postrider_core::finding::{Finding, Severity};

/// Columns that are named in a finding at most.
const COLUMNS_NAMED: usize = 5;

pub(super) fn rules(snapshot: &FactSnapshot<'_>, captured: &CaptureFacts, out: &mut Vec<Finding>) {
    let before = out.len();
    let schema = snapshot.schema.unwrap_or(SchemaState::Missing);
    let facts = Facts { captured: Some(captured.clone()), ..snapshot.fence_with(schema) };
    for problem in start::capture_problems(&facts) {
        let finding = Finding::error(problem.id, problem.what);
        out.push(match problem.sql {
            Some(sql) => finding.why(problem.meaning).sql(sql),
            None => finding.why(format!("{}. To fix it: {}", problem.meaning, problem.fix)),
        });
    }
    if captured.publication.is_none() {
        out.push(missing_publication(snapshot));
    }
    let is_sound = !out.iter().skip(before).any(|finding| finding.severity == Severity::Error);
    for table in &captured.tables {
        let Some(found) = &table.found else { continue };
        if is_sound {
            out.push(Finding::ok("capture_table", sound(table, found)));
        }
        unchanged(table, found, out);
        later_partitions(table, found, out);
        children(table, found, out);
    }
    if is_sound {
        publication(snapshot, captured, &facts, out);
    }
}

/// `captured table "public"."orders", 4 columns, rows identified by "id"`
fn sound(table: &CapturedFacts, found: &CapturedRelation) -> String {
    let kind = match found.kind {
        RelationKind::Partitioned => "captured partitioned table",
        RelationKind::Table | RelationKind::Other => "captured table",
    };
    let columns = table.table.columns.as_ref().map_or(found.columns.len(), Vec::len);
    let by = match &found.identity {
        ReplicaIdentity::Full => "the whole row".to_owned(),
        ReplicaIdentity::Nothing => "nothing".to_owned(),
        ReplicaIdentity::Columns(key) => {
            key.iter().map(|column| ident(column)).collect::<Vec<_>>().join(", ")
        }
    };
    format!("{kind} {}, {columns} columns, rows identified by {by}", table.table.name)
}

/// Values that the stream does not have where an UPDATE does not change them.
fn unchanged(table: &CapturedFacts, found: &CapturedRelation, out: &mut Vec<Finding>) {
    let ReplicaIdentity::Columns(key) = &found.identity else { return };
    let is_published =
        |name: &String| table.table.columns.as_ref().is_none_or(|columns| columns.contains(name));
    let stored = found
        .columns
        .iter()
        .filter(|column| column.toastable && is_published(&column.name))
        .filter(|column| !key.contains(&column.name));
    let mut columns: Vec<String> = stored.map(|column| ident(&column.name)).collect();
    if columns.is_empty() {
        return;
    }
    let more = columns.len().saturating_sub(COLUMNS_NAMED);
    columns.truncate(COLUMNS_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (name, columns) = (&table.table.name, columns.join(", "));
    out.push(
        Finding::warning(
            "capture_unchanged",
            format!("a large value of column {columns}{more} of {name} is published only when it changes"),
        )
        .why(
            "PostgreSQL does not send a value that is stored outside of its row (about 2 kB and more) and that an \
             UPDATE does not change. The row then has no such member, and the document lists the column in \
             \"unchanged\". With REPLICA IDENTITY FULL every row is complete; each UPDATE and DELETE then writes the \
             whole old row to WAL",
        )
        .sql(format!("ALTER TABLE {name} REPLICA IDENTITY FULL;")),
    );
}

/// REPLICA IDENTITY FULL is not inherited by partitions that are created later.
fn later_partitions(table: &CapturedFacts, found: &CapturedRelation, out: &mut Vec<Finding>) {
    if found.kind != RelationKind::Partitioned || found.identity != ReplicaIdentity::Full {
        return;
    }
    let name = &table.table.name;
    out.push(
        Finding::warning(
            "capture_later_partitions",
            format!("partitions of {name} that are created later do not have its REPLICA IDENTITY FULL"),
        )
        .why(
            "the pipeline halts (PR009) at such a partition until ALTER TABLE … REPLICA IDENTITY FULL was run for it: \
             run it in the transaction that creates the partition. A primary key needs no such statement",
        ),
    );
}

fn children(table: &CapturedFacts, found: &CapturedRelation, out: &mut Vec<Finding>) {
    if found.children.is_empty() {
        return;
    }
    let (name, list) = (&table.table.name, found.children.join(", "));
    out.push(
        Finding::warning("capture_inherited", format!("tables inherit from {name}: {list}")).why(
            "SELECT from the table shows their rows too, and their changes are not published as changes of this \
             table: name them in capture.tables",
        ),
    );
}

fn missing_publication(snapshot: &FactSnapshot<'_>) -> Finding {
    let what = format!(
        "publication {:?} does not exist in database {:?}",
        snapshot.ask.names.publication, snapshot.server.database
    );
    let finding = Finding::error("publication_missing", what);
    if snapshot.slot.is_none() {
        return finding
            .why("Without the publication PostgreSQL sends no changes")
            .shell(snapshot.lines.setup.clone());
    }
    let finding = finding.why(
        "the server decodes with the publication as it was at each commit: changes committed while there was none are \
         skipped (18) or stop the stream (15 to 17), even if it is created again. Every change that is in the slot and \
         not published is lost as an event with these lines; the tables have their result: load the consumers again \
         from the tables",
    );
    snapshot.lines.every_row(finding, true)
}

/// A publication without a problem: whether it may have left out changes, or that it is sound.
fn publication(
    snapshot: &FactSnapshot<'_>,
    captured: &CaptureFacts,
    facts: &Facts,
    out: &mut Vec<Finding>,
) {
    let name = &snapshot.ask.names.publication;
    match start::publication_gap(facts) {
        Some(gap) => out.push(Finding::warning("publication_changed", gap).why(
            "the server decodes with the publication as it was at each commit. Harmless where nothing was committed \
             meanwhile, or where a table was added whose consumers are loaded afterwards",
        )),
        None => out.push(Finding::ok(
            "publication",
            format!("publication {name:?} publishes every change of {} tables", captured.tables.len()),
        )),
    }
}
