//! Events that the sink takes only with nothing else in flight: what is before them is answered first, what is behind
//! them waits, and a refusal gives up nobody else.

use super::check_parking;
use expect_test::expect;

#[test]
fn event_that_goes_alone_waits_for_those_before_and_those_behind_wait_for_it() {
    check_parking(
        "start 16
         begin 32
         event a
         event b
         alone 1
         acked 0
         event b
         acked 1
         event c",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            alone 1           │  (shut)
            acked 0           │ published, write cursor 0/10+0/20:1
            event b           │ publish #1 (shut)
            acked 1           │ published
            event c           │ publish #2
        "#]],
    );
}

/// The sink says at once of the same event that it is refused, when it comes again.
#[test]
fn event_that_is_refused_alone_is_streamed_again_alone_and_parked_on_the_sinks_word() {
    check_parking(
        "start 16
         begin 32
         event a
         alone 0
         event a
         heavy 0
         start 16
         begin 32
         event a
         nottaken 1
         parked
         event b",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            alone 0           │ 
            event a           │ publish #0 (shut)
            heavy 0           │ restart: Refused(TooLargeCompressed { size: 9, limit: 8 })
            start 16          │ 
            begin 32          │ 
            event a           │ publish #1 (shut)
            nottaken 1        │ park #1 waiting 1000, write 1 rows []
            parked            │ write cursor 0/10+0/20:1
            event b           │ publish #2
        "#]],
    );
}

#[test]
fn parked_event_that_goes_alone_is_tried_when_nothing_else_is_in_flight() {
    check_parking(
        "row 32 0 a waiting
         row 48 0 b waiting
         start 64
         alone t0
         begin 96
         event c
         acked t1
         sounded t2
         acked 0
         acked t3",
        &expect![[r#"
            start 64          │ try t0 0/20:0, try t1 0/30:0, confirm 0/40
            alone t0          │ sound t2 0/20:0
            begin 96          │ 
            event c           │ publish #0
            acked t1          │ released 0/30:0, write 0 rows [0/30:0 done]
            sounded t2        │  (shut)
            acked 0           │ published, try t3 0/20:0, write cursor 0/40+0/60:1 (shut)
            acked t3          │ released 0/20:0
        "#]],
    );
}
