//! Sequences of calls, and a comparison of the tracker with a naive model that scans a list.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "the model is plain arithmetic on small numbers"
)]

use super::*;
use proptest::prelude::*;

fn lsn(value: u64) -> Offset {
    Offset::new(value)
}

fn started_at(value: u64) -> Tracker {
    Tracker::new(Progress { watermark: Watermark::resumed(lsn(value)), partial: None })
}

fn transaction(tracker: &mut Tracker, commit: u64, end: u64, changes: usize) -> Vec<Ticket> {
    tracker.begin(lsn(commit), 0).unwrap();
    let tickets = (0..changes).map(|_| tracker.change()).collect();
    tracker.commit(lsn(commit), lsn(end)).unwrap();
    tickets
}

#[test]
fn watermark_waits_for_the_oldest_and_then_jumps() {
    let mut tracker = started_at(10);
    let first = transaction(&mut tracker, 20, 30, 2);
    let second = transaction(&mut tracker, 30, 40, 1);
    assert_eq!(tracker.watermark().offset(), lsn(10));
    tracker.resolve(second[0]).unwrap();
    tracker.resolve(first[1]).unwrap();
    assert_eq!(tracker.watermark().offset(), lsn(10));
    tracker.resolve(first[0]).unwrap();
    assert_eq!(tracker.watermark().offset(), lsn(40));
    assert!(tracker.all_resolved());
}

#[test]
fn open_transaction_blocks_from_its_begin() {
    let mut tracker = started_at(10);
    tracker.begin(lsn(50), 0).unwrap();
    let ticket = tracker.change();
    tracker.resolve(ticket).unwrap();
    tracker.keepalive(lsn(90));
    assert_eq!(tracker.watermark().offset(), lsn(10));
    let partial = Position { commit: lsn(50), ordinal: 1 };
    assert_eq!(tracker.progress().partial, Some(partial));
    tracker.commit(lsn(50), lsn(60)).unwrap();
    assert_eq!(
        tracker.progress(),
        Progress { watermark: Watermark::resumed(lsn(60)), partial: None }
    );
}

#[test]
fn keepalive_behind_unresolved_events_counts_once_they_are_resolved() {
    let mut tracker = started_at(0);
    let tickets = transaction(&mut tracker, 20, 30, 1);
    tracker.keepalive(lsn(100));
    assert_eq!(tracker.watermark().offset(), lsn(0));
    tracker.resolve(tickets[0]).unwrap();
    assert_eq!(tracker.watermark().offset(), lsn(100));
    tracker.keepalive(lsn(90));
    assert_eq!(tracker.watermark().offset(), lsn(100));
}

#[test]
fn partly_resolved_transaction_continues_from_the_earlier_session() {
    let mut tracker = started_at(10);
    tracker.begin(lsn(50), 7).unwrap();
    let tickets = [tracker.change(), tracker.change()];
    assert_eq!(tracker.progress().partial, Some(Position { commit: lsn(50), ordinal: 7 }));
    tracker.resolve(tickets[0]).unwrap();
    assert_eq!(tracker.progress().partial, Some(Position { commit: lsn(50), ordinal: 8 }));
}

#[test]
fn resolved_part_of_a_transaction_survives_discarding() {
    let mut tracker = started_at(10);
    tracker.begin(lsn(50), 0).unwrap();
    let tickets = [tracker.change(), tracker.change()];
    tracker.resolve(tickets[0]).unwrap();
    let before = tracker.progress();
    tracker.discard_in_flight();
    assert_eq!(tracker.progress(), before);
    tracker.begin(lsn(50), 1).unwrap();
    assert_eq!(tracker.progress(), before);
}

#[test]
fn newest_ticket_can_be_taken_back_and_is_issued_again() {
    for before in [0_u64, 1, 63, 64, 65] {
        let mut tracker = started_at(10);
        tracker.begin(lsn(50), 0).unwrap();
        let tickets: Vec<Ticket> = (0..before).map(|_| tracker.change()).collect();
        let ticket = tracker.change();
        tracker.retract(ticket);
        for ticket in tickets {
            tracker.resolve(ticket).unwrap();
        }
        assert!(tracker.all_resolved());
        assert_eq!(tracker.change(), ticket);
        assert!(!tracker.all_resolved());
        tracker.resolve(ticket).unwrap();
        tracker.commit(lsn(50), lsn(60)).unwrap();
        assert_eq!(tracker.watermark().offset(), lsn(60));
    }
}

#[test]
#[should_panic(expected = "is not the newest, or is resolved")]
fn ticket_that_is_not_the_newest_is_not_taken_back() {
    let mut tracker = started_at(10);
    tracker.begin(lsn(50), 0).unwrap();
    let tickets = [tracker.change(), tracker.change()];
    tracker.retract(tickets[0]);
}

#[test]
#[should_panic(expected = "is not the newest, or is resolved")]
fn resolved_ticket_is_not_taken_back() {
    let mut tracker = started_at(10);
    tracker.begin(lsn(50), 0).unwrap();
    let tickets = [tracker.change(), tracker.change()];
    tracker.resolve(tickets[1]).unwrap();
    tracker.retract(tickets[1]);
}

#[test]
fn received_is_ahead_of_the_watermark_until_tickets_are_discarded() {
    let mut tracker = started_at(10);
    transaction(&mut tracker, 20, 30, 1);
    assert_eq!(tracker.received(), lsn(30));
    tracker.keepalive(lsn(90));
    assert_eq!((tracker.received(), tracker.watermark().offset()), (lsn(90), lsn(10)));
    tracker.discard_in_flight();
    assert_eq!(tracker.received(), lsn(10));
}

#[test]
fn tickets_of_a_discarded_session_are_stale() {
    for discarded in [1_usize, 63, 64, 65, 130] {
        let mut tracker = started_at(10);
        let before = transaction(&mut tracker, 20, 30, discarded);
        tracker.discard_in_flight();
        assert!(tracker.all_resolved());
        let after = transaction(&mut tracker, 20, 30, 70);
        assert_eq!(tracker.resolve(before[discarded - 1]), Ok(Resolution::Stale));
        assert_eq!(tracker.watermark().offset(), lsn(10));
        for ticket in after {
            assert_eq!(tracker.resolve(ticket), Ok(Resolution::Resolved));
        }
        assert_eq!(tracker.watermark().offset(), lsn(30), "{discarded} tickets discarded");
    }
}

#[test]
fn order_violations_are_refused() {
    let mut tracker = started_at(10);
    let tickets = transaction(&mut tracker, 20, 30, 2);
    tracker.resolve(tickets[1]).unwrap();
    assert_eq!(tracker.resolve(tickets[1]), Err(OrderViolation::Ticket(tickets[1])));
    assert_eq!(tracker.resolve(Ticket(2)), Err(OrderViolation::Ticket(Ticket(2))));
    assert!(matches!(tracker.begin(lsn(29), 0), Err(OrderViolation::Backwards { .. })));
    assert!(matches!(tracker.commit(lsn(30), lsn(40)), Err(OrderViolation::NotOpen { .. })));
    tracker.begin(lsn(30), 0).unwrap();
    assert!(matches!(tracker.begin(lsn(31), 0), Err(OrderViolation::Nested { .. })));
    assert!(matches!(tracker.commit(lsn(30), lsn(30)), Err(OrderViolation::Inverted { .. })));
}

/// Every order in which the reports of three transactions of two events each can be received.
#[test]
fn every_order_of_six_reports_ends_at_the_same_watermark() {
    let mut order = [0_usize, 1, 2, 3, 4, 5];
    permute(&mut order, 0, &mut |order| {
        let mut tracker = started_at(1);
        let mut tickets = Vec::new();
        for commit in [10, 20, 30] {
            tickets.extend(transaction(&mut tracker, commit, commit + 10, 2));
        }
        let mut resolved = [false; 6];
        for &index in order {
            tracker.resolve(tickets[index]).unwrap();
            resolved[index] = true;
            let whole =
                resolved.chunks(2).take_while(|pair| pair.iter().all(|r| *r)).count() as u64;
            let expected = if whole == 0 { 1 } else { 10 + whole * 10 };
            assert_eq!(tracker.watermark().offset(), lsn(expected), "{order:?}");
        }
    });
}

fn permute(order: &mut [usize; 6], fixed: usize, check: &mut impl FnMut(&[usize; 6])) {
    if fixed == order.len() {
        return check(order);
    }
    for index in fixed..order.len() {
        order.swap(fixed, index);
        permute(order, fixed + 1, check);
        order.swap(fixed, index);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Transaction { gap: u64, changes: usize, length: u64 },
    Keepalive { gap: u64 },
    Resolve(prop::sample::Index),
    Discard,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        // A gap of 0 makes adjacent commits: the case in which `end + 1` would lose a transaction.
        4 => (prop_oneof![3 => Just(0), 1 => 1..50_u64], 0..70_usize, 1..40_u64)
            .prop_map(|(gap, changes, length)| Step::Transaction { gap, changes, length }),
        2 => (0..60_u64).prop_map(|gap| Step::Keepalive { gap }),
        8 => any::<prop::sample::Index>().prop_map(Step::Resolve),
        1 => Just(Step::Discard),
    ]
}

/// The expected state of the tracker, as a plain list.
#[derive(Default)]
struct Model {
    end: u64,
    confirmed: u64,
    /// Commit position, the position that may be confirmed after it, and its unresolved tickets.
    units: Vec<(u64, u64, Vec<Ticket>)>,
}

impl Model {
    fn settle(&mut self) {
        while self.units.first().is_some_and(|(_, _, open)| open.is_empty()) {
            self.confirmed = self.confirmed.max(self.units.remove(0).1);
        }
    }

    fn apply(&mut self, tracker: &mut Tracker, step: &Step) {
        match step {
            Step::Transaction { gap, changes, length } => {
                let (commit, end) = (self.end + gap, self.end + gap + length);
                let tickets = transaction(tracker, commit, end, *changes);
                self.units.push((commit, end, tickets));
                self.end = end;
            }
            Step::Keepalive { gap } => {
                self.end += gap;
                tracker.keepalive(lsn(self.end));
                self.units.push((self.end, self.end, Vec::new()));
            }
            Step::Resolve(index) => {
                let open: Vec<Ticket> = self.units.iter().flat_map(|unit| unit.2.clone()).collect();
                if open.is_empty() {
                    return;
                }
                let ticket = *index.get(&open);
                assert_eq!(tracker.resolve(ticket), Ok(Resolution::Resolved));
                self.units.iter_mut().for_each(|unit| unit.2.retain(|other| *other != ticket));
            }
            Step::Discard => {
                tracker.discard_in_flight();
                self.units.clear();
                self.end = self.end.max(self.confirmed);
            }
        }
        self.settle();
    }
}

proptest! {
    #[test]
    fn tracker_agrees_with_a_list_that_is_scanned(steps in prop::collection::vec(step(), 1..200)) {
        let mut tracker = started_at(0);
        let mut model = Model::default();
        let mut before = Watermark::default();
        for step in &steps {
            model.apply(&mut tracker, step);
            let now = tracker.watermark();
            prop_assert!(now >= before, "the watermark moved back");
            prop_assert_eq!(now.offset(), lsn(model.confirmed));
            // Every transaction that the server would skip by its own rule is resolved.
            let skipped = model.units.iter().find(|unit| lsn(unit.0) < now.offset() && !unit.2.is_empty());
            prop_assert!(skipped.is_none());
            prop_assert_eq!(tracker.all_resolved(), model.units.iter().all(|unit| unit.2.is_empty()));
            before = now;
        }
    }
}
