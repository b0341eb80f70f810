//! What all sections of one reading share: the environment, the places, and what was found so far.

use super::env::Env;
use super::error::Finding;
use super::kind::Kind;
use super::place::{Lines, Place, Places};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// One reading of one file. Findings are collected; nothing stops at the first.
pub(super) struct Context<'c> {
    pub(super) env: Env<'c>,
    /// Secret files are named relative to this.
    pub(super) directory: &'c Path,
    /// Secrets are read; without it secret files are not opened, and variables that are not set stay as written.
    pub(super) secrets: bool,
    /// Keys whose values were not read for that.
    unread: RefCell<Vec<String>>,
    lines: Lines<'c>,
    errors: RefCell<Vec<Finding>>,
    warnings: RefCell<Vec<Finding>>,
    places: RefCell<Places>,
    /// Every key the code asked for, with `*` for names the user chooses, and what it takes: the schema, and what the
    /// reference file is held against.
    asked: RefCell<BTreeMap<String, Kind>>,
}

/// What a reading found.
pub(super) struct Found {
    pub(super) errors: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
    pub(super) places: Places,
    pub(super) asked: BTreeMap<String, Kind>,
}

impl<'c> Context<'c> {
    pub(super) fn new(text: &'c str, directory: &'c Path, env: Env<'c>) -> Self {
        Self {
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

    /// Remembers where a key stands.
    pub(super) fn found(&self, path: &str, span: Range<usize>) -> Place {
        let place = self.place(span);
        self.places.borrow_mut().insert(path, place);
        place
    }

    pub(super) fn place(&self, span: Range<usize>) -> Place {
        self.lines.place(span.start)
    }

    pub(super) fn asked(&self, pattern: String, kind: Kind) {
        self.asked.borrow_mut().insert(pattern, kind);
    }

    /// Remembers which variables the value of a key was filled in from.
    pub(super) fn filled(&self, path: &str, variables: Vec<String>) {
        if !variables.is_empty() {
            self.places.borrow_mut().fill(path, variables);
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "messages are made in place")]
    pub(super) fn error(&self, place: Place, key: &str, message: impl ToString) {
        let finding = Finding::new(place, key, message.to_string());
        self.errors.borrow_mut().push(finding);
    }

    /// An error at the place of `key`, or of the table it is missing from.
    pub(super) fn error_at(&self, key: &str, message: impl ToString) {
        let place = self.places.borrow().nearest(key);
        self.error(place, key, message);
    }

    pub(super) fn has_error(&self, key: &str) -> bool {
        self.errors.borrow().iter().any(|finding| finding.key == key)
    }

    /// Whether anything is wrong in the table `path`.
    pub(super) fn has_error_under(&self, path: &str) -> bool {
        self.errors.borrow().iter().any(|finding| is_under(&finding.key, path))
    }

    /// Remembers that the value of a key was not read, since secrets are not.
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

    pub(super) fn into_found(self) -> Found {
        Found {
            errors: self.errors.into_inner(),
            warnings: self.warnings.into_inner(),
            places: self.places.into_inner(),
            asked: self.asked.into_inner(),
        }
    }
}

/// Whether a key is the one of `path`, or in its table.
fn is_under(key: &str, path: &str) -> bool {
    key == path || key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
}
