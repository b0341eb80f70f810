//! Every remedy is followed as it is printed, with rows waiting: afterwards every row of the outbox is in the topic.
//!
//! What is printed is taken apart and executed: SQL as an administrator, commands with the pipeline's configuration,
//! settings in the file. Rows wait from before the fault, from its time, and from after it.

use crate::await_that::{SOON, await_that};
use crate::check::{Patient, fixes};
use crate::halted::{Halted, run_to_halt};
use crate::pipeline::{Pipeline, show};
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::repair::outgrow;
use crate::server::{Version, brokers};
use serde_json::Value;
use std::collections::BTreeSet;

/// What happens to a pipeline that is stopped, and what is said of it.
struct Fault {
    /// In words.
    name: &'static str,
    /// What is done to the database.
    hurt: &'static str,
    /// What somebody does after rows were inserted, as people do.
    after: &'static str,
    /// The halt of a start; empty where it goes on.
    code: &'static str,
    /// The finding of `check`; empty where it has none of its own.
    finding: &'static str,
}

const fn fault(
    name: &'static str,
    hurt: &'static str,
    code: &'static str,
    finding: &'static str,
) -> Fault {
    Fault { name, hurt, after: "", code, finding }
}

const FAULTS: &[Fault] = &[
    fault("slot dropped", "select pg_drop_replication_slot('{slot}')", "PR002", "slot_missing"),
    fault(
        "physical slot of the name",
        "select pg_drop_replication_slot('{slot}'); select pg_create_physical_replication_slot('{slot}')",
        "PR003",
        "slot_plugin",
    ),
    fault(
        "slot with two_phase",
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)",
        "PR003",
        "slot_two_phase",
    ),
    fault(
        "cursor of another cluster",
        "update postrider.cursor set system_identifier = '1' || system_identifier",
        "PR004",
        "other_history",
    ),
    fault(
        "cursor ahead of the server",
        "update postrider.cursor set watermark = 'F/0', flush_limit = 'F/0'",
        "PR005",
        "position_ahead",
    ),
    fault(
        "slot created again",
        "select pg_drop_replication_slot('{slot}'); select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        "PR006",
        "slot_moved",
    ),
    Fault {
        name: "slot advanced",
        hurt: "",
        after: "select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
        code: "PR006",
        finding: "slot_moved",
    },
    fault("publication dropped", "drop publication {publication}", "PR007", "publication_missing"),
    Fault {
        name: "publication dropped and created again",
        hurt: "drop publication {publication}",
        after: "create publication {publication} for table outbox with (publish = 'insert')",
        code: "PR007",
        finding: "publication_changed",
    },
    fault(
        "table taken out of the publication",
        "alter publication {publication} drop table outbox",
        "PR008",
        "publication_table",
    ),
    fault(
        "row filter",
        "alter publication {publication} set table outbox where (id < 0)",
        "PR008",
        "publication_row_filter",
    ),
    fault(
        "no inserts",
        "alter publication {publication} set (publish = 'delete')",
        "PR008",
        "publication_insert",
    ),
    fault(
        "column hidden",
        "alter publication {publication} set table outbox (id, aggregate_type, aggregate_id)",
        "PR008",
        "publication_columns",
    ),
    fault(
        "table unlogged",
        "alter publication {publication} drop table outbox; alter table outbox set unlogged",
        "PR009",
        "table_unlogged",
    ),
    fault("schema dropped", "drop schema postrider cascade", "PR010", "schema"),
    fault(
        "publication of all tables",
        "drop publication {publication}; create publication {publication} for all tables with (publish = 'insert')",
        "",
        "publication_all_tables",
    ),
    fault(
        "another table in the publication",
        "create table beside (i int primary key); alter publication {publication} add table beside",
        "",
        "publication_other_tables",
    ),
    fault(
        "more than inserts",
        "alter publication {publication} set (publish = 'insert, update, delete')",
        "",
        "publication_more",
    ),
];

/// How a pipeline reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The stream alone.
    Wal,
    /// `mode = "auto"`: published rows are deleted, and the table is polled while the slot can't be used.
    Auto,
}

/// A pipeline that has published ten rows and is stopped; five wait from before the fault, five from its time, five
/// from after it.
async fn hurt(version: Version, fault: &Fault, by: By) -> Pipeline {
    let pipeline = stopped(Pipeline::shared(version, "remedies").await, by).await;
    for (statements, rows) in [(fault.hurt, 5), (fault.after, 5)] {
        if !statements.is_empty() {
            pipeline.sql(statements).await;
        }
        if fault.hurt.is_empty() && statements.is_empty() {
            continue;
        }
        pipeline.insert(rows).await;
    }
    pipeline
}

/// A pipeline that has published ten rows and is stopped; five wait.
async fn stopped(mut pipeline: Pipeline, by: By) -> Pipeline {
    if by == By::Auto {
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let auto = "mode = \"auto\"\npoll = { interval = \"50ms\" }\n";
        pipeline.config = pipeline.config.replacen(&head, &format!("{head}{auto}"), 1);
    }
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    // What is resolved is written down.
    let known = "select coalesce(pg_snapshot_xmin(resolved_snapshot)::text::bigint > \
                 (select coalesce(max(xmin::text::bigint), 0) from outbox), false)::text from postrider.cursor";
    await_that("a cursor row that knows what is resolved", SOON, || async {
        let known = pipeline.sql.text(known).await;
        if known.as_deref() == Some("true") { Ok(()) } else { Err(format!("{known:?}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(5).await;
    pipeline
}

/// Starts, and waits until every row of the table is in the topic.
pub(crate) async fn every_row_arrives(pipeline: &Pipeline, config: &str, name: &str) {
    let relay = Relay::spawn(config);
    relay.await_state("streaming", SOON).await;
    rows_arrive(pipeline, name).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Waits until every row that was ever inserted is in the topic: those too that are deleted by now.
async fn rows_arrive(pipeline: &Pipeline, name: &str) {
    pipeline.insert(2).await;
    let ids = "select string_agg(i::text, ' ') \
               from generate_series(1, (select last_value from public.outbox_id_seq)) i";
    let ids = pipeline.sql.text(ids).await.expect("rows");
    let rows: BTreeSet<&str> = ids.split(' ').collect();
    await_that(&format!("{name}: every row in the topic"), SOON, || async {
        let records = pipeline.topic.read_all().await;
        let seen: BTreeSet<&str> =
            records.iter().filter_map(|record| record.header("id")).collect();
        let missing: Vec<_> = rows.difference(&seen).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("missing {missing:?}")) }
    })
    .await;
    let records = pipeline.topic.read_all().await.len();
    show(&format!("{name}: {} rows, all in the topic, {} records", rows.len(), records));
}

/// One step of a hint.
#[derive(PartialEq, Eq, Debug)]
enum Step {
    Sql(String),
    Command(Vec<String>),
    OtherSlot,
    /// Words for a person.
    Words,
}

/// The steps of a hint up to its first alternative, as they are printed.
fn steps(hint: &str) -> Vec<Step> {
    let first = hint.split("; or").next().unwrap_or(hint);
    first.split("; then ").map(step).collect()
}

fn step(text: &str) -> Step {
    // What stands in brackets behind a command says what it does.
    let text = text.split(" (it ").next().unwrap_or(text);
    if text.starts_with("set source.slot to a name that no slot has") {
        return Step::OtherSlot;
    }
    let begins =
        ["postrider ", "SELECT pg_", "DELETE FROM ", "CREATE PUBLICATION ", "ALTER ", "BEGIN; "];
    let found = begins.iter().filter_map(|begin| text.find(begin)).min();
    let Some(at) = found else { return Step::Words };
    let rest = text.get(at..).unwrap_or_default();
    let command = rest.split(". ").next().unwrap_or_default().trim_end_matches([';', '.', ' ']);
    match command.strip_prefix("postrider ") {
        // The last step: whoever follows the hint starts it.
        Some("run") => Step::Words,
        Some(rest) => Step::Command(rest.split_whitespace().map(str::to_owned).collect()),
        None => Step::Sql(command.to_owned()),
    }
}

/// Follows a halt's hint; the configuration that comes of it.
pub(crate) async fn follow(pipeline: &Pipeline, halted: &Halted) -> String {
    let mut config = pipeline.config.clone();
    let steps = steps(&halted.hint);
    let done = steps.iter().filter(|step| **step != Step::Words).count();
    assert!(done > 0 || halted.hint.contains("postrider run"), "nothing to do: {halted:#?}");
    for step in steps {
        match step {
            Step::Words => {}
            Step::OtherSlot => {
                let line = format!("slot = \"{}_other\"", pipeline.slot());
                config = pipeline.with_line("source", &line);
            }
            Step::Sql(sql) if sql.starts_with("CREATE PUBLICATION") => {
                // "If it does not exist."
                let found = "select count(*)::text from pg_publication where pubname = '{}'";
                let found = pipeline.sql.text(&found.replace("{}", &pipeline.slot())).await;
                if found.as_deref() == Some("0") {
                    pipeline.sql.batch(&sql).await;
                }
            }
            Step::Sql(sql) => pipeline.sql.batch(&sql).await,
            Step::Command(args) => {
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                postrider_ok(&config, &args);
            }
        }
    }
    config
}

async fn halts_end_well(version: Version, from: usize, to: usize, by: By) {
    for fault in FAULTS[from..to].iter().filter(|fault| !fault.code.is_empty()) {
        let pipeline = hurt(version, fault, by).await;
        let name = format!("{} {}", fault.code, fault.name);
        if by == By::Auto && matches!(fault.code, "PR002" | "PR003") {
            let relay = pipeline.run();
            rows_arrive(&pipeline, &name).await;
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
            continue;
        }
        let halted = run_to_halt(&pipeline.config).await;
        assert_eq!(halted.code, fault.code, "{}: {halted:#?}", fault.name);
        assert!(!halted.hint.contains("insert again"), "{}: {halted:#?}", fault.name);
        let config = follow(&pipeline, &halted).await;
        every_row_arrives(&pipeline, &config, &name).await;
    }
}

/// Follows a finding; `postrider run` is what the test goes on with.
async fn fix(patient: &Patient, finding: &Value) {
    let lines = fixes(finding);
    assert!(!lines.is_empty(), "nothing to do: {finding:#}");
    for fix in lines {
        assert!(fix["restart"] == false, "{finding:#}");
        if !fix["line"].as_str().is_some_and(|line| line.ends_with(" run")) {
            patient.execute(fix).await;
        }
    }
}

/// Whoever reads the list follows what is an error, from the first to the last, and the finding of the fault.
async fn findings_followed(patient: &Patient, id: &str, by: By) {
    let checked = patient.check(&[]);
    assert!(checked.find(id).is_some(), "{id}: {checked}");
    // Mode auto polls the table instead of a slot that can't be used. One that was moved halts it.
    if id == "slot_moved" {
        checked.expect(id, "error");
    }
    let told = |finding: &&Value| finding["severity"] == "error" || finding["id"] == id;
    for finding in checked.findings.iter().filter(told) {
        fix(patient, finding).await;
    }
    // With mode auto the run is what recreates a slot.
    if by == By::Wal {
        let again = patient.check(&[]);
        assert_eq!(again.ids(&["error"]), Vec::<&str>::new(), "{id}: {again}");
    }
}

async fn findings_end_well(version: Version, from: usize, to: usize, by: By) {
    for fault in FAULTS[from..to].iter().filter(|fault| !fault.finding.is_empty()) {
        let pipeline = hurt(version, fault, by).await;
        let patient = Patient::new(&pipeline.config, &pipeline.url);
        findings_followed(&patient, fault.finding, by).await;
        let name = format!("{} {}", fault.finding, fault.name);
        every_row_arrives(&pipeline, &patient.config(), &name).await;
    }
}

#[tokio::test]
async fn every_halt_of_a_slot_followed_as_printed_publishes_every_row() {
    halts_end_well(Version::Pg17, 0, 7, By::Wal).await;
}

#[tokio::test]
async fn every_halt_of_a_publication_followed_as_printed_publishes_every_row_on_15() {
    halts_end_well(Version::Pg15, 7, FAULTS.len(), By::Wal).await;
}

#[tokio::test]
async fn every_halt_of_a_publication_followed_as_printed_publishes_every_row_on_18() {
    halts_end_well(Version::Pg18, 7, FAULTS.len(), By::Wal).await;
}

#[tokio::test]
async fn every_finding_of_a_slot_mended_as_printed_publishes_every_row() {
    findings_end_well(Version::Pg18, 0, 7, By::Wal).await;
}

#[tokio::test]
async fn every_finding_of_a_publication_mended_as_printed_publishes_every_row() {
    findings_end_well(Version::Pg17, 7, FAULTS.len(), By::Wal).await;
}

#[tokio::test]
async fn every_halt_of_mode_auto_followed_as_printed_publishes_every_row() {
    halts_end_well(Version::Pg18, 0, FAULTS.len(), By::Auto).await;
}

#[tokio::test]
async fn every_finding_of_mode_auto_followed_as_printed_publishes_every_row() {
    findings_end_well(Version::Pg16, 0, FAULTS.len(), By::Auto).await;
}

/// The slot was invalidated, by either limit, while the relay was stopped: as a halt, as a finding, with
/// `on_slot_lost = "repair"`, and in mode auto.
async fn slot_lost(version: Version, settings: &str, idle: bool) {
    let server = PrivatePostgres::start(version, settings).await;
    for way in ["halt", "finding", "repair", "auto"] {
        let by = if way == "auto" { By::Auto } else { By::Wal };
        if idle {
            server
                .connect()
                .await
                .batch("alter system set idle_replication_slot_timeout = 0")
                .await;
            server.reload();
        }
        server.connect().await.batch(&format!("create database way_{way}")).await;
        let url = server.url_of(&format!("way_{way}"));
        let pipeline = Pipeline::on(&url, &brokers(), "slotlost").await;
        let mut pipeline = stopped(pipeline, by).await;
        if idle {
            server.connect().await.batch("alter system reset idle_replication_slot_timeout").await;
            server.reload();
            await_that("the slot's end", SOON, || async {
                pipeline.sql.batch("checkpoint").await;
                let look = format!(
                    "select invalidation_reason from pg_replication_slots where slot_name = '{}'",
                    pipeline.slot()
                );
                pipeline
                    .sql
                    .text(&look)
                    .await
                    .filter(|why| why == "idle_timeout")
                    .ok_or("it stands")
            })
            .await;
            // "To prevent this from happening again, check idle_replication_slot_timeout."
            server
                .connect()
                .await
                .batch("alter system set idle_replication_slot_timeout = 0")
                .await;
            server.reload();
        } else {
            outgrow(&pipeline).await;
        }
        pipeline.insert(5).await;
        let name = format!("{version:?} slot lost, {way}");
        match way {
            "halt" => {
                let halted = run_to_halt(&pipeline.config).await;
                halted.assert_says("PR001", &[&pipeline.slot()], &["postrider repair"]);
                pipeline.config = follow(&pipeline, &halted).await;
            }
            "finding" => {
                let patient = Patient::new(&pipeline.config, &pipeline.url);
                findings_followed(&patient, "slot_lost", by).await;
                pipeline.config = patient.config();
            }
            "repair" => pipeline.config = pipeline.with_line("source", "on_slot_lost = \"repair\""),
            _ => {}
        }
        every_row_arrives(&pipeline, &pipeline.config, &name).await;
    }
}

const OUTGROWN: &str = "max_slot_wal_keep_size = 32MB\nmin_wal_size = 32MB\nmax_wal_size = 64MB";

#[tokio::test]
async fn slot_that_outgrew_the_limit_loses_no_row_whichever_line_is_followed_on_15() {
    slot_lost(Version::Pg15, OUTGROWN, false).await;
}

#[tokio::test]
async fn slot_that_outgrew_the_limit_loses_no_row_whichever_line_is_followed_on_17() {
    slot_lost(Version::Pg17, OUTGROWN, false).await;
}

#[tokio::test]
async fn slot_that_was_idle_for_too_long_loses_no_row_whichever_line_is_followed() {
    slot_lost(Version::Pg18, "idle_replication_slot_timeout = '1s'", true).await;
}

/// The table is dropped and created again while the slot still has rows of the first one.
const TABLE_AGAIN: &str = "create table next (like outbox including all); drop table outbox; \
    alter table next rename to outbox; alter sequence next_id_seq rename to outbox_id_seq; \
    alter sequence outbox_id_seq restart with 16";

/// Rows of the old table are in the slot alone, rows of the new one of before it is published are in the table alone.
#[tokio::test]
async fn table_that_was_created_again_loses_no_row_of_either_table() {
    for (version, by) in
        [(Version::Pg15, By::Wal), (Version::Pg18, By::Wal), (Version::Pg17, By::Auto)]
    {
        for way in ["halt", "finding", "added"] {
            let pipeline = stopped(Pipeline::shared(version, "again").await, by).await;
            pipeline.sql(TABLE_AGAIN).await;
            pipeline.insert(5).await;
            let mut config = pipeline.config.clone();
            if way == "halt" {
                let halted = run_to_halt(&config).await;
                halted.assert_says("PR008", &[], &["do not repair"]);
                config = follow(&pipeline, &halted).await;
            } else {
                if way == "added" {
                    pipeline.sql("alter publication {publication} add table outbox").await;
                    if by == By::Wal {
                        let refused = postrider(&config, &["repair"]);
                        assert_eq!(refused.status.code(), Some(3));
                    }
                }
                let patient = Patient::new(&config, &pipeline.url);
                let id = if way == "added" { "publication_changed" } else { "publication_table" };
                findings_followed(&patient, id, by).await;
            }
            every_row_arrives(&pipeline, &config, &format!("{version:?} table again, {way}")).await;
        }
    }
}

/// The reported case: the publication is created again, and a repair without any option finds the rows of between.
#[tokio::test]
async fn a_repair_finds_that_the_publication_was_created_again() {
    for version in [Version::Pg15, Version::Pg18] {
        let fault = FAULTS
            .iter()
            .find(|fault| fault.name.contains("created again") && fault.code == "PR007");
        let pipeline = hurt(version, fault.expect("a fault"), By::Wal).await;
        let said = postrider_ok(&pipeline.config, &["repair", "--dry-run"]);
        assert!(said.contains("created or changed") && said.contains("15 rows"), "{said}");
        postrider_ok(&pipeline.config, &["repair"]);
        let said = postrider_ok(&pipeline.config, &["repair"]);
        assert!(said.contains("nothing to repair"), "{said}");
        every_row_arrives(&pipeline, &pipeline.config, "repair").await;
    }
}

/// Nothing halts here: taken out and put back while the relay is stopped, the stream would pass over the rows of
/// between without a word. The start and `check` say so, and a repair publishes them.
#[tokio::test]
async fn rows_that_a_publication_left_out_for_a_while_are_found_and_published() {
    let fault = Fault {
        name: "table taken out and put back",
        hurt: "alter publication {publication} drop table outbox",
        after: "alter publication {publication} add table outbox",
        code: "",
        finding: "publication_changed",
    };
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = hurt(version, &fault, By::Wal).await;
        let patient = Patient::new(&pipeline.config, &pipeline.url);
        patient.check(&[]).expect("publication_changed", "warning");
        let said = postrider_ok(&pipeline.config, &["repair", "--dry-run"]);
        assert!(said.contains("15 rows"), "{said}");
        let relay = pipeline.run();
        relay.await_log("publication_changed", SOON).await;
        drop(relay.kill().await);
        let output = postrider(&pipeline.config, &["repair", "--from-table"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        every_row_arrives(&pipeline, &pipeline.config, fault.name).await;
    }
}

#[test]
fn a_hint_is_taken_apart_as_it_is_printed() {
    let hint = "find out who moved it; then postrider repair -p a --dry-run (it counts; then more); then SELECT \
                pg_drop_replication_slot('s'); or DELETE FROM everything";
    let args = |text: &str| Step::Command(text.split(' ').map(str::to_owned).collect());
    assert_eq!(
        steps(&hint.replace("; then more", "")),
        [
            Step::Words,
            args("repair -p a --dry-run"),
            Step::Sql("SELECT pg_drop_replication_slot('s')".to_owned())
        ]
    );
    assert_eq!(
        steps(
            "after a failover go back. Otherwise postrider repair -p a (it publishes them). Look at x"
        ),
        [args("repair -p a")]
    );
}
