//! Rules about a table that is polled: the columns of its marks, the right to write them, and what wakes the relay.

use super::Scene;
use crate::fence;
use crate::names::ident;
use crate::poll::PollSpec;
use crate::poll::order::Unrecorded;
use crate::schema::SchemaState;
use postrider_core::finding::Finding;

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let (Some(poll), Some(table)) = (scene.ask.poll, &scene.table) else { return };
    let before = out.len();
    let missing: Vec<&str> = poll
        .columns()
        .into_iter()
        .filter(|wanted| !scene.ask.columns.iter().any(|needed| needed == wanted))
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
            let (table, kind) = (&poll.table, poll.marks.column_type(column));
            finding =
                finding.sql(format!("ALTER TABLE {table} ADD COLUMN {} {kind};", ident(column)));
        }
        out.push(finding);
    }
    if scene.ask.polls {
        dead_letters(scene, poll, out);
    }
    let facts = scene.fence_with(SchemaState::Missing);
    if let Err(halt) = fence::check_marks(&facts, scene.ask.streams) {
        let why = format!("{}. {}", halt.meaning, halt.hint);
        out.push(Finding::error("marks_unfit", halt.message).why(why));
    }
    rights(scene, poll, out);
    if out.len() > before || !scene.ask.polls {
        return;
    }
    index(scene, poll, out);
    if table.notifies {
        out.push(Finding::ok("poll", "an insert wakes the polling relay"));
    } else {
        out.push(
            Finding::info("poll", format!("no insert into {} wakes the polling relay", poll.table))
                .why("an event waits for the next poll, at most poll.interval")
                .shell(format!("{} --notify", scene.lines.setup)),
        );
    }
}

/// The application's table of dead letters, where the layout has one.
fn dead_letters(scene: &Scene<'_>, poll: &PollSpec, out: &mut Vec<Finding>) {
    let absent = scene.marks.as_ref().is_some_and(|marks| marks.dlq.is_none());
    let Some(dlq) = poll.dlq().filter(|_| absent) else { return };
    let finding = Finding::warning("poll_dlq", format!("table {dlq} does not exist"))
        .why("a row that fails stays in the outbox and is retried without a limit, before later rows of its aggregate")
        .sql(format!(
            "CREATE TABLE {dlq} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS);",
            poll.table
        ));
    out.push(match &scene.role {
        Some(role) => finding.sql(format!("GRANT INSERT ON TABLE {dlq} TO {};", ident(&role.name))),
        None => finding,
    });
}

/// Behind a backlog a claim without its index costs as much as the whole backlog.
fn index(scene: &Scene<'_>, poll: &PollSpec, out: &mut Vec<Finding>) {
    let Some(index) = scene.claim_index.as_ref().filter(|index| !index.exists) else { return };
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

/// Events of one transaction that the table can't tell apart by time are in the order of their insertion, which
/// PostgreSQL records in part. That concerns every mode: a repair and a replay read the table as well.
pub(super) fn order(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let (Some(unrecorded), Some(spec)) = (&scene.unrecorded, scene.ask.reads) else { return };
    let table = &spec.table;
    let readers = if scene.ask.polls { "polling, repair and replay" } else { "repair and replay" };
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
        .config(scene.lines.config("outbox.columns.time", "created_at")),
    });
}

/// Rows are locked while they are on their way, and then marked or deleted.
fn rights(scene: &Scene<'_>, poll: &PollSpec, out: &mut Vec<Finding>) {
    let (Some(role), Some(around)) = (&scene.role, &scene.around) else { return };
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
