//! The start check: whether a stream may start, and at which position. Every connect makes this decision once.
//!
//! [`decide`] is a pure function of what the control connection has read; the pipeline acts on the result. A position
//! ahead of what the server holds is a halt, never a warning.
//!
//! The rules are checked in order: which server this is, which objects exist on it, who holds the slot, then the
//! positions. The first rule that fails is reported, so that a wrong host is not reported as a missing slot.

mod captured;
mod objects;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use objects::begin_with_every_row;
pub(super) use objects::{VERSION_MIN, insert_again, log_leaf, run_without_slot, via_root};

use crate::capture::tables::CaptureFacts;
use crate::catalog::{
    AffectedRows, ChangesSince, PublicationFacts, ServerFacts, SlotRow, TableFacts,
};
use crate::names::{Names, admin_url, literal};
use crate::poll::PollSpec;
use crate::schema::{SchemaState, VERSION};
use crate::schema_owner::UntrustedSchema;
use crate::store::cursor::Cursor;
use crate::stream::SystemIdentity;
use crate::times::TimesFacts;
use crate::wire::Lsn;
use objects::repair;
use pg_replication::stream::TimelineSwitch;
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::Position;
use postrider_core::offset::Watermark;
use std::time::Duration;

/// The answer of `IDENTIFY_SYSTEM` on the replication connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's identity.
    pub system_identifier: String,
    /// The current timeline.
    pub timeline: u32,
    /// The earlier timelines, oldest first; empty if there are none or they are not known.
    pub switches: Vec<TimelineSwitch>,
}

impl From<&SystemIdentity> for Identity {
    fn from(identity: &SystemIdentity) -> Self {
        Self {
            system_identifier: identity.system_id.clone(),
            timeline: identity.timeline,
            switches: identity.switches.clone(),
        }
    }
}

/// The facts that a decision depends on. [`super::control::facts`] reads them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The names from the configuration.
    pub names: Names,
    /// The server at the other end of the replication connection; `None` without one (`setup`, `check`).
    pub identity: Option<Identity>,
    /// The server at the other end of the control connection.
    pub server: ServerFacts,
    /// Postrider's schema.
    pub schema: SchemaState,
    /// Why the session does not use that schema, if it must not ([`super::schema_owner`]).
    pub untrusted: Option<UntrustedSchema>,
    /// The slot.
    pub slot: Option<SlotRow>,
    /// The cursor row; not read if the schema is newer than this program's.
    pub cursor: Option<Cursor>,
    /// The publication.
    pub publication: Option<PublicationFacts>,
    /// What was created or changed after what is known to be published ([`super::catalog::changed_since`]).
    pub since: ChangesSince,
    /// The outbox table.
    pub table: Option<TableFacts>,
    /// The table's columns that hold times, and their zone.
    pub times: TimesFacts,
    /// The columns that the layout requires.
    pub columns: Vec<String>,
    /// The options of the stream.
    pub stream: StreamOptions,
    /// How the rows of published events are marked, if they are.
    pub marks: Option<RowStatusFacts>,
    /// The captured tables and their publication; `None` for a pipeline that captures none.
    pub captured: Option<CaptureFacts>,
}

/// The options of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// Whether logical messages are streamed.
    pub messages: bool,
    /// Whether the slot is to be a failover slot, if the server supports them.
    pub failover: bool,
}

/// How rows are marked, and the columns of the dead-letter table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowStatusFacts {
    /// The columns, by name.
    pub spec: PollSpec,
    /// The columns of the dead-letter table; `None` if there is no such table, or nothing is written into it.
    pub dlq: Option<Vec<String>>,
}

/// The result of [`decide`], unless it is a [`Halt`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Start the stream.
    Resume(Box<Resume>),
    /// Another process holds the slot: retry when the slot is free.
    StandBy {
        /// The other process' backend.
        pid: u32,
    },
    /// Not possible now, but possibly later without an operator: retry the whole handshake, with back-off.
    Wait {
        /// The obstacle: a lowercase fragment.
        message: String,
    },
}

/// The position at which the stream starts, and what applies to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The position to request.
    pub start: Watermark,
    /// Changes of this transaction below this ordinal are resolved and must be skipped.
    pub skip_before: Option<Position>,
    /// The existing row, with this server's timeline and this stream's options: the base of later writes.
    pub cursor: Cursor,
    /// No cursor row exists yet: it must be created ([`crate::store::cursor::create`]) before the stream starts.
    pub adopt: bool,
    /// Notes for an operator, logged once per start.
    pub notes: Vec<Note>,
}

/// A condition that is no error, but that an operator should know of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// A stable name.
    pub name: &'static str,
    /// The text: a sentence without full stop.
    pub message: String,
}

/// A rule: `None` when it holds.
type Rule = fn(&Facts) -> Option<Halt>;

/// What polling requires of the table. A status change that moves a row to another partition does no harm here, because
/// no stream sends the row again.
const POLLED: &[Rule] = &[
    objects::table,
    objects::polled_leaves,
    objects::times,
    objects::mark_columns,
    objects::dead_letters,
];

/// Makes the decision.
///
/// # Errors
/// To continue could lose or reorder events, or can never work: an operator must act.
pub fn decide(facts: &Facts) -> Result<Decision, Halt> {
    const IDENTITY: &[Rule] = &[objects::version, same, ancestor];
    const OBJECTS: &[Rule] = &[
        objects::wal_level,
        objects::schema,
        objects::slot_missing,
        objects::slot_kind,
        objects::slot_lost,
        objects::table,
        objects::leaves,
        objects::times,
        captured::tables,
        objects::exists,
        captured::publication,
        objects::rows,
        objects::published_columns,
        objects::mark_columns,
        objects::dead_letters,
        objects::partition_key,
    ];
    const POSITIONS: &[Rule] = &[cursor_binding, ahead, moved, promoted, restored];

    check(IDENTITY, facts)?;
    if let Some(message) = objects::not_now(facts) {
        return Ok(Decision::Wait { message });
    }
    check(OBJECTS, facts)?;
    let Some(slot) = &facts.slot else { return Err(objects::missing(facts)) };
    if let Some(pid) = slot.active_pid {
        return Ok(Decision::StandBy { pid });
    }
    let Some(confirmed) = slot.confirmed_flush_lsn else {
        let message = format!("slot {:?} is still being created", slot.name);
        return Ok(Decision::Wait { message });
    };
    check(POSITIONS, facts)?;
    Ok(Decision::Resume(Box::new(resume(facts, slot, confirmed))))
}

/// Checks that the publication publishes the table completely.
///
/// # Errors
/// Why it does not: rows that are inserted meanwhile are in no stream.
pub fn check_publication(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        captured::tables,
        objects::exists,
        captured::publication,
        objects::rows,
        objects::published_columns,
    ];
    check(RULES, facts)
}

/// Checks the objects of the pipeline, without positions and without the holder of the slot: what `setup` requires of
/// existing objects. Objects that do not exist are not checked.
///
/// # Errors
/// An object of the configured name exists and cannot be used.
pub fn check_objects(facts: &Facts) -> Result<(), Halt> {
    const ALWAYS: &[Rule] = &[objects::version, same, objects::wal_level];
    check(ALWAYS, facts)?;
    if facts.slot.is_some() {
        check(&[objects::slot_kind, objects::slot_lost], facts)?;
    }
    if facts.table.is_some() {
        check(
            &[
                objects::table,
                objects::leaves,
                objects::times,
                objects::mark_columns,
                objects::dead_letters,
                objects::partition_key,
            ],
            facts,
        )?;
    }
    if facts.publication.is_some() && facts.table.is_some() {
        check(&[objects::rows, objects::published_columns], facts)?;
    }
    // A captured table is looked at before anything is created: a publication makes statements of the application fail
    // if a table has no replica identity.
    check(&[captured::tables, captured::publication], facts)
}

/// Checks what polling requires: a primary, the right schema, and a suitable table. `Some` if the obstacle may go away
/// without an operator.
///
/// # Errors
/// An operator must act.
pub fn check_polling(facts: &Facts) -> Result<Option<String>, Halt> {
    check(&[objects::version], facts)?;
    if let Some(message) = objects::not_now(facts) {
        return Ok(Some(message));
    }
    check(&[objects::schema], facts)?;
    check(POLLED, facts)?;
    Ok(None)
}

/// Checks the table of a pipeline that only polls, if the table exists: what `setup` requires.
///
/// # Errors
/// The table exists and cannot be polled.
pub fn check_polled_objects(facts: &Facts) -> Result<(), Halt> {
    check(&[objects::version], facts)?;
    if facts.table.is_some() { check(POLLED, facts) } else { Ok(()) }
}

/// Checks what a new slot for an existing cursor requires: the right cluster and schema, a suitable table and
/// publication, and, if a slot of the name exists, a slot of the right kind.
///
/// # Errors
/// An operator must act.
pub(super) fn check_repair(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        objects::version,
        same,
        ancestor,
        objects::wal_level,
        objects::schema,
        objects::slot_kind,
        objects::table,
        objects::leaves,
        objects::times,
        objects::rows,
        objects::published_columns,
        objects::mark_columns,
        objects::partition_key,
    ];
    check(RULES, facts)
}

/// Why the cursor cannot continue with this slot, if so: the slot was moved, created again, or comes from a backup.
pub(super) fn slot_moved(facts: &Facts) -> Option<Halt> {
    check(&[moved, promoted, restored], facts).err()
}

/// Whether the slot is beyond every position that this pipeline has confirmed, on the timeline of the cursor row.
pub(super) fn slot_is_beyond(facts: &Facts) -> bool {
    moved(facts).is_some()
}

/// Why a usable slot may not send everything that is unpublished: a fragment.
pub(super) fn publication_gap(facts: &Facts) -> Option<String> {
    if facts.names.captures() { captured::gap(facts) } else { objects::gap(facts) }
}

/// All problems of captured tables and of their publication.
pub(super) fn capture_problems(facts: &Facts) -> Vec<captured::CaptureProblem> {
    captured::problems(facts)
}

/// The halt for a publication of captured tables that was changed while it was streamed. `interval`: how often the
/// publication is checked.
pub fn capture_left_out(facts: &Facts, interval: Duration) -> Halt {
    captured::left_out(facts, interval)
}

/// The halt for a publication that was changed while it was streamed, and may have left out rows. `interval`: how often
/// the publication is checked.
pub fn left_out(facts: &Facts, concerned: AffectedRows, interval: Duration) -> Halt {
    objects::left_out(facts, concerned, interval)
}

/// Checks that the cursor row names the configured slot, and that its position is within the server's WAL.
pub(super) fn check_cursor(facts: &Facts) -> Result<(), Halt> {
    check(&[cursor_binding, ahead], facts)
}

/// Checks, while a stream runs, the objects that it reads through, without positions and without the holder of the
/// slot.
///
/// # Errors
/// The stream would leave out events from now on.
pub fn check_running(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        objects::table,
        objects::leaves,
        objects::times,
        captured::tables,
        objects::exists,
        captured::publication,
        objects::rows,
        objects::published_columns,
        objects::mark_columns,
        objects::partition_key,
    ];
    check(RULES, facts)
}

/// The halt for a slot that does not exist.
pub(super) fn slot_missing(facts: &Facts) -> Halt {
    objects::missing(facts)
}

/// The halt for a publication that does not exist.
pub(super) fn publication_missing(facts: &Facts) -> Halt {
    objects::missing_publication(facts)
}

/// The halt for a schema that the session must not use.
pub(super) fn schema_untrusted(facts: &Facts) -> Halt {
    objects::untrusted(facts)
}

/// The halt for a schema of another version.
pub(super) fn schema_unfit(facts: &Facts) -> Halt {
    objects::other_schema(facts)
}

/// Checks that the table exists and is suitable.
pub(super) fn check_table(facts: &Facts) -> Result<(), Halt> {
    check(&[objects::table], facts)
}

/// Checks what the status of published rows requires of the tables, if the columns exist.
pub(super) fn check_marks(facts: &Facts, streams: bool) -> Result<(), Halt> {
    check(&[objects::dead_letters], facts)?;
    if streams { check(&[objects::partition_key], facts) } else { Ok(()) }
}

/// Checks that the cursor row belongs to the slot of the configured name.
pub(super) fn check_binding(facts: &Facts) -> Result<(), Halt> {
    check(&[cursor_binding], facts)
}

/// Checks which history the row belongs to, and whether row, slot and WAL fit together: what the command `check`
/// requires beside the objects.
pub(super) fn check_positions(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[same, cursor_binding, ahead, moved, promoted, restored];
    check(RULES, facts)
}

fn check(rules: &[Rule], facts: &Facts) -> Result<(), Halt> {
    rules.iter().find_map(|rule| rule(facts)).map_or(Ok(()), Err)
}

impl Facts {
    /// The system identifier on which both connections agree.
    fn system_identifier(&self) -> &str {
        &self.server.system_identifier
    }

    /// The slot's position, if it has one.
    fn confirmed(&self) -> Option<Lsn> {
        self.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn)
    }

    /// A `postrider` command for this pipeline.
    fn command(&self, rest: &str) -> String {
        format!("postrider {rest} -p {}", self.names.key.pipeline)
    }

    /// The command `setup` for this pipeline, with options or with none (""). If the relay's role may not create what
    /// is missing, an administrator has to run it, because the relay's role is never to get the rights for that. A
    /// publication is created by a role with the rights of the tables' owners.
    fn setup(&self, options: &str) -> String {
        let creates = self.schema != SchemaState::Version(VERSION)
            || self.publication.is_none()
            || self.names.table.is_some() && self.table.is_none();
        let owned = self.table.as_ref().is_none_or(|table| table.owned)
            && self.captured.as_ref().is_none_or(CaptureFacts::owned);
        let publishes = self.publication.is_some() || owned;
        let mut line = self.command("setup");
        if !options.is_empty() {
            line.push(' ');
            line.push_str(options);
        }
        if creates && !(self.server.creates && publishes) {
            line.push_str(" --url ");
            line.push_str(&admin_url(&self.server.database));
        }
        line
    }

    /// As [`Self::command`], with options after the pipeline.
    fn command_with(&self, rest: &str, options: &str) -> String {
        format!("{} {options}", self.command(rest))
    }
}

/// A halt with its four parts.
fn halt(
    reason: HaltReason,
    message: impl Into<String>,
    meaning: impl Into<String>,
    hint: impl Into<String>,
) -> Halt {
    Halt { reason, message: message.into(), meaning: meaning.into(), hint: hint.into() }
}

// Rules about positions: whether slot, cursor and WAL fit together, and where a stream starts.
//
// The rules rest on two facts. The row is stored in the database that its position belongs to, so a row that can be
// read proves that this server's WAL holds everything below its watermark, on this timeline. And no position above the
// row's `flush_limit` is ever confirmed before the row is written with a higher one.

/// The cursor row belongs to this slot.
fn cursor_binding(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let slot = facts.slot.as_ref()?;
    (cursor.slot != slot.name).then(|| {
        halt(
            HaltReason::SlotMoved,
            format!(
                "the cursor of pipeline {:?} belongs to slot {:?}, the configuration names {:?}",
                cursor.key.pipeline, cursor.slot, slot.name
            ),
            format!(
                "events between {} and the start of the new slot could be left out",
                cursor.watermark
            ),
            format!(
                "set source.slot back to {:?}; or, to move to another slot, set it to a name that no slot has, and \
                 run {}: it publishes what no slot sends any more, and creates the new one",
                cursor.slot,
                if facts.names.auto { "postrider run".to_owned() } else { facts.command("repair") }
            ),
        )
    })
}

/// No position is ahead of the server's WAL.
fn ahead(facts: &Facts) -> Option<Halt> {
    let end = facts.server.wal_end;
    let cursor = facts.cursor.as_ref().map(|c| (c.watermark.offset(), "the cursor"));
    let slot = facts.confirmed().map(|at| (at, "the slot"));
    let (at, what) = [cursor, slot].into_iter().flatten().find(|(at, _)| *at > end)?;
    Some(halt(
        HaltReason::PositionAhead,
        format!(
            "{what} of pipeline {:?} is at {at}, the server's WAL ends at {end}",
            facts.names.key.pipeline
        ),
        "the server has lost WAL (restored, or a crash without fsync): events it commits below that position would \
         be skipped",
        format!(
            "find out which events were published that the database no longer has; then {}",
            begin_with_every_row(facts)
        ),
    ))
}

/// The slot is not ahead of what this pipeline ever confirmed.
///
/// After a promotion the row can be older than a synchronised slot; [`promoted`] checks that case.
fn moved(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let confirmed = facts.confirmed()?;
    let known = cursor.flush_limit.max(cursor.watermark.offset());
    (facts.server.timeline == cursor.timeline && confirmed > known).then(|| {
        halt(
            HaltReason::SlotMoved,
            format!(
                "slot {:?} is at {confirmed}, this pipeline confirmed up to {known} at most",
                facts.names.slot
            ),
            format!(
                "the slot was advanced, or dropped and created again, or read by another client: events between {} and \
                 {confirmed} may never have been published; {}",
                cursor.watermark,
                if facts.names.table.is_some() {
                    "their rows are still in the outbox unless the application deleted them"
                } else {
                    facts.names.unrepeatable()
                }
            ),
            format!("find out who moved it; then {}", repair(facts)),
        )
    })
}

/// The position to start from, after all rules have passed.
fn resume(facts: &Facts, slot: &SlotRow, confirmed: Lsn) -> Resume {
    let mut notes = all(facts, slot);
    let Some(row) = &facts.cursor else {
        notes.push(Note {
            name: "adopted",
            message: format!(
                "slot {:?} has no cursor row: continuing from its position",
                slot.name
            ),
        });
        let cursor = adopted(facts, confirmed);
        return Resume { start: cursor.watermark, skip_before: None, cursor, adopt: true, notes };
    };
    // The slot is ahead of the row's watermark only by idle advance or after a promotion, so none of our events lie
    // between the two. The slot is behind the watermark after every crash, because the server keeps its position in
    // memory.
    let start = Watermark::resumed(cursor_at(facts, row).max(confirmed));
    let same_stream =
        row.messages == facts.stream.messages && row.publication == facts.names.publication;
    let skip_before = row.partial.filter(|partial| same_stream && partial.commit >= start.offset());
    if row.partial.is_some() && !same_stream {
        notes.push(Note {
            name: "partial_dropped",
            message: "the stream's options changed in the middle of a transaction: its published part is published \
                      again"
                .to_owned(),
        });
    }
    // The confirmations that an old primary received say nothing about this server's slot.
    let promoted = facts.server.timeline > row.timeline;
    let limit = if promoted { start.offset() } else { row.flush_limit.max(start.offset()) };
    let cursor = Cursor {
        timeline: facts.server.timeline,
        publication: facts.names.publication.clone(),
        messages: facts.stream.messages,
        watermark: start,
        flush_limit: limit,
        partial: skip_before,
        ..row.clone()
    };
    Resume { start, skip_before, cursor, adopt: false, notes }
}

/// The cursor row for an existing slot that is adopted.
pub(crate) fn adopted(facts: &Facts, confirmed: Lsn) -> Cursor {
    Cursor {
        key: facts.names.key.clone(),
        system_identifier: facts.server.system_identifier.clone(),
        timeline: facts.server.timeline,
        slot: facts.names.slot.clone(),
        slot_created_lsn: confirmed,
        publication: facts.names.publication.clone(),
        messages: facts.stream.messages,
        watermark: Watermark::resumed(confirmed),
        flush_limit: confirmed,
        partial: None,
        owner_epoch: 0,
    }
}

/// The result of [`check_after_start`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AfterStart {
    /// Our connection holds the slot, or held it until the server ended the stream, and its position is where we
    /// expected it or lower.
    Held,
    /// Another session used the slot between the check and the start: repeat the whole handshake.
    Again {
        /// The difference: a lowercase fragment.
        message: String,
    },
}

/// Checks the slot again after the stream has started and no other session can move the slot. `pid` is the backend of
/// the replication connection.
///
/// The server moves a start position below the slot's position forward without an error, so only this check shows that
/// another process confirmed something in between; a new handshake then reads that process' cursor.
pub fn check_after_start(slot: Option<&SlotRow>, pid: u32, resume: &Resume) -> AfterStart {
    let again = |message: String| AfterStart::Again { message };
    let Some(slot) = slot else { return again("the slot was dropped since the start".to_owned()) };
    // If no process holds the slot, the server has already ended the stream, for instance with an error at its first
    // change. Everything before that is valid, and the stream itself reports how it ended.
    if slot.active_pid.is_some_and(|holder| holder != pid) {
        return again(format!("slot {:?} is not held by our connection", slot.name));
    }
    match slot.confirmed_flush_lsn {
        Some(confirmed) if confirmed <= resume.start.offset() => AfterStart::Held,
        Some(confirmed) => {
            again(format!("slot {:?} moved to {confirmed} before the start", slot.name))
        }
        None => again(format!("slot {:?} has no position", slot.name)),
    }
}

// Rules about histories: whether this server is the one on which the cursor was written, or a descendant of it.
//
// A timeline ends where a standby was promoted or the recovery of a backup ended. Without an operator the pipeline
// continues only on a promoted standby that has the synchronised slot; from PostgreSQL 17 on the server marks such
// slots (`synced`). Any other server with a higher timeline could be a restored backup, and a person has to decide
// where that can be recognised.

/// The first server version that synchronises slots to standbys, and marks the synchronised ones.
const SYNCED_SINCE: u32 = 170_000;

/// The cluster is the one that the cursor belongs to, and its timeline has not gone back.
fn same(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let found = facts.system_identifier();
    if cursor.system_identifier != found {
        return Some(halt(
            HaltReason::OtherHistory,
            format!(
                "the cursor of pipeline {:?} belongs to cluster {}, this is cluster {found}",
                cursor.key.pipeline, cursor.system_identifier
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
                facts.server.timeline, cursor.key.pipeline, cursor.timeline
            ),
            "this is most likely the old primary after a failover: what it commits now is not part of the database",
            "point source.url at the current primary, or name all hosts in it with target_session_attrs=read-write",
        )
    })
}

/// The server's timeline descends from the cursor's. A higher number alone proves little: a backup that is restored
/// beside a promoted standby gets the next free number.
fn ancestor(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let switches = &facts.identity.as_ref()?.switches;
    let other = rose(facts, cursor) && !switches.is_empty() && switch(facts, cursor).is_none();
    other.then(|| {
        halt(
            HaltReason::OtherHistory,
            format!(
                "the server is on timeline {}, which has no timeline {} behind it, where the cursor of pipeline {:?} \
                 was written",
                facts.server.timeline, cursor.timeline, cursor.key.pipeline
            ),
            "the same position is another event in another history: going on could skip events",
            format!(
                "if source.url is wrong, correct it. If this server is to be the source now: {}",
                begin_with_every_row(facts)
            ),
        )
    })
}

/// After a promotion: the slot is the one that existed before it.
///
/// The watermark is valid on the new timeline, because the row that holds it was written below the switch point. So a
/// slot at or below the watermark leaves nothing out. A slot above it must be a synchronised one: such a slot cannot
/// have been created after the switch, and its position is not above what the old primary had confirmed, and so below
/// the switch. Any other slot could have been created again by hand, with a gap before it.
fn promoted(facts: &Facts) -> Option<Halt> {
    let cursor = facts.cursor.as_ref()?;
    let slot = facts.slot.as_ref()?;
    let confirmed = slot.confirmed_flush_lsn?;
    if !rose(facts, cursor) || confirmed <= cursor.watermark.offset() {
        return None;
    }
    let switch = switch(facts, cursor).map(|switch| crate::wire::from_wire(switch.at));
    if slot.synced && switch.is_none_or(|at| confirmed <= at) {
        return None;
    }
    let (from, to, watermark) = (cursor.timeline, facts.server.timeline, cursor.watermark);
    let behind = switch.map_or_else(String::new, |at| format!(", and of the switch at {at}"));
    Some(halt(
        HaltReason::OtherHistory,
        format!(
            "the server went from timeline {from} to {to}, and slot {:?} is at {confirmed}, beyond the cursor at \
             {watermark}{}",
            slot.name,
            if slot.synced { behind } else { String::new() }
        ),
        format!(
            "it is not known whether the slot was carried over or created again after the failover; created again, it \
             leaves out events between {watermark} and {confirmed}"
        ),
        format!(
            "carried over (Patroni, pg_failover_slots, block storage): {}; created again: {}",
            take_as_it_is(facts, cursor, confirmed),
            repair(facts)
        ),
    ))
}

/// A server with a higher timeline is the promoted standby of a pair, not a restored backup.
///
/// Two facts identify a backup: its recovery had a target, or it has a failover slot that was not synchronised, which
/// means that the slot's files came with the data directory. Before PostgreSQL 17 every slot that is carried over looks
/// like that.
fn restored(facts: &Facts) -> Option<Halt> {
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
            "if source.url is wrong, correct it. If this server is the source now, continue from the slot's position: \
             {}; or, if its slot is not to be trusted, {}",
            take_as_it_is(facts, cursor, history_start(facts, cursor, confirmed)),
            repair(facts)
        ),
    ))
}

/// Where the cursor's events end in the server's history: `min(cursor, switch point)`.
///
/// `min` is a safeguard: a row that was written before the promotion should never be above the switch point.
fn cursor_at(facts: &Facts, cursor: &Cursor) -> Lsn {
    let at = cursor.watermark.offset();
    if !rose(facts, cursor) {
        return at;
    }
    switch(facts, cursor).map_or(at, |switch| at.min(crate::wire::from_wire(switch.at)))
}

fn history_start(facts: &Facts, cursor: &Cursor, confirmed: Lsn) -> Lsn {
    cursor_at(facts, cursor).max(confirmed)
}

fn rose(facts: &Facts, cursor: &Cursor) -> bool {
    facts.server.timeline > cursor.timeline
}

/// The end of the cursor's timeline.
fn switch<'a>(facts: &'a Facts, cursor: &Cursor) -> Option<&'a TimelineSwitch> {
    let switches = &facts.identity.as_ref()?.switches;
    switches.iter().find(|switch| switch.timeline == cursor.timeline)
}

/// The statement with which an operator declares the slot valid.
fn take_as_it_is(facts: &Facts, cursor: &Cursor, at: Lsn) -> String {
    let at = literal(&at.to_string());
    format!(
        "UPDATE postrider.cursor SET timeline = {}, watermark = {at}, flush_limit = {at}, partial_commit_lsn = NULL, \
         partial_ordinal = NULL WHERE pipeline = {}",
        facts.server.timeline,
        literal(&cursor.key.pipeline)
    )
}

/// The first release of each major version without a known bug that loses or wedges a slot (release notes up to 15.16,
/// 16.12, 17.8 and 18.2). Unit: `server_version_num`.
const PATCHED: &[(u32, u32)] = &[(15, 150_016), (16, 160_012), (17, 170_008), (18, 180_002)];

fn all(facts: &Facts, slot: &SlotRow) -> Vec<Note> {
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
                switch(facts, cursor)
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
    if let Some(gap) = gap_note(facts) {
        note("publication_changed", gap);
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        note(
            "unreserved",
            format!("slot {:?} is about to be lost: its WAL is being removed", slot.name),
        );
    }
    if facts.stream.failover && version >= 170_000 && !slot.failover {
        note(
            "no_failover",
            format!("slot {:?} is not a failover slot: a standby will not have it", slot.name),
        );
    }
    // The rules about captured tables leave nothing to note.
    if !facts.names.captures() {
        notes.extend(facts.publication.iter().flat_map(|p| of_publication(p, &facts.names)));
    }
    notes
}

/// The publication may have left out rows that are not known to be published, and what publishes them.
fn gap_note(facts: &Facts) -> Option<String> {
    if facts.names.captures() {
        return captured::gap(facts);
    }
    objects::gap(facts).map(|gap| {
        format!(
            "{gap}. They are not taken for published until they are published from the table, now or later: {}",
            objects::from_the_table(facts)
        )
    })
}

/// The server was promoted with a slot ahead of the row: everything in between was confirmed, and so published, or
/// parked in rows that this server never had.
fn unseen(facts: &Facts, slot: &SlotRow) -> Option<(Lsn, Lsn)> {
    let cursor = facts.cursor.as_ref().filter(|c| c.timeline < facts.server.timeline)?;
    let (confirmed, row) = (slot.confirmed_flush_lsn?, cursor.watermark.offset());
    // Up to the limit the slot advanced while the pipeline was idle.
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
