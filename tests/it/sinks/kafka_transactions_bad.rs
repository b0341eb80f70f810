//! The Kafka sink with transactions while something is wrong for long: the coordinator, the topic of the progress,
//! another pipeline.

use super::kafka::KafkaServer;
use super::pipeline::{SinkPipeline, state};
use super::scenarios::grown;
use super::server::SinkServer;
use crate::await_that::SOON;
use crate::halted::run_to_halt;
use crate::load::{Load, Plan};
use crate::relay::{Relay, postrider_ok};
use serde_json::Value;

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

/// The only broker is frozen for longer than the time-out of transactions, and than every time-out of librdkafka's
/// requests.
#[tokio::test]
async fn coordinator_that_answers_nothing_for_long_is_waited_for() {
    let tables = "[.sink.transaction]\ntimeout = \"4s\"\n\
                  [.sink.properties]\n\"socket.timeout.ms\" = \"3000\"\n";
    let pipeline = pipeline_with("coordinator", tables).await;
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
    pipeline.server.thaw();
    grown(&load, 500).await;
    let ledger = load.stop().await;
    pipeline.arrived(&ledger).await.assert_balanced(0);
    pipeline.resolved().await;
    let status = relay.status().await.expect("a status");
    let given_up =
        ["aborted_total", "unknown_total"].map(|key| transactions(&status)[key].as_u64());
    assert!(given_up.into_iter().any(|count| count > Some(0)), "{status}");
    relay.terminate(SOON).await;
}

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
    let dbname = pipeline.sql.text("select current_database()").await.expect("a name");
    let id = format!("postrider.{dbname}.{}", pipeline.name);
    assert_eq!(transactions(&status)["id"], id, "{status}");
    assert!(transactions(&status)["owner_epoch"].as_i64() > Some(0), "{status}");
    assert_eq!(transactions(&status)["records_total"], 3, "{status}");
    assert_eq!(transactions(&status)["fenced_total"], 0, "{status}");
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    let has = |series: &str| {
        let found = metrics.lines().find(|line| line.starts_with(series));
        assert!(found.is_some(), "no {series}: {metrics}");
    };
    for outcome in ["committed", "aborted", "unknown"] {
        let labels = format!("pipeline=\"{}\",shard=\"0\",outcome=\"{outcome}\"", pipeline.name);
        has(&format!("postrider_sink_transactions_total{{{labels}}}"));
    }
    has("postrider_sink_transaction_records_total");
    has("postrider_sink_fenced_total");
    has("postrider_sink_commit_seconds_bucket");
    relay.terminate(SOON).await;
}

/// The status names the topic of the progress as the reason.
async fn await_named(relay: &Relay) {
    let named = |status: &Value| {
        let reason = status["pipelines"][0]["reason"].as_str().unwrap_or_default();
        state(status) == "broker_down" && reason.contains(PROGRESS)
    };
    relay.await_status("the topic", SOON, named).await;
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
    await_named(&relay).await;
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
