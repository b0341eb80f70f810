//! Destinations that accept no events, and when they are tried again.
//!
//! What a destination answers to OPTIONS is a hint: some receivers know only POST, and some answer every OPTIONS
//! alike. So a destination is opened again when OPTIONS says that it would accept events, unless that was wrong before,
//! and now and then without: the next event finds out.

use super::answer::WebhookAnswer;
use super::exchange::Probe;
use postrider_core::backoff::Backoff;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Pauses after which an event finds out, whatever OPTIONS says.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_mins(5);

/// Destinations that are remembered; those that accept events are forgotten first.
const PLACES_MAX: usize = 2_000;

/// How long a refusal is remembered of a destination that accepts other events: one that refuses some events by their
/// content is not opened more often than one that refuses all.
const REMEMBERED: Duration = Duration::from_mins(10);

#[derive(Debug, Default)]
struct Place {
    /// It has accepted an event.
    accepted: bool,
    /// The last refusals.
    refusals: Option<Refusals>,
}

#[derive(Debug)]
struct Refusals {
    /// It has accepted an event since the last one.
    is_over: bool,
    at: Instant,
    missing: bool,
    /// Why, and how to fix it.
    reason: String,
    hint: Option<&'static str>,
    backoff: Backoff,
    next_at: Instant,
    options: OptionsAnswers,
}

/// Whether the answers to OPTIONS tell when a destination accepts events again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OptionsAnswers {
    /// They were not wrong yet.
    Believed,
    /// The last one opened the destination.
    Opened,
    /// One opened the destination, which refused the next event.
    Wrong,
}

/// Why a destination accepts no events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unavailable {
    pub(super) missing: bool,
    pub(super) reason: String,
    pub(super) hint: Option<&'static str>,
}

/// The known destinations.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: HashMap<String, Place>,
}

impl Places {
    /// The destination has accepted an event.
    pub(super) fn accepted(&mut self, name: &str) {
        let place = match self.places.get_mut(name) {
            Some(place) => place,
            None => self.place(name),
        };
        place.accepted = true;
        if let Some(refusals) = &mut place.refusals {
            refusals.is_over = true;
        }
    }

    fn place(&mut self, name: &str) -> &mut Place {
        if !self.places.contains_key(name) {
            if self.places.len() >= PLACES_MAX {
                self.places.retain(|_, place| place.is_closed());
            }
            if self.places.len() >= PLACES_MAX {
                self.places.clear();
            }
        }
        self.places.entry(name.to_owned()).or_default()
    }

    /// The destination has refused an event.
    pub(super) fn refused(
        &mut self,
        name: &str,
        (answer, may_be_missing): (&WebhookAnswer, bool),
        (now, random): (Instant, f64),
    ) -> Unavailable {
        let place = self.place(name);
        let missing = may_be_missing && !place.accepted;
        place.refusals = place.refusals.take().filter(|last| now - last.at < REMEMBERED);
        let closed = place.refusals.get_or_insert_with(|| Refusals {
            is_over: false,
            at: now,
            missing,
            reason: String::new(),
            hint: None,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            next_at: now,
            options: OptionsAnswers::Believed,
        });
        if closed.options == OptionsAnswers::Opened {
            closed.options = OptionsAnswers::Wrong;
        }
        (closed.is_over, closed.at) = (false, now);
        closed.missing = missing;
        closed.next_at = now + closed.backoff.next(random);
        (closed.reason, closed.hint) = (answer.reason.clone(), answer.hint);
        closed.unavailable()
    }

    /// Whether a look-up has to ask the destination. One that was never refused is open: its first event finds out.
    pub(super) fn is_closed(&self, name: &str) -> bool {
        self.places.get(name).is_some_and(Place::is_closed)
    }

    /// What the answer to OPTIONS means: none if the destination is open.
    pub(super) fn probed(
        &mut self,
        name: &str,
        probe: &Probe,
        now: Instant,
    ) -> Option<Unavailable> {
        let closed = self.places.get_mut(name)?.refusals.as_mut()?;
        let (says_open, answer) = match probe {
            Probe::Unreachable(answer) => {
                (closed.reason, closed.hint) = (answer.reason.clone(), answer.hint);
                return Some(closed.unavailable());
            }
            Probe::Answered { answer, is_closed, fails, forbids_post, .. } => {
                (!is_closed && !fails && !forbids_post, answer)
            }
        };
        if says_open && closed.options != OptionsAnswers::Wrong {
            closed.options = OptionsAnswers::Opened;
            return None;
        }
        if closed.next_at <= now {
            return None;
        }
        if !says_open && answer.hint.is_some() {
            (closed.reason, closed.hint) = (answer.reason.clone(), answer.hint);
        }
        Some(closed.unavailable())
    }
}

impl Place {
    fn is_closed(&self) -> bool {
        self.refusals.as_ref().is_some_and(|refusals| !refusals.is_over)
    }
}

impl Refusals {
    fn unavailable(&self) -> Unavailable {
        Unavailable { missing: self.missing, reason: self.reason.clone(), hint: self.hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::{HeaderMap, StatusCode};

    fn answer(status: u16) -> WebhookAnswer {
        let status = StatusCode::from_u16(status).unwrap();
        WebhookAnswer::of_status(status, &HeaderMap::new(), 1, Duration::ZERO)
    }

    fn probe(status: u16) -> Probe {
        Probe::Answered {
            answer: answer(status),
            is_closed: (300..405).contains(&status),
            fails: status >= 500,
            forbids_post: false,
            version: hyper::Version::HTTP_11,
        }
    }

    #[test]
    fn destination_is_opened_when_options_says_so_unless_that_was_wrong() {
        let (mut places, now) = (Places::default(), Instant::now());
        assert!(!places.is_closed("a"));
        let found = places.refused("a", (&answer(404), true), (now, 1.0));
        assert!(found.missing && places.is_closed("a"));
        assert!(places.probed("a", &probe(404), now).unwrap().missing);
        assert!(places.probed("a", &probe(500), now).is_some(), "says nothing");
        assert_eq!(places.probed("a", &probe(204), now), None);
        // It was wrong: from now on time alone opens it.
        places.refused("a", (&answer(404), true), (now, 1.0));
        assert!(places.probed("a", &probe(204), now).is_some());
        assert_eq!(places.probed("a", &probe(404), now + 2 * PAUSE_MIN), None);
        places.accepted("a");
        assert!(!places.is_closed("a"));
        // It has accepted an event, so it is not missing.
        assert!(!places.refused("a", (&answer(404), true), (now, 1.0)).missing);
        assert!(!places.refused("b", (&answer(403), false), (now, 1.0)).missing);
    }

    /// A receiver that refuses one event by its content, and takes the others.
    #[test]
    fn destination_that_accepts_other_events_is_not_opened_at_once_again_and_again() {
        let (mut places, now) = (Places::default(), Instant::now());
        let mut at = now;
        for round in 0..4 {
            places.refused("a", (&answer(403), false), (at, 1.0));
            if round > 0 {
                assert!(places.probed("a", &probe(200), at).is_some(), "round {round}");
                at += PAUSE_MIN * (1 << round);
            }
            assert_eq!(places.probed("a", &probe(200), at), None, "round {round}");
            places.accepted("a");
            assert!(!places.is_closed("a"));
        }
        places.refused("a", (&answer(403), false), (at + REMEMBERED, 1.0));
        assert_eq!(places.probed("a", &probe(200), at + REMEMBERED), None, "a new problem");
    }

    #[test]
    fn number_of_destinations_is_bounded() {
        let (mut places, now) = (Places::default(), Instant::now());
        for number in 0..3 * PLACES_MAX {
            places.accepted(&number.to_string());
        }
        places.refused("closed", (&answer(404), true), (now, 1.0));
        for number in 0..3 * PLACES_MAX {
            places.accepted(&number.to_string());
        }
        assert!(places.places.len() <= PLACES_MAX && places.is_closed("closed"));
    }
}
