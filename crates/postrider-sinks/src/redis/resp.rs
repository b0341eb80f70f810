//! RESP2, the protocol of Redis: commands are encoded into a buffer, and replies are decoded from one.
//!
//! The protocol is spoken without a client library. A sink needs one thing of it that libraries make hard: commands
//! that are written in one order on one connection, and are not waited for.

use std::fmt;

/// Bytes of a reply to a sink at most. The largest that it asks for is the slot map of a cluster.
pub(super) const REPLY_BYTES_MAX: usize = 16 << 20;

/// Elements of an array at most.
const ELEMENTS_MAX: usize = 100_000;

/// Arrays in arrays at most.
const DEPTH_MAX: usize = 8;

/// An answer of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Simple(String),
    Error(ServerError),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
}

impl Reply {
    /// A string of either kind.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Simple(text) => Some(text.clone()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Error(_) | Self::Integer(_) | Self::Nil | Self::Array(_) => None,
        }
    }

    /// A number.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Simple(_) | Self::Error(_) | Self::Bulk(_) | Self::Nil | Self::Array(_) => None,
        }
    }

    /// The elements of an array; none of another reply.
    pub(super) fn elements(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            Self::Simple(_) | Self::Error(_) | Self::Integer(_) | Self::Bulk(_) | Self::Nil => &[],
        }
    }

    /// The error, if it is one.
    ///
    /// # Errors
    /// The server's error.
    pub(super) fn checked(self) -> Result<Self, ServerError> {
        match self {
            Self::Error(error) => Err(error),
            Self::Simple(_) | Self::Integer(_) | Self::Bulk(_) | Self::Nil | Self::Array(_) => {
                Ok(self)
            }
        }
    }
}

/// An error of the server: a code, and words that may contain the names of keys and commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerError {
    text: String,
}

impl ServerError {
    /// Of the line after `-`.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// The first word: `OOM`, `WRONGTYPE`, `ERR`.
    pub(super) fn code(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for ServerError {
    /// One line of at most 200 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        self.text.chars().take(200).try_for_each(|c| fmt::Write::write_char(f, shown(c)))
    }
}

/// What is no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

/// Begins a command of so many words.
pub(super) fn begin(out: &mut Vec<u8>, words: usize) {
    length(out, b'*', words);
}

/// Adds a word to the command that was begun.
pub(super) fn word(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Adds a word that is a number.
pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    let (digits, from) = digits(number);
    word(out, digits.get(from..).unwrap_or_default());
}

/// Adds a whole command.
pub(super) fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    for bytes in words {
        word(out, bytes);
    }
}

fn length(out: &mut Vec<u8>, kind: u8, number: usize) {
    let (digits, from) = digits(number as u64);
    out.push(kind);
    out.extend_from_slice(digits.get(from..).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
}

/// The decimal digits of a number, at the end of the array, and where they begin.
fn digits(mut number: u64) -> ([u8; 20], usize) {
    let mut digits = [b'0'; 20];
    let mut from = digits.len();
    for digit in digits.iter_mut().rev() {
        // A decimal digit fits.
        *digit += (number % 10) as u8;
        number /= 10;
        from -= 1;
        if number == 0 {
            break;
        }
    }
    (digits, from)
}

/// Decodes the first reply, of at most `max` bytes, and returns it with its number of bytes; `None` if it is not
/// complete.
///
/// # Errors
/// The bytes are no reply, or too many.
pub(super) fn decode(bytes: &[u8], max: usize) -> Result<Option<(Reply, usize)>, Malformed> {
    let mut cursor = Cursor { bytes, at: 0, max };
    match cursor.reply(0) {
        Ok(reply) => Ok(Some((reply, cursor.at))),
        Err(NoReply::Incomplete) if bytes.len() <= max => Ok(None),
        Err(NoReply::Incomplete | NoReply::Malformed) => Err(Malformed),
    }
}

enum NoReply {
    Incomplete,
    Malformed,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes of a string at most.
    max: usize,
}

impl<'a> Cursor<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, NoReply> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or(NoReply::Malformed)?;
        let text = std::str::from_utf8(rest);
        let lossy = || String::from_utf8_lossy(rest).into_owned();
        let number =
            || text.ok().and_then(|text| text.parse::<i64>().ok()).ok_or(NoReply::Malformed);
        match kind {
            b'+' => Ok(Reply::Simple(lossy())),
            b'-' => Ok(Reply::Error(ServerError::new(lossy()))),
            b':' => Ok(Reply::Integer(number()?)),
            b'$' => match number()? {
                -1 => Ok(Reply::Nil),
                length => {
                    self.bulk(usize::try_from(length).map_err(|_negative| NoReply::Malformed)?)
                }
            },
            b'*' => match number()? {
                -1 => Ok(Reply::Nil),
                length => {
                    let length = usize::try_from(length).map_err(|_negative| NoReply::Malformed)?;
                    if length > ELEMENTS_MAX || depth >= DEPTH_MAX {
                        return Err(NoReply::Malformed);
                    }
                    let elements = (0..length).map(|_| self.reply(depth + 1));
                    Ok(Reply::Array(elements.collect::<Result<_, _>>()?))
                }
            },
            _ => Err(NoReply::Malformed),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], NoReply> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(NoReply::Incomplete)?;
        self.at += end + 2;
        rest.get(..end).ok_or(NoReply::Malformed)
    }

    fn bulk(&mut self, length: usize) -> Result<Reply, NoReply> {
        if length > self.max {
            return Err(NoReply::Malformed);
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (content, end) = rest.split_at_checked(length).ok_or(NoReply::Incomplete)?;
        match end {
            [b'\r', b'\n', ..] => {}
            [] | [b'\r'] => return Err(NoReply::Incomplete),
            _ => return Err(NoReply::Malformed),
        }
        self.at += length + 2;
        Ok(Reply::Bulk(content.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_binary_strings() {
        let mut out = Vec::new();
        command(&mut out, &[b"XADD", b"a\r\n b", b""]);
        assert_eq!(out, b"*3\r\n$4\r\nXADD\r\n$5\r\na\r\n b\r\n$0\r\n\r\n");
        for (value, text) in [(0, "$1\r\n0\r\n"), (907, "$3\r\n907\r\n")] {
            let mut out = Vec::new();
            number(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
        let mut out = Vec::new();
        number(&mut out, u64::MAX);
        assert_eq!(out, format!("$20\r\n{}\r\n", u64::MAX).into_bytes());
    }

    #[test]
    fn replies_are_decoded_however_they_arrive() {
        let bytes = b"*6\r\n:-1\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n-OOM command not allowed\r\n*1\r\n+OK\r\n:7\r\n";
        let (reply, length) = decode(bytes, REPLY_BYTES_MAX).unwrap().unwrap();
        assert_eq!(length, bytes.len() - 4);
        let elements = reply.elements();
        assert_eq!(elements[0].integer(), Some(-1));
        assert_eq!(elements[1].text().as_deref(), Some("a\r\n"));
        assert_eq!((&elements[2], &elements[3]), (&Reply::Nil, &Reply::Nil));
        assert_eq!(elements[4].clone().checked().unwrap_err().code(), "OOM");
        assert_eq!(elements[5].elements(), [Reply::Simple("OK".to_owned())]);
        for end in 0..length {
            assert_eq!(decode(&bytes[..end], REPLY_BYTES_MAX), Ok(None), "{end} bytes");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused_at_once() {
        let deep = b"*1\r\n".repeat(20);
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"\r\n",
            b"$-2\r\n",
            b"$x\r\n",
            b"$99999999999\r\n",
            b"*99999999\r\n",
            b"$1\r\nabc\r\n",
            &deep,
        ] {
            assert_eq!(
                decode(bytes, REPLY_BYTES_MAX),
                Err(Malformed),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
        assert_eq!(decode(&vec![b'+'; REPLY_BYTES_MAX + 1], REPLY_BYTES_MAX), Err(Malformed));
    }

    #[test]
    fn an_error_is_shown_in_one_short_line() {
        let error = ServerError::new(format!("ERR a\rb{}", "x".repeat(500)));
        assert!(error.to_string().starts_with("ERR a bx") && error.to_string().len() == 200);
    }
}
