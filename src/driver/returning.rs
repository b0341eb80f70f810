//! After a slot was lost, the outbox table is read again. A parked event whose row is still in the table is parked anew
//! at its place among the rows of its aggregate, because an earlier event may not be published yet.
//!
//! Until its row comes such an event is not the relay's: it blocks nothing and is not tried. When it comes it is parked
//! again, where it stands among the rows of its aggregate, and the row that it has had all along is moved there: tries,
//! errors and requests of people are kept. What does not come again stays where it is.

use super::connect;
use super::pipeline::Pipeline;
use super::poll::Polling;
use super::run::Stop;
use super::spec::Mode;
use crate::event::Position;
use crate::parked::Parked;
use crate::postgres::SourceError;
use crate::postgres::parked::{self, Again};
use crate::postgres::poll::listed::Table;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// How long an event that comes again is kept from being tried: longer than a claim may be open. Its row says what is
/// true of it, and is read when the claim is settled.
const WAIT: Duration = Duration::from_secs(30);

/// The parked events that are to come again.
#[derive(Debug, Default)]
pub(super) struct Returning {
    by_id: HashMap<String, (Position, bool)>,
    /// Where those stand that are to be parked again.
    at: HashSet<Position>,
    /// Parked again by the claim that is open, and where.
    moved: Vec<(String, Position)>,
}

impl Returning {
    pub(super) fn new(found: Vec<Again>) -> Self {
        let parks = found.iter().filter(|again| !again.passes);
        let at = parks.map(|again| again.position).collect();
        let by_id = found.into_iter().map(|again| (again.event_id, (again.position, again.passes)));
        Self { by_id: by_id.collect(), at, moved: Vec::new() }
    }

    /// Whether the parked event of this position is one.
    pub(super) fn holds(&self, position: Position) -> bool {
        self.at.contains(&position)
    }

    /// Whether the event of this id is one, and to be parked again.
    #[inline]
    pub(super) fn parks(&self, id: &str) -> bool {
        !self.by_id.is_empty() && self.by_id.get(id).is_some_and(|(_, passes)| !passes)
    }

    /// How long the event of this id is kept back: longer than it would be where it is one to be parked again.
    #[inline]
    pub(super) fn wait(&self, id: &str, wait: Duration) -> Duration {
        if self.parks(id) { wait.max(WAIT) } else { wait }
    }

    /// Whether the event of this id is one, and to be passed over.
    #[inline]
    pub(super) fn passes(&self, id: &str) -> bool {
        !self.by_id.is_empty() && self.by_id.get(id).is_some_and(|(_, passes)| *passes)
    }

    /// Of rows that are about to be written: where they stand in the table, and where they stand now.
    pub(super) fn places(&mut self, rows: &[Parked]) -> Vec<(Position, Position)> {
        let mut places = Vec::new();
        for row in rows {
            let Some(id) = row.event_id.as_deref().filter(|id| self.parks(id)) else { continue };
            if let Some((before, _)) = self.by_id.get(id) {
                places.push((*before, row.entry.position));
                self.moved.push((id.to_owned(), row.entry.position));
            }
        }
        places
    }

    /// Of what the open claim has moved, all from there on is to stand where it stood: where it is now, and then.
    pub(super) fn places_back(&mut self, from: Position) -> Vec<(Position, Position)> {
        let back = self.moved.extract_if(.., |(_, at)| *at >= from);
        back.filter_map(|(id, at)| Some((at, self.by_id.get(&id)?.0))).collect()
    }

    /// The claim is settled: what it has moved does not come any more.
    pub(super) fn settled(&mut self) {
        for (id, _) in self.moved.drain(..) {
            if let Some((before, _)) = self.by_id.remove(&id) {
                self.at.remove(&before);
            }
        }
    }
}

impl Pipeline {
    /// Finds out which parked events come again, and takes them from what the relay is told of.
    pub(super) async fn find_returning(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.returning = self.look_for_returning(polling, stop).await?;
        self.without_returning(polling);
        Ok(())
    }

    async fn look_for_returning(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<Returning, SourceError> {
        self.finish_jobs(polling, stop).await?;
        let (client, name) = (polling.desk.control.client(), self.spec.name());
        let found = match &self.spec.poll.table {
            _ if polling.poller.repairs().is_some() => parked::listed(client, name).await?,
            Some(spec) if self.spec.mode == Mode::Auto => {
                let table = Table::read(client, spec.clone()).await?;
                parked::unpublished(client, name, &table).await?
            }
            Some(_) | None => Vec::new(),
        };
        Ok(Returning::new(found))
    }

    fn without_returning(&self, polling: &mut Polling) {
        polling.parked.retain(|row| !self.returning.holds(row.entry.position));
    }

    /// Reads the parked events again. Positions that an aborted claim had changed are changed again by the next claim.
    pub(super) async fn reload(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.returning.moved.clear();
        self.finish_jobs(polling, stop).await?;
        let client = polling.desk.control.client();
        polling.parked = connect::load_all(client, self.spec.name()).await?;
        self.without_returning(polling);
        Ok(())
    }

    /// Reads what is parked as the claim at hand has it: with its own rows, and with what it has moved.
    pub(super) async fn read_in_claim(&self, polling: &mut Polling) -> Result<(), SourceError> {
        let client = polling.poller.client();
        polling.parked = connect::load_all(client, self.spec.name()).await?;
        self.without_returning(polling);
        Ok(())
    }

    /// After a claim: whether some of them are not to come any more, since their rows are gone. They are the
    /// relay's again then.
    pub(super) async fn returning_are_fewer(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        if self.returning.at.is_empty() || polling.poller.repairs().is_some() {
            return Ok(false);
        }
        let left = self.look_for_returning(polling, stop).await?;
        let fewer = left.at.len() < self.returning.at.len();
        self.returning = left;
        Ok(fewer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PgTime;
    use crate::lsn::Lsn;
    use crate::parked::{Entry, State};
    use crate::record::OwnedRecord;

    fn at(lsn: u64) -> Position {
        Position { commit_lsn: Lsn::from_wire(lsn), ordinal: 0 }
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
            commit_time: PgTime::default(),
            event_id: id.map(str::to_owned),
            event_type: None,
            aggregate: None,
            record: OwnedRecord::default(),
            error_code: None,
            error: None,
        }
    }

    #[test]
    fn what_comes_again_is_moved_and_what_stays_is_passed_over() {
        let again =
            |id: &str, lsn, passes| Again { event_id: id.into(), position: at(lsn), passes };
        let mut returning = Returning::new(vec![again("a", 1, false), again("b", 2, true)]);
        assert!(returning.holds(at(1)) && !returning.holds(at(2)), "what passes is the relay's");
        assert_eq!(["a", "b", "c"].map(|id| returning.parks(id)), [true, false, false]);
        assert_eq!(["a", "b", "c"].map(|id| returning.passes(id)), [false, true, false]);
        let rows = [row(Some("a"), 10), row(Some("c"), 11), row(None, 12)];
        assert_eq!(returning.places(&rows), [(at(1), at(10))]);
        assert!(returning.parks("a"), "the claim may be given up");
        assert_eq!(returning.places_back(at(11)), []);
        assert_eq!(returning.places_back(at(10)), [(at(10), at(1))]);
        assert_eq!(returning.places(&rows), [(at(1), at(10))]);
        returning.settled();
        assert!(!returning.parks("a") && !returning.holds(at(1)) && returning.passes("b"));
    }
}
