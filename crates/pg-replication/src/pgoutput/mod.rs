//! A decoder for `pgoutput`, protocol version 1: the bytes of one logical replication message become a [`Message`] that
//! borrows them.
//!
//! The formats are those of the manual, 55.9 "Logical Replication Message Formats", and
//! `src/backend/replication/logical/proto.c`. The decoder allocates nothing (a test in `tests/fuzz.rs` measures it),
//! and every byte must match the format: anything else is a [`DecodeError`].

#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

mod message;

#[cfg(test)]
mod tests;

pub use message::{
    Begin, Cell, Column, Columns, Commit, Delete, Insert, LogicalMessage, Message, OldTuple,
    Origin, Relation, RelationColumn, RelationColumns, RelationIds, Truncate, Tuple, TypeName,
    Update,
};

use std::fmt;

/// The bytes are not a message of protocol version 1. The stream must not be used after such an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("could not decode pgoutput message {tag} at byte {offset}: {what}")]
pub struct DecodeError {
    /// Offset of the part that does not match the format, counted from the tag. Unit: bytes.
    pub offset: usize,
    /// The message's first byte.
    pub tag: Tag,
    /// What is wrong, without content of the message.
    pub what: &'static str,
}

/// A message's first byte; `Display` prints a visible ASCII character as such, and any other byte in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub u8);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_ascii_graphic() {
            write!(f, "'{}'", char::from(self.0))
        } else {
            write!(f, "0x{:02x}", self.0)
        }
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Decodes one message: the payload of one `XLogData`.
///
/// # Errors
/// The message has an unknown tag, is truncated, has a negative length, a name that is not UTF-8, an unchanged TOAST
/// value in an Insert, or bytes after its end.
pub fn decode(data: &[u8]) -> Result<Message<'_>, DecodeError> {
    message::decode(data)
}
