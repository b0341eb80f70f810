//! PostgreSQL: the replication connection, which is ours, and the control connection, which is `tokio-postgres`' over
//! the same transport and the same login.
//!
//! Knows nothing of brokers or of the relay. WAL leaves as batches of frames ([`stream`]); `pgoutput` reads them next.

pub use names::{Names, TableName};
pub use pg_replication::{
    Batch, Conninfo, ConninfoError, Frame, ServerReport, SourceError, SourceErrorKind, SqlState,
    StartReplication, TimelineSwitch, Transport, WalConnection, WalStream, client, connect_client,
    conninfo, error, handshake, stream, transport,
};
pub use statement::{Statement, StatementError};

// Control: what stands on the server, whether and where a stream may start, and how it is set up.
pub mod catalog;
pub mod control;
pub mod error_policy;
pub mod locks;
pub mod names;
pub mod ownership;
pub mod pipeline_lock;
pub mod poll;
pub mod preflight;
pub mod repair;
pub mod replay;
pub mod schema;
pub mod setup;
pub mod start;
pub mod statement;
pub mod store;
pub mod times;
