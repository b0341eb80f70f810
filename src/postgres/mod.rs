//! PostgreSQL: the replication connection, which is ours, and the control connection, which is `tokio-postgres`' over
//! the same transport and the same login.
//!
//! Knows nothing of brokers or of the relay. WAL leaves as batches of frames ([`wal`]); `pgoutput` reads them next.

mod auth;
pub mod client;
pub mod conninfo;
pub mod error;
mod handshake;
mod tls;
pub mod transport;
pub mod wal;
mod wire;

pub use client::connect_client;
pub use conninfo::{Conninfo, ConninfoError};
pub use error::{ServerReport, SourceError, SourceErrorKind, SqlState, Statement};
pub use names::{Names, TableName};
pub use transport::Transport;
pub use wal::{Batch, Frame, StartReplication, Switch, WalConnection, WalStream};

// Control: what stands on the server, whether and where a stream may start, and how it is set up.
pub mod action;
pub mod belongs;
pub mod bookmark;
pub mod control;
pub mod cursor;
pub mod fence;
pub mod locks;
pub mod names;
pub mod ownership;
pub mod parked;
pub mod pipeline_lock;
pub mod poll;
pub mod preflight;
pub mod publication;
pub mod repair;
pub mod replay;
pub mod schema;
pub mod server;
pub mod setup;
pub mod slot;
pub mod table;
pub mod times;
pub mod types;
