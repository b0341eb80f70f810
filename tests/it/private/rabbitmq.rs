//! A RabbitMQ to hurt.

use super::program::Program;
use super::tls::make_certificates;
use super::{Signal, free_port, signal};
use crate::await_that::{SOON, await_or_dump};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one request to the management API may take.
const REQUEST_MAX: Duration = Duration::from_secs(20);

/// A RabbitMQ of the test's own. Logins: `admin` with password `admin`, and `relay` with password `secret`, who may
/// write everywhere and configure what is named `postrider.`. It takes 10 to 20 seconds to start.
pub(crate) struct PrivateRabbitMq {
    port: u16,
    tls_port: u16,
    http: u16,
    erlang: Erlang,
    /// The ports of the stream protocol, without TLS and with it.
    stream: (u16, u16),
    program: Program,
}

/// How a node finds the others.
struct Erlang {
    /// The port of its daemon `epmd`.
    epmd: u16,
    /// The port for other nodes.
    node_port: u16,
    /// The node's name, without its host.
    node: String,
    /// Further nodes use the daemon, so it does not end with this one.
    shares_epmd: bool,
}

impl Erlang {
    fn alone() -> Self {
        let (epmd, node_port) = (free_port(), free_port());
        Self { epmd, node_port, node: format!("t{epmd}"), shares_epmd: false }
    }
}

impl PrivateRabbitMq {
    /// Starts one with extra lines for its `rabbitmq.conf`.
    pub(crate) async fn start(extra_config: &str) -> Self {
        Self::start_as(Erlang::alone(), extra_config).await
    }

    /// Starts three nodes of one cluster.
    pub(crate) async fn start_cluster() -> (Self, Self, Self) {
        let epmd = free_port();
        let node = |letter: char| Erlang {
            epmd,
            node_port: free_port(),
            node: format!("t{epmd}{letter}"),
            shares_epmd: true,
        };
        let nodes = ['a', 'b', 'c'].map(node);
        let mut config = "cluster_formation.peer_discovery_backend = classic_config\n".to_owned();
        for (number, Erlang { node, .. }) in (1..).zip(&nodes) {
            writeln!(config, "cluster_formation.classic_config.nodes.{number} = {node}@localhost")
                .expect("a string");
        }
        let [a, b, c] = nodes.map(|node| Self::start_as(node, &config));
        tokio::join!(a, b, c)
    }

    async fn start_as(erlang: Erlang, extra_config: &str) -> Self {
        let mut server = Self {
            port: free_port(),
            tls_port: free_port(),
            http: free_port(),
            erlang,
            stream: (free_port(), free_port()),
            program: Program::new("rabbitmq"),
        };
        make_certificates(&server.program.dir.0);
        if server.erlang.shares_epmd {
            // Only nodes with the same cookie connect.
            let cookie = server.program.file(".erlang.cookie");
            fs::write(&cookie, "TESTS").expect("a cookie");
            let own = fs::Permissions::from_mode(0o400);
            fs::set_permissions(&cookie, own).expect("its rights");
        }
        server.set(extra_config);
        let plugins = "[rabbitmq_management,rabbitmq_auth_mechanism_ssl,rabbitmq_stream].";
        fs::write(server.program.file("enabled_plugins"), plugins).expect("enabled_plugins");
        server.restart().await;
        let user = json!({ "password": "secret", "tags": "" });
        server.api_ok("PUT", "/api/users/relay", &user).await;
        server.allow(true).await;
        server
    }

    /// Other extra lines for its `rabbitmq.conf`, from the next start on.
    pub(crate) fn set(&self, extra_config: &str) {
        let config = format!(
            include_str!("rabbitmq.conf"),
            port = self.port,
            tls_port = self.tls_port,
            http = self.http,
            stream = self.stream.0,
            stream_tls = self.stream.1,
            extra = extra_config
        );
        fs::write(self.program.file("rabbitmq.conf"), config).expect("rabbitmq.conf");
    }

    /// The port of AMQP without TLS.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The port of AMQP with TLS.
    pub(crate) fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The ports of the stream protocol, without TLS and with it.
    pub(crate) fn stream_ports(&self) -> (u16, u16) {
        self.stream
    }

    /// The port of the management API.
    pub(crate) fn http_port(&self) -> u16 {
        self.http
    }

    /// The port of Erlang's daemon, which is this node's own.
    pub(crate) fn epmd_port(&self) -> u16 {
        self.erlang.epmd
    }

    /// The node's name, as the management API has it.
    pub(crate) fn node(&self) -> String {
        format!("{}@localhost", self.erlang.node)
    }

    /// The authority of its certificate, which is for `localhost` only.
    pub(crate) fn ca(&self) -> PathBuf {
        self.program.file("ca.pem")
    }

    /// Its process `beam.smp`.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// The version that the management API tells.
    pub(crate) async fn version(&self) -> String {
        let overview = self.api_ok("GET", "/api/overview", &Value::Null).await;
        overview["rabbitmq_version"].as_str().expect("a version").to_owned()
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        self.program.dir.log()
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        self.program.end(Signal::Kill).await;
        self.end_own_epmd();
    }

    /// A clean stop.
    pub(crate) async fn stop(&mut self) {
        self.program.end(Signal::Term).await;
        self.end_own_epmd();
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    /// The end of [`Self::freeze`].
    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }

    /// Starts it on the data and the ports that it had, and waits until it has started wholly: then its log says so,
    /// AMQP's ports accept, and the management API answers. It must not be running.
    pub(crate) async fn restart(&mut self) {
        let log = self.program.file("log");
        let starts = {
            let log = log.clone();
            move || fs::read_to_string(&log).unwrap_or_default().matches(STARTED).count()
        };
        let before = starts();
        let mut command = self.program.command();
        let Erlang { epmd, node_port, node, .. } = &self.erlang;
        let ports = [epmd.to_string(), node_port.to_string()];
        command.arg(&self.program.dir.0).args(ports).arg(node);
        let (ports, http) = ([self.port, self.tls_port, self.stream.0, self.stream.1], self.http);
        let answers = || {
            let started = starts() > before;
            async move {
                if !started {
                    return Err(format!("its log has no new {STARTED:?}"));
                }
                for port in ports {
                    let stream = TcpStream::connect(("127.0.0.1", port)).await;
                    stream.map_err(|error| format!("port {port}: {error}"))?;
                }
                match request(http, "GET", "/api/overview", &Value::Null).await? {
                    (200, _) => Ok(()),
                    (code, body) => Err(format!("{code} {body}")),
                }
            }
        };
        self.program.start(command, answers).await;
    }

    /// Takes the permissions of `relay` away and closes its connections, or grants the permissions. A restart keeps
    /// them as they are.
    pub(crate) async fn allow(&self, allow: bool) {
        let permissions = "/api/permissions/%2f/relay";
        if allow {
            let rights = json!({ "configure": "^postrider\\.", "write": ".*", "read": "" });
            self.api_ok("PUT", permissions, &rights).await;
        } else {
            self.api_ok("DELETE", permissions, &Value::Null).await;
            self.api_ok("DELETE", "/api/connections/username/relay", &Value::Null).await;
        }
    }

    /// Makes a queue of a type: `quorum`, `classic` or `stream`. A quorum queue has no delivery limit unless the
    /// arguments set one: it would drop a message that was looked at twenty times.
    pub(crate) async fn create_queue(&self, name: &str, kind: &str, mut arguments: Value) {
        arguments["x-queue-type"] = kind.into();
        if kind == "quorum" && arguments.get("x-delivery-limit").is_none() {
            arguments["x-delivery-limit"] = (-1).into();
        }
        let queue = json!({ "durable": true, "arguments": arguments });
        self.api_ok("PUT", &format!("/api/queues/%2f/{name}"), &queue).await;
        match kind {
            "quorum" => self.await_registration("quorum", &format!("%2F_{name}")).await,
            "stream" => {
                self.await_registration("coordination", "rabbit_stream_coordinator").await;
            }
            _ => {}
        }
    }

    /// Waits until the files of a group name a quorum queue, or what starts the streams, which takes some three seconds
    /// after the first declaration: a server that is killed before comes back with the queue and without its messages,
    /// confirmed ones too, or with streams that never have a leader.
    async fn await_registration(&self, group: &str, name: &str) {
        let node = self.node();
        let file = self.program.file(&format!("data/{node}/{group}/{node}/names.dets"));
        let look = || async {
            let registered = fs::read(&file).map_err(|error| error.to_string())?;
            let found = registered.windows(name.len()).any(|bytes| bytes == name.as_bytes());
            if found { Ok(()) } else { Err(format!("no {name} in {}", file.display())) }
        };
        await_or_dump(&format!("{name} on disk"), SOON, look, || self.log()).await;
    }

    /// Runs `rabbitmqctl` with these arguments, as scripts/lib/rabbitmq-server runs the server. It takes five seconds.
    pub(crate) fn ctl(&self, arguments: &[&str]) {
        let script = "root=$1 dir=$2; shift 2; \
            for name in proc dev tmp sys; do mount --rbind /$name $root/$name; done; \
            mount --bind $dir $root/data; \
            program=$(cd $root && echo usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmqctl); \
            exec chroot $root /$program \"$@\"";
        let epmd = self.erlang.epmd;
        let dir = &self.program.dir.0;
        let output = std::process::Command::new("unshare")
            .args(["-Urm", "--propagation", "private", "bash", "-euc", script, "-"])
            .arg(self.program.executable().with_file_name("root"))
            .arg(fs::canonicalize(dir).expect("a directory"))
            .args(arguments)
            .env("HOME", "/data")
            .env("ERL_EPMD_PORT", epmd.to_string())
            .env("RABBITMQ_NODENAME", self.node())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .output()
            .expect("unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {said}");
    }

    /// Waits until a queue holds so many messages, and reads their payloads. A quorum queue has none for a moment
    /// after a start.
    pub(crate) async fn await_payloads(&self, queue: &str, count: usize) -> Vec<String> {
        let look = || async {
            let payloads = self.peek(queue, count).await?;
            if payloads.len() < count { Err(format!("{payloads:?}")) } else { Ok(payloads) }
        };
        await_or_dump(&format!("{count} in {queue}"), SOON, look, || self.log()).await
    }

    /// The payloads at the head of a queue, which stay in it. Not for a queue of type `stream`.
    pub(crate) async fn peek(&self, queue: &str, count: usize) -> Result<Vec<String>, String> {
        let body = json!({ "count": count, "ackmode": "ack_requeue_true", "encoding": "auto" });
        let (code, answer) =
            self.api("POST", &format!("/api/queues/%2f/{queue}/get"), &body).await?;
        let messages = answer.as_array().ok_or_else(|| format!("{code} {answer}"))?;
        Ok(messages.iter().map(|m| m["payload"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// An answer of the management API to `admin`: its status, and its JSON (null if there is none).
    pub(crate) async fn api(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<(u16, Value), String> {
        request(self.http, method, path, body).await
    }

    /// The same, which must succeed.
    pub(crate) async fn api_ok(&self, method: &str, path: &str, body: &Value) -> Value {
        let (code, answer) = self
            .api(method, path, body)
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        assert!((200..300).contains(&code), "{method} {path}: {code} {answer}");
        answer
    }

    /// `epmd` does not end with a node. That of a cluster serves the nodes that still run.
    fn end_own_epmd(&self) {
        if !self.erlang.shares_epmd {
            self.end_epmd();
        }
    }

    fn end_epmd(&self) {
        let file = self.program.file("epmd-pid");
        let Ok(text) = fs::read_to_string(&file) else { return };
        let Ok(pid) = text.trim().parse::<u32>() else { return };
        // The pid could belong to another process by now.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let port = self.erlang.epmd.to_string();
        let is_epmd = command.split(|byte| *byte == 0).any(|word| word == port.as_bytes());
        if is_epmd {
            signal(pid, Signal::Kill);
        }
        drop(fs::remove_file(file));
    }
}

impl Drop for PrivateRabbitMq {
    fn drop(&mut self) {
        self.end_epmd();
    }
}

/// The end of a start, in the log.
const STARTED: &str = "Server startup complete";

/// HTTP/1.0, so that the answer has no chunks.
async fn request(
    port: u16,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<(u16, Value), String> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic YWRtaW46YWRtaW4=\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(REQUEST_MAX, exchange)
        .await
        .map_err(|elapsed| format!("{method} {path}: {elapsed}"))?
        .map_err(|error| format!("{method} {path}: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer without a body")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| format!("no status in {head:?}"))?;
    Ok((code, serde_json::from_str(body).unwrap_or(Value::Null)))
}
