//! Conditions that last, such as an outage: when they are logged, and how long and how often they were found.
//!
//! A condition is logged at once, with a new reason after a short pause, and otherwise at growing intervals. Reasons
//! are compared without digits and without text in brackets, because times and counts change with every attempt.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A lasting condition is logged again after this time, then after twice as long, up to one hour.
const REPEAT_FIRST: Duration = Duration::from_secs(30);
const REPEAT_LAST: Duration = Duration::from_hours(1);

/// The shortest pause before a new reason is logged.
const NEW_REASON_PAUSE: Duration = Duration::from_secs(5);

/// Reasons that a condition remembers as logged, so that alternating reasons are not new each time.
const REASONS_MAX: usize = 8;

/// A condition that lasts.
#[derive(Debug)]
pub(crate) struct Condition {
    /// The last reason.
    pub(crate) reason: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// When the condition began.
    since: Instant,
    /// How often it was found.
    tries: u64,
    /// Reasons that were logged, without figures; the newest first.
    reported: VecDeque<String>,
    /// When a line was last due.
    reported_at: Instant,
    /// Pause before the next line.
    repeat: Duration,
}

/// How long a condition has lasted and how often it was found, when a log line is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DueReport {
    /// Seconds since the condition began.
    pub(crate) seconds: u64,
    /// How often the condition was found.
    pub(crate) tries: u64,
}

impl DueReport {
    /// `40 s, 3 tries`
    pub(crate) fn text(self) -> String {
        format!("{}, {} tries", duration_text(self.seconds), self.tries)
    }
}

impl Condition {
    /// Notes in `slot` that a condition was found at `now`. Returns how long and how often, if a log line is due.
    pub(crate) fn note(
        slot: &mut Option<Self>,
        reason: String,
        hint: Option<String>,
        now: Instant,
    ) -> Option<DueReport> {
        if let Some(condition) = slot {
            return condition.note_again(reason, hint, now);
        }
        let (reported, repeat) = (VecDeque::from([without_figures(&reason)]), REPEAT_FIRST);
        *slot =
            Some(Self { reason, hint, since: now, tries: 1, reported, reported_at: now, repeat });
        Some(DueReport { seconds: 0, tries: 1 })
    }

    fn note_again(
        &mut self,
        reason: String,
        hint: Option<String>,
        now: Instant,
    ) -> Option<DueReport> {
        self.tries += 1;
        (self.reason, self.hint) = (reason, hint);
        let without_figures = without_figures(&self.reason);
        let since_report = now.saturating_duration_since(self.reported_at);
        let is_new = since_report >= NEW_REASON_PAUSE && !self.reported.contains(&without_figures);
        if !is_new && since_report < self.repeat {
            return None;
        }
        self.reported_at = now;
        if is_new {
            self.reported.truncate(REASONS_MAX - 1);
            self.reported.push_front(without_figures);
        }
        self.repeat = if is_new { REPEAT_FIRST } else { (self.repeat * 2).min(REPEAT_LAST) };
        Some(DueReport { seconds: self.seconds(now), tries: self.tries })
    }

    /// How long the condition has lasted. Unit: seconds.
    pub(crate) fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs()
    }
}

/// Lines a minute about things of which there may be thousands.
const LINES_A_MINUTE: u32 = 20;

/// Lets a few lines a minute through, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct LogRateLimit {
    /// Beginning of the current minute.
    since: Option<Instant>,
    /// Lines in this minute.
    passed: u32,
    /// Lines suppressed since the last one.
    suppressed: u64,
}

impl LogRateLimit {
    /// `Some(n)` if a line may be logged, after `n` suppressed ones; `None` otherwise.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        let minute = Duration::from_mins(1);
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= minute) {
            (self.since, self.passed) = (Some(now), 0);
        }
        if self.passed == LINES_A_MINUTE {
            self.suppressed += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// A reason without the parts that change from attempt to attempt.
fn without_figures(reason: &str) -> String {
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

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `40 s`, `12 min`, `3 h 5 min`
pub(crate) fn duration_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes a condition every 15 s for `hours`; returns when a log line was due.
    fn reports_of(hours: u64, reason: impl Fn(u64) -> String) -> Vec<DueReport> {
        let (start, mut slot) = (Instant::now(), None);
        let times = (0..hours * 3600).step_by(15);
        let reports = times.filter_map(|second| {
            let now = start + Duration::from_secs(second);
            Condition::note(&mut slot, reason(second), None, now)
        });
        reports.collect()
    }

    #[test]
    fn outage_of_a_day_is_reported_at_growing_intervals_with_duration_and_count() {
        let reports = reports_of(24, |_| "no answer".to_owned());
        let seconds: Vec<u64> = reports.iter().map(|due| due.seconds).collect();
        assert_eq!(seconds[..7], [0, 30, 90, 210, 450, 930, 1890]);
        assert!(reports.len() < 32, "{} lines in a day", reports.len());
        assert_eq!(reports[4], DueReport { seconds: 450, tries: 31 });
        assert_eq!(reports[4].text(), "7 min, 31 tries");
    }

    #[test]
    fn changing_figures_do_not_make_a_reason_new() {
        let reported =
            reports_of(1, |second| format!("refused (after {second} ms in state CONNECT)"));
        assert_eq!(reported.len(), reports_of(1, |_| "refused".to_owned()).len());
    }

    #[test]
    fn another_reason_is_news_but_not_every_time() {
        let (start, mut slot) = (Instant::now(), None);
        let mut at = |millis, reason: &str| {
            let now = start + Duration::from_millis(millis);
            Condition::note(&mut slot, reason.to_owned(), None, now).is_some()
        };
        assert!(at(0, "no address"));
        assert!(!at(100, "refused"));
        assert!(at(6_000, "refused"));
        assert!(!at(7_000, "refused"));
        assert!(!at(8_000, "no address"));
    }

    /// The messages of librdkafka about a broker that is down, found in an outage of one hour.
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
        let reported = reports_of(1, reason);
        assert!(
            reported.len() <= reports_of(1, |_| "refused".to_owned()).len() + 1,
            "{reported:?}"
        );
    }

    #[test]
    fn flood_is_limited_to_a_few_lines_a_minute() {
        let (start, mut limit) = (Instant::now(), LogRateLimit::default());
        let reported = (0..1000).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(reported, 20);
        assert_eq!(limit.admit(start + Duration::from_mins(1)), Some(980));
    }

    #[test]
    fn durations_are_written_for_people() {
        assert_eq!(
            [
                duration_text(0),
                duration_text(119),
                duration_text(725),
                duration_text(7_200),
                duration_text(90_061)
            ],
            ["0 s", "119 s", "12 min", "2 h 0 min", "25 h 1 min"]
        );
    }
}
