//! The log lines of the last day that have an event, as the page shows them: in memory, in number and size bounded.

use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines that are kept, of all pipelines together: some 700 KiB. An older one is dropped for a new one.
pub const LINES_MAX: usize = 1_000;

/// Bytes of a message and of a hint; the rest is cut off.
pub const TEXT_BYTES_MAX: usize = 300;

/// Lines in one answer, the newest.
pub(super) const ANSWERED_MAX: usize = 200;

/// A line of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LogEvent {
    /// When it was logged. Unit: milliseconds since 1970.
    pub unix_ms: u64,
    /// `INFO`, `WARN` or `ERROR`.
    pub level: &'static str,
    /// The name of the event.
    pub event: String,
    /// The pipeline; `None` if the line is of the process.
    pub pipeline: Option<String>,
    /// The message.
    pub message: String,
    /// What fixes the problem, if there is one.
    pub hint: Option<String>,
}

/// The newest lines, the oldest first.
#[derive(Clone, Default, Debug)]
pub struct LogEvents(Arc<Mutex<VecDeque<LogEvent>>>);

/// Those of the process, because it has one log.
static OF_THE_PROCESS: LazyLock<LogEvents> = LazyLock::new(LogEvents::default);

impl LogEvents {
    /// Those of the process.
    pub fn of_the_process() -> Self {
        OF_THE_PROCESS.clone()
    }

    /// Adds a line that is logged now.
    pub fn add(&self, mut event: LogEvent) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        event.unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        shorten(&mut event.message);
        shorten(&mut event.event);
        for text in [&mut event.hint, &mut event.pipeline].into_iter().flatten() {
            shorten(text);
        }
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= LINES_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// The newest lines about a pipeline and about the process, at most [`ANSWERED_MAX`], the oldest first.
    pub(super) fn of(&self, pipeline: &str, since_unix_ms: u64) -> Vec<LogEvent> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |event: &&LogEvent| {
            event.unix_ms >= since_unix_ms
                && event.pipeline.as_deref().is_none_or(|other| other == pipeline)
        };
        let mut found: Vec<_> =
            events.iter().rev().filter(of).take(ANSWERED_MAX).cloned().collect();
        found.reverse();
        found
    }
}

fn shorten(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pipeline: Option<&str>, message: &str) -> LogEvent {
        LogEvent {
            unix_ms: 0,
            level: "WARN",
            event: "broker_down".to_owned(),
            pipeline: pipeline.map(str::to_owned),
            message: message.to_owned(),
            hint: None,
        }
    }

    #[test]
    fn lines_of_a_pipeline_are_its_own_and_those_of_the_process() {
        let events = LogEvents::default();
        for (pipeline, message) in
            [(Some("a"), "1"), (Some("b"), "2"), (None, "3"), (Some("a"), "4")]
        {
            events.add(line(pipeline, message));
        }
        let of = |pipeline: &str| {
            events.of(pipeline, 0).into_iter().map(|event| event.message).collect::<Vec<_>>()
        };
        assert_eq!(of("a"), ["1", "3", "4"]);
        assert_eq!(of("b"), ["2", "3"]);
        assert!(events.of("a", u64::MAX).is_empty());
    }

    #[test]
    fn lines_are_bounded_in_number_and_size() {
        let events = LogEvents::default();
        for number in 0..LINES_MAX + 5 {
            events.add(line(Some("a"), &number.to_string()));
        }
        assert_eq!(events.0.lock().unwrap().len(), LINES_MAX);
        let found = events.of("a", 0);
        assert_eq!((found.len(), found[0].message.as_str()), (ANSWERED_MAX, "805"));
        events.add(line(Some("a"), &"é".repeat(1000)));
        let message = events.of("a", 0).pop().unwrap().message;
        assert_eq!((message.len(), message.chars().last()), (TEXT_BYTES_MAX + 3, Some('…')));
    }
}
