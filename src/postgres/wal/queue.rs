//! What the connection has read and the caller has not yet taken: batches in order, bounded in bytes, and the end.
//!
//! One producer (the connection's thread), one consumer. A batch that alone is larger than the bound passes when the
//! queue is empty, or a large row could never pass.

use super::batch::Batch;
use crate::postgres::error::SourceError;
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a batch over, or gives it back when there is no room.
    pub(super) fn offer(&self, batch: Batch) -> Result<(), Batch> {
        let mut inner = self.lock();
        if !inner.batches.is_empty() && inner.bytes + batch.size_bytes() > self.bytes_max {
            return Err(batch);
        }
        inner.bytes += batch.size_bytes();
        inner.batches.push_back(batch);
        drop(inner);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits until the consumer has taken something. A permit left from before is harmless: the offer is repeated.
    pub(super) async fn room(&self) {
        self.room.notified().await;
    }

    /// Nothing comes after this. The first end stands.
    pub(super) fn end(&self, end: End) {
        let mut inner = self.lock();
        if inner.end.is_none() {
            inner.end = Some(end);
        }
        drop(inner);
        self.arrived.notify_one();
    }

    /// The next batch, or the end when all batches are taken. Dropping the future loses nothing.
    pub(super) async fn next(&self) -> Next {
        loop {
            {
                let mut inner = self.lock();
                if let Some(batch) = inner.batches.pop_front() {
                    inner.bytes -= batch.size_bytes();
                    drop(inner);
                    self.room.notify_one();
                    return Next::Batch(batch);
                }
                if let Some(end) = inner.end.take() {
                    inner.end = Some(End::Taken);
                    return Next::End(end);
                }
            }
            self.arrived.notified().await;
        }
    }
}
