//! One event laid out: where every part of its record lies, or what is wrong with it.

use super::debezium::{self, Place};
use super::error::Problem;
use super::json;
use super::mapper::At;
use super::payload;
use super::position::Positions;
use super::route::{HeaderRule, Route};
use super::span::{Buffers, Extent, FieldId, Row, Span};
use super::spec::{NullPayload, TimestampSource};
use super::template::Template;
use super::time::{self, NoInstant, Twice};
use super::trace::is_traceparent;
use super::types::Kind;
use super::work::Work;
use postrider_core::event::PgTime;

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
                payload::wrap(envelope, payload, field, &self.row, &self.route.fixed, scratch);
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
        match payload::append_bytea(self.row.at(payload), scratch) {
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
