//! Logical replication from PostgreSQL: the replication connection, the messages of `pgoutput`, and nothing above them.
//!
//! Without the feature `client` the crate has [`lsn`], [`timestamp`] and [`pgoutput`] alone: what a server sends can be
//! read without a socket.

pub mod lsn;
pub mod pgoutput;
pub mod secret_file;
pub mod timestamp;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
pub mod conninfo;
#[cfg(feature = "client")]
pub mod error;
#[cfg(feature = "client")]
pub mod handshake;
#[cfg(feature = "client")]
mod tls;
#[cfg(feature = "client")]
pub mod transport;
#[cfg(feature = "client")]
pub mod wal;

#[cfg(feature = "client")]
pub use client::connect_client;
#[cfg(feature = "client")]
pub use conninfo::{Conninfo, ConninfoError};
#[cfg(feature = "client")]
pub use error::{ServerReport, SourceError, SourceErrorKind, SqlState, Statement};
#[cfg(feature = "client")]
pub use transport::Transport;
#[cfg(feature = "client")]
pub use wal::{Batch, Frame, StartReplication, Switch, WalConnection, WalStream};
