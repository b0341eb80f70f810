//! Bookmarks: saved positions of a pipeline, each held by a slot of its own, which is a copy of the pipeline's slot.
//!
//! Owns the rows of `postrider.bookmark` and the slots that they name; no other slot is changed. `replay` reads from a
//! bookmark and never moves its slot, so a bookmark can be replayed any number of times.

#[cfg(test)]
mod tests;

use crate::catalog::{self, SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL, lsn};
use crate::names::literal;
use crate::wire::Lsn;
use pg_replication::error::{SourceError, SqlState};
use postrider_core::store::PipelineKey;
use postrider_core::timestamp::Timestamp;
use std::fmt;
use std::time::Duration;
use tokio_postgres::{Client, Row};

/// The prefix of the names of bookmarks' slots, so that a slot whose row was deleted can be recognised.
pub const SLOT_PREFIX: &str = "postrider_bm_";

/// Characters of the longest name of a bookmark.
pub const NAME_CHARS_MAX: usize = 63;

/// Characters of a bookmark's name that are part of its slot's name: with prefix and suffix within `NAMEDATALEN` - 1.
const SLOT_NAME_PART: usize = 40;

/// Whether a bookmark or a replay may have this name: ASCII letters, digits, dot, underscore and hyphen. The name is
/// used in a command line, in a header and in the log.
pub fn name_allowed(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The name of a bookmark's slot: recognisable for a person, and made unique by `tail`.
fn slot_name(bookmark: &str, tail: u32) -> String {
    let part: String = bookmark
        .chars()
        .take(SLOT_NAME_PART)
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect();
    format!("{SLOT_PREFIX}{part}_{:06x}", tail & 0x00FF_FFFF)
}

// Creating and deleting a bookmark.
//
// A slot cannot be created inside a transaction, so the order is: the row, the copy of the slot, the position. An
// interruption leaves a row that is marked as unfinished, and never a slot without a row. The position is read *after*
// the slot was copied, so it is never before the oldest event that the copy still has.

/// A bookmark to be created.
#[derive(Clone, Copy, Debug)]
pub struct NewBookmark<'a> {
    /// The pipeline and its shard.
    pub key: &'a PipelineKey,
    /// The pipeline's slot, which is copied.
    pub slot: &'a str,
    /// The pipeline's publication.
    pub publication: &'a str,
    /// Whether the pipeline streams logical messages.
    pub messages: bool,
    /// The bookmark's name.
    pub name: &'a str,
    /// A note of the operator.
    pub note: Option<&'a str>,
    /// After how long it is deleted.
    pub expire: Option<Duration>,
}

/// Saves the current position: a transaction that commits after this has returned is after the bookmark, one that had
/// committed before the call is before it.
///
/// # Errors
/// See [`BookmarkError`]; then there is neither row nor slot.
pub async fn create(client: &Client, new: &NewBookmark<'_>) -> Result<Bookmark, BookmarkError> {
    if !name_allowed(new.name) {
        return Err(BookmarkError::Name { name: new.name.to_owned() });
    }
    let facts = catalog::read_server(client).await?;
    if facts.in_recovery {
        return Err(BookmarkError::Standby);
    }
    let (pipeline, source) = (new.key.pipeline.clone(), new.slot.to_owned());
    match catalog::read_slot(client, facts.version, new.slot).await? {
        None => return Err(BookmarkError::NoSlot { pipeline, slot: source }),
        Some(row) if row.lost() || row.restart_lsn.is_none() => {
            return Err(BookmarkError::SlotLost { pipeline, slot: source });
        }
        Some(_) => {}
    }
    let copy = slot_name(new.name, fastrand::u32(..));
    if !insert(client, new, &copy).await? {
        let there = find(client, new.key, new.name).await?;
        return Err(BookmarkError::Exists {
            name: new.name.to_owned(),
            created_at: there.created_at,
        });
    }
    if let Err(error) = copy_slot(client, new, &copy).await {
        // Best effort: what remains is a row that is marked as unfinished; `drop` deletes row and slot.
        if let Err(left) = delete(client, new.key, new.name, &copy).await {
            tracing::debug!(bookmark = new.name, error = %left, "an unfinished bookmark remains");
        }
        let full = error.sqlstate() == Some(SqlState::CONFIGURATION_LIMIT_EXCEEDED);
        return Err(if full {
            BookmarkError::NoFreeSlot { name: new.name.to_owned(), source: error }
        } else {
            error.into()
        });
    }
    find(client, new.key, new.name).await
}

/// Writes the row, without a position, over the row of a dropped bookmark if there is one. Returns whether it was
/// written.
async fn insert(client: &Client, new: &NewBookmark<'_>, copy: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("record bookmark {:?}", new.name), e);
    let sql = format!(
        "INSERT INTO postrider.bookmark AS b (pipeline, name, note, slot, system_identifier, timeline, publication, \
           messages, expires_at, shard) \
         SELECT $1, $2, $3, $4, {SYSTEM_IDENTIFIER_SQL}, {TIMELINE_SQL}, $5, $6, \
           pg_catalog.now() + $7::pg_catalog.int8 * interval '1 microsecond', $8::pg_catalog.int4 \
         ON CONFLICT (pipeline, shard, name) DO UPDATE SET note = excluded.note, slot = excluded.slot, \
           system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
           publication = excluded.publication, messages = excluded.messages, lsn = NULL, \
           created_at = pg_catalog.now(), expires_at = excluded.expires_at, dropped_at = NULL, dropped_why = NULL \
         WHERE b.dropped_at IS NOT NULL"
    );
    let expire = new.expire.map(|expire| i64::try_from(expire.as_micros()).unwrap_or(i64::MAX));
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 8] = [
        &new.key.pipeline,
        &new.name,
        &new.note,
        &copy,
        &new.publication,
        &new.messages,
        &expire,
        &new.key.shard,
    ];
    Ok(client.execute(&sql, &parameters).await.map_err(failed)? == 1)
}

/// Copies the slot and stores the current end of WAL. The end is read before this statement's own commit is written, so
/// every later commit lies behind it.
async fn copy_slot(client: &Client, new: &NewBookmark<'_>, copy: &str) -> Result<(), SourceError> {
    let doing = || format!("copy slot {:?} for bookmark {:?}", new.slot, new.name);
    let sql = "SELECT pg_catalog.pg_copy_logical_replication_slot($1::pg_catalog.text::pg_catalog.name, \
               $2::pg_catalog.text::pg_catalog.name, false)";
    let copied = client.execute(sql, &[&new.slot, &copy]).await;
    copied.map_err(|e| SourceError::control(doing(), e))?;
    let sql = "UPDATE postrider.bookmark SET lsn = pg_catalog.pg_current_wal_insert_lsn(), \
                 created_at = pg_catalog.clock_timestamp() \
               WHERE pipeline = $1 AND shard = $4 AND name = $2 AND slot = $3";
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
        [&new.key.pipeline, &new.name, &copy, &new.key.shard];
    let written = client.execute(sql, &parameters).await;
    written.map_err(|e| SourceError::control(doing(), e)).map(|_rows| ())
}

/// Deletes a bookmark: first its slot, then its row. Returns the bytes of WAL that it retained.
///
/// # Errors
/// [`BookmarkError::Unknown`], [`BookmarkError::InUse`]; an error of the server or of the connection.
pub async fn drop(client: &Client, key: &PipelineKey, name: &str) -> Result<u64, BookmarkError> {
    let bookmark = find(client, key, name).await?;
    let in_use = |pid| BookmarkError::InUse { name: name.to_owned(), pid };
    if let Some(pid) = bookmark.active_pid {
        return Err(in_use(pid));
    }
    match delete(client, key, name, &bookmark.slot).await {
        Ok(()) => Ok(bookmark.held_bytes),
        // Another session began to use it.
        Err(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) => {
            let now = find(client, key, name).await?;
            Err(in_use(now.active_pid.unwrap_or_default()))
        }
        Err(error) => Err(error.into()),
    }
}

async fn delete(
    client: &Client,
    key: &PipelineKey,
    name: &str,
    slot: &str,
) -> Result<(), SourceError> {
    drop_slot(client, slot, &SweepBy::Command.sql(key)).await?;
    let failed = |e| SourceError::control(format!("delete bookmark {name:?}"), e);
    let sql = "DELETE FROM postrider.bookmark \
               WHERE pipeline = $1 AND shard = $4 AND name = $2 AND slot = $3";
    let deleted = client.execute(sql, &[&key.pipeline, &name, &slot, &key.shard]).await;
    deleted.map_err(failed).map(|_rows| ())
}

/// Drops a bookmark's slot, if the query `may` has a row ([`SweepBy::sql`]); it is no error if the slot does not exist.
/// The prefix guarantees that it is the slot of a bookmark.
async fn drop_slot(client: &Client, slot: &str, may: &str) -> Result<(), SourceError> {
    assert!(slot.starts_with(SLOT_PREFIX), "slot {slot} is no bookmark's");
    let sql = format!(
        "WITH may AS MATERIALIZED ({may}) SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) \
         FROM may, pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text"
    );
    match client.execute(&sql, &[&slot]).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let error = SourceError::control(format!("drop slot {slot:?}"), error);
            let dropped = error.sqlstate() == Some(SqlState::UNDEFINED_OBJECT);
            if dropped { Ok(()) } else { Err(error) }
        }
    }
}

/// A bookmark: its row and its slot. Times are UTC, `2026-01-02T03:04:05Z`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bookmark {
    /// The bookmark's name.
    pub name: String,
    /// The operator's note.
    pub note: Option<String>,
    /// The slot that retains the bookmark's WAL.
    pub slot: String,
    /// The position: transactions that commit at it or later are after the bookmark. `None` if the bookmark was never
    /// finished.
    pub lsn: Option<Lsn>,
    /// The timeline of the position.
    pub timeline: u32,
    /// Whether logical messages are part of the stream.
    pub messages: bool,
    /// When the bookmark was created.
    pub created_at: String,
    /// When the bookmark was created, as a number.
    pub created: Timestamp,
    /// When the bookmark expires.
    pub expires_at: Option<String>,
    /// Whether the bookmark can be replayed.
    pub state: BookmarkState,
    /// The oldest WAL that the slot needs.
    pub restart_lsn: Option<Lsn>,
    /// The confirmed position of the slot: nothing that commits before it can be read any more.
    pub confirmed_lsn: Option<Lsn>,
    /// The walsender that reads from the slot now.
    pub active_pid: Option<u32>,
    /// Bytes of WAL that the server retains for the slot; 0 if the slot does not exist.
    pub held_bytes: u64,
}

/// Whether a bookmark can be replayed, and if not, why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BookmarkState {
    /// The bookmark can be replayed.
    Usable,
    /// The creation of the bookmark was interrupted.
    Unfinished,
    /// Postrider dropped the bookmark: the reason, and when.
    Dropped {
        /// `expired` or `budget`.
        why: String,
        /// When the bookmark was dropped.
        at: String,
    },
    /// The bookmark's slot does not exist: it was dropped by hand, or lost in a failover.
    SlotMissing,
    /// The bookmark's slot has lost WAL: the server's reason.
    SlotLost {
        /// `wal_removed`, `idle_timeout` …
        why: String,
    },
    /// The database was moved to another cluster.
    OtherSystem,
    /// The server was promoted since.
    OtherTimeline {
        /// The server's timeline now.
        now: u32,
    },
}

impl BookmarkState {
    /// Whether the bookmark can be replayed.
    pub fn usable(&self) -> bool {
        *self == Self::Usable
    }

    /// A stable name, as in `bookmark list --json`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Unfinished => "unfinished",
            Self::Dropped { .. } => "dropped",
            Self::SlotMissing => "slot_missing",
            Self::SlotLost { .. } => "slot_lost",
            Self::OtherSystem => "other_system",
            Self::OtherTimeline { .. } => "other_timeline",
        }
    }
}

impl fmt::Display for BookmarkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable => f.write_str("usable"),
            Self::Unfinished => f.write_str("unfinished: its creation was interrupted"),
            Self::Dropped { why, at } if why == "budget" => {
                write!(f, "dropped at {at}: bookmarks retained more WAL than bookmarks.retain_max")
            }
            Self::Dropped { why, at } => write!(f, "dropped at {at}: {why}"),
            Self::SlotMissing => {
                f.write_str("its slot does not exist: dropped by hand, or lost in a failover")
            }
            Self::SlotLost { why } => write!(f, "its WAL was removed ({why})"),
            Self::OtherSystem => f.write_str("of another cluster"),
            Self::OtherTimeline { now } => {
                write!(f, "of the timeline before a promotion: the server is on timeline {now}")
            }
        }
    }
}

/// Lists the bookmarks, the oldest first.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn list(client: &Client, key: &PipelineKey) -> Result<Vec<Bookmark>, SourceError> {
    let failed = |e| SourceError::control(format!("list the bookmarks of pipeline {key}"), e);
    let time = |column: &str| {
        format!("pg_catalog.to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
    };
    // One statement, so that slot and end of WAL are of the same moment. A standby has no insert position.
    let sql = format!(
        "SELECT b.name, b.note, b.slot, b.lsn, b.timeline::pg_catalog.int4, b.messages, {}, \
           (pg_catalog.date_part('epoch', b.created_at) * 1e6)::pg_catalog.int8 - 946684800000000, {}, \
           b.dropped_why, {}, s.slot_name IS NOT NULL, s.restart_lsn, s.confirmed_flush_lsn, s.active_pid, \
           s.wal_status = 'lost', pg_catalog.to_jsonb(s) ->> 'invalidation_reason', \
           pg_catalog.pg_wal_lsn_diff(w.lsn, s.restart_lsn)::pg_catalog.int8, \
           b.system_identifier = {SYSTEM_IDENTIFIER_SQL}, \
           CASE WHEN NOT w.recovering THEN {TIMELINE_SQL} ELSE b.timeline::pg_catalog.int4 END \
         FROM postrider.bookmark b \
         CROSS JOIN (SELECT pg_catalog.pg_is_in_recovery() AS recovering, \
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
                ELSE pg_catalog.pg_current_wal_insert_lsn() END AS lsn) w \
         LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = b.slot \
         WHERE b.pipeline = $1 AND b.shard = $2 ORDER BY b.created_at, b.name",
        time("b.created_at"),
        time("b.expires_at"),
        time("b.dropped_at")
    );
    let rows = client.query(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    rows.iter().map(|row| from_row(row).map_err(failed)).collect()
}

/// Reads the bookmark of this name.
///
/// # Errors
/// [`BookmarkError::Unknown`]; an error of the server or of the connection.
pub async fn find(
    client: &Client,
    key: &PipelineKey,
    name: &str,
) -> Result<Bookmark, BookmarkError> {
    let all = list(client, key).await?;
    let known = all.iter().map(|bookmark| bookmark.name.clone()).collect();
    all.into_iter().find(|bookmark| bookmark.name == name).ok_or_else(|| BookmarkError::Unknown {
        pipeline: key.pipeline.clone(),
        name: name.to_owned(),
        known,
    })
}

fn from_row(row: &Row) -> Result<Bookmark, tokio_postgres::Error> {
    let position = |index: usize| row.try_get(index).map(|at: Option<_>| at.map(lsn));
    let timeline = row.try_get::<_, i32>(4)?.cast_unsigned();
    let lost: Option<bool> = row.try_get(15)?;
    let invalid: Option<String> = row.try_get(16)?;
    let now = row.try_get::<_, i32>(19)?.cast_unsigned();
    let state = if let Some(why) = row.try_get(9)? {
        BookmarkState::Dropped {
            why,
            at: row.try_get::<_, Option<String>>(10)?.unwrap_or_default(),
        }
    } else if position(3)?.is_none() {
        BookmarkState::Unfinished
    } else if !row.try_get::<_, bool>(18)? {
        BookmarkState::OtherSystem
    } else if !row.try_get::<_, bool>(11)? {
        BookmarkState::SlotMissing
    } else if lost == Some(true) || invalid.is_some() {
        BookmarkState::SlotLost { why: invalid.unwrap_or_else(|| "wal_removed".to_owned()) }
    } else if timeline != now {
        BookmarkState::OtherTimeline { now }
    } else {
        BookmarkState::Usable
    };
    Ok(Bookmark {
        name: row.try_get(0)?,
        note: row.try_get(1)?,
        slot: row.try_get(2)?,
        lsn: position(3)?,
        timeline,
        messages: row.try_get(5)?,
        created_at: row.try_get(6)?,
        created: crate::wire::from_pg_micros(row.try_get(7)?),
        expires_at: row.try_get(8)?,
        state,
        restart_lsn: position(12)?,
        confirmed_lsn: position(13)?,
        active_pid: row.try_get::<_, Option<i32>>(14)?.map(i32::cast_unsigned),
        held_bytes: u64::try_from(row.try_get::<_, Option<i64>>(17)?.unwrap_or(0)).unwrap_or(0),
    })
}

/// How long the row of a dropped bookmark is kept, so that an operator can see why it was dropped. Unit: days.
const KEPT_DAYS: i32 = 30;

/// Why a bookmark was dropped without an operator's command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The bookmark has expired (`--expire`).
    Expired,
    /// All bookmarks together retained more than `bookmarks.retain_max`.
    Budget,
}

impl DropReason {
    /// The name of the reason in the table and the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Budget => "budget",
        }
    }
}

/// A bookmark that was dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedBookmark {
    /// The bookmark.
    pub name: String,
    /// Why the bookmark was dropped.
    pub reason: DropReason,
    /// Bytes of WAL that all bookmarks together retained before.
    pub held_bytes: u64,
}

/// Who drops the bookmarks that have expired or retain too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SweepBy {
    /// A command of an operator.
    Command,
    /// The process that owns the pipeline, under this epoch. For any other process nothing is dropped.
    Owner(i64),
}

impl SweepBy {
    /// A query that has a row if the bookmarks may be dropped. A part of the statement that drops, so that both are one
    /// transaction. Its lock delays only a process that takes the pipeline over, and not the stream: see
    /// [`prune`](super::parked::prune).
    fn sql(self, key: &PipelineKey) -> String {
        match self {
            Self::Command => "SELECT 1".to_owned(),
            Self::Owner(epoch) => format!(
                "SELECT 1 FROM postrider.cursor AS c \
                 WHERE c.pipeline = {} AND c.shard = {} AND c.owner_epoch = {epoch} \
                 FOR KEY SHARE SKIP LOCKED",
                literal(&key.pipeline),
                key.shard
            ),
        }
    }
}

/// Rows of dropped bookmarks that one sweep deletes at most.
const OLD_ROWS_MAX: i64 = 1_000;

/// Drops expired bookmarks, then the oldest ones until at most `retain_max` bytes of WAL are retained; adds each to
/// `swept`. A bookmark that is being read from is kept, and so are all newer ones, because they retain no more WAL than
/// it does. Does nothing on a standby.
///
/// # Errors
/// An error of the server or of the connection. Bookmarks that were dropped before stay dropped, and are in `swept`.
pub async fn sweep(
    client: &Client,
    key: &PipelineKey,
    retain_max: u64,
    by: SweepBy,
    swept: &mut Vec<DroppedBookmark>,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("check which bookmarks are to be dropped", e);
    let due = "SELECT ARRAY(SELECT name FROM postrider.bookmark WHERE pipeline = $1 AND shard = $2 \
                 AND expires_at < pg_catalog.now() AND dropped_at IS NULL) \
               WHERE NOT pg_catalog.pg_is_in_recovery()";
    let Some(row) = client.query_opt(due, &[&key.pipeline, &key.shard]).await.map_err(failed)?
    else {
        return Ok(());
    };
    let expired: Vec<String> = row.try_get(0).map_err(failed)?;
    let mut there = list(client, key).await?;
    let may = by.sql(key);
    while let Some((at, reason)) = next(&there, &expired, retain_max) {
        let bookmark = there.remove(at);
        let held_bytes = there.iter().map(held).fold(held(&bookmark), u64::max);
        match drop_swept(client, key, &bookmark, reason, &may).await {
            Ok(true) => swept.push(DroppedBookmark { name: bookmark.name, reason, held_bytes }),
            // Another session has changed the row, or this process does not own the pipeline.
            Ok(false) => {}
            // A replay began to use it.
            Err(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) => {}
            Err(error) => return Err(error),
        }
    }
    let old = "SELECT EXISTS (SELECT FROM postrider.bookmark WHERE pipeline = $1 AND shard = $3 \
                 AND dropped_at < pg_catalog.now() - $2::pg_catalog.int4 * interval '1 day')";
    let old = client.query_one(old, &[&key.pipeline, &KEPT_DAYS, &key.shard]).await;
    if !old.and_then(|row| row.try_get::<_, bool>(0)).map_err(failed)? {
        return Ok(());
    }
    let sql = format!(
        "WITH may AS MATERIALIZED ({may}), old AS MATERIALIZED ( \
           SELECT b.name FROM may, postrider.bookmark AS b \
           WHERE b.pipeline = $1 AND b.shard = $4 \
             AND b.dropped_at < pg_catalog.now() - $2::pg_catalog.int4 * interval '1 day' \
           LIMIT $3 FOR UPDATE OF b SKIP LOCKED) \
         DELETE FROM postrider.bookmark AS b USING old \
         WHERE b.pipeline = $1 AND b.shard = $4 AND b.name = old.name"
    );
    let deleted =
        client.execute(&sql, &[&key.pipeline, &KEPT_DAYS, &OLD_ROWS_MAX, &key.shard]).await;
    deleted.map_err(failed)?;
    Ok(())
}

/// The next bookmark to drop, and why.
fn next(there: &[Bookmark], expired: &[String], retain_max: u64) -> Option<(usize, DropReason)> {
    let free = |bookmark: &Bookmark| bookmark.active_pid.is_none();
    let over = |bookmark: &Bookmark| expired.contains(&bookmark.name) && free(bookmark);
    if let Some(at) = there.iter().position(over) {
        return Some((at, DropReason::Expired));
    }
    let (at, oldest) = there.iter().enumerate().max_by_key(|(_, bookmark)| held(bookmark))?;
    (held(oldest) > retain_max && free(oldest)).then_some((at, DropReason::Budget))
}

/// Bytes of WAL that the bookmark retains. A bookmark whose WAL was removed retains none.
fn held(bookmark: &Bookmark) -> u64 {
    match bookmark.state {
        BookmarkState::Usable
        | BookmarkState::Unfinished
        | BookmarkState::OtherSystem
        | BookmarkState::OtherTimeline { .. }
        | BookmarkState::SlotMissing => bookmark.held_bytes,
        BookmarkState::Dropped { .. } | BookmarkState::SlotLost { .. } => 0,
    }
}

/// Drops the slot, then changes the row; returns whether the row was changed. Two transactions can't agree on whether
/// this process owns the pipeline, so the row is changed if the slot is gone, whoever has dropped it.
async fn drop_swept(
    client: &Client,
    key: &PipelineKey,
    bookmark: &Bookmark,
    reason: DropReason,
    may: &str,
) -> Result<bool, SourceError> {
    drop_slot(client, &bookmark.slot, may).await?;
    let failed = |e| SourceError::control(format!("drop bookmark {:?}", bookmark.name), e);
    let sql = "UPDATE postrider.bookmark AS b SET dropped_at = pg_catalog.now(), dropped_why = $4 \
               WHERE b.pipeline = $1 AND b.shard = $5 AND b.name = $2 AND b.slot = $3 \
                 AND b.dropped_at IS NULL AND NOT EXISTS \
                 (SELECT FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_name = b.slot)";
    let (name, slot, why) = (&bookmark.name, &bookmark.slot, reason.name());
    let changed = client.execute(sql, &[&key.pipeline, name, slot, &why, &key.shard]).await;
    let changed = changed.map_err(failed)?;
    Ok(changed == 1)
}

/// Why a bookmark was not created, found or dropped. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BookmarkError {
    /// The name is not allowed.
    #[error("\"{name}\" can't be the name of a bookmark")]
    Name {
        /// The given name.
        name: String,
    },
    /// A bookmark of this name exists.
    #[error("bookmark \"{name}\" already exists, created at {created_at}")]
    Exists {
        /// The name.
        name: String,
        /// When it was created, UTC.
        created_at: String,
    },
    /// No bookmark of this name exists.
    #[error("pipeline \"{pipeline}\" has no bookmark \"{name}\"{}", others(known))]
    Unknown {
        /// The pipeline.
        pipeline: String,
        /// The name.
        name: String,
        /// The pipeline's bookmarks.
        known: Vec<String>,
    },
    /// The pipeline's slot does not exist: there is no position to save.
    #[error(
        "slot \"{slot}\" of pipeline \"{pipeline}\" does not exist, so there is nothing to bookmark"
    )]
    NoSlot {
        /// The pipeline.
        pipeline: String,
        /// The pipeline's slot.
        slot: String,
    },
    /// The pipeline's slot has lost WAL.
    #[error(
        "slot \"{slot}\" of pipeline \"{pipeline}\" can't be used any more, so there is nothing to bookmark"
    )]
    SlotLost {
        /// The pipeline.
        pipeline: String,
        /// The pipeline's slot.
        slot: String,
    },
    /// All slots of the server are in use.
    #[error("the server has no free slot for bookmark \"{name}\"")]
    NoFreeSlot {
        /// The bookmark.
        name: String,
        #[source]
        /// The server's error.
        source: SourceError,
    },
    /// A replay reads from it.
    #[error("bookmark \"{name}\" is in use by the server's process {pid}")]
    InUse {
        /// The bookmark.
        name: String,
        /// The walsender.
        pid: u32,
    },
    /// The server is a standby, and slots are created and dropped on the primary only.
    #[error("the server is a standby: bookmarks are created on the primary")]
    Standby,
    /// An error of the server or of the connection.
    #[error(transparent)]
    Source(#[from] SourceError),
}

fn others(known: &[String]) -> String {
    if known.is_empty() {
        "; it has none".to_owned()
    } else {
        format!("; it has {}", known.join(", "))
    }
}

impl BookmarkError {
    /// How to fix it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Name { .. } => Some("use 1 to 63 of A-Z a-z 0-9 . _ -".to_owned()),
            Self::Exists { name, .. } => Some(format!(
                "choose another name, or drop the old one: postrider bookmark drop {name}"
            )),
            Self::Unknown { .. } => Some("list the bookmarks: postrider bookmark list".to_owned()),
            Self::NoSlot { .. } => Some(
                "a bookmark is a copy of the pipeline's slot, which postrider setup creates (a pipeline that \
                 only polls \
                 has none)"
                    .to_owned(),
            ),
            Self::SlotLost { .. } => {
                Some("fix the pipeline first: postrider check says how".to_owned())
            }
            Self::NoFreeSlot { .. } => Some(
                "drop another bookmark (postrider bookmark list), or raise max_replication_slots and restart \
                 PostgreSQL"
                    .to_owned(),
            ),
            Self::InUse { .. } => {
                Some("a replay reads from it: wait until it has ended, or end it".to_owned())
            }
            Self::Standby => {
                Some("point source.url at the primary (target_session_attrs=read-write)".to_owned())
            }
            Self::Source(_) => None,
        }
    }
}
