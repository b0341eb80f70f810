//! The world of one run: its servers and processes, and which of them has the next turn.
//!
//! [`World`] does what `pipeline` does, in the same order, with the fakes in place of servers and clients. It checks
//! after each step what must always be true, and after the last fault what must become true.

use super::broker::{NotTaken, Post, Producer, Record, TOO_LARGE};
use super::plan::{AGGREGATES, Bad, Fault, Plan, PlannedChange, PlannedTransaction};
use super::postgres::{Answer, Locks, Server, Statement, Transaction, WalChange, at, watermark};
use super::process::{End, Process, RecordBuffer, ReportLog, Session, Stage, WaitingAttempt};
use super::rng::Rng;
use super::truth::Truth;
use super::walsender::{Frame, Walsender};
use super::{Check, Run, Stop, wrong};
use crate::ack::Progress;
use crate::relay::{Change, Effect, Input, OnPoison, Relay, Restart};
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::{Aggregate, Position};
use postrider_core::offset::Offset;
use postrider_core::parked::{Entry, Request, State};
use postrider_core::record::{Outcome, Refusal, Scope, Ticket};
use postrider_core::timestamp::Timestamp;
use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

/// Number of steps between the last fault or transaction and [`World::finish`].
const STEPS_AFTER_FAULTS: u64 = 150;

/// Makes the seed of the generator for large records differ from the others.
const LARGE_SEED: u64 = 0x6c61_7267_6500_0000;

/// Number of runs in a thousand that have large records.
const LARGE_RUNS: u64 = 100;

/// Number of records in a thousand of such a run that the sink takes only with nothing else in flight.
const LARGE_RECORDS: u64 = 50;

/// How long a process without a connection keeps its events in flight. As in `pipeline`, in a world that is ten times
/// as fast. Unit: milliseconds.
const LEASE: u64 = 300;

/// How long an attempt waits for its destination. Unit: milliseconds.
const DESTINATION_WAIT_MAX: u64 = 100;

/// Maximum delay of the report of a discarded producer. Unit: milliseconds.
const LATE_REPORT_MAX: u64 = 100;

/// Maximum number of steps until everything is idle.
const STEPS_UNTIL_IDLE_MAX: u64 = 40_000;

/// Maximum number of times that all events are fixed because the parked table is full.
const FIXES_MAX: u32 = 20;

/// The aggregate of the event at the end.
const FRESH: u64 = AGGREGATES;

/// Names of the aggregates; the last is for events without an aggregate.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "fresh", "none"];

/// What the relay requires for the current record.
enum Decision {
    Publish(Ticket),
    Park(Entry),
    Nothing,
}

#[expect(clippy::unnecessary_box_returns, reason = "every input that halts needs a box")]
fn halt(reason: HaltReason) -> Box<Halt> {
    let (message, meaning, hint) = (String::new(), String::new(), String::new());
    Box::new(Halt { reason, message, meaning, hint })
}

/// Takes the effect for the current record out of `effects`, of which those before `first` are older.
fn take_decision(effects: &mut Vec<Effect>, first: usize) -> Decision {
    let of_record = |effect: &Effect| matches!(effect, Effect::Publish(_) | Effect::Park { .. });
    let Some(at) = effects.iter().skip(first).position(of_record) else { return Decision::Nothing };
    let effect = effects.remove(first + at);
    if let Effect::Park { ticket: _, entry, reason: _ } = effect {
        return Decision::Park(entry);
    }
    if let Effect::Publish(ticket) = effect { Decision::Publish(ticket) } else { Decision::Nothing }
}

/// The world of one run.
struct World {
    plan: Plan,
    rng: Rng,
    /// The generator for late reports. A generator of its own leaves the draws of `rng` as they were.
    late: Rng,
    /// The generator for large records, for the same reason.
    large: Rng,
    /// Number of records in a thousand that the sink takes only with nothing else in flight; 0 in most runs.
    large_in_1000: u64,
    /// Unit: milliseconds.
    now: u64,
    step: u64,
    server: Server,
    truth: Truth,
    procs: Vec<Process>,
    result: Run,
    transcribes: bool,
}

impl World {
    fn new(plan: &Plan, transcribes: bool) -> Self {
        let knobs = plan.knobs;
        // One aggregate more for the event at the end, and one for poison.
        let aggregates = usize::try_from(AGGREGATES).unwrap() + 1;
        let mut large = Rng::new(plan.schedule ^ LARGE_SEED);
        let large_in_1000 = if large.chance(LARGE_RUNS) { LARGE_RECORDS } else { 0 };
        let mut world = Self {
            rng: Rng::new(plan.schedule),
            late: Rng::new(!plan.schedule),
            large,
            large_in_1000,
            plan: plan.clone(),
            now: 0,
            step: 0,
            server: Server::new(),
            truth: Truth::new(aggregates, knobs.settings.rules.strict),
            procs: Vec::new(),
            result: Run::default(),
            transcribes,
        };
        world.server.locks = Locks::new(plan.schedule);
        for _ in 0..knobs.processes {
            let process = Process::new(0, Relay::new(knobs.settings), Producer::new(&knobs, 0, 0));
            world.procs.push(process);
        }
        world
    }

    /// Takes steps until every transaction and fault of the plan has happened, and then checks the end.
    fn run(&mut self) -> Check {
        let transactions = std::mem::take(&mut self.plan.transactions);
        let faults = std::mem::take(&mut self.plan.faults);
        let (mut transactions, mut faults) = (transactions.iter(), faults.iter().peekable());
        let mut next = transactions.next();
        let mut commits_at = next.map_or(0, |first| first.pause);
        let mut last = 0;
        while next.is_some() || faults.peek().is_some() || self.step < last + STEPS_AFTER_FAULTS {
            while let Some(transaction) = next.filter(|_| commits_at <= self.step) {
                self.commit(transaction);
                next = transactions.next();
                commits_at += next.map_or(0, |next| next.pause);
                last = self.step;
            }
            if let Some((_, fault)) = faults.next_if(|(at, _)| *at <= self.step) {
                self.result.faults += 1;
                self.inject_fault(*fault)?;
                last = self.step;
            }
            self.advance()?;
        }
        self.finish()
    }

    /// One step of a server or a process.
    fn advance(&mut self) -> Check {
        self.step += 1;
        let turns = self.plan.knobs.turns;
        let mut left = self.rng.below(turns.iter().sum());
        let who = turns.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        let i = self.rng.index(self.procs.len());
        match who.unwrap() {
            0 => {
                for _ in 0..self.rng.range(1, 4) {
                    self.serve(i);
                }
                Ok(())
            }
            1 => {
                let knobs = (&self.plan.knobs, &mut self.rng, self.now);
                self.procs[i].producer.batch(&mut self.truth, knobs)
            }
            2 => {
                for _ in 0..self.rng.range(1, 4) {
                    self.report(i);
                }
                Ok(())
            }
            3 => match self.rng.below(4) {
                0 => self.status(i),
                1 => match self.server.orphans.pop_front() {
                    None => Ok(()),
                    Some(statement) => {
                        self.server.execute(&mut self.truth, self.now, statement).map(drop)
                    }
                },
                _ => self.control(i),
            },
            4 => self.take_turn(i),
            _ => {
                self.now += self.rng.range(1, 12);
                Ok(())
            }
        }
    }

    fn take_turn(&mut self, i: usize) -> Check {
        match self.turn(i) {
            Err(Stop::Died) => self.kill(i),
            other => other,
        }
    }

    fn report(&mut self, i: usize) {
        let post = self.procs[i].producer.report(&self.plan.knobs, &mut self.rng);
        let Some(post) = post else { return };
        if matches!(self.procs[i].stage, Stage::Off { .. }) {
            return;
        }
        if self.transcribes {
            let line = match &post {
                Post::Report { record, outcome, by: _ } => {
                    let at = self.truth.events[record.event].position;
                    format!("the sink reports {at} {outcome:?}")
                }
                Post::Broken => "the sink reports that it is broken".into(),
            };
            self.log(i, &line);
        }
        self.procs[i].mailbox.push(post);
    }

    /// A transaction commits, or is rolled back.
    fn commit(&mut self, planned: &PlannedTransaction) {
        let (commit, end) = self.server.write(planned.gap);
        if planned.rolled_back || planned.changes.is_empty() {
            return;
        }
        let mut changes = Vec::new();
        for (change, ordinal) in planned.changes.iter().zip(0..) {
            changes.push(match *change {
                PlannedChange::Other => WalChange::Other,
                PlannedChange::Event { aggregate, bad, fixed_after, size, delay } => {
                    let position = Position { commit: at(commit), ordinal };
                    let aggregate = Some(usize::try_from(aggregate).unwrap())
                        .filter(|_| bad != Bad::Poison { known: false });
                    let times = (size, self.now + delay);
                    let fixed = self.now + fixed_after;
                    WalChange::Event(self.truth.commit(position, aggregate, bad, fixed, times))
                }
            });
        }
        if self.transcribes {
            self.log(9, &format!("commit {} {changes:?}", at(commit)));
        }
        self.server.transactions.push(Transaction { commit, end, changes });
    }

    /// Writes a line of the transcript. Process 9 is the world.
    fn log(&mut self, i: usize, what: &str) {
        if self.transcribes {
            let who = if i == 9 { "world".into() } else { format!("p{i}") };
            writeln!(self.result.transcript, "{:>6} ms {who}: {what}", self.now).unwrap();
        }
    }

    /// A process has the turn.
    fn turn(&mut self, i: usize) -> Check {
        match &self.procs[i].stage {
            Stage::Off { until } if *until <= self.now => {
                self.boot(i);
                Ok(())
            }
            Stage::Off { .. } => Ok(()),
            Stage::Streaming(_) => self.stream(i),
            Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => {
                self.wait(i)?;
                self.connect(i)
            }
        }
    }

    /// A turn without a stream: reports are received, and the lease may end.
    fn wait(&mut self, i: usize) -> Check {
        self.take_posts(i)?;
        if self.perform_offline(i)? {
            return self.exit(i);
        }
        let held = self.procs[i].relay.in_flight().0 > 0;
        if held && self.procs[i].lease_ends <= self.now {
            self.apply(i, Input::SlotTaken)?;
            if self.perform_offline(i)? {
                return self.exit(i);
            }
        }
        Ok(())
    }

    fn connect(&mut self, i: usize) -> Check {
        let stage = std::mem::replace(&mut self.procs[i].stage, Stage::Pause { until: self.now });
        self.procs[i].stage = match stage {
            Stage::Pause { until } if until > self.now => Stage::Pause { until },
            Stage::Pause { .. } => match self.server.holder {
                Some(_) => {
                    if self.procs[i].relay.in_flight().0 > 0 {
                        self.apply(i, Input::SlotTaken)?;
                    }
                    Stage::Pause { until: self.now + self.rng.range(1, 40) }
                }
                None => Stage::Read { row: self.server.resume()? },
            },
            Stage::Read { row } if self.server.holder.is_some() => {
                // `55006`: another process was faster.
                self.log(i, &format!("too late for {row:?}"));
                Stage::Pause { until: self.now + 1 }
            }
            Stage::Read { row } => {
                self.server.holder = Some(i);
                self.fence_others(i)?;
                if self.server.confirmed > row.watermark.offset().get() {
                    // Another process has streamed meanwhile, so the handshake starts again.
                    self.server.holder = None;
                    Stage::Pause { until: self.now + 1 }
                } else {
                    Stage::Owns { start: row }
                }
            }
            Stage::Owns { start } => {
                self.server.epoch += 1;
                // Only now can no other process write the row any more.
                let row = self.server.row;
                let (parked, requests) = self.server.load(row.position(), self.now);
                Stage::TookOver { start, row, parked, requests }
            }
            Stage::TookOver { start, row, parked, requests } => {
                return self.begin(i, start, row, (&parked, &requests));
            }
            other @ (Stage::Off { .. } | Stage::Streaming(_)) => other,
        };
        Ok(())
    }

    fn begin(
        &mut self,
        i: usize,
        start: Progress,
        row: Progress,
        (parked, requests): (&[Entry], &[(Position, Request)]),
    ) -> Check {
        let from = start.watermark.offset().get();
        let (walsender, first) = Walsender::start(&self.server, from);
        let epoch = self.server.epoch;
        let process = &mut self.procs[i];
        let session = Session::new(epoch, walsender, first, self.now);
        process.stage = Stage::Streaming(Box::new(session));
        let before = process.epoch.replace(epoch);
        let same_owner = before.is_some_and(|before| before + 1 == epoch);
        let same_history = before.is_some();
        let cursor = row.watermark.offset().get();
        process.confirmed = if same_history { process.confirmed.max(cursor) } else { cursor };
        if !same_owner {
            process.reported.overtaken.clear();
        }
        let repeated = self.truth.events.iter().filter(|event| event.position >= row.position());
        let rows = parked.iter().filter(|entry| !entry.state.resolved()).count() as u64;
        let rows_max = self.plan.knobs.settings.rules.rows_max;
        process.rows_max = rows.max(rows_max) + repeated.count() as u64;
        self.apply(i, Input::Started { cursor: row, same_history, same_owner, parked, requests })?;
        match self.perform(i)? {
            Some(end) => self.end(i, end),
            None => Ok(()),
        }
    }

    /// One turn of a stream's loop.
    fn stream(&mut self, i: usize) -> Check {
        self.take_posts(i)?;
        self.offer_attempts(i)?;
        if let Some(end) = self.perform(i)? {
            return self.end(i, end);
        }
        self.feed(i)?;
        if let Some(end) = self.perform(i)? {
            return self.end(i, end);
        }
        let (now, due) = (self.now, self.procs[i].due());
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return Ok(()) };
        session.send_prepared();
        if let Some(answer) = session.answers.pop_front() {
            self.take_answer(i, answer)?;
        } else if due.is_some_and(|due| due <= now) {
            self.apply(i, Input::Tick)?;
        } else if !session.reads_requests && session.requests_due <= now {
            (session.reads_requests, session.requests_due) = (true, now + 500);
            session.prepare(Statement::ReadRequests);
        }
        match self.perform(i)? {
            Some(end) => self.end(i, end),
            None => Ok(()),
        }
    }

    /// Prepares a statement of the current epoch.
    fn send(&mut self, i: usize, statement: impl FnOnce(u64) -> Statement) {
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return };
        let statement = statement(session.epoch());
        session.prepare(statement);
    }

    fn end(&mut self, i: usize, end: End) -> Check {
        match end {
            End::Over => {
                // A graceful close: the last position is confirmed.
                self.status(i)?;
                self.release(i);
                self.exit(i)
            }
            End::Restart => self.lose(i),
        }
    }

    /// The session is lost.
    fn lose(&mut self, i: usize) -> Check {
        self.release(i);
        if matches!(self.procs[i].stage, Stage::Streaming(_)) {
            self.procs[i].stage = Stage::Pause { until: self.now + self.rng.range(1, 60) };
            self.apply(i, Input::SourceLost)?;
            self.procs[i].lease_ends = self.now + LEASE;
            if self.perform_offline(i)? {
                return self.exit(i);
            }
        } else {
            self.procs[i].stage = Stage::Pause { until: self.now + self.rng.range(1, 60) };
        }
        Ok(())
    }

    /// The server detects that the session is lost. It may still execute statements that it was sent.
    fn release(&mut self, i: usize) {
        if self.server.holder == Some(i) {
            self.server.holder = None;
        }
        if let Stage::Streaming(session) = &mut self.procs[i].stage {
            let arrived = self.rng.index(session.sent.len() + 1);
            self.server.orphans.extend(session.sent.drain(..arrived));
        }
    }

    /// The server sends a frame.
    fn serve(&mut self, i: usize) {
        let keepalive = self.plan.knobs.keepalive;
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return };
        session.receive(&self.server, &mut self.rng, keepalive);
    }

    /// A status update arrives at the server.
    fn status(&mut self, i: usize) -> Check {
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return Ok(()) };
        match session.take_status() {
            Some(position) => self.server.confirm(&self.truth, position),
            None => Ok(()),
        }
    }

    /// The server executes a statement.
    fn control(&mut self, i: usize) -> Check {
        let now = self.now;
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return Ok(()) };
        let Some(statement) = session.sent.pop_front() else { return Ok(()) };
        let answer = self.server.execute(&mut self.truth, now, statement)?;
        session.answers.push_back(answer);
        Ok(())
    }

    fn apply(&mut self, i: usize, input: Input<'_>) -> Check {
        self.result.inputs += 1;
        let now = self.now;
        let first = self.procs[i].effects.len();
        if self.transcribes {
            let line = format!("{input:?}");
            self.log(i, &line);
        }
        let process = &mut self.procs[i];
        let clock = process.clock(now);
        process.relay.apply(clock, input, &mut process.effects);
        if self.transcribes {
            let lines: Vec<String> =
                self.procs[i].effects[first..].iter().map(|effect| format!("{effect:?}")).collect();
            for effect in lines {
                self.log(i, &format!("    {effect}"));
            }
        }
        self.check_bounds(i)
    }

    fn check_bounds(&self, i: usize) -> Check {
        let relay = &self.procs[i].relay;
        let settings = &self.plan.knobs.settings;
        let (events, bytes) = relay.in_flight();
        // Attempts are included: 32 at most.
        let (most, parked) = (settings.limits.events_max + 32, relay.parked().total());
        if events > most || bytes > settings.limits.bytes_max + 120 {
            return wrong(format!("{events} events and {bytes} bytes are in flight"));
        }
        // Events that the stream repeats may be parked again, besides those parked behind them.
        if parked > self.procs[i].rows_max.max(settings.rules.rows_max) {
            return wrong(format!("{parked} events are parked"));
        }
        Ok(())
    }

    /// A boundary of an effect, at which the process may die.
    fn boundary(&mut self, i: usize) -> Check {
        match &mut self.procs[i].dies_after {
            None => Ok(()),
            Some(0) => Err(Stop::Died),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// Passes the reports of the sink to the relay.
    fn take_posts(&mut self, i: usize) -> Check {
        let now = self.now;
        let due: Vec<_> =
            self.procs[i].late_reports.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, ticket, outcome) in due {
            self.apply(i, Input::Report { ticket, outcome })?;
        }
        for post in std::mem::take(&mut self.procs[i].mailbox) {
            match post {
                Post::Report { record, outcome: TOO_LARGE, by: _ } => {
                    let (ticket, event) = (record.ticket, record.event);
                    let Outcome::Rejected { reason, .. } = TOO_LARGE else { continue };
                    let halt = halt(HaltReason::PoisonEvent);
                    self.refused(i, event, Input::Refused { ticket, reason, halt })?;
                }
                Post::Report { record, outcome, by } => {
                    if record.version == 0 && record.ticket.0 >> 63 == 0 {
                        self.record_report(i, record.event, outcome, by);
                    }
                    let first = self.procs[i].effects.len();
                    self.apply(i, Input::Report { ticket: record.ticket, outcome })?;
                    self.check_reported(i, record.event, first)?;
                }
                Post::Broken => self.apply(i, Input::SinkBroken)?,
            }
        }
        Ok(())
    }

    /// The publication of an overtaken event is reported as such.
    fn check_reported(&mut self, i: usize, event: usize, first: usize) -> Check {
        let process = &mut self.procs[i];
        let effects = process.effects.get(first..).unwrap_or_default();
        let published = effects.iter().any(|effect| matches!(effect, Effect::Published { .. }));
        let reported = effects.iter().any(|effect| matches!(effect, Effect::Overtaken { .. }));
        if published && process.reported.overtaken.remove(&event) && !reported {
            let position = self.truth.events[event].position;
            return wrong(format!(
                "{position} was overtaken and published, and no effect reports that"
            ));
        }
        Ok(())
    }

    /// Performs the effects in order, on a session.
    fn perform(&mut self, i: usize) -> Check<Option<End>> {
        let mut end = None;
        for effect in std::mem::take(&mut self.procs[i].effects) {
            self.boundary(i)?;
            match effect {
                Effect::Publish(_) | Effect::Park { .. } => {
                    return wrong("an effect needs a record that the process does not have".into());
                }
                Effect::WriteParking { rows, statuses } => {
                    let rows = self.procs[i].buffer.take_rows(rows);
                    self.send(i, |epoch| Statement::Parking { rows, statuses, epoch });
                }
                Effect::Attempt { ticket, position } => {
                    let since = self.now;
                    let attempt = WaitingAttempt { ticket, position, record: None, since };
                    self.procs[i].buffer.attempts.push_back(attempt);
                }
                Effect::Probe { ticket, .. } => self.procs[i].buffer.probes.push(ticket),
                Effect::DeadLetter { .. } | Effect::DeadLetterRefused { .. } => {
                    return wrong("a dead letter, though none are configured".into());
                }
                Effect::Released { .. } | Effect::Published { .. } | Effect::Overtaken { .. } => {}
                Effect::WriteCursor(progress) => {
                    self.send(i, |epoch| Statement::Cursor { progress, epoch });
                }
                Effect::Confirm(watermark) => {
                    self.procs[i].confirmed = watermark.offset().get();
                }
                Effect::Restart { why } => {
                    self.reset_sink(i, why)?;
                    end = Some(End::Restart);
                }
                Effect::Drained | Effect::Halt(_) => end = Some(End::Over),
            }
            self.boundary(i)?;
        }
        let confirmed = self.procs[i].confirmed;
        if let Stage::Streaming(session) = &mut self.procs[i].stage {
            session.confirm(confirmed);
        }
        self.fetch_records(i);
        Ok(end)
    }

    /// Performs the effects that need no session. Returns whether the relay has ended.
    fn perform_offline(&mut self, i: usize) -> Check<bool> {
        let mut over = false;
        for effect in std::mem::take(&mut self.procs[i].effects) {
            match effect {
                Effect::Restart { why } => self.reset_sink(i, why)?,
                Effect::Drained | Effect::Halt(_) => over = true,
                Effect::Published { .. }
                | Effect::Overtaken { .. }
                | Effect::Released { .. }
                | Effect::Publish(_)
                | Effect::Park { .. }
                | Effect::WriteParking { .. }
                | Effect::Attempt { .. }
                | Effect::Probe { .. }
                | Effect::DeadLetter { .. }
                | Effect::DeadLetterRefused { .. }
                | Effect::WriteCursor(_)
                | Effect::Confirm(_) => {}
            }
        }
        Ok(over)
    }

    fn reset_sink(&mut self, i: usize, why: Restart) -> Check {
        self.log(i, &format!("reset {}", why.name()));
        let ready_from = Producer::ready_at(&mut self.rng, self.now);
        let (knobs, now) = (&self.plan.knobs, self.now);
        let process = &mut self.procs[i];
        process.buffer = RecordBuffer::default();
        let number = process.producer.number + 1;
        process.reported.overtaken.extend(process.reports.overtaken(&self.truth));
        let reports = ReportLog::new(number);
        process.earlier_reports = std::mem::replace(&mut process.reports, reports);
        // Reports that were posted before are still in the mailbox.
        while self.rng.chance(500)
            && let Some(post) = process.producer.report(knobs, &mut self.rng)
        {
            process.mailbox.push(post);
        }
        while self.late.chance(knobs.late_reports)
            && let Some(Post::Report { record, outcome, by: _ }) =
                process.producer.report(knobs, &mut self.late)
        {
            let at = now + self.late.below(LATE_REPORT_MAX);
            process.late_reports.push((at, record.ticket, outcome));
        }
        process.producer.discard(&mut self.truth, (knobs, &mut self.rng, now))?;
        process.producer = Producer::new(knobs, number, ready_from);
        Ok(())
    }

    /// Passes a record to the sink that the broker refuses for its size, with nothing else in flight.
    fn send_refused(&mut self, i: usize, record: Record) -> Result<(), NotTaken> {
        let knobs = (&self.plan.knobs, &mut self.rng, self.now);
        self.procs[i].producer.send_refused(&mut self.truth, knobs, record)
    }

    fn enqueue(&mut self, i: usize, record: Record) -> Result<(), NotTaken> {
        let knobs = (&self.plan.knobs, &mut self.rng, self.now);
        self.procs[i].producer.enqueue(&mut self.truth, knobs, record)
    }

    /// Writes the positions of the table and of the relay to the transcript.
    fn log_positions(&mut self, i: usize) {
        let (row, relay) = (watermark(self.server.row), self.procs[i].relay.progress());
        self.log(i, &format!("row {} relay {relay:?}", at(row)));
    }

    /// Passes frames to the relay until one is not taken.
    fn feed(&mut self, i: usize) -> Check {
        for _ in 0..self.rng.range(1, self.plan.knobs.frames_max) {
            let process = &self.procs[i];
            if process.relay.stopping() || process.is_ending() {
                return Ok(());
            }
            let Stage::Streaming(session) = &process.stage else { return Ok(()) };
            let Some(frame) = session.frames.front().copied() else { return Ok(()) };
            if !self.frame(i, frame)? {
                return Ok(());
            }
            if let Stage::Streaming(session) = &mut self.procs[i].stage {
                session.frames.pop_front();
            }
        }
        Ok(())
    }

    /// Passes a frame to the relay. Returns whether it was taken.
    fn frame(&mut self, i: usize, frame: Frame) -> Check<bool> {
        match frame {
            Frame::Keepalive { upto } => {
                self.apply(i, Input::Keepalive { upto: at(upto) })?;
            }
            Frame::Begin { commit } => {
                let commit_time = Timestamp::default();
                self.apply(i, Input::Begin { commit: at(commit), commit_time })?;
            }
            Frame::Commit { commit, end } => {
                self.apply(i, Input::Commit { commit: at(commit), end: at(end) })?;
            }
            Frame::Change(change) => return self.change(i, change),
        }
        Ok(true)
    }

    fn change(&mut self, i: usize, change: WalChange) -> Check<bool> {
        let relay = &self.procs[i].relay;
        let known = relay.upcoming().is_none();
        if !known && !relay.intake_open() {
            return Ok(false);
        }
        let WalChange::Event(event) = change else {
            self.apply(i, Input::Change(Change::Skipped))?;
            return Ok(true);
        };
        if known {
            self.apply(i, Input::Change(Change::Skipped))?;
            return Ok(true);
        }
        let what = &self.truth.events[event];
        let id = NAMES[what.aggregate.unwrap_or(NAMES.len() - 1)];
        let aggregate = Aggregate { kind: "order", id };
        if let Bad::Poison { known } = self.truth.bad(event, self.now) {
            let aggregate = known.then_some(aggregate);
            self.truth.events[event].refused += 1;
            let halt = halt(HaltReason::PoisonEvent);
            return self.refused(i, event, Input::Change(Change::Poison { aggregate, halt }));
        }
        if !relay.admits(aggregate) {
            return Ok(false);
        }
        let size_bytes = usize::try_from(what.size).unwrap();
        let wait = Duration::from_millis(what.not_before.saturating_sub(self.now));
        let overtaken = relay.is_overtaken(what.position);
        if overtaken && !self.procs[i].reported.may_be_overtaken(&self.truth, event) {
            let position = what.position;
            return wrong(format!("{position} was not overtaken, and is taken for overtaken"));
        }
        let first = self.procs[i].effects.len();
        self.apply(i, Input::Change(Change::Event { aggregate, size_bytes, wait }))?;
        let ticket = match take_decision(&mut self.procs[i].effects, first) {
            // The pipeline removes the position of an overtaken record, because consumers have a later event already.
            Decision::Publish(_)
                if self.procs[i].reported.overtaken.contains(&event) && !overtaken =>
            {
                let position = self.truth.events[event].position;
                return wrong(format!(
                    "{position} was overtaken, and is published with its position"
                ));
            }
            Decision::Publish(ticket) => ticket,
            Decision::Park(entry) => {
                self.buffer_record(i, entry, event)?;
                return Ok(true);
            }
            Decision::Nothing => return Ok(true),
        };
        self.boundary(i)?;
        // In runs with large records the broker refuses one for its size.
        let broker_decides =
            self.large_in_1000 > 0 && self.truth.bad(event, self.now) == Bad::TooLarge;
        let large = self.large.chance(self.large_in_1000) || broker_decides;
        if large && !self.procs[i].relay.sends_exclusively() {
            self.apply(i, Input::NeedsExclusive { ticket })?;
            return Ok(false);
        }
        let record = Record { ticket, event, version: 0 };
        let taken =
            if broker_decides { self.send_refused(i, record) } else { self.enqueue(i, record) };
        self.boundary(i)?;
        self.taken(i, event, ticket, taken)
    }

    /// The answer of the sink to a record of the stream. Returns whether the next change is read.
    fn taken(
        &mut self,
        i: usize,
        event: usize,
        ticket: Ticket,
        taken: Result<(), NotTaken>,
    ) -> Check<bool> {
        match taken {
            Ok(()) => Ok(true),
            // The destination was unavailable for long enough, or its metadata may be stale.
            Err(NotTaken::Destination) if self.late.chance(300) => {
                let stale = self.late.chance(500);
                let soon = self.large.chance(500);
                let input = if stale {
                    Input::StaleDestination { ticket }
                } else {
                    Input::Unavailable { ticket, soon }
                };
                self.refused(i, event, input)
            }
            Err(NotTaken::Full | NotTaken::Destination) => {
                self.apply(i, Input::NotTaken { ticket })?;
                Ok(false)
            }
            Err(NotTaken::Refused(reason)) => {
                let halt = halt(HaltReason::PoisonEvent);
                self.refused(i, event, Input::Refused { ticket, reason, halt })
            }
        }
    }

    /// The event can't be published, as the input says.
    fn refused(&mut self, i: usize, event: usize, input: Input<'_>) -> Check<bool> {
        let first = self.procs[i].effects.len();
        self.apply(i, input)?;
        if let Decision::Park(entry) = take_decision(&mut self.procs[i].effects, first) {
            self.buffer_record(i, entry, event)?;
        }
        Ok(true)
    }

    /// Keeps the record of a parked event, and checks its entry.
    fn buffer_record(&mut self, i: usize, entry: Entry, event: usize) -> Check {
        let process = &mut self.procs[i];
        let refused = matches!(entry.state, State::Waiting | State::Dead);
        if refused && process.reported.overtaken.remove(&event) && entry.overtaken_by.is_none() {
            return wrong(format!(
                "{} was overtaken, and its row does not record that",
                entry.position
            ));
        }
        process.buffer.rows.push_back((entry, event));
        let what = &mut self.truth.events[event];
        let may_block = self.plan.knobs.settings.rules.on_poison != OnPoison::SkipEvent;
        if entry.lane.is_none() && what.aggregate.is_some() && may_block {
            return wrong(format!(
                "{} is parked, and does not block its aggregate",
                entry.position
            ));
        }
        what.overtaken |= entry.lane.is_none();
        Ok(())
    }

    fn fetch_records(&mut self, i: usize) {
        let process = &self.procs[i];
        let Stage::Streaming(session) = &process.stage else { return };
        if session.fetching || !process.wants_records() {
            return;
        }
        let missing = process.buffer.attempts.iter().filter(|attempt| attempt.record.is_none());
        let positions = missing.map(|attempt| attempt.position).collect();
        self.send(i, |_| Statement::Fetch { positions });
    }

    /// Offers the waiting probes and attempts to the sink.
    fn offer_attempts(&mut self, i: usize) -> Check {
        for ticket in std::mem::take(&mut self.procs[i].buffer.probes) {
            let unavailable = self.late.chance(self.plan.knobs.destination_down);
            let (scope, reason) = (Scope::Destination, Refusal::destination("none of this name"));
            let outcome = Outcome::Rejected { scope, reason };
            let report = Input::Report { ticket, outcome };
            self.apply(i, if unavailable { report } else { Input::Probed { ticket } })?;
        }
        let mut left = VecDeque::new();
        for attempt in std::mem::take(&mut self.procs[i].buffer.attempts) {
            let Some((event, version)) = attempt.record else {
                left.push_back(attempt);
                continue;
            };
            let record = Record { ticket: attempt.ticket, event, version };
            let outcome = match self.enqueue(i, record) {
                Ok(()) => continue,
                Err(NotTaken::Full) => {
                    left.push_back(attempt);
                    continue;
                }
                Err(NotTaken::Destination) if self.now - attempt.since < DESTINATION_WAIT_MAX => {
                    left.push_back(attempt);
                    continue;
                }
                Err(NotTaken::Destination) => {
                    let reason = Refusal::destination("none of this name");
                    Outcome::Rejected { scope: Scope::Destination, reason }
                }
                Err(NotTaken::Refused(reason)) => Outcome::Rejected { scope: Scope::Event, reason },
            };
            self.apply(i, Input::Report { ticket: attempt.ticket, outcome })?;
        }
        let attempts = &mut self.procs[i].buffer.attempts;
        left.append(attempts);
        *attempts = left;
        Ok(())
    }

    /// Passes the answer to a statement to the relay.
    fn take_answer(&mut self, i: usize, answer: Answer) -> Check {
        let process = &mut self.procs[i];
        let Stage::Streaming(session) = &mut process.stage else { return Ok(()) };
        match answer {
            Answer::Cursor(true) => self.apply(i, Input::CursorWritten),
            Answer::Cursor(false) | Answer::Parking(None) => self.apply(i, Input::SlotTaken),
            Answer::Parking(Some(left)) => {
                process.buffer.writing.clear();
                self.apply(i, Input::ParkingWritten { locked: &left })
            }
            Answer::Fetched(requested, found) => {
                session.fetching = false;
                let mut missing = Vec::new();
                process.buffer.attempts.retain_mut(|attempt| {
                    let row = found.iter().find(|(position, ..)| *position == attempt.position);
                    if let Some((_, event, version)) = row {
                        attempt.record = Some((*event, *version));
                    }
                    let stays = attempt.record.is_some() || !requested.contains(&attempt.position);
                    if !stays {
                        missing.push((attempt.ticket, attempt.position));
                    }
                    stays
                });
                for (ticket, position) in missing {
                    self.check_missing(position)?;
                    self.apply(i, Input::RowMissing { ticket })?;
                }
                self.offer_attempts(i)
            }
            Answer::Requests(requests) => {
                session.reads_requests = false;
                for (position, request) in requests {
                    self.apply(i, Input::Request { position, request })?;
                }
                Ok(())
            }
        }
    }

    /// Only a row that is deleted or resolved can be missing.
    fn check_missing(&self, position: Position) -> Check {
        let event = self.truth.events.iter().position(|event| event.position == position);
        if event.is_none_or(|event| !self.truth.settled(event)) {
            return wrong(format!("{position} is attempted, and has no row"));
        }
        Ok(())
    }

    /// Records a report of a producer. Which events were overtaken is determined when the producer is discarded, and
    /// for its later reports at once.
    fn record_report(&mut self, i: usize, event: usize, outcome: Outcome, by: u64) {
        let process = &mut self.procs[i];
        if outcome == Outcome::Acked {
            process.reported.acked.push((by, event));
        }
        if process.is_ending() {
            return;
        }
        if by == process.reports.producer {
            process.reports.add(&self.truth, event, outcome);
        } else if by == process.earlier_reports.producer {
            let overtaken = process.earlier_reports.add(&self.truth, event, outcome);
            process.reported.overtaken.extend(overtaken);
        }
    }

    /// Makes a planned fault happen.
    fn inject_fault(&mut self, fault: Fault) -> Check {
        let i = self.rng.index(self.procs.len());
        self.log(i, &format!("FAULT {fault:?}"));
        match fault {
            Fault::Crash { boundaries: 0 } => self.kill(i)?,
            Fault::Crash { boundaries } => self.procs[i].dies_after = Some(boundaries),
            Fault::Lost => {
                if !matches!(self.procs[i].stage, Stage::Off { .. }) {
                    self.lose(i)?;
                }
            }
            Fault::ServerCrash => {
                self.server.crash();
                for i in 0..self.procs.len() {
                    if !matches!(self.procs[i].stage, Stage::Off { .. }) {
                        self.lose(i)?;
                    }
                }
                // Statements that the sessions had sent are lost with the server.
                self.server.orphans.clear();
            }
            Fault::Checkpoint => self.server.save(),
            Fault::SinkFatal => self.procs[i].producer.fatal(),
            Fault::Drain => {
                if matches!(self.procs[i].stage, Stage::Streaming(_)) {
                    self.apply(i, Input::Drain)?;
                }
            }
            Fault::Halt => {
                if matches!(self.procs[i].stage, Stage::Streaming(_)) {
                    self.apply(i, Input::Halt(halt(HaltReason::Protocol)))?;
                }
            }
            Fault::Request => self.request(),
            Fault::Delete => self.delete(),
            Fault::Prune => self.server.prune(),
        }
        Ok(())
    }

    /// An operator requests something for a parked row.
    fn request(&mut self) {
        if self.server.table.is_empty() {
            return;
        }
        let nth = self.rng.index(self.server.table.len());
        let request = [Request::Retry, Request::Skip, Request::Replace][self.rng.index(3)];
        let Some((_, row)) = self.server.table.iter_mut().nth(nth) else { return };
        // A request stays in the row until the relay has removed it.
        if row.state.resolved() || row.request.is_some() {
            return;
        }
        row.request = Some(request);
        self.truth.events[row.event].skip_asked |= request == Request::Skip;
        for process in &mut self.procs {
            // The notification.
            if let Stage::Streaming(session) = &mut process.stage {
                session.requests_due = self.now;
            }
        }
    }

    /// An operator deletes an unresolved row.
    fn delete(&mut self) {
        let rows = self.server.table.iter().filter(|(_, row)| !row.state.resolved());
        let rows: Vec<_> = rows.map(|(at, row)| (*at, row.event)).collect();
        if rows.is_empty() {
            return;
        }
        let (at, event) = rows[self.rng.index(rows.len())];
        self.server.table.remove(&at);
        let what = &mut self.truth.events[event];
        // Above the cursor the stream may repeat the event in its original form.
        (what.deleted, what.version) = (true, 0);
    }

    /// The process dies. Some of its records and statements in flight may arrive.
    fn kill(&mut self, i: usize) -> Check {
        self.log(i, "dies");
        self.release(i);
        let knobs = (&self.plan.knobs, &mut self.rng, self.now);
        self.procs[i].producer.discard(&mut self.truth, knobs)?;
        let knobs = self.plan.knobs;
        let mut process =
            Process::new(self.now, Relay::new(knobs.settings), Producer::new(&knobs, 0, self.now));
        process.stage = Stage::Off { until: self.now + self.rng.below(100) };
        self.procs[i] = process;
        Ok(())
    }

    /// The process exits. It is started again, and the event that stopped it is fixed.
    fn exit(&mut self, i: usize) -> Check {
        self.log(i, "exits");
        if self.plan.knobs.settings.rules.on_poison == OnPoison::Stop {
            let now = self.now;
            let bad = |at: &usize| self.truth.bad(*at, now) != Bad::No && !self.truth.settled(*at);
            if let Some(first) = (0..self.truth.events.len()).find(bad) {
                self.truth.events[first].fixed_at = now;
            }
        }
        self.kill(i)
    }

    fn boot(&mut self, i: usize) {
        self.log(i, "starts");
        let knobs = self.plan.knobs;
        self.procs[i] =
            Process::new(self.now, Relay::new(knobs.settings), Producer::new(&knobs, 0, self.now));
        self.procs[i].stage = Stage::Pause { until: self.now };
    }

    /// Process `i` has the slot: records that others have in flight are written now or never.
    fn fence_others(&mut self, i: usize) -> Check {
        for other in (0..self.procs.len()).filter(|other| *other != i) {
            let knobs = (&self.plan.knobs, &mut self.rng, self.now);
            self.procs[other].producer.fence(&mut self.truth, knobs)?;
        }
        Ok(())
    }

    /// A sink that would never report again becomes broken.
    fn break_silent_sinks(&mut self) {
        for process in &mut self.procs {
            if process.producer.silent && !process.producer.broken_due {
                process.producer.silent = false;
                process.producer.fatal();
                process.mailbox.push(Post::Broken);
            }
        }
    }

    /// The faults are over: every committed event must be published, parked or skipped, and the next one published.
    fn finish(&mut self) -> Check {
        self.log(9, "END OF FAULTS");
        let knobs = &mut self.plan.knobs;
        (knobs.sink_full, knobs.destination_down, knobs.unknown) = (0, 0, 0);
        (knobs.refused_wider, knobs.report_lost, knobs.keepalive) = (0, 0, 0);
        knobs.turns = [2, 4, 4, 6, 8, 2];
        self.server.locks.in_1000 = 0;
        for process in &mut self.procs {
            process.dies_after = None;
        }
        self.break_silent_sinks();
        if self.truth.events.iter().any(|event| event.deleted) {
            // The relay learns of a deleted row at an attempt, or when it reads the table next.
            for i in 0..self.procs.len() {
                if matches!(self.procs[i].stage, Stage::Streaming(_)) {
                    self.lose(i)?;
                }
            }
        }
        let fixes_all = self.rng.chance(500);
        self.run_until_idle(0)?;
        let mut fixes = 0;
        while self.is_full() || (fixes_all && fixes == 0) {
            if fixes == FIXES_MAX {
                return wrong("parked events are fixed, and the table stays full".into());
            }
            fixes += 1;
            self.fix_all();
            self.run_until_idle(0)?;
        }
        self.check_accounts(fixes_all)?;
        let changes = vec![PlannedChange::Event {
            aggregate: FRESH,
            bad: Bad::No,
            fixed_after: 0,
            size: 1,
            delay: 0,
        }];
        self.commit(&PlannedTransaction { pause: 0, gap: 8, rolled_back: false, changes });
        let end = self.server.end;
        self.run_until_idle(end)?;
        let fresh = self.truth.events.len() - 1;
        if !self.truth.delivered(fresh) {
            return wrong("a new event is not published".into());
        }
        self.check_accounts(fixes_all)
    }

    /// Whether the parked table is full.
    fn is_full(&self) -> bool {
        let mut streaming = self.procs.iter().filter(|p| matches!(p.stage, Stage::Streaming(_)));
        streaming.any(|process| process.relay.parking_is_full())
    }

    /// Fixes every event, and retries dead ones.
    fn fix_all(&mut self) {
        for event in &mut self.truth.events {
            event.fixed_at = 0;
        }
        for row in self.server.table.values_mut() {
            if row.state == State::Dead && row.request.is_none() {
                row.request = Some(Request::Retry);
            }
        }
    }

    /// Takes steps until nothing is in progress, and the slot has reached `least`.
    fn run_until_idle(&mut self, least: u64) -> Check {
        let steps_max = self.step + STEPS_UNTIL_IDLE_MAX;
        while self.step < steps_max {
            self.advance()?;
            if self.step.is_multiple_of(16) && self.is_idle(least)? {
                return Ok(());
            }
        }
        self.is_idle(least)?;
        for i in 0..self.procs.len() {
            self.log_positions(i);
        }
        let why = self.busy_reason(least).unwrap_or_default();
        wrong(format!("the world does not become idle: {why}"))
    }

    fn is_idle(&mut self, least: u64) -> Check<bool> {
        for i in 0..self.procs.len() {
            self.status(i)?;
        }
        Ok(self.busy_reason(least).is_none())
    }

    /// What is still in progress.
    fn busy_reason(&self, least: u64) -> Option<&'static str> {
        let streaming = self.procs.iter().find(|p| matches!(p.stage, Stage::Streaming(_)));
        let Some(process) = streaming else { return Some("no process streams") };
        let Stage::Streaming(session) = &process.stage else { return None };
        let relay = &process.relay;
        let has_events =
            |changes: &[WalChange]| changes.iter().any(|c| matches!(c, WalChange::Event(_)));
        let newest = self.server.transactions.iter().rev().find(|txn| has_events(&txn.changes));
        let newest = newest.map_or(at(0), |txn| at(txn.end));
        let reached = |lsn: Offset| relay.progress().watermark.offset() >= lsn;
        let full = relay.parking_is_full();
        let heads = relay.heads(1_000);
        let moving = heads.iter().any(|(_, state, ..)| *state != State::Dead);
        let requested = self.server.table.values().any(|row| row.request.is_some());
        let states = [
            (relay.stopping(), "stopping"),
            (process.producer.is_busy() || !process.mailbox.is_empty(), "the sink is busy"),
            (relay.in_flight().0 > 0, "something is in flight"),
            (!full && !session.is_idle(self.server.transactions.len()), "the session is busy"),
            (full && !session.is_settled(), "the session is busy"),
            (!full && !reached(newest), "the watermark is behind"),
            (moving, "a head that is not dead is left"),
            (requested, "a request is left"),
            (process.wants_records(), "an attempt waits for its record"),
            (relay.deferred_statuses() > 0, "a row status waits for its row"),
            (!process.effects.is_empty(), "effects wait"),
            (!self.server.orphans.is_empty(), "a statement of a lost session is left"),
            (watermark(self.server.row) < least, "the row is behind"),
            (self.server.confirmed < least, "the slot is behind"),
        ];
        states.iter().find_map(|(busy, why)| busy.then_some(*why))
    }

    /// Every committed event is published, parked or skipped. `fixes_all`: none is parked any more.
    fn check_accounts(&self, fixes_all: bool) -> Check {
        for (event, number) in self.truth.events.iter().zip(0..) {
            let position = event.position;
            let row = self.server.table.get(&position).filter(|row| !row.state.resolved());
            if row.is_none() && !self.truth.settled(number) {
                return wrong(format!("{position} is lost"));
            }
            if fixes_all && row.is_some() {
                return wrong(format!("{position} is fixed and still parked"));
            }
        }
        let table = &self.server.table;
        self.truth.check_ends(|at| table.get(&at).is_some_and(|row| !row.state.resolved()))
    }
}

/// Runs a plan to its end.
pub(super) fn run(plan: &Plan, transcribes: bool) -> Run {
    let caught = std::panic::catch_unwind(|| {
        let mut world = World::new(plan, transcribes);
        match world.run() {
            Ok(()) => {}
            Err(Stop::Wrong(message)) => world.result.failure = Some(message),
            Err(Stop::Died) => unreachable!("only a turn can end so"),
        }
        world.result.written = world.truth.written;
        world.result.repeated = world.truth.repeated;
        world.result
    });
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Some(format!("panic: {}", text.unwrap_or_default()));
        Run { failure, ..Run::default() }
    })
}
