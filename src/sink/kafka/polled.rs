//! A producer, and the thread that takes its events and has a lone batch sent at once.
//!
//! Records wait for company (`linger.ms`) while others of the producer are in flight; a lone batch does not. librdkafka
//! has no such rule, and its linger can't be changed, but it passes over it while somebody waits in `rd_kafka_flush`.
//!
//! Delivery reports come a request at a time, some tenths of a millisecond apart, and each would wake this thread and
//! the driver. So the first is told at once, and what comes while the thread rests after that is told together. Only
//! the news of an acknowledgement waits; no record does.

use super::context::Context;
use super::native::{self, Events, Gathered};
use crate::sink::SinkError;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::producer::BaseProducer;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// librdkafka's producer, whose events somebody has to take.
pub(super) type Producer = BaseProducer<Context>;

/// How long an acknowledgement may wait to be told, behind one that was told.
const REST: Duration = Duration::from_millis(2);

/// Acknowledgements that are told at once, though there are more.
const TOGETHER: usize = 4096;

/// The thread looks up so often though nothing comes.
const LOOK: Duration = Duration::from_secs(1);

/// How long librdkafka is held to it that nothing lingers: its threads have to see it.
const HURRY: Duration = Duration::from_millis(1);

/// A producer whose events are taken as long as it lives.
pub(super) struct Polled {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    events: Events,
    hurry: AtomicBool,
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
        let (hurry, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { events, hurry, stop });
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("kafka-reports".to_owned())
            .spawn(move || its.run())
            .map_err(SinkError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What was handed over is sent at once. Never waits.
    pub(super) fn hurry(&self) {
        if !self.shared.hurry.swap(true, Ordering::AcqRel) {
            self.wake();
        }
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
            if self.hurry.swap(false, Ordering::AcqRel) {
                native::flush(self.events.producer(), HURRY);
            }
            if self.events.take(LOOK, &mut gathered) {
                while gathered.count() < TOGETHER && self.events.take(Duration::ZERO, &mut gathered)
                {
                }
                self.events.tell(&mut gathered);
                std::thread::park_timeout(REST);
            }
        }
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
    use crate::record::{Header, Record, Ticket};
    use crate::sink::kafka::native;
    use crate::sink::kafka::shared::Shared as SinkShared;
    use crate::sink::{Mailbox, Post};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{DefaultProducerContext, Producer as _};
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Far longer than the deadline.
    const LINGER_MILLIS: &str = "120000";

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
            | Post::Unfit { .. } => None,
        })
    }

    #[test]
    fn what_lingers_is_sent_when_it_is_told_to_hurry_and_has_been_told_when_nothing_is_in_flight() {
        let cluster = MockCluster::<DefaultProducerContext>::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let mailbox = Mailbox::default();
        let shared = Arc::new(SinkShared::new(mailbox.clone()));
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        config.set("enable.idempotence", "true");
        config.set("linger.ms", LINGER_MILLIS);
        let polled = Polled::make(&config, Context::new(shared, Arc::default())).unwrap();
        // The first of them before there is a connection; told again and again, as the driver does.
        for first in [0, 100, 200] {
            (first..first + 100).for_each(|ticket| enqueue(&polled, ticket));
            let (begun, mut all, mut posts) = (Instant::now(), Vec::new(), Vec::new());
            while polled.in_flight_count() > 0 && begun.elapsed() < DEADLINE {
                polled.hurry();
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
