//! Making a bookmark, and letting go of it.
//!
//! Making a slot is part of no transaction, so the order is: the row, the copy, the position. Whoever is interrupted
//! leaves a row that says so, and never a slot that nobody knows of. The position is read *after* the copy was made, so
//! it is never before what the copy still has.

use super::error::BookmarkError;
use super::list::{Bookmark, find};
use super::{name_allowed, slot_name};
use crate::server::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL};
use crate::{server, slot};
use pg_replication::error::{SourceError, SqlState};
use std::time::Duration;
use tokio_postgres::Client;

/// What is to be bookmarked.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// The pipeline.
    pub pipeline: &'a str,
    /// Its slot, which is copied.
    pub slot: &'a str,
    /// Its publication.
    pub publication: &'a str,
    /// Whether it asks for logical messages.
    pub messages: bool,
    /// The bookmark's name.
    pub name: &'a str,
    /// What a person writes beside it.
    pub note: Option<&'a str>,
    /// After how long it is let go.
    pub expire: Option<Duration>,
}

/// Saves the position of now: what commits after this has returned comes after the bookmark, what had committed before
/// it was called does not.
///
/// # Errors
/// See [`BookmarkError`]; then there is neither row nor slot.
pub async fn create(client: &Client, new: &New<'_>) -> Result<Bookmark, BookmarkError> {
    if !name_allowed(new.name) {
        return Err(BookmarkError::Name { name: new.name.to_owned() });
    }
    let facts = server::read(client).await?;
    if facts.in_recovery {
        return Err(BookmarkError::Standby);
    }
    let (pipeline, source) = (new.pipeline.to_owned(), new.slot.to_owned());
    match slot::read(client, facts.version, new.slot).await? {
        None => return Err(BookmarkError::NoSlot { pipeline, slot: source }),
        Some(row) if row.lost() || row.restart_lsn.is_none() => {
            return Err(BookmarkError::SlotLost { pipeline, slot: source });
        }
        Some(_) => {}
    }
    let copy = slot_name(new.name, fastrand::u32(..));
    if !insert(client, new, &copy).await? {
        let there = find(client, new.pipeline, new.name).await?;
        return Err(BookmarkError::Exists {
            name: new.name.to_owned(),
            created_at: there.created_at,
        });
    }
    if let Err(error) = stand(client, new, &copy).await {
        // Best effort: what stays is a row that says that it was never finished, and `drop` takes both away.
        if let Err(left) = let_go(client, new.pipeline, new.name, &copy).await {
            tracing::debug!(bookmark = new.name, error = %left, "an unfinished bookmark stays");
        }
        let full = error.sqlstate() == Some(SqlState::CONFIGURATION_LIMIT_EXCEEDED);
        return Err(if full {
            BookmarkError::NoFreeSlot { name: new.name.to_owned(), source: error }
        } else {
            error.into()
        });
    }
    find(client, new.pipeline, new.name).await
}

/// Writes the row, without a position. One that was let go makes room. Whether it was written.
async fn insert(client: &Client, new: &New<'_>, copy: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("note bookmark {:?}", new.name), e);
    let sql = format!(
        "INSERT INTO postrider.bookmark AS b (pipeline, name, note, slot, system_identifier, timeline, publication, \
           messages, expires_at) \
         SELECT $1, $2, $3, $4, {SYSTEM_IDENTIFIER_SQL}, {TIMELINE_SQL}, $5, $6, \
           pg_catalog.now() + $7::pg_catalog.int8 * interval '1 microsecond' \
         ON CONFLICT (pipeline, name) DO UPDATE SET note = excluded.note, slot = excluded.slot, \
           system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
           publication = excluded.publication, messages = excluded.messages, lsn = NULL, \
           created_at = pg_catalog.now(), expires_at = excluded.expires_at, dropped_at = NULL, dropped_why = NULL \
         WHERE b.dropped_at IS NOT NULL"
    );
    let expire = new.expire.map(|expire| i64::try_from(expire.as_micros()).unwrap_or(i64::MAX));
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&new.pipeline, &new.name, &new.note, &copy, &new.publication, &new.messages, &expire];
    Ok(client.execute(&sql, &parameters).await.map_err(failed)? == 1)
}

/// Copies the slot, and writes where WAL ends now. The end is read before this statement's own commit is written, so
/// whatever commits later lies behind it.
async fn stand(client: &Client, new: &New<'_>, copy: &str) -> Result<(), SourceError> {
    let doing = || format!("copy slot {:?} for bookmark {:?}", new.slot, new.name);
    let sql = "SELECT pg_catalog.pg_copy_logical_replication_slot($1::pg_catalog.text::pg_catalog.name, \
               $2::pg_catalog.text::pg_catalog.name, false)";
    let copied = client.execute(sql, &[&new.slot, &copy]).await;
    copied.map_err(|e| SourceError::control(doing(), e))?;
    let sql = "UPDATE postrider.bookmark SET lsn = pg_catalog.pg_current_wal_insert_lsn(), \
                 created_at = pg_catalog.clock_timestamp() WHERE pipeline = $1 AND name = $2 AND slot = $3";
    let written = client.execute(sql, &[&new.pipeline, &new.name, &copy]).await;
    written.map_err(|e| SourceError::control(doing(), e)).map(|_rows| ())
}

/// Lets go of a bookmark: slot first, then the row. Gives back the WAL it held, in bytes.
///
/// # Errors
/// [`BookmarkError::Unknown`], [`BookmarkError::InUse`]; what the server says.
pub async fn drop(client: &Client, pipeline: &str, name: &str) -> Result<u64, BookmarkError> {
    let bookmark = find(client, pipeline, name).await?;
    let in_use = |pid| BookmarkError::InUse { name: name.to_owned(), pid };
    if let Some(pid) = bookmark.active_pid {
        return Err(in_use(pid));
    }
    match let_go(client, pipeline, name, &bookmark.slot).await {
        Ok(()) => Ok(bookmark.held_bytes),
        // Somebody was faster.
        Err(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) => {
            let now = find(client, pipeline, name).await?;
            Err(in_use(now.active_pid.unwrap_or_default()))
        }
        Err(error) => Err(error.into()),
    }
}

async fn let_go(
    client: &Client,
    pipeline: &str,
    name: &str,
    slot: &str,
) -> Result<(), SourceError> {
    drop_slot(client, slot).await?;
    let failed = |e| SourceError::control(format!("forget bookmark {name:?}"), e);
    let sql = "DELETE FROM postrider.bookmark WHERE pipeline = $1 AND name = $2 AND slot = $3";
    client.execute(sql, &[&pipeline, &name, &slot]).await.map_err(failed).map(|_rows| ())
}

/// Drops a bookmark's slot; one that is gone already is no error. Only slots of bookmarks: the name says so.
pub(super) async fn drop_slot(client: &Client, slot: &str) -> Result<(), SourceError> {
    assert!(slot.starts_with(super::SLOT_PREFIX), "slot {slot} is no bookmark's");
    let sql = "SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) \
               FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text";
    match client.execute(sql, &[&slot]).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let error = SourceError::control(format!("drop slot {slot:?}"), error);
            let gone = error.sqlstate() == Some(SqlState::UNDEFINED_OBJECT);
            if gone { Ok(()) } else { Err(error) }
        }
    }
}
