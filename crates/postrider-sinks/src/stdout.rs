//! JSON Lines on a stream: one record a line, acknowledged once the stream has taken it.
//!
//! A thread writes, so a reader that is slow never holds up the caller: lines gather in a bounded buffer while the
//! one before is written, which makes the batches as large as the reader is slow.

mod line;

use super::{Mailbox, NotTaken, Post, Sink, SinkError};
use postrider_core::record::{Outcome, Record, Ticket};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of lines that wait to be written; one line more may pass it.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// The sink's end of the buffer.
pub(super) struct Lines {
    shared: Arc<Shared>,
}

struct Shared {
    mailbox: Mailbox,
    state: Mutex<State>,
    /// Something to write, or to stop.
    work: Condvar,
    /// Everything is written.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Whole lines, and the tickets that are in them.
    lines: Vec<u8>,
    tickets: Vec<Ticket>,
    /// A record was refused as the buffer was full.
    full: bool,
    writing: bool,
    /// The stream is gone, or we are closed: nothing more is taken.
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the stream or the sink ends.
    fn write_all(&self, mut stream: impl Write) {
        let mut lines = Vec::new();
        let mut tickets = Vec::new();
        loop {
            {
                let mut state = self
                    .work
                    .wait_while(self.state(), |state| state.tickets.is_empty() && !state.ended)
                    .unwrap_or_else(PoisonError::into_inner);
                if state.tickets.is_empty() {
                    return;
                }
                std::mem::swap(&mut state.lines, &mut lines);
                std::mem::swap(&mut state.tickets, &mut tickets);
                state.writing = true;
                if std::mem::take(&mut state.full) {
                    self.mailbox.post(Post::Retry);
                }
            }
            let result = stream.write_all(&lines).and_then(|()| stream.flush());
            match &result {
                Ok(()) => self.mailbox.report_all(&tickets, Outcome::Acked),
                Err(error) => self.mailbox.post(Post::Unfit {
                    reason: format!("could not write to standard output: {error}"),
                    hint: "start it again with a reader that stays".to_owned(),
                }),
            }
            lines.clear();
            tickets.clear();
            let mut state = self.state();
            state.writing = false;
            state.ended |= result.is_err();
            self.done.notify_all();
            if result.is_err() {
                return;
            }
        }
    }
}

impl Lines {
    /// Starts the thread that writes to `stream`.
    pub(super) fn open(
        stream: impl Write + Send + 'static,
        mailbox: Mailbox,
    ) -> Result<Self, SinkError> {
        let shared = Arc::new(Shared {
            mailbox,
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let writer = Arc::clone(&shared);
        // Not joined: a write to a reader that has stopped reading never returns.
        std::thread::Builder::new()
            .name("stdout-writer".to_owned())
            .spawn(move || writer.write_all(stream))
            .map_err(SinkError::Thread)?;
        Ok(Self { shared })
    }
}

impl Sink for Lines {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        let mut state = self.shared.state();
        if state.ended {
            return Err(NotTaken::Full);
        }
        if state.lines.len() >= BUFFER_BYTES_MAX {
            state.full = true;
            return Err(NotTaken::Full);
        }
        line::append(record, &mut state.lines);
        state.tickets.push(ticket);
        let wake = state.tickets.len() == 1 && !state.writing;
        drop(state);
        if wake {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    fn reset(&mut self) {
        let mut state = self.shared.state();
        state.lines.clear();
        state.tickets.clear();
        state.full = false;
    }

    fn close(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut state = self.shared.state();
        while (state.writing || !state.tickets.is_empty()) && !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .shared
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.lines.clear();
        state.tickets.clear();
        state.ended = true;
        self.shared.work.notify_all();
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests;
