//! The Kafka sink: librdkafka's idempotent producers, with what our promises need around them.
//!
//! `enqueue` only copies into librdkafka's queue, or into the send queue here where a partition has to wait for its
//! turn. Reports come back through the callbacks of `producer`; what has to ask a broker is the metadata thread's.

use super::config::{KafkaSpec, OpenError};
use super::health;
use super::metadata::Keeper;
use super::ordering::{Entry, Introductions, Turns};
use super::producer::{Producer, Producers, Sizes};
use super::secrets::Secrets;
use super::shared::{Leaving, Shared};
use super::topics::{self, Creation, Facts, Fit, Print};
use super::{codes, native, properties};
use crate::topic::is_topic_name;
use postrider_core::record::{Outcome, OwnedRecord, Record, Refusal, Scope, Ticket};
use postrider_core::sink::{Mailbox, NotTaken, Post, Sink};
use rdkafka::config::ClientConfig;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long it serves to have asked for a topic, where a record does not fit it. Longer than a question takes.
const FRESH: Duration = Duration::from_secs(5);

/// Producers, the topics they may send to, and the thread that looks after both.
pub(super) struct KafkaSink {
    shared: Arc<Shared>,
    spec: KafkaSpec,
    config: ClientConfig,
    /// What `producers` were made with.
    sizes: Sizes,
    /// The same: what the secret files held.
    secrets: Secrets,
    /// They compress batches.
    compresses: bool,
    /// The producers; none after they could not be made again, or after `close`.
    producers: Option<Arc<Producers>>,
    /// Something was handed to `producers`.
    used: bool,
    /// Which partitions know them.
    introductions: Introductions,
    turns: Turns<Waiting>,
    large: LargeTurns,
    /// The operator has records wait in librdkafka: not before that too.
    lingers: bool,
    /// Those that are emptied because `producers` take over with other sizes. The keeper's: to drop them takes time.
    emptying: Weak<Producers>,
    topics: BTreeMap<String, Arc<Facts>>,
    topics_version: u64,
    /// The topic of the record before: mostly it is the next one's too.
    last: Option<Arc<Facts>>,
}

/// Whose turn it is to have a large record in flight: there is one at a time.
#[derive(Default)]
struct LargeTurns {
    /// One of the stream may be in flight: no other record of the stream is handed over then.
    out: bool,
    /// One of the stream waits for one that is tried again: it has the next turn.
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
            sizes: Sizes::of(spec),
            secrets: Secrets::default(),
            compresses: Sizes::compress(spec),
            producers: None,
            used: false,
            introductions: Introductions::default(),
            turns: Turns::new(spec.producers.max(1)),
            large: LargeTurns::default(),
            lingers: properties::lingers(spec),
            emptying: Weak::new(),
            topics: BTreeMap::new(),
            topics_version: 0,
            last: None,
        };
        sink.renew()?;
        let wanted = spec.create_topics.as_deref().map(topics::Wanted::of).transpose()?;
        let creation = Creation::new(wanted);
        let keeper = Keeper::new(shared, spec.clone(), creation);
        // Not joined: it may be waiting for a broker that does not answer, and holds nothing that must be kept.
        std::thread::Builder::new()
            .name("kafka-keeper".to_owned())
            .spawn(move || keeper.run())
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

    /// Puts new producers in place of the present ones, which are given back.
    fn renew(&mut self) -> Result<Option<Arc<Producers>>, OpenError> {
        self.sizes.put(&self.spec, &mut self.config);
        self.secrets = Secrets::read(&self.spec, &self.secrets);
        for (name, value) in self.secrets.values() {
            self.config.set(properties::our_name(name), value);
        }
        let made = Producers::make(&self.config, &self.shared, self.spec.producers);
        let producers = Arc::new(made?);
        self.used = false;
        self.introductions = Introductions::default();
        self.shared.admission.reconnects();
        let secrets = self.secrets.clone();
        self.shared.tell(|inbox| inbox.producers = Some((Arc::clone(&producers), secrets)));
        Ok(self.producers.replace(producers))
    }

    /// As `renew`, where there is nobody to hand an error to. Files that do not fit now may be in the middle of a
    /// rotation: the keeper asks for a reset when they do.
    fn renew_or_say(&mut self) -> Option<Arc<Producers>> {
        self.renew().unwrap_or_else(|error| {
            if self.may_fit_later(&error) {
                self.shared.tell(|inbox| inbox.unmade = Some(health::of_files(&error)));
            } else {
                self.not_made(&error);
            }
            self.producers.take()
        })
    }

    /// Whether no producer could be made of files that may change while the sink runs.
    fn may_fit_later(&self, error: &OpenError) -> bool {
        matches!(error, OpenError::Create(_)) && Secrets::are_in_files(&self.spec)
    }

    fn not_made(&self, error: &OpenError) {
        let reason = postrider_core::error::Chain(error).to_string();
        self.shared.mailbox.post(Post::Unfit { reason, hint: error.hint() });
    }

    /// What is known of the topic; asks for it where nothing is.
    fn facts(&mut self, topic: &str) -> Option<Arc<Facts>> {
        let version = self.shared.topics_version.load(Ordering::Acquire);
        if version != self.topics_version {
            self.topics = self.shared.known_topics();
            self.topics_version = version;
        }
        let known = self.topics.get(topic).cloned();
        if known.is_none() {
            self.shared.want(topic);
        }
        known
    }

    /// What to say of a record whose topic is not known: a refusal counts where it was heard after `since`.
    fn unknown(&self, topic: &str, since: Option<Instant>) -> NotTaken {
        let heard = self.shared.refused_topic(topic);
        let counts = heard.filter(|heard| match since {
            Some(since) => heard.at > since,
            // It is asked for again: where its event may be parked on the answer, old news is not enough.
            None => !heard.missing || heard.at.elapsed() < FRESH,
        });
        match counts {
            Some(heard) if heard.missing => NotTaken::Missing,
            Some(_) => NotTaken::Unavailable,
            None => NotTaken::Destination,
        }
    }

    /// The same for a record, with less to look for where its topic is the one before.
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
            Ok(Fit::Compressed { size }) => Some((Print::of(record), size)),
            Err(reason) => return Err(self.unfit(record.topic, asked, reason)),
        };
        if let Some((print, size)) = large {
            if self.shared.large.is_refused(print, facts) {
                let reason = Refusal::too_large_compressed(size, facts.limit);
                return Err(self.unfit(record.topic, asked, reason));
            }
            if !alone {
                return Err(NotTaken::Alone);
            }
            let again = since.is_some();
            return self.produce_large(facts, (ticket, print, size), (record, again));
        }
        let sizes = self.sizes.to_send(record, facts);
        if sizes != self.sizes {
            self.resize(sizes);
            return Err(NotTaken::Full);
        }
        self.produce_or_wait(facts, ticket, record)
    }

    /// What to say of a record that does not fit its topic. Somebody may have mended the topic since it was asked for:
    /// then it is asked for anew, and the record is refused for good only on the answer. One that is tried again is
    /// refused only on what was asked after `since`.
    fn unfit(
        &mut self,
        topic: &str,
        (asked_at, since): (Instant, Option<Instant>),
        reason: Refusal,
    ) -> NotTaken {
        if since.map_or_else(|| asked_at.elapsed() < FRESH, |since| asked_at > since) {
            return NotTaken::Refused(reason);
        }
        self.shared.want(topic);
        NotTaken::Doubted(reason)
    }

    /// Goes over to producers of other sizes, once what the present ones have is acknowledged.
    fn resize(&mut self, sizes: Sizes) {
        self.sizes = sizes;
        if let Some(old) = self.renew_or_say() {
            self.emptying = Arc::downgrade(&old);
            self.shared.sees_out(Leaving { producers: old });
        }
    }
}

impl KafkaSink {
    /// Nothing may be handed over just now.
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
        // Known topics are of the cluster that has answered, which is not admitted yet.
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

    fn sound(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        // A name that no broker takes is refused when it is offered.
        if !is_topic_name(topic.as_bytes()) || self.facts(topic).is_some() {
            return Ok(());
        }
        Err(self.unknown(topic, Some(since)))
    }

    fn turn(&mut self) -> Option<Instant> {
        if !self.lingers {
            self.turns.ask();
        }
        // What ends that is posted.
        if self.is_shut() {
            return None;
        }
        if self.turns.queued() > 0 {
            self.hand_over(Instant::now());
        }
        self.turns.due()
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
        self.turns.queued() == 0 && emptying.iter().chain(&self.producers).all(is_empty)
    }

    /// Gives up the producers and everything in them.
    ///
    /// Nothing an old producer holds may reach the broker after a new one has sent, or an aggregate's events would be
    /// swapped. So what the old ones have queued is purged at once; what is already written to a socket can't be taken
    /// back, so nothing is sent until those requests are answered, at most `metadata::DRAIN_MAX`; then everything is
    /// purged and the connections are closed. `enqueue` answers `Full` meanwhile, and `Retry` is posted after.
    /// What is left is a request on a socket that no broker has answered within that time and that still arrives
    /// later than the new producer's handshake of four round trips: only a producer that fences the older one
    /// (exactly-once delivery) closes that.
    fn reset(&mut self) {
        self.shared.full.store(false, Ordering::SeqCst);
        self.give_up_waiting();
        self.large = LargeTurns::default();
        if let Some(emptying) = std::mem::take(&mut self.emptying).upgrade() {
            emptying.mute();
        }
        let (shared, used) = (&self.shared, self.used);
        let live = self.producers.as_ref();
        // Under the inbox's lock: what is said before it was of what is given up here, and what is said after is told.
        let old = shared.tell(|inbox| {
            let old = live.filter(|live| used || live.is_broken());
            if let Some(old) = old {
                old.mute();
            }
            shared.failed.store(false, Ordering::SeqCst);
            inbox.wanted.clear();
            inbox.broken = None;
            old
        });
        if let Some(old) = old {
            old.purge(false);
        }
        if old.is_none() && live.is_some() {
            return;
        }
        if let Some(old) = self.renew_or_say() {
            self.shared.sees_out(Leaving { producers: old });
        }
    }

    fn close(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.give_up_waiting();
        // What is behind a record that was given up is not to be sent.
        let failed = self.shared.failed.load(Ordering::SeqCst);
        let emptying = std::mem::take(&mut self.emptying).upgrade();
        let producers = self.producers.take();
        for live in emptying.iter().chain(&producers) {
            if !failed {
                live.flush(deadline.saturating_duration_since(Instant::now()));
            }
            live.mute();
            live.purge(true);
        }
        // The keeper drops them: that takes 0.2 s each (measured).
        self.shared.tell(|inbox| {
            inbox.leaving.extend(producers.map(|producers| Leaving { producers }));
            inbox.stop = true;
        });
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
        self.shared.tell(|inbox| inbox.stop = true);
    }
}

// What goes to a producer at once, what waits for its turn, and what a producer says to it.
//
// Whatever can be said of a record before it is taken has been said: here it has its partition. Who waits is decided
// by [`turns`](super::turns) and [`introductions`](super::introductions).

/// A record that waits for the turn of its partition.
struct Waiting {
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
        self.turns.leads(facts.leaders);
        let line = self.turns.line(record.topic, partition);
        let acked = self.shared.acked.load(Ordering::Relaxed);
        if self.turns.must_wait(acked) {
            let (facts, record) = (Arc::clone(facts), OwnedRecord::of(record));
            let now = Instant::now();
            self.turns.wait(line, Waiting { ticket, facts, partition, record }, now);
            self.shared.in_turns.store(true, Ordering::Relaxed);
            // Where an answer is waited for it says when to try again.
            if self.turns.is_backlog(acked) && !self.shared.full.load(Ordering::SeqCst) {
                self.hand_over(now);
            }
            return Ok(());
        }
        self.produce(facts, Some(partition), ticket, record)?;
        self.turns.handed(line, acked);
        Ok(())
    }

    /// Hands over what has its turn.
    fn hand_over(&mut self, now: Instant) {
        // Each line once: one that is put back waits for an answer.
        for _ in 0..self.turns.queued() {
            let acked = self.shared.acked.load(Ordering::Relaxed);
            let Some(line) = self.turns.next(acked, now) else { break };
            while let Some(waiting) = self.turns.take(line) {
                let Waiting { ticket, facts, partition, record } = &waiting;
                let (ticket, partition) = (*ticket, Some(*partition));
                let taken = if self.is_shut() {
                    Err(NotTaken::Full)
                } else {
                    record.lend(|record| self.produce(facts, partition, ticket, record))
                };
                match taken {
                    Ok(()) => self.turns.handed(line, acked),
                    Err(why) => {
                        self.not_handed_over(ticket, why);
                        self.turns.put_back(line, waiting, now);
                        break;
                    }
                }
            }
        }
        self.shared.in_turns.store(self.turns.queued() > 0, Ordering::Relaxed);
    }

    /// A record that was taken can't be given back. It waits on where that helps; else all starts anew, and what it is
    /// then offered for says why.
    fn not_handed_over(&self, ticket: Ticket, why: NotTaken) {
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

    /// What waits for its turn is not handed over any more.
    fn give_up_waiting(&mut self) {
        self.turns.clear();
        self.shared.in_turns.store(false, Ordering::Relaxed);
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
        match to.map_or(Entry::Open, |to| self.introductions.enter(to, who, hour)) {
            Entry::Open => {}
            Entry::First(door) => firsts.hand_in(ticket, door),
            Entry::Wait(door) => {
                // The answer posts `Retry` from here on, unless it has just come.
                self.shared.full.store(true, Ordering::SeqCst);
                if !door.is_open() {
                    return Err(NotTaken::Full);
                }
            }
        }
        self.used = true;
        let to = (facts.name.as_c_str(), partition);
        let mut result = native::produce(producer, to, ticket, record);
        if result == Err(Code::QueueFull) {
            // From here on the next report posts `Retry`. The second try is for the case that the last one has just
            // come.
            self.shared.full.store(true, Ordering::SeqCst);
            result = native::produce(producer, to, ticket, record);
        }
        result.or_else(|code| {
            firsts.take_back(ticket);
            self.not_produced(producer, ticket, record, code)
        })
    }

    /// Hands a record above its topic's limit before compression to the producer for such records, which has no other
    /// meanwhile. Whoever offers it has nothing in flight that must stay in order with it, so it waits for no turn.
    fn produce_large(
        &mut self,
        facts: &Facts,
        (ticket, print, size): (Ticket, Print, usize),
        (record, again): (&Record<'_>, bool),
    ) -> Result<(), NotTaken> {
        let Some(producers) = self.producers.clone() else {
            return Err(NotTaken::Full);
        };
        if producers.large().is_none()
            && let Err(error) = self.make_large(&producers)
        {
            if self.may_fit_later(&error) {
                // The others could not be made now either: they are given up with it, until the files fit.
                let reason = "the files of its certificates or keys have changed since it was made";
                producers.first().client().context().broken(reason.to_owned());
            } else {
                self.not_made(&error);
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
            // Everything behind that of the stream waits for it: it is offered before this one comes again.
            self.shared.mailbox.post(Post::Retry);
            return Err(NotTaken::Full);
        }
        self.used = true;
        self.shared.large.sent(ticket, print, size, facts);
        let to = (facts.name.as_c_str(), topics::partition_of(record, facts));
        let result = native::produce(producer, to, ticket, record);
        // One of before has its report: the producer had none.
        self.large.out = result.is_ok() && !again;
        result.or_else(|code| self.not_produced(producer, ticket, record, code))
    }

    /// Whether the producer for large records has one. Where it has, the report posts `Retry`.
    fn has_large(&self, producer: &Producer) -> bool {
        if producer.in_flight_count() == 0 {
            return false;
        }
        // From here on, unless it has just come.
        self.shared.full.store(true, Ordering::SeqCst);
        producer.in_flight_count() > 0
    }

    /// Whether a large record of the stream is in flight.
    fn large_is_out(&mut self) -> bool {
        let large = self.producers.as_ref().and_then(|producers| producers.large());
        self.large.out = large.is_some_and(|producer| self.has_large(producer));
        self.large.out
    }

    /// What to say of a record that librdkafka did not take.
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
            // librdkafka's own limit, `message.max.bytes`, set by an operator: for the record before compression.
            let (size, limit) = (record.size_bytes(), self.sizes.client);
            return Err(NotTaken::Refused(Refusal::too_large(size, limit)));
        }
        let outcome = codes::outcome(code);
        if let Outcome::Rejected { scope: Scope::Event, reason } = outcome {
            return Err(NotTaken::Refused(reason));
        }
        if matches!(outcome, Outcome::Rejected { scope: Scope::Destination, .. }) {
            self.shared.forget_topics(code);
            self.shared.want(record.topic);
            return Err(NotTaken::Destination);
        }
        self.shared.mailbox.report(ticket, outcome);
        producer.client().context().broken(format!("the producer took no record: {code}"));
        Ok(())
    }
}
