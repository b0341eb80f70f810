//! What a failure of the server or of the connection means: by RabbitMQ's code and by the request that it answers,
//! never by text.

use super::codec::ServerClose;
use super::commands::set_permissions;
use super::spec::RabbitSpec;
use std::io;

/// What the sink was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RabbitStep {
    /// Reaching the server, and agreeing on TLS.
    Connect,
    /// The login.
    Login,
    /// Opening the virtual host.
    Open,
    /// Declaring the exclusive queue.
    Lock,
    /// Looking the exchange up.
    Exchange,
    /// Publishing, or waiting for confirms.
    Publish,
    /// Looking a queue up.
    Queue,
    /// Reading a queue.
    Consume,
    /// Declaring a queue or a binding for the operator.
    Create,
}

/// RabbitMQ's codes.
pub(super) const ACCESS_REFUSED: u16 = 403;
pub(super) const NOT_FOUND: u16 = 404;
/// Another connection has the exclusive queue.
pub(super) const RESOURCE_LOCKED: u16 = 405;
pub(super) const PRECONDITION_FAILED: u16 = 406;
/// The server stops, or an administrator has closed the connection.
const CONNECTION_FORCED: u16 = 320;
const FRAME_ERROR: u16 = 501;
const NOT_ALLOWED: u16 = 530;

/// A failure with its meaning. After each one the connection is given up, and the sink connects again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RabbitProblem {
    pub(super) step: RabbitStep,
    /// The server's code; `None` if the connection failed.
    pub(super) code: Option<u16>,
    /// The failure, in one line.
    pub(super) reason: String,
    /// How to fix it.
    pub(super) hint: Option<String>,
}

impl RabbitProblem {
    /// The connection failed.
    pub(super) fn io(step: RabbitStep, place: &str, error: &io::Error) -> Self {
        let doing = match step {
            RabbitStep::Connect => "could not connect to",
            RabbitStep::Login | RabbitStep::Open => "could not log in to",
            RabbitStep::Lock
            | RabbitStep::Exchange
            | RabbitStep::Queue
            | RabbitStep::Consume
            | RabbitStep::Publish
            | RabbitStep::Create => "lost the connection to",
        };
        Self {
            step,
            code: None,
            reason: format!("{doing} RabbitMQ at {place}: {error}"),
            hint: None,
        }
    }

    /// The sink has found it itself.
    pub(super) fn new(step: RabbitStep, reason: impl Into<String>, hint: Option<String>) -> Self {
        Self { step, code: None, reason: reason.into(), hint }
    }

    /// Whether the connection has ended for a reason that is not the sink's.
    pub(super) fn is_of_connection(&self) -> bool {
        matches!(self.code, None | Some(CONNECTION_FORCED))
    }

    /// The server has closed the connection or a channel.
    pub(super) fn closed(step: RabbitStep, close: &ServerClose, spec: &RabbitSpec) -> Self {
        let ServerClose { code, text } = close;
        let place = spec.address.place();
        let hint = hint(step, *code, spec);
        let reason = format!("RabbitMQ at {place} answered {code}: {text}");
        Self { step, code: Some(*code), reason, hint }
    }
}

fn hint(step: RabbitStep, code: u16, spec: &RabbitSpec) -> Option<String> {
    let (user, vhost) = (spec.address.user_shown(), &spec.address.vhost);
    let exchange = spec.rules.exchange_shown();
    Some(match (step, code) {
        (RabbitStep::Login, ACCESS_REFUSED) => format!(
            "correct the user in sink.rabbitmq.url and the password in sink.rabbitmq.password_file: rabbitmqctl \
             change_password {user} PASSWORD; the sink tries again automatically"
        ),
        (RabbitStep::Open, NOT_ALLOWED | NOT_FOUND | ACCESS_REFUSED) => format!(
            "create the virtual host, or correct it in sink.rabbitmq.url, and give the user its rights: {}",
            set_permissions(spec)
        ),
        (RabbitStep::Lock, ACCESS_REFUSED) => format!(
            "let the user declare its lock queue: {}; or set sink.rabbitmq.lock_queue = \"none\"",
            set_permissions(spec)
        ),
        (RabbitStep::Exchange | RabbitStep::Publish, NOT_FOUND) => format!(
            "declare {exchange} in virtual host {vhost:?}, or correct sink.rabbitmq.exchange; the sink tries again \
             automatically"
        ),
        (RabbitStep::Publish, ACCESS_REFUSED) => {
            format!("let the user write to {exchange}: {}", set_permissions(spec))
        }
        (RabbitStep::Publish, PRECONDITION_FAILED) => {
            "set sink.rabbitmq.message_bytes_max to the server's max_message_size".to_owned()
        }
        (_, CONNECTION_FORCED) => {
            "the server stops, or an administrator has closed the connection; the sink connects again automatically"
                .to_owned()
        }
        (_, FRAME_ERROR) => "report this as a bug of Postrider, with the server's log".to_owned(),
        _ => return None,
    })
}

/// The hint of a sink, with the names that the keys have in the table of a source.
pub(super) fn in_words_of_sources(hint: &str) -> String {
    hint.replace("sink.rabbitmq.", "source.rabbitmq.").replace("the sink", "the intake")
}
