//! The signals that end a demo.

use super::DemoError;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, a supervisor's SIGTERM, a terminal that was closed.
#[derive(Debug)]
pub(super) struct Interrupts([Signal; 3]);

impl Interrupts {
    /// Listens from now on.
    pub(super) fn new() -> Result<Self, DemoError> {
        let on = |kind| signal(kind).map_err(DemoError::Signals);
        Ok(Self([
            on(SignalKind::interrupt())?,
            on(SignalKind::terminate())?,
            on(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next. May be dropped while it waits.
    pub(super) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
