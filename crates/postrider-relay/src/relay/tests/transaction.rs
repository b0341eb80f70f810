//! A sink that publishes in transactions: what its commit resolves, and what a start recovers.

use super::{
    OnPoison, Script, check_stopping_transactions, check_transactions, check_whole_transactions,
    row, rules, transaction_limits, transcript_of_transactions,
};
use crate::ack::Progress;
use crate::relay::{Effect, Input, ParkingRules, Recovered};
use expect_test::expect;
use postrider_core::event::Position;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::parked::Entry;
use postrider_core::record::Outcome;
use postrider_core::sink::{SinkProgress, TransactionLimits};
use postrider_core::store::Cursor;
use std::time::Duration;

/// Neither the report nor the time resolves an event.
#[test]
fn event_is_resolved_by_the_commit_of_its_transaction() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         event b
         commit 32 48
         acked 1
         wait 2000
         acked 0
         wait 2000
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            commit 32 48      │ 
            acked 1           │ 
            wait 2000         │  (closed)
            acked 0           │ commit sink 0/30 (closed)
            wait 2000         │  (closed)
            committed         │ published, published, write cursor 0/30
            written           │ confirm 0/30
        "#]],
    );
}

/// A bound closes the intake until the commit is answered.
#[test]
fn full_transaction_is_committed_before_the_next_event_is_taken() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         event b
         event c
         acked 0
         acked 1
         acked 2
         committed
         event d 600
         acked 3
         committed
         commit 32 48",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event c           │ publish #2 (closed)
            acked 0           │  (closed)
            acked 1           │  (closed)
            acked 2           │ commit sink 0/10+0/20:3 (closed)
            committed         │ published, published, published
            event d 600       │ publish #3 (closed)
            acked 3           │ commit sink 0/10+0/20:4 (closed)
            committed         │ published
            commit 32 48      │ 
        "#]],
    );
}

/// Nothing is published before the sink has said what it has. The stream, which begins at the cursor row, passes what
/// the last transaction has published.
#[test]
fn start_continues_behind_the_last_commit() {
    check_transactions(
        "start 16
         begin 32
         recovered 16 32 2
         written
         event a
         event b
         event c
         commit 32 48
         acked 0
         wait 20
         committed",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            begin 32          │  (closed)
            recovered 16 32 2 │ write cursor 0/10+0/20:2 (closed)
            written           │ 
            event a           │ 
            event b           │ 
            event c           │ publish #0
            commit 32 48      │ 
            acked 0           │ 
            wait 20           │ commit sink 0/30 (closed)
            committed         │ published
        "#]],
    );
}

/// The commit was of later transactions.
#[test]
fn start_passes_whole_transactions_below_the_last_commit() {
    check_transactions(
        "start 16
         begin 32
         recovered 64
         written
         event a
         commit 32 48
         begin 48
         event b
         commit 48 64
         begin 64
         event c
         commit 64 80
         acked 0
         wait 20
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            begin 32          │  (closed)
            recovered 64      │ write cursor 0/40 (closed)
            written           │ confirm 0/40
            event a           │ 
            commit 32 48      │ 
            begin 48          │ 
            event b           │ 
            commit 48 64      │ 
            begin 64          │ 
            event c           │ publish #0
            commit 64 80      │ 
            acked 0           │ 
            wait 20           │ commit sink 0/50 (closed)
            committed         │ published
            written           │ 
        "#]],
    );
}

/// The outcome of the commit is unknown. The next producer says whether the transaction was committed.
#[test]
fn commit_without_an_answer_is_recovered() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         acked 0
         wait 20
         broken
         lost
         start 16
         recovered 48
         written
         begin 32
         event a
         commit 32 48
         keepalive 48
         wait 1000
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ 
            wait 20           │ commit sink 0/30 (closed)
            broken            │ restart: SinkBroken (closed)
            lost              │  (closed)
            start 16          │ recover sink (closed)
            recovered 48      │ write cursor 0/30 (closed)
            written           │ confirm 0/30
            begin 32          │ 
            event a           │ 
            commit 32 48      │ 
            keepalive 48      │ 
            wait 1000         │ 
            written           │ 
        "#]],
    );
}

/// The answer to a commit is lost, and the commit has not taken effect.
#[test]
fn commit_that_failed_is_made_again() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         acked 0
         wait 20
         broken
         lost
         start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         acked 1
         wait 20
         committed",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ 
            wait 20           │ commit sink 0/30 (closed)
            broken            │ restart: SinkBroken (closed)
            lost              │  (closed)
            start 16          │ recover sink (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #1
            commit 32 48      │ 
            acked 1           │ 
            wait 20           │ commit sink 0/30 (closed)
            committed         │ published
        "#]],
    );
}

/// Another process has fenced the producer of this one.
#[test]
fn another_owner_ends_the_transaction() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         acked 0
         lost
         other 48
         lost
         start 48
         recovered 48
         written
         begin 64
         event b
         commit 64 80",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ 
            lost              │ 
            other 48          │ restart: SlotTaken, recover sink, confirm 0/30 (closed)
            lost              │  (closed)
            start 48          │ recover sink (closed)
            recovered 48      │ write cursor 0/30 (closed)
            written           │ 
            begin 64          │ 
            event b           │ publish #1
            commit 64 80      │ 
        "#]],
    );
}

/// The commit's progress passes a parked event, so its row is committed first.
#[test]
fn commit_waits_for_the_rows_of_parked_events() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         poison b
         commit 32 48
         acked 0
         wait 20
         parked
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            poison b          │ park #1 dead 1000, write 1 rows []
            commit 32 48      │ 
            acked 0           │ 
            wait 20           │  (closed)
            parked            │ commit sink 0/30 (closed)
            committed         │ published
            written           │ 
        "#]],
    );
}

/// A parked event that was attempted is released by the commit, which lists it. After a crash before its row status was
/// written, it is not attempted again.
#[test]
fn attempt_is_released_by_its_commit_and_recovered() {
    check_transactions(
        "row 32 1 b waiting
         start 48
         recovered
         written
         acked t0
         wait 20
         committed
         parked",
        &expect![[r#"
            start 48          │ recover sink, confirm 0/30 (closed)
            recovered         │ write cursor 0/30 (closed)
            written           │ attempt t0 0/20:1
            acked t0          │ 
            wait 20           │ commit sink 0/30 0/20:1 (closed)
            committed         │ released 0/20:1, write 0 rows [0/20:1 done]
            parked            │ 
        "#]],
    );
    check_transactions(
        "row 32 1 b waiting
         start 48
         recovered 48 + 32 1
         written
         parked
         wait 2000",
        &expect![[r#"
            start 48          │ recover sink, confirm 0/30 (closed)
            recovered 48 + 32 1│ write 0 rows [0/20:1 done], write cursor 0/30 (closed)
            written           │ 
            parked            │ 
            wait 2000         │ 
        "#]],
    );
}

/// The end waits for the commit, and the commit does not wait for its interval.
#[test]
fn drain_commits() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         acked 0
         drain
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ 
            drain             │ commit sink 0/30 (closed)
            committed         │ published, write cursor 0/30 (closed)
            written           │ confirm 0/30, drained (closed)
        "#]],
    );
}

/// The events of a refused batch are sent one at a time, each in a transaction of its own.
#[test]
fn refused_batch_ends_the_transaction() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         event b
         commit 32 48
         acked 0
         refused 1
         lost
         start 16
         recovered
         written
         begin 32
         event a
         acked 2
         wait 20
         committed
         event b
         refused 3
         lost
         start 16
         recovered 16 32 1
         written
         begin 32
         event a
         event b
         commit 32 48
         parked",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            commit 32 48      │ 
            acked 0           │ 
            refused 1         │ restart: Refused(Native(10)) (closed)
            lost              │  (closed)
            start 16          │ recover sink (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #2 (closed)
            acked 2           │ commit sink 0/10+0/20:1 (closed)
            wait 20           │  (closed)
            committed         │ published
            event b           │ publish #3 (closed)
            refused 3         │ restart: Refused(Native(10)) (closed)
            lost              │  (closed)
            start 16          │ recover sink (closed)
            recovered 16 32 1 │ write cursor 0/10+0/20:1 (closed)
            written           │ 
            begin 32          │ 
            event a           │ 
            event b           │ park #4 waiting 1000, write 1 rows []
            commit 32 48      │ 
            parked            │ 
        "#]],
    );
}

/// The commit before a halt covers what is before the event that halts the relay, and not that event.
#[test]
fn halt_commits_what_is_before_the_poison() {
    check_stopping_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         poison b
         acked 0
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            poison b          │  (closed)
            acked 0           │ commit sink 0/10+0/20:1 (closed)
            committed         │ published, write cursor 0/10+0/20:1 (closed)
            written           │ halt: no aggregate id (closed)
        "#]],
    );
}

/// An event that the broker has refused halts the relay only after it was sent alone: the transaction may have later
/// events.
#[test]
fn refused_event_halts_with_no_other_in_its_transaction() {
    check_stopping_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         event b
         toolarge 0
         acked 1
         lost
         start 16
         recovered
         written
         begin 32
         event a
         toolarge 2",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            toolarge 0        │  (closed)
            acked 1           │ restart: Refused(TooLarge(Some(Excess { size: 9, limit: 8, compressed: false }))) (closed)
            lost              │  (closed)
            start 16          │ recover sink (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #2 (closed)
            toolarge 2        │ halt: the event at position 0/20:0 can't be published: the record has 9 bytes, the destination takes 8 (closed)
        "#]],
    );
}

/// Progress without events is stored in the sink before the cursor row.
#[test]
fn cursor_row_follows_what_the_sink_has() {
    check_transactions(
        "start 16
         recovered
         written
         keepalive 8192
         wait 2000
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            keepalive 8192    │ 
            wait 2000         │ commit sink 0/2000 (closed)
            committed         │ write cursor 0/2000
            written           │ confirm 0/2000
        "#]],
    );
}

/// The write of the cursor row shows whether this process is still the owner. Before it, nothing is published.
#[test]
fn process_that_was_taken_over_publishes_nothing_after_its_recovery() {
    check_transactions(
        "row 32 1 b waiting
         start 48
         recovered 48
         begin 64
         wait 2000
         taken
         lost",
        &expect![[r#"
            start 48          │ recover sink, confirm 0/30 (closed)
            recovered 48      │ write cursor 0/30 (closed)
            begin 64          │  (closed)
            wait 2000         │  (closed)
            taken             │ restart: SlotTaken (closed)
            lost              │  (closed)
        "#]],
    );
    check_transactions(
        "start 16
         recovered
         deferred
         wait 500
         wait 500
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            deferred          │  (closed)
            wait 500          │  (closed)
            wait 500          │ write cursor 0/10 (closed)
            written           │ 
        "#]],
    );
}

/// A sink that is behind the cursor row is not the one that the pipeline has published to.
#[test]
fn sink_that_is_behind_the_cursor_row_halts() {
    check_transactions(
        "start 64
         recovered 48
         written",
        &expect![[r#"
            start 64          │ recover sink, confirm 0/40 (closed)
            recovered 48      │ write cursor 0/40 (closed)
            written           │ halt: the sink has stored progress up to 0/30:0, which is behind the cursor row at 0/40:0: this is another sink, or it has lost what it had stored (closed)
        "#]],
    );
}

/// The server of the sink has failed over to one that lacks the last commit. If the sink has all that the source was
/// confirmed for, the source still has the rest, and only this process must not continue behind it. Otherwise events
/// may be gone, and a restart does not bring them back.
#[test]
fn sink_that_has_lost_a_commit_of_this_process_halts() {
    for (recovered, halt) in [
        ("recovered 24", "up to 0/18:0, which is behind the last commit at 0/30:0"),
        ("recovered 20", "up to 0/14:0, which is behind the cursor row at 0/18:0"),
        ("recovered", "up to 0/0:0, which is behind the cursor row at 0/18:0"),
    ] {
        let script = format!(
            "start 16
             recovered 24
             written
             begin 32
             event a
             commit 32 48
             acked 0
             wait 20
             committed
             broken
             lost
             start 16
             {recovered}
             written"
        );
        let transcript = transcript_of_transactions(OnPoison::BlockKey, &script);
        let line = |nth: usize| transcript.lines().rev().nth(nth).unwrap_or_default();
        assert!(line(0).contains("halt: ") && line(0).contains(halt), "{transcript}");
        // Nothing above what the source was confirmed for before is confirmed on the way.
        assert!(
            line(1).contains("write cursor 0/18") && !transcript.contains("confirm 0/30"),
            "{transcript}"
        );
    }
}

/// An answer to a call that was made before the last reset.
#[test]
fn late_answer_has_no_effect() {
    check_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         acked 0
         wait 20
         broken
         lost
         start 16
         committedlate
         recovered
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            acked 0           │ 
            wait 20           │ commit sink 0/30 (closed)
            broken            │ restart: SinkBroken (closed)
            lost              │  (closed)
            start 16          │ recover sink (closed)
            committedlate     │  (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
        "#]],
    );
}

/// What the sink has published is known after its recovery: a request to skip such an event is declined then.
#[test]
fn requests_wait_for_the_recovery() {
    check_transactions(
        "row 32 1 b waiting skip
         start 48
         recovered 48 + 32 1
         parked",
        &expect![[r#"
            start 48          │ recover sink, confirm 0/30 (closed)
            recovered 48 + 32 1│ write 0 rows [0/20:1 done], write cursor 0/30 (closed)
            parked            │ write 0 rows [0/20:1 declined] (closed)
        "#]],
    );
}

/// A parked event is listed by each commit until the status of its row is committed.
#[test]
fn published_event_is_listed_until_its_row_has_the_status() {
    check_transactions(
        "row 32 1 b waiting
         start 48
         recovered
         written
         acked t0
         wait 20
         committed
         begin 64
         event a
         commit 64 80
         acked 0
         wait 20
         committed
         parked
         begin 80
         event a
         commit 80 96
         acked 1
         wait 20",
        &expect![[r#"
            start 48          │ recover sink, confirm 0/30 (closed)
            recovered         │ write cursor 0/30 (closed)
            written           │ attempt t0 0/20:1
            acked t0          │ 
            wait 20           │ commit sink 0/30 0/20:1 (closed)
            committed         │ released 0/20:1, write 0 rows [0/20:1 done]
            begin 64          │ 
            event a           │ publish #0
            commit 64 80      │ 
            acked 0           │ 
            wait 20           │ commit sink 0/50 0/20:1 (closed)
            committed         │ published
            parked            │ 
            begin 80          │ 
            event a           │ publish #1
            commit 80 96      │ 
            acked 1           │ 
            wait 20           │ commit sink 0/60 (closed)
        "#]],
    );
}

/// The interval, the cursor row and the bound count at the end of a transaction of the source.
#[test]
fn transaction_of_the_source_is_not_divided_where_it_is_to_stay_whole() {
    check_whole_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         event b
         acked 0
         acked 1
         wait 50
         idle
         event c
         event d
         acked 2
         acked 3
         commit 32 48
         committed
         written",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            acked 0           │ 
            acked 1           │ 
            wait 50           │ 
            event c           │ publish #2
            event d           │ publish #3
            acked 2           │ 
            acked 3           │ 
            commit 32 48      │ commit sink 0/30 (closed)
            committed         │ published, published, published, published
            written           │ 
        "#]],
    );
}

/// Twice the bound is the end of it.
#[test]
fn transaction_of_the_source_that_is_too_large_is_divided() {
    check_whole_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         event b
         event c
         acked 0
         acked 1
         acked 2
         event d
         event e
         acked 3
         acked 4
         event f
         acked 5
         committed
         written
         event g
         acked 6
         commit 32 48
         wait 20
         committed",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            event c           │ publish #2
            acked 0           │ 
            acked 1           │ 
            acked 2           │ 
            event d           │ publish #3
            event e           │ publish #4
            acked 3           │ 
            acked 4           │ 
            event f           │ publish #5 (closed)
            acked 5           │ commit sink 0/10+0/20:6 (closed)
            committed         │ published, published, published, published, published, published
            written           │ 
            event g           │ publish #6
            acked 6           │ 
            commit 32 48      │ 
            wait 20           │ commit sink 0/30 (closed)
            committed         │ published
        "#]],
    );
}

/// What was not committed is published by the next process.
#[test]
fn drain_does_not_divide_a_transaction_of_the_source() {
    check_whole_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         commit 32 48
         begin 64
         event b
         acked 0
         acked 1
         drain",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            commit 32 48      │ 
            begin 64          │ 
            event b           │ publish #1
            acked 0           │ 
            acked 1           │ 
            drain             │ drained (closed)
        "#]],
    );
}

/// The brokers would abort a transaction that is open for too long, again and again.
#[test]
fn transaction_of_the_source_that_takes_too_long_is_divided() {
    check_whole_transactions(
        "start 16
         recovered
         written
         begin 32
         event a
         acked 0
         wait 4999
         idle
         wait 1
         committed",
        &expect![[r#"
            start 16          │ recover sink, confirm 0/10 (closed)
            recovered         │ write cursor 0/10 (closed)
            written           │ 
            begin 32          │ 
            event a           │ publish #0
            acked 0           │ 
            wait 4999         │ 
            wait 1            │ commit sink 0/10+0/20:1 (closed)
            committed         │ published, write cursor 0/10+0/20:1
        "#]],
    );
}

/// An event that comes while a commit is made waits no longer than the interval since the close before it, and the
/// first event after a pause waits for nothing.
#[test]
fn interval_counts_from_the_close_before() {
    let limits = TransactionLimits { records_max: 9, ..transaction_limits() };
    let script = "start 16
         recovered
         written
         begin 32
         event a
         wait 30
         acked 0
         wait 19
         wait 1
         wait 15
         committed
         event b
         acked 1
         wait 4
         wait 1
         committed
         wait 100
         event c
         acked 2
         wait 0";
    let transcript = Script::new(rules(OnPoison::BlockKey), Some(limits)).play(script);
    expect![[r#"
        start 16          │ recover sink, confirm 0/10 (closed)
        recovered         │ write cursor 0/10 (closed)
        written           │ 
        begin 32          │ 
        event a           │ publish #0
        wait 30           │ 
        acked 0           │ 
        wait 19           │ 
        wait 1            │ commit sink 0/10+0/20:1 (closed)
        wait 15           │  (closed)
        committed         │ published
        event b           │ publish #1
        acked 1           │ 
        wait 4            │ 
        wait 1            │ commit sink 0/10+0/20:2 (closed)
        committed         │ published
        wait 100          │ write cursor 0/10+0/20:2
        event c           │ publish #2
        acked 2           │ commit sink 0/10+0/20:3 (closed)
        wait 0            │  (closed)
    "#]]
    .assert_eq(&transcript);
}

/// A large transaction shows that a backlog is published: the commit takes no part of the interval.
#[test]
fn interval_counts_from_the_first_event_after_a_large_transaction() {
    let limits = TransactionLimits { records_max: 4, ..transaction_limits() };
    let script = "start 16
         recovered
         written
         begin 32
         event a
         acked 0
         wait 20
         wait 15
         committed
         event b
         acked 1
         wait 19
         wait 1";
    let transcript = Script::new(rules(OnPoison::BlockKey), Some(limits)).play(script);
    expect![[r#"
        start 16          │ recover sink, confirm 0/10 (closed)
        recovered         │ write cursor 0/10 (closed)
        written           │ 
        begin 32          │ 
        event a           │ publish #0
        acked 0           │ 
        wait 20           │ commit sink 0/10+0/20:1 (closed)
        wait 15           │  (closed)
        committed         │ published
        event b           │ publish #1
        acked 1           │ 
        wait 19           │ 
        wait 1            │ commit sink 0/10+0/20:2 (closed)
    "#]]
    .assert_eq(&transcript);
}

/// Row statuses that wait to be written, and with them the size of what a commit stores, are bounded: no attempt begins
/// meanwhile. Those that are in flight then are added.
#[test]
fn no_attempt_begins_while_ten_thousand_row_statuses_wait_to_be_written() {
    const ROWS: u64 = 10_100;
    const AT_ONCE: usize = 32;
    let rules = ParkingRules { rows_max: 20_000, ..rules(OnPoison::BlockKey) };
    let limits = TransactionLimits { records_max: 1_000, ..transaction_limits() };
    let mut script = Script::new(rules, Some(limits));
    // The longest position that can be stored.
    let commit = Offset::new(u64::MAX / 2);
    let at = |number| Position { commit, ordinal: u64::from(u32::MAX) - number };
    let rows: Vec<Entry> =
        (0..ROWS).rev().map(|number| row(at(number), &number.to_string(), "waiting")).collect();
    let cursor = Progress {
        watermark: Watermark::resumed(Offset::new(u64::MAX / 2 + 1_000)),
        partial: None,
    };
    let (same_history, same_owner) = (true, true);
    let started = Input::Started { cursor, same_history, same_owner, parked: &rows, requests: &[] };
    let mut attempts = Attempts::default();
    attempts.run(&mut script, started);
    let listed = attempts.listed.iter().map(Vec::len).max().unwrap();
    assert!((10_000..10_000 + AT_ONCE).contains(&attempts.begun), "{}", attempts.begun);
    assert!(listed <= attempts.begun, "{listed}");
    let last = attempts.listed.pop().unwrap();
    let stored = SinkProgress { cursor: Cursor::default(), published: last }.to_string();
    assert!((300_000..400_000).contains(&stored.len()), "{} bytes", stored.len());
    while attempts.is_writing {
        attempts.is_writing = false;
        attempts.run(&mut script, Input::ParkingWritten { locked: &[] });
    }
    assert_eq!(attempts.begun as u64, ROWS, "all of them, once there is room");
}

/// Attempts of parked events, each of which the sink takes, and whose row statuses nobody writes.
#[derive(Default)]
struct Attempts {
    begun: usize,
    /// What each commit has listed.
    listed: Vec<Vec<Position>>,
    /// Row statuses are being written.
    is_writing: bool,
}

impl Attempts {
    /// Applies an input, and answers all effects except writes of row statuses, until no more come.
    fn run(&mut self, script: &mut Script, input: Input<'_>) {
        let mut effects = Vec::new();
        script.relay.apply(script.now, input, &mut effects);
        loop {
            let mut more = Vec::new();
            if effects.is_empty() {
                script.now += Duration::from_millis(20);
                script.relay.apply(script.now, Input::Tick, &mut more);
                if more.is_empty() {
                    return;
                }
            }
            for effect in effects {
                let answer = match effect {
                    Effect::RecoverSink { call } => {
                        Input::SinkRecovered { call, recovered: Recovered::default() }
                    }
                    Effect::WriteCursor(_) => Input::CursorWritten,
                    Effect::Attempt { ticket, .. } => {
                        self.begun += 1;
                        Input::Report { ticket, outcome: Outcome::Acked }
                    }
                    Effect::CommitSink { call, attempts, .. } => {
                        self.listed.push(attempts);
                        Input::SinkCommitted { call }
                    }
                    Effect::WriteParking { .. } => {
                        self.is_writing = true;
                        continue;
                    }
                    Effect::Publish(_)
                    | Effect::Park { .. }
                    | Effect::DeadLetterRefused { .. }
                    | Effect::Released { .. }
                    | Effect::Published { .. }
                    | Effect::Overtaken { .. }
                    | Effect::Probe { .. }
                    | Effect::DeadLetter { .. }
                    | Effect::Confirm(_)
                    | Effect::Restart { .. }
                    | Effect::Drained
                    | Effect::Halt(_) => continue,
                };
                script.relay.apply(script.now, answer, &mut more);
            }
            effects = more;
        }
    }
}
