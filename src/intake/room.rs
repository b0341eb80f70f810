//! How many messages may still be stored before the inbox is full.

use super::observer::IntakeObserver;
use super::spec::IntakeSpec;
use crate::intake_status::IntakeState;
use std::time::Duration;

/// Pause between two counts of the messages that wait to be processed.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// A full inbox is written into again when fewer messages wait than the largest number less this part of it: a tenth.
const RESUME_PART: u64 = 10;

/// The room of an inbox, as it was when the messages that wait were last counted.
#[derive(Debug)]
pub(super) struct Room {
    inbox: String,
    /// Messages that may wait.
    max: u64,
    is_full: bool,
    /// Messages that may be stored before the next count.
    left: u64,
}

impl Room {
    pub(super) fn new(spec: &IntakeSpec) -> Self {
        let max = spec.pending_max.unwrap_or(u64::MAX);
        Self { inbox: spec.inbox.inbox.clone(), max, is_full: false, left: 0 }
    }

    /// The inbox was full when the messages were last counted.
    pub(super) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Messages that may be stored before the next count.
    pub(super) fn left(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    /// So many messages were stored since.
    pub(super) fn fills(&mut self, messages: usize) {
        self.left = self.left.saturating_sub(u64::try_from(messages).unwrap_or(u64::MAX));
    }

    /// So many messages wait now. Returns whether there is room, and shows it if there is none.
    pub(super) fn counted(&mut self, pending: u64, observer: &mut IntakeObserver) -> bool {
        observer.pending(pending);
        let has_room = self.takes(pending);
        if !has_room {
            let Self { inbox, max, .. } = self;
            let reason = format!(
                "{pending} messages of inbox \"{inbox}\" wait to be processed, and the limit is {max}"
            );
            let hint = "start more workers, or raise pending_max";
            observer.waits(IntakeState::Full, &reason, Some(hint));
        }
        has_room
    }

    fn takes(&mut self, pending: u64) -> bool {
        let limit = if self.is_full { self.max - self.max / RESUME_PART } else { self.max };
        self.is_full = pending >= limit.max(1);
        self.left = self.max.saturating_sub(pending);
        !self.is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_inbox_has_room_again_when_a_tenth_is_processed() {
        let inbox = "jobs".to_owned();
        let mut room = Room { inbox, max: 100, is_full: false, left: 0 };
        for (pending, has_room) in
            [(0, true), (99, true), (100, false), (91, false), (90, false), (89, true), (99, true)]
        {
            assert_eq!(room.takes(pending), has_room, "{pending}");
        }
        assert_eq!(room.left(), 1);
        room.fills(7);
        assert_eq!(room.left(), 0);
    }
}
