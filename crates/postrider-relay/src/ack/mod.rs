//! The ack tracker: which position may be confirmed.
//!
//! Every change of the stream gets a ticket, in the order of the source, and tickets are resolved in any order. The
//! watermark follows the longest resolved prefix and moves only over whole transactions. A transaction blocks the
//! watermark from its Begin, because its tickets follow those of the transaction before it. A ticket is resolved only
//! by [`Tracker::resolve`]: there is no default, no drop logic and no time-out.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

pub(crate) mod bug;
#[cfg(test)]
mod tests;

use bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::record::Ticket;
use std::collections::VecDeque;

/// How far the stream is resolved: the content of a cursor row.
///
/// Values are ordered by position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Progress {
    /// Every transaction that commits before this position is resolved.
    pub watermark: Watermark,
    /// Position within the first unresolved transaction, if some of its changes are resolved: its changes below this
    /// position are.
    pub partial: Option<Position>,
}

impl Progress {
    /// The position below which every change is resolved.
    pub fn position(&self) -> Position {
        let start = Position { commit: self.watermark.offset(), ordinal: 0 };
        self.partial.unwrap_or(start)
    }
}

/// The result of [`Tracker::resolve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The ticket is resolved.
    Resolved,
    /// The ticket was discarded with an earlier session. Its event is published again under another ticket.
    Stale,
}

/// The caller or the source broke the order of the stream, so its positions can't be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderViolation {
    /// A Begin was received inside a transaction.
    #[error("transaction {inner} begins inside transaction {outer}")]
    Nested {
        /// Commit position of the open transaction.
        outer: Offset,
        /// Commit position of the transaction that begins.
        inner: Offset,
    },
    /// Commit positions did not increase.
    #[error("transaction {commit} commits below {floor}, which was passed before")]
    Backwards {
        /// The commit position received.
        commit: Offset,
        /// The minimum it had to have.
        floor: Offset,
    },
    /// A change was received outside a transaction.
    #[error("a change was received outside a transaction")]
    Outside,
    /// A repeated transaction has fewer changes than before, so this is not the same history.
    #[error("transaction {commit} has fewer changes than when it was received before")]
    Shorter {
        /// The commit position of the transaction.
        commit: Offset,
    },
    /// A Commit was received outside a transaction, or for another one.
    #[error("commit {commit} has no open transaction")]
    NotOpen {
        /// The commit position received.
        commit: Offset,
    },
    /// A transaction ends at or below its commit.
    #[error("transaction {commit} ends at {end}, before its commit")]
    Inverted {
        /// The offset of its commit.
        commit: Offset,
        /// Where it ends, as in [`Change::Commit`](postrider_core::source::Change::Commit).
        end: Offset,
    },
    /// A ticket was resolved twice, or was never issued.
    #[error("ticket {} was resolved twice or never issued", .0.0)]
    Ticket(Ticket),
}

/// A completely received transaction, or a range of offsets without changes of this pipeline.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// The first ticket, and the ordinal of its change.
    first: u64,
    first_ordinal: u64,
    /// The ticket after the last.
    upto: u64,
    commit: Offset,
    /// The position that may be confirmed once every ticket below `upto` is resolved.
    safe: Watermark,
}

/// The transaction being received.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: u64,
    first_ordinal: u64,
    commit: Offset,
}

/// The ack tracker: the tickets of one stream, and its watermark.
#[derive(Debug)]
pub struct Tracker {
    window: Window,
    /// Units that have unresolved tickets, or follow such a unit; oldest first.
    units: VecDeque<Unit>,
    open: Option<Open>,
    watermark: Watermark,
    received: Offset,
    /// Position within a transaction of which an earlier session has resolved a part, until the transaction begins
    /// again.
    carried: Option<Position>,
}

impl Tracker {
    /// Returns a tracker of a stream that starts at `progress`. Tickets start at 0.
    pub fn new(progress: Progress) -> Self {
        Self {
            window: Window::default(),
            units: VecDeque::new(),
            open: None,
            watermark: progress.watermark,
            received: progress.watermark.offset(),
            carried: progress.partial,
        }
    }

    /// Discards every unresolved ticket and the open transaction. The watermark and [`Tracker::progress`] stay, and the
    /// stream is repeated from there.
    pub fn discard_in_flight(&mut self) {
        self.carried = self.progress().partial;
        self.window.discard();
        self.units.clear();
        self.open = None;
        self.received = self.watermark.offset();
    }

    /// Discards every unresolved ticket and continues from `progress`, which another owner or another history of the
    /// database has reached. Only this method can move the watermark back.
    pub fn adopt(&mut self, progress: Progress) {
        self.discard_in_flight();
        self.watermark = progress.watermark;
        self.received = self.watermark.offset();
        self.carried = progress.partial;
    }

    /// A transaction begins. Its changes below `first_ordinal` were resolved in an earlier session.
    ///
    /// # Errors
    /// [`OrderViolation::Nested`] inside a transaction; [`OrderViolation::Backwards`] if `commit` is below the end
    /// of the transaction before it.
    pub fn begin(&mut self, commit: Offset, first_ordinal: u64) -> Result<(), OrderViolation> {
        if let Some(open) = self.open {
            return Err(OrderViolation::Nested { outer: open.commit, inner: commit });
        }
        let floor = self.units.back().map_or(self.watermark, |unit| unit.safe).offset();
        if commit < floor {
            return Err(OrderViolation::Backwards { commit, floor });
        }
        self.carried = None;
        self.open = Some(Open { first: self.window.next(), first_ordinal, commit });
        Ok(())
    }

    /// Issues the ticket of the next change of the open transaction.
    ///
    /// # Panics
    /// In debug builds, outside a transaction.
    pub fn change(&mut self) -> Ticket {
        debug_assert!(self.open.is_some(), "a change outside a transaction");
        Ticket(self.window.issue())
    }

    /// Takes back the newest ticket, whose change is passed again. The ticket is issued again for it.
    ///
    /// # Panics
    /// If the ticket is not the newest, or is resolved.
    pub fn retract(&mut self, ticket: Ticket) {
        assert!(self.window.retract(ticket.0), "{ticket:?} is not the newest, or is resolved");
    }

    /// The open transaction is complete.
    ///
    /// # Errors
    /// [`OrderViolation::NotOpen`] if this transaction is not open; [`OrderViolation::Inverted`] if `end` is not
    /// above `commit`.
    pub fn commit(&mut self, commit: Offset, end: Offset) -> Result<(), OrderViolation> {
        let open = self.open.take().filter(|open| open.commit == commit);
        let Some(open) = open else { return Err(OrderViolation::NotOpen { commit }) };
        if end <= commit {
            return Err(OrderViolation::Inverted { commit, end });
        }
        self.received = self.received.max(end);
        self.close(open, Watermark::from_commit_end(end));
        Ok(())
    }

    /// The source has no further changes of this pipeline below `upto`.
    ///
    /// Moves nothing but [`Tracker::received`] inside a transaction, whose further changes may be below `upto`.
    pub fn keepalive(&mut self, upto: Offset) {
        self.received = self.received.max(upto);
        if self.open.is_some() {
            return;
        }
        let safe = Watermark::from_keepalive(upto);
        match self.units.back_mut() {
            Some(unit) if !injected(Bug::KeepaliveConfirms) => unit.safe = unit.safe.max(safe),
            Some(_) | None => self.watermark = self.watermark.max(safe),
        }
    }

    /// Resolves a ticket: its event is acknowledged, is parked in a committed row, or is skipped.
    ///
    /// # Errors
    /// [`OrderViolation::Ticket`] if the ticket is resolved already, or was never issued.
    pub fn resolve(&mut self, ticket: Ticket) -> Result<Resolution, OrderViolation> {
        match self.window.resolve(ticket.0) {
            WindowResolution::Stale => Ok(Resolution::Stale),
            WindowResolution::Invalid => Err(OrderViolation::Ticket(ticket)),
            WindowResolution::Behind => Ok(Resolution::Resolved),
            WindowResolution::Advanced => {
                self.pop_resolved();
                Ok(Resolution::Resolved)
            }
        }
    }

    /// The highest position that may be confirmed. Only [`Tracker::adopt`] can move it back.
    pub fn watermark(&self) -> Watermark {
        self.watermark
    }

    /// The highest position received.
    pub fn received(&self) -> Offset {
        self.received
    }

    /// How far the stream is resolved: the content of the next cursor row.
    pub fn progress(&self) -> Progress {
        let sent = injected(Bug::PartialCountsSent);
        let low = if sent { self.window.next() } else { self.window.low() };
        let front = self.units.front().map(|unit| Open {
            first: unit.first,
            first_ordinal: unit.first_ordinal,
            commit: unit.commit,
        });
        let partial = front.or(self.open).and_then(|front| {
            let done = low.checked_sub(front.first)?.checked_add(front.first_ordinal)?;
            (done > 0).then_some(Position { commit: front.commit, ordinal: done })
        });
        let early = self.units.front().filter(|_| injected(Bug::ConfirmsOneEarly));
        if let Some(unit) = early {
            return Progress { watermark: unit.safe, partial: None };
        }
        Progress { watermark: self.watermark, partial: partial.or(self.carried) }
    }

    /// [`Tracker::progress`] as it will be once every ticket below `limit` is resolved.
    pub fn progress_below(&self, limit: Ticket) -> Progress {
        let complete = self.units.iter().take_while(|unit| unit.upto <= limit.0).count();
        let last = complete.checked_sub(1).and_then(|last| self.units.get(last));
        let watermark = last.map_or(self.watermark, |unit| unit.safe.max(self.watermark));
        let next = self.units.get(complete).map(|unit| Open {
            first: unit.first,
            first_ordinal: unit.first_ordinal,
            commit: unit.commit,
        });
        let partial = next.or(self.open).and_then(|open| {
            let done = limit.0.checked_sub(open.first)?.checked_add(open.first_ordinal)?;
            (done > 0).then_some(Position { commit: open.commit, ordinal: done })
        });
        Progress { watermark, partial: partial.or(self.carried) }
    }

    /// The lowest unresolved ticket, or the next one: all below are resolved or discarded.
    pub fn low(&self) -> Ticket {
        Ticket(self.window.low())
    }

    /// The ticket of the next change.
    pub fn next(&self) -> Ticket {
        Ticket(self.window.next())
    }

    /// Number of tickets from the lowest unresolved one to the newest. The memory of the tracker grows with it.
    pub fn span(&self) -> u64 {
        self.window.next().saturating_sub(self.window.low())
    }

    /// Whether every ticket issued is resolved.
    pub fn all_resolved(&self) -> bool {
        self.span() == 0
    }

    /// Whether a transaction is being received.
    pub fn transaction_open(&self) -> bool {
        self.open.is_some()
    }

    fn close(&mut self, open: Open, safe: Watermark) {
        let upto = self.window.next();
        if self.window.low() == upto && self.units.is_empty() {
            self.advance(safe);
            return;
        }
        match self.units.back_mut() {
            // A transaction without changes of this pipeline is added to the unit before it.
            Some(unit) if unit.upto == upto => unit.safe = unit.safe.max(safe),
            Some(_) | None => self.units.push_back(Unit {
                first: open.first,
                first_ordinal: open.first_ordinal,
                upto,
                commit: open.commit,
                safe,
            }),
        }
    }

    fn pop_resolved(&mut self) {
        let low = self.window.low();
        while let Some(unit) = self.units.front().filter(|unit| unit.upto <= low) {
            let safe = unit.safe;
            self.units.pop_front();
            self.advance(safe);
        }
    }

    fn advance(&mut self, to: Watermark) {
        self.watermark = self.watermark.max(to);
        let oldest = self.units.front().map(|unit| unit.commit);
        let oldest = oldest.or(self.open.map(|open| open.commit));
        // The safety argument: the source skips a transaction if and only if it commits below the confirmed position.
        assert!(
            oldest.is_none_or(|commit| self.watermark.offset() <= commit),
            "watermark {} passes an unresolved transaction",
            self.watermark
        );
    }
}

/// Bits of a word of [`Window`].
const WORD_BITS: u64 = 64;

/// The result of [`Window::resolve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WindowResolution {
    /// The ticket was the lowest unresolved one: the resolved prefix grew.
    Advanced,
    /// A lower ticket is unresolved.
    Behind,
    /// The ticket was discarded.
    Stale,
    /// The ticket was resolved before, or never issued.
    Invalid,
}

/// The tickets from the lowest unresolved one, one bit each.
///
/// Tickets are issued in sequence and never reused, so a ticket below `discarded` is of an earlier session. Only a
/// ticket that was taken back is issued again.
#[derive(Debug, Default)]
struct Window {
    /// One bit for each ticket, 1 if it is resolved. The first word contains `low`.
    words: VecDeque<u64>,
    low: u64,
    next: u64,
    discarded: u64,
}

impl Window {
    fn low(&self) -> u64 {
        self.low
    }

    fn next(&self) -> u64 {
        self.next
    }

    fn issue(&mut self) -> u64 {
        let ticket = self.next;
        if self.word_of(ticket) >= self.words.len() {
            self.words.push_back(0);
        }
        self.next = ticket.saturating_add(1);
        ticket
    }

    /// Takes back the newest ticket. Returns whether it was the newest, and unresolved.
    fn retract(&mut self, ticket: u64) -> bool {
        let newest = self.next.checked_sub(1) == Some(ticket) && ticket >= self.low;
        let word = self.words.get(self.word_of(ticket)).copied().unwrap_or(0);
        if !newest || word & bit(ticket) != 0 {
            return false;
        }
        self.next = ticket;
        true
    }

    fn discard(&mut self) {
        self.words.clear();
        self.next = if injected(Bug::ForgetsSessions) { 0 } else { self.next };
        self.low = self.next;
        self.discarded = self.next;
        // The bits below `low` in its word belong to earlier tickets and must read as resolved.
        if self.low.checked_rem(WORD_BITS).is_some_and(|bit| bit != 0) {
            self.words.push_back(bit(self.low).wrapping_sub(1));
        }
    }

    fn resolve(&mut self, ticket: u64) -> WindowResolution {
        if ticket < self.discarded {
            return WindowResolution::Stale;
        }
        if ticket < self.low || ticket >= self.next {
            return WindowResolution::Invalid;
        }
        let index = self.word_of(ticket);
        let Some(word) = self.words.get_mut(index) else { return WindowResolution::Invalid };
        if *word & bit(ticket) != 0 {
            return WindowResolution::Invalid;
        }
        *word |= bit(ticket);
        if ticket != self.low {
            return WindowResolution::Behind;
        }
        self.advance();
        WindowResolution::Advanced
    }

    /// Moves `low` over every resolved ticket, a word at a time.
    fn advance(&mut self) {
        while let Some(&word) = self.words.front() {
            let base = self.low.wrapping_sub(self.low & 63);
            let ones = u64::from(word.trailing_ones());
            self.low = base.saturating_add(ones).min(self.next);
            if ones < WORD_BITS {
                return;
            }
            self.words.pop_front();
        }
    }

    /// The index into `words` of a ticket. The ticket must not be below the word of `low`.
    fn word_of(&self, ticket: u64) -> usize {
        let words = (ticket >> 6).saturating_sub(self.low >> 6);
        usize::try_from(words).unwrap_or(usize::MAX)
    }
}

fn bit(ticket: u64) -> u64 {
    1_u64.wrapping_shl(u32::try_from(ticket & 63).unwrap_or(0))
}
