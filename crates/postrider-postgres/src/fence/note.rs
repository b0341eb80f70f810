//! What is not wrong, but should be known: said once at each start.

use super::{Facts, Note};
use crate::names::Names;
use crate::publication::PublicationFacts;
use crate::slot::SlotRow;
use pg_replication::lsn::Lsn;

/// The first release of each major version without a known bug that loses or wedges a slot (release notes up to 15.16,
/// 16.12, 17.8 and 18.2). Unit: `server_version_num`.
const PATCHED: &[(u32, u32)] = &[(15, 150_016), (16, 160_012), (17, 170_008), (18, 180_002)];

pub(super) fn all(facts: &Facts, slot: &SlotRow) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |name, message: String| notes.push(Note { name, message });
    let version = facts.server.version;
    let (major, minor) = (version / 10_000, version % 10_000);
    if let Some((_, patched)) =
        PATCHED.iter().find(|(m, patched)| *m == major && version < *patched)
    {
        note(
            "old_minor",
            format!(
                "PostgreSQL {major}.{minor} has known bugs in logical decoding; use {major}.{} or later",
                patched % 10_000
            ),
        );
    }
    if facts.server.encoding == "SQL_ASCII" {
        note(
            "sql_ascii",
            "the database's encoding is SQL_ASCII: a row that is not valid UTF-8 stops the stream"
                .to_owned(),
        );
    }
    if let Some(cursor) = facts.cursor.as_ref().filter(|c| c.timeline < facts.server.timeline) {
        note(
            "promoted",
            format!(
                "the server went from timeline {} to {}{}: events published from the old one after the switch may \
                 not be in the database",
                cursor.timeline,
                facts.server.timeline,
                super::history::switch(facts, cursor)
                    .map_or_else(String::new, |switch| format!(" at {}", switch.at))
            ),
        );
    }
    if let Some((confirmed, row)) = unseen(facts, slot) {
        note(
            "promoted_behind",
            format!(
                "slot {:?} was carried over at {confirmed}, the cursor row at {row}: an event that was parked in \
                 between is in neither, its row is still in the outbox unless the application deleted it",
                slot.name
            ),
        );
    }
    if let Some(gap) = super::publication::gap(facts) {
        note(
            "publication_changed",
            format!(
                "{gap}. They are not taken for published until they are published from the table, now or later: {}",
                super::publication::from_the_table(facts)
            ),
        );
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        note(
            "unreserved",
            format!("slot {:?} is about to be lost: its WAL is being removed", slot.name),
        );
    }
    if facts.failover && version >= 170_000 && !slot.failover {
        note(
            "no_failover",
            format!("slot {:?} is not a failover slot: a standby will not have it", slot.name),
        );
    }
    notes.extend(facts.publication.iter().flat_map(|p| of_publication(p, &facts.names)));
    notes
}

/// Promoted with a slot further on than the row: what is between was confirmed, and so published, or parked in rows
/// that this server never had.
fn unseen(facts: &Facts, slot: &SlotRow) -> Option<(Lsn, Lsn)> {
    let cursor = facts.cursor.as_ref().filter(|c| c.timeline < facts.server.timeline)?;
    let (confirmed, row) = (slot.confirmed_flush_lsn?, cursor.watermark.lsn());
    // Up to the limit the slot went while nothing happened.
    (confirmed > cursor.flush_limit.max(row)).then_some((confirmed, row))
}

fn of_publication(publication: &PublicationFacts, names: &Names) -> Vec<Note> {
    let name = &names.publication;
    let mut notes = Vec::new();
    let mut note = |name, message: String| notes.push(Note { name, message });
    if publication.all_tables {
        note(
            "all_tables",
            format!(
                "publication {name:?} is FOR ALL TABLES: the relay's own cursor comes back to it as noise"
            ),
        );
    } else if publication.other_tables > 0 {
        note(
            "other_tables",
            format!(
                "publication {name:?} has {} other tables: their rows are skipped",
                publication.other_tables
            ),
        );
    }
    if publication.more_than_needed(names.updates) {
        note(
            "more_than_insert",
            format!(
                "publication {name:?} publishes more than the relay needs: deleting from a table without a primary key \
                 fails while it does"
            ),
        );
    }
    notes
}
