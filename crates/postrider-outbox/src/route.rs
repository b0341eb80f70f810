//! A specification, checked and compiled: every name resolved to a field, every constant in one fixed text.

use crate::debezium::{self, Place};
use crate::error::{Problem, SpecError};
use crate::headers::{HISTORY, POSITION};
use crate::layout::{Layout, Role};
use crate::span::{Extent, FieldId, Row, Span};
use crate::spec::{NullPayload, OutboxSpec, Placement, Replace, TimestampSource};
use postrider_core::zone::Zone;
use regex::bytes::{CaptureLocations, Regex};

/// The header that marks a replayed event: no other may have it.
pub(super) const REPLAY: &str = "replay";

/// One thing an event has: a role, or an extra column.
#[derive(Debug)]
pub(super) struct Field {
    /// The role's name, or the column's: what a logical message calls it.
    pub(super) name: String,
    /// The column.
    pub(super) column: String,
    pub(super) role: Option<Role>,
    /// The table may lack the column.
    pub(super) may_lack: bool,
}

/// How one header, or a row's object of headers, is made.
#[derive(Debug)]
pub(super) enum HeaderRule {
    /// The field's text.
    Field { name: Extent, field: FieldId },
    /// The field's text as Debezium's converters write its type.
    Typed { name: Extent, field: FieldId },
    /// A template.
    Template { name: Extent, template: Template },
    /// The event's position, or its history alone.
    Position { name: Extent, history: Extent },
    /// Each member of a JSON object.
    Object { field: FieldId },
    /// A trace, under one of two names.
    Trace { w3c: Extent, other: Extent, field: FieldId },
}

/// The object that becomes the value.
#[derive(Debug)]
pub(super) struct Envelope {
    /// `{"payload":`.
    pub(super) open: Extent,
    /// `,"name":` and the field, in order.
    pub(super) placed: Vec<(Extent, FieldId)>,
    /// JSON columns stand as JSON.
    pub(super) json: bool,
    /// A payload that is JSON text stands as JSON.
    pub(super) expand: bool,
}

/// The fields which every event has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Core {
    pub(super) id: FieldId,
    pub(super) aggregate_type: FieldId,
    pub(super) aggregate_id: FieldId,
    pub(super) payload: FieldId,
    pub(super) event_type: Option<FieldId>,
    pub(super) time: Option<FieldId>,
    pub(super) available_at: Option<FieldId>,
    pub(super) expires_at: Option<FieldId>,
}

/// The compiled specification.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) fields: Vec<Field>,
    pub(super) core: Core,
    pub(super) fixed: String,
    pub(super) topic: Template,
    /// The topic's template as written, for messages.
    pub(super) topic_text: String,
    pub(super) replace: Option<Rewrite>,
    pub(super) key: Template,
    pub(super) partition: Option<Template>,
    pub(super) headers: Vec<HeaderRule>,
    /// Names that a member of the row's headers can't have.
    pub(super) taken_names: Vec<String>,
    pub(super) timestamp: TimestampSource,
    pub(super) zone: Option<Zone>,
    pub(super) null_payload: NullPayload,
    pub(super) blank_is_tombstone: bool,
    pub(super) envelope: Option<Envelope>,
    /// Debezium's meanings where they differ from ours: NULL in key and event type, and the topic's replacement.
    pub(super) debezium: bool,
}

impl Route {
    pub(super) fn compile(spec: &OutboxSpec) -> Result<Self, Vec<SpecError>> {
        let mut compiler = Compiler::new(spec);
        let core = compiler.core();
        let topic = compiler.template("route.topic", &spec.topic);
        if topic.is_empty() && compiler.errors.is_empty() {
            compiler.errors.push(SpecError::Name("route.topic".to_owned()));
        }
        let key = compiler.written("route.key", &spec.key, Place::Plain);
        let partition = compiler.partition();
        let headers = compiler.headers();
        let taken_names = compiler.taken_names();
        let envelope = compiler.envelope();
        let replace = match spec.replace.as_ref().map(Rewrite::compile).transpose() {
            Ok(replace) => replace,
            Err(error) => {
                compiler.errors.push(error);
                None
            }
        };
        if spec.table.is_none() && spec.message_prefix.is_none() {
            compiler.errors.push(SpecError::NoSource);
        }
        let (Some(core), true) = (core, compiler.errors.is_empty()) else {
            return Err(compiler.errors);
        };
        Ok(Self {
            core,
            topic,
            topic_text: spec.topic.clone(),
            replace,
            key,
            partition,
            headers,
            taken_names,
            timestamp: spec.timestamp,
            zone: spec.zone.clone(),
            null_payload: spec.null_payload,
            blank_is_tombstone: spec.blank_is_tombstone,
            envelope,
            debezium: spec.layout == Layout::Debezium,
            fields: compiler.fields,
            fixed: compiler.fixed,
        })
    }
}

impl Route {
    /// What is wrong with a field, or with the headers, whose bytes are no text.
    #[cold]
    pub(super) fn not_text(&self, field: Option<FieldId>) -> Problem {
        let field = field.map(|field| self.fields[field.0].column.clone());
        Problem::NotText(field.unwrap_or_else(|| "headers".to_owned()))
    }
}

struct Compiler<'s> {
    spec: &'s OutboxSpec,
    fields: Vec<Field>,
    fixed: String,
    errors: Vec<SpecError>,
}

impl<'s> Compiler<'s> {
    fn new(spec: &'s OutboxSpec) -> Self {
        let roles = spec.roles().map(|(role, column)| Field {
            name: role.name().to_owned(),
            column: column.to_owned(),
            role: Some(role),
            may_lack: spec.may_lack(role),
        });
        let extras = spec.extras().map(|extra| Field {
            name: extra.column.clone(),
            column: extra.column.clone(),
            role: None,
            may_lack: !spec.required_columns().contains(&extra.column.as_str()),
        });
        let fields = roles.chain(extras).collect();
        Self { spec, fields, fixed: String::new(), errors: Vec::new() }
    }

    fn role(&self, role: Role) -> Option<FieldId> {
        self.fields.iter().position(|field| field.role == Some(role)).map(FieldId)
    }

    fn extra(&self, column: &str) -> Option<FieldId> {
        let is = |field: &Field| field.role.is_none() && field.column == column;
        self.fields.iter().position(is).map(FieldId)
    }

    /// The field a template means by `name`: a role's name, a column's, or the layout's own name of the column.
    fn named(&self, name: &str) -> Option<FieldId> {
        let by = |is: &dyn Fn(&Field) -> bool| self.fields.iter().position(is).map(FieldId);
        by(&|field| field.role.is_some() && field.name == name)
            .or_else(|| by(&|field| field.column == name))
            .or_else(|| self.role(self.spec.layout.role(name)?))
    }

    fn core(&mut self) -> Option<Core> {
        let id = self.needed(Role::Id);
        let aggregate_type = self.needed(Role::AggregateType);
        let aggregate_id = self.needed(Role::AggregateId);
        let payload = self.needed(Role::Payload);
        if self.spec.layout != Layout::Debezium || self.spec.standard_headers.event_type {
            self.needed(Role::EventType);
        }
        Some(Core {
            id: id?,
            aggregate_type: aggregate_type?,
            aggregate_id: aggregate_id?,
            payload: payload?,
            event_type: self.role(Role::EventType),
            time: self.role(Role::Time),
            available_at: self.role(Role::AvailableAt),
            expires_at: self.role(Role::ExpiresAt),
        })
    }

    fn needed(&mut self, role: Role) -> Option<FieldId> {
        let field = self.role(role);
        if field.is_none() {
            self.errors.push(SpecError::NoColumn(role));
        }
        field
    }

    fn template(&mut self, key: &str, text: &str) -> Template {
        let mut fixed = std::mem::take(&mut self.fixed);
        let compiled = Template::compile(text, &mut fixed, |name| self.named(name));
        self.fixed = fixed;
        let key = key.to_owned();
        compiled.unwrap_or_else(|error| {
            self.errors.push(match error {
                TemplateError::Syntax(what) => SpecError::Template { key, what },
                TemplateError::Unknown(name) => {
                    let known = self.fields.iter().map(|field| field.name.clone()).collect();
                    SpecError::UnknownField { key, name, known }
                }
            });
            Template::default()
        })
    }

    /// A template that layout `debezium` fills as Debezium writes `place`.
    fn written(&mut self, key: &str, text: &str, place: Place) -> Template {
        let template = self.template(key, text);
        if self.spec.layout == Layout::Debezium { template.written_in(place) } else { template }
    }

    fn constant(&mut self, text: &str) -> Extent {
        let start = self.fixed.len();
        self.fixed.push_str(text);
        Extent { start, len: text.len() }
    }

    fn partition(&mut self) -> Option<Template> {
        let mut columns =
            self.spec.extras().filter(|extra| extra.placement == Placement::Partition);
        let (column, second) = (columns.next(), columns.next());
        if second.is_some() || (column.is_some() && !self.spec.partition.is_empty()) {
            self.errors.push(SpecError::TwoPartitions);
        }
        match column.and_then(|extra| self.extra(&extra.column)) {
            Some(field) => Some(Template::field(field)),
            None if self.spec.partition.is_empty() => None,
            None => Some(self.template("route.partition", &self.spec.partition)),
        }
    }

    fn headers(&mut self) -> Vec<HeaderRule> {
        let spec = self.spec;
        let mut rules = Vec::new();
        if let Some(field) = self.role(Role::Id) {
            let name = self.constant("id");
            rules.push(self.field(name, field));
        }
        if let Some(field) = self.role(Role::EventType)
            && spec.standard_headers.event_type
        {
            let name = self.constant("type");
            rules.push(self.field(name, field));
        }
        if spec.standard_headers.position {
            let (name, history) = (self.constant(POSITION), self.constant(HISTORY));
            rules.push(HeaderRule::Position { name, history });
        }
        if let Some(field) = self.role(Role::Headers) {
            rules.push(HeaderRule::Object { field });
        }
        if let Some(field) = self.role(Role::Trace) {
            let (w3c, other) = (self.constant("traceparent"), self.constant("trace_id"));
            rules.push(HeaderRule::Trace { w3c, other, field });
        }
        for extra in spec.extras() {
            if let Placement::Header(header) = &extra.placement
                && let Some(field) = self.extra(&extra.column)
            {
                self.check_name(header, &format!("outbox.extra.{}", extra.column));
                let name = self.constant(header);
                rules.push(self.field(name, field));
            }
        }
        for (header, text) in &spec.headers {
            let key = format!("route.headers.{header}");
            self.check_name(header, &key);
            let name = self.constant(header);
            let template = self.written(&key, text, Place::Header);
            rules.push(HeaderRule::Template { name, template });
        }
        rules
    }

    fn field(&self, name: Extent, field: FieldId) -> HeaderRule {
        if self.spec.layout == Layout::Debezium {
            HeaderRule::Typed { name, field }
        } else {
            HeaderRule::Field { name, field }
        }
    }

    /// The names of headers that are ours, or the configuration's: of two headers of one name a consumer could take
    /// the row's for ours.
    fn taken_names(&mut self) -> Vec<String> {
        let spec = self.spec;
        let mut taken: Vec<&str> = vec!["id", REPLAY];
        if spec.standard_headers.event_type {
            taken.push("type");
        }
        if spec.standard_headers.position {
            taken.extend([POSITION, HISTORY]);
        }
        if self.role(Role::Trace).is_some() {
            taken.extend(["traceparent", "trace_id"]);
        }
        let ours: Vec<&str> = taken.iter().copied().filter(|name| *name != "id").collect();
        let extras = spec.extras().filter_map(|extra| match &extra.placement {
            Placement::Header(name) => Some((name, format!("outbox.extra.{}", extra.column))),
            Placement::Envelope(_) | Placement::Partition | Placement::Ignore => None,
        });
        let headers = spec.headers.iter().map(|(name, _)| (name, format!("route.headers.{name}")));
        // Debezium appends: a consumer that takes its first header `id` gets ours.
        let appends = |name: &str| spec.layout == Layout::Debezium && !ours.contains(&name);
        for (name, key) in extras.chain(headers) {
            if taken.contains(&name.as_str()) && !name.is_empty() && !appends(name) {
                self.errors.push(SpecError::HeaderTaken { key, name: name.clone() });
            }
            taken.push(name);
        }
        taken.into_iter().map(str::to_owned).collect()
    }

    fn check_name(&mut self, name: &str, key: &str) {
        if name.is_empty() || name.contains('\0') {
            self.errors.push(SpecError::Name(key.to_owned()));
        }
    }

    fn envelope(&mut self) -> Option<Envelope> {
        let spec = self.spec;
        let payload = spec.envelope.as_deref().unwrap_or("payload");
        let mut placed = Vec::new();
        let mut names = vec![payload];
        for extra in spec.extras() {
            if let Placement::Envelope(name) = &extra.placement
                && let Some(field) = self.extra(&extra.column)
            {
                let key = format!("outbox.extra.{}", extra.column);
                self.check_name(name, &key);
                if names.contains(&name.as_str()) {
                    self.errors.push(SpecError::Member { key, name: name.clone() });
                }
                names.push(name);
                placed.push((self.constant(&format!(",{}:", serde_json::json!(name))), field));
            }
        }
        if placed.is_empty() && spec.envelope.is_none() {
            return None;
        }
        self.check_name(payload, "payload.envelope");
        let open = self.constant(&format!("{{{}:", serde_json::json!(payload)));
        Some(Envelope { open, placed, json: spec.envelope_json, expand: spec.expand_json })
    }
}

// Templates: `{field}` is a field's text, `{a|b}` the first of them that is not NULL, `{{` and `}}` are braces.
//
// Compiled once; one that is a single field or plain text costs nothing at run time.

/// A compiled template.
#[derive(Debug, Default)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    /// Fields are written as Debezium does in this place; `None`: as PostgreSQL renders them.
    place: Option<Place>,
}

#[derive(Debug)]
enum Piece {
    /// Plain text, in the fixed text.
    Text(Extent),
    /// The first of these that is not NULL.
    Field(Vec<FieldId>),
}

/// One piece of a template's text.
enum Token<'t> {
    Text(char),
    Field(&'t str),
}

/// Why a template can't be compiled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateError {
    Syntax(&'static str),
    Unknown(String),
}

fn tokens(text: &str) -> impl Iterator<Item = Result<Token<'_>, &'static str>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut chars = rest.chars();
        let first = chars.next()?;
        let after = chars.as_str();
        let (token, left) = match first {
            '{' | '}' if after.starts_with(first) => (Ok(Token::Text(first)), after.get(1..)),
            '{' => match after.split_once('}') {
                Some((name, left)) => (Ok(Token::Field(name)), Some(left)),
                None => (Err("\"{\" without \"}\"; a brace itself is written \"{{\""), None),
            },
            '}' => (Err("\"}\" without \"{\"; a brace itself is written \"}}\""), None),
            other => (Ok(Token::Text(other)), Some(after)),
        };
        rest = left.unwrap_or_default();
        Some(token)
    })
}

/// The names a template mentions; none where it can't be read.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    tokens(text)
        .filter_map(|token| match token {
            Ok(Token::Field(names)) => Some(names.split('|').map(str::trim)),
            Ok(Token::Text(_)) | Err(_) => None,
        })
        .flatten()
}

/// A piece of a template before its names are looked up.
pub(super) enum Raw {
    Text(String),
    Field(Vec<String>),
}

/// A template in pieces; `None` where it can't be read.
pub(super) fn pieces(text: &str) -> Option<Vec<Raw>> {
    let mut pieces = Vec::new();
    for token in tokens(text) {
        match token.ok()? {
            Token::Text(char) => match pieces.last_mut() {
                Some(Raw::Text(text)) => text.push(char),
                Some(Raw::Field(_)) | None => pieces.push(Raw::Text(char.to_string())),
            },
            Token::Field(names) => {
                pieces.push(Raw::Field(
                    names.split('|').map(|name| name.trim().to_owned()).collect(),
                ));
            }
        }
    }
    Some(pieces)
}

impl Template {
    /// Compiles `text`, putting its plain parts into `fixed`.
    pub(super) fn compile(
        text: &str,
        fixed: &mut String,
        field: impl Fn(&str) -> Option<FieldId>,
    ) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        for token in tokens(text) {
            match token.map_err(TemplateError::Syntax)? {
                Token::Text(char) => {
                    let start = fixed.len();
                    fixed.push(char);
                    let len = char.len_utf8();
                    match pieces.last_mut() {
                        Some(Piece::Text(extent)) => extent.len += len,
                        Some(Piece::Field(_)) | None => {
                            pieces.push(Piece::Text(Extent { start, len }));
                        }
                    }
                }
                Token::Field(names) => {
                    let known = |name: &str| {
                        field(name.trim()).ok_or_else(|| TemplateError::Unknown(name.to_owned()))
                    };
                    pieces
                        .push(Piece::Field(names.split('|').map(known).collect::<Result<_, _>>()?));
                }
            }
        }
        Ok(Self { pieces, place: None })
    }

    /// One field alone.
    pub(super) fn field(field: FieldId) -> Self {
        Self { pieces: vec![Piece::Field(vec![field])], place: None }
    }

    /// The same, with its fields as Debezium writes them in `place`.
    pub(super) fn written_in(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The text for `row`: where it lies, or the field that is NULL.
    #[inline]
    pub(super) fn fill(
        &self,
        row: &Row<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<Span, FieldId> {
        match self.pieces.as_slice() {
            [] => Ok(Span::Fixed(Extent { start: 0, len: 0 })),
            [Piece::Text(extent)] => Ok(Span::Fixed(*extent)),
            [Piece::Field(ids)] => self.value(ids, row, scratch),
            _ => self.join(row, fixed, scratch),
        }
    }

    /// The text of its fields alone, without its own.
    pub(super) fn fill_fields(
        &self,
        row: &Row<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<Span, FieldId> {
        let mut fields = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(ids) => Some(ids),
            Piece::Text(_) => None,
        });
        match (fields.next(), fields.next()) {
            (None, _) => self.fill(row, fixed, scratch),
            (Some(ids), None) => self.value(ids, row, scratch),
            (Some(_), Some(_)) => {
                let start = scratch.len();
                for piece in &self.pieces {
                    if let Piece::Field(ids) = piece {
                        self.append(ids, row, scratch)?;
                    }
                }
                Ok(Span::since(start, scratch))
            }
        }
    }

    /// One field.
    #[inline]
    fn value(
        &self,
        ids: &[FieldId],
        row: &Row<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Span, FieldId> {
        let (field, extent) = first(ids, row)?;
        Ok(match self.place {
            None => Span::Row(extent),
            Some(place) => debezium::text(row, field, place, scratch),
        })
    }

    /// One field among other text.
    fn append(&self, ids: &[FieldId], row: &Row<'_>, scratch: &mut Vec<u8>) -> Result<(), FieldId> {
        match self.value(ids, row, scratch)? {
            Span::Row(extent) => scratch.extend_from_slice(row.at(extent)),
            // It has been written there.
            Span::Scratch(_) | Span::Null | Span::Fixed(_) => {}
        }
        Ok(())
    }

    fn join(&self, row: &Row<'_>, fixed: &str, scratch: &mut Vec<u8>) -> Result<Span, FieldId> {
        let start = scratch.len();
        for piece in &self.pieces {
            match piece {
                Piece::Text(extent) => scratch.extend_from_slice(extent.of(fixed.as_bytes())),
                Piece::Field(ids) => self.append(ids, row, scratch)?,
            }
        }
        Ok(Span::since(start, scratch))
    }
}

fn first(ids: &[FieldId], row: &Row<'_>) -> Result<(FieldId, Extent), FieldId> {
    let found = ids.iter().find_map(|id| Some((*id, row.extent(*id)?)));
    // A template always names at least one field, so the last is there.
    found.ok_or_else(|| ids.last().copied().unwrap_or_default())
}

// `route.replace`: a regular expression over the topic, with Debezium's meaning and Java's replacement syntax.

/// A compiled replacement.
#[derive(Debug)]
pub(super) struct Rewrite {
    pattern: Regex,
    parts: Vec<Part>,
    /// Reused from event to event.
    found: CaptureLocations,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Rewrite {
    pub(super) fn compile(spec: &Replace) -> Result<Self, SpecError> {
        // Alone first, so that the error shows what the user wrote.
        Regex::new(&spec.pattern).map_err(SpecError::Pattern)?;
        let whole = format!(r"\A(?:{}){}", spec.pattern, r"\z");
        let pattern = Regex::new(&whole).map_err(SpecError::Pattern)?;
        let parts = replacement(&spec.with, &pattern).map_err(SpecError::Replacement)?;
        let found = pattern.capture_locations();
        Ok(Self { pattern, parts, found })
    }

    /// Writes the replacement of `subject`, where the pattern matches the whole of it.
    pub(super) fn apply(&mut self, subject: &[u8], scratch: &mut Vec<u8>) -> Option<Span> {
        self.pattern.captures_read(&mut self.found, subject)?;
        let start = scratch.len();
        for part in &self.parts {
            match part {
                Part::Text(text) => scratch.extend_from_slice(text.as_bytes()),
                Part::Group(group) => {
                    if let Some((from, to)) = self.found.get(*group) {
                        scratch.extend_from_slice(&subject[from..to]);
                    }
                }
            }
        }
        Some(Span::since(start, scratch))
    }
}

/// `java.util.regex.Matcher.appendReplacement`: `$12` is group 12 where there is one, else group 1 and a 2.
fn replacement(with: &str, pattern: &Regex) -> Result<Vec<Part>, &'static str> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut chars = with.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' => text.push(chars.next().ok_or("\"\\\" at the end escapes nothing")?),
            '$' => {
                let group = if chars.next_if_eq(&'{').is_some() {
                    let name: String = chars.by_ref().take_while(|char| *char != '}').collect();
                    let known = pattern.capture_names().position(|known| known == Some(&name));
                    known.ok_or("\"${name}\" names no group of the pattern")?
                } else {
                    let mut group: Option<usize> = None;
                    while let Some(digit) = chars.peek().and_then(|char| char.to_digit(10)) {
                        let next = group.unwrap_or(0) * 10 + usize::try_from(digit).unwrap_or(0);
                        if group.is_some() && next >= pattern.captures_len() {
                            break;
                        }
                        group = Some(next);
                        chars.next();
                    }
                    group
                        .filter(|group| *group < pattern.captures_len())
                        .ok_or("\"$\" names no group of the pattern; a dollar is written \"\\$\"")?
                };
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Group(group));
            }
            other => text.push(other),
        }
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

// A topic's template as text and columns, for whoever wants to know the topics before the events.

/// A piece of a template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopicPart {
    /// Text as it is.
    Text(String),
    /// The first of these columns that is not NULL.
    Columns(Vec<String>),
}

impl OutboxSpec {
    /// The pieces of the topic, before `route.replace` is applied to it; `None` if the template can't be read.
    pub fn topic_parts(&self) -> Option<Vec<TopicPart>> {
        let pieces = pieces(&self.topic)?.into_iter().map(|piece| match piece {
            Raw::Text(text) => Some(TopicPart::Text(text)),
            Raw::Field(names) => names
                .iter()
                .map(|name| self.column_called(name))
                .collect::<Option<_>>()
                .map(TopicPart::Columns),
        });
        let mut pieces: Vec<TopicPart> = pieces.collect::<Option<_>>()?;
        let is_columns = |piece: &TopicPart| matches!(piece, TopicPart::Columns(_));
        // With layout debezium the pattern is matched against the fields alone.
        if self.replace.is_some()
            && self.layout == Layout::Debezium
            && pieces.iter().any(is_columns)
        {
            pieces.retain(is_columns);
        }
        Some(pieces)
    }

    /// What `route.replace` makes of topics; they stay as they are without it, and where its pattern does not match.
    pub fn replaced(&self, topics: Vec<String>) -> Vec<String> {
        let Some(Ok(mut rewrite)) = self.replace.as_ref().map(Rewrite::compile) else {
            return topics;
        };
        let mut replaced: Vec<String> = Vec::new();
        for topic in topics {
            let mut scratch = Vec::new();
            let made = match rewrite.apply(topic.as_bytes(), &mut scratch) {
                Some(Span::Scratch(made)) => {
                    String::from_utf8_lossy(made.of(&scratch)).into_owned()
                }
                Some(Span::Null | Span::Row(_) | Span::Fixed(_)) | None => topic,
            };
            if !replaced.contains(&made) {
                replaced.push(made);
            }
        }
        replaced
    }

    /// The one topic of a template without fields.
    pub fn constant_topic(&self) -> Option<String> {
        let pieces = self.topic_parts()?.into_iter();
        let text = |piece| match piece {
            TopicPart::Text(text) => Some(text),
            TopicPart::Columns(_) => None,
        };
        let topic: String = pieces.map(text).collect::<Option<_>>()?;
        self.replaced(vec![topic]).pop()
    }

    /// The column a template means by `name`: as `route` has it.
    fn column_called(&self, name: &str) -> Option<String> {
        let role = || Role::from_name(name).and_then(|role| self.column(role));
        let itself = || {
            let extra = self.extras().map(|extra| extra.column.as_str());
            self.roles().map(|(_, column)| column).chain(extra).find(|column| *column == name)
        };
        let layouts = || self.layout.role(name).and_then(|role| self.column(role));
        role().or_else(itself).or_else(layouts).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replace;

    #[test]
    fn a_topic_is_told_in_text_and_columns() {
        let mut spec = OutboxSpec::for_layout(Layout::Debezium);
        let text = |text: &str| TopicPart::Text(text.to_owned());
        let columns =
            |names: &[&str]| TopicPart::Columns(names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(
            spec.topic_parts(),
            Some(vec![text("outbox.event."), columns(&["aggregatetype"])])
        );
        spec.topic = "a{{{type|aggregate_id}.x".to_owned();
        assert_eq!(
            spec.topic_parts(),
            Some(vec![text("a{"), columns(&["type", "aggregateid"]), text(".x")])
        );
        spec.topic = "{nobody}".to_owned();
        assert_eq!(spec.topic_parts(), None);
    }

    /// The topics that `check` asks the broker about are those of the records.
    #[test]
    fn topics_are_known_with_a_replacement_too() {
        let replace = |pattern: &str, with: &str| {
            Some(Replace { pattern: pattern.to_owned(), with: with.to_owned() })
        };
        let columns = |name: &str| TopicPart::Columns(vec![name.to_owned()]);
        let mut debezium = OutboxSpec::for_layout(Layout::Debezium);
        debezium.replace = replace("(.*)[.]v[0-9]+", "events.$1");
        assert_eq!(
            debezium.topic_parts(),
            Some(vec![columns("aggregatetype")]),
            "without its own text"
        );
        let seen = ["order.v1", "order.v2", "plain"].map(str::to_owned).to_vec();
        assert_eq!(debezium.replaced(seen), ["events.order", "plain"]);
        assert_eq!(debezium.constant_topic(), None);
        let mut ours = OutboxSpec {
            topic: "a.{aggregate_type}".to_owned(),
            ..OutboxSpec::for_layout(Layout::Postrider)
        };
        ours.replace = replace("a[.](.*)", "b.$1");
        assert_eq!(ours.topic_parts().map(|pieces| pieces.len()), Some(2), "the whole topic");
        ours.topic = "a.x".to_owned();
        assert_eq!(ours.constant_topic().as_deref(), Some("b.x"));
    }
}
