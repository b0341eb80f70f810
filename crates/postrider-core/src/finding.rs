//! What `check` has to say: one finding for each thing it looked at, with the lines that mend it.
//!
//! Plain words. The adapters find, the command line prints; neither knows the other. A finding never holds a payload
//! or a secret.

use serde::Serialize;

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Looked at, and well.
    Ok,
    /// Worth knowing; nothing has to be done.
    Info,
    /// Works now, and bites later.
    Warning,
    /// The pipeline can't run, or would lose, leave out or hold up events.
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

/// Where a mending line belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FixKind {
    /// Statements for the source database, as an administrator: psql takes them as they are.
    Sql,
    /// `key = value` of the configuration file: below the header of [`Fix::table`], where that is known.
    Config,
    /// A command.
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

/// One line that mends, or a part of what mends; done in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fix {
    /// Where it belongs.
    pub kind: FixKind,
    /// The line itself, ready to be executed.
    pub line: String,
    /// Whether PostgreSQL must be restarted before it has an effect.
    pub restart: bool,
    /// Of a line of the configuration: the table below whose header it belongs, as the header names it; "" otherwise.
    pub table: String,
    /// What is done to the file there: `replace` the line that sets the key, `add` the line, `new_table` at the end of
    /// the file, or `top`, above the first header. "" otherwise.
    pub edit: &'static str,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// A stable name: `wal_level`. Every one stands in `docs/operations.md`.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found, with the names of the objects: a fragment without full stop.
    pub what: String,
    /// Why it matters; empty where it is well.
    pub why: String,
    /// What mends it, in order. Empty where nothing has to be done or no line can do it.
    #[serde(rename = "mend")]
    pub fix: Vec<Fix>,
}

impl Finding {
    fn new(severity: Severity, id: &'static str, what: impl Into<String>) -> Self {
        Self { id, severity, what: what.into(), why: String::new(), fix: Vec::new() }
    }

    /// Looked at, and well.
    pub fn ok(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, id, what)
    }

    /// Worth knowing.
    pub fn info(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Info, id, what)
    }

    /// Bites later.
    pub fn warning(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, id, what)
    }

    /// Bites now.
    pub fn error(id: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, id, what)
    }

    /// Why it matters.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Statements for an administrator.
    #[must_use]
    pub fn sql(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Sql, line.into(), false)
    }

    /// Statements after which PostgreSQL must be restarted.
    #[must_use]
    pub fn sql_and_restart(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Sql, line.into(), true)
    }

    /// A key of the configuration file and its new value.
    #[must_use]
    pub fn config(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Config, line.into(), false)
    }

    /// A command.
    #[must_use]
    pub fn shell(self, line: impl Into<String>) -> Self {
        self.with(FixKind::Shell, line.into(), false)
    }

    fn with(mut self, kind: FixKind, line: String, restart: bool) -> Self {
        self.fix.push(Fix { kind, line, restart, table: String::new(), edit: "" });
        self
    }
}
