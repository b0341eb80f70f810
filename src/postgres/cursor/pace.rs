//! When the row is due, and what may be confirmed in the meantime.
//!
//! Pure; the driver asks before each confirmation and after each batch. Writing the row makes WAL, WAL makes a keepalive, and
//! a keepalive moves the watermark: so an idle pipeline writes only when the server has moved on by more than a row.

use super::Cursor;
use crate::event::Position;
use crate::lsn::{Lsn, Watermark};
use std::time::{Duration, Instant};

/// While idle, the row is not written more often than this. The slot then keeps up with a busy server within 10 s.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// While idle, the row is written when the watermark is this far past it: more than its own write can make (one row version,
/// a commit, and after a checkpoint an image of the page). Unit: bytes of WAL.
pub const IDLE_BYTES_MIN: u64 = 64 * 1024;

/// What the row says, and when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    interval: Duration,
    watermark: Watermark,
    partial: Option<Position>,
    flush_limit: Lsn,
    written_at: Instant,
}

impl Pace {
    /// From the row that a stream starts with. `interval`: `flow.cursor_interval`.
    pub fn new(row: &Cursor, interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            watermark: row.watermark,
            partial: row.partial,
            flush_limit: row.flush_limit,
            written_at: now,
        }
    }

    /// Whether `watermark` may be confirmed to the server: the row says that it may have been.
    pub fn allows(&self, watermark: Watermark) -> bool {
        watermark.lsn() <= self.flush_limit
    }

    /// Whether the row is to be written now. `delivered`: an event was resolved since the last write.
    pub fn due(
        &self,
        watermark: Watermark,
        partial: Option<Position>,
        delivered: bool,
        now: Instant,
    ) -> bool {
        if watermark == self.watermark && partial == self.partial {
            return false;
        }
        let since = now.saturating_duration_since(self.written_at);
        if delivered {
            return since >= self.interval;
        }
        since >= IDLE_INTERVAL
            && watermark.lsn().bytes_since(self.watermark.lsn()) >= IDLE_BYTES_MIN
    }

    /// The row has been written ([`super::Written::Stored`]).
    pub fn written(&mut self, row: &Cursor, now: Instant) {
        self.watermark = row.watermark;
        self.partial = row.partial;
        self.flush_limit = self.flush_limit.max(row.flush_limit).max(row.watermark.lsn());
        self.written_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::fence::tests::{at, good};

    fn watermark(text: &str) -> Watermark {
        Watermark::resumed(at(text))
    }

    #[test]
    fn nothing_is_confirmed_before_the_row_allows_it() {
        let now = Instant::now();
        let mut row = good().cursor.unwrap();
        let mut pace = Pace::new(&row, Duration::from_secs(1), now);
        assert!(pace.allows(watermark("0/5800")));
        assert!(!pace.allows(watermark("0/5801")));
        row.watermark = watermark("0/6000");
        row.flush_limit = at("0/7000");
        pace.written(&row, now);
        assert!(pace.allows(watermark("0/7000")));
        assert!(!pace.allows(watermark("0/7001")));
    }

    #[test]
    fn a_delivery_makes_the_row_due_after_the_interval() {
        let now = Instant::now();
        let row = good().cursor.unwrap();
        let pace = Pace::new(&row, Duration::from_secs(1), now);
        let (soon, later) = (now + Duration::from_millis(999), now + Duration::from_secs(1));
        assert!(!pace.due(watermark("0/5001"), None, true, soon));
        assert!(pace.due(watermark("0/5001"), None, true, later));
        assert!(!pace.due(row.watermark, None, true, later));
        let partial = Some(Position { commit_lsn: at("0/5000"), ordinal: 1 });
        assert!(pace.due(row.watermark, partial, true, later));
    }

    #[test]
    fn an_idle_pipeline_does_not_feed_itself() {
        let now = Instant::now();
        let pace = Pace::new(&good().cursor.unwrap(), Duration::from_secs(1), now);
        let later = now + IDLE_INTERVAL;
        let soon = now + IDLE_INTERVAL / 2;
        assert!(!pace.due(watermark("0/14FFF"), None, false, later));
        assert!(pace.due(watermark("0/15000"), None, false, later));
        assert!(!pace.due(watermark("0/15000"), None, false, soon));
    }
}
