//! The keys of streams of Redis as a source of messages.

use crate::message::SOURCE_BYTES_MAX;
use postrider_core::sink::{Keys, Shown};
use postrider_sinks::redis::{RedisConfig, RedisStart, StreamsWanted};

/// The table of the keys.
pub(super) const TABLE: &str = "redis";

/// Streams of an intake.
const STREAMS_MAX: usize = 100;

/// `[inboxes.NAME.source.redis]`.
#[derive(Clone, Debug)]
pub struct RedisSourceConfig {
    /// The servers and the login.
    pub access: RedisConfig,
    /// The streams, and the group.
    pub streams: StreamsWanted,
}

impl RedisSourceConfig {
    /// Reads the keys, and reports mistakes. `name` is that of the intake.
    pub fn read(keys: &dyn Keys, name: &str) -> Self {
        let table = keys.table(TABLE);
        let access = RedisConfig::read_source(&*table);
        let streams = table.required("streams", "orders, payments").unwrap_or_default();
        let mut streams: Vec<String> = streams
            .split(',')
            .map(|stream| stream.trim().to_owned())
            .filter(|stream| !stream.is_empty())
            .collect();
        streams.sort();
        streams.dedup();
        let is_short = |stream: &String| stream.len() <= SOURCE_BYTES_MAX;
        if streams.len() > STREAMS_MAX || !streams.iter().all(is_short) {
            let rule = format!(
                "expected at most {STREAMS_MAX} names of streams with commas between them, each of at most \
                 {SOURCE_BYTES_MAX} bytes"
            );
            table.error("streams", rule);
        }
        let group = table.text("group").filter(|group| !group.is_empty());
        let group = group.unwrap_or_else(|| format!("postrider-inbox-{name}"));
        if group.len() > SOURCE_BYTES_MAX {
            table.error("group", format!("expected at most {SOURCE_BYTES_MAX} bytes"));
        }
        let starts = [RedisStart::Earliest, RedisStart::Latest];
        let start = table.word("start", &starts.map(RedisStart::name), &[]);
        table.finish();
        let start = starts.get(start).copied().unwrap_or_default();
        Self { access, streams: StreamsWanted { streams, group, start } }
    }

    /// Keys and values, for `postrider config show`.
    pub fn values(&self) -> Vec<Shown> {
        let mut rows = self.access.source_values();
        let text = |key: &str, value: &str| Shown { table: TABLE, ..Shown::text(key, value) };
        let StreamsWanted { streams, group, start } = &self.streams;
        let own = [
            text("streams", &streams.join(", ")),
            text("group", group),
            text("start", start.name()),
        ];
        // Behind them may be a table of its own.
        let at = rows.iter().position(|row| row.table != TABLE).unwrap_or(rows.len());
        rows.splice(at..at, own);
        rows
    }
}
