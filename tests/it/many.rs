//! Several pipelines in one process, sinks without a broker, logical messages, partitions.

use crate::await_that::{SOON, await_that};
use crate::halted::halt_lines;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Version, unique};
use serde_json::Value;

/// An event that halts its pipeline.
async fn poison(pipeline: &Pipeline) {
    pipeline.sql.batch("alter table outbox alter event_type drop not null").await;
    let sql = "insert into outbox (aggregate_type, aggregate_id) values ('order', 'a')";
    pipeline.sql.batch(sql).await;
}

async fn three() -> [Pipeline; 3] {
    let one = Pipeline::shared(Version::Pg15, "one").await;
    let two = Pipeline::shared(Version::Pg17, "two").await;
    [one, two, Pipeline::shared(Version::Pg18, "three").await]
}

fn together(pipelines: &[Pipeline]) -> String {
    pipelines.iter().map(Pipeline::stops).collect()
}

fn state<'a>(status: &'a Value, pipeline: &Pipeline) -> &'a Value {
    let list = status["pipelines"].as_array().expect("pipelines");
    let found = list.iter().find(|one| one["pipeline"] == pipeline.name.as_str());
    found.expect("the pipeline")
}

#[tokio::test]
async fn one_that_halts_leaves_the_others_alone_and_the_process_stays_up() {
    let pipelines = three().await;
    let relay = stays_up(&together(&pipelines));
    let [one, two, three] = &pipelines;
    let is = |pipeline: &Pipeline, wanted: &'static str| {
        let name = pipeline.name.clone();
        move |status: &Value| {
            let list = status["pipelines"].as_array();
            list.is_some_and(|l| l.iter().any(|p| p["pipeline"] == *name && p["state"] == wanted))
        }
    };
    for pipeline in &pipelines {
        relay.await_status("streaming", SOON, is(pipeline, "streaming")).await;
    }
    poison(one).await;
    let status = relay.await_status("the first halt", SOON, is(one, "halted")).await;
    let halted = state(&status, one);
    assert_eq!(halted["halt_code"], "PR011", "{status}");
    assert!(halted["reason"].as_str().unwrap_or_default().contains("event_type"), "{status}");
    assert!(!halted["hint"].as_str().unwrap_or_default().is_empty(), "{status}");
    // /ready speaks of the one, and /live of none: a restart would not fix it.
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!(ready, 503);
    assert!(why.contains(&one.name) && why.contains("PR011"), "{why}");
    assert!(!why.contains(&two.name), "{why}");
    assert_eq!(relay.get("/live").await.expect("an answer").0, 200);
    for other in [two, three] {
        other.insert(100).await;
        assert_eq!(other.topic.await_records(100, SOON).await.len(), 100);
    }
    poison(two).await;
    relay.await_status("the second halt", SOON, is(two, "halted")).await;
    three.insert(100).await;
    assert_eq!(three.topic.await_records(200, SOON).await.len(), 200);
    poison(three).await;
    relay.await_status("the third halt", SOON, is(three, "halted")).await;
    // The process stays up, so that whoever asks it learns why nothing is published.
    relay.await_log("every pipeline has halted", SOON).await;
    assert_eq!(relay.get("/live").await.expect("an answer").0, 200);
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!((ready, why.lines().count()), (503, 3), "{why}");
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    for pipeline in [one, two, three] {
        let series = format!(
            "postrider_halted{{pipeline=\"{}\",shard=\"0\",code=\"PR011\"}} 1",
            pipeline.name
        );
        assert!(metrics.contains(&series), "{metrics}");
    }
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert_eq!(halt_lines(&ended.stderr).len(), 3);
}

/// A run that goes on answering when all has halted.
fn stays_up(config: &str) -> Relay {
    Relay::spawn_with(config, &["--log-format", "json"], &[])
}

/// Each has the lock of its own name, though both are of one database.
#[tokio::test]
async fn two_pipelines_of_one_database_publish_beside_each_other() {
    let pipeline = Pipeline::shared(Version::Pg17, "beside").await;
    let other = unique("besides");
    let mine = format!("pipelines.{}", pipeline.name);
    let others = pipeline.config.replace(&mine, &format!("pipelines.{other}"));
    postrider_ok(&others, &["setup"]);
    let relay = Relay::spawn(&format!("{}\n{others}", pipeline.config));
    pipeline.insert(100).await;
    let both = |status: &Value| {
        let list = status["pipelines"].as_array();
        list.is_some_and(|all| {
            all.len() == 2 && all.iter().all(|one| one["published_total"] == 100)
        })
    };
    relay.await_status("both published", SOON, both).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(pipeline.topic.read_all().await.len(), 200, "each event, once by each");
}

/// A stop after a halt is a clean one for those that ran.
#[tokio::test]
async fn stop_after_one_of_two_halted_is_clean() {
    let [one, two, _] = &three().await;
    let relay = stays_up(&format!("{}{}", one.stops(), two.config));
    poison(one).await;
    relay.await_state("halted", SOON).await;
    two.insert(10).await;
    two.topic.await_records(10, SOON).await;
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn fail_fast_stops_the_others_in_good_order_and_exits_3() {
    let [one, two, _] = &three().await;
    let config = format!("{}{}", one.stops(), two.config);
    let relay = Relay::spawn_with(&config, &["--fail-fast", "--log-format", "json"], &[]);
    two.insert(100).await;
    two.topic.await_records(100, SOON).await;
    poison(one).await;
    let ended = relay.ended(SOON).await;
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert_eq!(halt_lines(&ended.stderr).len(), 1);
    // Drained: nothing comes twice.
    let relay = Relay::spawn(&two.config);
    two.insert(1).await;
    assert_eq!(two.topic.await_records(101, SOON).await.len(), 101);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A database that is away, beside one that is there.
#[tokio::test]
async fn one_that_waits_does_not_slow_the_others() {
    let [one, two, _] = &three().await;
    let away = one.config.replace(&one.url, "postgresql://postgres@127.0.0.1:1/nowhere");
    let relay = Relay::spawn(&format!("{away}{}", two.config));
    relay.await_state("source_down", SOON).await;
    two.insert(100).await;
    assert_eq!(two.topic.await_records(100, SOON).await.len(), 100);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The configuration with another sink.
fn with_sink(pipeline: &Pipeline, sink: &str) -> String {
    let kafka = format!("kind = \"kafka\"\nbrokers = \"{}\"", pipeline.topic.brokers);
    assert!(pipeline.config.contains(&kafka));
    pipeline.config.replace(&kafka, &format!("kind = \"{sink}\""))
}

#[tokio::test]
async fn stdout_gets_a_line_of_json_for_each_event_and_nothing_else() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "stdout").await;
        pipeline.insert(100).await;
        let end = pipeline.wal_end().await;
        let relay = Relay::spawn(&with_sink(&pipeline, "stdout"));
        await_that("the confirmation", SOON, || pipeline.confirmed(&end)).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        let lines: Vec<Value> = ended
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect();
        assert_eq!(lines.len(), 100);
        for (number, line) in (1..).zip(&lines) {
            assert_eq!(line["topic"], pipeline.topic.name.as_str());
            assert_eq!(line["key"], (number % 10).to_string(), "{line}");
            assert_eq!(line["value"], number.to_string(), "{line}");
            let headers = line["headers"].as_array().expect("headers");
            assert!(headers.iter().any(|pair| pair[0] == "id"), "{line}");
        }
    }
}

/// Acknowledged at once, so confirmed: for measuring.
#[tokio::test]
async fn discard_confirms_everything_and_publishes_nothing() {
    let pipeline = Pipeline::shared(Version::Pg18, "discard").await;
    pipeline.insert(1_000).await;
    let end = pipeline.wal_end().await;
    let relay = Relay::spawn(&with_sink(&pipeline, "discard"));
    await_that("the confirmation", SOON, || pipeline.confirmed(&end)).await;
    let ended = relay.terminate(SOON).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    assert_eq!(pipeline.topic.read_all().await.len(), 0);
}

/// Rows and messages of one aggregate, in the order of their transactions and inside of them.
#[tokio::test]
async fn messages_and_rows_form_one_ordered_stream() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "messages").await;
        let config = pipeline.with_line("outbox", "message_prefix = \"events\"");
        let emit = |prefix: &str, n: u32| {
            format!(
                "select pg_logical_emit_message(true, '{prefix}', '{{\"aggregate_type\": \"order\", \
                 \"aggregate_id\": \"a\", \"event_type\": \"T\", \"payload\": {n}}}')"
            )
        };
        let row = |n: u32| {
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', 'a', 'T', '{n}')"
            )
        };
        let sql = &pipeline.sql;
        sql.batch(&row(1)).await;
        sql.batch(&format!(
            "begin; {}; {}; {}; commit",
            emit("events", 2),
            row(3),
            emit("events", 4)
        ))
        .await;
        sql.batch(&emit("others", 100)).await;
        sql.batch(&format!("begin; {}; rollback", emit("events", 101))).await;
        sql.batch(&emit("events", 5)).await;
        sql.batch(&row(6)).await;
        let relay = Relay::spawn(&config);
        let records = pipeline.topic.await_records(6, SOON).await;
        let values: Vec<_> = records.iter().filter_map(|record| record.value_text()).collect();
        assert_eq!(values, ["1", "2", "3", "4", "5", "6"]);
        assert!(records.iter().all(|record| record.key_text() == Some("a")));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Partitions come and go; events are those of the table that is named.
#[tokio::test]
async fn partitioned_outbox_is_published_by_its_root() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "parts").await;
        for sql in [
            "drop table outbox cascade",
            "create table outbox (id bigint generated always as identity, aggregate_type text not null, \
             aggregate_id text not null, event_type text not null, payload json, headers json, \
             created_at timestamptz not null default now()) partition by hash (id)",
            "create table outbox_0 partition of outbox for values with (modulus 2, remainder 0)",
            "create table outbox_1 partition of outbox for values with (modulus 2, remainder 1)",
            "drop publication {publication}",
            "select pg_drop_replication_slot('{slot}')",
            "delete from postrider.cursor",
        ] {
            pipeline.sql(sql).await;
        }
        postrider_ok(&pipeline.config, &["setup"]);
        let relay = pipeline.run();
        pipeline.insert(100).await;
        assert_eq!(pipeline.topic.await_records(100, SOON).await.len(), 100);
        pipeline.sql("alter table outbox detach partition outbox_1").await;
        pipeline
            .sql("create table outbox_2 partition of outbox for values with (modulus 2, remainder 1)")
            .await;
        pipeline.insert(100).await;
        assert_eq!(pipeline.topic.await_records(200, SOON).await.len(), 200);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
