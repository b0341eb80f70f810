//! The thread that owns the socket: reads, cuts, hands over, and sends status updates by its own timer.
//!
//! It stops reading when the queue is full, so the server waits and memory stays bounded, and goes on sending updates,
//! so the server does not take us for dead. It ends with the reason in the queue.

mod cutting;
mod ending;

use super::StartReplication;
use super::busy::Busy;
use super::feedback::Feedback;
use super::held::Held;
use super::queue::{End, Queue};
use crate::error::{ServerReport, SourceError, SourceErrorKind};
use crate::lsn::Lsn;
use crate::transport::{AT_ONCE_BYTES, Transport};
use bytes::BytesMut;
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

#[cfg(test)]
mod tests;
