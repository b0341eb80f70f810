//! What the connection has read and the caller has not yet taken: batches in order, bounded in bytes, and the end.
//!
//! One producer (the connection's thread), one consumer. A batch that alone is larger than the bound passes when the
//! queue is empty, or a large row could never pass.

#[cfg(test)]
mod tests;

use crate::error::SourceError;
use crate::handshake::{HEADER_BYTES, frame_bytes};
use crate::lsn::Lsn;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

pub(super) struct Queue {
    bytes_max: usize,
    inner: Mutex<Inner>,
    arrived: Notify,
    room: Notify,
}

#[derive(Default)]
struct Inner {
    batches: VecDeque<Batch>,
    bytes: usize,
    end: Option<End>,
}

/// Why nothing more comes.
pub(super) enum End {
    /// The connection ended.
    Error(SourceError),
    /// A message can't be read. The connection stands, so nothing is lost by taking all that came before; its own end
    /// comes after this.
    Message(SourceError),
    /// The connection's thread broke one of its own invariants.
    Panicked,
    /// The end was taken already.
    Taken,
}

/// What the consumer gets.
pub(super) enum Next {
    Batch(Batch),
    End(End),
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default(), arrived: Notify::new(), room: Notify::new() }
    }

    /// What it may hold. Unit: bytes.
    pub(super) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a batch in, or gives it back when there is no room. The consumer finds it when it looks; one that waits is
    /// told by [`announce`](Self::announce).
    pub(super) fn offer(&self, batch: Batch) -> Result<(), Batch> {
        let mut inner = self.lock();
        if !inner.batches.is_empty() && inner.bytes + batch.size_bytes() > self.bytes_max {
            return Err(batch);
        }
        inner.bytes += batch.size_bytes();
        inner.batches.push_back(batch);
        Ok(())
    }

    /// Wakes the consumer, if it waits.
    pub(super) fn announce(&self) {
        self.arrived.notify_one();
    }

    /// Waits until the consumer has taken something. A permit left from before is harmless: the offer is repeated.
    pub(super) async fn room(&self) {
        self.room.notified().await;
    }

    /// Nothing comes after this. The first end stands, but for [`End::Message`].
    pub(super) fn end(&self, end: End) {
        let mut inner = self.lock();
        if matches!(inner.end, None | Some(End::Message(_))) {
            inner.end = Some(end);
        }
        drop(inner);
        self.arrived.notify_one();
    }

    /// A batch that is there already.
    pub(super) fn ready(&self) -> Option<Batch> {
        let batch = self.lock().pop()?;
        self.room.notify_one();
        Some(batch)
    }

    /// The next batch, or the end when all batches are taken. Dropping the future loses nothing.
    pub(super) async fn next(&self) -> Next {
        loop {
            {
                let mut inner = self.lock();
                if let Some(batch) = inner.pop() {
                    drop(inner);
                    self.room.notify_one();
                    return Next::Batch(batch);
                }
                if let Some(end) = inner.take_end() {
                    return Next::End(end);
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Waits for the end of the connection, whatever stands before it: for a consumer that takes no batches now.
    pub(super) async fn ended(&self) -> End {
        loop {
            {
                let mut inner = self.lock();
                if !matches!(inner.end, Some(End::Message(_)))
                    && let Some(end) = inner.take_end()
                {
                    return end;
                }
            }
            self.arrived.notified().await;
        }
    }
}

impl Inner {
    fn take_end(&mut self) -> Option<End> {
        let end = self.end.take()?;
        self.end = (!matches!(end, End::Message(_))).then_some(End::Taken);
        Some(end)
    }

    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.size_bytes();
        Some(batch)
    }
}

#[cfg(test)]
mod queue_tests {
    use super::*;
    use crate::error::SourceErrorKind;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// The size of the next batch, the end, or nothing yet.
    fn poll(queue: &Queue) -> String {
        match pin!(queue.next()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => "nothing".to_owned(),
            Poll::Ready(Next::Batch(batch)) => batch.size_bytes().to_string(),
            Poll::Ready(Next::End(End::Error(error) | End::Message(error))) => {
                format!("{:?}", error.kind())
            }
            Poll::Ready(Next::End(End::Panicked)) => "panicked".to_owned(),
            Poll::Ready(Next::End(End::Taken)) => "taken".to_owned(),
        }
    }

    #[test]
    fn who_waits_is_told_by_the_announcement() {
        let queue = Queue::new(100);
        let mut next = pin!(queue.next());
        let mut poll = || next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        assert!(queue.offer(batch(30)).is_ok());
        assert!(!poll(), "not told yet");
        queue.announce();
        assert!(poll());
    }

    #[test]
    fn the_bound_is_bytes_and_one_large_batch_passes_alone() {
        let queue = Queue::new(100);
        assert!(queue.offer(batch(60)).is_ok());
        assert!(queue.offer(batch(40)).is_ok());
        assert_eq!(queue.offer(batch(30)).unwrap_err().size_bytes(), 30, "given back");
        assert_eq!(poll(&queue), "60");
        assert!(queue.offer(batch(500)).is_err());
        assert_eq!(poll(&queue), "40");
        assert!(queue.offer(batch(500)).is_ok(), "a large one passes when nothing else is there");
        assert!(queue.offer(batch(30)).is_err());
        assert_eq!(poll(&queue), "500");
        assert_eq!(poll(&queue), "nothing");
    }

    #[test]
    fn what_is_there_already_is_taken_and_the_end_is_left_for_who_waits() {
        let queue = Queue::new(100);
        assert!(queue.ready().is_none());
        assert!(queue.offer(batch(60)).is_ok());
        assert!(queue.offer(batch(50)).is_err(), "no room");
        queue.end(End::Panicked);
        assert_eq!(queue.ready().map(|batch| batch.size_bytes()), Some(60));
        assert!(queue.offer(batch(50)).is_ok(), "room again");
        assert_eq!(queue.ready().map(|batch| batch.size_bytes()), Some(50));
        assert!(queue.ready().is_none());
        assert_eq!(poll(&queue), "panicked");
    }

    fn error(kind: SourceErrorKind) -> SourceError {
        SourceError::new(kind, "stream")
    }

    #[test]
    fn who_takes_nothing_now_hears_of_a_lost_connection_and_not_of_a_message() {
        let queue = Queue::new(100);
        let mut ended = pin!(queue.ended());
        let mut poll_ended = || ended.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(queue.offer(batch(60)).is_ok());
        queue.end(End::Message(error(SourceErrorKind::Protocol)));
        assert!(poll_ended().is_pending());
        queue.end(End::Error(error(SourceErrorKind::Closed)));
        let Poll::Ready(End::Error(lost)) = poll_ended() else { panic!("the connection is lost") };
        assert_eq!(*lost.kind(), SourceErrorKind::Closed);
    }

    #[test]
    fn behind_a_message_that_cannot_be_read_comes_the_end_of_the_connection() {
        let queue = Queue::new(100);
        queue.end(End::Message(error(SourceErrorKind::Protocol)));
        assert_eq!(poll(&queue), "Protocol");
        assert_eq!(poll(&queue), "nothing");
        queue.end(End::Error(error(SourceErrorKind::Stopped)));
        assert_eq!(poll(&queue), "Stopped");
        assert_eq!(poll(&queue), "taken");
    }

    #[test]
    fn the_end_comes_once_after_everything_and_the_first_one_stands() {
        let queue = Queue::new(100);
        assert!(queue.offer(batch(30)).is_ok());
        let error = SourceError::new(SourceErrorKind::Closed, "stream");
        queue.end(End::Error(error));
        queue.end(End::Panicked);
        for expected in ["30", "Closed", "taken", "taken"] {
            assert_eq!(poll(&queue), expected);
        }
    }
}

// Whole frames of the stream, cut out of the read buffer without a copy.
//
// Knows `CopyData` and the header of `XLogData` and keepalives (manual, 54.4.6), not what is in them.

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
