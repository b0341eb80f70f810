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
use crate::postgres::wire;
use crate::postgres::{
    Batch, ChangeReader, Conninfo, SourceError, SqlState, StartReplication, WalConnection,
    WalStream,
};
use crate::source::{self, Change};
use crate::timestamp::Timestamp;
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
    reader: ChangeReader,
    /// Frames that were read, and the place of the next change.
    batch: Option<(Batch, usize)>,
    /// How far the changes were offered.
    position: LogPosition,
}

/// The position in the part of the WAL that is read.
struct LogPosition {
    /// What is read.
    range: LogRange,
    /// A transaction is being read.
    in_transaction: bool,
    /// How far the stream was read.
    at: Offset,
    /// The end was passed.
    over: bool,
}

impl BookmarkStream {
    /// Starts the stream with the transaction that commits at `start`, or the first one after it.
    pub(super) async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        reader: ChangeReader,
        range: &LogRange,
        start: Offset,
    ) -> Result<Self, ReplayError> {
        let deadline = Instant::now() + SLOT_WAIT_MAX;
        let how = StartReplication {
            lsn: wire::to_wire(start),
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
        let position = LogPosition { range, in_transaction: false, at: start, over: false };
        Ok(Self { wal, reader, batch: None, position })
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

    /// Makes changes of the frames: it may wait for types of the catalog.
    pub(super) fn reader(&mut self) -> &mut ChangeReader {
        &mut self.reader
    }

    /// Whether frames were read and not fed yet.
    pub(super) fn has_frames(&self) -> bool {
        self.batch.is_some()
    }

    /// Waits for frames. Cancel-safe.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        self.batch = Some((self.wal.next().await?, 0));
        self.reader.begin_batch();
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
        let offering = (&mut self.position, mapper, publisher);
        let whole = match &mut self.reader {
            ChangeReader::Rows(decoder) => feed(&mut decoder.batch(&batch), &mut place, offering)?,
            ChangeReader::Deltas(deltas) => feed(&mut deltas.batch(&batch), &mut place, offering)?,
        };
        Ok(whole.unwrap_or_else(|stopped| {
            self.batch = Some((batch, place));
            stopped
        }))
    }
}

/// Offers the changes of a batch from `place` on; an error with what stopped it before the end.
fn feed(
    changes: &mut impl source::Batch,
    place: &mut usize,
    (position, mapper, publisher): (&mut LogPosition, &mut Mapper, &mut Publisher),
) -> Result<Result<Offered, Offered>, ReplayError> {
    let mut left = CHANGES_MAX;
    // One reading of the clock for all: an event at the time of the event before it costs the relay less.
    let now = Instant::now();
    loop {
        if position.over {
            return Ok(Ok(Offered::Done));
        }
        let Some((change, next)) = changes.change_at(*place)? else { return Ok(Ok(Offered::Done)) };
        match position.offer(&change, mapper, publisher, now)? {
            waits @ Offered::Wait(_) => return Ok(Err(waits)),
            Offered::Done => *place = next,
        }
        if left == 0 {
            return Ok(Err(Offered::Done));
        }
        left -= 1;
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
        now: Instant,
    ) -> Result<Offered, ReplayError> {
        if publisher.is_stopping() {
            return Ok(Offered::Wait(None));
        }
        match change {
            Change::Heartbeat(upto) => {
                if !self.in_transaction {
                    self.reached(*upto);
                    publisher.keepalive((*upto).min(self.range.until), now);
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
                    publisher.straddles(commit);
                }
                publisher.begin(commit, *time, now);
                self.in_transaction = true;
                Ok(Offered::Done)
            }
            Change::Commit { commit, end, time: _ } => {
                self.in_transaction = false;
                publisher.commit(*commit, *end, now);
                self.reached(*end);
                Ok(Offered::Done)
            }
            Change::Table(table) => {
                mapper.table(table).map_err(ReplayError::Unfit)?;
                Ok(Offered::Done)
            }
            Change::Row(row) => next_change(publisher, now, |publisher, at| {
                publisher.offer(mapper.row(row, at), now)
            }),
            Change::Message(message) if message.transactional => {
                next_change(publisher, now, |publisher, at| {
                    publisher.offer(mapper.message(message, at), now)
                })
            }
            // These are no events, but have ordinals.
            Change::Updated(_) | Change::Collected | Change::Other => {
                next_change(publisher, now, |publisher, _| Ok(publisher.pass(now)))
            }
            Change::Message(_) | Change::Nothing => Ok(Offered::Done),
            Change::Blocked => Ok(Offered::Wait(Some(now))),
        }
    }
}

/// One change of the open transaction. A change that was dealt with before, or is before the start, is skipped.
fn next_change(
    publisher: &mut Publisher,
    now: Instant,
    take: impl FnOnce(&mut Publisher, At) -> Result<Offered, ReplayError>,
) -> Result<Offered, ReplayError> {
    match publisher.upcoming() {
        Some(_) if !publisher.intake_open() => Ok(Offered::Wait(None)),
        Some(at) if !publisher.is_before_start(at.position) => take(publisher, at),
        Some(_) | None => Ok(publisher.skip(now)),
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
///
/// For the relay, each row is a transaction of its own, whose offset is the number of the row: as many rows before it
/// are done or were offered. If rows were inserted or deleted meanwhile, a row that is read again has another number.
/// Therefore nothing is skipped by its number: the query starts after the last row that is done.
pub(super) struct TableRows {
    /// The query.
    rows: OutboxRows,
    /// Rows that were read and not fed yet.
    at_hand: FetchedRows,
    /// There are no more rows.
    pub(super) over: bool,
    /// The number of the next row.
    number: u64,
    /// The transaction of the next row has begun.
    begun: bool,
}

impl TableRows {
    /// Reads rows after those that are done.
    pub(super) fn new(
        rows: OutboxRows,
        mapper: &mut Mapper,
        publisher: &Publisher,
    ) -> Result<Self, ReplayError> {
        let table = rows.description();
        mapper.clear_tables(Some(table.id));
        mapper.table(&table.as_table()).map_err(ReplayError::Unfit)?;
        let number = publisher.read_from().get();
        Ok(Self { rows, at_hand: FetchedRows::default(), over: false, number, begun: false })
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
        let now = Instant::now();
        let at = At { position: Position::default(), commit_time: time_now() };
        for _ in 0..ROWS_MAX {
            let Some(row) = self.at_hand.first() else { break };
            if !publisher.intake_open() {
                return Ok(Offered::Wait(None));
            }
            let number = Offset::new(self.number);
            if !self.begun {
                publisher.begin(number, at.commit_time, now);
                self.begun = true;
            }
            match publisher.offer(mapper.row(&row, at), now)? {
                Offered::Done => {}
                waits @ Offered::Wait(_) => return Ok(waits),
            }
            if let Some(id) = self.at_hand.take_first() {
                publisher.row_offered(number, id);
            }
            self.number += 1;
            self.begun = false;
            publisher.commit(number, Offset::new(self.number), now);
        }
        Ok(Offered::Done)
    }
}

fn time_now() -> Timestamp {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { unix_micros: i64::try_from(unix.as_micros()).unwrap_or(i64::MAX) }
}
