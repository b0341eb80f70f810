//! Positions and times of the protocol, and those of the core: an LSN is an [`Offset`], and times are in microseconds
//! since 2000 there and since 1970 here.

use pg_replication::timestamp::PgTime;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::timestamp::Timestamp;

/// A byte position in the WAL of one timeline: the offset of a PostgreSQL source.
pub type Lsn = Offset;

/// The LSN that a message of the protocol has.
pub const fn from_wire(lsn: pg_replication::lsn::Lsn) -> Lsn {
    Lsn::new(lsn.to_wire())
}

/// The LSN for a message of the protocol.
pub const fn to_wire(lsn: Lsn) -> pg_replication::lsn::Lsn {
    pg_replication::lsn::Lsn::from_wire(lsn.get())
}

/// A watermark for the stream, which confirms it to the server.
pub const fn confirmable(watermark: Watermark) -> pg_replication::lsn::Watermark {
    pg_replication::lsn::Watermark::resumed(to_wire(watermark.offset()))
}

/// The time that a message of the protocol has.
pub const fn time(of: PgTime) -> Timestamp {
    Timestamp { unix_micros: of.unix_micros() }
}

/// The time that PostgreSQL's binary formats have as this number. Unit: microseconds since 2000-01-01 UTC.
pub const fn from_pg_micros(micros: i64) -> Timestamp {
    time(PgTime { micros })
}

/// The number that PostgreSQL's binary formats have for a time. Unit: microseconds since 2000-01-01 UTC.
pub const fn to_pg_micros(of: Timestamp) -> i64 {
    of.unix_micros.saturating_sub(PgTime::UNIX_OFFSET_MICROS)
}

/// Whether `lsn` is the offset of a claim, and not that of a commit record.
///
/// Commit records are aligned to 8 bytes, so no commit of the stream has an odd position. `postrider-relay` sets the
/// lowest bit of the position of a claim.
pub const fn is_claim_lsn(lsn: Lsn) -> bool {
    lsn.get() % 2 == 1
}
