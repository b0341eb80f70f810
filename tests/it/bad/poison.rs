//! Events that can never be published as they are. What becomes of them is said in one place, [`told`].

use super::SOON;
use super::data::{insert, of_texts};
use crate::answers::answer;
use crate::halted::{Halted, run_to_halt};
use crate::pipeline::Pipeline;
use crate::relay::Relay;
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::ReadRecord;

/// The input, the column and its value, and words of the message.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str]);

const CASES: &[Case] = &[
    ("NULL id", "id", "null", &["without id", "\"id\" is NULL"]),
    ("NULL aggregate_id", "aggregate_id", "null", &["\"aggregate_id\" is NULL"]),
    ("NULL aggregate_type", "aggregate_type", "null", &["\"aggregate_type\" is NULL"]),
    ("NULL event_type", "event_type", "null", &["\"event_type\" is NULL"]),
    ("NULL payload with payload.null = park", "payload", "null", &["payload is NULL"]),
    (
        "payload larger than the topic takes",
        "payload",
        "repeat('x', 30000)",
        &["30", "takes 20000"],
    ),
    (
        "key larger than the topic takes",
        "aggregate_id",
        "repeat('k', 30000)",
        &["30", "takes 20000"],
    ),
    ("headers that are an array", "headers", "'[1]'", &["\"headers\" is not a JSON object"]),
    ("headers that are a string", "headers", "'\"a\"'", &["\"headers\" is not a JSON object"]),
    ("header name with a zero byte", "headers", r#"'{"a\u0000b": 1}'"#, &["zero byte"]),
    ("topic that comes out empty", "aggregate_type", "''", &["topic"]),
    ("topic of 250 characters", "aggregate_type", "repeat('t', 250)", &["topic"]),
    ("topic with a slash", "aggregate_type", "'a/b'", &["topic"]),
    ("topic of two dots", "aggregate_type", "'..'", &["topic"]),
    ("topic with a letter beyond ASCII", "aggregate_type", "'caf\u{e9}'", &["topic"]),
];

/// Runs until the poison is told.
async fn told(config: &str, words: &[&str]) -> Halted {
    let halted = run_to_halt(config).await;
    halted.assert_says("PR011", words, &[]);
    let ways = ["docs/operations.md#passing-over", "max.message.bytes"];
    assert!(ways.iter().any(|way| halted.hint.contains(way)), "no way out: {halted:#?}");
    halted
}

/// What an operator does about it, as `docs/operations.md` says: it alone is left out.
async fn pass_over(pipeline: &Pipeline, halted: &Halted) {
    let (_, position) = halted.message.split_once(" at ").expect("a position");
    let position = position.split_whitespace().next().expect("a position");
    let (lsn, ordinal) = position.trim_end_matches(':').split_once(':').expect("an ordinal");
    let next = ordinal.parse::<u64>().expect("a number") + 1;
    pipeline
        .sql(&format!(
            "update postrider.cursor set partial_commit_lsn = '{lsn}', partial_ordinal = {next}"
        ))
        .await;
}

#[tokio::test]
async fn each_is_told_and_what_is_around_it_arrives_in_order() {
    let pipeline = of_texts(Version::Pg17).await;
    alter(&pipeline.topic, "max.message.bytes", "20000").await;
    let constant = format!("topic = \"{}\"", pipeline.topic.name);
    let config = pipeline.config.replace(&constant, "topic = \"{aggregate_type}\"");
    let config = format!("{config}\n[pipelines.{}.payload]\nnull = \"park\"\n", pipeline.name);
    let mut arrived = Vec::new();
    for (input, column, value, words) in CASES {
        pipeline.sql.batch("begin").await;
        insert(&pipeline, &format!("before {input}"), "amount", "1").await;
        insert(&pipeline, input, column, value).await;
        insert(&pipeline, &format!("after {input}"), "amount", "2").await;
        pipeline.sql.batch("commit").await;
        let halted = told(&config, words).await;
        answer(input, &pipeline, &halted);
        arrived.push(format!("before {input}"));
        assert_eq!(ids(&pipeline).await, arrived, "all before it, nothing behind it");
        arrived.push(format!("after {input}"));
        pass_over(&pipeline, &halted).await;
    }
    let relay = Relay::spawn(&config);
    pipeline.topic.await_records(arrived.len(), SOON).await;
    assert_eq!(ids(&pipeline).await, arrived, "nothing is lost, and nothing comes twice");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The ids of the usual aggregate, in order.
async fn ids(pipeline: &Pipeline) -> Vec<String> {
    let records = pipeline.topic.read_all().await;
    assert!(records.iter().all(|record| record.key_text() == Some("a")), "{records:?}");
    records.iter().filter_map(|record: &ReadRecord| Some(record.header("id")?.to_owned())).collect()
}
