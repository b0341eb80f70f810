//! The mapper: rows and logical messages in, records out.

use crate::debezium::{self, Place};
use crate::encoding::Encoding;
use crate::error::{MapError, PartialEvent, Poison, Problem, SpecError, Unfit};
use crate::headers::{self, Headers, Positions, is_traceparent};
use crate::json;
use crate::layout::Role;
use crate::route::{Field, HeaderRule, Route, Template};
use crate::span::{Buffers, Extent, FieldId, Row, Source, Span};
use crate::spec::{NullPayload, OnUpdate, OutboxSpec, TableName, TimestampSource};
use crate::time::{self, Clock, NoInstant, Twice};
use crate::types::{ColumnType, Kind, Resolved, TypeFacts, Types};
use pg_replication::pgoutput::{Cell, Insert, LogicalMessage, Relation, TypeName, Update};
use postrider_core::event::{Aggregate, Histories, PgTime, Position, shown_id};
use postrider_core::record::{Header, OwnedRecord, Record};
use std::collections::BTreeMap;
use std::fmt;

/// Makes records of one outbox's rows and messages. One to a connection; the driver owns it.
#[derive(Debug)]
pub struct Mapper {
    table: Option<TableName>,
    /// The table's OID now: its rows are ours under whatever name it had, or gets, when they are committed.
    table_oid: Option<u32>,
    prefix: Option<String>,
    on_update: OnUpdate,
    route: Route,
    relations: Relations,
    types: Types,
    /// The row's columns, by index.
    cells: Vec<Option<Extent>>,
    message: MessageRow,
    /// What messages are in, and one of them in UTF-8.
    encoding: Encoding,
    decoded: String,
    work: Work,
}

/// Where and when an event was committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Its identity and place in the order.
    pub position: Position,
    /// `Begin.commit_time`.
    pub commit_time: PgTime,
}

/// An event and its record, borrowed from the row and the mapper.
pub struct Mapped<'a> {
    /// The unit of order it belongs to. With layout `debezium` a NULL aggregate id is an empty one here.
    pub aggregate: Aggregate<'a>,
    /// The event type; empty where layout `debezium` has none.
    pub event_type: &'a str,
    /// The event's id.
    pub event_id: &'a str,
    /// The event's own time could not be its timestamp, and the commit's is.
    pub clamped: bool,
    /// Not to be published before; only layouts that delay have it (`commerce`).
    pub available_at: Option<PgTime>,
    /// Not to be published after; only layouts that expire have it (`gcx`).
    pub expires_at: Option<PgTime>,
    record: Record<'a>,
    headers: Headers<'a>,
}

impl Mapped<'_> {
    /// Takes the event's position off its record: a later event of its aggregate was published before it.
    pub fn remove_position(&mut self) {
        headers::take_off(self.headers.as_mut_slice());
    }

    /// What a sink publishes.
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
    /// Everything that is wrong with it, each with its key.
    pub fn new(spec: OutboxSpec) -> Result<Self, Vec<SpecError>> {
        let route = Route::compile(&spec)?;
        Ok(Self {
            table: spec.table,
            table_oid: None,
            prefix: spec.message_prefix,
            on_update: spec.on_update,
            message: MessageRow::new(&route),
            route,
            relations: Relations::default(),
            types: Types::default(),
            cells: Vec::new(),
            encoding: Encoding::UTF8,
            decoded: String::new(),
            work: Work::default(),
        })
    }

    /// Which histories positions belong to. Those of rows that are read from the table (`rows`) are not known: their
    /// records have header `history` in place of `position`.
    pub fn set_histories(&mut self, histories: Histories, rows: bool) {
        self.work.positions.set_histories(histories);
        self.work.rows = rows;
    }

    /// Takes note of a table's shape; a table that is not the outbox is remembered as such.
    ///
    /// # Errors
    /// [`MapError::Unfit`] where the outbox table lacks a column or has one of an impossible type.
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), MapError> {
        let (table, oid) = (self.table.as_ref(), self.table_oid);
        self.relations.describe(relation, table, oid, &self.route, &self.types)
    }

    /// What logical messages are in from here on: the server sends them as they stand in WAL, whatever the session's
    /// encoding is.
    pub fn set_message_encoding(&mut self, encoding: Encoding) {
        self.encoding = encoding;
    }

    /// Types of our table's columns that are not built in, and that the catalog is to be asked for before the relation
    /// is taken note of: whether a column is a domain, and over what, no Relation message says.
    pub fn unknown_types(&self, relation: &Relation<'_>) -> Vec<u32> {
        match &self.table {
            Some(table) if is_ours(relation, table, self.table_oid) => {
                unknown_types(relation, &self.route, &self.types)
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// What the catalog has of the types that it was asked for.
    pub fn add_types(&mut self, asked: &[u32], found: &[TypeFacts]) {
        self.types.learn(asked, found);
    }

    /// Takes note of a type's name, for one that the catalog does not have any more.
    pub fn type_name(&mut self, of: &TypeName<'_>) {
        self.types.name(of);
    }

    /// The outbox table's columns, as the catalog has them now, whose types can't play their roles.
    pub fn unfit_types(&self, columns: &[ColumnType<'_>]) -> Vec<Unfit> {
        let unfit = |table| unfit_types(table, columns, &self.route);
        self.table.as_ref().map_or_else(Vec::new, unfit)
    }

    /// Forgets all relations and types: a new connection describes them again. `table_oid` is what the table's name
    /// stands for now.
    pub fn clear_relations(&mut self, table_oid: Option<u32>) {
        self.table_oid = table_oid;
        self.relations.forget();
        self.types.forget();
    }

    /// Maps a row; `None` where its table is not the outbox.
    ///
    /// # Errors
    /// [`MapError::Poison`] for this row alone; [`MapError::Inconsistent`] where the stream contradicts itself.
    pub fn insert<'a>(
        &'a mut self,
        insert: &Insert<'a>,
        at: At,
    ) -> Result<Option<Mapped<'a>>, MapError> {
        let relation_id = insert.relation_id;
        let out_of_step = |what| Err(MapError::Inconsistent { relation_id, what });
        let Some(plan) = self.relations.plan(relation_id)? else {
            return Ok(None);
        };
        if insert.new.len() != plan.width {
            return out_of_step("it has another number of columns than the relation");
        }
        self.cells.clear();
        self.cells.resize(plan.width, None);
        for (place, cell) in self.cells.iter_mut().zip(insert.new.cells()) {
            match cell {
                Cell::Null => {}
                Cell::Text { start, len } => *place = Some(Extent { start, len }),
                Cell::Other => return out_of_step("a column is not in text format"),
            }
        }
        let row = Row { bytes: insert.new.bytes(), cells: &self.cells, columns: &plan.sources };
        map(&mut self.route, &mut self.work, row, at, false)
    }

    /// What is known of a row whose large values are missing, since it has more than `limit` bytes. It has no topic, so
    /// that nothing publishes what is left of it.
    #[cold]
    pub fn too_large(&mut self, insert: &Insert<'_>, at: At, limit: usize) -> MapError {
        let relation_id = insert.relation_id;
        let plan = match self.relations.plan(relation_id) {
            Ok(Some(plan)) => plan,
            Ok(None) => {
                return MapError::Inconsistent { relation_id, what: "it is not the outbox" };
            }
            Err(error) => return error,
        };
        self.cells.clear();
        self.cells.extend(insert.new.cells().map(|cell| match cell {
            Cell::Text { start, len } => Some(Extent { start, len }),
            Cell::Null | Cell::Other => None,
        }));
        self.cells.resize(plan.width, None);
        let row = Row { bytes: insert.new.bytes(), cells: &self.cells, columns: &plan.sources };
        let (route, work) = (&mut self.route, &mut self.work);
        work.clear();
        let shape = Shaper { route, row, work, at, message: false }.salvage();
        let problem = Problem::RowTooLarge(limit);
        let mut error = poison(route, work, row, &shape, at.position, problem);
        if let MapError::Poison(poison) = &mut error {
            poison.partial.record.topic.clear();
            poison.partial.record.value = None;
        }
        error
    }

    /// Whether an UPDATE is one that halts: the configuration says so, and the table is the outbox. With the id of the
    /// row, where it can be read.
    ///
    /// # Errors
    /// [`MapError::Inconsistent`] where the stream contradicts itself.
    pub fn halting_update(&self, update: &Update<'_>) -> Result<Option<Option<String>>, MapError> {
        if self.on_update == OnUpdate::Skip {
            return Ok(None);
        }
        let Some(plan) = self.relations.plan(update.relation_id)? else { return Ok(None) };
        let column = plan.sources.get(self.route.core.id.0).and_then(|source| source.column);
        let cell = column.and_then(|column| update.new.cells().nth(column));
        let id = match cell {
            Some(Cell::Text { start, len }) => update.new.bytes().get(start..start + len),
            Some(Cell::Null | Cell::Other) | None => None,
        };
        Ok(Some(id.map(|id| shown_id(&String::from_utf8_lossy(id)).into_owned())))
    }

    /// Whether a logical message has the configured prefix.
    pub fn has_prefix(&self, message: &LogicalMessage<'_>) -> bool {
        self.prefix.as_deref() == Some(message.prefix)
    }

    /// Maps a logical message; `None` where it is not transactional or its prefix is not the configured one.
    ///
    /// # Errors
    /// [`MapError::Poison`] for this message alone.
    pub fn message<'a>(
        &'a mut self,
        message: &LogicalMessage<'a>,
        at: At,
    ) -> Result<Option<Mapped<'a>>, MapError> {
        if !message.transactional || self.prefix.as_deref() != Some(message.prefix) {
            return Ok(None);
        }
        self.decoded.shrink_to(Work::KEPT_MAX);
        let content = match self.encoding.decode(message.content, &mut self.decoded) {
            Ok(true) => self.decoded.as_bytes(),
            Ok(false) => message.content,
            Err(_not_text) => return Err(not_json(at.position, message.content)),
        };
        if self.message.read(content, &self.route).is_err() {
            return Err(not_json(at.position, content));
        }
        self.message
            .default_id(&self.route, |bytes| self.work.positions.append(at.position, bytes));
        let MessageRow { bytes, cells, sources, .. } = &self.message;
        let row = Row { bytes, cells, columns: sources };
        map(&mut self.route, &mut self.work, row, at, true)
    }
}

#[inline]
fn map<'a>(
    route: &'a mut Route,
    work: &'a mut Work,
    row: Row<'a>,
    at: At,
    message: bool,
) -> Result<Option<Mapped<'a>>, MapError> {
    work.clear();
    let shape = match (Shaper { route, row, work, at, message }).shape() {
        Ok(shape) => shape,
        Err(problem) => {
            work.clear();
            let shape = Shaper { route, row, work, at, message }.salvage();
            return Err(poison(route, work, row, &shape, at.position, problem));
        }
    };
    resolve(route, work, row, shape, at)
}

/// Places to slices. Inlined, because what it returns has half a kilobyte, which would be moved for each event.
#[inline]
fn resolve<'a>(
    route: &'a Route,
    work: &'a Work,
    row: Row<'a>,
    shape: Shape,
    at: At,
) -> Result<Option<Mapped<'a>>, MapError> {
    let buffers = Buffers { row: row.bytes, scratch: &work.scratch, fixed: &route.fixed };
    let not_text =
        |field| Err(poison(route, work, row, &shape, at.position, route.not_text(field)));
    let text = |span: Span| std::str::from_utf8(buffers.get(span).unwrap_or_default()).ok();
    let core = route.core;
    let Some(id) = text(shape.aggregate_id) else { return not_text(Some(core.aggregate_id)) };
    let Some(event_id) = text(shape.id) else { return not_text(Some(core.id)) };
    let mut headers = Headers::with_capacity(work.headers.len());
    for (name, value) in &work.headers {
        // Most names: they were text when the route was built.
        let name = match name {
            Span::Fixed(Extent { start, len }) => route.fixed.get(*start..start + len),
            Span::Null | Span::Row(_) | Span::Scratch(_) => text(*name),
        };
        let Some(name) = name else { return not_text(None) };
        headers.push(Header { name, value: buffers.get(*value) });
    }
    Ok(Some(Mapped {
        aggregate: Aggregate { kind: work.aggregate_type.text(), id },
        event_type: work.event_type.text(),
        event_id,
        clamped: shape.clamped,
        available_at: shape.available_at,
        expires_at: shape.expires_at,
        record: Record {
            topic: work.topic.text(),
            partition: shape.partition,
            key: buffers.get(shape.key),
            value: buffers.get(shape.value),
            timestamp_ms: shape.timestamp_ms,
            headers: &[],
        },
        headers,
    }))
}

// One event laid out: where every part of its record lies, or what is wrong with it.

/// An event's record, as places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) id: Span,
    pub(super) aggregate_type: Span,
    pub(super) aggregate_id: Span,
    pub(super) event_type: Span,
    pub(super) topic: Span,
    pub(super) key: Span,
    pub(super) value: Span,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
    pub(super) clamped: bool,
    pub(super) available_at: Option<PgTime>,
    pub(super) expires_at: Option<PgTime>,
}

/// What the name of a row's own header begins with where the name alone is a header of ours.
const ROW_PREFIX: &str = "row.";

/// Lays events out.
pub(super) struct Shaper<'w> {
    pub(super) route: &'w mut Route,
    pub(super) row: Row<'w>,
    pub(super) work: &'w mut Work,
    pub(super) at: At,
    /// Fields are called as members of a logical message, not as columns.
    pub(super) message: bool,
}

impl Shaper<'_> {
    pub(super) fn shape(mut self) -> Result<Shape, Problem> {
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
        let available_at = self.instant(core.available_at, Twice::Earlier)?;
        let expires_at = self.instant(core.expires_at, Twice::Later)?;
        self.headers()?;
        let (aggregate_type, event_type) = (Span::Row(aggregate_type), event_type.into());
        self.texts(aggregate_type, event_type)?;
        Ok(Shape {
            id: Span::Row(id),
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

    /// The same for an event that is poison: what can't be had is null, and a payload that can't be shaped stands as
    /// it is in the row.
    #[cold]
    pub(super) fn salvage(mut self) -> Shape {
        let core = self.route.core;
        let topic = self.topic().unwrap_or(Span::Null);
        let key = self.key().unwrap_or(Span::Null);
        let partition = self.partition().unwrap_or(None);
        let payload = self.row.extent(core.payload);
        let value = self.value().unwrap_or_else(|_| payload.into());
        let (timestamp_ms, clamped) = self.timestamp();
        // What is wrong with them is known, or something else was found first.
        self.headers().unwrap_or_default();
        Shape {
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

    /// A field's time; `None` where it is NULL. Whether an event is published depends on it, so one that can't be
    /// read is never guessed.
    fn instant(&self, field: Option<FieldId>, twice: Twice) -> Result<Option<PgTime>, Problem> {
        let Some((field, text)) = field.and_then(|field| Some((field, self.row.text(field)?)))
        else {
            return Ok(None);
        };
        let is_text = self.row.kind(field) == Kind::Text && !self.message;
        // Those of character(n) belong to the type.
        let text = if is_text { text.trim_ascii_end() } else { text };
        let instant = if is_text && !time::is_plain(text) {
            Err(NoInstant::Unreadable)
        } else {
            time::instant(text, self.route.zone.as_ref(), twice)
        };
        instant.map(Some).map_err(|error| match error {
            NoInstant::Unreadable => Problem::Time(self.label(field)),
            NoInstant::NoZone => Problem::NoZone(self.label(field)),
        })
    }

    /// What messages call a field.
    fn label(&self, field: FieldId) -> String {
        label(self.route, self.message, field)
    }

    fn needed(&self, field: FieldId) -> Result<Extent, Problem> {
        self.row.extent(field).ok_or_else(|| {
            let label = self.label(field);
            if self.message { Problem::NoMember(label) } else { Problem::Null(label) }
        })
    }

    fn topic(&mut self) -> Result<Span, Problem> {
        let route = &mut *self.route;
        let template = &route.topic;
        let fill =
            |fill: Fill, scratch: &mut Vec<u8>| fill(template, &self.row, &route.fixed, scratch);
        let scratch = &mut self.work.scratch;
        let topic = match &mut route.replace {
            None => fill(Template::fill, scratch),
            Some(rewrite) => {
                let whole = if route.debezium { Template::fill_fields } else { Template::fill };
                fill(whole, scratch).map(|subject| {
                    // The subject may lie in the scratch buffer, which grows: only then is it copied.
                    let copy = match subject {
                        Span::Scratch(extent) => Some(extent.of(scratch).to_vec()),
                        Span::Null | Span::Row(_) | Span::Fixed(_) => None,
                    };
                    let text = match (&copy, subject) {
                        (Some(copy), _) => copy.as_slice(),
                        (None, Span::Row(extent)) => self.row.at(extent),
                        (None, Span::Fixed(extent)) => extent.of(route.fixed.as_bytes()),
                        (None, Span::Null | Span::Scratch(_)) => &[],
                    };
                    rewrite.apply(text, scratch).unwrap_or(subject)
                })
            }
        };
        let topic = topic.map_err(|field| Problem::Null(self.label(field)))?;
        let Work { scratch, topic: known, .. } = &mut *self.work;
        let buffers = Buffers { row: self.row.bytes, scratch, fixed: &self.route.fixed };
        let name = buffers.get(topic).unwrap_or_default();
        if known.turns_into(name, postrider_core::record::is_topic_name) {
            Ok(topic)
        } else {
            Err(Problem::TopicName(self.route.topic_text.clone()))
        }
    }

    /// Aggregate type and event type: text both, or nothing.
    fn texts(&mut self, aggregate_type: Span, event_type: Span) -> Result<(), Problem> {
        let core = self.route.core;
        let row = self.row.bytes;
        let texts = [
            (&mut self.work.aggregate_type, aggregate_type, Some(core.aggregate_type)),
            (&mut self.work.event_type, event_type, core.event_type),
        ];
        for (known, span, field) in texts {
            let bytes = if let Span::Row(extent) = span { extent.of(row) } else { &[] };
            if !known.turns_into(bytes, |_| true) {
                return Err(self.route.not_text(field));
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Result<Span, Problem> {
        if self.route.key.is_empty() {
            return Ok(Span::Null);
        }
        match self.route.key.fill(&self.row, &self.route.fixed, &mut self.work.scratch) {
            Ok(key) => Ok(key),
            // Without a key an aggregate's events would scatter over partitions: only Debezium's users know it so.
            Err(_) if self.route.debezium => Ok(Span::Null),
            Err(field) => Err(Problem::Null(self.label(field))),
        }
    }

    /// NULL leaves the choice to the key, as in Debezium.
    fn partition(&mut self) -> Result<Option<i32>, Problem> {
        let Some(template) = &self.route.partition else {
            return Ok(None);
        };
        match template.fill(&self.row, &self.route.fixed, &mut self.work.scratch) {
            Ok(span) => {
                let Work { scratch, .. } = &*self.work;
                let buffers = Buffers { row: self.row.bytes, scratch, fixed: &self.route.fixed };
                let text = std::str::from_utf8(buffers.get(span).unwrap_or_default()).ok();
                let number = text.and_then(|text| text.trim().parse().ok());
                number.filter(|number| *number >= 0).map(Some).ok_or(Problem::Partition)
            }
            Err(_) => Ok(None),
        }
    }

    fn value(&mut self) -> Result<Span, Problem> {
        let field = self.route.core.payload;
        let payload = self.row.extent(field);
        if payload.is_none() {
            match self.route.null_payload {
                NullPayload::Park => return Err(Problem::NullPayload),
                NullPayload::Tombstone => return Ok(Span::Null),
                NullPayload::Empty => {}
            }
        }
        // As Java trims: everything up to the space. Bytes are never blank.
        let is_blank = |text: &[u8]| text.iter().all(|byte| *byte <= b' ');
        if self.route.blank_is_tombstone
            && self.row.kind(field) != Kind::Bytea
            && payload.is_some_and(|extent| is_blank(self.row.at(extent)))
        {
            return Ok(Span::Null);
        }
        let scratch = &mut self.work.scratch;
        if let Some(envelope) = &self.route.envelope {
            let wrapped =
                debezium::wrap(envelope, payload, field, &self.row, &self.route.fixed, scratch);
            return wrapped.ok_or_else(|| Problem::NotHex(self.label(field)));
        }
        let Some(payload) = payload else {
            return Ok(Span::Fixed(Extent { start: 0, len: 0 }));
        };
        if self.row.kind(field) != Kind::Bytea {
            return Ok(if self.route.debezium {
                debezium::text(&self.row, field, Place::Plain, scratch)
            } else {
                Span::Row(payload)
            });
        }
        let start = scratch.len();
        match debezium::append_bytea(self.row.at(payload), scratch) {
            Some(()) => Ok(Span::since(start, scratch)),
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
                let clock = &mut self.work.clock;
                let (ms, clamped) = own.map_or((commit.unix_millis(), false), |own| {
                    clock.stamp(own, commit, self.route.zone.as_ref())
                });
                (Some(ms), clamped)
            }
        }
    }

    /// All headers, also behind one that can't be read, which is left out.
    fn headers(&mut self) -> Result<(), Problem> {
        let mut problem = Ok(());
        let Work { scratch, headers, positions, rows, .. } = &mut *self.work;
        let fixed = &self.route.fixed;
        for rule in &self.route.headers {
            match rule {
                // A column that may lack and does is placed nowhere.
                HeaderRule::Field { field, .. } | HeaderRule::Typed { field, .. }
                    if !self.row.has(*field) => {}
                HeaderRule::Field { name, field } => {
                    headers.push((Span::Fixed(*name), self.row.extent(*field).into()));
                }
                HeaderRule::Typed { name, field } => {
                    let value = debezium::text(&self.row, *field, Place::Header, scratch);
                    headers.push((Span::Fixed(*name), value));
                }
                HeaderRule::Template { name, template } => {
                    // A header is no reason to hold an event back: NULL stays NULL.
                    let value = template.fill(&self.row, fixed, scratch).unwrap_or(Span::Null);
                    headers.push((Span::Fixed(*name), value));
                }
                HeaderRule::Position { name, history } => {
                    let (start, at) = (scratch.len(), self.at.position);
                    let name = if *rows {
                        positions.append_current(scratch);
                        history
                    } else if Positions::has(at) {
                        positions.append(at, scratch);
                        name
                    } else {
                        positions.append_history(at.commit_lsn, scratch);
                        history
                    };
                    headers.push((Span::Fixed(*name), Span::since(start, scratch)));
                }
                HeaderRule::Object { field } => {
                    let Some(text) = self.row.text(*field) else { continue };
                    let first = headers.len();
                    let taken = &self.route.taken_names;
                    let wrong = if object(text, taken, scratch, headers).is_err() {
                        Problem::NotAnObject
                    } else if headers[first..].iter().any(|(name, _)| holds_zero(*name, scratch)) {
                        Problem::HeaderName
                    } else {
                        continue;
                    };
                    headers.truncate(first);
                    problem = Err(wrong(label(self.route, self.message, *field)));
                }
                HeaderRule::Trace { w3c, other, field } => {
                    if let Some(extent) = self.row.extent(*field) {
                        let name = if is_traceparent(self.row.at(extent)) { w3c } else { other };
                        headers.push((Span::Fixed(*name), Span::Row(extent)));
                    }
                }
            }
        }
        problem
    }
}

/// What a field is called where the event comes from: a message's member, a table's column.
fn label(route: &Route, message: bool, field: FieldId) -> String {
    let field = &route.fields[field.0];
    if message { field.name.clone() } else { field.column.clone() }
}

type Fill = fn(&Template, &Row<'_>, &str, &mut Vec<u8>) -> Result<Span, FieldId>;

/// Each member of a JSON object as a header; one that has the name of a header of ours (`taken`) as `row.NAME`.
fn object(
    text: &[u8],
    taken: &[String],
    scratch: &mut Vec<u8>,
    headers: &mut Vec<(Span, Span)>,
) -> Result<(), json::NotAnObject> {
    // The usual empty one costs no parser.
    if text == b"{}" {
        return Ok(());
    }
    json::members(text, scratch, |scratch, start, value| {
        let name = scratch.get(start..).unwrap_or_default();
        if taken.iter().any(|taken| taken.as_bytes() == name) {
            scratch.splice(start..start, ROW_PREFIX.bytes());
        }
        let name = Span::since(start, scratch);
        let start = scratch.len();
        json::append_plain(value, scratch);
        headers.push((name, Span::since(start, scratch)));
    })
}

fn holds_zero(name: Span, scratch: &[u8]) -> bool {
    match name {
        Span::Scratch(extent) => extent.of(scratch).contains(&0),
        Span::Null | Span::Row(_) | Span::Fixed(_) => false,
    }
}

// What is reused from event to event: buffers, and what the last event was.

/// Buffers and memory of one mapper.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Everything that is not in the row as it is.
    pub(super) scratch: Vec<u8>,
    /// Name and value of every header.
    pub(super) headers: Vec<(Span, Span)>,
    /// The event's texts that are mostly the last one's too: those are not checked again.
    pub(super) topic: Known,
    pub(super) aggregate_type: Known,
    pub(super) event_type: Known,
    pub(super) clock: Clock,
    pub(super) positions: Positions,
    /// Events are rows of the table, whose positions are not known.
    pub(super) rows: bool,
}

/// A text that is mostly the one before.
#[derive(Debug, Default)]
pub(super) struct Known(String);

impl Known {
    #[inline]
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Becomes these bytes, if they are text and `is_good`; whether they are.
    #[inline]
    pub(super) fn turns_into(&mut self, bytes: &[u8], is_good: impl FnOnce(&[u8]) -> bool) -> bool {
        // An empty one may never have been looked at.
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

impl Work {
    /// Most that the scratch buffer keeps between events, in bytes: one event of a gigabyte must not be paid for ever.
    pub(super) const KEPT_MAX: usize = 1 << 20;

    pub(super) fn clear(&mut self) {
        self.headers.clear();
        self.scratch.clear();
        self.scratch.shrink_to(Self::KEPT_MAX);
    }
}

// What can be kept of an event that can't be published. Nothing here runs for any other event.

/// The event of this shape is poison.
#[cold]
pub(super) fn poison(
    route: &Route,
    work: &Work,
    row: Row<'_>,
    shape: &Shape,
    position: Position,
    problem: Problem,
) -> MapError {
    let buffers = Buffers { row: row.bytes, scratch: &work.scratch, fixed: &route.fixed };
    let bytes = |span: Span| buffers.get(span).map(<[u8]>::to_vec);
    let text = |span: Span| bytes(span).and_then(|bytes| String::from_utf8(bytes).ok());
    let aggregate_id = if shape.aggregate_id == Span::Null && route.debezium {
        // As a record of the layout has it.
        Some(String::new())
    } else {
        text(shape.aggregate_id)
    };
    let header = |(name, value): &(Span, Span)| Some((text(*name)?, bytes(*value)));
    let partial = PartialEvent {
        event_id: text(shape.id),
        event_type: text(shape.event_type),
        aggregate: text(shape.aggregate_type).zip(aggregate_id),
        record: OwnedRecord {
            topic: text(shape.topic).unwrap_or_default(),
            partition: shape.partition,
            key: bytes(shape.key),
            value: bytes(shape.value),
            timestamp_ms: shape.timestamp_ms,
            headers: work.headers.iter().filter_map(header).collect(),
        },
    };
    of(position, problem, partial)
}

/// A message that nothing can be read of: its content is kept as it is.
#[cold]
pub(super) fn not_json(position: Position, content: &[u8]) -> MapError {
    let record = OwnedRecord { value: Some(content.to_vec()), ..OwnedRecord::default() };
    of(position, Problem::NotJson, PartialEvent { record, ..PartialEvent::default() })
}

fn of(position: Position, problem: Problem, partial: PartialEvent) -> MapError {
    let id = partial.event_id.as_deref();
    let event_id = id.map(|id| shown_id(id).into_owned());
    MapError::Poison(Poison { position, event_id, problem, partial: Box::new(partial) })
}

// Events without a table: `pg_logical_emit_message(true, prefix, content)`.
//
// The content is one JSON object, UTF-8:
//
// ```json
// {"aggregate_type": "order", "aggregate_id": "42", "event_type": "OrderPlaced", "payload": {"total": 9.5},
//  "id": "7f0c…", "headers": {"source": "shop"}}
// ```
//
// `id` is optional and defaults to the position; `headers` is an optional object. A member may also be any other
// role of the layout (`topic`, `partition_key`, `time`, `trace`) or an extra column, by its name. Strings are taken
// raw, anything else as it was written; the payload always as it was written, so it stays JSON. `null` is NULL.
// Unknown members are passed over. Where a member comes twice the last counts.

/// A message's members as if they were a row's columns.
#[derive(Debug, Default)]
pub(super) struct MessageRow {
    pub(super) bytes: Vec<u8>,
    pub(super) cells: Vec<Option<Extent>>,
    pub(super) sources: Vec<Source>,
    names: Vec<u8>,
}

impl MessageRow {
    /// For the fields of `route`: each is a column of its own.
    pub(super) fn new(route: &Route) -> Self {
        let source = |(column, field): (usize, &super::route::Field)| {
            let kind = match field.role {
                Some(Role::Payload | Role::Headers) => Kind::Json,
                Some(_) | None => Kind::Text,
            };
            Source { column: Some(column), kind }
        };
        let sources = route.fields.iter().enumerate().map(source).collect();
        Self { sources, ..Self::default() }
    }

    /// Reads one message's content.
    pub(super) fn read(&mut self, content: &[u8], route: &Route) -> Result<(), json::NotAnObject> {
        let Self { bytes, cells, names, .. } = self;
        bytes.clear();
        bytes.shrink_to(Work::KEPT_MAX);
        names.clear();
        cells.clear();
        cells.resize(route.fields.len(), None);
        json::members(content, names, |names, start, value| {
            let name = &names[start..];
            if let Some(field) = route.fields.iter().position(|field| field.name.as_bytes() == name)
            {
                let start = bytes.len();
                let written =
                    matches!(route.fields[field].role, Some(Role::Payload | Role::Headers));
                if written {
                    bytes.extend_from_slice(value.as_bytes());
                } else {
                    json::append_plain(value, bytes);
                }
                cells[field] =
                    (value != "null").then_some(Extent { start, len: bytes.len() - start });
            }
            names.clear();
        })
    }

    /// Gives the event an id where it brought none.
    pub(super) fn default_id(&mut self, route: &Route, id: impl FnOnce(&mut Vec<u8>)) {
        let cell = &mut self.cells[route.core.id.0];
        if cell.is_none() {
            let start = self.bytes.len();
            id(&mut self.bytes);
            *cell = Some(Extent { start, len: self.bytes.len() - start });
        }
    }
}

// What the stream has said of tables: which relation is the outbox, and where its columns are now.
//
// Columns are found by name on each Relation message, never by position: a row is decoded with the catalog of its
// time.

/// Where the outbox's fields are in the rows of one relation.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many columns a row has.
    pub(super) width: usize,
    /// By field.
    pub(super) sources: Vec<Source>,
}

/// The relations described since the connection began, by id; `None` for those that are not the outbox.
///
/// As many as the publication has tables: one, where `setup` made it.
#[derive(Debug, Default)]
pub(super) struct Relations(BTreeMap<u32, Option<Plan>>);

impl Relations {
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// The plan for rows of `relation_id`; `None` where they are not ours.
    pub(super) fn plan(&self, relation_id: u32) -> Result<Option<&Plan>, MapError> {
        let what = "the server never described that relation";
        let known = self.0.get(&relation_id).ok_or(MapError::Inconsistent { relation_id, what })?;
        Ok(known.as_ref())
    }

    /// Takes note of a relation's shape.
    pub(super) fn describe(
        &mut self,
        relation: &Relation<'_>,
        table: Option<&TableName>,
        table_oid: Option<u32>,
        route: &Route,
        types: &Types,
    ) -> Result<(), MapError> {
        // First of all: a row must never be read with the shape from before one that does not fit.
        self.0.remove(&relation.id);
        let ours = table.filter(|table| is_ours(relation, table, table_oid));
        let plan = ours.map(|table| plan(relation, table, route, types).map_err(MapError::Unfit));
        self.0.insert(relation.id, plan.transpose()?);
        Ok(())
    }
}

/// The protocol writes no schema for `pg_catalog`; an outbox is never there.
pub(super) fn is_ours(relation: &Relation<'_>, table: &TableName, table_oid: Option<u32>) -> bool {
    table_oid == Some(relation.id)
        || (table.schema == relation.schema && table.name == relation.name)
}

/// Types of the columns of our table that the catalog is to be asked for.
pub(super) fn unknown_types(relation: &Relation<'_>, route: &Route, types: &Types) -> Vec<u32> {
    let columns = relation.columns.iter();
    let asked = columns.filter(|column| route.fields.iter().any(|f| f.column == column.name));
    let mut oids: Vec<u32> = asked.map(|column| column.type_oid).collect();
    oids.retain(|oid| types.unknown(*oid));
    oids.sort_unstable();
    oids.dedup();
    oids
}

/// The columns of the table, as the catalog has it, whose types can't play their roles. Those that it lacks are
/// somebody else's to miss.
pub(super) fn unfit_types(
    table: &TableName,
    columns: &[ColumnType<'_>],
    route: &Route,
) -> Vec<Unfit> {
    let mut unfit = Vec::new();
    for field in &route.fields {
        let Some(column) = columns.iter().find(|column| column.name == field.column) else {
            continue;
        };
        let resolved = Resolved::of_column(column);
        if let Some(role) = field.role.filter(|role| !fits(*role, resolved, route)) {
            let (column, is) = (field.column.clone(), Some(column.type_name.to_owned()));
            unfit.push(Unfit::Type { table: table.clone(), column, role, is });
        }
    }
    unfit
}

fn plan(
    relation: &Relation<'_>,
    table: &TableName,
    route: &Route,
    types: &Types,
) -> Result<Plan, Unfit> {
    let mut missing = Vec::new();
    let mut sources = Vec::with_capacity(route.fields.len());
    for field in &route.fields {
        let mut columns = relation.columns.iter().enumerate();
        let Some((index, column)) = columns.find(|(_, column)| column.name == field.column) else {
            if !field.may_lack {
                missing.push((field.column.clone(), key_of(field)));
            }
            sources.push(Source::default());
            continue;
        };
        let resolved = types.resolve(column.type_oid, column.type_modifier);
        if let Some(role) = field.role.filter(|role| !fits(*role, resolved, route)) {
            let column = field.column.clone();
            return Err(Unfit::Type { table: table.clone(), column, role, is: None });
        }
        let decides = matches!(field.role, Some(Role::AvailableAt | Role::ExpiresAt));
        if let Some(role) = field.role.filter(|_| decides && resolved.kind.lacks_zone())
            && route.zone.is_none()
        {
            let column = field.column.clone();
            return Err(Unfit::NoZone { table: table.clone(), column, role });
        }
        sources.push(Source { column: Some(index), kind: resolved.kind });
    }
    if missing.is_empty() {
        Ok(Plan { width: relation.columns.len(), sources })
    } else {
        Err(Unfit::Missing { table: table.clone(), columns: missing })
    }
}

/// The configuration's key that names another column, or none, or elsewhere.
fn key_of(field: &Field) -> String {
    match field.role {
        Some(role) => format!("outbox.columns.{role}"),
        None => format!("outbox.extra.{}", field.column),
    }
}

fn fits(role: Role, of: Resolved, route: &Route) -> bool {
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
