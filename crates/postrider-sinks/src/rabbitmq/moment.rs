//! A moment, to notice that the process stood still.

use std::time::{Duration, Instant, SystemTime};

/// A moment, by two clocks: one of them may stand still while the machine does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(Instant, SystemTime);

impl Moment {
    pub(super) fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }
}
