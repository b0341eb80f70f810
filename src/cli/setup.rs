//! `postrider setup`: creates what is missing in the database, or prints the SQL; `--undo` drops it.

use super::args::SetupArgs;
use super::error::{CliError, Exit};
use super::status::how_to_start;
use super::{Output, folded};
use crate::config::{Config, Env, PipelineConfig};
use crate::error::{Halt, HaltReason};
use crate::finding::{Finding, Severity};
use crate::outbox::Layout;
use crate::pipeline::{Mode, PipelineSpec, repair_table};
use crate::postgres::control::{Control, FactsQuery};
use crate::postgres::poll::by_id::OutboxTable;
use crate::postgres::repair::{self, RepairKind, RepairProgress, Selection};
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::schema_owner::SessionRights;
use crate::postgres::setup::{
    self, Backfilled, Options, PartialSetup, RightsFacts, ServerKind, SetupCommand, SetupError,
    SetupPlan, SetupProgress, Step, StepKind, UndoPlan, check_backfill, undo,
};
use crate::postgres::{Conninfo, SqlState, catalog};
use crate::sink::Purpose;
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::net::SocketAddr;
use std::sync::Arc;

/// `application_name` of the sessions.
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
        return undo_one(spec, &control, &ask, args).await;
    }
    let call = SetupCommand { command: command(spec.name(), args), login: Some(conninfo.clone()) };
    if !args.print_sql {
        own(spec, &control, &ask, &call).await?;
    }
    if let Some(name) = &spec.names.table {
        let table = catalog::read_table(control.client(), name).await?;
        spec.fit(table.as_ref()).map_err(SetupError::from)?;
    }
    let encoding = catalog::read_server(control.client()).await?.encoding;
    spec.messages_encoding(&encoding).map_err(SetupError::from)?;
    let selection = wanted(args.backfill);
    if selection.is_some() {
        check(spec, &control, &ask).await?;
    }
    let sql = args.create_table.then_some(spec.names.table.as_ref()).flatten();
    let sql = sql.map(|table| for_table(spec.common.outbox.layout, &table.name));
    // Printed SQL is run by a DBA, not by the relay's role, so it must grant that role its rights.
    let other = args.print_sql || conninfo.user() != spec.conninfo.user();
    let role = other.then(|| spec.conninfo.user());
    let absent = match role {
        Some(role) if !setup::role_exists(&control, role).await? => Some(role),
        Some(_) | None => None,
    };
    let held = match role {
        Some(role) => {
            let table = spec.names.table.as_ref();
            let retention = spec.maintenance.retention.as_ref();
            Some(setup::read_rights(&control, role, table, spec.marks(), retention).await?)
        }
        None => None,
    };
    let mut options = Options {
        create_table: sql.as_deref(),
        role,
        role_missing: absent.is_some(),
        ownership_alone: false,
        notify: args.notify,
        polls: spec.common.mode == Mode::Poll,
        backfill: selection.is_some(),
        marks: spec.marks(),
        call: Some(&call),
        rights: held.as_ref(),
        retention: spec.maintenance.retention.as_ref(),
    };
    if args.print_sql {
        // The DBA can create the role first: the text begins with its SQL.
        options.role_missing = false;
        let plan = setup::plan(&control.facts(&ask).await?, &options);
        let plan = plan.map_err(SetupError::from)?;
        let left = left_out(spec, &control, &plan).await?;
        let text = printed(spec, &plan, absent, &options, left);
        return Output::stdout().line(text.trim_end()).map_err(CliError::Output);
    }
    create(spec, listen, args, conninfo, (&control, options, selection)).await
}

/// The query of the catalog, with the rights of the login.
fn ask<'a>(
    spec: &'a PipelineSpec,
    conninfo: &Conninfo,
    args: &SetupArgs,
    columns: &'a [String],
) -> FactsQuery<'a> {
    let acting = match (conninfo.user() == spec.conninfo.user(), args.print_sql) {
        (true, false) => SessionRights::OwnLogin,
        (true, true) => SessionRights::Printing,
        (false, _) => SessionRights::Administrator,
    };
    FactsQuery { acting, ..spec.ask(&None, columns) }
}

/// Corrects the ownership of schema `postrider` if another role could run code with the rights of this login. Done
/// before anything else, because nothing in the schema may be read until then.
async fn own(
    spec: &PipelineSpec,
    control: &Control,
    ask: &FactsQuery<'_>,
    call: &SetupCommand,
) -> Result<(), CliError> {
    if control.facts(ask).await?.schema != SchemaState::Untrusted {
        return Ok(());
    }
    let role = Some(spec.conninfo.user()).filter(|_| ask.acting == SessionRights::Administrator);
    let role_missing = match role {
        Some(role) => !setup::role_exists(control, role).await?,
        None => false,
    };
    let options = Options {
        role,
        role_missing,
        ownership_alone: true,
        polls: spec.common.mode == Mode::Poll,
        call: Some(call),
        ..Options::default()
    };
    let plan = setup::plan(&control.facts(ask).await?, &options).map_err(SetupError::from)?;
    let mut out = Output::stdout();
    out.line(&of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    // These steps wait for no transaction, so a second session that watches the blockers is not needed.
    let done = setup::apply(control, control, ask, &options, &mut log_progress(spec.name())).await;
    let text = match &done {
        Ok(done) => of_done(done),
        Err(SetupError::Refused(partial)) => of_partial(partial),
        Err(_) => return done.map(drop).map_err(CliError::from),
    };
    out.line(&text).map_err(CliError::Output)?;
    done.map(drop).map_err(CliError::from)
}

/// The command line without `--url`.
fn command(pipeline: &str, args: &SetupArgs) -> String {
    let mut line = format!("postrider setup -p {pipeline}");
    for (given, option) in [
        (args.create_table, " --create-table"),
        (args.notify, " --notify"),
        (args.adopt_cursor, " --adopt-cursor"),
    ] {
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

/// The plan as SQL, preceded by comments on what must be known first.
fn printed(
    spec: &PipelineSpec,
    plan: &SetupPlan,
    absent: Option<&str>,
    options: &Options<'_>,
    left: Option<String>,
) -> String {
    let kind = options.rights.map_or_else(ServerKind::default, |rights| rights.kind);
    let first = absent.map_or_else(String::new, |role| {
        let sql = setup::role_sql(role, options.polls, kind);
        format!("-- The role does not exist; create it first: {sql}\n")
    });
    let left = left.map_or_else(String::new, |rows| {
        let way = if spec.names.in_transactions {
            "The sink publishes in transactions, which takes none of them: insert them again after setup."
        } else {
            "postrider setup --backfill creates the slot and lists these rows for publishing."
        };
        format!("-- Not streamed, because they were inserted before the slot: {rows}.\n-- {way}\n")
    });
    let mut refused = String::new();
    for right in options.rights.into_iter().flat_map(RightsFacts::not_granted) {
        // Writing to a String does not fail.
        writeln!(refused, "-- {}", not_granted(right)).unwrap_or_default();
    }
    format!("-- Pipeline {}\n{first}{left}{refused}{plan}", spec.name())
}

/// Creates what is missing and prints what was done.
async fn create(
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
        None => left_out(spec, control, &plan).await?,
        Some(_) => None,
    };
    // The plan is printed first, because the question is about one of its steps.
    if left.is_some() {
        out.line(&of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    }
    let is_shown = left.is_some();
    let asks = left.as_deref().filter(|_| !spec.names.in_transactions);
    if let Some(which) = asks.map(ask_backfill).transpose()?.flatten() {
        (selection, left) = (wanted(Some(which)), None);
        options.backfill = selection.is_some();
        plan = setup::plan(&facts, &options).map_err(SetupError::from)?;
    }
    let topics = known_topics(spec);
    if !is_shown {
        out.line(&of_plan(spec.name(), &plan)).map_err(CliError::Output)?;
    }
    let watch = Control::connect(conninfo, APPLICATION_NAME).await?;
    let done = setup::apply(control, &watch, &ask, &options, &mut log_progress(spec.name())).await;
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            if let SetupError::Refused(partial) = &error {
                out.line(&of_partial(partial)).map_err(CliError::Output)?;
            }
            return Err(error.into());
        }
    };
    let mut lines = Vec::new();
    lines.extend(Some(of_done(&done)).filter(|text| !text.is_empty()));
    if let Some(selection) = selection {
        let created = create_backfill(spec, conninfo, control, &ask, selection).await;
        if created.is_err() {
            out.line(&std::mem::take(&mut lines).join("\n")).map_err(CliError::Output)?;
        }
        let other = options.role.is_some();
        lines.extend(created.map_err(|error| denied(error, spec.name(), selection, other))?);
    }
    lines.extend(left.map(|rows| notice(spec, &rows)));
    lines.extend(options.rights.into_iter().flat_map(RightsFacts::not_granted).map(not_granted));
    lines.extend(create_topics(spec, topics).await);
    let prepared = prepare_sink(spec, args.adopt_cursor).await;
    lines.extend(prepared.iter().map(line_of));
    let created = done.steps.iter().any(|step| step.kind == StepKind::Table);
    if let Some(table) = spec.names.table.as_ref().filter(|_| created) {
        lines.push(
            "Grant the application's role (here APPLICATION) the right to insert events:"
                .to_owned(),
        );
        let grants = setup::insert_grants(control, table).await?;
        lines.extend(grants.into_iter().map(|sql| format!("sql  {sql}")));
    }
    let name = spec.name();
    if prepared.iter().any(|finding| finding.severity == Severity::Error) {
        out.line(&lines.join("\n")).map_err(CliError::Output)?;
        return Err(CliError::SinkNotPrepared { pipeline: name.to_owned() });
    }
    lines.push(format!("{name} is set up; {}", how_to_start(listen, spec).await));
    out.line(&lines.join("\n")).map_err(CliError::Output)
}

/// A right that setup does not grant.
fn not_granted((what, sql): (&str, &str)) -> String {
    format!(
        "not granted    {what}: it is a superuser, and the relay's role would be one too. To give the table another \
         owner: {sql}"
    )
}

/// The topics that `sink.create_topics` creates and whose names do not depend on an event.
fn known_topics(spec: &PipelineSpec) -> Vec<String> {
    if !spec.common.sink.creates() {
        return Vec::new();
    }
    let mut topics = spec.needs(Purpose::Live).destinations;
    for topic in spec.captured_topics() {
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    topics
}

/// Creates the topics that do not exist, and returns a line for each. A failure does not end `setup`, because the
/// running process creates them too.
async fn create_topics(spec: &PipelineSpec, topics: Vec<String>) -> Vec<String> {
    if topics.is_empty() {
        return Vec::new();
    }
    let (sink, needs) = (Arc::clone(&spec.common.sink), spec.needs(Purpose::Live));
    let created = tokio::task::spawn_blocking(move || sink.create(&needs, &topics)).await;
    // The task does not panic and is not aborted.
    created.unwrap_or_default().iter().map(line_of).collect()
}

/// Creates what the sink itself needs at the broker. The running process does not create it, so a failure fails
/// `setup`.
async fn prepare_sink(spec: &PipelineSpec, adopt_cursor: bool) -> Vec<Finding> {
    let (sink, needs) = (Arc::clone(&spec.common.sink), spec.needs(Purpose::Live));
    let prepared = tokio::task::spawn_blocking(move || sink.prepare(&needs, adopt_cursor)).await;
    // The task does not panic and is not aborted.
    prepared.unwrap_or_default()
}

fn line_of(finding: &Finding) -> String {
    match finding.severity {
        Severity::Ok => format!("done           {}", finding.what),
        Severity::Info | Severity::Warning | Severity::Error => {
            format!("not done       {}; {}", finding.what, finding.why)
        }
    }
}

/// Logs the steps, and each transaction that a step waits for once.
fn log_progress(pipeline: &str) -> impl FnMut(SetupProgress<'_>) + Send {
    let mut logged = BTreeSet::new();
    move |progress| match progress {
        SetupProgress::Begin(step) => tracing::debug!(pipeline, "{}", step.title),
        SetupProgress::Done(step) => tracing::debug!(pipeline, "done: {}", step.title),
        SetupProgress::Waiting(blockers) => {
            for blocker in blockers.iter().filter(|blocker| logged.insert(blocker.xid.clone())) {
                tracing::warn!(
                    pipeline,
                    xid = blocker.xid,
                    pid = blocker.pid,
                    name = blocker.name,
                    state = blocker.state,
                    seconds = blocker.seconds.round(),
                    "waiting for a transaction that was running before the slot; setup continues when it ends"
                );
            }
        }
    }
}

/// An error if the layout's SQL cannot create the table: it creates only the layout's own columns.
fn can_create_table(pipeline: &PipelineConfig) -> Result<(), CliError> {
    let outbox = &pipeline.outbox;
    let plain = outbox.columns.is_empty() && outbox.extra.is_empty();
    match (&outbox.table, plain) {
        (None, _) if outbox.capture.is_some() => Err(CliError::CreateTable {
            pipeline: pipeline.name.clone(),
            why: "captures tables: there is no outbox table to create",
        }),
        (None, _) => Err(CliError::CreateTable {
            pipeline: pipeline.name.clone(),
            why: "publishes only logical messages: there is no table to create",
        }),
        (Some(_), false) => Err(CliError::CreateTable {
            pipeline: pipeline.name.clone(),
            why: "maps columns in outbox.columns or outbox.extra: create its table with your own SQL",
        }),
        (Some(_), true) => Ok(()),
    }
}

/// `--backfill`: which existing rows are published before the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backfill {
    /// No existing row: only events committed after the slot was created are published
    None,
    /// Rows that their layout does not mark as published; every row if published rows are deleted
    Unpublished,
    /// Every existing row
    All,
}

impl Backfill {
    fn selection(self) -> Option<Selection> {
        match self {
            Self::None => None,
            Self::Unpublished => Some(Selection::Unmarked),
            Self::All => Some(Selection::All),
        }
    }
}

/// The rows to list; `None` for no rows.
fn wanted(backfill: Option<Backfill>) -> Option<Selection> {
    backfill.and_then(Backfill::selection)
}

/// The rows that are in the table before the first slot is created, and which are therefore not in the stream.
async fn left_out(
    spec: &PipelineSpec,
    control: &Control,
    plan: &SetupPlan,
) -> Result<Option<String>, CliError> {
    let makes = |kind| plan.steps.iter().any(|step| step.kind == kind);
    let Some(table) = spec.names.table.as_ref().filter(|_| makes(StepKind::Slot)) else {
        return Ok(None);
    };
    if makes(StepKind::Table) {
        return Ok(None);
    }
    Ok(match setup::rows(control, table).await.map_err(SetupError::from)? {
        Some(0) => None,
        Some(1) => Some(format!("1 row of {table}")),
        Some(rows) if rows > setup::ROWS_COUNTED_MAX => {
            Some(format!("more than {} rows of {table}", setup::ROWS_COUNTED_MAX))
        }
        Some(rows) => Some(format!("{rows} rows of {table}")),
        None => Some(format!("rows of {table}, if any (they could not be counted)")),
    })
}

/// Asks at the terminal which of these rows are published before the stream; `None` without a terminal.
fn ask_backfill(rows: &str) -> Result<Option<Backfill>, CliError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Ok(None);
    }
    let names: Vec<_> =
        Backfill::value_variants().iter().filter_map(ValueEnum::to_possible_value).collect();
    let names: Vec<&str> = names.iter().map(clap::builder::PossibleValue::get_name).collect();
    Output::stderr().line_or_ignore(&format!(
        "The table has {rows} from before the slot. Streaming does not publish them, and they can only be published \
         first if this is decided before the slot exists.\n  \
         none         publish none of them (the default)\n  \
         unpublished  publish rows that are not marked as published; every row if published rows are deleted\n  \
         all          publish every row"
    ));
    loop {
        Output::stderr().line_or_ignore(&format!(
            "Publish them before streaming starts? [{}]:",
            names.join(" / ")
        ));
        let mut answer = String::new();
        if input.lock().read_line(&mut answer).map_err(CliError::Input)? == 0 {
            return Err(CliError::Input(io::ErrorKind::UnexpectedEof.into()));
        }
        let answer = answer.trim();
        if answer.is_empty() {
            return Ok(Some(Backfill::None));
        }
        if let Ok(which) = Backfill::from_str(answer, true) {
            return Ok(Some(which));
        }
        Output::stderr().line_or_ignore(&format!(
            "{answer:?} is not an answer; type one of {}.",
            names.join(", ")
        ));
    }
}

/// The notice about rows that were left out.
fn notice(spec: &PipelineSpec, rows: &str) -> String {
    let pipeline = spec.name();
    if spec.names.in_transactions {
        return format!(
            "not streamed   {rows}, which were inserted before the slot. The sink publishes in transactions, which \
             takes no rows of before: insert them again if consumers need them (docs/operations/upgrades.md)"
        );
    }
    format!(
        "not streamed   {rows}, which were inserted before the slot. To publish them first, before postrider run has \
         published anything: postrider setup -p {pipeline} --undo --yes, then postrider setup -p {pipeline} --backfill \
         all (or unpublished), with the same --url"
    )
}

/// Checks, before anything is created, that a backfill is possible.
async fn check(
    spec: &PipelineSpec,
    control: &Control,
    ask: &FactsQuery<'_>,
) -> Result<(), CliError> {
    if spec.common.mode == Mode::Poll {
        return Err(SetupError::Halt(Box::new(polls())).into());
    }
    let version = schema::read(control.client(), ask.acting).await?;
    let row = if version == SchemaState::Version(schema::VERSION) {
        repair::read(control.client(), spec.key()).await?
    } else {
        None
    };
    let facts = control.facts(ask).await?;
    check_backfill(&facts, row.as_ref()).map_err(SetupError::from).map_err(CliError::from)
}

fn polls() -> Halt {
    Halt {
        reason: HaltReason::NotApplicable,
        message: "mode = \"poll\" has no slot, so --backfill does not apply".to_owned(),
        meaning: "nothing was changed; polling publishes every row without a mark".to_owned(),
        hint: "run setup without --backfill".to_owned(),
    }
}

/// Adds a hint to the error of an administrator who lacks the right to create a slot: the relay's role has that right
/// now.
fn denied(error: CliError, pipeline: &str, which: Selection, other: bool) -> CliError {
    if let CliError::Source(source) | CliError::Setup(SetupError::Source(source)) = error {
        if !other || source.sqlstate() != Some(SqlState::INSUFFICIENT_PRIVILEGE) {
            return CliError::Source(source);
        }
        let word = if which.by_marks() { "unpublished" } else { "all" };
        let hint = format!(
            "run setup as the relay's role, which can create the slot: postrider setup -p {pipeline} --backfill {word} \
             (without --url)"
        );
        return CliError::Setup(SetupError::Backfill { error: source, hint });
    }
    error
}

/// Creates the slot, lists the rows, and returns the lines to print.
async fn create_backfill(
    spec: &PipelineSpec,
    conninfo: &Conninfo,
    control: &Control,
    ask: &FactsQuery<'_>,
    selection: Selection,
) -> Result<Vec<String>, CliError> {
    let Some(table) = repair_table(spec, selection.by_marks()) else { return Ok(Vec::new()) };
    let listed_table = table.clone();
    let facts = control.facts(ask).await?;
    let request = repair::NewRepair {
        conninfo,
        application_name: APPLICATION_NAME,
        names: &spec.names,
        failover: spec.failover && facts.server.version >= 170_000,
        kind: RepairKind::Backfill,
        selection,
        known: None,
        known_at: None,
        before: None,
        drop_slot: false,
    };
    let pipeline = spec.name();
    let mut log = |event: RepairProgress<'_>| match event {
        RepairProgress::Waiting(blockers) => {
            let xids: Vec<&str> = blockers.iter().map(|blocker| blocker.xid.as_str()).collect();
            tracing::warn!(
                pipeline,
                xids = xids.join(","),
                "waiting for transactions that were running before the slot"
            );
        }
        RepairProgress::Listing(at) => {
            tracing::debug!(pipeline, %at, "created the slot; listing rows");
        }
    };
    match setup::backfill(control, &facts, table, request, &mut log).await? {
        Backfilled::Listed(row) => {
            let left = repair::left(control.client(), spec.key()).await?;
            let at = row.slot_created_lsn.map(|at| at.to_string()).unwrap_or_default();
            let table = OutboxTable::read(control.client(), listed_table).await?;
            let without_id = repair::without_id(control.client(), &table, &row).await?;
            let mut lines = vec![
                format!("done           create slot {:?} at {at}, with its snapshot", row.slot),
                format!(
                    "done           list {left} rows, which postrider run publishes before it streams"
                ),
                format!("method         {}", row.method),
            ];
            if without_id > 0 {
                lines.push(format!(
                    "not listed     {without_id} rows have no id, and rows are listed by id. Delete them and insert \
                     them again with an id, in one transaction: the stream publishes the new rows"
                ));
            }
            Ok(lines)
        }
        Backfilled::Locked { pid } => {
            let by = pid.map_or_else(String::new, |pid| format!(": backend {pid}"));
            let halt = repair::relay_running(&format!("it holds the pipeline's lock{by}"));
            Err(SetupError::Halt(Box::new(halt)).into())
        }
    }
}

/// The SQL that creates `layout`'s table under the name `table`, in the first schema of the search path.
///
/// Indexes and side tables that are named after the table are renamed too, so that one schema can have two outboxes.
fn for_table(layout: Layout, table: &str) -> String {
    let from = layout.table();
    if table == from {
        return layout.create_sql().to_owned();
    }
    let lines = layout.create_sql().lines().map(|line| {
        // The name in a comment is the layout's name for the table.
        if line.starts_with("--") { line.to_owned() } else { renamed(line, from, table) }
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn renamed(line: &str, from: &str, to: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let (before, word_on) = rest.split_at(start);
        let (word, after) =
            word_on.split_at(word_on.find(|c| !is_word(c)).unwrap_or(word_on.len()));
        text.push_str(before);
        text.push_str(&named_after(word, from, to).unwrap_or_else(|| word.to_owned()));
        rest = after;
    }
    text + rest
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// `outbox` and `idx_outbox_status` are named after `outbox`; `outboxes` is not.
fn named_after(word: &str, from: &str, to: &str) -> Option<String> {
    let (before, after) = word.split_once(from)?;
    let apart = (before.is_empty() || before.ends_with('_'))
        && (after.is_empty() || after.starts_with('_'));
    let name = format!("{before}{to}{after}").replace('"', "\"\"");
    apart.then(|| format!("\"{name}\""))
}

/// `--undo`: prints what is lost, asks, and removes the pipeline from the database.
async fn undo_one(
    spec: &PipelineSpec,
    control: &Control,
    ask: &FactsQuery<'_>,
    args: &SetupArgs,
) -> Result<(), CliError> {
    let pipeline = spec.name();
    let retention = spec.maintenance.retention.as_ref();
    let retention = retention.map(|rule| (rule, spec.conninfo.user()));
    let plan = undo::read(control, ask, retention).await?;
    let mut out = Output::stdout();
    if args.print_sql {
        let text = format!("-- Pipeline {pipeline}\n{plan}");
        return out.line(text.trim_end()).map_err(CliError::Output);
    }
    if plan.steps.is_empty() {
        let text = format!("{pipeline}: nothing to undo");
        return out.line(&text).map_err(CliError::Output);
    }
    out.line(&of_undo(pipeline, &plan)).map_err(CliError::Output)?;
    if !args.yes && !agreed(pipeline)? {
        return out.line("nothing was changed").map_err(CliError::Output);
    }
    undo::undo(control, &plan).await?;
    out.line(&format!("{pipeline}: removed from the database")).map_err(CliError::Output)
}

fn of_undo(pipeline: &str, plan: &UndoPlan) -> String {
    let mut lines = vec![format!("{pipeline}: steps to undo setup")];
    lines.extend(steps(&plan.steps));
    lines.extend(plan.lost.iter().map(|lost| folded("  lost   ", lost)));
    lines.extend(plan.stays.iter().map(|stays| folded("  stays  ", stays)));
    lines.join("\n")
}

/// Asks for confirmation. Without a terminal nothing is dropped unless `--yes` was given.
fn agreed(pipeline: &str) -> Result<bool, CliError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(CliError::NotAgreed);
    }
    Output::stderr().line_or_ignore(&format!("Undo {pipeline}? Type yes:"));
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(CliError::Output)?;
    Ok(answer.trim() == "yes")
}

/// The plan as text, printed before anything is changed.
fn of_plan(pipeline: &str, plan: &SetupPlan) -> String {
    let mut lines = vec![match plan.steps.len() {
        0 => format!("{pipeline}: nothing is missing"),
        1 => format!("{pipeline}: 1 step"),
        count => format!("{pipeline}: {count} steps, in this order"),
    }];
    lines.extend(steps(&plan.steps));
    lines.join("\n")
}

/// The steps that were carried out, and the objects that existed already.
fn of_done(done: &SetupPlan) -> String {
    let steps = done.steps.iter().map(|step| format!("done           {}", step.title));
    let adopted = done.adopted.iter().map(|object| format!("exists         {object}"));
    steps.chain(adopted).collect::<Vec<_>>().join("\n")
}

/// As [`of_done`], with the steps that were refused, and those that were not begun because they need a refused step.
fn of_partial(partial: &PartialSetup) -> String {
    let refused =
        partial.refused.iter().map(|step| format!("refused        {}: {}", step.title, step.why));
    let left = partial
        .left
        .iter()
        .map(|title| format!("not begun      {title}: it needs a step that was refused"));
    let done = Some(of_done(&partial.done)).filter(|text| !text.is_empty());
    done.into_iter().chain(refused).chain(left).collect::<Vec<_>>().join("\n")
}

/// Each step with its number and its reason.
fn steps(steps: &[Step]) -> impl Iterator<Item = String> {
    (1..).zip(steps).flat_map(|(number, step): (usize, &Step)| {
        [format!("  {number}. {}", step.title), folded("     ", step.why)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_table_of_another_name_has_its_own_indexes() {
        let sql = for_table(Layout::Gcx, "Shop \"events\"");
        assert!(sql.contains("CREATE TABLE \"Shop \"\"events\"\"\" (\n"), "{sql}");
        let index = "CREATE INDEX \"idx_Shop \"\"events\"\"_expires\" ON \"Shop \"\"events\"\"\" (";
        assert!(sql.contains(index), "{sql}");
        assert!(
            !sql.lines().any(|line| !line.starts_with("--") && line.contains("outbox")),
            "{sql}"
        );
    }

    #[test]
    fn the_layouts_own_name_changes_nothing() {
        for layout in Layout::ALL {
            assert_eq!(for_table(*layout, layout.table()), layout.create_sql());
        }
    }

    #[test]
    fn steps_are_printed_with_number_and_reason() {
        let step = Step {
            kind: StepKind::Slot,
            title: "create slot \"s\"".to_owned(),
            why: "Events committed from here on are kept for the relay. It waits for every transaction that is \
                  running now.",
            sql: String::new(),
        };
        let plan = SetupPlan { steps: vec![step], adopted: Vec::new() };
        expect![[r#"
            orders: 1 step
              1. create slot "s"
                 Events committed from here on are kept for the relay. It waits for every transaction that is
                 running now."#]].assert_eq(&of_plan("orders", &plan));
        let nothing = SetupPlan { steps: Vec::new(), adopted: Vec::new() };
        assert_eq!(of_plan("orders", &nothing), "orders: nothing is missing");
    }
}
