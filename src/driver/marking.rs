//! Rows that the stream brought are marked in their table once they are published, and, after polling, events that it
//! has published are passed over when the stream brings them again.
//!
//! Marks are committed before the cursor row that passes their events: so a row without a mark is one the stream still
//! brings, or brings again, and polling may take over at any moment. Ids are kept whole: a hash would one day pass over
//! an event that was never published.

use crate::ack::Progress;
use crate::event::Position;
use crate::lsn::Lsn;
use crate::postgres::SourceError;
use crate::postgres::parked;
use crate::postgres::poll::PollSpec;
use crate::postgres::poll::marks::Marker;
use crate::record::Ticket;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio_postgres::Client;

/// Events remembered as polled. Of about 100 bytes each.
const HANDED_MAX: usize = 100_000;

/// What is to be marked.
#[derive(Debug, Default)]
pub(super) struct Marking {
    on: bool,
    marker: Option<Marker>,
    flying: HashMap<Ticket, String>,
    done: Vec<String>,
    /// Parked, and not yet passed by the cursor row: if the slot is lost before that, the table tells what comes before
    /// them.
    set_aside: Vec<(Position, String)>,
    /// Taken for a cursor row that is being written.
    taken: Arc<Vec<String>>,
}

impl Marking {
    pub(super) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// An event is on its way.
    pub(super) fn sent(&mut self, ticket: Ticket, id: &str) {
        if self.on {
            self.flying.insert(ticket, id.to_owned());
        }
    }

    /// It is published.
    pub(super) fn published(&mut self, ticket: Ticket) {
        if self.on
            && let Some(id) = self.flying.remove(&ticket)
        {
            self.done.push(id);
        }
    }

    /// It is kept in the parked table: its row in the outbox is done with once the cursor row has passed it.
    pub(super) fn parked(&mut self, position: Position, id: Option<String>) {
        if self.on {
            self.set_aside.extend(id.map(|id| (position, id)));
        }
    }

    /// A stream begins: what was parked before, and is not passed, is marked when it is.
    pub(super) async fn find_parked(
        &mut self,
        client: &Client,
        pipeline: &str,
    ) -> Result<(), SourceError> {
        if self.on {
            self.set_aside = parked::not_passed(client, pipeline).await?;
        }
        Ok(())
    }

    /// Nothing is in flight any more.
    pub(super) fn given_up(&mut self) {
        self.flying.clear();
    }

    /// What is published was marked otherwise.
    pub(super) fn forget(&mut self) {
        self.flying.clear();
        self.done.clear();
        self.set_aside.clear();
    }

    /// Prepares the mark on a session.
    pub(super) async fn prepare(
        &mut self,
        client: &Client,
        spec: Option<&PollSpec>,
    ) -> Result<(), SourceError> {
        self.put_back();
        if let Some(spec) = spec.filter(|_| self.on) {
            self.marker = Some(Marker::prepare(client, spec).await?);
        }
        Ok(())
    }

    /// What is to be marked before the next cursor row, and with what. `row` is that row; `None` where the slot is
    /// lost: what it has not passed comes again from the table.
    pub(super) fn take(&mut self, row: Option<&Progress>) -> Option<(Marker, Arc<Vec<String>>)> {
        self.put_back();
        let passed = row.map_or_else(Position::default, Progress::position);
        for (position, id) in std::mem::take(&mut self.set_aside) {
            if position < passed {
                self.done.push(id);
            } else if row.is_some() {
                self.set_aside.push((position, id));
            }
        }
        let marker = self.marker.clone().filter(|_| !self.done.is_empty())?;
        self.taken = Arc::new(std::mem::take(&mut self.done));
        Some((marker, Arc::clone(&self.taken)))
    }

    /// What was taken last is marked.
    pub(super) fn marked(&mut self) {
        self.taken = Arc::default();
    }

    fn put_back(&mut self) {
        self.done.extend(self.taken.iter().cloned());
        self.taken = Arc::default();
    }
}

/// Events that polling has published though the stream will bring them.
///
/// All that was polled counts, also before a slot is known to stand: it stands a while before that is heard, and
/// somebody else may have made it.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// Polling is to end in streaming.
    on: bool,
    ids: HashSet<Arc<str>>,
    /// The same, the oldest first.
    order: VecDeque<Arc<str>>,
    /// Those noted since a slot stands.
    since_slot: Option<usize>,
    /// Rows of the claim at hand, and their ids.
    claim: Vec<(usize, Arc<str>)>,
    row: usize,
    /// What commits from here on was never polled; `None` while polling goes on.
    until: Option<Lsn>,
}

impl Handed {
    /// Polling begins, to end in streaming, or goes on after a lost connection.
    pub(super) fn begins(&mut self) {
        if !self.on {
            *self = Self { on: true, ..Self::default() };
        }
    }

    /// A slot stands that will bring what is polled from here on, and maybe some of what was polled before.
    pub(super) fn slot_stands(&mut self) {
        self.since_slot = Some(0);
    }

    /// It goes again: another one will bring only what is polled later.
    pub(super) fn slot_goes(&mut self) {
        self.since_slot = None;
    }

    /// A claim begins.
    pub(super) fn claims(&mut self) {
        self.claim.clear();
    }

    /// The row of the claim that is fed next.
    pub(super) fn feeds(&mut self, row: usize) {
        self.row = row;
    }

    /// The row that is fed is the event of this id.
    pub(super) fn claimed(&mut self, id: &str) {
        if self.on {
            self.claim.push((self.row, id.into()));
        }
    }

    /// The claim is settled; `done` says which of its rows are done with.
    pub(super) fn settled(&mut self, done: impl Fn(usize) -> bool) {
        for (row, id) in std::mem::take(&mut self.claim) {
            if done(row) {
                self.note(id);
            }
        }
    }

    fn note(&mut self, id: Arc<str>) {
        if let Some(since_slot) = &mut self.since_slot {
            *since_slot += 1;
            if *since_slot > HANDED_MAX {
                // All of them come twice then, in order: to pass over only some would swap them with the others.
                let since_slot = self.since_slot;
                *self = Self { on: true, since_slot, ..Self::default() };
                return;
            }
        }
        if self.ids.insert(Arc::clone(&id)) {
            self.order.push_back(id);
        }
        if self.order.len() > HANDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Polling ends here.
    pub(super) fn ends(&mut self, until: Lsn) {
        self.on = false;
        self.until = Some(until);
    }

    /// Whether the event is to be passed over.
    #[inline]
    pub(super) fn has(&mut self, id: &str, commit_lsn: Lsn) -> bool {
        if self.ids.is_empty() {
            return false;
        }
        let Some(until) = self.until else { return false };
        if commit_lsn > until {
            *self = Self::default();
            return false;
        }
        self.ids.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(handed: &mut Handed, ids: impl Iterator<Item = usize>) {
        for id in ids {
            handed.claims();
            handed.feeds(0);
            handed.claimed(&id.to_string());
            handed.settled(|_| true);
        }
    }

    #[test]
    fn rows_keep_their_outcomes_where_one_between_them_is_no_event() {
        let mut handed = Handed::default();
        handed.begins();
        handed.claims();
        for (row, id) in [(0, Some("a")), (1, None), (2, Some("c")), (3, Some("d"))] {
            handed.feeds(row);
            if let Some(id) = id {
                handed.claimed(id);
            }
        }
        handed.settled(|row| row != 2);
        assert!(!handed.has("a", Lsn::from_wire(1)), "polling goes on");
        handed.ends(Lsn::from_wire(10));
        let at = Lsn::from_wire(10);
        assert_eq!(["a", "c", "d"].map(|id| handed.has(id, at)), [true, false, true]);
        assert!(!handed.has("a", Lsn::from_wire(11)), "never polled");
    }

    #[test]
    fn what_was_polled_before_the_slot_was_heard_of_is_passed_over_too() {
        let mut handed = Handed::default();
        handed.begins();
        polled(&mut handed, 0..=HANDED_MAX);
        handed.slot_stands();
        polled(&mut handed, HANDED_MAX + 1..HANDED_MAX + 3);
        handed.ends(Lsn::from_wire(10));
        let at = Lsn::from_wire(1);
        assert!(!handed.has("2", at), "the oldest are forgotten");
        assert!(handed.has("3", at) && handed.has(&(HANDED_MAX + 2).to_string(), at));
    }

    #[test]
    fn more_than_can_be_remembered_all_come_twice() {
        let mut handed = Handed::default();
        handed.begins();
        handed.slot_stands();
        polled(&mut handed, 0..HANDED_MAX + 5);
        handed.ends(Lsn::from_wire(10));
        assert!(!handed.has(&(HANDED_MAX + 4).to_string(), Lsn::from_wire(1)));
    }

    #[test]
    fn polling_for_good_remembers_nothing() {
        let mut handed = Handed::default();
        polled(&mut handed, 0..5);
        assert!(handed.ids.is_empty());
    }
}
