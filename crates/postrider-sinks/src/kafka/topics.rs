//! Topics: their facts and how these are read, whether a record fits, topics that were created again, topics that may
//! not be written, the creation of topics, and records that are larger than their topic's limit before compression.

#[cfg(test)]
mod tests;

use super::health::{About, Problem};
use super::native::{self, Description, NotMade, Producer, TopicId};
use super::producer::murmur2;
use super::spec::{CreateTopics, OpenError};
use crate::topic::is_topic_name;
use postrider_core::record::{Record, Refusal, Ticket, has_empty_part};
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The broker's default of `message.max.bytes` (Kafka's documentation), used if the topic's own limit may not be read.
/// Unit: bytes.
pub(super) const BROKER_DEFAULT_BYTES: usize = 1_048_588;

/// The size of a record batch's header, before its first record (message format 2). Unit: bytes.
const BATCH_HEADER_BYTES: usize = 61;

/// The longest wait for the topic's configuration while events wait for the topic. Without the configuration the
/// default limit is assumed. If the topic's limit is lower, a batch is refused, and the topic is looked up again.
pub(super) const CONFIG_ANSWER_MAX: Duration = Duration::from_millis(500);

/// The facts about a topic that the sink needs before it sends a record to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The name, for librdkafka.
    pub(super) name: CString,
    /// The number of partitions.
    pub(super) partitions: i32,
    /// The number of brokers that lead partitions of the topic.
    pub(super) leaders: usize,
    /// The number of in-sync replicas of the partition that has the fewest; 0 if a partition has no leader.
    pub(super) in_sync: usize,
    /// The largest batch that the topic accepts (`max.message.bytes`). Unit: bytes.
    pub(super) limit: usize,
    /// The number of replicas that must have a record before it is acknowledged (`min.insync.replicas`); `None` if the
    /// configuration may not be read.
    pub(super) min_insync: Option<u32>,
    /// How the broker stores batches of the topic (`compression.type`): `producer`, a codec, or `uncompressed`; `None`
    /// if the configuration may not be read.
    pub(super) compression: Option<String>,
    /// Whether the topic's configuration was read; otherwise the broker's defaults are assumed.
    pub(super) configured: bool,
    /// When the request was sent.
    pub(super) asked_at: Instant,
}

impl Facts {
    /// Whether the broker stores batches uncompressed, so that its limit applies to the uncompressed size.
    fn keeps_uncompressed(&self) -> bool {
        self.compression.as_deref() == Some("uncompressed")
    }

    /// Whether a partition accepts no records, because it has no leader or not enough in-sync replicas.
    pub(super) fn lacks(&self) -> bool {
        self.in_sync < self.min_insync.map_or(1, |copies| copies as usize)
    }
}

/// Why a topic can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusable {
    /// The topic's own error, or why no broker could be asked.
    pub(super) code: Code,
    /// The number of brokers of the cluster; 0 if no broker answered.
    pub(super) brokers: usize,
}

impl Unusable {
    /// Whether a broker has answered that the topic does not exist.
    pub(super) const fn does_not_exist(self) -> bool {
        matches!(self.code, Code::UnknownTopicOrPartition | Code::UnknownTopic)
    }

    /// Whether the topic does not exist as far as this client can see. A broker answers "not authorised" for a name
    /// that the client may not see, whether such a topic exists or not.
    pub(super) const fn is_missing(self) -> bool {
        self.does_not_exist()
            || matches!(self.code, Code::InvalidTopic | Code::TopicAuthorizationFailed)
    }
}

/// Requests the facts about a topic. Waits at most `timeout` for its metadata, and `config_timeout` for its
/// configuration.
///
/// # Errors
/// The topic's own error (missing, not visible for this client), or why no broker could be asked.
pub(super) fn look_up(
    producer: &Producer,
    topic: &str,
    (timeout, config_timeout): (Duration, Duration),
) -> Result<Facts, Unusable> {
    // The time before the request: the answer need not include changes that were made after it was sent.
    let asked_at = Instant::now();
    let unasked = |code| Unusable { code, brokers: 0 };
    let name = CString::new(topic).map_err(|_nul| unasked(Code::InvalidTopic))?;
    let unclear = Code::LeaderNotAvailable;
    let metadata = producer
        .client()
        .fetch_metadata(Some(topic), timeout)
        .map_err(|error| unasked(error.rdkafka_error_code().unwrap_or(unclear)))?;
    let unusable = |code| Unusable { code, brokers: metadata.brokers().len() };
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let found = found.ok_or_else(|| unusable(unclear))?;
    if let Some(error) = found.error() {
        return Err(unusable(error.into()));
    }
    let partitions = i32::try_from(found.partitions().len()).unwrap_or(i32::MAX);
    if partitions == 0 {
        return Err(unusable(unclear));
    }
    let leaders: BTreeSet<i32> = found.partitions().iter().map(MetadataPartition::leader).collect();
    // The configuration is optional: the permission may be missing, and compatible servers may not have the request
    // (librdkafka's mock broker never answers it).
    let config = native::topic_config(producer, &name, config_timeout);
    let configured = config.is_ok();
    let entries = config.unwrap_or_default();
    let entry = |wanted: &str| {
        entries.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    };
    let in_sync = |one: &MetadataPartition| if one.leader() < 0 { 0 } else { one.isr().len() };
    Ok(Facts {
        name,
        partitions,
        leaders: leaders.len(),
        in_sync: found.partitions().iter().map(in_sync).min().unwrap_or_default(),
        limit: entry("max.message.bytes")
            .and_then(|value| value.parse().ok())
            .unwrap_or(BROKER_DEFAULT_BYTES),
        min_insync: entry("min.insync.replicas").and_then(|value| value.parse().ok()),
        compression: entry("compression.type").map(str::to_owned),
        configured,
        asked_at,
    })
}

/// The partition of a record, chosen as Kafka's clients choose it; `None` if librdkafka may choose any. It is chosen
/// here, from the facts about the topic, because several producers of librdkafka learn of new partitions at different
/// times. A record without partition and key has no place in an order, but a topic of one partition keeps one anyway.
#[inline]
pub(super) fn partition_of(record: &Record<'_>, facts: &Facts) -> Option<i32> {
    match (record.partition, record.key) {
        (Some(partition), _) => Some(partition),
        (None, Some(key)) => {
            let partitions = facts.partitions.unsigned_abs().max(1);
            Some((murmur2(key) % partitions).cast_signed())
        }
        (None, None) => (facts.partitions == 1).then_some(0),
    }
}

/// Checks the size of key, value and headers against the operator's own limit, if there is one.
pub(super) fn within(record: &Record<'_>, size_max: Option<usize>) -> Result<(), Refusal> {
    let Some(limit) = size_max else { return Ok(()) };
    let size = record.size_bytes();
    if size > limit { Err(Refusal::too_large(size, limit)) } else { Ok(()) }
}

/// Whether a topic accepts a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// Yes, whatever the compression achieves.
    Surely,
    /// If it compresses well enough, which only the broker can decide. `size`: bytes of a batch with only this record,
    /// not compressed.
    Compressed { size: usize },
}

/// Whether the topic accepts the record, alone in a batch. `compresses`: whether the producer compresses batches.
///
/// The broker checks the size of a batch as it arrives, and again if it stores the batch with another compression
/// (`compression.type`).
pub(super) fn fits(record: &Record<'_>, facts: &Facts, compresses: bool) -> Result<Fit, Refusal> {
    if let Some(partition) = record.partition
        && !(0..facts.partitions).contains(&partition)
    {
        return Err(Refusal::partition(partition));
    }
    let limit = facts.limit;
    // The exact size needs a loop over the headers, so it is computed only near the limit.
    if batch_bytes_at_most(record) <= limit {
        return Ok(Fit::Surely);
    }
    let size = batch_bytes(record);
    if size <= limit {
        return Ok(Fit::Surely);
    }
    if size > ATTEMPT_BYTES_MAX {
        return Err(Refusal::too_large(size, limit.max(ATTEMPT_BYTES_MAX)));
    }
    // If the limit may not be read, the default is only an assumption, and the broker decides.
    if (compresses && !facts.keeps_uncompressed()) || !facts.configured {
        return Ok(Fit::Compressed { size });
    }
    Err(Refusal::too_large(size, limit))
}

/// An upper bound of [`batch_bytes`]: ten bytes of lengths for each header, and 64 for the rest.
pub(super) fn batch_bytes_at_most(record: &Record<'_>) -> usize {
    record.size_bytes() + BATCH_HEADER_BYTES + 64 + 10 * record.headers.len()
}

/// Bytes of a batch with only this record, not compressed (Kafka protocol, "Record Batch"; compared with a real
/// broker).
fn batch_bytes(record: &Record<'_>) -> usize {
    let sized = |bytes: Option<usize>| bytes.map_or(1, |len| varint_bytes(len) + len);
    let headers: usize = record
        .headers
        .iter()
        .map(|header| sized(Some(header.name.len())) + sized(header.value.map(<[u8]>::len)))
        .sum();
    // Attributes, timestamp delta and offset delta are a byte each in the first record.
    let body = 3
        + sized(record.key.map(<[u8]>::len))
        + sized(record.value.map(<[u8]>::len))
        + varint_bytes(record.headers.len())
        + headers;
    BATCH_HEADER_BYTES + varint_bytes(body) + body
}

/// Bytes of a non-negative number as a zigzag varint.
const fn varint_bytes(number: usize) -> usize {
    let bits = (usize::BITS - number.leading_zeros()) as usize + 1;
    bits.div_ceil(7)
}

// Topics that were deleted and created again. Such a topic has the same name and another id.
//
// librdkafka does not notice this if it requested no metadata in between. The leader epochs of the new topic begin at 0
// again, so librdkafka regards the new leaders as outdated, and sends to the former leaders without end (its issue
// 4898, open; seen with 2.12.1: `kafka_astray::topic_that_is_made_anew_with_another_leader_gets_its_records`). In
// addition, no partition of the new topic knows the producer id that the former partitions knew. In both cases only a
// new producer helps.
//
// Brokers may answer with outdated metadata. A topic never gets a former id back, so an answer with the former id is
// ignored.

/// The most topics whose ids are remembered. If a further topic is created again, only the lack of acknowledgements
/// shows it ([`AckStall`](super::health::AckStall)).
const TOPICS_MAX: usize = 10_000;

#[derive(Default)]
struct Known {
    id: Option<TopicId>,
    former: Option<TopicId>,
}

#[derive(Default)]
pub(super) struct TopicIds {
    topics: BTreeMap<String, Known>,
}

impl TopicIds {
    /// Records the id of a topic, and returns whether the topic had another id before. Then the caller creates new
    /// producers, which know no former partitions, so the ids of all other topics are learnt again. If `due` is false,
    /// another id is not recorded: it is found when the topic is looked up again.
    pub(super) fn changed(&mut self, topic: &str, id: TopicId, due: bool) -> bool {
        if self.topics.len() == TOPICS_MAX && !self.topics.contains_key(topic) {
            return false;
        }
        let known = self.topics.entry(topic.to_owned()).or_default();
        if known.former == Some(id) || *known.id.get_or_insert(id) == id || !due {
            return false;
        }
        known.former = known.id.replace(id);
        for (name, other) in &mut self.topics {
            if name != topic {
                other.id = None;
            }
        }
        true
    }
}

#[cfg(test)]
mod ids_tests {
    use super::*;

    #[test]
    fn topic_that_is_made_anew_is_noticed_once() {
        let mut ids = TopicIds::default();
        let [old, new, newer] = [1, 2, 3].map(TopicId::number);
        assert!(!ids.changed("a", old, true));
        assert!(!ids.changed("a", old, true));
        assert!(ids.changed("a", new, true));
        assert!(!ids.changed("a", old, true), "a broker that lags behind");
        assert!(!ids.changed("a", new, true));
        assert!(ids.changed("a", newer, true));
    }

    /// After a topic was created again, all topics are looked up at once; an id that is read before is not lost.
    #[test]
    fn what_is_heard_before_it_is_due_is_remembered_and_not_lost() {
        let mut ids = TopicIds::default();
        let [old, new] = [1, 2].map(TopicId::number);
        assert!(!ids.changed("a", old, false));
        assert!(!ids.changed("a", new, false));
        assert!(ids.changed("a", new, true));
    }

    /// All topics of a cluster that was replaced: the new producers for the first topic know no former topic either.
    #[test]
    fn topics_that_are_made_anew_together_cost_one_set_of_producers() {
        let mut ids = TopicIds::default();
        let [old, new] = [1, 2].map(TopicId::number);
        for topic in ["a", "b", "c"] {
            assert!(!ids.changed(topic, old, true));
        }
        let changed = ["a", "b", "c", "a", "b"].map(|topic| ids.changed(topic, new, true));
        assert_eq!(changed, [true, false, false, false, false]);
        assert!(!ids.changed("a", old, true), "a broker that lags behind");
    }
}

// Topics that this client may see and may not write to. Their metadata do not differ from those of other topics, so
// they are found when such a topic refuses a record. From then on the client's rights are requested with every look-up.
//
// The last answers are stored here; the metadata thread acts on a closed topic.

/// The most topics that are remembered as closed. A further topic counts as open, and refuses its next record again.
const CLOSED_MAX: usize = 1_000;

#[derive(Default)]
pub(super) struct Rights {
    closed: BTreeSet<String>,
}

impl Rights {
    /// Whether this client may not write to an existing topic, by the broker's description of the topic.
    ///
    /// The description comes from the controller, to which the client may have no connection. If the controller does
    /// not answer, its previous answer is used.
    pub(super) fn closed(&mut self, topic: &str, described: Result<Description, Code>) -> bool {
        match described.map(|described| described.may_write) {
            Ok(Some(false)) if self.closed.len() < CLOSED_MAX => {
                self.closed.insert(topic.to_owned());
            }
            Ok(Some(true) | None) => {
                self.closed.remove(topic);
            }
            Ok(Some(false)) | Err(_) => {}
        }
        self.closed.contains(topic)
    }
}

// The creation of missing topics (`sink.create_topics`): which topics, how many in a minute, and the results.

/// The most topics that are created in a minute. A column that has another value in each row must not fill the cluster
/// with topics.
const A_MINUTE: usize = 60;

/// The pause before the creation of a topic is attempted again.
const PAUSE: Duration = Duration::from_secs(10);

/// The most topics that are remembered with the reason why they could not be created.
const FAILED_MAX: usize = 1_000;

/// `sink.create_topics`, with its compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct TopicCreation {
    pub(super) spec: CreateTopics,
    allow: Option<Regex>,
}

impl TopicCreation {
    pub(super) fn of(spec: &CreateTopics) -> Result<Self, OpenError> {
        let compile = |pattern: &str| Regex::new(&format!("^(?:{pattern})$"));
        let allow = spec.allow.as_deref().map(compile).transpose();
        Ok(Self { spec: spec.clone(), allow: allow.map_err(|_syntax| OpenError::AllowPattern)? })
    }

    /// Whether a topic of this name is created. A name with an empty part is not allowed, because it comes from a row
    /// in which a column of the template is empty.
    pub(super) fn allows(&self, topic: &str) -> bool {
        is_topic_name(topic.as_bytes())
            && !has_empty_part(topic)
            && self.allow.as_ref().is_none_or(|allow| allow.is_match(topic))
    }

    /// The settings of new topics, in words.
    pub(super) fn words(&self) -> String {
        let count = |number: Option<u32>, what: &str| match number {
            Some(1) => format!("1 {what}"),
            Some(number) => format!("{number} {what}s"),
            None => format!("the broker's default of {what}s"),
        };
        let (partitions, replicas) = (
            count(self.spec.partitions, "partition"),
            count(self.spec.replication_factor, "replica"),
        );
        let config: Vec<_> =
            self.spec.config.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let config =
            if config.is_empty() { String::new() } else { format!(", {}", config.join(", ")) };
        format!("{partitions}, {replicas}{config}")
    }
}

/// The result of a request to create a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Made {
    /// The topic exists now: it was created by this client, or by another one at the same time.
    Yes,
    /// The topic is not to be created, or no topics are.
    No,
    /// The topic could not be created, and why.
    Not(NotMade),
    /// Too many topics were created in the last minute.
    Later,
}

/// Creates topics.
#[derive(Debug)]
pub(super) struct Creation {
    wanted: Option<TopicCreation>,
    /// When topics were created in the last minute.
    made_at: VecDeque<Instant>,
    failed: BTreeMap<String, (NotMade, Instant)>,
}

impl Creation {
    pub(super) const fn new(wanted: Option<TopicCreation>) -> Self {
        Self { wanted, made_at: VecDeque::new(), failed: BTreeMap::new() }
    }

    /// The topics that are known before the first event.
    pub(super) fn known(&self) -> Vec<String> {
        self.wanted.as_ref().map_or_else(Vec::new, |wanted| wanted.spec.known.clone())
    }

    /// Creates a missing topic, if the settings allow it. Waits at most `timeout`.
    pub(super) fn make(&mut self, producer: &Producer, topic: &str, timeout: Duration) -> Made {
        let Some(wanted) = self.wanted.as_ref().filter(|wanted| wanted.allows(topic)) else {
            return Made::No;
        };
        let now = Instant::now();
        if let Some((why, at)) = self.failed.get(topic)
            && now.duration_since(*at) < PAUSE
        {
            return Made::Not(why.clone());
        }
        let minute = Duration::from_mins(1);
        while self.made_at.front().is_some_and(|at| now.duration_since(*at) >= minute) {
            self.made_at.pop_front();
        }
        if self.made_at.len() >= A_MINUTE {
            return Made::Later;
        }
        let Ok(name) = CString::new(topic) else { return Made::No };
        self.made_at.push_back(now);
        match native::create_topic(producer, &name, &wanted.spec, false, timeout) {
            Ok(()) => {
                tracing::info!(
                    target: "postrider::kafka", event = "topic_made", topic, settings = wanted.words(),
                    "created the topic (sink.create_topics)"
                );
                self.failed.remove(topic);
                Made::Yes
            }
            // Another client created the topic at the same time.
            Err(NotMade { code: Code::TopicAlreadyExists, .. }) => {
                self.failed.remove(topic);
                Made::Yes
            }
            Err(why) => {
                if self.failed.len() == FAILED_MAX {
                    self.failed.clear();
                }
                self.failed.insert(topic.to_owned(), (why.clone(), now));
                Made::Not(why)
            }
        }
    }
}

/// The problem of a topic that could not be created.
pub(super) fn problem(topic: &str, why: &NotMade, brokers: &str) -> Problem {
    let denied =
        matches!(why.code, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed);
    let (reason, hint) = if denied {
        (
            format!("topic \"{topic}\" does not exist, and we may not create it"),
            format!(
                "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME \
                 --operation Create --topic {topic}"
            ),
        )
    } else {
        let words = if why.words.is_empty() { why.code.to_string() } else { why.words.clone() };
        (
            format!("topic \"{topic}\" does not exist, and could not be made: {words}"),
            "check sink.create_topics, or make the topic by hand".to_owned(),
        )
    };
    Problem { about: About::Topic, reason, hint: Some(hint) }
}

/// The problem of a topic that is not created yet, because of the bound on topics in a minute.
pub(super) fn too_many(topic: &str) -> Problem {
    Problem {
        about: About::Topic,
        reason: format!(
            "topic \"{topic}\" does not exist, and is made later: {A_MINUTE} were made in the last minute"
        ),
        hint: Some("see whether route.topic has a field with too many values".to_owned()),
    }
}

#[cfg(test)]
mod creation_tests {
    use super::*;

    fn wanted(allow: Option<&str>) -> TopicCreation {
        let spec = CreateTopics { allow: allow.map(str::to_owned), ..CreateTopics::default() };
        TopicCreation::of(&spec).unwrap()
    }

    #[test]
    fn names_are_made_that_are_whole_and_allowed() {
        for (allow, topic, made) in [
            (None, "orders", true),
            (None, "outbox.event.order", true),
            (None, "outbox.event.", false),
            (None, ".order", false),
            (None, "a..b", false),
            (None, "order ", false),
            (None, "", false),
            (Some(r"outbox\.event\..+"), "outbox.event.order", true),
            (Some(r"outbox\.event\..+"), "x.outbox.event.order", false),
            (Some("order|invoice"), "invoice", true),
            (Some("order|invoice"), "invoices", false),
        ] {
            assert_eq!(wanted(allow).allows(topic), made, "{allow:?} {topic:?}");
        }
        let spec = CreateTopics { allow: Some("(".to_owned()), ..CreateTopics::default() };
        assert!(matches!(TopicCreation::of(&spec), Err(OpenError::AllowPattern)));
    }

    #[test]
    fn settings_are_told_as_they_are_asked_for() {
        let mut wanted = wanted(None);
        assert_eq!(
            wanted.words(),
            "the broker's default of partitions, the broker's default of replicas"
        );
        wanted.spec.partitions = Some(8);
        wanted.spec.replication_factor = Some(1);
        wanted.spec.config.insert("retention.ms".to_owned(), "-1".to_owned());
        assert_eq!(wanted.words(), "8 partitions, 1 replica, retention.ms=-1");
    }
}

// Records that are larger than their topic's limit before compression, so that only the broker can decide whether it
// accepts them: which of them is in flight, and which were refused.
//
// The broker checks the compressed size of a batch. Such a record is sent alone in its batch by a producer of its own,
// which has one record in flight at a time, and the pipeline sends nothing meanwhile that must stay in order with it.
// So a refusal is about this record only, and no other record has to be sent again. A refused record is not sent again
// while the topic's limit and compression are unchanged.

/// The largest record that is sent although it fits only if it compresses well. A broker closes the connection without
/// an answer if a request is larger than its `socket.request.max.bytes` (100 MiB by default), and the producer would
/// send the request again without end. Unit: bytes.
pub(super) const ATTEMPT_BYTES_MAX: usize = 100_000_000;

/// The most refused records that are remembered. The oldest is forgotten first, and is then sent again if it is offered
/// again.
const REFUSED_MAX: usize = 10_000;

/// How long a refusal is remembered. After that the record is sent again: the broker may accept it now for a reason
/// that the topic's configuration does not show.
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// Identifies a record by a hash of its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn of(record: &Record<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        (record.topic, record.partition, record.key, record.value).hash(&mut hasher);
        for header in record.headers {
            (header.name, header.value).hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

/// The record in flight.
#[derive(Clone, Debug)]
struct Sent {
    ticket: Ticket,
    fingerprint: Fingerprint,
    size: usize,
    limit: usize,
    compression: Option<String>,
}

/// A refused record, and the relevant settings of its topic at that time.
#[derive(Clone, Debug)]
struct Refused {
    fingerprint: Fingerprint,
    limit: usize,
    compression: Option<String>,
    at: Instant,
}

#[derive(Default, Debug)]
struct State {
    sent: Option<Sent>,
    refused: VecDeque<Refused>,
}

/// The large records of one sink.
#[derive(Default, Debug)]
pub(super) struct LargeRecords(Mutex<State>);

impl LargeRecords {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the record was given to its producer, which has no other record.
    pub(super) fn sent(
        &self,
        ticket: Ticket,
        fingerprint: Fingerprint,
        size: usize,
        facts: &Facts,
    ) {
        let (limit, compression) = (facts.limit, facts.compression.clone());
        self.state().sent = Some(Sent { ticket, fingerprint, size, limit, compression });
    }

    /// Notes that the broker refused a record because of its size. Returns the reason if it is the large record in
    /// flight.
    pub(super) fn refuse(&self, ticket: Ticket) -> Option<Refusal> {
        let mut state = self.state();
        let sent = state.sent.take_if(|sent| sent.ticket == ticket)?;
        let Sent { fingerprint, size, limit, compression, .. } = sent;
        if state.refused.len() == REFUSED_MAX {
            state.refused.pop_front();
        }
        state.refused.push_back(Refused { fingerprint, limit, compression, at: Instant::now() });
        Some(Refusal::too_large_compressed(size, limit))
    }

    /// Whether the broker has refused this record, and the topic's limit was not raised nor its compression changed
    /// since.
    pub(super) fn is_refused(&self, fingerprint: Fingerprint, facts: &Facts) -> bool {
        let mut state = self.state();
        state.refused.retain(|refused| refused.at.elapsed() < REFUSED_FOR);
        state.refused.iter().any(|refused| {
            refused.fingerprint == fingerprint
                && facts.limit <= refused.limit
                && facts.compression == refused.compression
        })
    }
}

#[cfg(test)]
mod large_tests {
    use super::*;

    fn facts(limit: usize, compression: &str) -> Facts {
        Facts {
            name: c"t".to_owned(),
            partitions: 1,
            leaders: 1,
            in_sync: 1,
            limit,
            min_insync: None,
            compression: Some(compression.to_owned()),
            configured: true,
            asked_at: Instant::now(),
        }
    }

    fn fingerprint(value: &[u8]) -> Fingerprint {
        let (partition, key, timestamp_ms) = (None, None, None);
        let value = Some(value);
        Fingerprint::of(&Record { topic: "t", partition, key, value, timestamp_ms, headers: &[] })
    }

    #[test]
    fn refused_record_is_refused_until_its_topic_changes() {
        let large = LargeRecords::default();
        let now = facts(100, "producer");
        assert_eq!(large.refuse(Ticket(1)), None, "not one of these");
        large.sent(Ticket(1), fingerprint(b"a"), 300, &now);
        let reason = Refusal::too_large_compressed(300, 100);
        assert_eq!(large.refuse(Ticket(1)), Some(reason));
        assert_eq!(large.refuse(Ticket(1)), None, "once");
        assert!(large.is_refused(fingerprint(b"a"), &now));
        assert!(large.is_refused(fingerprint(b"a"), &facts(99, "producer")));
        assert!(!large.is_refused(fingerprint(b"b"), &now), "another record");
        assert!(!large.is_refused(fingerprint(b"a"), &facts(101, "producer")), "takes more now");
        assert!(
            !large.is_refused(fingerprint(b"a"), &facts(100, "zstd")),
            "compresses otherwise now"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let large = LargeRecords::default();
        let now = facts(100, "producer");
        for number in 0..=REFUSED_MAX as u64 {
            large.sent(Ticket(number), fingerprint(&number.to_le_bytes()), 300, &now);
            large.refuse(Ticket(number));
        }
        assert!(
            !large.is_refused(fingerprint(&0_u64.to_le_bytes()), &now),
            "the oldest is forgotten"
        );
        assert!(large.is_refused(fingerprint(&1_u64.to_le_bytes()), &now));
        large.sent(Ticket(1), fingerprint(b"a"), 300, &now);
        large.sent(Ticket(2), fingerprint(b"a"), 300, &now);
        assert_eq!(large.refuse(Ticket(1)), None, "its producer was given up before the second");
        assert!(large.refuse(Ticket(2)).is_some());
    }
}
