//! Turns a row of the outbox table, or a logical message, into the record that a sink publishes: layouts, roles of
//! columns, templates, headers, timestamps and payloads.
//!
//! An event that can't be published is returned as [`Poison`], with the reason; the relay decides what to do with it.
//! An event with at most eight headers needs no allocation: the record borrows from the row's bytes and from the
//! [`Mapper`].

mod cells;
mod debezium;
mod error;
mod headers;
mod json;
mod layout;
mod mapper;
mod route;
mod row_state;
mod spec;
mod time;

#[cfg(test)]
mod tests;

pub use error::{EventKept, MapError, PartialEvent, Poison, Problem, SpecError, Unfit};
pub use headers::set_retry_position;
pub use layout::{Layout, Role};
pub use mapper::{At, DeclaredColumn, Mapped, Mapper};
pub use route::TopicPart;
pub use spec::{
    Extra, NullPayload, OnUpdate, OutboxSpec, Placement, Replace, StandardHeaders, TableName,
    TimestampSource,
};
