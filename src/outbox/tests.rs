//! Rows in, records out: each test builds the bytes of real messages, so the decoder is tested along.

mod debezium;
mod headers;
mod layouts;
mod message;
mod payload;
mod poison;
mod recorded;
mod relations;
mod routing;
mod spec;
mod support;
mod time;
