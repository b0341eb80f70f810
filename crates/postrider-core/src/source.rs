//! Where events come from: changes in the order of their commits.
//!
//! A source renders its own positions, rows and times, so no LSN, OID, `ctid` or byte of a protocol passes this line.

use crate::error::Failure;
use crate::event::HistoryId;
use crate::offset::{Offset, Watermark};
use crate::row::{Row, Table, TableId};
use crate::timestamp::Timestamp;
use std::error::Error;
use std::fmt;

/// One thing that a source sends.
///
/// A source sends a transaction from [`Change::Begin`] to [`Change::Commit`] without another one in between, and
/// transactions in the order of their commits. Every change of a transaction counts for the ordinal of a
/// [`Position`](crate::event::Position), so a repeated transaction must have the same changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// A transaction begins.
    Begin {
        /// The offset of its commit, above that of every earlier transaction.
        commit: Offset,
        /// The offset of its first change; [`Offset::ZERO`] if the source does not know it.
        first: Offset,
        /// When it was committed, by the source's clock.
        time: Timestamp,
        /// The number of the transaction in the source, if it has one.
        transaction: Option<u32>,
    },
    /// A table, on each stream before the first row of the table. It is no change of the transaction. An embedded
    /// pipeline halts at a row of another table before the outbox is described, because a wrong name would skip every
    /// event.
    Table(Table<'a>),
    /// A new row.
    Row(Row<'a>),
    /// A row was updated, and is like this now. It is no event; some configurations halt at it. A cell that the source
    /// did not send is NULL here.
    Updated(Row<'a>),
    /// A message that the application has written into the source's log.
    Message(Message<'a>),
    /// A change that a later [`Row`](Self::Row) of the transaction has in it. It counts for the ordinal.
    Collected,
    /// Any other change of the transaction, such as a DELETE. It counts for the ordinal.
    Other,
    /// The open transaction is complete.
    Commit {
        /// As in its [`Change::Begin`].
        commit: Offset,
        /// Where the transaction ends: above `commit`, and not above the commit of the next transaction.
        end: Offset,
        /// When it was committed, by the source's clock.
        time: Timestamp,
    },
    /// Outside a transaction: every transaction that commits below this offset has been sent on this stream, or was
    /// below the offset at which the stream began.
    Heartbeat(Offset),
    /// Something that is not a change of a transaction. It does not count for the ordinal; use [`Change::Other`] for a
    /// change that is no event.
    Nothing,
    /// The source needs an answer of its own, such as a query, before it can read what is at this place. Only for the
    /// product's own sources: an embedded pipeline has no answer, and halts.
    Blocked,
}

/// A message in the source's log. `Debug` shows the size of the content only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Whether the message belongs to the open transaction. If not, it is no event.
    pub transactional: bool,
    /// What the application has named it.
    pub prefix: &'a str,
    /// The content, in UTF-8 if it is a text; otherwise as the source has it.
    pub content: &'a [u8],
    /// Whether the source takes the content for a text.
    pub is_text: bool,
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("transactional", &self.transactional)
            .field("prefix", &self.prefix)
            .field("content_bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

/// Changes that have arrived together.
pub trait Batch {
    /// Returns the change at a place, from 0, and the place of the next one; `None` at the end. The pipeline asks for
    /// the same place again when the sink had no room, so `change_at` must not consume anything.
    ///
    /// # Errors
    /// What is at `place` can't be read. Everything before it can.
    fn change_at(&mut self, place: usize) -> Result<Option<(Change<'_>, usize)>, Unreadable>;
}

/// Why a change can't be read. The source must not be read on after it, because an event could be missed.
#[derive(Debug)]
pub enum Unreadable {
    /// What arrived is not of the source's protocol. The error has no content of the change.
    Protocol(Box<dyn Error + Send + Sync>),
    /// A row of this table has a value that is no text.
    NotText(TableId),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => error.fmt(f),
            Self::NotText(table) => write!(f, "a row of table {table} has a value that is no text"),
        }
    }
}

impl Error for Unreadable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Protocol(error) => error.source(),
            Self::NotText(_) => None,
        }
    }
}

// What a program that embeds Postrider implements for a source of its own: `Source`, `Stream` and `Batch`.

/// A database, a log or a file from which events are read: it makes a [`Stream`] for each connection.
///
/// The pipeline calls `connect` at its start, and again each time a stream, the store or the sink has failed. It uses
/// one stream at a time.
pub trait Source {
    /// What a connection sends.
    type Stream: Stream;

    /// What events are read from, for the status and the log: one line without secrets.
    fn name(&self) -> String;

    /// Connects, and makes the stream that begins at `from`: the watermark of the stored cursor, or
    /// [`Watermark::default`], which is offset 0, if there is no cursor yet: then everything that the source has is
    /// published. No transaction has offset 0 or [`Offset::MAX`].
    ///
    /// The stream sends every transaction whose commit offset is `from` or above it, complete and in order. Earlier
    /// transactions may be sent too, because the pipeline skips them. A transaction that was sent before must have the
    /// same offsets and the same changes, because a change is known by its [`Position`](crate::event::Position). So a
    /// transaction of which a part was published is sent from its beginning, and the pipeline continues within it.
    ///
    /// The future may be dropped before it is ready.
    ///
    /// # Errors
    /// [`Failure::Temporary`] if the source can't be reached. [`Failure::Halt`] if no retry helps: for example if
    /// something at or above `from` is no longer there ([`HaltReason::SlotLost`](crate::error::HaltReason::SlotLost)),
    /// or if the source ends below `from` ([`HaltReason::PositionAhead`](crate::error::HaltReason::PositionAhead)).
    fn connect(&mut self, from: Watermark) -> impl Future<Output = Result<Self::Stream, Failure>>;
}

/// The changes of one connection to a [`Source`].
pub trait Stream {
    /// The history that the offsets of this stream belong to. Offsets of one history refer to the same changes for
    /// ever.
    ///
    /// If a source is recreated, so that an offset may refer to another change, it begins a history with a higher
    /// number, of 32 bits: by convention the Unix time of the moment, in seconds. If the stored cursor is of another
    /// history, the pipeline halts with [`HaltReason::OtherHistory`](crate::error::HaltReason::OtherHistory) until that
    /// cursor is removed, and then begins at offset 0. Events have the number in the header `position`. A source that
    /// is never recreated returns the same number always.
    fn history(&self) -> HistoryId;

    /// The next batch, if it is here already. Never waits. A stream that returns `None` always is only slower.
    fn ready(&mut self) -> Option<Box<dyn Batch>> {
        None
    }

    /// Waits for the next batch. Cancel-safe: if the future is dropped before it is ready, the next call returns the
    /// batch.
    ///
    /// A batch should be as large as what has arrived: a batch costs the pipeline about as much as several changes. The
    /// pipeline has one batch at a time, and asks for the next one when every change of it is taken, which the limits
    /// of what is in flight delay. While the broker is down that may take hours in which nothing polls this future: a
    /// connection that needs keepalives has a task of its own for them.
    ///
    /// # Errors
    /// [`Failure::Temporary`] if the connection is lost: the pipeline connects again. [`Failure::Halt`] if a retry
    /// can't help: the pipeline halts when everything that was sent before is published. After an error nothing more is
    /// requested of the stream.
    fn next(&mut self) -> impl Future<Output = Result<Box<dyn Batch>, Failure>>;

    /// Everything below `upto` is resolved, and the store has a cursor that says so: the source may remove what it
    /// retains below `upto`. Called again with a higher offset only. An earlier stream may have sent what is confirmed;
    /// and a new stream first gets the confirmation that the earlier one has got.
    fn confirm(&mut self, upto: Watermark);

    /// Ends the connection after a drain or a halt. Events may be unconfirmed then, if the drain has taken longer than
    /// its grace: only [`confirm`](Self::confirm) allows the source to remove something. It is not called after an
    /// error.
    ///
    /// # Errors
    /// What went wrong, for the log only. The stored cursor still bounds what the next start repeats.
    fn close(self) -> impl Future<Output = Result<(), Failure>>;
}
