//! What the connection has read and the caller has not yet taken: batches in order, bounded in bytes, and the end.
//!
//! One producer (the connection's thread), one consumer. A batch that alone is larger than the bound passes when the
//! queue is empty, or a large row could never pass.

use super::batch::Batch;
use crate::error::SourceError;
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
mod tests {
    use super::*;
    use crate::error::SourceErrorKind;
    use crate::wal::batch::batch;
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
