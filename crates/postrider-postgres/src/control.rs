//! The control connection: one SQL session beside the stream.
//!
//! Owns the session and its pinned settings, and tells at once when it ends. Everything it reads is handed to `fence`
//! as plain facts; it decides nothing.

use super::client::{Canceller, connect_listening};
use super::conninfo::Conninfo;
use super::error::{SourceError, SourceErrorKind};
use super::names::Names;
use super::ownership::{self, Acting};
use super::poll::PollSpec;
use crate::catalog::{self, TableFacts};
use crate::statement::{Statement, StatementError};
use crate::store::{cursor, parked};
use crate::{schema, start, times};
use std::future::Future;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// Settings of the session. Roles and databases can have others of their own, and an empty `search_path` leaves
/// nothing but
/// `pg_catalog` to resolve a bare name.
///
/// `default_transaction_isolation`: our statements are written for READ COMMITTED, where one sees what was committed
/// before it. `default_transaction_read_only` is not set: with it somebody says that this role, database or server
/// takes no writes, and it is waited out (SQLSTATE 25006).
///
/// `statement_timeout`: no statement here takes a second on a healthy server. `lock_timeout`: the service never
/// queues for a lock in front of the application. `synchronous_commit`: see [`cursor`].
const PINNED: &str = "\
SET search_path = ''; SET statement_timeout = '30s'; SET lock_timeout = '5s'; \
SET idle_in_transaction_session_timeout = '60s'; SET synchronous_commit = 'local'; \
SET client_min_messages = 'warning'; SET row_security = off; SET jit = off; \
SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; \
SET extra_float_digits = 3; SET bytea_output = 'hex'; SET client_encoding = 'UTF8'; \
SET standard_conforming_strings = on; SET default_transaction_isolation = 'read committed'; \
SET default_transaction_deferrable = off; SET idle_session_timeout = 0";

/// The same of what not every server has, or not every role may set. In a transaction of its own: with
/// `default_transaction_deferrable` a query would wait for a snapshot.
///
/// `transaction_timeout` is 17's. `session_replication_role` would leave out triggers and foreign keys when rows are
/// marked or deleted; it stays where an administrator has set it for a role that may not.
const PINNED_WHERE_THERE: &str = "\
SELECT pg_catalog.set_config(s.name, '0', false) FROM pg_catalog.pg_settings AS s WHERE s.name = 'transaction_timeout' \
UNION ALL SELECT pg_catalog.set_config(s.name, 'origin', false) FROM pg_catalog.pg_settings AS s \
WHERE s.name = 'session_replication_role' AND s.setting <> 'origin' \
  AND pg_catalog.has_parameter_privilege(s.name, 'SET')";

/// A session whose client is gone ends its statement soon, and with it its locks; by default it goes on to its end. In
/// a transaction of its own, and not needed: some platforms refuse it.
const NOTICES_A_LOST_CLIENT: &str = "SET client_connection_check_interval = '2s'";

/// The control session. Dropping it ends the connection.
#[derive(Debug)]
pub struct Control {
    client: Arc<Client>,
    /// None for a client that somebody else connected.
    canceller: Option<Canceller>,
    connection: JoinHandle<Result<(), SourceError>>,
    ended: bool,
    inbox: Arc<Inbox>,
}

/// Where the connection leaves word of a notification.
#[derive(Debug, Default)]
struct Inbox {
    /// Whose notifications are wanted, since [`Control::listen`].
    pipeline: OnceLock<String>,
    /// Holds one permit until it is taken: any number of notifications are one call to look.
    arrived: Notify,
}

/// Word of requests for a session's pipeline.
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
    /// What the server says, or why it could not be reached.
    pub async fn connect(conninfo: &Conninfo, application_name: &str) -> Result<Self, SourceError> {
        let inbox = Arc::new(Inbox::default());
        let letters = Arc::clone(&inbox);
        let notified = move |channel: &str, payload: &str| {
            let wanted = letters.pipeline.get().is_some_and(|pipeline| pipeline == payload);
            if wanted && channel == parked::CHANNEL {
                letters.arrived.notify_one();
            }
        };
        let opened = connect_listening(conninfo, application_name, notified).await?;
        let (client, connection, canceller) = opened;
        Self::begin((client, Some(canceller)), connection, inbox).await
    }

    /// The same, with what is done with each notification: its channel and its payload.
    ///
    /// # Errors
    /// What the server says, or why it could not be reached.
    pub(super) async fn hearing<F>(
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

    /// Takes a client and its connection, whose notifications are the caller's affair, and pins the session's settings.
    ///
    /// # Errors
    /// What the server says, or that the connection ended.
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
        for settings in [PINNED, PINNED_WHERE_THERE] {
            if let Err(error) = control.client.batch_execute(settings).await {
                return Err(control.blame("set up the control session", error).await);
            }
        }
        // A connection that is lost here is seen by the next statement.
        drop(control.client.batch_execute(NOTICES_A_LOST_CLIENT).await);
        Ok(control)
    }

    /// Subscribes to requests of one pipeline ([`Control::notified`]); a session serves one pipeline only. Query the
    /// requests once afterwards: earlier ones are not notified.
    ///
    /// # Errors
    /// What the server says.
    pub async fn listen(&self, pipeline: &str) -> Result<(), SourceError> {
        let pipeline = self.inbox.pipeline.get_or_init(|| pipeline.to_owned());
        let failed = |e| {
            SourceError::control(format!("listen for requests for pipeline {pipeline:?}"), e)
                .of(Statement::Requests)
        };
        self.client.batch_execute(&format!("LISTEN {}", parked::CHANNEL)).await.map_err(failed)
    }

    /// Waits until somebody has written a request since this was last asked. Level-triggered and cancel-safe: a
    /// notification that came while nobody waited answers the next call at once, and many are one. Never, where
    /// [`Control::listen`] was not asked for, and where the connection has ended.
    pub async fn notified(&self) {
        self.inbox.arrived.notified().await;
    }

    /// The same as a value of its own, to be waited for while the session is waited for too.
    pub fn notifications(&self) -> Notifications {
        Notifications(Arc::clone(&self.inbox))
    }

    /// As [`facts`], on this session.
    pub async fn facts(&self, ask: &Ask<'_>) -> Result<start::Facts, SourceError> {
        facts(&self.client, ask).await
    }

    /// The client, for the statements of this layer.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What cancels this session's statements.
    pub fn canceller(&self) -> Option<Canceller> {
        self.canceller.clone()
    }

    /// The client, for a statement that runs beside others.
    pub fn shared_client(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }

    /// Waits until the connection ends and says why: SQLSTATE `57P01` when the server stops. Cancel-safe, and may be
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

    /// The better of two answers to one end: the client only knows that its connection is gone, the connection knows
    /// why.
    async fn blame(&mut self, doing: &str, error: tokio_postgres::Error) -> SourceError {
        if error.is_closed() { self.closed().await } else { SourceError::control(doing, error) }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// What [`facts`] is to look at.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The objects of the pipeline.
    pub names: &'a Names,
    /// What `IDENTIFY_SYSTEM` said on the replication connection; `None` where there is none (`setup`, `check`).
    pub identity: &'a Option<start::Identity>,
    /// The columns the layout can't do without.
    pub columns: &'a [String],
    /// Whether logical messages are asked for.
    pub messages: bool,
    /// Whether the slot is to be a failover slot where the server has them.
    pub failover: bool,
    /// How published rows are marked in the table, where they are.
    pub marks: Option<&'a PollSpec>,
    /// Whether the table is polled, or may be.
    pub polls: bool,
    /// Whose rights the session has.
    pub acting: Acting,
}

/// Reads everything `fence` decides on.
///
/// The order matters: slot, then cursor, then end of WAL. Another process of the same pipeline writes the row before it
/// confirms, so a row read after the slot is never older than the slot's position; and WAL read last is never short.
///
/// # Errors
/// The first statement that failed.
pub async fn facts(client: &Client, ask: &Ask<'_>) -> Result<start::Facts, SourceError> {
    let names = ask.names;
    let version = catalog::read_server(client).await?.version;
    let slot = catalog::read_slot(client, version, &names.slot).await?;
    // First of all that touches Postrider's tables.
    let ownership = Box::pin(ownership::read(client, ask.acting)).await?;
    let schema = match &ownership {
        Some(_) if ask.acting != Acting::Printing => schema::SchemaState::Untrusted,
        Some(_) | None => schema::read_trusted(client).await?,
    };
    let cursor = match schema {
        // From version 2 on they have the same columns, as far as they are read.
        schema::SchemaState::Version(2..=schema::VERSION) => {
            cursor::read(client, &names.pipeline).await?
        }
        schema::SchemaState::Version(1) => cursor::read_version_1(client, &names.pipeline).await?,
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
    let since = match (schema, &cursor, &publication) {
        (schema::SchemaState::Version(schema::VERSION), Some(_), Some(_)) => {
            let oid = table.as_ref().map(|table| table.oid);
            catalog::changed_since(client, &names.pipeline, &names.publication, oid).await?
        }
        _ => catalog::Since::default(),
    };
    let times = times::read(client, &names.times, table.as_ref().map(|table| table.oid)).await?;
    let server = catalog::read_server(client).await?;
    Ok(start::Facts {
        names: names.clone(),
        identity: ask.identity.clone(),
        server,
        schema,
        ownership,
        slot,
        cursor,
        publication,
        since,
        table,
        times,
        columns: ask.columns.to_vec(),
        messages: ask.messages,
        failover: ask.failover,
        marks,
    })
}

/// What a table of dead letters has, where polling writes into one.
pub(super) async fn marks(
    client: &Client,
    spec: &PollSpec,
    polls: bool,
) -> Result<start::MarkFacts, SourceError> {
    let dlq = match spec.dlq().filter(|_| polls) {
        Some(dlq) => catalog::read_table(client, dlq).await?,
        None => None,
    };
    let columns = |table: TableFacts| table.columns.into_iter().map(|column| column.name).collect();
    Ok(start::MarkFacts { spec: spec.clone(), dlq: dlq.map(columns) })
}
