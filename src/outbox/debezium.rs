//! Header texts as Debezium's converters write them, column type by column type (seen on 3.7.0, `StringConverter` or
//! `SimpleHeaderConverter`).
//!
//! Whatever a type's text can't be read as is sent as PostgreSQL renders it: a header is no reason to hold an event
//! back.

use super::payload::{append_base64, append_bytea};
use super::span::{FieldId, Row, Span};
use super::time;
use super::types::Kind;
use std::io::Write as _;

/// The header's value for a field; NULL keeps the header, with a null value.
pub(super) fn header(row: &Row<'_>, field: FieldId, scratch: &mut Vec<u8>) -> Span {
    let Some(extent) = row.extent(field) else {
        return Span::Null;
    };
    let text = row.at(extent);
    let start = scratch.len();
    let written = match row.kind(field) {
        Kind::Bool => written(scratch, if text == b"t" { "true" } else { "false" }),
        Kind::Bytea => bytea(text, scratch),
        Kind::Float4 | Kind::Float8 => double(text, scratch),
        Kind::Numeric { scale: Some(_) | None } if text == b"NaN" => return Span::Null,
        Kind::Numeric { scale: None } => numeric(text, scratch),
        Kind::Date => {
            time::parse(text).and_then(|micros| written(scratch, micros.div_euclid(86_400_000_000)))
        }
        Kind::Time { digits } => {
            time::parse_time_of_day(text).and_then(|micros| scaled(micros, digits, scratch))
        }
        Kind::Timestamp { digits } => {
            time::parse(text).and_then(|micros| scaled(micros, digits, scratch))
        }
        Kind::Timestamptz { digits } => {
            time::parse(text).and_then(|micros| instant(micros, digits, scratch))
        }
        Kind::Interval => interval(text).and_then(|micros| written(scratch, micros)),
        Kind::Int
        | Kind::Numeric { scale: Some(_) }
        | Kind::Json
        | Kind::Text
        | Kind::Uuid
        | Kind::Other => None,
    };
    if written.is_some() {
        Span::since(start, scratch)
    } else {
        scratch.truncate(start);
        Span::Row(extent)
    }
}

fn written(out: &mut Vec<u8>, value: impl std::fmt::Display) -> Option<()> {
    write!(out, "{value}").ok()
}

fn bytea(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut bytes = Vec::new();
    append_bytea(text, &mut bytes)?;
    append_base64(&bytes, out);
    Some(())
}

/// Milliseconds where the column declares at most three digits, else microseconds.
fn scaled(micros: i64, digits: u8, out: &mut Vec<u8>) -> Option<()> {
    written(out, if digits <= 3 { micros.div_euclid(1000) } else { micros })
}

/// `java.lang.Double.toString`: always a fraction, and an exponent below 10⁻³ and from 10⁷ on.
fn double(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let text = std::str::from_utf8(text).ok()?;
    let value: f64 = text.parse().ok()?;
    if !value.is_finite() {
        return written(out, text);
    }
    // The shortest digits that read back, as PostgreSQL printed them: `1.5e+20` and `100` to digits and exponent.
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    // No finite double has a larger one, and none of a server's texts.
    let exponent: i32 = exponent.parse().ok().filter(|exponent| (-400..=400).contains(exponent))?;
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let leading = all.len() - all.trim_start_matches('0').len();
    let digits = all.trim_matches('0');
    if digits.is_empty() {
        return written(out, format_args!("{sign}0.0"));
    }
    // value = 0.digits × 10^point
    let point = i32::try_from(whole.len()).ok()? - i32::try_from(leading).ok()? + exponent;
    out.extend_from_slice(sign.as_bytes());
    if (-2..=7).contains(&point) {
        let zeros = "0".repeat(usize::try_from(-point).unwrap_or(0));
        let padded = format!("{digits:0<width$}", width = usize::try_from(point).unwrap_or(0));
        let (whole, fraction) = padded.split_at(usize::try_from(point).unwrap_or(0));
        let whole = if whole.is_empty() { "0" } else { whole };
        let fraction = format!("{zeros}{fraction}");
        return written(
            out,
            format_args!("{whole}.{}", if fraction.is_empty() { "0" } else { &fraction }),
        );
    }
    let (first, rest) = digits.split_at(1);
    let rest = if rest.is_empty() { "0" } else { rest };
    written(out, format_args!("{first}.{rest}E{}", point - 1))
}

/// Digits of a `numeric` that are converted; the work grows with their square, and `numeric` has up to 147,455.
const DIGITS_MAX: usize = 1000;

/// `numeric` without a declared scale: Debezium's `VariableScaleDecimal` as JSON.
fn numeric(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (scale, bytes) = unscaled(text)?;
    out.extend_from_slice(br#"{"scale":"#);
    written(out, scale)?;
    out.extend_from_slice(br#","value":""#);
    append_base64(&bytes, out);
    out.extend_from_slice(br#""}"#);
    Some(())
}

/// Scale and unscaled number, its bytes big-endian in two's complement.
fn unscaled(text: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let point = digits.iter().position(|byte| *byte == b'.');
    let scale = point.map_or(0, |point| digits.len() - point - 1);
    // Little-endian bytes of the magnitude.
    let mut bytes = vec![0_u8];
    for digit in digits.iter().filter(|byte| **byte != b'.') {
        if !digit.is_ascii_digit() {
            return None;
        }
        let mut carry = u16::from(digit - b'0');
        for byte in &mut bytes {
            let [high, low] = (u16::from(*byte) * 10 + carry).to_be_bytes();
            (*byte, carry) = (low, u16::from(high));
        }
        if let Ok(carry @ 1..) = u8::try_from(carry) {
            bytes.push(carry);
        }
    }
    twos_complement(&mut bytes, negative);
    bytes.reverse();
    Some((scale, bytes))
}

/// A member of the envelope as Debezium's JSON converter writes its type (`decimal.handling.mode = precise`,
/// `time.precision.mode = adaptive`); `None`, and nothing written, where it is a string as PostgreSQL renders it.
pub(super) fn member(row: &Row<'_>, field: FieldId, out: &mut Vec<u8>) -> Option<()> {
    let text = row.text(field)?;
    let start = out.len();
    let done = match row.kind(field) {
        Kind::Date | Kind::Time { .. } | Kind::Timestamp { .. } | Kind::Interval => {
            in_scratch(header(row, field, out))
        }
        Kind::Numeric { scale: None } if text != b"NaN" => in_scratch(header(row, field, out)),
        Kind::Numeric { .. } if text == b"NaN" => written(out, "null"),
        Kind::Numeric { .. } => unscaled(text).map(|(_, bytes)| {
            out.push(b'"');
            append_base64(&bytes, out);
            out.push(b'"');
        }),
        Kind::Timestamptz { .. } => {
            out.push(b'"');
            let done = in_scratch(header(row, field, out));
            out.push(b'"');
            done
        }
        // NaN and Infinity are no JSON numbers.
        Kind::Float4 | Kind::Float8 if text.last().is_some_and(u8::is_ascii_digit) => {
            in_scratch(header(row, field, out))
        }
        Kind::Bool
        | Kind::Bytea
        | Kind::Int
        | Kind::Float4
        | Kind::Float8
        | Kind::Json
        | Kind::Text
        | Kind::Uuid
        | Kind::Other => None,
    };
    if done.is_none() {
        out.truncate(start);
    }
    done
}

/// Whether the header's text was made, and not left as the row has it.
fn in_scratch(span: Span) -> Option<()> {
    match span {
        Span::Scratch(_) => Some(()),
        Span::Null | Span::Row(_) | Span::Fixed(_) => None,
    }
}

/// The shortest two's complement of a magnitude, little-endian, as `BigInteger.toByteArray`.
fn twos_complement(bytes: &mut Vec<u8>, negative: bool) {
    bytes.push(0);
    if negative {
        let mut carry = true;
        for byte in bytes.iter_mut() {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    // The last byte is only the sign while the one before it carries the same.
    while let [.., before, last] = bytes.as_slice()
        && ((*last == 0 && *before < 0x80) || (*last == 0xFF && *before >= 0x80))
    {
        bytes.pop();
    }
}

/// `2024-01-02T03:04:05.678Z`: UTC, with just the digits that the column declares.
fn instant(micros: i64, digits: u8, out: &mut Vec<u8>) -> Option<()> {
    let (days, rest) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (year, month, day) = time::civil_from_days(days);
    let (seconds, fraction) = (rest / 1_000_000, rest % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let sign = match year {
        ..0 => "-",
        10_000.. => "+",
        0..10_000 => "",
    };
    let year = year.abs();
    let clock = format_args!("T{hour:02}:{minute:02}:{second:02}");
    write!(out, "{sign}{year:04}-{month:02}-{day:02}{clock}").ok()?;
    if digits > 0 {
        let fraction = format!("{fraction:06}");
        write!(out, ".{}", fraction.get(..usize::from(digits))?).ok()?;
    }
    written(out, "Z")
}

/// Microseconds of an interval in `IntervalStyle = postgres`, `1 year 2 mons -3 days 04:05:06.7`: a year has 365.25
/// days and a month a twelfth of it, as in Debezium's `MicroDuration`.
fn interval(text: &[u8]) -> Option<i64> {
    const DAY: i64 = 86_400_000_000;
    const MONTH: i64 = DAY * 36_525 / 1200;
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let mut micros: i64 = 0;
    while let Some(word) = words.next() {
        let part = if word.contains(':') {
            let (sign, clock) = match word.strip_prefix('-') {
                Some(clock) => (-1, clock),
                None => (1, word.strip_prefix('+').unwrap_or(word)),
            };
            sign * clock_micros(clock)?
        } else {
            let unit = match words.next()? {
                "year" | "years" => MONTH * 12,
                "mon" | "mons" => MONTH,
                "day" | "days" => DAY,
                _ => return None,
            };
            word.parse::<i64>().ok()?.checked_mul(unit)?
        };
        micros = micros.checked_add(part)?;
    }
    Some(micros)
}

/// `123:04:05.678`: hours without limit.
fn clock_micros(clock: &str) -> Option<i64> {
    let (hours, rest) = clock.split_once(':')?;
    let within = time::parse_time_of_day(format!("00:{rest}").as_bytes())?;
    hours.parse::<i64>().ok()?.checked_mul(3_600_000_000)?.checked_add(within)
}
