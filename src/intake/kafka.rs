//! The loop that stores the records of Kafka topics.
//!
//! The group decides which partitions this process reads, and nothing else: where a partition continues is stored in
//! the database, and each transaction moves the offsets that it begins at. So a process that has lost its partitions
//! without knowing it, one that repeats a transaction whose commit was not answered, and an operator who moves an
//! offset, are all the same case: the transaction finds another offset, stores nothing, and the partitions are placed
//! again.
//!
//! While nothing can be stored, no partition is fetched, but the client is polled, so that the group keeps the process
//! as a member.

use super::observer::IntakeObserver;
use super::partitions::Partitions;
use super::spec::IntakeSpec;
use crate::backoff::Backoff;
use crate::inbox::batch::{Batch, Partition};
use crate::inbox::kafka::{
    Decision, Decisions, KafkaErrorCode, KafkaSource, KafkaSourceConfig, Polled,
};
use crate::inbox::store::{InboxStore, StoreError, Stored, StoredOffset};
use crate::intake_status::IntakeState;
use crate::pipeline::Stop;
use crate::postgres::{SourceError, error_policy};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest wait for an event of the client; a stop is noticed after it.
const POLL_MAX: Duration = Duration::from_millis(100);

/// Pauses after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));

/// Bytes of a batch, after which it is stored.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// Attempts of a transaction that another one was in the way of, before the partitions are placed again.
const CONFLICTS_MAX: u32 = 5;

/// Pause between two looks at blocked partitions, and at a full inbox.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Pause between two reports of lag and number of messages that wait, and two commits of offsets to Kafka.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A full inbox is read into again when this part of the largest number has been processed: a tenth.
const RESUME_PART: u64 = 10;

/// A client whose login was refused is made again after this time, with secrets that are read again.
const REOPEN_AFTER: Duration = Duration::from_secs(15);

/// Why nothing is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    /// Records are fetched and stored.
    Open,
    /// Nothing is fetched until the partitions are placed, not before this time.
    Held(Instant),
}

/// Runs an intake until a stop is requested. A client that can't be made, because a file of a certificate is missing,
/// is tried again.
pub(super) async fn run(
    spec: &IntakeSpec,
    config: &KafkaSourceConfig,
    stop: &Stop,
    mut observer: IntakeObserver,
) {
    let mut backoff = BACKOFF;
    while !stop.is_requested() {
        observer.turns();
        match open(config, &spec.name) {
            Ok(source) => {
                return KafkaIntake::new((spec, config), stop, observer, source).run().await;
            }
            Err(error) => {
                let hint = "check the files that the ssl.* and sasl.* properties name".to_owned();
                observer.waits(IntakeState::BrokerDown, &error, Some(&hint));
            }
        }
        tokio::select! {
            () = stop.drain() => {}
            () = tokio::time::sleep(backoff.next(fastrand::f64())) => {}
        }
    }
    observer.stopped();
}

/// One intake that reads Kafka.
struct KafkaIntake<'a> {
    spec: &'a IntakeSpec,
    config: &'a KafkaSourceConfig,
    stop: &'a Stop,
    observer: IntakeObserver,
    source: KafkaSource,
    /// The session; `None` after a failure.
    store: Option<InboxStore>,
    partitions: Partitions,
    flow: Flow,
    batch: Batch,
    /// Messages of a batch at most: fewer for a while after one took too long.
    batch_max: usize,
    backoff: Backoff,
    /// The inbox was full when it was last counted.
    is_full: bool,
    /// The group has answered: it has assigned partitions, or none.
    is_member: bool,
    /// The broker can't be reached, or refuses requests, as far as its errors say.
    is_broker_down: bool,
    /// When the client is made again.
    reopen_at: Option<Instant>,
    reported_at: Instant,
    looked_at: Instant,
}

/// Why partitions could not be placed.
enum PlaceError {
    Database(SourceError),
    Broker(String),
}

impl From<SourceError> for PlaceError {
    fn from(error: SourceError) -> Self {
        Self::Database(error)
    }
}

impl<'a> KafkaIntake<'a> {
    fn new(
        (spec, config): (&'a IntakeSpec, &'a KafkaSourceConfig),
        stop: &'a Stop,
        observer: IntakeObserver,
        source: KafkaSource,
    ) -> Self {
        let now = Instant::now();
        Self {
            spec,
            config,
            stop,
            observer,
            source,
            store: None,
            partitions: Partitions::default(),
            flow: Flow::Held(now),
            batch: Batch::default(),
            batch_max: spec.batch_messages,
            backoff: BACKOFF,
            is_full: false,
            is_member: false,
            is_broker_down: false,
            reopen_at: None,
            reported_at: now,
            looked_at: now,
        }
    }

    /// Stores records until a stop is requested. What was read and not stored is read again by the next owner of the
    /// partition.
    async fn run(mut self) {
        while !self.stop.is_requested() {
            self.observer.turns();
            self.reopen_if_due();
            match self.flow {
                Flow::Open => self.stores().await,
                Flow::Held(until) => self.places(until).await,
            }
        }
        self.observer.stopped();
    }

    /// Makes the client again, with secrets that are read again.
    fn reopen_if_due(&mut self) {
        if self.reopen_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.reopen_at = None;
        match open(self.config, &self.spec.name) {
            Ok(source) => {
                self.source = source;
                self.partitions.revoke();
                (self.is_broker_down, self.is_member) = (false, false);
                self.hold(Duration::ZERO);
            }
            Err(error) => {
                // A file may be missing in the middle of a rotation.
                self.reopen_at = Some(Instant::now() + REOPEN_AFTER);
                self.broker_fails(&error, None);
            }
        }
    }

    /// Nothing is fetched: places the partitions if it is time.
    async fn places(&mut self, until: Instant) {
        if self.partitions.assigned().is_empty() {
            self.poll(POLL_MAX);
            self.looks_for_broker();
            if !self.is_broker_down {
                self.observer.stands_by(self.is_member);
            }
            return;
        }
        let wait = until.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            self.poll(wait.min(POLL_MAX));
            return;
        }
        match self.place().await {
            Ok(true) => {
                self.backoff.reset();
                self.is_broker_down = false;
                let read = self.partitions.fetched();
                self.observer.stores(read);
                if read > 0 {
                    self.flow = Flow::Open;
                } else {
                    self.flow = Flow::Held(Instant::now() + LOOK_AGAIN);
                }
            }
            // The inbox is full, or another process has begun a topic.
            Ok(false) => self.flow = Flow::Held(Instant::now() + REPORT_INTERVAL),
            Err(PlaceError::Database(error)) => self.database_fails(&error),
            Err(PlaceError::Broker(error)) => self.broker_fails(&error, None),
        }
    }

    /// Now and then while the broker is not available and nothing is assigned: whether it answers again.
    fn looks_for_broker(&mut self) {
        if self.is_broker_down && self.looked_at.elapsed() >= LOOK_AGAIN {
            self.looked_at = Instant::now();
            if self.source.answers() {
                self.broker_answers();
            }
        }
    }

    fn broker_answers(&mut self) {
        if std::mem::take(&mut self.is_broker_down) {
            self.backoff.reset();
            self.observer.broker_answers();
        }
    }

    /// Places the assigned partitions at their stored offsets, and fetches them; false if that has to be tried again: the
    /// inbox is full, or another process has begun a topic meanwhile.
    async fn place(&mut self) -> Result<bool, PlaceError> {
        if !self.has_room().await? {
            return Ok(false);
        }
        let cluster = self.source.cluster().map_err(PlaceError::Broker)?;
        let store = session(&mut self.store, self.spec).await?;
        store.set_cluster(&cluster);
        self.partitions.set_cluster(cluster);
        let assigned: Vec<Partition> = self.partitions.assigned().iter().cloned().collect();
        let known = store.known_topics().await?;
        let stored = store.offsets(&assigned).await?;
        let decided = self.source.decide(self.partitions.assigned(), &stored, &known);
        let decided = decided.map_err(PlaceError::Broker)?;
        let new = new_offsets(&decided);
        if !store.begin_partitions(&known, &new).await? {
            // Another process has begun a topic meanwhile, so where they begin is decided again.
            return Ok(false);
        }
        for (partition, offset) in new.iter().filter(|(it, _)| !stored.contains_key(it)) {
            self.observer.begins(&partition.topic, partition.number, offset.next);
        }
        // Another process may have begun one of them meanwhile.
        let stored = store.offsets(&assigned).await?;
        self.fetch(decided, &stored).map_err(PlaceError::Broker)?;
        Ok(true)
    }

    /// Fetches what is not blocked.
    fn fetch(
        &mut self,
        decisions: Decisions,
        stored: &BTreeMap<Partition, StoredOffset>,
    ) -> Result<(), String> {
        let fetched_from = self.partitions.place(decisions, stored).map_err(|partition| {
            format!("the first offset of {partition:?} is not stored any more")
        })?;
        self.observer.blocked(self.partitions.blocked(&self.spec.name));
        self.looked_at = Instant::now();
        self.source.assign(&fetched_from).map_err(|error| error.to_string())
    }

    /// Whether the inbox has room, by the number of messages that wait.
    async fn has_room(&mut self) -> Result<bool, SourceError> {
        let Some(max) = self.spec.pending_max else { return Ok(true) };
        let pending = session(&mut self.store, self.spec).await?.pending().await?;
        self.observer.pending(pending);
        let limit = if self.is_full { max - max / RESUME_PART } else { max };
        self.is_full = pending >= limit.max(1);
        if self.is_full {
            let reason = format!(
                "{pending} messages of inbox \"{}\" wait to be processed, and the limit is {max}",
                self.spec.inbox.inbox
            );
            let hint = "start more workers, or raise pending_max".to_owned();
            self.observer.waits(IntakeState::Full, &reason, Some(&hint));
        }
        Ok(!self.is_full)
    }

    /// Reads what has come, and stores it.
    async fn stores(&mut self) {
        self.gather();
        if self.flow != Flow::Open {
            return;
        }
        if !self.batch.is_empty() {
            self.store_batch().await;
        }
        if self.flow == Flow::Open {
            self.reports().await;
        }
    }

    /// Reads records until the batch is full, or none is there.
    fn gather(&mut self) {
        let mut wait = POLL_MAX;
        while self.batch.len() < self.batch_max && self.batch.size_bytes() < BATCH_BYTES_MAX {
            if !self.poll(wait) || self.flow != Flow::Open {
                return;
            }
            wait = Duration::ZERO;
        }
    }

    /// Takes one event; false if there was none.
    fn poll(&mut self, wait: Duration) -> bool {
        let Self { source, partitions, batch, spec, store, .. } = self;
        let requirements = store.as_ref().map(|store| store.requirements().clone());
        let mut truncated = None;
        let polled = source.poll(wait, &mut |record| {
            // Without a session nothing is fetched.
            let Some(requirements) = &requirements else { return };
            let taken = partitions.take(batch, (&spec.rules, requirements), record);
            truncated = taken.err();
        });
        if let Some(partition) = truncated {
            self.partitions.is_truncated(partition);
            self.hold(Duration::ZERO);
        }
        match polled {
            Polled::Nothing => return false,
            Polled::Record => {}
            Polled::Assigned(partitions) => {
                self.broker_answers();
                self.is_member = true;
                self.partitions.assign(partitions);
                self.hold(Duration::ZERO);
            }
            Polled::Revoked => {
                self.partitions.revoke();
                self.observer.blocked(Vec::new());
                self.hold(Duration::ZERO);
            }
            Polled::Error { code, partition, reason } => {
                self.fails(code, partition.as_ref(), &reason);
            }
        }
        true
    }

    /// The client reports an error.
    #[expect(clippy::wildcard_enum_match_arm, reason = "librdkafka's list is open")]
    fn fails(&mut self, code: KafkaErrorCode, partition: Option<&Partition>, reason: &str) {
        match code {
            // The stored offset is not in the log any more: where the partition continues is decided again.
            KafkaErrorCode::AutoOffsetReset | KafkaErrorCode::OffsetOutOfRange => {
                tracing::debug!(
                    event = "intake_client_error",
                    intake = self.spec.name,
                    ?code,
                    ?partition,
                    reason
                );
                self.hold(REPORT_INTERVAL);
            }
            KafkaErrorCode::Authentication
            | KafkaErrorCode::SaslAuthenticationFailed
            | KafkaErrorCode::SSL => {
                let at = Instant::now() + REOPEN_AFTER;
                self.reopen_at.get_or_insert(at);
                self.broker_fails(reason, Some(LOGIN_HINT));
            }
            KafkaErrorCode::Fatal => {
                self.reopen_at.get_or_insert(Instant::now());
                self.broker_fails(reason, None);
            }
            // Other topics are read meanwhile.
            KafkaErrorCode::UnknownTopicOrPartition | KafkaErrorCode::UnknownTopic => {
                self.observer.warns(reason, TOPIC_HINT);
            }
            KafkaErrorCode::TopicAuthorizationFailed | KafkaErrorCode::GroupAuthorizationFailed => {
                let group = &self.config.group;
                let hint =
                    format!("give the user the right to read the topics and the group \"{group}\"");
                self.observer.warns(reason, &hint);
            }
            KafkaErrorCode::AllBrokersDown => {
                let hint = "check `brokers`, the network, and that the brokers run";
                self.broker_fails(reason, Some(hint));
            }
            // A single connection: the client has others, and tries again.
            _ => tracing::debug!(
                event = "intake_client_error",
                intake = self.spec.name,
                ?code,
                reason
            ),
        }
    }

    /// The broker is not available. What is assigned stays so; the client tries again by itself.
    fn broker_fails(&mut self, reason: &str, hint: Option<&str>) {
        self.is_broker_down = true;
        self.observer.waits(IntakeState::BrokerDown, reason, hint);
        let pause = self.backoff.next(fastrand::f64());
        self.hold(pause);
    }

    /// The database is not available, or refuses a statement. A new session is opened after a pause.
    fn database_fails(&mut self, error: &SourceError) {
        self.store = None;
        let hint = super::hint(error, &self.spec.inbox.inbox).or_else(|| error_policy::hint(error));
        self.observer.waits(IntakeState::DatabaseDown, &error.to_string(), hint.as_deref());
        let pause = self.backoff.next(fastrand::f64());
        self.hold(pause);
    }

    /// Fetches nothing, and places the partitions again after `pause`. What was read and not stored is dropped.
    fn hold(&mut self, pause: Duration) {
        self.batch.clear();
        self.partitions.hold();
        self.flow = Flow::Held(Instant::now() + pause);
        if let Err(error) = self.source.hold() {
            // A client that is closed by a fatal error.
            tracing::debug!(event = "intake_client_error", intake = self.spec.name, %error);
            self.reopen_at.get_or_insert(Instant::now());
        }
    }

    /// Stores the batch.
    async fn store_batch(&mut self) {
        let mut conflicts = 0;
        loop {
            let Some(store) = &mut self.store else { return self.hold(Duration::ZERO) };
            let error = match store.store(&self.batch).await {
                Ok(stored) => return self.ends(stored),
                Err(error) => error,
            };
            match error {
                StoreError::Value(_) => return self.store_each().await,
                StoreError::Conflict(error) if conflicts == CONFLICTS_MAX => {
                    return self.database_fails(&error);
                }
                StoreError::Conflict(_) => {
                    conflicts += 1;
                    let pause = Duration::from_millis(20).mul_f64(fastrand::f64());
                    tokio::time::sleep(pause * conflicts).await;
                }
                StoreError::TooLong(error) => {
                    self.batch_max = (self.batch.len() / 2).max(1);
                    return self.database_fails(&error);
                }
                StoreError::Database(error) => return self.database_fails(&error),
            }
        }
    }

    /// The server has refused a value of a message: stores them one by one, so that the others are not held back.
    async fn store_each(&mut self) {
        let Some(store) = &mut self.store else { return self.hold(Duration::ZERO) };
        match store.requirements_changed().await {
            // The messages were made for an inbox with another order or other priorities: they are read again.
            Ok(true) => return self.hold(Duration::ZERO),
            Ok(false) => {}
            Err(error) => return self.database_fails(&error),
        }
        match store.store_each(&self.batch).await {
            Ok(stored) => self.ends(stored),
            Err(error) => self.database_fails(error.error()),
        }
    }

    /// A transaction has ended.
    fn ends(&mut self, stored: Stored) {
        let Stored::Committed(counts) = stored else {
            self.observer.moved();
            return self.hold(Duration::ZERO);
        };
        self.partitions.stored(&self.batch);
        self.observer.stored(&counts);
        self.batch.clear();
        self.backoff.reset();
        self.batch_max = self.batch_max.saturating_mul(2).min(self.spec.batch_messages);
    }

    /// Now and then: whether the inbox is full, how far behind the intake is, and whether a blocked partition can be
    /// read again.
    async fn reports(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.reported_at) >= REPORT_INTERVAL {
            self.reported_at = now;
            self.report_lag();
            match self.has_room().await {
                Ok(true) => {}
                Ok(false) => return self.hold(REPORT_INTERVAL),
                Err(error) => return self.database_fails(&error),
            }
        }
        let waiting = self.partitions.waiting();
        if !waiting.is_empty() && now.duration_since(self.looked_at) >= LOOK_AGAIN {
            self.looked_at = now;
            if let Err(error) = self.look_at_blocked(&waiting).await {
                self.database_fails(&error);
            }
        }
    }

    /// Places the partitions again if a person has changed the offset of a blocked one, or if the brokers have an answer
    /// about one that had none.
    async fn look_at_blocked(&mut self, waiting: &[Partition]) -> Result<(), SourceError> {
        let store = session(&mut self.store, self.spec).await?;
        let (known, stored) = (store.known_topics().await?, store.offsets(waiting).await?);
        let unanswered = self.partitions.unanswered();
        if self.partitions.is_decided(&stored)
            || self.source.has_answer(&unanswered, &stored, &known)
        {
            self.hold(Duration::ZERO);
        }
        Ok(())
    }

    fn report_lag(&self) {
        let offsets = self.partitions.offsets();
        let behind = offsets.iter().map(|(partition, stored)| {
            let behind = self.source.high(partition)? - stored;
            Some(u64::try_from(behind).unwrap_or(0))
        });
        self.observer.lag(behind.sum());
        self.source.show_offsets(&offsets);
    }
}

const LOGIN_HINT: &str = "check the login (sasl.username, sasl.password) and the certificates (ssl.*); files that were \
                          replaced are read again within 15 s";

const TOPIC_HINT: &str = "create the topic, or correct `topics`";

fn open(config: &KafkaSourceConfig, name: &str) -> Result<KafkaSource, String> {
    KafkaSource::open(config, &format!("postrider-inbox-{name}")).map_err(|error| error.to_string())
}

/// The session, which is opened if there is none.
async fn session<'s>(
    store: &'s mut Option<InboxStore>,
    spec: &IntakeSpec,
) -> Result<&'s mut InboxStore, SourceError> {
    if let Some(store) = store {
        return Ok(store);
    }
    let label = format!("postrider inbox {}", spec.name);
    Ok(store.insert(InboxStore::connect(&spec.inbox, &label).await?))
}

/// The offsets that are stored before the partitions are fetched: of new partitions, and ids of topics.
fn new_offsets(decided: &Decisions) -> BTreeMap<Partition, StoredOffset> {
    let mut new = BTreeMap::new();
    for (partition, (decision, topic_id)) in decided {
        let at = match decision {
            Decision::Begin { at } | Decision::Continue { at, is_id_new: true, .. } => *at,
            Decision::Continue { .. } | Decision::Blocked(_) => continue,
        };
        let offset = StoredOffset { next: at, leader_epoch: None, topic_id: topic_id.clone() };
        new.insert(partition.clone(), offset);
    }
    new
}
