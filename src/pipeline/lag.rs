//! The lag of a pipeline: the age of the oldest commit that is not published or parked.
//!
//! For commits that were read, the relay knows it. For commits that were not read yet, the server's end of WAL or a
//! query of the polled table shows it. While nothing can be read, it is unknown what was committed: then the lag is at
//! least the time since everything was read, because everything committed after that moment waits.

use crate::offset::Offset;
use std::time::{Duration, Instant};

/// A database that has not answered for so long is not being read from. Longer than the pause between two queries of
/// the slot.
const ANSWER_LATE: Duration = Duration::from_secs(12);

/// What is known of commits that were not read yet.
#[derive(Debug)]
pub(super) struct LagMeter {
    /// When the database last answered anything.
    answered_at: Option<Instant>,
    /// Everything committed before this moment was read.
    read_at: Instant,
    /// An end of WAL that is not reached yet, and since when something below it may wait.
    unread: Option<(Offset, Instant)>,
    /// The oldest ready row of the polled table.
    row: Option<RowAge>,
}

/// How long a row has waited.
#[derive(Clone, Copy, Debug)]
enum RowAge {
    /// For so long, at the moment of the query.
    Known(Duration, Instant),
    /// Its table has no column with a time: the row may have waited since everything was read.
    Unknown,
}

/// The result of a query of the polled table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OldestRow {
    /// No row is ready.
    None,
    /// A row has been ready for so long.
    Since(Duration),
    /// A row is ready, and its age is not known.
    Unknown,
}

impl LagMeter {
    pub(super) fn new(now: Instant) -> Self {
        Self { answered_at: None, read_at: now, unread: None, row: None }
    }

    /// When the database last answered.
    pub(super) fn answered_at(&self) -> Option<Instant> {
        self.answered_at
    }

    /// The database answered.
    pub(super) fn answered(&mut self, now: Instant) {
        self.answered_at = Some(now);
    }

    /// A stream has begun; `wal_end` was the server's end of WAL before it.
    pub(super) fn connected(&mut self, wal_end: Offset, now: Instant) {
        self.answered(now);
        self.row = None;
        let since = self.unread.map_or(self.read_at, |(_, since)| since);
        self.unread = Some((wal_end, since));
    }

    /// The server's end of WAL was queried while the stream had received everything below `received`.
    pub(super) fn wal_end_seen(&mut self, wal_end: Offset, received: Offset, now: Instant) {
        self.answered(now);
        self.reached(received);
        if self.unread.is_none() && received < wal_end {
            self.unread = Some((wal_end, now));
        }
    }

    /// Another process reads the slot, and has confirmed everything below `confirmed`.
    pub(super) fn other_reads(&mut self, wal_end: Offset, confirmed: Offset, now: Instant) {
        self.wal_end_seen(wal_end, confirmed, now);
        self.read_at = self.unread.map_or(now, |(_, since)| since);
    }

    /// Everything below `received` was read.
    fn reached(&mut self, received: Offset) {
        self.unread = self.unread.filter(|(end, _)| received < *end);
    }

    /// The polled table was queried, from the moment `began`.
    pub(super) fn polled(&mut self, oldest: OldestRow, began: Instant, now: Instant) {
        self.answered(now);
        self.unread = None;
        self.row = match oldest {
            OldestRow::None => {
                self.read_at = began;
                None
            }
            OldestRow::Since(age) => Some(RowAge::Known(age, now)),
            OldestRow::Unknown => Some(RowAge::Unknown),
        };
    }

    /// How long the oldest unread commit has waited, at `now`.
    pub(super) fn of_unread(&mut self, reading: ReadMode, now: Instant) -> Duration {
        let since = |at: Instant| now.saturating_duration_since(at);
        let row = self.row.map_or(Duration::ZERO, |row| match row {
            RowAge::Known(age, at) => age.saturating_add(since(at)),
            RowAge::Unknown => since(self.read_at),
        });
        let late = self.answered_at.is_some_and(|at| since(at) > ANSWER_LATE);
        match reading {
            ReadMode::Stream { received } if !late => {
                self.reached(received);
                let unread = self.unread.map_or(now, |(_, at)| at);
                self.read_at = unread;
                since(unread)
            }
            ReadMode::Other => self.unread.map_or(Duration::ZERO, |(_, at)| since(at)),
            ReadMode::Table if !late => row,
            ReadMode::Stream { .. } | ReadMode::Table | ReadMode::Nothing => {
                since(self.read_at).max(row)
            }
        }
    }
}

/// How events are read at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadMode {
    /// From a stream that has received everything below `received`.
    Stream { received: Offset },
    /// From the table.
    Table,
    /// By another process.
    Other,
    /// Not at all.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lsn(at: u64) -> Offset {
        Offset::new(at)
    }

    fn stream(received: u64) -> ReadMode {
        ReadMode::Stream { received: lsn(received) }
    }

    #[test]
    fn while_nothing_is_read_the_lag_is_the_time_since_everything_was_read() {
        let start = Instant::now();
        let mut meter = LagMeter::new(start);
        assert_eq!(meter.of_unread(ReadMode::Nothing, start + 3 * SECOND), 3 * SECOND);
        meter.connected(lsn(100), start + 4 * SECOND);
        assert_eq!(meter.of_unread(stream(50), start + 5 * SECOND), 5 * SECOND, "since the start");
        assert_eq!(meter.of_unread(stream(100), start + 6 * SECOND), Duration::ZERO);
        assert_eq!(meter.of_unread(ReadMode::Nothing, start + 9 * SECOND), 3 * SECOND);
        // The end of the outage is not the end of the lag.
        meter.connected(lsn(200), start + 10 * SECOND);
        assert_eq!(meter.of_unread(stream(150), start + 10 * SECOND), 4 * SECOND);
        assert_eq!(meter.of_unread(ReadMode::Nothing, start + 11 * SECOND), 5 * SECOND);
    }

    #[test]
    fn stream_that_receives_nothing_while_the_server_writes_falls_behind() {
        let start = Instant::now();
        let mut meter = LagMeter::new(start);
        meter.connected(lsn(100), start);
        assert_eq!(meter.of_unread(stream(100), start), Duration::ZERO);
        meter.wal_end_seen(lsn(200), lsn(100), start + 5 * SECOND);
        meter.wal_end_seen(lsn(300), lsn(100), start + 10 * SECOND);
        assert_eq!(meter.of_unread(stream(100), start + 11 * SECOND), 6 * SECOND);
        // What was written after the first of the queries is not known to be old.
        assert_eq!(meter.of_unread(stream(200), start + 11 * SECOND), Duration::ZERO);
    }

    #[test]
    fn server_that_does_not_answer_is_not_read_from() {
        let start = Instant::now();
        let mut meter = LagMeter::new(start);
        meter.connected(lsn(100), start);
        assert_eq!(meter.of_unread(stream(100), start + SECOND), Duration::ZERO);
        let late = start + ANSWER_LATE + 2 * SECOND;
        assert_eq!(meter.of_unread(stream(100), late), ANSWER_LATE + SECOND);
        meter.answered(late);
        assert_eq!(meter.of_unread(stream(100), late), Duration::ZERO);
    }

    #[test]
    fn standby_process_sees_the_progress_of_the_owner() {
        let start = Instant::now();
        let mut meter = LagMeter::new(start);
        meter.other_reads(lsn(100), lsn(100), start + 60 * SECOND);
        assert_eq!(meter.of_unread(ReadMode::Other, start + 61 * SECOND), Duration::ZERO);
        meter.other_reads(lsn(200), lsn(100), start + 70 * SECOND);
        meter.other_reads(lsn(300), lsn(100), start + 80 * SECOND);
        assert_eq!(meter.of_unread(ReadMode::Other, start + 90 * SECOND), 20 * SECOND);
        // It takes over, and what the other process left is as old.
        meter.connected(lsn(300), start + 95 * SECOND);
        assert_eq!(meter.of_unread(stream(100), start + 100 * SECOND), 30 * SECOND);
    }

    #[test]
    fn polling_is_as_far_behind_as_its_oldest_ready_row() {
        let start = Instant::now();
        let mut meter = LagMeter::new(start);
        let at = |seconds: u32| start + seconds * SECOND;
        meter.polled(OldestRow::Since(3_600 * SECOND), start, start);
        assert_eq!(meter.of_unread(ReadMode::Table, at(2)), 3_602 * SECOND);
        meter.polled(OldestRow::Unknown, at(4), at(5));
        assert_eq!(meter.of_unread(ReadMode::Table, at(6)), 6 * SECOND);
        meter.polled(OldestRow::None, at(9), at(10));
        assert_eq!(meter.of_unread(ReadMode::Table, at(11)), Duration::ZERO);
        assert_eq!(meter.of_unread(ReadMode::Nothing, at(12)), 3 * SECOND);
    }
}
