//! What a RabbitMQ sink publishes, and where: the settings that its parts share.

use super::codec::SHORT_MAX;
use crate::tls::TlsFiles;
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::NameRule;
use std::fmt;
use std::time::Duration;

/// A server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RabbitHost {
    pub(super) name: String,
    pub(super) port: u16,
}

impl fmt::Display for RabbitHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            return write!(f, "[{}]:{}", self.name, self.port);
        }
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// What is spoken with the servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    /// AMQP 0-9-1: exchanges and queues.
    Amqp,
    /// The stream protocol.
    Stream,
}

impl Protocol {
    /// The words of `protocol`, in the order of the values.
    pub(super) const WORDS: [&str; 2] = ["amqp", "stream"];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Amqp => Self::WORDS[0],
            Self::Stream => Self::WORDS[1],
        }
    }

    /// The port where the address has none.
    const fn port(self, tls: bool) -> u16 {
        match (self, tls) {
            (Self::Amqp, false) => 5672,
            (Self::Amqp, true) => 5671,
            (Self::Stream, false) => 5552,
            (Self::Stream, true) => 5551,
        }
    }
}

/// Where a password is.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum PasswordSource {
    /// It stands in the address.
    Text(String),
    /// It is read at each login.
    File(SecretFile),
}

/// The addresses, and what a connection is opened with. `Debug` shows no password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RabbitAddress {
    pub(super) hosts: Vec<RabbitHost>,
    pub(super) tls: bool,
    pub(super) protocol: Protocol,
    /// `None`: the client's certificate is the login.
    pub(super) user: Option<String>,
    pub(super) password: PasswordSource,
    pub(super) vhost: String,
}

impl fmt::Debug for RabbitAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitAddress")
            .field("hosts", &self.hosts)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("vhost", &self.vhost)
            .finish_non_exhaustive()
    }
}

impl RabbitAddress {
    /// The servers, for messages.
    pub(super) fn place(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(", ")
    }

    /// The login, for messages.
    pub(super) fn user_shown(&self) -> &str {
        self.user.as_deref().unwrap_or("of the certificate")
    }

    /// Reads `amqp://user:password@host:port,host:port/vhost`. The scheme says which protocol is spoken.
    ///
    /// # Errors
    /// Why it can't be read, without the text itself, which may have a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.trim().split_once("://").ok_or("it has no scheme")?;
        let (protocol, tls) = match scheme {
            "amqp" => (Protocol::Amqp, false),
            "amqps" => (Protocol::Amqp, true),
            "rabbitmq-stream" => (Protocol::Stream, false),
            "rabbitmq-stream+tls" => (Protocol::Stream, true),
            _ => {
                let schemes = "amqp, amqps, rabbitmq-stream or rabbitmq-stream+tls";
                return Err(format!("its scheme is none of {schemes}"));
            }
        };
        let (authority, vhost) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, "")))
        {
            Some((user, password)) => (Some(decoded(user)?), decoded(password)?),
            None => (None, String::new()),
        };
        if vhost.contains(['/', '?']) {
            return Err(
                "its virtual host has a character that must be written as %2f or %3f".into()
            );
        }
        let vhost = if vhost.is_empty() { "/".to_owned() } else { decoded(vhost)? };
        if vhost.len() > SHORT_MAX {
            return Err("its virtual host is longer than 255 bytes".to_owned());
        }
        let default_port = protocol.port(tls);
        let hosts: Result<Vec<_>, _> =
            hosts.split(',').map(|host| parse_host(host, default_port)).collect();
        let password = PasswordSource::Text(password);
        Ok(Self { hosts: hosts?, tls, protocol, user, password, vhost })
    }
}

fn parse_host(text: &str, default_port: u16) -> Result<RabbitHost, String> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or("an IPv6 address has no closing ]")?;
            (name, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    if name.is_empty() {
        return Err("a host is empty".to_owned());
    }
    let port = match port {
        None => default_port,
        Some(port) => port.parse().map_err(|error| format!("a port is no number: {error}"))?,
    };
    Ok(RabbitHost { name: name.to_owned(), port })
}

/// The text with each `%XX` replaced by its byte.
fn decoded(text: &str) -> Result<String, String> {
    let broken = || "it has a % that is not followed by two hexadecimal digits".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            let digit = rest.next().and_then(|digit| char::from(digit).to_digit(16));
            digit.and_then(|digit| u8::try_from(digit).ok()).ok_or_else(broken)
        };
        bytes.push(digit()? * 16 + digit()?);
    }
    String::from_utf8(bytes).map_err(|_invalid| "a part of it is not UTF-8".to_owned())
}

/// What decides about a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MessageRules {
    /// The exchange; empty for the default exchange, whose routing keys are names of queues.
    pub(super) exchange: String,
    pub(super) content_type: String,
    /// The server's limit on a payload.
    pub(super) message_bytes_max: usize,
    /// The operator's limit on key, value and headers.
    pub(super) size_max: Option<usize>,
}

impl MessageRules {
    /// The exchange, for messages.
    pub(super) fn exchange_shown(&self) -> String {
        match self.exchange.as_str() {
            "" => "the default exchange".to_owned(),
            name => format!("exchange {name:?}"),
        }
    }
}

/// What the sink is opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RabbitSpec {
    pub(super) address: RabbitAddress,
    pub(super) files: TlsFiles,
    pub(super) pipeline: String,
    pub(super) rules: MessageRules,
    /// Messages without a confirm; of streams, for each stream.
    pub(super) window: usize,
    pub(super) heartbeat: Duration,
    /// The name of the exclusive queue that lets one connection publish at a time; `None` if there is none.
    pub(super) lock_queue: Option<String>,
    /// The first part of the name under which events are published to streams.
    pub(super) publisher: String,
}

/// What `postrider setup` creates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CreateQueues {
    pub(super) queue_type: &'static str,
    pub(super) exchange_type: &'static str,
}

/// Whether a topic can be a routing key.
fn is_routing_key(name: &[u8]) -> bool {
    (1..=SHORT_MAX).contains(&name.len())
}

/// The rule for routing keys.
pub(super) const NAMES: NameRule =
    NameRule { allows: is_routing_key, owner: "RabbitMQ", words: "1 to 255 bytes" };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_hosts_login_and_virtual_host() {
        let address = RabbitAddress::parse("amqps://u%40x:p%3Aw@a,b:7,[::1]:8/shop%2f1").unwrap();
        assert_eq!(address.place(), "a:5671, b:7, [::1]:8");
        assert_eq!((address.user.as_deref(), address.vhost.as_str()), (Some("u@x"), "shop/1"));
        assert!(address.password == PasswordSource::Text("p:w".to_owned()));
        let shown = format!("{address:?}");
        assert!(!shown.contains("p:w"), "{shown}");
        let shown =
            |url| RabbitAddress::parse(url).map(|address| (address.place(), address.protocol));
        let stream = |place: &str| Ok((place.to_owned(), Protocol::Stream));
        assert_eq!(shown("rabbitmq-stream://h"), stream("h:5552"));
        assert_eq!(shown("rabbitmq-stream+tls://h"), stream("h:5551"));
        for (url, vhost) in [("amqp://h", "/"), ("amqp://h/", "/"), ("amqp://h/%2f", "/")] {
            let address = RabbitAddress::parse(url).unwrap();
            assert_eq!((address.place().as_str(), address.vhost.as_str()), ("h:5672", vhost));
            assert_eq!(address.user, None);
        }
        for url in ["h:5672", "http://h", "amqp://", "amqp://h:x", "amqp://h/a/b", "amqp://h/%2"] {
            assert!(RabbitAddress::parse(url).is_err(), "{url}");
        }
    }
}
