//! How large the next claim is, and how long the open claim waits before it is fed again.

use crate::relay::Restart;
use postrider_core::backoff::Backoff;
use std::time::Duration;

/// Rows of the largest claim while there is a backlog: claims grow to this size.
pub const BACKLOG_ROWS: usize = 4_000;

/// A claim that was held longer is not followed by a larger one. A quarter of the time for which a claim may be held.
const CLAIM_SLOW: Duration = Duration::from_secs(5);

/// Pauses before a claim is fed again after its producer broke or its topic was unavailable: what was published after
/// such an event is published again each time. A claim is held for at most a few of the longest pauses.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// The size of claims.
#[derive(Debug)]
pub(super) struct ClaimSize {
    /// Rows while there is no backlog.
    batch: usize,
    /// Rows of the next claim, if there is a backlog.
    next: usize,
    /// Rows of the next claim at most. It is lowered when a claim was held for too long.
    max: usize,
    /// Rows of any claim at most.
    rows_max: usize,
}

impl ClaimSize {
    pub(super) fn new(batch: usize, rows_max: usize) -> Self {
        Self { batch, next: 0, max: rows_max, rows_max }
    }

    /// Rows of the next claim at most.
    pub(super) fn limit(&self) -> usize {
        self.next.max(self.batch).min(self.max)
    }

    /// A claim of `limit` rows has left `more` rows.
    pub(super) fn claimed(&mut self, limit: usize, more: bool) {
        self.next = if more { (limit * 2).min(BACKLOG_ROWS) } else { self.batch };
    }

    /// A claim of so many rows was held until it was resolved.
    pub(super) fn resolved(&mut self, rows: usize, held: Duration) {
        self.max = if held < CLAIM_SLOW {
            self.max.saturating_mul(2).min(self.rows_max)
        } else {
            // A larger claim may be held for too long.
            self.max.min(rows.max(1))
        };
    }

    /// A claim of so many rows was held for too long, or was given up: a claim of the same size would be held for as
    /// long again.
    pub(super) fn held_too_long(&mut self, rows: usize) {
        self.max = (rows / 2).max(1);
    }

    /// The next claim does not follow a backlog.
    pub(super) fn restart(&mut self) {
        self.next = 0;
    }
}

/// The pause before the open claim is fed again.
#[derive(Debug)]
pub(super) struct RetryPause {
    backoff: Backoff,
    until: Duration,
}

impl RetryPause {
    pub(super) fn new(now: Duration) -> Self {
        Self { backoff: RETRY_BACKOFF, until: now }
    }

    /// Everything in flight was given up for this reason.
    pub(super) fn begin(&mut self, now: Duration, why: Restart) {
        self.until = match why {
            // The next answer of the broker shows which event it refuses: the sooner the better.
            Restart::Refused(_) => now,
            // One process at a time feeds claims of a pipeline, so that no jitter is necessary.
            Restart::SinkBroken | Restart::Unknown | Restart::SlotTaken => {
                now + self.backoff.next(0.5)
            }
        };
    }

    /// When the pause ends.
    pub(super) fn until(&self) -> Duration {
        self.until
    }

    /// A claim is resolved.
    pub(super) fn reset(&mut self) {
        self.backoff.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_grow_with_a_backlog_and_shrink_when_they_are_held_for_long() {
        let seconds = Duration::from_secs;
        let mut size = ClaimSize::new(100, 10_000);
        let mut limits = Vec::new();
        for _ in 0..7 {
            limits.push(size.limit());
            size.claimed(size.limit(), true);
        }
        assert_eq!(limits, [100, 200, 400, 800, 1_600, 3_200, 4_000]);
        size.resolved(4_000, seconds(6));
        assert_eq!(size.limit(), 4_000, "not larger than the slow one");
        size.held_too_long(4_000);
        assert_eq!(size.limit(), 2_000);
        size.resolved(2_000, seconds(1));
        assert_eq!(size.limit(), 4_000);
        size.claimed(4_000, false);
        assert_eq!(size.limit(), 100);
        size.held_too_long(100);
        assert_eq!(size.limit(), 50);
        size.held_too_long(1);
        assert_eq!(size.limit(), 1);
    }
}
