//! Events that are left out: a replay parks nothing, and publishes everything else.

use super::check;
use expect_test::expect;

/// Of the events of a refused batch, the one that is refused with nothing else in flight is left out. Nothing is sent
/// again for that: it is resolved at once.
#[test]
fn culprit_of_a_refused_batch_is_left_out_and_the_others_are_published() {
    check(
        "start 16
         begin 32
         event a
         event b
         event a
         leaveout 0 batch
         leaveout 1 batch
         leaveout 2 batch
         start 16
         begin 32
         event a
         acked 3
         event b
         leaveout 4 batch
         event a
         acked 5
         event c
         commit 32 48
         acked 6
         wait 1000",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event a           │ publish #2
            leaveout 0 batch  │  (closed)
            leaveout 1 batch  │  (closed)
            leaveout 2 batch  │ restart: Refused(Native(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (closed)
            acked 3           │ published, write cursor 0/10+0/20:1
            event b           │ publish #4 (closed)
            leaveout 4 batch  │ 
            event a           │ publish #5 (closed)
            acked 5           │ published
            event c           │ publish #6
            commit 32 48      │ 
            acked 6           │ published
            wait 1000         │ 
        "#]],
    );
}

/// A sink that refuses one record knows which: the events in flight beside it stay in flight.
#[test]
fn event_that_the_sink_refuses_is_left_out_while_others_are_in_flight() {
    check(
        "start 16
         begin 32
         event a
         event b
         leaveout 1
         event c
         leaveout 2
         acked 0
         event d
         commit 32 48
         acked 3",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            leaveout 1        │ 
            event c           │ publish #2
            leaveout 2        │ 
            acked 0           │ published, write cursor 0/10+0/20:3
            event d           │ publish #3
            commit 32 48      │ 
            acked 3           │ published
        "#]],
    );
}

/// The stream is repeated from before an event that was left out, which is then decided again.
#[test]
fn event_that_was_left_out_is_repeated_after_an_unknown_outcome_before_it() {
    check(
        "start 16
         begin 32
         event a
         event b
         leaveout 1
         unknown 0
         leaveout 1
         start 16
         begin 32
         event a
         event b
         leaveout 3
         acked 2
         commit 32 48",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            leaveout 1        │ 
            unknown 0         │ restart: Unknown
            leaveout 1        │ 
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2
            event b           │ publish #3
            leaveout 3        │ 
            acked 2           │ published, write cursor 0/10+0/20:2
            commit 32 48      │ 
        "#]],
    );
}
