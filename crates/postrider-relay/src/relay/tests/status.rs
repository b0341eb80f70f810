//! The facts about a relay that `status` shows.

use super::{OnPoison, Script, lsn, rules};
use crate::relay::{Change, Input};
use postrider_core::event::{Aggregate, Position};
use postrider_core::record::{Outcome, Ticket};
use postrider_core::timestamp::Timestamp;
use std::time::Duration;

fn after(lines: &[&str]) -> Script {
    let mut run = Script::new(rules(OnPoison::BlockKey), None);
    run.lines(lines);
    run
}

#[test]
fn blocked_aggregates_and_dead_events_are_reported() {
    let rows = ["row 16 0 a dead", "row 16 1 a behind", "row 16 2 b waiting", "row 16 3 c dead"];
    let mut run = after(&["start 64"]);
    assert_eq!((run.relay.blocked_lanes(), run.relay.dead(9)), (0, Vec::new()));
    run.lines(&rows);
    run.line("start 64");
    assert_eq!(run.relay.blocked_lanes(), 3);
    let at = |ordinal| Position { commit: lsn(16), ordinal };
    assert_eq!(run.relay.dead(9), [at(0), at(3)]);
    assert_eq!(run.relay.dead(1), [at(0)]);
    run.line("deleted 16 3");
    assert_eq!((run.relay.blocked_lanes(), run.relay.dead(9)), (2, vec![at(0)]));
}

#[test]
fn oldest_unresolved_event_is_reported_by_its_commit_time() {
    let mut run = after(&["start 16"]);
    let mut apply = |input| {
        run.relay.apply(Duration::ZERO, input, &mut Vec::new());
        run.relay.oldest_unresolved().map(|time| time.unix_micros)
    };
    let begin =
        |at, unix_micros| Input::Begin { commit: lsn(at), commit_time: Timestamp { unix_micros } };
    let event = || {
        let aggregate = Aggregate { kind: "order", id: "a" };
        Input::Change(Change::Event { aggregate, size_bytes: 1, wait: Duration::ZERO })
    };
    let acked = |ticket| Input::Report { ticket: Ticket(ticket), outcome: Outcome::Acked };
    assert_eq!(apply(begin(32, 5)), None);
    assert_eq!(apply(event()), Some(5));
    apply(Input::Commit { commit: lsn(32), end: lsn(48) });
    apply(begin(48, 9));
    assert_eq!(apply(event()), Some(5));
    assert_eq!(apply(acked(0)), Some(9));
    assert_eq!(apply(Input::NotTaken { ticket: Ticket(1) }), Some(9), "the sink was too busy");
    assert_eq!(apply(event()), Some(9));
    assert_eq!(apply(acked(1)), None);
}

#[test]
fn received_position_is_reported_before_it_is_resolved() {
    let mut run = after(&["start 16", "begin 32", "event a", "commit 32 48"]);
    assert_eq!((run.relay.received(), run.relay.resolved().commit), (lsn(48), lsn(16)));
    run.line("keepalive 64");
    assert_eq!((run.relay.received(), run.relay.resolved().commit), (lsn(64), lsn(16)));
    run.line("unknown 0");
    assert_eq!(run.relay.received(), lsn(16), "the event is repeated");
}

#[test]
fn halt_is_reported_while_it_waits_and_the_end_afterwards() {
    let mut run = Script::new(rules(OnPoison::Stop), None);
    run.lines(&["start 16", "begin 32", "event a", "poison b"]);
    assert_eq!(run.relay.halting().map(|halt| &*halt.message), Some("no aggregate id"));
    assert!(!run.relay.ended());
    run.lines(&["acked 0", "written"]);
    assert!(run.relay.halting().is_none() && run.relay.ended());
}

#[test]
fn attempt_is_reported_until_its_row_status_is_committed() {
    let mut run = after(&["row 16 0 a waiting", "start 64"]);
    assert!(run.relay.has_unsettled_attempts());
    run.line("acked t0");
    assert!(run.relay.has_unsettled_attempts());
    run.line("parked");
    assert!(!run.relay.has_unsettled_attempts());
}
