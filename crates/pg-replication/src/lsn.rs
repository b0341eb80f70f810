//! Positions in PostgreSQL's write-ahead log.
//!
//! Owns the two types a position may have: [`Lsn`], any byte position, and [`Watermark`], a position that may be
//! confirmed to the server. There is no arithmetic on either. `end_lsn + 1` and `start + length` are in widely copied
//! code and lose transactions: the server skips a transaction when its commit record starts *before* the confirmed
//! position, and two commits may touch (`SnapBuildXactNeedsSkip`, `src/backend/replication/logical/snapbuild.c`).

use std::fmt;
use std::str::FromStr;

/// A byte position in the WAL of one timeline, printed as PostgreSQL prints it: `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// The invalid position, which the protocol uses for "none" and "from where the slot stands".
    pub const ZERO: Self = Self(0);

    /// From the eight bytes of a protocol message.
    pub const fn from_wire(value: u64) -> Self {
        Self(value)
    }

    /// To the eight bytes of a protocol message.
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// Bytes of WAL between `earlier` and this position, for lag figures only; 0 when `earlier` is later.
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl Lsn {
    /// The position that a claim of the poller gets whose rows were all committed before `self`: the number is odd. No
    /// commit record begins there, since records are aligned to 8 bytes, so no commit of the stream has this position.
    #[must_use]
    pub const fn for_claim(self) -> Self {
        Self(self.0 | 1)
    }

    /// Whether it is a claim's position, and not a commit's.
    pub const fn is_claims(self) -> bool {
        self.0 % 2 == 1
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a position.
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

/// A position below which every event is resolved, and which may therefore be confirmed to the server.
///
/// There are three ways to get one, and no others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Watermark(Lsn);

impl Watermark {
    /// The first byte after a commit record: `Commit.end_lsn` of a transaction of which every event is resolved.
    pub const fn from_commit_end(end_lsn: Lsn) -> Self {
        Self(end_lsn)
    }

    /// `walEnd` of a keepalive that arrived while no transaction was open and nothing before it was unresolved.
    ///
    /// It is the last position the walsender has processed, not the end of WAL (measured on 15 and 18).
    pub const fn from_keepalive(wal_end: Lsn) -> Self {
        Self(wal_end)
    }

    /// Where an earlier session had got to: the cursor row, or the slot itself.
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
    fn text_form_is_postgresqls() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "1/A"] {
            assert_eq!(text.parse::<Lsn>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_a_position_is_refused() {
        for text in
            ["", "/", "0", "0/", "/0", "0/g", "+1/0", "123456789/0", "0/0/0", " 0/0", "0x1/0"]
        {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }
}
