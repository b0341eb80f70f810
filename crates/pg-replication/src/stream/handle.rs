//! The caller's handle on a running stream.

use super::StartReplication;
use super::queue::{Batch, End, Next, Queue};
use super::session::{Shared, WalSession};
use crate::error::{SourceError, SourceErrorKind};
use crate::handshake::Session;
use crate::lsn::{Lsn, Watermark};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time that [`WalStream::stop`] waits for the thread beyond the thread's own deadline.
const STOP_SLACK: Duration = Duration::from_millis(250);

/// A running stream. Dropping it ends the connection at once, without a last status update.
pub struct WalStream {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    backend_pid: u32,
    doing: String,
}

impl WalStream {
    pub(super) fn spawn(
        session: Session,
        wal_sender_timeout: Duration,
        start: &StartReplication,
    ) -> Result<Self, SourceError> {
        let shared = Arc::new(Shared {
            queue: Queue::new(start.queue_bytes_max),
            confirmed: AtomicU64::new(0),
            received: AtomicU64::new(start.lsn.to_wire()),
            draining: AtomicBool::new(false),
            wake: Notify::new(),
            stop: OnceLock::new(),
            abandoned: Notify::new(),
        });
        let doing = format!("stream from slot \"{}\"", start.slot);
        let system = |error: std::io::Error| {
            SourceError::new(SourceErrorKind::System, doing.as_str()).caused_by(error)
        };
        let (backend_pid, mut wire) = (session.backend_pid, session.wire);
        wire.transport.detach().map_err(system)?;
        let wal = WalSession::new(
            wire.transport,
            wire.inbox,
            Arc::clone(&shared),
            wal_sender_timeout,
            start,
        );
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let ending = EndGuard(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name(format!("wal-{}", start.slot))
            .spawn(move || {
                let end = runtime.block_on(async {
                    tokio::select! {
                        biased;
                        () = ending.0.abandoned.notified() => None,
                        end = Box::pin(wal.run()) => Some(end),
                    }
                });
                if let Some(end) = end {
                    ending.0.queue.end(end);
                }
            })
            .map_err(system)?;
        Ok(Self { shared, thread: Some(thread), backend_pid, doing })
    }

    /// The next frames, in order. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The end of the connection, after all frames before it. Later calls return [`SourceErrorKind::Stopped`]. If the
    /// error [is of a message](SourceError::is_of_a_message), the connection stays open until [`stop`](Self::stop), so
    /// that earlier frames can be confirmed, and a later call waits for the end of the connection.
    ///
    /// # Panics
    /// If the connection's thread panicked.
    pub async fn next(&mut self) -> Result<Batch, SourceError> {
        match self.shared.queue.next().await {
            Next::Batch(batch) => Ok(batch),
            Next::End(End::Error(error) | End::Message(error)) => Err(error),
            Next::End(End::Panicked) => self.pass_on_panic(),
            Next::End(End::Taken) => Err(self.stopped()),
        }
    }

    /// Waits for the end of the connection, without taking the frames before it: for a caller that takes no frames now,
    /// but has to know whether it still owns the slot. A message that can't be read is not the end of the connection;
    /// only [`next`](Self::next) returns that error. Dropping the future loses nothing.
    ///
    /// # Panics
    /// If the connection's thread panicked.
    pub async fn lost(&mut self) -> SourceError {
        match self.shared.queue.ended().await {
            End::Error(error) | End::Message(error) => error,
            End::Panicked => self.pass_on_panic().err().unwrap_or_else(|| self.stopped()),
            End::Taken => self.stopped(),
        }
    }

    /// The next frames, if there are any now.
    pub fn ready(&self) -> Option<Batch> {
        self.shared.queue.ready()
    }

    fn stopped(&self) -> SourceError {
        SourceError::new(SourceErrorKind::Stopped, self.doing.as_str())
    }

    fn pass_on_panic(&mut self) -> Result<Batch, SourceError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(())) | None => Err(self.stopped()),
        }
    }

    /// Confirms that everything below `watermark` is processed. The connection sends the position with its next status
    /// update, within `confirm_interval`, and with the last one at [`stop`](Self::stop).
    ///
    /// # Panics
    /// If `watermark` is lower than an earlier one, or higher than everything received: both would lose changes.
    pub fn confirm(&self, watermark: Watermark) {
        let lsn = watermark.lsn();
        let received = self.received();
        assert!(lsn <= received, "{lsn} is confirmed, only {received} was received");
        let former = self.shared.confirmed.swap(lsn.to_wire(), Ordering::SeqCst);
        assert!(former <= lsn.to_wire(), "the watermark went back to {lsn}");
        if former < lsn.to_wire() {
            self.shared.wake.notify_one();
        }
    }

    /// The highest position received.
    pub fn received(&self) -> Lsn {
        Lsn::from_wire(self.shared.received.load(Ordering::Acquire))
    }

    /// Whether the server is shutting down, as far as is known: it has requested a reply at a position that is not
    /// confirmed.
    pub fn server_is_stopping(&self) -> bool {
        self.shared.draining.load(Ordering::SeqCst)
    }

    /// The walsender's process id (`pg_stat_replication.pid`).
    pub const fn backend_pid(&self) -> u32 {
        self.backend_pid
    }

    /// Ends the stream gracefully: sends the last watermark, and returns `Ok` once the server has read it. Frames that
    /// were received and not taken are discarded.
    ///
    /// # Errors
    /// The connection had ended before, or the end took longer than `deadline`. The server may then have an older
    /// watermark.
    ///
    /// # Panics
    /// If the connection's thread panicked.
    pub async fn stop(mut self, deadline: Duration) -> Result<(), SourceError> {
        let until = Instant::now() + deadline;
        if self.shared.stop.set(until).is_err() {
            return Err(self.stopped());
        }
        self.shared.wake.notify_one();
        let ended = tokio::time::timeout(deadline + STOP_SLACK, async {
            loop {
                match self.shared.queue.next().await {
                    Next::Batch(_) | Next::End(End::Message(_)) => {}
                    Next::End(end) => break end,
                }
            }
        });
        match ended.await {
            Ok(End::Error(error)) if *error.kind() == SourceErrorKind::Stopped => {
                // A graceful end has no cause; an end at the deadline has one.
                if std::error::Error::source(&error).is_none() { Ok(()) } else { Err(error) }
            }
            Ok(End::Error(error) | End::Message(error)) => Err(error),
            Ok(End::Panicked) => self.pass_on_panic().map(drop),
            Ok(End::Taken) => Err(self.stopped()),
            Err(elapsed) => Err(self.stopped().caused_by(elapsed)),
        }
    }

    /// Drops the connection at once. A client that does not read has to do this when the server shuts down, because the
    /// server waits for the client.
    pub fn abandon(self) {
        drop(self);
    }
}

impl Drop for WalStream {
    fn drop(&mut self) {
        self.shared.abandoned.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread ends within microseconds. A panic of the thread is not passed on here.
            drop(thread.join());
        }
    }
}

/// Puts the end into the queue when the thread ends, also if it panics.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        // `end` keeps the first reason, so this one counts only if the thread panicked.
        self.0.queue.end(End::Panicked);
    }
}
