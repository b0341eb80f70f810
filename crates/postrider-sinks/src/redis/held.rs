//! The records that the worker has taken and not settled. They stay in their batches, and are kept until they are
//! acknowledged, because they may have to be sent again.

use crate::record_batch::{QueuedRecord, RecordBatch};
use std::collections::VecDeque;

/// Where a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordPlace {
    batch: u64,
    at: usize,
}

/// The batches, in the order in which they were taken.
#[derive(Default)]
pub(super) struct HeldRecords {
    batches: VecDeque<HeldRecordBatch>,
    /// The number of the first batch.
    first: u64,
}

struct HeldRecordBatch {
    batch: RecordBatch,
    unsettled: usize,
}

impl HeldRecords {
    /// Keeps a batch, which is not empty. Returns the places of its records.
    pub(super) fn push(&mut self, batch: RecordBatch) -> impl Iterator<Item = RecordPlace> + use<> {
        let number = self.first + self.batches.len() as u64;
        let unsettled = batch.len();
        self.batches.push_back(HeldRecordBatch { batch, unsettled });
        (0..unsettled).map(move |at| RecordPlace { batch: number, at })
    }

    fn index(&self, place: RecordPlace) -> Option<usize> {
        usize::try_from(place.batch.checked_sub(self.first)?).ok()
    }

    /// A record that is not settled.
    pub(super) fn get(&self, place: RecordPlace) -> Option<QueuedRecord<'_>> {
        let held = self.batches.get(self.index(place)?)?;
        (place.at < held.batch.len()).then(|| held.batch.get(place.at))
    }

    /// The record is settled. Calls `recycle` with each batch that has no others.
    pub(super) fn settle(&mut self, place: RecordPlace, mut recycle: impl FnMut(RecordBatch)) {
        let held = self.index(place).and_then(|index| self.batches.get_mut(index));
        if let Some(held) = held {
            held.unsettled = held.unsettled.saturating_sub(1);
            if held.unsettled == 0 {
                // Also behind one that waits: in a cluster another node may take events while one does not.
                recycle(std::mem::take(&mut held.batch));
            }
        }
        while self.batches.front().is_some_and(|held| held.unsettled == 0) {
            self.batches.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::record::{Record, Ticket};

    fn batch(tickets: &[u64]) -> RecordBatch {
        let mut batch = RecordBatch::default();
        for ticket in tickets {
            let record = Record {
                topic: "orders",
                partition: None,
                key: None,
                value: None,
                timestamp_ms: None,
                headers: &[],
            };
            batch.push(Ticket(*ticket), &record);
        }
        batch
    }

    #[test]
    fn a_batch_is_kept_until_all_of_its_records_are_settled() {
        let mut held = HeldRecords::default();
        let first: Vec<_> = held.push(batch(&[1, 2])).collect();
        let second: Vec<_> = held.push(batch(&[3])).collect();
        let ticket = |held: &HeldRecords, place| held.get(place).map(|record| record.ticket.0);
        assert_eq!((ticket(&held, first[1]), ticket(&held, second[0])), (Some(2), Some(3)));
        let mut free = Vec::new();
        for (place, expected) in [(second[0], &[1][..]), (first[1], &[1]), (first[0], &[1, 2])] {
            held.settle(place, |batch| free.push(batch.len()));
            assert_eq!(free, expected);
        }
        let third: Vec<_> = held.push(batch(&[4])).collect();
        assert_eq!((ticket(&held, third[0]), ticket(&held, first[0])), (Some(4), None));
    }
}
