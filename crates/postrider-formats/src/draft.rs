//! A record on its way through the steps of a format.

use postrider_core::record::{Header, Record};
use std::ops::Range;
use std::sync::Arc;

/// What the steps have changed in a record. Its buffers are used again for the next record.
#[derive(Default)]
pub(crate) struct Draft {
    /// The payload, if a step has replaced it.
    value: Option<Vec<u8>>,
    /// A buffer that was the payload of an earlier record.
    spare: Vec<u8>,
    /// The values of headers that the steps have set.
    text: Vec<u8>,
    /// Headers of the record that have another value, or without one are left out, by their index.
    replaced: Vec<(usize, Option<Range<usize>>)>,
    /// Headers behind those of the record.
    added: Vec<(Arc<str>, Range<usize>)>,
}

/// A buffer that is kept for the next record is not larger. Unit: bytes.
const SPARE_BYTES_MAX: usize = 1 << 20;

impl Draft {
    /// Begins another record: nothing is changed.
    pub(crate) fn begin(&mut self) {
        if let Some(value) = self.value.take()
            && value.capacity() <= SPARE_BYTES_MAX
        {
            self.spare = value;
        }
        self.text.clear();
        self.replaced.clear();
        self.added.clear();
    }

    /// The payload as it is now.
    pub(crate) fn value<'a>(&'a self, record: &Record<'a>) -> Option<&'a [u8]> {
        self.value.as_deref().or(record.value)
    }

    /// The value of a header that a step has added.
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        let (_, value) = self.added.iter().find(|(added, _)| **added == *name)?;
        self.text.get(value.clone())
    }

    /// An empty buffer for a new payload.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer
    }

    /// Replaces the payload.
    pub(crate) fn set_value(&mut self, value: Vec<u8>) {
        if let Some(before) = self.value.replace(value)
            && before.capacity() <= SPARE_BYTES_MAX
        {
            self.spare = before;
        }
    }

    /// Gives a header of the record another value.
    pub(crate) fn replace_header(&mut self, index: usize, value: &[u8]) {
        let value = self.keep(value);
        self.replaced.push((index, Some(value)));
    }

    /// Leaves a header of the record out.
    pub(crate) fn remove_header(&mut self, index: usize) {
        self.replaced.push((index, None));
    }

    /// Adds a header behind the others.
    pub(crate) fn add_header(&mut self, name: &Arc<str>, value: &[u8]) {
        let value = self.keep(value);
        self.added.push((Arc::clone(name), value));
    }

    fn keep(&mut self, value: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(value);
        start..self.text.len()
    }

    /// Whether a step has added a header of this name.
    fn adds(&self, name: &str) -> bool {
        self.added.iter().any(|(added, _)| added.eq_ignore_ascii_case(name))
    }

    /// Lends the changed record out.
    pub(crate) fn lend<T>(&self, record: &Record<'_>, f: impl FnOnce(&Record<'_>) -> T) -> T {
        let text = |range: &Range<usize>| self.text.get(range.clone());
        let mut headers = Vec::with_capacity(record.headers.len() + self.added.len());
        for (index, header) in record.headers.iter().enumerate() {
            match self.replaced.iter().find(|(replaced, _)| *replaced == index) {
                // The header of a format replaces one of the same name, which may be that of an event from which the
                // application has copied its headers.
                None if self.adds(header.name) => {}
                None => headers.push(*header),
                Some((_, None)) => {}
                Some((_, Some(value))) => {
                    headers.push(Header { name: header.name, value: text(value) });
                }
            }
        }
        headers.extend(self.added.iter().map(|(name, value)| Header { name, value: text(value) }));
        f(&Record { value: self.value(record), headers: &headers, ..*record })
    }
}
