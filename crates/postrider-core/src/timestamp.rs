//! Points in time, as sources report them.

/// A point in time. The lowest and the highest value are `-infinity` and `infinity`, which a column may have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Microseconds since 1970-01-01 00:00:00 UTC.
    pub unix_micros: i64,
}

impl Timestamp {
    /// `-infinity`, before every other time.
    pub const MIN: Self = Self { unix_micros: i64::MIN };

    /// `infinity`, after every other time.
    pub const MAX: Self = Self { unix_micros: i64::MAX };

    /// `2026-11-30T02:57:20.123456Z`; `None` beyond the years that this form has, as for `infinity`.
    pub fn to_rfc3339(self) -> Option<String> {
        jiff::Timestamp::from_microsecond(self.unix_micros).ok().map(|time| time.to_string())
    }

    /// Milliseconds since 1970-01-01 00:00:00 UTC, rounded down.
    pub const fn unix_millis(self) -> i64 {
        self.unix_micros.div_euclid(1000)
    }
}
