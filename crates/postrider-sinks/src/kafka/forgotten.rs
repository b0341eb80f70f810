//! Brokers that librdkafka has forgotten: they are named to it again.
//!
//! A cluster whose brokers are all fenced (they missed their heartbeats, or have just started) answers on, and names no
//! broker in its metadata. librdkafka lets go of all that are not named, since 2.10, and plans to begin anew with
//! `bootstrap.servers`; where the same answer ends that plan, it asks nobody ever again (its issue 5301, open; seen
//! with 2.12.1: `kafka_outages::brokers_that_name_none_for_a_moment_are_found_again`). From outside that can't be told
//! from brokers that are down, so they are named whenever none answers: where they are known, nothing comes of it.

use super::producers::Producers;
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Pause after the first time that they were named.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// The longest pause. librdkafka keeps the text of each time, and reads all of them when it begins anew: a day of
/// silence adds 1,440.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// When brokers are named again.
pub(super) struct Forgotten {
    brokers: CString,
    /// The next pause, and when this one ends.
    pause: Duration,
    not_before: Option<Instant>,
}

impl Forgotten {
    /// `brokers` as in `sink.brokers`; a text with a NUL in it was refused by then.
    pub(super) fn new(brokers: &str) -> Self {
        Self {
            brokers: CString::new(brokers).unwrap_or_default(),
            pause: PAUSE_MIN,
            not_before: None,
        }
    }

    /// No broker answered, or none acknowledged anything.
    pub(super) fn silence<'p>(
        &mut self,
        producers: impl Iterator<Item = &'p Producers>,
        now: Instant,
    ) {
        if self.not_before.is_none_or(|not_before| now >= not_before) {
            producers.for_each(|producers| producers.add_brokers(&self.brokers));
            self.not_before = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// All is well: the next silence is answered at once.
    pub(super) fn over(&mut self) {
        self.pause = PAUSE_MIN;
        self.not_before = None;
    }
}
