//! JSON Lines on a stream: one record a line, acknowledged once the stream has taken it.
//!
//! A thread writes, so a reader that is slow never holds up the caller: lines gather in a bounded buffer while the
//! one before is written, which makes the batches as large as the reader is slow.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postrider_core::record::{Header, Outcome, Record, Ticket};
use postrider_core::sink::{Mailbox, NotTaken, Post, Sink, SinkError};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::borrow::Cow;
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
            .map_err(|error| {
                let message = "could not start the sink's thread";
                SinkError::new(message, "raise the limit of threads (ulimit -u, pids.max)")
                    .caused_by(error)
            })?;
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
        append(record, &mut state.lines);
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

// One record as one line of JSON.
//
// `{"topic":…,"partition":…,"key":…,"headers":[[name,value]…],"timestamp":…,"value":…}`. Bytes that are not UTF-8
// stand in base64, and the line says so: `"encoding":"base64"` for the value, `"key_encoding"` for the key, a third
// member for a header.

const BASE64: &str = "base64";

#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_encoding: Option<&'static str>,
    headers: Headers<'a>,
    timestamp: Option<i64>,
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

/// Pairs in order: names may repeat, so an object would lose some.
struct Headers<'a>(&'a [Header<'a>]);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for header in self.0 {
            match text(header.value) {
                (value, None) => list.serialize_element(&(header.name, value))?,
                (value, Some(encoding)) => {
                    list.serialize_element(&(header.name, value, encoding))?;
                }
            }
        }
        list.end()
    }
}

/// Bytes as text, and how they were made text.
fn text(bytes: Option<&[u8]>) -> (Option<Cow<'_, str>>, Option<&'static str>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => (None, None),
        Some((_, Ok(text))) => (Some(Cow::Borrowed(text)), None),
        Some((bytes, Err(_))) => (Some(Cow::Owned(STANDARD.encode(bytes))), Some(BASE64)),
    }
}

/// Appends the record and a newline.
fn append(record: &Record<'_>, lines: &mut Vec<u8>) {
    let (key, key_encoding) = text(record.key);
    let (value, encoding) = text(record.value);
    let line = Line {
        topic: record.topic,
        partition: record.partition,
        key,
        key_encoding,
        headers: Headers(record.headers),
        timestamp: record.timestamp_ms,
        value,
        encoding,
    };
    // Strings and numbers into memory: serde_json has no error for that.
    let written = serde_json::to_writer(&mut *lines, &line);
    assert!(written.is_ok(), "a record of strings and numbers is always JSON");
    lines.push(b'\n');
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
