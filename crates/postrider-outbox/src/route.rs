//! The compiled specification: names are resolved to fields, and all constants are in one fixed text.

use crate::cells::{CellRange, EventRow, FieldId};
use crate::debezium::{self, Place};
use crate::error::{Problem, SpecError};
use crate::headers::{HISTORY, POSITION, SOURCE};
use crate::layout::{Layout, Role};
use crate::spec::{NullPayload, OutboxSpec, Placement, Replace, TimestampSource};
use postrider_core::row::ByteRange;
use postrider_core::sink::NameRule;
use postrider_core::zone::Zone;
use regex::bytes::{CaptureLocations, Regex};

/// The header of a replayed event. Its name is reserved.
pub(super) const REPLAY: &str = "replay";

/// A field of an event: a role, or an extra column.
#[derive(Debug)]
pub(super) struct Field {
    /// The name of the role, or of the extra column. It is also the name of the member of a logical message.
    pub(super) name: String,
    /// The column.
    pub(super) column: String,
    pub(super) role: Option<Role>,
    /// Whether the table may lack the column.
    pub(super) may_lack: bool,
}

/// How a header, or the headers of a row's JSON object, are made.
#[derive(Debug)]
pub(super) enum HeaderRule {
    /// The field's text.
    Field { name: ByteRange, field: FieldId },
    /// The field's text as Debezium's converters write its type.
    Typed { name: ByteRange, field: FieldId },
    /// A template.
    Template { name: ByteRange, template: Template },
    /// The event's position, or its history alone.
    Position { name: ByteRange, history: ByteRange },
    /// Each member of a JSON object.
    Object { field: FieldId },
    /// The name of the pipeline, unless the row has a header of this name.
    Source { name: ByteRange, value: ByteRange },
    /// A trace, with one of two names.
    Trace { w3c: ByteRange, other: ByteRange, field: FieldId },
}

/// The object around the payload, which becomes the value.
#[derive(Debug)]
pub(super) struct Envelope {
    /// `{"payload":`.
    pub(super) open: ByteRange,
    /// `,"name":` and the field, in order.
    pub(super) placed: Vec<(ByteRange, FieldId)>,
    /// Whether JSON columns are JSON.
    pub(super) json: bool,
    /// Whether a payload of JSON text is JSON.
    pub(super) expand: bool,
}

/// The fields that the mapper itself reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoreFields {
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
    pub(super) core: CoreFields,
    pub(super) fixed: String,
    pub(super) topic: Template,
    /// The topic's template as written, for error messages.
    pub(super) topic_text: String,
    /// What a topic may be called.
    pub(super) names: NameRule,
    pub(super) replace: Option<Rewrite>,
    pub(super) key: Template,
    pub(super) partition: Option<Template>,
    pub(super) headers: Vec<HeaderRule>,
    /// Names that a header of the row can't have.
    pub(super) reserved_names: Vec<String>,
    pub(super) timestamp: TimestampSource,
    pub(super) zone: Option<Zone>,
    pub(super) null_payload: NullPayload,
    pub(super) blank_is_tombstone: bool,
    pub(super) envelope: Option<Envelope>,
    /// Layout `debezium`, which differs in the treatment of NULL in key and event type, and in the topic's replacement.
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
        let reserved_names = compiler.reserved_names();
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
            names: NameRule::ANY,
            replace,
            key,
            partition,
            headers,
            reserved_names,
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

    /// The problem of a field, or of the headers if `None`, whose bytes are not UTF-8.
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

    /// The field that `name` means in a template: the name of a role, of a column, or the layout's name of a column.
    fn named(&self, name: &str) -> Option<FieldId> {
        let by = |is: &dyn Fn(&Field) -> bool| self.fields.iter().position(is).map(FieldId);
        by(&|field| field.role.is_some() && field.name == name)
            .or_else(|| by(&|field| field.column == name))
            .or_else(|| self.role(self.spec.layout.role(name)?))
    }

    fn core(&mut self) -> Option<CoreFields> {
        let id = self.needed(Role::Id);
        let aggregate_type = self.needed(Role::AggregateType);
        let aggregate_id = self.needed(Role::AggregateId);
        let payload = self.needed(Role::Payload);
        if self.spec.layout != Layout::Debezium || self.spec.standard_headers.event_type {
            self.needed(Role::EventType);
        }
        Some(CoreFields {
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

    /// A template whose fields are written as Debezium does in `place`, if the layout is `debezium`.
    fn written(&mut self, key: &str, text: &str, place: Place) -> Template {
        let template = self.template(key, text);
        if self.spec.layout == Layout::Debezium { template.written_in(place) } else { template }
    }

    fn constant(&mut self, text: &str) -> ByteRange {
        let start = self.fixed.len();
        self.fixed.push_str(text);
        ByteRange { start, len: text.len() }
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
        if spec.standard_headers.source && !spec.source.is_empty() && !self.places(SOURCE) {
            let (name, value) = (self.constant(SOURCE), self.constant(&spec.source));
            rules.push(HeaderRule::Source { name, value });
        }
        rules
    }

    /// Whether the configuration places a header of this name.
    fn places(&self, name: &str) -> bool {
        self.spec.headers.iter().any(|(header, _)| header == name)
            || self.spec.extras().any(
                |extra| matches!(&extra.placement, Placement::Header(header) if header == name),
            )
    }

    fn field(&self, name: ByteRange, field: FieldId) -> HeaderRule {
        if self.spec.layout == Layout::Debezium {
            HeaderRule::Typed { name, field }
        } else {
            HeaderRule::Field { name, field }
        }
    }

    /// The reserved names of headers: those of Postrider and of the configuration. With two headers of the same name, a
    /// consumer could take the row's header for that of Postrider.
    fn reserved_names(&mut self) -> Vec<String> {
        let spec = self.spec;
        let mut reserved: Vec<&str> = vec!["id", REPLAY];
        if spec.standard_headers.event_type {
            reserved.push("type");
        }
        if spec.standard_headers.position {
            reserved.extend([POSITION, HISTORY]);
        }
        if self.role(Role::Trace).is_some() {
            reserved.extend(["traceparent", "trace_id"]);
        }
        let ours: Vec<&str> = reserved.iter().copied().filter(|name| *name != "id").collect();
        let extras = spec.extras().filter_map(|extra| match &extra.placement {
            Placement::Header(name) => Some((name, format!("outbox.extra.{}", extra.column))),
            Placement::Envelope(_) | Placement::Partition | Placement::Ignore => None,
        });
        let headers = spec.headers.iter().map(|(name, _)| (name, format!("route.headers.{name}")));
        // Debezium appends its headers: a consumer that reads the first header `id` gets that of Postrider.
        let appends = |name: &str| spec.layout == Layout::Debezium && !ours.contains(&name);
        for (name, key) in extras.chain(headers) {
            if reserved.contains(&name.as_str()) && !name.is_empty() && !appends(name) {
                self.errors.push(SpecError::HeaderTaken { key, name: name.clone() });
            }
            reserved.push(name);
        }
        reserved.into_iter().map(str::to_owned).collect()
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

/// A compiled template. `{field}` is a field's text, `{a|b}` the first of the fields that is not NULL, `{{` and `}}`
/// are braces. A template of a single field, or of only fixed text, needs no copy at run time.
#[derive(Debug, Default)]
pub(super) struct Template {
    parts: Vec<TemplatePart>,
    /// Fields are written as Debezium does in this place; if `None`, as PostgreSQL renders them.
    place: Option<Place>,
}

#[derive(Debug)]
enum TemplatePart {
    /// Plain text, in the fixed text.
    Text(ByteRange),
    /// The first of these that is not NULL.
    Field(Vec<FieldId>),
}

/// One part of a template's text.
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

/// The names of fields in a template; an error in the template is ignored.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    tokens(text)
        .filter_map(|token| match token {
            Ok(Token::Field(names)) => Some(names.split('|').map(str::trim)),
            Ok(Token::Text(_)) | Err(_) => None,
        })
        .flatten()
}

/// A part of a template before names are resolved.
pub(super) enum RawPart {
    Text(String),
    Field(Vec<String>),
}

/// The parts of a template; `None` if the template has an error.
pub(super) fn parts(text: &str) -> Option<Vec<RawPart>> {
    let mut parts = Vec::new();
    for token in tokens(text) {
        match token.ok()? {
            Token::Text(char) => match parts.last_mut() {
                Some(RawPart::Text(text)) => text.push(char),
                Some(RawPart::Field(_)) | None => parts.push(RawPart::Text(char.to_string())),
            },
            Token::Field(names) => {
                parts.push(RawPart::Field(
                    names.split('|').map(|name| name.trim().to_owned()).collect(),
                ));
            }
        }
    }
    Some(parts)
}

impl Template {
    /// Compiles `text`, and appends its fixed text to `fixed`.
    pub(super) fn compile(
        text: &str,
        fixed: &mut String,
        field: impl Fn(&str) -> Option<FieldId>,
    ) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        for token in tokens(text) {
            match token.map_err(TemplateError::Syntax)? {
                Token::Text(char) => {
                    let start = fixed.len();
                    fixed.push(char);
                    let len = char.len_utf8();
                    match parts.last_mut() {
                        Some(TemplatePart::Text(extent)) => extent.len += len,
                        Some(TemplatePart::Field(_)) | None => {
                            parts.push(TemplatePart::Text(ByteRange { start, len }));
                        }
                    }
                }
                Token::Field(names) => {
                    let known = |name: &str| {
                        field(name.trim()).ok_or_else(|| TemplateError::Unknown(name.to_owned()))
                    };
                    parts.push(TemplatePart::Field(
                        names.split('|').map(known).collect::<Result<_, _>>()?,
                    ));
                }
            }
        }
        Ok(Self { parts, place: None })
    }

    /// The template of a single field.
    pub(super) fn field(field: FieldId) -> Self {
        Self { parts: vec![TemplatePart::Field(vec![field])], place: None }
    }

    /// The same template, with fields written as Debezium does in `place`.
    pub(super) fn written_in(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Whether the template is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The range of the text for `row`.
    ///
    /// # Errors
    /// The field that is NULL.
    #[inline]
    pub(super) fn fill(
        &self,
        row: &EventRow<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<CellRange, FieldId> {
        match self.parts.as_slice() {
            [] => Ok(CellRange::Fixed(ByteRange { start: 0, len: 0 })),
            [TemplatePart::Text(extent)] => Ok(CellRange::Fixed(*extent)),
            [TemplatePart::Field(ids)] => self.value(ids, row, scratch),
            _ => self.join(row, fixed, scratch),
        }
    }

    /// As [`fill`](Self::fill), without the template's fixed text.
    pub(super) fn fill_fields(
        &self,
        row: &EventRow<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<CellRange, FieldId> {
        let mut fields = self.parts.iter().filter_map(|part| match part {
            TemplatePart::Field(ids) => Some(ids),
            TemplatePart::Text(_) => None,
        });
        match (fields.next(), fields.next()) {
            (None, _) => self.fill(row, fixed, scratch),
            (Some(ids), None) => self.value(ids, row, scratch),
            (Some(_), Some(_)) => {
                let start = scratch.len();
                for part in &self.parts {
                    if let TemplatePart::Field(ids) = part {
                        self.append(ids, row, scratch)?;
                    }
                }
                Ok(CellRange::since(start, scratch))
            }
        }
    }

    /// The range of one field's text.
    #[inline]
    fn value(
        &self,
        ids: &[FieldId],
        row: &EventRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<CellRange, FieldId> {
        let (field, extent) = first(ids, row)?;
        Ok(match self.place {
            None => CellRange::Row(extent),
            Some(place) => debezium::text(row, field, place, scratch),
        })
    }

    /// Appends one field's text.
    fn append(
        &self,
        ids: &[FieldId],
        row: &EventRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), FieldId> {
        match self.value(ids, row, scratch)? {
            CellRange::Row(extent) => scratch.extend_from_slice(row.at(extent)),
            // The text is in the buffer already.
            CellRange::Scratch(_) | CellRange::Null | CellRange::Fixed(_) => {}
        }
        Ok(())
    }

    fn join(
        &self,
        row: &EventRow<'_>,
        fixed: &str,
        scratch: &mut Vec<u8>,
    ) -> Result<CellRange, FieldId> {
        let start = scratch.len();
        for part in &self.parts {
            match part {
                TemplatePart::Text(extent) => {
                    scratch.extend_from_slice(extent.of(fixed.as_bytes()));
                }
                TemplatePart::Field(ids) => self.append(ids, row, scratch)?,
            }
        }
        Ok(CellRange::since(start, scratch))
    }
}

fn first(ids: &[FieldId], row: &EventRow<'_>) -> Result<(FieldId, ByteRange), FieldId> {
    let found = ids.iter().find_map(|id| Some((*id, row.extent(*id)?)));
    // A part has at least one field.
    found.ok_or_else(|| ids.last().copied().unwrap_or_default())
}

/// The compiled `route.replace`: a regular expression for the topic, with Debezium's semantics and Java's syntax of
/// replacements.
#[derive(Debug)]
pub(super) struct Rewrite {
    pattern: Regex,
    parts: Vec<ReplacementPart>,
    /// Reused from event to event.
    found: CaptureLocations,
}

#[derive(Debug, PartialEq, Eq)]
enum ReplacementPart {
    Text(String),
    Group(usize),
}

impl Rewrite {
    pub(super) fn compile(spec: &Replace) -> Result<Self, SpecError> {
        // Compiled alone first, so that the error shows the pattern as written.
        Regex::new(&spec.pattern).map_err(SpecError::Pattern)?;
        let whole = format!(r"\A(?:{}){}", spec.pattern, r"\z");
        let pattern = Regex::new(&whole).map_err(SpecError::Pattern)?;
        let parts = replacement(&spec.with, &pattern).map_err(SpecError::Replacement)?;
        let found = pattern.capture_locations();
        Ok(Self { pattern, parts, found })
    }

    /// Writes the replacement of `subject`; `None` if the pattern does not match the whole subject.
    pub(super) fn apply(&mut self, subject: &[u8], scratch: &mut Vec<u8>) -> Option<CellRange> {
        self.pattern.captures_read(&mut self.found, subject)?;
        let start = scratch.len();
        for part in &self.parts {
            match part {
                ReplacementPart::Text(text) => scratch.extend_from_slice(text.as_bytes()),
                ReplacementPart::Group(group) => {
                    if let Some((from, to)) = self.found.get(*group) {
                        scratch.extend_from_slice(&subject[from..to]);
                    }
                }
            }
        }
        Some(CellRange::since(start, scratch))
    }
}

/// Parses a replacement as `java.util.regex.Matcher.appendReplacement`: `$12` is group 12 if it exists, otherwise group
/// 1 and the digit 2.
fn replacement(with: &str, pattern: &Regex) -> Result<Vec<ReplacementPart>, &'static str> {
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
                    parts.push(ReplacementPart::Text(std::mem::take(&mut text)));
                }
                parts.push(ReplacementPart::Group(group));
            }
            other => text.push(other),
        }
    }
    if !text.is_empty() {
        parts.push(ReplacementPart::Text(text));
    }
    Ok(parts)
}

/// A part of a topic's template, for a caller that has to know the topics before there are events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopicPart {
    /// Fixed text.
    Text(String),
    /// The first of these columns that is not NULL.
    Columns(Vec<String>),
}

impl OutboxSpec {
    /// The parts of the topic's template, before `route.replace`; `None` if the template has an error.
    pub fn topic_parts(&self) -> Option<Vec<TopicPart>> {
        let parts = parts(&self.topic)?.into_iter().map(|part| match part {
            RawPart::Text(text) => Some(TopicPart::Text(text)),
            RawPart::Field(names) => names
                .iter()
                .map(|name| self.column_called(name))
                .collect::<Option<_>>()
                .map(TopicPart::Columns),
        });
        let mut parts: Vec<TopicPart> = parts.collect::<Option<_>>()?;
        let is_columns = |part: &TopicPart| matches!(part, TopicPart::Columns(_));
        // With layout debezium, the pattern is matched against the fields without the fixed text.
        if self.replace.is_some() && self.layout == Layout::Debezium && parts.iter().any(is_columns)
        {
            parts.retain(is_columns);
        }
        Some(parts)
    }

    /// Applies `route.replace` to topics, each result once. A topic is unchanged without it, and if the pattern does
    /// not match.
    pub fn replaced(&self, topics: Vec<String>) -> Vec<String> {
        let Some(Ok(mut rewrite)) = self.replace.as_ref().map(Rewrite::compile) else {
            return topics;
        };
        let mut replaced: Vec<String> = Vec::new();
        for topic in topics {
            let mut scratch = Vec::new();
            let made = match rewrite.apply(topic.as_bytes(), &mut scratch) {
                Some(CellRange::Scratch(made)) => {
                    String::from_utf8_lossy(made.of(&scratch)).into_owned()
                }
                Some(CellRange::Null | CellRange::Row(_) | CellRange::Fixed(_)) | None => topic,
            };
            if !replaced.contains(&made) {
                replaced.push(made);
            }
        }
        replaced
    }

    /// The topic, if its template has no fields.
    pub fn constant_topic(&self) -> Option<String> {
        let parts = self.topic_parts()?.into_iter();
        let text = |part| match part {
            TopicPart::Text(text) => Some(text),
            TopicPart::Columns(_) => None,
        };
        let topic: String = parts.map(text).collect::<Option<_>>()?;
        self.replaced(vec![topic]).pop()
    }

    /// The column that `name` means in a template.
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
    fn a_topic_has_parts_of_text_and_columns() {
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

    /// `check` queries the broker for the topics of the records.
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
            "without the fixed text"
        );
        let seen = ["order.v1", "order.v2", "plain"].map(str::to_owned).to_vec();
        assert_eq!(debezium.replaced(seen), ["events.order", "plain"]);
        assert_eq!(debezium.constant_topic(), None);
        let mut ours = OutboxSpec {
            topic: "a.{aggregate_type}".to_owned(),
            ..OutboxSpec::for_layout(Layout::Postrider)
        };
        ours.replace = replace("a[.](.*)", "b.$1");
        assert_eq!(ours.topic_parts().map(|parts| parts.len()), Some(2), "the whole topic");
        ours.topic = "a.x".to_owned();
        assert_eq!(ours.constant_topic().as_deref(), Some("b.x"));
    }
}
