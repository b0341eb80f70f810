//! Why parked events were refused: the code of the last error of each, for the status.
//!
//! The relay keeps no codes, and the parked table is not queried for the status. The codes are read when a session
//! starts, and followed from there.

use crate::event::Position;
use crate::parked::{Parked, ParkedOutcome, ParkedUpdate};
use crate::postgres::store::parked::Loaded;
use crate::relay::Relay;
use crate::status::RefusedByError;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Events whose codes are kept, some 5 MiB of them. Codes of further ones are not shown.
const EVENTS_MAX: usize = 200_000;

/// Different codes; further ones are counted as [`OTHER`].
const CODES_MAX: usize = 200;

/// Stands for codes beyond [`CODES_MAX`].
const OTHER: &str = "other";

/// Codes that the status shows.
const SHOWN_MAX: usize = 20;

/// Pause between two counts: with many parked events a count takes milliseconds.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The codes of parked events that were refused.
#[derive(Debug, Default)]
pub(super) struct ParkedCauses {
    /// The codes, each once.
    codes: Vec<Box<str>>,
    /// The index of each event's code.
    of: BTreeMap<Position, u8>,
    /// Events by code, as they were last counted.
    counted: Vec<RefusedByError>,
    /// When they were counted; `None` if something has changed before the first count.
    counted_at: Option<Instant>,
}

impl ParkedCauses {
    /// A session begins with these events.
    pub(super) fn loaded(&mut self, rows: &[Loaded]) {
        *self = Self::default();
        for row in rows.iter().filter(|row| !row.entry.state.resolved()) {
            if let Some(code) = &row.error_code {
                self.note(row.entry.position, code);
            }
        }
    }

    /// An event is parked.
    pub(super) fn parked(&mut self, row: &Parked) {
        if let Some(code) = row.error_code {
            self.note(row.entry.position, code);
        }
    }

    /// The states of parked events have changed.
    pub(super) fn changed(&mut self, updates: &[ParkedUpdate]) {
        for ParkedUpdate { position, became } in updates {
            match became {
                ParkedOutcome::Done | ParkedOutcome::Skipped => {
                    self.of.remove(position);
                }
                ParkedOutcome::Refused { reason, .. } => self.note(*position, reason.code()),
                ParkedOutcome::Again
                | ParkedOutcome::Declined
                | ParkedOutcome::DeadSent
                | ParkedOutcome::Overtaken { .. } => {}
            }
        }
    }

    /// The code of an event; `None` if it was not refused.
    pub(super) fn code(&self, position: Position) -> Option<&str> {
        self.codes.get(usize::from(*self.of.get(&position)?)).map(|code| &**code)
    }

    /// The number of events that are still parked, by code; up to [`COUNT_INTERVAL`] old.
    pub(super) fn by_error(&mut self, relay: &Relay, now: Instant) -> &[RefusedByError] {
        let recent = |at: Instant| now.saturating_duration_since(at) < COUNT_INTERVAL;
        if !self.counted_at.is_some_and(recent) {
            self.counted_at = Some(now);
            self.counted = self.count(|position| relay.is_parked(position));
        }
        &self.counted
    }

    fn count(&self, is_parked: impl Fn(Position) -> bool) -> Vec<RefusedByError> {
        let mut events = vec![0_u64; self.codes.len()];
        for (position, code) in &self.of {
            if let Some(count) = events.get_mut(usize::from(*code)).filter(|_| is_parked(*position))
            {
                *count += 1;
            }
        }
        let codes = self.codes.iter().zip(events).filter(|(_, events)| *events > 0);
        let mut counted: Vec<_> = codes
            .map(|(code, events)| RefusedByError { error_code: code.to_string(), events })
            .collect();
        counted.sort_by_key(|refused| Reverse(refused.events));
        counted.truncate(SHOWN_MAX);
        counted
    }

    fn note(&mut self, position: Position, code: &str) {
        if self.of.len() >= EVENTS_MAX && !self.of.contains_key(&position) {
            return;
        }
        let index = self.index(code);
        self.of.insert(position, index);
    }

    fn index(&mut self, code: &str) -> u8 {
        let full = self.codes.len() >= CODES_MAX;
        let code =
            if full && !self.codes.iter().any(|known| **known == *code) { OTHER } else { code };
        let index = self.codes.iter().position(|known| **known == *code);
        let index = index.unwrap_or_else(|| {
            self.codes.push(code.into());
            self.codes.len() - 1
        });
        // There are at most CODES_MAX + 1 codes.
        u8::try_from(index).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Offset;
    use crate::parked::State;
    use crate::record::{Refusal, RefusalKind};

    fn at(ordinal: u64) -> Position {
        Position { commit: Offset::new(1), ordinal }
    }

    fn became(position: Position, became: ParkedOutcome) -> ParkedUpdate {
        ParkedUpdate { position, became }
    }

    fn refused(kind: RefusalKind) -> ParkedOutcome {
        let reason = Refusal { kind, native: None, of_batch: false };
        ParkedOutcome::Refused { state: State::Waiting, attempts: 2, wait: Duration::ZERO, reason }
    }

    fn counts(causes: &ParkedCauses) -> Vec<(String, u64)> {
        let counted = causes.count(|position| position != at(99));
        counted.into_iter().map(|refused| (refused.error_code, refused.events)).collect()
    }

    #[test]
    fn events_are_counted_by_their_last_code_while_they_are_parked() {
        let mut causes = ParkedCauses::default();
        for (ordinal, code) in
            [(0, "too_large"), (1, "null_key"), (2, "null_key"), (99, "null_key")]
        {
            causes.note(at(ordinal), code);
        }
        let of = |code: &str, events| (code.to_owned(), events);
        assert_eq!(counts(&causes), [of("null_key", 2), of("too_large", 1)]);
        causes.changed(&[
            became(at(0), refused(RefusalKind::Policy)),
            became(at(1), ParkedOutcome::Done),
            became(at(2), ParkedOutcome::Again),
        ]);
        assert_eq!(causes.code(at(0)), Some("policy_violation"));
        assert_eq!(causes.code(at(1)), None);
        assert_eq!(causes.code(at(2)), Some("null_key"));
        causes.changed(&[became(at(2), ParkedOutcome::Skipped)]);
        assert_eq!(counts(&causes), [of("policy_violation", 1)]);
    }

    #[test]
    fn codes_beyond_the_limit_are_counted_together() {
        let mut causes = ParkedCauses::default();
        for ordinal in 0..300 {
            causes.note(at(1_000 + ordinal), &format!("code_{ordinal}"));
        }
        assert_eq!(counts(&causes)[0], (OTHER.to_owned(), 100));
        assert_eq!(counts(&causes).len(), SHOWN_MAX);
    }
}
