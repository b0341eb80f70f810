//! When the cursor row is written, and what may be confirmed after it.
//!
//! The row comes first, the confirmation second: so a slot that stands past the row was moved by somebody else, and a
//! start can say so instead of guessing. Whatever is confirmed is therefore never ahead of what the database
//! remembers.

use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use pg_replication::lsn::Watermark;
use std::time::Duration;

/// A row written while nothing is delivered is itself WAL, which moves the watermark, which would want a row. Less
/// than this many bytes of WAL are not worth one; a row with its commit, and the page image after a checkpoint, are.
const IDLE_STEP_BYTES: u64 = 4096;

/// Pause between two rows while nothing is delivered and other tables are busy.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);

/// A row is also due when this many events were delivered since the last one: a crash repeats them, and while a
/// backlog drains an interval is a lot of events. So many may be delivered besides while that row is being written.
const DELIVERED_EVENTS_MAX: u64 = 10_000;

/// The first rows of a process follow each other sooner, each pause twice the last up to the interval: one that is
/// killed again and again gets on all the same.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Pause before a row is written again that was held back.
const HELD_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of published events that the last written row does not cover, while the next row waits for marks. At
/// this number the intake closes. A crash repeats at most this many.
pub(super) const HELD_EVENTS_MAX: u64 = 1_000_000;

/// How far tickets have come.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tickets {
    /// The first from here on: the lowest that is not resolved, or the next.
    pub(super) from: u64,
    /// How many were issued for what is no event.
    pub(super) skipped: u64,
}

#[derive(Debug)]
pub(super) struct Feedback {
    cursor_interval: Duration,
    /// What the row says, and what was not resolved then.
    row: Progress,
    behind_row: Tickets,
    /// The same of the one that is being written.
    writing: Option<(Progress, Tickets)>,
    written_at: Option<Duration>,
    /// The last one was held back.
    held: bool,
    /// Rows written by this process.
    rows: u32,
    /// Events delivered since the last row.
    delivered: u64,
    confirmed: Watermark,
}

impl Feedback {
    pub(super) fn new(cursor_interval: Duration) -> Self {
        Self {
            cursor_interval,
            row: Progress::default(),
            behind_row: Tickets::default(),
            writing: None,
            written_at: None,
            held: false,
            rows: 0,
            delivered: 0,
            confirmed: Watermark::default(),
        }
    }

    pub(super) fn resumed(&mut self, row: Progress, unresolved: Tickets) {
        (self.row, self.behind_row) = (row, unresolved);
        self.confirmed = Watermark::default();
        self.writing = None;
        self.held = false;
        self.delivered = 0;
    }

    /// What the row says.
    pub(super) fn row(&self) -> Progress {
        self.row
    }

    pub(super) fn delivered(&mut self) {
        self.delivered += 1;
    }

    pub(super) fn written(&mut self) {
        if let Some((row, unresolved)) = self.writing.take() {
            assert!(row.watermark >= self.row.watermark, "the cursor went back");
            (self.row, self.behind_row) = (row, unresolved);
            self.rows = self.rows.saturating_add(1);
            self.held = false;
        }
    }

    /// The row was not written, and is to be written later.
    pub(super) fn held(&mut self) {
        if self.writing.take().is_some() {
            self.delivered += 1;
            self.held = true;
        }
    }

    /// Whether the next cursor row is not written yet because a mark is missing.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// The connection is gone, and with it the answer to a row being written: it is written again.
    pub(super) fn lost(&mut self) {
        if self.writing.take().is_some() {
            self.delivered += 1;
        }
    }

    /// Whether a row is being written, and a crash would repeat as much as it may: what the row before does not know
    /// of is what makes a row due, as much again, and what may be in flight. A commit of milliseconds never gets there.
    pub(super) fn lags(&self, next: Tickets, in_flight_max: u64) -> bool {
        let skipped = next.skipped - self.behind_row.skipped;
        let unknown = (next.from - self.behind_row.from).saturating_sub(skipped);
        if self.held {
            return unknown >= HELD_EVENTS_MAX;
        }
        self.writing.is_some() && unknown >= in_flight_max.saturating_add(2 * DELIVERED_EVENTS_MAX)
    }

    /// The row to write now, if one is due. `at_once` wants it whatever the time.
    pub(super) fn cursor_due(
        &mut self,
        now: Duration,
        (progress, unresolved): (Progress, Tickets),
        at_once: bool,
    ) -> Option<Progress> {
        if self.writing.is_some() || progress == self.row {
            return None;
        }
        let due = self.due_at(progress).is_some_and(|due| due <= now);
        // One that was held back is held back again if it is tried at once.
        if !due && (!at_once || self.held) {
            return None;
        }
        self.writing = Some((progress, unresolved));
        self.written_at = Some(now);
        if injected(Bug::ConfirmsBeforeRow) {
            self.row = progress;
        }
        self.delivered = 0;
        Some(progress)
    }

    /// What may be confirmed and has not been.
    pub(super) fn confirmable(&mut self) -> Option<Watermark> {
        let watermark = self.row.watermark;
        if watermark <= self.confirmed {
            return None;
        }
        self.confirmed = watermark;
        Some(watermark)
    }

    /// When a row falls due, if nothing else happens.
    pub(super) fn deadline(&self, progress: Progress) -> Option<Duration> {
        if self.writing.is_some() { None } else { self.due_at(progress) }
    }

    pub(super) fn settled(&self, progress: Progress) -> bool {
        self.writing.is_none() && self.row == progress
    }

    fn due_at(&self, progress: Progress) -> Option<Duration> {
        let idle_bytes = progress.watermark.lsn().bytes_since(self.row.watermark.lsn());
        let pause = if self.held && progress != self.row {
            HELD_PAUSE
        } else if self.delivered >= DELIVERED_EVENTS_MAX && progress != self.row {
            Duration::ZERO
        } else if (self.delivered > 0 || self.row.partial.is_some()) && progress != self.row {
            self.cursor_interval.min(FIRST_PAUSE * (1 << self.rows.min(16)))
        } else if idle_bytes >= IDLE_STEP_BYTES {
            IDLE_INTERVAL
        } else {
            return None;
        };
        Some(self.written_at.map_or(Duration::ZERO, |at| at + pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_replication::lsn::Lsn;

    fn at(lsn: u64) -> Progress {
        Progress { watermark: Watermark::from_keepalive(Lsn::from_wire(lsn)), partial: None }
    }

    /// Held back, a row bounds how much a crash repeats by [`HELD_EVENTS_MAX`], and by no less: others go on till then.
    #[test]
    fn intake_shuts_behind_a_held_row_only_at_its_bound() {
        let mut feedback = Feedback::new(Duration::from_secs(1));
        feedback.delivered();
        let tickets = |from| Tickets { from, skipped: 0 };
        let due = |feedback: &mut Feedback, now, lsn| {
            feedback.cursor_due(Duration::from_secs(now), (at(lsn), tickets(0)), true)
        };
        assert!(due(&mut feedback, 0, 8).is_some());
        assert!(feedback.lags(tickets(100_000), 50_000), "a row that is being written for long");
        feedback.held();
        assert!(!feedback.lags(tickets(HELD_EVENTS_MAX - 1), 50_000));
        assert!(feedback.lags(tickets(HELD_EVENTS_MAX), 50_000));
        assert!(due(&mut feedback, 0, 8).is_none(), "not at once");
        assert!(due(&mut feedback, 1, 8).is_some());
        feedback.written();
        assert!(!feedback.lags(tickets(HELD_EVENTS_MAX), 50_000), "nothing is being written");
    }
}
