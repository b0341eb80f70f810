//! When a status update is sent, and what a request for a reply means. The caller passes the time in.
//!
//! The rules (each measured on 15 and 18):
//! - A status update is sent every `min(1 s, wal_sender_timeout / 6)`, whatever the caller does, and sooner if the
//!   watermark moved. So in normal operation the server never requests a reply.
//! - A server that requests a reply and has positions that are not confirmed is shutting down: `WalSndDone`
//!   (`src/backend/replication/walsender.c`) waits until the flushed position equals the sent one, and requests a reply
//!   again after every answer. The client waits a moment for the watermark, then sends the *courtesy reply*: flush 0
//!   ("no position"), write as sent. The server then takes `write` for `flush` and ends, and the slot does not move.
//! - If the server is silent for half of `silence_max`, the client requests a reply; at `silence_max` the connection is
//!   taken for dead.

use crate::error::SourceErrorKind;
use crate::lsn::Lsn;
use std::time::{Duration, Instant};

/// Longest time between two status updates.
const STATUS_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Time between the server's request and the courtesy reply, for changes in flight to be confirmed.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// Time between courtesy replies, if the server requests again because more WAL was written while it shuts down.
const COURTESY_INTERVAL: Duration = Duration::from_millis(100);

/// A server that has not requested a reply for this long is not shutting down.
const DRAIN_EXPIRY: Duration = Duration::from_secs(5);

/// A "Standby status update" (manual, 54.4.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status {
    /// The last position received.
    pub(super) write: Lsn,
    /// The last position confirmed, sent as flushed and as applied; with 0/0 the slot does not move.
    pub(super) flush: Lsn,
    /// Whether the server is to reply at once.
    pub(super) reply: bool,
}

/// Size of a status update with its header. Unit: bytes.
pub(super) const STATUS_BYTES: usize = 1 + 4 + 1 + 3 * 8 + 8 + 1;

impl Status {
    /// The update as a `CopyData` message. `clock` is in microseconds since 2000-01-01.
    pub(super) fn encode(self, clock: i64) -> [u8; STATUS_BYTES] {
        let mut message = [0; STATUS_BYTES];
        let length = 4 + 1 + 3 * 8 + 8 + 1_u32;
        let flush = self.flush.to_wire().to_be_bytes();
        let parts: [&[u8]; 8] = [
            b"d",
            &length.to_be_bytes(),
            b"r",
            &self.write.to_wire().to_be_bytes(),
            &flush,
            &flush,
            &clock.to_be_bytes(),
            &[u8::from(self.reply)],
        ];
        let mut place = message.iter_mut();
        for (to, from) in place.by_ref().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        message
    }
}

/// The state of the rules above.
pub(super) struct Feedback {
    status_interval: Duration,
    confirm_interval: Duration,
    silence_max: Duration,
    /// The highest flush position sent.
    flushed: Lsn,
    sent_at: Instant,
    read_at: Instant,
    /// A reply was requested since the last read.
    reply_sent: bool,
    answer: bool,
    drain: Option<Drain>,
}

/// A server that is shutting down and waits for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Drain {
    wal_end: Lsn,
    requested_at: Instant,
    grace_until: Instant,
    /// The last request is not yet answered.
    pending: bool,
    courtesy_sent_at: Option<Instant>,
}

impl Drain {
    /// Earliest time of the next courtesy reply.
    fn answer_at(&self) -> Instant {
        let next = self.courtesy_sent_at.map_or(self.grace_until, |at| at + COURTESY_INTERVAL);
        next.max(self.grace_until)
    }
}

impl Feedback {
    pub(super) fn new(
        now: Instant,
        wal_sender_timeout: Duration,
        confirm_interval: Duration,
        silence_max: Duration,
    ) -> Self {
        Self {
            status_interval: STATUS_INTERVAL_MAX.min(wal_sender_timeout / 6),
            confirm_interval,
            silence_max,
            flushed: Lsn::ZERO,
            sent_at: now,
            read_at: now,
            reply_sent: false,
            answer: false,
            drain: None,
        }
    }

    /// Bytes came from the server, or the client did not read on purpose.
    pub(super) fn note_read(&mut self, now: Instant) {
        self.read_at = now;
        self.reply_sent = false;
    }

    /// The server requests a reply, with a keepalive at `wal_end`.
    pub(super) fn reply_requested(&mut self, now: Instant, wal_end: Lsn, confirmed: Lsn) {
        let client_was_silent = now.duration_since(self.sent_at) > self.status_interval * 2;
        if confirmed >= wal_end || client_was_silent {
            self.answer = true;
            return;
        }
        let former = self.drain;
        self.drain = Some(Drain {
            wal_end,
            requested_at: now,
            grace_until: former.map_or(now + DRAIN_GRACE, |drain| drain.grace_until),
            pending: true,
            courtesy_sent_at: former.and_then(|drain| drain.courtesy_sent_at),
        });
    }

    /// Whether the server is shutting down, as far as is known.
    pub(super) const fn draining(&self) -> bool {
        self.drain.is_some()
    }

    /// The status update that is due now; the caller sends it.
    ///
    /// # Panics
    /// If `confirmed` is higher than `received`, or lower than a position confirmed before: both would lose changes.
    pub(super) fn due(&mut self, now: Instant, confirmed: Lsn, received: Lsn) -> Option<Status> {
        assert!(confirmed >= self.flushed, "the watermark went back to {confirmed}");
        assert!(confirmed <= received, "{confirmed} is confirmed, only {received} was received");
        let mut flush = confirmed;
        if let Some(drain) = &mut self.drain {
            if confirmed >= drain.wal_end {
                self.drain = None;
                self.answer = true;
            } else if now >= drain.requested_at + DRAIN_EXPIRY {
                self.drain = None;
            } else if now >= drain.grace_until {
                // From here on every update has flush 0, or the next one would revoke the courtesy reply.
                flush = Lsn::ZERO;
                if drain.pending && now >= drain.answer_at() {
                    drain.pending = false;
                    drain.courtesy_sent_at = Some(now);
                    self.answer = true;
                }
            }
        }
        let since = now.duration_since(self.sent_at);
        let moved = confirmed > self.flushed && since >= self.confirm_interval;
        let request_reply = !self.reply_sent && now >= self.request_reply_at();
        if !(self.answer || moved || request_reply || since >= self.status_interval) {
            return None;
        }
        Some(self.status(now, flush, received))
    }

    /// The last status update, with the confirmed position.
    ///
    /// # Panics
    /// As [`due`](Self::due).
    pub(super) fn last(&mut self, now: Instant, confirmed: Lsn, received: Lsn) -> Status {
        assert!(confirmed >= self.flushed, "the watermark went back to {confirmed}");
        assert!(confirmed <= received, "{confirmed} is confirmed, only {received} was received");
        self.status(now, confirmed, received)
    }

    fn status(&mut self, now: Instant, flush: Lsn, received: Lsn) -> Status {
        self.answer = false;
        self.sent_at = now;
        self.flushed = self.flushed.max(flush);
        let reply = now >= self.request_reply_at();
        self.reply_sent |= reply;
        Status { write: received, flush, reply }
    }

    /// When to request a reply from a silent server.
    fn request_reply_at(&self) -> Instant {
        self.read_at + self.silence_max / 2
    }

    /// When to call [`due`](Self::due) again at the latest. The time is always later than that of a `due` that returned
    /// `None`, or the thread would spin.
    pub(super) fn wake_at(&self, confirmed: Lsn) -> Instant {
        let pause =
            if confirmed > self.flushed { self.confirm_interval } else { self.status_interval };
        let regular = self.sent_at + pause.min(self.status_interval);
        match self.drain {
            Some(drain) if drain.pending => regular.min(drain.answer_at()),
            Some(_) | None => regular,
        }
    }

    /// The error of a server that has been silent for too long.
    pub(super) fn silence(&self, now: Instant) -> Option<SourceErrorKind> {
        let silent = now.duration_since(self.read_at) >= self.silence_max;
        silent.then_some(SourceErrorKind::Silent(self.silence_max))
    }
}

#[cfg(test)]
mod tests;
