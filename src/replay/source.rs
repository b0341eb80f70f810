//! The sources of a replay: the WAL through a bookmark's slot, and the rows of the table.
//!
//! Nothing is ever confirmed on the stream, so the slot stays where it is (`START_REPLICATION` beyond the confirmed
//! position is honoured, and status updates that confirm nothing move nothing: measured on 15 and 18).

use super::ReplayError;
use super::publisher::{Offered, Publisher};
use crate::event::Position;
use crate::offset::Offset;
use crate::outbox::{At, Mapper};
use crate::postgres::replay::{FetchedRows, OutboxRows};
use crate::postgres::value_types::TypeFacts;
use crate::postgres::wire;
use crate::postgres::{
    Batch, Conninfo, Decoder, SourceError, SqlState, StartReplication, WalConnection, WalStream,
};
use crate::source::{Batch as _, Change};
use crate::timestamp::Timestamp;
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

/// Changes fed before other inputs are handled.
const CHANGES_MAX: usize = 1024;

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
    pub(super) until: Offset,
    /// The start that the user asked for, if any: to count transactions that began before it.
    pub(super) asked: Option<Offset>,
}

/// The stream of a bookmark's slot, and the position in it.
pub(super) struct BookmarkStream {
    /// The stream.
    wal: WalStream,
    /// Makes changes of the frames of this connection.
    decoder: Decoder,
    /// Frames that were read, and the place of the next change.
    batch: Option<(Batch, usize)>,
    /// How far the changes were offered.
    position: LogPosition,
}

/// The position in the part of the WAL that is read.
struct LogPosition {
    /// What is read.
    range: LogRange,
    /// The open transaction.
    current: Option<Current>,
    /// Everything below this position is done.
    start: Position,
    /// How far the stream was read.
    at: Offset,
    /// The end was passed.
    over: bool,
}

#[derive(Clone, Copy)]
struct Current {
    /// Its commit position.
    commit: Offset,
    /// Its commit time.
    commit_time: Timestamp,
    /// The ordinal of the next change.
    ordinal: u64,
}

impl BookmarkStream {
    /// Starts the stream at `start`.
    pub(super) async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        decoder: Decoder,
        range: &LogRange,
        start: Position,
    ) -> Result<Self, ReplayError> {
        let deadline = Instant::now() + SLOT_WAIT_MAX;
        let how = StartReplication {
            lsn: wire::to_wire(start.commit),
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
        let (range, at) = (range.clone(), start.commit);
        let position = LogPosition { range, current: None, start, at, over: false };
        Ok(Self { wal, decoder, batch: None, position })
    }

    /// The end of the part that is read.
    pub(super) fn until(&self) -> Offset {
        self.position.range.until
    }

    /// How far the stream was read.
    pub(super) fn at(&self) -> Offset {
        self.position.at
    }

    /// Whether the end was passed.
    pub(super) fn is_over(&self) -> bool {
        self.position.over
    }

    /// Types that the description of a table waits for: they have to be read from the catalog.
    pub(super) fn unknown_types(&self) -> &[u32] {
        self.decoder.unknown_types()
    }

    /// Adds what the catalog has of them.
    pub(super) fn add_types(&mut self, found: &[TypeFacts]) {
        self.decoder.add_types(found);
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

    /// Feeds the changes that were read, until they are used up, there are enough for one turn, or the publisher has to
    /// be waited for.
    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        let Some((batch, mut place)) = self.batch.take() else { return Ok(Offered::Done) };
        let mut changes = self.decoder.batch(&batch);
        let mut left = CHANGES_MAX;
        loop {
            if self.position.over {
                return Ok(Offered::Done);
            }
            let Some((change, next)) = changes.change_at(place)? else { return Ok(Offered::Done) };
            let offered = match (left, self.position.offer(&change, mapper, publisher)?) {
                (_, waits @ Offered::Wait(_)) => waits,
                (0, Offered::Done) => {
                    place = next;
                    Offered::Done
                }
                (_, Offered::Done) => {
                    place = next;
                    left -= 1;
                    continue;
                }
            };
            self.batch = Some((batch, place));
            return Ok(offered);
        }
    }
}

impl LogPosition {
    fn reached(&mut self, offset: Offset) {
        self.at = self.at.max(offset);
        self.over |= offset >= self.range.until;
    }

    fn offer(
        &mut self,
        change: &Change<'_>,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        match change {
            Change::Heartbeat(upto) => {
                if self.current.is_none() {
                    self.reached(*upto);
                    publisher.tracker.keepalive((*upto).min(self.range.until));
                }
                Ok(Offered::Done)
            }
            Change::Begin { commit, first, time, transaction: _ } => {
                let (commit, first) = (*commit, *first);
                self.reached(commit);
                if self.over {
                    return Ok(Offered::Done);
                }
                let across =
                    |asked: Offset| first != Offset::ZERO && first < asked && asked < commit;
                if self.range.asked.is_some_and(across) {
                    publisher.tally.straddling += 1;
                }
                let skip = if commit == self.start.commit { self.start.ordinal } else { 0 };
                publisher.tracker.begin(commit, skip).map_err(ReplayError::Broken)?;
                self.current = Some(Current { commit, commit_time: *time, ordinal: 0 });
                Ok(Offered::Done)
            }
            Change::Commit { commit, end, time: _ } => {
                self.current = None;
                publisher.tracker.commit(*commit, *end).map_err(ReplayError::Broken)?;
                self.reached(*end);
                Ok(Offered::Done)
            }
            Change::Table(table) => {
                mapper.table(table).map_err(ReplayError::Unfit)?;
                Ok(Offered::Done)
            }
            Change::Row(row) => self.change(publisher, |publisher, at, now| {
                let event = mapper.row(row, at);
                publisher.offer(event, at, true, now)
            }),
            Change::Message(message) if message.transactional => {
                self.change(publisher, |publisher, at, now| {
                    let event = mapper.message(message, at);
                    publisher.offer(event, at, true, now)
                })
            }
            // These are no events, but have ordinals.
            Change::Updated(_) | Change::Other => {
                self.change(publisher, |publisher, _, _| publisher.pass())
            }
            Change::Message(_) | Change::Nothing => Ok(Offered::Done),
            Change::Blocked => Ok(Offered::Wait(Some(Instant::now()))),
        }
    }

    /// One change of the open transaction; changes that are done already are skipped.
    fn change(
        &mut self,
        publisher: &mut Publisher,
        take: impl FnOnce(&mut Publisher, At, Instant) -> Result<Offered, ReplayError>,
    ) -> Result<Offered, ReplayError> {
        let Some(current) = &mut self.current else {
            let commit = Offset::ZERO;
            return Err(ReplayError::Broken(crate::ack::OrderViolation::NotOpen { commit }));
        };
        let position = Position { commit: current.commit, ordinal: current.ordinal };
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
    at_hand: FetchedRows,
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
        let table = rows.description();
        mapper.clear_tables(Some(table.id));
        mapper.table(&table.as_table()).map_err(ReplayError::Unfit)?;
        publisher.tracker.begin(Offset::ZERO, 0).map_err(ReplayError::Broken)?;
        let next_ticket = publisher.tracker.low().0;
        let (at_hand, offered) = (FetchedRows::default(), VecDeque::new());
        Ok(Self { rows, at_hand, offered, done, over: false, next_ticket })
    }

    /// Whether rows were read and not fed yet.
    pub(super) fn has_rows(&self) -> bool {
        !self.at_hand.is_empty()
    }

    /// Fetches rows. Not cancel-safe: a fetch that is dropped loses its rows.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        // The memory of the rows before them is free first.
        self.at_hand = FetchedRows::default();
        self.at_hand = self.rows.next().await?;
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
            let Some(row) = self.at_hand.first() else { break };
            let at = At { position: Position::default(), commit_time: now() };
            let event = mapper.row(&row, at);
            match publisher.offer(event, at, false, Instant::now())? {
                Offered::Done => {}
                waits @ Offered::Wait(_) => return Ok(waits),
            }
            if let Some(id) = self.at_hand.take_first() {
                self.offered.push_back((self.next_ticket, id));
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

fn now() -> Timestamp {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { unix_micros: i64::try_from(unix.as_micros()).unwrap_or(i64::MAX) }
}
