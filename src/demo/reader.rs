//! The independent reader of a demo: reads every record of the topic with a client of its own and enters it in the
//! ledger.

use super::broker::{Broker, PARTITIONS};
use super::consumers::BrokerConsumer;
use super::error::DemoError;
use super::ledger::{EventId, SharedLedger};
use super::writer::key;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two checks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// The thread of the reader.
#[derive(Debug)]
pub(super) struct TopicReader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The payload of the writer's events.
#[derive(Deserialize)]
struct Payload {
    order: usize,
    sequence: usize,
}

impl TopicReader {
    /// Starts a reader at the beginning of a topic of Kafka.
    pub(super) fn of_kafka(broker: &Broker, ledger: &SharedLedger) -> Result<Self, DemoError> {
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
        Self::spawn(ledger, move |ledger, stop| read_topic(&consumer, ledger, stop))
    }

    /// Starts a reader that polls another broker.
    pub(super) fn of_consumer(
        mut consumer: BrokerConsumer,
        ledger: &SharedLedger,
    ) -> Result<Self, DemoError> {
        Self::spawn(ledger, move |ledger, stop| read_messages(&mut consumer, ledger, stop))
    }

    fn spawn(
        ledger: &SharedLedger,
        read: impl FnOnce(&SharedLedger, &AtomicBool) + Send + 'static,
    ) -> Result<Self, DemoError> {
        let stop: Arc<AtomicBool> = Arc::default();
        let (stopped, ledger) = (Arc::clone(&stop), ledger.clone());
        let thread = std::thread::Builder::new().name("demo-reader".to_owned());
        let thread = thread.spawn(move || read(&ledger, &stopped));
        Ok(Self { stop, thread: Some(thread.map_err(DemoError::Thread)?) })
    }
}

fn read_topic(consumer: &BaseConsumer, ledger: &SharedLedger, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // librdkafka retries after an error. If that fails, the missing records show in the ledger.
        let Some(Ok(message)) = consumer.poll(POLL) else { continue };
        let (key, payload) = (message.key().unwrap_or_default(), message.payload());
        enter(ledger, key, payload.unwrap_or_default(), Instant::now());
    }
}

fn read_messages(consumer: &mut BrokerConsumer, ledger: &SharedLedger, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // The consumer connects again after an error. If that fails, the missing records show in the ledger.
        let Ok(messages) = consumer.poll(POLL) else {
            std::thread::sleep(POLL);
            continue;
        };
        let at = Instant::now();
        for message in messages {
            enter(ledger, &message.key, &message.value, at);
        }
    }
}

/// Enters a record in the ledger.
pub(super) fn enter(ledger: &SharedLedger, key: &[u8], payload: &[u8], at: Instant) {
    match event_of(key, payload) {
        Some(event) => ledger.lock().delivered(event, at),
        None => ledger.lock().unknown_record(),
    }
}

/// The event of a record; `None` if key and payload are not those of one event.
fn event_of(record_key: &[u8], payload: &[u8]) -> Option<EventId> {
    let payload: Payload = serde_json::from_slice(payload).ok()?;
    let fits = record_key == key(payload.order).as_bytes();
    fits.then_some(EventId { lane: payload.order, sequence: payload.sequence })
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
