//! Destinations that accept no records: since when, and whether to wait for them.
//!
//! Implements `parking.park_after`. A destination is listed here only while its broker answers and refuses it: while no
//! broker answers, nothing is parked.
//!
//! The pipeline waits for a destination that accepted records before, because most events may be for it. A destination
//! that this process has never known may be a misspelt name in one row, so its events are parked and all others are
//! published. That is so only if another destination accepts records. Otherwise the cluster may be the wrong one, or
//! the topics may not be created yet: the pipeline waits for [`UNPROVEN_PAUSE`], and then parks at most
//! [`UNPROVEN_MAX`] events while it tries to find a destination that accepts records.

use super::health::Condition;
use super::lifecycle::Pipeline;
use super::log;
use crate::record::has_empty_part;
use crate::relay::OnPoison;
use std::collections::HashMap;
use std::time::Duration;

/// Failing destinations that are remembered. Events of further ones wait.
const DESTINATIONS_MAX: usize = 1_000;

/// How long the pipeline waits for the first missing destination while no destination has accepted a record.
const UNPROVEN_PAUSE: Duration = Duration::from_secs(30);

/// Events that are parked for missing destinations while no destination has accepted a record.
const UNPROVEN_MAX: u32 = 100;

/// The failing destinations, and the one that the intake waits for.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Name of the pipeline, for the log.
    pipeline: String,
    /// `parking.park_after`
    park_after: Option<Duration>,
    /// By topic: since when it fails, by the relay's clock, and whether its events are parked.
    since: HashMap<String, (Duration, bool)>,
    /// The destination of the current event, if it fails and all later events wait.
    awaited: Option<String>,
    /// The topic that the reported condition of the sink is about, if it is about one topic.
    reported: Option<String>,
    /// A destination of this pipeline has accepted a record.
    proven: bool,
    /// Before that: since when a missing destination is waited for, and the number of events parked for missing
    /// destinations.
    unproven: (Option<Duration>, u32),
}

/// What to do with an event whose destination accepts no records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ParkDecision {
    /// Wait.
    Wait,
    /// Park the event. `is_new`: it is the first one.
    Park { is_new: bool },
}

impl Destinations {
    pub(super) fn new(pipeline: &str, park_after: Option<Duration>) -> Self {
        Self { pipeline: pipeline.to_owned(), park_after, ..Self::default() }
    }

    /// The destination accepted the current event.
    #[inline]
    pub(super) fn takes(&mut self, topic: &str) {
        if !self.proven || !self.since.is_empty() || self.awaited.is_some() {
            self.awaited = None;
            self.took(topic);
        }
    }

    /// The destination accepted a record.
    pub(super) fn took(&mut self, topic: &str) {
        self.since.remove(topic);
        self.proven = true;
        self.unproven = (None, 0);
    }

    /// Whether events of a destination that was never known are parked now, without waiting for it.
    pub(super) fn parks_missing(&mut self, topic: &str, now: Duration) -> bool {
        if self.proven {
            return true;
        }
        let (since, parked) = &mut self.unproven;
        let since = *since.get_or_insert(now);
        // An empty part makes a name doubtful even if no destination is known: nobody names a destination like that.
        let waited = has_empty_part(topic) || now.saturating_sub(since) >= UNPROVEN_PAUSE;
        waited && *parked < UNPROVEN_MAX
    }

    /// Whether the current event, which its destination did not accept, is parked. `may_park`: the destination was
    /// never known, and its events may be parked for that.
    pub(super) fn parks(&mut self, topic: &str, may_park: bool, now: Duration) -> bool {
        if may_park && self.parks_missing(topic, now) {
            self.unproven.1 = self.unproven.1.saturating_add(u32::from(!self.proven));
            return true;
        }
        self.lost(topic, now)
    }

    /// The current event waits for this destination, or for none.
    pub(super) fn awaits(&mut self, topic: Option<&str>) {
        if self.awaited.as_deref() != topic {
            self.awaited = topic.map(str::to_owned);
        }
    }

    fn is_awaited(&self, topic: &str) -> bool {
        self.awaited.as_deref() == Some(topic)
    }

    /// The destination accepted no record.
    fn takes_none(&mut self, topic: &str, now: Duration) -> ParkDecision {
        let Some(park_after) = self.park_after else { return ParkDecision::Wait };
        if let Some((since, given_up)) = self.since.get_mut(topic) {
            if now.saturating_sub(*since) < park_after {
                return ParkDecision::Wait;
            }
            return ParkDecision::Park { is_new: !std::mem::replace(given_up, true) };
        }
        if self.since.len() < DESTINATIONS_MAX {
            self.since.insert(topic.to_owned(), (now, false));
        }
        ParkDecision::Wait
    }

    /// Whether an event of this destination, which did not accept it, is parked.
    pub(super) fn lost(&mut self, topic: &str, now: Duration) -> bool {
        let decision = self.takes_none(topic, now);
        if decision == (ParkDecision::Park { is_new: true }) {
            log::destination_given_up(&self.pipeline, topic, self.park_after);
        }
        decision != ParkDecision::Wait
    }
}

impl Pipeline {
    /// The sink accepts no records. A destination for which only dead letters and parked events wait blocks nothing,
    /// nor does one whose current event is about to be parked. With the topic comes whether it was never known.
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
            if self.destinations.reported.as_deref() == Some(topic) {
                // The intake waited for this topic until its events were parked: that report ends.
                (self.log.sink, self.destinations.reported) = (None, None);
            }
            log::destination_down(self, (topic, reason), hint);
        } else {
            self.destinations.reported = topic.map(str::to_owned);
            log::sink_down(self, topic, reason, hint);
        }
    }

    /// The destination, or with `None` the broker, accepts records again.
    pub(super) fn sink_up(&mut self, topic: Option<&str>) {
        if let Some(topic) = topic {
            self.destinations.took(topic);
            self.log.destinations.remove(topic);
        }
        if self.destinations.reported.as_deref() == topic {
            self.destinations.reported = None;
            log::sink_up(self, topic);
        }
    }

    /// Why the intake can't use the sink: the broker, or the destination of the current event.
    pub(super) fn sink_condition(&self) -> Option<&Condition> {
        let Destinations { reported, awaited, .. } = &self.destinations;
        self.log.sink.as_ref().filter(|_| reported.is_none() || reported == awaited)
    }

    /// Whether no broker accepts records.
    pub(super) fn broker_is_down(&self) -> bool {
        self.log.sink.is_some() && self.destinations.reported.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_blocks_the_intake_while_the_current_event_waits_for_it() {
        let mut destinations = Destinations::new("p", None);
        destinations.awaits(Some("a"));
        assert!(destinations.is_awaited("a") && !destinations.is_awaited("b"));
        destinations.took("a");
        assert!(destinations.is_awaited("a"), "a parked event was taken");
        destinations.takes("c");
        assert!(!destinations.is_awaited("a"), "the intake goes on");
    }

    #[test]
    fn missing_destination_parks_at_once_if_another_one_accepts_records() {
        let mut destinations = Destinations::new("p", None);
        destinations.takes("good");
        for topic in ["misspelt", "outbox.event.", "good.2"] {
            assert!(destinations.parks_missing(topic, Duration::ZERO), "{topic}");
        }
    }

    /// If no destination is known to work, the pipeline waits first, and then parks a few events to try the next ones.
    #[test]
    fn missing_destination_is_waited_for_if_no_other_is_known_to_accept_records() {
        let mut destinations = Destinations::new("p", None);
        assert!(!destinations.parks_missing("a", Duration::from_secs(1)));
        assert!(!destinations.parks_missing("a", Duration::from_secs(30)));
        assert!(destinations.parks_missing("outbox.event.", Duration::from_secs(30)), "empty part");
        for parked in 0..UNPROVEN_MAX {
            assert!(destinations.parks("a", true, Duration::from_secs(31)), "{parked}");
        }
        assert!(
            !destinations.parks_missing("a", Duration::from_secs(1_000)),
            "the limit is reached"
        );
        assert!(!destinations.parks_missing("outbox.event.", Duration::from_secs(1_000)));
        destinations.takes("good");
        assert!(destinations.parks_missing("a", Duration::from_secs(1_000)));
    }

    #[test]
    fn destination_is_given_up_after_park_after_and_used_again_after_its_first_record() {
        let seconds = Duration::from_secs;
        let mut destinations = Destinations::new("p", Some(seconds(10)));
        assert_eq!(destinations.takes_none("a", seconds(1)), ParkDecision::Wait);
        assert_eq!(destinations.takes_none("a", seconds(10)), ParkDecision::Wait);
        assert_eq!(
            destinations.takes_none("b", seconds(11)),
            ParkDecision::Wait,
            "each destination has its own time"
        );
        assert_eq!(destinations.takes_none("a", seconds(11)), ParkDecision::Park { is_new: true });
        assert_eq!(destinations.takes_none("a", seconds(12)), ParkDecision::Park { is_new: false });
        destinations.takes("a");
        assert_eq!(
            destinations.takes_none("a", seconds(50)),
            ParkDecision::Wait,
            "the time starts again"
        );
        let mut never = Destinations::new("p", None);
        assert_eq!(never.takes_none("a", seconds(1)), ParkDecision::Wait);
        assert_eq!(never.takes_none("a", seconds(1_000_000)), ParkDecision::Wait);
    }
}
