//! A consumer of a JetStream stream: the server pushes all messages from a sequence on.

use super::wire::{BrokerLogin, ConsumedMessage, Parsed, ReadWire, invalid, line};
use serde_json::{Value, json};
use std::io;
use std::time::Duration;

/// The subject on which the messages are pushed.
const DELIVERED: &str = "_INBOX.demo.messages";
/// The subject of the answer to a request.
const ANSWERED: &str = "_INBOX.demo.answer";

/// A connection that receives the messages of a stream.
#[derive(Debug)]
pub(super) struct NatsConsumer {
    wire: ReadWire,
    /// The sequence of the last message; 0 before the first.
    pub(super) last: u64,
}

/// What the server sends.
enum NatsOperation {
    Ping,
    Message { subject: String, sequence: Option<u64>, message: ConsumedMessage },
    Other,
}

impl NatsConsumer {
    /// Logs in, and waits until the server has processed that.
    pub(super) fn log_in(login: &BrokerLogin) -> io::Result<ReadWire> {
        let mut wire = ReadWire::connect(login.address)?;
        let connect = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "user": login.user, "pass": login.password,
        });
        wire.send(format!("CONNECT {connect}\r\nPING\r\n").as_bytes())?;
        while !wire.answer(|bytes| {
            let found = line(bytes)?;
            found.map(|(line, length)| Ok((is_pong(line)?, length))).transpose()
        })? {}
        Ok(wire)
    }

    /// Receives the messages of `stream` that follow the sequence `last`.
    pub(super) fn open(login: &BrokerLogin, stream: &str, last: u64) -> io::Result<Self> {
        let mut consumer = Self { wire: Self::log_in(login)?, last };
        let config = json!({ "stream_name": stream, "config": {
            "deliver_subject": DELIVERED, "deliver_policy": "by_start_sequence",
            "opt_start_seq": last + 1, "ack_policy": "none", "replay_policy": "instant",
            "mem_storage": true, "inactive_threshold": 5_000_000_000_u64,
        } });
        consumer.wire.send(format!("SUB {DELIVERED} 1\r\n").as_bytes())?;
        let answer = consumer.request(&format!("$JS.API.CONSUMER.CREATE.{stream}"), &config)?;
        match answer.get("error") {
            None => Ok(consumer),
            Some(error) => Err(invalid(format!("no consumer of stream {stream}: {error}"))),
        }
    }

    /// The answer to a request. Messages that are pushed already stay unread.
    fn request(&mut self, subject: &str, body: &Value) -> io::Result<Value> {
        let body = body.to_string();
        let length = body.len();
        let request =
            format!("SUB {ANSWERED} 2\r\nPUB {subject} {ANSWERED} {length}\r\n{body}\r\n");
        self.wire.send(request.as_bytes())?;
        loop {
            if let NatsOperation::Message { subject, message, .. } = self.wire.answer(operation)?
                && subject == ANSWERED
            {
                return Ok(serde_json::from_slice(&message.value)?);
            }
        }
    }

    /// The messages that have arrived; waits for the first.
    pub(super) fn poll(&mut self, wait: Duration) -> io::Result<Vec<ConsumedMessage>> {
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
        while let Some(operation) = self.wire.next(operation)? {
            match operation {
                NatsOperation::Message { sequence: Some(sequence), message, .. } => {
                    if sequence != self.last + 1 {
                        return Err(invalid(format!("{sequence} follows {}", self.last)));
                    }
                    self.last = sequence;
                    return Ok(Some(message));
                }
                NatsOperation::Ping => self.wire.send(b"PONG\r\n")?,
                NatsOperation::Message { .. } | NatsOperation::Other => {}
            }
        }
        Ok(None)
    }
}

fn is_pong(line: &str) -> io::Result<bool> {
    match line.strip_prefix("-ERR") {
        Some(error) => Err(invalid(error)),
        None => Ok(line == "PONG"),
    }
}

/// One operation: a line, and for a message its headers and its payload.
fn operation(bytes: &[u8]) -> Parsed<NatsOperation> {
    let Some((line, start)) = line(bytes)? else { return Ok(None) };
    let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    let number = |from_end: usize| {
        let word = words.len().checked_sub(from_end).and_then(|at| words.get(at));
        word.and_then(|word| word.parse().ok()).ok_or_else(|| invalid(line))
    };
    let (headers, total): (usize, usize) = match words.first().copied() {
        Some("MSG") => (0, number(1)?),
        Some("HMSG") => (number(2)?, number(1)?),
        Some("PING") => return Ok(Some((NatsOperation::Ping, start))),
        Some("-ERR") => return Err(invalid(line)),
        _ => return Ok(Some((NatsOperation::Other, start))),
    };
    let Some(body) = bytes.get(start..start + total + 2) else { return Ok(None) };
    let (headers, payload) = body.split_at_checked(headers).ok_or_else(|| invalid(line))?;
    let value = payload.strip_suffix(b"\r\n").ok_or_else(|| invalid(line))?.to_vec();
    // MSG SUBJECT SID [REPLY] …: the reply names the sequence, `$JS.ACK.STREAM.CONSUMER.1.SEQUENCE.…`.
    let reply = words.get(3).filter(|word| word.starts_with("$JS.ACK."));
    let sequence = reply.and_then(|reply| reply.split('.').nth(5)?.parse().ok());
    let subject = words.get(1).copied().unwrap_or_default().to_owned();
    let message = ConsumedMessage { key: header(headers, b"key: ").to_vec(), value };
    Ok(Some((NatsOperation::Message { subject, sequence, message }, start + total + 2)))
}

/// The value of a header; empty if there is none.
fn header<'b>(headers: &'b [u8], name: &[u8]) -> &'b [u8] {
    let mut lines = headers.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    value.strip_suffix(b"\r").unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_read_when_it_is_complete() {
        let text = b"HMSG order 1 $JS.ACK.S.C.1.7.7.99.0 22 24\r\nNATS/1.0\r\nkey: a-1\r\n\r\n{}\r\nPING\r\n";
        for end in 0..text.len() - 6 {
            assert!(operation(&text[..end]).unwrap().is_none(), "{end}");
        }
        let (found, length) = operation(text).unwrap().unwrap();
        assert_eq!(length, text.len() - 6);
        let NatsOperation::Message { subject, sequence, message } = found else { panic!() };
        assert_eq!((subject.as_str(), sequence), ("order", Some(7)));
        assert_eq!((message.key.as_slice(), message.value.as_slice()), (&b"a-1"[..], &b"{}"[..]));
    }
}
