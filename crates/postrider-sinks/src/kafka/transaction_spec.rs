//! The keys of a Kafka sink that publishes in transactions.

use crate::topic::is_topic_name;
use postrider_core::sink::{Keys, Shown, ShownValue, SinkError, TransactionLimits};
use postrider_core::units::{ShowDuration, ShowSize};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The table below `[pipelines.NAME.sink]`.
const TABLE: &str = "transaction";

/// The words of `delivery` and of `fencing`.
const DELIVERY: [&str; 2] = ["at-least-once", "exactly-once"];
const FENCING: [&str; 2] = ["none", "transactional"];

/// The words of `boundary`.
const BOUNDARY: [&str; 2] = ["interval", "source"];

/// Bounds of a transaction.
const COMMIT_INTERVAL: Duration = Duration::from_millis(20);
const COMMIT_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(10);
const EVENTS: u32 = 10_000;
const EVENTS_MAX: u32 = 100_000;
const BYTES: u64 = 8 << 20;
const BYTES_RANGE: RangeInclusive<u64> = 64 << 10..=64 << 20;

/// After this time the brokers abort a transaction whose process has ended. Consumers that read committed records wait
/// for that; a new process ends the transaction at once.
const TIMEOUT: Duration = Duration::from_secs(15);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(15);

const PROGRESS_TOPIC: &str = "postrider.progress";

/// Bytes of a transactional id: Kafka stores its length in 16 bits, and librdkafka takes no zero byte.
const ID_BYTES_MAX: usize = 1_000;

/// What is promised, and how the events are published for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionKeys {
    exactly_once: bool,
    /// `fencing = "transactional"`.
    fences: bool,
    limits: TransactionLimits,
    timeout: Duration,
    progress_topic: String,
    id: String,
    /// The database of the source, which is a part of the transactional id.
    source: String,
}

/// What the producer of a sink that publishes in transactions is opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaTransaction {
    /// `transactional.id`, and the key of the progress records.
    pub id: String,
    /// The compacted topic of the progress records.
    pub progress_topic: String,
    /// `transaction.timeout.ms`.
    pub timeout: Duration,
    /// The bounds of a transaction.
    pub limits: TransactionLimits,
}

impl TransactionKeys {
    /// Reads `delivery`, `fencing` and the table.
    pub(super) fn read(keys: &dyn Keys) -> Self {
        let exactly_once = keys.word("delivery", &DELIVERY, &[]) == 1;
        let fences = keys.word("fencing", &FENCING, &[]) == 1;
        let table = keys.table(TABLE);
        let timeout = table.duration("timeout", TIMEOUT, TIMEOUTS);
        let topic = table.text("progress_topic").filter(|topic| !topic.is_empty());
        let read = Self {
            exactly_once,
            fences,
            limits: TransactionLimits {
                interval: table.duration("commit_interval", COMMIT_INTERVAL, COMMIT_INTERVALS),
                // The bound fits a usize on every platform we build for.
                records_max: table.number("events_max", EVENTS, 1..=EVENTS_MAX) as usize,
                bytes_max: table.size("bytes_max", BYTES, BYTES_RANGE),
                // The brokers abort a transaction after `timeout`.
                whole_for: (table.word("boundary", &BOUNDARY, &[]) == 1).then_some(timeout / 2),
            },
            timeout,
            progress_topic: topic.unwrap_or_else(|| PROGRESS_TOPIC.to_owned()),
            id: table.text("id").unwrap_or_default(),
            source: String::new(),
        };
        table.finish();
        read
    }

    /// The same for a pipeline that reads this database.
    pub(super) fn of_source(&self, database: &str) -> Self {
        Self { source: database.to_owned(), ..self.clone() }
    }

    /// Whether events are published in transactions.
    const fn is_on(&self) -> bool {
        self.exactly_once || self.fences
    }

    /// When a transaction is committed; `None` without transactions.
    pub(super) fn limits(&self) -> Option<TransactionLimits> {
        self.is_on().then_some(self.limits)
    }

    /// Whether consumers that read committed records see each event once, and the pipeline promises it.
    pub(super) const fn is_exactly_once(&self) -> bool {
        self.exactly_once
    }

    /// What the producer of this pipeline is opened with; `None` without transactions.
    pub(super) fn spec(&self, pipeline: &str) -> Option<Box<KafkaTransaction>> {
        let id = if self.id.is_empty() {
            let parts = ["postrider", &self.source, pipeline];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
        } else {
            self.id.clone()
        };
        let transaction = KafkaTransaction {
            id,
            progress_topic: self.progress_topic.clone(),
            timeout: self.timeout,
            limits: self.limits,
        };
        self.is_on().then(|| Box::new(transaction))
    }

    /// `delivery` and `fencing`, in the sink's own table.
    pub(super) fn promise(&self) -> [Shown; 2] {
        [
            Shown::text("delivery", DELIVERY[usize::from(self.exactly_once)]),
            Shown::text("fencing", FENCING[usize::from(self.fences)]),
        ]
    }

    /// The table, in the order of the reference configuration.
    pub(super) fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown { table: TABLE, ..Shown::text(key, value) };
        let events = ShownValue::Number(self.limits.records_max as u64);
        vec![
            text("commit_interval", &ShowDuration(self.limits.interval).to_string()),
            Shown { table: TABLE, key: "events_max".to_owned(), value: events },
            text("bytes_max", &ShowSize(self.limits.bytes_max).to_string()),
            text("boundary", BOUNDARY[usize::from(self.limits.whole_for.is_some())]),
            text("timeout", &ShowDuration(self.timeout).to_string()),
            text("progress_topic", &self.progress_topic),
            text("id", &self.id),
        ]
    }

    /// The mistakes that can be found without a broker. `producers`: the number of producers.
    pub(super) fn mistakes(&self, producers: u32) -> Vec<SinkError> {
        let mut errors = Vec::new();
        let mut wrong = |key: &[&str], what: &str, hint: &str| {
            errors.push(SinkError::new(what, hint).at(key));
        };
        if !is_topic_name(self.progress_topic.as_bytes()) {
            wrong(
                &[TABLE, "progress_topic"],
                "is not a name that Kafka allows for a topic",
                "use 1 to 249 of A-Z a-z 0-9 . _ -",
            );
        }
        if self.id.len() > ID_BYTES_MAX || self.id.contains('\0') {
            wrong(
                &[TABLE, "id"],
                "is no transactional id",
                "use at most 1000 bytes, none of them zero",
            );
        }
        if !self.is_on() {
            return errors;
        }
        if producers > 1 {
            wrong(
                &["producers"],
                "a transaction has one producer, and several would commit at different times",
                "set producers = 1, or delivery = \"at-least-once\" with fencing = \"none\"",
            );
        }
        if self.timeout < 2 * self.limits.interval {
            wrong(
                &[TABLE, "timeout"],
                "the brokers would abort transactions before they are committed",
                "set it to at least twice commit_interval",
            );
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> TransactionKeys {
        TransactionKeys {
            exactly_once: true,
            fences: false,
            limits: TransactionLimits {
                records_max: EVENTS as usize,
                bytes_max: BYTES,
                interval: COMMIT_INTERVAL,
                whole_for: None,
            },
            timeout: TIMEOUT,
            progress_topic: PROGRESS_TOPIC.to_owned(),
            id: String::new(),
            source: String::new(),
        }
    }

    #[test]
    fn the_transactional_id_names_database_and_pipeline_unless_it_is_set() {
        let id = |keys: &TransactionKeys| keys.spec("orders").unwrap().id;
        assert_eq!(id(&keys()), "postrider.orders");
        assert_eq!(id(&keys().of_source("app")), "postrider.app.orders");
        let set = TransactionKeys { id: "mine".to_owned(), ..keys() };
        assert_eq!(id(&set.of_source("app")), "mine");
    }

    #[test]
    fn transactions_are_used_for_exactly_once_and_for_fencing() {
        for (exactly_once, fences, on) in
            [(false, false, false), (true, false, true), (false, true, true), (true, true, true)]
        {
            let keys = TransactionKeys { exactly_once, fences, ..keys() };
            assert_eq!(keys.limits().is_some(), on, "{exactly_once} {fences}");
            assert_eq!(keys.spec("orders").is_some(), on, "{exactly_once} {fences}");
        }
    }

    #[test]
    fn what_a_transaction_can_not_have_is_refused_at_its_key() {
        let at = |keys: &TransactionKeys, producers| {
            let errors = keys.mistakes(producers);
            errors.iter().map(|error| error.key().join(".")).collect::<Vec<_>>()
        };
        assert!(at(&keys(), 1).is_empty());
        assert_eq!(at(&keys(), 2), ["producers"]);
        let off = TransactionKeys { exactly_once: false, ..keys() };
        assert!(at(&off, 2).is_empty());
        let name = TransactionKeys { progress_topic: "a b".to_owned(), ..off };
        assert_eq!(at(&name, 1), ["transaction.progress_topic"]);
        let short = TransactionKeys { timeout: Duration::from_millis(39), ..keys() };
        assert_eq!(at(&short, 1), ["transaction.timeout"]);
        let id = TransactionKeys { id: "\0".to_owned(), ..keys() };
        assert_eq!(at(&id, 1), ["transaction.id"]);
    }
}
