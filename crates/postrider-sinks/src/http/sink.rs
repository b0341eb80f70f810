//! The HTTP sink: what is decided about a record before it is sent.

use super::event::{self, KnownNames};
use super::spec::HttpSpec;
use super::worker::HttpWorker;
use crate::queued_sink::{QueuedSink, RecordRules};
use crate::send_queue::SendQueue;
use postrider_core::record::{Record, Refusal};
use postrider_core::sink::{Mailbox, Needs, NotTaken, Sink, SinkError};
use std::time::Instant;

/// The rules of records.
struct HttpRules {
    spec: HttpSpec,
    /// The name of a destination that was found good last.
    topic: String,
    names: KnownNames,
}

impl HttpRules {
    /// # Errors
    /// No destination has this name.
    fn check_topic(&mut self, topic: &str) -> Result<(), NotTaken> {
        if self.topic == topic && !topic.is_empty() {
            return Ok(());
        }
        if !(self.spec.topic.names().allows)(topic.as_bytes()) {
            return Err(NotTaken::Refused(Refusal::destination("the topic leads to no URL")));
        }
        if self.spec.chooses_private(topic) {
            let words = "the topic is a URL of a private address, and sink.http.private_addresses is \"refused\"";
            return Err(NotTaken::Refused(Refusal::destination(words)));
        }
        topic.clone_into(&mut self.topic);
        Ok(())
    }
}

impl RecordRules for HttpRules {
    type Facts = ();

    fn admit(
        &mut self,
        queue: &SendQueue<()>,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.check_topic(record.topic)?;
        event::check(&self.spec, record, &mut self.names).map_err(NotTaken::Refused)?;
        queue.destination(record.topic, since)
    }

    fn probe(
        &mut self,
        queue: &SendQueue<()>,
        topic: &str,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.check_topic(topic)?;
        queue.destination(topic, Some(since))
    }
}

/// Starts the sink's thread.
pub(super) fn open(
    spec: HttpSpec,
    needs: &Needs,
    mailbox: Mailbox,
) -> Result<Box<dyn Sink>, SinkError> {
    let rules =
        HttpRules { spec: spec.clone(), topic: String::new(), names: KnownNames::default() };
    let worker = move |queue| HttpWorker::new(queue, spec).run();
    Ok(Box::new(QueuedSink::open("http-sink", needs, mailbox, rules, worker)?))
}
