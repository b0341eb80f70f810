//! What is decided about a record on the pipeline's thread, by what the worker knows of the stream.

use super::api::StreamFacts;
use super::message;
use super::spec::NatsSpec;
use super::subject::{NAMES, encoded};
use crate::queued_sink::RecordRules;
use crate::send_queue::SendQueue;
use postrider_core::record::{Record, Refusal};
use postrider_core::sink::{Mailbox, NotTaken, Post};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Bytes of all headers of a message at most. The server refuses more with code 10097, whatever its `max_payload` is.
const HEADERS_BYTES_MAX: usize = 65_535;

/// How long the known limit counts, if an event may be parked for it.
const FRESH: Duration = Duration::from_secs(5);

/// What the worker knows of the stream, for the rules.
#[derive(Debug)]
pub(super) struct StreamShared {
    facts: Mutex<Option<Arc<StreamFacts>>>,
    /// The rules want it read again.
    pub(super) doubted: Notify,
    mailbox: Mailbox,
}

impl StreamShared {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Self { facts: Mutex::new(None), doubted: Notify::new(), mailbox }
    }

    pub(super) fn get(&self) -> Option<Arc<StreamFacts>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The stream was read. Records that waited for that are offered again.
    pub(super) fn set(&self, facts: StreamFacts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(facts));
        self.mailbox.post(Post::Retry);
    }
}

/// The rules.
pub(super) struct NatsRules {
    spec: Arc<NatsSpec>,
    shared: Arc<StreamShared>,
    /// The topic of the last record, which is that of the next one most of the time, and the facts by which the stream
    /// takes it.
    last: Option<(String, Arc<StreamFacts>)>,
}

impl NatsRules {
    pub(super) fn new(spec: Arc<NatsSpec>, shared: Arc<StreamShared>) -> Self {
        Self { spec, shared, last: None }
    }

    /// The facts, if the stream takes the topic.
    fn taken(&mut self, topic: &str) -> Option<Arc<StreamFacts>> {
        let facts = self.shared.get()?;
        let known = self.last.as_ref();
        if known.is_some_and(|(last, by)| last == topic && Arc::ptr_eq(by, &facts)) {
            return Some(facts);
        }
        if !facts.takes(&encoded(topic)) {
            return None;
        }
        self.last = Some((topic.to_owned(), Arc::clone(&facts)));
        Some(facts)
    }

    /// Whether the record fits. A limit that may have been raised is read again first.
    fn fits(
        &self,
        record: &Record<'_>,
        facts: &StreamFacts,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        let size = record.size_bytes();
        if let Some(limit) = self.spec.size_max.filter(|limit| size > *limit) {
            return Err(NotTaken::Refused(Refusal::too_large(size, limit)));
        }
        let on_the_wire = message::size(record, &self.spec.stream);
        let payload = record.value.map_or(0, <[u8]>::len);
        if on_the_wire.saturating_sub(payload) > HEADERS_BYTES_MAX {
            let words =
                "its headers, with the key, are larger than the 65,535 bytes that NATS takes";
            return Err(NotTaken::Refused(Refusal::content(words)));
        }
        if on_the_wire <= facts.size_max {
            return Ok(());
        }
        let refusal = Refusal::too_large(on_the_wire, facts.size_max);
        let is_fresh = since.map_or(facts.at.elapsed() < FRESH, |since| facts.at > since);
        if is_fresh {
            return Err(NotTaken::Refused(refusal));
        }
        self.shared.doubted.notify_one();
        Err(NotTaken::Doubted(refusal))
    }
}

fn is_name(topic: &str) -> Result<(), NotTaken> {
    if (NAMES.allows)(topic.as_bytes()) {
        return Ok(());
    }
    let words =
        "the topic is no subject of NATS: a token is empty, or it has more than 1,024 bytes";
    Err(NotTaken::Refused(Refusal::destination(words)))
}

impl RecordRules for NatsRules {
    type Facts = ();

    fn admit(
        &mut self,
        queue: &SendQueue<()>,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        is_name(record.topic)?;
        message::check(record).map_err(NotTaken::Refused)?;
        if let Some(facts) = self.taken(record.topic) {
            return self.fits(record, &facts, since);
        }
        queue.destination(record.topic, since)
    }

    fn probe(
        &mut self,
        queue: &SendQueue<()>,
        topic: &str,
        since: Instant,
    ) -> Result<(), NotTaken> {
        if self.taken(topic).is_some() {
            return Ok(());
        }
        queue.destination(topic, Some(since))
    }
}
