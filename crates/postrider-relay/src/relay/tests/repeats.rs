//! Repeated streams: after a lost connection, a restart, a refusal, and another owner of the slot.

use super::check;
use expect_test::expect;

#[test]
fn restart_skips_what_the_cursor_row_contains() {
    check(
        "resume 16 96 2
         begin 32
         event z
         commit 32 48
         begin 96
         event a
         skip
         event c
         commit 96 112
         acked 0
         written",
        &expect![[r#"
            resume 16 96 2    │ confirm 0/10
            begin 32          │ 
            event z           │ 
            commit 32 48      │ 
            begin 96          │ 
            event a           │ 
            skip              │ 
            event c           │ publish #0
            commit 96 112     │ 
            acked 0           │ published, write cursor 0/70
            written           │ confirm 0/70
        "#]],
    );
}

#[test]
fn lost_connection_repeats_nothing_in_flight() {
    check(
        "start 16
         begin 32
         event a
         event b
         commit 32 48
         lost
         start 16
         begin 32
         event a
         event b
         commit 32 48
         keepalive 48
         acked 0
         acked 1
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            commit 32 48      │ 
            lost              │ 
            start 16          │ 
            begin 32          │ 
            event a           │ 
            event b           │ 
            commit 32 48      │ 
            keepalive 48      │ 
            acked 0           │ published, write cursor 0/10+0/20:1
            acked 1           │ published
            written           │ 
        "#]],
    );
}

#[test]
fn unknown_report_discards_everything_and_restarts_behind_the_last_acked() {
    check(
        "start 16
         begin 32
         event a
         event b
         event c
         acked 0
         written
         unknown 1
         acked 2
         start 16
         begin 32
         event a
         event b
         event c
         commit 32 48
         acked 3
         acked 4
         wait 1000
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event c           │ publish #2
            acked 0           │ published, write cursor 0/10+0/20:1
            written           │ 
            unknown 1         │ restart: Unknown
            acked 2           │ 
            start 16          │ 
            begin 32          │ 
            event a           │ 
            event b           │ publish #3
            event c           │ publish #4
            commit 32 48      │ 
            acked 3           │ published
            acked 4           │ published
            wait 1000         │ write cursor 0/30
            written           │ confirm 0/30
        "#]],
    );
}

#[test]
fn refused_batch_is_sent_again_one_event_at_a_time_to_find_the_refused_event() {
    check(
        "start 16
         begin 32
         event a
         event b
         event c
         refused 0
         refused 1
         broken
         start 16
         begin 32
         event a
         acked 3
         written
         event b
         refused 4
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event c           │ publish #2
            refused 0         │  (closed)
            refused 1         │  (closed)
            broken            │ restart: Refused(Native(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (closed)
            acked 3           │ published, write cursor 0/10+0/20:1
            written           │ 
            event b           │ publish #4 (closed)
            refused 4         │ halt: the event at position 0/20:1 can't be published: the broker refused it with code 10 (closed)
            written           │  (closed)
        "#]],
    );
}

#[test]
fn another_owner_of_the_slot_discards_what_is_in_flight() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         taken
         acked 0
         start 16
         begin 32
         event a
         commit 32 48
         acked 1
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            taken             │ restart: SlotTaken
            acked 0           │ 
            start 16          │ 
            begin 32          │ 
            event a           │ publish #1
            commit 32 48      │ 
            acked 1           │ published, write cursor 0/30
            written           │ confirm 0/30
        "#]],
    );
}

#[test]
fn destination_refused_while_running_restarts_from_the_cursor() {
    check(
        "start 16
         begin 32
         event a
         notopic 0",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            notopic 0         │ restart: Unknown
        "#]],
    );
}

#[test]
fn row_of_another_owner_replaces_own_progress_and_events_in_flight() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         lost
         start 48
         acked 0
         start 48
         begin 48
         event a
         commit 48 64
         acked 1
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            lost              │ 
            start 48          │ restart: SlotTaken, confirm 0/30
            acked 0           │ 
            start 48          │ 
            begin 48          │ 
            event a           │ publish #1
            commit 48 64      │ 
            acked 1           │ published, write cursor 0/40
            written           │ confirm 0/40
        "#]],
    );
}

/// Events that were published and are lost with the old primary leave a gap in the positions, which the new primary
/// fills with new events.
#[test]
fn after_a_failover_no_remembered_position_hides_a_new_event() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         acked 0
         written
         lost
         promoted 16
         begin 24
         event new
         commit 24 40
         acked 1
         wait 1000
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ published, write cursor 0/30
            written           │ confirm 0/30
            lost              │ 
            promoted 16       │ confirm 0/10
            begin 24          │ 
            event new         │ publish #1
            commit 24 40      │ 
            acked 1           │ published
            wait 1000         │ write cursor 0/28
            written           │ confirm 0/28
        "#]],
    );
}

#[test]
fn failover_with_events_in_flight_discards_them_first() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         lost
         promoted 16
         acked 0
         start 16
         begin 24
         event new",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            lost              │ 
            promoted 16       │ restart: SlotTaken, confirm 0/10
            acked 0           │ 
            start 16          │ 
            begin 24          │ 
            event new         │ publish #1
        "#]],
    );
}
