//! One table of the file, asked for its keys one by one.
//!
//! Every method gives the value or its default and remembers what is wrong; [`Section::finish`] then reports the keys
//! nobody asked for. So the keys are named once, where they are read.

mod bounded;

use super::context::Context;
use super::interpolate::{InterpolateError, interpolate, variables};
use super::kind::Kind;
use super::names::{nearest, quoted};
use super::place::Place;
use std::cell::RefCell;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table, or the absence of one, which has every default.
pub(super) struct Section<'a> {
    pub(super) context: &'a Context<'a>,
    /// The key path, `pipelines.orders.flow`; empty for the file itself.
    pub(super) path: String,
    /// The same with `*` for names the user chose.
    pattern: String,
    table: Option<&'a DeTable<'a>>,
    /// Something else stands where the table should: what it lacks is then not told as well.
    broken: bool,
    known: RefCell<Vec<&'static str>>,
}

/// A value of a table whose keys the user chooses.
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) path: String,
    pub(super) place: Place,
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
        Self { context, path, pattern, table, broken: false, known: RefCell::default() }
    }

    /// The key path of `key`.
    pub(super) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Whether the table stands in the file.
    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the table can be told what it lacks: no, where something else stands in its place.
    pub(super) fn is_whole(&self) -> bool {
        !self.broken
    }

    /// Whether the key's value was already found to be wrong.
    pub(super) fn has_failed(&self, key: &str) -> bool {
        self.context.has_error(&self.path_of(key))
    }

    /// Whether the key stands in the file.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    fn get(&self, key: &'static str, kind: Kind) -> Option<(Place, &'a DeValue<'a>)> {
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

    /// The table `key`, or `false` in its place, which is as if it were absent.
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

    /// A string with its variables filled in; `None` where absent or wrong.
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

    /// A string that must be there and not be empty.
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

    /// A string of which the empty one means none.
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

    /// One of a few words; `later` are words of versions to come.
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
            let message =
                format!("\"{word}\" is not yet available in this version; there is {all}");
            self.error(key, message);
        } else {
            let near =
                nearest(&text, words.iter().map(|(word, _)| *word).chain(later.iter().copied()));
            let near = near.map_or_else(String::new, |word| format!("; did you mean \"{word}\"?"));
            self.error(key, format_args!("expected one of {all}{near}"));
        }
        default
    }

    /// Some words of a few, in the file's order; `None` where absent.
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

    /// All entries of a table whose keys the user chooses, each of this kind, in the order of the file.
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

    /// An entry as a table of its own.
    pub(super) fn inner(&self, entry: &Entry<'a>) -> Option<Section<'a>> {
        let table = entry.value.get_ref().as_table()?;
        Some(Section::new(self.context, entry.path.clone(), join(&self.pattern, "*"), Some(table)))
    }

    /// Reports the keys nobody asked for.
    pub(super) fn finish(self) {
        let Some(table) = self.table else { return };
        let known = self.known.borrow();
        for name in table.keys().filter(|name| !known.contains(&name.get_ref().as_ref())) {
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

    fn wrong(&self, place: Place, key: &str, expected: &str, found: &DeValue<'_>) {
        wrong_kind(self.context, place, &self.path_of(key), expected, found);
    }
}

impl Context<'_> {
    /// Fills in the variables of a string.
    pub(super) fn fill(&self, place: Place, path: &str, text: &str) -> Option<String> {
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
}

/// Whether a secret, or where it is, may stand in the value of this key.
fn may_hold_a_secret(path: &str) -> bool {
    path.ends_with(".source.url")
        || path.ends_with(".source.password_file")
        || path.contains(".sink.properties.")
}

/// Reports a value of the wrong kind; the value itself is not shown.
pub(super) fn wrong_kind(
    context: &Context<'_>,
    place: Place,
    path: &str,
    expected: &str,
    found: &DeValue<'_>,
) {
    let found = found.type_str();
    context.error(place, path, format_args!("expected {expected}, found a value of type {found}"));
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
