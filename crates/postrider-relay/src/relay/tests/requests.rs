//! Requests of operators: carried out at once, or, during an attempt, with its report.

use super::check_parking;
use expect_test::expect;

#[test]
fn request_is_carried_out_when_the_destination_of_the_attempt_is_missing() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         request 32 0 skip
         notopic t0
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            request 32 0 skip │ 
            notopic t0        │ attempt t1 0/20:1, write 0 rows [0/20:0 skipped]
            parked            │ 
        "#]],
    );
}

#[test]
fn request_is_carried_out_when_the_probed_destination_is_known() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         refused t0
         row 32 0 a waiting
         row 32 1 a behind
         start 64
         request 32 0 skip
         probed t1
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            refused t0        │ restart: Refused(Native(10))
            start 64          │ probe t1 0/20:0
            request 32 0 skip │ 
            probed t1         │ attempt t2 0/20:1, write 0 rows [0/20:0 skipped]
            parked            │ 
        "#]],
    );
}

#[test]
fn operator_retries_skips_and_replaces_dead_events() {
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
            request 32 0 retry│ write 0 rows [0/20:0 again]
            request 32 2 skip │ 
            request 32 3 replace│ 
            parked            │ attempt t0 0/20:0, write 0 rows [0/20:2 skipped; 0/20:3 again]
            parked            │ attempt t1 0/20:3
            request 32 9 retry│ write 0 rows [0/20:9 declined]
            acked t0          │ released 0/20:0, attempt t2 0/20:1
            toolarge t1       │ 
            parked            │ write 0 rows [0/20:0 done; 0/20:3 waiting after 1]
        "#]],
    );
}

#[test]
fn request_during_an_attempt_waits_for_its_report() {
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
            start 64          │ attempt t0 0/20:0, attempt t1 0/30:0, confirm 0/40
            request 32 0 skip │ 
            request 48 0 skip │ 
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 declined]
            toolarge t1       │ 
            parked            │ write 0 rows [0/20:0 done; 0/30:0 skipped]
            parked            │ 
        "#]],
    );
}
