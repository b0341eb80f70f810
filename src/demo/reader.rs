//! The independent reader of a demo: takes every record of the topic from the broker, and tells the ledger.
//!
//! It is another Kafka client than the relay's, and believes nothing but what the broker gives out.

use super::DemoError;
use super::broker::{Broker, PARTITIONS};
use super::ledger::{EventId, SharedLedger};
use super::writer::key;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks at whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// The thread that reads.
#[derive(Debug)]
pub(super) struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The payload, as the writer wrote it.
#[derive(Deserialize)]
struct Payload {
    order: usize,
    sequence: usize,
}

impl Reader {
    /// Starts it at the topic's beginning.
    pub(super) fn start(broker: &Broker, ledger: &SharedLedger) -> Result<Self, DemoError> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &broker.brokers)
            .set("group.id", &broker.topic)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", broker.fetch_wait().as_millis().to_string())
            .create()
            .map_err(DemoError::Reader)?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            let added = all.add_partition_offset(&broker.topic, partition, Offset::Beginning);
            added.map_err(DemoError::Reader)?;
        }
        consumer.assign(&all).map_err(DemoError::Reader)?;
        let stop: Arc<AtomicBool> = Arc::default();
        let (stopped, ledger) = (Arc::clone(&stop), ledger.clone());
        let thread = std::thread::Builder::new().name("demo-reader".to_owned());
        let thread = thread.spawn(move || read(&consumer, &ledger, &stopped));
        Ok(Self { stop, thread: Some(thread.map_err(DemoError::Thread)?) })
    }
}

fn read(consumer: &BaseConsumer, ledger: &SharedLedger, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // librdkafka mends what can be mended; what can't shows as records that never come.
        let Some(Ok(message)) = consumer.poll(POLL) else { continue };
        let at = Instant::now();
        match event_of(&message) {
            Some(event) => ledger.lock().delivered(event, at),
            None => ledger.lock().stranger(),
        }
    }
}

/// Which event a record is; none where key and payload are not those of one event.
fn event_of(message: &BorrowedMessage<'_>) -> Option<EventId> {
    let payload: Payload = serde_json::from_slice(message.payload()?).ok()?;
    let fits = message.key() == Some(key(payload.order).as_bytes());
    fits.then_some(EventId { lane: payload.order, sequence: payload.sequence })
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
