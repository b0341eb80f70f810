//! Something that is wrong and lasts: when to speak of it, and in which words.
//!
//! The first time at once; a new reason soon; the same again at growing intervals, with how long and how often. Reasons
//! are compared without digits and without what stands in brackets: times and counts change with every try.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What lasts is said again after this long, then after twice as long, up to an hour.
const REPEAT_FIRST: Duration = Duration::from_secs(30);
const REPEAT_LAST: Duration = Duration::from_hours(1);

/// A new reason is told this seldom.
const NEWS_PAUSE: Duration = Duration::from_secs(5);

/// Reasons that are remembered as told, each trouble: those that alternate are no news each time.
const TOLD_MAX: usize = 8;

/// Something that is wrong and lasts.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) reason: String,
    pub(super) hint: Option<String>,
    since: Instant,
    tries: u64,
    told: VecDeque<String>,
    said_at: Instant,
    repeat: Duration,
}

/// How long and how often, when it is time to speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    /// Seconds since it began.
    pub(super) seconds: u64,
    /// How often it was found so.
    pub(super) tries: u64,
}

impl Due {
    /// `40 s, 3 tries`
    pub(super) fn words(self) -> String {
        format!("{}, {} tries", span(self.seconds), self.tries)
    }
}

impl Trouble {
    /// Notes in `slot` that something is so, at `now`; how long and how often, when it is time to speak of it.
    pub(super) fn note(
        slot: &mut Option<Self>,
        reason: String,
        hint: Option<String>,
        now: Instant,
    ) -> Option<Due> {
        if let Some(trouble) = slot {
            return trouble.again(reason, hint, now);
        }
        let (told, repeat) = (VecDeque::from([essence(&reason)]), REPEAT_FIRST);
        *slot = Some(Self { reason, hint, since: now, tries: 1, told, said_at: now, repeat });
        Some(Due { seconds: 0, tries: 1 })
    }

    fn again(&mut self, reason: String, hint: Option<String>, now: Instant) -> Option<Due> {
        self.tries += 1;
        (self.reason, self.hint) = (reason, hint);
        let essence = essence(&self.reason);
        let silent = now.saturating_duration_since(self.said_at);
        let news = silent >= NEWS_PAUSE && !self.told.contains(&essence);
        if !news && silent < self.repeat {
            return None;
        }
        self.said_at = now;
        if news {
            self.told.truncate(TOLD_MAX - 1);
            self.told.push_front(essence);
        }
        self.repeat = if news { REPEAT_FIRST } else { (self.repeat * 2).min(REPEAT_LAST) };
        Some(Due { seconds: self.seconds(now), tries: self.tries })
    }

    /// How long it has been so. Unit: seconds.
    pub(super) fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs()
    }
}

/// Lines a minute of things that may come by the thousand.
const FEW: u32 = 20;

/// Lets a few lines a minute through, and counts the rest.
#[derive(Debug, Default)]
pub(super) struct Few {
    since: Option<Instant>,
    passed: u32,
    suppressed: u64,
}

impl Few {
    /// `Some(n)` lets a line through, after `n` that were not; `None` does not.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        let minute = Duration::from_mins(1);
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= minute) {
            (self.since, self.passed) = (Some(now), 0);
        }
        if self.passed == FEW {
            self.suppressed += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// A reason without what changes from try to try.
fn essence(reason: &str) -> String {
    let mut depth = 0_u32;
    let lasting = |c: &char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0 && !c.is_ascii_digit(),
        }
        false
    };
    reason.chars().filter(lasting).collect()
}

/// `40 s`, `12 min`, `3 h 5 min`
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries every 15 s for so long, always the same; when it was spoken of.
    fn spoken(hours: u64, reason: impl Fn(u64) -> String) -> Vec<Due> {
        let (start, mut slot) = (Instant::now(), None);
        let times = (0..hours * 3600).step_by(15);
        let said = times.filter_map(|second| {
            let now = start + Duration::from_secs(second);
            Trouble::note(&mut slot, reason(second), None, now)
        });
        said.collect()
    }

    #[test]
    fn an_outage_of_a_day_is_told_at_growing_intervals_with_how_long_and_how_often() {
        let said = spoken(24, |_| "no answer".to_owned());
        let seconds: Vec<u64> = said.iter().map(|due| due.seconds).collect();
        assert_eq!(seconds[..7], [0, 30, 90, 210, 450, 930, 1890]);
        assert!(said.len() < 32, "{} lines in a day", said.len());
        assert_eq!(said[4], Due { seconds: 450, tries: 31 });
        assert_eq!(said[4].words(), "7 min, 31 tries");
    }

    #[test]
    fn figures_that_change_in_a_reason_are_no_news() {
        let told = spoken(1, |second| format!("refused (after {second} ms in state CONNECT)"));
        assert_eq!(told.len(), spoken(1, |_| "refused".to_owned()).len());
    }

    #[test]
    fn another_reason_is_news_but_not_every_time() {
        let (start, mut slot) = (Instant::now(), None);
        let mut at = |millis, reason: &str| {
            let now = start + Duration::from_millis(millis);
            Trouble::note(&mut slot, reason.to_owned(), None, now).is_some()
        };
        assert!(at(0, "no address"));
        assert!(!at(100, "refused"));
        assert!(at(6_000, "refused"));
        assert!(!at(7_000, "refused"));
        assert!(!at(8_000, "no address"));
    }

    /// As librdkafka words a broker that is down, found in an outage of an hour.
    #[test]
    fn reasons_that_alternate_are_no_news_each_time() {
        let reason = |second: u64| {
            let (of, more) = (["bootstrap", "1"][usize::from(second % 2 == 1)], second / 3);
            match second % 45 {
                0 => format!("host:9092/{of}: refused (after 0ms in state CONNECT)"),
                _ => format!(
                    "host:9092/{of}: refused (after 3ms, {more} identical error(s) suppressed)"
                ),
            }
        };
        let told = spoken(1, reason);
        assert!(told.len() <= spoken(1, |_| "refused".to_owned()).len() + 1, "{told:?}");
    }

    #[test]
    fn a_flood_is_told_by_a_few_lines_a_minute() {
        let (start, mut few) = (Instant::now(), Few::default());
        let told = (0..1000).filter(|_| few.admit(start).is_some()).count();
        assert_eq!(told, 20);
        assert_eq!(few.admit(start + Duration::from_mins(1)), Some(980));
    }

    #[test]
    fn spans_are_written_for_people() {
        assert_eq!(
            [span(0), span(119), span(725), span(7_200), span(90_061)],
            ["0 s", "119 s", "12 min", "2 h 0 min", "25 h 1 min"]
        );
    }
}
