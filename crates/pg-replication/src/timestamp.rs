//! Timestamps of the replication protocol.

/// A point in time as in PostgreSQL's binary formats and replication messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PgTime {
    /// Microseconds since 2000-01-01 00:00:00 UTC.
    pub micros: i64,
}

impl PgTime {
    /// Microseconds from the Unix epoch, 1970-01-01, to PostgreSQL's epoch, 2000-01-01.
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
