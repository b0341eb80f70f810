//! Ids of events in 17 bytes, so that a hundred million of them fit into memory, and their texts.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::mem::size_of;

/// Bytes of a canonical UUID.
const UUID_CHARS: usize = 36;

/// Digits of a number that surely fits.
const DIGITS_MAX: usize = 18;

/// How an id is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum IdForm {
    /// A whole number.
    Number,
    /// A UUID in lower case.
    Uuid,
    /// Any other text, of which the hash is compared and the text is kept beside.
    Text,
}

/// An id: equal ids have equal values. Of texts that are neither numbers nor UUIDs two have the same value with a
/// probability of 2^-128.
pub(super) type CompactId = (u128, IdForm);

/// Makes compact ids, and gives their texts back.
#[derive(Debug, Default)]
pub(super) struct EventIds {
    first: RandomState,
    second: RandomState,
    texts: HashMap<u128, Box<str>>,
    text_bytes: u64,
}

impl EventIds {
    /// The compact form of an id.
    pub(super) fn of(&self, id: &str) -> CompactId {
        if let Some(number) = number(id) {
            return (number, IdForm::Number);
        }
        if let Some(uuid) = uuid(id) {
            return (uuid, IdForm::Uuid);
        }
        let (high, low) = (self.first.hash_one(id), self.second.hash_one(id));
        ((u128::from(high) << 64) | u128::from(low), IdForm::Text)
    }

    /// The same, and its text can be given back.
    pub(super) fn keep(&mut self, id: &str) -> CompactId {
        let compact = self.of(id);
        if compact.1 == IdForm::Text && self.texts.insert(compact.0, id.into()).is_none() {
            self.text_bytes += id.len() as u64;
        }
        compact
    }

    /// The text of an id that was kept.
    pub(super) fn text(&self, (bits, form): CompactId) -> String {
        match form {
            IdForm::Number => bits.to_string(),
            IdForm::Uuid => {
                let digits = format!("{bits:032x}");
                let mut text = String::with_capacity(UUID_CHARS);
                for (at, digit) in digits.chars().enumerate() {
                    if matches!(at, 8 | 12 | 16 | 20) {
                        text.push('-');
                    }
                    // Writing to a String does not fail.
                    write!(text, "{digit}").unwrap_or_default();
                }
                text
            }
            IdForm::Text => self.texts.get(&bits).map_or_else(String::new, ToString::to_string),
        }
    }

    /// What the texts take. Unit: bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        let entry = size_of::<(u128, Box<str>)>() + 1;
        self.text_bytes + (self.texts.capacity() * entry) as u64
    }
}

/// A number without a sign and without leading zeros.
fn number(id: &str) -> Option<u128> {
    let is_plain = !id.is_empty()
        && id.len() <= DIGITS_MAX
        && id.bytes().all(|byte| byte.is_ascii_digit())
        && (id == "0" || !id.starts_with('0'));
    is_plain.then(|| id.parse().ok()).flatten()
}

/// A UUID as PostgreSQL writes it.
fn uuid(id: &str) -> Option<u128> {
    if id.len() != UUID_CHARS {
        return None;
    }
    let mut bits = 0;
    for (at, byte) in id.bytes().enumerate() {
        if matches!(at, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        bits = (bits << 4) | u128::from(digit);
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_is_given_back_as_it_was_and_different_ids_differ() {
        let mut ids = EventIds::default();
        let all = [
            "0",
            "1",
            "01",
            "-1",
            "+1",
            "1 ",
            "",
            "123456789012345678",
            "12345678901234567890",
            "7f0c9a1e-4111-4222-8333-944445555666",
            "7F0C9A1E-4111-4222-8333-944445555666",
            "00000000-0000-0000-0000-000000000001",
            "7f0c9a1e-4111-4222-8333-94444555566g",
            "7f0c9a1e41114-222-8333-944445555666a",
            "order-42",
            "ü",
        ];
        let kept: Vec<CompactId> = all.iter().map(|id| ids.keep(id)).collect();
        for (at, id) in all.iter().enumerate() {
            assert_eq!(ids.text(kept[at]), *id);
            assert_eq!(ids.of(id), kept[at]);
            assert_eq!(kept.iter().filter(|other| **other == kept[at]).count(), 1, "{id}");
        }
        let before = ids.size_bytes();
        ids.keep("order-42");
        ids.keep("42");
        assert_eq!(ids.size_bytes(), before, "nothing is kept twice, and numbers not at all");
    }
}
