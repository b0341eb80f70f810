//! pgoutput: the bytes of one logical replication message, protocol version 1, to a typed message that borrows them.
//!
//! Owns the message formats (manual, "Logical Replication Message Formats"; `src/backend/replication/logical/proto.c`).
//! Refuses to know what a table means, which columns matter, or where the bytes came from. Nothing is allocated and
//! nothing is skipped: what does not fit the format to the last byte is a [`DecodeError`]. `outbox` takes it from here.

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

/// The bytes are not a message of protocol version 1. The stream can't be trusted after it: the relay stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("could not decode pgoutput message {tag} at byte {offset}: {what}")]
pub struct DecodeError {
    /// Offset of the part that does not fit, from the tag.
    pub offset: usize,
    /// The message's first byte.
    pub tag: Tag,
    /// What does not fit, without any of the message's content.
    pub what: &'static str,
}

/// A message's first byte, printed as a letter where it is one.
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
/// An unknown tag, a field that the bytes cut short, a length below zero, a name that is not UTF-8, an unchanged TOAST
/// value in an Insert, bytes left over.
pub fn decode(data: &[u8]) -> Result<Message<'_>, DecodeError> {
    message::decode(data)
}
