//! A new slot for a pipeline whose slot is gone, or that begins on a table which has rows: what the stream won't bring
//! is listed, published from the table, and only then does the cursor stand at the new slot.
//!
//! Owns the two tables of it (`postrider.repair`, `postrider.repair_page`), the question which rows are unpublished,
//! and the moment at which snapshot and stream part. Knows nothing of records and brokers: rows leave as pgoutput
//! Insert messages, and the driver publishes them as it publishes polled ones.
//!
//! ```text
//! making      what was resolved is noted ─▶ the old slot goes ─▶ new slot, with its snapshot
//! publishing  ids of the rows that the snapshot sees and that are not resolved, in order, page by page
//! done        cursor := the slot's consistent point, in the transaction that says so
//! ```
//!
//! Each state is committed before the next begins, so it may be killed anywhere. Until the last one the cursor row
//! stands where it stood: nothing streams from the new slot.

mod begin;
mod list;
mod reader;
mod row;

pub use begin::{Ask, Told, begin};
pub use list::{
    Method, Survey, Unmarked, left, parked_aggregates, relays, survey, undecided, without_id,
};
pub use reader::{Finished, PAGE_ROWS, Reader};
pub use row::{Kind, Ledger, Row, Selection, State, ledger, read};

use crate::names::{admin_url, ident};
use crate::setup::plan::standby;
use crate::start::{self, Facts};
use postrider_core::error::{Halt, HaltReason};

// Whether there is something to repair, and whether it can be done: pure.

/// What is the matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The slot stands, and the cursor is its own.
    Sound,
    /// A repair or a backfill was begun: its slot stands, and its list is what is left.
    GoesOn,
    /// A new slot is needed, since: a fragment.
    NewSlot(String),
}

/// Judges. `row` is the pipeline's repair, where there is one. `from_table`: a person asks for a repair also where the
/// slot can be used.
///
/// # Errors
/// It can't be repaired as it is, or by us: the hint says what is possible.
pub fn judge(facts: &Facts, row: Option<&Row>, from_table: bool) -> Result<Verdict, Halt> {
    fit(facts)?;
    let name = &facts.names.slot;
    if facts.names.table.is_none() {
        return Err(Halt {
            reason: HaltReason::TableUnfit,
            message: "there is no outbox table to repair from".to_owned(),
            meaning: "logical messages leave no row: those that were not streamed are lost"
                .to_owned(),
            hint: format!(
                "begin a new slot: postrider setup --undo -p {pipeline} --url {admin}; then postrider setup -p \
                 {pipeline} --url {admin}",
                pipeline = facts.names.pipeline,
                admin = admin_url(&facts.server.database)
            ),
        });
    }
    if facts.publication.is_none() {
        return Err(no_publication(facts));
    }
    if let Some(pid) = facts.slot.as_ref().and_then(|slot| slot.active_pid) {
        return Err(live(&format!("slot {name:?} is in use by backend {pid}")));
    }
    let unfinished = row.filter(|row| row.unfinished());
    if let Some(row) = unfinished {
        let stands = facts.slot.as_ref().is_some_and(|slot| {
            !slot.lost()
                && slot.name == row.slot
                && slot.confirmed_flush_lsn == row.slot_created_lsn
        });
        return Ok(match row.state {
            State::Publishing if stands => Verdict::GoesOn,
            State::Publishing => Verdict::NewSlot(format!("slot {name:?} is lost again")),
            State::Making | State::Done => {
                Verdict::NewSlot("a repair ended before its slot was made".to_owned())
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
    Ok(Verdict::Sound)
}

/// What comes before any look at our tables: a primary, our cluster, our schema, and objects of our kind.
///
/// # Errors
/// A human must act.
pub fn fit(facts: &Facts) -> Result<(), Halt> {
    if facts.server.in_recovery {
        return Err(standby());
    }
    start::check_repair(facts).map_err(|halt| of_another_cluster(facts, halt))
}

/// The row tells nothing of this cluster; which of its rows are to be published is a person's to say.
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

/// Another relay of the pipeline is at work.
pub fn live(what: &str) -> Halt {
    Halt {
        reason: HaltReason::RelayRunning,
        message: format!("another relay of this pipeline is live: {what}"),
        meaning: "nothing was changed; two processes that publish at once would change the order of events".to_owned(),
        hint: "stop postrider run of this pipeline, then repair; or leave the repair to it: source.on_slot_lost = \
               \"repair\""
            .to_owned(),
    }
}

/// The slot can be used, and may be all that has the events of a table that was dropped.
fn table_created(facts: &Facts) -> Halt {
    let pipeline = &facts.names.pipeline;
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
            facts.names.pipeline
        ),
    }
}

fn no_cursor(facts: &Facts) -> Halt {
    let pipeline = &facts.names.pipeline;
    let (meaning, hint) = if facts.slot.is_some() {
        (
            "the slot stands, and nobody has streamed from it",
            format!("postrider setup -p {pipeline}"),
        )
    } else {
        (
            "nothing in the database tells which rows were published",
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
