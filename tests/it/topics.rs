//! Topics that are not there: told with the command that makes them, and all goes on when they are.

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::repair::drop_slot;
use crate::server::Version;
use crate::topic::{Topic, create_topic};
use std::collections::BTreeSet;

/// Waits until the relay says that this topic is missing, and what makes it.
async fn told_missing(relay: &Relay, topic: &str) -> Answer {
    let status = relay.await_state("broker_down", 2 * SOON).await;
    let pipeline = &status["pipelines"][0];
    let reason = pipeline["reason"].as_str().unwrap_or_default();
    let hint = pipeline["hint"].as_str().unwrap_or_default();
    assert!(reason.contains(topic) && reason.contains("does not exist"), "{pipeline}");
    assert!(hint.contains(&format!("--create --topic {topic}")), "{pipeline}");
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!(ready, 503);
    assert!(why.contains("broker_down") && why.contains(topic), "{why}");
    Answer::waits(&status)
}

#[tokio::test]
async fn missing_topic_is_told_and_events_wait_until_it_is_created() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "notopic").await;
        let name = format!("{}.late", pipeline.topic.name);
        let config = pipeline.config.replace(&pipeline.topic.name, &name);
        pipeline.insert(10).await;
        let before = pipeline.confirmed_lsn().await;
        let relay = Relay::spawn(&config);
        answer("topic missing", &pipeline, told_missing(&relay, &name).await);
        assert_eq!(pipeline.confirmed_lsn().await, before, "nothing is confirmed");
        create_topic(&pipeline.topic.brokers, &name, 4, &[]).await;
        let topic = Topic { brokers: pipeline.topic.brokers.clone(), name };
        assert_eq!(topic.await_records(10, SOON).await.len(), 10);
        relay.await_state("streaming", SOON).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        // A topic that is missing is not reported as a broker that is not available.
        let name = &topic.name;
        let log = ended.stderr;
        assert!(log.contains(&format!("waiting for topic \"{name}\", nothing is lost")), "{log}");
        assert!(log.contains(&format!("topic \"{name}\" accepts records after")), "{log}");
        assert!(!log.contains("broker not available"), "{log}");
    }
}

/// The parked events: id of the aggregate, state and code, in order of the stream.
async fn parked(pipeline: &Pipeline) -> String {
    let sql = "select coalesce(string_agg(concat_ws(' ', aggregate_id, state, error_code), ', ' \
                 order by commit_lsn, ordinal), '') from postrider.parked where state not in ('done', 'skipped')";
    pipeline.sql.text(sql).await.unwrap_or_default()
}

async fn await_parked(pipeline: &Pipeline, wanted: &str) {
    await_that(&format!("parked: {wanted:?}"), SOON, || async {
        let found = parked(pipeline).await;
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

/// What a row's type is, what is made of it, and the code of the parked row; the aggregate's id is the case's number.
const TYPES: &[(&str, &str, &str)] = &[
    ("an empty aggregate type", "", "topic_missing"),
    ("a misspelt aggregate type", "ordr", "topic_missing"),
    ("an aggregate type in capitals", "ORDER", "topic_missing"),
    ("an aggregate type with a blank at its end", "order ", "topic_name"),
    ("an aggregate type with a slash", "order/1", "topic_name"),
];

/// Events of `order`, whose topic exists, before, between and behind such rows: they flow, and the rows are parked each
/// by itself. By the stream and by polling.
#[tokio::test]
async fn row_with_an_empty_or_misspelt_type_is_parked_and_holds_up_no_other() {
    for mode in ["wal", "poll"] {
        let pipeline = Pipeline::shared(Version::Pg18, "misspelt").await;
        let (base, brokers) = (&pipeline.topic.name, &pipeline.topic.brokers);
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let lines = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
        let config = pipeline.config.replacen(&head, &lines, 1);
        let config = config.replace(base, &format!("{base}.event.{{aggregate_type}}"));
        let config = pipeline.with_parking(&config, "backoff = { step = \"1s\", steps_max = 1 }");
        let order = Topic { brokers: brokers.clone(), name: format!("{base}.event.order") };
        create_topic(brokers, &order.name, 4, &[]).await;
        let row = |kind: &str, id: &str, payload: &str| {
            format!("('{kind}', '{id}', 'T', to_json({payload}))")
        };
        let mut rows = vec![row("order", "o", "0")];
        for (number, (_, kind, _)) in TYPES.iter().enumerate() {
            rows.push(row(kind, &format!("bad{number}"), "1"));
            rows.push(row(kind, &format!("bad{number}"), "2"));
            rows.push(row("order", "o", &(number + 1).to_string()));
        }
        let insert =
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ";
        let relay = crate::halted::spawn(&config);
        for row in rows {
            pipeline.sql.batch(&format!("{insert}{row}")).await;
        }
        let records = order.await_records(TYPES.len() + 1, SOON).await;
        let seen: Vec<_> = records.iter().filter_map(|record| record.value_text()).collect();
        assert_eq!(seen, ["0", "1", "2", "3", "4", "5"], "{mode}: in order, once");
        let all = TYPES.iter().enumerate().map(|(number, (_, _, code))| {
            // One that can never be a record is parked as what it is, behind another too.
            if *code == "topic_name" {
                format!("bad{number} dead {code}, bad{number} dead {code}")
            } else {
                format!("bad{number} waiting {code}, bad{number} behind")
            }
        });
        await_parked(&pipeline, &all.collect::<Vec<_>>().join(", ")).await;
        // It is nobody else's trouble: neither the log nor the state says that the broker is down.
        relay.await_state(if mode == "wal" { "streaming" } else { "polling" }, SOON).await;
        let log = relay.stderr();
        let waits = ["broker not available", "waiting for topic"].map(|words| log.contains(words));
        assert_eq!(waits, [false, false], "{mode}: {log}");
        for (number, (input, ..)) in TYPES.iter().enumerate() {
            let first = (3 * number + 2).to_string();
            if mode == "wal" {
                answer(input, &pipeline, crate::bad::told_of_parked(&log, &first));
            }
            assert!(
                log.contains(&format!("\"id\":\"{first}\"")),
                "{mode}: {input} is named: {log}"
            );
        }
        // Made two minutes later: the parked events go out by themselves, in order, and what is new behind them.
        create_topic(brokers, &format!("{base}.event.ordr"), 1, &[]).await;
        pipeline.sql.batch(&format!("{insert}{}", row("ordr", "bad1", "3"))).await;
        let made = Topic { brokers: brokers.clone(), name: format!("{base}.event.ordr") };
        let records = made.await_records(3, SOON).await;
        let seen: Vec<_> = records.iter().filter_map(|record| record.value_text()).collect();
        assert_eq!(seen, ["1", "2", "3"], "{mode}: in order, once");
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

/// Rows that only the table has, by a repair and by a backfill.
#[tokio::test]
async fn repair_parks_a_row_whose_topic_is_missing_and_publishes_all_others() {
    for way in ["repair", "backfill"] {
        let pipeline = Pipeline::shared(Version::Pg17, "misspelt_repair").await;
        let (base, brokers) = (&pipeline.topic.name, &pipeline.topic.brokers);
        let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
        let config = pipeline.with_parking(&config, "backoff = { step = \"1s\", steps_max = 1 }");
        let [order, misspelt] = ["order", "ordr"]
            .map(|kind| Topic { brokers: brokers.clone(), name: format!("{base}.{kind}") });
        create_topic(brokers, &order.name, 4, &[]).await;
        let rows = |rows: &str| {
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select t, a, 'T', to_json(p) from (values {rows}) v(t, a, p)"
            )
        };
        if way == "repair" {
            let relay = Relay::spawn(&config);
            pipeline.sql.batch(&rows("('order', 'o', '0')")).await;
            order.await_records(1, SOON).await;
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
        } else {
            postrider_ok(&config, &["setup", "--undo", "--yes"]);
            pipeline.sql.batch(&rows("('order', 'o', '0')")).await;
        }
        let unpublished = "('order', 'o', '1'), ('ordr', 'x', '1'), ('', 'y', '1'), ('ordr', 'x', '2'), \
                           ('order', 'o', '2')";
        pipeline.sql.batch(&rows(unpublished)).await;
        let relay = if way == "repair" {
            drop_slot(&pipeline).await;
            postrider_ok(&config, &["repair"]);
            None
        } else {
            postrider_ok(&config, &["setup", "--backfill", "all"]);
            Some(Relay::spawn(&config))
        };
        let records = order.await_records(3, SOON).await;
        let seen: Vec<_> = records.iter().filter_map(|record| record.value_text()).collect();
        assert_eq!(seen, ["\"0\"", "\"1\"", "\"2\""], "{way}: in order, once");
        await_parked(&pipeline, "x waiting topic_missing, y waiting topic_missing, x behind").await;
        let relay = relay.unwrap_or_else(|| Relay::spawn(&config));
        relay.await_state("streaming", SOON).await;
        create_topic(brokers, &misspelt.name, 1, &[]).await;
        let records = misspelt.await_records(2, SOON).await;
        let seen: Vec<_> = records.iter().filter_map(|record| record.value_text()).collect();
        assert_eq!(seen, ["\"1\"", "\"2\""], "{way}: in order, once");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The very first event has no topic, and nothing is known of any other: after a while others are looked for.
#[tokio::test]
async fn misspelt_row_at_the_start_of_the_stream_holds_it_up_for_half_a_minute_at_most() {
    let pipeline = Pipeline::shared(Version::Pg17, "misspelt_first").await;
    let (base, brokers) = (&pipeline.topic.name, &pipeline.topic.brokers);
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    create_topic(brokers, &format!("{base}.order"), 4, &[]).await;
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('ordr', '1', 'T', '0')";
    pipeline.sql.batch(sql).await;
    pipeline.insert(10).await;
    let relay = Relay::spawn(&config);
    // Until then it may be that no topic was made yet, and the operator is told so.
    told_missing(&relay, &format!("{base}.ordr")).await;
    let order = Topic { brokers: brokers.clone(), name: format!("{base}.order") };
    assert_eq!(order.await_records(10, SOON).await.len(), 10);
    await_parked(&pipeline, "1 waiting topic_missing").await;
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What was in the deleted topic is gone with it; what was not yet acknowledged comes.
#[tokio::test]
async fn topic_deleted_while_running_is_told_and_goes_on_when_it_is_made_again() {
    let pipeline = Pipeline::shared(Version::Pg17, "deleted").await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    let (name, brokers) = (&pipeline.topic.name, &pipeline.topic.brokers);
    pipeline.topic.delete().await;
    pipeline
        .sql(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', 'a', 'T', to_json(i) from generate_series(101, 120) i",
        )
        .await;
    answer("topic deleted while running", &pipeline, told_missing(&relay, name).await);
    create_topic(brokers, name, 8, &[]).await;
    let records = pipeline.topic.await_records(20, 2 * SOON).await;
    let values: Vec<u64> =
        records.iter().filter_map(|r| r.value_text()?.parse().ok()).filter(|n| *n > 100).collect();
    let distinct: BTreeSet<u64> = values.iter().copied().collect();
    assert_eq!(distinct, (101..=120).collect(), "none is lost");
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
