//! The step that gives each record the id of its schema, and encodes it.

use super::encoder::{Encoding, SubjectSchema};
use super::framing::IdPlace;
use super::misfit::Misfit;
use super::subject::{SubjectRule, header_text};
use super::subject_cache::{SubjectAnswer, SubjectCache};
use crate::draft::Draft;
use crate::step::{NotReady, Step, is_dead_letter};
use crate::words;
use postrider_core::record::{Record, Refusal};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where an event does not fit, the registry is asked for a newer schema, at most so often for each subject. A subject
/// that the registry has refused is asked for again as often.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// What is refused if the words of a misfit can't be kept.
const GENERAL: &str = "the payload does not fit its schema";

/// What a step is made with.
#[derive(Clone, Debug)]
pub(super) struct SchemaStepSettings {
    pub(super) rule: SubjectRule,
    pub(super) place: IdPlace,
    pub(super) encoding: Encoding,
    /// How long the latest version of a subject is used before it is asked for again.
    pub(super) refresh: Duration,
    /// The subjects whose schema is a file, which does not change while the process runs.
    pub(super) pinned: Vec<String>,
}

/// The step.
pub(super) struct SchemaStep {
    settings: SchemaStepSettings,
    cache: Arc<SubjectCache>,
    header: Option<Arc<str>>,
    /// Used again for each record.
    subject: String,
    encoded: Vec<u8>,
    frame: Vec<u8>,
}

impl SchemaStep {
    pub(super) fn new(settings: SchemaStepSettings, cache: Arc<SubjectCache>) -> Self {
        let header = settings.place.header().map(Arc::from);
        let (subject, encoded, frame) = (String::new(), Vec::new(), Vec::new());
        Self { settings, cache, header, subject, encoded, frame }
    }

    /// Asks for the subject; the record waits.
    fn wait(&self) -> NotReady {
        self.cache.want(&self.subject, true);
        NotReady::Waits
    }

    /// The answer about the subject that counts for this record.
    fn answer(&self, since: Option<Instant>, now: Instant) -> Result<SubjectAnswer, NotReady> {
        let Some(answer) = self.cache.known(&self.subject) else { return Err(self.wait()) };
        let age = now.saturating_duration_since(answer.at);
        let is_before = since.is_some_and(|since| answer.at < since);
        if answer.schema.is_err() && (is_before || age >= ASKED_AGAIN) {
            return Err(self.wait());
        }
        if answer.schema.is_ok() && age >= self.settings.refresh && !self.is_pinned() {
            // The schema that is known is as valid as a newer one: no record waits for that.
            self.cache.want(&self.subject, false);
        }
        Ok(answer)
    }

    fn is_pinned(&self) -> bool {
        self.settings.pinned.contains(&self.subject)
    }

    /// The payload does not fit the schema. A newer schema may be there.
    fn misfit(
        &self,
        misfit: &Misfit,
        answered_at: Instant,
        since: Option<Instant>,
        now: Instant,
    ) -> NotReady {
        let is_before = since.is_some_and(|since| answered_at < since);
        let is_old = now.saturating_duration_since(answered_at) >= ASKED_AGAIN;
        if !self.is_pinned() && (is_before || is_old) {
            return self.wait();
        }
        NotReady::Refused(Refusal::content(words::keep(&misfit.to_string(), GENERAL)))
    }

    /// Writes the record's new parts into the draft.
    fn write(
        &mut self,
        schema: &SubjectSchema,
        message: Option<&[u32]>,
        record: &Record<'_>,
        draft: &mut Draft,
    ) {
        self.frame.clear();
        schema.registered.id.write(self.settings.place, message, &mut self.frame);
        let changed = self.settings.encoding.changes().then_some(&self.encoded[..]);
        if let Some(header) = &self.header {
            // Of two headers some readers take the first one, and others the last one.
            let own = record.headers.iter().position(|known| known.name == &**header);
            match own {
                Some(index) => draft.replace_header(index, &self.frame),
                None => draft.add_header(header, &self.frame),
            }
        }
        if self.header.is_some() && changed.is_none() {
            return;
        }
        let mut payload = draft.buffer();
        if self.header.is_none() {
            payload.extend_from_slice(&self.frame);
        }
        payload.extend_from_slice(changed.or_else(|| draft.value(record)).unwrap_or_default());
        draft.set_value(payload);
    }
}

impl Step for SchemaStep {
    fn apply(
        &mut self,
        record: &Record<'_>,
        draft: &mut Draft,
        since: Option<Instant>,
    ) -> Result<(), NotReady> {
        // A tombstone has nothing that could have a schema.
        let Some(value) = draft.value(record) else { return Ok(()) };
        if is_dead_letter(record) {
            return Ok(());
        }
        self.settings.rule.write(record, &mut self.subject).map_err(NotReady::Refused)?;
        let now = Instant::now();
        let answer = self.answer(since, now)?;
        let schema = answer.schema.map_err(|words| NotReady::Refused(Refusal::content(words)))?;
        self.encoded.clear();
        let event_type = header_text(record, "type");
        let encoded = schema.encode(value, event_type, &mut self.encoded);
        let message = encoded.map_err(|misfit| self.misfit(&misfit, answer.at, since, now))?;
        self.write(&schema, message.as_deref(), record, draft);
        Ok(())
    }

    fn reset(&mut self) {
        self.cache.reset();
    }
}

impl Drop for SchemaStep {
    fn drop(&mut self) {
        self.cache.close();
    }
}

#[cfg(test)]
mod tests;
