//! A sink whose records a worker thread sends.
//!
//! Shared by the brokers of which a client runs on tokio. Each of them has [`RecordRules`], which judge a record before
//! it is accepted, and a worker. The worker has to keep these rules; the conformance test holds them:
//!
//! 1. Records of one order (the same destination and key, or more) are sent in the order of the queue.
//! 2. A record is reported as published only by the broker's own acknowledgement of that record.
//! 3. After the first record that is not published, no later one is, until that one is: either by the broker (a chain,
//!    a transaction, a script), or because the connection is given up.
//! 4. After a lost connection the records without an acknowledgement are sent again in their order, before later ones.
//!    What the broker can say about them is asked first.
//! 5. After a reset ([`Life::generation`](crate::life::Life)) nothing of the earlier generation is sent, and
//!    nothing of the new one before what was in flight is answered, or can't take effect any more.
//! 6. A position that is lower than an earlier one is no reason to drop a record: a parked event is retried late.

use crate::send_queue::{QueueLimits, SendQueue};
use crate::worker_thread;
use postrider_core::record::{Record, Ticket};
use postrider_core::sink::{Mailbox, Needs, NotTaken, Sink, SinkError};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is decided about a record without the broker, on the pipeline's thread.
pub(crate) trait RecordRules: Send {
    /// What is known of a destination that accepts records.
    type Facts: Clone + Debug + Send;

    /// Whether the record can be published as it is, and its destination accepts records.
    ///
    /// # Errors
    /// [`NotTaken::Refused`], or the answer of [`SendQueue::destination`].
    fn admit(
        &mut self,
        queue: &SendQueue<Self::Facts>,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken>;

    /// Whether the destination accepts records, by an answer from after `since`.
    ///
    /// # Errors
    /// As [`Sink::probe`].
    fn probe(
        &mut self,
        queue: &SendQueue<Self::Facts>,
        topic: &str,
        since: Instant,
    ) -> Result<(), NotTaken>;
}

/// The sink's end of the queue.
pub(crate) struct QueuedSink<R: RecordRules> {
    queue: Arc<SendQueue<R::Facts>>,
    rules: R,
}

impl<R: RecordRules> QueuedSink<R> {
    /// Starts the thread on which the worker runs. The worker ends when its queue is closed.
    ///
    /// # Errors
    /// A thread or a runtime that can't be started.
    pub(crate) fn open<W>(
        thread: &str,
        needs: &Needs,
        mailbox: Mailbox,
        rules: R,
        worker: impl FnOnce(Arc<SendQueue<R::Facts>>) -> W + Send + 'static,
    ) -> Result<Self, SinkError>
    where
        W: Future<Output = ()>,
        R::Facts: 'static,
    {
        let limits = QueueLimits {
            records_max: needs.in_flight_events.max(1),
            bytes_max: needs.in_flight_bytes.max(1),
        };
        let queue = Arc::new(SendQueue::new(mailbox.clone(), limits));
        let shared = Arc::clone(&queue);
        worker_thread::start(thread, mailbox, move || worker(shared))?;
        Ok(Self { queue, rules })
    }

    fn offer(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.rules.admit(&self.queue, record, since)?;
        self.queue.push(ticket, record, since.is_some())
    }
}

impl<R: RecordRules> Sink for QueuedSink<R> {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        self.offer(ticket, record, None)
    }

    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.offer(ticket, record, Some(since))
    }

    fn probe(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        self.rules.probe(&self.queue, topic, since)
    }

    fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    fn reset(&mut self) {
        self.queue.reset();
    }

    fn close(&mut self, grace: Duration) {
        self.queue.close(grace);
    }
}

impl<R: RecordRules> Drop for QueuedSink<R> {
    fn drop(&mut self) {
        self.queue.close(Duration::ZERO);
    }
}
