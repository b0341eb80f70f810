use super::*;
use crate::lsn::{Lsn, Watermark};
use crate::record::{Outcome, Ticket};
use crate::replay::plan::{From, ReplayRequest, SourceChoice};

fn outlet() -> Outlet {
    let request = ReplayRequest {
        from: From::Anywhere,
        until: None,
        ids: Vec::new(),
        aggregate: None,
        to: None,
        include_parked: true,
        source: SourceChoice::Auto,
    };
    Outlet::new(Parts {
        sink: None,
        mailbox: Mailbox::default(),
        start: Progress { watermark: Watermark::resumed(Lsn::from_wire(1)), partial: None },
        rate: 0,
        choice: Choice::new(&request, &[]),
        parked: None,
        to: None,
        name: "again".to_owned(),
        tally: Tally::default(),
    })
}

/// Its end is not to be written down: a process that goes on from there would leave the event out.
#[test]
fn a_replay_is_not_settled_while_an_event_is_to_be_sent_again() {
    let mut outlet = outlet();
    assert!(outlet.is_settled());
    let flying = Flying { bytes: 1, event: "a".to_owned(), alone: false };
    outlet.flight.insert(7, flying);
    assert!(!outlet.is_settled());
    outlet.report(Ticket(7), Outcome::Unknown).unwrap();
    assert_eq!(outlet.in_flight(), 0);
    assert!(!outlet.is_settled());
    outlet.start_again();
    assert!(outlet.is_settled());
}

/// The parked event was published or skipped meanwhile. An event of its aggregate that was left out before would be
/// missing between those that are sent.
#[test]
fn an_aggregate_of_which_an_event_was_left_out_is_left_out_to_the_end() {
    let (one, other) = (Aggregate { kind: "order", id: "1" }, Aggregate { kind: "order", id: "2" });
    let mut outlet = outlet();
    outlet.parked = Some(Parked::default());
    assert!(!outlet.is_parked(one) && !outlet.is_parked(other));
    outlet.parked = Some(Parked { now: [Lane::of(one)].into(), left_out: HashSet::new() });
    assert!(outlet.is_parked(one) && !outlet.is_parked(other));
    if let Some(parked) = &mut outlet.parked {
        parked.now = [Lane::of(other)].into();
    }
    assert!(outlet.is_parked(one) && outlet.is_parked(other));
    if let Some(parked) = &mut outlet.parked {
        parked.now.clear();
    }
    assert!(outlet.is_parked(one) && outlet.is_parked(other));
}
