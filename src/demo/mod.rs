//! `postrider demo`: a demonstration that needs only this program and PostgreSQL's server programs, and the server
//! program of another broker than Kafka.
//!
//! Owns everything that a demo starts, and ends it in every case: a temporary database, a broker, a writer, an
//! independent reader. The relay is this program in a process of its own, set up and run as a user would do
//! it, so that it can be killed. The demo reads only the relay's `/status` and `/metrics`; the [`ledger`] alone decides
//! what was lost, reordered or repeated.

mod binaries;
mod broker;
mod chaos;
mod cluster;
mod consumers;
mod database;
mod destination;
mod error;
mod kind;
mod ledger;
mod ledger_file;
mod options;
mod probe;
mod process;
mod quantile;
mod reader;
mod relay;
mod report;
mod run;
mod screen;
mod server;
mod view;
mod words;
mod writer;

pub use error::DemoError;
pub use kind::DemoSink;
pub use options::DemoOptions;

use crate::config::Env;
use crate::error::Chain;
use database::Database;
use destination::Destination;
use ledger::SharedLedger;
use process::{Dir, Interrupts};
use report::DemoReport;
use run::DemoRun;
use std::path::PathBuf;

/// Runs a demo and prints to standard output. Returns whether the ledger balances.
pub fn run(options: &DemoOptions, env: Env<'_>) -> Result<bool, DemoError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let report = runtime.map_err(DemoError::Thread)?.block_on(Box::pin(demo(options, env)))?;
    print(report::NEXT)?;
    Ok(report.balances())
}

async fn demo(options: &DemoOptions, env: Env<'_>) -> Result<DemoReport, DemoError> {
    let mut interrupts = Interrupts::new()?;
    let dir = Dir::create()?;
    print("postrider demo")?;
    // First, because it is found without waiting for anything.
    let program = binaries::broker_program(options.sink, env)?;
    let opening = Database::open(options, &dir, env);
    let mut database = unless(&mut interrupts, opening).await?;
    let parts = vec![part("database", database.describe())?];
    let shown = with_database(options, &dir, &mut database, &mut interrupts, parts, program).await;
    // The relay has ended by now, so the database can be closed in every case.
    print_cleanup(database.close().await)?;
    shown
}

async fn with_database(
    options: &DemoOptions,
    dir: &Dir,
    database: &mut Database,
    interrupts: &mut Interrupts,
    mut parts: Vec<(&'static str, String)>,
    program: Option<PathBuf>,
) -> Result<DemoReport, DemoError> {
    let ledger = SharedLedger::new(writer::AGGREGATES);
    let opening = Destination::open(options, &database.name, &ledger, program);
    let mut broker = unless(interrupts, opening).await?;
    parts.push(part("broker", broker.describe())?);
    let shown = show(options, dir, database, &mut broker, &ledger, interrupts, parts);
    let shown = Box::pin(shown).await;
    print_cleanup(broker.close().await)?;
    shown
}

/// Runs relay, writer and reader, all of which have ended when the function returns.
async fn show(
    options: &DemoOptions,
    dir: &Dir,
    database: &mut Database,
    broker: &mut Destination,
    ledger: &SharedLedger,
    interrupts: &mut Interrupts,
    mut parts: Vec<(&'static str, String)>,
) -> Result<DemoReport, DemoError> {
    let preparing = async {
        database.prepare().await?;
        DemoRun::begin(options, dir, database, broker, ledger).await
    };
    let mut show = unless(interrupts, preparing).await?;
    parts.push(part("relay", "postrider run, in its own process".to_owned())?);
    let writer = format!(
        "{} events/s, {} orders, 1 to 5 events per transaction, some rolled back",
        words::count(options.rate.into()),
        writer::AGGREGATES
    );
    parts.push(part("writer", writer)?);
    if options.chaos {
        parts.push(part("chaos", run::planned_failures(options))?);
    }
    unless(interrupts, show.warm_up(database)).await?;
    print("")?;
    let report = show.run(database, broker, interrupts, &parts).await?;
    print(report.text(options.color).trim_end())?;
    if let Some(path) = &options.ledger {
        ledger_file::write(path, broker.topic(), &ledger.lock())?;
    }
    Ok(report)
}

/// Prints a line about one of the parts, and returns it for the screen.
fn part(name: &'static str, text: String) -> Result<(&'static str, String), DemoError> {
    print(&format!("  {name:<9} {text}"))?;
    Ok((name, text))
}

/// Prints what was cleaned up, or a warning if that failed, which does not change the result of the demo.
fn print_cleanup(closed: Result<Option<String>, DemoError>) -> Result<(), DemoError> {
    match closed {
        Ok(None) => Ok(()),
        Ok(Some(text)) => print(&text),
        Err(error) => {
            let hint = error.hint().unwrap_or_default();
            print(&format!("warning: {}\n  hint: {hint}", Chain(&error)))
        }
    }
}

fn print(text: &str) -> Result<(), DemoError> {
    screen::write(text).map_err(DemoError::Screen)
}

/// The result of a future, unless a signal arrives first: then the future is dropped, which ends what it had started.
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
