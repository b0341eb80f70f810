//! `postrider retain`: one pass of retention, or what a pass would remove and what keeps the rest.

use super::bookmark::{session, size};
use super::error::{CliError, Exit, printable};
use super::{Output, folded};
use crate::config::Config;
use crate::error::Chain;
use crate::health::grouped;
use crate::pipeline::PipelineSpec;
use crate::postgres::control::Control;
use crate::postgres::retention::{
    Guard, Hold, PartitionState, PartitionedRoot, PassEvent, PassReport, Ready, RetentionAction,
    RetentionRule, RetentionTable, Survey, limit, pass, survey,
};
use crate::postgres::{SourceError, SqlState, error_policy};
use serde_json::{Value, json};

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider retain";

/// `postrider retain`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Does once what postrider run does every retention.interval, also while postrider run is running. \
                  Removes nothing that is not published, or that a repair, a replay, a bookmark or a consumer group \
                  needs. Exits 0 if a pass was done; 1 if something blocks the removal of all rows, or has failed."
)]
pub struct RetainArgs {
    /// Print what would be removed, what keeps the rest, and who; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON, one object per pipeline
    #[arg(long)]
    pub json: bool,
}

pub(super) async fn run(config: &Config, args: &RetainArgs) -> Result<Exit, CliError> {
    let mut exit = Exit::Done;
    let mut any = false;
    for spec in &config.specs {
        let Some(rule) = &spec.maintenance.retention else { continue };
        any = true;
        let control = session(spec, APPLICATION_NAME).await?;
        let ended = if args.dry_run {
            dry_run(spec, rule, &control, args.json).await?
        } else {
            one_pass(spec, rule, &control, args.json).await?
        };
        if ended != Exit::Done {
            exit = ended;
        }
    }
    if !any {
        return Err(CliError::NoRetention { file: config.file.clone() });
    }
    Ok(exit)
}

async fn one_pass(
    spec: &PipelineSpec,
    rule: &RetentionRule,
    control: &Control,
    as_json: bool,
) -> Result<Exit, CliError> {
    let mut lines = Vec::new();
    let mut on = |event: PassEvent<'_>| lines.extend(line(event));
    let report = pass(control.client(), rule, &mut on).await;
    let hints = hints(rule, control, &report.errors).await;
    let text = if as_json {
        of_pass_json(spec.name(), &report, &hints).to_string()
    } else {
        of_pass(spec.name(), &lines, &report, &hints)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    let is_well = report.errors.is_empty() && report.holds.is_empty();
    Ok(if is_well { Exit::Done } else { Exit::Problems })
}

/// What fixes each error; empty if that is not known.
async fn hints(rule: &RetentionRule, control: &Control, errors: &[SourceError]) -> Vec<String> {
    let denied = |error: &SourceError| error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE);
    let missing = if errors.iter().any(denied) {
        // The rights are shown to people only: if they can't be read, the general hint remains.
        rule.missing_rights(control.client()).await.unwrap_or_default()
    } else {
        Vec::new()
    };
    let hint = |error| rule.hint(error, &missing).or_else(|| error_policy::hint(error));
    errors.iter().map(|error| hint(error).unwrap_or_default()).collect()
}

/// What was done to a partition, as a line.
fn line(event: PassEvent<'_>) -> Option<String> {
    Some(match event {
        PassEvent::Rows(_) => return None,
        PassEvent::Created(table) => format!("created partition {table}"),
        PassEvent::Dropped(table, bytes) => format!("dropped partition {table} ({})", size(bytes)),
        PassEvent::Archived(table, bytes) => {
            format!("attached partition {table} to the archive ({})", size(bytes))
        }
        PassEvent::ArchiveDropped(table, bytes) => {
            format!("dropped partition {table} of the archive ({})", size(bytes))
        }
        PassEvent::Kept(table, ready) => format!("kept partition {table}: {}", why(ready)),
    })
}

/// Why a partition is kept.
fn why(ready: &Ready) -> String {
    match ready {
        Ready::Yes => "it is wanted elsewhere".to_owned(),
        Ready::Held(held, young) => {
            let mut reasons = Vec::new();
            if *young > 0 {
                reasons.push(format!("{} rows are not old enough", grouped(*young)));
            }
            for (guard, rows) in held.reasons().filter(|(_, rows)| *rows > 0) {
                reasons.push(format!("{} rows: {}", grouped(rows), guard.words()));
            }
            reasons.join("; ")
        }
        Ready::Blocked(holds) => {
            holds.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
    }
}

fn of_pass(pipeline: &str, lines: &[String], report: &PassReport, hints: &[String]) -> String {
    let mut text = vec![format!("{pipeline}: removed {} rows", grouped(report.rows))];
    if report.expired > 0 {
        text.push(format!(
            "  deleted {} expired rows of processed events",
            grouped(report.expired)
        ));
    }
    text.extend(lines.iter().map(|line| format!("  {line}")));
    for (guard, rows) in report.held.reasons().filter(|(_, rows)| *rows > 0) {
        text.push(format!("  kept {} rows that are old enough: {}", grouped(rows), guard.words()));
    }
    if report.busy > 0 {
        text.push(format!(
            "  left {} ranges of the table to the next pass: their rows are locked",
            grouped(report.busy)
        ));
    }
    text.extend(of_holds(&report.holds));
    for (error, hint) in report.errors.iter().zip(hints) {
        text.push(folded("  failed: ", &printable(&Chain(error).to_string())));
        if !hint.is_empty() {
            text.push(folded("  hint: ", hint));
        }
    }
    text.join("\n")
}

fn of_holds(holds: &[Hold]) -> Vec<String> {
    let mut text = Vec::new();
    for hold in holds {
        text.push(folded("  blocked: ", &printable(&hold.to_string())));
        if let Some(hint) = hold.hint() {
            text.push(folded("  hint: ", &printable(&hint)));
        }
    }
    text
}

fn of_pass_json(pipeline: &str, report: &PassReport, hints: &[String]) -> Value {
    let errors = report.errors.iter().zip(hints);
    let errors =
        errors.map(|(error, hint)| json!({ "message": Chain(error).to_string(), "hint": hint }));
    json!({
        "pipeline": pipeline,
        "removed_rows": report.rows,
        "partitions_created": report.created,
        "partitions_removed": report.taken,
        "archive_partitions_dropped": report.archive_dropped,
        "expired_rows": report.expired,
        "busy_ranges": report.busy,
        "held_rows": report.held.reasons().map(|(guard, rows)| (guard.name().to_owned(), json!(rows)))
            .collect::<serde_json::Map<_, _>>(),
        "blocked": holds_json(&report.holds),
        "errors": errors.collect::<Vec<_>>(),
    })
}

fn holds_json(holds: &[Hold]) -> Vec<Value> {
    let one = |hold: &Hold| json!({ "reason": hold.name(), "message": hold.to_string(), "hint": hold.hint() });
    holds.iter().map(one).collect()
}

/// A partition whose bound has passed.
struct DuePartition {
    name: String,
    bytes: u64,
    ready: Ready,
}

async fn dry_run(
    spec: &PipelineSpec,
    rule: &RetentionRule,
    control: &Control,
    as_json: bool,
) -> Result<Exit, CliError> {
    let client = control.client();
    let table = RetentionTable::read(client, rule.clone()).await?;
    let mut found = survey(client, &table).await?;
    let mut due = Vec::new();
    if rule.settings.action != RetentionAction::Delete {
        if let Err(hold) = table.archive(client).await? {
            found.holds.push(hold);
        }
        limit(client).await?;
        let keep = rule.settings.keep.unwrap_or_default();
        let zone = rule.table.zone.as_ref();
        match PartitionedRoot::read(client, table.name(), zone, keep).await? {
            Some(root) => {
                for child in &root.children {
                    if child.is_default {
                        found.holds.push(Hold::DefaultPartition(child.name.to_string()));
                    } else if child.is_past || child.state != PartitionState::Attached {
                        let ready = table.ready(client, &child.name).await?;
                        due.push(DuePartition {
                            name: child.name.to_string(),
                            bytes: child.bytes,
                            ready,
                        });
                    }
                }
            }
            None if rule.settings.action == RetentionAction::Drop => {
                found.holds.push(Hold::NotPartitioned);
            }
            None => {}
        }
    }
    let text = if as_json {
        of_survey_json(spec.name(), &found, &due).to_string()
    } else {
        of_survey(spec.name(), rule, &found, &due)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(if found.holds.is_empty() { Exit::Done } else { Exit::Problems })
}

fn of_survey(pipeline: &str, rule: &RetentionRule, found: &Survey, due: &[DuePartition]) -> String {
    let (whole, rows) = (grouped(found.rows), grouped(found.removable()));
    let name = &rule.table.table;
    let what = match rule.settings.action {
        RetentionAction::Delete => "would be deleted",
        RetentionAction::Archive => "may be archived",
        RetentionAction::Drop => "may be dropped with their partitions",
    };
    let mut text = vec![format!("{pipeline}: {rows} of {whole} rows of {name} {what}")];
    for partition in due {
        let DuePartition { name, bytes, ready } = partition;
        text.push(match ready {
            Ready::Yes => format!("  partition {name} ({}) would be removed", size(*bytes)),
            Ready::Held(..) | Ready::Blocked(_) => {
                folded(&format!("  partition {name} is kept: "), &why(ready))
            }
        });
    }
    if !found.holds.is_empty() {
        let allowed = grouped(found.allowed);
        text.push(format!("  {allowed} rows {what} if nothing blocked it"));
    }
    let young = found.held.of(Guard::Age);
    if young > 0 {
        let note = if found.without_time > 0 {
            format!(" ({} have no time)", grouped(found.without_time))
        } else {
            String::new()
        };
        text.push(format!("  kept {} rows: not older than retention.keep{note}", grouped(young)));
    }
    for (guard, rows) in found.held.reasons().filter(|(_, rows)| *rows > 0) {
        text.push(format!("  kept {} rows: {}", grouped(rows), guard.words()));
    }
    if let Some(bookmark) = &found.bookmark {
        text.push(format!("  the oldest bookmark is {}", printable(bookmark)));
    }
    if !found.parked.is_empty() {
        text.push(format!("  parked: {}", printable(&found.parked.join(", "))));
    }
    text.extend(of_holds(&found.holds));
    text.join("\n")
}

fn of_survey_json(pipeline: &str, found: &Survey, due: &[DuePartition]) -> Value {
    let partitions = due.iter().map(|partition| {
        json!({
            "name": partition.name,
            "bytes": partition.bytes,
            "removable": partition.ready == Ready::Yes,
            "why": (partition.ready != Ready::Yes).then(|| why(&partition.ready)),
        })
    });
    json!({
        "pipeline": pipeline,
        "rows": found.rows,
        "removable_rows": found.removable(),
        "removable_rows_if_released": found.allowed,
        "young_rows": found.held.of(Guard::Age),
        "rows_without_time": found.without_time,
        "held_rows": found.held.reasons().map(|(guard, rows)| (guard.name().to_owned(), json!(rows)))
            .collect::<serde_json::Map<_, _>>(),
        "resolved_below": found.below,
        "oldest_bookmark": found.bookmark,
        "parked": found.parked,
        "partitions": partitions.collect::<Vec<_>>(),
        "blocked": holds_json(&found.holds),
    })
}
