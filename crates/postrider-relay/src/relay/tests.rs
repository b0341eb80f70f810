//! Transcripts of the relay: inputs on the left, effects on the right.
//!
//! Times are milliseconds, and positions are small numbers. The limits are 4 events and 1000 bytes, and the interval of
//! the cursor is 1000 ms. A poison event stops the relay in [`check`]. In [`check_parking`] it blocks its aggregate,
//! with 3 attempts, a pause of n seconds after the n-th, and 5 rows.

mod attempts;
mod dead_letters;
mod ends;
mod flow;
mod large;
mod left_out;
mod parking;
mod refused;
mod repeats;
mod requests;
mod reread;
mod status;
mod suspects;
mod transaction;
mod unreadable;
mod waits;

use super::*;
use expect_test::Expect;
use postrider_core::error::HaltReason;
use postrider_core::event::Aggregate;
use postrider_core::event::Position;
use postrider_core::offset::Watermark;
use postrider_core::parked::{Entry, ParkedOutcome, ParkedUpdate};
use postrider_core::record::{Outcome, RefusalKind, Scope, Ticket};
use std::fmt::Write;

struct Script {
    relay: Relay,
    now: Duration,
    transcript: String,
    /// The parked table's rows for the next start.
    table: Vec<Entry>,
    requests: Vec<(Position, Request)>,
    /// The last call of the sink.
    call: SinkCall,
}

fn lsn(value: u64) -> Offset {
    Offset::new(value)
}

fn halt(message: &str) -> Halt {
    let (meaning, hint) = (String::new(), String::new());
    Halt { reason: HaltReason::PoisonEvent, message: message.into(), meaning, hint }
}

fn progress(watermark: u64, partial: Option<(u64, u64)>) -> Progress {
    let partial = partial.map(|(commit, ordinal)| Position { commit: lsn(commit), ordinal });
    Progress { watermark: Watermark::resumed(lsn(watermark)), partial }
}

fn rules(on_poison: OnPoison) -> ParkingRules {
    let step = Duration::from_secs(1);
    let (strict, dead_letters) = (false, false);
    ParkingRules {
        on_poison,
        attempts_max: 3,
        step,
        steps_max: 2,
        rows_max: 5,
        strict,
        dead_letters,
    }
}

/// Runs a script with one input in each line, in which poison halts, and compares the transcript.
fn check(script: &str, expected: &Expect) {
    run(rules(OnPoison::Stop), script, expected);
}

/// Runs a script in which poison blocks its aggregate.
fn check_parking(script: &str, expected: &Expect) {
    run(rules(OnPoison::BlockKey), script, expected);
}

/// Runs a script with a sink that publishes in transactions of 20 ms, 3 events or 500 bytes. Poison blocks its
/// aggregate.
fn check_transactions(script: &str, expected: &Expect) {
    run_transactions(OnPoison::BlockKey, script, expected);
}

/// As [`check_transactions`], and poison halts.
fn check_stopping_transactions(script: &str, expected: &Expect) {
    run_transactions(OnPoison::Stop, script, expected);
}

fn run_transactions(on_poison: OnPoison, script: &str, expected: &Expect) {
    expected.assert_eq(&transcript_of_transactions(on_poison, script));
}

fn transcript_of_transactions(on_poison: OnPoison, script: &str) -> String {
    Script::new(rules(on_poison), Some(transaction_limits())).play(script)
}

/// As [`check_transactions`], and transactions of the source are not divided.
fn check_whole_transactions(script: &str, expected: &Expect) {
    let limits =
        TransactionLimits { whole_for: Some(Duration::from_secs(5)), ..transaction_limits() };
    let transcript = Script::new(rules(OnPoison::BlockKey), Some(limits)).play(script);
    expected.assert_eq(&transcript);
}

fn transaction_limits() -> TransactionLimits {
    TransactionLimits {
        records_max: 3,
        bytes_max: 500,
        interval: Duration::from_millis(20),
        whole_for: None,
    }
}

fn run(rules: ParkingRules, script: &str, expected: &Expect) {
    expected.assert_eq(&transcript_of(rules, script));
}

/// The transcript of a script in which poison halts.
fn transcript(script: &str) -> String {
    transcript_of(rules(OnPoison::Stop), script)
}

fn transcript_of(rules: ParkingRules, script: &str) -> String {
    Script::new(rules, None).play(script)
}

impl Script {
    fn new(rules: ParkingRules, transactions: Option<TransactionLimits>) -> Self {
        let limits = Limits { events_max: 4, bytes_max: 1000 };
        let cursor_interval = Duration::from_secs(1);
        let words = HaltWords::POSTGRES;
        let idle_step = 4096;
        let settings = Settings { limits, cursor_interval, idle_step, words, rules, transactions };
        Self {
            relay: Relay::new(settings),
            now: Duration::ZERO,
            transcript: String::new(),
            table: Vec::new(),
            requests: Vec::new(),
            call: SinkCall::default(),
        }
    }

    /// Runs a script. Returns its transcript.
    fn play(mut self, script: &str) -> String {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.line(line);
        }
        self.transcript
    }

    fn lines(&mut self, lines: &[&str]) {
        for line in lines {
            self.line(line);
        }
    }

    #[expect(clippy::too_many_lines, reason = "one line for each input")]
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let reject = |scope, reason| Outcome::Rejected { scope, reason };
        let too_large = Refusal::too_large(9, 8);
        let ticket = |index: usize| match words[index].strip_prefix('t') {
            Some(number) => Ticket(1 << 63 | number.parse::<u64>().unwrap()),
            None => Ticket(number(index)),
        };
        let report = |outcome| Input::Report { ticket: ticket(1), outcome };
        let position = || Position { commit: lsn(number(1)), ordinal: number(2) };
        let parked = std::mem::take(&mut self.table);
        let requests = std::mem::take(&mut self.requests);
        let started = |cursor, same_history| Input::Started {
            cursor,
            same_history,
            same_owner: words[0] != "other",
            parked: &parked,
            requests: &requests,
        };
        let left;
        let input = match words[0] {
            "row" => {
                self.table = parked;
                self.table.push(row(position(), words[3], words[4]));
                self.requests = requests;
                let request =
                    words.get(5).map(|request| (position(), Request::parse(request).unwrap()));
                self.requests.extend(request);
                return;
            }
            "start" | "other" => started(progress(number(1), None), true),
            "promoted" => started(progress(number(1), None), false),
            "resume" => started(progress(number(1), Some((number(2), number(3)))), true),
            "begin" => Input::Begin { commit: lsn(number(1)), commit_time: Timestamp::default() },
            "event" => Input::Change(Change::Event {
                aggregate: Aggregate { kind: "order", id: words[1] },
                size_bytes: words.get(2).map_or(10, |size| size.parse().unwrap()),
                wait: Duration::from_millis(words.get(3).map_or(0, |wait| wait.parse().unwrap())),
            }),
            "busy" => Input::NotTaken { ticket: Ticket(number(1)) },
            "skip" => Input::Change(Change::Skipped),
            "poison" => Input::Change(Change::Poison {
                aggregate: words.get(1).map(|id| Aggregate { kind: "order", id }),
                halt: Box::new(halt("no aggregate id")),
            }),
            "commit" => Input::Commit { commit: lsn(number(1)), end: lsn(number(2)) },
            "keepalive" => Input::Keepalive { upto: lsn(number(1)) },
            "acked" => report(Outcome::Acked),
            "unknown" => report(Outcome::Unknown),
            "toolarge" => report(reject(Scope::Event, too_large)),
            "nottaken" => Input::Refused {
                ticket: Ticket(number(1)),
                reason: Refusal::partition(7),
                halt: Box::new(halt("no such partition")),
            },
            "refused" => {
                report(reject(Scope::Event, Refusal::of_broker(RefusalKind::TooLarge(None), 10)))
            }
            "notopic" => {
                report(reject(Scope::Destination, Refusal::of_broker(RefusalKind::Other, 3)))
            }
            "broken" => Input::SinkBroken,
            "taken" => Input::SlotTaken,
            "lost" => Input::SourceLost,
            "written" => Input::CursorWritten,
            "deferred" => Input::CursorDeferred,
            // `parked 32 1 32 2`: except the statuses of 0/20:1 and 0/20:2.
            "parked" => {
                let at = |at: &[&str]| Position {
                    commit: lsn(at[0].parse().unwrap()),
                    ordinal: at[1].parse().unwrap(),
                };
                left = words[1..].chunks(2).map(at).collect::<Vec<_>>();
                Input::ParkingWritten { locked: &left }
            }
            "unsent" => Input::DeadLetterUnsent { position: position() },
            "unavailable" => Input::Unavailable { ticket: ticket(1), soon: words.len() > 2 },
            "stale" => Input::StaleDestination { ticket: ticket(1) },
            "deleted" => Input::DeadRowDeleted { position: position() },
            "probed" => Input::Probed { ticket: ticket(1) },
            // The caller parks nothing, and asks what a refusal means. `leaveout 3 batch`: of a batch.
            "leaveout" => {
                let batch = Refusal::of_broker(RefusalKind::TooLarge(None), 10);
                let reason = if words.len() > 2 { batch } else { too_large };
                match self.relay.certainly_refused(ticket(1), reason) {
                    Some(_) => Input::LeaveOut { ticket: ticket(1) },
                    None => report(reject(Scope::Event, reason)),
                }
            }
            "exclusive" => Input::NeedsExclusive { ticket: ticket(1) },
            "missing" => Input::RowMissing { ticket: ticket(1) },
            "request" => {
                Input::Request { position: position(), request: Request::parse(words[3]).unwrap() }
            }
            "unreadable" => Input::Unreadable(Box::new(halt("too large to be read"))),
            "unfit" => Input::Halt(Box::new(halt("no reader"))),
            // Nothing is due before time has passed.
            "idle" => {
                assert!(
                    self.relay.deadline().is_none_or(|at| at > self.now),
                    "{}",
                    self.transcript
                );
                return;
            }
            // `recovered 48 96 2 + 32 1`: the watermark, a position in a transaction, an attempted event.
            "recovered" => {
                let mut parts = words[1..].split(|word| *word == "+");
                let reached: Vec<u64> =
                    parts.next().unwrap().iter().map(|word| word.parse().unwrap()).collect();
                let progress = match *reached.as_slice() {
                    [] => None,
                    [watermark] => Some(progress(watermark, None)),
                    [watermark, commit, ordinal] => {
                        Some(progress(watermark, Some((commit, ordinal))))
                    }
                    _ => panic!("no such progress: {line}"),
                };
                let at = |at: &[&str]| Position {
                    commit: lsn(at[0].parse().unwrap()),
                    ordinal: at[1].parse().unwrap(),
                };
                let recovered = Recovered { progress, attempts: parts.map(at).collect() };
                Input::SinkRecovered { call: self.call, recovered }
            }
            "committed" => Input::SinkCommitted { call: self.call },
            // An answer to the call before the last one.
            "committedlate" => Input::SinkCommitted { call: SinkCall(self.call.0 - 1) },
            "drain" => Input::Drain,
            "wait" => {
                self.now += Duration::from_millis(number(1));
                Input::Tick
            }
            other => panic!("no such line: {other}"),
        };
        let mut effects = Vec::new();
        self.relay.apply(self.now, input, &mut effects);
        for effect in &effects {
            if let Effect::RecoverSink { call } | Effect::CommitSink { call, .. } = effect {
                self.call = *call;
            }
        }
        let effects: Vec<String> = effects.iter().map(show).collect();
        let closed = if self.relay.intake_open() { "" } else { " (closed)" };
        writeln!(self.transcript, "{line:<18}│ {}{closed}", effects.join(", ")).unwrap();
    }
}

/// A row of the parked table that was refused once.
fn row(position: Position, id: &str, state: &str) -> Entry {
    Entry {
        position,
        lane: Some(Lane::of(Aggregate { kind: "order", id })),
        state: State::parse(state).unwrap(),
        attempts: 1,
        wait: Duration::ZERO,
        overtaken_by: None,
        xid: None,
    }
}

fn status(status: &ParkedUpdate) -> String {
    let became = match status.became {
        ParkedOutcome::Refused { state, attempts, .. } => {
            format!("{} after {attempts}", state.name())
        }
        ParkedOutcome::Done => "done".into(),
        ParkedOutcome::Skipped => "skipped".into(),
        ParkedOutcome::Again => "again".into(),
        ParkedOutcome::Declined => "declined".into(),
        ParkedOutcome::DeadSent => "sent to the dead-letter topic".into(),
        ParkedOutcome::Overtaken { by } => format!("overtaken by {by}"),
    };
    format!("{} {became}", status.position)
}

fn show(effect: &Effect) -> String {
    let row = |progress: &Progress| match progress.partial {
        Some(partial) => format!("{}+{partial}", progress.watermark),
        None => progress.watermark.to_string(),
    };
    match effect {
        Effect::Publish(ticket) => format!("publish #{}", ticket.0),
        Effect::Park { ticket, entry, reason: _ } => {
            let wait = entry.wait.as_millis();
            let by = entry.overtaken_by.map_or(String::new(), |by| format!(" overtaken by {by}"));
            format!("park #{} {} {wait}{by}", ticket.0, entry.state.name())
        }
        Effect::WriteParking { rows, statuses } => {
            let statuses: Vec<String> = statuses.iter().map(status).collect();
            format!("write {rows} rows [{}]", statuses.join("; "))
        }
        Effect::Attempt { ticket, position } => {
            format!("attempt t{} {position}", ticket.0 & !(1 << 63))
        }
        Effect::Probe { ticket, position } => {
            format!("probe t{} {position}", ticket.0 & !(1 << 63))
        }
        Effect::DeadLetter { ticket, position } => {
            format!("dead letter t{} {position}", ticket.0 & !(1 << 63))
        }
        Effect::DeadLetterRefused { position, reason: _ } => {
            format!("dead letter refused {position}")
        }
        Effect::Overtaken { position, by } => format!("{position} overtaken by {by}"),
        Effect::Released { position } => format!("released {position}"),
        Effect::Published { .. } => "published".into(),
        Effect::RecoverSink { .. } => "recover sink".into(),
        Effect::CommitSink { call: _, progress, attempts } => {
            let attempts = attempts.iter().map(ToString::to_string);
            let listed: Vec<String> = std::iter::once(row(progress)).chain(attempts).collect();
            format!("commit sink {}", listed.join(" "))
        }
        Effect::WriteCursor(progress) => format!("write cursor {}", row(progress)),
        Effect::Confirm(watermark) => format!("confirm {watermark}"),
        Effect::Restart { why } => format!("restart: {why:?}"),
        Effect::Drained => "drained".into(),
        Effect::Halt(halt) => format!("halt: {}", halt.message),
    }
}
