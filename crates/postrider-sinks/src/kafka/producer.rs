//! The producers of a sink: as many as `sink.producers` says.
//!
//! librdkafka puts the batch of one partition into a request, and a broker serves one request of a connection at a
//! time, so the partitions of a producer stand in one line. Several producers are several lines. Which of them takes a
//! record depends on its key alone, not on how many partitions the topic has just now, nor on a partition of its own:
//! so all events of an aggregate go through the same one, in order. If `producers` divides the partitions and the key
//! chooses among them, partition p has producer p mod `producers`. They are made, emptied and given up together: where
//! one can't be trusted any more, none is.
//!
//! Records above their topic's limit before compression have a producer of their own, which is made for the first of
//! them. It belongs to the others in everything else. It has at most one record, so a broker's refusal leaves no gap
//! that a later record could pass: it is the only one that goes on after a refusal.

use super::codes::{Answers, outcome};
use super::config::{KafkaSpec, OpenError};
use super::native::{self, Events, Gathered, Report};
use super::ordering::Firsts;
use super::shared::Shared;
use super::topics::{self, ATTEMPT_BYTES_MAX, BROKER_DEFAULT_BYTES, Facts};
use postrider_core::record::{Outcome, Record, Scope, Ticket};
use postrider_core::sink::Post;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::ffi::CStr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Producers that are made, emptied and given up together.
pub(super) struct Producers {
    first: Polled,
    others: Vec<Polled>,
    /// The one for records above their topic's limit before compression, once there was one.
    large: OnceLock<Polled>,
    shared: Arc<Shared>,
    /// One of them is broken, and so all are.
    broken: Arc<AtomicBool>,
}

impl Producers {
    /// Makes `count` of them, at least one.
    pub(super) fn make(
        config: &ClientConfig,
        shared: &Arc<Shared>,
        count: usize,
    ) -> Result<Self, OpenError> {
        let (shared, broken) = (Arc::clone(shared), Arc::default());
        let make = || {
            let context = Context::new(Arc::clone(&shared), Arc::clone(&broken));
            Polled::make(config, context)
        };
        let first = make()?;
        let others = (1..count).map(|_| make()).collect::<Result<_, _>>()?;
        Ok(Self { first, others, large: OnceLock::new(), shared, broken })
    }

    /// Makes the producer for large records, with this configuration, which must not guarantee that there are no gaps:
    /// librdkafka gives up a producer with that guarantee when a record of it is refused.
    pub(super) fn make_large(&self, config: &ClientConfig) -> Result<(), OpenError> {
        let context = Context::new(Arc::clone(&self.shared), Arc::clone(&self.broken));
        let made = Polled::make(config, context)?;
        self.large.get_or_init(|| made);
        Ok(())
    }

    /// The producer for large records, where it was made.
    pub(super) fn large(&self) -> Option<&Producer> {
        self.large.get().map(|polled| &**polled)
    }

    fn polled(&self) -> impl Iterator<Item = &Polled> {
        std::iter::once(&self.first).chain(&self.others).chain(self.large.get())
    }

    fn all(&self) -> impl Iterator<Item = &Producer> {
        self.polled().map(|polled| &**polled)
    }

    /// The one to ask questions with.
    pub(super) fn first(&self) -> &Producer {
        &self.first
    }

    /// How many there are, without the one for large records.
    pub(super) const fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The one that takes this record, and its number.
    #[inline]
    pub(super) fn of(&self, record: &Record<'_>) -> (usize, &Producer) {
        if self.others.is_empty() { (0, &self.first) } else { self.one_of(record) }
    }

    fn one_of(&self, record: &Record<'_>) -> (usize, &Producer) {
        let number = match (record.key, record.partition) {
            (Some(key), _) => murmur2(key),
            (None, Some(partition)) => partition.unsigned_abs(),
            // No order is asked for.
            (None, None) => 0,
        };
        let index = number as usize % self.count();
        (index, index.checked_sub(1).map_or(&self.first, |other| &self.others[other]))
    }

    /// From here on their reports and errors go nowhere.
    pub(super) fn mute(&self) {
        self.all().for_each(|producer| producer.client().context().mute());
    }

    pub(super) fn muted(&self) -> bool {
        self.all().all(|producer| producer.client().context().muted())
    }

    /// Has all know how many partitions a topic has, as the first one does that was asked. One that is not told takes
    /// no record for a new partition, for minutes (`topic.metadata.refresh.interval.ms`). Waits at most `timeout` each;
    /// false where one had no answer.
    pub(super) fn learn(&self, topic: &str, timeout: Duration) -> bool {
        let mut all = true;
        for producer in self.others.iter().chain(self.large.get()) {
            if let Err(error) = producer.client().fetch_metadata(Some(topic), timeout) {
                tracing::debug!(target: "postrider::kafka", topic, %error, "could not ask for the topic");
                all = false;
            }
        }
        all
    }

    /// Tells all of them of brokers once more. See [`native::add_brokers`].
    pub(super) fn add_brokers(&self, brokers: &CStr) {
        self.all().for_each(|producer| native::add_brokers(producer, brokers));
    }

    /// Gives all of them another SASL login. See [`native::set_login`].
    pub(super) fn set_login(&self, username: &str, password: &str) {
        self.all().for_each(|producer| native::set_login(producer, username, password));
    }

    /// One of them takes no more records, or all were given up.
    pub(super) fn is_broken(&self) -> bool {
        self.first().client().context().is_broken()
            || self.all().any(|producer| producer.client().fatal_error().is_some())
    }

    /// Sends what lingers and waits until every record has its report, at most `timeout`. True when none is left.
    /// Behind one that takes all the time the others are only looked at: they have worked meanwhile.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let flush =
            |producer| native::flush(producer, deadline.saturating_duration_since(Instant::now()));
        // Each has its turn, though one before it was not done.
        self.all().map(flush).filter(|done| !done).count() == 0
    }

    /// See [`native::purge`].
    pub(super) fn purge(&self, in_flight: bool) {
        self.all().for_each(|producer| native::purge(producer, in_flight));
    }

    /// Records without their report.
    pub(super) fn in_flight_count(&self) -> i32 {
        self.all().map(rdkafka::producer::Producer::in_flight_count).sum()
    }
}

impl Drop for Producers {
    /// To drop one takes 0.2 s (measured), so they go side by side.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for producer in self.others.drain(..).chain(self.large.take()) {
                let one = std::thread::Builder::new().name("kafka-drop".to_owned());
                // Without a thread it is dropped here.
                drop(one.spawn_scoped(scope, move || drop(producer)));
            }
        });
    }
}

/// The hash by which Kafka's clients choose a key's partition (Kafka, `Utils.murmur2`), without its sign.
pub(super) fn murmur2(key: &[u8]) -> u32 {
    const MIX: u32 = 0x5bd1_e995;
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut hash = 0x9747_b28c ^ length;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(MIX);
        hash = hash.wrapping_mul(MIX) ^ (word ^ (word >> 24)).wrapping_mul(MIX);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |last, &byte| last << 8 | u32::from(byte));
        hash = (hash ^ last).wrapping_mul(MIX);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MIX);
    (hash ^ (hash >> 15)) & 0x7fff_ffff
}

// A producer, and the thread that takes its events.
//
// Delivery reports come a request at a time, some tenths of a millisecond apart, and each would wake this thread and
// the driver. So while more is in flight the thread rests a little, and tells together what has come. Only the news of
// an acknowledgement waits, and not where somebody waits for it; no record does.

/// librdkafka's producer, whose events somebody has to take.
pub(super) type Producer = BaseProducer<Context>;

/// How long an acknowledgement may wait for others that are reported with it.
const REST: Duration = Duration::from_millis(2);

/// The same while records wait in the send queue.
const REST_IN_TURNS: Duration = Duration::from_micros(500);

/// Acknowledgements that are reported without waiting for more.
const TOGETHER: usize = 4096;

/// The thread looks up so often though nothing comes.
const LOOK: Duration = Duration::from_secs(1);

/// A producer whose events are taken as long as it lives.
pub(super) struct Polled {
    shared: Arc<EventThreadState>,
    thread: Option<JoinHandle<()>>,
}

struct EventThreadState {
    events: Events,
    stop: AtomicBool,
}

impl Polled {
    /// Makes a producer that connects in the background.
    pub(super) fn make(config: &ClientConfig, context: Context) -> Result<Self, OpenError> {
        // Before librdkafka does, and for good: OpenSSL is not to clean up at the exit of the process, beside the
        // threads of producers that are on their way out. Without TLS it would only cost memory, 1.6 MB.
        let protocol = config.get("security.protocol").unwrap_or_default();
        if protocol.to_ascii_lowercase().ends_with("ssl") {
            openssl_sys::init();
        }
        let producer = Producer::from_config_and_context(config, context);
        let events = producer.and_then(Events::of).map_err(OpenError::Create)?;
        let shared = Arc::new(EventThreadState { events, stop: AtomicBool::new(false) });
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("kafka-reports".to_owned())
            .spawn(move || its.run())
            .map_err(OpenError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn wake(&self) {
        self.shared.events.wake();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl EventThreadState {
    fn run(&self) {
        let mut gathered = Gathered::default();
        while !self.stop.load(Ordering::Acquire) {
            if self.events.take(LOOK, &mut gathered) {
                self.gather(&mut gathered);
                if let Some(rest) = self.rest(&gathered) {
                    std::thread::park_timeout(rest);
                    self.gather(&mut gathered);
                }
                self.events.report_acked(&mut gathered);
            }
        }
    }

    fn gather(&self, gathered: &mut Gathered) {
        while gathered.count() < TOGETHER && self.events.take(Duration::ZERO, gathered) {}
    }

    /// How long what was gathered waits for more, if more is to come.
    fn rest(&self, gathered: &Gathered) -> Option<Duration> {
        let (producer, count) = (self.events.producer(), gathered.count());
        let context = producer.client().context();
        // What was gathered is among it.
        let in_flight = usize::try_from(producer.in_flight_count()).unwrap_or_default();
        if count >= in_flight.min(TOGETHER) || context.is_awaited() {
            return None;
        }
        Some(if context.is_in_turns() { REST_IN_TURNS } else { REST })
    }
}

impl Deref for Polled {
    type Target = Producer;

    fn deref(&self) -> &Producer {
        self.shared.events.producer()
    }
}

impl Drop for Polled {
    /// Takes the events until here; the producer itself takes 0.2 s to go.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

// librdkafka's callbacks, on the thread that takes its events: delivery reports, errors, log lines.
//
// Reports go to the mailbox by ticket; the order in which they come means nothing (measured: they
// come by partition).

/// librdkafka's warnings that reach the log, a second and producer.
const LOG_LINES_PER_SECOND: u32 = 5;

/// Pause between two of its lines on a connection that failed, each producer. A cluster that can't be reached is told
/// by ourselves, with what fixes it; this is for the one broker of several that is gone.
const CONNECTION_PAUSE: Duration = Duration::from_mins(15);

/// Why a producer is done with whose report no broker gave.
const INFERRED: &str =
    "a record was taken for written because a later one was: its topic may have been recreated";

/// The callbacks of one producer.
pub(super) struct Context {
    shared: Arc<Shared>,
    /// The producer was given up: its reports do not count any more.
    muted: AtomicBool,
    /// `Broken` was asked for, by this one or by one beside it.
    broken: Arc<AtomicBool>,
    answers: Answers,
    firsts: Firsts,
    lines: Throttle,
    connections: Throttle,
}

impl Context {
    /// Of one of several producers, which share `broken`.
    pub(super) fn new(shared: Arc<Shared>, broken: Arc<AtomicBool>) -> Self {
        Self {
            shared,
            muted: AtomicBool::new(false),
            broken,
            answers: Answers::default(),
            firsts: Firsts::default(),
            lines: Throttle::new(LOG_LINES_PER_SECOND, Duration::from_secs(1)),
            connections: Throttle::new(1, CONNECTION_PAUSE),
        }
    }

    /// From here on this producer's reports and errors go nowhere.
    pub(super) fn mute(&self) {
        self.muted.store(true, Ordering::Release);
    }

    pub(super) fn muted(&self) -> bool {
        self.muted.load(Ordering::Acquire)
    }

    /// Has it said, once, that the producer's state can't be trusted any more. The keeper says it, a moment later:
    /// the report of the record that was the cause may still be on its way, behind the news of a fatal error or of
    /// others that were purged.
    pub(super) fn broken(&self, reason: String) {
        if self.muted() || self.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        // Under the inbox's lock, as a reset takes it back: else one that comes in between leaves half of it.
        self.shared.update_inbox(|inbox| {
            if !self.muted() {
                self.shared.failed.store(true, Ordering::SeqCst);
                inbox.broken = Some(reason);
            }
        });
    }

    /// That was asked for.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// The records that are the first of their partitions.
    pub(super) const fn firsts(&self) -> &Firsts {
        &self.firsts
    }

    /// Reports of one request. What was acknowledged is gathered in `acked`, for [`report_acked`](Self::report_acked).
    pub(super) fn delivered(&self, reports: impl Iterator<Item = Report>, acked: &mut Vec<Ticket>) {
        if self.muted() {
            return;
        }
        for Report { ticket, result } in reports {
            match result {
                Ok(offset) if self.answers.has(offset) => acked.push(ticket),
                // Behind what was acknowledged before.
                Ok(_) => {
                    self.acknowledged(acked);
                    self.broken(INFERRED.to_owned());
                }
                Err(code) => {
                    self.acknowledged(acked);
                    self.refused(ticket, code);
                }
            }
        }
    }

    /// Tells of what was gathered.
    pub(super) fn report_acked(&self, acked: &mut Vec<Ticket>) {
        if self.muted() {
            acked.clear();
            return;
        }
        self.acknowledged(acked);
    }

    /// Somebody waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.shared.full.load(Ordering::SeqCst)
    }

    /// Whether records wait in the send queue.
    pub(super) fn is_in_turns(&self) -> bool {
        self.shared.is_queueing.load(Ordering::Relaxed)
    }

    /// Posts that there is room again, if the caller waits for it.
    pub(super) fn has_room(&self) {
        if self.muted() {
            return;
        }
        if self.shared.full.load(Ordering::SeqCst) && self.shared.full.swap(false, Ordering::SeqCst)
        {
            self.shared.mailbox.post(Post::Retry);
        }
    }

    fn acknowledged(&self, acked: &mut Vec<Ticket>) {
        self.shared.acked.fetch_add(acked.len() as u64, Ordering::Relaxed);
        for &ticket in acked.iter() {
            self.firsts.answered(ticket);
        }
        self.shared.mailbox.report_all(acked, Outcome::Acked);
        acked.clear();
    }

    /// A record was given up. Whatever is behind it would overtake it, so the producer is done with. Only behind one
    /// that was sent to find out whether the broker takes its size there is nothing, and all goes on.
    fn refused(&self, ticket: Ticket, code: Code) {
        let outcome = outcome(code);
        let too_large = matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge);
        if too_large && let Some(reason) = self.shared.large.refuse(ticket) {
            let outcome = Outcome::Rejected { scope: Scope::Event, reason };
            self.shared.mailbox.report(ticket, outcome);
            return;
        }
        if too_large || matches!(outcome, Outcome::Rejected { scope: Scope::Destination, .. }) {
            self.shared.forget_topics(code);
        }
        // What is merely unknown is said once, by `Broken`, behind the report that names the cause.
        if outcome != Outcome::Unknown {
            self.shared.mailbox.report(ticket, outcome);
        }
        self.broken(format!("the producer gave up a record: {code}"));
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    /// What comes when the producer is dropped, and nobody takes its events any more.
    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let result = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        let report = Report { ticket: Ticket(ticket as u64), result };
        let mut acked = Vec::new();
        self.delivered(std::iter::once(report), &mut acked);
        self.report_acked(&mut acked);
        self.has_room();
    }
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        if self.muted() {
            return;
        }
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if code == Code::Fatal {
            self.broken(format!("the producer's state is lost: {reason}"));
            return;
        }
        self.shared.note_error(code, reason);
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        // Remarks on settings are about ours (`enable.gapless.guarantee` is called experimental, and is meant) or
        // about those of the operator, who reads CONFIGURATION.md: not worth a warning at every start.
        let level = if facility == "CONFWARN" { RDKafkaLogLevel::Debug } else { level };
        let throttle = if facility == "FAIL" { &self.connections } else { &self.lines };
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => match throttle.admit() {
                None => tracing::debug!(target: "postrider::kafka", facility, "{line}"),
                Some(0) => tracing::warn!(target: "postrider::kafka", facility, "{line}"),
                Some(dropped) => {
                    tracing::warn!(target: "postrider::kafka", facility, dropped, "{line}");
                }
            },
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(target: "postrider::kafka", facility, "{line}");
            }
        }
    }

    fn stats_raw(&self, _statistics: &[u8]) {}
}

// The sizes that producers are made with: of a batch, of the largest record, of librdkafka's queue.
//
// Knows the operator's numbers, a topic's limit and a record; decides when producers of other sizes are needed, and
// makes none.

/// The largest `message.max.bytes` librdkafka takes, in bytes.
const CLIENT_BYTES_MAX: usize = 1_000_000_000;

/// `message.max.bytes` of the producer for large records: librdkafka judges a record before compression, with its
/// framing. Bytes.
const LARGE_CLIENT_BYTES: usize = ATTEMPT_BYTES_MAX.next_power_of_two();

/// librdkafka judges a record by the most its framing may take; this much more than a topic's limit is enough for it.
/// Bytes.
const FRAMING_BYTES: usize = 1_024;

/// What is decided when producers are made, and can't be changed later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SizeLimits {
    /// `batch.size`: uncompressed bytes of a batch, unless one record alone is larger.
    pub(super) batch: usize,
    /// `message.max.bytes`: the largest record. Each request's buffer may become as large, so it is no larger than it
    /// must be.
    pub(super) client: usize,
    /// Whether `client` may grow: the operator has not fixed it.
    pub(super) grows: bool,
}

impl SizeLimits {
    /// The operator's numbers, or ours.
    pub(super) fn of(spec: &KafkaSpec) -> Self {
        let number =
            |name: &str| spec.properties.get(name).and_then(|text| text.trim().parse().ok());
        let client = number("message.max.bytes");
        Self {
            batch: number("batch.size").unwrap_or(BATCH_BYTES),
            client: client.unwrap_or(BROKER_DEFAULT_BYTES + FRAMING_BYTES),
            grows: client.is_none(),
        }
    }

    /// Those that producers must have to send this record to this topic: batches under the topic's limit, as one above
    /// is refused whole, and room for the record itself.
    pub(super) fn to_send(self, record: &Record<'_>, facts: &Facts) -> Self {
        let mut sizes = self;
        sizes.batch = sizes.batch.min(batch_within(facts.limit));
        if sizes.grows && topics::batch_bytes_at_most(record) > sizes.client {
            let client = facts.limit.saturating_add(FRAMING_BYTES).min(CLIENT_BYTES_MAX);
            sizes.client = sizes.client.max(client);
        }
        sizes
    }

    /// Those of the producer for records above their topics' limits before compression. It has one record at a time,
    /// so the limit itself costs no memory.
    pub(super) fn for_large(self) -> Self {
        let client = if self.grows { LARGE_CLIENT_BYTES } else { self.client };
        Self { client, ..self }
    }

    /// Whether librdkafka compresses batches: a codec is set, under either of its names.
    pub(super) fn compress(spec: &KafkaSpec) -> bool {
        let names = ["compression.type", "compression.codec"];
        let codec = names.iter().find_map(|name| spec.properties.get(*name));
        codec.is_none_or(|codec| !codec.trim().eq_ignore_ascii_case("none"))
    }

    /// Writes them into the configuration of the next producer, with room for the largest record in the queue.
    pub(super) fn put(self, spec: &KafkaSpec, config: &mut ClientConfig) {
        config.set("batch.size", self.batch.to_string());
        config.set("message.max.bytes", self.client.to_string());
        config.set("queue.buffering.max.kbytes", queue_kbytes(spec, self.client).to_string());
    }
}

/// Uncompressed bytes of a batch (`batch.size`), unless a topic takes less. Below the broker's default limit of
/// 1,048,588.
pub(super) const BATCH_BYTES: usize = 1_000_000;

/// `batch.size` for a topic that takes `limit` bytes: librdkafka bounds a batch before compression, and sends it
/// uncompressed where compression would make it larger, so a little room is enough.
const fn batch_within(limit: usize) -> usize {
    let bytes = limit - limit / 50;
    if bytes == 0 { 1 } else { bytes }
}

/// Twice what the caller lets in flight, with room for one record of the largest size; librdkafka's own limit is 2 TiB.
fn queue_kbytes(spec: &KafkaSpec, record: usize) -> usize {
    let bytes = spec.in_flight_bytes.saturating_mul(2).saturating_add(record);
    (bytes / 1024).min(2_147_483_647)
}

// Lets so many lines in so long a time through, and counts the rest.

/// So many in each window.
pub(super) struct Throttle {
    lines: u32,
    window: Duration,
    state: Mutex<State>,
}

struct State {
    since: Instant,
    passed: u32,
    dropped: u64,
}

impl Throttle {
    pub(super) fn new(lines: u32, window: Duration) -> Self {
        let state = State { since: Instant::now(), passed: 0, dropped: 0 };
        Self { lines, window, state: Mutex::new(state) }
    }

    /// `Some(n)` lets a line through, after `n` that were not; `None` does not.
    pub(super) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(state.since) >= self.window {
            state.since = now;
            state.passed = 0;
        }
        if state.passed == self.lines {
            state.dropped += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They know partitions as they were, and say no more that they are broken: a reset must not take them for new.
    #[test]
    fn what_was_given_up_is_broken_though_nothing_was_handed_to_it() {
        let shared = Arc::new(Shared::new(crate::Mailbox::default()));
        let producers = Producers::make(&ClientConfig::new(), &shared, 2).unwrap();
        assert!(!producers.is_broken());
        producers.others[0].client().context().broken("a topic was recreated".to_owned());
        assert!(producers.is_broken());
    }

    #[test]
    fn hash_is_the_one_of_kafkas_clients() {
        // Kafka's own test, `UtilsTest.testMurmur2`.
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), hash.cast_unsigned() & 0x7fff_ffff, "{key}");
        }
    }
}

#[cfg(test)]
mod polled_tests {
    use super::*;
    use crate::kafka::native;
    use crate::kafka::shared::Shared as SinkShared;
    use postrider_core::record::{Header, Record, Ticket};
    use postrider_core::sink::{Mailbox, Post};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn enqueue(polled: &Polled, ticket: u64) {
        let headers = [Header { name: "id", value: Some(b"1") }];
        let record = Record {
            topic: "orders",
            partition: Some(0),
            key: Some(b"a"),
            value: Some(b"{}"),
            timestamp_ms: None,
            headers: &headers,
        };
        native::produce(polled, (c"orders", Some(0)), Ticket(ticket), &record).unwrap();
    }

    fn tickets(posts: &mut Vec<Post>) -> impl Iterator<Item = u64> {
        posts.drain(..).filter_map(|post| match post {
            Post::Report { ticket, .. } => Some(ticket.0),
            Post::Retry
            | Post::Down { .. }
            | Post::Up { .. }
            | Post::Broken { .. }
            | Post::Located
            | Post::Unfit { .. } => None,
        })
    }

    #[test]
    fn what_is_not_in_flight_any_more_has_been_told() {
        let cluster = MockCluster::<DefaultProducerContext>::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let mailbox = Mailbox::default();
        let shared = Arc::new(SinkShared::new(mailbox.clone()));
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        config.set("enable.idempotence", "true");
        let polled = Polled::make(&config, Context::new(shared, Arc::default())).unwrap();
        // The first of them before there is a connection.
        for first in [0, 100, 200] {
            (first..first + 100).for_each(|ticket| enqueue(&polled, ticket));
            let (begun, mut all, mut posts) = (Instant::now(), Vec::new(), Vec::new());
            while polled.in_flight_count() > 0 && begun.elapsed() < DEADLINE {
                std::thread::yield_now();
            }
            // Nothing is in flight any more, so everything is reported: the metadata thread and a stop rely on it.
            assert_eq!(polled.in_flight_count(), 0);
            mailbox.take(&mut posts);
            all.extend(tickets(&mut posts));
            assert_eq!(all, (first..first + 100).collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod throttle_tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let throttle = Throttle::new(2, Duration::from_secs(1));
        let start = Instant::now();
        let seen: Vec<_> = (0..4).map(|_| throttle.admit_at(start)).collect();
        assert_eq!(seen, [Some(0), Some(0), None, None]);
        assert_eq!(throttle.admit_at(start + Duration::from_secs(2)), Some(2));
    }
}
