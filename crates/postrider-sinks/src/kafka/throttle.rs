//! Lets so many lines in so long a time through, and counts the rest.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many in each window.
pub(super) struct Throttle {
    lines: u32,
    window: Duration,
    state: Mutex<State>,
}

struct State {
    since: Instant,
    passed: u32,
    dropped: u64,
}

impl Throttle {
    pub(super) fn new(lines: u32, window: Duration) -> Self {
        let state = State { since: Instant::now(), passed: 0, dropped: 0 };
        Self { lines, window, state: Mutex::new(state) }
    }

    /// `Some(n)` lets a line through, after `n` that were not; `None` does not.
    pub(super) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(state.since) >= self.window {
            state.since = now;
            state.passed = 0;
        }
        if state.passed == self.lines {
            state.dropped += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let throttle = Throttle::new(2, Duration::from_secs(1));
        let start = Instant::now();
        let seen: Vec<_> = (0..4).map(|_| throttle.admit_at(start)).collect();
        assert_eq!(seen, [Some(0), Some(0), None, None]);
        assert_eq!(throttle.admit_at(start + Duration::from_secs(2)), Some(2));
    }
}
