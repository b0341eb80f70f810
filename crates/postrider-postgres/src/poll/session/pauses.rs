//! Aggregates that are left out for a while: their rows would fill each claim, and bring nothing.
//!
//! Kept in memory, and gone with the session. Which rows are claimed without them is for the statement in `sql`.

use super::Poller;
use crate::poll::claim::{Claim, Settled};
use crate::poll::spec::Marks;
use std::time::{Duration, Instant};

/// Most aggregates that are left out for a while; further ones are looked at again by each claim.
pub(super) const PAUSES_MAX: usize = 1_000;
/// How long an aggregate is left out when its held-back rows filled a claim.
pub(super) const BLOCKED_PAUSE: Duration = Duration::from_secs(1);

impl Poller {
    /// A table that has no column for it: the pause after a failure is ours to remember.
    pub(super) fn pause(&mut self, claim: &Claim, outcomes: &[Settled]) {
        let now = Instant::now();
        // All are held, for events that are parked: else the oldest rows of some aggregates are all that is claimed.
        let all_held = outcomes.iter().all(|outcome| *outcome == Settled::Held);
        for key in claim.keys.iter().filter(|_| all_held) {
            if self.pauses.len() < PAUSES_MAX {
                self.pauses.entry(key.clone()).or_insert((now + BLOCKED_PAUSE, 0));
            }
        }
        if !matches!(self.spec.marks, Marks::Gcx { .. }) {
            self.pauses.retain(|_, (until, _)| *until > now);
            return;
        }
        for (key, outcome) in claim.keys.iter().zip(outcomes) {
            match outcome {
                Settled::Published | Settled::Moved => {
                    self.pauses.remove(key);
                }
                Settled::Failed { .. } if self.pauses.len() < PAUSES_MAX => {
                    let failures = self.pauses.get(key).map_or(1, |(_, failures)| failures + 1);
                    let until = now + self.spec.backoff.after(failures);
                    self.pauses.insert(key.clone(), (until, failures));
                }
                Settled::Failed { .. } | Settled::Held => {}
            }
        }
        let kept = self.spec.backoff.after(u32::MAX);
        self.pauses
            .retain(|_, (until, failures)| *failures > 0 && *until + kept > now || *until > now);
    }
}
