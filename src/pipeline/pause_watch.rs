//! The session of a paused pipeline: reads the request until it is gone.
//!
//! A paused pipeline has no stream, no lock and no producer: what follows a pause is a start like that of a new
//! process. The session only reads the request, and what the slot retains meanwhile.

use super::connect::application_name;
use super::pause::PauseStatus;
use super::running::{RECONNECT_MAX, RECONNECT_MIN};
use super::spec::PipelineSpec;
use crate::backoff::Backoff;
use crate::postgres::catalog;
use crate::postgres::control::Control;
use crate::postgres::store::pause;
use crate::postgres::{SourceError, SourceErrorKind, SqlState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two queries: a lost notification delays the end of a pause by this time at most.
const INTERVAL: Duration = Duration::from_secs(5);

/// The longest time for a login and its query.
const QUERY_MAX: Duration = Duration::from_secs(30);

/// What a look at the request has found.
pub(super) enum PauseLook {
    /// The pause goes on.
    Paused(Box<PauseStatus>),
    /// There is no request any more.
    Over,
    /// The table of the requests, or the right to it, is gone, as after `setup --undo`. The next start reads the
    /// request before it publishes anything, and halts with the reason.
    Refused(SourceError),
}

/// Reads the request until it is gone.
pub(super) struct PauseWatch {
    spec: Arc<PipelineSpec>,
    /// Events that were given up when the pipeline paused.
    unacknowledged: u64,
    /// From when on no record of this pipeline can be on its way any more: before, the request is not noted as carried
    /// out.
    settled_at: Instant,
    /// The session; `None` before the first login, and after an error.
    control: Option<Control>,
    /// Pauses between attempts to log in.
    backoff: Backoff,
    /// The last query failed.
    failed: bool,
}

impl PauseWatch {
    pub(super) fn new(spec: Arc<PipelineSpec>, unacknowledged: u64, settled_at: Instant) -> Self {
        let backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        Self { spec, unacknowledged, settled_at, control: None, backoff, failed: false }
    }

    /// Waits for the next look at the request.
    ///
    /// # Errors
    /// An error of the server or of the connection. The next call logs in again, after a pause.
    pub(super) async fn next(&mut self) -> Result<PauseLook, SourceError> {
        if self.failed {
            tokio::time::sleep(self.backoff.next(fastrand::f64())).await;
        }
        let looked = self.look().await;
        self.failed = looked.is_err();
        if self.failed {
            self.control = None;
        } else {
            self.backoff.reset();
        }
        looked
    }

    async fn look(&mut self) -> Result<PauseLook, SourceError> {
        if let Some(control) = &mut self.control {
            let notifications = control.notifications();
            let now = Instant::now();
            let next = now + INTERVAL;
            let next = if now < self.settled_at { next.min(self.settled_at) } else { next };
            tokio::select! {
                error = control.closed() => return Err(error),
                () = notifications.next() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
        let answer = tokio::time::timeout(QUERY_MAX, self.query()).await;
        answer.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(QUERY_MAX);
            Err(SourceError::new(kind, "read the pause of the pipeline").caused_by(elapsed))
        })
    }

    async fn query(&mut self) -> Result<PauseLook, SourceError> {
        let spec = &self.spec;
        let control = if let Some(control) = self.control.take() {
            control
        } else {
            // `postrider setup` and `postrider repair` do not take the pipeline for a running one.
            let name = format!("{} (paused)", application_name(spec));
            let control = Control::connect(&spec.conninfo, &name).await?;
            control.listen(spec.name()).await?;
            pause::announce(control.client(), spec.key()).await?;
            control
        };
        let client = control.client();
        let found = match pause::read(client, spec.key()).await {
            Err(error) if error.sqlstate().is_some_and(is_refusal) => {
                return Ok(PauseLook::Refused(error));
            }
            found => found?,
        };
        let look = match found {
            None => PauseLook::Over,
            Some(mut pause) => {
                let noted =
                    pause.drained_at.is_some() && pause.unacknowledged >= self.unacknowledged;
                if !noted
                    && Instant::now() >= self.settled_at
                    && let Some(now) =
                        pause::drained(client, spec.key(), self.unacknowledged).await?
                {
                    pause = now;
                }
                let server = catalog::read_server(client).await?;
                let slot = catalog::read_slot(client, server.version, &spec.names.slot).await?;
                let idle_timeout = catalog::read_idle_timeout(client).await?;
                let idle_timeout = idle_timeout.filter(|_| slot.is_some());
                let wal_end = server.wal_end;
                PauseLook::Paused(Box::new(PauseStatus { pause, slot, wal_end, idle_timeout }))
            }
        };
        self.control = Some(control);
        Ok(look)
    }
}

/// Whether the server refuses to read the request, and will do so until somebody acts.
fn is_refusal(sqlstate: SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME, SqlState::INSUFFICIENT_PRIVILEGE]
        .contains(&sqlstate)
}
