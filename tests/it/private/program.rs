//! A server process that `scripts/servers brokers` fetched: what NATS, Redis, Valkey, RabbitMQ and SeaweedFS have
//! in common.

use super::{Dir, END_DEADLINE, START_DEADLINE, Signal, exit_of, signal};
use crate::await_that::await_or_dump;
use crate::server::servers;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A server's directory, and its process while it runs.
pub(super) struct Program {
    pub(super) dir: Dir,
    name: &'static str,
    child: Option<Child>,
}

impl Program {
    /// A directory for a server of this name, which is one of `scripts/servers brokers`. Nothing runs yet.
    pub(super) fn new(name: &'static str) -> Self {
        Self { dir: Dir::create(name), name, child: None }
    }

    /// A file in the server's directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.0.join(name)
    }

    /// The program that runs the server.
    pub(super) fn executable(&self) -> PathBuf {
        executable(self.name)
    }

    /// A command that runs the server.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(executable(self.name));
        command.current_dir(&self.dir.0);
        command
    }

    /// What the server's `--version` prints.
    pub(super) fn version(&self) -> String {
        let output = self.command().arg("--version").output().expect("a version");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Whether the process was started and not ended by the test.
    pub(super) fn runs(&self) -> bool {
        self.child.is_some()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)).id()
    }

    /// Starts the command and waits until `answers` is `Ok`. The server must not be running.
    pub(super) async fn start<F>(&mut self, mut command: Command, mut answers: impl FnMut() -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let child = RefCell::new(self.dir.spawn(&mut command));
        let what = format!("a private {}", self.name);
        let look = || {
            let ended = child.borrow_mut().try_wait();
            if let Ok(Some(status)) = ended {
                panic!("{what} ended: {status}\n{}", self.dir.log());
            }
            answers()
        };
        await_or_dump(&what, START_DEADLINE, look, || self.dir.log()).await;
        self.child = Some(child.into_inner());
    }

    /// Sends a signal that ends the process, and waits for the end.
    pub(super) async fn end(&mut self, how: Signal) {
        let Some(mut child) = self.child.take() else { return };
        signal(child.id(), how);
        exit_of(&mut child, END_DEADLINE).await;
    }

    pub(super) fn freeze(&self) {
        signal(self.pid(), Signal::Stop);
    }

    pub(super) fn thaw(&self) {
        signal(self.pid(), Signal::Cont);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
        if std::thread::panicking() {
            // Beside the failure, where the test's own output is captured.
            #[expect(clippy::print_stderr, reason = "the log of a failed test")]
            {
                eprintln!("--- {} ---\n{}", self.name, self.dir.log());
            }
        }
    }
}

/// The program that the servers' file names; else the one in the cache of this checkout.
pub(crate) fn executable(name: &str) -> PathBuf {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers/cache");
    let path = servers()
        .find(&format!("{}_SERVER", name.to_uppercase()))
        .map_or_else(|| cache.join(name).join(format!("{name}-server")), PathBuf::from);
    assert!(path.exists(), "no {}; run scripts/servers brokers {name}", path.display());
    path
}
