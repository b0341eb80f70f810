//! Which events are published, and when their positions are confirmed.

use super::{OnPoison, Script, check, rules};
use expect_test::expect;

#[test]
fn position_is_confirmed_only_after_the_report_and_the_cursor_row() {
    check(
        "start 16
         begin 32
         event a
         event b
         commit 32 48
         acked 1
         acked 0
         written
         begin 48
         event a
         commit 48 64
         acked 2
         wait 99
         wait 1
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            commit 32 48      │ 
            acked 1           │ published
            acked 0           │ published, write cursor 0/30
            written           │ confirm 0/30
            begin 48          │ 
            event a           │ publish #2
            commit 48 64      │ 
            acked 2           │ published
            wait 99           │ 
            wait 1            │ write cursor 0/40
            written           │ confirm 0/40
        "#]],
    );
}

#[test]
fn transaction_of_any_size_streams_through_and_its_acked_part_is_kept() {
    check(
        "start 16
         begin 96
         event a
         event b
         acked 0
         written
         event c
         acked 1
         wait 1000
         written
         lost
         start 16
         begin 96
         event a
         event b
         event c
         event d
         acked 2
         acked 3
         commit 96 112
         wait 1000
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 96          │ 
            event a           │ publish #0
            event b           │ publish #1
            acked 0           │ published, write cursor 0/10+0/60:1
            written           │ 
            event c           │ publish #2
            acked 1           │ published
            wait 1000         │ write cursor 0/10+0/60:2
            written           │ 
            lost              │ 
            start 16          │ 
            begin 96          │ 
            event a           │ 
            event b           │ 
            event c           │ 
            event d           │ publish #3
            acked 2           │ published
            acked 3           │ published
            commit 96 112     │ 
            wait 1000         │ write cursor 0/70
            written           │ confirm 0/70
        "#]],
    );
}

#[test]
fn full_window_closes_the_intake_and_three_quarters_open_it() {
    check(
        "start 16
         begin 32
         event a
         event b
         event c
         event d
         acked 3
         acked 2
         event e 2000
         acked 0
         acked 1
         acked 4",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event c           │ publish #2
            event d           │ publish #3 (closed)
            acked 3           │ published
            acked 2           │ published
            event e 2000      │ publish #4 (closed)
            acked 0           │ published, write cursor 0/10+0/20:1 (closed)
            acked 1           │ published (closed)
            acked 4           │ published
        "#]],
    );
}

#[test]
fn idle_outbox_follows_the_keepalives_without_following_its_own_rows() {
    check(
        "start 16
         keepalive 300
         keepalive 5000
         written
         keepalive 5300
         wait 60000
         keepalive 99999
         written
         wait 100
         keepalive 199999
         wait 1900
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            keepalive 300     │ 
            keepalive 5000    │ write cursor 0/1388
            written           │ confirm 0/1388
            keepalive 5300    │ 
            wait 60000        │ 
            keepalive 99999   │ write cursor 0/1869F
            written           │ confirm 0/1869F
            wait 100          │ 
            keepalive 199999  │ 
            wait 1900         │ write cursor 0/30D3F
            written           │ confirm 0/30D3F
        "#]],
    );
}

#[test]
fn keepalive_inside_a_transaction_confirms_nothing() {
    check(
        "start 16
         begin 9000
         event a
         keepalive 8990
         acked 0
         written
         commit 9000 9100
         wait 1000
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 9000        │ 
            event a           │ publish #0
            keepalive 8990    │ 
            acked 0           │ published, write cursor 0/10+0/2328:1
            written           │ 
            commit 9000 9100  │ 
            wait 1000         │ write cursor 0/238C
            written           │ confirm 0/238C
        "#]],
    );
}

#[test]
fn event_not_taken_by_a_full_sink_is_passed_again_and_in_flight_once() {
    check(
        "start 16
         begin 32
         event a
         event b
         busy 1
         lost
         start 16
         begin 32
         event a
         event b
         commit 32 48
         acked 1
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            busy 1            │ 
            lost              │ 
            start 16          │ 
            begin 32          │ 
            event a           │ 
            event b           │ publish #1
            commit 32 48      │ 
            acked 1           │ published
            acked 0           │ published, write cursor 0/30
            written           │ confirm 0/30
        "#]],
    );
}

#[test]
fn drain_does_not_wait_for_an_event_that_the_sink_never_took() {
    check(
        "start 16
         begin 32
         event a
         event b
         busy 1
         drain
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            busy 1            │ 
            drain             │  (closed)
            acked 0           │ published, write cursor 0/10+0/20:1 (closed)
            written           │ drained (closed)
        "#]],
    );
}

/// A crash repeats no more than that number, however long the interval is.
#[test]
fn row_is_due_when_ten_thousand_events_were_published_since_the_last() {
    let mut run = Script::new(rules(OnPoison::BlockKey), None);
    for line in ["start 16", "begin 32", "event a", "acked 0", "written"] {
        run.line(line);
    }
    run.transcript.clear();
    for ticket in 1..10_000 {
        run.line("event a");
        run.line(&format!("acked {ticket}"));
    }
    assert!(!run.transcript.contains("cursor"));
    run.line("event a");
    run.line("acked 10000");
    assert!(run.transcript.ends_with("published, write cursor 0/10+0/20:10001\n"));
}

/// A crash repeats every event that the row does not cover, and a commit may take long.
#[test]
fn intake_closes_while_a_row_is_being_written_at_what_a_crash_may_repeat() {
    let mut run = Script::new(rules(OnPoison::BlockKey), None);
    run.lines(&["start 16", "begin 32"]);
    // Twice the number of events that makes a row due, and the maximum in flight.
    let taken_max = 20_004;
    for ticket in 0..taken_max {
        assert!(run.relay.intake_open(), "{ticket}");
        run.line("event a");
        run.line(&format!("acked {ticket}"));
    }
    assert!(!run.relay.intake_open());
    assert!(run.relay.waits_for().unwrap().contains("cursor row"));
    // The first row covered one event. The next row is due at once, and the intake is open while it is written.
    run.line("written");
    assert!(run.transcript.ends_with("write cursor 0/10+0/20:20004\n"));
    assert!(run.relay.intake_open());
}

#[test]
fn what_the_intake_waits_for_is_named() {
    let mut run = Script::new(rules(OnPoison::BlockKey), None);
    let waits_for = |run: &Script| run.relay.waits_for().unwrap_or("nothing");
    for line in ["start 16", "begin 32", "event a", "event b", "event c"] {
        run.line(line);
    }
    assert_eq!(waits_for(&run), "nothing");
    run.line("event d");
    assert!(waits_for(&run).contains("in_flight_events"));
    run.line("acked 0");
    run.line("acked 1");
    assert_eq!(waits_for(&run), "nothing");
    run.line("refused 2");
    assert!(waits_for(&run).contains("after the broker refused a batch"));
}

/// A cursor row that would pass an event without its row status is written a second later. Meanwhile events are
/// published, and no position is confirmed.
#[test]
fn deferred_row_stops_no_event_and_confirms_nothing() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         acked 0
         deferred
         wait 999
         begin 48
         event b
         commit 48 64
         acked 1
         wait 1
         deferred
         wait 1000
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ published, write cursor 0/30
            deferred          │ 
            wait 999          │ 
            begin 48          │ 
            event b           │ publish #1
            commit 48 64      │ 
            acked 1           │ published
            wait 1            │ write cursor 0/40
            deferred          │ 
            wait 1000         │ write cursor 0/40
            written           │ confirm 0/40
        "#]],
    );
}

/// A drain waits for the cursor row as long as it may, and does not write it more often.
#[test]
fn drain_retries_a_deferred_row_once_a_second() {
    check(
        "start 16
         begin 32
         event a
         commit 32 48
         acked 0
         deferred
         drain
         wait 500
         wait 500
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ published, write cursor 0/30
            deferred          │ 
            drain             │  (closed)
            wait 500          │  (closed)
            wait 500          │ write cursor 0/30 (closed)
            written           │ confirm 0/30, drained (closed)
        "#]],
    );
}
