//! Events that polling has published and the stream sends as well.

use crate::ack::bug::{Bug, injected};
use postrider_core::event::Aggregate;
use postrider_core::offset::Offset;
use postrider_core::parked::Lane;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Ids remembered as published by polling, of about 100 bytes each; also the aggregates remembered as published twice.
const PUBLISHED_IDS_MAX: usize = 100_000;

/// Skips events that polling has published and the stream sends as well.
///
/// Every polled event counts, even before a slot is known to exist: the slot may exist for a while before this process
/// learns that, and another process may have created it. The number of remembered ids is limited, and only this process
/// remembers them. An event that the stream sends and that is not remembered is published twice, and so are all later
/// events of its aggregate; otherwise the two would be swapped (`docs/decisions/handing-back.md`).
#[derive(Debug, Default)]
pub struct PolledIds {
    /// Polling is to end in streaming.
    on: bool,
    /// Published ids, with the transactions that wrote their rows.
    ids: HashMap<Arc<str>, u32>,
    /// The same ids, the oldest first.
    order: VecDeque<Arc<str>>,
    /// Rows of the open claim, their transactions and ids.
    claim: Vec<(usize, u32, Arc<str>)>,
    /// Events committed after this position were never polled; `None` while polling continues.
    until: Option<Offset>,
    /// Aggregates of which the stream has sent an event that is not remembered.
    repeated: HashSet<Lane>,
    /// The owner epoch under which this process has published last.
    owner: i64,
}

impl PolledIds {
    /// Polling begins under an epoch, to end in streaming, or continues after a lost connection. `before` is the epoch
    /// of the previous owner.
    pub fn begins(&mut self, before: i64, epoch: i64) {
        let other = self.owner != before && !injected(Bug::PolledIdsSurviveOwner);
        if !self.on || other {
            *self = Self { on: true, ..Self::default() };
        }
        self.owner = epoch;
    }

    /// A stream begins under `epoch`; `before` is the epoch of the previous owner. If that owner was another process,
    /// all ids are discarded: it may have streamed the first events of an aggregate again, and have ended there. If the
    /// later events were skipped, the aggregate would end with an earlier event.
    pub fn streams(&mut self, before: i64, epoch: i64) {
        if self.owner != before && !injected(Bug::PolledIdsSurviveOwner) {
            *self = Self::default();
        }
        (self.on, self.owner) = (false, epoch);
    }

    /// A claim begins.
    pub fn claims(&mut self) {
        self.claim.clear();
    }

    /// Row `row` of the claim, written by transaction `xmin`, is the event with this id.
    #[inline]
    pub fn claimed(&mut self, row: usize, xmin: u32, id: &str) {
        if self.on {
            self.claim.push((row, xmin, id.into()));
        }
    }

    /// The claim is settled; `done` returns whether a row is resolved.
    pub fn settled(&mut self, done: impl Fn(usize) -> bool) {
        self.settled_so_far(done);
        self.claim.clear();
    }

    /// The claim is settled in part, and stays open with its other rows.
    pub fn settled_so_far(&mut self, done: impl Fn(usize) -> bool) {
        let ids: Vec<_> = self.claim.extract_if(.., |(row, ..)| done(*row)).collect();
        for (_, xmin, id) in ids {
            self.note(id, xmin);
        }
    }

    fn note(&mut self, id: Arc<str>, xmin: u32) {
        // Of two rows with the same id the last one counts.
        if self.ids.insert(Arc::clone(&id), xmin).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > PUBLISHED_IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Polling ends at this position.
    pub fn ends(&mut self, until: Offset) {
        self.on = false;
        self.until = Some(until);
    }

    /// Whether the event, of transaction `xid`, is skipped.
    #[inline]
    pub fn has(
        &mut self,
        id: &str,
        (commit, xid): (Offset, Option<u32>),
        aggregate: Option<Aggregate<'_>>,
    ) -> bool {
        !self.ids.is_empty() && self.skips(id, commit, xid, aggregate)
    }

    fn skips(
        &mut self,
        id: &str,
        commit: Offset,
        xid: Option<u32>,
        of: Option<Aggregate<'_>>,
    ) -> bool {
        let Some(until) = self.until else { return false };
        if commit > until {
            *self = Self::default();
            return false;
        }
        let lane = of.map(Lane::of);
        // A polled row was written by the event's transaction, by one of its savepoints, or again after that. A
        // transaction that is newer than the row has used the id for another event.
        let is_later = |xmin: u32| xid.is_some_and(|xid| xid.wrapping_sub(xmin).cast_signed() > 0);
        let known = self.ids.get(id).is_some_and(|xmin| !is_later(*xmin));
        let in_order =
            |lane: Lane| !self.repeated.contains(&lane) || injected(Bug::PolledIdsIgnoreRepeats);
        if known && lane.is_none_or(in_order) {
            return true;
        }
        if let Some(lane) = lane.filter(|_| !known) {
            self.repeated.insert(lane);
            if self.repeated.len() > PUBLISHED_IDS_MAX {
                // All events from here on are published twice.
                *self = Self::default();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The transaction that wrote the rows.
    const XMIN: u32 = 4_000_000_000;

    fn polled(polled_ids: &mut PolledIds, ids: impl Iterator<Item = usize>) {
        for id in ids {
            polled_ids.claims();
            polled_ids.claimed(0, XMIN, &id.to_string());
            polled_ids.settled(|_| true);
        }
    }

    /// Whether an event of aggregate `of` is skipped in the stream.
    fn skipped(polled_ids: &mut PolledIds, id: usize, of: &str) -> bool {
        let aggregate = Some(Aggregate { kind: "order", id: of });
        polled_ids.has(&id.to_string(), (Offset::new(1), Some(XMIN)), aggregate)
    }

    #[test]
    fn rows_keep_their_outcomes_if_a_row_between_them_is_no_event() {
        let mut polled_ids = PolledIds::default();
        polled_ids.begins(0, 1);
        polled_ids.claims();
        for (row, id) in [(0, "a"), (2, "c"), (3, "d")] {
            polled_ids.claimed(row, XMIN, id);
        }
        polled_ids.settled(|row| row != 2);
        assert!(!polled_ids.has("a", (Offset::new(1), None), None), "polling continues");
        polled_ids.ends(Offset::new(10));
        let at = (Offset::new(10), Some(XMIN));
        assert_eq!(["a", "c", "d"].map(|id| polled_ids.has(id, at, None)), [true, false, true]);
        assert!(!polled_ids.has("a", (Offset::new(11), None), None), "never polled");
    }

    /// The oldest ids are discarded; the stream repeats their events, and would publish them after later events.
    #[test]
    fn only_the_aggregate_of_a_discarded_id_is_published_twice() {
        let mut polled_ids = PolledIds::default();
        polled_ids.begins(0, 1);
        polled(&mut polled_ids, 0..PUBLISHED_IDS_MAX + 3);
        polled_ids.ends(Offset::new(10));
        let last = PUBLISHED_IDS_MAX + 2;
        assert!(skipped(&mut polled_ids, 5, "a") && skipped(&mut polled_ids, 7, "b"));
        assert!(!skipped(&mut polled_ids, 2, "a"), "discarded");
        assert!(
            !skipped(&mut polled_ids, 6, "a"),
            "otherwise it would be published before the repeated one"
        );
        assert!(!skipped(&mut polled_ids, last, "a"));
        assert!(
            skipped(&mut polled_ids, last, "b"),
            "remembered, and no event of its aggregate was repeated"
        );
    }

    /// Published by a process before this one, or by the stream before polling began.
    #[test]
    fn event_that_this_process_did_not_poll_is_published_with_the_later_events_of_its_aggregate() {
        let mut polled_ids = PolledIds::default();
        polled_ids.begins(0, 1);
        polled(&mut polled_ids, 10..20);
        polled_ids.ends(Offset::new(10));
        assert!(!skipped(&mut polled_ids, 1, "a"));
        assert!(!skipped(&mut polled_ids, 10, "a"));
        assert!(skipped(&mut polled_ids, 11, "b"));
    }

    /// Another process owned the pipeline in between, and may have begun to stream the same events again.
    #[test]
    fn ids_polled_before_another_process_owned_the_pipeline_are_discarded() {
        for (before, remembered) in [(1, true), (2, false)] {
            let mut polled_ids = PolledIds::default();
            polled_ids.begins(0, 1);
            polled(&mut polled_ids, 0..2);
            polled_ids.ends(Offset::new(10));
            polled_ids.streams(before, before + 1);
            assert_eq!(skipped(&mut polled_ids, 1, "a"), remembered, "behind epoch {before}");
        }
        let mut polled_ids = PolledIds::default();
        // An epoch is a time: the next one may be higher by any number.
        polled_ids.begins(0, 100);
        polled(&mut polled_ids, 0..2);
        polled_ids.begins(100, 2_500);
        polled(&mut polled_ids, 2..3);
        polled_ids.ends(Offset::new(10));
        assert!(
            [0, 1, 2].iter().all(|id| skipped(&mut polled_ids, *id, "a")),
            "no other process was the owner"
        );
        polled_ids.begins(2_500, 2_600);
        polled(&mut polled_ids, 3..4);
        polled_ids.begins(2_700, 2_800);
        polled(&mut polled_ids, 4..5);
        polled_ids.ends(Offset::new(10));
        assert_eq!([0, 2, 3, 4].map(|id| skipped(&mut polled_ids, id, "a")), [false; 4]);
        assert!(skipped(&mut polled_ids, 4, "b"));
    }

    /// The id of a polled row is used again for an event that was not polled.
    #[test]
    fn event_of_a_later_transaction_than_the_polled_row_of_its_id_is_not_skipped() {
        // A savepoint has a higher number than its transaction; numbers wrap around.
        for (xid, passed) in
            [(XMIN, true), (XMIN - 1, true), (XMIN + 1, false), (XMIN.wrapping_add(1 << 30), false)]
        {
            let mut polled_ids = PolledIds::default();
            polled_ids.begins(0, 1);
            polled(&mut polled_ids, 1..2);
            polled_ids.ends(Offset::new(10));
            let aggregate = Some(Aggregate { kind: "order", id: "a" });
            assert_eq!(
                polled_ids.has("1", (Offset::new(1), Some(xid)), aggregate),
                passed,
                "{xid}"
            );
        }
    }

    #[test]
    fn polling_without_a_hand_over_remembers_nothing() {
        let mut polled_ids = PolledIds::default();
        polled(&mut polled_ids, 0..5);
        assert!(polled_ids.ids.is_empty());
    }
}
