//! The RabbitMQ sink: what is decided about a record without the server.

use super::message;
use super::spec::{MessageRules, RabbitSpec};
use super::worker::Worker;
use crate::queued_sink::{QueuedSink, RecordRules};
use crate::send_queue::SendQueue;
use postrider_core::record::Record;
use postrider_core::sink::{Mailbox, Needs, NotTaken, Sink, SinkError};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Routing keys without a queue that are remembered. A message for a further one is sent, and returned.
const UNROUTABLE_MAX: usize = 10_000;

/// What the worker has learned, for the rules.
#[derive(Debug)]
pub(super) struct RabbitFacts {
    /// Routing keys for which no queue is bound.
    unroutable: Mutex<HashSet<String>>,
    /// Their number, to spare the lock.
    count: AtomicUsize,
    frame_max: AtomicUsize,
}

impl RabbitFacts {
    fn new() -> Self {
        Self {
            unroutable: Mutex::default(),
            count: AtomicUsize::new(0),
            frame_max: AtomicUsize::new(super::codec::FRAME_PAYLOAD_MAX),
        }
    }

    fn unroutable(&self) -> MutexGuard<'_, HashSet<String>> {
        self.unroutable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no queue is bound for a routing key, as far as is known.
    pub(super) fn is_unroutable(&self, topic: &str) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.unroutable().contains(topic)
    }

    /// No queue is bound for this routing key.
    pub(super) fn lacks_route(&self, topic: &str) {
        let mut unroutable = self.unroutable();
        if unroutable.len() < UNROUTABLE_MAX {
            unroutable.insert(topic.to_owned());
        }
        self.count.store(unroutable.len(), Ordering::Release);
    }

    /// A queue has got a message with this routing key. Returns whether none was bound before.
    pub(super) fn has_route(&self, topic: &str) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut unroutable = self.unroutable();
        let was = unroutable.remove(topic);
        self.count.store(unroutable.len(), Ordering::Release);
        was
    }

    /// The largest frame of the present connection.
    pub(super) fn set_frame_max(&self, bytes: usize) {
        self.frame_max.store(bytes, Ordering::Release);
    }
}

/// The rules for records.
pub(super) struct RabbitRules {
    rules: MessageRules,
    facts: Arc<RabbitFacts>,
}

impl RecordRules for RabbitRules {
    type Facts = ();

    fn admit(
        &mut self,
        queue: &SendQueue<()>,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        let frame_max = self.facts.frame_max.load(Ordering::Acquire);
        message::judge(record, &self.rules, frame_max).map_err(NotTaken::Refused)?;
        // Only a message tells whether a queue is bound. A parked event that is retried is that message.
        if since.is_none() && self.facts.is_unroutable(record.topic) {
            return queue.destination(record.topic, None);
        }
        Ok(())
    }

    fn probe(
        &mut self,
        _queue: &SendQueue<()>,
        _topic: &str,
        _since: Instant,
    ) -> Result<(), NotTaken> {
        Ok(())
    }
}

/// Opens the sink, which connects in the background.
///
/// # Errors
/// A thread that can't be started.
pub(super) fn open(
    spec: RabbitSpec,
    needs: &Needs,
    mailbox: Mailbox,
) -> Result<Box<dyn Sink>, SinkError> {
    let facts = Arc::new(RabbitFacts::new());
    let rules = RabbitRules { rules: spec.rules.clone(), facts: Arc::clone(&facts) };
    let worker = move |queue| Worker::new(queue, spec, facts).run();
    Ok(Box::new(QueuedSink::open("rabbitmq", needs, mailbox, rules, worker)?))
}
