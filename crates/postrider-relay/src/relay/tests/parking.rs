//! Parking: which events block which, and when a parked event is resolved.

use super::{check_parking, rules, run};
use crate::relay::OnPoison;
use expect_test::expect;

#[test]
fn refused_event_blocks_only_its_aggregate_and_is_resolved_once_its_row_is_committed() {
    check_parking(
        "start 16
         begin 32
         event a
         nottaken 0
         event a
         event b
         commit 32 48
         acked 2
         parked
         parked
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            event a           │ park #1 behind 0
            event b           │ publish #2
            commit 32 48      │ 
            acked 2           │ published
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            written           │ 
        "#]],
    );
}

#[test]
fn poison_without_an_aggregate_blocks_no_other_event() {
    check_parking(
        "start 16
         begin 32
         poison
         event a
         commit 32 48
         acked 1
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            poison            │ park #0 dead 1000, write 1 rows []
            event a           │ publish #1
            commit 32 48      │ 
            acked 1           │ published
            parked            │ write cursor 0/30
        "#]],
    );
}

#[test]
fn poison_of_a_known_aggregate_is_dead_and_blocks_it() {
    check_parking(
        "start 16
         begin 32
         poison a
         event a
         event b
         commit 32 48
         parked
         parked
         wait 100000",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            poison a          │ park #0 dead 1000, write 1 rows []
            event a           │ park #1 behind 0
            event b           │ publish #2
            commit 32 48      │ 
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            wait 100000       │ 
        "#]],
    );
}

#[test]
fn event_that_is_not_available_yet_waits_with_its_followers() {
    check_parking(
        "start 16
         begin 32
         event a 10 500
         event a
         commit 32 48
         parked
         parked
         written
         wait 400
         wait 100
         acked t0
         written
         acked t1
         parked
         parked
         begin 64
         event a
         commit 64 80",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a 10 500    │ park #0 due 500, write 1 rows []
            event a           │ park #1 behind 0
            commit 32 48      │ 
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            written           │ 
            wait 400          │ write cursor 0/30
            wait 100          │ attempt t0 0/20:0
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done]
            written           │ attempt t1 0/20:1, confirm 0/30
            acked t1          │ released 0/20:1
            parked            │ write 0 rows [0/20:1 done]
            parked            │ 
            begin 64          │ 
            event a           │ publish #2
            commit 64 80      │ 
        "#]],
    );
}

#[test]
fn skip_event_continues_without_the_poison() {
    run(
        rules(OnPoison::SkipEvent),
        "start 16
         begin 32
         event a
         nottaken 0
         event a
         commit 32 48
         acked 1
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            nottaken 0        │ park #0 dead 1000, write 1 rows []
            event a           │ publish #1
            commit 32 48      │ 
            acked 1           │ published
            parked            │ write cursor 0/30
        "#]],
    );
}

#[test]
fn bound_of_rows_closes_the_intake_and_drops_nothing() {
    check_parking(
        "start 16
         begin 32
         event a
         nottaken 0
         event a
         event a
         event a
         event a
         parked
         parked
         written
         commit 32 48
         request 32 0 skip
         parked
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            event a           │ park #1 behind 0
            event a           │ park #2 behind 0
            event a           │ park #3 behind 0
            event a           │ park #4 behind 0 (closed)
            parked            │ write 4 rows [], write cursor 0/10+0/20:1 (closed)
            parked            │  (closed)
            written           │  (closed)
            commit 32 48      │  (closed)
            request 32 0 skip │ write 0 rows [0/20:0 skipped], write cursor 0/30
            parked            │ 
            written           │ attempt t0 0/20:1, confirm 0/30
        "#]],
    );
}

#[test]
fn strict_order_has_one_event_of_an_aggregate_in_flight() {
    use crate::relay::{Change, Input, ParkingRules, Relay};
    use postrider_core::event::Aggregate;
    use std::time::Duration;
    let rules = ParkingRules { strict: true, ..rules(OnPoison::BlockKey) };
    let limits = crate::relay::Limits { events_max: 4, bytes_max: 1000 };
    let cursor_interval = Duration::from_secs(1);
    let words = crate::relay::HaltWords::POSTGRES;
    let settings = crate::relay::Settings {
        limits,
        cursor_interval,
        idle_step: 4096,
        words,
        rules,
        transactions: None,
    };
    let mut relay = Relay::new(settings);
    let mut effects = Vec::new();
    let (a, b) = (Aggregate { kind: "order", id: "a" }, Aggregate { kind: "order", id: "b" });
    let event =
        |aggregate| Input::Change(Change::Event { aggregate, size_bytes: 1, wait: Duration::ZERO });
    let started = Input::Started {
        cursor: super::progress(16, None),
        same_history: true,
        same_owner: true,
        parked: &[],
        requests: &[],
    };
    let begin = Input::Begin {
        commit: super::lsn(32),
        commit_time: postrider_core::timestamp::Timestamp::default(),
    };
    for input in [started, begin, event(a)] {
        relay.apply(Duration::ZERO, input, &mut effects);
    }
    assert!(!relay.admits(a), "one is in flight");
    assert!(relay.admits(b), "another aggregate may go");
    let outcome = postrider_core::record::Outcome::Acked;
    let acked = Input::Report { ticket: postrider_core::record::Ticket(0), outcome };
    relay.apply(Duration::ZERO, acked, &mut effects);
    assert!(relay.admits(a));
}
