//! The command line: parses the arguments, runs the command, prints its result.
//!
//! Owns the arguments, the exit codes, the format of the log and the printed texts. Results go to standard output,
//! everything else to standard error.

mod adopt;
mod args;
mod bookmark;
mod check;
#[cfg(feature = "demo")]
mod demo;
mod dialog;
mod error;
mod find;
mod groups;
mod inbox;
mod init;
mod logging;
mod parked;
mod partition;
mod pause;
mod repair;
mod replay;
mod retain;
mod run;
mod setup;
mod sql;
mod status;
mod status_events;
mod tail;
#[cfg(test)]
mod tests;

pub use adopt::AdoptArgs;
#[cfg(feature = "demo")]
pub use args::DemoArgs;
pub use args::{
    Args, CheckArgs, Color, Command, CompletionsArgs, ConfigArgs, ConfigCommand, ConfigShowArgs,
    Global, InitArgs, LogFormat, RunArgs, SetupArgs, StatusArgs,
};
pub use bookmark::{BookmarkArgs, BookmarkCommand, CreateArgs, DropArgs, ListBookmarksArgs};
pub use error::Exit;
pub use find::FindArgs;
pub use groups::{
    CreateGroupArgs, DropGroupArgs, EvictGroupArgs, GroupLagArgs, GroupStart, GroupsArgs,
    GroupsCommand, ListGroupsArgs, SeekGroupArgs,
};
pub use inbox::{
    AdoptTableArgs, CreateInboxArgs, DeadArgs, DropInboxArgs, GapsArgs, InboxArgs, InboxCommand,
    InboxOrderArg, InboxRuleArgs, InboxStatusArgs, ListInboxesArgs, PurgeArgs, ReplayInboxArgs,
    SkipGapArgs, SkipInboxArgs, StoredInboxCommand,
};
#[cfg(feature = "kafka")]
pub use inbox::{IntakeCommand, RunInboxArgs, SeekInboxArgs, SeekOffset};
pub use parked::{
    ActArgs, FilterArgs, Id, ListArgs, ParkedArgs, ParkedCommand, ReplaceArgs, RetryArgs,
    SelectArgs, ShowArgs, SkipArgs,
};
pub use partition::PartitionArgs;
pub use pause::{PauseArgs, ResumeArgs};
pub use repair::RepairArgs;
pub use replay::{ReplayArgs, SourceArg};
pub use retain::RetainArgs;
pub use setup::Backfill;
pub use sql::SqlArgs;
pub use tail::TailArgs;

use crate::config::{self, Config, ConfigError, Env};
use crate::pipeline::PipelineSpec;
use crate::postgres::control::Control;
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::schema_owner::SessionRights;
use clap::{CommandFactory as _, FromArgMatches as _};
use error::{CliError, FOR_PIPELINES, RUN_INTAKES};
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::path::Path;

/// Runs the command line `arguments`, of which the first is the program's name, and returns the exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>, env: Env<'_>) -> Exit {
    let command = Args::command().color(args::help_color(env));
    let parsed = command.try_get_matches_from(arguments);
    let args = match parsed.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let outcome = logging::start(&args.global, env).and_then(|()| dispatch(&args, env));
    outcome.unwrap_or_else(|error| {
        Output::stderr().line_or_ignore(&error.report());
        error.exit()
    })
}

/// Prints what clap returned in place of arguments. Help and version are results; everything else is wrong usage.
fn usage(error: &clap::Error) -> Exit {
    let failed = error.print().is_err();
    if error.use_stderr() || failed { Exit::Usage } else { Exit::Done }
}

fn dispatch(args: &Args, env: Env<'_>) -> Result<Exit, CliError> {
    let pipelines = || load_pipelines(&args.global, env, FOR_PIPELINES);
    match &args.command {
        Command::Check(check) => {
            // `check` reports the warnings of the file as findings, so they are not logged too.
            let config = read(&args.global, env)?;
            block_on(check::run(&config, &args.global, check, env))?
        }
        Command::Init(init) => block_on(init::run(init, args.global.pipeline.as_deref(), env))?,
        Command::Setup(setup) => block_on(setup::run(&pipelines()?, setup, env))?,
        Command::Run(run) => {
            let config = load_pipelines(&args.global, env, RUN_INTAKES)?;
            block_on(run::run(config, run))?
        }
        Command::Status(status) => {
            let config = warned(read_by(&args.global, env, config::load_without_secrets)?);
            let color = args.global.color(env, std::io::stdout().is_terminal());
            block_on(status::run(&config, &args.global, status, color))?
        }
        Command::Find(find) => block_on(Box::pin(find::run(&pipelines()?, find)))?,
        Command::Tail(tail) => block_on(Box::pin(tail::run(&pipelines()?, tail)))?,
        Command::Parked(parked) => block_on(parked::run(&pipelines()?, parked, env))?,
        Command::Pause(pause) => block_on(pause::pause(&pipelines()?, pause, env))?,
        Command::Resume(resume) => block_on(pause::resume(&pipelines()?, resume))?,
        Command::Repair(repair) => block_on(repair::run(pipelines()?, repair))?,
        Command::Adopt(adopt) => block_on(adopt::run(&pipelines()?, adopt))?,
        Command::Bookmark(bookmark) => block_on(bookmark::run(&pipelines()?, bookmark))?,
        Command::Retain(retain) => block_on(retain::run(&pipelines()?, retain))?,
        Command::Partition(partition) => block_on(partition::run(&pipelines()?, partition, env))?,
        Command::Groups(groups) => {
            let config = match groups.url {
                Some(_) => None,
                None => Some(load(&args.global, env)?),
            };
            block_on(groups::run(config.as_ref(), groups, env))?
        }
        Command::Inbox(inbox) => self::inbox(inbox, &args.global, env),
        Command::Replay(replay) => block_on(Box::pin(replay::run(&pipelines()?, replay)))?,
        #[cfg(feature = "demo")]
        Command::Demo(demo) => demo::run(demo, &args.global, env),
        Command::Sql(sql) => {
            let config = sql.needs_config().then(|| load(&args.global, env)).transpose()?;
            block_on(sql::run(sql, config.as_ref(), env))?
        }
        Command::Config(config) => match &config.command {
            ConfigCommand::Show(show) => args::show(&load(&args.global, env)?, show, env),
            ConfigCommand::Schema => args::schema(),
        },
        Command::Completions(completions) => args::run(completions),
    }
}

/// `postrider inbox`. Those of its commands that concern an intake have the database of the intake.
fn inbox(args: &InboxArgs, global: &Global, env: Env<'_>) -> Result<Exit, CliError> {
    match &args.command {
        #[cfg(feature = "kafka")]
        InboxCommand::Intake(command) => {
            inbox::refuse_flags(command, args.url.is_some(), global.pipeline.is_some())?;
            let config = load(global, env)?;
            match command {
                IntakeCommand::Run(run) => block_on(inbox::run::run(&config, run))?,
                IntakeCommand::Seek(seek) => block_on(inbox::seek::run(&config, seek))?,
            }
        }
        InboxCommand::Stored(command) => {
            let needs_config = args.url.is_none() && !command.is_printed();
            let config = needs_config.then(|| load(global, env)).transpose()?;
            let chosen = inbox::InboxDatabase {
                config: config.as_ref(),
                url: args.url.as_deref(),
                is_of_pipeline: global.pipeline.is_some(),
            };
            block_on(inbox::run(&chosen, command, env))?
        }
    }
}

/// Reads the configuration and logs its warnings.
fn load(global: &Global, env: Env<'_>) -> Result<Config, CliError> {
    read(global, env).map(warned)
}

/// As [`load`], and refuses a configuration without a pipeline, which has tables `[inboxes.NAME]` alone.
fn load_pipelines(global: &Global, env: Env<'_>, hint: &'static str) -> Result<Config, CliError> {
    let config = load(global, env)?;
    if config.specs.is_empty() {
        return Err(CliError::NoPipeline { file: config.file, hint });
    }
    Ok(config)
}

fn warned(config: Config) -> Config {
    for warning in &config.warnings {
        tracing::warn!(event = "config_warning", "{}:{warning}", config.file);
    }
    config
}

/// Reads the configuration and keeps the pipelines that `-p` selects.
fn read(global: &Global, env: Env<'_>) -> Result<Config, CliError> {
    read_by(global, env, config::load)
}

/// As [`read`], with one of the loaders of [`config`].
fn read_by(
    global: &Global,
    env: Env<'_>,
    load: fn(&Path, Env<'_>) -> Result<Config, ConfigError>,
) -> Result<Config, CliError> {
    let path = config::find(global.config.as_deref(), env)?;
    let mut config = load(&path, env)?;
    if let Some(name) = &global.pipeline {
        let known = config.pipelines.iter().map(|pipeline| pipeline.name.clone()).collect();
        config.pipelines.retain(|pipeline| pipeline.name == *name);
        config.specs.retain(|spec| spec.name() == name);
        if config.pipelines.is_empty() {
            return Err(CliError::Pipeline { name: name.clone(), known });
        }
    }
    Ok(config)
}

/// Refuses a database whose tables are of another version: `old` is the error for an earlier one.
async fn check_schema(
    spec: &PipelineSpec,
    control: &Control,
    old: impl FnOnce(String) -> CliError,
) -> Result<(), CliError> {
    let pipeline = || spec.name().to_owned();
    match schema::read(control.client(), SessionRights::Relay).await? {
        SchemaState::Version(schema::VERSION) => Ok(()),
        SchemaState::Version(number) if number > schema::VERSION => {
            Err(CliError::NewSchema { pipeline: pipeline() })
        }
        SchemaState::Version(_)
        | SchemaState::Missing
        | SchemaState::Empty
        | SchemaState::Untrusted => Err(old(pipeline())),
    }
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> Result<F::Output, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(CliError::Runtime)?.block_on(future))
}

/// One of the standard streams. A reader that has closed its end, as `head` does, is not an error.
struct Output(Box<dyn Write>);

impl Output {
    fn stdout() -> Self {
        Self(Box::new(io::stdout().lock()))
    }

    fn stderr() -> Self {
        Self(Box::new(io::stderr().lock()))
    }

    /// Writes a text and a line feed.
    fn line(&mut self, text: &str) -> io::Result<()> {
        self.line_if_read(text).map(|_read| ())
    }

    /// As [`Output::line`]; false once the reader has closed its end.
    fn line_if_read(&mut self, text: &str) -> io::Result<bool> {
        let written = writeln!(self.0, "{text}").and_then(|()| self.0.flush());
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// As [`Output::line`] without an error, for messages to standard error: there is no stream to report it on.
    fn line_or_ignore(mut self, text: &str) {
        self.line(text).unwrap_or_default();
    }
}

/// Longest line. Unit: characters.
const WIDTH: usize = 100;

/// A text behind a label, folded, with its further lines indented by the width of the label.
fn folded(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.chars().count());
    let mut lines = Vec::new();
    let mut line = mark.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines.join("\n")
}
