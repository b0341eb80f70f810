//! Parked events that were in a refused batch: attempted with nothing else in flight, once their destination is known.

use super::{OnPoison, ParkingRules, Script, check_parking, rules};
use expect_test::expect;

#[test]
fn batch_refusal_counts_for_no_event_until_one_is_exclusive() {
    check_parking(
        "row 32 0 a waiting
         row 48 0 b waiting
         start 64
         refused t0
         refused t1
         row 32 0 a waiting
         row 48 0 b waiting
         start 64
         probed t2
         probed t3
         refused t4
         broken
         row 32 0 a waiting
         row 48 0 b waiting
         start 64
         probed t6
         acked t7
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, attempt t1 0/30:0, confirm 0/40
            refused t0        │  (closed)
            refused t1        │ restart: Refused(Native(10))
            start 64          │ probe t2 0/20:0, probe t3 0/30:0
            probed t2         │ attempt t4 0/20:0 (closed)
            probed t3         │  (closed)
            refused t4        │ attempt t5 0/30:0, write 0 rows [0/20:0 waiting after 2] (closed)
            broken            │ restart: SinkBroken
            start 64          │ probe t6 0/30:0, write 0 rows [0/20:0 waiting after 2]
            probed t6         │ attempt t7 0/30:0 (closed)
            acked t7          │ released 0/30:0
            parked            │ write 0 rows [0/30:0 done]
        "#]],
    );
}

/// Other events do not wait for an unknown destination.
#[test]
fn suspect_without_a_destination_blocks_only_its_aggregate() {
    check_parking(
        "row 32 0 a waiting
         start 64
         refused t0
         broken
         row 32 0 a waiting
         start 64
         begin 96
         event b
         event a
         notopic t1
         acked 0
         wait 1000
         event c
         probed t2
         acked 2
         acked t3
         parked",
        &expect![[r#"
            start 64          │ attempt t0 0/20:0, confirm 0/40
            refused t0        │ restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 64          │ probe t1 0/20:0
            begin 96          │ 
            event b           │ publish #0
            event a           │ park #1 behind 0, write 1 rows []
            notopic t1        │ 
            acked 0           │ published, write cursor 0/40+0/60:1
            wait 1000         │ probe t2 0/20:0
            event c           │ publish #2
            probed t2         │  (closed)
            acked 2           │ published, attempt t3 0/20:0 (closed)
            acked t3          │ released 0/20:0
            parked            │ write 0 rows [0/20:0 done]
        "#]],
    );
}

/// Found by `sim`: the refusal of a batch that contained both was counted for the suspect.
#[test]
fn suspect_is_not_sent_while_an_attempt_is_in_flight() {
    check_parking(
        "row 16 0 b waiting
         start 32
         begin 48
         event a
         event c
         commit 48 64
         refused 0
         refused 1
         acked t0
         broken
         row 16 0 b waiting
         row 16 1 d waiting
         start 32
         parked
         begin 48
         acked t1
         event a
         parked
         acked 2
         event c",
        &expect![[r#"
            start 32          │ attempt t0 0/10:0, confirm 0/20
            begin 48          │ 
            event a           │ publish #0
            event c           │ publish #1
            commit 48 64      │ 
            refused 0         │  (closed)
            refused 1         │  (closed)
            acked t0          │ released 0/10:0, restart: Refused(Native(10))
            broken            │ restart: SinkBroken
            start 32          │ attempt t1 0/10:1, write 0 rows [0/10:0 done]
            parked            │ 
            begin 48          │  (closed)
            acked t1          │ released 0/10:1, write 0 rows [0/10:1 done]
            event a           │ publish #2 (closed)
            parked            │  (closed)
            acked 2           │ published, write cursor 0/20+0/30:1
            event c           │ publish #3 (closed)
        "#]],
    );
}

/// An attempt of each is refused, and none of their destinations is known then.
#[test]
fn destinations_are_probed_a_few_at_a_time() {
    let mut run = Script::new(ParkingRules { rows_max: 100, ..rules(OnPoison::BlockKey) }, None);
    let start = |run: &mut Script| {
        (0..40).for_each(|n| run.line(&format!("row 32 {n} {n} waiting")));
        run.transcript.clear();
        run.line("start 64");
    };
    start(&mut run);
    assert_eq!(run.transcript.matches("attempt t").count(), 32);
    (0..32).for_each(|n| run.line(&format!("refused t{n}")));
    start(&mut run);
    assert_eq!(run.transcript.matches("probe t").count(), 32);
    assert_eq!(run.transcript.matches("attempt t").count(), 0);
    run.transcript.clear();
    run.line("notopic t32");
    assert_eq!(run.transcript.matches("attempt t").count(), 8, "{}", run.transcript);
}
