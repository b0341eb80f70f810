//! An event's identity: its position, the history of the position, and its aggregate.

use crate::offset::Offset;
use std::borrow::Cow;
use std::fmt;
use std::num::ParseIntError;

/// Maximum length of an event's id in logs and errors. A longer id ends with `…` there. Unit: characters.
pub const ID_SHOWN_CHARS_MAX: usize = 100;

/// An event's id as logs and errors show it.
pub fn shown_id(id: &str) -> Cow<'_, str> {
    match id.char_indices().nth(ID_SHOWN_CHARS_MAX) {
        None => Cow::Borrowed(id),
        Some((end, _)) => Cow::Owned(format!("{}…", id.get(..end).unwrap_or_default())),
    }
}

/// Identity and sort key of an event: the offset of its transaction's commit, and the index of the change in the
/// transaction.
///
/// A source must give a change the same position each time. PostgreSQL does so after reconnects, spills and restarts of
/// the server (measured on 15 and 18). The ordinal counts every change of the transaction that the source sends, also
/// those that are no events. LSNs of rows are not used, because they are neither unique nor ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The offset of the transaction's commit. With PostgreSQL the start of the commit record (`Begin.final_lsn`).
    pub commit: Offset,
    /// Index of the change in the transaction, from 0.
    pub ordinal: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit, self.ordinal)
    }
}

/// The history of the database that a position belongs to, as the Unix second at which the history began.
///
/// Offsets of two histories can't be compared: after a failover or a restore the same offset is another event. Each
/// history has a higher number, so a position with its history in front sorts after all positions of earlier histories.
/// 0 is the history of pipelines that were set up before positions had one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HistoryId(pub u32);

impl fmt::Display for HistoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.0)
    }
}

/// A position as in header `position`: hexadecimal numbers of fixed width, so that positions sort as bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeaderPosition {
    /// The history of the offset.
    pub history: HistoryId,
    /// The event's position in the history.
    pub position: Position,
}

impl HeaderPosition {
    /// Number of digits of the history, which is the first part.
    pub const HISTORY_DIGITS: usize = 8;

    /// Number of digits of the commit's offset.
    const OFFSET_DIGITS: usize = 16;

    /// Number of digits of the ordinal.
    const ORDINAL_DIGITS: usize = 8;

    /// Parses `68F1A2B3-0000000001A2B3C8-00000005`; `None` for any other format.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut number = |digits: usize| -> Option<u64> {
            let part = parts.next()?;
            let fits = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let parsed: Result<u64, ParseIntError> = u64::from_str_radix(part, 16);
            parsed.ok().filter(|_| fits)
        };
        let history = HistoryId(u32::try_from(number(Self::HISTORY_DIGITS)?).ok()?);
        let commit = Offset::new(number(Self::OFFSET_DIGITS)?);
        let ordinal = number(Self::ORDINAL_DIGITS)?;
        let position = Position { commit, ordinal };
        parts.next().is_none().then_some(Self { history, position })
    }
}

impl fmt::Display for HeaderPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { commit, ordinal } = self.position;
        write!(f, "{}-{:016X}-{ordinal:08X}", self.history, commit.get())
    }
}

/// The histories of a pipeline's positions, by the offset of the commit.
///
/// After a failover the server has the old timeline up to the switch, and its own timeline from there on. An event that
/// was committed before the switch is the same on both, and keeps the history with which it may have been published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histories {
    /// Start and number of each history, both ascending. The first starts at [`Offset::ZERO`].
    starts: Vec<(Offset, HistoryId)>,
}

impl Default for Histories {
    fn default() -> Self {
        Self { starts: vec![(Offset::ZERO, HistoryId::default())] }
    }
}

impl Histories {
    /// Maximum number of stored histories: one for each failover since the oldest position that may be published again.
    /// Positions of older histories get the oldest stored one, and are new to consumers.
    pub const MAX: usize = 32;

    /// From the stored starts and numbers; `None` if [`raised`](Self::raised) could not have made them.
    pub fn new(starts: Vec<(Offset, HistoryId)>) -> Option<Self> {
        let rises = starts.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let first = starts.first().is_some_and(|(at, _)| *at == Offset::ZERO);
        (rises && first && starts.len() <= Self::MAX).then_some(Self { starts })
    }

    /// Start and number of each history.
    pub fn starts(&self) -> &[(Offset, HistoryId)] {
        &self.starts
    }

    /// The current history.
    pub fn current(&self) -> HistoryId {
        self.starts.last().map_or(HistoryId::default(), |(_, history)| *history)
    }

    /// The history of a commit at `commit`.
    pub fn of(&self, commit: Offset) -> HistoryId {
        let reached = self.starts.iter().rev().find(|(from, _)| *from <= commit);
        reached.map_or(HistoryId::default(), |(_, history)| *history)
    }

    /// Whether everything below `upto` that was resolved in `history` is the same now: the history begins at or below
    /// `upto`, and does not end before.
    pub fn has(&self, upto: Offset, history: HistoryId) -> bool {
        let Some(at) = self.starts.iter().position(|(_, number)| *number == history) else {
            return false;
        };
        let begins = self.starts.get(at).is_some_and(|(from, _)| *from <= upto);
        begins && self.starts.get(at + 1).is_none_or(|(end, _)| upto <= *end)
    }

    /// Adds a new history that starts at `from`. Its number is `now`, in Unix seconds, or one more than the highest
    /// used number: no two histories have the same number, whatever the clock does. `above` is another used number.
    #[must_use]
    pub fn raised(&self, from: Offset, now: u32, above: HistoryId) -> Self {
        let next = self.current().max(above).0.saturating_add(1);
        let mut starts = self.starts.clone();
        starts.retain(|(at, _)| *at < from);
        starts.push((from, HistoryId(now.max(next))));
        let surplus = starts.len().saturating_sub(Self::MAX);
        starts.drain(..surplus);
        if let Some((at, _)) = starts.first_mut() {
            *at = Offset::ZERO;
        }
        Self { starts }
    }
}

/// An aggregate, the unit of order: the pair of aggregate type and aggregate id.
///
/// `Debug` shows only lengths, because an aggregate's id may be personal data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Aggregate<'a> {
    /// The aggregate's type, `order`.
    pub kind: &'a str,
    /// The aggregate's id, unique in its type.
    pub id: &'a str,
}

impl fmt::Debug for Aggregate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aggregate({} B, {} B)", self.kind.len(), self.id.len())
    }
}

/// How far an event's time may be ahead of its commit. Kafka 4.0 refuses timestamps that are further ahead than
/// `log.message.timestamp.after.max.ms`, an hour by default, and a refused timestamp would stop the topic. Unit:
/// milliseconds.
pub const AHEAD_MAX_MS: i64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lsn(value: u64) -> Offset {
        Offset::new(value)
    }

    #[test]
    fn a_long_id_is_truncated_between_characters() {
        assert_eq!(shown_id("a-1"), "a-1");
        let whole = "ü".repeat(ID_SHOWN_CHARS_MAX);
        assert_eq!(shown_id(&whole), whole);
        assert_eq!(shown_id(&format!("{whole}ü")), format!("{whole}…"));
    }

    #[test]
    fn only_the_written_format_of_a_header_position_is_parsed() {
        let text = "68F1A2B3-0000000001A2B3C8-00000005";
        let read = HeaderPosition::parse(text).unwrap();
        assert_eq!(read.to_string(), text);
        assert_eq!(read.position.to_string(), "0/1A2B3C8:5");
        assert_eq!(HeaderPosition::parse(&text.to_lowercase()), Some(read));
        for other in [
            "",
            "0/1A2B3C8:5",
            "68F1A2B3-0000000001A2B3C8",
            "68F1A2B3-0000000001A2B3C8-5",
            "68F1A2B3-0000000001A2B3C8-00000005-",
            "+8F1A2B3-0000000001A2B3C8-00000005",
            "7f0c9a1e-4111-4222-8333-944445555666",
        ] {
            assert_eq!(HeaderPosition::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_commit_before_a_switch_keeps_its_history() {
        let first = Histories::default().raised(Offset::ZERO, 100, HistoryId(0));
        assert_eq!(first.starts(), [(lsn(0), HistoryId(100))]);
        let second = first.raised(lsn(50), 200, HistoryId(0));
        let third = second.raised(lsn(80), 300, HistoryId(0));
        for (at, history) in [(0, 100), (49, 100), (50, 200), (79, 200), (80, 300), (99, 300)] {
            assert_eq!(third.of(lsn(at)), HistoryId(history), "{at}");
        }
        // Restored to a point before the second switch: later commits belong to a new history.
        let restored = third.raised(lsn(60), 400, HistoryId(0));
        assert_eq!(
            restored.starts(),
            [(lsn(0), HistoryId(100)), (lsn(50), HistoryId(200)), (lsn(60), HistoryId(400))]
        );
        // The start of the new history is not known.
        let other = restored.raised(Offset::ZERO, 500, HistoryId(0));
        assert_eq!(other.starts(), [(lsn(0), HistoryId(500))]);
    }

    #[test]
    fn two_failovers_in_a_second_and_a_clock_that_goes_back_still_raise_the_number() {
        let first = Histories::default().raised(Offset::ZERO, 1000, HistoryId(0));
        let second = first.raised(lsn(10), 1000, HistoryId(0));
        assert_eq!(second.current(), HistoryId(1001));
        let third = second.raised(lsn(20), 7, HistoryId(0));
        assert_eq!(third.current(), HistoryId(1002));
        // The promoted standby lacks a history under which this process has published.
        assert_eq!(third.raised(lsn(30), 8, HistoryId(2000)).current(), HistoryId(2001));
    }

    #[test]
    fn the_oldest_histories_are_dropped() {
        let mut all = Histories::default();
        for n in 1..100 {
            all = all.raised(lsn(u64::from(n) * 10), n, HistoryId(0));
            assert_eq!(Histories::new(all.starts().to_vec()), Some(all.clone()));
        }
        assert_eq!(all.starts().len(), Histories::MAX);
        assert_eq!(all.of(lsn(0)), HistoryId(68));
    }

    proptest! {
        /// Positions of a later history sort after all positions of an earlier one, as bytes.
        #[test]
        fn header_positions_sort_as_bytes(
            mut places in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u32>()), 2..9)
        ) {
            places.sort_unstable();
            let text = |(history, at, ordinal): &(u32, u64, u32)| HeaderPosition {
                history: HistoryId(*history),
                position: Position { commit: lsn(*at), ordinal: u64::from(*ordinal) },
            }.to_string();
            let texts: Vec<String> = places.iter().map(text).collect();
            prop_assert!(texts.is_sorted());
            for (text, place) in texts.iter().zip(&places) {
                let read = HeaderPosition::parse(text).unwrap();
                prop_assert_eq!(read.history.0, place.0);
                prop_assert_eq!(read.to_string(), text.clone());
            }
        }

        /// In the order of the log, a later event's history is never lower, however histories were raised.
        #[test]
        fn histories_rise_with_the_log(
            raises in prop::collection::vec((0u64..100, 0u32..50), 0..40), a in 0u64..120, b in 0u64..120
        ) {
            let mut all = Histories::default();
            for (from, now) in raises {
                let before = all.current();
                all = all.raised(lsn(from), now, HistoryId(0));
                prop_assert!(all.current() > before);
                prop_assert_eq!(all.of(lsn(from)), all.current());
            }
            prop_assert!(all.of(lsn(a.min(b))) <= all.of(lsn(a.max(b))));
        }
    }
}
