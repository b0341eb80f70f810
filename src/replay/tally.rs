//! What became of the events of a replay: the counts, the events that were not published, and the rows of the table
//! that are done.
//!
//! If the source is read again from the progress, the events above the progress are offered again. A refusal there
//! counts only after the progress has passed its event, because the event may be refused again, or published.

use crate::event::Position;
use crate::offset::Offset;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Refused events that are listed one by one.
const REFUSED_MAX: usize = 20;

/// Refused events above the progress at most. At this number no further event is offered.
const REFUSED_AHEAD_MAX: usize = 5_000;

/// Topics that are counted one by one.
const TOPICS_MAX: usize = 1000;

/// What became of the events.
#[derive(Debug)]
pub(super) struct Account {
    /// The counts.
    pub(super) tally: Tally,
    /// Refused events above the progress.
    refused_ahead: BTreeMap<Position, Refused>,
    /// `None` if the source knows positions.
    rows: Option<RowAccount>,
}

/// The rows of the table that were offered. A row has no position in the WAL: it has a number as its offset.
#[derive(Debug, Default)]
struct RowAccount {
    /// Rows that are not done, with the ids of their events.
    offered: VecDeque<(Offset, String)>,
    /// The id of the last row that is done.
    done: Option<String>,
}

impl Account {
    /// An account of a source that knows positions.
    pub(super) fn of_positions(tally: Tally) -> Self {
        Self { tally, refused_ahead: BTreeMap::new(), rows: None }
    }

    /// An account of the table, whose rows up to the one with id `done` are done.
    pub(super) fn of_rows(tally: Tally, done: Option<String>) -> Self {
        let rows = RowAccount { offered: VecDeque::new(), done };
        Self { tally, refused_ahead: BTreeMap::new(), rows: Some(rows) }
    }

    /// Whether the source knows positions.
    pub(super) fn knows_positions(&self) -> bool {
        self.rows.is_none()
    }

    /// The position that the user sees; `None` for a row.
    pub(super) fn shown(&self, at: Position) -> Option<Position> {
        self.knows_positions().then_some(at)
    }

    /// The id of the last row that is done; `None` if there is none, and if the source knows positions.
    pub(super) fn row_done(&self) -> Option<&str> {
        self.rows.as_ref()?.done.as_deref()
    }

    /// A row was offered.
    pub(super) fn offered(&mut self, number: Offset, id: String) {
        if let Some(rows) = &mut self.rows {
            rows.offered.push_back((number, id));
        }
    }

    /// Whether another event may be refused.
    pub(super) fn has_room(&self) -> bool {
        self.refused_ahead.len() < REFUSED_AHEAD_MAX
    }

    /// The requested event that is offered now, with this id, can't be published.
    pub(super) fn refuse_offered(&mut self, at: Position, id: &str, why: String) {
        let event = self.shown(at).map_or_else(|| id.to_owned(), |at| at.to_string());
        self.refused_ahead.insert(at, Refused { event, why });
    }

    /// An event that was sent before was refused.
    pub(super) fn refuse_sent(&mut self, at: Position, why: String) {
        let id = self.rows.as_ref().map(|rows| rows.id(at.commit)).unwrap_or_default();
        self.refuse_offered(at, &id, why);
    }

    /// Every event below this position is done.
    pub(super) fn settle(&mut self, done: Position) {
        while let Some(first) = self.refused_ahead.first_entry().filter(|one| *one.key() < done) {
            self.tally.refuse(first.remove());
        }
        if let Some(rows) = &mut self.rows {
            rows.settle(done.commit);
        }
    }

    /// Everything that is not done is offered again.
    pub(super) fn discard_ahead(&mut self) {
        self.refused_ahead.clear();
        if let Some(rows) = &mut self.rows {
            rows.offered.clear();
        }
    }
}

impl RowAccount {
    fn id(&self, number: Offset) -> String {
        let at = self.offered.binary_search_by_key(&number, |(number, _)| *number);
        at.ok().and_then(|at| self.offered.get(at)).map(|(_, id)| id.clone()).unwrap_or_default()
    }

    fn settle(&mut self, done: Offset) {
        while let Some((_, id)) = self.offered.pop_front_if(|(number, _)| *number < done) {
            self.done = Some(id);
        }
    }
}

/// What a replay has done so far. Contains no payloads or keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Events passed to the sink in this run; in a dry run, events that would be.
    pub sent: u64,
    /// Events that the broker has acknowledged, including those of earlier runs.
    pub published: u64,
    /// Changes of the source that were not requested.
    pub passed: u64,
    /// Bytes of keys, values and headers of the sent events.
    pub bytes: u64,
    /// Requested events that were not published, including those of earlier runs.
    pub refused: u64,
    /// The first of them in this run.
    pub refusals: Vec<Refused>,
    /// The first event that was sent: its position, or, from the table, its ID.
    pub first: Option<String>,
    /// Events sent, by topic.
    pub topics: BTreeMap<String, u64>,
    /// Transactions that began before the requested position and committed after it.
    pub straddling: u64,
    /// The commit of the last one that was counted.
    straddled: Offset,
    last: Last,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Last {
    #[default]
    None,
    At(Position),
    Id(String),
}

/// A requested event that was not published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its position, or, from the table, its ID.
    pub event: String,
    /// Why it was not published.
    pub why: String,
}

impl Tally {
    /// Starts with the counts of earlier runs.
    pub(super) fn resumed_with(published: u64, refused: u64) -> Self {
        Self { published, refused, ..Self::default() }
    }

    /// One event was sent.
    pub(super) fn sent(&mut self, at: Option<Position>, id: &str, topic: &str, bytes: usize) {
        self.sent += 1;
        self.bytes += u64::try_from(bytes).unwrap_or(0);
        match (at, &mut self.last) {
            (Some(at), last) => *last = Last::At(at),
            (None, Last::Id(last)) => id.clone_into(last),
            (None, last) => *last = Last::Id(id.to_owned()),
        }
        if self.first.is_none() {
            self.first = self.last();
        }
        if let Some(count) = self.topics.get_mut(topic) {
            *count += 1;
        } else if self.topics.len() < TOPICS_MAX {
            self.topics.insert(topic.to_owned(), 1);
        }
    }

    /// The last event that was sent, as [`Tally::first`].
    pub fn last(&self) -> Option<String> {
        match &self.last {
            Last::None => None,
            Last::At(at) => Some(at.to_string()),
            Last::Id(id) => Some(id.clone()),
        }
    }

    /// One transaction began before the requested position and committed after it. A transaction that is read again is
    /// counted once.
    pub(super) fn straddles(&mut self, commit: Offset) {
        if commit > self.straddled {
            self.straddled = commit;
            self.straddling += 1;
        }
    }

    /// One event was not published.
    fn refuse(&mut self, event: Refused) {
        self.refused += 1;
        if self.refusals.len() < REFUSED_MAX {
            self.refusals.push(event);
        }
    }
}

/// The progress of a replay, reported a few times a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayProgress<'a> {
    /// What was done.
    pub tally: &'a Tally,
    /// Time since this run began.
    pub elapsed: Duration,
    /// For the WAL: start, current position and end.
    pub log: Option<(Offset, Offset, Offset)>,
    /// Events in flight.
    pub in_flight: usize,
}

/// What a replay reports while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayUpdate<'a> {
    /// Its progress.
    Progress(ReplayProgress<'a>),
    /// The broker is unavailable, or accepts no records, or the database is unavailable; the replay waits. Reason and
    /// hint.
    Down(&'a str, Option<&'a str>),
    /// The broker or the database is available again.
    Up,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(commit: u64, ordinal: u64) -> Position {
        Position { commit: Offset::new(commit), ordinal }
    }

    /// The events behind an unknown outcome are offered again, and are refused again: `refused` counted them twice.
    #[test]
    fn refusal_counts_once_the_progress_has_passed_it() {
        let mut account = Account::of_positions(Tally::default());
        let refuse = |account: &mut Account| {
            account.refuse_offered(at(16, 3), "4", "it is poison".to_owned());
            account.refuse_sent(at(16, 1), "it is too large".to_owned());
        };
        refuse(&mut account);
        account.settle(at(16, 0));
        assert_eq!(account.tally.refused, 0);
        account.discard_ahead();
        refuse(&mut account);
        account.settle(at(16, 2));
        assert_eq!(account.tally.refused, 1);
        account.settle(at(32, 0));
        assert_eq!(account.tally.refused, 2);
        let listed: Vec<&str> =
            account.tally.refusals.iter().map(|refused| refused.event.as_str()).collect();
        assert_eq!(listed, ["0/10:1", "0/10:3"]);
    }

    #[test]
    fn rows_are_done_in_their_order_and_named_by_their_ids() {
        let mut account = Account::of_rows(Tally::default(), Some("a".to_owned()));
        for (number, id) in [(7, "b"), (8, "c"), (9, "d")] {
            account.offered(Offset::new(number), id.to_owned());
        }
        assert_eq!((account.row_done(), account.shown(at(7, 0))), (Some("a"), None));
        account.refuse_sent(at(8, 0), "it is too large".to_owned());
        account.settle(at(9, 0));
        assert_eq!(account.row_done(), Some("c"));
        assert_eq!(account.tally.refusals.first().map(|one| one.event.as_str()), Some("c"));
        account.discard_ahead();
        account.settle(at(10, 0));
        assert_eq!(account.row_done(), Some("c"), "the last row is read again");
    }

    /// A replay that is repeated from its progress reads a transaction again.
    #[test]
    fn transaction_across_the_start_is_counted_once() {
        let mut tally = Tally::default();
        for commit in [16, 32, 16, 32] {
            tally.straddles(Offset::new(commit));
        }
        assert_eq!(tally.straddling, 2);
    }
}
