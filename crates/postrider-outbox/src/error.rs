//! Errors: of the specification (at the start), of the table (the pipeline halts), of one event (poison).
//!
//! No message has a value of a row other than the event's id.

use super::layout::Role;
use super::spec::TableName;
use postrider_core::event::Position;
use postrider_core::record::OwnedRecord;
use postrider_core::row::TableId;
use postrider_core::sink::NameRule;
use std::fmt;

/// An error of the specification. [`SpecError::key`] is the configuration key.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SpecError {
    /// A template can't be read.
    #[error("the template of {key} can't be read: {what}")]
    Template {
        /// The key.
        key: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A template has the name of a field that the outbox does not have.
    #[error("the template of {key} names \"{name}\"; it may name {}", known.join(", "))]
    UnknownField {
        /// The key.
        key: String,
        /// The name.
        name: String,
        /// The names that are allowed.
        known: Vec<String>,
    },
    /// The pattern is not a regular expression of the `regex` crate.
    #[error("the pattern of route.replace can't be used")]
    Pattern(#[source] regex::Error),
    /// The replacement can't be read.
    #[error("the replacement of route.replace can't be used: {0}")]
    Replacement(&'static str),
    /// A role that must have a column has none.
    #[error("outbox.columns.{0} must name a column")]
    NoColumn(Role),
    /// There is neither a table nor a message prefix, so there would be no events.
    #[error("outbox names neither a table nor a message_prefix")]
    NoSource,
    /// A name is empty, or has a zero byte, at which librdkafka ends the name.
    #[error("{0} must not be empty nor hold a zero byte")]
    Name(String),
    /// Two members of the envelope would have the same name.
    #[error(
        "{key} is placed in the envelope as {name:?}, and the envelope has a member of this name already"
    )]
    Member {
        /// The key.
        key: String,
        /// The name.
        name: String,
    },
    /// Two headers would have the same name.
    #[error("{key} would be a second header \"{name}\"")]
    HeaderTaken {
        /// The key.
        key: String,
        /// The name.
        name: String,
    },
    /// The partition has two sources.
    #[error("route.partition and an extra column are both the partition")]
    TwoPartitions,
}

impl SpecError {
    /// The configuration key, relative to the pipeline.
    pub fn key(&self) -> String {
        match self {
            Self::Template { key, .. }
            | Self::UnknownField { key, .. }
            | Self::HeaderTaken { key, .. }
            | Self::Name(key)
            | Self::Member { key, .. } => key.clone(),
            Self::Pattern(_) => "route.replace.pattern".to_owned(),
            Self::Replacement(_) => "route.replace.with".to_owned(),
            Self::NoColumn(role) => format!("outbox.columns.{role}"),
            Self::NoSource => "outbox.table".to_owned(),
            Self::TwoPartitions => "route.partition".to_owned(),
        }
    }
}

/// Why a row or message did not become a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// This event can't be published as it is; other events can.
    #[error(transparent)]
    Poison(Poison),
    /// The table does not match the layout, so every event would be wrong. The pipeline halts.
    #[error(transparent)]
    Unfit(Unfit),
    /// The source is inconsistent: a row belongs to a table that was not described, or has a different number of
    /// columns. The pipeline halts.
    #[error("could not read a row of relation {table}: {what}")]
    Inconsistent {
        /// The table.
        table: TableId,
        /// What is inconsistent.
        what: &'static str,
    },
}

impl MapError {
    /// The error of a row whose source has a value that is no text.
    pub fn not_text(table: TableId) -> Self {
        Self::Inconsistent { table, what: "a column is not in text format" }
    }
}

/// An event that can't be published as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {} at {position} can't be published: {problem}", Shown(event_id.as_deref()))]
pub struct Poison {
    /// The event's position.
    pub position: Position,
    /// The event's id as it is logged ([`postrider_core::event::shown_id`]); `None` if it is missing or not UTF-8.
    pub event_id: Option<String>,
    /// What is wrong with the event.
    pub problem: Problem,
    /// The readable parts of the event, to be stored in the parked table.
    pub partial: Box<PartialEvent>,
}

/// The readable parts of an event that can't be published: enough to keep the order of its aggregate, and to examine
/// the event later. `Debug` shows no values.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PartialEvent {
    /// The event's id, not shortened.
    pub event_id: Option<String>,
    /// The event's type.
    pub event_type: Option<String>,
    /// Type and id of the aggregate, if both are readable.
    pub aggregate: Option<(String, String)>,
    /// The record. A part that can't be made is empty (topic) or missing (key, headers); a payload that can't be
    /// converted is as in the row.
    pub record: OwnedRecord,
}

impl fmt::Debug for PartialEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialEvent").field("record", &self.record).finish_non_exhaustive()
    }
}

/// What is wrong with an event. Messages have names of columns, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required value is NULL.
    #[error("\"{0}\" is NULL")]
    Null(String),
    /// A text is not UTF-8.
    #[error("\"{0}\" is not UTF-8")]
    NotText(String),
    /// The topic is not one that the sink's broker allows.
    #[error("its topic, from {template}, is not a name {} allows", .names.owner)]
    TopicName {
        /// The template of the topic.
        template: String,
        /// The broker's rule.
        names: NameRule,
    },
    /// The headers are not a JSON object.
    #[error("\"{0}\" is not a JSON object")]
    NotAnObject(String),
    /// The name of a header has a zero byte, at which librdkafka ends the name.
    #[error("a name in \"{0}\" holds a zero byte")]
    HeaderName(String),
    /// The partition is not a number from 0 to 2147483647.
    #[error("its partition is not a number from 0 to 2147483647")]
    Partition,
    /// A `bytea` that is not in PostgreSQL's hex format.
    #[error("\"{0}\" is not bytea in hex format")]
    NotHex(String),
    /// `available_at` or `expires_at` is not a date or time.
    #[error("\"{0}\" is not a date or time")]
    Time(String),
    /// `available_at` or `expires_at` has no offset, and no zone is configured.
    #[error("\"{0}\" is a time without an offset, and source.time_zone is not set")]
    NoZone(String),
    /// The payload is NULL, which the configuration does not allow.
    #[error("the payload is NULL")]
    NullPayload,
    /// A logical message that is not a JSON object.
    #[error("the logical message is not a JSON object")]
    NotJson,
    /// The row is too large to be read from the table.
    #[error("the row is larger than {0} bytes, the most that is read from the table")]
    RowTooLarge(usize),
    /// A logical message lacks a required member.
    #[error("the logical message has no \"{0}\"")]
    NoMember(String),
}

impl Problem {
    /// A stable code, which the parked table has, and by which `postrider parked --error` selects.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Null(_) | Self::NoMember(_) => "null",
            Self::NotText(_) => "not_text",
            Self::TopicName { .. } => "topic_name",
            Self::NotAnObject(_) => "headers",
            Self::HeaderName(_) => "header_name",
            Self::Partition => "partition",
            Self::NotHex(_) => "not_hex",
            Self::Time(_) | Self::NoZone(_) => "time",
            Self::NullPayload => "null_payload",
            Self::NotJson => "not_json",
            Self::RowTooLarge(_) => "row_too_large",
        }
    }
}

/// Where the event of a [`Poison`] is kept: it decides how the event can be corrected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKept {
    /// In the server's log. Correcting the row in the table does not help, because the log has the row as it was
    /// inserted.
    Log,
    /// In the row of a table that is polled.
    Row,
    /// In a source of a program that embeds Postrider.
    Source,
}

impl EventKept {
    /// The hint for an event that must have other contents; `corrected`: how they differ, with a space before it.
    fn with(self, corrected: &str) -> String {
        match self {
            Self::Log => {
                let skip = skip_and(&format!("insert it again{corrected}"));
                format!("{skip}. Changing the row is not enough: WAL keeps it as it was inserted")
            }
            Self::Row => format!("write the row again{corrected} by an UPDATE, and start again"),
            Self::Source => format!(
                "let the source send the event again{corrected}, at the same place, and start again. If the source \
                 sends Change::Other at that place, the event is never published"
            ),
        }
    }
}

impl Poison {
    /// What to do about an event that is kept there.
    pub fn hint(&self, kept: EventKept) -> String {
        match &self.problem {
            Problem::TopicName { names, .. } => format!(
                "fix route.topic and start again; or {}",
                kept.with(&format!(" corrected (a topic has {})", names.words))
            ),
            Problem::Partition => format!(
                "leave route.partition empty and start again; or {}",
                kept.with(" with the number of one of the topic's partitions")
            ),
            Problem::NullPayload => format!(
                "set payload.null to \"tombstone\" or \"empty\" and start again; or {}",
                kept.with(" with a payload")
            ),
            Problem::NotHex(_) => {
                "the session's bytea_output is not hex, though Postrider sets it: find out what changes it, such as a \
                 connection pooler"
                    .to_owned()
            }
            Problem::Null(column) => {
                let hint = kept.with(&format!(" with a value in \"{column}\""));
                match kept {
                    EventKept::Log | EventKept::Row => {
                        format!("{hint}. SET NOT NULL on \"{column}\" refuses such rows from now on")
                    }
                    EventKept::Source => hint,
                }
            }
            Problem::NotText(column) => kept.with(&format!(" with UTF-8 in \"{column}\"")),
            Problem::NotAnObject(column) => kept.with(&format!(
                " with a JSON object such as {{\"source\": \"shop\"}} in \"{column}\""
            )),
            Problem::Time(column) => kept.with(&format!(
                " with a time such as 2026-03-01 04:00:00+00 in \"{column}\", or NULL"
            )),
            Problem::NoZone(_) => {
                "set source.time_zone to the zone of the sessions that insert, such as \"America/New_York\", and \
                 start again"
                    .to_owned()
            }
            Problem::HeaderName(column) => {
                kept.with(&format!(" with names without \\u0000 in \"{column}\""))
            }
            Problem::RowTooLarge(_) => {
                "store the payload elsewhere, UPDATE the row with a reference to it, and start again; or set \
                 parking.on_poison to \"block_key\": the row is parked, and other aggregates go on"
                    .to_owned()
            }
            Problem::NotJson | Problem::NoMember(_) => match kept {
                EventKept::Log | EventKept::Row => skip_and(&format!("emit it again as {MESSAGE}")),
                EventKept::Source => kept.with(&format!(" as {MESSAGE}")),
            },
        }
    }
}

/// What the content of a logical message is.
const MESSAGE: &str = "a JSON object with aggregate_type, aggregate_id, event_type and payload";

/// The hint to skip an event and to write a new one, with what is lost by it.
fn skip_and(write_again: &str) -> String {
    format!(
        "skip the event as docs/operations/skipping.md describes, and {write_again}. The skipped event is never \
         published, and the new one comes after all events that are committed before it"
    )
}

struct Shown<'a>(Option<&'a str>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "\"{}\"", id.escape_debug()),
            None => f.write_str("without id"),
        }
    }
}

/// The outbox table lacks what the layout needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Columns are missing.
    #[error("table \"{table}\" has no column {}", Quoted(columns))]
    Missing {
        /// The table.
        table: TableName,
        /// The columns, each with the key that says otherwise.
        columns: Vec<(String, String)>,
    },
    /// A column has a type that can't play its role.
    #[error("column \"{column}\" of table \"{table}\" {} that can't be {role}", OfType(is.as_deref()))]
    Type {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// The role.
        role: Role,
        /// The type as SQL writes it, where that is known.
        is: Option<String>,
    },
    /// A column without a zone decides when an event is published, and no zone is configured.
    #[error(
        "column \"{column}\" of table \"{table}\" has no time zone, and {role} decides when an event is published"
    )]
    NoZone {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// The role.
        role: Role,
    },
}

impl Unfit {
    /// The role that a column's type can't play.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Missing { .. } => None,
            Self::Type { role, .. } | Self::NoZone { role, .. } => Some(*role),
        }
    }

    /// What fixes it.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { columns, .. } => {
                let keys: Vec<&str> = columns.iter().map(|(_, key)| key.as_str()).collect();
                format!("add the column, or say which it is: {}", keys.join(", "))
            }
            Self::NoZone { table, column, .. } => format!(
                "set source.time_zone to the zone of the sessions that insert (SHOW TimeZone there), such as \
                 \"America/New_York\"; or ALTER TABLE {} ALTER COLUMN {} TYPE timestamptz USING {} AT TIME ZONE \
                 'America/New_York'",
                table,
                Quoted(&[(column.clone(), String::new())]),
                Quoted(&[(column.clone(), String::new())]),
            ),
            Self::Type { role: Role::Time, .. } => {
                "use timestamptz, timestamp, date or text, or set route.timestamp to \"commit\""
                    .to_owned()
            }
            Self::Type { role: role @ (Role::AvailableAt | Role::ExpiresAt), .. } => {
                format!("use timestamptz, or set outbox.columns.{role} to \"\"")
            }
            Self::Type { role, .. } => {
                format!("use jsonb, json or text, or set outbox.columns.{role} to another column")
            }
        }
    }
}

struct OfType<'a>(Option<&'a str>);

impl fmt::Display for OfType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(is) => write!(f, "is of type {is}, a type"),
            None => f.write_str("has a type"),
        }
    }
}

struct Quoted<'a>(&'a [(String, String)]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (column, _)) in self.0.iter().enumerate() {
            write!(f, "{}\"{column}\"", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
