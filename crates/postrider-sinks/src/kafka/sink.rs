//! The Kafka sink: librdkafka's idempotent producers, with what our promises need around them.
//!
//! `enqueue` only copies a record into librdkafka's queue, or into the send queue if its partition has to wait. Reports
//! come back through the callbacks in `producer`. The metadata thread does everything that has to ask a broker.

use super::health;
use super::metadata::MetadataThread;
use super::native::Producer;
use super::ordering::{Entry, FirstRecordGate, PartitionScheduler};
use super::producer::{Producers, SizeLimits};
use super::secrets::Secrets;
use super::shared::{RetiredProducers, Shared};
use super::spec::{KafkaSpec, OpenError};
use super::topics::{self, Creation, Facts, Fingerprint, Fit};
use super::{codes, native, properties};
use crate::topic::is_topic_name;
use postrider_core::record::{Outcome, OwnedRecord, Record, Refusal, Scope, Ticket};
use postrider_core::sink::{Mailbox, NotTaken, Post, Sink};
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the answer about a topic counts that a record does not fit. Longer than a request takes.
const FRESH: Duration = Duration::from_secs(5);

/// The producers, the topics that they may send to, and the metadata thread.
pub(super) struct KafkaSink {
    shared: Arc<Shared>,
    spec: KafkaSpec,
    config: ClientConfig,
    /// What `producers` were made with.
    sizes: SizeLimits,
    /// The content of the secret files that `producers` were made with.
    secrets: Secrets,
    /// The producers compress batches.
    compresses: bool,
    /// The producers; none after they could not be made again, or after `close`.
    producers: Option<Arc<Producers>>,
    /// A record was handed to `producers`.
    used: bool,
    /// Holds records back whose partitions may not know `producers`.
    first_records: FirstRecordGate,
    scheduler: PartitionScheduler<WaitingRecord>,
    large: LargeRecordSlot,
    /// The operator's `linger.ms` has records wait in librdkafka; then none waits in the send queue.
    lingers: bool,
    /// Former producers whose records are still in flight, since `producers` took over with other sizes. The metadata
    /// thread owns them, because dropping them takes time.
    emptying: Weak<Producers>,
    topics: BTreeMap<String, Arc<Facts>>,
    topics_version: u64,
    /// The topic of the previous record: usually the next record has the same.
    last: Option<Arc<Facts>>,
}

/// Which large record may be in flight next: there is one at a time.
#[derive(Default)]
struct LargeRecordSlot {
    /// A large record of the stream may be in flight. Then no other record of the stream is handed over.
    out: bool,
    /// A large record of the stream waits for one that is retried, and is the next.
    waits: bool,
}

impl KafkaSink {
    /// Makes the producers and starts to connect them.
    pub(super) fn open(spec: &KafkaSpec, mailbox: Mailbox) -> Result<Self, OpenError> {
        let config = properties::client_config(spec)?;
        let shared = Arc::new(Shared::new(mailbox));
        let mut sink = Self {
            shared: Arc::clone(&shared),
            config,
            spec: spec.clone(),
            sizes: SizeLimits::of(spec),
            secrets: Secrets::default(),
            compresses: SizeLimits::compress(spec),
            producers: None,
            used: false,
            first_records: FirstRecordGate::default(),
            scheduler: PartitionScheduler::new(spec.producers.max(1)),
            large: LargeRecordSlot::default(),
            lingers: properties::lingers(spec),
            emptying: Weak::new(),
            topics: BTreeMap::new(),
            topics_version: 0,
            last: None,
        };
        sink.renew()?;
        let wanted = spec.create_topics.as_deref().map(topics::TopicCreation::of).transpose()?;
        let creation = Creation::new(wanted);
        let metadata_thread = MetadataThread::new(shared, spec.clone(), creation);
        // Not joined: it may be waiting for a broker that does not answer, and holds nothing that must be kept.
        std::thread::Builder::new()
            .name("kafka-metadata".to_owned())
            .spawn(move || metadata_thread.run())
            .map_err(OpenError::Thread)?;
        Ok(sink)
    }

    /// Makes the producer for large records. The secret files may have changed since the others were made.
    fn make_large(&mut self, producers: &Producers) -> Result<(), OpenError> {
        let secrets = Secrets::read(&self.spec, &self.secrets);
        let mut config = properties::for_large(self.sizes, &self.spec, &self.config);
        for (name, value) in secrets.values() {
            config.set(properties::our_name(name), value);
        }
        producers.make_large(&config)?;
        // One that changed since then was given to those that were there.
        if let Some(login) = Secrets::read(&self.spec, &secrets).login(&self.spec)
            && let Some(producer) = producers.large()
        {
            native::set_login(producer, &login.username, &login.password);
        }
        Ok(())
    }

    /// Replaces the producers by new ones, and returns the former ones.
    fn renew(&mut self) -> Result<Option<Arc<Producers>>, OpenError> {
        self.sizes.put(&self.spec, &mut self.config);
        self.secrets = Secrets::read(&self.spec, &self.secrets);
        for (name, value) in self.secrets.values() {
            self.config.set(properties::our_name(name), value);
        }
        let made = Producers::make(&self.config, &self.shared, self.spec.producers);
        let producers = Arc::new(made?);
        self.used = false;
        self.first_records = FirstRecordGate::default();
        self.shared.admission.reconnects();
        let secrets = self.secrets.clone();
        self.shared.update_inbox(|inbox| inbox.producers = Some((Arc::clone(&producers), secrets)));
        Ok(self.producers.replace(producers))
    }

    /// As `renew`, if no caller can take an error. Files that do not fit now may be in the middle of a rotation: the
    /// metadata thread asks for a reset when they fit.
    fn renew_or_report(&mut self) -> Option<Arc<Producers>> {
        self.renew().unwrap_or_else(|error| {
            if self.may_fit_later(&error) {
                self.shared.update_inbox(|inbox| inbox.unmade = Some(health::of_files(&error)));
            } else {
                self.report_unmade(&error);
            }
            self.producers.take()
        })
    }

    /// Whether no producer could be made of files that may change while the sink runs.
    fn may_fit_later(&self, error: &OpenError) -> bool {
        matches!(error, OpenError::Create(_)) && Secrets::are_in_files(&self.spec)
    }

    fn report_unmade(&self, error: &OpenError) {
        let reason = postrider_core::error::Chain(error).to_string();
        self.shared.mailbox.post(Post::Unfit { reason, hint: error.hint() });
    }

    /// What is known of the topic; requests an unknown topic.
    fn facts(&mut self, topic: &str) -> Option<Arc<Facts>> {
        let version = self.shared.topics_version.load(Ordering::Acquire);
        if version != self.topics_version {
            self.topics = self.shared.known_topics();
            self.topics_version = version;
        }
        let known = self.topics.get(topic).cloned();
        if known.is_none() {
            self.shared.request(topic);
        }
        known
    }

    /// The answer for a record whose topic is not known. A broker's refusal counts if it came after `since`.
    fn unknown(&self, topic: &str, since: Option<Instant>) -> NotTaken {
        let heard = self.shared.refused_topic(topic);
        let counts = heard.filter(|heard| match since {
            Some(since) => heard.at > since,
            // The topic is requested again. If the event may be parked on the answer, an old answer is not enough.
            None => !heard.missing || heard.at.elapsed() < FRESH,
        });
        match counts {
            Some(heard) if heard.missing => NotTaken::Missing,
            Some(_) => NotTaken::Unavailable,
            None => NotTaken::Destination,
        }
    }

    /// As `facts`, with a shortcut if the record has the topic of the previous one.
    fn facts_for(&mut self, topic: &str, since: Option<Instant>) -> Result<Arc<Facts>, NotTaken> {
        let is_current = self.shared.topics_version.load(Ordering::Acquire) == self.topics_version;
        let last = self
            .last
            .take()
            .filter(|facts| is_current && facts.name.to_bytes() == topic.as_bytes());
        if let Some(last) = last {
            return Ok(last);
        }
        if !is_topic_name(topic.as_bytes()) {
            return Err(NotTaken::Refused(codes::TOPIC_NAME));
        }
        self.facts(topic).ok_or_else(|| self.unknown(topic, since))
    }

    fn enqueue_to(
        &mut self,
        facts: &Arc<Facts>,
        ticket: Ticket,
        record: &Record<'_>,
        (since, alone): (Option<Instant>, bool),
    ) -> Result<(), NotTaken> {
        topics::within(record, self.spec.size_max).map_err(NotTaken::Refused)?;
        let asked = (facts.asked_at, since);
        let large = match topics::fits(record, facts, self.compresses) {
            Ok(Fit::Surely) => None,
            Ok(Fit::Compressed { size }) => Some((Fingerprint::of(record), size)),
            Err(reason) => return Err(self.unfit(record.topic, asked, reason)),
        };
        if let Some((fingerprint, size)) = large {
            if self.shared.large.is_refused(fingerprint, facts) {
                let reason = Refusal::too_large_compressed(size, facts.limit);
                return Err(self.unfit(record.topic, asked, reason));
            }
            if !alone {
                return Err(NotTaken::Alone);
            }
            let again = since.is_some();
            return self.produce_large(facts, (ticket, fingerprint, size), (record, again));
        }
        let sizes = self.sizes.to_send(record, facts);
        if sizes != self.sizes {
            self.resize(sizes);
            return Err(NotTaken::Full);
        }
        self.produce_or_wait(facts, ticket, record)
    }

    /// The answer for a record that does not fit its topic. The topic may have been fixed since it was asked for: it is
    /// requested again, and only the new answer refuses the record for good. A record that is retried is refused only
    /// by an answer to a request after `since`.
    fn unfit(
        &mut self,
        topic: &str,
        (asked_at, since): (Instant, Option<Instant>),
        reason: Refusal,
    ) -> NotTaken {
        if since.map_or_else(|| asked_at.elapsed() < FRESH, |since| asked_at > since) {
            return NotTaken::Refused(reason);
        }
        self.shared.request(topic);
        NotTaken::Doubted(reason)
    }

    /// Changes to producers with other sizes, once all records of the present ones are acknowledged. With transactions
    /// the open one is discarded, because another producer can't continue it.
    fn resize(&mut self, sizes: SizeLimits) {
        self.sizes = sizes;
        if self.spec.transaction.is_some() {
            if let Some(producers) = &self.producers {
                let reason = "a topic takes smaller batches than the producer makes";
                producers.first().client().context().broken(reason.to_owned());
            }
            return;
        }
        if let Some(old) = self.renew_or_report() {
            self.emptying = Arc::downgrade(&old);
            self.shared.retire(RetiredProducers { producers: old });
        }
    }
}

impl KafkaSink {
    /// What it shares with its threads.
    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The producers for a recovery: ones that were in use before are replaced. `None` if none can be made now.
    pub(super) fn producers_for_recovery(&mut self) -> Option<Arc<Producers>> {
        let is_broken = |live: &Arc<Producers>| live.is_broken();
        if self.used || self.producers.as_ref().is_none_or(is_broken) {
            self.reset();
        }
        self.used = true;
        self.producers.clone()
    }

    /// Keeps every record in the send queue until then, unless there is a backlog.
    pub(super) const fn hold_records(&mut self, until: Instant) {
        self.scheduler.hold(until);
    }

    /// Whether nothing may be handed over at present.
    fn is_shut(&self) -> bool {
        self.shared.failed.load(Ordering::SeqCst) || self.shared.settling.load(Ordering::SeqCst)
    }

    #[inline]
    fn offer(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        (since, alone): (Option<Instant>, bool),
    ) -> Result<(), NotTaken> {
        if self.is_shut() || (self.large.out && since.is_none() && self.large_is_out()) {
            return Err(NotTaken::Full);
        }
        let facts = self.facts_for(record.topic, since)?;
        // Known topics belong to the cluster that has answered, which is not admitted yet.
        if !self.shared.admission.is_open() {
            self.last = Some(facts);
            return Err(NotTaken::Full);
        }
        let taken = self.enqueue_to(&facts, ticket, record, (since, alone));
        self.last = Some(facts);
        taken
    }
}

impl Sink for KafkaSink {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        self.offer(ticket, record, (None, false))
    }

    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.offer(ticket, record, (Some(since), false))
    }

    fn enqueue_alone(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.offer(ticket, record, (since, true))
    }

    fn probe(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        // A name that no broker accepts is refused when the record is offered.
        if !is_topic_name(topic.as_bytes()) || self.facts(topic).is_some() {
            return Ok(());
        }
        Err(self.unknown(topic, Some(since)))
    }

    fn turn(&mut self) -> Option<Instant> {
        if !self.lingers {
            self.scheduler.ask();
        }
        // A post says when that is over.
        if self.is_shut() {
            return None;
        }
        if self.scheduler.queued() > 0 {
            self.send_queued(Instant::now());
        }
        self.scheduler.due()
    }

    fn cluster(&self) -> Option<String> {
        self.shared.admission.found()
    }

    fn hold(&mut self) {
        self.shared.admission.hold();
    }

    fn admit(&mut self, cluster: &str) {
        self.shared.admission.admit(cluster);
    }

    fn is_idle(&self) -> bool {
        let is_empty = |producers: &Arc<Producers>| producers.in_flight_count() == 0;
        let emptying = self.emptying.upgrade();
        self.scheduler.queued() == 0 && emptying.iter().chain(&self.producers).all(is_empty)
    }

    /// Gives up the producers and everything in them.
    ///
    /// No record of an old producer may reach the broker after a new producer has sent, or events of an aggregate would
    /// be swapped. Therefore the queues of the old producers are purged at once. Requests that are already written to a
    /// socket can't be cancelled, so nothing is sent until they are answered, for `metadata::DRAIN_MAX` at most; then
    /// everything is purged and the connections are closed. `enqueue` returns `Full` meanwhile, and `Retry` is posted
    /// afterwards.
    ///
    /// One case remains: a request that no broker has answered within that time, and that arrives later than the new
    /// producer's handshake of four round trips. Only a producer that publishes in transactions excludes it: it fences
    /// the older one off before it sends, so it waits for nothing.
    fn reset(&mut self) {
        self.shared.full.store(false, Ordering::SeqCst);
        self.clear_queue();
        self.large = LargeRecordSlot::default();
        if let Some(emptying) = std::mem::take(&mut self.emptying).upgrade() {
            emptying.mute();
        }
        let (shared, used) = (&self.shared, self.used);
        let live = self.producers.as_ref();
        // Under the inbox's lock: a report before it is of the records given up here, a report after it is posted.
        let old = shared.update_inbox(|inbox| {
            let old = live.filter(|live| used || live.is_broken());
            if let Some(old) = old {
                old.mute();
            }
            shared.failed.store(false, Ordering::SeqCst);
            inbox.requested.clear();
            inbox.broken = None;
            old
        });
        if let Some(old) = old {
            old.purge(false);
        }
        if old.is_none() && live.is_some() {
            return;
        }
        if let Some(producers) = self.renew_or_report() {
            let old = RetiredProducers { producers };
            if self.spec.transaction.is_some() {
                self.shared.discard(old);
            } else {
                self.shared.retire(old);
            }
        }
    }

    fn close(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.clear_queue();
        // Records behind one that was given up are not sent, nor are those of a transaction that nobody commits.
        let failed = self.shared.failed.load(Ordering::SeqCst) || self.spec.transaction.is_some();
        let emptying = std::mem::take(&mut self.emptying).upgrade();
        let producers = self.producers.take();
        for live in emptying.iter().chain(&producers) {
            if !failed {
                live.flush(deadline.saturating_duration_since(Instant::now()));
            }
            live.mute();
            live.purge(true);
        }
        // The metadata thread drops them: that takes 0.2 s each (measured).
        self.shared.update_inbox(|inbox| {
            inbox.retired.extend(producers.map(|producers| RetiredProducers { producers }));
            inbox.stop = true;
        });
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
        self.shared.update_inbox(|inbox| inbox.stop = true);
    }
}

// The send queue. Here a record has passed all checks and has its partition. `ordering` decides which records wait.

/// A record in the send queue.
struct WaitingRecord {
    ticket: Ticket,
    facts: Arc<Facts>,
    partition: i32,
    record: OwnedRecord,
}

impl KafkaSink {
    #[inline]
    fn produce_or_wait(
        &mut self,
        facts: &Arc<Facts>,
        ticket: Ticket,
        record: &Record<'_>,
    ) -> Result<(), NotTaken> {
        let Some(partition) = topics::partition_of(record, facts) else {
            return self.produce(facts, None, ticket, record);
        };
        self.scheduler.leads(facts.leaders);
        let line = self.scheduler.line(record.topic, partition);
        let acked = self.shared.tally.acked.load(Ordering::Relaxed);
        if self.scheduler.must_wait(acked) {
            let (facts, record) = (Arc::clone(facts), OwnedRecord::of(record));
            let now = Instant::now();
            self.scheduler.wait(line, WaitingRecord { ticket, facts, partition, record }, now);
            self.shared.is_queueing.store(true, Ordering::Relaxed);
            // If an answer is awaited, its post says when to try again.
            if self.scheduler.is_backlog(acked) && !self.shared.full.load(Ordering::SeqCst) {
                self.send_queued(now);
            }
            return Ok(());
        }
        self.produce(facts, Some(partition), ticket, record)?;
        self.scheduler.sent(line, acked);
        Ok(())
    }

    /// Hands over the records of the partitions that are next.
    fn send_queued(&mut self, now: Instant) {
        // Each partition once: one that is put back waits for an answer.
        for _ in 0..self.scheduler.queued() {
            let acked = self.shared.tally.acked.load(Ordering::Relaxed);
            let Some(line) = self.scheduler.next(acked, now) else { break };
            while let Some(waiting) = self.scheduler.take(line) {
                let WaitingRecord { ticket, facts, partition, record } = &waiting;
                let (ticket, partition) = (*ticket, Some(*partition));
                let taken = if self.is_shut() {
                    Err(NotTaken::Full)
                } else {
                    record.lend(|record| self.produce(facts, partition, ticket, record))
                };
                match taken {
                    Ok(()) => self.scheduler.sent(line, acked),
                    Err(why) => {
                        self.report_unsent(ticket, why);
                        self.scheduler.put_back(line, waiting, now);
                        break;
                    }
                }
            }
        }
        self.shared.is_queueing.store(self.scheduler.queued() > 0, Ordering::Relaxed);
    }

    /// A record that was accepted can't be returned to the caller. It keeps waiting if that helps. Otherwise the caller
    /// starts again from its cursor, and learns the reason when it offers the record again.
    fn report_unsent(&self, ticket: Ticket, why: NotTaken) {
        let reason = match why {
            NotTaken::Full | NotTaken::Alone => return,
            NotTaken::Refused(reason) | NotTaken::Doubted(reason) => {
                let outcome = Outcome::Rejected { scope: Scope::Event, reason };
                self.shared.mailbox.report(ticket, outcome);
                "the producer refused a record that it was to take"
            }
            NotTaken::Destination | NotTaken::Unavailable | NotTaken::Missing => {
                "the producer does not know a partition that the topic had"
            }
        };
        if let Some(producers) = &self.producers {
            producers.first().client().context().broken(reason.to_owned());
        }
    }

    /// Drops all records of the send queue.
    fn clear_queue(&mut self) {
        self.scheduler.clear();
        self.shared.is_queueing.store(false, Ordering::Relaxed);
    }

    fn produce(
        &mut self,
        facts: &Facts,
        partition: Option<i32>,
        ticket: Ticket,
        record: &Record<'_>,
    ) -> Result<(), NotTaken> {
        let Some(producers) = &self.producers else {
            return Err(NotTaken::Full);
        };
        let (number, producer) = producers.of(record);
        let hour = self.shared.hour.load(Ordering::Relaxed);
        let who = (number, producers.count());
        let firsts = producer.client().context().firsts();
        let to = partition.map(|partition| (record.topic, partition));
        match to.map_or(Entry::Open, |to| self.first_records.enter(to, who, hour)) {
            Entry::Open => {}
            Entry::First(gate) => firsts.sends(ticket, gate),
            Entry::Wait(gate) => {
                // From here on the answer posts `Retry`; it may just have come.
                self.shared.full.store(true, Ordering::SeqCst);
                if !gate.is_open() {
                    return Err(NotTaken::Full);
                }
            }
        }
        self.used = true;
        let to = (facts.name.as_c_str(), partition);
        let mut result = native::produce(producer, to, ticket, record);
        if result == Err(Code::QueueFull) {
            // From here on the next report posts `Retry`. The second call covers the case that the last report has just
            // come.
            self.shared.full.store(true, Ordering::SeqCst);
            result = native::produce(producer, to, ticket, record);
        }
        result.or_else(|code| {
            firsts.not_sent(ticket);
            self.not_produced(producer, ticket, record, code)
        })
    }

    /// Hands a record above its topic's limit before compression to the producer for large records, which has one at a
    /// time. The caller has nothing in flight that must stay in order with it, so the record does not wait in the
    /// queue.
    fn produce_large(
        &mut self,
        facts: &Facts,
        (ticket, fingerprint, size): (Ticket, Fingerprint, usize),
        (record, again): (&Record<'_>, bool),
    ) -> Result<(), NotTaken> {
        let Some(producers) = self.producers.clone() else {
            return Err(NotTaken::Full);
        };
        if producers.large().is_none()
            && let Err(error) = self.make_large(&producers)
        {
            if self.may_fit_later(&error) {
                // The other producers could not be made now either: all are given up until the files fit.
                let reason = "the files of its certificates or keys have changed since it was made";
                producers.first().client().context().broken(reason.to_owned());
            } else {
                self.report_unmade(&error);
            }
        }
        let Some(producer) = producers.large() else {
            return Err(NotTaken::Full);
        };
        if self.has_large(producer) {
            self.large.waits |= !again;
            return Err(NotTaken::Full);
        }
        if std::mem::take(&mut self.large.waits) && again {
            // All records of the stream wait for that one: it is offered before this one is offered again.
            self.shared.mailbox.post(Post::Retry);
            return Err(NotTaken::Full);
        }
        self.used = true;
        self.shared.large.sent(ticket, fingerprint, size, facts);
        let to = (facts.name.as_c_str(), topics::partition_of(record, facts));
        let result = native::produce(producer, to, ticket, record);
        // An earlier one has its report, since the producer had no record.
        self.large.out = result.is_ok() && !again;
        result.or_else(|code| self.not_produced(producer, ticket, record, code))
    }

    /// Whether the producer for large records has one. If so, its report posts `Retry`.
    fn has_large(&self, producer: &Producer) -> bool {
        if producer.in_flight_count() == 0 {
            return false;
        }
        // From here on; the report may just have come.
        self.shared.full.store(true, Ordering::SeqCst);
        producer.in_flight_count() > 0
    }

    /// Whether a large record of the stream is in flight.
    fn large_is_out(&mut self) -> bool {
        let large = self.producers.as_ref().and_then(|producers| producers.large());
        self.large.out = large.is_some_and(|producer| self.has_large(producer));
        self.large.out
    }

    /// The answer for a record that librdkafka did not accept.
    fn not_produced(
        &self,
        producer: &Producer,
        ticket: Ticket,
        record: &Record<'_>,
        code: Code,
    ) -> Result<(), NotTaken> {
        if code == Code::QueueFull {
            return Err(NotTaken::Full);
        }
        if code == Code::Fatal {
            producer.client().context().broken("the producer takes no more records".to_owned());
            return Err(NotTaken::Full);
        }
        if code == Code::MessageSizeTooLarge {
            // librdkafka's own limit, `message.max.bytes`, as set by an operator, is for the record before compression.
            let (size, limit) = (record.size_bytes(), self.sizes.client);
            return Err(NotTaken::Refused(Refusal::too_large(size, limit)));
        }
        let outcome = codes::outcome(code);
        if let Outcome::Rejected { scope: Scope::Event, reason } = outcome {
            return Err(NotTaken::Refused(reason));
        }
        if matches!(outcome, Outcome::Rejected { scope: Scope::Destination, .. }) {
            self.shared.forget_topics(code);
            self.shared.request(record.topic);
            return Err(NotTaken::Destination);
        }
        self.shared.mailbox.report(ticket, outcome);
        producer.client().context().broken(format!("the producer took no record: {code}"));
        Ok(())
    }
}
