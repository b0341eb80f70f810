//! One claim after another: how much is claimed, what follows a claim that is done, and one that is given up.

use super::{Anew, Polling};
use crate::backoff::Backoff;
use crate::driver::claim::Open;
use crate::driver::lag::OldestRow;
use crate::driver::patience::unless_stopped;
use crate::driver::pipeline::Pipeline;
use crate::driver::renewal::Renewal;
use crate::driver::run::Stop;
use crate::driver::say;
use crate::postgres::SourceError;
use crate::postgres::poll::CLAIM_ROWS_MAX;
use crate::relay::{Input, Restart};
use std::time::Duration;
use tokio::time::Instant;

/// Pauses before a claim is fed again whose producer broke, or whose topic is not to be had: what was published
/// behind such an event is published again each time. A claim is held no longer than a few of the longest.
pub(super) const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Before the next look at a table of which a look's worth was found, and none could be had: it is locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// How long tries that are out keep polling from beginning anew.
const TRIES_WAIT_MAX: Duration = Duration::from_secs(2);

/// Rows of the largest claim: it grows to this while there is a backlog.
const BACKLOG_ROWS: usize = 4_000;

/// A claim that was held longer is not followed by a larger one. A quarter of what it may be held.
const CLAIM_SLOW: Duration = Duration::from_secs(5);

const _: () = assert!(BACKLOG_ROWS <= CLAIM_ROWS_MAX);

impl Pipeline {
    pub(super) async fn claim(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.mark_what_waited(polling, stop).await?;
        let settings = &self.spec.poll;
        self.handed.claims();
        let limit = polling.limit.max(settings.batch).min(polling.limit_max);
        let all = polling.renewal.as_mut().is_some_and(Renewal::claims);
        polling.keeps_now = polling.keeps_failures && !all;
        let began = Instant::now();
        let canceller = polling.poller.canceller();
        let poller = &mut polling.poller;
        let claim =
            async { if all { poller.claim_all(limit).await } else { poller.claim(limit).await } };
        let Some(claim) = unless_stopped(stop, canceller, claim).await? else {
            return polling.poller.abandon().await;
        };
        let (batch, interval) = (settings.batch, settings.interval);
        // One that does not come any more is the relay's again, before a later one of its aggregate is published.
        if self.returning_are_fewer(polling, stop).await? {
            polling.poller.abandon().await?;
            polling.anew = Anew::Due(Instant::now());
            return self.begin_anew(polling, stop).await;
        }
        self.lag.answered(std::time::Instant::now());
        let takes_all = !claim.more && claim.withheld == 0 && polling.poller.repairs().is_none();
        polling.empties_since = takes_all.then_some(began);
        say::rows_expired(&mut self.tell, self.spec.name(), claim.expired);
        self.look_who_locks(polling, &claim.missed, stop).await?;
        if let Some(renewal) = &mut polling.renewal {
            renewal.claimed(claim.more, claim.withheld);
        }
        polling.limit = if claim.more { (limit * 2).min(BACKLOG_ROWS) } else { batch };
        if claim.rows.is_empty() {
            self.is_empty(polling);
            let pause = match (claim.more, claim.expired) {
                (true, 0) => LOCKED_PAUSE.min(interval),
                (true, _) => Duration::ZERO,
                (false, _) => interval,
            };
            polling.next_at = Instant::now() + pause;
        } else {
            polling.open = Some(Open::new(claim, polling.floor));
        }
        Ok(())
    }

    /// Notes for the lag that nothing is ready any more, where the claim at hand had taken all there was.
    fn is_empty(&mut self, polling: &mut Polling) {
        if let Some(began) = polling.empties_since.take() {
            self.lag.polled(OldestRow::None, began.into_std(), std::time::Instant::now());
        }
    }

    /// Settles a claim that is done, and looks for the next at once.
    pub(super) async fn end_claim(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        if let Some(open) = &polling.open {
            polling.floor = open.end();
            polling.limit_max = if open.claimed_at.elapsed() < CLAIM_SLOW {
                polling.limit_max.saturating_mul(2).min(CLAIM_ROWS_MAX)
            } else {
                // A larger one may be held for too long.
                polling.limit_max.min(open.rows().max(1))
            };
        }
        polling.again.reset();
        let any = self.settle_claim(polling, stop).await?;
        self.is_empty(polling);
        if std::mem::take(&mut polling.failed) {
            // The table holds failed rows and their followers back: the next claim is a new beginning.
            polling.anew = Anew::Due(Instant::now());
            self.begin_anew(polling, stop).await?;
        }
        // Where everything waits for something else, the next claim finds the same.
        let pause = if any { Duration::ZERO } else { self.spec.poll.interval };
        polling.next_at = Instant::now() + pause;
        Ok(())
    }

    /// Everything in flight is given up, not the claim: its rows are ours, and come again where they stood, so that
    /// the relay knows which of them a broker has refused, or parked. One that was held too long, or is not ours any
    /// more, is given up too. It is [`begin_anew`](Self::begin_anew) that feeds it, once all effects are performed:
    /// one may be a second of these.
    pub(super) async fn send_again(
        &mut self,
        polling: &mut Polling,
        why: Restart,
    ) -> Result<(), SourceError> {
        self.reset_sink(why);
        if why == Restart::SlotTaken {
            return self.let_go(polling).await;
        }
        if polling.anew != Anew::No {
            return Ok(());
        }
        polling.anew = Anew::SameHistory;
        // One that is resolved is settled all the same.
        if let Some(mut open) = polling.open.take() {
            if !self.claim_is_resolved(&open) {
                open.rewind();
            }
            polling.open = Some(open);
        }
        // A broker that refuses an event is about to tell which: the sooner it is found the better.
        polling.again_at = match why {
            Restart::Refused(_) => Instant::now(),
            Restart::SinkBroken | Restart::Unknown | Restart::SlotTaken => {
                Instant::now() + polling.again.next(fastrand::f64())
            }
        };
        Ok(())
    }

    /// The claim at hand has been held for as long as it may be. What is acknowledged is settled, and the others
    /// stay in it as long as the broker goes on to acknowledge. Else it is given up: it locks rows, and what is
    /// published again is what has no answer. One of a repair locks nothing, and stays whatever the broker does.
    pub(super) async fn held_long(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        let repairs = polling.poller.repairs().is_some();
        let stays = repairs || !self.broker_is_down();
        if stays && self.settle_so_far(polling, stop).await? {
            return Ok(());
        }
        let list = polling.poller.repairs();
        if let (Some(list), Some(open)) = (list, &mut polling.open) {
            list.keep_open().await?;
            open.held_since = Instant::now();
            return Ok(());
        }
        if let Some(open) = &mut polling.open {
            polling.floor = open.end();
            // It would be held as long again.
            polling.limit_max = (open.rows() / 2).max(1);
            // What is parked is read again.
            open.cursor_waits = false;
        }
        let now = self.now();
        // One of which nothing is settled is rolled back: its aggregates are not to rest.
        if self.claim_has_progress(polling) {
            self.settle_claim(polling, stop).await?;
        }
        if !polling.desk.overruled {
            self.apply(now, Input::SlotTaken);
        }
        Ok(())
    }

    async fn let_go(&mut self, polling: &mut Polling) -> Result<(), SourceError> {
        polling.poller.abandon().await?;
        polling.desk.jobs.unseen = None;
        if let Some(open) = polling.open.take() {
            polling.floor = open.end();
            // It would be held as long again.
            polling.limit_max = (open.rows() / 2).max(1);
        }
        (polling.failed, polling.anew) = (false, Anew::Due(Instant::now()));
        polling.limit = 0;
        polling.next_at = Instant::now() + self.spec.poll.interval;
        Ok(())
    }

    /// Begins anew, if that is wanted, with what is parked now. A write that is under way comes first: the relay
    /// would have it made a second time beside itself; and tries that are out, for a while: their producer would go
    /// with them.
    pub(super) async fn begin_anew(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        let same = match polling.anew {
            Anew::No => return Ok(()),
            _ if polling.desk.jobs.written_since().is_some() => return Ok(()),
            Anew::Due(since) if self.relay.is_trying() && since.elapsed() < TRIES_WAIT_MAX => {
                return Ok(());
            }
            Anew::Due(_) => false,
            Anew::SameHistory if Instant::now() < polling.again_at => return Ok(()),
            Anew::SameHistory => true,
        };
        polling.anew = Anew::No;
        if same {
            self.read_in_claim(polling).await?;
        } else {
            self.reload(polling, stop).await?;
            polling.start = polling.floor;
        }
        drop(self.begin_polling(polling, same));
        Ok(())
    }
}
