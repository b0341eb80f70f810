//! An event's position as text, without the formatting machinery: once an event.

use crate::event::Position;
use crate::lsn::Lsn;

/// Bytes of the digits of a 64-bit number in base 10, and in base 16 of its halves with a mark.
const ORDINAL_BYTES_MAX: usize = 20;
const LSN_BYTES_MAX: usize = 8 + 1 + 8 + 1;

/// Writes positions; of one transaction they differ in the ordinal alone, so the rest is kept.
#[derive(Debug, Default)]
pub(super) struct Positions {
    of: Lsn,
    /// `0/1A2B3C8:`; empty before the first.
    transaction: Vec<u8>,
}

impl Positions {
    /// Appends `0/1A2B3C8:5`.
    pub(super) fn append(&mut self, position: Position, out: &mut Vec<u8>) {
        if self.of != position.commit_lsn || self.transaction.is_empty() {
            self.of = position.commit_lsn;
            self.transaction.clear();
            append_lsn(self.of, &mut self.transaction);
        }
        out.extend_from_slice(&self.transaction);
        let mut text = [0; ORDINAL_BYTES_MAX];
        let left = fill::<10>(&mut text, ORDINAL_BYTES_MAX, position.ordinal);
        out.extend_from_slice(text.get(left..).unwrap_or_default());
    }
}

fn append_lsn(lsn: Lsn, out: &mut Vec<u8>) {
    let lsn = lsn.to_wire();
    let mut text = [b':'; LSN_BYTES_MAX];
    let low = fill::<16>(&mut text, LSN_BYTES_MAX - 1, lsn & 0xFFFF_FFFF);
    let slash = low.saturating_sub(1);
    if let Some(place) = text.get_mut(slash) {
        *place = b'/';
    }
    let left = fill::<16>(&mut text, slash, lsn >> 32);
    out.extend_from_slice(text.get(left..).unwrap_or_default());
}

/// Writes the digits of a number so that they end before `end`; where they begin.
#[inline]
fn fill<const BASE: u64>(text: &mut [u8], end: usize, mut number: u64) -> usize {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut at = end;
    loop {
        at = at.saturating_sub(1);
        let digit = usize::try_from(number % BASE).unwrap_or(0);
        if let Some(place) = text.get_mut(at) {
            *place = DIGITS.get(digit).copied().unwrap_or(b'0');
        }
        number /= BASE;
        if number == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_are_written_as_they_are_displayed(
            places in prop::collection::vec((prop_oneof![Just(0), Just(7), any::<u64>()], any::<u64>()), 1..8)
        ) {
            let mut positions = Positions::default();
            for (lsn, ordinal) in places {
                let position = Position { commit_lsn: Lsn::from_wire(lsn), ordinal };
                let mut text = b"kept".to_vec();
                positions.append(position, &mut text);
                prop_assert_eq!(String::from_utf8(text).unwrap(), format!("kept{position}"));
            }
        }
    }
}
