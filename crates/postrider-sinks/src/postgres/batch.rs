//! The open transaction: events as columns, in the binary format of PostgreSQL's arrays.
//!
//! An event is written into the columns once, and the columns are sent as they are. Everything that the server could
//! refuse is refused before: an event that is in a batch is sure to be stored.

use super::hash::hash_partition;
use super::spec::LogKind;
use bytes::{BufMut, BytesMut};
use postrider_core::event::{HeaderPosition, HistoryId};
use postrider_core::record::{Header, Record, Refusal};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// The largest record: key, value and headers. A parameter of a statement is at most 1 GiB, and the text of the headers
/// as JSON is up to six times as long as the headers. Unit: bytes.
pub(super) const RECORD_BYTES_MAX: usize = 64 << 20;

/// No event is added to a batch of this size. The pipeline commits long before, by the bounds of the configuration.
/// Unit: bytes.
const BATCH_BYTES_MAX: usize = 256 << 20;

/// No event is added to a batch with this many.
const BATCH_EVENTS_MAX: usize = 1_000_000;

/// The memory of an empty batch is kept for the next one up to this size. Unit: bytes.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// The header of a record with the type of its aggregate. A name with a dot is none that an application has by chance.
pub(super) const AGGREGATE_TYPE: &str = "postrider.aggregate_type";

/// The header of a record with the id of its aggregate.
pub(super) const AGGREGATE_ID: &str = "postrider.aggregate_id";

/// Microseconds from 1970 to 2000, the epoch of PostgreSQL.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The first and the last moment of the type `timestamptz`, which has no moment after the end of the year 294276. Unit:
/// microseconds since 2000.
const TIMES: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;

/// Headers of which each name is searched among all others. With more of them a map is used.
const HEADERS_COMPARED: usize = 32;

const NOT_UTF8: Refusal =
    Refusal::content("it has bytes that are not UTF-8, which PostgreSQL can't store as text");
const HAS_ZERO: Refusal =
    Refusal::content("it has a zero byte, which PostgreSQL can't store in text");
const NO_SUCH_TIME: Refusal =
    Refusal::content("its time is outside of the range of the type timestamptz");
const NOT_SELECTED: Refusal = Refusal::content("its log is not open");
const NO_SUCH_POSITION: Refusal =
    Refusal::content("the header \"position\" is not one of Postrider");

/// The number of a log's columns that are sent.
const COLUMN_COUNT: usize = 11;

/// The columns of a log, in the order of the parameters of `postrider.log_append`: the type of the parameter, and that
/// of its elements.
static COLUMNS: [(Type, Type); COLUMN_COUNT] = [
    (Type::INT2_ARRAY, Type::INT2),
    (Type::INT8_ARRAY, Type::INT8),
    (Type::PG_LSN_ARRAY, Type::PG_LSN),
    (Type::INT8_ARRAY, Type::INT8),
    (Type::TIMESTAMPTZ_ARRAY, Type::TIMESTAMPTZ),
    (Type::TEXT_ARRAY, Type::TEXT),
    (Type::TEXT_ARRAY, Type::TEXT),
    (Type::TEXT_ARRAY, Type::TEXT),
    (Type::TEXT_ARRAY, Type::TEXT),
    (Type::TEXT_ARRAY, Type::TEXT),
    (Type::TEXT_ARRAY, Type::TEXT),
];

/// Bytes of an element of column `part`: its length and its value.
const PART_BYTES: usize = 6;

/// What is known of a log whose events a batch takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogFacts {
    /// The number of its hash partitions.
    pub(super) partitions: u32,
    /// Whether it has payloads and headers.
    pub(super) kind: LogKind,
}

/// The values of one column: the elements of an array, each with its length before it.
#[derive(Default)]
struct Column {
    body: Vec<u8>,
    /// Elements that are NULL.
    nulls: usize,
}

impl Column {
    fn null(&mut self) {
        self.body.put_i32(-1);
        self.nulls += 1;
    }

    fn number(&mut self, number: Option<i64>) {
        match number {
            Some(number) => {
                self.body.put_i32(8);
                self.body.put_i64(number);
            }
            None => self.null(),
        }
    }

    fn text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => {
                // A record has at most RECORD_BYTES_MAX.
                self.body.put_i32(i32::try_from(text.len()).unwrap_or(i32::MAX));
                self.body.put_slice(text.as_bytes());
            }
            None => self.null(),
        }
    }
}

/// The events of one log in a batch.
pub(super) struct LogBatch {
    /// The log.
    pub(super) name: Arc<str>,
    facts: LogFacts,
    /// The number of events.
    pub(super) events: usize,
    columns: [Column; COLUMN_COUNT],
}

impl LogBatch {
    fn new(name: &str, facts: LogFacts) -> Self {
        Self { name: name.into(), facts, events: 0, columns: Default::default() }
    }

    /// The hash partition of each event, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = usize> {
        let [part, ..] = &self.columns;
        part.body.chunks_exact(PART_BYTES).map(|element| match element {
            [_, _, _, _, high, low] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => 0,
        })
    }

    /// The number of its hash partitions.
    pub(super) fn partitions(&self) -> u32 {
        self.facts.partitions
    }

    fn push(&mut self, row: &Row<'_>, headers: &[Header<'_>]) {
        let [part, history, lsn, ordinal, time, id, event_type, kind, aggregate, payload, json] =
            &mut self.columns;
        part.body.put_i32(2);
        part.body.put_u16(row.part);
        history.number(row.history.map(|history| i64::from(history.0)));
        lsn.number(row.commit);
        ordinal.number(row.ordinal);
        time.number(row.time);
        id.text(row.id);
        event_type.text(row.event_type);
        kind.text(row.aggregate_type);
        aggregate.text(row.aggregate_id);
        if self.facts.kind == LogKind::Reference {
            payload.null();
            json.null();
        } else {
            payload.text(row.payload);
            put_headers(headers, json);
        }
        self.events += 1;
    }

    fn bytes(&self) -> usize {
        self.columns.iter().map(|column| column.body.len()).sum()
    }

    fn capacity(&self) -> usize {
        self.columns.iter().map(|column| column.body.capacity()).sum()
    }

    fn clear(&mut self) {
        self.events = 0;
        for column in &mut self.columns {
            column.body.clear();
            column.nulls = 0;
        }
    }
}

/// The events of one transaction. `Debug` shows sizes only.
#[derive(Default)]
pub(super) struct Batch {
    logs: Vec<LogBatch>,
    by_name: HashMap<Arc<str>, usize>,
    /// The log of the last event: usually the next one has the same.
    last: usize,
    events: usize,
    bytes: usize,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("events", &self.events)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Batch {
    /// Whether the batch takes events of this log. Then [`push`](Self::push) adds one.
    pub(super) fn selects(&mut self, log: &str) -> bool {
        if self.logs.get(self.last).is_some_and(|last| &*last.name == log) {
            return true;
        }
        let found = self.by_name.get(log).copied();
        self.last = found.unwrap_or(self.last);
        found.is_some()
    }

    /// Lets the batch take events of a log, and selects the log.
    pub(super) fn add(&mut self, log: &str, facts: LogFacts) {
        self.last = self.logs.len();
        let added = LogBatch::new(log, facts);
        self.by_name.insert(Arc::clone(&added.name), self.last);
        self.logs.push(added);
    }

    /// Whether no further event is added.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES_MAX || self.events >= BATCH_EVENTS_MAX
    }

    /// Adds an event of the selected log. `size_max`: the operator's limit on the size of a record.
    ///
    /// # Errors
    /// Why the server could not store it. Then nothing is added.
    pub(super) fn push(
        &mut self,
        record: &Record<'_>,
        size_max: Option<usize>,
    ) -> Result<(), Refusal> {
        let Some(log) = self.logs.get_mut(self.last) else { return Err(NOT_SELECTED) };
        let limit = size_max.unwrap_or(RECORD_BYTES_MAX).min(RECORD_BYTES_MAX);
        let size = record.size_bytes();
        if size > limit {
            return Err(Refusal::too_large(size, limit));
        }
        let row = Row::of(record, log.facts)?;
        let before = log.bytes();
        log.push(&row, record.headers);
        self.bytes += log.bytes() - before;
        self.events += 1;
        Ok(())
    }

    /// Whether there is no event.
    pub(super) fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// The logs that have events in it.
    pub(super) fn logs(&self) -> impl Iterator<Item = &LogBatch> {
        self.logs.iter().filter(|log| log.events > 0)
    }

    /// Each column of all logs, in the order of the parameters of `postrider.log_append`, with its type.
    pub(super) fn columns(&self) -> Vec<(Array<'_>, Type)> {
        let column = |(at, (array, element)): (usize, &(Type, Type))| {
            let columns: Vec<_> = self.logs().filter_map(|log| log.columns.get(at)).collect();
            let values = Array { columns, events: self.events, element: element.clone() };
            (values, array.clone())
        };
        COLUMNS.iter().enumerate().map(column).collect()
    }

    /// Removes the events, and keeps the memory for the next batch.
    pub(super) fn clear(&mut self) {
        if self.logs.iter().map(LogBatch::capacity).sum::<usize>() > SPARE_BYTES_MAX {
            let facts: Vec<_> = self.logs.drain(..).map(|log| (log.name, log.facts)).collect();
            self.by_name.clear();
            for (name, facts) in facts {
                self.add(&name, facts);
            }
        }
        self.logs.iter_mut().for_each(LogBatch::clear);
        (self.events, self.bytes) = (0, 0);
    }
}

/// A column of all logs as one parameter. An array without any value is sent empty, which means NULL for all events.
pub(super) struct Array<'b> {
    columns: Vec<&'b Column>,
    events: usize,
    element: Type,
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array").field("events", &self.events).finish_non_exhaustive()
    }
}

impl ToSql for Array<'_> {
    /// The array of one dimension that `array_recv` (utils/adt/arrayfuncs.c) reads.
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let nulls: usize = self.columns.iter().map(|column| column.nulls).sum();
        let is_empty = nulls == self.events;
        out.put_i32(i32::from(!is_empty));
        out.put_i32(i32::from(nulls > 0 && !is_empty));
        out.put_u32(self.element.oid());
        if !is_empty {
            out.put_i32(i32::try_from(self.events)?);
            out.put_i32(1);
            for column in &self.columns {
                out.put_slice(&column.body);
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A record as the columns of a log have it, but for the headers.
struct Row<'r> {
    part: u16,
    history: Option<HistoryId>,
    commit: Option<i64>,
    ordinal: Option<i64>,
    time: Option<i64>,
    id: Option<&'r str>,
    event_type: Option<&'r str>,
    aggregate_type: Option<&'r str>,
    aggregate_id: Option<&'r str>,
    payload: Option<&'r str>,
}

/// The headers that are columns of their own.
#[derive(Clone, Copy)]
enum Own {
    Id,
    Type,
    Position,
    History,
    AggregateType,
    AggregateId,
}

/// Finds the headers that are columns: of several with one name the first. The others are in column `headers`.
#[derive(Default)]
struct OwnHeaders(u8);

impl OwnHeaders {
    fn take(&mut self, name: &str) -> Option<Own> {
        let own = match name {
            "id" => Own::Id,
            "type" => Own::Type,
            "position" => Own::Position,
            "history" => Own::History,
            AGGREGATE_TYPE => Own::AggregateType,
            AGGREGATE_ID => Own::AggregateId,
            _ => return None,
        };
        let bit = 1_u8 << own as u8;
        let is_first = self.0 & bit == 0;
        self.0 |= bit;
        is_first.then_some(own)
    }
}

impl<'r> Row<'r> {
    fn of(record: &Record<'r>, facts: LogFacts) -> Result<Self, Refusal> {
        let by_value = facts.kind == LogKind::Value;
        let mut row = Row {
            part: 0,
            history: None,
            commit: None,
            ordinal: None,
            time: record.timestamp_ms.map(micros).transpose()?,
            id: None,
            event_type: None,
            aggregate_type: None,
            aggregate_id: None,
            payload: record.value.filter(|_| by_value).map(text).transpose()?,
        };
        let mut own = OwnHeaders::default();
        for header in record.headers {
            let Some(own) = own.take(header.name) else {
                if by_value {
                    checked(header.name)?;
                    header.value.map(text).transpose()?;
                }
                continue;
            };
            let value = header.value.map(text).transpose()?;
            match own {
                Own::Id => row.id = value,
                Own::Type => row.event_type = value,
                Own::AggregateType => row.aggregate_type = value,
                Own::AggregateId => row.aggregate_id = value,
                Own::Position => row.set_position(value)?,
                Own::History => row.history = value.map(history).transpose()?,
            }
        }
        let key = record.key.map(text).transpose()?;
        row.part = match record.partition {
            None => hash_partition(key.or(row.id).unwrap_or_default(), facts.partitions),
            Some(number) => {
                let part = u32::try_from(number).ok().filter(|part| *part < facts.partitions);
                let part = part.and_then(|part| u16::try_from(part).ok());
                part.ok_or(Refusal::partition(number))?
            }
        };
        Ok(row)
    }

    fn set_position(&mut self, text: Option<&str>) -> Result<(), Refusal> {
        let Some(text) = text else { return Ok(()) };
        let HeaderPosition { history, position } =
            HeaderPosition::parse(text).ok_or(NO_SUCH_POSITION)?;
        self.history = Some(history);
        // A pg_lsn is sent as the bits of the number.
        self.commit = Some(position.commit.get().cast_signed());
        self.ordinal = i64::try_from(position.ordinal).ok();
        Ok(())
    }
}

fn history(text: &str) -> Result<HistoryId, Refusal> {
    u32::from_str_radix(text, 16).map(HistoryId).map_err(|_not_a_number| NO_SUCH_POSITION)
}

/// A text that PostgreSQL can store.
fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    checked(std::str::from_utf8(bytes).map_err(|_position| NOT_UTF8)?)
}

fn checked(text: &str) -> Result<&str, Refusal> {
    if text.as_bytes().contains(&0) { Err(HAS_ZERO) } else { Ok(text) }
}

/// Microseconds since 2000.
fn micros(millis: i64) -> Result<i64, Refusal> {
    let micros = millis.checked_mul(1000).and_then(|micros| micros.checked_sub(EPOCH_MICROS));
    micros.filter(|micros| TIMES.contains(micros)).ok_or(NO_SUCH_TIME)
}

/// Appends the headers that are no columns as a JSON object, or NULL if there are none. A header of which there are
/// several has an array of its values.
fn put_headers(headers: &[Header<'_>], column: &mut Column) {
    let rest = || {
        let mut own = OwnHeaders::default();
        headers.iter().filter(move |header| own.take(header.name).is_none())
    };
    let count = rest().count();
    if count == 0 {
        return column.null();
    }
    let start = column.body.len();
    column.body.put_i32(0);
    if count > HEADERS_COMPARED {
        put_many(rest(), &mut column.body);
    } else {
        let mut opened = b'{';
        for (at, header) in rest().enumerate() {
            if rest().take(at).any(|earlier| earlier.name == header.name) {
                continue;
            }
            column.body.push(opened);
            opened = b',';
            put_json(header.name, &mut column.body);
            column.body.push(b':');
            let same = || rest().filter(|other| other.name == header.name);
            if same().nth(1).is_some() {
                let mut opened = b'[';
                for one in same() {
                    column.body.push(opened);
                    opened = b',';
                    put_value(one, &mut column.body);
                }
                column.body.push(b']');
            } else {
                put_value(header, &mut column.body);
            }
        }
        column.body.push(b'}');
    }
    let length = column.body.len() - start - 4;
    let length = i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes();
    if let Some(place) = column.body.get_mut(start..start + 4) {
        place.copy_from_slice(&length);
    }
}

/// As [`put_headers`] does it, for many headers.
fn put_many<'h, 'r: 'h>(headers: impl Iterator<Item = &'h Header<'r>>, out: &mut Vec<u8>) {
    let mut object = Map::new();
    let mut several = Map::new();
    for header in headers {
        let text = header.value.and_then(|value| std::str::from_utf8(value).ok());
        let value = text.map_or(Value::Null, Value::from);
        if let Some(first) = object.get(header.name) {
            let values = several.entry(header.name).or_insert_with(|| vec![first.clone()].into());
            if let Value::Array(values) = values {
                values.push(value);
            }
        } else {
            object.insert(header.name.to_owned(), value);
        }
    }
    for (name, values) in several {
        object.insert(name, values);
    }
    out.put_slice(Value::Object(object).to_string().as_bytes());
}

fn put_value(header: &Header<'_>, out: &mut Vec<u8>) {
    match header.value.and_then(|value| std::str::from_utf8(value).ok()) {
        Some(text) => put_json(text, out),
        None => out.put_slice(b"null"),
    }
}

fn put_json(text: &str, out: &mut Vec<u8>) {
    // A string into memory: serde_json has no error for that.
    let written = serde_json::to_writer(out, text);
    debug_assert!(written.is_ok(), "a string is always JSON");
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
