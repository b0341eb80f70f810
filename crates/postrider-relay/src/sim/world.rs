//! The world of one run: its servers and processes, and which of them has the next turn.
//!
//! [`World`] does what `pipeline` does, in the same order, with the fakes in place of servers and clients. It checks
//! after each step what must always be true, and after the last fault what must become true.

use super::broker::Post;
use super::ground::{Ground, WORLD};
use super::outbox::{Sent, SessionId};
use super::plan::{AGGREGATES, Bad, Fault, Plan, PlannedChange, PlannedTransaction, SourceMode};
use super::polling::PollSession;
use super::postgres::{Transaction, WalChange, at, watermark};
use super::process::{End, NextReading, Process, halt};
use super::stage::Stage;
use super::store::{ahead_of_cursor, withdrawn};
use super::streaming::Session;
use super::transactional_sink::SinkAnswer;
use super::truth::RowFacts;
use super::walsender::Walsender;
use super::{Check, Run, Stop, wrong};
use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use crate::relay::{Input, OnPoison};
use postrider_core::error::HaltReason;
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::outbox_rows::FoundParked;
use postrider_core::parked::{Entry, Request, State};

/// Number of steps between the last fault or transaction and [`World::finish`].
const STEPS_AFTER_FAULTS: u64 = 150;

/// How long a process without a connection keeps its events in flight. As in `pipeline`, in a world that is ten times
/// as fast. Unit: milliseconds.
const LEASE: u64 = 300;

/// Maximum number of steps until everything is idle.
const STEPS_UNTIL_IDLE_MAX: u64 = 100_000;

/// Maximum number of times that all events are fixed because the parked table is full.
const FIXES_MAX: u32 = 20;

/// Maximum time for which the server does not notice that a session has ended, refuses streams, and the brokers are not
/// available. Unit: milliseconds.
const OUTAGE_MAX: u64 = 600;

/// The aggregate of the event at the end.
const FRESH: u64 = AGGREGATES;

/// The world of one run.
struct World {
    plan: Plan,
    ground: Ground,
    step: u64,
    procs: Vec<Process>,
    /// How far each process has come.
    stages: Vec<Stage>,
}

impl World {
    fn new(plan: &Plan, transcribes: bool) -> Self {
        let knobs = plan.knobs;
        let ground = Ground::new(plan, transcribes);
        let process = |i| Process::new(i, 0, &knobs, plan.table);
        let procs: Vec<Process> = (0..knobs.processes).map(process).collect();
        let stages = procs.iter().map(|_| Stage::Off { until: 0 }).collect();
        Self { plan: plan.clone(), ground, step: 0, procs, stages }
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
                self.ground.result.faults += 1;
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
        let turns = self.ground.knobs.turns;
        let mut left = self.ground.rng.below(turns.iter().sum());
        let who = turns.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        let i = self.ground.rng.index(self.procs.len());
        match who.unwrap() {
            0 => {
                for _ in 0..self.ground.rng.range(1, 4) {
                    self.serve(i);
                }
                Ok(())
            }
            1 if self.ground.broker_is_down() => Ok(()),
            1 if self.ground.sink.is_some() && self.ground.rng.chance(500) => self.serve_sink(),
            1 => {
                let ground = &mut self.ground;
                let knobs = (&ground.knobs, &mut ground.rng, ground.now);
                self.procs[i].producer.batch(&mut ground.truth, knobs)
            }
            2 => {
                for _ in 0..self.ground.rng.range(1, 4) {
                    self.report(i);
                }
                Ok(())
            }
            3 => match self.ground.rng.below(4) {
                0 => self.status(i),
                1 => match self.ground.server.orphans.pop_front() {
                    None => Ok(()),
                    Some(statement) => self.ground.execute(Sent::Table(statement)).map(drop),
                },
                _ => self.control(i),
            },
            4 => self.take_turn(i),
            _ => self.pass(),
        }
    }

    /// The sink executes a call.
    fn serve_sink(&mut self) -> Check {
        let Some(caller) = self.ground.serve_sink()? else { return Ok(()) };
        let process = &self.procs[caller.process];
        if process.is_caller(caller) {
            process.producer.commit_open(&self.ground.truth)?;
        }
        Ok(())
    }

    /// Time passes.
    fn pass(&mut self) -> Check {
        self.ground.pass();
        let now = self.ground.now;
        let Some(database) = &mut self.ground.database else { return Ok(()) };
        let noticed = |(until, _): &mut (u64, SessionId)| *until <= now;
        let ended: Vec<_> = database.ownership.ghosts.extract_if(.., noticed).collect();
        for (_, session) in ended {
            database.outbox.roll_back(session);
            database.ownership.unlock(session);
        }
        for job in &mut database.jobs {
            job.execute(&mut self.ground.server, &mut database.ownership, now)?;
        }
        database.jobs.retain(|job| !job.is_done());
        Ok(())
    }

    fn take_turn(&mut self, i: usize) -> Check {
        match self.turn(i) {
            Err(Stop::Died) => self.kill(i),
            other => other,
        }
    }

    /// An answer of the sink arrives.
    fn answer(&mut self) {
        let Some(sink) = &mut self.ground.sink else { return };
        let Some((caller, answer)) = sink.answer(self.ground.now) else { return };
        let i = caller.process;
        let process = &mut self.procs[i];
        if process.producer.life != caller.life || self.stages[i].is_off() {
            return;
        }
        self.ground.log(i, &format!("the sink answers {answer:?}"));
        match answer {
            SinkAnswer::Recovered(call, recovered) => {
                process.mailbox.push(Post::Recovered(call, recovered));
            }
            SinkAnswer::Committed { call, twice } => {
                process.mailbox.push(Post::Committed(call));
                // A producer whose commit was sent twice is replaced.
                let replaces = twice && !injected(Bug::KeepsProducerSentTwice);
                if replaces && process.is_caller(caller) && self.ground.has_coordinator() {
                    process.producer.fatal();
                }
            }
            SinkAnswer::Failed if process.is_caller(caller) => process.producer.fatal(),
            SinkAnswer::Lost if process.is_caller(caller) => process.producer.silent = true,
            SinkAnswer::Failed | SinkAnswer::Lost => {}
        }
    }

    fn report(&mut self, i: usize) {
        self.answer();
        let ground = &mut self.ground;
        let post = self.procs[i].producer.report(&ground.knobs, &mut ground.rng);
        let Some(post) = post else { return };
        if self.stages[i].is_off() {
            return;
        }
        if ground.transcribes {
            let line = match &post {
                Post::Report { record, outcome, by: _ } => {
                    let at = ground.truth.events[record.event].position;
                    format!("the sink reports {at} {outcome:?}")
                }
                Post::Broken => "the sink reports that it is broken".into(),
                Post::Recovered(..) | Post::Committed(_) => format!("the sink reports {post:?}"),
            };
            ground.log(i, &line);
        }
        self.procs[i].mailbox.push(post);
    }

    /// A transaction commits, or is rolled back.
    fn commit(&mut self, planned: &PlannedTransaction) {
        let ground = &mut self.ground;
        let (commit, end) = ground.server.write(planned.gap);
        if planned.rolled_back || planned.changes.is_empty() {
            return;
        }
        let (now, xid) = (ground.now, ground.server.next_xid());
        // A savepoint has a number of its own.
        let xmin = if planned.savepoint { ground.server.next_xid() } else { xid };
        let hidden_until = now + planned.hidden;
        let mut changes = Vec::new();
        for (change, ordinal) in planned.changes.iter().zip(0..) {
            changes.push(match *change {
                PlannedChange::Other => WalChange::Other,
                PlannedChange::Event { aggregate, bad, fixed_after, size, delay, expires } => {
                    let position = Position { commit: at(commit), ordinal };
                    let aggregate = Some(usize::try_from(aggregate).unwrap())
                        .filter(|_| bad != Bad::Poison { known: false });
                    let times = (size, now + delay);
                    let fixed = now + fixed_after;
                    let event = ground.truth.commit(position, aggregate, bad, fixed, times);
                    let id = u64::try_from(event).unwrap() + 1;
                    let expires_at = (expires > 0).then_some(now + expires);
                    insert_row(ground, (event, id), (xmin, hidden_until), expires_at);
                    WalChange::Event(event)
                }
            });
        }
        if ground.transcribes {
            ground.log(WORLD, &format!("commit {} {changes:?}", at(commit)));
        }
        let transaction = Transaction { commit, end, changes, xid, time: now, hidden_until };
        ground.server.transactions.push(transaction);
    }

    /// A process has the turn.
    fn turn(&mut self, i: usize) -> Check {
        match &self.stages[i] {
            Stage::Off { until } if *until <= self.ground.now => {
                self.boot(i);
                Ok(())
            }
            Stage::Off { .. } => Ok(()),
            Stage::Streaming(_) | Stage::Polling(_) => self.read(i),
            Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => {
                self.wait(i)?;
                if self.stages[i].is_off() {
                    return Ok(());
                }
                self.connect(i)
            }
        }
    }

    /// One turn of the loop of a process that streams or polls.
    fn read(&mut self, i: usize) -> Check {
        if let Stage::Polling(session) = &mut self.stages[i]
            && session.takes_over()
        {
            self.fence_others(i)?;
        }
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        let end = match &mut self.stages[i] {
            Stage::Streaming(session) => session.turn(ground, process),
            Stage::Polling(session) => session.turn(ground, process),
            Stage::Off { .. }
            | Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => Ok(None),
        };
        match end? {
            Some(end) => self.end(i, end),
            None => Ok(()),
        }
    }

    /// A turn without a stream: reports are received, and the lease may end.
    fn wait(&mut self, i: usize) -> Check {
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        process.take_posts(ground)?;
        if process.perform_offline(ground)? {
            return self.exit(i);
        }
        let held = process.engine.relay().in_flight().0 > 0;
        if held && process.connections.lease_ends <= ground.now {
            process.apply(ground, Input::SlotTaken)?;
            if process.perform_offline(ground)? {
                return self.exit(i);
            }
        }
        Ok(())
    }

    /// The next step of a process that connects.
    fn connect(&mut self, i: usize) -> Check {
        let pause = Stage::Pause { until: self.ground.now };
        let stage = std::mem::replace(&mut self.stages[i], pause);
        let stage = match stage {
            Stage::Pause { until } if until > self.ground.now => Stage::Pause { until },
            Stage::Pause { .. } => self.begin_handshake(i)?,
            Stage::Read { row } if self.ground.server.slot.holder.is_some() => {
                // `55006`: another process was faster.
                self.ground.log(i, &format!("too late for {row:?}"));
                self.unlock(i);
                Stage::Pause { until: self.ground.now + 1 }
            }
            Stage::Read { .. } if !self.ground.server.slot.is_usable() => {
                self.unlock(i);
                Stage::Pause { until: self.ground.now + 1 }
            }
            Stage::Read { row } => {
                self.ground.server.slot.holder = Some(i);
                self.fence_others(i)?;
                if self.ground.server.slot.confirmed > row.watermark.offset().get() {
                    // Another process has streamed meanwhile, so the handshake starts again.
                    self.ground.server.slot.holder = None;
                    self.unlock(i);
                    Stage::Pause { until: self.ground.now + 1 }
                } else {
                    Stage::Owns { start: row }
                }
            }
            Stage::Owns { start } => {
                let ground = &mut self.ground;
                ground.server.epoch += 1;
                // Only now can no other process write the row any more.
                let row = ground.server.row;
                if ground.database.is_some() {
                    ground.server.put_before_stream(&mut ground.truth)?;
                }
                let (parked, requests) = ground.server.load(row.position(), ground.now);
                Stage::TookOver { start, row, parked, requests }
            }
            Stage::TookOver { start, row, parked, requests } => {
                return self.begin(i, start, row, (&parked, &requests));
            }
            other @ (Stage::Off { .. } | Stage::Streaming(_) | Stage::Polling(_)) => other,
        };
        if matches!(self.stages[i], Stage::Pause { .. }) {
            self.stages[i] = stage;
        }
        Ok(())
    }

    /// The first step of a handshake. Returns the next stage.
    fn begin_handshake(&mut self, i: usize) -> Check<Stage> {
        let now = self.ground.now;
        if let Some(rules) = self.ground.rules() {
            let next = self.procs[i].connections.next;
            if next != NextReading::AsConfigured || rules.mode == SourceMode::Poll {
                return self.open(i);
            }
            return self.begin_locked(i, rules.mode);
        }
        match self.ground.server.slot.holder {
            Some(_) => {
                self.stand_by(i)?;
                Ok(Stage::Pause { until: now + self.ground.rng.range(1, 40) })
            }
            None => Ok(Stage::Read { row: self.ground.server.resume()? }),
        }
    }

    /// A process connects to poll, or to repair. Returns its next stage.
    fn open(&mut self, i: usize) -> Check<Stage> {
        let ground = &mut self.ground;
        let pause = ground.database.as_mut().map_or(0, |database| database.rng.range(1, 40));
        let session = PollSession::open(ground, &mut self.procs[i])?;
        Ok(match session {
            Some(session) => Stage::Polling(Box::new(session)),
            None => Stage::Pause { until: ground.now + pause },
        })
    }

    /// Another process has the slot or the lock: this process may not send what it has in flight.
    fn stand_by(&mut self, i: usize) -> Check {
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        process.connections.slot_moved = false;
        if process.engine.relay().in_flight().0 > 0 {
            process.apply(ground, Input::SlotTaken)?;
        }
        Ok(())
    }

    /// The first step of the handshake of a stream, in a world with an outbox table: takes the lock of the pipeline,
    /// and checks whether a stream may start.
    fn begin_locked(&mut self, i: usize, mode: SourceMode) -> Check<Stage> {
        let now = self.ground.now;
        let Some(database) = &mut self.ground.database else {
            return Ok(Stage::Pause { until: now });
        };
        let pause = Stage::Pause { until: now + database.rng.range(1, 40) };
        let session = database.ownership.connect();
        if !database.ownership.lock(session) || self.ground.server.slot.holder.is_some() {
            database.ownership.unlock(session);
            self.stand_by(i)?;
            return Ok(pause);
        }
        let (slot, row) = (&self.ground.server.slot, self.ground.server.row);
        let moved = slot.confirmed > watermark(row);
        let ownership = &mut database.ownership;
        let refused = mode == SourceMode::Auto && ownership.refuses_until > now;
        let unrepaired = ownership.unfinished().is_some();
        let may_stream = !unrepaired && !ownership.polls_on && slot.is_usable() && !refused;
        let connections = &mut self.procs[i].connections;
        if may_stream && !moved {
            connections.session = Some(session);
            connections.slot_moved = false;
            return Ok(Stage::Read { row });
        }
        ownership.unlock(session);
        if may_stream {
            if !std::mem::replace(&mut connections.slot_moved, true) {
                return Ok(pause);
            }
            // The job of an earlier owner has created the slot, and has not bound the cursor row to it.
            if mode != SourceMode::Auto || injected(Bug::SlotIsNotBound) {
                return wrong("the pipeline halts, because the slot was moved".into());
            }
        }
        connections.slot_moved = false;
        connections.next = match mode {
            SourceMode::Auto => NextReading::Poll,
            SourceMode::Wal | SourceMode::Poll => NextReading::Repair,
        };
        self.ground.log(i, &format!("next {:?}", self.procs[i].connections.next));
        // What is in flight is given up before a repair.
        if mode == SourceMode::Wal {
            self.stand_by(i)?;
        }
        Ok(Stage::Pause { until: now })
    }

    fn begin(
        &mut self,
        i: usize,
        start: Progress,
        row: Progress,
        (parked, requests): (&[Entry], &[(Position, Request)]),
    ) -> Check {
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        ground.publisher = i;
        let from = start.watermark.offset().get();
        let (walsender, first) = Walsender::start(&ground.server, from);
        let epoch = ground.server.epoch;
        let session = Session::new(epoch, walsender, first, ground.now);
        self.stages[i] = Stage::Streaming(Box::new(session));
        let created = ground.server.slot.created;
        let before = process.connections.owned.replace(epoch);
        let same_owner = before.is_some_and(|before| before + 1 == epoch);
        let same_history = process.connections.history.replace(created) == Some(created);
        let cursor = row.watermark.offset().get();
        process.confirmed = if same_history { process.confirmed.max(cursor) } else { cursor };
        if !same_owner {
            process.overtakings.clear();
        }
        let repeated = ground.truth.events.iter().filter(|event| event.position >= row.position());
        let rows = parked.iter().filter(|entry| !entry.state.resolved()).count() as u64;
        let rows_max = ground.knobs.settings.rules.rows_max;
        process.rows_max = rows.max(rows_max) + repeated.count() as u64;
        if let Some(database) = &mut ground.database {
            database.streamed = true;
            let engine = &mut process.engine;
            let ahead = |(at, row): (&Position, _)| ahead_of_cursor(ground, *at, row);
            let rows = ground.server.table.iter().map(|(at, row)| (at, row.event));
            let rows = rows.filter(|(at, _)| at.commit >= row.watermark.offset());
            engine.row_status().prepared(true);
            let ahead = rows.filter_map(ahead).collect();
            let withdrawn = withdrawn(ground);
            engine.stream_begins(FoundParked { ahead, withdrawn });
            engine.streams(signed(epoch - 1), signed(epoch));
        }
        process.apply(
            ground,
            Input::Started { cursor: row, same_history, same_owner, parked, requests },
        )?;
        self.perform(i)
    }

    /// Performs the effects of a stream.
    fn perform(&mut self, i: usize) -> Check {
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        let Stage::Streaming(session) = &mut self.stages[i] else { return Ok(()) };
        match session.perform(ground, process)? {
            Some(end) => self.end(i, end),
            None => Ok(()),
        }
    }

    fn end(&mut self, i: usize, end: End) -> Check {
        self.ground.log(i, &format!("{end:?}"));
        match end {
            End::Over => {
                // A graceful close: the last position is confirmed.
                self.status(i)?;
                self.release(i, false)?;
                self.exit(i)
            }
            End::Restart | End::Lost => self.lose(i),
            End::DropSlot => {
                let connections = &mut self.procs[i].connections;
                (connections.drops_slot, connections.next) = (true, NextReading::Poll);
                self.lose(i)
            }
            End::PollingEnds => {
                self.release(i, false)?;
                self.leave(i, self.ground.now)
            }
        }
    }

    /// The session is lost.
    fn lose(&mut self, i: usize) -> Check {
        self.release(i, true)?;
        let until = self.ground.now + self.ground.rng.range(1, 60);
        match &self.stages[i] {
            Stage::Streaming(_) => {
                self.procs[i].connections.lease_ends = self.ground.now + LEASE;
                self.leave(i, until)
            }
            Stage::Polling(session) if session.is_ending() => self.exit(i),
            Stage::Polling(_) => {
                // The state of the open claim is unknown: all of it is claimed again.
                self.procs[i].apply(&mut self.ground, Input::SlotTaken)?;
                self.leave(i, until)
            }
            Stage::Off { .. }
            | Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => {
                self.stages[i] = Stage::Pause { until };
                Ok(())
            }
        }
    }

    /// The process has no session any more, and pauses.
    fn leave(&mut self, i: usize, until: u64) -> Check {
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        let stage = std::mem::replace(&mut self.stages[i], Stage::Pause { until });
        process.apply(ground, Input::SourceLost)?;
        if matches!(stage, Stage::Polling(_)) {
            process.engine.polls_no_more();
        }
        if process.perform_offline(ground)? {
            return self.exit(i);
        }
        Ok(())
    }

    /// The server detects that the session is lost. It may still execute statements that it was sent. `ghosts`: the
    /// server may notice only later that a session with the lock has ended.
    fn release(&mut self, i: usize, ghosts: bool) -> Check {
        let (ground, process) = (&mut self.ground, &mut self.procs[i]);
        if ground.server.slot.holder == Some(i) {
            ground.server.slot.holder = None;
        }
        match &mut self.stages[i] {
            Stage::Streaming(session) => session.store.lose(ground)?,
            Stage::Polling(session) => session.release(ground)?,
            Stage::Off { .. }
            | Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => {}
        }
        let Some(database) = &mut ground.database else { return Ok(()) };
        let Some(session) = process.connections.session.take() else { return Ok(()) };
        if ghosts && database.rng.chance(database.outbox.rules.ghosts) {
            let until = ground.now + database.rng.range(1, OUTAGE_MAX);
            database.ownership.ghosts.push((until, session));
        } else {
            database.outbox.roll_back(session);
            database.ownership.unlock(session);
        }
        Ok(())
    }

    /// The process releases the lock before it has a stream.
    fn unlock(&mut self, i: usize) {
        let session = self.procs[i].connections.session.take();
        if let (Some(session), Some(database)) = (session, &mut self.ground.database) {
            database.ownership.unlock(session);
        }
    }

    /// The server sends a frame.
    fn serve(&mut self, i: usize) {
        let ground = &mut self.ground;
        let Stage::Streaming(session) = &mut self.stages[i] else { return };
        session.receive(&ground.server, &mut ground.rng, ground.knobs.keepalive);
    }

    /// A status update arrives at the server.
    fn status(&mut self, i: usize) -> Check {
        let Stage::Streaming(session) = &mut self.stages[i] else { return Ok(()) };
        match session.take_status() {
            Some(position) => self.ground.server.confirm(&self.ground.truth, position),
            None => Ok(()),
        }
    }

    /// The server executes a statement.
    fn control(&mut self, i: usize) -> Check {
        match &mut self.stages[i] {
            Stage::Streaming(session) => session.store.execute(&mut self.ground),
            Stage::Polling(session) => session.execute(&mut self.ground),
            Stage::Off { .. }
            | Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => Ok(()),
        }
    }

    /// Makes a planned fault happen.
    fn inject_fault(&mut self, fault: Fault) -> Check {
        let i = self.ground.rng.index(self.procs.len());
        self.ground.log(i, &format!("FAULT {fault:?}"));
        let ground = &mut self.ground;
        match fault {
            Fault::Crash { boundaries: 0 } => self.kill(i)?,
            Fault::Crash { boundaries } => self.procs[i].dies_after = Some(boundaries),
            Fault::Lost => {
                if !self.stages[i].is_off() {
                    self.lose(i)?;
                }
            }
            Fault::ServerCrash => {
                ground.server.crash();
                for i in 0..self.procs.len() {
                    if !self.stages[i].is_off() {
                        self.lose(i)?;
                    }
                }
                // Statements that the sessions had sent are lost with the server.
                self.ground.server.orphans.clear();
                self.end_ghosts();
            }
            Fault::Checkpoint => ground.server.save(),
            Fault::SinkFatal => self.procs[i].producer.fatal(),
            Fault::Drain => {
                if self.stages[i].reads() {
                    self.procs[i].apply(ground, Input::Drain)?;
                }
            }
            Fault::Halt => {
                if self.stages[i].reads() {
                    self.procs[i].apply(ground, Input::Halt(halt(HaltReason::Protocol)))?;
                }
            }
            Fault::Request => self.request(),
            Fault::Delete => self.delete(),
            Fault::Prune => ground.server.prune(),
            Fault::Unnoticed => {
                if let Stage::Streaming(session) = &mut self.stages[i]
                    && ground.sink.is_some()
                    && ground.server.slot.holder == Some(i)
                {
                    session.ends_at = Some(ground.now + ground.rng.range(1, OUTAGE_MAX));
                    ground.server.slot.holder = None;
                }
            }
            Fault::SlotDropped
            | Fault::SlotLost
            | Fault::WalBudget
            | Fault::StreamRefused
            | Fault::ClaimSessionLost
            | Fault::LockRow
            | Fault::UpdateRow
            | Fault::DeleteRow
            | Fault::ReuseId
            | Fault::CleanUp
            | Fault::BrokerDown => self.inject_table_fault(i, fault)?,
        }
        Ok(())
    }

    /// Makes a fault happen that concerns the slot or the outbox table.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller has chosen")]
    fn inject_table_fault(&mut self, i: usize, fault: Fault) -> Check {
        let (now, ground) = (self.ground.now, &mut self.ground);
        let Some(database) = &mut ground.database else { return Ok(()) };
        let until = now + database.rng.range(1, OUTAGE_MAX);
        match fault {
            Fault::SlotDropped | Fault::SlotLost => {
                if let Some(holder) = ground.server.slot.holder {
                    self.lose(holder)?;
                }
                let slot = &mut self.ground.server.slot;
                slot.exists &= fault == Fault::SlotLost;
                slot.lost |= fault == Fault::SlotLost;
            }
            Fault::WalBudget if database.outbox.rules.mode == SourceMode::Auto => {
                database.ownership.over_budget = true;
                if let Stage::Streaming(session) = &mut self.stages[i] {
                    session.over_budget = std::mem::take(&mut database.ownership.over_budget);
                }
            }
            Fault::StreamRefused => database.ownership.refuses_until = until,
            Fault::ClaimSessionLost => {
                if matches!(self.stages[i], Stage::Polling(_)) {
                    self.lose(i)?;
                }
            }
            Fault::LockRow => database.outbox.lock_one(now),
            Fault::UpdateRow => {
                let xid = ground.server.next_xid();
                if let Some(event) = database.outbox.update_one(now, xid) {
                    ground.truth.touch(event);
                }
            }
            Fault::DeleteRow => {
                if let Some(event) = database.outbox.delete_one(now) {
                    ground.truth.touch(event);
                    ground.truth.events[event].outbox_row.deleted = true;
                }
            }
            Fault::ReuseId => self.reuse_id(),
            Fault::CleanUp => database.outbox.clean_up(now),
            Fault::BrokerDown => database.broker_down_until = until,
            _ => {}
        }
        Ok(())
    }

    /// The application deletes a published row, and inserts another event under its id.
    fn reuse_id(&mut self) {
        let now = self.ground.now;
        let Some(database) = &mut self.ground.database else { return };
        let Some((id, before)) = database.outbox.reuse_one(now) else { return };
        let aggregate = database.rng.below(AGGREGATES);
        let aggregate = if database.rng.chance(500) { before } else { Some(aggregate) };
        let Some(aggregate) = aggregate else { return };
        let change = PlannedChange::Event {
            aggregate,
            bad: Bad::No,
            fixed_after: 0,
            size: 1,
            delay: 0,
            expires: 0,
        };
        self.commit(&PlannedTransaction::plain(0, vec![change]));
        let event = self.ground.truth.events.len() - 1;
        let Some(database) = &mut self.ground.database else { return };
        database.outbox.rename(self.ground.truth.rows[event].id, id);
        self.ground.truth.rows[event].id = id;
        self.ground.truth.touch(event);
    }

    /// The server notices that sessions have ended.
    fn end_ghosts(&mut self) {
        let Some(database) = &mut self.ground.database else { return };
        for (_, session) in std::mem::take(&mut database.ownership.ghosts) {
            database.outbox.roll_back(session);
            database.ownership.unlock(session);
        }
    }

    /// An operator requests something for a parked row.
    fn request(&mut self) {
        let ground = &mut self.ground;
        if ground.server.table.is_empty() {
            return;
        }
        let nth = ground.rng.index(ground.server.table.len());
        let request = [Request::Retry, Request::Skip, Request::Replace][ground.rng.index(3)];
        let Some((at, row)) = ground.server.table.iter_mut().nth(nth) else { return };
        // A request stays in the row until the relay has removed it.
        if row.state.resolved() || row.request.is_some() {
            return;
        }
        // The statement of the operator would wait for the claim that has moved the row.
        if ground.database.as_ref().is_some_and(|database| database.outbox.has_moved(*at)) {
            return;
        }
        row.request = Some(request);
        ground.truth.events[row.event].skip_asked |= request == Request::Skip;
        for stage in &mut self.stages {
            // The notification.
            match stage {
                Stage::Streaming(session) => session.store.notify(ground.now),
                Stage::Polling(session) => session.notify(ground.now),
                Stage::Off { .. }
                | Stage::Pause { .. }
                | Stage::Read { .. }
                | Stage::Owns { .. }
                | Stage::TookOver { .. } => {}
            }
        }
    }

    /// An operator deletes an unresolved row.
    fn delete(&mut self) {
        let ground = &mut self.ground;
        let rows = ground.server.table.iter().filter(|(_, row)| !row.state.resolved());
        let rows: Vec<_> = rows.map(|(at, row)| (*at, row.event)).collect();
        if rows.is_empty() {
            return;
        }
        let (at, event) = rows[ground.rng.index(rows.len())];
        if ground.database.as_ref().is_some_and(|database| database.outbox.has_moved(at)) {
            return;
        }
        ground.server.table.remove(&at);
        let what = &mut ground.truth.events[event];
        // Above the cursor the stream may repeat the event in its original form.
        (what.outbox_row.deleted, what.version) = (true, 0);
    }

    /// The process dies. Some of its records and statements in flight may arrive.
    fn kill(&mut self, i: usize) -> Check {
        self.ground.log(i, "dies");
        self.release(i, true)?;
        let ground = &mut self.ground;
        let knobs = (&ground.knobs, &mut ground.rng, ground.now);
        self.procs[i].producer.discard(&mut ground.truth, knobs)?;
        self.procs[i] = Process::new(i, ground.now, &ground.knobs, ground.rules());
        self.stages[i] = Stage::Off { until: ground.now + ground.rng.below(100) };
        Ok(())
    }

    /// The process exits. It is started again, and the event that stopped it is fixed.
    fn exit(&mut self, i: usize) -> Check {
        self.ground.log(i, "exits");
        if self.ground.knobs.settings.rules.on_poison == OnPoison::Stop {
            let now = self.ground.now;
            let truth = &mut self.ground.truth;
            let bad = |at: &usize| truth.bad(*at, now) != Bad::No && !truth.settled(*at);
            if let Some(first) = (0..truth.events.len()).find(bad) {
                truth.events[first].fixed_at = now;
            }
        }
        self.kill(i)
    }

    fn boot(&mut self, i: usize) {
        self.ground.log(i, "starts");
        let ground = &self.ground;
        self.procs[i] = Process::new(i, ground.now, &ground.knobs, ground.rules());
        if let Some(sink) = &mut self.ground.sink {
            self.procs[i].producer.life = sink.next_life();
        }
        self.stages[i] = Stage::Pause { until: self.ground.now };
    }

    /// Process `i` has the slot, or the lock of a poller: records that others have in flight are written now or never.
    fn fence_others(&mut self, i: usize) -> Check {
        for other in (0..self.procs.len()).filter(|other| *other != i) {
            let ground = &mut self.ground;
            let knobs = (&ground.knobs, &mut ground.rng, ground.now);
            self.procs[other].producer.fence(&mut ground.truth, knobs)?;
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
        self.ground.log(WORLD, "END OF FAULTS");
        let knobs = &mut self.ground.knobs;
        (knobs.sink_full, knobs.destination_down, knobs.unknown) = (0, 0, 0);
        (knobs.refused_wider, knobs.report_lost, knobs.keepalive) = (0, 0, 0);
        knobs.turns = [2, 4, 4, 6, 8, 2];
        self.ground.server.locks.in_1000 = 0;
        for process in &mut self.procs {
            process.dies_after = None;
        }
        self.break_silent_sinks();
        self.end_ghosts();
        self.ground.end_faults();
        if self.ground.truth.events.iter().any(|event| event.outbox_row.deleted) {
            // The relay learns of a deleted row at an attempt, or when it reads the table next.
            for i in 0..self.procs.len() {
                if self.stages[i].reads() {
                    self.lose(i)?;
                }
            }
        }
        self.end_ghosts();
        let fixes_all = self.ground.rng.chance(500);
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
            expires: 0,
        }];
        self.commit(&PlannedTransaction { gap: 8, ..PlannedTransaction::plain(0, changes) });
        let end = self.ground.server.end;
        self.run_until_idle(end)?;
        let fresh = self.ground.truth.events.len() - 1;
        if !self.ground.truth.delivered(fresh) {
            return wrong("a new event is not published".into());
        }
        self.check_accounts(fixes_all)
    }

    /// Whether the parked table is full.
    fn is_full(&self) -> bool {
        let mut all = self.procs.iter().zip(&self.stages);
        all.any(|(process, stage)| stage.reads() && process.engine.relay().parking_is_full())
    }

    /// Fixes every event, and retries dead ones.
    fn fix_all(&mut self) {
        for event in &mut self.ground.truth.events {
            event.fixed_at = 0;
        }
        for row in self.ground.server.table.values_mut() {
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
            let (row, relay) = (self.ground.server.row, self.procs[i].engine.relay().progress());
            self.ground.log(i, &format!("row {} relay {relay:?}", at(watermark(row))));
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
    fn busy_reason(&mut self, least: u64) -> Option<&'static str> {
        let polls = self.ground.rules().is_some_and(|rules| rules.mode == SourceMode::Poll);
        let wanted = |(process, stage): (&Process, &Stage)| match stage {
            Stage::Streaming(_) => !polls,
            // No claim is made while the parked table is full.
            Stage::Polling(_) => polls || process.engine.relay().parking_is_full(),
            Stage::Off { .. }
            | Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => false,
        };
        let Some(i) = self.procs.iter().zip(&self.stages).position(wanted) else {
            return Some(if polls { "no process polls" } else { "no process streams" });
        };
        let effects = !self.procs[i].engine.effects().is_empty();
        let process = &self.procs[i];
        let relay = process.engine.relay();
        let heads = relay.heads(1_000);
        let moving = heads.iter().any(|head| head.state != State::Dead);
        let requested = self.ground.server.table.values().any(|row| row.request.is_some());
        let states = [
            (relay.stopping(), "stopping"),
            (process.producer.is_busy() || !process.mailbox.is_empty(), "the sink is busy"),
            (relay.in_flight().0 > 0, "something is in flight"),
            (moving, "a head that is not dead is left"),
            (requested, "a request is left"),
            (process.buffer.wants_records(), "an attempt waits for its record"),
            (relay.deferred_statuses() > 0, "a row status waits for its row"),
            (effects, "effects wait"),
            (!self.ground.server.orphans.is_empty(), "a statement of a lost session is left"),
            (self.ground.sink.as_ref().is_some_and(|sink| sink.is_busy()), "the sink has a call"),
        ];
        let busy = states.iter().find_map(|(busy, why)| busy.then_some(*why));
        busy.or_else(|| match &self.stages[i] {
            Stage::Streaming(session) => self.stream_is_busy(process, session, least),
            Stage::Polling(session) => {
                let full = relay.parking_is_full();
                let database = self.ground.database.as_ref()?;
                let left = database.outbox.unpublished(self.ground.now).is_some();
                let states =
                    [(session.is_busy(), "the session is busy"), (left && !full, "a row is left")];
                states.iter().find_map(|(busy, why)| busy.then_some(*why))
            }
            Stage::Off { .. }
            | Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => None,
        })
    }

    /// What a stream has still to do.
    fn stream_is_busy(
        &self,
        process: &Process,
        session: &Session,
        least: u64,
    ) -> Option<&'static str> {
        let (relay, server) = (process.engine.relay(), &self.ground.server);
        let has_events =
            |changes: &[WalChange]| changes.iter().any(|c| matches!(c, WalChange::Event(_)));
        let newest = server.transactions.iter().rev().find(|txn| has_events(&txn.changes));
        let newest = newest.map_or(at(0), |txn| at(txn.end));
        let reached = |lsn: Offset| relay.progress().watermark.offset() >= lsn;
        let full = relay.parking_is_full();
        let states = [
            (!full && !session.is_idle(server.transactions.len()), "the session is busy"),
            (full && !session.is_settled(), "the session is busy"),
            (!full && !reached(newest), "the watermark is behind"),
            (watermark(server.row) < least, "the row is behind"),
            (server.slot.confirmed < least, "the slot is behind"),
        ];
        states.iter().find_map(|(busy, why)| busy.then_some(*why))
    }

    /// Every committed event is published, parked or skipped. `fixes_all`: none is parked any more.
    fn check_accounts(&self, fixes_all: bool) -> Check {
        let (truth, table) = (&self.ground.truth, &self.ground.server.table);
        let parked = |event: usize| {
            let mut rows = table.values().filter(|row| !row.state.resolved());
            rows.any(|row| row.event == event)
        };
        for (event, number) in truth.events.iter().zip(0..) {
            let position = event.position;
            let is_parked = parked(number);
            if !is_parked && !truth.settled(number) {
                return wrong(format!("{position} is lost"));
            }
            if fixes_all && is_parked {
                return wrong(format!("{position} is fixed and still parked"));
            }
        }
        truth.check_ends(parked)
    }
}

fn signed(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap()
}

/// A transaction has inserted the row of an event into the outbox, if there is one.
fn insert_row(
    ground: &mut Ground,
    (event, id): (usize, u64),
    (xmin, visible_at): (u32, u64),
    expires_at: Option<u64>,
) {
    let Some(database) = &mut ground.database else { return };
    let what = &ground.truth.events[event];
    // Writers of an aggregate exclude each other: what an earlier one has committed is visible.
    for transaction in &mut ground.server.transactions {
        let same = |change: &WalChange| match change {
            WalChange::Event(other) => ground.truth.events[*other].aggregate == what.aggregate,
            WalChange::Other => false,
        };
        if transaction.hidden_until > ground.now && transaction.changes.iter().any(same) {
            transaction.hidden_until = ground.now;
            database.outbox.show(transaction.xid, ground.now);
        }
    }
    let ready_at = if database.outbox.rules.delays { what.not_before } else { 0 };
    let facts = RowFacts { id, expires_at };
    ground.truth.rows.push(facts);
    let key = what.aggregate.map_or(id + 1_000_000, |aggregate| aggregate as u64);
    let written = (xmin, ground.now, visible_at);
    database.outbox.insert(id, (event, key), written, (ready_at, expires_at));
}

/// Runs a plan to its end.
pub(super) fn run(plan: &Plan, transcribes: bool) -> Run {
    let caught = std::panic::catch_unwind(|| {
        let mut world = World::new(plan, transcribes);
        match world.run() {
            Ok(()) => {}
            Err(Stop::Wrong(message)) => world.ground.result.failure = Some(message),
            Err(Stop::Died) => unreachable!("only a turn can end so"),
        }
        let mut result = world.ground.result;
        result.written = world.ground.truth.written;
        result.repeated = world.ground.truth.repeated;
        result
    });
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Some(format!("panic: {}", text.unwrap_or_default()));
        Run { failure, ..Run::default() }
    })
}
