//! A stream, and the loop of a process that streams.

use super::ground::{Ground, wall};
use super::outbox::Received;
use super::postgres::{Reply, Server, WalChange, at};
use super::process::{End, Process};
use super::rng::Rng;
use super::store::Store;
use super::walsender::{Frame, Walsender};
use super::{Check, wrong};
use crate::ack::Progress;
use crate::published::{RowStatusBatch, RowStatusMade};
use crate::relay::{Effect, Input};
use postrider_core::timestamp::Timestamp;
use std::collections::VecDeque;

/// A cursor row on its way, after the statuses that have to be written before it.
#[derive(Debug)]
struct CursorWrite {
    progress: Progress,
    batch: RowStatusBatch,
    /// The result of the statuses, when it is known.
    made: Option<RowStatusMade>,
}

/// A stream, and the statements of its process.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) store: Store,
    walsender: Walsender,
    frames: VecDeque<Frame>,
    /// The commit time of the transaction that is being fed.
    commit_time: Timestamp,
    /// The position of the next status update, and of the last one.
    next_status: u64,
    last_status: u64,
    cursor: Option<CursorWrite>,
    /// The slot retains more WAL than it may.
    pub(super) over_budget: bool,
    /// The server has ended the session, which the process notices at this time.
    pub(super) ends_at: Option<u64>,
}

impl Session {
    pub(super) fn new(epoch: u64, walsender: Walsender, first: Frame, now: u64) -> Self {
        Self {
            store: Store::new(epoch, now),
            walsender,
            frames: VecDeque::from([first]),
            commit_time: Timestamp::default(),
            next_status: 0,
            last_status: 0,
            cursor: None,
            over_budget: false,
            ends_at: None,
        }
    }

    /// Sets the position of the next status update, if the stream has reached it.
    fn confirm(&mut self, confirmed: u64) {
        if confirmed <= self.walsender.sent() {
            self.next_status = self.next_status.max(confirmed);
        }
    }

    /// Takes the next status update.
    pub(super) fn take_status(&mut self) -> Option<u64> {
        if self.next_status <= self.last_status || self.ends_at.is_some() {
            return None;
        }
        self.last_status = self.next_status;
        Some(self.last_status)
    }

    /// The server sends the next frame.
    pub(super) fn receive(&mut self, server: &Server, rng: &mut Rng, keepalive: u64) {
        if self.ends_at.is_none() {
            let frame = self.walsender.send(server, rng, keepalive);
            self.frames.extend(frame);
        }
    }

    /// Whether every transaction is sent and taken, and no statement is in progress.
    pub(super) fn is_idle(&self, transactions: usize) -> bool {
        self.walsender.is_idle(transactions) && self.frames.is_empty() && self.is_settled()
    }

    /// Whether no statement and no status update is in progress.
    pub(super) fn is_settled(&self) -> bool {
        self.store.is_settled() && self.next_status == self.last_status
    }

    /// One turn of the loop.
    pub(super) fn turn(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
    ) -> Check<Option<End>> {
        if self.ends_at.is_some_and(|at| at <= ground.now) {
            return Ok(Some(End::Lost));
        }
        process.take_posts(ground)?;
        process.offer_attempts(ground)?;
        if let Some(end) = self.perform(ground, process)? {
            return Ok(Some(end));
        }
        self.feed(ground, process)?;
        if let Some(end) = self.perform(ground, process)? {
            return Ok(Some(end));
        }
        if self.over_budget && !process.engine.relay().stopping() {
            return Ok(Some(End::DropSlot));
        }
        let (now, due) = (ground.now, process.due());
        self.store.send_prepared();
        if let Some(answer) = self.store.receive() {
            self.take_answer(ground, process, answer)?;
        } else if due.is_some_and(|due| due <= now) {
            process.apply(ground, Input::Tick)?;
        } else {
            self.store.read_requests(now);
        }
        self.perform(ground, process)
    }

    /// Passes the answer to a statement to the relay.
    fn take_answer(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
        answer: Received,
    ) -> Check {
        let clock = process.clock(ground.now);
        match answer {
            Received::Table(answer @ Reply::Cursor(_)) => {
                if let Some(CursorWrite { made: Some(made), .. }) = self.cursor.take() {
                    process.engine.row_status().made(clock, &made);
                }
                self.store.take(ground, process, answer).map(drop)
            }
            Received::Table(answer) => self.store.take(ground, process, answer).map(drop),
            Received::Statuses(left) => {
                let Some(mut write) = self.cursor.take() else { return Ok(()) };
                let made = RowStatusMade { left, ..RowStatusMade::default() };
                if write.batch.holds_back(&made, write.progress.position()) {
                    process.engine.row_status().made(clock, &made);
                    return process.apply(ground, Input::CursorDeferred);
                }
                write.made = Some(made);
                self.store.write_cursor(write.progress);
                self.cursor = Some(write);
                Ok(())
            }
        }
    }

    /// Performs the effects in order.
    pub(super) fn perform(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
    ) -> Check<Option<End>> {
        let mut end = None;
        for effect in process.take_effects() {
            process.boundary()?;
            match effect {
                Effect::Publish(_) | Effect::Park { .. } => {
                    return wrong("an effect needs a record that the process does not have".into());
                }
                Effect::WriteParking { rows, statuses } => {
                    self.store.write_parking(process, rows, statuses);
                }
                Effect::Attempt { ticket, position } => {
                    process.buffer.add_attempt(ticket, position, ground.now);
                }
                Effect::Probe { ticket, .. } => process.buffer.probes.push(ticket),
                Effect::DeadLetter { .. } | Effect::DeadLetterRefused { .. } => {
                    return wrong("a dead letter, though none are configured".into());
                }
                Effect::Published { ticket, .. } => process.published(ground, ticket)?,
                Effect::RecoverSink { call } => process.recover_sink(ground, call),
                Effect::CommitSink { call, progress, attempts } => {
                    process.commit_sink(ground, call, (progress, attempts));
                }
                Effect::Released { .. } | Effect::Overtaken { .. } => {}
                Effect::WriteCursor(progress) => {
                    let clock = process.clock(ground.now);
                    match process.engine.take_statuses(clock, Some(&progress)) {
                        Some(batch) => {
                            self.store.write_statuses(&batch);
                            self.cursor = Some(CursorWrite { progress, batch, made: None });
                        }
                        None => self.store.write_cursor(progress),
                    }
                }
                Effect::Confirm(watermark) => process.confirmed = watermark.offset().get(),
                Effect::Restart { why } => {
                    process.reset_sink(ground, why)?;
                    end = Some(End::Restart);
                }
                Effect::Drained | Effect::Halt(_) => end = Some(End::Over),
            }
            process.boundary()?;
        }
        self.confirm(process.confirmed);
        if process.buffer.wants_records() {
            self.store.fetch_records(process, None);
        }
        Ok(end)
    }

    /// Passes frames to the relay until one is not taken.
    fn feed(&mut self, ground: &mut Ground, process: &mut Process) -> Check {
        for _ in 0..ground.rng.range(1, ground.knobs.frames_max) {
            if process.engine.relay().stopping() || process.engine.ending() {
                return Ok(());
            }
            let Some(frame) = self.frames.front().copied() else { return Ok(()) };
            if !self.frame(ground, process, frame)? {
                return Ok(());
            }
            self.frames.pop_front();
        }
        Ok(())
    }

    /// Passes a frame to the relay. Returns whether it was taken.
    fn frame(&mut self, ground: &mut Ground, process: &mut Process, frame: Frame) -> Check<bool> {
        match frame {
            Frame::Keepalive { upto } => {
                process.apply(ground, Input::Keepalive { upto: at(upto) })?;
            }
            Frame::Begin { commit, xid, time } => {
                if ground.transcribes {
                    ground.log(process.index, &format!("begin {}", at(commit)));
                }
                self.commit_time = wall(time);
                let commit_time = self.commit_time;
                process.call(ground, |engine, clock| {
                    engine.begin(clock, at(commit), commit_time, Some(xid));
                })?;
            }
            Frame::Commit { commit, end } => {
                process.apply(ground, Input::Commit { commit: at(commit), end: at(end) })?;
            }
            Frame::Change(WalChange::Event(event)) => {
                let commit_time = Some(self.commit_time);
                return process.offer(ground, event, commit_time);
            }
            Frame::Change(WalChange::Other) => {
                let relay = process.engine.relay();
                if relay.upcoming().is_some() && !relay.intake_open() {
                    return Ok(false);
                }
                process.skip(ground)?;
            }
        }
        Ok(true)
    }
}
