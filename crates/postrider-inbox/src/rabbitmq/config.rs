//! The keys of a queue of RabbitMQ as a source of messages.

use crate::message::SOURCE_BYTES_MAX;
use postrider_core::sink::{Keys, Shown, ShownValue};
use postrider_sinks::rabbitmq::{QueueWanted, RabbitConfig};

/// The table of the keys.
pub(super) const TABLE: &str = "rabbitmq";

const PREFETCH: u32 = 1_000;
const PREFETCH_MAX: u32 = 10_000;

/// `[inboxes.NAME.source.rabbitmq]`.
#[derive(Clone, Debug)]
pub struct RabbitSourceConfig {
    /// The servers and the login.
    pub access: RabbitConfig,
    /// The queue.
    pub queue: QueueWanted,
}

impl RabbitSourceConfig {
    /// Reads the keys, and reports mistakes.
    pub fn read(keys: &dyn Keys) -> Self {
        let table = keys.table(TABLE);
        let access = RabbitConfig::read_source(&*table);
        let queue = table.required("queue", "orders").unwrap_or_default();
        if queue.len() > SOURCE_BYTES_MAX {
            table.error("queue", format!("expected at most {SOURCE_BYTES_MAX} bytes"));
        }
        let prefetch = table.number("prefetch", PREFETCH, 1..=PREFETCH_MAX);
        table.finish();
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
        Self { access, queue: QueueWanted { queue, prefetch } }
    }

    /// Keys and values, for `postrider config show`.
    pub fn values(&self) -> Vec<Shown> {
        let mut rows = self.access.source_values();
        let text = |key: &str, value: &str| Shown { table: TABLE, ..Shown::text(key, value) };
        let QueueWanted { queue, prefetch } = &self.queue;
        rows.push(text("queue", queue));
        let value = ShownValue::Number(u64::from(*prefetch));
        rows.push(Shown { table: TABLE, key: "prefetch".to_owned(), value });
        rows
    }
}
