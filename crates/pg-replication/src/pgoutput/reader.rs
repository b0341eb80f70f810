//! A cursor over one message's bytes: every read is checked, every error knows its offset.

use super::{DecodeError, Tag};
use crate::lsn::Lsn;
use crate::timestamp::PgTime;

/// Reads fields in order; a copy remembers a place.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
    tag: Tag,
}

impl<'a> Reader<'a> {
    /// Over `data`, its tag taken off.
    pub(super) fn open(data: &'a [u8]) -> Result<(u8, Self), DecodeError> {
        let Some((&tag, rest)) = data.split_first() else {
            return Err(DecodeError { offset: 0, tag: Tag(0), what: "the message is empty" });
        };
        Ok((tag, Self { rest, length: data.len(), tag: Tag(tag) }))
    }

    /// An error at the present place.
    pub(super) fn error(&self, what: &'static str) -> DecodeError {
        let offset = self.length.saturating_sub(self.rest.len());
        DecodeError { offset, tag: self.tag, what }
    }

    /// What is still unread.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The bytes between this place and a later one.
    #[inline]
    pub(super) fn up_to(&self, later: &Self) -> &'a [u8] {
        let taken = self.rest.len().saturating_sub(later.rest.len());
        self.rest.get(..taken).unwrap_or(self.rest)
    }

    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.error("the message ends early"));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((taken, rest)) = self.rest.split_first_chunk() else {
            return Err(self.error("the message ends early"));
        };
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn::from_wire)
    }

    pub(super) fn time(&mut self) -> Result<PgTime, DecodeError> {
        self.array().map(|bytes| PgTime { micros: i64::from_be_bytes(bytes) })
    }

    /// A count of columns, two bytes.
    pub(super) fn count(&mut self) -> Result<u16, DecodeError> {
        let here = *self;
        let count = self.array().map(i16::from_be_bytes)?;
        let Ok(count) = u16::try_from(count) else {
            return Err(here.error("a count is below zero"));
        };
        Ok(count)
    }

    /// A length in bytes or a count, four bytes.
    pub(super) fn length(&mut self) -> Result<usize, DecodeError> {
        let here = *self;
        let Ok(length) = usize::try_from(self.i32()?) else {
            return Err(here.error("a length is below zero"));
        };
        Ok(length)
    }

    /// A name: UTF-8 up to a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let Some(end) = self.rest.iter().position(|&byte| byte == 0) else {
            return Err(self.error("a name has no end"));
        };
        let here = *self;
        let bytes = self.take(end)?;
        self.take(1)?;
        let Ok(name) = std::str::from_utf8(bytes) else {
            return Err(here.error("a name is not UTF-8"));
        };
        Ok(name)
    }

    /// Nothing may follow.
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error("bytes follow the message")) }
    }
}
