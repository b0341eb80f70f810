//! Dead events whose records also go to the dead-letter topic, and destinations that are waited for no longer.

use super::{OnPoison, ParkingRules, check_parking, rules, run};
use expect_test::{Expect, expect};

/// Runs a script where dead events are also sent to a topic.
fn check(script: &str, expected: &Expect) {
    run(ParkingRules { dead_letters: true, ..rules(OnPoison::BlockKey) }, script, expected);
}

#[test]
fn dead_event_is_sent_once_its_row_says_so_and_marked_after_the_acknowledgement() {
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
            start 64          │ try t0 0/20:0, confirm 0/40
            toolarge t0       │ write 0 rows [0/20:0 waiting after 2]
            parked            │ 
            wait 2000         │ try t1 0/20:0
            toolarge t1       │ write 0 rows [0/20:0 dead after 3]
            parked            │ letter t2 0/20:0
            acked t2          │ write 0 rows [0/20:0 sent to the dead]
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
            parked            │ letter t0 0/20:0, write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            acked 2           │ published
            acked t1          │ 
            acked t0          │ letter t1 0/20:1, write 0 rows [0/20:0 sent to the dead]
            parked            │ 
            acked t1          │ write 0 rows [0/20:1 sent to the dead]
            parked            │ 
        "#]],
    );
}

#[test]
fn what_was_not_sent_is_sent_after_the_next_start() {
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
            unsent 32 0       │ letter t0 0/20:0
            acked t0          │ write 0 rows [0/20:0 sent to the dead]
            lost              │ 
            start 64          │ write 0 rows [0/20:0 sent to the dead]
            unsent 32 0       │ 
            parked            │ 
            wait 10000        │ 
        "#]],
    );
}

#[test]
fn letter_that_is_refused_is_offered_again_and_holds_up_no_other() {
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
            unsent 32 0       │ letter t0 0/20:0
            unsent 32 1       │ 
            toolarge t0       │ undelivered 0/20:0, letter t1 0/20:1
            acked t1          │ write 0 rows [0/20:1 sent to the dead]
            parked            │ 
            wait 1999         │ 
            wait 1            │ letter t2 0/20:0
            notopic t2        │ undelivered 0/20:0
            wait 2000         │ letter t3 0/20:0
            acked t3          │ write 0 rows [0/20:0 sent to the dead]
            parked            │ 
        "#]],
    );
}

#[test]
fn letter_whose_fate_is_unknown_is_sent_again() {
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
            unsent 32 0       │ letter t0 0/20:0
            unknown t0        │ restart: Unknown
            start 64          │ 
            unsent 32 0       │ letter t1 0/20:0
            acked t1          │ write 0 rows [0/20:0 sent to the dead]
            parked            │ 
        "#]],
    );
}

#[test]
fn dead_event_that_a_person_moves_is_no_letter_any_more() {
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
         gone t1
         toolarge t2
         parked
         wait 10000",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ letter t0 0/20:0
            unsent 32 1       │ 
            unsent 32 2       │ 
            request 32 0 retry   │ letter t1 0/20:1, write 0 rows [0/20:0 again]
            request 32 1 skip    │ letter t2 0/20:2
            acked t0          │ 
            parked            │ try t3 0/20:0, write 0 rows [0/20:1 skipped]
            parked            │ 
            gone t1           │ 
            toolarge t2       │ undelivered 0/20:2
            parked            │ 
            wait 10000        │ letter t4 0/20:2
        "#]],
    );
}

#[test]
fn drain_waits_for_the_letter_that_is_out_and_sends_no_other() {
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
            unsent 32 0       │ letter t0 0/20:0
            unsent 32 1       │ 
            drain             │  (shut)
            acked t0          │ write 0 rows [0/20:0 sent to the dead] (shut)
            parked            │ drained (shut)
        "#]],
    );
}

#[test]
fn event_of_a_destination_that_is_given_up_is_parked_with_no_attempt_and_its_followers_behind_it() {
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
            wait 1000         │ try t0 0/20:0, write cursor 0/30
            notopic t0        │ 
            wait 1000         │ try t1 0/20:0
            acked t1          │ released 0/20:0, write 0 rows [0/20:0 done]
            parked            │ 
            acked t2          │ 
            parked            │ 
            begin 96          │ 
            event a           │ park #3 behind 0, write 1 rows []
        "#]],
    );
}

/// The driver would have turned without an end, and never fetched the record of the try.
#[test]
fn letter_that_waits_for_a_try_to_be_alone_is_not_due() {
    check(
        "row 32 0 a dead
         row 32 2 c waiting
         start 48
         refused t0
         row 32 0 a dead
         row 32 2 c waiting
         start 48
         sounded t1
         unsent 32 0
         calm
         acked t2",
        &expect![[r#"
            start 48          │ try t0 0/20:2, confirm 0/30
            refused t0        │ restart: Refused(Kafka(10))
            start 48          │ sound t1 0/20:2
            sounded t1        │ try t2 0/20:2 (shut)
            unsent 32 0       │  (shut)
            acked t2          │ released 0/20:2, letter t3 0/20:0, write 0 rows [0/20:2 done]
        "#]],
    );
}

/// Whoever deleted the row wants no letter either.
#[test]
fn letter_whose_row_was_deleted_comes_to_nothing() {
    check(
        "row 32 0 a dead
         row 32 1 a behind
         row 32 2 b dead
         start 64
         unsent 32 0
         unsent 32 2
         gone t0
         deleted 32 0",
        &expect![[r#"
            start 64          │ confirm 0/40
            unsent 32 0       │ letter t0 0/20:0
            unsent 32 2       │ 
            gone t0           │ letter t1 0/20:2
            deleted 32 0      │ try t2 0/20:1
        "#]],
    );
}
