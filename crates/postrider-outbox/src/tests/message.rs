//! Events of `pg_logical_emit_message`.

use super::support::{AT, TOPICS, print};
use crate::{Extra, Layout, MapError, Mapper, OutboxSpec, Placement, Problem};
use expect_test::expect;
use postrider_core::source::Message;

fn emit(spec: OutboxSpec, transactional: bool, prefix: &str, content: &str) -> String {
    let mut mapper = Mapper::new(spec).unwrap();
    mapper.set_names(TOPICS);
    let content = content.as_bytes();
    print(mapper.message(&Message { transactional, prefix, content, is_text: true }, AT))
}

fn spec(layout: Layout) -> OutboxSpec {
    let message_prefix = Some("orders".to_owned());
    OutboxSpec { message_prefix, table: None, ..OutboxSpec::for_layout(layout) }
}

#[test]
fn a_message_is_an_event() {
    let content = r#"{"aggregate_type": "order", "aggregate_id": 42, "event_type": "Order\u0050laced",
        "payload": {"total":  9.50}, "headers": {"source": "shop"}, "more": [1]}"#;
    expect![[r#"
        event     00000000-0000000001A2B3C8-00000005 "OrderPlaced"
        aggregate order / 42
        topic     order
        key       "42"
        value     "{\"total\":  9.50}"
        timestamp 1704164645500
        header    id = "00000000-0000000001A2B3C8-00000005"
        header    type = "OrderPlaced"
        header    position = "00000000-0000000001A2B3C8-00000005"
        header    source = "shop"
    "#]]
    .assert_eq(&emit(spec(Layout::Postrider), true, "orders", content));
}

#[test]
fn it_may_bring_its_own_id_time_topic_key_and_extra_columns() {
    let content = r#"{"id": "e-1", "aggregate_type": "a", "aggregate_id": "1", "event_type": "t",
        "payload": "text", "topic": "trades", "partition_key": null, "time": "2024-01-02T03:04:05Z",
        "tenant": 7, "id": "e-2"}"#;
    let mut spec = spec(Layout::Gcx);
    let placement = Placement::Header("tenant".to_owned());
    spec.extra.push(Extra { column: "tenant".to_owned(), placement, may_lack: false });
    expect![[r#"
        event     e-2 "t"
        aggregate a / 1
        topic     trades
        key       "1"
        value     "\"text\""
        timestamp 1704164645000
        header    id = "e-2"
        header    type = "t"
        header    position = "00000000-0000000001A2B3C8-00000005"
        header    tenant = "7"
    "#]]
    .assert_eq(&emit(spec, true, "orders", content));
}

#[test]
fn other_prefixes_and_non_transactional_messages_are_not_ours() {
    for (transactional, prefix) in
        [(true, "order"), (true, "orders2"), (true, ""), (false, "orders")]
    {
        let printed = emit(spec(Layout::Postrider), transactional, prefix, "{}");
        assert_eq!(printed, "not ours\n");
    }
}

#[test]
fn what_is_not_an_event_is_poison() {
    let mut all = String::new();
    for content in [
        "not json",
        "[]",
        "{}",
        r#"{"aggregate_type": "order", "aggregate_id": null, "event_type": "t"}"#,
        r#"{"aggregate_type": "order", "aggregate_id": "1", "event_type": "t", "headers": 1}"#,
        r#"{"aggregate_type": "or der", "aggregate_id": "1", "event_type": "t"}"#,
    ] {
        all += &emit(spec(Layout::Postrider), true, "orders", content);
    }
    expect![[r#"
        error: event without id at 0/1A2B3C8:5 can't be published:
               the logical message is not a JSON object
        hint:  skip the event as docs/operations/skipping.md describes, and emit it again as a JSON object with aggregate_type, aggregate_id, event_type and payload. The skipped event is never published, and the new one comes after all events that are committed before it
        error: event without id at 0/1A2B3C8:5 can't be published:
               the logical message is not a JSON object
        hint:  skip the event as docs/operations/skipping.md describes, and emit it again as a JSON object with aggregate_type, aggregate_id, event_type and payload. The skipped event is never published, and the new one comes after all events that are committed before it
        error: event "00000000-0000000001A2B3C8-00000005" at 0/1A2B3C8:5 can't be published:
               the logical message has no "aggregate_type"
        hint:  skip the event as docs/operations/skipping.md describes, and emit it again as a JSON object with aggregate_type, aggregate_id, event_type and payload. The skipped event is never published, and the new one comes after all events that are committed before it
        error: event "00000000-0000000001A2B3C8-00000005" at 0/1A2B3C8:5 can't be published:
               the logical message has no "aggregate_id"
        hint:  skip the event as docs/operations/skipping.md describes, and emit it again as a JSON object with aggregate_type, aggregate_id, event_type and payload. The skipped event is never published, and the new one comes after all events that are committed before it
        error: event "00000000-0000000001A2B3C8-00000005" at 0/1A2B3C8:5 can't be published:
               "headers" is not a JSON object
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with a JSON object such as {"source": "shop"} in "headers". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
        error: event "00000000-0000000001A2B3C8-00000005" at 0/1A2B3C8:5 can't be published:
               its topic, from {aggregate_type}, is not a name Kafka allows
        hint:  fix route.topic and start again; or skip the event as docs/operations/skipping.md describes, and insert it again corrected (a topic has 1 to 249 of A-Z a-z 0-9 . _ -). The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
    "#]]
    .assert_eq(&all);
}

/// What the source could not read as text is kept as the source has it, also if it looks like an event.
#[test]
fn a_message_that_is_not_text_is_poison_with_its_bytes() {
    let mut mapper = Mapper::new(spec(Layout::Postrider)).unwrap();
    let content: &[u8] =
        b"{\"aggregate_type\": \"order\", \"aggregate_id\": \"1\", \"event_type\": \"caf\xe9\"}";
    let message = Message { transactional: true, prefix: "orders", content, is_text: false };
    let Err(MapError::Poison(poison)) = mapper.message(&message, AT) else { unreachable!() };
    assert_eq!((poison.problem, poison.event_id), (Problem::NotJson, None));
    assert_eq!(poison.partial.record.value.as_deref(), Some(content));
}

#[test]
fn a_message_without_payload_is_a_tombstone() {
    let content = r#"{"aggregate_type": "order", "aggregate_id": "1", "event_type": "OrderGone"}"#;
    expect![[r#"
        event     00000000-0000000001A2B3C8-00000005 "OrderGone"
        aggregate order / 1
        topic     order
        key       "1"
        value     null
        timestamp 1704164645500
        header    id = "00000000-0000000001A2B3C8-00000005"
        header    type = "OrderGone"
        header    position = "00000000-0000000001A2B3C8-00000005"
    "#]]
    .assert_eq(&emit(spec(Layout::Postrider), true, "orders", content));
}
