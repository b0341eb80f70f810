//! Repair: recreates the slot, publishes from the table what the new slot will not stream, then streams from the new
//! slot.
//!
//! To the relay a repair is polling from a list instead of by marks, so order, parking and aggregates blocked by a
//! parked head are the same. The positions of these events lie between those of the old slot and those of the new one.

use super::claim_reader::ClaimReader;
use super::commit_watchdog::unless_stopped;
use super::connect::{Polling, application_name, load_all, one_server, settle};
use super::failure::Failure;
use super::history::{ServerHistory, identity};
use super::mode::Mode;
use super::spec::{OnSlotLost, PipelineSpec, repair_table};
use super::stop::Stop;
use super::store_port::{FormerOwner, StorePort};
use super::{halts, pause, settings_change};
use crate::error::{Halt, HaltReason};
use crate::event::HistoryId;
use crate::postgres::SourceError;
use crate::postgres::control::Control;
use crate::postgres::error_policy::Phase;
use crate::postgres::names::literal;
use crate::postgres::repair::{
    self, NewRepair, RepairKind, RepairOutcome, RepairProgress, RepairReader as List, RepairRow,
    RepairState, ResolvedBaseline, Selection, Verdict,
};
use crate::postgres::retention::DetachExclusion;
use crate::postgres::start::Facts;
use crate::postgres::store::cursor;
use crate::relay::PollingRefused;
use std::sync::Arc;
use tracing::{info, warn};

/// Whether published rows are marked.
fn marks(spec: &PipelineSpec) -> bool {
    spec.poll.mark_streamed || spec.common.mode == Mode::Auto
}

/// Which rows are unpublished, by the snapshot of the cursor and, if there are any, by marks.
///
/// # Errors
/// Neither is known.
pub fn selection(
    spec: &PipelineSpec,
    row: Option<&RepairRow>,
    known: Option<&str>,
    marks: bool,
) -> Result<Selection, Box<Halt>> {
    match (row.filter(|row| row.unfinished()), known) {
        // The rows of the unfinished list stay on it: only rows that its snapshot did not see are new.
        (Some(row), _) if row.state == RepairState::Publishing => Ok(match row.selection {
            Selection::All | Selection::Unresolved => Selection::Unresolved,
            Selection::Unmarked | Selection::Both => Selection::Both,
        }),
        (Some(row), _) => Ok(row.selection),
        (None, Some(_)) if marks => Ok(Selection::Both),
        (None, Some(_)) => Ok(Selection::Unresolved),
        (None, None) if marks => Ok(Selection::Unmarked),
        // `--from-table`, which the command explains before it begins: every row, published or not.
        (None, None) if spec.repair.from_table => Ok(Selection::All),
        (None, None) => Err(Box::new(unknown(spec.name()))),
    }
}

/// Rows of the list were not found although they may exist. Which ones were published is unknown, so the repair is not
/// finished.
pub(super) fn unexplained(spec: &PipelineSpec, row: &RepairRow, left: u64) -> Halt {
    let table = spec.names.table.as_ref().map_or_else(String::new, ToString::to_string);
    let (gone, total, published) = (row.rows_gone, row.rows_total, row.rows_published);
    let pipeline = literal(spec.name());
    Halt {
        reason: HaltReason::TableUnfit,
        message: format!(
            "{gone} of the {total} rows to publish were not found in table {table} by their ids, and it has {left} \
             rows that may be some of them"
        ),
        meaning: "the repair is not finished: these rows may be unpublished, and nothing streams from the new slot yet"
            .to_owned(),
        hint: format!(
            "if ids were changed since the repair began (UPDATE, ALTER TABLE), or rows deleted, list again what the \
             table has now: DELETE FROM postrider.repair WHERE pipeline = {pipeline}; then postrider repair -p {}; \
             {published} rows that this repair has published may be published a second time",
            spec.name()
        ),
    }
}

fn unknown(pipeline: &str) -> Halt {
    Halt {
        reason: HaltReason::SlotMissing,
        message: "the cursor row does not say yet which transactions are resolved, and rows have no marks"
            .to_owned(),
        meaning: "nothing was changed; an earlier version wrote the row, or nothing was ever streamed"
            .to_owned(),
        hint: format!(
            "postrider repair -p {pipeline} --from-table publishes every row of the table, those too that were \
             published before; --dry-run counts them"
        ),
    }
}

/// The halt of a pipeline whose sink takes no repair: it publishes in transactions. `None` for other sinks.
#[must_use]
pub fn refused(spec: &PipelineSpec) -> Option<Halt> {
    let in_transactions = spec.common.sink.capabilities().transactions.is_some();
    in_transactions.then(|| halts::polling_refused(PollingRefused, spec.common.mode))
}

/// Whether there is something to repair.
fn verdict_for(
    spec: &PipelineSpec,
    facts: &Facts,
    row: Option<&RepairRow>,
) -> Result<Verdict, Failure> {
    repair::assess(facts, row, spec.repair.from_table).map_err(|halt| {
        // Another process of the pipeline has finished the repair meanwhile, and has the slot. The command is refused
        // instead, because it must not wait.
        if halt.reason == HaltReason::RelayRunning && !spec.repair.only {
            let active_pid = facts.slot.as_ref().and_then(|slot| slot.active_pid);
            Failure::StandBy { active_pid: active_pid.unwrap_or_default(), progress: None }
        } else {
            Failure::Halt(Box::new(halt))
        }
    })
}

/// Gets the pipeline's lock, a slot, and the list of rows to publish. This takes as long as the longest running
/// transaction.
pub(super) async fn open(
    spec: Arc<PipelineSpec>,
    seen: HistoryId,
    cluster: Option<String>,
) -> Result<Polling, Failure> {
    // Before a slot is dropped.
    if let Some(halt) = refused(&spec) {
        return Err(Failure::Halt(Box::new(halt)));
    }
    let at = |phase| move |error| Failure::Source(error, phase);
    let name = application_name(&spec);
    let marks = marks(&spec);
    let control = Control::connect(&spec.conninfo, &name).await.map_err(at(Phase::Connect))?;
    let client = control.client();
    // A backfill of unmarked rows reads marks even if published rows are not marked.
    let row = repair::read(client, spec.key()).await.map_err(at(Phase::Handshake))?;
    let by_marks = row.is_some_and(|row| row.unfinished() && row.selection.by_marks());
    let Some(table) = repair_table(&spec, marks || by_marks) else {
        return Err(Failure::Halt(Box::new(halts::nothing_to_poll())));
    };
    let list = List::open(&spec.conninfo, &name, table, marks).await;
    let list = list
        .map_err(at(Phase::Handshake))?
        .map_err(|pid| Failure::StandBy { active_pid: pid.unwrap_or_default(), progress: None })?;
    let instance = one_server(client, list.client()).await?;
    let identity = identity(&spec.conninfo, &name).await.map_err(at(Phase::Connect))?;
    let columns = spec.columns();
    let ask = spec.ask(&identity, &columns);
    let facts = control.facts(&ask).await.map_err(at(Phase::Handshake))?;
    repair::check_server(&facts).map_err(|halt| Failure::Halt(Box::new(halt)))?;
    pause::check(client, &spec).await?;
    spec.fit(facts.table.as_ref()).map_err(|halt| Failure::Halt(Box::new(halt)))?;
    let row = repair::read(client, spec.key()).await.map_err(at(Phase::Handshake))?;
    let verdict = verdict_for(&spec, &facts, row.as_ref())?;
    if verdict == Verdict::NotNeeded {
        return Err(Failure::NothingToRepair);
    }
    let known = (cluster.as_deref(), facts.table.as_ref());
    let change = settings_change::check(client, &spec, known, settings_change::By::Repair).await?;
    let ledger =
        repair::resolved_baseline(client, spec.key(), row.as_ref(), spec.common.cursor_interval)
            .await;
    let ledger = ledger.map_err(at(Phase::Control))?;
    let selection =
        selection(&spec, row.as_ref(), ledger.known.as_deref(), marks).map_err(Failure::Halt)?;
    cursor::create_for_polling(client, spec.key()).await.map_err(at(Phase::Control))?;
    let seized = cursor::seize(client, spec.key()).await.map_err(at(Phase::Control))?;
    let (epoch, former) = (seized.epoch, FormerOwner { epoch: seized.before, left: seized.left });
    settings_change::record(client, &spec, epoch, &change).await?;
    let histories = settle(&spec, &control, epoch, &facts, seen).await?;
    if let Verdict::NewSlot(why) = verdict {
        repair_begins(&spec, &why);
        let session = (&control, name.as_str());
        begin(&spec, session, &list, &facts, (selection, ledger), row.as_ref()).await?;
    }
    let start = list.start().await.map_err(at(Phase::Control))?;
    let parked = load_all(client, spec.key()).await.map_err(at(Phase::Control))?;
    control.listen(spec.name()).await.map_err(at(Phase::Control))?;
    if let Some(row) = repair::read(client, spec.key()).await.map_err(at(Phase::Control))? {
        let without_id = list.without_id(&row).await.map_err(at(Phase::Control))?;
        repairing(&spec, &row, without_id);
    }
    Ok(Polling {
        poller: ClaimReader::Repair(Box::new(list)),
        store: StorePort::new(control, spec, (former, epoch), histories),
        parked,
        start,
        server: ServerHistory::polled(&facts.server),
        instance,
        keeps_failures: false,
    })
}

/// Makes the slot and the list of rows. `row`: the last repair.
async fn begin(
    spec: &PipelineSpec,
    (control, application_name): (&Control, &str),
    list: &List,
    facts: &Facts,
    (selection, ledger): (Selection, ResolvedBaseline),
    row: Option<&RepairRow>,
) -> Result<(), Failure> {
    let unfinished = row.filter(|row| row.unfinished());
    let ask = NewRepair {
        conninfo: &spec.conninfo,
        application_name,
        names: &spec.names,
        failover: spec.failover && facts.server.version >= 170_000,
        kind: unfinished.map_or(RepairKind::Repair, |row| row.kind),
        selection,
        known: ledger.known,
        known_at: ledger.at,
        before: unfinished,
        drop_slot: facts.slot.is_some(),
    };
    let mut report = |step: RepairProgress<'_>| repair_step(spec, &step);
    let table = &list.table().spec().table;
    // Until the list exists: it must not lack the rows of a partition.
    let excluded =
        DetachExclusion::begin(control.client(), (&spec.conninfo, application_name), table).await;
    let _excluded = excluded.map_err(|error| Failure::Source(error, Phase::Control))?;
    let begun = repair::begin(control, list.table(), &ask, &mut report).await;
    begun.map(drop).map_err(|error| Failure::Source(error, Phase::Control))
}

/// The list of a repair is published: sets the cursor. `None` if a stop is requested: an unfinished step is finished by
/// the next start.
pub(super) async fn finish_repair(
    list: &List,
    spec: &PipelineSpec,
    epoch: i64,
    stop: &Stop,
) -> Result<Option<RepairOutcome>, SourceError> {
    let finish = list.finish(&spec.names, spec.messages(), epoch);
    unless_stopped(stop, list.control().canceller(), finish).await
}

/// Whether a repair comes next, after the stream ended with this halt.
pub(super) fn repairs_instead(spec: &PipelineSpec, halt: &Halt) -> bool {
    let wanted = spec.on_slot_lost == OnSlotLost::Repair && spec.common.mode == Mode::Wal;
    wanted && repair_helps(halt.reason)
}

/// Whether a repair may help after this halt.
const fn repair_helps(reason: HaltReason) -> bool {
    matches!(reason, HaltReason::SlotLost | HaltReason::SlotMissing)
}

fn repair_begins(spec: &PipelineSpec, why: &str) {
    let slot = &spec.names.slot;
    warn!(
        event = "repair_begins",
        pipeline = spec.name(),
        slot,
        reason = why,
        "recreating the slot: {why}"
    );
}

fn repair_step(spec: &PipelineSpec, step: &RepairProgress<'_>) {
    let pipeline = spec.name();
    match step {
        RepairProgress::Waiting(blockers) => {
            let xids: Vec<&str> = blockers.iter().map(|blocker| blocker.xid.as_str()).collect();
            let pids: Vec<u32> = blockers.iter().filter_map(|blocker| blocker.pid).collect();
            info!(
                event = "slot_waits",
                pipeline,
                xids = xids.join(","),
                ?pids,
                "creating the slot waits for transactions that were already running"
            );
        }
        RepairProgress::Listing(at) => {
            info!(event = "slot_made", pipeline, %at, "the new slot exists; listing the rows that it will not stream");
        }
    }
}

/// The list of a repair is complete. `without_id`: rows that the list can't hold.
fn repairing(spec: &PipelineSpec, row: &RepairRow, without_id: u64) {
    let left = row.rows_total.saturating_sub(row.rows_published + row.rows_gone);
    info!(
        event = "repairing",
        pipeline = spec.name(),
        kind = row.kind.word(),
        rows = row.rows_total,
        left,
        uncertain = row.rows_uncertain,
        method = row.method,
        "publishing {left} rows from the table before streaming"
    );
    if without_id > 0 {
        let table = spec.names.table.as_ref().map_or_else(String::new, ToString::to_string);
        warn!(
            event = "repair_rows_without_id",
            pipeline = spec.name(),
            rows = without_id,
            hint = "delete them and insert them again with an id, in one transaction: the stream publishes \
                    the new rows",
            "{without_id} rows of table {table} have no id and are not published: rows are listed by their ids"
        );
    }
}
