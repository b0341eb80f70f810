//! Reads a stream of RabbitMQ by the stream protocol, and the messages by AMQP 1.0. It shares no code with the sink.

use crate::topic::ReadRecord;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long one read of a whole stream may take.
const READ_MAX: Duration = Duration::from_secs(20);

/// After this time without a chunk everything is read.
const SILENCE: Duration = Duration::from_millis(500);

/// Chunks that the server may send before the next credit.
const CREDIT: u16 = 50;

/// Bytes that are read one after another.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(length);
        self.0 = rest;
        front
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn length(&mut self, bytes: usize) -> usize {
        usize::try_from(self.number(bytes)).expect("a length")
    }
}

/// A connection as `admin`.
struct Reader {
    stream: TcpStream,
    correlation: u32,
}

impl Reader {
    async fn open(port: u16) -> Result<Self, String> {
        let stream =
            TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
        let mut reader = Self { stream, correlation: 0 };
        reader.ask(0x11, &0_u32.to_be_bytes()).await?;
        reader.ask(0x12, &[]).await?;
        let mut login = string("PLAIN");
        login.extend_from_slice(&12_u32.to_be_bytes());
        login.extend_from_slice(b"\0admin\0admin");
        reader.ask(0x13, &login).await?;
        let (key, tune) = reader.frame().await?;
        assert_eq!(key, 0x14, "Tune");
        reader.send(0x8014, &tune).await?;
        reader.ask(0x15, &string("/")).await?;
        Ok(reader)
    }

    async fn send(&mut self, key: u16, fields: &[u8]) -> Result<(), String> {
        let mut frame = u32::try_from(fields.len() + 4).expect("a length").to_be_bytes().to_vec();
        frame.extend_from_slice(&key.to_be_bytes());
        frame.extend_from_slice(&[0, 1]);
        frame.extend_from_slice(fields);
        self.stream.write_all(&frame).await.map_err(|error| error.to_string())
    }

    /// Key and fields of the next frame.
    async fn frame(&mut self) -> Result<(u16, Vec<u8>), String> {
        let length = self.stream.read_u32().await.map_err(|error| error.to_string())?;
        let mut frame = vec![0; usize::try_from(length).expect("a length")];
        self.stream.read_exact(&mut frame).await.map_err(|error| error.to_string())?;
        let fields = frame.split_off(4);
        Ok((u16::from_be_bytes([frame[0], frame[1]]), fields))
    }

    /// Sends a request. Returns the fields of the answer behind its code, which must be 1.
    async fn ask(&mut self, key: u16, fields: &[u8]) -> Result<Vec<u8>, String> {
        self.correlation += 1;
        let mut request = self.correlation.to_be_bytes().to_vec();
        request.extend_from_slice(fields);
        self.send(key, &request).await?;
        loop {
            let (answer, fields) = self.frame().await?;
            if answer != 0x8000 | key {
                continue;
            }
            let code = u16::from_be_bytes([fields[4], fields[5]]);
            if code != 1 {
                return Err(format!("command {key} was answered with code {code}"));
            }
            return Ok(fields[6..].to_vec());
        }
    }

    /// The offset of the last chunk that is stored; `None` if there is none.
    async fn last_chunk(&mut self, stream: &str) -> Result<Option<u64>, String> {
        let fields = self.ask(0x1c, &string(stream)).await?;
        let mut fields = Bytes(&fields);
        for _ in 0..fields.number(4) {
            let length = fields.length(2);
            let name = fields.take(length);
            let value = fields.number(8);
            if name == b"committed_chunk_id" {
                return Ok((value != u64::MAX).then_some(value));
            }
        }
        Err("no committed_chunk_id".to_owned())
    }
}

/// All records of a stream, in its order.
pub(super) async fn read_stream(port: u16, stream: &str) -> Result<Vec<ReadRecord>, String> {
    let read = tokio::time::timeout(READ_MAX, read_all(port, stream)).await;
    read.map_err(|elapsed| elapsed.to_string())?
}

async fn read_all(port: u16, stream: &str) -> Result<Vec<ReadRecord>, String> {
    let mut reader = Reader::open(port).await?;
    let mut records = Vec::new();
    let Some(last) = reader.last_chunk(stream).await? else { return Ok(records) };
    let mut subscribe = vec![1];
    subscribe.extend_from_slice(&string(stream));
    // From the first message, and without properties.
    subscribe.extend_from_slice(&[0, 1]);
    subscribe.extend_from_slice(&CREDIT.to_be_bytes());
    subscribe.extend_from_slice(&0_u32.to_be_bytes());
    reader.ask(0x07, &subscribe).await?;
    loop {
        let Ok(frame) = tokio::time::timeout(SILENCE, reader.frame()).await else {
            return Ok(records);
        };
        let (key, fields) = frame?;
        if key != 0x08 {
            continue;
        }
        let chunk = read_chunk(&fields[1..], &mut records);
        if chunk >= last {
            return Ok(records);
        }
        reader.send(0x09, &[1, 0, 1]).await?;
    }
}

/// Reads the messages of a chunk. Returns its offset.
fn read_chunk(chunk: &[u8], records: &mut Vec<ReadRecord>) -> u64 {
    let mut chunk = Bytes(chunk);
    assert_eq!(chunk.number(1), 0x50, "the version of chunks");
    let kind = chunk.number(1);
    let entries = chunk.number(2);
    // Number of records, timestamp, epoch.
    chunk.take(4 + 8 + 8);
    let offset = chunk.number(8);
    // Checksum, lengths of data and trailer, reserved.
    chunk.take(4 + 4 + 4 + 4);
    if kind != 0 {
        return offset;
    }
    for number in 0..entries {
        let length = chunk.length(4);
        let message = chunk.take(length);
        let offset = i64::try_from(offset + number).expect("an offset");
        records.push(ReadRecord { offset, ..message_of(message) });
    }
    offset
}

/// A message of AMQP 1.0.
fn message_of(message: &[u8]) -> ReadRecord {
    let mut message = Bytes(message);
    let mut record = ReadRecord {
        partition: 0,
        offset: 0,
        key: None,
        value: None,
        headers: Vec::new(),
        timestamp: None,
    };
    let mut is_null = false;
    while !message.0.is_empty() {
        assert_eq!(message.take(2), [0x00, 0x53], "a section");
        let section = message.number(1);
        let value = value_of(&mut message);
        match (section, value) {
            (0x73, Value::List(fields)) => {
                if let Some(Value::Number(ms)) = fields.get(9) {
                    record.timestamp = i64::try_from(*ms).ok();
                }
            }
            (0x74, Value::List(entries)) => {
                for entry in entries.chunks(2) {
                    let name = String::from_utf8(bytes_of(&entry[0]).expect("a name"));
                    let name = name.expect("UTF-8");
                    is_null |= name == "null" && entry[1] == Value::True;
                    record.headers.push((name, bytes_of(&entry[1])));
                }
            }
            (0x75, Value::Bytes(body)) => record.value = Some(body),
            (section, _) => panic!("section {section}"),
        }
    }
    if is_null {
        record.value = None;
    }
    let key = record.headers.iter().rev().find(|(name, _)| name == "key");
    record.key = key.and_then(|(_, value)| value.clone());
    record
}

/// A value of AMQP 1.0. A map is a list of names and values.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Null,
    True,
    Number(u64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
}

fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Bytes(bytes) => Some(bytes.clone()),
        Value::True => Some(b"true".to_vec()),
        Value::Null | Value::Number(_) | Value::List(_) => None,
    }
}

fn value_of(bytes: &mut Bytes<'_>) -> Value {
    match bytes.number(1) {
        0x40 => Value::Null,
        0x41 => Value::True,
        0x83 => Value::Number(bytes.number(8)),
        0xa0 | 0xa1 | 0xa3 => {
            let length = bytes.length(1);
            Value::Bytes(bytes.take(length).to_vec())
        }
        0xb0 | 0xb1 | 0xb3 => {
            let length = bytes.length(4);
            Value::Bytes(bytes.take(length).to_vec())
        }
        0xd0 | 0xd1 => {
            let size = bytes.length(4);
            let mut content = Bytes(bytes.take(size));
            let count = content.number(4);
            let values = (0..count).map(|_| value_of(&mut content)).collect();
            assert!(content.0.is_empty(), "the size is that of the content");
            Value::List(values)
        }
        other => panic!("constructor {other:#x}"),
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut out = u16::try_from(text.len()).expect("a length").to_be_bytes().to_vec();
    out.extend_from_slice(text.as_bytes());
    out
}
