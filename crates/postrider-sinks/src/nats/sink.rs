//! The NATS sink: the rules on the pipeline's thread, and the worker on its own.

use super::rules::{NatsRules, StreamShared};
use super::spec::NatsSpec;
use super::worker::NatsWorker;
use crate::queued_sink::QueuedSink;
use postrider_core::sink::{Mailbox, Needs, Sink, SinkError};
use std::sync::Arc;

/// Starts the worker, which connects in the background.
///
/// # Errors
/// A thread that can't be started.
pub(super) fn open(
    spec: NatsSpec,
    needs: &Needs,
    mailbox: Mailbox,
) -> Result<Box<dyn Sink>, SinkError> {
    let spec = Arc::new(spec);
    let shared = Arc::new(StreamShared::new(mailbox.clone()));
    let rules = NatsRules::new(Arc::clone(&spec), Arc::clone(&shared));
    let worker = |queue| NatsWorker::new(queue, spec, shared).run();
    Ok(Box::new(QueuedSink::open("nats-sink", needs, mailbox, rules, worker)?))
}
