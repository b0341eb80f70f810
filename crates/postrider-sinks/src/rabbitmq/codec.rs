//! The part of AMQP 0-9-1 that is needed: frames, methods and tables, without a socket.
//!
//! Field and method numbers are those of the specification, with RabbitMQ's extensions (confirms, `connection.blocked`)
//! and RabbitMQ's reading of field types.

use serde_json::Value;

/// The first bytes of a connection.
pub(super) const PROTOCOL_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Bytes of a frame beside its payload.
pub(super) const FRAME_OVERHEAD: usize = 8;

/// The largest short string, such as a routing key. Unit: bytes.
pub(super) const SHORT_MAX: usize = 255;

pub(super) const FRAME_METHOD: u8 = 1;
pub(super) const FRAME_HEADER: u8 = 2;
pub(super) const FRAME_BODY: u8 = 3;
const FRAME_HEARTBEAT: u8 = 8;
const FRAME_END: u8 = 0xCE;

/// The class of messages, in methods and in content headers.
pub(super) const CLASS_BASIC: u16 = 60;

// What is written.

/// Appends a frame with the payload that `write` appends.
pub(super) fn put_frame(
    out: &mut Vec<u8>,
    kind: u8,
    channel: u16,
    write: impl FnOnce(&mut Vec<u8>),
) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    put_counted(out, write);
    out.push(FRAME_END);
}

/// Appends a method with the arguments that `write` appends.
pub(super) fn put_method(
    out: &mut Vec<u8>,
    channel: u16,
    (class, method): (u16, u16),
    write: impl FnOnce(&mut Vec<u8>),
) {
    put_frame(out, FRAME_METHOD, channel, |out| {
        out.extend_from_slice(&class.to_be_bytes());
        out.extend_from_slice(&method.to_be_bytes());
        write(out);
    });
}

pub(super) fn put_heartbeat(out: &mut Vec<u8>) {
    put_frame(out, FRAME_HEARTBEAT, 0, |_| ());
}

/// Appends what `write` appends, with its length before it.
pub(super) fn put_counted(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    // Frames, strings and tables are bounded far below 4 GiB before they are written.
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a short string. What is longer than [`SHORT_MAX`] is refused before.
pub(super) fn put_short(out: &mut Vec<u8>, text: &[u8]) {
    let text = text.get(..SHORT_MAX).unwrap_or(text);
    out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(text);
}

pub(super) fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    put_counted(out, |out| out.extend_from_slice(bytes));
}

/// Appends a field of a table: text as a string, other bytes as a byte array, `None` as no value.
pub(super) fn put_field(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    put_short(out, name.as_bytes());
    let Some(value) = value else { return out.push(b'V') };
    out.push(if std::str::from_utf8(value).is_ok() { b'S' } else { b'x' });
    put_long(out, value);
}

pub(super) fn put_true(out: &mut Vec<u8>, name: &str) {
    put_short(out, name.as_bytes());
    out.extend_from_slice(b"t\x01");
}

pub(super) fn put_number(out: &mut Vec<u8>, name: &str, value: i64) {
    put_short(out, name.as_bytes());
    out.push(b'l');
    out.extend_from_slice(&value.to_be_bytes());
}

/// The bytes of a field with a value of so many bytes, at most.
pub(super) const fn field_bytes(name: usize, value: usize) -> usize {
    1 + name + 1 + 4 + value
}

// What is read.

/// Why a server has closed the connection or a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerClose {
    pub(super) code: u16,
    pub(super) text: String,
}

/// A method of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Start {
        product: String,
        version: String,
        mechanisms: String,
    },
    Tune {
        channel_max: u16,
        frame_max: u32,
    },
    ConnectionClose(ServerClose),
    ConnectionCloseOk,
    Blocked(String),
    Unblocked,
    ChannelClose(ServerClose),
    Return {
        routing_key: Vec<u8>,
    },
    Deliver(DeliveredTo),
    /// The server has ended a consumer: its queue was deleted, or its leader has changed.
    Cancel,
    /// A queue exists.
    DeclareOk(QueueCounts),
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
    },
    /// Any other one, such as the answer that a request was carried out.
    Other(u16, u16),
}

impl Method {
    /// The number of an answer; `None` of a method that is none.
    pub(super) const fn answer(&self) -> Option<(u16, u16)> {
        match self {
            Self::Other(class, number) => Some((*class, *number)),
            Self::DeclareOk(_) => Some(QUEUE_DECLARE_OK),
            Self::Start { .. }
            | Self::Tune { .. }
            | Self::ConnectionClose(_)
            | Self::ConnectionCloseOk
            | Self::Blocked(_)
            | Self::Unblocked
            | Self::ChannelClose(_)
            | Self::Return { .. }
            | Self::Deliver(_)
            | Self::Cancel
            | Self::Ack { .. }
            | Self::Nack { .. } => None,
        }
    }
}

/// What a delivery says beside its message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DeliveredTo {
    pub(super) tag: u64,
    pub(super) exchange: Vec<u8>,
    pub(super) routing_key: Vec<u8>,
}

/// What a queue has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct QueueCounts {
    /// Messages that are not delivered.
    pub(super) messages: u32,
    pub(super) consumers: u32,
}

/// The numbers of the answers that are waited for.
pub(super) const CONNECTION_OPEN_OK: (u16, u16) = (10, 41);
pub(super) const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
pub(super) const EXCHANGE_DECLARE_OK: (u16, u16) = (40, 11);
pub(super) const QUEUE_DECLARE_OK: (u16, u16) = (50, 11);
pub(super) const QUEUE_BIND_OK: (u16, u16) = (50, 21);
pub(super) const QUEUE_DELETE_OK: (u16, u16) = (50, 41);
pub(super) const CONFIRM_SELECT_OK: (u16, u16) = (85, 11);
pub(super) const QOS_OK: (u16, u16) = (60, 11);
pub(super) const CONSUME_OK: (u16, u16) = (60, 21);

/// What a returned message says about itself, beside its body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ReturnedProperties {
    pub(super) body_size: u64,
    pub(super) message_id: Option<Vec<u8>>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) position: Option<Vec<u8>>,
}

/// The header of a delivered message whose headers can't be read from there on.
const UNREADABLE: &str = "unreadable_headers";

/// Properties by their names.
pub(super) const MESSAGE_ID: &str = "message_id";
pub(super) const TYPE: &str = "type";

/// Tables in tables at most.
const DEPTH_MAX: usize = 8;

/// What a delivered message says about itself.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct DeliveredProperties {
    /// Properties that are texts.
    pub(super) texts: Vec<(&'static str, String)>,
    /// Unit: seconds since 1970.
    pub(super) timestamp: Option<u64>,
    pub(super) headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// A frame of the server.
#[derive(Debug)]
pub(super) enum Frame<'a> {
    Method(Method),
    /// What a returned message says about itself, and the whole payload of the frame.
    Header(ReturnedProperties, &'a [u8]),
    Body(&'a [u8]),
    Heartbeat,
}

/// What the server sent is not AMQP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotAmqp;

/// The first frame in `bytes`, with its channel and its length; `None` if it is not complete yet.
pub(super) fn read_frame(bytes: &[u8]) -> Result<Option<(u16, Frame<'_>, usize)>, NotAmqp> {
    let Some((head, rest)) = bytes.split_at_checked(7) else { return Ok(None) };
    if head.starts_with(b"AMQP") {
        // The server's answer to a client of another protocol.
        return Err(NotAmqp);
    }
    let mut fields = Fields(head);
    let (Some(kind), Some(channel), Some(length)) = (fields.u8(), fields.u16(), fields.u32())
    else {
        return Err(NotAmqp);
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > FRAME_PAYLOAD_MAX {
        return Err(NotAmqp);
    }
    let Some((payload, end)) = rest.split_at_checked(length) else { return Ok(None) };
    let Some(end) = end.first() else { return Ok(None) };
    if *end != FRAME_END {
        return Err(NotAmqp);
    }
    let frame = match kind {
        FRAME_METHOD => Frame::Method(read_method(payload).ok_or(NotAmqp)?),
        FRAME_HEADER => Frame::Header(read_properties(payload).ok_or(NotAmqp)?, payload),
        FRAME_BODY => Frame::Body(payload),
        FRAME_HEARTBEAT => Frame::Heartbeat,
        _ => return Err(NotAmqp),
    };
    Ok(Some((channel, frame, length + FRAME_OVERHEAD)))
}

/// No frame is larger than what is negotiated, and no more than this is negotiated.
pub(super) const FRAME_PAYLOAD_MAX: usize = 131_072;

fn read_method(payload: &[u8]) -> Option<Method> {
    let mut fields = Fields(payload);
    let number = (fields.u16()?, fields.u16()?);
    Some(match number {
        (10, 10) => {
            fields.take(2)?;
            let properties = fields.table()?;
            let text = |name| find_text(properties, name).unwrap_or_default();
            let (product, version) = (text("product"), text("version"));
            let mechanisms = String::from_utf8_lossy(fields.long()?).into_owned();
            Method::Start { product, version, mechanisms }
        }
        (10, 30) => Method::Tune { channel_max: fields.u16()?, frame_max: fields.u32()? },
        (10, 50) => Method::ConnectionClose(read_close(&mut fields)?),
        (10, 51) => Method::ConnectionCloseOk,
        (10, 60) => Method::Blocked(fields.text()?),
        (10, 61) => Method::Unblocked,
        (20, 40) => Method::ChannelClose(read_close(&mut fields)?),
        (60, 50) => {
            fields.u16()?;
            fields.short()?;
            fields.short()?;
            Method::Return { routing_key: fields.short()?.to_vec() }
        }
        (50, 11) => {
            fields.short()?;
            Method::DeclareOk(QueueCounts { messages: fields.u32()?, consumers: fields.u32()? })
        }
        (60, 30) => Method::Cancel,
        (60, 60) => {
            fields.short()?;
            let tag = fields.u64()?;
            fields.u8()?;
            let (exchange, routing_key) = (fields.short()?.to_vec(), fields.short()?.to_vec());
            Method::Deliver(DeliveredTo { tag, exchange, routing_key })
        }
        (60, 80) => Method::Ack { tag: fields.u64()?, multiple: fields.u8()? & 1 == 1 },
        (60, 120) => Method::Nack { tag: fields.u64()?, multiple: fields.u8()? & 1 == 1 },
        (class, method) => Method::Other(class, method),
    })
}

fn read_close(fields: &mut Fields<'_>) -> Option<ServerClose> {
    Some(ServerClose { code: fields.u16()?, text: fields.text()? })
}

fn read_properties(payload: &[u8]) -> Option<ReturnedProperties> {
    let mut fields = Fields(payload);
    fields.take(4)?;
    let mut found =
        ReturnedProperties { body_size: fields.u64()?, ..ReturnedProperties::default() };
    let flags = fields.u16()?;
    let has = |bit: u16| flags & (1 << bit) != 0;
    for bit in [15, 14] {
        if has(bit) {
            fields.short()?;
        }
    }
    if has(13) {
        let table = fields.table()?;
        found.key = find(table, "key");
        found.position = find(table, "position");
    }
    for bit in [12, 11] {
        if has(bit) {
            fields.u8()?;
        }
    }
    for bit in [10, 9, 8] {
        if has(bit) {
            fields.short()?;
        }
    }
    if has(7) {
        found.message_id = Some(fields.short()?.to_vec());
    }
    Some(found)
}

/// The properties of a delivered message. What can't be read of its headers stands in one with the bytes.
pub(super) fn read_delivered(payload: &[u8]) -> Option<DeliveredProperties> {
    let mut fields = Fields(payload);
    fields.take(4)?;
    fields.u64()?;
    let flags = fields.u16()?;
    let has = |bit: u16| flags & (1 << bit) != 0;
    let mut found = DeliveredProperties::default();
    for (bit, name) in [(15, "content_type"), (14, "content_encoding")] {
        if has(bit) {
            found.texts.push((name, fields.text()?));
        }
    }
    if has(13) {
        found.headers = headers(fields.table()?);
    }
    for bit in [12, 11] {
        if has(bit) {
            fields.u8()?;
        }
    }
    for (bit, name) in [
        (10, "correlation_id"),
        (9, "reply_to"),
        (8, "expiration"),
        (7, MESSAGE_ID),
        (6, ""),
        (5, TYPE),
        (4, "user_id"),
        (3, "app_id"),
    ] {
        if bit == 6 && has(bit) {
            found.timestamp = Some(fields.u64()?);
        } else if has(bit) {
            found.texts.push((name, fields.text()?));
        }
    }
    Some(found)
}

/// Name and value of each header.
fn headers(table: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let (mut fields, mut all) = (Fields(table), Vec::new());
    while !fields.0.is_empty() {
        let rest = fields.0;
        let field = fields.short().and_then(|name| Some((name.to_vec(), fields.plain()?)));
        let Some(field) = field else {
            all.push((UNREADABLE.as_bytes().to_vec(), Some(rest.to_vec())));
            break;
        };
        all.push(field);
    }
    all
}

/// The last field of this name: a key of the event stands behind the headers of its row.
fn find(table: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut fields = Fields(table);
    let mut found = None;
    while let Some(field) = fields.short() {
        let value = fields.value()?;
        if field == name.as_bytes() {
            found = value.map(<[u8]>::to_vec);
        }
    }
    found
}

fn find_text(table: &[u8], name: &str) -> Option<String> {
    find(table, name).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// The fields of a payload that are not read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    fn text(&mut self) -> Option<String> {
        self.short().map(|text| String::from_utf8_lossy(text).into_owned())
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn table(&mut self) -> Option<&'a [u8]> {
        self.long()
    }

    /// A value of a table: the bytes of a string, `None` of any other type. The outer `None`: no such type.
    #[expect(clippy::option_option, reason = "the end of the bytes, and a value that is no string")]
    fn value(&mut self) -> Option<Option<&'a [u8]>> {
        let fixed = match self.u8()? {
            b'S' | b'x' => return self.long().map(Some),
            b'A' | b'F' => return self.long().map(|_| None),
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'l' | b'L' | b'd' | b'T' => 8,
            _ => return None,
        };
        self.take(fixed).map(|_| None)
    }

    /// A value of a table as bytes: a string as it is, no value as `None`, others as texts, arrays and tables as JSON.
    /// The outer `None`: no such type.
    #[expect(clippy::option_option, reason = "the end of the bytes, and a value that is none")]
    fn plain(&mut self) -> Option<Option<Vec<u8>>> {
        match self.0.first()? {
            b'S' | b'x' => self.value().map(|bytes| bytes.map(<[u8]>::to_vec)),
            _ => {
                let value = self.json(0)?;
                Some((!value.is_null()).then(|| value.to_string().into_bytes()))
            }
        }
    }

    fn json(&mut self, depth: usize) -> Option<Value> {
        let kind = self.u8()?;
        Some(match kind {
            b'V' => Value::Null,
            b't' => (self.u8()? != 0).into(),
            b'b' => i8::from_be_bytes(self.array()?).into(),
            b'B' => self.u8()?.into(),
            b's' => i16::from_be_bytes(self.array()?).into(),
            b'u' => self.u16()?.into(),
            b'I' => i32::from_be_bytes(self.array()?).into(),
            b'i' => self.u32()?.into(),
            b'l' | b'L' => i64::from_be_bytes(self.array()?).into(),
            b'T' => self.u64()?.into(),
            b'f' => f32::from_be_bytes(self.array()?).into(),
            b'd' => f64::from_be_bytes(self.array()?).into(),
            b'D' => {
                let scale = self.u8()?;
                format!("{}e-{scale}", i32::from_be_bytes(self.array()?)).into()
            }
            b'S' | b'x' => String::from_utf8_lossy(self.long()?).into(),
            b'A' if depth < DEPTH_MAX => {
                let (mut inner, mut all) = (Fields(self.long()?), Vec::new());
                while !inner.0.is_empty() {
                    all.push(inner.json(depth + 1)?);
                }
                Value::Array(all)
            }
            b'F' if depth < DEPTH_MAX => {
                let (mut inner, mut all) = (Fields(self.long()?), serde_json::Map::new());
                while !inner.0.is_empty() {
                    let name = inner.text()?;
                    let value = inner.json(depth + 1)?;
                    all.insert(name, value);
                }
                Value::Object(all)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_read_once_it_is_complete() {
        let mut bytes = Vec::new();
        put_method(&mut bytes, 1, (60, 80), |out| {
            out.extend_from_slice(&7_u64.to_be_bytes());
            out.push(1);
        });
        for end in 0..bytes.len() {
            assert!(read_frame(&bytes[..end]).unwrap().is_none(), "{end} bytes");
        }
        bytes.extend_from_slice(b"more");
        let (channel, frame, length) = read_frame(&bytes).unwrap().unwrap();
        assert_eq!((channel, length), (1, bytes.len() - 4));
        assert!(matches!(frame, Frame::Method(Method::Ack { tag: 7, multiple: true })));
    }

    #[test]
    fn other_protocols_are_refused() {
        for bytes in [&b"AMQP\x00\x00\x09\x01"[..], b"HTTP/1.1 400 Bad", &[1, 0, 0, 9, 9, 9, 9]] {
            assert_eq!(read_frame(bytes).unwrap_err(), NotAmqp);
        }
        let mut bytes = Vec::new();
        put_heartbeat(&mut bytes);
        *bytes.last_mut().unwrap() = 0;
        assert_eq!(read_frame(&bytes).unwrap_err(), NotAmqp, "no end of the frame");
        put_frame(&mut bytes, FRAME_METHOD, 0, |out| out.push(0));
        assert_eq!(read_frame(&bytes[8..]).unwrap_err(), NotAmqp, "half a method");
    }

    #[test]
    fn a_delivered_message_has_headers_of_every_type() {
        let mut bytes = vec![0, 60, 0, 0];
        bytes.extend_from_slice(&9_u64.to_be_bytes());
        bytes.extend_from_slice(&0b1011_0000_1110_0000_u16.to_be_bytes());
        put_short(&mut bytes, b"application/json");
        put_counted(&mut bytes, |out| {
            put_field(out, "text", Some(b"a"));
            put_field(out, "bytes", Some(b"\xff"));
            put_field(out, "none", None);
            put_number(out, "number", -7);
            put_true(out, "true");
            put_short(out, b"x-death");
            out.push(b'A');
            put_counted(out, |out| {
                out.push(b'F');
                put_counted(out, |out| put_number(out, "count", 3));
            });
            put_short(out, b"odd");
            out.push(b'?');
        });
        bytes.push(2);
        put_short(&mut bytes, b"m-1");
        bytes.extend_from_slice(&5_u64.to_be_bytes());
        put_short(&mut bytes, b"Placed");
        let found = read_delivered(&bytes).unwrap();
        assert_eq!(found.timestamp, Some(5));
        let texts: Vec<_> = found.texts.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let expected =
            [("content_type", "application/json"), ("message_id", "m-1"), ("type", "Placed")];
        assert_eq!(texts, expected);
        let shown: Vec<(String, Option<String>)> = found
            .headers
            .iter()
            .map(|(name, value)| {
                let value = value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
                (String::from_utf8_lossy(name).into_owned(), value)
            })
            .collect();
        let of = |name: &str| shown.iter().find(|(known, _)| known == name).unwrap().1.as_deref();
        assert_eq!((of("text"), of("bytes"), of("none")), (Some("a"), Some("\u{fffd}"), None));
        assert_eq!((of("number"), of("true")), (Some("-7"), Some("true")));
        assert_eq!(of("x-death"), Some("[{\"count\":3}]"));
        assert_eq!(of("unreadable_headers"), Some("\u{3}odd?"));
        for end in 0..bytes.len() {
            // Half of the properties are none, and do no harm.
            drop(read_delivered(&bytes[..end]));
        }
    }

    #[test]
    fn properties_of_a_returned_message_are_found_behind_fields_of_every_type() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, FRAME_HEADER, 1, |out| {
            out.extend_from_slice(&[0, 60, 0, 0]);
            out.extend_from_slice(&9_u64.to_be_bytes());
            out.extend_from_slice(&0b1011_0100_1100_0000_u16.to_be_bytes());
            put_short(out, b"application/json");
            put_counted(out, |out| {
                put_field(out, "key", Some(b"of the row"));
                for (kind, length) in [(b't', 1), (b's', 2), (b'I', 4), (b'D', 5), (b'd', 8)] {
                    put_short(out, b"field");
                    out.push(kind);
                    out.extend_from_slice(&[0; 8][..length]);
                }
                put_field(out, "none", None);
                put_short(out, b"inner");
                out.push(b'F');
                put_counted(out, |out| put_field(out, "position", Some(b"no")));
                put_field(out, "position", Some(b"7"));
                put_field(out, "key", Some(b"\xff"));
            });
            out.push(2);
            put_short(out, b"correlation");
            put_short(out, b"the id");
            out.extend_from_slice(&[0; 8]);
        });
        let (_, frame, _) = read_frame(&bytes).unwrap().unwrap();
        let Frame::Header(found, _) = frame else { panic!("{frame:?}") };
        assert_eq!(found.body_size, 9);
        assert_eq!(found.position.as_deref(), Some(&b"7"[..]));
        assert_eq!(found.key.as_deref(), Some(&b"\xff"[..]));
        assert_eq!(found.message_id.as_deref(), Some(&b"the id"[..]));
    }
}
