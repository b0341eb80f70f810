//! The loop that stores messages of a broker that acknowledges them one by one: NATS JetStream, RabbitMQ, Redis.
//!
//! A batch is committed, then acknowledged. A process that is killed in between, or whose commit is not answered, gets
//! the messages again, and the inbox recognises them. Of several processes one reads at a time, so that the order of
//! the stream is that of the inbox: each batch moves the number of the turn ([`Turn`]) in its transaction, and a
//! process that has lost its turn stores nothing.

use super::observer::IntakeObserver;
use super::room::{COUNT_INTERVAL, Room};
use super::spec::IntakeSpec;
use super::writer::{BACKOFF, BATCH_BYTES_MAX, InboxWriter, Written};
use crate::backoff::Backoff;
use crate::inbox::acked::{AckedSource, Look, SourceProblem};
use crate::inbox::batch::Batch;
use crate::inbox::store::{InboxStore, Unstorable};
use crate::inbox::turn::{RENEW_INTERVAL, Turn};
use crate::intake_status::{BlockedPartition, IntakeState};
use crate::pipeline::Stop;
use crate::postgres::SourceError;
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest wait for a message; a stop is noticed after it.
const RECEIVE_MAX: Duration = Duration::from_millis(500);

/// Pause between two looks at the broker.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Pauses between two attempts to store a message that the table refuses.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(1));

/// The longest time for giving back what is not stored, at the end.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The code of a message that the table refuses.
const UNSTORABLE: &str = "message_unstorable";

/// Runs an intake until a stop is requested.
pub(super) async fn run<S: AckedSource>(
    spec: &IntakeSpec,
    config: &S::Config,
    stop: &Stop,
    observer: IntakeObserver,
) {
    AckedIntake::<'_, S>::new((spec, config), stop, observer).run().await;
}

/// Pauses after failures of the broker, and after messages that were refused.
struct Pauses {
    broker: Backoff,
    refused: Backoff,
    /// Attempts to connect.
    attempt: usize,
}

/// When something is due.
struct DueTimes {
    /// Nothing is done before.
    held_until: Instant,
    count_at: Instant,
    look_at: Instant,
}

/// One intake.
struct AckedIntake<'a, S: AckedSource> {
    spec: &'a IntakeSpec,
    config: &'a S::Config,
    stop: &'a Stop,
    observer: IntakeObserver,
    writer: InboxWriter,
    room: Room,
    turn: Turn,
    /// `None` without a connection.
    source: Option<S>,
    pauses: Pauses,
    due: DueTimes,
    /// The table refuses the next message.
    is_blocked: bool,
    /// The status says that messages are stored.
    is_shown: bool,
}

impl<'a, S: AckedSource> AckedIntake<'a, S> {
    fn new(
        (spec, config): (&'a IntakeSpec, &'a S::Config),
        stop: &'a Stop,
        observer: IntakeObserver,
    ) -> Self {
        let now = Instant::now();
        Self {
            spec,
            config,
            stop,
            observer,
            writer: InboxWriter::new(spec),
            room: Room::new(spec),
            turn: Turn::new(S::turn(config), owner()),
            source: None,
            pauses: Pauses { broker: BACKOFF, refused: REFUSED, attempt: 0 },
            due: DueTimes { held_until: now, count_at: now, look_at: now },
            is_blocked: false,
            is_shown: false,
        }
    }

    async fn run(mut self) {
        while !self.stop.is_requested() {
            self.observer.turns();
            self.step().await;
        }
        let closing = async {
            self.close_source().await;
            self.give_turn_back().await;
        };
        // What is not given back comes again when the broker notices the end.
        drop(tokio::time::timeout(CLOSE_MAX, closing).await);
        self.observer.stopped();
    }

    async fn step(&mut self) {
        if self.due.held_until > Instant::now() {
            self.pauses().await;
            return;
        }
        if !self.has_room().await || !self.has_turn().await || !self.is_open().await {
            return;
        }
        let Some(source) = &mut self.source else { return };
        let max = self.writer.batch_max().max(1);
        let received = tokio::select! {
            received = source.receive(max, RECEIVE_MAX) => Some(received),
            () = self.stop.leave() => None,
        };
        match received {
            None => {
                // An answer may be on its way: the connection is of no more use. What has come comes again.
                self.source = None;
                return;
            }
            Some(Err(problem)) => return self.broker_fails(&problem).await,
            Some(Ok(())) => {
                self.pauses.broker.reset();
                self.shows();
            }
        }
        if self.source.as_ref().is_some_and(|source| source.ready().next().is_some()) {
            self.stores().await;
        }
        self.looks().await;
    }

    /// Shows that messages are stored as they come, or why not.
    fn shows(&mut self) {
        if let Some(reason) = self.source.as_ref().and_then(AckedSource::waits_for) {
            self.observer.waits_for_others(Some(&reason));
            self.is_shown = false;
        } else if !self.is_shown {
            self.observer.stores(usize::from(!self.is_blocked));
            self.is_shown = true;
        }
    }

    /// Nothing is done: keeps connection and turn.
    async fn pauses(&mut self) {
        let left = self.due.held_until.saturating_duration_since(Instant::now());
        let part = left.min(RENEW_INTERVAL);
        let idle = async {
            if let Some(source) = &mut self.source {
                return source.idle(part).await;
            }
            tokio::time::sleep(part).await;
            Ok(())
        };
        let idled = tokio::select! {
            idled = idle => idled,
            () = self.stop.drain() => Ok(()),
        };
        if let Err(problem) = idled {
            self.broker_fails(&problem).await;
        } else if self.turn.span().is_some() && self.turn.is_due() {
            self.has_turn().await;
        }
    }

    /// Whether the inbox has room, by the number of messages that wait.
    async fn has_room(&mut self) -> bool {
        let is_due = self.due.count_at <= Instant::now() || self.room.left() == 0;
        if !is_due && self.writer.requirements().is_some() {
            return true;
        }
        let pending = match self.ask(async |store| store.pending().await).await {
            Ok(pending) => pending,
            Err(error) => {
                self.database_fails(&error);
                return false;
            }
        };
        self.due.count_at = Instant::now() + COUNT_INTERVAL;
        let has_room = self.room.counted(pending, &mut self.observer);
        if !has_room {
            self.due.held_until = self.due.count_at;
            self.is_shown = false;
        }
        has_room
    }

    /// Whether it is this process's turn.
    async fn has_turn(&mut self) -> bool {
        if self.turn.span().is_some() && !self.turn.is_due() {
            return true;
        }
        let Self { turn, writer, source, .. } = self;
        let asking = writer.ask(async |store| turn.take(store).await);
        match while_idle(source, asking).await {
            Ok(true) => true,
            Ok(false) => {
                self.stands_by().await;
                false
            }
            Err(error) => {
                self.database_fails(&error);
                false
            }
        }
    }

    /// Another process reads.
    async fn stands_by(&mut self) {
        self.close_source().await;
        self.unblock();
        self.observer.waits_for_others(None);
        self.is_shown = false;
        self.due.held_until = Instant::now() + RENEW_INTERVAL;
    }

    /// Whether there is a connection to the broker.
    async fn is_open(&mut self) -> bool {
        if self.source.is_some() {
            return true;
        }
        let opening = S::open(self.config, &self.spec.name, self.pauses.attempt);
        let opened = tokio::select! {
            opened = opening => opened,
            () = self.stop.drain() => return false,
        };
        match opened {
            Ok(source) => {
                self.source = Some(source);
                // Before anything is read: afterwards what was deleted before is not seen any more.
                self.due.look_at = Instant::now();
                self.looks().await;
                // The broker may have taken some time.
                self.source.is_some() && self.has_turn().await
            }
            Err(problem) => {
                self.pauses.attempt += 1;
                self.broker_fails(&problem).await;
                false
            }
        }
    }

    /// Stores what is ready.
    async fn stores(&mut self) {
        // Without the number of the turn nothing would keep a former owner from storing.
        if self.turn.span().is_none() {
            return;
        }
        let count = self.batch_len();
        let batch = self.batch(count);
        let writing = self.writer.write(&batch);
        match while_idle(&mut self.source, writing).await {
            Written::Refused(_) | Written::Unstorable(_) => self.store_each(count).await,
            written @ (Written::Committed(_) | Written::Moved | Written::Failed(_)) => {
                self.ends(written, count).await;
            }
        }
    }

    /// How many of the ready messages are stored in one transaction.
    fn batch_len(&self) -> usize {
        let max = self.writer.batch_max().min(self.room.left()).max(1);
        let mut bytes = 0_usize;
        let Some(source) = &self.source else { return 0 };
        let of_batch = source.ready().take(max).take_while(|delivery| {
            let has_room = bytes < BATCH_BYTES_MAX;
            bytes = bytes.saturating_add(delivery.size_bytes());
            has_room
        });
        of_batch.count()
    }

    /// The first ready messages, and the number of the turn behind them.
    fn batch(&self, count: usize) -> Batch {
        let mut batch = Batch::default();
        let (Some(source), Some(requirements)) = (&self.source, self.writer.requirements()) else {
            return batch;
        };
        for delivery in source.ready().take(count) {
            batch.push(self.spec.rules.delivered(delivery, requirements));
        }
        if let Some((from, next)) = self.turn.span() {
            batch.push_end(self.turn.key(), from, next);
        }
        batch
    }

    /// The server has refused a value of a message: stores the messages one by one, a message that is refused again as
    /// a dead one. One that can't be stored at all holds the later ones back, so that their order is kept.
    async fn store_each(&mut self, count: usize) {
        // The inbox may have another order or other priorities by now.
        if let Err(error) = self.ask(async |store| store.requirements_changed().await).await {
            return self.database_fails(&error);
        }
        for _ in 0..count {
            let batch = self.batch(1);
            let written = while_idle(&mut self.source, self.writer.write_each(&batch)).await;
            if let Written::Unstorable(messages) = &written {
                return self.blocks(messages);
            }
            if !self.ends(written, 1).await {
                return;
            }
        }
    }

    /// A transaction has ended. Returns whether its messages are stored and acknowledged.
    async fn ends(&mut self, written: Written, count: usize) -> bool {
        match written {
            Written::Committed(counts) => {
                self.observer.stored(&counts);
                self.room.fills(count);
                self.unblock();
                self.turn.moved();
                let Some(source) = &mut self.source else { return false };
                let Err(problem) = source.acknowledge(count).await else { return true };
                self.broker_fails(&problem).await;
            }
            Written::Moved => {
                self.observer.moved();
                self.turn.forget();
                self.stands_by().await;
            }
            Written::Refused(error) | Written::Failed(error) => self.database_fails(&error),
            // The caller has handled these.
            Written::Unstorable(_) => {}
        }
        false
    }

    /// The table refuses the next message even as a dead one.
    fn blocks(&mut self, messages: &[Unstorable]) {
        let Some(Unstorable { error, .. }) = messages.first() else { return };
        self.observer.unstorable(error);
        let mut hint = format!(
            "change the constraint of the table of inbox {}, or drop it; the intake continues automatically",
            self.spec.inbox.inbox
        );
        if let Some(passes) = self.source.as_ref().and_then(AckedSource::passes) {
            hint.push_str("\nto go on without the message: ");
            hint.push_str(&passes);
        }
        self.observer.blocked(vec![BlockedPartition {
            topic: S::place(self.config),
            partition: 0,
            code: UNSTORABLE,
            reason: error.to_string(),
            hint,
            needs_decision: true,
        }]);
        (self.is_blocked, self.is_shown) = (true, true);
        self.observer.stores(0);
        self.due.held_until = Instant::now() + self.pauses.refused.next(fastrand::f64());
    }

    fn unblock(&mut self) {
        if std::mem::take(&mut self.is_blocked) {
            self.pauses.refused.reset();
            self.observer.blocked(Vec::new());
            self.is_shown = false;
        }
    }

    /// Now and then: what the broker has, and has deleted.
    async fn looks(&mut self) {
        if self.due.look_at > Instant::now() {
            return;
        }
        self.due.look_at = Instant::now() + LOOK_INTERVAL;
        let Some(source) = &mut self.source else { return };
        match source.look().await {
            Ok(Look { lag, lost, missing }) => {
                self.observer.lag(lag);
                self.observer.found_all(missing.is_empty());
                for (reason, hint) in &missing {
                    self.observer.warns(reason, hint);
                }
                for lost in &lost {
                    self.observer.lost(lost.messages, &lost.reason, &lost.hint);
                }
            }
            Err(problem) => self.broker_fails(&problem).await,
        }
    }

    async fn ask<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut InboxStore) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        while_idle(&mut self.source, self.writer.ask(statements)).await
    }

    /// The broker can't be used, or another process reads. Another process may have a better way to it.
    async fn broker_fails(&mut self, problem: &SourceProblem) {
        (self.source, self.is_shown) = (None, false);
        self.observer.lag(None);
        let pause = self.pauses.broker.next(fastrand::f64());
        if problem.stands_by {
            self.observer.waits_for_others(Some(&problem.reason));
            self.due.held_until = Instant::now() + pause.min(RENEW_INTERVAL);
            return;
        }
        let hint = problem.hint.as_deref();
        self.observer.waits(IntakeState::BrokerDown, &problem.reason, hint);
        self.due.held_until = Instant::now() + pause;
        self.give_turn_back().await;
    }

    /// The database is not available, or refuses a statement. A new session is opened after a pause.
    fn database_fails(&mut self, error: &SourceError) {
        let pause = self.writer.fails(error, &mut self.observer);
        self.is_shown = false;
        // Whether a transaction has moved its number is not known.
        self.turn.forget();
        self.due.held_until = Instant::now() + pause;
    }

    async fn close_source(&mut self) {
        if let Some(source) = self.source.take() {
            source.close().await;
            self.observer.lag(None);
        }
    }

    async fn give_turn_back(&mut self) {
        let Self { turn, writer, .. } = self;
        if turn.span().is_none() {
            return;
        }
        if let Err(error) = writer.ask(async |store| turn.give_back(store).await).await {
            // Another process takes it after some seconds.
            tracing::debug!(event = "intake_turn_kept", intake = self.spec.name, %error);
            writer.close();
        }
    }
}

/// Waits for the end of `work`, and keeps the connection to the broker alive meanwhile. A connection that is lost is
/// found by its next use.
async fn while_idle<S: AckedSource, T>(source: &mut Option<S>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Some(source) = source {
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                idled = source.idle(RENEW_INTERVAL) => if idled.is_err() { break },
            }
        }
    }
    work.await
}

/// What no other process has, nor another start of this one.
fn owner() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}-{:08x}", std::process::id(), since.as_nanos(), fastrand::u32(..))
}
