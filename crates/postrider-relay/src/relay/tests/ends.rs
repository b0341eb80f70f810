//! The end of a relay: poison, drain, and a stream that is out of order.

use super::{check, transcript};
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
            poison            │  (closed)
            acked 0           │ published, write cursor 0/30 (closed)
            written           │ confirm 0/30, halt: no aggregate id (closed)
        "#]],
    );
}

#[test]
fn refused_record_halts_with_the_message_of_the_driver() {
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
            nottaken 1        │  (closed)
            acked 0           │ published, write cursor 0/10+0/20:1 (closed)
            written           │ halt: no such partition (closed)
        "#]],
    );
}

#[test]
fn event_refused_by_the_sink_halts_and_nothing_behind_it_is_published() {
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
            toolarge 1        │  (closed)
            acked 0           │ published, write cursor 0/10+0/20:1 (closed)
            written           │ halt: the event at position 0/20:1 can't be published: the record has 9 bytes, the destination takes 8 (closed)
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
            drain             │  (closed)
            acked 1           │ published (closed)
            acked 0           │ published, write cursor 0/10+0/20:2 (closed)
            written           │ drained (closed)
            acked 0           │  (closed)
        "#]],
    );
}

#[test]
fn drain_ends_when_the_connection_is_lost() {
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
            drain             │  (closed)
            lost              │ drained (closed)
        "#]],
    );
}

#[test]
fn impossible_sequence_stops_the_relay() {
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
            begin 40          │ halt: the server sent the stream out of order: transaction 0/28 begins inside transaction 0/20 (closed)
            acked 0           │  (closed)
            written           │  (closed)
        "#]],
    );
}

/// Only after a connection was lost is a transaction repeated. Within a connection it is another one with an offset
/// that was used before, and to skip it would lose it.
#[test]
fn transaction_below_the_end_of_the_one_before_stops_the_relay() {
    for (first, second) in [("32", "32"), ("32", "40"), ("8", "8")] {
        let end = if first == "8" { "12" } else { "48" };
        let script = format!(
            "start 16\nbegin {first}\nevent a\ncommit {first} {end}\nbegin {second}\nevent b\n"
        );
        let all = transcript(&script);
        assert!(all.contains("halt: the server sent the stream out of order"), "{all}");
        assert!(!all.contains("publish #1"), "{all}");
    }
    let all = transcript(
        "start 16\nbegin 32\nevent a\ncommit 32 48\nbegin 48\nevent b\ncommit 48 64\n\
         lost\nstart 16\nbegin 32\nevent a\ncommit 32 48\nbegin 48\nevent b\ncommit 48 64\nbegin 64\nevent c\n",
    );
    assert!(!all.contains("halt"), "repeated after a lost connection: {all}");
}

#[test]
fn interrupted_transaction_that_is_not_repeated_stops_the_relay() {
    check(
        "resume 16 32 2
         begin 40
         written",
        &expect![[r#"
            resume 16 32 2    │ confirm 0/10
            begin 40          │ halt: the server sent the stream out of order: transaction 0/28 commits below 0/20, which was passed before (closed)
            written           │  (closed)
        "#]],
    );
}

/// The relay halts when the poison is repeated, after everything before it is published.
#[test]
fn poison_does_not_halt_while_an_earlier_event_is_uncertain() {
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
            poison            │  (closed)
            unknown 0         │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2
            poison            │  (closed)
            lost              │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #4
            poison            │  (closed)
            acked 4           │ published, write cursor 0/10+0/20:1 (closed)
            written           │ halt: no aggregate id (closed)
        "#]],
    );
}

#[test]
fn another_owner_ends_a_drain_and_a_halt_at_once() {
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
            drain             │  (closed)
            acked 0           │ published, write cursor 0/10+0/20:1 (closed)
            taken             │ restart: SlotTaken, drained (closed)
        "#]],
    );
}

/// A broken sink reports nothing more, so the halt is returned at once.
#[test]
fn halt_of_a_broken_sink_does_not_wait_for_its_reports() {
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
            unfit             │  (closed)
            broken            │ halt: no reader (closed)
        "#]],
    );
}

#[test]
fn change_outside_a_transaction_stops_the_relay() {
    check(
        "start 16\nevent a",
        &expect![[r#"
        start 16          │ confirm 0/10
        event a           │ halt: the server sent the stream out of order: a change was received outside a transaction (closed)
    "#]],
    );
}

/// This is not the same history: the resolved changes belonged to another transaction.
#[test]
fn repeated_transaction_with_fewer_changes_stops_the_relay() {
    check(
        "resume 16 96 2
         begin 96
         event a
         commit 96 112",
        &expect![[r#"
            resume 16 96 2    │ confirm 0/10
            begin 96          │ 
            event a           │ 
            commit 96 112     │ halt: the server sent the stream out of order: transaction 0/60 has fewer changes than when it was received before (closed)
        "#]],
    );
}
