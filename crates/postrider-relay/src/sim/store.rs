//! The session on which a process writes the pipeline's tables: its statements, and their answers.

use super::Check;
use super::ground::Ground;
use super::outbox::{Received, Sent, StatusRow};
use super::postgres::{ParkedTableRow, Reply, Statement, is_of_claim};
use super::process::Process;
use crate::ack::Progress;
use crate::published::RowStatusBatch;
use crate::relay::Input;
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::outbox_rows::{AheadOfCursor, PublishedRow, WithdrawnEvent};
use postrider_core::parked::{Lane, ParkedUpdate};
use std::collections::VecDeque;

/// Pause between two queries for requests. Unit: milliseconds.
const REQUESTS_INTERVAL: u64 = 500;

/// The rows of a batch as a statement has them.
pub(super) fn status_rows(rows: &[PublishedRow]) -> Vec<StatusRow> {
    let row = |row: &PublishedRow| StatusRow {
        id: row.id.parse().unwrap(),
        lane: row.lane,
        xid: row.written.xid,
        time: row.written.time_ms,
        visible: row.visible,
    };
    rows.iter().map(row).collect()
}

/// The session.
#[derive(Debug)]
pub(super) struct Store {
    epoch: u64,
    /// Statements that are sent when the loop waits next.
    prepared: VecDeque<Sent>,
    sent: VecDeque<Sent>,
    received: VecDeque<Received>,
    /// A write of parked rows or their statuses is in progress.
    writing: bool,
    fetching: bool,
    /// Requests are being read, and when they are read next.
    reads_requests: bool,
    requests_due: u64,
}

impl Store {
    pub(super) fn new(epoch: u64, now: u64) -> Self {
        Self {
            epoch,
            prepared: VecDeque::new(),
            sent: VecDeque::new(),
            received: VecDeque::new(),
            writing: false,
            fetching: false,
            reads_requests: false,
            requests_due: now,
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a write of parked rows or their statuses is in progress.
    pub(super) fn is_writing(&self) -> bool {
        self.writing
    }

    /// An operator has made a request: the notification.
    pub(super) fn notify(&mut self, now: u64) {
        self.requests_due = now;
    }

    /// Prepares a statement. It is sent when the loop waits next.
    fn prepare(&mut self, statement: Sent) {
        self.prepared.push_back(statement);
    }

    /// Sends the prepared statements.
    pub(super) fn send_prepared(&mut self) {
        self.sent.append(&mut self.prepared);
    }

    /// Whether no statement is in progress.
    pub(super) fn is_settled(&self) -> bool {
        self.prepared.is_empty() && self.sent.is_empty() && self.received.is_empty()
    }

    /// Commits rows and statuses.
    pub(super) fn write_parking(
        &mut self,
        process: &mut Process,
        rows: usize,
        statuses: Vec<ParkedUpdate>,
    ) {
        let (rows, epoch) = (process.buffer.take_rows(rows), self.epoch);
        self.writing = true;
        self.prepare(Sent::Table(Statement::Parking { rows, statuses, epoch }));
    }

    /// Commits the cursor row.
    pub(super) fn write_cursor(&mut self, progress: Progress) {
        let epoch = self.epoch;
        self.prepare(Sent::Table(Statement::Cursor { progress, epoch }));
    }

    /// Writes the statuses of a batch.
    pub(super) fn write_statuses(&mut self, batch: &RowStatusBatch) {
        let waiting = batch.waiting.iter().copied().collect();
        self.prepare(Sent::Statuses(status_rows(&batch.rows), waiting));
    }

    /// Reads the records of attempts. `unseen`: the claim whose rows no other session sees.
    pub(super) fn fetch_records(&mut self, process: &Process, unseen: Option<Offset>) {
        if self.fetching {
            return;
        }
        let missing = process.buffer.attempts.iter().filter(|attempt| attempt.record.is_none());
        let positions: Vec<_> = missing
            .map(|attempt| attempt.position)
            .filter(|position| Some(position.commit) != unseen)
            .collect();
        if !positions.is_empty() {
            self.fetching = true;
            self.prepare(Sent::Table(Statement::Fetch { positions }));
        }
    }

    /// Reads the requests of operators, if it is time.
    pub(super) fn read_requests(&mut self, now: u64) {
        if !self.reads_requests && self.requests_due <= now {
            (self.reads_requests, self.requests_due) = (true, now + REQUESTS_INTERVAL);
            self.prepare(Sent::Table(Statement::ReadRequests));
        }
    }

    /// The server executes the next statement.
    pub(super) fn execute(&mut self, ground: &mut Ground) -> Check {
        if let Some(statement) = self.sent.pop_front() {
            let answer = ground.execute(statement)?;
            self.received.push_back(answer);
        }
        Ok(())
    }

    /// The server executes everything that was sent and prepared, as when the process waits for it.
    pub(super) fn finish(&mut self, ground: &mut Ground) -> Check {
        self.send_prepared();
        while !self.sent.is_empty() {
            self.execute(ground)?;
        }
        Ok(())
    }

    /// The next answer.
    pub(super) fn receive(&mut self) -> Option<Received> {
        self.received.pop_front()
    }

    /// Whether the server has statements to execute.
    pub(super) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Passes the answer to a statement on the pipeline's tables to the relay. Returns whether this process is still
    /// the owner.
    pub(super) fn take(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
        answer: Reply,
    ) -> Check<bool> {
        match answer {
            Reply::Cursor(true) => process.apply(ground, Input::CursorWritten)?,
            Reply::Cursor(false) => {
                process.apply(ground, Input::SlotTaken)?;
                return Ok(false);
            }
            Reply::Parking(None) => {
                self.writing = false;
                process.apply(ground, Input::SlotTaken)?;
                return Ok(false);
            }
            Reply::Parking(Some(left)) => {
                self.writing = false;
                for (entry, event) in std::mem::take(&mut process.buffer.writing) {
                    let ahead = ahead_of_cursor(ground, entry.position, event);
                    process.engine.row_status().parked(ahead);
                }
                process.apply(ground, Input::ParkingWritten { locked: &left })?;
            }
            Reply::Fetched(requested, found) => {
                self.fetching = false;
                process.take_records(ground, &requested, &found)?;
            }
            Reply::Requests(requests) => {
                self.reads_requests = false;
                for (position, request) in requests {
                    // The event will be requeued; until then its row keeps the request.
                    if !process.engine.requeued().holds(position) {
                        process.apply(ground, Input::Request { position, request })?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// The session is lost. The server may still execute statements that it was sent.
    pub(super) fn lose(&mut self, ground: &mut Ground) -> Check {
        let arrived = ground.rng.index(self.sent.len() + 1);
        for statement in self.sent.drain(..arrived) {
            match statement {
                Sent::Table(statement) => ground.server.orphans.push_back(statement),
                Sent::Statuses(..) => drop(ground.execute(statement)?),
            }
        }
        Ok(())
    }
}

/// Events at positions of claims that an operator has skipped, has replaced, or wants to replace.
pub(super) fn withdrawn(ground: &Ground) -> Vec<WithdrawnEvent> {
    let found = |(at, row): (&Position, &ParkedTableRow)| {
        if !is_of_claim(*at) || !row.is_withdrawn() {
            return None;
        }
        let id = ground.truth.rows.get(row.event)?.id.to_string();
        let commit_time = super::ground::wall(row.commit_time);
        Some(WithdrawnEvent { id, commit_time, xid: row.xid })
    };
    ground.server.table.iter().filter_map(found).collect()
}

/// A parked event whose row gets its status when the cursor row has passed it.
pub(super) fn ahead_of_cursor(
    ground: &Ground,
    position: postrider_core::event::Position,
    event: usize,
) -> Option<AheadOfCursor> {
    let id = ground.truth.rows.get(event)?.id.to_string();
    let commit = position.commit.get();
    let time = ground.server.transactions.iter().rev().find(|txn| txn.commit == commit)?.time;
    let commit_time = super::ground::wall(time);
    let timestamp_ms = Some(super::outbox::time_of(event));
    let lane = ground.truth.events[event].aggregate;
    let lane = lane.map(|_| Lane::of(super::process::aggregate_of(&ground.truth, event)));
    Some(AheadOfCursor { position, lane, id, commit_time, timestamp_ms })
}
