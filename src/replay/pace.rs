//! So many events a second, evenly.

use std::time::{Duration, Instant};

/// How much of what was not used may be made good: a timer wakes some milliseconds late.
const BURST: Duration = Duration::from_millis(20);

/// Events that become due within this go together: a wake for each takes the processor from the live stream more often
/// than their work is worth.
const SLICE: Duration = Duration::from_millis(5);

/// The pace of a replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Between two events; zero for as fast as it goes.
    gap: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// `rate` events a second; 0 for as fast as it goes.
    pub(super) fn new(rate: u32) -> Self {
        let gap = if rate == 0 { Duration::ZERO } else { Duration::from_secs(1) / rate };
        Self { gap, next: None }
    }

    /// When to ask again, where the next event may not go now.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Instant> {
        let floor = now.checked_sub(BURST).unwrap_or(now);
        let next = self.next.map_or(now, |next| next.max(floor));
        self.next = Some(next);
        (next > now && !self.gap.is_zero()).then(|| next + SLICE)
    }

    /// An event went.
    pub(super) fn spend(&mut self) {
        self.next = self.next.map(|next| next + self.gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_go_as_the_rate_says_and_pauses_are_not_made_good() {
        let mut pace = Pace::new(1000);
        let start = Instant::now();
        let mut sent = 0;
        let mut at = |pace: &mut Pace, millis: u64| {
            while pace.wait(start + Duration::from_millis(millis)).is_none() {
                pace.spend();
                sent += 1;
            }
            sent
        };
        assert_eq!(at(&mut pace, 0), 1);
        assert_eq!(at(&mut pace, 10), 11);
        assert_eq!(at(&mut pace, 1000), 11 + 21, "20 ms of the pause, and the one that is due");
        assert_eq!(Pace::new(0).wait(start), None);
        let due = start + Duration::from_millis(1001);
        assert_eq!(pace.wait(start + Duration::from_secs(1)), Some(due + SLICE));
    }
}
