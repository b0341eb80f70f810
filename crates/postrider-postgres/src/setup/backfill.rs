//! `setup --backfill`: the first slot of a pipeline on a table that has rows, made together with the list of those that
//! are to be published before its stream.
//!
//! The work is `repair`'s: one snapshot, which the slot exports; what it sees is listed, what it does not see comes by
//! the stream. `postrider run` publishes the list first.

use super::plan::standby;
use crate::control::Control;
use crate::fence::Facts;
use crate::names::{TableName, literal};
use crate::poll::PollSpec;
use crate::repair::{self, Ask, Reader, Row, Told, Verdict};
use pg_replication::error::SourceError;
use postrider_core::error::{Halt, HaltReason};

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backfilled {
    /// The slot stands, and this is the list.
    Listed(Box<Row>),
    /// Another process has the pipeline's lock.
    Locked {
        /// Its backend, where it is known.
        pid: Option<u32>,
    },
}

/// Whether a backfill can begin: nothing was ever streamed, or one was begun before. `row`: the pipeline's repair.
///
/// # Errors
/// The pipeline has begun already, or a slot stands from which the rows before it could not be told apart.
pub fn check_backfill(facts: &Facts, row: Option<&Row>) -> Result<(), Halt> {
    if facts.server.in_recovery {
        return Err(standby());
    }
    if row.is_some_and(Row::unfinished) {
        return Ok(());
    }
    let (pipeline, slot) = (&facts.names.pipeline, &facts.names.slot);
    let halt = |reason, message: String, meaning: &str, hint: String| Halt {
        reason,
        message,
        meaning: meaning.to_owned(),
        hint,
    };
    if facts.names.table.is_none() {
        let message = "there is no outbox table to backfill from".to_owned();
        let (reason, hint) = (HaltReason::NotApplicable, "leave --backfill away".to_owned());
        return Err(halt(reason, message, "nothing was changed", hint));
    }
    if facts.cursor.is_some() {
        return Err(halt(
            HaltReason::AlreadySetUp,
            format!("pipeline {pipeline:?} has begun already: its cursor row is there"),
            "nothing was changed; --backfill is for the first start, and would publish rows twice",
            format!(
                "if its slot was lost: postrider repair -p {pipeline}. To start over: postrider setup --undo -p \
                 {pipeline}"
            ),
        ));
    }
    if facts.slot.is_some() {
        return Err(halt(
            HaltReason::AlreadySetUp,
            format!("slot {slot:?} stands already"),
            "nothing was changed; which rows of the table it will bring can't be told any more",
            format!(
                "if nothing reads it: SELECT pg_drop_replication_slot({}); then setup again",
                literal(slot)
            ),
        ));
    }
    Ok(())
}

/// Rows that are counted at most.
pub const ROWS_COUNTED_MAX: u64 = 100_000;

/// The role may not read the table, somebody holds a lock on it, or counting takes too long.
const UNCOUNTED: [&str; 3] = ["42501", "55P03", "57014"];

/// Rows of the table, up to one more than [`ROWS_COUNTED_MAX`]; `None` where they can't be counted now.
///
/// # Errors
/// What the server says.
pub async fn rows(control: &Control, table: &TableName) -> Result<Option<u64>, SourceError> {
    let most = ROWS_COUNTED_MAX + 1;
    let sql = format!("SELECT count(*) FROM (SELECT FROM {table} LIMIT {most}) AS counted");
    let counted = control.client().query_one(&sql, &[]).await.and_then(|row| row.try_get(0));
    let failed = |e| SourceError::control(format!("count the rows of table {table}"), e);
    match counted.map_err(failed) {
        Ok(count) => Ok(Some(i64::unsigned_abs(count))),
        Err(error) if error.report().is_some_and(|r| UNCOUNTED.contains(&r.sqlstate.as_str())) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Makes slot and list; publication and schema must stand. Killed, it goes on by the same call, or by `postrider run`.
///
/// # Errors
/// What the server says.
pub async fn backfill(
    control: &Control,
    facts: &Facts,
    table: PollSpec,
    ask: Ask<'_>,
    told: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<Backfilled, SourceError> {
    let name = &ask.names.pipeline;
    let list = Reader::open(ask.conninfo, ask.application_name, table, false).await?;
    let list = match list {
        Ok(list) => list,
        Err(pid) => return Ok(Backfilled::Locked { pid }),
    };
    let before = repair::read(control.client(), name).await?;
    let unfinished = before.as_ref().filter(|row| row.unfinished());
    let listed =
        unfinished.is_some() && repair::judge(facts, unfinished, false) == Ok(Verdict::GoesOn);
    if !listed {
        let ask = Ask { before: unfinished, drop_slot: facts.slot.is_some(), ..ask };
        repair::begin(control, list.table(), &ask, told).await?;
    }
    let row = repair::read(control.client(), name).await?;
    let none = || SourceError::new(pg_replication::SourceErrorKind::Closed, "read the list");
    row.map(|row| Backfilled::Listed(Box::new(row))).ok_or_else(none)
}
