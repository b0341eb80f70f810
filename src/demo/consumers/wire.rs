//! What the consumers share: a message, a login, and a connection whose unread bytes are kept, so that a protocol can
//! be read in pieces as they arrive.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a connection may take to open, and how long a write may block.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long an answer may take while a connection is being set up.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Unread bytes at most: more than the largest reply that is asked for.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// What was read: the key, empty if there is none, and the payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConsumedMessage {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// A server, and who logs in there. There is no `Debug`, because of the password.
#[derive(Clone)]
pub(crate) struct BrokerLogin {
    pub(crate) address: SocketAddr,
    pub(crate) user: String,
    pub(crate) password: String,
}

/// What a parser finds at the beginning of the unread bytes: an item with its length, or `None` if bytes are missing.
pub(super) type Parsed<T> = io::Result<Option<(T, usize)>>;

/// A connection, and what was read from it and not used yet.
#[derive(Debug)]
pub(super) struct ReadWire {
    stream: TcpStream,
    unread: Vec<u8>,
    used: usize,
}

impl ReadWire {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(CONNECT_MAX))?;
        Ok(Self { stream, unread: Vec::new(), used: 0 })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next item that is complete already.
    pub(super) fn next<T>(&mut self, parse: impl Fn(&[u8]) -> Parsed<T>) -> io::Result<Option<T>> {
        let found = parse(self.unread.get(self.used..).unwrap_or_default())?;
        Ok(found.map(|(item, length)| {
            self.used += length;
            item
        }))
    }

    /// Reads further bytes. Returns false if none arrived within `wait`, which must not be zero.
    pub(super) fn fill(&mut self, wait: Duration) -> io::Result<bool> {
        self.unread.drain(..self.used);
        self.used = 0;
        let had = self.unread.len();
        if had > UNREAD_BYTES_MAX {
            return Err(invalid("a reply is too large"));
        }
        self.stream.set_read_timeout(Some(wait))?;
        self.unread.resize(had + READ_BYTES, 0);
        let read = self.stream.read(self.unread.get_mut(had..).unwrap_or_default());
        self.unread.truncate(had + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if is_time_out(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for one item, as an answer to what was sent.
    pub(super) fn answer<T>(&mut self, parse: impl Fn(&[u8]) -> Parsed<T>) -> io::Result<T> {
        loop {
            if let Some(item) = self.next(&parse)? {
                return Ok(item);
            }
            if !self.fill(ANSWER_MAX)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

fn is_time_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// An error for bytes that the protocol does not have there.
pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A line that ends with CR LF, without its end, and its length with its end.
pub(super) fn line(bytes: &[u8]) -> Parsed<&str> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(bytes.get(..end).unwrap_or_default());
    let text = text.map_err(|error| invalid(error.to_string()))?;
    Ok(Some((text, end + 2)))
}
