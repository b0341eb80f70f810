//! The replication connection: logical WAL as batches of whole frames, and the confirmed watermark on its way back.
//!
//! Owns the walsender's side of the protocol: identify, start, read, status updates, the end. It does not look into
//! frames (that is `pgoutput`'s) and does not decide what is confirmed (that is `ack`'s): it sends the watermark it was
//! given, never a lower one than before and never one above what it has received.
//!
//! The login runs on the caller's runtime. From `START_REPLICATION` on the socket lives on a thread of its own
//! ([`session`]), so that status updates leave whatever the caller is doing.

mod feedback;
mod queue;
mod session;
mod stream;

pub use queue::{Batch, Frame, Frames};
pub use stream::WalStream;

use crate::conninfo::Conninfo;
use crate::error::{SourceError, SourceErrorKind, SqlState};
use crate::handshake::{self, Purpose, Session, WAL_SENDER_TIMEOUT_MS, Wire};
use crate::lsn::Lsn;
use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::message::frontend;
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
            let set = set_transaction_timeout(&mut session.wire, doing);
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
        let asked = identify_system(&mut self.session.wire, doing);
        let mut identity = within(COMMAND_TIMEOUT, doing, asked).await?;
        if identity.timeline > FIRST_TIMELINE {
            let doing = "read the timeline's history";
            let asked = timeline_history(&mut self.session.wire, doing, identity.timeline);
            let text = within(COMMAND_TIMEOUT, doing, asked).await?;
            identity.switches = parse(text.as_deref().unwrap_or_default());
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
        within(COMMAND_TIMEOUT, doing, one_row(&mut self.session.wire, doing, sql)).await
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
        let sql = create_slot(slot, failover).map_err(|wrong| {
            SourceError::new(SourceErrorKind::Settings, doing.as_str()).caused_by(wrong)
        })?;
        created_slot(&mut self.session.wire, &doing, &sql).await
    }

    /// Starts streaming, and moves the connection to a thread of its own.
    ///
    /// Errors here are about the slot: 42704 it does not exist, 55006 it is active, 55000 it is invalidated. Errors
    /// about publications come later, in the stream, with the first change that is decoded.
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

// The replication commands we send, as text, and their answers.
//
// The replication grammar has no parameters, so names are quoted here, in one place.

/// Longest name the server keeps (`NAMEDATALEN - 1`). Unit: bytes.
const NAME_BYTES_MAX: usize = 63;

/// A name that can't stand in a command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NameError {
    /// Slots have their own rule (`ReplicationSlotValidateName`, `src/backend/replication/slot.c`).
    #[error("a slot's name has 1 to 63 of the characters a to z, 0 to 9 and _")]
    Slot,
    /// Any identifier.
    #[error("a publication's name has 1 to 63 bytes and no zero byte")]
    Publication,
    /// pgoutput refuses it too.
    #[error("there is no publication to stream")]
    NoPublication,
}

/// `START_REPLICATION SLOT "s" LOGICAL 0/0 (proto_version '1', publication_names '"p"', messages 'false')`
fn start_replication(start: &StartReplication) -> Result<String, NameError> {
    let slot = &start.slot;
    if !slot_fits(slot) {
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
        // An identifier in a list in a literal: quoted twice.
        names.push(format!("\"{}\"", name.replace('"', "\"\"")));
    }
    let names = names.join(",").replace('\'', "''");
    Ok(format!(
        "START_REPLICATION SLOT \"{slot}\" LOGICAL {} (proto_version '1', publication_names \
         '{names}', messages '{}')",
        start.lsn, start.messages
    ))
}

fn slot_fits(slot: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    !slot.is_empty() && slot.len() <= NAME_BYTES_MAX && slot.bytes().all(fits)
}

/// Sends `START_REPLICATION` and waits for `CopyBothResponse`.
async fn copy_both(wire: &mut Wire, doing: &str, sql: &str) -> Result<(), SourceError> {
    query(wire, doing, sql).await?;
    let frame = wire.receive(doing).await?;
    if frame.tag == b'W' { Ok(()) } else { Err(broken(doing)) }
}

/// Sends `IDENTIFY_SYSTEM` and reads its one row.
async fn identify_system(wire: &mut Wire, doing: &str) -> Result<SystemIdentity, SourceError> {
    let row = one_row(wire, doing, "IDENTIFY_SYSTEM").await?;
    identity(row.as_deref()).ok_or_else(|| broken(doing))
}

/// `CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)`: in this form since 15, with
/// `FAILOVER` since 17 (manual, 54.4).
fn create_slot(slot: &str, failover: bool) -> Result<String, NameError> {
    if !slot_fits(slot) {
        return Err(NameError::Slot);
    }
    let failover = if failover { ", FAILOVER true" } else { "" };
    Ok(format!("CREATE_REPLICATION_SLOT \"{slot}\" LOGICAL pgoutput (SNAPSHOT 'export'{failover})"))
}

/// Sends it and reads its one row.
async fn created_slot(wire: &mut Wire, doing: &str, sql: &str) -> Result<CreatedSlot, SourceError> {
    let row = one_row(wire, doing, sql).await?;
    let created = match row.as_deref() {
        Some([_, Some(at), Some(snapshot), ..]) => at
            .parse()
            .ok()
            .map(|consistent_point| CreatedSlot { consistent_point, snapshot: snapshot.clone() }),
        _ => None,
    };
    created.ok_or_else(|| broken(doing))
}

/// Decoding a transaction is a transaction of its own: one that takes long must not end the stream.
async fn set_transaction_timeout(wire: &mut Wire, doing: &str) -> Result<(), SourceError> {
    one_row(wire, doing, "SET transaction_timeout = 0").await.map(drop)
}

/// Sends a command and reads the one row of its answer.
async fn one_row(
    wire: &mut Wire,
    doing: &str,
    sql: &str,
) -> Result<Option<Vec<Option<String>>>, SourceError> {
    query(wire, doing, sql).await?;
    let mut row = None;
    loop {
        let frame = wire.receive(doing).await?;
        match frame.tag {
            b'D' => row = Some(columns(frame.body).ok_or_else(|| broken(doing))?),
            b'T' | b'C' | b'S' => {}
            b'Z' => return Ok(row),
            _ => return Err(broken(doing)),
        }
    }
}

/// Sends `TIMELINE_HISTORY` and gives back the file's text; `None` where the server does not have it any more, which a
/// copy of its files may lack.
async fn timeline_history(
    wire: &mut Wire,
    doing: &str,
    timeline: u32,
) -> Result<Option<String>, SourceError> {
    query(wire, doing, &format!("TIMELINE_HISTORY {timeline}")).await?;
    let mut text = None;
    loop {
        let frame = match wire.receive(doing).await {
            Ok(frame) => frame,
            // The connection stays as it is: the end of the command follows.
            Err(error) if error.sqlstate() == Some(SqlState::UNDEFINED_FILE) => continue,
            Err(error) => return Err(error),
        };
        match frame.tag {
            b'D' => {
                let row = columns(frame.body).ok_or_else(|| broken(doing))?;
                text = row.into_iter().nth(1).flatten();
            }
            b'T' | b'C' | b'S' => {}
            b'Z' => return Ok(text),
            _ => return Err(broken(doing)),
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

fn broken(doing: &str) -> SourceError {
    SourceError::new(SourceErrorKind::Protocol, doing)
}

// A timeline's history file: which timelines a server has behind it, and where each was left.
//
// Text of lines `timeline, position, reason`, parted by tabs, oldest first (manual, 26.3.6; written by
// `writeTimeLineHistory`, `src/backend/access/transam/timeline.c`).

/// The end of one timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The timeline that was left.
    pub timeline: u32,
    /// Where: what was written on it from here on is no part of the server's history.
    pub at: Lsn,
    /// Why, in the server's words: `no recovery target specified` for a promotion.
    pub reason: String,
}

impl Switch {
    /// Whether recovery was told where to end: this is a restored backup, not the other half of a pair. The words are
    /// those of `getRecoveryStopReason` (`src/backend/access/transam/xlogrecovery.c`), the same in 15 to 18.
    pub fn stopped_at_a_target(&self) -> bool {
        let targets = ["before ", "after ", "at restore point ", "reached consistency"];
        targets.iter().any(|words| self.reason.starts_with(words))
    }
}

/// The lines of the file; what is not one is passed over, as the server itself reads on.
fn parse(text: &str) -> Vec<Switch> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.filter_map(switch).collect()
}

fn switch(line: &str) -> Option<Switch> {
    let mut fields = line.trim_start().splitn(2, char::is_whitespace);
    let timeline = fields.next()?.parse().ok()?;
    let mut rest = fields.next()?.trim_start().splitn(2, char::is_whitespace);
    let at = rest.next()?.parse().ok()?;
    let reason = rest.next().unwrap_or_default().trim().to_owned();
    Some(Switch { timeline, at, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_the_grammar_they_stand_in() {
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
    fn a_slot_is_made_with_a_snapshot() {
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
    fn a_row_cut_anywhere_is_no_row() {
        let row = b"\0\x02\0\0\0\x01a\xff\xff\xff\xff";
        let whole = columns(Bytes::from_static(row));
        assert_eq!(whole, Some(vec![Some("a".to_owned()), None]));
        for cut in 0..row.len() {
            assert_eq!(columns(Bytes::copy_from_slice(&row[..cut])), None, "cut at {cut}");
        }
    }
}

#[cfg(test)]
mod history_tests {
    use super::*;

    /// As PostgreSQL 18 wrote it, with the comment an operator may add.
    #[test]
    fn every_timeline_that_was_left_is_read_with_its_end_and_its_reason() {
        let text = "1\t0/303D298\tno recovery target specified\n\n# a comment\n2\t1/5000\tbefore 2026-03-01 04:00\n";
        let switches = parse(text);
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
            switches.iter().map(Switch::stopped_at_a_target).collect::<Vec<_>>(),
            [false, true]
        );
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for text in ["", "\n\n", "x\t0/1\tno", "1", "1\t", "1\tnowhere\tno", "# 1\t0/1\tno"] {
            assert_eq!(parse(text), [], "{text:?}");
        }
        assert_eq!(parse("1\t0/1")[0].reason, "");
    }
}
