//! The entries of streams, each stream in its order.
//!
//! A consumer of the group reads at a time, the one whose turn it is. It takes over what was delivered to others, and
//! before it stores entries it looks whether another consumer, which was frozen, has got earlier ones.

use super::config::RedisSourceConfig;
use crate::acked::{AckedSource, Look, LostMessages, SourceProblem};
use crate::delivery::{Delivery, DeliveryPlace};
use crate::mapping::sha256;
use postrider_core::sink::SinkConfig as _;
use postrider_sinks::redis::{RedisConsumer, RedisConsumerProblem, RedisDelivery, RedisLoss};
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of entries that are held; with more, no further one is read.
const HELD_BYTES_MAX: usize = 32 << 20;

/// Fields that are no headers, as Postrider's sink writes them.
const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"value";
const TIMESTAMP: &[u8] = b"timestamp";

/// Before the name of a header that is the name of such a field.
const HEADER_PREFIX: &[u8] = b"header:";

/// An entry that is not stored.
struct HeldEntry {
    delivery: Delivery,
    stream: usize,
    entry: String,
}

/// A connection that reads streams.
pub struct RedisSource {
    consumer: RedisConsumer,
    streams: Vec<String>,
    group: String,
    held: VecDeque<HeldEntry>,
    bytes: usize,
}

impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSource").field("group", &self.group).finish_non_exhaustive()
    }
}

impl From<RedisConsumerProblem> for SourceProblem {
    fn from(problem: RedisConsumerProblem) -> Self {
        Self { reason: problem.reason, hint: problem.hint, stands_by: false }
    }
}

/// The message of an entry.
fn delivery(stream: &str, entry: &str, fields: Vec<(Vec<u8>, Vec<u8>)>) -> Delivery {
    let mut whole = Vec::new();
    for part in fields.iter().flat_map(|(name, value)| [name, value]) {
        whole.extend_from_slice(&part.len().to_be_bytes());
        whole.extend_from_slice(part);
    }
    let mut digest = sha256(&whole);
    digest.truncate(16);
    let place = DeliveryPlace::Redis { stream: stream.to_owned(), entry: entry.to_owned(), digest };
    let mut delivery = Delivery {
        place,
        topic: stream.to_owned(),
        timestamp_ms: None,
        key: None,
        value: None,
        headers: Vec::new(),
    };
    for (name, value) in fields {
        match name.as_slice() {
            KEY => delivery.key = Some(value),
            VALUE => delivery.value = Some(value),
            TIMESTAMP => {
                let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                delivery.timestamp_ms = number;
                if number.is_none() {
                    delivery.headers.push((name, Some(value)));
                }
            }
            _ => {
                let name = name.strip_prefix(HEADER_PREFIX).map_or(name.clone(), <[u8]>::to_vec);
                delivery.headers.push((name, Some(value)));
            }
        }
    }
    if delivery.timestamp_ms.is_none() {
        // The id begins with the time of the server, unless the producer gave another one.
        delivery.timestamp_ms = entry.split('-').next().and_then(|time| time.parse().ok());
    }
    delivery
}

/// What was lost, in words.
fn lost(loss: &RedisLoss) -> LostMessages {
    let RedisLoss { stream, entries, delivered } = loss;
    let when = if *delivered { "delivered and not stored" } else { "not read yet" };
    LostMessages {
        messages: *entries,
        reason: format!(
            "stream {stream:?} has trimmed or deleted {entries} entries that were {when}: they are lost"
        ),
        hint: "let the stream keep its entries for longer than an outage: a higher trim_length or trim_age of the \
               sink, or a higher MAXLEN of other producers"
            .to_owned(),
    }
}

impl RedisSource {
    fn hold(&mut self, of: RedisDelivery) {
        let RedisDelivery { stream, entry, fields } = of;
        let Some(name) = self.streams.get(stream) else { return };
        let delivery = delivery(name, &entry, fields);
        self.bytes += delivery.size_bytes();
        self.held.push_back(HeldEntry { delivery, stream, entry });
    }
}

impl AckedSource for RedisSource {
    type Config = RedisSourceConfig;

    fn turn(config: &Self::Config) -> String {
        format!("redis:{}", config.streams.group)
    }

    fn place(config: &Self::Config) -> String {
        format!("{}/{}", config.access.place(), config.streams.streams.join(","))
    }

    async fn open(
        config: &Self::Config,
        intake: &str,
        attempt: usize,
    ) -> Result<Self, SourceProblem> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{intake}-{}-{}", std::process::id(), since.as_nanos());
        let of = (intake, name.as_str());
        let consumer = RedisConsumer::open(&config.access, &config.streams, of, attempt).await?;
        Ok(Self {
            consumer,
            streams: config.streams.streams.clone(),
            group: config.streams.group.clone(),
            held: VecDeque::new(),
            bytes: 0,
        })
    }

    async fn receive(&mut self, max: usize, wait: Duration) -> Result<(), SourceProblem> {
        let room = max.saturating_sub(self.held.len());
        if room == 0 || self.bytes >= HELD_BYTES_MAX {
            return Ok(());
        }
        let wait = if self.held.is_empty() { wait } else { Duration::ZERO };
        let received = self.consumer.receive(room, wait).await?;
        if received.is_empty() {
            return Ok(());
        }
        for delivery in received {
            self.hold(delivery);
        }
        if !self.consumer.has_all().await? {
            self.held.clear();
            self.bytes = 0;
        }
        Ok(())
    }

    fn ready(&self) -> impl Iterator<Item = &Delivery> {
        self.held.iter().map(|held| &held.delivery)
    }

    fn waits_for(&self) -> Option<String> {
        None
    }

    async fn acknowledge(&mut self, count: usize) -> Result<(), SourceProblem> {
        let mut ids: Vec<Vec<String>> = vec![Vec::new(); self.streams.len()];
        for held in self.held.drain(..count.min(self.held.len())) {
            self.bytes = self.bytes.saturating_sub(held.delivery.size_bytes());
            if let Some(ids) = ids.get_mut(held.stream) {
                ids.push(held.entry);
            }
        }
        for (stream, ids) in ids.iter().enumerate() {
            self.consumer.acknowledge(stream, ids).await?;
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<Look, SourceProblem> {
        let look = self.consumer.look().await?;
        let held = u64::try_from(self.held.len()).unwrap_or(u64::MAX);
        Ok(Look {
            lag: look.lag.map(|lag| lag.saturating_add(held)),
            lost: look.lost.iter().map(lost).collect(),
            missing: look.missing,
        })
    }

    async fn idle(&mut self, time: Duration) -> Result<(), SourceProblem> {
        // The server expects nothing of a client that waits.
        tokio::time::sleep(time).await;
        Ok(())
    }

    fn passes(&self) -> Option<String> {
        let HeldEntry { delivery, entry, .. } = self.held.front()?;
        let (stream, group) = (&delivery.topic, &self.group);
        Some(format!(
            "redis-cli XACK '{stream}' '{group}' {entry} passes over this entry alone; then start the intake \
             again"
        ))
    }

    async fn close(self) {
        self.consumer.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::MessageRules;
    use crate::message::Requirements;

    fn fields(all: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        all.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn an_entry_of_the_sink_is_the_event_that_it_was() {
        let all = [
            ("key", "42"),
            ("timestamp", "-1"),
            ("partition", "3"),
            ("id", "7"),
            ("header:value", "fake"),
            ("header:header:value", "x"),
            ("value", "{}"),
        ];
        let found = delivery("orders", "1700000000000-0", fields(&all));
        assert_eq!(
            (found.key.as_deref(), found.value.as_deref()),
            (Some(&b"42"[..]), Some(&b"{}"[..]))
        );
        assert_eq!(found.timestamp_ms, Some(-1));
        let names: Vec<_> =
            found.headers.iter().map(|(name, _)| String::from_utf8_lossy(name)).collect();
        assert_eq!(names, ["partition", "id", "value", "header:value"]);
        let null = delivery("orders", "1700000000000-0", fields(&[("id", "7")]));
        assert_eq!((null.value, null.timestamp_ms), (None, Some(1_700_000_000_000)));
    }

    #[test]
    fn entries_of_other_content_are_other_messages() {
        let id = |all: &[(&str, &str)]| {
            let rules = MessageRules::default();
            let found = delivery("orders", "5-1", fields(all));
            rules.delivered(&found, &Requirements::default()).event_id
        };
        assert!(id(&[("a", "b")]).starts_with("orders@redis/5-1/"));
        assert_eq!(id(&[("a", "b")]), id(&[("a", "b")]));
        assert_ne!(id(&[("a", "b")]), id(&[("a", "c")]));
        assert_ne!(id(&[("a", "bc")]), id(&[("ab", "c")]));
    }

    #[test]
    fn what_was_lost_is_said_with_its_number() {
        let loss = RedisLoss { stream: "orders".to_owned(), entries: 3, delivered: true };
        let said = lost(&loss);
        assert_eq!(said.messages, 3);
        assert!(said.reason.contains("3 entries that were delivered and not stored"), "{said:?}");
    }
}
