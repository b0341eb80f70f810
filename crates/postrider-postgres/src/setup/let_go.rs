//! Lets the slot of a pipeline go, so that the server may remove its WAL: only where the table is polled in its stead.

use super::Renewed;
use crate::control::Control;
use pg_replication::error::{SourceError, SqlState};

/// Drops the slot, if it is one that could be ours and nobody uses it.
///
/// # Errors
/// What the server says; that it is in use is [`Renewed::NotYet`].
pub async fn let_go(control: &Control, slot: &str) -> Result<Renewed, SourceError> {
    let sql = "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots \
               WHERE slot_name = $1::pg_catalog.text AND plugin = 'pgoutput' \
                 AND database = pg_catalog.current_database()";
    match control.client().execute(sql, &[&slot]).await {
        Ok(_) => Ok(Renewed::Gone),
        Err(error) => {
            let error = SourceError::control("let the slot go", error);
            if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) {
                return Ok(Renewed::NotYet(format!("slot {slot:?} is still in use")));
            }
            Err(error)
        }
    }
}

/// How much WAL the slot holds back.
///
/// # Errors
/// What the server says.
pub async fn held(control: &Control, slot: &str) -> Result<Renewed, SourceError> {
    let sql = "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_flush_lsn(), restart_lsn)::pg_catalog.int8 \
               FROM pg_catalog.pg_replication_slots WHERE slot_name = $1::pg_catalog.text";
    let failed = |error| SourceError::control("look at what the slot holds back", error);
    let row = control.client().query_opt(sql, &[&slot]).await.map_err(failed)?;
    let bytes: Option<i64> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?.flatten();
    Ok(Renewed::Holds(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)))
}
