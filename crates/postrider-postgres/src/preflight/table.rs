//! Rules about the outbox table, the publication, polling, and time zones. The table's columns are checked by the
//! layout's own rules.

use super::facts::TableSurroundings;
use super::{FactSnapshot, PreflightQuery};
use crate::catalog::{
    Persistence, PublicationFacts, PublishedTable, RelationKind, TableFacts, UnfitLeaf,
    UnfitLeafKind,
};
use crate::names::{TableName, ident, literal};
use crate::poll::PollSpec;
use crate::poll::dialect::column_type;
use crate::poll::order::Unrecorded;
use crate::schema::SchemaState;
use crate::start;
use crate::times::{ServerZone, TimeType, with_zone};
use postrider_core::finding::{Finding, Severity};
use tokio_postgres::Client;

pub(super) fn rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let Some(name) = &snapshot.ask.names.table else {
        messages(snapshot, out);
        return;
    };
    let Some(table) = &snapshot.table else {
        out.push(missing(snapshot, name));
        return;
    };
    let before = out.len();
    let around = snapshot.around.clone().unwrap_or_default();
    kind(snapshot, name, table, &around, out);
    partitions(snapshot, name, table, out);
    swallowed(name, &around, out);
    row_security(snapshot, name, &around, out);
    if out.len() == before {
        let kind = match table.kind {
            RelationKind::Partitioned => "partitioned table",
            RelationKind::Table | RelationKind::Other => "table",
        };
        out.push(Finding::ok("table", format!("{kind} {name}, {} columns", table.columns.len())));
    }
    messages(snapshot, out);
}

fn missing(snapshot: &FactSnapshot<'_>, name: &TableName) -> Finding {
    let finding = Finding::error(
        "table_missing",
        format!("table {name} does not exist in database {:?}", snapshot.server.database),
    )
    .why("there is nothing to read events from");
    match snapshot.namesakes.as_slice() {
        [other] => finding.config(snapshot.lines.config("outbox.table", &configured(other))),
        _ => made(snapshot, finding, name),
    }
}

/// `setup` creates the table, but does not change an existing publication.
fn made(snapshot: &FactSnapshot<'_>, finding: Finding, name: &TableName) -> Finding {
    let lines = &snapshot.lines;
    let create = format!("{} --create-table", lines.setup);
    match &snapshot.publication {
        Some(publication) if !publication.all_tables => {
            let publication = ident(&snapshot.ask.names.publication);
            finding
                .shell(format!(
                    "{create} --print-sql | psql -X -q -v ON_ERROR_STOP=1 '{}'",
                    lines.admin
                ))
                .sql(format!("ALTER PUBLICATION {publication} ADD TABLE {name};"))
        }
        Some(_) | None => finding.shell(create),
    }
}

/// A table's name in the syntax of `outbox.table`.
fn configured(table: &TableName) -> String {
    let plain = |name: &str| {
        let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        first && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let part = |name: &str| if plain(name) { name.to_owned() } else { ident(name) };
    format!("{}.{}", part(&table.schema), part(&table.name))
}

fn kind(
    snapshot: &FactSnapshot<'_>,
    name: &TableName,
    table: &TableFacts,
    around: &TableSurroundings,
    out: &mut Vec<Finding>,
) {
    if table.kind == RelationKind::Other {
        let finding = Finding::error("table_kind", format!("{name} is a {}", around.kind))
            .why("WAL has no rows of it; the table beneath it has");
        out.push(match &around.beneath {
            Some(beneath) => publish_instead(
                snapshot,
                finding.config(snapshot.lines.config("outbox.table", &configured(beneath))),
                beneath,
            ),
            None => finding,
        });
    }
    match table.persistence {
        Persistence::Logged => {}
        Persistence::Unlogged if table.kind == RelationKind::Partitioned => out.push(
            Finding::error("table_unlogged", format!("partitioned table {name} is marked UNLOGGED")).why(
                "no publication takes it, and ALTER TABLE … SET LOGGED does not change a partitioned table: make one \
                 without UNLOGGED in its place, and attach the partitions to it",
            ),
        ),
        Persistence::Unlogged => out.push(snapshot.lines.left_out(
            Finding::error("table_unlogged", format!("table {name} is unlogged"))
                .why(
                    "WAL has no rows of it: no event is ever seen. The statement rewrites the table, under a lock; \
                     the rows that it has are published from the table",
                )
                .sql(format!("ALTER TABLE {name} SET LOGGED;")),
            // If the publication lacks the table, that is fixed next, by the same command.
            snapshot.slot.is_some()
                && snapshot.publication.as_ref().is_some_and(|publication| publication.table.is_some()),
        )),
        Persistence::Temporary => out.push(
            Finding::error("table_unlogged", format!("table {name} is temporary"))
                .why("WAL has no rows of it: no event is ever seen")
                .shell(format!("{} --create-table", snapshot.lines.setup)),
        ),
    }
    if let Some(root) = &around.root {
        let finding = Finding::error("table_partition", format!("{name} is a partition of {root}"))
            .why("rows of the other partitions are not events then; rows come under the name of the whole")
            .config(snapshot.lines.config("outbox.table", &configured(root)));
        out.push(publish_instead(snapshot, finding, root));
    }
    for child in &around.children {
        out.push(
            Finding::warning("table_inherited", format!("table {child} inherits from {name}"))
                .why("rows inserted into it come under its own name, and are passed over")
                .sql(format!("ALTER TABLE {child} NO INHERIT {name};")),
        );
    }
}

/// Partitions whose rows are in no stream, or are not safe to be polled.
fn partitions(
    snapshot: &FactSnapshot<'_>,
    name: &TableName,
    table: &TableFacts,
    out: &mut Vec<Finding>,
) {
    let streams = snapshot.ask.streams;
    for UnfitLeaf { name: leaf, kind } in &table.partitions.unfit {
        out.push(match kind {
            UnfitLeafKind::Unlogged if streams && snapshot.is_fresh() => {
                Finding::error("table_partition_unlogged", format!("partition {leaf} of {name} is unlogged"))
                    .why(
                        "rows inserted into it are in no stream, and a crash of the server empties it. What is in the \
                         table before there is a slot is published by setup --backfill all, below",
                    )
                    .sql(format!("ALTER TABLE {leaf} SET LOGGED;"))
            }
            UnfitLeafKind::Unlogged if streams => {
                let repeats = if snapshot.ask.poll.is_some() {
                    ""
                } else {
                    ", also those that were streamed before"
                };
                Finding::error("table_partition_unlogged", format!("partition {leaf} of {name} is unlogged"))
                    .why(format!(
                        "rows inserted into it are in no stream, and a crash of the server empties it. The line writes \
                         the partition again, under a lock, and inserts its rows again{repeats}: they come \
                         behind later events of their aggregate"
                    ))
                    .sql(start::log_leaf(snapshot.ask.poll, table, name, leaf))
            }
            UnfitLeafKind::Unlogged => {
                Finding::error("table_partition_unlogged", format!("partition {leaf} of {name} is unlogged"))
                    .why("a crash of the server empties it, with every event that is not published yet")
                    .sql(format!("ALTER TABLE {leaf} SET LOGGED;"))
            }
            UnfitLeafKind::Foreign { insertable: false } if streams => continue,
            UnfitLeafKind::Foreign { .. } => {
                Finding::error("table_partition_foreign", format!("partition {leaf} of {name} is a foreign table"))
                    .why(
                        "its rows are in another server's WAL, and can't be locked and marked here. Insert those that \
                         are not published into an ordinary partition; one that keeps old rows alone may stay where \
                         the log is streamed, if it refuses new ones (postgres_fdw: OPTIONS (ADD updatable 'false'))",
                    )
                    .sql(format!("ALTER TABLE {name} DETACH PARTITION {leaf};"))
            }
        });
    }
}

/// An existing publication must publish the table that the configuration names from now on.
fn publish_instead(snapshot: &FactSnapshot<'_>, finding: Finding, table: &TableName) -> Finding {
    match &snapshot.publication {
        Some(publication) if !publication.all_tables => {
            let publication = ident(&snapshot.ask.names.publication);
            let finding = finding
                .sql(format!("ALTER PUBLICATION {publication} SET TABLE {table};"))
                .sql(format!(
                    "ALTER PUBLICATION {publication} SET (publish = '{}', publish_via_partition_root = true);",
                    snapshot.ask.names.published()
                ));
            snapshot.lines.left_out(finding, snapshot.slot.is_some())
        }
        Some(_) | None => finding,
    }
}

/// Inserts that leave no row.
fn swallowed(name: &TableName, around: &TableSurroundings, out: &mut Vec<Finding>) {
    if !around.triggers.is_empty() {
        let list = around.triggers.join(", ");
        let mut finding = Finding::warning(
            "table_trigger",
            format!("before an insert into {name} a trigger decides: {list}"),
        )
        .why(
            "if the trigger returns NULL, the row is not inserted and no error is raised: the event is lost. A trigger \
             that only fills columns in is harmless",
        );
        for trigger in &around.triggers {
            finding =
                finding.sql(format!("ALTER TABLE {name} DISABLE TRIGGER {};", ident(trigger)));
        }
        out.push(finding);
    }
    if !around.rules.is_empty() {
        let list = around.rules.join(", ");
        let mut finding =
            Finding::error("table_rule", format!("an insert into {name} is rewritten by rule {list}")).why(
                "INSTEAD the rule's own statement runs: the row is not inserted here, and no event is seen",
            );
        for rule in &around.rules {
            finding = finding.sql(format!("ALTER TABLE {name} DISABLE RULE {};", ident(rule)));
        }
        out.push(finding);
    }
}

fn row_security(
    snapshot: &FactSnapshot<'_>,
    name: &TableName,
    around: &TableSurroundings,
    out: &mut Vec<Finding>,
) {
    let Some(role) = &snapshot.role else { return };
    if around.rls && !around.rls_open && !role.bypasses_rls {
        out.push(
            Finding::warning("table_rls", format!("row security of {name} hides its rows from role {:?}", role.name))
                .why("streaming is not touched by it; looking for what consumers miss by SQL finds nothing")
                .sql(format!("CREATE POLICY postrider ON {name} FOR SELECT TO {} USING (true);", ident(&role.name))),
        );
    }
}

/// Logical messages, if they are events.
fn messages(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    if snapshot.ask.messages && snapshot.ask.streams && snapshot.ask.polls {
        out.push(
            Finding::warning(
                "messages_only_in_wal",
                "logical messages are events, and mode = \"auto\" goes on without the slot when it is lost",
            )
            .why(
                "a message has no row: those that were written and not published before the slot was lost are lost, \
                 and while the table is polled none is published. With mode = \"wal\" the pipeline halts instead",
            ),
        );
    }
    if !snapshot.ask.messages || snapshot.sessions.emit.is_empty() {
        return;
    }
    let mut finding = Finding::warning("messages_public", "every role may write logical messages")
        .why("any role of the database can write events with your prefix; GRANT it to the application's role again");
    for function in &snapshot.sessions.emit {
        finding =
            finding.sql(format!("REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC;"));
    }
    out.push(finding);
}

const LEFT_OUT: &str = "PostgreSQL skips rows that it does not publish, without an error";

pub(super) fn publication_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let name = &snapshot.ask.names.publication;
    let Some(publication) = &snapshot.publication else {
        out.push(missing_publication(snapshot));
        return;
    };
    let before = out.len();
    events(snapshot, publication, out);
    if publication.all_tables {
        out.push(all_tables(snapshot));
    }
    if let (Some(table_name), Some(table)) = (&snapshot.ask.names.table, &snapshot.table) {
        of_table(snapshot, publication, table_name, table, out);
    }
    // The remediation of an error ends with the same command.
    if !out.iter().skip(before).any(|finding| finding.severity == Severity::Error) {
        changed(snapshot, out);
    }
    if out.len() == before {
        out.push(Finding::ok(
            "publication",
            format!("publication {name:?} publishes every insert, whole"),
        ));
    }
}

/// WAL is decoded with the publication as it was at the time: a publication that is created now does not help an
/// existing slot.
fn missing_publication(snapshot: &FactSnapshot<'_>) -> Finding {
    let lines = &snapshot.lines;
    let what = format!(
        "publication {:?} does not exist in database {:?}",
        snapshot.ask.names.publication, snapshot.server.database
    );
    let finding = Finding::error("publication_missing", what);
    if snapshot.slot.is_none() {
        return finding
            .why("Without the publication PostgreSQL sends no events")
            .shell(lines.setup.clone());
    }
    let finding = finding.why(
        "the server decodes with the publication as it was at each commit: rows committed while there was none are \
         skipped (18) or stop the stream (15 to 17), even if it is created again. Those rows are published from the \
         table, and a new slot begins behind the new publication; logical messages of that time are lost",
    );
    if snapshot.cursor.is_none() || snapshot.ask.names.table.is_none() {
        return lines.every_row(finding, true);
    }
    lines.left_out(finding.sql(create(snapshot, &snapshot.ask.names.publication)), true)
}

fn create(snapshot: &FactSnapshot<'_>, name: &str) -> String {
    let table = snapshot.ask.names.table.as_ref();
    let table = table.map_or_else(String::new, |table| format!(" FOR TABLE {table}"));
    format!(
        "CREATE PUBLICATION {}{table} WITH (publish = '{}', publish_via_partition_root = true);",
        ident(name),
        snapshot.ask.names.published()
    )
}

/// After the statement that fixes the publication: the rows that it has left out until then.
fn left_out(snapshot: &FactSnapshot<'_>, finding: Finding) -> Finding {
    let (slot, cursor) = (snapshot.slot.is_some(), snapshot.cursor.is_some());
    match (&snapshot.ask.names.table, &snapshot.table) {
        (Some(name), Some(table)) if slot && cursor && snapshot.since.table => {
            let why = format!(
                "{}. The table was created after what is known to be published, and only the slot has the events of \
                 one that was dropped: start again with this slot, and do not repair. The statements write the new \
                 table's rows again, so that the slot brings them behind those; rows that it brings already come twice",
                finding.why
            );
            let marks = snapshot.marks.as_ref().map(|marks| &marks.spec);
            finding.why(why).sql(start::insert_again(marks, table, name))
        }
        _ => snapshot.lines.left_out(finding, slot),
    }
}

/// The publication may have left out rows before its current state.
fn changed(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let Some(gap) = snapshot.fence().as_ref().and_then(start::publication_gap) else { return };
    let harmless = "the server decodes with the publication as it was at each commit. Harmless where nothing was \
                    committed, or where the change left out no row; otherwise";
    let names = &snapshot.ask.names;
    if names.in_transactions && names.table.is_some() {
        let why = format!(
            "{harmless} insert those rows again (docs/operations/upgrades.md#publishing-again)"
        );
        out.push(Finding::warning("publication_changed", gap).why(why));
        return;
    }
    let why = format!("{harmless} those rows are published from the table (--dry-run counts them)");
    // The slot can be used: what only the slot has must not be lost with it.
    let first = if snapshot.slot.is_some() && !snapshot.since.table {
        ". Before that let postrider run reach a lag of 0, and stop it: the line below drops the slot, and with it the \
         events of rows that were deleted since, and logical messages, that were not published"
    } else {
        ""
    };
    let finding = Finding::warning("publication_changed", gap).why(format!("{why}{first}"));
    out.push(if snapshot.ask.poll.is_some() || snapshot.since.table {
        left_out(snapshot, finding)
    } else {
        finding.shell(snapshot.lines.repair.clone())
    });
}

fn alter(snapshot: &FactSnapshot<'_>) -> String {
    format!("ALTER PUBLICATION {}", ident(&snapshot.ask.names.publication))
}

/// Which statements the publication publishes.
fn events(snapshot: &FactSnapshot<'_>, publication: &PublicationFacts, out: &mut Vec<Finding>) {
    let name = &snapshot.ask.names.publication;
    let updates = snapshot.ask.names.updates;
    let inserts =
        format!("{} SET (publish = '{}');", alter(snapshot), snapshot.ask.names.published());
    if !publication.insert {
        out.push(
            Finding::error(
                "publication_insert",
                format!("publication {name:?} does not publish inserts"),
            )
            .why(format!("no event is ever seen: {LEFT_OUT}"))
            .sql(inserts),
        );
        // Following the remediation publishes the rows that were left out.
        let last = out.pop().map(|finding| left_out(snapshot, finding));
        out.extend(last);
        return;
    }
    let identity = snapshot.around.as_ref().is_none_or(|around| around.has_identity);
    if updates && !publication.update {
        out.push(
            Finding::error(
                "publication_update",
                format!("publication {name:?} does not publish updates"),
            )
            .why("outbox.on_update = \"halt\" is to halt at an UPDATE, and none is in the stream (PR008)")
            .sql(inserts),
        );
    } else if publication.more_than_needed(updates) {
        let what =
            format!("publication {name:?} publishes more than {}s", snapshot.ask.names.published());
        out.push(if identity {
            Finding::warning("publication_more", what)
                .why("deleted rows are decoded and sent, and then skipped")
                .sql(inserts)
        } else {
            Finding::error("publication_more", what)
                .why("the outbox has no primary key: the application's own DELETE and UPDATE fail (55000)")
                .sql(inserts)
        });
    }
}

/// FOR ALL TABLES cannot be altered: another publication takes its place, with a new slot.
fn all_tables(snapshot: &FactSnapshot<'_>) -> Finding {
    let (names, lines) = (&snapshot.ask.names, &snapshot.lines);
    let name = &names.publication;
    let finding = Finding::warning("publication_all_tables", format!("publication {name:?} is FOR ALL TABLES"))
        .why(
            "every table of the database is decoded and sent for nothing, the relay's own cursor among them. It can't \
             be altered: a publication of another name, and a new slot behind it. Rows that the old slot has not \
             brought are published from the table",
        );
    if names.table.is_none() {
        return finding;
    }
    let other = format!("{name}_outbox");
    let finding =
        finding.config(lines.config("source.publication", &other)).sql(create(snapshot, &other));
    match (&snapshot.slot, &snapshot.cursor) {
        (Some(_), Some(_)) => left_out(snapshot, finding),
        (Some(_), None) => lines.every_row(finding, true),
        (None, _) => finding.shell(lines.setup.clone()),
    }
}

fn of_table(
    snapshot: &FactSnapshot<'_>,
    publication: &PublicationFacts,
    name: &TableName,
    table: &TableFacts,
    out: &mut Vec<Finding>,
) {
    let called = format!("publication {:?}", snapshot.ask.names.publication);
    let alter = alter(snapshot);
    // A view and a partition have findings of their own, which fix the publication too.
    let other = table.kind == RelationKind::Other
        || table.persistence == Persistence::Temporary
        || snapshot.around.as_ref().is_some_and(|around| around.root.is_some());
    match &publication.table {
        Some(published) => whole(snapshot, published, name, table, out),
        None if other => return,
        None => out.push(left_out(
            snapshot,
            Finding::error("publication_table", format!("{called} does not publish table {name}"))
                .why(format!(
                    "no event is ever seen: {LEFT_OUT}. The lock waits for open writers, whose earlier rows would \
                     be left out"
                ))
                .sql(format!("BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} ADD TABLE {name}; COMMIT;")),
        )),
    }
    if table.kind == RelationKind::Partitioned && !publication.via_root {
        out.push(left_out(
            snapshot,
            Finding::error(
                "publication_via_root",
                format!("{called} publishes partitions of {name} under their own names"),
            )
            .why("rows are found by the name of the table: under a partition's name they are skipped")
            .sql(start::via_root(&alter, name, publication.names_table)),
        ));
    } else if !publication.all_tables && publication.other_tables > 0 {
        out.push(
            Finding::warning(
                "publication_other_tables",
                format!("{called} publishes {} tables beside {name}", publication.other_tables),
            )
            .why("their rows are decoded, sent and skipped")
            .sql(format!("{alter} SET TABLE {name};")),
        );
    }
}

/// Every row of the table and every required column is published.
fn whole(
    snapshot: &FactSnapshot<'_>,
    published: &PublishedTable,
    name: &TableName,
    table: &TableFacts,
    out: &mut Vec<Finding>,
) {
    let called = format!("publication {:?}", snapshot.ask.names.publication);
    let alter = alter(snapshot);
    let again = format!(
        "BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} DROP TABLE {name}; {alter} ADD TABLE {name}; COMMIT;"
    );
    if published.row_filter.is_some() {
        out.push(left_out(
            snapshot,
            Finding::error(
                "publication_row_filter",
                format!("{called} has a row filter on table {name}"),
            )
            .why(LEFT_OUT)
            .sql(again.clone()),
        ));
    }
    let streamed = |column: &&String| {
        table.columns.iter().any(|have| have.name == **column && !have.generated)
    };
    let needed = snapshot.ask.columns.iter().filter(streamed);
    let hidden: Vec<String> = needed
        .filter(|column| !published.columns.contains(column))
        .map(|column| ident(column))
        .collect();
    if !hidden.is_empty() {
        let list = hidden.join(", ");
        out.push(left_out(
            snapshot,
            Finding::error(
                "publication_columns",
                format!("{called} hides column {list} of table {name}"),
            )
            .why("no event can be made of a row without it (PR008)")
            .sql(again),
        ));
    }
}

pub(super) fn polling_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let (Some(poll), Some(table)) = (snapshot.ask.poll, &snapshot.table) else { return };
    let before = out.len();
    let missing: Vec<&str> = poll
        .columns()
        .into_iter()
        .filter(|wanted| !snapshot.ask.columns.iter().any(|needed| needed == wanted))
        .filter(|wanted| table.columns.iter().all(|have| have.name != *wanted))
        .collect();
    if !missing.is_empty() {
        let mut finding = Finding::error(
            "poll_column",
            format!(
                "table {} has no column {} to mark its rows in",
                poll.table,
                missing.iter().map(|column| ident(column)).collect::<Vec<_>>().join(", ")
            ),
        )
        .why(
            "what was published is not known without it. Polling publishes every row without a mark: write it into \
             the rows that are published already, before the relay starts",
        );
        for column in missing {
            let (table, kind) = (&poll.table, column_type(poll, column));
            finding =
                finding.sql(format!("ALTER TABLE {table} ADD COLUMN {} {kind};", ident(column)));
        }
        out.push(finding);
    }
    if snapshot.ask.polls {
        dead_letters(snapshot, poll, out);
    }
    let facts = snapshot.fence_with(SchemaState::Missing);
    if let Err(halt) = start::check_marks(&facts, snapshot.ask.streams) {
        let why = format!("{}. {}", halt.meaning, halt.hint);
        out.push(Finding::error("marks_unfit", halt.message).why(why));
    }
    rights(snapshot, poll, out);
    if out.len() > before || !snapshot.ask.polls {
        return;
    }
    index(snapshot, poll, out);
    if table.notifies {
        out.push(Finding::ok("poll", "an insert wakes the polling relay"));
    } else {
        out.push(
            Finding::info("poll", format!("no insert into {} wakes the polling relay", poll.table))
                .why("an event waits for the next poll, at most poll.interval")
                .shell(format!("{} --notify", snapshot.lines.setup)),
        );
    }
}

/// The application's dead-letter table, if the layout has one.
fn dead_letters(snapshot: &FactSnapshot<'_>, poll: &PollSpec, out: &mut Vec<Finding>) {
    let absent = snapshot.marks.as_ref().is_some_and(|marks| marks.dlq.is_none());
    let Some(dlq) = poll.dlq().filter(|_| absent) else { return };
    let finding = Finding::warning("poll_dlq", format!("table {dlq} does not exist"))
        .why("a row that fails stays in the outbox and is retried without a limit, before later rows of its aggregate")
        .sql(format!(
            "CREATE TABLE {dlq} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS);",
            poll.table
        ));
    out.push(match &snapshot.role {
        Some(role) => finding.sql(format!("GRANT INSERT ON TABLE {dlq} TO {};", ident(&role.name))),
        None => finding,
    });
}

/// With a backlog, a claim without its index costs as much as the whole backlog.
fn index(snapshot: &FactSnapshot<'_>, poll: &PollSpec, out: &mut Vec<Finding>) {
    let Some(index) = snapshot.claim_index.as_ref().filter(|index| !index.exists) else { return };
    out.push(
        Finding::warning(
            "poll_index",
            format!("no index has the unpublished rows of {} in the order of polling", poll.table),
        )
        .why(
            "each claim reads and sorts all of them, or passes over all published ones: draining a backlog costs its \
             square (docs/polling.md has figures)",
        )
        .sql(index.create.clone()),
    );
}

/// Events of one transaction that the table cannot distinguish by time are in the order of their insertion, of which
/// PostgreSQL records only a part. That concerns every mode: a repair and a replay read the table as well.
pub(super) fn order(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let (Some(unrecorded), Some(spec)) = (&snapshot.unrecorded, snapshot.ask.reads) else { return };
    let table = &spec.table;
    let readers =
        if snapshot.ask.polls { "polling, repair and replay" } else { "repair and replay" };
    let why = |savepoints: &str| {
        format!(
            "{readers} put such events in the order in which their rows were inserted, as far as PostgreSQL records \
             it. It does not {savepoints}; and not always where the rows of the transaction lie in several pages, \
             after a crash or a failover of the server, and after a DELETE or UPDATE of the rows that was rolled back. \
             Two events of one aggregate, of one transaction, may be swapped then (docs/polling.md, Order)"
        )
    };
    let savepoints = "where a savepoint or a PL/pgSQL block with EXCEPTION was used";
    let time = spec.time.as_deref().map(ident).unwrap_or_default();
    out.push(match unrecorded {
        Unrecorded::Default(default) => Finding::warning(
            "poll_order",
            format!("all events of a transaction get the same {time} ({default}) in {table}"),
        )
        .why(why(&format!("{savepoints} and the rows lie in several pages")))
        .sql(format!("ALTER TABLE {table} ALTER COLUMN {time} SET DEFAULT clock_timestamp();")),
        Unrecorded::Precision(type_name) => Finding::warning(
            "poll_order",
            format!("events of a transaction may get the same {time} ({type_name}) in {table}"),
        )
        .why(why(savepoints))
        .sql(format!(
            "ALTER TABLE {table} ALTER COLUMN {time} TYPE {}, ALTER COLUMN {time} SET DEFAULT clock_timestamp();",
            type_name.replace(|c: char| c.is_ascii_digit(), "6")
        )),
        Unrecorded::NoTime => Finding::warning(
            "poll_order",
            format!("outbox.columns.time names no column of {table}"),
        )
        .why(format!(
            "{}. The statement rewrites the table, and inserts wait until it ends. Rows that exist get times in the \
             order of their places",
            why(&format!("{savepoints}, unless track_commit_timestamp = on"))
        ))
        .sql(format!(
            "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS created_at timestamptz NOT NULL DEFAULT clock_timestamp();"
        ))
        .config(snapshot.lines.config("outbox.columns.time", "created_at")),
    });
}

/// Rows are locked while they are being published, and then updated or deleted.
fn rights(snapshot: &FactSnapshot<'_>, poll: &PollSpec, out: &mut Vec<Finding>) {
    let (Some(role), Some(around)) = (&snapshot.role, &snapshot.around) else { return };
    let deletes = poll.deletes();
    let name = ident(&role.name);
    if around.buriable == Some(false)
        && let Some(dlq) = poll.dlq()
    {
        out.push(
            Finding::error(
                "poll_rights",
                format!("role {:?} may not move rows to {dlq}", role.name),
            )
            .why("a row that has failed for good is moved there; without the right its claim fails each time")
            .sql(format!("GRANT USAGE ON SCHEMA {} TO {name};", ident(&dlq.schema)))
            .sql(format!("GRANT INSERT ON TABLE {dlq} TO {name};")),
        );
    }
    if around.readable && around.markable && (around.deletable || !deletes) {
        return;
    }
    let rights = if deletes { "SELECT, UPDATE, DELETE" } else { "SELECT, UPDATE" };
    out.push(
        Finding::error(
            "poll_rights",
            format!("role {:?} may not mark the rows of {}", role.name, poll.table),
        )
        .why(format!(
            "polling needs {rights}: rows are locked while they are on their way, and then marked"
        ))
        .sql(format!("GRANT USAGE ON SCHEMA {} TO {name};", ident(&poll.table.schema)))
        .sql(format!("GRANT {rights} ON TABLE {} TO {name};", poll.table)),
    );
}

// The topics of the rows that are in the outbox, if topics are made from columns. Reads a bounded number of rows, and
// never payloads.

/// Most rows that are read.
const ROWS_MAX: u32 = 10_000;
/// Most topics that are reported.
const TOPICS_MAX: u32 = 50;

/// A part of a topic's template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopicPart {
    /// Literal text.
    Text(String),
    /// The first of these columns that is not NULL.
    Columns(Vec<String>),
}

/// The topics of the existing rows; `None` if SQL cannot compute them, or the rows may not be read.
pub(super) async fn seen(
    ask: &PreflightQuery<'_>,
    snapshot: &FactSnapshot<'_>,
    client: &Client,
) -> Option<Vec<String>> {
    let (parts, name, table) = (ask.topic?, ask.names.table.as_ref()?, snapshot.table.as_ref()?);
    let used = || {
        parts.iter().flat_map(|part| match part {
            TopicPart::Text(_) => &[][..],
            TopicPart::Columns(columns) => columns.as_slice(),
        })
    };
    if used().any(|column| table.columns.iter().all(|have| have.name != *column)) {
        return None;
    }
    if used().next().is_none() {
        return Some(vec![parts.iter().map(text).collect()]);
    }
    let columns: Vec<String> = used().map(|column| ident(column)).collect();
    let topic: Vec<String> = parts.iter().map(expression).collect();
    let sql = format!(
        "SELECT DISTINCT t.topic FROM (SELECT {} AS topic FROM (SELECT {} FROM {name} LIMIT {ROWS_MAX}) r) t \
         WHERE t.topic IS NOT NULL ORDER BY 1 LIMIT {TOPICS_MAX}",
        topic.join(" || "),
        columns.join(", ")
    );
    let rows = client.query(&sql, &[]).await.ok()?;
    rows.iter().map(|row| row.try_get(0).ok()).collect()
}

fn text(part: &TopicPart) -> &str {
    match part {
        TopicPart::Text(text) => text,
        TopicPart::Columns(_) => "",
    }
}

fn expression(part: &TopicPart) -> String {
    match part {
        TopicPart::Text(text) => format!("{}::text", literal(text)),
        TopicPart::Columns(columns) => {
            let columns: Vec<String> =
                columns.iter().map(|column| format!("r.{}::text", ident(column))).collect();
            format!("coalesce({})", columns.join(", "))
        }
    }
}

/// A time zone that no server has: a statement with it is refused until it is replaced.
const ANY_ZONE: &str = "Area/City";

pub(super) fn time_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let names = snapshot.ask.names;
    let (Some(table), times) = (&names.table, &names.times) else { return };
    zone(snapshot, out);
    if times.zone.is_some() {
        return;
    }
    let known = snapshot.session_zones.as_slice();
    let (proposed, asked) = match known {
        [only] => (
            only.as_str(),
            format!("sessions here have {only:?} by the settings of a role or database"),
        ),
        [] => (ANY_ZONE, "SHOW TimeZone in a session of the application".to_owned()),
        several => (
            ANY_ZONE,
            format!(
                "sessions here have several, by the settings of roles and databases: {}",
                several.join(", ")
            ),
        ),
    };
    for column in snapshot.times.columns.iter().filter(|column| column.kind.lacks_zone()) {
        let (name, kind) = (ident(&column.name), &column.type_name);
        let line = snapshot.lines.config("source.time_zone", proposed);
        if let Some(deciding) = times.deciding.iter().find(|d| d.column == column.name) {
            let alter = match column.kind {
                TimeType::Local => format!(
                    ". Or give the column a zone, which rewrites the table under a lock: {};",
                    with_zone(table, &column.name, proposed)
                ),
                TimeType::Text | TimeType::Absolute | TimeType::Other => String::new(),
            };
            out.push(
                Finding::error(
                    "time_zone_missing",
                    format!("column {name} ({kind}) of {table} has no time zone, and decides {}", deciding.what),
                )
                .why(format!(
                    "read in another zone than it was written in, events are dropped, or hours late. Name the zone of \
                     the sessions that insert ({asked}){alter}"
                ))
                .config(line),
            );
        } else if times.stamp.as_ref() == Some(&column.name) && column.kind == TimeType::Local {
            out.push(
                Finding::warning(
                    "time_zone_assumed",
                    format!("column {name} ({kind}) of {table} has no time zone: it is read as UTC"),
                )
                .why(format!(
                    "timestamps of records are off by the zone of the sessions that insert ({asked}); where rows are \
                     ordered by this column, those of the hour that comes twice in autumn may be swapped"
                ))
                .config(line),
            );
        }
    }
}

fn zone(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let name = snapshot.ask.names.times.zone.as_ref().map_or("", |zone| zone.name());
    match &snapshot.times.zone {
        ServerZone::None | ServerZone::Same => {}
        ServerZone::Unknown => out.push(
            Finding::error("time_zone_unknown", format!("the server has no time zone {name:?}"))
                .why("polling has the server compute with it; its zones: SELECT name FROM pg_timezone_names"),
        ),
        ServerZone::Differs(day) => out.push(
            Finding::warning(
                "time_zone_differs",
                format!("the server and this program read {day} in {name:?} differently"),
            )
            .why(
                "one of their time zone databases is older: update it on the server or here (package tzdata); until \
                 then streaming and polling judge times of that zone differently",
            ),
        ),
    }
}
