//! The producers of a sink: as many as `sink.producers` says.
//!
//! librdkafka puts the batch of one partition into a request, and a broker serves one request of a connection at a
//! time. So the partitions of one producer are served one after the other, and several producers are served in
//! parallel. The key of a record alone decides which producer takes it, not the topic's present number of partitions,
//! and not the record's own partition. So all events of an aggregate go through the same producer, in order. If
//! `producers` divides the number of partitions and the key decides the partition, partition p is served by producer p
//! mod `producers`. All producers are created, flushed and discarded together: if the state of one is unknown, all are
//! replaced.
//!
//! Records that are larger than their topic's limit before compression have a producer of their own, which is created
//! for the first such record. It has at most one record in flight, so no later record can overtake a refused one, and
//! it is the only producer that continues after a refusal. In all else it is treated as the others are.

use super::codes::{Answers, outcome};
use super::native::{self, Events, Gathered, Producer, Report, TransactionFailure};
use super::ordering::Firsts;
use super::shared::Shared;
use super::spec::{KafkaSpec, OpenError};
use super::topics::{self, ATTEMPT_BYTES_MAX, BROKER_DEFAULT_BYTES, Facts};
use postrider_core::record::{Outcome, Record, Scope, Ticket};
use postrider_core::sink::Post;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::ffi::CStr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Producers that are created, flushed and discarded together.
pub(super) struct Producers {
    first: Polled,
    others: Vec<Polled>,
    /// The producer for records above their topic's limit before compression; created for the first such record.
    large: OnceLock<Polled>,
    shared: Arc<Shared>,
    /// One producer is broken, so all of them have to be replaced.
    broken: Arc<AtomicBool>,
    /// There is one producer, and it publishes in transactions.
    in_transactions: bool,
}

impl Producers {
    /// Creates `count` producers, at least one.
    pub(super) fn make(
        config: &ClientConfig,
        shared: &Arc<Shared>,
        count: usize,
    ) -> Result<Self, OpenError> {
        let (shared, broken) = (Arc::clone(shared), Arc::default());
        let in_transactions = config.get(TRANSACTIONAL_ID).is_some();
        let make = || {
            let context = Context::new(Arc::clone(&shared), Arc::clone(&broken));
            Polled::make(config, Context { in_transactions, ..context })
        };
        let first = make()?;
        let others = (1..count).map(|_| make()).collect::<Result<_, _>>()?;
        Ok(Self { first, others, large: OnceLock::new(), shared, broken, in_transactions })
    }

    /// Creates the producer for large records with this configuration, which must not set
    /// `enable.gapless.guarantee`: with it a refused record makes librdkafka's producer unusable.
    pub(super) fn make_large(&self, config: &ClientConfig) -> Result<(), OpenError> {
        let context = Context::new(Arc::clone(&self.shared), Arc::clone(&self.broken));
        let made = Polled::make(config, context)?;
        self.large.get_or_init(|| made);
        Ok(())
    }

    /// The producer for large records, if it was created. In transactions it is the only producer: a record that is
    /// refused has to leave its transaction with all other records.
    pub(super) fn large(&self) -> Option<&Producer> {
        if self.in_transactions {
            return Some(&self.first);
        }
        self.large.get().map(|polled| &**polled)
    }

    /// Why the open transaction can't be committed; `None` if it can, and without transactions. No transaction may be
    /// begun after that.
    pub(super) fn transaction_failure(&self) -> Option<TransactionFailure> {
        if !self.in_transactions {
            return None;
        }
        // A transaction that can be committed is the state in which none can be begun.
        native::begin_transaction(&self.first).err().filter(|failure| failure.code != Code::State)
    }

    fn polled(&self) -> impl Iterator<Item = &Polled> {
        std::iter::once(&self.first).chain(&self.others).chain(self.large.get())
    }

    fn all(&self) -> impl Iterator<Item = &Producer> {
        self.polled().map(|polled| &**polled)
    }

    /// The producer whose connections are used for requests about topics and the cluster.
    pub(super) fn first(&self) -> &Producer {
        &self.first
    }

    /// The number of producers, without the one for large records.
    pub(super) const fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The producer that takes this record, and its number.
    #[inline]
    pub(super) fn of(&self, record: &Record<'_>) -> (usize, &Producer) {
        if self.others.is_empty() { (0, &self.first) } else { self.one_of(record) }
    }

    fn one_of(&self, record: &Record<'_>) -> (usize, &Producer) {
        let number = match (record.key, record.partition) {
            (Some(key), _) => murmur2(key),
            (None, Some(partition)) => partition.unsigned_abs(),
            // A record without key and partition has no place in an order.
            (None, None) => 0,
        };
        let index = number as usize % self.count();
        (index, index.checked_sub(1).map_or(&self.first, |other| &self.others[other]))
    }

    /// From now on reports and errors of these producers are ignored.
    pub(super) fn mute(&self) {
        self.all().for_each(|producer| producer.client().context().mute());
    }

    pub(super) fn muted(&self) -> bool {
        self.all().all(|producer| producer.client().context().muted())
    }

    /// Requests the metadata of a topic on every producer except the first, which has them already. A producer that
    /// does not know a new partition accepts no record for it, for minutes (`topic.metadata.refresh.interval.ms`).
    /// Waits at most `timeout` for each producer. Returns whether every producer had an answer.
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

    /// Adds bootstrap brokers to all producers. See [`native::add_brokers`].
    pub(super) fn add_brokers(&self, brokers: &CStr) {
        self.all().for_each(|producer| native::add_brokers(producer, brokers));
    }

    /// Gives all producers another SASL login. See [`native::set_login`].
    pub(super) fn set_login(&self, username: &str, password: &str) {
        self.all().for_each(|producer| native::set_login(producer, username, password));
    }

    /// Whether a producer accepts no more records, or all producers were discarded.
    pub(super) fn is_broken(&self) -> bool {
        self.first().client().context().is_broken()
            || self.all().any(|producer| producer.client().fatal_error().is_some())
    }

    /// Sends the queued records at once, and waits until every record has its report, at most `timeout`. Returns
    /// whether every record has one. If one producer uses up the time, the others are only checked: they were sending
    /// meanwhile.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let flush =
            |producer| native::flush(producer, deadline.saturating_duration_since(Instant::now()));
        // Every producer is flushed, also if one before it did not finish.
        self.all().map(flush).filter(|done| !done).count() == 0
    }

    /// See [`native::purge`].
    pub(super) fn purge(&self, in_flight: bool) {
        self.all().for_each(|producer| native::purge(producer, in_flight));
    }

    /// The number of records without a report.
    pub(super) fn in_flight_count(&self) -> i32 {
        self.all().map(Producer::in_flight_count).sum()
    }
}

impl Drop for Producers {
    /// Dropping a producer takes 0.2 s (measured), so the producers are dropped in parallel.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for producer in self.others.drain(..).chain(self.large.take()) {
                let one = std::thread::Builder::new().name("kafka-drop".to_owned());
                // If no thread can be started, the producer is dropped by this thread.
                drop(one.spawn_scoped(scope, move || drop(producer)));
            }
        });
    }
}

/// librdkafka's name of the id by which brokers know the producers of a pipeline, one after the other.
pub(super) const TRANSACTIONAL_ID: &str = "transactional.id";

/// Why a producer is replaced that brokers have fenced off.
const FENCED: &str =
    "another producer has the transactional id now, or the transaction took too long";

/// The ticket of the record with the progress, which is none of the pipeline's.
pub(super) const PROGRESS: Ticket = Ticket(u64::MAX);

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
// The delivery reports of each request arrive together, and those of the next request some tenths of a millisecond
// later. Each arrival would wake this thread and the pipeline's thread. So while more records are in flight, the thread
// pauses for a short time and then reports all acknowledgements that have arrived. Only reports of acknowledgements are
// delayed, never records, and no report is delayed while the pipeline waits for one.

/// The longest delay of an acknowledgement, so that others are reported with it.
const REST: Duration = Duration::from_millis(2);

/// As [`REST`], while records wait in the send queue.
const REST_IN_TURNS: Duration = Duration::from_micros(500);

/// This number of acknowledgements is reported without waiting for more.
const TOGETHER: usize = 4096;

/// The longest wait for an event, after which the thread checks whether it has to stop.
const LOOK: Duration = Duration::from_secs(1);

/// A producer, and the thread that takes its events as long as the producer exists.
pub(super) struct Polled {
    shared: Arc<EventThreadState>,
    thread: Option<JoinHandle<()>>,
}

struct EventThreadState {
    events: Events,
    stop: AtomicBool,
}

impl Polled {
    /// Creates a producer, which connects in the background.
    pub(super) fn make(config: &ClientConfig, context: Context) -> Result<Self, OpenError> {
        // OpenSSL is initialised before librdkafka does it, so that it frees nothing when the process exits: threads of
        // producers may still be running then. Without TLS the initialisation would only cost 1.6 MB of memory.
        let protocol = config.get("security.protocol").unwrap_or_default();
        if protocol.to_ascii_lowercase().ends_with("ssl") {
            openssl_sys::init();
        }
        let producer = Producer::make(config, context);
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

    /// How long the collected acknowledgements wait for more; `None` if they are reported now.
    fn rest(&self, gathered: &Gathered) -> Option<Duration> {
        let (producer, count) = (self.events.producer(), gathered.count());
        let context = producer.client().context();
        // This number includes the collected acknowledgements.
        let in_flight = usize::try_from(producer.in_flight_count()).unwrap_or_default();
        // Without an acknowledgement the progress of a transaction was written: its commit waits for that.
        if count == 0 || count >= in_flight.min(TOGETHER) || context.is_awaited() {
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
    /// Ends the thread that takes the events, and reports what is left. Dropping the producer itself takes 0.2 s.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
        // Else dropping the producer would wait for the answers to its requests.
        native::purge(self, true);
        let mut gathered = Gathered::default();
        while self.shared.events.take(Duration::ZERO, &mut gathered) {}
        self.shared.events.report_acked(&mut gathered);
    }
}

// librdkafka's callbacks, on the thread that takes its events: delivery reports, errors, log lines.
//
// Reports are posted to the mailbox by ticket. The order of reports is not that of the records: librdkafka reports
// partition by partition (measured).

/// The most warnings of librdkafka that are logged, for each producer and second.
const LOG_LINES_PER_SECOND: u32 = 5;

/// Pause between two of its warnings about a failed connection, for each producer. An unreachable cluster is logged by
/// Postrider, with a hint; these warnings are needed if only one of several brokers is unreachable.
const CONNECTION_PAUSE: Duration = Duration::from_mins(15);

/// Why a producer is replaced that has reported a record as written without a broker's answer for it.
const INFERRED: &str = "a record counted as written because a later one was written: its topic may have been recreated";

/// The callbacks of one producer.
pub(super) struct Context {
    shared: Arc<Shared>,
    /// The producer was discarded, and its reports are ignored.
    muted: AtomicBool,
    /// [`Post::Broken`] was requested, by this producer or by another one of the sink.
    broken: Arc<AtomicBool>,
    answers: Answers,
    firsts: Firsts,
    lines: Throttle,
    connections: Throttle,
    /// The producer publishes in transactions.
    in_transactions: bool,
    /// It is counted as fenced off.
    fenced: AtomicBool,
}

impl Context {
    /// The context of one producer. All producers of a sink share `broken`.
    pub(super) fn new(shared: Arc<Shared>, broken: Arc<AtomicBool>) -> Self {
        Self {
            shared,
            muted: AtomicBool::new(false),
            broken,
            answers: Answers::default(),
            firsts: Firsts::default(),
            lines: Throttle::new(LOG_LINES_PER_SECOND, Duration::from_secs(1)),
            connections: Throttle::new(1, CONNECTION_PAUSE),
            in_transactions: false,
            fenced: AtomicBool::new(false),
        }
    }

    /// From now on reports and errors of this producer are ignored.
    pub(super) fn mute(&self) {
        self.muted.store(true, Ordering::Release);
    }

    pub(super) fn muted(&self) -> bool {
        self.muted.load(Ordering::Acquire)
    }

    /// Requests one post that the producer's state is unknown. The metadata thread posts it a little later, because the
    /// report of the record that was the cause may arrive after the fatal error, or after the reports of purged
    /// records.
    pub(super) fn broken(&self, reason: String) {
        if self.muted() || self.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        // Under the inbox's lock, because a reset undoes both changes: without the lock it could undo only one.
        self.shared.update_inbox(|inbox| {
            if !self.muted() {
                self.shared.failed.store(true, Ordering::SeqCst);
                inbox.broken = Some(reason);
            }
        });
    }

    /// Brokers refuse this producer, because another one has its transactional id, or because its transaction took too
    /// long. Returns why it is given up.
    pub(super) fn fenced(&self) -> String {
        if !self.muted() && !self.fenced.swap(true, Ordering::Relaxed) {
            self.shared.tally.fenced.fetch_add(1, Ordering::Relaxed);
        }
        FENCED.to_owned()
    }

    /// Whether [`Self::broken`] was called.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// The first records of partitions.
    pub(super) const fn firsts(&self) -> &Firsts {
        &self.firsts
    }

    /// Handles the reports of one request. Acknowledgements are only collected in `acked`, for
    /// [`report_acked`](Self::report_acked).
    pub(super) fn delivered(&self, reports: impl Iterator<Item = Report>, acked: &mut Vec<Ticket>) {
        if self.muted() {
            return;
        }
        for Report { ticket, result } in reports {
            match result {
                // Its commit covers it.
                Ok(_) if ticket == PROGRESS => {}
                Err(code) if ticket == PROGRESS => {
                    self.acknowledged(acked);
                    self.broken(format!("the record with the progress was not written: {code}"));
                }
                Ok(offset) if self.answers.has(offset) => acked.push(ticket),
                // Earlier acknowledgements are reported first.
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

    /// Reports the collected acknowledgements.
    pub(super) fn report_acked(&self, acked: &mut Vec<Ticket>) {
        if self.muted() {
            acked.clear();
            return;
        }
        self.acknowledged(acked);
    }

    /// Whether the pipeline waits for a report, because the queue is full.
    pub(super) fn is_awaited(&self) -> bool {
        self.shared.full.load(Ordering::SeqCst)
    }

    /// Whether records wait in the send queue.
    pub(super) fn is_in_turns(&self) -> bool {
        self.shared.is_queueing.load(Ordering::Relaxed)
    }

    /// Posts that the queue has room again, if the pipeline waits for it.
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
        self.shared.tally.acked.fetch_add(acked.len() as u64, Ordering::Relaxed);
        for &ticket in acked.iter() {
            self.firsts.answered(ticket);
        }
        self.shared.mailbox.report_all(acked, Outcome::Acked);
        acked.clear();
    }

    /// Handles a record that was not written. Later records of the producer would overtake it, so the producer is
    /// replaced. Only a record that was sent alone, because the broker had to decide about its size, has no later
    /// records: then the producer continues.
    fn refused(&self, ticket: Ticket, code: Code) {
        let outcome = outcome(code);
        let too_large = matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge);
        if too_large && let Some(reason) = self.shared.large.refuse(ticket) {
            let outcome = Outcome::Rejected { scope: Scope::Event, reason };
            self.shared.mailbox.report(ticket, outcome);
            if self.in_transactions {
                self.broken("a record was refused, and its transaction with it".to_owned());
            }
            return;
        }
        if too_large || matches!(outcome, Outcome::Rejected { scope: Scope::Destination, .. }) {
            self.shared.forget_topics(code);
        }
        // Unknown outcomes are not reported one by one: `Broken` covers them, after the report that names the cause.
        if outcome != Outcome::Unknown {
            self.shared.mailbox.report(ticket, outcome);
        }
        self.broken(format!("the producer gave up a record: {code}"));
    }
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        if self.muted() {
            return;
        }
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if code == Code::Fatal {
            // In transactions it is also the answer to the next call, which knows what it means.
            if !self.in_transactions {
                self.broken(format!("the producer's state is lost: {reason}"));
            }
            return;
        }
        self.shared.note_error(code, reason);
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        // Remarks on settings are not logged as warnings at every start. They are about our settings
        // (`enable.gapless.guarantee` is intended, though librdkafka calls it experimental), or about settings that the
        // operator has chosen from CONFIGURATION.md.
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

// The sizes that producers are created with: of a batch, of the largest record, and of librdkafka's queue. They follow
// from the operator's settings, the topic's limit and the record.

/// The largest `message.max.bytes` that librdkafka accepts. Unit: bytes.
const CLIENT_BYTES_MAX: usize = 1_000_000_000;

/// `message.max.bytes` of the producer for large records: librdkafka compares it with the size of a record before
/// compression, with its framing. Unit: bytes.
const LARGE_CLIENT_BYTES: usize = ATTEMPT_BYTES_MAX.next_power_of_two();

/// librdkafka checks the size of a record with the largest possible framing. A producer's limit is larger than a
/// topic's limit by this number, which covers that framing. Unit: bytes.
const FRAMING_BYTES: usize = 1_024;

/// The sizes that are set when producers are created, and can't be changed later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SizeLimits {
    /// `batch.size`: the most uncompressed bytes of a batch, unless one record alone is larger.
    pub(super) batch: usize,
    /// `message.max.bytes`: the largest record. The buffer of each request may become as large, so the limit is only as
    /// large as necessary.
    pub(super) client: usize,
    /// Whether `client` may be raised: the operator has not set it.
    pub(super) grows: bool,
}

impl SizeLimits {
    /// The operator's settings, or else our defaults.
    pub(super) fn of(spec: &KafkaSpec) -> Self {
        let number =
            |name: &str| spec.properties.get(name).and_then(|text| text.trim().parse().ok());
        let client = number("message.max.bytes");
        let sizes = Self {
            batch: number("batch.size").unwrap_or(BATCH_BYTES),
            client: client.unwrap_or(BROKER_DEFAULT_BYTES + FRAMING_BYTES),
            grows: client.is_none(),
        };
        // Another limit needs another producer, and that would discard the open transaction.
        if spec.transaction.is_some() { sizes.for_large() } else { sizes }
    }

    /// The sizes with which producers can send this record to this topic: batches within the topic's limit, because a
    /// larger batch is refused as a whole, and a limit that admits the record itself.
    pub(super) fn to_send(self, record: &Record<'_>, facts: &Facts) -> Self {
        let mut sizes = self;
        sizes.batch = sizes.batch.min(batch_within(facts.limit));
        if sizes.grows && topics::batch_bytes_at_most(record) > sizes.client {
            let client = facts.limit.saturating_add(FRAMING_BYTES).min(CLIENT_BYTES_MAX);
            sizes.client = sizes.client.max(client);
        }
        sizes
    }

    /// The sizes of the producer for records above their topics' limits before compression. That producer has one
    /// record at a time, so a high limit costs no memory.
    pub(super) fn for_large(self) -> Self {
        let client = if self.grows { LARGE_CLIENT_BYTES } else { self.client };
        Self { client, ..self }
    }

    /// Whether librdkafka compresses batches: a codec is set, under one of the two names of the property.
    pub(super) fn compress(spec: &KafkaSpec) -> bool {
        let names = ["compression.type", "compression.codec"];
        let codec = names.iter().find_map(|name| spec.properties.get(*name));
        codec.is_none_or(|codec| !codec.trim().eq_ignore_ascii_case("none"))
    }

    /// Writes the sizes into the configuration of the next producer. Its queue has room for the largest record.
    pub(super) fn put(self, spec: &KafkaSpec, config: &mut ClientConfig) {
        config.set("batch.size", self.batch.to_string());
        config.set("message.max.bytes", self.client.to_string());
        config.set("queue.buffering.max.kbytes", queue_kbytes(spec, self.client).to_string());
    }
}

/// The most uncompressed bytes of a batch (`batch.size`), unless a topic accepts less. It is below the broker's default
/// limit of 1,048,588.
pub(super) const BATCH_BYTES: usize = 1_000_000;

/// `batch.size` for a topic that accepts `limit` bytes. librdkafka limits a batch before compression, and sends it
/// uncompressed if compression would make it larger, so a small margin is enough.
const fn batch_within(limit: usize) -> usize {
    let bytes = limit - limit / 50;
    if bytes == 0 { 1 } else { bytes }
}

/// Twice the bytes that the pipeline allows in flight, with room for one record of the largest size; librdkafka's own
/// limit is 2 TiB.
fn queue_kbytes(spec: &KafkaSpec, record: usize) -> usize {
    let bytes = spec.in_flight_bytes.saturating_mul(2).saturating_add(record);
    (bytes / 1024).min(2_147_483_647)
}

// A rate limit for log lines.

/// Admits a number of lines in each window of time, and counts the others.
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

    /// Returns `None` if a line is not admitted; otherwise the number of lines that were not admitted since the last
    /// one that was.
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

    /// Discarded producers know former partitions, and no longer report that they are broken: a reset must not reuse
    /// them.
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
            | Post::Held { .. }
            | Post::Up { .. }
            | Post::Broken { .. }
            | Post::Located
            | Post::Recovered { .. }
            | Post::Committed { .. }
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
        // The first records are sent before there is a connection.
        for first in [0, 100, 200] {
            (first..first + 100).for_each(|ticket| enqueue(&polled, ticket));
            let (begun, mut all, mut posts) = (Instant::now(), Vec::new(), Vec::new());
            while polled.in_flight_count() > 0 && begun.elapsed() < DEADLINE {
                std::thread::yield_now();
            }
            // The metadata thread and a stop rely on this: when nothing is in flight any more, everything was reported.
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
