//! PostgreSQL as a source: catalog, start check, setup, repair, polling, and Postrider's own tables. The replication
//! connection comes from `pg_replication`; the control connection is a `tokio-postgres` client over the same transport
//! and login.

pub use change_reader::ChangeReader;
pub use decoder::{DecodedBatch, Decoder, EventObjects};
pub use encoding::Encoding;
pub use names::{CapturedTable, Names, TableName};
pub use pg_replication::{
    Batch, Conninfo, ConninfoError, Frame, ServerReport, SourceError, SourceErrorKind, SqlState,
    StartReplication, TimelineSwitch, Transport, WalConnection, WalStream, client, connect_client,
    conninfo, error, handshake, stream, transport,
};
pub use statement::{Statement, StatementError};
pub use wire::Lsn;

pub mod capture;
pub mod catalog;
mod change_reader;
pub mod control;
mod decoder;
mod encoding;
pub mod error_policy;
pub mod find;
pub mod lock_holders;
pub mod names;
pub mod pipeline_lock;
pub mod poll;
pub mod preflight;
pub mod publication_version;
pub mod repair;
pub mod replay;
pub mod retention;
pub mod schema;
pub mod schema_owner;
pub mod setup;
pub mod start;
pub mod statement;
pub mod store;
pub mod tail;
pub mod times;
pub mod toolkit;
pub mod value_types;
pub mod wire;
