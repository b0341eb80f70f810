//! The headers of a record: up to eight without allocation; and the headers `position` and `history`.

use postrider_core::event::{HeaderPosition, Histories, HistoryId, Position};
use postrider_core::offset::Offset;
use postrider_core::record::{Header, OwnedRecord};

/// Number of headers without a heap allocation: three are usual, eight are many. librdkafka has no limit but memory.
const IN_PLACE: usize = 8;

const NONE: Header<'static> = Header { name: "", value: None };

/// Headers in order.
#[derive(Clone)]
pub(super) struct Headers<'a> {
    in_place: [Header<'a>; IN_PLACE],
    len: usize,
    /// All headers, if there are more than [`IN_PLACE`].
    spilled: Vec<Header<'a>>,
}

impl<'a> Headers<'a> {
    /// No headers, with room for `count`.
    pub(super) fn with_capacity(count: usize) -> Self {
        let spilled = if count > IN_PLACE { Vec::with_capacity(count) } else { Vec::new() };
        Self { in_place: [NONE; IN_PLACE], len: 0, spilled }
    }

    #[inline]
    pub(super) fn push(&mut self, header: Header<'a>) {
        if self.spilled.capacity() > 0 {
            self.spilled.push(header);
        } else if let Some(place) = self.in_place.get_mut(self.len) {
            *place = header;
            self.len += 1;
        } else {
            self.spilled.extend_from_slice(&self.in_place);
            self.spilled.push(header);
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Header<'a>] {
        if self.spilled.is_empty() { &mut self.in_place[..self.len] } else { &mut self.spilled }
    }

    pub(super) fn as_slice(&self) -> &[Header<'a>] {
        if self.spilled.is_empty() { &self.in_place[..self.len] } else { &self.spilled }
    }
}

/// The header with history, commit offset and ordinal of an event.
pub(super) const POSITION: &str = "position";

/// The header with only the history, of records whose position is unknown or must not be compared.
pub(super) const HISTORY: &str = "history";

/// The header with the name of the pipeline.
pub(super) const SOURCE: &str = "source";

/// The largest ordinal of a position that sorts as bytes. No transaction has that many changes. Unit: changes.
const ORDINAL_MAX: u64 = u32::MAX as u64;

/// `68F1A2B3-0000000001A2B3C8-`.
const TRANSACTION_BYTES: usize = 8 + 1 + 16 + 1;

/// Bytes of a 64-bit number in base 16.
const DIGITS_MAX: usize = 16;

/// Writes positions, without `std::fmt`, because there is one for each event. Positions of one transaction differ only
/// in the ordinal, so the rest is cached.
#[derive(Debug, Default)]
pub(super) struct Positions {
    histories: Histories,
    of: Offset,
    /// The cached text of history and commit offset; empty before the first position.
    transaction: Vec<u8>,
}

impl Positions {
    pub(super) fn set_histories(&mut self, histories: Histories) {
        self.histories = histories;
        self.transaction.clear();
    }

    /// Whether the position sorts as bytes.
    pub(super) fn has(position: Position) -> bool {
        position.ordinal <= ORDINAL_MAX
    }

    /// Appends `68F1A2B3-0000000001A2B3C8-00000005`.
    pub(super) fn append(&mut self, position: Position, out: &mut Vec<u8>) {
        if self.of != position.commit || self.transaction.is_empty() {
            self.of = position.commit;
            self.transaction.clear();
            self.transaction.reserve(TRANSACTION_BYTES);
            append_hex(self.histories.of(self.of).0.into(), 8, &mut self.transaction);
            self.transaction.push(b'-');
            append_hex(self.of.get(), 16, &mut self.transaction);
            self.transaction.push(b'-');
        }
        out.extend_from_slice(&self.transaction);
        let digits = if Self::has(position) { 8 } else { DIGITS_MAX };
        append_hex(position.ordinal, digits, out);
    }

    /// Appends `68F1A2B3`: the history of what commits at `commit`.
    pub(super) fn append_history(&self, commit: Offset, out: &mut Vec<u8>) {
        append_hex(self.histories.of(commit).0.into(), 8, out);
    }

    /// Appends the current history.
    pub(super) fn append_current(&self, out: &mut Vec<u8>) {
        append_hex(self.histories.current().0.into(), 8, out);
    }
}

/// Appends the last `digits` digits of a number.
#[inline]
fn append_hex(number: u64, digits: usize, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = [b'0'; DIGITS_MAX];
    let mut rest = number;
    for place in text.iter_mut().rev().take(digits) {
        let digit = usize::try_from(rest & 0xF).unwrap_or(0);
        *place = DIGITS.get(digit).copied().unwrap_or(b'0');
        rest >>= 4;
    }
    out.extend_from_slice(text.get(DIGITS_MAX - digits..).unwrap_or_default());
}

/// Replaces header `position` by header `history` with the same history. The event is published after a later event of
/// its aggregate, so its lower position must not be compared.
pub(super) fn remove_position(headers: &mut [Header<'_>]) {
    for header in headers.iter_mut().filter(|header| header.name == POSITION) {
        let history = header.value.and_then(|value| value.get(..HeaderPosition::HISTORY_DIGITS));
        *header = Header { name: HISTORY, value: history };
    }
}

/// Sets the position header of a parked record that is attempted again: the position, if it still sorts before the
/// later events of the aggregate, otherwise only the history of the position.
///
/// `keeps_order`: all later events of the aggregate have waited for this one. A position of an earlier history is
/// replaced too, because in that history an operator may have skipped the event, and later events may have been
/// published.
pub fn set_retry_position(record: &mut OwnedRecord, keeps_order: bool, histories: &Histories) {
    let current = histories.current();
    for (name, value) in record.headers.iter_mut().filter(|(name, _)| name == POSITION) {
        let Some(at) = value.as_deref().and_then(read) else { continue };
        if keeps_order && at.history == current {
            *value = Some(at.to_string().into_bytes());
        } else {
            HISTORY.clone_into(name);
            *value = Some(at.history.to_string().into_bytes());
        }
    }
}

/// Parses a position. The format of earlier versions, without a history (`0/1A2B3C8:5`), is of history 0.
fn read(value: &[u8]) -> Option<HeaderPosition> {
    let text = std::str::from_utf8(value).ok()?;
    HeaderPosition::parse(text).or_else(|| {
        let (commit, ordinal) = text.split_once(':')?;
        let commit = commit.parse().ok()?;
        let ordinal = ordinal.parse().ok().filter(|ordinal| *ordinal <= ORDINAL_MAX)?;
        let position = Position { commit, ordinal };
        Some(HeaderPosition { history: HistoryId(0), position })
    })
}

/// Whether a text is a W3C trace context: `00-` 32 hex digits `-` 16 hex digits `-` 2 hex digits, lower case, neither
/// id all zero.
pub(super) fn is_traceparent(text: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let some = |part: &[u8]| part.iter().any(|byte| *byte != b'0');
    let mut parts = text.split(|byte| *byte == b'-');
    let mut part = |len: usize| parts.next().filter(|part| part.len() == len && hex(part));
    let (Some(version), Some(trace), Some(parent), Some(_)) =
        (part(2), part(32), part(16), part(2))
    else {
        return false;
    };
    // Later versions may append parts; version ff is forbidden.
    version != b"ff" && some(trace) && some(parent) && (version != b"00" || text.len() == 55)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_are_written_as_displayed(
            from in any::<u64>(),
            places in prop::collection::vec((prop_oneof![Just(0), Just(7), any::<u64>()], any::<u32>()), 1..8)
        ) {
            let histories = Histories::default().raised(Offset::new(from), 0x68F1_A2B3, HistoryId(0));
            let mut positions = Positions::default();
            positions.set_histories(histories.clone());
            for (commit, ordinal) in places {
                let position = Position { commit: Offset::new(commit), ordinal: ordinal.into() };
                let shown = HeaderPosition { history: histories.of(position.commit), position };
                let mut text = b"kept".to_vec();
                positions.append(position, &mut text);
                prop_assert_eq!(String::from_utf8(text).unwrap(), format!("kept{shown}"));
                let mut text = Vec::new();
                positions.append_history(position.commit, &mut text);
                prop_assert_eq!(String::from_utf8(text).unwrap(), shown.history.to_string());
            }
        }
    }

    fn retried(position: &str, keeps_order: bool, histories: &Histories) -> (String, String) {
        let mut record = OwnedRecord {
            headers: vec![
                ("id".to_owned(), Some(b"1".to_vec())),
                (POSITION.to_owned(), Some(position.into())),
            ],
            ..OwnedRecord::default()
        };
        set_retry_position(&mut record, keeps_order, histories);
        let (name, value) = record.headers.pop().unwrap();
        (name, String::from_utf8(value.unwrap()).unwrap())
    }

    #[test]
    fn a_parked_record_keeps_its_position_only_if_it_sorts_before_what_waited_for_it() {
        let old = Histories::default();
        let new = old.raised(Offset::new(0x100), 0x68F1_A2B3, HistoryId(0));
        let (in_old, in_new) =
            ("00000000-0000000000000050-00000001", "68F1A2B3-0000000000000150-00000001");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for (position, keeps_order, histories, becomes) in [
            (in_new, true, &new, pair(POSITION, in_new)),
            (in_old, true, &old, pair(POSITION, in_old)),
            // Parked by an earlier version.
            ("0/50:1", true, &old, pair(POSITION, in_old)),
            // Later events of its aggregate were published.
            (in_new, false, &new, pair(HISTORY, "68F1A2B3")),
            ("0/50:1", false, &old, pair(HISTORY, "00000000")),
            // Parked before a failover.
            (in_old, true, &new, pair(HISTORY, "00000000")),
            ("0/50:1", true, &new, pair(HISTORY, "00000000")),
            // The layout has no positions, and the application has a header of that name.
            ("row 7", false, &new, pair(POSITION, "row 7")),
        ] {
            assert_eq!(retried(position, keeps_order, histories), becomes, "{position}");
        }
    }
}
