//! The thread that owns the socket: it reads, splits the input into frames, hands batches over, and sends status
//! updates by its own timer.
//!
//! While the queue is full the thread does not read, so that memory stays bounded and the server waits; it continues to
//! send status updates, so that the server does not end the connection. At its end it puts the reason into the queue.

#[cfg(test)]
mod tests;

use super::StartReplication;
use super::feedback::Feedback;
use super::queue::{Batch, COPY_DATA, End, Queue, Split, SplitError, split_frames};
use crate::error::{ServerReport, SourceError, SourceErrorKind, SqlState};
use crate::lsn::Lsn;
use crate::transport::{DIRECT_READ_BYTES_MAX, Transport};
use bytes::{Buf, BytesMut};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// Room reserved when the read buffer is nearly used up. Unit: bytes.
const READ_BYTES: usize = 256 << 10;

/// With less room than this, a new buffer is allocated. Unit: bytes.
const READ_BYTES_MIN: usize = 64 << 10;

/// Longest wait until a status update is sent: the socket's buffer is full only if the server has stopped reading.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The ROUTINE of a warning that has the SQLSTATE of a skipped publication, but another meaning: a standby of
/// `synchronized_standby_slots` is not connected, and the stream waits for it (`src/backend/replication/slot.c`, 17 and
/// 18).
const WAITS_FOR_STANDBY: &[u8] = b"StandbySlotsHaveCaughtup";

/// Direct reads between two yields to the runtime, which notices that the handle was dropped. About 4 to 64 ms.
const DIRECT_READS_PER_YIELD: u32 = 32;

/// What the handle and the thread share.
pub(super) struct Shared {
    pub(super) queue: Queue,
    /// The highest confirmed position. Written by the handle.
    pub(super) confirmed: AtomicU64,
    /// The highest position received. Written by the thread before it offers the batch.
    pub(super) received: AtomicU64,
    /// The server is shutting down and waits for the watermark.
    pub(super) draining: AtomicBool,
    /// Wakes the thread for a new watermark or a stop.
    pub(super) wake: Notify,
    /// The deadline of a graceful stop, once one is requested.
    pub(super) stop: std::sync::OnceLock<Instant>,
    /// Ends the thread at once.
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
    pending: PendingBatches,
    /// Bytes that are missing of the incomplete message at the end of `inbox`, as far as is known.
    missing: usize,
    load: LoadMeter,
    /// Number of direct reads.
    direct_reads: u32,
    /// Time of the last read that returned bytes.
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
            pending: PendingBatches::default(),
            missing: 0,
            load: LoadMeter::new(now),
            direct_reads: 0,
            read_at: now,
        }
    }

    /// Streams until the connection ends or a stop is requested.
    pub(super) async fn run(mut self) -> End {
        let ended = match self.stream().await {
            Ok(deadline) => self.finish(deadline).await,
            Err(error) => {
                // The batches before the error come first.
                self.hand_over();
                if error.is_of_a_message() { self.wait_for_stop(error).await } else { Err(error) }
            }
        };
        End::Error(ended.err().unwrap_or_else(|| self.error(SourceErrorKind::Stopped)))
    }

    /// Streams until a stop is requested, and returns its deadline.
    async fn stream(&mut self) -> Result<Instant, SourceError> {
        let shared = Arc::clone(&self.shared);
        loop {
            self.split_input()?;
            if self.pending.is_due(
                self.read_at + self.load.pause_length(),
                self.load.is_backlog(),
                &shared.queue,
            ) {
                self.hand_over();
            }
            self.send_status().await?;
            if let Some(deadline) = shared.stop.get() {
                return Ok(*deadline);
            }
            if !self.pending.is_blocked() {
                self.make_room();
                if self.load.pause(Instant::now()) {
                    self.read_off_runtime().await?;
                    continue;
                }
                self.hand_over();
            }
            let reading = !self.pending.is_blocked();
            self.attach()?;
            let room = self.inbox.capacity() - self.inbox.len();
            let wake_at = tokio::time::Instant::from_std(self.feedback.wake_at(self.confirmed()));
            tokio::select! {
                biased;
                () = shared.wake.notified() => {}
                read = self.transport.read_buf(&mut self.inbox), if reading => {
                    let count = read.map_err(|e| SourceError::io(self.doing.as_str(), e))?;
                    if count == 0 {
                        return Err(self.error(self.end_of_file()));
                    }
                    let now = Instant::now();
                    self.feedback.note_read(now);
                    self.read_at = now;
                    self.load.read(now, count, count == room);
                }
                () = shared.queue.room(), if !reading => {}
                () = tokio::time::sleep_until(wake_at) => {}
            }
            let now = Instant::now();
            if !reading {
                // The client did not read, so nothing is known about the server's silence.
                self.feedback.note_read(now);
            } else if let Some(kind) = self.feedback.silence(now) {
                return Err(self.error(kind));
            }
        }
    }

    /// Under load, reads the socket directly, while it is not registered with the runtime: with a registered socket
    /// each message that the walsender sends also wakes the poller, which costs the server CPU time.
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
                self.feedback.note_read(now);
                self.read_at = now;
                self.load.read(now, count, count >= DIRECT_READ_BYTES_MAX);
            }
            Poll::Ready(Err(error)) => return Err(SourceError::io(self.doing.as_str(), error)),
        }
        self.direct_reads = self.direct_reads.wrapping_add(1);
        if self.direct_reads.is_multiple_of(DIRECT_READS_PER_YIELD) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn hand_over(&mut self) {
        self.pending.hand_over(&self.shared.queue);
    }

    /// Hands over, and returns whether the queue had room for all pending batches.
    fn try_hand_over_all(&mut self) -> bool {
        self.hand_over();
        !self.pending.is_blocked()
    }

    /// Registers the socket with the runtime, if it is not registered.
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

    /// Reserves room for the rest of the incomplete message, or for one large read.
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
        // The write may wait for a server that does not read; the consumer gets its batches before.
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

    /// Splits complete frames off the input until the queue is full. A message that is not a frame may end the stream,
    /// so it is handled only after all frames before it are queued.
    fn split_input(&mut self) -> Result<(), SourceError> {
        if self.pending.is_blocked() {
            self.hand_over();
        }
        while !self.pending.is_blocked() {
            if self.inbox.first().is_some_and(|tag| *tag != COPY_DATA) && !self.try_hand_over_all()
            {
                return Ok(());
            }
            match split_frames(&mut self.inbox, self.message_bytes_max) {
                Ok(Split::Frames(batch, seen)) => {
                    let received = self.received().max(seen.highest);
                    self.shared.received.store(received.to_wire(), Ordering::Release);
                    if let Some(wal_end) = seen.ping {
                        let confirmed = self.confirmed();
                        self.feedback.reply_requested(Instant::now(), wal_end, confirmed);
                        self.shared.draining.store(self.feedback.draining(), Ordering::SeqCst);
                    }
                    self.pending.push(batch, self.read_at);
                }
                Ok(Split::Other(tag, body)) => self.other(tag, &body)?,
                Ok(Split::Missing(missing)) => {
                    self.missing = missing;
                    return Ok(());
                }
                // The error comes after the frames before it. The buffer is unchanged, so the same error is found again
                // once the queue has room.
                Err(_) if !self.try_hand_over_all() => return Ok(()),
                Err(SplitError::Malformed) => return Err(self.error(SourceErrorKind::Protocol)),
                Err(SplitError::TooLarge(size)) => {
                    let limit = self.message_bytes_max as u64;
                    let kind = SourceErrorKind::TooLarge { size: size as u64, limit };
                    return Err(self.error(kind));
                }
            }
        }
        Ok(())
    }

    /// Handles a message that is not `CopyData`.
    fn other(&self, tag: u8, body: &[u8]) -> Result<(), SourceError> {
        match tag {
            b'E' => Err(self.server(ServerReport::from_fields(body))),
            b'N' => {
                let notice = ServerReport::from_fields(body);
                // "skipped loading publication" (PostgreSQL 18): the server would omit the publication's rows silently.
                let skipped = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
                let waits = ServerReport::routine(body) == Some(WAITS_FOR_STANDBY);
                if notice.is_warning() && notice.sqlstate == skipped && !waits {
                    return Err(self.server(notice));
                }
                tracing::debug!(sqlstate = %notice.sqlstate, "notice in the stream");
                Ok(())
            }
            // A setting changed with a reload. The settings that matter here are fixed for the session.
            b'S' => Ok(()),
            // The server ends the stream only when it shuts down.
            b'c' | b'C' => Err(self.error(SourceErrorKind::ServerStopping)),
            _ => Err(self.error(SourceErrorKind::Protocol)),
        }
    }

    /// Keeps the connection, and with it the slot, after a message that can't be read, so that everything before it can
    /// be confirmed. Returns when a stop is requested and done.
    pub(super) async fn wait_for_stop(&mut self, error: SourceError) -> Result<(), SourceError> {
        let shared = Arc::clone(&self.shared);
        shared.queue.end(End::Message(error));
        loop {
            self.send_status().await?;
            if let Some(deadline) = shared.stop.get() {
                return self.finish(*deadline).await;
            }
            let wake_at = tokio::time::Instant::from_std(self.feedback.wake_at(self.confirmed()));
            tokio::select! {
                () = shared.wake.notified() => {}
                () = tokio::time::sleep_until(wake_at) => {}
            }
            // The client does not read here, so nothing is known about the server's silence.
            self.feedback.note_read(Instant::now());
        }
    }

    /// The graceful close: sends the last status update and `CopyDone`, reads up to the server's end of the command,
    /// and sends Terminate. The confirmed position has reached the slot when this returns `Ok`.
    pub(super) async fn finish(&mut self, deadline: Instant) -> Result<(), SourceError> {
        let (confirmed, received) = (self.confirmed(), self.received());
        let last = self.feedback.last(Instant::now(), confirmed, received);
        self.pending.clear();
        let deadline = tokio::time::Instant::from_std(deadline);
        let ending = async {
            self.write(&last.encode(clock())).await?;
            self.write(b"c\0\0\0\x04").await?;
            self.drain().await?;
            // The command has ended, so the server has read the status update. Nothing is lost if Terminate is.
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

    /// Reads and discards messages up to `CommandComplete`.
    async fn drain(&mut self) -> Result<(), SourceError> {
        loop {
            match split_frames(&mut self.inbox, self.message_bytes_max) {
                Ok(Split::Other(b'C' | b'Z', _)) => return Ok(()),
                Ok(Split::Other(b'E', body)) => {
                    return Err(self.server(ServerReport::from_fields(&body)));
                }
                Ok(Split::Frames(..) | Split::Other(..)) => {}
                Ok(Split::Missing(missing)) => {
                    self.missing = missing;
                    self.read_more().await?;
                }
                // The message is discarded, so it need not fit into memory.
                Err(SplitError::TooLarge(mut left)) => {
                    self.missing = 0;
                    while left > 0 {
                        let skipped = left.min(self.inbox.len());
                        self.inbox.advance(skipped);
                        left -= skipped;
                        if left > 0 {
                            self.read_more().await?;
                        }
                    }
                }
                Err(SplitError::Malformed) => return Err(self.error(SourceErrorKind::Protocol)),
            }
        }
    }
}

/// The system's time in microseconds since 2000-01-01, the server's epoch.
fn clock() -> i64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
    micros.saturating_sub(crate::timestamp::PgTime::UNIX_OFFSET_MICROS)
}

/// Above this rate the thread pauses before it reads, so that data accumulates.
const BUSY_BYTES_PER_SECOND: u64 = 2_000_000;

/// Above this rate the stream is a backlog, for which latency does not matter: about 25,000 rows a second.
const BACKLOG_BYTES_PER_SECOND: u64 = 12_000_000;

/// The rate is measured over at least this time.
const BUSY_WINDOW: Duration = Duration::from_millis(2);

/// A rate that was measured longer ago is not used.
const FRESH: Duration = Duration::from_millis(12);

/// A pause that took this much longer than requested: the processors are busy, and the socket's buffer was full long
/// before the thread woke. The buffer holds about half a millisecond of a walsender at full speed. On two processors
/// that three threads share, one or two milliseconds more than requested are normal.
const OVERSLEPT: Duration = Duration::from_millis(3);

/// Time without pauses after such a pause.
const PAUSE_SUSPENSION: Duration = Duration::from_millis(100);

/// Data that accumulates during a pause. With 7,500 bytes, transactions of one row, whose messages are small, cost a
/// tenth more processor time a row at the same rate (measured, eight rounds of each in turn, decoded and discarded: 3.2
/// and 2.8 µs); with 30,000 bytes a drain took a tenth longer. Unit: bytes.
const COALESCE_BYTES: u64 = 15_000;

/// Shortest and longest pause. The kernel makes about twice as much of the shortest; the longest is the latency that a
/// pause adds to a row.
const PAUSE_MIN: Duration = Duration::from_micros(90);
const PAUSE_MAX: Duration = Duration::from_micros(500);

/// Measures the rate of the stream, and decides how long data accumulates before it is read.
///
/// The walsender does one `send` for each message, and a reader that wakes for each of them makes it pay for the
/// wake-up. So above [`BUSY_BYTES_PER_SECOND`] the thread sleeps before it reads, as long as [`COALESCE_BYTES`] take to
/// arrive, and then finds many messages at once. Meanwhile the socket is not registered with the runtime: a registered
/// socket costs the walsender a call for each message, although no task waits for it. A million rows drained over a
/// unix socket and discarded (measured, 2 processors; rows a second beside `pg_recvlogical` in the same run, processor
/// time of this process a row): pauses of 30 µs 0.98, 1.40 µs; 80 µs 1.02, 1.29 µs; 120 µs 1.01, 1.15 µs; 200 µs 0.96,
/// 1.21 µs. On a faster machine 30 µs 1.03, 1.26 µs; 90 µs 1.03, 1.15 µs; 120 µs 1.00, 1.12 µs; 200 µs 0.76: with
/// longer pauses the walsender finds the socket's buffer full, which holds about 160 such rows. The pause is a thread's
/// sleep and not a timer of the runtime, because the runtime would still wake for each packet.
///
/// Below full speed the pause is longer. It has the effect that lingering in a producer would have, but only under load
/// (`docs/decisions/batching.md` of the repository has the measurements).
///
/// On a machine whose processors are busy a pause becomes milliseconds, the socket's small buffer is full long before,
/// and the walsender waits: there the same pauses halve the rate (measured at a load of 15 on 2 processors). So after a
/// pause that took too long ([`OVERSLEPT`]) there is none for [`PAUSE_SUSPENSION`].
pub(super) struct LoadMeter {
    since: Instant,
    bytes: u64,
    /// Length of the pause; `None` below the busy rate.
    pause: Option<Duration>,
    /// The rate is that of a backlog.
    backlog: bool,
    /// No pause before this time: the last one took far longer than requested.
    no_pause_before: Instant,
    /// The last read filled the buffer: the socket has more data.
    more: bool,
}

impl LoadMeter {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            since: now,
            bytes: 0,
            pause: None,
            backlog: false,
            no_pause_before: now,
            more: false,
        }
    }

    /// Counts a read of `count` bytes; `more` if it filled the buffer.
    pub(super) fn read(&mut self, now: Instant, count: usize, more: bool) {
        self.bytes += count as u64;
        self.more = more;
        let elapsed = now.duration_since(self.since);
        if elapsed >= BUSY_WINDOW {
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
            let rate = self.bytes.saturating_mul(1_000_000) / micros;
            self.pause = (rate > BUSY_BYTES_PER_SECOND).then(|| {
                let filled = Duration::from_micros(COALESCE_BYTES * 1_000_000 / rate);
                filled.clamp(PAUSE_MIN, PAUSE_MAX)
            });
            self.backlog = rate > BACKLOG_BYTES_PER_SECOND;
            self.bytes = 0;
            self.since = now;
        }
    }

    /// Whether the rate is that of a backlog.
    pub(super) const fn is_backlog(&self) -> bool {
        self.backlog
    }

    /// Length of a pause at the current rate. The next turn may have none.
    pub(super) fn pause_length(&self) -> Duration {
        self.pause.unwrap_or_default()
    }

    /// Whether the stream is busy. If so, pauses before it returns, unless the socket has data already.
    pub(super) fn pause(&mut self, now: Instant) -> bool {
        // The first read after an idle time must not wait.
        let fresh = now.duration_since(self.since) < FRESH;
        let Some(pause) = self.pause.filter(|_| fresh && now >= self.no_pause_before) else {
            return false;
        };
        if !self.more {
            std::thread::sleep(pause);
            let slept = now.elapsed();
            if slept > pause + OVERSLEPT {
                self.no_pause_before = now + slept + PAUSE_SUSPENSION;
            }
        }
        true
    }
}

/// Pending batches are handed over at this age, or at this size.
const AGE: Duration = Duration::from_micros(400);
const BYTES: usize = 64 << 10;

/// The same for a backlog. The size is what a walsender sends in that time (about 100 MB a second).
const BACKLOG_AGE: Duration = Duration::from_millis(4);
const BACKLOG_BYTES: usize = 512 << 10;

/// Batches that were read and not yet handed over, in order.
///
/// Waking the consumer costs as much as several rows, and so does each of its turns; a request that the consumer sends
/// for what it got may cost as much as dozens of rows. So under load small batches are collected for a moment, and in a
/// backlog, whose rows are late by seconds, for milliseconds.
#[derive(Default)]
pub(super) struct PendingBatches {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// When the first batch was read.
    since: Option<Instant>,
    /// The queue had no room for the first batch.
    blocked: bool,
}

impl PendingBatches {
    /// Adds a batch that was read at `read_at`.
    pub(super) fn push(&mut self, batch: Batch, read_at: Instant) {
        self.bytes += batch.size_bytes();
        self.since.get_or_insert(read_at);
        self.batches.push_back(batch);
    }

    /// Whether to hand over now, if nothing more is read before `next`.
    pub(super) fn is_due(&self, next: Instant, backlog: bool, queue: &Queue) -> bool {
        let (age, bytes) = if backlog { (BACKLOG_AGE, BACKLOG_BYTES) } else { (AGE, BYTES) };
        // With a small queue, not much more is read ahead than the queue may hold.
        self.bytes >= bytes.min(queue.bytes_max() / 4)
            || self.since.is_some_and(|since| next.duration_since(since) >= age)
    }

    /// Hands over as many batches as the queue has room for, and wakes the consumer.
    pub(super) fn hand_over(&mut self, queue: &Queue) {
        let before = self.bytes;
        self.blocked = false;
        while let Some(batch) = self.batches.pop_front() {
            let bytes = batch.size_bytes();
            if let Err(batch) = queue.offer(batch) {
                self.batches.push_front(batch);
                self.blocked = true;
                break;
            }
            self.bytes -= bytes;
        }
        if !self.blocked {
            self.since = None;
        }
        if self.bytes < before {
            queue.announce();
        }
    }

    /// Whether the queue had no room at the last hand-over: then nothing more is read.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Discards all batches.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod pending_tests {
    use super::*;
    use crate::stream::queue::batch;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn large() -> Queue {
        Queue::new(8 << 20)
    }

    /// Sizes of the batches in the queue.
    fn found(queue: &Queue) -> Vec<usize> {
        std::iter::from_fn(|| queue.ready()).map(|batch| batch.size_bytes()).collect()
    }

    #[test]
    fn small_batches_are_collected_for_a_moment_and_in_a_backlog_for_longer() {
        let (mut pending, now) = (PendingBatches::default(), Instant::now());
        assert!(!pending.is_due(now + 60 * MILLISECOND, false, &large()), "nothing is pending");
        pending.push(batch(100), now);
        pending.push(batch(100), now + MILLISECOND / 5);
        assert!(!pending.is_due(now + MILLISECOND / 5, false, &large()));
        assert!(
            pending.is_due(now + MILLISECOND / 2, false, &large()),
            "the first has waited long enough"
        );
        assert!(!pending.is_due(now + 3 * MILLISECOND, true, &large()));
        assert!(pending.is_due(now + 4 * MILLISECOND, true, &large()));
    }

    #[test]
    fn large_batches_are_handed_over_at_once() {
        let (mut pending, now) = (PendingBatches::default(), Instant::now());
        pending.push(batch(64 << 10), now);
        assert!(pending.is_due(now, false, &large()));
        assert!(!pending.is_due(now, true, &large()));
        assert!(
            pending.is_due(now, true, &Queue::new(256 << 10)),
            "a quarter of what may be read ahead"
        );
        pending.push(batch(448 << 10), now);
        assert!(pending.is_due(now, true, &large()));
    }

    #[test]
    fn the_age_starts_with_the_first_batch_after_a_hand_over() {
        let (mut pending, queue, now) =
            (PendingBatches::default(), Queue::new(1 << 20), Instant::now());
        pending.push(batch(100), now);
        pending.hand_over(&queue);
        assert_eq!(found(&queue), [100]);
        pending.push(batch(200), now + 9 * MILLISECOND);
        assert!(!pending.is_due(now + 9 * MILLISECOND, true, &large()));
        assert!(!pending.is_blocked());
    }

    #[test]
    fn a_full_queue_takes_what_it_has_room_for_and_the_rest_follows_in_order() {
        let (mut pending, queue, now) =
            (PendingBatches::default(), Queue::new(250), Instant::now());
        for bytes in [100, 101, 102, 103] {
            pending.push(batch(bytes), now);
        }
        pending.hand_over(&queue);
        assert!(pending.is_blocked(), "nothing more is read");
        assert_eq!(found(&queue), [100, 101]);
        pending.hand_over(&queue);
        assert_eq!(found(&queue), [102, 103]);
        assert!(!pending.is_blocked());
        pending.hand_over(&queue);
        assert!(found(&queue).is_empty());
    }
}
