//! The writer of an intake: its session in the database of the inbox, and the transactions that store its batches.
//!
//! Everything in the session has a bound in time. `statement_timeout` is the server's, and a server that is frozen, or
//! behind a network that drops packets, does not keep it.

use super::observer::IntakeObserver;
use super::spec::IntakeSpec;
use crate::backoff::Backoff;
use crate::inbox::batch::Batch;
use crate::inbox::message::Requirements;
use crate::inbox::store::{Counts, InboxSpec, InboxStore, StoreError, Stored, Unstorable};
use crate::intake_status::IntakeState;
use crate::postgres::{SourceError, SourceErrorKind, error_policy};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a batch, after which it is stored.
pub(super) const BATCH_BYTES_MAX: usize = 16 << 20;

/// Pauses after failures.
pub(super) const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(200), Duration::from_secs(15));

/// Attempts of a transaction that another one was in the way of.
const CONFLICTS_MAX: u32 = 5;

/// The longest time for a batch with all its attempts, and for other statements. Afterwards the session is given up. It
/// is well below the five minutes after which a group removes a member that does not poll: a Kafka client is not polled
/// meanwhile.
const STORE_MAX: Duration = Duration::from_mins(1);

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Written {
    /// It is committed.
    Committed(Counts),
    /// Another process, or a person, has changed the offset of a partition: nothing is stored.
    Moved,
    /// The server refused a value of a message: nothing is stored. [`InboxWriter::write_each`] finds which.
    Refused(SourceError),
    /// The table refuses these messages even as dead ones, at most one of each partition: nothing is stored.
    Unstorable(Vec<Unstorable>),
    /// It is not known to be stored.
    Failed(SourceError),
}

/// The session of an intake. It is opened when it is needed.
#[derive(Debug)]
pub(super) struct InboxWriter {
    inbox: InboxSpec,
    label: String,
    /// `None` after a failure.
    store: Option<InboxStore>,
    /// Messages of a batch at most, as configured.
    batch_limit: usize,
    /// The same at present: fewer for a while after a batch took too long.
    batch_max: usize,
    backoff: Backoff,
}

impl InboxWriter {
    pub(super) fn new(spec: &IntakeSpec) -> Self {
        let batch_limit = spec.batch_messages.max(1);
        Self {
            inbox: spec.inbox.clone(),
            label: format!("postrider inbox {}", spec.name),
            store: None,
            batch_limit,
            batch_max: batch_limit,
            backoff: BACKOFF,
        }
    }

    /// Messages of the next batch at most.
    pub(super) const fn batch_max(&self) -> usize {
        self.batch_max
    }

    /// What the inbox requires of its messages; `None` without a session.
    pub(super) fn requirements(&self) -> Option<&Requirements> {
        self.store.as_ref().map(InboxStore::requirements)
    }

    /// Opens the session if there is none.
    ///
    /// # Errors
    /// Those of [`InboxStore::connect`].
    pub(super) async fn open(&mut self) -> Result<&mut InboxStore, SourceError> {
        let Self { inbox, label, store, .. } = self;
        match store {
            Some(store) => Ok(store),
            None => Ok(store.insert(Box::pin(InboxStore::connect(inbox, label)).await?)),
        }
    }

    /// Ends the session. The next one looks the inbox up again.
    pub(super) fn close(&mut self) {
        self.store = None;
    }

    /// Runs statements in the session.
    ///
    /// # Errors
    /// Those of the statements and of [`open`](Self::open), or the time is over.
    pub(super) async fn ask<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut InboxStore) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let asking = statements(self.open().await?);
        let answer = tokio::time::timeout(STORE_MAX, asking).await;
        answer.unwrap_or_else(|elapsed| Err(late().caused_by(elapsed)))
    }

    /// Stores a batch in one transaction.
    pub(super) async fn write(&mut self, batch: &Batch) -> Written {
        self.transaction(batch, false).await
    }

    /// The same message by message, after the server has refused a value of the batch: a message that is refused again
    /// is stored as a dead one.
    pub(super) async fn write_each(&mut self, batch: &Batch) -> Written {
        self.transaction(batch, true).await
    }

    async fn transaction(&mut self, batch: &Batch, each: bool) -> Written {
        let (mut conflicts, end) = (0, Instant::now() + STORE_MAX);
        loop {
            let Some(store) = &mut self.store else { return Written::Failed(late()) };
            let storing = async {
                if each { store.store_each(batch).await } else { store.store(batch).await }
            };
            let error = match tokio::time::timeout_at(end, Box::pin(storing)).await {
                Ok(Ok(stored)) => return self.ends(stored),
                Ok(Err(error)) => error,
                Err(elapsed) => StoreError::TooLong(late().caused_by(elapsed)),
            };
            match error {
                StoreError::Value(error) => return Written::Refused(error),
                StoreError::Conflict(_) if conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    let pause = Duration::from_millis(20).mul_f64(fastrand::f64());
                    tokio::time::sleep(pause * conflicts).await;
                }
                StoreError::TooLong(error) => {
                    self.batch_max = (batch.len() / 2).max(1);
                    return Written::Failed(error);
                }
                StoreError::Conflict(error) | StoreError::Database(error) => {
                    return Written::Failed(error);
                }
            }
        }
    }

    fn ends(&mut self, stored: Stored) -> Written {
        match stored {
            Stored::Committed(counts) => {
                self.backoff.reset();
                self.batch_max = self.batch_max.saturating_mul(2).min(self.batch_limit);
                Written::Committed(counts)
            }
            Stored::Moved => Written::Moved,
            Stored::Refused(messages) => Written::Unstorable(messages),
        }
    }

    /// The database is not available, or refuses a statement: ends the session, and shows why. Returns the pause before
    /// the next one.
    pub(super) fn fails(&mut self, error: &SourceError, observer: &mut IntakeObserver) -> Duration {
        self.close();
        let hint = super::hint(error, &self.inbox.inbox).or_else(|| error_policy::hint(error));
        observer.waits(IntakeState::DatabaseDown, &error.to_string(), hint.as_deref());
        self.backoff.next(fastrand::f64())
    }
}

fn late() -> SourceError {
    SourceError::new(SourceErrorKind::Timeout(STORE_MAX), "store messages in the inbox")
}
