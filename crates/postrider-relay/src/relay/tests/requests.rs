//! Requests of persons: carried out at once, and for an event that is out with the answer, whatever it is.

use super::check_parking;
use expect_test::expect;

#[test]
fn wish_is_granted_when_the_destination_of_the_try_is_missing() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         request 32 0 skip
         notopic t0
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            request 32 0 skip    │ 
            notopic t0        │ try t1 0/20:1, write 0 rows [0/20:0 skipped]
            parked            │ 
        "#]],
    );
}

#[test]
fn wish_is_granted_when_the_destination_that_was_asked_for_is_known() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         refused t0
         row 32 0 a waiting
         row 32 1 a behind
         start 64
         request 32 0 skip
         sounded t1
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            refused t0        │ restart: Refused(Kafka(10))
            start 64          │ sound t1 0/20:0
            request 32 0 skip    │ 
            sounded t1        │ try t2 0/20:1, write 0 rows [0/20:0 skipped]
            parked            │ 
        "#]],
    );
}

#[test]
fn person_retries_the_dead_skips_and_replaces() {
    check_parking(
        "row 32 0 a dead
         row 32 1 a behind
         row 32 2 b dead
         row 32 3 c dead
         start 64
         request 32 0 retry
         request 32 2 skip
         request 32 3 replace
         parked
         parked
         request 32 9 retry
         acked t0
         toolarge t1
         parked",
        &expect![[r#"
            start 64          │ confirm 0/40
            request 32 0 retry   │ write 0 rows [0/20:0 again]
            request 32 2 skip    │ 
            request 32 3 replace │ 
            parked            │ try t0 0/20:0, write 0 rows [0/20:2 skipped; 0/20:3 again]
            parked            │ try t1 0/20:3
            request 32 9 retry   │ write 0 rows [0/20:9 declined]
            acked t0          │ released 0/20:0, try t2 0/20:1
            toolarge t1       │ 
            parked            │ write 0 rows [0/20:0 done; 0/20:3 waiting after 1]
        "#]],
    );
}

#[test]
fn wish_for_an_event_that_is_being_tried_waits_for_the_answer() {
    check_parking(
        "row 32 0 a waiting
         row 48 0 b waiting
         start 64
         request 32 0 skip
         request 48 0 skip
         acked t0
         toolarge t1
         parked
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, try t1 0/30:0, confirm 0/40
            request 32 0 skip    │ 
            request 48 0 skip    │ 
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 declined]
            toolarge t1       │ 
            parked            │ write 0 rows [0/20:0 done; 0/30:0 skipped]
            parked            │ 
        "#]],
    );
}
