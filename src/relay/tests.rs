//! Transcripts of the relay: what happens on the left, what it wants done on the right.
//!
//! Times are milliseconds, positions small numbers. The limits are 4 events and 1000 bytes, the cursor's interval
//! 1000 ms.

mod again;
mod ends;
mod flow;

use super::*;
use crate::error::HaltReason;
use crate::event::Aggregate;
use crate::event::Position;
use crate::lsn::Watermark;
use expect_test::Expect;
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
            "start" => Input::Started { cursor: progress(number(1), None), same_history: true },
            "promoted" => Input::Started { cursor: progress(number(1), None), same_history: false },
            "resume" => {
                let cursor = progress(number(1), Some((number(2), number(3))));
                Input::Started { cursor, same_history: true }
            }
            "begin" => Input::Begin { commit_lsn: lsn(number(1)), commit_time: PgTime::default() },
            "event" => Input::Change(Change::Event {
                aggregate: Aggregate { kind: "order", id: words[1] },
                size_bytes: words.get(2).map_or(10, |size| size.parse().unwrap()),
            }),
            "busy" => Input::NotTaken { ticket: Ticket(number(1)) },
            "skip" => Input::Change(Change::Skipped),
            "poison" => Input::Change(Change::Poison(Box::new(halt("no aggregate id")))),
            "commit" => Input::Commit { commit_lsn: lsn(number(1)), end_lsn: lsn(number(2)) },
            "keepalive" => Input::Keepalive { wal_end: lsn(number(1)) },
            "acked" => report(Outcome::Acked),
            "unknown" => report(Outcome::Unknown),
            "toolarge" => report(reject(Scope::Event, too_large)),
            "nottaken" => Input::Refused {
                ticket: Ticket(number(1)),
                halt: Box::new(halt("no such partition")),
            },
            "refused" => report(reject(Scope::Event, Refusal::Kafka(10))),
            "notopic" => report(reject(Scope::Destination, Refusal::Kafka(3))),
            "broken" => Input::SinkBroken,
            "taken" => Input::SlotTaken,
            "lost" => Input::SourceLost,
            "written" => Input::CursorWritten,
            "unfit" => Input::Halt(Box::new(halt("no reader"))),
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
