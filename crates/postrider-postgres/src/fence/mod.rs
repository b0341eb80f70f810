//! Whether a stream may start, and where: the one decision of every connect.
//!
//! Pure: [`decide`] takes what the control connection read and answers. It asks nothing, waits for nothing and changes
//! nothing; the driver does what it says. A position ahead of what we hold is a halt, never a warning.
//!
//! The rules come in an order: who the server is, then what stands on it, then who holds the slot, then positions.
//! The first that fails speaks, so that a wrong host is not told as a missing slot.

mod history;
mod marks;
mod note;
mod object;
mod position;
mod publication;
#[cfg(test)]
pub(super) mod tests;

pub(super) use object::{VERSION_MIN, log_leaf, run_without_slot};
pub use position::{AfterStart, check_after_start};
pub(super) use publication::insert_again;
pub(super) use publication::via_root;

use super::cursor::Cursor;
use super::names::{Names, admin_url};
use super::ownership::Ownership;
use super::poll::PollSpec;
use super::publication::{Concerned, PublicationFacts, Since};
use super::schema::{SchemaState, VERSION};
use super::server::ServerFacts;
use super::slot::SlotRow;
use super::table::TableFacts;
use super::times::TimesFacts;
use super::wal::{Switch, SystemIdentity};
use pg_replication::lsn::{Lsn, Watermark};
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
    pub switches: Vec<Switch>,
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
    /// What was created or changed after what is known to be published ([`super::publication::changed_since`]).
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
const POLLED: &[Rule] =
    &[object::table, object::polled_leaves, object::times, marks::columns, marks::dead_letters];

/// Decides.
///
/// # Errors
/// Going on could lose or reorder events, or would never work: a human must act.
pub fn decide(facts: &Facts) -> Result<Decision, Halt> {
    const IDENTITY: &[Rule] = &[object::version, history::same, history::ancestor];
    const OBJECTS: &[Rule] = &[
        object::wal_level,
        object::schema,
        object::slot_missing,
        object::slot_kind,
        object::slot_lost,
        object::table,
        object::leaves,
        object::times,
        publication::exists,
        publication::rows,
        publication::columns,
        marks::columns,
        marks::dead_letters,
        marks::partition_key,
    ];
    const POSITIONS: &[Rule] = &[
        position::cursor_binding,
        position::ahead,
        position::moved,
        history::promoted,
        history::restored,
    ];

    check(IDENTITY, facts)?;
    if let Some(message) = object::not_now(facts) {
        return Ok(Decision::Wait { message });
    }
    check(OBJECTS, facts)?;
    let Some(slot) = &facts.slot else { return Err(object::missing(facts)) };
    if let Some(pid) = slot.active_pid {
        return Ok(Decision::StandBy { pid });
    }
    let Some(confirmed) = slot.confirmed_flush_lsn else {
        let message = format!("slot {:?} is still being created", slot.name);
        return Ok(Decision::Wait { message });
    };
    check(POSITIONS, facts)?;
    Ok(Decision::Resume(Box::new(position::resume(facts, slot, confirmed))))
}

/// Whether the publication has the table, whole.
///
/// # Errors
/// Why not: rows that are inserted meanwhile come by no stream.
pub fn check_publication(facts: &Facts) -> Result<(), Halt> {
    check(&[publication::exists, publication::rows, publication::columns], facts)
}

/// The objects of the pipeline alone, without positions and without who holds the slot: what `setup` asks of objects
/// that stand already. Objects that don't exist are not looked at.
///
/// # Errors
/// An object of the configured name exists and can't be used.
pub fn check_objects(facts: &Facts) -> Result<(), Halt> {
    const ALWAYS: &[Rule] = &[object::version, history::same, object::wal_level];
    check(ALWAYS, facts)?;
    if facts.slot.is_some() {
        check(&[object::slot_kind, object::slot_lost], facts)?;
    }
    if facts.table.is_some() {
        check(
            &[
                object::table,
                object::leaves,
                object::times,
                marks::columns,
                marks::dead_letters,
                marks::partition_key,
            ],
            facts,
        )?;
    }
    if facts.publication.is_some() && facts.table.is_some() {
        check(&[publication::rows, publication::columns], facts)?;
    }
    Ok(())
}

/// What polling asks: a primary, our schema, and a table that is fit. `Some` where it is to be waited for.
///
/// # Errors
/// A human must act.
pub fn check_polling(facts: &Facts) -> Result<Option<String>, Halt> {
    check(&[object::version], facts)?;
    if let Some(message) = object::not_now(facts) {
        return Ok(Some(message));
    }
    check(&[object::schema], facts)?;
    check(POLLED, facts)?;
    Ok(None)
}

/// The table of a pipeline that polls alone, where it exists: what `setup` asks.
///
/// # Errors
/// The table exists and can't be polled.
pub fn check_polled_objects(facts: &Facts) -> Result<(), Halt> {
    check(&[object::version], facts)?;
    if facts.table.is_some() { check(POLLED, facts) } else { Ok(()) }
}

/// What a new slot behind an old cursor asks: our cluster, our schema, a table and a publication that are fit, and
/// where a slot of the name stands, one that is of our kind.
///
/// # Errors
/// A human must act.
pub(super) fn check_repair(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        object::version,
        history::same,
        history::ancestor,
        object::wal_level,
        object::schema,
        object::slot_kind,
        object::table,
        object::leaves,
        object::times,
        publication::rows,
        publication::columns,
        marks::columns,
        marks::partition_key,
    ];
    check(RULES, facts)
}

/// Why the slot is not the one the cursor goes on from, where it is not: moved, made again, or a backup's.
pub(super) fn slot_moved(facts: &Facts) -> Option<Halt> {
    check(&[position::moved, history::promoted, history::restored], facts).err()
}

/// Why the slot may not bring everything that is unpublished, though it can be used: a fragment.
pub(super) fn publication_gap(facts: &Facts) -> Option<String> {
    publication::gap(facts)
}

/// The halt of a publication that was changed while it was streamed, and may have left out rows. `interval`: how often
/// it is looked at.
pub fn left_out(facts: &Facts, concerned: Concerned, interval: Duration) -> Halt {
    publication::left_out(facts, concerned, interval)
}

/// The lines with which a pipeline begins over, and publishes every row of the table.
pub(super) fn begin_with_every_row(facts: &Facts) -> String {
    object::begin_with_every_row(facts)
}

/// The cursor row names the configured slot, and stands within the server's WAL.
pub(super) fn check_cursor(facts: &Facts) -> Result<(), Halt> {
    check(&[position::cursor_binding, position::ahead], facts)
}

/// What may be asked while a stream runs: the objects it reads through, without positions and without who holds the
/// slot.
///
/// # Errors
/// The stream would pass over events from here on.
pub fn check_running(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        object::table,
        object::leaves,
        object::times,
        publication::exists,
        publication::rows,
        publication::columns,
        marks::columns,
        marks::partition_key,
    ];
    check(RULES, facts)
}

/// The halt of a slot that is not there.
pub(super) fn slot_missing(facts: &Facts) -> Halt {
    object::missing(facts)
}

/// The halt of a publication that is not there.
pub(super) fn publication_missing(facts: &Facts) -> Halt {
    publication::missing(facts)
}

/// The halt of a schema that the session keeps away from.
pub(super) fn schema_untrusted(facts: &Facts) -> Halt {
    object::untrusted(facts)
}

/// The halt of a schema that is not ours.
pub(super) fn schema_unfit(facts: &Facts) -> Halt {
    object::other_schema(facts)
}

/// The table exists and is fit.
pub(super) fn check_table(facts: &Facts) -> Result<(), Halt> {
    check(&[object::table], facts)
}

/// What the marks of published rows ask of the tables, where the columns exist.
pub(super) fn check_marks(facts: &Facts, streams: bool) -> Result<(), Halt> {
    check(&[marks::dead_letters], facts)?;
    if streams { check(&[marks::partition_key], facts) } else { Ok(()) }
}

/// The cursor row belongs to the slot of the configured name.
pub(super) fn check_binding(facts: &Facts) -> Result<(), Halt> {
    check(&[position::cursor_binding], facts)
}

/// Whose history the row belongs to, and whether row, slot and WAL fit together: what `check` asks beside the objects.
pub(super) fn check_positions(facts: &Facts) -> Result<(), Halt> {
    const RULES: &[Rule] = &[
        history::same,
        position::cursor_binding,
        position::ahead,
        position::moved,
        history::promoted,
        history::restored,
    ];
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
