//! Values: byte for byte, NULL, and the envelope.

use super::support::{
    BYTEA, ColumnSpec, INT, JSON, TEXT, TIMESTAMPTZ, UNKNOWN, map_with, null, problem, text, typed,
};
use crate::{Extra, Layout, NullPayload, OutboxSpec, Placement};
use expect_test::expect;
use postrider_core::row::{Kind, ValueType};

fn columns(payload: ColumnSpec<'static>) -> Vec<ColumnSpec<'static>> {
    vec![
        typed("id", INT, "42"),
        text("aggregate_type", "order"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        payload,
        null("headers", JSON),
        typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
        text("tenant", "a\"b"),
        typed("count", INT, "7"),
        typed("ok", ValueType::of(Kind::Bool), "t"),
        typed("ratio", ValueType::of(Kind::Float8), "NaN"),
        typed("price", ValueType::of(Kind::Numeric { scale: None }), "1.50"),
        typed("meta", JSON, r#"{"a": 1}"#),
        typed("raw", BYTEA, "\\x00ff"),
        null("nothing", JSON),
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
        for of in [TEXT, JSON, UNKNOWN] {
            let expected = payload.as_bytes().escape_ascii().to_string();
            assert_eq!(value(spec(), ("payload", of, Some(payload))), expected);
        }
    }
}

#[test]
fn bytea_arrives_as_its_bytes() {
    assert_eq!(value(spec(), typed("payload", BYTEA, "\\x00ff10Ab")), r"\x00\xff\x10\xab");
    assert_eq!(value(spec(), typed("payload", BYTEA, "\\x")), "");
}

#[test]
fn bytea_in_another_format_is_poison() {
    for text in ["\\x0", "\\xzz", "abc", "\\000"] {
        let error = value(spec(), typed("payload", BYTEA, text));
        assert!(error.ends_with("\"payload\" is not bytea in hex format"), "{text}: {error}");
    }
}

#[test]
fn null_is_what_the_configuration_says() {
    let of = |null_payload| value(OutboxSpec { null_payload, ..spec() }, null("payload", JSON));
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
    .assert_eq(&object(enveloped(), typed("payload", JSON, r#"{"n":  1}"#)));
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
    .assert_eq(&object(debezium, typed("payload", JSON, r#"{"n": 1}"#)));
}

#[test]
fn an_envelope_may_hold_the_payload_alone() {
    let spec = OutboxSpec { envelope: Some("data".to_owned()), ..spec() };
    expect![[r#"{\"data\":\"AP8=\"}"#]]
        .assert_eq(&object(spec, typed("payload", BYTEA, "\\x00ff")));
}

#[test]
fn a_null_payload_is_a_tombstone_also_with_an_envelope() {
    assert_eq!(value(enveloped(), null("payload", JSON)), "null");
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
    .assert_eq(&object(empty, null("payload", JSON)));
}

#[test]
fn payload_text_that_is_json_may_stand_in_the_envelope_as_json() {
    let spec = || OutboxSpec {
        envelope: Some("payload".to_owned()),
        envelope_json: false,
        expand_json: true,
        ..spec()
    };
    for (of, payload, expected) in [
        (TEXT, r#"{"n":  1.50}"#, r#"{\"payload\":{\"n\":  1.50}}"#),
        (JSON, r#"[{"": null}]"#, r#"{\"payload\":[{\"\": null}]}"#),
        (TEXT, r#"{"n": 1"#, r#"{\"payload\":\"{\\\"n\\\": 1\"}"#),
        (TEXT, "7", r#"{\"payload\":\"7\"}"#),
    ] {
        assert_eq!(object(spec(), typed("payload", of, payload)), expected, "{payload}");
    }
}

#[test]
fn a_payload_of_white_space_may_be_a_tombstone() {
    let spec = || OutboxSpec { blank_is_tombstone: true, ..spec() };
    for payload in ["", " \t\r\n", "  "] {
        assert_eq!(value(spec(), typed("payload", TEXT, payload)), "null", "{payload:?}");
    }
    assert_eq!(value(spec(), typed("payload", JSON, "{}")), "{}");
    assert_eq!(value(spec(), typed("payload", BYTEA, "\\x")), "");
    let kept = OutboxSpec { blank_is_tombstone: false, ..spec() };
    assert_eq!(value(kept, typed("payload", TEXT, " ")), " ");
}
