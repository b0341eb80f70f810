//! A timer for a loop whose deadline mostly stays the same or moves later.
//!
//! Setting a timer of the runtime costs a system call that wakes its own thread, so the timer is set again only when it
//! fires before the current deadline.

use std::pin::Pin;
use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is set again only when needed.
#[derive(Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Waits until `time`. Cancel-safe.
    pub(super) async fn at(&mut self, time: Instant) {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(time)));
        while Instant::now() < time {
            if sleep.is_elapsed() || time < sleep.deadline() {
                sleep.as_mut().reset(time);
            }
            sleep.as_mut().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Waker};
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    /// Whether the timer has fired, polled once.
    fn fires(timer: &mut Timer, time: Instant) -> bool {
        let wait = std::pin::pin!(timer.at(time));
        wait.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn with_clock(test: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { test() });
    }

    #[test]
    fn timer_fires_at_its_time_and_not_before() {
        with_clock(|| {
            let (mut timer, now) = (Timer::default(), Instant::now());
            assert!(!fires(&mut timer, now + 60 * SECOND));
            assert!(fires(&mut timer, now), "an earlier time counts at once");
            assert!(!fires(&mut timer, now + 60 * SECOND), "the one before is over");
        });
    }

    #[test]
    fn what_is_set_for_an_earlier_time_is_set_again_when_it_fires() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mut timer, now) = (Timer::default(), Instant::now());
            assert!(!fires(&mut timer, now + SECOND / 100));
            timer.at(now + SECOND / 20).await;
            assert!(now.elapsed() >= SECOND / 20, "it fired at the later time");
            timer.at(now + SECOND / 10).await;
            assert!(now.elapsed() >= SECOND / 10);
        });
    }

    #[test]
    fn timer_moved_to_an_earlier_time_fires_at_that_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mut timer, now) = (Timer::default(), Instant::now());
            assert!(!fires(&mut timer, now + 3600 * SECOND));
            let soon = tokio::time::timeout(20 * SECOND, timer.at(now + SECOND / 100));
            assert!(soon.await.is_ok(), "it waits for the time that it was set for first");
        });
    }
}
