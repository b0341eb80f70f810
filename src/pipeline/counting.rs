//! Positions within a transaction as they are stored: by what the changes of the transaction were counted.
//!
//! The documents of captured tables are divided by the configuration. After another configuration such a position says
//! nothing about what is published, so the transaction is published again from its beginning.

use crate::event::Position;
use crate::offset::Offset;
use crate::postgres::capture::CaptureSpec;

/// How a pipeline counts the changes of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counting {
    /// The captured tables, if there are any.
    capture: Option<CaptureSpec>,
    /// The highest commit of a transaction whose position was not used.
    recounted: Offset,
}

impl Counting {
    /// How a pipeline with these captured tables counts.
    pub(crate) fn new(capture: Option<CaptureSpec>) -> Self {
        Self { capture, recounted: Offset::ZERO }
    }

    /// A position within a transaction, as it is stored.
    pub(crate) fn stored(&self, partial: Position) -> Position {
        self.capture.as_ref().map_or(partial, |capture| capture.stored(partial))
    }

    /// The position that [`stored`](Self::stored) made; `None` if it was counted in another way. Then the transaction
    /// is published again from its beginning.
    pub(crate) fn resumed(&mut self, stored: Position) -> Option<Position> {
        let resumed = match &self.capture {
            Some(capture) => capture.resumed(stored),
            None => CaptureSpec::is_untagged(stored).then_some(stored),
        };
        if resumed.is_none() {
            self.recount(stored.commit);
        }
        resumed
    }

    /// The transaction that commits at this offset may have been published in part, by another count.
    pub(crate) fn recount(&mut self, commit: Offset) {
        self.recounted = self.recounted.max(commit);
    }

    /// The highest commit of a transaction that may have been published in part, by another count.
    pub(crate) fn recounted(&self) -> Offset {
        self.recounted
    }
}
