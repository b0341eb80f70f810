//! A consumer of a stream of Redis or Valkey, by XREAD.

use super::wire::{BrokerLogin, ConsumedMessage, Parsed, ReadWire, invalid, line};
use std::io;
use std::time::Duration;

/// Entries of one reply.
const ENTRIES_MAX: usize = 1_000;

/// A connection that reads a stream.
#[derive(Debug)]
pub(super) struct RedisConsumer {
    wire: ReadWire,
    stream: String,
    /// The ID of the last entry.
    pub(super) last: String,
    /// Whether a command has no reply yet.
    has_asked: bool,
}

/// A value of RESP2.
#[derive(Debug, PartialEq, Eq)]
enum RespReply {
    Text(Vec<u8>),
    Array(Vec<RespReply>),
    Nothing,
}

impl RedisConsumer {
    /// Logs in.
    pub(super) fn log_in(login: &BrokerLogin) -> io::Result<ReadWire> {
        let mut wire = ReadWire::connect(login.address)?;
        wire.send(&command(&["AUTH", &login.user, &login.password]))?;
        wire.answer(reply)?;
        Ok(wire)
    }

    /// Reads the entries of `stream` behind the ID `last`.
    pub(super) fn open(login: &BrokerLogin, stream: &str, last: String) -> io::Result<Self> {
        let wire = Self::log_in(login)?;
        Ok(Self { wire, stream: stream.to_owned(), last, has_asked: false })
    }

    /// The entries that were added; waits for the first.
    pub(super) fn poll(&mut self, wait: Duration) -> io::Result<Vec<ConsumedMessage>> {
        if !self.has_asked {
            let (count, block) = (ENTRIES_MAX.to_string(), wait.as_millis().max(1).to_string());
            let words =
                ["XREAD", "COUNT", &count, "BLOCK", &block, "STREAMS", &self.stream, &self.last];
            self.wire.send(&command(&words))?;
            self.has_asked = true;
        }
        loop {
            if let Some(reply) = self.wire.next(reply)? {
                self.has_asked = false;
                return self.entries(reply);
            }
            if !self.wire.fill(wait * 2)? {
                return Ok(Vec::new());
            }
        }
    }

    /// The entries of a reply: `[[STREAM, [[ID, [NAME, VALUE, …]], …]]]`.
    fn entries(&mut self, reply: RespReply) -> io::Result<Vec<ConsumedMessage>> {
        let RespReply::Array(mut streams) = reply else { return Ok(Vec::new()) };
        let Some(RespReply::Array(mut stream)) = streams.pop() else { return Ok(Vec::new()) };
        let Some(RespReply::Array(entries)) = stream.pop() else {
            return Err(invalid("no entries of a stream"));
        };
        let mut messages = Vec::with_capacity(entries.len());
        for entry in entries {
            let (RespReply::Array(mut entry), mut message) = (entry, ConsumedMessage::default())
            else {
                return Err(invalid("no entry"));
            };
            let (Some(RespReply::Array(fields)), Some(RespReply::Text(id))) =
                (entry.pop(), entry.pop())
            else {
                return Err(invalid("no fields of an entry"));
            };
            self.last = String::from_utf8_lossy(&id).into_owned();
            let mut fields = fields.into_iter();
            while let (Some(RespReply::Text(name)), Some(RespReply::Text(value))) =
                (fields.next(), fields.next())
            {
                match name.as_slice() {
                    b"key" => message.key = value,
                    b"value" => message.value = value,
                    _ => {}
                }
            }
            messages.push(message);
        }
        Ok(messages)
    }
}

/// A command as an array of strings.
fn command(words: &[&str]) -> Vec<u8> {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let count = format!("*{}\r\n", words.len());
    std::iter::once(count).chain(words).collect::<String>().into_bytes()
}

/// One reply with all its parts.
fn reply(bytes: &[u8]) -> Parsed<RespReply> {
    let Some((line, start)) = line(bytes)? else { return Ok(None) };
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| invalid("an empty reply"))?;
    let length = || rest.parse::<i64>().map_err(|error| invalid(format!("{line}: {error}")));
    match kind {
        "+" | ":" => Ok(Some((RespReply::Text(rest.as_bytes().to_vec()), start))),
        "-" => Err(invalid(rest)),
        "$" | "*" if length()? < 0 => Ok(Some((RespReply::Nothing, start))),
        "$" => {
            let end = start + usize::try_from(length()?).unwrap_or_default();
            let Some(text) = bytes.get(start..end + 2) else { return Ok(None) };
            let text = text.strip_suffix(b"\r\n").ok_or_else(|| invalid(line))?;
            Ok(Some((RespReply::Text(text.to_vec()), end + 2)))
        }
        "*" => {
            let (mut parts, mut at) = (Vec::new(), start);
            for _ in 0..length()? {
                let Some((part, length)) = reply(bytes.get(at..).unwrap_or_default())? else {
                    return Ok(None);
                };
                parts.push(part);
                at += length;
            }
            Ok(Some((RespReply::Array(parts), at)))
        }
        _ => Err(invalid(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_is_read_when_all_its_parts_are_there() {
        let text = b"*2\r\n$2\r\nab\r\n*2\r\n:7\r\n$-1\r\n";
        for end in 0..text.len() {
            assert!(reply(&text[..end]).unwrap().is_none(), "{end}");
        }
        let (found, length) = reply(text).unwrap().unwrap();
        let inner = RespReply::Array(vec![RespReply::Text(b"7".to_vec()), RespReply::Nothing]);
        assert_eq!(found, RespReply::Array(vec![RespReply::Text(b"ab".to_vec()), inner]));
        assert_eq!(length, text.len());
        assert!(reply(b"-NOAUTH\r\n").is_err());
    }
}
