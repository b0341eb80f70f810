//! Exponential back-off with an upper bound and jitter. The number of attempts is not limited. The caller passes the
//! random number in.

use std::time::Duration;

/// Pauses that double from `min` to `max`, with random jitter in the upper half of each.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    /// Pauses from `min` to `max`; a `max` below `min` is raised to `min`.
    pub const fn new(min: Duration, max: Duration) -> Self {
        let max = if max.as_nanos() < min.as_nanos() { min } else { max };
        Self { min, max, attempts: 0 }
    }

    /// The next pause. `random` is a random number in `0.0..1.0`.
    pub fn next(&mut self, random: f64) -> Duration {
        let doubled = self.min.saturating_mul(1_u32 << self.attempts.min(20)).min(self.max);
        self.attempts = self.attempts.saturating_add(1);
        doubled.div_f64(2.0) + doubled.div_f64(2.0).mul_f64(random.clamp(0.0, 1.0))
    }

    /// Number of calls of [`Backoff::next`] since the last reset.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Resets after a success: the next pause is the shortest.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_cap_and_stay_within_their_jitter() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
        let mut ceiling = Duration::from_millis(200);
        for _ in 0..100 {
            let (low, high) = (backoff.clone().next(0.0), backoff.next(1.0));
            assert_eq!(low, ceiling / 2);
            assert_eq!(high, ceiling);
            ceiling = (ceiling * 2).min(Duration::from_secs(15));
        }
        backoff.reset();
        assert_eq!(backoff.next(1.0), Duration::from_millis(200));
    }
}
