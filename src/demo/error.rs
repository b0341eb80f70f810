//! The errors of a demo, with their hints.

use super::kind::DemoSink;
use crate::postgres::{ConninfoError, SourceError};
use rdkafka::error::KafkaError;
use std::io;
use std::path::PathBuf;

/// The variable that names the directory of PostgreSQL's server programs and takes precedence over other directories.
pub(super) const BIN_VARIABLE: &str = "POSTRIDER_PG_BIN";

/// An error that ends a demo before its ledger is complete.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum DemoError {
    #[error("could not use {}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("found no PostgreSQL server programs (initdb, postgres)")]
    NoServer,
    #[error("{BIN_VARIABLE} names {}, which does not contain initdb and postgres", .directory.display())]
    NoServerIn { directory: PathBuf },
    #[error("the PostgreSQL in {} is {version}; 14 is the oldest supported version", .directory.display())]
    ServerTooOld { directory: PathBuf, version: String },
    #[error(
        "PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as"
    )]
    NoServerUser,
    #[error("could not run {}", .path.display())]
    ServerProgram { path: PathBuf, source: io::Error },
    #[error("initdb failed; the end of its log:{log}")]
    Initdb { log: String },
    #[error("the temporary PostgreSQL did not start; the end of its log:{log}")]
    ServerStart { log: String },
    #[error("the temporary PostgreSQL has exited; the end of its log:{log}")]
    ServerEnded { log: String },
    #[error("the temporary PostgreSQL did not stop within {seconds} s; the end of its log:{log}")]
    ServerStop { seconds: u64, log: String },
    #[error("--url is invalid")]
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
    #[error("found no {program}, which is the server program of {}", .sink.name())]
    NoBroker { sink: DemoSink, program: &'static str },
    #[error("{variable} names {}, which is not a program", .path.display())]
    NoBrokerAt { sink: DemoSink, variable: &'static str, path: PathBuf },
    #[error("the temporary {} did not start; the end of its log:{log}", .sink.name())]
    BrokerStart { sink: DemoSink, log: String },
    #[error("the temporary {} has exited; the end of its log:{log}", .sink.name())]
    BrokerEnded { sink: DemoSink, log: String },
    #[error("could not start the mock broker")]
    Mock(#[source] KafkaError),
    #[error("could not create or delete topic \"{topic}\" at {brokers}")]
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
    #[error("the thread of the demo's {0} ended unexpectedly")]
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
    #[error("could not write the ledger to {}", .path.display())]
    LedgerFile { path: PathBuf, source: io::Error },
    #[error("interrupted")]
    Interrupted,
}

impl DemoError {
    /// How to fix it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoServer | Self::ServerTooOld { .. } => Some(
                "apt-get update && apt-get install -y postgresql (Debian, Ubuntu); or set POSTRIDER_PG_BIN to the \
                 directory of the server programs; or use an existing database with --url",
            ),
            Self::NoServerIn { .. } => Some(
                "set it to the directory that contains initdb and postgres, such as /usr/lib/postgresql/15/bin",
            ),
            Self::NoServerUser => {
                Some("useradd --system postgres, or run the demo as another user")
            }
            Self::NoBroker { sink, .. } | Self::NoBrokerAt { sink, .. } => Some(sink.hint()),
            Self::ServerProgram { .. } => Some(
                "as root the demo runs PostgreSQL as user postgres, who needs the right to run its programs",
            ),
            Self::Directory { .. } => Some("set TMPDIR to a writable directory"),
            Self::Url(_) => {
                Some("use postgresql://user@host/database, or key=value pairs as in libpq")
            }
            Self::Connect(_) => Some(
                "check that the server runs, and that the role has REPLICATION and CREATE on the database",
            ),
            Self::Setup { .. } => Some(
                "with --url the server needs wal_level = logical and a free slot and walsender",
            ),
            Self::LeftBehind { .. } => Some(
                "drop the replication slot, the publication and the schema of that name: a slot that is not dropped \
                 retains WAL without limit",
            ),
            Self::Topic { .. } => {
                Some("check that the broker runs, and that you are allowed to create topics")
            }
            Self::RelayNotReady { .. }
            | Self::RelayEnded { .. }
            | Self::RelayStop { .. }
            | Self::Initdb { .. }
            | Self::ServerStart { .. }
            | Self::ServerEnded { .. }
            | Self::ServerStop { .. }
            | Self::BrokerStart { .. }
            | Self::BrokerEnded { .. }
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
            | Self::LedgerFile { .. }
            | Self::Interrupted => None,
        }
    }
}
