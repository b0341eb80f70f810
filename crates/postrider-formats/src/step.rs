//! One step of a format.

use crate::draft::Draft;
use postrider_core::record::{Record, Refusal};
use std::time::Instant;

/// Changes a record before it is published. The steps of a pipeline are called from one thread, one after another, and
/// never wait: a step that needs an answer of a server requests it on a thread of its own.
pub(crate) trait Step: Send {
    /// Changes `draft`, which is the record as the steps before have left it.
    ///
    /// `since`: the record is a retry. Answers of a server from before that time do not count against the record,
    /// because the operator may have corrected their reason meanwhile.
    ///
    /// # Errors
    /// [`NotReady`]. The draft is not changed then.
    fn apply(
        &mut self,
        record: &Record<'_>,
        draft: &mut Draft,
        since: Option<Instant>,
    ) -> Result<(), NotReady>;

    /// All records in flight are given up. Requests for them may be ended.
    fn reset(&mut self) {}
}

/// Why a step has not changed a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotReady {
    /// The answer of a server is awaited. A [`Post::Retry`](postrider_core::sink::Post::Retry) says when the record can
    /// be offered again. While the server does not answer, the step posts
    /// [`Post::Down`](postrider_core::sink::Post::Down) without a topic again and again, and
    /// [`Post::Up`](postrider_core::sink::Post::Up) after it.
    Waits,
    /// The record can't be published in this format.
    Refused(Refusal),
}

/// The headers that a dead letter has last, in this order: `parking.dead_topic`.
pub(crate) const DEAD_LETTER: [&str; 5] =
    ["dead_code", "dead_error", "dead_attempts", "dead_position", "dead_topic"];

/// Whether it is the copy of a dead event: it goes to another topic as the application wrote it, because it often fits
/// no schema.
pub(crate) fn is_dead_letter(record: &Record<'_>) -> bool {
    let before = record.headers.len().checked_sub(DEAD_LETTER.len());
    let last = before.and_then(|before| record.headers.get(before..));
    last.is_some_and(|last| last.iter().zip(DEAD_LETTER).all(|(header, name)| header.name == name))
}
