//! The durable cursor: one row per shard of a pipeline in `postrider.cursor`, written by one statement.
//!
//! The slot's own position is not durable: after a crash of the server (before PostgreSQL 17 after any restart) the
//! slot is back where `restart_lsn` last moved. The row bounds the events that are published twice.
//!
//! The order of writes makes [`Cursor::flush_limit`] a proof: the row is committed *and flushed* first
//! (`synchronous_commit = local`), and only then may a position up to `flush_limit` be confirmed. A slot beyond the
//! limit was moved or created again by another session. With `synchronous_commit = off` a crash of the server could
//! keep the slot's move and lose the row's, and the pipeline would halt without a reason.

use crate::catalog::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL, lsn, pg_lsn};
use crate::error::SourceError;
use crate::publication_version::{PublicationVersion, entries_sql, table_sql};
use crate::statement::{Statement, StatementError};
use crate::stream::TimelineSwitch;
use crate::wire::Lsn;
use postrider_core::event::{Histories, HistoryId, Position};
use postrider_core::offset::Watermark;
use postrider_core::store::PipelineKey;
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row};

/// The row of one shard of a pipeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The pipeline and its shard.
    pub key: PipelineKey,
    /// The cluster it belongs to, as `IDENTIFY_SYSTEM` prints it.
    pub system_identifier: String,
    /// The timeline of the last write.
    pub timeline: u32,
    /// The slot.
    pub slot: String,
    /// Where the slot was created or adopted. It distinguishes the slot from an earlier slot of the same name.
    pub slot_created_lsn: Lsn,
    /// The publication that was streamed.
    pub publication: String,
    /// Whether logical messages are part of the stream: they are counted in ordinals.
    pub messages: bool,
    /// Every event below it is resolved.
    pub watermark: Watermark,
    /// The highest position that may have been confirmed; never below the watermark.
    pub flush_limit: Lsn,
    /// The first unresolved change of the transaction at the watermark: every change with a lower ordinal is resolved.
    pub partial: Option<Position>,
    /// The epoch of the owner, which alone may write. [`take_over`] raises the epoch, so a relay that has lost the
    /// pipeline writes nothing more.
    pub owner_epoch: i64,
}

/// The result of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a row that was not stored does not allow its position to be confirmed"]
pub enum CursorWrite {
    /// Stored, and on the server's disk.
    Stored,
    /// Not stored: the row is already further ahead. Another process of this pipeline wrote it.
    Behind(Watermark),
    /// Not stored: the row now belongs to another slot, another slot of the same name, or another cluster. `setup` was
    /// run.
    Rebound(Box<Cursor>),
    /// Not stored: another process has taken the pipeline over.
    TakenOver,
    /// Not stored: there is no row.
    Missing,
}

const COLUMNS: &str = "pipeline, system_identifier, timeline, slot, slot_created_lsn, publication, \
                       messages, watermark, flush_limit, partial_commit_lsn, partial_ordinal, \
                       owner_epoch, shard";

/// A value of `before_slot`: every row from before the creation of the slot is published. The snapshot sees no row,
/// because no row's transaction number is below 3.
pub(crate) const NOTHING_BEFORE: &str = "'3:3:'::pg_catalog.pg_snapshot";

/// The snapshot that `repair` selects rows by when the slot is lost. All of its transactions are resolved.
///
/// A transaction that a statement's snapshot sees has written its commit record, so that record lies before an end of
/// WAL that is read later. Once the watermark (`$8`) has reached that end, every transaction that the snapshot sees is
/// resolved. Only one snapshot is pending at a time, so the row's size does not depend on the lag.
///
/// This holds only while the publication publishes the table. Therefore a snapshot is taken only if it sees the
/// publication as it was when the stream was last known to be complete (`{whole}`). Rows that a changed publication
/// left out stay unresolved, and a repair finds them. The snapshot that is stored is the statement's own.
const LEDGER: &str = "\
resolved_snapshot = CASE WHEN pending_lsn <= $8 THEN pending_snapshot ELSE resolved_snapshot END, \
pending_snapshot = CASE WHEN pending_lsn > $8 THEN pending_snapshot \
                        WHEN {whole} THEN pg_catalog.pg_current_snapshot() END, \
pending_lsn = CASE WHEN pending_lsn > $8 THEN pending_lsn \
                   WHEN {whole} THEN pg_catalog.pg_current_wal_insert_lsn() END";

/// Whether a write of the row may take a new snapshot of resolved transactions.
#[derive(Clone, Debug)]
pub enum SnapshotPolicy {
    /// Yes: no publication can leave out rows of the stream, because no table is streamed.
    Always,
    /// Only while the catalog rows of the publication, for the table with this OID, have this version.
    WhileUnchanged(PublicationVersion, u32),
    /// Only while the catalog rows of the publication of captured tables, and of all its entries, have this version.
    WhileCaptured(PublicationVersion),
    /// No: the publication may have left out rows that are not known to be published.
    Never,
}

/// The first version of the schema whose keys have a shard.
const SHARDS_SINCE: u32 = 9;

/// Reads the row; `None` if there is none.
pub async fn read(client: &Client, key: &PipelineKey) -> Result<Option<Cursor>, SourceError> {
    read_columns(client, key, COLUMNS, "shard = $2").await
}

/// As [`read`], for a schema of an earlier version, which has no `shard` before version 9 and no `owner_epoch` in
/// version 1: the row of a pipeline is that of its first shard.
pub(crate) async fn read_version(
    client: &Client,
    key: &PipelineKey,
    version: u32,
) -> Result<Option<Cursor>, SourceError> {
    if version >= SHARDS_SINCE {
        return read(client, key).await;
    }
    let columns = COLUMNS.replace("shard", "0::pg_catalog.int4");
    let columns =
        if version > 1 { columns } else { columns.replace("owner_epoch", "0::pg_catalog.int8") };
    read_columns(client, key, &columns, "$2::pg_catalog.int4 = 0").await
}

async fn read_columns(
    client: &Client,
    key: &PipelineKey,
    columns: &str,
    of_shard: &str,
) -> Result<Option<Cursor>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read the cursor of pipeline {key}"), e).of(Statement::Cursor)
    };
    // A row without a slot belongs to a polling pipeline: it records the owner and no position.
    let sql = format!(
        "SELECT {columns} FROM postrider.cursor WHERE pipeline = $1 AND {of_shard} AND slot <> ''"
    );
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.map(|row| from_row(&row, 0).map_err(failed)).transpose()
}

/// Whether the slot was created while the table was polled and polling has not finished yet. Events that were committed
/// before the slot was created are then in the table only.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn polls_on(client: &Client, key: &PipelineKey) -> Result<bool, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read the cursor of pipeline {key}"), e).of(Statement::Cursor)
    };
    let sql = "SELECT polls_on FROM postrider.cursor WHERE pipeline = $1 AND shard = $2";
    let row = client.query_opt(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.map_or(Ok(false), |row| row.try_get(0).map_err(failed))
}

/// Records that polling has published everything that was committed before the slot was created. `epoch` is the
/// owner's; the row of another owner is not changed.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn polled(client: &Client, key: &PipelineKey, epoch: i64) -> Result<(), SourceError> {
    let failed = |e| {
        SourceError::control(format!("end the polling of pipeline {key}"), e).of(Statement::Cursor)
    };
    let sql = format!(
        "UPDATE postrider.cursor SET polls_on = false, before_slot = {NOTHING_BEFORE} \
         WHERE pipeline = $1 AND shard = $3 AND owner_epoch = $2 AND polls_on"
    );
    client.execute(&sql, &[&key.pipeline, &epoch, &key.shard]).await.map(drop).map_err(failed)
}

/// The result of [`seize`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seized {
    /// The epoch of the previous owner.
    pub before: i64,
    /// The new epoch.
    pub epoch: i64,
    /// The previous owner ended with no record in flight to the broker, or there was no previous owner.
    pub left: bool,
    /// The row's watermark. A process with an older epoch cannot move it any more.
    pub watermark: Watermark,
    /// The partial transaction of the row. Its ordinals were counted under the two settings below.
    pub partial: Option<Position>,
    /// The publication that was streamed.
    pub publication: String,
    /// Whether logical messages were part of the stream.
    pub messages: bool,
}

/// Takes ownership of the pipeline as [`take_over`] does, and reads how far the previous owner got. The result includes
/// a write of the previous owner that was in progress when the row was first read.
///
/// # Errors
/// As [`take_over`].
pub async fn seize(client: &Client, key: &PipelineKey) -> Result<Seized, SourceError> {
    let failed =
        |e| SourceError::control(format!("take pipeline {key} over"), e).of(Statement::Cursor);
    let sql = "WITH before AS ( \
                 SELECT owner_epoch AS epoch, \
                   owner_epoch = 0 OR owner_left IS NOT DISTINCT FROM owner_epoch AS left \
                 FROM postrider.cursor WHERE pipeline = $1 AND shard = $2 FOR UPDATE) \
               UPDATE postrider.cursor c SET updated_at = pg_catalog.now(), \
                 owner_epoch = greatest(before.epoch + 1, (pg_catalog.date_part('epoch', \
                   pg_catalog.clock_timestamp()) * 1e6)::pg_catalog.int8) \
               FROM before WHERE c.pipeline = $1 AND c.shard = $2 \
               RETURNING before.epoch, c.owner_epoch, c.watermark, c.partial_commit_lsn, \
                 c.partial_ordinal, c.publication, c.messages, before.left";
    let row = client.query_one(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let commit_lsn: Option<PgLsn> = row.try_get(3).map_err(failed)?;
    let ordinal: Option<i64> = row.try_get(4).map_err(failed)?;
    Ok(Seized {
        before: row.try_get(0).map_err(failed)?,
        epoch: row.try_get(1).map_err(failed)?,
        watermark: Watermark::resumed(lsn(row.try_get(2).map_err(failed)?)),
        partial: commit_lsn.zip(ordinal).map(|(commit_lsn, ordinal)| Position {
            commit: lsn(commit_lsn),
            ordinal: ordinal.cast_unsigned(),
        }),
        publication: row.try_get(5).map_err(failed)?,
        messages: row.try_get(6).map_err(failed)?,
        left: row.try_get(7).map_err(failed)?,
    })
}

/// Takes ownership of the pipeline for a process that publishes nothing: raises the owner's epoch and returns it. A
/// process with an older epoch can then store nothing. The statement waits for a write of the previous owner that is in
/// progress, because that write holds the row's lock; no later write of that owner can succeed.
///
/// The epoch is also a time (microseconds since 1970), so no epoch is used twice if the row was deleted and created
/// again, or if a failover lost its last change.
///
/// # Errors
/// An error of the server or of the connection; [`SourceErrorKind::Closed`](crate::SourceErrorKind::Closed) if there is
/// no row.
pub async fn take_over(client: &Client, key: &PipelineKey) -> Result<i64, SourceError> {
    let failed =
        |e| SourceError::control(format!("take pipeline {key} over"), e).of(Statement::Cursor);
    let sql = "WITH next AS ( \
                 SELECT greatest(owner_epoch + 1, (pg_catalog.date_part('epoch', \
                   pg_catalog.clock_timestamp()) * 1e6)::pg_catalog.int8) AS epoch \
                 FROM postrider.cursor WHERE pipeline = $1 AND shard = $2 FOR UPDATE) \
               UPDATE postrider.cursor c SET updated_at = pg_catalog.now(), owner_epoch = next.epoch, \
                 owner_left = CASE WHEN c.owner_epoch = 0 OR c.owner_left = c.owner_epoch \
                   THEN next.epoch END \
               FROM next WHERE c.pipeline = $1 AND c.shard = $2 RETURNING c.owner_epoch";
    let taken = client.query_one(sql, &[&key.pipeline, &key.shard]).await;
    taken.and_then(|row| row.try_get(0)).map_err(failed)
}

/// Records that the owner of this epoch ends with no record in flight to the broker, so its successor need not wait for
/// such records. The row of another owner is not changed.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn leave(client: &Client, key: &PipelineKey, epoch: i64) -> Result<(), SourceError> {
    let failed = |e| {
        SourceError::control(format!("leave pipeline {key} to others"), e).of(Statement::Cursor)
    };
    let sql = "UPDATE postrider.cursor SET owner_left = owner_epoch \
               WHERE pipeline = $1 AND shard = $3 AND owner_epoch = $2";
    client.execute(sql, &[&key.pipeline, &epoch, &key.shard]).await.map(drop).map_err(failed)
}

/// Whether the owner's epoch is still `epoch`. Inside a transaction the answer stays true until the transaction ends,
/// because [`take_over`] waits for the row's lock.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn is_owned(client: &Client, key: &PipelineKey, epoch: i64) -> Result<bool, SourceError> {
    let failed =
        |e| SourceError::control(format!("check who owns pipeline {key}"), e).of(Statement::Cursor);
    let sql = "SELECT FROM postrider.cursor \
               WHERE pipeline = $1 AND shard = $3 AND owner_epoch = $2 FOR SHARE";
    let row = client.query_opt(sql, &[&key.pipeline, &epoch, &key.shard]).await.map_err(failed)?;
    Ok(row.is_some())
}

/// Reads the histories of the pipeline's positions; `None` if there is no row.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn histories(
    client: &Client,
    key: &PipelineKey,
) -> Result<Option<Histories>, SourceError> {
    let failed = |e| SourceError::control(format!("read the histories of pipeline {key}"), e);
    let sql = "SELECT histories, histories_from FROM postrider.cursor \
               WHERE pipeline = $1 AND shard = $2";
    let row = client.query_opt(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.map(|row| histories_of(&row).map_err(failed)).transpose()
}

/// The server that a pipeline's positions belong to, and its earlier timelines.
#[derive(Clone, Copy, Debug)]
pub struct ServerHistory<'a> {
    /// The cluster.
    pub system_identifier: &'a str,
    /// The cluster's timeline.
    pub timeline: u32,
    /// The earlier timelines; empty if they are not known.
    pub switches: &'a [TimelineSwitch],
}

/// Returns the histories in force, and begins a new one if the server is on another timeline or in another cluster than
/// the row's last history, if the row is ahead of the server's WAL (the server was set back), or if this process has
/// published under a higher history (`seen`). The change is committed when this returns, so before any event is
/// published under the new history.
///
/// Returns `None` if `epoch` is no longer the owner's. The number of a history is the Unix second by the server's
/// clock, or `now` by the clock of this process if that is later, because after a failover one of the two clocks may be
/// behind.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn settle_histories(
    client: &Client,
    key: &PipelineKey,
    epoch: i64,
    of: ServerHistory<'_>,
    (now, seen): (u32, HistoryId),
) -> Result<Option<SettledHistories>, SourceError> {
    let failed = |e| SourceError::control(format!("settle the histories of pipeline {key}"), e);
    let sql = "SELECT histories, histories_from, history_system_identifier, history_timeline, \
                 watermark > pg_catalog.pg_current_wal_insert_lsn(), \
                 pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())::pg_catalog.int8 \
               FROM postrider.cursor WHERE pipeline = $1 AND shard = $3 AND owner_epoch = $2";
    let row = client.query_opt(sql, &[&key.pipeline, &epoch, &key.shard]).await;
    let Some(row) = row.map_err(failed)? else { return Ok(None) };
    let before = histories_of(&row).map_err(failed)?;
    let bound = HistoryBinding {
        system_identifier: row.try_get(2).map_err(failed)?,
        timeline: row.try_get(3).map_err(failed)?,
        set_back: row.try_get(4).map_err(failed)?,
    };
    let Some(from) = bound.raises(of, before.current() < seen) else {
        return Ok(Some(SettledHistories { histories: before, raised: None, first: false }));
    };
    let clock: i64 = row.try_get(5).map_err(failed)?;
    let now = u32::try_from(clock).unwrap_or_default().max(now);
    let histories = before.raised(from, now, seen);
    let numbers: Vec<i64> = histories.starts().iter().map(|(_, n)| i64::from(n.0)).collect();
    let starts: Vec<PgLsn> = histories.starts().iter().map(|(at, _)| pg_lsn(*at)).collect();
    let sql = "UPDATE postrider.cursor SET histories = $3, histories_from = $4, \
                 history_system_identifier = $5, history_timeline = $6, updated_at = pg_catalog.now() \
               WHERE pipeline = $1 AND shard = $7 AND owner_epoch = $2";
    let timeline = i64::from(of.timeline);
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&key.pipeline, &epoch, &numbers, &starts, &of.system_identifier, &timeline, &key.shard];
    let written = client.execute(sql, &parameters).await.map_err(failed)?;
    let (raised, first) = (Some((before.current(), from)), bound.system_identifier.is_none());
    Ok((written == 1).then_some(SettledHistories { histories, raised, first }))
}

/// The result of [`settle_histories`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettledHistories {
    /// The histories in force.
    pub histories: Histories,
    /// If a new history was begun: the previous one, and the position from which the new one applies.
    pub raised: Option<(HistoryId, Lsn)>,
    /// No relay had used the row before, so nothing was published under another history.
    pub first: bool,
}

/// Requests a new history at the next start, because events that this server commits may get positions that consumers
/// have already seen. `epoch` is the owner's.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn end_history(
    client: &Client,
    key: &PipelineKey,
    epoch: i64,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("end the history of pipeline {key}"), e);
    let sql = "UPDATE postrider.cursor SET history_timeline = NULL \
               WHERE pipeline = $1 AND shard = $3 AND owner_epoch = $2";
    client.execute(sql, &[&key.pipeline, &epoch, &key.shard]).await.map(drop).map_err(failed)
}

/// The cluster and timeline of the row's last history.
#[derive(Clone, PartialEq, Eq, Debug)]
struct HistoryBinding {
    system_identifier: Option<String>,
    timeline: Option<i64>,
    /// The row is ahead of the server's WAL.
    set_back: bool,
}

impl HistoryBinding {
    /// Where a new history begins, if one is needed: at the end of the last history's timeline, or at position zero if
    /// that end is not known.
    fn raises(&self, of: ServerHistory<'_>, published_higher: bool) -> Option<Lsn> {
        let same_system = self.system_identifier.as_deref() == Some(of.system_identifier);
        let same = same_system && self.timeline == Some(i64::from(of.timeline));
        if same && !self.set_back && !published_higher {
            return None;
        }
        let left = |switch: &&TimelineSwitch| Some(i64::from(switch.timeline)) == self.timeline;
        let descends = same_system && !same && !self.set_back;
        let switch = of.switches.iter().find(left).filter(|_| descends);
        Some(switch.map_or(Lsn::ZERO, |switch| crate::wire::from_wire(switch.at)))
    }
}

/// Reads the first two columns of a row. If a person wrote numbers that do not rise, the highest number is used.
fn histories_of(row: &Row) -> Result<Histories, tokio_postgres::Error> {
    let numbers: Vec<i64> = row.try_get(0)?;
    let starts: Vec<PgLsn> = row.try_get(1)?;
    let number = |n: i64| HistoryId(u32::try_from(n).unwrap_or_default());
    let pairs = starts.into_iter().map(lsn).zip(numbers.iter().map(|n| number(*n)));
    Ok(Histories::new(pairs.collect()).unwrap_or_else(|| {
        let highest = numbers.iter().copied().map(number).max().unwrap_or_default();
        Histories::default().raised(Lsn::ZERO, highest.0, HistoryId(0))
    }))
}

/// Moves the row to `cursor` in one statement: never backwards, only if the row still belongs to the same slot of the
/// same cluster, and only for its owner. Returns when the commit is on the server's disk (the session's
/// `synchronous_commit` is `local`).
///
/// # Errors
/// An error of the server or of the connection.
pub async fn write(
    client: &Client,
    cursor: &Cursor,
    ledger: &SnapshotPolicy,
) -> Result<CursorWrite, SourceError> {
    let failed = |e| {
        SourceError::control(format!("write the cursor of pipeline {}", cursor.key), e)
            .of(Statement::Cursor)
    };
    let unchanged = table_sql("$6::pg_catalog.text", "$14::pg_catalog.oid", true);
    let rows: &str;
    let (whole, of): (String, Vec<&(dyn ToSql + Sync)>) = match ledger {
        SnapshotPolicy::Always => ("true".to_owned(), Vec::new()),
        SnapshotPolicy::WhileUnchanged(version, table) => {
            rows = version.rows();
            (format!("{unchanged} = $15"), vec![table, &rows])
        }
        SnapshotPolicy::WhileCaptured(version) => {
            rows = version.rows();
            (format!("{} = $14", entries_sql("$6::pg_catalog.text", true)), vec![&rows])
        }
        SnapshotPolicy::Never => ("false".to_owned(), Vec::new()),
    };
    let ledger = LEDGER.replace("{whole}", &whole);
    let sql = format!(
        "WITH stored AS ( \
           UPDATE postrider.cursor SET timeline = $3, publication = $6, messages = $7, \
             watermark = $8, flush_limit = greatest(flush_limit, $9::pg_catalog.pg_lsn, $8), \
             partial_commit_lsn = $10, partial_ordinal = $11, updated_at = pg_catalog.now(), {ledger} \
           WHERE pipeline = $1 AND shard = $13 AND system_identifier = $2 AND slot = $4 \
             AND slot_created_lsn = $5 AND watermark <= $8 AND owner_epoch = $12 \
           RETURNING 1) \
         SELECT EXISTS (SELECT FROM stored), {COLUMNS} \
         FROM (SELECT) one LEFT JOIN postrider.cursor ON pipeline = $1 AND shard = $13"
    );
    let values = Values::of(cursor);
    let mut parameters = values.parameters(cursor).to_vec();
    parameters.extend(of);
    let row = client.query_one(&sql, &parameters).await.map_err(failed)?;
    if row.try_get(0).map_err(failed)? {
        return Ok(CursorWrite::Stored);
    }
    if row.try_get::<_, Option<&str>>(1).map_err(failed)?.is_none() {
        return Ok(CursorWrite::Missing);
    }
    let found = from_row(&row, 1).map_err(failed)?;
    let ours = found.system_identifier == cursor.system_identifier
        && found.slot == cursor.slot
        && found.slot_created_lsn == cursor.slot_created_lsn;
    Ok(if !ours {
        CursorWrite::Rebound(Box::new(found))
    } else if found.owner_epoch != cursor.owner_epoch {
        CursorWrite::TakenOver
    } else {
        CursorWrite::Behind(found.watermark)
    })
}

/// Creates the row if there is none, and returns whether it was created. An existing row is left alone.
///
/// Used for a slot that is adopted: by `setup`, and by `run` if the slot exists and the row was never created.
pub async fn create(client: &Client, cursor: &Cursor) -> Result<bool, SourceError> {
    let failed = |e| {
        SourceError::control(format!("create the cursor of pipeline {}", cursor.key), e)
            .of(Statement::Cursor)
    };
    let sql = format!(
        "INSERT INTO postrider.cursor ({COLUMNS}, before_slot) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, greatest($9::pg_catalog.pg_lsn, $8), $10, $11, $12, $13, \
           pg_catalog.pg_current_snapshot()) \
         {OVER_POLLING}"
    );
    let values = Values::of(cursor);
    let rows = client.execute(&sql, &values.parameters(cursor)).await.map_err(failed)?;
    Ok(rows == 1)
}

/// Creates the row of a polling pipeline that has none. No index is named for the conflict, so that each unique index
/// counts: the key, and the one that serves relays from before the key had a shard (migration 9). The row has no slot
/// and no position; [`take_over`] needs it.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn create_for_polling(client: &Client, key: &PipelineKey) -> Result<(), SourceError> {
    let failed = |e| {
        SourceError::control(format!("create the cursor of pipeline {key}"), e)
            .of(Statement::Cursor)
    };
    let sql = format!(
        "INSERT INTO postrider.cursor (pipeline, system_identifier, timeline, slot, slot_created_lsn, \
           publication, messages, watermark, flush_limit, shard) \
         VALUES ($1, {SYSTEM_IDENTIFIER_SQL}, {TIMELINE_SQL}, '', '0/0', '', false, '0/0', '0/0', $2) \
         ON CONFLICT (pipeline, shard) DO NOTHING"
    );
    client.execute(&sql, &[&key.pipeline, &key.shard]).await.map(drop).map_err(failed)
}

/// An existing row is left alone, unless it belongs to a polling pipeline.
pub(crate) const OVER_POLLING: &str = "\
ON CONFLICT (pipeline, shard) DO UPDATE SET system_identifier = excluded.system_identifier,
    timeline = excluded.timeline, slot = excluded.slot, slot_created_lsn = excluded.slot_created_lsn,
    publication = excluded.publication, messages = excluded.messages,
    watermark = excluded.watermark, flush_limit = excluded.flush_limit,
    partial_commit_lsn = excluded.partial_commit_lsn, partial_ordinal = excluded.partial_ordinal,
    resolved_snapshot = excluded.resolved_snapshot, pending_snapshot = NULL, pending_lsn = NULL,
    before_slot = excluded.before_slot
    WHERE postrider.cursor.slot = ''";

/// The fields of [`Cursor`] that PostgreSQL needs as other types.
struct Values {
    timeline: i64,
    slot_created_lsn: PgLsn,
    watermark: PgLsn,
    flush_limit: PgLsn,
    partial_commit_lsn: Option<PgLsn>,
    partial_ordinal: Option<i64>,
}

impl Values {
    fn of(cursor: &Cursor) -> Self {
        Self {
            timeline: i64::from(cursor.timeline),
            slot_created_lsn: pg_lsn(cursor.slot_created_lsn),
            watermark: pg_lsn(cursor.watermark.offset()),
            flush_limit: pg_lsn(cursor.flush_limit),
            partial_commit_lsn: cursor.partial.map(|partial| pg_lsn(partial.commit)),
            partial_ordinal: cursor.partial.map(|partial| partial.ordinal.cast_signed()),
        }
    }

    /// The parameters in the order of [`COLUMNS`].
    fn parameters<'a>(&'a self, cursor: &'a Cursor) -> [&'a (dyn ToSql + Sync); 13] {
        [
            &cursor.key.pipeline,
            &cursor.system_identifier,
            &self.timeline,
            &cursor.slot,
            &self.slot_created_lsn,
            &cursor.publication,
            &cursor.messages,
            &self.watermark,
            &self.flush_limit,
            &self.partial_commit_lsn,
            &self.partial_ordinal,
            &cursor.owner_epoch,
            &cursor.key.shard,
        ]
    }
}

fn from_row(row: &Row, first: usize) -> Result<Cursor, tokio_postgres::Error> {
    let commit_lsn: Option<_> = row.try_get(first + 9)?;
    let ordinal: Option<i64> = row.try_get(first + 10)?;
    Ok(Cursor {
        key: PipelineKey { pipeline: row.try_get(first)?, shard: row.try_get(first + 12)? },
        system_identifier: row.try_get(first + 1)?,
        timeline: u32::try_from(row.try_get::<_, i64>(first + 2)?).unwrap_or(u32::MAX),
        slot: row.try_get(first + 3)?,
        slot_created_lsn: lsn(row.try_get(first + 4)?),
        publication: row.try_get(first + 5)?,
        messages: row.try_get(first + 6)?,
        watermark: Watermark::resumed(lsn(row.try_get(first + 7)?)),
        flush_limit: lsn(row.try_get(first + 8)?),
        partial: commit_lsn.zip(ordinal).map(|(commit_lsn, ordinal)| Position {
            commit: lsn(commit_lsn),
            ordinal: ordinal.cast_unsigned(),
        }),
        owner_epoch: row.try_get(first + 11)?,
    })
}

/// The settings under which the cursor row was last used: mode, destination, table and layout. What a difference leads
/// to is decided by the pipeline (`settings_change`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PositionSettings {
    /// `wal`, `poll` or `auto`.
    pub mode: String,
    /// The rows of published events are marked as the layout says.
    pub marks: bool,
    /// `kafka`, `stdout` or `discard`.
    pub sink: String,
    /// Kafka's identifier of the cluster; `None` until a broker has answered, and for other sinks.
    pub cluster: Option<String>,
    /// `route.topic`, with `route.replace`.
    pub topic: String,
    /// `route.key`, with `route.partition`.
    pub key: String,
    /// The outbox table, as SQL writes it.
    pub table: Option<String>,
    /// The table's OID.
    pub table_oid: Option<u32>,
    /// The layout.
    pub layout: String,
}

/// One setting that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The mode.
    Mode,
    /// The kind of sink.
    Sink,
    /// The cluster.
    Cluster,
    /// The topic.
    Topic,
    /// The key, or the partition.
    Key,
    /// The table is another one.
    Table,
    /// The same table has another name.
    Renamed,
    /// Another table has the same name.
    Recreated,
    /// The layout.
    Layout,
}

impl PositionSettings {
    /// The settings of `now` that differ from these. A cluster or an OID that is unknown on one side does not count as
    /// different.
    pub fn differences(&self, now: &Self) -> Vec<Difference> {
        let both = |one: bool, other: bool| one && other;
        let oids = self.table_oid.zip(now.table_oid);
        let same_oid = oids.is_some_and(|(before, now)| before == now);
        let other_oid = oids.is_some_and(|(before, now)| before != now);
        let other_cluster = both(self.cluster.is_some(), now.cluster.is_some());
        let renamed = self.table != now.table;
        [
            (Difference::Mode, self.mode != now.mode),
            (Difference::Sink, self.sink != now.sink),
            (
                Difference::Cluster,
                self.sink == now.sink && other_cluster && self.cluster != now.cluster,
            ),
            (Difference::Topic, self.topic != now.topic),
            (Difference::Key, self.key != now.key),
            (Difference::Table, renamed && !same_oid),
            (Difference::Renamed, renamed && same_oid),
            (Difference::Recreated, !renamed && other_oid),
            (Difference::Layout, self.layout != now.layout),
        ]
        .into_iter()
        .filter_map(|(difference, differs)| differs.then_some(difference))
        .collect()
    }

    /// The settings to write over those of `before`: a cluster that is not known yet keeps its old value.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before.filter(|before| before.sink == self.sink) {
            self.cluster = self.cluster.or_else(|| before.cluster.clone());
        }
        self
    }
}

/// The row of a pipeline with its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsRow {
    /// The slot; `None` for a polling pipeline.
    pub slot: Option<String>,
    /// The pipeline's position.
    pub watermark: String,
    /// The stream has moved the position since the slot was created, or a repair created the slot: events may have been
    /// published.
    pub advanced: bool,
    /// A new slot was created while the table was polled, and polling has not finished: the stream has not begun.
    pub polls_on: bool,
    /// A `pg_snapshot`: rows that it sees may have been committed before the slot was created. `None` if that is not
    /// known.
    pub before_slot: Option<String>,
    /// The row was written in this cluster, so OIDs of tables can be compared.
    pub same_cluster: bool,
    /// `None` if no process of this version has used the row.
    pub belongs: Option<PositionSettings>,
}

const SETTINGS_COLUMNS: &str =
    "of_mode, of_marks, of_sink, of_cluster, of_topic, of_key, of_table, of_table_oid, of_layout";

/// Reads the settings; `None` if there is no row.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_settings(
    client: &Client,
    key: &PipelineKey,
) -> Result<Option<SettingsRow>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read what the position of pipeline {key} belongs to"), e)
            .of(Statement::Cursor)
    };
    let sql = format!(
        "SELECT nullif(slot, ''), watermark::pg_catalog.text, watermark > slot_created_lsn \
           OR partial_commit_lsn IS NOT NULL OR EXISTS ( \
           SELECT FROM postrider.repair AS r WHERE r.pipeline = $1 AND r.shard = $2), polls_on, \
           before_slot::pg_catalog.text, {SETTINGS_COLUMNS}, system_identifier = {SYSTEM_IDENTIFIER_SQL} \
         FROM postrider.cursor WHERE pipeline = $1 AND shard = $2"
    );
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.map(|row| found(&row).map_err(failed)).transpose()
}

fn found(row: &Row) -> Result<SettingsRow, tokio_postgres::Error> {
    let mode: Option<String> = row.try_get(5)?;
    let belongs = match mode {
        None => None,
        Some(mode) => Some(PositionSettings {
            mode,
            marks: row.try_get::<_, Option<bool>>(6)?.unwrap_or_default(),
            sink: row.try_get::<_, Option<String>>(7)?.unwrap_or_default(),
            cluster: row.try_get(8)?,
            topic: row.try_get::<_, Option<String>>(9)?.unwrap_or_default(),
            key: row.try_get::<_, Option<String>>(10)?.unwrap_or_default(),
            table: row.try_get(11)?,
            table_oid: row.try_get(12)?,
            layout: row.try_get::<_, Option<String>>(13)?.unwrap_or_default(),
        }),
    };
    Ok(SettingsRow {
        slot: row.try_get(0)?,
        watermark: row.try_get(1)?,
        advanced: row.try_get(2)?,
        polls_on: row.try_get(3)?,
        before_slot: row.try_get(4)?,
        same_cluster: row.try_get(14)?,
        belongs,
    })
}

/// Writes the settings for the owner of `epoch`; the row of another owner is not changed. `other_table`: the table is
/// not the one of before.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn write_settings(
    client: &Client,
    of: &PipelineKey,
    epoch: i64,
    belongs: &PositionSettings,
    other_table: bool,
) -> Result<(), SourceError> {
    let failed = |e| {
        SourceError::control(format!("write what the position of pipeline {of} belongs to"), e)
            .of(Statement::Cursor)
    };
    // The resolved snapshot is about rows of the previous table. Rows of another table may be unpublished although
    // their transactions are older, so the rows that the table has now are recorded as rows from before the slot.
    let forgets = if other_table {
        ", resolved_snapshot = NULL, pending_snapshot = NULL, pending_lsn = NULL, \
           before_slot = pg_catalog.pg_current_snapshot()"
            .to_owned()
    } else {
        // That a table had no rows from before the slot is known of the table that setup has read.
        format!(
            ", before_slot = CASE WHEN before_slot::pg_catalog.text = {NOTHING_BEFORE}::pg_catalog.text \
               AND of_table_oid IS DISTINCT FROM $10 THEN pg_catalog.pg_current_snapshot() ELSE before_slot END"
        )
    };
    let sql = format!(
        "UPDATE postrider.cursor SET ({SETTINGS_COLUMNS}) = ($3, $4, $5, $6, $7, $8, $9, $10, $11){forgets} \
         WHERE pipeline = $1 AND shard = $12 AND owner_epoch = $2"
    );
    let PositionSettings { mode, marks, sink, cluster, topic, key, table, table_oid, layout } =
        belongs;
    let parameters: [&(dyn ToSql + Sync); 12] = [
        &of.pipeline,
        &epoch,
        mode,
        marks,
        sink,
        cluster,
        topic,
        key,
        table,
        table_oid,
        layout,
        &of.shard,
    ];
    client.execute(&sql, &parameters).await.map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(system: Option<&str>, timeline: Option<i64>, set_back: bool) -> HistoryBinding {
        HistoryBinding { system_identifier: system.map(str::to_owned), timeline, set_back }
    }

    #[test]
    fn a_new_history_begins_at_the_end_of_the_previous_one() {
        let switch = |timeline, at| TimelineSwitch {
            timeline,
            at: crate::wire::to_wire(Lsn::new(at)),
            reason: "no recovery target specified".to_owned(),
        };
        let switches = [switch(1, 50), switch(2, 80)];
        let of = |timeline, known| ServerHistory {
            system_identifier: "7",
            timeline,
            switches: if known { &switches } else { &[] },
        };
        let at = |lsn| Some(Lsn::new(lsn));
        for (row, of, higher, begins) in [
            (bound(Some("7"), Some(3), false), of(3, true), false, None),
            (bound(Some("7"), Some(2), false), of(3, true), false, at(80)),
            // Not connected during two failovers.
            (bound(Some("7"), Some(1), false), of(3, true), false, at(50)),
            // The timeline history file is missing, or a poller did not read it.
            (bound(Some("7"), Some(2), false), of(3, false), false, at(0)),
            // This process published under a higher history, which the promoted standby never had.
            (bound(Some("7"), Some(3), false), of(3, true), true, at(0)),
            (bound(Some("7"), Some(2), false), of(3, true), true, at(80)),
            (bound(Some("8"), Some(3), false), of(3, true), false, at(0)),
            (bound(Some("8"), Some(2), false), of(3, true), false, at(0)),
            // Requested by a person; and a row that no relay has used yet.
            (bound(Some("7"), None, false), of(3, true), false, at(0)),
            (bound(None, None, false), of(3, true), false, at(0)),
            // The WAL ends before the row's position.
            (bound(Some("7"), Some(3), true), of(3, true), false, at(0)),
            (bound(Some("7"), Some(2), true), of(3, true), false, at(0)),
            // The row's timeline is higher than the server's.
            (bound(Some("7"), Some(4), false), of(3, true), false, at(0)),
        ] {
            assert_eq!(row.raises(of, higher), begins, "{row:?} on {}", of.timeline);
        }
    }
}

#[cfg(test)]
mod settings_tests {
    use super::*;

    fn belongs() -> PositionSettings {
        PositionSettings {
            mode: "wal".to_owned(),
            marks: false,
            sink: "kafka".to_owned(),
            cluster: Some("A".to_owned()),
            topic: "{aggregate_type}".to_owned(),
            key: "{aggregate_id}".to_owned(),
            table: Some("public.outbox".to_owned()),
            table_oid: Some(7),
            layout: "postrider".to_owned(),
        }
    }

    #[test]
    fn each_setting_is_compared_separately() {
        type Edit = fn(&mut PositionSettings);
        let cases: [(&[Difference], Edit); 13] = [
            (&[], |_| {}),
            (&[Difference::Mode], |b| b.mode = "poll".into()),
            (&[], |b| b.marks = true),
            (&[Difference::Sink], |b| {
                b.sink = "stdout".into();
                b.cluster = None;
            }),
            (&[Difference::Cluster], |b| b.cluster = Some("B".into())),
            // No broker has answered yet.
            (&[], |b| b.cluster = None),
            (&[Difference::Topic], |b| b.topic = "other".into()),
            (&[Difference::Key], |b| b.key = "{id}".into()),
            (&[Difference::Table], |b| {
                b.table = Some("public.other".into());
                b.table_oid = Some(8);
            }),
            (&[Difference::Table], |b| {
                b.table = None;
                b.table_oid = None;
            }),
            (&[Difference::Renamed], |b| b.table = Some("public.other".into())),
            (&[Difference::Recreated], |b| b.table_oid = Some(8)),
            (&[Difference::Layout], |b| b.layout = "gcx".into()),
        ];
        for (expected, edit) in cases {
            let mut now = belongs();
            edit(&mut now);
            assert_eq!(belongs().differences(&now), expected, "{now:?}");
        }
    }

    #[test]
    fn a_cluster_that_is_not_known_yet_stays_as_it_was() {
        let before = belongs();
        let unknown = PositionSettings { cluster: None, ..belongs() };
        assert_eq!(unknown.clone().after(Some(&before)).cluster.as_deref(), Some("A"));
        assert_eq!(unknown.clone().after(None).cluster, None);
        let other = PositionSettings { sink: "stdout".into(), ..unknown };
        assert_eq!(other.after(Some(&before)).cluster, None);
    }
}
