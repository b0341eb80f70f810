//! How it ends: poison, drain, a stream that breaks its own order.

use super::check;
use expect_test::expect;

#[test]
fn poison_halts_once_all_before_it_is_resolved_and_confirmed() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         begin 48
         poison
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            begin 48          │ 
            poison            │  (shut)
            acked 0           │ published, write cursor 0/30 (shut)
            written           │ confirm 0/30, halt: no aggregate id (shut)
        "#]],
    );
}

#[test]
fn record_that_was_not_taken_halts_in_the_words_of_who_knows_it() {
    check(
        "start 16
         begin 32
         event a
         event a
         nottaken 1
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event a           │ publish #1
            nottaken 1        │  (shut)
            acked 0           │ published, write cursor 0/10+0/20:1 (shut)
            written           │ halt: no such partition (shut)
        "#]],
    );
}

#[test]
fn event_the_sink_will_not_take_halts_and_nothing_behind_it_is_published() {
    check(
        "start 16
         begin 32
         event a
         event a
         toolarge 1
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event a           │ publish #1
            toolarge 1        │  (shut)
            acked 0           │ published, write cursor 0/10+0/20:1 (shut)
            written           │ halt: the event at position 0/20:1 can't be published: the record has 9 bytes, the destination takes 8 (shut)
        "#]],
    );
}

#[test]
fn drain_waits_for_reports_and_the_last_row() {
    check(
        "start 16
         begin 32
         event a
         event b
         drain
         acked 1
         acked 0
         written
         acked 0",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            drain             │  (shut)
            acked 1           │ published (shut)
            acked 0           │ published, write cursor 0/10+0/20:2 (shut)
            written           │ drained (shut)
            acked 0           │  (shut)
        "#]],
    );
}

#[test]
fn drain_ends_when_the_database_is_gone() {
    check(
        "start 16
         begin 32
         event a
         drain
         lost",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            drain             │  (shut)
            lost              │ drained (shut)
        "#]],
    );
}

#[test]
fn sequence_that_cannot_be_stops_the_relay() {
    check(
        "start 16
         begin 32
         event a
         begin 40
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            begin 40          │ halt: the stream broke its own order: transaction 0/28 begins inside transaction 0/20 (shut)
            acked 0           │  (shut)
            written           │  (shut)
        "#]],
    );
}

#[test]
fn cut_transaction_that_does_not_come_again_stops_the_relay() {
    check(
        "resume 16 32 2
         begin 40
         written",
        &expect![[r#"
            resume 16 32 2    │ confirm 0/10
            begin 40          │ halt: the stream broke its own order: transaction 0/28 commits below 0/20, which was passed before (shut)
            written           │  (shut)
        "#]],
    );
}

/// It halts again when it comes again, and by then all before it is published.
#[test]
fn poison_does_not_halt_while_what_is_before_it_is_in_doubt() {
    check(
        "start 16
         begin 32
         event a
         poison
         unknown 0
         start 16
         begin 32
         event a
         poison
         lost
         start 16
         begin 32
         event a
         poison
         acked 4
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            poison            │  (shut)
            unknown 0         │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2
            poison            │  (shut)
            lost              │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #4
            poison            │  (shut)
            acked 4           │ published, write cursor 0/10+0/20:1 (shut)
            written           │ halt: no aggregate id (shut)
        "#]],
    );
}

#[test]
fn row_that_is_not_ours_ends_a_drain_and_a_halt_at_once() {
    check(
        "start 16
         begin 32
         event a
         drain
         acked 0
         taken",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            drain             │  (shut)
            acked 0           │ published, write cursor 0/10+0/20:1 (shut)
            taken             │ restart: SlotTaken, drained (shut)
        "#]],
    );
}

/// A sink that can't be used any more reports on nothing, and the halt says so at once.
#[test]
fn halt_of_a_sink_that_is_gone_does_not_wait_for_its_reports() {
    check(
        "start 16
         begin 32
         event a
         unfit
         broken",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            unfit             │  (shut)
            broken            │ halt: no reader (shut)
        "#]],
    );
}

#[test]
fn change_outside_a_transaction_stops_the_relay() {
    check(
        "start 16\nevent a",
        &expect![[r#"
        start 16          │ confirm 0/10
        event a           │ halt: the stream broke its own order: a change came that belongs to no transaction (shut)
    "#]],
    );
}

/// Not the same history: what was resolved of it was another transaction.
#[test]
fn transaction_that_comes_again_shorter_stops_the_relay() {
    check(
        "resume 16 96 2
         begin 96
         event a
         commit 96 112",
        &expect![[r#"
            resume 16 96 2    │ confirm 0/10
            begin 96          │ 
            event a           │ 
            commit 96 112     │ halt: the stream broke its own order: transaction 0/60 has fewer changes than when it came before (shut)
        "#]],
    );
}
