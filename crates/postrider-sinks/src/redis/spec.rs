//! What a Redis sink is opened with: the settings that its parts share.

use crate::tls::TlsFiles;
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::NameRule;
use std::fmt;
use std::time::Duration;

/// Bytes of the name of a stream at most. Redis itself takes 512 MB.
const NAME_BYTES_MAX: usize = 1024;

/// No stream has a name that begins so: keys of that name have the progress of pipelines.
pub(super) const STATE_PREFIX: &str = "postrider:";

/// A server's address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// The port where none is given.
    pub(super) const PORT: u16 = 6379;

    /// Reads `host`, `host:port` or `[::1]:port`.
    pub(super) fn parse(text: &str, port: u16) -> Option<Self> {
        let text = text.trim();
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, end) = rest.split_once(']')?;
                let port =
                    if end.is_empty() { port } else { end.strip_prefix(':')?.parse().ok()? };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, port.parse().ok()?),
                None => (text, port),
            },
        };
        let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
        (is_host && port > 0).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// How the servers belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Each of the servers is tried until one is the primary.
    Single,
    /// The servers are sentinels, which know the primary.
    Sentinel,
    /// The servers are nodes of a cluster.
    Cluster,
}

impl Mode {
    /// The words of `mode`, in the order of the values.
    pub(super) const WORDS: [&str; 3] = ["single", "sentinel", "cluster"];

    /// The word in the configuration.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

/// A login: the user `default` if there is no name, and none without a file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct RedisLogin {
    pub(super) username: String,
    pub(super) password: Option<SecretFile>,
}

/// What is removed from a stream when an event is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trim {
    Nothing,
    /// The oldest entries above about this number.
    Length(u32),
    /// Entries that are older than about this.
    Age(Duration),
}

/// How events are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Storing {
    /// Events are added in transactions, together with the progress.
    pub(super) in_transactions: bool,
    /// The first event of a stream creates it.
    pub(super) creates: bool,
    pub(super) trim: Trim,
    /// Replicas that must have an event before it counts as published.
    pub(super) replicas: u32,
    /// How long the server waits for them, before the problem is reported.
    pub(super) replica_timeout: Duration,
}

/// The largest sizes. Unit: bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RedisSizes {
    /// Of key, payload and headers of an event.
    pub(super) event: usize,
    /// Of an answer of the server.
    pub(super) reply: usize,
}

/// What a sink is opened with.
#[derive(Clone, Debug)]
pub(super) struct RedisSpec {
    pub(super) servers: Vec<Address>,
    pub(super) mode: Mode,
    /// The name of the primary at the sentinels.
    pub(super) sentinel_master: String,
    pub(super) sentinel_login: RedisLogin,
    pub(super) database: u32,
    pub(super) login: RedisLogin,
    pub(super) tls: Option<TlsFiles>,
    /// The name of the connections, in `CLIENT LIST`.
    pub(super) client_name: String,
    /// The key, or the first part of the keys, with the progress of the pipeline.
    pub(super) state_key: String,
    pub(super) storing: Storing,
    /// The longest wait for an answer.
    pub(super) timeout: Duration,
    pub(super) sizes: RedisSizes,
}

impl RedisSpec {
    /// The addresses, for messages.
    pub(super) fn place(&self) -> String {
        self.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// The user, for messages and commands.
    pub(super) fn user(&self) -> &str {
        if self.login.username.is_empty() { "default" } else { &self.login.username }
    }

    /// Whether the name is that of a key with the progress of a pipeline.
    pub(super) fn is_state(&self, name: &str) -> bool {
        let own = name.strip_prefix(self.state_key.as_str());
        name.starts_with(STATE_PREFIX)
            || own.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

/// The rule for names of streams.
pub(super) const NAMES: NameRule = NameRule {
    allows: |name| {
        (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with(STATE_PREFIX.as_bytes())
    },
    owner: "Redis",
    words: "1 to 1,024 bytes that do not begin with \"postrider:\"",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_take_the_usual_one() {
        for (text, shown) in [
            ("localhost", Some("localhost:6379")),
            (" redis.example:7000 ", Some("redis.example:7000")),
            ("[::1]", Some("[::1]:6379")),
            ("[::1]:7000", Some("[::1]:7000")),
            ("", None),
            (":6379", None),
            ("a:b", None),
            ("a:0", None),
            ("redis://a:6379", None),
            ("user@a", None),
        ] {
            let address = Address::parse(text, Address::PORT).map(|found| found.to_string());
            assert_eq!(address.as_deref(), shown, "{text:?}");
        }
    }

    #[test]
    fn names_of_the_progress_are_no_streams() {
        for (name, allowed) in [
            ("orders", true),
            ("{orders}:eu", true),
            ("postrider", true),
            ("", false),
            ("postrider:app:orders", false),
        ] {
            assert_eq!((NAMES.allows)(name.as_bytes()), allowed, "{name:?}");
        }
    }
}
