//! Events that the sink takes only with no other event of the stream in flight: what is before them is answered first,
//! what is behind them waits, and a refusal gives up nobody else.

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

/// What is behind it goes on at once, but for its own aggregate.
#[test]
fn event_that_goes_alone_and_is_refused_is_parked_and_nothing_is_sent_again() {
    check_parking(
        "start 16
         begin 32
         event a
         alone 0
         event a
         keepalive 40
         nottaken 0
         event b
         event a
         acked 1
         parked
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            alone 0           │ 
            event a           │ publish #0 (shut)
            keepalive 40      │  (shut)
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            event b           │ publish #1
            event a           │ park #2 behind 0
            acked 1           │ published
            parked            │ write 1 rows [], write cursor 0/10+0/20:2
            parked            │ 
        "#]],
    );
}

/// It waits for no letter, nor for a try: what is between it and them has no order.
#[test]
fn event_that_goes_alone_waits_for_no_try_of_another_aggregate() {
    check_parking(
        "row 32 0 b waiting
         start 64
         begin 96
         event a
         alone 0
         event a
         acked t0
         acked 0
         event c",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            begin 96          │ 
            event a           │ publish #0
            alone 0           │ 
            event a           │ publish #0 (shut)
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done] (shut)
            acked 0           │ published, write cursor 0/40+0/60:1
            event c           │ publish #1
        "#]],
    );
}

/// Its topic may have come to take its size: then it goes as others do, and a try may be in its batch.
#[test]
fn event_that_was_to_go_alone_is_not_blamed_for_a_try() {
    check_parking(
        "row 32 0 b waiting
         start 64
         begin 96
         event a
         alone 0
         event a
         refused t0
         refused 0
         broken
         start 64
         begin 96
         event a
         acked 1",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            begin 96          │ 
            event a           │ publish #0
            alone 0           │ 
            event a           │ publish #0 (shut)
            refused t0        │  (shut)
            refused 0         │ restart: Refused(Kafka(10))
            broken            │ restart: SinkBroken
            start 64          │ 
            begin 96          │ 
            event a           │ publish #1 (shut)
            acked 1           │ published, write cursor 0/40+0/60:1
        "#]],
    );
}
