//! The sink's one background thread: asks for topics, watches whether brokers answer, and sees old producers out.
//!
//! Everything that waits for a broker waits here, so that `enqueue` never does. It says `Down`, `Up` and `Retry`;
//! what became of a record it never says.

use super::forgotten::Forgotten;
use super::polled::Producer;
use super::producers::Producers;
use super::rights::Rights;
use super::shared::{Leaving, Shared, Suspicion};
use super::told::Told;
use super::topic::{self, CONFIG_ANSWER_MAX, Facts, Unusable};
use super::trouble::{self, About, Trouble};
use crate::sink::Post;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it looks, when nothing calls; also between two tries for a topic or a broker.
const TICK: Duration = Duration::from_secs(1);
/// How often it looks while a producer is on its way out.
const LEAVING_TICK: Duration = Duration::from_millis(20);
/// How long a broker may take to answer a question.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The same for a topic that somebody waits for: its configuration may come later.
const SHORT: (Duration, Duration) = (ANSWER_MAX, CONFIG_ANSWER_MAX);
/// How long an old producer's requests are waited for before they are purged. See `KafkaSink::reset`.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the reports of a broken producer are waited for. After a fatal error some never come (measured).
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long records may be in flight without any acknowledgement before that is told.
const STALL: Duration = Duration::from_secs(5);
/// Topics asked for in one turn while nothing is acknowledged.
const STALL_TOPICS: usize = 8;
/// Topics asked for in one turn while somebody waits for them: each may take `ANSWER_MAX`.
const ASKED_TOPICS: usize = 8;
/// How often what is known of topics is asked for again.
const REFRESH: Duration = Duration::from_mins(1);

pub(super) struct Keeper {
    shared: Arc<Shared>,
    brokers: String,
    producers: Option<Arc<Producers>>,
    /// The first of them has had an answer from a broker.
    connected: bool,
    suspicion: Option<Suspicion>,
    forgotten: Forgotten,
    told: Told,
    /// Those that are given up have the time since that was seen.
    leaving: Vec<(Leaving, Option<Instant>)>,
    acked: u64,
    acked_at: Instant,
    refreshed_at: Instant,
    opened_at: Instant,
    /// Topics that are to be asked for again.
    stale: Vec<String>,
    /// Those of them whose configuration was not read in time: once it is waited for longer.
    unread: BTreeSet<String>,
    rights: Rights,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, brokers: String) -> Self {
        let now = Instant::now();
        Self {
            told: Told::new(Arc::clone(&shared)),
            shared,
            forgotten: Forgotten::new(&brokers),
            brokers,
            producers: None,
            connected: false,
            suspicion: None,
            leaving: Vec::new(),
            acked: 0,
            acked_at: now,
            refreshed_at: now,
            opened_at: now,
            stale: Vec::new(),
            unread: BTreeSet::new(),
            rights: Rights::default(),
        }
    }

    /// Works until told to stop; then lets go of the producers.
    pub(super) fn run(mut self) {
        while self.take_orders() {
            self.see_out();
            if self.ask() {
                self.watch();
            }
            self.refresh();
        }
    }

    /// False when there is nothing more to do.
    fn take_orders(&mut self) -> bool {
        let timeout = if self.leaving.is_empty() { TICK } else { LEAVING_TICK };
        let (stop, broken, producers, suspicion, leaving) = self.shared.wait(timeout, |inbox| {
            (
                inbox.stop,
                inbox.broken.is_some(),
                inbox.producers.take(),
                inbox.suspicion.take(),
                std::mem::take(&mut inbox.leaving),
            )
        });
        let now = Instant::now();
        let hour = u32::try_from((now - self.opened_at).as_secs() / 3_600).unwrap_or(u32::MAX);
        self.shared.hour.store(hour, Ordering::Relaxed);
        self.leaving.extend(leaving.into_iter().map(|leaving| (leaving, None)));
        if let Some(producers) = producers {
            self.producers = Some(producers);
            self.connected = false;
            self.acked_at = now;
        }
        if broken {
            // Reports that are ready come first.
            if let Some(producers) = &self.producers {
                producers.flush(LAST_WORDS);
            }
            self.shared.say_broken();
        }
        if let Some(suspicion) = suspicion {
            suspicion.outweigh(&mut self.suspicion);
        }
        !stop
    }

    /// Lets old producers go: when their records have their reports, or when they were given up and have had their
    /// time.
    fn see_out(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        for (Leaving { producers }, given_up) in &mut self.leaving {
            // A reset may find them on their way out already: it waits for their requests as for those of others.
            if producers.muted() {
                given_up.get_or_insert_with(Instant::now);
            }
        }
        let (gone, staying) = std::mem::take(&mut self.leaving).into_iter().partition(
            |(Leaving { producers }, given_up): &(Leaving, Option<Instant>)| {
                if given_up.is_some() {
                    producers.purge(false);
                }
                let empty = producers.flush(LEAVING_TICK);
                empty || given_up.is_some_and(|since| since.elapsed() >= DRAIN_MAX)
            },
        );
        self.leaving = staying;
        let gone: Vec<_> = gone;
        // To drop some takes 0.4 s (0.2 s measured, the first and then the others): empty ones can take their time
        // while the new ones send.
        let (empty, full): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|(old, _)| old.producers.in_flight_count() == 0);
        drop(full);
        if self.leaving.is_empty() && self.shared.settles() {
            self.shared.mailbox.post(Post::Retry);
        }
        drop(empty);
    }

    /// Asks for the topics that are waited for, a few a turn. False when no broker answered.
    fn ask(&mut self) -> bool {
        if self.shared.drop_unwanted() {
            // Whoever waits all the same asks again.
            self.shared.mailbox.post(Post::Retry);
        }
        let topics = self.shared.to_ask(ASKED_TOPICS, TICK);
        let Some(producers) = self.producers.clone() else { return true };
        for topic in topics {
            let asked_at = Instant::now();
            match self.look_up(producers.first(), &topic, SHORT) {
                Ok(facts) => {
                    if !producers.learn(&topic, ANSWER_MAX) {
                        self.name_brokers(&producers);
                    }
                    if !facts.configured && self.unread.insert(topic.clone()) {
                        self.stale.push(topic.clone());
                    }
                    self.learn(&topic, facts);
                    self.shared.got(&topic);
                    self.connected = true;
                    self.suspicion = None;
                    self.told.over_for(topic);
                    self.told.over(About::Broker);
                    self.shared.mailbox.post(Post::Retry);
                }
                Err(why) => {
                    let Some(trouble) = trouble::of_topic(&topic, why, &self.brokers) else {
                        self.shared.refuse_none();
                        self.name_brokers(&producers);
                        let trouble = self.broker_trouble();
                        self.told.say(trouble);
                        return false;
                    };
                    self.shared.refuse(&topic, asked_at);
                    self.told.say_of(topic, trouble);
                }
            }
        }
        true
    }

    /// Notices a broker that went away, came back, or answers without acknowledging.
    fn watch(&mut self) {
        let Some(producers) = self.producers.clone() else {
            return;
        };
        let acked = self.shared.acked.load(Ordering::Relaxed);
        // What is being emptied keeps the new one waiting: where that is not acknowledged, nothing goes on.
        let leaving = self.leaving.iter().map(|(leaving, _)| leaving.producers.in_flight_count());
        let flying = leaving.sum::<i32>() + producers.in_flight_count();
        if acked != self.acked || flying == 0 {
            self.acked = acked;
            self.acked_at = Instant::now();
            self.told.over(About::Stall);
        }
        let stalled = self.acked_at.elapsed() >= STALL;
        let in_trouble = self.told.is_about(About::Broker);
        if self.connected && self.suspicion.is_none() && !in_trouble && !stalled {
            self.forgotten.over();
            return;
        }
        if !self.answers(producers.first()) {
            self.name_brokers(&producers);
            let trouble = self.broker_trouble();
            self.told.say(trouble);
            return;
        }
        self.connected = true;
        self.suspicion = None;
        self.told.over(About::Broker);
        if stalled {
            // One of the others may know no broker.
            self.name_brokers(&producers);
            let why = self.why_stalled(producers.first());
            self.told.say(why);
        }
    }

    /// A topic that was there and is not, or what else may be. Asks for a few topics a turn, so each has its turn.
    fn why_stalled(&mut self, producer: &Producer) -> Trouble {
        if self.stale.is_empty() {
            self.stale = self.shared.known_topics().into_keys().collect();
        }
        for _ in 0..STALL_TOPICS {
            let Some(topic) = self.stale.pop() else { break };
            if let Err(why) = self.look_up(producer, &topic, SHORT)
                && let Some(trouble) = trouble::of_topic(&topic, why, &self.brokers)
            {
                // It stays at hand: the next turn asks for it again.
                self.stale.push(topic);
                return Trouble { about: About::Stall, ..trouble };
            }
        }
        trouble::of_stall(STALL)
    }

    /// Whether a broker answers. The first question also makes the producer connect before it has anything to send.
    fn answers(&self, producer: &Producer) -> bool {
        if !self.connected {
            return producer.client().fetch_cluster_id(ANSWER_MAX).is_some();
        }
        let topic = self.shared.any_topic();
        producer.client().fetch_metadata(topic.as_deref(), ANSWER_MAX).is_ok()
    }

    /// Those that are emptied need their brokers as the others do.
    fn name_brokers(&mut self, producers: &Producers) {
        let leaving = self.leaving.iter().map(|(leaving, _)| &*leaving.producers);
        self.forgotten.silence(leaving.chain([producers]), Instant::now());
    }

    fn broker_trouble(&mut self) -> Trouble {
        if let Some(heard) = self.shared.heard() {
            heard.outweigh(&mut self.suspicion);
        }
        trouble::of_broker(&self.brokers, self.suspicion.as_ref())
    }

    /// Asks again for what is known of one topic a turn, all of them once in `REFRESH`.
    fn refresh(&mut self) {
        if self.refreshed_at.elapsed() >= REFRESH {
            self.stale = self.shared.known_topics().into_keys().collect();
            self.refreshed_at = Instant::now();
        }
        let Some(producers) = self.producers.clone().filter(|_| !self.told.is_trouble()) else {
            return;
        };
        let Some(topic) = self.stale.pop() else {
            return;
        };
        let unread = self.unread.remove(&topic);
        let patience = if unread { (ANSWER_MAX, ANSWER_MAX) } else { SHORT };
        match self.look_up(producers.first(), &topic, patience) {
            Ok(facts) => {
                // All of them, before anything is sent by it. One that knows no broker any more is not noticed by what
                // is acknowledged: the others go on.
                if !producers.learn(&topic, ANSWER_MAX) {
                    self.name_brokers(&producers);
                }
                self.learn(&topic, facts);
            }
            Err(why) => {
                tracing::debug!(
                    target: "postrider::kafka", topic, code = %why.code, "could not ask for the topic again"
                );
                if trouble::of_topic(&topic, why, &self.brokers).is_none() {
                    // The next look asks whether any broker answers.
                    let code = Code::AllBrokersDown;
                    Suspicion { code, reason: String::new() }.outweigh(&mut self.suspicion);
                }
            }
        }
    }

    /// Asks for a topic, and for our rights to it where there is doubt.
    fn look_up(
        &mut self,
        producer: &Producer,
        topic: &str,
        patience: (Duration, Duration),
    ) -> Result<Facts, Unusable> {
        let facts = topic::look_up(producer, topic, patience)?;
        if self.rights.closed(&self.shared, producer, topic, &facts, ANSWER_MAX) {
            return Err(Unusable { code: Code::TopicAuthorizationFailed, brokers: 0 });
        }
        Ok(facts)
    }

    fn learn(&self, topic: &str, facts: Facts) {
        let (partitions, limit, min_insync) = (facts.partitions, facts.limit, facts.min_insync);
        match self.shared.learn(topic, facts) {
            None => tracing::debug!(
                target: "postrider::kafka", topic, partitions, limit, min_insync, "found the topic"
            ),
            Some(before) if before.partitions != partitions => tracing::warn!(
                target: "postrider::kafka", topic, before = before.partitions, now = partitions,
                "the topic's partitions have changed: keys move to other partitions, \
                 and a reader may see an aggregate's events out of order across the change"
            ),
            Some(before) if before.limit != limit => tracing::debug!(
                target: "postrider::kafka", topic, before = before.limit, limit, "found the topic's limit"
            ),
            Some(_) => {}
        }
    }
}
