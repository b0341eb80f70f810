//! Hand-over: with `mode = "auto"`, the way from polling back to streaming.
//!
//! A slot is created, or found, while polling continues. What was committed before the slot is in the table. So once a
//! claim that began after the slot existed has taken every row, no row is left that the stream will not send. That
//! includes rows that are delayed (`available_at`) or have failed before: they are parked, as they would be if the
//! stream had sent them. What polling publishes after the slot's position is sent by the stream as well, and is skipped
//! there by its ID ([`HandOverFilter`](super::row_status::HandOverFilter)).
//!
//! The way from streaming to polling needs no hand-over: published rows are marked before the cursor passes them, so
//! the table shows what is left.

use super::connect::application_name;
use super::lifecycle::Pipeline;
use super::log;
use super::poll::{PollEvent, Polling};
use super::service::Stop;
use super::stream::{StoreJob, await_job};
use crate::error::{Chain, HaltReason};
use crate::postgres::control::Control;
use crate::postgres::setup::{self, SlotOutcome};
use crate::postgres::store::cursor;
use crate::postgres::{SourceError, catalog};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

/// Pause between two attempts to get a slot.
const SLOT_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two attempts to drop a slot: its stream has just ended.
const DROP_INTERVAL: Duration = Duration::from_millis(200);

/// The progress of a hand-over.
pub(super) struct HandOver {
    /// The running step.
    job: Option<StoreJob<SlotOutcome>>,
    /// When the next step is made.
    next_at: Instant,
    /// What has to be done next about the slot.
    step: SlotStep,
    /// A claim that began while the slot existed took every row that was ready: the next claims take the other rows as
    /// well.
    last: bool,
    /// A claim that began while the slot existed took every row.
    drained: bool,
}

/// What has to be done next about the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotStep {
    /// Drop it: it retains too much WAL.
    Drop,
    /// Publish the table first. The slot is dropped, and a new one would retain WAL during that time.
    PollFirst,
    /// Create a slot, or take one that exists.
    Create,
    /// The slot exists, and retains WAL until it is streamed from.
    Exists,
}

impl HandOver {
    /// A hand-over that begins by dropping the slot, or with the slot there is.
    pub(super) fn new(drops_slot: bool) -> Self {
        let step = if drops_slot { SlotStep::Drop } else { SlotStep::Create };
        Self { job: None, next_at: Instant::now(), step, last: false, drained: false }
    }

    /// Before a claim: discards what the claim before it had found, since that claim may have been given up. Returns
    /// true if this claim also takes the rows that are not ready (delayed or failed). The stream will not bring them,
    /// so they are parked, and marked in their table.
    pub(super) const fn claims(&mut self) -> bool {
        self.drained = false;
        self.last
    }

    /// After a claim: `more` rows are left, or `withheld` ones.
    pub(super) fn claimed(&mut self, more: bool, withheld: u64) {
        let all = !more;
        self.drained = self.last && all && withheld == 0;
        self.last |= all && self.step == SlotStep::Exists;
        // Delayed and failed rows do not count: they are claimed when the slot exists.
        if all && self.step == SlotStep::PollFirst {
            (self.step, self.next_at) = (SlotStep::Create, Instant::now());
        }
    }
}

/// Waits for the next event of the hand-over; forever if there is none.
pub(super) async fn next_step(hand_over: &mut Option<HandOver>) -> PollEvent {
    match hand_over {
        Some(hand_over) if hand_over.job.is_some() => {
            PollEvent::HandOverStep(await_job(&mut hand_over.job).await)
        }
        Some(hand_over) if hand_over.step != SlotStep::PollFirst => {
            sleep_until(hand_over.next_at).await;
            PollEvent::HandOverDue
        }
        Some(_) | None => std::future::pending().await,
    }
}

impl Pipeline {
    /// Marks rows that the stream has published, before the table is queried for unpublished rows.
    pub(super) async fn mark_streamed(&mut self, polling: &Polling) -> Result<(), SourceError> {
        let client = polling.store.control.client();
        self.row_status.prepare(client, self.spec.poll.table.as_ref()).await?;
        self.mark_waiting(client).await
    }

    /// Marks rows that the stream has published, if they are not locked. The IDs of the others are remembered, and
    /// skipped in claims.
    async fn mark_waiting(&mut self, client: &Client) -> Result<(), SourceError> {
        match self.row_status.take(None) {
            Some(batch) => {
                let made = batch.make(client).await?;
                self.marks_made(&made);
            }
            // Rows that waited are left to the claims.
            None => log::marks_made(self),
        }
        Ok(())
    }

    /// Before a claim: attempts again to mark rows that were locked.
    pub(super) async fn mark_what_waited(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        if !self.row_status.is_due() || polling.poller.repairs().is_some() {
            return Ok(());
        }
        self.finish_jobs(polling, stop).await?;
        self.mark_waiting(polling.store.control.client()).await
    }

    /// Starts the next step for the slot, on a session of its own.
    pub(super) fn start_hand_over_step(&mut self, polling: &mut Polling) {
        let (spec, epoch) = (Arc::clone(&self.spec), polling.store.epoch);
        let instance = polling.instance.clone();
        let Some(hand_over) = &mut polling.hand_over else { return };
        let step = hand_over.step;
        hand_over.job = Some(Box::pin(async move {
            let control = Control::connect(&spec.conninfo, &application_name(&spec)).await?;
            // A slot of another server would not stream what this table lacks.
            if let Some(differs) = instance.differs(&catalog::instance(control.client()).await?) {
                return Ok(SlotOutcome::NotYet(differs));
            }
            match step {
                SlotStep::Drop => return setup::drop_slot(&control, &spec.names.slot).await,
                SlotStep::Exists => return setup::retained_wal(&control, &spec.names.slot).await,
                SlotStep::PollFirst | SlotStep::Create => {}
            }
            let columns = spec.columns();
            let ask = spec.ask(&None, &columns);
            setup::recreate_slot(&control, &ask, epoch).await
        }));
    }

    pub(super) fn hand_over_step_done(
        &mut self,
        polling: &mut Polling,
        outcome: Result<SlotOutcome, SourceError>,
    ) {
        let Some(hand_over) = &mut polling.hand_over else { return };
        hand_over.job = None;
        hand_over.next_at = Instant::now() + SLOT_INTERVAL;
        match outcome {
            Ok(SlotOutcome::Usable) => {
                hand_over.step = SlotStep::Exists;
                (hand_over.last, hand_over.drained) = (false, false);
                self.log.slot = None;
                log::slot_stands(self);
            }
            Ok(SlotOutcome::Dropped) => {
                hand_over.step = SlotStep::PollFirst;
                log::slot_dropped(self);
            }
            Ok(SlotOutcome::Retains(bytes)) => self.held(polling, bytes),
            Ok(SlotOutcome::NotYet(reason)) => {
                if hand_over.step == SlotStep::Drop {
                    hand_over.next_at = Instant::now() + DROP_INTERVAL;
                }
                log::slot_not_yet(self, &reason);
            }
            Err(error) => log::slot_not_yet(self, &Chain(&error).to_string()),
        }
    }

    /// The new slot waits until the table is published, and retains WAL meanwhile. Unit of `bytes`: bytes.
    fn held(&mut self, polling: &mut Polling, bytes: u64) {
        log::slot_held(self, Some(bytes));
        if !self.spec.polls_instead_of_slot() || self.check_wal_retention(bytes).is_none() {
            return;
        }
        let Some(hand_over) = &mut polling.hand_over else { return };
        (hand_over.step, hand_over.last, hand_over.drained) = (SlotStep::Drop, false, false);
        hand_over.next_at = Instant::now();
    }

    /// Whether the stream may continue from the slot; polling ends then.
    pub(super) async fn hands_over_now(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        if polling.poller.repairs().is_some() {
            return self.repair_ends(polling, stop).await;
        }
        let drained = polling.hand_over.as_ref().is_some_and(|hand_over| hand_over.drained);
        if !drained || polling.open.is_some() {
            return Ok(false);
        }
        self.finish_jobs(polling, stop).await?;
        let client = polling.store.control.client();
        cursor::polled(client, self.spec.name(), polling.store.epoch).await?;
        let wal_end = catalog::read_server(client).await?.wal_end;
        self.polled_ids.ends(wal_end);
        Ok(true)
    }
}

/// Whether the table can be polled although the stream can't be used.
pub(super) const fn polling_helps(reason: HaltReason) -> bool {
    matches!(
        reason,
        HaltReason::SlotLost
            | HaltReason::SlotMissing
            | HaltReason::WalBudget
            | HaltReason::SlotUnusable
            | HaltReason::ServerUnfit
            | HaltReason::AccessDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand_over() -> HandOver {
        HandOver {
            job: None,
            next_at: Instant::now(),
            step: SlotStep::Exists,
            last: false,
            drained: false,
        }
    }

    /// The rows of a claim that is given up are still unpublished in the table.
    #[test]
    fn claim_that_was_given_up_does_not_count() {
        let mut hand_over = hand_over();
        assert!(!hand_over.claims());
        hand_over.claimed(false, 0);
        assert!(hand_over.claims(), "the first took all that was ready: this one takes the rest");
        hand_over.claimed(false, 0);
        assert!(hand_over.drained);
        assert!(hand_over.claims());
        assert!(!hand_over.drained);
    }
}
