//! `postrider partition`: turns a plain outbox into a partitioned one while applications write to it.
//!
//! The command prints the steps and what changes for applications, then carries the steps out one by one. A step that
//! was done by an earlier run is not repeated, and each one before the exchange can be undone with `--undo`.

use super::bookmark::the_one;
use super::dialog::agreed;
use super::error::{CliError, Exit};
use super::{Output, folded};
use crate::config::Config;
use crate::config::Env;
use crate::pipeline::PipelineSpec;
use crate::postgres::control::Control;
use crate::postgres::retention::{
    ConversionPlan, ConversionRequest, ConversionStep, Width, plan_conversion,
};
use crate::postgres::{Conninfo, SourceError, SqlState, repair};
use std::time::Duration;
use tokio_postgres::Client;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider partition";

/// A step that needs the lock of the table tries so often, and waits so long in between: writers queue behind each
/// attempt for half a second at most.
const ATTEMPTS: u32 = 120;
const PAUSE: Duration = Duration::from_millis(500);

/// `postrider partition`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The table becomes the first partition of a new table with its name; no row is copied. Stop postrider \
                  run of the pipeline before: its events wait in the WAL. Applications may write all the time. \
                  Afterwards set retention.partitions and retention.action."
)]
pub struct PartitionArgs {
    /// How wide partitions are: hour, day, week, month or year of the time column, or a number of ids
    #[arg(long, value_name = "WIDTH", value_parser = width)]
    pub by: Width,
    /// Only print the steps
    #[arg(long)]
    pub print: bool,
    /// Undo the steps of an earlier run that has not exchanged the tables
    #[arg(long, conflicts_with = "print")]
    pub undo: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    /// Log in with this URL instead of source.url: the owner of the table, or an administrator
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

fn width(text: &str) -> Result<Width, String> {
    let expected = "expected hour, day, week, month, year, or a number such as 1000000";
    Width::parse(text).ok_or_else(|| expected.to_owned())
}

pub(super) async fn run(
    config: &Config,
    args: &PartitionArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let Some(table) = &spec.poll.table else {
        let hint = if spec.names.captures() {
            "captured tables are the application's data: partition them as its migrations do"
        } else {
            "logical messages leave no rows"
        };
        return Err(CliError::NotConverted {
            why: format!("pipeline {} has no outbox table", spec.name()),
            hint: hint.to_owned(),
        });
    };
    let request = ConversionRequest {
        table: table.table.clone(),
        id: table.id.clone(),
        time: table.time.clone(),
        width: args.by,
    };
    let login = args.url.as_deref().map(|url| Conninfo::parse(url, env)).transpose()?;
    let control =
        Control::connect(login.as_ref().unwrap_or(&spec.conninfo), APPLICATION_NAME).await?;
    let plan = plan_conversion(control.client(), &request).await?;
    let plan =
        plan.map_err(|refused| CliError::NotConverted { why: refused.why, hint: refused.hint })?;
    if args.undo {
        return undo(control.client(), &plan).await;
    }
    let printed = of_plan(spec, &plan);
    if args.print {
        Output::stdout().line(&printed).map_err(CliError::Output)?;
        return Ok(Exit::Done);
    }
    let question = "Carry these steps out?";
    if !agreed(&printed, question, args.yes, || CliError::PartitionNeedsYes)? {
        return Ok(Exit::Done);
    }
    for step in plan.steps.iter().filter(|step| !step.is_done) {
        if step.undo.is_none() {
            refuse_beside_a_relay(spec, control.client()).await?;
        }
        carry_out(control.client(), step).await?;
        Output::stdout().line(&format!("done: {}", step.what)).map_err(CliError::Output)?;
    }
    let text = format!(
        "{} is partitioned. Start postrider run, and set [pipelines.{}.retention] partitions = {{ by = \"{}\" }}",
        request.table,
        spec.name(),
        args.by
    );
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

fn of_plan(spec: &PipelineSpec, plan: &ConversionPlan) -> String {
    let mut text = vec![format!("-- pipeline {}: what changes for applications", spec.name())];
    text.extend(plan.changes.iter().map(|change| folded("-- * ", change)));
    for (step, number) in plan.steps.iter().zip(1..) {
        let done = if step.is_done { " (done)" } else { "" };
        text.push(format!("\n-- step {number}{done}: {}", step.what));
        match &step.undo {
            Some(undo) => {
                text.push(step.sql.clone());
                text.push(format!("-- undo: {undo}"));
            }
            None => {
                text.push(format!(
                    "BEGIN;\nSET LOCAL lock_timeout = '500ms';\n{}COMMIT;",
                    step.sql
                ));
            }
        }
    }
    text.join("\n")
}

/// A relay that streams would see another table, and halt.
async fn refuse_beside_a_relay(spec: &PipelineSpec, client: &Client) -> Result<(), CliError> {
    let table = spec.names.table.as_ref().map(ToString::to_string);
    let failed = |e| SourceError::control("read which pipelines read the outbox", e);
    let sql = "SELECT c.pipeline FROM postrider.cursor AS c \
               WHERE c.pipeline = $2 OR c.of_table_oid = pg_catalog.to_regclass($1)::pg_catalog.oid";
    for row in client.query(sql, &[&table, &spec.name()]).await.map_err(failed)? {
        let pipeline: String = row.try_get(0).map_err(failed)?;
        let relays = repair::relays(client, &format!("postrider {pipeline}")).await?;
        if let Some(pid) = relays.first() {
            return Err(CliError::NotConverted {
                why: format!("postrider run of pipeline {pipeline} is running (backend {pid})"),
                hint: "stop it, and run this command again: it continues with the exchange; events wait in the WAL"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

async fn carry_out(client: &Client, step: &ConversionStep) -> Result<(), CliError> {
    let doing = || format!("carry out a step: {}", step.what);
    let is_exchange = step.undo.is_none();
    let limits = if is_exchange {
        "SET statement_timeout = '30s'; SET lock_timeout = '500ms'"
    } else if step.sql.contains("CONCURRENTLY") {
        // It waits for transactions, and nobody waits for it.
        "SET statement_timeout = 0; SET lock_timeout = 0"
    } else {
        "SET statement_timeout = 0; SET lock_timeout = '500ms'"
    };
    let failed = |e| SourceError::control(doing(), e);
    client.batch_execute(limits).await.map_err(failed)?;
    let sql = if is_exchange { format!("BEGIN;\n{}COMMIT", step.sql) } else { step.sql.clone() };
    let mut attempt = 1;
    loop {
        let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
        if is_exchange {
            drop(client.batch_execute("ROLLBACK").await);
        }
        let error = failed(error);
        if error.sqlstate() != Some(SqlState::LOCK_NOT_AVAILABLE) || attempt >= ATTEMPTS {
            return Err(error.into());
        }
        attempt += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn undo(client: &Client, plan: &ConversionPlan) -> Result<Exit, CliError> {
    let mut undone: Vec<&str> = Vec::new();
    for step in plan.steps.iter().rev().filter(|step| step.is_done) {
        let Some(sql) = &step.undo else { continue };
        if undone.contains(&sql.as_str()) {
            continue;
        }
        let failed = |e| SourceError::control(format!("undo a step: {}", step.what), e);
        client.batch_execute(sql).await.map_err(failed)?;
        undone.push(sql);
        Output::stdout().line(&format!("undone: {sql}")).map_err(CliError::Output)?;
    }
    Ok(Exit::Done)
}
