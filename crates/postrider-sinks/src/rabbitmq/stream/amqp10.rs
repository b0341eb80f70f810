//! How a record becomes a message of AMQP 1.0, the format that all clients of RabbitMQ read from a stream.
//!
//! A message has three sections: properties, application properties (the headers), and data (the payload).

use crate::record_batch::QueuedRecord;
use postrider_core::record::{Header, Record, Refusal};

use super::codec::{MESSAGE_OVERHEAD, PUBLISH_OVERHEAD};
use crate::rabbitmq::spec::MessageRules;

/// The event's key, behind the headers of the row: most clients keep the last header of a name.
const KEY_HEADER: &str = "key";
/// True if the event has no payload.
const NULL_HEADER: &str = "null";
/// The media type of the payload. Without this header `content_type` of the configuration is used.
const CONTENT_TYPE_HEADER: &str = "content-type";

/// The longest name of a header. Clients of AMQP 0-9-1 can't read longer ones. Unit: bytes.
const NAME_MAX: usize = 255;

/// Descriptors of the sections.
const PROPERTIES: u8 = 0x73;
const APPLICATION_PROPERTIES: u8 = 0x74;
const DATA: u8 = 0x75;

// Constructors of values.
const NULL: u8 = 0x40;
const TRUE: u8 = 0x41;
const TIMESTAMP: u8 = 0x83;
const BYTES_8: u8 = 0xA0;
const BYTES_32: u8 = 0xB0;
const STRING_8: u8 = 0xA1;
const STRING_32: u8 = 0xB1;
const SYMBOL_8: u8 = 0xA3;
const SYMBOL_32: u8 = 0xB3;
const LIST_32: u8 = 0xD0;
const MAP_32: u8 = 0xD1;

/// Bytes of a message beside its strings and headers, at most: the sections, the fields of the properties, and the
/// names of [`KEY_HEADER`] and [`NULL_HEADER`].
const BASE_BYTES: usize = 96;

/// Bytes of a value or a name beside its content, at most.
const VALUE_BYTES: usize = 5;

/// Whether a record can be published as it is. `frame_max`: the largest frame that the server takes, in bytes.
///
/// # Errors
/// Why it can't. The server closes the connection for a frame that is too large.
pub(super) fn judge(
    record: &Record<'_>,
    rules: &MessageRules,
    frame_max: usize,
) -> Result<(), Refusal> {
    if !(crate::rabbitmq::spec::NAMES.allows)(record.topic.as_bytes()) {
        return Err(Refusal::destination("the topic is no name of a stream: 1 to 255 bytes"));
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
    if record.headers.iter().any(|header| header.name.len() > NAME_MAX) {
        return Err(Refusal::content("the name of a header is longer than 255 bytes"));
    }
    let framed = bytes_max(record, rules) + PUBLISH_OVERHEAD + MESSAGE_OVERHEAD;
    if framed > frame_max {
        return Err(Refusal::too_large(framed, frame_max));
    }
    Ok(())
}

/// The bytes of a record's message, at most.
fn bytes_max(record: &Record<'_>, rules: &MessageRules) -> usize {
    let of_header = |header: &Header<'_>| {
        let value = header.value.map_or(0, <[u8]>::len);
        // These are properties too.
        let is_property = matches!(header.name, "id" | "type" | CONTENT_TYPE_HEADER);
        let again = if is_property { value + VALUE_BYTES } else { 0 };
        header.name.len() + value + 2 * VALUE_BYTES + again
    };
    let headers: usize = record.headers.iter().map(of_header).sum();
    let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
    BASE_BYTES + rules.content_type.len() + headers + bytes
}

/// Appends the message of a record.
pub(super) fn put_message(out: &mut Vec<u8>, record: &QueuedRecord<'_>, rules: &MessageRules) {
    put_section(out, PROPERTIES);
    put_compound(out, LIST_32, |out| put_properties(out, record, rules));
    put_section(out, APPLICATION_PROPERTIES);
    put_compound(out, MAP_32, |out| {
        let mut count = 0;
        for Header { name, value } in record.headers {
            put_string(out, name);
            put_value(out, value);
            count += 2;
        }
        if record.value.is_none() {
            put_string(out, NULL_HEADER);
            out.push(TRUE);
            count += 2;
        }
        if record.key.is_some() {
            put_string(out, KEY_HEADER);
            put_value(out, record.key);
            count += 2;
        }
        count
    });
    put_section(out, DATA);
    put_sized(out, (BYTES_8, BYTES_32), record.value.unwrap_or_default());
}

/// The fields of the properties, up to the last one that is used. Returns their number.
fn put_properties(out: &mut Vec<u8>, record: &QueuedRecord<'_>, rules: &MessageRules) -> u32 {
    let text = |name| std::str::from_utf8(record.headers.value_of(name)?).ok();
    let mut put_text = |value: Option<&str>| match value {
        Some(value) => put_string(out, value),
        None => out.push(NULL),
    };
    // message-id, user-id, to, subject, reply-to, correlation-id
    put_text(text("id"));
    put_text(None);
    put_text(None);
    put_text(text("type"));
    put_text(None);
    put_text(None);
    // content-type, content-encoding, absolute-expiry-time, creation-time
    let content_type = record.headers.value_of(CONTENT_TYPE_HEADER);
    // A symbol is ASCII.
    let content_type = content_type.filter(|value| value.is_ascii());
    let content_type = content_type.unwrap_or(rules.content_type.as_bytes());
    put_sized(out, (SYMBOL_8, SYMBOL_32), content_type);
    out.push(NULL);
    out.push(NULL);
    match record.timestamp_ms {
        Some(ms) => {
            out.push(TIMESTAMP);
            out.extend_from_slice(&ms.to_be_bytes());
        }
        None => out.push(NULL),
    }
    10
}

/// Begins a section.
fn put_section(out: &mut Vec<u8>, descriptor: u8) {
    out.extend_from_slice(&[0x00, 0x53, descriptor]);
}

/// Appends a list or a map, whose values `write` appends. It returns their number.
fn put_compound(out: &mut Vec<u8>, constructor: u8, write: impl FnOnce(&mut Vec<u8>) -> u32) {
    out.push(constructor);
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    let count = write(out);
    let size = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
    out[at + 4..at + 8].copy_from_slice(&count.to_be_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_sized(out, (STRING_8, STRING_32), text.as_bytes());
}

/// Appends a header's value: text as a string, other bytes as binary.
fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => out.push(NULL),
        Some(value) if std::str::from_utf8(value).is_ok() => {
            put_sized(out, (STRING_8, STRING_32), value);
        }
        Some(value) => put_sized(out, (BYTES_8, BYTES_32), value),
    }
}

/// Appends bytes with their length, by the constructor for up to 255 bytes or for more.
fn put_sized(out: &mut Vec<u8>, (short, long): (u8, u8), bytes: &[u8]) {
    if let Ok(length) = u8::try_from(bytes.len()) {
        out.extend_from_slice(&[short, length]);
    } else {
        out.push(long);
        out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    }
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_batch::RecordBatch;
    use postrider_core::record::{RefusalKind, Ticket};

    fn rules() -> MessageRules {
        MessageRules {
            exchange: String::new(),
            content_type: "text/x".to_owned(),
            message_bytes_max: 1_000,
            size_max: Some(10_000),
        }
    }

    fn record<'a>(headers: &'a [Header<'a>], value: Option<&'a [u8]>) -> Record<'a> {
        Record {
            topic: "orders",
            partition: None,
            key: Some(b"k"),
            value,
            timestamp_ms: Some(1),
            headers,
        }
    }

    fn message(record: &Record<'_>) -> Vec<u8> {
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), record);
        let mut out = Vec::new();
        put_message(&mut out, &batch.get(0), &rules());
        out
    }

    #[test]
    fn message_has_properties_headers_and_payload() {
        let headers = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "b", value: Some(b"\xff") },
            Header { name: "n", value: None },
        ];
        let mut expected = vec![0, 0x53, 0x73, 0xD0, 0, 0, 0, 31, 0, 0, 0, 10];
        expected.extend_from_slice(&[0xA1, 1, b'7', 0x40, 0x40, 0x40, 0x40, 0x40]);
        expected.extend_from_slice(b"\xA3\x06text/x\x40\x40\x83\0\0\0\0\0\0\0\x01");
        expected.extend_from_slice(&[0, 0x53, 0x74, 0xD1, 0, 0, 0, 29, 0, 0, 0, 8]);
        expected.extend_from_slice(b"\xA1\x02id\xA1\x017\xA1\x01b\xA0\x01\xff\xA1\x01n\x40");
        expected.extend_from_slice(b"\xA1\x03key\xA1\x01k");
        expected.extend_from_slice(b"\0\x53\x75\xA0\x02{}");
        assert_eq!(message(&record(&headers, Some(b"{}"))), expected);
        let null = message(&record(&[], None));
        assert!(null.ends_with(b"\xA1\x04null\x41\xA1\x03key\xA1\x01k\0\x53\x75\xA0\x00"));
    }

    #[test]
    fn bound_of_the_bytes_holds() {
        let long = vec![b'x'; 300];
        let headers = [
            Header { name: "id", value: Some(&long) },
            Header { name: "type", value: Some(&long) },
            Header { name: "h", value: Some(b"") },
        ];
        for value in [None, Some(&b""[..]), Some(&long[..])] {
            let record = record(&headers, value);
            assert!(message(&record).len() <= bytes_max(&record, &rules()));
        }
    }

    #[test]
    fn what_the_server_would_refuse_is_refused_before() {
        let refused = |record: &Record<'_>, frame_max| {
            judge(record, &rules(), frame_max).map_err(|refusal| refusal.kind)
        };
        let fine = record(&[], Some(b"x"));
        assert_eq!(refused(&fine, 1_000), Ok(()));
        assert!(matches!(refused(&fine, 100), Err(RefusalKind::TooLarge(Some(_)))));
        let nameless = Record { topic: "", ..record(&[], None) };
        assert!(matches!(refused(&nameless, 1_000), Err(RefusalKind::Destination(_))));
        let of_partition = Record { partition: Some(1), ..record(&[], None) };
        assert_eq!(refused(&of_partition, 1_000), Err(RefusalKind::Partition(1)));
        let long = "x".repeat(256);
        let headers = [Header { name: &long, value: None }];
        let refusal = refused(&record(&headers, None), 10_000);
        assert!(matches!(refusal, Err(RefusalKind::Content(_))));
    }
}
