//! Batches that a broker refuses because of one event, and events that are overtaken meanwhile.

use super::check_parking;
use expect_test::expect;

#[test]
fn broker_refusal_means_a_batch_and_the_refused_event_is_found_alone() {
    check_parking(
        "start 16
         begin 32
         event a
         event b
         event a
         refused 0
         acked 2
         refused 1
         start 16
         begin 32
         event a
         refused 3
         broken
         start 16
         begin 32
         event a
         event b
         acked 5
         event a
         event c
         commit 32 48
         parked
         parked
         acked 7",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event a           │ publish #2
            refused 0         │  (closed)
            acked 2           │ published (closed)
            refused 1         │ restart: Refused(Native(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (closed)
            refused 3         │ restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 16          │ 
            begin 32          │ 
            event a           │ park #4 waiting 1000 overtaken by 0/20:2, write 1 rows [] (closed)
            event b           │ publish #5 (closed)
            acked 5           │ published
            event a           │ park #6 behind 0
            event c           │ publish #7
            commit 32 48      │ 
            parked            │ write 1 rows [], write cursor 0/10+0/20:2
            parked            │ 
            acked 7           │ published
        "#]],
    );
}

#[test]
fn refused_event_without_a_report_of_its_batch_is_reported_as_overtaken() {
    check_parking(
        "start 16
         begin 32
         event a
         event b
         event a
         refused 1
         acked 2
         broken
         start 16
         begin 32
         event a
         refused 3
         broken
         start 16
         begin 32
         event a
         refused 4
         broken
         start 16
         begin 32
         event a",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event a           │ publish #2
            refused 1         │  (closed)
            acked 2           │ published (closed)
            broken            │ restart: Refused(Native(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (closed)
            refused 3         │ restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 16          │ 
            begin 32          │ 
            event a           │ publish #4 (closed)
            refused 4         │ restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 16          │ 
            begin 32          │ 
            event a           │ park #5 waiting 1000 overtaken by 0/20:2, write 1 rows [] (closed)
        "#]],
    );
}

#[test]
fn accepted_event_of_a_refused_batch_is_reported_as_overtaken() {
    check_parking(
        "start 16
         begin 32
         event a
         event b
         event a
         refused 0
         refused 1
         acked 2
         start 16
         begin 32
         event a
         acked 3
         event b
         acked 4
         event a
         acked 5",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event a           │ publish #2
            refused 0         │  (closed)
            refused 1         │  (closed)
            acked 2           │ published, restart: Refused(Native(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (closed)
            acked 3           │ 0/20:0 overtaken by 0/20:2, published, write cursor 0/10+0/20:1
            event b           │ publish #4 (closed)
            acked 4           │ published
            event a           │ publish #5
            acked 5           │ published
        "#]],
    );
}

#[test]
fn late_acknowledgement_of_a_discarded_event_shows_that_it_has_overtaken() {
    check_parking(
        "start 16
         begin 32
         event a
         event a
         refused 0
         broken
         acked 1
         start 16
         begin 32
         event a
         refused 2
         broken
         start 16
         begin 32
         event a",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event a           │ publish #1
            refused 0         │  (closed)
            broken            │ restart: Refused(Native(10))
            acked 1           │ 
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2 (closed)
            refused 2         │ restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 16          │ 
            begin 32          │ 
            event a           │ park #3 waiting 1000 overtaken by 0/20:1, write 1 rows []
        "#]],
    );
}

/// Both events of `a` reached the broker in their order. Their reports come after the events were discarded.
#[test]
fn events_that_are_acknowledged_late_and_in_order_have_not_overtaken_each_other() {
    check_parking(
        "start 16
         begin 32
         event a
         event a
         event b
         refused 2
         broken
         acked 0
         acked 1
         start 16
         begin 32
         event a
         acked 3
         event a
         acked 4",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event a           │ publish #1
            event b           │ publish #2
            refused 2         │  (closed)
            broken            │ restart: Refused(Native(10))
            acked 0           │ 
            acked 1           │ 
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3
            acked 3           │ published, write cursor 0/10+0/20:1
            event a           │ publish #4 (closed)
            acked 4           │ published
        "#]],
    );
}

/// A refusal from before a start in another history is dropped. Otherwise it would cause a second restart.
#[test]
fn refusal_is_forgotten_with_the_history_it_was_of() {
    check_parking(
        "row 32 0 a waiting
         row 32 1 b waiting
         start 64
         refused t0
         row 32 0 a waiting
         row 32 1 b waiting
         promoted 64
         acked t2",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, attempt t1 0/20:1, confirm 0/40
            refused t0        │  (closed)
            promoted 64       │ restart: SlotTaken, attempt t2 0/20:0, attempt t3 0/20:1, confirm 0/40
            acked t2          │ released 0/20:0, write 0 rows [0/20:0 done]
        "#]],
    );
}
