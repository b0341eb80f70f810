//! A record's headers: eight in place, more on the heap.

use postrider_core::record::Header;

/// Headers kept without a heap allocation. librdkafka's own limit is memory; three are usual, eight are many.
const IN_PLACE: usize = 8;

const NONE: Header<'static> = Header { name: "", value: None };

/// Headers in order.
#[derive(Clone)]
pub(super) struct Headers<'a> {
    in_place: [Header<'a>; IN_PLACE],
    len: usize,
    /// All of them, where they are more than [`IN_PLACE`].
    spilled: Vec<Header<'a>>,
}

impl<'a> Headers<'a> {
    /// With room for `count`.
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
