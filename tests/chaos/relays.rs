//! The two relays: the real binary with one pipeline, one of the two on standby.

use crate::private::{Signal, exit_of, free_port, signal};
use crate::proxy::Proxy;
use crate::proxy::tap::Wire;
use crate::relay::http_get;
use crate::run::{exactly_once, one_in_flight};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Number of relays.
pub(crate) const RELAYS: usize = 2;
/// Name of the pipeline.
pub(crate) const PIPELINE: &str = "chaos";
/// Limit of events in flight.
pub(crate) const IN_FLIGHT_EVENTS: usize = 2_000;

/// How the pipeline reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reads {
    /// Mode `wal`.
    Stream,
    /// Mode `auto`: from the table while there is no slot.
    Both,
}

impl Reads {
    /// Prefix of the names of such runs.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Stream => "",
            Self::Both => "auto-",
        }
    }
}

/// One relay, its proxy in front of the database, and the log of all its processes.
pub(crate) struct Relay {
    pub(crate) wire: Arc<Wire>,
    pub(crate) proxy: Proxy,
    pub(crate) port: u16,
    number: usize,
    dir: PathBuf,
    child: Option<Child>,
    /// How often it was started.
    pub(crate) lives: usize,
}

impl Relay {
    /// A relay that is not started yet, for the database at this port.
    pub(crate) fn new(number: usize, dir: &Path, database: u16) -> Self {
        let wire = Arc::new(Wire::default());
        let proxy = Proxy::start(database, Some(Arc::clone(&wire)));
        let dir = dir.to_owned();
        Self { wire, proxy, port: free_port(), number, dir, child: None, lives: 0 }
    }

    /// Writes its configuration, with topics of this prefix. The second relay has three producers, the first one has
    /// one; with transactions both have one.
    pub(crate) fn configure(&self, brokers: &str, topics: &str, reads: Reads) -> PathBuf {
        let reading = match reads {
            Reads::Stream => "mode = \"wal\"\n",
            Reads::Both => "mode = \"auto\"\npoll = { interval = \"50ms\" }\n",
        };
        let producers = if exactly_once() { 1 } else { 1 + 2 * (self.number % 2) };
        let mut more = String::new();
        if one_in_flight() {
            more.push_str("properties = { \"max.in.flight\" = \"1\" }\n");
        }
        if exactly_once() {
            more.push_str("delivery = \"exactly-once\"\n");
        }
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:{}\"\n\
             [pipelines.{PIPELINE}]\n{reading}\
             [pipelines.{PIPELINE}.source]\n\
             url = \"postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable\"\n\
             [pipelines.{PIPELINE}.outbox]\ntable = \"public.outbox\"\nlayout = \"postrider\"\n\
             [pipelines.{PIPELINE}.route]\ntopic = \"{topics}.{{aggregate_type}}\"\n\
             [pipelines.{PIPELINE}.sink]\nkind = \"kafka\"\nbrokers = \"{brokers}\"\nproducers = {producers}\n{more}\
             [pipelines.{PIPELINE}.flow]\nin_flight_events = {IN_FLIGHT_EVENTS}\n\
             [pipelines.{PIPELINE}.parking]\nattempts_max = 1000\n\
             backoff = {{ step = \"300ms\", steps_max = 4 }}\n",
            self.port, self.proxy.port,
        );
        fs::write(self.config(), text).expect("a configuration");
        self.config()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join(format!("relay-{}.toml", self.number))
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join(format!("relay-{}.log", self.number))
    }

    /// The log of all its processes.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Starts the relay, unless it runs.
    pub(crate) fn start(&mut self) {
        if self.child.is_some() {
            return;
        }
        let log = File::options().create(true).append(true).open(self.log_file()).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.arg("-c").arg(self.config()).args(["--log-format", "json", "run", "--fail-fast"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("postrider"));
        self.lives += 1;
    }

    /// Kills the relay with SIGKILL.
    pub(crate) async fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        signal(child.id(), Signal::Kill);
        exit_of(&mut child, Duration::from_secs(30)).await;
    }

    /// Stops the relay with SIGTERM; returns its exit code.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        let mut child = self.child.take()?;
        signal(child.id(), Signal::Term);
        exit_of(&mut child, Duration::from_mins(1)).await.code()
    }

    /// Stops or continues the process.
    pub(crate) fn signal(&self, what: Signal) {
        if let Some(child) = &self.child {
            signal(child.id(), what);
        }
    }

    /// Whether the relay ended without being stopped. Returns how, and starts it again.
    pub(crate) fn unexpected_end(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        self.start();
        Some(format!("relay {} ended by itself: {status}", self.number + 1))
    }

    /// Its pipeline in `/status`.
    pub(crate) async fn status(&self) -> Option<Value> {
        status(self.port).await
    }
}

/// A relay's pipeline in `/status`; `None` if it does not answer soon.
pub(crate) async fn status(port: u16) -> Option<Value> {
    let answer = http_get(port, "/status");
    let (_, body) = tokio::time::timeout(Duration::from_millis(400), answer).await.ok()?.ok()?;
    let mut status: Value = serde_json::from_str(&body).ok()?;
    Some(status["pipelines"][0].take())
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
