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
use super::status::ask::how_to_start;
use crate::config::{Config, Env, PipelineConfig};
use crate::driver::{Mode, PipelineSpec};
use crate::finding::{Finding, Severity};
use crate::postgres::Conninfo;
use crate::postgres::control::{Ask, Control};
use crate::postgres::ownership::Acting;
use crate::postgres::repair::Selection;
use crate::postgres::schema::SchemaState;
use crate::postgres::setup::{
    self, Call, Options, Progress, ServerKind, SetupError, SetupPlan, StepKind,
};
use crate::postgres::{server, table};
use crate::sink::{self, SinkSpec};
use clap::ValueEnum as _;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// What the server knows the sessions by.
const APPLICATION_NAME: &str = "postrider setup";

pub(super) async fn run(config: &Config, args: &SetupArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let login = args.url.as_deref().map(|url| Conninfo::parse(url, env)).transpose()?;
    for (pipeline, spec) in config.pipelines.iter().zip(&config.specs) {
        if args.create_table {
            can_create_table(pipeline)?;
        }
        one(spec, config.admin.listen, args, login.as_ref()).await?;
    }
    Ok(Exit::Done)
}

async fn one(
    spec: &PipelineSpec,
    listen: Option<SocketAddr>,
    args: &SetupArgs,
    login: Option<&Conninfo>,
) -> Result<(), CliError> {
    let conninfo = login.unwrap_or(&spec.conninfo);
    let control = Control::connect(conninfo, APPLICATION_NAME).await?;
    let columns = spec.columns();
    let ask = ask(spec, conninfo, args, &columns);
    if args.undo {
        return undo::one(spec.name(), &control, &ask, args).await;
    }
    let call = Call { command: command(spec.name(), args), login: Some(conninfo.clone()) };
    if !args.print_sql {
        own(spec, &control, &ask, &call).await?;
    }
    if let Some(name) = &spec.names.table {
        let table = table::read(control.client(), name).await?;
        spec.fit(table.as_ref()).map_err(SetupError::from)?;
    }
    let encoding = server::read(control.client()).await?.encoding;
    spec.messages_encoding(&encoding).map_err(SetupError::from)?;
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
    let held = match role {
        Some(role) => {
            let table = spec.names.table.as_ref();
            Some(setup::read_rights(&control, role, table, spec.marks()).await?)
        }
        None => None,
    };
    let mut options = Options {
        create_table: sql.as_deref(),
        role,
        role_missing: absent.is_some(),
        ownership_alone: false,
        notify: args.notify,
        polls: spec.mode == Mode::Poll,
        backfill: selection.is_some(),
        marks: spec.marks(),
        call: Some(&call),
        rights: held.as_ref(),
    };
    if args.print_sql {
        // Whoever reads the SQL can make the role first.
        options.role_missing = false;
        let plan = setup::plan(&control.facts(&ask).await?, &options);
        let plan = plan.map_err(SetupError::from)?;
        let left = backfill::left_out(spec, &control, &plan).await?;
        let text = printed(spec.name(), &plan, absent, &options, left);
        return Output::stdout().line(text.trim_end()).map_err(CliError::Output);
    }
    make(spec, listen, args, conninfo, (&control, options, selection)).await
}

/// What is asked of the catalog, and with whose rights.
fn ask<'a>(
    spec: &'a PipelineSpec,
    conninfo: &Conninfo,
    args: &SetupArgs,
    columns: &'a [String],
) -> Ask<'a> {
    let acting = match (conninfo.user() == spec.conninfo.user(), args.print_sql) {
        (true, false) => Acting::OwnLogin,
        (true, true) => Acting::Printing,
        (false, _) => Acting::Administrator,
    };
    Ask { acting, ..spec.ask(&None, columns) }
}

/// Takes schema `postrider` from whoever could run code with this login's rights, where that is so. Before all else:
/// nothing of it is read until then.
async fn own(
    spec: &PipelineSpec,
    control: &Control,
    ask: &Ask<'_>,
    call: &Call,
) -> Result<(), CliError> {
    if control.facts(ask).await?.schema != SchemaState::Untrusted {
        return Ok(());
    }
    let role = Some(spec.conninfo.user()).filter(|_| ask.acting == Acting::Administrator);
    let role_missing = match role {
        Some(role) => !setup::role_exists(control, role).await?,
        None => false,
    };
    let options = Options {
        role,
        role_missing,
        ownership_alone: true,
        polls: spec.mode == Mode::Poll,
        call: Some(call),
        ..Options::default()
    };
    let plan = setup::plan(&control.facts(ask).await?, &options).map_err(SetupError::from)?;
    let mut out = Output::stdout();
    out.line(&words::of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    // It waits for no transaction, so there is nothing to watch.
    let done = setup::apply(control, control, ask, &options, &mut tell(spec.name())).await;
    let text = match &done {
        Ok(done) => words::of_done(done),
        Err(SetupError::Refused(partial)) => words::of_partial(partial),
        Err(_) => return done.map(drop).map_err(CliError::from),
    };
    out.line(&text).map_err(CliError::Output)?;
    done.map(drop).map_err(CliError::from)
}

/// The command line without `--url`.
fn command(pipeline: &str, args: &SetupArgs) -> String {
    let mut line = format!("postrider setup -p {pipeline}");
    for (given, option) in [(args.create_table, " --create-table"), (args.notify, " --notify")] {
        if given {
            line.push_str(option);
        }
    }
    if let Some(which) = args.backfill.and_then(|which| which.to_possible_value()) {
        line.push_str(" --backfill ");
        line.push_str(which.get_name());
    }
    line
}

/// The plan as SQL, with what is to be known before it.
fn printed(
    pipeline: &str,
    plan: &SetupPlan,
    absent: Option<&str>,
    options: &Options<'_>,
    left: Option<String>,
) -> String {
    let kind = options.rights.map_or_else(ServerKind::default, |rights| rights.kind);
    let first = absent.map_or_else(String::new, |role| {
        let sql = setup::role_sql(role, options.polls, kind);
        format!("-- First, since the role does not exist: {sql}\n")
    });
    let left = left.map_or_else(String::new, |rows| {
        format!(
            "-- Not streamed, since they are there before the slot: {rows}.\n-- postrider setup --backfill makes the \
             slot with a list of them.\n"
        )
    });
    format!("-- Pipeline {pipeline}\n{first}{left}{plan}")
}

/// Makes what is missing, and says what was done.
async fn make(
    spec: &PipelineSpec,
    listen: Option<SocketAddr>,
    args: &SetupArgs,
    conninfo: &Conninfo,
    (control, mut options, mut selection): (&Control, Options<'_>, Option<Selection>),
) -> Result<(), CliError> {
    let columns = spec.columns();
    let ask = ask(spec, conninfo, args, &columns);
    let mut out = Output::stdout();
    let facts = control.facts(&ask).await?;
    let mut plan = setup::plan(&facts, &options).map_err(SetupError::from)?;
    let mut left = match args.backfill {
        None => backfill::left_out(spec, control, &plan).await?,
        Some(_) => None,
    };
    // The plan first: the question is about a step of it.
    if left.is_some() {
        out.line(&words::of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    }
    let is_shown = left.is_some();
    if let Some(which) = left.as_deref().map(backfill::asked).transpose()?.flatten() {
        (selection, left) = (backfill::wanted(Some(which)), None);
        options.backfill = selection.is_some();
        plan = setup::plan(&facts, &options).map_err(SetupError::from)?;
    }
    let topics = known_topics(spec);
    if !is_shown {
        out.line(&words::of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    }
    let watch = Control::connect(conninfo, APPLICATION_NAME).await?;
    let done = setup::apply(control, &watch, &ask, &options, &mut tell(spec.name())).await;
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            if let SetupError::Refused(partial) = &error {
                out.line(&words::of_partial(partial)).map_err(CliError::Output)?;
            }
            return Err(error.into());
        }
    };
    let mut lines = Vec::new();
    lines.extend(Some(words::of_done(&done)).filter(|text| !text.is_empty()));
    if let Some(selection) = selection {
        let made = backfill::make(spec, conninfo, control, &ask, selection).await;
        if made.is_err() {
            out.line(&std::mem::take(&mut lines).join("\n")).map_err(CliError::Output)?;
        }
        let other = options.role.is_some();
        lines.extend(made.map_err(|error| backfill::denied(error, spec.name(), selection, other))?);
    }
    lines.extend(left.map(|rows| backfill::notice(spec.name(), &rows)));
    lines.extend(make_topics(spec, topics).await);
    let created = done.steps.iter().any(|step| step.kind == StepKind::Table);
    if let Some(table) = spec.names.table.as_ref().filter(|_| created) {
        lines.push(
            "The application's role needs the right to insert; APPLICATION is its name:".to_owned(),
        );
        let grants = setup::insert_grants(control, table).await?;
        lines.extend(grants.into_iter().map(|sql| format!("sql  {sql}")));
    }
    let start = how_to_start(listen, spec).await;
    lines.push(format!("{} is set up; {start}", spec.name()));
    out.line(&lines.join("\n")).map_err(CliError::Output)
}

/// The topics that `sink.create_topics` makes and that are known before the first event.
fn known_topics(spec: &PipelineSpec) -> Vec<String> {
    match &spec.sink {
        SinkSpec::Kafka(kafka) => {
            kafka.create_topics.as_ref().map_or_else(Vec::new, |create| create.known.clone())
        }
        SinkSpec::Stdout | SinkSpec::Discard => Vec::new(),
    }
}

/// Makes them, in so far as they do not exist; a line for each. The pipeline is set up without them too: the running
/// process tries again.
async fn make_topics(spec: &PipelineSpec, topics: Vec<String>) -> Vec<String> {
    if topics.is_empty() {
        return Vec::new();
    }
    let sink = spec.sink.clone();
    let made = tokio::task::spawn_blocking(move || sink::create_topics(&sink, &topics)).await;
    // It does not panic, and nobody aborts it.
    let line = |finding: Finding| match finding.severity {
        Severity::Ok => format!("done           {}", finding.what),
        Severity::Info | Severity::Warning | Severity::Error => {
            format!("not done       {}; {}", finding.what, finding.why)
        }
    };
    made.unwrap_or_default().into_iter().map(line).collect()
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
                    "creating the slot waits for a transaction that was already running; it continues automatically \
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
