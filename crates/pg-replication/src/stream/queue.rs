//! The queue between the connection's thread and the caller: batches in order, bounded in bytes, then the reason for
//! the end of the stream.
//!
//! The queue has one producer and one consumer. A batch that is larger than the bound is accepted if the queue is
//! empty, otherwise a large row could never pass.

#[cfg(test)]
mod tests;

use crate::error::SourceError;
use crate::handshake::{HEADER_BYTES, message_bytes};
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

/// Why the stream ended.
pub(super) enum End {
    /// The connection ended.
    Error(SourceError),
    /// A message can't be read. The connection is still open, so that everything before the message can be confirmed.
    /// The end of the connection follows.
    Message(SourceError),
    /// The connection's thread panicked.
    Panicked,
    /// The consumer has taken the end already.
    Taken,
}

/// The next item of the queue.
pub(super) enum Next {
    Batch(Batch),
    End(End),
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, inner: Mutex::default(), arrived: Notify::new(), room: Notify::new() }
    }

    /// The bound. Unit: bytes.
    pub(super) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch, or returns it if there is no room. A waiting consumer is woken only by
    /// [`announce`](Self::announce).
    pub(super) fn offer(&self, batch: Batch) -> Result<(), Batch> {
        let mut inner = self.lock();
        if !inner.batches.is_empty() && inner.bytes + batch.size_bytes() > self.bytes_max {
            return Err(batch);
        }
        inner.bytes += batch.size_bytes();
        inner.batches.push_back(batch);
        Ok(())
    }

    /// Wakes a waiting consumer.
    pub(super) fn announce(&self) {
        self.arrived.notify_one();
    }

    /// Waits until the consumer has taken a batch. It may return early, because of an earlier permit; the caller offers
    /// again.
    pub(super) async fn room(&self) {
        self.room.notified().await;
    }

    /// Sets the end. The first end is kept, except that any end replaces [`End::Message`].
    pub(super) fn end(&self, end: End) {
        let mut inner = self.lock();
        if matches!(inner.end, None | Some(End::Message(_))) {
            inner.end = Some(end);
        }
        drop(inner);
        self.arrived.notify_one();
    }

    /// The next batch, if there is one.
    pub(super) fn ready(&self) -> Option<Batch> {
        let batch = self.lock().pop()?;
        self.room.notify_one();
        Some(batch)
    }

    /// Waits for the next batch, or for the end once all batches are taken. Dropping the future loses nothing.
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

    /// Waits for the end of the connection, even if the queue has batches: for a consumer that takes none now.
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

/// The tag of `CopyData`, the message that carries a frame (manual, 55.7).
pub(super) const COPY_DATA: u8 = b'd';

/// Bytes of `XLogData` before the data (manual, 54.4.6): tag, start, end, clock.
const XLOG_HEADER_BYTES: usize = 1 + 8 + 8 + 8;

/// Bytes of a keepalive (manual, 54.4.6): tag, end, clock, whether a reply is requested.
const KEEPALIVE_BYTES: usize = 1 + 8 + 8 + 1;

/// Frames that arrived together, in the order of the stream.
///
/// A batch shares the read buffer, without a copy: keeping a small batch keeps a buffer of 256 KiB alive.
#[derive(Clone)]
pub struct Batch(Bytes);

impl Batch {
    /// The frames in order.
    pub fn frames(&self) -> Frames<'_> {
        Frames(&self.0)
    }

    /// The frame that begins at `offset`, and the offset of the next frame; the first offset is 0. `None` at the end.
    /// Unit: bytes.
    #[inline]
    pub fn frame_at(&self, offset: usize) -> Option<(Frame<'_>, usize)> {
        let mut frames = Frames(self.0.get(offset..)?);
        let frame = frames.next()?;
        Some((frame, self.0.len() - frames.0.len()))
    }

    /// Size of all frames with their headers. Unit: bytes.
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
    /// `XLogData`: a pgoutput message.
    XLogData {
        /// The LSN of the change's WAL record; 0/0 for Relation and Type. It is not a position to confirm.
        wal_start: Lsn,
        /// In logical replication the same as `wal_start`; `end_lsn` for a Commit.
        wal_end: Lsn,
        /// The message, for [`pgoutput::decode`](crate::pgoutput::decode).
        data: &'a [u8],
    },
    /// The walsender's progress: it has sent everything before `wal_end` that the publications have.
    Keepalive {
        /// The last position that the walsender has processed. The manual says "the current end of WAL", which is not
        /// so (measured on 15 and 18).
        wal_end: Lsn,
        /// The server requests a reply. The connection sends it; the caller does nothing.
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
    /// Parses the body of a `CopyData` message; `None` if the body is neither of the two.
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

/// Iterator over the frames of a [`Batch`].
#[derive(Clone)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        // The frames of a batch were checked when they were split off, so `None` is the end of the batch.
        let whole = message_bytes(self.0).ok().flatten()?;
        let (frame, rest) = self.0.split_at_checked(whole)?;
        self.0 = rest;
        Frame::parse(frame.get(HEADER_BYTES..)?)
    }
}

/// What was split off the beginning of the read buffer.
#[derive(Debug)]
pub(super) enum Split {
    /// Frames, and what the connection needs to know of them.
    Frames(Batch, Seen),
    /// Another message of the server: its tag and its body.
    Other(u8, Bytes),
    /// The buffer has no complete message. At least this many bytes of it are missing.
    Missing(usize),
}

/// What the connection needs to know of the frames of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    /// The highest position of the frames.
    pub(super) highest: Lsn,
    /// `wal_end` of the last keepalive that requests a reply.
    pub(super) ping: Option<Lsn>,
}

/// Why nothing can be split off.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SplitError {
    /// The bytes violate the protocol.
    Malformed,
    /// The next message has this many bytes, more than the limit.
    TooLarge(usize),
}

/// Splits off the beginning of `inbox`: all complete frames up to another kind of message, or one other message.
///
/// A message larger than `message_bytes_max` is an error as soon as its header has arrived, but only if it is the first
/// message: the frames before it are returned first.
pub(super) fn split_frames(
    inbox: &mut BytesMut,
    message_bytes_max: usize,
) -> Result<Split, SplitError> {
    let mut seen = Seen::default();
    let mut end = 0;
    loop {
        let rest = inbox.get(end..).unwrap_or_default();
        let first = end == 0;
        let whole = match message_bytes(rest) {
            Ok(Some(whole)) if whole <= message_bytes_max && whole <= rest.len() => whole,
            _ if !first => break,
            Err(_) => return Err(SplitError::Malformed),
            Ok(Some(whole)) if whole > message_bytes_max => {
                return Err(SplitError::TooLarge(whole));
            }
            Ok(whole) => return Ok(Split::Missing(whole.unwrap_or(HEADER_BYTES) - rest.len())),
        };
        if rest.first() != Some(&COPY_DATA) {
            if !first {
                break;
            }
            let mut message = inbox.split_to(whole).freeze();
            let tag = message.get_u8();
            message.advance(HEADER_BYTES - 1);
            return Ok(Split::Other(tag, message));
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
            None => return Err(SplitError::Malformed),
        }
        end += whole;
    }
    Ok(Split::Frames(Batch(inbox.split_to(end).freeze()), seen))
}

/// A batch of one frame of `bytes` bytes, at least 30.
#[cfg(test)]
pub(super) fn batch(bytes: usize) -> Batch {
    let mut frame = vec![b'd', 0, 0, 0, 0, b'w'];
    frame.resize(bytes, 0);
    frame[1..5].copy_from_slice(&u32::try_from(bytes - 1).unwrap().to_be_bytes());
    let Ok(Split::Frames(batch, _)) = split_frames(&mut BytesMut::from(&frame[..]), 1 << 20) else {
        panic!("a frame");
    };
    batch
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
    fn a_waiting_consumer_is_woken_by_the_announcement() {
        let queue = Queue::new(100);
        let mut next = pin!(queue.next());
        let mut poll = || next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        assert!(queue.offer(batch(30)).is_ok());
        assert!(!poll(), "not announced yet");
        queue.announce();
        assert!(poll());
    }

    #[test]
    fn the_bound_is_bytes_and_one_large_batch_passes_alone() {
        let queue = Queue::new(100);
        assert!(queue.offer(batch(60)).is_ok());
        assert!(queue.offer(batch(40)).is_ok());
        assert_eq!(queue.offer(batch(30)).unwrap_err().size_bytes(), 30, "returned");
        assert_eq!(poll(&queue), "60");
        assert!(queue.offer(batch(500)).is_err());
        assert_eq!(poll(&queue), "40");
        assert!(queue.offer(batch(500)).is_ok(), "a large batch passes if the queue is empty");
        assert!(queue.offer(batch(30)).is_err());
        assert_eq!(poll(&queue), "500");
        assert_eq!(poll(&queue), "nothing");
    }

    #[test]
    fn ready_returns_batches_and_leaves_the_end_for_next() {
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
    fn the_end_of_the_connection_follows_a_message_that_cannot_be_read() {
        let queue = Queue::new(100);
        queue.end(End::Message(error(SourceErrorKind::Protocol)));
        assert_eq!(poll(&queue), "Protocol");
        assert_eq!(poll(&queue), "nothing");
        queue.end(End::Error(error(SourceErrorKind::Stopped)));
        assert_eq!(poll(&queue), "Stopped");
        assert_eq!(poll(&queue), "taken");
    }

    #[test]
    fn the_first_end_is_kept_and_comes_once_after_all_batches() {
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
