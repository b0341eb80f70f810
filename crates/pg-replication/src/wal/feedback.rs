//! When to tell the server what, and what a request for a reply means.
//!
//! Pure: it is given the time. The rules (each measured on 15 and 18):
//! - A status update leaves every `min(1 s, wal_sender_timeout / 6)`, whatever the reader does, and sooner when the
//!   watermark moved. So in normal operation the server never has to ask.
//! - If it asks all the same, and has positions that are not confirmed, it is shutting down: `WalSndDone`
//!   (`src/backend/replication/walsender.c`) waits until the flushed position equals the sent one, asking again after
//!   every answer. We wait a moment for the watermark, then give the *courtesy reply*: flush 0 ("no position"), write
//!   as sent. The server then takes `write` for `flush` and ends, and the slot does not move.
//! - Silence is answered with a request for a reply, and then counts as death.

use crate::error::SourceErrorKind;
use crate::lsn::Lsn;
use std::time::{Duration, Instant};

/// Longest pause between two status updates.
const STATUS_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How long a shutdown waits for what is in flight before the courtesy reply.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// Pause between courtesy replies, if the server asks again because more WAL was written while it shuts down.
const COURTESY_INTERVAL: Duration = Duration::from_millis(100);

/// A server that has not asked again for this long was not shutting down.
const DRAIN_FORGOTTEN: Duration = Duration::from_secs(5);

/// One "Standby status update" (manual, 54.4.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status {
    /// Last position received.
    pub(super) write: Lsn,
    /// Last position confirmed, sent as flushed and as applied; zero moves nothing.
    pub(super) flush: Lsn,
    /// Whether the server shall answer at once.
    pub(super) reply: bool,
}

/// Bytes of a status update with its header.
pub(super) const STATUS_BYTES: usize = 1 + 4 + 1 + 3 * 8 + 8 + 1;

impl Status {
    /// As a `CopyData` message; `clock` in microseconds since 2000-01-01.
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

/// The state behind the rules above.
pub(super) struct Feedback {
    status_interval: Duration,
    confirm_interval: Duration,
    silence_max: Duration,
    /// The highest flush position sent.
    flushed: Lsn,
    sent_at: Instant,
    heard_at: Instant,
    /// An answer was asked for since something was heard.
    begged: bool,
    answer: bool,
    drain: Option<Drain>,
}

/// A server that is shutting down and waits for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Drain {
    wal_end: Lsn,
    asked_at: Instant,
    grace_until: Instant,
    /// Asked, and not yet answered.
    pending: bool,
    courteous_at: Option<Instant>,
}

impl Drain {
    /// When the next courtesy reply may leave.
    fn answer_at(&self) -> Instant {
        let next = self.courteous_at.map_or(self.grace_until, |at| at + COURTESY_INTERVAL);
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
            heard_at: now,
            begged: false,
            answer: false,
            drain: None,
        }
    }

    /// Something came from the server, or we did not listen on purpose.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.begged = false;
    }

    /// The server wants a reply to a keepalive at `wal_end`.
    pub(super) fn asked(&mut self, now: Instant, wal_end: Lsn, confirmed: Lsn) {
        let we_were_silent = now.duration_since(self.sent_at) > self.status_interval * 2;
        if confirmed >= wal_end || we_were_silent {
            self.answer = true;
            return;
        }
        let former = self.drain;
        self.drain = Some(Drain {
            wal_end,
            asked_at: now,
            grace_until: former.map_or(now + DRAIN_GRACE, |drain| drain.grace_until),
            pending: true,
            courteous_at: former.and_then(|drain| drain.courteous_at),
        });
    }

    /// Whether the server is shutting down, as far as is known.
    pub(super) const fn draining(&self) -> bool {
        self.drain.is_some()
    }

    /// The status update to send now, if one is due. The caller sends it.
    ///
    /// Panics when `confirmed` is above `received` or below what was confirmed before: going on would lose events.
    pub(super) fn due(&mut self, now: Instant, confirmed: Lsn, received: Lsn) -> Option<Status> {
        assert!(confirmed >= self.flushed, "the watermark went back to {confirmed}");
        assert!(confirmed <= received, "{confirmed} is confirmed, only {received} was received");
        let mut flush = confirmed;
        if let Some(drain) = &mut self.drain {
            if confirmed >= drain.wal_end {
                self.drain = None;
                self.answer = true;
            } else if now >= drain.asked_at + DRAIN_FORGOTTEN {
                self.drain = None;
            } else if now >= drain.grace_until {
                // From here on every update is a courtesy, or the next one would take it back.
                flush = Lsn::ZERO;
                if drain.pending && now >= drain.answer_at() {
                    drain.pending = false;
                    drain.courteous_at = Some(now);
                    self.answer = true;
                }
            }
        }
        let since = now.duration_since(self.sent_at);
        let moved = confirmed > self.flushed && since >= self.confirm_interval;
        let beg = !self.begged && now >= self.beg_at();
        if !(self.answer || moved || beg || since >= self.status_interval) {
            return None;
        }
        Some(self.status(now, flush, received))
    }

    /// The last status update, with everything that is confirmed.
    pub(super) fn last(&mut self, now: Instant, confirmed: Lsn, received: Lsn) -> Status {
        assert!(confirmed >= self.flushed, "the watermark went back to {confirmed}");
        assert!(confirmed <= received, "{confirmed} is confirmed, only {received} was received");
        self.status(now, confirmed, received)
    }

    fn status(&mut self, now: Instant, flush: Lsn, received: Lsn) -> Status {
        self.answer = false;
        self.sent_at = now;
        self.flushed = self.flushed.max(flush);
        let reply = now >= self.beg_at();
        self.begged |= reply;
        Status { write: received, flush, reply }
    }

    /// From when on the server's silence is asked about.
    fn beg_at(&self) -> Instant {
        self.heard_at + self.silence_max / 2
    }

    /// When to ask [`due`](Self::due) again at the latest. Always later than a `due` that gave nothing, or the thread
    /// would spin.
    pub(super) fn wake_at(&self, confirmed: Lsn) -> Instant {
        let pause =
            if confirmed > self.flushed { self.confirm_interval } else { self.status_interval };
        let regular = self.sent_at + pause.min(self.status_interval);
        match self.drain {
            Some(drain) if drain.pending => regular.min(drain.answer_at()),
            Some(_) | None => regular,
        }
    }

    /// The error, when the server has been silent for too long.
    pub(super) fn silence(&self, now: Instant) -> Option<SourceErrorKind> {
        let silent = now.duration_since(self.heard_at) >= self.silence_max;
        silent.then_some(SourceErrorKind::Silent(self.silence_max))
    }
}

#[cfg(test)]
mod tests;
