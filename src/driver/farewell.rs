//! The end of a stream in good order. What the server does not answer in time is left to the next start, which
//! repeats it.

use super::connect::Connected;
use super::pipeline::Pipeline;
use super::say;
use crate::postgres::slot;
use std::time::Duration;
use tokio::time::Instant;

/// How long the server may take to answer the end of a stream, and to show the last position in the slot.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Interval between two queries of the slot while it does not show the last position yet: PostgreSQL sends no
/// notification of that.
const FAREWELL_LOOK: Duration = Duration::from_millis(5);

impl Pipeline {
    /// Ends the stream, and waits until the slot shows the last position: so nothing comes twice.
    pub(super) async fn farewell(&mut self, connected: Connected) {
        let Connected { wal, desk, version, .. } = connected;
        if let Err(error) = wal.stop(FAREWELL_MAX).await {
            say::shutdown_error(self, &error);
            return;
        }
        let deadline = Instant::now() + FAREWELL_MAX;
        while Instant::now() < deadline {
            match slot::read(desk.control.client(), version, &self.spec.names.slot).await {
                Ok(Some(row)) if row.confirmed_flush_lsn >= Some(self.confirmed.lsn()) => return,
                Ok(Some(_)) => tokio::time::sleep(FAREWELL_LOOK).await,
                Ok(None) => return,
                Err(error) => return say::shutdown_error(self, &error),
            }
        }
    }
}
