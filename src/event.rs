//! What the application wrote: an event, the aggregate it belongs to, and its place in the log.
//!
//! Knows nothing of tables, topics or sockets. `outbox` makes events from tuples; `relay` orders them.

use crate::lsn::Lsn;
use std::fmt;

/// Identity and sort key of an event: where its transaction commits, and which change of it the event is.
///
/// Deterministic across reconnects, spills and restarts of the server (measured on 15 and 18). The ordinal counts every
/// change of the transaction that the server sends, ours or not, from 0; row LSNs are neither unique nor ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// Start of the transaction's commit record (`Begin.final_lsn`).
    pub commit_lsn: Lsn,
    /// Index of the change inside the transaction, from 0.
    pub ordinal: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit_lsn, self.ordinal)
    }
}

/// The unit of order: the pair of aggregate type and aggregate id.
///
/// `Debug` shows lengths only, since an aggregate's id may be a person's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Aggregate<'a> {
    /// The aggregate's type, `order`.
    pub kind: &'a str,
    /// The aggregate's id inside its type.
    pub id: &'a str,
}

impl fmt::Debug for Aggregate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aggregate({} B, {} B)", self.kind.len(), self.id.len())
    }
}

/// A point in time as PostgreSQL's binary formats have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PgTime {
    /// Microseconds since 2000-01-01 00:00:00 UTC.
    pub micros: i64,
}

impl PgTime {
    /// Microseconds between the Unix epoch and PostgreSQL's.
    pub const UNIX_OFFSET_MICROS: i64 = 946_684_800_000_000;

    /// Milliseconds since 1970-01-01 00:00:00 UTC, rounded down.
    pub const fn unix_millis(self) -> i64 {
        self.micros.saturating_add(Self::UNIX_OFFSET_MICROS).div_euclid(1000)
    }

    /// Microseconds since 1970-01-01 00:00:00 UTC.
    pub const fn unix_micros(self) -> i64 {
        self.micros.saturating_add(Self::UNIX_OFFSET_MICROS)
    }
}
