//! Reads the traffic between a relay and PostgreSQL for the positions in it.
//!
//! Decodes the frames of the protocol (manual, 54.7) and of streaming replication (54.4) itself: the start position,
//! every status update, and the positions that the server has sent.

use super::pump::Direction;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a message that are examined: the longest is `START_REPLICATION` with its options.
const HEAD: usize = 600;

/// The kind of a position that a relay sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `START_REPLICATION … LOGICAL`: the server skips what is before it.
    Start,
    /// A status update's flush position.
    Flush,
}

/// One position that a relay confirms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) kind: Kind,
    /// The number of the connection of this proxy.
    pub(crate) session: u32,
    /// Milliseconds since the Unix epoch.
    pub(crate) at: i64,
    pub(crate) lsn: u64,
    /// The highest position that the server had sent before on this connection.
    pub(crate) received: u64,
}

/// Everything that was recorded between one relay and the server.
#[derive(Default)]
pub(crate) struct Wire {
    seen: Mutex<(u32, Vec<Seen>)>,
}

impl Wire {
    /// The confirmed positions so far, in order of time.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("what was seen").1.clone()
    }

    pub(super) fn connection(self: &Arc<Self>) -> Arc<Mutex<Connection>> {
        let mut seen = self.seen.lock().expect("what was seen");
        seen.0 += 1;
        let up = Frames { startup: true, ..Frames::default() };
        Arc::new(Mutex::new(Connection {
            wire: Arc::clone(self),
            session: seen.0,
            up,
            down: Frames::default(),
            received: 0,
        }))
    }
}

/// One connection.
pub(super) struct Connection {
    wire: Arc<Wire>,
    session: u32,
    up: Frames,
    down: Frames,
    received: u64,
}

impl Connection {
    pub(super) fn pass(&mut self, direction: Direction, bytes: &[u8]) {
        let frames = match direction {
            Direction::Up => self.up.cut(bytes),
            Direction::Down => self.down.cut(bytes),
        };
        for (tag, head) in frames {
            match (direction, tag, head.first()) {
                // Standby status update: written, flushed, applied.
                (Direction::Up, b'd', Some(b'r')) => self.claim(Kind::Flush, number(&head, 9)),
                (Direction::Up, b'Q', _) => self.command(&head),
                // XLogData: its start, and the server's end of WAL.
                (Direction::Down, b'd', Some(b'w')) => {
                    self.received = self.received.max(number(&head, 1)).max(number(&head, 9));
                }
                // Keepalive: the server's end of WAL.
                (Direction::Down, b'd', Some(b'k')) => {
                    self.received = self.received.max(number(&head, 1));
                }
                _ => {}
            }
        }
    }

    fn command(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let Some((_, rest)) = text.split_once(" LOGICAL ") else { return };
        let Some(lsn) = rest.split_whitespace().next().and_then(parse_lsn) else { return };
        if text.starts_with("START_REPLICATION") {
            self.received = self.received.max(lsn);
            self.claim(Kind::Start, lsn);
        }
    }

    fn claim(&mut self, kind: Kind, lsn: u64) {
        // Zero changes nothing: the server keeps its position.
        if lsn > 0 {
            let (session, received, at) = (self.session, self.received, now());
            let seen = Seen { kind, session, at, lsn, received };
            self.wire.seen.lock().expect("what was seen").1.push(seen);
        }
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a clock before the year 292277026")
}

/// `16/B374D848`.
pub(crate) fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |hex| u64::from_str_radix(hex, 16).ok();
    Some((part(high)? << 32) | part(low)?)
}

fn number(head: &[u8], at: usize) -> u64 {
    head.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")))
}

/// Splits a stream of bytes into messages, and keeps the first bytes of each.
#[derive(Default)]
struct Frames {
    /// The first message has no tag.
    startup: bool,
    head: Vec<u8>,
    /// Bytes of the current message that are still to come, once its header is complete.
    left: Option<usize>,
}

impl Frames {
    fn cut(&mut self, mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut whole = Vec::new();
        loop {
            let header = if self.startup { 4 } else { 5 };
            if self.left.is_none() {
                let take = (header - self.head.len()).min(bytes.len());
                self.head.extend_from_slice(&bytes[..take]);
                bytes = &bytes[take..];
                if self.head.len() < header {
                    return whole;
                }
                let length: [u8; 4] = self.head[header - 4..].try_into().expect("4 bytes");
                self.left = Some((u32::from_be_bytes(length) as usize).saturating_sub(4));
            }
            let left = self.left.expect("a header");
            let take = left.min(bytes.len());
            let keep = take.min((HEAD + header).saturating_sub(self.head.len()));
            self.head.extend_from_slice(&bytes[..keep]);
            bytes = &bytes[take..];
            self.left = Some(left - take);
            if left > take {
                return whole;
            }
            let head = std::mem::take(&mut self.head);
            if !self.startup {
                whole.push((head[0], head[header..].to_vec()));
            }
            (self.startup, self.left) = (false, None);
        }
    }
}

#[test]
fn messages_are_cut_wherever_the_pieces_end() {
    let update = |flush: u64| {
        let mut message = b"d\0\0\0\x26r".to_vec();
        for lsn in [flush + 1, flush, flush] {
            message.extend_from_slice(&lsn.to_be_bytes());
        }
        message.extend_from_slice(&[0; 9]);
        message
    };
    let query = |text: &[u8]| {
        let length = u32::try_from(text.len() + 4).unwrap().to_be_bytes();
        [b"Q".as_slice(), &length, text].concat()
    };
    let long = query(&[b'x'; 2_000]);
    let start = query(b"START_REPLICATION SLOT \"s\" LOGICAL 1/10 (proto_version '1')\0");
    let all = [b"\0\0\0\x08abcd".to_vec(), long, start, update(7), update(9)].concat();
    for piece in 1..40 {
        let wire = Arc::new(Wire::default());
        let connection = wire.connection();
        for bytes in all.chunks(piece) {
            connection.lock().unwrap().pass(Direction::Up, bytes);
        }
        let seen: Vec<(Kind, u64)> = wire.seen().iter().map(|seen| (seen.kind, seen.lsn)).collect();
        assert_eq!(seen, [(Kind::Start, (1 << 32) + 16), (Kind::Flush, 7), (Kind::Flush, 9)]);
    }
}
