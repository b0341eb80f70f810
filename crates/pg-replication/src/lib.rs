//! A client for PostgreSQL's logical replication: connection strings, login, the replication stream, and a decoder for
//! `pgoutput` (protocol version 1). Supports PostgreSQL 15 to 18.
//!
//! The feature `client` (default) has everything that needs a socket. Without it the crate has [`lsn`], [`timestamp`]
//! and [`pgoutput`]: enough to decode messages that were received by other means.
//!
//! The README has an example; `examples/stream.rs` is the whole program.

pub mod lsn;
pub mod pgoutput;
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
pub mod stream;
#[cfg(feature = "client")]
mod tls;
#[cfg(feature = "client")]
pub mod transport;

#[cfg(feature = "client")]
pub use client::connect_client;
#[cfg(feature = "client")]
pub use conninfo::{Conninfo, ConninfoError};
#[cfg(feature = "client")]
pub use error::{ServerReport, SourceError, SourceErrorKind, SqlState};
#[cfg(feature = "client")]
pub use stream::{Batch, Frame, StartReplication, TimelineSwitch, WalConnection, WalStream};
#[cfg(feature = "client")]
pub use transport::Transport;
