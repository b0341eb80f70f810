//! Positions within a transaction as they are stored: by what the changes of the transaction were counted.
//!
//! The documents of captured tables are divided by the configuration, so such a position is valid for the configuration
//! under which it was stored. After a change of it, a transaction that may be published in part is published again from
//! its beginning, in documents that are right whatever part of it a consumer has: absolute ones. These are the
//! transactions that were committed before the first start with the new configuration; every later start divides them
//! in the same places until they are resolved.

use crate::ack::Progress;
use crate::event::Position;
use crate::offset::Offset;
use crate::postgres::capture::CaptureSpec;

/// How a pipeline counts the changes of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Counting {
    /// The captured tables, if there are any.
    capture: Option<CaptureSpec>,
    /// The end of WAL when this process became the owner of the pipeline: no earlier owner has published what was
    /// committed later.
    wal_end: Offset,
    /// Transactions up to this offset have absolute documents.
    absolute_upto: Offset,
}

impl Counting {
    /// How a pipeline with these captured tables counts. `wal_end`: the end of WAL when this process became the owner.
    pub(super) fn new(capture: Option<CaptureSpec>, wal_end: Offset) -> Self {
        Self { capture, wal_end, absolute_upto: Offset::ZERO }
    }

    /// Whether the position of a cursor must be stored before anything is published: nothing else says under which
    /// configuration a transaction was published in part.
    pub(super) fn needs_position(&self) -> bool {
        self.capture.is_some()
    }

    /// The position within a transaction, as it is stored; `None` if there is none to store.
    pub(super) fn stored(&self, progress: Progress) -> Option<Position> {
        let Some(capture) = &self.capture else { return progress.partial };
        let position = progress.position();
        Some(capture.stored(position, position.commit <= self.absolute_upto))
    }

    /// The position that [`stored`](Self::stored) made; `None` if the transaction is read from its beginning.
    pub(super) fn resumed(&mut self, stored: Option<Position>) -> Option<Position> {
        let Some(capture) = &self.capture else {
            return stored.filter(|of| CaptureSpec::is_untagged(*of));
        };
        let (position, absolute) = match stored {
            Some(stored) => match capture.resumed(stored) {
                Some((position, absolute)) => (Some(position), absolute),
                None => (None, true),
            },
            // Nothing was published.
            None => (None, false),
        };
        self.absolute_upto = match position {
            _ if !absolute => Offset::ZERO,
            Some(position) if position.commit <= self.absolute_upto => self.absolute_upto,
            Some(_) | None => self.wal_end,
        };
        position.filter(|position| position.ordinal > 0)
    }

    /// Transactions that commit at this offset or below have absolute documents.
    pub(super) fn absolute_upto(&self) -> Offset {
        self.absolute_upto
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Watermark;
    use crate::postgres::TableName;
    use crate::postgres::capture::CapturedTable;

    fn capture(inline_threshold_rows: u32) -> CaptureSpec {
        let name = TableName::new("public", "orders");
        let tables = vec![CapturedTable { name, columns: None }];
        CaptureSpec { tables, inline_threshold_rows, chunk_bytes: 1 << 20 }
    }

    fn at(commit: u64, ordinal: u64) -> Position {
        Position { commit: Offset::new(commit), ordinal }
    }

    fn progress(watermark: u64, partial: Option<Position>) -> Progress {
        Progress { watermark: Watermark::resumed(Offset::new(watermark)), partial }
    }

    #[test]
    fn the_rows_of_an_outbox_are_counted_as_ever() {
        let mut plain = Counting::default();
        for partial in [None, Some(at(8, 5))] {
            assert_eq!(plain.stored(progress(8, partial)), partial);
            assert_eq!(plain.resumed(partial), partial);
        }
        // The tables were captured before.
        let stored =
            Counting::new(Some(capture(10)), Offset::new(100)).stored(progress(8, Some(at(8, 5))));
        assert_eq!(plain.resumed(stored), None);
        assert_eq!(plain.absolute_upto(), Offset::ZERO);
    }

    #[test]
    fn after_another_configuration_what_was_committed_before_is_absolute_until_it_is_resolved() {
        let first = Counting::new(Some(capture(10)), Offset::new(100));
        let stored = first.stored(progress(80, Some(at(80, 5))));
        let mut same = Counting::new(Some(capture(10)), Offset::new(200));
        assert_eq!((same.resumed(stored), same.absolute_upto()), (Some(at(80, 5)), Offset::ZERO));
        let mut other = Counting::new(Some(capture(11)), Offset::new(200));
        assert_eq!((other.resumed(stored), other.absolute_upto()), (None, Offset::new(200)));
        // It stops within the transaction, and after it.
        let within = other.stored(progress(80, Some(at(80, 7))));
        let before = other.stored(progress(80, None));
        let after = other.stored(progress(208, None));
        let mut again = Counting::new(Some(capture(11)), Offset::new(300));
        assert_eq!(
            (again.resumed(within), again.absolute_upto()),
            (Some(at(80, 7)), Offset::new(300))
        );
        let mut again = Counting::new(Some(capture(11)), Offset::new(300));
        assert_eq!((again.resumed(before), again.absolute_upto()), (None, Offset::new(300)));
        assert_eq!((again.resumed(after), again.absolute_upto()), (None, Offset::ZERO));
        // The sink is further than the row, in a transaction that is not absolute.
        assert_eq!(again.resumed(stored), None);
        let ahead =
            Counting::new(Some(capture(11)), Offset::ZERO).stored(progress(216, Some(at(216, 3))));
        assert_eq!((again.resumed(ahead), again.absolute_upto()), (Some(at(216, 3)), Offset::ZERO));
        // Before the first start.
        assert_eq!((again.resumed(None), again.absolute_upto()), (None, Offset::ZERO));
    }
}
