//! What the configuration says about an outbox, as plain data. `Mapper::new` checks it.

use super::layout::{Layout, Role};
use postrider_core::zone::Zone;
use std::fmt;

/// A table's qualified name, as in the catalog: unquoted, case as stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The table.
    pub name: String,
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// What an UPDATE of the outbox table leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnUpdate {
    /// It is passed over.
    Skip,
    /// The pipeline halts in front of it.
    Halt,
}

/// Where the events are and what a record is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxSpec {
    /// The column preset.
    pub layout: Layout,
    /// The outbox table; `None` takes logical messages alone.
    pub table: Option<TableName>,
    /// Columns by hand, over the layout's; an empty name says that the table has no such column.
    pub columns: Vec<(Role, String)>,
    /// Further columns, in the order in which they are placed; a later line for the same column replaces an earlier.
    pub extra: Vec<Extra>,
    /// Also take transactional logical messages of exactly this prefix.
    pub message_prefix: Option<String>,
    /// What an UPDATE of the table leads to.
    pub on_update: OnUpdate,
    /// Template of the topic.
    pub topic: String,
    /// Template of the key; empty for a null key.
    pub key: String,
    /// Template of the partition's number; empty lets the broker's partitioner choose by key.
    pub partition: String,
    /// Rewrites the topic.
    pub replace: Option<Replace>,
    /// Where a record's timestamp comes from.
    pub timestamp: TimestampSource,
    /// The zone of times that are written without one; `None` where none is configured.
    pub zone: Option<Zone>,
    /// Further headers: name and template.
    pub headers: Vec<(String, String)>,
    /// Which of the standard headers are sent.
    pub standard_headers: StandardHeaders,
    /// What a NULL payload becomes.
    pub null_payload: NullPayload,
    /// A payload of nothing but white space is a null value, as Debezium's `route.tombstone.on.empty.payload` has it.
    pub blank_is_tombstone: bool,
    /// The payload's name inside an object that becomes the value; `None`: the value is the payload alone, unless an
    /// extra column is placed in the envelope, and then the name is `payload`.
    pub envelope: Option<String>,
    /// Inside an envelope, JSON columns stand as JSON, and other types as PostgreSQL renders them; off, all are as
    /// Debezium's JSON converter writes them: JSON a string of it, times numbers, decimals base64.
    pub envelope_json: bool,
    /// Inside an envelope, a payload that is the text of a JSON object or array stands as JSON, whatever its column.
    pub expand_json: bool,
}

/// A column beyond the layout's roles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extra {
    /// The column.
    pub column: String,
    /// Where it goes.
    pub placement: Placement,
    /// Whether the table may lack it: then nothing is placed. Debezium's `table.field.additional.missing=ignore`.
    pub may_lack: bool,
}

/// Where an extra column goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Into a header of this name.
    Header(String),
    /// Into the envelope, under this name.
    Envelope(String),
    /// It is the partition's number.
    Partition,
    /// Nowhere, but templates may name it.
    Ignore,
}

/// A regular expression over the topic. It must match the whole of it.
///
/// With layout `debezium` it is applied to what the topic's template names, without the template's own text, and a
/// value that it does not match is the topic as it is: `outbox.event.` does not return.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replace {
    /// The pattern, in the syntax of the `regex` crate: that of Java without look-around and back-references.
    pub pattern: String,
    /// The replacement, in Java's syntax: `$1`, `${name}`, `\$`.
    pub with: String,
}

/// Where a record's timestamp comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampSource {
    /// The layout's time column, else the commit.
    Event,
    /// The commit.
    Commit,
    /// The broker, on arrival.
    Broker,
}

/// Which of the standard headers are sent; `id` always is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StandardHeaders {
    /// `type`: the event type.
    pub event_type: bool,
    /// `position`: commit LSN and ordinal.
    pub position: bool,
}

/// What a NULL payload becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NullPayload {
    /// A null value, which a compacted topic reads as a deletion.
    Tombstone,
    /// A value of no bytes; `null` inside an envelope.
    Empty,
    /// A poison event.
    Park,
}

impl OutboxSpec {
    /// The layout's defaults: its table in schema `public`, its columns, route and headers.
    pub fn for_layout(layout: Layout) -> Self {
        let preset = layout.preset();
        let ours = layout != Layout::Debezium;
        let header = |(column, header): &(&str, &str)| Extra {
            column: (*column).to_owned(),
            placement: Placement::Header((*header).to_owned()),
            may_lack: false,
        };
        Self {
            layout,
            table: Some(TableName { schema: "public".into(), name: layout.table().into() }),
            columns: Vec::new(),
            extra: preset.extra.iter().map(header).collect(),
            message_prefix: None,
            on_update: OnUpdate::Skip,
            topic: preset.topic.to_owned(),
            key: preset.key.to_owned(),
            partition: String::new(),
            replace: None,
            timestamp: TimestampSource::Event,
            zone: None,
            headers: Vec::new(),
            standard_headers: StandardHeaders { event_type: ours, position: ours },
            null_payload: NullPayload::Tombstone,
            blank_is_tombstone: false,
            envelope: None,
            envelope_json: ours,
            expand_json: false,
        }
    }

    /// The column that plays `role`, by hand or by layout; `None` where there is none.
    pub fn column(&self, role: Role) -> Option<&str> {
        let by_hand = self.columns.iter().rev().find(|(of, _)| *of == role);
        let column = by_hand.map(|(_, column)| column.as_str()).or(self.layout.column(role));
        column.filter(|column| !column.is_empty())
    }

    /// Every role that has a column, with it.
    pub fn roles(&self) -> impl Iterator<Item = (Role, &str)> {
        Role::ALL.iter().filter_map(|role| Some((*role, self.column(*role)?)))
    }

    /// Whether the table may lack the column of `role`, unless it is named by hand: Debezium's event type, which its
    /// router never reads, and what no record is made of.
    pub fn may_lack(&self, role: Role) -> bool {
        let unread = role == Role::EventType
            && self.layout == Layout::Debezium
            && !self.standard_headers.event_type;
        (unread || matches!(role, Role::AvailableAt | Role::ExpiresAt))
            && !self.columns.iter().any(|(of, _)| *of == role)
    }

    /// The columns that the table must have, each once.
    pub fn required_columns(&self) -> Vec<&str> {
        let roles = self.roles().filter(|(role, _)| !self.may_lack(*role)).map(|(_, name)| name);
        let extra = self.extras().filter(|extra| {
            !extra.may_lack
                && (extra.placement != Placement::Ignore || self.names_in_templates(&extra.column))
        });
        let mut columns = Vec::new();
        for column in roles.chain(extra.map(|extra| extra.column.as_str())) {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        columns
    }

    /// The extra columns, each once: the last line for a column counts, at the place of the first.
    pub(super) fn extras(&self) -> impl Iterator<Item = &Extra> {
        let first = |at: usize, extra: &Extra| {
            !self.extra.iter().take(at).any(|e| e.column == extra.column)
        };
        self.extra.iter().enumerate().filter(move |(at, extra)| first(*at, extra)).map(
            |(_, extra)| {
                self.extra.iter().rev().find(|last| last.column == extra.column).unwrap_or(extra)
            },
        )
    }

    fn names_in_templates(&self, column: &str) -> bool {
        let templates = [&self.topic, &self.key, &self.partition];
        templates
            .into_iter()
            .chain(self.headers.iter().map(|(_, template)| template))
            .any(|template| super::route::names(template).any(|name| name == column))
    }
}
