//! What becomes of records: of Postrider, of other producers, and of hostile ones.

use super::*;

type Header<'a> = (&'a [u8], Option<&'a [u8]>);

const EVENT: &[Header<'static>] = &[
    (b"id", Some(b"7")),
    (b"type", Some(b"OrderPlaced")),
    (b"position", Some(b"68F1A2B3-0000000001A2B3C8-00000005")),
    (b"source", Some(b"shop")),
];

fn record<'a>(headers: &'a [Header<'a>]) -> KafkaRecord<'a> {
    KafkaRecord {
        cluster: "C",
        topic: "order",
        topic_id: Some("ID"),
        leader_epoch: Some(2),
        partition: 3,
        offset: 17,
        timestamp_ms: Some(1_000),
        key: Some(b"42"),
        value: Some(b"{\"n\": 1}"),
        headers,
    }
}

fn message(headers: &[Header<'_>]) -> Message {
    MessageRules::default().message(&record(headers), &Requirements::default())
}

fn id(message: &Message) -> Option<&str> {
    match &message.remembered {
        Some(Remembered::Id(id)) => Some(id),
        Some(Remembered::Position { .. }) | None => None,
    }
}

#[test]
fn an_event_of_postrider_is_known_by_source_history_and_id() {
    let message = message(EVENT);
    assert_eq!(message.event_id, "shop/68F1A2B3/7");
    assert_eq!(id(&message), Some("68F1A2B3/7"));
    assert_eq!(message.event_type.as_deref(), Some("OrderPlaced"));
    assert_eq!(message.source, "shop");
    assert_eq!(message.aggregate_id.as_deref(), Some("order/42"));
    assert!(message.body == Body::Json("{\"n\": 1}".to_owned()));
    assert_eq!(message.dead, None);
    let headers: Value = serde_json::from_str(&message.headers).unwrap();
    assert_eq!(headers["position"], "68F1A2B3-0000000001A2B3C8-00000005");
    assert_eq!((&headers["kafka.topic"], &headers["kafka.offset"]), (&"order".into(), &17.into()));
    assert_eq!(headers.get("kafka.key"), None, "the aggregate shows it");
}

#[test]
fn a_record_of_a_repair_has_the_same_key_as_its_twin_of_the_stream() {
    let headers: &[Header<'_>] =
        &[(b"id", Some(b"7")), (b"history", Some(b"68F1A2B3")), (b"source", Some(b"shop"))];
    let (repaired, streamed) = (message(headers), message(EVENT));
    assert_eq!(repaired.event_id, streamed.event_id);
    assert_eq!(id(&repaired), id(&streamed));
}

#[test]
fn positions_are_compared_only_if_that_is_configured_and_there_is_an_aggregate() {
    let rules = MessageRules { positions: true, ..MessageRules::default() };
    let message = rules.message(&record(EVENT), &Requirements::default());
    let Some(Remembered::Position { aggregate, id: event, position }) = &message.remembered else {
        panic!("no position");
    };
    assert_eq!((aggregate.as_str(), event.as_str()), ("order/42", "7"));
    assert_eq!(position, "68F1A2B3-0000000001A2B3C8-00000005");
    let without_key = KafkaRecord { key: None, ..record(EVENT) };
    let message = rules.message(&without_key, &Requirements::default());
    assert_eq!(id(&message), Some("68F1A2B3/7"));
}

/// The header `id` of another producer may be anything, such as the id of a customer: two records with one id are two
/// messages, unless the configuration says that the header is an id of messages.
#[test]
fn other_records_are_known_by_their_place_unless_a_header_is_configured() {
    let headers: &[Header<'_>] = &[(b"id", Some(b"7"))];
    let plain = message(headers);
    assert_eq!((plain.event_id.as_str(), id(&plain)), ("order@ID/3/2/17", None));
    let rules = MessageRules { id_header: Some("id".to_owned()), ..MessageRules::default() };
    let known = rules.message(&record(headers), &Requirements::default());
    assert_eq!(known.event_id, "order//7");
    assert_eq!(id(&known), Some("/7"));
    let without = rules.message(&record(&[]), &Requirements::default());
    assert_eq!((without.event_id.as_str(), id(&without)), ("order@ID/3/2/17", None));
    // A header `position` of another producer is no position.
    for position in [&b"5"[..], b"68f1a2b3-0000000001a2b3c8-00000005", b"\xff"] {
        let headers: &[Header<'_>] = &[(b"id", Some(b"7")), (b"position", Some(position))];
        assert_eq!(message(headers).event_id, "order@ID/3/2/17");
    }
}

#[test]
fn keys_that_differ_are_different_aggregates() {
    let long = vec![b'x'; 2000];
    let mut longer = long.clone();
    longer.push(b'x');
    let encoded = STANDARD.encode(b"\xff");
    let keys: [&[u8]; 7] = [b"42", b"", b"\xff", encoded.as_bytes(), b"4\x002", &long, &longer];
    let aggregate = |key| {
        let record = KafkaRecord { key: Some(key), ..record(&[]) };
        let message = MessageRules::default().message(&record, &Requirements::default());
        let aggregate = message.aggregate_id.unwrap();
        assert!(aggregate.len() <= 1000 && !aggregate.contains('\0'), "{aggregate}");
        let headers: Value = serde_json::from_str(&message.headers).unwrap();
        let shows = headers.get("kafka.key").is_some();
        assert_eq!(shows, !aggregate.starts_with("order/"), "{aggregate}");
        aggregate
    };
    let all: std::collections::BTreeSet<String> = keys.into_iter().map(aggregate).collect();
    assert_eq!(all.len(), keys.len(), "{all:?}");
}

#[test]
fn headers_become_a_json_object_that_jsonb_can_store() {
    let headers: &[Header<'_>] = &[
        (b"a", Some(b"1")),
        (b"a", Some(b"2")),
        (b"null", None),
        (b"bytes", Some(b"\xff")),
        (b"zero", Some(b"a\0b")),
        (b"kafka.topic", Some(b"mine")),
        (b"\xff", Some(b"x")),
    ];
    let message = message(headers);
    let json: Value = serde_json::from_str(&message.headers).unwrap();
    assert_eq!(json["a"], serde_json::json!(["1", "2"]));
    assert_eq!(json["null"], Value::Null);
    assert_eq!(json["bytes"]["base64"], "/w==");
    assert_eq!(json["zero"]["base64"], "YQBi");
    assert_eq!(
        (&json["kafka.topic"], &json["record.kafka.topic"]),
        (&"order".into(), &"mine".into())
    );
    assert_eq!(json["base64:/w=="], "x");
    assert!(!message.headers.contains("\\u0000"));
}

#[test]
fn a_record_that_lacks_what_the_inbox_needs_is_a_dead_message_with_the_reason() {
    let arrival = Requirements { aggregate: true, ..Requirements::default() };
    let by_number = Requirements { first_sequence: Some(1), ..arrival.clone() };
    let keyless = KafkaRecord { key: None, ..record(&[]) };
    let rules = MessageRules { sequence_header: Some("seq".to_owned()), ..MessageRules::default() };
    let dead = rules.message(&keyless, &arrival);
    assert_eq!(dead.dead.as_deref(), Some("the record has no key, and the inbox has an order"));
    assert_eq!(
        dead.aggregate_id.as_deref(),
        Some("//order@ID/3/2/17"),
        "it holds back no other message"
    );
    let dead = rules.message(&record(&[]), &by_number);
    assert_eq!(dead.dead.as_deref(), Some("the record has no header \"seq\""));
    assert_eq!((dead.sequence_num, dead.aggregate_id.as_deref()), (Some(1), Some("order/42")));
    let numbered: &[Header<'_>] = &[(b"seq", Some(b"12"))];
    let fine = rules.message(&record(numbered), &by_number);
    assert_eq!((fine.sequence_num, fine.dead), (Some(12), None));
    let wrong: &[Header<'_>] = &[(b"seq", Some(b"twelve"))];
    let dead = rules.message(&record(wrong), &by_number);
    assert_eq!(dead.dead.as_deref(), Some("header \"seq\" is no number that the inbox can store"));
}

#[test]
fn headers_that_can_not_be_columns_make_a_dead_message_and_keep_the_content() {
    let long = vec![b's'; 201];
    let long_id = vec![b'i'; 1000];
    let long_type = vec![b't'; 1001];
    let cases: [&[Header<'_>]; 6] = [
        &[(b"type", Some(&long_type))],
        &[(b"source", Some(&long))],
        &[(b"source", Some(b"\xff"))],
        &[(b"type", Some(b"a\0"))],
        &[(b"id", Some(&long_id)), (b"history", Some(b"68F1A2B3"))],
        &[(b"id", Some(b"")), (b"history", Some(b"68F1A2B3"))],
    ];
    for headers in cases {
        let dead = message(headers);
        assert!(dead.dead.is_some(), "{headers:?}");
        assert_eq!((dead.event_id.as_str(), dead.source.as_str()), ("order@ID/3/2/17", "order"));
        assert!(dead.body == Body::Json("{\"n\": 1}".to_owned()));
        assert_eq!(dead.aggregate_id.as_deref(), Some("order/42"));
    }
    // An empty source is no source.
    assert_eq!(message(&[(b"source", Some(b""))]).source, "order");
}

#[test]
fn priorities_and_traces_come_from_headers() {
    let needs = Requirements { default_priority: Some(5), ..Requirements::default() };
    let rules = MessageRules { priority_header: Some("p".to_owned()), ..MessageRules::default() };
    let trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers: &[Header<'_>] = &[(b"p", Some(b"-3")), (b"traceparent", Some(trace))];
    let first = rules.message(&record(headers), &needs);
    assert_eq!(first.priority, Some(-3));
    assert_eq!(first.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
    let other: &[Header<'_>] = &[(b"trace_id", Some(b"t-1")), (b"traceparent", Some(b"t"))];
    let second = rules.message(&record(other), &needs);
    assert_eq!((second.priority, second.trace_id.as_deref()), (Some(5), Some("t-1")));
    let wrong: &[Header<'_>] = &[(b"p", Some(b"70000"))];
    assert!(rules.message(&record(wrong), &needs).dead.is_some());
}

#[test]
fn absent_values_and_other_bytes_stay_what_they_are() {
    let of = |value| {
        let record = KafkaRecord { value, ..record(&[]) };
        MessageRules::default().message(&record, &Requirements::default()).body
    };
    assert!(of(None) == Body::Absent);
    assert!(of(Some(b"")) == Body::Bytes(Vec::new()));
    assert!(of(Some(b"\xff\x00")) == Body::Bytes(vec![0xff, 0]));
}
