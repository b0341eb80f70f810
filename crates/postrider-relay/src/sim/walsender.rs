//! The server's end of a stream: the transactions that it sends, in order, and its keepalives.

use super::postgres::{Server, Transaction, WalChange};
use super::rng::Rng;

#[derive(Clone, Copy, Debug)]
pub(super) enum Frame {
    Keepalive { upto: u64 },
    Begin { commit: u64, xid: u32, time: u64 },
    Change(WalChange),
    Commit { commit: u64, end: u64 },
}

/// The next transaction to send, and the next change of it once it has begun.
#[derive(Debug)]
pub(super) struct Walsender {
    next: usize,
    change: Option<usize>,
    sent: u64,
}

impl Walsender {
    /// Returns a stream of the transactions that commit at or above `from` and the confirmed position, and its first
    /// frame.
    pub(super) fn start(server: &Server, from: u64) -> (Self, Frame) {
        let from = from.max(server.slot.confirmed);
        let next = server.transactions.partition_point(|transaction| transaction.commit < from);
        let sent = server.slot.confirmed;
        (Self { next, change: None, sent }, Frame::Keepalive { upto: sent })
    }

    /// The highest position that was sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether every transaction was sent.
    pub(super) fn is_idle(&self, transactions: usize) -> bool {
        self.next == transactions
    }

    /// The next frame; with a probability of `keepalive` in a thousand it is an additional keepalive.
    pub(super) fn send(&mut self, server: &Server, rng: &mut Rng, keepalive: u64) -> Option<Frame> {
        let Some(transaction) = server.transactions.get(self.next) else {
            // Nothing to send but the position up to which the WAL was read.
            if self.sent >= server.end {
                return None;
            }
            self.sent = server.end;
            return Some(Frame::Keepalive { upto: server.end });
        };
        if rng.chance(keepalive) {
            // A position that was read before the commit of this transaction.
            let upto = self.sent + rng.below(transaction.commit - self.sent + 1);
            self.sent = upto;
            return Some(Frame::Keepalive { upto });
        }
        let frame = match self.change {
            None => {
                let Transaction { commit, xid, time, .. } = *transaction;
                Frame::Begin { commit, xid, time }
            }
            Some(change) => match transaction.changes.get(change) {
                Some(change) => Frame::Change(*change),
                None => Frame::Commit { commit: transaction.commit, end: transaction.end },
            },
        };
        self.change = Some(self.change.map_or(0, |change| change + 1));
        if matches!(frame, Frame::Commit { .. }) {
            self.sent = transaction.end;
            (self.next, self.change) = (self.next + 1, None);
        }
        Some(frame)
    }
}
