//! What persons ask for: each request is carried out once, and the mark that takes it off says how.

use super::{Owed, Parking};
use postrider_core::event::Position;
use postrider_core::parked::{Became, State, Wish};
use std::time::Duration;

impl Parking {
    /// Carries out what a person asks for. Everything below `resolved` never comes again.
    pub(in crate::relay) fn wish(
        &mut self,
        now: Duration,
        position: Position,
        wish: Wish,
        resolved: Position,
    ) {
        // The request is still in the row because the mark that takes it off is on its way: a second mark would take
        // off the next request.
        if self.takes_a_request(position) {
            return;
        }
        match self.lanes.row_mut(position) {
            None => self.mark(position, Became::Declined, None),
            Some(row) if row.trying.is_some() => row.wish = Some(wish),
            Some(_) => self.grant(now, position, wish, resolved),
        }
    }

    fn takes_a_request(&self, position: Position) -> bool {
        let takes = |became| matches!(became, Became::Again | Became::Skipped | Became::Declined);
        self.marks.iter().any(|Owed { mark, .. }| mark.position == position && takes(mark.became))
    }

    pub(super) fn grant(
        &mut self,
        now: Duration,
        position: Position,
        wish: Wish,
        resolved: Position,
    ) {
        let Some(row) = self.lanes.row_mut(position) else { return };
        row.wish = None;
        let lane = row.lane;
        self.letters.forget(position);
        match wish {
            Wish::Retry | Wish::Replace => {
                self.lanes.becomes(position, State::Waiting, 0, now);
                self.lanes.writing(position);
                self.mark(position, Became::Again, lane);
            }
            Wish::Skip => {
                self.lanes.remove(position, true, position >= resolved);
                self.mark(position, Became::Skipped, lane);
            }
        }
    }
}
