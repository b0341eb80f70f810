//! The bookmarks of a pipeline as they stand: row and slot side by side.

use super::error::BookmarkError;
use crate::server::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL, lsn};
use pg_replication::error::SourceError;
use pg_replication::lsn::Lsn;
use std::fmt;
use tokio_postgres::{Client, Row};

/// One bookmark. Times are UTC, `2026-01-02T03:04:05Z`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bookmark {
    /// Its name.
    pub name: String,
    /// What a person wrote beside it.
    pub note: Option<String>,
    /// The slot that holds it.
    pub slot: String,
    /// The position: what commits at it or later comes after the bookmark. `None` where it was never finished.
    pub lsn: Option<Lsn>,
    /// The timeline the position is of.
    pub timeline: u32,
    /// Whether logical messages were asked for.
    pub messages: bool,
    /// When it was made.
    pub created_at: String,
    /// The same in microseconds since 2000-01-01 UTC.
    pub created_micros: i64,
    /// When it is let go.
    pub expires_at: Option<String>,
    /// How it stands.
    pub state: State,
    /// The oldest WAL its slot needs.
    pub restart_lsn: Option<Lsn>,
    /// Where its slot stands: nothing that commits before it can be read any more.
    pub confirmed_lsn: Option<Lsn>,
    /// The walsender that reads from it now.
    pub active_pid: Option<u32>,
    /// Bytes of WAL that the server keeps for it; 0 where it has no slot.
    pub held_bytes: u64,
}

/// How a bookmark stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// It can be replayed from.
    Usable,
    /// It was being made, and whoever made it went away.
    Unfinished,
    /// Postrider let it go: the word of the row, and when.
    Dropped {
        /// `expired` or `budget`.
        why: String,
        /// When.
        at: String,
    },
    /// Its slot is not there: dropped by hand, or left behind by a failover.
    SlotMissing,
    /// Its slot has lost WAL: why, in the server's word.
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

impl State {
    /// Whether it can be replayed from.
    pub fn usable(&self) -> bool {
        *self == Self::Usable
    }

    /// A stable word for it, as `bookmark list --json` has it.
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

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable => f.write_str("usable"),
            Self::Unfinished => f.write_str("never finished: its making was interrupted"),
            Self::Dropped { why, at } if why == "budget" => {
                write!(f, "dropped at {at}: bookmarks retained more WAL than bookmarks.retain_max")
            }
            Self::Dropped { why, at } => write!(f, "dropped at {at}: {why}"),
            Self::SlotMissing => f.write_str("its slot is gone: dropped by hand, or by a failover"),
            Self::SlotLost { why } => write!(f, "its WAL is gone ({why})"),
            Self::OtherSystem => f.write_str("of another cluster"),
            Self::OtherTimeline { now } => {
                write!(f, "of the timeline before a promotion: the server is on timeline {now}")
            }
        }
    }
}

/// All of them, the oldest first.
///
/// # Errors
/// What the server says.
pub async fn list(client: &Client, pipeline: &str) -> Result<Vec<Bookmark>, SourceError> {
    let failed =
        |e| SourceError::control(format!("list the bookmarks of pipeline {pipeline:?}"), e);
    let time = |column: &str| {
        format!("pg_catalog.to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
    };
    // One statement, so that slot and end of WAL are of one moment. A standby has no end of its own.
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
         WHERE b.pipeline = $1 ORDER BY b.created_at, b.name",
        time("b.created_at"),
        time("b.expires_at"),
        time("b.dropped_at")
    );
    let rows = client.query(&sql, &[&pipeline]).await.map_err(failed)?;
    rows.iter().map(|row| from_row(row).map_err(failed)).collect()
}

/// The one of this name.
///
/// # Errors
/// [`BookmarkError::Unknown`]; what the server says.
pub async fn find(client: &Client, pipeline: &str, name: &str) -> Result<Bookmark, BookmarkError> {
    let all = list(client, pipeline).await?;
    let known = all.iter().map(|bookmark| bookmark.name.clone()).collect();
    all.into_iter().find(|bookmark| bookmark.name == name).ok_or_else(|| BookmarkError::Unknown {
        pipeline: pipeline.to_owned(),
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
        State::Dropped { why, at: row.try_get::<_, Option<String>>(10)?.unwrap_or_default() }
    } else if position(3)?.is_none() {
        State::Unfinished
    } else if !row.try_get::<_, bool>(18)? {
        State::OtherSystem
    } else if !row.try_get::<_, bool>(11)? {
        State::SlotMissing
    } else if lost == Some(true) || invalid.is_some() {
        State::SlotLost { why: invalid.unwrap_or_else(|| "wal_removed".to_owned()) }
    } else if timeline != now {
        State::OtherTimeline { now }
    } else {
        State::Usable
    };
    Ok(Bookmark {
        name: row.try_get(0)?,
        note: row.try_get(1)?,
        slot: row.try_get(2)?,
        lsn: position(3)?,
        timeline,
        messages: row.try_get(5)?,
        created_at: row.try_get(6)?,
        created_micros: row.try_get(7)?,
        expires_at: row.try_get(8)?,
        state,
        restart_lsn: position(12)?,
        confirmed_lsn: position(13)?,
        active_pid: row.try_get::<_, Option<i32>>(14)?.map(i32::cast_unsigned),
        held_bytes: u64::try_from(row.try_get::<_, Option<i64>>(17)?.unwrap_or(0)).unwrap_or(0),
    })
}
