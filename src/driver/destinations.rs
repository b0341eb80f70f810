//! Destinations that take no records: since when, and whether one still waits for them.
//!
//! Owns `parking.park_after`. A destination is only here while its broker answers and refuses it: a broker that is gone
//! is nobody's fault and parks nothing.

use super::pipeline::Pipeline;
use super::say;
use super::trouble::Trouble;
use std::collections::HashMap;
use std::time::Duration;

/// Destinations in trouble that are remembered; events of further ones wait.
const DESTINATIONS_MAX: usize = 1_000;

/// The destinations in trouble, and the one that the intake waits for.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    pipeline: String,
    park_after: Option<Duration>,
    /// Since when, by the relay's clock, and whether it is given up.
    since: HashMap<String, (Duration, bool)>,
    /// The event at hand has nowhere to go, and all behind it wait.
    awaited: Option<String>,
    /// What is told of the sink is about this one alone.
    told: Option<String>,
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
        Self { pipeline: pipeline.to_owned(), park_after, ..Self::default() }
    }

    /// The destination took the event at hand.
    #[inline]
    pub(super) fn takes(&mut self, topic: &str) {
        if !self.since.is_empty() || self.awaited.is_some() {
            self.awaited = None;
            self.took(topic);
        }
    }

    /// The destination took a record.
    pub(super) fn took(&mut self, topic: &str) {
        self.since.remove(topic);
    }

    /// The event at hand waits for this destination, or for none.
    pub(super) fn awaits(&mut self, topic: Option<&str>) {
        if self.awaited.as_deref() != topic {
            self.awaited = topic.map(str::to_owned);
        }
    }

    fn is_awaited(&self, topic: &str) -> bool {
        self.awaited.as_deref() == Some(topic)
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
}

impl Pipeline {
    /// The sink is in trouble. A destination that nothing but letters and parked events wait for holds up nobody.
    pub(super) fn sink_down(&mut self, reason: &str, hint: Option<&str>, topic: Option<&str>) {
        if let Some(topic) = topic.filter(|topic| !self.destinations.is_awaited(topic)) {
            if self.destinations.told.as_deref() == Some(topic) {
                // It did, until it was given up.
                (self.tell.sink, self.destinations.told) = (None, None);
            }
            say::destination_down(self, (topic, reason), hint);
        } else {
            self.destinations.told = topic.map(str::to_owned);
            say::sink_down(self, reason, hint);
        }
    }

    /// It is out of it again: this destination, or the broker.
    pub(super) fn sink_up(&mut self, topic: Option<&str>) {
        if let Some(topic) = topic {
            self.destinations.took(topic);
            self.tell.destinations.remove(topic);
        }
        if self.destinations.told.as_deref() == topic {
            self.destinations.told = None;
            say::sink_up(self);
        }
    }

    /// What keeps the intake from the sink: the broker, or the destination of the event at hand.
    pub(super) fn sink_trouble(&self) -> Option<&Trouble> {
        let Destinations { told, awaited, .. } = &self.destinations;
        self.tell.sink.as_ref().filter(|_| told.is_none() || told == awaited)
    }

    /// Whether no broker takes anything.
    pub(super) fn broker_is_down(&self) -> bool {
        self.tell.sink.is_some() && self.destinations.told.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_holds_up_the_intake_while_the_event_at_hand_waits_for_it() {
        let mut destinations = Destinations::new("p", None);
        destinations.awaits(Some("a"));
        assert!(destinations.is_awaited("a") && !destinations.is_awaited("b"));
        destinations.took("a");
        assert!(destinations.is_awaited("a"), "a parked event was taken");
        destinations.takes("c");
        assert!(!destinations.is_awaited("a"), "the intake goes on");
    }

    #[test]
    fn destination_is_given_up_after_its_time_and_taken_back_with_its_first_record() {
        let seconds = Duration::from_secs;
        let mut destinations = Destinations::new("p", Some(seconds(10)));
        assert_eq!(destinations.takes_none("a", seconds(1)), Patience::Wait);
        assert_eq!(destinations.takes_none("a", seconds(10)), Patience::Wait);
        assert_eq!(destinations.takes_none("b", seconds(11)), Patience::Wait, "each by itself");
        assert_eq!(destinations.takes_none("a", seconds(11)), Patience::Park { news: true });
        assert_eq!(destinations.takes_none("a", seconds(12)), Patience::Park { news: false });
        destinations.takes("a");
        assert_eq!(destinations.takes_none("a", seconds(50)), Patience::Wait, "anew");
        let mut never = Destinations::new("p", None);
        assert_eq!(never.takes_none("a", seconds(1)), Patience::Wait);
        assert_eq!(never.takes_none("a", seconds(1_000_000)), Patience::Wait);
    }
}
