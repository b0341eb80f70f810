//! What a sink knows of its destinations: which accept records, which do not, and which are to be looked up.
//!
//! The thread of the pipeline asks, and the thread that talks to the broker looks up and answers.

use postrider_core::sink::NotTaken;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Destinations that are known at most. Records of further ones wait.
pub(crate) const DESTINATIONS_MAX: usize = 1_000;

/// How long an answer that a destination accepts no records counts before the destination is looked up again, while
/// records wait for it.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(1);

/// How long the answer counts that a destination does not exist, if its event may be parked for that.
const FRESH: Duration = Duration::from_secs(5);

/// The known destinations. `F`: what is known of one that accepts records.
#[derive(Debug)]
pub(crate) struct Destinations<F> {
    known: HashMap<String, KnownDestination<F>>,
    wanted: BTreeSet<String>,
}

#[derive(Debug)]
enum KnownDestination<F> {
    /// It accepts records.
    Open(F),
    /// It accepts no records, as the broker has answered. `missing`: it never did.
    Closed { missing: bool, at: Instant },
}

impl<F> Default for Destinations<F> {
    fn default() -> Self {
        Self { known: HashMap::new(), wanted: BTreeSet::new() }
    }
}

impl<F: Clone> Destinations<F> {
    /// What is known of a destination, and whether a look-up was requested by this call.
    ///
    /// An answer that the destination accepts no records counts only if it came after `since`. Without `since` an old
    /// answer that the destination does not exist does not count either, because its event may be parked for that.
    pub(crate) fn ask(
        &mut self,
        name: &str,
        since: Option<Instant>,
    ) -> (Result<F, NotTaken>, bool) {
        let (answer, looks_up) = match self.known.get(name) {
            Some(KnownDestination::Open(facts)) => (Ok(facts.clone()), false),
            Some(KnownDestination::Closed { missing, at }) => {
                (Err(closed(*missing, *at, since)), at.elapsed() >= LOOK_UP_PAUSE)
            }
            None => (Err(NotTaken::Destination), true),
        };
        let has_room = self.wanted.len() < DESTINATIONS_MAX;
        let requested = looks_up && has_room && self.wanted.insert(name.to_owned());
        (answer, requested)
    }

    /// The next destination to look up.
    pub(crate) fn next_wanted(&mut self) -> Option<String> {
        self.wanted.pop_first()
    }

    /// The destination accepts records.
    pub(crate) fn opened(&mut self, name: &str, facts: F) {
        self.make_room(name);
        self.known.insert(name.to_owned(), KnownDestination::Open(facts));
    }

    /// The destination accepts no records.
    pub(crate) fn closed(&mut self, name: &str, missing: bool) {
        self.make_room(name);
        self.known
            .insert(name.to_owned(), KnownDestination::Closed { missing, at: Instant::now() });
    }

    /// A destination that accepts no records is looked up again by whoever waits for it.
    fn make_room(&mut self, name: &str) {
        if self.known.len() < DESTINATIONS_MAX || self.known.contains_key(name) {
            return;
        }
        let closed = |known: &KnownDestination<F>| matches!(known, KnownDestination::Closed { .. });
        let other = self.known.iter().find(|(_, known)| closed(known));
        let other = other.or_else(|| self.known.iter().next()).map(|(name, _)| name.clone());
        if let Some(name) = other {
            self.known.remove(&name);
        }
    }
}

/// The answer for a record whose destination accepts no records.
fn closed(missing: bool, at: Instant, since: Option<Instant>) -> NotTaken {
    let counts = match since {
        Some(since) => at > since,
        // The destination is looked up again. If the event may be parked on the answer, an old answer is not enough.
        None => !missing || at.elapsed() < FRESH,
    };
    match (counts, missing) {
        (false, _) => NotTaken::Destination,
        (true, true) => NotTaken::Missing,
        (true, false) => NotTaken::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_only_if_they_came_after_the_question() {
        let mut destinations = Destinations::<u8>::default();
        let before = Instant::now();
        assert_eq!(destinations.ask("a", None), (Err(NotTaken::Destination), true));
        assert_eq!(destinations.ask("a", None), (Err(NotTaken::Destination), false));
        assert_eq!(destinations.next_wanted().as_deref(), Some("a"));
        assert_eq!(destinations.next_wanted(), None);
        destinations.closed("a", true);
        assert_eq!(destinations.ask("a", None).0, Err(NotTaken::Missing));
        assert_eq!(destinations.ask("a", Some(before)).0, Err(NotTaken::Missing));
        let later = Instant::now();
        assert_eq!(destinations.ask("a", Some(later)).0, Err(NotTaken::Destination));
        destinations.closed("a", false);
        assert_eq!(destinations.ask("a", None).0, Err(NotTaken::Unavailable));
        destinations.opened("a", 7);
        assert_eq!(destinations.ask("a", Some(Instant::now())), (Ok(7), false));
    }

    #[test]
    fn number_of_destinations_is_bounded() {
        let mut destinations = Destinations::<()>::default();
        for number in 0..2 * DESTINATIONS_MAX {
            let (answer, requested) = destinations.ask(&number.to_string(), None);
            assert_eq!(
                (answer, requested),
                (Err(NotTaken::Destination), number < DESTINATIONS_MAX)
            );
            destinations.opened(&number.to_string(), ());
        }
        assert_eq!(destinations.known.len(), DESTINATIONS_MAX);
        assert_eq!(destinations.wanted.len(), DESTINATIONS_MAX);
    }
}
