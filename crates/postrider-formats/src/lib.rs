//! The forms in which events are published: CloudEvents, schemas, claim check.
//!
//! A format stands between the pipeline and its sink: [`FormattedConfig`] is a [`SinkConfig`] around another one, and
//! the sink that it opens changes each record before the other sink takes it. So everything that publishes through a
//! sink has the format: the stream, polling, retries, dead letters, repairs, replays. What is stored of an event (parked
//! rows, `postrider parked show`) is the event as the application wrote it.
//!
//! A format is a list of [steps](step::Step), in this order: schemas, claim check, CloudEvents. With format `raw`, and
//! without claim check, there is no step and no such sink: the record is passed on untouched.
//!
//! This crate knows no relay and no source (held by `tests/it/tidy/layers.rs`).
//!
//! [`SinkConfig`]: postrider_sinks::SinkConfig

mod claim_check;
mod cloud_events;
mod draft;
mod format_config;
mod formatted_config;
mod formatted_sink;
#[cfg(feature = "https")]
mod https;
mod step;
mod words;

pub use format_config::FormatConfig;
pub use formatted_config::FormattedConfig;
