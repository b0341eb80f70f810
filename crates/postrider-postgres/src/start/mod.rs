//! Whether a stream may start, and where: the one decision of every connect.
//!
//! Pure: [`decide`] takes what the control connection read and answers. It asks nothing, waits for nothing and changes
//! nothing; the driver does what it says. A position ahead of what we hold is a halt, never a warning.
//!
//! The rules come in an order: who the server is, then what stands on it, then who holds the slot, then positions.
//! The first that fails speaks, so that a wrong host is not told as a missing slot.

mod objects;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use objects::begin_with_every_row;
pub(super) use objects::{VERSION_MIN, insert_again, log_leaf, run_without_slot, via_root};

use crate::catalog::{Concerned, PublicationFacts, ServerFacts, Since, SlotRow, TableFacts};
use crate::names::{Names, admin_url, literal};
use crate::ownership::Ownership;
use crate::poll::PollSpec;
use crate::schema::{SchemaState, VERSION};
use crate::store::cursor::Cursor;
use crate::stream::SystemIdentity;
use crate::times::TimesFacts;
use objects::repair;
use pg_replication::lsn::{Lsn, Watermark};
use pg_replication::stream::TimelineSwitch;
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::Position;
use std::time::Duration;

/// What `IDENTIFY_SYSTEM` said on the replication connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's identity.
    pub system_identifier: String,
    /// The current timeline.
    pub timeline: u32,
    /// The timelines before it, oldest first; empty where there is none or nothing is known of them.
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

/// Everything a decision is made of. [`super::control::facts`] reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What the configuration names.
    pub names: Names,
    /// The server at the other end of the replication connection; `None` without one (`setup`, `check`).
    pub identity: Option<Identity>,
    /// The server at the other end of the control connection.
    pub server: ServerFacts,
    /// Postrider's schema.
    pub schema: SchemaState,
    /// Why the session keeps away from that schema, where it does ([`super::ownership`]).
    pub ownership: Option<Ownership>,
    /// The slot.
    pub slot: Option<SlotRow>,
    /// The cursor row; not read where the schema is newer than ours.
    pub cursor: Option<Cursor>,
    /// The publication.
    pub publication: Option<PublicationFacts>,
    /// What was created or changed after what is known to be published ([`super::catalog::changed_since`]).
    pub since: Since,
    /// The outbox table.
    pub table: Option<TableFacts>,
    /// The table's columns that hold times, and their zone.
    pub times: TimesFacts,
    /// The columns the layout can't do without.
    pub columns: Vec<String>,
    /// Whether logical messages are asked for.
    pub messages: bool,
    /// Whether a failover slot is wanted where the server has them.
    pub failover: bool,
    /// How published rows are marked, where they are.
    pub marks: Option<MarkFacts>,
}

/// How rows are marked, and where those go that have failed for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkFacts {
    /// The columns, by name.
    pub spec: PollSpec,
    /// The columns of the table of dead letters; `None` where there is no such table, or it is not written into.
    pub dlq: Option<Vec<String>>,
}

/// What to do now. The fourth answer is a [`Halt`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Start the stream.
    Resume(Box<Resume>),
    /// Another process holds the slot: try again when it is free.
    StandBy {
        /// Its backend.
        pid: u32,
    },
    /// Not now, but maybe later without anybody's help: try the whole handshake again, with back-off.
    Wait {
        /// What is in the way: a lowercase fragment.
        message: String,
    },
}

/// Where to start and what to know about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The position to ask for.
    pub start: Watermark,
    /// Changes of this transaction below this ordinal are resolved: pass them over.
    pub skip_before: Option<Position>,
    /// The row as it stands, bound to this server's timeline and this stream's options: what later writes go on from.
    pub cursor: Cursor,
    /// There is no row yet: make it ([`super::cursor::create`]) before the stream starts.
    pub adopt: bool,
    /// Things an operator should hear of once.
    pub notes: Vec<Note>,
}

/// Something that is not wrong, but should be known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// A stable name.
    pub name: &'static str,
    /// What it is, in a sentence without full stop.
    pub message: String,
}

/// A rule: `None` when it holds.
type Rule = fn(&Facts) -> Option<Halt>;

/// What polling asks of the table. A mark that moves a row to another partition does no harm there: no stream brings
/// the row again.
const POLLED: &[Rule] = &[
    objects::table,
    objects::polled_leaves,
    objects::times,
    objects::mark_columns,
    objects::dead_letters,
];

/// Decides.
///
/// # Errors
/// Going on could lose or reorder events, or would never work: a human must act.
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
        objects::exists,
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

/// Whether the publication has the table, whole.
///
/// # Errors
/// Why not: rows that are inserted meanwhile come by no stream.
pub fn check_publication(facts: &Facts) -> Result<(), Halt> {
    check(&[objects::exists, objects::rows, objects::published_columns], facts)
}

/// The objects of the pipeline alone, without positions and without who holds the slot: what `setup` asks of objects
/// that stand already. Objects that don't exist are not looked at.
///
/// # Errors
/// An object of the configured name exists and can't be used.
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
    Ok(())
}

/// What polling asks: a primary, our schema, and a table that is fit. `Some` where it is to be waited for.
///
/// # Errors
/// A human must act.
pub fn check_polling(facts: &Facts) -> Result<Option<String>, Halt> {
    check(&[objects::version], facts)?;
    if let Some(message) = objects::not_now(facts) {
        return Ok(Some(message));
    }
    check(&[objects::schema], facts)?;
    check(POLLED, facts)?;
    Ok(None)
}

/// The table of a pipeline that polls alone, where it exists: what `setup` asks.
///
/// # Errors
/// The table exists and can't be polled.
pub fn check_polled_objects(facts: &Facts) -> Result<(), Halt> {
    check(&[objects::version], facts)?;
    if facts.table.is_some() { check(POLLED, facts) } else { Ok(()) }
}

/// What a new slot behind an old cursor asks: our cluster, our schema, a table and a publication that are fit, and
/// where a slot of the name stands, one that is of our kind.
///
/// # Errors
/// A human must act.
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

/// Why the slot is not the one the cursor goes on from, where it is not: moved, made again, or a backup's.
pub(super) fn slot_moved(facts: &Facts) -> Option<Halt> {
    check(&[moved, promoted, restored], facts).err()
}

/// Why the slot may not bring everything that is unpublished, though it can be used: a fragment.
pub(super) fn publication_gap(facts: &Facts) -> Option<String> {
    objects::gap(facts)
}

/// The halt of a publication that was changed while it was streamed, and may have left out rows. `interval`: how often
/// it is looked at.
pub fn left_out(facts: &Facts, concerned: Concerned, interval: Duration) -> Halt {
    objects::left_out(facts, concerned, interval)
}

/// The cursor row names the configured slot, and stands within the server's WAL.
pub(super) fn check_cursor(facts: &Facts) -> Result<(), Halt> {
    check(&[cursor_binding, ahead], facts)
}

/// What may be asked while a stream runs: the objects it reads through, without positions and without who holds the
/// slot.
///
/// # Errors
/// The stream would pass over events from here on.
pub fn check_running(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        objects::table,
        objects::leaves,
        objects::times,
        objects::exists,
        objects::rows,
        objects::published_columns,
        objects::mark_columns,
        objects::partition_key,
    ];
    check(RULES, facts)
}

/// The halt of a slot that is not there.
pub(super) fn slot_missing(facts: &Facts) -> Halt {
    objects::missing(facts)
}

/// The halt of a publication that is not there.
pub(super) fn publication_missing(facts: &Facts) -> Halt {
    objects::missing_publication(facts)
}

/// The halt of a schema that the session keeps away from.
pub(super) fn schema_untrusted(facts: &Facts) -> Halt {
    objects::untrusted(facts)
}

/// The halt of a schema that is not ours.
pub(super) fn schema_unfit(facts: &Facts) -> Halt {
    objects::other_schema(facts)
}

/// The table exists and is fit.
pub(super) fn check_table(facts: &Facts) -> Result<(), Halt> {
    check(&[objects::table], facts)
}

/// What the marks of published rows ask of the tables, where the columns exist.
pub(super) fn check_marks(facts: &Facts, streams: bool) -> Result<(), Halt> {
    check(&[objects::dead_letters], facts)?;
    if streams { check(&[objects::partition_key], facts) } else { Ok(()) }
}

/// The cursor row belongs to the slot of the configured name.
pub(super) fn check_binding(facts: &Facts) -> Result<(), Halt> {
    check(&[cursor_binding], facts)
}

/// Whose history the row belongs to, and whether row, slot and WAL fit together: what `check` asks beside the objects.
pub(super) fn check_positions(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[same, cursor_binding, ahead, moved, promoted, restored];
    check(RULES, facts)
}

fn check(rules: &[Rule], facts: &Facts) -> Result<(), Halt> {
    rules.iter().find_map(|rule| rule(facts)).map_or(Ok(()), Err)
}

impl Facts {
    /// The system identifier both connections agree on.
    fn system_identifier(&self) -> &str {
        &self.server.system_identifier
    }

    /// The slot's position, where it has one.
    fn confirmed(&self) -> Option<Lsn> {
        self.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn)
    }

    /// A command of ours for this pipeline.
    fn command(&self, rest: &str) -> String {
        format!("postrider {rest} -p {}", self.names.pipeline)
    }

    /// `setup` for this pipeline, with these options, or none (""). Where the relay's role may not create what is
    /// missing, it is an administrator's to run: the role is never to be given the rights for it.
    fn setup(&self, options: &str) -> String {
        let creates = self.schema != SchemaState::Version(VERSION)
            || self.publication.is_none()
            || self.table.is_none();
        let mut line = self.command("setup");
        if !options.is_empty() {
            line.push(' ');
            line.push_str(options);
        }
        if creates && !self.server.creates {
            line.push_str(" --url ");
            line.push_str(&admin_url(&self.server.database));
        }
        line
    }

    /// The same with options behind the pipeline.
    fn command_with(&self, rest: &str, options: &str) -> String {
        format!("{} {options}", self.command(rest))
    }
}

/// A halt in the four parts that every reason has.
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
// What they rest on: the row lives in the database it speaks of, so a row that can be read proves that this server's
// WAL holds everything below its watermark, on this timeline; and no position above the row's `flush_limit` is ever
// confirmed before the row says so.

/// The row is this slot's.
fn cursor_binding(facts: &Facts) -> Option<Halt> {
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
fn ahead(facts: &Facts) -> Option<Halt> {
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
/// After a promotion the row can be older than a slot that was synchronised: [`promoted`] judges that.
fn moved(facts: &Facts) -> Option<Halt> {
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
fn resume(facts: &Facts, slot: &SlotRow, confirmed: Lsn) -> Resume {
    let mut notes = all(facts, slot);
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
    let start = Watermark::resumed(cursor_at(facts, row).max(confirmed));
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

// Rules about histories: whether this server is the one the cursor was written on, or has it behind it.
//
// A timeline ends where a standby was promoted or a backup's recovery ended. What goes on by itself is a promoted
// standby to which the slot was carried over: the server says so of its slots (`synced`), from PostgreSQL 17 on.
// Whatever else has a higher timeline could be a restored backup, and is a person's to judge where that can be told.

/// The first server that carries slots over by itself, and says which ones came so.
const SYNCED_SINCE: u32 = 170_000;

/// The cluster is the cursor's, and its timeline has not gone back.
fn same(facts: &Facts) -> Option<Halt> {
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
fn promoted(facts: &Facts) -> Option<Halt> {
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
fn cursor_at(facts: &Facts, cursor: &Cursor) -> Lsn {
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
fn switch<'a>(facts: &'a Facts, cursor: &Cursor) -> Option<&'a TimelineSwitch> {
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

// What is not wrong, but should be known: said once at each start.

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
    if let Some(gap) = objects::gap(facts) {
        note(
            "publication_changed",
            format!(
                "{gap}. They are not taken for published until they are published from the table, now or later: {}",
                objects::from_the_table(facts)
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
