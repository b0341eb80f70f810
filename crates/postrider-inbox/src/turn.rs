//! Whose turn it is to read: of several processes that read one stream, one stores its messages, in their order.
//!
//! The turn is a row of `postrider.inbox_offset`, with a number that its owner moves: with each batch, in the same
//! transaction, and once a second while nothing comes. A process that sees the number rest for
//! [`LEASE`] takes the turn. A former owner, which was frozen, finds another number and stores nothing.

use crate::batch::Partition;
use crate::store::{InboxStore, StoredTurn};
use postrider_postgres::SourceError;
use std::time::{Duration, Instant};

/// An owner that has not moved the number for this time has lost its turn, as soon as another process wants it.
pub const LEASE: Duration = Duration::from_secs(5);

/// Pause between two moves of the number while nothing is stored, and between two looks of a process that waits.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// The turn to read one stream.
#[derive(Debug)]
pub struct Turn {
    key: Partition,
    /// What no other process has.
    owner: String,
    /// The number, while the turn is this process's.
    held: Option<i64>,
    /// The number that another owner had last, and since when.
    seen: Option<(i64, Instant)>,
    /// When the number was last moved, or looked at.
    looked_at: Option<Instant>,
}

impl Turn {
    /// The turn to read `what`, which is the same for all processes that read the same. `owner` is what no other
    /// process has.
    pub fn new(what: String, owner: String) -> Self {
        let key = Partition { topic: what, number: 0 };
        Self { key, owner, held: None, seen: None, looked_at: None }
    }

    /// The row that a batch moves.
    pub const fn key(&self) -> &Partition {
        &self.key
    }

    /// The stored number, and the one behind the next batch; `None` if it is another process's turn.
    pub fn span(&self) -> Option<(i64, i64)> {
        self.held.map(|number| (number, number.saturating_add(1)))
    }

    /// Whether the number has to be moved, or looked at, now.
    pub fn is_due(&self) -> bool {
        self.looked_at.is_none_or(|at| at.elapsed() >= RENEW_INTERVAL)
    }

    /// A batch has moved the number.
    pub fn moved(&mut self) {
        self.held = self.span().map(|(_, next)| next);
        self.looked_at = Some(Instant::now());
    }

    /// It is not known whether a batch has moved the number, or another process has the turn.
    pub const fn forget(&mut self) {
        (self.held, self.looked_at) = (None, None);
    }

    /// Takes the turn if it is free, or keeps it; false if it is another process's.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn take(&mut self, store: &InboxStore) -> Result<bool, SourceError> {
        let (now, stored) = (Instant::now(), store.turn(&self.key).await?);
        self.looked_at = Some(now);
        let from = stored.as_ref().map(|stored| stored.number);
        let is_free = stored.is_none_or(|StoredTurn { number, owner }| {
            // Ours, after a session that has ended; or given back.
            owner.is_none_or(|owner| owner == self.owner) || self.rests(number, now)
        });
        self.held =
            if is_free { store.take_turn(&self.key, from, &self.owner).await? } else { None };
        if self.held.is_some() {
            self.seen = None;
        }
        Ok(self.held.is_some())
    }

    /// Whether another owner has not moved its number for [`LEASE`].
    fn rests(&mut self, number: i64, now: Instant) -> bool {
        match self.seen {
            Some((seen, since)) if seen == number => now.duration_since(since) >= LEASE,
            Some(_) | None => {
                self.seen = Some((number, now));
                false
            }
        }
    }

    /// Lets another process read.
    ///
    /// # Errors
    /// An error of the server or of the connection: another process takes the turn after [`LEASE`].
    pub async fn give_back(&mut self, store: &InboxStore) -> Result<(), SourceError> {
        let Some((from, _)) = self.span() else { return Ok(()) };
        self.forget();
        store.give_turn_back(&self.key, from).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_free_when_its_number_rests() {
        let mut turn = Turn::new("nats:EVENTS".to_owned(), "me".to_owned());
        let start = Instant::now();
        assert!(!turn.rests(3, start), "seen for the first time");
        assert!(!turn.rests(3, start + LEASE / 2));
        assert!(!turn.rests(4, start + LEASE), "it was moved");
        assert!(!turn.rests(4, start + LEASE + LEASE / 2));
        assert!(turn.rests(4, start + 2 * LEASE));
        assert!(turn.span().is_none() && turn.is_due());
    }
}
