//! The progress topic: what the last transaction of a pipeline has stored.
//!
//! One partition, compacted, with one key for each transactional id. The last record of a transaction has the progress,
//! so both become visible, or neither. The first record of a key has no progress: `postrider setup` writes it. Without
//! it nothing is published, because a topic that was deleted and created again would be taken for that of a new
//! pipeline.
//!
//! Other pipelines may have open transactions in the topic, behind which no committed record can be read. So the end of
//! the topic is requested first, with all records, and then committed records are read up to that end.

use super::native::{self, Description, PartitionEnd, Producer, TransactionFailure};
use super::producer::{Context, PROGRESS, Polled, TRANSACTIONAL_ID};
use super::secrets::Secrets;
use super::shared::Shared;
use super::spec::{CreateTopics, KafkaSpec, OpenError};
use super::topics;
use super::transaction_spec::KafkaTransaction;
use postrider_core::error::Chain;
use postrider_core::finding::Finding;
use postrider_core::record::Record;
use postrider_core::sink::{Mailbox, SinkProgress};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer about the topic may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How long the brokers may take to answer the first question of `postrider setup`.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(8);

/// How long `postrider setup` waits for former producers to be excluded, and for its transaction to be committed.
const SETUP_MAX: Duration = Duration::from_secs(30);

/// Records that are read first, from the end; each further part of the topic is larger by this factor.
const FIRST_PART: i64 = 1_000;
const PART_FACTOR: i64 = 16;

/// How long one poll of the reader takes, and how long nothing may be read before the reason is reported.
const POLL: Duration = Duration::from_millis(50);
const STALL: Duration = Duration::from_secs(10);

/// The version of the records' values.
const VERSION: &str = "1";

/// The progress in the first record of a key.
const NONE_YET: &str = "-";

/// The size at which a segment of the topic is closed, and can be compacted: so much is read at a start, at most, for
/// the pipelines of a topic together. Unit: bytes.
const SEGMENT_BYTES: &str = "16777216";

/// The properties that a consumer needs too: how brokers are reached and logged in to.
const SHARED_PROPERTIES: [&str; 16] = [
    "api.version",
    "broker.address",
    "broker.version",
    "client.",
    "connections.",
    "enable.sasl",
    "enable.ssl",
    "https.",
    "metadata.",
    "plugin.",
    "reconnect.",
    "request.",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
];

/// What the topic has of a pipeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StoredProgress {
    /// No record: the pipeline was not set up for this topic, or its records are lost.
    Absent,
    /// The record of `postrider setup`: nothing was committed yet.
    Begun,
    /// The progress of the last transaction.
    At(SinkProgress),
}

/// Why the progress can't be read, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ProgressProblem {
    pub(super) reason: String,
    pub(super) hint: String,
}

/// The value of a record with this progress.
pub(super) fn value(progress: &str) -> String {
    format!("{VERSION} {progress}")
}

/// What a value says; `None` if it is none of ours, or of a later version.
fn parse(value: &str) -> Option<StoredProgress> {
    let progress = value.strip_prefix(VERSION)?.strip_prefix(' ')?;
    if progress == NONE_YET {
        return Some(StoredProgress::Begun);
    }
    progress.parse().ok().map(StoredProgress::At)
}

/// The problem that the topic has no record of the pipeline.
pub(super) fn absent(spec: &KafkaSpec, transaction: &KafkaTransaction) -> ProgressProblem {
    let (topic, id) = (&transaction.progress_topic, &transaction.id);
    ProgressProblem {
        reason: format!("topic \"{topic}\" at {} has no progress of \"{id}\"", spec.brokers),
        hint: format!("before the first start: postrider setup. {IF_LOST}"),
    }
}

/// What `postrider setup` means where records of the progress topic were lost.
const IF_LOST: &str = "Otherwise the topic was deleted or emptied, or the brokers are others: correct sink.brokers, or \
                       run postrider setup, after which the pipeline continues at its cursor row: events that were \
                       published since that row (flow.cursor_interval) come twice, and none is lost";

/// Reads what the last committed transaction of the pipeline has stored. No other producer of the pipeline may be able
/// to commit, or the answer may be outdated.
///
/// # Errors
/// The problem; `None` if the answer is not wanted any more.
pub(super) fn read(
    spec: &KafkaSpec,
    transaction: &KafkaTransaction,
    producer: &Producer,
    is_wanted: &dyn Fn() -> bool,
) -> Result<StoredProgress, Option<ProgressProblem>> {
    let topic = &transaction.progress_topic;
    let name = CString::new(topic.as_str()).unwrap_or_default();
    let end = |end| {
        native::partition_end(producer, &name, end, ANSWER_MAX)
            .map_err(|code| Some(problem(spec, topic, code)))
    };
    let last = end(PartitionEnd::Last)?;
    let first = end(PartitionEnd::First)?;
    if first >= last {
        return Ok(StoredProgress::Absent);
    }
    let reader = ProgressReader::open(spec, transaction, producer, &name)?;
    let (mut part, mut behind) = (FIRST_PART, last);
    loop {
        let from = first.max(last.saturating_sub(part));
        if let Some(value) = reader.last_of((from, behind), &transaction.id, is_wanted)? {
            let read = std::str::from_utf8(&value).ok().and_then(parse);
            return read.ok_or_else(|| Some(unreadable(topic, &transaction.id)));
        }
        if from == first {
            return Ok(StoredProgress::Absent);
        }
        (part, behind) = (part.saturating_mul(PART_FACTOR), from);
    }
}

/// The problem that a request for the topic has.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: the rest is a broker that does not answer"
)]
fn problem(spec: &KafkaSpec, topic: &str, code: Code) -> ProgressProblem {
    let brokers = &spec.brokers;
    match code {
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::NoEnt => ProgressProblem {
            reason: format!(
                "topic \"{topic}\", which has the progress, does not exist at {brokers}"
            ),
            hint: format!("before the first start: postrider setup. {IF_LOST}"),
        },
        Code::TopicAuthorizationFailed => denied(spec, topic, "describe"),
        code => ProgressProblem {
            reason: format!("no answer about topic \"{topic}\", which has the progress: {code}"),
            hint: format!(
                "see whether its partition has a leader: kafka-topics.sh --bootstrap-server {brokers} --describe \
                 --topic {topic}"
            ),
        },
    }
}

/// A right to the topic is missing. `operation`: what is not allowed.
fn denied(spec: &KafkaSpec, topic: &str, operation: &str) -> ProgressProblem {
    ProgressProblem {
        reason: format!(
            "the brokers do not allow us to {operation} topic \"{topic}\", which has the progress"
        ),
        hint: format!(
            "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:NAME --operation Read --operation Write \
             --operation Describe --topic {topic}",
            spec.brokers
        ),
    }
}

/// Why no record with a progress can be written; `None` if one can, or if the brokers do not say. Waits at most
/// `timeout`.
///
/// A transaction that fails for this reason does not name the topic: librdkafka reports every record of the transaction
/// as discarded.
pub(super) fn unwritable(
    spec: &KafkaSpec,
    transaction: &KafkaTransaction,
    producer: &Producer,
    timeout: Duration,
) -> Option<ProgressProblem> {
    let topic = &transaction.progress_topic;
    let name = CString::new(topic.as_str()).unwrap_or_default();
    match native::describe(producer, &name, timeout) {
        Ok(Description { may_write: Some(false), .. }) => Some(denied(spec, topic, "write")),
        Ok(_) => None,
        Err(code) => is_of_topic(code).then(|| problem(spec, topic, code)),
    }
}

/// Whether a code blames the topic, and not the brokers.
const fn is_of_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
    )
}

/// The record of the pipeline is none of Postrider's, or of a later version.
fn unreadable(topic: &str, id: &str) -> ProgressProblem {
    ProgressProblem {
        reason: format!(
            "topic \"{topic}\" has a record of \"{id}\" that is no progress of this version"
        ),
        hint:
            "start the version that has written it; if the topic is not Postrider's, set another \
               transaction.progress_topic"
                .to_owned(),
    }
}

/// A client whose log lines and errors are not shown: what it reads, or does not read, says enough.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _line: &str) {}

    fn error(&self, _error: KafkaError, _reason: &str) {}
}

impl ConsumerContext for Quiet {}

/// Reads committed records of the topic.
struct ProgressReader<'a> {
    consumer: Option<BaseConsumer<Quiet>>,
    spec: &'a KafkaSpec,
    producer: &'a Producer,
    name: &'a CString,
    topic: &'a str,
}

impl<'a> ProgressReader<'a> {
    fn open(
        spec: &'a KafkaSpec,
        transaction: &'a KafkaTransaction,
        producer: &'a Producer,
        name: &'a CString,
    ) -> Result<Self, Option<ProgressProblem>> {
        let config = reader_config(spec, transaction).map_err(|error| Some(unmade(&error)))?;
        let consumer: Result<BaseConsumer<Quiet>, _> = config.create_with_context(Quiet);
        let consumer = consumer.map_err(|error| Some(unmade(&OpenError::Create(error))))?;
        let consumer = Some(consumer);
        Ok(Self { consumer, spec, producer, name, topic: &transaction.progress_topic })
    }

    /// The value of the last committed record with this key between two offsets; the second one is not included.
    fn last_of(
        &self,
        (from, to): (i64, i64),
        key: &str,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, Option<ProgressProblem>> {
        let Some(consumer) = self.consumer.as_ref().filter(|_| from < to) else { return Ok(None) };
        self.await_stable(to, is_wanted)?;
        let failed = |error: KafkaError| Some(self.unread(&error.to_string()));
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(self.topic, 0, Offset::Offset(from)).map_err(failed)?;
        consumer.assign(&list).map_err(failed)?;
        let (mut found, mut moved_at, mut reached) = (None, Instant::now(), from);
        let mut last_error = None;
        loop {
            if !is_wanted() {
                return Err(None);
            }
            // Not the end of the reading: just after the assignment it may be that of the part before.
            let position = position(consumer, self.topic).unwrap_or(from);
            if position > reached {
                (reached, moved_at) = (position, Instant::now());
            }
            if moved_at.elapsed() >= STALL {
                let why = last_error.unwrap_or_else(|| HELD.to_owned());
                return Err(Some(self.unread(&why)));
            }
            match consumer.poll(POLL) {
                // What is behind the end was written by others, after it was requested.
                Some(Ok(record)) if record.offset() >= to => return Ok(found),
                Some(Ok(record)) if record.key() == Some(key.as_bytes()) => {
                    found = record.payload().map(<[u8]>::to_vec);
                }
                // The end may have no record that could be read: records of transactions that were aborted, or that
                // were compacted. This end is not before `to`, because the stable end was not when the reading began.
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
                Some(Err(error))
                    if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) =>
                {
                    return Err(Some(denied(self.spec, self.topic, "read")));
                }
                Some(Err(error)) => last_error = Some(error.to_string()),
                Some(Ok(_)) | None => {}
            }
        }
    }

    /// Waits until committed records can be read up to this offset. Before the reading: the end that a consumer reports
    /// is that of its last answer, and a transaction of another pipeline may have ended since.
    fn await_stable(
        &self,
        to: i64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Option<ProgressProblem>> {
        let began = Instant::now();
        let stable = PartitionEnd::Stable;
        loop {
            let end = native::partition_end(self.producer, self.name, stable, ANSWER_MAX);
            if end.is_ok_and(|end| end >= to) {
                return Ok(());
            }
            if !is_wanted() {
                return Err(None);
            }
            if began.elapsed() >= STALL {
                return Err(Some(self.unread(HELD)));
            }
            std::thread::sleep(POLL);
        }
    }

    fn unread(&self, why: &str) -> ProgressProblem {
        let topic = self.topic;
        ProgressProblem {
            reason: format!(
                "topic \"{topic}\", which has the progress, can't be read to its end: {why}"
            ),
            hint: format!(
                "the login needs the right to read topic {topic}; an open transaction of a process that has ended is \
                 aborted by the brokers after its time-out"
            ),
        }
    }
}

/// Why no committed record can be read, where no error was reported.
const HELD: &str = "another producer has an open transaction in it, or its leader does not answer";

impl Drop for ProgressReader<'_> {
    /// Dropping a consumer takes some tenths of a second, and nothing has to wait for it.
    fn drop(&mut self) {
        let consumer = self.consumer.take();
        // If no thread can be started, the consumer is dropped by this thread.
        drop(
            std::thread::Builder::new().name("kafka-drop".to_owned()).spawn(move || drop(consumer)),
        );
    }
}

/// The position of the reader; `None` before the first record.
fn position(consumer: &BaseConsumer<Quiet>, topic: &str) -> Option<i64> {
    match consumer.position().ok()?.find_partition(topic, 0)?.offset() {
        Offset::Offset(offset) => Some(offset),
        Offset::Beginning
        | Offset::End
        | Offset::Stored
        | Offset::Invalid
        | Offset::OffsetTail(_) => None,
    }
}

/// Whether a property of librdkafka is one that a consumer needs too.
pub(super) fn is_shared(name: &str) -> bool {
    SHARED_PROPERTIES.iter().any(|prefix| name.starts_with(prefix))
}

fn reader_config(
    spec: &KafkaSpec,
    transaction: &KafkaTransaction,
) -> Result<ClientConfig, OpenError> {
    let of_producer = Secrets::read(spec, &Secrets::default()).config(spec)?;
    let mut config = ClientConfig::new();
    for (name, value) in of_producer.config_map() {
        if is_shared(name) || name == "bootstrap.servers" {
            config.set(name, value);
        }
    }
    for (name, value) in [
        // A consumer needs the name of a group to be assigned a partition. It does not join the group.
        ("group.id", transaction.id.as_str()),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_committed"),
        ("enable.partition.eof", "true"),
        ("fetch.wait.max.ms", "10"),
        ("allow.auto.create.topics", "false"),
        ("log_level", "0"),
    ] {
        config.set(name, value);
    }
    config.remove("request.required.acks");
    config.set_log_level(RDKafkaLogLevel::Emerg);
    Ok(config)
}

// What `postrider setup` does: it creates the topic, and writes the first record of the pipeline.

/// Creates the topic and the pipeline's first record, if they do not exist. A running pipeline is not disturbed: it has
/// its record already. With `adopt_cursor` the first record is written in any case, and discards the progress that is
/// stored. Nothing without transactions.
pub(super) fn prepare(spec: &KafkaSpec, adopt_cursor: bool) -> Vec<Finding> {
    let Some(transaction) = &spec.transaction else { return Vec::new() };
    let topic = &transaction.progress_topic;
    match begin(spec, transaction, adopt_cursor) {
        Ok(words) => vec![Finding::ok("progress_topic", words)],
        Err(ProgressProblem { reason, hint }) => {
            let what = format!("progress in topic \"{topic}\": {reason}");
            vec![Finding::error("progress_topic", what).why(hint)]
        }
    }
}

fn begin(
    spec: &KafkaSpec,
    transaction: &KafkaTransaction,
    adopt_cursor: bool,
) -> Result<String, ProgressProblem> {
    let KafkaTransaction { id, progress_topic, .. } = transaction;
    let plain = producer(spec, false).map_err(|error| unmade(&error))?;
    if plain.client().fetch_cluster_id(FIRST_ANSWER_MAX).is_none() {
        return Err(ProgressProblem {
            reason: format!("no answer from the brokers at {}", spec.brokers),
            hint: "run postrider setup again when they answer: nothing is published before"
                .to_owned(),
        });
    }
    create(spec, transaction, &plain)?;
    if !adopt_cursor && read_once(spec, transaction, &plain)? != StoredProgress::Absent {
        return Ok(format!("topic \"{progress_topic}\" has the progress of \"{id}\""));
    }
    if let Some(problem) = unwritable(spec, transaction, &plain, ANSWER_MAX) {
        return Err(problem);
    }
    // From here on no former process can commit.
    let producer = producer(spec, true).map_err(|error| unmade(&error))?;
    let began = Instant::now();
    until_done(began, |left| native::init_transactions(&producer, left))?;
    if adopt_cursor || read_once(spec, transaction, &producer)? == StoredProgress::Absent {
        write_first(transaction, &producer, began)?;
    }
    Ok(format!(
        "topic \"{progress_topic}\": the progress of \"{id}\" begins at the cursor row. Events that this pipeline \
         published since that row come twice"
    ))
}

/// Creates the topic, if it does not exist.
fn create(
    spec: &KafkaSpec,
    transaction: &KafkaTransaction,
    producer: &Producer,
) -> Result<(), ProgressProblem> {
    let topic = &transaction.progress_topic;
    let patience = (ANSWER_MAX, ANSWER_MAX);
    match topics::look_up(producer, topic, patience) {
        Ok(_) => return Ok(()),
        Err(why) if why.does_not_exist() => {}
        Err(why) => return Err(problem(spec, topic, why.code)),
    }
    let replicas = spec.create_topics.as_ref().and_then(|create| create.replication_factor);
    let config = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("segment.bytes", SEGMENT_BYTES),
    ];
    let wanted = CreateTopics {
        partitions: Some(1),
        replication_factor: replicas,
        config: config.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..CreateTopics::default()
    };
    let name = CString::new(topic.as_str()).unwrap_or_default();
    match native::create_topic(producer, &name, &wanted, false, ANSWER_MAX) {
        Ok(()) => {}
        // Another process has created it at the same time.
        Err(why) if why.code == Code::TopicAlreadyExists => {}
        Err(why) => {
            let problem = topics::problem(topic, &why, &spec.brokers);
            return Err(ProgressProblem {
                reason: problem.reason,
                hint: problem.hint.unwrap_or_default(),
            });
        }
    }
    // Not every broker has heard of it yet, and its leader may not lead it yet.
    let began = Instant::now();
    while native::partition_end(producer, &name, PartitionEnd::Last, ANSWER_MAX).is_err()
        && began.elapsed() < SETUP_MAX
    {
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// The answer of one reading, which has time enough.
fn read_once(
    spec: &KafkaSpec,
    transaction: &KafkaTransaction,
    producer: &Producer,
) -> Result<StoredProgress, ProgressProblem> {
    let began = Instant::now();
    let is_wanted = || began.elapsed() < SETUP_MAX;
    read(spec, transaction, producer, &is_wanted).map_err(|problem| {
        problem.unwrap_or_else(|| late("the topic of the progress was not read to its end"))
    })
}

/// Writes the record without a progress, in a transaction.
fn write_first(
    transaction: &KafkaTransaction,
    producer: &Producer,
    began: Instant,
) -> Result<(), ProgressProblem> {
    native::begin_transaction(producer).map_err(|failure| refused(&failure))?;
    let value = value(NONE_YET);
    let record = Record {
        topic: &transaction.progress_topic,
        partition: Some(0),
        key: Some(transaction.id.as_bytes()),
        value: Some(value.as_bytes()),
        timestamp_ms: None,
        headers: &[],
    };
    let name = CString::new(transaction.progress_topic.as_str()).unwrap_or_default();
    native::produce(producer, (&name, Some(0)), PROGRESS, &record)
        .map_err(|code| late(&format!("the first record was not taken: {code}")))?;
    until_done(began, |left| native::commit_transaction(producer, left))
}

/// Repeats a call that continues what it has begun.
fn until_done(
    began: Instant,
    call: impl Fn(Duration) -> Result<(), TransactionFailure>,
) -> Result<(), ProgressProblem> {
    loop {
        match call(POLL) {
            Ok(()) => return Ok(()),
            Err(failure) if failure.continues && began.elapsed() < SETUP_MAX => {
                std::thread::sleep(POLL);
            }
            Err(failure) => return Err(refused(&failure)),
        }
    }
}

fn refused(failure: &TransactionFailure) -> ProgressProblem {
    ProgressProblem {
        reason: format!("no transaction: {}", failure.reason),
        hint: "postrider run reports the reason, and how to fix it".to_owned(),
    }
}

fn late(what: &str) -> ProgressProblem {
    ProgressProblem { reason: what.to_owned(), hint: "run postrider setup again".to_owned() }
}

fn unmade(error: &OpenError) -> ProgressProblem {
    ProgressProblem { reason: Chain(error).to_string(), hint: error.hint() }
}

/// A producer for questions, or the pipeline's own one.
fn producer(spec: &KafkaSpec, in_transactions: bool) -> Result<Polled, OpenError> {
    let mut config = Secrets::read(spec, &Secrets::default()).config(spec)?;
    if !in_transactions {
        config.remove(TRANSACTIONAL_ID);
    }
    // librdkafka's log would appear between the lines of the command.
    config.set_log_level(RDKafkaLogLevel::Emerg);
    config.set("log_level", "0");
    let shared = Arc::new(Shared::new(Mailbox::default()));
    Polled::make(&config, Context::new(shared, Arc::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written_and_no_others() {
        let at = "68F1A2B3 16/B374D848 16/B374D900:5 +16/B374D700:1";
        assert_eq!(parse(&value(at)), Some(StoredProgress::At(at.parse().unwrap())));
        assert_eq!(parse(&value(NONE_YET)), Some(StoredProgress::Begun));
        for text in ["", "1", "1 ", "2 68F1A2B3 16/B374D848", "11 -", "68F1A2B3 16/B374D848"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
