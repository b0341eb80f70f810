//! The thread that owns the socket: reads, cuts, hands over, and sends status updates by its own timer.
//!
//! It stops reading when the queue is full, so the server waits and memory stays bounded, and goes on sending updates,
//! so the server does not take us for dead. It ends with the reason in the queue.

#[cfg(test)]
mod tests;

use super::StartReplication;
use super::feedback::Feedback;
use super::queue::{Batch, COPY_DATA, Cut, CutError, End, Queue, cut};
use crate::error::{ServerReport, SourceError, SourceErrorKind, SqlState};
use crate::lsn::Lsn;
use crate::transport::{AT_ONCE_BYTES, Transport};
use bytes::{Buf, BytesMut};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// Room asked for when the read buffer is nearly used up. Unit: bytes.
const READ_BYTES: usize = 256 << 10;

/// Less room than this makes a new buffer. Unit: bytes.
const READ_BYTES_MIN: usize = 64 << 10;

/// Longest wait for a status update to leave: the socket's buffer is full only if the server has stopped reading.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads off the runtime before it has its turn, to see that the handle was dropped. Some 4 to 64 ms.
const TURNS_PER_YIELD: u32 = 32;

/// What the handle and the thread share.
pub(super) struct Shared {
    pub(super) queue: Queue,
    /// Written by the handle.
    pub(super) confirmed: AtomicU64,
    /// Written by the thread, before the batch is offered.
    pub(super) received: AtomicU64,
    /// The server waits for the watermark: `confirm` has to wake the thread.
    pub(super) draining: AtomicBool,
    /// Wakes the thread for a watermark or a stop.
    pub(super) nudge: Notify,
    /// Set with the deadline when the stream is to end in good order.
    pub(super) stop: std::sync::OnceLock<Instant>,
    /// Drops everything at once.
    pub(super) abandoned: Notify,
}

/// The connection while it streams.
pub(super) struct WalSession {
    transport: Transport,
    inbox: BytesMut,
    shared: Arc<Shared>,
    feedback: Feedback,
    message_bytes_max: usize,
    doing: String,
    held: Held,
    /// Bytes missing of the message at hand.
    missing: usize,
    busy: Busy,
    /// Reads off the runtime.
    turns: u32,
    /// When something was last read.
    read_at: Instant,
}

impl WalSession {
    pub(super) fn new(
        transport: Transport,
        inbox: BytesMut,
        shared: Arc<Shared>,
        wal_sender_timeout: Duration,
        start: &StartReplication,
    ) -> Self {
        let now = Instant::now();
        Self {
            transport,
            inbox,
            shared,
            feedback: Feedback::new(
                now,
                wal_sender_timeout,
                start.confirm_interval,
                start.silence_max,
            ),
            message_bytes_max: start.message_bytes_max,
            doing: format!("stream from slot \"{}\"", start.slot),
            held: Held::default(),
            missing: 0,
            busy: Busy::new(now),
            turns: 0,
            read_at: now,
        }
    }

    /// Streams until the connection ends or is told to.
    pub(super) async fn run(mut self) -> End {
        let ended = match self.stream().await {
            Ok(deadline) => self.finish(deadline).await,
            Err(error) => {
                // What came before it.
                self.hand_over();
                if error.is_of_a_message() { self.hold(error).await } else { Err(error) }
            }
        };
        End::Error(ended.err().unwrap_or_else(|| self.error(SourceErrorKind::Stopped)))
    }

    /// Streams until told to stop, and then gives the deadline.
    async fn stream(&mut self) -> Result<Instant, SourceError> {
        let shared = Arc::clone(&self.shared);
        loop {
            self.cut()?;
            if self.held.is_ripe(
                self.read_at + self.busy.nap(),
                self.busy.is_backlog(),
                &shared.queue,
            ) {
                self.hand_over();
            }
            self.send_status().await?;
            if let Some(deadline) = shared.stop.get() {
                return Ok(*deadline);
            }
            if !self.held.is_stuck() {
                self.make_room();
                if self.busy.pause(Instant::now()) {
                    self.read_off_runtime().await?;
                    continue;
                }
                self.hand_over();
            }
            let reading = !self.held.is_stuck();
            self.attach()?;
            let room = self.inbox.capacity() - self.inbox.len();
            let wake_at = tokio::time::Instant::from_std(self.feedback.wake_at(self.confirmed()));
            tokio::select! {
                biased;
                () = shared.nudge.notified() => {}
                read = self.transport.read_buf(&mut self.inbox), if reading => {
                    let count = read.map_err(|e| SourceError::io(self.doing.as_str(), e))?;
                    if count == 0 {
                        return Err(self.error(self.end_of_file()));
                    }
                    let now = Instant::now();
                    self.feedback.heard(now);
                    self.read_at = now;
                    self.busy.read(now, count, count == room);
                }
                () = shared.queue.room(), if !reading => {}
                () = tokio::time::sleep_until(wake_at) => {}
            }
            let now = Instant::now();
            if !reading {
                // Silence is ours while we do not listen.
                self.feedback.heard(now);
            } else if let Some(kind) = self.feedback.silence(now) {
                return Err(self.error(kind));
            }
        }
    }

    /// Under load, reads the socket directly, not registered with the runtime: with a registered socket each message
    /// that the walsender sends also wakes the poller, which costs the server CPU time.
    async fn read_off_runtime(&mut self) -> Result<(), SourceError> {
        self.transport.detach().map_err(|error| self.system(error))?;
        let (transport, inbox) = (&mut self.transport, &mut self.inbox);
        let mut reading = std::pin::pin!(transport.read_buf(inbox));
        let read = std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
        let now = Instant::now();
        match read {
            Poll::Pending => self.hand_over(),
            Poll::Ready(Ok(0)) => return Err(self.error(self.end_of_file())),
            Poll::Ready(Ok(count)) => {
                self.feedback.heard(now);
                self.read_at = now;
                self.busy.read(now, count, count >= AT_ONCE_BYTES);
            }
            Poll::Ready(Err(error)) => return Err(SourceError::io(self.doing.as_str(), error)),
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_YIELD) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn hand_over(&mut self) {
        self.held.hand_over(&self.shared.queue);
    }

    /// Whether the queue has room for all that is held.
    fn hands_over_all(&mut self) -> bool {
        self.hand_over();
        !self.held.is_stuck()
    }

    /// Back on the runtime, which wakes us; nothing to do where it is there already.
    fn attach(&mut self) -> Result<(), SourceError> {
        self.transport.attach().map_err(|error| self.system(error))
    }

    fn system(&self, error: std::io::Error) -> SourceError {
        self.error(SourceErrorKind::System).caused_by(error)
    }

    fn end_of_file(&self) -> SourceErrorKind {
        if self.feedback.draining() {
            SourceErrorKind::ServerStopping
        } else {
            SourceErrorKind::Closed
        }
    }

    /// Room for the message at hand, or for a good read.
    fn make_room(&mut self) {
        let room = self.inbox.capacity() - self.inbox.len();
        if self.missing > room {
            self.inbox.reserve(self.missing.max(READ_BYTES));
        } else if room < READ_BYTES_MIN {
            self.inbox.reserve(READ_BYTES);
        }
    }

    fn confirmed(&self) -> Lsn {
        Lsn::from_wire(self.shared.confirmed.load(Ordering::SeqCst))
    }

    fn received(&self) -> Lsn {
        Lsn::from_wire(self.shared.received.load(Ordering::Acquire))
    }

    async fn send_status(&mut self) -> Result<(), SourceError> {
        let (confirmed, received) = (self.confirmed(), self.received());
        let due = self.feedback.due(Instant::now(), confirmed, received);
        self.shared.draining.store(self.feedback.draining(), Ordering::SeqCst);
        match due {
            None => Ok(()),
            Some(status) => self.write(&status.encode(clock())).await,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        // The driver does not wait for a server that does not read.
        self.hand_over();
        self.attach()?;
        let written = async {
            self.transport.write_all(bytes).await?;
            self.transport.flush().await
        };
        match tokio::time::timeout(WRITE_TIMEOUT, written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SourceError::io(self.doing.as_str(), error)),
            Err(_elapsed) => Err(self.error(SourceErrorKind::Silent(WRITE_TIMEOUT))),
        }
    }

    async fn read_more(&mut self) -> Result<(), SourceError> {
        self.make_room();
        let read = self.transport.read_buf(&mut self.inbox).await;
        match read.map_err(|error| SourceError::io(self.doing.as_str(), error))? {
            0 => Err(self.error(SourceErrorKind::Closed)),
            _ => Ok(()),
        }
    }

    fn error(&self, kind: SourceErrorKind) -> SourceError {
        SourceError::new(kind, self.doing.as_str())
    }

    fn server(&self, report: ServerReport) -> SourceError {
        SourceError::server(self.doing.as_str(), report)
    }
}

/// Microseconds since 2000-01-01, as the server counts.
fn clock() -> i64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
    micros.saturating_sub(crate::timestamp::PgTime::UNIX_OFFSET_MICROS)
}

// What was read, cut: batches for the queue, questions for the feedback, and messages that end the stream or say
// something.
//
// Reads no socket and sends nothing. What is cut waits in `held`; what a frame says is for the driver to decode.

/// What warns, with the same SQLSTATE as a publication that is skipped, that a standby in `synchronized_standby_slots`
/// is not there: the stream waits for it (`src/backend/replication/slot.c`, 17 and 18).
const WAITS_FOR_STANDBY: &[u8] = b"StandbySlotsHaveCaughtup";

impl WalSession {
    /// Splits complete frames off the input until the queue is full. A message that is not a frame may end the stream,
    /// so it is handled only after all frames before it are queued.
    fn cut(&mut self) -> Result<(), SourceError> {
        if self.held.is_stuck() {
            self.hand_over();
        }
        while !self.held.is_stuck() {
            if self.inbox.first().is_some_and(|tag| *tag != COPY_DATA) && !self.hands_over_all() {
                return Ok(());
            }
            match cut(&mut self.inbox, self.message_bytes_max) {
                Ok(Cut::Frames(batch, seen)) => {
                    let received = self.received().max(seen.highest);
                    self.shared.received.store(received.to_wire(), Ordering::Release);
                    if let Some(wal_end) = seen.ping {
                        let confirmed = self.confirmed();
                        self.feedback.asked(Instant::now(), wal_end, confirmed);
                        self.shared.draining.store(self.feedback.draining(), Ordering::SeqCst);
                    }
                    self.held.keep(batch, self.read_at);
                }
                Ok(Cut::Other(tag, body)) => self.other(tag, &body)?,
                Ok(Cut::Missing(missing)) => {
                    self.missing = missing;
                    return Ok(());
                }
                // The buffer is as it was: it is looked at once more when there is room.
                Err(_) if !self.hands_over_all() => return Ok(()),
                Err(CutError::Malformed) => return Err(self.error(SourceErrorKind::Protocol)),
                Err(CutError::TooLarge(size)) => {
                    let limit = self.message_bytes_max as u64;
                    let kind = SourceErrorKind::TooLarge { size: size as u64, limit };
                    return Err(self.error(kind));
                }
            }
        }
        Ok(())
    }

    /// A message that is not `CopyData`.
    fn other(&self, tag: u8, body: &[u8]) -> Result<(), SourceError> {
        match tag {
            b'E' => Err(self.server(ServerReport::from_fields(body))),
            b'N' => {
                let notice = ServerReport::from_fields(body);
                // "skipped loading publication" (PostgreSQL 18): its rows would be passed over in silence.
                let skipped = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
                let waits = ServerReport::routine(body) == Some(WAITS_FOR_STANDBY);
                if notice.is_warning() && notice.sqlstate == skipped && !waits {
                    return Err(self.server(notice));
                }
                tracing::debug!(sqlstate = %notice.sqlstate, "notice in the stream");
                Ok(())
            }
            // A setting was changed by a reload: ours are pinned.
            b'S' => Ok(()),
            // The server ends the stream by itself only when it shuts down.
            b'c' | b'C' => Err(self.error(SourceErrorKind::ServerStopping)),
            _ => Err(self.error(SourceErrorKind::Protocol)),
        }
    }
}

// The end of a stream in good order: what is confirmed reaches the slot before the connection goes. That of one with a
// message that can't be read waits until what came before it is confirmed.

impl WalSession {
    /// Nothing more can be read, and the connection stands: it is kept, and with it the slot, while what came before is
    /// published and confirmed. Until told to stop.
    pub(super) async fn hold(&mut self, error: SourceError) -> Result<(), SourceError> {
        let shared = Arc::clone(&self.shared);
        shared.queue.end(End::Message(error));
        loop {
            self.send_status().await?;
            if let Some(deadline) = shared.stop.get() {
                return self.finish(*deadline).await;
            }
            let wake_at = tokio::time::Instant::from_std(self.feedback.wake_at(self.confirmed()));
            tokio::select! {
                () = shared.nudge.notified() => {}
                () = tokio::time::sleep_until(wake_at) => {}
            }
            // Silence is ours: we do not listen.
            self.feedback.heard(Instant::now());
        }
    }

    /// The end in good order: the last status, `CopyDone`, everything up to the server's end of the command, Terminate.
    pub(super) async fn finish(&mut self, deadline: Instant) -> Result<(), SourceError> {
        let (confirmed, received) = (self.confirmed(), self.received());
        let last = self.feedback.last(Instant::now(), confirmed, received);
        self.held.clear();
        let deadline = tokio::time::Instant::from_std(deadline);
        let ending = async {
            self.write(&last.encode(clock())).await?;
            self.write(b"c\0\0\0\x04").await?;
            self.drain().await?;
            // The command has ended and the status has been read: a Terminate that gets lost loses nothing.
            self.write(b"X\0\0\0\x04").await
        };
        match tokio::time::timeout_at(deadline, ending).await {
            Ok(ended) => ended,
            Err(elapsed) => {
                let doing = format!("{}: end it in good order", self.doing);
                Err(SourceError::new(SourceErrorKind::Stopped, doing).caused_by(elapsed))
            }
        }
    }

    /// Reads and throws away what is still on its way, up to `CommandComplete`.
    async fn drain(&mut self) -> Result<(), SourceError> {
        loop {
            match cut(&mut self.inbox, self.message_bytes_max) {
                Ok(Cut::Other(b'C' | b'Z', _)) => return Ok(()),
                Ok(Cut::Other(b'E', body)) => {
                    return Err(self.server(ServerReport::from_fields(&body)));
                }
                Ok(Cut::Frames(..) | Cut::Other(..)) => {}
                Ok(Cut::Missing(missing)) => {
                    self.missing = missing;
                    self.read_more().await?;
                }
                // It is not wanted any more, and so does not have to be held.
                Err(CutError::TooLarge(mut left)) => {
                    self.missing = 0;
                    while left > 0 {
                        let gone = left.min(self.inbox.len());
                        self.inbox.advance(gone);
                        left -= gone;
                        if left > 0 {
                            self.read_more().await?;
                        }
                    }
                }
                Err(CutError::Malformed) => return Err(self.error(SourceErrorKind::Protocol)),
            }
        }
    }
}

// When to let data pile up before it is read.
//
// The walsender does one `send` for each message, and a reader that wakes for each makes it pay for the wake-up. So
// when much is coming (above [`BUSY_BYTES_PER_SECOND`] when it was last measured) the thread sleeps a little before it
// reads, as long as [`COALESCE_BYTES`] take to come, and finds many messages at once; the socket is off the runtime
// meanwhile, since a registered one costs the walsender a call with each message though nobody sleeps. A million rows
// drained to `discard` over a unix socket (measured, 2 processors; rows a second beside `pg_recvlogical` in the same
// run, our processor time a row): naps of 30 µs 0.98, 1.40 µs; 80 µs 1.02, 1.29 µs; 120 µs 1.01, 1.15 µs; 200 µs
// 0.96, 1.21 µs. On a faster machine 30 µs 1.03, 1.26 µs; 90 µs 1.03, 1.15 µs; 120 µs 1.00, 1.12 µs; 200 µs 0.76: with
// longer ones the walsender finds the socket's buffer full, which holds some 160 such rows. A thread's sleep, not a
// timer of the runtime, which still wakes for each packet.
//
// Below full speed the sleep is longer, and is what lingering in the producer would be, but for busy times alone: see
// `docs/decisions/batching.md` for what was measured.
//
// On a machine whose processors are taken a nap becomes milliseconds, the socket's small buffer is full long before,
// and the walsender waits: there the same naps halve the rate (measured at a load of 15 on 2 processors). So a nap
// that took too long is the last one for a while.

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

// What was read and the driver does not have yet.
//
// To be told costs the driver as much as several events, and so does each of its turns; a request to a broker costs as
// much as dozens of records. So while much is coming, what little of it has come is kept back for a moment. Of a
// backlog that is milliseconds: its events are late by seconds, and what is handed over together reaches a broker
// together. Knows no clock and no socket.

/// The driver gets what there is at this age, or when it is this much.
const AGE: Duration = Duration::from_micros(400);
const BYTES: usize = 64 << 10;

/// The same for a backlog. The size holds what a walsender sends in that time (some 100 MB a second).
const BACKLOG_AGE: Duration = Duration::from_millis(4);
const BACKLOG_BYTES: usize = 512 << 10;

/// Batches in order.
#[derive(Default)]
pub(super) struct Held {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// When the first of them was read.
    since: Option<Instant>,
    /// The queue has no room for the first of them.
    stuck: bool,
}

impl Held {
    /// One more, read at this time.
    pub(super) fn keep(&mut self, batch: Batch, read_at: Instant) {
        self.bytes += batch.size_bytes();
        self.since.get_or_insert(read_at);
        self.batches.push_back(batch);
    }

    /// Whether the driver gets it now, if nothing more comes before `next`.
    pub(super) fn is_ripe(&self, next: Instant, backlog: bool, queue: &Queue) -> bool {
        let (age, bytes) = if backlog { (BACKLOG_AGE, BACKLOG_BYTES) } else { (AGE, BYTES) };
        // Of a small queue not much more is read ahead than it may hold.
        self.bytes >= bytes.min(queue.bytes_max() / 4)
            || self.since.is_some_and(|since| next.duration_since(since) >= age)
    }

    /// Hands over as much as the queue has room for.
    pub(super) fn hand_over(&mut self, queue: &Queue) {
        let before = self.bytes;
        self.stuck = false;
        while let Some(batch) = self.batches.pop_front() {
            let bytes = batch.size_bytes();
            if let Err(batch) = queue.offer(batch) {
                self.batches.push_front(batch);
                self.stuck = true;
                break;
            }
            self.bytes -= bytes;
        }
        if !self.stuck {
            self.since = None;
        }
        if self.bytes < before {
            queue.announce();
        }
    }

    /// Whether the queue had no room when it was last asked: then nothing more is read.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// It is not wanted any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod held_tests {
    use super::*;
    use crate::wal::queue::batch;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn large() -> Queue {
        Queue::new(8 << 20)
    }

    /// What the driver finds.
    fn found(queue: &Queue) -> Vec<usize> {
        std::iter::from_fn(|| queue.ready()).map(|batch| batch.size_bytes()).collect()
    }

    #[test]
    fn little_is_kept_back_for_a_moment_and_of_a_backlog_for_longer() {
        let (mut held, now) = (Held::default(), Instant::now());
        assert!(!held.is_ripe(now + 60 * MILLISECOND, false, &large()), "nothing is held");
        held.keep(batch(100), now);
        held.keep(batch(100), now + MILLISECOND / 5);
        assert!(!held.is_ripe(now + MILLISECOND / 5, false, &large()));
        assert!(
            held.is_ripe(now + MILLISECOND / 2, false, &large()),
            "the first has waited long enough"
        );
        assert!(!held.is_ripe(now + 3 * MILLISECOND, true, &large()));
        assert!(held.is_ripe(now + 4 * MILLISECOND, true, &large()));
    }

    #[test]
    fn much_is_not_kept_back() {
        let (mut held, now) = (Held::default(), Instant::now());
        held.keep(batch(64 << 10), now);
        assert!(held.is_ripe(now, false, &large()));
        assert!(!held.is_ripe(now, true, &large()));
        assert!(
            held.is_ripe(now, true, &Queue::new(256 << 10)),
            "a quarter of what may be read ahead"
        );
        held.keep(batch(448 << 10), now);
        assert!(held.is_ripe(now, true, &large()));
    }

    #[test]
    fn what_was_handed_over_leaves_no_age_behind() {
        let (mut held, queue, now) = (Held::default(), Queue::new(1 << 20), Instant::now());
        held.keep(batch(100), now);
        held.hand_over(&queue);
        assert_eq!(found(&queue), [100]);
        held.keep(batch(200), now + 9 * MILLISECOND);
        assert!(!held.is_ripe(now + 9 * MILLISECOND, true, &large()));
        assert!(!held.is_stuck());
    }

    #[test]
    fn a_full_queue_takes_what_it_has_room_for_and_the_rest_follows_in_order() {
        let (mut held, queue, now) = (Held::default(), Queue::new(250), Instant::now());
        for bytes in [100, 101, 102, 103] {
            held.keep(batch(bytes), now);
        }
        held.hand_over(&queue);
        assert!(held.is_stuck(), "nothing more is read");
        assert_eq!(found(&queue), [100, 101]);
        held.hand_over(&queue);
        assert_eq!(found(&queue), [102, 103]);
        assert!(!held.is_stuck());
        held.hand_over(&queue);
        assert!(found(&queue).is_empty());
    }
}
