//! Values as Debezium's event router writes them, column type by column type.
//!
//! `tests/debezium/types.tsv` has the output of Debezium 3.7.0, and `tests/it/debezium_types.rs` compares with it. Key
//! and value are written by `StringConverter`, headers by `SimpleHeaderConverter`, members of the envelope by
//! `JsonConverter` without schemas. A value whose text can't be read as its type is sent as PostgreSQL renders it: it
//! does not stop the event.

use crate::cells::{CellRange, EventRow, FieldId};
use crate::route::Envelope;
use crate::{json, time};
use postrider_core::row::{ByteRange, Kind, ValueType};
use std::borrow::Cow;
use std::io::Write as _;

/// The place of a text. The converters differ in arrays, bytes and numbers without a scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The key or the value: Java's `toString`. If that is the identity of an object (bytes, a number without a scale,
    /// a point), or if Debezium sends null because there is no number (NaN), the text is PostgreSQL's.
    Plain,
    /// A header.
    Header,
}

/// The result of writing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    Text,
    /// Nothing was written: Debezium has null for the value.
    Null,
}

/// The text of a field; NULL stays NULL.
#[inline]
pub(super) fn text(
    row: &EventRow<'_>,
    field: FieldId,
    place: Place,
    scratch: &mut Vec<u8>,
) -> CellRange {
    let Some(extent) = row.extent(field) else {
        return CellRange::Null;
    };
    let of = row.type_of(field);
    if is_verbatim(of) {
        return CellRange::Row(extent);
    }
    let (start, text) = (scratch.len(), row.at(extent));
    let written = if of.array {
        array(of.kind, text, place, scratch)
    } else {
        append(of.kind, text, place, scratch)
    };
    match written {
        Some(Written::Text) => CellRange::since(start, scratch),
        Some(Written::Null) => CellRange::Null,
        None => {
            scratch.truncate(start);
            CellRange::Row(extent)
        }
    }
}

/// Whether the text of a value is used as the source renders it, in every [`Place`].
#[inline]
fn is_verbatim(of: ValueType) -> bool {
    let kind = matches!(
        of.kind,
        Kind::Int | Kind::Oid | Kind::Json | Kind::Text | Kind::Uuid | Kind::Other
    );
    !of.array && kind
}

/// Appends the text of a value that is no array. `None` if the text is as PostgreSQL renders it; then the appended
/// bytes must be discarded.
fn append(kind: Kind, text: &[u8], place: Place, out: &mut Vec<u8>) -> Option<Written> {
    match (kind, place) {
        (Kind::Bool | Kind::Bit { length: 1 }, _) => {
            let is_true = matches!(text, b"t" | b"1");
            written(out, is_true)
        }
        (Kind::Bytea, Place::Header) => bytea(text, out),
        (Kind::Bit { .. }, Place::Header) => bits(text, out),
        (Kind::Float4 | Kind::Float8, _) => double(text, out),
        (Kind::Numeric { .. }, Place::Header) if is_special(text) => Some(Written::Null),
        (Kind::Numeric { scale: None }, Place::Header) => unscaled_number(text, out),
        (Kind::Numeric { scale: Some(_) }, _) => decimal(text, out),
        (Kind::Money, _) => {
            out.extend_from_slice(&money(text)?);
            Some(Written::Text)
        }
        (Kind::Date, _) => match text {
            b"infinity" => written(out, DATE_INFINITY),
            b"-infinity" => written(out, DATE_MINUS_INFINITY),
            _ => time::parse(text).and_then(|micros| written(out, micros.div_euclid(DAY_MICROS))),
        },
        (Kind::Time { digits }, _) => {
            time::parse_time_of_day(text).and_then(|micros| scaled(micros, digits, out))
        }
        (Kind::TimeTz, _) => zoned_time(text, out),
        (Kind::Timestamp { digits }, _) => match (text, digits) {
            (b"infinity", ..=3) => written(out, MILLIS_INFINITY),
            (b"-infinity", ..=3) => written(out, MILLIS_MINUS_INFINITY),
            (b"infinity", _) => written(out, i64::MAX),
            (b"-infinity", _) => written(out, i64::MIN),
            _ => time::parse(text).and_then(|micros| scaled(micros, digits, out)),
        },
        (Kind::Timestamptz { digits }, _) => {
            time::parse(text).and_then(|micros| instant(micros, digits, out))
        }
        (Kind::Interval, _) => interval(text).and_then(|micros| written(out, micros)),
        (Kind::Point, Place::Header) => point(text, out),
        (
            Kind::Bytea
            | Kind::Bit { .. }
            | Kind::Numeric { scale: None }
            | Kind::Point
            | Kind::Int
            | Kind::Oid
            | Kind::Json
            | Kind::Text
            | Kind::Uuid
            | Kind::Other,
            _,
        ) => None,
    }
}

/// Debezium's values of `infinity` and `-infinity`: of a `date`, and of a `timestamp` with at most three digits.
const DATE_INFINITY: i64 = 2_146_033_979;
const DATE_MINUS_INFINITY: i64 = -2_147_472_691;
const MILLIS_INFINITY: i64 = 9_223_372_036_825_200_000;
const MILLIS_MINUS_INFINITY: i64 = -9_223_372_036_832_400_000;

const DAY_MICROS: i64 = 86_400_000_000;

fn written(out: &mut Vec<u8>, value: impl std::fmt::Display) -> Option<Written> {
    write!(out, "{value}").ok().map(|()| Written::Text)
}

/// Whether a `numeric` is not a number. Debezium has no value for it.
fn is_special(text: &[u8]) -> bool {
    matches!(text, b"NaN" | b"Infinity" | b"-Infinity")
}

fn bytea(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let mut bytes = Vec::new();
    append_bytea(text, &mut bytes)?;
    append_base64(&bytes, out);
    Some(Written::Text)
}

/// Bits as the bytes of a number, lowest byte first and without leading zeros, in base64.
fn bits(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let mut bytes = vec![0_u8; text.len().div_ceil(8)];
    for (at, bit) in text.iter().rev().enumerate() {
        match bit {
            b'0' => {}
            b'1' => *bytes.get_mut(at / 8)? |= 1 << (at % 8),
            _ => return None,
        }
    }
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    append_base64(bytes.get(..length)?, out);
    Some(Written::Text)
}

/// `java.math.BigDecimal.toString`: with an exponent if the number is less than a millionth.
fn decimal(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let (sign, number) = match text.strip_prefix(b"-") {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (_, fraction) = std::str::from_utf8(number).ok()?.split_once('.')?;
    let digits = std::str::from_utf8(number).ok()?.replace('.', "");
    let digits = digits.trim_start_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    let exponent = i64::try_from(digits.len()).ok()? - 1 - i64::try_from(fraction.len()).ok()?;
    if exponent >= -6 {
        return None;
    }
    match digits.split_at_checked(1)? {
        (first, "") => written(out, format_args!("{sign}{first}E{exponent}")),
        (first, rest) => written(out, format_args!("{sign}{first}.{rest}E{exponent}")),
    }
}

/// `money` as a number with two digits, the default of `money.fraction.digits`, without the characters that
/// `lc_monetary` adds; `None` if it has another number of digits.
fn money(text: &[u8]) -> Option<Vec<u8>> {
    let negative = text.iter().any(|byte| matches!(byte, b'-' | b'('));
    let last = text.iter().rposition(u8::is_ascii_digit)?;
    let first = text.iter().position(u8::is_ascii_digit)?;
    let number = text.get(first..=last)?;
    let (whole, [b'.' | b',', tens, ones]) = number.split_last_chunk::<3>()? else {
        return None;
    };
    let mut plain = if negative { vec![b'-'] } else { Vec::new() };
    plain.extend(whole.iter().filter(|byte| byte.is_ascii_digit()));
    plain.extend([b'.', *tens, *ones]);
    Some(plain)
}

/// `time with time zone` in UTC, with as many digits as written.
fn zoned_time(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let at = text.iter().rposition(|byte| matches!(byte, b'+' | b'-'))?;
    let (clock, zone) = text.split_at_checked(at)?;
    let micros = time::parse_time_of_day(clock)?;
    let east = time::parse_zone(zone)?;
    // 24:00:00, the end of a day, stays so if there is no offset.
    let micros = if east == 0 { micros } else { (micros - east).rem_euclid(DAY_MICROS) };
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    write!(out, "{hour:02}:{minute:02}:{second:02}").ok()?;
    if fraction > 0 {
        let fraction = format!("{fraction:06}");
        write!(out, ".{}", fraction.trim_end_matches('0')).ok()?;
    }
    written(out, "Z")
}

/// A point, `(1.5,2)`: its coordinates, and its well-known binary.
fn point(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let text = text.strip_prefix(b"(")?.strip_suffix(b")")?;
    let comma = text.iter().position(|byte| *byte == b',')?;
    let (x, y) = (text.get(..comma)?, text.get(comma + 1..)?);
    // Byte order: little-endian; type: point.
    let mut binary = vec![1, 1, 0, 0, 0];
    for coordinate in [x, y] {
        let value: f64 = std::str::from_utf8(coordinate).ok()?.parse().ok()?;
        value.is_finite().then_some(())?;
        binary.extend(value.to_le_bytes());
    }
    out.extend_from_slice(br#"{"x":"#);
    double(x, out)?;
    out.extend_from_slice(br#","y":"#);
    double(y, out)?;
    out.extend_from_slice(br#","wkb":""#);
    append_base64(&binary, out);
    written(out, r#"","srid":null}"#)
}

/// Whether Debezium writes an element of an array into JSON without quotes.
fn is_bare(kind: Kind) -> bool {
    match kind {
        Kind::Bool
        | Kind::Int
        | Kind::Oid
        | Kind::Float4
        | Kind::Float8
        | Kind::Numeric { .. }
        | Kind::Money
        | Kind::Date
        | Kind::Time { .. }
        | Kind::Timestamp { .. }
        | Kind::Interval
        | Kind::Point => true,
        Kind::Bit { length } => length == 1,
        Kind::Bytea
        | Kind::Json
        | Kind::Text
        | Kind::Uuid
        | Kind::TimeTz
        | Kind::Timestamptz { .. }
        | Kind::Other => false,
    }
}

/// An array of one dimension: in key and value as the `toString` of a Java list, in a header as JSON.
fn array(element: Kind, text: &[u8], place: Place, out: &mut Vec<u8>) -> Option<Written> {
    out.push(b'[');
    for (at, text) in elements(text)?.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(if place == Place::Plain { b", " } else { b"," });
        }
        let Some(text) = text else {
            out.extend_from_slice(b"null");
            continue;
        };
        let start = out.len();
        let quoted = place == Place::Header && !is_bare(element);
        if quoted {
            out.push(b'"');
        }
        let before = out.len();
        match append(element, text, place, out) {
            Some(Written::Text) => {}
            Some(Written::Null) => {
                out.truncate(start);
                out.extend_from_slice(b"null");
                continue;
            }
            None => {
                out.truncate(before);
                for byte in text.iter() {
                    if quoted && matches!(byte, b'"' | b'\\') {
                        out.push(b'\\');
                    }
                    out.push(*byte);
                }
            }
        }
        if quoted {
            out.push(b'"');
        }
    }
    out.push(b']');
    Some(Written::Text)
}

/// The elements of an array's text, `{a,"b c",NULL}`, or with bounds `[0:1]={a,b}`; `None` if it has more than one
/// dimension.
fn elements(text: &[u8]) -> Option<Vec<Option<Cow<'_, [u8]>>>> {
    let mut rest = match text.first()? {
        b'[' => text.get(text.iter().position(|byte| *byte == b'=')? + 1..)?,
        _ => text,
    };
    rest = rest.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut elements = Vec::new();
    if rest.is_empty() {
        return Some(elements);
    }
    loop {
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let mut value = Vec::new();
            let mut bytes = quoted.iter().enumerate();
            let end = loop {
                match bytes.next()? {
                    (at, b'"') => break at + 1,
                    (_, b'\\') => value.push(*bytes.next()?.1),
                    (_, byte) => value.push(*byte),
                }
            };
            elements.push(Some(Cow::Owned(value)));
            rest = quoted.get(end..)?;
        } else {
            let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
            let (value, after) = rest.split_at_checked(end)?;
            if value.first() == Some(&b'{') {
                return None;
            }
            elements.push((value != b"NULL").then_some(Cow::Borrowed(value)));
            rest = after;
        }
        match rest.split_first() {
            None => return Some(elements),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// Milliseconds if the column declares at most three digits, otherwise microseconds.
fn scaled(micros: i64, digits: u8, out: &mut Vec<u8>) -> Option<Written> {
    written(out, if digits <= 3 { micros.div_euclid(1000) } else { micros })
}

/// `java.lang.Double.toString`: always a fraction, and an exponent below 10⁻³ and from 10⁷ on.
fn double(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let text = std::str::from_utf8(text).ok()?;
    let value: f64 = text.parse().ok()?;
    if !value.is_finite() {
        return written(out, text);
    }
    // PostgreSQL prints the shortest digits that read back. `1.5e+20` and `100` become digits and an exponent.
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    // No finite double has a larger exponent.
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

/// Maximum number of digits of a `numeric` that is converted: the time grows with its square, and `numeric` has up to
/// 147,455 digits.
const DIGITS_MAX: usize = 1000;

/// `numeric` without a declared scale: Debezium's `VariableScaleDecimal` as JSON.
fn unscaled_number(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let (scale, bytes) = unscaled(text)?;
    out.extend_from_slice(br#"{"scale":"#);
    written(out, scale)?;
    out.extend_from_slice(br#","value":""#);
    append_base64(&bytes, out);
    written(out, r#""}"#)
}

/// Scale and unscaled number, as bytes in two's complement, big-endian.
fn unscaled(text: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let point = digits.iter().position(|byte| *byte == b'.');
    let scale = point.map_or(0, |point| digits.len() - point - 1);
    // The magnitude, little-endian.
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

/// Appends a value as Debezium's JSON converter does (`decimal.handling.mode = precise`,
/// `time.precision.mode = adaptive`); `None` if a `bytea` is not in hex format.
pub(super) fn append_member(of: ValueType, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    if !of.array {
        return append_scalar_member(of.kind, text, out);
    }
    let start = out.len();
    if array_member(of.kind, text, out).is_none() {
        out.truncate(start);
        json::append_string(text, out);
    }
    Some(())
}

/// As [`append_member`], for a value that is no array.
fn append_scalar_member(kind: Kind, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    let done = match kind {
        Kind::Bool
        | Kind::Bit { length: 1 }
        | Kind::Date
        | Kind::Time { .. }
        | Kind::Timestamp { .. }
        | Kind::Interval
        | Kind::Point => append(kind, text, Place::Header, out),
        Kind::Int | Kind::Oid => {
            out.extend_from_slice(text);
            Some(Written::Text)
        }
        // NaN and Infinity are not JSON numbers.
        Kind::Float4 | Kind::Float8 if !text.last().is_some_and(u8::is_ascii_digit) => None,
        Kind::Float4 | Kind::Float8 => double(text, out),
        Kind::Numeric { .. } if is_special(text) => written(out, "null"),
        Kind::Numeric { scale: None } => unscaled_number(text, out),
        Kind::Numeric { scale: Some(_) } => unscaled_member(text, out),
        Kind::Money => money(text).and_then(|text| unscaled_member(&text, out)),
        Kind::Timestamptz { .. } | Kind::TimeTz | Kind::Bit { .. } | Kind::Bytea => {
            out.push(b'"');
            let done = append(kind, text, Place::Header, out);
            out.push(b'"');
            if done.is_none() && kind == Kind::Bytea {
                return None;
            }
            done
        }
        Kind::Json | Kind::Text | Kind::Uuid | Kind::Other => None,
    };
    if done.is_none() {
        out.truncate(start);
        json::append_string(text, out);
    }
    Some(())
}

fn unscaled_member(text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    let (_, bytes) = unscaled(text)?;
    out.push(b'"');
    append_base64(&bytes, out);
    written(out, '"')
}

fn array_member(element: Kind, text: &[u8], out: &mut Vec<u8>) -> Option<Written> {
    out.push(b'[');
    for (at, text) in elements(text)?.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        match text {
            None => out.extend_from_slice(b"null"),
            Some(text) => append_scalar_member(element, text, out)?,
        }
    }
    written(out, ']')
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
    // The last byte is removed while the byte before it has the same sign.
    while let [.., before, last] = bytes.as_slice()
        && ((*last == 0 && *before < 0x80) || (*last == 0xFF && *before >= 0x80))
    {
        bytes.pop();
    }
}

/// `2024-01-02T03:04:05.678Z`: UTC, with as many digits as the column declares.
fn instant(micros: i64, digits: u8, out: &mut Vec<u8>) -> Option<Written> {
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

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the bytes of a `bytea` in hex format, `\x6869`; `None` for another format.
pub(super) fn append_bytea(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (pairs, []) = text.strip_prefix(b"\\x")?.as_chunks::<2>() else {
        return None;
    };
    out.reserve(pairs.len());
    for [high, low] in pairs {
        out.push((nibble(*high)? << 4) | nibble(*low)?);
    }
    Some(())
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Appends base64 with padding, RFC 4648 section 4.
pub(super) fn append_base64(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let mut group = [0_u8; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let [a, b, c] = group;
        let sextets = [a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63];
        for (at, sextet) in sextets.into_iter().enumerate() {
            out.push(if at <= chunk.len() { BASE64[usize::from(sextet)] } else { b'=' });
        }
    }
}

/// Writes the envelope with the payload, whose range is `payload`.
pub(super) fn wrap(
    envelope: &Envelope,
    payload: Option<ByteRange>,
    payload_field: FieldId,
    row: &EventRow<'_>,
    fixed: &str,
    scratch: &mut Vec<u8>,
) -> Option<CellRange> {
    let start = scratch.len();
    scratch.extend_from_slice(envelope.open.of(fixed.as_bytes()));
    let text = payload.map(|extent| row.at(extent)).filter(|_| envelope.expand);
    match text.filter(|text| is_json(text, row.type_of(payload_field))) {
        Some(json) => scratch.extend_from_slice(json),
        None => member(envelope, payload, row.type_of(payload_field), row, scratch)?,
    }
    for (name, field) in envelope.placed.iter().filter(|(_, field)| row.has(*field)) {
        scratch.extend_from_slice(name.of(fixed.as_bytes()));
        member(envelope, row.extent(*field), row.type_of(*field), row, scratch)?;
    }
    scratch.push(b'}');
    Some(CellRange::since(start, scratch))
}

/// Whether a text is a JSON object or array. It is parsed, unless the column's type guarantees JSON.
fn is_json(text: &[u8], of: ValueType) -> bool {
    let reads = || serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
    matches!(text.first(), Some(b'{' | b'['))
        && (of.is(Kind::Json) || (of.may_be_json() && reads()))
}

/// Appends a value as JSON. With `payload.envelope_json`, numbers, booleans and JSON are unchanged, bytes are in
/// base64, and other types are strings as PostgreSQL renders them. Without it, all values are as Debezium writes them.
fn member(
    envelope: &Envelope,
    value: Option<ByteRange>,
    of: ValueType,
    row: &EventRow<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let Some(extent) = value else {
        out.extend_from_slice(b"null");
        return Some(());
    };
    let text = row.at(extent);
    if !envelope.json {
        return append_member(of, text, out);
    }
    // NaN and Infinity are not JSON numbers.
    let is_number = of.is(Kind::Int)
        || ((of.is(Kind::Float4) || of.is(Kind::Float8))
            && text.last().is_some_and(u8::is_ascii_digit));
    if is_number || of.is(Kind::Json) {
        out.extend_from_slice(text);
    } else if of.is(Kind::Bool) {
        out.extend_from_slice(if text == b"t" { b"true" } else { b"false" });
    } else if of.is(Kind::Bytea) {
        let mut bytes = Vec::new();
        append_bytea(text, &mut bytes)?;
        out.push(b'"');
        append_base64(&bytes, out);
        out.push(b'"');
    } else {
        super::json::append_string(text, out);
    }
    Some(())
}
