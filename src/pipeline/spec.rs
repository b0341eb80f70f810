//! What a pipeline is made from: plain values, complete, each checked by the module that takes it.

use super::halts;
use crate::error::Halt;
use crate::outbox::{
    ColumnType, Encoding, Layout, MapError, Mapper, OutboxSpec, Role, TimestampSource, TypeFacts,
    Unfit,
};
use crate::postgres::catalog::{self, ColumnFacts, TableFacts};
use crate::postgres::control::Ask;
use crate::postgres::ownership::Acting;
use crate::postgres::poll::{Backoff, Marks, PollSpec};
use crate::postgres::start::Identity;
use crate::postgres::{Conninfo, Names, TableName};
use crate::relay::{Limits, ParkingRules};
use crate::sink::SinkSpec;
use std::time::Duration;

/// Where events are read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The write-ahead log, through a slot.
    Wal,
    /// The table.
    Poll,
    /// The log; the table while the slot can't be used.
    Auto,
}

/// What a running relay does when its slot is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnSlotLost {
    /// Halt, for an operator.
    #[default]
    Halt,
    /// What `postrider repair` does.
    Repair,
}

/// How a table is polled.
#[derive(Clone, Debug)]
pub struct PollSettings {
    /// The table and its marks; `None` where there is no table.
    pub table: Option<PollSpec>,
    /// Pause between two looks at a table that has nothing new.
    pub interval: Duration,
    /// Rows of the first claim; while there are more, claims grow.
    pub batch: usize,
    /// Whether rows that the stream brought are marked too.
    pub mark_streamed: bool,
}

/// One pipeline: one outbox, one slot, one sink.
#[derive(Clone, Debug)]
pub struct PipelineSpec {
    /// Where events are read from.
    pub conninfo: Conninfo,
    /// The objects in the database, the pipeline's own name among them.
    pub names: Names,
    /// Whether a failover slot is wanted where the server has them.
    pub failover: bool,
    /// How much WAL the slot may hold back; `None` for as much as there is. Unit: bytes.
    pub wal_retain_max: Option<u64>,
    /// The table, its columns, and what records are made of.
    pub outbox: OutboxSpec,
    /// Where records go.
    pub sink: SinkSpec,
    /// Bounds on what is in flight.
    pub limits: Limits,
    /// How events are parked and tried again.
    pub parking: ParkingRules,
    /// A topic that dead events also go to.
    pub dead_topic: Option<String>,
    /// How long a destination may take no records before its events are parked; `None` for as long as it lasts.
    pub park_after: Option<Duration>,
    /// Where events are read from.
    pub mode: Mode,
    /// What is done when the slot is gone, in mode `wal`.
    pub on_slot_lost: OnSlotLost,
    /// `postrider repair`: end when there is nothing to repair any more.
    pub only_repair: bool,
    /// `postrider repair --from-table`: repair also where the slot can be used.
    pub from_table: bool,
    /// How the table is polled, and marked.
    pub poll: PollSettings,
    /// Bytes of WAL that bookmarks may hold back together.
    pub bookmarks_retain_max: u64,
    /// Pause between two cursor rows while events are delivered.
    pub cursor_interval: Duration,
    /// Pause between two status updates while the watermark moves.
    pub confirm_interval: Duration,
    /// How long a stop may take.
    pub shutdown_grace: Duration,
}

impl PipelineSpec {
    /// The pipeline's name.
    pub fn name(&self) -> &str {
        &self.names.pipeline
    }

    /// The database, without login: hosts and name.
    pub fn source_name(&self) -> String {
        format!("{}/{}", self.conninfo.hosts(), self.conninfo.dbname())
    }

    /// Whether everything the slot would bring is found in the table too, so that the slot may be let go.
    pub(super) fn polls_in_its_stead(&self) -> bool {
        self.mode == Mode::Auto && self.poll.table.is_some() && !self.messages()
    }

    /// Whether logical messages are asked for; they take part in ordinals.
    pub fn messages(&self) -> bool {
        self.outbox.message_prefix.is_some()
    }

    /// How published rows are marked in the table, where they are: by polling, or behind the stream.
    pub fn marks(&self) -> Option<&PollSpec> {
        let marked = self.mode != Mode::Wal || self.poll.mark_streamed;
        self.poll.table.as_ref().filter(|_| marked)
    }

    /// What is asked of the catalog. `columns` are those of [`PipelineSpec::columns`].
    pub fn ask<'a>(&'a self, identity: &'a Option<Identity>, columns: &'a [String]) -> Ask<'a> {
        Ask {
            names: &self.names,
            identity,
            columns,
            messages: self.messages(),
            failover: self.failover,
            marks: self.marks(),
            polls: self.mode != Mode::Wal,
            acting: Acting::Relay,
        }
    }

    /// The columns of the table whose types can't play their roles; none where the specification is not sound, which
    /// whoever takes it says.
    pub fn unfit_types(&self, table: &TableFacts) -> Vec<Unfit> {
        let column = |column| {
            let ColumnFacts { name, type_name, type_facts, .. }: &ColumnFacts = column;
            let (oid, modifier) = (type_facts.base_oid, type_facts.base_modifier);
            ColumnType { name, type_name, oid, modifier, is_text: type_facts.is_text }
        };
        let columns: Vec<ColumnType<'_>> = table.columns.iter().map(column).collect();
        Mapper::new(self.outbox.clone())
            .map_or_else(|_unsound| Vec::new(), |mapper| mapper.unfit_types(&columns))
    }

    /// How the logical messages of a database in `encoding` are read.
    ///
    /// # Errors
    /// A halt where they are asked for, and can't be.
    pub fn messages_encoding(&self, encoding: &str) -> Result<Encoding, Halt> {
        match Encoding::of(encoding) {
            Some(encoding) => Ok(encoding),
            None if self.messages() => Err(halts::unreadable_messages(encoding)),
            None => Ok(Encoding::UTF8),
        }
    }

    /// Whether they all can.
    ///
    /// # Errors
    /// A halt for the first that can't.
    pub fn fit(&self, table: Option<&TableFacts>) -> Result<(), Halt> {
        let unfit = table.map(|table| self.unfit_types(table));
        match unfit.and_then(|unfit| unfit.into_iter().next()) {
            Some(unfit) => Err(halts::unfit_table(&MapError::Unfit(unfit))),
            None => Ok(()),
        }
    }

    /// The columns the layout can't do without.
    pub fn columns(&self) -> Vec<String> {
        self.outbox.required_columns().into_iter().map(str::to_owned).collect()
    }
}

/// What the catalog says of a type, as the mapper takes it.
pub fn type_facts(facts: &catalog::TypeFacts) -> TypeFacts {
    let catalog::TypeFacts { oid, base_oid, base_modifier, is_text } = *facts;
    TypeFacts { oid, base_oid, base_modifier, is_text }
}

// From an outbox's specification to what polling is told of its table.

/// How the outbox of `pipeline` is polled; `None` where it has no table. `delete`: `poll.mark = "delete"`.
///
/// Failures are tried again as layout `commerce` has it, and hold their aggregates back; set the fields to differ.
pub fn poll_spec(pipeline: &str, outbox: &OutboxSpec, delete: bool) -> Option<PollSpec> {
    let table = outbox.table.as_ref()?;
    let table = TableName::new(table.schema.clone(), table.name.clone());
    let column = |role| outbox.column(role).map(str::to_owned);
    Some(PollSpec {
        pipeline: pipeline.to_owned(),
        id: column(Role::Id)?,
        aggregate_type: column(Role::AggregateType)?,
        aggregate_id: column(Role::AggregateId)?,
        time: column(Role::Time),
        stamps: outbox.timestamp == TimestampSource::Event,
        marks: marks(outbox, &table),
        table,
        delete,
        block_key: true,
        attempts_max: 10,
        backoff: Backoff::DEFAULT,
        zone: outbox.zone.clone(),
    })
}

/// The layout's marks; a column that plays a role is the one named for it.
fn marks(outbox: &OutboxSpec, table: &TableName) -> Marks {
    let named = |role, column: &mut String| {
        if let Some(name) = outbox.column(role) {
            name.clone_into(column);
        }
    };
    match outbox.layout {
        Layout::Postrider | Layout::Debezium => Marks::Delete,
        Layout::Adr30 => Marks::adr30(),
        Layout::Sqlgarden => Marks::sqlgarden(),
        Layout::Commerce => {
            let mut marks = Marks::commerce(table);
            if let Marks::Commerce { available_at, .. } = &mut marks {
                named(Role::AvailableAt, available_at);
            }
            marks
        }
        Layout::Gcx => {
            let mut marks = Marks::gcx();
            if let Marks::Gcx { expires_at, .. } = &mut marks {
                named(Role::ExpiresAt, expires_at);
            }
            marks
        }
    }
}
