//! The contenders: Postrider (this build, or another for comparison), `pg_recvlogical`, `pgwire-replication`, Debezium.

use crate::debezium;
use crate::process::{self, Watch, Who};
use crate::servers::{Database, Servers, wait_for};
use crate::wal::{PREFIX, PUBLICATION, Road};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Recvlogical,
    /// The crate `pgwire-replication`.
    Pgwire,
    Discard,
    Kafka,
    Debezium,
    /// Postrider with the sink of [`Job::sink`].
    Sink,
}

#[derive(Clone)]
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    pub(crate) label: String,
    binary: PathBuf,
}

impl Contender {
    pub(crate) fn new(kind: Kind, binary: Option<&Path>) -> Self {
        let label = match kind {
            Kind::Recvlogical => "pg_recvlogical",
            Kind::Pgwire => "pgwire-replication",
            Kind::Discard => "Postrider to discard",
            Kind::Kafka => "Postrider to Kafka",
            Kind::Debezium => "Debezium to Kafka",
            Kind::Sink => "Postrider",
        };
        let binary = binary.map_or_else(|| env!("CARGO_BIN_EXE_postrider").into(), Path::to_owned);
        Self { kind, label: label.to_owned(), binary }
    }

    pub(crate) fn called(self, label: &str) -> Self {
        Self { label: label.to_owned(), ..self }
    }

    pub(crate) fn writes_to_kafka(&self) -> bool {
        matches!(self.kind, Kind::Kafka | Kind::Debezium)
    }

    /// A name for slots, topics and files.
    pub(crate) fn short(&self) -> String {
        self.label.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    }
}

/// Source and destination.
#[derive(Clone)]
pub(crate) struct Job<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) database: &'a str,
    pub(crate) slot: String,
    pub(crate) topic: String,
    /// The end of WAL, for contenders that read up to there.
    pub(crate) end: String,
    pub(crate) road: Road,
    pub(crate) messages: bool,
    /// Lines of Postrider's configuration below `[pipelines.NAME.sink]`, of [`Kind::Sink`]. `SLOT` is the name.
    pub(crate) sink: String,
    /// The process of the broker; 0 for none.
    pub(crate) broker_pid: u32,
    /// Additional lines of Postrider's configuration.
    pub(crate) more: &'static str,
}

pub(crate) struct Running {
    child: Child,
    /// Postrider's port for `/status`.
    port: u16,
    /// When the process was started, by the wall clock.
    pub(crate) started: f64,
    kind: Kind,
}

impl Running {
    pub(crate) fn start(contender: &Contender, job: &Job<'_>, watch: &Watch) -> Self {
        let port = free_port();
        let mut command = match contender.kind {
            Kind::Recvlogical => recvlogical(job),
            Kind::Pgwire => pgwire(job),
            Kind::Discard => postrider(&contender.binary, job, "discard", port),
            Kind::Kafka => postrider(&contender.binary, job, "kafka", port),
            Kind::Sink => postrider(&contender.binary, job, "", port),
            Kind::Debezium => debezium::command(job, port),
        };
        let log = fs::File::create(job.servers.scratch.join(format!("{}.log", contender.short())));
        let log = log.expect("a log");
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a log")).stdout(log);
        watch.look_at(Who::Broker, job.broker_pid);
        let started = process::now();
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", contender.label));
        watch.look_at(Who::Relay, child.id());
        Self { child, port, started, kind: contender.kind }
    }

    /// Waits until the contender streams, also watches the process of the server, and returns the time.
    pub(crate) fn streams(&mut self, job: &Job<'_>, database: &Database, watch: &Watch) -> f64 {
        let pid = wait_for("a stream", Duration::from_millis(5), || {
            let pid = database.walsender(&job.slot);
            // `pg_recvlogical` may be done already.
            if pid.is_none() && self.ended() { Some(0) } else { pid }
        });
        let at = process::now();
        watch.look_at(Who::Walsender, pid);
        at
    }

    /// Whether the contender has ended successfully; Postrider and Debezium never end.
    pub(crate) fn ended(&mut self) -> bool {
        let status = self.child.try_wait().expect("a child");
        let ends = matches!(self.kind, Kind::Recvlogical | Kind::Pgwire);
        let is_good = status.is_none_or(|s| s.success() && ends);
        assert!(is_good, "a contender ended: {status:?}; its log is below target/bench");
        status.is_some()
    }

    /// Number of published events, from Postrider's `/status`.
    pub(crate) fn published(&self) -> usize {
        status(self.port, "published_total")
    }

    /// The text of Postrider's `/metrics`; empty without an answer.
    pub(crate) fn metrics(&self) -> String {
        get(self.port, "/metrics")
    }

    /// A clean end; Debezium, which takes seconds for it, is killed.
    pub(crate) fn end(mut self) {
        match self.kind {
            Kind::Recvlogical | Kind::Pgwire => {}
            Kind::Debezium => self.child.kill().expect("a kill"),
            Kind::Discard | Kind::Kafka | Kind::Sink => {
                let sent = Command::new("kill").arg(self.child.id().to_string()).status();
                assert!(sent.expect("kill").success());
            }
        }
        self.child.wait().expect("an end");
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("an end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If the bench panics, the processes that it started must end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("a port").port()
}

fn recvlogical(job: &Job<'_>) -> Command {
    let Servers { bin, socket, port, .. } = job.servers;
    let host = if job.road == Road::UnixSocket { socket.as_str() } else { "127.0.0.1" };
    let mut command = Command::new(format!("{bin}/pg_recvlogical"));
    command
        .env("PGSSLMODE", job.road.sslmode())
        .args(["-U", "postgres", "-d", job.database, "-h", host, "-p", port])
        .args(["--slot", &job.slot, "--start", "--no-loop", "--endpos", &job.end])
        .args(["-f", "/dev/null", "-o", "proto_version=1"])
        .args(["-o", &format!("publication_names={PUBLICATION}")]);
    if job.messages {
        command.args(["-o", "messages=true"]);
    }
    command
}

/// A separate program, which `scripts/bench` builds.
fn pgwire(job: &Job<'_>) -> Command {
    let Servers { socket, port, pgwire, .. } = job.servers;
    let host = if job.road == Road::UnixSocket { socket.as_str() } else { "127.0.0.1" };
    let mut command = Command::new(pgwire);
    command.args([host, port, job.database, &job.slot, PUBLICATION, &job.end]);
    command
}

fn postrider(binary: &Path, job: &Job<'_>, sink: &str, port: u16) -> Command {
    let mut command = Command::new(binary);
    let file = configure(job, sink, &format!("127.0.0.1:{port}"));
    command.arg("-c").arg(file).args(["--log", "warn", "run"]);
    command
}

fn configure(job: &Job<'_>, sink: &str, listen: &str) -> PathBuf {
    let Servers { socket, port, brokers, scratch, .. } = job.servers;
    let Job { database, slot, topic, road, more, .. } = job;
    let host = if job.road == Road::UnixSocket { socket.as_str() } else { "127.0.0.1" };
    let messages =
        if job.messages { format!("message_prefix = \"{PREFIX}\"") } else { String::new() };
    let sink = match sink {
        "" => job.sink.replace("SLOT", slot),
        "kafka" => format!("kind = \"kafka\"\nbrokers = \"{brokers}\"\n"),
        other => format!("kind = \"{other}\"\n"),
    };
    let text = format!(
        "[admin]\nlisten = \"{listen}\"\n\
         [pipelines.{slot}.source]\n\
         url = \"host={host} port={port} user=postgres dbname={database} sslmode={}\"\n\
         slot = \"{slot}\"\n\
         publication = \"{PUBLICATION}\"\n\
         [pipelines.{slot}.outbox]\ntable = \"public.outbox\"\n{messages}\n\
         [pipelines.{slot}.route]\ntopic = \"{topic}\"\n\
         [pipelines.{slot}.sink]\n{sink}\n\
         {}\n",
        road.sslmode(),
        more.replace("SLOT", slot),
    );
    let file = scratch.join(format!("{slot}.toml"));
    fs::write(&file, text).expect("a configuration");
    file
}

/// Slot, publication and schema, by `postrider setup`.
pub(crate) fn setup(servers: &Servers, database: &str, slot: &str) {
    let job = Job {
        servers,
        database,
        slot: slot.to_owned(),
        topic: "none".to_owned(),
        end: String::new(),
        road: Road::UnixSocket,
        messages: false,
        sink: String::new(),
        broker_pid: 0,
        more: "",
    };
    run_setup(&configure(&job, "discard", ""));
}

/// The destination of [`Job::sink`], by `postrider setup`. Slot, publication and schema exist already.
pub(crate) fn setup_sink(job: &Job<'_>) {
    run_setup(&configure(job, "", ""));
}

fn run_setup(file: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.arg("-c").arg(file).args(["--log", "warn", "setup"]).stdout(Stdio::null());
    assert!(command.status().expect("postrider setup").success(), "postrider setup failed");
}

/// A number from `/status`; 0 without an answer.
fn status(port: u16, field: &str) -> usize {
    let answer = get(port, "/status");
    let (_, after) = answer.split_once(&format!("\"{field}\":")).unwrap_or(("", "0"));
    let digits = after.trim_start().chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap_or(0)
}

/// An answer of the admin endpoint; empty without one.
fn get(port: u16, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let mut answer = String::new();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes());
    if sent.and_then(|()| stream.read_to_string(&mut answer)).is_err() {
        return String::new();
    }
    answer
}
