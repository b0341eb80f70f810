//! Topics of a test's own, and a reader that shares no code with the sink.

use crate::await_that::{SOON, await_that};
use crate::server::unique;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::metadata::MetadataTopic;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long one call to the broker may take.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// A record as a consumer sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadRecord {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    /// In order; names may repeat; a value may be null.
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since the Unix epoch.
    pub(crate) timestamp: Option<i64>,
}

impl ReadRecord {
    /// The first header of this name, as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// What header `position` says: history, commit LSN as PostgreSQL prints it, and ordinal.
    pub(crate) fn place(&self) -> Option<(u32, String, u64)> {
        let position = self.header("position")?;
        let parts: Vec<&str> = position.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [8, 16, 8], "the form of header position: {position}");
        let number = |digits: &str| u64::from_str_radix(digits, 16).expect("hexadecimal digits");
        let (history, lsn) = (number(parts[0]), number(parts[1]));
        let lsn = format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF);
        Some((u32::try_from(history).expect("eight digits"), lsn, number(parts[2])))
    }

    /// The commit LSN of header `position`, as PostgreSQL prints it.
    pub(crate) fn commit_lsn(&self) -> String {
        self.place().expect("header position").1
    }

    /// The key as text.
    pub(crate) fn key_text(&self) -> Option<&str> {
        std::str::from_utf8(self.key.as_deref()?).ok()
    }

    /// The value as text.
    pub(crate) fn value_text(&self) -> Option<&str> {
        std::str::from_utf8(self.value.as_deref()?).ok()
    }
}

/// A family of topics with a prefix of one test's own.
pub(crate) struct Topics {
    brokers: String,
    /// What every topic's name starts with: `<test>_<random>.`
    pub(crate) prefix: String,
}

impl Topics {
    pub(crate) fn new(brokers: &str, test: &str) -> Self {
        Self { brokers: brokers.to_owned(), prefix: format!("{}.", unique(test)) }
    }

    /// Creates `<prefix><name>`.
    pub(crate) async fn create(&self, name: &str, partitions: i32) -> Topic {
        self.create_with(name, partitions, &[]).await
    }

    /// Creates `<prefix><name>` with settings of the topic's own (`max.message.bytes`).
    pub(crate) async fn create_with(
        &self,
        name: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) -> Topic {
        let name = format!("{}{name}", self.prefix);
        create_topic(&self.brokers, &name, partitions, settings).await;
        Topic { brokers: self.brokers.clone(), name }
    }
}

pub(crate) fn client_config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    // A broker that went away is a matter for the test's deadline, not for the log.
    config.set("bootstrap.servers", brokers).set("log_level", "2");
    config.set("reconnect.backoff.ms", "20").set("reconnect.backoff.max.ms", "200");
    config
}

/// An admin client.
pub(crate) fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    client_config(brokers).create().expect("an admin client")
}

/// Creates a topic and waits until the broker leads all of its partitions.
pub(crate) async fn create_topic(
    brokers: &str,
    name: &str,
    partitions: i32,
    settings: &[(&str, &str)],
) {
    // Tests write records of long ago, which the broker would delete whenever it next looks.
    let forever = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let mut topic = forever.set("retention.ms", "-1");
    for (setting, value) in settings {
        topic = topic.set(setting, value);
    }
    let options = AdminOptions::new().operation_timeout(Some(CALL_DEADLINE));
    let created = admin(brokers).create_topics([&topic], &options).await;
    let results = created.unwrap_or_else(|error| {
        panic!("topic {name} at {brokers} ({error}); run scripts/servers up")
    });
    for result in results {
        result.unwrap_or_else(|(topic, code)| panic!("topic {topic} is refused: {code}"));
    }
    let topic = Topic { brokers: brokers.to_owned(), name: name.to_owned() };
    await_that(&format!("leaders of {name}"), SOON, || {
        let topic = topic.clone();
        async move {
            let ends = blocking(move || topic.ends(&topic.consumer())).await?;
            let led = ends.len();
            if led == usize::try_from(partitions).unwrap_or(0) {
                Ok(())
            } else {
                Err(format!("{led} led"))
            }
        }
    })
    .await;
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(call).await.expect("the reader's thread")
}

/// A consumer to look with again and again: one for each look is dear, for the broker too. One that failed, or did not
/// return, is not used again: one that was made while its broker was frozen was seen to hang for minutes.
#[derive(Default)]
pub(crate) struct Looker(Cell<Option<BaseConsumer>>);

/// One topic.
#[derive(Clone)]
pub(crate) struct Topic {
    pub(crate) brokers: String,
    pub(crate) name: String,
}

impl Topic {
    /// A setting of the topic as the broker shows it; empty if there is none. A broker that was frozen until now may
    /// let the first requests wait for longer than their client.
    pub(crate) async fn setting(&self, name: &str) -> String {
        let admin = admin(&self.brokers);
        await_that(&format!("an answer about {}", self.name), SOON, || async {
            let resource = ResourceSpecifier::Topic(&self.name);
            let asked = admin.describe_configs(&[resource], &AdminOptions::new()).await;
            let resource = asked.map_err(|error| error.to_string())?.remove(0);
            let resource = resource.map_err(|code| code.to_string())?;
            let entry = resource.entries.into_iter().find(|entry| entry.name == name);
            Ok::<_, String>(entry.and_then(|entry| entry.value).unwrap_or_default())
        })
        .await
    }

    /// Everything that is in the topic now, in order of partition and offset.
    pub(crate) async fn read_all(&self) -> Vec<ReadRecord> {
        let topic = self.clone();
        blocking(move || topic.read(usize::MAX, Instant::now() + 3 * CALL_DEADLINE)).await
    }

    /// The same with the records of transactions that are open or were aborted.
    pub(crate) async fn read_uncommitted(&self) -> Vec<ReadRecord> {
        let topic = self.clone();
        let read = move || {
            let consumer = topic.consumer_of("read_uncommitted");
            topic
                .read_by(&consumer, usize::MAX, Instant::now() + 3 * CALL_DEADLINE, |record| record)
        };
        blocking(read).await
    }

    /// The same without the values, which may be more than fit into memory.
    pub(crate) async fn read_without_values(&self, deadline: Duration) -> Vec<ReadRecord> {
        let topic = self.clone();
        let without_value = |record: ReadRecord| ReadRecord { value: None, ..record };
        blocking(move || topic.read_as(usize::MAX, Instant::now() + deadline, without_value)).await
    }

    /// Waits until the topic holds `count` records, then reads everything that is in it.
    pub(crate) async fn await_records(&self, count: usize, deadline: Duration) -> Vec<ReadRecord> {
        let what = format!("{count} records in {}", self.name);
        let looker = Looker::default();
        await_that(&what, deadline, || async {
            let held = self.held(&looker).await?;
            if held >= count { Ok(()) } else { Err(format!("{held} records")) }
        })
        .await;
        self.read_all().await
    }

    /// Records in the topic. Offsets count the control records of transactions too, so it may be less.
    pub(crate) async fn held(&self, looker: &Looker) -> Result<usize, String> {
        let (topic, consumer) = (self.clone(), looker.0.take());
        let look = blocking(move || {
            let consumer = consumer.unwrap_or_else(|| topic.consumer());
            topic.ends(&consumer).map(|ends| (ends, consumer))
        });
        let answer = tokio::time::timeout(2 * CALL_DEADLINE, look).await;
        let (ends, consumer) = answer.map_err(|elapsed| elapsed.to_string())??;
        looker.0.set(Some(consumer));
        let held: i64 = ends.values().map(|(low, high)| high - low).sum();
        Ok(usize::try_from(held).unwrap_or(0))
    }

    /// Deletes it, and waits until the broker takes nothing for it: the controller answers before that, and what is
    /// acknowledged in between is gone with the topic.
    pub(crate) async fn delete(&self) {
        let answer = admin(&self.brokers).delete_topics(&[&self.name], &AdminOptions::new()).await;
        for result in answer.expect("an answer") {
            result.expect("a topic that was there");
        }
        await_that(&format!("no topic {}", self.name), SOON, || {
            let topic = self.clone();
            blocking(move || match topic.ends(&topic.consumer()) {
                Ok(ends) if ends.is_empty() => Ok(()),
                Ok(ends) => Err(format!("{} partitions", ends.len())),
                Err(error) => Err(error),
            })
        })
        .await;
    }

    /// First and next offset of every partition.
    fn ends(&self, consumer: &BaseConsumer) -> Result<BTreeMap<i32, (i64, i64)>, String> {
        let metadata = consumer
            .fetch_metadata(Some(&self.name), CALL_DEADLINE)
            .map_err(|error| format!("metadata of {}: {error}", self.name))?;
        let mut ends = BTreeMap::new();
        for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
            let marks = consumer
                .fetch_watermarks(&self.name, partition.id(), CALL_DEADLINE)
                .map_err(|error| format!("offsets of {}: {error}", self.name))?;
            ends.insert(partition.id(), marks);
        }
        Ok(ends)
    }

    fn consumer(&self) -> BaseConsumer {
        self.consumer_of("read_committed")
    }

    fn consumer_of(&self, isolation: &str) -> BaseConsumer {
        client_config(&self.brokers)
            .set("group.id", "reader")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", isolation)
            .set("fetch.wait.max.ms", "50")
            .create()
            .expect("a consumer")
    }

    /// Reads up to the offsets of now. The end-of-partition event counts too: behind the last record may stand a
    /// transaction's control record, which no consumer is given.
    fn read(&self, limit: usize, deadline: Instant) -> Vec<ReadRecord> {
        self.read_as(limit, deadline, |record| record)
    }

    /// The same; `kept` gives what is kept of a record.
    fn read_as(
        &self,
        limit: usize,
        deadline: Instant,
        kept: impl Fn(ReadRecord) -> ReadRecord,
    ) -> Vec<ReadRecord> {
        self.read_by(&self.consumer(), limit, deadline, kept)
    }

    fn read_by(
        &self,
        consumer: &BaseConsumer,
        limit: usize,
        deadline: Instant,
        kept: impl Fn(ReadRecord) -> ReadRecord,
    ) -> Vec<ReadRecord> {
        let mut open = loop {
            match self.ends(consumer) {
                Ok(ends) => break ends,
                // A broker that is just back may not know its partitions yet.
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            drop(consumer.poll(Duration::from_millis(100)));
        };
        open.retain(|_, (low, high)| low < high);
        let mut from_the_start = TopicPartitionList::new();
        for partition in open.keys() {
            from_the_start
                .add_partition_offset(&self.name, *partition, Offset::Beginning)
                .expect("an offset");
        }
        consumer.assign(&from_the_start).expect("an assignment");
        let mut records = Vec::new();
        while !open.is_empty() && records.len() < limit {
            assert!(
                Instant::now() < deadline,
                "reading {} stopped at {} records; not read to the end: {open:?}",
                self.name,
                records.len()
            );
            match consumer.poll(Duration::from_millis(100)) {
                // librdkafka says it of a broker that closed a connection, and connects again: by the deadline.
                None
                | Some(Err(KafkaError::MessageConsumption(
                    RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure,
                ))) => {}
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    open.remove(&partition);
                }
                Some(Err(error)) => panic!("reading {}: {error}", self.name),
                Some(Ok(message)) => {
                    let record = read_record(&message);
                    if open
                        .get(&record.partition)
                        .is_some_and(|(_, high)| record.offset + 1 >= *high)
                    {
                        open.remove(&record.partition);
                    }
                    records.push(kept(record));
                }
            }
        }
        records.sort_by_key(|record| (record.partition, record.offset));
        records
    }
}

fn read_record(message: &impl Message) -> ReadRecord {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect()
    });
    ReadRecord {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        timestamp: message.timestamp().to_millis(),
    }
}
