//! The ledger: every event that was written, the outcome of its transaction, and whether the reader received it.
//!
//! Pure. It uses the numbers of aggregates and of their events, two bytes per event, and a time for each event that was
//! not delivered yet.
//!
//! The transactions of an aggregate follow each other on one connection. So when an event is delivered, every earlier
//! event of its aggregate has an outcome, and the events before it in its own transaction have the same outcome. An
//! event that is skipped and was not rolled back is therefore out of order.

use super::quantile::Spread;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// COMMIT was not answered yet.
    Pending,
    /// The event must be delivered.
    Committed,
    /// The event must not be delivered.
    RolledBack,
    /// The connection ended during COMMIT: the event may be delivered or not.
    Unknown,
}

/// One written event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EventId {
    /// The number of the aggregate.
    pub(super) lane: usize,
    /// The number of the event in its aggregate, from 0.
    pub(super) sequence: usize,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    outcome: Outcome,
    delivered: bool,
    /// The id of its row, once it was inserted.
    id: Option<i64>,
}

#[derive(Clone, Default, Debug)]
struct Lane {
    events: Vec<Event>,
    /// The event that is delivered next, unless one is repeated.
    next: usize,
    /// When COMMIT was sent, for events that were not delivered yet.
    sent: VecDeque<(usize, Instant)>,
}

/// The totals of all aggregates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Totals {
    /// Events that must be delivered.
    pub(super) committed: u64,
    /// Events that were rolled back on purpose.
    pub(super) rolled_back: u64,
    /// Events whose outcome is unknown.
    pub(super) unknown: u64,
    /// Records that were read.
    pub(super) records: u64,
    /// Different events among these records.
    pub(super) delivered: u64,
    /// Committed events that were not read yet.
    pub(super) outstanding: u64,
    /// Events that were read again.
    pub(super) duplicated: u64,
    /// Events that were read before an earlier event of the same aggregate.
    pub(super) out_of_order: u64,
    /// Events that were read although they were rolled back or never written.
    pub(super) invented: u64,
}

impl Totals {
    /// Whether every committed event was delivered, in order, and no other event.
    pub(super) const fn balances(&self) -> bool {
        self.outstanding == 0 && self.out_of_order == 0 && self.invented == 0
    }
}

/// The ledger itself.
#[derive(Debug)]
pub(super) struct Ledger {
    lanes: Vec<Lane>,
    totals: Totals,
    /// From sending COMMIT to reading the record, for the first delivery of each event.
    pub(super) consumed: Spread,
}

impl Ledger {
    /// A ledger for so many aggregates.
    pub(super) fn new(lanes: usize) -> Self {
        let lanes = vec![Lane::default(); lanes];
        Self { lanes, totals: Totals::default(), consumed: Spread::default() }
    }

    /// The totals so far.
    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Registers an event that is about to be written.
    pub(super) fn write(&mut self, lane: usize) -> EventId {
        let events = &mut self.lanes[lane].events;
        events.push(Event { outcome: Outcome::Pending, delivered: false, id: None });
        EventId { lane, sequence: events.len() - 1 }
    }

    /// Registers the ids of the rows that were inserted.
    pub(super) fn inserted(&mut self, events: &[EventId], ids: &[i64]) {
        for (event, id) in events.iter().zip(ids) {
            self.lanes[event.lane].events[event.sequence].id = Some(*id);
        }
    }

    /// The events that were inserted, aggregate by aggregate in the order of their commits: aggregate, id, outcome.
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, i64, Outcome)> {
        let lanes = self.lanes.iter().enumerate();
        lanes.flat_map(|(number, lane)| {
            let event = move |event: &Event| Some((number, event.id?, event.outcome));
            lane.events.iter().filter_map(event)
        })
    }

    /// Registers that COMMIT is about to be sent.
    pub(super) fn committing(&mut self, events: &[EventId], at: Instant) {
        for event in events {
            self.lanes[event.lane].sent.push_back((event.sequence, at));
        }
    }

    /// Registers the outcome of a transaction. The reader may have received its events already.
    pub(super) fn resolve(&mut self, events: &[EventId], outcome: Outcome) {
        for id in events {
            let event = &mut self.lanes[id.lane].events[id.sequence];
            assert!(event.outcome == Outcome::Pending, "an event has one outcome");
            event.outcome = outcome;
            match outcome {
                Outcome::Committed => {
                    self.totals.committed += 1;
                    self.totals.outstanding += u64::from(!event.delivered);
                }
                Outcome::RolledBack => {
                    self.totals.rolled_back += 1;
                    self.totals.invented += u64::from(event.delivered);
                }
                Outcome::Unknown => self.totals.unknown += 1,
                Outcome::Pending => {}
            }
        }
    }

    /// Registers a record that was read.
    pub(super) fn delivered(&mut self, id: EventId, at: Instant) {
        let lane = self.lanes.get_mut(id.lane);
        let Some(lane) = lane.filter(|lane| id.sequence < lane.events.len()) else {
            self.unknown_record();
            return;
        };
        self.totals.records += 1;
        let skipped = lane.events.get(lane.next..id.sequence).unwrap_or_default();
        let swapped = skipped.iter().any(|event| match event.outcome {
            Outcome::Committed | Outcome::Pending => true,
            Outcome::RolledBack | Outcome::Unknown => false,
        });
        self.totals.out_of_order += u64::from(swapped);
        lane.next = id.sequence + 1;
        let event = &mut lane.events[id.sequence];
        if event.delivered {
            self.totals.duplicated += 1;
            return;
        }
        event.delivered = true;
        self.totals.delivered += 1;
        match event.outcome {
            Outcome::Committed => self.totals.outstanding -= 1,
            Outcome::RolledBack => self.totals.invented += 1,
            Outcome::Pending | Outcome::Unknown => {}
        }
        while let Some((sequence, sent)) = lane.sent.front().copied() {
            if sequence > id.sequence {
                break;
            }
            if sequence == id.sequence {
                self.consumed.observe(at.saturating_duration_since(sent));
            }
            lane.sent.pop_front();
        }
    }

    /// Discards the latencies measured so far.
    pub(super) fn forget_latencies(&mut self) {
        self.consumed = Spread::default();
    }

    /// Registers a record that is not an event of the writers.
    pub(super) fn unknown_record(&mut self) {
        self.totals.records += 1;
        self.totals.invented += 1;
    }
}

/// One ledger for the writers, the reader and the screen.
#[derive(Clone, Debug)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    pub(super) fn new(lanes: usize) -> Self {
        Self(Arc::new(Mutex::new(Ledger::new(lanes))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
