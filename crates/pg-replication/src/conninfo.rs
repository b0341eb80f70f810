//! libpq's connection strings and environment variables (manual, 34.1 and 34.15), parsed and checked.
//!
//! Neither `Debug` nor errors show passwords: an error names the parameter, not its value.
//!
//! One difference to libpq is intended: without `sslmode`, TLS is used if the server offers it (libpq's `prefer`), but
//! a failed handshake is an error, and there is no second attempt in clear text.

#[cfg(test)]
mod tests;

use Support::{Applied, Ignored, Refused};
use secret_file::SecretFile;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default of `connect_timeout`: the longest wait for one host, from name lookup to the end of the login. libpq has no
/// limit by default; a service needs one.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of hosts in a connection string.
pub const HOSTS_MAX: usize = 32;

/// A parsed and checked connection string. `Debug` shows no password.
#[derive(Clone)]
pub struct Conninfo {
    pub(super) hosts: Vec<Host>,
    pub(super) shuffle: bool,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) password: Option<Secret>,
    /// Read at each login; takes precedence over `password`.
    pub(super) password_file: Option<SecretFile>,
    pub(super) passfile: Option<PathBuf>,
    pub(super) application_name: Option<String>,
    pub(super) options: Option<String>,
    pub(super) connect_timeout: Duration,
    pub(super) target_session_attrs: TargetSessionAttrs,
    pub(super) ssl: Ssl,
    pub(super) channel_binding: ChannelBinding,
    pub(super) keepalive: Option<Keepalive>,
    pub(super) tcp_user_timeout: Option<Duration>,
}

/// A host and its port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The host's address.
    pub address: HostAddress,
    /// The port.
    pub port: u16,
}

/// The address of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostAddress {
    /// The directory of a Unix socket, or an abstract name with a leading `@`.
    Socket(String),
    /// A TCP address.
    Net {
        /// `host`: the name or address, against which certificates are checked.
        name: String,
        /// `hostaddr`, or an address written as `host`: used instead of a name lookup.
        address: Option<IpAddr>,
    },
}

impl Host {
    fn passfile_name(&self) -> String {
        match &self.address {
            HostAddress::Socket(dir) if dir == DEFAULT_SOCKET_DIR => "localhost".to_owned(),
            HostAddress::Socket(dir) => dir.clone(),
            HostAddress::Net { name, .. } => name.clone(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            HostAddress::Socket(dir) => write!(f, "{dir}/.s.PGSQL.{}", self.port),
            HostAddress::Net { name, address: Some(address) } if name.parse() != Ok(*address) => {
                write!(f, "{name} ({address}):{}", self.port)
            }
            HostAddress::Net { name, .. } if name.contains(':') => {
                write!(f, "[{name}]:{}", self.port)
            }
            HostAddress::Net { name, .. } => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Why a connection string can't be used. The message never has a value of the string.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConninfoError {
    /// The string is not well formed.
    #[error("the connection string is not well formed: {what}")]
    Syntax {
        /// What is wrong.
        what: &'static str,
    },
    /// The parameter does not exist.
    #[error("unknown connection parameter \"{key}\"{}", did_you_mean(*.nearest))]
    Unknown {
        /// The name, as written.
        key: String,
        /// A similar name.
        nearest: Option<&'static str>,
    },
    /// A parameter of libpq that is not supported here.
    #[error("connection parameter \"{key}\" can't be used: {why}")]
    Unsupported {
        /// Its name.
        key: &'static str,
        /// Why, or what to write instead.
        why: &'static str,
    },
    /// The value is not allowed.
    #[error("connection parameter \"{key}\": expected {expected}")]
    Value {
        /// Its name.
        key: &'static str,
        /// The allowed values.
        expected: &'static str,
    },
    /// A required parameter is missing.
    #[error("connection parameter \"{key}\" is needed")]
    Missing {
        /// Its name.
        key: &'static str,
    },
}

/// The names of the `PG*` environment variables that are set and that [`Conninfo::parse`] uses.
pub fn variables(env: &dyn Fn(&str) -> Option<String>) -> Vec<&'static str> {
    let set = |name: &&str| env(name).is_some_and(|value| !value.is_empty());
    let applied = KEYS.iter().filter(|key| key.support == Support::Applied);
    applied.filter_map(|key| key.env).filter(set).collect()
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", did you mean \"{name}\"?"))
}

impl Conninfo {
    /// Parses a URI or `key=value` pairs. `env` looks up environment variables: those of libpq, `HOME`, `USER` and
    /// `LOGNAME`.
    ///
    /// # Errors
    /// The string is not well formed, or has a parameter or value that is unknown, not supported or missing.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConninfoError> {
        let mut given = BTreeMap::new();
        for (name, value) in pairs(text)? {
            let Some(key) = find(&name) else {
                let nearest = nearest(&name);
                return Err(ConninfoError::Unknown { key: name, nearest });
            };
            given.insert(key.name, value);
        }
        for key in KEYS {
            let from_env = || key.env.and_then(env).filter(|value| !value.is_empty());
            if !given.contains_key(key.name)
                && let Some(value) = from_env()
            {
                given.insert(key.name, value);
            }
            // As in libpq, an empty value means that the parameter is not given.
            if given.get(key.name).is_some_and(String::is_empty) {
                given.remove(key.name);
            }
            if let (Support::Refused(why), true) = (key.support, given.contains_key(key.name)) {
                return Err(ConninfoError::Unsupported { key: key.name, why });
            }
        }
        Settings::new(&given, env).conninfo()
    }

    /// Sets a file from which the password is read at each login. It takes precedence over `password`.
    pub fn set_password_file(&mut self, file: SecretFile) {
        self.password_file = Some(file);
    }

    /// Whether there is a password, other than in libpq's password file (`~/.pgpass`).
    pub const fn has_password(&self) -> bool {
        self.password.is_some() || self.password_file.is_some()
    }

    /// The database's name.
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// The role that logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The hosts as text: `db1:5432, db2:5432`.
    pub fn hosts(&self) -> String {
        self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Whether both name the same database of the same servers, whoever logs in.
    pub fn is_same_database(&self, other: &Self) -> bool {
        self.host_list() == other.host_list() && self.dbname() == other.dbname()
    }

    /// The hosts, in the order of the connection string.
    pub fn host_list(&self) -> &[Host] {
        &self.hosts
    }

    /// A connection string for each host alone, in the order of the hosts; each accepts a server of any kind.
    pub fn each_host(&self) -> Vec<Self> {
        let alone = |host: &Host| Self {
            hosts: vec![host.clone()],
            target_session_attrs: TargetSessionAttrs::Any,
            ..self.clone()
        };
        self.hosts.iter().map(alone).collect()
    }

    /// `sslrootcert`, if given.
    pub const fn ssl_root(&self) -> Option<&Root> {
        self.ssl.root.as_ref()
    }

    /// `sslmode`.
    pub const fn ssl_mode(&self) -> SslMode {
        self.ssl.mode
    }
}

impl fmt::Debug for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conninfo")
            .field("hosts", &self.hosts())
            .field("user", &self.user)
            .field("dbname", &self.dbname)
            .field("sslmode", &self.ssl.mode)
            .field("target_session_attrs", &self.target_session_attrs)
            .finish_non_exhaustive()
    }
}

/// A password. It has no `Debug`, so that a struct with a password can't print it by accident.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

/// `sslmode` (manual, 34.19).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// TLS if the server offers it; the certificate is not verified. `allow` is treated like `prefer`.
    Prefer,
    /// TLS; the certificate is not verified. With a root certificate as `verify-ca`, as in libpq.
    Require,
    /// TLS, and the certificate is signed by the root certificate.
    VerifyCa,
    /// As `verify-ca`, and the certificate is issued for the host name.
    VerifyFull,
}

/// `channel_binding` (manual, 34.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If the server offers it.
    Prefer,
    /// A login without it is refused.
    Require,
}

/// `target_session_attrs` (manual, 34.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetSessionAttrs {
    /// Any server.
    Any,
    /// Sessions can write.
    ReadWrite,
    /// Sessions can't write.
    ReadOnly,
    /// Not in recovery.
    Primary,
    /// In recovery.
    Standby,
    /// In recovery if one of the hosts is, otherwise any server.
    PreferStandby,
}

/// The settings of TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ssl {
    pub(crate) mode: SslMode,
    pub(crate) direct: bool,
    pub(crate) root: Option<Root>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) sni: bool,
    pub(crate) versions: TlsVersions,
    /// `~/.postgresql`, the directory of files that are not given.
    pub(crate) home: Option<PathBuf>,
}

/// The versions that `ssl_min_protocol_version` and `ssl_max_protocol_version` allow, out of those that rustls
/// supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsVersions {
    Both,
    Only12,
    Only13,
}

/// `sslrootcert` (manual, 34.19).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Root {
    /// The root certificates of the operating system.
    System,
    /// A PEM file.
    File(PathBuf),
}

/// TCP keepalive; a field that is `None` keeps the system's default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keepalive {
    pub(crate) idle: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u32>,
}

/// How a parameter is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Support {
    /// The parameter is applied.
    Applied,
    /// The parameter has no effect here, and is ignored.
    Ignored,
    /// The parameter would have an effect that is not supported here, so it is an error.
    Refused(&'static str),
}

/// A parameter and its environment variable.
struct Key {
    name: &'static str,
    env: Option<&'static str>,
    support: Support,
}

const fn key(name: &'static str, env: &'static str, support: Support) -> Key {
    Key { name, env: Some(env), support }
}

const fn bare(name: &'static str, support: Support) -> Key {
    Key { name, env: None, support }
}

const NO_GSS: Support = Refused("Kerberos and GSSAPI are not supported");

/// All parameters of libpq up to PostgreSQL 18 (manual, 34.1.2), and their environment variables (34.15).
const KEYS: &[Key] = &[
    key("host", "PGHOST", Applied),
    key("hostaddr", "PGHOSTADDR", Applied),
    key("port", "PGPORT", Applied),
    key("dbname", "PGDATABASE", Applied),
    key("user", "PGUSER", Applied),
    key("password", "PGPASSWORD", Applied),
    key("passfile", "PGPASSFILE", Applied),
    key("options", "PGOPTIONS", Applied),
    key("application_name", "PGAPPNAME", Applied),
    bare("fallback_application_name", Applied),
    key("connect_timeout", "PGCONNECT_TIMEOUT", Applied),
    key("target_session_attrs", "PGTARGETSESSIONATTRS", Applied),
    key("load_balance_hosts", "PGLOADBALANCEHOSTS", Applied),
    key("sslmode", "PGSSLMODE", Applied),
    key("sslnegotiation", "PGSSLNEGOTIATION", Applied),
    key("sslrootcert", "PGSSLROOTCERT", Applied),
    key("sslcert", "PGSSLCERT", Applied),
    key("sslkey", "PGSSLKEY", Applied),
    key("sslsni", "PGSSLSNI", Applied),
    key("channel_binding", "PGCHANNELBINDING", Applied),
    bare("keepalives", Applied),
    bare("keepalives_idle", Applied),
    bare("keepalives_interval", Applied),
    bare("keepalives_count", Applied),
    bare("tcp_user_timeout", Applied),
    // TLS 1.3 has no compression, and OpenSSL 1.1 and later disable it.
    key("sslcompression", "PGSSLCOMPRESSION", Ignored),
    // The encoding is always UTF-8, which the decoder requires.
    key("client_encoding", "PGCLIENTENCODING", Ignored),
    // rustls supports TLS 1.2 and 1.3; 1.2 is also libpq's default minimum.
    key("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Applied),
    key("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Applied),
    key("gssencmode", "PGGSSENCMODE", Applied),
    key("krbsrvname", "PGKRBSRVNAME", Ignored),
    key("gsslib", "PGGSSLIB", Ignored),
    key("gssdelegation", "PGGSSDELEGATION", NO_GSS),
    key("sslcrl", "PGSSLCRL", Refused("revocation lists are not supported")),
    key("sslcrldir", "PGSSLCRLDIR", Refused("revocation lists are not supported")),
    key("sslcertmode", "PGSSLCERTMODE", Refused("leave out sslcert to send no certificate")),
    bare("sslpassword", Refused("the key must not be encrypted; protect its file instead")),
    key("requiressl", "PGREQUIRESSL", Refused("write sslmode=require instead")),
    key("requirepeer", "PGREQUIREPEER", Refused("the peer's user is not checked")),
    key("require_auth", "PGREQUIREAUTH", Refused("write channel_binding=require instead")),
    key("service", "PGSERVICE", Refused("service files are not read")),
    key("servicefile", "PGSERVICEFILE", Ignored),
    bare("replication", Refused("the client sets it")),
    bare("scram_client_key", Refused("give the password")),
    bare("scram_server_key", Refused("give the password")),
    bare("oauth_issuer", Refused("OAuth is not supported")),
    bare("oauth_client_id", Refused("OAuth is not supported")),
    bare("oauth_client_secret", Refused("OAuth is not supported")),
    bare("oauth_scope", Refused("OAuth is not supported")),
    bare("sslkeylogfile", Refused("session keys are never written to a file")),
    bare("min_protocol_version", Ignored),
    bare("max_protocol_version", Ignored),
];

/// The parameter of that name.
fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name that is most similar to a misspelt one, by at most 3 edits.
fn nearest(name: &str) -> Option<&'static str> {
    let names = KEYS.iter().filter(|key| key.support == Applied).map(|key| key.name);
    names
        .map(|known| (strsim::osa_distance(name, known), known))
        .filter(|(distance, _)| *distance <= 3)
        .min()
        .map(|(_, known)| known)
}

/// Names and values, in the order written; a later value of a name replaces an earlier one.
type Pairs = Vec<(String, String)>;

/// Parses a connection string of either form (manual, 34.1.1): a URI, or `key = value` pairs. Errors never have a part
/// of the string, because it may be part of a password.
fn pairs(text: &str) -> Result<Pairs, ConninfoError> {
    let text = text.trim();
    for scheme in ["postgresql://", "postgres://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return uri(rest);
        }
    }
    let scheme = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
    if text.split_once("://").is_some_and(|(name, _)| scheme(name)) {
        return Err(syntax("it begins with postgresql:// or is key=value pairs"));
    }
    key_value(text)
}

fn syntax(what: &'static str) -> ConninfoError {
    ConninfoError::Syntax { what }
}

/// `[user[:password]@][host[:port],…][/dbname][?name=value&…]`
fn uri(rest: &str) -> Result<Pairs, ConninfoError> {
    let mut pairs = Pairs::new();
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    // As in libpq, the first `@` ends the login, so an `@` in the password must be written %40.
    let mut hosts_and_more = rest;
    if let Some((login, after)) = rest.split_once('@').filter(|(login, _)| !login.contains('/')) {
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        push(&mut pairs, "user", user)?;
        if let Some(password) = password {
            push(&mut pairs, "password", password)?;
        }
        hosts_and_more = after;
    } else if rest.get(..authority_end).is_some_and(|login| login.contains('@')) {
        return Err(syntax("the login of the URI is not well formed"));
    }
    let (before_query, query) =
        hosts_and_more.split_once('?').map_or((hosts_and_more, None), |(b, q)| (b, Some(q)));
    let (hosts, dbname) =
        before_query.split_once('/').map_or((before_query, None), |(h, d)| (h, Some(d)));
    if !hosts.is_empty() {
        uri_hosts(&mut pairs, hosts)?;
    }
    if let Some(dbname) = dbname.filter(|name| !name.is_empty()) {
        push(&mut pairs, "dbname", dbname)?;
    }
    for part in query.into_iter().flat_map(|query| query.split('&')).filter(|part| !part.is_empty())
    {
        let (name, value) =
            part.split_once('=').ok_or(syntax("a parameter of the URI has no \"=\""))?;
        let (name, value) = (percent_decoded(name)?, percent_decoded(value)?);
        // JDBC's spelling, which libpq accepts too.
        if name == "ssl" && value == "true" {
            pairs.push(("sslmode".to_owned(), "require".to_owned()));
        } else {
            pairs.push((name, value));
        }
    }
    Ok(pairs)
}

fn push(pairs: &mut Pairs, name: &str, raw: &str) -> Result<(), ConninfoError> {
    pairs.push((name.to_owned(), percent_decoded(raw)?));
    Ok(())
}

fn uri_hosts(pairs: &mut Pairs, list: &str) -> Result<(), ConninfoError> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for one in list.split(',') {
        let (host, port) = if let Some(inner) = one.strip_prefix('[') {
            let (address, after) =
                inner.split_once(']').ok_or(syntax("an IPv6 address has no closing \"]\""))?;
            let port = match after.strip_prefix(':') {
                Some(port) => port,
                None if after.is_empty() => "",
                None => return Err(syntax("after an IPv6 address comes \":\" and the port")),
            };
            (address, port)
        } else {
            one.split_once(':').unwrap_or((one, ""))
        };
        hosts.push(percent_decoded(host)?);
        ports.push(percent_decoded(port)?);
    }
    if hosts.iter().any(|host| !host.is_empty()) {
        pairs.push(("host".to_owned(), hosts.join(",")));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        pairs.push(("port".to_owned(), ports.join(",")));
    }
    Ok(())
}

fn percent_decoded(raw: &str) -> Result<String, ConninfoError> {
    let wrong = syntax("\"%\" is not followed by two hexadecimal digits (write %25 for itself)");
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong) };
        match u8::try_from(high * 16 + low) {
            Ok(0) | Err(_) => return Err(syntax("%00 is not allowed")),
            Ok(decoded) => bytes.push(decoded),
        }
    }
    String::from_utf8(bytes).map_err(|error| {
        drop(error);
        syntax("a percent-encoded part is not UTF-8")
    })
}

/// `name = value name = 'quoted value' …`; `\` escapes the next character.
fn key_value(text: &str) -> Result<Pairs, ConninfoError> {
    let mut pairs = Pairs::new();
    let mut rest = text.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if rest.peek().is_none() {
            return Ok(pairs);
        }
        let mut name = String::new();
        while let Some(c) = rest.next_if(|c| !c.is_whitespace() && *c != '=') {
            name.push(c);
        }
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if rest.next() != Some('=') {
            return Err(syntax("a name is not followed by \"=\" (quote values with spaces)"));
        }
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = rest.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match rest.next() {
                None if quoted => return Err(syntax("a quoted value is not closed")),
                None => break,
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                Some('\\') => value.extend(rest.next()),
                Some(c) => value.push(c),
            }
        }
        pairs.push((name, value));
    }
}

/// The directory of the socket in the libpq of Debian and Red Hat. (Upstream's default is `/tmp`.)
const DEFAULT_SOCKET_DIR: &str = "/var/run/postgresql";

/// Default of `tcp_user_timeout`: how long sent data may stay unacknowledged. The client notices a dead network path
/// before another host could take over.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Names and texts of a connection string and of the environment, to be converted to typed settings.
struct Settings<'a> {
    given: &'a BTreeMap<&'static str, String>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

type Read<T> = Result<T, ConninfoError>;

impl<'a> Settings<'a> {
    fn new(
        given: &'a BTreeMap<&'static str, String>,
        env: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        Self { given, env }
    }

    fn conninfo(&self) -> Read<Conninfo> {
        let os_user = || (self.env)("USER").or_else(|| (self.env)("LOGNAME"));
        let user = self.text("user").map(str::to_owned).or_else(os_user);
        let user = user.filter(|name| !name.is_empty());
        let user = user.ok_or(ConninfoError::Missing { key: "user" })?;
        for key in ["user", "dbname", "options", "application_name", "password"] {
            if self.text(key).is_some_and(|text| text.contains('\0')) {
                return Err(ConninfoError::Value { key, expected: "text without a zero byte" });
            }
        }
        let home = (self.env)("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let name = self.text("application_name").or(self.text("fallback_application_name"));
        self.gssencmode()?;
        Ok(Conninfo {
            hosts: self.hosts()?,
            shuffle: self.choice("load_balance_hosts", "disable or random", false, |text| {
                [("disable", false), ("random", true)].into_iter().find(|(n, _)| *n == text)
            })?,
            dbname: self.text("dbname").unwrap_or(&user).to_owned(),
            user,
            password: self.text("password").map(|text| Secret::new(text.to_owned())),
            password_file: None,
            passfile: self
                .text("passfile")
                .map(PathBuf::from)
                .or_else(|| home.as_deref().map(|home| home.join(".pgpass"))),
            application_name: name.map(str::to_owned),
            options: self.text("options").map(str::to_owned),
            connect_timeout: self.connect_timeout()?,
            target_session_attrs: self.target_session_attrs()?,
            ssl: self.ssl(home.as_deref())?,
            channel_binding: self.choice(
                "channel_binding",
                "disable, prefer or require",
                ChannelBinding::Prefer,
                |text| {
                    use ChannelBinding::{Disable, Prefer, Require};
                    [("disable", Disable), ("prefer", Prefer), ("require", Require)]
                        .into_iter()
                        .find(|(name, _)| *name == text)
                },
            )?,
            keepalive: self.keepalive()?,
            tcp_user_timeout: match self.number("tcp_user_timeout")? {
                None => Some(TCP_USER_TIMEOUT),
                Some(0) => None,
                Some(millis) => Some(Duration::from_millis(u64::from(millis))),
            },
        })
    }

    fn text(&self, key: &'static str) -> Option<&'a str> {
        self.given.get(key).map(String::as_str)
    }

    fn choice<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        default: T,
        find: impl FnOnce(&str) -> Option<(&'static str, T)>,
    ) -> Read<T> {
        match self.text(key) {
            None => Ok(default),
            Some(text) => {
                find(text).map(|(_, value)| value).ok_or(ConninfoError::Value { key, expected })
            }
        }
    }

    fn number(&self, key: &'static str) -> Read<Option<u32>> {
        let wrong = ConninfoError::Value { key, expected: "a whole number that is not negative" };
        self.text(key).map(|text| text.trim().parse().ok().ok_or(wrong)).transpose()
    }

    fn gssencmode(&self) -> Read<()> {
        match self.text("gssencmode") {
            None | Some("disable" | "prefer") => Ok(()),
            Some(_) => Err(ConninfoError::Unsupported {
                key: "gssencmode",
                why: "Kerberos and GSSAPI are not supported",
            }),
        }
    }

    /// As in libpq, 0 and negative numbers mean no limit (here: a day), and 1 counts as 2.
    fn connect_timeout(&self) -> Read<Duration> {
        const FOR_EVER: Duration = Duration::from_hours(24);
        let Some(text) = self.text("connect_timeout") else { return Ok(CONNECT_TIMEOUT) };
        match text.trim().parse::<i32>().map(u64::try_from) {
            Ok(Ok(0) | Err(_)) => Ok(FOR_EVER),
            Ok(Ok(seconds)) => Ok(Duration::from_secs(seconds.max(2)).min(FOR_EVER)),
            Err(_) => {
                Err(ConninfoError::Value { key: "connect_timeout", expected: "whole seconds" })
            }
        }
    }

    fn target_session_attrs(&self) -> Read<TargetSessionAttrs> {
        use TargetSessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
        let expected = "any, read-write, read-only, primary, standby or prefer-standby";
        self.choice("target_session_attrs", expected, Any, |text| {
            [
                ("any", Any),
                ("read-write", ReadWrite),
                ("read-only", ReadOnly),
                ("primary", Primary),
                ("standby", Standby),
                ("prefer-standby", PreferStandby),
            ]
            .into_iter()
            .find(|(name, _)| *name == text)
        })
    }

    fn keepalive(&self) -> Read<Option<Keepalive>> {
        let seconds = |key| -> Read<Option<Duration>> {
            let number = self.number(key)?.filter(|number| *number > 0);
            Ok(number.map(|number| Duration::from_secs(u64::from(number))))
        };
        let (idle, interval) = (seconds("keepalives_idle")?, seconds("keepalives_interval")?);
        let count = self.number("keepalives_count")?.filter(|number| *number > 0);
        let off = self.number("keepalives")? == Some(0);
        Ok((!off).then_some(Keepalive { idle, interval, count }))
    }

    fn hosts(&self) -> Read<Vec<Host>> {
        let list = |key| self.text(key).map(|text| text.split(',').map(str::trim).collect());
        let names: Option<Vec<&str>> = list("host");
        let addresses: Option<Vec<&str>> = list("hostaddr");
        let ports: Vec<&str> = list("port").unwrap_or_else(|| vec!["5432"]);
        let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
        if names.as_ref().is_some_and(|names| names.len() != count) {
            let expected = "as many entries as \"host\" has";
            return Err(ConninfoError::Value { key: "hostaddr", expected });
        }
        if ports.len() != 1 && ports.len() != count {
            let expected = "one port, or as many as there are hosts";
            return Err(ConninfoError::Value { key: "port", expected });
        }
        if count > HOSTS_MAX {
            return Err(ConninfoError::Value { key: "host", expected: "at most 32 hosts" });
        }
        let at = |list: &Option<Vec<&'a str>>, index: usize| -> &'a str {
            list.as_ref().and_then(|list| list.get(index).copied()).unwrap_or("")
        };
        (0..count)
            .map(|index| {
                let port = ports.get(index).or(ports.first()).copied().unwrap_or("");
                let port = if port.is_empty() { "5432" } else { port };
                let expected = "a number from 1 to 65535";
                let wrong = ConninfoError::Value { key: "port", expected };
                let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(wrong)?;
                Ok(Host { address: host_address(at(&names, index), at(&addresses, index))?, port })
            })
            .collect()
    }

    fn ssl(&self, home: Option<&Path>) -> Read<Ssl> {
        let root = self.text("sslrootcert").map(|text| match text {
            "system" => Root::System,
            path => Root::File(PathBuf::from(path)),
        });
        let system = root == Some(Root::System);
        // As in libpq: with the system's roots, a certificate proves nothing unless the host name is checked.
        let default = if system { SslMode::VerifyFull } else { SslMode::Prefer };
        let expected = "disable, allow, prefer, require, verify-ca or verify-full";
        let mode = self.choice("sslmode", expected, default, |text| {
            use SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
            [
                ("disable", Disable),
                ("allow", Prefer),
                ("prefer", Prefer),
                ("require", Require),
                ("verify-ca", VerifyCa),
                ("verify-full", VerifyFull),
            ]
            .into_iter()
            .find(|(name, _)| *name == text)
        })?;
        if system && mode < SslMode::VerifyFull {
            let expected = "verify-full, since sslrootcert is \"system\"";
            return Err(ConninfoError::Value { key: "sslmode", expected });
        }
        let expected = "postgres or direct";
        let direct = self.choice("sslnegotiation", expected, false, |text| {
            [("postgres", false), ("direct", true)].into_iter().find(|(name, _)| *name == text)
        })?;
        if direct && mode < SslMode::Require {
            let expected = "require or stronger, since sslnegotiation is \"direct\"";
            return Err(ConninfoError::Value { key: "sslmode", expected });
        }
        Ok(Ssl {
            mode,
            direct,
            root,
            cert: self.text("sslcert").map(PathBuf::from),
            key: self.text("sslkey").map(PathBuf::from),
            sni: self.number("sslsni")? != Some(0),
            versions: self.tls_versions()?,
            home: home.map(|home| home.join(".postgresql")),
        })
    }

    fn tls_versions(&self) -> Read<TlsVersions> {
        let expected = "TLSv1.2 or TLSv1.3";
        let version = |key: &'static str, default: u8| match self.text(key) {
            None => Ok(default),
            // Older versions as a lower bound have no effect: rustls does not support them.
            Some("TLSv1" | "TLSv1.1") if key == "ssl_min_protocol_version" => Ok(2),
            Some("TLSv1.2") => Ok(2),
            Some("TLSv1.3") => Ok(3),
            Some(_) => Err(ConninfoError::Value { key, expected }),
        };
        let lowest = version("ssl_min_protocol_version", 2)?;
        let highest = version("ssl_max_protocol_version", 3)?;
        match (lowest, highest) {
            (2, 3) => Ok(TlsVersions::Both),
            (2, _) => Ok(TlsVersions::Only12),
            (_, 3) => Ok(TlsVersions::Only13),
            _ => {
                let expected = "no less than ssl_min_protocol_version";
                Err(ConninfoError::Value { key: "ssl_max_protocol_version", expected })
            }
        }
    }
}

fn host_address(name: &str, address: &str) -> Read<HostAddress> {
    if !address.is_empty() {
        let expected = "IP addresses (names belong into \"host\")";
        let wrong = ConninfoError::Value { key: "hostaddr", expected };
        let address: IpAddr = address.parse().ok().ok_or(wrong)?;
        let name = if name.is_empty() { address.to_string() } else { name.to_owned() };
        return Ok(HostAddress::Net { name, address: Some(address) });
    }
    Ok(match name {
        "" => HostAddress::Socket(DEFAULT_SOCKET_DIR.to_owned()),
        path if path.starts_with(['/', '@']) => HostAddress::Socket(path.to_owned()),
        name => HostAddress::Net { name: name.to_owned(), address: name.parse().ok() },
    })
}

/// The password of a host in the password file (manual, 34.16): the first line `host:port:database:user:password` that
/// matches. As in libpq, a file that others can read is ignored.
///
/// The file is read for each connection, because passwords are rotated while the process runs.
pub(crate) fn password(conninfo: &Conninfo, host: &Host) -> Option<String> {
    let path = conninfo.passfile.as_deref()?;
    if !private(path) {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    lookup(&text, &host.passfile_name(), host.port, &conninfo.dbname, &conninfo.user)
}

fn private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let others = meta.permissions().mode() & 0o077;
    let fits = meta.is_file() && others == 0;
    if meta.is_file() && !fits {
        tracing::warn!(path = %path.display(), "password file is readable by others: not used");
    }
    fits
}

fn lookup(text: &str, host: &str, port: u16, dbname: &str, user: &str) -> Option<String> {
    let port = port.to_string();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [h, p, d, u, password] = fields.as_slice() else { return None };
        let fits = [(h, host), (p, port.as_str()), (d, dbname), (u, user)]
            .iter()
            .all(|(field, wanted)| field.as_str() == "*" || field.as_str() == *wanted);
        fits.then(|| password.clone())
    })
}

/// Splits a line at its first four colons; `\:` and `\\` are a literal `:` and `\`.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut rest = line.trim_end_matches(['\r', '\n']).chars();
    while let Some(c) = rest.next() {
        let next = if c == '\\' { rest.next() } else { None };
        if c == ':' && fields.len() < 5 {
            fields.push(String::new());
        } else if let Some(field) = fields.last_mut() {
            field.push(next.unwrap_or(c));
        }
    }
    fields
}

/// Parameters whose values are secrets.
const SECRETS: [&str; 5] =
    ["password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"];

/// The connection string with its secrets replaced by `mask`, or removed if `mask` is `None`. The form (URI or pairs)
/// is kept.
///
/// # Errors
/// The string is not well formed, so its secrets can't be found.
pub fn masked(text: &str, mask: Option<&str>) -> Result<String, ConninfoError> {
    rewritten(text, mask, None)
}

/// The connection string without its secrets and with another user. The name `user` must have only letters, digits and
/// `_`; it is not quoted.
///
/// # Errors
/// As [`masked`].
pub fn of_user(text: &str, user: &str) -> Result<String, ConninfoError> {
    rewritten(text, None, Some(user))
}

fn rewritten(text: &str, mask: Option<&str>, user: Option<&str>) -> Result<String, ConninfoError> {
    let text = text.trim();
    let pairs = pairs(text)?;
    if let Some((scheme @ ("postgresql" | "postgres"), rest)) = text.split_once("://") {
        return Ok(format!("{scheme}://{}", masked_uri(rest, mask, user)));
    }
    let is_user = |name: &str| user.is_some() && name.trim().eq_ignore_ascii_case("user");
    let mut shown: Vec<String> = user.map(|user| format!("user={user}")).into_iter().collect();
    let rest: Pairs = pairs.into_iter().filter(|(name, _)| !is_user(name)).collect();
    let rest = masked_key_value(rest, mask);
    shown.extend((!rest.is_empty()).then_some(rest));
    Ok(shown.join(" "))
}

fn is_secret(name: &str) -> bool {
    SECRETS.contains(&name.trim().to_ascii_lowercase().as_str())
}

fn masked_uri(rest: &str, mask: Option<&str>, other: Option<&str>) -> String {
    // As in `uri`, the first `@` ends the login.
    let (login, after) = match rest.split_once('@').filter(|(login, _)| !login.contains('/')) {
        Some((login, after)) => (Some(login), after),
        None => (None, rest),
    };
    let mut shown = other.map_or_else(String::new, |user| format!("{user}@"));
    if let Some(login) = login.filter(|_| other.is_none()) {
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        shown.push_str(user);
        if let (Some(_), Some(mask)) = (password, mask) {
            shown.push(':');
            shown.push_str(mask);
        }
        shown.push('@');
    }
    let (place, query) = after.split_once('?').map_or((after, None), |(p, q)| (p, Some(q)));
    shown.push_str(place);
    let parameter = |part: &str| -> Option<String> {
        let name = part.split_once('=').map_or(part, |(name, _)| name);
        // A name with %XX is treated as a secret, without decoding it.
        if other.is_some() && name.eq_ignore_ascii_case("user") {
            None
        } else if is_secret(name) || name.contains('%') {
            mask.map(|mask| format!("{name}={mask}"))
        } else {
            Some(part.to_owned())
        }
    };
    let query: Vec<_> =
        query.into_iter().flat_map(|query| query.split('&')).filter_map(parameter).collect();
    if !query.is_empty() {
        shown.push('?');
        shown.push_str(&query.join("&"));
    }
    shown
}

fn masked_key_value(pairs: Pairs, mask: Option<&str>) -> String {
    let shown = pairs.into_iter().filter_map(|(name, value)| {
        let value = if is_secret(&name) { mask?.to_owned() } else { value };
        let plain = !value.is_empty()
            && !value.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\');
        let value = if plain {
            value
        } else {
            format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
        };
        Some(format!("{name}={value}"))
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod masked_tests {
    use super::*;

    #[test]
    fn secrets_are_masked_or_left_out_and_the_rest_stays() {
        for (text, with, without) in [
            (
                "postgresql://u:hush@h:5432/d?sslmode=require",
                "postgresql://u:***@h:5432/d?sslmode=require",
                "postgresql://u@h:5432/d?sslmode=require",
            ),
            (
                "postgres://u@h,h2/d?password=hush",
                "postgres://u@h,h2/d?password=***",
                "postgres://u@h,h2/d",
            ),
            ("postgresql://h/d", "postgresql://h/d", "postgresql://h/d"),
            (
                "host=h user='a b' password = 'hu sh' dbname=d",
                "host=h user='a b' password=*** dbname=d",
                "host=h user='a b' dbname=d",
            ),
            (
                "postgresql://u:hush@/d?host=/tmp&p%61ssword=hush",
                "postgresql://u:***@/d?host=/tmp&p%61ssword=***",
                "postgresql://u@/d?host=/tmp",
            ),
        ] {
            assert_eq!(masked(text, Some("***")).unwrap(), with);
            assert_eq!(masked(text, None).unwrap(), without);
        }
        for (text, other) in [
            (
                "postgresql://admin:hush@h:5432/d?sslmode=require",
                "postgresql://rider@h:5432/d?sslmode=require",
            ),
            ("postgresql://h/d?user=admin&password=hush", "postgresql://rider@h/d"),
            ("host=h user=admin password=hush dbname=d", "user=rider host=h dbname=d"),
            ("host=h dbname=d", "user=rider host=h dbname=d"),
        ] {
            assert_eq!(of_user(text, "rider").unwrap(), other);
        }
        masked("mysql://u:hush@h/d", None).unwrap_err();
        masked("host=h password='hush", None).unwrap_err();
    }
}
