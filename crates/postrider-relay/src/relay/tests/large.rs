//! Large events, which the sink takes only with no other event of the stream in flight: earlier events are reported
//! first, later events wait, and a refusal discards no other event.

use super::check_parking;
use expect_test::expect;

#[test]
fn large_event_waits_for_earlier_events_and_later_events_wait_for_it() {
    check_parking(
        "start 16
         begin 32
         event a
         event b
         exclusive 1
         acked 0
         event b
         acked 1
         event c",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            exclusive 1       │  (closed)
            acked 0           │ published, write cursor 0/10+0/20:1
            event b           │ publish #1 (closed)
            acked 1           │ published
            event c           │ publish #2
        "#]],
    );
}

/// Later events continue at once, except those of its aggregate.
#[test]
fn refused_large_event_is_parked_and_nothing_is_sent_again() {
    check_parking(
        "start 16
         begin 32
         event a
         exclusive 0
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
            exclusive 0       │ 
            event a           │ publish #0 (closed)
            keepalive 40      │  (closed)
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            event b           │ publish #1
            event a           │ park #2 behind 0
            acked 1           │ published
            parked            │ write 1 rows [], write cursor 0/10+0/20:2
            parked            │ 
        "#]],
    );
}

/// It does not wait for dead letters or attempts, because no order exists between it and them.
#[test]
fn large_event_does_not_wait_for_an_attempt_of_another_aggregate() {
    check_parking(
        "row 32 0 b waiting
         start 64
         begin 96
         event a
         exclusive 0
         event a
         acked t0
         acked 0
         event c",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            begin 96          │ 
            event a           │ publish #0
            exclusive 0       │ 
            event a           │ publish #0 (closed)
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done] (closed)
            acked 0           │ published, write cursor 0/40+0/60:1
            event c           │ publish #1
        "#]],
    );
}

/// The topic may accept its size meanwhile. Then it is sent as other events are, and its batch may contain an attempt.
#[test]
fn large_event_is_not_refused_because_of_an_attempt() {
    check_parking(
        "row 32 0 b waiting
         start 64
         begin 96
         event a
         exclusive 0
         event a
         refused t0
         refused 0
         broken
         start 64
         begin 96
         event a
         acked 1",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            begin 96          │ 
            event a           │ publish #0
            exclusive 0       │ 
            event a           │ publish #0 (closed)
            refused t0        │  (closed)
            refused 0         │ restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 64          │ 
            begin 96          │ 
            event a           │ publish #1 (closed)
            acked 1           │ published, write cursor 0/40+0/60:1
        "#]],
    );
}
