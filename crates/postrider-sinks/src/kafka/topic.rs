//! What is known of a topic, how it is asked for, and whether a record fits.

use super::Producer;
use super::large::ATTEMPT_BYTES_MAX;
use super::native;
use super::producers::murmur2;
use postrider_core::record::{Record, Refusal};
use rdkafka::metadata::MetadataPartition;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeSet;
use std::ffi::CString;
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
    if size > limit { Err(Refusal::TooLarge { size, limit }) } else { Ok(()) }
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
        return Err(Refusal::Partition(partition));
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
        return Err(Refusal::TooLarge { size, limit: limit.max(ATTEMPT_BYTES_MAX) });
    }
    // The default that is taken for a limit which may not be read is a guess, and the broker knows.
    if (compresses && !facts.keeps_uncompressed()) || !facts.configured {
        return Ok(Fit::Compressed { size });
    }
    Err(Refusal::TooLarge { size, limit })
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

#[cfg(test)]
mod tests;
