//! An independent consumer: reads during the run, and everything at its end.

use crate::proxy::tap::parse_lsn;
use crate::topic::client_config;
use crate::writer::payload;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Partitions of each topic of the run.
pub(crate) const PARTITIONS: i32 = 64;
const READ_DEADLINE: Duration = Duration::from_mins(5);

/// A record, with what the comparison needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Read {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) partition: i32,
    /// Bytes of the payload.
    pub(crate) bytes: usize,
    /// Whether the payload is that of this ID.
    pub(crate) intact: bool,
    /// The transaction, from the header `position`.
    pub(crate) commit_lsn: u64,
    /// The ordinal in the transaction, from the same header.
    pub(crate) ordinal: u64,
    /// When the broker appended the record, in milliseconds since the Unix epoch.
    pub(crate) appended: i64,
}

impl Read {
    /// Whether the record has no header `position`.
    pub(crate) const fn position_missing(&self) -> bool {
        self.commit_lsn == 0 && self.ordinal == u64::MAX
    }
}

fn consumer(addresses: &str) -> BaseConsumer {
    client_config(addresses)
        .set("group.id", "chaos")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "100")
        .create()
        .expect("a consumer")
}

fn assign(consumer: &BaseConsumer, topic: &str) {
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&all).expect("an assignment");
}

/// All records of a topic, in order of partition and offset.
pub(crate) async fn read_all(addresses: &str, topic: &str) -> Vec<Read> {
    let (addresses, topic) = (addresses.to_owned(), topic.to_owned());
    let reads = tokio::task::spawn_blocking(move || {
        let consumer = consumer(&addresses);
        assign(&consumer, &topic);
        let mut open: BTreeSet<i32> = (0..PARTITIONS).collect();
        let mut records = Vec::new();
        let deadline = Instant::now() + READ_DEADLINE;
        while !open.is_empty() {
            assert!(Instant::now() < deadline, "reading {topic}: open are {open:?}");
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => records.push(read(&message)),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    open.remove(&partition);
                }
                Some(Err(_)) | None => {}
            }
        }
        records.sort_by_key(|(offset, record)| (record.partition, *offset));
        records.into_iter().map(|(_, record)| record).collect()
    });
    reads.await.expect("the reader")
}

fn read(message: &BorrowedMessage<'_>) -> (i64, Read) {
    let header = |name: &str| {
        let headers = message.headers()?;
        let value = headers.iter().find(|header| header.key == name)?.value?;
        std::str::from_utf8(value).ok()
    };
    let id = header("id").unwrap_or("a record without an id").to_owned();
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let position: Option<Vec<u64>> =
        header("position").and_then(|position| position.split('-').map(number).collect());
    let part = |at: usize| position.as_ref().and_then(|parts| parts.get(at)).copied();
    let value = message.payload().unwrap_or_default();
    let record = Read {
        key: String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned(),
        partition: message.partition(),
        bytes: value.len(),
        intact: is_intact(&id, value),
        commit_lsn: part(1).unwrap_or(0),
        ordinal: part(2).unwrap_or(u64::MAX),
        appended: message.timestamp().to_millis().unwrap_or(i64::MAX),
        id,
    };
    (message.offset(), record)
}

/// The payload contains its size, and ID and size determine the whole payload.
fn is_intact(id: &str, value: &[u8]) -> bool {
    let Ok(value) = std::str::from_utf8(value) else { return false };
    let size = value.split_once("\"size\": ").and_then(|(_, rest)| rest.split_once(','));
    size.and_then(|(size, _)| size.parse().ok()).is_some_and(|size| payload(id, size) == value)
}

/// Reads the main topic during the run.
pub(crate) struct Tail {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    rests: AtomicBool,
    /// Number of distinct events that arrived.
    delivered: Arc<AtomicUsize>,
}

impl Tail {
    pub(crate) fn start(addresses: &str, topic: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let (consumer, thread) = (consumer(addresses), Arc::clone(&shared));
        assign(&consumer, topic);
        let thread = std::thread::spawn(move || {
            let mut ids = HashSet::new();
            while !thread.stop.load(Ordering::Relaxed) {
                if thread.rests.load(Ordering::Relaxed) {
                    std::thread::park_timeout(Duration::from_millis(100));
                    continue;
                }
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    ids.insert(read(&message).1.id);
                    thread.delivered.store(ids.len(), Ordering::Relaxed);
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// The counter of distinct events that arrived so far.
    pub(crate) fn delivered(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.shared.delivered)
    }

    /// Pauses or continues reading.
    pub(crate) fn rest(&self, rests: bool) {
        self.shared.rests.store(rests, Ordering::Relaxed);
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
