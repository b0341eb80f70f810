//! The running of intakes, `postrider inbox run`: messages of a broker, or of webhooks, are stored in inboxes, each
//! once.
//!
//! The crate `postrider-inbox` has the parts: what a message is made of, and the transaction that stores it. Here is
//! the loop around them, a thread for each intake, with its status and its log lines.

#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod acked;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod maintenance;
#[cfg_attr(
    not(all(feature = "admin", feature = "kafka")),
    expect(dead_code, reason = "each source calls a part of it")
)]
mod observer;
#[cfg(feature = "kafka")]
mod partitions;
#[cfg(any(feature = "admin", feature = "kafka"))]
#[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "webhooks use the rest of it"))]
mod room;
mod service;
mod spec;
#[cfg(feature = "admin")]
mod webhook;
#[cfg(any(feature = "admin", feature = "kafka"))]
#[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "Kafka uses the rest of it"))]
mod writer;

#[cfg(feature = "kafka")]
pub use maintenance::IntakeMaintenance;
pub use service::{IntakeExit, IntakeService};
pub use spec::{IntakeSource, IntakeSpec};

#[cfg(any(feature = "admin", feature = "kafka"))]
use crate::postgres::SourceError;
#[cfg(any(feature = "admin", feature = "kafka"))]
use crate::postgres::names::literal;

/// What fixes an error of the inbox's database, by its SQLSTATE and the statements of an intake; `None` if the general
/// hint is right.
#[cfg(any(feature = "admin", feature = "kafka"))]
pub(crate) fn hint(error: &SourceError, inbox: &str) -> Option<String> {
    match error.sqlstate()?.as_str() {
        "PR121" => Some(format!("create the inbox: postrider inbox create {inbox}")),
        "PR124" => Some(
            "an intake needs an inbox that postrider created: postrider inbox create NAME, and `inbox` in the \
             configuration"
                .to_owned(),
        ),
        // No such schema, table, function or column.
        "3F000" | "42P01" | "42883" | "42703" => Some(
            "install the SQL toolkit of this version in the inbox's database, as an administrator: postrider sql \
             --install --url ADMIN_URL --worker ROLE, with the role of this intake"
                .to_owned(),
        ),
        // The installation grants the rights on the tables of inboxes too, but only where its login may.
        "42501" => Some(format!(
            "give the role of this intake the rights of a worker, as an administrator: postrider sql --install --url \
             ADMIN_URL --worker ROLE\nif the inbox belongs to another role, that role grants the rights on its table: \
             SELECT postrider.inbox_grant({});",
            literal(inbox)
        )),
        _ => {
            // One that is checked when the transaction is committed, so that no message is known to be the reason.
            let constraint = error.report()?.constraint.as_ref()?;
            Some(format!(
                "constraint \"{constraint}\" of inbox {inbox}, which is checked at the commit, refuses a message: \
                 change it to NOT DEFERRABLE, so that only that message is refused, or drop it"
            ))
        }
    }
}
