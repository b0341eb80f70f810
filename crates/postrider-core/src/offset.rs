//! Positions in a source: [`Offset`], any position, and [`Watermark`], a position that may be confirmed to the source.
//!
//! Neither type has arithmetic. `end + 1` and `start + length` lose transactions: a PostgreSQL server, for example,
//! skips a transaction if its commit record starts *before* the confirmed position, and one commit record may start
//! where another ends (`SnapBuildXactNeedsSkip`, `src/backend/replication/logical/snapbuild.c`).

use std::fmt;
use std::str::FromStr;

/// A position in what one source sends, ordered within one history of the source. With PostgreSQL it is the LSN.
///
/// It is printed as two hexadecimal halves, which is how PostgreSQL prints an LSN: `16/B374D848`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Offset(u64);

impl Offset {
    /// The lowest offset, which no transaction has. It means "no position".
    pub const ZERO: Self = Self(0);

    /// The highest offset, which no transaction has.
    pub const MAX: Self = Self(u64::MAX);

    /// The offset with this number in the source.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number that the offset has in the source.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// What lies between `earlier` and this offset, for lag figures only; 0 if `earlier` is the later offset. Unit:
    /// that of the source; with PostgreSQL bytes of WAL.
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseOffsetError;

impl fmt::Display for ParseOffsetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an LSN: expected two hexadecimal numbers as in 16/B374D848")
    }
}

impl std::error::Error for ParseOffsetError {}

impl FromStr for Offset {
    type Err = ParseOffsetError;

    fn from_str(text: &str) -> Result<Self, ParseOffsetError> {
        let (high, low) = text.split_once('/').ok_or(ParseOffsetError)?;
        let half = |digits: &str| match digits.len() {
            1..=8 if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u32::from_str_radix(digits, 16).ok()
            }
            _ => None,
        };
        let high = half(high).ok_or(ParseOffsetError)?;
        let low = half(low).ok_or(ParseOffsetError)?;
        Ok(Self((u64::from(high) << 32) | u64::from(low)))
    }
}

/// An offset that may be confirmed to the source: everything below it is resolved, and the source may remove what it
/// retains below it.
///
/// Only these three constructors make a watermark, and `default()`, which is [`Offset::ZERO`] and confirms nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Watermark(Offset);

impl Watermark {
    /// The end of a transaction that is resolved completely: with PostgreSQL `Commit.end_lsn`, the first byte after the
    /// commit record.
    pub const fn from_commit_end(end: Offset) -> Self {
        Self(end)
    }

    /// The offset of a keepalive that arrived outside a transaction, once everything received before it is resolved.
    ///
    /// With PostgreSQL it is `walEnd`, the last position that the walsender has processed, not the end of WAL (measured
    /// on 15 and 18).
    pub const fn from_keepalive(upto: Offset) -> Self {
        Self(upto)
    }

    /// The offset that an earlier session confirmed: Postrider's own record of it, or the source's.
    pub const fn resumed(offset: Offset) -> Self {
        Self(offset)
    }

    /// The offset itself.
    pub const fn offset(self) -> Offset {
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
    fn the_text_form_is_two_hexadecimal_halves() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "1/A"] {
            assert_eq!(text.parse::<Offset>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "/", "0", "0/", "/0", "0/g", "+1/0", "123456789/0", "0/0/0", " 0/0", "0x1/0"]
        {
            assert_eq!(text.parse::<Offset>(), Err(ParseOffsetError), "{text:?}");
        }
    }
}
