//! The end of a stream in good order: what is confirmed reaches the slot before the connection goes. That of one with a
//! message that can't be read waits until what came before it is confirmed.

use super::{End, WalSession, clock};
use crate::error::{ServerReport, SourceError, SourceErrorKind};
use crate::wal::batch::{Cut, CutError, cut};
use bytes::Buf;
use std::sync::Arc;
use std::time::Instant;

impl WalSession {
    /// Nothing more can be read, and the connection stands: it is kept, and with it the slot, while what came before is
    /// published and confirmed. Until told to stop.
    pub(in crate::wal) async fn hold(&mut self, error: SourceError) -> Result<(), SourceError> {
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
    pub(in crate::wal) async fn finish(&mut self, deadline: Instant) -> Result<(), SourceError> {
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
