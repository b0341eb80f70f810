//! What a NATS sink is opened with: the settings that its parts share.

use super::login::NatsLogin;
use async_nats::ServerAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How the stream keeps the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainMode {
    /// Each message names the message before it, so a message that is refused or lost stops all later ones.
    Stream,
    /// Each message names the last one of its subject, of which one is in flight at a time.
    Subject,
    /// One message of a key is in flight at a time.
    None,
}

impl ChainMode {
    /// The words of `chain`, in the order of the values.
    pub(super) const WORDS: [&str; 3] = ["stream", "subject", "none"];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Subject => "subject",
            Self::None => "none",
        }
    }
}

/// The words of `create.storage`.
pub(super) const STORAGES: [&str; 2] = ["file", "memory"];

/// How the stream is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateStream {
    /// Separated by commas.
    pub subjects: String,
    /// 1, 3 or 5.
    pub replicas: u32,
    /// `file` or `memory`.
    pub storage: &'static str,
    /// Zero: for ever.
    pub max_age: Duration,
    /// How long the server remembers identifiers.
    pub duplicate_window: Duration,
}

/// Files of certificates, in the format PEM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NatsTlsFiles {
    /// The authorities that are trusted in place of those of the system.
    pub(super) ca: Option<PathBuf>,
    /// The client's certificate with its key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

/// What the sink is opened with.
#[derive(Clone, Debug)]
pub(super) struct NatsSpec {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) stream: String,
    pub(super) chain: ChainMode,
    pub(super) login: NatsLogin,
    pub(super) tls: NatsTlsFiles,
    pub(super) inbox_prefix: String,
    pub(super) ack_timeout: Duration,
    /// The name of the connection, and of the pipeline in hints.
    pub(super) pipeline: String,
    /// The first part of every identifier.
    pub(super) id_prefix: String,
    /// The operator's limit on the size of a record. Unit: bytes.
    pub(super) size_max: Option<usize>,
    pub(super) create: Option<CreateStream>,
}

impl NatsSpec {
    /// The addresses, for messages: without a login.
    pub(super) fn place(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(address).collect();
        addresses.join(",")
    }
}

/// An address without a login.
pub(super) fn address(server: &ServerAddr) -> String {
    format!("{}:{}", server.host(), server.port())
}
