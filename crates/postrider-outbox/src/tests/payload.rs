//! Values: byte for byte, NULL, and the envelope.

use super::support::{ColumnSpec, map_with, null, problem, text, typed};
use crate::{Extra, Layout, NullPayload, OutboxSpec, Placement};
use expect_test::expect;

fn columns(payload: ColumnSpec<'static>) -> Vec<ColumnSpec<'static>> {
    vec![
        typed("id", 20, "42"),
        text("aggregate_type", "order"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        payload,
        null("headers", 114),
        typed("created_at", 1184, "2024-01-02 03:04:05+00"),
        text("tenant", "a\"b"),
        typed("count", 23, "7"),
        typed("ok", 16, "t"),
        typed("ratio", 701, "NaN"),
        typed("price", 1700, "1.50"),
        typed("meta", 3802, r#"{"a": 1}"#),
        typed("raw", 17, "\\x00ff"),
        null("nothing", 3802),
    ]
}

fn value(spec: OutboxSpec, payload: ColumnSpec<'static>) -> String {
    map_with(spec, &columns(payload), |mapped| match mapped {
        Ok(mapped) => {
            let mapped = mapped.unwrap();
            let value = mapped.record().value;
            value.map_or("null".to_owned(), |value| value.escape_ascii().to_string())
        }
        Err(error) => problem(&error),
    })
}

fn spec() -> OutboxSpec {
    OutboxSpec::for_layout(Layout::Postrider)
}

#[test]
fn text_and_json_pass_byte_for_byte() {
    for payload in ["{\"a\":  1.0}", "", " null ", "not json", "{\"\\u0061\":\"\\n\"}"] {
        for oid in [25, 114, 3802, 1043, 12_345] {
            let expected = payload.as_bytes().escape_ascii().to_string();
            assert_eq!(value(spec(), ("payload", oid, -1, Some(payload))), expected);
        }
    }
}

#[test]
fn bytea_arrives_as_its_bytes() {
    assert_eq!(value(spec(), typed("payload", 17, "\\x00ff10Ab")), r"\x00\xff\x10\xab");
    assert_eq!(value(spec(), typed("payload", 17, "\\x")), "");
}

#[test]
fn bytea_in_another_format_is_poison() {
    for text in ["\\x0", "\\xzz", "abc", "\\000"] {
        let error = value(spec(), typed("payload", 17, text));
        assert!(error.ends_with("\"payload\" is not bytea in hex format"), "{text}: {error}");
    }
}

#[test]
fn null_is_what_the_configuration_says() {
    let of = |null_payload| value(OutboxSpec { null_payload, ..spec() }, null("payload", 114));
    expect!["null"].assert_eq(&of(NullPayload::Tombstone));
    expect![""].assert_eq(&of(NullPayload::Empty));
    expect![[r#"the payload is NULL"#]].assert_eq(&of(NullPayload::Park));
}

/// An object, a member a line.
fn object(spec: OutboxSpec, payload: ColumnSpec<'static>) -> String {
    value(spec, payload).replace(r#",\""#, "\n  ,\\\"")
}

fn enveloped() -> OutboxSpec {
    let mut spec = spec();
    for column in ["tenant", "count", "ok", "ratio", "price", "meta", "raw", "nothing"] {
        let placement = Placement::Envelope(column.to_uppercase());
        spec.extra.push(Extra { column: column.to_owned(), placement, may_lack: false });
    }
    spec
}

#[test]
fn placed_columns_stand_in_the_envelope_in_order() {
    expect![[r#"
        {\"payload\":{\"n\":  1}
          ,\"TENANT\":\"a\\\"b\"
          ,\"COUNT\":7
          ,\"OK\":true
          ,\"RATIO\":\"NaN\"
          ,\"PRICE\":\"1.50\"
          ,\"META\":{\"a\": 1}
          ,\"RAW\":\"AP8=\"
          ,\"NOTHING\":null}"#]]
    .assert_eq(&object(enveloped(), typed("payload", 114, r#"{"n":  1}"#)));
    let named = OutboxSpec { envelope: Some("da\"ta".to_owned()), ..enveloped() };
    expect![[r#"
        {\"da\\\"ta\":\"plain \xf0\x9f\x98\x80 \\u0001\"
          ,\"TENANT\":\"a\\\"b\"
          ,\"COUNT\":7
          ,\"OK\":true
          ,\"RATIO\":\"NaN\"
          ,\"PRICE\":\"1.50\"
          ,\"META\":{\"a\": 1}
          ,\"RAW\":\"AP8=\"
          ,\"NOTHING\":null}"#]]
    .assert_eq(&object(named, text("payload", "plain \u{1F600} \u{1}")));
    let debezium = OutboxSpec { envelope_json: false, ..enveloped() };
    expect![[r#"
        {\"payload\":\"{\\\"n\\\": 1}\"
          ,\"TENANT\":\"a\\\"b\"
          ,\"COUNT\":7
          ,\"OK\":true
          ,\"RATIO\":\"NaN\"
          ,\"PRICE\":{\"scale\":2
          ,\"value\":\"AJY=\"}
          ,\"META\":\"{\\\"a\\\": 1}\"
          ,\"RAW\":\"AP8=\"
          ,\"NOTHING\":null}"#]]
    .assert_eq(&object(debezium, typed("payload", 3802, r#"{"n": 1}"#)));
}

#[test]
fn an_envelope_may_hold_the_payload_alone() {
    let spec = OutboxSpec { envelope: Some("data".to_owned()), ..spec() };
    expect![[r#"{\"data\":\"AP8=\"}"#]].assert_eq(&object(spec, typed("payload", 17, "\\x00ff")));
}

#[test]
fn a_null_payload_is_a_tombstone_also_with_an_envelope() {
    assert_eq!(value(enveloped(), null("payload", 114)), "null");
    let empty = OutboxSpec { null_payload: NullPayload::Empty, ..enveloped() };
    expect![[r#"
        {\"payload\":null
          ,\"TENANT\":\"a\\\"b\"
          ,\"COUNT\":7
          ,\"OK\":true
          ,\"RATIO\":\"NaN\"
          ,\"PRICE\":\"1.50\"
          ,\"META\":{\"a\": 1}
          ,\"RAW\":\"AP8=\"
          ,\"NOTHING\":null}"#]]
    .assert_eq(&object(empty, null("payload", 114)));
}

#[test]
fn payload_text_that_is_json_may_stand_in_the_envelope_as_json() {
    let spec = || OutboxSpec {
        envelope: Some("payload".to_owned()),
        envelope_json: false,
        expand_json: true,
        ..spec()
    };
    for (oid, payload, expected) in [
        (25, r#"{"n":  1.50}"#, r#"{\"payload\":{\"n\":  1.50}}"#),
        (3802, r#"[{"": null}]"#, r#"{\"payload\":[{\"\": null}]}"#),
        (25, r#"{"n": 1"#, r#"{\"payload\":\"{\\\"n\\\": 1\"}"#),
        (25, "7", r#"{\"payload\":\"7\"}"#),
    ] {
        assert_eq!(object(spec(), typed("payload", oid, payload)), expected, "{payload}");
    }
}

#[test]
fn a_payload_of_white_space_may_be_a_tombstone() {
    let spec = || OutboxSpec { blank_is_tombstone: true, ..spec() };
    for (oid, payload) in [(25, ""), (25, " \t\r\n"), (1043, "  ")] {
        assert_eq!(value(spec(), typed("payload", oid, payload)), "null", "{payload:?}");
    }
    assert_eq!(value(spec(), typed("payload", 3802, "{}")), "{}");
    assert_eq!(value(spec(), typed("payload", 17, "\\x")), "");
    let kept = OutboxSpec { blank_is_tombstone: false, ..spec() };
    assert_eq!(value(kept, typed("payload", 25, " ")), " ");
}
