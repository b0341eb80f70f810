//! Postrider carries events from a PostgreSQL outbox table to a message broker.
//!
//! The map is `ARCHITECTURE.md`. Modules are listed by layer; what each may use is in `LAYERS` of
//! `tests/it/tidy/layers.rs`, which the tidy test enforces.

// Words.
pub mod error;
pub mod event;
pub mod finding;
pub mod lsn;
pub mod parked;
pub mod record;
pub mod secret_file;
pub mod status;
pub mod zone;

// Pure.
pub mod ack;
pub mod backoff;
pub mod outbox;
pub mod pgoutput;

// Core.
pub mod relay;

// Adapters.
pub mod postgres;
pub mod sink;

// Services.
pub mod admin;
pub mod driver;
pub mod metrics;
pub mod replay;

// Test only.
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod sim;

// Edge.
pub mod cli;
pub mod config;
pub mod demo;
pub mod init;
