//! What a record becomes on the wire: its headers, its identifier, and its size.

use super::spec::ChainMode;
use crate::record_batch::QueuedRecord;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use postrider_core::record::{Header, Record, Refusal};
use std::fmt::Write as _;
use std::str::FromStr as _;

/// The header with the record's key.
pub(super) const KEY: &str = "key";

/// The header of a record whose value is NULL, which an empty payload does not show.
pub(super) const NULL: &str = "null";

/// The server discards a message whose identifier it has seen within the stream's `duplicate_window`.
pub(super) const MSG_ID: &str = "Nats-Msg-Id";

const STREAM: &str = "Nats-Expected-Stream";
const LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
const LAST_OF_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence";
const LAST_MSG_ID: &str = "Nats-Expected-Last-Msg-Id";

/// The longest parts of an identifier. Longer ones are replaced by their hash.
const PREFIX_BYTES_MAX: usize = 64;
const PART_BYTES_MAX: usize = 40;

/// The longest identifier: prefix, two parts, a time, two hashes.
const MSG_ID_BYTES_MAX: usize = 220;

/// Bytes of a header line beside name and value: `: ` and the line break.
const LINE_BYTES: usize = 4;

/// `NATS/1.0` with its line break, and the empty line.
const FRAME_BYTES: usize = 12;

/// The stream, and where it ends before the message.
pub(super) struct ChainPlace<'a> {
    pub(super) stream: &'a str,
    /// The sequence of the last message, if the stream is written in a chain.
    pub(super) last_sequence: Option<u64>,
    /// That of the last message of the subject, if each subject is a chain; 0: there is none.
    pub(super) last_of_subject: Option<u64>,
    /// The identifier of the message before, if it is in flight.
    pub(super) previous: Option<&'a str>,
}

/// Refuses what can't be a header. Nothing of an event may become a line of the protocol, or an instruction to the
/// server: `Nats-Rollup: all` would delete the stream.
///
/// # Errors
/// The refusal.
pub(super) fn check(record: &Record<'_>) -> Result<(), Refusal> {
    if record.key.is_some_and(|key| !is_value(key)) {
        return Err(Refusal::content(
            "the key has a line break or is not UTF-8, and a header of NATS can't have that",
        ));
    }
    for header in record.headers {
        if !is_name(header.name) {
            return Err(Refusal::content(
                "the name of a header is empty, begins with Nats-, or has a character that is \
                 not visible ASCII, or a \":\"",
            ));
        }
        if !header.value.is_none_or(is_value) {
            return Err(Refusal::content(
                "the value of a header has a line break or a zero byte, or is not UTF-8",
            ));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let reserved = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    !name.is_empty() && !reserved && name.bytes().all(plain)
}

fn is_value(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
        && std::str::from_utf8(value).is_ok()
}

/// Bytes that the server counts against its limits: headers and payload. The sink's own headers count with their
/// greatest length.
pub(super) fn size(record: &Record<'_>, stream: &str) -> usize {
    let line = |name: &str, value: usize| name.len() + value + LINE_BYTES;
    let headers: usize = record.headers.iter().map(|header| header.size_bytes() + LINE_BYTES).sum();
    let key = record.key.map_or(0, |key| line(KEY, key.len()));
    let null = if record.value.is_none() { line(NULL, 4) } else { 0 };
    let own = line(MSG_ID, MSG_ID_BYTES_MAX)
        + line(STREAM, stream.len())
        + line(LAST_SEQUENCE, 20)
        + line(LAST_MSG_ID, MSG_ID_BYTES_MAX);
    FRAME_BYTES + headers + key + null + own + record.value.map_or(0, <[u8]>::len)
}

/// The headers of a message.
pub(super) fn headers(record: &QueuedRecord<'_>, id: &str, place: &ChainPlace<'_>) -> HeaderMap {
    let mut map = HeaderMap::new();
    if let Some(key) = record.key {
        append(&mut map, HeaderName::from_static(KEY), key);
    }
    if record.value.is_none() {
        map.append(HeaderName::from_static(NULL), HeaderValue::from("true"));
    }
    for Header { name, value } in record.headers {
        // The name was checked before the record was accepted.
        if let Ok(name) = HeaderName::from_str(name) {
            append(&mut map, name, value.unwrap_or_default());
        }
    }
    append(&mut map, HeaderName::from_static(MSG_ID), id.as_bytes());
    append(&mut map, HeaderName::from_static(STREAM), place.stream.as_bytes());
    if let Some(sequence) = place.last_sequence {
        map.append(HeaderName::from_static(LAST_SEQUENCE), HeaderValue::from(sequence));
    }
    if let Some(sequence) = place.last_of_subject {
        map.append(HeaderName::from_static(LAST_OF_SUBJECT), HeaderValue::from(sequence));
    }
    if let Some(previous) = place.previous {
        append(&mut map, HeaderName::from_static(LAST_MSG_ID), previous.as_bytes());
    }
    map
}

fn append(map: &mut HeaderMap, name: HeaderName, value: &[u8]) {
    let text = std::str::from_utf8(value).unwrap_or_default();
    map.append(name, HeaderValue::from_str(text).unwrap_or_default());
}

/// The first part of every identifier: which database, and which pipeline.
pub(super) fn id_prefix(database: &str, pipeline: &str) -> String {
    let prefix = super::subject::encoded(&format!("{database}/{pipeline}"));
    if prefix.len() <= PREFIX_BYTES_MAX {
        prefix
    } else {
        format!("{:016X}", hash(prefix.as_bytes()))
    }
}

/// Writes the identifier of a record: database, pipeline, position, the name of a replay, and hashes of topic and
/// payload.
///
/// The hash of the payload is there for a parked event that was replaced: it has the position of the event in whose
/// place it is published, and must not be taken for a repetition of it. That of the topic is there for a dead letter,
/// which has all of its event but the topic. A record without a position is identified by the event's id and time.
pub(super) fn write_id(prefix: &str, record: &QueuedRecord<'_>, out: &mut String) {
    out.clear();
    out.push_str(prefix);
    out.push('/');
    if let Some(position) = record.headers.value_of("position") {
        push_part(position, out);
    } else {
        out.push_str("id:");
        push_part(record.headers.value_of("id").unwrap_or_default(), out);
        // Writing to a string does not fail.
        write!(out, "/{}", record.timestamp_ms.unwrap_or_default()).unwrap_or_default();
    }
    if let Some(replay) = record.headers.value_of("replay") {
        out.push('/');
        push_part(replay, out);
    }
    let (topic, payload) = (hash(record.topic.as_bytes()), record.value.map_or(0, hash));
    write!(out, "/{topic:016X}{payload:016X}").unwrap_or_default();
}

fn push_part(part: &[u8], out: &mut String) {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match std::str::from_utf8(part) {
        Ok(text) if part.len() <= PART_BYTES_MAX && part.iter().all(plain) => out.push_str(text),
        _ => write!(out, "#{:016X}", hash(part)).unwrap_or_default(),
    }
}

/// FNV-1a, which is the same on every version of this program.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// What orders records that must not overtake each other, if the stream is not written in one chain: the destination,
/// and without any chain the key too.
pub(super) fn order(record: &QueuedRecord<'_>, chain: ChainMode) -> u64 {
    let topic = hash(record.topic.as_bytes());
    match chain {
        ChainMode::Subject => topic,
        ChainMode::Stream | ChainMode::None => {
            topic.rotate_left(1) ^ hash(record.key.unwrap_or_default())
        }
    }
}

/// Whether the end of the stream is part of a message.
pub(super) const fn is_chained(chain: ChainMode) -> bool {
    matches!(chain, ChainMode::Stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_batch::RecordBatch;
    use postrider_core::record::Ticket;

    const POSITION: &[u8] = b"68F1A2B3-0000000001A2B3C8-00000005";

    fn id_of(value: Option<&[u8]>, headers: &[Header<'_>]) -> String {
        let record = Record {
            topic: "orders",
            partition: None,
            key: Some(b"k"),
            value,
            timestamp_ms: Some(7),
            headers,
        };
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record);
        let mut out = String::new();
        write_id(&id_prefix("shop", "orders"), &batch.get(0), &mut out);
        assert!(out.len() <= MSG_ID_BYTES_MAX, "{out}");
        out
    }

    fn header<'a>(name: &'a str, value: &'a [u8]) -> Header<'a> {
        Header { name, value: Some(value) }
    }

    #[test]
    fn identifier_is_that_of_an_attempt_to_publish_one_payload_at_one_position() {
        let at = [header("id", b"1"), header("position", POSITION)];
        let live = id_of(Some(b"{}"), &at);
        assert_eq!(
            live, "shop/orders/68F1A2B3-0000000001A2B3C8-00000005/00125D9250BE8B4C08F44B07B5901A25",
            "the position, and never the id alone"
        );
        assert_eq!(live, id_of(Some(b"{}"), &at), "the same after a restart");
        assert_ne!(live, id_of(Some(b"{\"fixed\": 1}"), &at), "a replaced payload");
        let replayed = [at[0], at[1], header("replay", b"monday")];
        assert_ne!(live, id_of(Some(b"{}"), &replayed), "a replay");
        let polled = [header("id", b"1")];
        assert!(id_of(None, &polled).starts_with("shop/orders/id:1/7/"), "no position");
        let long = [header("id", &[b'x'; 500]), header("replay", &[b'\n'; 500])];
        assert!(!id_of(None, &long).contains(['\n', 'x']), "{}", id_of(None, &long));
    }

    #[test]
    fn what_can_not_be_a_header_is_refused() {
        let with = |name: &str, value: &[u8]| {
            let headers = [header(name, value)];
            let record = Record {
                topic: "orders",
                partition: None,
                key: None,
                value: None,
                timestamp_ms: None,
                headers: &headers,
            };
            check(&record).is_ok()
        };
        assert!(with("tenant", b"a") && with("x-y_z", "grün\t1".as_bytes()));
        for name in ["", "a b", "a:b", "a\r\nb", "größe", "Nats-Rollup", "nats-msg-id"] {
            assert!(!with(name, b"x"), "{name}");
        }
        for value in [&b"a\r\nb"[..], b"a\nb", b"a\0b", b"\xFF"] {
            assert!(!with("name", value), "{value:?}");
        }
    }

    #[test]
    fn size_is_at_least_what_is_sent() {
        let headers_in = [header("id", b"1"), header("position", POSITION)];
        let record = Record {
            topic: "orders",
            partition: None,
            key: Some(b"key"),
            value: None,
            timestamp_ms: None,
            headers: &headers_in,
        };
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record);
        let id = "x".repeat(MSG_ID_BYTES_MAX);
        let place = ChainPlace {
            stream: "EVENTS",
            last_sequence: Some(u64::MAX),
            last_of_subject: None,
            previous: Some(&id),
        };
        let map = headers(&batch.get(0), &id, &place);
        let lines = map.iter().flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| name.to_string().len() + value.as_str().len() + LINE_BYTES)
        });
        assert_eq!(size(&record, "EVENTS"), FRAME_BYTES + lines.sum::<usize>());
    }
}
