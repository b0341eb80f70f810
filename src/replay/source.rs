//! The sources of a replay: the WAL through a bookmark's slot, and the rows of the table.
//!
//! Nothing is ever confirmed on the stream, so the slot stays where it is (`START_REPLICATION` beyond the confirmed
//! position is honoured, and status updates that confirm nothing move nothing: measured on 15 and 18).

use super::ReplayError;
use super::publisher::{Offered, Publisher};
use crate::event::{PgTime, Position};
use crate::lsn::Lsn;
use crate::outbox::{At, Mapper};
use crate::pgoutput::{self, Message};
use crate::postgres::replay::{OutboxRows, TableRow};
use crate::postgres::{
    Batch, Conninfo, Frame, SourceError, SqlState, StartReplication, WalConnection, WalStream,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// How long to wait for the slot: a walsender of a killed replay notices the end of its client, or its own time-out of
/// 15 s passes.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(30);

/// Pause between two attempts to get the slot.
const SLOT_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// WAL that is read ahead; beyond it the server waits. With more the server would decode as fast as it can for a while,
/// whatever the rate, and take a processor from the live stream for as long. Unit: bytes.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// Frames fed before other inputs are handled.
const FRAMES_MAX: usize = 1024;

/// The part of the WAL that is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LogRange {
    /// Name of the bookmark.
    pub(super) bookmark: String,
    /// Its slot.
    pub(super) slot: String,
    /// The publication to decode with.
    pub(super) publication: String,
    /// Whether logical messages are read.
    pub(super) messages: bool,
    /// Transactions that commit at this position or later are not replayed.
    pub(super) until: Lsn,
    /// The start that the user asked for, if any: to count transactions that began before it.
    pub(super) asked: Option<Lsn>,
}

/// The stream of a bookmark's slot, and the position in it.
pub(super) struct BookmarkStream {
    /// The stream.
    wal: WalStream,
    /// What is read.
    range: LogRange,
    /// Frames that were read, and the offset of the next one.
    batch: Option<(Batch, usize)>,
    /// The open transaction.
    current: Option<Current>,
    /// Everything below this position is done.
    start: Position,
    /// How far the stream was read.
    pub(super) at: Lsn,
    /// The end was passed.
    pub(super) over: bool,
    /// Types that the current relation refers to and that have to be read from the catalog.
    pub(super) unknown_types: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Current {
    /// Its commit position.
    commit_lsn: Lsn,
    /// Its commit time.
    commit_time: PgTime,
    /// The ordinal of the next change.
    ordinal: u64,
}

impl BookmarkStream {
    /// Starts the stream at `start`.
    pub(super) async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        range: &LogRange,
        start: Position,
    ) -> Result<Self, ReplayError> {
        let deadline = Instant::now() + SLOT_WAIT_MAX;
        let how = StartReplication {
            lsn: start.commit_lsn,
            messages: range.messages,
            queue_bytes_max: READ_AHEAD_BYTES,
            ..StartReplication::new(&range.slot, &range.publication)
        };
        let wal = loop {
            let connection = WalConnection::connect(conninfo, application_name).await?;
            match connection.start(&how).await {
                Ok(wal) => break wal,
                Err(error) if in_use(&error) && Instant::now() < deadline => {
                    sleep(SLOT_POLL_INTERVAL).await;
                }
                Err(error) if in_use(&error) => {
                    return Err(ReplayError::InUse { name: range.bookmark.clone(), pid: 0 });
                }
                Err(error) => return Err(error.into()),
            }
        };
        let range = range.clone();
        let at = start.commit_lsn;
        let unknown_types = Vec::new();
        Ok(Self { wal, range, batch: None, current: None, start, at, over: false, unknown_types })
    }

    /// The end of the part that is read.
    pub(super) fn until(&self) -> Lsn {
        self.range.until
    }

    /// Whether frames were read and not fed yet.
    pub(super) fn has_frames(&self) -> bool {
        self.batch.is_some()
    }

    /// Waits for frames. Cancel-safe.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        self.batch = Some((self.wal.next().await?, 0));
        Ok(())
    }

    /// Feeds the frames that were read, until they are used up, there are enough for one turn, or the publisher has to
    /// be waited for.
    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        let Some((batch, mut offset)) = self.batch.take() else { return Ok(Offered::Done) };
        let mut left = FRAMES_MAX;
        while let Some((frame, next)) = batch.frame_at(offset) {
            if self.over {
                return Ok(Offered::Done);
            }
            let offered = match (left, self.frame(&frame, mapper, publisher)?) {
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
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        match frame {
            Frame::Keepalive { wal_end, .. } => {
                if self.current.is_none() {
                    self.reached(*wal_end);
                    publisher.tracker.keepalive((*wal_end).min(self.range.until));
                }
                Ok(Offered::Done)
            }
            Frame::XLogData { wal_start, data, .. } => {
                let message = pgoutput::decode(data).map_err(ReplayError::Protocol)?;
                self.message(&message, *wal_start, mapper, publisher)
            }
        }
    }

    fn reached(&mut self, lsn: Lsn) {
        self.at = self.at.max(lsn);
        self.over |= lsn >= self.range.until;
    }

    fn message(
        &mut self,
        message: &Message<'_>,
        wal_start: Lsn,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        match message {
            Message::Begin(begin) => {
                let commit_lsn = begin.final_lsn;
                self.reached(commit_lsn);
                if self.over {
                    return Ok(Offered::Done);
                }
                // The `wal_start` of a Begin is the position of the transaction's first change.
                let across =
                    |asked: Lsn| wal_start != Lsn::ZERO && wal_start < asked && asked < commit_lsn;
                if self.range.asked.is_some_and(across) {
                    publisher.tally.straddling += 1;
                }
                let skip = if commit_lsn == self.start.commit_lsn { self.start.ordinal } else { 0 };
                publisher.tracker.begin(commit_lsn, skip).map_err(ReplayError::Broken)?;
                let commit_time = begin.commit_time;
                self.current = Some(Current { commit_lsn, commit_time, ordinal: 0 });
                Ok(Offered::Done)
            }
            Message::Commit(commit) => {
                self.current = None;
                let (commit_lsn, end_lsn) = (commit.commit_lsn, commit.end_lsn);
                publisher.tracker.commit(commit_lsn, end_lsn).map_err(ReplayError::Broken)?;
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
            Message::Insert(insert) => self.change(publisher, |publisher, at, now| {
                let event = mapper.insert(insert, at);
                publisher.offer(event, at, true, now)
            }),
            Message::Message(logical) if logical.transactional => {
                self.change(publisher, |publisher, at, now| {
                    let event = mapper.message(logical, at);
                    publisher.offer(event, at, true, now)
                })
            }
            // These are no events, but have ordinals.
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) => {
                self.change(publisher, |publisher, _, _| publisher.pass())
            }
            Message::Message(_) | Message::Origin(_) => Ok(Offered::Done),
        }
    }

    /// One change of the open transaction; changes that are done already are skipped.
    fn change(
        &mut self,
        publisher: &mut Publisher,
        take: impl FnOnce(&mut Publisher, At, Instant) -> Result<Offered, ReplayError>,
    ) -> Result<Offered, ReplayError> {
        let Some(current) = &mut self.current else {
            let commit_lsn = Lsn::ZERO;
            return Err(ReplayError::Broken(crate::ack::OrderViolation::NotOpen { commit_lsn }));
        };
        let position = Position { commit_lsn: current.commit_lsn, ordinal: current.ordinal };
        let at = At { position, commit_time: current.commit_time };
        let offered = if position < self.start {
            Offered::Done
        } else {
            take(publisher, at, Instant::now())?
        };
        if offered == Offered::Done {
            current.ordinal += 1;
        }
        Ok(offered)
    }
}

/// Whether another session has the slot.
fn in_use(error: &SourceError) -> bool {
    error.sqlstate() == Some(SqlState::OBJECT_IN_USE)
}

/// Rows fed before other inputs are handled.
const ROWS_MAX: usize = 1024;

/// The rows of the table, in the order of the layout's key, and the position among them. A row has no position in the
/// WAL, so the records carry none; the IDs are those of the first publication.
pub(super) struct TableRows {
    /// The query.
    rows: OutboxRows,
    /// Rows that were read and not fed yet.
    at_hand: VecDeque<TableRow>,
    /// Rows that were offered and are not done yet, with their tickets.
    offered: VecDeque<(u64, String)>,
    /// The last row that is done.
    pub(super) done: Option<String>,
    /// There are no more rows.
    pub(super) over: bool,
    /// The ticket of the next row.
    next_ticket: u64,
}

impl TableRows {
    /// Reads rows after `done`.
    pub(super) fn new(
        rows: OutboxRows,
        done: Option<String>,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Self, ReplayError> {
        mapper.clear_relations(Some(rows.table_oid()));
        if let Message::Relation(relation) =
            pgoutput::decode(rows.relation()).map_err(ReplayError::Protocol)?
        {
            mapper.relation(&relation).map_err(ReplayError::Unfit)?;
        }
        publisher.tracker.begin(Lsn::ZERO, 0).map_err(ReplayError::Broken)?;
        let next_ticket = publisher.tracker.low().0;
        let (at_hand, offered) = (VecDeque::new(), VecDeque::new());
        Ok(Self { rows, at_hand, offered, done, over: false, next_ticket })
    }

    /// Whether rows were read and not fed yet.
    pub(super) fn has_rows(&self) -> bool {
        !self.at_hand.is_empty()
    }

    /// Fetches rows. Not cancel-safe: a fetch that is dropped loses its rows.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        self.at_hand = self.rows.next().await?.into();
        self.over = self.at_hand.is_empty();
        Ok(())
    }

    /// Whether the row after which the rows were to continue was deleted.
    pub(super) fn lost_position(&self) -> bool {
        self.rows.lost_its_place()
    }

    /// Feeds the rows that were read, as `BookmarkStream::feed`.
    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        for _ in 0..ROWS_MAX {
            let Some(row) = self.at_hand.front() else { break };
            let message = pgoutput::decode(&row.message).map_err(ReplayError::Protocol)?;
            let Message::Insert(insert) = message else { break };
            let at = At { position: Position::default(), commit_time: now() };
            let event = mapper.insert(&insert, at);
            match publisher.offer(event, at, false, Instant::now())? {
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

    /// Updates which rows are done.
    pub(super) fn settle(&mut self, publisher: &Publisher) {
        let low = publisher.tracker.low().0;
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
