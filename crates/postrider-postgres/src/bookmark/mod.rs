//! Bookmarks: saved positions of a pipeline, each held by a slot of its own, which is a copy of the pipeline's.
//!
//! Owns the rows of `postrider.bookmark` and the slots they name. Never touches the pipeline's own slot, nor any slot
//! that no row names. Reading from a bookmark is `replay`'s; the slot is never moved by it, so a bookmark serves any
//! number of replays.

mod create;
mod error;
mod list;
mod sweep;
#[cfg(test)]
mod tests;

pub use create::{New, create, drop};
pub use error::BookmarkError;
pub use list::{Bookmark, State, find, list};
pub use sweep::{Reason, Swept, sweep};

/// What the names of bookmarks' slots begin with, so that a slot whose row is gone is known for what it is.
pub const SLOT_PREFIX: &str = "postrider_bm_";

/// Characters of the longest name of a bookmark.
pub const NAME_CHARS_MAX: usize = 63;

/// Characters of a bookmark's name that stand in its slot's name: with prefix and ending within `NAMEDATALEN` - 1.
const SLOT_NAME_PART: usize = 40;

/// Whether a bookmark, or a replay, may have this name: letters, digits, dot, underscore and hyphen of ASCII. It stands
/// in a command line, in a header and in the log.
pub fn name_allowed(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The name of a bookmark's slot: what a person finds again, made different by `tail`.
fn slot_name(bookmark: &str, tail: u32) -> String {
    let part: String = bookmark
        .chars()
        .take(SLOT_NAME_PART)
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect();
    format!("{SLOT_PREFIX}{part}_{:06x}", tail & 0x00FF_FFFF)
}
