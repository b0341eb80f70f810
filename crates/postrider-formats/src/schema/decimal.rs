//! Numbers as they are written, exactly: whole numbers, and decimal numbers of any size. Nothing goes through a float.

use super::misfit::Misfit;
use std::cmp::Ordering;

/// Digits of the largest number that is converted. Unit: decimal digits.
const DIGITS_MAX: i64 = 2_000;

/// A number: its digits, times a power of ten.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Decimal {
    negative: bool,
    /// ASCII, without zeros at the beginning or the end. Empty for zero.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Reads a number by the grammar of JSON. `None` for another text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let has_zero_before = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || has_zero_before || !is_digits(whole) || !is_digits(fraction) {
            return None;
        }
        let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let mut exponent = exponent.saturating_sub(i64::try_from(fraction.len()).ok()?);
        while digits.last() == Some(&b'0') {
            digits.pop();
            exponent = exponent.saturating_add(1);
        }
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..zeros);
        let negative = negative && !digits.is_empty();
        Some(Self { negative, digits, exponent })
    }

    /// The whole number that it is, times ten to the power of `scale`.
    ///
    /// # Errors
    /// It has more decimal places, or is too large.
    fn scaled(&self, scale: u32) -> Result<Vec<u8>, Misfit> {
        if self.digits.is_empty() {
            return Ok(Vec::new());
        }
        let zeros = self.exponent.saturating_add(i64::from(scale));
        let Ok(zeros) = usize::try_from(zeros) else {
            return Err(match scale {
                0 => Misfit::new("expected a whole number, found one with decimal places"),
                _ => Misfit::new(format!("the number has more than {scale} decimal places")),
            });
        };
        let length = i64::try_from(self.digits.len().saturating_add(zeros)).unwrap_or(i64::MAX);
        if length > DIGITS_MAX {
            return Err(too_large());
        }
        let mut digits = self.digits.clone();
        digits.resize(digits.len() + zeros, b'0');
        Ok(digits)
    }

    /// A whole number between two bounds.
    ///
    /// # Errors
    /// It has decimal places, or is out of bounds.
    pub(super) fn whole(&self, range: std::ops::RangeInclusive<i128>) -> Result<i128, Misfit> {
        let digits = self.scaled(0)?;
        // No number of this many digits fits a type that is asked for.
        if digits.len() > 30 {
            return Err(too_large());
        }
        let magnitude =
            digits.iter().fold(0_i128, |number, digit| number * 10 + i128::from(*digit - b'0'));
        let number = if self.negative { -magnitude } else { magnitude };
        if range.contains(&number) { Ok(number) } else { Err(too_large()) }
    }

    /// The number times ten to the power of `scale`, in two's complement, the most significant byte first, as short as
    /// it can be. `precision`: the most digits.
    ///
    /// # Errors
    /// It has more decimal places or digits.
    pub(super) fn unscaled_bytes(&self, precision: usize, scale: u32) -> Result<Vec<u8>, Misfit> {
        let digits = self.scaled(scale)?;
        if digits.len() > precision {
            return Err(Misfit::new(format!("the number has more than {precision} digits")));
        }
        let mut bytes = magnitude(&digits);
        if self.negative {
            negate(&mut bytes);
        }
        Ok(shortened(bytes))
    }
}

fn too_large() -> Misfit {
    Misfit::new("the number is out of the range of the type")
}

/// A power of ten. One beyond every bound stays beyond it.
fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().unwrap_or(1 << 40).min(1 << 40);
    Some(if text.starts_with('-') { -size } else { size })
}

/// Decimal digits as a binary number with a sign bit of zero, the most significant byte first.
fn magnitude(digits: &[u8]) -> Vec<u8> {
    const CHUNK: usize = 9;
    // The least significant part first.
    let mut parts: Vec<u32> = Vec::new();
    let first = digits.len() % CHUNK;
    let (head, tail) = digits.split_at(first);
    for chunk in std::iter::once(head).chain(tail.chunks(CHUNK)) {
        let power = chunk.iter().fold(1_u64, |power, _| power * 10);
        let number = chunk.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(*digit - b'0'));
        let mut carry = number;
        for part in &mut parts {
            let product = u64::from(*part) * power + carry;
            *part = (product & 0xffff_ffff) as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            parts.push((carry & 0xffff_ffff) as u32);
        }
    }
    let bytes = parts.iter().rev().flat_map(|part| part.to_be_bytes());
    std::iter::once(0).chain(bytes).collect()
}

fn negate(bytes: &mut [u8]) {
    let mut carry = true;
    for byte in bytes.iter_mut().rev() {
        let (negated, overflows) = (!*byte).overflowing_add(u8::from(carry));
        (*byte, carry) = (negated, overflows);
    }
}

/// Without the bytes at the beginning that only repeat the sign.
fn shortened(mut bytes: Vec<u8>) -> Vec<u8> {
    let repeats = |pair: &[u8]| match pair {
        [0, second] => second & 0x80 == 0,
        [0xff, second] => second & 0x80 != 0,
        _ => false,
    };
    let more = bytes.windows(2).take_while(|pair| repeats(pair)).count();
    bytes.drain(..more);
    bytes
}

/// A number in two's complement, made longer to `size` bytes. `None` if it is longer.
pub(super) fn sign_extended(bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    let fill = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
    match bytes.len().cmp(&size) {
        Ordering::Greater => None,
        Ordering::Equal => Some(bytes.to_vec()),
        Ordering::Less => {
            let mut extended = vec![fill; size - bytes.len()];
            extended.extend_from_slice(bytes);
            Some(extended)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Option<i128> {
        let range = i128::from(i64::MIN)..=i128::from(i64::MAX);
        Decimal::parse(text).unwrap().whole(range).ok()
    }

    #[test]
    fn whole_numbers_are_exact_in_every_notation() {
        for (text, number) in [
            ("0", Some(0)),
            ("-0.0e-5", Some(0)),
            ("1.50e1", Some(15)),
            ("1e18", Some(1_000_000_000_000_000_000)),
            ("9223372036854775807", Some(9_223_372_036_854_775_807)),
            ("-9223372036854775808", Some(-9_223_372_036_854_775_808)),
            ("9223372036854775808", None),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("0.5", None),
            ("1e-1", None),
            ("1e999999999999999999999", None),
            ("0e999999999999999999999", Some(0)),
            ("1e-999999999999999999999", None),
        ] {
            assert_eq!(whole(text), number, "{text}");
        }
        for text in ["", "-", "+1", "01", "1.", ".1", "1e", "1e+", "0x1", " 1", "1 ", "NaN", "١"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn unscaled_bytes_are_the_shortest_two_s_complement() {
        for number in (-70_000_i64..70_000).step_by(7).chain([i64::MIN, i64::MAX, 0, -1, -128, 128])
        {
            let bytes = Decimal::parse(&number.to_string()).unwrap().unscaled_bytes(30, 0).unwrap();
            let extended = sign_extended(&bytes, 8).unwrap();
            assert_eq!(i64::from_be_bytes(extended.try_into().unwrap()), number);
            let is_shortest = match bytes[..] {
                [0, second, ..] => second & 0x80 != 0,
                [0xff, second, ..] => second & 0x80 == 0,
                _ => true,
            };
            assert!(is_shortest, "{number}: {bytes:?}");
        }
        let large = Decimal::parse("-123456789012345678901234567890.12").unwrap();
        let bytes = large.unscaled_bytes(40, 2).unwrap();
        let number = i128::from_be_bytes(sign_extended(&bytes, 16).unwrap().try_into().unwrap());
        assert_eq!(number, -12_345_678_901_234_567_890_123_456_789_012);
        assert!(sign_extended(&bytes, 8).is_none());
        assert!(large.unscaled_bytes(40, 1).is_err());
        assert!(large.unscaled_bytes(31, 2).is_err());
    }
}
