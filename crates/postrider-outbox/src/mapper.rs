//! The mapper: makes records of rows and logical messages.

use crate::cells::{Buffers, CellRange, ColumnSource, EventRow, FieldId};
use crate::debezium::{self, Place};
use crate::error::{MapError, PartialEvent, Poison, Problem, SpecError, Unfit};
use crate::headers::{self, Headers, Positions, SOURCE, is_traceparent};
use crate::json;
use crate::layout::Role;
use crate::route::{Field, HeaderRule, Route, Template};
use crate::spec::{NullPayload, OnUpdate, OutboxSpec, TableName, TimestampSource};
use crate::time::{self, Ambiguous, InstantError, TimeCache};
use postrider_core::delta;
use postrider_core::event::{Aggregate, Histories, Position, shown_id};
use postrider_core::record::{Header, OwnedRecord, Record};
use postrider_core::row::{ByteRange, Kind, Row, Table, TableId, ValueType};
use postrider_core::sink::NameRule;
use postrider_core::source::Message;
use postrider_core::timestamp::Timestamp;
use std::collections::BTreeMap;
use std::fmt;

/// Makes records of the rows and messages of one outbox, for one connection.
#[derive(Debug)]
pub struct Mapper {
    table: Option<TableName>,
    /// The table's current number. Rows of it are events, also if the table had another name at their commit.
    table_id: Option<TableId>,
    prefix: Option<String>,
    on_update: OnUpdate,
    /// The rows are documents of captured tables.
    of_deltas: bool,
    route: Route,
    tables: Tables,
    message: MessageRow,
    scratch: Scratch,
}

/// A column as its table declares it, before the source has described the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclaredColumn<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of its values.
    pub value_type: ValueType,
    /// The type as the database writes it, for messages.
    pub type_name: &'a str,
}

/// Position and time of an event's commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The event's position: its identity and its place in the order.
    pub position: Position,
    /// The time of its commit.
    pub commit_time: Timestamp,
}

/// An event and its record, borrowed from the row and the mapper.
pub struct Mapped<'a> {
    /// The event's aggregate. With layout `debezium`, a NULL aggregate id is an empty string here.
    pub aggregate: Aggregate<'a>,
    /// The event type; empty if layout `debezium` has none.
    pub event_type: &'a str,
    /// The event's id.
    pub event_id: &'a str,
    /// Whether the event's own time was not usable as a timestamp, so that the timestamp is the time of the commit.
    pub clamped: bool,
    /// Earliest time of publication. Only layouts with this column have it (`commerce`).
    pub available_at: Option<Timestamp>,
    /// Latest time of publication. Only layouts with this column have it (`gcx`).
    pub expires_at: Option<Timestamp>,
    record: Record<'a>,
    headers: Headers<'a>,
}

impl Mapped<'_> {
    /// Removes the event's position from its record, because a later event of its aggregate was published before it.
    pub fn remove_position(&mut self) {
        headers::remove_position(self.headers.as_mut_slice());
    }

    /// The record that a sink publishes.
    pub fn record(&self) -> Record<'_> {
        Record { headers: self.headers.as_slice(), ..self.record }
    }
}

impl fmt::Debug for Mapped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("aggregate", &self.aggregate)
            .field("record", &self.record())
            .finish_non_exhaustive()
    }
}

impl Mapper {
    /// Checks and compiles a specification.
    ///
    /// # Errors
    /// All errors of the specification, each with its key.
    pub fn new(spec: OutboxSpec) -> Result<Self, Vec<SpecError>> {
        let route = Route::compile(&spec)?;
        Ok(Self {
            of_deltas: spec.is_of_deltas(),
            table: spec.table,
            table_id: None,
            prefix: spec.message_prefix,
            on_update: spec.on_update,
            message: MessageRow::new(&route),
            route,
            tables: Tables::default(),
            scratch: Scratch::default(),
        })
    }

    /// What a destination may be called. Before this is set, anything that is not empty.
    pub fn set_names(&mut self, names: NameRule) {
        self.route.names = names;
    }

    /// Sets the histories of positions. With `rows`, events are rows that are read from the table: their positions are
    /// not known, and their records have header `history` in place of `position`.
    pub fn set_histories(&mut self, histories: Histories, rows: bool) {
        self.scratch.positions.set_histories(histories);
        self.scratch.rows = rows;
    }

    /// Takes the description of a table. A table that is not the outbox is recorded as such.
    ///
    /// # Errors
    /// [`MapError::Unfit`] if the outbox table lacks a column, or a column's type can't have its role.
    pub fn table(&mut self, table: &Table<'_>) -> Result<(), MapError> {
        let (outbox, id) = (self.table.as_ref(), self.table_id);
        self.tables.describe(table, outbox, id, &self.route)
    }

    /// The columns that the specification names, each once. A source need not know the types of others.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.route.fields.iter().map(|field| field.column.as_str())
    }

    /// The columns of the outbox table, as the database has them now, whose types can't have their roles.
    pub fn unfit_types(&self, columns: &[DeclaredColumn<'_>]) -> Vec<Unfit> {
        let unfit = |table| unfit_types(table, columns, &self.route);
        self.table.as_ref().map_or_else(Vec::new, unfit)
    }

    /// Clears all tables, because a new connection describes them again. `outbox` is the current number of the outbox
    /// table.
    pub fn clear_tables(&mut self, outbox: Option<TableId>) {
        self.table_id = outbox;
        self.tables.forget();
    }

    /// The names of this table and of the outbox, if this table is another one and the outbox is not described yet;
    /// `None` without an outbox table.
    pub fn before_outbox(&self, table: TableId) -> Option<(&TableName, &TableName)> {
        self.tables.before_outbox(table).zip(self.table.as_ref())
    }

    /// Maps a row; `None` if its table is not the outbox.
    ///
    /// # Errors
    /// [`MapError::Poison`] if the row can't be published; [`MapError::Inconsistent`] if the source is inconsistent.
    pub fn row<'a>(&'a mut self, row: &Row<'a>, at: At) -> Result<Option<Mapped<'a>>, MapError> {
        let Some(plan) = self.tables.plan(row.table)? else {
            return Ok(None);
        };
        if row.cells.len() != plan.width {
            let what = "it has another number of columns than the relation";
            return Err(MapError::Inconsistent { table: row.table, what });
        }
        self.scratch.unpositioned = self.of_deltas && row.table == delta::HEADER_TABLE_ID;
        let row = EventRow { bytes: row.bytes, cells: row.cells, columns: &plan.sources };
        map(&mut self.route, &mut self.scratch, row, at, false)
    }

    /// The poison of a row that has more than `limit` bytes, so that its large values were not read. Its record has no
    /// topic and no value, so that the incomplete row is never published.
    #[cold]
    pub fn too_large(&mut self, row: &Row<'_>, at: At, limit: usize) -> MapError {
        let inconsistent = |what| MapError::Inconsistent { table: row.table, what };
        let plan = match self.tables.plan(row.table) {
            Ok(Some(plan)) => plan,
            Ok(None) => return inconsistent("it is not the outbox"),
            Err(error) => return error,
        };
        if row.cells.len() != plan.width {
            return inconsistent("it has another number of columns than the relation");
        }
        let row = EventRow { bytes: row.bytes, cells: row.cells, columns: &plan.sources };
        let (route, scratch) = (&mut self.route, &mut self.scratch);
        scratch.clear();
        let ranges = RecordMapper { route, row, scratch, at, message: false }.partial_ranges();
        let problem = Problem::RowTooLarge(limit);
        let mut error = poison(route, scratch, row, &ranges, at.position, problem);
        if let MapError::Poison(poison) = &mut error {
            poison.partial.record.topic.clear();
            poison.partial.record.value = None;
        }
        error
    }

    /// Whether an UPDATE halts the pipeline: `Some` if the table is the outbox and the configuration says so. The inner
    /// value is the row's id, if it is readable.
    ///
    /// # Errors
    /// [`MapError::Inconsistent`] if the stream is inconsistent.
    pub fn halting_update(&self, row: &Row<'_>) -> Result<Option<Option<String>>, MapError> {
        if self.on_update == OnUpdate::Skip {
            return Ok(None);
        }
        let Some(plan) = self.tables.plan(row.table)? else { return Ok(None) };
        let column = plan.sources.get(self.route.core.id.0).and_then(|source| source.column);
        let id = column.and_then(|column| row.text(column));
        Ok(Some(id.map(|id| shown_id(&String::from_utf8_lossy(id)).into_owned())))
    }

    /// Whether a message has the configured prefix.
    pub fn has_prefix(&self, message: &Message<'_>) -> bool {
        self.prefix.as_deref() == Some(message.prefix)
    }

    /// Maps a message; `None` if it is not transactional or has another prefix.
    ///
    /// # Errors
    /// [`MapError::Poison`] if the message can't be published.
    pub fn message<'a>(
        &'a mut self,
        message: &Message<'a>,
        at: At,
    ) -> Result<Option<Mapped<'a>>, MapError> {
        if !message.transactional || self.prefix.as_deref() != Some(message.prefix) {
            return Ok(None);
        }
        if !message.is_text || self.message.read(message.content, &self.route).is_err() {
            return Err(not_json(at.position, message.content));
        }
        self.scratch.unpositioned = false;
        self.message
            .default_id(&self.route, |bytes| self.scratch.positions.append(at.position, bytes));
        let MessageRow { bytes, cells, sources, .. } = &self.message;
        let row = EventRow { bytes, cells, columns: sources };
        map(&mut self.route, &mut self.scratch, row, at, true)
    }
}

#[inline]
fn map<'a>(
    route: &'a mut Route,
    scratch: &'a mut Scratch,
    row: EventRow<'a>,
    at: At,
    message: bool,
) -> Result<Option<Mapped<'a>>, MapError> {
    scratch.clear();
    let ranges = match (RecordMapper { route, row, scratch, at, message }).ranges() {
        Ok(ranges) => ranges,
        Err(problem) => {
            scratch.clear();
            let ranges = RecordMapper { route, row, scratch, at, message }.partial_ranges();
            return Err(poison(route, scratch, row, &ranges, at.position, problem));
        }
    };
    resolve(route, scratch, row, ranges, at)
}

/// Resolves ranges to slices. Inlined, because the returned value has half a kilobyte, which would be moved for each
/// event.
#[inline]
fn resolve<'a>(
    route: &'a Route,
    scratch: &'a Scratch,
    row: EventRow<'a>,
    ranges: RecordRanges,
    at: At,
) -> Result<Option<Mapped<'a>>, MapError> {
    let buffers = Buffers { row: row.bytes, scratch: &scratch.bytes, fixed: &route.fixed };
    let not_text =
        |field| Err(poison(route, scratch, row, &ranges, at.position, route.not_text(field)));
    let text = |range: CellRange| std::str::from_utf8(buffers.get(range).unwrap_or_default()).ok();
    let core = route.core;
    let Some(id) = text(ranges.aggregate_id) else { return not_text(Some(core.aggregate_id)) };
    let Some(event_id) = text(ranges.id) else { return not_text(Some(core.id)) };
    let mut headers = Headers::with_capacity(scratch.headers.len());
    for (name, value) in &scratch.headers {
        // Most names are fixed text, which is known to be UTF-8.
        let name = match name {
            CellRange::Fixed(ByteRange { start, len }) => route.fixed.get(*start..start + len),
            CellRange::Null | CellRange::Row(_) | CellRange::Scratch(_) => text(*name),
        };
        let Some(name) = name else { return not_text(None) };
        headers.push(Header { name, value: buffers.get(*value) });
    }
    Ok(Some(Mapped {
        aggregate: Aggregate { kind: scratch.aggregate_type.text(), id },
        event_type: scratch.event_type.text(),
        event_id,
        clamped: ranges.clamped,
        available_at: ranges.available_at,
        expires_at: ranges.expires_at,
        record: Record {
            topic: scratch.topic.text(),
            partition: ranges.partition,
            key: buffers.get(ranges.key),
            value: buffers.get(ranges.value),
            timestamp_ms: ranges.timestamp_ms,
            headers: &[],
        },
        headers,
    }))
}

/// The parts of an event's record, as ranges.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordRanges {
    pub(super) id: CellRange,
    pub(super) aggregate_type: CellRange,
    pub(super) aggregate_id: CellRange,
    pub(super) event_type: CellRange,
    pub(super) topic: CellRange,
    pub(super) key: CellRange,
    pub(super) value: CellRange,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) clamped: bool,
    pub(super) available_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
}

/// Prefix of a header of the row whose name is reserved for a header of Postrider.
const ROW_PREFIX: &str = "row.";

/// Maps one event to ranges.
pub(super) struct RecordMapper<'w> {
    pub(super) route: &'w mut Route,
    pub(super) row: EventRow<'w>,
    pub(super) scratch: &'w mut Scratch,
    pub(super) at: At,
    /// The event is a logical message: errors have names of members, not of columns.
    pub(super) message: bool,
}

impl RecordMapper<'_> {
    pub(super) fn ranges(mut self) -> Result<RecordRanges, Problem> {
        let core = self.route.core;
        let id = self.needed(core.id)?;
        let aggregate_type = self.needed(core.aggregate_type)?;
        let (aggregate_id, event_type) = if self.route.debezium {
            let event_type = core.event_type.and_then(|field| self.row.extent(field));
            (self.row.extent(core.aggregate_id), event_type)
        } else {
            let event_type = core.event_type.map(|field| self.needed(field)).transpose()?;
            (Some(self.needed(core.aggregate_id)?), event_type)
        };
        let topic = self.topic()?;
        let key = self.key()?;
        let partition = self.partition()?;
        let value = self.value()?;
        let (timestamp_ms, clamped) = self.timestamp();
        let available_at = self.instant(core.available_at, Ambiguous::Earlier)?;
        let expires_at = self.instant(core.expires_at, Ambiguous::Later)?;
        self.headers()?;
        let (aggregate_type, event_type) = (CellRange::Row(aggregate_type), event_type.into());
        self.texts(aggregate_type, event_type)?;
        Ok(RecordRanges {
            id: CellRange::Row(id),
            aggregate_type,
            aggregate_id: aggregate_id.into(),
            event_type,
            topic,
            key,
            value,
            partition,
            timestamp_ms,
            clamped,
            available_at,
            expires_at,
        })
    }

    /// The ranges of an event that can't be published: a part that can't be read is NULL, and a payload that can't be
    /// converted is as in the row.
    #[cold]
    pub(super) fn partial_ranges(mut self) -> RecordRanges {
        let core = self.route.core;
        let topic = self.topic().unwrap_or(CellRange::Null);
        let key = self.key().unwrap_or(CellRange::Null);
        let partition = self.partition().unwrap_or(None);
        let payload = self.row.extent(core.payload);
        let value = self.value().unwrap_or_else(|_| payload.into());
        let (timestamp_ms, clamped) = self.timestamp();
        // Their problem is the event's problem, or another problem was found first.
        self.headers().unwrap_or_default();
        RecordRanges {
            id: self.row.extent(core.id).into(),
            aggregate_type: self.row.extent(core.aggregate_type).into(),
            aggregate_id: self.row.extent(core.aggregate_id).into(),
            event_type: core.event_type.and_then(|field| self.row.extent(field)).into(),
            topic,
            key,
            value,
            partition,
            timestamp_ms,
            clamped,
            available_at: None,
            expires_at: None,
        }
    }

    /// The time in a field; `None` if it is NULL. A time that can't be read is an error and never guessed, because it
    /// decides whether an event is published.
    fn instant(
        &self,
        field: Option<FieldId>,
        ambiguous: Ambiguous,
    ) -> Result<Option<Timestamp>, Problem> {
        let Some((field, text)) = field.and_then(|field| Some((field, self.row.text(field)?)))
        else {
            return Ok(None);
        };
        let is_text = self.row.type_of(field).is(Kind::Text) && !self.message;
        // Trailing spaces belong to the type character(n).
        let text = if is_text { text.trim_ascii_end() } else { text };
        let instant = if is_text && !time::is_plain(text) {
            Err(InstantError::Unreadable)
        } else {
            time::instant(text, self.route.zone.as_ref(), ambiguous)
        };
        instant.map(Some).map_err(|error| match error {
            InstantError::Unreadable => Problem::Time(self.label(field)),
            InstantError::NoZone => Problem::NoZone(self.label(field)),
        })
    }

    /// The name of a field in errors.
    fn label(&self, field: FieldId) -> String {
        label(self.route, self.message, field)
    }

    fn needed(&self, field: FieldId) -> Result<ByteRange, Problem> {
        self.row.extent(field).ok_or_else(|| {
            let label = self.label(field);
            if self.message { Problem::NoMember(label) } else { Problem::Null(label) }
        })
    }

    fn topic(&mut self) -> Result<CellRange, Problem> {
        let route = &mut *self.route;
        let template = &route.topic;
        let fill =
            |fill: Fill, scratch: &mut Vec<u8>| fill(template, &self.row, &route.fixed, scratch);
        let scratch = &mut self.scratch.bytes;
        let topic = match &mut route.replace {
            None => fill(Template::fill, scratch),
            Some(rewrite) => {
                let whole = if route.debezium { Template::fill_fields } else { Template::fill };
                fill(whole, scratch).map(|subject| {
                    // A subject in the scratch buffer is copied, because the buffer grows.
                    let copy = match subject {
                        CellRange::Scratch(extent) => Some(extent.of(scratch).to_vec()),
                        CellRange::Null | CellRange::Row(_) | CellRange::Fixed(_) => None,
                    };
                    let text = match (&copy, subject) {
                        (Some(copy), _) => copy.as_slice(),
                        (None, CellRange::Row(extent)) => self.row.at(extent),
                        (None, CellRange::Fixed(extent)) => extent.of(route.fixed.as_bytes()),
                        (None, CellRange::Null | CellRange::Scratch(_)) => &[],
                    };
                    rewrite.apply(text, scratch).unwrap_or(subject)
                })
            }
        };
        let topic = topic.map_err(|field| Problem::Null(self.label(field)))?;
        let Scratch { bytes: scratch, topic: cached, .. } = &mut *self.scratch;
        let buffers = Buffers { row: self.row.bytes, scratch, fixed: &self.route.fixed };
        let name = buffers.get(topic).unwrap_or_default();
        if cached.update(name, self.route.names.allows) {
            Ok(topic)
        } else {
            let template = self.route.topic_text.clone();
            Err(Problem::TopicName { template, names: self.route.names })
        }
    }

    /// Checks that aggregate type and event type are UTF-8, and caches them.
    fn texts(&mut self, aggregate_type: CellRange, event_type: CellRange) -> Result<(), Problem> {
        let core = self.route.core;
        let row = self.row.bytes;
        let texts = [
            (&mut self.scratch.aggregate_type, aggregate_type, Some(core.aggregate_type)),
            (&mut self.scratch.event_type, event_type, core.event_type),
        ];
        for (cached, range, field) in texts {
            let bytes = if let CellRange::Row(extent) = range { extent.of(row) } else { &[] };
            if !cached.update(bytes, |_| true) {
                return Err(self.route.not_text(field));
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Result<CellRange, Problem> {
        if self.route.key.is_empty() {
            return Ok(CellRange::Null);
        }
        match self.route.key.fill(&self.row, &self.route.fixed, &mut self.scratch.bytes) {
            Ok(key) => Ok(key),
            // Without a key, the events of an aggregate go to different partitions. Only Debezium does that.
            Err(_) if self.route.debezium => Ok(CellRange::Null),
            Err(field) => Err(Problem::Null(self.label(field))),
        }
    }

    /// The partition number; NULL means that the key decides, as in Debezium.
    fn partition(&mut self) -> Result<Option<i32>, Problem> {
        let Some(template) = &self.route.partition else {
            return Ok(None);
        };
        match template.fill(&self.row, &self.route.fixed, &mut self.scratch.bytes) {
            Ok(range) => {
                let Scratch { bytes: scratch, .. } = &*self.scratch;
                let buffers = Buffers { row: self.row.bytes, scratch, fixed: &self.route.fixed };
                let text = std::str::from_utf8(buffers.get(range).unwrap_or_default()).ok();
                let number = text.and_then(|text| text.trim().parse().ok());
                number.filter(|number| *number >= 0).map(Some).ok_or(Problem::Partition)
            }
            Err(_) => Ok(None),
        }
    }

    fn value(&mut self) -> Result<CellRange, Problem> {
        let field = self.route.core.payload;
        let payload = self.row.extent(field);
        if payload.is_none() {
            match self.route.null_payload {
                NullPayload::Park => return Err(Problem::NullPayload),
                NullPayload::Tombstone => return Ok(CellRange::Null),
                NullPayload::Empty => {}
            }
        }
        // As Java's `trim`: all characters up to the space are white space. A bytea is never blank.
        let is_blank = |text: &[u8]| text.iter().all(|byte| *byte <= b' ');
        if self.route.blank_is_tombstone
            && !self.row.type_of(field).is(Kind::Bytea)
            && payload.is_some_and(|extent| is_blank(self.row.at(extent)))
        {
            return Ok(CellRange::Null);
        }
        let scratch = &mut self.scratch.bytes;
        if let Some(envelope) = &self.route.envelope {
            let wrapped =
                debezium::wrap(envelope, payload, field, &self.row, &self.route.fixed, scratch);
            return wrapped.ok_or_else(|| Problem::NotHex(self.label(field)));
        }
        let Some(payload) = payload else {
            return Ok(CellRange::Fixed(ByteRange { start: 0, len: 0 }));
        };
        if !self.row.type_of(field).is(Kind::Bytea) {
            return Ok(if self.route.debezium {
                debezium::text(&self.row, field, Place::Plain, scratch)
            } else {
                CellRange::Row(payload)
            });
        }
        let start = scratch.len();
        match debezium::append_bytea(self.row.at(payload), scratch) {
            Some(()) => Ok(CellRange::since(start, scratch)),
            None => Err(Problem::NotHex(self.label(field))),
        }
    }

    fn timestamp(&mut self) -> (Option<i64>, bool) {
        let commit = self.at.commit_time;
        match self.route.timestamp {
            TimestampSource::Broker => (None, false),
            TimestampSource::Commit => (Some(commit.unix_millis()), false),
            TimestampSource::Event => {
                let own = self.route.core.time.and_then(|field| self.row.text(field));
                let clock = &mut self.scratch.clock;
                let (ms, clamped) = own.map_or((commit.unix_millis(), false), |own| {
                    clock.stamp(own, commit, self.route.zone.as_ref())
                });
                (Some(ms), clamped)
            }
        }
    }

    /// Adds all headers. A header that can't be read is omitted, and is the error after all others were added.
    fn headers(&mut self) -> Result<(), Problem> {
        let mut problem = Ok(());
        let Scratch { bytes: scratch, headers, positions, rows, unpositioned, .. } =
            &mut *self.scratch;
        let fixed = &self.route.fixed;
        for rule in &self.route.headers {
            match rule {
                // The table lacks the column, and may.
                HeaderRule::Field { field, .. } | HeaderRule::Typed { field, .. }
                    if !self.row.has(*field) => {}
                HeaderRule::Field { name, field } => {
                    headers.push((CellRange::Fixed(*name), self.row.extent(*field).into()));
                }
                HeaderRule::Typed { name, field } => {
                    let value = debezium::text(&self.row, *field, Place::Header, scratch);
                    headers.push((CellRange::Fixed(*name), value));
                }
                HeaderRule::Template { name, template } => {
                    // A field that is NULL makes the header NULL: a header does not stop an event.
                    let value = template.fill(&self.row, fixed, scratch).unwrap_or(CellRange::Null);
                    headers.push((CellRange::Fixed(*name), value));
                }
                HeaderRule::Position { name, history } => {
                    let (start, at) = (scratch.len(), self.at.position);
                    let name = if *rows {
                        positions.append_current(scratch);
                        history
                    } else if Positions::has(at) && !*unpositioned {
                        positions.append(at, scratch);
                        name
                    } else {
                        positions.append_history(at.commit, scratch);
                        history
                    };
                    headers.push((CellRange::Fixed(*name), CellRange::since(start, scratch)));
                }
                HeaderRule::Object { field } => {
                    let Some(text) = self.row.text(*field) else { continue };
                    let first = headers.len();
                    let reserved = &self.route.reserved_names;
                    let wrong = if object(text, reserved, scratch, headers).is_err() {
                        Problem::NotAnObject
                    } else if headers[first..].iter().any(|(name, _)| has_zero_byte(*name, scratch))
                    {
                        Problem::HeaderName
                    } else {
                        continue;
                    };
                    headers.truncate(first);
                    problem = Err(wrong(label(self.route, self.message, *field)));
                }
                HeaderRule::Source { name, value } => {
                    if !headers.iter().any(|(other, _)| is_source(*other, scratch)) {
                        headers.push((CellRange::Fixed(*name), CellRange::Fixed(*value)));
                    }
                }
                HeaderRule::Trace { w3c, other, field } => {
                    if let Some(extent) = self.row.extent(*field) {
                        let name = if is_traceparent(self.row.at(extent)) { w3c } else { other };
                        headers.push((CellRange::Fixed(*name), CellRange::Row(extent)));
                    }
                }
            }
        }
        problem
    }
}

/// The name of a field in errors: that of a message's member, or of a table's column.
fn label(route: &Route, message: bool, field: FieldId) -> String {
    let field = &route.fields[field.0];
    if message { field.name.clone() } else { field.column.clone() }
}

type Fill = fn(&Template, &EventRow<'_>, &str, &mut Vec<u8>) -> Result<CellRange, FieldId>;

/// Adds each member of a JSON object as a header. A member with a reserved name gets the name `row.NAME`.
fn object(
    text: &[u8],
    reserved: &[String],
    scratch: &mut Vec<u8>,
    headers: &mut Vec<(CellRange, CellRange)>,
) -> Result<(), json::NotAnObject> {
    // The empty object is usual, and needs no parser.
    if text == b"{}" {
        return Ok(());
    }
    json::members(text, scratch, |scratch, start, value| {
        let name = scratch.get(start..).unwrap_or_default();
        if reserved.iter().any(|reserved| reserved.as_bytes() == name) {
            scratch.splice(start..start, ROW_PREFIX.bytes());
        }
        let name = CellRange::since(start, scratch);
        let start = scratch.len();
        json::append_plain(value, scratch);
        headers.push((name, CellRange::since(start, scratch)));
    })
}

fn has_zero_byte(name: CellRange, scratch: &[u8]) -> bool {
    match name {
        CellRange::Scratch(extent) => extent.of(scratch).contains(&0),
        CellRange::Null | CellRange::Row(_) | CellRange::Fixed(_) => false,
    }
}

/// Whether a member of the row's headers has the name `source`. The names of the configuration are compared before.
fn is_source(name: CellRange, scratch: &[u8]) -> bool {
    match name {
        CellRange::Scratch(extent) => extent.of(scratch) == SOURCE.as_bytes(),
        CellRange::Null | CellRange::Row(_) | CellRange::Fixed(_) => false,
    }
}

/// Buffers and caches of a mapper, reused from event to event.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The bytes of a record that are not in the row as they are.
    pub(super) bytes: Vec<u8>,
    /// Name and value of each header.
    pub(super) headers: Vec<(CellRange, CellRange)>,
    /// Texts that are often the same as those of the previous event, and then are not checked again.
    pub(super) topic: CachedText,
    pub(super) aggregate_type: CachedText,
    pub(super) event_type: CachedText,
    pub(super) clock: TimeCache,
    pub(super) positions: Positions,
    /// Events are rows that are read from the table, whose positions are not known.
    pub(super) rows: bool,
    /// The event begins a sequence of documents ([`delta::HEADER_TABLE_ID`]).
    pub(super) unpositioned: bool,
}

/// A checked text, which the next event often has too.
#[derive(Debug, Default)]
pub(super) struct CachedText(String);

impl CachedText {
    #[inline]
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Sets the text, if `bytes` are UTF-8 and `is_good`. Returns whether they are.
    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8], is_good: impl FnOnce(&[u8]) -> bool) -> bool {
        // The initial empty text was not checked.
        if bytes == self.0.as_bytes() && !bytes.is_empty() {
            return true;
        }
        let Some(text) = std::str::from_utf8(bytes).ok().filter(|_| is_good(bytes)) else {
            return false;
        };
        self.0.clear();
        self.0.push_str(text);
        true
    }
}

impl Scratch {
    /// Maximum size of the buffer between events, so that one event of a gigabyte does not keep that memory. Unit:
    /// bytes.
    pub(super) const KEPT_MAX: usize = 1 << 20;

    pub(super) fn clear(&mut self) {
        self.headers.clear();
        self.bytes.clear();
        self.bytes.shrink_to(Self::KEPT_MAX);
    }
}

/// The error of an event that can't be published, with its readable parts.
#[cold]
pub(super) fn poison(
    route: &Route,
    scratch: &Scratch,
    row: EventRow<'_>,
    ranges: &RecordRanges,
    position: Position,
    problem: Problem,
) -> MapError {
    let buffers = Buffers { row: row.bytes, scratch: &scratch.bytes, fixed: &route.fixed };
    let bytes = |range: CellRange| buffers.get(range).map(<[u8]>::to_vec);
    let text = |range: CellRange| bytes(range).and_then(|bytes| String::from_utf8(bytes).ok());
    let aggregate_id = if ranges.aggregate_id == CellRange::Null && route.debezium {
        // As in the layout's records.
        Some(String::new())
    } else {
        text(ranges.aggregate_id)
    };
    let header = |(name, value): &(CellRange, CellRange)| Some((text(*name)?, bytes(*value)));
    let partial = PartialEvent {
        event_id: text(ranges.id),
        event_type: text(ranges.event_type),
        aggregate: text(ranges.aggregate_type).zip(aggregate_id),
        record: OwnedRecord {
            topic: text(ranges.topic).unwrap_or_default(),
            partition: ranges.partition,
            key: bytes(ranges.key),
            value: bytes(ranges.value),
            timestamp_ms: ranges.timestamp_ms,
            headers: scratch.headers.iter().filter_map(header).collect(),
        },
    };
    poison_error(position, problem, partial)
}

/// The error of a message that is not a JSON object. Its content is kept as it is.
#[cold]
pub(super) fn not_json(position: Position, content: &[u8]) -> MapError {
    let record = OwnedRecord { value: Some(content.to_vec()), ..OwnedRecord::default() };
    poison_error(position, Problem::NotJson, PartialEvent { record, ..PartialEvent::default() })
}

fn poison_error(position: Position, problem: Problem, partial: PartialEvent) -> MapError {
    let id = partial.event_id.as_deref();
    let event_id = id.map(|id| shown_id(id).into_owned());
    MapError::Poison(Poison { position, event_id, problem, partial: Box::new(partial) })
}

/// The members of a logical message (`pg_logical_emit_message(true, prefix, content)`), as if they were the columns of
/// a row.
///
/// The content is one JSON object, UTF-8:
///
/// ```json
/// {"aggregate_type": "order", "aggregate_id": "42", "event_type": "OrderPlaced", "payload": {"total": 9.5},
///  "id": "7f0c…", "headers": {"source": "shop"}}
/// ```
///
/// `id` is optional and defaults to the position; `headers` is an optional object. Any other role of the layout
/// (`topic`, `partition_key`, `time`, `trace`) and any extra column may be a member, by its name. Strings are unquoted,
/// other values are as written; the payload is always as written, so it stays JSON. `null` is NULL. Unknown members are
/// ignored. Of two members with the same name the last counts.
#[derive(Debug, Default)]
pub(super) struct MessageRow {
    pub(super) bytes: Vec<u8>,
    pub(super) cells: Vec<Option<ByteRange>>,
    pub(super) sources: Vec<ColumnSource>,
    names: Vec<u8>,
}

impl MessageRow {
    /// A row with one column for each field of `route`.
    pub(super) fn new(route: &Route) -> Self {
        let source = |(column, field): (usize, &super::route::Field)| {
            let kind = match field.role {
                Some(Role::Payload | Role::Headers) => Kind::Json,
                Some(_) | None => Kind::Text,
            };
            ColumnSource { column: Some(column), value_type: ValueType::of(kind) }
        };
        let sources = route.fields.iter().enumerate().map(source).collect();
        Self { sources, ..Self::default() }
    }

    /// Reads the content of a message.
    pub(super) fn read(&mut self, content: &[u8], route: &Route) -> Result<(), json::NotAnObject> {
        let Self { bytes, cells, names, .. } = self;
        bytes.clear();
        bytes.shrink_to(Scratch::KEPT_MAX);
        names.clear();
        cells.clear();
        cells.resize(route.fields.len(), None);
        json::members(content, names, |names, start, value| {
            let name = &names[start..];
            if let Some(field) = route.fields.iter().position(|field| field.name.as_bytes() == name)
            {
                let start = bytes.len();
                let as_written =
                    matches!(route.fields[field].role, Some(Role::Payload | Role::Headers));
                if as_written {
                    bytes.extend_from_slice(value.as_bytes());
                } else {
                    json::append_plain(value, bytes);
                }
                cells[field] =
                    (value != "null").then_some(ByteRange { start, len: bytes.len() - start });
            }
            names.clear();
        })
    }

    /// Sets the id, if the message has none.
    pub(super) fn default_id(&mut self, route: &Route, id: impl FnOnce(&mut Vec<u8>)) {
        let cell = &mut self.cells[route.core.id.0];
        if cell.is_none() {
            let start = self.bytes.len();
            id(&mut self.bytes);
            *cell = Some(ByteRange { start, len: self.bytes.len() - start });
        }
    }
}

/// The columns of the outbox's fields in the rows of one table.
///
/// Columns are found by name in each description of the table, never by position, because a row has the columns that
/// the table had at the time of its commit.
#[derive(Debug)]
pub(super) struct TablePlan {
    /// Number of columns of a row.
    pub(super) width: usize,
    /// By field.
    pub(super) sources: Vec<ColumnSource>,
}

/// A table that the source has described.
#[derive(Debug)]
enum DescribedTable {
    Outbox(TablePlan),
    /// A table that is not the outbox.
    Other(TableName),
}

/// The tables that the source has described.
///
/// There are as many as the source sends: one, if `postrider setup` created the publication.
#[derive(Debug, Default)]
pub(super) struct Tables(BTreeMap<TableId, DescribedTable>);

impl Tables {
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// The plan for rows of the table; `None` if it is not the outbox.
    pub(super) fn plan(&self, table: TableId) -> Result<Option<&TablePlan>, MapError> {
        let what = "the server never described that relation";
        match self.0.get(&table).ok_or(MapError::Inconsistent { table, what })? {
            DescribedTable::Outbox(plan) => Ok(Some(plan)),
            DescribedTable::Other(_) => Ok(None),
        }
    }

    /// The name of a table that is not the outbox, as long as no outbox is described.
    pub(super) fn before_outbox(&self, table: TableId) -> Option<&TableName> {
        let is_outbox = |table: &DescribedTable| matches!(table, DescribedTable::Outbox(_));
        match self.0.get(&table)? {
            DescribedTable::Other(name) if !self.0.values().any(is_outbox) => Some(name),
            DescribedTable::Other(_) | DescribedTable::Outbox(_) => None,
        }
    }

    /// Takes the description of a table. `outbox`, `id`: name and number of the outbox.
    pub(super) fn describe(
        &mut self,
        table: &Table<'_>,
        outbox: Option<&TableName>,
        id: Option<TableId>,
        route: &Route,
    ) -> Result<(), MapError> {
        // Removed first, so that no row is read with an outdated plan if the table does not match the layout now.
        self.0.remove(&table.id);
        let described = match outbox.filter(|outbox| is_outbox(table, outbox, id)) {
            Some(outbox) => {
                DescribedTable::Outbox(plan(table, outbox, route).map_err(MapError::Unfit)?)
            }
            None => DescribedTable::Other(TableName {
                schema: table.schema.to_owned(),
                name: table.name.to_owned(),
            }),
        };
        self.0.insert(table.id, described);
        Ok(())
    }
}

/// Whether a table is the outbox, by its number or by its name.
fn is_outbox(table: &Table<'_>, outbox: &TableName, id: Option<TableId>) -> bool {
    id == Some(table.id) || (outbox.schema == table.schema && outbox.name == table.name)
}

/// The columns of the table, as the database has it, whose types can't have their roles. Missing columns are not
/// reported here.
pub(super) fn unfit_types(
    table: &TableName,
    columns: &[DeclaredColumn<'_>],
    route: &Route,
) -> Vec<Unfit> {
    let mut unfit = Vec::new();
    for field in &route.fields {
        let Some(declared) = columns.iter().find(|column| column.name == field.column) else {
            continue;
        };
        if let Some(role) = field.role.filter(|role| !fits(*role, declared.value_type, route)) {
            let (column, is) = (field.column.clone(), Some(declared.type_name.to_owned()));
            unfit.push(Unfit::Type { table: table.clone(), column, role, is });
        }
    }
    unfit
}

fn plan(table: &Table<'_>, outbox: &TableName, route: &Route) -> Result<TablePlan, Unfit> {
    let mut missing = Vec::new();
    let mut sources = Vec::with_capacity(route.fields.len());
    for field in &route.fields {
        let mut columns = table.columns.iter().enumerate();
        let Some((index, column)) = columns.find(|(_, column)| column.name == field.column) else {
            if !field.may_lack {
                missing.push((field.column.clone(), key_of(field)));
            }
            sources.push(ColumnSource::default());
            continue;
        };
        let value_type = column.of;
        if let Some(role) = field.role.filter(|role| !fits(*role, value_type, route)) {
            let column = field.column.clone();
            return Err(Unfit::Type { table: outbox.clone(), column, role, is: None });
        }
        let decides = matches!(field.role, Some(Role::AvailableAt | Role::ExpiresAt));
        if let Some(role) = field.role.filter(|_| decides && value_type.lacks_zone())
            && route.zone.is_none()
        {
            let column = field.column.clone();
            return Err(Unfit::NoZone { table: outbox.clone(), column, role });
        }
        sources.push(ColumnSource { column: Some(index), value_type });
    }
    if missing.is_empty() {
        Ok(TablePlan { width: table.columns.len(), sources })
    } else {
        Err(Unfit::Missing { table: outbox.clone(), columns: missing })
    }
}

/// The configuration key by which another column can be set for a field.
fn key_of(field: &Field) -> String {
    match field.role {
        Some(role) => format!("outbox.columns.{role}"),
        None => format!("outbox.extra.{}", field.column),
    }
}

fn fits(role: Role, of: ValueType, route: &Route) -> bool {
    match role {
        Role::Time => route.timestamp != TimestampSource::Event || of.can_be_time(),
        Role::AvailableAt | Role::ExpiresAt => of.can_be_time(),
        Role::Headers => of.can_be_object(),
        Role::Id
        | Role::AggregateType
        | Role::AggregateId
        | Role::EventType
        | Role::Payload
        | Role::Topic
        | Role::PartitionKey
        | Role::Trace => true,
    }
}
