//! A configuration that is being assembled: keys by table, in the order in which they were set.

use crate::sink::DEFAULT_KIND;
use toml::Table;
pub use toml::Value;

/// A configuration of one pipeline that has not been written yet.
#[derive(Clone, PartialEq, Debug)]
pub struct Draft {
    /// The pipeline's name.
    pub name: String,
    /// Lines for the head of the file, without `#`.
    pub head: Vec<String>,
    /// Lines for the end of the file, without `#`.
    pub tail: Vec<String>,
    keys: Vec<(String, String, Value)>,
    /// Lines below a table's keys, without `#`.
    notes: Vec<(String, String)>,
    /// Names in `sink.properties` that the configuration refuses and that are written nevertheless, so that the
    /// pipeline does not start before the user has replaced them.
    refused: Vec<String>,
}

impl Draft {
    /// An empty draft. Characters that a pipeline's name cannot have are replaced.
    pub fn new(name: &str) -> Self {
        let (head, tail) = (Vec::new(), Vec::new());
        Self {
            name: pipeline_name(name),
            head,
            tail,
            keys: Vec::new(),
            notes: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Sets `key` of `[pipelines.NAME.table]` and replaces its value. In strings `${NAME}` is a variable.
    pub fn set(&mut self, table: &str, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.keys.iter_mut().find(|(t, k, _)| t == table && k == key) {
            Some((_, _, old)) => *old = value,
            None => self.keys.push((table.to_owned(), key.to_owned(), value)),
        }
    }

    /// Removes a key.
    pub(super) fn unset(&mut self, table: &str, key: &str) {
        self.keys.retain(|(t, k, _)| !(t == table && k == key));
    }

    /// Marks a property as one that the configuration refuses.
    pub(super) fn keep_refused(&mut self, property: &str) {
        self.refused.push(property.to_owned());
    }

    /// Whether the configuration accepts the file as it is written.
    pub fn is_complete(&self) -> bool {
        self.refused.is_empty()
    }

    /// The draft without its login properties, if one of them is refused.
    pub(super) fn checkable(&self) -> Self {
        let mut draft = self.clone();
        if !self.refused.is_empty() {
            draft.keys.retain(|(table, key, _)| !(table == PROPERTIES && is_of_login(key)));
        }
        draft
    }

    /// Places an additional column: `key = { way = name }`.
    pub fn place(&mut self, column: &str, way: &str, name: Value, optional: bool) {
        let mut table = Table::new();
        table.insert(way.to_owned(), name);
        if optional {
            table.insert("optional".to_owned(), Value::Boolean(true));
        }
        // At the end, even if the column was placed before: the order decides the order in the record.
        self.keys.retain(|(known, key, _)| !(known == "outbox.extra" && key == column));
        self.set("outbox.extra", column, Value::Table(table));
    }

    /// Writes a comment below the keys of a table.
    pub fn note(&mut self, table: &str, line: impl Into<String>) {
        self.notes.push((table.to_owned(), line.into()));
    }

    /// The value of a key.
    pub fn get(&self, table: &str, key: &str) -> Option<&Value> {
        self.keys.iter().find(|(t, k, _)| t == table && k == key).map(|(.., value)| value)
    }

    /// The kind of the sink: `sink.kind`, or the default.
    pub(super) fn sink_kind(&self) -> &str {
        self.get("sink", "kind").and_then(Value::as_str).unwrap_or(DEFAULT_KIND)
    }

    /// The keys of a table, in order.
    pub fn keys_of<'d>(&'d self, table: &'d str) -> impl Iterator<Item = (&'d str, &'d Value)> {
        self.keys
            .iter()
            .filter(move |(t, ..)| t == table)
            .map(|(_, key, value)| (key.as_str(), value))
    }

    /// The comments of a table, in order.
    pub(super) fn notes_of<'d>(&'d self, table: &'d str) -> impl Iterator<Item = &'d str> {
        self.notes.iter().filter(move |(t, _)| t == table).map(|(_, line)| line.as_str())
    }
}

/// The table of librdkafka's properties.
pub(super) const PROPERTIES: &str = "sink.properties";

/// Whether a property affects the login or the encryption of the connection. If only one of them were left out, the
/// others might be accepted, and the connection would be a different one.
pub(super) fn is_of_login(property: &str) -> bool {
    property == "security.protocol" || property.starts_with("sasl.") || property.starts_with("ssl.")
}

/// Length of a pipeline's name at most: that of a slot's name, without the prefix. Unit: characters.
const NAME_CHARS_MAX: usize = 53;

/// `name` with the characters that a pipeline's name cannot have replaced by `_`.
pub(super) fn pipeline_name(name: &str) -> String {
    let fit = |c: char| {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '_' }
    };
    let name: String = name.chars().map(fit).take(NAME_CHARS_MAX).collect();
    if name.chars().all(|c| c == '_') { "outbox".to_owned() } else { name }
}

/// Escapes `${`, so that it is not read as a variable.
pub(super) fn verbatim(text: &str) -> String {
    text.replace("${", "$${")
}
