//! Topics that we may see and not write to: they look like any other until one of them refuses a record. From then on
//! each that is asked for is asked for our rights too.
//!
//! Owns what was last answered; what a closed topic leads to is the keeper's.

use super::native;
use super::polled::Producer;
use super::shared::Shared;
use super::topic::Facts;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Topics remembered as closed; a further one is found open, and refuses again.
const CLOSED_MAX: usize = 1_000;

#[derive(Default)]
pub(super) struct Rights {
    closed: BTreeSet<String>,
}

impl Rights {
    /// Whether a topic that is there is closed to us. Waits at most `timeout`.
    ///
    /// The controller is asked, which may be a broker that nobody has spoken to: where it gives no answer, the one
    /// before holds.
    pub(super) fn closed(
        &mut self,
        shared: &Shared,
        producer: &Producer,
        topic: &str,
        facts: &Facts,
        timeout: Duration,
    ) -> bool {
        if !shared.rights.load(Ordering::Acquire) {
            return false;
        }
        match native::may_write(producer, &facts.name, timeout) {
            Ok(Some(false)) if self.closed.len() < CLOSED_MAX => {
                self.closed.insert(topic.to_owned());
            }
            Ok(Some(true) | None) => {
                self.closed.remove(topic);
            }
            Ok(Some(false)) | Err(_) => {}
        }
        self.closed.contains(topic)
    }
}
