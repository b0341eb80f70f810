//! Reads one table of the file, key by key.
//!
//! Every method returns the value or its default, and records mistakes. [`Section::finish`] then reports the keys that
//! were not read. So each key is named only in the code that reads it.

use super::file::{Env, Finding, InterpolateError, interpolate, variables};
use crate::secret_file::SecretFile;
use crate::sink::{KeyValue, Keys, SinkKind};
use crate::units::{self, ShowDuration, ShowSize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table, or a missing table, of which every key has its default.
pub(super) struct Section<'a> {
    pub(super) context: &'a Context<'a>,
    /// The key path, `pipelines.orders.flow`; empty for the file itself.
    pub(super) path: String,
    /// The key path with `*` for names that the user chose.
    pattern: String,
    table: Option<&'a DeTable<'a>>,
    /// The value is not a table. This is the only mistake that is reported then: missing keys are not.
    broken: bool,
    known: RefCell<Vec<&'static str>>,
    /// Names that keys had in an earlier version.
    renamed: RefCell<Vec<&'static str>>,
}

/// An entry of a table whose keys the user chooses.
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) path: String,
    pub(super) place: FilePosition,
    pub(super) value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Section<'a> {
    pub(super) fn root(context: &'a Context<'a>, table: &'a DeTable<'a>) -> Self {
        Self::new(context, String::new(), String::new(), Some(table))
    }

    fn new(
        context: &'a Context<'a>,
        path: String,
        pattern: String,
        table: Option<&'a DeTable<'a>>,
    ) -> Self {
        let (known, renamed) = (RefCell::default(), RefCell::default());
        Self { context, path, pattern, table, broken: false, known, renamed }
    }

    /// A table at this place that is not in the file: what is read of it is recorded for the schema alone.
    #[cfg(feature = "kafka")]
    pub(super) fn absent(&self) -> Self {
        Self::new(self.context, self.path.clone(), self.pattern.clone(), None)
    }

    /// The key path of `key`.
    pub(super) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Whether the table is in the file.
    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether missing keys of the table are reported: not if the value is not a table.
    pub(super) fn is_whole(&self) -> bool {
        !self.broken
    }

    /// The keys that were asked for so far.
    pub(super) fn known(&self) -> Vec<&'static str> {
        self.known.borrow().clone()
    }

    /// Whether a mistake of the key was reported already.
    pub(super) fn has_failed(&self, key: &str) -> bool {
        self.context.has_error(&self.path_of(key))
    }

    /// Whether the key is in the file.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    fn get(&self, key: &'static str, kind: Kind) -> Option<(FilePosition, &'a DeValue<'a>)> {
        self.known.borrow_mut().push(key);
        self.context.asked(join(&self.pattern, key), kind);
        let (name, value) = self.table?.get_key_value(key)?;
        Some((self.context.found(&self.path_of(key), name.span()), value.get_ref()))
    }

    /// The table `key`.
    pub(super) fn section(&self, key: &'static str) -> Section<'a> {
        let found = self.get(key, Kind::Table);
        let table = found.and_then(|(_, value)| value.as_table());
        let section =
            Section::new(self.context, self.path_of(key), join(&self.pattern, key), table);
        match found {
            Some((place, value)) if table.is_none() => {
                self.wrong(place, key, "a table", value);
                Section { broken: true, ..section }
            }
            Some(_) | None => section,
        }
    }

    /// The table `key`; `false` means the same as a missing table.
    pub(super) fn section_or_false(&self, key: &'static str) -> Section<'a> {
        let found = self.get(key, Kind::TableOrFalse);
        let table = found.and_then(|(_, value)| value.as_table());
        let section =
            Section::new(self.context, self.path_of(key), join(&self.pattern, key), table);
        match found {
            Some((place, value)) if table.is_none() && value.as_bool() != Some(false) => {
                self.wrong(place, key, "false or a table", value);
                Section { broken: true, ..section }
            }
            Some(_) | None => section,
        }
    }

    /// A string with its variables replaced; `None` if it is missing or invalid.
    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        self.text_as(key, Kind::Text, "a string")
    }

    fn text_as(&self, key: &'static str, kind: Kind, expected: &str) -> Option<String> {
        let (place, value) = self.get(key, kind)?;
        let Some(text) = value.as_str() else {
            self.wrong(place, key, expected, value);
            return None;
        };
        self.context.fill(place, &self.path_of(key), text)
    }

    /// A string that is required and must not be empty.
    pub(super) fn required(&self, key: &'static str, example: &str) -> Option<String> {
        let was_there = self.has(key) || self.broken;
        let text = self.text(key);
        let empty = text.as_ref().is_some_and(|text| text.trim().is_empty());
        if !was_there || empty {
            let what = if empty { "is empty" } else { "is missing" };
            self.error(key, format_args!("{what}; for example {key} = \"{example}\""));
        }
        text.filter(|_| !empty)
    }

    /// A string; the empty string means `None`.
    pub(super) fn optional(&self, key: &'static str) -> Option<String> {
        self.text(key).filter(|text| !text.is_empty())
    }

    pub(super) fn boolean(&self, key: &'static str, default: bool) -> bool {
        let Some((place, value)) = self.get(key, Kind::Boolean) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.wrong(place, key, "true or false", value);
            default
        })
    }

    /// One of a few words. `later`: words of later versions.
    pub(super) fn one_of<T: Copy>(
        &self,
        key: &'static str,
        words: &[(&str, T)],
        later: &[&str],
        default: T,
    ) -> T {
        let kind = Kind::Word(words.iter().map(|(word, _)| (*word).to_owned()).collect());
        let Some(text) = self.text_as(key, kind, "a string") else { return default };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return *value;
        }
        let all =
            words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        if let Some(word) = later.iter().find(|word| **word == text) {
            let message = format!("\"{word}\" is not available in this version; use one of {all}");
            self.error(key, message);
        } else {
            let near =
                nearest(&text, words.iter().map(|(word, _)| *word).chain(later.iter().copied()));
            let near = near.map_or_else(String::new, |word| format!("; did you mean \"{word}\"?"));
            self.error(key, format_args!("expected one of {all}{near}"));
        }
        default
    }

    /// An array of words, in the order of the file; `None` if it is missing.
    pub(super) fn some_of<T: Copy>(
        &self,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Option<Vec<T>> {
        let kind = Kind::Words(words.iter().map(|(word, _)| (*word).to_owned()).collect());
        let (place, value) = self.get(key, kind)?;
        let all = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("\", \"");
        let Some(array) = value.as_array() else {
            self.wrong(place, key, &format!("an array with any of \"{}\"", all()), value);
            return None;
        };
        let mut found = Vec::new();
        for value in array {
            let text = value.get_ref().as_str();
            match words.iter().find(|(word, _)| Some(*word) == text) {
                Some((_, value)) => found.push(*value),
                None => self.error(key, format_args!("expected any of \"{}\"", all())),
            }
        }
        Some(found)
    }

    /// An array of strings with their variables replaced; `None` if it is missing or invalid.
    pub(super) fn text_list(&self, key: &'static str) -> Option<Vec<String>> {
        let (place, value) = self.get(key, Kind::Texts)?;
        text_list(self.context, place, &self.path_of(key), value)
    }

    /// All entries of a table whose keys the user chooses, in the order of the file. `kind`: the kind of each value.
    pub(super) fn entries(&self, kind: Kind) -> Vec<Entry<'a>> {
        self.context.asked(join(&self.pattern, "*"), kind);
        let Some(table) = self.table else { return Vec::new() };
        let entry =
            |(name, value): (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
                let path = self.path_of(&quoted(name.get_ref()));
                let place = self.context.found(&path, name.span());
                Entry { name: name.get_ref().as_ref(), path, place, value }
            };
        let mut entries: Vec<_> = table.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.place);
        entries
    }

    /// An entry that is a table.
    pub(super) fn inner(&self, entry: &Entry<'a>) -> Option<Section<'a>> {
        let table = entry.value.get_ref().as_table()?;
        Some(Section::new(self.context, entry.path.clone(), join(&self.pattern, "*"), Some(table)))
    }

    /// The key has another name since an earlier version: a file that has the old one is refused.
    pub(super) fn renamed(&self, old: &'static str, new: &str) {
        self.renamed.borrow_mut().push(old);
        if let Some((name, _)) = self.table.and_then(|table| table.get_key_value(old)) {
            let path = self.path_of(old);
            let place = self.context.found(&path, name.span());
            self.context.error(
                place,
                &path,
                format_args!("the key is called {new} now: rename it"),
            );
        }
    }

    /// Reports the keys that were not read.
    pub(super) fn finish(self) {
        self.report_unknown();
    }

    fn report_unknown(&self) {
        let Some(table) = self.table else { return };
        let (known, renamed) = (self.known.borrow(), self.renamed.borrow());
        let is_known = |name: &str| known.contains(&name) || renamed.contains(&name);
        for name in table.keys().filter(|name| !is_known(name.get_ref())) {
            let path = self.path_of(&quoted(name.get_ref()));
            let near = nearest(name.get_ref(), known.iter().copied());
            let hint = near.map_or_else(
                || format!("the keys here are {}", known.join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            let place = self.context.place(name.span());
            self.context.error(place, &path, format_args!("unknown key; {hint}"));
        }
    }

    pub(super) fn error(&self, key: &str, message: impl ToString) {
        self.context.error_at(&self.path_of(key), message);
    }

    fn wrong(&self, place: FilePosition, key: &str, expected: &str, found: &DeValue<'_>) {
        wrong_kind(self.context, place, &self.path_of(key), expected, found);
    }

    pub(super) fn integer(
        &self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> u64 {
        let kind = Kind::Integer { min: *range.start(), max: *range.end() };
        let Some((place, value)) = self.get(key, kind) else { return default };
        let number = value.as_integer().map(|digits| {
            i128::from_str_radix(digits.as_str(), digits.radix()).unwrap_or(i128::MAX)
        });
        let Some(number) = number else {
            self.wrong(place, key, "a whole number", value);
            return default;
        };
        match u64::try_from(number) {
            Ok(number) if range.contains(&number) => number,
            Ok(_) | Err(_) => {
                let (min, max) = (range.start(), range.end());
                self.error(key, format_args!("expected a number from {min} to {max}"));
                default
            }
        }
    }

    /// As [`Section::integer`], for bounds that fit.
    pub(super) fn small(&self, key: &'static str, default: u32, range: RangeInclusive<u32>) -> u32 {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        u32::try_from(self.integer(key, u64::from(default), range)).unwrap_or(default)
    }

    pub(super) fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let text = self.text_as(key, Kind::Duration, "a duration such as \"10s\"");
        text.and_then(|text| self.duration_of(key, &text, &range)).unwrap_or(default)
    }

    /// A duration of which `"0"`, the default, means never.
    pub(super) fn duration_or_never(
        &self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let text =
            self.text_as(key, Kind::DurationOrNever, "a duration such as \"10m\", or \"0\"")?;
        if text == "0" { None } else { self.duration_of(key, &text, &range) }
    }

    fn duration_of(
        &self,
        key: &str,
        text: &str,
        range: &RangeInclusive<Duration>,
    ) -> Option<Duration> {
        match units::duration(text) {
            Ok(value) if range.contains(&value) => Some(value),
            Ok(_) => {
                let (min, max) = (ShowDuration(*range.start()), ShowDuration(*range.end()));
                self.error(key, format_args!("expected a duration from {min} to {max}"));
                None
            }
            Err(error) => {
                self.error(key, error);
                None
            }
        }
    }

    pub(super) fn size(&self, key: &'static str, default: u64, range: &RangeInclusive<u64>) -> u64 {
        let Some(text) = self.text_as(key, Kind::Size, "a size such as \"64MiB\"") else {
            return default;
        };
        self.size_of(key, &text, range).unwrap_or(default)
    }

    /// Reads the text of `key` as a size.
    pub(super) fn size_of(
        &self,
        key: &str,
        text: &str,
        range: &RangeInclusive<u64>,
    ) -> Option<u64> {
        match units::size(text) {
            Ok(value) if range.contains(&value) => Some(value),
            Ok(_) => {
                let (min, max) = (ShowSize(*range.start()), ShowSize(*range.end()));
                self.error(key, format_args!("expected a size from {min} to {max}"));
                None
            }
            Err(error) => {
                self.error(key, error);
                None
            }
        }
    }
}

/// The table of a sink, or a table in it.
pub(super) struct SinkKeys<'a> {
    pub(super) section: Section<'a>,
    /// The pipeline uses the kind that asks.
    pub(super) is_chosen: bool,
    /// Keys that the pipeline's own kind has asked for: for the others they are absent.
    pub(super) taken: Vec<&'static str>,
}

impl<'a> SinkKeys<'a> {
    fn is_taken(&self, key: &str) -> bool {
        self.taken.contains(&key)
    }

    fn inner(
        &self,
        key: &'static str,
        section: impl FnOnce(&Section<'a>) -> Section<'a>,
    ) -> Box<dyn Keys + '_> {
        let outer = &self.section;
        let section = if self.is_taken(key) {
            Section::new(outer.context, outer.path_of(key), join(&outer.pattern, key), None)
        } else {
            section(outer)
        };
        Box::new(SinkKeys { section, is_chosen: self.is_chosen, taken: Vec::new() })
    }
}

impl Keys for SinkKeys<'_> {
    fn is_present(&self) -> bool {
        self.section.is_present()
    }

    fn text(&self, key: &'static str) -> Option<String> {
        if self.is_taken(key) { None } else { self.section.text(key) }
    }

    fn required(&self, key: &'static str, example: &str) -> Option<String> {
        if self.is_chosen { self.section.required(key, example) } else { self.text(key) }
    }

    fn number(&self, key: &'static str, default: u32, range: RangeInclusive<u32>) -> u32 {
        if self.is_taken(key) { default } else { self.section.small(key, default, range) }
    }

    fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        if self.is_taken(key) { default } else { self.section.duration(key, default, range) }
    }

    fn size(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        if self.is_taken(key) { default } else { self.section.size(key, default, &range) }
    }

    fn secret(&self, key: &'static str) -> Option<(String, SecretFile)> {
        let file = self.text(key)?;
        let (secret, _) = self.section.context.secret_file(&self.section.path_of(key), &file)?;
        Some((file, secret))
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.section.context.env)(name)
    }

    fn word(&self, key: &'static str, words: &[&str], later: &[&str]) -> usize {
        if self.is_taken(key) {
            return 0;
        }
        let words: Vec<_> = words.iter().zip(0..).map(|(word, index)| (*word, index)).collect();
        self.section.one_of(key, &words, later, 0)
    }

    fn flag(&self, key: &'static str, default: bool) -> bool {
        if self.is_taken(key) { default } else { self.section.boolean(key, default) }
    }

    fn table(&self, key: &'static str) -> Box<dyn Keys + '_> {
        self.inner(key, |section| section.section(key))
    }

    fn table_or_false(&self, key: &'static str) -> Box<dyn Keys + '_> {
        self.inner(key, |section| section.section_or_false(key))
    }

    fn entries(&self) -> Vec<KeyValue> {
        let context = self.section.context;
        let mut all = Vec::new();
        for entry in self.section.entries(Kind::Scalar) {
            let mut leaves = Vec::new();
            flatten(entry.name.to_owned(), entry.value.get_ref(), &mut leaves);
            for (name, value) in leaves {
                let Some(text) = scalar(context, &entry.path, value) else { continue };
                let Some(value) = context.fill(entry.place, &entry.path, &text) else { continue };
                all.push(KeyValue { name, value, path: entry.path.clone() });
            }
        }
        all
    }

    fn renamed(&self, old: &'static str, new: &'static str) {
        if !self.is_taken(old) {
            self.section.renamed(old, new);
        }
    }

    fn secret_file(&self, path: &str, file: &str) -> Option<(SecretFile, String)> {
        self.section.context.secret_file(path, file)
    }

    fn file(&self, path: &str, file: &str, bytes_max: usize) -> Option<String> {
        self.section.context.file(path, file, bytes_max)
    }

    fn warn_of_secret(&self, path: &str, file: &str) {
        self.section.context.warn_where_others_read(path, Path::new(file));
    }

    fn error(&self, key: &str, message: String) {
        self.section.error(key, message);
    }

    fn error_at(&self, path: &str, message: String) {
        self.section.context.error_at(path, message);
    }

    fn finish(&self) {
        self.section.report_unknown();
    }
}

fn flatten<'v>(name: String, value: &'v DeValue<'v>, leaves: &mut Vec<(String, &'v DeValue<'v>)>) {
    match value.as_table() {
        Some(table) => {
            for (key, value) in table {
                flatten(format!("{name}.{}", key.get_ref()), value.get_ref(), leaves);
            }
        }
        None => leaves.push((name, value)),
    }
}

/// A property's value as librdkafka has it, which knows strings alone.
fn scalar(context: &Context<'_>, path: &str, value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            let expected = "expected a string, a number, true or false";
            context.error_at(path, expected);
            None
        }
    }
}

/// Whether the value of this key may be a secret or the path of a secret.
fn may_hold_a_secret(path: &str) -> bool {
    path.ends_with(".source.url")
        || path.ends_with(".source.password_file")
        || path.contains(".sink.properties.")
        || path.ends_with(".sink.postgres.url")
        || path.ends_with(".sink.postgres.password_file")
        || path.ends_with(".sink.rabbitmq.url")
        || path.ends_with(".sink.rabbitmq.password_file")
        || path.ends_with(".sink.rabbitmq.key_file")
        || path.ends_with(".claim_check.access_key_file")
        || path.ends_with(".claim_check.secret_key_file")
        || path.ends_with(".claim_check.session_token_file")
}

/// Reports a value of the wrong type, without the value.
pub(super) fn wrong_kind(
    context: &Context<'_>,
    place: FilePosition,
    path: &str,
    expected: &str,
    found: &DeValue<'_>,
) {
    let found = found.type_str();
    context.error(place, path, format_args!("expected {expected}, found a value of type {found}"));
}

/// An array of strings at `path`, with their variables replaced; `None` if it is invalid.
pub(super) fn text_list(
    context: &Context<'_>,
    place: FilePosition,
    path: &str,
    value: &DeValue<'_>,
) -> Option<Vec<String>> {
    let expected = "an array of strings";
    let Some(array) = value.as_array() else {
        wrong_kind(context, place, path, expected, value);
        return None;
    };
    let mut texts = Vec::new();
    for item in array {
        let Some(text) = item.get_ref().as_str() else {
            wrong_kind(context, place, path, expected, item.get_ref());
            return None;
        };
        texts.push(context.fill(place, path, text)?);
    }
    Some(texts)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The state of reading one file, shared by all sections. Mistakes are collected; reading continues after each.
pub(super) struct Context<'c> {
    /// The kinds of sinks that a pipeline may have.
    pub(super) kinds: &'c [&'c dyn SinkKind],
    pub(super) env: Env<'c>,
    /// The directory that names of secret files are relative to.
    pub(super) directory: &'c Path,
    /// Whether secrets are read. If not, secret files are not opened, and unset variables are not an error.
    pub(super) secrets: bool,
    /// Keys whose values were not read because secrets are not read.
    unread: RefCell<Vec<String>>,
    lines: Lines<'c>,
    errors: RefCell<Vec<Finding>>,
    warnings: RefCell<Vec<Finding>>,
    places: RefCell<Places>,
    /// Every key that the code has read, with `*` for names that the user chooses, and the kind of its value. The
    /// schema is made from it, and a test compares the reference file with it.
    asked: RefCell<BTreeMap<String, Kind>>,
}

/// The result of reading a file, besides its values.
pub(super) struct ReadOutcome {
    pub(super) errors: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
    pub(super) places: Places,
    pub(super) asked: BTreeMap<String, Kind>,
}

impl<'c> Context<'c> {
    pub(super) fn new(
        kinds: &'c [&'c dyn SinkKind],
        text: &'c str,
        directory: &'c Path,
        env: Env<'c>,
    ) -> Self {
        Self {
            kinds,
            env,
            directory,
            secrets: true,
            unread: RefCell::default(),
            lines: Lines::new(text),
            errors: RefCell::default(),
            warnings: RefCell::default(),
            places: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// Records the position of a key.
    pub(super) fn found(&self, path: &str, span: Range<usize>) -> FilePosition {
        let place = self.place(span);
        self.places.borrow_mut().insert(path, place);
        place
    }

    pub(super) fn place(&self, span: Range<usize>) -> FilePosition {
        self.lines.place(span.start)
    }

    pub(super) fn asked(&self, pattern: String, kind: Kind) {
        self.asked.borrow_mut().entry(pattern).or_insert(kind);
    }

    /// Records the variables that the value of a key uses.
    pub(super) fn filled(&self, path: &str, variables: Vec<String>) {
        if !variables.is_empty() {
            self.places.borrow_mut().fill(path, variables);
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "messages are made in place")]
    pub(super) fn error(&self, place: FilePosition, key: &str, message: impl ToString) {
        let finding = Finding::new(place, key, message.to_string());
        self.errors.borrow_mut().push(finding);
    }

    /// Reports a mistake at the position of `key`, or of the table in which it is missing.
    pub(super) fn error_at(&self, key: &str, message: impl ToString) {
        let place = self.places.borrow().nearest(key);
        self.error(place, key, message);
    }

    pub(super) fn has_error(&self, key: &str) -> bool {
        self.errors.borrow().iter().any(|finding| finding.key == key)
    }

    /// Whether a mistake was reported in the table `path`.
    pub(super) fn has_error_under(&self, path: &str) -> bool {
        self.errors.borrow().iter().any(|finding| is_under(&finding.key, path))
    }

    /// Records that the value of a key was not read because secrets are not read.
    pub(super) fn unread(&self, key: &str) {
        self.unread.borrow_mut().push(key.to_owned());
    }

    pub(super) fn has_unread_under(&self, path: &str) -> bool {
        self.unread.borrow().iter().any(|key| is_under(key, path))
    }

    #[expect(clippy::needless_pass_by_value, reason = "messages are made in place")]
    pub(super) fn warn_at(&self, key: &str, message: impl ToString) {
        let place = self.places.borrow().nearest(key);
        let finding = Finding::new(place, key, message.to_string());
        self.warnings.borrow_mut().push(finding);
    }

    /// Replaces the variables of a string.
    pub(super) fn fill(&self, place: FilePosition, path: &str, text: &str) -> Option<String> {
        match interpolate(text, self.env) {
            Ok(filled) => {
                self.filled(path, variables(text));
                Some(filled)
            }
            Err(InterpolateError::Unset(_)) if !self.secrets && may_hold_a_secret(path) => {
                self.unread(path);
                Some(text.to_owned())
            }
            Err(error) => {
                self.error(place, path, error);
                None
            }
        }
    }

    pub(super) fn into_outcome(self) -> ReadOutcome {
        ReadOutcome {
            errors: self.errors.into_inner(),
            warnings: self.warnings.into_inner(),
            places: self.places.into_inner(),
            asked: self.asked.into_inner(),
        }
    }
}

/// Whether `key` is `path`, or is in the table `path`.
fn is_under(key: &str, path: &str) -> bool {
    key == path || key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
}

/// A line and a column of the file, both from 1. Columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The positions of all keys of a file, by key path, and the variables that their values use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Places {
    keys: BTreeMap<String, FilePosition>,
    variables: BTreeMap<String, Vec<String>>,
}

impl Places {
    /// Records the position of a key.
    pub(super) fn insert(&mut self, path: &str, place: FilePosition) {
        self.keys.insert(path.to_owned(), place);
    }

    /// Records the variables of a key's value.
    pub(super) fn fill(&mut self, path: &str, variables: Vec<String>) {
        self.variables.insert(path.to_owned(), variables);
    }

    /// The position of `path` in the file.
    pub fn get(&self, path: &str) -> Option<FilePosition> {
        self.keys.get(path).copied()
    }

    /// The environment variables that the value of `path` uses.
    pub fn variables(&self, path: &str) -> &[String] {
        self.variables.get(path).map_or(&[], Vec::as_slice)
    }

    /// The paths inside the table `path`.
    #[cfg(test)]
    pub(super) fn under(&self, path: &str) -> impl Iterator<Item = &str> {
        let prefix = format!("{path}.");
        self.keys.keys().map(String::as_str).filter(move |key| key.starts_with(&prefix))
    }

    /// The position of `path`, or of the nearest table around it that is in the file.
    pub fn nearest(&self, path: &str) -> FilePosition {
        let mut path = path;
        loop {
            if let Some(place) = self.keys.get(path) {
                return *place;
            }
            match path.rsplit_once('.') {
                Some((outer, _)) => path = outer,
                None => return FilePosition { line: 1, column: 1 },
            }
        }
    }
}

/// Turns byte offsets into positions.
pub(super) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let after_breaks =
            text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Self { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    /// The text of a line, counted from 1, without its line feed.
    pub(super) fn line(&self, number: usize) -> Option<&'t str> {
        let start = *self.starts.get(number.checked_sub(1)?)?;
        self.text.get(start..)?.lines().next()
    }

    pub(super) fn place(&self, offset: usize) -> FilePosition {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|i| self.starts.get(i)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        FilePosition { line: line.max(1), column }
    }
}

/// The kind of value of a key, for the schema. It has no limits of durations and sizes, which JSON Schema cannot
/// express.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A table.
    Table,
    /// A table, or `false`.
    TableOrFalse,
    /// Any string.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer {
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// A duration with its unit.
    Duration,
    /// A duration with its unit, or `0` for never.
    DurationOrNever,
    /// A size with its unit.
    Size,
    /// One of a few words.
    Word(Vec<String>),
    /// An array of words, each one of a few.
    Words(Vec<String>),
    /// An array of any strings.
    Texts,
    /// A string, a number or a boolean; or a table of these, which a dotted name without quotes is.
    Scalar,
}

/// The word of `words` that is most similar to `text`, if it is similar enough to be a misspelling.
pub(super) fn nearest<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // `password` may be a misspelling of `password_file`: a word without its last part is compared too, with a penalty.
    let stem =
        |word: &'w str| word.rsplit_once('_').map(|(stem, _)| stem).filter(|stem| stem.len() > 4);
    let distance = |word: &'w str| {
        let short = stem(word).map(|stem| strsim::damerau_levenshtein(text, stem) + 1);
        let long = strsim::damerau_levenshtein(text, word);
        (short.map_or(long, |short| short.min(long)), word)
    };
    let (distance, word) = words.map(distance).min()?;
    (distance <= 1 + word.len().max(text.len()) / 4).then_some(word)
}

/// A key in TOML, quoted if necessary.
pub fn quoted(key: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if !key.is_empty() && key.bytes().all(bare) { key.to_owned() } else { format!("{key:?}") }
}

/// Keys whose values are not secrets. The values of other keys, which include misspelt ones, are not shown.
const OPEN: &[&str] = &[
    "shutdown_grace",
    "listen",
    "ready_lag_max",
    "remember_changes",
    "sweep_interval",
    "sweep_keep",
    "sweep_max",
    "consumer_dead_after",
    "log_keep",
    "log_evict",
    "log_retain_interval",
    "inbox_enabled",
    "inbox_ids_keep",
    "inbox_processed_keep",
    "inbox_dead_keep",
    "inbox_drain_interval",
    "inbox_drain_batch",
    "inbox_dead_alerts_max",
    "keep",
    "keep_from",
    "action",
    "archive",
    "archive_keep",
    "rate",
    "processed_events",
    "by",
    "ahead",
    "mode",
    "slot",
    "publication",
    "failover",
    "wal_retain_max",
    "on_slot_lost",
    "table",
    "tables",
    "inline_threshold_rows",
    "chunk_bytes",
    "layout",
    "message_prefix",
    "on_update",
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "topic",
    "partition_key",
    "time",
    "trace",
    "key",
    "partition",
    "timestamp",
    "standard_headers",
    "pattern",
    "with",
    "null",
    "empty",
    "expand_json",
    "size_max",
    "envelope",
    "kind",
    "brokers",
    "delivery",
    "producers",
    "shards",
    "create_topics",
    "partitions",
    "replication_factor",
    "allow",
    "in_flight_bytes",
    "in_flight_events",
    "confirm_interval",
    "cursor_interval",
    "ordering",
    "on_poison",
    "attempts_max",
    "rows_max",
    "dead_topic",
    "park_after",
    "mark_streamed",
    "step",
    "steps_max",
    "interval",
    "batch",
    "mark",
    "inbox",
    "pending_max",
    "topics",
    "group",
    "start",
    "id_header",
    "type_header",
    "aggregate_header",
    "sequence_header",
    "priority_header",
    "positions",
];

/// Length of a shown line at most. Unit: characters.
const CHARS_MAX: usize = 100;

/// The line of a finding, with a mark at its position. A line is shown up to its `=` or not at all unless the value
/// cannot be a secret: its key is in a list of such keys, and the value has only one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excerpt {
    place: FilePosition,
    text: String,
}

impl Excerpt {
    pub(super) fn of(line: &str, place: FilePosition) -> Option<Self> {
        let line = line.trim_end();
        let key = line.trim_start();
        let text = if key.is_empty() || key.starts_with('#') {
            return None;
        } else if key.starts_with('[') {
            line.split_once(['=', '#']).map_or(line, |(table, _)| table.trim_end()).to_owned()
        } else {
            let (before, after) = line.split_once('=')?;
            if is_open(before) && !holds_table(line) {
                line.to_owned()
            } else if after.is_empty() || after.starts_with('=') {
                // The end of a value in base64, not a key.
                return None;
            } else {
                format!("{before}= …")
            }
        };
        let shown: String = text.chars().take(CHARS_MAX).collect();
        Some(Self { place, text: shown })
    }
}

/// Whether the last part of the key is in the list of keys whose values are not secrets.
fn is_open(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    OPEN.contains(&last.trim().trim_matches(['"', '\'']))
}

/// Whether the value is an inline table, which has keys of its own, or has several lines.
fn holds_table(line: &str) -> bool {
    let value = line.split_once('=').map_or("", |(_, value)| value);
    value.trim_start().starts_with('{') || value.contains("\"\"\"") || value.contains("'''")
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilePosition { line, column } = self.place;
        let width = line.to_string().len();
        write!(f, "  {line} | {}", self.text)?;
        if column <= self.text.chars().count() {
            // Tabs are kept, so that the mark is below its position.
            let before = self.text.chars().take(column - 1);
            let indent: String = before.map(|c| if c == '\t' { c } else { ' ' }).collect();
            write!(f, "\n  {:width$} | {indent}^", "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, column: usize) -> Option<String> {
        Excerpt::of(line, FilePosition { line: 7, column }).map(|excerpt| excerpt.to_string())
    }

    #[test]
    fn the_mark_is_below_its_position() {
        assert_eq!(shown("  layout = \"x\"", 3).unwrap(), "  7 |   layout = \"x\"\n    |   ^");
        assert_eq!(shown("\tlayout = \"x\"", 2).unwrap(), "  7 | \tlayout = \"x\"\n    | \t^");
        assert_eq!(shown("[pipelines.a] # note", 2).unwrap(), "  7 | [pipelines.a]\n    |  ^");
    }

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        for line in [
            "url = \"postgresql://u:hush@h/d\"",
            "pasword = \"hush\"",
            "\"sasl.password\" = hush",
            "source = { slot = \"a\", url = \"host=h password=hush\" }",
            "outbox = { table = \"hush\" }",
            "a.headers.token = 'hush'",
            "hush\"\"\"",
            "  -----hush-----",
            "[pipelines.a] url = \"hush\"",
            "topic = \"\"\"hush",
            "# hush",
            "hush==",
        ] {
            let shown = shown(line, 1).unwrap_or_default();
            assert!(!shown.contains("hush"), "{shown}");
        }
        assert_eq!(shown("pasword = \"hush\"", 1).unwrap(), "  7 | pasword = …\n    | ^");
    }
}
