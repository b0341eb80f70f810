//! Where in a file something stands.

use std::collections::BTreeMap;
use std::fmt;

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The places of all keys that stand in a file, by key path, and the variables their values were filled in from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Places {
    keys: BTreeMap<String, Place>,
    variables: BTreeMap<String, Vec<String>>,
}

impl Places {
    /// Remembers a key.
    pub(super) fn insert(&mut self, path: &str, place: Place) {
        self.keys.insert(path.to_owned(), place);
    }

    /// Remembers the variables of a key's value.
    pub(super) fn fill(&mut self, path: &str, variables: Vec<String>) {
        self.variables.insert(path.to_owned(), variables);
    }

    /// Where `path` stands in the file.
    pub fn get(&self, path: &str) -> Option<Place> {
        self.keys.get(path).copied()
    }

    /// The environment variables that the value of `path` was filled in from.
    pub fn variables(&self, path: &str) -> &[String] {
        self.variables.get(path).map_or(&[], Vec::as_slice)
    }

    /// The paths inside the table `path`.
    #[cfg(test)]
    pub(super) fn under(&self, path: &str) -> impl Iterator<Item = &str> {
        let prefix = format!("{path}.");
        self.keys.keys().map(String::as_str).filter(move |key| key.starts_with(&prefix))
    }

    /// Where `path` stands, or the nearest table around it that stands in the file.
    pub fn nearest(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            if let Some(place) = self.keys.get(path) {
                return *place;
            }
            match path.rsplit_once('.') {
                Some((outer, _)) => path = outer,
                None => return Place { line: 1, column: 1 },
            }
        }
    }
}

/// Turns byte offsets into places.
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

    pub(super) fn place(&self, offset: usize) -> Place {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|i| self.starts.get(i)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        Place { line: line.max(1), column }
    }
}
