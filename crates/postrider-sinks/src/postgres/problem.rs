//! What an error of the server means for the sink: by SQLSTATE and step, never by text.

use super::spec::PostgresSpec;
use pg_replication::{SourceError, SourceErrorKind};
use postrider_core::error::Chain;

/// What the sink was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Connecting, and setting up the session.
    Connect,
    /// Making this process the writer.
    TakeOver,
    /// Reading where a log ends, creating it, and creating children ahead.
    Log,
    /// Appending a transaction.
    Append,
}

/// What to do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// What is committed is not known, or another process is the writer: the pipeline recovers.
    Recover,
    /// Nothing was done, and the same step is repeated after a pause.
    Wait,
    /// The log accepts no events of this pipeline; other logs do.
    Destination,
    /// A retry does not help.
    Halt,
}

/// An error with its meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LogProblem {
    pub(super) verdict: Verdict,
    /// The error, in one line.
    pub(super) reason: String,
    /// How to fix it.
    pub(super) hint: Option<String>,
}

impl LogProblem {
    /// A problem that the sink has found itself.
    pub(super) fn new(
        verdict: Verdict,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { verdict, reason: reason.into(), hint: Some(hint.into()) }
    }

    /// What the error means in this step.
    pub(super) fn of(step: Step, error: &SourceError, spec: &PostgresSpec) -> Self {
        let (verdict, hint) = match error.report() {
            Some(report) => of_server(step, report.sqlstate.as_str(), spec),
            None => of_connection(step, error.kind()),
        };
        // The functions of the toolkit raise errors with hints of their own.
        let own = error.report().filter(|report| report.sqlstate.class() == "PR");
        let own = own.and_then(|report| report.hint.clone());
        Self { verdict, reason: Chain(error).to_string(), hint: own.or(hint) }
    }

    /// The hint of a halt, which always has one.
    pub(super) fn hint_or_log(&self) -> String {
        self.hint.clone().unwrap_or_else(|| "see the server's log, then start again".to_owned())
    }
}

/// The connection failed, or the login was given up by the client.
fn of_connection(step: Step, kind: &SourceErrorKind) -> (Verdict, Option<String>) {
    let verdict = if step == Step::Append { Verdict::Recover } else { Verdict::Wait };
    let hint = match kind {
        SourceErrorKind::Settings | SourceErrorKind::Tls => {
            "correct the certificate files and sslmode in sink.postgres.url"
        }
        SourceErrorKind::AuthRefused => {
            "give sink.postgres.url a login: sink.postgres.password_file, or a password that the server asks for safely"
        }
        SourceErrorKind::SessionAttrs => {
            "no host of sink.postgres.url accepts writes: the sink continues when one of them does"
        }
        SourceErrorKind::Unreachable
        | SourceErrorKind::Timeout(_)
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::Closed
        | SourceErrorKind::ServerStopping => {
            "start the server of the logs, or correct sink.postgres.url; the sink connects again automatically"
        }
        SourceErrorKind::Server(_)
        | SourceErrorKind::Protocol
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::Stopped
        | SourceErrorKind::System => return (verdict, None),
    };
    (verdict, Some(hint.to_owned()))
}

/// The server has answered with an error.
fn of_server(step: Step, sqlstate: &str, spec: &PostgresSpec) -> (Verdict, Option<String>) {
    let (user, database) = (spec.conninfo.user(), spec.conninfo.dbname());
    let again = if step == Step::Append { Verdict::Recover } else { Verdict::Wait };
    let (class, _) = sqlstate.split_at_checked(2).unwrap_or((sqlstate, ""));
    match (sqlstate, class) {
        ("PR102", _) => (Verdict::Destination, None),
        ("PR103" | "PR111", _) => (Verdict::Halt, None),
        // Another process is the writer, or the session was cancelled or ended, or has met another transaction.
        ("PR101", _) | (_, "57" | "08" | "40") => (again, None),
        ("25006", _) => (
            Verdict::Wait,
            Some(format!(
                "the server or database {database:?} accepts no writes. If it is a standby, promote it, or let \
                 sink.postgres.url name the primary too, with target_session_attrs=read-write; the sink continues \
                 automatically"
            )),
        ),
        ("53100", _) => (
            Verdict::Wait,
            Some("free space on the disks of the server; the sink continues automatically".to_owned()),
        ),
        ("55P03", _) => (
            Verdict::Wait,
            Some(
                "find the session that has locked the tables of the log: SELECT pid, state, query FROM \
                 pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE granted AND relation IN (SELECT oid \
                 FROM pg_class WHERE relnamespace IN ('postrider'::regnamespace, 'postrider_log'::regnamespace)))"
                    .to_owned(),
            ),
        ),
        (_, "53" | "55") | ("58030", _) => (Verdict::Wait, None),
        (_, "28") => (
            Verdict::Wait,
            Some(format!(
                "correct the login of role {user:?} in sink.postgres.url and in pg_hba.conf; the sink tries again \
                 automatically"
            )),
        ),
        ("3D000", _) => (
            Verdict::Wait,
            Some(format!("create database {database:?}, or correct sink.postgres.url")),
        ),
        ("42501", _) => (
            Verdict::Halt,
            Some(format!(
                "give the role its rights in database {database:?}: postrider sql --install --url URL --relay {user}, \
                 with the login of an administrator; a log that another role has created: ALTER TABLE \
                 postrider_log.NAME OWNER TO {user}, for the table and its children; then start again"
            )),
        ),
        // A child was detached or dropped: the recovery creates it again.
        ("23514", _) if step == Step::Append => (Verdict::Recover, None),
        ("23505", _) if step == Step::Append => (
            Verdict::Halt,
            Some(
                "the log has events behind its end: its table, or postrider.event_log_head, was changed by another \
                 program. Restore both, then start again"
                    .to_owned(),
            ),
        ),
        ("3F000" | "42P01" | "42883" | "42703" | "42704", _) => (
            Verdict::Halt,
            Some(format!(
                "install the SQL toolkit of this version in database {database:?}: postrider sql --install --url URL \
                 --relay {user}, with the login of an administrator; then start again"
            )),
        ),
        _ => (Verdict::Halt, None),
    }
}
