//! The words of refusals, which have to outlive every record.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The longest words. Unit: bytes.
const BYTES_MAX: usize = 400;

/// How many different words are kept, so that all of them have at most 400 kB.
const COUNT_MAX: usize = 1000;

/// The words of refusals of this process. A refusal is copied with each report of a sink and therefore borrows its
/// words for ever. The words name paths and types of a schema and never a value, so there are few different ones.
static WORDS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);

/// The words, kept for ever. Words beyond the bounds are replaced by `general`.
pub(crate) fn keep(words: &str, general: &'static str) -> &'static str {
    let end = words.floor_char_boundary(BYTES_MAX);
    let words = words.get(..end).unwrap_or_default();
    let mut kept = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(known) = kept.get(words) {
        return known;
    }
    if kept.len() >= COUNT_MAX {
        return general;
    }
    let new: &'static str = Box::leak(words.to_owned().into_boxed_str());
    kept.insert(new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_once_and_within_their_bounds() {
        let first = keep("$.price: expected long", "general");
        assert!(std::ptr::eq(first, keep("$.price: expected long", "general")));
        assert_eq!(keep(&"ä".repeat(400), "general").len(), BYTES_MAX);
        for number in 0..2 * COUNT_MAX {
            keep(&format!("$.{number}"), "general");
        }
        assert_eq!(keep("$.one more", "general"), "general");
        assert_eq!(keep("$.price: expected long", "general"), first);
    }
}
