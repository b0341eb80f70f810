//! From a connection string to a session that is ready for commands: hosts in order, startup packet, login, and the
//! check that the server is the kind that was asked for.
//!
//! Both connections begin here, so both are held to the same rules. Hands over a [`Session`].

use super::conninfo::{Conninfo, Host, TargetSessionAttrs};
use super::error::{SourceError, SourceErrorKind, SqlState};
use super::wire::Wire;
use super::{auth, transport};
use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;
use std::collections::BTreeMap;

/// How long the server waits for a sign of life from us before it ends the stream and frees the slot.
///
/// Ours, whatever the server's default: a zombie must not hold the slot for a minute. Unit: milliseconds.
pub(super) const WAL_SENDER_TIMEOUT_MS: u32 = 15_000;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A walsender bound to the database.
    Replication {
        /// `wal_sender_timeout`, in milliseconds.
        wal_sender_timeout_ms: u32,
    },
    /// SQL.
    Control,
}

/// Settings that decide how values are written in the stream. `ALTER ROLE … SET` leaks into it otherwise (measured on
/// 15 and 18). All are known to 15–18 and may be set by any role; as parameters of the startup packet they come
/// after, and so beat, those in `options`.
const PINNED: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("search_path", ""),
    // The warning about a publication that was skipped must come through (PostgreSQL 18).
    ("client_min_messages", "warning"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
];

/// A session that is logged in and idle.
pub(super) struct Session {
    pub(super) wire: Wire,
    pub(super) host: Host,
    pub(super) backend_pid: u32,
    pub(super) secret_key: u32,
    /// What the server reported of its settings (`ParameterStatus`).
    pub(super) parameters: BTreeMap<String, String>,
}

impl Session {
    /// The server's major version, as it reports it: 15 of `15.18 (Debian 15.18-0+deb12u1)`; 0 where it reports none.
    pub(super) fn major(&self) -> u32 {
        let version = self.parameters.get("server_version").map_or("", String::as_str);
        let digits = version.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

/// Connects to the first host that answers and is what `target_session_attrs` asks for.
pub(super) async fn connect(
    conninfo: &Conninfo,
    purpose: Purpose,
    application_name: &str,
) -> Result<Session, SourceError> {
    let mut order: Vec<&Host> = conninfo.hosts.iter().collect();
    if conninfo.shuffle {
        fastrand::shuffle(&mut order);
    }
    let passes: &[TargetSessionAttrs] = match conninfo.target_session_attrs {
        TargetSessionAttrs::PreferStandby => {
            &[TargetSessionAttrs::Standby, TargetSessionAttrs::Any]
        }
        TargetSessionAttrs::Any => &[TargetSessionAttrs::Any],
        TargetSessionAttrs::ReadWrite => &[TargetSessionAttrs::ReadWrite],
        TargetSessionAttrs::ReadOnly => &[TargetSessionAttrs::ReadOnly],
        TargetSessionAttrs::Primary => &[TargetSessionAttrs::Primary],
        TargetSessionAttrs::Standby => &[TargetSessionAttrs::Standby],
    };
    let mut failure = None;
    for wanted in passes {
        for host in &order {
            let limit = conninfo.connect_timeout;
            let attempt = attempt(conninfo, host, purpose, application_name, *wanted);
            let error = match tokio::time::timeout(limit, Box::pin(attempt)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => error,
                Err(_elapsed) => {
                    let doing = format!("connect to {host}");
                    SourceError::new(SourceErrorKind::Timeout(limit), doing)
                }
            };
            if !another_host_may_do(&error) {
                return Err(error);
            }
            tracing::debug!(%host, %error, "host passed over");
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or_else(|| {
        SourceError::new(SourceErrorKind::Settings, "connect: no host is given")
    }))
}

/// As libpq: a refused login ends the search, since the next host would refuse it too.
fn another_host_may_do(error: &SourceError) -> bool {
    match error.kind() {
        SourceErrorKind::Unreachable
        | SourceErrorKind::Timeout(_)
        | SourceErrorKind::Tls
        | SourceErrorKind::SessionAttrs
        | SourceErrorKind::Protocol
        | SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::ServerStopping
        | SourceErrorKind::Stopped
        | SourceErrorKind::System => true,
        SourceErrorKind::Settings | SourceErrorKind::AuthRefused => false,
        // Starting up, shutting down, or out of connections.
        SourceErrorKind::Server(report) => {
            report.sqlstate == SqlState::CANNOT_CONNECT_NOW || report.sqlstate.class() == "53"
        }
    }
}

async fn attempt(
    conninfo: &Conninfo,
    host: &Host,
    purpose: Purpose,
    application_name: &str,
    wanted: TargetSessionAttrs,
) -> Result<Session, SourceError> {
    let mut wire = Wire::new(transport::open(conninfo, host).await?);
    let doing = format!("log in to {host}");
    let packet = startup(conninfo, purpose, application_name).map_err(|error| {
        SourceError::new(SourceErrorKind::Settings, doing.as_str()).caused_by(error)
    })?;
    wire.send(&doing, &packet).await?;
    auth::log_in(&mut wire, conninfo, host).await?;
    let session = greeting(wire, host, &doing).await?;
    if !fits(&session.parameters, wanted) {
        let doing = format!("use {host}: it is not what target_session_attrs asks for");
        return Err(SourceError::new(SourceErrorKind::SessionAttrs, doing));
    }
    Ok(session)
}

fn startup(
    conninfo: &Conninfo,
    purpose: Purpose,
    application_name: &str,
) -> std::io::Result<BytesMut> {
    let timeout;
    let name = conninfo.application_name.as_deref().unwrap_or(application_name);
    let mut parameters = vec![
        ("user", conninfo.user.as_str()),
        ("database", conninfo.dbname.as_str()),
        ("application_name", name),
    ];
    parameters.extend(conninfo.options.as_deref().map(|options| ("options", options)));
    parameters.extend_from_slice(PINNED);
    if let Purpose::Replication { wal_sender_timeout_ms } = purpose {
        timeout = format!("{wal_sender_timeout_ms}ms");
        parameters.push(("replication", "database"));
        parameters.push(("wal_sender_timeout", &timeout));
    }
    let mut packet = BytesMut::new();
    frontend::startup_message(parameters, &mut packet)?;
    Ok(packet)
}

/// Reads what comes between the login and the first `ReadyForQuery`.
async fn greeting(mut wire: Wire, host: &Host, doing: &str) -> Result<Session, SourceError> {
    let broken = || SourceError::new(SourceErrorKind::Protocol, doing);
    let (mut backend_pid, mut secret_key) = (0, 0);
    let mut parameters = BTreeMap::new();
    loop {
        let mut frame = wire.receive(doing).await?;
        match frame.tag {
            b'S' => {
                let mut texts = frame.body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
                let (Some(name), Some(value)) = (texts.next(), texts.next()) else {
                    return Err(broken());
                };
                parameters.insert(name.into_owned(), value.into_owned());
            }
            b'K' => {
                backend_pid = frame.body.try_get_u32().map_err(|e| broken().caused_by(e))?;
                secret_key = frame.body.try_get_u32().map_err(|e| broken().caused_by(e))?;
            }
            b'Z' => break,
            _ => return Err(broken()),
        }
    }
    Ok(Session { wire, host: host.clone(), backend_pid, secret_key, parameters })
}

/// By what servers report since PostgreSQL 14, so without a query and on either kind of connection.
fn fits(parameters: &BTreeMap<String, String>, wanted: TargetSessionAttrs) -> bool {
    let is = |name: &str, value: &str| parameters.get(name).is_some_and(|known| known == value);
    let primary = is("in_hot_standby", "off");
    let standby = is("in_hot_standby", "on");
    let read_only = standby || is("default_transaction_read_only", "on");
    match wanted {
        TargetSessionAttrs::Any | TargetSessionAttrs::PreferStandby => true,
        TargetSessionAttrs::ReadWrite => primary && !read_only,
        TargetSessionAttrs::ReadOnly => read_only,
        TargetSessionAttrs::Primary => primary,
        TargetSessionAttrs::Standby => standby,
    }
}
