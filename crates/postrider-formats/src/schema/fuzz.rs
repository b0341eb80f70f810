//! Any bytes are a document or an error: no reader panics, loops or takes memory without a bound.

use super::avro::AvroSchema;
use super::json::Json;
use super::json_schema::JsonSchema;
use super::protobuf::ProtobufSchema;
use fuzzing::{Memory, hammer};

const MEMORY: Memory = Memory { base: 1 << 20, each: 1_000 };

const AVRO: &str = r#"{"type": "record", "name": "A", "fields": [
    {"name": "n", "type": ["null", "long", "double", {"type": "int", "logicalType": "date"}], "default": null},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3},
        "default": "\u0001"},
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
    {"name": "a", "type": {"type": "array", "items": ["A", {"type": "map", "values": "A"}]}, "default": []}]}"#;

const PROTOBUF: &str = r#"syntax = "proto3"; import "google/protobuf/struct.proto";
    import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    message A { int64 n = 1; double d = 2; google.protobuf.Timestamp t = 3; repeated A a = 4;
    google.protobuf.Value v = 5; map<int32, bytes> m = 6; google.protobuf.Duration w = 7; }"#;

fn documents() -> Vec<Vec<u8>> {
    let documents = [
        r#"{"n": 9223372036854775807, "d": "-12.345", "t": "2026-11-29T18:30:00.123456+01:00"}"#,
        r#"{"a": [{"n": 1.5e3}, {"x": {"n": null}}, {"A": {"d": 1}}], "d": 0.001, "n": "2026-11-29"}"#,
        r#"{"v": [1, "\ud83d\ude00", {"a": null}], "m": {"7": "AA=="}, "w": "1.5s", "n": "12"}"#,
    ];
    documents.map(|text| text.as_bytes().to_vec()).to_vec()
}

#[test]
fn any_bytes_are_a_document_or_an_error() {
    let avro = AvroSchema::parse(&[], AVRO).unwrap();
    let protobuf = ProtobufSchema::parse(&[], PROTOBUF).unwrap();
    let schema = JsonSchema::parse(&[], r#"{"properties": {"n": {"type": "integer"}}}"#).unwrap();
    hammer(&documents(), MEMORY, |input| {
        let mut out = Vec::new();
        let results = [
            avro.write(input, &mut out),
            protobuf.write(input, None, &mut out).map(drop),
            schema.validate(input),
        ];
        for misfit in results.into_iter().filter_map(Result::err) {
            assert!(misfit.to_string().starts_with('$'));
        }
    });
}

/// What is read is written as the same document.
#[test]
fn any_json_is_the_same_after_it_was_written() {
    hammer(&documents(), MEMORY, |input| {
        let Ok(json) = Json::parse(input) else { return };
        let mut text = String::new();
        json.write(&mut text);
        assert_eq!(Json::parse(text.as_bytes()).unwrap(), json);
    });
}

#[test]
fn any_text_is_a_schema_of_avro_or_an_error() {
    hammer(&[AVRO.as_bytes().to_vec()], MEMORY, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(schema) = AvroSchema::parse(&[], &text) {
            drop(schema.write(b"{\"n\": 1}", &mut Vec::new()));
        }
    });
}
