//! After a slot was lost, the outbox table is read again. A parked event whose row is still in the table is requeued at
//! its place among the rows of its aggregate, because an earlier event of that aggregate may not be published yet.
//!
//! Until its row is claimed, the relay does not know such an event: it blocks nothing and is not retried. When the row
//! is claimed, the event is parked at the position of the row, and its existing row in the parked table is moved to
//! that position, so that attempts, errors and requests are kept. A parked event whose row is not in the table stays
//! where it is.

use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::outbox_rows::{CandidateRow, CandidateState, RequeueCandidate};
use postrider_core::parked::{Entry, Lane, Parked};
use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The delay before a requeued event is retried: longer than a claim may be open. Its true state is in its row, which
/// is read when the claim is settled.
pub const REQUEUED_WAIT: Duration = Duration::from_secs(30);

/// `error_code` of a row whose payload was not read because it is too large.
const ROW_TOO_LARGE: &str = "row_too_large";

/// A row that a claim parks, without its record.
#[derive(Clone, Copy, Debug)]
pub struct ParkedRow<'a> {
    /// What the relay keeps in memory. The position is that of the row in its claim.
    pub entry: Entry,
    /// The event's id, if it has one.
    pub event_id: Option<&'a str>,
    /// The reason in one line; `None` if the event was not refused.
    pub error: Option<&'a str>,
    /// The stable code of the reason.
    pub error_code: Option<&'static str>,
    /// If the outbox table counts failures and one more makes the row dead, and dead events go to a dead-letter topic:
    /// the count including that failure.
    pub dies: Option<u32>,
}

impl<'a> ParkedRow<'a> {
    /// The row of a parked event, in a table that counts no failures.
    pub fn of(row: &'a Parked) -> Self {
        Self {
            entry: row.entry,
            event_id: row.event_id.as_deref(),
            error: row.error.as_deref(),
            error_code: row.error_code,
            dies: None,
        }
    }
}

/// What a row is that a claim parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOrigin {
    /// The row of a parked event, which is moved to the position of the row.
    Requeued,
    /// The row of a parked event, which stays where it is.
    Kept,
    /// It may be the row of a parked event, or of another event.
    Doubted,
    /// The row of an event that is not parked yet.
    New,
}

/// What to do with a row of the table that has the id of a parked event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequeueDecision {
    /// The parked event is requeued: it is parked at the place of its row.
    Requeue {
        /// The row is certainly the event. If not, its content decides.
        certain: bool,
    },
    /// The row is certainly the event, which keeps its position: it is published, skipped, or blocks no other event.
    /// Only the row's status is missing.
    MarkOnly,
    /// The row may be the event, or another event that got the same id. The row is parked, for a person to decide.
    Undecided {
        /// The record of the parked event is kept, so the row's content can be compared with it.
        kept: bool,
    },
}

/// A parked event whose id is also the id of a row of the table, and which is or may be that row.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RequeuedEvent {
    /// The event's position in the parked table.
    position: Position,
    /// What to do with the row.
    decision: RequeueDecision,
    /// The transaction that wrote the row. A row that another transaction has written may be another row.
    xmin: u32,
}

impl RequeuedEvent {
    /// If several events have one id, the row belongs to the unresolved event, or else to the last one: the event with
    /// the highest rank.
    fn rank(&self) -> (u8, Position) {
        let rank = match self.decision {
            RequeueDecision::MarkOnly | RequeueDecision::Requeue { certain: true } => 3,
            RequeueDecision::Requeue { certain: false } => 2,
            RequeueDecision::Undecided { kept } => u8::from(kept),
        };
        (rank, self.position)
    }
}

/// For each aggregate the last unresolved event that stays where it is. An event before it stays too, and its row only
/// gets its status.
#[derive(Default)]
struct LastThatStays(HashMap<Option<Lane>, Position>);

impl LastThatStays {
    fn of(candidates: &[RequeueCandidate]) -> Self {
        let mut last = Self::default();
        for candidate in candidates {
            let blocks = candidate.blocks && candidate.state == CandidateState::Unresolved;
            if blocks && !candidate.precedes && candidate.row.is_none() {
                let last = last.0.entry(candidate.lane).or_default();
                *last = candidate.position.max(*last);
            }
        }
        last
    }

    /// What to do with the row of the event. `None`: the event was published, and is published a second time together
    /// with the events that follow it.
    fn decide(&self, candidate: &RequeueCandidate, row: CandidateRow) -> Option<RequeueDecision> {
        let stays = self.0.get(&candidate.lane).is_some_and(|last| candidate.position <= *last);
        Some(match (candidate.state, row.certain) {
            (CandidateState::Unresolved, certain) if candidate.blocks && !stays => {
                RequeueDecision::Requeue { certain }
            }
            (_, true) => RequeueDecision::MarkOnly,
            (CandidateState::Unresolved, false) => RequeueDecision::Undecided { kept: true },
            (CandidateState::Final, false) => RequeueDecision::Undecided { kept: false },
            (CandidateState::Repeatable, false) => return None,
        })
    }
}

/// The parked events to be requeued.
#[derive(Debug, Default)]
pub struct RequeuedEvents {
    /// The events, by id.
    by_id: HashMap<String, RequeuedEvent>,
    /// Positions of the events that will be parked again.
    at: HashSet<Position>,
    /// Events that the open claim has parked again, with their new positions.
    moved: Vec<(String, Position)>,
    /// Events that the open claim has parked beside a parked event with the same id, with their positions.
    beside: Vec<(String, Position)>,
}

impl RequeuedEvents {
    /// Decides about parked events that may have rows in the table.
    pub fn new(candidates: Vec<RequeueCandidate>) -> Self {
        let last = LastThatStays::of(&candidates);
        let mut by_id: HashMap<String, RequeuedEvent> = HashMap::new();
        for candidate in candidates {
            let Some(row) = candidate.row else { continue };
            let Some(decision) = last.decide(&candidate, row) else { continue };
            let RequeueCandidate { event_id, position, .. } = candidate;
            let again = RequeuedEvent { position, decision, xmin: row.xmin };
            match by_id.entry(event_id) {
                MapEntry::Occupied(mut known) if known.get().rank() < again.rank() => {
                    known.insert(again);
                }
                MapEntry::Occupied(_) => {}
                MapEntry::Vacant(free) => {
                    free.insert(again);
                }
            }
        }
        let parks = by_id
            .values()
            .filter(|again| matches!(again.decision, RequeueDecision::Requeue { .. }));
        let at = parks.map(|again| again.position).collect();
        Self { by_id, at, ..Self::default() }
    }

    /// Whether no parked event will be requeued.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Whether every parked event that would have been requeued `before` still will be.
    pub fn has_all_of(&self, before: &Self) -> bool {
        before.at.iter().all(|position| self.at.contains(position))
    }

    /// Whether the parked event at this position will be requeued.
    pub fn holds(&self, position: Position) -> bool {
        self.at.contains(&position)
    }

    /// What becomes of the row with this id that transaction `xmin` has written.
    #[inline]
    fn decision(&self, id: &str, xmin: u32) -> Option<RequeueDecision> {
        if self.by_id.is_empty() { None } else { self.decision_of(id, xmin) }
    }

    /// As [`Self::decision`]. If the row was written after it was read here, it may be another event.
    fn decision_of(&self, id: &str, xmin: u32) -> Option<RequeueDecision> {
        let again = self.by_id.get(id)?;
        Some(match again.decision {
            decision if again.xmin == xmin => decision,
            RequeueDecision::Requeue { .. } => RequeueDecision::Requeue { certain: false },
            RequeueDecision::MarkOnly => RequeueDecision::Undecided { kept: true },
            RequeueDecision::Undecided { kept } => RequeueDecision::Undecided { kept },
        })
    }

    /// Whether the event of this row will be parked again.
    #[inline]
    pub fn parks(&self, id: &str, xmin: u32) -> bool {
        matches!(self.decision(id, xmin), Some(RequeueDecision::Requeue { .. }))
    }

    /// Whether the row with this id is claimed although it has expired, because its event will be parked again. With
    /// the status of an expired row the event would keep its position, while later events of its aggregate are parked
    /// again and published; and it would be published before an earlier event whose row is still to be claimed.
    pub fn keeps_expired(&self, id: &str) -> bool {
        let parks =
            |again: &RequeuedEvent| matches!(again.decision, RequeueDecision::Requeue { .. });
        self.by_id.get(id).is_some_and(parks) && !injected(Bug::ClaimsExpireParked)
    }

    /// How long the event of this row is delayed: at least [`REQUEUED_WAIT`] if it will be parked again.
    #[inline]
    pub fn wait(&self, id: &str, xmin: u32, wait: Duration) -> Duration {
        if self.parks(id, xmin) { wait.max(REQUEUED_WAIT) } else { wait }
    }

    /// Whether the row is skipped.
    #[inline]
    pub fn passes(&self, id: &str, xmin: u32) -> bool {
        self.decision(id, xmin) == Some(RequeueDecision::MarkOnly)
    }

    /// Whether the row may be another event: it is parked.
    #[inline]
    pub fn doubts(&self, id: &str, xmin: u32) -> bool {
        matches!(self.decision(id, xmin), Some(RequeueDecision::Undecided { .. }))
    }

    /// Of the rows to be written, the indexes of those whose content has to be compared with that of a parked event,
    /// each after the position of that event. `xmin` returns the transaction that wrote a row.
    pub fn to_compare(
        &self,
        rows: &[ParkedRow<'_>],
        xmin: impl Fn(Position) -> u32,
    ) -> Vec<(Position, usize)> {
        let compared = |(index, row): (usize, &ParkedRow<'_>)| {
            // A payload that was not read can't be compared.
            if row.error_code == Some(ROW_TOO_LARGE) {
                return None;
            }
            let id = row.event_id?;
            let again = self.by_id.get(id)?;
            let decision = self.decision_of(id, xmin(row.entry.position))?;
            let compared = matches!(
                decision,
                RequeueDecision::Requeue { certain: false }
                    | RequeueDecision::Undecided { kept: true }
            );
            compared.then_some((again.position, index))
        };
        rows.iter().enumerate().filter_map(compared).collect()
    }

    /// The row of a parked event is about to be written: its position in the parked table, and its new position.
    pub fn moves(&mut self, row: &ParkedRow<'_>) -> Option<(Position, Position)> {
        let id = row.event_id?;
        let again = self.by_id.get(id)?;
        self.moved.push((id.to_owned(), row.entry.position));
        Some((again.position, row.entry.position))
    }

    /// The row is about to be written beside the parked event that has its id.
    pub fn keeps_beside(&mut self, row: &ParkedRow<'_>) {
        self.beside.extend(row.event_id.map(|id| (id.to_owned(), row.entry.position)));
    }

    /// The origin of a row that the open claim parks and transaction `xmin` has written. `alike`: its content equals
    /// that of the parked event with its id.
    pub fn origin(&self, row: &ParkedRow<'_>, xmin: u32, alike: bool) -> RowOrigin {
        match row.event_id.and_then(|id| self.decision_of(id, xmin)) {
            Some(RequeueDecision::Requeue { certain }) if certain || alike => RowOrigin::Requeued,
            Some(RequeueDecision::Undecided { kept: true }) if alike => RowOrigin::Kept,
            Some(RequeueDecision::Requeue { .. } | RequeueDecision::Undecided { .. }) => {
                RowOrigin::Doubted
            }
            Some(RequeueDecision::MarkOnly) | None => RowOrigin::New,
        }
    }

    /// Undoes the moves of the open claim from `from` on: the current positions, and the ones to restore.
    pub fn places_back(&mut self, from: Position) -> Vec<(Position, Position)> {
        self.beside.retain(|(_, at)| *at < from);
        let back = self.moved.extract_if(.., |(_, at)| *at >= from);
        back.filter_map(|(id, at)| Some((at, self.by_id.get(&id)?.position))).collect()
    }

    /// The claim is settled: the events that it has moved are no longer to be requeued.
    pub fn settled(&mut self) {
        for (id, _) in self.moved.drain(..).chain(self.beside.drain(..)) {
            if let Some(again) = self.by_id.remove(&id) {
                self.at.remove(&again.position);
            }
        }
    }

    /// The claim was given up, and with its transaction the moves that it had made. The next claim makes them again.
    pub fn given_up(&mut self) {
        self.moved.clear();
        self.beside.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::event::Aggregate;
    use postrider_core::offset::Offset;
    use postrider_core::parked::State;
    use std::collections::BTreeMap;

    fn at(lsn: u64) -> Position {
        Position { commit: Offset::new(lsn), ordinal: 0 }
    }

    fn row(event_id: Option<&str>, lsn: u64) -> ParkedRow<'_> {
        let entry = Entry {
            position: at(lsn),
            lane: None,
            state: State::Due,
            attempts: 0,
            wait: REQUEUED_WAIT,
            overtaken_by: None,
            xid: None,
        };
        ParkedRow { entry, event_id, error: None, error_code: None, dies: None }
    }

    /// An unresolved event whose row, if there is one, was written by transaction 7.
    fn candidate(id: &str, lsn: u64, aggregate: &str, certain: Option<bool>) -> RequeueCandidate {
        RequeueCandidate {
            event_id: id.to_owned(),
            position: at(lsn),
            lane: Some(Lane::of(Aggregate { kind: "order", id: aggregate })),
            blocks: true,
            state: CandidateState::Unresolved,
            precedes: false,
            row: certain.map(|certain| CandidateRow { certain, xmin: 7 }),
        }
    }

    /// The decisions about the rows, by id.
    fn decisions(candidates: Vec<RequeueCandidate>) -> BTreeMap<String, RequeueDecision> {
        let requeued = RequeuedEvents::new(candidates);
        requeued.by_id.into_iter().map(|(id, again)| (id, again.decision)).collect()
    }

    #[test]
    fn event_before_one_that_keeps_its_position_keeps_its_own() {
        let resolved =
            |candidate| RequeueCandidate { state: CandidateState::Repeatable, ..candidate };
        let claimed = |candidate| RequeueCandidate { precedes: true, ..candidate };
        let certain = Some(true);
        let candidates = vec![
            candidate("a1", 0x10, "a", certain),
            candidate("b2", 0x20, "b", certain),
            candidate("a3 is gone", 0x30, "a", None),
            candidate("a4", 0x40, "a", certain),
            resolved(candidate("a5 is resolved", 0x50, "a", certain)),
            resolved(candidate("b6 is resolved and gone", 0x60, "b", None)),
            // A claim has parked the eighth event and set its row's status; the seventh is claimed next.
            candidate("c7", 0x70, "c", certain),
            claimed(candidate("c8 was claimed", 0x81, "c", None)),
        ];
        let again = RequeueDecision::Requeue { certain: true };
        let wanted = [
            ("a1", RequeueDecision::MarkOnly),
            ("a4", again),
            ("a5 is resolved", RequeueDecision::MarkOnly),
            ("b2", again),
            ("c7", again),
        ];
        assert_eq!(decisions(candidates), wanted.map(|(id, it)| (id.to_owned(), it)).into());
    }

    /// An equal id is no proof: a row that may be another event is never passed over.
    #[test]
    fn row_that_may_be_another_event_is_never_passed_over() {
        let once = |candidate| RequeueCandidate { state: CandidateState::Final, ..candidate };
        let resolved =
            |candidate| RequeueCandidate { state: CandidateState::Repeatable, ..candidate };
        let doubtful = Some(false);
        let candidates = vec![
            candidate("a stays before b", 0x10, "a", doubtful),
            candidate("b is gone", 0x20, "a", None),
            candidate("c", 0x30, "c", doubtful),
            resolved(candidate("d is published", 0x40, "d", doubtful)),
            once(candidate("e is skipped", 0x50, "e", doubtful)),
            RequeueCandidate {
                blocks: false,
                ..candidate("f blocks nothing", 0x60, "f", doubtful)
            },
            // Two events have had this id: the parked one is compared, not the skipped one.
            once(candidate("g", 0x70, "g", doubtful)),
            candidate("g", 0x80, "g", doubtful),
        ];
        let (again, doubted) = (
            RequeueDecision::Requeue { certain: false },
            RequeueDecision::Undecided { kept: true },
        );
        let wanted = [
            ("a stays before b", doubted),
            ("c", again),
            ("e is skipped", RequeueDecision::Undecided { kept: false }),
            ("f blocks nothing", doubted),
            ("g", again),
        ];
        assert_eq!(decisions(candidates), wanted.map(|(id, it)| (id.to_owned(), it)).into());
    }

    #[test]
    fn requeued_event_is_moved_and_other_rows_of_parked_events_are_skipped() {
        let resolved =
            RequeueCandidate { state: CandidateState::Final, ..candidate("b", 2, "b", Some(true)) };
        let mut requeued = RequeuedEvents::new(vec![candidate("a", 1, "a", Some(true)), resolved]);
        assert!(
            requeued.holds(at(1)) && !requeued.holds(at(2)),
            "the relay has the events that are skipped"
        );
        assert_eq!(["a", "b", "c"].map(|id| requeued.parks(id, 7)), [true, false, false]);
        assert_eq!(["a", "b", "c"].map(|id| requeued.passes(id, 7)), [false, true, false]);
        assert!(!requeued.passes("b", 8) && requeued.doubts("b", 8), "written after it was read");
        assert_eq!(["a", "b", "c"].map(|id| requeued.keeps_expired(id)), [true, false, false]);
        let rows = [row(Some("a"), 10), row(Some("c"), 11), row(None, 12)];
        let origins = rows.each_ref().map(|row| requeued.origin(row, 7, false));
        assert_eq!(origins, [RowOrigin::Requeued, RowOrigin::New, RowOrigin::New]);
        assert_eq!(
            requeued.origin(&rows[0], 8, false),
            RowOrigin::Doubted,
            "written after it was read"
        );
        assert_eq!(
            requeued.origin(&rows[0], 8, true),
            RowOrigin::Requeued,
            "with the same content"
        );
        let moves = |requeued: &mut RequeuedEvents| -> Vec<_> {
            rows.iter().filter_map(|row| requeued.moves(row)).collect()
        };
        assert_eq!(moves(&mut requeued), [(at(1), at(10))]);
        assert!(requeued.parks("a", 7), "the claim may be given up");
        assert_eq!(requeued.places_back(at(11)), []);
        assert_eq!(requeued.places_back(at(10)), [(at(10), at(1))]);
        assert_eq!(moves(&mut requeued), [(at(1), at(10))]);
        requeued.settled();
        assert!(!requeued.parks("a", 7) && !requeued.holds(at(1)) && requeued.passes("b", 7));
    }

    /// The row of a large value is not compared: only a part of it was read.
    #[test]
    fn rows_whose_payload_was_not_read_are_not_compared() {
        let requeued = RequeuedEvents::new(vec![candidate("a", 1, "a", Some(false))]);
        let unread = ParkedRow { error_code: Some(ROW_TOO_LARGE), ..row(Some("a"), 10) };
        let rows = [row(Some("b"), 9), unread, row(Some("a"), 11)];
        assert_eq!(requeued.to_compare(&rows, |_| 7), [(at(1), 2)]);
    }
}
