//! The replication connection: it reads logical WAL as batches of complete frames, and sends the confirmed watermark.
//!
//! The caller decides what is confirmed. The connection sends the watermark that it was given: never one lower than
//! before, and never one above what it has received.
//!
//! The login runs on the caller's runtime. After `START_REPLICATION` the socket belongs to a separate thread
//! ([`session`]), so that status updates are sent whatever the caller is doing.

mod feedback;
mod handle;
mod queue;
mod session;

pub use handle::WalStream;
pub use queue::{Batch, Frame, Frames};

use crate::conninfo::Conninfo;
use crate::error::{SourceError, SourceErrorKind, SqlState};
use crate::handshake::{self, Purpose, Session, WAL_SENDER_TIMEOUT_MS, Wire};
use crate::lsn::Lsn;
use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use std::time::Duration;

/// Longest wait for the answer to one command before the stream starts.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The first timeline of a cluster. It has no history file.
const FIRST_TIMELINE: u32 = 1;

/// Default of [`StartReplication::queue_bytes_max`]: the most bytes of WAL that are read and not yet taken by the
/// caller. Above it the socket is not read, and the server waits. Up to a quarter more, and one read, may be in front
/// of the queue. Unit: bytes.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Default of [`StartReplication::message_bytes_max`]: the largest message that is read. All values of a row are in one
/// message; PostgreSQL's own limit is 1 GiB. Unit: bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Default of [`StartReplication::confirm_interval`]: the shortest time between two status updates that confirm a new
/// watermark.
pub const CONFIRM_INTERVAL: Duration = Duration::from_millis(200);

/// Default of [`StartReplication::silence_max`]: how long the server may be silent before the connection is taken for
/// dead. A reply is requested at half of it. It is longer than half of `wal_sender_timeout`, at which a walsender that
/// is busy decoding reads the client's messages, and shorter than the whole, after which the server releases the slot.
pub const SILENCE_MAX: Duration = Duration::from_secs(13);

/// The answer to `IDENTIFY_SYSTEM` (manual, 54.4), and the server's timeline history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemIdentity {
    /// The cluster's system identifier. A different one is a different cluster, whatever its host name.
    pub system_id: String,
    /// The current timeline; each promotion raises it.
    pub timeline: u32,
    /// The position up to which the server's WAL is flushed.
    pub flush_lsn: Lsn,
    /// The database that the connection is bound to.
    pub database: String,
    /// The earlier timelines and the end of each, oldest first. Empty on the first timeline, and if the server no
    /// longer has the history file.
    pub switches: Vec<TimelineSwitch>,
}

/// A slot that was just created (manual, 54.4, `CREATE_REPLICATION_SLOT`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatedSlot {
    /// Where the slot begins: transactions that commit below it are in the snapshot, later ones are in the stream.
    pub consistent_point: Lsn,
    /// The name of the exported snapshot, for `SET TRANSACTION SNAPSHOT` on another connection. The snapshot ends with
    /// the next command of the replication connection, or with the connection.
    pub snapshot: String,
}

/// What to stream, and the limits of the stream.
#[derive(Clone, Debug)]
pub struct StartReplication {
    /// The slot's name: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// The publications, as in `pg_publication.pubname`; at least one.
    pub publications: Vec<String>,
    /// The position to start from. The server starts at the later of this and the slot's confirmed position, and does
    /// **not check** it: a position ahead of its WAL is accepted, and everything before it is skipped (measured on 15
    /// and 18).
    pub lsn: Lsn,
    /// Whether the server also sends logical messages (`pg_logical_emit_message`).
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
    /// Streams one publication from the slot's confirmed position, without logical messages, with the default limits.
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

/// A replication connection after the login, before the stream is started.
pub struct WalConnection {
    session: Session,
    wal_sender_timeout: Duration,
}

/// The first version with the setting `transaction_timeout`. Servers refuse a startup packet that has an unknown
/// setting.
const TRANSACTION_TIMEOUT_SINCE: u32 = 17;

impl WalConnection {
    /// Connects to the first host that answers and has the requested `target_session_attrs`, and logs in.
    ///
    /// `application_name` is used unless the connection string has one. `wal_sender_timeout` is 15 s, whatever the
    /// server's default, so that the server soon releases the slot of a client that is not reachable.
    ///
    /// # Errors
    /// No host could be reached, or the login failed.
    pub async fn connect(conninfo: &Conninfo, application_name: &str) -> Result<Self, SourceError> {
        let timeout = Duration::from_millis(u64::from(WAL_SENDER_TIMEOUT_MS));
        Self::connect_with_timeout(conninfo, application_name, timeout).await
    }

    /// As [`connect`](Self::connect), with a `wal_sender_timeout` other than 15 s: the time after which the server ends
    /// the connection of a client that does not answer, and releases the slot.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
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
            let set = set_transaction_timeout(&mut session.wire, doing);
            within(COMMAND_TIMEOUT, doing, set).await?;
        }
        Ok(Self { session, wal_sender_timeout })
    }

    /// The walsender's process id (`pg_stat_replication.pid`, `pg_replication_slots.active_pid`).
    pub const fn backend_pid(&self) -> u32 {
        self.session.backend_pid
    }

    /// The setting `server_version`: `15.18 (Debian 15.18-0+deb12u1)`. `None` if the server has not reported it.
    pub fn server_version(&self) -> Option<&str> {
        self.session.parameters.get("server_version").map(String::as_str)
    }

    /// Sends `IDENTIFY_SYSTEM` and, unless the server is on its first timeline, `TIMELINE_HISTORY` (manual, 54.4).
    ///
    /// # Errors
    /// The server's error, no answer within 30 s, or the connection ended.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, SourceError> {
        let doing = "identify the system";
        let request = identify_system(&mut self.session.wire, doing);
        let mut identity = within(COMMAND_TIMEOUT, doing, request).await?;
        if identity.timeline > FIRST_TIMELINE {
            let doing = "read the timeline's history";
            let request = timeline_history(&mut self.session.wire, doing, identity.timeline);
            let text = within(COMMAND_TIMEOUT, doing, request).await?;
            identity.switches = parse_history(text.as_deref().unwrap_or_default());
        }
        Ok(identity)
    }

    /// Executes an SQL statement, which a walsender bound to a database accepts while it does not stream (manual,
    /// 54.4), and returns the last row as text; `None` if there is no row. `doing` describes the statement in errors,
    /// as a fragment to follow "could not".
    ///
    /// # Errors
    /// The server's error, no answer within 30 s, or the connection ended.
    pub async fn row(
        &mut self,
        doing: &str,
        sql: &str,
    ) -> Result<Option<Vec<Option<String>>>, SourceError> {
        within(COMMAND_TIMEOUT, doing, one_row(&mut self.session.wire, doing, sql)).await
    }

    /// Creates a logical slot of plugin pgoutput, and exports the snapshot of its start: each row is either in the
    /// snapshot or in the stream (measured on 15 and 18, with open transactions and savepoints).
    ///
    /// The server waits until all running transactions have ended. This method has no time limit; the caller sets one.
    /// `failover` (a slot that is synchronised to standbys) needs PostgreSQL 17.
    ///
    /// # Errors
    /// The server's error: 42710 if the slot exists, 53400 if no slot is free. [`SourceErrorKind::Settings`] for an
    /// invalid name.
    pub async fn create_slot(
        &mut self,
        slot: &str,
        failover: bool,
    ) -> Result<CreatedSlot, SourceError> {
        let doing = format!("create slot \"{slot}\"");
        let sql = create_slot(slot, failover).map_err(|wrong| {
            SourceError::new(SourceErrorKind::Settings, doing.as_str()).caused_by(wrong)
        })?;
        created_slot(&mut self.session.wire, &doing, &sql).await
    }

    /// Starts the stream, and moves the connection to a separate thread.
    ///
    /// # Errors
    /// The server's error about the slot: 42704 the slot does not exist, 55006 it is active, 55000 it is invalidated.
    /// Errors about publications come later, in the stream, with the first change that is decoded.
    /// [`SourceErrorKind::Settings`] for an invalid name, [`SourceErrorKind::System`] if no thread can be created.
    pub async fn start(mut self, start: &StartReplication) -> Result<WalStream, SourceError> {
        let doing = format!("start replication on slot \"{}\"", start.slot);
        let sql = start_replication(start).map_err(|wrong| {
            SourceError::new(SourceErrorKind::Settings, doing.as_str()).caused_by(wrong)
        })?;
        let started = copy_both(&mut self.session.wire, &doing, &sql);
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

/// Longest name of an object (`NAMEDATALEN - 1`). Unit: bytes.
const NAME_BYTES_MAX: usize = 63;

/// A name that is not allowed in a replication command. Such commands have no parameters, so names are checked and
/// quoted here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NameError {
    /// The rule for slots (`ReplicationSlotValidateName`, `src/backend/replication/slot.c`).
    #[error("a slot's name has 1 to 63 of the characters a to z, 0 to 9 and _")]
    Slot,
    /// The rule for identifiers.
    #[error("a publication's name has 1 to 63 bytes and no zero byte")]
    Publication,
    /// pgoutput refuses an empty list too.
    #[error("there is no publication to stream")]
    NoPublication,
}

/// `START_REPLICATION SLOT "s" LOGICAL 0/0 (proto_version '1', publication_names '"p"', messages 'false')`
fn start_replication(start: &StartReplication) -> Result<String, NameError> {
    let slot = &start.slot;
    if !is_slot_name(slot) {
        return Err(NameError::Slot);
    }
    if start.publications.is_empty() {
        return Err(NameError::NoPublication);
    }
    let mut names = Vec::new();
    for name in &start.publications {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(NameError::Publication);
        }
        // An identifier in a list inside a literal is quoted twice.
        names.push(format!("\"{}\"", name.replace('"', "\"\"")));
    }
    let names = names.join(",").replace('\'', "''");
    Ok(format!(
        "START_REPLICATION SLOT \"{slot}\" LOGICAL {} (proto_version '1', publication_names \
         '{names}', messages '{}')",
        start.lsn, start.messages
    ))
}

fn is_slot_name(slot: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    !slot.is_empty() && slot.len() <= NAME_BYTES_MAX && slot.bytes().all(fits)
}

/// Sends `START_REPLICATION` and waits for `CopyBothResponse`.
async fn copy_both(wire: &mut Wire, doing: &str, sql: &str) -> Result<(), SourceError> {
    query(wire, doing, sql).await?;
    let message = wire.receive(doing).await?;
    if message.tag == b'W' { Ok(()) } else { Err(protocol_error(doing)) }
}

/// Sends `IDENTIFY_SYSTEM` and reads its row.
async fn identify_system(wire: &mut Wire, doing: &str) -> Result<SystemIdentity, SourceError> {
    let row = one_row(wire, doing, "IDENTIFY_SYSTEM").await?;
    identity(row.as_deref()).ok_or_else(|| protocol_error(doing))
}

/// `CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)`: this form exists since 15, option
/// `FAILOVER` since 17 (manual, 54.4).
fn create_slot(slot: &str, failover: bool) -> Result<String, NameError> {
    if !is_slot_name(slot) {
        return Err(NameError::Slot);
    }
    let failover = if failover { ", FAILOVER true" } else { "" };
    Ok(format!("CREATE_REPLICATION_SLOT \"{slot}\" LOGICAL pgoutput (SNAPSHOT 'export'{failover})"))
}

/// Sends `CREATE_REPLICATION_SLOT` and reads its row.
async fn created_slot(wire: &mut Wire, doing: &str, sql: &str) -> Result<CreatedSlot, SourceError> {
    let row = one_row(wire, doing, sql).await?;
    let created = match row.as_deref() {
        Some([_, Some(at), Some(snapshot), ..]) => at
            .parse()
            .ok()
            .map(|consistent_point| CreatedSlot { consistent_point, snapshot: snapshot.clone() }),
        _ => None,
    };
    created.ok_or_else(|| protocol_error(doing))
}

/// Disables `transaction_timeout`: the walsender decodes a transaction inside a transaction of its own, which may take
/// long and must not end the stream.
async fn set_transaction_timeout(wire: &mut Wire, doing: &str) -> Result<(), SourceError> {
    one_row(wire, doing, "SET transaction_timeout = 0").await.map(drop)
}

/// Sends a command and reads the last row of its answer.
async fn one_row(
    wire: &mut Wire,
    doing: &str,
    sql: &str,
) -> Result<Option<Vec<Option<String>>>, SourceError> {
    query(wire, doing, sql).await?;
    let mut row = None;
    loop {
        let message = wire.receive(doing).await?;
        match message.tag {
            b'D' => row = Some(columns(message.body).ok_or_else(|| protocol_error(doing))?),
            b'T' | b'C' | b'S' => {}
            b'Z' => return Ok(row),
            _ => return Err(protocol_error(doing)),
        }
    }
}

/// Sends `TIMELINE_HISTORY` and returns the file's text. `None` if the server no longer has the file; a copy of a data
/// directory may lack it.
async fn timeline_history(
    wire: &mut Wire,
    doing: &str,
    timeline: u32,
) -> Result<Option<String>, SourceError> {
    query(wire, doing, &format!("TIMELINE_HISTORY {timeline}")).await?;
    let mut text = None;
    loop {
        let message = match wire.receive(doing).await {
            Ok(message) => message,
            // The connection is still usable: the end of the command follows.
            Err(error) if error.sqlstate() == Some(SqlState::UNDEFINED_FILE) => continue,
            Err(error) => return Err(error),
        };
        match message.tag {
            b'D' => {
                let row = columns(message.body).ok_or_else(|| protocol_error(doing))?;
                text = row.into_iter().nth(1).flatten();
            }
            b'T' | b'C' | b'S' => {}
            b'Z' => return Ok(text),
            _ => return Err(protocol_error(doing)),
        }
    }
}

fn identity(row: Option<&[Option<String>]>) -> Option<SystemIdentity> {
    let [Some(system_id), Some(timeline), Some(flush_lsn), Some(database), ..] = row? else {
        return None;
    };
    Some(SystemIdentity {
        system_id: system_id.clone(),
        timeline: timeline.parse().ok()?,
        flush_lsn: flush_lsn.parse().ok()?,
        database: database.clone(),
        switches: Vec::new(),
    })
}

/// The columns of a `DataRow` in text form.
fn columns(mut body: Bytes) -> Option<Vec<Option<String>>> {
    let count = body.try_get_u16().ok()?;
    let mut columns = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let length = body.try_get_i32().ok()?;
        let column = match usize::try_from(length) {
            Err(_) => None,
            Ok(length) if length <= body.len() => {
                Some(String::from_utf8(body.split_to(length).to_vec()).ok()?)
            }
            Ok(_) => return None,
        };
        columns.push(column);
    }
    Some(columns)
}

async fn query(wire: &mut Wire, doing: &str, sql: &str) -> Result<(), SourceError> {
    let mut out = BytesMut::new();
    frontend::query(sql, &mut out)
        .map_err(|error| SourceError::new(SourceErrorKind::Settings, doing).caused_by(error))?;
    wire.send(doing, &out).await
}

fn protocol_error(doing: &str) -> SourceError {
    SourceError::new(SourceErrorKind::Protocol, doing)
}

/// The end of a timeline: one line of a timeline history file.
///
/// A line has timeline, position and reason, separated by tabs; the oldest timeline is first (manual, 26.3.6; written
/// by `writeTimeLineHistory`, `src/backend/access/transam/timeline.c`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimelineSwitch {
    /// The timeline that ended.
    pub timeline: u32,
    /// The position of its end. WAL that was written on the timeline from here on is not part of the server's history.
    pub at: Lsn,
    /// The server's reason: `no recovery target specified` for a promotion.
    pub reason: String,
}

impl TimelineSwitch {
    /// Whether recovery stopped at a recovery target: the server is a restored backup, not a promoted standby. The
    /// texts are those of `getRecoveryStopReason` (`src/backend/access/transam/xlogrecovery.c`), the same in 15 to 18.
    pub fn stopped_at_a_target(&self) -> bool {
        let targets = ["before ", "after ", "at restore point ", "reached consistency"];
        targets.iter().any(|words| self.reason.starts_with(words))
    }
}

/// Parses a history file. Malformed lines are skipped.
fn parse_history(text: &str) -> Vec<TimelineSwitch> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.filter_map(parse_switch).collect()
}

fn parse_switch(line: &str) -> Option<TimelineSwitch> {
    let mut fields = line.trim_start().splitn(2, char::is_whitespace);
    let timeline = fields.next()?.parse().ok()?;
    let mut rest = fields.next()?.trim_start().splitn(2, char::is_whitespace);
    let at = rest.next()?.parse().ok()?;
    let reason = rest.next().unwrap_or_default().trim().to_owned();
    Some(TimelineSwitch { timeline, at, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_the_grammar_of_replication_commands() {
        let mut start = StartReplication::new("9_slot", "Pub'\"s");
        start.publications.push("b,c".to_owned());
        start.lsn = "1/AB".parse().unwrap();
        start.messages = true;
        assert_eq!(
            start_replication(&start).unwrap(),
            "START_REPLICATION SLOT \"9_slot\" LOGICAL 1/AB (proto_version '1', \
             publication_names '\"Pub''\"\"s\",\"b,c\"', messages 'true')"
        );
    }

    #[test]
    fn a_slot_is_created_with_a_snapshot() {
        assert_eq!(
            create_slot("s", true).unwrap(),
            "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)"
        );
        assert_eq!(create_slot("S\"", false), Err(NameError::Slot));
    }

    #[test]
    fn names_that_cannot_exist_are_refused() {
        let long = "x".repeat(64);
        for slot in ["", "Upper", "a b", "a\"b", "ä", "a-b", long.as_str()] {
            let start = StartReplication::new(slot, "p");
            assert_eq!(start_replication(&start), Err(NameError::Slot), "{slot:?}");
        }
        for publication in ["", "a\0b", long.as_str()] {
            let start = StartReplication::new("s", publication);
            assert_eq!(start_replication(&start), Err(NameError::Publication));
        }
        let mut start = StartReplication::new("s", "p");
        start.publications.clear();
        assert_eq!(start_replication(&start), Err(NameError::NoPublication));
    }

    #[test]
    fn a_truncated_row_is_refused() {
        let row = b"\0\x02\0\0\0\x01a\xff\xff\xff\xff";
        let whole = columns(Bytes::from_static(row));
        assert_eq!(whole, Some(vec![Some("a".to_owned()), None]));
        for length in 0..row.len() {
            assert_eq!(columns(Bytes::copy_from_slice(&row[..length])), None, "{length} bytes");
        }
    }
}

#[cfg(test)]
mod history_tests {
    use super::*;

    /// As PostgreSQL 18 wrote it, with the comment an operator may add.
    #[test]
    fn every_ended_timeline_is_read_with_its_end_and_its_reason() {
        let text = "1\t0/303D298\tno recovery target specified\n\n# a comment\n2\t1/5000\tbefore 2026-03-01 04:00\n";
        let switches = parse_history(text);
        let read: Vec<_> =
            switches.iter().map(|s| (s.timeline, s.at.to_string(), s.reason.as_str())).collect();
        assert_eq!(
            read,
            [
                (1, "0/303D298".to_owned(), "no recovery target specified"),
                (2, "1/5000".to_owned(), "before 2026-03-01 04:00"),
            ]
        );
        assert_eq!(
            switches.iter().map(TimelineSwitch::stopped_at_a_target).collect::<Vec<_>>(),
            [false, true]
        );
    }

    #[test]
    fn malformed_lines_are_skipped() {
        for text in ["", "\n\n", "x\t0/1\tno", "1", "1\t", "1\tnowhere\tno", "# 1\t0/1\tno"] {
            assert_eq!(parse_history(text), [], "{text:?}");
        }
        assert_eq!(parse_history("1\t0/1")[0].reason, "");
    }
}
