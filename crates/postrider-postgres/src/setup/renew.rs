//! A new slot for a pipeline that polls meanwhile (`mode = "auto"`), and its cursor.
//!
//! What was committed before the new slot's consistent point is polling's to publish, what is committed after it comes
//! by the stream: so polling goes on until it has seen the table empty once after the slot was made. Where that point
//! is, is all this says; who publishes what is the driver's.

use super::plan::{creation, standing as standing_slot};
use crate::control::{Ask, Control};
use crate::fence::{self, Facts};
use crate::names::{admin_url, literal};
use crate::server::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL};
use pg_replication::error::{SourceError, SqlState};
use postrider_core::error::Chain;

/// What came of it.
#[derive(Debug)]
pub enum Renewed {
    /// A slot stands that can be streamed from.
    Stands,
    /// It can't be made now, and why.
    NotYet(String),
    /// It is gone, as asked for ([`super::let_go`]).
    Gone,
    /// It stands, and holds back so many bytes of WAL ([`super::held`]).
    Holds(u64),
}

/// Sees that a usable slot stands: drops a lost one of ours, makes a new one, and binds the cursor row to it. It has a
/// session of its own, since a slot waits for every transaction that is running.
///
/// # Errors
/// What the server says; that the role may not make slots is [`Renewed::NotYet`].
pub async fn renew(control: &Control, ask: &Ask<'_>, epoch: i64) -> Result<Renewed, SourceError> {
    let facts = control.facts(ask).await?;
    if facts.publication.is_none() {
        let name = &facts.names.publication;
        return Ok(Renewed::NotYet(format!(
            "publication {name:?} does not exist: postrider setup -p {} --url {}",
            facts.names.pipeline,
            admin_url(&facts.server.database)
        )));
    }
    let slot = facts.slot.as_ref();
    if slot.is_some_and(|slot| !slot.lost()) {
        return standing(control, &facts, epoch).await;
    }
    if slot
        .is_some_and(|slot| slot.active_pid.is_some() || slot.plugin.as_deref() != Some("pgoutput"))
    {
        return Ok(Renewed::NotYet("the slot is lost, and not ours to drop".to_owned()));
    }
    match make(control, &facts, epoch).await {
        Ok(()) => Ok(Renewed::Stands),
        Err(error) if error.sqlstate().is_some_and(refused) => {
            Ok(Renewed::NotYet(Chain(&error).to_string()))
        }
        Err(error) => Err(error),
    }
}

/// A slot that somebody else made: it is ours where the row says so, and else it is bound now.
async fn standing(control: &Control, facts: &Facts, epoch: i64) -> Result<Renewed, SourceError> {
    if let Err(halt) = fence::check_objects(facts) {
        return Ok(Renewed::NotYet(halt.message));
    }
    if facts.cursor.is_some() && fence::check_binding(facts).is_ok() {
        return Ok(Renewed::Stands);
    }
    run(control, &bind(facts, epoch)).await.map(|()| Renewed::Stands)
}

async fn make(control: &Control, facts: &Facts, epoch: i64) -> Result<(), SourceError> {
    if facts.slot.is_some() {
        let slot = literal(&facts.names.slot);
        run(control, &format!("SELECT pg_catalog.pg_drop_replication_slot({slot})")).await?;
    }
    run(
        control,
        &format!(
            "BEGIN;\nSET LOCAL lock_timeout = 0;\nSET LOCAL statement_timeout = 0;\n{};\n{};\nCOMMIT",
            creation(facts),
            bind(facts, epoch)
        ),
    )
    .await
}

/// The row is the pipeline's own, under the owner's epoch: nobody else's is touched.
///
/// Rows that the table has now may be from before the slot. That is noted until polling has come to its end
/// ([`crate::cursor::polled`]): a person may end it before that (`polls_on = false`), and then nobody has
/// published them.
fn bind(facts: &Facts, epoch: i64) -> String {
    let (pipeline, slot) = (literal(&facts.names.pipeline), &facts.names.slot);
    let publication = literal(&facts.names.publication);
    format!(
        "UPDATE postrider.cursor c SET system_identifier = {SYSTEM_IDENTIFIER_SQL}, timeline = {TIMELINE_SQL}, \
           slot = s.slot_name, slot_created_lsn = s.confirmed_flush_lsn, publication = {publication}, \
           messages = {}, watermark = s.confirmed_flush_lsn, flush_limit = s.confirmed_flush_lsn, \
           partial_commit_lsn = NULL, partial_ordinal = NULL, updated_at = pg_catalog.now(), \
           resolved_snapshot = NULL, pending_snapshot = NULL, pending_lsn = NULL, polls_on = true, \
           before_slot = pg_catalog.pg_current_snapshot(), of_mode = 'auto' \
         FROM {} AND c.pipeline = {pipeline} AND c.owner_epoch = {epoch}",
        facts.messages,
        standing_slot(slot)
    )
}

async fn run(control: &Control, sql: &str) -> Result<(), SourceError> {
    let Err(error) = control.client().batch_execute(sql).await else { return Ok(()) };
    drop(control.client().batch_execute("ROLLBACK").await);
    Err(SourceError::control("recreate the slot", error))
}

/// No right to make slots, no logical decoding, no slot free.
fn refused(sqlstate: SqlState) -> bool {
    [
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        SqlState::CONFIGURATION_LIMIT_EXCEEDED,
    ]
    .contains(&sqlstate)
}
