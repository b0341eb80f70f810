//! The consumer: what is assigned to it, where each partition continues, and the next records.

use super::config::KafkaSourceConfig;
use super::native::{self, Polled, Poller};
use super::positions::{Decision, PartitionFacts};
use crate::batch::Partition;
use crate::mapping::KafkaRecord;
use crate::store::StoredOffset;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a question to a broker may take.
const ASK_MAX: Duration = Duration::from_secs(10);

/// How long the questions about all assigned partitions may take: the group removes a member that does not poll for
/// five minutes.
const DECIDE_MAX: Duration = Duration::from_mins(2);

/// What a broker says of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionBounds {
    /// The offset of the oldest record.
    pub low: i64,
    /// The offset behind the newest record.
    pub high: i64,
    /// The id of the topic; `None` if the broker has no ids.
    pub topic_id: Option<String>,
}

/// Asks a broker for the bounds of a partition, without joining the group.
///
/// # Errors
/// librdkafka makes no client of the settings, no broker answers, or there is no such partition.
pub fn bounds(
    config: &KafkaSourceConfig,
    partition: &Partition,
) -> Result<PartitionBounds, KafkaError> {
    let mut settings = config.client_config("postrider-inbox-seek");
    settings.remove("group.id");
    let client: BaseConsumer<Quiet> = settings.create_with_context(Quiet)?;
    let (low, high) = client.fetch_watermarks(&partition.topic, partition.number, ASK_MAX)?;
    let topics = [partition.topic.as_str()];
    let ids = native::topic_ids(client.client().native_ptr(), &topics, ASK_MAX)
        .map_err(KafkaError::Subscription)?;
    Ok(PartitionBounds { low, high, topic_id: ids.get(&partition.topic).cloned() })
}

/// Asks a broker which of the topics do not exist, or may not be seen by this login. Regular expressions are passed
/// over.
///
/// # Errors
/// librdkafka makes no client of the settings, or no broker answers.
pub fn missing_topics(config: &KafkaSourceConfig) -> Result<Vec<String>, KafkaError> {
    let mut settings = config.client_config("postrider-check");
    settings.remove("group.id");
    let client: BaseConsumer<Quiet> = settings.create_with_context(Quiet)?;
    let metadata = client.fetch_metadata(None, ASK_MAX)?;
    let known: BTreeSet<&str> = metadata.topics().iter().map(MetadataTopic::name).collect();
    let named = config.topics.iter().filter(|topic| !topic.starts_with('^'));
    Ok(named.filter(|topic| !known.contains(topic.as_str())).cloned().collect())
}

/// A consumer of a group. Dropping it leaves the group.
pub struct KafkaSource {
    poller: Poller<Quiet>,
    start: super::StartAt,
}

/// librdkafka's log lines go to the log of the process.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        // Errors are events too, and are reported from there.
        tracing::debug!(target: "postrider::kafka", ?level, facility, "{line}");
    }

    fn error(&self, _error: KafkaError, _reason: &str) {}
}

impl ConsumerContext for Quiet {}

impl KafkaSource {
    /// Makes a client and joins the group. Connects in the background: a broker that can't be reached is no error.
    ///
    /// # Errors
    /// librdkafka makes no client of the settings.
    pub fn open(config: &KafkaSourceConfig, client_id: &str) -> KafkaResult<Self> {
        let consumer: BaseConsumer<Quiet> =
            config.client_config(client_id).create_with_context(Quiet)?;
        let topics: Vec<&str> = config.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        Ok(Self { poller: Poller::of(consumer)?, start: config.start })
    }

    /// Takes the next event, and waits for it at most `timeout`. A record is passed to `receive`, without
    /// the id of its topic.
    pub fn poll(&self, timeout: Duration, receive: &mut dyn FnMut(&KafkaRecord<'_>)) -> Polled {
        self.poller.poll(timeout, receive)
    }

    /// Where assigned partitions continue. `stored` has their stored offsets, and `known` the topics of which the inbox
    /// has any offset.
    ///
    /// # Errors
    /// A broker does not answer, or a partition does not exist.
    pub fn decide(
        &self,
        partitions: &BTreeSet<Partition>,
        stored: &BTreeMap<Partition, StoredOffset>,
        known: &[String],
    ) -> Result<BTreeMap<Partition, (Decision, Option<String>)>, KafkaError> {
        let topics: BTreeSet<&str> = partitions.iter().map(|it| it.topic.as_str()).collect();
        let topics: Vec<&str> = topics.into_iter().collect();
        let consumer = self.poller.consumer();
        let ids = native::topic_ids(consumer.client().native_ptr(), &topics, ASK_MAX)
            .map_err(KafkaError::Subscription)?;
        let (mut decisions, start) = (BTreeMap::new(), Instant::now());
        for partition in partitions {
            if start.elapsed() > DECIDE_MAX {
                return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut));
            }
            let (low, high) =
                consumer.fetch_watermarks(&partition.topic, partition.number, ASK_MAX)?;
            let topic_id = ids.get(&partition.topic).cloned();
            let facts = PartitionFacts {
                stored: stored.get(partition).cloned(),
                low,
                high,
                topic_id: topic_id.clone(),
                topic_is_known: known.contains(&partition.topic),
            };
            decisions.insert(partition.clone(), (facts.decide(self.start), topic_id));
        }
        Ok(decisions)
    }

    /// Whether a broker answers, within a second.
    pub fn answers(&self) -> bool {
        // Of one topic that does not exist: the answer is short.
        let (consumer, timeout) = (self.poller.consumer(), Duration::from_secs(1));
        consumer.fetch_metadata(Some("."), timeout).is_ok()
    }

    /// Fetches these partitions, each from its offset on, and no others.
    ///
    /// # Errors
    /// librdkafka refuses the assignment, because the client is closed.
    pub fn assign(&self, partitions: &BTreeMap<Partition, i64>) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (partition, at) in partitions {
            let offset = Offset::Offset(*at);
            list.add_partition_offset(&partition.topic, partition.number, offset)?;
        }
        self.poller.consumer().assign(&list)
    }

    /// Fetches nothing until the next [`assign`](Self::assign). The group keeps its partitions assigned.
    ///
    /// # Errors
    /// librdkafka refuses, because the client is closed.
    pub fn hold(&self) -> KafkaResult<()> {
        self.poller.consumer().assign(&TopicPartitionList::new())
    }

    /// The offset behind the newest record of a partition, as the last fetch has shown it; `None` before the first one.
    pub fn high(&self, partition: &Partition) -> Option<i64> {
        native::high(self.poller.consumer().client().native_ptr(), partition)
    }

    /// Records behind these offsets, by asking the brokers; `None` if they do not answer `within` this time.
    pub fn lag(&self, offsets: &BTreeMap<Partition, i64>, within: Duration) -> Option<u64> {
        let (start, mut lag) = (Instant::now(), 0);
        for (partition, stored) in offsets {
            let left = within.checked_sub(start.elapsed())?;
            let consumer = self.poller.consumer();
            let (_, high) =
                consumer.fetch_watermarks(&partition.topic, partition.number, left).ok()?;
            lag += u64::try_from(high - stored).unwrap_or(0);
        }
        Some(lag)
    }

    /// Commits offsets to Kafka, for tools that show how far a group is behind. Nothing depends on them, and nothing
    /// waits for the answer.
    pub fn show_offsets(&self, partitions: &BTreeMap<Partition, i64>) {
        // An empty list would be one of everything that is assigned.
        if partitions.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (partition, at) in partitions {
            let offset = Offset::Offset(*at);
            if list.add_partition_offset(&partition.topic, partition.number, offset).is_err() {
                return;
            }
        }
        // An error is of tools only.
        drop(self.poller.consumer().commit(&list, CommitMode::Async));
    }
}
