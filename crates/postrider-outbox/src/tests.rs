//! Rows and messages to records.

#![expect(
    clippy::needless_raw_string_hashes,
    reason = "expect-test writes its snapshots with them"
)]

mod debezium;
mod fuzz;
mod headers;
mod layouts;
mod message;
mod payload;
mod poison;
mod properties;
mod routing;
mod spec;
mod support;
mod tables;
mod time;
