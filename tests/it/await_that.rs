//! Level-triggered waiting: ask again until the state is there, or fail with what was seen last.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

/// How long a state that is sure to come may take on a small machine that is busy with other tests. Nothing waits so
/// long but a failure; where the time itself is the promise, the test names its own.
pub(crate) const SOON: Duration = Duration::from_mins(5);

/// How long one look may take; then it is made anew. A call of librdkafka's that waits for a broker which has just
/// thawed was seen to hang for minutes.
const LOOK_MAX: Duration = Duration::from_secs(75);

/// Pause between two looks: a twentieth of what was waited already, between these two. A look may be a connection to a
/// server, and the looks of eight tests that wait long would keep two processors busy.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Asks `probe` until it answers `Ok`. Its `Err` says what was seen instead; the last one is printed at the deadline.
pub(crate) async fn await_that<T, E, F, P>(what: &str, deadline: Duration, mut probe: P) -> T
where
    E: Display,
    F: Future<Output = Result<T, E>>,
    P: FnMut() -> F,
{
    await_or_dump(what, deadline, &mut probe, String::new).await
}

/// As [`await_that`]; `dump` adds what a reader of the failure wants to see (a log, a status).
pub(crate) async fn await_or_dump<T, E, F, P, D>(
    what: &str,
    deadline: Duration,
    mut probe: P,
    dump: D,
) -> T
where
    E: Display,
    F: Future<Output = Result<T, E>>,
    P: FnMut() -> F,
    D: FnOnce() -> String,
{
    let start = Instant::now();
    let mut ticks = tokio::time::interval(PAUSE_MAX);
    let mut seen = String::from("nothing yet");
    loop {
        ticks.tick().await;
        // A probe that hangs is a state that did not come.
        let left = deadline.saturating_sub(start.elapsed()).max(PAUSE_MIN);
        match tokio::time::timeout(left.min(LOOK_MAX), probe()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(now)) => seen = now.to_string(),
            Err(elapsed) => seen = format!("{seen}; the next look did not return: {elapsed}"),
        }
        assert!(
            start.elapsed() < deadline,
            "waited {deadline:?} for: {what}\nlast seen: {seen}\n{}",
            dump()
        );
        ticks.reset_after((start.elapsed() / 20).clamp(PAUSE_MIN, PAUSE_MAX));
    }
}
