//! What an error means: by JetStream's code and by the request that it answers, never by text.

use super::api::{ApiError, ErrCode};
use super::login::LoginError;
use super::spec::NatsSpec;
use async_nats::{ConnectError, ConnectErrorKind};
use postrider_core::error::Chain as Causes;

/// What a refused message means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NatsVerdict {
    /// The stream does not end where the chain expected it: what it has is read back.
    Chain,
    /// This message alone.
    TooLarge,
    /// No stream takes the subject, or another one does.
    Subject,
    /// The stream or the server accepts nothing now.
    Wait,
}

impl NatsVerdict {
    pub(super) fn of(error: &ApiError) -> Self {
        match error.err_code {
            ErrCode::WRONG_LAST_SEQUENCE | ErrCode::WRONG_LAST_MSG_ID => Self::Chain,
            ErrCode::TOO_LARGE => Self::TooLarge,
            ErrCode::OTHER_STREAM | ErrCode::NO_RESPONDERS => Self::Subject,
            _ => Self::Wait,
        }
    }
}

/// A problem of the server, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NatsProblem {
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

impl NatsProblem {
    pub(super) fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: Some(hint.into()) }
    }

    /// No connection.
    pub(super) fn connect(address: &str, error: &ConnectError) -> Self {
        let hint = match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                "correct the login in [sink.nats] (user and password_file, token_file, nkey_file or credentials_file), \
                 or give the user its rights in the server's configuration; the sink tries again automatically"
            }
            ConnectErrorKind::Tls => {
                "correct sink.nats.ca_file, or let sink.nats.url have the host name of the server's certificate"
            }
            ConnectErrorKind::Dns | ConnectErrorKind::ServerParse => "correct sink.nats.url",
            ConnectErrorKind::TimedOut | ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => {
                "start the server, or correct sink.nats.url; the sink connects again automatically"
            }
        };
        Self::new(format!("NATS at {address}: {}", Causes(error)), hint)
    }

    /// Nothing to log in with.
    pub(super) fn login(error: &LoginError) -> Self {
        Self::new(error.to_string(), "correct the file; it is read again at each attempt")
    }

    /// No answer of JetStream to a request about the stream.
    pub(super) fn request(subject: &str, error: &async_nats::RequestError) -> Self {
        use async_nats::RequestErrorKind as Kind;
        let hint = match error.kind() {
            Kind::NoResponders => {
                "enable JetStream on the server (jetstream { store_dir: … }) and for the account of this login"
            }
            Kind::TimedOut => {
                "the server is overloaded, or has no leader, or the login may not publish to this subject: its rights \
                 are in docs/sinks/nats.md"
            }
            Kind::InvalidSubject | Kind::MaxPayloadExceeded | Kind::Other => {
                "see the server's log; the sink tries again automatically"
            }
        };
        Self::new(format!("no answer to {subject}: {error}"), hint)
    }

    /// An answer that is an error.
    pub(super) fn answer(what: &str, error: &ApiError, spec: &NatsSpec) -> Self {
        let stream = &spec.stream;
        let hint = match error.err_code {
            ErrCode::NOT_ENABLED | ErrCode::NOT_ENABLED_FOR_ACCOUNT => {
                "enable JetStream on the server (jetstream { store_dir: … }) and for the login's account"
                    .to_owned()
            }
            ErrCode::STREAM_NOT_FOUND => format!("create the stream: nats stream add {stream}"),
            ErrCode::STORE_FAILED => format!(
                "stream {stream} is full: let consumers remove messages, or raise its max_msgs, max_bytes or \
                 max_msgs_per_subject (nats stream edit {stream}); the sink continues automatically"
            ),
            ErrCode::SEALED => format!(
                "stream {stream} is sealed and can't be opened again: let sink.nats.stream name another stream"
            ),
            _ => "see the server's log; the sink tries again automatically".to_owned(),
        };
        let ApiError { err_code, description, .. } = error;
        Self::new(format!("{what}: {description} (code {err_code})"), hint)
    }

    /// The server has taken the right to publish away, or never gave it. It does not answer such a message.
    pub(super) fn denied(words: &str) -> Self {
        let hint = "let the login publish to the subjects of the route: permissions { publish: { allow: \
                    [\"SUBJECT\"] } } in the server's configuration; the sink tries again automatically";
        Self::new(format!("the server refuses a message: {words}"), hint)
    }
}

/// The hint of a sink, with the names that the keys have in the table of a source.
pub(super) fn in_words_of_sources(hint: &str) -> String {
    hint.replace("[sink.nats]", "[inboxes.NAME.source.nats]")
        .replace("sink.nats.", "source.nats.")
        .replace("the sink", "the intake")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_decide() {
        for (err_code, verdict) in [
            (10_071, NatsVerdict::Chain),
            (10_070, NatsVerdict::Chain),
            (10_054, NatsVerdict::TooLarge),
            (10_060, NatsVerdict::Subject),
            (503, NatsVerdict::Subject),
            (10_077, NatsVerdict::Wait),
            (10_109, NatsVerdict::Wait),
            (10_008, NatsVerdict::Wait),
            (99_999, NatsVerdict::Wait),
        ] {
            let error = ApiError { err_code, ..ApiError::default() };
            assert_eq!(NatsVerdict::of(&error), verdict, "{err_code}");
        }
    }
}
