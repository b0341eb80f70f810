//! Where the database is and how to log in: libpq's connection strings and environment, read and checked.
//!
//! Pure but for one closure that looks up the environment: opens no file and no socket. [`transport`](super::transport)
//! connects by it. Passwords never leave through `Debug` or errors: an error names the parameter, not its value.
//!
//! One difference to libpq is on purpose: where nobody wrote `sslmode`, TLS is used if the server offers it (libpq's
//! `prefer`), but a failed handshake is an error and never a second attempt in the clear.

mod keys;
mod masked;
pub(super) mod passfile;
mod settings;
mod syntax;
mod types;

pub use masked::{masked, of_user};
pub use types::Root;
pub use types::{ChannelBinding, SslMode, TargetSessionAttrs};
pub(super) use types::{Keepalive, Secret, Ssl, TlsVersions};

use crate::secret_file::SecretFile;
use keys::Support;
use settings::Reader;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for one host, from name lookup to the end of the login, where `connect_timeout` is not given.
///
/// libpq waits for ever by default; a service must not.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Most hosts in one connection string.
pub const HOSTS_MAX: usize = 32;

/// A connection string, checked. `Debug` shows no password.
#[derive(Clone)]
pub struct Conninfo {
    pub(super) hosts: Vec<Host>,
    pub(super) shuffle: bool,
    pub(super) user: String,
    pub(super) dbname: String,
    pub(super) password: Option<Secret>,
    /// Read at each login, and before `password`.
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

/// One host to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Where it is.
    pub place: Place,
    /// Its port.
    pub port: u16,
}

/// Where a host is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The directory of a Unix socket, or an abstract name with a leading `@`.
    Socket(String),
    /// A name or address as written, which certificates are checked against, and the address to use instead of a
    /// lookup.
    Net {
        /// As written.
        name: String,
        /// `hostaddr`.
        address: Option<IpAddr>,
    },
}

impl Host {
    fn passfile_name(&self) -> String {
        match &self.place {
            Place::Socket(dir) if dir == settings::DEFAULT_SOCKET_DIR => "localhost".to_owned(),
            Place::Socket(dir) => dir.clone(),
            Place::Net { name, .. } => name.clone(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Socket(dir) => write!(f, "{dir}/.s.PGSQL.{}", self.port),
            Place::Net { name, address: Some(address) } if name.parse() != Ok(*address) => {
                write!(f, "{name} ({address}):{}", self.port)
            }
            Place::Net { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Place::Net { name, .. } => write!(f, "{name}:{}", self.port),
        }
    }
}

/// A connection string that can't be used. Never shows a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConninfoError {
    /// Not well formed.
    #[error("the connection string is not well formed: {what}")]
    Syntax {
        /// What is wrong.
        what: &'static str,
    },
    /// No such parameter.
    #[error("unknown connection parameter \"{key}\"{}", did_you_mean(*.nearest))]
    Unknown {
        /// The name as written.
        key: String,
        /// The name it may have been.
        nearest: Option<&'static str>,
    },
    /// A parameter of libpq that would make a difference which we can't make.
    #[error("connection parameter \"{key}\" can't be used: {why}")]
    Unsupported {
        /// Its name.
        key: &'static str,
        /// Why, or what to write instead.
        why: &'static str,
    },
    /// A value out of its range.
    #[error("connection parameter \"{key}\": expected {expected}")]
    Value {
        /// Its name.
        key: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// A parameter that has no default here.
    #[error("connection parameter \"{key}\" is needed")]
    Missing {
        /// Its name.
        key: &'static str,
    },
}

/// The names of the `PG*` variables that are set, and that a connection string leaves room for. Never their values.
pub fn variables(env: &dyn Fn(&str) -> Option<String>) -> Vec<&'static str> {
    let set = |name: &&str| env(name).is_some_and(|value| !value.is_empty());
    let applied = keys::KEYS.iter().filter(|key| key.support == Support::Applied);
    applied.filter_map(|key| key.env).filter(set).collect()
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", did you mean \"{name}\"?"))
}

impl Conninfo {
    /// Reads a URI or `key=value` pairs; `env` looks up the `PG*` variables (and `HOME`, `USER`).
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConninfoError> {
        let mut given = BTreeMap::new();
        for (name, value) in syntax::pairs(text)? {
            let Some(key) = keys::find(&name) else {
                let nearest = keys::nearest(&name);
                return Err(ConninfoError::Unknown { key: name, nearest });
            };
            given.insert(key.name, value);
        }
        for key in keys::KEYS {
            let from_env = || key.env.and_then(env).filter(|value| !value.is_empty());
            if !given.contains_key(key.name)
                && let Some(value) = from_env()
            {
                given.insert(key.name, value);
            }
            // As libpq: an empty value is as good as none.
            if given.get(key.name).is_some_and(String::is_empty) {
                given.remove(key.name);
            }
            if let (Support::Refused(why), true) = (key.support, given.contains_key(key.name)) {
                return Err(ConninfoError::Unsupported { key: key.name, why });
            }
        }
        Reader::new(&given, env).conninfo()
    }

    /// Has the password read from `file` at each login, in place of one that was given.
    pub fn set_password_file(&mut self, file: SecretFile) {
        self.password_file = Some(file);
    }

    /// Whether a password is given, in whatever way but the password file of libpq.
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

    /// The hosts, for people: `db1:5432, db2:5432`.
    pub fn hosts(&self) -> String {
        self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// The hosts, in the order in which they are tried.
    pub fn host_list(&self) -> &[Host] {
        &self.hosts
    }

    /// The certificates that are trusted, where they are named.
    pub const fn ssl_root(&self) -> Option<&Root> {
        self.ssl.root.as_ref()
    }

    /// What TLS must prove.
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

#[cfg(test)]
mod tests;
