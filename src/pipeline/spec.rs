//! The specification of a pipeline: plain values, checked by the modules that use them.

use super::halts;
use crate::error::Halt;
use crate::outbox::{
    DeclaredColumn, MapError, Mapper, OutboxSpec, Role, SpecError, TimestampSource, Unfit,
};
use crate::postgres::catalog::{ColumnFacts, TableFacts};
use crate::postgres::control::FactsQuery;
use crate::postgres::poll::{Backoff, PollSpec};
use crate::postgres::schema_owner::SessionRights;
use crate::postgres::start::Identity;
use crate::postgres::{Conninfo, Encoding, EventObjects, Names, TableName};
use crate::relay::{HaltWords, Limits, ParkingRules};
use crate::sink::{Needs, Purpose, SinkConfig};
use std::sync::Arc;
use std::time::Duration;

/// How events are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// From the write-ahead log, through a replication slot.
    Wal,
    /// By polling the outbox table.
    Poll,
    /// From the write-ahead log; by polling while the slot can't be used.
    Auto,
    /// From a source of the program that embeds Postrider ([`Embedded`](super::Embedded)).
    Embedded,
}

impl Mode {
    /// How halts call what events are read from.
    pub(super) const fn words(self) -> HaltWords {
        match self {
            Self::Wal | Self::Poll | Self::Auto => HaltWords::POSTGRES,
            Self::Embedded => HaltWords {
                sender: "the source",
                keeper: "the source",
                disorder_hint: "correct the source so that it keeps the rules of docs/embedding.md, then start again",
            },
        }
    }

    /// How far a position moves before the cursor is written without events. In PostgreSQL the write moves the position
    /// itself: its commit, and an image of a page after a checkpoint. Unit: that of the source's offsets.
    pub(super) const fn idle_step(self) -> u64 {
        match self {
            Self::Wal | Self::Poll | Self::Auto => 4096,
            Self::Embedded => 1,
        }
    }
}

/// What a running pipeline does when its slot is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnSlotLost {
    /// Halt: an operator must act.
    #[default]
    Halt,
    /// The same as `postrider repair`.
    Repair,
}

/// Settings of polling.
#[derive(Clone, Debug)]
pub struct PollSettings {
    /// The outbox table and its marks; `None` without a table.
    pub table: Option<PollSpec>,
    /// Pause between two queries of a table that has no new rows.
    pub interval: Duration,
    /// Rows of the first claim. Claims grow while there are more rows.
    pub batch: usize,
    /// Whether rows published from the stream are marked too.
    pub mark_streamed: bool,
}

/// One pipeline: one outbox, one slot, one sink.
#[derive(Clone, Debug)]
pub struct PipelineSpec {
    /// Connection string of the database.
    pub conninfo: Conninfo,
    /// The name of the pipeline and of its objects in the database.
    pub names: Names,
    /// Whether the slot is to be a failover slot, if the server supports that.
    pub failover: bool,
    /// WAL that the slot may retain at most; `None` for no limit. Unit: bytes.
    pub wal_retain_max: Option<u64>,
    /// The outbox table, its columns, and how records are made from its rows.
    pub outbox: OutboxSpec,
    /// Where records go: a kind of the product, or one of the caller's own.
    pub sink: Arc<dyn SinkConfig>,
    /// The largest record in bytes of key, value and headers; `None` for what the destination takes.
    pub size_max: Option<usize>,
    /// Limits on what is in flight.
    pub limits: Limits,
    /// How events are parked and retried.
    pub parking: ParkingRules,
    /// A topic to which dead events are published as well.
    pub dead_topic: Option<String>,
    /// How long a destination may accept no records before its events are parked; `None` to wait without a limit.
    pub park_after: Option<Duration>,
    /// How events are read.
    pub mode: Mode,
    /// What to do in mode `wal` when the slot is lost.
    pub on_slot_lost: OnSlotLost,
    /// `postrider repair`: stop when there is nothing left to repair.
    pub only_repair: bool,
    /// `postrider repair --from-table`: repair even if the slot can be used.
    pub from_table: bool,
    /// How the table is polled and marked.
    pub poll: PollSettings,
    /// WAL that all bookmarks together may retain at most. Unit: bytes.
    pub bookmarks_retain_max: u64,
    /// Pause between two writes of the cursor row while events are published.
    pub cursor_interval: Duration,
    /// Pause between two status updates to the server while the watermark moves.
    pub confirm_interval: Duration,
    /// How long a shutdown may take.
    pub shutdown_grace: Duration,
}

impl PipelineSpec {
    /// The pipeline's name.
    pub fn name(&self) -> &str {
        &self.names.pipeline
    }

    /// The database without the login: hosts and name.
    pub fn source_name(&self) -> String {
        format!("{}/{}", self.conninfo.hosts(), self.conninfo.dbname())
    }

    /// What the sink is to be opened with.
    pub fn needs(&self, purpose: Purpose) -> Needs {
        let bytes = usize::try_from(self.limits.bytes_max).unwrap_or(usize::MAX);
        let events = usize::try_from(self.limits.events_max).unwrap_or(usize::MAX);
        let destinations = self.outbox.constant_topic().into_iter().chain(self.dead_topic.clone());
        Needs {
            pipeline: self.name().to_owned(),
            in_flight_events: events,
            in_flight_bytes: bytes,
            size_max: self.size_max,
            destinations: destinations.collect(),
            purpose,
        }
    }

    /// What makes records of rows, for the destinations of the sink.
    ///
    /// # Errors
    /// What is wrong with the specification of the outbox.
    pub fn mapper(&self) -> Result<Mapper, Vec<SpecError>> {
        let mut mapper = Mapper::new(self.outbox.clone())?;
        mapper.set_names(self.sink.names());
        Ok(mapper)
    }

    /// Whether every event of the slot is found in the table too, so that the slot may be dropped and the table polled
    /// instead.
    pub(super) fn polls_instead_of_slot(&self) -> bool {
        self.mode == Mode::Auto && self.poll.table.is_some() && !self.messages()
    }

    /// Whether logical messages are published. Each of them has an ordinal of its transaction.
    pub fn messages(&self) -> bool {
        self.outbox.message_prefix.is_some()
    }

    /// How published rows are marked in the table, if they are: by polling, or after the stream.
    pub fn marks(&self) -> Option<&PollSpec> {
        let marked = self.mode != Mode::Wal || self.poll.mark_streamed;
        self.poll.table.as_ref().filter(|_| marked)
    }

    /// The catalog query for this pipeline. `columns` is the result of [`PipelineSpec::columns`].
    pub fn ask<'a>(
        &'a self,
        identity: &'a Option<Identity>,
        columns: &'a [String],
    ) -> FactsQuery<'a> {
        FactsQuery {
            names: &self.names,
            identity,
            columns,
            messages: self.messages(),
            failover: self.failover,
            marks: self.marks(),
            polls: self.mode != Mode::Wal,
            acting: SessionRights::Relay,
        }
    }

    /// The columns of the table whose types do not fit their roles. Empty if the specification itself is invalid;
    /// [`Mapper::new`] reports that.
    pub fn unfit_types(&self, table: &TableFacts) -> Vec<Unfit> {
        let column = |column| {
            let ColumnFacts { name, type_name, type_facts, .. }: &ColumnFacts = column;
            DeclaredColumn { name, value_type: type_facts.value_type(), type_name }
        };
        let columns: Vec<DeclaredColumn<'_>> = table.columns.iter().map(column).collect();
        self.mapper().map_or_else(|_unsound| Vec::new(), |mapper| mapper.unfit_types(&columns))
    }

    /// What of the stream becomes events, for the decoder of a stream whose rows `mapper` maps.
    pub fn decoded_objects(&self, mapper: &Mapper) -> EventObjects {
        let table = self.outbox.table.as_ref();
        EventObjects {
            table: table.map(|of| TableName::new(of.schema.clone(), of.name.clone())),
            columns: mapper.columns().map(str::to_owned).collect(),
            message_prefix: self.outbox.message_prefix.clone(),
        }
    }

    /// The encoding of logical messages, for a database in `encoding`.
    ///
    /// # Errors
    /// A halt if logical messages are published and can't be converted to UTF-8.
    pub fn messages_encoding(&self, encoding: &str) -> Result<Encoding, Halt> {
        match Encoding::of(encoding) {
            Some(encoding) => Ok(encoding),
            None if self.messages() => Err(halts::unreadable_messages(encoding)),
            None => Ok(Encoding::UTF8),
        }
    }

    /// Checks that the types of all columns fit their roles.
    ///
    /// # Errors
    /// A halt that names the first column that does not fit.
    pub fn fit(&self, table: Option<&TableFacts>) -> Result<(), Halt> {
        let unfit = table.map(|table| self.unfit_types(table));
        match unfit.and_then(|unfit| unfit.into_iter().next()) {
            Some(unfit) => Err(halts::unfit_table(&MapError::Unfit(unfit), self.mode)),
            None => Ok(()),
        }
    }

    /// The columns that the layout requires.
    pub fn columns(&self) -> Vec<String> {
        self.outbox.required_columns().into_iter().map(str::to_owned).collect()
    }
}

/// How the outbox table of `pipeline` is polled; `None` without a table. `delete`: published rows are deleted
/// (`poll.mark = "delete"`).
///
/// Failures are retried with the defaults of layout `commerce`, and block their aggregates. Set the fields for another
/// behaviour.
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
        row_state: outbox.row_state(),
        table,
        delete,
        block_key: true,
        attempts_max: 10,
        backoff: Backoff::DEFAULT,
        zone: outbox.zone.clone(),
    })
}
