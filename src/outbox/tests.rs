//! Rows in, records out: each test builds the bytes of real messages, so the decoder is tested along.

mod layouts;
mod support;
