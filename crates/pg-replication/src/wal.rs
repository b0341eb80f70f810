//! The replication connection: logical WAL as batches of whole frames, and the confirmed watermark on its way back.
//!
//! Owns the walsender's side of the protocol: identify, start, read, status updates, the end. It does not look into
//! frames (that is `pgoutput`'s) and does not decide what is confirmed (that is `ack`'s): it sends the watermark it was
//! given, never a lower one than before and never one above what it has received.
//!
//! The login runs on the caller's runtime. From `START_REPLICATION` on the socket lives on a thread of its own
//! ([`session`]), so that status updates leave whatever the caller is doing.

mod batch;
mod busy;
mod command;
mod feedback;
mod held;
mod history;
mod queue;
mod session;
mod stream;

pub use batch::{Batch, Frame, Frames};
pub use history::Switch;
pub use stream::WalStream;

use super::conninfo::Conninfo;
use super::error::{SourceError, SourceErrorKind};
use super::handshake::{self, Purpose, Session, WAL_SENDER_TIMEOUT_MS};
use crate::lsn::Lsn;
use std::time::Duration;

/// Longest wait for the answer to one command before the stream has started.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// A cluster begins on it, and it has no history.
const FIRST_TIMELINE: u32 = 1;

/// Most bytes of WAL in the queue, read and not yet taken by the caller. Then the socket is not read, and the server
/// waits. Up to a quarter more, and one read, may stand before it.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Largest single message taken. A row's values are in one message; PostgreSQL itself stops at 1 GiB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// How often at most a watermark that moved is told to the server.
pub const CONFIRM_INTERVAL: Duration = Duration::from_millis(200);

/// How long the server may be silent, although asked for an answer at half of it, before it counts as dead. Longer than
/// half of `wal_sender_timeout`, at which a walsender that is busy decoding looks at our messages; shorter than the
/// whole, after which it gives the slot away.
pub const SILENCE_MAX: Duration = Duration::from_secs(13);

/// What `IDENTIFY_SYSTEM` says (manual, 54.4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemIdentity {
    /// The cluster's identifier: another one is another database, whatever its name.
    pub system_id: String,
    /// The timeline: it rises with each promotion.
    pub timeline: u32,
    /// How far the server's WAL is flushed.
    pub flush_lsn: Lsn,
    /// The database of this connection.
    pub database: String,
    /// The timelines before this one and where each was left, oldest first; empty on the first timeline, and where the
    /// server no longer has the file.
    pub switches: Vec<Switch>,
}

/// A slot that was just made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatedSlot {
    /// Where it begins: what commits below it is in the snapshot, what commits above it comes by the stream.
    pub consistent_point: Lsn,
    /// The snapshot's name, for `SET TRANSACTION SNAPSHOT`: to be taken before the connection's next command, or end.
    pub snapshot: String,
}

/// What to stream, and within which bounds.
#[derive(Clone, Debug)]
pub struct StartReplication {
    /// The slot: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// The publications, as named in `pg_publication`.
    pub publications: Vec<String>,
    /// Where to resume. The server takes the later of this and the slot's own position, and **checks neither**: a
    /// position ahead of its WAL is accepted, and skips everything before it (measured on 15 and 18).
    pub lsn: Lsn,
    /// Whether logical messages (`pg_logical_emit_message`) are sent too.
    pub messages: bool,
    /// See [`CONFIRM_INTERVAL`].
    pub confirm_interval: Duration,
    /// See [`QUEUE_BYTES_MAX`]. Unit: bytes.
    pub queue_bytes_max: usize,
    /// See [`MESSAGE_BYTES_MAX`]. Unit: bytes.
    pub message_bytes_max: usize,
    /// See [`SILENCE_MAX`].
    pub silence_max: Duration,
}

impl StartReplication {
    /// From where the slot stands, one publication, no messages, the usual bounds.
    pub fn new(slot: &str, publication: &str) -> Self {
        Self {
            slot: slot.to_owned(),
            publications: vec![publication.to_owned()],
            lsn: Lsn::ZERO,
            messages: false,
            confirm_interval: CONFIRM_INTERVAL,
            queue_bytes_max: QUEUE_BYTES_MAX,
            message_bytes_max: MESSAGE_BYTES_MAX,
            silence_max: SILENCE_MAX,
        }
    }
}

/// A replication connection that is logged in and not yet streaming.
pub struct WalConnection {
    session: Session,
    wal_sender_timeout: Duration,
}

/// `transaction_timeout` is a setting since this version. A startup packet that names an unknown one is refused.
const TRANSACTION_TIMEOUT_SINCE: u32 = 17;

impl WalConnection {
    /// Connects to the first host that answers and fits, and logs in.
    ///
    /// `application_name` stands unless the connection string has its own.
    pub async fn connect(conninfo: &Conninfo, application_name: &str) -> Result<Self, SourceError> {
        let timeout = Duration::from_millis(u64::from(WAL_SENDER_TIMEOUT_MS));
        Self::connect_with_timeout(conninfo, application_name, timeout).await
    }

    /// The same with another `wal_sender_timeout` than 15 s: how long a server keeps the slot for a client that is
    /// gone.
    pub async fn connect_with_timeout(
        conninfo: &Conninfo,
        application_name: &str,
        wal_sender_timeout: Duration,
    ) -> Result<Self, SourceError> {
        let millis = u32::try_from(wal_sender_timeout.as_millis()).unwrap_or(WAL_SENDER_TIMEOUT_MS);
        let purpose = Purpose::Replication { wal_sender_timeout_ms: millis };
        let mut session = handshake::connect(conninfo, purpose, application_name).await?;
        let doing = "set up the replication session";
        if session.major() >= TRANSACTION_TIMEOUT_SINCE {
            let set = command::set_transaction_timeout(&mut session.wire, doing);
            within(COMMAND_TIMEOUT, doing, set).await?;
        }
        Ok(Self { session, wal_sender_timeout })
    }

    /// The walsender's process id, which `pg_stat_replication` and the slot's `active_pid` show.
    pub const fn backend_pid(&self) -> u32 {
        self.session.backend_pid
    }

    /// `server_version` as the server reports it: `15.18 (Debian 15.18-0+deb12u1)`.
    pub fn server_version(&self) -> Option<&str> {
        self.session.parameters.get("server_version").map(String::as_str)
    }

    /// Asks the server who it is, and which timelines it has behind it.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, SourceError> {
        let doing = "identify the system";
        let asked = command::identify_system(&mut self.session.wire, doing);
        let mut identity = within(COMMAND_TIMEOUT, doing, asked).await?;
        if identity.timeline > FIRST_TIMELINE {
            let doing = "read the timeline's history";
            let asked = command::timeline_history(&mut self.session.wire, doing, identity.timeline);
            let text = within(COMMAND_TIMEOUT, doing, asked).await?;
            identity.switches = history::parse(text.as_deref().unwrap_or_default());
        }
        Ok(identity)
    }

    /// Runs a statement of SQL, which a logical walsender takes while it does not stream. Its last row, as text.
    ///
    /// # Errors
    /// What the server says.
    pub async fn row(
        &mut self,
        doing: &str,
        sql: &str,
    ) -> Result<Option<Vec<Option<String>>>, SourceError> {
        within(COMMAND_TIMEOUT, doing, command::one_row(&mut self.session.wire, doing, sql)).await
    }

    /// Makes a logical slot of plugin pgoutput, and exports the snapshot that goes with it: each row is either in the
    /// snapshot or in the stream (measured on 15 and 18, with open transactions and savepoints).
    ///
    /// It waits for every transaction that is running, for as long as they run: the caller sets the limit. `failover`
    /// needs 17.
    ///
    /// # Errors
    /// What the server says; 42710 where the slot exists, 53400 where no slot is free.
    pub async fn create_slot(
        &mut self,
        slot: &str,
        failover: bool,
    ) -> Result<CreatedSlot, SourceError> {
        let doing = format!("create slot \"{slot}\"");
        let sql = command::create_slot(slot, failover).map_err(|wrong| {
            SourceError::new(SourceErrorKind::Settings, doing.as_str()).caused_by(wrong)
        })?;
        command::created_slot(&mut self.session.wire, &doing, &sql).await
    }

    /// Starts streaming, and moves the connection to a thread of its own.
    ///
    /// Errors here are about the slot: 42704 it does not exist, 55006 it is active, 55000 it is invalidated. Errors
    /// about publications come later, in the stream, with the first change that is decoded.
    pub async fn start(mut self, start: &StartReplication) -> Result<WalStream, SourceError> {
        let doing = format!("start replication on slot \"{}\"", start.slot);
        let sql = command::start_replication(start).map_err(|wrong| {
            SourceError::new(SourceErrorKind::Settings, doing.as_str()).caused_by(wrong)
        })?;
        let started = command::copy_both(&mut self.session.wire, &doing, &sql);
        within(COMMAND_TIMEOUT, &doing, started).await?;
        WalStream::spawn(self.session, self.wal_sender_timeout, start)
    }
}

async fn within<T>(
    limit: Duration,
    doing: &str,
    step: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    tokio::time::timeout(limit, step).await.unwrap_or_else(|elapsed| {
        Err(SourceError::new(SourceErrorKind::Timeout(limit), doing).caused_by(elapsed))
    })
}
