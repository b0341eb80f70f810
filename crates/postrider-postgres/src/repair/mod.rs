//! Creates a new slot for a pipeline whose slot was lost, or whose first slot is created on a table that has rows. The
//! rows that the stream will not send are listed and published from the table, and only then is the cursor set to the
//! new slot.
//!
//! Owns the tables `postrider.repair` and `postrider.repair_page`, the rule for which rows are unpublished, and the
//! point that divides snapshot and stream. Rows leave as those of polling do, and the pipeline publishes them as
//! it publishes polled ones.
//!
//! ```text
//! making      the resolved transactions are recorded ─▶ the old slot is dropped ─▶ new slot, with its snapshot
//! publishing  ids of the rows that the snapshot sees and that are not resolved, in order, page by page
//! done        cursor := the slot's consistent point, in the transaction that records the state
//! ```
//!
//! Each state is committed before the next begins, so the process may be killed at any time. Until the last state the
//! cursor row is unchanged: nothing streams from the new slot.

mod begin;
mod list;
mod reader;
mod row;

pub use begin::{NewRepair, RepairProgress, begin};
pub use list::{
    Method, RepairSummary, UnmarkedRows, left, parked_aggregates, relays, summarize, undecided,
    without_id,
};
pub(crate) use list::{XID, seen};
pub use reader::{PAGE_ROWS, RepairOutcome, RepairReader};
pub use row::{
    RepairKind, RepairRow, RepairState, ResolvedBaseline, Selection, read, resolved_baseline,
};

use crate::names::{admin_url, ident};
use crate::setup::plan::standby;
use crate::start::{self, Facts};
use postrider_core::error::{Halt, HaltReason};

/// Whether a repair is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The slot can be used, and the cursor belongs to it.
    NotNeeded,
    /// A repair or a backfill was begun: its slot exists, and the rest of its list has to be published.
    Unfinished,
    /// A new slot is needed; the reason, as a fragment.
    NewSlot(String),
}

/// Decides whether a repair is needed and possible; a pure function. `row` is the pipeline's repair, if there is one.
/// `from_table`: a person requests a repair even if the slot can be used.
///
/// # Errors
/// No repair is possible in this state, or not by Postrider: the hint says what is possible.
pub fn assess(facts: &Facts, row: Option<&RepairRow>, from_table: bool) -> Result<Verdict, Halt> {
    check_server(facts)?;
    let name = &facts.names.slot;
    if facts.names.table.is_none() {
        return Err(no_outbox(facts));
    }
    if facts.publication.is_none() {
        return Err(no_publication(facts));
    }
    if let Some(pid) = facts.slot.as_ref().and_then(|slot| slot.active_pid) {
        return Err(relay_running(&format!("slot {name:?} is in use by backend {pid}")));
    }
    let unfinished = row.filter(|row| row.unfinished());
    if let Some(row) = unfinished {
        let stands = facts.slot.as_ref().is_some_and(|slot| {
            !slot.lost()
                && slot.name == row.slot
                && slot.confirmed_flush_lsn == row.slot_created_lsn
        });
        return Ok(match row.state {
            RepairState::Publishing if stands => Verdict::Unfinished,
            RepairState::Publishing => Verdict::NewSlot(format!("slot {name:?} is lost again")),
            RepairState::Making | RepairState::Done => {
                Verdict::NewSlot("a repair ended before its slot was created".to_owned())
            }
        });
    }
    if facts.cursor.is_none() {
        return Err(no_cursor(facts));
    }
    start::check_cursor(facts)?;
    let Some(slot) = &facts.slot else {
        return Ok(Verdict::NewSlot(format!("slot {name:?} does not exist")));
    };
    if slot.lost() {
        let why = slot.invalidation_reason.as_deref().unwrap_or("wal_removed");
        return Ok(Verdict::NewSlot(format!("slot {name:?} was invalidated ({why})")));
    }
    if let Some(halt) = start::slot_moved(facts) {
        return Ok(Verdict::NewSlot(halt.message));
    }
    if facts.since.table && !from_table {
        return Err(table_created(facts));
    }
    if let Some(why) = start::publication_gap(facts) {
        return Ok(Verdict::NewSlot(why));
    }
    if from_table {
        return Ok(Verdict::NewSlot(format!(
            "--from-table: slot {name:?} is dropped and created again"
        )));
    }
    Ok(Verdict::NotNeeded)
}

/// What is checked before Postrider's tables are read: a primary, the right cluster, the right schema, and objects of
/// the right kind.
///
/// # Errors
/// An operator must act.
pub fn check_server(facts: &Facts) -> Result<(), Halt> {
    if facts.server.in_recovery {
        return Err(standby());
    }
    start::check_repair(facts).map_err(|halt| of_another_cluster(facts, halt))
}

/// The halt for a cursor row of another cluster: an operator has to decide which rows are to be published.
fn of_another_cluster(facts: &Facts, halt: Halt) -> Halt {
    let ours = &facts.server.system_identifier;
    let other = facts.cursor.as_ref().is_some_and(|cursor| cursor.system_identifier != *ours);
    if !other || halt.reason != HaltReason::OtherHistory {
        return halt;
    }
    let hint = format!(
        "if source.url is wrong, correct it. If this database was restored, copied or upgraded and is to be the \
         source now: {}",
        start::begin_with_every_row(facts)
    );
    Halt { hint, ..halt }
}

/// There is no table from which events could be published again.
fn no_outbox(facts: &Facts) -> Halt {
    let (pipeline, admin) = (&facts.names.key.pipeline, admin_url(&facts.server.database));
    let (message, meaning, load) = if facts.names.captures() {
        (
            "captured tables cannot be repaired from: they do not show which changes were published",
            "changes that were not streamed are lost as events; the tables have their result",
            "; then load the consumers again from the tables",
        )
    } else {
        (
            "there is no outbox table to repair from",
            "logical messages leave no row: those that were not streamed are lost",
            "",
        )
    };
    Halt {
        reason: HaltReason::TableUnfit,
        message: message.to_owned(),
        meaning: meaning.to_owned(),
        hint: format!(
            "begin a new slot: postrider setup --undo -p {pipeline} --url {admin}; then postrider setup -p {pipeline} \
             --url {admin}{load}"
        ),
    }
}

/// The halt for another running relay of the pipeline.
pub fn relay_running(what: &str) -> Halt {
    Halt {
        reason: HaltReason::RelayRunning,
        message: format!("another relay of this pipeline is live: {what}"),
        meaning: "nothing was changed; two processes that publish at once would change the order of events".to_owned(),
        hint: "stop postrider run of this pipeline, then repair; or leave the repair to it: source.on_slot_lost = \
               \"repair\""
            .to_owned(),
    }
}

/// The slot can be used, and may be the only place that has the events of a dropped table.
fn table_created(facts: &Facts) -> Halt {
    let pipeline = &facts.names.key.pipeline;
    let table = facts.names.table.as_ref().map_or_else(String::new, ToString::to_string);
    Halt {
        reason: HaltReason::PublicationUnfit,
        message: format!("table {table} was created after what is known to be published"),
        meaning: "nothing was changed; a new slot would lose the events of a table that was dropped, which only the \
                  slot has"
            .to_owned(),
        hint: format!(
            "start postrider run, and wait until postrider status shows no lag: then the slot has brought them. Rows \
             that were inserted before the new table was published are then published by: postrider repair -p \
             {pipeline} --from-table (--dry-run counts them)"
        ),
    }
}

fn no_publication(facts: &Facts) -> Halt {
    let name = ident(&facts.names.publication);
    let table = facts.names.table.as_ref().map_or_else(String::new, |t| format!(" FOR TABLE {t}"));
    Halt {
        reason: HaltReason::PublicationMissing,
        message: format!("publication {:?} does not exist", facts.names.publication),
        meaning: "nothing was changed; a slot decodes with the publication that stood before it"
            .to_owned(),
        hint: format!(
            "CREATE PUBLICATION {name}{table} WITH (publish = '{}', publish_via_partition_root = true); then \
             postrider repair -p {}",
            facts.names.published(),
            facts.names.key.pipeline
        ),
    }
}

fn no_cursor(facts: &Facts) -> Halt {
    let pipeline = &facts.names.key.pipeline;
    let (meaning, hint) = if facts.slot.is_some() {
        (
            "the slot exists, and no relay has streamed from it",
            format!("postrider setup -p {pipeline}"),
        )
    } else {
        (
            "nothing in the database records which rows were published",
            format!(
                "choose which rows of the table are to be published before the new slot's: postrider setup -p \
                 {pipeline} --backfill none, or unpublished (rows without their layout's mark), or all"
            ),
        )
    };
    Halt {
        reason: HaltReason::SlotMissing,
        message: format!("pipeline {pipeline:?} has no cursor row"),
        meaning: meaning.to_owned(),
        hint,
    }
}
