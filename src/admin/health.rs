//! Whether a pipeline lives and whether it is ready: rules over a snapshot and the time, nothing else.

use crate::status::{Snapshot, State};
use std::time::{Duration, Instant};

/// A loop that has not turned for longer is stuck. Longer than any step of a healthy one: the longest is a connect.
pub const TURN_MAX: Duration = Duration::from_secs(30);

/// Why a pipeline is not well, in one line; `None` where it is.
pub type Why = Option<String>;

/// Whether the loop turns. One that ended, as told or halted, is not dead: a restart would not mend it.
pub fn live(snapshot: &Snapshot, started: Instant, now: Instant) -> Why {
    match snapshot.state {
        State::Halted | State::Stopped => None,
        State::Starting
        | State::Streaming
        | State::Polling
        | State::CatchingUp
        | State::StandingBy
        | State::BrokerDown
        | State::SourceDown
        | State::ParkingFull
        | State::Draining => {
            let since = now.saturating_duration_since(snapshot.turned_at.unwrap_or(started));
            let seconds = since.as_secs();
            (since > TURN_MAX).then(|| format!("the loop has not turned for {seconds} s"))
        }
    }
}

/// Whether the pipeline streams, close behind the server.
pub fn ready(snapshot: &Snapshot, lag_max: Duration, started: Instant, now: Instant) -> Why {
    if let Some(stuck) = live(snapshot, started, now) {
        return Some(stuck);
    }
    match snapshot.state {
        State::Streaming | State::Polling | State::CatchingUp => {
            let (lag, max) = (snapshot.lag_seconds, lag_max.as_secs_f64());
            let behind = lag.is_nan() || lag >= max;
            behind.then(|| format!("the lag is {lag:.1} s, admin.ready_lag_max is {max} s"))
        }
        State::Starting
        | State::StandingBy
        | State::BrokerDown
        | State::SourceDown
        | State::ParkingFull
        | State::Draining
        | State::Halted
        | State::Stopped => Some(told(snapshot)),
    }
}

/// State, code and reason as one line.
fn told(snapshot: &Snapshot) -> String {
    let mut line = snapshot.state.name().to_owned();
    for part in [snapshot.halt_code, snapshot.reason.as_deref()].into_iter().flatten() {
        line.push_str(": ");
        line.push_str(&part.replace(['\n', '\r'], " "));
    }
    line
}
