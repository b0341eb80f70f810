//! Values between two bounds: whole numbers, durations, sizes.
//!
//! What is out of bounds is told with both, and the default stands in for it. How units are written is for `units`.

use super::Section;
use crate::config::kind::Kind;
use crate::config::units::{self, ShowDuration, ShowSize};
use std::ops::RangeInclusive;
use std::time::Duration;

impl Section<'_> {
    pub(in crate::config) fn integer(
        &self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> u64 {
        let kind = Kind::Integer { min: *range.start(), max: *range.end() };
        let Some((place, value)) = self.get(key, kind) else { return default };
        let number = value.as_integer().map(|digits| {
            i128::from_str_radix(digits.as_str(), digits.radix()).unwrap_or(i128::MAX)
        });
        let Some(number) = number else {
            self.wrong(place, key, "a whole number", value);
            return default;
        };
        match u64::try_from(number) {
            Ok(number) if range.contains(&number) => number,
            Ok(_) | Err(_) => {
                let (min, max) = (range.start(), range.end());
                self.error(key, format_args!("expected a number from {min} to {max}"));
                default
            }
        }
    }

    /// As [`Section::integer`], for bounds that fit.
    pub(in crate::config) fn small(
        &self,
        key: &'static str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> u32 {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        u32::try_from(self.integer(key, u64::from(default), range)).unwrap_or(default)
    }

    pub(in crate::config) fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let text = self.text_as(key, Kind::Duration, "a duration such as \"10s\"");
        text.and_then(|text| self.duration_of(key, &text, &range)).unwrap_or(default)
    }

    /// A duration of which `"0"`, the default, means never.
    pub(in crate::config) fn duration_or_never(
        &self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let text =
            self.text_as(key, Kind::DurationOrNever, "a duration such as \"10m\", or \"0\"")?;
        if text == "0" { None } else { self.duration_of(key, &text, &range) }
    }

    fn duration_of(
        &self,
        key: &str,
        text: &str,
        range: &RangeInclusive<Duration>,
    ) -> Option<Duration> {
        match units::duration(text) {
            Ok(value) if range.contains(&value) => Some(value),
            Ok(_) => {
                let (min, max) = (ShowDuration(*range.start()), ShowDuration(*range.end()));
                self.error(key, format_args!("expected a duration from {min} to {max}"));
                None
            }
            Err(error) => {
                self.error(key, error);
                None
            }
        }
    }

    pub(in crate::config) fn size(
        &self,
        key: &'static str,
        default: u64,
        range: &RangeInclusive<u64>,
    ) -> u64 {
        let Some(text) = self.text_as(key, Kind::Size, "a size such as \"64MiB\"") else {
            return default;
        };
        self.size_of(key, &text, range).unwrap_or(default)
    }

    /// Reads the text of `key` as a size.
    pub(in crate::config) fn size_of(
        &self,
        key: &str,
        text: &str,
        range: &RangeInclusive<u64>,
    ) -> Option<u64> {
        match units::size(text) {
            Ok(value) if range.contains(&value) => Some(value),
            Ok(_) => {
                let (min, max) = (ShowSize(*range.start()), ShowSize(*range.end()));
                self.error(key, format_args!("expected a size from {min} to {max}"));
                None
            }
            Err(error) => {
                self.error(key, error);
                None
            }
        }
    }
}
