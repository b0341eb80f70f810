//! A row or logical message to the record that a sink publishes.
//!
//! Owns the layouts, the columns' roles, templates, headers, timestamps and payloads. Refuses to know sockets, brokers,
//! LSN arithmetic and what happens to an event that can't be published: it says why ([`Poison`]) and `relay` decides.
//! Nothing is allocated for an event unless it has more than eight headers: a record borrows from the row's bytes and
//! from the [`Mapper`].

mod clock;
mod debezium;
mod encoding;
mod error;
mod headers;
mod json;
mod layout;
mod mapper;
mod message;
mod payload;
mod pieces;
mod position;
mod relations;
mod remains;
mod replace;
mod route;
mod shape;
mod span;
mod spec;
mod template;
mod time;
mod trace;
mod types;
mod work;

#[cfg(test)]
mod tests;

pub use encoding::Encoding;
pub use error::{MapError, Poison, Problem, Remains, SpecError, Unfit};
pub use layout::{Layout, Role};
pub use mapper::{At, Mapped, Mapper};
pub use pieces::TopicPiece;
pub use position::of_retried;
pub use spec::{
    Extra, NullPayload, OnUpdate, OutboxSpec, Placement, Replace, StandardHeaders, TableName,
    TimestampSource,
};
pub use types::{ColumnType, TypeFacts};
