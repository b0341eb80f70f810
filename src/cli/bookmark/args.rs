//! What can be typed behind `postrider bookmark`.

use crate::config;
use clap::Subcommand;
use std::time::Duration;

/// `postrider bookmark`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A bookmark is a copy of the pipeline's slot: it takes one of max_replication_slots, and the database \
                  keeps WAL from there on until it is dropped. All bookmarks of a pipeline together retain at most \
                  bookmarks.retain_max of WAL; past it the oldest is deleted."
)]
pub struct BookmarkArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: BookmarkCommand,
}

/// The words of `postrider bookmark`.
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
    /// A line to remember it by
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Delete it automatically after this time: 7d
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub expire: Option<Duration>,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider bookmark list`
#[derive(clap::Args, Debug)]
pub struct ListBookmarksArgs {
    /// JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `postrider bookmark drop`
#[derive(clap::Args, Debug)]
pub struct DropArgs {
    /// Which
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}
