//! Rows that the stream brought are marked in their table once they are published, and, after polling, events that it
//! has published are passed over when the stream brings them again.
//!
//! Marks are committed before the cursor row that passes their events: so a row without a mark is one the stream still
//! brings, or brings again, and polling may take over at any moment. Ids are kept whole: a hash would one day pass over
//! an event that was never published.

use crate::ack::Progress;
use crate::event::{Aggregate, Position};
use crate::lsn::Lsn;
use crate::parked::Lane;
use crate::postgres::SourceError;
use crate::postgres::parked;
use crate::postgres::poll::PollSpec;
use crate::postgres::poll::marks::Marker;
use crate::record::Ticket;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio_postgres::Client;

/// Events remembered as polled, of about 100 bytes each; and aggregates remembered as coming twice.
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
/// somebody else may have made it. Only so many are remembered, and only by this process: what the stream brings and is
/// not remembered comes twice, and then so does all of its aggregate that follows, or the two would be swapped
/// (`docs/decisions/handing-back.md`).
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// Polling is to end in streaming.
    on: bool,
    ids: HashSet<Arc<str>>,
    /// The same, the oldest first.
    order: VecDeque<Arc<str>>,
    /// Rows of the claim at hand, and their ids.
    claim: Vec<(usize, Arc<str>)>,
    row: usize,
    /// What commits from here on was never polled; `None` while polling goes on.
    until: Option<Lsn>,
    /// Aggregates of which the stream has brought an event that is not remembered.
    repeated: HashSet<Lane>,
}

impl Handed {
    /// Polling begins, to end in streaming, or goes on after a lost connection.
    pub(super) fn begins(&mut self) {
        if !self.on {
            *self = Self { on: true, ..Self::default() };
        }
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
    pub(super) fn has(
        &mut self,
        id: &str,
        commit_lsn: Lsn,
        aggregate: Option<Aggregate<'_>>,
    ) -> bool {
        !self.ids.is_empty() && self.passes_over(id, commit_lsn, aggregate)
    }

    fn passes_over(&mut self, id: &str, commit_lsn: Lsn, of: Option<Aggregate<'_>>) -> bool {
        let Some(until) = self.until else { return false };
        if commit_lsn > until {
            *self = Self::default();
            return false;
        }
        let lane = of.map(Lane::of);
        let known = self.ids.contains(id);
        if known && lane.is_none_or(|lane| !self.repeated.contains(&lane)) {
            return true;
        }
        if let Some(lane) = lane.filter(|_| !known) {
            self.repeated.insert(lane);
            if self.repeated.len() > HANDED_MAX {
                // All that comes from here on comes twice.
                *self = Self::default();
            }
        }
        false
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

    /// Whether the stream passes over an event of aggregate `of`.
    fn passed_over(handed: &mut Handed, id: usize, of: &str) -> bool {
        let aggregate = Some(Aggregate { kind: "order", id: of });
        handed.has(&id.to_string(), Lsn::from_wire(1), aggregate)
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
        assert!(!handed.has("a", Lsn::from_wire(1), None), "polling goes on");
        handed.ends(Lsn::from_wire(10));
        let at = Lsn::from_wire(10);
        assert_eq!(["a", "c", "d"].map(|id| handed.has(id, at, None)), [true, false, true]);
        assert!(!handed.has("a", Lsn::from_wire(11), None), "never polled");
    }

    /// The oldest are forgotten; the stream brings them again, and would bring them behind their followers.
    #[test]
    fn aggregate_of_a_forgotten_event_comes_twice_as_a_whole_and_no_other_does() {
        let mut handed = Handed::default();
        handed.begins();
        polled(&mut handed, 0..HANDED_MAX + 3);
        handed.ends(Lsn::from_wire(10));
        let last = HANDED_MAX + 2;
        assert!(passed_over(&mut handed, 5, "a") && passed_over(&mut handed, 7, "b"));
        assert!(!passed_over(&mut handed, 2, "a"), "forgotten");
        assert!(!passed_over(&mut handed, 6, "a"), "else it would stand before the second");
        assert!(!passed_over(&mut handed, last, "a"));
        assert!(
            passed_over(&mut handed, last, "b"),
            "remembered, and nothing of its own came twice"
        );
    }

    /// What a process before this one has polled, or the stream had published before polling began.
    #[test]
    fn event_that_this_process_did_not_poll_is_published_and_so_are_its_followers() {
        let mut handed = Handed::default();
        handed.begins();
        polled(&mut handed, 10..20);
        handed.ends(Lsn::from_wire(10));
        assert!(!passed_over(&mut handed, 1, "a"));
        assert!(!passed_over(&mut handed, 10, "a"));
        assert!(passed_over(&mut handed, 11, "b"));
    }

    #[test]
    fn polling_for_good_remembers_nothing() {
        let mut handed = Handed::default();
        polled(&mut handed, 0..5);
        assert!(handed.ids.is_empty());
    }
}
