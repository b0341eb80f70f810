//! The thread that asks the registry: one request after another, repeated while the registry does not answer.

use super::encoder::{Encoding, SubjectSchema};
use super::registry::{RegisteredSchema, Registry, RegistryProblem, SchemaKind};
use super::subject_cache::{Answered, SubjectAnswer, SubjectCache};
use crate::words;
use postrider_sinks::{Mailbox, Post};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause behind a request that failed: doubled each time, between these.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What is refused if the registry's words can't be kept.
const GENERAL: &str = "the schema registry has no schema for the event";

/// What schemas are asked for, and how.
#[derive(Clone, Debug)]
pub(super) struct SchemaSource {
    /// By subject.
    pub(super) files: HashMap<String, FileSchema>,
    /// The texts of files are registered, and not only looked up.
    pub(super) register: bool,
    pub(super) encoding: Encoding,
}

/// The schema of a file.
#[derive(Clone, Debug)]
pub(super) struct FileSchema {
    pub(super) kind: SchemaKind,
    pub(super) text: String,
}

/// The worker.
pub(super) struct RegistryWorker {
    cache: Arc<SubjectCache>,
    registry: Registry,
    source: SchemaSource,
    mailbox: Mailbox,
    /// The registry was reported as down.
    is_down: bool,
    pause: Duration,
}

impl RegistryWorker {
    pub(super) fn new(
        cache: Arc<SubjectCache>,
        registry: Registry,
        source: SchemaSource,
        mailbox: Mailbox,
    ) -> Self {
        Self { cache, registry, source, mailbox, is_down: false, pause: PAUSE_MIN }
    }

    /// Runs until the step is gone.
    pub(super) async fn run(mut self) {
        while !self.cache.is_closed() {
            if self.is_down && !self.cache.is_awaited() {
                // The pipeline has given up the records that waited. The next one reports it again.
                self.up();
            }
            let Some((subject, known)) = self.cache.next() else {
                self.cache.worked().await;
                continue;
            };
            let at = Instant::now();
            match self.source.ask(&mut self.registry, &subject).await {
                Ok(found) => {
                    let schema = self.schema(found, known);
                    self.answered(&subject, SubjectAnswer { at, schema });
                }
                Err(RegistryProblem::Refused(reason)) => {
                    let reason = format!("subject {subject:?} of the schema registry: {reason}");
                    let schema = Err(words::keep(&reason, GENERAL));
                    self.answered(&subject, SubjectAnswer { at, schema });
                }
                Err(RegistryProblem::Away { reason, hint }) => {
                    self.cache.again(subject);
                    self.down(reason, hint).await;
                }
            }
        }
        if self.is_down {
            self.up();
        }
    }

    /// The schema, compiled unless it is the one that is known.
    fn schema(
        &self,
        found: RegisteredSchema,
        known: Option<Arc<SubjectSchema>>,
    ) -> Result<Arc<SubjectSchema>, &'static str> {
        if let Some(known) = known.filter(|known| known.registered == found) {
            return Ok(known);
        }
        let compiled = SubjectSchema::compile(found, self.source.encoding);
        compiled.map(Arc::new).map_err(|reason| words::keep(&reason, GENERAL))
    }

    fn answered(&mut self, subject: &str, answer: SubjectAnswer) {
        self.pause = PAUSE_MIN;
        let Answered { is_awaited, kept } = self.cache.answered(subject, answer);
        if let Some(reason) = kept {
            tracing::warn!(
                reason,
                hint = "correct the subject in the registry before the pipeline is started again: then its schema is \
                        not known any more",
                "the schema that is known is used: {reason}"
            );
        }
        if self.is_down {
            self.up();
        }
        if is_awaited {
            self.mailbox.post(Post::Retry);
        }
    }

    fn up(&mut self) {
        self.is_down = false;
        self.mailbox.post(Post::Up { topic: None });
    }

    /// Reports the problem if a record waits, and waits until the next attempt.
    async fn down(&mut self, reason: String, hint: &'static str) {
        if self.cache.is_awaited() {
            self.is_down = true;
            let hint = Some(hint.to_owned());
            self.mailbox.post(Post::Down { reason, hint, topic: None, missing: false });
        }
        let until = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let pause = tokio::time::sleep_until(until.into());
        tokio::pin!(pause);
        while !self.cache.is_closed() {
            tokio::select! {
                () = &mut pause => return,
                () = self.cache.worked() => {}
            }
        }
    }
}

impl SchemaSource {
    /// The schema of a subject.
    ///
    /// # Errors
    /// [`RegistryProblem`].
    async fn ask(
        &self,
        registry: &mut Registry,
        subject: &str,
    ) -> Result<RegisteredSchema, RegistryProblem> {
        let Some(FileSchema { kind, text }) = self.files.get(subject) else {
            return registry.latest(subject).await;
        };
        if self.register {
            registry.register(subject, *kind, text).await
        } else {
            registry.look_up(subject, *kind, text).await
        }
    }
}
