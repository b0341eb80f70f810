//! Rules about the publication: that it publishes every insert of the outbox, whole, and not much else.

use super::Scene;
use crate::fence;
use crate::names::{TableName, ident};
use crate::publication::{PublicationFacts, PublishedTable};
use crate::table::{Persistence, RelationKind, TableFacts};
use postrider_core::finding::{Finding, Severity};

const LEFT_OUT: &str = "PostgreSQL skips rows that it does not publish, without an error";

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let name = &scene.ask.names.publication;
    let Some(publication) = &scene.publication else {
        out.push(missing(scene));
        return;
    };
    let before = out.len();
    events(scene, publication, out);
    if publication.all_tables {
        out.push(all_tables(scene));
    }
    if let (Some(table_name), Some(table)) = (&scene.ask.names.table, &scene.table) {
        of_table(scene, publication, table_name, table, out);
    }
    // An error's own lines end with the same.
    if !out.iter().skip(before).any(|finding| finding.severity == Severity::Error) {
        changed(scene, out);
    }
    if out.len() == before {
        out.push(Finding::ok(
            "publication",
            format!("publication {name:?} publishes every insert, whole"),
        ));
    }
}

/// WAL is decoded with the publication as it was at the time: one that is made now does not help a slot that stands.
fn missing(scene: &Scene<'_>) -> Finding {
    let lines = &scene.lines;
    let what = format!(
        "publication {:?} does not exist in database {:?}",
        scene.ask.names.publication, scene.server.database
    );
    let finding = Finding::error("publication_missing", what);
    if scene.slot.is_none() {
        return finding
            .why("Without the publication PostgreSQL sends no events")
            .shell(lines.setup.clone());
    }
    let finding = finding.why(
        "the server decodes with the publication as it was at each commit: rows committed while there was none are \
         skipped (18) or stop the stream (15 to 17), even if it is created again. Those rows are published from the \
         table, and a new slot begins behind the new publication; logical messages of that time are lost",
    );
    if scene.cursor.is_none() || scene.ask.names.table.is_none() {
        return lines.every_row(finding, true);
    }
    lines.left_out(finding.sql(create(scene, &scene.ask.names.publication)), true)
}

fn create(scene: &Scene<'_>, name: &str) -> String {
    let table = scene.ask.names.table.as_ref();
    let table = table.map_or_else(String::new, |table| format!(" FOR TABLE {table}"));
    format!(
        "CREATE PUBLICATION {}{table} WITH (publish = '{}', publish_via_partition_root = true);",
        ident(name),
        scene.ask.names.published()
    )
}

/// After a mending statement: what the publication has left out until then.
fn left_out(scene: &Scene<'_>, finding: Finding) -> Finding {
    let (slot, cursor) = (scene.slot.is_some(), scene.cursor.is_some());
    match (&scene.ask.names.table, &scene.table) {
        (Some(name), Some(table)) if slot && cursor && scene.since.table => {
            let why = format!(
                "{}. The table was created after what is known to be published, and only the slot has the events of \
                 one that was dropped: start again with this slot, and do not repair. The statements write the new \
                 table's rows again, so that the slot brings them behind those; rows that it brings already come twice",
                finding.why
            );
            let marks = scene.marks.as_ref().map(|marks| &marks.spec);
            finding.why(why).sql(fence::insert_again(marks, table, name))
        }
        _ => scene.lines.left_out(finding, slot),
    }
}

/// It may have left out rows before it became as it is.
fn changed(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let Some(gap) = scene.fence().as_ref().and_then(fence::publication_gap) else { return };
    let why = "the server decodes with the publication as it was at each commit. Harmless where nothing was committed, \
               or where the change left out no row; otherwise those rows are published from the table (--dry-run \
               counts them)";
    // The slot can be used: what only the slot has must not go with it.
    let first = if scene.slot.is_some() && !scene.since.table {
        ". Before that let postrider run reach a lag of 0, and stop it: the line below drops the slot, and with it the \
         events of rows that were deleted since, and logical messages, that were not published"
    } else {
        ""
    };
    let finding = Finding::warning("publication_changed", gap).why(format!("{why}{first}"));
    out.push(if scene.ask.poll.is_some() || scene.since.table {
        left_out(scene, finding)
    } else {
        finding.shell(scene.lines.repair.clone())
    });
}

fn alter(scene: &Scene<'_>) -> String {
    format!("ALTER PUBLICATION {}", ident(&scene.ask.names.publication))
}

/// Which statements it publishes.
fn events(scene: &Scene<'_>, publication: &PublicationFacts, out: &mut Vec<Finding>) {
    let name = &scene.ask.names.publication;
    let updates = scene.ask.names.updates;
    let inserts = format!("{} SET (publish = '{}');", alter(scene), scene.ask.names.published());
    if !publication.insert {
        out.push(
            Finding::error(
                "publication_insert",
                format!("publication {name:?} does not publish inserts"),
            )
            .why(format!("no event is ever seen: {LEFT_OUT}"))
            .sql(inserts),
        );
        // Whoever follows the lines publishes what it left out.
        let last = out.pop().map(|finding| left_out(scene, finding));
        out.extend(last);
        return;
    }
    let identity = scene.around.as_ref().is_none_or(|around| around.has_identity);
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
            format!("publication {name:?} publishes more than {}s", scene.ask.names.published());
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

/// FOR ALL TABLES can't be altered: another publication takes its place, and a slot behind it.
fn all_tables(scene: &Scene<'_>) -> Finding {
    let (names, lines) = (&scene.ask.names, &scene.lines);
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
        finding.config(lines.config("source.publication", &other)).sql(create(scene, &other));
    match (&scene.slot, &scene.cursor) {
        (Some(_), Some(_)) => left_out(scene, finding),
        (Some(_), None) => lines.every_row(finding, true),
        (None, _) => finding.shell(lines.setup.clone()),
    }
}

fn of_table(
    scene: &Scene<'_>,
    publication: &PublicationFacts,
    name: &TableName,
    table: &TableFacts,
    out: &mut Vec<Finding>,
) {
    let called = format!("publication {:?}", scene.ask.names.publication);
    let alter = alter(scene);
    // A view and a partition have a finding of their own, which mends the publication too.
    let other = table.kind == RelationKind::Other
        || table.persistence == Persistence::Temporary
        || scene.around.as_ref().is_some_and(|around| around.root.is_some());
    match &publication.table {
        Some(published) => whole(scene, published, name, table, out),
        None if other => return,
        None => out.push(left_out(
            scene,
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
            scene,
            Finding::error(
                "publication_via_root",
                format!("{called} publishes partitions of {name} under their own names"),
            )
            .why("rows are found by the name of the table: under a partition's name they are skipped")
            .sql(fence::via_root(&alter, name, publication.names_table)),
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

/// Every row of the table, and every column that is needed.
fn whole(
    scene: &Scene<'_>,
    published: &PublishedTable,
    name: &TableName,
    table: &TableFacts,
    out: &mut Vec<Finding>,
) {
    let called = format!("publication {:?}", scene.ask.names.publication);
    let alter = alter(scene);
    let again = format!(
        "BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} DROP TABLE {name}; {alter} ADD TABLE {name}; COMMIT;"
    );
    if published.row_filter.is_some() {
        out.push(left_out(
            scene,
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
    let needed = scene.ask.columns.iter().filter(streamed);
    let hidden: Vec<String> = needed
        .filter(|column| !published.columns.contains(column))
        .map(|column| ident(column))
        .collect();
    if !hidden.is_empty() {
        let list = hidden.join(", ");
        out.push(left_out(
            scene,
            Finding::error(
                "publication_columns",
                format!("{called} hides column {list} of table {name}"),
            )
            .why("no event can be made of a row without it (PR008)")
            .sql(again),
        ));
    }
}
