//! What is known of a topic, how it is asked for, and whether a record fits.

#[cfg(test)]
mod tests;

use super::config::{CreateTopics, OpenError};
use super::health::{About, Problem};
use super::native::{self, Description, NotMade, TopicId};
use super::producer::Producer;
use super::producer::murmur2;
use crate::topic::is_topic_name;
use postrider_core::record::{Record, Refusal, Ticket, has_empty_part};
use rdkafka::metadata::MetadataPartition;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The broker's default of `message.max.bytes`, taken where the topic's own limit may not be read (Kafka's
/// documentation).
pub(super) const BROKER_DEFAULT_BYTES: usize = 1_048_588;

/// Bytes of a record batch before its first record (message format 2).
const BATCH_HEADER_BYTES: usize = 61;

/// How long the topic's configuration is waited for while events wait for the topic. Without it a limit that is smaller
/// than the default is learnt the hard way: a batch is refused, and the topic asked for again.
pub(super) const CONFIG_ANSWER_MAX: Duration = Duration::from_millis(500);

/// What the sink must know of a topic before it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The name, as C wants it.
    pub(super) name: CString,
    /// How many partitions it has.
    pub(super) partitions: i32,
    /// How many brokers lead them.
    pub(super) leaders: usize,
    /// Copies in sync of the partition that has the fewest; 0 where one has no leader.
    pub(super) in_sync: usize,
    /// Bytes of a batch it takes (`max.message.bytes`).
    pub(super) limit: usize,
    /// Replicas that must have a record before it is acknowledged, where we may read it.
    pub(super) min_insync: Option<u32>,
    /// How the topic keeps its batches (`compression.type`): `producer`, a codec, `uncompressed`; where we may read it.
    pub(super) compression: Option<String>,
    /// Whether limit and replicas are the topic's own; else they are the broker's defaults.
    pub(super) configured: bool,
    /// When the broker was asked.
    pub(super) asked_at: Instant,
}

impl Facts {
    /// The broker undoes the producer's compression: what counts is the size without.
    fn keeps_uncompressed(&self) -> bool {
        self.compression.as_deref() == Some("uncompressed")
    }

    /// One of its partitions takes nothing, by no fault of the client's.
    pub(super) fn lacks(&self) -> bool {
        self.in_sync < self.min_insync.map_or(1, |copies| copies as usize)
    }
}

/// Why a topic can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusable {
    /// The topic's own error, or why the broker could not be asked.
    pub(super) code: Code,
    /// Brokers of the cluster; 0 where none answered.
    pub(super) brokers: usize,
}

impl Unusable {
    /// Whether a broker says that there is no such topic.
    pub(super) const fn does_not_exist(self) -> bool {
        matches!(self.code, Code::UnknownTopicOrPartition | Code::UnknownTopic)
    }

    /// Whether there is no such topic, as far as we may see: a broker says "not authorised" of a name that it would not
    /// show us either way.
    pub(super) const fn is_missing(self) -> bool {
        self.does_not_exist()
            || matches!(self.code, Code::InvalidTopic | Code::TopicAuthorizationFailed)
    }
}

/// Asks for a topic; waits at most `timeout`, and `config_timeout` for its configuration.
///
/// # Errors
/// The topic's own error (missing, not ours to see), or why the broker could not be asked.
pub(super) fn look_up(
    producer: &Producer,
    topic: &str,
    (timeout, config_timeout): (Duration, Duration),
) -> Result<Facts, Unusable> {
    // Before the question: what is changed while it is under way is not yet known.
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
    // To read the configuration is optional: the permission may be missing, and so may the request itself among
    // Kafka's relatives (librdkafka's mock broker never answers it).
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

/// Where the record goes, as Kafka's clients choose it. Chosen here, for what is known of the topic, and not by
/// librdkafka, whose several producers learn of new partitions at several times. Without partition and key no order is
/// asked for, but in a topic of one partition there is one all the same.
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

/// Whether key, value and headers are within the operator's own limit, if there is one.
pub(super) fn within(record: &Record<'_>, size_max: Option<usize>) -> Result<(), Refusal> {
    let Some(limit) = size_max else { return Ok(()) };
    let size = record.size_bytes();
    if size > limit { Err(Refusal::too_large(size, limit)) } else { Ok(()) }
}

/// How a record fits its topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// However little it compresses.
    Surely,
    /// If it compresses enough: the broker can say. Bytes of a batch of it alone, not compressed.
    Compressed { size: usize },
}

/// Whether the topic takes the record, alone in a batch. `compresses`: whether the producer compresses batches.
///
/// The broker judges a batch as it arrives, and once more where it keeps it in another way (`compression.type`).
pub(super) fn fits(record: &Record<'_>, facts: &Facts, compresses: bool) -> Result<Fit, Refusal> {
    if let Some(partition) = record.partition
        && !(0..facts.partitions).contains(&partition)
    {
        return Err(Refusal::partition(partition));
    }
    let limit = facts.limit;
    // The exact size is only worth its loop near the limit.
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
    // The default that is taken for a limit which may not be read is a guess, and the broker knows.
    if (compresses && !facts.keeps_uncompressed()) || !facts.configured {
        return Ok(Fit::Compressed { size });
    }
    Err(Refusal::too_large(size, limit))
}

/// As [`batch_bytes`], or a little more: ten bytes of lengths a header, and 64 for the rest.
pub(super) fn batch_bytes_at_most(record: &Record<'_>) -> usize {
    record.size_bytes() + BATCH_HEADER_BYTES + 64 + 10 * record.headers.len()
}

/// Bytes of a batch of this record alone, not compressed (Kafka protocol, "Record Batch"; held against a real broker).
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

// Which topics are not those that they were. One that is deleted and made anew keeps its name and has another id.
//
// librdkafka does not notice what came between, if it was asked for nothing meanwhile. It then believes none of the
// new leaders, whose epochs begin at 0 again and so are older than those it knows, and sends to the former ones for
// ever (its issue 4898, open; seen with 2.12.1:
// `kafka_astray::topic_that_is_made_anew_with_another_leader_gets_its_records`). And no partition of the topic knows
// the producer that was introduced to those of before. Only another producer helps.
//
// Owns the ids that were heard. Brokers may answer that lag behind one another: a topic never gets a former id back,
// so the former one says nothing.

/// Topics whose id is remembered. Of a further one nothing is noticed but that nothing is acknowledged
/// ([`stall`](super::stall)).
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
    /// A topic has this id: whether it is another one than it had. Then new producers are made, and so the other topics
    /// may be what they are from here on. Not where it is not `due`: then that is found when it is asked for again.
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

    /// Behind a topic that was made anew all are asked for, just then: what is heard of them counts.
    #[test]
    fn what_is_heard_before_it_is_due_is_remembered_and_not_lost() {
        let mut ids = TopicIds::default();
        let [old, new] = [1, 2].map(TopicId::number);
        assert!(!ids.changed("a", old, false));
        assert!(!ids.changed("a", new, false));
        assert!(ids.changed("a", new, true));
    }

    /// All of a cluster that was exchanged: the producers that are made for the first know no other of before.
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

// Topics that we may see and not write to: they look like any other until one of them refuses a record. From then on
// each that is asked for is asked for our rights too.
//
// The last answers are kept here; the metadata thread acts on a closed topic.

/// Topics remembered as closed; a further one is found open, and refuses again.
const CLOSED_MAX: usize = 1_000;

#[derive(Default)]
pub(super) struct Rights {
    closed: BTreeSet<String>,
}

impl Rights {
    /// Whether a topic that is there is closed to us, by what its broker says.
    ///
    /// The controller is asked, which may be a broker that nobody has spoken to: where it gives no answer, the one
    /// before holds.
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

// Topics that are missing and may be made (`sink.create_topics`): which, how many a minute, and what came of it.

/// Topics that are made in a minute. A field that has another value in each row must not fill the cluster with topics.
const A_MINUTE: usize = 60;

/// Before a topic that could not be made is tried again.
const PAUSE: Duration = Duration::from_secs(10);

/// Topics that could not be made and are remembered with the reason.
const FAILED_MAX: usize = 1_000;

/// `sink.create_topics`, compiled.
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

    /// Whether a topic of this name is made. One with an empty part is not: a field of its template was empty in a row.
    pub(super) fn allows(&self, topic: &str) -> bool {
        is_topic_name(topic.as_bytes())
            && !has_empty_part(topic)
            && self.allow.as_ref().is_none_or(|allow| allow.is_match(topic))
    }

    /// How a topic is made, for a reader.
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

/// What came of the request to make a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Made {
    /// The topic exists now: created by us, or by another client at the same time.
    Yes,
    /// The topic is not to be created, or no topics are.
    No,
    /// It is to be made, and was not: why.
    Not(NotMade),
    /// Too many were made in the last minute.
    Later,
}

/// Makes topics.
#[derive(Debug)]
pub(super) struct Creation {
    wanted: Option<TopicCreation>,
    /// When the last ones were made.
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

    /// Makes a topic that is missing, if it is to be made. Waits at most `timeout`.
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
                    "made the topic, which did not exist (sink.create_topics)"
                );
                self.failed.remove(topic);
                Made::Yes
            }
            // Somebody else made it at the same time.
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

// Records that are larger than their topic takes before compression, so that only the broker can say whether it takes
// them: which of them is on its way, and which the broker has refused.
//
// The broker judges a batch as it arrives, compressed. Such a record is sent alone in its batch by a producer of its
// own, which has one record at a time, while the caller sends nothing else that must stay in order with it. So a
// refusal means this record, and nothing else has to be given up for it. A record that was refused is not sent again
// while its topic is as it was.

/// The largest record that is sent in the hope that it compresses, in bytes. A broker closes the connection on a
/// request above its `socket.request.max.bytes` (100 MiB by default) without an answer, and the producer would send it
/// again without end.
pub(super) const ATTEMPT_BYTES_MAX: usize = 100_000_000;

/// Refused records that are remembered; the oldest is forgotten first, and sent once more if it comes again.
const REFUSED_MAX: usize = 10_000;

/// How long a refusal counts. After that the broker is asked again: it may take the record for a reason that the
/// topic's configuration does not show.
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// Names a record by its content.
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

/// One on its way.
#[derive(Clone, Debug)]
struct Sent {
    ticket: Ticket,
    fingerprint: Fingerprint,
    size: usize,
    limit: usize,
    compression: Option<String>,
}

/// One that was refused, and what its topic was like.
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

    /// The record is handed to its producer, which has no other.
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

    /// The broker refused a record for its size: why, where it was this one.
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

    /// Whether the broker has refused this record, and its topic is as it was then.
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
