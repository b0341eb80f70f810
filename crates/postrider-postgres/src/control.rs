//! The control connection: one SQL session beside the stream. Owns the session and its pinned settings, and reports
//! immediately when the session ends. [`facts`] reads what the start check decides on.

use super::client::{Canceller, connect_listening};
use super::conninfo::Conninfo;
use super::error::{SourceError, SourceErrorKind};
use super::names::Names;
use super::poll::PollSpec;
use crate::capture::tables;
use crate::catalog::{self, TableFacts};
use crate::schema_owner::{self, SessionRights};
use crate::statement::{Statement, StatementError};
use crate::store::{cursor, parked};
use crate::{schema, start, times};
use std::future::Future;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// Settings of the session. Roles and databases can have other defaults. With an empty `search_path` a bare name can
/// only be one of `pg_catalog`.
///
/// `default_transaction_isolation`: the statements are written for READ COMMITTED, where a statement sees what was
/// committed before it began. `default_transaction_read_only` is not set: with it an operator declares that this role,
/// database or server takes no writes, and the pipeline waits for that to end (SQLSTATE 25006).
///
/// `statement_timeout`: no statement here takes a second on a healthy server. `lock_timeout`: the service never queues
/// for a lock in front of the application. `synchronous_commit`: see [`cursor`].
const PINNED: &str = "\
SET search_path = ''; SET statement_timeout = '30s'; SET lock_timeout = '5s'; \
SET idle_in_transaction_session_timeout = '60s'; SET synchronous_commit = 'local'; \
SET client_min_messages = 'warning'; SET row_security = off; SET jit = off; \
SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; \
SET extra_float_digits = 3; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'; \
SET standard_conforming_strings = on; SET default_transaction_isolation = 'read committed'; \
SET default_transaction_deferrable = off; SET idle_session_timeout = 0";

/// Settings that not every server has, or not every role may set. In a transaction of their own: with
/// `default_transaction_deferrable` a query would wait for a snapshot.
///
/// `transaction_timeout` exists from 17 on. `session_replication_role` would skip triggers and foreign keys when rows
/// are updated or deleted; it is left alone if an administrator has set it for a role that may not change it.
const PINNED_IF_SUPPORTED: &str = "\
SELECT pg_catalog.set_config('transaction_timeout', '0', false) \
WHERE pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL \
UNION ALL SELECT pg_catalog.set_config('session_replication_role', 'origin', false) \
WHERE pg_catalog.current_setting('session_replication_role') <> 'origin' \
  AND pg_catalog.has_parameter_privilege('session_replication_role', 'SET')";

/// A session whose client has disconnected ends its statement soon, and releases its locks; by default the statement
/// runs to its end. In a transaction of its own, and optional: some platforms refuse it.
const NOTICES_A_LOST_CLIENT: &str = "SET client_connection_check_interval = '2s'";

/// The control session. Dropping it ends the connection.
#[derive(Debug)]
pub struct Control {
    client: Arc<Client>,
    /// `None` for a client that the caller connected.
    canceller: Option<Canceller>,
    connection: JoinHandle<Result<(), SourceError>>,
    ended: bool,
    inbox: Arc<Inbox>,
}

/// Receives the notifications of the connection.
#[derive(Debug, Default)]
struct Inbox {
    /// The pipeline whose notifications are wanted, after [`Control::listen`].
    pipeline: OnceLock<String>,
    /// Holds one permit until it is taken: any number of notifications lead to one query.
    arrived: Notify,
}

/// Notifications of requests for a session's pipeline.
#[derive(Clone, Debug)]
pub struct Notifications(Arc<Inbox>);

impl Notifications {
    /// As [`Control::notified`].
    pub async fn next(&self) {
        self.0.arrived.notified().await;
    }
}

impl Control {
    /// Opens the connection and pins the session's settings.
    ///
    /// # Errors
    /// An error of the server, or why it could not be reached.
    pub async fn connect(conninfo: &Conninfo, application_name: &str) -> Result<Self, SourceError> {
        let inbox = Arc::new(Inbox::default());
        let receiver = Arc::clone(&inbox);
        let notified = move |channel: &str, payload: &str| {
            let wanted = receiver.pipeline.get().is_some_and(|pipeline| pipeline == payload);
            if wanted && channel == parked::CHANNEL {
                receiver.arrived.notify_one();
            }
        };
        let opened = connect_listening(conninfo, application_name, notified).await?;
        let (client, connection, canceller) = opened;
        Self::begin((client, Some(canceller)), connection, inbox).await
    }

    /// As [`Control::connect`], with a function that receives each notification: its channel and its payload.
    ///
    /// # Errors
    /// An error of the server, or why it could not be reached.
    pub(super) async fn connect_notified<F>(
        conninfo: &Conninfo,
        application_name: &str,
        notified: F,
    ) -> Result<Self, SourceError>
    where
        F: FnMut(&str, &str) + Send + 'static,
    {
        let opened = connect_listening(conninfo, application_name, notified).await?;
        let (client, connection, canceller) = opened;
        Self::begin((client, Some(canceller)), connection, Arc::default()).await
    }

    /// Uses a client and its connection, whose notifications the caller handles, and pins the session's settings.
    ///
    /// # Errors
    /// An error of the server, or that the connection ended.
    pub async fn start<F>(client: Client, connection: F) -> Result<Self, SourceError>
    where
        F: Future<Output = Result<(), SourceError>> + Send + 'static,
    {
        Self::begin((client, None), connection, Arc::default()).await
    }

    async fn begin<F>(
        (client, canceller): (Client, Option<Canceller>),
        connection: F,
        inbox: Arc<Inbox>,
    ) -> Result<Self, SourceError>
    where
        F: Future<Output = Result<(), SourceError>> + Send + 'static,
    {
        #[expect(clippy::disallowed_methods, reason = "the handle is kept, and aborted on drop")]
        let connection = tokio::spawn(connection);
        let client = Arc::new(client);
        let mut control = Self { client, canceller, connection, ended: false, inbox };
        for settings in [PINNED, PINNED_IF_SUPPORTED] {
            if let Err(error) = control.client.batch_execute(settings).await {
                return Err(control.blame("set up the control session", error).await);
            }
        }
        // If the connection is lost here, the next statement fails.
        drop(control.client.batch_execute(NOTICES_A_LOST_CLIENT).await);
        Ok(control)
    }

    /// Subscribes to requests of one pipeline ([`Control::notified`]); a session serves one pipeline only. Query the
    /// requests once afterwards: earlier ones are not notified.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn listen(&self, pipeline: &str) -> Result<(), SourceError> {
        let pipeline = self.inbox.pipeline.get_or_init(|| pipeline.to_owned());
        let failed = |e| {
            SourceError::control(format!("listen for requests for pipeline {pipeline:?}"), e)
                .of(Statement::Requests)
        };
        self.client.batch_execute(&format!("LISTEN {}", parked::CHANNEL)).await.map_err(failed)
    }

    /// Waits until a request was written since the last call. Level-triggered and cancel-safe: a notification that
    /// arrived while nobody waited answers the next call immediately, and several count as one. Never returns without
    /// [`Control::listen`], or after the connection has ended.
    pub async fn notified(&self) {
        self.inbox.arrived.notified().await;
    }

    /// A handle with the same method as [`Control::notified`], to wait for a request and for the end of the session
    /// together.
    pub fn notifications(&self) -> Notifications {
        Notifications(Arc::clone(&self.inbox))
    }

    /// As [`facts`], on this session.
    pub async fn facts(&self, ask: &FactsQuery<'_>) -> Result<start::Facts, SourceError> {
        facts(&self.client, ask).await
    }

    /// The client, for the statements of this crate.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A handle that cancels this session's statements.
    pub fn canceller(&self) -> Option<Canceller> {
        self.canceller.clone()
    }

    /// The client, for a statement that runs concurrently with others.
    pub fn shared_client(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }

    /// Waits until the connection ends, and returns why: SQLSTATE `57P01` if the server stops. Cancel-safe, and may be
    /// called again.
    pub async fn closed(&mut self) -> SourceError {
        const DOING: &str = "keep the control connection";
        if self.ended {
            return SourceError::new(SourceErrorKind::Closed, DOING);
        }
        let outcome = (&mut self.connection).await;
        self.ended = true;
        match outcome {
            Ok(Err(error)) => error,
            Ok(Ok(())) => SourceError::new(SourceErrorKind::Closed, DOING),
            Err(error) => SourceError::new(SourceErrorKind::System, DOING).caused_by(error),
        }
    }

    /// The more exact of two errors with one cause: the client only knows that its connection was closed, the
    /// connection knows why.
    async fn blame(&mut self, doing: &str, error: tokio_postgres::Error) -> SourceError {
        if error.is_closed() { self.closed().await } else { SourceError::control(doing, error) }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// What [`facts`] is to read.
#[derive(Clone, Copy, Debug)]
pub struct FactsQuery<'a> {
    /// The objects of the pipeline.
    pub names: &'a Names,
    /// The answer of `IDENTIFY_SYSTEM` on the replication connection; `None` without one (`setup`, `check`).
    pub identity: &'a Option<start::Identity>,
    /// The columns that the layout requires.
    pub columns: &'a [String],
    /// Whether logical messages are streamed.
    pub messages: bool,
    /// Whether the slot is to be a failover slot, if the server supports them.
    pub failover: bool,
    /// How the rows of published events are marked, if they are.
    pub marks: Option<&'a PollSpec>,
    /// Whether the table is polled, or may be.
    pub polls: bool,
    /// Whose rights the session has.
    pub acting: SessionRights,
}

/// Reads the facts that the start check ([`start::decide`]) needs.
///
/// The order matters: slot, then cursor, then end of WAL. Another process of the same pipeline writes the row before it
/// confirms, so a row that is read after the slot is never older than the slot's position; and WAL that is read last is
/// never too short.
///
/// # Errors
/// The first statement that failed.
pub async fn facts(client: &Client, ask: &FactsQuery<'_>) -> Result<start::Facts, SourceError> {
    let names = ask.names;
    let version = catalog::read_server(client).await?.version;
    let slot = catalog::read_slot(client, version, &names.slot).await?;
    // Before any statement that uses Postrider's tables.
    let untrusted = Box::pin(schema_owner::read(client, ask.acting)).await?;
    let schema = match &untrusted {
        Some(_) if ask.acting != SessionRights::Printing => schema::SchemaState::Untrusted,
        Some(_) | None => schema::read_trusted(client).await?,
    };
    let cursor = match schema {
        schema::SchemaState::Version(number @ 1..=schema::VERSION) => {
            cursor::read_version(client, &names.key, number).await?
        }
        schema::SchemaState::Missing
        | schema::SchemaState::Empty
        | schema::SchemaState::Untrusted
        | schema::SchemaState::Version(_) => None,
    };
    let publication =
        catalog::read_publication(client, &names.publication, names.table.as_ref()).await?;
    let table = match &names.table {
        Some(name) => catalog::read_table(client, name).await?,
        None => None,
    };
    let marks = match ask.marks {
        Some(spec) => Some(marks(client, spec, ask.polls).await?),
        None => None,
    };
    let captured = tables::read_captured(client, names).await?;
    let since = match (schema, &cursor, &publication) {
        (schema::SchemaState::Version(schema::VERSION), Some(_), Some(_)) => {
            let own = table.as_ref().map(|table| table.oid).into_iter();
            let others = captured.iter().flat_map(tables::CaptureFacts::oids);
            let oids: Vec<u32> = own.chain(others).collect();
            catalog::changed_since(client, &names.key, &names.publication, &oids).await?
        }
        _ => catalog::ChangesSince::default(),
    };
    let times = times::read(client, &names.times, table.as_ref().map(|table| table.oid)).await?;
    let server = catalog::read_server(client).await?;
    Ok(start::Facts {
        names: names.clone(),
        identity: ask.identity.clone(),
        server,
        schema,
        untrusted,
        slot,
        cursor,
        publication,
        since,
        table,
        times,
        columns: ask.columns.to_vec(),
        stream: start::StreamOptions { messages: ask.messages, failover: ask.failover },
        marks,
        captured,
    })
}

/// The columns of the dead-letter table, if polling writes into one.
pub(super) async fn marks(
    client: &Client,
    spec: &PollSpec,
    polls: bool,
) -> Result<start::RowStatusFacts, SourceError> {
    let dlq = match spec.dlq().filter(|_| polls) {
        Some(dlq) => catalog::read_table(client, &dlq).await?,
        None => None,
    };
    let columns = |table: TableFacts| table.columns.into_iter().map(|column| column.name).collect();
    Ok(start::RowStatusFacts { spec: spec.clone(), dlq: dlq.map(columns) })
}
