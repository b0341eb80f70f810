//! `postrider setup`: tells what is missing in the database and makes it, or prints the SQL; `--undo` the other way.

mod backfill;
mod layout_sql;
mod undo;
mod words;

pub use backfill::Backfill;
pub(super) use words::folded;

use super::args::SetupArgs;
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::{Config, Env, PipelineConfig};
use crate::driver::{Mode, PipelineSpec};
use crate::postgres::Conninfo;
use crate::postgres::control::Control;
use crate::postgres::setup::{self, Options, Progress};
use crate::postgres::{server, table};
use std::collections::BTreeSet;

/// What the server knows the sessions by.
const APPLICATION_NAME: &str = "postrider setup";

pub(super) async fn run(config: &Config, args: &SetupArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let login = args.url.as_deref().map(|url| Conninfo::parse(url, env)).transpose()?;
    for (pipeline, spec) in config.pipelines.iter().zip(&config.specs) {
        if args.create_table {
            can_create_table(pipeline)?;
        }
        one(spec, args, login.as_ref()).await?;
    }
    Ok(Exit::Done)
}

async fn one(
    spec: &PipelineSpec,
    args: &SetupArgs,
    login: Option<&Conninfo>,
) -> Result<(), CliError> {
    let conninfo = login.unwrap_or(&spec.conninfo);
    let control = Control::connect(conninfo, APPLICATION_NAME).await?;
    let columns = spec.columns();
    let ask = spec.ask(&None, &columns);
    if args.undo {
        return undo::one(spec.name(), &control, &ask, args).await;
    }
    if let Some(name) = &spec.names.table {
        let table = table::read(control.client(), name).await?;
        spec.fit(table.as_ref()).map_err(setup::SetupError::from)?;
    }
    let encoding = server::read(control.client()).await?.encoding;
    spec.messages_encoding(&encoding).map_err(setup::SetupError::from)?;
    let selection = backfill::wanted(args.backfill);
    if selection.is_some() {
        backfill::check(spec, &control, &ask).await?;
    }
    let sql = args.create_table.then_some(spec.names.table.as_ref()).flatten();
    let sql = sql.map(|table| layout_sql::for_table(spec.outbox.layout, &table.name));
    // A DBA who reads the SQL runs it as somebody else: then the relay's role needs its rights.
    let other = args.print_sql || conninfo.user() != spec.conninfo.user();
    let role = other.then(|| spec.conninfo.user());
    let absent = match role {
        Some(role) if !setup::role_exists(&control, role).await? => Some(role),
        Some(_) | None => None,
    };
    let mut options = Options {
        create_table: sql.as_deref(),
        role,
        role_missing: absent.is_some(),
        notify: args.notify,
        polls: spec.mode == Mode::Poll,
        backfill: selection.is_some(),
        marks: spec.marks(),
    };
    let mut out = Output::stdout();
    if args.print_sql {
        // Whoever reads the SQL can make the role first.
        options.role_missing = false;
        let facts = control.facts(&ask).await?;
        let plan = setup::plan(&facts, &options).map_err(setup::SetupError::from)?;
        let first = absent.map_or_else(String::new, |role| {
            format!(
                "-- First, since the role does not exist: {}\n",
                setup::role_sql(role, options.polls)
            )
        });
        let text = format!("-- Pipeline {}\n{first}{plan}", spec.name());
        return out.line(text.trim_end()).map_err(CliError::Output);
    }
    let plan =
        setup::plan(&control.facts(&ask).await?, &options).map_err(setup::SetupError::from)?;
    out.line(&words::of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    let watch = Control::connect(conninfo, APPLICATION_NAME).await?;
    let done = setup::apply(&control, &watch, &ask, &options, &mut tell(spec.name())).await?;
    let mut lines = Vec::new();
    lines.extend(done.steps.iter().map(|step| format!("done           {}", step.title)));
    lines.extend(done.adopted.iter().map(|object| format!("there already  {object}")));
    if let Some(selection) = selection {
        lines.extend(backfill::make(spec, conninfo, &control, &ask, selection).await?);
    }
    lines.push(format!("{} is set up; start it with: postrider run", spec.name()));
    out.line(&lines.join("\n")).map_err(CliError::Output)
}

/// Logs the steps, and each waiting for a transaction once.
fn tell(pipeline: &str) -> impl FnMut(Progress<'_>) + Send {
    let mut told = BTreeSet::new();
    move |progress| match progress {
        Progress::Begin(step) => tracing::debug!(pipeline, "{}", step.title),
        Progress::Done(step) => tracing::debug!(pipeline, "done: {}", step.title),
        Progress::Waiting(blockers) => {
            for blocker in blockers.iter().filter(|blocker| told.insert(blocker.xid.clone())) {
                tracing::warn!(
                    pipeline,
                    xid = blocker.xid,
                    pid = blocker.pid,
                    name = blocker.name,
                    state = blocker.state,
                    seconds = blocker.seconds.round(),
                    "the slot waits for a transaction that runs since before it was begun; it goes on by itself \
                     when that ends"
                );
            }
        }
    }
}

/// The layout's SQL makes the layout's columns, and no others.
fn can_create_table(pipeline: &PipelineConfig) -> Result<(), CliError> {
    let outbox = &pipeline.outbox;
    let plain = outbox.columns.is_empty() && outbox.extra.is_empty();
    match (&outbox.table, plain) {
        (None, _) => Err(CliError::CreateTable {
            pipeline: pipeline.name.clone(),
            why: "takes logical messages alone: there is no table to create",
        }),
        (Some(_), false) => Err(CliError::CreateTable {
            pipeline: pipeline.name.clone(),
            why: "has columns of its own in outbox.columns or outbox.extra: create its table by hand",
        }),
        (Some(_), true) => Ok(()),
    }
}
