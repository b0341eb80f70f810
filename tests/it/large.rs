//! Payloads above their topic's limit before compression, end to end: what compresses is published, what does not is
//! parked with both sizes, and what is around either flows, in order and once.

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::bad::told_of_parked;
use crate::halted::{run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::server::Version;
use crate::sink_caller::alter;
use std::collections::BTreeMap;

/// Parked events are tried every 300 ms, so that a try which is sent would be seen.
const OFTEN: &str = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";

/// A payload of 3 MB that compresses well, of 3 MB that does not, or a small one; each begins with its number.
fn payload(kind: &str, number: u32) -> String {
    let filler = match kind {
        "text" => "repeat('an event that says much the same as others; ', 65000)",
        "noise" => "(select string_agg(md5(random()::text), '') from generate_series(1, 95000))",
        _ => "''",
    };
    format!("to_json({number} || ' ' || {filler})")
}

/// The numbers that each aggregate got, in order of offset, each as often as it came.
async fn numbers(pipeline: &Pipeline) -> BTreeMap<String, Vec<u32>> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for record in pipeline.topic.read_all().await {
        let text = record.value_text().expect("text").trim_start_matches('"');
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let key = record.key_text().expect("a key").to_owned();
        found.entry(key).or_default().push(digits.parse().expect("a number"));
    }
    found
}

/// A text, a noise and many small events of three aggregates, one transaction each.
async fn insert(pipeline: &Pipeline) {
    let rows = [
        ("a", "small", 1),
        ("c", "small", 1),
        ("a", "text", 2),
        ("a", "small", 3),
        ("b", "small", 1),
        ("c", "small", 2),
        ("b", "noise", 2),
        ("c", "small", 3),
        ("b", "small", 3),
        ("a", "text", 4),
        ("c", "small", 4),
        ("b", "noise", 4),
        ("a", "small", 5),
    ];
    for (aggregate, kind, number) in rows {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '{aggregate}', 'T', {})",
            payload(kind, number)
        );
        pipeline.sql.batch(&sql).await;
    }
}

/// What the log says of the first noise, the seventh row.
fn told(log: &str) -> Answer {
    told_of_parked(log, "7")
}

fn of(a: &[u32], b: &[u32], c: &[u32]) -> BTreeMap<String, Vec<u32>> {
    [("a", a), ("b", b), ("c", c)].map(|(key, numbers)| (key.to_owned(), numbers.to_vec())).into()
}

/// By the stream and by polling, and with a limit of the operator's own that is above the topic's.
#[tokio::test]
async fn payload_that_compresses_is_published_above_the_limit_and_one_that_does_not_is_parked() {
    for (mode, line) in [("wal", ""), ("wal", "size_max = \"10MB\""), ("poll", "")] {
        let case = format!("{mode} {line}");
        let pipeline = Pipeline::shared(Version::Pg18, "large").await;
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let lines = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
        let config = pipeline.config.replacen(&head, &lines, 1);
        let config = format!("{config}\n[pipelines.{}.payload]\n{line}\n", pipeline.name);
        insert(&pipeline).await;
        let relay = spawn(&pipeline.with_parking(&config, OFTEN));
        let wanted = of(&[1, 2, 3, 4, 5], &[1], &[1, 2, 3, 4]);
        await_that("what fits", SOON, || async {
            let found = numbers(&pipeline).await;
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        let parked = "select string_agg(concat_ws(' ', aggregate_id, state, error_code), ', ' \
                        order by commit_lsn, ordinal) from postrider.parked";
        await_that("the parked rows", SOON, || async {
            let found = pipeline.sql.text(parked).await.unwrap_or_default();
            let wanted = "b waiting too_large, b behind, b behind";
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
        if case == "wal " {
            answer(
                "payload larger than the topic takes, compressed too",
                &pipeline,
                told(&relay.stderr()),
            );
        }
        let why =
            pipeline.sql.text("select error from postrider.parked where state = 'waiting'").await;
        let why = why.expect("a reason");
        assert!(
            why.contains(" 304") && why.contains("compressed") && why.contains("1048588"),
            "{why}"
        );
        // However often it is tried, and however often an event is refused, that costs no producer.
        let tried = "select attempts::text from postrider.parked where state = 'waiting'";
        await_that("five tries", SOON, || async {
            let attempts = pipeline.sql.text(tried).await.unwrap_or_default();
            if attempts.parse::<u32>().is_ok_and(|n| n >= 5) { Ok(()) } else { Err(attempts) }
        })
        .await;
        let status = relay.status().await.expect("a status");
        let resets = status["pipelines"][0]["sink_resets_total"].as_u64();
        assert_eq!(resets, Some(0), "{case}: {status}");
        assert_eq!(numbers(&pipeline).await, wanted, "{case}: nothing twice");
        // The second noise is another one: when its turn comes it would be refused too.
        alter(&pipeline.topic, "max.message.bytes", "4000000").await;
        await_that("everything", SOON, || async {
            let found = numbers(&pipeline).await;
            let all = of(&[1, 2, 3, 4, 5], &[1, 2, 3, 4], &[1, 2, 3, 4]);
            if found == all { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{case}: {}", ended.stderr);
    }
}

/// With `on_poison = "stop"` a refusal halts, and what is behind the event waits; nothing comes twice when it goes on.
#[tokio::test]
async fn payload_that_the_broker_refuses_halts_where_the_configuration_says_so() {
    let pipeline = Pipeline::shared(Version::Pg17, "large_stop").await;
    let config = pipeline.with_parking(&pipeline.config, "on_poison = \"stop\"");
    insert(&pipeline).await;
    let name = pipeline.topic.name.as_str();
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR011", &[name, "compressed"], &[name, "max.message.bytes=304"]);
    assert_eq!(numbers(&pipeline).await, of(&[1, 2, 3], &[1], &[1, 2]), "what is before it");
    alter(&pipeline.topic, "max.message.bytes", "4000000").await;
    let relay = spawn(&config);
    await_that("everything", SOON, || async {
        let found = numbers(&pipeline).await;
        let all = of(&[1, 2, 3, 4, 5], &[1, 2, 3, 4], &[1, 2, 3, 4]);
        if found == all { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
