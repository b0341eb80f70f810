//! The receiver of webhooks: the loop that stores requests in an inbox.
//!
//! The HTTP server (`reception`) verifies a request, puts it into a queue, and answers it when this loop says what
//! became of it. The loop stores all requests that wait in one transaction. A request is answered with 204 after its
//! commit, and with 503 if it is not known to be committed: its sender sends it again, and the inbox recognises the
//! message by its id. So no answer is needed from a commit whose connection is lost.
//!
//! While the database is not available or the inbox is full, the gate is closed: requests are refused at once.

mod reception;

use super::observer::IntakeObserver;
use super::spec::IntakeSpec;
use crate::backoff::Backoff;
use crate::connections::{self, Bounds, Watch, WhenFull};
use crate::inbox::batch::Batch;
use crate::inbox::store::{InboxStore, StoreError, Stored};
use crate::inbox::webhook::WebhookConfig;
use crate::intake_status::IntakeState;
use crate::pipeline::Stop;
use crate::postgres::{SourceError, SourceErrorKind, error_policy};
use reception::{ANSWER_MAX, BODY_TIME_MAX, Gate, ReceptionEnd, Shared, Waiting};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Requests that wait to be stored.
const QUEUE_MAX: usize = 1000;

/// Bytes of a batch, after which it is stored.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// Attempts of a transaction that another one was in the way of.
const CONFLICTS_MAX: u32 = 5;

/// The longest time for a transaction. After it the session is given up: a server that does not answer would otherwise
/// keep all requests waiting.
const STORE_MAX: Duration = Duration::from_mins(1);

/// The longest time from the accept of a connection to the end of its request header.
const HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// What the answer itself may take.
const SEND_MAX: Duration = Duration::from_secs(5);

/// Pause between two counts of the messages that wait to be processed.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// A full inbox is written into again when fewer messages wait than the largest number less this part of it: a tenth.
const RESUME_PART: u64 = 10;

/// Pauses after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));

/// What a sender is asked to wait. Unit: seconds.
const RETRY_DATABASE: u32 = 5;
const RETRY_FULL: u32 = 30;

/// Runs an intake until a stop is requested. Requests that have arrived by then are stored and answered.
pub(super) async fn run(
    spec: &IntakeSpec,
    config: &WebhookConfig,
    stop: &Stop,
    observer: IntakeObserver,
) {
    let shared = Arc::new(Shared::new(observer));
    if let Some(listener) = listen(config, stop, &shared).await {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let router = reception::router((&spec.name, config), Arc::clone(&shared), sender);
        let bounds = Bounds {
            connections: config.connections_max,
            exchange: HEADER_TIME_MAX + BODY_TIME_MAX + ANSWER_MAX + SEND_MAX,
            header_time: HEADER_TIME_MAX,
            when_full: WhenFull::Waits,
        };
        let watch = ReceiverWatch { intake: spec.name.as_str().into() };
        // It drops the sender of the queue at its end, and with that the loop ends.
        let serving = connections::serve(listener, router, bounds, watch, stop.drain());
        let storing = StoreLoop::new((spec, config), Arc::clone(&shared), queue).run();
        tokio::join!(serving, storing);
    }
    shared.observer().stopped();
}

/// Listens at the address; none if a stop is requested before it is available.
async fn listen(config: &WebhookConfig, stop: &Stop, shared: &Shared) -> Option<TcpListener> {
    let (mut backoff, address) = (BACKOFF, config.listen);
    while !stop.is_requested() {
        shared.observer().turns();
        match TcpListener::bind(address).await {
            Ok(listener) => {
                shared.observer().listens(address);
                return Some(listener);
            }
            Err(error) => {
                let hint = if error.kind() == io::ErrorKind::AddrInUse {
                    "another process listens there: find it with ss -ltnp, or give `listen` another port"
                } else {
                    "give `listen` an address of this host"
                };
                let reason = format!("could not listen on {address}: {error}");
                shared.observer().waits(IntakeState::ListenerDown, &reason, Some(hint));
            }
        }
        tokio::select! {
            () = stop.drain() => {}
            () = tokio::time::sleep(backoff.next(fastrand::f64())) => {}
        }
    }
    None
}

/// Logs what happens to the connections of a receiver.
#[derive(Clone, Debug)]
struct ReceiverWatch {
    intake: Arc<str>,
}

impl Watch for ReceiverWatch {
    fn closed_for_another(&self) {}

    fn closed_late(&self) {}

    fn log_full(&self, connections: usize, closed: u64) {
        tracing::warn!(
            event = "intake_connections_full",
            intake = &*self.intake,
            connections,
            closed,
            hint = "let only the senders reach `listen`, or raise connections_max",
            "all {connections} connections are in use; an old one that has not sent its request is closed for each \
             new one"
        );
    }

    fn log_accept_failed(&self, error: &io::Error, failed: u64) {
        tracing::warn!(
            event = "intake_accept_failed",
            intake = &*self.intake,
            reason = %error,
            failed,
            hint = "allow the process more descriptors: LimitNOFILE= of the systemd unit, ulimit -n of a shell",
            "could not accept a connection: {error}"
        );
    }
}

/// The loop that stores requests.
struct StoreLoop<'a> {
    spec: &'a IntakeSpec,
    config: &'a WebhookConfig,
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Waiting>,
    /// The session; `None` after a failure.
    store: Option<InboxStore>,
    /// Messages of a batch at most: fewer for a while after one took too long.
    batch_max: usize,
    backoff: Backoff,
    /// When the next session is opened, or the messages are counted again.
    next_at: Instant,
    /// Messages that may be stored before they are counted again.
    room: u64,
    /// The inbox was full when it was last counted.
    is_full: bool,
}

/// A batch was not stored.
enum Trouble {
    /// The server refused a value of a message.
    Value,
    /// It is not known to be stored.
    Failed(SourceError),
}

impl<'a> StoreLoop<'a> {
    fn new(
        (spec, config): (&'a IntakeSpec, &'a WebhookConfig),
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Waiting>,
    ) -> Self {
        Self {
            spec,
            config,
            shared,
            queue,
            store: None,
            batch_max: spec.batch_messages.max(1),
            backoff: BACKOFF,
            next_at: Instant::now(),
            room: 0,
            is_full: false,
        }
    }

    /// Stores requests until the receiver has ended and its last request is answered.
    async fn run(mut self) {
        while self.turn().await.is_some() {}
    }

    /// One step; none if the receiver has ended.
    async fn turn(&mut self) -> Option<()> {
        self.shared.observer().turns();
        if self.store.is_none() || self.is_full {
            return self.opens().await;
        }
        let counts_at = tokio::time::Instant::from_std(self.next_at);
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(counts_at) => self.counts().await,
            first = self.queue.recv() => self.stores(first?).await,
        }
        Some(())
    }

    /// The gate is closed: opens a session if there is none, looks whether the inbox has room, and opens the gate.
    async fn opens(&mut self) -> Option<()> {
        let pause = self.next_at.saturating_duration_since(Instant::now());
        // Turns at least each second, so that the loop is seen to be alive.
        let part = pause.min(COUNT_INTERVAL);
        refuses(&mut self.queue, tokio::time::sleep(part)).await?;
        if part < pause {
            return Some(());
        }
        if self.store.is_none() {
            let label = format!("postrider inbox {}", self.spec.name);
            let connecting = Box::pin(InboxStore::connect(&self.spec.inbox, &label));
            match refuses(&mut self.queue, connecting).await? {
                Ok(store) => self.store = Some(store),
                Err(error) => {
                    self.database_fails(&error);
                    return Some(());
                }
            }
        }
        self.counts().await;
        Some(())
    }

    /// Counts the messages that wait to be processed, and opens or closes the gate.
    async fn counts(&mut self) {
        self.next_at = Instant::now() + COUNT_INTERVAL;
        let Some(store) = &self.store else { return };
        let pending = match bounded(store.pending()).await {
            Ok(pending) => pending,
            Err(error) => return self.database_fails(&error),
        };
        self.shared.observer().pending(pending);
        let max = self.spec.pending_max.unwrap_or(u64::MAX);
        let limit = if self.is_full { max - max / RESUME_PART } else { max };
        self.is_full = pending >= limit.max(1);
        self.room = max.saturating_sub(pending);
        if self.is_full {
            let inbox = &self.spec.inbox.inbox;
            let reason = format!(
                "{pending} messages of inbox \"{inbox}\" wait to be processed, and the limit is {max}"
            );
            let hint = "start more workers, or raise pending_max".to_owned();
            self.shared.observer().waits(IntakeState::Full, &reason, Some(&hint));
            self.close("the inbox is full", RETRY_FULL);
        } else {
            self.shared.observer().stores(0);
            self.shared.set_gate(Gate::Open);
        }
    }

    /// Stores this request and all that wait behind it, and answers them.
    async fn stores(&mut self, first: Waiting) {
        let mut waiting = vec![first];
        let mut bytes = 0;
        let max = self.batch_max.min(usize::try_from(self.room).unwrap_or(usize::MAX));
        while waiting.len() < max && bytes < BATCH_BYTES_MAX {
            let Ok(next) = self.queue.try_recv() else { break };
            bytes += next.request.body.len();
            waiting.push(next);
        }
        let batch = self.batch(&waiting);
        match self.store_batch(&batch).await {
            Ok(()) => {
                for request in waiting {
                    request.answer(ReceptionEnd::Stored);
                }
            }
            Err(Trouble::Value) => self.store_each(waiting).await,
            Err(Trouble::Failed(error)) => {
                self.database_fails(&error);
                for request in waiting {
                    request.answer(ReceptionEnd::Unknown);
                }
            }
        }
        let stored = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        self.room = self.room.saturating_sub(stored);
        if self.room == 0 && self.store.is_some() {
            self.counts().await;
        }
    }

    fn batch(&self, waiting: &[Waiting]) -> Batch {
        let mut batch = Batch::default();
        let Some(store) = &self.store else { return batch };
        let (rules, name) = (&self.spec.rules, &self.spec.name);
        for Waiting { request, .. } in waiting {
            batch.push(request.message(&self.config.scheme, rules, name, store.requirements()));
        }
        batch
    }

    /// Stores a batch in one transaction.
    async fn store_batch(&mut self, batch: &Batch) -> Result<(), Trouble> {
        let mut conflicts = 0;
        loop {
            let Some(store) = &mut self.store else { return Err(Trouble::Failed(late())) };
            let result = Box::pin(tokio::time::timeout(STORE_MAX, store.store(batch))).await;
            match result {
                Ok(Ok(stored)) => {
                    self.ends(stored);
                    self.batch_max =
                        self.batch_max.saturating_mul(2).min(self.spec.batch_messages).max(1);
                    return Ok(());
                }
                Ok(Err(StoreError::Value(_))) => return Err(Trouble::Value),
                Ok(Err(StoreError::Conflict(_))) if conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    let pause = Duration::from_millis(20).mul_f64(fastrand::f64());
                    tokio::time::sleep(pause * conflicts).await;
                }
                Ok(Err(StoreError::TooLong(error))) => {
                    self.batch_max = (batch.len() / 2).max(1);
                    return Err(Trouble::Failed(error));
                }
                Ok(Err(StoreError::Conflict(error) | StoreError::Database(error))) => {
                    return Err(Trouble::Failed(error));
                }
                Err(elapsed) => return Err(Trouble::Failed(late().caused_by(elapsed))),
            }
        }
    }

    /// The server has refused a value of a message: stores each request in a transaction of its own, as a dead message
    /// if it is refused again. One that can't be stored at all does not keep others from being stored.
    async fn store_each(&mut self, waiting: Vec<Waiting>) {
        let Some(store) = &mut self.store else { return };
        // The inbox may have another order or other priorities by now.
        if let Err(error) = bounded(store.requirements_changed()).await {
            self.database_fails(&error);
        }
        for request in waiting {
            let batch = self.batch(std::slice::from_ref(&request));
            // After a failure nothing more is tried: the senders send again.
            let Some(store) = &mut self.store else {
                request.answer(ReceptionEnd::Unknown);
                continue;
            };
            let result = Box::pin(tokio::time::timeout(STORE_MAX, store.store_each(&batch))).await;
            let outcome = match result {
                Ok(Ok(stored)) => {
                    self.ends(stored);
                    ReceptionEnd::Stored
                }
                Ok(Err(StoreError::Value(error))) => {
                    let state = error.sqlstate().map(|state| state.as_str().to_owned());
                    ReceptionEnd::Refused { state: state.unwrap_or_default() }
                }
                Ok(Err(error)) => {
                    self.database_fails(error.error());
                    ReceptionEnd::Unknown
                }
                Err(elapsed) => {
                    self.database_fails(&late().caused_by(elapsed));
                    ReceptionEnd::Unknown
                }
            };
            request.answer(outcome);
        }
    }

    /// A transaction has ended. A batch without partitions is always committed.
    fn ends(&mut self, stored: Stored) {
        self.backoff.reset();
        if let Stored::Committed(counts) = stored {
            self.shared.observer().stored(&counts);
        }
    }

    /// The database is not available, or refuses a statement. A new session is opened after a pause.
    fn database_fails(&mut self, error: &SourceError) {
        self.store = None;
        let hint = super::hint(error, &self.spec.inbox.inbox).or_else(|| error_policy::hint(error));
        self.shared.observer().waits(
            IntakeState::DatabaseDown,
            &error.to_string(),
            hint.as_deref(),
        );
        self.close("the database of the inbox is not available", RETRY_DATABASE);
        self.next_at = Instant::now() + self.backoff.next(fastrand::f64());
    }

    fn close(&self, why: &'static str, retry_after: u32) {
        self.shared.set_gate(Gate::Closed { why, retry_after });
    }
}

/// Does `work`, and refuses what comes into the queue meanwhile; none if the receiver has ended.
async fn refuses<T>(
    queue: &mut mpsc::Receiver<Waiting>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            waiting = queue.recv() => waiting?.answer(ReceptionEnd::Unknown),
        }
    }
}

/// A statement that must not take longer than a transaction.
async fn bounded<T>(
    statement: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    let result = tokio::time::timeout(STORE_MAX, statement).await;
    result.unwrap_or_else(|elapsed| Err(late().caused_by(elapsed)))
}

fn late() -> SourceError {
    SourceError::new(SourceErrorKind::Timeout(STORE_MAX), "store messages in the inbox")
}
