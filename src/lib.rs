//! Postrider publishes the events of a PostgreSQL outbox table to a message broker.
//!
//! `ARCHITECTURE.md` describes the crates and modules. Which module may use which is in `tests/it/tidy/layers.rs`, a
//! test that fails on any other dependency.

pub use postrider_core::{
    backoff, delta, error, event, finding, intake_status, offset, outbox_rows, parked,
    publications, record, row, row_buffer, source, status, store, timestamp, units, zone,
};
pub use postrider_formats as formats;
pub use postrider_inbox as inbox;
pub use postrider_outbox as outbox;
pub use postrider_postgres as postgres;
pub use postrider_relay::{ack, claims, engine, published, relay};
pub use postrider_sinks as sink;
pub use secret_file;

#[cfg(feature = "admin")]
pub mod admin;
#[cfg(feature = "admin")]
mod connections;
mod health;
mod maintenance;
pub mod metrics;
pub mod pipeline;
pub mod replay;

#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod init;
#[cfg(feature = "kafka")]
pub mod intake;
