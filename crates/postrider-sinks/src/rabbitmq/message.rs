//! How a record becomes a message: its properties and headers, and what makes a record no message.

use super::codec::{
    CLASS_BASIC, FRAME_BODY, FRAME_HEADER, FRAME_OVERHEAD, SHORT_MAX, field_bytes, put_counted,
    put_field, put_frame, put_method, put_number, put_short, put_true,
};
use super::spec::MessageRules;
use crate::record_batch::QueuedRecord;
use postrider_core::record::{Header, Record, Refusal};

/// The event's key, behind the headers of the row: most clients keep the last header of a name.
pub(super) const KEY_HEADER: &str = "key";
/// True if the event has no payload.
const NULL_HEADER: &str = "null";
/// The media type of the payload. Without this header `content_type` of the configuration is used.
pub(super) const CONTENT_TYPE_HEADER: &str = "content-type";
/// The timestamp in milliseconds; the property of the same meaning has seconds. RabbitMQ's own name for it.
const TIME_HEADER: &str = "timestamp_in_ms";

const APP_ID: &[u8] = b"postrider";

/// Properties: content type, headers, delivery mode, application.
const FLAGS: u16 = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 3;
const FLAG_MESSAGE_ID: u16 = 1 << 7;
const FLAG_TIMESTAMP: u16 = 1 << 6;
const FLAG_TYPE: u16 = 1 << 5;

/// Messages are written to disk.
const PERSISTENT: u8 = 2;

/// Bytes of a content header beside strings and headers, at most: class, body size, flags, length of the table,
/// delivery mode, timestamp, lengths of four strings, [`APP_ID`], [`TIME_HEADER`] and [`NULL_HEADER`].
const HEADER_BASE: usize = 96;

/// Whether a record can be published as it is.
///
/// # Errors
/// Why it can't. A message that RabbitMQ refuses closes the channel, with everything that is not confirmed on it.
pub(super) fn judge(
    record: &Record<'_>,
    rules: &MessageRules,
    frame_max: usize,
) -> Result<(), Refusal> {
    if !(super::spec::NAMES.allows)(record.topic.as_bytes()) {
        let words = "the topic is no routing key: 1 to 255 bytes";
        return Err(Refusal::destination(words));
    }
    if let Some(number) = record.partition {
        return Err(Refusal::partition(number));
    }
    let size = record.size_bytes();
    if let Some(limit) = rules.size_max.filter(|limit| size > *limit) {
        return Err(Refusal::too_large(size, limit));
    }
    let body = record.value.map_or(0, <[u8]>::len);
    if body > rules.message_bytes_max {
        return Err(Refusal::too_large(body, rules.message_bytes_max));
    }
    for Header { name, value } in record.headers {
        if name.len() > SHORT_MAX {
            return Err(Refusal::content("the name of a header is longer than 255 bytes"));
        }
        if matches!(*name, "CC" | "BCC") {
            let words =
                "a header is named CC or BCC, in which RabbitMQ expects further routing keys";
            return Err(Refusal::content(words));
        }
        if *name == "id" && value.is_some_and(|id| id.len() > SHORT_MAX) {
            let words = "the event's id is longer than 255 bytes, and can't be a message-id";
            return Err(Refusal::content(words));
        }
    }
    if header_bytes(record, rules) + FRAME_OVERHEAD > frame_max {
        return Err(frame_refusal());
    }
    Ok(())
}

/// The refusal of a record whose headers do not fit into one frame.
pub(super) fn frame_refusal() -> Refusal {
    Refusal::content("the key and the headers are larger than a frame of RabbitMQ (frame_max)")
}

/// The bytes of the content header of a record, at most.
fn header_bytes(record: &Record<'_>, rules: &MessageRules) -> usize {
    let headers: usize = record
        .headers
        .iter()
        .map(|header| {
            let value = header.value.map_or(0, <[u8]>::len);
            // These are properties too.
            let is_property = matches!(header.name, "id" | "type" | CONTENT_TYPE_HEADER);
            let again = if is_property { value.min(SHORT_MAX) } else { 0 };
            field_bytes(header.name.len(), value) + again
        })
        .sum();
    let key = record.key.map_or(0, |key| field_bytes(KEY_HEADER.len(), key.len()));
    HEADER_BASE + rules.content_type.len() + headers + key
}

/// Appends the frames of a message. False: its headers are larger than a frame, and nothing is appended. [`judge`]
/// refuses such a record, but a later connection may have smaller frames.
pub(super) fn put_message(
    out: &mut Vec<u8>,
    channel: u16,
    record: &QueuedRecord<'_>,
    rules: &MessageRules,
    frame_max: usize,
) -> bool {
    let start = out.len();
    put_method(out, channel, (CLASS_BASIC, 40), |out| {
        out.extend_from_slice(&[0; 2]);
        put_short(out, rules.exchange.as_bytes());
        put_short(out, record.topic.as_bytes());
        // Mandatory: a message that no queue gets is returned.
        out.push(1);
    });
    let body = record.value.unwrap_or_default();
    let header = out.len();
    put_frame(out, FRAME_HEADER, channel, |out| {
        out.extend_from_slice(&CLASS_BASIC.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        put_properties(out, record, rules);
    });
    if out.len() - header > frame_max {
        out.truncate(start);
        return false;
    }
    for part in body.chunks(frame_max.saturating_sub(FRAME_OVERHEAD).max(1)) {
        put_frame(out, FRAME_BODY, channel, |out| out.extend_from_slice(part));
    }
    true
}

fn put_properties(out: &mut Vec<u8>, record: &QueuedRecord<'_>, rules: &MessageRules) {
    let short = |name| record.headers.value_of(name).filter(|value| value.len() <= SHORT_MAX);
    let is_text = |value: &&[u8]| std::str::from_utf8(value).is_ok();
    let (id, kind) = (short("id").filter(is_text), short("type").filter(is_text));
    let content_type = short(CONTENT_TYPE_HEADER).filter(is_text);
    // The property has no negative seconds; the header has them.
    let seconds = record.timestamp_ms.and_then(|ms| u64::try_from(ms.div_euclid(1_000)).ok());
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    let flags = FLAGS
        | flag(id.is_some(), FLAG_MESSAGE_ID)
        | flag(seconds.is_some(), FLAG_TIMESTAMP)
        | flag(kind.is_some(), FLAG_TYPE);
    out.extend_from_slice(&flags.to_be_bytes());
    put_short(out, content_type.unwrap_or(rules.content_type.as_bytes()));
    put_counted(out, |out| {
        for Header { name, value } in record.headers {
            put_field(out, name, value);
        }
        if let Some(ms) = record.timestamp_ms {
            put_number(out, TIME_HEADER, ms);
        }
        if record.value.is_none() {
            put_true(out, NULL_HEADER);
        }
        if let Some(key) = record.key {
            put_field(out, KEY_HEADER, Some(key));
        }
    });
    out.push(PERSISTENT);
    if let Some(id) = id {
        put_short(out, id);
    }
    if let Some(seconds) = seconds {
        out.extend_from_slice(&seconds.to_be_bytes());
    }
    if let Some(kind) = kind {
        put_short(out, kind);
    }
    put_short(out, APP_ID);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rabbitmq::codec::{Frame, read_frame};
    use crate::record_batch::RecordBatch;
    use postrider_core::record::{RefusalKind, Ticket};

    fn rules() -> MessageRules {
        MessageRules {
            exchange: "events".to_owned(),
            content_type: "application/json".to_owned(),
            message_bytes_max: 1_000,
            size_max: Some(10_000),
        }
    }

    fn record<'a>(headers: &'a [Header<'a>], value: &'a [u8]) -> Record<'a> {
        Record {
            topic: "orders",
            partition: None,
            key: Some(b"k"),
            value: Some(value),
            timestamp_ms: Some(1_700_000_000_123),
            headers,
        }
    }

    #[test]
    fn message_is_what_a_client_reads_back() {
        let headers = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "type", value: Some(b"Placed") },
            Header { name: "position", value: Some(b"1-2-3") },
            Header { name: "bytes", value: Some(b"\xff") },
            Header { name: "none", value: None },
        ];
        let body = vec![b'x'; 2_500];
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record(&headers, &body));
        let mut out = Vec::new();
        assert!(put_message(&mut out, 1, &batch.get(0), &rules(), 1_008));
        let mut rest = out.as_slice();
        let (mut bodies, mut properties, mut header_length) = (Vec::new(), None, 0);
        while let Some((_, frame, length)) = read_frame(rest).unwrap() {
            match frame {
                Frame::Body(part) => bodies.push(part.len()),
                Frame::Header(found, _) => (properties, header_length) = (Some(found), length),
                Frame::Method(_) | Frame::Heartbeat => {}
            }
            rest = &rest[length..];
        }
        let properties = properties.unwrap();
        assert_eq!(bodies, [1_000, 1_000, 500], "no frame is larger than frame_max");
        assert_eq!(properties.body_size, 2_500);
        assert_eq!(properties.message_id.as_deref(), Some(&b"7"[..]));
        assert_eq!(properties.position.as_deref(), Some(&b"1-2-3"[..]));
        assert_eq!(properties.key.as_deref(), Some(&b"k"[..]));
        let computed = header_bytes(&record(&headers, &body), &rules()) + FRAME_OVERHEAD;
        assert!(header_length <= computed, "{header_length} bytes, computed {computed}");
    }

    #[test]
    fn message_whose_headers_are_larger_than_a_frame_is_not_written() {
        let headers = [Header { name: "wide", value: Some(&[b'x'; 5_000]) }];
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record(&headers, b"1"));
        let mut out = b"before".to_vec();
        assert!(!put_message(&mut out, 1, &batch.get(0), &rules(), 5_000));
        assert_eq!(out, b"before");
        assert!(put_message(&mut out, 1, &batch.get(0), &rules(), 6_000));
    }

    #[test]
    fn records_that_would_close_the_channel_are_refused_before() {
        let refused = |headers: &[Header<'_>], value: &[u8]| {
            judge(&record(headers, value), &rules(), 5_000).map_err(|refusal| refusal.kind)
        };
        assert_eq!(refused(&[], &[0; 1_000]), Ok(()));
        assert!(matches!(refused(&[], &[0; 1_001]), Err(RefusalKind::TooLarge(Some(_)))));
        let long = "x".repeat(256);
        for header in [
            Header { name: "CC", value: Some(b"other") },
            Header { name: "BCC", value: None },
            Header { name: &long, value: None },
            Header { name: "id", value: Some(long.as_bytes()) },
            Header { name: "big", value: Some(&[b'x'; 5_000]) },
        ] {
            let found = refused(&[header], b"");
            assert!(matches!(found, Err(RefusalKind::Content(_))), "{}: {found:?}", header.name);
        }
        let mut named = record(&[], b"");
        for (name, allowed) in [("", false), (" ", true), (long.as_str(), false)] {
            named.topic = name;
            assert_eq!(judge(&named, &rules(), 5_000).is_ok(), allowed, "{name:?}");
        }
    }
}
