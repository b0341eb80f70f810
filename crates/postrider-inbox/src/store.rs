//! The session that stores messages in an inbox.
//!
//! Messages and the offsets of their partitions are written in one transaction. An offset is written only if it is
//! still the one that the batch begins at, so a process that has lost a partition without knowing it commits nothing,
//! and neither does one that repeats a transaction whose commit was not answered.

use crate::batch::{Batch, Origin, Partition, Span};
use crate::message::Requirements;
use crate::message::{Body, Message, Remembered};
use postrider_postgres::control::Control;
use postrider_postgres::names::ident;
use postrider_postgres::{Conninfo, SourceError, SourceErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

/// The longest time for a login.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// The channel on which the SQL toolkit announces a message that has become dead.
const DEAD_CHANNEL: &str = "postrider_inbox_dead";

/// The sender of a webhook forgets a message that is acknowledged. Other sessions commit without waiting for the
/// synchronous standby, which would lose such a message in a failover.
const WAIT_FOR_STANDBY: &str = "SET synchronous_commit = 'on'";

/// Bytes of an error text that are stored with a dead message.
const ERROR_BYTES_MAX: usize = 500;

/// Where the messages go.
#[derive(Clone, Debug)]
pub struct InboxSpec {
    /// The name of the inbox in the database.
    pub inbox: String,
    /// The database.
    pub conninfo: Conninfo,
}

/// A message that the table refuses even as a dead one, without type and trace.
#[derive(Debug)]
pub struct Unstorable {
    /// The record that it came from; `None` if it did not come from a partition.
    pub origin: Option<Origin>,
    /// What the server said.
    pub error: SourceError,
}

/// What became of a batch.
#[derive(Debug)]
pub enum Stored {
    /// It is committed.
    Committed(Counts),
    /// Another process, or an operator, has changed the offset of a partition: nothing is stored, and each partition
    /// continues at its stored offset.
    Moved,
    /// Only of [`InboxStore::store_each`]: the table refuses these messages, at most one of each partition, and nothing
    /// is stored. Later messages of their partitions were not tried. Without them the batch can be stored.
    Refused(Vec<Unstorable>),
}

/// Numbers of messages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Stored as pending.
    pub stored: u64,
    /// Known before, and not stored.
    pub repeated: u64,
    /// Stored as dead, each with its reason.
    pub dead: Vec<DeadMessage>,
}

/// A message that was stored as dead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadMessage {
    /// Its key in the inbox.
    pub event_id: String,
    /// Why, without its content.
    pub reason: String,
}

/// A stored offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredOffset {
    /// The offset of the next record.
    pub next: i64,
    /// The epoch of the leader that the record before it came from.
    pub leader_epoch: Option<i32>,
    /// The id of the topic that the offset is of.
    pub topic_id: Option<String>,
}

/// Whose turn it is to read a stream, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoredTurn {
    /// The number.
    pub number: i64,
    /// The process that moves it; `None`: none does.
    pub owner: Option<String>,
}

/// The topics of which an inbox has the offset of a partition.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct KnownTopics {
    /// Those of the cluster that is read.
    pub here: BTreeSet<String>,
    /// Those of other clusters.
    pub elsewhere: BTreeSet<String>,
}

/// Why a batch could not be stored.
#[derive(Debug)]
pub enum StoreError {
    /// The server refused a value of a message. [`InboxStore::store_each`] finds which.
    Value(SourceError),
    /// Another transaction was in the way: the batch can be stored again at once.
    Conflict(SourceError),
    /// The statement took too long: the batch may be too large.
    TooLong(SourceError),
    /// The database, or the way to it.
    Database(SourceError),
}

impl StoreError {
    /// The error of the server or of the connection.
    pub const fn error(&self) -> &SourceError {
        match self {
            Self::Value(error)
            | Self::Conflict(error)
            | Self::TooLong(error)
            | Self::Database(error) => error,
        }
    }

    /// Classifies an error by its SQLSTATE. `of_messages`: the statement has messages as its parameters.
    fn of(error: SourceError, of_messages: bool) -> Self {
        let Some(state) = error.sqlstate() else { return Self::Database(error) };
        match (state.as_str(), state.class()) {
            // Serialization failure, deadlock, a lock that was not free in time.
            ("40001" | "40P01" | "55P03", _) => Self::Conflict(error),
            ("57014", _) => Self::TooLong(error),
            // Values: no such text, number or JSON; a constraint of the table; too large for the server.
            // P0001: a trigger of the application refuses a row.
            (_, "22" | "23" | "54") | ("P0001", _) if of_messages => Self::Value(error),
            _ => Self::Database(error),
        }
    }
}

/// A session in the database of an inbox. Dropping it ends the session.
#[derive(Debug)]
pub struct InboxStore {
    control: Control,
    inbox: String,
    /// The id of the Kafka cluster whose offsets are read and written: another cluster has other records in topics of
    /// the same names. Empty if its brokers have none.
    cluster: String,
    /// What is remembered is remembered for this consumer.
    consumer: String,
    requirements: Requirements,
    statements: Statements,
}

/// Prepared statements.
#[derive(Debug)]
struct Statements {
    advance: Statement,
    insert: Statement,
}

impl InboxStore {
    /// Opens a session. `label` is for `application_name`.
    ///
    /// # Errors
    /// The database can't be reached, the SQL toolkit is not installed in this version, there is no such inbox
    /// (SQLSTATE PR121), it is an adopted table (PR124), or a right is missing.
    pub async fn connect(spec: &InboxSpec, label: &str) -> Result<Self, SourceError> {
        let opening = Self::open(spec, label);
        let opened = tokio::time::timeout(CONNECT_MAX, opening).await;
        opened.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(CONNECT_MAX);
            Err(SourceError::new(kind, "open a session in the database of the inbox")
                .caused_by(elapsed))
        })
    }

    async fn open(spec: &InboxSpec, label: &str) -> Result<Self, SourceError> {
        let control = Control::connect(&spec.conninfo, label).await?;
        let waits = control.client().batch_execute(WAIT_FOR_STANDBY).await;
        waits.map_err(|error| SourceError::control("set up the session of the inbox", error))?;
        let InboxFacts { table, created, requirements } = facts(&control, &spec.inbox).await?;
        // Of a former inbox of this name nothing is remembered: its messages are gone.
        let consumer = format!("inbox {} {created}", spec.inbox);
        let statements = Statements::prepare(&control, &table).await?;
        let (inbox, cluster) = (spec.inbox.clone(), String::new());
        Ok(Self { control, inbox, cluster, consumer, requirements, statements })
    }

    /// From now on offsets are those of this cluster.
    pub fn set_cluster(&mut self, cluster: &str) {
        cluster.clone_into(&mut self.cluster);
    }

    /// What the inbox requires of its messages.
    pub const fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    /// Reads again what the inbox requires; returns whether it has changed.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn requirements_changed(&mut self) -> Result<bool, SourceError> {
        let now = facts(&self.control, &self.inbox).await?.requirements;
        let changed = now != self.requirements;
        self.requirements = now;
        Ok(changed)
    }

    /// Stores a batch in one transaction.
    ///
    /// # Errors
    /// Nothing is stored; but after [`StoreError::Database`] without an SQLSTATE it is not known whether the
    /// transaction was committed. The stored offsets tell.
    pub async fn store(&mut self, batch: &Batch) -> Result<Stored, StoreError> {
        self.begin().await?;
        let result = self.write(batch).await;
        // A deferred constraint refuses a message at the commit.
        self.end(result, true).await
    }

    /// Stores a batch in one transaction, message by message. A message whose content the server can't store is stored
    /// with its content as bytes; one that is refused for another reason, or again, as a dead one, at last with its
    /// headers as bytes.
    ///
    /// # Errors
    /// Those of [`store`](Self::store).
    pub async fn store_each(&mut self, batch: &Batch) -> Result<Stored, StoreError> {
        self.begin().await?;
        let result = self.write_each(batch).await;
        self.end(result, false).await
    }

    async fn begin(&self) -> Result<(), StoreError> {
        let sql = "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE";
        self.run(sql, "begin a transaction in the inbox's database").await
    }

    /// Ends the transaction. `of_messages`: a value that the commit refuses is that of a message.
    async fn end(
        &self,
        result: Result<Stored, StoreError>,
        of_messages: bool,
    ) -> Result<Stored, StoreError> {
        match result {
            Ok(Stored::Committed(counts)) => {
                self.run_of("COMMIT", "commit messages to the inbox", of_messages).await?;
                Ok(Stored::Committed(counts))
            }
            Ok(stored @ (Stored::Moved | Stored::Refused(_))) => {
                self.run("ROLLBACK", "roll back a transaction in the inbox's database").await?;
                Ok(stored)
            }
            Err(error) => {
                // The next statement finds out if the session is gone.
                drop(self.control.client().batch_execute("ROLLBACK").await);
                Err(error)
            }
        }
    }

    async fn run(&self, sql: &str, doing: &str) -> Result<(), StoreError> {
        self.run_of(sql, doing, false).await
    }

    async fn run_of(&self, sql: &str, doing: &str, of_messages: bool) -> Result<(), StoreError> {
        let failed = |error| StoreError::of(SourceError::control(doing, error), of_messages);
        self.control.client().batch_execute(sql).await.map_err(failed)
    }

    async fn write(&self, batch: &Batch) -> Result<Stored, StoreError> {
        if !self.advance(batch).await? {
            return Ok(Stored::Moved);
        }
        let stored = self.insert(batch.messages()).await?;
        let counts = Counts::of(batch.messages(), &stored);
        self.announce(&counts).await?;
        Ok(Stored::Committed(counts))
    }

    async fn write_each(&self, batch: &Batch) -> Result<Stored, StoreError> {
        if !self.advance(batch).await? {
            return Ok(Stored::Moved);
        }
        let (mut counts, mut refused, mut closed) =
            (Counts::default(), Vec::new(), BTreeSet::new());
        for (message, origin) in batch.messages_from() {
            let place = origin.as_ref().map(Origin::place);
            // Nothing behind a refused message of its partition is stored before it.
            if closed.contains(&place) {
                continue;
            }
            match self.write_one(message).await {
                Ok(written) => counts.add(written),
                Err(StoreError::Value(error)) => {
                    closed.insert(place);
                    refused.push(Unstorable { origin, error });
                }
                Err(other) => return Err(other),
            }
        }
        if !refused.is_empty() {
            return Ok(Stored::Refused(refused));
        }
        self.announce(&counts).await?;
        Ok(Stored::Committed(counts))
    }

    /// Stores one message as it is, else with its content as bytes, else as a dead one. What a constraint or a trigger
    /// refuses is dead at once.
    ///
    /// # Errors
    /// [`StoreError::Value`]: not even as a bare dead message could it be stored. The transaction goes on without it.
    async fn write_one(&self, message: &Message) -> Result<Counts, StoreError> {
        let (mut message, mut is_bare) = (message.clone(), false);
        loop {
            self.run("SAVEPOINT message", "store a message").await?;
            let inserted = match self.insert(std::slice::from_ref(&message)).await {
                Ok(stored) => self.check_deferred().await.map(|()| stored),
                Err(error) => Err(error),
            };
            let error = match inserted {
                Ok(stored) => return Ok(Counts::of(std::slice::from_ref(&message), &stored)),
                Err(StoreError::Value(error)) => error,
                Err(other) => return Err(other),
            };
            self.run("ROLLBACK TO SAVEPOINT message", "store a message").await?;
            // Class 22: the value may be no JSON that jsonb can store. Otherwise a constraint, or a trigger, has
            // refused the row.
            let is_of_value = error.sqlstate().is_some_and(|state| state.class() == "22");
            let is_json = matches!(message.body, Body::Json(_));
            if is_json && (is_of_value || message.dead.is_some()) {
                message.body = std::mem::take(&mut message.body).as_bytes();
            } else if message.dead.is_none() {
                message = self.dead(message, &error);
            } else if !is_bare {
                is_bare = true;
                message = message.bare();
            } else {
                return Err(StoreError::Value(error));
            }
        }
    }

    /// Lets deferred constraints and triggers judge the message now, and not at the commit, which names no message.
    async fn check_deferred(&self) -> Result<(), StoreError> {
        let sql = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED";
        self.run_of(sql, "store a message", true).await
    }

    /// The message as a dead one, with what the server said.
    fn dead(&self, mut message: Message, error: &SourceError) -> Message {
        let mut reason = error.to_string();
        if reason.len() > ERROR_BYTES_MAX {
            let end = (0..=ERROR_BYTES_MAX).rev().find(|end| reason.is_char_boundary(*end));
            reason.truncate(end.unwrap_or(0));
        }
        message.dead = Some(reason);
        // What the server may have refused, and a dead message can do without.
        message.sequence_num = message.sequence_num.or(self.requirements.first_sequence);
        message
    }

    /// Moves the offsets of the partitions; false if one is not where the batch begins.
    async fn advance(&self, batch: &Batch) -> Result<bool, StoreError> {
        let ((topics, parts), spans): ((Vec<&str>, Vec<i32>), Vec<&Span>) = batch.spans().unzip();
        if spans.is_empty() {
            return Ok(true);
        }
        let failed = |error| {
            StoreError::of(SourceError::control("write the offsets of the inbox", error), false)
        };
        let from: Vec<i64> = spans.iter().map(|span| span.from).collect();
        let next: Vec<i64> = spans.iter().map(|span| span.next).collect();
        let epochs: Vec<Option<i32>> = spans.iter().map(|span| span.leader_epoch).collect();
        let client = self.control.client();
        let moved = client
            .execute(
                &self.statements.advance,
                &[&self.inbox, &topics, &parts, &from, &next, &epochs, &self.cluster],
            )
            .await
            .map_err(failed)?;
        Ok(usize::try_from(moved).is_ok_and(|moved| moved == spans.len()))
    }

    /// Inserts messages; returns the keys of those that were new.
    async fn insert(&self, messages: &[Message]) -> Result<Vec<String>, StoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |error| {
            StoreError::of(SourceError::control("store messages in the inbox", error), true)
        };
        let columns = Columns::of(messages);
        let [aggregates, ids, positions] = &columns.positioned;
        let rows = self
            .control
            .client()
            .query(
                &self.statements.insert,
                &[
                    &self.consumer,
                    &columns.event_ids,
                    &columns.event_types,
                    &columns.sources,
                    &columns.aggregates,
                    &columns.payloads.0,
                    &columns.payloads.1,
                    &columns.headers,
                    &columns.traces,
                    &columns.sequences,
                    &columns.priorities,
                    &columns.errors,
                    &columns.remembered,
                    aggregates,
                    ids,
                    positions,
                ],
            )
            .await
            .map_err(failed)?;
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(failed)
    }

    /// Announces dead messages as the toolkit does.
    async fn announce(&self, counts: &Counts) -> Result<(), StoreError> {
        if counts.dead.is_empty() {
            return Ok(());
        }
        let failed =
            |error| StoreError::of(SourceError::control("announce a dead message", error), false);
        let client = self.control.client();
        let sql = "SELECT pg_catalog.pg_notify($1, $2)";
        client.query(sql, &[&DEAD_CHANNEL, &self.inbox]).await.map_err(failed)?;
        Ok(())
    }

    /// The stored offsets of partitions. A partition that has none is not in the result.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn offsets(
        &self,
        partitions: &[Partition],
    ) -> Result<BTreeMap<Partition, StoredOffset>, SourceError> {
        let failed = |error| SourceError::control("read the offsets of the inbox", error);
        let topics: Vec<&str> = partitions.iter().map(|it| it.topic.as_str()).collect();
        let parts: Vec<i32> = partitions.iter().map(|it| it.number).collect();
        let sql = "SELECT o.topic, o.part, o.next_offset, o.leader_epoch, o.topic_id \
                   FROM postrider.inbox_offset o \
                   JOIN unnest($2::pg_catalog.text[], $3::pg_catalog.int4[]) n(topic, part) \
                     ON o.topic = n.topic AND o.part = n.part \
                   WHERE o.inbox = $1 AND o.cluster_id = $4";
        let client = self.control.client();
        let parameters: [&(dyn ToSql + Sync); 4] = [&self.inbox, &topics, &parts, &self.cluster];
        let rows = client.query(sql, &parameters).await.map_err(failed)?;
        rows.iter()
            .map(|row| {
                let partition = Partition { topic: row.try_get(0)?, number: row.try_get(1)? };
                let offset = StoredOffset {
                    next: row.try_get(2)?,
                    leader_epoch: row.try_get(3)?,
                    topic_id: row.try_get(4)?,
                };
                Ok((partition, offset))
            })
            .collect::<Result<_, _>>()
            .map_err(failed)
    }

    /// Topics of which the inbox has the offset of a partition.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn known_topics(&self) -> Result<KnownTopics, SourceError> {
        let failed = |error| SourceError::control("read the topics of the inbox", error);
        let sql = "SELECT DISTINCT o.topic, o.cluster_id = $2 \
                   FROM postrider.inbox_offset o WHERE o.inbox = $1";
        let client = self.control.client();
        let rows = client.query(sql, &[&self.inbox, &self.cluster]).await.map_err(failed)?;
        let mut known = KnownTopics::default();
        for row in &rows {
            let topic = row.try_get(0).map_err(failed)?;
            let is_here: bool = row.try_get(1).map_err(failed)?;
            let topics = if is_here { &mut known.here } else { &mut known.elsewhere };
            topics.insert(topic);
        }
        Ok(known)
    }

    /// Stores the first offset of partitions, and the id of a topic where none is known, in one transaction: no topic
    /// is ever begun by half, which would make its other partitions look as if they had been added later. `known` is
    /// what the offsets were decided by; false, and nothing is stored, if another process has begun a topic since.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn begin_partitions(
        &self,
        known: &KnownTopics,
        offsets: &BTreeMap<Partition, StoredOffset>,
    ) -> Result<bool, SourceError> {
        if offsets.is_empty() {
            return Ok(true);
        }
        let failed = |error| SourceError::control("store the first offsets of the inbox", error);
        let client = self.control.client();
        let transaction = "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE";
        client.batch_execute(transaction).await.map_err(failed)?;
        let are_stored = self.begin_if_known(known, offsets).await;
        let end = if matches!(are_stored, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
        let ended = client.batch_execute(end).await.map_err(failed);
        let are_stored = are_stored?;
        ended?;
        Ok(are_stored)
    }

    async fn begin_if_known(
        &self,
        known: &KnownTopics,
        offsets: &BTreeMap<Partition, StoredOffset>,
    ) -> Result<bool, SourceError> {
        let failed = |error| SourceError::control("store the first offsets of the inbox", error);
        let client = self.control.client();
        // Processes of one inbox begin topics one after the other.
        let lock = "SELECT pg_catalog.pg_advisory_xact_lock( \
                    pg_catalog.hashtextextended('postrider inbox_offset ' || $1::pg_catalog.text, 0))";
        client.query(lock, &[&self.inbox]).await.map_err(failed)?;
        if self.known_topics().await? != *known {
            return Ok(false);
        }
        let topics: Vec<&str> = offsets.keys().map(|it| it.topic.as_str()).collect();
        let parts: Vec<i32> = offsets.keys().map(|it| it.number).collect();
        let next: Vec<i64> = offsets.values().map(|it| it.next).collect();
        let ids: Vec<Option<&str>> = offsets.values().map(|it| it.topic_id.as_deref()).collect();
        let sql = "INSERT INTO postrider.inbox_offset AS o (inbox, cluster_id, topic, part, next_offset, topic_id) \
                   SELECT $1, $2, n.topic, n.part, n.next, n.topic_id \
                   FROM unnest($3::pg_catalog.text[], $4::pg_catalog.int4[], $5::pg_catalog.int8[], \
                     $6::pg_catalog.text[]) n(topic, part, next, topic_id) \
                   ON CONFLICT (inbox, cluster_id, topic, part) DO UPDATE SET topic_id = excluded.topic_id \
                   WHERE o.topic_id IS NULL AND excluded.topic_id IS NOT NULL";
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&self.inbox, &self.cluster, &topics, &parts, &next, &ids];
        client.execute(sql, &parameters).await.map_err(failed)?;
        Ok(true)
    }

    /// Lets a partition continue at another offset, if it is still at `from`; false if it is not.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn seek(
        &self,
        partition: &Partition,
        from: i64,
        to: &StoredOffset,
    ) -> Result<bool, SourceError> {
        let failed = |error| SourceError::control("write the offset of the inbox", error);
        let sql = "UPDATE postrider.inbox_offset o SET next_offset = $4, leader_epoch = $5, \
                     topic_id = coalesce($6, o.topic_id), updated_at = pg_catalog.clock_timestamp() \
                   WHERE o.inbox = $1 AND o.topic = $2 AND o.part = $3 AND o.next_offset = $7 \
                     AND o.cluster_id = $8";
        let (topic, part) = (&partition.topic, partition.number);
        let client = self.control.client();
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &self.inbox,
            topic,
            &part,
            &to.next,
            &to.leader_epoch,
            &to.topic_id,
            &from,
            &self.cluster,
        ];
        let changed = client.execute(sql, &parameters).await.map_err(failed)?;
        Ok(changed == 1)
    }

    /// Whose turn it is to read a stream; `None` if nobody ever had it.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn turn(&self, key: &Partition) -> Result<Option<StoredTurn>, SourceError> {
        let failed = |error| SourceError::control("read whose turn it is", error);
        let sql = "SELECT o.next_offset, o.topic_id FROM postrider.inbox_offset o \
                   WHERE o.inbox = $1 AND o.cluster_id = '' AND o.topic = $2 AND o.part = $3";
        let client = self.control.client();
        let parameters: [&(dyn ToSql + Sync); 3] = [&self.inbox, &key.topic, &key.number];
        let row = client.query_opt(sql, &parameters).await.map_err(failed)?;
        let Some(row) = row else { return Ok(None) };
        let number = row.try_get(0).map_err(failed)?;
        let owner: Option<String> = row.try_get(1).map_err(failed)?;
        Ok(Some(StoredTurn { number, owner: owner.filter(|owner| !owner.is_empty()) }))
    }

    /// Takes a turn whose number is `from`; `None`: nobody ever had it. Returns the new number, or `None` if another
    /// process was faster.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn take_turn(
        &self,
        key: &Partition,
        from: Option<i64>,
        owner: &str,
    ) -> Result<Option<i64>, SourceError> {
        let failed = |error| SourceError::control("take the turn", error);
        let sql = "INSERT INTO postrider.inbox_offset AS o (inbox, cluster_id, topic, part, next_offset, topic_id) \
                   VALUES ($1, '', $2, $3, 1, $4) \
                   ON CONFLICT (inbox, cluster_id, topic, part) DO UPDATE SET next_offset = o.next_offset + 1, \
                     topic_id = excluded.topic_id, updated_at = pg_catalog.clock_timestamp() \
                   WHERE o.next_offset = $5 RETURNING o.next_offset";
        let client = self.control.client();
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&self.inbox, &key.topic, &key.number, &owner, &from];
        let row = client.query_opt(sql, &parameters).await.map_err(failed)?;
        row.map(|row| row.try_get(0)).transpose().map_err(failed)
    }

    /// Gives a turn back whose number is `from`.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn give_turn_back(&self, key: &Partition, from: i64) -> Result<(), SourceError> {
        let failed = |error| SourceError::control("give the turn back", error);
        let sql = "UPDATE postrider.inbox_offset o SET next_offset = $4 + 1, topic_id = '' \
                   WHERE o.inbox = $1 AND o.cluster_id = '' AND o.topic = $2 AND o.part = $3 AND o.next_offset = $4";
        let client = self.control.client();
        let parameters: [&(dyn ToSql + Sync); 4] = [&self.inbox, &key.topic, &key.number, &from];
        client.execute(sql, &parameters).await.map_err(failed)?;
        Ok(())
    }

    /// Number of messages that wait to be processed.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn pending(&self) -> Result<u64, SourceError> {
        let failed = |error| SourceError::control("count the messages of the inbox", error);
        let sql = "SELECT coalesce(pg_catalog.sum(d.pending), 0)::pg_catalog.int8 \
                   FROM postrider.inbox_delta d WHERE d.inbox = $1";
        let row = self.control.client().query_one(sql, &[&self.inbox]).await.map_err(failed)?;
        let pending: i64 = row.try_get(0).map_err(failed)?;
        Ok(u64::try_from(pending).unwrap_or(0))
    }
}

impl Counts {
    /// The numbers of `messages`, of which those with these keys were new.
    fn of(messages: &[Message], new: &[String]) -> Self {
        let mut counts =
            Self { repeated: to_u64(messages.len().saturating_sub(new.len())), ..Self::default() };
        let has_dead = messages.iter().any(|message| message.dead.is_some());
        if has_dead {
            let mut left: Vec<&str> = new.iter().map(String::as_str).collect();
            for message in messages {
                let Some(reason) = &message.dead else { continue };
                // A key that comes twice in one batch was new once.
                if let Some(at) = left.iter().position(|key| *key == message.event_id) {
                    left.swap_remove(at);
                    let (event_id, reason) = (message.event_id.clone(), reason.clone());
                    counts.dead.push(DeadMessage { event_id, reason });
                }
            }
        }
        counts.stored = to_u64(new.len() - counts.dead.len());
        counts
    }

    fn add(&mut self, other: Self) {
        self.stored += other.stored;
        self.repeated += other.repeated;
        self.dead.extend(other.dead);
    }
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// What is read of an inbox.
struct InboxFacts {
    /// The table, quoted.
    table: String,
    /// When it was created. Unit: microseconds since 1970.
    created: i64,
    requirements: Requirements,
}

async fn facts(control: &Control, inbox: &str) -> Result<InboxFacts, SourceError> {
    let failed = |error| SourceError::control(format!("look up inbox {inbox:?}"), error);
    // inbox_get raises PR121 and PR124.
    let sql = "\
        SELECT i.table_schema::pg_catalog.text, i.table_name::pg_catalog.text, i.ordering, i.first_sequence, \
            CASE WHEN i.tiers IS NOT NULL THEN (SELECT pg_catalog.regexp_replace( \
                pg_catalog.pg_get_expr(d.adbin, d.adrelid), '[^-0-9]', '', 'g') \
                FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_attribute a \
                    ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
                WHERE d.adrelid = pg_catalog.to_regclass(postrider.inbox_table(i)) AND a.attname = 'priority') END, \
            (extract(epoch FROM i.created_at) * 1000000)::pg_catalog.int8 \
        FROM postrider.inbox_get($1, true) i";
    let row = control.client().query_one(sql, &[&inbox]).await.map_err(failed)?;
    let (schema, table): (String, String) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    let ordering: Option<String> = row.try_get(2).map_err(failed)?;
    let first: i64 = row.try_get(3).map_err(failed)?;
    let priority: Option<String> = row.try_get(4).map_err(failed)?;
    let requirements = Requirements {
        aggregate: ordering.is_some(),
        first_sequence: (ordering.as_deref() == Some("sequence")).then_some(first),
        default_priority: priority.and_then(|priority| priority.parse().ok()),
    };
    let table = format!("{}.{}", ident(&schema), ident(&table));
    Ok(InboxFacts { table, created: row.try_get(5).map_err(failed)?, requirements })
}

impl Statements {
    async fn prepare(control: &Control, table: &str) -> Result<Self, SourceError> {
        let failed = |error| SourceError::control("prepare the statements of the inbox", error);
        let client = control.client();
        let advance = client.prepare(ADVANCE).await.map_err(failed)?;
        let insert = client.prepare(&INSERT.replace("TABLE_OF_THE_INBOX", table)).await;
        Ok(Self { advance, insert: insert.map_err(failed)? })
    }
}

/// Moves the offsets that are where the batch begins.
const ADVANCE: &str = "\
UPDATE postrider.inbox_offset o SET next_offset = n.next, \
    leader_epoch = coalesce(n.leader_epoch, o.leader_epoch), updated_at = pg_catalog.clock_timestamp() \
FROM unnest($2::pg_catalog.text[], $3::pg_catalog.int4[], $4::pg_catalog.int8[], $5::pg_catalog.int8[], \
    $6::pg_catalog.int4[]) n(topic, part, since, next, leader_epoch) \
WHERE o.inbox = $1 AND o.cluster_id = $7 AND o.topic = n.topic AND o.part = n.part AND o.next_offset = n.since";

/// Inserts the messages that are new, in their order: by what is remembered of them, and by their key.
///
/// The positions are compared by a scan of the messages alone, which has their order: a join may have any, and an event
/// that is compared after a later one of its aggregate counts as a repetition.
const INSERT: &str = "\
WITH m AS MATERIALIZED ( \
    SELECT * FROM unnest($2::pg_catalog.text[], $3::pg_catalog.text[], $4::pg_catalog.text[], \
        $5::pg_catalog.text[], $6::pg_catalog.text[], $7::pg_catalog.bytea[], $8::pg_catalog.text[], \
        $9::pg_catalog.text[], $10::pg_catalog.int8[], $11::pg_catalog.int2[], $12::pg_catalog.text[], \
        $13::pg_catalog.text[], $14::pg_catalog.text[], $15::pg_catalog.text[], $16::pg_catalog.text[]) \
        WITH ORDINALITY u(event_id, event_type, source, aggregate_id, payload, payload_bytes, headers, trace_id, \
            sequence_num, priority, error, remembered, aggregate, id, position, n) \
), seen AS ( \
    INSERT INTO postrider.inbox_seen_undated (consumer, source, message_id) \
    SELECT $1, m.source, m.remembered FROM m WHERE m.remembered IS NOT NULL \
    ON CONFLICT (consumer, source, message_id) DO NOTHING RETURNING source, message_id \
), ahead AS MATERIALIZED ( \
    SELECT m.n FROM m WHERE CASE WHEN m.remembered IS NULL AND m.position IS NOT NULL \
        THEN postrider.inbox_is_new($1, m.source, m.aggregate, m.id, m.position, NULL) ELSE false END \
) \
INSERT INTO TABLE_OF_THE_INBOX AS t (event_id, event_type, source, aggregate_id, payload, payload_bytes, headers, \
    trace_id, sequence_num, priority, error, dead_at) \
SELECT m.event_id, m.event_type, m.source, m.aggregate_id, m.payload::pg_catalog.jsonb, m.payload_bytes, \
    m.headers::pg_catalog.jsonb, m.trace_id, m.sequence_num, m.priority, m.error, \
    CASE WHEN m.error IS NOT NULL THEN pg_catalog.clock_timestamp() END \
FROM m LEFT JOIN seen s ON s.source = m.source AND s.message_id = m.remembered LEFT JOIN ahead a ON a.n = m.n \
WHERE CASE WHEN m.remembered IS NOT NULL THEN s.message_id IS NOT NULL \
    WHEN m.position IS NOT NULL THEN a.n IS NOT NULL ELSE true END \
ORDER BY m.n \
ON CONFLICT (event_id) DO NOTHING RETURNING t.event_id";

/// The columns of some messages, one array for each parameter of the statement that inserts them.
#[derive(Default)]
struct Columns<'a> {
    event_ids: Vec<&'a str>,
    event_types: Vec<Option<&'a str>>,
    sources: Vec<&'a str>,
    aggregates: Vec<Option<&'a str>>,
    /// Contents that are JSON, and contents that are other bytes.
    payloads: (Vec<Option<&'a str>>, Vec<Option<&'a [u8]>>),
    headers: Vec<&'a str>,
    traces: Vec<Option<&'a str>>,
    sequences: Vec<Option<i64>>,
    priorities: Vec<Option<i16>>,
    errors: Vec<Option<&'a str>>,
    /// What is remembered by id alone.
    remembered: Vec<Option<&'a str>>,
    /// Aggregate, id and position of what is remembered by position.
    positioned: [Vec<Option<&'a str>>; 3],
}

impl<'a> Columns<'a> {
    fn of(messages: impl IntoIterator<Item = &'a Message>) -> Self {
        let mut columns = Self::default();
        for message in messages {
            columns.push(message);
        }
        columns
    }

    fn push(&mut self, message: &'a Message) {
        self.event_ids.push(&message.event_id);
        self.event_types.push(message.event_type.as_deref());
        self.sources.push(&message.source);
        self.aggregates.push(message.aggregate_id.as_deref());
        let (json, bytes) = match &message.body {
            Body::Absent => (None, None),
            Body::Json(text) => (Some(text.as_str()), None),
            Body::Bytes(bytes) => (None, Some(bytes.as_slice())),
        };
        self.payloads.0.push(json);
        self.payloads.1.push(bytes);
        self.headers.push(&message.headers);
        self.traces.push(message.trace_id.as_deref());
        self.sequences.push(message.sequence_num);
        self.priorities.push(message.priority);
        self.errors.push(message.dead.as_deref());
        let (id, positioned) = match &message.remembered {
            None => (None, [None; 3]),
            Some(Remembered::Id(id)) => (Some(id.as_str()), [None; 3]),
            Some(Remembered::Position { aggregate, id, position }) => {
                (None, [Some(aggregate.as_str()), Some(id.as_str()), Some(position.as_str())])
            }
        };
        self.remembered.push(id);
        for (column, value) in self.positioned.iter_mut().zip(positioned) {
            column.push(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event_id: &str, dead: Option<&str>) -> Message {
        Message {
            event_id: event_id.to_owned(),
            dead: dead.map(str::to_owned),
            ..Message::default()
        }
    }

    #[test]
    fn each_message_is_counted_once() {
        let messages = [
            message("a", None),
            message("b", Some("no key")),
            message("b", Some("no key")),
            message("c", Some("no key")),
            message("a", None),
        ];
        let new = ["a", "b"].map(str::to_owned);
        let counts = Counts::of(&messages, &new);
        assert_eq!((counts.stored, counts.repeated), (1, 3));
        assert_eq!(counts.dead.len(), 1);
        assert_eq!(counts.dead[0].event_id, "b");
    }
}
