//! The part of AMQP 0-9-1 that a publisher needs: frames, methods and tables, without a socket.
//!
//! Field and method numbers are those of the specification, with RabbitMQ's extensions (confirms, `connection.blocked`)
//! and RabbitMQ's reading of field types.

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

/// The numbers of the answers that are waited for.
pub(super) const CONNECTION_OPEN_OK: (u16, u16) = (10, 41);
pub(super) const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
pub(super) const EXCHANGE_DECLARE_OK: (u16, u16) = (40, 11);
pub(super) const QUEUE_DECLARE_OK: (u16, u16) = (50, 11);
pub(super) const QUEUE_BIND_OK: (u16, u16) = (50, 21);
pub(super) const QUEUE_DELETE_OK: (u16, u16) = (50, 41);
pub(super) const CONFIRM_SELECT_OK: (u16, u16) = (85, 11);

/// What a returned message says about itself, beside its body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ReturnedProperties {
    pub(super) body_size: u64,
    pub(super) message_id: Option<Vec<u8>>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) position: Option<Vec<u8>>,
}

/// A frame of the server.
#[derive(Debug)]
pub(super) enum Frame<'a> {
    Method(Method),
    Header(ReturnedProperties),
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
        FRAME_HEADER => Frame::Header(read_properties(payload).ok_or(NotAmqp)?),
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
        let Frame::Header(found) = frame else { panic!("{frame:?}") };
        assert_eq!(found.body_size, 9);
        assert_eq!(found.position.as_deref(), Some(&b"7"[..]));
        assert_eq!(found.key.as_deref(), Some(&b"\xff"[..]));
        assert_eq!(found.message_id.as_deref(), Some(&b"the id"[..]));
    }
}
