//! Durations and sizes as the configuration has them: a number and its unit.

use std::fmt;
use std::time::Duration;

/// Why a text is not a duration or a size with its unit. `Display` has the expected format, and never repeats the text,
/// which may be a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitError {
    /// No duration.
    Duration,
    /// No size.
    Size,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Duration => {
                "expected a duration with its unit, such as \"250ms\", \"10s\" or \"5m\""
            }
            Self::Size => "expected a size with its unit, such as \"64MiB\", \"32KiB\" or \"1MB\"",
        })
    }
}

impl std::error::Error for UnitError {}

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZES: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Reads `"250ms"`, `"10s"`, `"5m"`, `"2h"`, `"1d"`; a space before the unit is allowed.
///
/// # Errors
/// [`UnitError::Duration`].
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    quantity(text, &DURATIONS).map(Duration::from_millis).ok_or(UnitError::Duration)
}

/// Reads `"64MiB"`, `"32 KiB"`, `"1MB"` into bytes.
///
/// # Errors
/// [`UnitError::Size`].
pub fn size(text: &str) -> Result<u64, UnitError> {
    let text =
        text.strip_suffix("KB").map_or_else(|| text.to_owned(), |number| format!("{number}kB"));
    quantity(&text, &SIZES).ok_or(UnitError::Size)
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = unit.trim_start_matches(' ');
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Prints a duration in the format of the file.
#[derive(Clone, Copy, Debug)]
pub struct ShowDuration(pub Duration);

impl fmt::Display for ShowDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        show(f, millis, &DURATIONS)
    }
}

/// Prints a size in the format of the file.
#[derive(Clone, Copy, Debug)]
pub struct ShowSize(pub u64);

impl fmt::Display for ShowSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, &SIZES[..4])
    }
}

fn show(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value.is_multiple_of(*factor) && value >= *factor;
    let (unit, factor) = units.iter().rev().find(fits).unwrap_or(&units[0]);
    write!(f, "{}{unit}", value / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_their_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("10 s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
        assert_eq!(duration("2h"), Ok(Duration::from_hours(2)));
        for text in ["", "10", "s", "-1s", "1.5s", "10S", "1s ", "99999999999999999999s", "1us"] {
            assert_eq!(duration(text), Err(UnitError::Duration), "{text:?}");
        }
        assert_eq!(duration("18446744073709551615d"), Err(UnitError::Duration));
    }

    #[test]
    fn sizes_carry_their_unit() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("32 KiB"), Ok(32 << 10));
        assert_eq!(size("1MB"), Ok(1_000_000));
        assert_eq!(size("1KB"), Ok(1000));
        assert_eq!(size("7B"), Ok(7));
        for text in ["", "64", "MiB", "64mib", "64 Mi", "0x10B", "99999999999GiB"] {
            assert_eq!(size(text), Err(UnitError::Size), "{text:?}");
        }
    }

    #[test]
    fn quantities_are_printed_in_the_format_of_the_file() {
        for text in ["250ms", "10s", "5m", "2h", "1500ms", "1d", "0s"] {
            assert_eq!(ShowDuration(duration(text).unwrap()).to_string(), text);
        }
        for text in ["64MiB", "3KiB", "1GiB", "1000B"] {
            assert_eq!(ShowSize(size(text).unwrap()).to_string(), text);
        }
    }
}
