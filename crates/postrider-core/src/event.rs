//! What the application wrote: an event, the aggregate it belongs to, and its place in the log.
//!
//! Knows nothing of tables, topics or sockets. `outbox` makes events from tuples; `relay` orders them.

use pg_replication::lsn::Lsn;
pub use pg_replication::timestamp::PgTime;
use std::borrow::Cow;
use std::fmt;
use std::num::ParseIntError;

/// Characters of an event's id in a line of a log or an error. An id that is longer ends with `…` there: nothing is
/// found by what is shown.
pub const ID_SHOWN_CHARS_MAX: usize = 100;

/// An event's id as a line shows it.
pub fn shown_id(id: &str) -> Cow<'_, str> {
    match id.char_indices().nth(ID_SHOWN_CHARS_MAX) {
        None => Cow::Borrowed(id),
        Some((end, _)) => Cow::Owned(format!("{}…", id.get(..end).unwrap_or_default())),
    }
}

/// Identity and sort key of an event: where its transaction commits, and which change of it the event is.
///
/// Deterministic across reconnects, spills and restarts of the server (measured on 15 and 18). The ordinal counts every
/// change of the transaction that the server sends, ours or not, from 0; row LSNs are neither unique nor ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// Start of the transaction's commit record (`Begin.final_lsn`).
    pub commit_lsn: Lsn,
    /// Index of the change inside the transaction, from 0.
    pub ordinal: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit_lsn, self.ordinal)
    }
}

/// The commit LSN of a claim whose rows were all committed before `wal_end`: the same position with its lowest bit set.
///
/// Commit records are aligned to 8 bytes, so no commit of the stream has an odd position.
#[must_use]
pub const fn claim_lsn(wal_end: Lsn) -> Lsn {
    Lsn::from_wire(wal_end.to_wire() | 1)
}

/// Whether `lsn` is the commit LSN of a claim ([`claim_lsn`]), and not that of a commit record.
pub const fn is_claim_lsn(lsn: Lsn) -> bool {
    lsn.to_wire() % 2 == 1
}

/// Which history of the database a position belongs to: the Unix second at which the history began.
///
/// LSNs of two histories can't be compared: after a failover or a restore the same LSN is another event. The number
/// rises with each history, so a position with its history in front sorts after every position of earlier histories.
/// 0 is the history of pipelines that were set up before positions carried one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HistoryId(pub u32);

impl fmt::Display for HistoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.0)
    }
}

/// A position as header `position` has it: fixed-width hexadecimal, so that it sorts as bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeaderPosition {
    /// The history that the LSN is of.
    pub history: HistoryId,
    /// The event's place in it.
    pub position: Position,
}

impl HeaderPosition {
    /// Digits of the history, which come first.
    pub const HISTORY_DIGITS: usize = 8;

    /// Digits of the commit LSN.
    const LSN_DIGITS: usize = 16;

    /// Digits of the ordinal.
    const ORDINAL_DIGITS: usize = 8;

    /// Reads `68F1A2B3-0000000001A2B3C8-00000005`; `None` where it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut number = |digits: usize| -> Option<u64> {
            let part = parts.next()?;
            let fits = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let parsed: Result<u64, ParseIntError> = u64::from_str_radix(part, 16);
            parsed.ok().filter(|_| fits)
        };
        let history = HistoryId(u32::try_from(number(Self::HISTORY_DIGITS)?).ok()?);
        let commit_lsn = Lsn::from_wire(number(Self::LSN_DIGITS)?);
        let ordinal = number(Self::ORDINAL_DIGITS)?;
        let position = Position { commit_lsn, ordinal };
        parts.next().is_none().then_some(Self { history, position })
    }
}

impl fmt::Display for HeaderPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { commit_lsn, ordinal } = self.position;
        write!(f, "{}-{:016X}-{ordinal:08X}", self.history, commit_lsn.to_wire())
    }
}

/// The histories of a pipeline's positions: which one each commit LSN belongs to.
///
/// After a failover the server has the old timeline up to the switch, and its own from there on. What was committed
/// before the switch is the same event on both, and keeps the history under which it may have been published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histories {
    /// Where each begins, and its number; both rise. The first begins at 0/0.
    starts: Vec<(Lsn, HistoryId)>,
}

impl Default for Histories {
    fn default() -> Self {
        Self { starts: vec![(Lsn::ZERO, HistoryId::default())] }
    }
}

impl Histories {
    /// Histories that are remembered: one for each failover since the oldest position that may be published again.
    /// Positions of older ones get the oldest that is remembered, and are new to consumers.
    pub const MAX: usize = 32;

    /// From the row's two columns; `None` where they are not what [`raised`](Self::raised) makes.
    pub fn new(starts: Vec<(Lsn, HistoryId)>) -> Option<Self> {
        let rises = starts.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let first = starts.first().is_some_and(|(at, _)| *at == Lsn::ZERO);
        (rises && first && starts.len() <= Self::MAX).then_some(Self { starts })
    }

    /// Where each begins, and its number.
    pub fn starts(&self) -> &[(Lsn, HistoryId)] {
        &self.starts
    }

    /// The history in force.
    pub fn current(&self) -> HistoryId {
        self.starts.last().map_or(HistoryId::default(), |(_, history)| *history)
    }

    /// The history of what commits at `commit_lsn`.
    pub fn of(&self, commit_lsn: Lsn) -> HistoryId {
        let reached = self.starts.iter().rev().find(|(from, _)| *from <= commit_lsn);
        reached.map_or(HistoryId::default(), |(_, history)| *history)
    }

    /// The same with a new history from `from` on, begun at Unix second `now`, or later where an earlier one says so:
    /// no two histories have the same number, whatever the clock does. `above`: a number that is taken too.
    #[must_use]
    pub fn raised(&self, from: Lsn, now: u32, above: HistoryId) -> Self {
        let next = self.current().max(above).0.saturating_add(1);
        let mut starts = self.starts.clone();
        starts.retain(|(at, _)| *at < from);
        starts.push((from, HistoryId(now.max(next))));
        let surplus = starts.len().saturating_sub(Self::MAX);
        starts.drain(..surplus);
        if let Some((at, _)) = starts.first_mut() {
            *at = Lsn::ZERO;
        }
        Self { starts }
    }
}

/// The unit of order: the pair of aggregate type and aggregate id.
///
/// `Debug` shows lengths only, since an aggregate's id may be a person's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Aggregate<'a> {
    /// The aggregate's type, `order`.
    pub kind: &'a str,
    /// The aggregate's id inside its type.
    pub id: &'a str,
}

impl fmt::Debug for Aggregate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aggregate({} B, {} B)", self.kind.len(), self.id.len())
    }
}

/// Most that an event's time may be ahead of its commit, in milliseconds. Kafka 4.0 refuses stamps further ahead than
/// `log.message.timestamp.after.max.ms`, an hour by default, and a refused stamp would stop the topic.
pub const AHEAD_MAX_MS: i64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lsn(value: u64) -> Lsn {
        Lsn::from_wire(value)
    }

    #[test]
    fn an_id_is_shown_cut_between_characters() {
        assert_eq!(shown_id("a-1"), "a-1");
        let whole = "ü".repeat(ID_SHOWN_CHARS_MAX);
        assert_eq!(shown_id(&whole), whole);
        assert_eq!(shown_id(&format!("{whole}ü")), format!("{whole}…"));
    }

    #[test]
    fn a_header_position_is_read_as_it_is_written_and_nothing_else_is() {
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
    fn what_was_committed_before_a_switch_keeps_its_history() {
        let first = Histories::default().raised(Lsn::ZERO, 100, HistoryId(0));
        assert_eq!(first.starts(), [(lsn(0), HistoryId(100))]);
        let second = first.raised(lsn(50), 200, HistoryId(0));
        let third = second.raised(lsn(80), 300, HistoryId(0));
        for (at, history) in [(0, 100), (49, 100), (50, 200), (79, 200), (80, 300), (99, 300)] {
            assert_eq!(third.of(lsn(at)), HistoryId(history), "{at}");
        }
        // Restored to a point before the second switch: what came after it is another history's.
        let restored = third.raised(lsn(60), 400, HistoryId(0));
        assert_eq!(
            restored.starts(),
            [(lsn(0), HistoryId(100)), (lsn(50), HistoryId(200)), (lsn(60), HistoryId(400))]
        );
        // Nothing is known of where it parted.
        let other = restored.raised(Lsn::ZERO, 500, HistoryId(0));
        assert_eq!(other.starts(), [(lsn(0), HistoryId(500))]);
    }

    #[test]
    fn two_failovers_in_a_second_and_a_clock_that_goes_back_raise_it_all_the_same() {
        let first = Histories::default().raised(Lsn::ZERO, 1000, HistoryId(0));
        let second = first.raised(lsn(10), 1000, HistoryId(0));
        assert_eq!(second.current(), HistoryId(1001));
        let third = second.raised(lsn(20), 7, HistoryId(0));
        assert_eq!(third.current(), HistoryId(1002));
        // A raise that the promoted standby never had, and this process has published under.
        assert_eq!(third.raised(lsn(30), 8, HistoryId(2000)).current(), HistoryId(2001));
    }

    #[test]
    fn the_oldest_histories_are_forgotten() {
        let mut all = Histories::default();
        for n in 1..100 {
            all = all.raised(lsn(u64::from(n) * 10), n, HistoryId(0));
            assert_eq!(Histories::new(all.starts().to_vec()), Some(all.clone()));
        }
        assert_eq!(all.starts().len(), Histories::MAX);
        assert_eq!(all.of(lsn(0)), HistoryId(68));
    }

    proptest! {
        /// Whatever happens, a position of a later history sorts after all of an earlier one, as bytes.
        #[test]
        fn header_positions_sort_as_bytes(
            mut places in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u32>()), 2..9)
        ) {
            places.sort_unstable();
            let text = |(history, at, ordinal): &(u32, u64, u32)| HeaderPosition {
                history: HistoryId(*history),
                position: Position { commit_lsn: lsn(*at), ordinal: u64::from(*ordinal) },
            }.to_string();
            let texts: Vec<String> = places.iter().map(text).collect();
            prop_assert!(texts.is_sorted());
            for (text, place) in texts.iter().zip(&places) {
                let read = HeaderPosition::parse(text).unwrap();
                prop_assert_eq!(read.history.0, place.0);
                prop_assert_eq!(read.to_string(), text.clone());
            }
        }

        /// In the order of the log a later event's history is never lower, however histories were raised.
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
