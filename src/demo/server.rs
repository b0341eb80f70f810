//! A broker of a demo that is a process: NATS, RabbitMQ, Redis or Valkey, on loopback, with its data in a directory of
//! its own.

use super::consumers::{self, BrokerLogin, ConsumedPlace};
use super::error::DemoError;
use super::kind::DemoSink;
use super::process::{Dir, end_now, signal, tail};
use rustix::process::Signal;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take until it accepts a login. RabbitMQ takes 5 to 20 s.
const START_DEADLINE: Duration = Duration::from_mins(1);
/// Pause between two attempts to log in.
const ATTEMPT_EVERY: Duration = Duration::from_millis(50);
/// Lines of the server's log that an error shows.
const LOG_LINES: usize = 15;
/// How long a process may take to end after SIGKILL.
const END_MAX: Duration = Duration::from_secs(5);

/// The stream of NATS, or the queue of RabbitMQ.
const STREAM: &str = "DEMO";
/// The user of the relay and of the reader.
const USER: &str = "demo";

/// A running server, which is ended when the value is dropped.
pub(super) struct BrokerServer {
    sink: DemoSink,
    program: PathBuf,
    /// Not the demo's other one: as root that belongs to PostgreSQL's user, whom a RabbitMQ in a user namespace does
    /// not know.
    dir: Dir,
    topic: String,
    pub(super) login: BrokerLogin,
    /// Ports of Erlang: its daemon `epmd`, and the node.
    erlang: [u16; 2],
    child: Child,
}

impl BrokerServer {
    /// Starts a server without destinations, and waits until it accepts a login.
    pub(super) async fn start(
        sink: DemoSink,
        program: PathBuf,
        topic: &str,
    ) -> Result<Self, DemoError> {
        let dir = Dir::create()?;
        let made = fs::create_dir(dir.join("data"));
        made.map_err(|source| DemoError::Directory { path: dir.join("data"), source })?;
        let password: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
        let [port, first, second] = free_ports()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let login = BrokerLogin { address, user: USER.to_owned(), password };
        dir.write_secret("password", &format!("{}\n", login.password))?;
        configure(sink, &dir, &login)?;
        let erlang = [first, second];
        let child = spawn(sink, &program, &dir, erlang)?;
        let topic = topic.to_owned();
        let mut server = Self { sink, program, dir, topic, login, erlang, child };
        server.await_login().await?;
        Ok(server)
    }

    async fn await_login(&mut self) -> Result<(), DemoError> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if !self.is_running() || Instant::now() > deadline {
                return Err(DemoError::BrokerStart { sink: self.sink, log: self.log_tail() });
            }
            let (login, place) = (self.login.clone(), self.place());
            let attempt = tokio::task::spawn_blocking(move || consumers::log_in(&login, &place));
            if attempt.await.is_ok_and(|attempt| attempt.is_ok()) {
                return Ok(());
            }
            tokio::time::sleep(ATTEMPT_EVERY).await;
        }
    }

    /// The server in one line.
    pub(super) fn describe(&self) -> String {
        let place = match self.sink {
            DemoSink::Nats => format!("stream {STREAM}"),
            DemoSink::RabbitMq => format!("queue {} of type stream", self.topic),
            DemoSink::Kafka | DemoSink::Http | DemoSink::Redis | DemoSink::Valkey => {
                format!("stream {}", self.topic)
            }
        };
        format!("{}, temporary, at {}, {place}", self.sink.name(), self.login.address)
    }

    /// What the reader reads.
    pub(super) fn place(&self) -> ConsumedPlace {
        match self.sink {
            DemoSink::Nats => ConsumedPlace::Nats(STREAM.to_owned()),
            DemoSink::RabbitMq => {
                ConsumedPlace::RabbitMq { queue: self.topic.clone(), is_stream: true }
            }
            DemoSink::Kafka | DemoSink::Http | DemoSink::Redis | DemoSink::Valkey => {
                ConsumedPlace::Redis(self.topic.clone())
            }
        }
    }

    /// The lines of the relay's configuration below `[pipelines.NAME.sink]`.
    pub(super) fn sink_config(&self, pipeline: &str) -> String {
        let (address, topic) = (self.login.address, &self.topic);
        let kind = self.sink.kind();
        let password = format!("password_file = \"{}\"", self.dir.join("password").display());
        let table = format!("kind = \"{kind}\"\n\n[pipelines.{pipeline}.sink.{kind}]\n");
        match self.sink {
            DemoSink::Nats => format!(
                "{table}url = \"nats://{address}\"\nstream = \"{STREAM}\"\nuser = \"{USER}\"\n{password}\n\n\
                 [pipelines.{pipeline}.sink.nats.create]\nsubjects = \"{topic}\"\n"
            ),
            DemoSink::RabbitMq => format!(
                "{table}url = \"amqp://{USER}@{address}\"\n{password}\n\n\
                 [pipelines.{pipeline}.sink.rabbitmq.create]\nqueue_type = \"stream\"\n"
            ),
            DemoSink::Kafka | DemoSink::Http | DemoSink::Redis | DemoSink::Valkey => {
                format!("{table}servers = \"{address}\"\nusername = \"{USER}\"\n{password}\n")
            }
        }
    }

    /// SIGSTOP: connections stay open, and nothing answers.
    pub(super) fn freeze(&self) -> Result<(), DemoError> {
        signal(&self.child, Signal::STOP).map_err(DemoError::Wait)
    }

    /// The end of [`Self::freeze`].
    pub(super) fn thaw(&self) -> Result<(), DemoError> {
        signal(&self.child, Signal::CONT).map_err(DemoError::Wait)
    }

    /// kill -9, and a start on the same data and port.
    pub(super) fn kill_and_restart(&mut self) -> Result<(), DemoError> {
        self.end();
        self.child = spawn(self.sink, &self.program, &self.dir, self.erlang)?;
        Ok(())
    }

    /// Whether the process has not ended.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The error for a server that has ended unexpectedly.
    pub(super) fn ended(&self) -> DemoError {
        DemoError::BrokerEnded { sink: self.sink, log: self.log_tail() }
    }

    fn log_tail(&self) -> String {
        tail(&self.dir.join("log"), LOG_LINES)
    }

    fn end(&mut self) {
        end_now(&mut self.child, Signal::KILL, END_MAX);
        if self.sink == DemoSink::RabbitMq {
            self.end_epmd();
        }
    }

    /// Erlang's daemon, which does not end with its node. It has a port of its own, so no other node uses it.
    fn end_epmd(&self) {
        let [port, _] = self.erlang.map(|port| port.to_string());
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let mut words = command.split(|byte| *byte == 0);
            let is_epmd = words.next().is_some_and(|program| program.ends_with(b"epmd"));
            if !is_epmd || !words.any(|word| word == port.as_bytes()) {
                continue;
            }
            let name = process.file_name();
            let pid = name.to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                // It may have ended meanwhile.
                rustix::process::kill_process(pid, Signal::KILL).unwrap_or_default();
            }
        }
    }
}

impl Drop for BrokerServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ports that are free at present.
fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT], DemoError> {
    let mut listeners = Vec::new();
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(DemoError::Port)?;
        *port = listener.local_addr().map_err(DemoError::Port)?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// Writes the server's configuration. Acknowledged messages survive `kill -9` of the server.
fn configure(sink: DemoSink, dir: &Dir, login: &BrokerLogin) -> Result<(), DemoError> {
    let BrokerLogin { address, user, password } = login;
    let (port, data) = (address.port(), dir.join("data"));
    let data = data.display();
    match sink {
        DemoSink::Kafka | DemoSink::Http => {}
        DemoSink::Nats => {
            let text = format!(
                "listen: {address}\njetstream {{ store_dir: \"{data}\" }}\n\
                 authorization {{ user: \"{user}\", password: \"{password}\" }}\n"
            );
            dir.write_secret("nats.conf", &text)?;
        }
        DemoSink::Redis | DemoSink::Valkey => {
            let text = format!(
                "bind 127.0.0.1\nport {port}\ndir {data}\nappendonly yes\nappendfsync always\nsave \"\"\n\
                 user default off ~* &* +@all\nuser {user} on >{password} ~* &* +@all\n"
            );
            dir.write_secret("redis.conf", &text)?;
        }
        DemoSink::RabbitMq => {
            dir.write("enabled_plugins", "[].\n")?;
            let text = format!(
                "listeners.tcp.1 = {address}\ndefault_user = {user}\ndefault_pass = {password}\n\
                 disk_free_limit.absolute = 50MB\n"
            );
            dir.write_secret("rabbitmq.conf", &text)?;
        }
    }
    Ok(())
}

/// Starts the server on the data in `dir`, with its output in a log, in a process group of its own, so that Ctrl-C at
/// the terminal does not reach it.
fn spawn(sink: DemoSink, program: &Path, dir: &Dir, erlang: [u16; 2]) -> Result<Child, DemoError> {
    let path = dir.join("log");
    let opened = File::options().create(true).append(true).open(&path);
    let opened = opened.and_then(|log| Ok((log.try_clone()?, log)));
    let (output, errors) = opened.map_err(|source| DemoError::Directory { path, source })?;
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    command.current_dir(dir.path());
    match sink {
        DemoSink::Nats => {
            command.arg("-c").arg(dir.join("nats.conf"));
        }
        DemoSink::RabbitMq => rabbitmq_environment(&mut command, dir, erlang),
        DemoSink::Kafka | DemoSink::Http | DemoSink::Redis | DemoSink::Valkey => {
            command.arg(dir.join("redis.conf"));
        }
    }
    let path = program.to_owned();
    command.spawn().map_err(|source| DemoError::Spawn { path, source })
}

/// RabbitMQ's script reads its settings from the environment.
fn rabbitmq_environment(command: &mut Command, dir: &Dir, [epmd, node]: [u16; 2]) {
    command
        .env("HOME", dir.path())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", epmd.to_string())
        .env("RABBITMQ_DIST_PORT", node.to_string())
        .env("RABBITMQ_NODENAME", format!("demo{epmd}@localhost"))
        .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
        .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
        .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
        .env("RABBITMQ_LOGS", "-")
        // With it the script becomes Erlang, instead of waiting for it.
        .env("RABBITMQ_ALLOW_INPUT", "1")
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        );
}
