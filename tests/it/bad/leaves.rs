//! Partitions that no stream can be made of, at any depth, and those that change while the stream runs.

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::check::{Patient, fixes};
use crate::halted::{Halted, halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use std::collections::BTreeMap;

/// A pipeline whose outbox is a partitioned table with an ordinary partition for type `order`.
struct Partitioned {
    pipeline: Pipeline,
    config: String,
}

impl Partitioned {
    async fn new(version: Version, test: &str) -> Self {
        let pipeline = Pipeline::shared(version, test).await;
        pipeline
            .sql(
                "create table events (like outbox including defaults) partition by list (aggregate_type); \
                 create table events_order partition of events for values in ('order'); \
                 alter publication {publication} set table events",
            )
            .await;
        let config = pipeline.config.replace("public.outbox", "public.events");
        Self { pipeline, config }
    }

    /// Events `from` to `to` of this type.
    async fn insert(&self, kind: &str, from: u32, to: u32) {
        let rows = format!(
            "insert into events (id, aggregate_type, aggregate_id, event_type, payload) \
             select i, '{kind}', 'a', 'T', to_json(i) from generate_series({from}, {to}) i"
        );
        self.pipeline.sql.batch(&rows).await;
    }

    /// How often each id is in the topic, once all of `ids` are there.
    async fn published(&self, ids: u32) -> BTreeMap<u32, usize> {
        let count = usize::try_from(ids).expect("a small number");
        let relay = spawn(&self.config);
        relay.await_state("streaming", SOON).await;
        let found = await_that("every event", SOON, || async {
            let mut found = BTreeMap::new();
            for record in self.pipeline.topic.read_all().await {
                let id = record.header("id").expect("an id").parse::<u32>().expect("a number");
                *found.entry(id).or_insert(0) += 1;
            }
            if found.len() == count { Ok(found) } else { Err(format!("{found:?}")) }
        })
        .await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        found
    }
}

/// The statements of a halt for an unlogged partition.
fn statements(halted: &Halted) -> String {
    let (statements, _) = halted.hint.rsplit_once("COMMIT;").expect("statements");
    format!("{statements}COMMIT;")
}

const PART: &str = "partition of events for values in ('bill')";

/// At the start: what it is called on the page, how the partition of type `bill` is made, and how it is called.
const UNLOGGED: &[(&str, &str, &str)] = &[
    (
        "an unlogged partition",
        "create unlogged table late partition of events for values in ('bill')",
        "\"public\".\"late\" (unlogged)",
    ),
    (
        "an unlogged partition of a partition",
        "create table sub partition of events for values in ('bill') partition by range (id); \
         create unlogged table late partition of sub for values from (0) to (1000)",
        "\"public\".\"late\" (unlogged)",
    ),
    (
        "an unlogged table that was attached",
        "create unlogged table late (like events including defaults); \
         alter table events attach partition late for values in ('bill')",
        "\"public\".\"late\" (unlogged)",
    ),
];

#[tokio::test]
async fn partition_that_wal_has_no_rows_of_halts_and_its_statements_publish_them() {
    for version in Version::ALL {
        for (input, made, called) in UNLOGGED {
            let table = Partitioned::new(version, "unlogged").await;
            table.insert("order", 1, 5).await;
            table.pipeline.sql(made).await;
            table.insert("bill", 6, 10).await;
            let check = postrider(&table.config, &["check", "--json"]);
            let said = String::from_utf8_lossy(&check.stdout).into_owned();
            assert_eq!(check.status.code(), Some(1), "{said}");
            assert!(said.contains("\"table_partition_unlogged\""), "{said}");
            let setup = postrider(&table.config, &["setup"]);
            let told = String::from_utf8_lossy(&setup.stderr).into_owned();
            assert!(setup.status.code() != Some(0) && told.contains(called), "{told}");
            let halted = run_to_halt(&table.config).await;
            halted.assert_says("PR009", &[called], &["SET LOGGED"]);
            assert!(halted.meaning.contains("header id"), "{halted:#?}");
            assert!(halted.hint.ends_with("COMMIT;"), "nothing but SQL: {}", halted.hint);
            if version == Version::Pg18 {
                answer(input, &table.pipeline, &halted);
            }
            assert_eq!(table.pipeline.topic.read_all().await.len(), 0, "halted at the start");
            table.pipeline.sql.batch(&statements(&halted)).await;
            let found = table.published(10).await;
            assert!(found.values().all(|times| *times == 1), "{input}: {found:?}");
            postrider_ok(&table.config, &["check"]);
        }
    }
}

/// Before the first `setup` there is no slot: what the halt and `check` say publishes the rows all the same.
#[tokio::test]
async fn rows_of_a_table_or_partition_that_is_unlogged_at_the_first_setup_are_published() {
    let cases = [
        (Version::Pg15, false, true),
        (Version::Pg15, true, false),
        (Version::Pg18, false, false),
        (Version::Pg18, true, true),
    ];
    for (version, by_check, whole) in cases {
        let table = Partitioned::new(version, "firstleaf").await;
        postrider_ok(&table.config, &["setup", "--undo", "--yes"]);
        let (made, unlogged) = if whole {
            (
                "drop table events; create unlogged table events (like outbox including defaults)"
                    .to_owned(),
                "events",
            )
        } else {
            (format!("create unlogged table late {PART}"), "late")
        };
        table.pipeline.sql(&made).await;
        table.insert("order", 1, 2).await;
        table.insert("bill", 3, 4).await;
        if by_check {
            let patient = Patient::new(&table.config, &table.pipeline.url);
            let checked = patient.check(&[]);
            for finding in checked.findings.iter().filter(|finding| finding["severity"] == "error")
            {
                for fix in fixes(finding) {
                    patient.execute(fix).await;
                }
            }
            let well = patient.check(&[]);
            assert_eq!(well.ids(&["error"]), Vec::<&str>::new(), "{well}");
        } else {
            let setup = postrider(&table.config, &["setup"]);
            let told = String::from_utf8_lossy(&setup.stderr).into_owned();
            assert_eq!(setup.status.code(), Some(3), "{told}");
            let (_, hint) = told.split_once("hint: ").expect("a hint");
            let (sql, command) = hint.split_once(" then postrider ").expect("two steps");
            assert_eq!(sql, format!("ALTER TABLE \"public\".\"{unlogged}\" SET LOGGED;"));
            table.pipeline.sql.batch(sql).await;
            let args: Vec<&str> = command.split_whitespace().collect();
            postrider_ok(&table.config, &args);
        }
        let found = table.published(4).await;
        assert!(found.values().all(|times| *times == 1), "{by_check}: {found:?}");
    }
}

/// What becomes of the partition of type `bill` while the stream runs.
const WHILE_RUNNING: &[(&str, &str, &str)] = &[
    ("a partition that is made unlogged while running", "create unlogged table late {part}", ""),
    (
        "a partition that is set unlogged while running",
        "alter table late set unlogged",
        "create table late {part}",
    ),
    (
        "an unlogged table that is attached while running",
        "create unlogged table late (like events including defaults); \
         alter table events attach partition late for values in ('bill')",
        "",
    ),
];

#[tokio::test]
async fn partition_that_leaves_the_wal_while_running_halts_and_no_row_is_lost() {
    for version in [Version::Pg15, Version::Pg18] {
        for (input, change, before) in WHILE_RUNNING {
            let table = Partitioned::new(version, "leaves").await;
            if !before.is_empty() {
                table.pipeline.sql(&before.replace("{part}", PART)).await;
                table.insert("bill", 6, 7).await;
            }
            let relay = spawn(&table.config);
            relay.await_state("streaming", SOON).await;
            table.insert("order", 1, 5).await;
            let known = if before.is_empty() { 5 } else { 7 };
            table.pipeline.topic.await_records(known, SOON).await;
            table.pipeline.sql(&change.replace("{part}", PART)).await;
            table.insert("bill", 8, 10).await;
            let halted = halt_of(relay).await;
            halted.assert_says("PR009", &["\"late\" (unlogged)"], &["SET LOGGED"]);
            if version == Version::Pg18 {
                answer(input, &table.pipeline, &halted);
            }
            table.pipeline.sql.batch(&statements(&halted)).await;
            if before.is_empty() {
                table.insert("bill", 6, 7).await;
            }
            let found = table.published(10).await;
            let twice: Vec<_> = found.iter().filter(|(_, times)| **times > 1).collect();
            // The hint says so: rows that were streamed before it was unlogged.
            assert!(
                before.is_empty() == twice.is_empty() && twice.len() <= 2,
                "{input}: {found:?}"
            );
        }
    }
}

/// postgres_fdw to nowhere: the catalog is all that is asked.
const FOREIGN: &str = "create extension postgres_fdw; create server nowhere foreign data wrapper postgres_fdw; \
                       create foreign table late {part} server nowhere";

#[tokio::test]
async fn foreign_partition_halts_unless_it_takes_no_rows() {
    for version in Version::ALL {
        let table = Partitioned::new(version, "foreign").await;
        table.insert("order", 1, 5).await;
        table.pipeline.sql(&FOREIGN.replace("{part}", PART)).await;
        let halted = run_to_halt(&table.config).await;
        halted.assert_says(
            "PR009",
            &["\"late\" (a foreign table)"],
            &["DETACH PARTITION", "updatable 'false'"],
        );
        if version == Version::Pg18 {
            answer("a foreign partition", &table.pipeline, &halted);
        }
        let check = postrider(&table.config, &["check", "--json"]);
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(said.contains("\"table_partition_foreign\""), "{said}");
        let read_only = halted.hint.rsplit_once("ALTER FOREIGN TABLE").expect("a statement").1;
        table.pipeline.sql.batch(&format!("alter foreign table {read_only}")).await;
        assert!(
            table
                .pipeline
                .sql
                .batch_execute("insert into events (id, aggregate_type) values (9, 'bill')")
                .await
                .is_err(),
            "the server refuses what no stream would bring"
        );
        let found = table.published(5).await;
        assert!(found.values().all(|times| *times == 1), "{found:?}");
    }
}

/// A temporary partition of a permanent table is refused by every server, so there is nothing to find.
#[tokio::test]
async fn temporary_partition_is_refused_by_the_server() {
    for version in Version::ALL {
        let table = Partitioned::new(version, "temporary").await;
        let made =
            table.pipeline.sql.batch_execute(&format!("create temporary table t {PART}")).await;
        assert!(made.is_err());
    }
}

/// A publication that names partitions, and not their table: what of its own it leaves out is said with one way out.
#[tokio::test]
async fn publication_of_some_partitions_halts_and_its_statements_publish_all_partitions() {
    for via_root in ["true", "false"] {
        let table = Partitioned::new(Version::Pg17, "someleaves").await;
        table
            .pipeline
            .sql(&format!(
                "create table late {PART}; alter publication {{publication}} set table events_order; \
                 alter publication {{publication}} set (publish_via_partition_root = {via_root})"
            ))
            .await;
        let halted = run_to_halt(&table.config).await;
        halted.assert_says("PR008", &["events"], &["ADD TABLE"]);
        // What follows is for rows that were committed meanwhile.
        let statements = halted.hint.split("; then ").next();
        table.pipeline.sql.batch(statements.expect("statements")).await;
        table.insert("order", 1, 5).await;
        table.insert("bill", 6, 10).await;
        let found = table.published(10).await;
        assert!(found.values().all(|times| *times == 1), "{via_root}: {found:?}");
    }
}

#[tokio::test]
async fn partitions_that_are_attached_with_rows_or_detached_while_running_are_logged() {
    let table = Partitioned::new(Version::Pg17, "attached").await;
    let pipeline = &table.pipeline;
    let relay = spawn(&table.config);
    relay.await_state("streaming", SOON).await;
    table.insert("order", 1, 5).await;
    pipeline.topic.await_records(5, SOON).await;
    // A slot's look is what partitions are compared with.
    let looked = |status: &serde_json::Value| status["pipelines"][0]["slot_state"] == "reserved";
    relay.await_status("a look", SOON, looked).await;
    pipeline
        .sql(
            "create table late (like events including defaults); \
             insert into late (id, aggregate_type, aggregate_id, event_type, payload) values (6, 'bill', 'a', 'T', '6'); \
             alter table events attach partition late for values in ('bill')",
        )
        .await;
    relay.await_log("partition_attached", SOON).await;
    answer(
        "a table with rows that is attached as a partition",
        pipeline,
        Answer::logged(&relay.stderr(), "partition_attached"),
    );
    pipeline
        .sql
        .batch(
            "with again as (delete from late returning *) insert into events select * from again",
        )
        .await;
    pipeline.topic.await_records(6, SOON).await;
    table.insert("bill", 7, 7).await;
    pipeline.sql.batch("alter table events detach partition late").await;
    relay.await_log("partition_detached", SOON).await;
    answer(
        "a partition that is detached",
        pipeline,
        Answer::logged(&relay.stderr(), "partition_detached"),
    );
    pipeline.topic.await_records(7, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Polling reads an unlogged partition, but a crash empties it.
#[tokio::test]
async fn unlogged_partition_is_not_polled_and_each_row_comes_once_when_it_is_logged() {
    let table = Partitioned::new(Version::Pg18, "polledleaf").await;
    let config = format!("[pipelines.{}]\nmode = \"poll\"\n", table.pipeline.name);
    let head = format!("[pipelines.{}]\n", table.pipeline.name);
    let config = table.config.replacen(&head, &config, 1);
    table.pipeline.sql(&format!("create unlogged table late {PART}")).await;
    table.insert("bill", 1, 5).await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR009", &["\"late\" (unlogged)"], &["SET LOGGED"]);
    answer("an unlogged partition, polled", &table.pipeline, &halted);
    table.pipeline.sql.batch(&halted.hint).await;
    super::arrives_with(&table.pipeline, &config, 5).await;
}
