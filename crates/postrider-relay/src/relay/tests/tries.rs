//! Parked events that are tried again: when, how often, and what frees their aggregates.

use super::check_parking;
use expect_test::expect;

#[test]
fn doubted_event_is_tried_at_once_and_its_first_refusal_is_its_first_attempt() {
    check_parking(
        "start 16
         begin 32
         event a
         doubted 0
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
            doubted 0         │ park #0 due 0, write 1 rows []
            event a           │ park #1 behind 0
            event b           │ publish #2
            commit 32 48      │ 
            acked 2           │ published
            parked            │ write 1 rows [], write cursor 0/10+0/20:1
            parked            │ 
            written           │ try t0 0/20:0
            toolarge t0       │ write 0 rows [0/20:0 waiting after 1]
            parked            │ 
        "#]],
    );
}

#[test]
fn head_is_tried_with_growing_pauses_and_is_dead_after_the_last() {
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
            start 64          │ try t0 0/20:0, confirm 0/40
            toolarge t0       │ write 0 rows [0/20:0 waiting after 2]
            parked            │ 
            wait 1999         │ 
            wait 1            │ try t1 0/20:0
            toolarge t1       │ write 0 rows [0/20:0 dead after 3]
            parked            │ 
            wait 100000       │ 
        "#]],
    );
}

#[test]
fn followers_go_in_order_and_the_lane_is_live_when_all_marks_are_committed() {
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
            start 64          │ try t0 0/20:0, confirm 0/40
            acked t0          │ released 0/20:0, try t1 0/20:1, write 0 rows [0/20:0 done]
            begin 96          │ 
            event a           │ park #0 behind 0
            acked t1          │ released 0/20:1
            parked            │ write 1 rows [0/20:1 done]
            parked            │ write cursor 0/40+0/60:1
            written           │ try t2 0/60:0
            acked t2          │ released 0/60:0, write 0 rows [0/60:0 done]
            event a           │ park #1 behind 0
            parked            │ write 1 rows []
            parked            │ write cursor 0/40+0/60:2
            written           │ try t3 0/60:1
            acked t3          │ released 0/60:1, write 0 rows [0/60:1 done]
            parked            │ 
            event a           │ publish #2
            event b           │ publish #3
            commit 96 112     │ 
        "#]],
    );
}

#[test]
fn nothing_is_tried_before_the_cursor_row_has_passed_it() {
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
            written           │ try t0 0/20:0, confirm 0/30
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
            start 64          │ try t0 0/20:0, confirm 0/40
            notopic t0        │ 
            wait 999          │ 
            wait 1            │ try t1 0/20:0
            acked t1          │ released 0/20:0, write 0 rows [0/20:0 done]
        "#]],
    );
}

#[test]
fn row_deleted_by_hand_frees_its_lane() {
    check_parking(
        "row 32 0 a waiting
         start 64
         gone t0
         begin 96
         event a
         commit 96 112",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            gone t0           │ 
            begin 96          │ 
            event a           │ publish #0
            commit 96 112     │ 
        "#]],
    );
}

#[test]
fn try_in_flight_outlives_the_connection_and_its_mark_is_written_later() {
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
            start 64          │ try t0 0/20:0, confirm 0/40
            lost              │ 
            acked t0          │ released 0/20:0
            start 64          │ write 0 rows [0/20:0 done]
            begin 96          │ 
            event a           │ park #0 behind 0
            parked            │ write 1 rows []
            parked            │ write cursor 0/40+0/60:1
            written           │ try t1 0/60:0
            acked t1          │ released 0/60:0, write 0 rows [0/60:0 done]
        "#]],
    );
}

#[test]
fn drain_waits_for_tries_and_their_marks() {
    check_parking(
        "row 32 0 a waiting
         start 64
         drain
         acked t0
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            drain             │  (shut)
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done] (shut)
            parked            │ drained (shut)
        "#]],
    );
}

/// Found by `sim`: such a head was published and marked as done, and after a crash the events before it came again and
/// it did not, so that its aggregate ended with an older event.
#[test]
fn head_is_not_tried_before_a_restart_can_not_bring_again_what_stands_before_it() {
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
            written           │ try t0 0/20:1, confirm 0/30
        "#]],
    );
}

/// Found by `sim`: the marks were never written, and the drain took all the time it was given.
#[test]
fn drain_whose_producer_breaks_still_writes_its_marks() {
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
            start 64          │ try t0 0/20:0, try t1 0/20:1, confirm 0/40
            drain             │  (shut)
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done] (shut)
            toolarge t1       │  (shut)
            broken            │  (shut)
            parked            │ write 0 rows [0/20:1 waiting after 2] (shut)
            parked            │ drained (shut)
        "#]],
    );
}

#[test]
fn dead_event_that_is_deleted_lets_its_aggregate_go_on() {
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
            start 64          │ try t0 0/20:2, confirm 0/40
            deleted 32 2      │ 
            deleted 32 0      │ try t1 0/20:1
            begin 96          │ 
            event b           │ park #0 behind 0, write 1 rows []
            acked t1          │ released 0/20:1
            event a           │ park #1 behind 0
        "#]],
    );
}

/// A session holds the row of the first: what became of it is written again a second later, and meanwhile nothing more
/// of its aggregate is tried; the other aggregate's mark is committed, and it is live again.
#[test]
fn mark_of_a_locked_row_comes_later_and_keeps_its_own_aggregate_alone() {
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
            start 64          │ try t0 0/20:0, try t1 0/20:2, confirm 0/40
            acked t0          │ released 0/20:0, try t2 0/20:1, write 0 rows [0/20:0 done]
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

/// Marks of one aggregate are committed in order, also those that are made while an earlier one waits.
#[test]
fn marks_behind_one_that_waits_stay_behind_it() {
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
            start 64          │ try t0 0/20:0, try t1 0/20:3, confirm 0/40
            acked t0          │ released 0/20:0, try t2 0/20:1, write 0 rows [0/20:0 done]
            acked t2          │ released 0/20:1, try t3 0/20:2
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

/// A drain ends when what waits is committed, and asks for it once a second.
#[test]
fn drain_asks_for_a_mark_that_waits_once_a_second() {
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
            start 64          │ try t0 0/20:0, confirm 0/40
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done]
            parked 32 0       │ 
            drain             │  (shut)
            wait 999          │  (shut)
            wait 1            │ write 0 rows [0/20:0 done] (shut)
            parked 32 0       │  (shut)
            wait 1000         │ write 0 rows [0/20:0 done] (shut)
            parked            │ drained (shut)
        "#]],
    );
}

/// The connection is lost while a mark waits: the next session writes it at once.
#[test]
fn mark_that_waits_is_written_by_the_next_session() {
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
            start 64          │ try t0 0/20:0, confirm 0/40
            acked t0          │ released 0/20:0, write 0 rows [0/20:0 done]
            parked 32 0       │ 
            lost              │ 
            start 64          │ write 0 rows [0/20:0 done]
            parked            │ 
        "#]],
    );
}
