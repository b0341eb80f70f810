//! Tickets from the lowest unresolved one on, one bit each.
//!
//! Owns the numbering: tickets rise by one and are never used twice, so a ticket below `given_up` is of an earlier
//! session.

use super::bug::{Bug, injected};
use std::collections::VecDeque;

const WORD_BITS: u64 = 64;

/// What resolving did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
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
pub(super) struct Window {
    /// Bits of tickets, 1 for resolved; the first word holds `low`.
    words: VecDeque<u64>,
    low: u64,
    next: u64,
    given_up: u64,
}

impl Window {
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn issue(&mut self) -> u64 {
        let ticket = self.next;
        if self.word_of(ticket) >= self.words.len() {
            self.words.push_back(0);
        }
        self.next = ticket.saturating_add(1);
        ticket
    }

    /// Takes back the newest ticket, if it is that, and unresolved.
    pub(super) fn retract(&mut self, ticket: u64) -> bool {
        let newest = self.next.checked_sub(1) == Some(ticket) && ticket >= self.low;
        let word = self.words.get(self.word_of(ticket)).copied().unwrap_or(0);
        if !newest || word & bit(ticket) != 0 {
            return false;
        }
        self.next = ticket;
        true
    }

    pub(super) fn give_up(&mut self) {
        self.words.clear();
        self.next = if injected(Bug::ForgetsSessions) { 0 } else { self.next };
        self.low = self.next;
        self.given_up = self.next;
        // Bits below `low` in its word stand for tickets of before and must read as resolved.
        if self.low.checked_rem(WORD_BITS).is_some_and(|bit| bit != 0) {
            self.words.push_back(bit(self.low).wrapping_sub(1));
        }
    }

    pub(super) fn resolve(&mut self, ticket: u64) -> Answer {
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
