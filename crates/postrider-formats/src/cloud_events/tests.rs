use super::*;
use postrider_core::record::Header;

fn header_of<'a>(name: &'a str, value: &'a str) -> Header<'a> {
    Header { name, value: Some(value.as_bytes()) }
}

/// What becomes of a record with these headers: the payload, and the headers as `name: value`.
fn made(
    mode: CloudEventsMode,
    content_type: &str,
    binding: CloudEventsBinding,
    (value, headers): (Option<&[u8]>, &[(&str, &str)]),
) -> Result<(Option<Vec<u8>>, Vec<String>), NotReady> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| header_of(name, value)).collect();
    let record = Record {
        topic: "orders",
        partition: None,
        key: Some(b"7"),
        value,
        timestamp_ms: Some(1_700_000_000_250),
        headers: &headers,
    };
    let mut draft = Draft::default();
    CloudEvents::new(mode, content_type, binding).apply(&record, &mut draft, None)?;
    Ok(draft.lend(&record, |record| {
        let text =
            |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        let lines = record.headers.iter().map(|h| format!("{}: {}", h.name, text(h.value)));
        (record.value.map(<[u8]>::to_vec), lines.collect())
    }))
}

const KAFKA: CloudEventsBinding = CloudEventsBinding { prefix: "ce_", percent: false };
const NATS: CloudEventsBinding = CloudEventsBinding { prefix: "ce-", percent: true };
const JSON: &str = "application/json";
const HEADERS: [(&str, &str); 5] = [
    ("id", "a-1"),
    ("position", "00000001-0000000001A2B3C8-00000005"),
    ("ce_source", "/shop"),
    ("ce_type", "Placed"),
    ("ce_subject", "Größe \"7\""),
];

#[test]
fn binary_mode_leaves_the_payload_and_adds_the_attributes() {
    let payload = Some(&b"{\"n\": 1.10}"[..]);
    let (value, headers) = made(CloudEventsMode::Binary, JSON, KAFKA, (payload, &HEADERS)).unwrap();
    assert_eq!(value.as_deref(), payload);
    assert_eq!(
        headers[5..],
        [
            "ce_specversion: 1.0",
            "ce_id: a-1",
            "ce_time: 2023-11-14T22:13:20.250Z",
            "ce_position: 00000001-0000000001A2B3C8-00000005",
            "content-type: application/json",
        ]
    );
    // A tombstone has no content.
    let (value, headers) = made(CloudEventsMode::Binary, JSON, KAFKA, (None, &HEADERS)).unwrap();
    assert!(value.is_none() && !headers.iter().any(|line| line.starts_with("content-type")));
}

#[test]
fn values_are_encoded_where_the_binding_demands_it() {
    let headers = HEADERS.map(|(name, value)| (name.to_owned().replace('_', "-"), value));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let (_, lines) = made(CloudEventsMode::Binary, JSON, NATS, (Some(b"{}"), &headers)).unwrap();
    assert_eq!(lines[4], "ce-subject: Gr%C3%B6%C3%9Fe%20%227%22");
}

#[test]
fn structured_mode_has_all_in_one_document_and_the_payload_as_it_was_written() {
    let payload = Some(&b"{\"n\": 1.10, \"big\": 12345678901234567890123}"[..]);
    let (value, headers) =
        made(CloudEventsMode::Structured, JSON, KAFKA, (payload, &HEADERS)).unwrap();
    assert_eq!(
        String::from_utf8(value.unwrap()).unwrap(),
        "{\"specversion\":\"1.0\",\"id\":\"a-1\",\"source\":\"/shop\",\"type\":\"Placed\",\
         \"subject\":\"Größe \\\"7\\\"\",\"time\":\"2023-11-14T22:13:20.250Z\",\
         \"position\":\"00000001-0000000001A2B3C8-00000005\",\"datacontenttype\":\"application/json\",\
         \"data\":{\"n\": 1.10, \"big\": 12345678901234567890123}}"
    );
    assert!(headers.contains(&format!("content-type: {STRUCTURED}")));
    let made = |kind, value| made(CloudEventsMode::Structured, kind, KAFKA, (value, &HEADERS));
    let document = |kind, value| String::from_utf8(made(kind, Some(value)).unwrap().0.unwrap());
    assert!(
        document("text/plain", b"a\n\"b\"").unwrap().ends_with("\"data\":\"a\\u000a\\\"b\\\"\"}")
    );
    assert!(
        document("application/avro", b"\x00\xFF").unwrap().ends_with("\"data_base64\":\"AP8=\"}")
    );
    assert!(document("application/x+json; a=b", b"[1]").unwrap().ends_with("\"data\":[1]}"));
    for broken in [&b"{"[..], b"", b"\xFF", b"1 2"] {
        assert!(matches!(made(JSON, Some(broken)), Err(NotReady::Refused(_))), "{broken:?}");
    }
    // A tombstone deletes the key in a compacted topic: it stays one.
    assert!(made(JSON, None).unwrap().0.is_none());
}

#[test]
fn event_without_a_required_attribute_is_refused() {
    for lacking in ["id", "ce_source", "ce_type"] {
        let headers: Vec<_> = HEADERS.into_iter().filter(|(name, _)| *name != lacking).collect();
        let made = made(CloudEventsMode::Binary, JSON, KAFKA, (Some(b"{}"), &headers));
        assert!(matches!(made, Err(NotReady::Refused(_))), "{lacking}");
    }
}

/// An application may copy the headers of the event that it has read.
#[test]
fn headers_that_were_copied_from_another_event_are_replaced() {
    let copied = [("ce_id", "other"), ("ce_specversion", "0.3"), ("content-type", "text/plain")];
    let headers: Vec<_> = HEADERS.into_iter().chain(copied).collect();
    let made = |mode| made(mode, JSON, KAFKA, (Some(b"{}"), &headers)).unwrap();
    let (_, binary) = made(CloudEventsMode::Binary);
    let of = |lines: &[String], name: &str| -> Vec<String> {
        lines.iter().filter(|line| line.starts_with(name)).cloned().collect()
    };
    assert_eq!(of(&binary, "ce_id"), ["ce_id: a-1"]);
    assert_eq!(of(&binary, "ce_specversion"), ["ce_specversion: 1.0"]);
    let (_, structured) = made(CloudEventsMode::Structured);
    assert_eq!(of(&structured, "ce_"), Vec::<String>::new());
    assert_eq!(of(&structured, "content-type"), [format!("content-type: {STRUCTURED}")]);
}

#[test]
fn dead_letter_of_which_no_event_can_be_made_passes_as_it_is() {
    let dead = crate::step::DEAD_LETTER.map(|name| (name, "x"));
    let headers: Vec<_> = HEADERS.into_iter().chain(dead).collect();
    let made = |payload: &[u8]| {
        made(CloudEventsMode::Structured, JSON, KAFKA, (Some(payload), &headers)).unwrap()
    };
    let (value, lines) = made(b"no JSON");
    assert_eq!(value.as_deref(), Some(&b"no JSON"[..]));
    assert_eq!(lines.len(), headers.len());
    assert!(made(b"{}").0.unwrap().starts_with(b"{\"specversion\""));
}
