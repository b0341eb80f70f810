//! What a demo breaks on purpose, one thing after the other, and how long it took until events flowed again.
//!
//! Pure: knows when the next act is due and when one is over. `show` does what it says.

use super::words;
use std::fmt::Write as _;
use std::time::Duration;

/// How long a frozen broker answers nobody.
pub(super) const FREEZE: Duration = Duration::from_secs(4);
/// Between two acts where nobody said how long the demo lasts.
const EVERY: Duration = Duration::from_secs(6);

/// One thing to break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// kill -9, and a new process.
    KillRelay,
    /// Connections stay open and nothing is answered.
    FreezeBroker,
    /// A fast shutdown, and a start on the same data.
    RestartDatabase,
}

impl Act {
    /// What is done, in words.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::KillRelay => "kill -9 of the relay",
            Self::FreezeBroker => "the broker is frozen",
            Self::RestartDatabase => "the database is restarted",
        }
    }
}

/// One act that is over, or not yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Played {
    pub(super) act: Act,
    /// When it began, by the demo's clock.
    pub(super) at: Duration,
    /// From its beginning until events flowed again; `None` while they don't.
    pub(super) back_after: Option<Duration>,
}

/// The acts of one run.
#[derive(Clone, Debug)]
pub(super) struct Chaos {
    round: Vec<Act>,
    step: Duration,
    endless: bool,
    pub(super) played: Vec<Played>,
}

impl Chaos {
    /// `round`, spread over `limit`; without a limit again and again (`--chaos`), or at a pace (`--kill`).
    pub(super) fn new(round: Vec<Act>, limit: Option<Duration>, again: bool) -> Self {
        let slots = u32::try_from(round.len() + 1).unwrap_or(u32::MAX);
        let step = limit.map_or(EVERY, |limit| limit / slots);
        Self { round, step, endless: again && limit.is_none(), played: Vec::new() }
    }

    /// Acts of one round.
    pub(super) fn planned(&self) -> usize {
        self.round.len()
    }

    /// Acts that were begun.
    pub(super) fn begun(&self) -> usize {
        self.played.len()
    }

    /// The act that is being played, or whose end is not overcome yet.
    pub(super) fn current(&self) -> Option<Played> {
        self.played.last().copied().filter(|played| played.back_after.is_none())
    }

    /// The next act, when its time has come and the one before is overcome.
    pub(super) fn due(&self, elapsed: Duration) -> Option<Act> {
        if self.current().is_some() {
            return None;
        }
        let begun = self.begun();
        let act = match self.round.len() {
            0 => None,
            count if self.endless => self.round.get(begun % count),
            _ => self.round.get(begun),
        };
        let number = u32::try_from(begun + 1).unwrap_or(u32::MAX);
        act.copied().filter(|_| elapsed >= self.step * number)
    }

    /// An act begins.
    pub(super) fn begin(&mut self, act: Act, at: Duration) {
        self.played.push(Played { act, at, back_after: None });
    }

    /// Events flow again.
    pub(super) fn overcome(&mut self, now: Duration) {
        if let Some(played) = self.played.last_mut() {
            played.back_after.get_or_insert(now.saturating_sub(played.at));
        }
    }

    /// Whether everything that was planned is over.
    pub(super) fn is_over(&self) -> bool {
        self.current().is_none() && (self.endless || self.begun() >= self.planned())
    }
}

/// The closing page of what was broken.
pub(super) fn page(played: &[Played]) -> String {
    let mut text = String::new();
    for Played { act, at, back_after } in played {
        let back = back_after.map_or_else(
            || "events did not flow again".to_owned(),
            |after| format!("events flowed again after {}", words::duration(Some(after))),
        );
        // Writing to a String does not fail.
        writeln!(text, "  {}  {:<26} {back}", words::clock(*at), act.words()).unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: [Act; 3] = [Act::KillRelay, Act::FreezeBroker, Act::RestartDatabase];

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn acts_are_spread_over_the_time_and_each_waits_for_the_one_before() {
        let mut chaos = Chaos::new(ROUND.to_vec(), Some(seconds(40)), true);
        assert_eq!(chaos.due(seconds(9)), None);
        assert_eq!(chaos.due(seconds(10)), Some(Act::KillRelay));
        chaos.begin(Act::KillRelay, seconds(10));
        assert_eq!(chaos.due(seconds(25)), None, "the first is not overcome");
        chaos.overcome(seconds(25));
        assert_eq!(chaos.played[0].back_after, Some(seconds(15)));
        assert_eq!(chaos.due(seconds(25)), Some(Act::FreezeBroker));
        chaos.begin(Act::FreezeBroker, seconds(25));
        chaos.overcome(seconds(26));
        chaos.begin(Act::RestartDatabase, seconds(30));
        assert!(!chaos.is_over());
        chaos.overcome(seconds(31));
        assert!(chaos.is_over());
        assert_eq!(chaos.due(seconds(99)), None);
    }

    #[test]
    fn without_an_end_the_round_begins_anew() {
        let mut chaos = Chaos::new(ROUND.to_vec(), None, true);
        for number in 1..=4 {
            let act = chaos.due(seconds(6 * number)).unwrap();
            chaos.begin(act, seconds(6 * number));
            chaos.overcome(seconds(6 * number + 1));
        }
        assert_eq!(chaos.played[3].act, Act::KillRelay);
    }

    #[test]
    fn the_page_fits_80_columns() {
        let played =
            ROUND.map(|act| Played { act, at: seconds(75), back_after: Some(seconds(12)) });
        let page = page(&played);
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        assert!(
            page.contains("01:15  the broker is frozen       events flowed again after 12.0 s"),
            "{page}"
        );
    }
}
