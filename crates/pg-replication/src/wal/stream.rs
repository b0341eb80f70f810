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

/// Time given to the thread beyond its own deadline before it is abandoned.
const STOP_SLACK: Duration = Duration::from_millis(250);

/// A running stream. Dropping it ends the connection at once, without a last status.
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
            nudge: Notify::new(),
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
        let ending = Ending(Arc::clone(&shared));
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
    /// An error is the end of the connection, after everything that came before it; every call after it gives
    /// [`SourceErrorKind::Stopped`]. Where it [is of a message](SourceError::is_of_a_message), the connection stands
    /// until [`stop`](Self::stop), and a call after it waits for its end.
    ///
    /// # Panics
    /// When the connection's thread broke one of its own invariants.
    pub async fn next(&mut self) -> Result<Batch, SourceError> {
        match self.shared.queue.next().await {
            Next::Batch(batch) => Ok(batch),
            Next::End(End::Error(error) | End::Message(error)) => Err(error),
            Next::End(End::Panicked) => self.pass_on_panic(),
            Next::End(End::Taken) => Err(self.stopped()),
        }
    }

    /// The end of the connection, as [`next`](Self::next) gives it, without what came before it: for a caller that
    /// takes no frames now, and whose slot may be another's already. A message that can't be read is no such end: the
    /// connection stands, and [`next`](Self::next) gives it in its turn. Dropping the future loses nothing.
    ///
    /// # Panics
    /// As `next`.
    pub async fn lost(&mut self) -> SourceError {
        match self.shared.queue.ended().await {
            End::Error(error) | End::Message(error) => error,
            End::Panicked => self.pass_on_panic().err().unwrap_or_else(|| self.stopped()),
            End::Taken => self.stopped(),
        }
    }

    /// The next frames, if they are there already.
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

    /// Remembers that everything below `watermark` is resolved. The connection sends it with its next status update,
    /// within `confirm_interval`, and with the last one at [`stop`](Self::stop).
    ///
    /// # Panics
    /// When it is below a former one, or above everything received: either would lose events.
    pub fn confirm(&self, watermark: Watermark) {
        let lsn = watermark.lsn();
        let received = self.received();
        assert!(lsn <= received, "{lsn} is confirmed, only {received} was received");
        let former = self.shared.confirmed.swap(lsn.to_wire(), Ordering::SeqCst);
        assert!(former <= lsn.to_wire(), "the watermark went back to {lsn}");
        if former < lsn.to_wire() {
            self.shared.nudge.notify_one();
        }
    }

    /// The highest position seen in the stream.
    pub fn received(&self) -> Lsn {
        Lsn::from_wire(self.shared.received.load(Ordering::Acquire))
    }

    /// Whether the server has asked for positions that are not confirmed: it is shutting down.
    pub fn server_is_stopping(&self) -> bool {
        self.shared.draining.load(Ordering::SeqCst)
    }

    /// The walsender's process id.
    pub const fn backend_pid(&self) -> u32 {
        self.backend_pid
    }

    /// Ends the stream in good order: the watermark confirmed last is sent, and the server has read it when this gives
    /// `Ok`. What was received and not taken is thrown away.
    ///
    /// `Err` when the connection had ended before, or the end took longer than `deadline`; the server may then have an
    /// older watermark.
    pub async fn stop(mut self, deadline: Duration) -> Result<(), SourceError> {
        let until = Instant::now() + deadline;
        if self.shared.stop.set(until).is_err() {
            return Err(self.stopped());
        }
        self.shared.nudge.notify_one();
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
                // Ours, at the end or at the deadline: the cause tells them apart.
                if std::error::Error::source(&error).is_none() { Ok(()) } else { Err(error) }
            }
            Ok(End::Error(error) | End::Message(error)) => Err(error),
            Ok(End::Panicked) => self.pass_on_panic().map(drop),
            Ok(End::Taken) => Err(self.stopped()),
            Err(elapsed) => Err(self.stopped().caused_by(elapsed)),
        }
    }

    /// Drops the connection at once: for a server that shuts down and can't get through to us, since we do not read.
    pub fn abandon(self) {
        drop(self);
    }
}

impl Drop for WalStream {
    fn drop(&mut self) {
        self.shared.abandoned.notify_one();
        if let Some(thread) = self.thread.take() {
            // It waits for nothing but this, so it is gone in microseconds; a panic in it was its own end.
            drop(thread.join());
        }
    }
}

/// Says that the thread has ended, however it did.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        // `end` keeps the first reason, so this one is used only if the thread panicked.
        self.0.queue.end(End::Panicked);
    }
}
