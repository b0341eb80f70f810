//! `postrider setup --backfill`: which rows that are there already go before the stream.

use super::APPLICATION_NAME;
use crate::cli::error::CliError;
use crate::cli::output::Output;
use crate::driver::{Mode, PipelineSpec, repair_table};
use crate::error::{Halt, HaltReason};
use crate::postgres::control::{Ask as Look, Control};
use crate::postgres::poll::listed::Table;
use crate::postgres::repair::{self, Ask, Kind, Selection, Told};
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::setup::{self, Backfilled, SetupError, SetupPlan, StepKind};
use crate::postgres::{Conninfo, SqlState, setup::check_backfill};
use clap::ValueEnum;
use std::io::{self, BufRead as _, IsTerminal as _};

/// `--backfill`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backfill {
    /// None of them: what commits from the slot on is published
    None,
    /// Those without their layout's mark of success; where published rows are deleted, all
    Unpublished,
    /// All of them
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

/// Whether rows are to be listed at all.
pub(super) fn wanted(backfill: Option<Backfill>) -> Option<Selection> {
    backfill.and_then(Backfill::selection)
}

/// Rows that are in the table when the first slot is about to be made: the stream does not bring them.
pub(super) async fn left_out(
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
        None => Some(format!("rows of {table}, if there are any: they could not be counted")),
    })
}

/// Asks a person at a terminal which of these rows go before the stream; `None` where there is nobody to ask.
pub(super) fn asked(rows: &str) -> Result<Option<Backfill>, CliError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Ok(None);
    }
    let names: Vec<_> =
        Backfill::value_variants().iter().filter_map(ValueEnum::to_possible_value).collect();
    let names: Vec<&str> = names.iter().map(clap::builder::PossibleValue::get_name).collect();
    Output::stderr().say(&format!(
        "The table has {rows} from before the slot; streaming will not publish them, and once the slot exists it is \
         too late to publish them first.\n  \
         none         publish none of them (the default)\n  \
         unpublished  publish those without their layout's mark; where published rows are deleted, all\n  \
         all          publish all of them"
    ));
    loop {
        Output::stderr()
            .say(&format!("Publish them before streaming starts? [{}]:", names.join(" / ")));
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
        Output::stderr()
            .say(&format!("{answer:?} is none of these; type one of {}.", names.join(", ")));
    }
}

/// What is said of rows that were left out.
pub(super) fn notice(pipeline: &str, rows: &str) -> String {
    format!(
        "not streamed   {rows}, which were there before the slot. To publish them first, before postrider run has \
         published anything: postrider setup -p {pipeline} --undo --yes, then postrider setup -p {pipeline} --backfill \
         all (or unpublished), with the same --url"
    )
}

/// Before anything is made.
pub(super) async fn check(
    spec: &PipelineSpec,
    control: &Control,
    look: &Look<'_>,
) -> Result<(), CliError> {
    if spec.mode == Mode::Poll {
        return Err(SetupError::Halt(Box::new(polls())).into());
    }
    let version = schema::read(control.client(), look.acting).await?;
    let row = if version == SchemaState::Version(schema::VERSION) {
        repair::read(control.client(), spec.name()).await?
    } else {
        None
    };
    let facts = control.facts(look).await?;
    check_backfill(&facts, row.as_ref()).map_err(SetupError::from).map_err(CliError::from)
}

fn polls() -> Halt {
    Halt {
        reason: HaltReason::NotApplicable,
        message: "mode = \"poll\" has no slot: there is nothing to backfill before it".to_owned(),
        meaning: "nothing was changed; every row without a mark is published".to_owned(),
        hint: "leave --backfill away".to_owned(),
    }
}

/// An administrator without the right to replicate can't create the slot; the relay's role, which has it by now, can.
pub(super) fn denied(error: CliError, pipeline: &str, which: Selection, other: bool) -> CliError {
    if let CliError::Source(source) | CliError::Setup(SetupError::Source(source)) = error {
        if !other || source.sqlstate() != Some(SqlState::INSUFFICIENT_PRIVILEGE) {
            return CliError::Source(source);
        }
        let word = if which.by_marks() { "unpublished" } else { "all" };
        let hint = format!(
            "run setup as the relay's role, which makes what is left: postrider setup -p {pipeline} --backfill {word} \
             (without --url)"
        );
        return CliError::Setup(SetupError::Backfill { error: source, hint });
    }
    error
}

/// Makes slot and list, and says what is on it.
pub(super) async fn make(
    spec: &PipelineSpec,
    conninfo: &Conninfo,
    control: &Control,
    look: &Look<'_>,
    selection: Selection,
) -> Result<Vec<String>, CliError> {
    let Some(table) = repair_table(spec, selection.by_marks()) else { return Ok(Vec::new()) };
    let listed_table = table.clone();
    let facts = control.facts(look).await?;
    let ask = Ask {
        conninfo,
        application_name: APPLICATION_NAME,
        names: &spec.names,
        failover: spec.failover && facts.server.version >= 170_000,
        kind: Kind::Backfill,
        selection,
        known: None,
        known_at: None,
        before: None,
        drop_slot: false,
    };
    let pipeline = spec.name();
    let mut told = |told: Told<'_>| match told {
        Told::Waiting(blockers) => {
            let xids: Vec<&str> = blockers.iter().map(|blocker| blocker.xid.as_str()).collect();
            tracing::warn!(
                pipeline,
                xids = xids.join(","),
                "the slot waits for transactions that run since before it"
            );
        }
        Told::Listing(at) => tracing::debug!(pipeline, %at, "the slot stands; listing rows"),
    };
    match setup::backfill(control, &facts, table, ask, &mut told).await? {
        Backfilled::Listed(row) => {
            let left = repair::left(control.client(), pipeline).await?;
            let at = row.slot_created_lsn.map(|at| at.to_string()).unwrap_or_default();
            let table = Table::read(control.client(), listed_table).await?;
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
                    "not listed     {without_id} rows, which have no id: rows are listed by their ids. Delete them and \
                     insert them again with an id, in one transaction: the stream publishes the new rows"
                ));
            }
            Ok(lines)
        }
        Backfilled::Locked { pid } => {
            let by = pid.map_or_else(String::new, |pid| format!(": backend {pid}"));
            let halt = repair::live(&format!("it has the pipeline's lock{by}"));
            Err(SetupError::Halt(Box::new(halt)).into())
        }
    }
}
