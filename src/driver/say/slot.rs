//! What is said of the slot: the WAL it holds back, where `source.wal_retain_max` bounds it, and the standby it waits
//! for.

use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::{Due, Trouble};
use std::time::Instant;
use tracing::{info, warn};

/// More than half is spent.
pub(in crate::driver) fn wal_budget_half(pipeline: &mut Pipeline, retained: u64, max: u64) {
    let reason =
        format!("the slot retains {} MiB of WAL, of at most {} MiB", retained >> 20, max >> 20);
    let then = if pipeline.spec.polls_in_its_stead() {
        "above it the slot is dropped and the table is polled"
    } else {
        "above it the pipeline halts"
    };
    let hint = format!("see what delays the pipeline (postrider status); {then}");
    let (told, now) = (&mut pipeline.tell.budget, Instant::now());
    if let Some(due) = Trouble::note(told, reason.clone(), Some(hint.clone()), now) {
        let Due { seconds, tries } = due;
        warn!(
            event = "wal_budget_half",
            pipeline = pipeline.spec.name(),
            retained_bytes = retained,
            max_bytes = max,
            seconds,
            tries,
            hint,
            "{reason}"
        );
    }
}

/// Less than half again.
pub(in crate::driver) fn wal_budget_ok(pipeline: &mut Pipeline, retained: u64) {
    let Some(trouble) = pipeline.tell.budget.take() else { return };
    let (pipeline, seconds) = (pipeline.spec.name(), trouble.seconds(Instant::now()));
    info!(
        event = "wal_budget_ok",
        pipeline,
        retained_bytes = retained,
        seconds,
        "the slot retains less than half of source.wal_retain_max again"
    );
}

/// The slot is gone, and its WAL with the server's next checkpoint.
pub(in crate::driver) fn slot_dropped(pipeline: &mut Pipeline) {
    (pipeline.tell.slot, pipeline.tell.budget) = (None, None);
    slot_held(pipeline, None);
    let (name, slot) = (pipeline.spec.name(), &pipeline.spec.names.slot);
    let words = "the slot is dropped: PostgreSQL may remove its WAL; a new one is made once all rows are polled";
    warn!(event = "slot_dropped", pipeline = name, slot, "{words}");
}

/// Brings the board up to date with a slot that is not streamed from.
pub(in crate::driver) fn slot_held(pipeline: &Pipeline, retained: Option<u64>) {
    pipeline.board.update(|snapshot| {
        snapshot.slot_retained_bytes = retained;
        if retained.is_none() {
            snapshot.slot_state = None;
            snapshot.slot_safe_bytes = None;
        }
    });
}

impl Pipeline {
    /// Each commit waits for the standby for a moment; with nothing received from one look to the next it is a state.
    pub(in crate::driver) fn awaits_standby(&mut self, waits: bool) {
        let received = self.relay.received();
        let before = self.stalled_at.replace(received).filter(|_| waits);
        if !waits {
            self.stalled_at = None;
            if let Some(trouble) = self.tell.standby.take() {
                let (pipeline, seconds) = (self.spec.name(), trouble.seconds(Instant::now()));
                info!(
                    event = "standby_back",
                    pipeline, seconds, "the stream no longer waits for a standby"
                );
            }
            return;
        }
        if before != Some(received) {
            return;
        }
        let reason =
            "the stream waits for a standby in synchronized_standby_slots: nothing is published";
        let hint =
            "bring the standby back, or take it out of that list: postrider check prints the lines";
        let told = &mut self.tell.standby;
        let due = Trouble::note(told, reason.to_owned(), Some(hint.to_owned()), Instant::now());
        if let Some(Due { seconds, tries }) = due {
            let pipeline = self.spec.name();
            warn!(event = "standby_awaited", pipeline, seconds, tries, hint, "{reason}");
        }
    }
}
