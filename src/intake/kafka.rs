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

use super::client::IntakeClient;
use super::observer::IntakeObserver;
use super::partitions::Partitions;
use super::room::{COUNT_INTERVAL, Room};
use super::spec::IntakeSpec;
use super::writer::{BACKOFF, BATCH_BYTES_MAX, InboxWriter, Written};
use crate::inbox::batch::{Batch, Partition};
use crate::inbox::kafka::{Decision, Decisions, KafkaErrorCode, KafkaSourceConfig, Polled};
use crate::inbox::store::{InboxStore, StoredOffset, Unstorable};
use crate::intake_status::IntakeState;
use crate::pipeline::Stop;
use crate::postgres::SourceError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest wait for an event of the client; a stop is noticed after it.
const POLL_MAX: Duration = Duration::from_millis(100);

/// Pause between two comparisons of the stored offsets, and between two questions about the lag while nothing is
/// fetched.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How long the questions about the lag may take while nothing is fetched.
const LAG_MAX: Duration = Duration::from_secs(2);

/// Whether records are fetched.
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
        match IntakeClient::open(config, &spec.name) {
            Ok(client) => return KafkaIntake::new(spec, stop, observer, client).run().await,
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
    stop: &'a Stop,
    observer: IntakeObserver,
    client: IntakeClient<'a>,
    writer: InboxWriter,
    room: Room,
    partitions: Partitions,
    flow: Flow,
    batch: Batch,
    /// When lag and messages that wait were last reported.
    reported_at: Instant,
    /// When the stored offsets were last read.
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
        spec: &'a IntakeSpec,
        stop: &'a Stop,
        observer: IntakeObserver,
        client: IntakeClient<'a>,
    ) -> Self {
        let now = Instant::now();
        Self {
            spec,
            stop,
            observer,
            client,
            writer: InboxWriter::new(spec),
            room: Room::new(spec),
            partitions: Partitions::default(),
            flow: Flow::Held(now),
            batch: Batch::default(),
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
        self.client.source().show_offsets(&self.partitions.offsets());
        self.observer.stopped();
    }

    /// Makes the client again, with secrets that are read again.
    fn reopen_if_due(&mut self) {
        match self.client.reopens() {
            None => {}
            Some(Ok(())) => {
                self.partitions.revoke();
                self.hold(Duration::ZERO);
            }
            Some(Err(error)) => self.broker_fails(&error, None),
        }
    }

    /// Nothing is fetched: places the partitions if it is time.
    async fn places(&mut self, until: Instant) {
        if self.partitions.assigned().is_empty() {
            self.poll(POLL_MAX);
            if self.client.asks_broker() {
                self.broker_answers();
            }
            if !self.client.is_broker_down() {
                self.observer.stands_by(self.client.is_member());
            }
            return;
        }
        self.reports_held();
        let wait = until.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            self.poll(wait.min(POLL_MAX));
            return;
        }
        match self.place().await {
            Ok(true) => {
                self.client.broker_answers();
                self.observer.stores(self.partitions.read());
                if self.partitions.fetched() > 0 {
                    self.flow = Flow::Open;
                } else {
                    self.flow = Flow::Held(Instant::now() + LOOK_AGAIN);
                }
            }
            // The inbox is full, or another process has begun a topic.
            Ok(false) => self.flow = Flow::Held(Instant::now() + COUNT_INTERVAL),
            Err(PlaceError::Database(error)) => self.database_fails(&error),
            Err(PlaceError::Broker(error)) => self.broker_fails(&error, None),
        }
    }

    fn broker_answers(&mut self) {
        if self.client.broker_answers() {
            self.observer.broker_answers();
        }
    }

    /// Places the assigned partitions at their stored offsets, and fetches them; false if that has to be tried again:
    /// the inbox is full, or another process has begun a topic meanwhile.
    async fn place(&mut self) -> Result<bool, PlaceError> {
        if !self.has_room().await? {
            return Ok(false);
        }
        let cluster = self.client.source().cluster().map_err(PlaceError::Broker)?;
        self.partitions.set_cluster(cluster.clone());
        let assigned: Vec<Partition> = self.partitions.assigned().iter().cloned().collect();
        let known = async |store: &mut InboxStore| {
            store.set_cluster(&cluster);
            Ok((store.known_topics().await?, store.offsets(&assigned).await?))
        };
        let (known, stored) = self.writer.ask(known).await?;
        let decided = self.client.source().decide(self.partitions.assigned(), &stored, &known);
        let decided = decided.map_err(PlaceError::Broker)?;
        let new = new_offsets(&decided);
        let begin = async |store: &mut InboxStore| {
            let begun = store.begin_partitions(&known, &new).await?;
            Ok(if begun { Some(store.offsets(&assigned).await?) } else { None })
        };
        let Some(placed) = self.writer.ask(begin).await? else {
            // Another process has begun a topic meanwhile, so where they begin is decided again.
            return Ok(false);
        };
        for (partition, offset) in new.iter().filter(|(it, _)| !stored.contains_key(it)) {
            self.observer.begins(&partition.topic, partition.number, offset.next);
        }
        self.fetch(decided, &placed).map_err(PlaceError::Broker)?;
        Ok(true)
    }

    /// Fetches what is not blocked.
    fn fetch(
        &mut self,
        decisions: Decisions,
        stored: &BTreeMap<Partition, StoredOffset>,
    ) -> Result<(), String> {
        let now = Instant::now();
        let fetched_from = self.partitions.place(decisions, stored, now).map_err(|partition| {
            format!("the first offset of {partition:?} is not stored any more")
        })?;
        self.observer.blocked(self.partitions.blocked(&self.spec.name));
        self.looked_at = now;
        self.client.source().assign(&fetched_from).map_err(|error| error.to_string())
    }

    /// Whether the inbox has room, by the number of messages that wait.
    async fn has_room(&mut self) -> Result<bool, SourceError> {
        let pending = self.writer.ask(async |store| store.pending().await).await?;
        Ok(self.room.counted(pending, &mut self.observer))
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
        // What precedes a refused message is stored in the next turn, before its partition is blocked.
        if self.flow != Flow::Open || !self.batch.is_empty() {
            return;
        }
        if self.partitions.is_due() || self.partitions.is_retry_due(Instant::now()) {
            self.hold(Duration::ZERO);
        } else {
            self.reports().await;
        }
    }

    /// Reads records until the batch is full, or none is there.
    fn gather(&mut self) {
        let mut wait = POLL_MAX;
        while self.batch.len() < self.writer.batch_max()
            && self.batch.size_bytes() < BATCH_BYTES_MAX
        {
            if !self.poll(wait) || self.flow != Flow::Open {
                return;
            }
            wait = Duration::ZERO;
        }
    }

    /// Takes one event; false if there was none.
    fn poll(&mut self, wait: Duration) -> bool {
        let Self { client, partitions, batch, spec, writer, .. } = self;
        let requirements = writer.requirements();
        let mut truncated = None;
        let polled = client.source().poll(wait, &mut |record| {
            // Without a session nothing is fetched.
            let Some(requirements) = requirements else { return };
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
                self.client.joins();
                self.partitions.assign(partitions);
                self.hold(Duration::ZERO);
            }
            Polled::Revoked => {
                self.partitions.revoke();
                self.observer.blocked(Vec::new());
                self.observer.lag(None);
                self.hold(Duration::ZERO);
            }
            Polled::End { partition, offset } => {
                self.partitions.ends(&mut self.batch, &partition, offset);
            }
            Polled::Error { code, partition, reason } => self.fails(code, partition, &reason),
        }
        true
    }

    /// The client reports an error.
    fn fails(&mut self, code: KafkaErrorCode, of: Option<(Partition, i64)>, reason: &str) {
        tracing::debug!(
            event = "intake_client_error",
            intake = self.spec.name,
            ?code,
            partition = ?of,
            reason
        );
        match (code, of) {
            // The stored offset is not in the log any more: where the partition continues is decided again.
            (KafkaErrorCode::AutoOffsetReset | KafkaErrorCode::OffsetOutOfRange, _) => {
                self.hold(COUNT_INTERVAL);
            }
            // The topic may have been deleted and created again: its id is compared.
            (
                KafkaErrorCode::UnknownTopicOrPartition
                | KafkaErrorCode::UnknownTopic
                | KafkaErrorCode::UnknownPartition
                | KafkaErrorCode::UnknownTopicId,
                _,
            ) => {
                self.observer.warns(reason, TOPIC_HINT);
                self.hold(COUNT_INTERVAL);
            }
            (
                KafkaErrorCode::Authentication
                | KafkaErrorCode::SaslAuthenticationFailed
                | KafkaErrorCode::SSL,
                _,
            ) => {
                self.client.is_refused();
                self.broker_fails(reason, Some(LOGIN_HINT));
            }
            (KafkaErrorCode::Fatal, _) => {
                self.client.is_closed();
                self.broker_fails(reason, None);
            }
            (
                KafkaErrorCode::TopicAuthorizationFailed | KafkaErrorCode::GroupAuthorizationFailed,
                _,
            ) => {
                let group = self.client.group();
                let hint =
                    format!("give the user the right to read the topics and the group \"{group}\"");
                self.observer.warns(reason, &hint);
            }
            (KafkaErrorCode::AllBrokersDown, _) => {
                let hint = "check `brokers`, the network, and that the brokers run";
                self.broker_fails(reason, Some(hint));
            }
            // The client goes on behind such a record, or asks for it for ever.
            (
                KafkaErrorCode::BadMessage
                | KafkaErrorCode::BadCompression
                | KafkaErrorCode::NotImplemented
                | KafkaErrorCode::InvalidMessage
                | KafkaErrorCode::InvalidMessageSize
                | KafkaErrorCode::MessageSizeTooLarge,
                Some((partition, at)),
            ) => self.partitions.is_unreadable(partition, at, reason),
            // Other partitions are read meanwhile.
            (_, Some(_)) => self.observer.warns(reason, PARTITION_HINT),
            // A broker has refused a request, for instance to join the group.
            (_, None) if code as i32 > 0 => self.observer.warns(reason, GROUP_HINT),
            // A single connection: the client has others, and tries again.
            (_, None) => {}
        }
    }

    /// The broker is not available. What is assigned stays so; the client tries again by itself.
    fn broker_fails(&mut self, reason: &str, hint: Option<&str>) {
        self.observer.waits(IntakeState::BrokerDown, reason, hint);
        self.observer.lag(None);
        let pause = self.client.broker_fails();
        self.hold(pause);
    }

    /// The database is not available, or refuses a statement. A new session is opened after a pause.
    fn database_fails(&mut self, error: &SourceError) {
        let pause = self.writer.fails(error, &mut self.observer);
        self.hold(pause);
    }

    /// Fetches nothing, and places the partitions again after `pause`. What was read and not stored is dropped.
    fn hold(&mut self, pause: Duration) {
        self.batch.clear();
        self.partitions.hold();
        self.flow = Flow::Held(Instant::now() + pause);
        if let Err(error) = self.client.source().hold() {
            // A client that is closed by a fatal error.
            tracing::debug!(event = "intake_client_error", intake = self.spec.name, %error);
            self.client.is_closed();
        }
    }

    /// Stores the batch. Before that the ids of the topics are compared: what was read until now is of the topics that
    /// have them.
    async fn store_batch(&mut self) {
        match self.client.source().are_same(&self.partitions.topic_ids()) {
            Ok(true) => {}
            Ok(false) => return self.hold(Duration::ZERO),
            Err(error) => return self.broker_fails(&error, None),
        }
        match self.writer.write(&self.batch).await {
            Written::Refused(_) => self.store_each().await,
            written @ (Written::Committed(_)
            | Written::Moved
            | Written::Unstorable(_)
            | Written::Failed(_)) => self.ends(written),
        }
    }

    /// The server has refused a value of a message: stores them one by one, so that the others are not held back.
    async fn store_each(&mut self) {
        match self.writer.ask(async |store| store.requirements_changed().await).await {
            // The messages were made for an inbox with another order or other priorities: they are read again.
            Ok(true) => return self.hold(Duration::ZERO),
            Ok(false) => {}
            Err(error) => return self.database_fails(&error),
        }
        let written = self.writer.write_each(&self.batch).await;
        self.ends(written);
    }

    /// The table refuses messages even as dead ones: each blocks its partition. The rest of the batch is stored in the
    /// next turn, so that no turn takes longer than one batch.
    fn refuses(&mut self, messages: &[Unstorable]) {
        let now = Instant::now();
        for Unstorable { origin, error } in messages {
            let partition = origin.as_ref().and_then(|origin| self.batch.partition(origin));
            // Every message of this batch is of a record.
            let (Some(origin), Some(partition)) = (origin, partition) else {
                return self.database_fails(error);
            };
            self.observer.refuses(&partition, error);
            let constraint = error.report().and_then(|report| report.constraint.clone());
            let said = (error.to_string(), constraint);
            self.partitions.is_unstorable(partition, origin.offset(), said, now);
            self.batch.cut(origin);
        }
    }

    /// A transaction has ended.
    fn ends(&mut self, written: Written) {
        match written {
            Written::Committed(counts) => {
                let ends_block = self.partitions.stored(&self.batch);
                self.observer.stored(&counts);
                if ends_block {
                    self.observer.blocked(self.partitions.blocked(&self.spec.name));
                    self.observer.stores(self.partitions.read());
                }
                self.room.fills(self.batch.len());
                self.batch.clear();
            }
            Written::Moved => {
                self.observer.moved();
                self.hold(Duration::ZERO);
            }
            Written::Unstorable(messages) => self.refuses(&messages),
            Written::Refused(error) | Written::Failed(error) => self.database_fails(&error),
        }
    }

    /// Now and then: whether the inbox is full, how far behind the intake is, and whether a person or another process
    /// has changed a stored offset.
    async fn reports(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.reported_at) >= COUNT_INTERVAL {
            self.reported_at = now;
            self.report_lag();
            match self.has_room().await {
                Ok(true) => {}
                Ok(false) => return self.hold(COUNT_INTERVAL),
                Err(error) => return self.database_fails(&error),
            }
        }
        if now.duration_since(self.looked_at) >= LOOK_AGAIN {
            self.looked_at = now;
            if let Err(error) = self.compare_offsets().await {
                self.database_fails(&error);
            }
        }
    }

    /// Places the partitions again if a stored offset is not the expected one: without it, a change would be noticed
    /// with the next record of the partition only, and one of a blocked partition never. So it does if the brokers have
    /// an answer about a partition that had none.
    async fn compare_offsets(&mut self) -> Result<(), SourceError> {
        let assigned: Vec<Partition> = self.partitions.assigned().iter().cloned().collect();
        let read = async |store: &mut InboxStore| {
            Ok((store.known_topics().await?, store.offsets(&assigned).await?))
        };
        let (known, stored) = self.writer.ask(read).await?;
        if self.partitions.are_lost(&stored) {
            // The inbox was dropped: the next session finds out whether there is another one of its name.
            self.writer.close();
        }
        if self.partitions.is_moved(&stored) {
            self.observer.moved();
            self.hold(Duration::ZERO);
        } else if self.client.source().has_answer(&self.partitions.unanswered(), &stored, &known) {
            self.hold(Duration::ZERO);
        }
        Ok(())
    }

    /// By what the last fetches have shown.
    fn report_lag(&self) {
        let offsets = self.partitions.offsets();
        let source = self.client.source();
        // What waits behind a refused message is not counted, as between its tries.
        let read = offsets.iter().filter(|(partition, _)| !self.partitions.is_tried(partition));
        let behind = read.map(|(partition, stored)| {
            let behind = source.high(partition)? - stored;
            Some(u64::try_from(behind).unwrap_or(0))
        });
        self.observer.lag(behind.sum());
        source.show_offsets(&offsets);
    }

    /// Now and then while nothing is fetched: how far behind the intake is, as a broker says it. Fetches show nothing
    /// then, and the last number would seem to be true for as long as the outage lasts.
    fn reports_held(&mut self) {
        if self.reported_at.elapsed() < LOOK_AGAIN {
            return;
        }
        let offsets = self.partitions.offsets();
        let is_known = !self.client.is_broker_down() && !offsets.is_empty();
        let lag = is_known.then(|| self.client.source().lag(&offsets, LAG_MAX)).flatten();
        self.observer.lag(lag);
        self.client.source().show_offsets(&offsets);
        self.reported_at = Instant::now();
    }
}

const LOGIN_HINT: &str = "check the login (sasl.username, sasl.password) and the certificates (ssl.*); files that were \
                          replaced are read again within 15 s";

const PARTITION_HINT: &str = "the client tries again; look at the brokers' logs if it does not end";

const GROUP_HINT: &str = "all members of a group must be intakes of one configuration: give this one a \
                          `group` of its own";

const TOPIC_HINT: &str = "create the topic, or correct `topics`";

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
