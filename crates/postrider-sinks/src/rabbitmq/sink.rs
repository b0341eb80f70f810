//! The RabbitMQ sink: what is decided about a record without the server.

use super::facts::RabbitFacts;
use super::message;
use super::spec::{MessageRules, RabbitSpec};
use super::worker::Worker;
use crate::queued_sink::{QueuedSink, RecordRules};
use crate::send_queue::SendQueue;
use postrider_core::record::Record;
use postrider_core::sink::{Mailbox, Needs, NotTaken, Sink, SinkError};
use std::sync::Arc;
use std::time::Instant;

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
        let frame_max = self.facts.frame_max();
        message::judge(record, &self.rules, frame_max).map_err(NotTaken::Refused)?;
        // A parked event that is retried finds out by itself whether a queue gets it.
        if since.is_some() {
            return Ok(());
        }
        // Whether a queue exists can be asked, but not whether a binding does: only a message shows that.
        if self.rules.exchange.is_empty() || self.facts.is_unroutable(record.topic) {
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
