//! Rules about positions: whether slot, cursor and WAL fit together, and where a stream starts.
//!
//! What they rest on: the row lives in the database it speaks of, so a row that can be read proves that this server's
//! WAL holds everything below its watermark, on this timeline; and no position above the row's `flush_limit` is ever
//! confirmed before the row says so.

use super::object::{begin_with_every_row, repair};
use super::{Facts, Note, Resume, halt, history};
use crate::cursor::Cursor;
use crate::slot::SlotRow;
use pg_replication::lsn::{Lsn, Watermark};
use postrider_core::error::{Halt, HaltReason};

/// The row is this slot's.
pub(super) fn cursor_binding(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let slot = facts.slot.as_ref()?;
    (cursor.slot != slot.name).then(|| {
        halt(
            HaltReason::SlotMoved,
            format!(
                "the cursor of pipeline {:?} belongs to slot {:?}, the configuration names {:?}",
                cursor.pipeline, cursor.slot, slot.name
            ),
            format!(
                "events between {} and the start of the new slot could be left out",
                cursor.watermark
            ),
            format!(
                "set source.slot back to {:?}; or, to move to another slot, set it to a name that no slot has, and \
                 run {}: it publishes what no slot brings any more, and begins the new one",
                cursor.slot,
                if facts.names.auto { "postrider run".to_owned() } else { facts.command("repair") }
            ),
        )
    })
}

/// Nothing is further on than the server's WAL.
pub(super) fn ahead(facts: &Facts) -> Option<Halt> {
    let end = facts.server.wal_end;
    let cursor = facts.cursor.as_ref().map(|c| (c.watermark.lsn(), "the cursor"));
    let slot = facts.confirmed().map(|at| (at, "the slot"));
    let (at, what) = [cursor, slot].into_iter().flatten().find(|(at, _)| *at > end)?;
    Some(halt(
        HaltReason::PositionAhead,
        format!(
            "{what} of pipeline {:?} stands at {at}, the server's WAL ends at {end}",
            facts.names.pipeline
        ),
        "the server has lost WAL (restored, or a crash without fsync): events it commits below that position would \
         be skipped",
        format!(
            "find out which events were published that the database no longer has; then {}",
            begin_with_every_row(facts)
        ),
    ))
}

/// The slot is no further on than this pipeline ever confirmed.
///
/// After a promotion the row can be older than a slot that was synchronised: [`history::promoted`] judges that.
pub(super) fn moved(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let confirmed = facts.confirmed()?;
    let known = cursor.flush_limit.max(cursor.watermark.lsn());
    (facts.server.timeline == cursor.timeline && confirmed > known).then(|| {
        halt(
            HaltReason::SlotMoved,
            format!(
                "slot {:?} stands at {confirmed}, this pipeline confirmed up to {known} at most",
                facts.names.slot
            ),
            format!(
                "the slot was advanced, or dropped and made again, or read by somebody else: events between {} and \
                 {confirmed} may never have been published; {}",
                cursor.watermark,
                if facts.names.table.is_some() {
                    "their rows are still in the outbox unless the application deleted them"
                } else {
                    "logical messages leave no row"
                }
            ),
            format!("find out who moved it; then {}", repair(facts)),
        )
    })
}

/// Where to start, all rules having held.
pub(super) fn resume(facts: &Facts, slot: &SlotRow, confirmed: Lsn) -> Resume {
    let mut notes = super::note::all(facts, slot);
    let Some(row) = &facts.cursor else {
        notes.push(Note {
            name: "adopted",
            message: format!(
                "slot {:?} has no cursor row: going on from where it stands",
                slot.name
            ),
        });
        let cursor = adopted(facts, confirmed);
        return Resume { start: cursor.watermark, skip_before: None, cursor, adopt: true, notes };
    };
    // Above the row's watermark the slot stands only by idle advance or after a promotion: nothing of ours lies
    // between. Behind it the slot stands after every crash, since the server keeps its position in memory.
    let start = Watermark::resumed(history::cursor_at(facts, row).max(confirmed));
    let same_stream = row.messages == facts.messages && row.publication == facts.names.publication;
    let skip_before =
        row.partial.filter(|partial| same_stream && partial.commit_lsn >= start.lsn());
    if row.partial.is_some() && !same_stream {
        notes.push(Note {
            name: "partial_dropped",
            message: "the stream's options changed in the middle of a transaction: its published part is published \
                      again"
                .to_owned(),
        });
    }
    // What an old primary was told says nothing of this one's slot.
    let promoted = facts.server.timeline > row.timeline;
    let limit = if promoted { start.lsn() } else { row.flush_limit.max(start.lsn()) };
    let cursor = Cursor {
        timeline: facts.server.timeline,
        publication: facts.names.publication.clone(),
        messages: facts.messages,
        watermark: start,
        flush_limit: limit,
        partial: skip_before,
        ..row.clone()
    };
    Resume { start, skip_before, cursor, adopt: false, notes }
}

/// The row of a slot that is taken over as it stands.
pub(crate) fn adopted(facts: &Facts, confirmed: Lsn) -> Cursor {
    Cursor {
        pipeline: facts.names.pipeline.clone(),
        system_identifier: facts.server.system_identifier.clone(),
        timeline: facts.server.timeline,
        slot: facts.names.slot.clone(),
        slot_created_lsn: confirmed,
        publication: facts.names.publication.clone(),
        messages: facts.messages,
        watermark: Watermark::resumed(confirmed),
        flush_limit: confirmed,
        partial: None,
        owner_epoch: 0,
    }
}

/// What a second look at the slot says, once the stream has started and nobody else can move it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AfterStart {
    /// It is ours, or was until the server ended the stream, and stands where we thought or before.
    Held,
    /// Somebody was at it between our look and our start: do the whole handshake again.
    Again {
        /// What is different: a lowercase fragment.
        message: String,
    },
}

/// Looks at the slot again. `pid` is the backend of our replication connection.
///
/// The server forwards a start below the slot's position without a word, so only this look shows that another process
/// confirmed something in between; a new handshake then reads that process' cursor.
pub fn check_after_start(slot: Option<&SlotRow>, pid: u32, resume: &Resume) -> AfterStart {
    let again = |message: String| AfterStart::Again { message };
    let Some(slot) = slot else { return again("the slot is gone since the start".to_owned()) };
    // Held by nobody: the server has ended the stream already, for instance with an error at its first change. What
    // came before that is good, and the stream itself says how it ended.
    if slot.active_pid.is_some_and(|holder| holder != pid) {
        return again(format!("slot {:?} is not held by our connection", slot.name));
    }
    match slot.confirmed_flush_lsn {
        Some(confirmed) if confirmed <= resume.start.lsn() => AfterStart::Held,
        Some(confirmed) => {
            again(format!("slot {:?} moved to {confirmed} before the start", slot.name))
        }
        None => again(format!("slot {:?} has no position", slot.name)),
    }
}
