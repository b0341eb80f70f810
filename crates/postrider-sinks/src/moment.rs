//! A moment, to notice that the process or its machine stood still.

use std::time::{Duration, Instant, SystemTime};

/// A moment, by two clocks: one of them may stand still while the machine does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Instant, SystemTime);

impl Moment {
    pub(crate) fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// The longer of the two times since this moment. A time of the day that is set back counts as nothing, and one
    /// that is set forward counts as time that has passed.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }

    /// A moment from so long ago, by the time of the day only.
    #[cfg(test)]
    pub(crate) fn suspended_for(time: Duration) -> Self {
        Self(Instant::now(), SystemTime::now() - time)
    }
}
