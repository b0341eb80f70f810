//! Hand-over: with `mode = "auto"`, the way from polling back to streaming.
//!
//! A slot is created, or found, while polling continues. What was committed before the slot is in the table. So once a
//! claim that began after the slot existed has taken every row, no row is left that the stream will not send. That
//! includes rows that are delayed (`available_at`) or have failed before: they are parked, as they would be if the
//! stream had sent them. What polling publishes after the slot's position is sent by the stream as well, and is skipped
//! there by its id ([`PolledIds`](crate::published::PolledIds)).
//!
//! The way from streaming to polling needs no hand-over: published rows get their status before the cursor passes
//! them, so the table shows what is left.

use super::input::{SlotAnswer, SlotStep};
use crate::ack::bug::{Bug, injected};
use std::time::Duration;

/// Pause between two attempts to get a slot.
const SLOT_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two attempts to drop a slot: its stream has just ended.
const DROP_INTERVAL: Duration = Duration::from_millis(200);

/// The progress of a hand-over.
#[derive(Debug)]
pub struct HandOver {
    /// A step is running.
    running: bool,
    /// When the next step is made.
    next_at: Duration,
    slot: SlotPhase,
    /// A claim that began while the slot existed took every row that was ready: the next claims take the other rows as
    /// well.
    last: bool,
    /// A claim that began while the slot existed took every row.
    drained: bool,
}

/// What is known of the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotPhase {
    /// It has to be dropped.
    Unwanted,
    /// It is dropped, and a new one would retain WAL until the table is published.
    PollFirst,
    /// It has to be created, or taken if one exists.
    Wanted,
    /// It exists.
    Exists,
}

impl HandOver {
    /// A hand-over that begins by dropping the slot, or with the slot there is.
    pub(super) fn new(now: Duration, drops_slot: bool) -> Self {
        let slot = if drops_slot { SlotPhase::Unwanted } else { SlotPhase::Wanted };
        Self { running: false, next_at: now, slot, last: false, drained: false }
    }

    /// When the next step is made; `None` if one is running, or the table is to be published first.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.running && self.slot != SlotPhase::PollFirst).then_some(self.next_at)
    }

    /// The next step begins.
    pub(super) fn begin_step(&mut self) -> SlotStep {
        self.running = true;
        match self.slot {
            SlotPhase::Unwanted => SlotStep::Drop,
            SlotPhase::Exists => SlotStep::ReadRetained,
            SlotPhase::PollFirst | SlotPhase::Wanted => SlotStep::Create,
        }
    }

    /// The running step has its answer.
    pub(super) fn step_done(&mut self, now: Duration, answer: SlotAnswer) {
        self.running = false;
        self.next_at = now + SLOT_INTERVAL;
        match answer {
            SlotAnswer::Usable => self.becomes(SlotPhase::Exists),
            SlotAnswer::Dropped => self.slot = SlotPhase::PollFirst,
            SlotAnswer::Retains { over_limit: true } => {
                self.becomes(SlotPhase::Unwanted);
                self.next_at = now;
            }
            SlotAnswer::NotYet if self.slot == SlotPhase::Unwanted => {
                self.next_at = now + DROP_INTERVAL;
            }
            SlotAnswer::Retains { over_limit: false } | SlotAnswer::NotYet | SlotAnswer::Failed => {
            }
        }
    }

    /// What claims have found so far does not count for the slot as it is now.
    fn becomes(&mut self, slot: SlotPhase) {
        (self.slot, self.last, self.drained) = (slot, false, false);
    }

    /// Before a claim: discards what the claim before it had found, since that claim may have been given up. Returns
    /// true if this claim also takes the rows that are not ready (delayed or failed). The stream will not bring them,
    /// so they are parked, and get their status in their table.
    pub(super) fn claims(&mut self) -> bool {
        if !injected(Bug::GivenUpCountsDrained) {
            self.drained = false;
        }
        self.last
    }

    /// After a claim: `more` rows are left, or `withheld` ones.
    pub(super) fn claimed(&mut self, now: Duration, more: bool, withheld: u64) {
        let all = !more;
        self.drained |= self.last && all && withheld == 0;
        let exists = self.slot == SlotPhase::Exists || injected(Bug::HandsOverBeforeSlot);
        self.last |= all && exists;
        // Delayed and failed rows do not count: they are claimed when the slot exists.
        if all && self.slot == SlotPhase::PollFirst {
            (self.slot, self.next_at) = (SlotPhase::Wanted, now);
        }
    }

    /// Whether every row that the stream will not send was claimed.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn with_slot() -> HandOver {
        let mut hand_over = HandOver::new(NOW, false);
        assert_eq!(hand_over.begin_step(), SlotStep::Create);
        hand_over.step_done(NOW, SlotAnswer::Usable);
        hand_over
    }

    /// The rows of a claim that is given up are still unpublished in the table.
    #[test]
    fn claim_that_was_given_up_does_not_count() {
        let mut hand_over = with_slot();
        assert!(!hand_over.claims());
        hand_over.claimed(NOW, false, 0);
        assert!(hand_over.claims(), "the first took all that was ready: this one takes the rest");
        hand_over.claimed(NOW, false, 0);
        assert!(hand_over.is_drained());
        assert!(hand_over.claims());
        assert!(!hand_over.is_drained());
    }

    #[test]
    fn claims_from_before_the_slot_and_claims_that_left_rows_do_not_count() {
        let mut hand_over = HandOver::new(NOW, false);
        for _ in 0..3 {
            assert!(!hand_over.claims());
            hand_over.claimed(NOW, false, 0);
        }
        let mut hand_over = with_slot();
        for (more, withheld) in [(true, 0), (false, 0), (true, 0), (false, 1)] {
            hand_over.claims();
            hand_over.claimed(NOW, more, withheld);
            assert!(!hand_over.is_drained(), "more: {more}, withheld: {withheld}");
        }
    }

    /// The slot is dropped because it retains too much. A new one would retain WAL while the table is published.
    #[test]
    fn table_is_published_before_a_dropped_slot_is_created_again() {
        let mut hand_over = HandOver::new(NOW, true);
        assert_eq!((hand_over.due(), hand_over.begin_step()), (Some(NOW), SlotStep::Drop));
        assert_eq!(hand_over.due(), None, "a step is running");
        hand_over.step_done(NOW, SlotAnswer::NotYet);
        assert_eq!(
            (hand_over.due(), hand_over.begin_step()),
            (Some(DROP_INTERVAL), SlotStep::Drop)
        );
        hand_over.step_done(NOW, SlotAnswer::Dropped);
        assert_eq!(hand_over.due(), None);
        hand_over.claims();
        hand_over.claimed(NOW, true, 0);
        assert_eq!(hand_over.due(), None, "more rows are left");
        hand_over.claims();
        hand_over.claimed(NOW, false, 3);
        assert_eq!((hand_over.due(), hand_over.begin_step()), (Some(NOW), SlotStep::Create));
        hand_over.step_done(NOW, SlotAnswer::Usable);
        assert_eq!(hand_over.begin_step(), SlotStep::ReadRetained);
        hand_over.step_done(NOW, SlotAnswer::Retains { over_limit: true });
        assert_eq!((hand_over.due(), hand_over.begin_step()), (Some(NOW), SlotStep::Drop));
    }
}
