//! `postrider bookmark`: positions saved under a name, to replay from.
//!
//! Each bookmark is a replication slot that retains WAL. The list shows how much; `bookmarks.retain_max` limits it.
//! Every subcommand first drops the bookmarks that have expired or that exceed the limit.

use super::error::{CliError, Exit, NAME_DATABASE, printable};
use super::{Output, check_schema};
use crate::config::{self, Config};
use crate::pipeline::PipelineSpec;
use crate::postgres::control::Control;
use crate::postgres::store::bookmark::{
    self, Bookmark, BookmarkError, DropReason, NewBookmark, SweepBy,
};
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider bookmark";

pub(super) async fn run(config: &Config, args: &BookmarkArgs) -> Result<Exit, CliError> {
    match &args.command {
        BookmarkCommand::Create(create) => self::create(config, create).await,
        BookmarkCommand::List(list) => self::list(config, list).await,
        BookmarkCommand::Drop(drop) => self::drop(config, drop).await,
    }
}

/// The only pipeline of the configuration, or the one that `-p` selected.
pub(super) fn the_one(config: &Config) -> Result<&PipelineSpec, CliError> {
    match config.specs.as_slice() {
        [spec] => Ok(spec),
        // The commands that need a pipeline itself are refused before (`load_pipelines`).
        [] => Err(CliError::NoPipeline { file: config.file.clone(), hint: NAME_DATABASE }),
        specs => {
            let known = specs.iter().map(|spec| spec.name().to_owned()).collect();
            Err(CliError::WhichPipeline { known })
        }
    }
}

/// A session in the pipeline's database, whose schema `postrider` has the version of this release.
pub(super) async fn session(spec: &PipelineSpec, name: &str) -> Result<Control, CliError> {
    let control = Control::connect(&spec.conninfo, name).await?;
    let old = |pipeline| CliError::OldSchema { pipeline };
    check_schema(spec, &control, old).await?;
    Ok(control)
}

/// Drops the bookmarks that have expired or exceed the limit, and prints a warning for each.
async fn sweep(spec: &PipelineSpec, control: &Control) -> Result<(), CliError> {
    let max = spec.bookmarks_retain_max;
    let mut all = Vec::new();
    let swept =
        bookmark::sweep(control.client(), spec.key(), max, SweepBy::Command, &mut all).await;
    for swept in all {
        let why = match swept.reason {
            DropReason::Expired => "it has expired".to_owned(),
            DropReason::Budget => format!(
                "the bookmarks retained {} of WAL, more than bookmarks.retain_max ({})",
                size(swept.held_bytes),
                size(max)
            ),
        };
        let text = format!("warning: dropped bookmark {}: {why}", swept.name);
        Output::stderr().line_or_ignore(&text);
    }
    Ok(swept?)
}

async fn create(config: &Config, args: &CreateArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let control = session(spec, APPLICATION_NAME).await?;
    sweep(spec, &control).await?;
    let new = NewBookmark {
        key: spec.key(),
        slot: &spec.names.slot,
        publication: &spec.names.publication,
        messages: spec.messages(),
        name: &args.name,
        note: args.note.as_deref(),
        expire: args.expire,
    };
    let made = bookmark::create(control.client(), &new).await?;
    let text = if args.json {
        format!("{:#}", json(spec.name(), &made))
    } else {
        made_line(spec.name(), &made)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

async fn list(config: &Config, args: &ListBookmarksArgs) -> Result<Exit, CliError> {
    let mut out = Output::stdout();
    for spec in &config.specs {
        let control = session(spec, APPLICATION_NAME).await?;
        sweep(spec, &control).await?;
        let all = bookmark::list(control.client(), spec.key()).await?;
        let text = if args.json {
            let lines = all.iter().map(|one| json(spec.name(), one).to_string());
            lines.collect::<Vec<_>>().join("\n")
        } else {
            table(spec.name(), &all, spec.bookmarks_retain_max)
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
        match bookmark::drop(control.client(), spec.key(), name).await {
            Ok(held) => {
                let text = format!("dropped bookmark {name}; it retained {} of WAL", size(held));
                out.line(&text).map_err(CliError::Output)?;
            }
            // The other bookmarks are dropped all the same. Every failure is printed; the first one is the result.
            Err(error) => match &failed {
                None => failed = Some(error),
                Some(_) => Output::stderr().line_or_ignore(&CliError::from(error).report()),
            },
        }
    }
    sweep(spec, &control).await?;
    failed.map_or(Ok(Exit::Done), |error| Err(error.into()))
}

/// `postrider bookmark`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A bookmark is a copy of the pipeline's replication slot. It counts towards max_replication_slots, \
                  and PostgreSQL retains WAL from its position on until it is dropped. All bookmarks of a pipeline \
                  together retain at most bookmarks.retain_max of WAL; beyond that the oldest one is dropped."
)]
pub struct BookmarkArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: BookmarkCommand,
}

/// The subcommands of `postrider bookmark`.
#[derive(Subcommand, Debug)]
pub enum BookmarkCommand {
    /// Save the current position under a name
    Create(CreateArgs),
    /// List bookmarks, the WAL that each retains, and whether each can still be replayed
    List(ListBookmarksArgs),
    /// Delete a bookmark; PostgreSQL may then remove the WAL it was holding
    Drop(DropArgs),
}

/// `postrider bookmark create`
#[derive(clap::Args, Debug)]
pub struct CreateArgs {
    /// The name: A-Z a-z 0-9 . _ -
    #[arg(value_name = "NAME")]
    pub name: String,
    /// A note to store with the bookmark
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Delete the bookmark automatically after this time: 7d
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub expire: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider bookmark list`
#[derive(clap::Args, Debug)]
pub struct ListBookmarksArgs {
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `postrider bookmark drop`
#[derive(clap::Args, Debug)]
pub struct DropArgs {
    /// The bookmarks to delete
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

const HEAD: [&str; 7] = ["BOOKMARK", "POSITION", "CREATED", "RETAINS", "EXPIRES", "STATE", "NOTE"];

/// A line for each bookmark, then the WAL that all of them retain together.
fn table(pipeline: &str, all: &[Bookmark], retain_max: u64) -> String {
    if all.is_empty() {
        return format!("{pipeline}: no bookmarks");
    }
    let rows: Vec<[String; HEAD.len()]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(all.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String does not fail.
            write!(line, "{cell:<width$}  ").unwrap_or_default();
        }
        writeln!(text, "{}", line.trim_end()).unwrap_or_default();
    }
    // PostgreSQL retains WAL from the oldest position on, so all bookmarks together retain as much as the oldest one.
    let held = all.iter().map(|bookmark| bookmark.held_bytes).max().unwrap_or(0);
    let (held, max) = (size(held), size(retain_max));
    write!(text, "{pipeline}: together they retain {held} of WAL, of {max} (bookmarks.retain_max)")
        .unwrap_or_default();
    text
}

fn cells(bookmark: &Bookmark) -> [String; HEAD.len()] {
    let text = |text: Option<&String>| text.map_or("-".to_owned(), |text| printable(text));
    let reading = if bookmark.active_pid.is_some() { ", in use" } else { "" };
    [
        bookmark.name.clone(),
        bookmark.lsn.map_or("-".to_owned(), |lsn| lsn.to_string()),
        bookmark.created_at.clone(),
        size(bookmark.held_bytes),
        text(bookmark.expires_at.as_ref()),
        format!("{}{reading}", bookmark.state),
        text(bookmark.note.as_ref()),
    ]
}

/// The result of `create` as text.
fn made_line(pipeline: &str, bookmark: &Bookmark) -> String {
    let at = bookmark.lsn.map_or_else(String::new, |lsn| format!(" at {lsn}"));
    let until = bookmark.expires_at.as_ref();
    let until = until.map_or("until it is dropped".to_owned(), |at| format!("until {at}"));
    format!(
        "created bookmark {name} of pipeline {pipeline}{at}; PostgreSQL retains WAL from there on {until}\n\
         to publish the events from there on again: postrider replay --bookmark {name}",
        name = bookmark.name
    )
}

/// One bookmark as JSON.
fn json(pipeline: &str, bookmark: &Bookmark) -> Value {
    json!({
        "pipeline": pipeline,
        "name": bookmark.name,
        "note": bookmark.note,
        "position": bookmark.lsn.map(|lsn| lsn.to_string()),
        "timeline": bookmark.timeline,
        "slot": bookmark.slot,
        "created_at": bookmark.created_at,
        "expires_at": bookmark.expires_at,
        "state": bookmark.state.name(),
        "why": (!bookmark.state.usable()).then(|| bookmark.state.to_string()),
        "held_bytes": bookmark.held_bytes,
        "active_pid": bookmark.active_pid,
    })
}

/// A number of bytes with a unit.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", bytes >> 20),
        10_737_418_240.. => format!("{} GiB", bytes >> 30),
    }
}
