//! Positions in PostgreSQL's write-ahead log: [`Lsn`], any byte position, and [`Watermark`], a position that may be
//! confirmed to the server.
//!
//! Neither type has arithmetic. `end_lsn + 1` and `start + length`, which widely copied code has, lose transactions:
//! the server skips a transaction if its commit record starts *before* the confirmed position, and one commit record
//! may start where another ends (`SnapBuildXactNeedsSkip`, `src/backend/replication/logical/snapbuild.c`).

use std::fmt;
use std::str::FromStr;

/// A byte position in the WAL of one timeline, printed as PostgreSQL prints it: `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// The invalid position, 0/0. In a status update it means "no position"; in `START_REPLICATION` it means "from the
    /// slot's confirmed position".
    pub const ZERO: Self = Self(0);

    /// The position that a protocol message has as an unsigned 64-bit number.
    pub const fn from_wire(value: u64) -> Self {
        Self(value)
    }

    /// The number that a protocol message has for the position.
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// Bytes of WAL between `earlier` and this position, for lag figures only; 0 if `earlier` is the later position.
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an LSN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an LSN: expected two hexadecimal numbers as in 16/B374D848")]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        let half = |digits: &str| match digits.len() {
            1..=8 if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u32::from_str_radix(digits, 16).ok()
            }
            _ => None,
        };
        let high = half(high).ok_or(ParseLsnError)?;
        let low = half(low).ok_or(ParseLsnError)?;
        Ok(Self((u64::from(high) << 32) | u64::from(low)))
    }
}

/// A position that may be confirmed to the server: the client has processed everything below it, and the server may
/// remove the WAL below it.
///
/// Only these three constructors make a watermark, and `default()`, which is 0/0 and confirms nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Watermark(Lsn);

impl Watermark {
    /// `Commit.end_lsn`, the first byte after the commit record, of a transaction that is processed completely.
    pub const fn from_commit_end(end_lsn: Lsn) -> Self {
        Self(end_lsn)
    }

    /// `walEnd` of a keepalive that arrived outside a transaction, once everything received before it is processed.
    ///
    /// `walEnd` is the last position that the walsender has processed, not the end of WAL (measured on 15 and 18).
    pub const fn from_keepalive(wal_end: Lsn) -> Self {
        Self(wal_end)
    }

    /// The position that an earlier session confirmed: the caller's own record of it, or the slot's
    /// `confirmed_flush_lsn`.
    pub const fn resumed(lsn: Lsn) -> Self {
        Self(lsn)
    }

    /// The position itself.
    pub const fn lsn(self) -> Lsn {
        self.0
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_that_of_postgresql() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "1/A"] {
            assert_eq!(text.parse::<Lsn>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "/", "0", "0/", "/0", "0/g", "+1/0", "123456789/0", "0/0/0", " 0/0", "0x1/0"]
        {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }
}
