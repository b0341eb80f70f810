//! When each inbox is due: one that fails delays no other one, and one that takes long is read less often.

use super::pace::FAILURE_BACKOFF;
use crate::backoff::Backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// After a reading of an inbox there is none for so many times as long as it took: the reading of a large table that is
/// not the toolkit's counts its rows.
const READ_SHARE: u32 = 100;

/// What is done at an inbox.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum InboxJob {
    Drain,
    Read,
}

/// When a job is due at an inbox.
#[derive(Debug)]
struct JobPace {
    /// Not before this time.
    not_before: Instant,
    /// Pauses after failures.
    backoff: Backoff,
    /// Whether it failed the last time.
    is_failing: bool,
}

/// The inboxes at which a job has been done.
#[derive(Debug, Default)]
pub(super) struct InboxPaces(BTreeMap<(String, InboxJob), JobPace>);

impl InboxPaces {
    /// Whether the job may be done at `now`.
    pub(super) fn is_due(&self, inbox: &str, job: InboxJob, now: Instant) -> bool {
        let pace = self.0.get(&(inbox.to_owned(), job));
        pace.is_none_or(|pace| pace.not_before <= now)
    }

    /// The job has ended at `now`, after `took`.
    pub(super) fn ended(
        &mut self,
        inbox: &str,
        job: InboxJob,
        is_done: bool,
        now: Instant,
        took: Duration,
    ) {
        let pace = self.0.entry((inbox.to_owned(), job)).or_insert(JobPace {
            not_before: now,
            backoff: FAILURE_BACKOFF,
            is_failing: false,
        });
        let mut pause = match job {
            InboxJob::Drain => Duration::ZERO,
            InboxJob::Read => took.saturating_mul(READ_SHARE),
        };
        if is_done {
            pace.backoff.reset();
        } else {
            pause = pause.max(pace.backoff.next(fastrand::f64()));
        }
        pace.is_failing = !is_done;
        pace.not_before = now + pause;
    }

    /// Forgets all inboxes but these.
    pub(super) fn keep(&mut self, inboxes: &BTreeSet<String>) {
        self.0.retain(|(inbox, _), _| inboxes.contains(inbox));
    }

    /// Whether each job was done the last time.
    pub(super) fn all_done(&self) -> bool {
        self.0.values().all(|pace| !pace.is_failing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_that_fails_is_tried_less_and_less_often_and_delays_no_other_one() {
        let start = Instant::now();
        let mut paces = InboxPaces::default();
        assert!(paces.is_due("mail", InboxJob::Drain, start) && paces.all_done());
        for _ in 0..10 {
            paces.ended("mail", InboxJob::Drain, false, start, Duration::ZERO);
        }
        assert!(!paces.all_done());
        assert!(!paces.is_due("mail", InboxJob::Drain, start + Duration::from_mins(2)));
        assert!(paces.is_due("mail", InboxJob::Drain, start + Duration::from_mins(5)));
        assert!(paces.is_due("mail", InboxJob::Read, start));
        assert!(paces.is_due("other", InboxJob::Drain, start));
        paces.keep(&BTreeSet::from(["other".to_owned()]));
        assert!(paces.all_done());
    }

    #[test]
    fn a_reading_that_takes_long_takes_one_percent_of_the_time() {
        let start = Instant::now();
        let mut paces = InboxPaces::default();
        paces.ended("mail", InboxJob::Read, true, start, Duration::from_secs(2));
        assert!(!paces.is_due("mail", InboxJob::Read, start + Duration::from_secs(199)));
        assert!(paces.is_due("mail", InboxJob::Read, start + Duration::from_secs(200)));
        paces.ended("mail", InboxJob::Drain, true, start, Duration::from_secs(2));
        assert!(paces.is_due("mail", InboxJob::Drain, start));
    }
}
