//! `postrider demo`: see it work, on nothing but this program and PostgreSQL's.
//!
//! Owns everything that a demo starts, and ends it whatever happens: a throwaway database, a broker in this process,
//! a writer, an independent reader. The relay is the real thing: this program as a process of its own, set up and run
//! as by any user, so that it can be killed. Reads nothing of the relay but what it tells everybody (`/status`,
//! `/metrics`); what was lost, swapped or repeated, the [`ledger`] alone decides.

mod binaries;
mod broker;
mod chaos;
mod cluster;
mod database;
mod error;
mod ledger;
mod probe;
mod process;
mod quantile;
mod reader;
mod relay;
mod report;
mod screen;
mod show;
mod view;
mod words;
mod writer;

pub use error::DemoError;

use crate::config::Env;
use crate::error::Chain;
use broker::Broker;
use database::Database;
use process::{Dir, Interrupts};
use report::Report;
use show::Show;
use std::path::PathBuf;
use std::time::Duration;

/// What a demo is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// A database of the user's, in place of a throwaway one. May hold a password.
    pub url: Option<String>,
    /// `bootstrap.servers` of the user's broker, in place of the mock.
    pub brokers: Option<String>,
    /// How long events are written; `None`: until Ctrl-C.
    pub limit: Option<Duration>,
    /// How many times the relay is killed.
    pub kills: u32,
    /// Break relay, broker and database in turn.
    pub chaos: bool,
    /// Events a second.
    pub rate: u32,
    /// Whether standard output is a terminal: then there is a live screen.
    pub is_terminal: bool,
    /// Whether to use colours.
    pub color: bool,
    /// This program.
    pub executable: PathBuf,
}

/// Runs a demo to its end; whether the ledger balances. Prints to standard output.
pub fn run(options: &Options, env: Env<'_>) -> Result<bool, DemoError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let report = runtime.map_err(DemoError::Thread)?.block_on(Box::pin(demo(options, env)))?;
    say(report::NEXT)?;
    Ok(report.balances())
}

async fn demo(options: &Options, env: Env<'_>) -> Result<Report, DemoError> {
    let mut interrupts = Interrupts::new()?;
    let dir = Dir::create()?;
    say("postrider demo")?;
    let opening = Database::open(options, &dir, env);
    let mut database = unless(&mut interrupts, opening).await?;
    let parts = vec![part("database", database.describe())?];
    let shown = with_database(options, &dir, &mut database, &mut interrupts, parts).await;
    // Whatever came of it: first the relay is gone, then what it used.
    told(database.close().await)?;
    shown
}

async fn with_database(
    options: &Options,
    dir: &Dir,
    database: &mut Database,
    interrupts: &mut Interrupts,
    mut parts: Vec<(&'static str, String)>,
) -> Result<Report, DemoError> {
    let opening = Broker::open(options, &database.name);
    let broker = unless(interrupts, opening).await?;
    parts.push(part("broker", broker.describe())?);
    let shown = Box::pin(show(options, dir, database, &broker, interrupts, parts)).await;
    told(broker.close().await)?;
    shown
}

/// The play itself; everything in it has ended when it returns.
async fn show(
    options: &Options,
    dir: &Dir,
    database: &mut Database,
    broker: &Broker,
    interrupts: &mut Interrupts,
    mut parts: Vec<(&'static str, String)>,
) -> Result<Report, DemoError> {
    let preparing = async {
        database.prepare().await?;
        Show::begin(options, dir, database, broker).await
    };
    let mut show = unless(interrupts, preparing).await?;
    parts.push(part("relay", "postrider run, a process of its own".to_owned())?);
    let writer = format!(
        "{} events/s, {} orders, 1 to 5 a transaction, some rolled back",
        words::count(options.rate.into()),
        writer::AGGREGATES
    );
    parts.push(part("writer", writer)?);
    if options.chaos {
        parts.push(part("chaos", show::promise(options))?);
    }
    unless(interrupts, show.warm_up(database)).await?;
    say("")?;
    let report = show.run(database, broker, interrupts, &parts).await?;
    say(report.text(options.color).trim_end())?;
    Ok(report)
}

/// A line about one of the parts, printed and kept for the screen.
fn part(name: &'static str, text: String) -> Result<(&'static str, String), DemoError> {
    say(&format!("  {name:<9} {text}"))?;
    Ok((name, text))
}

/// Prints what was cleaned up, or what could not be: that does not change how the demo ended.
fn told(closed: Result<Option<String>, DemoError>) -> Result<(), DemoError> {
    match closed {
        Ok(None) => Ok(()),
        Ok(Some(text)) => say(&text),
        Err(error) => {
            let hint = error.hint().unwrap_or_default();
            say(&format!("warning: {}\n  hint: {hint}", Chain(&error)))
        }
    }
}

fn say(text: &str) -> Result<(), DemoError> {
    screen::write(text).map_err(DemoError::Screen)
}

/// A future's result, unless a signal comes first: then the future is dropped, and what it had started ends with it.
async fn unless<T>(
    interrupts: &mut Interrupts,
    future: impl Future<Output = Result<T, DemoError>>,
) -> Result<T, DemoError> {
    let future = Box::pin(future);
    tokio::select! {
        biased;
        () = interrupts.next() => Err(DemoError::Interrupted),
        done = future => done,
    }
}
