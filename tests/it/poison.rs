//! An event that can't be published, where poison stops the pipeline: it halts before it, says which and why, and
//! nothing of its payload.

use crate::answers::answer;
use crate::await_that::SOON;
use crate::halted::{Halted, halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::server::Version;
use crate::sink_caller::alter;

/// Stands in every payload, key and header that must not be shown.
const SECRET: &str = "planted-5f1c";

const STOP: &str = "on_poison = \"stop\"";

const INSERT: &str =
    "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) values ";

fn row(aggregate: &str, number: u32) -> String {
    format!("('order', '{aggregate}', 'T', '{{\"n\": {number}, \"card\": \"{SECRET}\"}}', null)")
}

/// Commits two events, the transaction with the poison between two events, and one more; runs until the halt.
async fn halted_by(pipeline: &Pipeline, poison: &str, config: &str) -> Halted {
    let sql = &pipeline.sql;
    sql.batch(&format!("{INSERT}{}, {}", row("a", 1), row("b", 2))).await;
    sql.batch(&format!(
        "begin; {INSERT}{}; {poison}; {INSERT}{}; commit",
        row("a", 3),
        row("a", 5)
    ))
    .await;
    sql.batch(&format!("{INSERT}{}", row("b", 6))).await;
    let halted = run_to_halt(config).await;
    assert_eq!(numbers(pipeline).await, [1, 2, 3], "all before it, nothing behind it");
    // The second time it is the same, and nothing is sent again.
    let again = run_to_halt(config).await;
    assert_eq!(again.message, halted.message);
    assert_eq!(numbers(pipeline).await, [1, 2, 3], "nothing twice");
    for ended in [&halted.ended, &again.ended] {
        assert!(!ended.stderr.contains(SECRET), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
    halted
}

/// The payloads' numbers, sorted.
async fn numbers(pipeline: &Pipeline) -> Vec<u64> {
    let mut numbers: Vec<u64> = pipeline
        .topic
        .read_all()
        .await
        .iter()
        .map(|record| {
            let value = record.value.as_deref().expect("a payload");
            let value: serde_json::Value = serde_json::from_slice(value).expect("JSON");
            value["n"].as_u64().expect("a number")
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// The id of the poison: the fourth row, or what the sequence gave it.
fn says(halted: &Halted, words: &[&str], hint: &str) {
    halted.assert_says("PR011", words, &[hint]);
    assert!(halted.meaning.contains("everything before it is published"), "{halted:#?}");
    let position = halted.message.split_whitespace().any(|word| {
        let word = word.trim_matches(|c: char| !c.is_ascii_hexdigit());
        word.contains('/') && word.ends_with(":1")
    });
    assert!(position, "its position, the second change of its transaction: {halted:#?}");
}

#[tokio::test]
async fn null_aggregate_id_halts_before_it() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "null").await;
        pipeline.sql.batch("alter table outbox alter aggregate_id drop not null").await;
        let poison =
            format!("{INSERT}('order', null, 'T', '{{\"n\": 4, \"c\": \"{SECRET}\"}}', null)");
        let halted = halted_by(&pipeline, &poison, &pipeline.stops()).await;
        says(&halted, &["event \"4\"", "\"aggregate_id\" is NULL"], "SET NOT NULL");
        answer("NULL aggregate_id, with parking.on_poison = stop", &pipeline, &halted);
        let before = pipeline.confirmed_lsn().await;
        // The log has it whatever becomes of the row: a mended row is another event.
        pipeline.sql.batch("update outbox set aggregate_id = 'a' where id = 4").await;
        assert_eq!(run_to_halt(&pipeline.stops()).await.message, halted.message);
        assert_eq!(pipeline.confirmed_lsn().await, before);
    }
}

#[tokio::test]
async fn headers_that_are_not_an_object_halt_before_it() {
    let pipeline = Pipeline::shared(Version::Pg17, "headers").await;
    let poison = format!("{INSERT}('order', 'a', 'T', '{{\"n\": 4}}', '[\"{SECRET}\"]')");
    let halted = halted_by(&pipeline, &poison, &pipeline.stops()).await;
    says(&halted, &["event \"4\"", "\"headers\" is not a JSON object"], "JSON object");
}

#[tokio::test]
async fn topic_name_that_kafka_does_not_allow_halts_before_it() {
    let pipeline = Pipeline::shared(Version::Pg15, "name").await;
    let template = format!("topic = \"{}", pipeline.topic.name);
    // The event type becomes part of the topic's name: `T` gives a legal one.
    let (head, tail) = pipeline.topic.name.split_at(pipeline.topic.name.len() - 1);
    assert_eq!(tail, "s");
    let config = pipeline.config.replace(&template, &format!("topic = \"{head}{{event_type}}"));
    let rows = |number| row("a", number).replace("'T'", "'s'");
    pipeline.sql.batch(&format!("{INSERT}{}", rows(1))).await;
    let poison = row("a", 2).replace("'T'", &format!("'{SECRET}/no topic'"));
    pipeline.sql.batch(&format!("{INSERT}{poison}, {}", rows(3))).await;
    let halted = run_to_halt(&pipeline.with_parking(&config, STOP)).await;
    halted.assert_says("PR011", &["event \"2\"", "topic"], &["route.topic"]);
    assert_eq!(numbers(&pipeline).await, [1]);
    assert!(!halted.ended.stderr.contains(SECRET), "{}", halted.ended.stderr);
}

/// A payload over the topic's limit: raising the limit lets it and all behind it through, in order.
#[tokio::test]
async fn payload_over_the_topics_limit_halts_and_goes_on_when_it_is_raised() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "large").await;
        alter(&pipeline.topic, "max.message.bytes", "3000").await;
        let poison = format!(
            "{INSERT}('order', 'a', 'T', json_build_object('n', 4, 'c', '{SECRET}', 'x', \
             (select string_agg(md5(g::text), '') from generate_series(1, 625) g)), null)"
        );
        let halted = halted_by(&pipeline, &poison, &pipeline.stops()).await;
        says(&halted, &["event \"4\"", &pipeline.topic.name, "3000"], "max.message.bytes");
        alter(&pipeline.topic, "max.message.bytes", "100000").await;
        let relay = pipeline.run();
        pipeline.topic.await_records(6, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(numbers(&pipeline).await, [1, 2, 3, 4, 5, 6], "none lost and none twice");
        let records = pipeline.topic.read_all().await;
        let ids: Vec<_> =
            records.iter().filter(|r| r.key_text() == Some("a")).map(|r| r.header("id")).collect();
        assert_eq!(ids, [Some("1"), Some("3"), Some("4"), Some("5")], "in order");
    }
}

/// The operator's own limit halts the same way.
#[tokio::test]
async fn payload_over_size_max_halts_before_it() {
    let pipeline = Pipeline::shared(Version::Pg18, "sizemax").await;
    let config = format!(
        "{}\n[pipelines.{}.payload]\nsize_max = \"2KiB\"\n",
        pipeline.config, pipeline.name
    );
    let poison = format!(
        "{INSERT}('order', 'a', 'T', json_build_object('n', 4, 'c', '{SECRET}', 'x', repeat('x', 4000)), null)"
    );
    let halted = halted_by(&pipeline, &poison, &pipeline.with_parking(&config, STOP)).await;
    says(&halted, &["event \"4\"", "2048"], "payload.size_max");
}

#[tokio::test]
async fn partition_that_the_topic_does_not_have_halts_with_the_way_out() {
    let pipeline = Pipeline::shared(Version::Pg17, "partition").await;
    let config = pipeline.with_line("route", "partition = \"{aggregate_id}\"");
    pipeline.sql.batch(&format!("{INSERT}{}, {}, {}", row("7", 1), row("8", 2), row("1", 3))).await;
    let halted = run_to_halt(&pipeline.with_parking(&config, STOP)).await;
    let message = ["event \"2\"", "no partition 8", &pipeline.topic.name];
    halted.assert_says("PR011", &message, &["--partitions 9", "route.partition"]);
    assert_eq!(numbers(&pipeline).await, [1]);
}

#[tokio::test]
async fn message_that_is_not_an_event_halts_before_it() {
    let pipeline = Pipeline::shared(Version::Pg18, "message").await;
    let config = pipeline.with_line("outbox", "message_prefix = \"events\"");
    for (text, word) in [(SECRET, "not a JSON object"), ("{}", "has no \"aggregate_type\"")] {
        let pipeline_sql = &pipeline.sql;
        pipeline_sql
            .batch(&format!("select pg_logical_emit_message(true, 'events', '{text}')"))
            .await;
        let halted = run_to_halt(&pipeline.with_parking(&config, STOP)).await;
        halted.assert_says("PR011", &[word], &["JSON object"]);
        assert!(!halted.ended.stderr.contains(SECRET), "{}", halted.ended.stderr);
        pipeline
            .sql(
                "select pg_replication_slot_advance('{slot}', pg_current_wal_lsn()); \
                  delete from postrider.cursor",
            )
            .await;
    }
}

/// Poison that comes while the stream runs: what is in flight before it lands first.
#[tokio::test]
async fn poison_behind_a_load_halts_after_all_before_it_is_published_and_confirmed() {
    const ROWS: usize = 20_000;
    let pipeline = Pipeline::shared(Version::Pg18, "behind").await;
    pipeline.sql.batch("alter table outbox alter event_type drop not null").await;
    let relay = spawn(&pipeline.stops());
    relay.await_state("streaming", SOON).await;
    pipeline.insert(ROWS).await;
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, payload) values ('order', '1', '1')",
        )
        .await;
    pipeline.insert(100).await;
    let halted = halt_of(relay).await;
    halted.assert_says("PR011", &["\"20001\"", "\"event_type\" is NULL"], &["SET NOT NULL"]);
    let records = pipeline.topic.read_all().await;
    assert_eq!(records.len(), ROWS);
    let commit = records[0].commit_lsn();
    let confirmed = pipeline.confirmed_lsn().await.expect("a slot");
    let sql = format!("select ('{confirmed}'::pg_lsn > '{commit}'::pg_lsn)::text");
    assert_eq!(pipeline.sql.text(&sql).await.as_deref(), Some("true"), "{confirmed} {commit}");
}

/// What a message of the stream may have. Unit: bytes.
const MESSAGE_MAX: usize = 64 << 20;

/// The row that can't be read, by the stream's own bound.
async fn insert_unreadable(pipeline: &Pipeline) {
    let payload = format!("json_build_object('c', repeat('x', {MESSAGE_MAX}))");
    pipeline.sql.batch(&format!("{INSERT}('order', 'a', 'T', {payload}, null)")).await;
}

/// The reader is far ahead of a broker that has one event at a time, and finds there what it can't read.
#[tokio::test]
async fn row_that_is_too_large_to_be_read_halts_when_all_before_it_is_published() {
    const ROWS: usize = 3000;
    let pipeline = Pipeline::shared(Version::Pg15, "unread").await;
    let sql = &pipeline.sql;
    sql.batch(&format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', i::text, 'T', json_build_object('n', i) from generate_series(1, {ROWS}) i"
    ))
    .await;
    insert_unreadable(&pipeline).await;
    let config =
        format!("{}\n[pipelines.{}.flow]\nin_flight_events = 1\n", pipeline.config, pipeline.name);
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR011", &["a message has", "the limit is 67108864"], &[]);
    let all: Vec<u64> = (1..=ROWS as u64).collect();
    assert_eq!(numbers(&pipeline).await, all, "all before it");
    // The row of the cursor stands behind them: the second time nothing is sent again.
    assert_eq!(run_to_halt(&config).await.message, halted.message);
    assert_eq!(numbers(&pipeline).await, all, "nothing twice");
}

/// Without the database no row can say that all before it was published: the stream brings it again.
#[tokio::test]
async fn database_that_is_lost_while_a_halt_waits_for_the_broker_makes_it_wait_again() {
    const ROWS: u64 = 20;
    let kafka = PrivateKafka::start("").await;
    let mut postgres = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = Pipeline::on(&postgres.socket_url(), &kafka.brokers(), "unreadlost").await;
    let relay = spawn(&pipeline.config);
    let insert = async |from: u64, to: u64| {
        let rows = format!("json_build_object('n', i) from generate_series({from}, {to}) i");
        pipeline
            .sql
            .batch(&format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', 'a', 'T', {rows}"
            ))
            .await;
    };
    insert(1, 1).await;
    pipeline.topic.await_records(1, SOON).await;
    kafka.freeze();
    insert(2, ROWS).await;
    insert_unreadable(&pipeline).await;
    let halts = |status: &serde_json::Value| {
        status["pipelines"][0]["reason"].to_string().contains("halting")
    };
    relay.await_status("a halt that waits", SOON, halts).await;
    postgres.kill().await;
    relay.await_status("no halt", SOON, |status| !halts(status)).await;
    postgres.restart().await;
    kafka.thaw();
    halt_of(relay).await.assert_says("PR011", &["a message has"], &[]);
    let mut seen = numbers(&pipeline).await;
    seen.dedup();
    assert_eq!(seen, (1..=ROWS).collect::<Vec<_>>(), "all before it");
}
