//! What the user can type.

use super::Output;
use super::adopt::AdoptArgs;
use super::bookmark::BookmarkArgs;
use super::error::{CliError, Exit};
use super::parked::ParkedArgs;
use super::repair::RepairArgs;
use super::replay::ReplayArgs;
use super::setup::Backfill;
use crate::config::show::{Origin, Shown, is_masked, show as rows_of};
use crate::config::{Config, Env, schema as config_schema};
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
    /// What holds for every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(clap::Args, Debug, Default)]
pub struct Global {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", global = true)]
    #[arg(
        help = "The configuration [default: $POSTRIDER_CONFIG, ./postrider.toml, /etc/postrider/postrider.toml]"
    )]
    pub config: Option<PathBuf>,
    /// Only the pipeline of this name
    #[arg(short, long, value_name = "NAME", global = true)]
    pub pipeline: Option<String>,
    /// How the log is written, on standard error
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub log_format: LogFormat,
    /// What is logged: a level, or a filter by target.
    #[arg(
        help = "What is logged: error, warn, info, debug or trace, or a filter as info,postrider::pipeline=debug"
    )]
    #[arg(long, value_name = "LEVEL|FILTER", default_value = "info", global = true)]
    pub log: String,
    /// Log only errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Whether there are colours.
    #[arg(help = "Colours; auto has them on a terminal, unless $NO_COLOR is set")]
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    pub color: Color,
}

impl Global {
    /// Whether to colour what goes to a stream that is a terminal or not.
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
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// `--color`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Color {
    /// On a terminal
    #[default]
    Auto,
    /// In any case
    Always,
    /// In no case
    Never,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[cfg(feature = "demo")]
    /// See it work: a throwaway database, an in-process broker, a writer and a reader, one screen
    Demo(DemoArgs),
    /// Check configuration, database and broker for problems (read-only)
    Check(CheckArgs),
    /// Write a first configuration: from nothing, from the tables of a database, or from a Debezium connector's
    Init(InitArgs),
    /// Create what is missing in the database: publication, slot, Postrider's schema
    Setup(SetupArgs),
    /// Stream until SIGTERM or SIGINT: the service
    Run(RunArgs),
    /// One look at every pipeline of the running process
    Status(StatusArgs),
    /// Events that could not be published: list, show, retry, skip, replace
    Parked(ParkedArgs),
    /// Recreate a lost replication slot and publish the missed events from the outbox table
    Repair(RepairArgs),
    /// Go on at the position with a changed mode, destination, table or layout
    Adopt(AdoptArgs),
    /// Saved positions to replay from: create, list, drop
    Bookmark(BookmarkArgs),
    /// Publish again: from a bookmark, an LSN, a time, by ids or of one aggregate
    Replay(Box<ReplayArgs>),
    /// Look at the configuration: the values in effect, or the schema for editors
    Config(ConfigArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
}

#[cfg(feature = "demo")]
/// `postrider demo`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs PostgreSQL's server programs (initdb, postgres; $POSTRIDER_PG_BIN names their directory) or \
                        --url. Exits 0 when the ledger balances, else 1. What it starts or creates is gone afterwards."
)]
pub struct DemoArgs {
    /// How long events are written [default: until Ctrl-C on a terminal, else 15; with --chaos 30]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Break things in turn: kill -9 of the relay, a frozen broker, a restart of the database
    #[arg(long, conflicts_with = "kill")]
    pub chaos: bool,
    /// Kill the relay with -9 and start it again, N times while it runs
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(..=100))]
    pub kill: u32,
    /// Events a second
    #[arg(long, value_name = "N", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,
    /// A database of yours.
    #[arg(
        help = "A database of yours, in place of a throwaway one: the demo makes a schema, a publication and a slot \
                there, and drops them at the end"
    )]
    #[arg(long, value_name = "URL", env = "POSTRIDER_DEMO_URL", hide_env_values = true)]
    pub url: Option<String>,
    /// A broker of yours, in place of the one in this process: a topic is made there, and deleted at the end
    #[arg(long, value_name = "LIST")]
    pub brokers: Option<String>,
}

/// `postrider check`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each finding comes with the lines that fix it: sql for an administrator of the database, config for \
                        the file, shell. Warnings do not fail: exits 0 where there is no finding of severity error, \
                        1 where there is one, 2 when the file itself can't be used."
)]
pub struct CheckArgs {
    /// An array of findings, for programs
    #[arg(long)]
    pub json: bool,
    /// Check only the file, without database and broker
    #[arg(long, conflicts_with = "url")]
    pub offline: bool,
    /// Another login to look by.
    #[arg(
        help = "Log in with this URL instead of source.url, as an administrator or before the relay's role exists"
    )]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

/// `postrider init`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Passwords are never written: not that of a URL, and none of a connector's file. What was found, what \
                        is left to do and what has no counterpart is printed to standard error."
)]
pub struct InitArgs {
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "./postrider.toml")]
    pub output: PathBuf,
    /// Overwrite the file where it is there
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
    /// What source.url is to be
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// What sink.brokers is to be
    #[arg(long, value_name = "LIST")]
    pub brokers: Option<String>,
    /// Look at the tables of this database, and propose layout and columns
    #[arg(long, value_name = "URL", conflicts_with = "from_debezium")]
    pub from_database: Option<String>,
    /// Translate this configuration of a Debezium connector: properties or JSON; - is standard input
    #[arg(long, value_name = "FILE")]
    pub from_debezium: Option<PathBuf>,
}

/// `postrider setup`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "It says what it is about to do, then does it. Running it again does no harm: what stands and fits is \
                  left as it is. Only --undo drops, after naming what is lost."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that can be typed")]
pub struct SetupArgs {
    /// Only print the SQL that is needed, for a DBA to run
    #[arg(long)]
    pub print_sql: bool,
    /// Create the outbox table too, as the layout has it
    #[arg(long)]
    pub create_table: bool,
    /// Drop slot, publication and Postrider's rows again, after naming what is lost; never the outbox
    #[arg(long, conflicts_with = "create_table")]
    pub undo: bool,
    /// Don't ask before --undo
    #[arg(long)]
    pub yes: bool,
    /// Create the trigger by which inserts wake a polling relay at once
    #[arg(long)]
    pub notify: bool,
    /// Which existing rows of the table to publish before streaming starts
    #[arg(long, value_name = "WHICH", conflicts_with_all = ["print_sql", "undo"])]
    pub backfill: Option<Backfill>,
    /// Another login for the work.
    #[arg(
        help = "Log in with this URL instead of source.url, as an administrator; the role of source.url gets its rights"
    )]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

/// `postrider run`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "SIGTERM and SIGINT stop it: what is in flight is finished within shutdown_grace; a second signal \
                        exits immediately. A process whose pipelines have all halted stays up and answers; exit code \
                        3: stopped after every pipeline had halted, or at the first halt with --fail-fast."
)]
pub struct RunArgs {
    /// Stop all pipelines and exit with 3 as soon as one has halted; without it a halted process stays up and answers
    #[arg(long)]
    pub fail_fast: bool,
}

/// `postrider status`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Asks the process that runs with the same configuration, at admin.listen. Exits 1 where it can't be \
                        reached or a pipeline is not ready."
)]
pub struct StatusArgs {
    /// JSON, as /status has it
    #[arg(long)]
    pub json: bool,
    /// Look again and again until Ctrl-C.
    #[arg(
        help = "Look again every SECONDS until Ctrl-C [default: 2]; with --json one object a line"
    )]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
}

/// `postrider config`
#[derive(clap::Args, Debug)]
pub struct ConfigArgs {
    /// What to print.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What `postrider config` prints.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// The values in effect, each with where it comes from; secrets are masked
    Show(ConfigShowArgs),
    /// JSON Schema of the file, for editors
    Schema,
}

/// `postrider config show`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Text is TOML, with where each value comes from behind it: the line of the file and the variables \
                        it was filled in from, the layout, or the default."
)]
pub struct ConfigShowArgs {
    /// JSON
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

// `postrider completions`: the script that makes a shell complete our commands and flags.

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, CliError> {
    let mut command = Args::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "postrider", &mut script);
    let script = String::from_utf8_lossy(&script);
    Output::stdout().line(script.trim_end()).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

// `postrider config show` and `postrider config schema`.

/// The column at which origins begin, where the value leaves room.
const ORIGIN_COLUMN: usize = 50;

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
    let mut text = format!("# {}, with the defaults of what it does not say\n", config.file);
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
        write!(text, "\n# What source.url does not say comes from ${names} too.\n")
            .unwrap_or_default();
    }
    text.truncate(text.trim_end().len());
    text
}

/// A value as TOML has it; `None` for null, which TOML does not have.
fn toml_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        // As the file would have it: what is shown is no variable any more.
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
