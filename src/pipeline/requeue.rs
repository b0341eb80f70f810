//! After a slot was lost, the outbox table is read again. A parked event whose row is still in the table is requeued at
//! its place among the rows of its aggregate, because an earlier event of that aggregate may not be published yet.
//!
//! Until its row is claimed, the relay does not know such an event: it blocks nothing and is not retried. When the row
//! is claimed, the event is parked at the position of the row, and its existing row in the parked table is moved to
//! that position, so that attempts, errors and requests are kept. A parked event whose row is not in the table stays
//! where it is.

use super::connect;
use super::lifecycle::Pipeline;
use super::poll::Polling;
use super::service::Stop;
use super::spec::Mode;
use crate::event::Position;
use crate::parked::{Entry, Parked, State};
use crate::postgres::SourceError;
use crate::postgres::poll::by_id::OutboxTable;
use crate::postgres::store::requeue::{self, RequeueDecision, RequeuedEvent};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio_postgres::Client;

/// The delay before a requeued event is retried: longer than a claim may be open. Its true state is in its row, which
/// is read when the claim is settled.
const WAIT: Duration = Duration::from_secs(30);

/// `error_code` of a row that is parked because a parked event has the same ID, and it is not known whether they are
/// the same event.
pub(super) const ID_USED_BEFORE: &str = "id_used_before";

/// The `error` of such a row.
pub(super) const DOUBT: &str = "an event with this id was parked before, and PostgreSQL does not show whether this \
                                row is that event or another one: retry publishes it, skip leaves it out";

/// `error_code` of a row whose payload was not read because it is too large.
const ROW_TOO_LARGE: &str = "row_too_large";

/// What a row is that a claim parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowOrigin {
    /// The row of a parked event, which is moved to the position of the row.
    Requeued,
    /// The row of a parked event, which stays where it is.
    Kept,
    /// It may be the row of a parked event, or of another event.
    Doubted,
    /// The row of an event that is not parked yet.
    New,
}

/// The parked events to be requeued.
#[derive(Debug, Default)]
pub(super) struct RequeuedEvents {
    /// The events, by ID.
    by_id: HashMap<String, RequeuedEvent>,
    /// The transaction that wrote the row that is fed next.
    xmin: u32,
    /// Positions of the events that will be parked again.
    at: HashSet<Position>,
    /// Events that the open claim has parked again, with their new positions.
    moved: Vec<(String, Position)>,
    /// Events that the open claim has parked beside a parked event with the same ID, with their positions.
    beside: Vec<(String, Position)>,
}

impl RequeuedEvents {
    pub(super) fn new(found: Vec<RequeuedEvent>) -> Self {
        let parks =
            found.iter().filter(|again| matches!(again.decision, RequeueDecision::Requeue { .. }));
        let at = parks.map(|again| again.position).collect();
        let by_id = found.into_iter().map(|again| (again.event_id.clone(), again));
        Self { by_id: by_id.collect(), at, ..Self::default() }
    }

    /// Notes that this transaction wrote the row that is fed next.
    pub(super) const fn feeds(&mut self, xmin: u32) {
        self.xmin = xmin;
    }

    /// What becomes of the row with this ID that is fed next.
    #[inline]
    fn decision(&self, id: &str) -> Option<RequeueDecision> {
        if self.by_id.is_empty() { None } else { self.decision_of(id, self.xmin) }
    }

    /// What becomes of a row that transaction `xmin` has written. If the row was written after it was read here, it may
    /// be another event.
    fn decision_of(&self, id: &str, xmin: u32) -> Option<RequeueDecision> {
        let again = self.by_id.get(id)?;
        Some(match again.decision {
            decision if again.xmin == xmin => decision,
            RequeueDecision::Requeue { .. } => RequeueDecision::Requeue { certain: false },
            RequeueDecision::MarkOnly => RequeueDecision::Undecided { kept: true },
            RequeueDecision::Undecided { kept } => RequeueDecision::Undecided { kept },
        })
    }

    /// Whether the parked event at this position will be requeued.
    pub(super) fn holds(&self, position: Position) -> bool {
        self.at.contains(&position)
    }

    /// Whether the event with this ID will be parked again.
    #[inline]
    pub(super) fn parks(&self, id: &str) -> bool {
        matches!(self.decision(id), Some(RequeueDecision::Requeue { .. }))
    }

    /// How long the event with this ID is delayed: at least [`WAIT`] if it will be parked again.
    #[inline]
    pub(super) fn wait(&self, id: &str, wait: Duration) -> Duration {
        if self.parks(id) { wait.max(WAIT) } else { wait }
    }

    /// Whether the event with this ID is skipped.
    #[inline]
    pub(super) fn passes(&self, id: &str) -> bool {
        self.decision(id) == Some(RequeueDecision::MarkOnly)
    }

    /// Whether the row with this ID may be another event: it is parked.
    #[inline]
    pub(super) fn doubts(&self, id: &str) -> bool {
        matches!(self.decision(id), Some(RequeueDecision::Undecided { .. }))
    }

    /// Of the rows to be written, those whose content has to be compared with that of a parked event, with the position
    /// of that event. `xmin` returns the transaction that wrote a row.
    fn to_compare<'a>(
        &self,
        rows: &'a [Parked],
        xmin: impl Fn(&Parked) -> u32,
    ) -> Vec<(Position, &'a Parked)> {
        let compared = |row: &'a Parked| {
            // A payload that was not read can't be compared.
            if row.error_code == Some(ROW_TOO_LARGE) {
                return None;
            }
            let id = row.event_id.as_deref()?;
            let again = self.by_id.get(id)?;
            let decision = self.decision_of(id, xmin(row))?;
            let compared = matches!(
                decision,
                RequeueDecision::Requeue { certain: false }
                    | RequeueDecision::Undecided { kept: true }
            );
            compared.then_some((again.position, row))
        };
        rows.iter().filter_map(compared).collect()
    }

    /// The row of a parked event is about to be written: its position in the parked table, and its new position.
    pub(super) fn moves(&mut self, row: &Parked) -> Option<(Position, Position)> {
        let id = row.event_id.as_deref()?;
        let again = self.by_id.get(id)?;
        self.moved.push((id.to_owned(), row.entry.position));
        Some((again.position, row.entry.position))
    }

    /// The row is about to be written beside the parked event that has its ID.
    pub(super) fn keeps_beside(&mut self, row: &Parked) {
        let id = row.event_id.clone();
        self.beside.extend(id.map(|id| (id, row.entry.position)));
    }

    /// The origin of a row that the open claim parks and transaction `xmin` has written. `alike`: its content equals
    /// that of the parked event with its ID.
    pub(super) fn origin(&self, row: &Parked, xmin: u32, alike: bool) -> RowOrigin {
        match row.event_id.as_deref().and_then(|id| self.decision_of(id, xmin)) {
            Some(RequeueDecision::Requeue { certain }) if certain || alike => RowOrigin::Requeued,
            Some(RequeueDecision::Undecided { kept: true }) if alike => RowOrigin::Kept,
            Some(RequeueDecision::Requeue { .. } | RequeueDecision::Undecided { .. }) => {
                RowOrigin::Doubted
            }
            Some(RequeueDecision::MarkOnly) | None => RowOrigin::New,
        }
    }

    /// Undoes the moves of the open claim from `from` on: the current positions, and the ones to restore.
    pub(super) fn places_back(&mut self, from: Position) -> Vec<(Position, Position)> {
        self.beside.retain(|(_, at)| *at < from);
        let back = self.moved.extract_if(.., |(_, at)| *at >= from);
        back.filter_map(|(id, at)| Some((at, self.by_id.get(&id)?.position))).collect()
    }

    /// The claim is settled: the events that it has moved are no longer to be requeued.
    pub(super) fn settled(&mut self) {
        for (id, _) in self.moved.drain(..).chain(self.beside.drain(..)) {
            if let Some(again) = self.by_id.remove(&id) {
                self.at.remove(&again.position);
            }
        }
    }
}

/// The row as it is parked beside the event that has its ID, for a person to decide. Another error of the row is kept
/// in the text, even that it was not read because of its size: such a row has no topic, so that it can only be skipped.
pub(super) fn undecided(row: &Parked) -> Parked {
    let entry = Entry { state: State::Dead, ..row.entry };
    let other = row.error.as_deref().filter(|_| row.error_code != Some(ID_USED_BEFORE));
    let error = other.map_or_else(|| DOUBT.to_owned(), |other| format!("{DOUBT}; {other}"));
    Parked { entry, error_code: Some(ID_USED_BEFORE), error: Some(error), ..row.clone() }
}

impl Pipeline {
    /// Finds the parked events to be requeued, and removes them from those that the relay gets.
    pub(super) async fn find_requeued(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.requeued = self.query_requeued(polling, stop).await?;
        self.remove_requeued(polling);
        Ok(())
    }

    async fn query_requeued(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<RequeuedEvents, SourceError> {
        self.finish_jobs(polling, stop).await?;
        let (client, name) = (polling.store.control.client(), self.spec.name());
        if let Some(list) = polling.poller.repairs() {
            return Ok(RequeuedEvents::new(requeue::listed(client, name, list.table()).await?));
        }
        let found = match &self.spec.poll.table {
            Some(spec) if self.spec.mode == Mode::Auto => {
                let table = OutboxTable::read(client, spec.clone()).await?;
                requeue::unpublished(client, name, &table).await?
            }
            Some(_) | None => Vec::new(),
        };
        Ok(RequeuedEvents::new(found))
    }

    fn remove_requeued(&self, polling: &mut Polling) {
        polling.parked.retain(|row| !self.requeued.holds(row.entry.position));
    }

    /// The positions of rows to be written whose content equals that of the parked event with their ID.
    pub(super) async fn alike(
        &self,
        client: &Client,
        rows: &[Parked],
        xmin: impl Fn(&Parked) -> u32,
    ) -> Result<HashSet<Position>, SourceError> {
        let compared = self.requeued.to_compare(rows, xmin);
        requeue::alike(client, self.spec.name(), &compared).await
    }

    /// Reads the parked events again. Positions that an aborted claim had changed are changed again by the next claim.
    pub(super) async fn reload(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.requeued.moved.clear();
        self.requeued.beside.clear();
        self.finish_jobs(polling, stop).await?;
        let client = polling.store.control.client();
        polling.parked = connect::load_all(client, self.spec.name()).await?;
        self.remove_requeued(polling);
        Ok(())
    }

    /// Reads the parked events as the open claim sees them: with its own rows, and with the events it has moved.
    pub(super) async fn read_in_claim(&self, polling: &mut Polling) -> Result<(), SourceError> {
        let client = polling.poller.client();
        polling.parked = connect::load_all(client, self.spec.name()).await?;
        self.remove_requeued(polling);
        Ok(())
    }

    /// After a claim: whether some events are no longer to be requeued, because their rows were deleted. The relay gets
    /// them back then.
    pub(super) async fn requeued_are_fewer(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        if self.requeued.at.is_empty() || polling.poller.repairs().is_some() {
            return Ok(false);
        }
        let left = self.query_requeued(polling, stop).await?;
        let fewer = left.at.len() < self.requeued.at.len();
        self.requeued = left;
        Ok(fewer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Offset;
    use crate::record::OwnedRecord;
    use crate::timestamp::Timestamp;

    fn at(lsn: u64) -> Position {
        Position { commit: Offset::new(lsn), ordinal: 0 }
    }

    fn row(id: Option<&str>, lsn: u64) -> Parked {
        let entry = Entry {
            position: at(lsn),
            lane: None,
            state: State::Due,
            attempts: 0,
            wait: WAIT,
            overtaken_by: None,
        };
        Parked {
            entry,
            commit_time: Timestamp::default(),
            event_id: id.map(str::to_owned),
            event_type: None,
            aggregate: None,
            record: OwnedRecord::default(),
            error_code: None,
            error: None,
        }
    }

    #[test]
    fn doubted_row_has_the_error_code_of_the_doubt_whatever_other_error_it_has() {
        for code in [ROW_TOO_LARGE, "too_large"] {
            let error = Some("a value is too large".to_owned());
            let parked = Parked { error_code: Some(code), error, ..row(Some("a"), 1) };
            let undecided = undecided(&parked);
            assert_eq!(
                (undecided.error_code, undecided.entry.state),
                (Some(ID_USED_BEFORE), State::Dead)
            );
            assert_eq!(undecided.error, Some(format!("{DOUBT}; a value is too large")));
        }
    }

    #[test]
    fn requeued_event_is_moved_and_other_rows_of_parked_events_are_skipped() {
        let again = |id: &str, lsn, decision| RequeuedEvent {
            event_id: id.into(),
            position: at(lsn),
            decision,
            xmin: 7,
        };
        let comes = again("a", 1, RequeueDecision::Requeue { certain: true });
        let mut requeued =
            RequeuedEvents::new(vec![comes, again("b", 2, RequeueDecision::MarkOnly)]);
        requeued.feeds(7);
        assert!(
            requeued.holds(at(1)) && !requeued.holds(at(2)),
            "the relay has the events that are skipped"
        );
        assert_eq!(["a", "b", "c"].map(|id| requeued.parks(id)), [true, false, false]);
        assert_eq!(["a", "b", "c"].map(|id| requeued.passes(id)), [false, true, false]);
        requeued.feeds(8);
        assert!(!requeued.passes("b") && requeued.doubts("b"), "written after it was read");
        requeued.feeds(7);
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
        assert!(requeued.parks("a"), "the claim may be given up");
        assert_eq!(requeued.places_back(at(11)), []);
        assert_eq!(requeued.places_back(at(10)), [(at(10), at(1))]);
        assert_eq!(moves(&mut requeued), [(at(1), at(10))]);
        requeued.settled();
        assert!(!requeued.parks("a") && !requeued.holds(at(1)) && requeued.passes("b"));
    }
}
