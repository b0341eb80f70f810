//! `postrider find`: each answer is true, and says how far it reaches. Offsets are those that a consumer reads.

use crate::await_that::{SOON, await_that};
use crate::parking::Scene;
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, free_port};
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::Version;
use crate::topic::ReadRecord;
use serde_json::Value;
use std::collections::HashMap;

/// The configuration with the address of a running process, or with one at which nobody listens.
fn with_admin(config: &str, relay: Option<&Relay>) -> String {
    let port = relay.map_or_else(free_port, |relay| relay.admin_address().1);
    format!("{config}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n")
}

/// The report of the only pipeline. The exit code says whether anything was found.
fn find(config: &str, args: &[&str]) -> Value {
    let args: Vec<&str> = ["find", "--json"].into_iter().chain(args.iter().copied()).collect();
    let output = postrider(config, &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"));
    let found = report["found"].as_array().is_some_and(|found| !found.is_empty());
    assert_eq!(output.status.code(), Some(i32::from(!found)), "{report}");
    report
}

/// Waits until the event is in this state.
async fn await_found(config: &str, id: &str, state: &str) -> Value {
    await_that(&format!("event {id} to be {state}"), SOON, || async {
        let report = find(config, &[id]);
        if report["state"] == state { Ok(report) } else { Err(report.to_string()) }
    })
    .await
}

/// Waits until the stored position proves that the event is published, while more events move the position.
async fn await_proved(pipeline: &Pipeline, id: &str) -> Value {
    let alone = with_admin(&pipeline.config, None);
    await_that(&format!("event {id} to be proved published"), SOON, || async {
        pipeline.insert(1).await;
        let report = find(&alone, &[id]);
        if report["state"] == "published" { Ok(report) } else { Err(report.to_string()) }
    })
    .await
}

/// Partition, offset and position of each record by the id of its event.
fn places(records: &[ReadRecord]) -> HashMap<String, (i64, i64, String)> {
    let place = |record: &ReadRecord| {
        let (_, lsn, ordinal) = record.place().expect("a position");
        let place = (i64::from(record.partition), record.offset, format!("{lsn}:{ordinal}"));
        (record.header("id").expect("an id").to_owned(), place)
    };
    records.iter().map(place).collect()
}

fn place_of(found: &Value) -> (i64, i64, String) {
    let number = |key: &str| found[key].as_i64().unwrap_or(-1);
    let position = found["position"].as_str().unwrap_or_default().to_owned();
    (number("partition"), number("offset"), position)
}

fn because(report: &Value) -> &str {
    report["found"][0]["because"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn published_event_is_where_a_consumer_reads_it_and_after_a_restart_only_the_position_proves_it()
 {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "find").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline.insert(300).await;
        let places = places(&pipeline.topic.await_records(300, SOON).await);
        let config = with_admin(&pipeline.config, Some(&relay));
        for id in ["1", "17", "123", "300"] {
            let report = await_found(&config, id, "published").await;
            let found = &report["found"][0];
            assert_eq!(place_of(found), places[id], "{report}");
            assert_eq!(found["topic"], pipeline.topic.name.as_str(), "{report}");
            assert!(because(&report).contains("the broker has acknowledged it"), "{report}");
            assert_eq!(report["sources"]["process"]["remembers"]["since_start"], true, "{report}");
            assert_eq!(found["aggregate_type"], "order", "{report}");
        }
        // By aggregate: the newest ones, each with its own place.
        let report = find(&config, &["--aggregate", "order:7", "--limit", "5"]);
        assert_eq!(report["state"], "several", "{report}");
        assert_eq!(report["more"], true, "{report}");
        let found = report["found"].as_array().expect("events");
        let ids: Vec<&str> = found.iter().filter_map(|found| found["id"].as_str()).collect();
        assert_eq!(ids, ["297", "287", "277", "267", "257"], "{report}");
        for found in found {
            assert_eq!(place_of(found), places[found["id"].as_str().expect("an id")], "{report}");
        }
        let text = postrider_ok(&config, &["find", "17"]);
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (partition, offset, _) = &places["17"];
        for part in [
            "everything since its start",
            "at most 65,536 changes",
            "the database: parked events",
            "table public.outbox",
            &format!("partition {partition}, offset {offset}"),
        ] {
            assert!(flat.contains(part), "{part}: {text}");
        }
        // Nothing of the payload.
        assert!(!text.contains("payload"), "{text}");

        let report = await_proved(&pipeline, "17").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let alone = with_admin(&pipeline.config, None);
        assert_eq!(find(&alone, &["17"])["state"], "published");
        assert_eq!(report["found"][0]["offset"], Value::Null, "{report}");
        assert!(because(&report).contains("the stored position has passed"), "{report}");
        assert_eq!(report["sources"]["process"]["asked"], false, "{report}");

        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let config = with_admin(&pipeline.config, Some(&relay));
        let report = find(&config, &["17"]);
        assert_eq!(report["state"], "published", "{report}");
        assert_eq!(report["found"][0]["offset"], Value::Null, "the memory is empty: {report}");
        assert_eq!(report["sources"]["process"]["asked"], true, "{report}");
        assert_eq!(find(&config, &["999999999"])["state"], "unknown");
        assert_eq!(find(&config, &["not a number"])["state"], "unknown");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

#[tokio::test]
async fn event_is_not_passed_then_in_flight_or_not_reached_and_then_published() {
    let broker = PrivateKafka::start("").await;
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "findflight").await;
    pipeline.bound_in_flight(1);
    pipeline.insert(1).await;
    let alone = with_admin(&pipeline.config, None);
    let report = find(&alone, &["1"]);
    assert_eq!(report["state"], "not_passed", "{report}");
    assert!(because(&report).contains("was not asked"), "{report}");

    let relay = pipeline.run();
    pipeline.topic.await_records(1, SOON).await;
    let config = with_admin(&pipeline.config, Some(&relay));
    await_found(&config, "1", "published").await;
    broker.freeze();
    pipeline.insert(5).await;
    let report = await_found(&config, "2", "in_flight").await;
    assert_eq!(report["found"][0]["offset"], Value::Null, "{report}");
    let report = find(&config, &["6"]);
    assert_eq!(report["state"], "not_reached", "{report}");
    assert!(because(&report).contains("neither has it in flight nor remembers"), "{report}");
    assert_eq!(find(&alone, &["6"])["state"], "not_passed");
    broker.thaw();
    let places = places(&pipeline.topic.await_records(6, SOON).await);
    for id in ["2", "6"] {
        let report = await_found(&config, id, "published").await;
        assert_eq!(place_of(&report["found"][0]), places[id], "{report}");
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn parked_event_says_why_and_the_one_behind_it_says_so_until_they_are_skipped_and_published()
{
    let lines = "attempts_max = 2\nbackoff = { step = \"100ms\", steps_max = 1 }";
    let mut scene = Scene::set_with(Version::Pg17, "findparked", lines).await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    scene.insert(&["!7", "7", "8"]).await;
    scene.await_rows("7 dead, 7 behind").await;
    let config = with_admin(&scene.config, Some(&relay));
    let report = await_found(&config, "1", "dead").await;
    assert_eq!(report["found"][0]["error_code"], "too_large", "{report}");
    assert!(because(&report).contains("only an operator can retry it"), "{report}");
    let report = find(&config, &["2"]);
    assert_eq!(report["state"], "parked", "{report}");
    assert!(because(&report).contains("waits behind it"), "{report}");
    let report = find(&config, &["--aggregate", "order:7"]);
    let states: Vec<&str> = report["found"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|found| found["state"].as_str())
        .collect();
    assert_eq!(states, ["parked", "dead"], "{report}");
    await_found(&config, "3", "published").await;

    postrider_ok(&scene.config, &["parked", "skip", "1", "--yes"]);
    await_found(&config, "1", "skipped").await;
    let report = await_found(&config, "2", "published").await;
    assert!(because(&report).contains("it was parked, and was published at"), "{report}");
    // The position passes what is skipped: it is still not called published.
    await_proved(&scene.pipeline, "3").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let alone = with_admin(&scene.config, None);
    assert_eq!(find(&alone, &["1"])["state"], "skipped");
}

#[tokio::test]
async fn event_whose_row_was_deleted_is_known_to_the_process_and_then_unknown_and_never_lost() {
    let pipeline = Pipeline::shared(Version::Pg16, "findgone").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(3).await;
    let places = places(&pipeline.topic.await_records(3, SOON).await);
    pipeline.sql.batch("delete from outbox").await;
    let config = with_admin(&pipeline.config, Some(&relay));
    let report = await_found(&config, "2", "published").await;
    assert_eq!(place_of(&report["found"][0]), places["2"], "{report}");
    // The process remembers no ids: an event of an aggregate is named by its position.
    let report = find(&config, &["--aggregate", "order:2"]);
    let found = &report["found"][0];
    assert_eq!(place_of(found), places["2"], "{report}");
    assert_eq!(found["id"], Value::Null, "{report}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let config = with_admin(&pipeline.config, Some(&relay));
    let report = find(&config, &["2"]);
    assert_eq!(report["state"], "unknown", "{report}");
    let output = postrider(&config, &["find", "2"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("This does not mean that it was lost"), "{text}");
    assert!(flat.contains("everything since its start"), "{text}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The mark of a polled row proves that its event is published. A table that deletes published rows proves nothing.
#[tokio::test]
async fn polled_event_is_found_by_its_mark_or_in_the_memory_of_the_process() {
    for (layout, mark) in [("commerce", true), ("postrider", false)] {
        let mut pipeline = Pipeline::in_layout(Version::Pg17, "findpoll", layout).await;
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let lines = format!("{head}mode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n");
        pipeline.config = pipeline.config.replacen(&head, &lines, 1);
        let insert = if mark {
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload) \
             values (1, 'order', 42, 'Written', '{}')"
        } else {
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '42', 'Written', '{}')"
        };
        pipeline.sql.batch(insert).await;
        let alone = with_admin(&pipeline.config, None);
        let report = find(&alone, &["1"]);
        assert_eq!(report["state"], "not_passed", "{layout}: {report}");
        assert!(because(&report).contains("no mark of a published row"), "{report}");

        let relay = pipeline.run();
        let records = pipeline.topic.await_records(1, SOON).await;
        let config = with_admin(&pipeline.config, Some(&relay));
        let report = await_found(&config, "1", "published").await;
        let found = &report["found"][0];
        let place = (found["partition"].as_i64(), found["offset"].as_i64());
        let wanted = (Some(i64::from(records[0].partition)), Some(records[0].offset));
        assert_eq!(place, wanted, "{layout}: {report}");
        let report = find(&config, &["--aggregate", "order:42"]);
        assert_eq!(report["found"][0]["offset"].as_i64(), wanted.1, "{layout}: {report}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let report = find(&alone, &["1"]);
        if mark {
            assert_eq!(report["state"], "published", "{report}");
            assert!(because(&report).contains("the layout's mark"), "{report}");
        } else {
            assert_eq!(report["state"], "unknown", "{report}");
        }
    }
}

#[tokio::test]
async fn each_pipeline_of_the_configuration_has_an_answer_and_another_process_is_not_believed() {
    let one = Pipeline::shared(Version::Pg17, "findone").await;
    let other = Pipeline::shared(Version::Pg17, "findother").await;
    one.insert(2).await;
    let relay = one.run();
    one.topic.await_records(2, SOON).await;
    let both = format!("{}{}", one.config, other.config);
    let config = with_admin(&both, Some(&relay));
    let text = postrider_ok(&config, &["find", "2", "--json"]);
    let reports: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(reports.len(), 2, "{text}");
    for report in &reports {
        let of_one = report["pipeline"] == one.name.as_str();
        let state = if of_one { "published" } else { "unknown" };
        assert_eq!(report["state"], state, "{report}");
        assert_eq!(report["sources"]["process"]["asked"], of_one, "{report}");
    }
    let report = find(&config, &["2", "-p", &other.name]);
    let why = report["sources"]["process"]["why"].as_str().unwrap_or_default();
    assert!(why.contains("does not run this pipeline"), "{report}");
    // A pipeline of this name in another database.
    let renamed = other.config.replace(&other.name, &one.name);
    let config = with_admin(&renamed, Some(&relay));
    let report = find(&config, &["2"]);
    assert_eq!(report["state"], "unknown", "{report}");
    let why = report["sources"]["process"]["why"].as_str().unwrap_or_default();
    assert!(why.contains("runs a pipeline of this name with source"), "{report}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn standby_process_says_that_another_one_publishes() {
    let pipeline = Pipeline::shared(Version::Pg18, "findpair").await;
    let owner = pipeline.run();
    owner.await_state("streaming", SOON).await;
    let other = pipeline.run();
    other.await_state("standing_by", SOON).await;
    pipeline.insert(1).await;
    pipeline.topic.await_records(1, SOON).await;
    await_found(&with_admin(&pipeline.config, Some(&owner)), "1", "published").await;
    let report = find(&with_admin(&pipeline.config, Some(&other)), &["1"]);
    assert_ne!(report["state"], "not_reached", "{report}");
    let note = report["sources"]["note"].as_str().unwrap_or_default();
    assert!(note.contains("another one publishes"), "{report}");
    let report = find(&with_admin(&pipeline.config, None), &["1"]);
    let note = report["sources"]["note"].as_str().unwrap_or_default();
    assert!(note.contains("could not be asked"), "{report}");
}

/// Quotes, controls and separators of URLs are a part of the id, and nothing else.
#[tokio::test]
async fn id_of_any_form_is_searched_for_as_it_is() {
    let pipeline = Pipeline::in_layout(Version::Pg17, "findid", "debezium").await;
    pipeline.sql.batch("alter table outboxevent alter id type text").await;
    let ids = ["o'x", "a&id=b", "a+b c", "100%", "ü/..", "..", "a:b", "$(x)`\"\\", "-x"];
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    for id in ids {
        let sql = format!(
            "insert into outboxevent (id, aggregatetype, aggregateid, type, payload) \
             values ('{}', 'order', '1', 'T', '{{}}')",
            id.replace('\'', "''")
        );
        pipeline.sql.batch(&sql).await;
    }
    let records = pipeline.topic.await_records(ids.len(), SOON).await;
    let config = with_admin(&pipeline.config, Some(&relay));
    for id in ids {
        let record = records.iter().find(|record| record.header("id") == Some(id)).expect(id);
        let report = find(&config, &["--", id]);
        assert_eq!(report["state"], "published", "{report}");
        assert_eq!(report["found"][0]["offset"].as_i64(), Some(record.offset), "{report}");
    }
    assert_eq!(find(&config, &["b"])["state"], "unknown");
    assert_eq!(find(&config, &["a\u{1b}[2J"])["state"], "unknown");
    let (code, _) = relay.get("/find?pipeline=x&id=1").await.expect("an answer");
    assert_eq!(code, 404);
    let (code, _) = relay.get("/find?id=1").await.expect("an answer");
    assert_eq!(code, 400);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
