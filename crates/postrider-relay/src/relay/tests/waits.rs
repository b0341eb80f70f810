//! The reasons why the intake is closed, as `status` and the log show them.

use super::{OnPoison, ParkingRules, Script, rules};
use crate::relay::flow::SPAN_MAX;
use crate::relay::{Change, Input};
use std::time::Duration;

fn after(rules: ParkingRules, lines: &[&str]) -> Script {
    let mut run = Script::new(rules, None);
    run.lines(lines);
    run
}

fn waits_for(run: &Script) -> &'static str {
    run.relay.waits_for().unwrap_or("nothing")
}

#[test]
fn intake_waits_for_free_space_in_the_parking_table() {
    let rules = rules(OnPoison::BlockKey);
    let full: Vec<String> = (0..5).map(|n| format!("row 16 {n} {n} dead")).collect();
    let mut lines: Vec<&str> = full.iter().map(String::as_str).collect();
    lines.push("start 64");
    let mut run = after(rules, &lines);
    assert!(run.relay.parking_is_full());
    assert!(waits_for(&run).contains("parking.rows_max"));
    run.line("request 16 0 skip");
    assert_eq!(waits_for(&run), "nothing");
}

#[test]
fn intake_waits_for_uncommitted_rows_by_size_and_by_number() {
    let rules = ParkingRules { rows_max: 10_000, ..rules(OnPoison::BlockKey) };
    let blocked = ["row 16 0 a dead", "start 64", "begin 96"];
    let mut run = after(rules, &blocked);
    run.line("event a 17000000");
    assert!(waits_for(&run).contains("PostgreSQL to commit rows"));
    run.line("parked");
    assert_eq!(waits_for(&run), "nothing");

    let mut run = after(rules, &blocked);
    for _ in 0..1_999 {
        run.line("event a");
    }
    assert_eq!(waits_for(&run), "nothing");
    run.line("event a");
    assert!(waits_for(&run).contains("PostgreSQL to commit rows"));
    run.line("parked");
    assert_eq!(waits_for(&run), "nothing");
}

#[test]
fn intake_waits_for_the_oldest_event_when_a_million_are_behind_it() {
    let lines = ["start 16", "begin 32", "event a"];
    let mut run = after(rules(OnPoison::BlockKey), &lines);
    let mut effects = Vec::new();
    for _ in 1..SPAN_MAX {
        assert!(run.relay.intake_open());
        run.relay.apply(Duration::ZERO, Input::Change(Change::Skipped), &mut effects);
    }
    assert!(waits_for(&run).contains("the oldest event in flight"));
    run.line("acked 0");
    assert_eq!(waits_for(&run), "nothing");
}

#[test]
fn intake_waits_for_an_exclusive_event_or_attempt() {
    let lines = ["start 16", "begin 32", "event a", "event b", "refused 0", "refused 1"];
    let mut run = after(rules(OnPoison::BlockKey), &lines);
    run.lines(&["start 16", "begin 32", "event a"]);
    assert!(waits_for(&run).contains("an event that is sent with nothing else"));
    let lines = ["start 16", "begin 32", "event a", "event b", "exclusive 1"];
    let mut run = after(rules(OnPoison::BlockKey), &lines);
    assert!(waits_for(&run).contains("before compression"));
    run.lines(&["acked 0", "event b"]);
    assert!(waits_for(&run).contains("before compression"));
    run.line("acked 1");
    assert_eq!(waits_for(&run), "nothing");

    let lines = ["row 32 0 a waiting", "start 64", "refused t0", "row 32 0 a waiting", "start 64"];
    let mut run = after(rules(OnPoison::BlockKey), &lines);
    run.lines(&["begin 96", "event b"]);
    assert_eq!(waits_for(&run), "nothing");
    run.line("probed t1");
    assert!(waits_for(&run).contains("an attempt of a parked event"));
}
