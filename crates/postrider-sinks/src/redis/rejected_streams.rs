//! Streams that have refused an event, until they accept one. A look-up may find such a stream good all the same, so it
//! is opened at growing intervals.

use crate::destinations::DESTINATIONS_MAX;
use postrider_core::backoff::Backoff;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The shortest and the longest time until a stream that has refused an event is tried again.
const REJECTED_MIN: Duration = Duration::from_secs(1);
const REJECTED_MAX: Duration = Duration::from_mins(5);

/// The streams by name.
#[derive(Default)]
pub(super) struct RejectedStreams {
    streams: BTreeMap<String, RejectedStream>,
}

struct RejectedStream {
    reason: String,
    hint: Option<String>,
    backoff: Backoff,
    opens_at: Instant,
}

impl RejectedStreams {
    /// The stream has refused an event.
    pub(super) fn rejected(&mut self, topic: &str, reason: &str, hint: Option<&String>) {
        if self.streams.len() >= DESTINATIONS_MAX && !self.streams.contains_key(topic) {
            return;
        }
        let now = Instant::now();
        let new = || RejectedStream {
            reason: String::new(),
            hint: None,
            backoff: Backoff::new(REJECTED_MIN, REJECTED_MAX),
            opens_at: now,
        };
        let rejected = self.streams.entry(topic.to_owned()).or_insert_with(new);
        rejected.opens_at = now + rejected.backoff.next(fastrand::f64());
        (rejected.reason, rejected.hint) = (reason.to_owned(), hint.cloned());
    }

    /// Why the stream is not opened yet, with a hint; `None` if it may be tried.
    pub(super) fn why_closed(&self, topic: &str) -> Option<(String, Option<String>)> {
        let rejected = self.streams.get(topic).filter(|it| it.opens_at > Instant::now())?;
        Some((rejected.reason.clone(), rejected.hint.clone()))
    }

    /// Whether streams have refused events.
    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// The stream has accepted an event.
    pub(super) fn accepted(&mut self, topic: &str) {
        self.streams.remove(topic);
    }
}
