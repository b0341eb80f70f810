//! Rows to records. Each test builds the bytes of pgoutput messages, so the decoder is tested as well.

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
mod recorded;
mod relations;
mod routing;
mod spec;
mod support;
mod time;
