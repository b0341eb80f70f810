//! Quantiles of durations: of durations measured here, and of the relay's histograms by interpolation.

use std::time::Duration;

/// Parts of each power of two: a duration is known to 1/16, about 6 %.
const PARTS: u64 = 16;

/// Measured durations. Memory does not grow with their number.
#[derive(Clone, Default, Debug)]
pub(super) struct Spread {
    counts: Vec<u64>,
    count: u64,
}

impl Spread {
    /// Counts a duration.
    pub(super) fn observe(&mut self, duration: Duration) {
        let place = place(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.count += 1;
    }

    /// How many.
    #[cfg(test)]
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The duration that the share `quantile` of them does not exceed.
    pub(super) fn quantile(&self, quantile: f64) -> Option<Duration> {
        let mut left = rank(self.count, quantile)?;
        for (place, count) in self.counts.iter().enumerate() {
            if left <= *count {
                return Some(Duration::from_micros(upper(place)));
            }
            left -= count;
        }
        None
    }

    /// The durations that were counted since an earlier state of the same value.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |place: usize| earlier.counts.get(place).copied().unwrap_or(0);
        let counts = self.counts.iter().enumerate().map(|(place, count)| count - before(place));
        Self { counts: counts.collect(), count: self.count - earlier.count }
    }
}

/// Up to 16 µs each microsecond has a place; above, each power of two has 16.
fn place(micros: u64) -> usize {
    let place = if micros < PARTS {
        micros
    } else {
        let power = u64::from(micros.ilog2()) - 4;
        PARTS * power + (micros >> power)
    };
    usize::try_from(place).unwrap_or(usize::MAX)
}

/// The longest duration of a place, in microseconds.
fn upper(place: usize) -> u64 {
    let place = place as u64;
    if place < 2 * PARTS {
        return place;
    }
    let power = place / PARTS - 1;
    let part = place - PARTS * power;
    ((part + 1) << power) - 1
}

/// The number, from 1, of the value that is the quantile among `count` sorted values.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank for people"
)]
fn rank(count: u64, quantile: f64) -> Option<u64> {
    (count > 0).then(|| ((count as f64 * quantile).ceil() as u64).clamp(1, count))
}

/// Counts of a Prometheus histogram: upper bound in seconds, and how many are in that bucket alone.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Buckets(pub(super) Vec<(f64, u64)>);

impl Buckets {
    /// How many.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The counts since an earlier state of the same histogram.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |at: usize| earlier.0.get(at).map_or(0, |(_, count)| *count);
        let counts = self.0.iter().enumerate();
        Self(
            counts.map(|(at, (bound, count))| (*bound, count.saturating_sub(before(at)))).collect(),
        )
    }

    /// Adds the counts of another with the same bounds.
    pub(super) fn add(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for ((_, count), (_, more)) in self.0.iter_mut().zip(&other.0) {
            *count += more;
        }
    }

    /// The quantile by linear interpolation inside its bucket, as in Prometheus' `histogram_quantile`.
    #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
    pub(super) fn quantile(&self, quantile: f64) -> Option<Duration> {
        let mut left = rank(self.count(), quantile)?;
        let mut lower = 0.0;
        for (upper, count) in &self.0 {
            if left <= *count {
                let share = left as f64 / *count as f64;
                let seconds =
                    if upper.is_finite() { lower + (upper - lower) * share } else { lower };
                return Some(Duration::from_secs_f64(seconds));
            }
            left -= count;
            lower = *upper;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_place_whose_end_is_nearest_above() {
        for micros in (0..5000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX >> 8]) {
            let end = upper(place(micros));
            assert!(end >= micros && end - micros <= micros / 16, "{micros} {end}");
        }
    }

    #[test]
    fn quantiles_of_measured_durations() {
        let mut spread = Spread::default();
        assert_eq!(spread.quantile(0.5), None);
        (1..=100).for_each(|micros| spread.observe(Duration::from_micros(micros * 10)));
        let earlier = spread.clone();
        let micros = |spread: &Spread, q| spread.quantile(q).map(|q| q.as_micros());
        assert_eq!(micros(&spread, 0.5), Some(511));
        assert_eq!(micros(&spread, 0.99), Some(991));
        spread.observe(Duration::from_micros(3));
        assert_eq!(micros(&spread.since(&earlier), 0.99), Some(3));
    }

    #[test]
    fn quantiles_of_buckets_are_interpolated() {
        let buckets = Buckets(vec![(0.001, 50), (0.002, 40), (0.005, 10), (f64::INFINITY, 0)]);
        assert_eq!(buckets.quantile(0.5), Some(Duration::from_millis(1)));
        assert_eq!(buckets.quantile(0.7), Some(Duration::from_micros(1500)));
        assert_eq!(buckets.quantile(1.0), Some(Duration::from_millis(5)));
        let mut sum = buckets.since(&Buckets(vec![(0.001, 50)]));
        assert_eq!(sum.count(), 50);
        sum.add(&buckets);
        assert_eq!(sum.count(), 150);
        assert_eq!(Buckets::default().quantile(0.5), None);
    }
}
