//! What can go wrong between us and PostgreSQL, as types.
//!
//! Owns [`SourceError`] and [`SqlState`]. It says what was being done and how it failed; what to do about it is decided
//! elsewhere, by [`SourceError::kind`] and [`SourceError::sqlstate`] and never by text.

use crate::lsn::Lsn;
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tokio_postgres::types::WrongType;

/// A five-character SQLSTATE (manual, appendix A).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// `55000`, `object_not_in_prerequisite_state`: a slot that is invalidated, a publication PostgreSQL 18 skipped.
    pub const OBJECT_NOT_IN_PREREQUISITE_STATE: Self = Self(*b"55000");
    /// `55006`, `object_in_use`: the slot is active.
    pub const OBJECT_IN_USE: Self = Self(*b"55006");
    /// `42501`, `insufficient_privilege`.
    pub const INSUFFICIENT_PRIVILEGE: Self = Self(*b"42501");
    /// `53400`, `configuration_limit_exceeded`: too many of something, slots or walsenders.
    pub const CONFIGURATION_LIMIT_EXCEEDED: Self = Self(*b"53400");
    /// `42704`, `undefined_object`: no such slot or publication.
    pub const UNDEFINED_OBJECT: Self = Self(*b"42704");
    /// `42P01`, `undefined_table`: ours too, where another table has the name of the one that was read.
    pub const UNDEFINED_TABLE: Self = Self(*b"42P01");
    /// `09000`, `triggered_action_exception`: ours, where a table's own triggers undo what is written.
    pub const TRIGGERED_ACTION_EXCEPTION: Self = Self(*b"09000");
    /// `42804`, `datatype_mismatch`.
    pub const DATATYPE_MISMATCH: Self = Self(*b"42804");
    /// `55P03`, `lock_not_available`: somebody else holds a lock for longer than we wait.
    pub const LOCK_NOT_AVAILABLE: Self = Self(*b"55P03");
    /// `58P01`, `undefined_file`: the server has no history of that timeline.
    pub const UNDEFINED_FILE: Self = Self(*b"58P01");
    /// `28P01`, `invalid_password`.
    pub const INVALID_PASSWORD: Self = Self(*b"28P01");
    /// `3D000`, `invalid_catalog_name`: no such database.
    pub const INVALID_CATALOG_NAME: Self = Self(*b"3D000");
    /// `57014`, `query_canceled`: a statement that was cancelled, or took longer than `statement_timeout`.
    pub const QUERY_CANCELED: Self = Self(*b"57014");
    /// `57P01`, `admin_shutdown`: the server stops, or somebody ended the session.
    pub const ADMIN_SHUTDOWN: Self = Self(*b"57P01");
    /// `57P03`, `cannot_connect_now`: starting up or shutting down.
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");

    /// From the text of a message field; `None` if it is not five ASCII letters and digits.
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

/// How it failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceErrorKind {
    /// A setting on our side can't be used: a certificate file, a name.
    Settings,
    /// The name has no address, or nothing accepts connections there.
    Unreachable,
    /// A step took longer than it may.
    Timeout(Duration),
    /// TLS could not be agreed on, or the server's certificate was not accepted.
    Tls,
    /// We refused to go on with the login: what the server asked for is not safe, or there is no password.
    AuthRefused,
    /// No host of the list is what `target_session_attrs` asks for.
    SessionAttrs,
    /// The server answered with an error, or with a warning that ends the stream.
    Server(Box<ServerReport>),
    /// The server sent what the protocol does not allow.
    Protocol,
    /// The connection ended without a word from the server.
    Closed,
    /// Nothing came for this long, although an answer was asked for.
    Silent(Duration),
    /// One message is larger than we take. Unit of both: bytes.
    TooLarge {
        /// Bytes of the message.
        size: u64,
        /// The bound, `MESSAGE_BYTES_MAX` unless set otherwise.
        limit: u64,
    },
    /// The server ended the stream in good order: it shuts down. Reconnecting at once would only meet the shutdown.
    ServerStopping,
    /// We ended the connection ourselves.
    Stopped,
    /// The operating system refused what we need (threads, sockets).
    System,
}

macro_rules! statements {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Statements of ours, by what they are for. What an SQLSTATE means depends on it: the same 55000 is a lost
        /// slot of `START_REPLICATION`, and of a mark a table without replica identity.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Statement { $($(#[$doc])* $variant,)* }

        impl Statement {
            /// Every statement.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in the table of errors.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

statements! {
    /// The mark on rows of the outbox table that the stream brought and the broker has.
    Mark = "mark",
    /// Polling: rows of the outbox table are locked and read.
    Claim = "claim",
    /// Polling: rows of the outbox table get their marks, or go to the table of dead letters.
    Settle = "settle",
    /// The cursor row is read, written or taken over.
    Cursor = "cursor",
    /// Rows and marks of the parked table.
    Parked = "parked",
    /// Requests of people are listened for and read.
    Requests = "requests",
    /// The slot, the publication and the end of WAL are looked at while a stream runs.
    Look = "look",
}

/// Something went wrong between us and PostgreSQL.
#[derive(Debug)]
pub struct SourceError {
    kind: SourceErrorKind,
    doing: String,
    statement: Option<Statement>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SourceError {
    /// An error while `doing`: a lowercase fragment that reads on after "could not", naming its object.
    pub fn new(kind: SourceErrorKind, doing: impl Into<String>) -> Self {
        Self { kind, doing: doing.into(), statement: None, source: None }
    }

    /// The same as an error of this statement, unless a caller below has named one.
    #[must_use]
    pub fn of(mut self, statement: Statement) -> Self {
        self.statement.get_or_insert(statement);
        self
    }

    /// The statement it came from; `None` for login, handshake and stream.
    pub const fn statement(&self) -> Option<Statement> {
        self.statement
    }

    /// The same, with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether a message that was read is at fault, not the connection.
    pub const fn is_of_a_message(&self) -> bool {
        matches!(self.kind, SourceErrorKind::Protocol | SourceErrorKind::TooLarge { .. })
    }

    /// From an `ErrorResponse` or a `NoticeResponse`.
    pub fn server(doing: impl Into<String>, report: ServerReport) -> Self {
        Self::new(SourceErrorKind::Server(Box::new(report)), doing)
    }

    /// From what `std::io` says of an open connection: a reset is the network's, a certificate or an alert is TLS'.
    ///
    /// With TLS 1.3 a refused client certificate is heard of only by the first read after the handshake.
    pub fn io(doing: impl Into<String>, error: std::io::Error) -> Self {
        let kind = match error.get_ref() {
            Some(inner) if inner.is::<tokio_rustls::rustls::Error>() => SourceErrorKind::Tls,
            Some(_) | None => SourceErrorKind::Closed,
        };
        Self::new(kind, doing).caused_by(error)
    }

    /// From an error of the control connection's client.
    pub fn control(doing: impl Into<String>, error: tokio_postgres::Error) -> Self {
        if let Some(db) = error.as_db_error() {
            let report = ServerReport {
                severity: clean(db.severity()),
                sqlstate: SqlState::parse(db.code().code()).unwrap_or(SqlState(*b"XX000")),
                message: clean(db.message()),
                detail: db.detail().map(clean),
                hint: db.hint().map(clean),
                associated_lsn: db.where_().and_then(associated_lsn),
            };
            return Self::server(doing, report.without_values());
        }
        // A column or parameter has another type than ours: the client says so before the server could.
        if let Some(wrong) = error.source().and_then(|source| source.downcast_ref::<WrongType>()) {
            let report = ServerReport {
                severity: "ERROR".to_owned(),
                sqlstate: SqlState::DATATYPE_MISMATCH,
                message: clean(&wrong.to_string()),
                detail: None,
                hint: None,
                associated_lsn: None,
            };
            return Self::server(doing, report);
        }
        Self::new(SourceErrorKind::Closed, doing).caused_by(error)
    }

    /// How it failed.
    pub const fn kind(&self) -> &SourceErrorKind {
        &self.kind
    }

    /// What was being done: reads on after "could not".
    pub fn doing(&self) -> &str {
        &self.doing
    }

    /// The SQLSTATE, where the server gave one.
    pub fn sqlstate(&self) -> Option<SqlState> {
        self.report().map(|report| report.sqlstate)
    }

    /// What the server said, where it said something.
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
            SourceErrorKind::Protocol => f.write_str(": the server broke the protocol"),
            SourceErrorKind::Closed => f.write_str(": the connection ended"),
            SourceErrorKind::Silent(limit) => {
                write!(f, ": the server has not been heard of for {limit:?}")
            }
            SourceErrorKind::TooLarge { size, limit } => {
                write!(f, ": a message has {size} bytes, the limit is {limit}")
            }
            SourceErrorKind::ServerStopping => f.write_str(": the server is shutting down"),
            SourceErrorKind::Stopped => f.write_str(": the connection was stopped by us"),
        }
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

// What the server reports: the fields of an `ErrorResponse` or a `NoticeResponse`, without anybody's values.
//
// Whether a report ends anything is not decided here; it goes into a [`SourceError`](super::SourceError).

/// An `ErrorResponse` or `NoticeResponse` of the server.
///
/// The CONTEXT field is not kept: it can hold row values. The LSN in it, where pgoutput names one, is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerReport {
    /// `ERROR`, `FATAL`, `WARNING` …, never localised.
    pub severity: String,
    /// The SQLSTATE, `XX000` where the server sent none that is well formed.
    pub sqlstate: SqlState,
    /// MESSAGE: for people.
    pub message: String,
    /// DETAIL: for people; the reason of a slot's invalidation stands here.
    pub detail: Option<String>,
    /// HINT: for people.
    pub hint: Option<String>,
    /// The "associated LSN" of an output plugin's error.
    pub associated_lsn: Option<Lsn>,
}

/// Longest message, detail or hint kept. Unit: characters.
const TEXT_MAX: usize = 1000;

impl ServerReport {
    /// From the fields of an `ErrorResponse` or a `NoticeResponse` (manual, 55.8 "Error and Notice Message Fields").
    ///
    /// Each field is a byte that names it and a text that ends with a zero; a further zero ends the list. What is not
    /// so is passed over: a damaged report is still a report.
    pub fn from_fields(body: &[u8]) -> Self {
        let mut report = Self {
            severity: String::new(),
            sqlstate: SqlState(*b"XX000"),
            message: String::new(),
            detail: None,
            hint: None,
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
                b'W' => report.associated_lsn = associated_lsn(&text),
                _ => {}
            }
        }
        report.without_values()
    }

    /// Data exceptions and broken constraints (classes 22 and 23) quote the values they are about: other people's data.
    /// 22023 is about settings.
    fn without_values(mut self) -> Self {
        let quotes = matches!(self.sqlstate.class(), "22" | "23");
        if quotes && self.sqlstate.as_str() != "22023" {
            self.message = String::from("the server's words are not shown, they may hold values");
            self.detail = None;
        }
        self
    }

    /// The function of the server's source that reports: the one field beside the SQLSTATE that no locale changes.
    pub fn routine(body: &[u8]) -> Option<&[u8]> {
        body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"R"))
    }

    /// Whether it is a WARNING (a notice that matters).
    pub fn is_warning(&self) -> bool {
        self.severity == "WARNING"
    }
}

/// Without control characters, and not without end.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect()
}

/// The LSN that `output_plugin_error_callback` (`replication/logical/logical.c`) puts last in the CONTEXT.
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
    fn a_report_keeps_what_people_need_and_no_context() {
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
    fn the_routine_is_told_apart_from_all_else() {
        let fields =
            b"SWARNING\0VWARNING\0C55000\0MRoutine\0Fslot.c\0L2700\0RStandbySlotsHaveCaughtup\0\0";
        assert_eq!(ServerReport::routine(fields), Some(&b"StandbySlotsHaveCaughtup"[..]));
        assert_eq!(ServerReport::routine(b"C55000\0MRoutine\0\0"), None);
    }

    #[test]
    fn words_that_quote_values_are_not_shown() {
        for (sqlstate, shown) in [("22P02", false), ("23505", false), ("22023", true)] {
            let fields = format!("C{sqlstate}\0Mbad: hunter2\0DKey (id)=(hunter2) exists.\0\0");
            let report = ServerReport::from_fields(fields.as_bytes());
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
