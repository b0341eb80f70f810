//! The specification of a pipeline: plain values, checked by the modules that use them.

use super::halts;
use super::mode::Mode;
use crate::delta;
use crate::error::Halt;
use crate::event::Histories;
use crate::maintenance::MaintenanceSettings;
use crate::outbox::{
    DeclaredColumn, MapError, Mapper, OutboxSpec, Role, SpecError, TimestampSource, TopicPart,
    Unfit,
};
use crate::postgres::capture::{self, CaptureSpec, CapturedTable, DeltaAssembler};
use crate::postgres::catalog::{self, ColumnFacts, TableFacts};
use crate::postgres::control::FactsQuery;
use crate::postgres::poll::{Backoff, PollSpec};
use crate::postgres::schema_owner::SessionRights;
use crate::postgres::start::Identity;
use crate::postgres::{
    ChangeReader, Conninfo, Decoder, Encoding, EventObjects, Names, SourceError, TableName,
};
use crate::relay::{Limits, ParkingRules};
#[cfg(feature = "postgres")]
use crate::sink::postgres::PostgresConfig;
use crate::sink::{Needs, Purpose, SinkConfig};
use crate::store::PipelineKey;
#[cfg(feature = "postgres")]
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

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

/// What `postrider repair` asks for; by default nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepairRequest {
    /// Stop when there is nothing left to repair.
    pub only: bool,
    /// `--from-table`: repair even if the slot can be used.
    pub from_table: bool,
}

/// One pipeline on PostgreSQL: one outbox, one slot, one sink.
#[derive(Clone, Debug)]
pub struct PipelineSpec {
    /// What does not depend on PostgreSQL.
    pub common: CommonSpec,
    /// Connection string of the database.
    pub conninfo: Conninfo,
    /// The name of the pipeline and of its objects in the database.
    pub names: Names,
    /// Whether the slot is to be a failover slot, if the server supports that.
    pub failover: bool,
    /// WAL that the slot may retain at most; `None` for no limit. Unit: bytes.
    pub wal_retain_max: Option<u64>,
    /// What to do in mode `wal` when the slot is lost.
    pub on_slot_lost: OnSlotLost,
    /// What `postrider repair` asks for.
    pub repair: RepairRequest,
    /// The captured tables, if the events are changes of tables instead of rows of an outbox. The outbox of
    /// [`CommonSpec`] is then made by [`OutboxSpec::for_deltas`], and [`Names`] and polling have no table.
    pub capture: Option<CaptureSpec>,
    /// How the table is polled and marked.
    pub poll: PollSettings,
    /// WAL that all bookmarks together may retain at most. Unit: bytes.
    pub bookmarks_retain_max: u64,
    /// Pause between two status updates to the server while the watermark moves.
    pub confirm_interval: Duration,
    /// The maintenance of event logs, if the sink writes them, and of inboxes.
    pub maintenance: MaintenanceSettings,
}

/// What a pipeline is configured with, whatever it reads from.
#[derive(Clone, Debug)]
pub struct CommonSpec {
    /// The name of the pipeline.
    pub name: String,
    /// How events are read.
    pub mode: Mode,
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
    /// Pause between two writes of the cursor while events are published.
    pub cursor_interval: Duration,
    /// How long a shutdown may take.
    pub shutdown_grace: Duration,
}

impl CommonSpec {
    /// What the sink is to be opened with.
    pub(super) fn needs(&self, purpose: Purpose) -> Needs {
        let bytes = usize::try_from(self.limits.bytes_max).unwrap_or(usize::MAX);
        let events = usize::try_from(self.limits.events_max).unwrap_or(usize::MAX);
        let destinations = self.outbox.constant_topic().into_iter().chain(self.dead_topic.clone());
        Needs {
            pipeline: self.name.clone(),
            in_flight_events: events,
            in_flight_bytes: bytes,
            size_max: self.size_max,
            destinations: destinations.collect(),
            purpose,
        }
    }

    /// The settings that the pipeline's position belongs to, as one line.
    pub(super) fn summary(&self, cluster: Option<&str>) -> String {
        let (mode, sink, layout) = (self.mode.name(), self.sink.kind(), self.outbox.layout.name());
        let cluster = cluster.map_or_else(String::new, |cluster| format!(" cluster {cluster}"));
        let (topic, table) = (topic_rule(&self.outbox), self.table());
        if self.outbox.is_of_deltas() {
            return format!("mode {mode}, {sink}{cluster}, topic {topic}, captured tables");
        }
        let table = if table.is_empty() { "no table" } else { &table };
        format!("mode {mode}, {sink}{cluster}, topic {topic}, {table}, layout {layout}")
    }

    /// The outbox table, as SQL; empty without a table.
    pub(super) fn table(&self) -> String {
        let table = self.outbox.table.as_ref();
        let table = table.map(|of| TableName::new(of.schema.clone(), of.name.clone()));
        table.map_or_else(String::new, |table| table.to_string())
    }

    /// What makes records of rows, for the destinations of the sink.
    pub(super) fn mapper(&self) -> Result<Mapper, Vec<SpecError>> {
        let mut mapper = Mapper::new(self.outbox.clone())?;
        mapper.set_names(self.sink.names());
        Ok(mapper)
    }
}

impl PipelineSpec {
    /// The pipeline's name.
    pub fn name(&self) -> &str {
        &self.names.key.pipeline
    }

    /// What everything that is stored in the database is stored under.
    pub fn key(&self) -> &PipelineKey {
        &self.names.key
    }

    /// The database without the login: hosts and name.
    pub fn source_name(&self) -> String {
        format!("{}/{}", self.conninfo.hosts(), self.conninfo.dbname())
    }

    /// What the sink is to be opened with.
    pub fn needs(&self, purpose: Purpose) -> Needs {
        self.common.needs(purpose)
    }

    /// What makes records of rows, for the destinations of the sink.
    ///
    /// # Errors
    /// What is wrong with the specification of the outbox.
    pub fn mapper(&self) -> Result<Mapper, Vec<SpecError>> {
        self.common.mapper()
    }

    /// Whether every event of the slot is found in the table too, so that the slot may be dropped and the table polled
    /// instead.
    pub(super) fn polls_instead_of_slot(&self) -> bool {
        self.common.mode == Mode::Auto && self.poll.table.is_some() && !self.messages()
    }

    /// Whether logical messages are published. Each of them has an ordinal of its transaction.
    pub fn messages(&self) -> bool {
        self.common.outbox.message_prefix.is_some()
    }

    /// How published rows are marked in the table, if they are: by polling, or after the stream.
    pub fn marks(&self) -> Option<&PollSpec> {
        let marked = self.common.mode != Mode::Wal || self.poll.mark_streamed;
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
            polls: self.common.mode != Mode::Wal,
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
        let table = self.common.outbox.table.as_ref();
        EventObjects {
            table: table.map(|of| TableName::new(of.schema.clone(), of.name.clone())),
            columns: mapper.columns().map(str::to_owned).collect(),
            message_prefix: self.common.outbox.message_prefix.clone(),
        }
    }

    /// What makes changes of the frames of a new connection, for a stream whose rows `mapper` maps. `encoding`: that of
    /// logical messages. `histories`: those of the pipeline's positions.
    pub fn change_reader(
        &self,
        mapper: &Mapper,
        found: TableOids,
        encoding: Encoding,
        histories: Histories,
    ) -> ChangeReader {
        match &self.capture {
            None => {
                let objects = self.decoded_objects(mapper);
                ChangeReader::Rows(Box::new(Decoder::new(objects, found.outbox, encoding)))
            }
            Some(spec) => {
                let message_prefix = self.common.outbox.message_prefix.clone();
                let objects = EventObjects { message_prefix, ..EventObjects::default() };
                let decoder = Decoder::new(objects, None, encoding);
                let (spec, captured) = (spec.clone(), found.captured);
                let deltas = DeltaAssembler::new(spec, captured, histories, decoder);
                ChangeReader::Deltas(Box::new(deltas))
            }
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
            Some(unfit) => Err(halts::unfit_table(&MapError::Unfit(unfit), self.common.mode)),
            None => Ok(()),
        }
    }

    /// The topics of captured tables, each once; empty if the template has a part that SQL or a sink decides.
    pub fn captured_topics(&self) -> Vec<String> {
        let (Some(capture), Some(parts)) = (&self.capture, self.common.outbox.topic_parts()) else {
            return Vec::new();
        };
        let value = |table: &CapturedTable, columns: &[String]| match columns.first()?.as_str() {
            delta::AGGREGATE_TYPE => Some(capture.aggregate_type(table)),
            delta::AGGREGATE_ID => Some(table.qualified()),
            delta::EVENT_TYPE => Some(delta::DELTA_TYPE.to_owned()),
            _ => None,
        };
        let topic = |table: &CapturedTable| {
            let part = |part: &TopicPart| match part {
                TopicPart::Text(text) => Some(text.clone()),
                TopicPart::Columns(columns) => value(table, columns),
            };
            parts.iter().map(part).collect::<Option<String>>()
        };
        let mut topics: Vec<String> = capture.tables.iter().filter_map(topic).collect();
        topics = self.common.outbox.replaced(topics);
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// The columns that the layout requires.
    pub fn columns(&self) -> Vec<String> {
        self.common.outbox.required_columns().into_iter().map(str::to_owned).collect()
    }
}

/// The OIDs that the tables of a pipeline have now. Rows carry them also if a table had another name when they were
/// committed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableOids {
    /// The outbox table, if there is one.
    pub outbox: Option<u32>,
    /// The captured tables, in the order of the specification.
    pub captured: Vec<Option<u32>>,
}

impl TableOids {
    /// Reads them.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn read(client: &Client, spec: &PipelineSpec) -> Result<Self, SourceError> {
        let outbox = match &spec.names.table {
            Some(name) => catalog::read_table(client, name).await?.map(|table| table.oid),
            None => None,
        };
        Ok(Self { outbox, captured: Self::read_captured(client, spec).await? })
    }

    /// Reads those of the captured tables.
    pub(super) async fn read_captured(
        client: &Client,
        spec: &PipelineSpec,
    ) -> Result<Vec<Option<u32>>, SourceError> {
        match &spec.capture {
            Some(capture) => capture::read_oids(client, &capture.tables).await,
            None => Ok(Vec::new()),
        }
    }
}

/// The database in which a sink writes event logs; `None` for a sink of another kind.
#[cfg(feature = "postgres")]
pub fn log_database(sink: &dyn SinkConfig) -> Option<Conninfo> {
    if let Some(inner) = sink.inner() {
        return log_database(inner);
    }
    let sink: &dyn Any = sink;
    let config: &PostgresConfig = sink.downcast_ref()?;
    config.database.as_ref()?.as_ref().ok().cloned()
}

/// The database in which a sink writes event logs: there is no such sink in this build.
#[cfg(not(feature = "postgres"))]
pub fn log_database(_sink: &dyn SinkConfig) -> Option<Conninfo> {
    None
}

/// How topics are made, as one line.
pub fn topic_rule(outbox: &OutboxSpec) -> String {
    match &outbox.replace {
        Some(replace) => {
            format!("{} {:?} -> {:?}", outbox.topic, replace.pattern, replace.with)
        }
        None => outbox.topic.clone(),
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
        key: PipelineKey::first(pipeline),
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

/// The table as a repair reads it. Without marking the columns of marks are not read.
pub fn repair_table(spec: &PipelineSpec, marks: bool) -> Option<PollSpec> {
    let table = spec.poll.table.clone()?;
    Some(if marks { table } else { table.without_status() })
}
