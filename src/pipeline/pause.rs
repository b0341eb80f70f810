//! A pause, as the pipeline finds it in the database.

use super::failure::Failure;
use super::spec::PipelineSpec;
use crate::offset::Offset;
use crate::postgres::SourceError;
use crate::postgres::catalog::SlotRow;
use crate::postgres::error_policy::Phase;
use crate::postgres::store::pause::{self, Pause};
use std::time::Duration;
use tokio_postgres::Client;

/// The pause of this process: `postrider repair` is started by a person, and is not held up.
pub(super) async fn read(
    client: &Client,
    spec: &PipelineSpec,
) -> Result<Option<Pause>, SourceError> {
    if spec.repair.only { Ok(None) } else { pause::read(client, spec.key()).await }
}

/// Fails if the pipeline is paused. Called while this process has the pipeline's lock. Records of a process that had
/// the lock before may still be on their way.
pub(super) async fn check(client: &Client, spec: &PipelineSpec) -> Result<(), Failure> {
    match read(client, spec).await {
        Ok(None) => Ok(()),
        Ok(Some(pause)) => Err(Failure::Paused(Some(Box::new(pause)))),
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
    /// After which time without a reader the slot is lost; `None` without such a limit.
    pub(super) idle_timeout: Option<Duration>,
}
