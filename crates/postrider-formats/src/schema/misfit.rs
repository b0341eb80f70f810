//! Why a document does not fit a schema: the path in the document, and what is wrong there. Never a value.

use std::borrow::Cow;
use std::fmt;

/// Parts of a path that are shown. The words of a refusal are kept for ever, so they are short.
const PARTS_MAX: usize = 16;

/// The longest name of a member that is shown. Unit: bytes.
const NAME_BYTES_MAX: usize = 64;

/// The place in a document that does not fit. Indexes of items and keys of maps are left out: they are data, and every
/// one of them would be another text.
#[derive(Debug)]
pub(super) struct Misfit {
    /// From the inside to the outside.
    path: Vec<PathPart>,
    words: Cow<'static, str>,
}

/// A step from a value to one in it.
#[derive(Debug)]
enum PathPart {
    /// A member that the schema knows.
    Member(String),
    /// An item of an array.
    Item,
    /// An entry of a map.
    Entry,
}

impl Misfit {
    pub(super) fn new(words: impl Into<Cow<'static, str>>) -> Self {
        Self { path: Vec::new(), words: words.into() }
    }

    /// A value of another type than the schema wants.
    pub(super) fn expected(expected: &str, found: &str) -> Self {
        Self::new(format!("expected {expected}, found {found}"))
    }

    /// The value is in this member.
    pub(super) fn in_member(mut self, name: &str) -> Self {
        self.path.push(PathPart::Member(shown_name(name).to_owned()));
        self
    }

    /// The value is an item of an array.
    pub(super) fn in_item(mut self) -> Self {
        self.path.push(PathPart::Item);
        self
    }

    /// The value is an entry of a map.
    pub(super) fn in_entry(mut self) -> Self {
        self.path.push(PathPart::Entry);
        self
    }

    /// How far inside of the document the place is.
    pub(super) fn depth(&self) -> usize {
        self.path.len()
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("$")?;
        for part in self.path.iter().rev().take(PARTS_MAX) {
            match part {
                PathPart::Member(name) => write!(f, ".{name}")?,
                PathPart::Item => f.write_str("[]")?,
                PathPart::Entry => f.write_str("{}")?,
            }
        }
        if self.path.len() > PARTS_MAX {
            f.write_str("…")?;
        }
        write!(f, ": {}", self.words)
    }
}

/// The name of a member, if it looks like one. Anything else may be data, and is not shown.
pub(super) fn shown_name(name: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) { name } else { "?" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_has_no_index_no_key_of_a_map_and_no_data() {
        let misfit = Misfit::expected("long", "string");
        let misfit = misfit.in_member("price").in_item().in_member("items").in_entry();
        assert_eq!(misfit.to_string(), "${}.items[].price: expected long, found string");
        let odd = Misfit::new("no").in_member("4111 1111 1111 1111").in_member("it's");
        assert_eq!(odd.to_string(), "$.?.?: no");
        let mut deep = Misfit::new("no");
        for _ in 0..40 {
            deep = deep.in_item();
        }
        assert_eq!(deep.to_string(), format!("${}…: no", "[]".repeat(16)));
    }
}
