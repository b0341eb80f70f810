//! Events that can never be published as they are. What becomes of them is said in one place, [`told`].

use super::SOON;
use super::data::{insert, of_texts};
use crate::answers::{Answer, answer};
use crate::await_that::await_that;
use crate::halted::spawn;
use crate::pipeline::Pipeline;
use crate::relay::postrider_ok;
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::ReadRecord;
use serde_json::Value;

/// The input, the column and its value, and words of the message.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str]);

const CASES: &[Case] = &[
    ("NULL id", "id", "null", &["\"id\" is NULL"]),
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
    ("topic with a character beyond ASCII", "aggregate_type", "'caf\u{e9}'", &["topic"]),
];

/// What the log says of a parked event: the line with this id, or the one of an event that has none.
pub(crate) fn told(log: &str, id: &str) -> Answer {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut parked = lines
        .filter(|line| line["message"].as_str().is_some_and(|m| m.starts_with("event parked")));
    let line = parked.find(|line| line["id"].as_str().map_or(id == "NULL id", |event| event == id));
    let line = line.unwrap_or_else(|| panic!("nothing of {id:?}:\n{log}"));
    let field = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let state = field("state");
    Answer::said(
        &format!("{} {}: {}", field("code"), field("position"), field("reason")),
        &field("message"),
        &field("hint"),
    )
    .then(&format!("goes on, the event parked as `{state}`"))
}

#[tokio::test]
async fn each_is_parked_and_what_is_around_it_arrives_in_order() {
    let pipeline = of_texts(Version::Pg17).await;
    alter(&pipeline.topic, "max.message.bytes", "20000").await;
    let constant = format!("topic = \"{}\"", pipeline.topic.name);
    let config = pipeline.config.replace(&constant, "topic = \"{aggregate_type}\"");
    let config = format!("{config}\n[pipelines.{0}.payload]\nnull = \"park\"\n", pipeline.name);
    // The large ones repeat themselves, and the topic would take them compressed (`large`).
    let config = Pipeline::uncompressed_of(&config, &pipeline.name);
    let relay = spawn(&config);
    for (input, column, value, _) in CASES {
        pipeline.sql.batch("begin").await;
        insert(&pipeline, "before", input, "amount", "1").await;
        insert(&pipeline, input, input, column, value).await;
        insert(&pipeline, "after", input, "amount", "2").await;
        pipeline.sql.batch("commit").await;
    }
    // An aggregate of its own has another type or id than those around it, and holds nobody up.
    let is_alone = |column: &str| column.starts_with("aggregate");
    let behind = CASES.iter().filter(|(_, column, ..)| !is_alone(column)).count();
    pipeline.topic.await_records(2 * CASES.len() - behind, SOON).await;
    let sql = format!(
        "select count(*) filter (where state = 'behind') || ' behind, ' || count(*) filter (where state <> 'behind') \
         from postrider.parked where pipeline = '{}'",
        pipeline.name
    );
    let wanted = format!("{behind} behind, {}", CASES.len());
    await_that(&format!("parked: {wanted}"), SOON, || async {
        let seen = pipeline.sql.text(&sql).await.unwrap_or_default();
        if seen == wanted { Ok(()) } else { Err(seen) }
    })
    .await;
    let records = pipeline.topic.read_all().await;
    for (input, column, _, words) in CASES {
        let wanted: &[&str] = if is_alone(column) { &["before", "after"] } else { &["before"] };
        assert_eq!(of_key(&records, input), wanted, "{input}");
        let answered = told(&relay.stderr(), input);
        answered.assert_says(words);
        answer(input, &pipeline, answered);
    }
    // What an operator says in the end.
    postrider_ok(&config, &["parked", "skip", "--all", "--yes"]);
    let records = pipeline.topic.await_records(2 * CASES.len(), SOON).await;
    for (input, ..) in CASES {
        assert_eq!(of_key(&records, input), ["before", "after"], "{input}");
    }
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    for value in ["xxxxxxxx", "kkkkkkkk", "tttttttt", "caf\u{e9}"] {
        assert!(!ended.stderr.contains(value), "a value in the log: {}", ended.stderr);
    }
}

/// The ids of the records with this key, in order.
fn of_key<'r>(records: &'r [ReadRecord], key: &str) -> Vec<&'r str> {
    let own = records.iter().filter(|record| record.key_text() == Some(key));
    own.filter_map(|record| record.header("id")).collect()
}
