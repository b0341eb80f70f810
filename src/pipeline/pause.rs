//! A pause, as the pipeline finds it in the database: whether there is one, and the session of a paused pipeline, which
//! reads the request until it is gone.
//!
//! A paused pipeline has no stream, no lock and no producer: what follows a pause is a start like that of a new
//! process. The session only reads the request, and what the slot retains meanwhile.

use super::connect::application_name;
use super::failure::Failure;
use super::running::{RECONNECT_MAX, RECONNECT_MIN};
use super::spec::PipelineSpec;
use crate::backoff::Backoff;
use crate::offset::Offset;
use crate::postgres::catalog::{self, SlotRow};
use crate::postgres::control::Control;
use crate::postgres::error_policy::Phase;
use crate::postgres::store::pause::{self, Pause};
use crate::postgres::{SourceError, SourceErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// Pause between two queries: a lost notification delays the end of a pause by this time at most.
const INTERVAL: Duration = Duration::from_secs(5);

/// The longest time for a login and its query.
const QUERY_MAX: Duration = Duration::from_secs(30);

/// The pause of this process: `postrider repair` is started by a person, and is not held up.
pub(super) async fn read(
    client: &Client,
    spec: &PipelineSpec,
) -> Result<Option<Pause>, SourceError> {
    if spec.repair.only { Ok(None) } else { pause::read(client, spec.key()).await }
}

/// Fails if the pipeline is paused. Called while this process has the pipeline's lock: no other process has anything
/// in flight.
pub(super) async fn check(client: &Client, spec: &PipelineSpec) -> Result<(), Failure> {
    match read(client, spec).await {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(Failure::Paused),
        Err(error) => Err(Failure::Source(error, Phase::Handshake)),
    }
}

/// What was read while the pipeline is paused.
pub(super) struct PauseStatus {
    /// The request.
    pub(super) pause: Pause,
    /// The slot, if it exists.
    pub(super) slot: Option<SlotRow>,
    /// The server's end of WAL.
    pub(super) wal_end: Offset,
}

/// Reads the request until it is gone.
pub(super) struct PauseWatch {
    spec: Arc<PipelineSpec>,
    /// Events that were given up when the pipeline paused.
    unacknowledged: u64,
    /// The session; `None` before the first login, and after an error.
    control: Option<Control>,
    /// Pauses between attempts to log in.
    backoff: Backoff,
    /// The last query failed.
    failed: bool,
}

impl PauseWatch {
    pub(super) fn new(spec: Arc<PipelineSpec>, unacknowledged: u64) -> Self {
        let backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        Self { spec, unacknowledged, control: None, backoff, failed: false }
    }

    /// Waits for the next look at the request; `None` once there is none.
    ///
    /// # Errors
    /// An error of the server or of the connection. The next call logs in again, after a pause.
    pub(super) async fn next(&mut self) -> Result<Option<PauseStatus>, SourceError> {
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

    async fn look(&mut self) -> Result<Option<PauseStatus>, SourceError> {
        if let Some(control) = &mut self.control {
            let notifications = control.notifications();
            tokio::select! {
                error = control.closed() => return Err(error),
                () = notifications.next() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
        let answer = tokio::time::timeout(QUERY_MAX, self.query()).await;
        answer.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(QUERY_MAX);
            Err(SourceError::new(kind, "read the pause of the pipeline").caused_by(elapsed))
        })
    }

    async fn query(&mut self) -> Result<Option<PauseStatus>, SourceError> {
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
        let status = match pause::read(client, spec.key()).await? {
            None => None,
            Some(mut pause) => {
                let noted =
                    pause.drained_at.is_some() && pause.unacknowledged >= self.unacknowledged;
                if !noted
                    && let Some(now) =
                        pause::drained(client, spec.key(), self.unacknowledged).await?
                {
                    pause = now;
                }
                let server = catalog::read_server(client).await?;
                let slot = catalog::read_slot(client, server.version, &spec.names.slot).await?;
                Some(PauseStatus { pause, slot, wal_end: server.wal_end })
            }
        };
        self.control = Some(control);
        Ok(status)
    }
}
