//! The layouts as data: the table, the column of each role, the defaults of route and headers, and the states
//! of rows (`row_state.rs`).
//!
//! Each layout is a constant. Its SQL is in `sql/layouts/`; a test inserts a row into each table.

use super::row_state;
use postrider_core::row_state::RowState;
use std::fmt;

/// The role of a column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// The event's id.
    Id,
    /// The aggregate's type.
    AggregateType,
    /// The aggregate's id.
    AggregateId,
    /// The event's type.
    EventType,
    /// The payload.
    Payload,
    /// A JSON object, of which each member is a header.
    Headers,
    /// The topic.
    Topic,
    /// The key, if it is not the aggregate's id.
    PartitionKey,
    /// The event's own time.
    Time,
    /// A trace: a W3C `traceparent`, or an id.
    Trace,
    /// Earliest time of publication.
    AvailableAt,
    /// Latest time of publication.
    ExpiresAt,
}

impl Role {
    /// Every role.
    pub const ALL: &'static [Self] = &[
        Self::Id,
        Self::AggregateType,
        Self::AggregateId,
        Self::EventType,
        Self::Payload,
        Self::Headers,
        Self::Topic,
        Self::PartitionKey,
        Self::Time,
        Self::Trace,
        Self::AvailableAt,
        Self::ExpiresAt,
    ];

    /// The name, as in `outbox.columns` and in templates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::Payload => "payload",
            Self::Headers => "headers",
            Self::Topic => "topic",
            Self::PartitionKey => "partition_key",
            Self::Time => "time",
            Self::Trace => "trace",
            Self::AvailableAt => "available_at",
            Self::ExpiresAt => "expires_at",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A column preset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layout {
    /// Postrider's own layout.
    Postrider,
    /// Debezium's outbox event router.
    Debezium,
    /// `outbox_messages`, with tenants, event versions and a dead-letter table.
    Commerce,
    /// The row names its own topic and partition key, and expires.
    Gcx,
    /// `outbox_events`, with a status and a count of attempts.
    Sqlgarden,
    /// The event type is the topic; headers are in `metadata`.
    Adr30,
    /// Changes of a table, which `postrider.enable_outbox` captures.
    Pgtrickle,
}

/// The data of a layout.
#[derive(Debug)]
pub(super) struct Preset {
    name: &'static str,
    table: &'static str,
    create_sql: &'static str,
    /// Role and column.
    pub(super) columns: &'static [(Role, &'static str)],
    /// Column and the header it becomes.
    pub(super) extra: &'static [(&'static str, &'static str)],
    /// Columns that are in no record, and are no state either.
    ignored: &'static [&'static str],
    pub(super) topic: &'static str,
    pub(super) key: &'static str,
    pub(super) state: RowState,
}

const POSTRIDER: Preset = Preset {
    name: "postrider",
    table: "outbox",
    create_sql: include_str!("../../../sql/layouts/postrider.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregate_type"),
        (Role::AggregateId, "aggregate_id"),
        (Role::EventType, "event_type"),
        (Role::Payload, "payload"),
        (Role::Headers, "headers"),
        (Role::Time, "created_at"),
    ],
    extra: &[],
    ignored: &[],
    topic: "{aggregate_type}",
    key: "{aggregate_id}",
    state: RowState::DELETE,
};

const DEBEZIUM: Preset = Preset {
    name: "debezium",
    table: "outboxevent",
    create_sql: include_str!("../../../sql/layouts/debezium.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregatetype"),
        (Role::AggregateId, "aggregateid"),
        (Role::EventType, "type"),
        (Role::Payload, "payload"),
    ],
    extra: &[],
    ignored: &[],
    topic: "outbox.event.{aggregate_type}",
    key: "{aggregate_id}",
    state: RowState::DELETE,
};

const COMMERCE: Preset = Preset {
    name: "commerce",
    table: "outbox_messages",
    create_sql: include_str!("../../../sql/layouts/commerce.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregate_type"),
        (Role::AggregateId, "aggregate_id"),
        (Role::EventType, "event_type"),
        (Role::Payload, "payload"),
        (Role::Time, "occurred_at"),
        (Role::Trace, "trace_id"),
        (Role::AvailableAt, "available_at"),
    ],
    extra: &[("tenant_id", "tenant_id"), ("event_version", "event_version")],
    ignored: &[],
    topic: "{aggregate_type}",
    key: "{aggregate_id}",
    state: row_state::COMMERCE,
};

const GCX: Preset = Preset {
    name: "gcx",
    table: "outbox",
    create_sql: include_str!("../../../sql/layouts/gcx.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregate_type"),
        (Role::AggregateId, "aggregate_id"),
        (Role::EventType, "event_type"),
        (Role::Payload, "payload"),
        (Role::Headers, "headers"),
        (Role::Topic, "topic"),
        (Role::PartitionKey, "partition_key"),
        (Role::Time, "created_at"),
        (Role::ExpiresAt, "expires_at"),
    ],
    extra: &[],
    ignored: &[],
    topic: "{topic}",
    key: "{partition_key|aggregate_id}",
    state: row_state::GCX,
};

const SQLGARDEN: Preset = Preset {
    name: "sqlgarden",
    table: "outbox_events",
    create_sql: include_str!("../../../sql/layouts/sqlgarden.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregate_type"),
        (Role::AggregateId, "aggregate_id"),
        (Role::EventType, "event_type"),
        (Role::Payload, "payload"),
        (Role::Time, "created_at"),
    ],
    extra: &[],
    ignored: &[],
    topic: "{aggregate_type}",
    key: "{aggregate_id}",
    state: row_state::SQLGARDEN,
};

const ADR30: Preset = Preset {
    name: "adr30",
    table: "outbox",
    create_sql: include_str!("../../../sql/layouts/adr30.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregate_type"),
        (Role::AggregateId, "aggregate_id"),
        (Role::EventType, "event_type"),
        (Role::Payload, "payload"),
        (Role::Headers, "metadata"),
        (Role::Time, "created_at"),
    ],
    extra: &[],
    ignored: &[],
    topic: "{event_type}",
    key: "{aggregate_id}",
    state: row_state::ADR30,
};

const PGTRICKLE: Preset = Preset {
    name: "pgtrickle",
    table: "outbox_changes",
    create_sql: include_str!("../../../sql/layouts/pgtrickle.sql"),
    columns: &[
        (Role::Id, "id"),
        (Role::AggregateType, "aggregate_type"),
        (Role::AggregateId, "aggregate_id"),
        (Role::EventType, "event_type"),
        (Role::Payload, "payload"),
        (Role::Time, "created_at"),
    ],
    extra: &[],
    ignored: &["inserted_count", "deleted_count", "is_claim_check", "consumed_by"],
    topic: "{aggregate_type}",
    key: "{aggregate_id}",
    state: row_state::PGTRICKLE,
};

impl Layout {
    /// Every layout.
    pub const ALL: &'static [Self] = &[
        Self::Postrider,
        Self::Debezium,
        Self::Commerce,
        Self::Gcx,
        Self::Sqlgarden,
        Self::Adr30,
        Self::Pgtrickle,
    ];

    /// Their names, in the order of [`Layout::ALL`].
    pub const NAMES: &'static [&'static str] =
        &["postrider", "debezium", "commerce", "gcx", "sqlgarden", "adr30", "pgtrickle"];

    pub(super) const fn preset(self) -> &'static Preset {
        match self {
            Self::Postrider => &POSTRIDER,
            Self::Debezium => &DEBEZIUM,
            Self::Commerce => &COMMERCE,
            Self::Gcx => &GCX,
            Self::Sqlgarden => &SQLGARDEN,
            Self::Adr30 => &ADR30,
            Self::Pgtrickle => &PGTRICKLE,
        }
    }

    /// The name, as in `outbox.layout`.
    pub const fn name(self) -> &'static str {
        self.preset().name
    }

    /// The layout of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|layout| layout.name() == name)
    }

    /// The table's name, without schema.
    pub const fn table(self) -> &'static str {
        self.preset().table
    }

    /// SQL that creates the table, in the first schema of the search path.
    pub const fn create_sql(self) -> &'static str {
        self.preset().create_sql
    }

    /// The column of `role`, if the layout has one.
    pub fn column(self, role: Role) -> Option<&'static str> {
        self.preset().columns.iter().find(|(of, _)| *of == role).map(|(_, column)| *column)
    }

    /// The columns of the table that are in no record, and do not say what becomes of a row either.
    pub const fn ignored(self) -> &'static [&'static str] {
        self.preset().ignored
    }

    /// The role that `name` means: the name of a role, or the layout's name of a column.
    pub fn role(self, name: &str) -> Option<Role> {
        let by_column = || self.preset().columns.iter().find(|(_, column)| *column == name);
        Role::from_name(name).or_else(|| by_column().map(|(role, _)| *role))
    }
}
