//! What an HTTP sink is opened with: the settings that its parts share.

use super::target::{self, Base, Target, TopicUse, is_private, literal_address};
use crate::tls::TlsFiles;
use postrider_core::secret_file::SecretFile;
use std::time::Duration;

/// The version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HttpVersion {
    /// HTTP/2 where TLS negotiates it.
    Auto,
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
}

impl HttpVersion {
    pub(super) const WORDS: [&str; 3] = ["auto", "1.1", "2"];
    const ALL: [Self; 3] = [Self::Auto, Self::One, Self::Two];

    pub(super) fn of(index: usize) -> Self {
        Self::ALL.get(index).copied().unwrap_or(Self::Auto)
    }

    pub(super) fn name(self) -> &'static str {
        let index = Self::ALL.iter().position(|word| *word == self);
        index.and_then(|index| Self::WORDS.get(index)).copied().unwrap_or_default()
    }
}

/// How the receiver knows the sender.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) enum HttpLogin {
    #[default]
    None,
    Bearer(SecretFile),
    Basic {
        username: String,
        password: SecretFile,
    },
    OAuth(OAuth),
}

/// OAuth2 client credentials.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct OAuth {
    pub(super) token_url: String,
    pub(super) client_id: String,
    pub(super) client_secret: SecretFile,
    pub(super) scope: String,
}

/// How long is waited, and how much is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HttpLimits {
    pub(super) concurrency: usize,
    pub(super) batch: usize,
    pub(super) batch_bytes: usize,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) retry_after_max: Duration,
}

/// What the sink is opened with.
#[derive(Clone, Debug)]
pub(super) struct HttpSpec {
    pub(super) base: Option<Base>,
    pub(super) topic: TopicUse,
    /// Private addresses are connected to.
    pub(super) private: bool,
    pub(super) content_type: String,
    pub(super) header_prefix: String,
    /// The beginning of each `webhook-id`.
    pub(super) identity: String,
    pub(super) limits: HttpLimits,
    pub(super) version: HttpVersion,
    pub(super) secret_file: Option<SecretFile>,
    pub(super) login: HttpLogin,
    pub(super) tls: TlsFiles,
    /// The operator's limit on the size of a record. Unit: bytes.
    pub(super) size_max: Option<usize>,
}

impl HttpSpec {
    /// Where requests of a destination go. None if the topic is no name of a destination.
    pub(super) fn target(&self, topic: &str) -> Option<Target> {
        Target::of((self.topic, self.base.as_ref()), topic)
    }

    /// Whether the topic is a URL of a private address, and such addresses are refused.
    pub(super) fn chooses_private(&self, topic: &str) -> bool {
        if self.topic != TopicUse::Url || self.private {
            return false;
        }
        let address = target::parse(topic).ok().and_then(|uri| literal_address(&uri));
        address.is_some_and(is_private)
    }
}
