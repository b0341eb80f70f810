//! Postrider carries events from a PostgreSQL outbox table to a message broker.
//!
//! The map is `ARCHITECTURE.md`. Modules are listed by layer; what each may use is in `LAYERS` of
//! `tests/it/tidy/layers.rs`, which the tidy test enforces.

pub use pg_replication::{lsn, pgoutput, secret_file};
pub use postrider_core::{backoff, error, event, finding, parked, record, status, zone};
pub use postrider_outbox as outbox;
pub use postrider_postgres as postgres;
pub use postrider_relay::{ack, relay};
pub use postrider_sinks as sink;

pub mod admin;
pub mod metrics;
pub mod pipeline;
pub mod replay;

pub mod cli;
pub mod config;
pub mod demo;
pub mod init;
