use super::ProtobufSchema;
use crate::schema::registry::ReferencedSchema;

const SCHEMA: &str = r#"
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/duration.proto";
import "other/money.proto";

message Order {
  int64 id = 1;
  string note = 2;
  repeated int32 counts = 3;
  map<string, int64> totals = 4;
  enum State { NEW = 0; PAID = 1; }
  State state = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Int64Value maybe = 7;
  google.protobuf.Value any_value = 8;
  other.Money money = 9;
  bytes raw = 10;
  oneof kind { string a = 11; string b = 12; }
  optional int32 present = 13;
  double rate = 14;
  google.protobuf.Duration took = 15;
  sint32 signed_number = 16;
  fixed32 fixed = 17;
}
message Refund { int64 id = 1; }
"#;

fn schema() -> ProtobufSchema {
    let money = r#"syntax = "proto3"; package other; message Money { int64 cents = 1; }"#;
    let reference =
        ReferencedSchema { name: "other/money.proto".to_owned(), text: money.to_owned() };
    ProtobufSchema::parse(&[reference], SCHEMA).unwrap()
}

fn written(document: &str, event_type: &str) -> Result<(String, Vec<u32>), String> {
    let mut out = Vec::new();
    let message = schema().write(document.as_bytes(), Some(event_type), &mut out);
    let message = message.map_err(|misfit| misfit.to_string())?;
    Ok((out.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")), message))
}

fn of(document: &str) -> String {
    written(document, "Order").unwrap_or_else(|error| panic!("{document}: {error}")).0
}

fn error(document: &str) -> String {
    written(document, "Order").unwrap_err()
}

#[test]
fn documents_are_messages_by_the_json_mapping() {
    for (document, bytes) in [
        ("{}", ""),
        (r#"{"id": 150, "note": ""}"#, "089601"),
        (r#"{"id": "-1"}"#, "08ffffffffffffffffff01"),
        (r#"{"id": 9007199254740993}"#, "088180808080808010"),
        (r#"{"note": null, "counts": [1, 300]}"#, "1a0301ac02"),
        (r#"{"counts": [], "totals": {"a": "5"}}"#, "22050a01611005"),
        (r#"{"state": "PAID"}"#, "2801"),
        (r#"{"state": 7}"#, "2807"),
        (r#"{"at": "1970-01-01T00:00:01.5Z"}"#, "32080801 1080cab5ee01"),
        (r#"{"maybe": 0}"#, "3a00"),
        (r#"{"maybe": "3"}"#, "3a020803"),
        (r#"{"maybe": null}"#, ""),
        (r#"{"anyValue": null}"#, "42020800"),
        (r#"{"any_value": [true]}"#, "420632040a022001"),
        (r#"{"money": {"cents": 1}}"#, "4a020801"),
        (r#"{"raw": "/w=="}"#, "5201ff"),
        (r#"{"raw": "_w"}"#, "5201ff"),
        (r#"{"b": ""}"#, "6200"),
        (r#"{"present": 0}"#, "6800"),
        (r#"{"rate": "NaN"}"#, "71000000000000f87f"),
        (r#"{"took": "-1.5s"}"#, "7a1608ffffffffffffffffff0110 80b6ca91feffffffff01"),
        (r#"{"signedNumber": -1, "fixed": 1}"#, "8001018d0101000000"),
    ] {
        assert_eq!(of(document), bytes.replace(' ', ""), "{document}");
    }
}

#[test]
fn what_does_not_fit_is_refused_without_a_value() {
    for (document, words) in [
        (r#"{"cost": 1}"#, "$.cost: the message has no such field, and nothing is left out"),
        (r#"{"id": 1.5}"#, "$.id: expected a whole number, found one with decimal places"),
        (r#"{"id": "4711x"}"#, "$.id: expected int64, found a string that is no number"),
        (r#"{"counts": [2147483648]}"#, "$.counts[]: the number is out of the range of the type"),
        (r#"{"totals": {"4711": true}}"#, "$.totals{}: expected int64, found boolean"),
        (r#"{"money": {"cents": {}}}"#, "$.money.cents: expected int64, found object"),
        (r#"{"state": "4711"}"#, "$.state: the string is no value of the enum"),
        (r#"{"a": "1", "b": "2"}"#, "$.b: oneof kind is set twice"),
        (r#"{"anyValue": 1, "any_value": 1}"#, "$.any_value: the field occurs twice"),
        (
            r#"{"anyValue": 9007199254740993}"#,
            "$.anyValue: google.protobuf.Value has floats only, and the number is not exact as one",
        ),
        (r#"{"raw": "4711!"}"#, "$.raw: expected bytes as base64"),
        ("[]", "$: expected message Order, found array"),
    ] {
        assert_eq!(error(document), words, "{document}");
    }
}

#[test]
fn the_event_s_type_names_the_message() {
    assert_eq!(written(r#"{"id": 1}"#, "Refund").unwrap(), ("0801".to_owned(), vec![1]));
    assert_eq!(written(r#"{"id": 1}"#, "shop.Refund").unwrap().1, [1]);
    assert_eq!(written(r#"{"id": 1}"#, "shop.Order").unwrap().1, [0]);
    let words = "the schema has several messages, and the event's type names none of them";
    assert_eq!(written("{}", "OrderPaid").unwrap_err(), format!("$: {words}: OrderPaid"));
    let only = "syntax = \"proto3\"; message Only { int64 id = 1; }";
    let only = ProtobufSchema::parse(&[], only).unwrap();
    assert_eq!(only.write(b"{}", Some("Anything"), &mut Vec::new()).unwrap(), [0]);
    assert_eq!(only.index(Some("Anything")).unwrap(), [0]);
}

#[test]
fn schemas_that_are_none_are_refused() {
    for schema in ["", "message", "syntax = \"proto3\";", "import \"none.proto\"; message A {}"] {
        assert!(ProtobufSchema::parse(&[], schema).is_err(), "{schema}");
    }
}
