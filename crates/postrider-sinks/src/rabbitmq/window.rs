//! The records that the worker holds: which are sent, which may be sent, and which wait.
//!
//! Of each order (the same routing key and event key) one record is in flight at a time. A later record of an order is
//! sent only after the earlier one is confirmed. RabbitMQ can refuse one message and store the next one of the same
//! channel: a full queue becomes free, a binding is made again. With one in flight, no such moment can change the order
//! of an aggregate, and nothing has to be taken back. Records of different orders are in flight together.

use crate::record_batch::{QueuedRecord, RecordBatch};
use postrider_core::record::Ticket;
use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

/// A record of the window, by its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WindowEntry(usize);

#[derive(Debug)]
struct Slot {
    /// Number and place of the batch that has the record.
    batch: u64,
    at: usize,
    order: u64,
    /// The next record of the order.
    next: Option<WindowEntry>,
    /// When the server first returned it.
    returned: Option<Instant>,
    free: bool,
}

/// A batch, and the number of its records that are not done.
#[derive(Debug)]
struct HeldBatch {
    batch: RecordBatch,
    open: usize,
}

/// A message without a confirm.
#[derive(Debug)]
struct SentMessage {
    /// `None`: it is confirmed.
    entry: Option<WindowEntry>,
    returned: bool,
}

/// A confirm of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settled {
    pub(super) entry: WindowEntry,
    /// The server has returned it: no queue has got it.
    pub(super) returned: bool,
}

/// The records.
#[derive(Debug, Default)]
pub(super) struct Window {
    slots: Vec<Slot>,
    free: Vec<usize>,
    batches: VecDeque<HeldBatch>,
    first_batch: u64,
    /// By order, the record that may be sent or is sent, and the last of those that wait for it.
    orders: HashMap<u64, (WindowEntry, WindowEntry)>,
    ready: VecDeque<WindowEntry>,
    /// By delivery tag.
    sent: VecDeque<SentMessage>,
    first_tag: u64,
    in_flight: usize,
    spent: Vec<RecordBatch>,
    hasher: RandomState,
}

impl Window {
    /// Takes the records of a batch, behind those that it has.
    pub(super) fn add(&mut self, batch: RecordBatch) {
        let number = self.first_batch + self.batches.len() as u64;
        let records = batch.len();
        for (at, record) in batch.iter().enumerate() {
            let order = self.hasher.hash_one((record.topic, record.key));
            let slot = Slot { batch: number, at, order, next: None, returned: None, free: false };
            let entry = WindowEntry(self.free.pop().unwrap_or(self.slots.len()));
            match self.slots.get_mut(entry.0) {
                Some(free) => *free = slot,
                None => self.slots.push(slot),
            }
            match self.orders.entry(order) {
                MapEntry::Vacant(vacant) => {
                    vacant.insert((entry, entry));
                    self.ready.push_back(entry);
                }
                MapEntry::Occupied(mut occupied) => {
                    let (_, last) = occupied.get_mut();
                    self.slots[last.0].next = Some(entry);
                    *last = entry;
                }
            }
        }
        self.batches.push_back(HeldBatch { batch, open: records });
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.orders.is_empty()
    }

    /// Messages without a confirm.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a record may be sent.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next record to send.
    pub(super) fn next_ready(&mut self) -> Option<WindowEntry> {
        self.ready.pop_front()
    }

    pub(super) fn record(&self, entry: WindowEntry) -> QueuedRecord<'_> {
        let slot = &self.slots[entry.0];
        // A batch is held as long as it has open records.
        let at = usize::try_from(slot.batch - self.first_batch).unwrap_or(usize::MAX);
        self.batches[at].batch.get(slot.at)
    }

    /// The record is sent as the next message of the channel.
    pub(super) fn sent(&mut self, entry: WindowEntry) {
        if self.sent.is_empty() && self.first_tag == 0 {
            self.first_tag = 1;
        }
        self.sent.push_back(SentMessage { entry: Some(entry), returned: false });
        self.in_flight += 1;
    }

    /// The first message in flight that `is` describes was returned; false if there is none.
    pub(super) fn returned(&mut self, is: impl Fn(&QueuedRecord<'_>) -> bool) -> bool {
        let found = self.sent.iter().position(|sent| {
            !sent.returned && sent.entry.is_some_and(|entry| is(&self.record(entry)))
        });
        if let Some(sent) = found.and_then(|at| self.sent.get_mut(at)) {
            sent.returned = true;
        }
        found.is_some()
    }

    /// When the server returned the record for the first time: now, unless it has been asked before.
    pub(super) fn first_returned(&mut self, entry: WindowEntry) -> Instant {
        *self.slots[entry.0].returned.get_or_insert_with(Instant::now)
    }

    /// The server has confirmed a message, and with `multiple` all before it. Adds them to `into`, in their order.
    /// False: there is no such message.
    pub(super) fn settle(&mut self, tag: u64, multiple: bool, into: &mut Vec<Settled>) -> bool {
        let Some(end) = tag.checked_sub(self.first_tag).and_then(|at| usize::try_from(at).ok())
        else {
            return false;
        };
        if end >= self.sent.len() {
            return false;
        }
        let start = if multiple { 0 } else { end };
        let before = into.len();
        for sent in self.sent.range_mut(start..=end) {
            let settled = sent.entry.take();
            into.extend(settled.map(|entry| Settled { entry, returned: sent.returned }));
        }
        self.in_flight -= into.len() - before;
        while self.sent.front().is_some_and(|sent| sent.entry.is_none()) {
            self.sent.pop_front();
            self.first_tag += 1;
        }
        multiple || into.len() > before
    }

    /// The record is done with. The next one of its order may be sent.
    pub(super) fn finish(&mut self, entry: WindowEntry) -> Ticket {
        let ticket = self.record(entry).ticket;
        let Slot { order, next, .. } = self.slots[entry.0];
        match next {
            Some(next) => {
                self.orders.entry(order).and_modify(|(first, _)| *first = next);
                self.ready.push_back(next);
            }
            None => drop(self.orders.remove(&order)),
        }
        self.release(entry);
        ticket
    }

    /// As [`Self::finish`], also of a record that is not in flight any more.
    pub(super) fn finish_unsent(&mut self, entry: WindowEntry) -> Ticket {
        self.ready.retain(|ready| *ready != entry);
        self.finish(entry)
    }

    /// The message in flight, if there is one alone.
    pub(super) fn only_in_flight(&self) -> Option<WindowEntry> {
        if self.in_flight == 1 { self.sent.front().and_then(|sent| sent.entry) } else { None }
    }

    /// The record is sent again, before others.
    pub(super) fn again(&mut self, entry: WindowEntry) {
        self.ready.push_front(entry);
    }

    /// The connection is lost: what was in flight is sent again, before others, and a new channel counts from 1.
    pub(super) fn lost(&mut self) {
        for sent in std::mem::take(&mut self.sent).into_iter().rev() {
            if let Some(entry) = sent.entry {
                self.ready.push_front(entry);
            }
        }
        (self.first_tag, self.in_flight) = (1, 0);
    }

    /// Gives up all records that are not in flight, and returns their number.
    pub(super) fn drop_waiting(&mut self) -> usize {
        let flying: Vec<WindowEntry> = self.sent.iter().filter_map(|sent| sent.entry).collect();
        let mut keep = vec![false; self.slots.len()];
        for entry in &flying {
            keep[entry.0] = true;
        }
        let dropped: Vec<WindowEntry> = (0..self.slots.len())
            .filter(|place| !keep[*place] && !self.slots[*place].free)
            .map(WindowEntry)
            .collect();
        for entry in &dropped {
            self.release(*entry);
        }
        self.ready.clear();
        self.orders.clear();
        for entry in flying {
            let slot = &mut self.slots[entry.0];
            slot.next = None;
            self.orders.insert(slot.order, (entry, entry));
        }
        dropped.len()
    }

    fn release(&mut self, entry: WindowEntry) {
        let slot = &mut self.slots[entry.0];
        slot.free = true;
        let at = usize::try_from(slot.batch - self.first_batch).unwrap_or(usize::MAX);
        self.free.push(entry.0);
        if let Some(held) = self.batches.get_mut(at) {
            held.open -= 1;
        }
        while self.batches.front().is_some_and(|held| held.open == 0) {
            self.spent.extend(self.batches.pop_front().map(|held| held.batch));
            self.first_batch += 1;
        }
    }

    /// A batch whose records are all done with.
    pub(super) fn spent(&mut self) -> Option<RecordBatch> {
        self.spent.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::record::Record;

    fn batch(records: &[(u64, &str, &str)]) -> RecordBatch {
        let mut batch = RecordBatch::default();
        for (ticket, topic, key) in records {
            let record = Record {
                topic,
                partition: None,
                key: Some(key.as_bytes()),
                value: None,
                timestamp_ms: None,
                headers: &[],
            };
            batch.push(Ticket(*ticket), &record);
        }
        batch
    }

    /// Sends all that may be sent, and returns the tickets.
    fn send(window: &mut Window) -> Vec<u64> {
        let mut tickets = Vec::new();
        while let Some(entry) = window.next_ready() {
            tickets.push(window.record(entry).ticket.0);
            window.sent(entry);
        }
        tickets
    }

    fn confirm(window: &mut Window, tag: u64, multiple: bool) -> Vec<(u64, bool)> {
        let mut settled = Vec::new();
        assert!(window.settle(tag, multiple, &mut settled), "tag {tag}");
        let done = |settled: Settled| (window.finish(settled.entry).0, settled.returned);
        settled.into_iter().map(done).collect()
    }

    #[test]
    fn one_record_of_an_order_is_in_flight() {
        let mut window = Window::default();
        window.add(batch(&[(1, "t", "a"), (2, "t", "b"), (3, "t", "a"), (4, "u", "a")]));
        window.add(batch(&[(5, "t", "b"), (6, "t", "a")]));
        assert_eq!(send(&mut window), [1, 2, 4]);
        assert_eq!(confirm(&mut window, 3, false), [(4, false)]);
        assert_eq!(confirm(&mut window, 2, true), [(1, false), (2, false)]);
        assert_eq!(send(&mut window), [3, 5]);
        assert_eq!(window.in_flight(), 2);
        assert_eq!(confirm(&mut window, 5, true), [(3, false), (5, false)]);
        assert_eq!(send(&mut window), [6]);
        assert_eq!(confirm(&mut window, 6, false), [(6, false)]);
        assert!(window.is_empty());
        assert_eq!(std::iter::from_fn(|| window.spent()).count(), 2);
        let mut none = Vec::new();
        assert!(!window.settle(6, false, &mut none) && !window.settle(7, true, &mut none));
    }

    #[test]
    fn lost_connection_sends_what_was_in_flight_again_and_first() {
        let mut window = Window::default();
        window.add(batch(&[(1, "t", "a"), (2, "t", "b"), (3, "t", "c"), (4, "t", "a")]));
        assert_eq!(send(&mut window), [1, 2, 3]);
        assert_eq!(confirm(&mut window, 2, false), [(2, false)]);
        window.lost();
        assert_eq!(send(&mut window), [1, 3]);
        assert_eq!(confirm(&mut window, 1, false), [(1, false)]);
        assert_eq!(send(&mut window), [4]);
    }

    #[test]
    fn returned_message_is_known_until_its_confirm() {
        let mut window = Window::default();
        window.add(batch(&[(1, "t", "a"), (2, "t", "b"), (3, "t", "c")]));
        send(&mut window);
        assert!(window.returned(|record| record.key == Some(b"b")));
        assert!(!window.returned(|record| record.key == Some(b"b")), "it is returned once");
        assert!(!window.returned(|record| record.key == Some(b"x")));
        assert_eq!(confirm(&mut window, 3, true), [(1, false), (2, true), (3, false)]);
    }

    #[test]
    fn what_is_not_in_flight_can_be_given_up() {
        let mut window = Window::default();
        window.add(batch(&[(1, "t", "a"), (2, "t", "a"), (3, "t", "b")]));
        let first = window.next_ready().unwrap();
        window.sent(first);
        assert_eq!(window.drop_waiting(), 2);
        assert!(!window.has_ready() && !window.is_empty());
        assert_eq!(confirm(&mut window, 1, false), [(1, false)]);
        assert!(window.is_empty());
        window.add(batch(&[(4, "t", "a")]));
        assert_eq!(send(&mut window), [4]);
        window.lost();
        assert_eq!(window.drop_waiting(), 1);
        assert!(window.is_empty());
    }
}
