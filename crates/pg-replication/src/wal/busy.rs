//! When to let data pile up before it is read.
//!
//! The walsender does one `send` for each message, and a reader that wakes for each makes it pay for the wake-up. So
//! when much is coming (above [`BUSY_BYTES_PER_SECOND`] when it was last measured) the thread sleeps a little before it
//! reads, as long as [`COALESCE_BYTES`] take to come, and finds many messages at once; the socket is off the runtime
//! meanwhile, since a registered one costs the walsender a call with each message though nobody sleeps. A million rows
//! drained to `discard` over a unix socket (measured, 2 processors; rows a second beside `pg_recvlogical` in the same
//! run, our processor time a row): naps of 30 µs 0.98, 1.40 µs; 80 µs 1.02, 1.29 µs; 120 µs 1.01, 1.15 µs; 200 µs
//! 0.96, 1.21 µs. On a faster machine 30 µs 1.03, 1.26 µs; 90 µs 1.03, 1.15 µs; 120 µs 1.00, 1.12 µs; 200 µs 0.76: with
//! longer ones the walsender finds the socket's buffer full, which holds some 160 such rows. A thread's sleep, not a
//! timer of the runtime, which still wakes for each packet.
//!
//! Below full speed the sleep is longer, and is what lingering in the producer would be, but for busy times alone: see
//! `docs/decisions/batching.md` for what was measured.
//!
//! On a machine whose processors are taken a nap becomes milliseconds, the socket's small buffer is full long before,
//! and the walsender waits: there the same naps halve the rate (measured at a load of 15 on 2 processors). So a nap
//! that took too long is the last one for a while.

use std::time::{Duration, Instant};

/// Above this the thread lets data pile up before it reads.
const BUSY_BYTES_PER_SECOND: u64 = 2_000_000;

/// Above this it is a backlog that comes: some 25,000 events a second, where nobody keeps to a clock any more.
const BACKLOG_BYTES_PER_SECOND: u64 = 12_000_000;

/// How long the rate is measured.
const BUSY_WINDOW: Duration = Duration::from_millis(2);

/// A rate from longer ago says nothing.
const FRESH: Duration = Duration::from_millis(12);

/// A sleep that took so much longer than it should: the processors are taken, and the socket's buffer was full long
/// before we woke. It holds about half a millisecond of a walsender at full speed, and on two processors that three
/// threads share a nap of one or two milliseconds more is no sign of trouble.
const OVERSLEPT: Duration = Duration::from_millis(3);

/// How long not to sleep after that.
const AWAKE: Duration = Duration::from_millis(100);

/// What may pile up. Twice what it was: of transactions of one row, whose messages are small, an event costs a tenth
/// less processor time (measured, eight rounds of each in turn, to `discard`: 2.8 and 3.2 µs) at the same rate; with
/// four times as much a drain took a tenth longer. Unit: bytes.
const COALESCE_BYTES: u64 = 15_000;

/// How long data may pile up. The kernel makes about twice as much of the shortest; the longest is what an event may
/// wait here.
const NAP_MIN: Duration = Duration::from_micros(90);
const NAP_MAX: Duration = Duration::from_micros(500);

/// Whether much is coming.
pub(super) struct Busy {
    since: Instant,
    bytes: u64,
    /// How long to sleep, if much is coming.
    nap: Option<Duration>,
    /// So much is coming that it is a backlog.
    backlog: bool,
    /// No sleep before this: the last one took far longer than asked for.
    awake_until: Instant,
    /// The last read took all there was room for: more is there already.
    more: bool,
}

impl Busy {
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0, nap: None, backlog: false, awake_until: now, more: false }
    }

    /// `count` bytes were read; `more` if that was all there was room for.
    pub(super) fn read(&mut self, now: Instant, count: usize, more: bool) {
        self.bytes += count as u64;
        self.more = more;
        let elapsed = now.duration_since(self.since);
        if elapsed >= BUSY_WINDOW {
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
            let rate = self.bytes.saturating_mul(1_000_000) / micros;
            self.nap = (rate > BUSY_BYTES_PER_SECOND).then(|| {
                let filled = Duration::from_micros(COALESCE_BYTES * 1_000_000 / rate);
                filled.clamp(NAP_MIN, NAP_MAX)
            });
            self.backlog = rate > BACKLOG_BYTES_PER_SECOND;
            self.bytes = 0;
            self.since = now;
        }
    }

    /// Whether so much is coming that it is a backlog.
    pub(super) const fn is_backlog(&self) -> bool {
        self.backlog
    }

    /// How long a sleep is just now; the next turn may do without.
    pub(super) fn nap(&self) -> Duration {
        self.nap.unwrap_or_default()
    }

    /// Whether much is coming; then sleeps a little before it says so.
    pub(super) fn pause(&mut self, now: Instant) -> bool {
        // The first read after a pause must not wait.
        let fresh = now.duration_since(self.since) < FRESH;
        let Some(nap) = self.nap.filter(|_| fresh && now >= self.awake_until) else { return false };
        if !self.more {
            std::thread::sleep(nap);
            let slept = now.elapsed();
            if slept > nap + OVERSLEPT {
                self.awake_until = now + slept + AWAKE;
            }
        }
        true
    }
}
