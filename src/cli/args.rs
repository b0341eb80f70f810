//! The arguments of the command line, and the two commands that need nothing else: `config` and `completions`.

use super::Output;
use super::adopt::AdoptArgs;
use super::bookmark::BookmarkArgs;
use super::error::{CliError, Exit};
use super::find::FindArgs;
use super::groups::GroupsArgs;
use super::inbox::InboxArgs;
use super::parked::ParkedArgs;
use super::partition::PartitionArgs;
use super::pause::{PauseArgs, ResumeArgs};
use super::repair::RepairArgs;
use super::replay::ReplayArgs;
use super::retain::RetainArgs;
use super::setup::Backfill;
use super::sql::SqlArgs;
use super::tail::TailArgs;
use crate::config::show::{Origin, Shown, is_masked, show as rows_of};
use crate::config::{Config, Env, schema as config_schema};
#[cfg(feature = "demo")]
use crate::demo::DemoSink;
use crate::outbox::Layout;
use crate::postgres::conninfo;
use clap::{ColorChoice, CommandFactory as _, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Carries events from a PostgreSQL outbox table to Kafka: in commit order, nothing lost.
#[derive(Parser, Debug)]
#[command(name = "postrider", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done; 1 completed, but found problems; 2 wrong usage or configuration; \
                        3 stopped for an operator; 70 a bug in Postrider."
)]
pub struct Args {
    /// The flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(clap::Args, Debug, Default)]
pub struct Global {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", global = true)]
    #[arg(
        help = "Configuration file [default: $POSTRIDER_CONFIG, ./postrider.toml, /etc/postrider/postrider.toml]"
    )]
    pub config: Option<PathBuf>,
    /// Only the pipeline with this name
    #[arg(short, long, value_name = "NAME", global = true)]
    pub pipeline: Option<String>,
    /// Format of the log, which goes to standard error
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub log_format: LogFormat,
    /// A level, or a filter by target.
    #[arg(
        help = "Log level: error, warn, info, debug, trace, or a filter such as info,postrider::pipeline=debug"
    )]
    #[arg(long, value_name = "LEVEL|FILTER", default_value = "info", global = true)]
    pub log: String,
    /// Log only errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// When to use colours.
    #[arg(help = "When to use colours; auto: on a terminal, unless $NO_COLOR is set")]
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    pub color: Color,
}

impl Global {
    /// Whether text for a stream has colours.
    pub fn color(&self, env: Env<'_>, is_terminal: bool) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_terminal && !no_color(env),
        }
    }
}

/// <https://no-color.org>: set and not empty.
fn no_color(env: Env<'_>) -> bool {
    env("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// The colours of clap's own pages, which are printed before `--color` is known.
pub(super) fn help_color(env: Env<'_>) -> ColorChoice {
    if no_color(env) { ColorChoice::Never } else { ColorChoice::Auto }
}

/// `--log-format`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// Lines of text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// `--color`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Color {
    /// On a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a self-contained demonstration: temporary database, broker, writer and reader
    #[cfg(feature = "demo")]
    Demo(DemoArgs),
    /// Check configuration, database and broker for problems (read-only)
    Check(CheckArgs),
    /// Write a first configuration: a template, or made from a database or a Debezium connector
    Init(InitArgs),
    /// Create publication, replication slot and Postrider's schema in the database
    Setup(SetupArgs),
    /// Run the service until SIGTERM or SIGINT
    Run(RunArgs),
    /// Show the state of every pipeline and intake of the running process
    Status(StatusArgs),
    /// Show where an event is: not reached, in flight, published, parked, skipped; by its id or its aggregate
    Find(FindArgs),
    /// Show the next events in the WAL or in the table as they would be published, without moving anything
    Tail(TailArgs),
    /// Stop reading and publishing for a pipeline, across restarts, until resume
    Pause(PauseArgs),
    /// Let a paused pipeline continue
    Resume(ResumeArgs),
    /// Manage events that could not be published: list, show, retry, skip, replace
    Parked(ParkedArgs),
    /// Recreate a lost replication slot and publish the missed events from the outbox table
    Repair(RepairArgs),
    /// Continue from the stored position after mode, destination, table or layout was changed
    Adopt(AdoptArgs),
    /// Manage saved positions to replay from: create, list, drop
    Bookmark(BookmarkArgs),
    /// Remove rows of the outbox that are old, published and needed by nobody: one pass of retention
    Retain(RetainArgs),
    /// Turn a plain outbox into a partitioned one while applications write to it
    Partition(PartitionArgs),
    /// Manage the consumer groups of event logs: list, create, drop, seek, lag, evict
    Groups(GroupsArgs),
    /// Inboxes of a service: run what stores in them, create, watch, dead messages, replay, skip, purge, seek, drop
    Inbox(InboxArgs),
    /// Publish events again: from a bookmark, an LSN or a time, by id or by aggregate
    Replay(Box<ReplayArgs>),
    /// Install the SQL toolkit in a database: event logs, consumer groups, inboxes and table outboxes in SQL
    Sql(SqlArgs),
    /// Print the configuration in effect, or its JSON Schema
    Config(ConfigArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
}

#[cfg(feature = "demo")]
/// `postrider demo`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs PostgreSQL's server programs (initdb, postgres; $POSTRIDER_PG_BIN names their directory) or \
                        --url; for nats, rabbitmq, redis and valkey also the server's program, in PATH or named by \
                        $POSTRIDER_NATS_SERVER, $POSTRIDER_RABBITMQ_SERVER, $POSTRIDER_REDIS_SERVER or \
                        $POSTRIDER_VALKEY_SERVER. Exits 0 if every event was delivered, in order, else 1. The demo \
                        stops and deletes everything it started and created."
)]
pub struct DemoArgs {
    /// Seconds for which events are written [default: until Ctrl-C on a terminal, else 15; with --chaos 30]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Where to publish: a broker in this process (kafka, http), or a temporary server
    #[arg(long, value_name = "KIND", value_enum, default_value_t = DemoKind::Kafka)]
    pub sink: DemoKind,
    /// Inject failures in turn: kill -9 of the relay, a frozen and a killed broker, a restart of the database
    #[arg(long, conflicts_with = "kill")]
    pub chaos: bool,
    /// Kill the relay with kill -9 and start it again, N times
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(..=100))]
    pub kill: u32,
    /// Events per second
    #[arg(long, value_name = "N", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,
    /// An existing database.
    #[arg(
        help = "Use this database instead of a temporary one; the demo creates a schema, a publication and a slot \
                there and drops them at the end"
    )]
    #[arg(long, value_name = "URL", env = "POSTRIDER_DEMO_URL", hide_env_values = true)]
    pub url: Option<String>,
    /// Use these brokers of Kafka instead of the one in this process; the demo creates a topic there and deletes it at
    /// the end
    #[arg(long, value_name = "LIST", conflicts_with = "sink")]
    pub brokers: Option<String>,
}

/// The values of `postrider demo --sink`.
#[cfg(feature = "demo")]
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoKind {
    Kafka,
    Nats,
    Rabbitmq,
    Redis,
    Valkey,
    Http,
}

#[cfg(feature = "demo")]
impl From<DemoKind> for DemoSink {
    fn from(kind: DemoKind) -> Self {
        match kind {
            DemoKind::Kafka => Self::Kafka,
            DemoKind::Nats => Self::Nats,
            DemoKind::Rabbitmq => Self::RabbitMq,
            DemoKind::Redis => Self::Redis,
            DemoKind::Valkey => Self::Valkey,
            DemoKind::Http => Self::Http,
        }
    }
}

/// `postrider check`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each finding is printed with the lines that fix it: sql for an administrator of the database, config \
                        for the file, shell for a terminal. Exits 0 without errors (warnings are not errors), 1 if \
                        there is an error, 2 if the configuration is invalid."
)]
pub struct CheckArgs {
    /// Print a JSON array of findings
    #[arg(long)]
    pub json: bool,
    /// Check only the file, without database and broker
    #[arg(long, conflicts_with = "url")]
    pub offline: bool,
    /// Another login.
    #[arg(
        help = "Log in with this URL instead of source.url, as an administrator or before the relay's role exists"
    )]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

/// The kinds of sinks that this build has.
fn sink_kinds() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(crate::sink::KINDS.iter().map(|kind| kind.name()))
}

/// `postrider init`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Passwords are never written, neither the one of a URL nor those of a connector's file. What was \
                        found, what is left to do and what has no counterpart is printed to standard error."
)]
pub struct InitArgs {
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "./postrider.toml")]
    pub output: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// The pipeline's name: a-z, 0-9 and _
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The layout of the table
    #[arg(long, value_name = "LAYOUT", value_parser = clap::builder::PossibleValuesParser::new(Layout::NAMES))]
    #[arg(conflicts_with = "from_debezium")]
    pub layout: Option<String>,
    /// The outbox table, as SQL writes it
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
    /// The value of source.url
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The kind of the sink
    #[arg(long, value_name = "KIND", value_parser = sink_kinds(), conflicts_with = "from_debezium")]
    pub sink: Option<String>,
    /// The value of sink.brokers
    #[arg(long, value_name = "LIST")]
    pub brokers: Option<String>,
    /// Inspect the tables of this database and propose layout and columns
    #[arg(long, value_name = "URL", conflicts_with = "from_debezium")]
    pub from_database: Option<String>,
    /// Translate this Debezium connector configuration: properties or JSON; - is standard input
    #[arg(long, value_name = "FILE")]
    pub from_debezium: Option<PathBuf>,
}

/// `postrider setup`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Prints each step with its reason, then carries it out. Safe to run again: objects that exist and fit \
                  are not changed. Only --undo drops anything, after it has printed what is lost."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct SetupArgs {
    /// Only print the SQL, for a DBA to run
    #[arg(long)]
    pub print_sql: bool,
    /// Create the outbox table too, as the layout defines it
    #[arg(long)]
    pub create_table: bool,
    /// Drop slot, publication and Postrider's rows, after printing what is lost; never the outbox table
    #[arg(long, conflicts_with = "create_table")]
    pub undo: bool,
    /// Do not ask for confirmation of --undo
    #[arg(long)]
    pub yes: bool,
    /// Create the trigger with which an INSERT wakes a polling relay immediately
    #[arg(long)]
    pub notify: bool,
    /// Discard the progress that the sink's transactions have stored: the pipeline continues at its cursor row
    #[arg(long, conflicts_with_all = ["print_sql", "undo"])]
    pub adopt_cursor: bool,
    /// Which existing rows of the table to publish before streaming starts
    #[arg(long, value_name = "WHICH", conflicts_with_all = ["print_sql", "undo"])]
    pub backfill: Option<Backfill>,
    /// Another login.
    #[arg(
        help = "Log in with this URL instead of source.url, as an administrator; grants the role of source.url rights"
    )]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

/// `postrider run`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "SIGTERM or SIGINT shuts the process down: events in flight are completed within shutdown_grace. A \
                        second signal exits immediately. If every pipeline has halted, the process stays up and \
                        answers on admin.listen; when it is stopped then, or at the first halt with --fail-fast, it \
                        exits with code 3."
)]
pub struct RunArgs {
    /// Stop all pipelines and exit with code 3 as soon as one has halted
    #[arg(long)]
    pub fail_fast: bool,
}

/// `postrider status`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Queries the running process at admin.listen of the same configuration. Exits 1 if the process cannot \
                        be reached or a pipeline is not ready."
)]
pub struct StatusArgs {
    /// Print the JSON of /status
    #[arg(long)]
    pub json: bool,
    /// Repeat until Ctrl-C.
    #[arg(
        help = "Repeat every SECONDS until Ctrl-C [default: 2]; with --json one object per line"
    )]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
}

/// `postrider config`
#[derive(clap::Args, Debug)]
pub struct ConfigArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The subcommands of `postrider config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print the values in effect, each with its origin; secrets are masked
    Show(ConfigShowArgs),
    /// Print the JSON Schema of the file, for editors
    Schema,
}

/// `postrider config show`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The text is TOML. The comment after each value names its origin: the line of the file and the \
                        variables that it takes its value from, the layout, or the default."
)]
pub struct ConfigShowArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider completions`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "bash: postrider completions bash > ~/.local/share/bash-completion/completions/postrider\n\
                        zsh:  postrider completions zsh > \"${fpath[1]}/_postrider\"\n\
                        fish: postrider completions fish > ~/.config/fish/completions/postrider.fish"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// `postrider completions`: prints the script that makes a shell complete the commands and flags.
pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, CliError> {
    let mut command = Args::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "postrider", &mut script);
    let script = String::from_utf8_lossy(&script);
    Output::stdout().line(script.trim_end()).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

/// The column at which the origin begins, unless the value is longer.
const ORIGIN_COLUMN: usize = 50;

/// `postrider config show`
pub(super) fn show(config: &Config, args: &ConfigShowArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let rows = rows_of(config);
    let variables = conninfo::variables(env);
    let text = if args.json {
        format!("{:#}", as_json(config, &rows, &variables))
    } else {
        as_text(config, &rows, &variables)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

/// `postrider config schema`
pub(super) fn schema() -> Result<Exit, CliError> {
    let text = format!("{:#}", config_schema::schema());
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

fn as_json(config: &Config, rows: &[Shown], variables: &[&str]) -> Value {
    let key = |row: &Shown| {
        let path = if row.table.is_empty() {
            row.key.clone()
        } else {
            format!("{}.{}", row.table, row.key)
        };
        let mut shown = json!({"key": path, "value": row.value, "masked": is_masked(&row.value)});
        let origin = match &row.origin {
            Origin::File { place, variables } => {
                shown["line"] = json!(place.line);
                shown["column"] = json!(place.column);
                shown["variables"] = json!(variables);
                "file"
            }
            Origin::Layout(_) => "layout",
            Origin::Default => "default",
        };
        shown["from"] = json!(origin);
        shown
    };
    let keys: Vec<_> = rows.iter().map(key).collect();
    json!({"file": config.file, "keys": keys, "connection_variables": variables})
}

fn as_text(config: &Config, rows: &[Shown], variables: &[&str]) -> String {
    // Writing to a String does not fail.
    let mut text =
        format!("# {}, with the defaults of the keys that it does not set\n", config.file);
    let mut table = "";
    for row in rows {
        if row.table != table {
            table = &row.table;
            write!(text, "\n[{table}]\n").unwrap_or_default();
        }
        let line = match toml_of(&row.value) {
            Some(value) => format!("{} = {value}", row.key),
            None => format!("# {} is not set", row.key),
        };
        let origin = match &row.origin {
            Origin::File { place, variables } if variables.is_empty() => {
                format!("line {}", place.line)
            }
            Origin::File { place, variables } => {
                format!("line {}, ${}", place.line, variables.join(", $"))
            }
            Origin::Layout(layout) => format!("layout {layout}"),
            Origin::Default => "default".to_owned(),
        };
        writeln!(text, "{line:ORIGIN_COLUMN$} # {origin}").unwrap_or_default();
    }
    if !variables.is_empty() {
        let names = variables.join(", $");
        write!(text, "\n# What source.url leaves out is taken from ${names}.\n")
            .unwrap_or_default();
    }
    text.truncate(text.trim_end().len());
    text
}

/// A value in TOML; `None` for null, which TOML does not have.
fn toml_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        // Escaped as in the file, because the shown text is a value and not a reference to a variable.
        Value::String(text) => Some(toml::Value::String(text.replace("${", "$${")).to_string()),
        Value::Bool(_) | Value::Number(_) => {
            toml::Value::try_from(value).ok().map(|value| value.to_string())
        }
        Value::Array(values) => {
            let values: Vec<_> = values.iter().filter_map(toml_of).collect();
            Some(format!("[{}]", values.join(", ")))
        }
        Value::Object(members) => {
            let members =
                members.iter().filter_map(|(k, v)| Some(format!("{k} = {}", toml_of(v)?)));
            Some(format!("{{ {} }}", members.collect::<Vec<_>>().join(", ")))
        }
    }
}
