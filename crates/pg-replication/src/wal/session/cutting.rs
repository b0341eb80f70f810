//! What was read, cut: batches for the queue, questions for the feedback, and messages that end the stream or say
//! something.
//!
//! Reads no socket and sends nothing. What is cut waits in `held`; what a frame says is for the driver to decode.

use super::WalSession;
use crate::error::{ServerReport, SourceError, SourceErrorKind, SqlState};
use crate::wal::batch::{COPY_DATA, Cut, CutError, cut};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What warns, with the same SQLSTATE as a publication that is skipped, that a standby in `synchronized_standby_slots`
/// is not there: the stream waits for it (`src/backend/replication/slot.c`, 17 and 18).
const WAITS_FOR_STANDBY: &[u8] = b"StandbySlotsHaveCaughtup";

impl WalSession {
    /// Splits complete frames off the input until the queue is full. A message that is not a frame may end the stream,
    /// so it is handled only after all frames before it are queued.
    pub(super) fn cut(&mut self) -> Result<(), SourceError> {
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
