//! Destinations that take no records: since when, and whether one still waits for them.
//!
//! Owns `parking.park_after`. A destination is only here while its broker answers and refuses it: a broker that is gone
//! is nobody's fault and parks nothing.

use super::pipeline::Pipeline;
use super::say;
use std::collections::HashMap;
use std::time::Duration;

/// Destinations in trouble that are remembered; events of further ones wait.
const DESTINATIONS_MAX: usize = 1_000;

/// The destinations in trouble.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    pipeline: String,
    park_after: Option<Duration>,
    /// Since when, by the relay's clock, and whether it is given up.
    since: HashMap<String, (Duration, bool)>,
}

/// What to do with an event of a destination that takes none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// Wait.
    Wait,
    /// Park it; from here on, where `news` says so.
    Park { news: bool },
}

impl Destinations {
    pub(super) fn new(pipeline: &str, park_after: Option<Duration>) -> Self {
        Self { pipeline: pipeline.to_owned(), park_after, since: HashMap::new() }
    }

    /// The destination took a record.
    #[inline]
    pub(super) fn takes(&mut self, topic: &str) {
        if !self.since.is_empty() {
            self.since.remove(topic);
        }
    }

    /// The destination took no record.
    fn takes_none(&mut self, topic: &str, now: Duration) -> Patience {
        let Some(park_after) = self.park_after else { return Patience::Wait };
        if let Some((since, given_up)) = self.since.get_mut(topic) {
            if now.saturating_sub(*since) < park_after {
                return Patience::Wait;
            }
            return Patience::Park { news: !std::mem::replace(given_up, true) };
        }
        if self.since.len() < DESTINATIONS_MAX {
            self.since.insert(topic.to_owned(), (now, false));
        }
        Patience::Wait
    }

    /// Whether an event of this destination, which took it not, is parked.
    pub(super) fn lost(&mut self, topic: &str, now: Duration) -> bool {
        let patience = self.takes_none(topic, now);
        if patience == (Patience::Park { news: true }) {
            say::destination_given_up(&self.pipeline, topic, self.park_after);
        }
        patience != Patience::Wait
    }

    /// Whether the pipeline goes on without this destination.
    fn is_given_up(&self, topic: &str) -> bool {
        self.since.get(topic).is_some_and(|(_, given_up)| *given_up)
    }
}

impl Pipeline {
    /// The sink is in trouble. A destination that nothing but letters or parked events wait for holds up nobody.
    pub(super) fn sink_down(&mut self, reason: &str, hint: Option<&str>, topic: Option<&str>) {
        let holds_up_nobody = topic.is_some_and(|topic| {
            self.spec.dead_topic.as_deref() == Some(topic) || self.destinations.is_given_up(topic)
        });
        if holds_up_nobody {
            // It did, until it was given up.
            self.tell.sink = None;
            say::destination_down(self, reason, hint);
        } else {
            say::sink_down(self, reason, hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_is_given_up_after_its_time_and_taken_back_with_its_first_record() {
        let seconds = Duration::from_secs;
        let mut destinations = Destinations::new("p", Some(seconds(10)));
        assert_eq!(destinations.takes_none("a", seconds(1)), Patience::Wait);
        assert_eq!(destinations.takes_none("a", seconds(10)), Patience::Wait);
        assert_eq!(destinations.takes_none("b", seconds(11)), Patience::Wait, "each by itself");
        assert!(!destinations.is_given_up("a"));
        assert_eq!(destinations.takes_none("a", seconds(11)), Patience::Park { news: true });
        assert_eq!(destinations.takes_none("a", seconds(12)), Patience::Park { news: false });
        assert!(destinations.is_given_up("a") && !destinations.is_given_up("b"));
        destinations.takes("a");
        assert_eq!(destinations.takes_none("a", seconds(50)), Patience::Wait, "anew");
        let mut never = Destinations::new("p", None);
        assert_eq!(never.takes_none("a", seconds(1)), Patience::Wait);
        assert_eq!(never.takes_none("a", seconds(1_000_000)), Patience::Wait);
    }
}
