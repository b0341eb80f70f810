//! When the cursor row is written, and which position may be confirmed after it.
//!
//! The row is written first and its position is confirmed second, so the confirmed position is never ahead of the row.
//! If a slot is ahead of the row at a start, another program has advanced the slot, and the start can report that.

use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use postrider_core::offset::Watermark;
use std::time::Duration;

/// Pause between two rows while no event is published and other tables are written.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);

/// A row is due when this many events were published since the last row, because a crash repeats them, and an interval
/// is many events while a backlog is published. The same number may be published while that row is being written.
const PUBLISHED_EVENTS_MAX: u64 = 10_000;

/// The pause after the first row of a process. Each further pause is twice the last, up to the interval, so that a
/// process which is killed again and again makes progress.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Pause before a deferred row is written again.
const DEFERRED_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of published events that the last written row does not cover, while the next row waits for row
/// statuses. At this number the intake closes. A crash repeats at most this many.
pub(super) const DEFERRED_EVENTS_MAX: u64 = 1_000_000;

/// A point in the sequence of tickets.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tickets {
    /// The lowest unresolved ticket, or the next one.
    pub(super) from: u64,
    /// Number of tickets that were not events, in all.
    pub(super) skipped: u64,
}

/// The cursor row, and the position confirmed to the source.
#[derive(Debug)]
pub(super) struct Feedback {
    cursor_interval: Duration,
    /// As [`Settings::idle_step`](super::Settings::idle_step).
    idle_step: u64,
    /// The content of the row, and the unresolved tickets at that time.
    row: Progress,
    unresolved: Tickets,
    /// The same for the row that is being written.
    writing: Option<(Progress, Tickets)>,
    written_at: Option<Duration>,
    /// The last write was deferred.
    deferred: bool,
    /// Number of rows written by this process.
    rows: u32,
    /// Events published since the last row.
    published: u64,
    confirmed: Watermark,
}

impl Feedback {
    pub(super) fn new(cursor_interval: Duration, idle_step: u64) -> Self {
        Self {
            cursor_interval,
            idle_step,
            row: Progress::default(),
            unresolved: Tickets::default(),
            writing: None,
            written_at: None,
            deferred: false,
            rows: 0,
            published: 0,
            confirmed: Watermark::default(),
        }
    }

    pub(super) fn resumed(&mut self, row: Progress, unresolved: Tickets) {
        (self.row, self.unresolved) = (row, unresolved);
        self.confirmed = Watermark::default();
        self.writing = None;
        self.deferred = false;
        self.published = 0;
    }

    /// The content of the row.
    pub(super) fn row(&self) -> Progress {
        self.row
    }

    /// One more event is published, or its parked row is committed.
    pub(super) fn published(&mut self) {
        self.published += 1;
    }

    /// The row being written is committed.
    ///
    /// # Panics
    /// If its watermark is below that of the row before.
    pub(super) fn written(&mut self) {
        if let Some((row, unresolved)) = self.writing.take() {
            assert!(row.watermark >= self.row.watermark, "the cursor went back");
            (self.row, self.unresolved) = (row, unresolved);
            self.rows = self.rows.saturating_add(1);
            self.deferred = false;
        }
    }

    /// The row was not written, and is written later.
    pub(super) fn defer(&mut self) {
        if self.writing.take().is_some() {
            self.published += 1;
            self.deferred = true;
        }
    }

    /// Whether the next cursor row waits for a row status.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// The connection is lost, and with it the answer to a row being written: the row is written again.
    pub(super) fn disconnected(&mut self) {
        if self.writing.take().is_some() {
            self.published += 1;
        }
    }

    /// Whether a row is being written, and a crash would repeat the maximum number of events. The row before it may
    /// miss [`PUBLISHED_EVENTS_MAX`] events, which make a row due, the same number again, and `in_flight_max` events. A
    /// commit that takes milliseconds never reaches that number.
    pub(super) fn lags(&self, next: Tickets, in_flight_max: u64) -> bool {
        let skipped = next.skipped - self.unresolved.skipped;
        let unknown = (next.from - self.unresolved.from).saturating_sub(skipped);
        if self.deferred {
            return unknown >= DEFERRED_EVENTS_MAX;
        }
        self.writing.is_some() && unknown >= in_flight_max.saturating_add(2 * PUBLISHED_EVENTS_MAX)
    }

    /// The row to write now, if one is due. `at_once`: a row is due even if its pause is not over.
    pub(super) fn cursor_due(
        &mut self,
        now: Duration,
        (progress, unresolved): (Progress, Tickets),
        at_once: bool,
    ) -> Option<Progress> {
        if self.writing.is_some() || progress == self.row {
            return None;
        }
        let due = self.is_due(now, progress);
        // A deferred row would be deferred again if it were written at once.
        if !due && (!at_once || self.deferred) {
            return None;
        }
        self.write(now, (progress, unresolved));
        Some(progress)
    }

    /// Whether a row with this content is due.
    pub(super) fn is_due(&self, now: Duration, progress: Progress) -> bool {
        self.due_at(progress).is_some_and(|due| due <= now)
    }

    /// The row to write now, even if its content stays the same: the write shows that this process is still the owner.
    /// `None` while a write is in progress, and in the pause behind a deferred one.
    pub(super) fn rewrite(
        &mut self,
        now: Duration,
        content: (Progress, Tickets),
    ) -> Option<Progress> {
        if self.writing.is_some() || self.rewrite_at().is_some_and(|at| at > now) {
            return None;
        }
        self.write(now, content);
        Some(content.0)
    }

    /// When [`Self::rewrite`] writes again after a deferred write.
    pub(super) fn rewrite_at(&self) -> Option<Duration> {
        let deferred = self.deferred && self.writing.is_none();
        self.written_at.filter(|_| deferred).map(|at| at + DEFERRED_PAUSE)
    }

    fn write(&mut self, now: Duration, (progress, unresolved): (Progress, Tickets)) {
        self.writing = Some((progress, unresolved));
        self.written_at = Some(now);
        if injected(Bug::ConfirmsBeforeRow) {
            self.row = progress;
        }
        self.published = 0;
    }

    /// The position to confirm now, if it is above the last one.
    pub(super) fn confirmable(&mut self) -> Option<Watermark> {
        let watermark = self.row.watermark;
        if watermark <= self.confirmed {
            return None;
        }
        self.confirmed = watermark;
        Some(watermark)
    }

    /// When a row is due, if nothing else happens.
    pub(super) fn deadline(&self, progress: Progress) -> Option<Duration> {
        if self.writing.is_some() { None } else { self.due_at(progress) }
    }

    /// Whether the row contains this progress, and no write is in progress.
    pub(super) fn is_current(&self, progress: Progress) -> bool {
        self.writing.is_none() && self.row == progress
    }

    fn due_at(&self, progress: Progress) -> Option<Duration> {
        let idle = progress.watermark.offset().distance_from(self.row.watermark.offset());
        let pause = if self.deferred && progress != self.row {
            DEFERRED_PAUSE
        } else if self.published >= PUBLISHED_EVENTS_MAX && progress != self.row {
            Duration::ZERO
        } else if (self.published > 0 || self.row.partial.is_some()) && progress != self.row {
            self.cursor_interval.min(FIRST_PAUSE * (1 << self.rows.min(16)))
        } else if idle >= self.idle_step.max(1) {
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
    use postrider_core::offset::Offset;

    fn at(lsn: u64) -> Progress {
        Progress { watermark: Watermark::from_keepalive(Offset::new(lsn)), partial: None }
    }

    /// While a row is deferred, a crash repeats at most [`DEFERRED_EVENTS_MAX`] events, and the intake stays open below
    /// that number.
    #[test]
    fn intake_closes_behind_a_deferred_row_only_at_its_bound() {
        let mut feedback = Feedback::new(Duration::from_secs(1), 4096);
        feedback.published();
        let tickets = |from| Tickets { from, skipped: 0 };
        let due = |feedback: &mut Feedback, now, lsn| {
            feedback.cursor_due(Duration::from_secs(now), (at(lsn), tickets(0)), true)
        };
        assert!(due(&mut feedback, 0, 8).is_some());
        assert!(feedback.lags(tickets(100_000), 50_000), "a row whose write takes long");
        feedback.defer();
        assert!(!feedback.lags(tickets(DEFERRED_EVENTS_MAX - 1), 50_000));
        assert!(feedback.lags(tickets(DEFERRED_EVENTS_MAX), 50_000));
        assert!(due(&mut feedback, 0, 8).is_none(), "not at once");
        assert!(due(&mut feedback, 1, 8).is_some());
        feedback.written();
        assert!(!feedback.lags(tickets(DEFERRED_EVENTS_MAX), 50_000), "nothing is being written");
    }

    /// Without events a row is due when the watermark has moved by the step, in the source's own unit.
    #[test]
    fn progress_without_events_is_written_in_steps_of_the_source() {
        for (idle_step, moved, due) in
            [(4096, 4095, false), (4096, 4096, true), (1, 1, true), (1, 0, false), (0, 0, false)]
        {
            let mut feedback = Feedback::new(Duration::from_secs(1), idle_step);
            feedback.resumed(at(10), Tickets::default());
            let row =
                feedback.cursor_due(IDLE_INTERVAL, (at(10 + moved), Tickets::default()), false);
            assert_eq!(row.is_some(), due, "{moved} with a step of {idle_step}");
        }
    }
}
