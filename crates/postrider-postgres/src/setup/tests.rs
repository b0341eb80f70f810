//! Plans as the SQL that `setup --print-sql` prints for a DBA.

use super::*;
use crate::schema::{SchemaState, VERSION};
use crate::start::Facts;
use crate::start::tests::good;
use expect_test::expect_file;
use postrider_core::error::{Halt, HaltReason};

/// The text with a line in place of the list of the SQL toolkit's objects, which the text has once. The list has a test
/// of its own.
fn without_toolkit(text: &str) -> String {
    let list = include_str!("../toolkit/objects.sql");
    assert_eq!(text.matches(list).count(), 1, "{text}");
    text.replace(list, "-- The text of toolkit/objects.sql.\n")
}

/// A server that has the outbox table and none of Postrider's objects.
fn bare() -> Facts {
    let mut facts = good();
    facts.slot = None;
    facts.cursor = None;
    facts.publication = None;
    facts.schema = SchemaState::Missing;
    facts
}

fn refused(facts: &Facts) -> Halt {
    plan(facts, &Options::default()).unwrap_err()
}

#[test]
fn everything_missing_is_made_in_the_order_that_loses_nothing() {
    let mut facts = bare();
    facts.table = None;
    let layout = "CREATE TABLE outbox (\n    id bigint PRIMARY KEY\n);\n";
    let options =
        Options { create_table: Some(layout), role: Some("postrider"), ..Options::default() };
    let plan = plan(&facts, &options).unwrap();
    let kinds: Vec<StepKind> = plan.steps.iter().map(|step| step.kind).collect();
    assert_eq!(
        kinds,
        [
            StepKind::Table,
            StepKind::Publication,
            StepKind::Schema,
            StepKind::Rights,
            StepKind::TableRights,
            StepKind::Replication,
            StepKind::Slot
        ]
    );
    expect_file!["snapshots/everything.sql"].assert_eq(&without_toolkit(&plan.to_string()));
}

#[test]
fn a_slot_without_a_row_is_adopted_at_its_position() {
    let mut facts = good();
    facts.cursor = None;
    facts.server.version = 150_018;
    let plan = plan(&facts, &Options::default()).unwrap();
    expect_file!["snapshots/adopted.sql"].assert_eq(&plan.to_string());
}

#[test]
fn messages_alone_need_a_publication_without_tables() {
    let mut facts = bare();
    facts.names.table = None;
    facts.table = None;
    facts.stream.messages = true;
    facts.stream.failover = false;
    let plan = plan(
        &facts,
        &Options { create_table: None, role: Some("postrider"), ..Options::default() },
    )
    .unwrap();
    expect_file!["snapshots/messages.sql"].assert_eq(&without_toolkit(&plan.to_string()));
}

#[test]
fn a_role_that_does_not_exist_is_reported_before_the_first_step() {
    let options = Options { role: Some("rider"), role_missing: true, ..Options::default() };
    let halt = plan(&bare(), &options).unwrap_err();
    assert_eq!(halt.reason, HaltReason::AccessDenied);
    assert!(
        halt.hint.contains("CREATE ROLE \"rider\" LOGIN REPLICATION PASSWORD"),
        "{}",
        halt.hint
    );
}

#[test]
fn the_trigger_that_wakes_a_polling_relay_is_made_once_and_only_if_asked_for() {
    let options = Options { notify: true, ..Options::default() };
    let mut facts = good();
    let asked = plan(&facts, &options).unwrap();
    let [step] = asked.steps.as_slice() else { panic!("one step: {asked}") };
    expect_file!["snapshots/notify.sql"]
        .assert_eq(&format!("{}\n{}\n{}\n", step.title, step.why, step.sql));
    facts.table.as_mut().unwrap().notifies = true;
    let again = plan(&facts, &options).unwrap();
    assert_eq!(again.steps, []);
    assert!(again.adopted.iter().any(|object| object.contains("postrider_notify")), "{again}");
}

#[test]
fn nothing_missing_is_nothing_to_do() {
    let plan = plan(&good(), &Options::default()).unwrap();
    assert_eq!(plan.steps, []);
}

#[test]
fn a_slot_that_was_there_is_never_made_again() {
    let mut facts = good();
    facts.slot = None;
    assert_eq!(refused(&facts).reason, HaltReason::SlotMissing);
}

#[test]
fn a_slot_older_than_its_publication_is_not_adopted() {
    let mut facts = good();
    facts.publication = None;
    facts.cursor = None;
    assert_eq!(refused(&facts).reason, HaltReason::PublicationMissing);
}

#[test]
fn what_can_not_be_used_is_not_adopted() {
    let mut facts = good();
    facts.slot.as_mut().unwrap().plugin = Some("wal2json".to_owned());
    assert_eq!(refused(&facts).reason, HaltReason::SlotUnusable);

    let mut facts = good();
    facts.cursor.as_mut().unwrap().slot = "another".to_owned();
    assert_eq!(refused(&facts).reason, HaltReason::SlotMoved);

    let mut facts = good();
    facts.schema = SchemaState::Version(VERSION + 1);
    assert_eq!(refused(&facts).reason, HaltReason::SchemaUnfit);

    let mut facts = bare();
    facts.table = None;
    assert_eq!(refused(&facts).reason, HaltReason::TableUnfit);

    let mut facts = bare();
    facts.server.in_recovery = true;
    assert_eq!(refused(&facts).reason, HaltReason::ServerUnfit);
}

#[test]
fn rights_of_the_role_are_filled_in_whole() {
    let options = Options { role: Some("rider"), ..Options::default() };
    let plan = plan(&bare(), &options).unwrap();
    let sql = |kind| &plan.steps.iter().find(|step| step.kind == kind).unwrap().sql;
    for kind in [StepKind::Rights, StepKind::TableRights, StepKind::Replication] {
        for left in [":\"", "{", "\\", "-- "] {
            assert!(!sql(kind).contains(left), "{left}: {}", sql(kind));
        }
    }
    let select = "GRANT SELECT ON TABLE \"public\".\"outbox\" TO \"rider\";";
    assert!(sql(StepKind::TableRights).contains(select));
    assert!(!sql(StepKind::Rights).contains("REPLICATION"), "a transaction of its own");
}

fn holdings(others: bool) -> undo::StoredRows {
    let rows = vec![("cursor".to_owned(), 1), ("parked".to_owned(), 3)];
    let bookmark_slots = vec!["postrider_bm_before_fix_000abc".to_owned()];
    undo::StoredRows { rows, bookmark_slots, others, ..undo::StoredRows::default() }
}

#[test]
fn undoing_the_last_pipeline_says_what_is_lost_and_drops_the_schema() {
    let plan = undo::plan(&good(), &holdings(false), false).unwrap();
    expect_file!["snapshots/undo.sql"].assert_eq(&plan.to_string());
}

/// The tables of logs and groups have rows that no command of a pipeline may delete.
#[test]
fn undoing_the_last_pipeline_leaves_the_sql_toolkit() {
    let tables = crate::names::OWN_TABLES.map(str::to_owned).to_vec();
    let holdings = undo::StoredRows { toolkit: true, tables, ..holdings(false) };
    let plan = undo::plan(&good(), &holdings, false).unwrap();
    let text = plan.to_string();
    assert!(!text.contains("DROP SCHEMA"), "{text}");
    assert!(text.contains("DROP TABLE postrider.\"migration\", postrider.\"cursor\","), "{text}");
    assert!(plan.stays.iter().any(|line| line.contains("postrider sql --uninstall")), "{text}");
    let holdings = undo::StoredRows { tables: Vec::new(), ..holdings };
    let text = undo::plan(&good(), &holdings, false).unwrap().to_string();
    assert!(!text.contains("DROP TABLE"), "nothing of Postrider's own is there: {text}");
}

#[test]
fn undoing_takes_our_trigger_off_the_table() {
    let mut facts = good();
    facts.table.as_mut().unwrap().notifies = true;
    let plan = undo::plan(&facts, &holdings(true), false).unwrap();
    assert!(plan.steps.iter().any(|step| step.kind == StepKind::Notify));
    assert!(plan.to_string().contains("DROP TRIGGER"), "{plan}");
}

#[test]
fn undoing_leaves_what_others_use() {
    let mut facts = good();
    facts.publication.as_mut().unwrap().other_tables = 2;
    facts.slot.as_mut().unwrap().plugin = Some("wal2json".to_owned());
    let plan = undo::plan(&facts, &holdings(true), false).unwrap();
    expect_file!["snapshots/undo_shared.sql"].assert_eq(&plan.to_string());
}

#[test]
fn a_slot_in_use_is_not_dropped() {
    let mut facts = good();
    facts.slot.as_mut().unwrap().active_pid = Some(42);
    let error = undo::plan(&facts, &holdings(false), false).unwrap_err();
    assert!(
        postrider_core::error::Chain(&error)
            .to_string()
            .contains("is in use by the server's process 42")
    );
}
