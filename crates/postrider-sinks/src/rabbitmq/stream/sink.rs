//! The sink for streams: what is decided about a record without the server.

use super::amqp10;
use super::shared::FrameLimit;
use super::worker::StreamWorker;
use crate::queued_sink::{QueuedSink, RecordRules};
use crate::rabbitmq::spec::{MessageRules, RabbitSpec};
use crate::send_queue::SendQueue;
use postrider_core::record::Record;
use postrider_core::sink::{Mailbox, Needs, NotTaken, Sink, SinkError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a parked event waits for a stream that may have been declared a moment ago, before it is postponed.
const RETRY_MAX: Duration = Duration::from_secs(8);

/// The rules for records.
#[derive(Debug)]
struct StreamRules {
    rules: MessageRules,
    limit: Arc<FrameLimit>,
}

impl RecordRules for StreamRules {
    type Facts = ();

    fn admit(
        &mut self,
        queue: &SendQueue<()>,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        amqp10::judge(record, &self.rules, self.limit.get()).map_err(NotTaken::Refused)?;
        of_stream(queue, record.topic, since)
    }

    fn probe(
        &mut self,
        queue: &SendQueue<()>,
        topic: &str,
        since: Instant,
    ) -> Result<(), NotTaken> {
        of_stream(queue, topic, Some(since))
    }
}

/// Whether the stream accepts records. For a parked event it is looked up for a while, each second.
fn of_stream(queue: &SendQueue<()>, stream: &str, since: Option<Instant>) -> Result<(), NotTaken> {
    let answer = queue.destination(stream, since);
    if since.is_some_and(|since| since.elapsed() < RETRY_MAX) {
        return answer.map_err(|_unavailable| NotTaken::Destination);
    }
    answer
}

/// Opens the sink, which connects in the background.
///
/// # Errors
/// A thread that can't be started.
pub(crate) fn open(
    spec: RabbitSpec,
    needs: &Needs,
    mailbox: Mailbox,
) -> Result<Box<dyn Sink>, SinkError> {
    let limit = Arc::new(FrameLimit::new());
    let rules = StreamRules { rules: spec.rules.clone(), limit: Arc::clone(&limit) };
    let worker = move |queue| StreamWorker::new(queue, spec, limit).run();
    Ok(Box::new(QueuedSink::open("rabbitmq-stream", needs, mailbox, rules, worker)?))
}
