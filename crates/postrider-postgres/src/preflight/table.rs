//! Rules about the outbox table, but for its columns: those are the layout's, which this layer does not know.

use super::Scene;
use super::facts::Around;
use crate::fence;
use crate::names::{TableName, ident};
use crate::table::{Persistence, RelationKind, TableFacts, UnfitLeaf, UnfitLeafKind};
use postrider_core::finding::Finding;

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let Some(name) = &scene.ask.names.table else {
        messages(scene, out);
        return;
    };
    let Some(table) = &scene.table else {
        out.push(missing(scene, name));
        return;
    };
    let before = out.len();
    let around = scene.around.clone().unwrap_or_default();
    kind(scene, name, table, &around, out);
    partitions(scene, name, table, out);
    swallowed(name, &around, out);
    row_security(scene, name, &around, out);
    if out.len() == before {
        let kind = match table.kind {
            RelationKind::Partitioned => "partitioned table",
            RelationKind::Table | RelationKind::Other => "table",
        };
        out.push(Finding::ok("table", format!("{kind} {name}, {} columns", table.columns.len())));
    }
    messages(scene, out);
}

fn missing(scene: &Scene<'_>, name: &TableName) -> Finding {
    let finding = Finding::error(
        "table_missing",
        format!("table {name} does not exist in database {:?}", scene.server.database),
    )
    .why("there is nothing to read events from");
    match scene.namesakes.as_slice() {
        [other] => finding.config(scene.lines.config("outbox.table", &configured(other))),
        _ => made(scene, finding, name),
    }
}

/// `setup` makes the table, but touches no publication that stands.
fn made(scene: &Scene<'_>, finding: Finding, name: &TableName) -> Finding {
    let lines = &scene.lines;
    let create = format!("{} --create-table", lines.setup);
    match &scene.publication {
        Some(publication) if !publication.all_tables => {
            let publication = ident(&scene.ask.names.publication);
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

/// A table's name as `outbox.table` takes it.
fn configured(table: &TableName) -> String {
    let plain = |name: &str| {
        let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        first && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let part = |name: &str| if plain(name) { name.to_owned() } else { ident(name) };
    format!("{}.{}", part(&table.schema), part(&table.name))
}

fn kind(
    scene: &Scene<'_>,
    name: &TableName,
    table: &TableFacts,
    around: &Around,
    out: &mut Vec<Finding>,
) {
    if table.kind == RelationKind::Other {
        let finding = Finding::error("table_kind", format!("{name} is a {}", around.kind))
            .why("WAL has no rows of it; the table beneath it has");
        out.push(match &around.beneath {
            Some(beneath) => publish_instead(
                scene,
                finding.config(scene.lines.config("outbox.table", &configured(beneath))),
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
        Persistence::Unlogged => out.push(scene.lines.left_out(
            Finding::error("table_unlogged", format!("table {name} is unlogged"))
                .why(
                    "WAL has no rows of it: no event is ever seen. The statement rewrites the table, under a lock; \
                     the rows that it has are published from the table",
                )
                .sql(format!("ALTER TABLE {name} SET LOGGED;")),
            // Without it in the publication, that is mended next, and has the same line.
            scene.slot.is_some()
                && scene.publication.as_ref().is_some_and(|publication| publication.table.is_some()),
        )),
        Persistence::Temporary => out.push(
            Finding::error("table_unlogged", format!("table {name} is temporary"))
                .why("WAL has no rows of it: no event is ever seen")
                .shell(format!("{} --create-table", scene.lines.setup)),
        ),
    }
    if let Some(root) = &around.root {
        let finding = Finding::error("table_partition", format!("{name} is a partition of {root}"))
            .why("rows of the other partitions are not events then; rows come under the name of the whole")
            .config(scene.lines.config("outbox.table", &configured(root)));
        out.push(publish_instead(scene, finding, root));
    }
    for child in &around.children {
        out.push(
            Finding::warning("table_inherited", format!("table {child} inherits from {name}"))
                .why("rows inserted into it come under its own name, and are passed over")
                .sql(format!("ALTER TABLE {child} NO INHERIT {name};")),
        );
    }
}

/// Partitions whose rows are in no stream, or are not safe where they are polled.
fn partitions(scene: &Scene<'_>, name: &TableName, table: &TableFacts, out: &mut Vec<Finding>) {
    let streams = scene.ask.streams;
    for UnfitLeaf { name: leaf, kind } in &table.partitions.unfit {
        out.push(match kind {
            UnfitLeafKind::Unlogged if streams && scene.is_fresh() => {
                Finding::error("table_partition_unlogged", format!("partition {leaf} of {name} is unlogged"))
                    .why(
                        "rows inserted into it are in no stream, and a crash of the server empties it. What is in the \
                         table before there is a slot is published by setup --backfill all, below",
                    )
                    .sql(format!("ALTER TABLE {leaf} SET LOGGED;"))
            }
            UnfitLeafKind::Unlogged if streams => {
                let repeats = if scene.ask.poll.is_some() {
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
                    .sql(fence::log_leaf(scene.ask.poll, table, name, leaf))
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

/// A publication that stands has to publish the table that the configuration names from now on.
fn publish_instead(scene: &Scene<'_>, finding: Finding, table: &TableName) -> Finding {
    match &scene.publication {
        Some(publication) if !publication.all_tables => {
            let publication = ident(&scene.ask.names.publication);
            let finding = finding
                .sql(format!("ALTER PUBLICATION {publication} SET TABLE {table};"))
                .sql(format!(
                    "ALTER PUBLICATION {publication} SET (publish = '{}', publish_via_partition_root = true);",
                    scene.ask.names.published()
                ));
            scene.lines.left_out(finding, scene.slot.is_some())
        }
        Some(_) | None => finding,
    }
}

/// Inserts that leave no row.
fn swallowed(name: &TableName, around: &Around, out: &mut Vec<Finding>) {
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

fn row_security(scene: &Scene<'_>, name: &TableName, around: &Around, out: &mut Vec<Finding>) {
    let Some(role) = &scene.role else { return };
    if around.rls && !around.rls_open && !role.bypasses_rls {
        out.push(
            Finding::warning("table_rls", format!("row security of {name} hides its rows from role {:?}", role.name))
                .why("streaming is not touched by it; looking for what consumers miss by SQL finds nothing")
                .sql(format!("CREATE POLICY postrider ON {name} FOR SELECT TO {} USING (true);", ident(&role.name))),
        );
    }
}

/// Logical messages, where they are events.
fn messages(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    if scene.ask.messages && scene.ask.streams && scene.ask.polls {
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
    if !scene.ask.messages || scene.sessions.emit.is_empty() {
        return;
    }
    let mut finding = Finding::warning("messages_public", "every role may write logical messages")
        .why("any role of the database can make events with your prefix; GRANT it to the application's role again");
    for function in &scene.sessions.emit {
        finding =
            finding.sql(format!("REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC;"));
    }
    out.push(finding);
}
