//! Every way on which an event is published has the same format: stream, polling, retry, replay. A dead letter is as
//! the application wrote it.

use super::{insert, pipeline};
use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::polling::polls;
use crate::private::PrivateRegistry;
use crate::relay::postrider_ok;
use crate::topic::{ReadRecord, Topics};

const SCHEMA: &str =
    r#"{"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]}"#;

/// A pipeline whose events have [`SCHEMA`], before the payload; and what precedes each payload.
async fn framed(registry: &PrivateRegistry, test: &str, more: &str) -> (Pipeline, Vec<u8>) {
    let id = registry.register("Order", "AVRO", SCHEMA).await;
    let keys = "encode = \"avro\"\nschema_id = \"prefix\"";
    let pipeline =
        pipeline(registry, test, keys, &format!("subject = \"record_name\"{more}")).await;
    (pipeline, [&[0][..], &id.to_be_bytes()].concat())
}

/// The note in a record: one byte of length before it.
fn note(record: &ReadRecord, frame: &[u8]) -> String {
    let value = record.value.as_deref().expect("a value");
    let avro = value.strip_prefix(frame).expect("the id of the schema");
    let (length, text) = avro.split_first().expect("a text");
    assert_eq!(usize::from(*length), 2 * text.len());
    String::from_utf8(text.to_vec()).expect("a text")
}

#[tokio::test]
async fn polled_events_and_their_retries_have_the_schema() {
    let registry = PrivateRegistry::start().await;
    let (mut pipeline, frame) = framed(&registry, "schema_polled", "").await;
    polls(&mut pipeline).await;
    insert(&pipeline, "a", "Order", Some(r#"{"note": "first"}"#)).await;
    insert(&pipeline, "b", "Late", Some(r#"{"note": "third"}"#)).await;
    insert(&pipeline, "a", "Order", Some(r#"{"note": "second"}"#)).await;
    let relay = pipeline.run();
    let records = pipeline.topic.await_records(2, SOON).await;
    let notes: Vec<String> = records.iter().map(|record| note(record, &frame)).collect();
    assert_eq!(notes, ["first", "second"]);
    relay.await_log("parked event is dead", SOON).await;
    registry.register("Late", "AVRO", SCHEMA).await;
    postrider_ok(&pipeline.config, &["parked", "retry", "--all", "--state", "dead", "--yes"]);
    let records = pipeline.topic.await_records(3, SOON).await;
    let third = records.iter().find(|record| record.key_text() == Some("b")).expect("the retry");
    assert_eq!(note(third, &frame), "third");
}

#[tokio::test]
async fn replayed_events_have_the_schema_of_now() {
    let registry = PrivateRegistry::start().await;
    let (pipeline, frame) = framed(&registry, "schema_replayed", "").await;
    let relay = pipeline.run();
    insert(&pipeline, "a", "Order", Some(r#"{"note": "first"}"#)).await;
    pipeline.topic.await_records(1, SOON).await;
    let newer =
        SCHEMA.replace("}]", "}, {\"name\": \"of\", \"type\": \"string\", \"default\": \"\"}]");
    let id = registry.register("Order", "AVRO", &newer).await;
    // A replay is a process of its own, which asks for the latest schema.
    postrider_ok(&pipeline.config, &["replay", "--source", "table", "--id", "1"]);
    let records = pipeline.topic.await_records(2, SOON).await;
    assert_eq!(note(&records[0], &frame), "first");
    let again = [&[0][..], &id.to_be_bytes(), &[10], b"first", &[0]].concat();
    assert_eq!(records[1].value.as_deref(), Some(&again[..]));
    drop(relay);
}

#[tokio::test]
async fn dead_letter_is_as_the_application_wrote_it_and_its_retry_has_the_schema() {
    let registry = PrivateRegistry::start().await;
    let dead = Topics::new(&crate::server::brokers(), "schema_dead").create("dead", 1).await;
    let parking = format!("\n[.parking]\nattempts_max = 1\ndead_topic = \"{}\"", dead.name);
    let (pipeline, frame) = framed(&registry, "schema_dead", &parking).await;
    let relay = pipeline.run();
    let written = r#"{"note": "no order"}"#;
    insert(&pipeline, "a", "Unknown", Some(written)).await;
    let letters = dead.await_records(1, SOON).await;
    assert_eq!(letters[0].value_text(), Some(written));
    let id = registry.register("Unknown", "AVRO", SCHEMA).await;
    postrider_ok(&pipeline.config, &["parked", "retry", "--all", "--state", "dead", "--yes"]);
    let records = pipeline.topic.await_records(1, SOON).await;
    let frame_of_it = [&[0][..], &id.to_be_bytes()].concat();
    assert_eq!(note(&records[0], &frame_of_it), "no order");
    // The registry gives the same content the same id.
    assert_eq!(frame_of_it, frame);
    drop(relay);
}
