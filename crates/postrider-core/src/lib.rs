//! The types that every part of Postrider uses, and the interfaces between the parts.

pub mod backoff;
pub mod error;
pub mod event;
pub mod finding;
pub mod mailbox;
pub mod parked;
pub mod record;
pub mod sink;
pub mod status;
pub mod zone;

pub use pg_replication::{lsn, secret_file};
