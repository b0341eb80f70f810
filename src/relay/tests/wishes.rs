//! Requests of persons for an event that is out: carried out with the answer, whatever it is.

use super::check_parking;
use expect_test::expect;

#[test]
fn wish_is_granted_when_the_destination_of_the_try_is_missing() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         wish 32 0 skip
         notopic t0
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            wish 32 0 skip    │ 
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
         wish 32 0 skip
         sounded t1
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            refused t0        │ restart: Refused(Kafka(10))
            start 64          │ sound t1 0/20:0
            wish 32 0 skip    │ 
            sounded t1        │ try t2 0/20:1, write 0 rows [0/20:0 skipped]
            parked            │ 
        "#]],
    );
}
