//! Rules about histories: whether this server is the one the cursor was written on, or has it behind it.
//!
//! A timeline ends where a standby was promoted or a backup's recovery ended. What goes on by itself is a promoted
//! standby to which the slot was carried over: the server says so of its slots (`synced`), from PostgreSQL 17 on.
//! Whatever else has a higher timeline could be a restored backup, and is a person's to judge where that can be told.

use super::object::{begin_with_every_row, repair};
use super::{Facts, halt};
use crate::cursor::Cursor;
use crate::names::literal;
use pg_replication::lsn::Lsn;
use pg_replication::wal::Switch;
use postrider_core::error::{Halt, HaltReason};

/// The first server that carries slots over by itself, and says which ones came so.
const SYNCED_SINCE: u32 = 170_000;

/// The cluster is the cursor's, and its timeline has not gone back.
pub(super) fn same(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let found = facts.system_identifier();
    if cursor.system_identifier != found {
        return Some(halt(
            HaltReason::OtherHistory,
            format!(
                "the cursor of pipeline {:?} belongs to cluster {}, this is cluster {found}",
                cursor.pipeline, cursor.system_identifier
            ),
            "positions of one cluster mean nothing in another: going on could skip events or publish another \
             system's",
            format!(
                "if source.url is wrong, correct it. If this database was restored, copied or upgraded and is to be \
                 the source now: {}",
                begin_with_every_row(facts)
            ),
        ));
    }
    (facts.server.timeline < cursor.timeline).then(|| {
        halt(
            HaltReason::OtherHistory,
            format!(
                "the server is on timeline {}, the cursor of pipeline {:?} was on timeline {}",
                facts.server.timeline, cursor.pipeline, cursor.timeline
            ),
            "this is most likely the old primary after a failover: what it commits now is not part of the database",
            "point source.url at the current primary, or name all hosts in it with target_session_attrs=read-write",
        )
    })
}

/// The server has the cursor's timeline behind it. A higher number alone says little: a backup that is restored beside
/// a standby that was promoted gets the next free one.
pub(super) fn ancestor(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let switches = &facts.identity.as_ref()?.switches;
    let other = rose(facts, cursor) && !switches.is_empty() && switch(facts, cursor).is_none();
    other.then(|| {
        halt(
            HaltReason::OtherHistory,
            format!(
                "the server is on timeline {}, which has no timeline {} behind it, where the cursor of pipeline {:?} \
                 was written",
                facts.server.timeline, cursor.timeline, cursor.pipeline
            ),
            "the same position is another event in another history: going on could skip events",
            format!(
                "if source.url is wrong, correct it. If this server is to be the source now: {}",
                begin_with_every_row(facts)
            ),
        )
    })
}

/// After a promotion: the slot is the one that was there before it.
///
/// The watermark is right on the new timeline, since the row that holds it was written below the switch. So a slot at
/// or below it leaves nothing out. A slot above it must be a synchronised one, which can't have been made after the
/// switch and stands no further than the old primary had confirmed, and so below the switch. Any other could have been
/// made again by hand, with a gap before it.
pub(super) fn promoted(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let slot = facts.slot.as_ref()?;
    let confirmed = slot.confirmed_flush_lsn?;
    if !rose(facts, cursor) || confirmed <= cursor.watermark.lsn() {
        return None;
    }
    let switch = switch(facts, cursor).map(|switch| switch.at);
    if slot.synced && switch.is_none_or(|at| confirmed <= at) {
        return None;
    }
    let (from, to, watermark) = (cursor.timeline, facts.server.timeline, cursor.watermark);
    let behind = switch.map_or_else(String::new, |at| format!(", and of the switch at {at}"));
    Some(halt(
        HaltReason::OtherHistory,
        format!(
            "the server went from timeline {from} to {to}, and slot {:?} stands at {confirmed}, beyond the cursor at \
             {watermark}{}",
            slot.name,
            if slot.synced { behind } else { String::new() }
        ),
        format!(
            "nothing tells whether the slot was carried over or made again after the failover; made again, it leaves \
             out events between {watermark} and {confirmed}"
        ),
        format!(
            "carried over (Patroni, pg_failover_slots, block storage): {}; made again: {}",
            take_as_it_is(facts, cursor, confirmed),
            repair(facts)
        ),
    ))
}

/// A server of a higher timeline is the other half of a pair, not a backup that somebody restored.
///
/// Two things tell a backup: recovery that was told where to end, and a failover slot that nobody carried over, which
/// means that its files came with the data directory. Before PostgreSQL 17 every slot that is carried over looks so.
pub(super) fn restored(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let slot = facts.slot.as_ref()?;
    let confirmed = slot.confirmed_flush_lsn?;
    if !rose(facts, cursor) {
        return None;
    }
    let switch = switch(facts, cursor);
    let target = switch.filter(|switch| switch.stopped_at_a_target());
    let with_files = facts.server.version >= SYNCED_SINCE && slot.failover && !slot.synced;
    let why = match target {
        Some(switch) => format!("its recovery ended {} at {}", switch.reason, switch.at),
        None if with_files => {
            format!("slot {:?} came with its files, not from a primary", slot.name)
        }
        None => return None,
    };
    Some(halt(
        HaltReason::OtherHistory,
        format!(
            "the server went from timeline {} to {} and is no promoted standby: {why}",
            cursor.timeline, facts.server.timeline
        ),
        "this looks like a restored backup or a copy: consumers have events that it does not have, and it may not be \
         the source that is meant; what it has and has not published is still in the slot",
        format!(
            "if source.url is wrong, correct it. If this server is the source now, go on from where it stands: {}; or, \
             where its slot is not to be trusted, {}",
            take_as_it_is(facts, cursor, history_start(facts, cursor, confirmed)),
            repair(facts)
        ),
    ))
}

/// Where the cursor's events end in the server's history: `min(cursor, switch point)`.
///
/// `min` is a safeguard: a row that was written before the promotion should never lie above the switch point.
pub(super) fn cursor_at(facts: &Facts, cursor: &Cursor) -> Lsn {
    let at = cursor.watermark.lsn();
    if !rose(facts, cursor) {
        return at;
    }
    switch(facts, cursor).map_or(at, |switch| at.min(switch.at))
}

fn history_start(facts: &Facts, cursor: &Cursor, confirmed: Lsn) -> Lsn {
    cursor_at(facts, cursor).max(confirmed)
}

fn rose(facts: &Facts, cursor: &Cursor) -> bool {
    facts.server.timeline > cursor.timeline
}

/// The end of the cursor's timeline.
pub(super) fn switch<'a>(facts: &'a Facts, cursor: &Cursor) -> Option<&'a Switch> {
    let switches = &facts.identity.as_ref()?.switches;
    switches.iter().find(|switch| switch.timeline == cursor.timeline)
}

/// The statement with which a person vouches for the slot.
fn take_as_it_is(facts: &Facts, cursor: &Cursor, at: Lsn) -> String {
    let at = literal(&at.to_string());
    format!(
        "UPDATE postrider.cursor SET timeline = {}, watermark = {at}, flush_limit = {at}, partial_commit_lsn = NULL, \
         partial_ordinal = NULL WHERE pipeline = {}",
        facts.server.timeline,
        literal(&cursor.pipeline)
    )
}
