//! After a slot was lost, the outbox table is read again. A parked event whose row is still in the table is parked anew
//! at its place among the rows of its aggregate, because an earlier event may not be published yet.
//!
//! Until its row comes such an event is not the relay's: it blocks nothing and is not tried. When it comes it is parked
//! again, where it stands among the rows of its aggregate, and the row that it has had all along is moved there: tries,
//! errors and requests of people are kept. What does not come again stays where it is.

use super::connect;
use super::lifecycle::Pipeline;
use super::poll::Polling;
use super::service::Stop;
use super::spec::Mode;
use crate::event::Position;
use crate::parked::{Entry, Parked, State};
use crate::postgres::SourceError;
use crate::postgres::poll::claim::Table;
use crate::postgres::store::parked::{self, Again, Fate};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio_postgres::Client;

/// How long an event that comes again is kept from being tried: longer than a claim may be open. Its row says what is
/// true of it, and is read when the claim is settled.
const WAIT: Duration = Duration::from_secs(30);

/// `error_code` of a row that is parked, since it has the id of another event or is that event.
pub(super) const ID_USED_BEFORE: &str = "id_used_before";

/// The same for people.
pub(super) const DOUBT: &str = "an event with this id was parked before, and PostgreSQL does not show whether this \
                                row is that event or another one: retry publishes it, skip leaves it out";

/// `error_code` of a row that was not read, since it is too large.
const ROW_TOO_LARGE: &str = "row_too_large";

/// What a row is that a claim parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// The row of a parked event, which is moved to where it stands.
    Again,
    /// The row of a parked event, which stays where it is.
    Kept,
    /// It may be the row of a parked event, or of another one.
    Doubted,
    /// An event of its own.
    New,
}

/// The parked events that are to come again.
#[derive(Debug, Default)]
pub(super) struct Returning {
    by_id: HashMap<String, Again>,
    /// The transaction that wrote the row of the claim that is fed next.
    xmin: u32,
    /// Where those stand that are to be parked again.
    at: HashSet<Position>,
    /// Parked again by the claim that is open, and where.
    moved: Vec<(String, Position)>,
    /// Parked by the claim that is open beside the event whose id they have, and where.
    beside: Vec<(String, Position)>,
}

impl Returning {
    pub(super) fn new(found: Vec<Again>) -> Self {
        let parks = found.iter().filter(|again| matches!(again.fate, Fate::Again { .. }));
        let at = parks.map(|again| again.position).collect();
        let by_id = found.into_iter().map(|again| (again.event_id.clone(), again));
        Self { by_id: by_id.collect(), at, ..Self::default() }
    }

    /// The row of the claim that is fed next was written by this transaction.
    pub(super) const fn feeds(&mut self, xmin: u32) {
        self.xmin = xmin;
    }

    /// What becomes of the row of this id that is fed.
    #[inline]
    fn fate(&self, id: &str) -> Option<Fate> {
        if self.by_id.is_empty() { None } else { self.fate_of(id, self.xmin) }
    }

    /// The same of a row that this transaction has written. Written since it was looked at, it may be another one.
    fn fate_of(&self, id: &str, xmin: u32) -> Option<Fate> {
        let again = self.by_id.get(id)?;
        Some(match again.fate {
            fate if again.xmin == xmin => fate,
            Fate::Again { .. } => Fate::Again { certain: false },
            Fate::Passes => Fate::Doubted { kept: true },
            Fate::Doubted { kept } => Fate::Doubted { kept },
        })
    }

    /// Whether the parked event of this position is one.
    pub(super) fn holds(&self, position: Position) -> bool {
        self.at.contains(&position)
    }

    /// Whether the event of this id is one, and to be parked again.
    #[inline]
    pub(super) fn parks(&self, id: &str) -> bool {
        matches!(self.fate(id), Some(Fate::Again { .. }))
    }

    /// How long the event of this id is kept back: longer than it would be where it is one to be parked again.
    #[inline]
    pub(super) fn wait(&self, id: &str, wait: Duration) -> Duration {
        if self.parks(id) { wait.max(WAIT) } else { wait }
    }

    /// Whether the event of this id is one, and to be passed over.
    #[inline]
    pub(super) fn passes(&self, id: &str) -> bool {
        self.fate(id) == Some(Fate::Passes)
    }

    /// Whether the row of this id may be another event: it is parked.
    #[inline]
    pub(super) fn doubts(&self, id: &str) -> bool {
        matches!(self.fate(id), Some(Fate::Doubted { .. }))
    }

    /// Of rows that are about to be written, those whose content has to be compared with that of a parked event, each
    /// with the place of that. `xmin` gives the transaction that wrote one.
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
            let fate = self.fate_of(id, xmin(row))?;
            let compared =
                matches!(fate, Fate::Again { certain: false } | Fate::Doubted { kept: true });
            compared.then_some((again.position, row))
        };
        rows.iter().filter_map(compared).collect()
    }

    /// The row of a parked event is about to be written: where the event is in the table, and where it is now.
    pub(super) fn moves(&mut self, row: &Parked) -> Option<(Position, Position)> {
        let id = row.event_id.as_deref()?;
        let again = self.by_id.get(id)?;
        self.moved.push((id.to_owned(), row.entry.position));
        Some((again.position, row.entry.position))
    }

    /// The row is about to be written beside the parked event whose id it has.
    pub(super) fn keeps_beside(&mut self, row: &Parked) {
        let id = row.event_id.clone();
        self.beside.extend(id.map(|id| (id, row.entry.position)));
    }

    /// What a row is that the claim at hand parks, which transaction `xmin` has written; `alike`: its content is that
    /// of the parked event whose id it has.
    pub(super) fn whose(&self, row: &Parked, xmin: u32, alike: bool) -> Whose {
        match row.event_id.as_deref().and_then(|id| self.fate_of(id, xmin)) {
            Some(Fate::Again { certain }) if certain || alike => Whose::Again,
            Some(Fate::Doubted { kept: true }) if alike => Whose::Kept,
            Some(Fate::Again { .. } | Fate::Doubted { .. }) => Whose::Doubted,
            Some(Fate::Passes) | None => Whose::New,
        }
    }

    /// Of what the open claim has moved, all from there on is to stand where it stood: where it is now, and then.
    pub(super) fn places_back(&mut self, from: Position) -> Vec<(Position, Position)> {
        self.beside.retain(|(_, at)| *at < from);
        let back = self.moved.extract_if(.., |(_, at)| *at >= from);
        back.filter_map(|(id, at)| Some((at, self.by_id.get(&id)?.position))).collect()
    }

    /// The claim is settled: what it has moved does not come any more.
    pub(super) fn settled(&mut self) {
        for (id, _) in self.moved.drain(..).chain(self.beside.drain(..)) {
            if let Some(again) = self.by_id.remove(&id) {
                self.at.remove(&again.position);
            }
        }
    }
}

/// The row as it is parked beside the event whose id it has, for a person to decide. Another error that it has is kept
/// in its text, also that it was not read for its size: such a row has no topic, so that it can only be skipped.
pub(super) fn undecided(row: &Parked) -> Parked {
    let entry = Entry { state: State::Dead, ..row.entry };
    let other = row.error.as_deref().filter(|_| row.error_code != Some(ID_USED_BEFORE));
    let error = other.map_or_else(|| DOUBT.to_owned(), |other| format!("{DOUBT}; {other}"));
    Parked { entry, error_code: Some(ID_USED_BEFORE), error: Some(error), ..row.clone() }
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
        if let Some(list) = polling.poller.repairs() {
            return Ok(Returning::new(parked::listed(client, name, list.table()).await?));
        }
        let found = match &self.spec.poll.table {
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

    /// Of rows that are about to be written: those whose content is that of the parked event whose id they have.
    pub(super) async fn alike(
        &self,
        client: &Client,
        rows: &[Parked],
        xmin: impl Fn(&Parked) -> u32,
    ) -> Result<HashSet<Position>, SourceError> {
        let compared = self.returning.to_compare(rows, xmin);
        parked::alike(client, self.spec.name(), &compared).await
    }

    /// Reads the parked events again. Positions that an aborted claim had changed are changed again by the next claim.
    pub(super) async fn reload(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.returning.moved.clear();
        self.returning.beside.clear();
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
    fn a_row_in_doubt_has_the_code_of_the_doubt_whatever_else_is_wrong_with_it() {
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
    fn what_comes_again_is_moved_and_what_stays_is_passed_over() {
        let again =
            |id: &str, lsn, fate| Again { event_id: id.into(), position: at(lsn), fate, xmin: 7 };
        let comes = again("a", 1, Fate::Again { certain: true });
        let mut returning = Returning::new(vec![comes, again("b", 2, Fate::Passes)]);
        returning.feeds(7);
        assert!(returning.holds(at(1)) && !returning.holds(at(2)), "what passes is the relay's");
        assert_eq!(["a", "b", "c"].map(|id| returning.parks(id)), [true, false, false]);
        assert_eq!(["a", "b", "c"].map(|id| returning.passes(id)), [false, true, false]);
        returning.feeds(8);
        assert!(!returning.passes("b") && returning.doubts("b"), "written since then");
        returning.feeds(7);
        let rows = [row(Some("a"), 10), row(Some("c"), 11), row(None, 12)];
        let whose = rows.each_ref().map(|row| returning.whose(row, 7, false));
        assert_eq!(whose, [Whose::Again, Whose::New, Whose::New]);
        assert_eq!(returning.whose(&rows[0], 8, false), Whose::Doubted, "written since then");
        assert_eq!(returning.whose(&rows[0], 8, true), Whose::Again, "with the same content");
        let moves = |returning: &mut Returning| -> Vec<_> {
            rows.iter().filter_map(|row| returning.moves(row)).collect()
        };
        assert_eq!(moves(&mut returning), [(at(1), at(10))]);
        assert!(returning.parks("a"), "the claim may be given up");
        assert_eq!(returning.places_back(at(11)), []);
        assert_eq!(returning.places_back(at(10)), [(at(10), at(1))]);
        assert_eq!(moves(&mut returning), [(at(1), at(10))]);
        returning.settled();
        assert!(!returning.parks("a") && !returning.holds(at(1)) && returning.passes("b"));
    }
}
