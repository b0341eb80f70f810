//! The sink that keeps nothing: every record is acknowledged as it comes.

use super::{Mailbox, NotTaken, Sink};
use postrider_core::record::{Outcome, Record, Ticket};
use std::time::Duration;

/// Acknowledges, and forgets.
pub(super) struct Discard {
    mailbox: Mailbox,
}

impl Discard {
    pub(super) const fn new(mailbox: Mailbox) -> Self {
        Self { mailbox }
    }
}

impl Sink for Discard {
    fn enqueue(&mut self, ticket: Ticket, _record: &Record<'_>) -> Result<(), NotTaken> {
        self.mailbox.report(ticket, Outcome::Acked);
        Ok(())
    }

    fn reset(&mut self) {}

    fn close(&mut self, _grace: Duration) {}
}
