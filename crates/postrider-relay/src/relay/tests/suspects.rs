//! Parked events that were in a refused batch: tried with nothing else in flight, once there is somewhere to go.

use super::{OnPoison, ParkingRules, Script, check_parking, rules};
use expect_test::expect;

#[test]
fn batch_refusal_counts_against_nobody_until_one_is_alone() {
    check_parking(
        "row 32 0 a waiting
         row 48 0 b waiting
         start 64
         refused t0
         refused t1
         row 32 0 a waiting
         row 48 0 b waiting
         start 64
         sounded t2
         sounded t3
         refused t4
         broken
         row 32 0 a waiting
         row 48 0 b waiting
         start 64
         sounded t6
         acked t7
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, try t1 0/30:0, confirm 0/40
            refused t0        │  (shut)
            refused t1        │ restart: Refused(Kafka(10))
            start 64          │ sound t2 0/20:0, sound t3 0/30:0
            sounded t2        │ try t4 0/20:0 (shut)
            sounded t3        │  (shut)
            refused t4        │ try t5 0/30:0, write 0 rows [0/20:0 waiting after 2] (shut)
            broken            │ restart: SinkBroken
            start 64          │ sound t6 0/30:0, write 0 rows [0/20:0 waiting after 2]
            sounded t6        │ try t7 0/30:0 (shut)
            acked t7          │ released 0/30:0
            parked            │ write 0 rows [0/30:0 done]
        "#]],
    );
}

/// A destination that nobody knows yet is no reason for the others to wait.
#[test]
fn suspect_without_a_destination_keeps_its_own_aggregate_waiting_alone() {
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
         sounded t2
         acked 2
         acked t3
         parked",
        &expect![[r#"
            start 64          │ try t0 0/20:0, confirm 0/40
            refused t0        │ restart: Refused(Kafka(10))
            broken            │ restart: SinkBroken
            start 64          │ sound t1 0/20:0
            begin 96          │ 
            event b           │ publish #0
            event a           │ park #1 behind 0, write 1 rows []
            notopic t1        │ 
            acked 0           │ published, write cursor 0/40+0/60:1
            wait 1000         │ sound t2 0/20:0
            event c           │ publish #2
            sounded t2        │  (shut)
            acked 2           │ published, try t3 0/20:0 (shut)
            acked t3          │ released 0/20:0
            parked            │ write 0 rows [0/20:0 done]
        "#]],
    );
}

/// Found by `sim`: the refusal of a batch with both in it was taken for the suspect's own.
#[test]
fn suspect_is_not_sent_beside_a_try() {
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
            start 32          │ try t0 0/10:0, confirm 0/20
            begin 48          │ 
            event a           │ publish #0
            event c           │ publish #1
            commit 48 64      │ 
            refused 0         │  (shut)
            refused 1         │  (shut)
            acked t0          │ released 0/10:0, restart: Refused(Kafka(10))
            broken            │ restart: SinkBroken
            start 32          │ try t1 0/10:1, write 0 rows [0/10:0 done]
            parked            │ 
            begin 48          │  (shut)
            acked t1          │ released 0/10:1, write 0 rows [0/10:1 done]
            event a           │ publish #2 (shut)
            parked            │  (shut)
            acked 2           │ published, write cursor 0/20+0/30:1
            event c           │ publish #3 (shut)
        "#]],
    );
}

/// A try of each is refused; none of their destinations answers then.
#[test]
fn destinations_are_asked_for_a_few_at_a_time() {
    let mut run = Script::new(ParkingRules { rows_max: 100, ..rules(OnPoison::BlockKey) });
    let start = |run: &mut Script| {
        (0..40).for_each(|n| run.line(&format!("row 32 {n} {n} waiting")));
        run.transcript.clear();
        run.line("start 64");
    };
    start(&mut run);
    assert_eq!(run.transcript.matches("try t").count(), 32);
    (0..32).for_each(|n| run.line(&format!("refused t{n}")));
    start(&mut run);
    assert_eq!(run.transcript.matches("sound t").count(), 32);
    assert_eq!(run.transcript.matches("try t").count(), 0);
    run.transcript.clear();
    run.line("notopic t32");
    assert_eq!(run.transcript.matches("try t").count(), 8, "{}", run.transcript);
}
