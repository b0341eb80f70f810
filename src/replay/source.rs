//! The log as a source: frames of a bookmark's slot, one change after the other.
//!
//! Nothing is ever confirmed on the stream, so the slot stays where it is (`START_REPLICATION` beyond the confirmed
//! position is honoured, and status updates that confirm nothing move nothing: measured on 15 and 18).

use super::ReplayError;
use super::outlet::{Offered, Outlet};
use crate::event::{PgTime, Position};
use crate::lsn::Lsn;
use crate::outbox::{At, Mapper};
use crate::pgoutput::{self, Message};
use crate::postgres::replay::{Rows, TableRow};
use crate::postgres::{
    Batch, Conninfo, Frame, SourceError, SqlState, StartReplication, WalConnection, WalStream,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// How long the slot is waited for: a walsender of a replay that was killed sees that its client is gone, or its own
/// time-out of 15 s passes.
const SLOT_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two tries to get it.
const SLOT_LOOK: Duration = Duration::from_millis(250);

/// Log that is read ahead: beyond it the server waits for us. With more of it the server would decode as fast as it can
/// for a while, whatever the rate, and take a processor from the live stream for as long. Unit: bytes.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// Frames fed before everything else has its turn.
const FRAMES_MAX: usize = 1024;

/// What is read, and how far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) bookmark: String,
    pub(super) slot: String,
    pub(super) publication: String,
    pub(super) messages: bool,
    /// What commits at it or later is not replayed.
    pub(super) until: Lsn,
    /// Where the person said that it begins, if so: for transactions that lie across it.
    pub(super) asked: Option<Lsn>,
}

/// The stream, and the place in it.
pub(super) struct Log {
    wal: WalStream,
    span: Span,
    batch: Option<(Batch, usize)>,
    current: Option<Current>,
    /// Everything below it is done.
    start: Position,
    /// How far it is read.
    pub(super) at: Lsn,
    /// The end was passed.
    pub(super) over: bool,
    /// Types that the relation at hand waits for: the catalog is to be asked for them.
    pub(super) unknown_types: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Current {
    commit_lsn: Lsn,
    commit_time: PgTime,
    ordinal: u64,
}

impl Log {
    /// Begins to stream from `start`.
    pub(super) async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        span: &Span,
        start: Position,
    ) -> Result<Self, ReplayError> {
        let deadline = Instant::now() + SLOT_PATIENCE;
        let how = StartReplication {
            lsn: start.commit_lsn,
            messages: span.messages,
            queue_bytes_max: READ_AHEAD_BYTES,
            ..StartReplication::new(&span.slot, &span.publication)
        };
        let wal = loop {
            let connection = WalConnection::connect(conninfo, application_name).await?;
            match connection.start(&how).await {
                Ok(wal) => break wal,
                Err(error) if in_use(&error) && Instant::now() < deadline => {
                    sleep(SLOT_LOOK).await;
                }
                Err(error) if in_use(&error) => {
                    return Err(ReplayError::InUse { name: span.bookmark.clone(), pid: 0 });
                }
                Err(error) => return Err(error.into()),
            }
        };
        let span = span.clone();
        let at = start.commit_lsn;
        let unknown_types = Vec::new();
        Ok(Self { wal, span, batch: None, current: None, start, at, over: false, unknown_types })
    }

    /// Where it ends.
    pub(super) fn until(&self) -> Lsn {
        self.span.until
    }

    /// Whether frames are at hand.
    pub(super) fn has_frames(&self) -> bool {
        self.batch.is_some()
    }

    /// Waits for frames. Cancel-safe.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        self.batch = Some((self.wal.next().await?, 0));
        Ok(())
    }

    /// Feeds what is at hand, until it is used up, there is enough for one turn, or the outlet has to be waited for.
    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Offered, ReplayError> {
        let Some((batch, mut offset)) = self.batch.take() else { return Ok(Offered::Done) };
        let mut left = FRAMES_MAX;
        while let Some((frame, next)) = batch.frame_at(offset) {
            if self.over {
                return Ok(Offered::Done);
            }
            let offered = match (left, self.frame(&frame, mapper, outlet)?) {
                (_, waits @ Offered::Wait(_)) => waits,
                (0, Offered::Done) => {
                    offset = next;
                    Offered::Done
                }
                (_, Offered::Done) => {
                    offset = next;
                    left -= 1;
                    continue;
                }
            };
            self.batch = Some((batch, offset));
            return Ok(offered);
        }
        Ok(Offered::Done)
    }

    fn frame(
        &mut self,
        frame: &Frame<'_>,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Offered, ReplayError> {
        match frame {
            Frame::Keepalive { wal_end, .. } => {
                if self.current.is_none() {
                    self.reached(*wal_end);
                    outlet.tracker.keepalive((*wal_end).min(self.span.until));
                }
                Ok(Offered::Done)
            }
            Frame::XLogData { wal_start, data, .. } => {
                let message = pgoutput::decode(data).map_err(ReplayError::Protocol)?;
                self.message(&message, *wal_start, mapper, outlet)
            }
        }
    }

    fn reached(&mut self, lsn: Lsn) {
        self.at = self.at.max(lsn);
        self.over |= lsn >= self.span.until;
    }

    fn message(
        &mut self,
        message: &Message<'_>,
        wal_start: Lsn,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Offered, ReplayError> {
        match message {
            Message::Begin(begin) => {
                let commit_lsn = begin.final_lsn;
                self.reached(commit_lsn);
                if self.over {
                    return Ok(Offered::Done);
                }
                // On a Begin it is where the transaction's first change stands.
                let across =
                    |asked: Lsn| wal_start != Lsn::ZERO && wal_start < asked && asked < commit_lsn;
                if self.span.asked.is_some_and(across) {
                    outlet.tally.straddling += 1;
                }
                let skip = if commit_lsn == self.start.commit_lsn { self.start.ordinal } else { 0 };
                outlet.tracker.begin(commit_lsn, skip).map_err(ReplayError::Broken)?;
                let commit_time = begin.commit_time;
                self.current = Some(Current { commit_lsn, commit_time, ordinal: 0 });
                Ok(Offered::Done)
            }
            Message::Commit(commit) => {
                self.current = None;
                let (commit_lsn, end_lsn) = (commit.commit_lsn, commit.end_lsn);
                outlet.tracker.commit(commit_lsn, end_lsn).map_err(ReplayError::Broken)?;
                self.reached(end_lsn);
                Ok(Offered::Done)
            }
            Message::Type(of) => {
                mapper.type_name(of);
                Ok(Offered::Done)
            }
            Message::Relation(relation) => {
                self.unknown_types = mapper.unknown_types(relation);
                if !self.unknown_types.is_empty() {
                    return Ok(Offered::Wait(Some(Instant::now())));
                }
                mapper.relation(relation).map_err(ReplayError::Unfit)?;
                Ok(Offered::Done)
            }
            Message::Insert(insert) => self.change(outlet, |outlet, at, now| {
                let event = mapper.insert(insert, at);
                outlet.offer(event, at, true, now)
            }),
            Message::Message(logical) if logical.transactional => {
                self.change(outlet, |outlet, at, now| {
                    let event = mapper.message(logical, at);
                    outlet.offer(event, at, true, now)
                })
            }
            // They are no events, and have ordinals.
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) => {
                self.change(outlet, |outlet, _, _| outlet.pass())
            }
            Message::Message(_) | Message::Origin(_) => Ok(Offered::Done),
        }
    }

    /// One change of the open transaction; those that are done already pass without a trace.
    fn change(
        &mut self,
        outlet: &mut Outlet,
        take: impl FnOnce(&mut Outlet, At, Instant) -> Result<Offered, ReplayError>,
    ) -> Result<Offered, ReplayError> {
        let Some(current) = &mut self.current else {
            let commit_lsn = Lsn::ZERO;
            return Err(ReplayError::Broken(crate::ack::OrderViolation::NotOpen { commit_lsn }));
        };
        let position = Position { commit_lsn: current.commit_lsn, ordinal: current.ordinal };
        let at = At { position, commit_time: current.commit_time };
        let offered =
            if position < self.start { Offered::Done } else { take(outlet, at, Instant::now())? };
        if offered == Offered::Done {
            current.ordinal += 1;
        }
        Ok(offered)
    }
}

/// Somebody has the slot.
fn in_use(error: &SourceError) -> bool {
    error.sqlstate() == Some(SqlState::OBJECT_IN_USE)
}

// The table as a source: its rows in the order of the layout's key.
//
// A row has no position that could be known, so records carry none; the id is the same as the first time.

/// Rows fed before everything else has its turn.
const ROWS_MAX: usize = 1024;

/// The rows, and the place in them.
pub(super) struct Table {
    rows: Rows,
    at_hand: VecDeque<TableRow>,
    /// Rows that were offered, by ticket, and not yet done.
    offered: VecDeque<(u64, String)>,
    /// The last row that is done.
    pub(super) done: Option<String>,
    /// There are no more.
    pub(super) over: bool,
    next_ticket: u64,
}

impl Table {
    /// Takes rows behind `done`.
    pub(super) fn new(
        rows: Rows,
        done: Option<String>,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Self, ReplayError> {
        mapper.clear_relations(Some(rows.table_oid()));
        if let Message::Relation(relation) =
            pgoutput::decode(rows.relation()).map_err(ReplayError::Protocol)?
        {
            mapper.relation(&relation).map_err(ReplayError::Unfit)?;
        }
        outlet.tracker.begin(Lsn::ZERO, 0).map_err(ReplayError::Broken)?;
        let next_ticket = outlet.tracker.low().0;
        let (at_hand, offered) = (VecDeque::new(), VecDeque::new());
        Ok(Self { rows, at_hand, offered, done, over: false, next_ticket })
    }

    /// Whether rows are at hand.
    pub(super) fn has_rows(&self) -> bool {
        !self.at_hand.is_empty()
    }

    /// Fetches rows. Not cancel-safe: a fetch that is dropped loses its rows.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        self.at_hand = self.rows.next().await?.into();
        self.over = self.at_hand.is_empty();
        Ok(())
    }

    /// Whether the place where it was to go on is gone.
    pub(super) fn lost_its_place(&self) -> bool {
        self.rows.lost_its_place()
    }

    /// Feeds what is at hand, as `Log::feed`.
    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Offered, ReplayError> {
        for _ in 0..ROWS_MAX {
            let Some(row) = self.at_hand.front() else { break };
            let message = pgoutput::decode(&row.message).map_err(ReplayError::Protocol)?;
            let Message::Insert(insert) = message else { break };
            let at = At { position: Position::default(), commit_time: now() };
            let event = mapper.insert(&insert, at);
            match outlet.offer(event, at, false, Instant::now())? {
                Offered::Done => {}
                waits @ Offered::Wait(_) => return Ok(waits),
            }
            if let Some(row) = self.at_hand.pop_front() {
                self.offered.push_back((self.next_ticket, row.id));
                self.next_ticket += 1;
            }
        }
        Ok(Offered::Done)
    }

    /// Looks how far the rows are done.
    pub(super) fn settle(&mut self, outlet: &Outlet) {
        let low = outlet.tracker.low().0;
        while self.offered.front().is_some_and(|(ticket, _)| *ticket < low) {
            self.done = self.offered.pop_front().map(|(_, id)| id);
        }
    }
}

fn now() -> PgTime {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
    PgTime { micros: micros.saturating_sub(PgTime::UNIX_OFFSET_MICROS) }
}
