//! The errors of the commands, their hints, and the exit statuses of the process.

use super::inbox::error::InboxCommandError;
use super::tail::error::TailError;
use crate::admin::AdminError;
use crate::config::ConfigError;
#[cfg(feature = "demo")]
use crate::demo::DemoError;
use crate::error::{Chain, Halt};
use crate::init::InitError;
use crate::postgres::names::admin_url;
use crate::postgres::setup::{PartialSetup, SetupError};
use crate::postgres::store::bookmark::BookmarkError;
use crate::postgres::toolkit::ToolkitError;
use crate::postgres::{ConninfoError, SourceError, error_policy};
use crate::replay::ReplayError;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitCode, Termination};

/// An error that ends a command without its result.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the configuration has no pipeline \"{name}\"; it has {}", listed(.known))]
    Pipeline { name: String, known: Vec<String> },
    #[error("{}", no_intake(.name.as_deref(), .known))]
    Intake { name: Option<String>, known: Vec<String> },
    #[error("\"{filter}\" is not a log filter")]
    Log {
        filter: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("could not start the runtime")]
    Runtime(#[source] io::Error),
    #[error("admin.listen is \"\": a process without an admin endpoint cannot be queried")]
    AdminOff,
    #[error("no Postrider answers at {address}")]
    Ask {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the Postrider at {address} does not run the configuration {file}: {}", .differences.join("; "))]
    OtherConfiguration { address: SocketAddr, file: String, differences: Vec<String> },
    #[error("http://{0}/status is answered by something other than Postrider")]
    Stranger(SocketAddr),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("another Postrider listens on {address} (admin.listen): {}", .pipelines.join(", "))]
    Occupied { address: SocketAddr, pipelines: Vec<String> },
    #[error("could not start a pipeline's thread")]
    Thread(#[source] io::Error),
    #[error("--url is invalid")]
    Url(#[from] ConninfoError),
    #[error("--create-table cannot be used: pipeline \"{pipeline}\" {why}")]
    CreateTable { pipeline: String, why: &'static str },
    #[error(
        "pipeline \"{pipeline}\" is set up in the database, but not at the broker: see \"not done\" above"
    )]
    SinkNotPrepared { pipeline: String },
    #[error(
        "--undo asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    NotAgreed,
    #[error(
        "--uninstall asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    UninstallNotAgreed,
    #[error(
        "parked {command} asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    NeedsYes { command: &'static str },
    #[error(
        "the new payload is not JSON, and column {column} of table {table} is {type_name}: nothing was changed"
    )]
    NotJson { column: String, table: String, type_name: String },
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Toolkit(#[from] ToolkitError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Tail(#[from] TailError),
    #[error("the configuration has several pipelines: {}", .known.join(", "))]
    WhichPipeline { known: Vec<String> },
    #[error("the configuration {file} has no pipeline")]
    NoPipeline { file: String, hint: &'static str },
    #[error("the configuration has no pipeline, and no table [inboxes.NAME] that stores in inbox \"{inbox}\"; \
             its tables store in {}", listed(.known))]
    NoInboxDatabase { inbox: String, known: Vec<String> },
    #[error("the tables [inboxes.NAME] of the configuration have several databases: {}", .tables.join(", "))]
    WhichInboxDatabase { tables: Vec<String> },
    #[error("inbox {command} has the database of [inboxes.{intake}]: {flag} is not for it")]
    IntakeHasDatabase { command: &'static str, intake: String, flag: &'static str },
    #[error("no events are selected: give ids, a filter such as --error CODE, or --all")]
    NothingSelected,
    #[error("several events have the id \"{id}\": {}", .ids.join(", "))]
    Ambiguous { id: String, ids: Vec<String> },
    #[error("not parked: {}", .ids.join(", "))]
    NotParked { ids: Vec<String> },
    #[error("the database of pipeline \"{pipeline}\" has no parked table of this version")]
    NoParkedTable { pipeline: String },
    #[error("could not read the payload from \"{file}\"")]
    PayloadFile {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("could not read the answer")]
    Input(#[source] io::Error),
    #[cfg(feature = "demo")]
    #[error(transparent)]
    Demo(#[from] DemoError),
    #[error("could not read \"{}\"", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("could not write \"{}\"", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Init(#[from] InitError),
    #[error("could not repair pipeline \"{pipeline}\"")]
    Repair {
        pipeline: String,
        #[source]
        halt: Box<Halt>,
    },
    #[error("pipeline \"{pipeline}\" cannot adopt its settings")]
    Adopt {
        pipeline: String,
        #[source]
        halt: Box<Halt>,
    },
    #[error(transparent)]
    Bookmark(#[from] BookmarkError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("replay \"{name}\" failed before it was complete")]
    ReplayEnded {
        name: String,
        #[source]
        source: Box<ReplayError>,
    },
    #[error("{flag} \"{text}\" is not a time")]
    NotATime { flag: &'static str, text: String },
    #[error("the database of pipeline \"{pipeline}\" has no tables of this version")]
    OldSchema { pipeline: String },
    #[error(
        "the tables in the database of pipeline \"{pipeline}\" are of a later version of postrider"
    )]
    NewSchema { pipeline: String },
    #[error("there is no consumer group \"{name}\"; there are {}", listed(.known))]
    NoGroup { name: String, known: Vec<String> },
    #[error("the database has no consumer groups of this version")]
    NoToolkit(#[source] SourceError),
    #[error("the role of this login has no right to do this with consumer groups")]
    NoGroupRight(#[source] SourceError),
    #[error(
        "groups {command} asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    GroupNeedsYes { command: &'static str },
    #[error(transparent)]
    Inbox(#[from] InboxCommandError),
    #[error("no pipeline of the configuration {file} has retention")]
    NoRetention { file: String },
    #[error("the outbox is not partitioned: {why}")]
    NotConverted { why: String, hint: String },
    #[error(
        "partition asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    PartitionNeedsYes,
    #[error("could not write to standard output")]
    Output(#[source] io::Error),
}

/// What fixes [`CliError::NotATime`].
const A_TIME: &str = "give a time such as 2026-03-01T04:00:00Z, or how long ago, such as 90m or 2d";

/// What fixes [`CliError::NoRetention`].
const NO_RETENTION: &str = "set how long rows are kept: [pipelines.NAME.retention] keep = \"7d\"";

/// What fixes [`CliError::NewSchema`].
const NEW_SCHEMA: &str =
    "setup of that version was run here: use that version for this command too";

fn creates_tables(pipeline: &str) -> String {
    let url = admin_url("DATABASE");
    format!(
        "create or upgrade them: postrider setup -p {pipeline}; as an administrator: --url {url}"
    )
}

impl CliError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Init(error) if error.is_of_database() => Exit::Problems,
            Self::Replay(error) if error.is_usage() => Exit::Usage,
            Self::Inbox(error) if error.is_usage() => Exit::Usage,
            Self::NotATime { .. }
            | Self::Bookmark(BookmarkError::Name { .. })
            | Self::Config(_)
            | Self::Pipeline { .. }
            | Self::Intake { .. }
            | Self::Log { .. }
            | Self::AdminOff
            | Self::Admin(_)
            | Self::Occupied { .. }
            | Self::Url(_)
            | Self::NotAgreed
            | Self::UninstallNotAgreed
            | Self::NeedsYes { .. }
            | Self::GroupNeedsYes { .. }
            | Self::NoRetention { .. }
            | Self::PartitionNeedsYes
            | Self::NotJson { .. }
            | Self::WhichPipeline { .. }
            | Self::NoPipeline { .. }
            | Self::NoInboxDatabase { .. }
            | Self::WhichInboxDatabase { .. }
            | Self::IntakeHasDatabase { .. }
            | Self::NothingSelected
            | Self::Ambiguous { .. }
            | Self::PayloadFile { .. }
            | Self::CreateTable { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Init(_) => Exit::Usage,
            Self::Setup(SetupError::Halt(_))
            | Self::Repair { .. }
            | Self::Adopt { .. }
            | Self::Toolkit(ToolkitError::Untrusted(_)) => Exit::Halted,
            Self::SinkNotPrepared { .. }
            | Self::Runtime(_)
            | Self::Ask { .. }
            | Self::Stranger(_)
            | Self::OtherConfiguration { .. }
            | Self::Thread(_)
            | Self::Setup(_)
            | Self::Toolkit(_)
            | Self::Source(_)
            | Self::Tail(_)
            | Self::NotParked { .. }
            | Self::Bookmark(_)
            | Self::Replay(_)
            | Self::ReplayEnded { .. }
            | Self::OldSchema { .. }
            | Self::NewSchema { .. }
            | Self::NotConverted { .. }
            | Self::NoParkedTable { .. }
            | Self::NoGroup { .. }
            | Self::NoToolkit(_)
            | Self::NoGroupRight(_)
            | Self::Inbox(_)
            | Self::Input(_)
            | Self::Output(_) => Exit::Problems,
            #[cfg(feature = "demo")]
            Self::Demo(_) => Exit::Problems,
        }
    }

    /// The text that is printed: the chain of causes and the remedy; each mistake of a configuration on its own line.
    pub(super) fn report(&self) -> String {
        if let Self::Config(ConfigError::Invalid(findings)) = self {
            let count = findings.list.len();
            let s = if count == 1 { "" } else { "s" };
            return format!("{findings}\npostrider: {count} mistake{s} in {}", findings.file);
        }
        let mut text = format!("postrider: {}", Chain(self));
        for (name, value) in self.notes() {
            for (index, line) in value.lines().enumerate() {
                let name = if index == 0 { format!("{name}:") } else { " ".repeat(name.len() + 1) };
                // Writing to a String does not fail.
                write!(text, "\n  {name} {line}").unwrap_or_default();
            }
        }
        text
    }

    /// The chain of causes alone.
    pub(super) fn one_line(&self) -> String {
        Chain(self).to_string()
    }

    /// Detail, meaning and hint, where there are any.
    fn notes(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Setup(SetupError::Halt(halt))
            | Self::Repair { halt, .. }
            | Self::Adopt { halt, .. } => of_halt(halt),
            Self::Setup(SetupError::Refused(partial)) => of_refused(partial),
            Self::Setup(SetupError::Backfill { hint: text, .. }) => hint(text),
            Self::Setup(SetupError::Step { error, .. } | SetupError::Source(error))
            | Self::Source(error)
            | Self::Bookmark(BookmarkError::Source(error))
            | Self::Init(InitError::Source(error)) => of_server(error),
            Self::Admin(error) => hint(error.hint()),
            Self::Occupied { .. } => hint(OCCUPIED),
            Self::Log { .. } => hint(A_FILTER),
            Self::Tail(error) => hint(error.hint()),
            Self::AdminOff => hint("give admin.listen an address, and restart postrider run"),
            Self::Ask { .. } => hint(NO_ANSWER),
            Self::Toolkit(error) => of_toolkit(error),
            Self::NotAgreed | Self::UninstallNotAgreed => hint(CONFIRM),
            Self::SinkNotPrepared { .. } => hint(NOT_PREPARED),
            Self::NeedsYes { .. } => hint(CHECK_EVENTS),
            Self::GroupNeedsYes { .. } => hint(CONFIRM_GROUP),
            Self::NoGroup { .. } => hint("create it: postrider groups create NAME --event-log LOG"),
            Self::NoToolkit(_) => hint(NO_TOOLKIT),
            Self::NoGroupRight(_) => hint(NO_GROUP_RIGHT),
            Self::Inbox(error) => of_inbox(error),
            Self::NotJson { .. } => hint(NOT_JSON),
            Self::OtherConfiguration { .. } => hint(OTHER_CONFIGURATION),
            Self::Stranger(_) => hint("give admin.listen a port of its own"),
            Self::Thread(_) => hint("raise the limit of threads (ulimit -u, pids.max)"),
            Self::NoRetention { .. } => hint(NO_RETENTION),
            Self::PartitionNeedsYes => hint("read the steps above, and run it again with --yes"),
            Self::WhichPipeline { .. } => hint("select one with -p"),
            Self::NoPipeline { hint: text, .. } => hint(text),
            Self::NotConverted { hint: text, .. } => hint(text),
            Self::NoInboxDatabase { .. } | Self::WhichInboxDatabase { .. } => hint(INBOX_DATABASE),
            Self::IntakeHasDatabase { .. } => hint(INTAKE_DATABASE),
            Self::Ambiguous { .. } => hint("give the position of the event in place of its id"),
            Self::NotParked { .. } => hint("list the parked events: postrider parked list --all"),
            Self::Replay(error) => error.hint().map(|text| hint(&text)).unwrap_or_default(),
            Self::ReplayEnded { name, source } => {
                let fix = source.hint().map(|text| ("hint", text));
                let resume = ("resume", format!("postrider replay --resume {name}"));
                fix.into_iter().chain([resume]).collect()
            }
            Self::NotATime { .. } => hint(A_TIME),
            Self::Bookmark(error) => error.hint().map(|text| hint(&text)).unwrap_or_default(),
            Self::NewSchema { .. } => hint(NEW_SCHEMA),
            Self::NoParkedTable { pipeline } | Self::OldSchema { pipeline } => {
                hint(&creates_tables(pipeline))
            }
            #[cfg(feature = "demo")]
            Self::Demo(error) => error.hint().map(hint).unwrap_or_default(),
            Self::Init(error) => error.hint().map(|text| hint(&text)).unwrap_or_default(),
            Self::Write { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                hint("give -o another FILE, or --force to overwrite this one")
            }
            Self::Intake { name: None, .. } => hint(NO_INTAKES),
            Self::Intake { name: Some(_), .. } => hint(NO_SUCH_INTAKE),
            Self::Config(_)
            | Self::Pipeline { .. }
            | Self::Runtime(_)
            | Self::Url(_)
            | Self::CreateTable { .. }
            | Self::NothingSelected
            | Self::PayloadFile { .. }
            | Self::Input(_)
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Setup(SetupError::NoEffect { .. })
            | Self::Output(_) => Vec::new(),
        }
    }
}

const NOT_PREPARED: &str =
    "correct the reason, then run postrider setup again: nothing is published before";

const INBOX_DATABASE: &str = "name the database of the service that has the inbox with --url";

const INTAKE_DATABASE: &str =
    "leave it out: the table of the intake names the database; -c names another configuration";

const NO_INTAKES: &str = "add a table [inboxes.NAME] (docs/sql/inbox-run.md), or name another file with -c; pipelines \
                          are run by postrider run";

const NO_SUCH_INTAKE: &str =
    "see docs/sql/inbox-run.md for the tables [inboxes.NAME] of the configuration";

/// The configuration has no table of this name, or none at all.
fn no_intake(name: Option<&str>, known: &[String]) -> String {
    match name {
        Some(name) => {
            format!("the configuration has no table [inboxes.{name}]; there are {}", listed(known))
        }
        None => "the configuration has no table [inboxes.NAME]".to_owned(),
    }
}

/// The hint of [`CliError::NoPipeline`] for `postrider run`.
pub(super) const RUN_INTAKES: &str = "postrider inbox run serves its tables [inboxes.NAME]; \
    for a pipeline add a table [pipelines.NAME]";

/// The same for other commands that concern pipelines.
pub(super) const FOR_PIPELINES: &str =
    "the command is for pipelines: add a table [pipelines.NAME], or name another file with -c";

/// The same for commands that need only a database.
pub(super) const NAME_DATABASE: &str = "name the database with --url";

/// Names, or that there are none.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Replaces control characters, which a terminal would interpret.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

const OCCUPIED: &str = "if it runs the same pipelines, stop that process first, even if it has halted (systemctl \
    restart postrider stops and starts it). If it runs other pipelines, give admin.listen another port. postrider run \
    and postrider inbox run with one file need two addresses: listen = \"${POSTRIDER_LISTEN:-127.0.0.1:9464}\", and \
    the variable set for one of them";

const OTHER_CONFIGURATION: &str = "if this is another Postrider, give admin.listen a port of its own, or name the \
    configuration of the running process with -c. If the configuration was changed since the start, restart the \
    process";

const NOT_JSON: &str = "correct the file: consumers of this topic expect JSON. To \
    publish it nevertheless: --not-json";

const CHECK_EVENTS: &str = "check which events are affected (above, or with --dry-run), and run it again with \
    --yes";

const NO_ANSWER: &str = "postrider run is not running, or ended (its log says why), or admin.listen differs from the \
    running process's";

const CONFIRM: &str = "read above what is lost, and run it again with --yes";

const CONFIRM_GROUP: &str = "read above which events are affected, and run it again with --yes";

const NO_TOOLKIT: &str = "name the database of the event logs with --url; or, if this is the database, install the SQL \
    toolkit in it with the login of an administrator: postrider sql --install --url ADMIN_URL --relay ROLE";

const NO_GROUP_RIGHT: &str = "give the role its rights, with the login of an administrator: postrider sql --install \
    --url ADMIN_URL --administrator ROLE (for lag and list: --reader ROLE); or name another login with --url";

const A_FILTER: &str = "write a level such as debug, or a filter such as info,postrider=debug";

fn hint(text: &str) -> Vec<(&'static str, String)> {
    vec![("hint", text.to_owned())]
}

fn of_toolkit(problem: &ToolkitError) -> Vec<(&'static str, String)> {
    match problem {
        ToolkitError::Failed { error, .. } | ToolkitError::Source(error) => {
            problem.hint().map_or_else(|| of_server(error), |text| hint(&text))
        }
        ToolkitError::Newer { .. }
        | ToolkitError::Untrusted(_)
        | ToolkitError::Denied { .. }
        | ToolkitError::NoRole { .. } => problem.hint().map(|text| hint(&text)).unwrap_or_default(),
    }
}

fn of_halt(halt: &Halt) -> Vec<(&'static str, String)> {
    let notes = [("meaning", &halt.meaning), ("hint", &halt.hint)];
    notes.into_iter().map(|(name, text)| (name, text.clone())).collect()
}

/// The remedies of the steps that were refused, each printed once.
fn of_refused(partial: &PartialSetup) -> Vec<(&'static str, String)> {
    let mut lines: Vec<&str> = Vec::new();
    for line in partial.refused.iter().flat_map(|step| &step.lines) {
        if !lines.contains(&line.as_str()) {
            lines.push(line);
        }
    }
    if lines.len() == 1 && lines.iter().all(|line| line.contains("run setup ")) {
        return hint(&lines.concat());
    }
    lines.push("then run the same setup again");
    hint(&lines.join("\n"))
}

fn of_inbox(error: &InboxCommandError) -> Vec<(&'static str, String)> {
    let of_server = error.server().map(of_server).unwrap_or_default();
    of_server.into_iter().chain(error.hint().map(|text| ("hint", text))).collect()
}

fn of_server(error: &SourceError) -> Vec<(&'static str, String)> {
    let report = error.report();
    let hint = report.and_then(|report| report.hint.clone()).or_else(|| error_policy::hint(error));
    let notes = [("detail", report.and_then(|report| report.detail.clone())), ("hint", hint)];
    notes.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
}

/// How the process ends. The exit codes are a contract with scripts and service managers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Done; a clean stop.
    Done,
    /// Completed, but found problems.
    Problems,
    /// Wrong usage or configuration; nothing was changed.
    Usage,
    /// Stopped for an operator, because continuing could lose or reorder events.
    Halted,
    /// A bug in Postrider: one of its invariants was violated.
    Bug,
}

impl Exit {
    /// The exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Problems => 1,
            Self::Usage => 2,
            Self::Halted => 3,
            Self::Bug => 70,
        }
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}
