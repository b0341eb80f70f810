//! The name under which a sink publishes to streams.

use crate::rabbitmq::spec::RabbitSpec;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};

/// Bytes of the longest reference of a publisher that RabbitMQ takes.
const REFERENCE_MAX: usize = 255;

/// Random words of 64 bits at the end of a reference.
const WORDS: u64 = 2;

/// A reference that no other process and no other sink has: RabbitMQ confirms and drops what comes under a reference
/// with an id that is not above the last one, so two publishers with one reference would lose each other's events.
pub(super) fn new_reference(spec: &RabbitSpec) -> String {
    let mut token = String::new();
    for word in 0..WORDS {
        // The hasher's key is random, from the operating system.
        let random = RandomState::new().hash_one((word, std::process::id()));
        // Writing to a string does not fail.
        write!(token, "{random:016x}").unwrap_or_default();
    }
    let name = &spec.publisher;
    let end = name.floor_char_boundary(REFERENCE_MAX - token.len() - 1);
    format!("{}.{token}", name.get(..end).unwrap_or_default())
}
