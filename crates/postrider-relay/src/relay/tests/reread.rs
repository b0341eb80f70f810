//! The parked table as it is read by a start or after a lost connection.

use super::check_parking;
use expect_test::expect;

#[test]
fn row_that_may_be_committed_is_read_again_after_a_restart() {
    check_parking(
        "start 16
         begin 32
         event a
         nottaken 0
         event a
         event b
         broken
         row 32 0 a waiting
         row 32 1 a behind
         start 16
         begin 32
         event a
         event a
         event b
         written
         commit 32 48
         acked 5",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            event a           │ park #1 behind 0
            event b           │ publish #2
            broken            │ restart: SinkBroken
            start 16          │ 
            begin 32          │ 
            event a           │ write cursor 0/10+0/20:1
            event a           │ 
            event b           │ publish #5
            written           │ attempt t0 0/20:0
            commit 32 48      │ 
            acked 5           │ published
        "#]],
    );
}

#[test]
fn uncommitted_row_is_parked_again_after_a_restart() {
    check_parking(
        "start 16
         begin 32
         event a
         nottaken 0
         event a
         broken
         start 16
         begin 32
         event a
         nottaken 2
         event a
         commit 32 48
         parked
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            event a           │ park #1 behind 0
            broken            │ restart: SinkBroken
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2
            nottaken 2        │ park #2 waiting 1000, write 1 rows []
            event a           │ park #3 behind 0
            commit 32 48      │ 
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
        "#]],
    );
}

#[test]
fn lost_connection_writes_the_rows_again() {
    check_parking(
        "start 16
         begin 32
         event a
         nottaken 0
         commit 32 48
         lost
         start 16
         begin 32
         event a
         commit 32 48
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            nottaken 0        │ park #0 waiting 1000, write 1 rows []
            commit 32 48      │ 
            lost              │ 
            start 16          │ write 1 rows []
            begin 32          │ 
            event a           │ 
            commit 32 48      │ 
            parked            │ write cursor 0/30
        "#]],
    );
}

#[test]
fn skipped_row_prevents_its_event_from_being_published() {
    check_parking(
        "row 32 0 a skipped
         start 16
         begin 32
         event a
         event a
         commit 32 48
         acked 1",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ 
            event a           │ publish #1
            commit 32 48      │ 
            acked 1           │ published, write cursor 0/30
        "#]],
    );
}

/// Found by `sim`: the intake stayed closed for ever, because a row is attempted only after the stream has passed it.
#[test]
fn rows_that_the_stream_has_not_reached_again_do_not_close_the_intake() {
    check_parking(
        "row 32 1 a waiting
         row 32 2 a behind
         row 32 3 a behind
         row 32 4 a behind
         row 32 5 a behind
         start 16
         begin 32
         event b
         event a
         event a
         event a
         event a
         acked 0
         event a",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event b           │ publish #0
            event a           │ 
            event a           │ 
            event a           │ 
            event a           │ 
            acked 0           │ published, write cursor 0/10+0/20:5
            event a           │  (closed)
        "#]],
    );
}

/// Found by `sim`: an owner had skipped the event, published a later one, and died before the row status was committed.
#[test]
fn skip_request_is_carried_out_before_the_next_owner_attempts_the_event() {
    check_parking(
        "row 32 1 a waiting skip
         row 32 2 a behind
         start 48",
        &expect![[r#"
            start 48          │ attempt t0 0/20:2, write 0 rows [0/20:1 skipped], confirm 0/30
        "#]],
    );
}

/// The row status that removes a request may be in flight while the request is read again.
#[test]
fn request_that_is_read_twice_is_carried_out_once() {
    check_parking(
        "row 32 1 a dead
         start 48
         request 32 1 retry
         request 32 1 retry
         parked",
        &expect![[r#"
            start 48          │ confirm 0/30
            request 32 1 retry│ write 0 rows [0/20:1 again]
            request 32 1 retry│ 
            parked            │ attempt t0 0/20:1
        "#]],
    );
}
