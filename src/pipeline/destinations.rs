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

use crate::record::has_empty_part;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tracing::warn;

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
    /// Topics whose records the sink keeps, because they are refused for now.
    held: HashSet<String>,
    /// A destination of this pipeline has accepted a record.
    proven: bool,
    /// Before that: since when a missing destination is waited for, and the number of events parked for missing
    /// destinations.
    unproven: (Option<Duration>, u32),
}

/// What the report that the sink accepts no records is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SinkProblem {
    /// The brokers, or the destination that the intake waits for.
    Intake,
    /// A destination that blocks nothing. `was_awaited`: the intake waited for it until its events were parked.
    Destination { was_awaited: bool },
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
            self.log_given_up(topic);
        }
        decision != ParkDecision::Wait
    }

    /// Events of a topic are parked from here on.
    fn log_given_up(&self, topic: &str) {
        let (pipeline, park_after) = (&self.pipeline, self.park_after.unwrap_or_default());
        warn!(
            event = "topic_given_up",
            pipeline,
            topic,
            ?park_after,
            hint = "fix the topic; its parked events are then retried automatically",
            "the topic has accepted no records for parking.park_after: its events are parked, other topics continue"
        );
    }

    /// The sink accepts no records; `topic` is the destination, if the problem is that of one destination. A
    /// destination for which only dead letters and parked events wait blocks nothing, nor does one whose current event
    /// is about to be parked. `may_park`: the destination was never known, and its events may be parked for that.
    pub(super) fn down(
        &mut self,
        topic: Option<&str>,
        may_park: bool,
        now: Duration,
    ) -> SinkProblem {
        let parks = topic.is_some_and(|topic| may_park && self.parks_missing(topic, now));
        let Some(topic) = topic.filter(|topic| parks || !self.is_awaited(topic)) else {
            self.reported = topic.map(str::to_owned);
            return SinkProblem::Intake;
        };
        let was_awaited = self.reported.as_deref() == Some(topic);
        if was_awaited {
            self.reported = None;
        }
        SinkProblem::Destination { was_awaited }
    }

    /// The sink keeps the records of a destination that refuses them for now, and the reported condition is about it.
    pub(super) fn holds(&mut self, topic: &str) {
        self.reported = Some(topic.to_owned());
        if self.held.len() < DESTINATIONS_MAX {
            self.held.insert(topic.to_owned());
        }
    }

    /// The destination, or with `None` the broker, accepts records again. Returns whether the reported condition of the
    /// sink is over.
    pub(super) fn up(&mut self, topic: Option<&str>) -> bool {
        if let Some(topic) = topic {
            self.took(topic);
            self.held.remove(topic);
        }
        let over = self.reported.as_deref() == topic;
        if over {
            self.reported = None;
        }
        over
    }

    /// Whether the reported condition of the sink is about the brokers, about the destination that the current event
    /// waits for, or about one whose events the sink keeps.
    pub(super) fn blocks_intake(&self) -> bool {
        let is_held = self.reported.as_ref().is_some_and(|topic| self.held.contains(topic));
        self.is_of_brokers() || is_held || self.reported == self.awaited
    }

    /// Whether the reported condition of the sink is about the brokers.
    pub(super) fn is_of_brokers(&self) -> bool {
        self.reported.is_none()
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
    fn destination_that_the_intake_waits_for_is_reported_as_the_sink_until_its_events_are_parked() {
        let mut destinations = Destinations::new("p", None);
        destinations.takes("good");
        destinations.awaits(Some("a"));
        assert_eq!(destinations.down(Some("a"), false, Duration::ZERO), SinkProblem::Intake);
        assert!(destinations.blocks_intake() && !destinations.is_of_brokers());
        // Only parked events wait for this one.
        let aside = SinkProblem::Destination { was_awaited: false };
        assert_eq!(destinations.down(Some("b"), false, Duration::ZERO), aside);
        assert!(!destinations.up(Some("b")) && destinations.blocks_intake());
        let parked = SinkProblem::Destination { was_awaited: true };
        assert_eq!(destinations.down(Some("a"), true, Duration::ZERO), parked);
        assert!(destinations.is_of_brokers());
    }

    #[test]
    fn brokers_are_reported_as_the_sink_and_the_report_of_one_topic_is_not_theirs() {
        let mut destinations = Destinations::new("p", None);
        assert_eq!(destinations.down(None, false, Duration::ZERO), SinkProblem::Intake);
        assert!(destinations.blocks_intake() && destinations.is_of_brokers());
        assert!(destinations.up(None));
        destinations.awaits(Some("a"));
        assert_eq!(destinations.down(Some("a"), false, Duration::ZERO), SinkProblem::Intake);
        assert!(!destinations.up(None), "a topic was reported");
        assert!(destinations.up(Some("a")));
    }

    #[test]
    fn destination_whose_records_the_sink_keeps_is_reported_and_is_not_the_broker() {
        let mut destinations = Destinations::new("p", None);
        destinations.takes("good");
        destinations.holds("full");
        assert!(destinations.blocks_intake() && !destinations.is_of_brokers());
        assert!(!destinations.up(None) && destinations.blocks_intake());
        assert!(destinations.up(Some("full")));
        destinations.holds("a");
        destinations.holds("b");
        assert!(!destinations.up(Some("a")), "b is reported");
        assert!(destinations.up(Some("b")));
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
