//! Log lines about a repair.

use crate::driver::pipeline::Pipeline;
use crate::driver::spec::PipelineSpec;
use crate::error::Halt;
use crate::postgres::repair::{Row, Told};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Pause between two lines about how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// `source.on_slot_lost = "repair"`.
pub(in crate::driver) fn repair_next(pipeline: &mut Pipeline, halt: &Halt) {
    pipeline.tell.streaming = false;
    warn!(
        event = "slot_lost",
        pipeline = pipeline.spec.name(),
        code = halt.reason.code(),
        reason = halt.reason.name(),
        "repairing from the table, as source.on_slot_lost asks: {}",
        halt.message
    );
}

pub(in crate::driver) fn repair_begins(spec: &PipelineSpec, why: &str) {
    let slot = &spec.names.slot;
    warn!(
        event = "repair_begins",
        pipeline = spec.name(),
        slot,
        reason = why,
        "recreating the slot: {why}"
    );
}

pub(in crate::driver) fn repair_told(spec: &PipelineSpec, told: &Told<'_>) {
    let pipeline = spec.name();
    match told {
        Told::Waiting(blockers) => {
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
        Told::Listing(at) => {
            info!(event = "slot_made", pipeline, %at, "the new slot exists; listing the rows that it will not stream");
        }
    }
}

/// The list is there. `without_id`: rows that it can't hold.
pub(in crate::driver) fn repairing(spec: &PipelineSpec, row: &Row, without_id: u64) {
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

/// Rows of the list are done with.
pub(in crate::driver) fn repair_progress(pipeline: &mut Pipeline) {
    let now = Instant::now();
    let told = &mut pipeline.tell.repair_at;
    if told.is_some_and(|at| now.duration_since(at) < PROGRESS_INTERVAL) {
        return;
    }
    let first = told.replace(now).is_none();
    if !first {
        let published = pipeline.tell.published_total;
        info!(
            event = "repair_progress",
            pipeline = pipeline.spec.name(),
            published,
            "publishing from the table"
        );
    }
}

pub(in crate::driver) fn repaired(pipeline: &Pipeline, row: &Row) {
    let at = row.slot_created_lsn.map(|at| at.to_string());
    info!(
        event = "repaired",
        pipeline = pipeline.spec.name(),
        kind = row.kind.word(),
        rows = row.rows_published,
        uncertain = row.rows_uncertain,
        gone = row.rows_gone,
        ids_missing = row.ids_missing,
        at,
        "{} rows of the list are published; streaming starts from the new slot",
        row.rows_published
    );
    if row.rows_gone > 0 {
        warn!(
            event = "repair_rows_gone",
            pipeline = pipeline.spec.name(),
            gone = row.rows_gone,
            "{} rows were deleted after they were listed and before they were published: these events are lost",
            row.rows_gone
        );
    }
}

/// The new slot was lost in its turn.
pub(in crate::driver) fn slot_gone_again(pipeline: &Pipeline) {
    warn!(
        event = "slot_gone_again",
        pipeline = pipeline.spec.name(),
        "the new slot was lost before all rows were published: creating another one"
    );
}
