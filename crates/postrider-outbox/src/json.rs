//! Reads JSON objects member by member, without building them: the value of a member is the text as written.

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The text is not a JSON object. The error has no cause, because serde's message may quote the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotAnObject;

/// Calls `each` for every member in order, with `names`, the offset of the member's name in `names`, and the value as
/// written.
///
/// # Errors
/// [`NotAnObject`]; `each` may have been called for members before the error.
pub(super) fn members<'t>(
    text: &'t [u8],
    names: &mut Vec<u8>,
    each: impl FnMut(&mut Vec<u8>, usize, &'t str),
) -> Result<(), NotAnObject> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = json.deserialize_map(Members { names, each });
    match read.and_then(|()| json.end()) {
        Ok(()) => Ok(()),
        Err(_) => Err(NotAnObject),
    }
}

/// Appends a member's value as header text: a string unquoted, any other value as written.
pub(super) fn append_plain(value: &str, out: &mut Vec<u8>) {
    match value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        None => out.extend_from_slice(value.as_bytes()),
        Some(inner) if !inner.contains('\\') => out.extend_from_slice(inner.as_bytes()),
        Some(_) => {
            let length = out.len();
            let mut json = serde_json::Deserializer::from_str(value);
            if Append(out).deserialize(&mut json).is_err() {
                // A lone surrogate is not a character: the escaped text is better than nothing.
                out.truncate(length);
                out.extend_from_slice(value.as_bytes());
            }
        }
    }
}

/// Appends `text` as a JSON string, with U+FFFD for bytes that are not UTF-8.
pub(super) fn append_string(text: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(text);
    let length = out.len();
    // Writing to a Vec does not fail.
    if serde_json::to_writer(&mut *out, &text).is_err() {
        out.truncate(length);
        out.extend_from_slice(b"null");
    }
}

struct Members<'n, F> {
    names: &'n mut Vec<u8>,
    each: F,
}

impl<'t, F: FnMut(&mut Vec<u8>, usize, &'t str)> Visitor<'t> for Members<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut map: A) -> Result<(), A::Error> {
        loop {
            let start = self.names.len();
            if map.next_key_seed(Append(&mut *self.names))?.is_none() {
                return Ok(());
            }
            let value: &'t RawValue = map.next_value()?;
            (self.each)(self.names, start, value.get());
        }
    }
}

/// Appends a string.
struct Append<'o>(&'o mut Vec<u8>);

impl<'t> DeserializeSeed<'t> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
