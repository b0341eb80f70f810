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
use super::room::{COUNT_INTERVAL, Room};
use super::spec::IntakeSpec;
use super::writer::{BACKOFF, BATCH_BYTES_MAX, InboxWriter, Written};
use crate::connections::{self, Bounds, Watch, WhenFull};
use crate::inbox::batch::Batch;
use crate::inbox::store::Unstorable;
use crate::inbox::webhook::WebhookConfig;
use crate::intake_status::IntakeState;
use crate::pipeline::Stop;
use crate::postgres::SourceError;
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

/// The longest time from the accept of a connection to the end of its request header.
const HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// What the answer itself may take.
const SEND_MAX: Duration = Duration::from_secs(5);

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
    writer: InboxWriter,
    room: Room,
    /// When the next session is opened, or the messages are counted again.
    next_at: Instant,
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
            writer: InboxWriter::new(spec),
            room: Room::new(spec),
            next_at: Instant::now(),
        }
    }

    /// Stores requests until the receiver has ended and its last request is answered.
    async fn run(mut self) {
        while self.turn().await.is_some() {}
    }

    /// One step; none if the receiver has ended.
    async fn turn(&mut self) -> Option<()> {
        self.shared.observer().turns();
        if self.writer.requirements().is_none() || self.room.is_full() {
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
        let Self { queue, writer, .. } = self;
        let opened = refuses(queue, writer.open()).await?.map(drop);
        match opened {
            Ok(()) => self.counts().await,
            Err(error) => self.database_fails(&error),
        }
        Some(())
    }

    /// Counts the messages that wait to be processed, and opens or closes the gate.
    async fn counts(&mut self) {
        self.next_at = Instant::now() + COUNT_INTERVAL;
        let pending = match self.writer.ask(async |store| store.pending().await).await {
            Ok(pending) => pending,
            Err(error) => return self.database_fails(&error),
        };
        if self.room.counted(pending, &mut self.shared.observer()) {
            self.shared.observer().stores(0);
            self.shared.set_gate(Gate::Open);
        } else {
            self.close("the inbox is full", RETRY_FULL);
        }
    }

    /// Stores this request and all that wait behind it, and answers them.
    async fn stores(&mut self, first: Waiting) {
        let mut waiting = vec![first];
        let mut bytes = 0;
        let max = self.writer.batch_max().min(self.room.left());
        while waiting.len() < max && bytes < BATCH_BYTES_MAX {
            let Ok(next) = self.queue.try_recv() else { break };
            bytes += next.request.body.len();
            waiting.push(next);
        }
        let batch = self.batch(&waiting);
        match self.writer.write(&batch).await {
            Written::Refused(_) => self.store_each(waiting).await,
            written @ (Written::Committed(_)
            | Written::Moved
            | Written::Unstorable(_)
            | Written::Failed(_)) => {
                let end = self.ends(written);
                for request in waiting {
                    request.answer(end.clone());
                }
            }
        }
        self.room.fills(batch.len());
        if self.room.left() == 0 && self.writer.requirements().is_some() {
            self.counts().await;
        }
    }

    fn batch(&self, waiting: &[Waiting]) -> Batch {
        let mut batch = Batch::default();
        let Some(requirements) = self.writer.requirements() else { return batch };
        let (rules, name) = (&self.spec.rules, &self.spec.name);
        for Waiting { request, .. } in waiting {
            batch.push(request.message(&self.config.scheme, rules, name, requirements));
        }
        batch
    }

    /// The server has refused a value of a message: stores each request in a transaction of its own, as a dead message
    /// if it is refused again. One that can't be stored at all does not keep others from being stored.
    async fn store_each(&mut self, waiting: Vec<Waiting>) {
        // The inbox may have another order or other priorities by now.
        if let Err(error) = self.writer.ask(async |store| store.requirements_changed().await).await
        {
            self.database_fails(&error);
        }
        for request in waiting {
            // After a failure nothing more is tried: the senders send again.
            if self.writer.requirements().is_none() {
                request.answer(ReceptionEnd::Unknown);
                continue;
            }
            let batch = self.batch(std::slice::from_ref(&request));
            let written = self.writer.write_each(&batch).await;
            request.answer(self.ends(written));
        }
    }

    /// A transaction has ended.
    fn ends(&mut self, written: Written) -> ReceptionEnd {
        match written {
            Written::Committed(counts) => {
                self.shared.observer().stored(&counts);
                ReceptionEnd::Stored
            }
            // Of a batch of one request there is one message.
            Written::Unstorable(messages) => {
                let mut state = None;
                for Unstorable { error, .. } in &messages {
                    self.shared.observer().unstorable(error);
                    state = error.sqlstate().map(|state| state.to_string());
                }
                ReceptionEnd::Refused { state: state.unwrap_or_default() }
            }
            Written::Refused(error) | Written::Failed(error) => {
                self.database_fails(&error);
                ReceptionEnd::Unknown
            }
            // A batch without partitions has no offset that could be moved.
            Written::Moved => ReceptionEnd::Unknown,
        }
    }

    /// The database is not available, or refuses a statement. A new session is opened after a pause.
    fn database_fails(&mut self, error: &SourceError) {
        let pause = self.writer.fails(error, &mut self.shared.observer());
        self.close("the database of the inbox is not available", RETRY_DATABASE);
        self.next_at = Instant::now() + pause;
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
