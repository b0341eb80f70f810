//! The specification of an outbox: the part of the configuration that concerns it. `Mapper::new` checks it.

use super::layout::{Layout, Role};
use postrider_core::delta;
use postrider_core::row_state::NamedRowState;
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

/// What to do with an UPDATE of the outbox table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnUpdate {
    /// The UPDATE is ignored.
    Skip,
    /// The pipeline halts before it.
    Halt,
}

/// The source of events, and how a record is made of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxSpec {
    /// The column preset.
    pub layout: Layout,
    /// The outbox table; `None` if events are only logical messages.
    pub table: Option<TableName>,
    /// Columns that replace those of the layout. An empty name means that the table has no such column.
    pub columns: Vec<(Role, String)>,
    /// Further columns, in the order of their placement. A later entry of a column replaces an earlier one.
    pub extra: Vec<Extra>,
    /// Transactional logical messages with this prefix are events too.
    pub message_prefix: Option<String>,
    /// What to do with an UPDATE of the table.
    pub on_update: OnUpdate,
    /// Template of the topic.
    pub topic: String,
    /// Template of the key; empty for a null key.
    pub key: String,
    /// Template of the partition number. If it is empty, the sink's partitioner chooses by key.
    pub partition: String,
    /// A replacement in the topic.
    pub replace: Option<Replace>,
    /// The source of a record's timestamp.
    pub timestamp: TimestampSource,
    /// The zone of times without an offset; `None` if none is configured.
    pub zone: Option<Zone>,
    /// Further headers: name and template.
    pub headers: Vec<(String, String)>,
    /// Which of the standard headers are sent.
    pub standard_headers: StandardHeaders,
    /// The value of header `source`, which tells consumers whose events these are: the name of the pipeline. If it is
    /// empty, the header is not sent.
    pub source: String,
    /// What a NULL payload becomes.
    pub null_payload: NullPayload,
    /// A payload of only white space is a null value, as with Debezium's `route.tombstone.on.empty.payload`.
    pub blank_is_tombstone: bool,
    /// The payload's name in the envelope, an object that becomes the value. If `None`, the value is the payload alone,
    /// unless an extra column is placed in the envelope: then the name is `payload`.
    pub envelope: Option<String>,
    /// If `true`, JSON columns are JSON in the envelope, and other types are as PostgreSQL renders them. If `false`,
    /// all are as Debezium's JSON converter writes them: JSON as a string, times as numbers, decimals in base64.
    pub envelope_json: bool,
    /// In an envelope, a payload that is the text of a JSON object or array is JSON, whatever its column's type.
    pub expand_json: bool,
}

/// A column beyond the layout's roles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extra {
    /// The column.
    pub column: String,
    /// Where the column is placed.
    pub placement: Placement,
    /// Whether the table may lack the column; then nothing is placed. Debezium's
    /// `table.field.additional.missing=ignore`.
    pub may_lack: bool,
}

/// Where an extra column is placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In a header of this name.
    Header(String),
    /// In the envelope, under this name.
    Envelope(String),
    /// As the partition number.
    Partition,
    /// Nowhere. Templates may have its name.
    Ignore,
}

/// A regular expression that must match the whole topic, and its replacement.
///
/// With layout `debezium` the expression is applied to the fields of the topic's template, without the template's fixed
/// text. A value that does not match is the topic, also without the fixed text (`outbox.event.`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replace {
    /// The pattern, in the syntax of the `regex` crate: that of Java without look-around and back-references.
    pub pattern: String,
    /// The replacement, in Java's syntax: `$1`, `${name}`, `\$`.
    pub with: String,
}

/// The source of a record's timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampSource {
    /// The layout's time column, or the commit if there is none.
    Event,
    /// The time of the commit.
    Commit,
    /// The broker's time of arrival.
    Broker,
}

/// Which of the standard headers are sent; `id` always is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StandardHeaders {
    /// `type`: the event type.
    pub event_type: bool,
    /// `position`: commit offset and ordinal.
    pub position: bool,
    /// `source`: [`OutboxSpec::source`], unless the row or the configuration has a header of this name.
    pub source: bool,
}

/// What a NULL payload becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NullPayload {
    /// A null value, which a compacted topic reads as a deletion.
    Tombstone,
    /// A value of zero bytes; `null` in an envelope.
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
            standard_headers: StandardHeaders { event_type: ours, position: ours, source: ours },
            source: String::new(),
            null_payload: NullPayload::Tombstone,
            blank_is_tombstone: false,
            envelope: None,
            envelope_json: ours,
            expand_json: false,
        }
    }

    /// The specification for the documents of captured tables ([`postrider_core::delta`]): the rows are made by the
    /// source, so table and columns are fixed. Topic, key, headers and all others may be set.
    pub fn for_deltas() -> Self {
        let columns = [
            (Role::Id, delta::ID),
            (Role::AggregateType, delta::AGGREGATE_TYPE),
            (Role::AggregateId, delta::AGGREGATE_ID),
            (Role::EventType, delta::EVENT_TYPE),
            (Role::Payload, delta::PAYLOAD),
            (Role::Headers, ""),
            (Role::Time, ""),
        ];
        Self {
            table: Some(TableName { schema: delta::SCHEMA.into(), name: delta::TABLE.into() }),
            columns: columns.map(|(role, column)| (role, column.to_owned())).into(),
            timestamp: TimestampSource::Commit,
            ..Self::for_layout(Layout::Postrider)
        }
    }

    /// Whether the rows are the documents of captured tables ([`Self::for_deltas`]).
    pub fn is_of_deltas(&self) -> bool {
        let table = self.table.as_ref();
        table.is_some_and(|of| of.schema == delta::SCHEMA && of.name == delta::TABLE)
    }

    /// The column of `role`, from [`columns`](Self::columns) or the layout; `None` if there is none.
    pub fn column(&self, role: Role) -> Option<&str> {
        let configured = self.columns.iter().rev().find(|(of, _)| *of == role);
        let column = configured.map(|(_, column)| column.as_str()).or(self.layout.column(role));
        column.filter(|column| !column.is_empty())
    }

    /// All roles that have a column, with the column.
    pub fn roles(&self) -> impl Iterator<Item = (Role, &str)> {
        Role::ALL.iter().filter_map(|role| Some((*role, self.column(*role)?)))
    }

    /// The states of the table's rows. A column that has a role too has the name that is configured for the role.
    pub fn row_state(&self) -> NamedRowState {
        let preset = self.layout.preset();
        let named = |state: NamedRowState, (role, column): &(Role, &'static str)| match self
            .column(*role)
        {
            Some(name) => state.with_name(column, name),
            None => state,
        };
        preset.columns.iter().fold(NamedRowState::new(&preset.state), named)
    }

    /// Whether the table may lack the column of `role`, unless the column is configured: the event type of layout
    /// `debezium`, which Debezium's router never reads, `available_at` and `expires_at`.
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

    /// The extra columns, each once: the last entry of a column, at the place of the first.
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
