//! A consumer of a queue of RabbitMQ, by AMQP 0-9-1.

use super::wire::{BrokerLogin, ConsumedMessage, Parsed, ReadWire, invalid};
use std::io;
use std::time::Duration;

/// Messages that RabbitMQ sends ahead of their acknowledgements.
const PREFETCH: u16 = 1_000;

/// Types of frames.
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
/// The last byte of a frame.
const FRAME_END: u8 = 0xce;
/// Bytes of a frame around its content.
const AROUND: usize = 8;

/// Methods, as class and number.
const START: (u16, u16) = (10, 10);
const START_OK: (u16, u16) = (10, 11);
const TUNE: (u16, u16) = (10, 30);
const TUNE_OK: (u16, u16) = (10, 31);
const OPEN: (u16, u16) = (10, 40);
const OPEN_OK: (u16, u16) = (10, 41);
const CHANNEL_OPEN: (u16, u16) = (20, 10);
const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
const QOS: (u16, u16) = (60, 10);
const QOS_OK: (u16, u16) = (60, 11);
const CONSUME: (u16, u16) = (60, 20);
const CONSUME_OK: (u16, u16) = (60, 21);
const DELIVER: (u16, u16) = (60, 60);
const ACK: (u16, u16) = (60, 80);

/// A connection that receives the messages of a queue.
#[derive(Debug)]
pub(super) struct AmqpConsumer {
    wire: ReadWire,
    /// The offset of the next message of a queue of type `stream`.
    pub(super) next: u64,
    /// Whether the queue is a stream: messages stay in it, and have offsets.
    is_stream: bool,
    /// The message whose frames are arriving.
    arriving: ArrivingMessage,
    /// The delivery tag of the last message.
    tag: u64,
    /// The delivery tag up to which messages were acknowledged.
    acknowledged: u64,
}

#[derive(Debug, Default)]
struct ArrivingMessage {
    message: ConsumedMessage,
    offset: Option<u64>,
    /// Bytes of the body that have not arrived.
    missing: u64,
    /// Whether the header has arrived.
    has_header: bool,
}

struct AmqpFrame {
    kind: u8,
    content: Vec<u8>,
}

impl AmqpConsumer {
    /// Logs in, and opens a channel.
    pub(super) fn log_in(login: &BrokerLogin) -> io::Result<ReadWire> {
        let mut wire = ReadWire::connect(login.address)?;
        wire.send(b"AMQP\x00\x00\x09\x01")?;
        await_method(&mut wire, START)?;
        let mut body = AmqpBody::new(START_OK);
        body.long(0).short_text("PLAIN");
        body.long_text(format!("\0{}\0{}", login.user, login.password).as_bytes());
        body.short_text("en_US");
        wire.send(&body.frame(0))?;
        let tune = await_method(&mut wire, TUNE)?;
        // The server's limits, and no heartbeats: the reader is ended by the demo.
        let mut body = AmqpBody::new(TUNE_OK);
        body.bytes(tune.get(..6).unwrap_or_default()).short(0);
        wire.send(&body.frame(0))?;
        let mut body = AmqpBody::new(OPEN);
        body.short_text("/").short_text("").byte(0);
        wire.send(&body.frame(0))?;
        await_method(&mut wire, OPEN_OK)?;
        let mut body = AmqpBody::new(CHANNEL_OPEN);
        body.short_text("");
        wire.send(&body.frame(1))?;
        await_method(&mut wire, CHANNEL_OPEN_OK)?;
        Ok(wire)
    }

    /// Receives the messages of a stream from offset `next` on, or takes the messages out of another queue.
    pub(super) fn open(
        login: &BrokerLogin,
        queue: &str,
        is_stream: bool,
        next: u64,
    ) -> io::Result<Self> {
        let mut wire = Self::log_in(login)?;
        let mut body = AmqpBody::new(QOS);
        body.long(0).short(PREFETCH).byte(0);
        wire.send(&body.frame(1))?;
        await_method(&mut wire, QOS_OK)?;
        let mut body = AmqpBody::new(CONSUME);
        body.short(0).short_text(queue).short_text("").byte(0);
        let mut arguments = Vec::new();
        if is_stream {
            // Type `l`: a signed number of eight bytes.
            arguments.extend(b"\x0fx-stream-offsetl");
            arguments.extend(next.to_be_bytes());
        }
        body.long_text(&arguments);
        wire.send(&body.frame(1))?;
        await_method(&mut wire, CONSUME_OK)?;
        let arriving = ArrivingMessage::default();
        Ok(Self { wire, next, is_stream, arriving, tag: 0, acknowledged: 0 })
    }

    /// The messages that have arrived; waits for the first. Those of the call before are acknowledged.
    pub(super) fn poll(&mut self, wait: Duration) -> io::Result<Vec<ConsumedMessage>> {
        if self.acknowledged < self.tag {
            let mut body = AmqpBody::new(ACK);
            // With all messages before it.
            body.bytes(&self.tag.to_be_bytes()).byte(1);
            self.wire.send(&body.frame(1))?;
            self.acknowledged = self.tag;
        }
        let mut messages = self.arrived()?;
        if messages.is_empty() && self.wire.fill(wait)? {
            messages = self.arrived()?;
        }
        Ok(messages)
    }

    /// What was read before an error is returned first; the next call returns the error.
    fn arrived(&mut self) -> io::Result<Vec<ConsumedMessage>> {
        let mut messages = Vec::new();
        loop {
            match self.next_message() {
                Ok(Some(message)) => messages.push(message),
                Err(error) if messages.is_empty() => return Err(error),
                Ok(None) | Err(_) => return Ok(messages),
            }
        }
    }

    fn next_message(&mut self) -> io::Result<Option<ConsumedMessage>> {
        while let Some(frame) = self.wire.next(frame)? {
            self.take(&frame)?;
            if !self.arriving.has_header || self.arriving.missing > 0 {
                continue;
            }
            let arrived = std::mem::take(&mut self.arriving);
            match arrived.offset.filter(|_| self.is_stream) {
                // A chunk of a stream is delivered from its beginning.
                Some(offset) if offset < self.next => continue,
                Some(offset) => self.next = offset + 1,
                None => {}
            }
            return Ok(Some(arrived.message));
        }
        Ok(None)
    }

    fn take(&mut self, frame: &AmqpFrame) -> io::Result<()> {
        let mut content = AmqpContent(&frame.content);
        match frame.kind {
            METHOD => {
                let method = content.method()?;
                if method != DELIVER {
                    return Err(unexpected(method, content.0));
                }
                content.short_text()?;
                self.tag = content.longlong()?;
                self.arriving = ArrivingMessage::default();
            }
            HEADER => {
                content.skip(4)?;
                self.arriving.missing = content.longlong()?;
                self.arriving.has_header = true;
                let flags = content.short()?;
                // Content type and content encoding precede the headers.
                for flag in [1 << 15, 1 << 14] {
                    if flags & flag != 0 {
                        content.short_text()?;
                    }
                }
                if flags & (1 << 13) != 0 {
                    self.headers(AmqpContent(content.long_text()?))?;
                }
            }
            BODY => {
                let length = frame.content.len();
                self.arriving.message.value.extend_from_slice(&frame.content);
                let left = self.arriving.missing.checked_sub(u64::try_from(length).unwrap_or(0));
                self.arriving.missing = left.ok_or_else(|| invalid("a body is too long"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn headers(&mut self, mut table: AmqpContent<'_>) -> io::Result<()> {
        while !table.0.is_empty() {
            let name = table.short_text()?;
            let value = table.value()?;
            match name {
                b"key" => self.arriving.message.key = value.to_vec(),
                b"x-stream-offset" => {
                    let bytes = value.try_into().map_err(|_long| invalid("an offset"))?;
                    self.arriving.offset = Some(u64::from_be_bytes(bytes));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Waits for a method and returns its arguments.
fn await_method(wire: &mut ReadWire, wanted: (u16, u16)) -> io::Result<Vec<u8>> {
    loop {
        let frame = wire.answer(frame)?;
        if frame.kind != METHOD {
            continue;
        }
        let mut content = AmqpContent(&frame.content);
        let method = content.method()?;
        return if method == wanted {
            Ok(content.0.to_vec())
        } else {
            Err(unexpected(method, content.0))
        };
    }
}

/// For `close` the arguments have the reason.
fn unexpected((class, number): (u16, u16), arguments: &[u8]) -> io::Error {
    let reason = String::from_utf8_lossy(arguments.get(2..).unwrap_or_default());
    invalid(format!("method {class}.{number}: {}", reason.trim_matches(char::is_control)))
}

fn frame(bytes: &[u8]) -> Parsed<AmqpFrame> {
    let Some((&[kind, _, _, a, b, c, d], _)) = bytes.split_first_chunk::<7>() else {
        return Ok(None);
    };
    if kind == b'A' {
        return Err(invalid("RabbitMQ refuses the version of the protocol"));
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    let Some(content) = bytes.get(7..7 + length) else { return Ok(None) };
    match bytes.get(7 + length) {
        None => Ok(None),
        Some(&FRAME_END) => {
            Ok(Some((AmqpFrame { kind, content: content.to_vec() }, length + AROUND)))
        }
        Some(_) => Err(invalid("a frame without its end")),
    }
}

/// A method that is written.
struct AmqpBody(Vec<u8>);

impl AmqpBody {
    fn new((class, number): (u16, u16)) -> Self {
        let mut body = Self(Vec::new());
        body.short(class).short(number);
        body
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn byte(&mut self, byte: u8) -> &mut Self {
        self.bytes(&[byte])
    }

    fn short(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    fn long(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    /// At most 255 bytes, which all names of the demo are.
    fn short_text(&mut self, text: &str) -> &mut Self {
        self.byte(u8::try_from(text.len()).unwrap_or(u8::MAX)).bytes(text.as_bytes())
    }

    /// A text, or a table, with its length.
    fn long_text(&mut self, text: &[u8]) -> &mut Self {
        self.long(u32::try_from(text.len()).unwrap_or(u32::MAX)).bytes(text)
    }

    fn frame(&self, channel: u16) -> Vec<u8> {
        let mut frame = vec![METHOD];
        frame.extend(channel.to_be_bytes());
        frame.extend(u32::try_from(self.0.len()).unwrap_or(u32::MAX).to_be_bytes());
        frame.extend(&self.0);
        frame.push(FRAME_END);
        frame
    }
}

/// What is left of a frame that is read.
struct AmqpContent<'b>(&'b [u8]);

impl<'b> AmqpContent<'b> {
    fn skip(&mut self, length: usize) -> io::Result<&'b [u8]> {
        let cut = self.0.split_at_checked(length);
        let (taken, rest) = cut.ok_or_else(|| invalid("a frame is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const LENGTH: usize>(&mut self) -> io::Result<[u8; LENGTH]> {
        let cut = self.0.split_first_chunk::<LENGTH>();
        let (taken, rest) = cut.ok_or_else(|| invalid("a frame is too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn short(&mut self) -> io::Result<u16> {
        Ok(u16::from_be_bytes(self.number()?))
    }

    fn longlong(&mut self) -> io::Result<u64> {
        Ok(u64::from_be_bytes(self.number()?))
    }

    fn method(&mut self) -> io::Result<(u16, u16)> {
        Ok((self.short()?, self.short()?))
    }

    fn short_text(&mut self) -> io::Result<&'b [u8]> {
        let [length] = self.number()?;
        self.skip(length.into())
    }

    fn long_text(&mut self) -> io::Result<&'b [u8]> {
        let length = u32::from_be_bytes(self.number()?);
        self.skip(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// The bytes of a value of a table.
    fn value(&mut self) -> io::Result<&'b [u8]> {
        let [kind] = self.number()?;
        match kind {
            b'S' | b'x' | b'F' | b'A' => self.long_text(),
            b't' | b'b' | b'B' => self.skip(1),
            b's' | b'u' => self.skip(2),
            b'I' | b'i' | b'f' => self.skip(4),
            b'l' | b'L' | b'T' | b'd' => self.skip(8),
            b'D' => self.skip(5),
            b'V' => self.skip(0),
            _ => Err(invalid(format!("a value of type {kind}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_read_when_its_end_is_there() {
        let mut body = AmqpBody::new(OPEN);
        body.short_text("/");
        let bytes = body.frame(0);
        for end in 0..bytes.len() {
            assert!(frame(&bytes[..end]).unwrap().is_none(), "{end}");
        }
        let (found, length) = frame(&bytes).unwrap().unwrap();
        assert_eq!((found.kind, length), (METHOD, bytes.len()));
        let mut content = AmqpContent(&found.content);
        assert_eq!(content.method().unwrap(), OPEN);
        assert_eq!(content.short_text().unwrap(), b"/");
        assert!(content.short().is_err());
    }
}
