//! Where in the stream we are: which change comes next, and whether an earlier session has dealt with it.
//!
//! A server sends again what it was not told to forget. One position tells new from repeated: everything below
//! `expected` has a ticket already, or was resolved before this session, and is passed over without a trace.

use crate::ack::{OrderViolation, Progress, Tracker};
use pg_replication::lsn::Lsn;
use postrider_core::event::{PgTime, Position};

/// The change that comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upcoming {
    /// Its identity.
    pub position: Position,
    /// When its transaction was committed.
    pub commit_time: PgTime,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    commit_lsn: Lsn,
    commit_time: PgTime,
    ordinal: u64,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The first position that has not been seen.
    expected: Position,
    current: Option<Current>,
    started: bool,
}

impl Stream {
    pub(super) fn started(&self) -> bool {
        self.started
    }

    pub(super) fn expected(&self) -> Position {
        self.expected
    }

    /// Sets the first position that counts as new: after a start, and after all in flight was given up.
    pub(super) fn expect(&mut self, progress: Progress) {
        let start = Position { commit_lsn: progress.watermark.lsn(), ordinal: 0 };
        self.expected = progress.partial.unwrap_or(start);
        self.current = None;
    }

    pub(super) fn reconnected(&mut self) {
        self.started = true;
        self.current = None;
    }

    pub(super) fn disconnected(&mut self) {
        self.current = None;
    }

    pub(super) fn begin(
        &mut self,
        tracker: &mut Tracker,
        commit_lsn: Lsn,
        commit_time: PgTime,
    ) -> Result<(), OrderViolation> {
        if let Some(current) = self.current {
            return Err(OrderViolation::Nested { outer: current.commit_lsn, inner: commit_lsn });
        }
        self.current = Some(Current { commit_lsn, commit_time, ordinal: 0 });
        if commit_lsn < self.expected.commit_lsn {
            return Ok(());
        }
        if commit_lsn == self.expected.commit_lsn && tracker.transaction_open() {
            // Cut by the loss of a connection: it goes on where it was cut.
            return Ok(());
        }
        if commit_lsn > self.expected.commit_lsn && self.expected.ordinal > 0 {
            // Of the transaction that was cut, the rest has not come again.
            let floor = self.expected.commit_lsn;
            return Err(OrderViolation::Backwards { commit_lsn, floor });
        }
        if commit_lsn > self.expected.commit_lsn {
            self.expected = Position { commit_lsn, ordinal: 0 };
        }
        tracker.begin(commit_lsn, self.expected.ordinal)
    }

    pub(super) fn upcoming(&self) -> Option<Upcoming> {
        let current = self.current?;
        let position = Position { commit_lsn: current.commit_lsn, ordinal: current.ordinal };
        (position >= self.expected)
            .then_some(Upcoming { position, commit_time: current.commit_time })
    }

    /// Steps over one change; `None` where it is a repetition.
    pub(super) fn change(&mut self) -> Result<Option<Upcoming>, OrderViolation> {
        let upcoming = self.upcoming();
        let Some(current) = &mut self.current else {
            return Err(OrderViolation::Outside);
        };
        current.ordinal += 1;
        if upcoming.is_some() {
            self.expected = Position { commit_lsn: current.commit_lsn, ordinal: current.ordinal };
        }
        Ok(upcoming)
    }

    /// Steps back over the change just stepped over.
    pub(super) fn retract(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.ordinal -= 1;
        self.expected = Position { commit_lsn: current.commit_lsn, ordinal: current.ordinal };
    }

    pub(super) fn commit(
        &mut self,
        tracker: &mut Tracker,
        commit_lsn: Lsn,
        end_lsn: Lsn,
    ) -> Result<(), OrderViolation> {
        let current = self.current.take().filter(|current| current.commit_lsn == commit_lsn);
        let Some(current) = current else { return Err(OrderViolation::NotOpen { commit_lsn }) };
        if current.commit_lsn < self.expected.commit_lsn {
            return Ok(());
        }
        if current.ordinal < self.expected.ordinal {
            return Err(OrderViolation::Shorter { commit_lsn });
        }
        tracker.commit(commit_lsn, end_lsn)?;
        self.expected = Position { commit_lsn: end_lsn, ordinal: 0 };
        Ok(())
    }

    pub(super) fn keepalive(&mut self, tracker: &mut Tracker, wal_end: Lsn) {
        if self.current.is_none() {
            tracker.keepalive(wal_end);
        }
    }
}
