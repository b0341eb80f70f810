//! The ledger: every event that was written, what became of it, and what the broker's reader saw of it.
//!
//! Pure. Knows numbers of aggregates and of events in them, no database and no broker. It holds two bytes an event,
//! and a time for each that is under way.
//!
//! An aggregate's transactions come one after the other on one connection. So when an event is delivered, every
//! earlier one of its aggregate is decided, and the ones before it in its own transaction share its fate: what is
//! skipped and not rolled back, is out of order.

use super::quantile::Spread;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// COMMIT was not answered yet.
    Pending,
    /// The event must be delivered.
    Committed,
    /// The event must not be delivered.
    RolledBack,
    /// The connection ended during COMMIT: both are right.
    Unknown,
}

/// One written event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EventId {
    /// Which aggregate.
    pub(super) lane: usize,
    /// Which event of it, from 0.
    pub(super) sequence: usize,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    outcome: Outcome,
    delivered: bool,
}

#[derive(Clone, Default, Debug)]
struct Lane {
    events: Vec<Event>,
    /// The event to be delivered next, where nothing is repeated.
    next: usize,
    /// COMMIT was sent then. Behind the delivery nothing is kept.
    sent: VecDeque<(usize, Instant)>,
}

/// The sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Totals {
    /// Must be delivered.
    pub(super) committed: u64,
    /// Written and rolled back on purpose.
    pub(super) rolled_back: u64,
    /// Nobody knows.
    pub(super) unknown: u64,
    /// Records read.
    pub(super) records: u64,
    /// Different events among them.
    pub(super) delivered: u64,
    /// Committed, and not read so far.
    pub(super) outstanding: u64,
    /// Read again.
    pub(super) duplicated: u64,
    /// Read before an earlier one of the same aggregate.
    pub(super) out_of_order: u64,
    /// Read, though rolled back or never written.
    pub(super) invented: u64,
}

impl Totals {
    /// Everything that was committed was delivered, in order, and nothing else was.
    pub(super) const fn balances(&self) -> bool {
        self.outstanding == 0 && self.out_of_order == 0 && self.invented == 0
    }
}

/// The ledger itself.
#[derive(Debug)]
pub(super) struct Ledger {
    lanes: Vec<Lane>,
    totals: Totals,
    /// From COMMIT being sent to the record being read, first deliveries alone.
    pub(super) consumed: Spread,
}

impl Ledger {
    /// For so many aggregates.
    pub(super) fn new(lanes: usize) -> Self {
        let lanes = vec![Lane::default(); lanes];
        Self { lanes, totals: Totals::default(), consumed: Spread::default() }
    }

    /// The sums so far.
    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    /// An event about to be written.
    pub(super) fn write(&mut self, lane: usize) -> EventId {
        let events = &mut self.lanes[lane].events;
        events.push(Event { outcome: Outcome::Pending, delivered: false });
        EventId { lane, sequence: events.len() - 1 }
    }

    /// COMMIT is about to be sent.
    pub(super) fn committing(&mut self, events: &[EventId], at: Instant) {
        for event in events {
            self.lanes[event.lane].sent.push_back((event.sequence, at));
        }
    }

    /// A transaction is over. The reader may have been faster.
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

    /// A record was read.
    pub(super) fn delivered(&mut self, id: EventId, at: Instant) {
        let lane = self.lanes.get_mut(id.lane);
        let Some(lane) = lane.filter(|lane| id.sequence < lane.events.len()) else {
            self.stranger();
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

    /// Begins the latencies anew.
    pub(super) fn forget_latencies(&mut self) {
        self.consumed = Spread::default();
    }

    /// A record was read that nobody wrote, or not so.
    pub(super) fn stranger(&mut self) {
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
