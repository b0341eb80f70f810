//! Whole frames of the stream, cut out of the read buffer without a copy.
//!
//! Knows `CopyData` and the header of `XLogData` and keepalives (manual, 54.4.6), not what is in them.

use crate::lsn::Lsn;
use crate::wire::{HEADER_BYTES, frame_bytes};
use bytes::{Buf, Bytes, BytesMut};

/// The tag of a message that is a frame.
pub(super) const COPY_DATA: u8 = b'd';

/// Bytes of `XLogData` before the data: its tag, start, end, clock.
const XLOG_HEADER_BYTES: usize = 1 + 8 + 8 + 8;

/// Bytes of a keepalive: its tag, end, clock, whether a reply is asked for.
const KEEPALIVE_BYTES: usize = 1 + 8 + 8 + 1;

/// Frames that arrived together, in the order of the stream. It shares the read buffer: holding a small one for long
/// keeps a buffer of 256 KiB alive.
#[derive(Clone)]
pub struct Batch(Bytes);

impl Batch {
    /// The frames in order.
    pub fn frames(&self) -> Frames<'_> {
        Frames(&self.0)
    }

    /// The frame that begins at `offset`, 0 for the first, and the offset of the next.
    #[inline]
    pub fn frame_at(&self, offset: usize) -> Option<(Frame<'_>, usize)> {
        let mut frames = Frames(self.0.get(offset..)?);
        let frame = frames.next()?;
        Some((frame, self.0.len() - frames.0.len()))
    }

    /// Bytes of all frames with their headers.
    pub fn size_bytes(&self) -> usize {
        self.0.len()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} B)", self.0.len())
    }
}

/// One frame of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A pgoutput message.
    XLogData {
        /// The LSN of the change's record, 0 for Relation and Type. Nothing to confirm.
        wal_start: Lsn,
        /// The same again in logical replication; on a Commit its `end_lsn`.
        wal_end: Lsn,
        /// The message, for `pgoutput`.
        data: &'a [u8],
    },
    /// How far the walsender is: everything before `wal_end` has been sent, or is not ours.
    Keepalive {
        /// The last position processed (not the end of WAL, whatever the manual says: measured on 15 and 18).
        wal_end: Lsn,
        /// The server wants an answer. The connection gives it; nothing to do for the reader.
        reply_requested: bool,
    },
}

impl std::fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::XLogData { wal_start, wal_end, data } => {
                write!(f, "XLogData({wal_start}, {wal_end}, {} B)", data.len())
            }
            Self::Keepalive { wal_end, reply_requested } => {
                write!(f, "Keepalive({wal_end}, reply {reply_requested})")
            }
        }
    }
}

impl<'a> Frame<'a> {
    /// From the body of a `CopyData` message; `None` if it is neither of the two.
    fn parse(body: &'a [u8]) -> Option<Self> {
        let lsn = |at: usize| -> Option<Lsn> {
            let bytes = body.get(at..)?.first_chunk::<8>()?;
            Some(Lsn::from_wire(u64::from_be_bytes(*bytes)))
        };
        match body.first()? {
            b'w' => Some(Self::XLogData {
                wal_start: lsn(1)?,
                wal_end: lsn(9)?,
                data: body.get(XLOG_HEADER_BYTES..)?,
            }),
            b'k' if body.len() == KEEPALIVE_BYTES => {
                Some(Self::Keepalive { wal_end: lsn(1)?, reply_requested: *body.last()? != 0 })
            }
            _ => None,
        }
    }
}

/// The frames of a [`Batch`].
#[derive(Clone)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        // A batch was checked when it was cut: the only way out is its end.
        let whole = frame_bytes(self.0).ok().flatten()?;
        let (frame, rest) = self.0.split_at_checked(whole)?;
        self.0 = rest;
        Frame::parse(frame.get(HEADER_BYTES..)?)
    }
}

/// What stands at the beginning of the read buffer.
#[derive(Debug)]
pub(super) enum Cut {
    /// Frames, cut out of the buffer.
    Frames(Batch, Seen),
    /// Another message of the server, cut out of the buffer: its tag and its body.
    Other(u8, Bytes),
    /// A message that is not whole. This many bytes of it are missing, as far as is known.
    Missing(usize),
}

/// What the connection itself needs to know of frames it hands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    /// The highest position.
    pub(super) highest: Lsn,
    /// `wal_end` of the last keepalive that asks for a reply.
    pub(super) ping: Option<Lsn>,
}

/// Why the buffer can't be cut.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CutError {
    /// Not what the protocol allows.
    Malformed,
    /// A message of this many bytes.
    TooLarge(usize),
}

/// Cuts everything whole of one kind off the beginning of `inbox`.
///
/// A message above `message_bytes_max` is an error as soon as its header is there, but only when it comes first: what
/// was before it is handed out first.
pub(super) fn cut(inbox: &mut BytesMut, message_bytes_max: usize) -> Result<Cut, CutError> {
    let mut seen = Seen::default();
    let mut end = 0;
    loop {
        let rest = inbox.get(end..).unwrap_or_default();
        let first = end == 0;
        let whole = match frame_bytes(rest) {
            Ok(Some(whole)) if whole <= message_bytes_max && whole <= rest.len() => whole,
            _ if !first => break,
            Err(_) => return Err(CutError::Malformed),
            Ok(Some(whole)) if whole > message_bytes_max => return Err(CutError::TooLarge(whole)),
            Ok(whole) => return Ok(Cut::Missing(whole.unwrap_or(HEADER_BYTES) - rest.len())),
        };
        if rest.first() != Some(&COPY_DATA) {
            if !first {
                break;
            }
            let mut message = inbox.split_to(whole).freeze();
            let tag = message.get_u8();
            message.advance(HEADER_BYTES - 1);
            return Ok(Cut::Other(tag, message));
        }
        let body = rest.get(HEADER_BYTES..whole).unwrap_or_default();
        match Frame::parse(body) {
            Some(Frame::XLogData { wal_start, wal_end, .. }) => {
                seen.highest = seen.highest.max(wal_start).max(wal_end);
            }
            Some(Frame::Keepalive { wal_end, reply_requested }) => {
                seen.highest = seen.highest.max(wal_end);
                seen.ping = if reply_requested { Some(wal_end) } else { seen.ping };
            }
            None if !first => break,
            None => return Err(CutError::Malformed),
        }
        end += whole;
    }
    Ok(Cut::Frames(Batch(inbox.split_to(end).freeze()), seen))
}

/// A batch of one frame of so many bytes; 30 are the fewest.
#[cfg(test)]
pub(super) fn batch(bytes: usize) -> Batch {
    let mut frame = vec![b'd', 0, 0, 0, 0, b'w'];
    frame.resize(bytes, 0);
    frame[1..5].copy_from_slice(&u32::try_from(bytes - 1).unwrap().to_be_bytes());
    let Ok(Cut::Frames(batch, _)) = cut(&mut BytesMut::from(&frame[..]), 1 << 20) else {
        panic!("a frame");
    };
    batch
}

#[cfg(test)]
mod tests;
