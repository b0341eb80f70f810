//! What a failure of the server, of the connection or of a stream means: by the code of the stream protocol and by the
//! request that it answers, never by text.

use super::codec::{
    ACCESS_REFUSED, LOGIN_NOT_LOCAL, LOGIN_REFUSED, NO_STREAM, NO_VIRTUAL_HOST, NOT_AVAILABLE,
    PRECONDITION_FAILED, StreamClose,
};
use crate::rabbitmq::commands::{allow_streams, declare_stream};
use crate::rabbitmq::spec::RabbitSpec;
use std::io;

/// What the sink was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamStep {
    /// Reaching the server, and agreeing on TLS.
    Connect,
    /// The login.
    Login,
    /// Opening the virtual host.
    Open,
    /// Asking for the stream's leader.
    Find,
    /// Declaring the publisher.
    Declare,
    /// Publishing, or waiting for confirms.
    Publish,
    /// Declaring a stream for the operator.
    Create,
}

/// A failure with its meaning. After each one the connection is given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StreamProblem {
    pub(super) step: StreamStep,
    /// The server's code; `None` if the connection failed.
    pub(super) code: Option<u16>,
    /// It is one of this stream, and others may accept records.
    pub(super) of_stream: bool,
    /// The failure, in one line.
    pub(super) reason: String,
    /// How to fix it.
    pub(super) hint: Option<String>,
}

impl StreamProblem {
    /// The connection failed.
    pub(super) fn io(step: StreamStep, place: &str, error: &io::Error) -> Self {
        let (doing, hint) = match step {
            StreamStep::Connect => (
                "could not connect to",
                Some(
                    "start the server with the plugin rabbitmq_stream: rabbitmq-plugins enable rabbitmq_stream",
                ),
            ),
            StreamStep::Login | StreamStep::Open => ("could not log in to", None),
            StreamStep::Find | StreamStep::Declare | StreamStep::Publish | StreamStep::Create => {
                ("lost the connection to", None)
            }
        };
        Self {
            step,
            code: None,
            of_stream: false,
            reason: format!("{doing} RabbitMQ's streams at {place}: {error}"),
            hint: hint.map(str::to_owned),
        }
    }

    /// The sink has found it itself.
    pub(super) fn new(step: StreamStep, reason: impl Into<String>, hint: Option<String>) -> Self {
        Self { step, code: None, of_stream: false, reason: reason.into(), hint }
    }

    /// The server has closed the connection.
    pub(super) fn closed(step: StreamStep, place: &str, close: &StreamClose) -> Self {
        let StreamClose { code, text, .. } = close;
        let reason =
            format!("RabbitMQ at {place} has closed the connection with code {code}: {text}");
        // It stops, or an administrator has closed the connection.
        let hint = "the sink connects again automatically".to_owned();
        Self { step, code: None, of_stream: false, reason, hint: Some(hint) }
    }

    /// The answer to a request is a refusal. `stream`: the one that it is about.
    pub(super) fn refused(step: StreamStep, code: u16, stream: &str, spec: &RabbitSpec) -> Self {
        let place = spec.address.place();
        let (user, vhost) = (spec.address.user_shown(), &spec.address.vhost);
        let of_stream = code != PRECONDITION_FAILED
            && matches!(
                step,
                StreamStep::Find | StreamStep::Declare | StreamStep::Publish | StreamStep::Create
            );
        let (what, hint) = match (step, code) {
            (StreamStep::Login, LOGIN_REFUSED | LOGIN_NOT_LOCAL) => (
                format!("RabbitMQ at {place} refuses the login of user {user}"),
                format!(
                    "correct the user in sink.rabbitmq.url and the password in sink.rabbitmq.password_file: \
                     rabbitmqctl change_password {user} PASSWORD; the sink tries again automatically"
                ),
            ),
            (_, NO_VIRTUAL_HOST) => (
                format!(
                    "RabbitMQ at {place} does not give user {user} access to virtual host {vhost:?}"
                ),
                format!(
                    "create the virtual host, or correct it in sink.rabbitmq.url, and give the user its rights: {}",
                    allow_streams(spec)
                ),
            ),
            (_, NO_STREAM) => (
                format!("stream {stream:?} does not exist in virtual host {vhost:?}"),
                format!("declare the stream: {}", declare_stream(vhost, stream)),
            ),
            (_, NOT_AVAILABLE) => (
                format!("stream {stream:?} is not available: it has no leader"),
                format!(
                    "start the nodes of its members; the sink tries again automatically. To see them: \
                     rabbitmq-streams stream_status {stream}"
                ),
            ),
            (_, ACCESS_REFUSED) => (
                format!("user {user} may not write to stream {stream:?}"),
                format!("let the user write to it: {}", allow_streams(spec)),
            ),
            (_, PRECONDITION_FAILED) => (
                format!("RabbitMQ at {place} accepts no publisher because of an alarm"),
                "free memory or disk space of the server: rabbitmq-diagnostics alarms".to_owned(),
            ),
            (_, _) => (
                format!("RabbitMQ at {place} refuses stream {stream:?}"),
                "look into the server's log; the sink tries again automatically".to_owned(),
            ),
        };
        let reason = format!("{what} (code {code})");
        Self { step, code: Some(code), of_stream, reason, hint: Some(hint) }
    }
}
