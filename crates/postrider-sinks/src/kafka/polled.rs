//! A producer, and the thread that takes its events.
//!
//! Delivery reports come a request at a time, some tenths of a millisecond apart, and each would wake this thread and
//! the driver. So while more is in flight the thread rests a little, and tells together what has come. Only the news of
//! an acknowledgement waits, and not where somebody waits for it; no record does.

use super::context::Context;
use super::native::{Events, Gathered};
use crate::SinkError;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::producer::{BaseProducer, Producer as _};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// librdkafka's producer, whose events somebody has to take.
pub(super) type Producer = BaseProducer<Context>;

/// How long an acknowledgement may wait for others that are told with it.
const REST: Duration = Duration::from_millis(2);

/// The same where partitions wait for their turn.
const REST_IN_TURNS: Duration = Duration::from_micros(500);

/// Acknowledgements that are told at once, though there are more.
const TOGETHER: usize = 4096;

/// The thread looks up so often though nothing comes.
const LOOK: Duration = Duration::from_secs(1);

/// A producer whose events are taken as long as it lives.
pub(super) struct Polled {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    events: Events,
    stop: AtomicBool,
}

impl Polled {
    /// Makes a producer that connects in the background.
    pub(super) fn make(config: &ClientConfig, context: Context) -> Result<Self, SinkError> {
        // Before librdkafka does, and for good: OpenSSL is not to clean up at the exit of the process, beside the
        // threads of producers that are on their way out. Without TLS it would only cost memory, 1.6 MB.
        let protocol = config.get("security.protocol").unwrap_or_default();
        if protocol.to_ascii_lowercase().ends_with("ssl") {
            openssl_sys::init();
        }
        let producer = Producer::from_config_and_context(config, context);
        let events = producer.and_then(Events::of).map_err(SinkError::Create)?;
        let shared = Arc::new(Shared { events, stop: AtomicBool::new(false) });
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("kafka-reports".to_owned())
            .spawn(move || its.run())
            .map_err(SinkError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn wake(&self) {
        self.shared.events.wake();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut gathered = Gathered::default();
        while !self.stop.load(Ordering::Acquire) {
            if self.events.take(LOOK, &mut gathered) {
                self.gather(&mut gathered);
                if let Some(rest) = self.rest(&gathered) {
                    std::thread::park_timeout(rest);
                    self.gather(&mut gathered);
                }
                self.events.tell(&mut gathered);
            }
        }
    }

    fn gather(&self, gathered: &mut Gathered) {
        while gathered.count() < TOGETHER && self.events.take(Duration::ZERO, gathered) {}
    }

    /// How long what was gathered waits for more, if more is to come.
    fn rest(&self, gathered: &Gathered) -> Option<Duration> {
        let (producer, count) = (self.events.producer(), gathered.count());
        let context = producer.client().context();
        // What was gathered is among it.
        let in_flight = usize::try_from(producer.in_flight_count()).unwrap_or_default();
        if count >= in_flight.min(TOGETHER) || context.is_awaited() {
            return None;
        }
        Some(if context.is_in_turns() { REST_IN_TURNS } else { REST })
    }
}

impl Deref for Polled {
    type Target = Producer;

    fn deref(&self) -> &Producer {
        self.shared.events.producer()
    }
}

impl Drop for Polled {
    /// Takes the events until here; the producer itself takes 0.2 s to go.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of it was told when it happened.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::native;
    use crate::kafka::shared::Shared as SinkShared;
    use crate::{Mailbox, Post};
    use postrider_core::record::{Header, Record, Ticket};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn enqueue(polled: &Polled, ticket: u64) {
        let headers = [Header { name: "id", value: Some(b"1") }];
        let record = Record {
            topic: "orders",
            partition: Some(0),
            key: Some(b"a"),
            value: Some(b"{}"),
            timestamp_ms: None,
            headers: &headers,
        };
        native::produce(polled, (c"orders", Some(0)), Ticket(ticket), &record).unwrap();
    }

    fn tickets(posts: &mut Vec<Post>) -> impl Iterator<Item = u64> {
        posts.drain(..).filter_map(|post| match post {
            Post::Report { ticket, .. } => Some(ticket.0),
            Post::Retry
            | Post::Down { .. }
            | Post::Up { .. }
            | Post::Broken { .. }
            | Post::Located
            | Post::Unfit { .. } => None,
        })
    }

    #[test]
    fn what_is_not_in_flight_any_more_has_been_told() {
        let cluster = MockCluster::<DefaultProducerContext>::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let mailbox = Mailbox::default();
        let shared = Arc::new(SinkShared::new(mailbox.clone()));
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        config.set("enable.idempotence", "true");
        let polled = Polled::make(&config, Context::new(shared, Arc::default())).unwrap();
        // The first of them before there is a connection.
        for first in [0, 100, 200] {
            (first..first + 100).for_each(|ticket| enqueue(&polled, ticket));
            let (begun, mut all, mut posts) = (Instant::now(), Vec::new(), Vec::new());
            while polled.in_flight_count() > 0 && begun.elapsed() < DEADLINE {
                std::thread::yield_now();
            }
            // Nothing is in flight any more, so all has been told: the keeper and a stop rely on it.
            assert_eq!(polled.in_flight_count(), 0);
            mailbox.take(&mut posts);
            all.extend(tickets(&mut posts));
            assert_eq!(all, (first..first + 100).collect::<Vec<_>>());
        }
    }
}
