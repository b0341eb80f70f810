//! What the keeper asks of topics: of those that somebody waits for, of those that are known, now and then, and of all
//! where nothing is acknowledged.
//!
//! What it finds goes to [`Shared`](super::Shared); of a topic that can't be used it says so.

use super::{ANSWER_MAX, Keeper, TICK};
use crate::Post;
use crate::kafka::creation::{self, Made};
use crate::kafka::native::{self, Description};
use crate::kafka::polled::Producer;
use crate::kafka::producers::Producers;
use crate::kafka::shared::Suspicion;
use crate::kafka::topic::{self, CONFIG_ANSWER_MAX, Facts, Unusable};
use crate::kafka::trouble::{self, About, Trouble};
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a topic that somebody waits for may take: its configuration may come later.
const SHORT: (Duration, Duration) = (ANSWER_MAX, CONFIG_ANSWER_MAX);
/// Topics asked for in one turn while nothing is acknowledged.
const STALL_TOPICS: usize = 8;
/// Topics asked for in one turn while somebody waits for them: each may take `ANSWER_MAX`.
const ASKED_TOPICS: usize = 8;
/// How often what is known of topics is asked for again.
const REFRESH: Duration = Duration::from_mins(1);
/// Between two sets of producers that topics cost which were recreated: whatever brokers say of ids.
const ANEW_APART: Duration = Duration::from_secs(10);

impl Keeper {
    /// Asks for the topics that are waited for, a few a turn. False when no broker answered.
    pub(super) fn ask(&mut self) -> bool {
        if self.shared.drop_unwanted() {
            // Whoever waits all the same asks again.
            self.shared.mailbox.post(Post::Retry);
        }
        let topics = self.shared.to_ask(ASKED_TOPICS, TICK);
        let Some(producers) = self.producers.clone() else { return true };
        for topic in topics {
            let asked_at = Instant::now();
            let mut found = self.look_up(producers.first(), &topic, SHORT, false);
            let mut not_made = None;
            if let Err(why) = found
                && why.does_not_exist()
            {
                match self.creation.make(producers.first(), &topic, ANSWER_MAX) {
                    Made::Yes => {
                        found = self.look_up(producers.first(), &topic, SHORT, false);
                        // Not every broker has heard of it yet: it is asked for again in the next turn.
                        if found.as_ref().is_err_and(|why| why.does_not_exist()) {
                            continue;
                        }
                    }
                    Made::No => {}
                    Made::Not(why) => {
                        not_made = Some(creation::trouble(&topic, &why, &self.spec.brokers));
                    }
                    Made::Later => not_made = Some(creation::too_many(&topic)),
                }
            }
            match found {
                Ok(facts) => {
                    if !producers.learn(&topic, ANSWER_MAX) {
                        self.name_brokers(&producers);
                    }
                    // What nobody waits for is asked after that.
                    if !facts.configured && self.unread.insert(topic.clone()) {
                        self.stale.push_front(topic.clone());
                    } else if !self.stale.contains(&topic) {
                        self.stale.push_back(topic.clone());
                    }
                    self.learn(&topic, facts);
                    self.shared.got(&topic);
                    self.connected = true;
                    self.suspicion = None;
                    self.told.over_for(topic);
                    if !self.unmade {
                        self.told.over(About::Broker);
                    }
                    self.shared.mailbox.post(Post::Retry);
                }
                Err(why) => {
                    let Some(trouble) = trouble::of_topic(&topic, why, &self.spec.brokers) else {
                        self.shared.refuse_none();
                        self.name_brokers(&producers);
                        let trouble = self.broker_trouble();
                        self.told.say(trouble);
                        return false;
                    };
                    let trouble = not_made.unwrap_or(trouble);
                    let missing = why.is_missing() && !self.shared.was_known(&topic);
                    self.shared.refuse(&topic, asked_at, missing);
                    self.told.say_of(topic, trouble, missing);
                }
            }
        }
        true
    }

    /// A topic that was there and is not, if there is one. Asks for a few topics a turn, so each has its turn.
    pub(super) fn why_stalled(&mut self, producers: &Producers) -> Option<Trouble> {
        if self.stale.is_empty() {
            self.stale_are_all();
        }
        let begun = Instant::now();
        for _ in 0..STALL_TOPICS {
            // Who waits for a reset waits for this: where a broker gives no answer, others are asked in the next turn.
            if begun.elapsed() >= ANSWER_MAX {
                break;
            }
            let topic = self.stale.pop_front()?;
            match self.look_up(producers.first(), &topic, SHORT, true) {
                Ok(facts) => self.learn(&topic, facts),
                Err(why) => {
                    if let Some(trouble) = trouble::of_topic(&topic, why, &self.spec.brokers) {
                        // It stays at hand: after all others it is asked for again.
                        if self.stale.is_empty() {
                            self.stale_are_all();
                        }
                        self.stale.retain(|other| *other != topic);
                        self.stale.push_back(topic);
                        return Some(Trouble { about: About::Stall, ..trouble });
                    }
                }
            }
        }
        None
    }

    /// All that is known is to be asked for again.
    pub(super) fn stale_are_all(&mut self) {
        self.stale = self.shared.known_topics().into_keys().collect();
        self.refreshed_at = Instant::now();
    }

    /// Asks again for what is known of one topic a turn, of all in `REFRESH` or in as many turns as they are.
    pub(super) fn refresh(&mut self) {
        if self.stale.is_empty() && self.refreshed_at.elapsed() >= REFRESH {
            self.stale_are_all();
        }
        let Some(producers) = self.producers.clone().filter(|_| !self.told.is_trouble()) else {
            return;
        };
        let Some(topic) = self.stale.pop_front() else {
            return;
        };
        let unread = self.unread.remove(&topic);
        let patience = if unread { (ANSWER_MAX, ANSWER_MAX) } else { SHORT };
        match self.look_up(producers.first(), &topic, patience, true) {
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
                if trouble::of_topic(&topic, why, &self.spec.brokers).is_none() {
                    // The next look asks whether any broker answers.
                    let code = Code::AllBrokersDown;
                    Suspicion { code, reason: String::new() }.outweigh(&mut self.suspicion);
                }
            }
        }
    }

    /// Asks for a topic, and for our rights to it where there is doubt; `closely`, also whether it is the one that it
    /// was.
    fn look_up(
        &mut self,
        producer: &Producer,
        topic: &str,
        patience: (Duration, Duration),
        closely: bool,
    ) -> Result<Facts, Unusable> {
        let facts = topic::look_up(producer, topic, patience)?;
        if closely || self.shared.rights.load(Ordering::Acquire) {
            self.describe(producer, topic, &facts)?;
        }
        Ok(facts)
    }

    fn describe(
        &mut self,
        producer: &Producer,
        topic: &str,
        facts: &Facts,
    ) -> Result<(), Unusable> {
        let described = native::describe(producer, &facts.name, ANSWER_MAX);
        let due = self.anew_at.is_none_or(|at| at.elapsed() >= ANEW_APART);
        if let Ok(Description { id: Some(id), .. }) = described
            && self.ids.changed(topic, id, due)
        {
            self.anew_at = Some(Instant::now());
            let reason = format!("topic \"{topic}\" was deleted and recreated");
            producer.client().context().broken(reason);
        }
        let in_doubt = self.shared.rights.load(Ordering::Acquire);
        if in_doubt && self.rights.closed(topic, described) {
            return Err(Unusable { code: Code::TopicAuthorizationFailed, brokers: 0 });
        }
        Ok(())
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
