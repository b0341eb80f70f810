//! What the relay wants, done in its order: rows written, positions confirmed, tries and letters offered.
//!
//! Decides nothing and waits for nothing; what is under way stands in the session, whose loop sees it end.

use super::{End, RowWritten, Session};
use crate::ack::Progress;
use crate::driver::cut::cut;
use crate::driver::marking::Batch;
use crate::driver::pipeline::Pipeline;
use crate::driver::run::Exit;
use crate::driver::say;
use crate::lsn::Watermark;
use crate::postgres::cursor::{self, Cursor};
use crate::relay::Effect;
use tokio::time::Instant;

impl Pipeline {
    /// Performs the relay's effects, in order.
    pub(super) fn perform(&mut self, session: &mut Session) -> Option<End> {
        let mut effects = std::mem::take(&mut self.effects);
        let mut end = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Publish(_) | Effect::Park { .. } => {}
                Effect::WriteParking { rows, marks } => {
                    self.write_parking(&mut session.connected.desk, rows, marks);
                }
                Effect::Try { ticket, position } => {
                    self.shelf.try_again(ticket, position);
                }
                Effect::Sound { ticket, position } => self.shelf.sound(ticket, position),
                Effect::Letter { ticket, position } => {
                    self.shelf.send_letter(ticket, position);
                }
                Effect::Overtaken { position, by } => say::overtaken(self, position, by),
                Effect::Undelivered { position, reason } => {
                    say::undelivered(self, position, reason);
                }
                Effect::Released { position } => self.released(position),
                Effect::Published { ticket, commit_time } => self.published(ticket, commit_time),
                Effect::WriteCursor(row) => {
                    cut("cursor_due");
                    let marks = self.marking.take(Some(&row));
                    session.write(row, marks);
                }
                Effect::Confirm(watermark) => self.confirmed = watermark,
                Effect::Restart { why } => {
                    self.reset_sink(why);
                    end = Some(End::Restart);
                }
                Effect::Drained => end = Some(End::Over(Exit::Stopped)),
                Effect::Halt(halt) => end = Some(End::Over(Exit::Halted(halt))),
            }
        }
        self.effects = effects;
        self.observe_latency();
        session.tell(self.confirmed);
        self.fetch_for_tries(&mut session.connected.desk);
        end
    }
}

impl Session {
    /// Passes the confirmation on. After a reconnect the stream repeats what we know, and nothing may be confirmed on
    /// it that it has not sent.
    fn tell(&self, watermark: Watermark) {
        if watermark.lsn() <= self.connected.wal.received() {
            self.connected.wal.confirm(watermark);
        }
    }

    /// Makes the marks that come before the row, then writes it; not where it would pass an event whose mark has to
    /// wait.
    fn write(&mut self, row: Progress, marks: Option<Batch>) {
        assert!(self.writing.is_none(), "two cursor rows at once");
        let resume = &self.connected.resume;
        let cursor = Cursor {
            watermark: row.watermark,
            flush_limit: row.watermark.lsn(),
            partial: row.partial,
            owner_epoch: self.connected.desk.epoch,
            ..resume.cursor.clone()
        };
        let client = self.connected.desk.control.shared_client();
        let ledger = self.looks.ledger();
        self.writing_since = Instant::now();
        self.writing = Some(Box::pin(async move {
            let mut made = None;
            if let Some(batch) = marks {
                let done = batch.make(&client).await?;
                let held = batch.holds_back(&done, row.position());
                made = Some(done);
                if held {
                    return Ok(RowWritten { made, row: None });
                }
            }
            let row = Some(cursor::write(&client, &cursor, &ledger).await?);
            Ok(RowWritten { made, row })
        }));
    }
}
