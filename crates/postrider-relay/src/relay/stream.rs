//! The current position in the stream: which change is next, and whether an earlier session has dealt with it.
//!
//! A source repeats everything above the confirmed position. One position separates new changes from repeated ones:
//! every change below `expected` has a ticket already, or was resolved before this session, and is skipped.

use crate::ack::{OrderViolation, Progress, Tracker};
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::timestamp::Timestamp;

/// The next change of the stream, if it is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upcoming {
    /// The position of the change: its identity.
    pub position: Position,
    /// When its transaction was committed, by the source's clock.
    pub commit_time: Timestamp,
}

/// The transaction being received, and the ordinal of its next change.
#[derive(Clone, Copy, Debug)]
struct Current {
    commit: Offset,
    commit_time: Timestamp,
    ordinal: u64,
}

/// The position in the stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The first position that has not been seen.
    expected: Position,
    current: Option<Current>,
    /// Where the last transaction of this connection ended. A source repeats transactions after a connection was lost,
    /// and never within a connection: a transaction below this offset is another one, and must not be skipped as a
    /// repetition.
    floor: Offset,
    started: bool,
}

impl Stream {
    pub(super) fn started(&self) -> bool {
        self.started
    }

    pub(super) fn expected(&self) -> Position {
        self.expected
    }

    /// Sets the first position that counts as new: after a start, and after everything in flight was discarded.
    pub(super) fn expect(&mut self, progress: Progress) {
        let start = Position { commit: progress.watermark.offset(), ordinal: 0 };
        self.expected = progress.partial.unwrap_or(start);
        self.disconnected();
    }

    /// Sets the first position that counts as new, while the source sends from an earlier one. `tracker` has adopted
    /// the same progress, and no change of the transaction that is being received had a ticket.
    pub(super) fn pass(
        &mut self,
        tracker: &mut Tracker,
        progress: Progress,
    ) -> Result<(), OrderViolation> {
        self.expected = progress.position();
        match self.current {
            Some(current) if current.commit >= self.expected.commit => {
                self.expect_within(tracker, current.commit)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The transaction that commits at `commit` begins, or continues, behind the changes that are not new.
    fn expect_within(
        &mut self,
        tracker: &mut Tracker,
        commit: Offset,
    ) -> Result<(), OrderViolation> {
        if commit > self.expected.commit && self.expected.ordinal > 0 {
            // The rest of an interrupted transaction was not repeated.
            let floor = self.expected.commit;
            return Err(OrderViolation::Backwards { commit, floor });
        }
        if commit > self.expected.commit {
            self.expected = Position { commit, ordinal: 0 };
        }
        tracker.begin(commit, self.expected.ordinal)
    }

    pub(super) fn reconnected(&mut self) {
        self.started = true;
        self.disconnected();
    }

    pub(super) fn disconnected(&mut self) {
        self.current = None;
        self.floor = Offset::ZERO;
    }

    pub(super) fn begin(
        &mut self,
        tracker: &mut Tracker,
        commit: Offset,
        commit_time: Timestamp,
    ) -> Result<(), OrderViolation> {
        if let Some(current) = self.current {
            return Err(OrderViolation::Nested { outer: current.commit, inner: commit });
        }
        if commit < self.floor {
            return Err(OrderViolation::Backwards { commit, floor: self.floor });
        }
        self.current = Some(Current { commit, commit_time, ordinal: 0 });
        if commit < self.expected.commit {
            return Ok(());
        }
        if commit == self.expected.commit && tracker.transaction_open() {
            // The loss of a connection interrupted this transaction. It continues where it was interrupted.
            return Ok(());
        }
        self.expect_within(tracker, commit)
    }

    pub(super) fn upcoming(&self) -> Option<Upcoming> {
        let current = self.current?;
        let position = Position { commit: current.commit, ordinal: current.ordinal };
        (position >= self.expected)
            .then_some(Upcoming { position, commit_time: current.commit_time })
    }

    /// Advances over one change. `None` if the change is repeated.
    pub(super) fn change(&mut self) -> Result<Option<Upcoming>, OrderViolation> {
        let upcoming = self.upcoming();
        let Some(current) = &mut self.current else {
            return Err(OrderViolation::Outside);
        };
        current.ordinal += 1;
        if upcoming.is_some() {
            self.expected = Position { commit: current.commit, ordinal: current.ordinal };
        }
        Ok(upcoming)
    }

    /// Goes back over the last change.
    pub(super) fn retract(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.ordinal -= 1;
        self.expected = Position { commit: current.commit, ordinal: current.ordinal };
    }

    pub(super) fn commit(
        &mut self,
        tracker: &mut Tracker,
        commit: Offset,
        end: Offset,
    ) -> Result<(), OrderViolation> {
        let current = self.current.take().filter(|current| current.commit == commit);
        let Some(current) = current else { return Err(OrderViolation::NotOpen { commit }) };
        self.floor = end;
        if current.commit < self.expected.commit {
            return Ok(());
        }
        if current.ordinal < self.expected.ordinal {
            return Err(OrderViolation::Shorter { commit });
        }
        tracker.commit(commit, end)?;
        self.expected = Position { commit: end, ordinal: 0 };
        Ok(())
    }

    pub(super) fn keepalive(&mut self, tracker: &mut Tracker, upto: Offset) {
        if self.current.is_none() {
            tracker.keepalive(upto);
        }
    }
}
