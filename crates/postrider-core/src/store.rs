//! What a pipeline keeps from one start to the next: its [`Cursor`], in a [`Store`]; and the [`PipelineKey`] that it is
//! kept under in a store of several pipelines.

use crate::error::Failure;
use crate::event::{HeaderPosition, HistoryId, Position};
use crate::offset::{Offset, Watermark};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Where a pipeline keeps its cursor: in the source itself, in a database, in a file.
///
/// One process at a time may use a store. Nothing here finds a second one: a caller that may start two of them locks
/// the store.
pub trait Store {
    /// Reads the cursor, as it is durable; `None` if none was ever written. Called at each connection to the source,
    /// before it: what it returns is confirmed to the source at once. The future may be dropped before it is ready.
    ///
    /// # Errors
    /// [`Failure::Temporary`] if the store can't be reached: the pipeline tries again. [`Failure::Halt`] if its content
    /// can't be used.
    fn read_cursor(&self) -> impl Future<Output = Result<Option<Cursor>, Failure>>;

    /// Writes the cursor in place of the one before. When the future is ready, the cursor is durable: a crash of the
    /// process or of the machine does not bring the one before back. The offset is confirmed to the source next, which
    /// then may remove what is below it.
    ///
    /// The write is atomic. The future may be dropped before it is ready; then
    /// [`read_cursor`](Self::read_cursor) returns the cursor before or this one, and the dropped write has no effect
    /// any more when the next call of either function begins: otherwise it could replace a later cursor. At most one
    /// write is requested at a time.
    ///
    /// # Errors
    /// [`Failure::Temporary`] if the write is not known to be durable: the pipeline connects again, and reads the
    /// cursor again. [`Failure::Halt`] if no retry helps, for example because another process has taken the pipeline
    /// over ([`HaltReason::RelayRunning`](crate::error::HaltReason::RelayRunning)).
    fn write_cursor(&self, cursor: Cursor) -> impl Future<Output = Result<(), Failure>>;
}

/// Whose rows: everything that is stored is stored under a pipeline and a shard of it.
///
/// A shard is a part of a pipeline with a slot, a cursor, parked events and an owner of its own. Each pipeline has one
/// shard today, 0. A later version may split a pipeline over several slots; positions of two slots are not comparable,
/// so no statement may use rows of another shard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct PipelineKey {
    /// The pipeline's name.
    pub pipeline: String,
    /// The shard, from 0. Signed, as `integer` in a table; never negative.
    pub shard: i32,
}

impl PipelineKey {
    /// The first shard, which every pipeline has.
    pub fn first(pipeline: impl Into<String>) -> Self {
        Self { pipeline: pipeline.into(), shard: 0 }
    }
}

/// For a message: `"orders"`, and `"orders" shard 1` for any other shard than the first.
impl fmt::Display for PipelineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.pipeline)?;
        if self.shard == 0 { Ok(()) } else { write!(f, " shard {}", self.shard) }
    }
}

/// How far a pipeline is: every change below it is resolved.
///
/// Its text is what a store writes: `68F1A2B3 16/B374D848`, with ` 16/B374D900:5` behind it inside of a transaction.
/// `to_string` writes it and `parse` reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The history that the offsets belong to.
    pub history: HistoryId,
    /// Every transaction that commits below it is resolved. A stream begins here.
    pub watermark: Watermark,
    /// If some changes of the first unresolved transaction are resolved: those below this position.
    pub partial: Option<Position>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.history, self.watermark)?;
        self.partial.map_or(Ok(()), |position| write!(f, " {position}"))
    }
}

/// The text is not a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseCursorError;

impl fmt::Display for ParseCursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a cursor: expected a history, an offset, and perhaps a position")
    }
}

impl std::error::Error for ParseCursorError {}

impl FromStr for Cursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let mut parts = text.split(' ');
        let history = parts.next().filter(|text| is_hexadecimal(text));
        let history = history.and_then(|text| u32::from_str_radix(text, 16).ok());
        let watermark = parts.next().and_then(|text| text.parse::<Offset>().ok());
        let partial = match parts.next() {
            None => None,
            Some(text) => Some(position(text).ok_or(ParseCursorError)?),
        };
        match (history, watermark, parts.next()) {
            (Some(history), Some(watermark), None) => Ok(Self {
                history: HistoryId(history),
                watermark: Watermark::resumed(watermark),
                partial,
            }),
            _ => Err(ParseCursorError),
        }
    }
}

/// Only the digits that `Display` writes: no sign.
fn is_hexadecimal(text: &str) -> bool {
    text.len() == HeaderPosition::HISTORY_DIGITS
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(crate) fn position(text: &str) -> Option<Position> {
    let (commit, ordinal) = text.split_once(':')?;
    let digits = ordinal.bytes().all(|byte| byte.is_ascii_digit());
    let ordinal = ordinal.parse().ok().filter(|_| digits)?;
    Some(Position { commit: commit.parse().ok()?, ordinal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_cursor_is_read_as_it_was_written() {
        let watermark = Watermark::resumed(Offset::new(0x16_B374_D848));
        let partial = Position { commit: Offset::new(0x16_B374_D900), ordinal: 5 };
        let whole = Cursor { history: HistoryId(0x68F1_A2B3), watermark, partial: None };
        for (cursor, text) in [
            (Cursor::default(), "00000000 0/0"),
            (whole, "68F1A2B3 16/B374D848"),
            (Cursor { partial: Some(partial), ..whole }, "68F1A2B3 16/B374D848 16/B374D900:5"),
        ] {
            assert_eq!(cursor.to_string(), text);
            assert_eq!(text.parse(), Ok(cursor));
        }
    }

    #[test]
    fn messages_name_a_shard_only_if_it_is_not_the_first() {
        let first = PipelineKey::first("orders");
        assert_eq!(first.to_string(), "\"orders\"");
        assert_eq!(PipelineKey { shard: 2, ..first }.to_string(), "\"orders\" shard 2");
    }

    /// A file that is cut, or has something else in it, is not taken for a cursor.
    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "68F1A2B3",
            "68F1A2B3 ",
            "68F1A2B 16/B374D848",
            "+8F1A2B3 16/B374D848",
            "68F1A2B3 16",
            "68F1A2B3 16/B374D848 ",
            "68F1A2B3 16/B374D848 16/B374D900",
            "68F1A2B3 16/B374D848 16/B374D900:",
            "68F1A2B3 16/B374D848 16/B374D900:+5",
            "68F1A2B3 16/B374D848 16/B374D900:5 0",
            "68F1A2B3 16/B374D848\n",
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(ParseCursorError), "{text:?}");
        }
    }
}
