//! The types that every part of Postrider uses, and the interfaces between the parts.

pub mod backoff;
pub mod delta;
pub mod error;
pub mod event;
pub mod finding;
pub mod intake_status;
pub mod mailbox;
pub mod offset;
pub mod outbox_rows;
pub mod parked;
pub mod publications;
pub mod record;
pub mod row;
pub mod row_buffer;
pub mod row_state;
pub mod sink;
mod sink_transaction;
pub mod source;
pub mod status;
pub mod store;
pub mod timestamp;
pub mod units;
pub mod zone;

pub use secret_file;
