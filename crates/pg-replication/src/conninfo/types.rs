//! What the settings are, once read.

use std::path::PathBuf;
use std::time::Duration;

/// A password. It has no `Debug`, so that nothing that holds one can print it by accident.
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
    /// TLS if the server offers it, the certificate is not looked at. `allow` is taken as this.
    Prefer,
    /// TLS, the certificate is not looked at (unless a root certificate is there: then as `verify-ca`, like libpq).
    Require,
    /// TLS, and the certificate is signed by the root certificate.
    VerifyCa,
    /// The same, and it was issued for the host we asked for.
    VerifyFull,
}

/// `channel_binding`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server offers it.
    Prefer,
    /// A login without it is refused.
    Require,
}

/// `target_session_attrs`.
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
    /// In recovery if one of the hosts is, else any.
    PreferStandby,
}

/// Everything about TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ssl {
    pub(crate) mode: SslMode,
    pub(crate) direct: bool,
    pub(crate) root: Option<Root>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) sni: bool,
    pub(crate) versions: TlsVersions,
    /// `~/.postgresql`, where libpq looks for files that were not named.
    pub(crate) home: Option<PathBuf>,
}

/// `ssl_min_protocol_version` and `ssl_max_protocol_version`: what they leave of what we speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsVersions {
    Both,
    Only12,
    Only13,
}

/// `sslrootcert`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Root {
    /// The system's own store.
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
