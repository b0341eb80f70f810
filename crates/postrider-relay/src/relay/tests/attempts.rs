//! Attempts of parked events: when, how often, and what unblocks their aggregates.

use super::check_parking;
use expect_test::expect;

#[test]
fn event_with_a_stale_destination_is_attempted_at_once_and_its_first_refusal_is_counted() {
    check_parking(
        "start 16
         begin 32
         event a
         stale 0
         event a
         event b
         commit 32 48
         acked 2
         parked
         parked
         written
         toolarge t0
         parked",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            stale 0           │ park #0 due 0, write 1 rows []
            event a           │ park #1 behind 0
            event b           │ publish #2
            commit 32 48      │ 
            acked 2           │ published
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            written           │ attempt t0 0/20:0
            toolarge t0       │ write 0 rows [0/20:0 waiting after 1]
            parked            │ 
        "#]],
    );
}

#[test]
fn head_is_attempted_with_growing_pauses_and_is_dead_after_the_last() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         toolarge t0
         parked
         wait 1999
         wait 1
         toolarge t1
         parked
         wait 100000",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            toolarge t0       │ write 0 rows [0/20:0 waiting after 2]
            parked            │ 
            wait 1999         │ 
            wait 1            │ attempt t1 0/20:0
            toolarge t1       │ write 0 rows [0/20:0 dead after 3]
            parked            │ 
            wait 100000       │ 
        "#]],
    );
}

#[test]
fn followers_are_published_in_order_and_the_lane_is_unblocked_once_every_status_is_committed() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         start 64
         acked t0
         begin 96
         event a
         acked t1
         parked
         parked
         written
         acked t2
         event a
         parked
         parked
         written
         acked t3
         parked
         event a
         event b
         commit 96 112",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            acked t0          │ released 0/20:0, attempt t1 0/20:1, write 0 rows [0/20:0 done]
            begin 96          │ 
            event a           │ park #0 behind 0
            acked t1          │ released 0/20:1
            parked            │ write 1 rows [0/20:1 done]
            parked            │ write cursor 0/40+0/60:1
            written           │ attempt t2 0/60:0
            acked t2          │ released 0/60:0, write 0 rows [0/60:0 done]
            event a           │ park #1 behind 0
            parked            │ write 1 rows []
            parked            │ write cursor 0/40+0/60:2
            written           │ attempt t3 0/60:1
            acked t3          │ released 0/60:1, write 0 rows [0/60:1 done]
            parked            │ 
            event a           │ publish #2
            event b           │ publish #3
            commit 96 112     │ 
        "#]],
    );
}

#[test]
fn nothing_is_attempted_before_the_cursor_row_has_passed_it() {
    check_parking(
        "row 32 1 a waiting
         start 16
         begin 32
         event a
         event a
         commit 32 48
         parked
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ park #0 behind 0, write 1 rows []
            event a           │ 
            commit 32 48      │ 
            parked            │ write cursor 0/30
            written           │ attempt t0 0/20:0, confirm 0/30
        "#]],
    );
}

#[test]
fn missing_topic_counts_no_attempt() {
    check_parking(
        "row 32 0 a waiting
         start 64
         notopic t0
         wait 999
         wait 1
         acked t1",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            notopic t0        │ 
            wait 999          │ 
            wait 1            │ attempt t1 0/20:0
            acked t1          │ released 0/20:0, write 0 rows [0/20:0 done]
        "#]],
    );
}

#[test]
fn deleted_row_unblocks_its_lane() {
    check_parking(
        "row 32 0 a waiting
         start 64
         missing t0
         begin 96
         event a
         commit 96 112",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            missing t0        │ 
            begin 96          │ 
            event a           │ publish #0
            commit 96 112     │ 
        "#]],
    );
}

#[test]
fn attempt_in_flight_survives_the_connection_and_its_status_is_written_later() {
    check_parking(
        "row 32 0 a waiting
         start 64
         lost
         acked t0
         row 32 0 a waiting
         start 64
         begin 96
         event a
         parked
         parked
         written
         acked t1",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            lost              │ 
            acked t0          │ released 0/20:0
            start 64          │ write 0 rows [0/20:0 done]
            begin 96          │ 
            event a           │ park #0 behind 0
            parked            │ write 1 rows []
            parked            │ write cursor 0/40+0/60:1
            written           │ attempt t1 0/60:0
            acked t1          │ released 0/60:0, write 0 rows [0/60:0 done]
        "#]],
    );
}

#[test]
fn drain_waits_for_attempts_and_their_row_status() {
    check_parking(
        "row 32 0 a waiting
         start 64
         drain
         acked t0
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            drain             │  (closed)
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done] (closed)
            parked            │ drained (closed)
        "#]],
    );
}

/// Found by `sim`: such a head was published and its row set to done. After a crash the events before it were repeated
/// and the head was not, so that its aggregate ended with an older event.
#[test]
fn head_is_not_attempted_while_a_restart_can_repeat_events_before_it() {
    check_parking(
        "start 16
         begin 32
         event a
         event a
         nottaken 1
         commit 32 48
         acked 0
         parked
         wait 1000
         written
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event a           │ publish #1
            nottaken 1        │ park #1 waiting 1000, write 1 rows []
            commit 32 48      │ 
            acked 0           │ published, write cursor 0/10+0/20:1
            parked            │ 
            wait 1000         │ 
            written           │ write cursor 0/30
            written           │ attempt t0 0/20:1, confirm 0/30
        "#]],
    );
}

/// Found by `sim`: the row statuses were never written, and the drain lasted until its time was over.
#[test]
fn drain_with_a_broken_producer_still_writes_its_row_status() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 b waiting
         start 64
         drain
         acked t0
         toolarge t1
         broken
         parked
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, attempt t1 0/20:1, confirm 0/40
            drain             │  (closed)
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done] (closed)
            toolarge t1       │  (closed)
            broken            │  (closed)
            parked            │ write 0 rows [0/20:1 waiting after 2] (closed)
            parked            │ drained (closed)
        "#]],
    );
}

#[test]
fn deleted_dead_event_unblocks_its_aggregate() {
    check_parking(
        "row 32 0 a dead
         row 32 1 a behind
         row 32 2 b waiting
         start 64
         deleted 32 2
         deleted 32 0
         begin 96
         event b
         acked t1
         event a",
        &expect![[r#"
            start 64          │ attempt t0 0/20:2, confirm 0/40
            deleted 32 2      │ 
            deleted 32 0      │ attempt t1 0/20:1
            begin 96          │ 
            event b           │ park #0 behind 0, write 1 rows []
            acked t1          │ released 0/20:1
            event a           │ park #1 behind 0
        "#]],
    );
}

/// Another session has locked the first row. Its status is written again a second later, and meanwhile no other event
/// of its aggregate is attempted. The status of the other aggregate is committed, which unblocks it.
#[test]
fn status_of_a_locked_row_is_written_later_and_blocks_only_its_aggregate() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         row 32 2 b waiting
         start 64
         acked t0
         acked t1
         parked 32 0
         parked
         begin 96
         event b
         event a
         acked 0
         parked
         written
         wait 999
         wait 1
         parked 32 0
         wait 1000
         parked
         acked t2
         parked
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, attempt t1 0/20:2, confirm 0/40
            acked t0          │ released 0/20:0, attempt t2 0/20:1, write 0 rows [0/20:0 done]
            acked t1          │ released 0/20:2
            parked 32 0       │ write 0 rows [0/20:2 done]
            parked            │ 
            begin 96          │ 
            event b           │ publish #0
            event a           │ park #1 behind 0, write 1 rows []
            acked 0           │ published, write cursor 0/40+0/60:1
            parked            │ 
            written           │ 
            wait 999          │ write cursor 0/40+0/60:2
            wait 1            │ write 0 rows [0/20:0 done]
            parked 32 0       │ 
            wait 1000         │ write 0 rows [0/20:0 done]
            parked            │ 
            acked t2          │ released 0/20:1, write 0 rows [0/20:1 done]
            parked            │ 
            parked            │ 
        "#]],
    );
}

/// The statuses of one aggregate are committed in order, also those that are decided while an earlier one is deferred.
#[test]
fn statuses_behind_a_deferred_one_stay_behind_it() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 a behind
         row 32 2 a behind
         row 32 3 b waiting
         start 64
         acked t0
         acked t2
         acked t1
         parked 32 0
         acked t3
         parked
         wait 1000
         parked 32 1 32 2
         wait 1000
         parked
         begin 96
         event a",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, attempt t1 0/20:3, confirm 0/40
            acked t0          │ released 0/20:0, attempt t2 0/20:1, write 0 rows [0/20:0 done]
            acked t2          │ released 0/20:1, attempt t3 0/20:2
            acked t1          │ released 0/20:3
            parked 32 0       │ write 0 rows [0/20:3 done]
            acked t3          │ released 0/20:2
            parked            │ 
            wait 1000         │ write 0 rows [0/20:0 done; 0/20:1 done; 0/20:2 done]
            parked 32 1 32 2  │ 
            wait 1000         │ write 0 rows [0/20:1 done; 0/20:2 done]
            parked            │ 
            begin 96          │ 
            event a           │ publish #0
        "#]],
    );
}

/// A drain ends when the deferred status is committed, and writes it once a second.
#[test]
fn drain_retries_a_deferred_status_once_a_second() {
    check_parking(
        "row 32 0 a waiting
         start 64
         acked t0
         parked 32 0
         drain
         wait 999
         wait 1
         parked 32 0
         wait 1000
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done]
            parked 32 0       │ 
            drain             │  (closed)
            wait 999          │  (closed)
            wait 1            │ write 0 rows [0/20:0 done] (closed)
            parked 32 0       │  (closed)
            wait 1000         │ write 0 rows [0/20:0 done] (closed)
            parked            │ drained (closed)
        "#]],
    );
}

/// The connection is lost while a status is deferred: the next session writes it at once.
#[test]
fn deferred_status_is_written_by_the_next_session() {
    check_parking(
        "row 32 0 a waiting
         start 64
         acked t0
         parked 32 0
         lost
         row 32 0 a waiting
         start 64
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done]
            parked 32 0       │ 
            lost              │ 
            start 64          │ write 0 rows [0/20:0 done]
            parked            │ 
        "#]],
    );
}
