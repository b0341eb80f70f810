//! One turn of polling: what it waits for, and what follows from what came first.

use super::looks::Looked;
use super::{Anew, Over, Polling};
use crate::driver::parking::{Desk, Said};
use crate::driver::pipeline::Pipeline;
use crate::driver::renewal::renewing;
use crate::driver::run::{Exit, Stop};
use crate::driver::say;
use crate::driver::spec::Mode;
use crate::postgres::SourceError;
use crate::postgres::setup::Renewed;
use crate::relay::Input;
use std::time::Duration;
use tokio::time::Instant;

/// How long a claim may stay open before it is settled in part or given up: it holds row locks, and the horizon of
/// VACUUM.
const CLAIM_HOLD_MAX: Duration = Duration::from_secs(20);

/// The same of a page of a repair, which locks nothing: what is published and not settled comes again if the process
/// ends.
const PAGE_HOLD_MAX: Duration = Duration::from_secs(5);

/// What happened first.
pub(in crate::driver) enum Turn {
    Leave,
    Drain,
    Grace,
    Posts,
    Parking(Said),
    Lost(SourceError),
    Due,
    Claim,
    Looked(Result<(Looked, Instant), SourceError>),
    Renew,
    Renewed(Result<Renewed, SourceError>),
}

impl Polling {
    /// When the claim at hand is to be settled in part, or given up.
    fn held_until(&self) -> Option<Instant> {
        let repairs = self.poller.repairs().is_some();
        let hold = if repairs { PAGE_HOLD_MAX } else { CLAIM_HOLD_MAX };
        self.open.as_ref().map(|open| open.held_since + hold)
    }
}

impl Pipeline {
    pub(super) async fn wait_polling(&self, polling: &mut Polling, stop: &Stop) -> Turn {
        let idle = polling.open.is_none() && polling.anew == Anew::No;
        let hungry = idle && !self.relay.stopping() && self.relay.intake_open();
        // A broker that is down would only keep the rows locked.
        let claim = hungry && !self.broker_is_down();
        let hold = polling.held_until();
        let due = self.due();
        let due = hold.map_or(due, |hold| due.min(hold));
        let again = (polling.anew == Anew::SameHistory).then_some(polling.again_at);
        let due = again.filter(|at| *at > Instant::now()).map_or(due, |at| due.min(at));
        let Polling { poller, desk, next_at, leave_at, renewal, looks, .. } = polling;
        let Desk { control, jobs, .. } = desk;
        let (wake, notifications) = (poller.wake(), control.notifications());
        let grace = leave_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = stop.leave() => Turn::Leave,
            () = stop.drain(), if leave_at.is_none() => Turn::Drain,
            () = tokio::time::sleep_until(grace), if leave_at.is_some() => Turn::Grace,
            error = poller.closed() => Turn::Lost(error),
            error = control.closed() => Turn::Lost(error),
            () = tokio::time::sleep_until(*next_at), if claim => Turn::Claim,
            () = wake.notified(), if claim => Turn::Claim,
            said = jobs.next(&notifications) => Turn::Parking(said),
            () = self.mailbox.arrived() => Turn::Posts,
            turn = renewing(renewal) => turn,
            looked = looks.next() => Turn::Looked(looked),
            () = tokio::time::sleep_until(due) => Turn::Due,
        }
    }

    pub(super) async fn react_polling(
        &mut self,
        polling: &mut Polling,
        turn: Turn,
        stop: &Stop,
    ) -> Result<Option<Over>, SourceError> {
        let now = self.now();
        match turn {
            Turn::Leave | Turn::Grace => {
                say::shutdown_incomplete(self);
                self.apply(now, Input::SourceLost);
                return Ok(Some(Over::Exit(self.outcome().unwrap_or(Exit::Stopped))));
            }
            Turn::Drain => {
                polling.leave_at = Some(Instant::now() + self.spec.shutdown_grace);
                say::draining(self);
                self.apply(now, Input::Drain);
            }
            Turn::Lost(error) => return Err(error),
            Turn::Parking(said) => self.parking_said(&mut polling.desk, said)?,
            Turn::Claim => {
                self.claim(polling, stop).await?;
                if polling.open.is_none() {
                    return Ok(self.hands_over(polling, stop).await?.then_some(Over::Streams));
                }
            }
            Turn::Looked(Ok((Looked { oldest, left }, began))) => {
                if self.spec.mode == Mode::Poll {
                    say::slot_left_behind(self, left.as_ref());
                }
                self.lag.polled(oldest, began.into_std(), std::time::Instant::now());
            }
            // The session is gone; else the server refuses this one question, and polling goes on.
            Turn::Looked(Err(error)) if error.sqlstate().is_none() => return Err(error),
            Turn::Looked(Err(error)) => say::look_failed(self, &error),
            Turn::Renew => self.renew(polling),
            Turn::Renewed(outcome) => self.renewed(polling, outcome),
            Turn::Due => {
                if polling.held_until().is_some_and(|until| until <= Instant::now()) {
                    self.held_long(polling, stop).await?;
                } else {
                    self.apply(now, Input::Tick);
                }
            }
            Turn::Posts => {}
        }
        Ok(None)
    }
}
