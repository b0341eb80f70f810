//! The schedule of the failures that a demo injects, and how long events stopped flowing after each.
//!
//! Pure: it decides when the next failure is due and when a failure is over; `run` injects it.

use super::words;
use std::fmt::Write as _;
use std::time::Duration;

/// How long a frozen broker does not answer.
pub(super) const FREEZE: Duration = Duration::from_secs(4);
/// Between two failures of a demo without a time limit.
const EVERY: Duration = Duration::from_secs(6);

/// A kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FailureKind {
    /// kill -9 of the relay, then a new process.
    KillRelay,
    /// The broker does not answer, but its connections stay open.
    FreezeBroker,
    /// kill -9 of the broker, then a start on the same data.
    KillBroker,
    /// A fast shutdown of the database, then a start on the same data.
    RestartDatabase,
}

impl FailureKind {
    /// The failure in words.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::KillRelay => "kill -9 of the relay",
            Self::FreezeBroker => "broker frozen for 4 s",
            Self::KillBroker => "kill -9 of the broker",
            Self::RestartDatabase => "restart of the database",
        }
    }
}

/// All failures, in the order of a round.
pub(super) const ROUND: [FailureKind; 4] = [
    FailureKind::KillRelay,
    FailureKind::FreezeBroker,
    FailureKind::KillBroker,
    FailureKind::RestartDatabase,
];

/// A failure that was injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Injected {
    pub(super) failure: FailureKind,
    /// When the failure began, from the start of the demo.
    pub(super) at: Duration,
    /// From its beginning until events flowed again; `None` until they do.
    pub(super) back_after: Option<Duration>,
}

/// The failures of one run.
#[derive(Clone, Debug)]
pub(super) struct Chaos {
    round: Vec<FailureKind>,
    step: Duration,
    endless: bool,
    pub(super) injected: Vec<Injected>,
}

impl Chaos {
    /// The failures of `round`, spread over `limit`. Without a limit they come at a fixed interval, with `again`
    /// (`--chaos`) repeatedly.
    pub(super) fn new(round: Vec<FailureKind>, limit: Option<Duration>, again: bool) -> Self {
        let slots = u32::try_from(round.len() + 1).unwrap_or(u32::MAX);
        let step = limit.map_or(EVERY, |limit| limit / slots);
        Self { round, step, endless: again && limit.is_none(), injected: Vec::new() }
    }

    /// Number of failures in one round.
    pub(super) fn planned(&self) -> usize {
        self.round.len()
    }

    /// Number of failures that were injected.
    pub(super) fn begun(&self) -> usize {
        self.injected.len()
    }

    /// The failure from which the relay has not recovered yet.
    pub(super) fn current(&self) -> Option<Injected> {
        self.injected.last().copied().filter(|injected| injected.back_after.is_none())
    }

    /// The next failure, if it is due and the relay has recovered from the one before.
    pub(super) fn due(&self, elapsed: Duration) -> Option<FailureKind> {
        if self.current().is_some() {
            return None;
        }
        let begun = self.begun();
        let failure = match self.round.len() {
            0 => None,
            count if self.endless => self.round.get(begun % count),
            _ => self.round.get(begun),
        };
        let number = u32::try_from(begun + 1).unwrap_or(u32::MAX);
        failure.copied().filter(|_| elapsed >= self.step * number)
    }

    /// Registers the beginning of a failure.
    pub(super) fn begin(&mut self, failure: FailureKind, at: Duration) {
        self.injected.push(Injected { failure, at, back_after: None });
    }

    /// Registers that events flow again.
    pub(super) fn recovered(&mut self, now: Duration) {
        if let Some(injected) = self.injected.last_mut() {
            injected.back_after.get_or_insert(now.saturating_sub(injected.at));
        }
    }

    /// Whether all planned failures are over.
    pub(super) fn is_over(&self) -> bool {
        self.current().is_none() && (self.endless || self.begun() >= self.planned())
    }
}

/// The failures, for the report.
pub(super) fn page(injected: &[Injected]) -> String {
    let mut text = String::new();
    for Injected { failure, at, back_after } in injected {
        let back = back_after.map_or_else(
            || "events did not flow again".to_owned(),
            |after| format!("events flowed again after {}", words::duration(Some(after))),
        );
        // Writing to a String does not fail.
        writeln!(text, "  {}  {:<26} {back}", words::clock(*at), failure.words())
            .unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: [FailureKind; 3] =
        [FailureKind::KillRelay, FailureKind::FreezeBroker, FailureKind::RestartDatabase];

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn acts_are_spread_over_the_time_and_each_waits_for_the_one_before() {
        let mut chaos = Chaos::new(THREE.to_vec(), Some(seconds(40)), true);
        assert_eq!(chaos.due(seconds(9)), None);
        assert_eq!(chaos.due(seconds(10)), Some(FailureKind::KillRelay));
        chaos.begin(FailureKind::KillRelay, seconds(10));
        assert_eq!(chaos.due(seconds(25)), None, "not recovered from the first");
        chaos.recovered(seconds(25));
        assert_eq!(chaos.injected[0].back_after, Some(seconds(15)));
        assert_eq!(chaos.due(seconds(25)), Some(FailureKind::FreezeBroker));
        chaos.begin(FailureKind::FreezeBroker, seconds(25));
        chaos.recovered(seconds(26));
        chaos.begin(FailureKind::RestartDatabase, seconds(30));
        assert!(!chaos.is_over());
        chaos.recovered(seconds(31));
        assert!(chaos.is_over());
        assert_eq!(chaos.due(seconds(99)), None);
    }

    #[test]
    fn without_a_limit_the_round_is_repeated() {
        let mut chaos = Chaos::new(THREE.to_vec(), None, true);
        for number in 1..=4 {
            let failure = chaos.due(seconds(6 * number)).unwrap();
            chaos.begin(failure, seconds(6 * number));
            chaos.recovered(seconds(6 * number + 1));
        }
        assert_eq!(chaos.injected[3].failure, FailureKind::KillRelay);
    }

    #[test]
    fn the_page_fits_80_columns() {
        let injected = ROUND.map(|failure| Injected {
            failure,
            at: seconds(75),
            back_after: Some(seconds(12)),
        });
        let page = page(&injected);
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        assert!(
            page.contains("01:15  broker frozen for 4 s      events flowed again after 12.0 s"),
            "{page}"
        );
    }
}
