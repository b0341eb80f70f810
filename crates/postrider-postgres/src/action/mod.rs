//! What to do about an error of the source: one total function, printed whole by a test.
//!
//! Pure. Goes by the kind of the error, its SQLSTATE and the statement that it came from, never by text. What is not
//! known is transient: a wrong "transient" stalls where everybody sees it, a wrong "definite" stops a healthy pipeline.
//! Nothing here counts attempts but [`Repeats`], which only ever ends in an operator's hands, never in giving up an
//! event.

mod explain;
#[cfg(test)]
mod tests;

pub use explain::{explain, hint};

use super::error::{SourceError, SourceErrorKind, SqlState, Statement};
use pg_replication::lsn::Lsn;
use postrider_core::error::HaltReason;
use std::time::Duration;

/// Where an error came up that names no [`Statement`].
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

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Drop both connections and do the whole handshake again, for ever, with back-off.
    Reconnect(Class),
    /// Only this statement failed, and may succeed later: it is made again on the same connection, and nothing else
    /// waits for it. Outside a stream, where there is nothing to go on with, as [`Action::Reconnect`].
    Later(Class),
    /// Somebody else holds the slot: the same, and say so.
    StandBy,
    /// The server refused something: do the handshake again, whose fence knows the reason better; if it finds nothing
    /// wrong, halt with this.
    Recheck(HaltReason),
    /// A human must act. [`explain`] makes the halt.
    Halt(HaltReason),
}

/// Why a reconnect: the label of a metric, and the shortest pause before the next try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The connection broke, or could not be made.
    Connection,
    /// The server stops, or somebody ended the session. Or the slot was just invalidated: the next handshake tells.
    Shutdown,
    /// The server starts, or recovers.
    Starting,
    /// No connection, memory, disk or walsender to be had.
    Resources,
    /// The login was refused although it has worked before: secrets rotate.
    Access,
    /// The server is a standby.
    NotPrimary,
    /// A lock, a deadlock, a statement that took too long.
    Busy,
    /// The server failed at its work.
    Server,
    /// Nothing known.
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

    /// The shortest pause before the next try; back-off goes on from it.
    ///
    /// A server that stops waits for its walsenders: who comes back at once keeps it from stopping. One that has no
    /// connection to give is not helped by asking often.
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

/// The table. `proven`: this process has streamed before, so that what the configuration says has been right once.
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

/// What an SQLSTATE of one of our own statements leads to.
///
/// The session is the walsender's neighbour, not the walsender: no SQLSTATE here says anything of slot, publication or
/// stream. Three things are told apart: the session is over, or this server takes no writes (connect again); the
/// statement may succeed later (`Later`, or connect again where the relay can't go on without it); and the table
/// refuses what we write, for a reason that only a person can take away.
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
        // The claim's transaction is over with its first error: another session claims again.
        Statement::Claim | Statement::Settle => match passing(state).or_else(|| at_work(state)) {
            Some(class) => Action::Reconnect(class),
            // pg_current_wal_insert_lsn() on a server that is in recovery again.
            None if state.as_str() == "55000" && statement == Statement::Claim => {
                Action::Reconnect(Class::NotPrimary)
            }
            // A migration may have taken the table away for a moment: the start check knows better.
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
        // People wait for these, and no event does.
        Statement::Requests | Statement::Look => {
            let class = passing(state).or_else(|| at_work(state)).unwrap_or(Class::Unknown);
            Action::Later(class)
        }
    }
}

/// The tables of schema `postrider` refused a statement.
fn own_table(state: SqlState, proven: bool) -> Action {
    match state.as_str() {
        // In recovery there is no end of WAL to write down.
        "55000" => Action::Reconnect(Class::NotPrimary),
        "42501" if !proven => Action::Halt(HaltReason::AccessDenied),
        // A schema of another version: the start check says which.
        "42P01" | "42703" | "3F000" => Action::Recheck(HaltReason::SchemaUnfit),
        // Values of one event that the database's encoding does not have: [`Repeats`] watches them.
        _ if state.class() == "22" => Action::Reconnect(Class::Server),
        _ => match at_work(state) {
            Some(class) => Action::Reconnect(class),
            None if refusal(state) => Action::Halt(HaltReason::SchemaUnfit),
            None => Action::Reconnect(Class::Unknown),
        },
    }
}

/// The session has ended, or another one is needed.
fn session_over(state: SqlState) -> Option<Class> {
    match state.as_str() {
        "57P01" | "57P02" | "57P05" => Some(Class::Shutdown),
        "57P03" => Some(Class::Starting),
        // The primary became a standby.
        "25006" => Some(Class::NotPrimary),
        // idle_in_transaction_session_timeout, transaction_timeout.
        "25P03" | "25P04" => Some(Class::Busy),
        // Somebody deallocated what was prepared: a pooler is in between, or a DISCARD ALL.
        "26000" => Some(Class::Unknown),
        "3D000" | "57P04" => Some(Class::Access),
        _ if state.class() == "08" => Some(Class::Connection),
        _ if state.class() == "28" => Some(Class::Access),
        _ => None,
    }
}

/// What passes by itself: a lock, a deadlock, a time-out, a full disk.
fn passing(state: SqlState) -> Option<Class> {
    match (state.as_str(), state.class()) {
        ("55P03" | "57014" | "55006", _) | (_, "40") => Some(Class::Busy),
        (_, "53") => Some(Class::Resources),
        _ => None,
    }
}

/// The server failed at its work: limits, the disk, internal errors, corruption; [`Repeats`] watches them.
fn at_work(state: SqlState) -> Option<Class> {
    matches!(state.class(), "54" | "58" | "XX").then_some(Class::Server)
}

/// The table, its types, constraints, triggers or rights are not as the statement needs them: trying again changes
/// nothing before somebody changes the table.
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

/// A refusal of the login or of a right: wrong from the start, or changed since.
fn access(proven: bool) -> Action {
    if proven { Action::Reconnect(Class::Access) } else { Action::Halt(HaltReason::AccessDenied) }
}

fn by_sqlstate(state: SqlState, phase: Phase, proven: bool) -> Action {
    let started = matches!(phase, Phase::Start | Phase::Stream);
    match (state.as_str(), phase) {
        // object_not_in_prerequisite_state: the slot is lost, another's, being synchronised; in the stream the
        // publication was skipped (18, as a warning); elsewhere the server is in recovery.
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
        // Our schema or a column of it is not what we know.
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
        // Data that can't be converted, limits, the disk, internal errors, corruption: [`Repeats`] watches them.
        "22" | "54" | "58" | "XX" => Action::Reconnect(Class::Server),
        _ => Action::Reconnect(Class::Unknown),
    }
}

/// The same failure at the same position, again and again: the server can't get past it.
///
/// Fed with every error of the stream or its start; anything that moved the position forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repeats {
    last: Option<(SqlState, Lsn)>,
    count: u32,
}

/// So many times the same SQLSTATE at the same position is no accident. A full disk or no memory is one for longer, so
/// those classes ([`Class::Resources`]) are not counted.
pub const REPEATS_MAX: u32 = 3;

impl Repeats {
    /// Counts `error`, met with the stream at `at` (the associated LSN where the server names one is better and is
    /// taken). True when it is time to halt with [`HaltReason::Wedged`].
    pub fn wedged(&mut self, error: &SourceError, at: Lsn) -> bool {
        let Some(report) = error.report() else { return false };
        if by_class(report.sqlstate, true) != Action::Reconnect(Class::Server) {
            return false;
        }
        let now = (report.sqlstate, report.associated_lsn.unwrap_or(at));
        self.count = if self.last == Some(now) { self.count.saturating_add(1) } else { 1 };
        self.last = Some(now);
        self.count >= REPEATS_MAX
    }
}
