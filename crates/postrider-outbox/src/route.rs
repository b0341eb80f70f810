//! A specification, checked and compiled: every name resolved to a field, every constant in one fixed text.

use super::debezium::Place;
use super::error::{Problem, SpecError};
use super::layout::{Layout, Role};
use super::position::{HISTORY, POSITION};
use super::replace::Rewrite;
use super::span::{Extent, FieldId};
use super::spec::{NullPayload, OutboxSpec, Placement, TimestampSource};
use super::template::{Template, TemplateError};
use postrider_core::zone::Zone;

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
