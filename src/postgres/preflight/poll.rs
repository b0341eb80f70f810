//! Rules about a table that is polled: the columns of its marks, the right to write them, and what wakes the relay.

use super::Scene;
use crate::finding::Finding;
use crate::postgres::names::ident;
use crate::postgres::poll::{Marks, PollSpec};

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
        .why("what was published is not known without; rows that are there count as unpublished then");
        for column in missing {
            let (table, kind) = (&poll.table, kind(&poll.marks, column));
            finding =
                finding.sql(format!("ALTER TABLE {table} ADD COLUMN {} {kind};", ident(column)));
        }
        out.push(finding);
    }
    rights(scene, poll, out);
    if out.len() > before {
        return;
    }
    if table.notifies {
        out.push(Finding::ok("poll", "an insert wakes the polling relay"));
    } else {
        out.push(
            Finding::info("poll", format!("no insert into {} wakes the polling relay", poll.table))
                .why("an event waits for the next look, at most poll.interval")
                .shell(format!("{} --notify", scene.lines.setup)),
        );
    }
}

/// The type of a column that a mark is kept in, as the layouts' own SQL has it.
fn kind(marks: &Marks, column: &str) -> &'static str {
    match marks {
        Marks::Commerce { attempts, .. } if column == attempts => "smallint NOT NULL DEFAULT 0",
        Marks::Commerce { last_error, .. } if column == last_error => "text",
        Marks::Commerce { available_at, .. } if column == available_at => {
            "timestamptz NOT NULL DEFAULT now()"
        }
        Marks::Gcx { status, .. } if column == status => "varchar(20) NOT NULL DEFAULT 'pending'",
        Marks::Gcx { retry_count, .. } if column == retry_count => "smallint NOT NULL DEFAULT 0",
        Marks::Gcx { max_retries, .. } if column == max_retries => "smallint NOT NULL DEFAULT 5",
        Marks::Sqlgarden { status, .. } if column == status => "text NOT NULL DEFAULT 'PENDING'",
        Marks::Sqlgarden { attempt_count, .. } if column == attempt_count => {
            "integer NOT NULL DEFAULT 0"
        }
        Marks::Delete
        | Marks::PublishedAt { .. }
        | Marks::Commerce { .. }
        | Marks::Gcx { .. }
        | Marks::Sqlgarden { .. } => "timestamptz",
    }
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
            .why("a row that has failed for good is moved there; else its claim fails, again and again")
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
