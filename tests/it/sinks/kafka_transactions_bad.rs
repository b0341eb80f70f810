//! The Kafka sink with transactions while something is wrong for long: the coordinator, the topic of the progress,
//! rights, another pipeline.

use super::kafka::KafkaServer;
use super::pipeline::{SinkPipeline, state};
use super::scenarios::grown;
use super::server::SinkServer;
use crate::await_that::SOON;
use crate::halted::run_to_halt;
use crate::ledger::Findings;
use crate::load::{Load, Plan};
use crate::private::{Operation, Resource};
use crate::relay::{Relay, postrider, postrider_ok};
use serde_json::Value;
use std::cell::RefCell;

type Exact = KafkaServer<true, true>;

const PROGRESS: &str = "postrider.progress";

/// What `/status` has of the transactions of the only pipeline.
fn transactions(status: &Value) -> &Value {
    &status["pipelines"][0]["sink_transactions"]
}

async fn pipeline_with(test: &str, tables: &str) -> SinkPipeline<Exact> {
    let server = Exact::start().await;
    server.create("orders").await;
    let sink = server.sink(None) + tables;
    SinkPipeline::to(server, test, &sink).await
}

/// What a coordinator logs that writes no marker into a partition which has no leader (KAFKA-20734).
const NO_MARKER: &str = "these partitions are likely deleted already and hence can be skipped";

/// Records of a transaction at most, in the test below.
const TRANSACTION_RECORDS_MAX: usize = 2_000;

/// The only broker is frozen for longer than the time-out of transactions, and than every time-out of librdkafka's
/// requests. Returns what is in the topic, and whether the broker has left out the end of a transaction.
///
/// What became of the transaction that was open depends on the moment of the freeze: the broker, which was frozen too,
/// may still commit it.
async fn frozen_for_long(test: &str, properties: &str) -> (Findings, bool) {
    let mut server = Exact::start().await;
    server.kafka.set(properties);
    server.kafka.stop().await;
    server.kafka.restart().await;
    server.create("orders").await;
    let sink = server.sink(None)
        + &format!(
            "[.sink.transaction]\ntimeout = \"4s\"\nevents_max = {TRANSACTION_RECORDS_MAX}\n"
        )
        + "[.sink.properties]\n\"socket.timeout.ms\" = \"3000\"\n";
    let pipeline = SinkPipeline::to(server, test, &sink).await;
    let relay = pipeline.run();
    let load = Load::start(&Plan { rate: 500, ..pipeline.plan() }, 1);
    let committed = |status: &Value| transactions(status)["committed_total"].as_u64();
    relay.await_status("commits", SOON, |status| committed(status) >= Some(20)).await;
    pipeline.server.freeze();
    let waits = |status: &Value| {
        let lag = status["pipelines"][0]["lag_seconds"].as_f64();
        state(status) == "broker_down" && lag > Some(25.0)
    };
    let status = relay.await_status("that it waits for long", SOON, waits).await;
    assert!(status["pipelines"][0]["reason"].is_string(), "{status}");
    let before = committed(&status);
    pipeline.server.thaw();
    grown(&load, 500).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    pipeline.resolved().await;
    let status = relay.status().await.expect("a status");
    assert!(committed(&status) > before, "{status}");
    relay.terminate(SOON).await;
    (found, pipeline.server.kafka.has_logged(NO_MARKER))
}

/// The partition keeps its leader: no event is missing or comes twice.
#[tokio::test]
async fn coordinator_that_answers_nothing_for_long_is_waited_for() {
    let keeps_leader = "broker.session.timeout.ms=300000";
    let (found, leaves_out) = frozen_for_long("coordinator", keeps_leader).await;
    found.assert_balanced(0);
    assert!(!leaves_out, "the partition has lost its leader");
}

/// The partition has no leader when the broker is thawed. Only a broker that leaves out the end of the transaction lets
/// its events come twice: docs/exactly-once.md, "Partitions without a leader".
#[tokio::test]
async fn partition_without_a_leader_loses_nothing_and_repeats_only_what_the_broker_left_open() {
    let (found, leaves_out) = frozen_for_long("leaderless", "").await;
    found.assert_balanced(if leaves_out { TRANSACTION_RECORDS_MAX } else { 0 });
}

/// The value of a series of the only pipeline; `labels` are those beside `pipeline` and `shard`, each behind a comma.
async fn metric(relay: &Relay, pipeline: &str, (name, labels): (&str, &str)) -> Option<f64> {
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    let series = format!("{name}{{pipeline=\"{pipeline}\",shard=\"0\"{labels}}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
    value.map(|value| value.parse().expect("a number"))
}

const COMMITTED: (&str, &str) = ("postrider_sink_transactions_total", ",outcome=\"committed\"");
const ABORTED: (&str, &str) = ("postrider_sink_transactions_total", ",outcome=\"aborted\"");
const UNKNOWN: (&str, &str) = ("postrider_sink_transactions_total", ",outcome=\"unknown\"");
const RECORDS: (&str, &str) = ("postrider_sink_transaction_records_total", "");
const FENCED: (&str, &str) = ("postrider_sink_fenced_total", "");
const COMMITS: (&str, &str) = ("postrider_sink_commit_seconds_count", "");

/// The status has the progress beside the cursor row, and `/metrics` counts the transactions.
#[tokio::test]
async fn status_and_metrics_show_progress_and_transactions() {
    let pipeline = pipeline_with("shown", "").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2, 3]).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.resolved().await;
    // Both go on with the WAL of other databases.
    let shown = |status: &Value| {
        let is_position = |key: &str| {
            transactions(status)[key].as_str().is_some_and(|position| position.contains('/'))
        };
        is_position("progress") && is_position("cursor_row")
    };
    let status = relay.await_status("the cursor row", SOON, shown).await;
    let id = transactional_id(&pipeline).await;
    assert_eq!(transactions(&status)["id"], id, "{status}");
    let since = transactions(&status)["taken_over_at"].as_str().unwrap_or_default();
    let sql = format!("select now() - timestamptz '{since}' between '0' and '10 min'");
    assert_eq!(pipeline.sql.text(&sql).await.as_deref(), Some("t"), "{status}");
    assert_eq!(transactions(&status)["records_total"], 3, "{status}");
    let count = transactions(&status)["committed_total"].as_f64();
    assert!(count > Some(0.0), "{status}");
    // The commits of the cursor row go on without records.
    assert!(metric(&relay, &pipeline.name, COMMITTED).await >= count);
    assert!(metric(&relay, &pipeline.name, COMMITS).await >= count);
    assert_eq!(metric(&relay, &pipeline.name, RECORDS).await, Some(3.0));
    for none in [ABORTED, UNKNOWN, FENCED] {
        assert_eq!(metric(&relay, &pipeline.name, none).await, Some(0.0), "{none:?}");
    }
    relay.terminate(SOON).await;
}

/// For how long a reason that lasts is looked at: longer than the pauses between two reports of it. Unit: seconds.
const LASTS: f64 = 8.0;

/// Waits until the status has a reason with these words and a hint with those, and then watches that it keeps to it.
/// An event must be waiting, whose age is the clock.
async fn await_lasting(relay: &Relay, reason: &[&str], hint: &[&str]) {
    let is_named = |status: &Value| {
        let pipeline = &status["pipelines"][0];
        let has = |key: &str, words: &[&str]| {
            let text = pipeline[key].as_str().unwrap_or_default();
            words.iter().all(|word| text.contains(word))
        };
        state(status) == "broker_down" && has("reason", reason) && has("hint", hint)
    };
    let lag = |status: &Value| status["pipelines"][0]["lag_seconds"].as_f64().unwrap_or(0.0);
    let status = relay.await_status(&format!("the reason {reason:?}"), SOON, is_named).await;
    let (end, other) = (lag(&status) + LASTS, RefCell::new(None));
    let is_over = |status: &Value| {
        if !is_named(status) {
            other.borrow_mut().get_or_insert_with(|| status.to_string());
        }
        lag(status) >= end || other.borrow().is_some()
    };
    relay.await_status("the same state for a while", SOON, is_over).await;
    assert_eq!(other.into_inner(), None, "it alternates: {}", relay.stderr());
}

/// The topic of the progress is deleted while the pipeline publishes. Nothing is published without it, and the process
/// that has committed before does not take itself for a new one.
#[tokio::test]
async fn progress_deleted_while_it_publishes_is_missed_and_nothing_comes_twice() {
    let pipeline = pipeline_with("running", "").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    pipeline.resolved().await;
    pipeline.server.topic(PROGRESS).delete().await;
    pipeline.insert("orders", "a", &[3]).await;
    await_lasting(&relay, &[PROGRESS, "does not exist"], &["postrider setup"]).await;
    let records = pipeline.server.read("orders").await.expect("records");
    assert_eq!(records.len(), 2, "nothing without its progress");
    let said = postrider_ok(&pipeline.config, &["setup"]);
    assert!(said.contains("begins at the cursor row"), "{said}");
    let status = relay.await_state("halted", SOON).await;
    assert_eq!(status["pipelines"][0]["halt_code"], "PR025", "{status}");
    relay.terminate(SOON).await;
    let relay = pipeline.run();
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 3, "nothing twice");
    relay.terminate(SOON).await;
}

/// Pipelines of two databases have one transactional id. The second one finds progress that is not its own, and says
/// so; the first one is fenced off for a moment, and goes on.
#[tokio::test]
async fn transactional_id_of_another_pipeline_halts_the_second_one_and_says_whose_it_is() {
    let tables = "[.sink.transaction]\nid = \"shared\"\n";
    let pipeline = pipeline_with("shared", tables).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.resolved().await;
    let sink = pipeline.server.sink(None) + tables;
    let (_database, config) = pipeline.namesake("shared_too", &sink).await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR004", &["transactional id \"shared\"", "history"], &["transaction.id"]);
    pipeline.insert("orders", "a", &[2]).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    let fenced = |status: &Value| transactions(status)["fenced_total"].as_u64() > Some(0);
    relay.await_status("that it was fenced off", SOON, fenced).await;
    relay.await_log("another producer has the transactional id now", SOON).await;
    assert!(metric(&relay, &pipeline.name, FENCED).await >= Some(1.0));
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 2, "nothing twice");
    relay.terminate(SOON).await;
}

/// Rows of a table can't be published by such a sink, so a repair would drop a slot that is usable, and end there.
#[tokio::test]
async fn repair_is_refused_before_it_drops_the_slot() {
    let pipeline = pipeline_with("no_repair", "").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    for args in [&["repair", "--from-table", "--dry-run"][..], &["repair", "--from-table"]] {
        let output = postrider(&pipeline.config, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        for words in
            ["PR021", "publishes in transactions", "nothing was changed", "begin a new slot"]
        {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    pipeline.insert("orders", "a", &[2]).await;
    let relay = pipeline.run();
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 2, "nothing twice");
    relay.terminate(SOON).await;
}

/// The hint of the halt is followed: no repair, but a new slot, behind which the row that it lacks is inserted again.
#[tokio::test]
async fn lost_slot_is_followed_by_a_new_one_as_the_hint_says() {
    let pipeline = pipeline_with("new_slot", "").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    pipeline.insert("orders", "a", &[2]).await;
    let slot = format!("postrider_{}", pipeline.name);
    let name = &pipeline.name;
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{slot}')")).await;
    let halted = run_to_halt(&pipeline.config).await;
    let forget = format!("DELETE FROM postrider.cursor WHERE pipeline = '{name}'");
    let setup = format!("postrider setup -p {name} --adopt-cursor");
    halted.assert_says("PR002", &["does not exist"], &["insert the rows again", &forget, &setup]);
    assert!(!halted.hint.contains("postrider repair"), "{}", halted.hint);
    let check = postrider(&pipeline.config, &["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains(" --adopt-cursor") && !said.contains("postrider repair"), "{said}");
    pipeline.sql.batch(&forget).await;
    let refused = postrider(&pipeline.config, &["setup", "--backfill", "all"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("PR021") && said.contains("omit --backfill"), "{said}");
    // Without the option the position of the former slot is left, and named.
    let said = postrider_ok(&pipeline.config, &["setup"]);
    assert!(said.contains("insert them again"), "{said}");
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR004", &["history"], &["postrider setup --adopt-cursor"]);
    postrider_ok(&pipeline.config, &["setup", "--adopt-cursor"]);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[3]).await;
    pipeline.await_values("orders", "a", &["1", "3"]).await;
    pipeline.insert("orders", "a", &[2]).await;
    pipeline.await_values("orders", "a", &["1", "3", "2"]).await;
    relay.terminate(SOON).await;
}

/// The rights to the topic of the progress.
const PROGRESS_RIGHTS: [&str; 4] =
    ["kafka-acls.sh", "--operation Write", "--operation Read", "--topic postrider.progress"];

/// A transaction could not be committed, and the next one could not either: none is begun before the right is back.
#[tokio::test]
async fn progress_that_may_not_be_written_is_waited_for_and_delivery_continues_with_the_right() {
    let pipeline = pipeline_with("unwritable", "").await;
    let kafka = &pipeline.server.kafka;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.resolved().await;
    kafka.deny_operation(Resource::Topic(PROGRESS), Operation::Write);
    pipeline.insert("orders", "a", &[2]).await;
    let words = ["do not allow us to write topic", PROGRESS];
    await_lasting(&relay, &words, &PROGRESS_RIGHTS).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 1, "no commit");
    let resets = relay.stderr().matches("resetting the producer").count();
    assert!((1..=2).contains(&resets), "one transaction after the other: {}", relay.stderr());
    kafka.remove_rules(Resource::Topic(PROGRESS));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.await_state("streaming", SOON).await;
    assert!(metric(&relay, &pipeline.name, UNKNOWN).await >= Some(1.0), "{}", relay.stderr());
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    // At a start no transaction is needed to find out.
    kafka.deny_operation(Resource::Topic(PROGRESS), Operation::Write);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[3]).await;
    await_lasting(&relay, &words, &PROGRESS_RIGHTS).await;
    assert_eq!(metric(&relay, &pipeline.name, UNKNOWN).await, Some(0.0), "{}", relay.stderr());
    kafka.remove_rules(Resource::Topic(PROGRESS));
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    let records = pipeline.server.read("orders").await.expect("records");
    assert_eq!(records.len(), 3, "nothing twice");
    relay.terminate(SOON).await;
}

/// Reading needs a right to the topic, and none to a consumer group. It is needed at a start, and where a producer is
/// replaced.
#[tokio::test]
async fn progress_that_may_not_be_read_is_waited_for_and_delivery_continues_with_the_right() {
    let pipeline = pipeline_with("unreadable", "").await;
    let kafka = &pipeline.server.kafka;
    let id = transactional_id(&pipeline).await;
    for operation in [Operation::Read, Operation::Describe] {
        kafka.deny_operation(Resource::Group(&id), operation);
    }
    let mut values = Vec::new();
    for (operation, word, number) in
        [(Operation::Read, "to read topic", 1), (Operation::Describe, "to describe topic", 2)]
    {
        kafka.deny_operation(Resource::Topic(PROGRESS), operation);
        let relay = pipeline.run();
        pipeline.insert("orders", "a", &[number]).await;
        await_lasting(&relay, &["do not allow us", word, PROGRESS], &PROGRESS_RIGHTS).await;
        assert_eq!(pipeline.server.read("orders").await.expect("records").len(), values.len());
        kafka.remove_rules(Resource::Topic(PROGRESS));
        values.push(number.to_string());
        let wanted: Vec<&str> = values.iter().map(String::as_str).collect();
        pipeline.await_values("orders", "a", &wanted).await;
        relay.await_state("streaming", SOON).await;
        relay.terminate(SOON).await;
    }
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 2, "nothing twice");
}

/// The default transactional id.
async fn transactional_id(pipeline: &SinkPipeline<Exact>) -> String {
    let dbname = pipeline.sql.text("select current_database()").await.expect("a name");
    format!("postrider.{dbname}.{}", pipeline.name)
}

/// Both rights to the transactional id are taken away while the pipeline runs: the right to write shows with the next
/// transaction, that to describe with the next producer.
#[tokio::test]
async fn transactional_id_that_is_denied_while_it_runs_is_named_and_waited_for() {
    let pipeline = pipeline_with("deniedid", "").await;
    let kafka = &pipeline.server.kafka;
    let id = transactional_id(&pipeline).await;
    let words = ["do not allow us the transactional id", id.as_str()];
    let rights = ["kafka-acls.sh", "--operation Write", "--operation Describe", id.as_str()];
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.resolved().await;
    kafka.deny_operation(Resource::TransactionalId(&id), Operation::Write);
    pipeline.insert("orders", "a", &[2]).await;
    await_lasting(&relay, &words, &rights).await;
    kafka.remove_rules(Resource::TransactionalId(&id));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.await_state("streaming", SOON).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    kafka.deny_operation(Resource::TransactionalId(&id), Operation::Describe);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[3]).await;
    await_lasting(&relay, &words, &rights).await;
    kafka.remove_rules(Resource::TransactionalId(&id));
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    relay.await_state("streaming", SOON).await;
    let records = pipeline.server.read("orders").await.expect("records");
    assert_eq!(records.len(), 3, "nothing twice");
    relay.terminate(SOON).await;
}

/// A record of the transaction is refused before the commit is called: the transaction is counted as aborted, and its
/// producer as replaced.
#[tokio::test]
async fn transaction_that_is_given_up_before_its_commit_is_counted_as_aborted() {
    let pipeline = pipeline_with("aborted", "").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.resolved().await;
    pipeline.server.kafka.deny("orders", true);
    pipeline.insert("orders", "a", &[2]).await;
    let aborted = |status: &Value| transactions(status)["aborted_total"].as_u64() > Some(0);
    relay.await_status("an aborted transaction", SOON, aborted).await;
    relay.await_state("broker_down", SOON).await;
    pipeline.server.kafka.deny("orders", false);
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.await_state("streaming", SOON).await;
    assert!(metric(&relay, &pipeline.name, ABORTED).await >= Some(1.0), "{}", relay.stderr());
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    let replaced = |line: &str| {
        line.starts_with("postrider_reconnects_total{") && line.contains("side=\"sink\"")
    };
    assert!(metrics.lines().any(replaced), "{metrics}");
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 2, "nothing twice");
    relay.terminate(SOON).await;
}

/// Events of a transaction of the database, in the tests of `boundary = "source"`.
const WHOLE: u32 = 400;

/// The log line of one that is divided.
const DIVIDED: &str = "is published in several transactions";

/// Transactions of Kafka are committed as often as possible, and none ends within one of the database. The record that
/// ends a transaction has an offset of its own, so offsets are consecutive within a transaction.
#[tokio::test]
async fn transaction_of_the_database_becomes_visible_as_a_whole() {
    let tables =
        "[.sink.transaction]\nboundary = \"source\"\ncommit_interval = \"1ms\"\nevents_max = 500\n";
    let pipeline = pipeline_with("whole", tables).await;
    let relay = pipeline.run();
    for number in 1..=20 {
        let numbers: Vec<u32> = (0..WHOLE).map(|event| number * WHOLE + event).collect();
        pipeline.insert("orders", &format!("a{number}"), &numbers).await;
    }
    let whole = WHOLE as usize;
    let records = pipeline.await_records("orders", 20 * whole).await;
    let transactions = records.chunk_by(|one, next| one.offset + 1 == next.offset);
    let sizes: Vec<usize> = transactions.map(<[_]>::len).collect();
    assert!(sizes.len() > 2, "more than one transaction: {sizes:?}");
    assert!(sizes.iter().all(|size| size % whole == 0), "one ends within another: {sizes:?}");
    assert!(!relay.stderr().contains(DIVIDED), "{}", relay.stderr());
    relay.terminate(SOON).await;
}

/// It has more events than twice `events_max`: everything is published once, and the log says so.
#[tokio::test]
async fn transaction_that_is_larger_than_the_bounds_is_divided_and_logged() {
    let tables = "[.sink.transaction]\nboundary = \"source\"\nevents_max = 100\n";
    let pipeline = pipeline_with("divided", tables).await;
    let relay = pipeline.run();
    let numbers: Vec<u32> = (1..=1_000).collect();
    pipeline.insert("orders", "a", &numbers).await;
    let wanted: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    pipeline.await_values("orders", "a", &wanted).await;
    assert_eq!(
        pipeline.server.read("orders").await.expect("records").len(),
        1_000,
        "nothing twice"
    );
    relay.await_log(DIVIDED, SOON).await;
    let divided = relay.stderr().matches(DIVIDED).count();
    assert_eq!(divided, 1, "once for each transaction: {}", relay.stderr());
    relay.terminate(SOON).await;
}
