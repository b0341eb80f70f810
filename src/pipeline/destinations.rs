//! Destinations that take no records: since when, and whether one still waits for them.
//!
//! Owns `parking.park_after`. A destination is only here while its broker answers and refuses it: while no
//! broker answers, nothing is parked.
//!
//! A destination that took records before is waited for: its trouble is its own, and most events may be for it. One
//! that this process has never known may be a misspelt name in one row, so its events are parked, and all others flow.
//! That is only so where another destination takes records. Where none is known to, the cluster may be the wrong one,
//! or the topics are still to be made: the pipeline waits for [`UNPROVEN_PAUSE`], and then looks behind at most
//! [`UNPROVEN_MAX`] events for a destination that does.

use super::lifecycle::Pipeline;
use super::log;
use super::trouble::Trouble;
use crate::record::has_empty_part;
use crate::relay::OnPoison;
use std::collections::HashMap;
use std::time::Duration;

/// Destinations in trouble that are remembered; events of further ones wait.
const DESTINATIONS_MAX: usize = 1_000;

/// How long the first event whose destination is missing is waited for, while no destination has taken a record.
const UNPROVEN_PAUSE: Duration = Duration::from_secs(30);

/// Events that are parked for missing destinations while no destination has taken a record.
const UNPROVEN_MAX: u32 = 100;

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
    /// A destination of this pipeline has taken a record.
    proven: bool,
    /// Before that: since when a missing destination is waited for, and events that were parked for such.
    unproven: (Option<Duration>, u32),
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
        if !self.proven || !self.since.is_empty() || self.awaited.is_some() {
            self.awaited = None;
            self.took(topic);
        }
    }

    /// The destination took a record.
    pub(super) fn took(&mut self, topic: &str) {
        self.since.remove(topic);
        self.proven = true;
        self.unproven = (None, 0);
    }

    /// Whether events of a destination that was never known are parked now, without a wait for it.
    pub(super) fn parks_missing(&mut self, topic: &str, now: Duration) -> bool {
        if self.proven {
            return true;
        }
        let (since, parked) = &mut self.unproven;
        let since = *since.get_or_insert(now);
        // An empty part is in doubt even where nothing is known: no destination is meant to be called so.
        let waited = has_empty_part(topic) || now.saturating_sub(since) >= UNPROVEN_PAUSE;
        waited && *parked < UNPROVEN_MAX
    }

    /// Whether the event at hand, which its destination did not take, is parked. `may_park`: the destination was never
    /// known, and its events may be parked for that.
    pub(super) fn parks(&mut self, topic: &str, may_park: bool, now: Duration) -> bool {
        if may_park && self.parks_missing(topic, now) {
            self.unproven.1 = self.unproven.1.saturating_add(u32::from(!self.proven));
            return true;
        }
        self.lost(topic, now)
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
            log::destination_given_up(&self.pipeline, topic, self.park_after);
        }
        patience != Patience::Wait
    }
}

impl Pipeline {
    /// The sink is in trouble. A destination that nothing but letters and parked events wait for holds up nobody, nor
    /// does one whose event at hand is about to be parked. Of the topic also whether it was never known.
    pub(super) fn sink_down(
        &mut self,
        now: Duration,
        reason: &str,
        hint: Option<&str>,
        topic: Option<(&str, bool)>,
    ) {
        let stops = self.spec.parking.on_poison == OnPoison::Stop;
        let parks = topic.is_some_and(|(topic, missing)| {
            missing && !stops && self.destinations.parks_missing(topic, now)
        });
        let topic = topic.map(|(topic, _)| topic);
        if let Some(topic) = topic.filter(|topic| parks || !self.destinations.is_awaited(topic)) {
            if self.destinations.told.as_deref() == Some(topic) {
                // The intake waited for this topic until it was given up: that report ends.
                (self.tell.sink, self.destinations.told) = (None, None);
            }
            log::destination_down(self, (topic, reason), hint);
        } else {
            self.destinations.told = topic.map(str::to_owned);
            log::sink_down(self, topic, reason, hint);
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
            log::sink_up(self, topic);
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
    fn missing_destination_parks_at_once_where_another_takes_records() {
        let mut destinations = Destinations::new("p", None);
        destinations.takes("good");
        for topic in ["misspelt", "outbox.event.", "good.2"] {
            assert!(destinations.parks_missing(topic, Duration::ZERO), "{topic}");
        }
    }

    /// Nothing is known to be well: a while is waited, and then a few events are looked behind.
    #[test]
    fn missing_destination_is_waited_for_where_no_other_is_known_to_take_records() {
        let mut destinations = Destinations::new("p", None);
        assert!(!destinations.parks_missing("a", Duration::from_secs(1)));
        assert!(!destinations.parks_missing("a", Duration::from_secs(30)));
        assert!(destinations.parks_missing("outbox.event.", Duration::from_secs(30)), "empty part");
        for parked in 0..UNPROVEN_MAX {
            assert!(destinations.parks("a", true, Duration::from_secs(31)), "{parked}");
        }
        assert!(!destinations.parks_missing("a", Duration::from_secs(1_000)), "enough looked for");
        assert!(!destinations.parks_missing("outbox.event.", Duration::from_secs(1_000)));
        destinations.takes("good");
        assert!(destinations.parks_missing("a", Duration::from_secs(1_000)));
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
