//! The fence against a process that was stopped: its successor waits for 8 s, and then publishes the same events and
//! later ones. What this process has not written to a connection until then must not be written any more. Sinks have it
//! whose servers can't refuse what an earlier process sends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// If the worker did not run for so long, another process may have taken over.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Shared by a worker and what sends for it.
#[derive(Debug)]
pub(crate) struct Fence {
    start: Instant,
    /// Raised by each stall and each reset: requests and connections of an earlier number send nothing.
    number: AtomicU64,
    /// When the worker ran last. Unit: milliseconds since `start`.
    ran_at: AtomicU64,
    /// The same by the clock of the day, which goes on while a machine is suspended. Unit: milliseconds since 1970.
    ran_at_time: AtomicU64,
}

/// The time of the day. Unit: milliseconds since 1970.
fn time_of_day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Fence {
    pub(crate) fn new() -> Self {
        let (number, ran_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { start: Instant::now(), number, ran_at, ran_at_time: AtomicU64::new(time_of_day()) }
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// How long the worker did not run, if that is too long. A clock that is set forward counts as a stall, which costs
    /// repetitions; one that is set back counts as nothing.
    fn stall(&self, now: Instant) -> Option<Duration> {
        let by_instant = self.millis(now).saturating_sub(self.ran_at.load(Ordering::Relaxed));
        let by_time = time_of_day().saturating_sub(self.ran_at_time.load(Ordering::Relaxed));
        let stall = Duration::from_millis(by_instant.max(by_time));
        (stall >= STALL_MAX).then_some(stall)
    }

    /// The worker runs, at least each second, also without events: the pipeline's thread may have read some that it
    /// passes on after the stall. Returns how long the worker did not run, if that was too long.
    pub(crate) fn runs(&self, now: Instant) -> Option<Duration> {
        let stall = self.stall(now);
        if stall.is_some() {
            self.number.fetch_add(1, Ordering::Relaxed);
        }
        self.ran_at.store(self.millis(now), Ordering::Relaxed);
        self.ran_at_time.store(time_of_day(), Ordering::Relaxed);
        stall
    }

    /// What was not written until now is not written any more: the sink was reset.
    pub(crate) fn resets(&self) {
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Whether something with this number may still be sent.
    pub(crate) fn admits(&self, number: u64) -> bool {
        self.number() == number && self.stall(Instant::now()).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_before_a_stall_is_never_sent() {
        let (fence, now) = (Fence::new(), Instant::now());
        let number = fence.number();
        assert_eq!(fence.runs(now + Duration::from_secs(1)), None);
        assert!(fence.admits(number));
        assert!(fence.runs(now + Duration::from_mins(1)).is_some());
        assert!(!fence.admits(number) && fence.admits(fence.number()));
    }

    #[test]
    fn what_was_not_sent_before_a_reset_is_never_sent() {
        let fence = Fence::new();
        let number = fence.number();
        fence.resets();
        assert!(!fence.admits(number) && fence.admits(fence.number()));
    }

    #[test]
    fn nothing_is_sent_between_the_stall_and_the_worker() {
        let fence = Fence::new();
        let start = fence.start.checked_sub(Duration::from_mins(1)).expect("an earlier time");
        let fence = Fence { start, ..fence };
        fence.ran_at.store(1, Ordering::Relaxed);
        assert!(!fence.admits(0));
    }

    #[test]
    fn suspended_machine_counts_as_a_stall() {
        let fence = Fence::new();
        fence.ran_at_time.store(time_of_day() - 60_000, Ordering::Relaxed);
        assert!(!fence.admits(0));
        assert!(fence.runs(Instant::now()).is_some());
        assert!(fence.admits(1));
    }
}
