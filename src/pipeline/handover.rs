//! `mode = "auto"`: from polling back to streaming.
//!
//! A slot is made, or found, while polling goes on. What was committed before it is in the table; so once a claim that
//! began after it has taken all there was, nothing is left that the stream will not bring. All means also what is
//! delayed (`available_at`) or has failed before: that is parked, as it would be had the stream brought it. What
//! polling publishes from the slot's point on comes by the stream as well, and is passed over there by its id
//! ([`Handed`](super::row_status::Handed)).
//!
//! The other way, from the stream to polling, needs no hand-over: published rows are marked before the cursor passes
//! them, so the table says what is left.

use super::connect::application_name;
use super::lifecycle::Pipeline;
use super::log;
use super::poll::{Polling, Turn};
use super::service::Stop;
use super::stream::{Job, job};
use crate::error::{Chain, HaltReason};
use crate::postgres::control::Control;
use crate::postgres::setup::{self, Renewed};
use crate::postgres::store::cursor;
use crate::postgres::{SourceError, catalog};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

/// Pause between two tries to have a slot.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two tries to let a slot go: its stream ended just now.
const LET_GO_INTERVAL: Duration = Duration::from_millis(200);

/// How far the way back is.
pub(super) struct Renewal {
    job: Option<Job<Renewed>>,
    next_at: Instant,
    step: Step,
    /// A claim that began with the slot standing took everything that was ready: the next ones take the rest as well.
    last: bool,
    /// A claim that began with the slot standing took everything.
    drained: bool,
}

/// What is to be done next about the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// It holds back too much WAL: it goes.
    LetGo,
    /// It is gone. A new one would hold WAL back for as long as the table takes to be published: that comes first.
    Empty,
    /// A new one is made, or one that stands is taken.
    Make,
    /// It stands, and holds WAL back until it is streamed from.
    Stands,
}

impl Renewal {
    /// A way back that begins with a slot that is to be let go, or with the one there is.
    pub(super) fn new(lets_go: bool) -> Self {
        let step = if lets_go { Step::LetGo } else { Step::Make };
        Self { job: None, next_at: Instant::now(), step, last: false, drained: false }
    }

    /// Before a claim: discards what the claim before it had found, since that claim may have been given up. Returns
    /// true if this claim also takes the rows that are not ready (delayed or failed). The stream will not bring them,
    /// so they are parked, and marked in their table.
    pub(super) const fn claims(&mut self) -> bool {
        self.drained = false;
        self.last
    }

    /// A claim was made: it has all there was, or something is left for another one.
    pub(super) fn claimed(&mut self, more: bool, withheld: u64) {
        let all = !more;
        self.drained = self.last && all && withheld == 0;
        self.last |= all && self.step == Step::Stands;
        // What is delayed, or has failed, does not count: it is taken along when the slot stands.
        if all && self.step == Step::Empty {
            (self.step, self.next_at) = (Step::Make, Instant::now());
        }
    }
}

/// The next thing to do on the way back; never, where there is no way back.
pub(super) async fn renewing(renewal: &mut Option<Renewal>) -> Turn {
    match renewal {
        Some(renewal) if renewal.job.is_some() => Turn::Renewed(job(&mut renewal.job).await),
        Some(renewal) if renewal.step != Step::Empty => {
            sleep_until(renewal.next_at).await;
            Turn::Renew
        }
        Some(_) | None => std::future::pending().await,
    }
}

impl Pipeline {
    /// Marks what the stream had published, before the table is asked what is left.
    pub(super) async fn mark_streamed(&mut self, polling: &Polling) -> Result<(), SourceError> {
        let client = polling.desk.control.client();
        self.marking.prepare(client, self.spec.poll.table.as_ref()).await?;
        self.mark_waiting(client).await
    }

    /// Marks what the stream had published, as far as its rows are free. Of the others the ids are remembered, and
    /// passed over in claims.
    async fn mark_waiting(&mut self, client: &Client) -> Result<(), SourceError> {
        match self.marking.take(None) {
            Some(batch) => {
                let made = batch.make(client).await?;
                self.marks_made(&made);
            }
            // What waited is left to the claims.
            None => log::marks_made(self),
        }
        Ok(())
    }

    /// Before a claim: the same again, where there are such.
    pub(super) async fn mark_what_waited(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        if !self.marking.is_due() || polling.poller.repairs().is_some() {
            return Ok(());
        }
        self.finish_jobs(polling, stop).await?;
        self.mark_waiting(polling.desk.control.client()).await
    }

    /// Begins to see to the slot, on a session of its own.
    pub(super) fn renew(&mut self, polling: &mut Polling) {
        let (spec, epoch) = (Arc::clone(&self.spec), polling.desk.epoch);
        let instance = polling.instance.clone();
        let Some(renewal) = &mut polling.renewal else { return };
        let step = renewal.step;
        renewal.job = Some(Box::pin(async move {
            let control = Control::connect(&spec.conninfo, &application_name(&spec)).await?;
            // A slot of another server would not bring what this table lacks.
            if let Some(differs) = instance.differs(&catalog::instance(control.client()).await?) {
                return Ok(Renewed::NotYet(differs));
            }
            match step {
                Step::LetGo => return setup::let_go(&control, &spec.names.slot).await,
                Step::Stands => return setup::held(&control, &spec.names.slot).await,
                Step::Empty | Step::Make => {}
            }
            let columns = spec.columns();
            let ask = spec.ask(&None, &columns);
            setup::renew(&control, &ask, epoch).await
        }));
    }

    pub(super) fn renewed(&mut self, polling: &mut Polling, outcome: Result<Renewed, SourceError>) {
        let Some(renewal) = &mut polling.renewal else { return };
        renewal.job = None;
        renewal.next_at = Instant::now() + RENEW_INTERVAL;
        match outcome {
            Ok(Renewed::Stands) => {
                renewal.step = Step::Stands;
                (renewal.last, renewal.drained) = (false, false);
                self.tell.slot = None;
                log::slot_stands(self);
            }
            Ok(Renewed::Gone) => {
                renewal.step = Step::Empty;
                log::slot_dropped(self);
            }
            Ok(Renewed::Holds(bytes)) => self.held(polling, bytes),
            Ok(Renewed::NotYet(reason)) => {
                if renewal.step == Step::LetGo {
                    renewal.next_at = Instant::now() + LET_GO_INTERVAL;
                }
                log::slot_not_yet(self, &reason);
            }
            Err(error) => log::slot_not_yet(self, &Chain(&error).to_string()),
        }
    }

    /// The new slot waits for the table to be published, and holds back so much meanwhile.
    fn held(&mut self, polling: &mut Polling, bytes: u64) {
        log::slot_held(self, Some(bytes));
        if !self.spec.polls_in_its_stead() || self.spend(bytes).is_none() {
            return;
        }
        let Some(renewal) = &mut polling.renewal else { return };
        (renewal.step, renewal.last, renewal.drained) = (Step::LetGo, false, false);
        renewal.next_at = Instant::now();
    }

    /// Whether the stream may go on from the slot; then polling is over.
    pub(super) async fn hands_over(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        if polling.poller.repairs().is_some() {
            return self.repair_ends(polling, stop).await;
        }
        let drained = polling.renewal.as_ref().is_some_and(|renewal| renewal.drained);
        if !drained || polling.open.is_some() {
            return Ok(false);
        }
        self.finish_jobs(polling, stop).await?;
        let client = polling.desk.control.client();
        cursor::polled(client, self.spec.name(), polling.desk.epoch).await?;
        let wal_end = catalog::read_server(client).await?.wal_end;
        self.handed.ends(wal_end);
        Ok(true)
    }
}

/// Whether the table can be polled though the log can't be streamed.
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

    fn renewal() -> Renewal {
        Renewal {
            job: None,
            next_at: Instant::now(),
            step: Step::Stands,
            last: false,
            drained: false,
        }
    }

    /// The rows of a claim that is given up are in the table, and nobody has them.
    #[test]
    fn a_claim_that_was_given_up_says_nothing_of_what_is_left() {
        let mut renewal = renewal();
        assert!(!renewal.claims());
        renewal.claimed(false, 0);
        assert!(renewal.claims(), "the first took all that was ready: this one takes the rest");
        renewal.claimed(false, 0);
        assert!(renewal.drained);
        assert!(renewal.claims());
        assert!(!renewal.drained);
    }
}
