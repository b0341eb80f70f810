//! What is reused from event to event: buffers, and what the last event was.

use super::clock::Clock;
use super::position::Positions;
use super::span::Span;

/// Buffers and memory of one mapper.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Everything that is not in the row as it is.
    pub(super) scratch: Vec<u8>,
    /// Name and value of every header.
    pub(super) headers: Vec<(Span, Span)>,
    /// The event's texts that are mostly the last one's too: those are not checked again.
    pub(super) topic: Known,
    pub(super) aggregate_type: Known,
    pub(super) event_type: Known,
    pub(super) clock: Clock,
    pub(super) positions: Positions,
    /// Events are rows of the table, whose positions are not known.
    pub(super) rows: bool,
}

/// A text that is mostly the one before.
#[derive(Debug, Default)]
pub(super) struct Known(String);

impl Known {
    #[inline]
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Becomes these bytes, if they are text and `is_good`; whether they are.
    #[inline]
    pub(super) fn turns_into(&mut self, bytes: &[u8], is_good: impl FnOnce(&[u8]) -> bool) -> bool {
        // An empty one may never have been looked at.
        if bytes == self.0.as_bytes() && !bytes.is_empty() {
            return true;
        }
        let Some(text) = std::str::from_utf8(bytes).ok().filter(|_| is_good(bytes)) else {
            return false;
        };
        self.0.clear();
        self.0.push_str(text);
        true
    }
}

impl Work {
    /// Most that the scratch buffer keeps between events, in bytes: one event of a gigabyte must not be paid for ever.
    pub(super) const KEPT_MAX: usize = 1 << 20;

    pub(super) fn clear(&mut self) {
        self.headers.clear();
        self.scratch.clear();
        self.scratch.shrink_to(Self::KEPT_MAX);
    }
}
