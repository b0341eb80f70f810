//! The consumer: what is assigned to it, where each partition continues, and the next records.

use super::config::KafkaSourceConfig;
use super::native::{self, NewestRecord, Polled, Poller, TopicFacts};
use super::positions::{Answer, Block, Decision, Decisions, PartitionBounds, Placing, StartAt};
use crate::batch::Partition;
use crate::mapping::KafkaRecord;
use crate::store::{KnownTopics, StoredOffset};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};
use rdkafka_sys::rd_kafka_t;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a question to the brokers may take. A placement asks four at most, and the group removes a member that does
/// not poll for five minutes.
const ASK_MAX: Duration = Duration::from_secs(10);

/// How long a question about partitions without an answer may take: the others are not read meanwhile.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// Asks a broker for the id of its cluster and the bounds of a partition, without joining the group.
///
/// # Errors
/// librdkafka makes no client of the settings, no broker answers, or there is no such partition.
pub fn bounds(
    config: &KafkaSourceConfig,
    partition: &Partition,
) -> Result<(String, PartitionBounds), String> {
    let mut settings = config.client_config("postrider-inbox-seek");
    settings.remove("group.id");
    let client: Result<BaseConsumer<Quiet>, _> = settings.create_with_context(Quiet);
    let client = client.map_err(|error| error.to_string())?;
    let cluster = cluster(&client)?;
    let topics = BTreeSet::from([partition.topic.as_str()]);
    let client = client.client().native_ptr();
    let topics = native::topics(client, &topics, ASK_MAX)?;
    let asked = BTreeSet::from([partition.clone()]);
    let answer = answers(client, &topics, &asked, ASK_MAX)?.remove(partition);
    Ok((cluster, answer.unwrap_or_else(|| Err("no answer".to_owned()))?))
}

/// The epoch of the leader that wrote a record; `None` if the record is not there, or not within the time, or the
/// broker does not say it. Reads the record, without joining the group.
///
/// # Errors
/// librdkafka makes no client of the settings.
pub fn leader_epoch(
    config: &KafkaSourceConfig,
    partition: &Partition,
    offset: i64,
) -> KafkaResult<Option<i32>> {
    let settings = config.client_config("postrider-inbox-seek");
    let poller = Poller::of(settings.create_with_context(Quiet)?)?;
    assign(poller.consumer(), &BTreeMap::from([(partition.clone(), offset)]))?;
    let (mut found, since) = (None, Instant::now());
    while found.is_none() && since.elapsed() < ASK_MAX {
        poller.poll(Duration::from_millis(100), &mut |record| {
            found = Some(record.leader_epoch.filter(|_| record.offset == offset));
        });
    }
    Ok(found.flatten())
}

/// The id of the cluster; empty if its brokers have none.
fn cluster<C: ConsumerContext>(client: &BaseConsumer<C>) -> Result<String, String> {
    // Metadata has it. Of one topic that does not exist: the answer is short.
    client.fetch_metadata(Some("."), ASK_MAX).map_err(|error| error.to_string())?;
    Ok(native::cluster_id(client.client().native_ptr()).unwrap_or_default())
}

/// The answers of the brokers about partitions.
fn answers(
    client: *mut rd_kafka_t,
    topics: &BTreeMap<String, Result<TopicFacts, String>>,
    partitions: &BTreeSet<Partition>,
    timeout: Duration,
) -> Result<BTreeMap<Partition, Answer>, String> {
    let facts = |partition: &Partition| match topics.get(&partition.topic) {
        None => Err("they have no answer about the topic".to_owned()),
        Some(Err(error)) => Err(error.clone()),
        Some(Ok(facts)) => match facts.partitions.get(&partition.number) {
            None => Err("the topic has no such partition".to_owned()),
            // Nobody would answer, and the question would wait for the whole time.
            Some(false) => Err("it has no leader".to_owned()),
            Some(true) => Ok(facts),
        },
    };
    let asked: Vec<&Partition> = partitions.iter().filter(|it| facts(it).is_ok()).collect();
    let mut bounds = native::bounds(client, &asked, NewestRecord::Committed, timeout)?;
    let mut answer = |partition: &Partition| {
        let topic_id = facts(partition)?.id.clone();
        let none = || Err("its leader does not answer".to_owned());
        let (low, high) = bounds.remove(partition).unwrap_or_else(none)?;
        Ok(PartitionBounds { low, high, topic_id })
    };
    Ok(partitions.iter().map(|partition| (partition.clone(), answer(partition))).collect())
}

fn assign<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &BTreeMap<Partition, i64>,
) -> KafkaResult<()> {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (partition, at) in partitions {
        let offset = Offset::Offset(*at);
        list.add_partition_offset(&partition.topic, partition.number, offset)?;
    }
    consumer.assign(&list)
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
    /// The names and regular expressions of the configuration.
    topics: Vec<String>,
    start: StartAt,
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
        let (poller, topics) = (Poller::of(consumer)?, config.topics.clone());
        Ok(Self { poller, topics, start: config.start })
    }

    /// Takes the next event, and waits for it at most `timeout`. A record is passed to `receive`, without
    /// the id of its topic.
    pub fn poll(&self, timeout: Duration, receive: &mut dyn FnMut(&KafkaRecord<'_>)) -> Polled {
        self.poller.poll(timeout, receive)
    }

    /// The id of the cluster; empty if its brokers have none.
    ///
    /// # Errors
    /// No broker answers.
    pub fn cluster(&self) -> Result<String, String> {
        cluster(self.poller.consumer())
    }

    /// Where assigned partitions continue. `stored` has their stored offsets, and `known` the topics of which the
    /// inbox has any offset. Of a topic of which it has none, all partitions are in the result, assigned or not, for
    /// they have to begin together; and if it knows no topic of this cluster, those of all topics that are subscribed
    /// to.
    ///
    /// # Errors
    /// The brokers answer about none of the assigned partitions.
    pub fn decide(
        &self,
        assigned: &BTreeSet<Partition>,
        stored: &BTreeMap<Partition, StoredOffset>,
        known: &KnownTopics,
    ) -> Result<Decisions, String> {
        self.decide_within(ASK_MAX, assigned, stored, known)
    }

    /// Whether the brokers answer about one of the partitions about which they had no answer.
    pub fn has_answer(
        &self,
        partitions: &BTreeSet<Partition>,
        stored: &BTreeMap<Partition, StoredOffset>,
        known: &KnownTopics,
    ) -> bool {
        !partitions.is_empty()
            && self.decide_within(ASK_AGAIN_MAX, partitions, stored, known).is_ok()
    }

    fn decide_within(
        &self,
        timeout: Duration,
        assigned: &BTreeSet<Partition>,
        stored: &BTreeMap<Partition, StoredOffset>,
        known: &KnownTopics,
    ) -> Result<Decisions, String> {
        let placing = Placing { stored, known, start: self.start, named: &self.topics };
        let others = self.found_first(&placing, timeout)?;
        let client = self.poller.consumer().client().native_ptr();
        let names = assigned.iter().map(|it| it.topic.as_str());
        let names = names.chain(others.iter().map(String::as_str)).collect();
        let topics = native::topics(client, &names, timeout)?;
        let mut asked = assigned.clone();
        for (topic, facts) in &topics {
            if let (Some(_), Ok(facts)) = (placing.begins(topic), facts) {
                let of = |number: &i32| Partition { topic: topic.clone(), number: *number };
                asked.extend(facts.partitions.keys().map(of));
            }
        }
        let mut decided = placing.decide(answers(client, &topics, &asked, timeout)?);
        let error = |partition: &Partition| match decided.get(partition) {
            Some((Decision::Blocked(Block::NoAnswer { error }), _)) => Some(error.clone()),
            Some(_) | None => None,
        };
        let errors: Vec<String> = assigned.iter().filter_map(error).collect();
        if errors.len() == assigned.len()
            && let (Some(error), Some(first)) = (errors.first(), assigned.first())
        {
            let Partition { topic, number } = first;
            return Err(format!("partition {number} of topic \"{topic}\": {error}"));
        }
        decided.retain(|partition, (decision, _)| {
            assigned.contains(partition) || matches!(decision, Decision::Begin { .. })
        });
        Ok(decided)
    }

    /// The topics that the regular expressions find, if they have to begin at the same moment: behind what is there
    /// when this cluster is read for the first time. One that is found later is read from its beginning.
    fn found_first(&self, placing: &Placing<'_>, timeout: Duration) -> Result<Vec<String>, String> {
        let patterns = self.topics.iter().filter(|topic| topic.starts_with('^'));
        // librdkafka's are those of POSIX. Of one that is written in another way, only what is assigned here is found.
        let patterns: Vec<Regex> = patterns.filter_map(|it| Regex::new(it).ok()).collect();
        let is_first = self.start == StartAt::Latest && placing.known.here.is_empty();
        if patterns.is_empty() || !is_first {
            return Ok(Vec::new());
        }
        let all = self.poller.consumer().fetch_metadata(None, timeout);
        let all = all.map_err(|error| error.to_string())?;
        let names = all.topics().iter().map(rdkafka::metadata::MetadataTopic::name);
        let found = names.filter(|name| patterns.iter().any(|pattern| pattern.is_match(name)));
        Ok(found.map(str::to_owned).collect())
    }

    /// Whether the topics still have these ids. The client goes on at the same offset when a topic is deleted and
    /// created again.
    ///
    /// # Errors
    /// No broker answers.
    pub fn are_same(&self, topics: &BTreeMap<&str, &str>) -> Result<bool, String> {
        if topics.is_empty() {
            return Ok(true);
        }
        let (names, client) =
            (topics.keys().copied().collect(), self.poller.consumer().client().native_ptr());
        // This is asked before each transaction, and without an answer everything that was read is dropped and read
        // again: with a short time, brokers that are slow for a while would be read from in vain for as long.
        let found = native::topics(client, &names, ASK_MAX)?;
        let same = |(topic, id): (&&str, &&str)| {
            let facts = found.get(*topic).and_then(|facts| facts.as_ref().ok());
            facts.and_then(|facts| facts.id.as_deref()) == Some(*id)
        };
        Ok(topics.iter().all(same))
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
        assign(self.poller.consumer(), partitions)
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
