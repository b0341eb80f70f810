//! Topics that we may see and not write to: they look like any other until one of them refuses a record. From then on
//! each that is asked for is asked for our rights too.
//!
//! Owns what was last answered; what a closed topic leads to is the keeper's.

use super::native::Description;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeSet;

/// Topics remembered as closed; a further one is found open, and refuses again.
const CLOSED_MAX: usize = 1_000;

#[derive(Default)]
pub(super) struct Rights {
    closed: BTreeSet<String>,
}

impl Rights {
    /// Whether a topic that is there is closed to us, by what its broker says.
    ///
    /// The controller is asked, which may be a broker that nobody has spoken to: where it gives no answer, the one
    /// before holds.
    pub(super) fn closed(&mut self, topic: &str, described: Result<Description, Code>) -> bool {
        match described.map(|described| described.may_write) {
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
