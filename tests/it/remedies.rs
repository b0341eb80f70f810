//! Every remedy is followed as it is printed, with rows waiting: afterwards every row of the outbox is in the topic.
//!
//! What is printed is taken apart and executed: SQL as an administrator, commands with the pipeline's configuration,
//! settings in the file. Rows wait from before the fault, from its time, and from after it.

use crate::await_that::{SOON, await_that};
use crate::check::Patient;
use crate::halted::{Halted, run_to_halt};
use crate::pipeline::{Pipeline, show};
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::Version;
use std::collections::BTreeSet;

/// What happens to a pipeline that is stopped, and what is said of it.
struct Fault {
    /// In words.
    name: &'static str,
    /// What is done to the database.
    hurt: &'static str,
    /// What somebody does after rows were inserted, as people do.
    after: &'static str,
    /// The halt of a start.
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
];

/// A pipeline that has published ten rows and is stopped; five wait from before the fault, five from its time, five
/// from after it.
async fn hurt(version: Version, fault: &Fault) -> Pipeline {
    let pipeline = Pipeline::shared(version, "remedies").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    // What is resolved is written down.
    let known = "select (resolved_snapshot is not null)::text from postrider.cursor";
    await_that("a cursor row that knows what is resolved", SOON, || async {
        let known = pipeline.sql.text(known).await;
        if known.as_deref() == Some("true") { Ok(()) } else { Err(format!("{known:?}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(5).await;
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

/// Starts, and waits until every row of the table is in the topic.
async fn every_row_arrives(pipeline: &Pipeline, config: &str, name: &str) {
    let relay = Relay::spawn(config);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(2).await;
    let ids = "select string_agg(id::text, ' ') from outbox";
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
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
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
        Some(rest) => Step::Command(rest.split_whitespace().map(str::to_owned).collect()),
        None => Step::Sql(command.to_owned()),
    }
}

/// Follows a halt's hint; the configuration that comes of it.
pub(crate) async fn follow(pipeline: &Pipeline, halted: &Halted) -> String {
    let mut config = pipeline.config.clone();
    let steps = steps(&halted.hint);
    let done = steps.iter().filter(|step| **step != Step::Words).count();
    assert!(done > 0, "nothing to do: {halted:#?}");
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

async fn halts_end_well(version: Version, from: usize, to: usize) {
    for fault in &FAULTS[from..to] {
        let pipeline = hurt(version, fault).await;
        let halted = run_to_halt(&pipeline.config).await;
        assert_eq!(halted.code, fault.code, "{}: {halted:#?}", fault.name);
        assert!(!halted.hint.contains("insert again"), "{}: {halted:#?}", fault.name);
        let config = follow(&pipeline, &halted).await;
        every_row_arrives(&pipeline, &config, &format!("{} {}", fault.code, fault.name)).await;
    }
}

async fn findings_end_well(version: Version, from: usize, to: usize) {
    for fault in FAULTS[from..to].iter().filter(|fault| !fault.finding.is_empty()) {
        let pipeline = hurt(version, fault).await;
        let patient = Patient::new(&pipeline.config, &pipeline.url);
        let checked = patient.check(&[]);
        assert!(checked.find(fault.finding).is_some(), "{}: {checked}", fault.name);
        // Whoever reads the list mends what is an error, from the first to the last.
        for finding in checked
            .findings
            .iter()
            .filter(|other| other["severity"] == "error" || other["id"] == fault.finding)
        {
            patient.mend(finding).await;
        }
        let again = patient.check(&[]);
        assert_eq!(again.ids(&["error"]), Vec::<&str>::new(), "{}: {again}", fault.name);
        every_row_arrives(
            &pipeline,
            &patient.config(),
            &format!("{} {}", fault.finding, fault.name),
        )
        .await;
    }
}

#[tokio::test]
async fn every_halt_of_a_slot_followed_as_printed_publishes_every_row() {
    halts_end_well(Version::Pg17, 0, 7).await;
}

#[tokio::test]
async fn every_halt_of_a_publication_followed_as_printed_publishes_every_row_on_15() {
    halts_end_well(Version::Pg15, 7, FAULTS.len()).await;
}

#[tokio::test]
async fn every_halt_of_a_publication_followed_as_printed_publishes_every_row_on_18() {
    halts_end_well(Version::Pg18, 7, FAULTS.len()).await;
}

#[tokio::test]
async fn every_finding_of_a_slot_mended_as_printed_publishes_every_row() {
    findings_end_well(Version::Pg18, 0, 7).await;
}

#[tokio::test]
async fn every_finding_of_a_publication_mended_as_printed_publishes_every_row() {
    findings_end_well(Version::Pg17, 7, FAULTS.len()).await;
}

/// The reported case: the publication is created again, and a repair without any option finds the rows of between.
#[tokio::test]
async fn a_repair_finds_that_the_publication_was_created_again() {
    for version in [Version::Pg15, Version::Pg18] {
        let fault = FAULTS
            .iter()
            .find(|fault| fault.name.contains("created again") && fault.code == "PR007");
        let pipeline = hurt(version, fault.expect("a fault")).await;
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
        let pipeline = hurt(version, &fault).await;
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
