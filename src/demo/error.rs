//! Why there was no demo, and what mends it.

use super::binaries::BIN_VARIABLE;
use crate::postgres::{ConninfoError, SourceError};
use rdkafka::error::KafkaError;
use std::io;
use std::path::PathBuf;

/// What ends a demo before its ledger.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says it")]
pub enum DemoError {
    #[error("could not use {}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("found no PostgreSQL server programs (initdb, postgres)")]
    NoServer,
    #[error("{BIN_VARIABLE} names {}, where initdb and postgres are not", .directory.display())]
    NoServerIn { directory: PathBuf },
    #[error("the PostgreSQL in {} is {version}; 14 is the oldest that will do", .directory.display())]
    ServerTooOld { directory: PathBuf, version: String },
    #[error(
        "PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as"
    )]
    NoServerUser,
    #[error("could not run {}", .path.display())]
    ServerProgram { path: PathBuf, source: io::Error },
    #[error("initdb failed; the end of its log:{log}")]
    Initdb { log: String },
    #[error("the throwaway PostgreSQL did not start; the end of its log:{log}")]
    ServerStart { log: String },
    #[error("the throwaway PostgreSQL has exited; the end of its log:{log}")]
    ServerEnded { log: String },
    #[error("the throwaway PostgreSQL did not stop within {seconds} s; the end of its log:{log}")]
    ServerStop { seconds: u64, log: String },
    #[error("--url can't be used")]
    Url(#[source] ConninfoError),
    #[error("could not connect to the database")]
    Connect(#[source] SourceError),
    #[error("the database closed the connection")]
    Closed,
    #[error("the database refused a statement")]
    Sql(#[source] tokio_postgres::Error),
    #[error("could not drop everything named {name} from your database")]
    LeftBehind {
        name: String,
        #[source]
        source: Option<Box<Self>>,
    },
    #[error("could not start the mock broker")]
    Mock(#[source] KafkaError),
    #[error("could not make or delete topic \"{topic}\" at {brokers}")]
    Topic { topic: String, brokers: String, source: KafkaError },
    #[error("could not start the reader")]
    Reader(#[source] KafkaError),
    #[error("could not find a free port on 127.0.0.1")]
    Port(#[source] io::Error),
    #[error("could not start {}", .path.display())]
    Spawn { path: PathBuf, source: io::Error },
    #[error("could not wait for or signal a process of the demo")]
    Wait(#[source] io::Error),
    #[error("could not start a thread")]
    Thread(#[source] io::Error),
    #[error("the demo's {0} died")]
    Died(&'static str),
    #[error("postrider setup failed ({status}); the end of its log:{log}")]
    Setup { status: String, log: String },
    #[error("the relay was not streaming within {seconds} s ({state}); the end of its log:{log}")]
    RelayNotReady { seconds: u64, state: String, log: String },
    #[error("the relay has exited ({status}); the end of its log:{log}")]
    RelayEnded { status: String, log: String },
    #[error("the relay did not shut down cleanly ({status}); the end of its log:{log}")]
    RelayStop { status: String, log: String },
    #[error("could not listen for signals")]
    Signals(#[source] io::Error),
    #[error("could not draw the screen")]
    Screen(#[source] io::Error),
    #[error("interrupted")]
    Interrupted,
}

impl DemoError {
    /// What mends it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoServer | Self::ServerTooOld { .. } => Some(
                "apt-get update && apt-get install -y postgresql (Debian, Ubuntu); or name the directory of \
                 the server's programs in POSTRIDER_PG_BIN; or use a database of yours with --url",
            ),
            Self::NoServerIn { .. } => Some(
                "let it name the directory that holds initdb and postgres, such as /usr/lib/postgresql/15/bin",
            ),
            Self::NoServerUser => {
                Some("useradd --system postgres, or run the demo as another user")
            }
            Self::ServerProgram { .. } => Some(
                "as root the demo runs PostgreSQL as user postgres, who must be able to run it",
            ),
            Self::Directory { .. } => Some("let TMPDIR name a directory that can be written to"),
            Self::Url(_) => {
                Some("write postgresql://user@host/database, or key=value as libpq does")
            }
            Self::Connect(_) => {
                Some("is the server up, and has the role REPLICATION and CREATE on the database?")
            }
            Self::Setup { .. } => Some(
                "with --url the server needs wal_level = logical and a free slot and walsender",
            ),
            Self::LeftBehind { .. } => Some(
                "drop the replication slot, the publication and the schema of that name yourself: \
                 a forgotten slot keeps WAL for ever",
            ),
            Self::Topic { .. } => Some("is the broker up, and may you create topics there?"),
            Self::RelayNotReady { .. }
            | Self::RelayEnded { .. }
            | Self::RelayStop { .. }
            | Self::Initdb { .. }
            | Self::ServerStart { .. }
            | Self::ServerEnded { .. }
            | Self::ServerStop { .. }
            | Self::Closed
            | Self::Sql(_)
            | Self::Mock(_)
            | Self::Reader(_)
            | Self::Port(_)
            | Self::Spawn { .. }
            | Self::Wait(_)
            | Self::Thread(_)
            | Self::Died(_)
            | Self::Signals(_)
            | Self::Screen(_)
            | Self::Interrupted => None,
        }
    }
}
