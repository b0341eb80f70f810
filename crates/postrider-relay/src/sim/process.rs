//! One process: its relay, its producer, its records, and its session with the server.

use super::broker::{Post, Producer};
use super::postgres::{Answer, Server, Statement};
use super::rng::Rng;
use super::truth::Truth;
use super::walsender::{Frame, Walsender};
use crate::ack::Progress;
use crate::relay::{Effect, Relay};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Request};
use postrider_core::record::{Outcome, Scope, Ticket};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

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
}

/// What one producer has reported of events of the stream, and so which of them a later event of their aggregate has
/// overtaken.
///
/// Only the reports of one producer have an order: an event that one producer has refused and the next has published in
/// its place was not overtaken.
#[derive(Debug, Default)]
pub(super) struct ReportLog {
    /// The number of the producer.
    pub(super) producer: u64,
    acked: Vec<usize>,
    /// Events of a batch that was refused.
    refused: Vec<usize>,
}

impl ReportLog {
    pub(super) fn new(producer: u64) -> Self {
        Self { producer, ..Self::default() }
    }

    /// Events that were refused, and had a later one of their aggregate acknowledged.
    pub(super) fn overtaken(&self, truth: &Truth) -> Vec<usize> {
        let passed =
            |event: &&usize| self.acked.iter().any(|later| truth.is_behind(*later, **event));
        self.refused.iter().filter(passed).copied().collect()
    }

    /// Records an outcome. Returns the events that it shows to be overtaken.
    pub(super) fn add(&mut self, truth: &Truth, event: usize, outcome: Outcome) -> Vec<usize> {
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

/// What the reports of all producers of a process have shown.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// Events whose row must record that they were overtaken.
    pub(super) overtaken: BTreeSet<usize>,
    /// Acknowledged events of the stream with the number of their producer, in the order of the reports.
    pub(super) acked: Vec<(u64, usize)>,
}

impl Reported {
    /// Whether one of the producers reported a later event of the aggregate and had not reported this one before.
    pub(super) fn may_be_overtaken(&self, truth: &Truth, event: usize) -> bool {
        self.acked.iter().enumerate().any(|(at, (by, later))| {
            truth.is_behind(*later, event) && !self.acked[..at].contains(&(*by, event))
        })
    }
}

/// The stage of a process.
#[derive(Debug)]
pub(super) enum Stage {
    /// The process does not run.
    Off {
        until: u64,
    },
    /// The process waits before it connects again.
    Pause {
        until: u64,
    },
    /// The process has read the cursor row.
    Read {
        row: Progress,
    },
    /// The process has the slot.
    Owns {
        start: Progress,
    },
    /// No other process can write any more, and the parked table is read.
    TookOver {
        start: Progress,
        row: Progress,
        parked: Vec<Entry>,
        requests: Vec<(Position, Request)>,
    },
    Streaming(Box<Session>),
}

/// A stream, and the statements of its process.
#[derive(Debug)]
pub(super) struct Session {
    epoch: u64,
    walsender: Walsender,
    pub(super) frames: VecDeque<Frame>,
    /// The position of the next status update, and of the last one.
    next_status: u64,
    last_status: u64,
    /// Statements that are sent when the loop waits next.
    prepared: VecDeque<Statement>,
    pub(super) sent: VecDeque<Statement>,
    pub(super) answers: VecDeque<Answer>,
    pub(super) fetching: bool,
    /// Requests are being read, and when they are read next.
    pub(super) reads_requests: bool,
    pub(super) requests_due: u64,
}

impl Session {
    pub(super) fn new(epoch: u64, walsender: Walsender, first: Frame, now: u64) -> Self {
        Self {
            epoch,
            walsender,
            frames: VecDeque::from([first]),
            next_status: 0,
            last_status: 0,
            prepared: VecDeque::new(),
            sent: VecDeque::new(),
            answers: VecDeque::new(),
            fetching: false,
            reads_requests: false,
            requests_due: now,
        }
    }

    /// Sets the position of the next status update, if the stream has reached it.
    pub(super) fn confirm(&mut self, confirmed: u64) {
        if confirmed <= self.walsender.sent() {
            self.next_status = self.next_status.max(confirmed);
        }
    }

    /// Takes the next status update.
    pub(super) fn take_status(&mut self) -> Option<u64> {
        if self.next_status <= self.last_status {
            return None;
        }
        self.last_status = self.next_status;
        Some(self.last_status)
    }

    /// Prepares a statement. It is sent when the loop waits next.
    pub(super) fn prepare(&mut self, statement: Statement) {
        self.fetching |= matches!(statement, Statement::Fetch { .. });
        self.prepared.push_back(statement);
    }

    /// Sends the prepared statements.
    pub(super) fn send_prepared(&mut self) {
        self.sent.append(&mut self.prepared);
    }

    /// The server sends the next frame.
    pub(super) fn receive(&mut self, server: &Server, rng: &mut Rng, keepalive: u64) {
        let frame = self.walsender.send(server, rng, keepalive);
        self.frames.extend(frame);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether every transaction is sent and taken, and no statement is in progress.
    pub(super) fn is_idle(&self, transactions: usize) -> bool {
        self.walsender.is_idle(transactions) && self.frames.is_empty() && self.is_settled()
    }

    /// Whether no statement and no status update is in progress.
    pub(super) fn is_settled(&self) -> bool {
        self.prepared.is_empty()
            && self.sent.is_empty()
            && self.answers.is_empty()
            && self.next_status == self.last_status
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) relay: Relay,
    pub(super) producer: Producer,
    pub(super) mailbox: Vec<Post>,
    /// Reports of a discarded producer, and when they are received.
    pub(super) late_reports: Vec<(u64, Ticket, Outcome)>,
    pub(super) buffer: RecordBuffer,
    pub(super) effects: Vec<Effect>,
    pub(super) confirmed: u64,
    pub(super) stage: Stage,
    /// The epoch of its last stream.
    pub(super) epoch: Option<u64>,
    pub(super) lease_ends: u64,
    born_at: u64,
    /// Number of boundaries of effects until the process dies.
    pub(super) dies_after: Option<u64>,
    /// The reports of this producer, and of the one before it.
    pub(super) reports: ReportLog,
    pub(super) earlier_reports: ReportLog,
    pub(super) reported: Reported,
    /// Maximum number of parked rows, including events that the stream repeats.
    pub(super) rows_max: u64,
}

impl Process {
    pub(super) fn new(world_now: u64, relay: Relay, producer: Producer) -> Self {
        Self {
            relay,
            producer,
            mailbox: Vec::new(),
            late_reports: Vec::new(),
            buffer: RecordBuffer::default(),
            effects: Vec::new(),
            confirmed: 0,
            stage: Stage::Off { until: world_now },
            epoch: None,
            lease_ends: world_now,
            born_at: world_now,
            dies_after: None,
            reports: ReportLog::default(),
            earlier_reports: ReportLog::default(),
            reported: Reported::default(),
            rows_max: 0,
        }
    }

    /// The relay's clock.
    pub(super) fn clock(&self, now: u64) -> Duration {
        Duration::from_millis(now - self.born_at)
    }

    /// The deadline of the relay, by the world's clock.
    pub(super) fn due(&self) -> Option<u64> {
        let due = self.relay.deadline()?;
        // Rounded up, because the deadline has to be over.
        Some(self.born_at + u64::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap())
    }

    /// Whether an effect is waiting that ends the stream.
    pub(super) fn is_ending(&self) -> bool {
        let ends = |effect: &Effect| {
            matches!(effect, Effect::Restart { .. } | Effect::Drained | Effect::Halt(_))
        };
        self.effects.iter().any(ends)
    }

    pub(super) fn wants_records(&self) -> bool {
        self.buffer.wants_records()
    }
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Over,
    Restart,
}
