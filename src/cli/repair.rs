//! `postrider repair`: a slot that is gone is recreated, and what it won't bring is published from the table.
//!
//! Says first what is the matter and how it will be told what is unpublished. The publishing is the driver's, as in
//! `postrider run`.

mod words;

use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use super::run::Signals;
use super::status::ask::how_to_start;
use crate::config::Config;
use crate::driver::{self, Mode, PipelineSpec, Service, Stop, selection};
use crate::error::{Halt, HaltReason};
use crate::metrics::Metrics;
use crate::postgres::control::Control;
use crate::postgres::poll::listed::Table;
use crate::postgres::repair::{self, Ledger, Method, Row, Survey, Verdict};
use crate::status::Board;
use serde_json::json;
use std::net::SocketAddr;
use std::pin::pin;

/// What the server knows our own session by.
const APPLICATION_NAME: &str = "postrider repair";

/// `postrider repair`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Refused while another relay of the pipeline is live. Killed half way and run again, it goes on \
                        where it was; so does postrider run. Exits 0 when the stream can start, 1 when it can and \
                        rows had been deleted before they were published, have no id, or are parked since they have \
                        the id of another event, 3 where a person must decide."
)]
pub struct RepairArgs {
    /// Say what is the matter and what would be published; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Repair also where the slot can be used: drop it, create it again, and publish from the table every row that is
    /// not known to be published. For rows that the slot cannot bring, since the publication left them out
    #[arg(long)]
    pub from_table: bool,
    /// One JSON object a pipeline
    #[arg(long)]
    pub json: bool,
}

pub(super) async fn run(config: Config, args: &RepairArgs) -> Result<Exit, CliError> {
    let mut exit = Exit::Done;
    let listen = config.admin.listen;
    for spec in config.specs {
        let ended = one(spec, listen, args).await?;
        if ended != Exit::Done {
            exit = ended;
        }
    }
    Ok(exit)
}

async fn one(
    mut spec: PipelineSpec,
    listen: Option<SocketAddr>,
    args: &RepairArgs,
) -> Result<Exit, CliError> {
    spec.from_table = args.from_table;
    let name = spec.name().to_owned();
    let refused = |halt| CliError::Repair { pipeline: name.clone(), halt: Box::new(halt) };
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let look = look(&spec, &control).await?.map_err(refused)?;
    let Look { verdict, row, ledger } = look;
    if verdict == Verdict::Sound {
        let start = how_to_start(listen, &spec).await;
        let text = format!(
            "{}: nothing to repair: slot {:?} exists and matches the cursor row; {start}",
            spec.name(),
            spec.names.slot
        );
        let value = json!({ "pipeline": spec.name(), "state": "sound" });
        return print(args, &text, &value).map(|()| Exit::Done);
    }
    let relays = repair::relays(control.client(), &format!("postrider {}", spec.name())).await?;
    if let Some(pid) = relays.first() {
        return Err(refused(repair::live(&format!("backend {pid} is its session"))));
    }
    if args.dry_run {
        return dry_run(&spec, &control, args, &verdict, row.as_ref(), &ledger).await;
    }
    let conninfo = spec.conninfo.clone();
    if !args.json {
        // Before anything is dropped: what will be published, and what cannot be.
        let found = count(&spec, &control, &verdict, row.as_ref(), &ledger).await?;
        let text = found.map_or_else(
            || words::of_verdict(&name, &verdict),
            |found| words::of_begin(&name, &verdict, &found),
        );
        Output::stdout().line(&text).map_err(CliError::Output)?;
    }
    drop(control);
    let start = how_to_start(listen, &spec).await;
    let marked = driver::repair_table(&spec, true);
    let unmarked = driver::repair_table(&spec, false);
    let exit = publish(spec).await?;
    let control = Control::connect(&conninfo, APPLICATION_NAME).await?;
    let Some(row) = repair::read(control.client(), &name).await? else { return Ok(exit) };
    let no_id = match if row.selection.by_marks() { marked } else { unmarked } {
        Some(table) => {
            let table = Table::read(control.client(), table).await?;
            repair::without_id(control.client(), &table, &row).await?
        }
        None => 0,
    };
    let undecided = repair::undecided(control.client(), &name).await?;
    let left = words::Left { no_id, undecided };
    print(args, &words::of_row(&name, &row, left, &start), &words::json_of(&name, &row, left))?;
    let lost = row.unfinished() || row.rows_gone > 0 || no_id > 0 || undecided > 0;
    Ok(if exit == Exit::Done && lost { Exit::NotWell } else { exit })
}

/// What a look at the database gave.
struct Look {
    verdict: Verdict,
    row: Option<Row>,
    ledger: Ledger,
}

async fn look(spec: &PipelineSpec, control: &Control) -> Result<Result<Look, Halt>, CliError> {
    if let Some(halt) = of_mode(spec) {
        return Ok(Err(halt));
    }
    let identity = driver::identity(&spec.conninfo, APPLICATION_NAME).await?;
    let columns = spec.columns();
    let ask = spec.ask(&identity, &columns);
    let facts = control.facts(&ask).await?;
    if let Err(halt) = repair::fit(&facts) {
        return Ok(Err(halt));
    }
    if let Err(halt) = spec.fit(facts.table.as_ref()) {
        return Ok(Err(halt));
    }
    let row = repair::read(control.client(), spec.name()).await?;
    let verdict = match repair::judge(&facts, row.as_ref(), spec.from_table) {
        Ok(verdict) => verdict,
        Err(halt) => return Ok(Err(halt)),
    };
    let ledger =
        repair::ledger(control.client(), spec.name(), row.as_ref(), spec.cursor_interval).await?;
    Ok(Ok(Look { verdict, row, ledger }))
}

/// Only a stream needs its slot repaired.
fn of_mode(spec: &PipelineSpec) -> Option<Halt> {
    let (message, hint) = match spec.mode {
        Mode::Wal => return None,
        Mode::Poll => {
            ("mode = \"poll\" has no slot", "start postrider run: what is unmarked is published")
        }
        Mode::Auto => (
            "mode = \"auto\" repairs by itself: it polls while it recreates the slot",
            "start postrider run",
        ),
    };
    Some(Halt {
        reason: HaltReason::NotApplicable,
        message: message.to_owned(),
        meaning: "nothing was changed".to_owned(),
        hint: hint.to_owned(),
    })
}

/// Counts what would be published, by what the server shows now.
async fn dry_run(
    spec: &PipelineSpec,
    control: &Control,
    args: &RepairArgs,
    verdict: &Verdict,
    row: Option<&Row>,
    ledger: &Ledger,
) -> Result<Exit, CliError> {
    let Some(found) = count(spec, control, verdict, row, ledger).await? else {
        return Ok(Exit::Done);
    };
    let text = words::of_dry_run(spec.name(), verdict, &found);
    print(args, &text, &words::json_of_dry_run(spec.name(), verdict, &found)).map(|()| Exit::Done)
}

/// What there is to publish, as the server shows it now; `None` without a table.
async fn count(
    spec: &PipelineSpec,
    control: &Control,
    verdict: &Verdict,
    row: Option<&Row>,
    ledger: &Ledger,
) -> Result<Option<words::Found>, CliError> {
    let refused = |halt| CliError::Repair { pipeline: spec.name().to_owned(), halt };
    let marks = spec.poll.mark_streamed;
    let Some(table) = driver::repair_table(spec, marks) else { return Ok(None) };
    let table = Table::read(control.client(), table).await?;
    let listed = repair::left(control.client(), spec.name()).await?;
    let (method, survey) = if *verdict == Verdict::GoesOn {
        (row.map(|row| row.method.clone()).unwrap_or_default(), Survey::default())
    } else {
        let selection = selection(spec, row, ledger.known.as_deref(), marks).map_err(refused)?;
        let method = Method::of(control.client(), selection, ledger.known.as_deref()).await?;
        let survey = repair::survey(control.client(), &table, &method, ledger.at).await?;
        (method.words(&table), survey)
    };
    let parked = repair::parked_aggregates(control.client(), spec.name()).await?;
    Ok(Some(words::Found { listed, parked, method, survey }))
}

/// Lets the driver publish, until the list is at its end or somebody stops it.
async fn publish(mut spec: PipelineSpec) -> Result<Exit, CliError> {
    let mut signals = Signals::listen().map_err(CliError::Runtime)?;
    spec.only_repair = true;
    let board = Board::new(spec.name());
    let metrics = Metrics::default().pipeline(&board);
    let (handle, stop) = Stop::new();
    let mut service =
        Service::start(vec![(spec, board, metrics)], &stop).map_err(CliError::Thread)?;
    let mut ended = pin!(service.next_exit());
    loop {
        tokio::select! {
            exit = &mut ended => return Ok(match exit {
                None | Some((_, driver::Exit::Stopped)) => Exit::Done,
                Some((_, driver::Exit::Halted(_))) => Exit::Halted,
                Some((_, driver::Exit::Bug)) => Exit::Bug,
            }),
            name = signals.next() => {
                tracing::info!(
                    event = "told_to_stop",
                    signal = name,
                    "received {name}, shutting down; send it again to exit immediately"
                );
                handle.stop();
            }
        }
    }
}

fn print(args: &RepairArgs, text: &str, value: &serde_json::Value) -> Result<(), CliError> {
    let mut out = Output::stdout();
    if args.json { out.line(&value.to_string()) } else { out.line(text) }.map_err(CliError::Output)
}
