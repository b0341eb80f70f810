//! Topics: created, counted while they fill, and read back to check that all records are there and in order.

use crate::process;
use crate::servers::{Servers, wait_for};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Deadline of a request to the broker.
const REQUEST: Duration = Duration::from_secs(20);
/// How long a reader waits for a record before it looks whether it is still wanted.
const POLL: Duration = Duration::from_millis(50);
/// After so long without a record there are no more.
const SILENCE: Duration = Duration::from_secs(3);

pub(crate) struct Topic {
    brokers: String,
    pub(crate) name: String,
    partitions: i32,
    counter: BaseConsumer,
}

/// The fields of a record that the bench uses.
pub(crate) struct Seen {
    /// The number in its payload, from 1.
    pub(crate) number: u32,
    pub(crate) aggregate: u32,
    /// Seconds since 1970, by the broker.
    pub(crate) appended: f64,
    /// When a reader had it, in seconds since 1970; 0 where no reader waits for it.
    pub(crate) came: f64,
}

/// All records of a topic.
#[derive(Default)]
pub(crate) struct Content {
    /// In order of the broker's clock.
    pub(crate) seen: Vec<Seen>,
}

impl Topic {
    /// A topic of that name without records, stamped by the broker.
    pub(crate) fn make(servers: &Servers, name: &str, partitions: i32) -> Self {
        let topic = Self {
            brokers: servers.brokers.clone(),
            name: name.to_owned(),
            partitions,
            counter: consumer(&servers.brokers),
        };
        topic.remove();
        let (admin, options) = topic.admin();
        wait_for("a topic", Duration::from_millis(200), || {
            let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1))
                .set("message.timestamp.type", "LogAppendTime");
            let made = block_on(admin.create_topics([&new], &options)).expect("an answer");
            made.first().is_some_and(Result::is_ok).then_some(())
        });
        // The leaders are known a moment later.
        wait_for("leaders", Duration::from_millis(50), || {
            let first = topic.counter.fetch_watermarks(name, partitions - 1, REQUEST);
            first.is_ok().then_some(())
        });
        topic
    }

    /// Deletes the topic, to free disk space after the measurement.
    pub(crate) fn remove(&self) {
        let (admin, options) = self.admin();
        drop(block_on(admin.delete_topics(&[&self.name], &options)).expect("an answer"));
    }

    fn admin(&self) -> (AdminClient<DefaultClientContext>, AdminOptions) {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        let options = AdminOptions::new().operation_timeout(Some(REQUEST));
        (config.create().expect("an admin client"), options)
    }

    /// Records so far.
    pub(crate) fn count(&self) -> usize {
        let end = |partition| {
            let marks = self.counter.fetch_watermarks(&self.name, partition, REQUEST);
            usize::try_from(marks.map_or(0, |(_, high)| high)).expect("an offset")
        };
        (0..self.partitions).map(end).sum()
    }

    /// A consumer of all partitions, from their beginning.
    pub(crate) fn consumer(&self) -> BaseConsumer {
        let consumer = consumer(&self.brokers);
        let mut list = TopicPartitionList::new();
        for partition in 0..self.partitions {
            list.add_partition_offset(&self.name, partition, Offset::Beginning).expect("an offset");
        }
        consumer.assign(&list).expect("an assignment");
        consumer
    }

    /// Reads the present records.
    pub(crate) fn read(&self) -> Content {
        let expected = self.count();
        let consumer = self.consumer();
        let mut seen = Vec::with_capacity(expected);
        while seen.len() < expected {
            let message = consumer.poll(REQUEST).expect("a record").expect("a record");
            seen.push(seen_in(&message, 0.0));
        }
        Content { seen }
    }
}

/// The records that a consumer can see, read on a thread of their own while they come.
pub(crate) struct Arrivals {
    content: Arc<Mutex<Content>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Arrivals {
    pub(crate) fn start(consumer: BaseConsumer) -> Self {
        let (content, stop) = (Arc::<Mutex<Content>>::default(), Arc::<AtomicBool>::default());
        let (to, end) = (Arc::clone(&content), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let Some(message) = consumer.poll(POLL) else { continue };
                let seen = seen_in(&message.expect("a record"), process::now());
                to.lock().expect("no panic").seen.push(seen);
            }
        });
        Self { content, stop, thread: Some(thread) }
    }

    /// Records so far.
    pub(crate) fn count(&self) -> usize {
        self.content.lock().expect("no panic").seen.len()
    }

    /// Everything, when at least `rows` records are there and no other one has come for a while. An event that comes
    /// twice may take the place of one that does not come: [`Content::check`] finds both.
    pub(crate) fn all(mut self, rows: usize) -> Content {
        let (mut count, mut since) = (0, Instant::now());
        wait_for("all records", POLL, || {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended, "the reader has failed");
            let now = self.count();
            if now != count {
                (count, since) = (now, Instant::now());
            }
            (count >= rows && since.elapsed() >= SILENCE).then_some(())
        });
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("one end").join().expect("no panic");
        std::mem::take(&mut *self.content.lock().expect("no panic"))
    }
}

fn seen_in(message: &impl Message, came: f64) -> Seen {
    let millis = message.timestamp().to_millis().unwrap_or(0) as f64;
    Seen {
        number: number(message.payload().unwrap_or_default()),
        aggregate: ascii(message.key().unwrap_or_default()),
        appended: millis / 1e3,
        came,
    }
}

impl Content {
    pub(crate) fn first(&self) -> f64 {
        self.seen.iter().map(|seen| seen.appended).fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn last(&self) -> f64 {
        self.seen.iter().map(|seen| seen.appended).fold(0.0, f64::max)
    }

    /// Checks that every number from 1 to `rows` is there, and that those of an aggregate are in order. Returns the
    /// number of repeated records.
    ///
    /// A consumer sees one partition in order, and an aggregate is in one partition.
    pub(crate) fn check(&self, rows: usize) -> usize {
        let mut known = vec![false; rows + 1];
        let aggregates = self.seen.iter().map(|seen| seen.aggregate).max().unwrap_or(0) as usize;
        let mut newest = vec![0; aggregates + 1];
        let mut again = 0;
        for seen in &self.seen {
            let known = &mut known[seen.number as usize];
            if std::mem::replace(known, true) {
                again += 1;
                continue;
            }
            let newest = &mut newest[seen.aggregate as usize];
            assert!(*newest < seen.number, "{} came after {newest}", seen.number);
            *newest = seen.number;
        }
        let missing = known.iter().skip(1).filter(|known| !**known).count();
        assert_eq!(missing, 0, "events are missing");
        again
    }
}

fn consumer(brokers: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("group.id", "postrider-bench")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("fetch.min.bytes", "1")
        .set("fetch.wait.max.ms", "500")
        .set("fetch.queue.backoff.ms", "1")
        .set("queued.max.messages.kbytes", "65536");
    config.create().expect("a consumer")
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// The number behind `"n":` at the beginning of a payload.
pub(crate) fn number(payload: &[u8]) -> u32 {
    let at = payload.windows(4).position(|window| window == b"\"n\":");
    let at = at.unwrap_or_else(|| panic!("a payload without number"));
    let rest = &payload[at + 4..];
    let start = rest.iter().position(u8::is_ascii_digit).expect("a number");
    ascii(&rest[start..])
}

pub(crate) fn ascii(text: &[u8]) -> u32 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}
