use super::*;
use std::time::Duration;

/// One aggregate: 0 and 1 committed together, 2 rolled back, 3 unknown, 4 committed.
fn written() -> Ledger {
    let mut ledger = Ledger::new(1);
    for outcomes in [
        &[Outcome::Committed, Outcome::Committed][..],
        &[Outcome::RolledBack],
        &[Outcome::Unknown],
        &[Outcome::Committed],
    ] {
        let events: Vec<EventId> = outcomes.iter().map(|_| ledger.write(0)).collect();
        ledger.committing(&events, Instant::now());
        ledger.resolve(&events, outcomes[0]);
    }
    ledger
}

fn read(mut ledger: Ledger, sequences: &[usize]) -> Totals {
    for sequence in sequences {
        ledger.delivered(EventId { lane: 0, sequence: *sequence }, Instant::now());
    }
    ledger.totals()
}

#[test]
fn what_was_committed_and_delivered_in_order_balances() {
    let totals = read(written(), &[0, 1, 4]);
    assert!(totals.balances(), "{totals:?}");
    assert_eq!(
        (totals.committed, totals.delivered, totals.rolled_back, totals.unknown),
        (3, 3, 1, 1)
    );
    assert!(read(written(), &[0, 1, 3, 4]).balances());
}

#[test]
fn a_repeated_suffix_is_duplicates_and_balances() {
    let totals = read(written(), &[0, 1, 4, 1, 4]);
    assert!(totals.balances(), "{totals:?}");
    assert_eq!((totals.duplicated, totals.records, totals.delivered), (2, 5, 3));
}

#[test]
fn a_lost_event_is_outstanding() {
    assert_eq!(read(written(), &[0, 1]).outstanding, 1);
    assert_eq!(read(written(), &[]).outstanding, 3);
}

#[test]
fn a_swap_is_out_of_order() {
    let totals = read(written(), &[1, 0, 4]);
    assert_eq!((totals.out_of_order, totals.outstanding), (2, 0));
    assert!(!totals.balances());
    assert_eq!(read(written(), &[0, 1, 4, 0, 4]).out_of_order, 1);
}

#[test]
fn what_was_rolled_back_or_never_written_is_invented() {
    assert_eq!(read(written(), &[0, 1, 2, 4]).invented, 1);
    assert_eq!(read(written(), &[0, 1, 4, 5]).invented, 1);
    let mut ledger = written();
    ledger.unknown_record();
    ledger.delivered(EventId { lane: 7, sequence: 0 }, Instant::now());
    assert_eq!(ledger.totals().invented, 2);
}

#[test]
fn the_reader_may_be_faster_than_the_answer_to_commit() {
    let mut ledger = Ledger::new(1);
    let sent = Instant::now();
    let events = [ledger.write(0), ledger.write(0)];
    ledger.committing(&events, sent);
    for event in events {
        ledger.delivered(event, sent + Duration::from_millis(3));
    }
    ledger.resolve(&events, Outcome::Committed);
    assert!(ledger.totals().balances());
    assert_eq!(ledger.totals().delivered, 2);
    assert_eq!(ledger.consumed.count(), 2);
    assert!(ledger.lanes[0].sent.is_empty());
}

#[test]
fn a_skip_inside_a_transaction_is_out_of_order_before_commit_is_answered() {
    let mut ledger = Ledger::new(1);
    let events = [ledger.write(0), ledger.write(0)];
    ledger.delivered(events[1], Instant::now());
    assert_eq!(ledger.totals().out_of_order, 1);
}
