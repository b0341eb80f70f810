//! The error policy of the source: one total function from errors to actions. A test prints the whole table.
//!
//! A pure function of the error's kind, its SQLSTATE and the statement that it came from, never of its text. An unknown
//! error counts as transient: a wrong "transient" stops the pipeline visibly, a wrong "definite" halts a healthy one.
//! Only [`Repeats`] counts attempts, and it can only halt the pipeline, never give up an event.

#[cfg(test)]
mod tests;

use crate::error::SqlState;
use crate::names::{Names, admin_url, ident, literal};
use crate::start::run_without_slot;
use crate::statement::{Statement, StatementError};
use crate::wire::Lsn;
use pg_replication::error::{SourceError, SourceErrorKind};
use postrider_core::error::{Chain, Halt, HaltReason};
use std::time::Duration;

/// Where an error occurred, if it names no [`Statement`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Opening either connection: name, TCP, TLS, login.
    Connect,
    /// Statements before the stream starts.
    Handshake,
    /// `START_REPLICATION`, until it answers.
    Start,
    /// The stream.
    Stream,
    /// Statements beside the stream.
    Control,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 5] =
        [Self::Connect, Self::Handshake, Self::Start, Self::Stream, Self::Control];
}

/// The action that an error leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Drop both connections and repeat the whole handshake, with back-off and without a limit of attempts.
    Reconnect(Class),
    /// Only this statement failed, and it may succeed later: it is repeated on the same connection, and nothing else
    /// waits for it. Without a stream that could continue, as [`Action::Reconnect`].
    Later(Class),
    /// Another process holds the slot: as [`Action::Reconnect`], and log that.
    StandBy,
    /// The server refused something: repeat the handshake, because its start check finds the exact reason; if the
    /// check finds nothing wrong, halt with this reason.
    Recheck(HaltReason),
    /// An operator must act. [`explain`] builds the halt.
    Halt(HaltReason),
}

/// Why the connection is made again: the label of a metric, and the shortest pause before the next attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The connection broke, or could not be opened.
    Connection,
    /// The server stops, or the session was terminated. Or the slot was just invalidated: the next handshake finds out.
    Shutdown,
    /// The server starts, or recovers.
    Starting,
    /// No connection, memory, disk space or walsender is available.
    Resources,
    /// The login was refused although it has worked before: a password may have been rotated.
    Access,
    /// The server is a standby.
    NotPrimary,
    /// A lock, a deadlock, or a statement that took too long.
    Busy,
    /// The server failed internally.
    Server,
    /// The cause is not known.
    Unknown,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 9] = [
        Self::Connection,
        Self::Shutdown,
        Self::Starting,
        Self::Resources,
        Self::Access,
        Self::NotPrimary,
        Self::Busy,
        Self::Server,
        Self::Unknown,
    ];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Shutdown => "shutdown",
            Self::Starting => "starting",
            Self::Resources => "resources",
            Self::Access => "access",
            Self::NotPrimary => "not_primary",
            Self::Busy => "busy",
            Self::Server => "server",
            Self::Unknown => "unknown",
        }
    }

    /// The shortest pause before the next attempt; back-off starts from it.
    ///
    /// A server that stops waits for its walsenders, so an immediate reconnect would delay the shutdown. For a server
    /// without a free connection, frequent attempts do not help.
    pub const fn pause_min(self) -> Duration {
        match self {
            Self::Connection | Self::Busy | Self::Unknown => Duration::from_millis(200),
            Self::Shutdown | Self::Starting | Self::NotPrimary | Self::Server => {
                Duration::from_secs(1)
            }
            Self::Resources | Self::Access => Duration::from_secs(5),
        }
    }
}

/// The table. `proven`: this process has streamed before, so the configuration has been valid once.
pub fn action(error: &SourceError, phase: Phase, proven: bool) -> Action {
    match error.kind() {
        SourceErrorKind::Unreachable
        | SourceErrorKind::Timeout(_)
        | SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::Stopped => Action::Reconnect(Class::Connection),
        SourceErrorKind::ServerStopping => Action::Reconnect(Class::Shutdown),
        SourceErrorKind::System => Action::Reconnect(Class::Resources),
        SourceErrorKind::SessionAttrs => Action::Reconnect(Class::NotPrimary),
        SourceErrorKind::Settings | SourceErrorKind::Tls | SourceErrorKind::AuthRefused => {
            access(proven)
        }
        SourceErrorKind::Protocol => Action::Halt(HaltReason::Protocol),
        SourceErrorKind::TooLarge { .. } => Action::Halt(HaltReason::PoisonEvent),
        SourceErrorKind::Server(report) => match error.statement() {
            Some(statement) => by_statement(report.sqlstate, statement, proven),
            None => by_sqlstate(report.sqlstate, phase, proven),
        },
    }
}

/// The action for an SQLSTATE of one of our own statements.
///
/// These statements do not run on the walsender's session, so no SQLSTATE here is about the slot, the publication or
/// the stream. Three cases are distinguished. First, the session has ended, or the server accepts no writes: connect
/// again. Second, the statement may succeed later: [`Action::Later`], or connect again if the relay cannot continue
/// without it. Third, the table refuses the statement for a reason that only an operator can remove: halt.
fn by_statement(state: SqlState, statement: Statement, proven: bool) -> Action {
    if let Some(class) = session_over(state) {
        return Action::Reconnect(class);
    }
    match statement {
        Statement::Mark => match passing(state).or_else(|| at_work(state)) {
            Some(class) => Action::Later(class),
            None if refusal(state) => Action::Halt(HaltReason::TableUnfit),
            None => Action::Later(Class::Unknown),
        },
        // The claim's transaction ends with its first error: another session claims again.
        Statement::Claim | Statement::Settle => match passing(state).or_else(|| at_work(state)) {
            Some(class) => Action::Reconnect(class),
            // pg_current_wal_insert_lsn() on a server that is in recovery again.
            None if state.as_str() == "55000" && statement == Statement::Claim => {
                Action::Reconnect(Class::NotPrimary)
            }
            // A migration may have removed the table for a short time: the start check finds out.
            None if matches!(state.as_str(), "42P01" | "42703" | "3F000") => {
                Action::Recheck(HaltReason::TableUnfit)
            }
            None if refusal(state) => Action::Halt(HaltReason::TableUnfit),
            None => Action::Reconnect(Class::Unknown),
        },
        Statement::Cursor | Statement::Parked => match passing(state) {
            Some(Class::Busy) => Action::Later(Class::Busy),
            Some(class) => Action::Reconnect(class),
            None => own_table(state, proven),
        },
        // No event waits for these statements.
        Statement::Requests | Statement::Look => {
            let class = passing(state).or_else(|| at_work(state)).unwrap_or(Class::Unknown);
            Action::Later(class)
        }
    }
}

/// The tables of schema `postrider` refused a statement.
fn own_table(state: SqlState, proven: bool) -> Action {
    match state.as_str() {
        // In recovery there is no end of WAL to record.
        "55000" => Action::Reconnect(Class::NotPrimary),
        "42501" if !proven => Action::Halt(HaltReason::AccessDenied),
        // A schema of another version: the start check reports which one. 23505 is met once if a statement of an ended
        // session has just written the same row, and each time if a unique index is not Postrider's.
        "42P01" | "42703" | "3F000" | "23505" => Action::Recheck(HaltReason::SchemaUnfit),
        // Values of an event that the database's encoding does not have: [`Repeats`] watches them.
        _ if state.class() == "22" => Action::Reconnect(Class::Server),
        _ => match at_work(state) {
            Some(class) => Action::Reconnect(class),
            None if refusal(state) => Action::Halt(HaltReason::SchemaUnfit),
            None => Action::Reconnect(Class::Unknown),
        },
    }
}

/// The session has ended, or another session is needed.
fn session_over(state: SqlState) -> Option<Class> {
    match state.as_str() {
        "57P01" | "57P02" | "57P05" => Some(Class::Shutdown),
        "57P03" => Some(Class::Starting),
        // The primary became a standby.
        "25006" => Some(Class::NotPrimary),
        // idle_in_transaction_session_timeout, transaction_timeout.
        "25P03" | "25P04" => Some(Class::Busy),
        // A failed transaction that nobody ends: its COMMIT was cancelled. A prepared statement that was deallocated:
        // by a pooler in between, or by a DISCARD ALL.
        "25P02" | "26000" => Some(Class::Unknown),
        "3D000" | "57P04" => Some(Class::Access),
        _ if state.class() == "08" => Some(Class::Connection),
        _ if state.class() == "28" => Some(Class::Access),
        _ => None,
    }
}

/// A condition that passes without an operator: a lock, a deadlock, a time-out, a full disk.
fn passing(state: SqlState) -> Option<Class> {
    match (state.as_str(), state.class()) {
        ("55P03" | "57014" | "55006", _) | (_, "40") => Some(Class::Busy),
        (_, "53") => Some(Class::Resources),
        _ => None,
    }
}

/// The server failed internally: limits, the disk, internal errors, corruption; [`Repeats`] watches them.
fn at_work(state: SqlState) -> Option<Class> {
    matches!(state.class(), "54" | "58" | "XX").then_some(Class::Server)
}

/// The table, its types, constraints, triggers or rights are not as the statement needs them: another attempt has the
/// same result until the table is changed.
fn refusal(state: SqlState) -> bool {
    let of_class = matches!(
        state.class(),
        // Features, triggers, cardinality, data, constraints, functions and their errors, names and rights, WITH CHECK
        // OPTION, PL/pgSQL's RAISE.
        "0A" | "09"
            | "0L"
            | "0P"
            | "21"
            | "22"
            | "23"
            | "27"
            | "2F"
            | "38"
            | "39"
            | "42"
            | "3F"
            | "44"
            | "P0"
    );
    of_class || state.as_str() == "55000"
}

/// The login or a right was refused: the configuration was never valid, or has changed since.
fn access(proven: bool) -> Action {
    if proven { Action::Reconnect(Class::Access) } else { Action::Halt(HaltReason::AccessDenied) }
}

fn by_sqlstate(state: SqlState, phase: Phase, proven: bool) -> Action {
    let started = matches!(phase, Phase::Start | Phase::Stream);
    match (state.as_str(), phase) {
        // object_not_in_prerequisite_state: the slot is lost, in use, or being synchronised; in the stream, the
        // publication was skipped (18, as a warning); elsewhere, the server is in recovery.
        ("55000", Phase::Start) => Action::Recheck(HaltReason::SlotUnusable),
        ("55000" | "42704", Phase::Stream) => Action::Halt(HaltReason::PublicationMissing),
        ("55000" | "25006", _) => Action::Reconnect(Class::NotPrimary),
        ("55006", _) => Action::StandBy,
        ("42704", Phase::Start) => Action::Recheck(HaltReason::SlotMissing),
        // Two publications with different column lists.
        ("0A000", Phase::Stream) => Action::Halt(HaltReason::PublicationUnfit),
        ("0A000" | "22023" | "42601" | "42602", _) if started => {
            Action::Halt(HaltReason::ServerUnfit)
        }
        // Schema `postrider` or a column of it is not of this version.
        ("42P01" | "42703" | "3F000", Phase::Handshake | Phase::Control) => {
            Action::Recheck(HaltReason::SchemaUnfit)
        }
        ("3D000" | "42501", _) => access(proven),
        ("57P01" | "57P02" | "57P05", _) => Action::Reconnect(Class::Shutdown),
        ("57P03", _) => Action::Reconnect(Class::Starting),
        ("55P03" | "57014", _) => Action::Reconnect(Class::Busy),
        (_, _) => by_class(state, proven),
    }
}

fn by_class(state: SqlState, proven: bool) -> Action {
    match state.class() {
        "08" => Action::Reconnect(Class::Connection),
        "28" => access(proven),
        "40" => Action::Reconnect(Class::Busy),
        "53" => Action::Reconnect(Class::Resources),
        // Data that cannot be converted, limits, the disk, internal errors, corruption: [`Repeats`] watches them.
        "22" | "54" | "58" | "XX" => Action::Reconnect(Class::Server),
        _ => Action::Reconnect(Class::Unknown),
    }
}

/// Counts the same failure at the same position: the server cannot get past that position.
///
/// Receives every error of the stream or of its start; the count starts again when the position has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repeats {
    last: Option<(SqlState, Lsn)>,
    count: u32,
}

/// After this number of errors in a row with the same SQLSTATE at the same position, the error is assumed to be
/// permanent. A full disk or a lack of memory can last longer, so those classes ([`Class::Resources`]) are not counted.
pub const REPEATS_MAX: u32 = 3;

impl Repeats {
    /// Counts `error`, which occurred with the stream at `at`; the associated LSN is used instead if the server names
    /// one, because it is more exact. Returns true if the pipeline is to halt with [`HaltReason::Wedged`].
    pub fn wedged(&mut self, error: &SourceError, at: Lsn) -> bool {
        let Some(report) = error.report() else { return false };
        if by_class(report.sqlstate, true) != Action::Reconnect(Class::Server) {
            return false;
        }
        let now = (report.sqlstate, report.associated_lsn.map_or(at, crate::wire::from_wire));
        self.count = if self.last == Some(now) { self.count.saturating_add(1) } else { 1 };
        self.last = Some(now);
        self.count >= REPEATS_MAX
    }
}

const NOTHING_LOST: &str =
    "nothing is confirmed while halted; the slot keeps the WAL, nothing is lost";

/// Builds the halt for `reason`; its message contains the error's text.
pub fn explain(reason: HaltReason, error: &SourceError, names: &Names) -> Halt {
    let (meaning, hint) = match reason {
        HaltReason::AccessDenied => {
            ("nothing was read or confirmed".to_owned(), access_hint(error))
        }
        HaltReason::PublicationMissing => publication_missing(error, names),
        HaltReason::PublicationUnfit => (
            NOTHING_LOST.to_owned(),
            format!(
                "name one publication in source.publication, made by: {}",
                setup_as_admin(names)
            ),
        ),
        HaltReason::SlotUnusable | HaltReason::SlotMissing | HaltReason::SlotLost => (
            format!("slot {:?} can't be read; {NOTHING_LOST}", names.slot),
            format!(
                "check it: SELECT * FROM pg_replication_slots WHERE slot_name = {};",
                literal(&names.slot)
            ),
        ),
        HaltReason::SchemaUnfit => (NOTHING_LOST.to_owned(), schema_hint(error, names)),
        HaltReason::TableUnfit if error.statement().is_some() => table_refuses(error, names),
        HaltReason::PoisonEvent => (
            "one message of the stream can't be taken; everything behind it waits in the slot".to_owned(),
            "keep payloads below the limit: ALTER TABLE … ADD CHECK (octet_length(payload::text) < …); to skip \
             this one see docs/operations/skipping.md"
                .to_owned(),
        ),
        HaltReason::Wedged => (
            "the server fails at the same position each time: everything behind it waits in the slot".to_owned(),
            "the server's log has the full error; to skip a row that can't be converted or decoded see \
             docs/operations/skipping.md"
                .to_owned(),
        ),
        HaltReason::Protocol => (
            "the bytes of the stream can't be trusted; nothing was skipped and nothing is confirmed".to_owned(),
            "make sure that source.url reaches PostgreSQL itself and no pooler; then report it with the log".to_owned(),
        ),
        HaltReason::ServerUnfit
        | HaltReason::OtherHistory
        | HaltReason::PositionAhead
        | HaltReason::SlotMoved
        | HaltReason::TableUnfit
        | HaltReason::MarksUnfit
        | HaltReason::WalBudget
        | HaltReason::RelayRunning
        | HaltReason::NotApplicable
        | HaltReason::AlreadySetUp
        | HaltReason::RowUpdated
        | HaltReason::SchemaUntrusted
        | HaltReason::PipelineChanged
        | HaltReason::SinkUnfit => (
            NOTHING_LOST.to_owned(),
            format!("postrider setup -p {} --print-sql shows what is needed", names.key.pipeline),
        ),
    };
    Halt { reason, message: Chain(error).to_string(), meaning, hint }
}

const READ_ONLY: &str = "name the primary in source.url (target_session_attrs=read-write finds it among several \
    hosts); or default_transaction_read_only is on: reset it for the role, the database or the server";

const USED_UP: &str = "every connection or walsender is taken: raise max_connections or max_wal_senders (a restart), \
    or end one of SELECT pid, application_name FROM pg_stat_activity WHERE backend_type IN ('walsender', 'client \
    backend')";

/// PgBouncer's error for a parameter that it does not pass on, and the server's error for a replication command in an
/// ordinary session, because the pooler left `replication` out (measured with 1.18).
const POOLER: &str = "name PostgreSQL itself in source.url: a connection pooler such as PgBouncer is in between, and \
    replication does not pass it";

/// What to check while the pipeline waits for an error to pass; `None` if there is nothing to check, or the server's
/// message says it.
pub fn hint(error: &SourceError) -> Option<String> {
    match error.kind() {
        SourceErrorKind::Unreachable | SourceErrorKind::Timeout(_) => Some(
            "check host and port in source.url, the network, and that PostgreSQL runs and listens there"
                .to_owned(),
        ),
        SourceErrorKind::SessionAttrs => {
            Some("name all hosts in source.url, the one that takes writes among them".to_owned())
        }
        SourceErrorKind::Settings | SourceErrorKind::Tls | SourceErrorKind::AuthRefused => {
            Some(access_hint(error))
        }
        SourceErrorKind::Server(report) => {
            let access = matches!(report.sqlstate.class(), "28" | "3D")
                || report.sqlstate.as_str() == "42501";
            if access {
                return Some(access_hint(error));
            }
            match report.sqlstate.as_str() {
                "25006" => Some(READ_ONLY.to_owned()),
                "53300" => Some(USED_UP.to_owned()),
                "08P01" | "42601" => Some(POOLER.to_owned()),
                _ => report.hint.clone(),
            }
        }
        SourceErrorKind::Protocol
        | SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::Stopped
        | SourceErrorKind::ServerStopping
        | SourceErrorKind::System => None,
    }
}

fn access_hint(error: &SourceError) -> String {
    let hint = match error.kind() {
        SourceErrorKind::Tls => {
            "check sslmode, sslrootcert, and name and dates of the server's certificate; the server may not offer TLS \
             at all"
        }
        SourceErrorKind::Settings => "check the files and names of source.url",
        SourceErrorKind::AuthRefused => {
            "check password_file; a password is only sent over TLS or by SCRAM or md5"
        }
        SourceErrorKind::Server(report) => match report.sqlstate.as_str() {
            "3D000" => "correct the database in source.url",
            "42501" => {
                "the role lacks a right: postrider setup --url postgresql://ADMIN@HOST/DATABASE gives it, or \
                 --print-sql prints the GRANTs; replication needs ALTER ROLE … REPLICATION (RDS: GRANT \
                 rds_replication TO …)"
            }
            _ => {
                "check the user and password_file, the role's VALID UNTIL, and pg_hba.conf: its line names the \
                 database, not \"replication\""
            }
        },
        SourceErrorKind::Unreachable
        | SourceErrorKind::Timeout(_)
        | SourceErrorKind::SessionAttrs
        | SourceErrorKind::Protocol
        | SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::Stopped
        | SourceErrorKind::ServerStopping
        | SourceErrorKind::System => "check source.url",
    };
    hint.to_owned()
}

/// The role that was refused, or that lacks something, is the relay's, and that role cannot grant rights to itself.
fn setup_as_admin(names: &Names) -> String {
    format!("postrider setup -p {} --url {}", names.key.pipeline, admin_url("DATABASE"))
}

fn schema_hint(error: &SourceError, names: &Names) -> String {
    let setup = setup_as_admin(names);
    match error.report().map(|report| report.sqlstate) {
        Some(state)
            if matches!(state.class(), "23" | "27" | "09" | "P0" | "44")
                || state.as_str() == "0A000" =>
        {
            format!(
                "see which trigger, rule or constraint was added to the tables of schema postrider, and remove it; \
                 then start again ({setup} makes what is missing, and changes no row)"
            )
        }
        Some(_) | None => {
            format!("{setup}; it creates what is missing, grants the rights, and changes no row")
        }
    }
}

/// The outbox table refuses a statement of Postrider: what that means for the data, and what to change. No event is
/// lost: at most, rows without a status are published again.
fn table_refuses(error: &SourceError, names: &Names) -> (String, String) {
    let table =
        names.table.as_ref().map_or_else(|| "the outbox table".to_owned(), ToString::to_string);
    let claims = error.statement() == Some(Statement::Claim);
    let meaning = if claims {
        "nothing was claimed or marked; all rows are still in the table".to_owned()
    } else {
        format!(
            "nothing is lost: published rows of {table} can't be marked as published, so nothing is confirmed past \
             them; events published since then are published again at the next start"
        )
    };
    let right = if claims { "lock" } else { "mark" };
    let hint = match error.report().map(|report| report.sqlstate) {
        Some(state) if state.as_str() == "42501" => format!(
            "the role needs UPDATE, and DELETE where marks delete, to {right} rows: GRANT SELECT, UPDATE, DELETE ON \
             {table} TO the role of source.url (postrider setup -p {} --print-sql has the lines); then start again",
            names.key.pipeline
        ),
        Some(state) if state.as_str() == "55000" => format!(
            "a publication that sends updates or deletes of {table} needs the table's replica identity: add a \
             primary key, or ALTER TABLE {table} REPLICA IDENTITY FULL; or, where nobody else subscribes to it, \
             ALTER PUBLICATION {} SET (publish = '{}'); SELECT pubname FROM pg_publication_tables lists them; \
             then start again",
            ident(&names.publication),
            names.published()
        ),
        Some(state) if matches!(state.as_str(), "42P01" | "42703" | "42804" | "3F000") => format!(
            "{table} is not as the layout describes it: postrider check -p {} names the columns; then start again",
            names.key.pipeline
        ),
        Some(state)
            if matches!(state.class(), "09" | "27" | "P0" | "23" | "44" | "38" | "39" | "2F") =>
        {
            format!(
                "see which trigger, rule or constraint of {table} refuses or undoes the change, and except the role of \
             source.url from it; then start again"
            )
        }
        Some(_) | None => format!(
            "run the layout's UPDATE or DELETE of one row of {table} as the role of source.url to see what refuses it; \
             then start again"
        ),
    };
    (meaning, hint)
}

/// The WAL to be decoded is from a time when the publication did not exist: a publication that is created now does not
/// help.
fn publication_missing(error: &SourceError, names: &Names) -> (String, String) {
    let at = error
        .report()
        .and_then(|report| report.associated_lsn)
        .map_or_else(String::new, |at| format!(" at {at}"));
    (
        format!(
            "the publication did not exist when the WAL{at} was written: rows of that time are not sent, even if it \
             exists again now; nothing was confirmed past them"
        ),
        from_table(names),
    )
}

/// The commands that create the publication if it is missing, and then publish from the table what the slot cannot
/// send.
fn from_table(names: &Names) -> String {
    let (publication, pipeline) = (ident(&names.publication), &names.key.pipeline);
    let published = names.published();
    if names.captures() {
        return format!(
            "every change that was committed after SELECT watermark FROM postrider.cursor WHERE pipeline = {key} and \
             before a new slot is lost as an event; the tables have their result. A new slot, and the publication if \
             it does not exist, begins with: SELECT pg_drop_replication_slot({}); then DELETE FROM postrider.cursor \
             WHERE pipeline = {key}; then {setup}. Then load the consumers again from the tables: {}",
            literal(&names.slot),
            names.captured_list(),
            key = literal(pipeline),
            setup = setup_as_admin(names)
        );
    }
    if names.in_transactions
        && let Some(table) = &names.table
    {
        return format!(
            "if the publication does not exist: CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = \
             '{published}', publish_via_partition_root = true). The sink publishes in transactions, so nothing can be \
             published from the table: a new slot begins with: SELECT pg_drop_replication_slot({}); then DELETE FROM \
             postrider.cursor WHERE pipeline = {}; then postrider setup -p {pipeline} --adopt-cursor; before the \
             start, discard the position that the sink has stored, and then insert the rows again that consumers do \
             not have (docs/operations/halts.md#begin-a-new-slot)",
            literal(&names.slot),
            literal(pipeline)
        );
    }
    let Some(table) = &names.table else {
        return format!(
            "logical messages of that time are lost, since they leave no row: have the application emit them again. \
             If the publication does not exist: CREATE PUBLICATION {publication}. A new slot begins with: SELECT \
             pg_drop_replication_slot({}); then DELETE FROM postrider.cursor WHERE pipeline = {}; then postrider \
             setup -p {pipeline}",
            literal(&names.slot),
            literal(pipeline)
        );
    };
    if names.auto {
        return format!(
            "if the publication does not exist: CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = \
             '{published}', publish_via_partition_root = true); then {}",
            run_without_slot(names, true)
        );
    }
    format!(
        "if the publication does not exist: CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = \
         '{published}', publish_via_partition_root = true); then postrider repair -p {pipeline} --from-table --dry-run \
         (it \
         counts the rows that are not known to be published); then postrider repair -p {pipeline} --from-table (it \
         publishes them and creates a new slot)"
    )
}
