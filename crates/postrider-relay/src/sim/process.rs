//! One process: its engine, its producer, its records, and its session with the server.

use super::broker::{NotTaken, Post, Producer, Record, TOO_LARGE};
use super::ground::Ground;
use super::outbox::{SessionId, time_of};
use super::plan::{Bad, Knobs, SourceMode, TableRules};
use super::transactional_sink::{Caller, CommitRequest, Request};
use super::truth::Truth;
use super::{Check, Stop, wrong};
use crate::ack::Progress;
use crate::engine::{Answer, Engine, NextChange, Offered, PoisonAnswer, SentRow};
use crate::published::RowStatusRule;
use crate::relay::{Effect, Input, OnPoison, Restart};
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::{Aggregate, Position};
use postrider_core::parked::{Entry, State};
use postrider_core::record::{Outcome, Refusal, Scope, Ticket};
use postrider_core::sink::{self, SinkCall};
use postrider_core::timestamp::Timestamp;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// How long an attempt waits for its destination. Unit: milliseconds.
const DESTINATION_WAIT_MAX: u64 = 100;

/// Maximum delay of the report of a discarded producer. Unit: milliseconds.
const LATE_REPORT_MAX: u64 = 100;

/// Names of the aggregates; the last is for events without an aggregate.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "fresh", "none"];

#[expect(clippy::unnecessary_box_returns, reason = "every input that halts needs a box")]
pub(super) fn halt(reason: HaltReason) -> Box<Halt> {
    let (message, meaning, hint) = (String::new(), String::new(), String::new());
    Box::new(Halt { reason, message, meaning, hint })
}

/// The aggregate of an event.
pub(super) fn aggregate_of(truth: &Truth, event: usize) -> Aggregate<'static> {
    let id = NAMES[truth.events[event].aggregate.unwrap_or(NAMES.len() - 1)];
    Aggregate { kind: "order", id }
}

/// An attempt that the sink has not taken yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingAttempt {
    pub(super) ticket: Ticket,
    pub(super) position: Position,
    pub(super) record: Option<(usize, u32)>,
    pub(super) since: u64,
}

/// The records of parked events: rows that wait to be written, and attempts that wait for their records or the sink.
#[derive(Debug, Default)]
pub(super) struct RecordBuffer {
    pub(super) rows: VecDeque<(Entry, usize)>,
    pub(super) writing: Vec<(Entry, usize)>,
    pub(super) attempts: VecDeque<WaitingAttempt>,
    pub(super) probes: Vec<Ticket>,
}

impl RecordBuffer {
    pub(super) fn wants_records(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.record.is_none())
    }

    pub(super) fn take_rows(&mut self, count: usize) -> Vec<(Entry, usize)> {
        for row in std::mem::take(&mut self.writing).into_iter().rev() {
            self.rows.push_front(row);
        }
        assert!(count <= self.rows.len(), "{count} rows to write of {}", self.rows.len());
        self.writing = self.rows.drain(..count).collect();
        self.writing.clone()
    }

    pub(super) fn add_attempt(&mut self, ticket: Ticket, position: Position, since: u64) {
        self.attempts.push_back(WaitingAttempt { ticket, position, record: None, since });
    }
}

/// What one producer has reported of events of the stream, and so which of them a later event of their aggregate has
/// overtaken.
///
/// Only the reports of one producer have an order: an event that one producer has refused and the next has published in
/// its place was not overtaken.
#[derive(Debug, Default)]
struct ReportLog {
    /// The number of the producer.
    producer: u64,
    acked: Vec<usize>,
    /// Events of a batch that was refused.
    refused: Vec<usize>,
}

impl ReportLog {
    fn new(producer: u64) -> Self {
        Self { producer, ..Self::default() }
    }

    /// Events that were refused, and had a later one of their aggregate acknowledged.
    fn overtaken(&self, truth: &Truth) -> Vec<usize> {
        let passed =
            |event: &&usize| self.acked.iter().any(|later| truth.is_behind(*later, **event));
        self.refused.iter().filter(passed).copied().collect()
    }

    /// Records an outcome. Returns the events that it shows to be overtaken.
    fn add(&mut self, truth: &Truth, event: usize, outcome: Outcome) -> Vec<usize> {
        match outcome {
            Outcome::Acked => {
                self.acked.push(event);
                let passed = |earlier: &&usize| truth.is_behind(event, **earlier);
                self.refused.iter().filter(passed).copied().collect()
            }
            Outcome::Rejected { scope: Scope::Event, .. } => {
                self.refused.push(event);
                let passed = self.acked.iter().any(|later| truth.is_behind(*later, event));
                passed.then_some(event).into_iter().collect()
            }
            Outcome::Rejected { .. } | Outcome::Unknown => Vec::new(),
        }
    }
}

/// Which events were overtaken, as the reports of a process show.
#[derive(Debug, Default)]
pub(super) struct Overtakings {
    /// The reports of this producer, and of the one before it.
    reports: ReportLog,
    earlier: ReportLog,
    /// Events whose row must record that they were overtaken.
    events: BTreeSet<usize>,
}

impl Overtakings {
    /// Records a report of a producer. Which events were overtaken is determined when the producer is discarded, and
    /// for its later reports at once.
    fn record(&mut self, truth: &Truth, event: usize, outcome: Outcome, by: u64) {
        if by == self.reports.producer {
            self.reports.add(truth, event, outcome);
        } else if by == self.earlier.producer {
            let overtaken = self.earlier.add(truth, event, outcome);
            self.events.extend(overtaken);
        }
    }

    /// The producer is replaced by the one with this number.
    fn replace(&mut self, truth: &Truth, number: u64) {
        self.events.extend(self.reports.overtaken(truth));
        self.earlier = std::mem::replace(&mut self.reports, ReportLog::new(number));
    }

    /// Another process has owned the pipeline, or another history begins.
    pub(super) fn clear(&mut self) {
        self.events.clear();
    }
}

/// How a process reads its events next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum NextReading {
    /// As the mode says.
    #[default]
    AsConfigured,
    /// From the table, because the slot can't be used.
    Poll,
    /// From the list of a repair.
    Repair,
}

/// What a process remembers of its connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) next: NextReading,
    /// The slot is to be dropped as soon as the table is polled.
    pub(super) drops_slot: bool,
    /// The session that reads events, with the lock of the pipeline.
    pub(super) session: Option<SessionId>,
    /// The epoch of its last stream.
    pub(super) owned: Option<u64>,
    /// The slot whose positions its relay knows.
    pub(super) history: Option<u64>,
    /// When the lease of the last stream ends.
    pub(super) lease_ends: u64,
    /// The start check found that the slot was moved, and nothing else happened since.
    pub(super) slot_moved: bool,
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) index: usize,
    pub(super) engine: Engine,
    pub(super) producer: Producer,
    pub(super) mailbox: Vec<Post>,
    /// Reports of a discarded producer, and when they are received.
    late_reports: Vec<(u64, Ticket, Outcome)>,
    pub(super) buffer: RecordBuffer,
    pub(super) confirmed: u64,
    pub(super) connections: Connections,
    born_at: u64,
    /// Number of boundaries of effects until the process dies.
    pub(super) dies_after: Option<u64>,
    pub(super) overtakings: Overtakings,
    /// Maximum number of parked rows, including events that the stream repeats.
    pub(super) rows_max: u64,
}

impl Process {
    pub(super) fn new(index: usize, now: u64, knobs: &Knobs, rules: Option<TableRules>) -> Self {
        let row_status = match rules {
            Some(TableRules { mode: SourceMode::Auto, .. }) => RowStatusRule::Required,
            Some(TableRules { mode: SourceMode::Wal, statuses: true, .. }) => RowStatusRule::Beside,
            Some(_) | None => RowStatusRule::Off,
        };
        Self {
            index,
            engine: Engine::new(knobs.settings, row_status),
            producer: Producer::new(knobs, 0, now),
            mailbox: Vec::new(),
            late_reports: Vec::new(),
            buffer: RecordBuffer::default(),
            confirmed: 0,
            connections: Connections { lease_ends: now, ..Connections::default() },
            born_at: now,
            dies_after: None,
            overtakings: Overtakings::default(),
            rows_max: 0,
        }
    }

    /// The relay's clock.
    pub(super) fn clock(&self, now: u64) -> Duration {
        Duration::from_millis(now - self.born_at)
    }

    /// A time of the relay's clock, by the world's clock. It is rounded up, because a deadline has to be over.
    pub(super) fn at(&self, due: Duration) -> u64 {
        self.born_at + u64::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap()
    }

    /// The deadline of the relay, by the world's clock.
    pub(super) fn due(&self) -> Option<u64> {
        self.engine.relay().deadline().map(|due| self.at(due))
    }

    pub(super) fn apply(&mut self, ground: &mut Ground, input: Input<'_>) -> Check {
        if ground.transcribes {
            ground.log(self.index, &format!("{input:?}"));
        }
        self.call(ground, |engine, clock| engine.apply(clock, input))
    }

    /// Calls the engine with one input, and checks the bounds afterwards.
    pub(super) fn call<T>(
        &mut self,
        ground: &mut Ground,
        input: impl FnOnce(&mut Engine, Duration) -> T,
    ) -> Check<T> {
        ground.result.inputs += 1;
        self.ask(ground, input)
    }

    /// As [`Self::call`], for what is no input: the process only finds out whether something is to be done.
    pub(super) fn ask<T>(
        &mut self,
        ground: &mut Ground,
        input: impl FnOnce(&mut Engine, Duration) -> T,
    ) -> Check<T> {
        let clock = self.clock(ground.now);
        let first = self.engine.effects().len();
        let answer = input(&mut self.engine, clock);
        if ground.transcribes {
            let effects = self.engine.effects().iter().skip(first);
            let lines: Vec<String> = effects.map(|effect| format!("    {effect:?}")).collect();
            for line in lines {
                ground.log(self.index, &line);
            }
        }
        self.check_bounds(ground)?;
        Ok(answer)
    }

    fn check_bounds(&self, ground: &Ground) -> Check {
        let (relay, settings) = (self.engine.relay(), &ground.knobs.settings);
        let (events, bytes) = relay.in_flight();
        // Attempts are included: 32 at most.
        let (most, parked) = (settings.limits.events_max + 32, relay.parked().total());
        if events > most || bytes > settings.limits.bytes_max + 120 {
            return wrong(format!("{events} events and {bytes} bytes are in flight"));
        }
        // Events that the stream repeats may be parked again, besides those parked behind them.
        if parked > self.rows_max.max(settings.rules.rows_max) {
            return wrong(format!("{parked} events are parked"));
        }
        Ok(())
    }

    /// A boundary of an effect, at which the process may die.
    pub(super) fn boundary(&mut self) -> Check {
        match &mut self.dies_after {
            None => Ok(()),
            Some(0) => Err(Stop::Died),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// Takes the effects that are not performed yet.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(self.engine.effects())
    }

    /// Passes the reports of the sink to the relay.
    pub(super) fn take_posts(&mut self, ground: &mut Ground) -> Check {
        let now = ground.now;
        let due: Vec<_> = self.late_reports.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, ticket, outcome) in due {
            self.apply(ground, Input::Report { ticket, outcome })?;
        }
        for post in std::mem::take(&mut self.mailbox) {
            match post {
                Post::Report { record, outcome: TOO_LARGE, by: _ } => {
                    let (ticket, event) = (record.ticket, record.event);
                    let Outcome::Rejected { reason, .. } = TOO_LARGE else { continue };
                    let halt = halt(HaltReason::PoisonEvent);
                    let parked = self.call(ground, |engine, clock| {
                        engine.large_refused(clock, ticket, reason, halt)
                    })?;
                    if let Some(entry) = parked {
                        self.buffer_record(ground, entry, event)?;
                    }
                }
                Post::Report { record, outcome, by } => {
                    let of_stream = record.version == 0 && record.ticket.0 >> 63 == 0;
                    let streams = self.connections.history.is_some();
                    let overtakes = ground.sink.is_none();
                    if of_stream && streams && overtakes && !self.engine.ending() {
                        self.overtakings.record(&ground.truth, record.event, outcome, by);
                    }
                    let first = self.engine.effects().len();
                    self.apply(ground, Input::Report { ticket: record.ticket, outcome })?;
                    self.check_reported(ground, record.event, first)?;
                }
                Post::Broken => self.apply(ground, Input::SinkBroken)?,
                Post::Recovered(call, recovered) => {
                    self.apply(ground, Input::SinkRecovered { call, recovered })?;
                }
                Post::Committed(call) => self.apply(ground, Input::SinkCommitted { call })?,
            }
        }
        Ok(())
    }

    /// The publication of an overtaken event is reported as such.
    fn check_reported(&mut self, ground: &Ground, event: usize, first: usize) -> Check {
        let effects = self.engine.effects().get(first..).unwrap_or_default();
        let published = effects.iter().any(|effect| matches!(effect, Effect::Published { .. }));
        let reported = effects.iter().any(|effect| matches!(effect, Effect::Overtaken { .. }));
        if published && self.overtakings.events.remove(&event) && !reported {
            let position = ground.truth.events[event].position;
            return wrong(format!(
                "{position} was overtaken and published, and no effect reports that"
            ));
        }
        Ok(())
    }

    /// The producer that the sink knows.
    fn caller(&self) -> Caller {
        Caller { process: self.index, life: self.producer.life, producer: self.producer.number }
    }

    /// Whether this is the producer that has called the sink.
    pub(super) fn is_caller(&self, caller: Caller) -> bool {
        self.caller() == caller
    }

    /// The sink fences former producers off.
    pub(super) fn recover_sink(&mut self, ground: &mut Ground, call: SinkCall) {
        self.producer.recover(call);
        ground.call_sink(self.caller(), call, Request::Recover);
    }

    /// The sink commits the open transaction.
    pub(super) fn commit_sink(
        &mut self,
        ground: &mut Ground,
        call: SinkCall,
        (progress, attempts): (Progress, Vec<Position>),
    ) {
        if let Some(closed) = self.producer.take_open() {
            let request =
                Request::Commit(CommitRequest { closed, progress, attempts, called: ground.now });
            ground.call_sink(self.caller(), call, request);
        }
    }

    /// An event is published. If the sink publishes in transactions, the event is visible by now.
    pub(super) fn published(&mut self, ground: &Ground, ticket: Ticket) -> Check {
        self.engine.row_status().published(ticket);
        match self.producer.tickets.remove(&ticket) {
            Some(event) if !ground.truth.delivered(event) => {
                let position = ground.truth.events[event].position;
                wrong(format!("{position} counts as published, and is not visible"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Performs the effects that need no session. Returns whether the relay has ended.
    pub(super) fn perform_offline(&mut self, ground: &mut Ground) -> Check<bool> {
        let mut over = false;
        for effect in self.take_effects() {
            match effect {
                Effect::Restart { why } => self.reset_sink(ground, why)?,
                Effect::Drained | Effect::Halt(_) => over = true,
                Effect::Published { ticket, .. } => self.published(ground, ticket)?,
                Effect::RecoverSink { call } => self.recover_sink(ground, call),
                Effect::CommitSink { call, progress, attempts } => {
                    self.commit_sink(ground, call, (progress, attempts));
                }
                Effect::Overtaken { .. }
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

    pub(super) fn reset_sink(&mut self, ground: &mut Ground, why: Restart) -> Check {
        ground.log(self.index, &format!("reset {}", why.name()));
        let ready_from = Producer::ready_at(&mut ground.rng, ground.now);
        let (knobs, now) = (ground.knobs, ground.now);
        self.buffer = RecordBuffer::default();
        self.engine.row_status().given_up();
        let number = self.producer.number + 1;
        self.overtakings.replace(&ground.truth, number);
        // Reports that were posted before are still in the mailbox.
        while ground.rng.chance(500)
            && let Some(post) = self.producer.report(&knobs, &mut ground.rng)
        {
            self.mailbox.push(post);
        }
        while ground.late.chance(knobs.late_reports)
            && let Some(Post::Report { record, outcome, by: _ }) =
                self.producer.report(&knobs, &mut ground.late)
        {
            let at = now + ground.late.below(LATE_REPORT_MAX);
            self.late_reports.push((at, record.ticket, outcome));
        }
        self.producer.discard(&mut ground.truth, (&knobs, &mut ground.rng, now))?;
        let life = self.producer.life;
        self.producer = Producer::new(&knobs, number, ready_from);
        self.producer.life = life;
        Ok(())
    }

    /// Only the owner passes records to its sink.
    fn check_owner(&self, ground: &Ground) -> Check {
        if ground.database.is_some() && ground.publisher != self.index {
            return wrong(format!(
                "p{} publishes, and p{} is the owner",
                self.index, ground.publisher
            ));
        }
        Ok(())
    }

    fn enqueue(&mut self, ground: &mut Ground, record: Record) -> Result<(), NotTaken> {
        let knobs = (&ground.knobs, &mut ground.rng, ground.now);
        self.producer.enqueue(&mut ground.truth, knobs, record)
    }

    /// Offers an event of the stream, or of a claim, to the engine, and passes it to the sink if the engine says so.
    /// `commit_time`: that of its transaction, if the stream has it. Returns whether the next change is read.
    pub(super) fn offer(
        &mut self,
        ground: &mut Ground,
        event: usize,
        commit_time: Option<Timestamp>,
    ) -> Check<bool> {
        match self.engine.next_change() {
            NextChange::Wait => return Ok(false),
            NextChange::Repeated => {
                self.skip(ground)?;
                return Ok(true);
            }
            NextChange::New(_) => {}
        }
        let facts = ground.truth.rows.get(event).cloned();
        let id = facts.as_ref().map_or_else(String::new, |row| row.id.to_string());
        if let Bad::Poison { known } = ground.truth.bad(event, ground.now) {
            return self.offer_poison(ground, (event, &id), known);
        }
        let what = &ground.truth.events[event];
        let Some(next) = self.engine.relay().upcoming() else { return Ok(false) };
        let overtaken = self.engine.relay().is_overtaken(next.position);
        let offered = Offered {
            position: next.position,
            id: &id,
            aggregate: aggregate_of(&ground.truth, event),
            size_bytes: usize::try_from(what.size).unwrap(),
            available_at: Some(super::ground::wall(what.not_before)),
            expires_at: facts.and_then(|row| row.expires_at).map(super::ground::wall),
            wall: ground.wall(),
        };
        if ground.transcribes {
            let position = what.position;
            ground.log(self.index, &format!("offer {position} at {}", next.position));
        }
        let doubted = || halt(HaltReason::PoisonEvent);
        let answer = self.call(ground, |engine, clock| engine.offer(clock, &offered, doubted))?;
        if ground.transcribes {
            ground.log(self.index, &format!("    {answer:?}"));
        }
        match answer {
            Answer::Publish(ticket) => {
                // The pipeline removes the position of an overtaken record, because consumers have a later event
                // already. Records of claims have none.
                let has_position = commit_time.is_some();
                if has_position && self.overtakings.events.contains(&event) && !overtaken {
                    let position = ground.truth.events[event].position;
                    return wrong(format!(
                        "{position} was overtaken, and is published with its position"
                    ));
                }
                self.publish(ground, (ticket, event), (&offered, commit_time))
            }
            Answer::Wait => Ok(false),
            Answer::Park(entry, _) => {
                self.buffer_record(ground, *entry, event)?;
                Ok(true)
            }
            Answer::Doubted(entry) => {
                ground.truth.events[event].refused += 1;
                if let Some(entry) = entry {
                    self.buffer_record(ground, *entry, event)?;
                }
                Ok(true)
            }
            Answer::Expired if !ground.truth.is_expired(event) => {
                let position = ground.truth.events[event].position;
                wrong(format!("{position} is skipped as expired, and has not expired"))
            }
            Answer::Repeated => {
                Self::check_skipped(ground, event)?;
                Ok(true)
            }
            Answer::Expired | Answer::Nothing => Ok(true),
        }
    }

    /// The next change is no event, or a repeated one.
    pub(super) fn skip(&mut self, ground: &mut Ground) -> Check {
        if ground.transcribes {
            ground.log(self.index, "skip");
        }
        self.call(ground, Engine::skip)
    }

    /// An event that is skipped by its id is published, or has a row in the parked table.
    fn check_skipped(ground: &Ground, event: usize) -> Check {
        let (truth, server) = (&ground.truth, &ground.server);
        if truth.settled(event) || server.has_parked(truth, event) {
            return Ok(());
        }
        wrong(format!(
            "{} is skipped by its id, and is not published",
            truth.events[event].position
        ))
    }

    fn offer_poison(
        &mut self,
        ground: &mut Ground,
        (event, id): (usize, &str),
        known: bool,
    ) -> Check<bool> {
        let Some(next) = self.engine.relay().upcoming() else { return Ok(false) };
        let aggregate = known.then(|| aggregate_of(&ground.truth, event));
        ground.truth.events[event].refused += 1;
        if ground.transcribes {
            let position = ground.truth.events[event].position;
            ground.log(self.index, &format!("poison {position} at {}", next.position));
        }
        let halt = || halt(HaltReason::PoisonEvent);
        let answer = self.call(ground, |engine, clock| {
            engine.poison(clock, (next.position, id), aggregate, halt)
        })?;
        match answer {
            PoisonAnswer::New(Some(entry)) => self.buffer_record(ground, entry, event)?,
            PoisonAnswer::Repeated => Self::check_skipped(ground, event)?,
            PoisonAnswer::New(None) => {}
        }
        Ok(true)
    }

    /// Passes an event to the sink. Returns whether the next change is read.
    fn publish(
        &mut self,
        ground: &mut Ground,
        (ticket, event): (Ticket, usize),
        (offered, commit_time): (&Offered<'_>, Option<Timestamp>),
    ) -> Check<bool> {
        self.boundary()?;
        // In runs with large records the broker refuses one for its size.
        let broker_decides =
            ground.large.in_1000 > 0 && ground.truth.bad(event, ground.now) == Bad::TooLarge;
        let large = ground.large.rng.chance(ground.large.in_1000) || broker_decides;
        if large && !self.engine.relay().sends_exclusively() {
            return self.not_taken(ground, (ticket, event), offered, sink::NotTaken::Alone);
        }
        self.check_owner(ground)?;
        let record = Record { ticket, event, version: 0 };
        let taken = if ground.broker_is_down() {
            Err(NotTaken::Full)
        } else if broker_decides {
            let knobs = (&ground.knobs, &mut ground.rng, ground.now);
            self.producer.send_refused(&mut ground.truth, knobs, record)
        } else {
            self.enqueue(ground, record)
        };
        self.boundary()?;
        let reason = Refusal::destination("none of this name");
        let not_taken = match taken {
            Ok(()) => {
                if ground.sink.is_some() {
                    self.producer.tickets.insert(ticket, event);
                }
                let time_ms = Some(time_of(event));
                let row = commit_time.map(|commit_time| SentRow { commit_time, time_ms });
                self.engine.taken(ticket, offered, row);
                return Ok(true);
            }
            // The destination was unavailable for long enough, or its metadata may be stale.
            Err(NotTaken::Destination) if ground.late.chance(300) => {
                let stale = ground.late.chance(500);
                let soon = ground.large.rng.chance(500);
                match (stale, soon) {
                    (true, _) => sink::NotTaken::Doubted(reason),
                    (false, true) => sink::NotTaken::Missing,
                    (false, false) => sink::NotTaken::Unavailable,
                }
            }
            Err(NotTaken::Full) => sink::NotTaken::Full,
            Err(NotTaken::Destination) => sink::NotTaken::Destination,
            Err(NotTaken::Refused(reason)) => sink::NotTaken::Refused(reason),
        };
        self.not_taken(ground, (ticket, event), offered, not_taken)
    }

    /// The sink has not taken a record. Returns whether the next change is read.
    fn not_taken(
        &mut self,
        ground: &mut Ground,
        (ticket, event): (Ticket, usize),
        offered: &Offered<'_>,
        not_taken: sink::NotTaken,
    ) -> Check<bool> {
        if ground.transcribes {
            ground.log(self.index, &format!("{not_taken:?}"));
        }
        let id = offered.id;
        let set_aside = self.call(ground, |engine, clock| {
            let halt = |_| halt(HaltReason::PoisonEvent);
            engine.not_taken(clock, (ticket, id), not_taken, || true, halt)
        })?;
        let Some(set_aside) = set_aside else { return Ok(false) };
        if let Some(entry) = set_aside.entry {
            self.buffer_record(ground, entry, event)?;
        }
        Ok(true)
    }

    /// Keeps the record of a parked event, and checks its entry.
    fn buffer_record(&mut self, ground: &mut Ground, entry: Entry, event: usize) -> Check {
        let refused = matches!(entry.state, State::Waiting | State::Dead);
        if refused && self.overtakings.events.remove(&event) && entry.overtaken_by.is_none() {
            return wrong(format!(
                "{} was overtaken, and its row does not record that",
                entry.position
            ));
        }
        self.buffer.rows.push_back((entry, event));
        let what = &mut ground.truth.events[event];
        let may_block = ground.knobs.settings.rules.on_poison != OnPoison::SkipEvent;
        if entry.lane.is_none() && what.aggregate.is_some() && may_block {
            return wrong(format!(
                "{} is parked, and does not block its aggregate",
                entry.position
            ));
        }
        what.overtaken |= entry.lane.is_none();
        Ok(())
    }

    /// Offers the waiting probes and attempts to the sink.
    pub(super) fn offer_attempts(&mut self, ground: &mut Ground) -> Check {
        for ticket in std::mem::take(&mut self.buffer.probes) {
            let unavailable = ground.late.chance(ground.knobs.destination_down);
            let (scope, reason) = (Scope::Destination, Refusal::destination("none of this name"));
            let outcome = Outcome::Rejected { scope, reason };
            let report = Input::Report { ticket, outcome };
            self.apply(ground, if unavailable { report } else { Input::Probed { ticket } })?;
        }
        let mut left = VecDeque::new();
        for attempt in std::mem::take(&mut self.buffer.attempts) {
            let Some((event, version)) = attempt.record else {
                left.push_back(attempt);
                continue;
            };
            if ground.broker_is_down() {
                left.push_back(attempt);
                continue;
            }
            self.check_owner(ground)?;
            let record = Record { ticket: attempt.ticket, event, version };
            let outcome = match self.enqueue(ground, record) {
                Ok(()) => continue,
                Err(NotTaken::Full) => {
                    left.push_back(attempt);
                    continue;
                }
                Err(NotTaken::Destination) if ground.now - attempt.since < DESTINATION_WAIT_MAX => {
                    left.push_back(attempt);
                    continue;
                }
                Err(NotTaken::Destination) => {
                    let reason = Refusal::destination("none of this name");
                    Outcome::Rejected { scope: Scope::Destination, reason }
                }
                Err(NotTaken::Refused(reason)) => Outcome::Rejected { scope: Scope::Event, reason },
            };
            self.apply(ground, Input::Report { ticket: attempt.ticket, outcome })?;
        }
        let attempts = &mut self.buffer.attempts;
        left.append(attempts);
        *attempts = left;
        Ok(())
    }

    /// Takes the records that were read for attempts: positions, and the events and versions that were found.
    pub(super) fn take_records(
        &mut self,
        ground: &mut Ground,
        requested: &[Position],
        found: &[(Position, usize, u32)],
    ) -> Check {
        let mut missing = Vec::new();
        self.buffer.attempts.retain_mut(|attempt| {
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
            Self::check_missing(ground, position)?;
            self.apply(ground, Input::RowMissing { ticket })?;
        }
        self.offer_attempts(ground)
    }

    /// Only a row that is deleted or resolved can be missing.
    fn check_missing(ground: &Ground, position: Position) -> Check {
        let truth = &ground.truth;
        let event = truth.events.iter().position(|event| event.position == position);
        // The position of a claim is not that of an event.
        let excused = event.is_none() && ground.database.is_some();
        if !excused && event.is_none_or(|event| !truth.settled(event)) {
            return wrong(format!("{position} is attempted, and has no row"));
        }
        Ok(())
    }
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Over,
    Restart,
    /// The slot retains more WAL than it may: it is dropped, and the table is polled.
    DropSlot,
    /// Polling has ended: the stream continues, or another process has taken over.
    PollingEnds,
    /// The connection to the server is lost.
    Lost,
}
