//! Log lines about what a pipeline's position belongs to, and about settings that have changed since.

use crate::driver::change::{ChangeNote, LeftBehind};
use crate::driver::pipeline::Pipeline;
use crate::driver::spec::PipelineSpec;
use crate::driver::trouble::{Due, Trouble};
use crate::postgres::belongs::Belongs;
use std::time::Instant;
use tracing::{info, warn};

/// From here on the position belongs to these settings. `first`: nothing was known of it before.
pub(in crate::driver) fn position_belongs(spec: &PipelineSpec, belongs: &Belongs, first: bool) {
    let Belongs { mode, sink, cluster, topic, table, layout, .. } = belongs;
    info!(
        event = "position_belongs",
        pipeline = spec.name(),
        mode,
        sink,
        cluster,
        topic,
        table,
        layout,
        first,
        "the position belongs to these settings from here on; others are compared with them at each start"
    );
}

/// A setting differs, and the pipeline goes on.
pub(in crate::driver) fn setting_changed(spec: &PipelineSpec, note: &ChangeNote) {
    let ChangeNote { message, why, sql } = note;
    warn!(
        event = "setting_changed",
        pipeline = spec.name(),
        reason = message,
        hint = sql,
        "{message}: {why}"
    );
}

/// A cluster answers that was not known when this session began.
pub(in crate::driver) fn located(pipeline: &Pipeline) {
    info!(
        event = "cluster_found",
        pipeline = pipeline.spec.name(),
        cluster = pipeline.sink.cluster(),
        "a Kafka cluster answers: comparing it with the one that the position belongs to"
    );
}

/// The slot of a pipeline that polls retains WAL, or is gone.
pub(in crate::driver) fn slot_left_behind(pipeline: &mut Pipeline, left: Option<&LeftBehind>) {
    let Some(left) = left else {
        if pipeline.tell.budget.take().is_some() {
            super::slot_held(pipeline, None);
        }
        return;
    };
    super::slot_held(pipeline, Some(left.retained));
    let (reason, hint) = (left.message(), format!("{} {}", left.line(), LeftBehind::WHY));
    let told = &mut pipeline.tell.budget;
    let due = Trouble::note(told, reason.clone(), Some(hint.clone()), Instant::now());
    if let Some(Due { seconds, tries }) = due {
        warn!(
            event = "slot_left_behind",
            pipeline = pipeline.spec.name(),
            slot = left.slot,
            retained_bytes = left.retained,
            seconds,
            tries,
            hint,
            "{reason}"
        );
    }
}
