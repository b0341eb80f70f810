//! The relay of a demo: this program in a process of its own, set up and run as a user would do it.

use super::database::{Database, without_pg_variables};
use super::destination::{BROKERS_VARIABLE, Destination};
use super::error::DemoError;
use super::options::DemoOptions;
use super::process::{Dir, end_now, ended, signal, tail};
use rustix::process::Signal;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How long `postrider setup` may take.
const SETUP_DEADLINE: Duration = Duration::from_secs(30);
/// How long a clean stop may take: longer than the relay's own `shutdown_grace`.
const STOP_DEADLINE: Duration = Duration::from_secs(15);
/// Lines of the relay's log that an error shows.
const LOG_LINES: usize = 20;

/// Variables in the environment of the child processes, so that the file contains no password and needs no quoting.
const URL_VARIABLE: &str = "POSTRIDER_DEMO_SOURCE";

/// The relay, which is ended when the value is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    executable: PathBuf,
    config: PathBuf,
    log: PathBuf,
    environment: [(&'static str, String); 2],
    own_server: bool,
    child: Option<Child>,
    /// The port of `/status` and `/metrics`, the same in every run.
    pub(super) admin_port: u16,
}

impl Relay {
    /// Writes the configuration and runs `postrider setup`.
    pub(super) async fn set_up(
        options: &DemoOptions,
        dir: &Dir,
        database: &Database,
        broker: &Destination,
    ) -> Result<Self, DemoError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(DemoError::Port)?;
        let admin_port = listener.local_addr().map_err(DemoError::Port)?.port();
        drop(listener);
        let name = &database.name;
        let config = format!(
            "[admin]\nlisten = \"127.0.0.1:{admin_port}\"\n\n\
             [pipelines.{name}.source]\nurl = \"${{{URL_VARIABLE}}}\"\n\
             slot = \"{name}\"\npublication = \"{name}\"\n\n\
             [pipelines.{name}.outbox]\ntable = \"{name}.outbox\"\nlayout = \"postrider\"\n\n\
             [pipelines.{name}.route]\ntopic = \"{}\"\n\n\
             [pipelines.{name}.sink]\n{}",
            broker.topic(),
            broker.sink_config(name)
        );
        let relay = Self {
            executable: options.executable.clone(),
            config: dir.write("postrider.toml", &config)?,
            log: dir.join("postrider.log"),
            environment: [
                (URL_VARIABLE, database.url.clone()),
                (BROKERS_VARIABLE, broker.brokers()),
            ],
            own_server: options.url.is_none(),
            child: None,
            admin_port,
        };
        relay.run_setup().await?;
        Ok(relay)
    }

    async fn run_setup(&self) -> Result<(), DemoError> {
        let mut child = Setup(self.spawn(&["setup"])?);
        match ended(&mut child.0, SETUP_DEADLINE).await.map_err(DemoError::Wait)? {
            Some(status) if status.success() => Ok(()),
            status => Err(DemoError::Setup { status: ending(status), log: self.log_tail() }),
        }
    }

    /// Starts a command of this program with the demo's configuration. Its output is appended to the log.
    fn spawn(&self, command: &[&str]) -> Result<Child, DemoError> {
        let opened = File::options().create(true).append(true).open(&self.log);
        let opened = opened.and_then(|log| Ok((log.try_clone()?, log)));
        let (output, errors) =
            opened.map_err(|source| DemoError::Directory { path: self.log.clone(), source })?;
        let mut child = Command::new(&self.executable);
        child.arg("--config").arg(&self.config).args(["--color", "never"]).args(command);
        child.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A process group of its own: Ctrl-C must reach only the demo, which then stops the relay.
        child.process_group(0);
        if self.own_server {
            without_pg_variables(&mut child);
        }
        child.envs(self.environment.clone());
        let spawned = child.spawn();
        spawned.map_err(|source| DemoError::Spawn { path: self.executable.clone(), source })
    }

    /// Starts the relay.
    pub(super) fn start(&mut self) -> Result<(), DemoError> {
        self.child = Some(self.spawn(&["run", "--fail-fast"])?);
        Ok(())
    }

    /// The process id of the running relay.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// An error if the relay has ended unexpectedly.
    pub(super) fn check(&mut self) -> Result<(), DemoError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait().map_err(DemoError::Wait)? {
            None => Ok(()),
            status => Err(DemoError::RelayEnded { status: ending(status), log: self.log_tail() }),
        }
    }

    /// Kills the relay with SIGKILL and starts it again.
    pub(super) fn kill_and_restart(&mut self) -> Result<(), DemoError> {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).map_err(DemoError::Wait)?;
        }
        self.start()
    }

    /// Sends SIGTERM and waits for a clean end: exit code 0, nothing in flight.
    pub(super) async fn stop(&mut self) -> Result<(), DemoError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        signal(child, Signal::TERM).map_err(DemoError::Wait)?;
        match ended(child, STOP_DEADLINE).await.map_err(DemoError::Wait)? {
            Some(status) if status.success() => {
                self.child = None;
                Ok(())
            }
            status => Err(DemoError::RelayStop { status: ending(status), log: self.log_tail() }),
        }
    }

    /// The last lines of the log.
    pub(super) fn log_tail(&self) -> String {
        tail(&self.log, LOG_LINES)
    }
}

/// How a process ended, for people.
fn ending(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "still running".to_owned(), |status| status.to_string())
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            end_now(&mut child, Signal::KILL, Duration::from_secs(1));
        }
    }
}

/// A running `postrider setup`, ended when dropped: a signal may arrive while it works.
struct Setup(Child);

impl Drop for Setup {
    fn drop(&mut self) {
        end_now(&mut self.0, Signal::KILL, Duration::from_secs(1));
    }
}
