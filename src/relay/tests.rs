//! Transcripts of the relay: what happens on the left, what it wants done on the right.
//!
//! Times are milliseconds, positions small numbers. The limits are 4 events and 1000 bytes, the cursor's interval 1000 ms.

use super::*;
use expect_test::{Expect, expect};
use std::fmt::Write;

struct Script {
    relay: Relay,
    now: Duration,
    transcript: String,
}

fn lsn(value: u64) -> Lsn {
    Lsn::from_wire(value)
}

fn halt(message: &str) -> Halt {
    let (meaning, hint) = (String::new(), String::new());
    Halt { reason: HaltReason::PoisonEvent, message: message.into(), meaning, hint }
}

fn progress(watermark: u64, partial: Option<(u64, u64)>) -> Progress {
    let partial = partial.map(|(commit, ordinal)| Position { commit_lsn: lsn(commit), ordinal });
    Progress { watermark: Watermark::resumed(lsn(watermark)), partial }
}

/// Runs a script, a line an input, and compares the transcript.
fn check(script: &str, expected: &Expect) {
    let limits = Limits { events_max: 4, bytes_max: 1000 };
    let settings = Settings { limits, cursor_interval: Duration::from_secs(1) };
    let mut run =
        Script { relay: Relay::new(settings), now: Duration::ZERO, transcript: String::new() };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        run.line(line);
    }
    expected.assert_eq(&run.transcript);
}

impl Script {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let report = |outcome| Input::Report { ticket: Ticket(number(1)), outcome };
        let reject = |scope, reason| Outcome::Rejected { scope, reason };
        let too_large = Refusal::TooLarge { size: 9, limit: 8 };
        let input = match words[0] {
            "start" => Input::Started { cursor: progress(number(1), None) },
            "resume" => {
                Input::Started { cursor: progress(number(1), Some((number(2), number(3)))) }
            }
            "begin" => Input::Begin { commit_lsn: lsn(number(1)), commit_time: PgTime::default() },
            "event" => Input::Change(Change::Event {
                aggregate: Aggregate { kind: "order", id: words[1] },
                size_bytes: words.get(2).map_or(10, |size| size.parse().unwrap()),
            }),
            "skip" => Input::Change(Change::Skipped),
            "poison" => Input::Change(Change::Poison(Box::new(halt("no aggregate id")))),
            "commit" => Input::Commit { commit_lsn: lsn(number(1)), end_lsn: lsn(number(2)) },
            "keepalive" => Input::Keepalive { wal_end: lsn(number(1)) },
            "acked" => report(Outcome::Acked),
            "unknown" => report(Outcome::Unknown),
            "toolarge" => report(reject(Scope::Event, too_large)),
            "refused" => report(reject(Scope::Event, Refusal::Kafka(10))),
            "notopic" => report(reject(Scope::Destination, Refusal::Kafka(3))),
            "broken" => Input::SinkBroken,
            "taken" => Input::SlotTaken,
            "lost" => Input::SourceLost,
            "written" => Input::CursorWritten,
            "drain" => Input::Drain,
            "wait" => {
                self.now += Duration::from_millis(number(1));
                Input::Tick
            }
            other => panic!("no such line: {other}"),
        };
        let mut effects = Vec::new();
        self.relay.apply(self.now, input, &mut effects);
        let effects: Vec<String> = effects.iter().map(show).collect();
        let shut = if self.relay.intake_open() { "" } else { " (shut)" };
        writeln!(self.transcript, "{line:<18}│ {}{shut}", effects.join(", ")).unwrap();
    }
}

fn show(effect: &Effect) -> String {
    let row = |progress: &Progress| match progress.partial {
        Some(partial) => format!("{}+{partial}", progress.watermark),
        None => progress.watermark.to_string(),
    };
    match effect {
        Effect::Publish(ticket) => format!("publish #{}", ticket.0),
        Effect::Published { .. } => "published".into(),
        Effect::WriteCursor(progress) => format!("write cursor {}", row(progress)),
        Effect::Confirm(watermark) => format!("confirm {watermark}"),
        Effect::Restart { why } => format!("restart: {why:?}"),
        Effect::Drained => "drained".into(),
        Effect::Halt(halt) => format!("halt: {}", halt.message),
    }
}

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
         wait 999
         wait 1
         written",
        &expect![[r"
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
        wait 999          │ 
        wait 1            │ write cursor 0/40
        written           │ confirm 0/40
    "]],
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
fn restart_passes_over_what_the_cursor_row_knows() {
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
fn lost_connection_repeats_nothing_that_is_in_flight() {
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
fn unknown_report_throws_everything_away_and_starts_from_the_last_acked() {
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
fn refused_batch_is_sent_again_one_event_at_a_time_to_find_the_culprit() {
    check(
        "start 16
         begin 32
         event a
         event b
         event c
         refused 0
         refused 1
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
            refused 0         │ restart: Refused(Kafka(10))
            refused 1         │ 
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (shut)
            acked 3           │ published, write cursor 0/10+0/20:1
            written           │ 
            event b           │ publish #4 (shut)
            refused 4         │ halt: the event at position 0/20:1 can't be published: the broker refused it with code 10 (shut)
            written           │  (shut)
        "#]],
    );
}

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
fn full_window_shuts_the_intake_and_three_quarters_open_it() {
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
            event d           │ publish #3 (shut)
            acked 3           │ published
            acked 2           │ published
            event e 2000      │ publish #4 (shut)
            acked 0           │ published, write cursor 0/10+0/20:1 (shut)
            acked 1           │ published (shut)
            acked 4           │ published
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
fn idle_outbox_follows_the_keepalives_without_feeding_on_its_own_rows() {
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
fn keepalive_inside_a_transaction_says_nothing() {
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
fn another_owner_of_the_slot_ends_our_claim_on_what_is_in_flight() {
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
fn destination_refused_while_running_starts_again_from_the_cursor() {
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

#[test]
fn row_of_another_owner_is_believed_and_what_we_had_in_flight_is_not() {
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
