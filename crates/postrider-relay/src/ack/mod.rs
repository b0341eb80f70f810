//! The ack tracker: which position may be confirmed.
//!
//! Owns the one watermark. Every change of the stream gets a ticket, in WAL order; tickets are resolved in any order;
//! the watermark follows the longest resolved prefix and moves only over whole transactions. A transaction blocks it
//! from its Begin on, since its tickets lie behind the mark of the transaction before it.
//!
//! Refuses to know what a ticket stands for, why it was resolved, and what time it is. There is no way to resolve a
//! ticket but [`Tracker::resolve`]: no default, no drop logic, no time-out. `relay` feeds it and is the only one that
//! does.
#![deny(clippy::indexing_slicing, clippy::as_conversions, clippy::arithmetic_side_effects)]

pub(crate) mod bug;
#[cfg(test)]
mod tests;

use bug::{Bug, injected};
use pg_replication::lsn::{Lsn, Watermark};
use postrider_core::event::Position;
use postrider_core::record::Ticket;
use std::collections::VecDeque;

/// How far the stream is resolved: what a cursor row holds.
///
/// Ordered by how far it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Progress {
    /// Every transaction that commits before this position is resolved.
    pub watermark: Watermark,
    /// Of the first transaction that is not, the changes below this position are resolved too.
    pub partial: Option<Position>,
}

impl Progress {
    /// Every change below it is resolved.
    pub fn position(&self) -> Position {
        let start = Position { commit_lsn: self.watermark.lsn(), ordinal: 0 };
        self.partial.unwrap_or(start)
    }
}

/// What came of resolving a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// The ticket is resolved now.
    Resolved,
    /// The ticket is of a session that was given up: its event is published again under another ticket.
    Stale,
}

/// The impossible: the caller, or a peer we trusted, broke the order of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderViolation {
    /// A Begin inside a transaction.
    #[error("transaction {inner} begins inside transaction {outer}")]
    Nested {
        /// The commit position of the transaction that is open.
        outer: Lsn,
        /// The commit position of the one that begins.
        inner: Lsn,
    },
    /// Commit positions must rise.
    #[error("transaction {commit_lsn} commits below {floor}, which was passed before")]
    Backwards {
        /// The commit position that came.
        commit_lsn: Lsn,
        /// The position it had to reach.
        floor: Lsn,
    },
    /// A change outside of every transaction.
    #[error("a change came that belongs to no transaction")]
    Outside,
    /// A transaction that came before with more changes than it has now: not the same history.
    #[error("transaction {commit_lsn} has fewer changes than when it came before")]
    Shorter {
        /// The commit position of the transaction.
        commit_lsn: Lsn,
    },
    /// A Commit outside a transaction, or of another one.
    #[error("commit {commit_lsn} has no open transaction")]
    NotOpen {
        /// The commit position that came.
        commit_lsn: Lsn,
    },
    /// A Commit that ends before it starts.
    #[error("transaction {commit_lsn} ends at {end_lsn}, before its commit")]
    Inverted {
        /// Start of the commit record.
        commit_lsn: Lsn,
        /// First byte after it.
        end_lsn: Lsn,
    },
    /// A ticket was resolved twice, or was never issued.
    #[error("ticket {} was resolved twice or never issued", .0.0)]
    Ticket(Ticket),
}

/// A transaction, or a run of WAL without changes of ours, that is wholly received.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// The first ticket, and the ordinal it stands for.
    first: u64,
    first_ordinal: u64,
    /// The ticket after the last.
    upto: u64,
    commit_lsn: Lsn,
    /// What may be confirmed once every ticket below `upto` is resolved.
    safe: Watermark,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    first: u64,
    first_ordinal: u64,
    commit_lsn: Lsn,
}

/// The ack tracker.
#[derive(Debug)]
pub struct Tracker {
    window: Window,
    /// Units with unresolved tickets, or behind ones that have, oldest first.
    units: VecDeque<Unit>,
    open: Option<Open>,
    watermark: Watermark,
    received: Lsn,
    /// The resolved part of a transaction that an earlier session knew, until it begins again.
    carried: Option<Position>,
}

impl Tracker {
    /// A tracker of a stream that starts at `progress`, with tickets from 0.
    pub fn new(progress: Progress) -> Self {
        Self {
            window: Window::default(),
            units: VecDeque::new(),
            open: None,
            watermark: progress.watermark,
            received: progress.watermark.lsn(),
            carried: progress.partial,
        }
    }

    /// Gives up every ticket that is out, and the transaction that is open; the watermark stays.
    ///
    /// What was in flight will be streamed again, from [`Tracker::progress`] as it was before.
    pub fn give_up(&mut self) {
        self.carried = self.progress().partial;
        self.window.give_up();
        self.units.clear();
        self.open = None;
        self.received = self.watermark.lsn();
    }

    /// Gives up every ticket, and goes on from where somebody else has got to, or where another history of the same
    /// database stands: the one way in which the watermark may go back.
    pub fn adopt(&mut self, progress: Progress) {
        self.give_up();
        self.watermark = progress.watermark;
        self.received = self.watermark.lsn();
        self.carried = progress.partial;
    }

    /// A transaction begins, of which the changes below `first_ordinal` were resolved in an earlier session.
    pub fn begin(&mut self, commit_lsn: Lsn, first_ordinal: u64) -> Result<(), OrderViolation> {
        if let Some(open) = self.open {
            return Err(OrderViolation::Nested { outer: open.commit_lsn, inner: commit_lsn });
        }
        let floor = self.units.back().map_or(self.watermark, |unit| unit.safe).lsn();
        if commit_lsn < floor {
            return Err(OrderViolation::Backwards { commit_lsn, floor });
        }
        self.carried = None;
        self.open = Some(Open { first: self.window.next(), first_ordinal, commit_lsn });
        Ok(())
    }

    /// One change of the open transaction.
    pub fn change(&mut self) -> Ticket {
        debug_assert!(self.open.is_some(), "a change outside a transaction");
        Ticket(self.window.issue())
    }

    /// The newest ticket was not used after all: its change comes again.
    ///
    /// # Panics
    /// When it is not the newest, or resolved.
    pub fn retract(&mut self, ticket: Ticket) {
        assert!(self.window.retract(ticket.0), "{ticket:?} is not the newest, or is resolved");
    }

    /// The open transaction is whole.
    pub fn commit(&mut self, commit_lsn: Lsn, end_lsn: Lsn) -> Result<(), OrderViolation> {
        let open = self.open.take().filter(|open| open.commit_lsn == commit_lsn);
        let Some(open) = open else { return Err(OrderViolation::NotOpen { commit_lsn }) };
        if end_lsn <= commit_lsn {
            return Err(OrderViolation::Inverted { commit_lsn, end_lsn });
        }
        self.received = self.received.max(end_lsn);
        self.close(open, Watermark::from_commit_end(end_lsn));
        Ok(())
    }

    /// The server has nothing of ours up to `wal_end`.
    ///
    /// Ignored inside a transaction, where it says nothing about the changes still to come.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        self.received = self.received.max(wal_end);
        if self.open.is_some() {
            return;
        }
        let safe = Watermark::from_keepalive(wal_end);
        match self.units.back_mut() {
            Some(unit) if !injected(Bug::KeepaliveConfirms) => unit.safe = unit.safe.max(safe),
            Some(_) | None => self.watermark = self.watermark.max(safe),
        }
    }

    /// The event of a ticket is acknowledged, parked with its row committed, or passed over on purpose.
    pub fn resolve(&mut self, ticket: Ticket) -> Result<Resolution, OrderViolation> {
        match self.window.resolve(ticket.0) {
            Answer::Stale => Ok(Resolution::Stale),
            Answer::Impossible => Err(OrderViolation::Ticket(ticket)),
            Answer::Behind => Ok(Resolution::Resolved),
            Answer::Moved => {
                self.pop_resolved();
                Ok(Resolution::Resolved)
            }
        }
    }

    /// The highest position that may be confirmed. It never goes back.
    pub fn watermark(&self) -> Watermark {
        self.watermark
    }

    /// The highest position received.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// What a cursor row should say.
    pub fn progress(&self) -> Progress {
        let sent = injected(Bug::PartialCountsSent);
        let low = if sent { self.window.next() } else { self.window.low() };
        let front = self.units.front().map(|unit| Open {
            first: unit.first,
            first_ordinal: unit.first_ordinal,
            commit_lsn: unit.commit_lsn,
        });
        let partial = front.or(self.open).and_then(|front| {
            let done = low.checked_sub(front.first)?.checked_add(front.first_ordinal)?;
            (done > 0).then_some(Position { commit_lsn: front.commit_lsn, ordinal: done })
        });
        let early = self.units.front().filter(|_| injected(Bug::ConfirmsOneEarly));
        if let Some(unit) = early {
            return Progress { watermark: unit.safe, partial: None };
        }
        Progress { watermark: self.watermark, partial: partial.or(self.carried) }
    }

    /// The lowest ticket without an outcome: all below are resolved, or given up.
    pub fn low(&self) -> Ticket {
        Ticket(self.window.low())
    }

    /// The ticket of the next change.
    pub fn next(&self) -> Ticket {
        Ticket(self.window.next())
    }

    /// Tickets from the lowest without an outcome to the newest: what this tracker's memory grows with.
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
            // A transaction without changes of ours: it rides on the one before.
            Some(unit) if unit.upto == upto => unit.safe = unit.safe.max(safe),
            Some(_) | None => self.units.push_back(Unit {
                first: open.first,
                first_ordinal: open.first_ordinal,
                upto,
                commit_lsn: open.commit_lsn,
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
        let oldest = self.units.front().map(|unit| unit.commit_lsn);
        let oldest = oldest.or(self.open.map(|open| open.commit_lsn));
        // The whole safety argument: the server skips a transaction iff it commits below the confirmed position.
        assert!(
            oldest.is_none_or(|commit_lsn| self.watermark.lsn() <= commit_lsn),
            "watermark {} passes an unresolved transaction",
            self.watermark
        );
    }
}

// Tickets from the lowest unresolved one on, one bit each.
//
// Owns the numbering: tickets rise by one and are never used twice, so a ticket below `given_up` is of an earlier
// session.

const WORD_BITS: u64 = 64;

/// What resolving did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// It was the lowest: the resolved prefix grew.
    Moved,
    /// It waits behind lower ones.
    Behind,
    /// It was given up before.
    Stale,
    /// It was resolved before, or never issued.
    Impossible,
}

#[derive(Debug, Default)]
struct Window {
    /// Bits of tickets, 1 for resolved; the first word holds `low`.
    words: VecDeque<u64>,
    low: u64,
    next: u64,
    given_up: u64,
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

    /// Takes back the newest ticket, if it is that, and unresolved.
    fn retract(&mut self, ticket: u64) -> bool {
        let newest = self.next.checked_sub(1) == Some(ticket) && ticket >= self.low;
        let word = self.words.get(self.word_of(ticket)).copied().unwrap_or(0);
        if !newest || word & bit(ticket) != 0 {
            return false;
        }
        self.next = ticket;
        true
    }

    fn give_up(&mut self) {
        self.words.clear();
        self.next = if injected(Bug::ForgetsSessions) { 0 } else { self.next };
        self.low = self.next;
        self.given_up = self.next;
        // Bits below `low` in its word stand for tickets of before and must read as resolved.
        if self.low.checked_rem(WORD_BITS).is_some_and(|bit| bit != 0) {
            self.words.push_back(bit(self.low).wrapping_sub(1));
        }
    }

    fn resolve(&mut self, ticket: u64) -> Answer {
        if ticket < self.given_up {
            return Answer::Stale;
        }
        if ticket < self.low || ticket >= self.next {
            return Answer::Impossible;
        }
        let index = self.word_of(ticket);
        let Some(word) = self.words.get_mut(index) else { return Answer::Impossible };
        if *word & bit(ticket) != 0 {
            return Answer::Impossible;
        }
        *word |= bit(ticket);
        if ticket != self.low {
            return Answer::Behind;
        }
        self.advance();
        Answer::Moved
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

    /// Index into `words` of a ticket not below the word of `low`.
    fn word_of(&self, ticket: u64) -> usize {
        let words = (ticket >> 6).saturating_sub(self.low >> 6);
        usize::try_from(words).unwrap_or(usize::MAX)
    }
}

fn bit(ticket: u64) -> u64 {
    1_u64.wrapping_shl(u32::try_from(ticket & 63).unwrap_or(0))
}
