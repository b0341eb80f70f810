//! The mapper: rows and logical messages in, records out.

use super::encoding::Encoding;
use super::error::{MapError, Problem, SpecError, Unfit};
use super::headers::Headers;
use super::message::MessageRow;
use super::position;
use super::relations::{self, Relations};
use super::remains;
use super::route::Route;
use super::shape::{Shape, Shaper};
use super::span::{Buffers, Extent, Row, Span};
use super::spec::{OnUpdate, OutboxSpec, TableName};
use super::types::{ColumnType, TypeFacts, Types};
use super::work::Work;
use pg_replication::pgoutput::{Cell, Insert, LogicalMessage, Relation, TypeName, Update};
use postrider_core::event::{Aggregate, Histories, PgTime, Position, shown_id};
use postrider_core::record::{Header, Record};
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
    pub fn take_off_position(&mut self) {
        position::take_off(self.headers.as_mut_slice());
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
    pub fn read_messages_as(&mut self, encoding: Encoding) {
        self.encoding = encoding;
    }

    /// Types of our table's columns that are not built in, and that the catalog is to be asked for before the relation
    /// is taken note of: whether a column is a domain, and over what, no Relation message says.
    pub fn unknown_types(&self, relation: &Relation<'_>) -> Vec<u32> {
        match &self.table {
            Some(table) if relations::is_ours(relation, table, self.table_oid) => {
                relations::unknown_types(relation, &self.route, &self.types)
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// What the catalog has of the types that it was asked for.
    pub fn learn_types(&mut self, asked: &[u32], found: &[TypeFacts]) {
        self.types.learn(asked, found);
    }

    /// Takes note of a type's name, for one that the catalog does not have any more.
    pub fn type_name(&mut self, of: &TypeName<'_>) {
        self.types.name(of);
    }

    /// The outbox table's columns, as the catalog has them now, whose types can't play their roles.
    pub fn unfit_types(&self, columns: &[ColumnType<'_>]) -> Vec<Unfit> {
        let unfit = |table| relations::unfit_types(table, columns, &self.route);
        self.table.as_ref().map_or_else(Vec::new, unfit)
    }

    /// Forgets all relations and types: a new connection describes them again. `table_oid` is what the table's name
    /// stands for now.
    pub fn forget_relations(&mut self, table_oid: Option<u32>) {
        self.table_oid = table_oid;
        self.relations.forget();
        self.types.forget();
    }

    /// Maps a row; `None` where its table is not the outbox.
    ///
    /// # Errors
    /// [`MapError::Poison`] for this row alone; [`MapError::OutOfStep`] where the stream contradicts itself.
    pub fn insert<'a>(
        &'a mut self,
        insert: &Insert<'a>,
        at: At,
    ) -> Result<Option<Mapped<'a>>, MapError> {
        let relation_id = insert.relation_id;
        let out_of_step = |what| Err(MapError::OutOfStep { relation_id, what });
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
            Ok(None) => return MapError::OutOfStep { relation_id, what: "it is not the outbox" },
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
        let mut error = remains::poison(route, work, row, &shape, at.position, problem);
        if let MapError::Poison(poison) = &mut error {
            poison.remains.record.topic.clear();
            poison.remains.record.value = None;
        }
        error
    }

    /// Whether an UPDATE is one that halts: the configuration says so, and the table is the outbox. With the id of the
    /// row, where it can be read.
    ///
    /// # Errors
    /// [`MapError::OutOfStep`] where the stream contradicts itself.
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
            Err(_not_text) => return Err(remains::not_json(at.position, message.content)),
        };
        if self.message.read(content, &self.route).is_err() {
            return Err(remains::not_json(at.position, content));
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
            return Err(remains::poison(route, work, row, &shape, at.position, problem));
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
        |field| Err(remains::poison(route, work, row, &shape, at.position, route.not_text(field)));
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
