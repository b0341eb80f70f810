//! The fence against a process that was stopped: its successor waits for 8 s, and then publishes the same events and
//! later ones. What this process has not written to a connection until then must not be written any more. Sinks have it
//! whose servers can't refuse what an earlier process sends.

use crate::moment::Moment;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// If the worker did not run for so long, another process may have taken over.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Shared by a worker and what sends for it.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Raised by each stall and each reset: requests and connections of an earlier number send nothing.
    number: AtomicU64,
    /// When the worker ran last.
    ran: Mutex<Moment>,
}

impl Fence {
    pub(crate) fn new() -> Self {
        Self { number: AtomicU64::new(0), ran: Mutex::new(Moment::now()) }
    }

    fn ran(&self) -> MutexGuard<'_, Moment> {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker runs, at least each second, also without events: the pipeline's thread may have read some that it
    /// passes on after the stall. Returns how long the worker did not run, if that was too long. A clock that is set
    /// forward counts as a stall, which costs repetitions.
    pub(crate) fn runs(&self) -> Option<Duration> {
        let mut ran = self.ran();
        let stood = ran.elapsed();
        let stall = (stood >= STALL_MAX).then_some(stood);
        if stall.is_some() {
            self.number.fetch_add(1, Ordering::Relaxed);
        }
        *ran = Moment::now();
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
        self.number() == number && self.ran().elapsed() < STALL_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_before_a_stall_is_never_sent() {
        let fence = Fence::new();
        let number = fence.number();
        assert_eq!(fence.runs(), None);
        assert!(fence.admits(number));
        *fence.ran() = Moment::suspended_for(Duration::from_mins(1));
        assert!(!fence.admits(number), "the worker has not noticed it yet");
        assert!(fence.runs().is_some_and(|stall| stall >= Duration::from_mins(1)));
        assert!(!fence.admits(number) && fence.admits(fence.number()));
    }

    #[test]
    fn what_was_not_sent_before_a_reset_is_never_sent() {
        let fence = Fence::new();
        let number = fence.number();
        fence.resets();
        assert!(!fence.admits(number) && fence.admits(fence.number()));
    }
}
