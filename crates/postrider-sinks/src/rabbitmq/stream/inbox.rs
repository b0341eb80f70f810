//! What the worker has given to the publisher of one stream.

use super::line::LineRecord;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The worker's end and the publisher's end. It has at most what the pipeline has in flight.
#[derive(Debug, Default)]
pub(super) struct PublisherInbox {
    records: Mutex<Vec<LineRecord>>,
    arrived: Notify,
    /// Records that were given and are not done with.
    held: AtomicUsize,
    ended: AtomicBool,
}

impl PublisherInbox {
    fn records(&self) -> MutexGuard<'_, Vec<LineRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the publisher a record.
    pub(super) fn give(&self, record: LineRecord) {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.records().push(record);
        self.arrived.notify_one();
    }

    /// Nothing more is given: the publisher ends when it has nothing.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    /// Whether nothing more is given.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for a record or the end. Cancel-safe, and level-triggered: take first.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// The records that were given since.
    pub(super) fn take(&self) -> Vec<LineRecord> {
        std::mem::take(&mut *self.records())
    }

    /// The publisher is done with so many records.
    pub(super) fn done(&self, records: usize) {
        self.held.fetch_sub(records, Ordering::Relaxed);
    }

    /// Whether the publisher has no record.
    pub(super) fn is_idle(&self) -> bool {
        self.held.load(Ordering::Relaxed) == 0
    }
}
