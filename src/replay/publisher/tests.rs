use super::*;
use crate::offset::{Offset, Watermark};
use crate::record::{Outcome, Ticket};
use crate::replay::plan::{From, ReplayRequest, SourceChoice};

fn publisher() -> Publisher {
    let request = ReplayRequest {
        from: From::Anywhere,
        until: None,
        ids: Vec::new(),
        aggregate: None,
        to: None,
        include_parked: true,
        source: SourceChoice::Auto,
    };
    Publisher::new(PublisherParts {
        sink: None,
        mailbox: Mailbox::default(),
        start: Progress { watermark: Watermark::resumed(Offset::new(1)), partial: None },
        rate: 0,
        choice: Choice::new(&request, &[]),
        parked: None,
        to: None,
        name: "again".to_owned(),
        tally: Tally::default(),
    })
}

/// The end must not be recorded: a process that resumes there would leave the event out.
#[test]
fn a_replay_is_not_settled_while_an_event_is_to_be_sent_again() {
    let mut publisher = publisher();
    assert!(publisher.is_settled());
    let sent = InFlight { bytes: 1, event: "a".to_owned(), alone: false };
    publisher.flight.insert(7, sent);
    assert!(!publisher.is_settled());
    publisher.report(Ticket(7), Outcome::Unknown).unwrap();
    assert_eq!(publisher.in_flight(), 0);
    assert!(!publisher.is_settled());
    publisher.give_up_in_flight();
    assert!(publisher.is_settled());
}

/// The parked event was published or skipped meanwhile. An event of its aggregate that was left out before would be
/// missing between those that are sent.
#[test]
fn an_aggregate_of_which_an_event_was_left_out_is_left_out_to_the_end() {
    let (one, other) = (Aggregate { kind: "order", id: "1" }, Aggregate { kind: "order", id: "2" });
    let mut publisher = publisher();
    publisher.parked = Some(ParkedLanes::default());
    assert!(!publisher.is_parked(one) && !publisher.is_parked(other));
    publisher.parked = Some(ParkedLanes { now: [Lane::of(one)].into(), left_out: HashSet::new() });
    assert!(publisher.is_parked(one) && !publisher.is_parked(other));
    if let Some(parked) = &mut publisher.parked {
        parked.now = [Lane::of(other)].into();
    }
    assert!(publisher.is_parked(one) && publisher.is_parked(other));
    if let Some(parked) = &mut publisher.parked {
        parked.now.clear();
    }
    assert!(publisher.is_parked(one) && publisher.is_parked(other));
}
