//! The keys of a stream of NATS JetStream as a source of messages.

use crate::message::SOURCE_BYTES_MAX;
use postrider_core::sink::{Keys, Shown};
use postrider_core::units::ShowDuration;
use postrider_sinks::nats::{ConsumerWanted, NatsConfig, NatsStart};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The table of the keys.
pub(super) const TABLE: &str = "nats";

const ACK_WAIT: Duration = Duration::from_secs(10);
const ACK_WAITS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(1);

/// Messages that are delivered and not acknowledged, at most.
const ACK_PENDING_MAX: usize = 5_000;

/// `[inboxes.NAME.source.nats]`.
#[derive(Clone, Debug)]
pub struct NatsSourceConfig {
    /// The servers, the login, and the stream.
    pub access: NatsConfig,
    /// The consumer.
    pub consumer: ConsumerWanted,
}

impl NatsSourceConfig {
    /// Reads the keys, and reports mistakes. `name` is that of the intake.
    pub fn read(keys: &dyn Keys, name: &str) -> Self {
        let table = keys.table(TABLE);
        let access = NatsConfig::read_source(&*table);
        if access.stream.len() > SOURCE_BYTES_MAX {
            table.error("stream", format!("expected at most {SOURCE_BYTES_MAX} bytes"));
        }
        let consumer = table.text("consumer").filter(|consumer| !consumer.is_empty());
        let consumer = consumer.unwrap_or_else(|| format!("postrider-inbox-{name}"));
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b".*>/\\".contains(&byte);
        if consumer.len() > SOURCE_BYTES_MAX || !consumer.bytes().all(is_plain) {
            let rule = "expected the name of a consumer: no spaces, and none of . * > / \\";
            table.error("consumer", rule.to_owned());
        }
        let subjects = table.text("subjects").unwrap_or_default();
        let starts = [NatsStart::Earliest, NatsStart::Latest];
        let start = table.word("start", &starts.map(NatsStart::name), &[]);
        let ack_wait = table.duration("ack_wait", ACK_WAIT, ACK_WAITS);
        table.finish();
        let consumer = ConsumerWanted {
            name: consumer,
            subjects: subjects
                .split(',')
                .map(|subject| subject.trim().to_owned())
                .filter(|subject| !subject.is_empty())
                .collect(),
            start: starts.get(start).copied().unwrap_or_default(),
            ack_wait,
            ack_pending_max: ACK_PENDING_MAX,
        };
        Self { access, consumer }
    }

    /// Keys and values, for `postrider config show`.
    pub fn values(&self) -> Vec<Shown> {
        let mut rows = self.access.source_values();
        let text = |key: &str, value: &str| Shown { table: TABLE, ..Shown::text(key, value) };
        let consumer = &self.consumer;
        rows.push(text("consumer", &consumer.name));
        rows.push(text("subjects", &consumer.subjects.join(", ")));
        rows.push(text("start", consumer.start.name()));
        rows.push(text("ack_wait", &ShowDuration(consumer.ack_wait).to_string()));
        rows
    }
}
