//! What a record becomes: the headers and the body of a request.

use super::spec::HttpSpec;
use super::target::push_encoded;
use crate::record_batch::QueuedRecord;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use postrider_core::record::{Header, Record, Refusal, Ticket};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The key of the event.
const KEY: &str = "key";

/// The beginning of the names of a CloudEvent's attributes.
const CLOUD_EVENTS: &str = "ce-";

/// Bytes of the part of an id that comes from an event without a position; a longer one is a hash.
const PART_BYTES_MAX: usize = 120;

/// Names that are the connection's, the request's or the login's.
const RESERVED: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "authorization",
    "connection",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "key",
    "max-forwards",
    "origin",
    "range",
    "referer",
    "set-cookie",
    "signature",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-http-method-override",
    "x-real-ip",
];

/// Beginnings of such names.
const RESERVED_FAMILIES: &[&str] =
    &["access-control-", "content-", "if-", "proxy-", "sec-", "webhook-", "x-forwarded-"];

/// Whether events may have a header of this name, in lower case.
fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || RESERVED_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Whether the record can be sent as it is.
///
/// # Errors
/// Why not.
pub(super) fn check(
    spec: &HttpSpec,
    record: &Record<'_>,
    known: &mut KnownNames,
) -> Result<(), Refusal> {
    if let Some(limit) = spec.size_max
        && record.size_bytes() > limit
    {
        return Err(Refusal::too_large(record.size_bytes(), limit));
    }
    let has = |name: &str| {
        record.headers.iter().any(|header| header.name == name && header.value.is_some())
    };
    if !has("position") && !has("id") {
        return Err(Refusal::content(
            "the event has neither a position nor an id, so its receiver could not recognise a repetition",
        ));
    }
    if spec.limits.batch > 1 {
        return check_json(record);
    }
    for header in record.headers {
        if !known.0.iter().any(|name| name == header.name) {
            check_name(spec, header)?;
            known.add(header.name);
        }
    }
    Ok(())
}

/// Names of headers that were found good. Most events have the same ones.
#[derive(Debug, Default)]
pub(super) struct KnownNames(Vec<String>);

impl KnownNames {
    const MAX: usize = 32;

    fn add(&mut self, name: &str) {
        if self.0.len() < Self::MAX {
            self.0.push(name.to_owned());
        }
    }
}

fn check_json(record: &Record<'_>) -> Result<(), Refusal> {
    // As text: values that are ignored are not checked for UTF-8.
    let is_json = |value: &[u8]| {
        std::str::from_utf8(value)
            .is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
    };
    if record.value.is_none_or(is_json) {
        return Ok(());
    }
    Err(Refusal::content("the payload is no JSON, and sink.http.batch sends arrays of JSON"))
}

fn check_name(spec: &HttpSpec, header: &Header<'_>) -> Result<(), Refusal> {
    let name = format!("{}{}", spec.header_prefix, header.name).to_ascii_lowercase();
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(Refusal::content("a header of the event has a name that HTTP does not allow"));
    }
    if is_reserved(&name) && name != CONTENT_TYPE.as_str() {
        return Err(Refusal::content(
            "a header of the event has a name that HTTP or the sink uses: set sink.http.header_prefix",
        ));
    }
    Ok(())
}

/// A record, ready to be sent: one allocation, from which requests borrow.
pub(super) struct WebhookEvent {
    pub(super) ticket: Ticket,
    /// A retry of a parked event.
    pub(super) again: bool,
    /// The id, a line break, headers as `name:value` with a line break behind each, and the body.
    bytes: Bytes,
    id: usize,
    body: usize,
}

impl WebhookEvent {
    pub(super) fn of(spec: &HttpSpec, record: &QueuedRecord<'_>) -> Self {
        let message_id = message_id(&spec.identity, record);
        let id = message_id.len();
        let mut head = message_id.clone();
        head.push('\n');
        let body = if spec.limits.batch > 1 {
            let element = json_element(&message_id, record);
            let body = head.len();
            head.push_str(&element);
            body
        } else {
            write_headers(&mut head, spec, record);
            head.len()
        };
        let mut bytes = head.into_bytes();
        if spec.limits.batch == 1 {
            bytes.extend_from_slice(record.value.unwrap_or_default());
        }
        Self { ticket: record.ticket, again: record.is_retry, bytes: bytes.into(), id, body }
    }

    /// `webhook-id`.
    pub(super) fn id(&self) -> &str {
        self.bytes.get(..self.id).and_then(|id| std::str::from_utf8(id).ok()).unwrap_or_default()
    }

    /// The payload, or an element of the array of a batch.
    pub(super) fn body(&self) -> Bytes {
        self.bytes.slice(self.body..)
    }

    /// The event's own headers. Without one for the type of the content it is `content_type`.
    pub(super) fn headers(&self, content_type: &HeaderValue) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.clone());
        let mut at = self.id + 1;
        while let Some(length) =
            self.bytes.get(at..self.body).and_then(|rest| rest.iter().position(|b| *b == b'\n'))
        {
            let line = self.bytes.slice(at..at + length);
            at += length + 1;
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let name = line.get(..colon).map(HeaderName::from_bytes);
            let value = HeaderValue::from_maybe_shared(line.slice(colon + 1..));
            let (Some(Ok(name)), Ok(value)) = (name, value) else { continue };
            if name == CONTENT_TYPE {
                headers.insert(name, value);
            } else {
                headers.append(name, value);
            }
        }
        headers
    }
}

/// The id by which the receiver recognises a repetition: database, pipeline and position, and the name of a replay. An
/// event without a position has its id and its time instead. Characters that headers or signatures give a meaning are
/// encoded.
fn message_id(identity: &str, record: &QueuedRecord<'_>) -> String {
    let mut id = identity.to_owned();
    let headers = record.headers;
    if let Some(position) = headers.value_of("position") {
        id.push(':');
        push_part(&mut id, position);
    } else {
        id.push_str(":id:");
        push_part(&mut id, headers.value_of("id").unwrap_or_default());
        id.push(':');
        push_part(&mut id, record.timestamp_ms.unwrap_or_default().to_string().as_bytes());
    }
    if let Some(replay) = headers.value_of("replay") {
        id.push_str(":replay:");
        push_part(&mut id, replay);
    }
    id
}

/// Adds a part of an id, encoded; a long one as a hash.
pub(super) fn push_part(id: &mut String, part: &[u8]) {
    if part.len() > PART_BYTES_MAX {
        id.push_str("sha256-");
        URL_SAFE_NO_PAD.encode_string(Sha256::digest(part), id);
        return;
    }
    for byte in part {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            id.push(char::from(*byte));
        } else {
            push_encoded(id, *byte);
        }
    }
}

fn write_headers(head: &mut String, spec: &HttpSpec, record: &QueuedRecord<'_>) {
    let mut write = |name: &str, value: &[u8]| {
        head.push_str(&spec.header_prefix);
        head.push_str(name);
        head.push(':');
        push_value(head, value, name.starts_with(CLOUD_EVENTS));
        head.push('\n');
    };
    if let Some(key) = record.key {
        write(KEY, key);
    }
    for header in record.headers {
        // HTTP has no null values.
        if let Some(value) = header.value {
            write(header.name, value);
        }
    }
}

/// Adds the value of a header: percent signs, control characters, everything beyond ASCII, and spaces at its ends are
/// percent-encoded, so that every value arrives, and none becomes another header. In attributes of a CloudEvent
/// (`is_attribute`) all spaces and quotation marks are encoded, too, by its binding to HTTP.
fn push_value(text: &mut String, value: &[u8], is_attribute: bool) {
    let last = value.len().saturating_sub(1);
    for (at, &byte) in value.iter().enumerate() {
        let encodes_space = at == 0 || at == last || is_attribute;
        if byte == b'%'
            || !(0x20..0x7f).contains(&byte)
            || (byte == b' ' && encodes_space)
            || (byte == b'"' && is_attribute)
        {
            push_encoded(text, byte);
        } else {
            text.push(char::from(byte));
        }
    }
}

/// An event in the array of a batch.
fn json_element(id: &str, record: &QueuedRecord<'_>) -> String {
    let text = |bytes: &[u8]| Value::String(String::from_utf8_lossy(bytes).into_owned());
    let mut headers = Map::new();
    for header in record.headers {
        let value = header.value.map_or(Value::Null, text);
        headers.entry(header.name).or_insert(value);
    }
    let payload = record.value.and_then(|value| std::str::from_utf8(value).ok());
    format!(
        "{{\"id\":{},\"key\":{},\"headers\":{},\"payload\":{}}}",
        Value::from(id),
        record.key.map_or(Value::Null, text),
        Value::Object(headers),
        payload.unwrap_or("null")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::tests::spec;
    use crate::record_batch::RecordBatch;

    fn check(spec: &HttpSpec, record: &Record<'_>) -> Result<(), Refusal> {
        super::check(spec, record, &mut KnownNames::default())
    }

    fn event(spec: &HttpSpec, record: &Record<'_>) -> WebhookEvent {
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), record);
        WebhookEvent::of(spec, &batch.get(0))
    }

    /// It would stand in the array as null.
    #[test]
    fn payload_that_is_no_utf_8_is_no_json() {
        let record = Record { value: Some(b"{\"n\": \"M\xFCller\"}"), ..record(&[]) };
        assert!(check_json(&record).is_err());
        assert!(
            check_json(&Record { value: Some("{\"n\": \"Müller\"}".as_bytes()), ..record }).is_ok()
        );
    }

    fn record<'a>(headers: &'a [Header<'a>]) -> Record<'a> {
        Record {
            topic: "orders",
            partition: None,
            key: Some("ключ".as_bytes()),
            value: Some(b"{\"a\": \"\n:\"}"),
            timestamp_ms: Some(7),
            headers,
        }
    }

    fn header<'a>(name: &'a str, value: &'a str) -> Header<'a> {
        Header { name, value: Some(value.as_bytes()) }
    }

    const JSON: HeaderValue = HeaderValue::from_static("application/json");

    #[test]
    fn request_has_the_payload_as_it_is_and_the_headers_encoded() {
        let headers = [
            header("id", "1"),
            header("position", "00000001-0000000001A2B3C8-00000005"),
            header("Tenant", "a b"),
            header("tenant", " 100%\r\nInjected: yes\u{1}é "),
            Header { name: "none", value: None },
            header("empty", ""),
        ];
        let event = event(&spec(""), &record(&headers));
        assert_eq!(event.body(), &b"{\"a\": \"\n:\"}"[..]);
        assert_eq!(event.id(), "shop:p:00000001-0000000001A2B3C8-00000005");
        let map = event.headers(&JSON);
        let all =
            |name: &str| map.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(all("key"), ["%D0%BA%D0%BB%D1%8E%D1%87"]);
        assert_eq!(all("tenant"), ["a b", "%20100%25%0D%0AInjected: yes%01%C3%A9%20"]);
        assert_eq!((all("empty"), all("content-type")), (vec![""], vec!["application/json"]));
        assert_eq!(map.len(), 7);
    }

    #[test]
    fn event_chooses_its_content_type_and_the_prefix_is_of_all_its_headers() {
        let headers = [header("id", "1"), header("Content-Type", "text/plain")];
        let plain = event(&spec(""), &record(&headers)).headers(&JSON);
        assert_eq!(plain["content-type"], "text/plain");
        let prefixed = spec("header_prefix = \"x-event-\"\n");
        assert_eq!(check(&prefixed, &record(&headers)), Ok(()));
        let map = event(&prefixed, &record(&headers)).headers(&JSON);
        assert_eq!(
            (&map["content-type"], &map["x-event-content-type"]),
            (&JSON, &HeaderValue::from_static("text/plain"))
        );
        assert_eq!(map["x-event-id"], "1");
        assert!(map.contains_key("x-event-key"));
    }

    #[test]
    fn names_of_the_connection_the_request_and_the_login_are_refused() {
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "connection",
            "webhook-id",
            "Authorization",
            "key",
            "X-Forwarded-For",
            "idempotency-key",
            "",
            "a b",
            "a:b",
            "na\r\nInjected: yes",
            "ümlaut",
            "content-encoding",
        ] {
            let headers = [header("id", "1"), header(name, "v")];
            assert!(check(&spec(""), &record(&headers)).is_err(), "{name:?}");
        }
        for name in ["traceparent", "type", "x-tenant", "content-type", "a.b"] {
            let headers = [header("id", "1"), header(name, "v")];
            assert_eq!(check(&spec(""), &record(&headers)), Ok(()), "{name:?}");
        }
        // What would break a prefix's own header does not.
        let headers = [header("id", "1"), header("host", "v")];
        assert_eq!(check(&spec("header_prefix = \"x-\"\n"), &record(&headers)), Ok(()));
    }

    #[test]
    fn ids_name_database_pipeline_and_position_or_id_and_time() {
        let id = |headers: &[Header<'_>]| event(&spec(""), &record(headers)).id().to_owned();
        assert_eq!(id(&[header("id", "a.b c")]), "shop:p:id:a%2Eb%20c:7");
        assert_eq!(
            id(&[header("id", "1"), header("position", "1-2-3"), header("replay", "r.1")]),
            "shop:p:1-2-3:replay:r%2E1"
        );
        let long = "x".repeat(121);
        let hashed = id(&[header("id", &long)]);
        assert!(hashed.starts_with("shop:p:id:sha256-") && hashed.len() < 80, "{hashed}");
        assert!(check(&spec(""), &record(&[])).is_err());
    }

    #[test]
    fn batch_has_elements_with_all_parts() {
        let spec = spec("batch = 10\n");
        let headers =
            [header("id", "1"), header("a b", "\"ö\""), Header { name: "n", value: None }];
        let event = event(&spec, &record(&headers));
        let element: Value = serde_json::from_slice(&event.body()).unwrap_or_default();
        let broken = Record { value: Some(b"{"), ..record(&headers) };
        assert!(check(&spec, &broken).is_err());
        // A line break in a string is no JSON, and such a payload is refused.
        assert_eq!((element, check(&spec, &record(&headers)).is_err()), (Value::Null, true));
        let good = Record { value: Some(b"{\"a\": 1.50}"), ..record(&headers) };
        let body = super::tests::event(&spec, &good).body();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            "{\"id\":\"shop:p:id:1:7\",\"key\":\"ключ\",\
             \"headers\":{\"id\":\"1\",\"a b\":\"\\\"ö\\\"\",\"n\":null},\"payload\":{\"a\": 1.50}}"
        );
    }
}
