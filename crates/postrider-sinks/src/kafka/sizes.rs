//! The sizes that producers are made with: of a batch, of the largest record, of librdkafka's queue.
//!
//! Knows the operator's numbers, a topic's limit and a record; decides when producers of other sizes are needed, and
//! makes none.

use super::large::ATTEMPT_BYTES_MAX;
use super::topic::{self, BROKER_DEFAULT_BYTES, Facts};
use crate::KafkaSpec;
use postrider_core::record::Record;
use rdkafka::config::ClientConfig;

/// The largest `message.max.bytes` librdkafka takes, in bytes.
const CLIENT_BYTES_MAX: usize = 1_000_000_000;

/// `message.max.bytes` of the producer for large records: librdkafka judges a record before compression, with its
/// framing. Bytes.
const LARGE_CLIENT_BYTES: usize = ATTEMPT_BYTES_MAX.next_power_of_two();

/// librdkafka judges a record by the most its framing may take; this much more than a topic's limit is enough for it.
/// Bytes.
const FRAMING_BYTES: usize = 1_024;

/// What is decided when producers are made, and can't be changed later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    /// `batch.size`: uncompressed bytes of a batch, unless one record alone is larger.
    pub(super) batch: usize,
    /// `message.max.bytes`: the largest record. Each request's buffer may become as large, so it is no larger than it
    /// must be.
    pub(super) client: usize,
    /// Whether `client` may grow: the operator has not fixed it.
    pub(super) grows: bool,
}

impl Sizes {
    /// The operator's numbers, or ours.
    pub(super) fn of(spec: &KafkaSpec) -> Self {
        let number =
            |name: &str| spec.properties.get(name).and_then(|text| text.trim().parse().ok());
        let client = number("message.max.bytes");
        Self {
            batch: number("batch.size").unwrap_or(BATCH_BYTES),
            client: client.unwrap_or(BROKER_DEFAULT_BYTES + FRAMING_BYTES),
            grows: client.is_none(),
        }
    }

    /// Those that producers must have to send this record to this topic: batches under the topic's limit, as one above
    /// is refused whole, and room for the record itself.
    pub(super) fn to_send(self, record: &Record<'_>, facts: &Facts) -> Self {
        let mut sizes = self;
        sizes.batch = sizes.batch.min(batch_within(facts.limit));
        if sizes.grows && topic::batch_bytes_at_most(record) > sizes.client {
            let client = facts.limit.saturating_add(FRAMING_BYTES).min(CLIENT_BYTES_MAX);
            sizes.client = sizes.client.max(client);
        }
        sizes
    }

    /// Those of the producer for records above their topics' limits before compression. It has one record at a time,
    /// so the limit itself costs no memory.
    pub(super) fn for_large(self) -> Self {
        let client = if self.grows { LARGE_CLIENT_BYTES } else { self.client };
        Self { client, ..self }
    }

    /// Whether librdkafka compresses batches: a codec is set, under either of its names.
    pub(super) fn compress(spec: &KafkaSpec) -> bool {
        let names = ["compression.type", "compression.codec"];
        let codec = names.iter().find_map(|name| spec.properties.get(*name));
        codec.is_none_or(|codec| !codec.trim().eq_ignore_ascii_case("none"))
    }

    /// Writes them into the configuration of the next producer, with room for the largest record in the queue.
    pub(super) fn put(self, spec: &KafkaSpec, config: &mut ClientConfig) {
        config.set("batch.size", self.batch.to_string());
        config.set("message.max.bytes", self.client.to_string());
        config.set("queue.buffering.max.kbytes", queue_kbytes(spec, self.client).to_string());
    }
}

/// Uncompressed bytes of a batch (`batch.size`), unless a topic takes less. Below the broker's default limit of
/// 1,048,588.
pub(super) const BATCH_BYTES: usize = 1_000_000;

/// `batch.size` for a topic that takes `limit` bytes: librdkafka bounds a batch before compression, and sends it
/// uncompressed where compression would make it larger, so a little room is enough.
const fn batch_within(limit: usize) -> usize {
    let bytes = limit - limit / 50;
    if bytes == 0 { 1 } else { bytes }
}

/// Twice what the caller lets in flight, with room for one record of the largest size; librdkafka's own limit is 2 TiB.
fn queue_kbytes(spec: &KafkaSpec, record: usize) -> usize {
    let bytes = spec.in_flight_bytes.saturating_mul(2).saturating_add(record);
    (bytes / 1024).min(2_147_483_647)
}
