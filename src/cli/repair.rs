//! `postrider repair`: recreates a lost slot, and publishes from the table the events that the new slot does not
//! contain.
//!
//! The command prints the reason and the method of selection before it changes anything. The rows are published by the
//! pipeline, as in `postrider run`.

use super::error::{CliError, Exit};
use super::run::Signals;
use super::status::how_to_start;
use super::{Output, folded};
use crate::config::Config;
use crate::error::{Halt, HaltReason};
use crate::metrics::Metrics;
use crate::pipeline::{self, Mode, PipelineSpec, Service, Stop, selection};
use crate::postgres::control::Control;
use crate::postgres::poll::by_id::OutboxTable;
use crate::postgres::repair::{
    self, Method, RepairRow, RepairState, RepairSummary, ResolvedBaseline, Verdict,
};
use crate::status::StatusHandle;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::pin::pin;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider repair";

/// `postrider repair`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Refused while another process of the pipeline is running. After an interruption, run it again, or \
                        run postrider run: both continue where it stopped. Exits 0 if the stream can start; 1 if it \
                        can, but rows were deleted before they were published, have no id, or were parked because \
                        another event had their id; 3 if an operator must decide."
)]
pub struct RepairArgs {
    /// Print the reason and the rows that would be published; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Repair even if the slot is usable: drop it, create it again, and publish from the table every row that is not
    /// known to be published. For rows that are not in the slot because the publication left them out
    #[arg(long)]
    pub from_table: bool,
    /// Print JSON, one object per pipeline
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
    spec.repair.from_table = args.from_table;
    let (name, key) = (spec.name().to_owned(), spec.key().clone());
    let refused = |halt| CliError::Repair { pipeline: name.clone(), halt: Box::new(halt) };
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let Assessment { verdict, row, ledger } = assess(&spec, &control).await?.map_err(refused)?;
    if verdict == Verdict::NotNeeded {
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
        return Err(refused(repair::relay_running(&format!(
            "it has the session of backend {pid}"
        ))));
    }
    if args.dry_run {
        return dry_run(&spec, &control, args, &verdict, row.as_ref(), &ledger).await;
    }
    let conninfo = spec.conninfo.clone();
    if !args.json {
        // Printed before anything is dropped: what will be published, and what cannot be.
        let found = count(&spec, &control, &verdict, row.as_ref(), &ledger).await?;
        let text = found
            .map_or_else(|| of_verdict(&name, &verdict), |found| of_begin(&name, &verdict, &found));
        Output::stdout().line(&text).map_err(CliError::Output)?;
    }
    drop(control);
    let start = how_to_start(listen, &spec).await;
    let marked = pipeline::repair_table(&spec, true);
    let unmarked = pipeline::repair_table(&spec, false);
    let exit = publish(spec).await?;
    let control = Control::connect(&conninfo, APPLICATION_NAME).await?;
    let Some(row) = repair::read(control.client(), &key).await? else { return Ok(exit) };
    let no_id = match if row.selection.by_marks() { marked } else { unmarked } {
        Some(table) => {
            let table = OutboxTable::read(control.client(), table).await?;
            repair::without_id(control.client(), &table, &row).await?
        }
        None => 0,
    };
    let undecided = repair::undecided(control.client(), &key).await?;
    let left = Left { no_id, undecided };
    print(args, &of_row(&name, &row, left, &start), &json_of(&name, &row, left))?;
    let lost = row.unfinished() || row.rows_gone > 0 || no_id > 0 || undecided > 0;
    Ok(if exit == Exit::Done && lost { Exit::Problems } else { exit })
}

/// What the database shows before a repair.
struct Assessment {
    verdict: Verdict,
    row: Option<RepairRow>,
    ledger: ResolvedBaseline,
}

async fn assess(
    spec: &PipelineSpec,
    control: &Control,
) -> Result<Result<Assessment, Halt>, CliError> {
    let refused = of_mode(spec).or_else(|| pipeline::repair_refused(spec));
    if let Some(halt) = refused {
        return Ok(Err(halt));
    }
    let identity = pipeline::identity(&spec.conninfo, APPLICATION_NAME).await?;
    let columns = spec.columns();
    let ask = spec.ask(&identity, &columns);
    let facts = control.facts(&ask).await?;
    if let Err(halt) = repair::check_server(&facts) {
        return Ok(Err(halt));
    }
    if let Err(halt) = spec.fit(facts.table.as_ref()) {
        return Ok(Err(halt));
    }
    let row = repair::read(control.client(), spec.key()).await?;
    let verdict = match repair::assess(&facts, row.as_ref(), spec.repair.from_table) {
        Ok(verdict) => verdict,
        Err(halt) => return Ok(Err(halt)),
    };
    let ledger = repair::resolved_baseline(
        control.client(),
        spec.key(),
        row.as_ref(),
        spec.common.cursor_interval,
    )
    .await?;
    Ok(Ok(Assessment { verdict, row, ledger }))
}

/// The halt of a mode in which the command does not apply: only mode `wal` needs its slot repaired.
fn of_mode(spec: &PipelineSpec) -> Option<Halt> {
    let (message, hint) = match spec.common.mode {
        Mode::Wal | Mode::Embedded => return None,
        Mode::Poll => {
            ("mode = \"poll\" has no slot", "start postrider run: it publishes the unmarked rows")
        }
        Mode::Auto => (
            "mode = \"auto\" repairs automatically: it polls while it recreates the slot",
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

/// Prints what would be published, without changing anything.
async fn dry_run(
    spec: &PipelineSpec,
    control: &Control,
    args: &RepairArgs,
    verdict: &Verdict,
    row: Option<&RepairRow>,
    ledger: &ResolvedBaseline,
) -> Result<Exit, CliError> {
    let Some(found) = count(spec, control, verdict, row, ledger).await? else {
        return Ok(Exit::Done);
    };
    let text = of_dry_run(spec.name(), verdict, &found);
    print(args, &text, &json_of_dry_run(spec.name(), verdict, &found)).map(|()| Exit::Done)
}

/// Counts what there is to publish at present; `None` without a table.
async fn count(
    spec: &PipelineSpec,
    control: &Control,
    verdict: &Verdict,
    row: Option<&RepairRow>,
    ledger: &ResolvedBaseline,
) -> Result<Option<Preview>, CliError> {
    let refused = |halt| CliError::Repair { pipeline: spec.name().to_owned(), halt };
    let marks = spec.poll.mark_streamed;
    let Some(table) = pipeline::repair_table(spec, marks) else { return Ok(None) };
    let table = OutboxTable::read(control.client(), table).await?;
    let listed = repair::left(control.client(), spec.key()).await?;
    let (method, survey) = if *verdict == Verdict::Unfinished {
        (row.map(|row| row.method.clone()).unwrap_or_default(), RepairSummary::default())
    } else {
        let selection = selection(spec, row, ledger.known.as_deref(), marks).map_err(refused)?;
        let method = Method::of(control.client(), selection, ledger.known.as_deref()).await?;
        let survey = repair::summarize(control.client(), &table, &method, ledger.at).await?;
        (method.words(&table), survey)
    };
    let parked = repair::parked_aggregates(control.client(), spec.key()).await?;
    Ok(Some(Preview { listed, parked, method, survey }))
}

/// Runs the pipeline until all listed rows are published or a signal stops it.
async fn publish(mut spec: PipelineSpec) -> Result<Exit, CliError> {
    let mut signals = Signals::listen().map_err(CliError::Runtime)?;
    spec.repair.only = true;
    let status_handle = StatusHandle::of(spec.key());
    let metrics = Metrics::default().pipeline(&status_handle);
    let (handle, stop) = Stop::new();
    let mut service =
        Service::start(vec![(spec, status_handle, metrics)], &stop).map_err(CliError::Thread)?;
    let mut ended = pin!(service.next_exit());
    loop {
        tokio::select! {
            exit = &mut ended => return Ok(match exit {
                None | Some((_, pipeline::PipelineExit::Stopped)) => Exit::Done,
                Some((_, pipeline::PipelineExit::Halted(_))) => Exit::Halted,
                Some((_, pipeline::PipelineExit::Bug)) => Exit::Bug,
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

/// What a repair would publish.
struct Preview {
    /// Rows that an earlier, unfinished repair has listed.
    listed: u64,
    /// Aggregates with a parked event.
    parked: u64,
    method: String,
    survey: RepairSummary,
}

fn why(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::NotNeeded => "nothing to repair",
        Verdict::Unfinished => "continues an unfinished repair or backfill",
        Verdict::NewSlot(why) => why,
    }
}

fn of_verdict(pipeline: &str, verdict: &Verdict) -> String {
    format!("{pipeline}: {}", why(verdict))
}

/// The text of a dry run.
fn of_dry_run(pipeline: &str, verdict: &Verdict, found: &Preview) -> String {
    format!("{}\nnothing was changed (--dry-run)", of_begin(pipeline, verdict, found))
}

/// The text before a repair: the reason, what is published, and how the rows are selected.
fn of_begin(pipeline: &str, verdict: &Verdict, found: &Preview) -> String {
    let mut lines = vec![of_verdict(pipeline, verdict)];
    let survey = &found.survey;
    if *verdict == Verdict::Unfinished {
        lines.push(format!("  listed     {} rows still to be published", found.listed));
        lines.push(folded("  method     ", &found.method));
        return lines.join("\n");
    }
    if found.listed > 0 {
        lines.push(format!("  listed     {} rows of an earlier repair", found.listed));
    }
    let ids = survey.ids.as_ref();
    let ids = ids.map_or_else(String::new, |(first, last)| format!(", ids {first} to {last}"));
    lines.push(format!(
        "  publish    {} rows of {} aggregates{ids}, {} bytes as stored",
        survey.rows, survey.aggregates, survey.bytes
    ));
    lines.extend(uncertain(survey.uncertain));
    lines.extend(undecided(pipeline, survey.undecided, "will be"));
    lines.extend(missing(survey.missing));
    lines.extend(without_id(survey.without_id));
    if found.parked > 0 {
        let text = format!(
            "{} aggregates have parked events: those stay parked, and the rows of these aggregates wait behind them",
            found.parked
        );
        lines.push(folded("  parked     ", &text));
    }
    lines.push(folded("  method     ", &found.method));
    lines.push(folded(
        "  then       ",
        "create a new slot, publish these rows, then stream from the start of the slot",
    ));
    lines.join("\n")
}

fn uncertain(rows: u64) -> Option<String> {
    let text = format!(
        "{rows} of them were committed after the position of the cursor row, while the relay was still running: they \
         may be published twice"
    );
    (rows > 0).then(|| folded("  uncertain  ", &text))
}

/// `are`: "are" after the repair, "will be" before.
fn undecided(pipeline: &str, rows: u64, are: &str) -> Option<String> {
    let text = format!(
        "{rows} rows have the id of an event that was parked earlier, and may be that event: they {are} parked and not \
         published. To publish them: postrider parked retry -p {pipeline} --error id_used_before --all. To skip them: \
         postrider parked skip -p {pipeline} --error id_used_before --all"
    );
    (rows > 0).then(|| folded("  undecided  ", &text))
}

fn without_id(rows: u64) -> Option<String> {
    let text = format!(
        "{rows} rows have no id and are not published, because rows are listed by id. Delete them and insert them \
         again with an id, in one transaction: the stream publishes the new rows"
    );
    (rows > 0).then(|| folded("  no id      ", &text))
}

fn missing(ids: Option<u64>) -> Option<String> {
    let text = match ids {
        None => {
            "Ids are not numeric, so deleted-but-unpublished rows cannot be detected".to_owned()
        }
        Some(0) => return None,
        Some(ids) => format!(
            "{ids} ids have no row: they were rolled back or deleted, which cannot be distinguished; an event whose \
             row was deleted before it was published is lost"
        ),
    };
    Some(folded("  missing    ", &text))
}

/// Numbers of rows that a repair did not publish and that need a decision.
#[derive(Clone, Copy)]
struct Left {
    /// Rows without an id.
    no_id: u64,
    /// Rows that were parked because an event with their id was parked earlier.
    undecided: u64,
}

/// The text after a repair. `start`: the instruction that starts the pipeline.
fn of_row(pipeline: &str, row: &RepairRow, left: Left, start: &str) -> String {
    let mut lines = vec![match row.state {
        RepairState::Done => format!("{pipeline} is repaired; {start}"),
        RepairState::Making | RepairState::Publishing => {
            format!("{pipeline} is not repaired yet; run postrider repair again, or postrider run")
        }
    }];
    lines.push(format!(
        "  published  {} of {} rows; rows behind a parked event of their aggregate were parked and count too",
        row.rows_published, row.rows_total
    ));
    lines.extend(uncertain(row.rows_uncertain));
    lines.extend(undecided(pipeline, left.undecided, "are"));
    if row.rows_gone > 0 {
        let text = format!(
            "{} rows were deleted after they were listed and before they were published: their events are lost",
            row.rows_gone
        );
        lines.push(folded("  deleted    ", &text));
    }
    lines.extend(missing(row.ids_missing));
    lines.extend(without_id(left.no_id));
    lines.push(folded("  method     ", &row.method));
    if let Some(at) = row.slot_created_lsn {
        lines.push(format!("  slot       {:?} begins at {at}", row.slot));
    }
    lines.join("\n")
}

fn json_of(pipeline: &str, row: &RepairRow, left: Left) -> Value {
    json!({
        "pipeline": pipeline,
        "kind": row.kind.word(),
        "state": row.state.word(),
        "rows": row.rows_total,
        "published": row.rows_published,
        "uncertain": row.rows_uncertain,
        "gone": row.rows_gone,
        "ids_missing": row.ids_missing,
        "without_id": left.no_id,
        "undecided": left.undecided,
        "method": row.method,
        "slot": row.slot,
        "slot_created_lsn": row.slot_created_lsn.map(|at| at.to_string()),
    })
}

fn json_of_dry_run(pipeline: &str, verdict: &Verdict, found: &Preview) -> Value {
    let survey = &found.survey;
    json!({
        "pipeline": pipeline,
        "state": "dry_run",
        "reason": why(verdict),
        "listed": found.listed,
        "rows": survey.rows,
        "aggregates": survey.aggregates,
        "bytes": survey.bytes,
        "uncertain": survey.uncertain,
        "undecided": survey.undecided,
        "ids_missing": survey.missing,
        "without_id": survey.without_id,
        "first_id": survey.ids.as_ref().map(|(first, _)| first),
        "last_id": survey.ids.as_ref().map(|(_, last)| last),
        "parked_aggregates": found.parked,
        "method": found.method,
    })
}
