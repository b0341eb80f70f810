//! A database that is away: waited for, with pauses that double, until it is back, can't be gone on with, or the replay
//! is told to stop. There is no last try.

use super::ReplayError;
use super::job::locked;
use super::outlet::Outlet;
use super::plan::{Plan, Source};
use super::resume::again;
use super::run::APPLICATION_NAME;
use super::tally::Tell;
use crate::backoff::Backoff;
use crate::driver::PipelineSpec;
use crate::error::Chain;
use crate::event::Position;
use crate::postgres::action::{Action, Phase, Repeats, action};
use crate::postgres::control::Control;
use crate::postgres::replay as rows;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Pauses between two tries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// A try to connect may take this long.
const TRY_MAX: Duration = Duration::from_mins(1);

/// What is gone on with.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) spec: &'a PipelineSpec,
    pub(super) plan: &'a Plan,
    /// A dry run has no row.
    pub(super) dry: bool,
}

/// The wait for a database.
#[derive(Debug)]
pub(super) struct Away {
    backoff: Backoff,
    repeats: Repeats,
    back_at: Instant,
}

impl Away {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Self { backoff, repeats: Repeats::default(), back_at: Instant::now() }
    }

    /// Waits until there is a session again that may go on after `error`; `None` where it is told to stop. What is in
    /// flight meanwhile is still reported.
    ///
    /// # Errors
    /// `error`, where waiting does not mend it, or what has become of the place.
    pub(super) async fn wait<S: Future<Output = ()>>(
        &mut self,
        error: ReplayError,
        place: Place<'_>,
        outlet: &mut Outlet,
        mut stop: Pin<&mut S>,
        tell: &mut dyn FnMut(Tell<'_>),
    ) -> Result<Option<Control>, ReplayError> {
        if self.back_at.elapsed() > PAUSE_MAX {
            self.backoff.reset();
        }
        let mut least = self.heals(&error, Phase::Stream, outlet);
        let mut error = error;
        loop {
            let Some(pause_min) = least else { return Err(error) };
            let told = format!("the database is away, or will not go on: {}", Chain(&error));
            tell(Tell::Down(&told, None));
            let until = Instant::now() + self.backoff.next(fastrand::f64()).max(pause_min);
            while Instant::now() < until {
                tokio::select! {
                    biased;
                    () = &mut stop => return Ok(None),
                    () = outlet.posted() => outlet.take_posts(tell)?,
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
            let attempt = tokio::time::timeout(TRY_MAX, connect(place, outlet));
            let tried = tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                tried = attempt => tried,
            };
            match tried {
                Ok(Ok(control)) => {
                    tell(Tell::Up);
                    self.back_at = Instant::now();
                    return Ok(Some(control));
                }
                Ok(Err(why)) => {
                    least = self.heals(&why, Phase::Control, outlet);
                    error = why;
                }
                Err(_elapsed) => least = Some(PAUSE_MIN),
            }
        }
    }

    /// The shortest pause before the next try, where another may do better.
    fn heals(&mut self, error: &ReplayError, phase: Phase, outlet: &Outlet) -> Option<Duration> {
        let ReplayError::Source(error) = error else {
            // A session of ours that the server still has, or somebody else's; a standby may be promoted.
            let passes = matches!(
                error,
                ReplayError::Busy { .. } | ReplayError::InUse { .. } | ReplayError::Standby
            );
            return (passes && phase == Phase::Control).then_some(Duration::from_secs(1));
        };
        match action(error, phase, true) {
            Action::Reconnect(class) | Action::Later(class) => {
                let at = outlet.tracker.progress().position().commit_lsn;
                let wedged = self.repeats.wedged(error, at);
                (!wedged).then(|| class.pause_min())
            }
            Action::StandBy => Some(PAUSE_MIN),
            Action::Recheck(_) | Action::Halt(_) => None,
        }
    }
}

/// A session that has the lock, on a server where the replay is as we left it.
async fn connect(place: Place<'_>, outlet: &Outlet) -> Result<Control, ReplayError> {
    let Place { spec, plan, dry } = place;
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let (client, server) = (control.client(), locked(&control, spec).await?);
    if dry {
        return Ok(control);
    }
    let name = plan.name.clone();
    let Some(row) = rows::find(client, spec.name(), &name).await? else {
        let known = rows::names(client, spec.name()).await?;
        return Err(ReplayError::Unknown { name, known });
    };
    if row.finished {
        return Err(ReplayError::Finished { name, published: row.published });
    }
    // What we noted last may have arrived though nobody said so, the end of all too; more than that only another can
    // have noted.
    let end = match &plan.source {
        Source::Log { until, .. } => Some(*until),
        Source::Table { .. } => None,
    };
    let ours = |next: Position| {
        next <= outlet.tracker.progress().position() || Some(next.commit_lsn) == end
    };
    if row.next.is_some_and(|next| !ours(next)) {
        return Err(ReplayError::TakenOver { name });
    }
    again(client, spec, &server, &plan.request, &row).await?;
    Ok(control)
}
