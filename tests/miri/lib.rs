//! `lsn`, `ack` and `pgoutput` with the words they are made of, and nothing else.
#![allow(dead_code, unreachable_pub, reason = "their callers are not here")]

#[path = "../../src/ack/mod.rs"]
pub mod ack;
#[path = "../../src/event.rs"]
pub mod event;
#[cfg(test)]
#[path = "../../src/fuzz.rs"]
mod fuzz;
#[path = "../../src/lsn.rs"]
pub mod lsn;
#[path = "../../src/pgoutput/mod.rs"]
pub mod pgoutput;
#[path = "../../src/record.rs"]
pub mod record;
