//! Positions within a transaction as they are stored: by what the changes of the transaction were counted.
//!
//! The documents of captured tables are divided by the configuration, so such a position is valid for the configuration
//! under which it was stored. After a change of it, a transaction that may be published in part is published again from
//! its beginning, in documents that are right whatever part of it a consumer has: absolute ones. These are the
//! transactions that were committed before the first start with the new configuration; every later start divides them
//! in the same places until they are resolved.
//!
//! The stream has options that decide which changes of a transaction it has: its publication, and whether it has
//! logical messages. The cursor row has both in columns of its own. A sink that publishes in transactions stores
//! positions only, so each has the number of the options.

use crate::ack::Progress;
use crate::event::Position;
use crate::offset::Offset;
use crate::postgres::capture::{CaptureSpec, SettingsNumber};

/// The options of a stream that decide which changes of a transaction it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamOptions {
    /// What positions that were counted with these options are stored with.
    number: SettingsNumber,
    /// The cursor row was written with the same options. Sinks have positions without a number that were stored by
    /// earlier versions, just before the row was written.
    are_those_of_row: bool,
}

impl StreamOptions {
    /// The options of a stream. `are_those_of_row`: the cursor row was written with the same ones.
    pub(super) fn new(publication: &str, messages: bool, are_those_of_row: bool) -> Self {
        let mut number = SettingsNumber::default();
        number.add(publication.as_bytes());
        number.add(&[u8::from(messages)]);
        Self { number, are_those_of_row }
    }
}

/// The sink has a part of a transaction, and the changes of the transaction were counted with other options of the
/// stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Recounted;

/// How a pipeline counts the changes of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Counting {
    /// The captured tables, if there are any.
    capture: Option<CaptureSpec>,
    /// The options of the stream; `None` for a source that is not PostgreSQL.
    stream: Option<StreamOptions>,
    /// The end of WAL when this process became the owner of the pipeline: no earlier owner has published what was
    /// committed later.
    wal_end: Offset,
    /// Transactions up to this offset have absolute documents.
    absolute_upto: Offset,
}

impl Counting {
    /// How a pipeline with these captured tables counts. `wal_end`: the end of WAL when this process became the owner.
    pub(super) fn new(
        capture: Option<CaptureSpec>,
        stream: StreamOptions,
        wal_end: Offset,
    ) -> Self {
        Self { capture, stream: Some(stream), wal_end, absolute_upto: Offset::ZERO }
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

    /// As [`stored`](Self::stored), for a sink, which stores nothing else that says how the changes were counted.
    pub(super) fn stored_by_sink(&self, progress: Progress) -> Option<Position> {
        let stored = self.stored(progress)?;
        let Some(stream) = self.stream else { return Some(stored) };
        // No transaction has so many changes. If one had, it would be published again from its beginning.
        let ordinal = match &self.capture {
            None if !CaptureSpec::is_untagged(stored) => 0,
            None | Some(_) => stored.ordinal,
        };
        Some(stream.number.toggled(Position { ordinal, ..stored }))
    }

    /// The position that [`stored_by_sink`](Self::stored_by_sink) made; `None` if the transaction is read from its
    /// beginning.
    ///
    /// # Errors
    /// The sink has a part of the transaction, and which part can't be said.
    pub(super) fn resumed_from_sink(
        &mut self,
        stored: Option<Position>,
    ) -> Result<Option<Position>, Recounted> {
        let (Some(stored), Some(stream)) = (stored, self.stream) else {
            return Ok(self.resumed(stored));
        };
        let counts = |counting: &Self, position| match &counting.capture {
            None => CaptureSpec::is_untagged(position),
            Some(capture) => capture.resumed(position).is_some(),
        };
        let position = stream.number.toggled(stored);
        if counts(self, position) {
            return Ok(self.resumed(Some(position)));
        }
        // Of an earlier version.
        if stream.are_those_of_row && counts(self, stored) {
            return Ok(self.resumed(Some(stored)));
        }
        if CaptureSpec::is_within(stored) {
            return Err(Recounted);
        }
        Ok(self.resumed(Some(position)))
    }

    /// The cursor row, or the sink, has a part of a transaction that is published again from its beginning.
    pub(super) fn begins_again(&mut self, stored: Option<Position>) {
        if let (Some(stored), Some(stream)) = (stored, self.stream) {
            // No specification of captured tables has made it: their documents are absolute.
            let begins = self.resumed(Some(stream.number.toggled(stored)));
            debug_assert_eq!(begins, None, "a position that counts is not discarded");
        }
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

    fn counting(inline_threshold_rows: u32, wal_end: u64) -> Counting {
        let stream = StreamOptions::new("orders", false, true);
        Counting::new(Some(capture(inline_threshold_rows)), stream, Offset::new(wal_end))
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
        let stored = counting(10, 100).stored(progress(8, Some(at(8, 5))));
        assert_eq!(plain.resumed(stored), None);
        assert_eq!(plain.absolute_upto(), Offset::ZERO);
    }

    #[test]
    fn after_another_configuration_what_was_committed_before_is_absolute_until_it_is_resolved() {
        let first = counting(10, 100);
        let stored = first.stored(progress(80, Some(at(80, 5))));
        let mut same = counting(10, 200);
        assert_eq!((same.resumed(stored), same.absolute_upto()), (Some(at(80, 5)), Offset::ZERO));
        let mut other = counting(11, 200);
        assert_eq!((other.resumed(stored), other.absolute_upto()), (None, Offset::new(200)));
        // It stops within the transaction, and after it.
        let within = other.stored(progress(80, Some(at(80, 7))));
        let before = other.stored(progress(80, None));
        let after = other.stored(progress(208, None));
        let mut again = counting(11, 300);
        assert_eq!(
            (again.resumed(within), again.absolute_upto()),
            (Some(at(80, 7)), Offset::new(300))
        );
        let mut again = counting(11, 300);
        assert_eq!((again.resumed(before), again.absolute_upto()), (None, Offset::new(300)));
        assert_eq!((again.resumed(after), again.absolute_upto()), (None, Offset::ZERO));
        // The sink is further than the row, in a transaction that is not absolute.
        assert_eq!(again.resumed(stored), None);
        let ahead = counting(11, 0).stored(progress(216, Some(at(216, 3))));
        assert_eq!((again.resumed(ahead), again.absolute_upto()), (Some(at(216, 3)), Offset::ZERO));
        // Before the first start.
        assert_eq!((again.resumed(None), again.absolute_upto()), (None, Offset::ZERO));
    }
    #[test]
    fn position_of_a_sink_counts_only_with_the_options_of_the_stream_that_counted_it() {
        let with = |publication, messages, same| {
            let stream = StreamOptions::new(publication, messages, same);
            Counting::new(None, stream, Offset::new(100))
        };
        let mut plain = with("orders", false, true);
        let partial = Some(at(80, 5));
        let stored = plain.stored_by_sink(progress(80, partial));
        assert!(stored.unwrap().ordinal <= i64::MAX.cast_unsigned(), "{stored:?}");
        assert_eq!(plain.resumed_from_sink(stored), Ok(partial));
        for (publication, messages) in [("orders", true), ("other", false)] {
            // Whatever the row was written with: it is written before the first commit.
            for same in [false, true] {
                let mut other = with(publication, messages, same);
                assert_eq!(other.resumed_from_sink(stored), Err(Recounted));
                let none = other.stored_by_sink(progress(80, None));
                assert_eq!((none, other.resumed_from_sink(none)), (None, Ok(None)));
            }
        }
        // An earlier version has stored no number, and just before the row was written.
        assert_eq!(plain.resumed_from_sink(partial), Ok(partial));
        assert_eq!(with("orders", false, false).resumed_from_sink(partial), Err(Recounted));
        let mut embedded = Counting::default();
        assert_eq!(embedded.stored_by_sink(progress(80, partial)), partial);
        assert_eq!(embedded.resumed_from_sink(partial), Ok(partial));
    }

    #[test]
    fn position_of_a_sink_within_documents_counts_only_with_tables_and_options_alike() {
        let first = counting(10, 100);
        let stored = first.stored_by_sink(progress(80, Some(at(80, 5))));
        let mut same = counting(10, 200);
        assert_eq!(same.resumed_from_sink(stored), Ok(Some(at(80, 5))));
        assert_eq!(same.absolute_upto(), Offset::ZERO);
        let of_earlier_version = first.stored(progress(80, Some(at(80, 5))));
        assert_eq!(same.resumed_from_sink(of_earlier_version), Ok(Some(at(80, 5))));
        let messages = StreamOptions::new("orders", true, true);
        let with_messages = Counting::new(Some(capture(10)), messages, Offset::new(200));
        for mut other in [counting(11, 200), with_messages] {
            assert_eq!(other.resumed_from_sink(stored), Err(Recounted));
            other.begins_again(stored);
            assert_eq!(other.absolute_upto(), Offset::new(200), "documents are absolute");
        }
        // Between two transactions.
        let between = first.stored_by_sink(progress(80, None));
        assert_eq!(counting(11, 200).resumed_from_sink(between), Ok(None));
    }
}
