//! Tests of the open transaction: what is stored of a record, and what is refused.

use super::*;
use expect_test::expect;

const VALUE: LogFacts = LogFacts { partitions: 16, kind: LogKind::Value };

fn header<'a>(name: &'a str, value: &'a str) -> Header<'a> {
    Header { name, value: Some(value.as_bytes()) }
}

fn record<'a>(headers: &'a [Header<'a>]) -> Record<'a> {
    Record {
        topic: "orders",
        partition: None,
        key: Some(b"42"),
        value: Some(b"{}"),
        timestamp_ms: Some(946_684_800_001),
        headers,
    }
}

fn batch(facts: LogFacts) -> Batch {
    let mut batch = Batch::default();
    assert!(!batch.selects("orders"));
    batch.add("orders", facts);
    assert!(batch.selects("orders"));
    batch
}

/// The elements of each column; `None` is NULL.
fn columns(batch: &Batch) -> Vec<Vec<Option<Vec<u8>>>> {
    let read = |column: &Column| {
        let (mut rest, mut values) = (column.body.as_slice(), Vec::new());
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = i32::from_be_bytes(*length);
            let taken = usize::try_from(length).ok();
            values.push(taken.map(|length| after[..length].to_vec()));
            rest = &after[taken.unwrap_or(0)..];
        }
        values
    };
    batch.logs().flat_map(|log| log.columns.iter().map(read)).collect()
}

fn text_of(value: Option<&[u8]>) -> String {
    match value {
        Some(bytes) if bytes.iter().all(|byte| (32..127).contains(byte)) => {
            String::from_utf8(bytes.to_vec()).unwrap()
        }
        Some(bytes) => format!("{bytes:02x?}"),
        None => "NULL".to_owned(),
    }
}

fn shown(batch: &Batch) -> String {
    let columns = columns(batch);
    let line = |values: &Vec<Option<Vec<u8>>>| {
        values.iter().map(|value| text_of(value.as_deref())).collect::<Vec<_>>().join(" | ")
    };
    columns.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_record_becomes_columns() {
    let headers = [
        header("id", "7"),
        header("type", "OrderPlaced"),
        header("position", "00000001-0000000001A2B3C8-00000005"),
        header("source", "shop"),
        Header { name: "none", value: None },
        header("tag", "a\"b"),
        header("tag", "c"),
        header(AGGREGATE_TYPE, "order"),
        header(AGGREGATE_ID, "42"),
    ];
    let mut batch = batch(VALUE);
    batch.push(&record(&headers), None).unwrap();
    expect![[r#"
        [00, 08]
        [00, 00, 00, 00, 00, 00, 00, 01]
        [00, 00, 00, 00, 01, a2, b3, c8]
        [00, 00, 00, 00, 00, 00, 00, 05]
        [00, 00, 00, 00, 00, 00, 03, e8]
        7
        OrderPlaced
        order
        42
        {}
        {"source":"shop","none":null,"tag":["a\"b","c"]}"#]]
    .assert_eq(&shown(&batch));
}

#[test]
fn an_event_without_aggregate_key_and_payload_goes_by_its_id() {
    let headers = [
        header("id", "order-1"),
        header("history", "68F1A2B3"),
        Header { name: AGGREGATE_TYPE, value: None },
        Header { name: AGGREGATE_ID, value: None },
    ];
    let mut batch = batch(VALUE);
    let record = Record { key: None, value: None, timestamp_ms: None, ..record(&headers) };
    batch.push(&record, None).unwrap();
    expect![[r#"
        [00, 09]
        [00, 00, 00, 00, 68, f1, a2, b3]
        NULL
        NULL
        NULL
        order-1
        NULL
        NULL
        NULL
        NULL
        NULL"#]]
    .assert_eq(&shown(&batch));
}

#[test]
fn a_log_by_reference_has_neither_payload_nor_headers() {
    let headers = [header("id", "7"), header("source", "shop")];
    let mut batch = batch(LogFacts { kind: LogKind::Reference, ..VALUE });
    // What is not stored need not be storable.
    let record = Record { value: Some(b"\xff"), ..record(&headers) };
    batch.push(&record, None).unwrap();
    let columns = columns(&batch);
    assert_eq!(columns[5], [Some(b"7".to_vec())]);
    assert_eq!(columns[9..], [vec![None], vec![None]]);
}

#[test]
fn what_postgresql_could_refuse_is_refused_before_and_leaves_nothing() {
    let ok = [header("id", "7")];
    let plain = record(&ok);
    let zero_name = [header("a\0", "b")];
    let zero_value = [header("a", "b\0")];
    let bad_value = [Header { name: "a", value: Some(b"\xff") }];
    let bad_place = [header("position", "0/1")];
    for (record, refusal) in [
        (Record { value: Some(b"\xff"), ..plain }, NOT_UTF8),
        (Record { value: Some(b"a\0"), ..plain }, HAS_ZERO),
        (Record { key: Some(b"\xff"), ..plain }, NOT_UTF8),
        (Record { headers: &zero_name, ..plain }, HAS_ZERO),
        (Record { headers: &zero_value, ..plain }, HAS_ZERO),
        (Record { headers: &bad_value, ..plain }, NOT_UTF8),
        (Record { headers: &bad_place, ..plain }, NO_SUCH_POSITION),
        (Record { timestamp_ms: Some(i64::MAX), ..plain }, NO_SUCH_TIME),
        (Record { timestamp_ms: Some(-300_000_000_000_000), ..plain }, NO_SUCH_TIME),
        (Record { partition: Some(16), ..plain }, Refusal::partition(16)),
        (Record { partition: Some(-1), ..plain }, Refusal::partition(-1)),
    ] {
        let mut batch = batch(VALUE);
        assert_eq!(batch.push(&record, None), Err(refusal));
        assert!(batch.is_empty() && batch.logs().next().is_none());
    }
    let mut batch = batch(VALUE);
    let size = plain.size_bytes();
    assert_eq!(batch.push(&plain, Some(size - 1)), Err(Refusal::too_large(size, size - 1)));
    assert_eq!(batch.push(&plain, Some(size)), Ok(()));
    let record = Record { partition: Some(15), ..plain };
    assert_eq!(batch.push(&record, None), Ok(()));
    assert_eq!(batch.logs().next().unwrap().parts().collect::<Vec<_>>(), [8, 15]);
}

#[test]
fn headers_of_one_name_are_an_array_however_many_there_are() {
    let names: Vec<String> = (0..=HEADERS_COMPARED).map(|number| format!("h{number}")).collect();
    let mut headers: Vec<_> = names.iter().map(|name| header(name, "v")).collect();
    headers.push(header("h3", "w"));
    let mut batch = batch(VALUE);
    batch.push(&record(&headers), None).unwrap();
    let json = columns(&batch).pop().unwrap().remove(0).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["h3"], serde_json::json!(["v", "w"]));
    assert_eq!(json["h4"], "v");
    assert_eq!(json.as_object().unwrap().len(), HEADERS_COMPARED + 1);
}

#[test]
fn an_array_has_the_elements_of_all_logs_and_is_empty_without_a_value() {
    let headers = [header("id", "7")];
    let mut batch = batch(VALUE);
    batch.push(&record(&headers), None).unwrap();
    batch.add("unused", VALUE);
    batch.add("others", VALUE);
    batch.push(&record(&headers), None).unwrap();
    assert_eq!(batch.logs().map(|log| &*log.name).collect::<Vec<_>>(), ["orders", "others"]);
    let sent = |at: usize| {
        let mut out = BytesMut::new();
        let (array, of) = batch.columns().remove(at);
        array.to_sql(&of, &mut out).unwrap();
        out.to_vec()
    };
    // One dimension, no NULL, type text, two elements from 1.
    let mut wanted = vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1];
    wanted.extend([0, 0, 0, 1, b'7', 0, 0, 0, 1, b'7']);
    assert_eq!(sent(5), wanted);
    assert_eq!(sent(6), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 25]);
    batch.clear();
    assert!(batch.is_empty() && batch.selects("others") && batch.logs().next().is_none());
}
