//! What a record of each format is.

use super::{hex, insert, pipeline};
use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::bad::told_of_parked;
use crate::pipeline::Pipeline;
use crate::private::{PrivateRegistry, schema_python};
use crate::relay::Relay;
use crate::topic::ReadRecord;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

/// Documents of a round trip, four of each schema.
const DOCUMENTS: usize = 400;

/// A document of the generator.
struct Case {
    event_type: String,
    schema: String,
    document: String,
}

/// Runs the generator, or the reader with these lines.
fn python(arguments: &[&str], lines: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/schemas/roundtrip.py");
    let mut command = schema_python();
    command.arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("python3");
    let mut stdin = child.stdin.take().expect("its input");
    let lines = lines.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("its input was written");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn generate(format: &str, seed: &str) -> Vec<Case> {
    let lines = python(&["generate", format, seed, &DOCUMENTS.to_string()], "");
    let case = |line: &str| {
        let case: Value = serde_json::from_str(line).expect("a line of JSON");
        let text = |member: &str| case[member].as_str().expect("a text").to_owned();
        Case { event_type: text("type"), schema: text("schema"), document: text("document") }
    };
    lines.lines().map(case).collect()
}

/// Publishes random documents of random schemas, and lets another implementation read them.
async fn round_trip(format: &str, kind: &str, place: &str) {
    let seed = fastrand::u32(..).to_string();
    let registry = PrivateRegistry::start().await;
    let cases = generate(format, &seed);
    let mut ids = BTreeMap::new();
    for case in &cases {
        if !ids.contains_key(&case.event_type) {
            let id = registry.register(&case.event_type, kind, &case.schema).await;
            ids.insert(case.event_type.clone(), id);
        }
    }
    let keys = format!("encode = \"{format}\"\nschema_id = \"{place}\"");
    let test = format!("{format}_{place}");
    let pipeline = pipeline(&registry, &test, &keys, "subject = \"record_name\"").await;
    for (index, case) in cases.iter().enumerate() {
        insert(&pipeline, &index.to_string(), &case.event_type, Some(&case.document)).await;
    }
    let relay = pipeline.run();
    let records = pipeline.topic.await_records(DOCUMENTS, SOON).await;
    drop(relay);
    let mut lines = String::new();
    for record in &records {
        let index: usize = record.key_text().expect("a key").parse().expect("a number");
        let event_type = &cases[index].event_type;
        let value = record.value.as_deref().expect("a value");
        let id = ids[event_type].to_be_bytes();
        let mut frame = vec![0];
        frame.extend(id);
        if format == "protobuf" {
            // The third message of its file, as Confluent writes it: one index, 1.
            frame.extend([2, 2]);
        }
        let payload = if place == "prefix" {
            assert_eq!(header(record), None);
            value.strip_prefix(&frame[..]).unwrap_or_else(|| panic!("{}: {frame:?}", hex(value)))
        } else {
            assert_eq!(header(record), Some(&frame[..]), "seed {seed}");
            value
        };
        let line = json!({"type": event_type, "index": index, "hex": hex(payload)});
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    python(&["verify", format, &seed, &DOCUMENTS.to_string()], &lines);
}

fn header(record: &ReadRecord) -> Option<&[u8]> {
    let (_, value) = record.headers.iter().find(|(name, _)| name == "__value_schema_id")?;
    value.as_deref()
}

#[tokio::test]
async fn random_documents_in_avro_are_read_back_equal_by_fastavro() {
    round_trip("avro", "AVRO", "header").await;
}

#[tokio::test]
async fn random_documents_in_avro_with_a_prefix_are_read_back_equal_by_fastavro() {
    round_trip("avro", "AVRO", "prefix").await;
}

#[tokio::test]
async fn random_messages_in_protobuf_are_read_back_equal_by_google_s_python() {
    round_trip("protobuf", "PROTOBUF", "prefix").await;
}

async fn read(pipeline: &Pipeline, count: usize) -> BTreeMap<String, ReadRecord> {
    let records = pipeline.topic.await_records(count, SOON).await;
    let key = |record: &ReadRecord| record.key_text().expect("a key").to_owned();
    records.into_iter().map(|record| (key(&record), record)).collect()
}

/// Without an encoding the payload is what the application wrote, byte for byte.
#[tokio::test]
async fn schema_id_alone_leaves_the_payload_as_it_is() {
    let registry = PrivateRegistry::start().await;
    let pipeline = pipeline(&registry, "schema_id", "schema_id = \"header\"", "").await;
    let subject = format!("{}-value", pipeline.topic.name);
    let schema = r#"{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["id"]}"#;
    let id = registry.register(&subject, "JSON", schema).await;
    let document = "{ \"id\" : 1.50, \"more\": [] }";
    insert(&pipeline, "a", "Written", Some(document)).await;
    insert(&pipeline, "b", "Written", None).await;
    let _relay = pipeline.run();
    let records = read(&pipeline, 2).await;
    assert_eq!(records["a"].value_text(), Some(document));
    let frame = [&[0][..], &id.to_be_bytes()].concat();
    assert_eq!(header(&records["a"]), Some(&frame[..]));
    // A tombstone has no schema.
    assert_eq!((&records["b"].value, header(&records["b"])), (&None, None));
}

/// The indexes of the message follow the id, and header `type` names the message; the other headers are as configured.
#[tokio::test]
async fn schema_id_alone_has_the_message_that_the_event_s_type_names() {
    let registry = PrivateRegistry::start().await;
    let mut pipeline = pipeline(&registry, "schema_message", "schema_id = \"prefix\"", "").await;
    let route = format!("[pipelines.{}.route]\n", pipeline.name);
    let headers = format!("{route}standard_headers = [\"source\"]\n");
    pipeline.config = pipeline.config.replacen(&route, &headers, 1);
    let subject = format!("{}-value", pipeline.topic.name);
    let schema =
        "syntax = \"proto3\"; message First { int64 id = 1; } message Second { int64 id = 1; }";
    let id = registry.register(&subject, "PROTOBUF", schema).await;
    let document = "{\"id\": 1}";
    insert(&pipeline, "first", "First", Some(document)).await;
    insert(&pipeline, "second", "Second", Some(document)).await;
    insert(&pipeline, "third", "Third", Some(document)).await;
    let _relay = pipeline.run();
    let records = read(&pipeline, 2).await;
    // One index is 0 where it is the first, and else their number and the index, as zigzag numbers.
    for (key, index) in [("first", &[0][..]), ("second", &[2, 2])] {
        let value = [&[0][..], &id.to_be_bytes(), index, document.as_bytes()].concat();
        assert_eq!(records[key].value.as_deref(), Some(&value[..]), "{key}");
        assert_eq!(records[key].header("source"), Some(pipeline.name.as_str()));
        assert_eq!(records[key].header("position"), None);
    }
    await_that("the third event to be parked", SOON, || async {
        let error = pipeline.sql.text("select error from postrider.parked").await;
        let words = "the event's type names none of them: Third";
        if error.as_deref().is_some_and(|error| error.contains(words)) {
            Ok(())
        } else {
            Err(error.unwrap_or_default())
        }
    })
    .await;
}

#[tokio::test]
async fn json_schema_validates_and_leaves_the_payload_as_it_is() {
    let registry = PrivateRegistry::start().await;
    let pipeline = pipeline(&registry, "json_schema", "encode = \"json-schema\"", "").await;
    let subject = format!("{}-value", pipeline.topic.name);
    let schema =
        r#"{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}"#;
    registry.register(&subject, "JSON", schema).await;
    insert(&pipeline, "bad", "Written", Some(r#"{"id": "4711"}"#)).await;
    insert(&pipeline, "good", "Written", Some(r#"{"id":  9007199254740993}"#)).await;
    let relay = Relay::spawn_with(&pipeline.config, &["--log-format", "json"], &[]);
    let records = read(&pipeline, 1).await;
    assert_eq!(records["good"].value_text(), Some(r#"{"id":  9007199254740993}"#));
    let error = pipeline.sql.text("select error from postrider.parked").await;
    let words = "$.id: does not fit keyword \"type\" of the JSON Schema";
    assert!(error.as_deref().is_some_and(|error| error.contains(words)), "{error:?}");
    relay.await_log("event parked", SOON).await;
    let told = told_of_parked(&relay.stderr(), "1");
    answer("payload that does not fit its schema", &pipeline, told);
}
