//! `postrider adopt`: a pipeline continues at its position with settings that were changed since it was reached.
//!
//! Prints what that means before it stores the new settings. Refused while the pipeline runs.

use super::Output;
use super::bookmark::the_one;
use super::error::{CliError, Exit};
use super::status::how_to_start;
use crate::config::Config;
use crate::error::{Halt, HaltReason};
use crate::pipeline::{Change, PipelineSpec, Settings, compare_settings, polls_now};
use crate::postgres::control::Control;
use crate::postgres::pipeline_lock::{PipelineLock, lock};
use crate::postgres::store::cursor;
use crate::postgres::{repair, start};
use crate::sink::Purpose;
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider adopt";

/// `postrider adopt`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "For a pipeline that halts with PR025: its mode, destination, table or layout was changed, and its \
                  position belongs to the old settings. The command publishes nothing and marks no rows; it prints \
                  which events the new destination lacks, or which will be repeated. Refused while a process publishes \
                  for the pipeline. Afterwards, restart the process that has halted."
)]
pub struct AdoptArgs {
    /// Print what the change means; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) async fn run(config: &Config, args: &AdoptArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let refused = |halt| CliError::Adopt { pipeline: spec.name().to_owned(), halt: Box::new(halt) };
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let client = control.client();
    let columns = spec.columns();
    let facts = control.facts(&spec.ask(&None, &columns)).await?;
    if let Some(message) = start::check_polling(&facts).map_err(refused)? {
        return Err(refused(not_now(message, "run the command again later")));
    }
    // Before the lock: a process that streams would hold it.
    let polls = polls_now(spec, &facts, APPLICATION_NAME).await;
    let cluster = cluster(spec).await?;
    if cluster.is_none() && spec.common.sink.capabilities().clusters {
        let message = "no broker answers, so the cluster of sink.brokers cannot be identified";
        let hint = "postrider check shows what is wrong with the brokers; run the command again when they answer";
        return Err(refused(not_now(message.to_owned(), hint)));
    }
    if let PipelineLock::HeldBy { pid } = lock(client, spec.key()).await? {
        let by = pid.map_or_else(String::new, |pid| format!(": backend {pid}"));
        return Err(refused(repair::relay_running(&format!("it holds the pipeline's lock{by}"))));
    }
    let table_oid = facts.table.as_ref().map(|table| table.oid);
    let settings = Settings {
        spec,
        cluster: cluster.as_deref(),
        table_oid,
        repairs: false,
        polls,
        thorough: false,
    };
    let change = compare_settings(client, settings).await?;
    // Rows that are inserted from here on count as published once the position has passed them.
    if change.other_table && !polls {
        start::check_publication(&facts).map_err(refused)?;
    }
    if change.before.as_ref() == Some(&change.now)
        || cursor::read_settings(client, spec.key()).await?.is_none()
    {
        let text =
            format!("{}: nothing to adopt: the position belongs to these settings", spec.name());
        return print(args, &text, spec, "same", &change).map(|()| Exit::Done);
    }
    let mut text = words(spec, &change);
    if args.dry_run {
        text.push_str("\nnothing was changed (--dry-run)");
        return print(args, &text, spec, "differs", &change).map(|()| Exit::Done);
    }
    let epoch = cursor::take_over(client, spec.key()).await?;
    cursor::write_settings(client, spec.key(), epoch, &change.now, change.other_table).await?;
    text.push_str("\nadopted: the position now belongs to the present settings; ");
    text.push_str(&how_to_start(config.admin.listen, spec).await);
    print(args, &text, spec, "adopted", &change).map(|()| Exit::Done)
}

/// The id of the cluster whose brokers answer.
async fn cluster(spec: &PipelineSpec) -> Result<Option<String>, CliError> {
    let (sink, needs) = (Arc::clone(&spec.common.sink), spec.needs(Purpose::Live));
    // The task does not panic and is not aborted.
    Ok(tokio::task::spawn_blocking(move || sink.cluster(&needs)).await.unwrap_or_default())
}

fn not_now(message: String, hint: &str) -> Halt {
    Halt {
        reason: HaltReason::NotApplicable,
        message,
        meaning: "nothing was changed".to_owned(),
        hint: hint.to_owned(),
    }
}

/// What differs and what that means, without the remedies: this command is one of them.
fn words(spec: &PipelineSpec, change: &Change) -> String {
    let name = spec.name();
    let mut text = match &change.halt {
        Some(halt) => format!("{name}: {}\n  {}", halt.message, halt.meaning),
        None if change.notes.is_empty() => {
            format!("{name}: the settings differ; no event is lost or repeated")
        }
        None => format!("{name}: the settings differ"),
    };
    for note in &change.notes {
        // Writing to a String does not fail.
        write!(text, "\n  {}: {}", note.message, note.why).unwrap_or_default();
        if let Some(sql) = &note.sql {
            write!(text, "\n  {sql}").unwrap_or_default();
        }
    }
    text
}

fn print(
    args: &AdoptArgs,
    text: &str,
    spec: &PipelineSpec,
    state: &str,
    change: &Change,
) -> Result<(), CliError> {
    let mut out = Output::stdout();
    if !args.json {
        return out.line(text).map_err(CliError::Output);
    }
    let halt = change.halt.as_ref();
    let value = json!({
        "pipeline": spec.name(),
        "state": state,
        "differs": halt.map(|halt| &halt.message),
        "means": halt.map(|halt| &halt.meaning),
    });
    out.line(&value.to_string()).map_err(CliError::Output)
}
