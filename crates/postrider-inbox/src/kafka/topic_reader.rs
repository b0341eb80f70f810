//! Reads topics from given offsets on, without a consumer group: nothing is joined, committed or written.

use super::config::KafkaSourceConfig;
use super::native::{self, NewestRecord, Polled, Poller};
use crate::batch::Partition;
use crate::mapping::KafkaRecord;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a question to the brokers may take.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// What the brokers say of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundTopic {
    /// The numbers of its partitions.
    Partitions(Vec<i32>),
    /// There is none of this name.
    Missing,
    /// The login may not see it.
    Denied,
    /// Another answer, in the words of librdkafka.
    Failed(String),
}

/// The part of a partition that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionExtent {
    /// The offset of the oldest record.
    pub low: i64,
    /// The offset behind the newest record, also of an open transaction.
    pub written: i64,
}

/// A consumer without a group. It gets committed records only.
pub struct TopicReader {
    poller: Poller<UngroupedContext>,
}

/// librdkafka's log lines go to the log of the process, at level debug.
struct UngroupedContext;

impl ClientContext for UngroupedContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        tracing::debug!(target: "postrider::kafka", ?level, facility, "{line}");
    }

    fn error(&self, _error: KafkaError, _reason: &str) {}
}

impl ConsumerContext for UngroupedContext {}

impl TopicReader {
    /// Makes a client. Connects in the background.
    ///
    /// # Errors
    /// librdkafka makes no client of the settings.
    pub fn open(config: &KafkaSourceConfig, client_id: &str) -> KafkaResult<Self> {
        let mut settings = config.client_config(client_id);
        // Records that are deleted while they are read are passed over: the caller compares the oldest offsets.
        settings.set("auto.offset.reset", "earliest");
        let consumer: BaseConsumer<UngroupedContext> =
            settings.create_with_context(UngroupedContext)?;
        Ok(Self { poller: Poller::of(consumer)? })
    }

    /// The partitions of a topic.
    ///
    /// # Errors
    /// No broker answers.
    pub fn find(&self, topic: &str) -> Result<FoundTopic, KafkaError> {
        let metadata = self.poller.consumer().fetch_metadata(Some(topic), ANSWER_MAX)?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(FoundTopic::Missing);
        };
        let numbers: Vec<i32> = found.partitions().iter().map(MetadataPartition::id).collect();
        Ok(match found.error() {
            None if numbers.is_empty() => FoundTopic::Missing,
            None => FoundTopic::Partitions(numbers),
            Some(error) => of_error(error),
        })
    }

    /// The ids of topics, which change when a topic is deleted and created again; `None` of one that does not exist, or
    /// if the brokers have no ids.
    ///
    /// # Errors
    /// No broker answers.
    pub fn ids(&self, topics: &BTreeSet<&str>) -> Result<BTreeMap<String, Option<String>>, String> {
        let client = self.poller.consumer().client().native_ptr();
        let found = native::topics(client, topics, ANSWER_MAX)?;
        Ok(found.into_iter().map(|(topic, of)| (topic, of.ok().and_then(|of| of.id))).collect())
    }

    /// The extent of partitions, or the error of one.
    ///
    /// # Errors
    /// No broker answers.
    pub fn extents(
        &self,
        partitions: &[&Partition],
    ) -> Result<BTreeMap<Partition, Result<PartitionExtent, String>>, String> {
        let client = self.poller.consumer().client().native_ptr();
        let bounds = native::bounds(client, partitions, NewestRecord::Written, ANSWER_MAX)?;
        let extent = |(low, written)| PartitionExtent { low, written };
        Ok(bounds.into_iter().map(|(partition, of)| (partition, of.map(extent))).collect())
    }

    /// The first offset of each partition whose record is not older than this time; `None` if there is no such record.
    ///
    /// # Errors
    /// No broker answers.
    pub fn offsets_since(
        &self,
        partitions: &[&Partition],
        unix_millis: i64,
    ) -> Result<BTreeMap<Partition, Option<i64>>, KafkaError> {
        // librdkafka refuses an empty list.
        if partitions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            let time = Offset::Offset(unix_millis);
            list.add_partition_offset(&partition.topic, partition.number, time)?;
        }
        let answer = self.poller.consumer().offsets_for_times(list, ANSWER_MAX)?;
        let of = |partition: &Partition| {
            let found = answer.find_partition(&partition.topic, partition.number)?;
            match found.offset() {
                Offset::Offset(offset) => Some(offset),
                Offset::Beginning
                | Offset::End
                | Offset::Stored
                | Offset::Invalid
                | Offset::OffsetTail(_) => None,
            }
        };
        Ok(partitions.iter().map(|partition| ((*partition).clone(), of(partition))).collect())
    }

    /// Reads these partitions, each from its offset on, and no others.
    ///
    /// # Errors
    /// librdkafka refuses the assignment.
    pub fn assign(&self, partitions: &BTreeMap<Partition, i64>) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for (partition, at) in partitions {
            let offset = Offset::Offset(*at);
            list.add_partition_offset(&partition.topic, partition.number, offset)?;
        }
        self.poller.consumer().assign(&list)
    }

    /// Reads nothing more of a partition.
    ///
    /// # Errors
    /// librdkafka refuses.
    pub fn pause(&self, partition: &Partition) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition(&partition.topic, partition.number);
        self.poller.consumer().pause(&list)
    }

    /// Takes the next event, and waits for it at most `timeout`. A record is passed to `receive`.
    pub fn poll(&self, timeout: Duration, receive: &mut dyn FnMut(&KafkaRecord<'_>)) -> Polled {
        self.poller.poll(timeout, receive)
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "librdkafka's list is open")]
fn of_error(error: RDKafkaRespErr) -> FoundTopic {
    match Code::from(error) {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => FoundTopic::Missing,
        Code::TopicAuthorizationFailed => FoundTopic::Denied,
        code => FoundTopic::Failed(code.to_string()),
    }
}
