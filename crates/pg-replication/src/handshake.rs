//! From a connection string to a logged-in [`Session`]: the order of hosts, the startup packet, the login, and the
//! check of `target_session_attrs`. The replication connection and the SQL connection both start here.

use crate::conninfo::{self, ChannelBinding, Conninfo, Host, TargetSessionAttrs};
use crate::error::{ServerReport, SourceError, SourceErrorKind, SqlState};
use crate::transport::{self, Transport};
use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Default `wal_sender_timeout`: how long the server waits for a message of the client before it ends the stream and
/// releases the slot.
///
/// The client sets it, whatever the server's default, so that a dead client does not keep the slot for a minute. Unit:
/// milliseconds.
pub(super) const WAL_SENDER_TIMEOUT_MS: u32 = 15_000;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Logical replication: a walsender bound to the database.
    Replication {
        /// `wal_sender_timeout`, in milliseconds.
        wal_sender_timeout_ms: u32,
    },
    /// SQL.
    Control,
}

/// Settings that are fixed for the session. Without them `ALTER ROLE … SET` changes how the stream's values are written
/// (measured on 15 and 18). All exist in 15 to 18 and may be set by any role. As parameters of the startup packet they
/// are applied after those in `options`, and override them.
const PINNED: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("search_path", ""),
    // The server must send its warning about a skipped publication (PostgreSQL 18).
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
    /// The settings that the server reported (`ParameterStatus`).
    pub(super) parameters: BTreeMap<String, String>,
}

impl Session {
    /// The server's major version: 15 for `server_version` `15.18 (Debian 15.18-0+deb12u1)`; 0 if the server reports
    /// none.
    pub(super) fn major(&self) -> u32 {
        let version = self.parameters.get("server_version").map_or("", String::as_str);
        let digits = version.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

/// Connects to the first host that answers and has the properties that `target_session_attrs` asks for.
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
            if !try_next_host(&error) {
                return Err(error);
            }
            tracing::debug!(%host, %error, "host skipped");
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or_else(|| {
        SourceError::new(SourceErrorKind::Settings, "connect: no host is given")
    }))
}

/// Whether to try the next host. As in libpq, a refused login ends the search, because the next host would refuse it
/// too.
fn try_next_host(error: &SourceError) -> bool {
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
        // The server is starting up, shutting down, or has no free connection.
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
    log_in(&mut wire, conninfo, host).await?;
    let session = greeting(wire, host, &doing).await?;
    if !has_attrs(&session.parameters, wanted) {
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

/// Reads the messages between the login and the first `ReadyForQuery`.
async fn greeting(mut wire: Wire, host: &Host, doing: &str) -> Result<Session, SourceError> {
    let protocol_error = || SourceError::new(SourceErrorKind::Protocol, doing);
    let (mut backend_pid, mut secret_key) = (0, 0);
    let mut parameters = BTreeMap::new();
    loop {
        let mut message = wire.receive(doing).await?;
        match message.tag {
            b'S' => {
                let mut texts = message.body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
                let (Some(name), Some(value)) = (texts.next(), texts.next()) else {
                    return Err(protocol_error());
                };
                parameters.insert(name.into_owned(), value.into_owned());
            }
            b'K' => {
                backend_pid =
                    message.body.try_get_u32().map_err(|e| protocol_error().caused_by(e))?;
                secret_key =
                    message.body.try_get_u32().map_err(|e| protocol_error().caused_by(e))?;
            }
            b'Z' => break,
            _ => return Err(protocol_error()),
        }
    }
    Ok(Session { wire, host: host.clone(), backend_pid, secret_key, parameters })
}

/// Whether the server has the requested properties. Servers report them as parameters since PostgreSQL 14, so no query
/// is needed, and the check works for both kinds of connection.
fn has_attrs(parameters: &BTreeMap<String, String>, wanted: TargetSessionAttrs) -> bool {
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

/// Codes of Authentication messages (manual, 54.7).
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const CLEARTEXT: u32 = 3;
    pub(super) const MD5: u32 = 5;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_CONTINUE: u32 = 11;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Logs in: answers the server's requests for authentication, if the answer is safe on the transport.
///
/// SCRAM is that of `postgres-protocol`, which checks the server's signature and limits the iteration count to 100,000.
/// Kerberos, SSPI, LDAP by GSS and OAuth are not supported.
pub(super) async fn log_in(
    wire: &mut Wire,
    conninfo: &Conninfo,
    host: &Host,
) -> Result<(), SourceError> {
    let login = Login { conninfo, host, doing: format!("log in to {host}") };
    let (method, mut body) = login.request(wire).await?;
    if method != code::SASL && conninfo.channel_binding == ChannelBinding::Require {
        return Err(login.refused("the server does not use channel binding, which is required"));
    }
    match method {
        code::OK => return Ok(()),
        code::CLEARTEXT => {
            if !wire.transport.is_tls() && !wire.transport.is_local() {
                let why = "the server asks for the password in the clear; use TLS";
                return Err(login.refused(why));
            }
            let password = login.password()?;
            login.answer(wire, |out| frontend::password_message(password.as_bytes(), out)).await?;
        }
        code::MD5 => {
            let password = login.password()?;
            let salt =
                body.try_get_u32().map_err(|error| login.protocol_error().caused_by(error))?;
            let user = conninfo.user.as_bytes();
            let hash = md5_hash(user, password.as_bytes(), salt.to_be_bytes());
            login.answer(wire, |out| frontend::password_message(hash.as_bytes(), out)).await?;
        }
        code::SASL => login.scram(wire, &body).await?,
        _ => {
            return Err(login.refused("the server asks for a method that is not supported"));
        }
    }
    match login.request(wire).await? {
        (code::OK, _) => Ok(()),
        _ => Err(login.protocol_error()),
    }
}

struct Login<'a> {
    conninfo: &'a Conninfo,
    host: &'a Host,
    doing: String,
}

impl Login<'_> {
    fn refused(&self, why: &'static str) -> SourceError {
        SourceError::new(SourceErrorKind::AuthRefused, self.doing.as_str()).caused_by(why)
    }

    fn protocol_error(&self) -> SourceError {
        SourceError::new(SourceErrorKind::Protocol, self.doing.as_str())
    }

    fn password(&self) -> Result<String, SourceError> {
        if let Some(file) = &self.conninfo.password_file {
            // The file is read at each login, because it may have been rotated since the process started.
            return file.read().map_err(|error| {
                SourceError::new(SourceErrorKind::AuthRefused, self.doing.as_str()).caused_by(error)
            });
        }
        let given = self.conninfo.password.as_ref().map(|secret| secret.reveal().to_owned());
        given
            .or_else(|| conninfo::password(self.conninfo, self.host))
            .ok_or_else(|| self.refused("the server asks for a password, and there is none"))
    }

    /// The next Authentication message: its code and its data.
    async fn request(&self, wire: &mut Wire) -> Result<(u32, bytes::Bytes), SourceError> {
        let WireMessage { tag, mut body } = wire.receive(&self.doing).await?;
        match (tag, body.try_get_u32()) {
            (b'R', Ok(code)) => Ok((code, body)),
            _ => Err(self.protocol_error()),
        }
    }

    async fn answer(
        &self,
        wire: &mut Wire,
        write: impl FnOnce(&mut BytesMut) -> std::io::Result<()>,
    ) -> Result<(), SourceError> {
        let mut out = BytesMut::new();
        write(&mut out).map_err(|error| {
            SourceError::new(SourceErrorKind::Settings, self.doing.as_str()).caused_by(error)
        })?;
        wire.send(&self.doing, &out).await
    }

    /// SCRAM-SHA-256 (RFC 5802, RFC 7677), with channel binding if both sides support it.
    async fn scram(&self, wire: &mut Wire, offered: &[u8]) -> Result<(), SourceError> {
        let offers = |name: &str| offered.split(|byte| *byte == 0).any(|m| m == name.as_bytes());
        let allowed = self.conninfo.channel_binding != ChannelBinding::Disable;
        let end_point = wire.transport.tls_server_end_point().filter(|_| allowed);
        let (mechanism, binding) = match end_point {
            Some(hash) if offers(sasl::SCRAM_SHA_256_PLUS) => {
                (sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash))
            }
            // Flag "y": the client supports channel binding. A server that did offer it then detects that a third party
            // removed the offer.
            Some(_) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
            None => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
        };
        if mechanism == sasl::SCRAM_SHA_256
            && self.conninfo.channel_binding == ChannelBinding::Require
        {
            return Err(self.refused("channel binding is required, and is not possible here"));
        }
        if !offers(mechanism) {
            return Err(self.refused("the server asks for a SASL method that is not supported"));
        }
        let password = self.password()?;
        let mut scram = ScramSha256::new(password.as_bytes(), binding);
        self.answer(wire, |out| frontend::sasl_initial_response(mechanism, scram.message(), out))
            .await?;
        let first = self.expect(wire, code::SASL_CONTINUE).await?;
        let refused = |error| {
            SourceError::new(SourceErrorKind::AuthRefused, self.doing.as_str()).caused_by(error)
        };
        scram.update(&first).map_err(refused)?;
        self.answer(wire, |out| frontend::sasl_response(scram.message(), out)).await?;
        // With this message the server proves that it knows the password. Without it there is no login.
        let last = self.expect(wire, code::SASL_FINAL).await?;
        scram.finish(&last).map_err(refused)
    }

    async fn expect(&self, wire: &mut Wire, wanted: u32) -> Result<bytes::Bytes, SourceError> {
        match self.request(wire).await? {
            (code, body) if code == wanted => Ok(body),
            _ => Err(self.refused("the server left out a step of SCRAM")),
        }
    }
}

/// Maximum size of a message before the stream starts. A row of `IDENTIFY_SYSTEM` has about a hundred bytes. Unit:
/// bytes.
const HANDSHAKE_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Size of a message's header: the tag, and the length, which includes itself but not the tag (manual, 55.7). Unit:
/// bytes.
pub(super) const HEADER_BYTES: usize = 5;

/// Reads and writes one message at a time: fast enough for login and simple queries, too slow for the stream. Callers
/// set time limits.
pub(super) struct Wire {
    pub(super) transport: Transport,
    /// Bytes that were read and not yet split into messages.
    pub(super) inbox: BytesMut,
}

/// One message of the protocol: its tag and its body.
pub(super) struct WireMessage {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

impl Wire {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, inbox: BytesMut::with_capacity(8 << 10) }
    }

    /// Sends `bytes` and flushes.
    pub(super) async fn send(&mut self, doing: &str, bytes: &[u8]) -> Result<(), SourceError> {
        let sent = async {
            self.transport.write_all(bytes).await?;
            self.transport.flush().await
        };
        sent.await.map_err(|error| SourceError::io(doing, error))
    }

    /// The next message. An `ErrorResponse` is returned as an error; notices are logged and skipped.
    pub(super) async fn receive(&mut self, doing: &str) -> Result<WireMessage, SourceError> {
        loop {
            let message = self.any(doing).await?;
            match message.tag {
                b'E' => {
                    return Err(SourceError::server(
                        doing,
                        ServerReport::from_fields(&message.body),
                    ));
                }
                b'N' => {
                    let notice = ServerReport::from_fields(&message.body);
                    tracing::debug!(sqlstate = %notice.sqlstate, "notice from the server");
                }
                _ => return Ok(message),
            }
        }
    }

    async fn any(&mut self, doing: &str) -> Result<WireMessage, SourceError> {
        loop {
            if let Some(whole) = message_bytes(&self.inbox)
                .map_err(|InvalidLength| SourceError::new(SourceErrorKind::Protocol, doing))?
            {
                if whole > HANDSHAKE_MESSAGE_BYTES_MAX {
                    return Err(SourceError::new(SourceErrorKind::Protocol, doing));
                }
                if self.inbox.len() >= whole {
                    let mut body = self.inbox.split_to(whole).freeze();
                    let tag = body.get_u8();
                    body.advance(HEADER_BYTES - 1);
                    return Ok(WireMessage { tag, body });
                }
                self.inbox.reserve(whole - self.inbox.len());
            }
            let read = self.transport.read_buf(&mut self.inbox).await;
            if read.map_err(|error| SourceError::io(doing, error))? == 0 {
                return Err(SourceError::new(SourceErrorKind::Closed, doing));
            }
        }
    }
}

/// The length of a message is below its minimum.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidLength;

/// Size of the message at the start of `buf`, with its header; `None` while the header is incomplete. Unit: bytes.
pub(super) fn message_bytes(buf: &[u8]) -> Result<Option<usize>, InvalidLength> {
    let Some(&[_, a, b, c, d]) = buf.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    // The length includes its own four bytes; the server writes a signed number.
    match i32::from_be_bytes([a, b, c, d]) {
        length @ 4.. => Ok(usize::try_from(length).ok().map(|length| length + 1)),
        _ => Err(InvalidLength),
    }
}
