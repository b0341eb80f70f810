//! The part of RabbitMQ's stream protocol that a publisher needs: frames and their fields, without a socket.
//!
//! A frame is its length in four bytes, the command's key and version, and the command's fields. A request and its
//! answer have a number by which they belong together. Numbers are big-endian. All commands have version 1.

/// The largest frame that is read. Unit: bytes.
const READ_BYTES_MAX: usize = 16 << 20;

/// Bytes of a `Publish` frame beside its messages: length, key, version, publisher, number of messages.
pub(super) const PUBLISH_OVERHEAD: usize = 13;

/// Bytes of a message in a `Publish` frame beside the message itself: publishing id and length.
pub(super) const MESSAGE_OVERHEAD: usize = 12;

/// The bit of an answer's key.
const ANSWER: u16 = 0x8000;

const VERSION: u16 = 1;

// Keys of commands.
pub(super) const DECLARE_PUBLISHER: u16 = 1;
const PUBLISH: u16 = 2;
const PUBLISH_CONFIRM: u16 = 3;
const PUBLISH_ERROR: u16 = 4;
pub(super) const DELETE_PUBLISHER: u16 = 6;
pub(super) const CREATE: u16 = 13;
pub(super) const METADATA: u16 = 15;
const METADATA_UPDATE: u16 = 16;
pub(super) const PEER_PROPERTIES: u16 = 17;
pub(super) const SASL_HANDSHAKE: u16 = 18;
pub(super) const SASL_AUTHENTICATE: u16 = 19;
const TUNE: u16 = 20;
pub(super) const OPEN: u16 = 21;
pub(super) const CLOSE: u16 = 22;
const HEARTBEAT: u16 = 23;

// Codes of answers.
pub(super) const OK: u16 = 1;
pub(super) const NO_STREAM: u16 = 2;
pub(super) const STREAM_EXISTS: u16 = 5;
pub(super) const NOT_AVAILABLE: u16 = 6;
pub(super) const LOGIN_REFUSED: u16 = 8;
pub(super) const LOGIN_NOT_LOCAL: u16 = 11;
pub(super) const NO_VIRTUAL_HOST: u16 = 12;
pub(super) const ACCESS_REFUSED: u16 = 16;
pub(super) const PRECONDITION_FAILED: u16 = 17;

// What is written.

/// Appends a frame of the command `key` with the fields that `write` appends.
fn put_frame(out: &mut Vec<u8>, key: u16, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&VERSION.to_be_bytes());
    write(out);
    put_length(out, at);
}

/// Sets the length of what follows the four bytes at `at`. All is bounded far below 2 GiB before it is written.
fn put_length(out: &mut [u8], at: usize) {
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a request with the fields that `write` appends.
pub(super) fn put_request(
    out: &mut Vec<u8>,
    key: u16,
    correlation: u32,
    write: impl FnOnce(&mut Vec<u8>),
) {
    put_frame(out, key, |out| {
        out.extend_from_slice(&correlation.to_be_bytes());
        write(out);
    });
}

pub(super) fn put_heartbeat(out: &mut Vec<u8>) {
    put_frame(out, HEARTBEAT, |_| ());
}

/// Appends the answer to the server's `Tune`.
pub(super) fn put_tune(out: &mut Vec<u8>, frame_max: u32, heartbeat_s: u32) {
    put_frame(out, ANSWER | TUNE, |out| {
        out.extend_from_slice(&frame_max.to_be_bytes());
        out.extend_from_slice(&heartbeat_s.to_be_bytes());
    });
}

/// Appends the answer to the server's `Close`.
pub(super) fn put_close_answer(out: &mut Vec<u8>, correlation: u32) {
    put_frame(out, ANSWER | CLOSE, |out| {
        out.extend_from_slice(&correlation.to_be_bytes());
        out.extend_from_slice(&OK.to_be_bytes());
    });
}

/// Appends a string. Those of this sink have at most 255 bytes, or are of the configuration.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    let text = text.as_bytes();
    let text = text.get(..usize::from(i16::MAX.unsigned_abs())).unwrap_or(text);
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(text);
}

/// Appends bytes with their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    put_length(out, at);
}

/// Appends a map of strings.
pub(super) fn put_map(out: &mut Vec<u8>, entries: &[(&str, &str)]) {
    out.extend_from_slice(&u32::try_from(entries.len()).unwrap_or(0).to_be_bytes());
    for (name, value) in entries {
        put_string(out, name);
        put_string(out, value);
    }
}

/// A `Publish` frame that is being filled.
#[derive(Debug)]
pub(super) struct PublishFrame {
    at: usize,
    messages: u32,
}

impl PublishFrame {
    /// Begins a frame at the end of `out`.
    pub(super) fn begin(out: &mut Vec<u8>, publisher: u8) -> Self {
        let at = out.len();
        put_frame(out, PUBLISH, |out| out.extend_from_slice(&[publisher, 0, 0, 0, 0]));
        Self { at, messages: 0 }
    }

    /// Appends a message, whose id is set by [`Self::number`]. Returns its place.
    pub(super) fn add(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let at = out.len();
        out.extend_from_slice(&[0; 8]);
        put_bytes(out, write);
        self.messages += 1;
        at
    }

    /// Takes the last message back.
    pub(super) fn take_back(&mut self, out: &mut Vec<u8>, at: usize) {
        out.truncate(at);
        self.messages -= 1;
    }

    /// Sets the id of the message at this place.
    pub(super) fn number(out: &mut [u8], at: usize, id: u64) {
        out[at..at + 8].copy_from_slice(&id.to_be_bytes());
    }

    /// Bytes of the frame, with its length.
    pub(super) fn size_bytes(&self, out: &[u8]) -> usize {
        out.len() - self.at
    }

    /// Ends the frame. A frame without messages is taken back. Returns whether it was.
    pub(super) fn end(self, out: &mut Vec<u8>) -> bool {
        if self.messages == 0 {
            out.truncate(self.at);
            return true;
        }
        let count = self.at + PUBLISH_OVERHEAD - 4;
        out[count..count + 4].copy_from_slice(&self.messages.to_be_bytes());
        put_length(out, self.at);
        false
    }
}

// What is read.

/// The bytes are no frame of the stream protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotStream;

/// Why the server closes the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StreamClose {
    pub(super) correlation: u32,
    pub(super) code: u16,
    pub(super) text: String,
}

/// A frame of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StreamFrame {
    /// The answer to a request, with its fields.
    Answer {
        key: u16,
        correlation: u32,
        fields: Vec<u8>,
    },
    Tune {
        frame_max: u32,
    },
    Confirm {
        publisher: u8,
        ids: Vec<u64>,
    },
    /// Messages that are refused, each with the code.
    Refused {
        publisher: u8,
        ids: Vec<(u64, u16)>,
    },
    /// The publishers of a stream are removed from this connection.
    Unavailable {
        stream: String,
    },
    Close(StreamClose),
    Heartbeat,
    /// A command that a publisher does not need.
    Other,
}

/// The first frame of `bytes`, with its length there; `None` if it is not complete.
///
/// # Errors
/// The bytes are no frame.
pub(super) fn read_frame(bytes: &[u8]) -> Result<Option<(StreamFrame, usize)>, NotStream> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if !(4..=READ_BYTES_MAX).contains(&length) {
        return Err(NotStream);
    }
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let mut fields = StreamFields(frame);
    let key = fields.u16()?;
    let version = fields.u16()?;
    if version != VERSION || key & !ANSWER == 0 || key & !ANSWER > 0xFF {
        return Err(NotStream);
    }
    Ok(Some((frame_of(key, fields)?, length + 4)))
}

fn frame_of(key: u16, mut fields: StreamFields<'_>) -> Result<StreamFrame, NotStream> {
    Ok(match key {
        TUNE => StreamFrame::Tune { frame_max: fields.u32()? },
        PUBLISH_CONFIRM => {
            let publisher = fields.u8()?;
            let ids = fields.list(StreamFields::u64)?;
            StreamFrame::Confirm { publisher, ids }
        }
        PUBLISH_ERROR => {
            let publisher = fields.u8()?;
            let ids = fields.list(|fields| Ok((fields.u64()?, fields.u16()?)))?;
            StreamFrame::Refused { publisher, ids }
        }
        METADATA_UPDATE => {
            fields.u16()?;
            StreamFrame::Unavailable { stream: fields.string()? }
        }
        CLOSE => {
            let (correlation, code) = (fields.u32()?, fields.u16()?);
            StreamFrame::Close(StreamClose { correlation, code, text: fields.string()? })
        }
        HEARTBEAT => StreamFrame::Heartbeat,
        answer if answer & ANSWER != 0 => {
            let correlation = fields.u32()?;
            let StreamFields(rest) = fields;
            StreamFrame::Answer { key: answer & !ANSWER, correlation, fields: rest.to_vec() }
        }
        _ => StreamFrame::Other,
    })
}

/// The fields of a frame that are not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamFields<'a>(pub(super) &'a [u8]);

impl<'a> StreamFields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], NotStream> {
        let (front, rest) = self.0.split_at_checked(length).ok_or(NotStream)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NotStream> {
        let (front, rest) = self.0.split_first_chunk::<N>().ok_or(NotStream)?;
        self.0 = rest;
        Ok(*front)
    }

    fn u8(&mut self) -> Result<u8, NotStream> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, NotStream> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, NotStream> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, NotStream> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string; one that is null is empty.
    pub(super) fn string(&mut self) -> Result<String, NotStream> {
        let length = usize::try_from(i16::from_be_bytes(self.array()?)).unwrap_or(0);
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    /// A list. Its memory is that of what is there, not of what the length says.
    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, NotStream>,
    ) -> Result<Vec<T>, NotStream> {
        let count = self.u32()?;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(read(self)?);
        }
        Ok(all)
    }

    /// A map of strings.
    pub(super) fn map(&mut self) -> Result<Vec<(String, String)>, NotStream> {
        self.list(|fields| Ok((fields.string()?, fields.string()?)))
    }

    /// The answer to `Metadata` about one stream.
    pub(super) fn metadata(&mut self) -> Result<StreamPlace, NotStream> {
        let brokers = self.list(|fields| {
            let number = fields.u16()?;
            let (host, port) = (fields.string()?, fields.u32()?);
            Ok((number, host, u16::try_from(port).map_err(|_too_large| NotStream)?))
        })?;
        let streams = self.list(|fields| {
            fields.string()?;
            let (code, leader) = (fields.u16()?, fields.u16()?);
            fields.list(Self::u16)?;
            Ok((code, leader))
        })?;
        let [(code, number)] = streams.as_slice() else { return Err(NotStream) };
        let leader = brokers.into_iter().find(|(known, _, _)| known == number);
        Ok(StreamPlace { code: *code, leader: leader.map(|(_, host, port)| (host, port)) })
    }
}

/// Where a stream is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StreamPlace {
    pub(super) code: u16,
    /// Host and port of the node that writes it, as that node has named them.
    pub(super) leader: Option<(String, u16)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_frame_has_its_messages_and_an_empty_one_is_taken_back() {
        let mut out = vec![9];
        let frame = PublishFrame::begin(&mut out, 3);
        assert!(frame.end(&mut out));
        assert_eq!(out, [9]);
        let mut frame = PublishFrame::begin(&mut out, 3);
        for (id, bytes) in [(7, &b"ab"[..]), (8, b"")] {
            let at = frame.add(&mut out, |out| out.extend_from_slice(bytes));
            PublishFrame::number(&mut out, at, id);
        }
        let at = frame.add(&mut out, |out| out.push(1));
        frame.take_back(&mut out, at);
        assert_eq!(frame.size_bytes(&out), PUBLISH_OVERHEAD + 2 * MESSAGE_OVERHEAD + 2);
        assert!(!frame.end(&mut out));
        let expected: &[u8] = &[
            9, 0, 0, 0, 35, 0, 2, 0, 1, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, b'a',
            b'b', 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn frames_of_the_server_are_read_and_incomplete_ones_are_waited_for() {
        let frame = |key: u16, fields: &[u8]| {
            let mut out = Vec::new();
            put_frame(&mut out, key, |out| out.extend_from_slice(fields));
            out
        };
        let confirm = frame(PUBLISH_CONFIRM, &[5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
        for end in 0..confirm.len() {
            assert_eq!(read_frame(&confirm[..end]), Ok(None), "{end} bytes");
        }
        let read = StreamFrame::Confirm { publisher: 5, ids: vec![9] };
        assert_eq!(read_frame(&confirm), Ok(Some((read, confirm.len()))));
        let refused = frame(PUBLISH_ERROR, &[5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 18]);
        let read = StreamFrame::Refused { publisher: 5, ids: vec![(9, 18)] };
        assert_eq!(read_frame(&refused), Ok(Some((read, refused.len()))));
        let update = frame(METADATA_UPDATE, &[0, 6, 0, 1, b's']);
        let read = StreamFrame::Unavailable { stream: "s".to_owned() };
        assert_eq!(read_frame(&update), Ok(Some((read, update.len()))));
        // A list that says it has more than there is.
        let cut = frame(PUBLISH_CONFIRM, &[5, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(read_frame(&cut), Err(NotStream));
        for other in [&b"HTTP/1.1 400 Bad"[..], b"AMQP\x00\x00\x09\x01", b"\0\0\0\x01x"] {
            assert_eq!(read_frame(other), Err(NotStream), "{other:?}");
        }
    }

    #[test]
    fn metadata_names_the_leader() {
        let mut out = Vec::new();
        let broker = |out: &mut Vec<u8>, number: u16, host: &str| {
            out.extend_from_slice(&number.to_be_bytes());
            put_string(out, host);
            out.extend_from_slice(&5_552_u32.to_be_bytes());
        };
        out.extend_from_slice(&2_u32.to_be_bytes());
        broker(&mut out, 0, "a");
        broker(&mut out, 1, "b");
        out.extend_from_slice(&1_u32.to_be_bytes());
        put_string(&mut out, "s");
        out.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, 1, 0, 0]);
        let place = StreamPlace { code: OK, leader: Some(("b".to_owned(), 5_552)) };
        assert_eq!(StreamFields(&out).metadata(), Ok(place));
    }
}
