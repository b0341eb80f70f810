//! A registry that is away, refuses schemas, asks for a login or has TLS.

use super::{insert, pipeline, with_url};
use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::bad::told_of_parked;
use crate::pipeline::Pipeline;
use crate::private::PrivateRegistry;
use crate::relay::{Relay, postrider_ok};
use crate::topic::ReadRecord;
use std::time::{Duration, Instant};

const SCHEMA: &str =
    r#"{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}"#;

/// How long the registry does not answer while events are written.
const AWAY: Duration = Duration::from_mins(1);

async fn parked(pipeline: &Pipeline) -> usize {
    let count = pipeline.sql.text("select count(*)::text from postrider.parked").await;
    count.expect("a count").parse().expect("a number")
}

/// The number in a record of [`SCHEMA`].
fn number(value: &[u8]) -> i64 {
    let mut number: u64 = 0;
    for (index, byte) in value.iter().enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * index);
    }
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Inserts events of three aggregates, from number 100, of types `New` and `Known` in turns. Returns how many.
async fn insert_for(pipeline: &Pipeline, duration: Duration) -> usize {
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < duration {
        for aggregate in ["0", "1", "2"] {
            let document = format!("{{\"n\": {}}}", 100 + count);
            let event_type = if count % 2 == 0 { "New" } else { "Known" };
            insert(pipeline, aggregate, event_type, Some(&document)).await;
            count += 1;
        }
        // A few hundred events a second.
        pipeline.sql.batch("select pg_sleep(0.01)").await;
    }
    count
}

fn assert_in_order(records: &[ReadRecord]) {
    for aggregate in ["0", "1", "2"] {
        let of = records.iter().filter(|record| record.key_text() == Some(aggregate));
        let numbers: Vec<i64> = of.map(|record| number(record.value.as_deref().unwrap())).collect();
        assert!(numbers.is_sorted(), "{aggregate}: {numbers:?}");
    }
}

/// The registry is stopped under load: a new subject waits and says so, a known one goes on. Then all are there, each
/// aggregate in its order, and nothing was parked.
#[tokio::test]
async fn nothing_is_parked_while_the_registry_is_away_and_all_is_delivered_in_order() {
    let registry = PrivateRegistry::start().await;
    let keys = "timeout = \"1s\"\nrefresh = \"1s\"\nsubject = \"record_name\"";
    let pipeline = pipeline(&registry, "registry_away", "encode = \"avro\"", keys).await;
    registry.register("Known", "AVRO", SCHEMA).await;
    registry.register("New", "AVRO", SCHEMA).await;
    let relay = pipeline.run();
    insert(&pipeline, "0", "Known", Some("{\"n\": 0}")).await;
    pipeline.topic.await_records(1, SOON).await;
    registry.freeze();
    // Schemas that are known are used, although they are older than `refresh`.
    for number in 1..=50 {
        insert(&pipeline, "0", "Known", Some(&format!("{{\"n\": {number}}}"))).await;
    }
    pipeline.topic.await_records(51, SOON).await;
    let count = insert_for(&pipeline, AWAY).await;
    let log = || async {
        let log = relay.stderr();
        if log.contains("schema registry http") && log.contains("no answer within 1s") {
            Ok(())
        } else {
            Err(log)
        }
    };
    await_that("the registry to be reported", SOON, log).await;
    assert_eq!(parked(&pipeline).await, 0);
    registry.thaw();
    let records = pipeline.topic.await_records(51 + count, SOON).await;
    assert_in_order(&records);
    assert_eq!(records.len(), 51 + count);
    assert_eq!(parked(&pipeline).await, 0);
}

/// The registry is killed under load, and another process takes its place, which has none of its schemas.
#[tokio::test]
async fn nothing_is_parked_while_the_registry_is_dead_and_what_it_lacks_is_registered_again() {
    let mut registry = PrivateRegistry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("order.avsc");
    std::fs::write(&file, SCHEMA).unwrap();
    let keys = format!(
        "timeout = \"1s\"\nsubject = \"record_name\"\nregister = true\n[.format.schemas]\n\
         Known = \"{0}\"\nNew = \"{0}\"",
        file.display()
    );
    let pipeline = pipeline(&registry, "registry_dead", "encode = \"avro\"", &keys).await;
    let relay = pipeline.run();
    insert(&pipeline, "0", "Known", Some("{\"n\": 0}")).await;
    pipeline.topic.await_records(1, SOON).await;
    registry.kill().await;
    let count = insert_for(&pipeline, Duration::from_secs(10)).await;
    relay.await_log("schema registry http", SOON).await;
    assert_eq!(parked(&pipeline).await, 0);
    registry.restart().await;
    let records = pipeline.topic.await_records(1 + count, SOON).await;
    assert_in_order(&records);
    assert_eq!(records.len(), 1 + count);
    assert_eq!(parked(&pipeline).await, 0);
    await_that("the schema that it lacked", SOON, || async {
        let subjects = registry.ask("GET", "/subjects", &serde_json::Value::Null).await?;
        if subjects.to_string().contains("New") { Ok(()) } else { Err(subjects.to_string()) }
    })
    .await;
}

/// Events whose schema is incompatible are parked with the registry's words, and others are published. A retry asks the
/// registry again.
#[tokio::test]
async fn events_of_an_incompatible_schema_are_parked_until_the_schema_is_corrected() {
    let registry = PrivateRegistry::start().await;
    let incompatible =
        r#"{"type": "record", "name": "Bad", "fields": [{"name": "other", "type": "long"}]}"#;
    registry.register("Bad", "AVRO", &SCHEMA.replace("Order", "Bad")).await;
    let dir = tempfile::tempdir().unwrap();
    let (bad, good) = (dir.path().join("bad.avsc"), dir.path().join("good.avsc"));
    std::fs::write(&bad, incompatible).unwrap();
    std::fs::write(&good, SCHEMA).unwrap();
    let keys = format!(
        "subject = \"record_name\"\nregister = true\n[.format.schemas]\nBad = \"{}\"\nGood = \"{}\"",
        bad.display(),
        good.display()
    );
    let pipeline = pipeline(&registry, "incompatible", "encode = \"avro\"", &keys).await;
    let relay = Relay::spawn_with(&pipeline.config, &["--log-format", "json"], &[]);
    insert(&pipeline, "a", "Bad", Some("{\"other\": 1}")).await;
    insert(&pipeline, "a", "Good", Some("{\"n\": 2}")).await;
    insert(&pipeline, "b", "Good", Some("{\"n\": 3}")).await;
    insert(&pipeline, "c", "Missing", Some("{\"n\": 4}")).await;
    pipeline.topic.await_records(1, SOON).await;
    await_that("three parked events", SOON, || async {
        let count = parked(&pipeline).await;
        if count == 3 { Ok(()) } else { Err(count) }
    })
    .await;
    let shown = postrider_ok(&pipeline.config, &["parked", "list", "--json"]);
    assert!(shown.contains("code 409") && shown.contains("code 40401"), "{shown}");
    let told = told_of_parked(&relay.stderr(), "1");
    answer("schema that the registry refuses", &pipeline, told);
    // The owner of the schema allows it.
    let none = serde_json::json!({"compatibility": "NONE"});
    registry.ask("PUT", "/config/Bad", &none).await.unwrap();
    registry.register("Missing", "AVRO", &SCHEMA.replace("Order", "Missing")).await;
    let retry = ["parked", "retry", "--all", "--reason", "corrected", "--yes"];
    postrider_ok(&pipeline.config, &retry);
    let records = pipeline.topic.await_records(4, SOON).await;
    let of_a: Vec<i64> = records
        .iter()
        .filter(|record| record.key_text() == Some("a"))
        .map(|record| number(record.value.as_deref().unwrap()))
        .collect();
    assert_eq!(of_a, [1, 2]);
    drop(relay);
}

/// A newer version of the subject is found when an event does not fit the one that is known.
#[tokio::test]
async fn a_newer_schema_is_found_by_the_event_that_needs_it() {
    let registry = PrivateRegistry::start().await;
    let keys = "subject = \"record_name\"\nrefresh = \"24h\"";
    let parking = "[.parking]\nattempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
    let keys = format!("{keys}\n{parking}");
    let pipeline = pipeline(&registry, "newer", "encode = \"avro\"", &keys).await;
    registry.register("Order", "AVRO", SCHEMA).await;
    let _relay = pipeline.run();
    insert(&pipeline, "a", "Order", Some("{\"n\": 1}")).await;
    pipeline.topic.await_records(1, SOON).await;
    let newer = r#"{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"},
        {"name": "note", "type": "string", "default": ""}]}"#;
    registry.register("Order", "AVRO", newer).await;
    // The registry is asked for a newer schema at most every 10 s; until then the event is parked, and its retry asks.
    insert(&pipeline, "a", "Order", Some("{\"n\": 2, \"note\": \"x\"}")).await;
    let records = pipeline.topic.await_records(2, SOON).await;
    let last = records.iter().max_by_key(|record| record.offset).unwrap();
    assert_eq!(last.value.as_deref(), Some(&[4, 2, b'x'][..]));
}

/// Each way to log in, over TLS, and what is reported without it. Nothing is parked for a wrong login.
#[tokio::test]
async fn logins_and_tls_are_those_of_the_configuration() {
    let registry = PrivateRegistry::start().await;
    registry.register("Order", "AVRO", SCHEMA).await;
    let proxy = super::proxy::LoginProxy::start(&registry);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "wrong\n").unwrap();
    let ca = registry.file("ca.pem");
    let url = format!("https://localhost:{}/apis/ccompat/v7", proxy.port);
    for (login, header) in [
        (format!("token_file = \"{}\"", secret.display()), "Bearer right"),
        // relay:right
        (
            format!("username = \"relay\"\npassword_file = \"{}\"", secret.display()),
            "Basic cmVsYXk6cmlnaHQ=",
        ),
    ] {
        std::fs::write(&secret, "wrong\n").unwrap();
        proxy.wants(header);
        let keys = format!("subject = \"record_name\"\nca_file = \"{}\"\n{login}", ca.display());
        let pipeline = with_url(&url, "registry_login", "encode = \"avro\"", &keys).await;
        let relay = pipeline.run();
        insert(&pipeline, "a", "Order", Some("{\"n\": 1}")).await;
        await_that("the refused login", SOON, || async {
            let log = relay.stderr();
            if log.contains("it does not accept the login: HTTP 401") { Ok(()) } else { Err(log) }
        })
        .await;
        assert!(!relay.stderr().contains("wrong"), "{}", relay.stderr());
        assert_eq!(parked(&pipeline).await, 0);
        // A file is read for each request.
        std::fs::write(&secret, "right\n").unwrap();
        pipeline.topic.await_records(1, SOON).await;
    }
}
