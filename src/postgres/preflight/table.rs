//! Rules about the outbox table, but for its columns: those are the layout's, which this layer does not know.

use super::Scene;
use super::facts::Around;
use crate::finding::Finding;
use crate::postgres::names::{TableName, ident};
use crate::postgres::table::{Persistence, RelationKind, TableFacts};

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
        Persistence::Unlogged => out.push(
            Finding::error("table_unlogged", format!("table {name} is unlogged"))
                .why("WAL has no rows of it: no event is ever seen. The statement rewrites the table, under a lock")
                .sql(format!("ALTER TABLE {name} SET LOGGED;")),
        ),
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

/// A publication that stands has to publish the table that the configuration names from now on.
fn publish_instead(scene: &Scene<'_>, finding: Finding, table: &TableName) -> Finding {
    match &scene.publication {
        Some(publication) if !publication.all_tables => {
            let publication = ident(&scene.ask.names.publication);
            finding.sql(format!("ALTER PUBLICATION {publication} SET TABLE {table};")).sql(format!(
                "ALTER PUBLICATION {publication} SET (publish = 'insert', publish_via_partition_root = true);"
            ))
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
            "one that returns NULL swallows the row without an error: the application believes in an event that is \
             none. One that only fills columns in is harmless",
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
