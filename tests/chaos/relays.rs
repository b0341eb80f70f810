//! The two relays: the real binary, one pipeline, one of them standing by.

use crate::private::{Signal, exit_of, free_port, signal};
use crate::proxy::Proxy;
use crate::proxy::tap::Wire;
use crate::relay::http_get;
use crate::run::one_in_flight;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How many there are.
pub(crate) const RELAYS: usize = 2;
/// The pipeline's name.
pub(crate) const PIPELINE: &str = "chaos";
/// Of the pipeline.
pub(crate) const IN_FLIGHT_EVENTS: usize = 2_000;

/// What a pipeline reads from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reads {
    /// Mode `wal`.
    Stream,
    /// Mode `auto`: from the table while there is no slot.
    Both,
}

impl Reads {
    /// What the names of such runs begin with.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Stream => "",
            Self::Both => "auto-",
        }
    }
}

/// One relay, its proxy before the database, and its log over all its lives.
pub(crate) struct Relay {
    pub(crate) wire: Arc<Wire>,
    pub(crate) proxy: Proxy,
    pub(crate) port: u16,
    number: usize,
    dir: PathBuf,
    child: Option<Child>,
    /// Times it was started.
    pub(crate) lives: usize,
}

impl Relay {
    /// Not started yet; before the database at this port.
    pub(crate) fn new(number: usize, dir: &Path, database: u16) -> Self {
        let wire = Arc::new(Wire::default());
        let proxy = Proxy::start(database, Some(Arc::clone(&wire)));
        let dir = dir.to_owned();
        Self { wire, proxy, port: free_port(), number, dir, child: None, lives: 0 }
    }

    /// Its configuration, to topics of this prefix. The second relay has three producers, the first one.
    pub(crate) fn configure(&self, brokers: &str, topics: &str, reads: Reads) -> PathBuf {
        let reading = match reads {
            Reads::Stream => "mode = \"wal\"\n",
            Reads::Both => "mode = \"auto\"\npoll = { interval = \"50ms\" }\n",
        };
        let shards = 1 + 2 * (self.number % 2);
        let more =
            if one_in_flight() { "properties = { \"max.in.flight\" = \"1\" }\n" } else { "" };
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:{}\"\n\
             [pipelines.{PIPELINE}]\n{reading}\
             [pipelines.{PIPELINE}.source]\n\
             url = \"postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable\"\n\
             [pipelines.{PIPELINE}.outbox]\ntable = \"public.outbox\"\nlayout = \"postrider\"\n\
             [pipelines.{PIPELINE}.route]\ntopic = \"{topics}.{{aggregate_type}}\"\n\
             [pipelines.{PIPELINE}.sink]\nkind = \"kafka\"\nbrokers = \"{brokers}\"\nshards = {shards}\n{more}\
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

    /// What it has said, over all its lives.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Starts it, unless it runs.
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

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        signal(child.id(), Signal::Kill);
        exit_of(&mut child, Duration::from_secs(30)).await;
    }

    /// SIGTERM, and its exit code.
    pub(crate) async fn terminate(&mut self) -> Option<i32> {
        let mut child = self.child.take()?;
        signal(child.id(), Signal::Term);
        exit_of(&mut child, Duration::from_mins(1)).await.code()
    }

    /// Freezes or thaws it.
    pub(crate) fn signal(&self, what: Signal) {
        if let Some(child) = &self.child {
            signal(child.id(), what);
        }
    }

    /// Whether it ended without being told to: how, and it is started again.
    pub(crate) fn ended_by_itself(&mut self) -> Option<String> {
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

/// A relay's pipeline in `/status`; none when it does not answer soon.
pub(crate) async fn status(port: u16) -> Option<Value> {
    let look = http_get(port, "/status");
    let (_, body) = tokio::time::timeout(Duration::from_millis(400), look).await.ok()?.ok()?;
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
