//! The slot as the server shows it in `pg_replication_slots`.
//!
//! Only reads. What the state of a slot means for the data is `fence`'s to say; creating one is `setup`'s.

use super::error::SourceError;
use super::server::lsn;
use pg_replication::lsn::Lsn;
use tokio_postgres::{Client, Row};

/// One row of `pg_replication_slots`. Columns that a version lacks are `None` or `false`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of pg_replication_slots")]
pub struct SlotRow {
    /// The slot's name.
    pub name: String,
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// Whether it is a logical slot.
    pub logical: bool,
    /// The database it decodes; `None` for a physical slot.
    pub database: Option<String>,
    /// Gone when its session ends.
    pub temporary: bool,
    /// Decodes PREPARE TRANSACTION as it happens.
    pub two_phase: bool,
    /// The backend that holds it now.
    pub active_pid: Option<u32>,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` while nothing is reserved.
    pub wal_status: Option<String>,
    /// The oldest WAL it needs; `None` when it is invalidated.
    pub restart_lsn: Option<Lsn>,
    /// Up to where its consumer has confirmed; `None` while the slot is being created.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Bytes of WAL that may still be written before it is in danger; `None` without a limit or when lost.
    pub safe_wal_size: Option<i64>,
    /// PostgreSQL 16 and later: invalidated by a conflict with recovery.
    pub conflicting: bool,
    /// PostgreSQL 17 and later: kept in step on standbys.
    pub failover: bool,
    /// PostgreSQL 17 and later: made by slot synchronisation, here or before this server was promoted.
    pub synced: bool,
    /// PostgreSQL 17 and later: why it was invalidated (`wal_removed`, `idle_timeout` …).
    pub invalidation_reason: Option<String>,
    /// PostgreSQL 17 and later: when it was last let go, as the server prints it; `None` while in use.
    pub inactive_since: Option<String>,
}

impl SlotRow {
    /// Whether WAL it needs is gone: it can never be used again.
    pub fn lost(&self) -> bool {
        self.wal_status.as_deref() == Some("lost")
            || self.invalidation_reason.is_some()
            || self.conflicting
    }
}

/// The row of the slot `name`, `None` if there is none.
pub async fn read(
    client: &Client,
    version: u32,
    name: &str,
) -> Result<Option<SlotRow>, SourceError> {
    // The columns by version: manual, 54.20 "pg_replication_slots", of 15, 16 and 17.
    let later = match version {
        170_000.. => {
            "coalesce(s.conflicting, false), s.failover, s.synced, s.invalidation_reason, \
             s.inactive_since::pg_catalog.text"
        }
        // In 16 `conflicting` is true of every slot that was invalidated. One whose WAL was removed has no
        // restart_lsn any more, and one in conflict with recovery keeps it.
        160_000.. => {
            "coalesce(s.conflicting, false) AND s.restart_lsn IS NOT NULL, false, false, \
             null::pg_catalog.text, null::pg_catalog.text"
        }
        _ => "false, false, false, null::pg_catalog.text, null::pg_catalog.text",
    };
    let sql = format!(
        "SELECT s.plugin::pg_catalog.text, s.slot_type = 'logical', s.database::pg_catalog.text, \
         s.temporary, s.two_phase, s.active_pid, s.wal_status, s.restart_lsn, \
         s.confirmed_flush_lsn, s.safe_wal_size, {later} \
         FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text"
    );
    let doing = || format!("read the state of slot {name:?}");
    let row =
        client.query_opt(&sql, &[&name]).await.map_err(|e| SourceError::control(doing(), e))?;
    row.map(|row| from_row(name, &row).map_err(|e| SourceError::control(doing(), e))).transpose()
}

/// Bytes of WAL that the slot `name` of this database retains, which nobody reads; `None` if there is none such.
///
/// # Errors
/// What the server says.
pub async fn retained(client: &Client, name: &str) -> Result<Option<u64>, SourceError> {
    let failed = |e| SourceError::control(format!("read what slot {name:?} retains"), e);
    let sql = "SELECT coalesce(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), s.restart_lsn), 0) \
                 ::pg_catalog.int8 \
               FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text \
                 AND s.database = pg_catalog.current_database() AND NOT s.active";
    let row = client.query_opt(sql, &[&name]).await.map_err(failed)?;
    let bytes: Option<i64> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?;
    Ok(bytes.map(|bytes| u64::try_from(bytes).unwrap_or_default()))
}

/// Whether the slot `name` of this database stands and has all of its WAL.
///
/// # Errors
/// What the server says.
pub async fn stands(client: &Client, name: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("look for slot {name:?}"), e);
    let sql = "SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text \
                 AND s.database = pg_catalog.current_database() AND s.wal_status IS DISTINCT FROM 'lost'";
    Ok(client.query_opt(sql, &[&name]).await.map_err(failed)?.is_some())
}

/// Whether the walsender `pid` waits for a standby in `synchronized_standby_slots` (17 and later): it sends keepalives
/// meanwhile and nothing else.
pub async fn waits_for_standby(client: &Client, pid: u32) -> Result<bool, SourceError> {
    let failed = |error| SourceError::control("look at what the stream waits for", error);
    let sql = "SELECT wait_event = 'WaitForStandbyConfirmation' FROM pg_catalog.pg_stat_activity WHERE pid = $1";
    let row = client.query_opt(sql, &[&pid.cast_signed()]).await.map_err(failed)?;
    let waits: Option<bool> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?.flatten();
    Ok(waits.unwrap_or(false))
}

fn from_row(name: &str, row: &Row) -> Result<SlotRow, tokio_postgres::Error> {
    Ok(SlotRow {
        name: name.to_owned(),
        plugin: row.try_get(0)?,
        logical: row.try_get(1)?,
        database: row.try_get(2)?,
        temporary: row.try_get(3)?,
        two_phase: row.try_get(4)?,
        active_pid: row.try_get::<_, Option<i32>>(5)?.map(i32::cast_unsigned),
        wal_status: row.try_get(6)?,
        restart_lsn: row.try_get(7).map(|at: Option<_>| at.map(lsn))?,
        confirmed_flush_lsn: row.try_get(8).map(|at: Option<_>| at.map(lsn))?,
        safe_wal_size: row.try_get(9)?,
        conflicting: row.try_get(10)?,
        failover: row.try_get(11)?,
        synced: row.try_get(12)?,
        invalidation_reason: row.try_get(13)?,
        inactive_since: row.try_get(14)?,
    })
}
