//! A row or logical message to the record that a sink publishes.
//!
//! Owns the layouts, the columns' roles, templates, headers, timestamps and payloads. Refuses to know sockets, brokers,
//! LSN arithmetic and what happens to an event that can't be published: it says why ([`Poison`]) and `relay` decides.
//! Nothing is allocated for an event unless it has more than eight headers: a record borrows from the row's bytes and
//! from the [`Mapper`].

mod debezium;
mod encoding;
mod error;
mod headers;
mod json;
mod layout;
mod mapper;
mod route;
mod span;
mod spec;
mod time;
mod types;

#[cfg(test)]
mod tests;

pub use encoding::Encoding;
pub use error::{MapError, PartialEvent, Poison, Problem, SpecError, Unfit};
pub use headers::set_retry_position;
pub use layout::{Layout, Role};
pub use mapper::{At, Mapped, Mapper};
pub use route::TopicPart;
pub use spec::{
    Extra, NullPayload, OnUpdate, OutboxSpec, Placement, Replace, StandardHeaders, TableName,
    TimestampSource,
};
pub use types::{ColumnType, TypeFacts};
