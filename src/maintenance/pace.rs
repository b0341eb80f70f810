//! When the work of an owner begins, when its steps are due, its pauses after failures, and how it is cancelled: the
//! same for each task.

use crate::backoff::Backoff;
use crate::postgres::client::Canceller;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The first run begins so long after the pipeline has begun to stream or poll, so that a process that only reconnects
/// again and again does not log in for maintenance too.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses after failed runs.
pub(super) const FAILURE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// When the steps of a task are due, each by itself: one that fails delays no other one.
#[derive(Debug)]
pub(super) struct Schedule<S, const N: usize>([StepSchedule<S>; N]);

/// When a step is due.
#[derive(Debug)]
struct StepSchedule<S> {
    step: S,
    /// When it is done next.
    at: Instant,
    /// Pauses after failures.
    backoff: Backoff,
    /// Whether it failed the last time.
    is_failing: bool,
}

impl<S: Copy + PartialEq, const N: usize> Schedule<S, N> {
    /// Every step is due at `at`, in this order.
    pub(super) fn new(steps: [S; N], at: Instant) -> Self {
        Self(steps.map(|step| StepSchedule {
            step,
            at,
            backoff: FAILURE_BACKOFF,
            is_failing: false,
        }))
    }

    /// When the next step is due.
    pub(super) fn next_at(&self) -> Instant {
        self.0.iter().map(|step| step.at).min().unwrap_or_else(Instant::now)
    }

    /// No step is due before `at`.
    pub(super) fn postpone(&mut self, at: Instant) {
        for step in &mut self.0 {
            step.at = step.at.max(at);
        }
    }

    /// The steps that are due.
    pub(super) fn due(&self, now: Instant) -> Vec<S> {
        self.0.iter().filter(|step| step.at <= now).map(|step| step.step).collect()
    }

    /// A step has ended at `now`. The next one is after `pause`, after a failure not earlier than that.
    pub(super) fn ended(&mut self, step: S, is_done: bool, now: Instant, pause: Duration) {
        for schedule in self.0.iter_mut().filter(|schedule| schedule.step == step) {
            schedule.is_failing = !is_done;
            schedule.at = now
                + if is_done {
                    schedule.backoff.reset();
                    pause
                } else {
                    pause.max(schedule.backoff.next(fastrand::f64()))
                };
        }
    }

    /// Whether each step was done the last time.
    pub(super) fn all_done(&self) -> bool {
        self.0.iter().all(|step| !step.is_failing)
    }
}

/// How long a cancelled statement may take to end; after that its connection is closed.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// Pause between two cancel requests: the first one may have arrived between two statements.
const CANCEL_PAUSE: Duration = Duration::from_millis(300);

/// Cancels statements until they have ended, so that the next owner of the pipeline does not wait for their locks.
pub(super) async fn cancel(canceller: Option<Canceller>, statements: impl Future) {
    let cancelling = async {
        loop {
            // A request that can't be sent is sent again. The statement has its time-out anyway.
            if let Some(canceller) = &canceller {
                drop(canceller.cancel().await);
            }
            sleep(CANCEL_PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        _ = statements => {}
        () = cancelling => {}
        () = sleep(CANCEL_MAX) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [(char, u64); 3] = [('a', 5), ('b', 60), ('c', 10)];

    #[test]
    fn steps_are_due_after_their_pauses_and_not_before() {
        let start = Instant::now();
        let mut schedule = Schedule::new(STEPS, start);
        let mut counts = [0; 3];
        while schedule.next_at() < start + Duration::from_mins(1) {
            let now = schedule.next_at();
            for step in schedule.due(now) {
                counts[STEPS.iter().position(|known| *known == step).unwrap()] += 1;
                schedule.ended(step, true, now, Duration::from_secs(step.1));
            }
            assert!(schedule.next_at() > now);
        }
        assert_eq!(counts, [12, 1, 6]);
        let later = start + Duration::from_mins(5);
        schedule.postpone(later);
        assert_eq!((schedule.next_at(), schedule.due(later)), (later, STEPS.to_vec()));
    }

    #[test]
    fn a_step_that_fails_delays_no_other_one_and_is_known_until_it_is_done() {
        let start = Instant::now();
        let mut schedule = Schedule::new(STEPS, start);
        let [first, second, third] = STEPS;
        schedule.ended(first, true, start, Duration::from_secs(5));
        schedule.ended(third, true, start, Duration::from_secs(10));
        for _ in 0..8 {
            schedule.ended(second, false, start, Duration::from_mins(1));
        }
        assert_eq!(schedule.next_at(), start + Duration::from_secs(5));
        schedule.ended(first, true, start, Duration::from_secs(5));
        assert!(!schedule.all_done());
        // Neither more often than without a failure, nor less often than every 5 minutes.
        let at = schedule.0[1].at;
        assert!(at >= start + Duration::from_mins(1) && at <= start + Duration::from_mins(5));
        schedule.ended(second, true, start, Duration::from_mins(1));
        assert!(schedule.all_done());
    }
}
