//! The errors of both connections to PostgreSQL.
//!
//! A [`SourceError`] holds what the client was doing, how it failed and the cause. Callers decide what to do by
//! [`SourceError::kind`] and [`SourceError::sqlstate`], never by the text: the server may localise its messages.

use crate::lsn::Lsn;
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tokio_postgres::types::WrongType;

/// A five-character SQLSTATE (manual, appendix A).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// `55000`, `object_not_in_prerequisite_state`: the slot is invalidated, or (a warning of PostgreSQL 18) the server
    /// skipped loading a publication.
    pub const OBJECT_NOT_IN_PREREQUISITE_STATE: Self = Self(*b"55000");
    /// `55006`, `object_in_use`: the slot is active.
    pub const OBJECT_IN_USE: Self = Self(*b"55006");
    /// `42501`, `insufficient_privilege`.
    pub const INSUFFICIENT_PRIVILEGE: Self = Self(*b"42501");
    /// `53400`, `configuration_limit_exceeded`: no free slot or walsender.
    pub const CONFIGURATION_LIMIT_EXCEEDED: Self = Self(*b"53400");
    /// `42704`, `undefined_object`: the slot or the publication does not exist.
    pub const UNDEFINED_OBJECT: Self = Self(*b"42704");
    /// `42P01`, `undefined_table`.
    pub const UNDEFINED_TABLE: Self = Self(*b"42P01");
    /// `3F000`, `invalid_schema_name`.
    pub const INVALID_SCHEMA_NAME: Self = Self(*b"3F000");
    /// `09000`, `triggered_action_exception`.
    pub const TRIGGERED_ACTION_EXCEPTION: Self = Self(*b"09000");
    /// `23514`, `check_violation`: also that a partitioned table has no partition for a row.
    pub const CHECK_VIOLATION: Self = Self(*b"23514");
    /// `42804`, `datatype_mismatch`.
    pub const DATATYPE_MISMATCH: Self = Self(*b"42804");
    /// `55P03`, `lock_not_available`: `lock_timeout` passed while another session held the lock.
    pub const LOCK_NOT_AVAILABLE: Self = Self(*b"55P03");
    /// `58P01`, `undefined_file`: the server has no history of that timeline.
    pub const UNDEFINED_FILE: Self = Self(*b"58P01");
    /// `28P01`, `invalid_password`.
    pub const INVALID_PASSWORD: Self = Self(*b"28P01");
    /// `3D000`, `invalid_catalog_name`: the database does not exist.
    pub const INVALID_CATALOG_NAME: Self = Self(*b"3D000");
    /// `57014`, `query_canceled`: the statement was cancelled, or took longer than `statement_timeout`.
    pub const QUERY_CANCELED: Self = Self(*b"57014");
    /// `57P01`, `admin_shutdown`: the server shuts down, or an administrator ended the session.
    pub const ADMIN_SHUTDOWN: Self = Self(*b"57P01");
    /// `57P03`, `cannot_connect_now`: the server is starting up or shutting down.
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");

    /// Parses the text of a message field; `None` if it is not five ASCII letters and digits.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 5] = text.as_bytes().try_into().ok()?;
        bytes.iter().all(u8::is_ascii_alphanumeric).then_some(Self(bytes))
    }

    /// The five characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("?????")
    }

    /// The class: the first two characters.
    pub fn class(&self) -> &str {
        self.as_str().get(..2).unwrap_or("??")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceErrorKind {
    /// A setting of the client can't be used: a certificate file, a name.
    Settings,
    /// The host name has no address, or nothing accepts connections at the address.
    Unreachable,
    /// The step took longer than this limit.
    Timeout(Duration),
    /// The TLS handshake failed, or the server's certificate was not accepted.
    Tls,
    /// The client stopped the login: the method that the server asked for is not safe or not supported, or there is no
    /// password.
    AuthRefused,
    /// No host of the list has the properties that `target_session_attrs` asks for.
    SessionAttrs,
    /// The server answered with an error, or with a warning that ends the stream.
    Server(Box<ServerReport>),
    /// The server sent what the protocol does not allow.
    Protocol,
    /// The connection ended without an error message from the server.
    Closed,
    /// The server sent nothing for this long, although the client had requested a reply; or it read nothing for this
    /// long.
    Silent(Duration),
    /// A message is larger than the limit. Unit of both: bytes.
    TooLarge {
        /// Size of the message with its header.
        size: u64,
        /// The limit: [`StartReplication::message_bytes_max`](crate::StartReplication::message_bytes_max).
        limit: u64,
    },
    /// The server ended the stream because it shuts down. A client that reconnects at once meets the shutdown again.
    ServerStopping,
    /// The client ended the connection.
    Stopped,
    /// The operating system refused a resource (a thread, a socket).
    System,
}

/// An error of a connection to PostgreSQL. Its text holds no row values and no passwords.
#[derive(Debug)]
pub struct SourceError {
    kind: SourceErrorKind,
    doing: String,
    label: Option<&'static str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SourceError {
    /// An error while `doing`: a lowercase fragment that reads on after "could not", naming its object.
    pub fn new(kind: SourceErrorKind, doing: impl Into<String>) -> Self {
        Self { kind, doing: doing.into(), label: None, source: None }
    }

    /// Labels the error with the purpose of the statement that failed, unless the error has a label already: a function
    /// that was called inside has named the purpose more precisely. What an SQLSTATE means depends on the statement.
    #[must_use]
    pub fn labelled(mut self, label: &'static str) -> Self {
        self.label.get_or_insert(label);
        self
    }

    /// The label set with [`labelled`](Self::labelled); `None` for an error of this crate's own steps.
    pub const fn label(&self) -> Option<&'static str> {
        self.label
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether the cause is one message that can't be read (malformed, or too large), and not the connection.
    pub const fn is_of_a_message(&self) -> bool {
        matches!(self.kind, SourceErrorKind::Protocol | SourceErrorKind::TooLarge { .. })
    }

    /// From an `ErrorResponse` or a `NoticeResponse` (manual, 55.7 "Message Formats").
    pub fn server(doing: impl Into<String>, report: ServerReport) -> Self {
        Self::new(SourceErrorKind::Server(Box::new(report)), doing)
    }

    /// From an I/O error of an open connection: [`SourceErrorKind::Tls`] for an error of TLS, otherwise
    /// [`SourceErrorKind::Closed`].
    ///
    /// With TLS 1.3, the client learns that the server refused its certificate only at the first read after the
    /// handshake.
    pub fn io(doing: impl Into<String>, error: std::io::Error) -> Self {
        let kind = match error.get_ref() {
            Some(inner) if inner.is::<tokio_rustls::rustls::Error>() => SourceErrorKind::Tls,
            Some(_) | None => SourceErrorKind::Closed,
        };
        Self::new(kind, doing).caused_by(error)
    }

    /// From an error of `tokio-postgres`.
    pub fn control(doing: impl Into<String>, error: tokio_postgres::Error) -> Self {
        if let Some(db) = error.as_db_error() {
            let report = ServerReport {
                severity: clean(db.severity()),
                sqlstate: SqlState::parse(db.code().code()).unwrap_or(SqlState(*b"XX000")),
                message: clean(db.message()),
                detail: db.detail().map(clean),
                hint: db.hint().map(clean),
                constraint: db.constraint().map(clean),
                associated_lsn: db.where_().and_then(associated_lsn),
            };
            return Self::server(doing, report.without_values());
        }
        // `tokio-postgres` compares the types of columns and parameters itself, before the server could report 42804.
        if let Some(wrong) = error.source().and_then(|source| source.downcast_ref::<WrongType>()) {
            let report = ServerReport {
                severity: "ERROR".to_owned(),
                sqlstate: SqlState::DATATYPE_MISMATCH,
                message: clean(&wrong.to_string()),
                detail: None,
                hint: None,
                constraint: None,
                associated_lsn: None,
            };
            return Self::server(doing, report);
        }
        Self::new(SourceErrorKind::Closed, doing).caused_by(error)
    }

    /// How the operation failed.
    pub const fn kind(&self) -> &SourceErrorKind {
        &self.kind
    }

    /// What the client was doing, as a fragment to follow "could not".
    pub fn doing(&self) -> &str {
        &self.doing
    }

    /// The SQLSTATE, if the server reported the error.
    pub fn sqlstate(&self) -> Option<SqlState> {
        self.report().map(|report| report.sqlstate)
    }

    /// The server's report, if the server reported the error.
    pub fn report(&self) -> Option<&ServerReport> {
        if let SourceErrorKind::Server(report) = &self.kind { Some(report) } else { None }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.doing)?;
        match &self.kind {
            SourceErrorKind::Settings
            | SourceErrorKind::Unreachable
            | SourceErrorKind::Tls
            | SourceErrorKind::AuthRefused
            | SourceErrorKind::SessionAttrs
            | SourceErrorKind::System => Ok(()),
            SourceErrorKind::Timeout(limit) => write!(f, ": no answer within {limit:?}"),
            SourceErrorKind::Server(report) => {
                write!(f, ": {} (SQLSTATE {})", report.message, report.sqlstate)?;
                report.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
            }
            SourceErrorKind::Protocol => f.write_str(": the server violated the protocol"),
            SourceErrorKind::Closed => f.write_str(": the connection ended"),
            SourceErrorKind::Silent(limit) => {
                write!(f, ": no message from the server for {limit:?}")
            }
            SourceErrorKind::TooLarge { size, limit } => {
                write!(f, ": a message has {size} bytes, the limit is {limit}")
            }
            SourceErrorKind::ServerStopping => f.write_str(": the server is shutting down"),
            SourceErrorKind::Stopped => f.write_str(": the client closed the connection"),
        }
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

/// The fields of an `ErrorResponse` or `NoticeResponse` of the server, without row values.
///
/// CONTEXT is not kept, because it can hold row values; only the LSN that pgoutput writes there is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerReport {
    /// `ERROR`, `FATAL`, `WARNING` …, not localised.
    pub severity: String,
    /// The SQLSTATE; `XX000` if the server sent no well-formed one.
    pub sqlstate: SqlState,
    /// MESSAGE, possibly localised, at most 1,000 characters.
    pub message: String,
    /// DETAIL, at most 1,000 characters. It has the reason of a slot's invalidation.
    pub detail: Option<String>,
    /// HINT, at most 1,000 characters.
    pub hint: Option<String>,
    /// CONSTRAINT NAME: the constraint that a value broke. It is a name of the schema, and never a value.
    pub constraint: Option<String>,
    /// The "associated LSN" of an error of the output plugin.
    pub associated_lsn: Option<Lsn>,
}

/// Longest message, detail or hint kept. Unit: characters.
const TEXT_MAX: usize = 1000;

impl ServerReport {
    /// Parses the body of an `ErrorResponse` or a `NoticeResponse` (manual, 55.8 "Error and Notice Message Fields").
    ///
    /// A field is one byte of type and a text with a terminating zero; another zero ends the list. Malformed fields are
    /// skipped: a damaged report is still an error report.
    pub fn from_fields(body: &[u8]) -> Self {
        let mut report = Self {
            severity: String::new(),
            sqlstate: SqlState(*b"XX000"),
            message: String::new(),
            detail: None,
            hint: None,
            constraint: None,
            associated_lsn: None,
        };
        for field in body.split(|byte| *byte == 0) {
            let Some((name, text)) = field.split_first() else { break };
            let text = String::from_utf8_lossy(text);
            match name {
                b'V' => report.severity = clean(&text),
                b'S' if report.severity.is_empty() => report.severity = clean(&text),
                b'C' => report.sqlstate = SqlState::parse(&text).unwrap_or(report.sqlstate),
                b'M' => report.message = clean(&text),
                b'D' => report.detail = Some(clean(&text)),
                b'H' => report.hint = Some(clean(&text)),
                b'n' => report.constraint = Some(clean(&text)),
                b'W' => report.associated_lsn = associated_lsn(&text),
                _ => {}
            }
        }
        report.without_values()
    }

    /// Removes the texts that quote row values: those of data exceptions and constraint violations (classes 22 and 23).
    /// 22023 is kept: it quotes settings.
    fn without_values(mut self) -> Self {
        let quotes = matches!(self.sqlstate.class(), "22" | "23");
        if quotes && self.sqlstate.as_str() != "22023" {
            self.message =
                String::from("the server's message is not shown because it may contain values");
            self.detail = None;
        }
        self
    }

    /// The ROUTINE field: the function in the server's source. Besides the SQLSTATE it is the only field that does not
    /// depend on the locale.
    pub fn routine(body: &[u8]) -> Option<&[u8]> {
        body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"R"))
    }

    /// Whether the severity is WARNING.
    pub fn is_warning(&self) -> bool {
        self.severity == "WARNING"
    }
}

/// Replaces control characters with spaces, and cuts the text to [`TEXT_MAX`].
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect()
}

/// The LSN that `output_plugin_error_callback` (`replication/logical/logical.c`) writes at the end of CONTEXT.
fn associated_lsn(context: &str) -> Option<Lsn> {
    let (_, rest) = context.split_once("associated LSN ")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != '/').unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SourceError;

    #[test]
    fn a_report_keeps_message_detail_hint_and_no_context() {
        let fields = b"SFEHLER\0VERROR\0C42704\0Mpublication \"p\" does\nnot exist\0Dd\0Hh\0\
            Wslot \"s\", in the change callback, associated LSN 0/1A2B, secret row\0\0";
        let report = ServerReport::from_fields(fields);
        assert_eq!(report.severity, "ERROR");
        assert_eq!(report.associated_lsn, "0/1A2B".parse().ok());
        assert!(!format!("{report:?}").contains("secret"));
        let error = SourceError::server("stream from slot \"s\"", report);
        assert_eq!(
            error.to_string(),
            "could not stream from slot \"s\": publication \"p\" does not exist (SQLSTATE 42704): d"
        );
        assert_eq!(error.sqlstate(), Some(SqlState::UNDEFINED_OBJECT));
    }

    #[test]
    fn the_routine_is_found_among_the_fields() {
        let fields =
            b"SWARNING\0VWARNING\0C55000\0MRoutine\0Fslot.c\0L2700\0RStandbySlotsHaveCaughtup\0\0";
        assert_eq!(ServerReport::routine(fields), Some(&b"StandbySlotsHaveCaughtup"[..]));
        assert_eq!(ServerReport::routine(b"C55000\0MRoutine\0\0"), None);
    }

    #[test]
    fn texts_that_quote_values_are_not_shown() {
        for (sqlstate, shown) in [("22P02", false), ("23505", false), ("22023", true)] {
            let fields =
                format!("C{sqlstate}\0Mbad: hunter2\0DKey (id)=(hunter2) exists.\0njobs_check\0\0");
            let report = ServerReport::from_fields(fields.as_bytes());
            assert_eq!(report.constraint.as_deref(), Some("jobs_check"));
            assert_eq!(report.sqlstate.as_str(), sqlstate);
            assert_eq!(format!("{report:?}").contains("hunter2"), shown, "{sqlstate}");
        }
    }

    #[test]
    fn a_damaged_report_is_still_a_report() {
        for fields in [&b""[..], b"\0", b"C", b"C\xff\xff\0M\xff", b"C12\0"] {
            let report = ServerReport::from_fields(fields);
            assert_eq!(report.sqlstate.as_str(), "XX000", "{fields:?}");
        }
    }
}
