//! The sink that keeps nothing: every record is acknowledged as it comes.

use postrider_core::record::{Outcome, Record, Ticket};
use postrider_core::sink::{Mailbox, NotTaken, Sink};
use std::time::Duration;

/// Acknowledges each record, and drops it.
pub(super) struct Nowhere {
    mailbox: Mailbox,
}

impl Nowhere {
    pub(super) const fn new(mailbox: Mailbox) -> Self {
        Self { mailbox }
    }
}

impl Sink for Nowhere {
    fn enqueue(&mut self, ticket: Ticket, _record: &Record<'_>) -> Result<(), NotTaken> {
        self.mailbox.report(ticket, Outcome::Acked);
        Ok(())
    }

    fn reset(&mut self) {}

    fn close(&mut self, _grace: Duration) {}
}
