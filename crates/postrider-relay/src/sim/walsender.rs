//! The server's end of a stream: which transactions it sends, in which order, and what its keepalives say.

use super::postgres::{Change, Server};
use super::rng::Rng;

#[derive(Clone, Copy, Debug)]
pub(super) enum Frame {
    Keepalive { wal_end: u64 },
    Begin { commit: u64 },
    Change(Change),
    Commit { commit: u64, end: u64 },
}

/// Where it stands: transaction, and change of it once it has begun.
#[derive(Debug)]
pub(super) struct Walsender {
    next: usize,
    change: Option<usize>,
    sent: u64,
}

impl Walsender {
    /// A stream of all that commits at `from` or later, or where the slot stands, if that is further on; and the first
    /// that it sends.
    pub(super) fn start(server: &Server, from: u64) -> (Self, Frame) {
        let from = from.max(server.confirmed);
        let next = server.transactions.partition_point(|transaction| transaction.commit < from);
        let sent = server.confirmed;
        (Self { next, change: None, sent }, Frame::Keepalive { wal_end: sent })
    }

    /// The furthest position that it has told.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether it has sent all.
    pub(super) fn idle(&self, transactions: usize) -> bool {
        self.next == transactions
    }

    /// The next frame; with a chance of `keepalive` in a thousand it is one that nobody needs.
    pub(super) fn send(&mut self, server: &Server, rng: &mut Rng, keepalive: u64) -> Option<Frame> {
        let Some(transaction) = server.transactions.get(self.next) else {
            // Nothing to send: it tells how far it has read.
            if self.sent >= server.end {
                return None;
            }
            self.sent = server.end;
            return Some(Frame::Keepalive { wal_end: server.end });
        };
        if rng.chance(keepalive) {
            // Of what was read before this transaction's commit.
            let wal_end = self.sent + rng.below(transaction.commit - self.sent + 1);
            self.sent = wal_end;
            return Some(Frame::Keepalive { wal_end });
        }
        let frame = match self.change {
            None => Frame::Begin { commit: transaction.commit },
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
