//! The broker of a demo: librdkafka's mock in this process, or the user's own with a topic that is deleted at the end.
//!
//! The mock keeps 5 MiB or 100,000 batches of a partition and silently drops the oldest. So payloads are small, there
//! are several partitions, and the reader must keep up.

use super::error::DemoError;
use super::options::DemoOptions;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Partitions of the demo's topic.
pub(super) const PARTITIONS: i32 = 12;

/// The id of the mock's only broker: they are numbered from 1.
const THE_BROKER: i32 = 1;

/// Capacity of the channel to the mock's thread, which receives each delay at once.
const DELAYS_MAX: usize = 4;

/// How long the user's broker may take to create or delete a topic.
const ADMIN_DEADLINE: Duration = Duration::from_secs(15);

/// A broker with the demo's topic on it.
#[derive(Debug)]
pub(super) struct Broker {
    mock: Option<Mock>,
    /// The topic is not deleted.
    is_kept: bool,
    /// `bootstrap.servers`.
    pub(super) brokers: String,
    pub(super) topic: String,
}

impl Broker {
    /// Starts the mock, or creates a topic at the user's broker.
    pub(super) async fn open(options: &DemoOptions, name: &str) -> Result<Self, DemoError> {
        if let Some(brokers) = options.brokers.clone() {
            let topic = format!("{name}.order");
            let is_kept = options.ledger.is_some();
            let broker = Self { mock: None, is_kept, brokers, topic };
            broker.create_topic().await?;
            return Ok(broker);
        }
        let topic = "order".to_owned();
        let mock = Mock::start(&topic)?;
        Ok(Self { brokers: mock.brokers.clone(), mock: Some(mock), is_kept: false, topic })
    }

    /// The broker in one line.
    pub(super) fn describe(&self) -> String {
        let Self { mock, is_kept, brokers, topic } = self;
        match mock {
            Some(_) => format!("librdkafka's mock at {brokers}, {PARTITIONS} partitions"),
            None if *is_kept => format!("yours at {brokers}; topic {topic}, which is kept"),
            None => format!("yours at {brokers}; topic {topic}, deleted at the end"),
        }
    }

    /// How long a fetch waits for records. The mock answers an empty fetch only after this time, a real broker as soon
    /// as a record arrives.
    pub(super) fn fetch_wait(&self) -> Duration {
        Duration::from_millis(if self.mock.is_some() { 5 } else { 500 })
    }

    /// Delays every answer of the mock; zero ends the delay.
    pub(super) fn answer_after(&self, delay: Duration) {
        if let Some(delays) = self.mock.as_ref().and_then(|mock| mock.delays.as_ref()) {
            // If the thread has ended, its broker is unavailable, which shows anyway.
            delays.send(delay).unwrap_or_default();
        }
    }

    async fn create_topic(&self) -> Result<(), DemoError> {
        let topic = NewTopic::new(&self.topic, PARTITIONS, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_DEADLINE));
        let made = self.admin()?.create_topics([&topic], &options).await;
        let made = made.map_err(|source| self.failed(source))?;
        let refused = made.into_iter().find_map(Result::err);
        refused.map_or(Ok(()), |(_, code)| Err(self.failed(KafkaError::AdminOp(code))))
    }

    fn failed(&self, source: KafkaError) -> DemoError {
        DemoError::Topic { topic: self.topic.clone(), brokers: self.brokers.clone(), source }
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, DemoError> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        let deadline = ADMIN_DEADLINE.as_millis().to_string();
        config.set("socket.timeout.ms", deadline);
        config.create().map_err(|source| self.failed(source))
    }

    /// Ends the mock, or deletes the topic and returns a message.
    pub(super) async fn close(self) -> Result<Option<String>, DemoError> {
        if self.mock.is_some() {
            return Ok(None);
        }
        if self.is_kept {
            return Ok(Some(format!("kept topic {}, for postrider verify --ledger", self.topic)));
        }
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_DEADLINE));
        let deleted = self.admin()?.delete_topics(&[&self.topic], &options).await;
        let deleted = deleted.map_err(|source| self.failed(source))?;
        match deleted.into_iter().find_map(Result::err) {
            Some((_, code)) => Err(self.failed(KafkaError::AdminOp(code))),
            None => Ok(Some(format!("deleted topic {}", self.topic))),
        }
    }
}

/// The mock broker. It has its own thread, because it cannot be moved to another thread.
#[derive(Debug)]
struct Mock {
    brokers: String,
    /// The delay of each answer. When this end is dropped, the thread and the mock end.
    delays: Option<SyncSender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Mock {
    fn start(topic: &str) -> Result<Self, DemoError> {
        let (delays, received) = sync_channel(DELAYS_MAX);
        let (ready, started) = sync_channel(1);
        let topic = topic.to_owned();
        let thread = std::thread::Builder::new().name("demo-broker".to_owned());
        let thread = thread.spawn(move || serve(&topic, &ready, &received));
        let thread = thread.map_err(DemoError::Thread)?;
        let brokers = started.recv().map_err(|_gone| DemoError::Died("broker"))?;
        let brokers = brokers.map_err(DemoError::Mock)?;
        Ok(Self { brokers, delays: Some(delays), thread: Some(thread) })
    }
}

fn serve(
    topic: &str,
    ready: &SyncSender<Result<String, KafkaError>>,
    received: &Receiver<Duration>,
) {
    let made = MockCluster::new(1).and_then(|cluster| {
        cluster.create_topic(topic, PARTITIONS, 1)?;
        Ok(cluster)
    });
    let (cluster, answer) = match made {
        Ok(cluster) => {
            let brokers = cluster.bootstrap_servers();
            (Some(cluster), Ok(brokers))
        }
        Err(error) => (None, Err(error)),
    };
    if ready.send(answer).is_ok()
        && let Some(cluster) = cluster
    {
        // The loop ends when the sender is dropped.
        while let Ok(delay) = received.recv() {
            // If the delay cannot be set, the broker is not frozen, which shows on the screen.
            cluster.broker_round_trip_time(THE_BROKER, delay).unwrap_or_default();
        }
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        drop(self.delays.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
