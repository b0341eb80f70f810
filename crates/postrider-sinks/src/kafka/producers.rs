//! The producers of a sink: as many as `sink.shards` says.
//!
//! librdkafka puts the batch of one partition into a request, and a broker serves one request of a connection at a
//! time, so the partitions of a producer stand in one line. Several producers are several lines. Which of them takes a
//! record depends on its key alone, not on how many partitions the topic has just now, nor on a partition of its own:
//! so all events of an aggregate go through the same one, in order. Where `shards` divides the partitions and the key
//! chooses among them, partition p has producer p mod `shards`. They are made, emptied and given up together: where one
//! can't be trusted any more, none is.
//!
//! Records above their topic's limit before compression have a producer of their own, which is made for the first of
//! them. It belongs to the others in everything else. It has at most one record, so a broker's refusal leaves no gap
//! that a later record could pass: it is the only one that goes on after a refusal.

use super::context::Context;
use super::native;
use super::polled::{Polled, Producer};
use super::shared::Shared;
use crate::SinkError;
use postrider_core::record::Record;
use rdkafka::config::ClientConfig;
use rdkafka::producer::Producer as _;
use std::ffi::CStr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
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
    ) -> Result<Self, SinkError> {
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
    pub(super) fn make_large(&self, config: &ClientConfig) -> Result<(), SinkError> {
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
