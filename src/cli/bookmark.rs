//! `postrider bookmark`: positions saved under a name, to replay from.
//!
//! Each is a slot of its own that keeps WAL: what it costs is in the list, and what may be spent is
//! `bookmarks.retain_max`. Every word of this command lets go of what is over its time or the budget first.

mod args;
mod print;

pub use args::{BookmarkArgs, BookmarkCommand, CreateArgs, DropArgs, ListBookmarksArgs};

pub(super) use print::size;

use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::Config;
use crate::driver::PipelineSpec;
use crate::postgres::bookmark::{self, BookmarkError, New, Reason};
use crate::postgres::control::Control;
use crate::postgres::ownership::Acting;
use crate::postgres::schema::{self, SchemaState};

/// What the server knows the session by.
const APPLICATION_NAME: &str = "postrider bookmark";

pub(super) async fn run(config: &Config, args: &BookmarkArgs) -> Result<Exit, CliError> {
    match &args.command {
        BookmarkCommand::Create(create) => self::create(config, create).await,
        BookmarkCommand::List(list) => self::list(config, list).await,
        BookmarkCommand::Drop(drop) => self::drop(config, drop).await,
    }
}

/// The one pipeline that there is, or that `-p` names.
pub(super) fn the_one(config: &Config) -> Result<&PipelineSpec, CliError> {
    match config.specs.as_slice() {
        [spec] => Ok(spec),
        specs => {
            let known = specs.iter().map(|spec| spec.name().to_owned()).collect();
            Err(CliError::WhichPipeline { known })
        }
    }
}

/// A session in a database whose schema is ours.
pub(super) async fn session(spec: &PipelineSpec, name: &str) -> Result<Control, CliError> {
    let control = Control::connect(&spec.conninfo, name).await?;
    if schema::read(control.client(), Acting::Relay).await? != SchemaState::Version(schema::VERSION)
    {
        return Err(CliError::OldSchema { pipeline: spec.name().to_owned() });
    }
    Ok(control)
}

/// Lets go of what is due, and tells it.
async fn sweep(spec: &PipelineSpec, control: &Control) -> Result<(), CliError> {
    let max = spec.bookmarks_retain_max;
    let swept = bookmark::sweep(control.client(), spec.name(), max).await;
    for swept in swept? {
        let why = match swept.reason {
            Reason::Expired => "it has expired".to_owned(),
            Reason::Budget => format!(
                "bookmarks held back {} of WAL, more than bookmarks.retain_max ({})",
                print::size(swept.held_bytes),
                print::size(max)
            ),
        };
        Output::stderr().say(&format!("warning: bookmark {} is dropped: {why}", swept.name));
    }
    Ok(())
}

async fn create(config: &Config, args: &CreateArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let control = session(spec, APPLICATION_NAME).await?;
    sweep(spec, &control).await?;
    let new = New {
        pipeline: spec.name(),
        slot: &spec.names.slot,
        publication: &spec.names.publication,
        messages: spec.messages(),
        name: &args.name,
        note: args.note.as_deref(),
        expire: args.expire,
    };
    let made = bookmark::create(control.client(), &new).await?;
    let text = if args.json {
        format!("{:#}", print::json(spec.name(), &made))
    } else {
        print::made(spec.name(), &made)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

async fn list(config: &Config, args: &ListBookmarksArgs) -> Result<Exit, CliError> {
    let mut out = Output::stdout();
    for spec in &config.specs {
        let control = session(spec, APPLICATION_NAME).await?;
        sweep(spec, &control).await?;
        let all = bookmark::list(control.client(), spec.name()).await?;
        let text = if args.json {
            let lines = all.iter().map(|one| print::json(spec.name(), one).to_string());
            lines.collect::<Vec<_>>().join("\n")
        } else {
            print::table(spec.name(), &all, spec.bookmarks_retain_max)
        };
        if !text.is_empty() {
            out.line(&text).map_err(CliError::Output)?;
        }
    }
    Ok(Exit::Done)
}

async fn drop(config: &Config, args: &DropArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let control = session(spec, APPLICATION_NAME).await?;
    let mut failed: Option<BookmarkError> = None;
    let mut out = Output::stdout();
    for name in &args.names {
        match bookmark::drop(control.client(), spec.name(), name).await {
            Ok(held) => {
                let text =
                    format!("bookmark {name} is gone; it held back {} of WAL", print::size(held));
                out.line(&text).map_err(CliError::Output)?;
            }
            // The others are dropped all the same; each failure is told, the first ends the command.
            Err(error) => match &failed {
                None => failed = Some(error),
                Some(_) => Output::stderr().say(&CliError::from(error).report()),
            },
        }
    }
    sweep(spec, &control).await?;
    failed.map_or(Ok(Exit::Done), |error| Err(error.into()))
}
