//! What the step and the thread that asks the registry share: which subjects are wanted, and what was answered.

use super::encoder::SubjectSchema;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Subjects that are known at a time. Beyond it all are asked for again.
const SUBJECTS_MAX: usize = 2_000;

/// An answer about a subject.
#[derive(Clone, Debug)]
pub(super) struct SubjectAnswer {
    /// When the request was sent: what was changed in the registry before is in the answer.
    pub(super) at: Instant,
    /// The schema, or why events of the subject are refused.
    pub(super) schema: Result<Arc<SubjectSchema>, &'static str>,
}

/// What became of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Answered {
    /// A record waited for it.
    pub(super) is_awaited: bool,
    /// The schema that is known is kept, and the answer has this in its place.
    pub(super) kept: Option<&'static str>,
}

/// The shared state.
#[derive(Default)]
pub(super) struct SubjectCache {
    state: Mutex<CacheState>,
    work: Notify,
}

#[derive(Default)]
struct CacheState {
    subjects: HashMap<Box<str>, SubjectEntry>,
    /// Subjects to ask for, each once.
    wanted: VecDeque<Box<str>>,
    is_closed: bool,
}

#[derive(Default)]
struct SubjectEntry {
    answer: Option<SubjectAnswer>,
    /// It is wanted, or a request for it is in flight.
    is_asked: bool,
    /// A record waits for the answer.
    is_awaited: bool,
}

impl SubjectCache {
    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The step.

    /// What is known of a subject.
    pub(super) fn known(&self, subject: &str) -> Option<SubjectAnswer> {
        self.state().subjects.get(subject)?.answer.clone()
    }

    /// Asks for a subject, unless it is asked for. `awaited`: a record waits for the answer.
    pub(super) fn want(&self, subject: &str, awaited: bool) {
        let mut state = self.state();
        if state.subjects.len() >= SUBJECTS_MAX && !state.subjects.contains_key(subject) {
            state.subjects.retain(|_, entry| entry.is_asked);
        }
        let entry = state.subjects.entry(subject.into()).or_default();
        entry.is_awaited |= awaited;
        if !std::mem::replace(&mut entry.is_asked, true) {
            state.wanted.push_back(subject.into());
        }
        drop(state);
        self.work.notify_one();
    }

    /// No record waits any more.
    pub(super) fn reset(&self) {
        for entry in self.state().subjects.values_mut() {
            entry.is_awaited = false;
        }
        self.work.notify_one();
    }

    /// The thread has to end.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.work.notify_one();
    }

    // The thread.

    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Whether a record waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.state().subjects.values().any(|entry| entry.is_awaited)
    }

    /// Waits until there may be something to do.
    pub(super) async fn worked(&self) {
        self.work.notified().await;
    }

    /// The next subject to ask for, and the schema that is known of it.
    pub(super) fn next(&self) -> Option<(Box<str>, Option<Arc<SubjectSchema>>)> {
        let mut state = self.state();
        let subject = state.wanted.pop_front()?;
        let entry = state.subjects.get(&subject);
        let known = entry.and_then(|entry| entry.answer.as_ref()?.schema.clone().ok());
        Some((subject, known))
    }

    /// The request has failed, and is repeated behind the others.
    pub(super) fn again(&self, subject: Box<str>) {
        self.state().wanted.push_back(subject);
    }

    /// The answer about a subject. A schema that is known still encodes what fits it, whatever has become of the
    /// subject since: it is kept if the answer has none.
    pub(super) fn answered(&self, subject: &str, answer: SubjectAnswer) -> Answered {
        let mut state = self.state();
        let Some(entry) = state.subjects.get_mut(subject) else { return Answered::default() };
        let known = entry.answer.take().and_then(|before| before.schema.ok());
        let kept = answer.schema.as_ref().err().copied().filter(|_| known.is_some());
        let schema = answer.schema.or_else(|words| known.ok_or(words));
        entry.answer = Some(SubjectAnswer { at: answer.at, schema });
        entry.is_asked = false;
        Answered { is_awaited: std::mem::take(&mut entry.is_awaited), kept }
    }
}
