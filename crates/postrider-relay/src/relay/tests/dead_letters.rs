//! Dead letters, and destinations that have been unavailable for too long.

use super::{OnPoison, ParkingRules, check_parking, rules, run};
use expect_test::{Expect, expect};

/// Runs a script where dead events are also sent to a topic.
fn check(script: &str, expected: &Expect) {
    run(ParkingRules { dead_letters: true, ..rules(OnPoison::BlockKey) }, script, expected);
}

#[test]
fn dead_event_is_sent_once_its_row_is_committed_and_its_status_follows_the_acknowledgement() {
    check(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         toolarge t0
         parked
         wait 2000
         toolarge t1
         parked
         acked t2
         parked
         wait 100000",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            toolarge t0       │ write 0 rows [0/20:0 waiting after 2]
            parked            │ 
            wait 2000         │ attempt t1 0/20:0
            toolarge t1       │ write 0 rows [0/20:0 dead after 3]
            parked            │ dead letter t2 0/20:0
            acked t2          │ write 0 rows [0/20:0 sent to the dead-letter topic]
            parked            │ 
            wait 100000       │ 
        "#]],
    );
}

#[test]
fn hopeless_event_is_dead_at_once_and_sent_when_its_row_is_committed() {
    check(
        "start 16
         begin 32
         poison a
         poison
         event b
         commit 32 48
         parked
         parked
         acked 2
         acked t1
         acked t0
         parked
         acked t1
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            poison a          │ park #0 dead 1000, write 1 rows []
            poison            │ park #1 dead 1000
            event b           │ publish #2
            commit 32 48      │ 
            parked            │ dead letter t0 0/20:0, write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            acked 2           │ published
            acked t1          │ 
            acked t0          │ dead letter t1 0/20:1, write 0 rows [0/20:0 sent to the dead-letter topic]
            parked            │ 
            acked t1          │ write 0 rows [0/20:1 sent to the dead-letter topic]
            parked            │ 
        "#]],
    );
}

#[test]
fn unsent_dead_letter_is_sent_after_the_next_start() {
    check(
        "row 32 0 a dead
         row 32 1 b dead
         start 64
         unsent 32 0
         acked t0
         lost
         row 32 0 a dead
         row 32 1 b dead
         start 64
         unsent 32 0
         parked
         wait 10000",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ dead letter t0 0/20:0
            acked t0          │ write 0 rows [0/20:0 sent to the dead-letter topic]
            lost              │ 
            start 64          │ write 0 rows [0/20:0 sent to the dead-letter topic]
            unsent 32 0       │ 
            parked            │ 
            wait 10000        │ 
        "#]],
    );
}

#[test]
fn refused_dead_letter_is_sent_again_and_blocks_no_other() {
    check(
        "row 32 0 a dead
         row 32 1 b dead
         start 64
         unsent 32 0
         unsent 32 1
         toolarge t0
         acked t1
         parked
         wait 1999
         wait 1
         notopic t2
         wait 2000
         acked t3
         parked",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ dead letter t0 0/20:0
            unsent 32 1       │ 
            toolarge t0       │ dead letter refused 0/20:0, dead letter t1 0/20:1
            acked t1          │ write 0 rows [0/20:1 sent to the dead-letter topic]
            parked            │ 
            wait 1999         │ 
            wait 1            │ dead letter t2 0/20:0
            notopic t2        │ dead letter refused 0/20:0
            wait 2000         │ dead letter t3 0/20:0
            acked t3          │ write 0 rows [0/20:0 sent to the dead-letter topic]
            parked            │ 
        "#]],
    );
}

#[test]
fn dead_letter_with_an_unknown_outcome_is_sent_again() {
    check(
        "row 32 0 a dead
         start 64
         unsent 32 0
         unknown t0
         row 32 0 a dead
         start 64
         unsent 32 0
         acked t1
         parked",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ dead letter t0 0/20:0
            unknown t0        │ restart: Unknown
            start 64          │ 
            unsent 32 0       │ dead letter t1 0/20:0
            acked t1          │ write 0 rows [0/20:0 sent to the dead-letter topic]
            parked            │ 
        "#]],
    );
}

#[test]
fn dead_event_that_an_operator_retries_is_no_dead_letter_any_more() {
    check(
        "row 32 0 a dead
         row 32 1 b dead
         row 32 2 c dead
         start 64
         unsent 32 0
         unsent 32 1
         unsent 32 2
         request 32 0 retry
         request 32 1 skip
         acked t0
         parked
         parked
         missing t1
         toolarge t2
         parked
         wait 10000",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ dead letter t0 0/20:0
            unsent 32 1       │ 
            unsent 32 2       │ 
            request 32 0 retry│ dead letter t1 0/20:1, write 0 rows [0/20:0 again]
            request 32 1 skip │ dead letter t2 0/20:2
            acked t0          │ 
            parked            │ attempt t3 0/20:0, write 0 rows [0/20:1 skipped]
            parked            │ 
            missing t1        │ 
            toolarge t2       │ dead letter refused 0/20:2
            parked            │ 
            wait 10000        │ dead letter t4 0/20:2
        "#]],
    );
}

#[test]
fn drain_waits_for_the_dead_letter_in_flight_and_sends_no_other() {
    check(
        "row 32 0 a dead
         row 32 1 b dead
         start 64
         unsent 32 0
         unsent 32 1
         drain
         acked t0
         parked",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ dead letter t0 0/20:0
            unsent 32 1       │ 
            drain             │  (closed)
            acked t0          │ write 0 rows [0/20:0 sent to the dead-letter topic] (closed)
            parked            │ drained (closed)
        "#]],
    );
}

#[test]
fn event_of_an_unavailable_destination_is_parked_without_an_attempt_and_its_followers_behind_it() {
    check_parking(
        "start 16
         begin 32
         event a
         unavailable 0
         event a
         event b
         commit 32 48
         parked
         parked
         acked 2
         written
         wait 1000
         notopic t0
         wait 1000
         acked t1
         parked
         acked t2
         parked
         begin 96
         event a",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            unavailable 0     │ park #0 waiting 1000, write 1 rows []
            event a           │ park #1 behind 0
            event b           │ publish #2
            commit 32 48      │ 
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            acked 2           │ published
            written           │ 
            wait 1000         │ attempt t0 0/20:0, write cursor 0/30
            notopic t0        │ 
            wait 1000         │ attempt t1 0/20:0
            acked t1          │ released 0/20:0, write 0 rows [0/20:0 done]
            parked            │ 
            acked t2          │ 
            parked            │ 
            begin 96          │ 
            event a           │ park #3 behind 0, write 1 rows []
        "#]],
    );
}

/// Otherwise the pipeline would loop at once for ever, and never fetch the record of the attempt.
#[test]
fn dead_letter_that_waits_for_an_exclusive_attempt_is_not_due() {
    check(
        "row 32 0 a dead
         row 32 2 c waiting
         start 48
         refused t0
         row 32 0 a dead
         row 32 2 c waiting
         start 48
         probed t1
         unsent 32 0
         idle
         acked t2",
        &expect![[r#"
            start 48          │ attempt t0 0/20:2, confirm 0/30
            refused t0        │ restart: Refused(Native(10))
            start 48          │ probe t1 0/20:2
            probed t1         │ attempt t2 0/20:2 (closed)
            unsent 32 0       │  (closed)
            acked t2          │ released 0/20:2, dead letter t3 0/20:0, write 0 rows [0/20:2 done]
        "#]],
    );
}

/// A deleted row needs no dead letter.
#[test]
fn dead_letter_whose_row_was_deleted_is_dropped() {
    check(
        "row 32 0 a dead
         row 32 1 a behind
         row 32 2 b dead
         start 64
         unsent 32 0
         unsent 32 2
         missing t0
         deleted 32 0",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ dead letter t0 0/20:0
            unsent 32 2       │ 
            missing t0        │ dead letter t1 0/20:2
            deleted 32 0      │ attempt t2 0/20:1
        "#]],
    );
}
