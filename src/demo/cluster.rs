//! A temporary PostgreSQL server, created by `initdb` and deleted when the value is dropped.
//!
//! Settings that affect the measured figures keep their defaults: `fsync` stays on. The server listens only on a unix
//! socket in a directory of this user, so no other user of the machine can connect without a password.

use super::binaries::{Binaries, server_user};
use super::database;
use super::error::DemoError;
use super::process::{Dir, end_now, ended, signal, tail};
use crate::config::Env;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;

/// How long `initdb` may take on a slow disk.
const INITDB_DEADLINE: Duration = Duration::from_mins(2);
/// How long the server may take until it accepts connections.
const START_DEADLINE: Duration = Duration::from_mins(1);
/// How long a fast shutdown may take before the server is killed: its data are deleted in any case.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How long a fast shutdown may take before a restart.
const RESTART_DEADLINE: Duration = Duration::from_secs(30);
/// Between two attempts to connect.
const ATTEMPT_EVERY: Duration = Duration::from_millis(50);
/// Lines of a log that an error shows.
const LOG_LINES: usize = 15;

/// The settings that differ from `initdb`'s.
const SETTINGS: &str = "\
listen_addresses = ''
wal_level = logical
max_wal_senders = 10
max_replication_slots = 10
max_connections = 40
shared_buffers = 32MB
log_checkpoints = off
log_line_prefix = '%m [%p] '
";

/// A running server.
#[derive(Debug)]
pub(super) struct TemporaryServer {
    child: Child,
    /// `key=value`.
    pub(super) conninfo: String,
    /// `15.18`.
    pub(super) version: String,
    log: PathBuf,
    binaries: Binaries,
    user: Option<(u32, u32)>,
    dir: PathBuf,
    /// When the shutdown before a restart began.
    stopping: Option<Instant>,
}

impl TemporaryServer {
    /// Creates and starts a server in `dir`.
    pub(super) async fn start(dir: &Dir, env: Env<'_>) -> Result<Self, DemoError> {
        let binaries = Binaries::find(env)?;
        let user = server_user()?;
        if let Some((uid, gid)) = user {
            dir.give(uid, gid)?;
        }
        initdb(dir, &binaries, user).await?;
        let socket = dir.path().display().to_string();
        let settings =
            format!("{SETTINGS}unix_socket_directories = '{}'\n", socket.replace('\'', "''"));
        // The file is initdb's, so it belongs to the server's user already.
        let file = dir.join("data").join("postgresql.auto.conf");
        std::fs::write(&file, settings)
            .map_err(|source| DemoError::Directory { path: file, source })?;
        let log = dir.join("postgres.log");
        let child = serve(&binaries, user, dir.path(), &log)?;
        let host = database::quoted(&socket);
        let conninfo = format!("host={host} port=5432 user=postgres dbname=postgres");
        let (version, dir) = (binaries.version.clone(), dir.path().to_owned());
        let mut cluster =
            Self { child, conninfo, version, log, binaries, user, dir, stopping: None };
        cluster.await_connections().await?;
        Ok(cluster)
    }

    /// Begins a fast shutdown, after which [`Self::step_restart`] starts the server again.
    pub(super) fn begin_restart(&mut self) -> Result<(), DemoError> {
        signal(&self.child, Signal::INT).map_err(DemoError::Wait)?;
        self.stopping = Some(Instant::now());
        Ok(())
    }

    /// Starts the server again once it has stopped. Returns whether the server was started.
    pub(super) fn step_restart(&mut self) -> Result<bool, DemoError> {
        let Some(since) = self.stopping else { return Ok(true) };
        if self.child.try_wait().map_err(DemoError::Wait)?.is_none() {
            let seconds = RESTART_DEADLINE.as_secs();
            return if since.elapsed() > RESTART_DEADLINE {
                Err(DemoError::ServerStop { seconds, log: self.log_tail() })
            } else {
                Ok(false)
            };
        }
        self.child = serve(&self.binaries, self.user, &self.dir, &self.log)?;
        self.stopping = None;
        Ok(true)
    }

    async fn await_connections(&mut self) -> Result<(), DemoError> {
        let deadline = Instant::now() + START_DEADLINE;
        let conninfo = database::parse(&self.conninfo, &|_| None)?;
        loop {
            let ended = self.child.try_wait().map_err(DemoError::Wait)?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(DemoError::ServerStart { log: self.log_tail() });
            }
            if database::execute(&conninfo, "select 1").await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(ATTEMPT_EVERY).await;
        }
    }

    /// The last lines of the log.
    pub(super) fn log_tail(&self) -> String {
        tail(&self.log, LOG_LINES)
    }

    /// Whether the server runs or is being restarted.
    pub(super) fn is_running(&mut self) -> bool {
        self.stopping.is_some() || matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for TemporaryServer {
    fn drop(&mut self) {
        // SIGINT is PostgreSQL's fast shutdown: the server ends its children and frees its shared memory.
        end_now(&mut self.child, Signal::INT, STOP_DEADLINE);
    }
}

/// Starts the server on the data in `dir`.
fn serve(
    binaries: &Binaries,
    user: Option<(u32, u32)>,
    dir: &Path,
    log: &Path,
) -> Result<Child, DemoError> {
    let mut command = server_command(binaries, "postgres", dir, user, log)?;
    let child = command.arg("-D").arg(dir.join("data")).spawn();
    child.map_err(|source| cannot_run(binaries, "postgres", source))
}

async fn initdb(dir: &Dir, binaries: &Binaries, user: Option<(u32, u32)>) -> Result<(), DemoError> {
    let log = dir.join("initdb.log");
    let mut command = server_command(binaries, "initdb", dir.path(), user, &log)?;
    command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"]);
    let child = command.arg(dir.join("data")).spawn();
    let child = child.map_err(|source| cannot_run(binaries, "initdb", source))?;
    let mut child = Initdb(child);
    let status = ended(&mut child.0, INITDB_DEADLINE).await.map_err(DemoError::Wait)?;
    if status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    Err(DemoError::Initdb { log: tail(&log, LOG_LINES) })
}

/// A running initdb, ended when dropped: a signal may arrive while it works.
struct Initdb(Child);

impl Drop for Initdb {
    fn drop(&mut self) {
        end_now(&mut self.0, Signal::INT, STOP_DEADLINE);
    }
}

fn cannot_run(binaries: &Binaries, name: &'static str, source: std::io::Error) -> DemoError {
    DemoError::ServerProgram { path: binaries.program(name), source }
}

/// One of the server's programs, run as the server's user with its output in a log. It has its own process group, so
/// that Ctrl-C at the terminal does not reach it.
fn server_command(
    binaries: &Binaries,
    name: &'static str,
    dir: &Path,
    user: Option<(u32, u32)>,
    log: &Path,
) -> Result<Command, DemoError> {
    let opened = File::options().create(true).append(true).open(log);
    let opened = opened.and_then(|log| Ok((log.try_clone()?, log)));
    let (output, errors) =
        opened.map_err(|source| DemoError::Directory { path: log.to_owned(), source })?;
    let mut command = Command::new(binaries.program(name));
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    command.current_dir(dir).process_group(0);
    database::without_pg_variables(&mut command);
    command.env("LC_ALL", "C");
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    Ok(command)
}
