//! The results of `check`: one finding for each check, with what fixes it.
//!
//! The source and the sink make findings, and the command line prints them. A finding never contains a payload or a
//! secret.

use serde::Serialize;
use std::borrow::Cow;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Checked, no problem.
    Ok,
    /// Information; nothing has to be done.
    Info,
    /// Works now, but is a problem later.
    Warning,
    /// The pipeline can't run, or would lose, omit or delay events.
    Error,
}

impl Severity {
    /// The name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Where the line of a fix belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FixKind {
    /// Statements for the source database, to be executed by an administrator with psql.
    Sql,
    /// `key = value` of the configuration file, below the header of [`Fix::table`] if that is known.
    Config,
    /// A shell command.
    Shell,
}

impl FixKind {
    /// The name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::Config => "config",
            Self::Shell => "shell",
        }
    }
}

/// A line that fixes a problem, or one step of several.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fix {
    /// Where the line belongs.
    pub kind: FixKind,
    /// The line, ready to be executed.
    pub line: String,
    /// Whether the line takes effect only after a restart of PostgreSQL.
    pub restart: bool,
    /// For a line of the configuration: the table to which it belongs, as in the table's header; otherwise "".
    pub table: String,
    /// For a line of the configuration, how to edit the file: `replace` the line that sets the key, `add` the line, a
    /// `new_table` at the end of the file, or `top`, above the first header; otherwise "".
    pub edit: &'static str,
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// A stable name, `wal_level`. The operations documents have all names.
    pub id: &'static str,
    /// The severity.
    pub severity: Severity,
    /// What was found, with the names of the objects: a fragment without a full stop.
    pub what: String,
    /// Why it matters; empty if there is no problem.
    pub why: String,
    /// What fixes it, in order. Empty if nothing has to be done, or if no line can do it.
    pub fix: Vec<Fix>,
}

/// A word of a command line, for a POSIX shell: as it is if no character has a meaning there, else in single quotes.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', "'\\''")))
}

impl Finding {
    fn new(severity: Severity, id: &'static str, what: impl Into<String>) -> Self {
        Self { id, severity, what: what.into(), why: String::new(), fix: Vec::new() }
    }

    /// A check without a problem.
    pub fn ok(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, id, what)
    }

    /// Information.
    pub fn info(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Info, id, what)
    }

    /// A problem later.
    pub fn warning(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, id, what)
    }

    /// A problem now.
    pub fn error(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, id, what)
    }

    /// Sets why it matters.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Adds statements for an administrator.
    #[must_use]
    pub fn sql(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Sql, line.into(), false)
    }

    /// Adds statements after which PostgreSQL must be restarted.
    #[must_use]
    pub fn sql_and_restart(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Sql, line.into(), true)
    }

    /// Adds a key of the configuration file and its new value.
    #[must_use]
    pub fn config(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Config, line.into(), false)
    }

    /// Adds a shell command.
    #[must_use]
    pub fn shell(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Shell, line.into(), false)
    }

    fn with(mut self, kind: FixKind, line: String, restart: bool) -> Self {
        self.fix.push(Fix { kind, line, restart, table: String::new(), edit: "" });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shell_is_quoted_if_it_has_to_be() {
        for (text, word) in [
            ("billing", "billing"),
            ("user=postrider", "user=postrider"),
            ("", "''"),
            ("two words", "'two words'"),
            ("$(id)", "'$(id)'"),
            ("it's `x`; \"y\"", "'it'\\''s `x`; \"y\"'"),
            ("grün\n", "'grün\n'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
